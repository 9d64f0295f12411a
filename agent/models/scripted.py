"""A deterministic model with scripted answers, for tests, demos and dry runs. No network."""

import re
from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal

from agent.models.adapt import append_suffix
from agent.models.base import (
    ModelBusy,
    ModelError,
    ModelRequest,
    StreamChunk,
    StreamEnd,
    TextPart,
    ToolResult,
)
from gateway.core.clock import Clock
from gateway.core.events import Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import ToolCall

_PIECE_CHARS = 16
"""Size of a chunk, about that of providers."""


@frozen
class ScriptRule:
    """Answer to messages that match. Rules are tried in order."""

    match: str
    """Regular expression, searched in the newest user message (tool results included)."""
    reply: str = ""
    """Text of the answer; `{text}` becomes the newest user message."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tools to call, as (name, JSON arguments). Such a rule does not match a message with tool
    results."""


@frozen
class Script:
    """Behaviour of a `ScriptedModel`. Without rules it answers `You said: ` and the newest
    message.
    """

    rules: tuple[ScriptRule, ...] = ()
    delay_s: float = 0.0
    """Seconds before the first piece. 0: none."""
    pace_s: float = 0.0
    """Seconds after each piece of text. 0: none."""
    errors: tuple[ModelError, ...] = ()
    """Raised by the first requests, one each, instead of an answer."""
    usage: Usage | None = None
    """None: counted from the lengths, a token per four characters begun."""


class ScriptedModel:
    """Plays a `Script`.

    `requests` holds the newest hundred requests, oldest first, for tests.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        clock: Clock,
        name: str = "main",
        context_tokens: int = 128_000,
        max_output_tokens: int = 4096,
        takes_tools: bool = True,
        takes_images: bool = False,
        may_leak_calls: bool = False,
    ) -> None:
        """Raises ValueError for a rule that is no regular expression."""
        self._script = script or Script()
        try:
            self._rules = [(re.compile(rule.match, re.DOTALL), rule) for rule in self._script.rules]
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        self._clock = clock
        self._errors = deque(self._script.errors)
        self.requests: deque[ModelRequest] = deque(maxlen=100)
        self.name = name
        self.label = "a scripted model (for tests and demos)"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = "scripted"
        self.takes_tools = takes_tools
        self.takes_images = takes_images
        self._may_leak_calls = may_leak_calls

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        if self._script.delay_s > 0:
            await self._clock.sleep(self._script.delay_s)
        if self._errors:
            raise self._errors.popleft()
        if not request.max_output_tokens:
            yield StreamEnd(
                stop_reason="end",
                usage=Usage(input_tokens=_count_tokens(_all_text(request))),
                model="scripted",
            )
            return
        text, calls = self._choose_answer(request)
        limit = request.max_output_tokens * 4
        stop: Literal["length", "tools", "end"] = (
            "length" if len(text) > limit else "tools" if calls else "end"
        )
        text = text[:limit]
        for start in range(0, len(text), _PIECE_CHARS):
            yield TextPart(text=text[start : start + _PIECE_CHARS])
            if self._script.pace_s > 0:
                await self._clock.sleep(self._script.pace_s)
        if stop == "tools":
            for call in calls:
                yield call
        written = text + "".join(call.name + call.arguments for call in calls)
        usage = self._script.usage or Usage(
            input_tokens=_count_tokens(_all_text(request)), output_tokens=_count_tokens(written)
        )
        yield StreamEnd(
            stop_reason=stop, usage=usage, model="scripted", may_leak_calls=self._may_leak_calls
        )

    async def start(self) -> None:
        """Do nothing: nothing takes long here."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    def _choose_answer(self, request: ModelRequest) -> tuple[str, list[ToolCall]]:
        conversation = append_suffix(request)
        parts = conversation[-1].parts if conversation else ()
        text = "\n".join(part.text for part in parts if isinstance(part, TextPart | ToolResult))
        answering = any(isinstance(part, ToolResult) for part in parts)
        earlier = sum(
            isinstance(part, ToolCall) for message in request.conversation for part in message.parts
        )
        for pattern, rule in self._rules:
            if (rule.calls and (answering or not request.tools)) or not pattern.search(text):
                continue
            calls = [
                ToolCall(id=f"call_{earlier + index}", name=name, arguments=arguments)
                for index, (name, arguments) in enumerate(rule.calls)
            ]
            return rule.reply.replace("{text}", text), calls
        return f"You said: {text}", []


def busy_errors(times: int) -> tuple[ModelError, ...]:
    """Return the errors of a script that is overloaded `times` times."""
    return tuple(ModelBusy("scripted to be busy") for _ in range(times))


def _all_text(request: ModelRequest) -> str:
    parts = [part for message in append_suffix(request) for part in message.parts]
    calls = [part.arguments for part in parts if isinstance(part, ToolCall)]
    texts = [part.text for part in parts if isinstance(part, TextPart | ToolResult)]
    return "".join(
        [t.schema for t in request.tools] + [b.text for b in request.blocks] + texts + calls
    )


def _count_tokens(text: str) -> int:
    return -(-len(text) // 4)
