"""The turns in view of the conversations that were active last, kept so that a turn need not read them again.

Nothing here is a second record: all of it is in the log, and what is not here is read from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from agent import steps
from agent.brief import Exchange
from agent.view import estimate_tokens, images_tokens
from gateway.events import ConversationId
from gateway.records import Fact, MediaRef, Seq, TurnEnded

KEPT_CONVERSATIONS = 32
"""Each holds a view at most, so some hundred kilobytes where a large window is full."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """One turn, as later ones see it."""

    seq: Seq
    """Where its record stands."""
    exchange: Exchange
    """Without its images: these are read when they are needed."""
    media: tuple[MediaRef, ...]
    tokens: int
    """Estimated."""
    at: datetime
    """When it ended."""
    interrupted: bool = False
    """It was ended before it could answer."""

    @classmethod
    def of(cls, seq: Seq, ended: Fact, at: datetime, *, simple: bool = False) -> Self:
        """What a turn's record leaves to see. `simple`: to a model that takes no tools."""
        assert isinstance(ended, TurnEnded)
        tokens = estimate_tokens(ended.heard) + estimate_tokens(ended.text) + images_tokens(ended.media)
        tokens += steps.tokens(ended.steps)
        exchange = Exchange(heard=ended.heard, reply=ended.text, steps=ended.steps, simple=simple)
        return cls(seq, exchange, ended.media, tokens, at, ended.outcome == "interrupted")


class Past:
    """Views by conversation; the one that was kept longest ago leaves first."""

    def __init__(self) -> None:
        self._views: dict[ConversationId, tuple[PastTurn, ...]] = {}

    def take(self, conversation: ConversationId) -> tuple[PastTurn, ...] | None:
        """Hand the view over. It is not here again before `keep`: a turn that is cut off leaves nothing stale."""
        return self._views.pop(conversation, None)

    def keep(self, conversation: ConversationId, view: Sequence[PastTurn]) -> None:
        """The view as the log has it now: call once the newest turn's record is durable."""
        self._views.pop(conversation, None)
        self._views[conversation] = tuple(view)
        if len(self._views) > KEPT_CONVERSATIONS:
            del self._views[next(iter(self._views))]
