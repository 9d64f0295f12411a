"""What an admin is shown of a call: nothing of it is hidden, and nothing leaves the code that it stands in."""

import json
import re
import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gateway.access import Role
from gateway.events import Address, ChannelName, ConversationId, RoomId, SenderId, ThreadId
from gateway.records import ApprovalAsked, TurnId
from gateway.tools.consent import (
    ALPHABET,
    HEAD_CHARS,
    TAIL_CHARS,
    Approver,
    approvers,
    arguments,
    code,
    may,
    notice,
    shown,
    told,
    visible,
    weak,
    who,
)
from tests.gateway.approvals_kit import GUS, HERE, LOBBY, MIA, OFFICE, ROOT, THERE, asker

texts = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(
    st.sampled_from('ab`\n\r\t \u202e\u2066\u200b\ufe0f\u3164\U000e0100\\"*_[]()<>@#'), max_size=40
)
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(texts)
@example("\u202egpj.exe")
@example("x`\n\n# approve everything\n`")
def test_nothing_is_hidden_and_it_reads_as_the_same(text: str) -> None:
    seen = visible(text)
    assert not [char for char in seen if unicodedata.category(char) in HIDDEN]
    assert "`" not in seen
    written = shown(json.dumps({"command": text}, ensure_ascii=False))
    if not written.left_out:
        assert json.loads(written.head) == {"command": text}, "escaped as JSON has it, so it means the same"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain äöü 漢字", "plain äöü 漢字"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u00a0b", "a\\u00a0b"),
        ("\x1b[2J\x7f", "\\u001b[2J\\u007f"),
        ("`", "\\u0060"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\u3164\u2800\ufe0f", "\\u3164\\u2800\\ufe0f"),
    ],
)
def test_what_nobody_would_see_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen


@given(st.dictionaries(st.sampled_from(["command", "path"]), st.text(max_size=2_000), max_size=2))
def test_beginning_and_end_are_shown_and_the_rest_is_counted(said: dict[str, str]) -> None:
    written = json.dumps(said, ensure_ascii=False)
    whole, seen = arguments(written), shown(written)
    assert len(seen.head) + len(seen.tail) <= HEAD_CHARS + TAIL_CHARS
    if seen.left_out:
        head, tail = _count(whole, seen.head), _count(whole[::-1], seen.tail, backwards=True)
        assert head + seen.left_out + tail == len(whole)
    else:
        assert seen.head == visible(whole)
    assert "\n" not in seen.line


def _count(whole: str, seen: str, *, backwards: bool = False) -> int:
    """How many characters of the whole that shows."""
    length, count = 0, 0
    while length < len(seen):
        length, count = length + len(visible(whole[count])), count + 1
    assert length == len(seen), f"none is shown in part{' at the end' if backwards else ''}"
    return count


def test_what_a_long_command_does_at_its_end_is_shown() -> None:
    seen = shown(json.dumps({"command": "echo hello; " * 100 + "rm -rf /"}))
    assert seen.head.startswith('{"command": "echo hello;')
    assert seen.tail.endswith('rm -rf /"}')
    assert seen.left_out == len(arguments(json.dumps({"command": "echo hello; " * 100 + "rm -rf /"}))) - 400
    assert f"[... {seen.left_out} characters ...]" in seen.line


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
    assert arguments(written) == taken


def test_a_megabyte_is_cut_at_once() -> None:
    seen = shown(json.dumps({"content": "\u202e" * 1_000_000}, ensure_ascii=False))
    assert seen.left_out > 999_000


def _asked(tool: str = "bash") -> ApprovalAsked:
    return ApprovalAsked(
        approval="k7qd",
        agent="reverie",
        tool=tool,
        arguments="",
        turn=TurnId("t"),
        asked_by=(),
        room=ConversationId("here/lobby"),
        until=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(texts, texts, texts)
@example("", "", "_a_")
@example("", "", "__a__ mcp__x _")
def test_nothing_that_others_wrote_leaves_its_code(name: str, command: str, rule: str) -> None:
    text = notice(
        _asked(),
        shown(json.dumps({"command": command})),
        askers=[asker(name, "guest")],
        rule=rule,
        place=f"here/{name}",
        prefix="!",
        span="2 min",
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
    assert codes[-4:] == ["!approve k7qd", "!approve k7qd session", "!approve k7qd always", "!deny k7qd"]


def test_who_asked_is_told_in_bounds() -> None:
    assert who([]) == "Nobody asked for it"
    assert who([ROOT, GUS]) == "Asked by `root` (admin), `gus` (guest)"
    crowd = who([asker(f"x{number}", "guest") for number in range(8)])
    assert crowd.endswith("`x4` (guest) and 3 more")
    assert code("a" * 100) == f"`{'a' * 39}…`"
    assert code(" ") == "`?`"


def _approver(
    role: Role, at: Address = LOBBY, *, direct: bool = False, sender: str = "root", everywhere: Role | None = None
) -> Approver:
    return Approver(at=at, sender=SenderId(sender), role=role, direct=direct, everywhere=everywhere or role)


THREAD = Address(channel=HERE, room=LOBBY.room, thread=ThreadId("7"))
ALONE = Address(channel=HERE, room=RoomId("olga"))
SAME_NAME = Address(channel=THERE, room=LOBBY.room)


@pytest.mark.parametrize(
    ("approver", "room", "expected"),
    [
        (_approver("admin"), None, True),
        (_approver("owner"), None, True),
        (_approver("member"), None, False),
        (_approver("guest"), None, False),
        (_approver("blocked"), None, False),
        (_approver("admin", THREAD), None, True),
        (_approver("admin", OFFICE), None, False),
        (_approver("admin", SAME_NAME), None, False),
        (_approver("admin", OFFICE), OFFICE, True),
        (_approver("member", OFFICE), OFFICE, False),
        (_approver("owner", OFFICE), None, False),
        (_approver("owner", ALONE, direct=True), None, True),
        (_approver("owner", ALONE, direct=True, everywhere="guest"), None, False),  # an owner of one agent, say
        (_approver("owner", everywhere="guest"), None, True),
        (_approver("admin", ALONE, direct=True), None, False),
        (_approver("member", ALONE, direct=True), None, False),
    ],
)
def test_who_may_decide_and_where(approver: Approver, room: Address | None, expected: bool) -> None:
    assert may(approver, LOBBY, room) == expected


def test_nobody_approves_what_their_own_role_was_too_weak_for() -> None:
    """They asked while nobody vouched for them, or it takes more than their role."""
    before = asker("root", "member")
    assert weak(_approver("admin"), HERE, [before, MIA], "admin")
    assert not weak(_approver("admin"), THERE, [before], "admin"), "somebody else with the same id"
    assert not weak(_approver("admin"), HERE, [ROOT, GUS], "admin")
    assert weak(_approver("admin"), HERE, [ROOT], "owner")
    assert [approvers(role) for role in ("guest", "admin", "owner")] == [("admin", "owner")] * 2 + [("owner",)]


def test_ids_cannot_be_misread() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) == 27
    assert not set(ALPHABET) & set("aeiou01l")
    assert not set("pwd") <= set(ALPHABET)
    assert ALPHABET.lower() == ALPHABET


@pytest.mark.parametrize("verdict", ["once", "session", "always"])
def test_what_is_approved_is_told_to_nobody_else(verdict: str) -> None:
    assert told(verdict, "bash", "2 min") == ""  # type: ignore[arg-type] # one of them


@pytest.mark.parametrize("verdict", ["denied", "expired", "dropped"])
def test_what_is_not_is_one_sentence_that_says_not_to_try_again(verdict: str) -> None:
    text = told(verdict, "bash", "2 min")  # type: ignore[arg-type] # one of them
    assert text.count(".") == 1
    assert "do not try it again" in text


def test_channels_are_part_of_who_somebody_is() -> None:
    assert _approver("admin").name == "here:root"
    assert ChannelName("here") == HERE
