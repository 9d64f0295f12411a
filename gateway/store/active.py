"""Active conversations: what every turn asks of the store, kept in memory as a fold of the log.

One read fills a conversation (`read_conversation`), and each append after that is applied to it.
What cannot be applied exactly drops the conversation, and the tables answer instead.
tests/gateway/store/test_rebuild.py proves that both give the same answers.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.events import ConversationId, Message, MessageDeleted, MessageEdited, Sender
from gateway.core.facts import (
    AMBIENT,
    LOW,
    MESSAGE_KINDS,
    ChannelCardPinned,
    ConversationRewound,
    Fact,
    Judgement,
    Seq,
    TurnRecord,
    UnreadDismissed,
)
from gateway.store import queries
from gateway.store.log import Log
from gateway.store.types import LogEntry, UnreadEntries

MAX_CONVERSATIONS: Final = 32
MAX_UNREAD: Final = 200
"""Unread entries of one conversation: more are a raid, or a room where nobody speaks to the agent.
An entry takes about 1.5 kB: all together at most 10 MB, or 30 MB of the longest messages."""
MAX_SENDERS: Final = 300
"""Newest messages of one conversation whose senders are kept."""
READ_SENDERS: Final = 50
"""Of these, as many are read that are older than everything unread."""
_SPOKEN_KINDS: Final = frozenset({"direct", "mention", "reply", "alarm"})


@dataclass(slots=True, kw_only=True)
class ActiveConversation:
    """State of one conversation."""

    as_of: Seq
    """The log's last position when it was read."""
    unread: dict[Seq, tuple[int, LogEntry]]
    changed: Seq
    """Position of the newest edit or deletion; 0: there was none."""
    senders: deque[tuple[Seq, Sender]]
    """Positions and senders of the newest messages, oldest first."""
    has_all_senders: bool
    """There is no older message than these."""
    card: ChannelCardPinned | None
    """The card that is pinned there. None: none is."""

    def unread_entries(self, *, most: int, after: int) -> UnreadEntries:
        """Return what `queries.UNREAD_ENTRIES` finds: the order of choice is described there."""
        rows = {seq: self.unread[seq] for seq in sorted(self.unread) if seq > after}
        spoken = [
            seq
            for seq, (urgency, entry) in rows.items()
            if urgency > AMBIENT and entry.kind in _SPOKEN_KINDS
        ]
        chosen, reactions_left = spoken[: max(most, 1)], most // 5
        if len(spoken) > most:
            rows = {seq: row for seq, row in rows.items() if seq <= chosen[-1]}
        overheard = [rows[seq] for seq in rows.keys() - spoken]
        for urgency, entry in sorted(overheard, key=_rank_overheard):
            is_reaction = urgency == LOW and entry.kind == "reacted"
            if len(chosen) >= most:
                break
            if is_reaction and not reactions_left:
                continue
            reactions_left -= is_reaction
            chosen.append(entry.seq)
        return UnreadEntries(
            messages=tuple([rows[seq][1] for seq in sorted(chosen)]),
            omitted=len(rows) - len(chosen),
            upto=max(rows, default=Seq(0)),
            has_changes=bool(rows) and self.changed > min(rows),
        )

    def unread_urgency(self) -> int:
        """Return the highest urgency of an unread entry."""
        return max([AMBIENT, *[urgency for urgency, _ in self.unread.values()]])

    def newest_senders(self, *, before: int, most: int) -> list[Sender] | None:
        """Return the senders of the newest messages before this position, oldest first. None: not
        all are kept.
        """
        older = (sender for seq, sender in reversed(self.senders) if seq < before)
        found = [*itertools.islice(older, most)]
        return found[::-1] if len(found) == most or self.has_all_senders else None

    def apply(self, conversation: ConversationId, entries: Sequence[LogEntry]) -> bool:
        """Apply the new entries of one append, unless they were read. False: there is too much."""
        if entries[-1].seq <= self.as_of:
            return True
        for entry in entries:
            fact = entry.fact
            if isinstance(fact, TurnRecord) and entry.conversation is not None:
                for upto in [upto for place, upto in fact.looked if place == conversation]:
                    self.unread |= {
                        seq: (AMBIENT, row[1]) for seq, row in self.unread.items() if seq <= upto
                    }
            if entry.conversation == conversation:
                self._apply_entry(entry, entries)
        return len(self.unread) <= MAX_UNREAD

    def _apply_entry(self, entry: LogEntry, entries: Sequence[LogEntry]) -> None:
        fact = entry.fact
        match fact:
            case Message():
                if len(self.senders) == MAX_SENDERS:
                    self.senders.popleft()
                    self.has_all_senders = False
                self.senders.append((entry.seq, fact.sender))
            case MessageEdited() | MessageDeleted():
                self.changed = entry.seq
            case Judgement() if _is_made_unread(entry):
                caused = next(one for one in entries if one.seq == entry.cause)
                self.unread[caused.seq] = (fact.urgency, caused)
            case ChannelCardPinned():
                self.card = fact
            case TurnRecord() | UnreadDismissed():
                self.unread = {seq: row for seq, row in self.unread.items() if seq > fact.upto}
            case _:
                pass


def _rank_overheard(row: tuple[int, LogEntry]) -> tuple[int, int]:
    urgency, entry = row
    if urgency == LOW:
        return 2 if entry.kind == "reacted" else 1, -entry.seq
    return 0 if urgency > LOW else 3, -entry.seq


def _is_made_unread(entry: LogEntry) -> bool:
    fact = entry.fact
    has_place = entry.cause is not None and entry.conversation is not None
    return isinstance(fact, Judgement) and fact.fate in ("due", "context") and has_place


class ActiveConversations:
    """The conversations of the last turns; the one whose turn began longest ago is dropped
    first.
    """

    def __init__(self, last: Seq) -> None:
        """`last`: the log's last position."""
        self._last = last
        self.kept: OrderedDict[ConversationId, ActiveConversation] = OrderedDict()
        self._under_read: dict[ConversationId, list[Sequence[LogEntry]]] = {}
        """Appends since the read of a conversation began."""

    async def activate(
        self,
        conversation: ConversationId,
        read: Callable[[], Awaitable[ActiveConversation | None]],
    ) -> None:
        """Keep what is read of a conversation, with what is appended meanwhile, unless it is kept
        or being read already. `read`: as `read_conversation`; what it raises goes through.
        """
        if conversation in self.kept:
            self.kept.move_to_end(conversation)
        if conversation in self.kept or conversation in self._under_read:
            return
        found, appends = None, self._under_read.setdefault(conversation, [])
        try:
            found = await read()
        finally:
            if self._under_read.get(conversation) is appends:  # else it was dropped meanwhile
                del self._under_read[conversation]
                if found is not None and all(found.apply(conversation, one) for one in appends):
                    self.kept[conversation] = found
                    if len(self.kept) > MAX_CONVERSATIONS:
                        self.kept.popitem(last=False)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Apply the new entries of one append. If entries are left out of it, or it makes others
        unread than its own, or one of them twice, all that is kept is dropped.
        """
        first, self._last = self._last + 1, entries[-1].seq
        seqs = [entry.seq for entry in entries]
        caused = [entry for entry in entries if entry.cause is not None]
        made_unread = [entry.cause for entry in caused if _is_made_unread(entry)]
        places = {entry.conversation for entry in entries}
        is_rewound = False
        for entry in entries:
            if isinstance(entry.fact, TurnRecord):
                places.update([place for place, _ in entry.fact.looked])
            is_rewound = is_rewound or isinstance(entry.fact, ConversationRewound)
        if (
            is_rewound
            or seqs != [*range(first, first + len(entries))]
            or len(set(made_unread)) < len(made_unread)
            or not set(seqs).issuperset(made_unread)
        ):
            self.kept.clear()
            self._under_read.clear()
            return
        for appends in self._under_read.values():
            appends.append(entries)
        for conversation in self.kept.keys() & places:
            if not self.kept[conversation].apply(conversation, entries):
                del self.kept[conversation]


def read_conversation(log: Log, conversation: ConversationId) -> ActiveConversation | None:
    """Read the state of a conversation, in the connection's thread. None: there is too much."""
    with log.snapshot():
        as_of = log.last_seq()
        unread = log.fetch(queries.UNREAD_ROWS, (conversation, MAX_UNREAD + 1))
        if len(unread) > MAX_UNREAD or any(row[1] is None for row in unread):
            return None
        changed = next(iter(log.fetch(queries.MESSAGE_CHANGES, (conversation, 0, 1))), None)
        first = unread[0][1] if unread else queries.LAST
        carded = next(iter(log.fetch(queries.PINNED_CARD, (conversation,))), None)
        older = _read_messages(log, conversation, before=first, newest=READ_SENDERS)
        newer = _read_messages(
            log, conversation, after=first - 1, newest=MAX_SENDERS - READ_SENDERS + 1
        )
    if len(older) + len(newer) > MAX_SENDERS:
        return None
    card = LogEntry.from_row(carded).fact if carded is not None else None
    messages = [
        (one.seq, one.fact.sender) for one in (*older, *newer) if isinstance(one.fact, Message)
    ]
    return ActiveConversation(
        as_of=as_of,
        unread={Seq(row[1]): (row[0], LogEntry.from_row(row[1:])) for row in unread},
        changed=Seq(changed[0] if changed is not None else 0),
        senders=deque(messages),
        has_all_senders=len(older) < READ_SENDERS,
        card=card if isinstance(card, ChannelCardPinned) else None,
    )


def _read_messages(
    log: Log,
    conversation: ConversationId,
    *,
    newest: int,
    after: int = 0,
    before: int | None = None,
) -> list[LogEntry]:
    sql, params = queries.browse(
        log.dialect,
        after=after,
        before=before,
        kinds=MESSAGE_KINDS,
        conversation=conversation,
        limit=newest,
        newest=True,
    )
    return [LogEntry.from_row(row) for row in log.fetch(sql, params)]


def judged_events(entries: Iterable[LogEntry]) -> Iterator[tuple[Fact, LogEntry, Judgement]]:
    """Yield the events of one append that were judged in it, each with the entry of its judgement,
    and that itself.
    """
    events = dict[Seq, Fact]()
    for entry in entries:
        if isinstance(entry.fact, Judgement) and entry.cause in events:
            yield events[entry.cause], entry, entry.fact
        events[entry.seq] = entry.fact
