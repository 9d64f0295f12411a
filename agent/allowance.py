"""How much of what tools bring in is told word for word, and how much room for it the window still has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.models.base import ModelRequest
from agent.steps import CALL_TOKENS
from agent.tokens.base import count_heuristically
from agent.tokens.size import PromptSize, measure_prompt
from agent.view import BYTES_PER_TOKEN, SLACK_SHARE, answer_tokens, estimate_tokens

RESULT_FRAME_TOKENS: Final = 100
"""Of a result that is told in part, without an excerpt, or nearly: what is no longer is told whole, always."""
MIN_ANSWER_TOKENS: Final = 256
"""Tokens that are asked for in any case: the provider says that there is no room better than a cut sentence does."""
_MIN_BILL_SHARE: Final = 0.5
"""Of a bill against the estimate: one that says less is not of the whole prompt, or of none (some servers tell 0)."""
_REFUSED_SHARE: Final = 0.7
"""What is refused was too long by some unknown amount: about as much as one more round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultShare:
    """What is told of one result."""

    chars: int | None
    """So many of its first characters. None: all of it."""
    is_oversized: bool = False
    """It is more than one result may ever be."""


def share_budget(
    texts: Sequence[str], left_tokens: int, most_tokens: int, room_tokens: int, *, asked: Sequence[bool]
) -> tuple[tuple[ResultShare, ...], int]:
    """What is told of the results of one answer, in their order, and what is left then of `left_tokens`.

    `left_tokens`: of what the turn may tell word for word. `most_tokens`: of one result. `room_tokens`: of the window.
    `asked`: what is a part already. Of the others what does not fit whole takes half of what there is at most, so that
    something is left for what comes later. All of it is never more than `left_tokens`, and a frame for each.
    """
    shares = []
    for place, text in enumerate(texts):
        room_tokens -= CALL_TOKENS
        size = estimate_tokens(text)
        free = max(
            0,
            min(left_tokens, most_tokens, room_tokens - (RESULT_FRAME_TOKENS + CALL_TOKENS) * (len(texts) - place - 1)),
        )
        if size <= max(free, RESULT_FRAME_TOKENS):
            spent = size
            shares.append(ResultShare(chars=None))
        else:
            chars = count_fitting_chars(text, max(free, RESULT_FRAME_TOKENS) if asked[place] else free // 2)
            spent = estimate_tokens(text[:chars]) if chars else 0
            room_tokens -= RESULT_FRAME_TOKENS
            shares.append(ResultShare(chars=chars, is_oversized=size > most_tokens))
        left_tokens, room_tokens = max(0, left_tokens - spent), room_tokens - spent
    return tuple(shares), left_tokens


def count_fitting_chars(text: str, tokens: int) -> int:
    """How many of the first characters of a text have at most so many tokens."""
    most = int((tokens - 4) * BYTES_PER_TOKEN)
    if most <= 0:
        return 0
    return len(text[:most].encode()[:most].decode(errors="ignore"))


class ContextWindow:
    """The room in a model's window while a turn goes on: estimated, and corrected by each bill."""

    def __init__(
        self, context_tokens: int, max_output_tokens: int, *, scale: float = 1.0, refused: bool = False
    ) -> None:
        """`scale`: so many real tokens are taken for one estimated one. `refused`: it was too long the last time."""
        self._answer_tokens = answer_tokens(context_tokens, max_output_tokens)
        self._usable_tokens = context_tokens - int(context_tokens * SLACK_SHARE)
        self._prompt_limit = self._usable_tokens - self._answer_tokens
        self._max_output = self._answer_tokens if refused else max_output_tokens
        self._size: tuple[ModelRequest, PromptSize] | None = None
        self._factor = 1.0 / scale
        """A real token is so many estimated ones."""

    def measure(self, request: ModelRequest) -> int:
        """This is what the model is asked now: its tokens, as estimated."""
        self._size = request, measure_prompt(request, _RoughCounter(), before=self._size)
        return self._size[1].total

    def output_tokens(self) -> int:
        """What may be asked for as an answer to that request: a prompt and its answer share the window."""
        left = self._usable_tokens - int(self._estimate() / self._factor)
        return max(min(self._max_output, left), min(self._max_output, MIN_ANSWER_TOKENS))

    def record_bill(self, prompt_tokens: int) -> None:
        """What the provider says of the same request. 0: nothing."""
        estimate = self._estimate()
        if estimate and prompt_tokens >= _MIN_BILL_SHARE * estimate:
            self._factor = estimate / prompt_tokens

    def record_refusal(self) -> None:
        """The provider says that the same request is too long, whatever was thought of it."""
        self._max_output = self._answer_tokens
        self._factor = min(self._factor, _REFUSED_SHARE * self._estimate() / max(1, self._prompt_limit))

    def remaining_tokens(self) -> int:
        """Tokens, as estimated, that can still be told behind that request. Negative: it has too many."""
        return int(self._prompt_limit * self._factor) - self._estimate()

    def _estimate(self) -> int:
        return self._size[1].total if self._size is not None else 0


class _RoughCounter:
    """As `agent.view` measures, so that both say the same of the same."""

    is_exact = False

    def count(self, text: str) -> int:
        return count_heuristically(text)
