"""Requests in the dialect of the Messages API. Pure: a `ModelRequest` in, JSON-ready values out.

Obeys platform.claude.com/docs/en: api/messages, agents-and-tools/tool-use/handle-tool-calls (results of all calls
first, in the very next message), build-with-claude/prompt-caching (marks, `max_tokens: 0`), build-with-claude/vision
and build-with-claude/mid-conversation-system-messages (behind a user message, and last or before the assistant's).

What each Claude model takes of effort, thinking, system messages and context editing. Pure.

Sources: platform.claude.com/docs/en, build-with-claude/{thinking-troubleshooting, effort,
mid-conversation-system-messages, context-editing} and the what's-new pages of the models. A name that is not here may
be anything (a newer model, a compatible server): it is sent what the configuration says, told nothing in a system
message, and not asked to leave anything out.

Answers that thought before they called tools, as long as they may be sent back. No IO.

Obeys platform.claude.com/docs/en/build-with-claude/{extended-thinking, preserved-thinking}: within a tool loop such
an answer goes back verbatim or without its thinking, and newer models bind thinking to exactly what was in front of
it (tools, system, messages; not the marks).

Old tool results that the API leaves out of long prompts by itself, where the operator wants that. Pure.

Obeys platform.claude.com/docs/en/build-with-claude/context-editing: the request stays whole, results are replaced by a
placeholder before the model reads it, and the cache is lost from the first of them on. Thinking is not concerned: it
goes back within its loop only, and blocks stay valid whatever is left out there.

Cache marks on a request that is laid out. Pure.

Obeys platform.claude.com/docs/en/build-with-claude/prompt-caching.
"""

import base64
import hashlib
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from agent.models.base import CacheBreakpoint, MessagePart, ModelMessage, ModelRequest, TextPart, ToolResult
from agent.view import usable_tokens
from gateway.core.tool_spec import Image, ToolCall

Json = dict[str, object]

_MAX_ANSWERS = 256
"""A loop has tens at most, a gateway a few at a time."""


class RequestSuffix(NamedTuple):
    """What is told for one request only, at its end. Empty: nothing."""

    aside: str = ""
    """In the user's words."""
    now: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingAnswer:
    """One such answer."""

    prefix_digest: str
    """`PrefixHash.digest` of all that was in front of it."""
    suffix: RequestSuffix
    """What was told right in front of it for that request only: the thinking is bound to it, too."""
    text: str
    calls: tuple[ToolCall, ...]
    """At least one."""
    content: Sequence[Json] = field(repr=False)
    """As it came."""


RecallThinking = Callable[[ModelMessage], ThinkingAnswer | None]
"""Given an assistant's `ModelMessage`: the answer that it was, if that thought and is remembered."""


class PrefixHash:
    """A hash over what stands in front of an answer. Nothing is hashed before somebody asks."""

    def __init__(self, head: object) -> None:
        self._head = head
        self._hash = hashlib.sha256()
        self._hashed_count = -1
        """Messages that are in it. -1: not even the head."""

    def digest(self, messages: Sequence[Json]) -> str:
        """Hash the head and `messages`, which begin with those of the call before, all but its last two."""
        if self._hashed_count < 0:
            self._hash.update(_canonical_json(self._head))
            self._hashed_count = 0
        for message in messages[
            self._hashed_count : -2
        ]:  # what is told stands in one of the last, and is the other one
            self._hash.update(_canonical_json(message))
            self._hashed_count += 1
        whole = self._hash.copy()
        for message in messages[self._hashed_count :]:
            whole.update(_canonical_json(message))
        return whole.hexdigest()


class ThinkingStore:
    """Those of one model. What is not remembered any more goes back without thinking, which the API allows."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, ThinkingAnswer | None] = OrderedDict()
        """By the first call's id. None: it goes back without, and so does what comes later in its loop."""

    def recall(self, said: ModelMessage) -> ThinkingAnswer | None:
        """Return the answer that `said` repeats, word for word and call for call."""
        calls = tuple(part for part in said.parts if isinstance(part, ToolCall))
        thought = self._answers.get(calls[0].id) if calls else None
        if thought is None:
            return None
        words = "".join(part.text for part in said.parts if isinstance(part, TextPart)).strip()
        return thought if (thought.text, thought.calls) == (words, calls) else None

    def remember(self, thought: ThinkingAnswer, conversation: Sequence[ModelMessage]) -> None:
        """Remember an answer to `conversation`."""
        given_up = any(self._answers.get(ident, thought) is None for ident in _loop_call_ids(conversation))
        self._answers[thought.calls[0].id] = None if given_up else thought
        while len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def disable(self, idents: Sequence[str]) -> None:
        """Never again send the thinking of these, nor of what comes later in their loops."""
        self._answers.update(dict.fromkeys(idents))


def _loop_call_ids(conversation: Sequence[ModelMessage]) -> Iterator[str]:
    """Yield the first call's id of each answer since the user spoke."""
    for said in reversed(conversation):
        if said.role == "user" and not any(isinstance(part, ToolResult) for part in said.parts):
            return
        yield from [part.id for part in said.parts if isinstance(part, ToolCall)][:1]


def _canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


_BREAKPOINT_BLOCKS = frozenset({"text", "image", "tool_use", "tool_result"})
"""Thinking takes no mark, nor does anything that we do not know."""


def apply_breakpoints(
    marks: Sequence[CacheBreakpoint],
    tools: list[Json],
    system: list[Json],
    messages: list[Json],
    places: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[str, list[Json]]:
    """Put the marks on. Copies what it changes: contents may be remembered ones, and all of it may yet be hashed."""
    tools, system, messages = [*tools], [*system], [*messages]
    for mark in marks:
        control: Json = {"cache_control": {"type": "ephemeral", "ttl": mark.lifetime}}
        if mark.behind == "tools":
            tools[-1:] = [tool | control for tool in tools[-1:]]
        elif mark.behind == "block":
            if 0 <= mark.index < len(system):
                system[mark.index] = {**system[mark.index], **control}
        else:
            _mark_message(messages, places.get(mark.index, ()), control)
    return {"tools": tools, "system": system, "messages": messages}


def _mark_message(messages: list[Json], places: Sequence[tuple[int, int]], control: Json) -> None:
    """Mark the last block that can be marked of these."""
    for message, index in reversed(places):
        content = messages[message]["content"]
        assert isinstance(content, list)
        block = content[index]
        if block["type"] in _BREAKPOINT_BLOCKS and block.get("text") != "":
            marked = [*content[:index], block | control, *content[index + 1 :]]
            messages[message] = messages[message] | {"content": marked}
            return


_EMPTY_USER_TEXT = "(nothing yet)"
"""A request needs words of the user, also if only what is in front of them is to be read."""
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

_IndexedParts = list[tuple[int, MessagePart]]
"""Pieces, each with the number of the `ModelMessage` that it is of."""


@dataclass(slots=True, kw_only=True)
class AnthropicRequest:
    """One request in the API's dialect."""

    body: Json
    suffix: RequestSuffix
    has_system_messages: bool
    """There are system messages among the messages."""
    has_breakpoints: bool
    """Something is marked for the cache."""
    recalled_call_ids: tuple[str, ...]
    """Answers that are sent with their thinking, by the ids of their first calls."""
    ephemeral_from: int | None
    """Which `ModelMessage` the first of them is; None: there is none."""
    _prefix: PrefixHash
    _messages: Sequence[Json]

    def digest(self) -> str:
        """Return what thinking in the answer is bound to: everything but the marks. Takes as long as writing it."""
        return self._prefix.digest(self._messages)


def build_anthropic_request(
    request: ModelRequest,
    *,
    model: str,
    recall: RecallThinking = lambda _: None,
    options: Mapping[str, object] | None = None,
    systems: bool = False,
) -> AnthropicRequest:
    """Write a request out. `options` go into the body as they are; `systems`: the model takes system messages.

    A mark at a place that is not there or takes none is left out.
    """
    tools: list[Json] = [
        {"name": t.name, "description": t.description, "input_schema": json.loads(t.schema)} for t in request.tools
    ]
    system: list[Json] = [{"type": "text", "text": block.text} for block in request.blocks]
    laid = _MessageLayout(PrefixHash([model, tools, system]), systems=systems)
    loop = find_tool_loop_start(request.conversation)
    for role, parts in _merge_roles(request.conversation):
        laid.add_message(role, parts, recall if parts[0][0] >= loop else lambda _: None)
    told = laid.add_suffix(RequestSuffix(request.aside, request.now))
    messages = laid.messages
    if not request.max_output_tokens and not (messages and messages[-1]["role"] in {"user", "system"}):
        messages = _with_suffix(messages, RequestSuffix(now=_EMPTY_USER_TEXT), systems=False)
    body: Json = {"model": model, "max_tokens": request.max_output_tokens, **(options or {})}
    if request.max_output_tokens:
        body["stream"] = True  # refused with 0
    marks = request.breakpoints
    if request.answer_only and tools:  # with another `tool_choice` messages are read from no cache, and by nobody later
        body["tool_choice"] = {"type": "none"}
        marks = tuple([mark for mark in marks if mark.behind != "said"])
    with_marks = apply_breakpoints(marks, tools, system, messages, laid.places)
    body |= {key: value for key, value in with_marks.items() if value}
    return AnthropicRequest(
        body=body,
        suffix=told,
        has_system_messages=any(message["role"] == "system" for message in messages),
        has_breakpoints=bool(marks),
        recalled_call_ids=tuple(laid.recalled_call_ids),
        ephemeral_from=laid.ephemeral_from,
        _prefix=laid.prefix,
        _messages=messages,
    )


def find_tool_loop_start(conversation: Sequence[ModelMessage]) -> int:
    """Where the tool loop begins that the conversation ends in; its length if it ends in none.

    Thinking is sent back within its loop only, so what later turns repeat of it does not depend on who remembers it.
    """
    place = len(conversation)
    while place > 1 and any(isinstance(part, ToolResult) for part in conversation[place - 1].parts):
        place -= 2
    return place


class _MessageLayout:
    """The messages, as far as they are laid out."""

    def __init__(self, prefix: PrefixHash, *, systems: bool) -> None:
        self.prefix = prefix
        self.messages: list[Json] = []
        self.places: dict[int, list[tuple[int, int]]] = {}
        """Of each `ModelMessage`: message and block of all that it became."""
        self.recalled_call_ids: list[str] = []
        self.ephemeral_from: int | None = None
        self._takes_system_messages = systems
        self._suffix = RequestSuffix()

    def add_message(self, role: str, parts: _IndexedParts, recall: RecallThinking) -> None:
        content = self._recall_content(parts, recall) if role == "assistant" else None
        if content is None:
            content = _render_content(parts)
        for index, (number, _) in enumerate(content):
            self.places.setdefault(number, []).append((len(self.messages), index))
        self.messages.append({"role": role, "content": [block for _, block in content]})

    def _recall_content(self, parts: _IndexedParts, recall: RecallThinking) -> list[tuple[int, Json]] | None:
        """Return an answer as it came, what was told in front of it told again; None: that is not to be had."""
        thought = recall(ModelMessage(role="assistant", parts=tuple(part for _, part in parts)))
        if thought is None:
            return None
        before = _with_suffix(self.messages, thought.suffix, systems=self._takes_system_messages)
        if self.prefix.digest(before) != thought.prefix_digest:
            return None
        self.messages = before
        self.recalled_call_ids.append(thought.calls[0].id)
        self.ephemeral_from = parts[0][0] if self.ephemeral_from is None else self.ephemeral_from
        self._suffix = RequestSuffix(
            *[f"{old}\n{new}".strip() for old, new in zip(self._suffix, thought.suffix, strict=True)]
        )
        return [(parts[-1][0], block) for block in thought.content]

    def add_suffix(self, told: RequestSuffix) -> RequestSuffix:
        """Tell, at the end, what of it has not been told in front of an answer. Returns that."""
        told = RequestSuffix(
            *[_remaining_suffix(new.strip(), old) for new, old in zip(told, self._suffix, strict=True)]
        )
        self.messages = _with_suffix(self.messages, told, systems=self._takes_system_messages)
        return told


def _remaining_suffix(words: str, told: str) -> str:
    return words[len(told) :].strip() if told and f"{words}\n".startswith(f"{told}\n") else words


def parse_tool_input(arguments: str) -> Json:
    """Read a call's arguments for echoing them: the API takes objects only, the model may write anything."""
    try:
        value: object = json.loads(arguments or "{}", parse_constant=_reject_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": arguments}


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(written: str) -> float:
    if math.isinf(number := float(written)):  # 1e999: what Python would write for it is not JSON
        raise ValueError(f"{written} is too large for a number")
    return number


def _merge_roles(conversation: Iterable[ModelMessage]) -> list[tuple[str, _IndexedParts]]:
    """Join neighbours of the same role, and drop those who say nothing."""
    out: list[tuple[str, _IndexedParts]] = []
    for number, said in enumerate(conversation):
        parts: _IndexedParts = [(number, p) for p in said.parts if not isinstance(p, TextPart) or p.text.strip()]
        if not parts:
            continue
        if out and out[-1][0] == said.role:
            out[-1][1].extend(parts)
        else:
            out.append((said.role, parts))
    return out


def _render_content(parts: _IndexedParts) -> list[tuple[int, Json]]:
    """Write pieces as blocks, results first."""
    blocks = [(number, _render_block(part)) for number, part in parts]
    if any(isinstance(part, ToolResult) for _, part in parts):
        blocks.sort(key=lambda block: block[1]["type"] != "tool_result")
    return blocks


def _render_block(part: MessagePart) -> Json:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case Image():
            data = base64.b64encode(part.data).decode()
            return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
        case ToolCall():
            written = parse_tool_input(part.arguments)
            return {"type": "tool_use", "id": _sanitize_id(part.id), "name": _sanitize_id(part.name), "input": written}
        case ToolResult():
            result: Json = {"type": "tool_result", "tool_use_id": _sanitize_id(part.id), "content": part.text}
            return result | {"is_error": True} if part.is_error else result


def _sanitize_id(name: str) -> str:
    """Write another provider's id or name (`functions.look_up:0`) in the letters that this one takes."""
    return _INVALID_ID_CHARS.sub("_", name) or "_"


def _with_suffix(messages: list[Json], told: RequestSuffix, *, systems: bool) -> list[Json]:
    """Return the messages with what is told behind them. Changes none of them: they may be hashed already."""
    if told.aside:
        messages = _append_to_user(messages, told.aside)
    if not told.now:
        return messages
    if systems and messages and messages[-1]["role"] == "user":
        return [*messages, {"role": "system", "content": told.now}]
    return _append_to_user(messages, told.now)


def _append_to_user(messages: list[Json], words: str) -> list[Json]:
    """Add to the user's last words."""
    block: Json = {"type": "text", "text": words}
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": [block]}]
    content = messages[-1]["content"]
    assert isinstance(content, list)
    return [*messages[:-1], {"role": "user", "content": [*content, block]}]


Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""`output_config.effort`, from the least."""
ThinkingMode = Literal["default", "off", "between_tools"]
"""`default`: as the model does by itself. `between_tools`: only there (Sonnet 5.5)."""

_CLAUDE_NAME = re.compile(r"claude-((?:fable|mythos|opus|sonnet|haiku)-(?:preview|\d(?:-\d)?(?!\d)))")
"""Also inside the names that Bedrock, Vertex and proxies have for them, and in front of a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeCapabilities:
    """One model."""

    thinking_types: frozenset[str]
    """What `thinking.type` may be."""
    thinks_by_default: bool
    """Unless told otherwise."""
    limits_off_at_high_effort: bool = False
    """`disabled` and `between_tools` are refused at the efforts `xhigh` and `max`."""
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
    """Empty: it has no such setting."""
    takes_system_messages: bool = True
    """`messages` may hold the role `system`."""
    takes_context_editing: bool = True
    """Leaves old tool results out by itself (`context_management`), if it is asked to."""


_NEW = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=True)
_EITHER = ClaudeCapabilities(thinking_types=frozenset({"adaptive", "disabled"}), thinks_by_default=True)
_QUIET = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=False)
_MIDDLE = ClaudeCapabilities(
    thinking_types=frozenset({"adaptive", "enabled"}),
    thinks_by_default=False,
    efforts=("low", "medium", "high", "max"),
    takes_system_messages=False,
)
_OLD = ClaudeCapabilities(
    thinking_types=frozenset({"enabled"}), thinks_by_default=False, efforts=(), takes_system_messages=False
)
_UNKNOWN = ClaudeCapabilities(
    thinking_types=frozenset({"disabled", "between_tools"}),
    thinks_by_default=True,
    takes_system_messages=False,
    takes_context_editing=False,
)

_CAPABILITIES: dict[str, ClaudeCapabilities] = {
    "fable-5-2": _NEW,
    "mythos-5-2": _NEW,
    "fable-5-1": _NEW,
    "mythos-5-1": _NEW,
    "opus-5-5": _NEW,
    "sonnet-5-5": ClaudeCapabilities(
        thinking_types=frozenset({"adaptive", "between_tools"}), thinks_by_default=True, limits_off_at_high_effort=True
    ),
    "haiku-5-5": replace(_EITHER, limits_off_at_high_effort=True),
    "fable-5": _NEW,
    "mythos-5": _NEW,
    "opus-5": replace(_EITHER, limits_off_at_high_effort=True),
    "sonnet-5": replace(_EITHER, takes_system_messages=False),
    "opus-4-8": _QUIET,
    "opus-4-7": replace(_QUIET, takes_system_messages=False),
    "mythos-preview": replace(_NEW, efforts=("low", "medium", "high", "max"), takes_system_messages=False),
    "opus-4-6": _MIDDLE,
    "sonnet-4-6": _MIDDLE,
    "opus-4-5": replace(_OLD, efforts=("low", "medium", "high")),
    "sonnet-4-5": _OLD,
    "haiku-4-5": _OLD,
}


def find_capabilities(model: str) -> ClaudeCapabilities:
    """Return what holds for `model`, as its provider names it."""
    found = _CLAUDE_NAME.search(model.lower())
    return _CAPABILITIES.get(found[1], _UNKNOWN) if found else _UNKNOWN


def find_unsupported_setting(
    model: str, effort: Effort | None, thinking: ThinkingMode
) -> tuple[Literal["effort", "thinking"], str] | None:
    """Return which of the two settings the model would refuse, and why, with the remedy. None: neither."""
    known = find_capabilities(model)
    if effort is not None and effort not in known.efforts:
        levels = f"write one of {', '.join(known.efforts)}" if known.efforts else "leave effort out"
        return "effort", f"{model} has no effort {effort!r}; {levels}"
    kind = _thinking_type(known, thinking)
    if kind is None:
        return None
    if kind not in known.thinking_types:
        least = " or write between_tools for the least of it" if "between_tools" in known.thinking_types else ""
        told = (
            "always thinks" if thinking == "off" and known.thinks_by_default else f"does not know thinking: {thinking}"
        )
        return "thinking", f"{model} {told}; leave thinking out{least}"
    if known.limits_off_at_high_effort and effort in {"xhigh", "max"}:
        return "thinking", f"{model} takes thinking: {thinking} up to effort high only; lower effort or leave it out"
    return None


def build_options(model: str, effort: Effort | None, thinking: ThinkingMode) -> dict[str, object]:
    """Return what a request's body says of the two: the same in every request, because the cache depends on it.

    Raises ValueError for what is `find_unsupported_setting`.
    """
    if refused := find_unsupported_setting(model, effort, thinking):
        raise ValueError(refused[1])
    told: dict[str, object] = {}
    if effort is not None:
        told["output_config"] = {"effort": effort}
    kind = _thinking_type(find_capabilities(model), thinking)
    if kind is not None:
        told["thinking"] = {"type": kind}
    return told


def _thinking_type(known: ClaudeCapabilities, thinking: ThinkingMode) -> str | None:
    """Return `thinking.type`. None: need not be said."""
    if thinking == "default" or (thinking == "off" and not known.thinks_by_default):
        return None
    return "disabled" if thinking == "off" else thinking


CONTEXT_EDITING_BETA = "context-management-2025-06-27"
"""Needed in the header `anthropic-beta`."""
_TRIGGER_SHARE = 0.7
"""Of what whole prompts may have: less than where anything is done here by default, so the provider is first."""
_MIN_CLEARED_SHARE = 0.1
"""Of that must go at once: less is not worth what it costs to write the cache again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEditing:
    """What is asked for."""

    trigger_tokens: int
    """Of the whole prompt, from which on results are left out."""
    keep_results: int
    """So many of the newest stay."""


def find_context_editing(model: str, context_tokens: int, output_tokens: int, keep: int) -> ContextEditing | None:
    """Return what to ask `model` for, with this window and this much of it for answers. None: it does not do that."""
    if not find_capabilities(model).takes_context_editing:
        return None
    return ContextEditing(
        trigger_tokens=int(usable_tokens(context_tokens, output_tokens) * _TRIGGER_SHARE), keep_results=keep
    )


def render_context_editing(wanted: ContextEditing, conversation: Sequence[ModelMessage]) -> Json:
    """Return `context_management` for a request.

    What the tool loop brought in which the conversation ends stays, too: the model has not read it, or just now. So
    nothing that is cached changes while a loop goes on.
    """
    loop = conversation[find_tool_loop_start(conversation) :]
    fresh = sum(isinstance(part, ToolResult) for said in loop for part in said.parts)
    return {
        "edits": [
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": wanted.trigger_tokens},
                "keep": {"type": "tool_uses", "value": max(1, wanted.keep_results + fresh)},  # 0 is not documented
                "clear_at_least": {"type": "input_tokens", "value": int(wanted.trigger_tokens * _MIN_CLEARED_SHARE)},
            }
        ]
    }
