"""A group that becomes a supergroup: its messages are counted from 1 again, and none is taken for an older one."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from channels.base import Rejected
from channels.telegram.ids import format_message_id, parse_message_number
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import parse_update
from gateway.core.clock import SystemClock
from gateway.core.events import (
    ChannelName,
    Command,
    MembershipChanged,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    ReactionChanged,
)
from gateway.core.facts import dedup_key
from tests.channels.telegram.channel_kit import Running, parsed_one, running
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_world import Chat, Person
from tests.servers.ports import free_port


@contextlib.asynccontextmanager
async def moved(spoken: int = 4) -> AsyncIterator[tuple[BotApi, Running, Person, Chat, Chat]]:
    """A group in which so much was said before it moved; in the new one only the move itself has a number."""
    async with BotApi() as api, running(api, preview="all") as run:
        await run.up()
        ann, old = api.person("Ann"), api.group("lounge", basic=True)
        for number in range(spoken):
            api.group_says(old, ann, f"old {number + 1}")
        await run.some(Message, spoken)
        yield api, run, ann, old, api.migrates(old, ann)


def keys(events: Sequence[Notification]) -> list[str]:
    """Those that the store would keep apart."""
    return list(dict.fromkeys(map(dedup_key, events)))


async def test_nothing_said_after_the_move_is_taken_for_what_was_said_before() -> None:
    async with moved(spoken=6) as (api, run, ann, old, new):
        for number in range(6):
            api.group_says(new, ann, f"new {number + 1}")
        api.commands(new, ann, "/help")
        said = await run.some(Message, 12)
        (called,) = await run.some(Command)
        seen: list[Message | Command] = [*said, called]
        numbers = [set(api.world.chats[chat.id].shown) for chat in (old, new)]
        assert len(numbers[0] & numbers[1]) > 3, "the story has no collisions"
        assert {event.at.room for event in seen} == {str(old.id)}
        assert len(keys(seen)) == 13
        assert len({event.id for event in seen}) == 13


async def test_a_reply_after_the_move_is_to_what_was_said_after_it() -> None:
    async with moved() as (api, run, ann, _, new):
        first = api.group_says(new, ann, "first")
        api.group_says(new, ann, "second", reply_to=first)
        told = await run.tell("ours", run.all(Message)[0].at)
        before, after = (await run.some(Message, 6))[4:]
        assert after.reply_to == before.id != MessageId(str(first))
        (ours,) = [shown.id for shown in api.shown(new) if shown.by_bot]
        api.group_says(new, ann, "third", reply_to=ours)
        answer = await run.message(7)
        assert (answer.kind, [answer.reply_to]) == ("reply", told)


async def test_edits_and_reactions_after_the_move_name_what_they_are_about() -> None:
    async with moved() as (api, run, ann, old, new):
        later = api.group_says(new, ann, "new")
        assert later in api.world.chats[old.id].shown  # the same number
        said = (await run.some(Message, 5))[4]
        api.edits(new, later, "newer")
        api.reacts(new, ann, later, [], ["👍"])
        api.edits(old, later, "older")
        edits, (reaction,) = await run.some(MessageEdited, 2), await run.some(ReactionChanged)
        assert [edit.message for edit in edits] == [said.id, MessageId(str(later))]
        assert edits[0].message != edits[1].message
        assert reaction.message == said.id
        assert len(keys(edits)) == 2


async def test_who_comes_after_the_move_is_told_beside_who_came_before() -> None:
    async with moved(spoken=1) as (api, run, ann, old, new):
        ben = api.person("Ben")
        api.world.chats[old.id].migrated_to = None
        numbers = [api.joins(old, ben) for _ in range(3)], [api.joins(new, ann) for _ in range(3)]
        assert set(numbers[0]) & set(numbers[1])
        assert len(keys(await run.some(MembershipChanged, 6))) == 6


async def test_a_reply_goes_to_its_message_in_the_new_chat_and_to_none_for_an_old_one() -> None:
    async with moved() as (api, run, ann, _, new):
        number = api.group_says(new, ann, "new")
        said = await run.some(Message, 5)
        place = said[0].at
        await run.tell("to the new", place, reply_to=said[4].id)
        assert api.asked("sendMessage")[-1]["reply_parameters"]["message_id"] == number
        await run.tell("to an old", place, reply_to=said[1].id)  # its number is another's there
        assert "reply_parameters" not in api.asked("sendMessage")[-1].parameters
        assert api.said(new) == ["to the new", "to an old"]


async def test_a_reply_that_learns_of_the_move_is_no_reply_to_somebody_elses_words(api: BotApi, run: Running) -> None:
    ann, old = api.person("Ann"), api.group("lounge", basic=True)
    for number in range(4):
        api.group_says(old, ann, f"old {number + 1}")
    said = await run.some(Message, 4)
    new = api.migrates(old, ann, told=False)
    (told,) = await run.tell("the answer", said[1].at, reply_to=said[1].id)
    assert "reply_parameters" not in api.asked("sendMessage")[-1].parameters
    (shown,) = api.shown(new)
    assert told == f"{new.id}:{shown.id}"


async def test_a_preview_in_the_new_chat_grows_and_goes_and_an_old_one_stays_where_it_is() -> None:
    async with moved() as (api, run, ann, _, new):
        for number in range(4):
            api.group_says(new, ann, f"new {number + 1}")
        place = (await run.some(Message, 8))[0].at
        shown = await run.channel.preview(place, "it", None)
        assert shown is not None
        assert await run.channel.preview(place, "it grows", shown) == shown
        assert api.said(new) == ["it grows"]
        await run.channel.delete_preview(place, shown)
        assert api.said(new) == []
        for call in (
            run.channel.preview(place, "more", MessageId("3")),
            run.channel.delete_preview(place, MessageId("3")),
        ):
            with pytest.raises(Rejected, match="before it moved"):
                await call
        assert [shown.text for shown in api.shown(new)] == [f"new {number + 1}" for number in range(4)]


async def test_who_runs_a_group_that_is_configured_by_its_old_id_is_asked_after_the_move() -> None:
    async with BotApi() as api:
        ann, old = api.person("Ann"), api.group("lounge", basic=True)
        async with running(api, ranks=frozenset({str(old.id)})) as run:
            await run.up()
            new = api.migrates(old, ann)
            new.administrators = [ann]
            api.group_says(new, ann, "hi")
            assert (await run.message()).sender.ranks == ("administrator",)
            assert api.asked("getChatAdministrators")[-1]["chat_id"] == new.id


async def test_what_was_said_is_known_by_the_same_name_after_a_restart() -> None:
    async with moved() as (api, run, ann, _, new):
        number = api.group_says(new, ann, "new")
        said, cursor = (await run.some(Message, 5))[4], run.cursor
        await run.end()
        async with running(api, cursor=cursor) as again:
            await again.up()
            api.updates.put("message", new.shown[number].body)
            assert (await again.message()).id == said.id
            await again.tell("x", said.at, reply_to=said.id)
            assert api.asked("sendMessage")[-1]["reply_parameters"]["message_id"] == number


async def test_a_webhook_forgets_no_move_over_a_restart() -> None:
    port = free_port()
    hook = {"port": port, "path": "/hook", "url": f"http://127.0.0.1:{port}/hook", "secret": "s" * 16}
    async with BotApi() as api:
        ann, old = api.person("Ann"), api.group("lounge", basic=True)
        async with running(api, webhook=hook) as run:
            await run.up()
            api.group_says(old, ann, "old")
            place = (await run.message()).at
            new = api.migrates(old, ann)
            await run.until(lambda: "moved" in (run.cursor or "") and str(new.id) in (run.cursor or ""))
            cursor = run.cursor
        api.group_says(new, ann, "new")
        async with running(api, cursor=cursor, webhook=hook) as run:
            assert (await run.message()).at == place


def test_a_reply_to_what_was_said_elsewhere_names_its_own_chat() -> None:
    view = TelegramUpdateContext(channel=ChannelName("t"), own_id=1, username="")
    here, there = {"id": -100, "type": "supergroup"}, {"id": -5, "type": "group"}
    about = {"message_id": 7, "date": 1, "chat": there, "text": "old"}
    message = {"message_id": 8, "date": 1, "chat": here, "from": {"id": 2}, "text": "x", "reply_to_message": about}
    for cursor, name in ((view.cursor.with_move("-5", "-100"), "7"), (view.cursor, "-5:7")):
        now = TelegramUpdateContext(channel=view.channel, own_id=1, username="", cursor=cursor)
        (event,) = parse_update(parsed_one({"update_id": 1, "message": message}), now, SystemClock().now())
        assert isinstance(event, Message)
        assert event.reply_to == name


@pytest.mark.parametrize(
    ("message", "chat", "number"),
    [
        ("7", "-5", 7),
        ("7", "-100", None),
        ("-100:7", "-100", 7),
        ("-100:7", "-5", None),
        ("button:7", "-5", None),
        ("-5:7", "-5", 7),
        (":7", "-5", 7),
        ("", "-5", None),
        ("0", "-5", None),
        ("-7", "-5", None),
        ("٧", "-5", None),
        ("²", "-5", None),
        ("2147483648", "-5", None),
        ("9" * 5000, "-5", None),
    ],
)
def test_only_a_message_of_that_chat_has_a_number(message: str, chat: str, number: int | None) -> None:
    assert parse_message_number(MessageId(message), chat, "-5") == number
    if number is not None:
        assert parse_message_number(format_message_id(number, chat, "-5"), chat, "-5") == number
