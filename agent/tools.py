"""Tools as the model sees them: described, or named in a catalogue. Pure.

A request describes the few tools that most turns need (`ToolSpec.offer`). The others stand in a
catalogue, one line each, and are called by `call_capability`, so a new one changes a block behind
the identity and nothing in front of it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Final

from agent.prompt import join_surrogates
from gateway.core.events import ToolCallRecord, TurnStep
from gateway.core.text_safety import to_single_line
from gateway.core.tool_spec import ToolCall, ToolSpec, canonical_json

_NOTE: Final = (
    '{"properties":{"note":{"description":"Unasked: what you did and why.","type":"string"}},'
    '"type":"object"}'
)
STAY_SILENT: Final = ToolSpec(
    name="stay_silent",
    description="End this turn and post nothing.",
    schema=_NOTE,
    offer="described",
)
YIELD_TO_USER: Final = ToolSpec(
    name="yield_to_user",
    description="End this turn and rest until somebody speaks to you. Text beside this call is "
    "posted.",
    schema=_NOTE,
    offer="unnamed",
)
ENDING_TOOLS = (STAY_SILENT, YIELD_TO_USER)
"""Tools that end a turn without a reply, or with the text beside the call."""
ENDING_TOOL_NAMES: Final = frozenset(spec.name for spec in ENDING_TOOLS)

CONTINUE_TASK: Final = "continue_task"
"""Tool after which the agent goes on by itself once the turn has ended. Text beside it alone is
posted."""

MAX_LINE_CHARS: Final = 200


CALL_CAPABILITY: Final = ToolSpec(
    name="call_capability",
    description="Use one of the other tools. Without args it describes itself.",
    schema='{"properties":{"args":{"type":"object"},"capability":{"type":"string"}},'
    '"required":["capability"],"type":"object"}',
    offer="described",
)
CAPABILITY_USAGE: Final = (
    'Write {"capability": "...", "args": {...}}: the name of a tool from the catalogue, and an '
    "object with its arguments."
)
CATALOGUE_HEADING: Final = """\
# Other tools
Call these by `call_capability`; arguments with `?` may be left out."""


@lru_cache(maxsize=16)
def offer_tools(specs: tuple[ToolSpec, ...]) -> tuple[tuple[ToolSpec, ...], str]:
    """Return the tools that a request describes, and the catalogue of those that are only named,
    sorted: the same bytes for the same tools. Empty: there are none.
    """
    described = (*(spec for spec in specs if spec.offer == "described"), CALL_CAPABILITY)
    named = sorted([spec for spec in specs if spec.offer == "named"], key=attrgetter("name"))
    catalogue = "\n".join([CATALOGUE_HEADING, *map(render_entry, named)]) if named else ""
    return described, catalogue


def render_entry(spec: ToolSpec) -> str:
    """Render the line of a tool in the catalogue."""
    schema = json.loads(spec.schema)
    required, properties = schema.get("required", []), schema.get("properties", {})
    optional = [f"{name}?" for name in properties if name not in required]
    names = ", ".join([to_single_line(name, 40) for name in (*required, *optional)])
    summary = spec.description.split(". ")[0].rstrip(".")
    told = to_single_line(summary[: 2 * MAX_LINE_CHARS], MAX_LINE_CHARS)
    return f"- {spec.name}{f'({names})'[:400]}: {told}"


def load_arguments(written: str) -> object:
    """Return the parsed arguments of a call, or the text itself if it is no JSON."""
    try:
        return json.loads(written.strip() or "{}")
    except (ValueError, RecursionError):
        return written


def unwrap_call(call: ToolCall) -> ToolCall:
    """Return the call of the tool inside of a `call_capability` call.

    Other calls, and one without a valid capability, are returned unchanged.
    """
    if call.name != CALL_CAPABILITY.name:
        return call
    parsed = load_arguments(call.arguments)
    given = parsed if isinstance(parsed, dict) else {}
    name = given.get("capability")
    if not isinstance(name, str) or not name.strip() or name == CALL_CAPABILITY.name:
        return call
    args = given.get("args")
    if not isinstance(args, str):  # a string is an object that was written as text
        args = "{}" if args is None else canonical_json(args)
    return replace(
        call, name=join_surrogates(name.strip()), arguments=join_surrogates(args)
    )  # an escape may be half a character


def find_inner_call(call: ToolCallRecord) -> ToolCall:
    """Return a call of an earlier answer as `unwrap_call` does."""
    return unwrap_call(ToolCall(id=call.id, name=call.name, arguments=call.arguments))


def read_call(call: ToolCallRecord) -> tuple[str, Mapping[str, object]]:
    """Return the tool and the arguments of a call of an earlier answer. Arguments that are no
    object are left out.
    """
    inner = find_inner_call(call)
    given = load_arguments(inner.arguments)
    return inner.name, given if isinstance(given, dict) else {}


def carried_out(steps: Iterable[TurnStep]) -> list[tuple[str, Mapping[str, object]]]:
    """Return the calls of a turn that were carried out, besides those that ended it, as `read_call`
    does.
    """
    calls = [read_call(call) for step in steps for call in step.calls if not call.error]
    return [(name, given) for name, given in calls if name not in ENDING_TOOL_NAMES]


def find_next_step(steps: Iterable[TurnStep]) -> str:
    """Return what the agent said that it does next (`CONTINUE_TASK`), on one line. Empty: its work
    ends with the turn.
    """
    steps, said = tuple(steps), ""
    for name, given in carried_out(steps):
        said = str(given.get("next")) if name == CONTINUE_TASK else said
    if not said:
        return ""
    yields = any(read_call(one)[0] == YIELD_TO_USER.name for step in steps for one in step.calls)
    return "" if yields else to_single_line(said, MAX_LINE_CHARS)


def wrap_calls(calls: Iterable[ToolCall], listed: Iterable[ToolSpec]) -> tuple[ToolCall, ...]:
    """Return the calls in the form that the model can make with these tools: one of a tool that is
    not listed becomes a call of `call_capability`.
    """
    names = {spec.name for spec in listed}
    can_wrap = CALL_CAPABILITY.name in names
    wrapped = list[ToolCall]()
    for call in calls:
        if not can_wrap or call.name in names:
            wrapped.append(call)
            continue
        given = {"capability": call.name, "args": load_arguments(call.arguments)}
        arguments = canonical_json(given)
        wrapped.append(replace(call, name=CALL_CAPABILITY.name, arguments=arguments))
    return tuple(wrapped)
