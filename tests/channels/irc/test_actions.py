"""Reactions, taking back, topics and who is there: as the server allows them, and what is said
where it does not."""

import asyncio

import pytest

from channels.base import Rejected
from channels.irc.wire import is_command_refusal, parse_line
from gateway.core.events import Address, MessageDeleted, MessageId, ReactionChanged, RoomId
from tests.channels.irc.channel_kit import NAME, Running, part, running, sent_together, settled
from tests.servers.ircd import CAPS, MODERN, Ircd, Options

UNLABELLED = f"{CAPS} draft/message-redaction standard-replies"
EVERYWHERE = pytest.mark.parametrize("caps", [MODERN, UNLABELLED])
"""Answers are told apart by labels, or by barriers."""


def at(room: str = "#room") -> Address:
    return Address(channel=NAME, room=RoomId(room))


@EVERYWHERE
async def test_a_reaction_says_what_it_is_about(caps: str) -> None:
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as it:
        await ircd.joined("reverie", "#room")
        await it.up()
        for add in (True, False):
            await it.channel.react(at(), MessageId("m;1 x"), "👍\r\nQUIT", add=add)
        told = [line for line in ircd.lines if "TAGMSG" in line]
        for name, line in zip(("+draft/react", "+draft/unreact"), told, strict=True):
            tags = dict(tag.split("=") for tag in line[1:].partition(" ")[0].split(";"))
            assert tags.pop("label", "") or caps == UNLABELLED
            assert tags == {"+reply": "m\\:1\\sx", "+draft/reply": "m\\:1\\sx", name: "👍\\sQUIT"}
        assert not it.all(ReactionChanged), "our own come back as an echo"


@EVERYWHERE
@pytest.mark.parametrize("how", ["421", "FAIL"])
async def test_a_server_that_takes_no_tags_has_no_reactions(caps: str, how: str) -> None:
    options = Options(caps=caps, tagless=how)  # type: ignore[arg-type] # one of the two
    async with Ircd(options) as ircd, running(ircd) as it:
        await it.up()
        for _ in range(2):
            with pytest.raises(Rejected):
                await it.channel.react(at(), MessageId("m1"), "👍", add=True)
        assert len([line for line in ircd.lines if "TAGMSG" in line]) == 1
        await it.channel.send(part("words are taken"))


@EVERYWHERE
async def test_only_our_own_words_are_taken_back(caps: str) -> None:
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as it:
        await ircd.joined("reverie", "#room")
        await it.up()
        await ircd.say("#room", "mine")
        theirs = (await it.message()).id
        (number,) = (await it.channel.send(part("hello"))).ids
        with pytest.raises(Rejected, match="not known to be a message of ours"):
            await it.channel.delete(at(), theirs)
        assert not [line for line in ircd.lines if "REDACT" in line]
        for _ in range(2):
            await it.channel.delete(at(), number)
        assert number not in ircd.said
        assert theirs in ircd.said
        (again,) = (await it.channel.send(part("hello", key="k2"))).ids
        ircd.options.redact_fails = "REDACT_WINDOW_EXPIRED"
        with pytest.raises(Rejected, match="EXPIRED"):
            await it.channel.delete(at(), again)
        assert not it.all(MessageDeleted)


async def test_what_others_take_back_is_told() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as it:
        bot = await ircd.joined("reverie", "#room")
        await it.up()
        bot.send(":al!a@h REDACT #Room m7 :typo")
        bot.send(":al!a@h REDACT reverie m8")
        bot.send(":al!a@h REDACT #room")
        bot.send(":al!a@h REDACT")
        second = await it.one(MessageDeleted, 2)
        first = it.all(MessageDeleted)[0]
        assert (first.at, first.message, first.sender and first.sender.name) == (at(), "m7", "al")
        assert (second.at, second.message) == (at("al!a@h"), "m8")
        await settled(bot, "done")
        assert len(it.all(MessageDeleted)) == 2


async def test_a_topic_fits_the_line_that_others_get(run: Running) -> None:
    with pytest.raises(Rejected, match="bytes"):
        await run.channel.set_topic(at(), "x" * 500)


@EVERYWHERE
async def test_a_refused_topic_is_never_taken_for_a_refused_message(caps: str) -> None:
    plain = caps.replace("echo-message ", "")
    options = Options(caps=plain, opless=frozenset({"#room"}))
    async with Ircd(options) as ircd, running(ircd) as it:
        await it.up()
        said = [part(f"line {number}", key=f"k{number}") for number in range(3)]
        talking = asyncio.create_task(sent_together(it, said))
        await asyncio.sleep(0)
        topic = asyncio.create_task(it.channel.set_topic(at(), "cats"))
        await asyncio.sleep(0)
        more = asyncio.create_task(sent_together(it, [part("line 3", key="k3")]))
        assert not [one for one in [*await talking, *await more] if isinstance(one, BaseException)]
        with pytest.raises(Rejected, match="482"):
            await topic
        talk = [line.partition(" ")[2] if line.startswith("@") else line for line in ircd.lines]
        told = [line for line in talk if line.startswith(("PRIVMSG", "TOPIC"))]
        assert [line.partition(":")[2] for line in told] == [
            "line 0",
            "line 1",
            "line 2",
            "cats",
            "line 3",
        ]


def test_what_refuses_a_command() -> None:
    for raw, command, refuses in (
        ("FAIL REDACT UNKNOWN_MSGID #room m1 :no", "REDACT", True),
        ("FAIL REDACT UNKNOWN_MSGID #room m1 :no", "TOPIC", False),
        (":s 421 reverie TAGMSG :no", "TAGMSG", True),
        (":s 421 reverie TAGMSG :no", "", False),
        (":s 404 reverie #room :no", "TOPIC", False),
        ("FAIL", "", False),
    ):
        line = parse_line(raw)
        assert line is not None
        assert is_command_refusal(line, command) is refuses
