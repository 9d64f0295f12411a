"""Whatever becomes of a request: a message is seen once, or told to be uncertain, and no room waits
for another."""

import asyncio

import pytest

from channels.base import MayNotPost, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.discord.channel import DiscordPreviewChannel
from gateway.core.events import Receipt
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from tests.channels.discord.channel_kit import Running, part, place
from tests.channels.discord.faults_kit import SAY, Hurried, hello, running


@pytest.fixture(autouse=True)
def clock() -> Hurried:
    return Hurried(20)


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
    "what",
    [
        "500 before",
        "500 after",
        "502 after",
        "reset before",
        "reset after",
        "silent",
        "slow",
        "429",
    ],
)
async def test_a_message_is_seen_once_whatever_becomes_of_its_request(what: str) -> None:
    async with DiscordApi() as api, running(api, request_timeout=0.5) as it:
        await it.up()
        api.faults.add(SAY, what)  # type: ignore[arg-type] # the parameters above are its values
        result = await sent(it, "an answer", api.room)
        assert isinstance(result, Receipt), result
        assert api.texts(api.room) == ["an answer"]
        assert list(result.ids) == [api.visible(api.room)[0]["id"]]
        assert {call.body["nonce"] for call in api.made(SAY)} == {api.made(SAY)[0].body["nonce"]}
        assert api.offences == []


@pytest.mark.parametrize("what", ["reset after", "silent"])
async def test_a_storm_after_processing_is_uncertain_and_seen_once(what: str) -> None:
    async with DiscordApi() as api, running(api, request_timeout=0.3) as it:
        await it.up()
        api.faults.add(SAY, what, times=100)  # type: ignore[arg-type] # the parameters above are its values
        with pytest.raises(Uncertain):
            await it.channel.send(part("an answer", api.room))
        assert api.texts(api.room) == ["an answer"]


async def test_different_messages_with_the_same_text_are_all_seen(
    api: DiscordApi, run: Running
) -> None:
    for key in ("k1", "k2", "01JAAAAAAAAAAAAAAAAAAAAAAA:0", "01JAAAAAAAAAAAAAAAAAAAAAAA:1"):
        await run.channel.send(part("the same", api.room, key))
    assert api.texts(api.room) == ["the same"] * 4


async def test_a_rate_limit_in_one_channel_does_not_stall_another(
    api: DiscordApi, run: Running
) -> None:
    api.faults.add(f"POST /channels/{api.room}/messages", "429", times=2, retry_after_s=1.0)
    slow = asyncio.create_task(sent(run, "slow", api.room))
    await api.until(lambda: len(api.made(SAY)) == 1)
    for number in range(5):
        await run.channel.send(part(f"quick {number}", api.other, f"q{number}"))
    assert not slow.done()
    assert isinstance(await slow, Receipt)
    assert (api.texts(api.room), len(api.texts(api.other))) == (["slow"], 5)


async def test_a_long_limit_is_told_and_not_slept_through(api: DiscordApi, run: Running) -> None:
    api.faults.add(SAY, "429", retry_after_s=600)
    with pytest.raises(RateLimited) as told:
        await run.channel.send(part("later", api.room))
    assert told.value.retry_after_s >= 600
    api.faults.add(SAY, "banned", retry_after_s=600)
    with pytest.raises(RateLimited):
        await run.channel.send(part("later", api.other, "k2"))
    assert api.texts(api.room) == api.texts(api.other) == []


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


CHARSET = Options(json_type="application/json; charset=utf-8")


async def test_a_reply_that_is_not_allowed_becomes_a_plain_message(
    api: DiscordApi, run: Running
) -> None:
    said = hello(api, "well?")
    api.world.unread.add(api.room)
    gone: list[int] = []

    async def going() -> None:
        gone.append(1)

    receipt = await run.channel.send(part("well", api.room, reply_to=said), going)
    (shown,) = api.visible(api.room)
    assert (list(receipt.ids), shown["content"], "message_reference" in shown) == (
        [shown["id"]],
        "well",
        False,
    )
    assert gone == [1]


async def test_what_automod_refuses_is_tried_once(api: DiscordApi, run: Running) -> None:
    said = hello(api, "well?")
    api.world.banned_words.add("darn")
    with pytest.raises(Rejected, match="moderation"):
        await run.channel.send(part("darn it", api.room, reply_to=said))
    assert len(api.made("POST /channels/.*/messages")) == 1


async def test_what_is_missing_to_post_in_a_channel_is_named(api: DiscordApi, run: Running) -> None:
    api.world.muted.add(api.room)
    guild, channel = api.world.guilds[api.guild], api.world.channels[api.room]
    guild["owner_id"] = api.ann
    api.dispatch("GUILD_UPDATE", guild)
    channel["permission_overwrites"] = [
        {"id": api.guild, "type": 0, "allow": "0", "deny": str(1 << 11)}
    ]
    api.dispatch("CHANNEL_UPDATE", channel)
    hello(api, "seen after it")
    await run.message()
    with pytest.raises(MayNotPost, match="it lacks the permission Send Messages"):
        await run.channel.send(part("well", api.room))


@pytest.mark.parametrize(
    ("told", "wait_s"), [("both", 7.4), ("body", 7.4), ("header", 7.0), ("nothing", 60.0)]
)
@pytest.mark.parametrize("options", [Options(), CHARSET])
async def test_a_limit_before_discord_is_told_wherever_it_stands(
    told: str, wait_s: float, api: DiscordApi, run: Running
) -> None:
    api.faults.add(SAY, "banned", retry_after_s=7.4, told=told)  # type: ignore[arg-type] # its values
    with pytest.raises(RateLimited) as caught:
        await run.channel.send(part("later", api.room))
    assert caught.value.retry_after_s == wait_s
    assert len(api.made(SAY)) == 1


@pytest.mark.parametrize(
    ("wait_s", "told_s"), [(float("nan"), 60.0), (float("inf"), 60.0), (0.0, 1.0), (1e9, 3600.0)]
)
async def test_no_limit_is_waited_for_without_an_end(
    wait_s: float, told_s: float, api: DiscordApi, run: Running
) -> None:
    api.faults.add(SAY, "banned", retry_after_s=wait_s, told="body")
    with pytest.raises(RateLimited) as caught:
        await run.channel.send(part("later", api.room))
    assert caught.value.retry_after_s == told_s


@pytest.mark.parametrize("what", ["500 after", "502 before", "reset after", "reset before"])
@pytest.mark.channel(preview="all")
async def test_no_preview_is_left_that_nobody_knows_of(
    what: str, api: DiscordApi, run: Running
) -> None:
    channel = run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    api.faults.add(SAY, what)  # type: ignore[arg-type] # the parameters above are its values
    shown = await channel.preview(place(api.room), "I thi", None)
    assert [message["id"] for message in api.visible(api.room)] == [shown]
    await run.channel.send(part("I think so", api.room))
    assert shown is not None
    await channel.delete_preview(place(api.room), shown)
    again = await channel.preview(place(api.room), "I thi", None)
    assert again not in {shown, None}  # the next one is another
    assert api.texts(api.room) == ["I think so", "I thi"]
