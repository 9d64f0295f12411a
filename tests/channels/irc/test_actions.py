"""What others take back, and topics: as the server allows them, and what is said where it does
not."""

import asyncio

import pytest

from channels.base import Rejected
from channels.irc.wire import is_refusal, parse_line
from gateway.core.events import Address, MessageDeleted, RoomId
from reverie.testing.servers.ircd import CAPS, MODERN, Ircd, Options
from tests.channels.irc.channel_kit import NAME, part, running, sent_together, settled


def at(room: str = "#room") -> Address:
    return Address(channel=NAME, room=RoomId(room))


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


async def test_a_refused_topic_is_never_taken_for_a_refused_message() -> None:
    options = Options(caps=CAPS.replace("echo-message ", ""), opless=frozenset({"#room"}))
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
        told = [line for line in ircd.lines if line.startswith(("PRIVMSG", "TOPIC"))]
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
        (":s 404 reverie #room :no", "", True),
        ("FAIL PRIVMSG X :no", "TOPIC", True),
        ("FAIL", "", False),
    ):
        line = parse_line(raw)
        assert line is not None
        assert is_refusal(line, command) is refuses
