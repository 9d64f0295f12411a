"""What the inner conversation is told: what is pending in the agent's public rooms, grouped and bounded.

Text of other places never comes here, only that something waits: what is pending there is dealt with there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from gateway.context.conversation import ConversationReader, CurrentMessage, RenderedInput, find_reply_to, render_lines
from gateway.core.clock import Clock
from gateway.core.events import Address, Alarm, ConversationId, MessageId, SenderId
from gateway.core.facts import LOW, URGENT, Seq, TurnId, UnreadDismissed, inner_conversation, is_inner
from gateway.core.trust import TRUSTED_LABEL, TrustLabel
from gateway.store import NewEntry, Store, UnreadEntries
from gateway.stream.place_names import PlaceTitles
from gateway.stream.routing import PrivacyCache

MAX_ROOMS: Final = 8
"""Told in one digest; the others wait for the next."""
MAX_ROOM_LINES: Final = 15
"""Of one room: what asks for a look first, then the newest of what was overheard."""
MAX_OWN_LINES: Final = 20
"""Of what concerns the agent itself."""
NO_SEQ: Final = Seq(0)
MAX_DIGEST_CHARS: Final = 12_000
"""Of all rooms together, about: no room is begun beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomDigest:
    """What a digest showed of one room, as that room's own view would have it."""

    rendered: RenderedInput
    upto: Seq
    omitted: int
    reply_to: MessageId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What an inner turn is told as new."""

    text: str
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`."""
    omitted: int = 0
    upto: Seq = NO_SEQ
    """Of the inner conversation's own unread; 0: there was none."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    label: TrustLabel = TRUSTED_LABEL
    """Of everybody whose words it tells."""


class DigestBuilder:
    """Makes an agent's digests, and remembers the last: tools act upon it."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        places: PrivacyCache,
        hearing: ConversationReader,
        plain: Callable[[], bool],
        mine: Callable[[ConversationId], bool],
        busy: Callable[[ConversationId], bool],
    ) -> None:
        """`plain`: for a very small model. `mine`: whether it is this agent's. `busy`: whether a turn runs there."""
        self._inner = inner_conversation(agent)
        self._store = store
        self._clock = clock
        self._places = places
        self._reader = hearing
        self._is_small_model = plain
        self._is_own = mine
        self._is_busy = busy
        self._private_count = 0
        """Places that are not public, where something waits: as of the last look."""
        self.room_digests: dict[ConversationId, RoomDigest] = {}
        """By the newest digest, without what was dealt with since."""
        self.room_ids: frozenset[ConversationId] = frozenset()
        """The rooms that the newest digest told of."""

    def forget(self, conversation: ConversationId) -> None:
        """What the newest digest told of that place does not hold any more."""
        self.room_digests.pop(conversation, None)

    async def pending_urgency(self) -> int:
        """The highest urgency of what a digest would tell now."""
        own = dict(await self._store.due_conversations(LOW)).get(self._inner, 0)
        return max([own, *[urgency for _, urgency in await self._pending()]])

    async def build(self) -> Digest | None:
        """What is pending now; None: nothing is."""
        pending = await self._pending()
        own = await self._store.unread_entries(self._inner, most=MAX_OWN_LINES)
        self.room_digests = {}
        await self._places.titles.load([place for place, _ in pending])
        parts, covers, senders = [], list[Seq](), list[SenderId]()
        omitted, label = 0, TRUSTED_LABEL
        if own.messages:
            told, _, label = await self._render_unread(own)
            parts.append(f"## You\n{told.text}")
            covers += told.covers
            senders += told.senders
            omitted += own.omitted
        for place, _ in pending:
            if len(self.room_digests) == MAX_ROOMS or sum(map(len, parts)) > MAX_DIGEST_CHARS:
                break
            unread = await self._store.unread_entries(place, most=MAX_ROOM_LINES)
            if not unread.messages or any(isinstance(one.fact, Alarm) for one in unread.messages):
                continue  # a reminder is told where it was asked for
            shown, whose = await self._render_room(unread)
            if not shown.rendered.covers:
                await self._mark_handled(place, shown.upto)
                continue
            self.room_digests[place] = shown
            parts.append(f"## {self._places.titles.label(place)}\n{shown.rendered.text}")
            covers += shown.rendered.covers
            senders += shown.rendered.senders
            omitted += shown.omitted
            label |= whose
        self.room_ids = frozenset(self.room_digests)
        if not parts:
            return None
        more = len(pending) - len(self.room_digests)
        if more > 0:
            parts.append(f"({more} more rooms wait)" if more > 1 else "(one more room waits)")
        if elsewhere := self._private_count:
            where = f"{elsewhere} places that are not public" if elsewhere > 1 else "a place that is not public"
            parts.append(f"(something waits in {where}; it is looked at there)")
        return Digest(
            text="\n\n".join(parts),
            covers=tuple(covers),
            senders=tuple(senders),
            omitted=omitted,
            upto=own.upto,
            looked=tuple((place, shown.upto) for place, shown in self.room_digests.items()),
            label=label,
        )

    async def _mark_handled(self, place: ConversationId, upto: Seq) -> None:
        """All of it was deleted meanwhile: there is nothing to look at."""
        handled = UnreadDismissed(turn=TurnId(""), upto=upto)
        await self._store.append([NewEntry(fact=handled, at=self._clock.now(), conversation=place)])

    async def _pending(self) -> list[tuple[ConversationId, int]]:
        """Public rooms of this agent with something to look at and nothing urgent, the most urgent first."""
        due = [
            (place, urgency)
            for place, urgency in await self._store.due_conversations(LOW)
            if urgency < URGENT and not is_inner(place) and self._is_own(place) and not self._is_busy(place)
        ]
        public = [(place, urgency) for place, urgency in due if await self._places.is_public(place)]
        self._private_count = len(due) - len(public)
        return sorted(public, key=lambda one: -one[1])

    async def _render_room(self, unread: UnreadEntries) -> tuple[RoomDigest, TrustLabel]:
        told, standing, label = await self._render_unread(unread)
        omitted = unread.omitted + len(unread.messages) - len(told.covers)
        return RoomDigest(rendered=told, upto=unread.upto, omitted=omitted, reply_to=find_reply_to(standing)), label

    async def _render_unread(
        self, unread: UnreadEntries
    ) -> tuple[RenderedInput, tuple[CurrentMessage, ...], TrustLabel]:
        standing = await self._reader.read_current(unread)
        lines = await self._reader.render(standing, sees=False)
        label = reduce(or_, [one.label for one in lines], TRUSTED_LABEL)
        return render_lines(lines, omitted=unread.omitted, plain=self._is_small_model()), standing, label


def format_reachable_places(places: list[Address], titles: PlaceTitles) -> str:
    """Where the agent may speak by itself: titles are people's words, so it is told aside. Empty: nowhere."""
    return "You can write to: " + ", ".join(titles.label(place.conversation) for place in places) if places else ""
