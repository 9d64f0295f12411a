"""Estimates whole requests, and learns from what they turned out to be. No IO, no clock.

How far estimates are from what is billed, learnt for each model. Pure.

An offline tokenizer is not the model's own: Claude's newer ones make some 30 % more tokens of the same text
(platform.claude.com, about-claude/pricing). But each answer says how many its prompt had, so the ratio is known
after one, and good after a few.
"""

import math
import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from agent.models.base import ModelRequest
from agent.tokens.counter import CountMethod, OfflineCounter, PromptSize, ReadImageSize, measure_prompt
from gateway.core.events import Usage

MAX_RATIOS = 15
"""Requests that a model's ratio is the median of: seven odd ones among them change next to nothing."""
MIN_TOKENS = 200
"""Of a request that teaches anything: of a shorter one the provider's own frame is the greater part."""
RATIO_BOUNDS = (0.25, 4.0)
"""No tokenizer is further away; a ratio beyond is a mistake, and must neither fill the window nor empty it."""
_MAX_MODELS = 64
"""Ratios kept. More models than these are names that a server makes up."""
_DENSE_RATIO = 1.35
"""Claude since 4.7, over cl100k: +30 % over its predecessors, which were 5 % above."""
_CLAUDE_BEFORE = re.compile(r"claude-(?:v?[123]\b|instant|[a-z]+-4(?!\d|[-.][7-9](?!\d)))")


def prior_ratio(model: str) -> float:
    """Billed over estimated for a model that has not answered yet, by the name that its provider has for it."""
    name = model.lower()
    if "claude" not in name:
        return 1.0
    return 1.05 if _CLAUDE_BEFORE.search(name) else _DENSE_RATIO


def drift_percent(estimated: int, billed: int) -> float:
    """How far an estimate was from the bill, in percent of the bill, whichever way. `billed` is not 0."""
    return 100.0 * abs(estimated - billed) / billed


class Calibration:
    """Remembers how estimates and bills of each model compare. Made for one way of estimating: do not mix."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, deque[float]] = OrderedDict()
        self._median_ratio: dict[str, float] = {}

    def observe(self, model: str, estimated: int, billed: int) -> None:
        """A request estimated at `estimated` (uncorrected) had `billed` input tokens, cached ones included."""
        if min(estimated, billed) < MIN_TOKENS:
            return
        seen = self._ratios.setdefault(model, deque(maxlen=MAX_RATIOS))
        self._ratios.move_to_end(model)
        seen.append(min(max(billed / estimated, RATIO_BOUNDS[0]), RATIO_BOUNDS[1]))
        self._median_ratio[model] = median(seen)
        while len(self._ratios) > _MAX_MODELS:
            forgotten, _ = self._ratios.popitem(last=False)
            del self._median_ratio[forgotten]

    def calibrate(self, model: str, estimated: int) -> int:
        """What `estimated` tokens are likely to be billed as; never less than 1 for at least 1."""
        return math.ceil(estimated * self.ratio(model))

    def ratio(self, model: str) -> float:
        """Billed over estimated, within `RATIO_BOUNDS`."""
        return self._median_ratio[model] if model in self._median_ratio else prior_ratio(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEstimate:
    """What a request was thought to have before it was sent."""

    model: str
    """As its provider names it."""
    tokens: int
    """Of the whole prompt, corrected by what is known of this model."""
    size: PromptSize
    """Its parts, uncorrected."""
    method: CountMethod

    @property
    def text_tokens(self) -> int:
        """Uncorrected, without images."""
        return self.size.total - self.size.images

    def correct(self, tokens: int) -> int:
        """A part's tokens, corrected as the whole is; the part holds no images."""
        return round(tokens * (self.tokens - self.size.images) / self.text_tokens) if self.text_tokens else 0


class TokenMeter:
    """One for all models: texts are counted once, and corrected for each model by its own bills."""

    def __init__(self, counter: OfflineCounter, *, look: ReadImageSize = lambda _: None) -> None:
        """`look` reads an image's size from its bytes; without it all count as large ones."""
        self._counter = counter
        self._read_image_size = look
        self._calibrations: dict[CountMethod, Calibration] = {"heuristic": Calibration(), "tiktoken": Calibration()}

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None = None
    ) -> TokenEstimate:
        """Costs O(new text): see `measure_prompt`. `before`: an earlier request, and what this meter said of it."""
        method = self._counter.method
        known = (before[0], before[1].size) if before is not None and before[1].method == method else None
        size = measure_prompt(request, self._counter, look=self._read_image_size, before=known)
        if method != self._counter.method:  # in between: half of it was counted the other way
            method = self._counter.method
            size = measure_prompt(request, self._counter, look=self._read_image_size)
        tokens = self._calibrations[method].calibrate(model, size.total - size.images) + size.images
        return TokenEstimate(model=model, tokens=tokens, size=size, method=method)

    def record_count(self, estimate: TokenEstimate, tokens: int) -> None:
        """The provider's own counter says that the request has `tokens`."""
        self._calibrations[estimate.method].observe(estimate.model, estimate.text_tokens, tokens - estimate.size.images)

    def record_bill(self, estimate: TokenEstimate, usage: Usage) -> float | None:
        """The request was answered. Returns the drift of the estimate in percent; None: nothing was billed.

        `usage` must be that of one request: a sum over a turn's requests teaches a wrong ratio.
        """
        tokens = count_prompt_tokens(usage)
        if tokens <= 0:
            return None
        self.record_count(estimate, tokens)
        return drift_percent(estimate.tokens, tokens)


class RequestMeter(Protocol):
    """Measures requests before they are sent."""

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None
    ) -> tuple[TokenMeter, TokenEstimate]:
        """Return how large it is thought to be, and who wants to know what it was billed.

        `before`: the last request of the same conversation, so that only what is new need be counted.
        """

    def is_exact(self, request: ModelRequest) -> bool:
        """Whether the model's own counter has counted exactly this request by now."""


def count_prompt_tokens(usage: Usage) -> int:
    """What a prompt had, however it was billed."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
