"""Small facts for the store's tests."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from gateway.clock import ManualClock
from gateway.events import (
    Address,
    ChannelName,
    ConversationId,
    Delivery,
    EventId,
    Message,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
    Usage,
)
from gateway.records import Judged, Seq, TurnEnded, TurnId, key_of
from gateway.store import Entry, Store

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
Result = TypeVar("Result")
Urgency = Literal[0, 1, 2, 3]
Fate = Literal["due", "context", "refused", "noted"]


def run(story: Coroutine[Any, Any, Result]) -> Result:
    """The story in a loop of its own, or a failure if it hangs."""

    async def bounded() -> Result:
        async with asyncio.timeout(60):
            return await story

    return asyncio.run(bounded())


async def opened(path: Path) -> Store:
    return await Store.open(path, ManualClock())


def place(room: str = "#a") -> Address:
    return Address(channel=ChannelName("irc.test"), room=RoomId(room))


def said(number: int, text: str = "", room: str = "#a", kind: Literal["room", "mention"] = "room") -> Entry:
    fact = Message(
        id=MessageId(str(number)),
        at=place(room),
        sender=Sender(id=SenderId("u"), name="Ulla"),
        text=text or f"line {number}",
        sent=NOW,
        kind=kind,
    )
    return Entry(fact=fact, at=NOW, conversation=fact.at.conversation, key=key_of(fact))


def judged(cause: Entry, urgency: Urgency = 3, fate: Fate = "due") -> Entry:
    fact = Judged(type="irc.test.room.#a", urgency=urgency, fate=fate, rule="default", role="guest")
    return Entry(fact=fact, at=NOW, conversation=cause.conversation, cause=cause)


def heard(number: int, text: str = "", room: str = "#a", urgency: Urgency = 3) -> list[Entry]:
    """A message with its judgement."""
    message = said(number, text, room)
    return [message, judged(message, urgency)]


def turn(conversation: ConversationId, *covers: int, upto: int = 0, text: str = "answer") -> Entry:
    fact = TurnEnded(
        turn=TurnId("t"),
        covers=tuple(Seq(seq) for seq in covers),
        omitted=0,
        heard="",
        upto=Seq(upto or max(covers, default=0)),
        outcome="replied",
        text=text,
        reason="",
        model="scripted",
        usage=Usage(),
        requests=1,
        autonomous=False,
    )
    return Entry(fact=fact, at=NOW, conversation=conversation)


def post(key: str, text: str = "hello", room: str = "#a") -> Post:
    return Post(key=PostKey(key), to=place(room), text=text)


def delivered(key: str, state: Literal["sent", "uncertain", "failed"] = "sent") -> Entry:
    fact = Delivery(id=EventId(key), at=place(), post=PostKey(key), state=state, reason="", sent=NOW)
    return Entry(fact=fact, at=NOW, conversation=place().conversation, key=key_of(fact))
