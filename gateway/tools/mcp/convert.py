"""Conversion of a server's tools and results into ours: names, schemas, descriptions, texts. Pure.

Names depend on the operator's configuration and on the tool's own name only, never on other tools: so they stay the
same whatever comes and goes, and no server can take the name of another's tool.

Schemas are reduced, because a provider refuses a whole request for one schema that it does not accept, and a server
could silence the agent with one. Only keywords with the same meaning everywhere stay, each in the shape that JSON
Schema 2020-12 requires. The root has no keywords that Anthropic refuses there (`anyOf`, `oneOf`, `allOf`), and the
names of properties match its pattern (`^[a-zA-Z0-9_.-]{1,64}$`). The server still checks arguments by its own schema.
"""

import base64
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from agent.workspace.character_card import normalize_text
from gateway.core.media_types import identify_image
from gateway.core.text_safety import shorten
from gateway.core.tool_spec import ToolSpec, canonical_json

if TYPE_CHECKING:
    import mcp_types as types

MAX_SERVER_TOOLS: Final = 64
"""Tools of one server: each costs tokens in every prompt."""
MAX_DESCRIPTION_CHARS: Final = 1_000
MAX_OWN_NAME_CHARS: Final = 128
"""Characters of a tool's own name, as in the specification (2025-11-25, server/tools, tool names)."""


def select_tools(
    server: str, offered: Iterable["types.Tool"], globs: Sequence[str], servers: Collection[str]
) -> tuple[dict[str, tuple[str, ToolSpec]], int]:
    """Return the tools that match one of `globs`, and the number of those left out by their number or their names.

    By our name, in its order: the server's own name, and the spec for the model. Of two with the same name the first
    counts.
    """
    wanted = [one for one in offered if any(fnmatchcase(one.name, glob) for glob in globs)]
    tools: dict[str, tuple[str, ToolSpec]] = {}
    for one in sorted(wanted, key=lambda one: one.name):  # so that the same ones are left out each time
        name = build_tool_name(server, one.name, servers)
        if len(tools) < MAX_SERVER_TOOLS and name not in tools and 0 < len(one.name) <= MAX_OWN_NAME_CHARS:
            tools[name] = one.name, _build_spec(name, server, one)
    return dict(sorted(tools.items())), len(wanted) - len(tools)


def _build_spec(name: str, server: str, offered: "types.Tool") -> ToolSpec:
    schema, note = simplify_schema(offered.input_schema)
    title = offered.title or (offered.annotations.title if offered.annotations is not None else None)
    description = sanitize_text(offered.description or title or "", MAX_DESCRIPTION_CHARS - len(note) - 1)
    description = description or f"A tool of the MCP server {server}."
    # Results may differ each time, and only the server knows whether the tool changes anything.
    return ToolSpec(
        name=name, description=f"{description} {note}".strip(), schema=schema, is_task=True, is_polling=True
    )


MAX_TOOL_NAME_CHARS: Final = 64
"""Characters of a tool's name, the same for Anthropic and OpenAI (`^[a-zA-Z0-9_-]{1,64}$`)."""
_DIGEST_CHARS: Final = 8
_INVALID_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")


def build_tool_name(server: str, tool: str, servers: Collection[str]) -> str:
    """Return `mcp_<server>_<tool>`, with a digest of the tool's own name if that is not valid there.

    `server` is one of `servers`, whose names are those of the settings.
    """
    safe_name = _INVALID_CHARS.sub("_", tool)
    others = [other[len(server) + 1 :] + "_" for other in servers if other.startswith(f"{server}_")]
    while any(f"{safe_name}_".startswith(other) for other in others):  # `a` with `b_c` is not `a_b` with `c`
        safe_name = f"-{safe_name}"
    name = f"mcp_{server}_{safe_name}"
    if tool and safe_name == tool and len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


MAX_SCHEMA_BYTES: Final = 8_192
MAX_NODES: Final = 1_000
"""Subschemas; those beyond it accept anything."""
MAX_DEPTH: Final = 10
MAX_ARGUMENT_TEXT_CHARS: Final = 300
"""Characters of the description of one argument."""
MAX_CHOICES: Final = 100
MAX_NUMBER: Final = 2**53
"""Larger numbers are not the same everywhere (RFC 8259, 6)."""
ANY_OBJECT_SCHEMA: Final = canonical_json({"type": "object", "properties": {}, "additionalProperties": True})

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_REF: Final = re.compile(r"#/(?:\$defs|definitions)/([a-zA-Z0-9_.-]{1,64})")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_FORMATS: Final = frozenset({"date", "date-time", "time", "duration", "email", "uri", "uuid"})
_ROOT_KEYWORDS: Final = frozenset({"type", "properties", "required", "additionalProperties"})


def simplify_schema(schema: Mapping[str, object]) -> tuple[str, str]:
    """Return the schema as canonical JSON of at most MAX_SCHEMA_BYTES, and a note on what is left out."""
    if schema.get("type", "object") != "object":
        return ANY_OBJECT_SCHEMA, "What it takes is not described."
    simplifier = _SchemaSimplifier(schema, with_descriptions=True)
    simplified, note = (
        canonical_json(simplifier.simplify()),
        "Not all that it takes is described." if simplifier.is_incomplete else "",
    )
    if len(simplified.encode()) <= MAX_SCHEMA_BYTES:
        return simplified, note
    simplified = canonical_json(_SchemaSimplifier(schema, with_descriptions=False).simplify())
    if len(simplified.encode()) <= MAX_SCHEMA_BYTES:
        return simplified, note
    return ANY_OBJECT_SCHEMA, "What it takes is too much to be described here."


class _SchemaSimplifier:
    """Reduces one schema."""

    def __init__(self, schema: Mapping[str, object], *, with_descriptions: bool) -> None:
        """`with_descriptions`: keep the descriptions of arguments."""
        self._schema = schema
        self._with_descriptions = with_descriptions
        self._nodes_left = MAX_NODES
        sources = [schema.get(key) for key in ("definitions", "$defs")]
        self._defs = {name: one for defs in sources for name, one in _as_mapping(defs).items() if _NAME.fullmatch(name)}
        self.is_incomplete = False
        """True if something that defines arguments was left out."""

    def simplify(self) -> dict[str, object]:
        root = self._simplify_node(self._schema, 0)
        self.is_incomplete = self.is_incomplete or any(
            key in self._schema for key in ("anyOf", "oneOf", "allOf", "$ref")
        )
        result: dict[str, object] = {key: value for key, value in root.items() if key in _ROOT_KEYWORDS}
        result |= {"type": "object", "properties": root.get("properties", {})}
        defs = {name: self._simplify_node(one, 1) for name, one in self._defs.items()}
        return result | {"$defs": defs} if defs and '"$ref"' in canonical_json([result, defs]) else result

    def _simplify_node(self, node: object, depth: int) -> dict[str, object]:
        self._nodes_left -= 1
        if not isinstance(node, dict) or depth > MAX_DEPTH or self._nodes_left < 0:
            return {}
        result = {
            key: value
            for key in _KEYWORD_FILTERS
            if key in node and (value := _KEYWORD_FILTERS[key](node[key])) is not None
        }
        if self._with_descriptions and isinstance(description := node.get("description"), str) and description.strip():
            result["description"] = sanitize_text(description, MAX_ARGUMENT_TEXT_CHARS)
        if isinstance(ref := node.get("$ref"), str):
            found = _REF.fullmatch(ref)
            if found and found[1] in self._defs:
                result["$ref"] = f"#/$defs/{found[1]}"
            else:
                self.is_incomplete = True
        result |= self._simplify_object(node, depth)
        if isinstance(node.get("items"), dict):
            result["items"] = self._simplify_node(node["items"], depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := node.get(key), list) and choices and depth:
                result[key] = [self._simplify_node(one, depth + 1) for one in choices[:MAX_CHOICES]]
        return result

    def _simplify_object(self, node: Mapping[str, object], depth: int) -> dict[str, object]:
        result: dict[str, object] = {}
        if isinstance(node.get("properties"), dict):
            properties = _as_mapping(node["properties"])
            valid = {name: one for name, one in properties.items() if _NAME.fullmatch(name)}
            self.is_incomplete = self.is_incomplete or len(valid) < len(properties) or self._nodes_left < len(valid)
            result["properties"] = {
                name: self._simplify_node(one, depth + 1) for name, one in list(valid.items())[:MAX_NODES]
            }
            required = node.get("required")
            if isinstance(required, list) and (
                known := {one for one in required if isinstance(one, str)} & valid.keys()
            ):
                result["required"] = sorted(known)
        more = node.get("additionalProperties")
        if isinstance(more, bool):
            result["additionalProperties"] = more
        elif isinstance(more, dict):
            result["additionalProperties"] = self._simplify_node(more, depth + 1)
        return result


def _as_mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _filter_type(value: object) -> object:
    if isinstance(value, list):
        return sorted({one for one in value if isinstance(one, str)} & _TYPES) or None
    return value if isinstance(value, str) and value in _TYPES else None


def _filter_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and abs(value) < MAX_NUMBER else None


def _filter_enum(value: object) -> object:
    if not isinstance(value, list) or not value or len(value) > MAX_CHOICES:
        return None
    valid = [one for one in value if one is None or _filter_scalar(one) is not None]
    return valid if len(valid) == len(value) and len({canonical_json(one) for one in valid}) == len(valid) else None


def _filter_scalar(value: object) -> object:
    """Return the value if a model may be shown it; None: it may not."""
    if isinstance(value, str):
        return value if sanitize_text(value, MAX_ARGUMENT_TEXT_CHARS) == value else None
    return value if isinstance(value, bool) else _filter_number(value)


_KEYWORD_FILTERS: Final[Mapping[str, Any]] = {
    "type": _filter_type,
    "enum": _filter_enum,
    "const": _filter_scalar,
    "default": _filter_scalar,
    "format": lambda given: given if isinstance(given, str) and given in _FORMATS else None,
    "minimum": _filter_number,
    "maximum": _filter_number,
}
"""For each keyword whose value is not a schema: what remains of the value. None: nothing."""


MAX_RESULT_BLOCKS: Final = 1_000
MAX_RESULT_IMAGES: Final = 4
"""Images of one result; more are described in words."""
FAILED: Final = "It did not work. The server says:"
NO_OUTPUT: Final = "It was done; the server says nothing about it."


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBinary:
    """Binary part of a result."""

    kind: str
    """`image`, `sound` or `file`."""
    media_type: str
    """As the server states it: untrusted."""
    data: bytes


McpPart = str | McpBinary
"""Part of a result."""


def convert_content(content: Iterable["types.ContentBlock"]) -> list[McpPart]:
    """Convert the parts of a result. Links are not followed."""
    return [_convert_block(one) for one in content]


def _convert_block(block: "types.ContentBlock") -> McpPart:
    if block.type == "text":
        return block.text
    if block.type == "image":
        return _decode("image", block.mime_type, block.data)
    if block.type == "audio":
        return _decode("sound", block.mime_type, block.data)
    if block.type == "resource_link":
        about = ": ".join(one for one in (block.title or block.name, block.description) if one)
        return f"[link to {block.uri}] {about}".rstrip()
    from mcp_types import TextResourceContents  # noqa: PLC0415 - here the library is loaded already

    resource = block.resource
    if isinstance(resource, TextResourceContents):
        return f"[{resource.uri}]\n{resource.text}"
    return _decode("file", resource.mime_type or "of no known kind", resource.blob)


def _decode(kind: str, media_type: str, data: str) -> McpPart:
    try:
        return McpBinary(kind=kind, media_type=media_type, data=base64.b64decode("".join(data.split()), validate=True))
    except ValueError:
        return f"[{kind} that cannot be read]"


def find_images(parts: Iterable[McpPart]) -> list[McpBinary]:
    """Return the images that a model can be shown, by their content and not by the declared type."""
    found = [one for one in parts if isinstance(one, McpBinary) and identify_image(one.data) is not None]
    return found[:MAX_RESULT_IMAGES]


def render_result(
    parts: Sequence[McpPart],
    shown: Sequence[McpBinary] = (),
    *,
    structured: object = None,
    is_error: bool | None = False,
) -> str:
    """Render a whole result as text; parts in `shown` are described as shown. The rest: as in `CallToolResult`."""
    rendered = [_render_part(one, shown) for one in parts[:MAX_RESULT_BLOCKS]]
    if structured is not None and not _is_repeated_in_text(structured, parts):
        rendered.append(json.dumps(structured, ensure_ascii=False, sort_keys=True))
    if (more := len(parts) - MAX_RESULT_BLOCKS) > 0:
        rendered.append(f"[{more} more parts are left out]")
    text = "\n".join(one for one in rendered if one)
    if is_error:
        return f"{FAILED}\n{text or '(nothing)'}"
    return text or NO_OUTPUT


def _render_part(part: McpPart, shown: Sequence[McpBinary]) -> str:
    if isinstance(part, str):
        return part
    about = f"{part.kind}, {' '.join(part.media_type.split())[:64]}, {len(part.data):,} bytes"
    return f"[{about}: {'shown' if any(part is one for one in shown) else 'it cannot be shown here'}]"


def _is_repeated_in_text(structured: object, parts: Sequence[McpPart]) -> bool:
    """Return True if the text repeats the structured content (2025-11-25, server/tools, structured content).

    Servers made with the Python library wrap other values than objects as `{"result": ...}`, and list items one by one.
    """
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    texts = [one for one in parts if isinstance(one, str)]
    for value in values:
        if any(_is_same_value(text, value) for text in texts):
            return True
        if isinstance(value, list) and len(texts) == len(value) and all(map(_is_same_value, texts, value)):
            return True
    return False


def _is_same_value(text: str, value: object) -> bool:
    try:
        return text == value or bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


REDACTED: Final = "[secret]"
_MIN_SECRET_CHARS: Final = 6
"""Shorter secrets are not removed: they would match in ordinary words."""


class McpSecretFilter:
    """Removes secrets from texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Each secret is removed whole, and so is each of its words: a header's value may be `Bearer ...`."""
        words = {word for secret in secrets for word in (secret, *secret.split()) if len(word) >= _MIN_SECRET_CHARS}
        self._words = sorted(words, key=lambda word: (-len(word), word))

    def redact(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, REDACTED)
        return text


def sanitize_text(text: str, max_chars: int) -> str:
    """Normalise the text, remove invisible and bidirectional control characters, and cut it at `max_chars`."""
    lines = normalize_text(text[: 4 * max_chars])
    return shorten(
        normalize_text("".join(char for char in lines if char in "\n\t" or unicodedata.category(char)[0] != "C")),
        max_chars,
    )
