"""What later turns of a conversation see of the earlier ones: a function of their records and the newest fold. Pure.

What of each conversation later turns see: read from the log, and kept for those that were active last.

Nothing here is a second record: all of it is in the log, and what is not here is read from there.

What a turn did before its process ended: it is taken again then, and what it did is not done twice.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from typing import Final, Self

from agent.brief import NOTHING_NEW, PromptTurn
from agent.models.base import MessagePart, TextPart
from agent.view import estimate_image_tokens, estimate_tokens
from agent.view_forms import (
    LoggedTurn,
    TurnForm,
    TurnSizes,
    ViewMarks,
    estimate_turn_size,
    measure_turn,
    project_turns,
    turn_form,
)
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, ToolImage
from gateway.core.facts import (
    Fact,
    MediaRef,
    NoteWritten,
    ReminderSet,
    Seq,
    ToolStarted,
    TurnId,
    TurnRecord,
    ViewFolded,
)
from gateway.core.tool_spec import Image, ToolCall
from gateway.core.trust import ANYBODY_ROLE, UNKNOWN_LABEL, TrustLabel, label_of_summary, recorded_label
from gateway.store import LogEntry, NewEntry, Store, StoreReader
from gateway.stream.media import MediaStore

RECENT_ENTRIES: Final = 20
"""Newest ones: more than a turn writes down."""


async def find_write_of_cut_off_turn(
    reader: StoreReader,
    place: ConversationId,
    turn: TurnId | None,
    same: Callable[[LogEntry, NoteWritten | ReminderSet], bool],
) -> LogEntry | None:
    """What another turn there wrote down, since the last one that ended, and which is the same. None: nothing.

    `turn`: which asks. One turn runs there at a time, so another that has not ended never will.
    """
    if turn is None:
        return None
    ended = await reader.newest_entries(1, kinds=["turn_ended"], conversation=place)
    for one in await reader.newest_entries(RECENT_ENTRIES, kinds=["noted", "reminded"], conversation=place):
        fact = one.fact
        since = not ended or one.seq > ended[0].seq
        if since and isinstance(fact, NoteWritten | ReminderSet) and fact.turn not in (None, turn) and same(one, fact):
            return one
    return None


async def was_begun_by_cut_off_turn(reader: StoreReader, place: ConversationId, begun: ToolStarted) -> bool:
    """Whether another turn there began the same since the last one that ended, and this one did not yet."""
    ended = await reader.newest_entries(1, kinds=["turn_ended"], conversation=place)
    found = [
        one.fact
        for one in await reader.newest_entries(RECENT_ENTRIES, kinds=["tool_begun"], conversation=place)
        if isinstance(one.fact, ToolStarted) and (not ended or one.seq > ended[0].seq)
    ]
    same = [one.turn for one in found if (one.tool, one.arguments) == (begun.tool, begun.arguments)]
    return bool(same) and begun.turn not in same


_FOREIGN_TEXT_TOOLS: Final = frozenset(
    {"read_file", "grep", "glob", "view_image", "read_room", "who", "list_reminders", "forget", "call_capability"}
)
"""Tools that brought somebody's words into a turn of an earlier version, which did not record that."""
_QUOTED_TEXT: Final = re.compile(
    r"\(forwarded from |\[forwarded\]|\(by way of @|\(in reply to |^ *>|\[(?:image|file|video)|changed the topic to",
    re.MULTILINE,
)
"""Found in what a turn of an earlier version heard: its line may hold words of others than its sender."""


async def label_of_turn(reader: StoreReader, ended: TurnRecord) -> TrustLabel:
    """The same; of a turn of an earlier version by the roles with which its messages were judged. Raises StoreError."""
    if (told := recorded_label(ended)) is not None:
        return told
    label = TrustLabel(foreign=ended.foreign)
    for seq in ended.covers:
        judged = await reader.find_judgement(seq)
        label |= TrustLabel(judged.role if judged is not None and judged.role else ANYBODY_ROLE)
    if any(called.name in _FOREIGN_TEXT_TOOLS for step in ended.steps for called in step.calls) or _QUOTED_TEXT.search(
        ended.heard
    ):
        label |= UNKNOWN_LABEL
    return label


BILLED_TURNS = 8
"""Newest turns that are looked at for what prompts are billed."""
MIN_BILLED_RATIO, MAX_BILLED_RATIO = 0.5, 3.0
"""Of what was billed to what was estimated. Less is not of the whole prompt: some servers tell what was not cached."""
_NEVER_FOLDED = Seq(0)


@dataclass(frozen=True, kw_only=True)
class TurnMeasure:
    """How large a turn is in each form, measured once, when somebody asks."""

    turn: LoggedTurn
    image_tokens: int
    """Tokens of what was shown with it."""
    requests: int

    @cached_property
    def sizes(self) -> TurnSizes:
        return measure_turn(self.turn, form=TurnForm.WHOLE, images=self.image_tokens, requests=self.requests)


@dataclass(frozen=True, kw_only=True)
class HistoryTurn:
    """One turn, as later ones see it."""

    seq: Seq
    """Where its record stands."""
    raw: PromptTurn
    """As the log has it, without its images: these are read when they are needed."""
    exchange: PromptTurn
    """The same, in the form in which it is told."""
    form: TurnForm = TurnForm.WHOLE
    measure: TurnMeasure
    media: tuple[MediaRef, ...]
    at: datetime
    """When it ended."""
    is_addressed: bool = False
    """Somebody had said something to the agent."""
    interrupted: bool = False
    """It was ended before it could answer."""
    billed: tuple[int, int] = (0, 0)
    """`TurnRecord.prompt_tokens` and `.prompt_estimate`."""
    cleared_tokens: int = 0
    """Tokens of its last prompt that the provider left out by itself."""
    recalled: tuple[str, ...] = ()
    nudged: bool = False
    label: TrustLabel = UNKNOWN_LABEL
    """Of all that its requests held."""

    @classmethod
    def from_record(
        cls, seq: Seq, ended: Fact, at: datetime, *, simple: bool = False, label: TrustLabel | None = None
    ) -> Self:
        """What a turn's record leaves to see. `simple`: to a model that takes no tools.

        `label`: of a record that does not tell it (`gateway.context.history.label_of_turn`). None: such a record is
        anybody's words.
        """
        assert isinstance(ended, TurnRecord)
        reply = "" if ended.outcome == "failed" else ended.text  # what we said of a failure is not the agent's
        exchange = PromptTurn(input_text=ended.heard, reply=reply, steps=ended.steps, without_tools=simple)
        return cls(
            seq=seq,
            raw=exchange,
            exchange=exchange,
            measure=TurnMeasure(
                turn=LoggedTurn(seq=seq, exchange=exchange),
                image_tokens=estimate_image_tokens(ended.media),
                requests=ended.requests,
            ),
            media=ended.media,
            at=at,
            is_addressed=not ended.autonomous and ended.heard not in ("", NOTHING_NEW),
            interrupted=ended.outcome == "interrupted",
            billed=(ended.prompt_tokens, ended.prompt_estimate),
            cleared_tokens=ended.accounts[-1].cleared if ended.accounts else 0,
            recalled=ended.recalled,
            nudged=ended.nudged,
            label=recorded_label(ended) or label or UNKNOWN_LABEL,
        )

    def with_form(self, exchange: PromptTurn, form: TurnForm) -> Self:
        """The same in another form."""
        if (
            form is self.form
            and exchange.messages == self.exchange.messages
            and _tool_images(exchange) == self.tool_images
        ):
            return self
        return replace(self, exchange=exchange, form=form)

    @cached_property
    def tool_images(self) -> tuple[ToolImage, ...]:
        """What its tools brought to be seen, as far as that is told."""
        return _tool_images(self.exchange)

    @cached_property
    def tokens(self) -> int:
        """Estimated, as it is told."""
        return estimate_turn_size(self.exchange) + self.measure.image_tokens

    @cached_property
    def sizes(self) -> TurnSizes:
        """The same for the planner."""
        return replace(self.measure.sizes, form=self.form)

    @cached_property
    def digest(self) -> bytes:
        """Names all bytes of it, as it is told."""
        named = hashlib.blake2b(digest_size=16)
        for said in self.exchange.messages:
            for part in said.parts:
                _update_hash(named, said.role, type(part).__name__, *_piece_texts(part))
        _update_hash(named, *(ref.sha256 for ref in self.media), *(one.sha256 for one in self.tool_images))
        return named.digest()


@dataclass(frozen=True, kw_only=True)
class HistoryView:
    """What the next turn of a conversation sees."""

    turns: tuple[HistoryTurn, ...] = ()
    fold: ViewFolded | None = None
    """The newest; None: it was never folded."""
    folded_at: Seq = _NEVER_FOLDED
    """Where that stands."""

    @classmethod
    def build(cls, turns: Sequence[HistoryTurn], fold: ViewFolded | None, folded_at: Seq) -> Self:
        """Each turn in the form that the fold says."""
        if fold is None:
            return cls(turns=tuple(turns))
        marks = fold_marks(fold)
        # What stands behind the marks is as it was; only what is in front of them need be made anew.
        front = [turn for turn in turns if turn.seq < max(marks.trimmed, marks.summed)]
        told = project_turns([LoggedTurn(seq=turn.seq, exchange=turn.raw) for turn in front], marks)
        shown = [
            turn.with_form(exchange, turn_form(turn.seq, marks)) for turn, exchange in zip(front, told, strict=True)
        ]
        return cls(turns=(*shown, *turns[len(front) :]), fold=fold, folded_at=folded_at)

    @property
    def head(self) -> str:
        """What stands in front of the first turn; empty: nothing."""
        return self.fold.head if self.fold is not None else ""

    @property
    def label(self) -> TrustLabel:
        """Of everybody whose words are in it."""
        return reduce(or_, [turn.label for turn in self.turns], label_of_summary(self.fold))

    @cached_property
    def head_tokens(self) -> int:
        """Estimated."""
        return estimate_tokens(self.head) if self.head else 0

    @property
    def tokens(self) -> int:
        """Estimated, of all of it."""
        return self.head_tokens + sum([turn.tokens for turn in self.turns])

    @property
    def interrupted(self) -> bool:
        """The newest turn that was told something was ended before it could answer."""
        return next((turn.interrupted for turn in reversed(self.turns) if turn.raw.messages), False)

    @property
    def digest(self) -> str:
        """In hex: equal views have equal ones, and others differ."""
        return digest_of_view(self.head, [turn.digest for turn in self.turns])

    @property
    def scale(self) -> float:
        """What the newest prompt was billed, against what it was estimated."""
        ratios = [billed / estimated for billed, estimated in self._billed() if billed >= MIN_BILLED_RATIO * estimated]
        return min(ratios[-1], MAX_BILLED_RATIO) if ratios else 1.0

    def _billed(self) -> list[tuple[int, int]]:
        return [
            (turn.billed[0] + turn.cleared_tokens, turn.billed[1])
            for turn in self.turns[-BILLED_TURNS:]
            if turn.billed[1]
        ]

    @property
    def cleared_tokens(self) -> int:
        """Tokens of it that the provider leaves out by itself, as billed."""
        return next((turn.cleared_tokens for turn in self.turns_since_fold() if turn.billed[0]), 0)

    def seq_at(self, index: int) -> Seq:
        """Where the turn with this index stands; behind the last one: where the next one may stand at first."""
        return self.turns[index].seq if index < len(self.turns) else Seq(self.turns[-1].seq + 1)

    @property
    def has_tool_steps(self) -> bool:
        """There is something that can go gently."""
        return any(turn.raw.steps for turn in self.turns)

    def turns_since_fold(self) -> Iterator[HistoryTurn]:
        """The turns that came after the newest fold, the newest first."""
        return itertools.takewhile(lambda turn: turn.seq > self.folded_at, reversed(self.turns))

    def sizes(self, *, written: datetime | None) -> list[TurnSizes]:
        """For the planner. `written`: when the newest journal entry of this place was written."""
        if written is None:
            return [turn.sizes for turn in self.turns]
        return [replace(turn.sizes, is_in_journal=turn.at <= written) for turn in self.turns]

    def with_turn(self, newest: HistoryTurn) -> "HistoryView":
        """With one more turn at its end."""
        return replace(self, turns=(*self.turns, newest))


def _tool_images(exchange: PromptTurn) -> tuple[ToolImage, ...]:
    steps = () if exchange.without_tools else exchange.steps
    return tuple([one for step in steps for called in step.calls for one in called.images])


def fold_marks(fold: ViewFolded) -> ViewMarks:
    """How it shows the turns in view."""
    return ViewMarks(summed=fold.summed, trimmed=fold.trimmed, spared=fold.spared, excerpts_tokens=fold.excerpts_tokens)


def digest_of_view(head: str, turns: Iterable[bytes]) -> str:
    """Name a view by its head and the digests of its turns."""
    named = hashlib.blake2b(digest_size=16)
    _update_hash(named, head)
    for turn in turns:
        named.update(turn)
    return named.hexdigest()


def _update_hash(named: "hashlib.blake2b", *texts: str) -> None:
    for text in texts:
        piece = text.encode("utf-8", "surrogatepass")
        named.update(len(piece).to_bytes(8, "big"))
        named.update(piece)


def _piece_texts(part: MessagePart) -> tuple[str, ...]:
    match part:
        case TextPart():
            return (part.text,)
        case Image():
            return (part.description,)
        case ToolCall():
            return part.id, part.name, part.arguments
        case _:
            return part.id, str(part.is_error), part.text


MAX_CACHED_VIEWS = 32
"""Each holds a view at most, so some hundred kilobytes where a large window is full."""


class HistoryCache:
    """Views by conversation; the one that was kept longest ago leaves first."""

    def __init__(self) -> None:
        self._views: dict[ConversationId, HistoryView] = {}

    def pop(self, conversation: ConversationId) -> HistoryView | None:
        """Hand the view over. It is not here again before `keep`: a turn that is cut off leaves nothing stale."""
        return self._views.pop(conversation, None)

    def put(self, conversation: ConversationId, view: HistoryView) -> None:
        """The view as the log has it now: call once the newest turn's record is durable."""
        self._views.pop(conversation, None)
        self._views[conversation] = view
        if len(self._views) > MAX_CACHED_VIEWS:
            del self._views[next(iter(self._views))]


class HistoryStore:
    """The views of one agent's conversations."""

    def __init__(self, store: Store, clock: Clock, media: MediaStore, *, simple: bool = False) -> None:
        """`simple`: for a model that takes no tools."""
        self._store = store
        self._clock = clock
        self._media = media
        self._simple = simple
        self._cache = HistoryCache()

    async def take(self, conversation: ConversationId) -> HistoryView:
        """What is in view. It is read from the log again unless `keep` is called before the next `take`."""
        kept = self._cache.pop(conversation)
        return kept if kept is not None else await self.read(conversation)

    async def read(self, conversation: ConversationId) -> HistoryView:
        """The same, from the log. Reads what is in view, and nothing before that."""
        turns = await self._store.turns_in_view(conversation)
        found = await self._store.newest_fold(conversation)
        past = [
            HistoryTurn.from_record(turn.seq, turn.fact, turn.at, simple=self._simple, label=await self._label_of(turn))
            for turn in turns
        ]
        if found is None or not isinstance(found.fact, ViewFolded):
            return HistoryView.build(past, None, Seq(0))
        return HistoryView.build(past, found.fact, found.seq)

    async def _label_of(self, turn: LogEntry) -> TrustLabel | None:
        return await label_of_turn(self._store, turn.fact) if isinstance(turn.fact, TurnRecord) else None

    def add_turn(self, conversation: ConversationId, view: HistoryView, seq: Seq, ended: TurnRecord) -> None:
        """One more turn is durable, at `seq`."""
        newest = HistoryTurn.from_record(seq, ended, self._clock.now(), simple=self._simple)
        self._cache.put(conversation, view.with_turn(newest))

    def forget(self, conversation: ConversationId) -> None:
        """What is kept is not what the log has."""
        self._cache.pop(conversation)

    async def apply_fold(self, conversation: ConversationId, view: HistoryView, folded: ViewFolded) -> HistoryView:
        """Change the view, durably. Cut off, it is the old one or the new one."""
        entry = NewEntry(fact=folded, at=self._clock.now(), conversation=conversation)
        (stored,) = await self._store.append([entry])
        return HistoryView.build([turn for turn in view.turns if turn.seq >= folded.start], folded, stored.seq)

    async def load_exchanges(self, view: HistoryView, *, seeing: bool) -> tuple[PromptTurn, ...]:
        """The view as a prompt repeats it, with its images if these can be seen and are still there."""
        exchanges = [turn.exchange for turn in view.turns]
        if seeing:
            for place, turn in enumerate(view.turns):
                if turn.media:
                    exchanges[place] = replace(turn.exchange, images=await self._media.load_images(turn.media))
                if turn.tool_images:
                    found = await self._media.load_images_by_hash(turn.tool_images)
                    exchanges[place] = replace(exchanges[place], tool_images=tuple(found.items()))
        return (*_head_exchanges(view.head), *exchanges)


def _head_exchanges(head: str) -> Sequence[PromptTurn]:
    return (PromptTurn(input_text=head, reply=""),) if head else ()
