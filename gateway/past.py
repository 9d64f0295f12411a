"""What later turns of a conversation see of the earlier ones: a function of their records and the newest fold. Pure."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from typing import Self

from agent import projection
from agent.brief import NOTHING_NEW, PromptTurn
from agent.layout import TurnSizes, measure_turn
from agent.models.base import Image, MessagePart, TextPart, ToolCall
from agent.projection import LoggedTurn, TurnForm, ViewMarks
from agent.view import estimate_image_tokens, estimate_tokens
from gateway.events import ToolImage
from gateway.labels import UNKNOWN_LABEL, TrustLabel, label_of_summary, recorded_label
from gateway.records import Fact, MediaRef, Seq, TurnRecord, ViewFolded

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

        `label`: of a record that does not tell it (`gateway.labels.label_of_turn`). None: such a record is anybody's
        words.
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
        return projection.estimate_turn_size(self.exchange) + self.measure.image_tokens

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
        told = projection.project_turns([LoggedTurn(seq=turn.seq, exchange=turn.raw) for turn in front], marks)
        shown = [
            turn.with_form(exchange, projection.turn_form(turn.seq, marks))
            for turn, exchange in zip(front, told, strict=True)
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
