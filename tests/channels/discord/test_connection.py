"""Whatever happens to connections, sessions and logins: what was said arrives once, and a storm ends in back-off."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import discord.gateway
import pytest

from channels.base import Denied, SendError, Unreachable
from channels.discord import inflow, rest, wire
from channels.discord.directory import DiscordDirectory, DiscordPlace
from channels.discord.ids import snowflake_at
from channels.discord.inflow import DiscordProgress
from channels.discord.rest import parse_messages
from gateway.core.clock import SystemClock
from gateway.core.events import Command, ConnectionChanged, Message, ReactionChanged, RoomId
from tests.channels.discord.channel_kit import NAME, config, place
from tests.channels.discord.faults_kit import SAY, Hurried, Running, hello, part, running
from tests.kits.stopwatch import Stopwatch
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Faults, Options


@pytest.fixture
async def run(api: DiscordApi) -> AsyncIterator[Running]:
    async with running(api) as it:
        await it.up()
        yield it


@pytest.mark.parametrize("code", [0, 1000, 1001, 1011, 4000, 4009])
async def test_a_cut_is_resumed_and_nothing_is_missed(code: int, api: DiscordApi, run: Running) -> None:
    hello(api, "before")
    await run.heard("before")
    api.cut(code)
    hello(api, "while away")
    await run.up(2)
    await run.heard("before", "while away")
    assert len(api.resumes) == 1
    assert len(api.identifies) == 1
    hello(api, "after")
    await run.heard("before", "while away", "after")
    assert run.links == [True, False, True]


async def test_reconnect_is_obeyed_without_ending_the_session(api: DiscordApi, run: Running) -> None:
    api.ask_reconnect()
    await run.up(2)
    assert api.connections[0].close_code not in {1000, 1001}
    assert len(api.resumes) == 1
    hello(api, "after")
    await run.heard("after")


@pytest.mark.parametrize("end", ["reconnect", "invalid session", 0, 4000, 4008])
async def test_short_connections_are_followed_by_the_next_one_in_one_to_five_seconds(
    end: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hurried(100)
    async with DiscordApi() as api, running(api, clock=clock) as run:
        for number in range(1, 7):
            await run.up(number)
            await clock.sleep(8)
            if end == "invalid session":
                api.forget()
            if end == "reconnect":
                api.ask_reconnect()
            else:
                api.cut(end if isinstance(end, int) else 0)
        await run.up(7)
    waits = [float(found) for found in re.findall(r"next attempt in ([0-9.]+) s", caplog.text)]
    assert len(waits) == (12 if end == "invalid session" else 6)
    assert all(1 <= wait_s <= 5 for wait_s in waits), waits


async def test_a_session_that_is_gone_is_replaced_and_its_gap_filled(api: DiscordApi, run: Running) -> None:
    hello(api, "before")
    await run.heard("before")
    api.forget()
    api.cut()
    thread = api.threads(api.room, api.ann, "topic")
    for number in range(3):
        hello(api, f"away {number}")
        hello(api, f"threaded {number}", room=thread)
    await run.up(2)
    said = ["before", *(f"{what} {number}" for what in ("away", "threaded") for number in range(3))]
    await run.heard(*said)
    assert len(api.identifies) == 2
    hello(api, "after")
    await run.heard(*said, "after")


async def test_a_direct_message_into_the_gap_is_found(api: DiscordApi, run: Running) -> None:
    direct = api.world.dm(api.ann)
    api.says(direct, api.ann, "before")
    await run.heard("before")
    api.forget()
    api.cut()
    api.says(direct, api.ann, "away")
    await run.heard("before", "away")


async def test_more_than_a_page_of_history_is_found_in_order(api: DiscordApi, run: Running) -> None:
    hello(api, "0")
    await run.heard("0")
    api.forget()
    api.cut()
    for number in range(1, 251):
        hello(api, str(number))
    await run.until(lambda: len(set(run.texts)) == 251)
    assert run.texts == [str(number) for number in range(251)]


async def test_a_history_that_fails_is_asked_again(api: DiscordApi, run: Running) -> None:
    hello(api, "before")
    await run.heard("before")
    api.faults.add(r"GET /channels/\d+/messages", "reset before")
    api.faults.add(r"GET /channels/\d+/messages", "502 before", times=2)
    api.forget()
    api.cut()
    hello(api, "away")
    await run.until(lambda: "away" in run.texts, 40)
    await run.heard("before", "away")


@pytest.mark.parametrize("resumable", [True, False])
async def test_invalid_sessions_are_survived(resumable: bool, api: DiscordApi, run: Running) -> None:
    api.faults.invalid_sessions, api.faults.resumable = 3, resumable
    api.cut()
    hello(api, "away")
    await run.up(2)
    await run.heard("away")


async def test_a_link_without_acknowledgements_is_given_up_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "HEARTBEAT_TIMEOUT_S", 1.0)
    async with DiscordApi(Options(heartbeat_s=0.2, heartbeat_grace_s=60)) as api, running(api) as it:
        await it.up()
        await api.until(lambda: api.connections[0].beats > 1)
        api.faults.hold_acks = True
        await api.until(lambda: api.connections[0].close_code is not None)
        assert api.connections[0].close_code not in {1000, 1001}
        api.faults.hold_acks = False
        hello(api, "away")
        await it.heard("away")
        assert len(api.resumes) >= 1
        assert len(api.identifies) == 1


async def test_no_heartbeat_thread_outlives_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is discord.py's, and would call an event loop that may be closed by then."""
    beating, joined = threading.Event(), threading.Event()
    thread_type = discord.gateway.KeepAliveHandler
    get_payload, join = thread_type.get_payload, thread_type.join

    def beat(self: discord.gateway.KeepAliveHandler) -> dict[str, object]:
        if threading.current_thread() is self:  # the event loop calls it once, too
            beating.set()
            joined.wait(20)
        return get_payload(self)

    def end(self: discord.gateway.KeepAliveHandler, timeout: float | None = None) -> None:
        joined.set()
        join(self, timeout)

    monkeypatch.setattr(thread_type, "get_payload", beat)
    monkeypatch.setattr(thread_type, "join", end)
    async with DiscordApi(Options(heartbeat_s=0.1, heartbeat_grace_s=60)) as api:
        async with running(api) as it:
            await it.up()
            assert await asyncio.to_thread(beating.wait, 20)
        left = [thread for thread in threading.enumerate() if isinstance(thread, thread_type)]
        joined.set()
        assert not left


async def test_a_process_that_starts_again_finds_what_was_said_meanwhile() -> None:
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            cursor = it.cursor
        assert cursor is not None
        hello(api, "away")
        hello(api, "elsewhere", room=api.other)
        async with running(api, cursor) as it:
            await it.until(lambda: {"away", "elsewhere"} <= set(it.texts))
            assert it.texts.count("away") == 1
            hello(api, "after")
            await it.until(lambda: "after" in it.texts)
            assert set(it.texts) <= {"before", "away", "elsewhere", "after"}  # the store knows `before` by its id


@pytest.mark.parametrize("again", ["killed", "ended"])
async def test_who_writes_for_the_first_time_while_no_process_runs_is_heard_by_the_next(again: str) -> None:
    """Discord lists no direct chats, so only the session knows of them."""
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            cursor = it.cursor
            if again == "killed":
                api.connections[0].cut()
        direct = api.world.dm(api.ann)
        api.says(direct, api.ann, "are you there?")
        hello(api, "away")
        async with running(api, cursor) as it:
            await it.until(lambda: {"away", "are you there?"} <= set(it.texts))
            (said,) = (message for message in it.messages if message.text == "are you there?")
            assert (said.kind, said.at.room) == ("direct", direct)
            assert (len(api.resumes), len(api.identifies)) == (1, 2)
            hello(api, "after")
            await it.until(lambda: "after" in it.texts)
            assert len(it.texts) == len(set(it.texts))


def _fail_resumes(api: DiscordApi, how: str) -> None:
    match how:
        case "closed":
            api.faults.refused_resumes, api.faults.refusal = 2, 4000
        case "cut":
            api.faults.refused_resumes, api.faults.refusal = 2, 0
        case "cut in the replay":
            api.faults.cut_replays = 2


async def _heard_once(api: DiscordApi, **changes: Any) -> str:
    """A process is there until a message is durable; then it is killed. Its cursor."""
    async with running(api, **changes) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        assert it.cursor is not None
        api.connections[-1].cut()
        return it.cursor


@pytest.mark.parametrize("how", ["closed", "cut", "cut in the replay"])
async def test_a_session_that_cannot_be_resumed_for_a_moment_is_not_given_up(how: str) -> None:
    async with DiscordApi() as api:
        cursor = await _heard_once(api)
        people = [api.world.add_user(f"user {number}") for number in range(6)]
        for number, user in enumerate(people):
            api.says(api.world.dm(user), user, f"first line {number}")
        _fail_resumes(api, how)
        async with running(api, cursor) as it:
            await it.until(lambda: {f"first line {number}" for number in range(6)} <= set(it.texts))
            assert len(api.resumes) == 3
            assert len(it.texts) == len(set(it.texts))


async def test_who_writes_for_the_first_time_while_two_sessions_change_over_is_heard() -> None:
    async with DiscordApi() as api:
        cursor = await _heard_once(api)
        async with running(api, cursor) as it:
            await api.until(lambda: len(api.resumes) == 1)
            direct = api.world.dm(api.ann)
            api.says(direct, api.ann, "are you there?")
            await it.until(lambda: "are you there?" in it.texts)


async def test_a_new_session_is_stored_only_with_what_the_one_before_it_had() -> None:
    """Whenever a process ends while it changes over, the cursor leads the next one to the direct messages."""
    async with DiscordApi() as api:
        cursor = await _heard_once(api)
        direct = api.world.dm(api.ann)
        api.says(direct, api.ann, "are you there?")
        async with running(api, cursor) as it:
            await it.until(lambda: "are you there?" in it.texts)
            kept, cursor = set(it.texts), it.cursor or cursor
        api.says(api.world.dm(api.ben), api.ben, "and me?")
        async with running(api, cursor) as it:
            await it.until(lambda: {"are you there?", "and me?"} <= kept | set(it.texts))


async def test_a_shard_beside_the_one_that_resumes_loses_no_events() -> None:
    async with DiscordApi(Options(max_concurrency=2)) as api:
        guild = api.guild
        while (int(guild) >> 22) % 2 != 1:  # an id tells a time, and the next millisecond is soon
            guild = api.world.add_guild("another")
        room = api.world.add_channel("general", guild=guild)
        cursor = await _heard_once(api, shards=2)
        api.faults.unanswered_resumes = True
        hello(api, "away", room=room)
        async with running(api, cursor, shards=2) as it:
            await it.until(lambda: "away" in it.texts)


@pytest.mark.parametrize("failures", [0, 2])
async def test_what_was_first_written_into_a_lost_session_is_read_when_its_author_writes_again(failures: int) -> None:
    async with DiscordApi() as api:
        ann, ben = api.world.dm(api.ann), api.world.dm(api.ben)
        api.says(ben, api.ben, "long before", ago_s=86400)  # before the bot was there for the first time
        cursor = await _heard_once(api)
        api.says(ann, api.ann, "are you there?")
        api.says(ann, api.ann, "please answer")
        api.forget()
        async with running(api, cursor) as it:
            await it.up()
            hello(api, "in the room")
            await it.until(lambda: "in the room" in it.texts)
            cursor = it.cursor or ""
        async with running(api, cursor, history_age=60) as it:  # a loss outlives another restart
            await it.up()
            api.faults.add(rf"GET /channels/{ann}/messages", "500 before", times=failures)
            api.says(ann, api.ann, "hello?")
            api.says(ben, api.ben, "a new start")
            said = ["are you there?", "please answer", "hello?"]
            await it.until(lambda: {*said, "a new start"} <= set(it.texts))
            assert [message.text for message in it.messages if message.text in said] == (
                said if not failures else [said[2], *said[:2]]
            )
            assert {message.kind for message in it.messages if message.text in said} == {"direct"}
            assert "long before" not in it.texts
            asked = len(api.made(rf"GET /channels/{ann}/messages"))
            api.says(ann, api.ann, "thanks")
            await it.until(lambda: "thanks" in it.texts)
            assert len(api.made(rf"GET /channels/{ann}/messages")) == asked  # the chat is known now


async def test_what_was_first_written_into_a_lost_session_is_read_when_its_author_gives_a_command() -> None:
    async with DiscordApi() as api:
        ann, ben = api.world.dm(api.ann), api.world.dm(api.ben)
        cursor = await _heard_once(api)
        api.says(ann, api.ann, "are you there?")
        api.forget()
        async with running(api, cursor) as it:
            await it.up()
            api.slash(ann, api.ann, "status")
            api.slash(ben, api.ben, "status")
            await it.until(lambda: len(it.all(Command)) == 2)
            (asked,) = (message for message in it.messages if message.kind == "direct")
            assert asked.text == "are you there?"
            assert it.seen.index(asked) < it.seen.index(it.all(Command)[0])
            cursor = it.cursor or ""
        api.says(ben, api.ben, "and me?")  # his chat is known by his command
        api.forget()
        async with running(api, cursor) as it:
            await it.until(lambda: "and me?" in it.texts)


async def test_a_truth_value_is_no_request_for_a_heartbeat(api: DiscordApi, run: Running) -> None:
    await run.up()
    for _ in range(200):
        api.raw('{"op": true, "d": null, "s": null, "t": null}')
    hello(api, "after")
    await run.heard("after")
    assert (len(api.connections), api.connections[0].beats) == (1, 1)


async def test_an_end_while_a_session_is_resumed_leaves_it_resumable() -> None:
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            cursor = it.cursor
            api.faults.unanswered_resumes = True
            api.cut()
            await api.until(lambda: bool(api.resumes))
        api.faults.unanswered_resumes = False
        direct = api.world.dm(api.ann)
        api.says(direct, api.ann, "are you there?")
        async with running(api, cursor) as it:
            await it.until(lambda: "are you there?" in it.texts)


async def test_a_first_contact_that_may_be_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with DiscordApi() as api:
        cursor = await _heard_once(api)
        api.forget()
        caplog.clear()
        async with running(api, cursor) as it:
            await it.up()
    assert [one.levelname for one in caplog.records if "does not give back the session" in one.message] == ["WARNING"]


async def test_a_session_that_discord_does_not_give_back_to_the_next_process_costs_nothing() -> None:
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            cursor = it.cursor
        hello(api, "away")
        api.forget()
        async with running(api, cursor) as it:
            await it.until(lambda: "away" in it.texts)
            assert (len(api.resumes), len(api.identifies)) == (1, 2)


async def test_what_is_too_old_is_not_told_as_new() -> None:
    async with DiscordApi() as api:
        async with running(api, history_age=3600) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            cursor = json.loads(it.cursor or "")
        aged = json.dumps(cursor | {"marks": {shard: str(1 << 22) for shard in cursor["marks"]}})
        hello(api, "old", ago_s=4000)
        hello(api, "young", ago_s=3000)
        async with running(api, aged, history_age=3600) as it:
            await it.until(lambda: "young" in it.texts)
            hello(api, "after")
            await it.until(lambda: "after" in it.texts)
            assert "old" not in it.texts


async def test_one_malformed_dispatch_is_dropped_and_the_link_stays(api: DiscordApi, run: Running) -> None:
    for text in (
        '{"op": 0, "t": "MESSAGE_CREATE", "s": 100, "d": {"id": null}}',
        '{"op": 0, "t": "MESSAGE_CREATE", "s": 101, "d": []}',
        '{"op": 0, "t": "GUILD_CREATE", "s": 102, "d": {"id": "x", "channels": 3}}',
        *('{"op": 10, "d": null}', '{"op": 99}', "[]", "null", "no JSON"),
    ):
        api.raw(text)
    hello(api, "after")
    await run.heard("after")
    assert len(api.connections) == 1
    assert run.links == [True]


@pytest.mark.parametrize("fault", ["after ready", "after hello", "invalid", "no handshake", "silent"])
async def test_a_storm_ends_in_back_off(fault: str) -> None:
    clock = Hurried(200)
    async with DiscordApi() as api, running(api, clock=clock) as it:
        await it.up()
        match fault:
            case "after ready":
                api.faults.close_after_ready = 4000
            case "after hello":
                api.faults.close_after_hello = 0
            case "invalid":
                api.faults.invalid_sessions = 10**6
            case "no handshake":
                api.faults.no_sockets = True
            case _:
                api.faults.silent = True
        api.cut()
        await clock.sleep(300)
        assert max(len(api.connections), len(api.identifies), len(api.resumes)) <= 16
        assert not it.task.done()
        connections = len(api.connections)
        api.faults = Faults()
        hello(api, "after the storm")
        await it.until(lambda: "after the storm" in it.texts)
        assert len(api.connections) <= connections + 3


async def test_a_compressed_stream_that_breaks_is_begun_anew(api: DiscordApi, run: Running) -> None:
    api.raw(b"\x07no zlib\x00\x00\xff\xff")
    hello(api, "lost in the broken stream")
    await run.up(2)
    await run.heard("lost in the broken stream")
    assert (len(api.resumes), len(api.identifies)) == (1, 1)


async def test_a_server_that_is_down_for_a_while_is_waited_for() -> None:
    api = DiscordApi()
    await api.start()
    try:
        async with running(api) as it:
            await it.up()
            await api.stop()
            await it.until(lambda: not it.links[-1])
            with pytest.raises(Unreachable):
                await it.channel.send(part("nobody hears", api.room))
            hello(api, "away")
            await api.start()
            await it.heard("away")
    finally:
        await api.stop()


HISTORY = r"GET /channels/\d+/messages"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def kinds(seen: list[object]) -> dict[str, str]:
    return {event.text.split()[-1]: event.kind for event in seen if isinstance(event, Message)}


@pytest.mark.parametrize("opened", ["room", "guild"])
async def test_a_gap_is_filled_although_ready_names_no_guild(opened: str) -> None:
    async with DiscordApi() as api:
        api.faults.unlisted_guilds = True
        async with running(api, rooms=[api.room if opened == "room" else api.guild]) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            api.forget()
            api.cut()
            hello(api, "away")
            await it.heard("before", "away")


@pytest.mark.parametrize("unlisted", [False, True])
async def test_a_room_is_asked_although_its_guild_is_never_told(unlisted: bool) -> None:
    async with DiscordApi() as api:
        async with running(api, rooms=[api.room]) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
        api.faults.late_guilds, api.faults.unlisted_guilds = True, unlisted
        hello(api, "away")
        async with running(api, it.cursor, rooms=[api.room]) as again:
            await again.heard("before", "away")  # the margin repeats one: the store knows it
            assert kinds(list(again.seen)) == {"before": "mention", "away": "mention"}
            assert again.channel.space(RoomId(api.room)) == api.guild
            said = api.says(api.room, api.ann, "live")
            await again.heard("before", "away", "live")
            assert [m.kind for m in again.messages if m.id == said] == ["room"]
            mark = json.loads(again.cursor or "")["marks"]["0"]
            assert (mark == said) is unlisted  # a guild that is named may come yet


@pytest.mark.parametrize("broken", [r"GET /channels/\d+$", HISTORY])
async def test_a_room_whose_guild_is_never_told_is_asked_until_it_answers(broken: str) -> None:
    async with DiscordApi() as api:
        async with running(api, rooms=[api.room]) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
        api.faults.late_guilds = True
        api.faults.add(broken, "reset before", times=2)
        hello(api, "away")
        async with running(api, it.cursor, rooms=[api.room]) as again:
            await again.heard("before", "away")


async def test_what_is_said_until_a_late_guild_is_told_is_found() -> None:
    async with DiscordApi() as api:
        async with running(api, rooms=[api.room]) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
        api.faults.late_guilds = True
        hello(api, "one")
        async with running(api, it.cursor, rooms=[api.guild]) as again:
            await again.up()
            await api.until(lambda: len(api.made(f"GET /channels/{api.guild}$")) == 1)  # the guild's id is no room's
            api.world.add_message(api.room, api.ann, f"<@{api.bot}> two")  # an outage: nobody is told of this one
            api.tell_guilds()
            await again.heard("before", "one", "two")
            first = json.loads(it.cursor or "")["marks"]["0"]
            hello(api, "three")
            await again.heard("before", "one", "two", "three")
            assert int(json.loads(again.cursor or "")["marks"]["0"]) > int(first)


async def test_a_position_is_kept_although_nobody_has_said_anything() -> None:
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.until(lambda: it.cursor is not None)
        hello(api, "away")
        async with running(api, it.cursor) as again:
            await again.heard("away")


async def test_a_guild_that_was_unavailable_is_caught_up_with(api: DiscordApi, run: Running) -> None:
    hello(api, "before")
    await run.heard("before")
    api.dispatch("GUILD_DELETE", {"id": api.guild, "unavailable": True})
    api.world.add_message(api.room, api.ann, f"<@{api.bot}> away")
    api.tell_guilds()
    await run.heard("before", "away")


async def test_a_history_that_failed_in_an_earlier_session_closes_no_gap_of_this_one() -> None:
    clock = Hurried(20)
    async with DiscordApi() as api, running(api, clock=clock, rooms=[api.guild]) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.faults.add(HISTORY, "reset before", times=100)
        api.forget()
        api.cut()
        await api.until(lambda: len(api.made(HISTORY)) >= 20)  # by now the next try is many seconds away
        api.faults.rest.clear()
        api.faults.late_guilds = True
        api.forget()
        api.cut()
        await api.until(lambda: len(api.made(f"GET /channels/{api.guild}$")) == 1)
        await clock.sleep(80)  # all that was to be asked again was
        assert len(api.made(f"GET /channels/{api.guild}$")) == 1  # a guild's id is no channel's: once is enough
        api.world.add_message(api.room, api.ann, f"<@{api.bot}> away")  # an outage: nobody is told of this one
        api.tell_guilds()
        await it.heard("before", "away")


async def test_a_server_that_wants_us_to_reconnect_and_is_gone_is_not_waited_for(api: DiscordApi, run: Running) -> None:
    with Stopwatch() as polite:
        api.ask_reconnect()
        await run.up(2)
    with Stopwatch() as gone:
        for connection in api.connections:
            connection.deafen()
        api.ask_reconnect()
        await run.up(3)
    assert gone.seconds < 4 * polite.seconds + 1, "no closing handshake of ten seconds"
    assert len(api.resumes) == 2


@pytest.mark.parametrize(("code", "resumes"), [(4007, 1), (4009, 1), *((code, 3) for code in (0, 1000, 4000, 4008))])
async def test_a_session_that_is_not_given_back_is_replaced(
    code: int, resumes: int, api: DiscordApi, run: Running
) -> None:
    """At once where Discord says that it may not be resumed, else after three attempts."""
    hello(api, "before")
    await run.heard("before")
    api.faults.refused_resumes, api.faults.refusal = 100, code
    api.cut()
    hello(api, "away")
    await run.heard("before", "away")
    assert (len(api.resumes), len(api.identifies)) == (resumes, 2)


async def test_a_session_that_is_given_back_counts_from_anew() -> None:
    async with DiscordApi() as api, running(api, clock=Hurried(200)) as it:
        await it.up()
        for times in (2, 3):
            api.faults.refused_resumes = 2
            api.cut()
            await it.up(times)
        assert (len(api.resumes), len(api.identifies)) == (6, 1)


async def test_what_was_told_before_a_resuming_was_cut_is_not_told_again() -> None:
    async with DiscordApi() as api, running(api, clock=Hurried(200)) as it:
        await it.up()
        said = hello(api, "before")
        await it.heard("before")
        api.faults.cut_replays = 3
        api.cut()
        for number in range(16):
            api.reacts(api.room, said, api.ann, str(number))
        await it.up(2)
        hello(api, "after")
        await it.heard("before", "after")
        assert [event.reaction for event in it.seen if isinstance(event, ReactionChanged)] == [
            str(n) for n in range(16)
        ]
        assert (len(api.resumes), len(api.identifies)) == (4, 1)


async def test_a_history_that_fails_holds_nobody_up_and_is_asked_again_soon() -> None:
    async with DiscordApi() as api, running(api, clock=SystemClock()) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.faults.add(HISTORY, "500 before", times=2)
        api.forget()
        api.cut()
        hello(api, "away")
        await it.up(2)
        hello(api, "live", room=api.other)
        await it.until(lambda: "live" in it.texts)
        assert "away" not in it.texts
        await it.heard("before", "away", "live")


async def test_an_invalid_session_that_is_called_resumable_for_ever_is_given_up(api: DiscordApi, run: Running) -> None:
    api.faults.invalid_sessions, api.faults.resumable = 3, True
    api.cut()
    hello(api, "away")
    await run.heard("away")
    assert (len(api.resumes), len(api.identifies)) == (3, 2)


async def test_an_address_for_resuming_that_never_greets_is_left() -> None:
    async with DiscordApi() as dead, DiscordApi(Options(resume_url=dead.gateway_url)) as api, running(api) as it:
        dead.faults.closed_handshakes = 10**6
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.cut()
        hello(api, "away")
        await it.heard("before", "away")
        assert (len(dead.connections), len(api.resumes), len(api.identifies)) == (1, 1, 1)


async def test_a_direct_chat_is_asked_whatever_was_told_of_it_once() -> None:
    async with DiscordApi() as api, running(api, rooms=[]) as it:
        await it.up()
        direct = api.world.dm(api.ann)
        first = api.says(direct, api.ann, "before")
        await it.heard("before")
        api.dispatch(
            "CHANNEL_CREATE", api.world.channels[direct] | {"last_message_id": str(int(first) - (10**6 << 22))}
        )
        hello(api, "in a room")
        await it.heard("before", "in a room")  # so that is known now
        api.forget()
        api.cut()
        api.says(direct, api.ann, "away")
        await it.heard("before", "in a room", "away")


def directory() -> DiscordDirectory:
    made = DiscordDirectory(NAME)
    made.apply_event("READY", {"user": {"id": "10"}})
    return made


def test_only_what_is_known_to_be_in_no_guild_or_not_known_is_direct() -> None:
    known = directory()
    known.add_channel({"id": "31", "type": 0}, "")  # a room, in a guild that nobody told us
    known.add_channel({"id": "32", "type": 1}, "")
    assert [known.is_direct(channel) for channel in ("31", "32", "33")] == [False, True, True]
    said = {"id": str(snowflake_at(NOW)), "type": 0, "content": "hi", "author": {"id": "20"}}
    found = [wire.parse_message(said | {"channel_id": channel}, known) for channel in ("31", "32")]
    assert [message.kind for message in found if message] == ["room", "direct"]


def test_a_thread_that_is_told_before_its_guild_tells_of_its_room() -> None:
    known = directory()
    known.apply_event("THREAD_CREATE", {"id": "31", "type": 11, "parent_id": "30", "guild_id": "40"})
    assert known.address("31") == place("30", "31")
    assert (known.guild_of("30"), known.is_direct("30")) == ("40", False)
    known.apply_event("GUILD_CREATE", {"id": "40", "channels": [{"id": "30", "type": 15, "name": "forum"}]})
    assert (known.channel_name("30"), known.places["30"].has_messages) == ("forum", False)


def test_an_archived_thread_is_forgotten_until_it_is_used() -> None:
    known = directory()
    thread = {"id": "31", "type": 11, "parent_id": "30", "guild_id": "40"}
    known.apply_event("THREAD_CREATE", thread)
    known.apply_event("THREAD_UPDATE", thread | {"thread_metadata": {"archived": True}})
    assert "31" not in known.places
    known.apply_event("THREAD_UPDATE", thread | {"thread_metadata": {"archived": False}})
    assert known.address("31") == place("30", "31")


def test_nobody_acts_where_nothing_is_said() -> None:
    forum = DiscordPlace(id="1", guild="40", name="", parent="", is_direct=False, last_message="", has_messages=False)
    assert not any(inflow.is_open_place(forum, {opened}) for opened in ("1", "40", "*"))


def test_a_session_that_names_no_guilds_may_have_missed_something_in_any() -> None:
    first = DiscordProgress(None, 3600)
    first.begin_session(0, [], NOW - timedelta(minutes=10))
    assert not first.has_guild_gap(0)  # nothing is known from before: nothing is missed
    one, of_two = (DiscordProgress(first.to_cursor(), 3600) for _ in range(2))
    one.begin_session(0, [], NOW)
    assert (one.has_guild_gap(0), one.has_gap(0, "40"), one.has_gap(0, "")) == (True, True, False)
    of_two.begin_session(1, [], NOW, shards=2)  # a shard may well have none
    assert (of_two.has_guild_gap(1), of_two.has_gap(1, "40")) == (False, False)


def test_a_clock_that_goes_ahead_hides_nothing_that_discord_dates() -> None:
    ours = NOW + timedelta(minutes=10)
    old = DiscordProgress(None, 3600)
    old.begin_session(0, ["40"], ours)
    old.record_message(0, str(snowflake_at(NOW)), ours)
    new = DiscordProgress(old.to_cursor(), 3600)
    new.begin_session(0, ["40"], ours)
    assert new.history_after(0, ours) == snowflake_at(NOW - timedelta(minutes=1))
    same = DiscordProgress(None, 3600)
    same.begin_session(0, ["40"], ours)
    same.begin_session(0, ["40"], ours)  # another session before anybody has spoken
    same.record_message(0, str(snowflake_at(NOW)), ours)
    same.close_gap(0, "40")
    same.record_message(0, str(snowflake_at(NOW) + 7), ours)
    assert json.loads(same.to_cursor())["marks"] == {"0": str(snowflake_at(NOW) + 7)}


def test_a_message_without_a_type_is_one() -> None:
    said: dict[str, object] = {
        "id": str(snowflake_at(NOW)),
        "channel_id": "32",
        "content": "hi",
        "author": {"id": "20"},
    }
    assert wire.parse_message(said, directory()) is not None
    assert wire.parse_message(said | {"type": None}, directory()) is not None
    edited = said | {"edited_timestamp": NOW.isoformat()}
    assert wire.parse_edit(edited, directory(), NOW) is not None
    assert wire.parse_edit(edited | {"type": 7}, directory(), NOW) is None


@pytest.mark.parametrize("odd", [None, "x", "", "-1", "9" * 40, "٥", "²", True])
def test_odd_ids_in_a_history_break_nothing(odd: object) -> None:
    assert [m.get("id") for m in parse_messages([{"id": "7"}, {"id": odd}, {}, 5, {"id": "3"}])][-2:] == ["3", "7"]


async def test_a_bad_token_is_denied() -> None:
    async with DiscordApi() as api, running(api, token="wrong.token-of.mine") as it:
        with pytest.raises(Denied) as told:
            await asyncio.wait_for(it.task, 30)
        assert "token" in told.value.reason
        assert "wrong.token-of.mine" not in told.value.reason
        assert api.identifies == []


async def test_a_token_that_is_reset_meanwhile_is_denied(api: DiscordApi, run: Running) -> None:
    api.options = Options(token="a new one")
    api.cut()
    with pytest.raises(Denied):
        await asyncio.wait_for(run.task, 30)


async def test_without_message_content_it_is_denied_with_the_way_out() -> None:
    async with DiscordApi(Options(message_content=False)) as api, running(api) as it:
        with pytest.raises(Denied, match="MESSAGE CONTENT"):
            await asyncio.wait_for(it.task, 30)
        assert len(api.connections) <= 1


async def test_the_token_is_in_no_log_line_and_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    async with DiscordApi(Options(heartbeat_s=1.0)) as api, running(api, request_timeout=0.3) as it:
        await it.up()
        for what in ("500 after", "reset after", "silent", "429", "banned"):
            api.faults.add(SAY, what)
            try:
                await it.channel.send(part("an answer", api.room, what))
            except SendError as error:
                told.append(repr(error) + error.reason + repr(error.__cause__))
        api.faults.invalid_sessions = 1
        api.cut()
        await it.up(2)
        api.faults.no_sockets = True
        api.cut()
        await it.until(lambda: not it.links[-1])
        api.faults.no_sockets = False
        await it.up(3)
        asked = api.slash(api.room, api.ann, "status")
        await api.until(lambda: bool(api.made(r"POST /interactions/.*")))
        told.extend(link.reason for link in it.all(ConnectionChanged))
        told.append(repr(config(api)))
        told.append(repr(it.channel))
        secrets = (api.token, asked.token)
        lines = [record.getMessage() + str(record.exc_info and record.exc_info[1]) for record in caplog.records]
        own = [line for line in lines if "WebSocket Event" not in line]
        assert not [line for line in told + own if any(secret in line for secret in secrets)]
        assert api.identifies
    assert caplog.records


async def test_two_bots_at_two_servers_live_in_one_process() -> None:
    other = Options(token="of.the-other.one")
    async with DiscordApi() as one, DiscordApi(other) as two, running(one) as first, running(two) as second:
        await first.up()
        await second.up()
        hello(one, "to the first")
        hello(two, "to the second")
        await first.heard("to the first")
        await second.heard("to the second")
        await first.channel.send(part("from the first", one.room))
        await second.channel.send(part("from the second", two.room))
        assert (one.texts(one.room), two.texts(two.room)) == (["from the first"], ["from the second"])
        assert [call.status for call in one.calls + two.calls if call.status >= 400] == []


@pytest.mark.parametrize("steps", range(13))
async def test_an_end_in_any_moment_of_the_greeting_says_goodbye(steps: int) -> None:
    async with DiscordApi() as api:
        async with running(api):
            await api.until(lambda: bool(api.connections))
            for _ in range(steps):
                await asyncio.sleep(0)
        await api.until(lambda: api.connections[0].close_code is not None)
        assert api.connections[0].close_code in {1000, 4000}


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/gw", "http://127.0.0.1/", "no address", "wss://user:pass@127.0.0.1"])
async def test_a_bad_address_for_resuming_costs_a_session_and_no_message(url: str) -> None:
    async with DiscordApi(Options(resume_url=url)) as api, running(api) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.cut()
        hello(api, "away")
        await it.heard("before", "away")


async def test_the_last_sessions_of_the_day_are_left_to_the_operator() -> None:
    clock = Hurried(200)
    async with DiscordApi(Options(identifies_per_day=12)) as api, running(api, clock=clock) as it:
        await it.up()
        for _ in range(5):
            api.forget()
            api.cut()
            await clock.sleep(60)
        assert len(api.identifies) <= 2
        assert not it.links[-1]
        assert not it.task.done()


@pytest.mark.system
async def test_shards_identify_in_turn_and_each_is_resumed_by_itself() -> None:
    async with DiscordApi(Options(strict_identify=True)) as api:
        others = [api.world.add_guild(f"guild {number}") for number in range(4)]
        rooms = [api.world.add_channel("general", guild=guild) for guild in others]
        async with running(api, clock=Hurried(1), shards=2) as it:
            await it.up()
            assert [identify["shard"] for _, identify in api.identifies] == [[0, 2], [1, 2]]
            assert api.identifies[1][0] - api.identifies[0][0] >= 5
            api.cut()
            for number, room in enumerate(rooms):
                hello(api, str(number), room=room)
            direct = api.world.dm(api.ann)
            api.says(direct, api.ann, "privately")
            await it.up(2)
            await it.heard("0", "1", "2", "3", "privately")
            assert (len(api.identifies), len(api.resumes)) == (2, 2)
