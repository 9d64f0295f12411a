"""The calls of one answer, carried out: side by side where that is safe, and told in their order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from agent.models.base import ToolCall, ToolResult, ToolSpec
from agent.repeats import DuplicateCalls, call_key
from agent.tools.surface import CALL_CAPABILITY, CAPABILITY_USAGE, unwrap_call

MAX_CALLS = 64
"""Of one answer that are carried out, as of those that leak into its text: who asks for more is not in its right mind,
or not its own."""
TOO_MANY = f"This was not carried out: an answer may have at most {MAX_CALLS} calls."
CUT_OFF = "Interrupted before it ended. It may have had an effect all the same."


class ToolExecution:
    """Of one answer. What came of it so far can be read at any time."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        specs: Iterable[ToolSpec],
        call: Callable[[ToolCall], Awaitable[ToolResult]],
        repeats: DuplicateCalls,
    ) -> None:
        self._calls = calls
        self._parallel = {spec.name for spec in specs if spec.is_parallel}
        self._call = call
        self._duplicates = repeats
        self._results: dict[str, ToolResult] = {}
        self.ineffective_ids = set[str]()
        """Ids of the calls that changed nothing: they were refused, failed, or were made before."""

    def results(self) -> list[ToolResult]:
        """Of each call, in their order."""
        left = [CUT_OFF if number < MAX_CALLS else TOO_MANY for number in range(len(self._calls))]
        return [
            self._results.get(call.id) or ToolResult(id=call.id, text=why, is_error=True)
            for call, why in zip(self._calls, left, strict=True)
        ]

    async def run(self) -> None:
        """Carry them out. Cut off, those under way are ended and the others do not begin."""
        for group in self._parallel_groups():
            await _gather([asyncio.ensure_future(self._run_call(call)) for call in group])

    def _parallel_groups(self) -> Iterator[list[ToolCall]]:
        """Neighbours that are safe beside each other; the same call twice is not."""
        group: list[ToolCall] = []
        for call in self._calls[:MAX_CALLS]:
            safe = unwrap_call(call).name in self._parallel
            if group and not (safe and self._is_parallel_safe(group, call)):
                yield group
                group = []
            group.append(call)
        if group:
            yield group

    def _is_parallel_safe(self, group: Sequence[ToolCall], call: ToolCall) -> bool:
        return unwrap_call(group[-1]).name in self._parallel and call_key(call) not in {call_key(one) for one in group}

    async def _run_call(self, call: ToolCall) -> None:
        result = self._duplicates.find_result(call)
        if result is None:
            inner = unwrap_call(call)
            if inner.name == CALL_CAPABILITY.name:
                result = ToolResult(id=call.id, text=CAPABILITY_USAGE, is_error=True)
            else:
                result = await self._call(inner)
            self._duplicates.record_result(call, result)
            if result.is_error:
                self.ineffective_ids.add(call.id)
        else:
            self.ineffective_ids.add(call.id)
        self._results[call.id] = result


async def _gather(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all have ended. Cut off, they are ended."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
