"""What Discord's HTTP API answers, in whatever shape, is told for what it is."""

import contextlib

import pytest

from channels.base import CommandSpec, RateLimited, Rejected, Uncertain
from channels.discord.channel import DiscordPreviewChannel
from channels.discord.errors import DiscordRefused
from gateway.core.events import Receipt
from tests.channels.discord.channel_kit import both, place
from tests.channels.discord.channel_kit import part as answer
from tests.channels.discord.channel_kit import running as running_with
from tests.channels.discord.faults_kit import SAY, hello, part, running
from tests.kits.channels import story
from tests.kits.stopwatch import Stopwatch
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Options

CHARSET = Options(json_type="application/json; charset=utf-8")
COMMANDS = (CommandSpec(name="log", summary="Show the log", private=True), CommandSpec(name="status", summary="Show"))


@story
async def test_a_reply_that_is_not_allowed_becomes_a_plain_message() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        said = hello(api, "well?")
        api.world.unread.add(api.room)
        gone: list[int] = []

        async def going() -> None:
            gone.append(1)

        receipt = await it.channel.send(part("well", api.room, reply_to=said), going)
        (shown,) = api.visible(api.room)
        assert (list(receipt.ids), shown["content"], "message_reference" in shown) == ([shown["id"]], "well", False)
        assert gone == [1]


@story
async def test_what_is_forbidden_is_asked_once_with_a_reply_or_without() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        said = hello(api, "well?")
        api.world.muted.add(api.room)
        with pytest.raises(DiscordRefused) as told:
            await it.channel.send(part("well", api.room, reply_to=said))
        assert (told.value.status, len(api.made(SAY))) == (403, 1)


@pytest.mark.parametrize(("told", "wait_s"), [("both", 7.4), ("body", 7.4), ("header", 7.0), ("nothing", 60.0)])
@pytest.mark.parametrize("options", [Options(), CHARSET])
def test_a_limit_before_discord_is_told_wherever_it_stands(told: str, wait_s: float, options: Options) -> None:
    @story
    async def run() -> None:
        async with DiscordApi(options) as api, running(api) as it:
            await it.up()
            api.faults.add(SAY, "banned", retry_after_s=7.4, told=told)  # type: ignore[arg-type] # its values
            with pytest.raises(RateLimited) as caught:
                await it.channel.send(part("later", api.room))
            assert caught.value.retry_after_s == wait_s
            assert len(api.made(SAY)) == 1

    run()


@story
async def test_a_limit_of_discords_own_that_cannot_be_read_is_one() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.faults.add(SAY, "429", retry_after_s=7.4, told="header")
        with pytest.raises(RateLimited) as caught:
            await it.channel.send(part("later", api.room))
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(("wait_s", "told_s"), [(float("nan"), 60.0), (float("inf"), 60.0), (0.0, 1.0), (1e9, 3600.0)])
def test_no_limit_is_waited_for_without_an_end(wait_s: float, told_s: float) -> None:
    @story
    async def run() -> None:
        async with DiscordApi() as api, running(api) as it:
            await it.up()
            api.faults.add(SAY, "banned", retry_after_s=wait_s, told="body")
            with pytest.raises(RateLimited) as caught:
                await it.channel.send(part("later", api.room))
            assert caught.value.retry_after_s == told_s

    run()


@story
async def test_a_limit_that_is_over_does_not_stand_for_what_came_after() -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        api.faults.add(SAY, "429")
        api.world.muted.add(api.room)
        with pytest.raises(DiscordRefused):
            await it.channel.send(part("no", api.room))
        api.faults.add(SAY, "429")
        api.faults.add(SAY, "reset after")
        with pytest.raises(Uncertain):
            await it.channel.send(part("perhaps", api.other, "k2"))


@story
async def test_json_is_read_whatever_its_type_is_called() -> None:
    async with DiscordApi(CHARSET) as api, running_with(api, commands=COMMANDS) as it:
        await it.up()
        said = api.says(api.room, api.ann, "hello")
        sent = await it.channel.send(answer("hello", api.room, reply_to=said))
        assert list(sent.ids) == [api.visible(api.room)[0]["id"]]
        await api.until(lambda: bool(api.made("PUT /applications")))
        thread = api.world.add_thread(api.room, "old", api.ann)["id"]
        api.says(thread, api.ann, "here")
        assert [m.at.thread for m in [await it.message(2)]] == [thread]
        api.forget()
        api.cut()
        api.says(api.room, api.ann, "away")
        await it.until(lambda: "away" in it.texts)


@story
async def test_a_channel_that_cannot_be_told_is_asked_once_and_holds_nobody_up_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with DiscordApi() as api, running(api) as it:
        await it.up()
        thread = api.world.add_thread(api.room, "old", api.ann)["id"]
        asked = f"GET /channels/{thread}$"
        api.faults.add(asked, "500 before", times=5)
        hello(api, "there", room=thread)
        hello(api, "here")
        with Stopwatch() as watch:
            await it.heard("there", "here")
        assert len(api.made(asked)) == 1
        assert "is not known: Discord: no reason (500)" in caplog.text
        assert watch.seconds < 5


@story
async def test_a_budget_that_is_not_told_is_not_waited_for() -> None:
    async with DiscordApi() as api:
        api.faults.add("GET /gateway/bot", "500 before", times=100)
        with Stopwatch() as watch:
            async with running(api) as it:
                await it.up()
        assert len(api.made("GET /gateway/bot")) == 1
        assert watch.seconds < 5


@story
async def test_the_number_of_shards_is_asked_for_until_it_is_told() -> None:
    async with DiscordApi(Options(shards=2)) as api:
        api.faults.add("GET /gateway/bot", "500 before", times=2)
        async with running(api, shards="auto") as it:
            await it.up()
            assert sorted(identify["shard"] for _, identify in api.identifies) == [[0, 2], [1, 2]]


@pytest.mark.parametrize("what", ["500 after", "502 before", "reset after", "reset before"])
def test_no_preview_is_left_that_nobody_knows_of(what: str) -> None:
    @story
    async def run() -> None:
        async with both(preview="all") as (api, it):
            channel = it.channel
            assert isinstance(channel, DiscordPreviewChannel)
            api.faults.add(SAY, what)  # type: ignore[arg-type] # the parameters above are its values
            shown = await channel.preview(place(api.room), "I thi", None)
            assert [message["id"] for message in api.visible(api.room)] == [shown]
            await it.channel.send(answer("I think so", api.room))
            assert shown is not None
            await channel.delete_preview(place(api.room), shown)
            again = await channel.preview(place(api.room), "I thi", None)
            assert again not in {shown, None}  # the next one is another
            assert api.texts(api.room) == ["I think so", "I thi"]

    run()


@pytest.mark.parametrize("name", ["log", "status"])
def test_a_token_of_a_command_that_has_run_out_is_not_the_bots(name: str) -> None:
    @story
    async def run() -> None:
        async with both(commands=COMMANDS) as (api, it):
            asked = api.slash(api.room, api.ann, name)
            command = await it.command()
            await api.until(lambda: asked.answered is not None)
            asked.made_s -= 16 * 60
            refused = pytest.raises(Rejected) if name == "log" else contextlib.nullcontext()
            with refused:
                sent = await it.channel.send(answer("late", api.room, reply_to=command.id, private=name == "log"))
                assert isinstance(sent, Receipt)
            assert api.texts(api.room) == ([] if name == "log" else ["late"])
            assert api.made("PATCH /webhooks")[0].status == 401

    run()
