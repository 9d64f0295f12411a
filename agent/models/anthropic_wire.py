"""Requests in the dialect of the Messages API. Pure: a `Request` in, JSON-ready values out.

Obeys platform.claude.com/docs/en: api/messages, agents-and-tools/tool-use/handle-tool-calls (results of all calls
first, in the very next message), build-with-claude/prompt-caching (marks, `max_tokens: 0`), build-with-claude/vision
and build-with-claude/mid-conversation-system-messages (behind a user message, and last or before the assistant's).
"""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.models.anthropic_marks import marked
from agent.models.anthropic_thinking import Json, Prefix, Recall, Told
from agent.models.base import Image, Piece, Request, Said, Text, ToolCall, ToolResult

_WARM_UP = "(nothing yet)"
"""A request needs words of the user, also if only what is in front of them is to be read."""
_ODD = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

_Placed = list[tuple[int, Piece]]
"""Pieces, each with the number of the `Said` that it is of."""


@dataclass(slots=True, kw_only=True)
class Wire:
    """One request in the API's dialect."""

    body: Json
    suffix: Told
    has_system_messages: bool
    """There are system messages among the messages."""
    has_breakpoints: bool
    """Something is marked for the cache."""
    recalled_call_ids: tuple[str, ...]
    """Answers that are sent with their thinking, by the ids of their first calls."""
    ephemeral_from: int | None
    """Which `Said` the first of them is; None: there is none."""
    _prefix: Prefix
    _messages: Sequence[Json]

    def digest(self) -> str:
        """Return what thinking in the answer is bound to: everything but the marks. Takes as long as writing it."""
        return self._prefix.digest(self._messages)


def translate(
    request: Request,
    *,
    model: str,
    recall: Recall = lambda _: None,
    options: Mapping[str, object] | None = None,
    systems: bool = False,
) -> Wire:
    """Write a request out. `options` go into the body as they are; `systems`: the model takes system messages.

    A mark at a place that is not there or takes none is left out.
    """
    tools: list[Json] = [
        {"name": t.name, "description": t.description, "input_schema": json.loads(t.schema)} for t in request.tools
    ]
    system: list[Json] = [{"type": "text", "text": block.text} for block in request.blocks]
    laid = _Laid(Prefix([model, tools, system]), systems=systems)
    loop = loop_begins(request.conversation)
    for role, parts in _merged(request.conversation):
        laid.add_message(role, parts, recall if parts[0][0] >= loop else lambda _: None)
    told = laid.add_suffix(Told(request.aside, request.now))
    messages = laid.messages
    if not request.max_output_tokens and not (messages and messages[-1]["role"] in {"user", "system"}):
        messages = _telling(messages, Told(now=_WARM_UP), systems=False)
    body: Json = {"model": model, "max_tokens": request.max_output_tokens, **(options or {})}
    if request.max_output_tokens:
        body["stream"] = True  # refused with 0
    marks = request.breakpoints
    if request.answer_only and tools:  # with another `tool_choice` messages are read from no cache, and by nobody later
        body["tool_choice"] = {"type": "none"}
        marks = tuple([mark for mark in marks if mark.behind != "said"])
    with_marks = marked(marks, tools, system, messages, laid.places)
    body |= {key: value for key, value in with_marks.items() if value}
    return Wire(
        body=body,
        suffix=told,
        has_system_messages=any(message["role"] == "system" for message in messages),
        has_breakpoints=bool(marks),
        recalled_call_ids=tuple(laid.recalled_call_ids),
        ephemeral_from=laid.ephemeral_from,
        _prefix=laid.prefix,
        _messages=messages,
    )


def loop_begins(conversation: Sequence[Said]) -> int:
    """Where the tool loop begins that the conversation ends in; its length if it ends in none.

    Thinking is sent back within its loop only, so what later turns repeat of it does not depend on who remembers it.
    """
    place = len(conversation)
    while place > 1 and any(isinstance(part, ToolResult) for part in conversation[place - 1].parts):
        place -= 2
    return place


class _Laid:
    """The messages, as far as they are laid out."""

    def __init__(self, prefix: Prefix, *, systems: bool) -> None:
        self.prefix = prefix
        self.messages: list[Json] = []
        self.places: dict[int, list[tuple[int, int]]] = {}
        """Of each `Said`: message and block of all that it became."""
        self.recalled_call_ids: list[str] = []
        self.ephemeral_from: int | None = None
        self._takes_system_messages = systems
        self._suffix = Told()

    def add_message(self, role: str, parts: _Placed, recall: Recall) -> None:
        content = self._recall_content(parts, recall) if role == "assistant" else None
        if content is None:
            content = _content(parts)
        for index, (number, _) in enumerate(content):
            self.places.setdefault(number, []).append((len(self.messages), index))
        self.messages.append({"role": role, "content": [block for _, block in content]})

    def _recall_content(self, parts: _Placed, recall: Recall) -> list[tuple[int, Json]] | None:
        """Return an answer as it came, what was told in front of it told again; None: that is not to be had."""
        thought = recall(Said(role="assistant", parts=tuple(part for _, part in parts)))
        if thought is None:
            return None
        before = _telling(self.messages, thought.suffix, systems=self._takes_system_messages)
        if self.prefix.digest(before) != thought.prefix_digest:
            return None
        self.messages = before
        self.recalled_call_ids.append(thought.calls[0].id)
        self.ephemeral_from = parts[0][0] if self.ephemeral_from is None else self.ephemeral_from
        self._suffix = Told(*[f"{old}\n{new}".strip() for old, new in zip(self._suffix, thought.suffix, strict=True)])
        return [(parts[-1][0], block) for block in thought.content]

    def add_suffix(self, told: Told) -> Told:
        """Tell, at the end, what of it has not been told in front of an answer. Returns that."""
        told = Told(*[_untold(new.strip(), old) for new, old in zip(told, self._suffix, strict=True)])
        self.messages = _telling(self.messages, told, systems=self._takes_system_messages)
        return told


def _untold(words: str, told: str) -> str:
    return words[len(told) :].strip() if told and f"{words}\n".startswith(f"{told}\n") else words


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


def _merged(conversation: Iterable[Said]) -> list[tuple[str, _Placed]]:
    """Join neighbours of the same role, and drop those who say nothing."""
    out: list[tuple[str, _Placed]] = []
    for number, said in enumerate(conversation):
        parts: _Placed = [(number, p) for p in said.parts if not isinstance(p, Text) or p.text.strip()]
        if not parts:
            continue
        if out and out[-1][0] == said.role:
            out[-1][1].extend(parts)
        else:
            out.append((said.role, parts))
    return out


def _content(parts: _Placed) -> list[tuple[int, Json]]:
    """Write pieces as blocks, results first."""
    blocks = [(number, _block(part)) for number, part in parts]
    if any(isinstance(part, ToolResult) for _, part in parts):
        blocks.sort(key=lambda block: block[1]["type"] != "tool_result")
    return blocks


def _block(part: Piece) -> Json:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            data = base64.b64encode(part.data).decode()
            return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
        case ToolCall():
            written = tool_input(part.arguments)
            return {"type": "tool_use", "id": _plain(part.id), "name": _plain(part.name), "input": written}
        case ToolResult():
            result: Json = {"type": "tool_result", "tool_use_id": _plain(part.id), "content": part.text}
            return result | {"is_error": True} if part.is_error else result


def _plain(name: str) -> str:
    """Write another provider's id or name (`functions.look_up:0`) in the letters that this one takes."""
    return _ODD.sub("_", name) or "_"


def _telling(messages: list[Json], told: Told, *, systems: bool) -> list[Json]:
    """Return the messages with what is told behind them. Changes none of them: they may be hashed already."""
    if told.aside:
        messages = _adding(messages, told.aside)
    if not told.now:
        return messages
    if systems and messages and messages[-1]["role"] == "user":
        return [*messages, {"role": "system", "content": told.now}]
    return _adding(messages, told.now)


def _adding(messages: list[Json], words: str) -> list[Json]:
    """Add to the user's last words."""
    block: Json = {"type": "text", "text": words}
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": [block]}]
    content = messages[-1]["content"]
    assert isinstance(content, list)
    return [*messages[:-1], {"role": "user", "content": [*content, block]}]
