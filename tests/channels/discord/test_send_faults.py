"""Whatever becomes of a request: a message is seen once, or told to be uncertain, and no room waits for another."""

import asyncio

import pytest

from channels.base import RateLimited, Rejected, SendError, Uncertain, Unreachable
from gateway.core.events import Receipt
from tests.channels.discord.faults_kit import SAY, Running, part, running
from tests.kits.channels import story
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Options


async def sent(it: Running, body: str, room: str, key: str = "k1") -> Receipt | SendError:
    """What became of it; what is uncertain is sent again with the same key, as the outbox does."""
    for _ in range(5):
        try:
            return await it.channel.send(part(body, room, key))
        except (Uncertain, Unreachable) as error:
            if it.channel.capabilities.resend_window_s <= 0:
                return error
        except RateLimited as error:
            await asyncio.sleep(error.retry_after_s)
    return Uncertain("no end of it")


@pytest.mark.parametrize(
    "what", ["500 before", "500 after", "502 after", "reset before", "reset after", "silent", "slow", "429"]
)
def test_a_message_is_seen_once_whatever_becomes_of_its_request(what: str) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api, request_timeout=0.5) as it:
            await it.up()
            api.faults.add(SAY, what)  # type: ignore[arg-type] # the parameters above are its values
            result = await sent(it, "an answer", api.room)
            assert isinstance(result, Receipt), result
            assert api.texts(api.room) == ["an answer"]
            assert list(result.ids) == [api.visible(api.room)[0]["id"]]
            assert {call.body["nonce"] for call in api.made(SAY)} == {api.made(SAY)[0].body["nonce"]}
            assert api.offences == []

    run()


@pytest.mark.parametrize("what", [pytest.param("500 after", marks=pytest.mark.system), "reset after", "silent"])
def test_a_storm_after_processing_is_uncertain_and_seen_once(what: str) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api, request_timeout=0.3) as it:
            await it.up()
            api.faults.add(SAY, what, times=100)  # type: ignore[arg-type] # the parameters above are its values
            with pytest.raises(Uncertain):
                await it.channel.send(part("an answer", api.room))
            assert api.texts(api.room) == ["an answer"]

    run()


@story
async def test_different_messages_with_the_same_text_are_all_seen() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        for key in ("k1", "k2", "01JAAAAAAAAAAAAAAAAAAAAAAA:0", "01JAAAAAAAAAAAAAAAAAAAAAAA:1"):
            await it.channel.send(part("the same", api.room, key))
        assert api.texts(api.room) == ["the same"] * 4


@story
async def test_a_rate_limit_in_one_channel_does_not_stall_another() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.faults.add(f"POST /channels/{api.room}/messages", "429", times=2, retry_after_s=1.0)
        slow = asyncio.create_task(sent(it, "slow", api.room))
        await api.until(lambda: len(api.made(SAY)) == 1)
        for number in range(5):
            await it.channel.send(part(f"quick {number}", api.other, f"q{number}"))
        assert not slow.done()
        assert isinstance(await slow, Receipt)
        assert (api.texts(api.room), len(api.texts(api.other))) == (["slow"], 5)


@story
async def test_a_narrow_bucket_is_kept_to() -> None:
    limits = ((SAY, 3, 0.5), (r".*", 50, 1.0))
    async with DiscordApi(Options(limits=limits)) as api, running(api) as it:
        await it.up()
        results = await asyncio.gather(*(sent(it, str(n), api.room, f"k{n}") for n in range(9)))
        assert all(isinstance(result, Receipt) for result in results)
        assert api.texts(api.room) == [str(n) for n in range(9)]
        assert [call.status for call in api.made(SAY)].count(429) <= 1


@story
async def test_a_long_limit_is_told_and_not_slept_through() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.faults.add(SAY, "429", retry_after_s=600)
        with pytest.raises(RateLimited) as told:
            await it.channel.send(part("later", api.room))
        assert told.value.retry_after_s >= 600
        api.faults.add(SAY, "banned", retry_after_s=600)
        with pytest.raises(RateLimited):
            await it.channel.send(part("later", api.other, "k2"))
        assert api.texts(api.room) == api.texts(api.other) == []


@story
async def test_refusals_are_rejected_and_the_link_stays() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.world.muted.add(api.room)
        for room in (api.room, "999999999999"):
            with pytest.raises(Rejected):
                await it.channel.send(part("no", room))
        await it.channel.send(part("yes", api.other))
        assert it.links == [True]


@story
async def test_a_message_that_waits_for_its_limit_when_the_run_ends_is_surely_not_sent() -> None:
    limits = ((SAY, 1, 20.0), (r".*", 1000, 1.0))
    async with DiscordApi(Options(limits=limits)) as api, running(api) as it:
        await it.up()
        await it.channel.send(part("one", api.room))
        waiting = asyncio.create_task(it.channel.send(part("two", api.room, "k2")))
        for _ in range(50):
            await asyncio.sleep(0)
        await it.end()
        with pytest.raises(Unreachable):
            await waiting
        assert api.texts(api.room) == ["one"]
