"""Whatever happens to the connection: what was said arrives once, and a storm ends in back-off."""

import asyncio
import json

import pytest

from channels.base import Unreachable
from channels.discord import rest
from tests.channels.discord.faults_kit import Hurried, hello, part, running
from tests.kits.channels import story
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Faults, Options


@pytest.mark.parametrize("code", [0, 1000, 1001, 1011, 4000, 4009])
def test_a_cut_is_resumed_and_nothing_is_missed(code: int) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            api.cut(code)
            hello(api, "while away")
            await it.up(2)
            await it.heard("before", "while away")
            assert len(api.resumes) == 1
            assert len(api.identifies) == 1
            hello(api, "after")
            await it.heard("before", "while away", "after")
            assert it.links == [True, False, True]

    run()


@story
async def test_reconnect_is_obeyed_without_ending_the_session() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.ask_reconnect()
        await it.up(2)
        assert api.connections[0].close_code not in {1000, 1001}
        assert len(api.resumes) == 1
        hello(api, "after")
        await it.heard("after")


@story
async def test_a_session_that_is_gone_is_replaced_and_its_gap_filled() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.forget()
        api.cut()
        thread = api.threads(api.room, api.ann, "topic")
        for number in range(3):
            hello(api, f"away {number}")
            hello(api, f"threaded {number}", room=thread)
        await it.up(2)
        said = ["before", *(f"{what} {number}" for what in ("away", "threaded") for number in range(3))]
        await it.heard(*said)
        assert len(api.identifies) == 2
        hello(api, "after")
        await it.heard(*said, "after")


@story
async def test_a_direct_message_into_the_gap_is_found() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        direct = api.world.dm(api.ann)
        api.says(direct, api.ann, "before")
        await it.heard("before")
        api.forget()
        api.cut()
        api.says(direct, api.ann, "away")
        await it.heard("before", "away")


@story
async def test_more_than_a_page_of_history_is_found_in_order() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        hello(api, "0")
        await it.heard("0")
        api.forget()
        api.cut()
        for number in range(1, 251):
            hello(api, str(number))
        await it.until(lambda: len(set(it.texts)) == 251)
        assert it.texts == [str(number) for number in range(251)]


@story
async def test_a_history_that_fails_is_asked_again() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        hello(api, "before")
        await it.heard("before")
        api.faults.add(r"GET /channels/\d+/messages", "reset before")
        api.faults.add(r"GET /channels/\d+/messages", "502 before", times=2)
        api.forget()
        api.cut()
        hello(api, "away")
        await it.until(lambda: "away" in it.texts, 40)
        await it.heard("before", "away")


@pytest.mark.parametrize("resumable", [True, False])
def test_invalid_sessions_are_survived(resumable: bool) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api) as it:
            await it.up()
            api.faults.invalid_sessions, api.faults.resumable = 3, resumable
            api.cut()
            hello(api, "away")
            await it.up(2)
            await it.heard("away")

    run()


@story
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


@story
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


@story
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


@story
async def test_one_malformed_dispatch_is_dropped_and_the_link_stays() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        for text in (
            '{"op": 0, "t": "MESSAGE_CREATE", "s": 100, "d": {"id": null}}',
            '{"op": 0, "t": "MESSAGE_CREATE", "s": 101, "d": []}',
            '{"op": 0, "t": "GUILD_CREATE", "s": 102, "d": {"id": "x", "channels": 3}}',
            *('{"op": 10, "d": null}', '{"op": 99}', "[]", "null", "no JSON"),
        ):
            api.raw(text)
        hello(api, "after")
        await it.heard("after")
        assert len(api.connections) == 1
        assert it.links == [True]


@pytest.mark.parametrize("fault", ["after ready", "after hello", "invalid", "no handshake", "silent"])
def test_a_storm_ends_in_back_off(fault: str) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api, clock=Hurried(200), connect_timeout=20) as it:
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
            await asyncio.sleep(1.5)  # five minutes on the channel's clock
            assert max(len(api.connections), len(api.identifies), len(api.resumes)) <= 14
            assert not it.task.done()
            connections = len(api.connections)
            api.faults = Faults()
            hello(api, "after the storm")
            await it.until(lambda: "after the storm" in it.texts)
            assert len(api.connections) <= connections + 3

    run()


@story
async def test_a_compressed_stream_that_breaks_is_begun_anew() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.raw(b"\x07no zlib\x00\x00\xff\xff")
        hello(api, "lost in the broken stream")
        await it.up(2)
        await it.heard("lost in the broken stream")
        assert (len(api.resumes), len(api.identifies)) == (1, 1)


@story
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
