"""Estimates of whole requests, corrected by what providers bill. No IO, no clock.

An offline tokenizer is not the model's own: Claude's newer ones make some 30 % more tokens of the same text
(platform.claude.com, about-claude/pricing). But each answer reports the tokens of its prompt, so the ratio is known
after one answer, and good after a few.
"""

import math
import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from agent.models.base import ModelRequest
from agent.tokens.counter import (
    CountMethod,
    OfflineCounter,
    PromptSize,
    ReadImageSize,
    count_heuristically,
    measure_prompt,
)
from gateway.core.events import Usage

MAX_RATIOS = 15
"""Requests of which a model's ratio is the median: seven outliers among them change next to nothing."""
MIN_TOKENS = 200
"""Least size of a request that counts: in a shorter one the provider's own frame is the greater part."""
RATIO_BOUNDS = (0.25, 4.0)
"""Limits of a ratio. No tokenizer differs by more; a ratio beyond is a mistake, and must neither fill the window nor
empty it."""
_MAX_MODELS = 64
"""Limit of models with a ratio. If there are more, a server makes up names."""
_DENSE_RATIO = 1.35
"""Ratio of Claude since 4.7 to cl100k: 30 % above its predecessors, which were 5 % above."""
_CLAUDE_BEFORE = re.compile(r"claude-(?:v?[123]\b|instant|[a-z]+-4(?!\d|[-.][7-9](?!\d)))")


def prior_ratio(model: str) -> float:
    """Return the ratio of billed to estimated tokens for a model without answers, by its name at its provider."""
    name = model.lower()
    if "claude" not in name:
        return 1.0
    return 1.05 if _CLAUDE_BEFORE.search(name) else _DENSE_RATIO


def drift_percent(estimated: int, billed: int) -> float:
    """Return the distance of an estimate from the bill, in percent of the bill. `billed` is not 0."""
    return 100.0 * abs(estimated - billed) / billed


class Calibration:
    """Ratios of billed to estimated tokens by model. For one method of estimating: do not mix."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, deque[float]] = OrderedDict()
        self._median_ratio: dict[str, float] = {}

    def observe(self, model: str, estimated: int, billed: int) -> None:
        """Record a request with its uncorrected estimate and its billed input tokens, cached ones included."""
        if min(estimated, billed) < MIN_TOKENS:
            return
        ratios = self._ratios.setdefault(model, deque(maxlen=MAX_RATIOS))
        self._ratios.move_to_end(model)
        ratios.append(min(max(billed / estimated, RATIO_BOUNDS[0]), RATIO_BOUNDS[1]))
        self._median_ratio[model] = median(ratios)
        while len(self._ratios) > _MAX_MODELS:
            forgotten, _ = self._ratios.popitem(last=False)
            del self._median_ratio[forgotten]

    def calibrate(self, model: str, estimated: int) -> int:
        """Return the tokens that are likely to be billed; never less than 1 for at least 1."""
        return math.ceil(estimated * self.ratio(model))

    def ratio(self, model: str) -> float:
        """Return the ratio of billed to estimated tokens, within `RATIO_BOUNDS`."""
        return self._median_ratio[model] if model in self._median_ratio else prior_ratio(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEstimate:
    """Estimated size of a request before it is sent."""

    model: str
    """Name of the model at its provider."""
    tokens: int
    """Tokens of the whole prompt, corrected by the model's ratio."""
    size: PromptSize
    """Tokens of its parts, uncorrected."""
    method: CountMethod

    @property
    def text_tokens(self) -> int:
        """Return the uncorrected tokens without images."""
        return self.size.total - self.size.images

    def correct(self, tokens: int) -> int:
        """Return the tokens of a part without images, corrected as the whole is."""
        estimated = self.text_tokens
        return round(tokens * (self.tokens - self.size.images) / estimated) if estimated else 0


class TokenMeter:
    """Estimates requests for all models. Texts are counted once, and corrected for each model by its own bills."""

    def __init__(self, counter: OfflineCounter | None = None, *, look: ReadImageSize = lambda _: None) -> None:
        """Start without ratios.

        `counter` None: bytes are counted, always. `look`: reads an image's size from its bytes; without it every image
        counts as a large one.
        """
        self._counter = counter
        self._read_image_size = look
        self._calibrations: dict[CountMethod, Calibration] = {"heuristic": Calibration(), "tiktoken": Calibration()}

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None = None
    ) -> TokenEstimate:
        """Estimate a request. Costs O(new text): see `measure_prompt`.

        `before`: an earlier request, and this meter's estimate of it.
        """
        counter = self._counter
        method, count = (counter.method, counter.count) if counter is not None else ("heuristic", count_heuristically)
        known = (before[0], before[1].size) if before is not None and before[1].method == method else None
        size = measure_prompt(request, count, look=self._read_image_size, before=known)
        if counter is not None and method != counter.method:  # a part was counted by the other method
            method = counter.method
            size = measure_prompt(request, count, look=self._read_image_size)
        tokens = self._calibrations[method].calibrate(model, size.total - size.images) + size.images
        return TokenEstimate(model=model, tokens=tokens, size=size, method=method)

    def record_count(self, estimate: TokenEstimate, tokens: int) -> None:
        """Record the count of the provider's own counter."""
        self._calibrations[estimate.method].observe(estimate.model, estimate.text_tokens, tokens - estimate.size.images)

    def record_bill(self, estimate: TokenEstimate, usage: Usage) -> None:
        """Record the bill of one answered request.

        A sum over a turn's requests would give a wrong ratio.
        """
        if tokens := count_prompt_tokens(usage):
            self.record_count(estimate, tokens)


class RequestMeter(Protocol):
    """Meter that estimates requests before they are sent."""

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None
    ) -> tuple[TokenMeter, TokenEstimate]:
        """Return the meter that wants to know the bill, and the estimate.

        `before`: the last request of the same conversation, so that only new text is counted.
        """

    def is_exact(self, request: ModelRequest) -> bool:
        """Return whether the model's own counter has counted exactly this request by now."""


def count_prompt_tokens(usage: Usage) -> int:
    """Return the tokens of a prompt, however they were billed."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
