"""How tools are told to a model: each by itself, or one that calls all others by the names of a catalogue. Pure.

With the catalogue what a model is told of as tools is always the same bytes: a new capability changes a block behind
the identity, and nothing in front of it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from agent.journal import flat
from agent.models.base import ToolCall, ToolSpec
from agent.steps import whole
from agent.tools.schema import Arguments, canonical, spec

Kind = Literal["native", "capability"]

MAX_LINE_CHARS: Final = 200
MAX_SIGNATURE_CHARS: Final = 600


class CallCapability(Arguments):
    """What `call_capability` takes."""

    capability: Annotated[str, Field(min_length=1, description="Its name, as the catalogue has it.")]
    args: Annotated[dict[str, Any], Field(description="What it takes, by name.")] = {}  # noqa: RUF012 - pydantic copies it
    purpose: Annotated[str, Field(description="What for, in a few words.")] = ""


CALL_CAPABILITY: Final = spec(
    "call_capability",
    "Use a capability of the catalogue: whatever you do besides writing text is done by this.",
    CallCapability,
)
WRONG: Final = (
    'Write {"capability": "...", "args": {...}, "purpose": "..."}: the name of a capability as the catalogue has it, '
    "and an object with what it takes."
)
HEADING: Final = """\
# Capabilities
Call them by `call_capability`. Behind each name stands what it takes; `?` may be left out."""


def wired(specs: Sequence[ToolSpec], surface: Kind, *, late: bool = False) -> tuple[ToolSpec, ...]:
    """What a model is told of as its tools. `late`: others may come that it could not call else."""
    if surface == "capability":
        return (CALL_CAPABILITY,)
    return (*specs, CALL_CAPABILITY) if late else tuple(specs)


def catalogue(specs: Iterable[ToolSpec]) -> str:
    """All of them as text: sorted by name, the same bytes for the same tools."""
    lines = [f"- {one.name}{_signature(one)}: {_line(one)}" for one in sorted(specs, key=lambda one: one.name)]
    return "\n".join([HEADING, *lines])


def meant(call: ToolCall) -> ToolCall:
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
        args = "{}" if args is None else canonical(args)
    return replace(call, name=whole(name.strip()), arguments=whole(args))  # an escape may be half a character


def wrapped(calls: Iterable[ToolCall], told: Iterable[ToolSpec]) -> tuple[ToolCall, ...]:
    """The calls as a model that is told of these tools can make them: what leaks by another name is a capability."""
    names = {spec.name for spec in told}
    return tuple([_wrapped(call) if names == {CALL_CAPABILITY.name} else call for call in calls])


def _wrapped(call: ToolCall) -> ToolCall:
    if call.name == CALL_CAPABILITY.name:
        return call
    try:
        args = json.loads(call.arguments.strip() or "{}")
    except (ValueError, RecursionError):
        args = call.arguments
    return replace(call, name=CALL_CAPABILITY.name, arguments=canonical({"capability": call.name, "args": args}))


def _line(one: ToolSpec) -> str:
    said = one.summary or one.description.split(". ")[0]
    return flat(said[: 2 * MAX_LINE_CHARS], MAX_LINE_CHARS)


def _signature(one: ToolSpec) -> str:
    schema = json.loads(one.schema)
    wanted = schema.get("required", [])
    told = [
        f"{flat(name, 40)}{'' if name in wanted else '?'}: {_type(form)}"
        for name, form in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in wanted)
    ]
    made = f"({', '.join(told)})"
    return made if len(made) <= MAX_SIGNATURE_CHARS else f"{made[:MAX_SIGNATURE_CHARS]}...)"


def _type(form: object) -> str:
    if not isinstance(form, dict):
        return "any"
    if isinstance(form.get("enum"), list):
        return "|".join(canonical(one) for one in form["enum"])[:80]
    kind = form.get("type")
    if kind == "array":
        return f"[{_type(form.get('items'))}]"
    return kind if isinstance(kind, str) else "any"
