"""Digests: the input of inner turns, which lists what is pending in the agent's rooms, grouped and
bounded.

What waits in a direct chat or a private room is handled there and never enters a digest. The label
of a digest names the readers of all rooms in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.context.conversation import (
    ConversationLocks,
    ConversationReader,
    RenderedInput,
    render_lines,
)
from gateway.context.requesters import label_alarm
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    MembershipChanged,
    Message,
    ReactionChanged,
    Sender,
    SenderId,
    TaskFinished,
)
from gateway.core.facts import (
    LOW,
    URGENT,
    ConversationRewound,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    inner_conversation,
    is_inner,
)
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL, Label, join, readers_of
from gateway.store import LogEntry, NewEntry, UnreadEntries
from gateway.stream.attention import describe_reason, is_talk_alone
from gateway.stream.handle import GatewayHandle
from gateway.stream.inbox import ConversationInbox
from gateway.stream.routing import find_agent

MAX_ROOMS: Final = 8
"""Rooms in one digest; the others wait for the next."""
MAX_ROOM_LINES: Final = 15
"""Lines of one room: entries that ask for a look first, then the newest of the rest."""
MAX_DIGEST_CHARS: Final = 12_000
"""Approximate limit for all rooms together: no further room is begun above it."""


@frozen
class Digest:
    """New input of an inner turn."""

    text: str
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    omitted: int = 0
    upto: Seq = Seq(0)
    """Newest unread entry of the inner conversation itself; 0: there was none."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    label: Label = TRUSTED_LABEL
    """Trust label of everyone whose words it holds, for the readers of all its rooms."""


class DigestBuilder:
    """Builds an agent's digests, and knows the rooms of the newest one."""

    def __init__(
        self,
        agent: str,
        gateway: GatewayHandle,
        *,
        reader: ConversationReader,
        locks: ConversationLocks,
        inbox: ConversationInbox,
    ) -> None:
        self._agent, self._inner = agent, inner_conversation(agent)
        self._store, self._clock, self._places = gateway.store, gateway.clock, gateway.places
        self._agents = tuple(one.id for one in gateway.live.settings.agents)
        self._people = gateway.people
        self._reader, self.locks, self._inbox = reader, locks, inbox
        self._unsubscribe: Callable[[], None] | None = None
        self.rooms = set[ConversationId]()
        """Rooms of the newest digest that have not been handled or attended since."""
        self.shown: Mapping[ConversationId, tuple[Sender, ...]] = {}
        """All rooms of the newest digest, with the people of its lines."""
        self.texts: Mapping[ConversationId, str] = {}
        """The lines of each of these rooms."""

    def forget(self, conversation: ConversationId) -> None:
        """Remove a place from the newest digest, because it changed."""
        self.rooms.discard(conversation)
        if not self.rooms and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is not None:
                self.forget(entry.conversation)

    def _show(self, looked: Iterable[ConversationId]) -> None:
        self.rooms = set(looked)
        if self.rooms and self._unsubscribe is None:
            changes = TurnRecord, UnreadDismissed, ViewFolded, ConversationRewound
            self._unsubscribe = self._store.subscribe(self._on_appended, *changes)

    async def pending_urgency(self) -> int:
        """Return the highest urgency of the entries that a digest would hold now."""
        own = dict(await self._store.due_conversations(LOW)).get(self._inner, 0)
        return max([own, *[urgency for _, urgency in await self._pending()]])

    async def build(self, *, plain: bool, plans: Sequence[tuple[str, Label]] = ()) -> Digest | None:
        """Return the digest of what is pending now; None: nothing is. `plain`: the model needs
        plain prompts. `plans`: lines about what the agent means to do, each with its label.
        """
        pending = await self._pending()
        own = await self._store.unread_entries(self._inner, most=20)
        await self._places.titles.load([place for place, _ in pending])
        parts, covers, senders = [], list[Seq](), list[SenderId]()
        looked, omitted, label = dict[ConversationId, Seq](), 0, TRUSTED_LABEL
        shown, texts = dict[ConversationId, tuple[Sender, ...]](), dict[ConversationId, str]()
        if own.messages:
            rendered, label = await self._render_unread(own, plain=plain)
            label |= join(
                [
                    await label_alarm(self._store, self._people, one.fact, self._inner)
                    for one in own.messages
                    if isinstance(one.fact, Alarm)
                ]
            )
            parts.append(f"## You\n{rendered.text}")
            covers += rendered.covers
            senders += rendered.senders
            omitted += own.omitted
        for place, _ in pending:
            if len(looked) == MAX_ROOMS or sum(map(len, parts)) > MAX_DIGEST_CHARS:
                break
            unread = await self._store.unread_entries(place, most=MAX_ROOM_LINES)
            if not unread.messages or any(
                isinstance(one.fact, Alarm | TaskFinished) for one in unread.messages
            ):
                continue  # a turn of its own is due there
            rendered, room_label = await self._render_unread(unread, plain=plain)
            if not rendered.covers:
                handled = UnreadDismissed(upto=unread.upto)  # all that was unread there was deleted
                entry = NewEntry(fact=handled, at=self._clock.now(), conversation=place)
                await self._store.append([entry])
                continue
            looked[place] = unread.upto
            shown[place], texts[place] = find_senders(unread.messages), rendered.text
            rules = [one.rule for one in await self._store.due_reasons(place)][:2]
            why = ", ".join(dict.fromkeys(map(describe_reason, rules)))
            parts.append(f"## {self._places.titles.heading(place)}\n({why})\n{rendered.text}")
            covers += rendered.covers
            senders += rendered.senders
            omitted += unread.omitted + len(unread.messages) - len(rendered.covers)
            label |= room_label | Label(readers=readers_of(await self._places.scope(place)))
        if not parts:
            return None
        if plans:
            head = "You intend:" if own.messages else "## You\nYou intend:"
            texts_of_plans, labels = zip(*plans[:10], strict=True)
            parts.insert(1 if own.messages else 0, "\n- ".join([head, *texts_of_plans]))
            label |= join(labels)
        self.shown, self.texts = shown, texts
        self._show(looked)
        more = len(pending) - len(looked)
        if more > 0:
            parts.append(f"({more} more rooms wait)" if more > 1 else "(one more room waits)")
        return Digest(
            text="\n\n".join(parts),
            covers=tuple(covers),
            senders=tuple(senders),
            omitted=omitted,
            upto=own.upto,
            looked=tuple(looked.items()),
            label=label,
        )

    async def _pending(self) -> list[tuple[ConversationId, int]]:
        """Return this agent's rooms with pending entries that are not urgent, the most urgent
        first.
        """
        due = [
            (place, urgency)
            for place, urgency in await self._store.due_conversations(LOW)
            if urgency < URGENT
            and not is_inner(place)
            and self._agent == find_agent(self._places.bindings, Address.parse(place), self._agents)
            and not self.locks.is_busy(place)
        ]
        rooms = []
        for place, urgency in due:
            goes_on = self._inbox.is_talking(place) and is_talk_alone(
                await self._store.due_reasons(place)
            )
            if not goes_on and not await self._places.is_private(place):
                rooms.append((place, urgency))
        return sorted(rooms, key=lambda one: -one[1])

    async def _render_unread(
        self, unread: UnreadEntries, *, plain: bool
    ) -> tuple[RenderedInput, Label]:
        lines = await self._reader.render(await self._reader.read_current(unread), sees=False)
        label = join(one.label for one in lines)
        return render_lines(lines, omitted=unread.omitted, plain=plain), label


def find_senders(entries: Sequence[LogEntry]) -> tuple[Sender, ...]:
    """Return the people of unread lines, oldest first; whoever has several lines several times."""
    return tuple(
        one.fact.sender
        for one in entries
        if isinstance(one.fact, Message | MembershipChanged | ReactionChanged)
    )
