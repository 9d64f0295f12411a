"""Steps of a turn: the answers of the model that called tools, and what it was told then. Pure.

What a loop's own requests say of a step and what later prompts repeat of it is written by one function, so it is
the same bytes.

Around somebody else's words, where a model reads them. Pure.

What stands between the two lines cannot end them: the seal is a hash over the words themselves and over what nobody but
the gateway knows beforehand, and the words are looked through for it.
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


def fence_text(text: str, *, about: str, key: str) -> str:
    """The text between two lines that say whose it is. The same of all three is the same bytes.

    What hides words in it is told. `about`: what it is and where it is from; may be untrusted. `key`: names the call;
    new for each.
    """
    number, seal, text = 0, "", reveal_hidden(text)
    while not seal or seal in text:
        said = f"{key}\0{number}\0{about}\0{text}".encode("utf-8", "surrogatepass")
        seal = hashlib.sha256(said).hexdigest()[:SEAL_CHARS]
        number += 1
    what = to_single_line(about[: 2 * MAX_LABEL_CHARS], MAX_LABEL_CHARS).replace("<", "(").replace(">", ")")
    return f"<<<untrusted {seal} {what}\n{text}\nuntrusted {seal}>>>"


CALL_TOKENS = 24
"""Around a call and its result: the words of the JSON that they are told in."""
FENCE_TOKENS = 64
"""Around a result that is somebody else's words, at most."""
IMAGE_TOKENS = 1_600
"""Of an image that a tool brought: about what the largest take (platform.claude.com, build-with-claude/vision)."""
MAX_ORIGIN_CHARS = 120
"""Of where a result is from, in what is told of it: the whole is told with the evidence."""
MAX_SOURCE_CHARS = 500
"""The same, as it is written down."""
MAX_NAME_CHARS = 40
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


ToolImages = Mapping[str, Image]
"""What tools brought to be seen, by the hash of its bytes."""
NO_TOOL_IMAGES: ToolImages = {}


def render_steps(steps: Iterable[TurnStep], pictures: ToolImages = NO_TOOL_IMAGES) -> tuple[ModelMessage, ...]:
    """Both sides of each step, the agent's first. What ended the turn was not answered, so it is not repeated.

    `pictures`: those that can be shown; the others are told by the words beside them alone.
    """
    return tuple([said for step in steps for said in _step_messages(step, pictures)])


def _step_messages(step: TurnStep, pictures: ToolImages) -> tuple[ModelMessage, ...]:
    calls = [called for called in step.calls if not called.ended]
    if not calls:
        return ()
    asked: list[MessagePart] = [TextPart(text=step.text)] if step.text.strip() else []
    asked += [ToolCall(id=called.id, name=called.name, arguments=called.arguments) for called in calls]
    told: list[MessagePart] = [
        ToolResult(id=called.id, text=_render_result(called), is_error=called.error) for called in calls
    ]
    told += [pictures[one.sha256] for called in calls for one in called.images if one.sha256 in pictures]
    told += [TextPart(text=step.heard)] if step.heard else []
    return ModelMessage(role="assistant", parts=tuple(asked)), ModelMessage(role="user", parts=tuple(told))


def _render_result(called: ToolCallRecord) -> str:
    return fence_result(called.result, called.name, called.origin, called.id) if called.untrusted else called.result


def fence_result(text: str, tool: str, origin: str, call: str) -> str:
    """Somebody else's words, as they are told. `call`: the id of the call that brought them."""
    return fence_text(text, about=f"{tool[:MAX_NAME_CHARS]} {origin[:MAX_ORIGIN_CHARS]}", key=call)


def render_partial_result(source: EvidenceRef, tool: str, excerpt: str, *, call: str = "") -> str:
    """What the model is told of a result that it is not told whole. `excerpt`: how that begins, exactly; may be empty.

    `call`: the id of the call that brought it, if it is somebody else's words; else empty. All of it is bounded but for
    the excerpt: names and origins are what somebody else chose.
    """
    origin = to_single_line(source.origin[: 2 * MAX_ORIGIN_CHARS], MAX_ORIGIN_CHARS)
    what = (
        f"{to_single_line(tool[: 2 * MAX_NAME_CHARS], MAX_NAME_CHARS)}: {to_single_line(source.kind[:MAX_NAME_CHARS])}"
    )
    whole = f"{what}, {source.chars} characters, sha256 {source.sha256[:12]}"
    more = f", offset {len(excerpt)} for what follows" if excerpt else ""
    lines = [
        "[TOOL RESULT SUMMARY]",
        f"{whole}, from {origin}" if origin else whole,
        f"To read it word for word: fetch_evidence with handle {source.handle}{more}.",
    ]
    if excerpt:
        shown = fence_result(excerpt, tool, source.origin, call) if call else excerpt
        lines.append(f"Its first {len(excerpt)} characters:\n{shown}")
    return "\n".join(lines)


def arrived_texts(steps: Iterable[TurnStep]) -> tuple[TextPart, ...]:
    """What arrived in the middle of a turn: all that a model which takes no tools is told of its steps."""
    return tuple([TextPart(text=step.heard) for step in steps if step.heard])


def estimate_step_tokens(steps: Iterable[TurnStep]) -> int:
    """How much they take where they are repeated, roughly."""
    steps = tuple(steps)
    pieces = [part for said in render_steps(steps) for part in said.parts]
    seen = sum(len(called.images) for step in steps for called in step.calls if not called.ended)
    return seen * IMAGE_TOKENS + sum(
        estimate_tokens(part.name + part.arguments) + CALL_TOKENS
        if isinstance(part, ToolCall)
        else _estimate_part_tokens(part)
        for part in pieces
    )


def _estimate_part_tokens(part: MessagePart) -> int:
    return estimate_tokens(part.text) if isinstance(part, TextPart | ToolResult) else 0


def make_call_ids_unique(calls: Sequence[ToolCall], conversation: Iterable[ModelMessage]) -> tuple[ToolCall, ...]:
    """The calls, none with the id of another one or of an earlier one in the conversation.

    Some servers count anew in each answer (`call_0`), and Anthropic refuses a request with one id twice. Ids that
    differ only in what it does not take (see `agent.models.anthropic_wire`) are the same there.
    """
    taken = {_sanitize_id(part.id) for said in conversation for part in said.parts if isinstance(part, ToolCall)}
    apart = []
    for call in calls:
        name, count = call.id or "call", 1
        while _sanitize_id(name) in taken:
            count += 1
            name = f"{call.id or 'call'}_{count}"
        taken.add(_sanitize_id(name))
        apart.append(call if name == call.id else replace(call, id=name))
    return tuple(apart)


def _sanitize_id(name: str) -> str:
    return _INVALID_ID_CHARS.sub("_", name)


def join_surrogates(text: str) -> str:
    """Join surrogate halves that came in separate pieces; a half that stays alone cannot be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def build_called(
    call: ToolCall, result: ToolResult | None, source: EvidenceRef | None = None, *, untrusted: bool = False
) -> ToolCallRecord:
    """One call as it is written down. None: it ended the turn. `source`: of what the result is a part.

    `untrusted`: it is somebody else's words, and not fenced yet.
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
        images=tuple([shown for shown, _ in result.images]) if result is not None else (),
        untrusted=untrusted,
    )
