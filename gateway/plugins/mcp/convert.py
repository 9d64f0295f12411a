"""Conversion of a server's tools and results into ours: names, schemas, descriptions, texts. Pure.

Names depend on the operator's configuration and on the tool's own name only, never on other tools:
so they stay the same whatever comes and goes, and no server can take the name of another's tool.

A provider refuses a whole request for one schema that it does not accept, and a server could
silence the agent with one. So only keywords with the same meaning everywhere stay, and a tool whose
schema does not fit is left out with a reason: one that JSON Schema 2020-12 does not permit, that
has a keyword at its root which Anthropic refuses there (`anyOf`, `oneOf`, `allOf`), or whose
arguments have other names than its pattern (`^[a-zA-Z0-9_.-]{1,64}$`).
"""

import base64
import contextlib
import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from gateway.core.frozen import frozen
from gateway.core.text_safety import normalize_text, shorten
from gateway.core.tool_spec import ToolSpec, canonical_json

if TYPE_CHECKING:
    import mcp_types as types

McpToolMap = dict[str, tuple[str, ToolSpec]]
"""By our name: the server's own name, and the spec for the model."""
MAX_SERVER_TOOLS: Final = 64
"""Tools of one server: each costs tokens in every prompt."""
MAX_READ_TOOLS: Final = 256
"""Tools of one server that are looked at, in the order of their names: each may cost a tenth of a
second."""
MAX_DESCRIPTION_CHARS: Final = 1_000
MAX_OWN_NAME_CHARS: Final = 128
"""Characters of a tool's own name, as in the specification (2025-11-25, server/tools, tool
names)."""


def select_tools(
    server: str, offered: Iterable["types.Tool"], globs: Sequence[str], servers: Collection[str]
) -> tuple[McpToolMap, list[str]]:
    """Return the tools that match one of `globs`, and why others that match are left out.

    By our name, in its order: the server's own name, and the spec for the model. Of two with the
    same name the first counts.
    """
    wanted = [one for one in offered if any(fnmatchcase(one.name, glob) for glob in globs)]
    tools: McpToolMap = {}
    reasons: list[str] = []
    wanted.sort(key=lambda one: one.name)  # so that the same ones are left out each time
    for number, one in enumerate(wanted):
        name, reason = build_tool_name(server, one.name, servers), ""
        if len(tools) == MAX_SERVER_TOOLS or number >= MAX_READ_TOOLS:
            reason = f"at most {MAX_SERVER_TOOLS} are taken"
        elif name in tools or not 0 < len(one.name) <= MAX_OWN_NAME_CHARS:
            reason = "its name is taken, empty or too long"
        else:
            try:
                tools[name] = one.name, _build_spec(name, server, one)
            except ValueError as error:
                reason = str(error)
        if reason:
            reasons.append(f"{sanitize_text(one.name, MAX_TOOL_NAME_CHARS)}: {reason}")
    return dict(sorted(tools.items())), reasons


def _build_spec(name: str, server: str, offered: "types.Tool") -> ToolSpec:
    title = offered.title or (
        offered.annotations.title if offered.annotations is not None else None
    )
    description = sanitize_text(offered.description or title or "", MAX_DESCRIPTION_CHARS)
    # Results may differ each time, and only the server knows whether the tool changes anything.
    return ToolSpec(
        name=name,
        description=description or f"A tool of the MCP server {server}.",
        schema=convert_schema(offered.input_schema),
        is_polling=True,
        is_read_only=bool(offered.annotations and offered.annotations.read_only_hint),
    )


MAX_TOOL_NAME_CHARS: Final = 64
"""Characters of a tool's name, the same for Anthropic and OpenAI (`^[a-zA-Z0-9_-]{1,64}$`)."""
_DIGEST_CHARS: Final = 8


def build_tool_name(server: str, tool: str, servers: Collection[str]) -> str:
    """Return `mcp_<server>_<tool>`, with a digest of the tool's own name if that is not valid
    there.

    `server` is one of `servers`, whose names are those of the settings.
    """
    safe_name = re.sub(r"[^a-zA-Z0-9_-]", "_", tool)
    others = [other[len(server) + 1 :] + "_" for other in servers if other.startswith(f"{server}_")]
    while any(
        f"{safe_name}_".startswith(other) for other in others
    ):  # `a` with `b_c` is not `a_b` with `c`
        safe_name = f"-{safe_name}"
    name = f"mcp_{server}_{safe_name}"
    if tool and safe_name == tool and len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


MAX_SCHEMA_BYTES: Final = 8_192

_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""What Anthropic accepts."""
_NAMED: Final = frozenset({"properties", "$defs", "definitions"})
"""Keywords whose values are schemas by name."""
_ROOT_KEYWORDS: Final = _NAMED | {"type", "required", "additionalProperties"}
_KEYWORDS: Final = _ROOT_KEYWORDS | {
    "description",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "enum",
    "const",
}
"""Keywords that mean the same to every provider; an unknown one, such as a `pattern`, may cost a
whole request."""


def convert_schema(schema: Mapping[str, object]) -> str:
    """Return the schema of a tool's arguments as canonical JSON. Raises ValueError with the reason
    if it is unusable.

    Descriptions are sanitised. The server still checks arguments by its own schema.
    """
    # Loaded only where servers are used.
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped] # noqa: PLC0415 - untyped

    try:
        kept = _keep_known(
            {key: value for key, value in schema.items() if key in _ROOT_KEYWORDS}
            | {"type": "object"}
        )
        converted = canonical_json(kept)
        if len(converted.encode()) > MAX_SCHEMA_BYTES:
            raise ValueError(f"its schema is larger than {MAX_SCHEMA_BYTES:,} bytes")
        Draft202012Validator.check_schema(kept)
    except (SchemaError, RecursionError):
        raise ValueError("its schema is not valid JSON Schema") from None
    if schema.get("type", "object") != "object" or schema.keys() & {
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
    }:
        raise ValueError("its schema is not a plain object")
    return converted


def _keep_known(node: object) -> object:
    if isinstance(node, list):
        return [_keep_known(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, object] = {}
    for key in node.keys() & _KEYWORDS:
        value = node[key]
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {
                name: {} if one is True else _keep_known(one) for name, one in value.items()
            }
            if not all(map(_PROPERTY_NAME.fullmatch, value)):
                raise ValueError("the name of an argument has more than letters, digits and _.-")
        elif key == "description" and isinstance(value, str):
            kept[key] = sanitize_text(value, 300)
        elif key in ("enum", "const", "required"):
            text = json.dumps(
                value, ensure_ascii=False, allow_nan=False
            )  # a NaN is no JSON (RFC 8259, 6)
            if sanitize_text(text, len(text)) != text:
                raise ValueError("its schema has invisible characters")
            kept[key] = value
        elif key == "$ref" and not str(value).startswith("#/"):
            raise ValueError("its schema refers to another document")
        else:
            kept[key] = _keep_known(value)
    return kept


MAX_RESULT_BLOCKS: Final = 1_000
MAX_RESULT_CHARS: Final = 990_000
"""Characters of the text of a result: looking for secrets in them takes a second."""
MAX_RESULT_IMAGES: Final = 4
"""Images of one result; more are described in words."""
FAILED: Final = "It did not work. The server says:"
NO_OUTPUT: Final = "It was done; the server says nothing about it."


@frozen
class McpBinary:
    """Binary part of a result."""

    kind: str
    """`image`, `sound` or `file`."""
    media_type: str
    """As the server states it: untrusted."""
    data: bytes


def convert_block(block: "types.ContentBlock") -> str | McpBinary:
    """Convert a part of a result. Links are not followed."""
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


def _decode(kind: str, media_type: str, data: str) -> str | McpBinary:
    try:
        return McpBinary(
            kind=kind,
            media_type=media_type,
            data=base64.b64decode("".join(data.split()), validate=True),
        )
    except ValueError:
        return f"[{kind} that cannot be read]"


def render_result(
    parts: Sequence[str | McpBinary],
    shown: Sequence[McpBinary] = (),
    *,
    structured: object = None,
    is_error: bool | None = False,
) -> str:
    """Render a whole result as text; parts in `shown` are described as shown, and `structured` is
    left out where the texts repeat it. The rest: as in `CallToolResult`.
    """
    rendered = [_render_part(one, shown) for one in parts[:MAX_RESULT_BLOCKS]]
    if structured is not None and not _is_repeated(structured, parts[:MAX_RESULT_BLOCKS]):
        rendered.append(_dump_sorted(structured))
    if len(parts) > MAX_RESULT_BLOCKS:
        rendered.append("[more parts are left out]")
    text = "\n".join(one for one in rendered if one)
    if (more := len(text) - MAX_RESULT_CHARS) > 0:
        text = f"{text[:MAX_RESULT_CHARS]}\n[{more} more characters are left out]"
    if is_error:
        return f"{FAILED}\n{text or '(nothing)'}"
    return text or NO_OUTPUT


def _dump_sorted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _is_repeated(structured: object, parts: Sequence[str | McpBinary]) -> bool:
    """Return whether the texts hold all of it: as JSON, as a server should but need not do
    (2025-11-25, server/tools, structured content), or as the value of `{"result": value}`, which
    the Python SDK makes of a result that is no object, with one text for each item of a list.
    """
    repeated = set[str]()
    for part in parts:
        if isinstance(part, str):
            repeated.add(_dump_sorted(part))
            with contextlib.suppress(ValueError, RecursionError):
                repeated.add(_dump_sorted(json.loads(part)))
    if _dump_sorted(structured) in repeated:
        return True
    if not isinstance(structured, dict) or structured.keys() != {"result"}:
        return False
    value = structured["result"]
    values = value if value and isinstance(value, list) else [value]
    return repeated.issuperset(map(_dump_sorted, values))


def _render_part(part: str | McpBinary, shown: Sequence[McpBinary]) -> str:
    if isinstance(part, str):
        return part
    about = f"{part.kind}, {' '.join(part.media_type.split())[:64]}, {len(part.data):,} bytes"
    return (
        f"[{about}: {'shown' if any(part is one for one in shown) else 'it cannot be shown here'}]"
    )


def sanitize_text(text: str, max_chars: int) -> str:
    """Normalise the text, remove invisible and bidirectional control characters, and cut it at
    `max_chars`.
    """
    return shorten(
        normalize_text(
            "".join(
                char
                for char in normalize_text(text[: 4 * max_chars])
                if char in "\n\t" or unicodedata.category(char)[0] != "C"
            )
        ),
        max_chars,
    )
