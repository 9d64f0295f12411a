"""A million malformed updates: none of them stops the channel, and what comes after them is heard.

Updates of every kind are spoilt by a seeded generator: members missing, added, doubled or of
another type, numbers beyond all measure, halves of surrogate pairs, offsets outside of the text,
junk nested deep. Most go the way that decoded updates go (`parse_updates`,
`UpdateReader.read_batch`); a good part really comes over a socket.
"""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from telegram import Update

from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import UpdateReader, parse_updates
from gateway.core.clock import ManualClock
from gateway.core.events import NOTIFICATION, Message, Notification
from gateway.core.facts import dedup_key
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_http import Json
from tests.channels.telegram.channel_kit import NAME, parsed, running

DIRECT, WIRED = 800_000, 200_000
AT_ONCE = 100
ALBUMS = 0.01
"""Of all updates. Each one makes a poll wait for its rest."""

DEEP: Any = "bottom"
for _ in range(60):
    DEEP = [DEEP, {"": DEEP}] if len(str(DEEP)) < 300 else [DEEP]
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    -7.25,
    1e308,
    float("nan"),
    float("inf"),
    2**31,
    -(2**31),
    2**53,
    2**63,
    -(2**63) - 1,
    10**30,
    "",
    " ",
    "x",
    "\0",
    "\r\n\r\n",
    "\ud83d",
    "\udc00\ud83d",
    "a\ud800b",
    "😀" * 30,
    "é" * 5000,
    "@reverie_bot",
    "/why@reverie_bot",
    "1001",
    "-1001234567001",
    "`" * 40,
    "\n".join(">" * depth for depth in range(40)),
    [],
    {},
    [None],
    [[]],
    [{}],
    {"id": None},
    {"id": 1001},
    {"": ""},
    DEEP,
)


def bases() -> list[Json]:
    """Good updates of every kind; the last two are pictures of one album."""
    api = BotApi()
    api.updates.allowed = frozenset(
        {"message", "edited_message", "message_reaction", "callback_query", "my_chat_member"}
    )
    ann, lounge, forum = (
        api.person("Ann", "ann", "de"),
        api.group("lounge"),
        api.group("news", forum=True),
    )
    topic = api.topic(forum, "today")
    first = api.private_says(
        ann, "hi 😀 there", entities=[{"type": "bold", "offset": 3, "length": 2}]
    )
    api.mentions(lounge, ann, "how are you?", reply_to=None)
    api.mentions(forum, ann, "and here?", thread=topic)
    api.commands(lounge, ann, "/why 3")
    said = api.group_says(lounge, ann, "a [link] and `code`", entities=[
        {"type": "text_link", "offset": 2, "length": 6, "url": "https://example.org/(x)"},
        {"type": "pre", "offset": 13, "length": 6, "language": "py"},
        {"type": "blockquote", "offset": 0, "length": 19},
        {"type": "text_mention", "offset": 0, "length": 1, "user": api.world.bot.body},
    ])  # fmt: skip
    api.group_says(lounge, ann, "yes", reply_to=said, quote={"text": "link", "position": 3})
    api.edits(lounge, said, "otherwise", entities=[{"type": "italic", "offset": 0, "length": 5}])
    api.reacts(lounge, ann, said, ["👍"], ["❤", "🔥"])
    api.presses(ann, ann, first, "approve yes", forged=True)
    for form in ("photo", "voice", "audio", "video", "document", "sticker"):
        api.sends(
            ann,
            ann,
            form,
            caption="see",
            caption_entities=[{"type": "code", "offset": 0, "length": 3}],
        )
    api.located(ann, ann, 52.5, 13.4)
    api.joins(lounge, ann)
    api.leaves(lounge, ann)
    api.blocks(ann)
    api.migrates(api.group("old", basic=True), ann)
    user, when = {"id": 5, "is_bot": False, "first_name": "F", "last_name": "L"}, 1_795_272_909
    extras: tuple[Json, ...] = (
        {"forward_origin": {"type": "user", "sender_user": user, "date": when}},
        {
            "forward_origin": {
                "type": "channel",
                "chat": {"id": -5, "title": "T", "type": "channel"},
                "message_id": 3,
            }
        },
        {
            "external_reply": {
                "origin": {"type": "hidden_user", "sender_user_name": "H", "date": when},
                "photo": [],
            }
        },
        {"via_bot": api.world.bot.body, "sender_chat": {"id": -6, "title": "S", "type": "channel"}},
        {
            "poll": {
                "id": "1",
                "question": "?",
                "options": [{"text": "a", "voter_count": 1}],
                "type": "regular",
            }
        },
        {"venue": {"location": {"latitude": 1, "longitude": 2}, "title": "V", "address": "A"}},
        {
            "contact": {"phone_number": "+49", "first_name": "C", "user_id": 5},
            "dice": {"emoji": "🎲", "value": 6},
        },
        {"new_chat_title": "other", "forum_topic_created": {"name": "t", "icon_color": 1}},
        {
            "checklist": {"title": "c", "tasks": [{"id": 1, "text": "do"}]},
            "story": {"id": 1},
            "game": {"title": "g"},
        },
    )
    for extra in extras:
        api.group_says(lounge, ann, "with more", **extra)
    api.album(lounge, ann, 2, "us")
    return [update for _, update in api.updates.pending]


class Spoiler:
    """Endless spoilt updates, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        *self.plain, first, second = bases()
        self.album = [first, second]

    def update(self, update_id: int, *, ids: bool) -> Any:
        """`ids`: the id may be spoilt too, so that nothing can be said of it; else only in a way
        that cannot be taken for another id.
        """
        roll = self.random.random
        if roll() < 0.01:
            return self.random.choice(JUNK)
        base = self.random.choice(self.album if roll() < ALBUMS else self.plain)
        much = self.random.choice((0.01, 0.03, 0.1, 0.4))
        made: Json = {
            key: self._spoilt(value, much) for key, value in base.items() if roll() > much / 4
        }
        if roll() < 0.02:
            made["update_id"] = self.random.choice(JUNK if ids else ("x", None, -5, [], 2**63, 1.5))
        else:
            made["update_id"] = update_id
        return made

    def _spoilt(self, value: Any, much: float) -> Any:
        roll = self.random.random
        if roll() < much:
            return self.random.choice(JUNK)
        if isinstance(value, dict):
            made = {
                key: self._spoilt(inner, much) for key, inner in value.items() if roll() > much / 3
            }
            if roll() < much:
                made[
                    self.random.choice(("entities", "chat", "from", "text", "id", "x", "photo"))
                ] = self.random.choice(JUNK)
            return made
        if isinstance(value, list):
            return [
                self._spoilt(inner, much)
                for inner in value
                for _ in range(2 if roll() < much else 1)
            ]
        if type(value) is int and roll() < much:
            return value + self.random.choice((-1, 1, 7, 4096, -4096))
        return value


def storable(batch: Sequence[Notification]) -> None:
    """What is emitted can be written down, whatever was received. Raises what the log would
    raise."""
    for event in batch:
        NOTIFICATION.dump_json(event)
        dedup_key(event).encode()


def direct(spoiler: Spoiler, total: int) -> Counter[str]:
    """The way of decoded updates, as `Polling` walks it."""
    view = TelegramUpdateContext(
        channel=NAME,
        own_id=7_000_000_001,
        username="reverie_bot",
        rooms=frozenset({"*"}),
    )
    inbound, now, ids = UpdateReader(view, counting=True), datetime.now(UTC), count(1)
    heard: Counter[str] = Counter()
    rest: list[Update] = []
    for _ in range(0, total, AT_ONCE):
        fresh = [spoiler.update(next(ids), ids=True) for _ in range(AT_ONCE)]
        readable = [*rest, *parse_updates(fresh)]
        while True:
            taken = inbound.read_batch(readable, now)
            storable(taken.notifications)
            heard.update(type(event).__name__ for event in taken.notifications)
            held, readable = readable, readable[taken.count :]
            if taken.count or not held:
                break
        rest = readable
    assert inbound.context.cursor.offset is not None
    return heard


async def wired(spoiler: Spoiler, total: int) -> None:
    """Over a socket, into a running channel; then a good message."""
    async with BotApi() as api:
        clock, ann = ManualClock(), api.person("Ann")
        async with running(api, clock) as run:
            for _ in range(0, total, AT_ONCE * 10):
                api.calls.clear()  # each holds its hundred updates
                for _ in range(AT_ONCE * 10):
                    mine = api.updates.put_raw({})
                    api.updates.pending[-1] = (mine, spoiler.update(mine, ids=False))
                async with asyncio.timeout(60):
                    while len(api.updates.pending) > AT_ONCE * 5:
                        clock.advance(0.5)
                        await asyncio.sleep(0.001)
                        assert not run.task.done(), run.task
            api.private_says(ann, "still there?")
            await run.until_advancing(clock, lambda: not api.updates.pending)
            assert run.all(Message)[-1].text == "still there?"
            assert len(api.updates.confirmed) == total + 1
            assert run.links == [True], "not one disconnect"
            storable(run.seen)


def test_what_is_spoilt_by_hand_first() -> None:
    """The bases themselves are good: each says something, and survives JSON."""
    view = TelegramUpdateContext(channel=NAME, own_id=7_000_000_001, username="reverie_bot")
    updates = parsed(*json.loads(json.dumps(bases())))
    inbound = UpdateReader(view, counting=True)
    taken = inbound.read_batch(updates, datetime.now(UTC))
    taken_too = inbound.read_batch(updates[taken.count :], datetime.now(UTC))
    kinds = Counter(
        type(event).__name__ for event in (*taken.notifications, *taken_too.notifications)
    )
    assert set(kinds) == {
        "Message",
        "MessageEdited",
        "ReactionChanged",
        "Command",
        "MembershipChanged",
    }


def test_some_thousand_spoilt_updates_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _prove(caplog, 5_000, 1_000, seed=1)


@pytest.mark.soak
def test_a_million_spoilt_updates_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _prove(caplog, DIRECT, WIRED, seed=2)


def _prove(caplog: pytest.LogCaptureFixture, straight: int, over_socket: int, *, seed: int) -> None:
    caplog.set_level(logging.WARNING)
    spoiler = Spoiler(seed)
    heard = direct(spoiler, straight)
    asyncio.run(wired(spoiler, over_socket))
    assert heard["Message"] > straight / 10  # or what is spoilt would be spoilt beyond reading
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == []
