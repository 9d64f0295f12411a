"""What Discord does not let in is denied with the way out, nobody learns the token, and two bots live side by side."""

import asyncio
import logging

import pytest

from channels.base import Denied, SendError
from gateway.core.events import ConnectionChanged
from tests.channels.discord.channel_kit import config
from tests.channels.discord.faults_kit import SAY, Hurried, hello, part, running
from tests.kits.channels import story
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Options


@story
async def test_a_bad_token_is_denied() -> None:
    async with DiscordApi() as api, running(api, token="wrong.token-of.mine") as it:
        with pytest.raises(Denied) as told:
            await asyncio.wait_for(it.task, 30)
        assert "token" in told.value.reason
        assert "wrong.token-of.mine" not in told.value.reason
        assert api.identifies == []


@story
async def test_a_token_that_is_reset_meanwhile_is_denied() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.options = Options(token="a new one")
        api.cut()
        with pytest.raises(Denied):
            await asyncio.wait_for(it.task, 30)


@story
async def test_without_message_content_it_is_denied_with_the_way_out() -> None:
    async with DiscordApi(Options(message_content=False)) as api, running(api) as it:
        with pytest.raises(Denied, match="MESSAGE CONTENT"):
            await asyncio.wait_for(it.task, 30)
        assert len(api.connections) <= 1


def test_the_token_is_in_no_log_line_and_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    @story
    async def run() -> None:
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
            await asyncio.sleep(0.2)
            api.faults.no_sockets = False
            asked = api.slash(api.room, api.ann, "status")
            await asyncio.sleep(0.2)
            told.extend(link.reason for link in it.all(ConnectionChanged))
            told.append(repr(config(api)))
            told.append(repr(it.channel))
            secrets = (api.token, asked.token)
            lines = [record.getMessage() + str(record.exc_info and record.exc_info[1]) for record in caplog.records]
            own = [line for line in lines if "WebSocket Event" not in line]
            assert not [line for line in told + own if any(secret in line for secret in secrets)]
            assert api.identifies

    run()
    assert caplog.records


@story
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
def test_an_end_in_any_moment_of_the_greeting_says_goodbye(steps: int) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api:
            async with running(api):
                await api.until(lambda: bool(api.connections))
                for _ in range(steps):
                    await asyncio.sleep(0)
            await api.until(lambda: api.connections[0].close_code is not None)
            assert api.connections[0].close_code in {1000, 4000}

    run()


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/gw", "http://127.0.0.1/", "no address", "wss://user:pass@127.0.0.1"])
def test_a_bad_address_for_resuming_costs_a_session_and_no_message(url: str) -> None:
    @story
    async def run() -> None:
        async with DiscordApi(Options(resume_url=url)) as api, running(api) as it:
            await it.up()
            hello(api, "before")
            await it.heard("before")
            api.cut()
            hello(api, "away")
            await it.heard("before", "away")

    run()


@story
async def test_the_last_sessions_of_the_day_are_left_to_the_operator() -> None:
    async with DiscordApi(Options(identifies_per_day=12)) as api, running(api, clock=Hurried(200)) as it:
        await it.up()
        for _ in range(5):
            api.forget()
            api.cut()
            await asyncio.sleep(0.3)  # a minute on the channel's clock
        assert len(api.identifies) <= 2
        assert not it.links[-1]
        assert not it.task.done()


@pytest.mark.system
@story
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
