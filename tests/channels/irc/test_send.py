"""Parts out: pace, receipts, refusals, cuts and the length of lines. Labels, multiline messages, typing."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from channels.base import BeforeSend, CanJoin, CanType, RecipientAway, Rejected, Uncertain, Unreachable
from channels.irc.channel import IrcChannel
from channels.irc.outgoing import SendWindow
from channels.irc.render import BLANK_LINE
from channels.irc.wire import BatchCollector, ReceivedLine, parse_line
from channels.text import clean_outgoing
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, Post, PostKey, ReactionChanged, Receipt, RoomId
from tests.channels.irc.channel_kit import NAME, Running, config, never_answered, part, running, sent_together, settled
from tests.kits.examples import examples
from tests.servers.ircd import CAPS, MODERN, Ircd, Options


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&•"), min_size=1
    )
)
@settings(max_examples=examples(60))
def test_every_relayed_line_fits_and_nothing_is_lost(text: str) -> None:
    # A word in front: marks alone (`---`) would be Markdown.
    text = clean_outgoing("w" + (text * 40).strip())
    channel = IrcChannel(NAME, config(6667, page_lines=0), SystemClock())
    bodies = channel.split(Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text))
    mask = "reverie!~" + "u" * 10 + "@" + "h" * 63
    assert all(len(f":{mask} PRIVMSG #room :{body}\r\n".encode()) <= 512 for body in bodies)
    bare = [body.removeprefix("•") for body in bodies]  # in front of what another bot may take for a command
    assert "".join("".join(bare).split()) == "".join(text.split())


async def test_a_message_is_said_once_with_the_servers_id(ircd: Ircd, run: Running) -> None:
    receipt = await run.channel.send(part("hi\r\nQUIT :x"))
    assert len(receipt.ids) == 1
    await run.channel.send(part("note", style="notice"))
    said = [line for line in ircd.lines if line.startswith(("PRIVMSG", "NOTICE", "QUIT"))]
    assert said == ["PRIVMSG #room :hi QUIT :x", "NOTICE #room :note"]
    with pytest.raises(ValueError, match="text"):
        await run.channel.send(part(" "))


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
                await ircd.until(lambda n=count: sum(line.startswith(paced) for line in ircd.lines) == n)  # type: ignore[misc]
        await asyncio.gather(*sends)
        said = [line for line in ircd.lines if line.startswith("PRIVMSG")]
        assert said == [f"PRIVMSG #room :{number}" for number in range(6)]


@pytest.mark.parametrize(
    "options", [Options(muted={"#room": "404"}), Options(muted={"#room": "404"}, pong_token=False)]
)
async def test_a_refusal_names_its_reason(run: Running) -> None:
    with pytest.raises(Rejected, match="Cannot send"):
        await run.channel.send(part("x"))
    with pytest.raises(RecipientAway, match="nobody is not there, or not logged in as nobody; it waits"):
        await run.channel.send(part("x", room="nobody"))
    with pytest.raises(RecipientAway, match="nobody is not there as a@h; it waits"):
        await run.channel.send(part("x", room="nobody!a@h"))
    for room in ("a b", "#a,#b", ":x"):
        with pytest.raises(Rejected):
            await run.channel.send(part("x", room=room))


async def _sending(run: Running, ircd: Ircd, body: str = "x") -> "asyncio.Task[Any]":
    task = asyncio.create_task(run.channel.send(part(body)))
    await ircd.received(f"PRIVMSG #room :{body}")
    return task


async def test_a_receipt_waits_for_the_servers_pong(ircd: Ircd, run: Running) -> None:
    ircd.faults.hold_pongs = True
    sending = await _sending(run, ircd)
    await ircd.received("PING")
    assert not sending.done()
    ircd.release_pongs()
    await sending


async def test_a_pong_confirms_what_was_written_before_its_ping_and_nothing_after(ircd: Ircd, run: Running) -> None:
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


async def test_a_cut_mid_send_is_uncertain_and_what_waited_was_surely_not_sent() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 2, "per_s": 1}) as run:
        with pytest.raises(Unreachable):
            await run.channel.send(part("too early"))
        await run.up()
        clock.advance(5)
        ircd.faults.drop_on = "PRIVMSG #room :b"
        sends = [asyncio.create_task(run.channel.send(part(body))) for body in "abc"]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result) for result in results] == [Uncertain, Uncertain, Unreachable]


async def test_a_cancelled_send_that_waits_is_never_sent() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 1, "per_s": 1}) as run:
        await run.up()
        clock.advance(5)
        first = await _sending(run, ircd, "a")
        waiting = asyncio.create_task(run.channel.send(part("b")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while not first.done():
            clock.advance(1)
            await asyncio.sleep(0)
        assert "PRIVMSG #room :b" not in ircd.lines


async def _steps() -> None:
    """Let everything run that can while the clock stands still."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_part_goes_only_when_its_turn_has_come() -> None:
    clock, gone = ManualClock(), list[str]()

    def going(name: str) -> BeforeSend:
        async def write_down() -> None:
            gone.append(name)
            assert not [line for line in ircd.lines if line.endswith(f":{name}")], "before it is on the wire"

        return write_down

    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 1.0}) as run:
        await run.up()
        clock.advance(10.0)  # the bucket is full again
        sends = [asyncio.create_task(run.channel.send(part(name, key=name), going(name))) for name in "abcde"]
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


@pytest.mark.parametrize("caps", [CAPS, f"{CAPS} labeled-response"], ids=["barriers", "labels"])
async def test_places_take_turns_and_a_short_answer_passes_long_ones_elsewhere(caps: str) -> None:
    async with Ircd(options=Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        for nick in "abc":
            ircd.people[nick] = f"{nick}!{nick}@h", nick
            ircd.clients[0].send(f":{nick}!{nick}@h JOIN #room {nick} :real")
        await settled(ircd.clients[0], "seen")
        pages = [part(f"{nick}{line}", f"{nick}!account:{nick}") for nick in "abc" for line in range(4)]
        told = await sent_together(run, [*pages, part("short")])
        assert all(isinstance(receipt, Receipt) for receipt in told)
        assert _bodies(ircd) == ["a0", "b0", "c0", "short", "a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"]


@pytest.mark.parametrize("caps", [CAPS, f"{CAPS} labeled-response", MODERN], ids=["barriers", "labels", "multiline"])
@pytest.mark.parametrize("room", ["#room", "ann!account:ann"])
async def test_blank_lines_of_code_are_said_and_the_code_is_whole(caps: str, room: str) -> None:
    code = "import os\n\n\ndef f():\n    x = 1\n\n    return x"
    async with Ircd(options=Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        ircd.people["ann"] = "ann!a@h", "ann"
        ircd.clients[0].send(":ann!a@h JOIN #room ann :real")
        await settled(ircd.clients[0], "seen")
        post = Post(key=PostKey("p"), to=part("x", room).to, text=f"Here:\n```py\n{code}\n```\nThat is it.")
        bodies = run.channel.split(post)
        assert all(body.strip() for body in bodies)
        told = await sent_together(run, [part(body, room) for body in bodies])
        assert all(isinstance(receipt, Receipt) for receipt in told), told
        said = [body.removesuffix(BLANK_LINE) for body in _bodies(ircd)]
        assert "\n".join(said) == f"Here:\n{code}\nThat is it."


async def test_nothing_passes_a_line_that_may_open_the_way_for_it() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        session = run.channel._session
        assert session is not None
        before = [asyncio.create_task(run.channel.send(part(body))) for body in "ab"]
        await asyncio.sleep(0)  # both are queued, and nothing is written yet
        session.outgoing.queue_line("JOIN #other")
        await asyncio.gather(*before, run.channel.send(part("c", "#other")), return_exceptions=True)
        assert [line[-1] for line in ircd.lines if re.search(":[abc]$|#other$", line)] == ["a", "b", "r", "c"]


@settings(max_examples=examples(20), deadline=None)
@given(queue=st.text("abcd", min_size=1, max_size=14))
def test_the_order_in_each_place_is_kept_and_none_waits_for_more_than_a_line_of_each_other(queue: str) -> None:
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
    "labels": (f"{CAPS} labeled-response", (Receipt, Receipt, Unreachable, Unreachable)),
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


async def test_behind_a_ping_without_an_answer_nothing_was_relayed() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=CAPS.replace("echo-message ", ""))) as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.faults.hold_pongs = True
        first = asyncio.create_task(sent_together(run, [part("a", key="a")]))
        await ircd.received("PING reverie-1")
        second = asyncio.create_task(sent_together(run, [part("b", key="b")]))
        await ircd.received("PRIVMSG #room :b")
        ircd.clients[0].send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
        assert [type(result) for result in [*await first, *await second]] == [Uncertain, Unreachable]


async def test_where_a_room_changes_what_is_said_nothing_is_taken_for_not_relayed() -> None:
    async with Ircd() as ircd, running(ircd, ManualClock()) as run:
        await run.up()
        ircd.faults.silent = True
        sending = asyncio.create_task(sent_together(run, [part("damn", key="a")]))
        await ircd.received("PRIVMSG #room :damn")
        ircd.clients[0].send(":reverie!r@h PRIVMSG #room :****")
        ircd.clients[0].send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
        assert [type(result) for result in await sending] == [Uncertain]


async def test_a_labelled_answer_that_never_comes_holds_its_room_back_for_seconds() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd, clock) as run:
        await run.up()
        begun_s = clock.monotonic()
        ircd.faults.hold_labels = True
        sending = asyncio.create_task(run.channel.send(part("a")))
        await ircd.received("@label=r1 ")
        while not sending.done():
            await settled(ircd.clients[0], f"t{clock.monotonic()}")
            clock.advance(1)
            await asyncio.sleep(0)
        with pytest.raises(Uncertain, match="did not answer"):
            await sending
        assert clock.monotonic() - begun_s < 25
        await run.channel.send(part("b", key="b"))


NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = [("a", "#r", "one"), ("b", "#r", "two")]
E, R, NAMELESS = "echo", "refuse", "nameless"


def _judge_window(lines: list[tuple[str, str, str]], answers: list[tuple[str, str]]) -> dict[str, str]:
    window: SendWindow = SendWindow()
    for owner, target, text in lines:
        window.add_line(owner, target, text)
    for kind, about in answers:
        if kind == E:
            window.record_echo("#r", about, f"id-{about}")
        else:
            window.record_refusal({about}, "no (404)", anybody=kind == NAMELESS)
    fates: dict[type, str] = {Receipt: "taken", Rejected: "refused", Uncertain: "unknown"}
    return {str(owner): fates[type(outcome)] for owner, outcome in window.outcomes().items()}


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
    assert list(_judge_window(lines, answers).values()) == fates.split()


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


async def test_another_target_is_not_blamed() -> None:
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd) as run:
        await run.up()
        sent = await sent_together(run, [part("a"), part("b", room="#nowhere"), part("c")])
        assert [type(result).__name__ for result in sent] == ["Receipt", "MayNotPost", "Receipt"]


async def test_our_own_nick_in_every_numeric_is_not_whom_it_is_about() -> None:
    async with Ircd(Options(caps=NO_ECHO, muted={"#room": "404"})) as ircd, running(ircd) as run:
        await run.up()
        myself = ircd.clients[0].mask
        sent = await sent_together(run, [part("to myself", room=myself), part("b")])
        assert [type(result).__name__ for result in sent] == ["Receipt", "MayNotPost"]


async def test_our_own_ctcp_answer_being_refused_is_not_the_parts_fault() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=NO_ECHO)) as ircd, running(ircd, clock, flood={"burst": 9, "per_s": 1}) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(":al!a@h JOIN #room")
        await settled(bot, "seen")
        ircd.faults.silent = True
        bot.raw(b":al!a@h PRIVMSG reverie :\x01VERSION\x01\r\n")
        await ircd.received("NOTICE al")
        sending = asyncio.create_task(run.channel.send(part("hi", room="al!a@h")))
        await ircd.received("PRIVMSG al")
        ping = await ircd.received("PING (.*)")
        bot.send(":irc.test 401 reverie al :No such nick")
        bot.send(f":irc.test PONG irc.test :{ping[1]}")
        with pytest.raises(Uncertain):
            await sending


UNKNOWN = 512 - len(":reverie!~" + "u" * 10 + "@" + "h" * 63 + " PRIVMSG #room :\r\n")


def _room_for(mask: str, line_bytes: int = 512) -> int:
    return line_bytes - len(f":{mask} PRIVMSG #room :\r\n".encode())


def _split(channel: IrcChannel, text: str) -> tuple[str, ...]:
    return channel.split(Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text))


@pytest.mark.parametrize(
    ("told", "room"),
    [
        ("", _room_for("reverie!reverie@test.host")),
        (":irc.test 396 reverie cloak.example :is now your displayed host", _room_for("reverie!reverie@cloak.example")),
        (":irc.test 396 reverie u@cloak :is now your displayed host", _room_for("reverie!u@cloak")),
        (":irc.test 396 reverie", _room_for("reverie!~" + "u" * 10 + "@" + "h" * 63)),
        (":reverie!x@y CHGHOST ~new new.host", _room_for("reverie!~new@new.host")),
        (":other!x@y CHGHOST ~new new.host", _room_for("reverie!reverie@test.host")),
        (":reverie!~seen@by.others PRIVMSG #room :echo", _room_for("reverie!~seen@by.others")),
        (":reverie!x@y NICK longer_nick", _room_for("longer_nick!x@y")),
        (":reverie!x@y NICK x", _room_for("reverie!x@y")),  # we will ask for the configured one again
        (":irc.test 005 reverie LINELEN=2048 :are", _room_for("reverie!reverie@test.host", 2048)),
        (":irc.test 005 reverie LINELEN=100 :are", _room_for("reverie!reverie@test.host")),
        (":irc.test 005 reverie LINELEN=99999999 :are", _room_for("reverie!reverie@test.host")),
    ],
)
async def test_the_room_for_text_follows_what_the_server_tells(told: str, room: int) -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        assert run.channel.max_body_bytes("#room") == UNKNOWN
        await run.up()
        if told:
            ircd.clients[0].send(told)
        await settled(ircd.clients[0], "told")
        assert run.channel.max_body_bytes("#room") == room
        assert [len(body) for body in _split(run.channel, "x" * (room + 1))] == [room, 1]


async def test_a_mask_that_the_server_keeps_from_us_is_thought_as_long_as_can_be() -> None:
    async with Ircd(Options(isupport=("USERLEN=18",))) as ircd, running(ircd, rooms=[]) as run:
        await run.up()
        await settled(ircd.clients[0], "told")
        assert run.channel.max_body_bytes("#room") == UNKNOWN - 8


async def test_a_body_is_cut_again_when_the_room_has_shrunk() -> None:
    text = "**" + "word " * 100 + "end**"
    async with Ircd(Options(isupport=("LINELEN=1024",))) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        (body,) = _split(run.channel, text)
        bot.send(":irc.test 005 reverie -LINELEN :are")
        bot.send(":reverie!reverie@test.host CHGHOST ~" + "u" * 10 + " " + "h" * 63)
        await settled(bot, "told")
        bot.user, bot.host = "~" + "u" * 10, "h" * 63
        receipt = await run.channel.send(part(body))
        said = [line.partition(" :")[2] for line in bot.lines if line.startswith("PRIVMSG")]
        assert len(said) == len(receipt.ids) == 2
        assert all(len(f":reverie!{bot.user}@{bot.host} PRIVMSG #room :{line}\r\n".encode()) <= 512 for line in said)
        assert " ".join(line.strip("\x02") for line in said).split() == text.strip("*").split()
        assert all(line[0] == line[-1] == "\x02" for line in said), "bold goes on across the cut"


WORDS = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co", "Mn", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&"
    ),
    min_size=1,
).filter(str.strip)
HOSTS = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-:/", min_size=1, max_size=63).map(
    lambda name: f"0{name[1:]}" if name.startswith(":") else name  # as servers do, or it would be a trailing parameter
)


async def test_every_relayed_line_fits_the_learnt_mask_and_nothing_is_lost() -> None:
    async with Ircd() as ircd, running(ircd, page_lines=0) as run:
        await run.up()
        session = run.channel._session
        assert session is not None

        @given(text=WORDS, user=HOSTS.map(lambda name: name[:10]), host=HOSTS, more=st.sampled_from([0, 100, 1536]))
        @settings(max_examples=100, suppress_health_check=list(HealthCheck))
        def check(text: str, user: str, host: str, more: int) -> None:
            session.on_line(f":irc.test 005 reverie LINELEN={512 + more} :are supported")
            session.on_line(f":reverie!x@y CHGHOST {user} {host}")
            text = (text * 60).strip()
            bodies = _split(run.channel, text)
            for body in bodies:
                assert len(f":reverie!{user}@{host} PRIVMSG #room :{body}\r\n".encode()) <= 512 + more
            said = "".join(body.removeprefix("•") for body in bodies)  # no line is another bot's command
            assert "".join(said.split()) == "".join(text.split())

        check()


LABELS = f"{CAPS} labeled-response"
HERE = Address(channel=NAME, room=RoomId("#room"))


async def test_a_label_confirms_without_a_ping() -> None:
    async with Ircd(Options(caps=LABELS, muted={"#two": "404"})) as ircd, running(ircd, rooms=["#room", "#two"]) as run:
        await run.up()
        taken, refused = await sent_together(run, [part("a", key="a"), part("b", room="#two", key="b")])
        assert getattr(taken, "ids", ()) != ()
        assert isinstance(refused, Rejected)
        assert [line for line in ircd.lines if "PRIVMSG" in line] == [
            "@label=r1 PRIVMSG #room :a",
            "@label=r2 PRIVMSG #two :b",
        ]
        assert not any(line.startswith("PING") for line in ircd.lines)


@pytest.mark.parametrize("answer", [":irc.test ACK", ":irc.test 301 reverie #room :away"])
async def test_an_answer_that_is_no_echo_confirms_too(answer: str) -> None:
    caps = LABELS.replace("echo-message ", "")
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_labels = True
        sending = asyncio.create_task(run.channel.send(part("a")))
        await ircd.received("@label=r1 ")
        ircd.clients[0].raw(f"@label=r1 {answer}\r\n".encode())
        assert (await sending).ids == ()


async def test_a_late_refusal_finds_its_line() -> None:
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_labels = True
        sends = [asyncio.create_task(run.channel.send(part(body, key=body))) for body in ("one", "two")]
        await ircd.received("@label=r2 ")
        bot = ircd.clients[0]
        bot.raw(b"@label=r2 :reverie!r@h PRIVMSG #room :two\r\n")
        await sends[1]
        await settled(bot, "much later")
        assert not sends[0].done()
        bot.raw(
            b"@label=r1;x BATCH +l labeled-response\r\n@batch=l :far.test 404 reverie #room :Cannot\r\nBATCH -l\r\n"
        )
        with pytest.raises(Rejected, match="Cannot"):
            await sends[0]


async def test_a_label_that_is_never_answered_is_uncertain() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd, clock) as run:
        await run.up()
        await never_answered(ircd, run, clock)
        assert run.links == [True]


async def test_barriers_are_back_when_labels_are_taken_away() -> None:
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].send(":irc.test CAP reverie DEL :labeled-response")
        await settled(ircd.clients[0], "told")
        await run.channel.send(part("a"))
        assert ircd.lines[-2:] == ["PRIVMSG #room :a", "PING reverie-1"]


LONG = "x" * 300 + " " + "y" * 300


@pytest.mark.parametrize("caps", [MODERN, MODERN.replace("labeled-response ", "")], ids=["labels", "barriers"])
async def test_a_long_answer_is_one_message(caps: str) -> None:
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        post = Post(key=PostKey("p"), to=HERE, text=f"one\n\n{LONG}\n\nthree")
        (body,) = run.channel.split(post)
        receipt = await run.channel.send(part(body, reply_to="m0"))
        assert len(receipt.ids) == 1
        said = [re.sub("label=r1;?|;label=r1", "", line) for line in ircd.lines if "BATCH" in line or "PRIVMSG" in line]
        limit = run.channel.max_body_bytes("#room")
        assert said == [
            "@+reply=m0;+draft/reply=m0 BATCH +b1 draft/multiline #room",
            "@batch=b1 PRIVMSG #room :one",
            f"@batch=b1 PRIVMSG #room :{LONG[:301]}",
            f"@batch=b1;draft/multiline-concat PRIVMSG #room :{LONG[301:]}",
            "@batch=b1 PRIVMSG #room :three",
            "BATCH -b1",
        ]
        assert limit < len(LONG)


@pytest.mark.parametrize("caps", [MODERN, MODERN.replace("labeled-response ", "")], ids=["labels", "barriers"])
async def test_a_multiline_message_that_is_refused_is_said_line_by_line(caps: str) -> None:
    async with Ircd(Options(caps=caps, multiline_fails="MULTILINE_MAX_LINES 1")) as ircd, running(ircd) as run:
        await run.up()
        (body,) = run.channel.split(Post(key=PostKey("p"), to=HERE, text="- one\n- two"))
        receipt = await run.channel.send(part(body))
        assert len(receipt.ids) == 2
        assert sum("PRIVMSG #room" in line and "batch" not in line for line in ircd.lines) == 2


async def test_a_multiline_message_to_a_room_that_takes_none_is_rejected() -> None:
    async with Ircd(Options(caps=MODERN, muted={"#room": "404"})) as ircd, running(ircd) as run:
        await run.up()
        (body,) = run.channel.split(Post(key=PostKey("p"), to=HERE, text="- one\n- two"))
        with pytest.raises(Rejected, match="404"):
            await run.channel.send(part(body))


async def test_more_than_fits_one_message_is_several_and_without_the_server_lines() -> None:
    caps = MODERN.replace("max-lines=24", "max-lines=2")
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        post = Post(key=PostKey("p"), to=HERE, text="- one\n- two\n- three")
        bodies = run.channel.split(post)
        assert len(bodies) == 2
        ircd.clients[0].send(":irc.test CAP reverie DEL :draft/multiline")
        await settled(ircd.clients[0], "told")
        assert len(run.channel.split(post)) == 3
        assert len((await run.channel.send(part(bodies[0]))).ids) == 2, "made for a server that took several lines"


async def test_a_multiline_message_comes_in_as_one() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(
            b"@msgid=big;account=al :al!a@h BATCH +m draft/multiline #room\r\n"
            b"@batch=m :al!a@h PRIVMSG #room :reverie: one\r\n"
            b"@batch=m :al!a@h PRIVMSG #room :two\r\n"
            b"@batch=m;draft/multiline-concat :al!a@h PRIVMSG #room : and a half\r\n"
            b"BATCH -m\r\n"
        )
        message = await run.message()
        assert (message.id, message.text, message.kind) == ("big", "reverie: one\ntwo and a half", "mention")
        assert message.sender.id == "account:al"


def test_unfinished_batches_come_out_and_never_pile_up() -> None:
    batches, out = BatchCollector(), 0
    for number in range(1000):
        for raw in (f"BATCH +{number} draft/multiline #r", f"@batch={number} :a!b@c PRIVMSG #r :{number}"):
            line = parse_line(raw)
            assert line is not None
            out += sum(isinstance(heard, ReceivedLine) for heard in batches.feed(line))
    assert len(batches._open) == 32
    assert out == 1000 - 32
    endless = parse_line("@batch=999 :a!b@c PRIVMSG #r :x")
    assert endless is not None
    assert sum(len(batches.feed(endless)) for _ in range(10_000)) >= 8_000


async def test_unknown_nested_and_unopened_batches_are_plain_lines() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(
            b"BATCH +o vendor/odd x\r\n@batch=o BATCH +i vendor/inner\r\n"
            b"@batch=i :al!a@h PRIVMSG #room :nested\r\n@batch=never :al!a@h PRIVMSG #room :unopened\r\n"
            b"BATCH -i\r\nBATCH -o\r\nBATCH -o\r\nBATCH\r\nBATCH +\r\nBATCH -\r\n"
            b"@batch=o :al!a@h PRIVMSG #room :closed\r\n"
        )
        await run.message(3)
        assert [message.text for message in run.messages] == ["nested", "unopened", "closed"]


async def test_typing_is_shown_seldom_and_never_before_a_message() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 0.1}) as run:
        await run.up()
        channel = run.channel
        assert isinstance(channel, CanType)
        assert isinstance(channel, CanJoin)
        clock.advance(40)
        for _ in range(5):
            await channel.typing(HERE, active=True)
        await channel.typing(Address(channel=NAME, room=RoomId("a b")), active=True)
        await ircd.received("@.typing=active TAGMSG #room")
        clock.advance(3)
        await channel.typing(HERE, active=True)
        clock.advance(3)
        await channel.typing(HERE, active=True)  # one token is left, for words
        await settled(ircd.clients[0], "t")
        assert [line for line in ircd.lines if "TAGMSG" in line] == ["@+typing=active TAGMSG #room"] * 2
        clock.advance(40)
        await channel.typing(HERE, active=True)
        await channel.typing(HERE, active=False)
        await channel.typing(HERE, active=False)
        await ircd.received("@.typing=done TAGMSG #room")
        await settled(ircd.clients[0], "u")
        assert sum("TAGMSG" in line for line in ircd.lines) == 4


@pytest.mark.parametrize(
    ("caps", "token"), [("multi-prefix", "X"), (CAPS, "CLIENTTAGDENY=*"), (CAPS, "CLIENTTAGDENY=*,-other,typing")]
)
async def test_typing_is_not_shown_to_servers_that_do_not_pass_it_on(caps: str, token: str) -> None:
    async with Ircd(Options(caps=caps, isupport=("CHANTYPES=#", token))) as ircd, running(ircd) as run:
        await run.up()
        await run.channel.typing(HERE, active=True)
        await run.channel.send(part("hi", reply_to="m"))
        assert not any("TAGMSG" in line or line.startswith("@") for line in ircd.lines)


async def test_replies_and_reactions_come_in() -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        (ours,) = (await run.channel.send(part("hello"))).ids
        bot = ircd.clients[0]
        for tag, message in (("+reply", ours), ("+draft/reply", ours), ("+reply", "other")):
            bot.send(f"@{tag}={message} :al!a@h PRIVMSG #room :yes")
        await run.message(3)
        assert [(m.kind, m.reply_to) for m in run.messages] == [("reply", ours), ("reply", ours), ("room", "other")]
        bot.send(f"@+draft/react=👍;+draft/reply={ours};msgid=r1 :al!a@h TAGMSG #room")
        bot.send(f"@+draft/unreact=👍;+reply={ours};msgid=r2 :al!a@h TAGMSG #room")
        bot.send(f"@+draft/react=👍;+draft/reply={ours};msgid=r3 :al!a@h TAGMSG reverie")
        bot.send("@+typing=active :al!a@h TAGMSG #room")
        await run.until(lambda: sum(isinstance(event, ReactionChanged) for event in run.seen) == 3)
        told = [event for event in run.seen if isinstance(event, ReactionChanged)]
        assert [(e.id, e.message, e.reaction, e.added, e.direct) for e in told] == [
            ("r1", ours, "👍", True, False),
            ("r2", ours, "👍", False, False),
            ("r3", ours, "👍", True, True),
        ]


async def test_a_reply_is_marked_unless_the_message_has_no_name_of_the_servers() -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        await run.channel.send(part("yes", reply_to="m; 1"))
        ircd.clients[0].send(":al!a@h PRIVMSG #room :without an id")
        message = await run.message()
        await run.channel.send(part("no", reply_to=message.id))
        said = [line for line in ircd.lines if "PRIVMSG" in line]
        assert said == [r"@+reply=m\:\s1;+draft/reply=m\:\s1 PRIVMSG #room :yes", "PRIVMSG #room :no"]
