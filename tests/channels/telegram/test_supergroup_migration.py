"""A group that becomes a supergroup: its messages are counted from 1 again, and none is taken for
an older one."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from channels.telegram.ids import format_message_id, parse_message_number
from gateway.core.events import (
    Command,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    ReactionChanged,
)
from gateway.core.facts import dedup_key
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from tests.channels.telegram.channel_kit import Running, running


@contextlib.asynccontextmanager
async def moved(spoken: int = 4) -> AsyncIterator[tuple[BotApi, Running, Person, Chat, Chat]]:
    """A group in which so much was said before it moved; in the new one only the move itself has a
    number."""
    async with BotApi() as api, running(api, preview="all") as run:
        await run.up()
        ann, old = api.person("Ann"), api.group("lounge", basic=True)
        for number in range(spoken):
            api.group_says(old, ann, f"old {number + 1}")
        await run.some(Message, spoken)
        yield api, run, ann, old, api.migrates(old, ann)


def keys(events: Sequence[Notification]) -> list[str]:
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
def test_only_a_message_of_that_chat_has_a_number(
    message: str, chat: str, number: int | None
) -> None:
    assert parse_message_number(MessageId(message), chat, "-5") == number
    if number is not None:
        assert parse_message_number(format_message_id(number, chat, "-5"), chat, "-5") == number
