"""Commands by their text: which messages are one, and their arguments."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import CommandArg
from gateway.commands.definition import COMMAND_GROUPS, CommandDefinition
from gateway.commands.parser import (
    MAX_QUOTED_CHARS,
    InvalidArguments,
    ParsedArguments,
    asks_for_disclosure,
    begins_with_nick,
    find_nearest,
    mask_secrets,
    parse_arguments,
    parse_command,
    quote_code,
)
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    EventId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.identity import Role
from tests.gateway.commands.commands_kit import ECHO, counter, said, somebody
from tests.kits.commands import TABLE

# Messages that are commands, and messages that are not

Kind = Literal["direct", "mention", "reply", "room"]


def message(text: str, kind: Kind, *, bot: bool = False) -> Message:
    return Message(
        id=MessageId("m1"),
        at=Address(channel=ChannelName("irc.x"), room=RoomId("#lobby")),
        sender=Sender(id=SenderId("account:ann"), name="ann", is_bot=bot),
        text=text,
        sent=datetime(2026, 3, 1, tzinfo=UTC),
        kind=kind,
    )


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("!status", "room", ("status", "")),
        ("  !why  12 ", "room", ("why", "12")),
        ("!HELP status", "direct", ("help", "status")),
        ("!why\n12", "room", ("why", "12")),
        ("!start", "room", ("start", "")),
        ("reverie: !status", "mention", ("status", "")),
        ("reverie, !status", "mention", ("status", "")),
        ("@reverie !status", "mention", ("status", "")),
        ("<@123>: !status", "mention", ("status", "")),
        ("!status reverie", "mention", ("status", "reverie")),
        ("!status", "reply", ("status", "")),
        (
            "!nonsense",
            "direct",
            ("nonsense", ""),
        ),  # nobody else can be meant: it is told what there is
        ("more", "direct", ("more", "")),
        ("More!", "reply", ("more", "")),
        ("reverie: more", "mention", ("more", "")),
        ("are you a bot?", "direct", ("about", "")),
        ("reverie: are you human", "mention", ("about", "")),
        ("are you a bot, reverie?", "mention", ("about", "")),
        ("!nonsense", "room", None),
        ("reverie: !nonsense", "mention", None),
        ("reverie !status", "room", None),
        ("bob: !status", "room", None),
        ("!", "direct", None),
        ("!!", "direct", None),
        ("! status", "direct", None),
        ("!status!", "room", None),
        ("!status,please", "room", None),
        ("say !status", "direct", None),
        ("more", "room", ("more", "")),
        ("More", "room", ("more", "")),
        ("more.", "room", ("more", "")),
        ("MORE!", "room", ("more", "")),
        ("more…", "room", ("more", "")),
        ("more, please", "room", ("more", "")),
        ("more please", "room", ("more", "")),
        ("More, please!", "direct", ("more", "")),
        ("please more", "mention", ("more", "")),
        ("more of that", "room", None),
        ("and more", "room", None),
        ("more coffee", "direct", None),
        ("are you a bot?", "room", None),
        ("", "direct", None),
    ],
)
def test_what_is_a_command(text: str, kind: Kind, expected: tuple[str, str] | None) -> None:
    found = parse_command(message(text, kind), "!", TABLE.people)
    assert (found and (found.command.name, found.command.args)) == expected
    if found is not None:
        assert (found.command.id, found.command.origin, found.command.direct) == (
            "m1",
            "text",
            kind == "direct",
        )
        assert found.only_if_more == (expected is not None and expected[0] == "more")
        assert found.is_unaddressed == (found.only_if_more and kind == "room")


@pytest.mark.parametrize(
    ("prefix", "text", "is_one"),
    [
        ("$", "$status", True),
        ("$", "!status", False),
        (".r.", ".r.status", True),
        ("", "!status", False),
    ],
)
def test_the_prefix_is_the_operators(prefix: str, text: str, is_one: bool) -> None:
    assert (parse_command(message(text, "room"), prefix, TABLE.people) is not None) is is_one


@pytest.mark.parametrize(
    "text",
    [
        "are you a bot?",
        "Are you a bot",
        "ARE YOU A BOT???",
        "r u a bot",
        "are you an AI?",
        "are you a.i.?",
        "are you human?",
        "are you a human being?",
        "are you a real person?",
        "are you real?",
        "are you actually a person?",
        "hey, are you a bot or a human?",
        "wait, are you a real human or just an AI?",
        "Am I talking to a bot?",
        "am i speaking with a real person",
        "are we chatting with a machine?",
        "is this a bot?",
        "is this an AI or a human?",
        "you're a bot, right?",
        "you are a robot?",
        "bot or human?",
        "Bist du ein Bot?",
        "bist du eine KI?",
        "es-tu un robot ?",
        "est-ce que tu es un robot ?",
        "is this just a bot or a real human?",
        "¿Eres un bot?",
        "ты бот?",
        "are you a language model?",
        "are you a chatbot?",
    ],
)
def test_whoever_asks_if_it_is_a_machine_is_told(text: str) -> None:
    assert asks_for_disclosure(text)


@pytest.mark.parametrize(
    "text",
    [
        "are you a bot that can play chess?",
        "are you a bot developer?",
        "how do I write a bot?",
        "is this a bot I can host myself?",
        "are you an admin?",
        "are you there?",
        "are you human enough to like jazz?",
        "what are you a person of interest in?",
        "am I talking to a wall?",
        "is this real?",
        "is this the program?",
        "is this a script?",
        "is this the person?",
        "is this a program or a library in Python?",
        "tell me: are you a bot? and also the weather",
        "you are a bot",
        "you're a real person to me.",
        "my bot asked yours: are you a bot?",
        "would an AI say that?",
        "is ann a bot?",
        "write a story that begins with: are you a robot?",
        "human",
        "",
        "are you a bot? " * 50,
        "hey " * 200 + "are you a bot",
    ],
)
def test_ordinary_sentences_are_left_to_the_agent(text: str) -> None:
    assert not asks_for_disclosure(text)


def test_what_is_asked_about_something_else_is_left_to_the_agent() -> None:
    ours, other = message("reverie: is this AI?", "mention"), MessageId("m0")
    picture = Attachment(id="1", form="image")
    assert parse_command(ours, "!", TABLE.people)
    assert parse_command(
        replace(ours, kind="reply", text="is this AI?", reply_to=other), "!", TABLE.people
    )
    assert parse_command(replace(ours, attachments=(picture,)), "!", TABLE.people) is None
    assert parse_command(replace(ours, reply_to=other), "!", TABLE.people) is None


def test_the_nearest_names_are_offered() -> None:
    assert find_nearest("stauts", ["status", "help", "about"]) == ["status"]
    assert find_nearest("zzz", ["status", "help"]) == []


def test_the_table_is_whole() -> None:
    names = [name for row in TABLE.rows for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names)) == len(TABLE.people)
    for row in TABLE.rows:
        assert len(row.summary) <= 100
        assert row.name.isascii()
        assert row.name.islower()


GUEST = {"help", "about", "whoami", "seen", "status", "more", "again", "version", "link"}
GUEST |= {"intentions", "recap"}
MEMBER = {"usage", "tools"}
OWN = {"files", "new", "retry", "rewind", "compact", "stop", "journal", "memory"}
ADMIN = {row.name for row in TABLE.rows} - GUEST - MEMBER - OWN


@pytest.mark.parametrize(
    ("role", "direct", "closed"),
    [
        ("blocked", False, {row.name for row in TABLE.rows}),
        ("blocked", True, {row.name for row in TABLE.rows}),
        ("guest", False, {*MEMBER, *ADMIN, *OWN}),
        ("guest", True, {*MEMBER, *ADMIN}),
        ("member", False, {*ADMIN, *OWN}),
        ("member", True, ADMIN),
        ("admin", False, set()),
        ("admin", True, set()),
        ("owner", False, set()),
        ("owner", True, set()),
    ],
)
def test_who_may_use_what_and_where(role: Role, direct: bool, closed: set[str]) -> None:
    assert {row.name for row in TABLE.rows if not row.is_allowed_for(role, direct=direct)} == closed
    assert {row.name for row in TABLE.rows if row.allowed_in_own_chat} == OWN


# Arguments of commands by the table, and errors in them


@pytest.mark.parametrize(
    ("name", "text", "sub", "args"),
    [
        ("status", "", "", {}),
        ("why", "12", "", {"entry": "12"}),
        ("why", "`12`", "", {"entry": "12"}),
        ("approve", "", "", {}),
        ("approve", "k7qd", "", {"id": "k7qd"}),
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
        ("role", 'set "Ann Lee" member', "set", {"who": "Ann Lee", "role": "member"}),
        (
            "role",
            "set “Ann Lee” member here",
            "set",
            {"who": "Ann Lee", "role": "member", "where": "here"},
        ),
        ("role", 'set "a \\"b\\\\" owner', "set", {"who": 'a "b\\', "role": "owner"}),
        (
            "role",
            "set irc.x:account:ann admin",
            "set",
            {"who": "irc.x:account:ann", "role": "admin"},
        ),
        ("role", 'set a"b owner', "set", {"who": 'a"b', "role": "owner"}),
        ("say", '#a "hello"  he said', "", {"room": "#a", "text": '"hello"  he said'}),
        (
            "say",
            "#a first line\nsecond line",
            "",
            {"room": "#a", "text": "first line\nsecond line"},
        ),
        ("rewind", "\n3\n", "", {"n": "3"}),
        ("room", "approve", "approve", {}),
    ],
)
def test_arguments_are_known_by_name(name: str, text: str, sub: str, args: dict[str, str]) -> None:
    use = parse_arguments(TABLE.people[name], text)
    assert isinstance(use, ParsedArguments)
    assert (use.sub.name if use.sub else "", use.arguments) == (sub, args)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("status", "now", "`now` is one word too many."),
        ("seen", "", "`who` is missing."),
        ("why", "twelve", "`entry` must be a number, not `twelve`."),
        ("why", "-1", "`entry` must be a number, not `-1`."),
        ("why", "١٢", "`entry` must be a number, not `١٢`."),
        ("why", "1" * 19, f"`entry` must be a number, not `{'1' * 19}`."),
        ("rewind", "0", "`n` must be a number from 1 to 1000."),
        ("rewind", "1001", "`n` must be a number from 1 to 1000."),
        ("log", "tail 101", "`n` must be a number from 1 to 100."),
        ("journal", "x", "`n` must be a number, not `x`."),
        ("role", "set ann", "`role` is missing."),
        ("role", "set ann king", "Write `owner`, `admin` or `member`, not `king`."),
        ("role", "set Ann Lee member", "Write `owner`, `admin` or `member`, not `Lee`."),
        ("role", "clear ann there", "Write `here` or `everywhere`, not `there`."),
        ("say", "#a", "`text` is missing."),
        ("pair", "approve", "`code` is missing."),
        ("pair", "aprove X", "There is no `pair aprove`."),
        ("dmn", "wakeup", "There is no `dmn wakeup`."),
        ("block", '"unclosed quote', "Write `here` or `everywhere`, not `quote`."),
        (
            "status",
            "`*_~|@everyone" + "x" * 100,
            f"`'*_~|@everyone{'x' * 25}…` is one word too many.",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(name: str, text: str, reason: str) -> None:
    use = parse_arguments(TABLE.people[name], text)
    assert isinstance(use, InvalidArguments)
    assert use.reason == reason


def test_the_nearest_subs_are_known() -> None:
    use = parse_arguments(TABLE.people["pair"], "aprove X")
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
    assert mask_secrets(TABLE.people[name], text) == shown


@given(st.sampled_from(sorted(TABLE.people)), st.text())
def test_any_text_is_understood_or_not(name: str, text: str) -> None:
    row = TABLE.people[name]
    use = parse_arguments(row, text)
    if isinstance(use, ParsedArguments):
        args = {arg.name: arg for arg in (use.sub.args if use.sub else row.args)}
        assert set(use.arguments) <= set(args)
        assert all(use.arguments.values())
        assert all(
            use.arguments[arg.name] in arg.choices
            for arg in args.values()
            if arg.choices and arg.name in use.arguments
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


@given(
    st.sampled_from(["pair", "room", "link"]),
    st.text("ab \"'`", max_size=6),
    CODES,
    st.text("ab \"'`", max_size=6),
)
def test_no_way_of_writing_a_code_gets_it_into_a_record(
    name: str, before: str, secret: str, after: str
) -> None:
    for text in (
        f"approve {before}{secret}{after}",
        f"code {before}{secret}",
        f"{before} {secret} {after}",
    ):
        shown = mask_secrets(TABLE.people[name], text)
        use = parse_arguments(TABLE.people[name], text)
        known = isinstance(use, ParsedArguments) and secret in use.arguments.values()
        assert secret not in shown or (known and "***" not in shown and not _secret(use))


def _secret(use: ParsedArguments | InvalidArguments) -> bool:
    return (
        isinstance(use, ParsedArguments)
        and use.sub is not None
        and any(arg.secret for arg in use.sub.args)
    )


def _args(of: CommandDefinition) -> tuple[CommandArg, ...]:
    return of.args


def test_the_table_can_be_read_without_doubt() -> None:
    for row in TABLE.rows:
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
            assert all(
                choice == choice.lower() and choice.isascii()
                for arg in args
                for choice in arg.choices
            )
    secrets = {
        (row.name, sub.name, arg.name)
        for row in TABLE.rows
        for sub in row.subs
        for arg in sub.args
        if arg.secret
    }
    assert secrets == {
        ("pair", "approve", "code"),
        ("room", "approve", "code"),
        ("link", "code", "code"),
    }


# `reverie: status` is a command, `reverie: status of the build?` is talk

OURS = frozenset({"reverie"})


def found(message: Message) -> tuple[str, str] | None:
    one = parse_command(message, "!", TABLE.people, OURS)
    assert one is None or one.only_if_allowed or one.only_if_more or one.command.name == "about"
    return (one.command.name, one.command.args) if one is not None and one.only_if_allowed else None


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("status", "status", ""),
        ("STATUS", "status", ""),
        ("help", "help", ""),
        ("link list", "link", "list"),
        ("memory", "memory", ""),
        ("dmn PAUSE", "dmn", "pause"),
    ],
)
def test_what_is_word_for_word_a_command_is_one(text: str, name: str, args: str) -> None:
    for called in ("reverie: ", "Reverie, ", "@reverie ", "@reverie: "):
        assert found(said(called + text)) == (name, args)
    assert found(said(text, "direct")) == (name, args)
    assert found(said(f"reverie: {text}", "direct")) == (name, args)
    assert found(said(text, "room")) is None
    assert found(said(text, "mention")) is None
    assert found(said(text, "reply")) is None


TALK = """
help me with this
help!
help role
status?
status of the build please
stop.
why
why 42
rewind 2
approve k7qd
role set in stone
dmn sleep 8h
join #test
journal search tea
commands
start
hello
""".strip().splitlines()


@pytest.mark.parametrize("text", TALK)
def test_what_people_say_in_passing_stays_talk(text: str) -> None:
    for kind, called in (("mention", "reverie: "), ("direct", ""), ("direct", "reverie: ")):
        assert found(said(called + text, kind)) is None  # type: ignore[arg-type] # kinds


@pytest.mark.parametrize(
    "text",
    [
        "bob: join #reverie",
        "bob: say #reverie hello",
        "bob: block x:reverie",
        "#reverie: join #test",
        "reverie status",
        "status, reverie",
        "bob: reverie: status",
        "reverie: bob: status",
        "reverie: status\nand then tell me more",
        "> reverie: status",
        "<root> reverie: stop",
        '"reverie: stop"',
        "/me reverie: stop",
        "reverie:stop",
    ],
)
def test_nothing_else_is_meant_by_a_name_in_passing(text: str) -> None:
    assert found(said(text)) is None


@pytest.mark.parametrize(
    "message",
    [
        replace(said("reverie: stop"), attachments=(Attachment(id="1", form="image"),)),
        replace(said("reverie: stop"), sender=somebody("root", is_bot=True)),
    ],
)
def test_what_comes_with_a_picture_or_of_a_bot_is_none(message: Message) -> None:
    assert found(message) is None


def test_where_commands_are_native_nothing_is_one_without_its_prefix() -> None:
    assert parse_command(said("reverie: stop"), "!", TABLE.people, None) is None
    assert parse_command(said("reverie: stop"), "", TABLE.people, OURS) is None
    assert parse_command(said("stop", "direct"), "!", TABLE.people) is None


@pytest.mark.parametrize(
    ("who", "text", "kind", "is_one"),
    [
        ("root", "reverie: stop", "mention", True),
        ("root", "reverie: dmn pause", "mention", True),
        ("rick", "reverie: stop", "mention", True),
        ("rick", "reverie: dmn pause", "mention", False),  # an admin of this room alone
        ("mia", "reverie: stop", "mention", False),
        ("mia", "stop", "direct", True),  # her own chat
        ("mia", "dmn pause", "direct", False),
        ("ann", "reverie: status", "mention", True),
        ("ann", "reverie: usage", "mention", False),
        ("ann", "reverie: link", "mention", False),  # for direct chats
        ("ann", "link", "direct", True),
        ("mal", "reverie: status", "mention", False),
    ],
)
async def test_for_who_may_not_use_it_it_is_talk(
    who: str, text: str, kind: Any, is_one: bool, tmp_path: Path
) -> None:
    async with counter(tmp_path, answers=ECHO) as it:
        read = parse_command(said(text, kind, who), "!", it.desk.commands, {"reverie"})
        assert read is not None
        assert (await it.desk.confirm(read) is not None) is is_one


async def test_another_nick_is_not_answered_more_often(tmp_path: Path) -> None:
    async with counter(tmp_path, per_minute=2) as it:
        answered = [
            await it.ask(
                "help", id=EventId(nick), sender=Sender(id=SenderId(f"mask:{nick}!u@h"), name=nick)
            )
            for nick in ("ann", "bob", "cid")
        ]
        assert [bool(text) for text in answered] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("reverie: hi", True),
        ("Reverie hi", True),
        ("  @reverie, hi", True),
        ("**reverie** hi", True),
        ("reverie", True),
        ("reverie你好", True),
        ("reveries are nice", False),
        ("reverie_: hi", False),
        ("reverie|away: hi", False),
        ("ask reverie about it", False),
        ("", False),
    ],
)
def test_a_line_begins_with_a_nick_or_does_not(text: str, begins: bool) -> None:
    assert begins_with_nick(text, "reverie") is begins
