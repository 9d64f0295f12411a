"""Where turns keep what they do not tell, and tools that bring what a test says."""

import asyncio
import hashlib
from dataclasses import dataclass, field, replace

from agent.models.base import ToolResult
from agent.turn_context import TurnOutcome
from gateway.core.events import EvidenceRef, ToolCallRecord
from gateway.core.tool_spec import ToolCall, ToolSpec
from tests.kits.scripted_turn import JOT, LOOK_UP


@dataclass
class Desk:
    """A `Keeping` in memory."""

    budget_tokens: int = 18_000
    max_result_tokens: int = 36_000
    kept: dict[str, str] = field(default_factory=dict)
    """Texts by handle."""
    cuts: int = 0
    waits: asyncio.Event | None = None
    """Nothing is durable before this is set."""
    fails: Exception | None = None
    keeping: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        self.keeping.set()
        if self.waits is not None and self.kept:
            await self.waits.wait()
        if self.fails is not None:
            raise self.fails
        handle = f"e{len(self.kept) + 1}"
        self.kept[handle] = result.text
        return source(handle, result.text, origin=result.origin or call.name)

    def record_cut(self) -> None:
        self.cuts += 1


def source(handle: str, text: str, *, origin: str = "look_up") -> EvidenceRef:
    return EvidenceRef(
        handle=handle,
        kind="text",
        origin=origin,
        chars=len(text),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


class Bring:
    """`Tools`. Each call brings the next of these."""

    def __init__(
        self, *results: ToolResult | str, specs: tuple[ToolSpec, ...] = (LOOK_UP, JOT)
    ) -> None:
        self.specs = specs
        self._results = list(results)

    async def call(self, call: ToolCall) -> ToolResult:
        result = self._results.pop(0) if self._results else "nothing more"
        result = ToolResult(id="", text=result) if isinstance(result, str) else result
        return replace(result, id=call.id)


def calls(outcome: TurnOutcome) -> list[ToolCallRecord]:
    return [called for step in outcome.steps for called in step.calls]
