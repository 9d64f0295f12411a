"""Digests: the input of inner turns, which lists what is pending in the agent's public rooms, grouped and bounded.

Text of places that are not public never enters a digest; it only says that something waits there, to be handled there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.access.place_names import PlaceTitles
from gateway.context.conversation import (
    ConversationLocks,
    ConversationReader,
    CurrentMessage,
    RenderedInput,
    find_reply_to,
    render_lines,
)
from gateway.core.clock import Clock
from gateway.core.events import Address, Alarm, ConversationId, MessageId, SenderId
from gateway.core.facts import (
    LOW,
    URGENT,
    ConversationRewound,
    Seq,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    inner_conversation,
    is_inner,
)
from gateway.core.labels import TRUSTED_LABEL, Label, join
from gateway.store import LogEntry, NewEntry, Store, UnreadEntries
from gateway.stream.routing import PrivacyCache

MAX_ROOMS: Final = 8
"""Rooms in one digest; the others wait for the next."""
MAX_ROOM_LINES: Final = 15
"""Lines of one room: entries that ask for a look first, then the newest of the rest."""
MAX_OWN_LINES: Final = 20
"""Lines about the agent itself."""
NO_SEQ: Final = Seq(0)
MAX_DIGEST_CHARS: Final = 12_000
"""Approximate limit for all rooms together: no further room is begun above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomDigest:
    """Part of a digest that shows one room, as that room's own view would have it."""

    rendered: RenderedInput
    upto: Seq
    omitted: int
    reply_to: MessageId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """New input of an inner turn."""

    text: str
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Sender of each entry of `covers`."""
    omitted: int = 0
    upto: Seq = NO_SEQ
    """Newest unread entry of the inner conversation itself; 0: there was none."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    label: Label = TRUSTED_LABEL
    """Trust label of everyone whose words it holds."""


class DigestBuilder:
    """Builds an agent's digests and keeps the newest one, which tools act upon."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        places: PrivacyCache,
        reader: ConversationReader,
        locks: ConversationLocks,
        is_own: Callable[[ConversationId], bool],
    ) -> None:
        """`is_own`: a conversation is this agent's."""
        self._inner = inner_conversation(agent)
        self._store = store
        self._clock = clock
        self._places = places
        self._reader = reader
        self._locks = locks
        self._is_own = is_own
        self._private_count = 0
        """Places that are not public where something waits, as of the last look."""
        self.room_digests: dict[ConversationId, RoomDigest] = {}
        """Rooms of the newest digest that have not been handled since."""
        self.room_ids: frozenset[ConversationId] = frozenset()
        """All rooms of the newest digest."""
        store.subscribe(self._on_appended, TurnRecord, UnreadDismissed, ViewFolded, ConversationRewound)

    def forget(self, conversation: ConversationId) -> None:
        """Remove a place from the newest digest, because it changed."""
        self.room_digests.pop(conversation, None)

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is not None:
                self.forget(entry.conversation)

    async def pending_urgency(self) -> int:
        """Return the highest urgency of the entries that a digest would hold now."""
        own = dict(await self._store.due_conversations(LOW)).get(self._inner, 0)
        return max([own, *[urgency for _, urgency in await self._pending()]])

    async def build(self, *, plain: bool) -> Digest | None:
        """Return the digest of what is pending now; None: nothing is. `plain`: the model needs plain prompts."""
        pending = await self._pending()
        own = await self._store.unread_entries(self._inner, most=MAX_OWN_LINES)
        self.room_digests = {}
        await self._places.titles.load([place for place, _ in pending])
        parts, covers, senders = [], list[Seq](), list[SenderId]()
        omitted, label = 0, TRUSTED_LABEL
        if own.messages:
            rendered, _, label = await self._render_unread(own, plain=plain)
            parts.append(f"## You\n{rendered.text}")
            covers += rendered.covers
            senders += rendered.senders
            omitted += own.omitted
        for place, _ in pending:
            if len(self.room_digests) == MAX_ROOMS or sum(map(len, parts)) > MAX_DIGEST_CHARS:
                break
            unread = await self._store.unread_entries(place, most=MAX_ROOM_LINES)
            if not unread.messages or any(isinstance(one.fact, Alarm) for one in unread.messages):
                continue  # a reminder is rendered in the place where it was set
            room, room_label = await self._render_room(unread, plain=plain)
            if not room.rendered.covers:
                await self._mark_handled(place, room.upto)
                continue
            self.room_digests[place] = room
            parts.append(f"## {self._places.titles.trusted_label(place)}\n{room.rendered.text}")
            covers += room.rendered.covers
            senders += room.rendered.senders
            omitted += room.omitted
            label |= room_label
        self.room_ids = frozenset(self.room_digests)
        if not parts:
            return None
        more = len(pending) - len(self.room_digests)
        if more > 0:
            parts.append(f"({more} more rooms wait)" if more > 1 else "(one more room waits)")
        if elsewhere := self._private_count:
            private_places = (
                f"{elsewhere} places that are not public" if elsewhere > 1 else "a place that is not public"
            )
            parts.append(f"(something waits in {private_places}; it is looked at there)")
        return Digest(
            text="\n\n".join(parts),
            covers=tuple(covers),
            senders=tuple(senders),
            omitted=omitted,
            upto=own.upto,
            looked=tuple((place, room.upto) for place, room in self.room_digests.items()),
            label=label,
        )

    async def _mark_handled(self, place: ConversationId, upto: Seq) -> None:
        """Record a place as handled, because all its unread entries were deleted."""
        handled = UnreadDismissed(turn=TurnId(""), upto=upto)
        await self._store.append([NewEntry(fact=handled, at=self._clock.now(), conversation=place)])

    async def _pending(self) -> list[tuple[ConversationId, int]]:
        """Return this agent's public rooms with pending entries that are not urgent, the most urgent first."""
        due = [
            (place, urgency)
            for place, urgency in await self._store.due_conversations(LOW)
            if urgency < URGENT and not is_inner(place) and self._is_own(place) and not self._locks.is_busy(place)
        ]
        public = [(place, urgency) for place, urgency in due if await self._places.is_public(place)]
        self._private_count = len(due) - len(public)
        return sorted(public, key=lambda one: -one[1])

    async def _render_room(self, unread: UnreadEntries, *, plain: bool) -> tuple[RoomDigest, Label]:
        rendered, current, label = await self._render_unread(unread, plain=plain)
        omitted = unread.omitted + len(unread.messages) - len(rendered.covers)
        return RoomDigest(rendered=rendered, upto=unread.upto, omitted=omitted, reply_to=find_reply_to(current)), label

    async def _render_unread(
        self, unread: UnreadEntries, *, plain: bool
    ) -> tuple[RenderedInput, tuple[CurrentMessage, ...], Label]:
        current = await self._reader.read_current(unread)
        lines = await self._reader.render(current, sees=False)
        label = join(one.label for one in lines)
        return render_lines(lines, omitted=unread.omitted, plain=plain), current, label


def format_reachable_places(places: list[Address], titles: PlaceTitles) -> str:
    """Return a line with the places that the agent may write to by itself. Empty: there are none.

    Titles are people's words, so this is rendered apart from the gateway's own text.
    """
    return (
        "You can write to: " + ", ".join(titles.trusted_label(place.conversation) for place in places) if places else ""
    )
