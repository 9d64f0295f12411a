"""Tools as the model sees them: those that end a turn, and the surface of all others. Pure.

The surface: each tool is offered by itself, or all through `call_capability` and a catalogue.

With the catalogue a request always lists the same single tool: a new capability changes a block
behind the identity, and nothing in front of it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import Field

from agent.prompt import ToolSurface, join_surrogates
from gateway.core.events import ToolCallRecord, TurnStep
from gateway.core.text_safety import to_single_line
from gateway.core.tool_spec import ToolArguments, ToolCall, ToolSpec, canonical_json, define_tool


class EndingArgs(ToolArguments):
    """Arguments of the tools that end a turn."""

    note: Annotated[str, Field(description="Unasked: what you did and why.")] = ""


STAY_SILENT = define_tool(
    "stay_silent",
    "End this turn and post nothing.",
    EndingArgs,
)
YIELD_TO_USER = define_tool(
    "yield_to_user",
    "End this turn and rest until somebody speaks to you. Text beside this call is posted.",
    EndingArgs,
)
ENDING_TOOLS = (STAY_SILENT, YIELD_TO_USER)
"""Tools that end a turn without a reply, or with the text beside the call."""
ENDING_TOOL_NAMES: Final = frozenset(spec.name for spec in ENDING_TOOLS)

CONTINUE_TASK: Final = "continue_task"
"""Tool after which the agent goes on by itself once the turn has ended. Text beside it alone is
posted."""

MAX_LINE_CHARS: Final = 200
MAX_SIGNATURE_CHARS: Final = 600


class CallCapabilityArgs(ToolArguments):
    """Arguments of `call_capability`."""

    capability: Annotated[str, Field(min_length=1, description="Name from the catalogue.")]
    args: Annotated[dict[str, Any], Field(description="Its arguments, by name.")] = {}  # noqa: RUF012 - pydantic copies it
    purpose: Annotated[str, Field(description="What for, in a few words.")] = ""


CALL_CAPABILITY: Final = define_tool(
    "call_capability",
    "Use a capability from the catalogue. Everything besides writing text is done with this tool.",
    CallCapabilityArgs,
)
CAPABILITY_USAGE: Final = (
    'Write {"capability": "...", "args": {...}, "purpose": "..."}: the name of a capability from '
    "the catalogue, and "
    "an object with its arguments."
)
CATALOGUE_HEADING: Final = """\
# Capabilities
Call them with `call_capability`. The arguments follow each name; those with `?` are optional."""


def specs_on_wire(
    specs: Sequence[ToolSpec], surface: ToolSurface, *, late: bool = False
) -> tuple[ToolSpec, ...]:
    """Return the tools that the request lists.

    `late`: other tools may be added that the model could not call otherwise.
    """
    if surface == "capability":
        return (CALL_CAPABILITY,)
    return (*specs, CALL_CAPABILITY) if late else tuple(specs)


def render_catalogue(specs: Iterable[ToolSpec]) -> str:
    """Render the catalogue, sorted by name: the same bytes for the same tools."""
    lines = [
        f"- {spec.name}{_render_signature(spec)}: {_render_line(spec)}"
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    return "\n".join([CATALOGUE_HEADING, *lines])


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


def read_call(call: ToolCallRecord) -> tuple[str, Mapping[str, object]]:
    """Return the tool and the arguments of a call of an earlier answer. Arguments that are no
    object are left out.
    """
    inner = unwrap_call(ToolCall(id=call.id, name=call.name, arguments=call.arguments))
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
    """Return the calls in the form that the model can make with these tools.

    With the catalogue, a leaked call by another name becomes a call of `call_capability`.
    """
    names = {spec.name for spec in listed}
    return tuple([_wrap_call(call) if names == {CALL_CAPABILITY.name} else call for call in calls])


def _wrap_call(call: ToolCall) -> ToolCall:
    if call.name == CALL_CAPABILITY.name:
        return call
    wrapped = {"capability": call.name, "args": load_arguments(call.arguments)}
    return replace(call, name=CALL_CAPABILITY.name, arguments=canonical_json(wrapped))


def _render_line(spec: ToolSpec) -> str:
    summary = spec.description.split(". ")[0]
    return to_single_line(summary[: 2 * MAX_LINE_CHARS], MAX_LINE_CHARS)


def _render_signature(spec: ToolSpec) -> str:
    schema = json.loads(spec.schema)
    required = schema.get("required", [])
    parameters = [
        (
            f"{to_single_line(name, 40)}{'' if name in required else '?'}: "
            f"{_render_type(parameter_schema)}"
        )
        for name, parameter_schema in sorted(
            schema.get("properties", {}).items(), key=lambda item: item[0] not in required
        )
    ]
    signature = f"({', '.join(parameters)})"
    return (
        signature
        if len(signature) <= MAX_SIGNATURE_CHARS
        else f"{signature[:MAX_SIGNATURE_CHARS]}...)"
    )


def _render_type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "|".join(canonical_json(value) for value in schema["enum"])[:80]
    kind = schema.get("type")
    if kind == "array":
        return f"[{_render_type(schema.get('items'))}]"
    return kind if isinstance(kind, str) else "any"
