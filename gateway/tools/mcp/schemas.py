"""What a tool takes, as far as every model's provider understands it. Pure.

A provider refuses a whole request because of one schema that it does not like, so a server could silence the agent with
one. Only keywords that mean the same everywhere stay, each in the shape that JSON Schema 2020-12 asks of it; nothing
stands beside `properties` at the root that Anthropic refuses there (`anyOf`, `oneOf`, `allOf`), and the names are
as it wants them (`^[a-zA-Z0-9_.-]{1,64}$`). The server still judges what it is sent by its own schema.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from agent.tools.schema import canonical_json
from gateway.tools.mcp.veil import sanitize_text

MAX_SCHEMA_BYTES: Final = 8_192
MAX_NODES: Final = 1_000
"""Subschemas; what is beyond them may be anything."""
MAX_DEPTH: Final = 10
MAX_ARGUMENT_TEXT_CHARS: Final = 300
"""Of the description of one argument."""
MAX_CHOICES: Final = 100
MAX_NUMBER: Final = 2**53
"""What is beyond is not the same number everywhere (RFC 8259, 6)."""
ANY_OBJECT_SCHEMA: Final = canonical_json({"type": "object", "properties": {}, "additionalProperties": True})

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_REF: Final = re.compile(r"#/(?:\$defs|definitions)/([a-zA-Z0-9_.-]{1,64})")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_FORMATS: Final = frozenset({"date", "date-time", "time", "duration", "email", "uri", "uuid"})
_ROOT_KEYWORDS: Final = frozenset({"type", "properties", "required", "additionalProperties"})


def simplify_schema(schema: Mapping[str, object]) -> tuple[str, str]:
    """The schema as canonical JSON of at most MAX_BYTES, and what to tell the model of what it leaves out."""
    if schema.get("type", "object") != "object":
        return ANY_OBJECT_SCHEMA, "What it takes is not described."
    reading = _SchemaSimplifier(schema, told=True)
    made, note = (
        canonical_json(reading.simplify()),
        "Not all that it takes is described." if reading.is_incomplete else "",
    )
    if len(made.encode()) <= MAX_SCHEMA_BYTES:
        return made, note
    made = canonical_json(_SchemaSimplifier(schema, told=False).simplify())
    if len(made.encode()) <= MAX_SCHEMA_BYTES:
        return made, note
    return ANY_OBJECT_SCHEMA, "What it takes is too much to be described here."


class _SchemaSimplifier:
    """Of one schema."""

    def __init__(self, schema: Mapping[str, object], *, told: bool) -> None:
        """`told`: with the descriptions of arguments."""
        self._schema = schema
        self._with_descriptions = told
        self._nodes_left = MAX_NODES
        given = [schema.get(key) for key in ("definitions", "$defs")]
        self._defs = {name: one for defs in given for name, one in _as_mapping(defs).items() if _NAME.fullmatch(name)}
        self.is_incomplete = False
        """Something that says which arguments there are is not in it."""

    def simplify(self) -> dict[str, object]:
        whole = self._simplify_node(self._schema, 0)
        self.is_incomplete = self.is_incomplete or any(
            key in self._schema for key in ("anyOf", "oneOf", "allOf", "$ref")
        )
        made: dict[str, object] = {key: value for key, value in whole.items() if key in _ROOT_KEYWORDS}
        made |= {"type": "object", "properties": whole.get("properties", {})}
        defs = {name: self._simplify_node(one, 1) for name, one in self._defs.items()}
        return made | {"$defs": defs} if defs and '"$ref"' in canonical_json([made, defs]) else made

    def _simplify_node(self, node: object, depth: int) -> dict[str, object]:
        self._nodes_left -= 1
        if not isinstance(node, dict) or depth > MAX_DEPTH or self._nodes_left < 0:
            return {}
        made = {
            key: value
            for key in _KEYWORD_FILTERS
            if key in node and (value := _KEYWORD_FILTERS[key](node[key])) is not None
        }
        if self._with_descriptions and isinstance(told := node.get("description"), str) and told.strip():
            made["description"] = sanitize_text(told, MAX_ARGUMENT_TEXT_CHARS)
        if isinstance(ref := node.get("$ref"), str):
            found = _REF.fullmatch(ref)
            if found and found[1] in self._defs:
                made["$ref"] = f"#/$defs/{found[1]}"
            else:
                self.is_incomplete = True
        made |= self._simplify_object(node, depth)
        if isinstance(node.get("items"), dict):
            made["items"] = self._simplify_node(node["items"], depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := node.get(key), list) and choices and depth:
                made[key] = [self._simplify_node(one, depth + 1) for one in choices[:MAX_CHOICES]]
        return made

    def _simplify_object(self, node: Mapping[str, object], depth: int) -> dict[str, object]:
        made: dict[str, object] = {}
        if isinstance(node.get("properties"), dict):
            given = _as_mapping(node["properties"])
            fit = {name: one for name, one in given.items() if _NAME.fullmatch(name)}
            self.is_incomplete = self.is_incomplete or len(fit) < len(given) or self._nodes_left < len(fit)
            made["properties"] = {
                name: self._simplify_node(one, depth + 1) for name, one in list(fit.items())[:MAX_NODES]
            }
            required = node.get("required")
            if isinstance(required, list) and (known := {one for one in required if isinstance(one, str)} & fit.keys()):
                made["required"] = sorted(known)
        more = node.get("additionalProperties")
        if isinstance(more, bool):
            made["additionalProperties"] = more
        elif isinstance(more, dict):
            made["additionalProperties"] = self._simplify_node(more, depth + 1)
        return made


def _as_mapping(given: object) -> dict[str, object]:
    return given if isinstance(given, dict) else {}


def _filter_type(given: object) -> object:
    if isinstance(given, list):
        return sorted({one for one in given if isinstance(one, str)} & _TYPES) or None
    return given if isinstance(given, str) and given in _TYPES else None


def _filter_number(given: object) -> object:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return given if math.isfinite(given) and abs(given) < MAX_NUMBER else None


def _filter_enum(given: object) -> object:
    if not isinstance(given, list) or not given or len(given) > MAX_CHOICES:
        return None
    fit = [one for one in given if one is None or _filter_scalar(one) is not None]
    return fit if len(fit) == len(given) and len({canonical_json(one) for one in fit}) == len(fit) else None


def _filter_scalar(given: object) -> object:
    """As it is, if it is a value that a model may be shown."""
    if isinstance(given, str):
        return given if sanitize_text(given, MAX_ARGUMENT_TEXT_CHARS) == given else None
    return given if isinstance(given, bool) else _filter_number(given)


_KEYWORD_FILTERS: Final[Mapping[str, Any]] = {
    "type": _filter_type,
    "enum": _filter_enum,
    "const": _filter_scalar,
    "default": _filter_scalar,
    "format": lambda given: given if isinstance(given, str) and given in _FORMATS else None,
    "minimum": _filter_number,
    "maximum": _filter_number,
}
"""Keywords whose values are no schemas, and what of a value stays. None: nothing."""
