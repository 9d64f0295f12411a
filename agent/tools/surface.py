"""How tools are told to a model: each by itself, or one that calls all others by the names of a catalogue. Pure.

With the catalogue what a model is told of as tools is always the same bytes: a new capability changes a block behind
the identity, and nothing in front of it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from agent.journal import to_single_line
from agent.steps import join_surrogates
from gateway.core.tool_spec import ToolArguments, ToolCall, ToolSpec, canonical_json, define_tool

ToolSurface = Literal["native", "capability"]

MAX_LINE_CHARS: Final = 200
MAX_SIGNATURE_CHARS: Final = 600


class CallCapabilityArgs(ToolArguments):
    """What `call_capability` takes."""

    capability: Annotated[str, Field(min_length=1, description="Its name, as the catalogue has it.")]
    args: Annotated[dict[str, Any], Field(description="What it takes, by name.")] = {}  # noqa: RUF012 - pydantic copies it
    purpose: Annotated[str, Field(description="What for, in a few words.")] = ""


CALL_CAPABILITY: Final = define_tool(
    "call_capability",
    "Use a capability of the catalogue: whatever you do besides writing text is done by this.",
    CallCapabilityArgs,
)
CAPABILITY_USAGE: Final = (
    'Write {"capability": "...", "args": {...}, "purpose": "..."}: the name of a capability as the catalogue has it, '
    "and an object with what it takes."
)
CATALOGUE_HEADING: Final = """\
# Capabilities
Call them by `call_capability`. Behind each name stands what it takes; `?` may be left out."""


def specs_on_wire(specs: Sequence[ToolSpec], surface: ToolSurface, *, late: bool = False) -> tuple[ToolSpec, ...]:
    """What a model is told of as its tools. `late`: others may come that it could not call else."""
    if surface == "capability":
        return (CALL_CAPABILITY,)
    return (*specs, CALL_CAPABILITY) if late else tuple(specs)


def render_catalogue(specs: Iterable[ToolSpec]) -> str:
    """All of them as text: sorted by name, the same bytes for the same tools."""
    lines = [
        f"- {one.name}{_render_signature(one)}: {_render_line(one)}" for one in sorted(specs, key=lambda one: one.name)
    ]
    return "\n".join([CATALOGUE_HEADING, *lines])


def unwrap_call(call: ToolCall) -> ToolCall:
    """The call of a tool that a call of `call_capability` is; any other one, and one that says nothing, is itself."""
    if call.name != CALL_CAPABILITY.name:
        return call
    try:
        written = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call
    name = written.get("capability") if isinstance(written, dict) else None
    if not isinstance(name, str) or not name.strip() or name == CALL_CAPABILITY.name:
        return call
    args = written.get("args")
    if not isinstance(args, str):  # else it is an object that was written as text
        args = "{}" if args is None else canonical_json(args)
    return replace(
        call, name=join_surrogates(name.strip()), arguments=join_surrogates(args)
    )  # an escape may be half a character


def wrap_calls(calls: Iterable[ToolCall], told: Iterable[ToolSpec]) -> tuple[ToolCall, ...]:
    """The calls as a model that is told of these tools can make them: what leaks by another name is a capability."""
    names = {spec.name for spec in told}
    return tuple([_wrap_call(call) if names == {CALL_CAPABILITY.name} else call for call in calls])


def _wrap_call(call: ToolCall) -> ToolCall:
    if call.name == CALL_CAPABILITY.name:
        return call
    try:
        args = json.loads(call.arguments.strip() or "{}")
    except (ValueError, RecursionError):
        args = call.arguments
    return replace(call, name=CALL_CAPABILITY.name, arguments=canonical_json({"capability": call.name, "args": args}))


def _render_line(one: ToolSpec) -> str:
    said = one.summary or one.description.split(". ")[0]
    return to_single_line(said[: 2 * MAX_LINE_CHARS], MAX_LINE_CHARS)


def _render_signature(one: ToolSpec) -> str:
    schema = json.loads(one.schema)
    wanted = schema.get("required", [])
    told = [
        f"{to_single_line(name, 40)}{'' if name in wanted else '?'}: {_render_type(form)}"
        for name, form in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in wanted)
    ]
    made = f"({', '.join(told)})"
    return made if len(made) <= MAX_SIGNATURE_CHARS else f"{made[:MAX_SIGNATURE_CHARS]}...)"


def _render_type(form: object) -> str:
    if not isinstance(form, dict):
        return "any"
    if isinstance(form.get("enum"), list):
        return "|".join(canonical_json(one) for one in form["enum"])[:80]
    kind = form.get("type")
    if kind == "array":
        return f"[{_render_type(form.get('items'))}]"
    return kind if isinstance(kind, str) else "any"
