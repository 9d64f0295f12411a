"""Requests in the dialect of the Messages API. Pure: a `Request` in, JSON-ready values out.

Obeys platform.claude.com/docs/en: api/messages, agents-and-tools/tool-use/handle-tool-calls (results of
all calls first, in the very next message), build-with-claude/prompt-caching (marks) and build-with-claude/vision.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from agent.models.base import Block, Image, Request, Said, Text, ToolCall, ToolResult, with_now

Json = dict[str, object]
MAX_MARKS = 4

Recall = Callable[[Said, str], list[Json] | None]
"""Given an assistant's `Said` and the digest of all before it: its content as it came, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Where `cache_control` goes."""

    last_tool: bool
    """1 h, on the last tool."""
    blocks: tuple[tuple[int, str], ...]
    """Index and TTL (`1h`, `5m`) of the marked system blocks, ascending, 1 h before 5 m."""
    message: int | None
    """5 m, on the last content block of this message. None: nothing there is stable yet."""


def choose_marks(*, tools: int, blocks: tuple[Block, ...], messages: int) -> Marks:
    """Choose at most four places, the longer-lived first.

    - the last `long` block (it covers the tools; without one the last tool is marked) and the `long`
      block before it, behind which conversations begin to differ: 1 h;
    - the last `short` block: 5 m, unless a `long` one follows it, which the order of TTLs forbids;
    - the message before the newest: the newest ends in what is said for one turn only.
    """
    long = [i for i, block in enumerate(blocks) if block.ttl == "long"]
    short = [i for i, block in enumerate(blocks) if block.ttl == "short" and i > max(long, default=-1)]
    return Marks(
        last_tool=bool(tools) and not long,
        blocks=tuple([(i, "1h") for i in long[-2:]] + [(i, "5m") for i in short[-1:]]),
        message=messages - 2 if messages > 1 else None,
    )


def translate(request: Request, *, model: str, recall: Recall) -> tuple[Json, str]:
    """Return the body, and the digest of everything in it that an answer's thinking is bound to.

    The same request gives the same bytes. The digest leaves the marks out: they may move.
    """
    tools: list[Json] = [
        {"name": t.name, "description": t.description, "input_schema": json.loads(t.schema)} for t in request.tools
    ]
    system: list[Json] = [{"type": "text", "text": block.text} for block in request.blocks]
    digest = hashlib.sha256(_canonical([model, tools, system]))
    messages: list[Json] = []
    for said in merged(with_now(request)):
        content = recall(said, digest.hexdigest()) if said.role == "assistant" else None
        message: Json = {"role": said.role, "content": _content(said) if content is None else content}
        digest.update(_canonical(message))
        messages.append(message)
    _mark(tools, system, messages, choose_marks(tools=len(tools), blocks=request.blocks, messages=len(messages)))
    body: Json = {"model": model, "max_tokens": request.max_output_tokens, "stream": True}
    if tools:
        body["tools"] = tools
    if system:
        body["system"] = system
    return body | {"messages": messages}, digest.hexdigest()


def merged(conversation: tuple[Said, ...]) -> list[Said]:
    """Join neighbours of the same role, and drop those who say nothing."""
    out: list[Said] = []
    for said in conversation:
        parts = tuple(p for p in said.parts if not isinstance(p, Text) or p.text.strip())
        if not parts:
            continue
        if out and out[-1].role == said.role:
            out[-1] = Said(role=said.role, parts=out[-1].parts + parts)
        else:
            out.append(Said(role=said.role, parts=parts))
    return out


def tool_input(arguments: str) -> Json:
    """Read a call's arguments for echoing them: the API takes objects only, the model may write anything."""
    try:
        value: object = json.loads(arguments or "{}", parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": arguments}


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(written: str) -> float:
    if math.isinf(number := float(written)):  # 1e999: what Python would write for it is not JSON
        raise ValueError(f"{written} is too large for a number")
    return number


def _content(said: Said) -> list[Json]:
    first: list[Json] = []
    rest: list[Json] = []
    for part in said.parts:
        if isinstance(part, Text):
            rest.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            data = base64.b64encode(part.data).decode()
            rest.append({"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}})
        elif isinstance(part, ToolCall):
            rest.append({"type": "tool_use", "id": part.id, "name": part.name, "input": tool_input(part.arguments)})
        else:
            first.append(_result(part))
    return first + rest


def _result(part: ToolResult) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": part.id, "content": part.text}
    return result | {"is_error": True} if part.error else result


def _mark(tools: list[Json], system: list[Json], messages: list[Json], marks: Marks) -> None:
    """Put the marks on. Replaces content lists instead of changing them: they may be remembered ones."""
    if marks.last_tool:
        tools[-1] = tools[-1] | _cache_control("1h")
    for index, ttl in marks.blocks:
        system[index] = system[index] | _cache_control(ttl)
    if marks.message is None:
        return
    content = messages[marks.message]["content"]
    assert isinstance(content, list)
    last = content[-1]
    if last["type"] not in {"thinking", "redacted_thinking"}:  # these take no mark
        messages[marks.message]["content"] = [*content[:-1], last | _cache_control("5m")]


def _cache_control(ttl: str) -> Json:
    return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
