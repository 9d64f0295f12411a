"""History views: what later turns of a conversation see of the earlier ones.

A view is a pure function of the turn records and of the newest fold (`HistoryView.build`).
`HistoryStore` reads views from the log and caches those of the last active conversations; the cache
is no second record. `find_write_of_cut_off_turn` and `was_begun_by_cut_off_turn` find what a turn
did before its process ended, so that the repeated turn does not do it twice.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple, Self

from agent.prompt import NOTHING_NEW, PromptTurn, estimate_turn_size
from agent.tokens.counter import estimate_media_tokens, estimate_tokens
from agent.tools import find_next_step
from agent.view import (
    TurnForm,
    TurnSizes,
    measure_turn,
    project_turns,
    turn_form,
)
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, ToolImage
from gateway.core.facts import (
    ConversationRewound,
    Fact,
    Seq,
    ToolStarted,
    TurnId,
    TurnRecord,
    ViewFolded,
    is_inner,
)
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL, Label, join
from gateway.core.ratelimit import LruDict
from gateway.store import LogEntry, NewEntry, Store, StoreReader
from gateway.stream.media import MediaStore

RECENT_ENTRIES: Final = 20
"""Newest entries that are searched: more than one turn writes."""

BILLED_TURNS = 8
"""Newest turns whose billed prompt sizes are compared with the estimates."""
MIN_BILLED_RATIO, MAX_BILLED_RATIO = 0.5, 3.0
"""Limits of billed to estimated tokens. A smaller ratio does not count the whole prompt: some
servers report only what was not cached."""
_NEVER_FOLDED = Seq(0)

MAX_CACHED_VIEWS = 32
"""A view takes some hundred kilobytes where a large window is full."""


FAULTY_GAP: Final = "[What stood here is left out: the model failed at it.]"


@frozen(slots=False)
class HistoryTurn:
    """Earlier turn, as later turns see it."""

    seq: Seq
    raw: PromptTurn
    """Recorded form, without images: these are loaded when they are needed."""
    exchange: PromptTurn
    """Rendered form, as `form` says."""
    form: TurnForm = TurnForm.WHOLE
    record: TurnRecord
    at: datetime
    """Time of its end."""

    @classmethod
    def from_record(
        cls, seq: Seq, ended: Fact, at: datetime, *, simple: bool = False, inner: bool = False
    ) -> Self:
        """Return the turn that a record describes. `simple`: the model takes no tools. `inner`: it
        is of the inner conversation, which reads what its turns noted.
        """
        assert isinstance(ended, TurnRecord)
        if (
            ended.failure == "conversation"
        ):  # the provider may fail at it again, whatever is asked next
            ended = replace(ended, heard=FAULTY_GAP, steps=(), media=())
        # The message about a failure is the gateway's, not the agent's.
        reply = "" if ended.outcome == "failed" else ended.text or (ended.note if inner else "")
        exchange = PromptTurn(
            seq=seq, input_text=ended.heard, reply=reply, steps=ended.steps, without_tools=simple
        )
        return cls(seq=seq, raw=exchange, exchange=exchange, record=ended, at=at)

    @property
    def is_addressed(self) -> bool:
        """True if a message was addressed to the agent."""
        return not self.record.autonomous and self.record.heard not in ("", NOTHING_NEW)

    def with_form(self, exchange: PromptTurn, form: TurnForm) -> Self:
        """Return this turn in another form."""
        if (
            form is self.form
            and exchange.messages == self.exchange.messages
            and _tool_images(exchange) == self.tool_images
        ):
            return self
        return replace(self, exchange=exchange, form=form)

    @property
    def is_plain(self) -> bool:
        """There is nothing but text in it."""
        return not (self.raw.steps or self.record.media)

    @cached_property
    def tool_images(self) -> tuple[ToolImage, ...]:
        """Images that its tools returned, as far as the form shows them."""
        return _tool_images(self.exchange)

    @cached_property
    def tokens(self) -> int:
        """Estimated size in the present form."""
        return estimate_turn_size(self.exchange) + estimate_media_tokens(self.record.media)

    @cached_property
    def sizes(self) -> TurnSizes:
        """Sizes in all forms, for the compaction planner."""
        images = estimate_media_tokens(self.record.media)
        return measure_turn(self.raw, form=self.form, images=images, requests=self.record.requests)


def find_open_step(ended: TurnRecord) -> str:
    """Return what the agent said in this turn that it does next. Empty: it left nothing open."""
    return find_next_step(ended.steps) if ended.outcome in ("replied", "silent") else ""


@frozen(slots=False)
class HistoryView:
    """Earlier turns as the next turn of a conversation sees them."""

    turns: tuple[HistoryTurn, ...] = ()
    fold: ViewFolded | None = None
    """The newest fold; None: the view was never folded."""
    folded_at: Seq = _NEVER_FOLDED

    @classmethod
    def build(cls, turns: Sequence[HistoryTurn], fold: ViewFolded | None, folded_at: Seq) -> Self:
        """Return the view with each turn in the form that the fold prescribes."""
        if fold is None:
            return cls(turns=tuple(turns))
        # Only turns in front of the marks change their form.
        front = [turn for turn in turns if turn.seq < max(fold.trimmed, fold.summed)]
        projected = project_turns([turn.raw for turn in front], fold)
        shown = [
            turn.with_form(exchange, turn_form(turn.seq, fold))
            for turn, exchange in zip(front, projected, strict=True)
        ]
        return cls(turns=(*shown, *turns[len(front) :]), fold=fold, folded_at=folded_at)

    @property
    def head(self) -> str:
        """Text that stands in front of the first turn; empty: none."""
        return self.fold.head if self.fold is not None else ""

    @cached_property
    def label(self) -> Label:
        """Trust label of everyone whose words are in the view."""
        head = self.fold.label if self.fold is not None and self.fold.head else TRUSTED_LABEL
        return head | join([turn.record.label for turn in self.turns])

    @cached_property
    def head_tokens(self) -> int:
        """Estimated."""
        return estimate_tokens(self.head) if self.head else 0

    @cached_property
    def tokens(self) -> int:
        """Estimated size of the whole view."""
        return self.head_tokens + sum([turn.tokens for turn in self.turns])

    @property
    def interrupted(self) -> bool:
        """The newest turn that had any input was interrupted before it could answer."""
        newest = next((turn for turn in reversed(self.turns) if turn.raw.messages), None)
        return newest is not None and newest.record.outcome == "interrupted"

    @property
    def is_unfinished(self) -> bool:
        """The newest turn was interrupted, or others may have been in front of it."""
        newest = self.turns[-1].record if self.turns else None
        return newest is not None and (
            newest.outcome == "interrupted"
            or newest.within is not None
            or newest.cause == "compact"
        )

    @property
    def next_step(self) -> str:
        """What the agent said in the newest turn that it does next. Empty: it left nothing open."""
        taken = [one.record for one in self.turns if one.record.within is None]
        newest = next((one for one in reversed(taken) if one.cause != "compact"), None)
        return find_open_step(newest) if newest is not None else ""

    @cached_property
    def scale(self) -> float:
        """Ratio of billed to estimated tokens of the newest prompt."""
        for turn in reversed(self.turns[-BILLED_TURNS:]):
            billed, estimated = turn.record.prompt_tokens, turn.record.prompt_estimate
            if estimated and billed >= MIN_BILLED_RATIO * estimated:
                return min(billed / estimated, MAX_BILLED_RATIO)
        return 1.0

    def seq_at(self, index: int) -> Seq:
        """Return the log position of the turn with this index.

        Behind the last turn: the first possible position of the next.
        """
        return self.turns[index].seq if index < len(self.turns) else Seq(self.turns[-1].seq + 1)

    @cached_property
    def is_plain(self) -> bool:
        """There is nothing but text in it: only whole turns can leave it."""
        return all(turn.is_plain for turn in self.turns)

    def turns_since_fold(self) -> Iterator[HistoryTurn]:
        """Yield the turns after the newest fold, newest first."""
        return itertools.takewhile(lambda turn: turn.seq > self.folded_at, reversed(self.turns))

    def sizes(self, *, written: datetime | None) -> list[TurnSizes]:
        """Return the sizes for the planner. `written`: time of the newest journal entry of this
        place.
        """
        return [
            replace(turn.sizes, is_in_journal=turn.at <= written) if written else turn.sizes
            for turn in self.turns
        ]

    def with_fold(self, folded: ViewFolded, seq: Seq) -> "HistoryView":
        """Return the view after a fold, whose log position is `seq`."""
        return HistoryView.build(
            [turn for turn in self.turns if turn.seq >= folded.start], folded, seq
        )

    def with_entry(self, entry: LogEntry, *, simple: bool) -> "HistoryView | None":
        """Return the view after one more entry of its log. None: it must be read again."""
        match entry.fact:
            case TurnRecord():
                inner = entry.conversation is not None and is_inner(entry.conversation)
                newest = HistoryTurn.from_record(
                    entry.seq, entry.fact, entry.at, simple=simple, inner=inner
                )
                newer = replace(self, turns=(*self.turns, newest))
                # So that the next turn need not read the whole view for them.
                vars(newer).update(
                    label=self.label | newest.record.label,
                    tokens=self.tokens + newest.tokens,
                    is_plain=self.is_plain and newest.is_plain,
                )
                return newer
            case ViewFolded() if self.fold is None or self.fold.start <= entry.fact.start:
                return self.with_fold(entry.fact, entry.seq)
            case _:
                return None


class _CachedView(NamedTuple):
    view: HistoryView
    simple: bool
    as_of: Seq
    """The log's last position when it was read."""


class HistoryStore:
    """History views of one agent's conversations. Those of the last active ones are kept, and
    follow the log.
    """

    def __init__(self, store: Store, clock: Clock, media: MediaStore) -> None:
        self._store = store
        self._clock = clock
        self.media = media
        self._cached = LruDict[ConversationId, _CachedView](MAX_CACHED_VIEWS)
        self._under_read = dict[ConversationId, object]()
        """Views that are being read, without those that have changed since."""
        store.subscribe(self._on_appended, TurnRecord, ViewFolded, ConversationRewound)

    async def view(self, conversation: ConversationId, *, simple: bool = False) -> HistoryView:
        """Return the present view. `simple`: the model takes no tools."""
        cached = self._cached.get(conversation)
        if cached is None or cached.simple != simple:
            read = self._under_read[conversation] = object()
            cached = await self._read(conversation, simple=simple)
            if self._under_read.get(conversation) is not read:
                return cached.view
            del self._under_read[conversation]
        self._cached.put(conversation, cached)
        return cached.view

    async def _read(self, conversation: ConversationId, *, simple: bool) -> _CachedView:
        found = await self._store.view_entries(conversation)
        inner = is_inner(conversation)
        turns = [
            HistoryTurn.from_record(turn.seq, turn.fact, turn.at, simple=simple, inner=inner)
            for turn in found.turns
        ]
        fold, folded_at = None, _NEVER_FOLDED
        if found.fold is not None and isinstance(found.fold.fact, ViewFolded):
            fold, folded_at = found.fold.fact, found.fold.seq
        return _CachedView(HistoryView.build(turns, fold, folded_at), simple, found.as_of)

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is None:
                continue
            self._under_read.pop(entry.conversation, None)
            cached = self._cached.get(entry.conversation)
            if cached is not None and entry.seq > cached.as_of:
                view = cached.view.with_entry(entry, simple=cached.simple)
                if view is not None:
                    self._cached[entry.conversation] = cached._replace(view=view)
                else:
                    del self._cached[entry.conversation]

    async def apply_fold(
        self, conversation: ConversationId, view: HistoryView, folded: ViewFolded
    ) -> HistoryView:
        """Append a fold to the log and return the new view. Cut off, the old or the new view
        holds.
        """
        entry = NewEntry(fact=folded, at=self._clock.now(), conversation=conversation)
        (stored,) = await self._store.append([entry])
        cached = self._cached.get(conversation)
        if cached is not None and cached.view.folded_at == stored.seq:
            return cached.view
        return view.with_fold(folded, stored.seq)

    async def load_exchanges(self, view: HistoryView, *, seeing: bool) -> tuple[PromptTurn, ...]:
        """Return the view as prompt turns; with images if the model sees them (`seeing`) and they
        still exist.
        """
        exchanges = [turn.exchange for turn in view.turns]
        if seeing and not view.is_plain:
            for index, turn in enumerate(view.turns):
                if turn.record.media:
                    exchanges[index] = replace(
                        turn.exchange, images=await self.media.load_images(turn.record.media)
                    )
                if turn.tool_images:
                    found = await self.media.load_images_by_hash(turn.tool_images)
                    exchanges[index] = replace(exchanges[index], tool_images=tuple(found.items()))
        head = [PromptTurn(input_text=view.head, reply="")] if view.head else []
        return (*head, *exchanges)


async def find_write_of_cut_off_turn(
    reader: StoreReader,
    place: ConversationId,
    turn: TurnId | None,
    kind: str,
    same: Callable[[LogEntry], bool],
) -> LogEntry | None:
    """Return the entry of that kind that an unfinished earlier turn wrote there and `same` accepts.
    None: there is none. Facts of the kind name their `turn`.

    Only entries after the last ended turn count. `turn`: the turn that asks. One turn at a time
    runs in a conversation, so another that has not ended never will.
    """
    if turn is None:
        return None
    for one in await _read_since_last_turn(reader, place, kind):
        if getattr(one.fact, "turn", None) not in (None, turn) and same(one):
            return one
    return None


async def _read_since_last_turn(
    reader: StoreReader, place: ConversationId, kind: str
) -> list[LogEntry]:
    ended = await reader.newest_entries(1, kinds=["turn_ended"], conversation=place)
    newest = await reader.newest_entries(RECENT_ENTRIES, kinds=[kind], conversation=place)
    return [one for one in newest if not ended or one.seq > ended[0].seq]


async def was_begun_by_cut_off_turn(
    reader: StoreReader, place: ConversationId, started: ToolStarted
) -> bool:
    """Return whether an unfinished earlier turn began the same tool call, and this turn has not
    begun it yet. A call that was approved late begins after the end of its turn.
    """
    same = {
        one.fact.turn
        for one in await _read_since_last_turn(reader, place, "tool_begun")
        if isinstance(one.fact, ToolStarted)
        and (one.fact.tool, one.fact.arguments) == (started.tool, started.arguments)
    }
    ended = [await reader.entry_by_key(f"turn:{turn}") for turn in same]
    return None in ended and started.turn not in same


def _tool_images(exchange: PromptTurn) -> tuple[ToolImage, ...]:
    steps = () if exchange.without_tools else exchange.steps
    return tuple([one for step in steps for called in step.calls for one in called.images])
