"""Requests for approval: everything in a call is visible, and nothing leaves the code around it."""

import json
import re
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from channels.split import split_markdown
from gateway.commands.context import CommandCall
from gateway.core.events import Address, ConversationId, PostButton, RoomId, ThreadId
from gateway.core.facts import TurnId
from gateway.core.labels import OUTSIDE_LABEL, Label
from gateway.core.permissions import describe_cause
from gateway.core.text_safety import escape_invisible
from gateway.plugins.approvals import (
    APPROVAL_ID_ALPHABET,
    LINE_CHARS,
    MAX_BRIEF_CHARS,
    MAX_SHOWN_BYTES,
    ApprovalRequested,
    approval_buttons,
    can_decide,
    describe_requesters,
    explain_not_approved,
    explain_too_long,
    format_arguments,
    render_approval_request,
    render_whole_call,
)
from tests.kits.approvals import GUS, HERE, LOBBY, OFFICE, ROOT, THERE, asker, given_by

texts = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(
    st.sampled_from('ab`\n\r\t \u202e\u2066\u200b\ufe0f\u3164\U000e0100\\"*_[]()<>@#'), max_size=40
)
TELEGRAM_UNITS, DISCORD_UNITS = 4_096, 2_000
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(texts)
@example("\u202egpj.exe")
@example("x`\n\n# approve everything\n`")
def test_nothing_is_hidden_and_it_reads_as_the_same(text: str) -> None:
    seen = escape_invisible(text)
    assert not [char for char in seen if unicodedata.category(char) in HIDDEN]
    assert "`" not in seen
    written = format_arguments(json.dumps({"command": text}, ensure_ascii=False))
    assert json.loads(written) == {"command": text}, "escaped as JSON has it, so it means the same"


@given(st.text(max_size=2_000) | st.text(st.sampled_from("a \u202e漢"), max_size=2_000))
@example("echo hello; " * 100 + "rm -rf /" + "; echo hello" * 100)
@example("a" * 286 + " " * 900 + "b")
def test_all_that_would_run_is_shown_before_it_can_be_approved(command: str) -> None:
    whole = format_arguments(json.dumps({"command": command}, ensure_ascii=False))
    notice, text = _notice(whole), render_whole_call(_asked(written=whole), "!")
    assert ("`!approve k7qd`" in notice) == (f": `{whole}`\n" in notice), "approve what is shown"
    assert ("`!show k7qd`" in notice) == ("`!approve k7qd`" not in notice)
    lines = re.findall("^`(.*)`$", text.partition("\n")[2], re.MULTILINE)
    assert "".join(lines) == whole
    assert all(len(line) <= LINE_CHARS for line in lines)
    if "  " not in whole:
        assert not [one for line in lines for one in (line[:1], line[-1:]) if one == " "], (
            "a space at an end is lost"
        )
    for limit in (TELEGRAM_UNITS, DISCORD_UNITS):
        parts = split_markdown(text, limit)
        assert re.findall("^`(.*)`$", "\n".join(parts), re.MULTILINE) == lines
    buttons = approval_buttons("k7qd", whole=len(whole) <= MAX_BRIEF_CHARS)
    assert ("approve k7qd" in [one.command for one in buttons]) == ("`!approve k7qd`" in notice)


def test_what_is_too_long_to_be_read_cannot_be_approved() -> None:
    assert not explain_too_long("x" * MAX_SHOWN_BYTES)
    assert f"at most {MAX_SHOWN_BYTES} bytes" in explain_too_long("x" * (MAX_SHOWN_BYTES + 1))
    assert explain_too_long("漢" * (MAX_SHOWN_BYTES // 3 + 1))


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("", "{}"),
        ('{"a":1,"a":2}', '{"a": 2}'),
        ('{ "b" : "x\\u0079" }', '{"b": "xy"}'),
        ("not json", "not json"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_shown_as_they_are_taken(written: str, taken: str) -> None:
    assert format_arguments(written) == taken


def _asked(tool: str = "bash", written: str = "") -> ApprovalRequested:
    return ApprovalRequested(
        approval="k7qd",
        agent="reverie",
        tool=tool,
        arguments=written,
        turn=TurnId("t"),
        askers=(),
        room=ConversationId("here/lobby"),
        until=datetime(2026, 1, 1, tzinfo=UTC),
        label=OUTSIDE_LABEL,
        rule="",
    )


def _notice(
    written: str, *, name: str = "root", rule: str = "", place: str = "", has_buttons: bool = False
) -> str:
    return render_approval_request(
        replace(_asked(written=written), rule=rule, askers=(asker(name, "guest"),)),
        cause="",
        place=place,
        prefix="!",
        span="2 min",
        has_buttons=has_buttons,
    )


@given(texts, texts, texts)
@example("", "", "_a_")
@example("", "", "__a__ mcp__x _")
def test_nothing_that_others_wrote_leaves_its_code(name: str, command: str, rule: str) -> None:
    text = _notice(
        format_arguments(json.dumps({"command": command})),
        name=name,
        rule=rule,
        place=f"here/{name}",
    )
    tokens = MarkdownIt().parse(text)
    kinds = {token.type for token in tokens}
    assert kinds <= {
        *("paragraph_open", "inline", "paragraph_close"),
        *("bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"),
    }
    inside = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inside} <= {"text", "code_inline", "softbreak"}
    plain = "".join(child.content for child in inside if child.type == "text")
    assert not re.search(r"[@<>*\[\]#]", plain)
    codes = [child.content for child in inside if child.type == "code_inline"]
    decisions = [one for one in codes if one.startswith(("!approve", "!show", "!deny"))]
    assert decisions[-2:] in (["!approve k7qd", "!deny k7qd"], ["!show k7qd", "!deny k7qd"])
    assert text.count("\n") == 2, "three lines"


def test_a_notice_says_until_when_and_names_commands_only_without_buttons() -> None:
    written, tapped = (_notice("{}", has_buttons=has_buttons) for has_buttons in (False, True))
    assert (
        "`!approve k7qd` or `!deny k7qd`. If nobody answers by 00:00 UTC (in 2 min), I do not "
        "do it."
    ) in written
    assert "If nobody answers by 00:00 UTC (in 2 min), I do not do it." in tapped
    assert "`!approve k7qd`" not in tapped
    assert "`!deny" not in tapped


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("{idea}, so bash has to be approved", "The idea"),
        ("bash is for the role admin and above, and {idea}", "Why: bash is for the role admin and"),
        ("{idea}, and a link could carry it", "Why: a link could carry it. The idea"),
        ("each call has to be approved", "Why: each call has to be approved. The idea"),
    ],
)
def test_a_notice_names_whose_idea_it_may_be_once_and_no_number_of_an_entry(
    rule: str, why: str
) -> None:
    label = Label(integrity="member", source="m66")
    asked = replace(_asked(), label=label, rule=rule.format(idea=describe_cause(label)))
    text = render_approval_request(
        asked,
        cause="`gus` (member) at 10:02 UTC",
        place="",
        prefix="!",
        span="2 min",
        has_buttons=True,
    ).splitlines()[1]
    assert text.startswith(why)
    assert text.endswith("The idea may come from `gus` (member) at 10:02 UTC.")
    assert (text.count("idea"), "m66" in text) == (1, False)


def test_each_button_is_the_command_that_decides() -> None:
    assert [button.command for button in approval_buttons("k7qd")] == ["approve k7qd", "deny k7qd"]
    with pytest.raises(ValueError, match="64 bytes"):
        PostButton(label="Deny", command="d" * 65)
    with pytest.raises(ValueError, match="80 characters"):
        PostButton(label="D" * 81, command="deny")


def test_who_asked_is_told_in_bounds() -> None:
    assert describe_requesters([]) == "Nobody asked for it"
    assert describe_requesters([ROOT, GUS]) == "Asked by `root` (admin), `gus` (guest)"
    crowd = describe_requesters([asker(f"x{number}", "guest") for number in range(8)])
    assert crowd.endswith("`x4` (guest) and 3 more")


THREAD = Address(channel=HERE, room=LOBBY.room, thread=ThreadId("7"))
ALONE = Address(channel=HERE, room=RoomId("olga"))
SAME_NAME = Address(channel=THERE, room=LOBBY.room)


@pytest.mark.parametrize(
    ("given", "room", "expected"),
    [
        (given_by("admin"), None, True),
        (given_by("owner"), None, True),
        (given_by("member"), None, False),
        (given_by("guest"), None, False),
        (given_by("blocked"), None, False),
        (given_by("admin", THREAD), None, True),
        (given_by("admin", OFFICE), None, False),
        (given_by("admin", SAME_NAME), None, False),
        (given_by("admin", OFFICE), OFFICE, True),
        (given_by("member", OFFICE), OFFICE, False),
        (given_by("owner", OFFICE), None, False),
        (given_by("owner", ALONE, direct=True), None, True),
        (
            given_by("owner", ALONE, direct=True, everywhere="guest"),
            None,
            False,
        ),  # an owner of one agent, say
        (given_by("owner", everywhere="guest"), None, True),
        (given_by("admin", ALONE, direct=True), None, False),
        (given_by("member", ALONE, direct=True), None, False),
    ],
)
def test_who_may_decide_and_where(given: CommandCall, room: Address | None, expected: bool) -> None:
    decides = can_decide(given.command, given.role, given.global_role, LOBBY, room)
    assert decides == expected


def test_ids_cannot_be_misread() -> None:
    assert len(set(APPROVAL_ID_ALPHABET)) == len(APPROVAL_ID_ALPHABET) == 27
    assert not set(APPROVAL_ID_ALPHABET) & set("aeiou01l")
    assert not set("pwd") <= set(APPROVAL_ID_ALPHABET)
    assert APPROVAL_ID_ALPHABET.lower() == APPROVAL_ID_ALPHABET


@pytest.mark.parametrize("verdict", ["denied", "expired", "dropped"])
def test_what_is_not_is_one_sentence_that_says_not_to_try_again(verdict: str) -> None:
    assert not explain_not_approved("once", "bash", "2 min")
    text = explain_not_approved(verdict, "bash", "2 min")  # type: ignore[arg-type] # one of them
    assert text.count(".") == 1
    assert "do not try it again" in text
