"""Which line a numeric was about."""

import asyncio

import pytest

from channels.base import Uncertain
from channels.irc.outgoing import SendWindow
from gateway.core.clock import ManualClock
from tests.channels.irc.channel_kit import part, running, sent_together
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options

NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = [("a", "#r", "one"), ("b", "#r", "two")]
E, R, NAMELESS = "echo", "refuse", "nameless"


def _judge(lines: list[tuple[str, str, str]], answers: list[tuple[str, str]]) -> dict[str, str]:
    window: SendWindow = SendWindow()
    for owner, target, text in lines:
        window.add_line(owner, target, text)
    for kind, about in answers:
        if kind == E:
            window.record_echo("#r", about, f"id-{about}")
        else:
            window.record_refusal({about}, "no (404)", anybody=kind == NAMELESS)
    return {str(owner): verdict.fate for owner, verdict in window.verdicts().items()}


@pytest.mark.parametrize(
    ("lines", "answers", "fates"),
    [
        (ROOM, [], "taken taken"),
        (ROOM, [(R, "#r")], "unknown unknown"),
        (ROOM, [(R, "#r"), (R, "#r")], "refused refused"),
        (ROOM, [(R, "#r"), (R, "#r"), (R, "#r")], "refused refused"),
        (ROOM, [(R, "#other")], "taken taken"),
        (ROOM, [(E, "one"), (R, "#r")], "taken refused"),
        (ROOM, [(R, "#r"), (E, "two")], "refused taken"),
        (ROOM, [(E, "one"), (R, "#r"), (R, "#r")], "taken refused"),
        (ROOM, [(E, "one"), (E, "two"), (R, "#r")], "taken taken"),
        ([*ROOM, ("c", "#r", "three")], [(R, "#r"), (E, "three")], "unknown unknown taken"),
        ([("a", "#r", "same"), ("b", "#r", "same")], [(R, "#r"), (E, "same")], "refused taken"),
        ([("a", "#r", "same"), ("b", "#r", "same")], [(E, "same"), (R, "#r")], "taken refused"),
        (ROOM, [(E, "from our bouncer"), (R, "#r")], "unknown unknown"),
        (ROOM, [(E, "\x02on"), (R, "#r")], "taken refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "al")], "taken taken refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "#r"), (R, "#r")], "refused refused taken"),
        ([*ROOM, ("c", "al", "hi")], [(NAMELESS, "")], "unknown unknown unknown"),
        ([*ROOM, ("c", "al", "hi")], [(NAMELESS, "")] * 3, "refused refused refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "al"), (NAMELESS, "")], "unknown unknown refused"),
        (ROOM, [(R, "#r"), (NAMELESS, "")], "refused refused"),
        ([("a", "#r", "one"), ("a", "#r", "two")], [(R, "#r")], "unknown"),
        ([("a", "#r", "one"), ("a", "#r", "two")], [(E, "one"), (R, "#r")], "unknown"),
        ([("a", "#r", "one"), ("a", "#r", "two")], [(R, "#r"), (R, "#r")], "refused"),
    ],
)
def test_what_a_window_of_lines_came_to(
    lines: list[tuple[str, str, str]], answers: list[tuple[str, str]], fates: str
) -> None:
    assert list(_judge(lines, answers).values()) == fates.split()


@pytest.mark.parametrize(
    ("caps", "refused", "results"),
    [
        (NO_ECHO, "b", "Uncertain Uncertain Uncertain"),
        (NO_ECHO, "abc", "Rejected Rejected Rejected"),
        (NO_ECHO, "", "Receipt Receipt Receipt"),
        (CAPS, "b", "Receipt Rejected Receipt"),
        (CAPS, "abc", "Rejected Rejected Rejected"),
    ],
)
@story
async def test_a_refusal_among_several_parts_blames_the_right_one_or_none(
    caps: str, refused: str, results: str
) -> None:
    options = Options(caps=caps, muted_texts=frozenset(refused))
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        sent = await sent_together(run, [part(body) for body in "abc"])
        assert [type(result).__name__ for result in sent] == results.split()
        # What comes after the barrier is not touched by what was before.
        await run.channel.send(part("next"))


@story
async def test_another_target_is_not_blamed() -> None:
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd) as run:
        await run.up()
        sent = await sent_together(run, [part("a"), part("b", room="nobody"), part("c")])
        assert [type(result).__name__ for result in sent] == ["Receipt", "Rejected", "Receipt"]


@story
async def test_our_own_nick_in_every_numeric_is_not_whom_it_is_about() -> None:
    async with Ircd(Options(caps=NO_ECHO, muted={"#room": "404"})) as ircd, running(ircd) as run:
        await run.up()
        sent = await sent_together(run, [part("to myself", room="reverie"), part("b")])
        assert [type(result).__name__ for result in sent] == ["Receipt", "Rejected"]


@story
async def test_our_own_ctcp_answer_being_refused_is_not_the_parts_fault() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd, clock, flood={"burst": 9, "per_s": 1}) as run:
        await run.up()
        bot = ircd.clients[0]
        ircd.faults.silent = True
        bot.raw(b":al!a@h PRIVMSG reverie :\x01VERSION\x01\r\n")
        await ircd.received("NOTICE al")
        sending = asyncio.create_task(run.channel.send(part("hi", room="al")))
        await ircd.received("PRIVMSG al")
        ping = await ircd.received("PING (.*)")
        bot.send(":irc.test 401 reverie al :No such nick")
        bot.send(f":irc.test PONG irc.test :{ping[1]}")
        with pytest.raises(Uncertain):
            await sending
