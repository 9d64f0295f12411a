"""What a turn tells the model of what its tools brought, and where the rest of it is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from agent.allowance import RESULT_FRAME_TOKENS, ResultShare, count_fitting_chars, share_budget
from agent.models.base import ToolCall, ToolResult
from agent.steps import FENCE_TOKENS, build_called, fence_result, join_surrogates, render_partial_result
from agent.stubs import find_safe_cut
from agent.tools.surface import unwrap_call
from agent.view import estimate_tokens
from gateway.events import EvidenceRef, ToolCallRecord, TurnStep

_NO_LIMIT: Final = 2**62


class ResultArchive(Protocol):
    """Where a turn keeps what it does not tell."""

    @property
    def budget_tokens(self) -> int:
        """What it may tell word for word, all results together."""

    @property
    def max_result_tokens(self) -> int:
        """The same of one result."""

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        """Make it durable, whole. Raises what ends the turn; cancelled, it is kept or not."""

    def record_cut(self) -> None:
        """A result is not told whole because it is larger than `most_tokens`."""


@dataclass(frozen=True, slots=True)
class _ShownResult:
    """A result that was told."""

    call: ToolCall
    result: ToolResult
    """Its text: as much as was told."""
    source: EvidenceRef | None
    """Where it is whole. None: `result` is, or it is nowhere."""
    total_chars: int
    """Of the whole."""


class ResultTruncator:
    """Of one turn."""

    def __init__(self, keeping: ResultArchive | None) -> None:
        """`keeping`: None, for who has no place: all is told as far as the window has room, and the rest is lost."""
        self._archive = keeping
        self._left_tokens = keeping.budget_tokens if keeping is not None else _NO_LIMIT
        self._max_result_tokens = keeping.max_result_tokens if keeping is not None else _NO_LIMIT
        self._shown: dict[str, _ShownResult] = {}
        """By the call's id."""

    async def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """What the model is told of each, by the call's id. What it is not told whole is durable then.

        `room`: tokens that the window has for all of them. Raises what `ResultArchive.keep` does.
        """
        results, shares, left = self._share_budget(results, room)
        told = {}
        for call, result, part in zip(calls, results, shares, strict=True):
            if part.is_oversized and self._archive is not None and result.excerpt is None:
                self._archive.record_cut()
            source = await self._archive_result(call, result) if part.chars is not None else None
            told[call.id] = self._render_result(_ShownResult(call, result, source, len(result.text)), part.chars)
        self._left_tokens = left
        return told

    def render_interrupted(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """The same for a turn that is ended from outside, where nothing can be waited for any more."""
        results, shares, _ = self._share_budget(results, room)
        kept = {name: brought.source for name, brought in self._shown.items()}
        return {
            call.id: self._render_result(_ShownResult(call, result, kept.get(call.id), len(result.text)), part.chars)
            for call, result, part in zip(calls, results, shares, strict=True)
        }

    async def shrink_steps(self, steps: Sequence[TurnStep], tokens: int) -> tuple[TurnStep, ...]:
        """The same steps with at most about so many tokens of each result, and a frame. Raises what `tell` does."""
        return tuple(
            [
                replace(step, calls=tuple([await self._shrink_result(one, tokens) for one in step.calls]))
                for step in steps
            ]
        )

    def _share_budget(
        self, results: Iterable[ToolResult], room: int
    ) -> tuple[list[ToolResult], Sequence[ResultShare], int]:
        clean = [
            replace(result, text=join_surrogates(result.text), origin=join_surrogates(result.origin))
            for result in results
        ]
        texts, asked = [result.text for result in clean], [result.excerpt is not None for result in clean]
        room -= FENCE_TOKENS * sum(result.is_untrusted for result in clean)
        shares, left = share_budget(texts, self._left_tokens, self._max_result_tokens, room, asked=asked)
        return clean, shares, left

    async def _archive_result(self, call: ToolCall, result: ToolResult) -> EvidenceRef | None:
        if self._archive is None or result.excerpt is not None:
            return None
        return await self._archive.keep(call, result)

    async def _shrink_result(self, told: ToolCallRecord, tokens: int) -> ToolCallRecord:
        if estimate_tokens(told.result) <= max(tokens, RESULT_FRAME_TOKENS):
            return told
        brought = self._shown[told.id]
        source = brought.source or await self._archive_result(brought.call, brought.result)
        chars = min(count_fitting_chars(brought.result.text, tokens), len(brought.result.text))
        return self._render_result(replace(brought, source=source), chars)

    def _render_result(self, brought: _ShownResult, chars: int | None) -> ToolCallRecord:
        result, source = brought.result, brought.source
        if result.excerpt is not None:
            source = result.excerpt.source
            chars = None if chars is None else max(chars, result.text.find("\n") + 1)
        chars = None if chars is None else find_safe_cut(result.text, chars)
        first = result.text[:chars]
        name, plain = unwrap_call(brought.call).name, result.is_untrusted
        if result.excerpt is not None:
            text, plain = _fence_behind_head(first, brought.call.id, result, name), False
            if chars is not None:
                then = chars + result.excerpt.offset
                text += f"\n[cut here, for want of room in this turn: what follows begins at offset {then}]"
        elif chars is None:
            text = first
        elif source is not None:
            text, plain = render_partial_result(source, name, first, call=brought.call.id if plain else ""), False
        else:
            text = f"{first} [... {brought.total_chars - chars} more characters]"
        self._shown[brought.call.id] = replace(brought, result=replace(result, text=first))
        return build_called(brought.call, replace(result, text=text), source, untrusted=plain)


def _fence_behind_head(text: str, call: str, result: ToolResult, tool: str) -> str:
    """A part of something, whose first line is our own words."""
    head, line_end, body = text.partition("\n")
    return head + line_end + fence_result(body, tool, result.origin, call) if result.is_untrusted and body else text
