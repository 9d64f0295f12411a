"""Estimates whole requests, and learns from what they turned out to be. No IO, no clock."""

from dataclasses import dataclass
from typing import Protocol

from agent.models.base import ModelRequest
from agent.tokens.drift import Calibration, drift_percent
from agent.tokens.offline import CountMethod, OfflineCounter
from agent.tokens.size import PromptSize, ReadImageSize, measure_prompt
from gateway.events import Usage


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
