"""Gaps where Discord does not tell what it usually tells, and sessions that it does not give back."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from channels.discord import inflow, wire
from channels.discord.directory import DiscordDirectory, DiscordPlace
from channels.discord.ids import snowflake_at
from channels.discord.inflow import DiscordProgress
from channels.discord.rest import parse_messages
from gateway.core.clock import SystemClock
from gateway.core.events import Message, ReactionChanged, RoomId
from tests.channels.discord.channel_kit import NAME, place
from tests.channels.discord.faults_kit import Hurried, hello, running
from tests.kits.channels import story
from tests.kits.stopwatch import Stopwatch
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Options

HISTORY = r"GET /channels/\d+/messages"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def kinds(seen: list[object]) -> dict[str, str]:
    return {event.text.split()[-1]: event.kind for event in seen if isinstance(event, Message)}


@pytest.mark.parametrize("opened", ["room", "guild"])
def test_a_gap_is_filled_although_ready_names_no_guild(opened: str) -> None:
    @story
    async def run() -> None:
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

    run()


@pytest.mark.parametrize("unlisted", [False, True])
def test_a_room_is_asked_although_its_guild_is_never_told(unlisted: bool) -> None:
    @story
    async def run() -> None:
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

    run()


@pytest.mark.parametrize("broken", [r"GET /channels/\d+$", HISTORY])
def test_a_room_whose_guild_is_never_told_is_asked_until_it_answers(broken: str) -> None:
    @story
    async def run() -> None:
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

    run()


@story
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


@story
async def test_a_position_is_kept_although_nobody_has_said_anything() -> None:
    async with DiscordApi() as api:
        async with running(api) as it:
            await it.until(lambda: it.cursor is not None)
        hello(api, "away")
        async with running(api, it.cursor) as again:
            await again.heard("away")


@story
async def test_a_guild_that_was_unavailable_is_caught_up_with() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.dispatch("GUILD_DELETE", {"id": api.guild, "unavailable": True})
        api.world.add_message(api.room, api.ann, f"<@{api.bot}> away")
        api.tell_guilds()
        await it.heard("before", "away")


@story
async def test_a_history_that_failed_in_an_earlier_session_closes_no_gap_of_this_one() -> None:
    async with DiscordApi() as api, running(api, rooms=[api.guild]) as it:
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
        await asyncio.sleep(4)  # eighty seconds on the channel's clock: all that was to be asked again was
        assert len(api.made(f"GET /channels/{api.guild}$")) == 1  # a guild's id is no channel's: once is enough
        api.world.add_message(api.room, api.ann, f"<@{api.bot}> away")  # an outage: nobody is told of this one
        api.tell_guilds()
        await it.heard("before", "away")


@story
async def test_a_server_that_wants_us_to_reconnect_and_is_gone_is_not_waited_for() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        with Stopwatch() as watch:
            for connection in api.connections:
                connection.deafen()
            api.ask_reconnect()
            await it.up(2)
        assert watch.seconds < 5
        assert len(api.resumes) == 1


@pytest.mark.parametrize(("code", "resumes"), [(4007, 1), (4009, 1), *((code, 3) for code in (0, 1000, 4000, 4008))])
def test_a_session_that_is_not_given_back_is_replaced(code: int, resumes: int) -> None:
    """At once where Discord says that it may not be resumed, else after three attempts."""

    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            api.faults.refused_resumes, api.faults.refusal = 100, code
            api.cut()
            hello(api, "away")
            await it.heard("before", "away")
            assert (len(api.resumes), len(api.identifies)) == (resumes, 2)

    run()


@story
async def test_a_session_that_is_given_back_counts_from_anew() -> None:
    async with DiscordApi() as api, running(api, clock=Hurried(200)) as it:
        await it.up()
        for times in (2, 3):
            api.faults.refused_resumes = 2
            api.cut()
            await it.up(times)
        assert (len(api.resumes), len(api.identifies)) == (6, 1)


@story
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


@story
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
        with Stopwatch() as watch:
            hello(api, "live", room=api.other)
            await it.until(lambda: "live" in it.texts)
            assert watch.seconds < 3
            await it.heard("before", "away", "live")
            assert watch.seconds < 12


@story
async def test_an_invalid_session_that_is_called_resumable_for_ever_is_given_up() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.faults.invalid_sessions, api.faults.resumable = 3, True
        api.cut()
        hello(api, "away")
        await it.heard("away")
        assert (len(api.resumes), len(api.identifies)) == (3, 2)


@story
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


@story
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
