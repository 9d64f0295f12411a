"""A model that a test answers for."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from agent.models.base import ModelRequest, StreamChunk, StreamEnd, TextPart, ToolResult
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId, Usage
from gateway.core.facts import is_inner
from gateway.core.tool_spec import ToolCall


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, as it reached the model."""

    at_s: float
    """On the clock's `monotonic`."""
    place: ConversationId
    heard: str
    """What is new."""
    results: tuple[str, ...]
    """Of the tools that it called, if nothing else is new."""
    request: ModelRequest


@dataclass(frozen=True, kw_only=True)
class Say:
    """What the model says to that."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Tools, as (name, JSON)."""
    takes_s: float = 0.0


REST = Say(calls=(("yield_to_user", "{}"),))


def echo(ask: Ask) -> Say:
    """Says what it heard, and by itself rests."""
    return REST if is_inner(ask.place) else Say(text=f"You said: {ask.heard}")


class PlayedModel:
    """A `Model`. `answer` is asked for each answer, and `asked` keeps what was asked."""

    name = label = "played"
    context_tokens = 100_000
    max_output_tokens = 1_000
    family = "scripted"
    takes_tools = True
    takes_images = False

    def __init__(self, clock: ManualClock, answer: Callable[[Ask], Say] = echo) -> None:
        self.asked: list[Ask] = []
        self._clock = clock
        self._answer = answer

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        parts = request.conversation[-1].parts
        words = [part.text for part in parts if isinstance(part, TextPart)]
        ask = Ask(
            at_s=self._clock.monotonic(),
            place=ConversationId(request.conversation_id),
            heard="\n".join(words),
            results=tuple(part.text for part in parts if isinstance(part, ToolResult))
            if not words
            else (),
            request=request,
        )
        self.asked.append(ask)
        say = self._answer(ask)
        if say.takes_s:
            await self._clock.sleep(say.takes_s)
        if say.text:
            yield TextPart(text=say.text)
        for number, (name, arguments) in enumerate(say.calls):
            yield ToolCall(id=f"c{len(self.asked)}x{number}", name=name, arguments=arguments)
        usage = Usage(input_tokens=100, output_tokens=10)
        yield StreamEnd(stop_reason="tools" if say.calls else "end", usage=usage, model="played")

    async def start(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        """Nothing is held here."""
