"""Active conversations: what every turn asks of the store, kept in memory as a fold of the log.

One read fills a conversation (`read_conversation`), and each append after that is applied to it.
What cannot be applied exactly drops the conversation, and the tables answer instead.
tests/gateway/store/test_rebuild.py proves that both give the same answers.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.events import ConversationId, Message, MessageDeleted, MessageEdited, Sender
from gateway.core.facts import (
    AMBIENT,
    LOW,
    MESSAGE_KINDS,
    ChannelCardPinned,
    ConversationRewound,
    Judgement,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
)
from gateway.store import queries
from gateway.store.log import Log
from gateway.store.reader import ViewEntries, read_view_entries
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
    """Urgency and entry of everything unread."""
    changed: Seq
    """Position of the newest edit or deletion; 0: there was none."""
    senders: deque[tuple[Seq, Sender]]
    """Positions and senders of the newest messages, oldest first."""
    has_all_senders: bool
    """There is no older message than these."""
    view: ViewEntries | None
    """Entries of its view, until they are asked for or change. None: the tables have them."""
    card: ChannelCardPinned | None
    """The card that is pinned there. None: none is."""

    def unread_entries(self, *, most: int, after: int) -> UnreadEntries:
        """Return what `queries.UNREAD_ENTRIES` finds: the order of choice is described there."""
        rows = sorted(
            [row for row in self.unread.values() if row[1].seq > after], key=lambda row: row[1].seq
        )
        spoken = [
            entry for urgency, entry in rows if urgency > AMBIENT and entry.kind in _SPOKEN_KINDS
        ]
        chosen, reactions_left = spoken[: max(most, 1)], most // 5
        if len(spoken) > most:
            rows = [row for row in rows if row[1].seq <= chosen[-1].seq]
        for urgency, entry in sorted(rows, key=_rank_overheard):
            is_reaction = urgency == LOW and entry.kind == "reacted"
            if len(chosen) >= most:
                break
            if (urgency > AMBIENT and entry.kind in _SPOKEN_KINDS) or (
                is_reaction and not reactions_left
            ):
                continue
            reactions_left -= is_reaction
            chosen.append(entry)
        return UnreadEntries(
            messages=tuple(sorted(chosen, key=lambda entry: entry.seq)),
            omitted=len(rows) - len(chosen),
            upto=rows[-1][1].seq if rows else Seq(0),
            has_changes=bool(rows) and self.changed > rows[0][1].seq,
        )

    def unread_urgency(self) -> int:
        """Return the highest urgency of an unread entry."""
        return max([AMBIENT, *[urgency for urgency, _ in self.unread.values()]])

    def newest_senders(self, *, before: int, most: int) -> list[Sender] | None:
        """Return the senders of the newest messages before this position, oldest first. None: not
        all are kept.
        """
        found = [sender for seq, sender in self.senders if seq < before]
        return found[-most:] if len(found) >= most or self.has_all_senders else None

    def apply(self, conversation: ConversationId, entries: Sequence[LogEntry]) -> bool:
        """Apply the new entries of one append. False: there is too much."""
        for entry in entries:
            if isinstance(entry.fact, TurnRecord) and entry.conversation is not None:
                for upto in [upto for place, upto in entry.fact.looked if place == conversation]:
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
                self._add_sender(entry.seq, fact.sender)
            case MessageEdited() | MessageDeleted():
                self.changed = entry.seq
            case Judgement() if is_made_unread(entry):
                caused = next(one for one in entries if one.seq == entry.cause)
                self.unread[caused.seq] = (fact.urgency, caused)
            case ViewFolded():
                self.view = None
            case ChannelCardPinned():
                self.card = fact
            case TurnRecord() | UnreadDismissed():
                self.view = None
                self.unread = {seq: row for seq, row in self.unread.items() if seq > fact.upto}
            case _:
                pass

    def _add_sender(self, seq: Seq, sender: Sender) -> None:
        if len(self.senders) == MAX_SENDERS:
            self.senders.popleft()
            self.has_all_senders = False
        self.senders.append((seq, sender))


def _rank_overheard(row: tuple[int, LogEntry]) -> tuple[int, int]:
    urgency, entry = row
    if urgency == LOW:
        return 2 if entry.kind == "reacted" else 1, -entry.seq
    return 0 if urgency > LOW else 3, -entry.seq


def is_made_unread(entry: LogEntry) -> bool:
    """Return whether the entry is a judgement that makes its cause unread."""
    fact = entry.fact
    has_place = entry.cause is not None and entry.conversation is not None
    return isinstance(fact, Judgement) and fact.fate in ("due", "context") and has_place


def _are_consequences_known(entries: Sequence[LogEntry]) -> bool:
    """Return whether an append makes nothing unread but its own entries, each in one
    conversation.
    """
    seqs, places = {entry.seq for entry in entries}, dict[int | None, ConversationId | None]()
    return not any(isinstance(entry.fact, ConversationRewound) for entry in entries) and all(
        entry.cause in seqs
        and places.setdefault(entry.cause, entry.conversation) == entry.conversation
        for entry in entries
        if is_made_unread(entry)
    )


class ActiveConversations:
    """The conversations of the last turns; the one whose turn began longest ago is dropped
    first.
    """

    def __init__(self, last: Seq) -> None:
        """`last`: the log's last position."""
        self._last = last
        self._kept: OrderedDict[ConversationId, ActiveConversation] = OrderedDict()
        self._under_read: dict[ConversationId, list[Sequence[LogEntry]]] = {}
        """Appends since the read of a conversation began."""

    def get(self, conversation: ConversationId) -> ActiveConversation | None:
        """Return its state. None: it is not kept."""
        return self._kept.get(conversation)

    def begin_read(self, conversation: ConversationId) -> list[Sequence[LogEntry]] | None:
        """Return what `end_read` needs. None: the conversation is kept, or is being read
        already.
        """
        if conversation in self._kept:
            self._kept.move_to_end(conversation)
        if conversation in self._kept or conversation in self._under_read:
            return None
        return self._under_read.setdefault(conversation, [])

    def end_read(
        self,
        conversation: ConversationId,
        appends: list[Sequence[LogEntry]],
        found: ActiveConversation | None,
    ) -> None:
        """Keep what was read, with what was appended meanwhile. None: the read failed, or there is
        too much.
        """
        if self._under_read.get(conversation) is not appends:
            return  # it was dropped meanwhile
        del self._under_read[conversation]
        if found is None:
            return
        self._kept[conversation] = found
        for entries in appends:
            self._apply(conversation, entries)
        if len(self._kept) > MAX_CONVERSATIONS:
            self._kept.popitem(last=False)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Apply the new entries of one append."""
        is_whole = [one.seq for one in entries] == [
            *range(self._last + 1, self._last + 1 + len(entries))
        ]
        self._last = entries[-1].seq
        if not is_whole or not _are_consequences_known(entries):
            self._kept.clear()
            self._under_read.clear()
            return
        for appends in self._under_read.values():
            appends.append(entries)
        looked = [
            place
            for one in entries
            if isinstance(one.fact, TurnRecord)
            for place, _ in one.fact.looked
        ]
        for conversation in {
            *looked,
            *[one.conversation for one in entries if one.conversation is not None],
        }:
            self._apply(conversation, entries)

    def _apply(self, conversation: ConversationId, entries: Sequence[LogEntry]) -> None:
        kept = self._kept.get(conversation)
        if (
            kept is not None
            and entries[-1].seq > kept.as_of
            and not kept.apply(conversation, entries)
        ):
            del self._kept[conversation]


def read_conversation(log: Log, conversation: ConversationId) -> ActiveConversation | None:
    """Read the state of a conversation, in the connection's thread. None: there is too much."""
    with log.snapshot():
        as_of = log.last_seq()
        unread = log.fetch(queries.UNREAD_ROWS, (conversation, MAX_UNREAD + 1))
        if len(unread) > MAX_UNREAD or any(row[1] is None for row in unread):
            return None
        changed = next(iter(log.fetch(queries.MESSAGE_CHANGES, (conversation, 0, 1))), None)
        first = unread[0][1] if unread else queries.LAST
        view = read_view_entries(log, conversation, as_of)
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
        view=view,
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
        match=None,
        limit=newest,
        newest=True,
    )
    return [LogEntry.from_row(row) for row in log.fetch(sql, params)]
