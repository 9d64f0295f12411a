"""What happened since a time: the one line of an autonomous turn, and its telling by room and
person. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from agent.journal import to_single_line
from agent.tools import ENDING_TOOLS, unwrap_call
from gateway.core.events import ToolCallRecord, TurnStep
from gateway.core.tool_spec import ToolCall

MAX_NOTE_CHARS: Final = 200
"""Longest note of a turn."""
_MAX_DETAIL_CHARS: Final = 100
_ENDING: Final = frozenset(spec.name for spec in ENDING_TOOLS)
_ACTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "attend": ("attended", "room", "reason"),
    "tell": ("told", "who", "text"),
    "send_message": ("wrote to", "address", "text"),
    "intend": ("intends", "", "what"),
    "remind": ("set a reminder", "", "text"),
    "journal": ("wrote down", "", "title"),
    "remember": ("wrote down", "", "text"),
}
"""Tool -> what it did in words, and its arguments that say where or whom, and what or why."""


def compose_note(steps: Sequence[TurnStep], text: str = "") -> str:
    """Return the line of an autonomous turn (`TurnRecord.note`): as the agent wrote it when it
    ended the turn, else made of what it did; else `text`.

    `text`: what the agent wrote where nobody reads it.
    """
    calls = [call for step in steps for call in step.calls if not call.error]
    read = [_read_call(call) for call in calls]
    notes = [str(given.get("note") or "") for name, given in read if name in _ENDING]
    done = [_describe_action(name, given) for name, given in read if name in _ACTIONS]
    line = next(filter(str.strip, reversed(notes)), "") or "; ".join(done) or text
    return to_single_line(line, MAX_NOTE_CHARS)


def _read_call(call: ToolCallRecord) -> tuple[str, Mapping[str, object]]:
    inner = unwrap_call(ToolCall(id=call.id, name=call.name, arguments=call.arguments))
    try:
        given = json.loads(inner.arguments.strip() or "{}")
    except (ValueError, RecursionError):
        given = {}
    return inner.name, given if isinstance(given, dict) else {}


def _describe_action(name: str, given: Mapping[str, object]) -> str:
    verb, target, detail = _ACTIONS[name]
    where = to_single_line(str(given.get(target) or ""), _MAX_DETAIL_CHARS)
    what = to_single_line(str(given.get(detail) or ""), _MAX_DETAIL_CHARS)
    return f"{f'{verb} {where}'.rstrip()}{f': {what}' if what else ''}"
