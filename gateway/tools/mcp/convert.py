"""What a tool takes, as far as every model's provider understands it. Pure.

A provider refuses a whole request because of one schema that it does not like, so a server could silence the agent with
one. Only keywords that mean the same everywhere stay, each in the shape that JSON Schema 2020-12 asks of it; nothing
stands beside `properties` at the root that Anthropic refuses there (`anyOf`, `oneOf`, `allOf`), and the names are
as it wants them (`^[a-zA-Z0-9_.-]{1,64}$`). The server still judges what it is sent by its own schema.

What a tool of a server brought, as the model is told of it. Pure.

What a server offers, and what of it the agent is told. Pure.

What a server's tool is called here. Pure.

A name depends on the operator's configuration and on the tool's own name only, never on what else a server offers: so
it stays the same whatever comes and goes, and no server can take the name of another's tool.

What a server says, without what only it and we may know, and without what nobody sees. Pure.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from agent.workspace.character_card import normalize_text
from gateway.core.media_types import identify_image
from gateway.core.tool_spec import ToolSpec, canonical_json

MAX_RESULT_BLOCKS: Final = 1_000
MAX_IMAGES: Final = 4
"""Of one result; more are told in words."""
FAILED: Final = "It did not work. The server says:"
NO_OUTPUT: Final = "It was done; the server says nothing about it."


@dataclass(frozen=True, slots=True, kw_only=True)
class McpText:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBinary:
    """Anything else."""

    kind: str
    """`image`, `sound` or `file`."""
    media_type: str
    """As the server says: untrusted."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult:
    """Of one call."""

    blocks: Sequence[McpText | McpBinary]
    structured: object = None
    """JSON of any shape. None: there is none."""
    error: bool = False
    """The server says that it did not work."""


def find_images(answer: McpResult) -> list[McpBinary]:
    """Those that a model can be shown, by what they are and not by what is said of them."""
    found = [one for one in answer.blocks if isinstance(one, McpBinary) and identify_image(one.data) is not None]
    return found[:MAX_IMAGES]


def render_result(answer: McpResult, shown: Sequence[McpBinary]) -> str:
    """The whole as a text; what is in `shown` is said to be shown."""
    told = [_render_block(one, shown) for one in answer.blocks[:MAX_RESULT_BLOCKS]]
    if answer.structured is not None and not _is_repeated_in_text(answer.structured, answer.blocks):
        told.append(json.dumps(answer.structured, ensure_ascii=False, sort_keys=True))
    if (more := len(answer.blocks) - MAX_RESULT_BLOCKS) > 0:
        told.append(f"[{more} more parts are left out]")
    whole = "\n".join(one for one in told if one)
    if answer.error:
        return f"{FAILED}\n{whole or '(nothing)'}"
    return whole or NO_OUTPUT


def _render_block(block: McpText | McpBinary, shown: Sequence[McpBinary]) -> str:
    if isinstance(block, McpText):
        return block.text
    kind = " ".join(block.media_type.split())[:64]
    size = f"{len(block.data):,} bytes"
    if any(block is one for one in shown):
        return f"[{block.kind}, {kind}, {size}: shown]"
    return f"[{block.kind}, {kind}, {size}: it cannot be shown here]"


def _is_repeated_in_text(structured: object, blocks: Sequence[McpText | McpBinary]) -> bool:
    """Servers say what is structured as text, too (specification 2025-11-25, server/tools, structured content).

    Those made with the Python library wrap what is no object as `{"result": ...}`, and say a list item by item.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    said = [one.text for one in blocks if isinstance(one, McpText)]
    for value in values:
        if any(_is_same_value(text, value) for text in said):
            return True
        if isinstance(value, list) and len(said) == len(value) and all(map(_is_same_value, said, value)):
            return True
    return False


def _is_same_value(text: str, value: object) -> bool:
    try:
        return text == value or bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


MAX_TOOL_NAME_CHARS: Final = 64
"""Of a tool's name, with Anthropic and OpenAI alike (`^[a-zA-Z0-9_-]{1,64}$`)."""
_DIGEST_CHARS: Final = 8
_INVALID_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")


def build_tool_name(server: str, tool: str, servers: Collection[str]) -> str:
    """`mcp_<server>_<tool>`, with a digest of the tool's own name where that cannot stand there as it is.

    `server` is one of `servers`, whose names are as the settings have them.
    """
    told = _INVALID_CHARS.sub("_", tool)
    others = [other[len(server) + 1 :] + "_" for other in servers if other.startswith(f"{server}_")]
    while any(f"{told}_".startswith(other) for other in others):  # `a` with `b_c` is not `a_b` with `c`
        told = f"-{told}"
    name = f"mcp_{server}_{told}"
    if tool and told == tool and len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


REDACTED: Final = "[secret]"
_MIN_SECRET_CHARS: Final = 6
"""What is shorter would be found in words that are no secrets."""


class McpSecretFilter:
    """Takes secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Each is taken out whole, and so is each of its words: a header's value may be `Bearer ...`."""
        words = {word for secret in secrets for word in (secret, *secret.split()) if len(word) >= _MIN_SECRET_CHARS}
        self._words = sorted(words, key=lambda word: (-len(word), word))

    def redact(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, REDACTED)
        return text


def sanitize_text(text: str, most: int) -> str:
    """`normalize_text`, without characters that nobody sees or that turn lines around, at most so long."""
    lines = normalize_text(text[: 4 * most])
    seen = normalize_text("".join(char for char in lines if char in "\n\t" or unicodedata.category(char)[0] != "C"))
    return seen if len(seen) <= most else f"{seen[: most - 1].rstrip()}…"


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


MAX_TOOLS: Final = 64
"""Of one server: each costs tokens in every prompt."""
MAX_DESCRIPTION_CHARS: Final = 1_000
MAX_OWN_NAME_CHARS: Final = 128
"""Of a tool, as its server calls it: what the specification allows (2025-11-25, server/tools, tool names)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolOffer:
    """A tool as its server describes it: untrusted."""

    name: str
    title: str
    description: str
    schema: Mapping[str, object]
    """Of its arguments."""


class SelectedTools(NamedTuple):
    """What of that is used."""

    tools: dict[str, tuple[str, ToolSpec]]
    """By the name that the model is told, in its order: the server's own name, and what is told."""
    omitted: int
    """How many tools that the operator wants were left, because they are too many or their names cannot be."""


def select_tools(
    server: str, offered: Iterable[McpToolOffer], globs: Sequence[str], servers: Collection[str]
) -> SelectedTools:
    """The tools that match one of `globs`. Of two with the same name the first counts."""
    wanted = [one for one in offered if any(fnmatchcase(one.name, glob) for glob in globs)]
    tools: dict[str, tuple[str, ToolSpec]] = {}
    for one in sorted(wanted, key=lambda one: one.name):  # so that the same ones are left each time
        name = build_tool_name(server, one.name, servers)
        if len(tools) < MAX_TOOLS and name not in tools and 0 < len(one.name) <= MAX_OWN_NAME_CHARS:
            tools[name] = one.name, _build_spec(name, server, one)
    return SelectedTools(dict(sorted(tools.items())), len(wanted) - len(tools))


def _build_spec(name: str, server: str, offered: McpToolOffer) -> ToolSpec:
    schema, note = simplify_schema(offered.schema)
    told = sanitize_text(offered.description or offered.title, MAX_DESCRIPTION_CHARS - len(note) - 1)
    told = told or f"A tool of the MCP server {server}."
    # It may bring something else each time, and whether it changes anything only the server knows.
    return ToolSpec(name=name, description=f"{told} {note}".strip(), schema=schema, is_task=True, is_polling=True)
