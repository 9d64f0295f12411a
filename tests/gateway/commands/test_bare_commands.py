"""`reverie: status` is a command, `reverie: status of the build?` is talk."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.parser import parse_command
from gateway.commands.table import COMMANDS_BY_NAME
from gateway.core.events import Attachment, EventId, Message, Sender, SenderId
from tests.gateway.commands.dispatcher_kit import ECHO, counter, said, somebody

OURS = frozenset({"reverie"})


def found(message: Message) -> tuple[str, str] | None:
    one = parse_command(message, "!", COMMANDS_BY_NAME, OURS)
    assert one is None or one.only_if_allowed or one.only_if_more or one.command.name == "about"
    return (one.command.name, one.command.args) if one is not None and one.only_if_allowed else None


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("status", "status", ""),
        ("STATUS", "status", ""),
        ("stop", "stop", ""),
        ("new", "new", ""),
        ("help", "help", ""),
        ("help role", "help", "role"),
        ("help role set", "help", "role set"),
        ("why 123", "why", "123"),
        ("rewind 2", "rewind", "2"),
        ("journal 5", "journal", "5"),
        ("link list", "link", "list"),
        ("memory", "memory", ""),
        ("memory show", "memory", "show"),
        ("memory forget n12", "memory", "forget n12"),
        ("remind cancel q7x2ab", "remind", "cancel q7x2ab"),
        ("approve", "approve", ""),
        ("approve k7qd", "approve", "k7qd"),
        ("approve k7qd always", "approve", "k7qd always"),
        ("deny k7qd", "deny", "k7qd"),
        ("block irc.x:account:mal", "block", "irc.x:account:mal"),
        ("role set irc.x:account:ann member here", "role", "set irc.x:account:ann member here"),
        ("room approve K7QD34MN", "room", "approve K7QD34MN"),
        ("join #test", "join", "#test"),
        ("join irc.libera/#test", "join", "irc.libera/#test"),
        ("part #test", "part", "#test"),
        ("say #test hello there", "say", "#test hello there"),
        ("dmn pause", "dmn", "pause"),
        ("dmn sleep 8h", "dmn", "sleep 8h"),
        ("dmn quiet 07:30", "dmn", "quiet 07:30"),
        ("dmn off", "dmn", "off"),
        ("notify threshold irc.join low", "notify", "threshold irc.join low"),
        ("notify rules", "notify", "rules"),
        ("model list", "model", "list"),
        ("model switch gpt-5", "model", "switch gpt-5"),
        ("log tail 20", "log", "tail 20"),
        ("restart irc.libera", "restart", "irc.libera"),
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
help us please
can you help
status?
status of the build please
what is the status
stop it
stop talking about that
please stop
don't stop
stop.
new ideas are welcome
new here, what is this channel about?
a new one
about time
about that thing you said
tell me about yourself
version 2 is out
more coffee
usage of the word whom
tools are for people who build things
cache me outside
why not
why is the sky blue?
why 42 is the answer
why
retry that with less sugar
rewind time
rewind to where we talked about cats
compact discs are back
journal entries please
journal of applied physics
memory is a strange thing
memory forget me not
memory show me
memory forget everything
remind me to buy milk
remind me at 8
remind cancel everything
approve it
approve this message
approve please
approve of that
deny everything
deny it
revoke access
revoke his license
block him
block bob
block that guy
unblock bob please
role play with me
role of women in the middle ages
role set in stone
pair programming
pair revoke bob
pair approve somebody
room for improvement
room approve whatever
rooms are full
join us
join us tonight
join the party
part ways
part of me agrees
say something nice
say cheese
say hello to bob
say hi
channels of communication
pending further review
notify me when it rains
notify everybody
notify rule breakers
dmn what is that
dmn sleep well
dmn quiet please
model behaviour
model switch hitters
model train sets are fun
log out
log tail wagging
log 10 of 1000 is 3
link me the docs
link whatever
link k7qd34mn
log 20
link to the past
link code review
link remove everything
reload the page
restart the router
restart it
commands
start
start over
hello
thanks
thank you, that was helpful
""".strip().splitlines()


def test_there_are_enough_sentences() -> None:
    assert len(TALK) == len(set(TALK)) >= 60


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


def test_where_we_go_by_another_name_only_the_name_of_a_command_is_one() -> None:
    """The nick was taken, so the bot is `reverie_`."""
    assert found(said("reverie_: stop")) == ("stop", "")
    assert found(said("reverie_: join #test")) is None


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
    assert parse_command(said("reverie: stop"), "!", COMMANDS_BY_NAME, None) is None
    assert parse_command(said("reverie: stop"), "", COMMANDS_BY_NAME, OURS) is None
    assert parse_command(said("stop", "direct"), "!", COMMANDS_BY_NAME) is None


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
def test_for_who_may_not_use_it_it_is_talk(who: str, text: str, kind: Any, is_one: bool, tmp_path: Path) -> None:
    async def story() -> None:
        async with counter(tmp_path, answers=ECHO) as it:
            message = said(text, kind, who)
            assert (await it.desk.parse(message, "all") is not None) is is_one
            assert await it.desk.parse(message, "off") is None

    asyncio.run(story())


def test_another_nick_is_not_answered_more_often(tmp_path: Path) -> None:
    async def story() -> None:
        async with counter(tmp_path, per_minute=2) as it:
            answered = [
                await it.ask("help", id=EventId(nick), sender=Sender(id=SenderId(f"mask:{nick}!u@h"), name=nick))
                for nick in ("ann", "bob", "cid")
            ]
            assert [bool(text) for text in answered] == [True, True, False]

    asyncio.run(story())
