"""From a pydantic model of a tool's arguments to what a language model is told of it, and back. Pure."""

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gateway.core.events import EvidenceRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture, for a model that sees; only the user's side holds any."""

    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: bytes = field(repr=False)
    """At most `MAX_IMAGE_BYTES`."""
    description: str
    """One line, not blank: what stands in its place for a model that does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultExcerpt:
    """Of what a result is a part, and of which."""

    source: EvidenceRef
    offset: int
    """What stands at a place of the result's text, behind its first line, stands so much further on in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The model asks for a tool."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it: untrusted and perhaps malformed."""
    is_recovered: bool = False
    """It was found in the text of an answer: whose words it is nobody knows. Not told to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str
    schema: str
    """JSON Schema of the arguments, canonical JSON text (sorted keys, no spaces)."""
    is_task: bool = True
    """Using it is work on a task, with which the agent may go on. False: it only ends the turn, looks something up in
    its own memory or writes something down. Not told to the model."""
    is_ephemeral: bool = False
    """What it does is kept elsewhere, so its calls leave the view at the next fold. Not told to the model."""
    summary: str = ""
    """The description in one line, for a catalogue. Empty: its first sentence. Not told to the model by itself."""
    is_parallel: bool = False
    """May run beside others of the same answer: it changes nothing that these look at. Not told to the model."""
    is_polling: bool = False
    """The same call may bring something else each time, so each is carried out. Not told to the model."""


MAX_PROBLEMS: Final = 5
MAX_PROBLEM_CHARS: Final = 200
"""Of one problem: names of arguments are the model's own."""


class ToolCallRefused(Exception):
    """A tool was not carried out. The message is for the model: one sentence that says why and what would do."""


class ToolArguments(BaseModel):
    """What a tool takes. Each field's description is told to the model."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, written: object) -> object:
        """What is null was left out: models write both."""
        return {key: one for key, one in written.items() if one is not None} if isinstance(written, dict) else written


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


def define_tool(
    name: str,
    description: str,
    arguments: type[ToolArguments],
    *,
    line: str = "",
    task: bool = False,
    ephemeral: bool = False,
    parallel: bool = False,
    polls: bool = False,
) -> ToolSpec:
    """Describe a tool. The same model always makes the same bytes: they stand in front of every cached prompt."""
    schema = _simplify_schema(arguments.model_json_schema())
    assert isinstance(schema, dict)
    schema.setdefault("properties", {})  # llama.cpp and OpenAI want it, even where there are none
    schema.pop("description", None)  # of the class, for readers of the code
    return ToolSpec(
        name=name,
        description=description,
        schema=canonical_json(schema),
        summary=line,
        is_task=task,
        is_ephemeral=ephemeral,
        is_parallel=parallel,
        is_polling=polls,
    )


def canonical_json(schema: object) -> str:
    """JSON as it stands on the wire: the same facts are the same bytes."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_arguments(arguments: type[ArgumentsT], written: str) -> ArgumentsT:
    """What the model wrote as the arguments of a call. Raises Refused; the call itself is not repeated in it."""
    try:
        return arguments.model_validate_json(written.strip() or "{}")
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"[:MAX_PROBLEM_CHARS] for one in found]
    raise ToolCallRefused("; ".join(" ".join(one.split()) for one in told[:MAX_PROBLEMS]))


def _simplify_schema(schema: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Without pydantic's titles, and without the null that only says that an argument may be left out."""
    if isinstance(schema, list):
        return [_simplify_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: _simplify_schema(one) for name, one in value.items()}
        if key in ("properties", "$defs")
        else _simplify_schema(value)
        for key, value in schema.items()
        if key != "title" and not (key == "default" and value is None)
    }
    choices = [one for one in made.get("anyOf", ()) if one != {"type": "null"}]
    if len(choices) == 1:
        del made["anyOf"]
        made = {**choices[0], **made}
    return made
