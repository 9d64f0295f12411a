"""Arguments of commands by the table, and errors in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import CommandArg
from gateway.commands.definition import COMMAND_GROUPS, SubcommandDefinition
from gateway.commands.parser import (
    MAX_QUOTED_CHARS,
    InvalidArguments,
    ParsedArguments,
    mask_secrets,
    parse_arguments,
    quote_code,
)
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME


@pytest.mark.parametrize(
    ("name", "text", "sub", "args"),
    [
        ("status", "", "", {}),
        ("why", "12", "", {"entry": "12"}),
        ("why", "`12`", "", {"entry": "12"}),
        ("approve", "", "", {}),
        ("approve", "k7qd", "", {"id": "k7qd"}),
        ("approve", "k7qd ALWAYS", "", {"id": "k7qd", "lasting": "always"}),
        ("approve", '"" always', "", {"lasting": "always"}),
        ("link", "", "start", {}),
        ("link", "start", "start", {}),
        ("link", "LIST", "list", {}),
        ("link", "ABCD-EFGH", "code", {"code": "ABCD-EFGH"}),
        ("link", "abcd efgh", "code", {"code": "abcd efgh"}),
        ("link", "code abcd efgh", "code", {"code": "abcd efgh"}),
        ("log", "", "tail", {}),
        ("log", "20", "tail", {"n": "20"}),
        ("dmn", "", "status", {}),
        ("dmn", "sleep", "sleep", {}),
        ("dmn", "sleep  1h 30m ", "sleep", {"until": "1h 30m"}),
        ("notify", "", "types", {}),
        ("notify", "threshold irc.join", "threshold", {"type": "irc.join"}),
        ("notify", "threshold irc.join LOW", "threshold", {"type": "irc.join", "urgency": "low"}),
        (
            "notify",
            "rule urgent direct on  fire",
            "rule",
            {"urgency": "urgent", "type": "direct", "keyword": "on  fire"},
        ),
        ("role", 'set "Ann Lee" member', "set", {"who": "Ann Lee", "role": "member"}),
        ("role", "set “Ann Lee” member here", "set", {"who": "Ann Lee", "role": "member", "where": "here"}),
        ("role", 'set "a \\"b\\\\" owner', "set", {"who": 'a "b\\', "role": "owner"}),
        ("role", "set irc.x:account:ann admin", "set", {"who": "irc.x:account:ann", "role": "admin"}),
        ("role", 'set a"b owner', "set", {"who": 'a"b', "role": "owner"}),
        ("say", '#a "hello" he said', "", {"room": "#a", "text": '"hello" he said'}),
        ("say", "#a first line\nsecond line", "", {"room": "#a", "text": "first line\nsecond line"}),
        ("rewind", "\n3\n", "", {"n": "3"}),
        ("room", "approve", "approve", {}),
    ],
)
def test_arguments_are_known_by_name(name: str, text: str, sub: str, args: dict[str, str]) -> None:
    use = parse_arguments(COMMANDS_BY_NAME[name], text)
    assert isinstance(use, ParsedArguments)
    assert (use.sub.name if use.sub else "", use.arguments) == (sub, args)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("status", "now", "`now` is more than it takes."),
        ("why", "", "`entry` is missing."),
        ("why", "twelve", "`entry` is a number, and `twelve` is none."),
        ("why", "-1", "`entry` is a number, and `-1` is none."),
        ("why", "١٢", "`entry` is a number, and `١٢` is none."),
        ("why", "1" * 19, f"`entry` is a number, and `{'1' * 19}` is none."),
        ("approve", "k7qd forever", "`forever` is not `session` or `always`."),
        ("role", "set ann", "`role` is missing."),
        ("role", "set ann king", "`king` is not `owner`, `admin` or `member`."),
        ("role", "set Ann Lee member", "`Lee` is not `owner`, `admin` or `member`."),
        ("role", "clear ann there", "`there` is not `here` or `everywhere`."),
        ("say", "#a", "`text` is missing."),
        ("pair", "approve", "`code` is missing."),
        ("pair", "aprove X", "There is no `pair aprove`."),
        ("dmn", "wakeup", "There is no `dmn wakeup`."),
        ("block", '"unclosed quote', "`quote` is not `here` or `everywhere`."),
        ("status", "`*_~|@everyone" + "x" * 100, f"`'*_~|@everyone{'x' * 25}…` is more than it takes."),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(name: str, text: str, reason: str) -> None:
    use = parse_arguments(COMMANDS_BY_NAME[name], text)
    assert isinstance(use, InvalidArguments)
    assert use.reason == reason


def test_the_nearest_subs_are_known() -> None:
    use = parse_arguments(COMMANDS_BY_NAME["pair"], "aprove X")
    assert isinstance(use, InvalidArguments)
    assert use.suggestions == ("approve",)
    assert use.sub is None


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("pair", "approve ABCDEFGH", "approve ***"),
        ("pair", "aprove ABCDEFGH", "***"),
        ("pair", "ABCDEFGH", "***"),
        ("pair", "revoke irc.x:account:ann", "revoke irc.x:account:ann"),
        ("pair", "revoke", "revoke ***"),
        ("pair", "", "list"),
        ("room", "approve ABCD EFGH", "approve ***"),
        ("room", "approve", "approve"),
        ("link", "abcdefgh", "code ***"),
        ("link", "code", "code ***"),
        ("role", 'set "Ann  Lee" member', "set Ann Lee member"),
        ("role", "set x  king", "set x king"),
        ("say", "#a hello", "#a hello"),
        ("dmn", "off", "off"),
    ],
)
def test_secrets_stand_in_no_record(name: str, text: str, shown: str) -> None:
    assert mask_secrets(COMMANDS_BY_NAME[name], text) == shown


@given(st.sampled_from(sorted(COMMANDS_BY_NAME)), st.text())
def test_any_text_is_understood_or_not(name: str, text: str) -> None:
    row = COMMANDS_BY_NAME[name]
    use = parse_arguments(row, text)
    if isinstance(use, ParsedArguments):
        args = {arg.name: arg for arg in (use.sub.args if use.sub else row.args)}
        assert set(use.arguments) <= set(args)
        assert all(use.arguments.values())
        assert all(
            use.arguments[arg.name] in arg.choices for arg in args.values() if arg.choices and arg.name in use.arguments
        )
        assert {arg.name for arg in args.values() if arg.required} <= set(use.arguments)
    else:
        assert "\n" not in use.reason
        assert use.reason.count("`") % 2 == 0


@given(st.text())
def test_words_of_others_cannot_leave_their_code(text: str) -> None:
    shown = quote_code(text)
    assert "`" not in shown
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= MAX_QUOTED_CHARS


CODES = st.text("ABCDEFGHJKMNPQRTUVWXY34679", min_size=8, max_size=8)


@given(st.sampled_from(["pair", "room", "link"]), st.text("ab \"'`", max_size=6), CODES, st.text("ab \"'`", max_size=6))
def test_no_way_of_writing_a_code_gets_it_into_a_record(name: str, before: str, secret: str, after: str) -> None:
    for text in (f"approve {before}{secret}{after}", f"code {before}{secret}", f"{before} {secret} {after}"):
        shown = mask_secrets(COMMANDS_BY_NAME[name], text)
        use = parse_arguments(COMMANDS_BY_NAME[name], text)
        known = isinstance(use, ParsedArguments) and secret in use.arguments.values()
        assert secret not in shown or (known and "***" not in shown and not _secret(use))


def _secret(use: ParsedArguments | InvalidArguments) -> bool:
    return isinstance(use, ParsedArguments) and use.sub is not None and any(arg.secret for arg in use.sub.args)


def _args(of: SubcommandDefinition) -> tuple[CommandArg, ...]:
    return of.args


def test_the_table_can_be_read_without_doubt() -> None:
    """Assumptions of the parser."""
    for row in COMMANDS:
        assert not (row.args and row.subs)
        assert row.group in COMMAND_GROUPS
        assert all(name not in {sub.name for sub in row.subs} for name in ("", row.name))
        assert not row.default_sub or row.find_sub(row.default_sub)
        assert not row.subs or not any(arg.required for arg in row.subs[0].args)
        for args in [row.args, *map(_args, row.subs)]:
            needed = [arg.required for arg in args]
            assert needed == sorted(needed, reverse=True)
            assert not any(arg.rest for arg in args[:-1])
            assert len({arg.name for arg in args}) == len(args)
            assert all(arg.form or arg.choices or arg.rest for arg in args)
            assert all(choice == choice.lower() and choice.isascii() for arg in args for choice in arg.choices)
    secrets = {(row.name, sub.name, arg.name) for row in COMMANDS for sub in row.subs for arg in sub.args if arg.secret}
    assert secrets == {("pair", "approve", "code"), ("room", "approve", "code"), ("link", "code", "code")}
