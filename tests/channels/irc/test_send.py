"""Parts out: pace, receipts, refusals, cuts and the length of lines."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.base import BeforeSend, Rejected, Uncertain, Unreachable
from channels.irc.channel import IrcChannel
from channels.irc.outgoing import SendItem, SendWindow
from channels.text import clean_outgoing
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, Post, PostKey, Receipt, RoomId, Sender, SenderId
from reverie.testing.servers.ircd import CAPS, Ircd, Options
from tests.channels.irc.channel_kit import (
    NAME,
    Running,
    config,
    part,
    running,
    sent_together,
    settled,
)
from tests.kits.examples import examples


@given(
    text=st.text(
        st.characters(
            exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&•"
        ),
        min_size=1,
    )
)
@settings(max_examples=examples(60))
def test_every_relayed_line_fits_and_nothing_is_lost(text: str) -> None:
    # A word in front: marks alone (`---`) would be Markdown.
    text = clean_outgoing("w" + (text * 40).strip())
    channel = IrcChannel(NAME, config(6667, page_lines=0), SystemClock())
    bodies = channel.split(
        Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text)
    )
    mask = "reverie!~" + "u" * 10 + "@" + "h" * 63
    assert all(len(f":{mask} PRIVMSG #room :{body}\r\n".encode()) <= 512 for body in bodies)
    bare = [
        body.removeprefix("•") for body in bodies
    ]  # in front of what another bot may take for a command
    assert "".join("".join(bare).split()) == "".join(text.split())


async def test_a_room_whose_name_has_an_exclamation_mark_gets_its_answers_itself() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#wow!"]) as run:
        await run.up()
        await run.channel.send(part("hi", room="#wow!"))
        assert "PRIVMSG #wow! :hi" in ircd.lines


@pytest.mark.parametrize("who", ["account:olga", "mask:olga!o@h"])
async def test_a_reminder_names_whom_it_is_for_by_the_nick_that_they_have_now(who: str) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        bot = await ircd.joined("reverie", "#room")
        await run.up()
        bot.send(":olga!o@h JOIN #room olga :x")
        bot.send(":olga!o@h NICK olga_afk")
        await settled(bot, "read")
        reminder = Post(
            key=PostKey("k"),
            to=Address(channel=NAME, room=RoomId("#room")),
            text="tea",
            notify=(Sender(id=SenderId(who), name="olga"),),
        )
        assert run.channel.split(reminder) == ("olga_afk: tea",)


async def test_pace_is_burst_then_rate() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 4, "per_s": 1}) as run:
        await run.up()
        clock.advance(5)
        sends = [asyncio.create_task(run.channel.send(part(str(number)))) for number in range(6)]
        paced = ("PRIVMSG", "PING")
        count = 4
        await ircd.received("PRIVMSG", times=4)
        for _ in range(5):
            ircd.clients[0].send(f"PING :{count}")
            await ircd.received(f"PONG :{count}")
            assert sum(line.startswith(paced) for line in ircd.lines) == count
            clock.advance(1.0)
            count += 1
            if count <= 8:
                await ircd.until(
                    lambda n=count: sum(line.startswith(paced) for line in ircd.lines) == n  # type: ignore[misc]
                )
        await asyncio.gather(*sends)
        said = [line for line in ircd.lines if line.startswith("PRIVMSG")]
        assert said == [f"PRIVMSG #room :{number}" for number in range(6)]


async def _sending(run: Running, ircd: Ircd, body: str = "x") -> "asyncio.Task[Any]":
    task = asyncio.create_task(run.channel.send(part(body)))
    await ircd.received(f"PRIVMSG #room :{body}")
    return task


async def test_a_pong_confirms_what_was_written_before_its_ping_and_nothing_after(
    ircd: Ircd, run: Running
) -> None:
    ircd.faults.hold_pongs = True
    sends = []
    for number, body in enumerate("abc", start=1):
        sends.append(await _sending(run, ircd, body))
        await ircd.received("PING", times=number)
    bot = ircd.clients[0]
    first, *others = bot.held
    bot.send(first)
    await sends[0]
    await settled(bot, "first")
    assert [sending.done() for sending in sends] == [True, False, False]
    bot.send(others[-1])  # in order: what answers the third has dealt with the second
    await asyncio.gather(*sends)


async def _steps() -> None:
    """Let everything run that can while the clock stands still."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_part_goes_only_when_its_turn_has_come() -> None:
    clock, gone = ManualClock(), list[str]()

    def going(name: str) -> BeforeSend:
        async def write_down() -> None:
            gone.append(name)
            assert not [line for line in ircd.lines if line.endswith(f":{name}")], (
                "before it is on the wire"
            )

        return write_down

    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 1.0}) as run:
        await run.up()
        clock.advance(10.0)  # the bucket is full again
        sends = [
            asyncio.create_task(run.channel.send(part(name, key=name), going(name)))
            for name in "abcde"
        ]
        await ircd.received(r"PRIVMSG #room :c")
        await _steps()
        assert gone == ["a", "b", "c"]
        clock.advance(1.0)
        await ircd.received(r"PRIVMSG #room :d")
        await _steps()
        assert gone == ["a", "b", "c", "d"]
        sends[-1].cancel()
        while not all(send.done() for send in sends):
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert gone == ["a", "b", "c", "d"]


def _bodies(ircd: Ircd) -> list[str]:
    return [line.partition(" :")[2] for line in ircd.lines if "PRIVMSG " in line]


async def test_places_take_turns_and_a_short_answer_passes_long_ones_elsewhere() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        for nick in "abc":
            ircd.people[nick] = f"{nick}!{nick}@h", nick
            ircd.clients[0].send(f":{nick}!{nick}@h JOIN #room {nick} :real")
        await settled(ircd.clients[0], "seen")
        pages = [
            part(f"{nick}{line}", f"{nick}!account:{nick}") for nick in "abc" for line in range(4)
        ]
        told = await sent_together(run, [*pages, part("short")])
        assert all(isinstance(receipt, Receipt) for receipt in told)
        order = "a0 b0 c0 short a1 b1 c1 a2 b2 c2 a3 b3 c3"
        assert _bodies(ircd) == order.split()


@settings(max_examples=examples(20), deadline=None)
@given(queue=st.text("abcd", min_size=1, max_size=14))
def test_the_order_in_each_place_is_kept_and_none_waits_for_more_than_a_line_of_each_other(
    queue: str,
) -> None:
    async def check() -> None:
        parts = [part(f"{room}{number}", f"#{room}") for number, room in enumerate(queue)]
        async with Ircd() as ircd, running(ircd, rooms=["#a", "#b", "#c", "#d"]) as run:
            await run.up()
            await sent_together(run, parts)
            bodies = _bodies(ircd)
        for room in "abcd":
            here = [body for body in bodies if body[0] == room]
            assert here == [one.body for one in parts if one.body[0] == room]
            waits = len({body[0] for body in bodies})
            assert all(bodies.index(body) < waits * number for number, body in enumerate(here, 1))

    asyncio.run(check())


FLOODS: dict[str, tuple[str, Sequence[type]]] = {
    "echoes": (CAPS, (Receipt, Receipt, Unreachable, Unreachable)),
    "neither": (CAPS.replace("echo-message ", ""), (Uncertain, Uncertain, Uncertain, Uncertain)),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_who_is_thrown_off_for_flooding_knows_what_was_relayed(what: str) -> None:
    caps, fates = FLOODS[what]
    async with Ircd(Options(caps=caps)) as ircd, running(ircd, ManualClock()) as run:
        await run.up()
        ircd.faults.flood_at = 3
        results = await sent_together(run, [part(body, key=body) for body in ("a", "b", "c", "d")])
        assert [type(result) for result in results] == list(fates)


NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = [("a", "#r", "one"), ("b", "#r", "two")]
E, R, NAMELESS = "echo", "refuse", "nameless"


def _judge_window(lines: list[tuple[str, str, str]], answers: list[tuple[str, str]]) -> list[str]:
    window = SendWindow()
    window.lines = [SendItem(f"PRIVMSG {target} :{text}", target) for _, target, text in lines]
    for kind, about in answers:
        if kind == E:
            window.record_echo("#r", about, f"id-{about}")
        else:
            window.record_refusal({about}, "no (404)", anybody=kind == NAMELESS)
    fates: dict[type, str] = {Receipt: "taken", Rejected: "refused", Uncertain: "unknown"}
    return [fates[type(outcome)] for _, outcome in window.outcomes()]


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
    ],
)
def test_what_a_window_of_lines_came_to(
    lines: list[tuple[str, str, str]], answers: list[tuple[str, str]], fates: str
) -> None:
    assert _judge_window(lines, answers) == fates.split()


@pytest.mark.parametrize(
    ("caps", "refused", "results"),
    [
        (NO_ECHO, "b", "Uncertain Uncertain Uncertain"),
        (NO_ECHO, "abc", "MayNotPost MayNotPost MayNotPost"),
        (NO_ECHO, "", "Receipt Receipt Receipt"),
        (CAPS, "b", "Receipt MayNotPost Receipt"),
        (CAPS, "abc", "MayNotPost MayNotPost MayNotPost"),
    ],
)
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
