"""Shared by the tests of turns: a model that plays answers in their order, and tools that write
down who used them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from agent import turn
from agent.models.base import (
    Model,
    ModelError,
    ModelRequest,
    StreamChunk,
    StreamEnd,
    TextPart,
    ToolResult,
)
from agent.prompt import PromptInput, PromptTurn
from agent.turn_context import TurnHost, TurnOutcome, TurnProgress
from gateway.core.events import EvidenceRef, RequestUsage, TurnStep, Usage
from gateway.core.tool_spec import ToolCall, ToolSpec

NOTHING = '{"properties":{},"type":"object"}'
LOOK_UP = ToolSpec(
    name="look_up",
    description="Look up a word.",
    schema=NOTHING,
    is_parallel=True,
    is_polling=True,
    offer="described",
)
JOT = ToolSpec(
    name="jot",
    description="Write down.",
    schema=NOTHING,
    is_parallel=True,
    is_polling=True,
    offer="described",
)
USAGE = Usage(input_tokens=10, output_tokens=1)
ACCOUNT = RequestUsage(
    provider="played", model="played-1", blocks=(), usage=USAGE, cost_usd=0.25, exact=True
)


class NoTools:
    """Nothing beyond ending the turn."""

    specs: tuple[ToolSpec, ...] = ()

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(id=call.id, text=f"There is no tool named {call.name!r}.", is_error=True)


@dataclass(frozen=True, kw_only=True)
class Say:
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(id, name)."""
    arguments: str = "{}"
    """Of each of them. The same call is not carried out a third time in a turn."""
    refused: bool = False
    waits: bool = False
    """It never comes."""
    error: ModelError | None = None
    """It ends so, behind its text."""


class Played:
    """A `Model`. With no answers left it says `Done.`"""

    name = label = "played"
    context_tokens = 100_000
    max_output_tokens = 1_000
    family = "scripted"
    takes_tools = True
    takes_images = False
    leaks = False
    bill: Callable[[ModelRequest], int] | None = None
    """Returns the tokens that a prompt is billed for. None: always the same few."""

    def __init__(self, *answers: Say) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []
        self.asked = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        self.asked.set()
        answer = self.answers.pop(0) if self.answers else Say(text="Done.")
        if answer.waits:
            await asyncio.Event().wait()
        if answer.text:
            yield TextPart(text=answer.text)
        if answer.error is not None:
            raise answer.error
        for ident, name in answer.calls:
            yield ToolCall(id=ident, name=name, arguments=answer.arguments)
        stop: Literal["refused", "tools", "end"] = (
            "refused" if answer.refused else "tools" if answer.calls else "end"
        )
        yield StreamEnd(
            stop_reason=stop,
            usage=replace(USAGE, input_tokens=self.bill(request)) if self.bill else USAGE,
            model="played-1",
            account=ACCOUNT,
            may_leak_calls=self.leaks,
        )

    async def start(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        """Nothing is held here."""


@dataclass
class Drawer:
    """`Tools`. Each call is told its own name; `meanwhile` happens during the first."""

    meanwhile: Callable[[], Awaitable[None]] | None = None
    used: list[ToolCall] = field(default_factory=list)
    specs: tuple[ToolSpec, ...] = (LOOK_UP, JOT)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, call: ToolCall) -> ToolResult:
        self.used.append(call)
        if self.meanwhile is not None:
            then, self.meanwhile = self.meanwhile, None
            await then()
        self.done.set()
        known = call.name in {spec.name for spec in self.specs}
        return ToolResult(
            id=call.id, text=f"{call.name} is done" if known else "no such tool", is_error=not known
        )


class Tools(Protocol):
    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def call(self, call: ToolCall) -> ToolResult: ...


class Archive(Protocol):
    """Where results are kept that are shown shortened."""

    budget_tokens: int
    max_result_tokens: int

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef: ...

    def record_cut(self) -> None: ...


class Host(TurnHost):
    """Where a turn is taken, with these answers to what it asks for."""

    tools: Tools = NoTools()
    archive: Archive | None = None

    def __init__(
        self,
        *,
        news: Callable[[int], Awaitable[str]] | None = None,
        afford: Callable[[object], bool] = lambda _: True,
        shorten: Callable[[int], Awaitable[PromptInput | None]] | None = None,
        glimpse: Callable[[str], object] = lambda _: None,
        spoken_to: bool = False,
    ) -> None:
        super().__init__()
        self.news, self.afford, self.shorter, self.glimpse = news, afford, shorten, glimpse
        self.is_addressed = spoken_to

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.tools.call(call)

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef | None:
        return None if self.archive is None else await self.archive.keep(call, result)

    def record_cut(self) -> None:
        if self.archive is not None:
            self.archive.record_cut()

    def answer_grew(self, text: str) -> None:
        self.glimpse(text)

    async def can_afford(self, request: ModelRequest) -> bool:
        return self.afford(request)

    async def fetch_arrivals(self, room: int) -> str:
        return await self.news(room) if self.news is not None else ""

    async def shorten(self, times: int) -> PromptInput | None:
        return await self.shorter(times) if self.shorter is not None else None


async def take_turn(
    heard: PromptInput,
    model: Model,
    tools: Tools,
    host: Host | None = None,
    *,
    progress: TurnProgress | None = None,
    evidence: Archive | None = None,
    **more: Any,
) -> TurnOutcome:
    """Take a turn with these tools, and `evidence` for the archive of their results."""
    host = host or Host()
    host.tools, host.specs, host.archive = tools, tools.specs, evidence
    host.progress = progress or host.progress
    if evidence is not None:
        host.budget_tokens = evidence.budget_tokens
        host.max_result_tokens = evidence.max_result_tokens
    return await turn.take_turn(heard, model, host, **more)


def brief(
    heard: str = "[x] ann (guest): hello", *history: PromptTurn, now: str = ""
) -> PromptInput:
    return PromptInput(
        persona="You are Ana.",
        card="# Where",
        history=history,
        input_text=heard,
        now=now,
        conversation="irc/#a",
    )


def kept(heard: str, reply: str, steps: tuple[TurnStep, ...]) -> PromptTurn:
    return PromptTurn(input_text=heard, reply=reply, steps=steps)
