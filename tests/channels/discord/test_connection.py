"""Whatever happens to connections, sessions and logins: what was said arrives once, and a storm
ends in back-off."""

import asyncio
import json
import logging
from typing import Any

import pytest

from channels.base import Denied, SendError
from channels.discord import rest
from gateway.core.clock import SystemClock
from gateway.core.events import ConnectionChanged, ReactionChanged
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Faults, Options
from tests.channels.discord.channel_kit import Running, config, part
from tests.channels.discord.faults_kit import SAY, Hurried, hello, running


@pytest.fixture(autouse=True)
def clock() -> Hurried:
    return Hurried(20)


@pytest.mark.parametrize("code", [0, 1000, 1001, 1011, 4000, 4009])
async def test_a_cut_is_resumed_and_nothing_is_missed(
    code: int, api: DiscordApi, run: Running
) -> None:
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


async def test_reconnect_is_obeyed_without_ending_the_session(
    api: DiscordApi, run: Running
) -> None:
    api.ask_reconnect()
    await run.up(2)
    assert api.connections[0].close_code not in {1000, 1001}
    assert len(api.resumes) == 1
    hello(api, "after")
    await run.heard("after")


async def test_a_session_that_is_gone_is_replaced_and_its_gap_filled(
    api: DiscordApi, run: Running
) -> None:
    """Rooms, threads and direct chats, more than a page of each in order."""
    direct = api.world.dm(api.ann)
    api.says(direct, api.ann, "before")
    await run.heard("before")
    api.forget()
    api.cut()
    thread = api.threads(api.room, api.ann, "topic")
    for number in range(250):
        hello(api, f"away {number}")
    hello(api, "threaded", room=thread)
    api.says(direct, api.ann, "direct")
    await run.up(2)
    away = [f"away {number}" for number in range(250)]
    await run.heard("before", *away, "threaded", "direct")
    assert [text for text in run.said if text.startswith("away")] == away
    assert len(api.identifies) == 2
    hello(api, "after")
    await run.heard("before", *away, "threaded", "direct", "after")


async def test_a_link_without_acknowledgements_is_given_up_and_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest, "HEARTBEAT_TIMEOUT_S", 1.0)
    async with (
        DiscordApi(Options(heartbeat_s=0.2, heartbeat_grace_s=60)) as api,
        running(api) as it,
    ):
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


@pytest.mark.parametrize("again", ["killed", "ended"])
async def test_who_writes_for_the_first_time_while_no_process_runs_is_heard_by_the_next(
    again: str, api: DiscordApi
) -> None:
    """Discord lists no direct chats, so only the session knows of them."""
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
        await it.until(lambda: {"away", "are you there?"} <= set(it.said))
        (said,) = (message for message in it.messages if message.text == "are you there?")
        assert (said.kind, said.at.room) == ("direct", direct)
        assert (len(api.resumes), len(api.identifies)) == (1, 2)
        hello(api, "after")
        await it.until(lambda: "after" in it.said)
        assert len(it.said) == len(set(it.said))


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
async def test_a_session_that_cannot_be_resumed_for_a_moment_is_not_given_up(
    how: str, api: DiscordApi
) -> None:
    cursor = await _heard_once(api)
    people = [api.world.add_user(f"user {number}") for number in range(6)]
    for number, user in enumerate(people):
        api.says(api.world.dm(user), user, f"first line {number}")
    _fail_resumes(api, how)
    async with running(api, cursor) as it:
        await it.until(lambda: {f"first line {number}" for number in range(6)} <= set(it.said))
        assert len(api.resumes) == 3
        assert len(it.said) == len(set(it.said))


@pytest.mark.parametrize("failures", [0, 1])
async def test_what_was_first_written_into_a_lost_session_is_read_when_its_author_writes_again(
    failures: int, api: DiscordApi
) -> None:
    ann, ben = api.world.dm(api.ann), api.world.dm(api.ben)
    api.says(
        ben, api.ben, "long before", ago_s=86400
    )  # before the bot was there for the first time
    cursor = await _heard_once(api)
    api.says(ann, api.ann, "are you there?")
    api.says(ann, api.ann, "please answer")
    api.forget()
    async with running(api, cursor) as it:
        await it.up()
        hello(api, "in the room")
        await it.until(lambda: "in the room" in it.said)
        cursor = it.cursor or ""
    async with running(api, cursor, history_age=60) as it:  # a loss outlives another restart
        await it.up()
        api.faults.add(rf"GET /channels/{ann}/messages", "500 before", times=failures)
        api.says(ann, api.ann, "hello?")
        api.says(ben, api.ben, "a new start")
        await it.until(lambda: {"hello?", "a new start"} <= set(it.said))
        said = ["are you there?", "please answer", "hello?"]
        if failures:  # then with the next message
            api.says(ann, api.ann, "well?")
            said = ["hello?", "are you there?", "please answer", "well?"]
        await it.until(lambda: set(said) <= set(it.said))
        assert [message.text for message in it.messages if message.text in said] == said
        assert {message.kind for message in it.messages if message.text in said} == {"direct"}
        assert "long before" not in it.said
        asked = len(api.made(rf"GET /channels/{ann}/messages"))
        api.says(ann, api.ann, "thanks")
        await it.until(lambda: "thanks" in it.said)
        assert len(api.made(rf"GET /channels/{ann}/messages")) == asked  # the chat is known now


async def test_what_is_too_old_is_not_told_as_new(api: DiscordApi) -> None:
    async with running(api, history_age=3600) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        cursor = json.loads(it.cursor or "")
    aged = json.dumps(cursor | {"mark": 1 << 22})
    hello(api, "old", ago_s=4000)
    hello(api, "young", ago_s=3000)
    async with running(api, aged, history_age=3600) as it:
        await it.until(lambda: "young" in it.said)
        hello(api, "after")
        await it.until(lambda: "after" in it.said)
        assert "old" not in it.said


@pytest.mark.parametrize("fault", ["after ready", "invalid", "silent"])
async def test_a_storm_ends_in_back_off(fault: str, api: DiscordApi) -> None:
    clock = Hurried(40)
    async with running(api, clock=clock) as it:
        await it.up()
        match fault:
            case "after ready":
                api.faults.close_after_ready = 4000
            case "invalid":
                api.faults.invalid_sessions = 10**6
            case _:
                api.faults.silent = True
        api.cut()
        await clock.sleep(150)
        assert max(len(api.connections), len(api.identifies), len(api.resumes)) <= 12
        assert not it.task.done()
        connections = len(api.connections)
        api.faults = Faults()
        hello(api, "after the storm")
        await it.until(lambda: "after the storm" in it.said)
        assert len(api.connections) <= connections + 3


HISTORY = r"GET /channels/\d+/messages"


async def test_what_was_said_in_a_guild_that_is_told_late_is_found(api: DiscordApi) -> None:
    async with running(api, rooms=[api.guild]) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
    api.faults.late_guilds = True
    hello(api, "one")
    async with running(api, it.cursor, rooms=[api.guild]) as again:
        await again.up()
        # An outage: nobody is told of this one.
        api.world.add_message(api.room, api.ann, f"<@{api.bot}> two")
        api.tell_guilds()
        await again.heard("before", "one", "two")
        first = json.loads(it.cursor or "")["mark"]
        hello(api, "three")
        await again.heard("before", "one", "two", "three")
        assert json.loads(again.cursor or "")["mark"] > first


async def test_a_guild_that_was_unavailable_is_caught_up_with(
    api: DiscordApi, run: Running
) -> None:
    hello(api, "before")
    await run.heard("before")
    api.dispatch("GUILD_DELETE", {"id": api.guild, "unavailable": True})
    api.world.add_message(api.room, api.ann, f"<@{api.bot}> away")
    api.tell_guilds()
    await run.heard("before", "away")


@pytest.mark.parametrize(
    ("code", "resumes"), [(4007, 1), (4009, 1), *((code, 3) for code in (0, 1000, 4000, 4008))]
)
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


async def test_what_was_told_before_a_resuming_was_cut_is_not_told_again(api: DiscordApi) -> None:
    async with running(api, clock=Hurried(200)) as it:
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


async def test_a_history_that_fails_holds_nobody_up_and_is_asked_again_soon(
    api: DiscordApi,
) -> None:
    async with running(api, clock=SystemClock()) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.faults.add(HISTORY, "500 before", times=2)
        api.forget()
        api.cut()
        hello(api, "away")
        await it.up(2)
        hello(api, "live", room=api.other)
        await it.until(lambda: "live" in it.said)
        assert "away" not in it.said
        await it.heard("before", "away", "live")


async def test_an_invalid_session_that_is_called_resumable_for_ever_is_given_up(
    api: DiscordApi, run: Running
) -> None:
    api.faults.invalid_sessions, api.faults.resumable = 3, True
    api.cut()
    hello(api, "away")
    await run.heard("away")
    assert (len(api.resumes), len(api.identifies)) == (3, 2)


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
        lines = [
            record.getMessage() + str(record.exc_info and record.exc_info[1])
            for record in caplog.records
        ]
        own = [line for line in lines if "WebSocket Event" not in line]
        assert not [line for line in told + own if any(secret in line for secret in secrets)]
        assert api.identifies
    assert caplog.records


@pytest.mark.parametrize("steps", range(13))
async def test_an_end_in_any_moment_of_the_greeting_says_goodbye(
    steps: int, api: DiscordApi
) -> None:
    async with running(api):
        await api.until(lambda: bool(api.connections))
        for _ in range(steps):
            await asyncio.sleep(0)
    await api.until(lambda: api.connections[0].close_code is not None)
    assert api.connections[0].close_code in {1000, 4000}


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:1/gw", "http://127.0.0.1/", "no address", "wss://user:pass@127.0.0.1"]
)
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


async def test_a_shard_is_a_channel_and_hears_its_guilds_only(api: DiscordApi) -> None:
    by_shard: dict[int, str] = {}
    while len(by_shard) < 2:  # by the time at which a guild was made
        guild = api.world.add_guild("another")
        by_shard[(int(guild) >> 22) % 2] = guild
    rooms = [api.world.add_channel("general", guild=by_shard[shard]) for shard in (0, 1)]
    async with running(api, shard=[1, 2]) as it:
        await it.up()
        assert api.identifies[0][1]["shard"] == [1, 2]
        for room in (*rooms, rooms[1]):
            hello(api, f"in {room}", room=room)
        await it.until(lambda: len(it.messages) == 2)
        assert {message.at.room for message in it.messages} == {rooms[1]}
