"""One turn: ask the model, let it use tools, ask again, until it says something or chooses not to."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agent.brief import Brief
from agent.models.base import (
    End,
    Image,
    Malformed,
    Model,
    ModelError,
    Partial,
    Request,
    Said,
    Text,
    ToolCall,
    TooLong,
    ToolResult,
    ToolSpec,
)
from agent.prompt import SHARED, assemble
from agent.tools.rest import STAY_SILENT, TOOLS, YIELD_TO_USER
from gateway.events import Account, Usage

NOTHING = Usage()
NUDGE = "(You answered with nothing. Write the text to be posted, or call stay_silent.)"
ENOUGH = "(No more tool calls will be carried out in this turn. Answer now from what is above.)"


class Tools(Protocol):
    """What the agent may use in this turn, beyond ending it."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The same list in every turn: permission is decided at the call, never by hiding."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Carry out one call. Never raises for what the model did wrong: that is an error result."""


class NoTools:
    """Nothing beyond ending the turn."""

    specs: tuple[ToolSpec, ...] = ()

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(id=call.id, text=f"There is no tool named {call.name!r}.", error=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a turn ended."""

    outcome: Literal["replied", "silent", "yielded", "failed"]
    text: str = ""
    """To be posted; empty unless replied."""
    reason: str = ""
    """Why it failed; empty otherwise. Holds no secrets."""
    yielded: bool = False
    """The agent wants to rest; it may have replied too."""
    used_tools: bool = False
    model: str = ""
    usage: Usage = NOTHING
    requests: int = 0
    accounts: tuple[Account, ...] = ()
    """Of the requests whose cache was kept account of."""


@dataclass(slots=True)
class _Answer:
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    end: End | None = None


async def take_turn(
    brief: Brief,
    model: Model,
    tools: Tools,
    *,
    key: str,
    max_tool_rounds: int = 8,
    glimpse: Callable[[str], None] | None = None,
) -> Outcome:
    """Carry one turn through and say how it ended.

    `glimpse` is called with the text so far of each answer while it grows: what it was told may be taken back,
    and only what is `presentable` of it may be shown. Raises for the very first request only: `TooLong` if it
    does not fit the window (fold, then call again), `Malformed` if it holds images (leave them out, then call
    again). Every other model failure is an outcome. Cancelling closes the provider's connection and leaves
    nothing behind.
    """
    request = _request(brief, model, tools, key)
    done = Outcome(outcome="failed")
    nudged = False
    for round_number in range(max_tool_rounds + 2):
        try:
            answer = await _ask(model, request, glimpse)
        except ModelError as error:
            mendable = isinstance(error, TooLong) or (isinstance(error, Malformed) and _shows(request))
            if mendable and done.requests == 0:
                raise
            return replace(_lost(done, error.accounts), reason=error.reason)
        assert answer.end is not None
        done = _counted(_lost(done, answer.end.lost), answer.end, model)
        ended = _ended(answer, done)
        if ended is not None:
            return ended
        if answer.calls:
            results = await asyncio.gather(*(tools.call(call) for call in answer.calls))
            done = replace(done, used_tools=True)
            request = _continued(request, answer, tuple(results), last=round_number + 1 >= max_tool_rounds)
        elif nudged:
            return replace(done, reason="the model answered with nothing, twice")
        else:
            nudged = True
            request = _with_hint(request, NUDGE)
    return replace(done, reason=f"the model still called tools after {max_tool_rounds} rounds")


def beginning(persona: str, skills: str, model: Model, tools: Tools, *, key: str) -> Request:
    """What all requests for this agent's turns begin with, as a request to read it in and answer nothing."""
    brief = Brief(persona=persona, skills=skills, card="", history=(), heard="")
    whole = _request(brief, model, tools, key)
    blocks = tuple(block for block in whole.blocks if block.name in SHARED)
    return replace(whole, blocks=blocks, conversation=(), max_output_tokens=0)


def _request(brief: Brief, model: Model, tools: Tools, key: str) -> Request:
    specs = (*TOOLS, *tools.specs) if model.takes_tools else ()
    plain = model.family == "local"
    return assemble(brief, tools=specs, max_output_tokens=model.max_output_tokens, key=key, plain=plain)


def _counted(done: Outcome, end: End, model: Model) -> Outcome:
    """One more request has been answered."""
    return replace(
        done,
        usage=done.usage + end.usage,
        requests=done.requests + 1,
        model=end.model or model.name,
        accounts=done.accounts if end.account is None else (*done.accounts, end.account),
    )


def _lost(done: Outcome, accounts: tuple[Account, ...]) -> Outcome:
    """Requests that broke off were billed as well."""
    return replace(
        done,
        usage=sum((account.usage for account in accounts), start=done.usage),
        requests=done.requests + len(accounts),
        accounts=(*done.accounts, *accounts),
    )


def _shows(request: Request) -> bool:
    return any(isinstance(part, Image) for said in request.conversation for part in said.parts)


async def _ask(model: Model, request: Request, glimpse: Callable[[str], None] | None) -> _Answer:
    answer = _Answer()
    show = glimpse
    stream = model.stream(request)
    try:
        async for chunk in stream:
            match chunk:
                case Partial(text=text):
                    if glimpse is not None:
                        glimpse(text)
                    show = None  # the model says itself how the answer grows, and then says it whole
                case Text(text=text):
                    answer.text += text
                    if show is not None:
                        show(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, chunk)
                case End():
                    answer.end = chunk
    finally:
        await stream.aclose()
    return answer


def _ended(answer: _Answer, done: Outcome) -> Outcome | None:
    """The outcome that this answer makes, or None if the turn goes on."""
    text = _whole(answer.text).strip()
    names = {call.name for call in answer.calls}
    if STAY_SILENT.name in names:
        return replace(done, outcome="silent")
    if YIELD_TO_USER.name in names:
        return replace(done, outcome="replied" if text else "yielded", text=text, yielded=True)
    if answer.end is not None and answer.end.stop == "refused":
        return replace(done, reason="the model declined to answer")  # what it had begun to say is not its answer
    if not names and text:
        return replace(done, outcome="replied", text=text)
    return None


def _whole(text: str) -> str:
    """Join surrogate halves that came in separate pieces; a half that stays alone cannot be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _continued(request: Request, answer: _Answer, results: tuple[ToolResult, ...], *, last: bool) -> Request:
    beside: tuple[Text | ToolCall | ToolResult, ...] = (Text(text=_whole(answer.text)),) if answer.text.strip() else ()
    asked = Said(role="assistant", parts=(*beside, *answer.calls))
    request = replace(request, conversation=(*request.conversation, asked, Said(role="user", parts=results)))
    return _with_hint(request, ENOUGH) if last else request


def _with_hint(request: Request, hint: str) -> Request:
    """Say something to the model behind all that is worth caching. It leaves with this turn."""
    return replace(request, now=f"{request.now}\n{hint}".strip())
