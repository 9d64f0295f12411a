"""Tool specifications: JSON Schema for the language model, made of a pydantic model, and arguments
read back. Pure.
"""

import contextlib
import json
from dataclasses import field
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gateway.core.events import EvidenceRef
from gateway.core.frozen import frozen

MAX_PROBLEM_CHARS: Final = 200
"""Length of one problem: names of arguments are chosen by the model."""


@frozen
class Image:
    """An image, or a PDF whose pages are looked at, for a model with vision. Only the user's side
    holds any.
    """

    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"]
    data: bytes = field(repr=False)
    """At most `MAX_IMAGE_BYTES`."""
    description: str
    """One line, not blank: the replacement for a model without vision."""
    pages: int = 0
    """Pages of the PDF. 0: an image."""


@frozen
class ResultExcerpt:
    """The source text that a result shows a part of, and the position of that part."""

    source: EvidenceRef
    offset: int
    """Difference between a position in the source and in the result's text after its first line."""


@frozen
class ToolCall:
    """A tool call made by the model."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it: untrusted and perhaps malformed."""
    is_recovered: bool = False
    """True if it was found in the text of an answer: its author is not known. Not sent to the
    model."""
    extra: str = ""
    """What its provider wants back with the call, in the form of the client of that provider.
    Empty: nothing."""


Offer = Literal["described", "named", "unnamed"]
"""How a tool is offered. described: whole, in every request; named: in one line, and called by
`call_capability`; unnamed: the same without a line, because other texts name it where it is of
use: a prompt for one place, the result of another tool."""


@frozen
class ToolSpec:
    """Specification of a tool for the model."""

    name: str
    description: str
    """Its first sentence is all that a named tool shows."""
    schema: str
    """JSON Schema of the arguments, canonical JSON text (sorted keys, no spaces)."""
    is_ephemeral: bool = False
    """True if the effect is kept elsewhere, so its calls leave the view at the next fold. Not sent
    to the model."""
    is_parallel: bool = False
    """True if it may run beside other tools of the same answer: it changes nothing that they read.
    Not sent to the model."""
    is_polling: bool = False
    """True if the same call may return a different result each time, so each is carried out. Not
    sent to the model."""
    is_read_only: bool = False
    """True if the MCP server says that it changes nothing. Not sent to the model."""
    offer: Offer = "named"


class ToolCallRefused(Exception):
    """A tool call that was not carried out. The message, for the model: one sentence with the
    reason and a remedy.
    """


class ToolArguments(BaseModel):
    """Arguments of a tool. Each field's description is part of the schema sent to the model."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object) -> object:
        """Treat null as left out: models write both."""
        return (
            {key: one for key, one in data.items() if one is not None}
            if isinstance(data, dict)
            else data
        )


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


def define_tool(
    name: str,
    description: str,
    arguments: type[ToolArguments],
    *,
    ephemeral: bool = False,
    parallel: bool = False,
    polls: bool = False,
    offer: Offer = "named",
) -> ToolSpec:
    """Describe a tool. The same model always gives the same bytes: they are at the start of every
    cached prompt.
    """
    schema = _simplify_schema(arguments.model_json_schema())
    assert isinstance(schema, dict)
    schema.setdefault("properties", {})  # llama.cpp and OpenAI need it, even if it is empty
    schema.pop("description", None)  # of the class, for readers of the code
    return ToolSpec(
        name=name,
        description=description,
        schema=canonical_json(schema),
        is_ephemeral=ephemeral,
        is_parallel=parallel,
        is_polling=polls,
        offer=offer,
    )


def canonical_json(schema: object) -> str:
    """Return compact JSON with sorted keys: equal data gives equal bytes."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_arguments(arguments: type[ArgumentsT], json_text: str) -> ArgumentsT:
    """Parse the arguments of a call. Raises ToolCallRefused, whose message does not quote the
    arguments.

    Unknown arguments are left out (`find_unknown_arguments`). A text that is no valid argument is
    read as JSON: models write `"null"` and `"[1]"`.
    """
    json_text = json_text.strip() or "{}"
    try:
        return arguments.model_validate_json(json_text)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    wrong = {one["loc"][0] for one in errors if one["loc"]}
    if wrong:  # else it is no JSON object
        known = {
            name: one
            for name, one in json.loads(json_text).items()
            if name in arguments.model_fields
        }
        amended = {name: _read_json(one) if name in wrong else one for name, one in known.items()}
        with contextlib.suppress(ValidationError):
            return arguments.model_validate_json(json.dumps(amended))
    problems = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"[:MAX_PROBLEM_CHARS]
        for one in errors
    ]
    raise ToolCallRefused("; ".join(" ".join(one.split()) for one in problems[:5]))


def _read_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def find_unknown_arguments(arguments: type[ToolArguments], json_text: str) -> list[str]:
    """Return the names of the arguments that `parse_arguments` has left out of a call."""
    return [
        name for name in json.loads(json_text.strip() or "{}") if name not in arguments.model_fields
    ]


def _simplify_schema(schema: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Remove pydantic's titles, the null that only marks an argument as optional, and what says
    nothing to a model.

    That an argument is not known or too small, or that a text is empty or too long, is said when it
    happens.
    """
    if isinstance(schema, list):
        return [_simplify_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {
        key: {name: _simplify_schema(one) for name, one in value.items()}
        if key in ("properties", "$defs")
        else _simplify_schema(value)
        for key, value in schema.items()
        if key not in ("title", "minLength", "maxLength", "minimum", "exclusiveMinimum", "maxItems")
        and not (key == "default" and value in (None, "", [], {}, False))
        and not (key == "additionalProperties" and isinstance(value, bool))
    }
    choices = [one for one in simplified.get("anyOf", ()) if one != {"type": "null"}]
    if len(choices) == 1:
        del simplified["anyOf"]
        simplified = {**choices[0], **simplified}
    return simplified
