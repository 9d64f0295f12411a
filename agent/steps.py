"""Messages of a turn's tool steps, and the fence around untrusted text. Pure.

A step is an answer with tool calls and the results that the model received for them. The turn's own requests and later
prompts render steps by the same function, so the bytes are the same.

A fence is two lines with a seal: a hash over the text itself and over the call's id, which only the gateway knows
beforehand. The text is searched for the seal, so it cannot end its own fence.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.journal import to_single_line
from agent.models.base import MessagePart, ModelMessage, TextPart, ToolResult
from agent.view import estimate_tokens
from gateway.core.events import EvidenceRef, ToolCallRecord, TurnStep
from gateway.core.text_safety import reveal_hidden
from gateway.core.tool_spec import Image, ToolCall

SEAL_CHARS = 12
MAX_LABEL_CHARS = 160
CALL_TOKENS = 24
"""Tokens of the JSON around a call and its result."""
FENCE_TOKENS = 64
"""Most tokens of the fence around an untrusted result."""
IMAGE_TOKENS = 1_600
"""Tokens of an image that a tool returned: about those of the largest (platform.claude.com, build-with-
claude/vision)."""
MAX_ORIGIN_CHARS = 120
"""Limit of an origin in the text for the model. The evidence has the whole."""
MAX_SOURCE_CHARS = 500
"""Limit of an origin in the log."""
MAX_NAME_CHARS = 40
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
ToolImages = Mapping[str, Image]
"""Images that tools returned, by the SHA-256 of their bytes."""
NO_TOOL_IMAGES: ToolImages = {}


def render_steps(steps: Iterable[TurnStep], pictures: ToolImages = NO_TOOL_IMAGES) -> tuple[ModelMessage, ...]:
    """Return the messages of both sides of each step, the agent's first.

    A call that ended the turn has no result, so it is not repeated. `pictures`: the images to show; the others appear
    only as the text beside them.
    """
    return tuple([message for step in steps for message in _step_messages(step, pictures)])


def _step_messages(step: TurnStep, pictures: ToolImages) -> tuple[ModelMessage, ...]:
    calls = [record for record in step.calls if not record.ended]
    if not calls:
        return ()
    assistant_parts: list[MessagePart] = [TextPart(text=step.text)] if step.text.strip() else []
    assistant_parts += [ToolCall(id=record.id, name=record.name, arguments=record.arguments) for record in calls]
    user_parts: list[MessagePart] = [
        ToolResult(id=record.id, text=_render_result(record), is_error=record.error) for record in calls
    ]
    user_parts += [pictures[image.sha256] for record in calls for image in record.images if image.sha256 in pictures]
    user_parts += [TextPart(text=step.heard)] if step.heard else []
    return ModelMessage(role="assistant", parts=tuple(assistant_parts)), ModelMessage(
        role="user", parts=tuple(user_parts)
    )


def _render_result(record: ToolCallRecord) -> str:
    return fence_result(record.result, record.name, record.origin, record.id) if record.untrusted else record.result


def fence_result(text: str, tool: str, origin: str, call: str) -> str:
    """Return an untrusted result inside its fence. `call`: id of the call that returned it."""
    return fence_text(text, about=f"{tool[:MAX_NAME_CHARS]} {origin[:MAX_ORIGIN_CHARS]}", key=call)


def fence_text(text: str, *, about: str, key: str) -> str:
    """Return the text between two lines that mark it as untrusted. Equal arguments give equal bytes.

    Characters that hide text in it are made visible. `about`: description of the text and its origin; may be untrusted.
    `key`: name of the call; new for each.
    """
    number, seal, text = 0, "", reveal_hidden(text)
    while not seal or seal in text:
        sealed = f"{key}\0{number}\0{about}\0{text}".encode("utf-8", "surrogatepass")
        seal = hashlib.sha256(sealed).hexdigest()[:SEAL_CHARS]
        number += 1
    label = to_single_line(about[: 2 * MAX_LABEL_CHARS], MAX_LABEL_CHARS).replace("<", "(").replace(">", ")")
    return f"<<<untrusted {seal} {label}\n{text}\nuntrusted {seal}>>>"


def render_partial_result(source: EvidenceRef, tool: str, excerpt: str, *, call: str = "") -> str:
    """Return the text that stands for a result that is not shown whole.

    `excerpt`: its exact beginning; may be empty. `call`: id of the call that returned it if the result is untrusted;
    else empty. Everything but the excerpt is bounded: names and origins may be untrusted.
    """
    origin = to_single_line(source.origin[: 2 * MAX_ORIGIN_CHARS], MAX_ORIGIN_CHARS)
    label = (
        f"{to_single_line(tool[: 2 * MAX_NAME_CHARS], MAX_NAME_CHARS)}: {to_single_line(source.kind[:MAX_NAME_CHARS])}"
    )
    whole = f"{label}, {source.chars} characters, sha256 {source.sha256[:12]}"
    continuation = f", offset {len(excerpt)} for what follows" if excerpt else ""
    lines = [
        "[TOOL RESULT SUMMARY]",
        f"{whole}, from {origin}" if origin else whole,
        f"To read it word for word: fetch_evidence with handle {source.handle}{continuation}.",
    ]
    if excerpt:
        fenced = fence_result(excerpt, tool, source.origin, call) if call else excerpt
        lines.append(f"Its first {len(excerpt)} characters:\n{fenced}")
    return "\n".join(lines)


def arrived_texts(steps: Iterable[TurnStep]) -> tuple[TextPart, ...]:
    """Return the messages that arrived during a turn: the only part of its steps for a model without tools."""
    return tuple([TextPart(text=step.heard) for step in steps if step.heard])


def estimate_step_tokens(steps: Iterable[TurnStep]) -> int:
    """Estimate the tokens of the steps in a later prompt, roughly."""
    steps = tuple(steps)
    pieces = [part for message in render_steps(steps) for part in message.parts]
    image_count = sum(len(record.images) for step in steps for record in step.calls if not record.ended)
    return image_count * IMAGE_TOKENS + sum(
        estimate_tokens(part.name + part.arguments) + CALL_TOKENS
        if isinstance(part, ToolCall)
        else _estimate_part_tokens(part)
        for part in pieces
    )


def _estimate_part_tokens(part: MessagePart) -> int:
    return estimate_tokens(part.text) if isinstance(part, TextPart | ToolResult) else 0


def make_call_ids_unique(calls: Sequence[ToolCall], conversation: Iterable[ModelMessage]) -> tuple[ToolCall, ...]:
    """Return the calls with ids that are unique among them and in the conversation.

    Some servers count anew in each answer (`call_0`), and Anthropic refuses a request with one id twice. Ids that
    differ only in characters that it does not accept (see `agent.models.anthropic_wire`) are the same there.
    """
    taken = {_sanitize_id(part.id) for message in conversation for part in message.parts if isinstance(part, ToolCall)}
    unique = []
    for call in calls:
        name, count = call.id or "call", 1
        while _sanitize_id(name) in taken:
            count += 1
            name = f"{call.id or 'call'}_{count}"
        taken.add(_sanitize_id(name))
        unique.append(call if name == call.id else replace(call, id=name))
    return tuple(unique)


def _sanitize_id(name: str) -> str:
    return _INVALID_ID_CHARS.sub("_", name)


def join_surrogates(text: str) -> str:
    """Join surrogate halves that arrived in separate pieces. A lone half cannot be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def build_called(
    call: ToolCall, result: ToolResult | None, source: EvidenceRef | None = None, *, untrusted: bool = False
) -> ToolCallRecord:
    """Build the record of one call. `result` None: the call ended the turn.

    `source`: the complete result of which `result` is a part. `untrusted`: the result is untrusted and not fenced yet.
    """
    return ToolCallRecord(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        result=join_surrogates(result.text) if result is not None else "",
        error=result is not None and result.is_error,
        ended=result is None,
        source=source,
        origin=to_single_line(join_surrogates(result.origin[:MAX_SOURCE_CHARS]), MAX_SOURCE_CHARS)
        if result is not None
        else "",
        images=tuple([image for image, _ in result.images]) if result is not None else (),
        untrusted=untrusted,
    )
