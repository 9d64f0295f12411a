"""What Discord tells arrives as notifications, each once."""

import asyncio
import logging

import pytest

from gateway.access.policy import decide
from gateway.core.events import Message, MessageDeleted, MessageEdited, ReactionChanged, RoomId
from tests.channels.discord.channel_kit import NAME, Quick, both, part, place, running
from tests.kits.channels import story
from tests.kits.policies import PlayedPolicy
from tests.kits.stopwatch import Stopwatch
from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_rest import Options
from tests.servers.discord_api_world import FORUM


@story
async def test_a_message_arrives_with_its_place_its_sender_and_its_time() -> None:
    async with both() as (api, run):
        said = api.says(api.room, api.ann, "hello")
        message = await run.message()
        assert (message.id, message.at, message.text, message.kind) == (said, place(api.room), "hello", "room")
        assert (message.sender.id, message.sender.name, message.sender.verified) == (api.ann, "ann", True)
        assert message.sent.utcoffset() is not None


@story
async def test_whom_it_was_said_to_is_discords_own_knowledge() -> None:
    async with both() as (api, run):
        api.says(api.world.dm(api.ann), api.ann, "psst")
        api.says(api.room, api.ann, f"<@{api.bot}> hello")
        api.says(api.room, api.ann, "reverie, @reverie, @everyone", mention_everyone=True)
        first = (await run.channel.send(part("is anybody there?", api.room))).ids[0]
        api.says(api.room, api.ben, "yes?", reply_to=first)
        assert (await run.message(4)).reply_to == first
        assert [message.kind for message in run.messages] == ["direct", "mention", "room", "reply"]


@story
async def test_bots_and_webhooks_are_told_from_people_and_we_are_never_heard() -> None:
    async with both() as (api, run):
        other = api.world.add_user("helper", bot=True)
        await run.channel.send(part("is anybody there?", api.room))
        api.says(api.room, other, "beep")
        api.says(api.room, "77", "news", webhook_id="77")
        api.says(api.room, api.ann, "last")
        await run.message(3)
        senders = [(m.sender.id, m.sender.is_bot, m.sender.verified) for m in run.messages]
        assert senders == [(other, True, True), ("webhook:77", True, False), (api.ann, False, True)]


@story
async def test_edits_deletions_and_reactions_arrive() -> None:
    async with both() as (api, run):
        said = api.says(api.room, api.ann, "hello")
        api.edits(api.room, said, "hello you")
        edit = await run.one(MessageEdited)
        assert (edit.message, edit.text, edit.sender.id, edit.at) == (said, "hello you", api.ann, place(api.room))
        api.reacts(api.room, said, api.ben, "👍")
        api.reacts(api.room, said, api.ben, "👍", added=False)
        await run.one(ReactionChanged, 2)
        assert [(r.reaction, r.added, r.sender.id) for r in run.all(ReactionChanged)] == [
            ("👍", True, api.ben),
            ("👍", False, api.ben),
        ]
        assert len({reacted.id for reacted in run.all(ReactionChanged)}) == 2
        api.deletes(api.room, said)
        assert (await run.one(MessageDeleted)).message == said


@story
async def test_a_link_preview_is_not_an_edit() -> None:
    async with both() as (api, run):
        said = api.says(api.room, api.ann, "https://example.org")
        shown = api.world.messages[api.room][said]
        shown["embeds"] = [{"type": "link", "url": "https://example.org"}]
        api.dispatch("MESSAGE_UPDATE", api.world.seen_live(shown))
        api.says(api.room, api.ann, "next")
        await run.message(2)
        assert not run.all(MessageEdited)


@story
async def test_threads_and_forum_posts_are_conversations_of_their_channel() -> None:
    async with both() as (api, run):
        forum = api.world.add_channel("questions", kind=FORUM)
        thread = api.threads(api.room, api.ann, "aside", "here")
        post = api.threads(forum, api.ann, "how?", "so")
        await run.message(2)
        assert [message.at for message in run.messages] == [place(api.room, thread), place(forum, post)]


@story
async def test_a_thread_nobody_told_us_of_is_asked_for() -> None:
    async with both() as (api, run):
        thread = api.world.add_thread(api.room, "old", api.ann)["id"]
        api.says(thread, api.ann, "still here?")
        assert (await run.message()).at == place(api.room, thread)
        assert run.channel.space(RoomId(api.room)) == api.guild


@story
async def test_a_thread_that_cannot_be_asked_for_is_asked_for_again() -> None:
    async with both() as (api, run):
        thread = api.world.add_thread(api.room, "old", api.ann)["id"]
        api.faults.add(f"GET /channels/{thread}$", "banned")
        api.says(thread, api.ann, "one")
        api.says(thread, api.ann, "two")
        await run.message(2)
        assert [message.at for message in run.messages] == [place(thread), place(api.room, thread)]
        assert run.channel.space(RoomId(thread)) == api.guild


@story
async def test_a_guild_opens_all_its_rooms_and_no_other() -> None:
    async with DiscordApi() as api:
        elsewhere = api.world.add_channel("far", guild=api.world.add_guild("away"))
        async with running(api, rooms=[api.guild]) as run:
            await run.up()
            thread = api.threads(api.room, api.ann, "aside", "one")
            api.says(elsewhere, api.ann, "two")
            api.says(api.other, api.ann, "three")
            await run.message(3)
            policy = PlayedPolicy(
                dm_policy="disabled",
                roles={},
                open_rooms={NAME: frozenset({RoomId(api.guild)})},
                spaces=lambda at: run.channel.space(at.room),
            )
            heard = {message.text: decide(policy, message).allowed for message in run.messages}
            assert heard == {"one": True, "two": False, "three": True}
            assert run.messages[0].at == place(api.room, thread)


@story
async def test_attachments_stickers_and_polls_are_told() -> None:
    async with both() as (api, run):
        poll = {
            "question": {"text": "Tea?"},
            "answers": [{"poll_media": {"text": "yes"}}, {"poll_media": {"text": "no"}}],
        }
        api.says(api.room, api.ann, "look", files=[("cat.png", b"png", "image/png")])
        api.says(api.room, api.ann, "", sticker_items=[{"id": "1", "name": "wave"}], poll=poll)
        shown, other = await run.message(1), await run.message(2)
        (file,) = shown.attachments
        assert (file.form, file.name, file.content_type, file.size_bytes) == ("image", "cat.png", "image/png", 3)
        assert other.text == "[sticker: wave]\n[poll: Tea? - yes / no]"
        data = await run.channel.download(shown.at, file, limit_bytes=10)
        assert data == b"png"


@story
async def test_what_blocks_loses_nothing_and_stops_the_reading() -> None:
    async with both(options=Options(heartbeat_s=2.0, heartbeat_grace_s=40)) as (api, run):
        run.open.clear()
        for number in range(2000):
            api.says(api.room, api.ann, f"{number}" + "x" * 500)
        life = run.channel._session
        assert life is not None
        while not life.inbox.is_full:
            await asyncio.sleep(0.01)
        await asyncio.sleep(4.5)  # longer than two heartbeats: nothing may be taken for a dead link meanwhile
        assert len(life.inbox._items) < 1400
        run.open.set()
        await run.until(lambda: len(run.messages) == 2000)
        assert [int(text.rstrip("x")) for text in run.texts] == list(range(2000))
        assert run.links == [True]


@story
async def test_a_position_is_kept_only_with_what_it_covers() -> None:
    async with DiscordApi() as api:
        async with running(api) as run:
            await run.up()
            api.says(api.room, api.ann, "one")
            await run.message()
        assert run.cursor is not None
        api.says(api.room, api.ann, "two")
        api.says(api.other, api.ben, "three")
        async with running(api, cursor=run.cursor) as again:
            await again.message(3)
            assert sorted(again.texts) == ["one", "three", "two"]  # the margin repeats one: the store knows it
            calls = [call for call in api.calls if call.line.startswith("GET /channels/")]
            assert len(calls) == 2
        async with running(api, cursor="not ours") as fresh:
            await fresh.up()
            api.says(api.room, api.ann, "four")
            await fresh.message()
            assert fresh.texts == ["four"]


@story
async def test_shards_share_the_guilds_and_begin_five_seconds_apart() -> None:
    clock = Quick()
    async with both(clock, shards=2) as (api, run):
        assert sorted(data["shard"] for _, data in api.identifies) == [[0, 2], [1, 2]]
        assert any(4 < slept <= 5 for slept in clock.slept)
        for number in range(4):
            room = api.world.add_channel(f"r{number}", guild=api.world.add_guild(f"g{number}"))
            api.says(room, api.ann, str(number))
        await run.message(4)
        assert sorted(run.texts) == ["0", "1", "2", "3"]


@story
async def test_an_end_is_soon_and_leaves_nothing_behind() -> None:
    async with both() as (api, run):
        with Stopwatch() as watch:
            await run.end()
        assert watch.seconds < 1
        await api.until(lambda: api.connections[-1].close_code is not None)
        assert api.connections[-1].close_code == 1000
        names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr] # coroutines
        assert not {name for name in names if name.startswith(("Inflow", "Life", "Shards", "Heart", "Answers"))}


@story
async def test_no_payload_breaks_the_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with both() as (api, run):
        for data in (
            "[]",
            "null",
            "7",
            '"x"',
            '{"id":[],"channel_id":{},"author":7}',
            '{"id":"1","type":0,"author":{}}',
        ):
            for event in (
                "MESSAGE_CREATE",
                "MESSAGE_UPDATE",
                "GUILD_CREATE",
                "READY",
                "INTERACTION_CREATE",
                "THREAD_CREATE",
            ):
                api.raw(f'{{"op":0,"t":"{event}","s":1,"d":{data}}}')
        for text in (
            "",
            "nonsense",
            "[1,2]",
            '{"op":"0"}',
            '{"op":0,"t":7}',
            '{"op":11,"d":"?"}',
            '{"op":77}',
            "[" * 5000,
        ):
            api.raw(text)
        api.says(api.room, api.ann, "still here")
        assert (await run.one(Message)).text == "still here"
        assert len(api.connections) == 1
