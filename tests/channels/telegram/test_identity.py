"""Who somebody is on Telegram, and who only looks like it: through the reader of updates, and on
the wire."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from channels.telegram.ids import format_message_id, parse_message_number
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import UpdateReader, parse_update
from gateway.commands import parser
from gateway.core.clock import ManualClock
from gateway.core.events import (
    ChannelName,
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
from tests.channels.telegram.channel_kit import Running, parsed, parsed_one, running
from tests.kits.commands import TABLE

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SENT = datetime(2025, 12, 31, tzinfo=UTC)
VIEW = TelegramUpdateContext(channel=ChannelName("telegram.test"), own_id=42, username="ReverieBot")
OWNER = {"id": 1001, "is_bot": False, "first_name": "Ann"}
EVE = {"id": 1002, "is_bot": False, "first_name": "Ann"}
ANONYMOUS = {
    "id": 1087968824,
    "is_bot": True,
    "first_name": "Group",
    "username": "GroupAnonymousBot",
}
TELEGRAM = {"id": 777000, "is_bot": False, "first_name": "Telegram"}
CHANNEL_BOT = {"id": 136817688, "is_bot": True, "first_name": "Channel", "username": "Channel_Bot"}
GROUP = {"id": -100, "type": "supergroup", "title": "Ann"}
NEWS = {"id": -200, "type": "channel", "title": "Ann"}
OTHER_BOT = {"id": 77, "is_bot": True, "first_name": "Ann", "username": "other_bot"}
SLASH = [{"type": "bot_command", "offset": 0, "length": 7}]


def update(kind: str = "message", number: int = 5, /, **more: Any) -> dict[str, Any]:
    base = {"message_id": 7, "from": OWNER, "chat": GROUP, "date": int(SENT.timestamp())}
    body = {key: value for key, value in (base | more).items() if value is not None}
    return {"update_id": number, kind: body}


def one(told: dict[str, Any]) -> Message | Command:
    (event,) = parse_update(parsed_one(told), VIEW, NOW)
    assert isinstance(event, Message | Command)
    return event


@pytest.mark.parametrize(
    ("more", "sender_id"),
    [
        ({"from": ANONYMOUS, "sender_chat": GROUP}, "-100"),
        ({"from": ANONYMOUS, "sender_chat": GROUP, "author_signature": "Ann"}, "-100"),
        ({"from": ANONYMOUS}, "1087968824"),
        ({"from": CHANNEL_BOT, "sender_chat": NEWS}, "-200"),
        ({"from": TELEGRAM, "sender_chat": NEWS, "is_automatic_forward": True}, "-200"),
        ({"from": OWNER, "sender_business_bot": OTHER_BOT}, "77"),
    ],
)
@pytest.mark.parametrize("text", ["/status", "!status"])
def test_what_is_said_in_another_name_is_not_the_owners(
    more: dict[str, Any], sender_id: str, text: str
) -> None:
    entities = SLASH if text.startswith("/") else None
    sender = one(update(text=text, entities=entities, **more)).sender
    assert sender.id == sender_id
    assert sender.id != "1001"
    assert (not sender.verified) or sender.is_bot


def test_a_name_makes_nobody() -> None:
    owner, eve = (one(update(text="hi", **{"from": who})).sender for who in (OWNER, EVE))
    assert owner.name == eve.name
    assert owner.id != eve.id


@pytest.mark.parametrize(
    "more",
    [
        {"forward_origin": {"type": "user", "sender_user": EVE, "date": 1}},
        {"forward_origin": {"type": "hidden_user", "sender_user_name": "Eve", "date": 1}},
        {"forward_origin": {"type": "channel", "chat": NEWS, "message_id": 1, "date": 1}},
        {"forward_from": EVE, "forward_date": 1},
        {"forward_date": 1},
        {"via_bot": OTHER_BOT},
        {"is_automatic_forward": True, "from": TELEGRAM, "sender_chat": NEWS, "forward_date": 1},
        {
            "external_reply": {"origin": {"type": "user", "sender_user": EVE, "date": 1}},
            "quote": {"text": "x"},
        },
    ],
)
@pytest.mark.parametrize("kind", ["supergroup", "private"])
def test_what_somebody_else_wrote_is_no_command(more: dict[str, Any], kind: str) -> None:
    chat = GROUP if kind == "supergroup" else {"id": 1001, "type": "private"}
    text = one(update(text="!status", chat=chat, **more))
    assert isinstance(text, Message)
    assert parser.parse_command(text, "!", TABLE.people) is None
    if "external_reply" not in more:  # a reply is typed by whoever sends it
        slash = one(update(text="/status", entities=SLASH, chat=chat, **more))
        assert isinstance(slash, Message)
        assert parser.parse_command(slash, "!", TABLE.people) is None


def test_ranks_are_those_of_the_senders_own_account_in_that_group() -> None:
    def who(**more: Any) -> tuple[str, ...]:
        reader = UpdateReader(VIEW, counting=False)
        batch = parsed(update(**({"text": "hi"} | more)))
        ranks = {"-100": {"1001": "creator", "1087968824": "administrator"}}
        (event,) = reader.read_batch(batch, NOW, ranks).notifications
        assert isinstance(event, Message | Command)
        return event.sender.ranks

    assert who() == who(text="/status", entities=SLASH) == ("creator",)
    assert who(**{"from": EVE}) == ()
    assert who(chat={"id": 1001, "type": "private"}) == ()
    assert who(chat=GROUP | {"id": -300}) == ()
    assert who(**{"from": ANONYMOUS, "sender_chat": GROUP}) == ()


async def test_who_runs_a_group_is_asked_for_where_it_matters() -> None:
    clock = ManualClock()
    async with BotApi() as api:
        async with running(api, clock, ranks=frozenset({"*"})) as run:
            await run.up()
            ann, ben, lounge = api.person("Ann"), api.person("Ben"), api.group("lounge")
            lounge.administrators = [ann]

            async def ranks(person: Person) -> tuple[str, ...]:
                number = len(run.messages) + 1
                api.group_says(lounge, person, "hi")
                return (await run.message(number)).sender.ranks

            assert await ranks(ann) == await ranks(ann) == ("administrator",)
            assert await ranks(ben) == ()
            assert len(api.asked("getChatAdministrators")) == 1
            lounge.administrators = []
            api.removes(lounge, ben, ann, told=False)  # what administrators are sent
            assert await ranks(ann) == (), "a change counts at once"
            lounge.administrators = [ann]
            clock.advance(121)
            body = b'{"ok":false,"error_code":500,"description":"no"}'
            api.faults.say("getChatAdministrators", body)
            assert await ranks(ann) == (), "Telegram does not tell"
            clock.advance(121)
            assert await ranks(ann) == ("administrator",)
            assert len(api.asked("getChatAdministrators")) == 4
        async with running(api) as run:
            await run.up()
            api.group_says(lounge, ann, "hi")
            assert (await run.message()).sender.ranks == ()
            assert len(api.asked("getChatAdministrators")) == 4


# A group that becomes a supergroup: its messages are counted from 1 again, and none is taken for
# an older one.


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
