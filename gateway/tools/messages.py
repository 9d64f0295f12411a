"""Which message a tool means, and what the platform calls it.

It is named by its handle, `m` and where it stands in the log, or as `last` (what the turn answers) or `mine` (the
agent's newest post). Nobody learns of one that may not be told to them whether it exists.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from agent.tools.schema import ToolCallRefused
from gateway.announced import NOBODY
from gateway.events import (
    Address,
    ConversationId,
    DeliveryReport,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Post,
)
from gateway.hands import ToolContext
from gateway.hearing import ConversationReader, find_reply_to
from gateway.records import MESSAGE_KINDS, PartSendEnded, PlatformAction, PostQueued, Seq, TurnRecord, is_inner
from gateway.store import LogEntry, StoreReader

UNKNOWN_MESSAGE: Final = (
    "There is no message with that handle that may be told of here. Handles like m12 stand in what read_room and "
    "recall show; `last` is what you answer, and `mine` your newest post here."
)
_HANDLE: Final = re.compile(r"m([0-9]{1,18})")
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_MAX_UNREAD: Final = 50
_MAX_RECENT: Final = 20
"""Messages or posts that are looked at for `last` or `mine`."""
_MAX_ACTIONS: Final = 1_000


class ScopeLookup(Protocol):
    """Who knows who can read what is said: `gateway.places.PrivacyCache`."""

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Who may be told of what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTarget:
    """A message, as far as something can be done to it."""

    at: Address
    ids: tuple[MessageId, ...]
    """What the platform calls it, part by part. Empty: it did not say."""
    agent: str | None
    """Which agent posted it ("": a version that did not tell). None: somebody else said it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPost:
    """A post of an agent, as it stands on the platform."""

    seq: Seq
    post: Post
    agent: str
    """As `MessageTarget.agent`."""
    state: str
    """How it was delivered, as `DeliveryReport.state`; empty: not yet."""
    ids: tuple[MessageId, ...]
    """Those that are still there."""
    text: str
    """As it reads now."""
    edited: bool
    is_gone: bool
    """All of it was taken away."""


class MessageFinder:
    """Finds them."""

    def __init__(self, reader: StoreReader, places: ScopeLookup, hearing: ConversationReader) -> None:
        self._reader = reader
        self._privacy = places
        self._conversation = hearing

    async def find(self, message: str, where: ToolContext) -> MessageTarget:
        """What is meant there. Raises Refused if there is none that may be told of, and StoreError."""
        named = message.strip(_QUOTES).lower()
        if named in ("last", "mine"):
            if is_inner(where.at.conversation):
                raise ToolCallRefused(
                    "You are by yourself here: name the message by its handle, as read_room shows it."
                )
            return await (self._find_last(where) if named == "last" else self._find_mine(where))
        match = _HANDLE.fullmatch(named)
        entry = await self._reader.entry(int(match[1])) if match is not None else None
        found = await self._resolve(entry, where) if entry is not None else None
        if found is None:
            raise ToolCallRefused(UNKNOWN_MESSAGE)
        return found

    async def _resolve(self, entry: LogEntry, where: ToolContext) -> MessageTarget | None:
        place = entry.conversation
        here = place == where.at.conversation
        if place is None or not (here or where.visibility.can_see(await self._privacy.scope(place, entry.seq))):
            return None
        if isinstance(entry.fact, MessageEdited):
            first = await self._reader.entry_by_key(f"message:{place}:{entry.fact.message}")
        elif isinstance(entry.fact, TurnRecord):
            first = next((one for one in await self._reader.caused_by(entry.seq) if one.kind == "post"), None)
        else:
            first = entry
        if first is None:
            return None
        if isinstance(first.fact, Message):
            said = await self.current_message(first)
            return MessageTarget(at=said.at, ids=(said.id,), agent=None) if said is not None else None
        ours = await self.find_post(first)
        return _to_target(ours) if ours is not None and not ours.is_gone else None

    async def _find_last(self, where: ToolContext) -> MessageTarget:
        new = await self._reader.unread_entries(where.at.conversation, most=_MAX_UNREAD)
        message = find_reply_to(await self._conversation.read_current(new))
        if message is not None:
            return MessageTarget(at=where.at, ids=(message,), agent=None)
        newest = await self._reader.newest_entries(_MAX_RECENT, kinds=MESSAGE_KINDS, conversation=where.at.conversation)
        for one in reversed(newest):
            if (said := await self.current_message(one)) is not None:
                return MessageTarget(at=where.at, ids=(said.id,), agent=None)
        raise ToolCallRefused("Nothing that you were told was said here.")

    async def _find_mine(self, where: ToolContext) -> MessageTarget:
        for one in reversed(
            await self._reader.newest_entries(_MAX_RECENT, kinds=["post"], conversation=where.at.conversation)
        ):
            ours = await self.find_post(one)
            if ours is not None and ours.agent in ("", where.agent) and ours.state != "failed" and not ours.is_gone:
                return _to_target(ours)
        raise ToolCallRefused("You have posted nothing here lately that is still there.")

    async def current_message(self, one: LogEntry) -> Message | None:
        """As it reads now. None: it was taken away, or was never to be told to the model."""
        assert isinstance(one.fact, Message)
        judged = await self._reader.find_judgement(one.seq)
        if judged is None or judged.fate not in ("due", "context"):
            return None
        newest = await self._reader.latest_message_change(one.fact, one.seq)
        if newest is None:
            return one.fact
        return replace(one.fact, text=newest.fact.text) if isinstance(newest.fact, MessageEdited) else None

    async def find_post(self, queued: LogEntry) -> AgentPost | None:
        """None: no agent posted it, so none knows of it."""
        fact = queued.fact
        if not isinstance(fact, PostQueued) or queued.cause is None or fact.post.private:
            return None
        cause = await self._reader.entry(queued.cause)
        if cause is None or not isinstance(cause.fact, TurnRecord | PlatformAction):
            return None
        place, post = fact.post.to.conversation, fact.post
        ended = await self._reader.entry_by_key(f"delivery:{place}:{post.key}")
        state = ended.fact.state if ended is not None and isinstance(ended.fact, DeliveryReport) else ""
        ids = await self._delivered_ids(queued, post, ended.seq) if ended is not None else []
        acts = await self._completed_actions(place, queued.seq)
        left = [one for one in ids if not await self._is_deleted(one, queued, post, acts)]
        edits = [act for act in acts if act.what == "edit" and act.message in ids]
        return AgentPost(
            seq=queued.seq,
            post=post,
            agent=cause.fact.agent,
            state=state,
            ids=tuple(left),
            text=edits[-1].text if edits else post.text,
            edited=bool(edits),
            is_gone=bool(ids) and not left,
        )

    async def _delivered_ids(self, queued: LogEntry, post: Post, end: int) -> list[MessageId]:
        parts = await self._reader.entries(
            after=queued.seq, before=end, kinds=["part"], conversation=post.to.conversation
        )
        facts = [one.fact for one in parts]
        ended = [
            one for one in facts if isinstance(one, PartSendEnded) and one.post == post.key and one.state == "sent"
        ]
        return [message for one in ended for message in one.ids]

    async def _completed_actions(self, place: ConversationId, after: int) -> Sequence[PlatformAction]:
        """What was done there, as far as it is known to be done."""
        found = await self._reader.newest_entries(_MAX_ACTIONS, after=after, kinds=["acted"], conversation=place)
        return [one.fact for one in found if isinstance(one.fact, PlatformAction) and one.fact.state == "done"]

    async def _is_deleted(
        self, message: MessageId, queued: LogEntry, post: Post, acts: Sequence[PlatformAction]
    ) -> bool:
        if any(act.what == "delete" and act.message == message for act in acts):
            return True
        shown = Message(id=message, at=post.to, sender=NOBODY, text="", sent=queued.at, kind="room")
        newest = await self._reader.latest_message_change(shown, queued.seq)  # by somebody else, as the platform says
        return newest is not None and isinstance(newest.fact, MessageDeleted)


def _to_target(ours: AgentPost) -> MessageTarget:
    if not ours.state:
        raise ToolCallRefused("That is not delivered yet: try again later.")
    return MessageTarget(at=ours.post.to, ids=ours.ids, agent=ours.agent)
