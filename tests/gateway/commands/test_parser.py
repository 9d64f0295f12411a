"""Messages that are commands, and messages that are not."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import pytest

from gateway.commands.parser import asks_for_disclosure, find_nearest, parse_command
from gateway.commands.table import COMMAND_SPECS, COMMANDS, COMMANDS_BY_NAME
from gateway.core.events import Address, Attachment, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.identity import Role

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
        ("!nonsense", "direct", ("nonsense", "")),  # nobody else can be meant: it is told what there is
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
    found = parse_command(message(text, kind), "!", COMMANDS_BY_NAME)
    assert (found and (found.command.name, found.command.args)) == expected
    if found is not None:
        assert (found.command.id, found.command.origin, found.command.direct) == ("m1", "text", kind == "direct")
        assert found.only_if_more == (expected is not None and expected[0] == "more")
        assert found.is_unaddressed == (found.only_if_more and kind == "room")


@pytest.mark.parametrize(
    ("prefix", "text", "is_one"),
    [("$", "$status", True), ("$", "!status", False), (".r.", ".r.status", True), ("", "!status", False)],
)
def test_the_prefix_is_the_operators(prefix: str, text: str, is_one: bool) -> None:
    assert (parse_command(message(text, "room"), prefix, COMMANDS_BY_NAME) is not None) is is_one


def test_bots_give_no_commands() -> None:
    for text in ("!status", "more", "are you a bot?"):
        assert parse_command(message(text, "direct", bot=True), "!", COMMANDS_BY_NAME) is None


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
    assert parse_command(ours, "!", COMMANDS_BY_NAME)
    assert parse_command(replace(ours, kind="reply", text="is this AI?", reply_to=other), "!", COMMANDS_BY_NAME)
    assert parse_command(replace(ours, attachments=(picture,)), "!", COMMANDS_BY_NAME) is None
    assert parse_command(replace(ours, reply_to=other), "!", COMMANDS_BY_NAME) is None


def test_the_nearest_names_are_offered() -> None:
    assert find_nearest("stauts", ["status", "help", "about"]) == ["status"]
    assert find_nearest("zzz", ["status", "help"]) == []


def test_the_table_is_whole() -> None:
    names = [name for row in COMMANDS for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names)) == len(COMMANDS_BY_NAME)
    for row, spec in zip(COMMANDS, COMMAND_SPECS, strict=True):
        assert (spec.name, spec.summary, spec.args, spec.private) == (row.name, row.summary, row.args, row.private)
        assert (spec.role, spec.direct_only, spec.own) == (row.role, row.direct_only, row.allowed_in_own_chat)
        assert [(sub.name, sub.summary, sub.args) for sub in spec.subs] == [
            (sub.name, sub.summary, sub.args) for sub in row.subs
        ]
        assert len(row.summary) <= 100
        assert row.name.isascii()
        assert row.name.islower()


GUEST = {"help", "about", "whoami", "status", "more", "again", "version", "link"}
MEMBER = {"usage", "tools"}
OWN = {"new", "retry", "rewind", "compact", "stop", "journal", "memory", "remind"}
ADMIN = {row.name for row in COMMANDS} - GUEST - MEMBER - OWN


@pytest.mark.parametrize(
    ("role", "direct", "closed"),
    [
        ("blocked", False, {row.name for row in COMMANDS}),
        ("blocked", True, {row.name for row in COMMANDS}),
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
    assert {row.name for row in COMMANDS if not row.is_allowed_for(role, direct=direct)} == closed
    assert {row.name for row in COMMANDS if row.allowed_in_own_chat} == OWN
