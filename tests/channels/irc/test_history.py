"""What was said while we were away: each once, in order, and the cursor never past what is
missing."""

from datetime import UTC, datetime, timedelta

from channels.irc.history import LastingState
from gateway.core.clock import ManualClock
from reverie.testing.servers.ircd import MODERN, Ircd, Options
from tests.channels.irc.channel_kit import Running, part, running, settled


def _at(minutes_ago: float) -> str:
    when = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(
    room: str, text: str, minutes_ago: float, by: str = "al!a@h", **tags: str
) -> tuple[str, dict[str, str], str]:
    target = room if room.startswith("#") else "reverie"
    return (
        room,
        {"time": _at(minutes_ago), "msgid": f"h-{text.replace(' ', '-')}", **tags},
        f":{by} PRIVMSG {target} :{text}",
    )


def _asked(ircd: Ircd) -> list[str]:
    return [line for line in ircd.lines if line.startswith("CHATHISTORY")]


def _texts(run: Running) -> list[str]:
    return [message.text for message in run.messages]


async def test_what_was_said_since_the_cursor_comes_once_in_order_and_paged() -> None:
    old = [_said("#room", f"line {number}", 10 - number / 100) for number in range(7)]
    options = Options(
        caps=MODERN, history=[_said("#room", "known", 30), *old], isupport=("CHATHISTORY=3",)
    )
    async with Ircd(options) as ircd, running(ircd, cursor=_at(20)) as run:
        await run.message(7)
        await settled(ircd.clients[0], "asked")
        assert _texts(run) == [f"line {number}" for number in range(7)]
        assert [message.id for message in run.messages] == [
            f"h-line-{number}" for number in range(7)
        ]
        pages = [line.split()[1:3] for line in _asked(ircd)]
        assert pages == [["AFTER", "#room"]] * 3 + [["TARGETS", pages[3][1]]]
        assert all(line.endswith(" 3") for line in _asked(ircd)[:3])
        await run.until(lambda: bool(run.cursors))
        # The newest time that was seen is the join of this process, not the last line of the past.
        assert all(
            datetime.fromisoformat(cursor) > datetime.fromisoformat(_at(1))
            for cursor in run.cursors
        )


async def test_pages_go_on_by_id_where_the_server_takes_ids() -> None:
    old = [_said("#room", f"line {number}", 10) for number in range(4)]
    options = Options(
        caps=MODERN, history=old, isupport=("CHATHISTORY=2", "MSGREFTYPES=msgid,timestamp")
    )
    async with Ircd(options) as ircd, running(ircd, cursor=_at(20)) as run:
        await run.message(4)
        assert [line.split()[3] for line in _asked(ircd)[1:2]] == ["msgid=h-line-1"]


async def test_live_lines_of_the_room_wait_for_the_past_and_nothing_comes_twice() -> None:
    options = Options(
        caps=MODERN, history=[_said("#room", "first", 5), _said("#room", "second", 4)]
    )
    async with Ircd(options) as ircd, running(ircd, cursor=_at(20)) as run:
        bot = await ircd.joined("reverie", "#room")
        await ircd.say("#room", "live", msgid="l")
        await ircd.say("#room", "second", msgid="h-second")
        bot.send(":op!o@h TOPIC #room :not held back")
        await run.message(3)
        await settled(bot, "done")
        assert _texts(run) == ["first", "second", "live"]


async def test_a_direct_talk_of_the_past_is_found_whatever_we_were_called() -> None:
    direct = (
        "bo",
        {"time": _at(5), "msgid": "d", "account": "bo"},
        ":bo!b@h PRIVMSG reverie_ :are you there?",
    )
    ours = ("bo", {"time": _at(4), "msgid": "o", "account": "rev"}, ":reverie_!r@h PRIVMSG bo :yes")
    options = Options(caps=MODERN + " sasl", sasl={"rev": "hush"}, history=[direct, ours])
    async with (
        Ircd(options) as ircd,
        running(
            ircd, cursor=_at(20), sasl={"mechanism": "plain", "account": "rev", "password": "hush"}
        ) as run,
    ):
        message = await run.message()
        assert (message.kind, message.at.room, message.sender.verified) == (
            "direct",
            "bo!account:bo",
            True,
        )
        await settled(ircd.clients[0], "done")
        assert _texts(run) == ["are you there?"]


async def test_who_is_called_so_now_is_not_who_spoke_then() -> None:
    caps = MODERN.replace("account-tag ", "")
    options = Options(caps=caps, history=[_said("#room", "let me in", 5, by="bo!x@evil")])
    async with Ircd(options) as ircd, running(ircd, cursor=_at(20)) as run:
        bot = await ircd.joined("reverie", "#room")
        bot.send(":bo!b@h JOIN #room owner :real")
        assert not (await run.message()).sender.verified


async def test_own_words_old_ones_and_playback_are_told_apart() -> None:
    join = ("#room", {"time": _at(3), "msgid": "j"}, ":zoe!z@h JOIN #room")
    left = ("#room", {"time": _at(2), "msgid": "q"}, ":zoe!z@h QUIT :bye")
    options = Options(
        caps=MODERN,
        history=[
            _said("#room", "too old", 70),
            _said("#room", "mine", 5, by="reverie!r@h"),
            join,
            left,
        ],
    )
    async with Ircd(options) as ircd, running(ircd, cursor=_at(24 * 60)) as run:
        await run.until(lambda: len(run.seen) >= 3)
        await settled(ircd.clients[0], "done")
        assert not run.messages
        told = [event for event in run.seen if event.kind == "membership"]
        assert [(event.change, event.sender.name, event.text) for event in told] == [
            ("join", "zoe", None),
            ("part", "zoe", "bye"),
        ]
        session = run.channel._session
        assert session is not None
        assert "zoe" not in session.state.people


async def test_nothing_is_asked_without_a_cursor_or_a_history() -> None:
    old = [_said("#room", "old", 5)]
    for caps, cursor in ((MODERN, None), (MODERN.replace("draft/chathistory ", ""), _at(20))):
        options = Options(caps=caps, history=old)
        async with Ircd(options) as ircd, running(ircd, cursor=cursor) as run:
            await run.up()
            await ircd.say("#room", "live")
            await run.message()
            assert (_asked(ircd), _texts(run)) == ([], ["live"])
            assert bool(run.cursors) == ("chathistory" in caps)


def test_a_cursor_without_a_zone_counts_as_none() -> None:
    assert LastingState("2026-01-01T00:00:00+00:00").complete_until is not None
    assert LastingState("2026-01-01T00:00:00").complete_until is None


async def test_a_refused_question_does_not_hold_the_room_back() -> None:
    async with (
        Ircd(Options(caps=MODERN, history_fails="INVALID_TARGET")) as ircd,
        running(ircd, cursor=_at(20)) as run,
    ):
        await ircd.joined("reverie", "#room")
        await ircd.say("#room", "live")
        assert (await run.message()).text == "live"
        await run.until(lambda: bool(run.cursors))


async def test_the_cursor_waits_for_the_gap_also_over_a_cut() -> None:
    clock = ManualClock(datetime.now(UTC))
    options = Options(caps=MODERN)
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        await ircd.say("#room", "before")
        await run.until(lambda: bool(run.cursors) and len(run.messages) == 1)
        before = list(run.cursors)
        options.history = [_said("#room", "missed", 0)]
        ircd.faults.drop_on = "CHATHISTORY"
        ircd.clients[0].drop()
        await run.until_advancing(clock, lambda: len(ircd.clients) == 2 and ircd.clients[1].closed)
        assert run.cursors == before
        clock.advance(1)
        await run.until_advancing(clock, lambda: len(run.messages) == 2)
        assert _texts(run) == ["before", "missed"]
        await run.until(lambda: len(run.cursors) > len(before))
        await run.channel.send(part("ours is not told"))
        assert _texts(run) == ["before", "missed"]


async def test_more_is_not_held_back_than_memory_is_for() -> None:
    async with (
        Ircd(Options(caps=MODERN, history_deaf=True)) as ircd,
        running(ircd, cursor=_at(20)) as run,
    ):
        await ircd.joined("reverie", "#room")
        ircd.faults.hold_pongs = True
        await run.up()
        for number in range(1_000):
            await ircd.say("#room", str(number))
        await settled(ircd.clients[0], "held")
        assert not run.messages
        await ircd.say("#room", "1000")
        await run.message(1_001)
        assert _texts(run) == [str(number) for number in range(1_001)]
