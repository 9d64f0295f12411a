"""Estimates whole requests, and learns from what they turned out to be. No IO, no clock."""

from dataclasses import dataclass
from typing import Protocol

from agent.models.base import Request
from agent.tokens.drift import Calibration, drift_percent
from agent.tokens.offline import Method, OfflineCounter
from agent.tokens.size import Look, PromptSize, prompt_size
from gateway.events import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a request was thought to have before it was sent."""

    model: str
    """As its provider names it."""
    tokens: int
    """Of the whole prompt, corrected by what is known of this model."""
    size: PromptSize
    """Its parts, uncorrected."""
    method: Method

    @property
    def text_tokens(self) -> int:
        """Uncorrected, without images."""
        return self.size.total - self.size.images

    def correct(self, tokens: int) -> int:
        """A part's tokens, corrected as the whole is; the part holds no images."""
        return round(tokens * (self.tokens - self.size.images) / self.text_tokens) if self.text_tokens else 0


class Meter:
    """One for all models: texts are counted once, and corrected for each model by its own bills."""

    def __init__(self, counter: OfflineCounter, *, look: Look = lambda _: None) -> None:
        """`look` reads an image's size from its bytes; without it all count as large ones."""
        self._counter = counter
        self._read_image_size = look
        self._calibrations: dict[Method, Calibration] = {"heuristic": Calibration(), "tiktoken": Calibration()}

    def estimate(self, model: str, request: Request, before: tuple[Request, Estimate] | None = None) -> Estimate:
        """Costs O(new text): see `prompt_size`. `before`: an earlier request, and what this meter said of it."""
        method = self._counter.method
        known = (before[0], before[1].size) if before is not None and before[1].method == method else None
        size = prompt_size(request, self._counter, look=self._read_image_size, before=known)
        if method != self._counter.method:  # in between: half of it was counted the other way
            method = self._counter.method
            size = prompt_size(request, self._counter, look=self._read_image_size)
        tokens = self._calibrations[method].calibrate(model, size.total - size.images) + size.images
        return Estimate(model=model, tokens=tokens, size=size, method=method)

    def record_count(self, estimate: Estimate, tokens: int) -> None:
        """The provider's own counter says that the request has `tokens`."""
        self._calibrations[estimate.method].observe(estimate.model, estimate.text_tokens, tokens - estimate.size.images)

    def record_bill(self, estimate: Estimate, usage: Usage) -> float | None:
        """The request was answered. Returns the drift of the estimate in percent; None: nothing was billed.

        `usage` must be that of one request: a sum over a turn's requests teaches a wrong ratio.
        """
        tokens = prompt_tokens(usage)
        if tokens <= 0:
            return None
        self.record_count(estimate, tokens)
        return drift_percent(estimate.tokens, tokens)


class Gauge(Protocol):
    """Measures requests before they are sent."""

    def estimate(self, model: str, request: Request, before: tuple[Request, Estimate] | None) -> tuple[Meter, Estimate]:
        """Return how large it is thought to be, and who wants to know what it was billed.

        `before`: the last request of the same conversation, so that only what is new need be counted.
        """

    def is_exact(self, request: Request) -> bool:
        """Whether the model's own counter has counted exactly this request by now."""


def prompt_tokens(usage: Usage) -> int:
    """What a prompt had, however it was billed."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
