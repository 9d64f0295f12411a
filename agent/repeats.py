"""Calls that a turn makes again, word for word: they are answered from the first result. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from agent.journal import to_single_line
from agent.models.base import ToolCall, ToolResult, ToolSpec
from agent.tools.surface import unwrap_call

MAX_CALL_CHARS: Final = 120
MAX_NAME_CHARS: Final = 64
MAX_LISTED_CALLS: Final = 12
"""Calls that are listed, the newest."""
MAX_FAILED_CALLS: Final = 2
"""Times that the same call is carried out though it failed before."""
MAX_SAME_CALLS: Final = 2
"""Times that a turn may make the same call."""
REPEATED_CALL: Final = (
    "Not carried out: you have made this very call twice in this turn, and what it brought stands above. Answer from "
    "that, or do something else."
)


class DuplicateCalls:
    """Of one turn."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._results: dict[str, tuple[ToolResult, int]] = {}
        """By what was called: the newest result, and how often it was brought."""
        self._call_counts: dict[str, int] = {}
        """How often each call was made."""
        self.repeated_count = 0
        """Calls that were answered like this."""

    def find_result(self, call: ToolCall) -> ToolResult | None:
        """What the same call brought before, if it would bring the same again, or was made too often.

        None: carry it out.
        """
        name = call_key(call)
        self._call_counts[name] = self._call_counts.get(name, 0) + 1
        if self._call_counts[name] > MAX_SAME_CALLS:
            return ToolResult(id=call.id, text=REPEATED_CALL, is_error=True)
        found = self._results.get(name)
        if found is None or (found[0].is_error and found[1] < MAX_FAILED_CALLS):
            return None
        self.repeated_count += 1
        return replace(found[0], id=call.id)

    def record_result(self, call: ToolCall, result: ToolResult) -> None:
        """It was carried out. Of what may have changed, by it or meanwhile, earlier results say nothing."""
        spec, name = self._specs.get(unwrap_call(call).name), call_key(call)
        times = self._results[name][1] if name in self._results else 0
        if spec is None or spec.is_polling or not spec.is_parallel:
            self._results.clear()
        if spec is None or not spec.is_polling:
            self._results[name] = (result, times + 1)


def call_key(call: ToolCall) -> str:
    """The same for calls that ask for the same."""
    inner = unwrap_call(call)
    try:
        arguments = json.dumps(json.loads(inner.arguments.strip() or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = inner.arguments
    return f"{inner.name} {arguments}"


def format_call(call: ToolCall) -> str:
    """A call on one line, for the list of what was asked for."""
    said = "" if call.arguments.strip() in ("", "{}") else call.arguments
    return to_single_line(f"{call.name[:MAX_NAME_CHARS]} {said[: 2 * MAX_CALL_CHARS]}", MAX_CALL_CHARS)


def format_call_list(calls: Sequence[str], repeated: int) -> str:
    """What a turn has asked for so far, in the model's own words, which may be somebody else's."""
    listed = list(dict.fromkeys(calls))
    left = [f"- and {len(listed) - MAX_LISTED_CALLS} more"] if len(listed) > MAX_LISTED_CALLS else []
    again = [f"({repeated} calls were the same again: they were answered from the first result.)"] if repeated else []
    return "\n".join(
        ["Asked for in this turn so far:", *(f"- {one}" for one in listed[-MAX_LISTED_CALLS:]), *left, *again]
    )
