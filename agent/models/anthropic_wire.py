"""Requests of the Messages API. Pure: a `ModelRequest` in, JSON-ready values out.

Obeys platform.claude.com/docs/en:
- api/messages
- agents-and-tools/tool-use/handle-tool-calls: results of all calls come first, in the very next
  message.
- build-with-claude/prompt-caching: breakpoints, `max_tokens: 0`.
- build-with-claude/vision
- build-with-claude/mid-conversation-system-messages: a system message stands behind a user message,
  and is the last message or stands before the assistant's.
- build-with-claude/{extended-thinking, preserved-thinking}: within a tool loop an answer that
  thought goes back verbatim or without its thinking. Newer models bind thinking to exactly what
  came before it (tools, system, messages; not the breakpoints): they refuse it if that changed.
- build-with-claude/{thinking-troubleshooting, effort} and the what's-new pages: the table of
  capabilities. A model that is not in it (newer, or of a compatible server) gets the settings of
  the configuration as they are, no system messages.
"""

import base64
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from agent.models.adapt import Json, find_tool_loop_start, parse_tool_input, read_kept, write_kept
from agent.models.base import (
    EMPTY_USER_TEXT,
    CacheBreakpoint,
    Effort,
    MessagePart,
    ModelMessage,
    ModelRequest,
    TextPart,
    ThinkingMode,
    ToolResult,
)
from agent.prompt import sanitize_id
from gateway.core.frozen import frozen
from gateway.core.tool_spec import Image, ToolCall

_MAX_ANSWERS = 256
"""Answers with thinking that are kept: a loop has tens at most, a gateway runs a few at a time."""


class RequestSuffix(NamedTuple):
    """Text at the end of a request, for that request only. Empty: none."""

    aside: str = ""
    """In the user's role."""
    now: str = ""


@frozen
class ThinkingAnswer:
    """An answer that thought before it called tools."""

    suffix: RequestSuffix
    """Suffix of the request that it answered: the thinking is bound to it, too."""
    text: str
    calls: tuple[ToolCall, ...]
    content: Sequence[Json] = field(repr=False)
    """Content blocks as they came."""


RecallThinking = Callable[[ModelMessage], ThinkingAnswer | None]
"""Returns the remembered answer that an assistant's `ModelMessage` was; None: it did not think, or
is not remembered.
"""


class ThinkingStore:
    """Answers with thinking of one model. Dropped answers go back without thinking, which the API
    allows.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[str, ThinkingAnswer | None] = OrderedDict()
        """By the first call's id. None: it goes back without thinking, and so do later answers of
        its loop."""

    def recall(self, message: ModelMessage) -> ThinkingAnswer | None:
        """Return the answer with the same text and calls as `message`. None: it is not
        remembered.
        """
        calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
        answer = self._answers.get(calls[0].id) if calls else None
        if answer is None:
            return None
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart)).strip()
        return answer if (answer.text, answer.calls) == (text, calls) else None

    def remember(self, answer: ThinkingAnswer, conversation: Sequence[ModelMessage]) -> None:
        loop = conversation[find_tool_loop_start(conversation) :]
        calls = [part for said in loop for part in said.parts if isinstance(part, ToolCall)]
        given_up = any(self._answers.get(call.id, answer) is None for call in calls)
        self._answers[answer.calls[0].id] = None if given_up else answer
        while len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def forget(self, idents: Sequence[str]) -> None:
        """Never send the thinking of these again, because it was refused.

        Several: something before them has changed, as when older results are shortened. Later
        answers are bound to the changed prefix. One alone: its loop goes on without thinking, so
        that not every step of it is refused once.
        """
        for ident in idents:
            self._answers.pop(ident, None)
        if len(idents) == 1:
            self._answers[idents[0]] = None


THINKING_TYPES = frozenset({"thinking", "redacted_thinking"})
_NO_THINKING: Mapping[str, object] = {"type": "thinking", "thinking": " ", "signature": ""}
"""Stands for thinking that is not known where some is demanded."""
_BREAKPOINT_BLOCKS = frozenset({"text", "image", "document", "tool_use", "tool_result"})
"""Types of blocks that take a breakpoint. Thinking takes none; unknown types get none."""


def apply_breakpoints(
    breakpoints: Sequence[CacheBreakpoint],
    tools: list[Json],
    system: list[Json],
    messages: list[Json],
    places: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[str, list[Json]]:
    """Set the breakpoints. Copies what it changes: blocks may be remembered ones, and may be hashed
    later.
    """
    tools, system, messages = [*tools], [*system], [*messages]
    for point in breakpoints:
        control: Json = {"cache_control": {"type": "ephemeral", "ttl": point.lifetime}}
        if point.behind == "tools":
            tools[-1:] = [tool | control for tool in tools[-1:]]
        elif point.behind == "block":
            if 0 <= point.index < len(system):
                system[point.index] = {**system[point.index], **control}
        else:
            _mark_message(messages, places.get(point.index, ()), control)
    return {"tools": tools, "system": system, "messages": messages}


def _mark_message(messages: list[Json], places: Sequence[tuple[int, int]], control: Json) -> None:
    """Set a breakpoint on the last of these blocks that takes one."""
    for message, index in reversed(places):
        content = messages[message]["content"]
        assert isinstance(content, list)
        block = content[index]
        if block["type"] in _BREAKPOINT_BLOCKS and block.get("text") != "":
            marked = [*content[:index], block | control, *content[index + 1 :]]
            messages[message] = messages[message] | {"content": marked}
            return


_IndexedParts = list[tuple[int, MessagePart]]
"""Parts, each with the index of its `ModelMessage`."""


@dataclass(slots=True, kw_only=True)
class AnthropicRequest:
    """One request as the API takes it."""

    body: Json
    suffix: RequestSuffix
    has_system_messages: bool
    """True if some messages have the role `system`."""
    has_breakpoints: bool
    """True if some blocks have a cache breakpoint."""
    recalled_call_ids: tuple[str, ...]
    """Ids of the first calls of the answers that are sent with their thinking."""
    ephemeral_from: int | None
    """Index of the `ModelMessage` that is the first of them; None: there is none."""


def build_counted_body(request: ModelRequest, model: str) -> Json:
    """Build the body of a request whose tokens are to be counted."""
    return build_anthropic_request(request, model=model).body


def build_anthropic_request(
    request: ModelRequest,
    *,
    model: str,
    recall: RecallThinking = lambda _: None,
    options: Mapping[str, object] | None = None,
    takes_system_messages: bool = False,
    wants_thinking: bool = False,
) -> AnthropicRequest:
    """Build a request. `options` are added to the body unchanged; `takes_system_messages`: as in
    ClaudeCapabilities.

    `wants_thinking`: the server refuses answers without their thinking, also those outside of the
    loop.

    A breakpoint at a place that does not exist or takes none is left out.
    """
    tools: list[Json] = [
        {"name": t.name, "description": t.description, "input_schema": json.loads(t.schema)}
        for t in request.tools
    ]
    system: list[Json] = [{"type": "text", "text": block.text} for block in request.blocks]
    layout = _MessageLayout(takes_system_messages=takes_system_messages)
    loop = find_tool_loop_start(request.conversation)
    for role, parts in _merge_roles(request.conversation):
        thinking = list[Json]()
        if wants_thinking and role == "assistant":
            written = "".join([request.conversation[number].thinking for number in dict(parts)])
            thinking = read_kept(written, model).get("blocks") or [dict(_NO_THINKING)]
        layout.add_message(role, parts, recall if parts[0][0] >= loop else lambda _: None, thinking)
    suffix = layout.add_suffix(RequestSuffix(request.aside, request.now))
    messages = layout.messages
    if not request.max_output_tokens and not (
        messages and messages[-1]["role"] in {"user", "system"}
    ):
        messages = _with_suffix(
            messages, RequestSuffix(now=EMPTY_USER_TEXT), takes_system_messages=False
        )
    body: Json = {"model": model, "max_tokens": request.max_output_tokens, **(options or {})}
    if request.max_output_tokens:
        body["stream"] = True  # refused with 0
    marks = request.breakpoints
    if (
        request.answer_only and tools
    ):  # another `tool_choice` makes messages miss the cache, so caching them is of no use
        body["tool_choice"] = {"type": "none"}
        marks = tuple([mark for mark in marks if mark.behind != "said"])
    with_marks = apply_breakpoints(marks, tools, system, messages, layout.places)
    body |= {key: value for key, value in with_marks.items() if value}
    return AnthropicRequest(
        body=body,
        suffix=suffix,
        has_system_messages=any(message["role"] == "system" for message in messages),
        has_breakpoints=bool(marks),
        recalled_call_ids=tuple(layout.recalled_call_ids),
        ephemeral_from=layout.ephemeral_from,
    )


def write_thinking(content: Iterable[Json], model: str) -> str:
    """Return the thinking blocks of an answer of `model`, for `StreamEnd.thinking`. Empty: there
    are none.
    """
    blocks = [block for block in content if block.get("type") in THINKING_TYPES]
    return write_kept({"blocks": blocks} if blocks else {}, model)


class _MessageLayout:
    """Messages that have been laid out so far."""

    def __init__(self, *, takes_system_messages: bool) -> None:
        self.messages: list[Json] = []
        self.places: dict[int, list[tuple[int, int]]] = {}
        """By index of `ModelMessage`: (message, block) of each block that it became."""
        self.recalled_call_ids: list[str] = []
        self.ephemeral_from: int | None = None
        self._takes_system_messages = takes_system_messages
        self._suffix = RequestSuffix()

    def add_message(
        self, role: str, parts: _IndexedParts, recall: RecallThinking, thinking: Sequence[Json]
    ) -> None:
        content = self._recall_content(parts, recall) if role == "assistant" else None
        if content is None:
            content = [*((parts[0][0], block) for block in thinking), *_render_content(parts)]
        for index, (number, _) in enumerate(content):
            self.places.setdefault(number, []).append((len(self.messages), index))
        self.messages.append({"role": role, "content": [block for _, block in content]})

    def _recall_content(
        self, parts: _IndexedParts, recall: RecallThinking
    ) -> list[tuple[int, Json]] | None:
        """Return a remembered answer as it came, and restore the suffix before it. None: it is not
        remembered.
        """
        answer = recall(ModelMessage(role="assistant", parts=tuple(part for _, part in parts)))
        if answer is None:
            return None
        self.messages = _with_suffix(
            self.messages, answer.suffix, takes_system_messages=self._takes_system_messages
        )
        self.recalled_call_ids.append(answer.calls[0].id)
        self.ephemeral_from = parts[0][0] if self.ephemeral_from is None else self.ephemeral_from
        self._suffix = RequestSuffix(
            *[f"{old}\n{new}".strip() for old, new in zip(self._suffix, answer.suffix, strict=True)]
        )
        return [(parts[-1][0], block) for block in answer.content]

    def add_suffix(self, suffix: RequestSuffix) -> RequestSuffix:
        """Append the part of the suffix that no recalled answer has restored. Return that part."""
        suffix = RequestSuffix(
            *[
                f"{new.strip()}\n".removeprefix(f"{old}\n").strip()
                for new, old in zip(suffix, self._suffix, strict=True)
            ]
        )
        self.messages = _with_suffix(
            self.messages, suffix, takes_system_messages=self._takes_system_messages
        )
        return suffix


def _merge_roles(conversation: Iterable[ModelMessage]) -> list[tuple[str, _IndexedParts]]:
    """Join neighbours of the same role, and drop messages without content."""
    out: list[tuple[str, _IndexedParts]] = []
    for number, message in enumerate(conversation):
        parts: _IndexedParts = [
            (number, p) for p in message.parts if not isinstance(p, TextPart) or p.text.strip()
        ]
        if not parts:
            continue
        if out and out[-1][0] == message.role:
            out[-1][1].extend(parts)
        else:
            out.append((message.role, parts))
    return out


def _render_content(parts: _IndexedParts) -> list[tuple[int, Json]]:
    blocks = [(number, _render_block(part)) for number, part in parts]
    if any(isinstance(part, ToolResult) for _, part in parts):
        blocks.sort(key=lambda block: block[1]["type"] != "tool_result")
    return blocks


def _render_block(part: MessagePart) -> Json:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case Image():
            data, kind = base64.b64encode(part.data).decode(), "document" if part.pages else "image"
            return {
                "type": kind,
                "source": {"type": "base64", "media_type": part.media_type, "data": data},
            }
        case ToolCall():
            return {
                "type": "tool_use",
                "id": sanitize_id(part.id),
                "name": sanitize_id(part.name),
                "input": parse_tool_input(part.arguments),
            }
        case ToolResult():
            result: Json = {
                "type": "tool_result",
                "tool_use_id": sanitize_id(part.id),
                "content": part.text,
            }
            return result | {"is_error": True} if part.is_error else result


def _with_suffix(
    messages: list[Json], suffix: RequestSuffix, *, takes_system_messages: bool
) -> list[Json]:
    """Return the messages with the suffix behind them. Changes no message: they may be hashed
    already.
    """
    if suffix.aside:
        messages = _append_to_user(messages, suffix.aside)
    if not suffix.now:
        return messages
    if takes_system_messages and messages and messages[-1]["role"] == "user":
        return [*messages, {"role": "system", "content": suffix.now}]
    return _append_to_user(messages, suffix.now)


def _append_to_user(messages: list[Json], text: str) -> list[Json]:
    block: Json = {"type": "text", "text": text}
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": [block]}]
    content = messages[-1]["content"]
    assert isinstance(content, list)
    return [*messages[:-1], {"role": "user", "content": [*content, block]}]


_CLAUDE_NAME = re.compile(
    r"claude-((?:fable|mythos|opus|sonnet|haiku)-(?:preview|\d(?:-\d)?(?!\d)))"
)
"""Also matches inside the names of Bedrock, Vertex and proxies, and before a date."""


@frozen
class ClaudeCapabilities:
    """Capabilities of one Claude model."""

    thinking_types: frozenset[str]
    """Values that `thinking.type` may have."""
    thinks_by_default: bool
    """True: it thinks unless thinking is turned off."""
    limits_off_at_high_effort: bool = False
    """True: `disabled` and `between_tools` are refused at the efforts `xhigh` and `max`."""
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
    """Efforts it takes. Empty: it has no such setting."""
    takes_system_messages: bool = True
    """True: `messages` may hold the role `system`."""


_NEW = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=True)
_EITHER = ClaudeCapabilities(
    thinking_types=frozenset({"adaptive", "disabled"}), thinks_by_default=True
)
_QUIET = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=False)
_MIDDLE = ClaudeCapabilities(
    thinking_types=frozenset({"adaptive", "enabled"}),
    thinks_by_default=False,
    efforts=("low", "medium", "high", "max"),
    takes_system_messages=False,
)
_OLD = ClaudeCapabilities(
    thinking_types=frozenset({"enabled"}),
    thinks_by_default=False,
    efforts=(),
    takes_system_messages=False,
)
_UNKNOWN = ClaudeCapabilities(
    thinking_types=frozenset({"disabled", "between_tools"}),
    thinks_by_default=True,
    takes_system_messages=False,
)

_CAPABILITIES: dict[str, ClaudeCapabilities] = {
    "fable-5-2": _NEW,
    "mythos-5-2": _NEW,
    "fable-5-1": _NEW,
    "mythos-5-1": _NEW,
    "opus-5-5": _NEW,
    "sonnet-5-5": ClaudeCapabilities(
        thinking_types=frozenset({"adaptive", "between_tools"}),
        thinks_by_default=True,
        limits_off_at_high_effort=True,
    ),
    "haiku-5-5": replace(_EITHER, limits_off_at_high_effort=True),
    "fable-5": _NEW,
    "mythos-5": _NEW,
    "opus-5": replace(_EITHER, limits_off_at_high_effort=True),
    "sonnet-5": replace(_EITHER, takes_system_messages=False),
    "opus-4-8": _QUIET,
    "opus-4-7": replace(_QUIET, takes_system_messages=False),
    "mythos-preview": replace(
        _NEW, efforts=("low", "medium", "high", "max"), takes_system_messages=False
    ),
    "opus-4-6": _MIDDLE,
    "sonnet-4-6": _MIDDLE,
    "opus-4-5": replace(_OLD, efforts=("low", "medium", "high")),
    "sonnet-4-5": _OLD,
    "haiku-4-5": _OLD,
}


def find_capabilities(model: str) -> ClaudeCapabilities:
    """Return the capabilities of `model`, as its provider names it."""
    return find_known_capabilities(model) or _UNKNOWN


def find_known_capabilities(model: str) -> ClaudeCapabilities | None:
    """Return the same. None: the model is not known."""
    found = _CLAUDE_NAME.search(model.lower())
    return _CAPABILITIES.get(found[1]) if found else None


def find_unsupported_setting(
    model: str, effort: Effort | None, thinking: ThinkingMode
) -> tuple[Literal["effort", "thinking"], str] | None:
    """Return the setting that the model would refuse, with a message that says the remedy. None:
    neither is refused.
    """
    known = find_capabilities(model)
    if effort is not None and effort not in known.efforts:
        levels = f"write one of {', '.join(known.efforts)}" if known.efforts else "leave effort out"
        return "effort", f"{model} has no effort {effort!r}; {levels}"
    kind = _thinking_type(known, thinking)
    if kind is None:
        return None
    if kind not in known.thinking_types:
        least = (
            " or write between_tools for the least of it"
            if "between_tools" in known.thinking_types
            else ""
        )
        problem = (
            "always thinks"
            if thinking == "off" and known.thinks_by_default
            else f"does not know thinking: {thinking}"
        )
        return "thinking", f"{model} {problem}; leave thinking out{least}"
    if known.limits_off_at_high_effort and effort in {"xhigh", "max"}:
        return (
            "thinking",
            (
                f"{model} takes thinking: {thinking} up to effort high only; lower effort or leave "
                "it out"
            ),
        )
    return None


def build_options(model: str, effort: Effort | None, thinking: ThinkingMode) -> dict[str, object]:
    """Return the fields of a request's body for the two settings: always the same, because the
    cache depends on them.

    Raises ValueError for a setting that `find_unsupported_setting` finds.
    """
    if refused := find_unsupported_setting(model, effort, thinking):
        raise ValueError(refused[1])
    options: dict[str, object] = {}
    if effort is not None:
        options["output_config"] = {"effort": effort}
    kind = _thinking_type(find_capabilities(model), thinking)
    if kind is not None:
        options["thinking"] = {"type": kind}
    return options


def build_least_effort(model: str) -> Json:
    """Return the fields that ask `model` for the least thinking. Empty: it is not known to have
    efforts.
    """
    known = find_known_capabilities(model)
    return (
        {"output_config": {"effort": known.efforts[0]}}
        if known is not None and known.efforts
        else {}
    )


def _thinking_type(known: ClaudeCapabilities, thinking: ThinkingMode) -> str | None:
    """Return `thinking.type`. None: it need not be sent."""
    if thinking == "default" or (thinking == "off" and not known.thinks_by_default):
        return None
    return "disabled" if thinking == "off" else thinking
