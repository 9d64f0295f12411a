"""Tools: the `Tool` type, the context of the turn that calls it, and blocking work in a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import field, replace
from functools import cache, partial
from inspect import signature
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import create_model

from gateway.core.events import Address, Sender, ToolImage
from gateway.core.facts import TurnId
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL, Label, RequestLabel, role_of_integrity
from gateway.core.permissions import ALLOW_ANYBODY, OUT, Effect, ToolPermit
from gateway.core.scopes import Visibility
from gateway.core.tool_spec import (
    Image,
    Offer,
    ResultExcerpt,
    ToolArguments,
    ToolCall,
    ToolSpec,
    define_tool,
    parse_arguments,
)

ThreadResult = TypeVar("ThreadResult")
DEFAULT_TIMEOUT_S: Final = 30.0
_DECLARATION: Final = "declared_tool"
THREAD_STOP_S: Final = 5.0
"""How long cancelled work is waited for: a disk that does not answer must not keep the gateway from
ending."""


@frozen
class Requester(Sender):
    """A person whose message a turn answers."""

    role: str


@frozen
class ToolContext:
    """The turn that calls a tool, and its place."""

    turn: TurnId
    agent: str
    at: Address
    visibility: Visibility
    autonomous: bool
    requesters: tuple[Requester, ...] = ()
    """Senders of the new messages addressed to the agent, oldest first. Empty: nobody."""
    unasked_role: str = "owner"
    """Lowest role among the authors of the new text, for a turn that nobody asked for."""
    request: RequestLabel = field(default_factory=RequestLabel, compare=False)
    """Label of the turn's requests so far: one object, shared by all calls of a turn."""

    @property
    def least_role(self) -> str:
        """The lowest role of those who may have caused what the turn does; anybody outside counts
        as a guest.

        `owner`: the request holds the words of the operator, of owners and of the agent alone.
        """
        return role_of_integrity(self.request.label.integrity)


@frozen
class ToolOutput:
    """Result of a tool and its origin."""

    text: str
    kind: str = "text"
    origin: str = ""
    excerpt: ResultExcerpt | None = None
    is_untrusted: bool = False
    """True for other people's words: they are fenced when shown to the model. Tools must not fence
    them."""
    label: Label = TRUSTED_LABEL
    """Label of the text. Without a source, the tool's name becomes it."""
    images: tuple[tuple[ToolImage, Image], ...] = ()
    is_error: bool = False


ToolHandler = Callable[..., Awaitable[str | ToolOutput]]
"""Called with the `ToolContext` and the arguments by name. Returns the result for the model, of any
length.

Raises ToolCallRefused if the call is not allowed or not possible. It is cancelled at its time limit
or when its turn is cancelled, and then leaves nothing running.
"""
HandlerT = TypeVar("HandlerT", bound=ToolHandler)
EffectFinder = Callable[..., Awaitable[Effect]]


@frozen(kw_only=False)
class Tool:
    """One tool: its description for the model, its arguments and its handler."""

    spec: ToolSpec
    arguments: type[ToolArguments] | None
    """None: the handler gets one argument, `arguments`: JSON text as the model wrote it, perhaps
    malformed."""
    handler: ToolHandler
    permit: ToolPermit = ALLOW_ANYBODY
    timeout_s: Callable[[], float] = lambda: DEFAULT_TIMEOUT_S
    """Returns the time limit of one call; then it is cancelled. Waiting for an approval does not
    count."""
    effect: Effect | EffectFinder = OUT
    """What a call can do outside of its place; a function is called as the handler, and raises
    StoreError."""
    note: Callable[[], str | None] = lambda: ""
    """Returns the last sentence of its description, from the settings. Empty: there is none. None:
    the tool cannot work as the gateway is configured, so it is not offered."""

    def parse(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises ToolCallRefused if they are not valid."""
        if self.arguments is None:
            return {"arguments": call.arguments}
        return dict(parse_arguments(self.arguments, call.arguments))

    async def find_effect(self, call: ToolCall, context: ToolContext) -> Effect:
        """Return the effect of a call as the model wrote it. Raises StoreError, ToolCallRefused for
        bad arguments.
        """
        return (
            self.effect
            if isinstance(self.effect, Effect)
            else await self.effect(context, **self.parse(call))
        )


def build_tool(
    handler: ToolHandler,
    description: str,
    permit: ToolPermit = ALLOW_ANYBODY,
    *,
    name: str = "",
    effect: Effect | EffectFinder = OUT,
    ephemeral: bool = False,
    parallel: bool = False,
    polls: bool = False,
    offer: Offer = "named",
) -> Tool:
    """Build a tool from a function: its keyword-only parameters are the arguments that the model
    gives.

    `name`: empty for the function's own. `effect`: as in `Tool`. The other options are those of
    `ToolSpec`.
    """
    name = name or handler.__name__
    arguments = create_model(name, __base__=ToolArguments, **keyword_fields(handler))
    spec = define_tool(
        name,
        description,
        arguments,
        ephemeral=ephemeral,
        parallel=parallel,
        polls=polls,
        offer=offer,
    )
    return Tool(spec, arguments, handler, permit, effect=effect)


def keyword_fields(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a function, as `pydantic.create_model` takes them."""
    return {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in signature(handler).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    }


class _Declared(NamedTuple):
    build: Callable[[], Tool]
    """At the first use: a start needs no tool."""
    permit: ToolPermit
    timeout_s: Callable[[Any], float]
    note: Callable[[Any], str | None]


def tool(
    description: str,
    permit: ToolPermit = ALLOW_ANYBODY,
    *,
    effect: Effect | EffectFinder,
    timeout_s: Callable[[Any], float] = lambda _: DEFAULT_TIMEOUT_S,
    note: Callable[[Any], str | None] = lambda _: "",
    ephemeral: bool = False,
    parallel: bool = False,
    polls: bool = False,
    offer: Offer = "named",
) -> Callable[[HandlerT], HandlerT]:
    """Declare a method as the tool of its name. Its keyword-only parameters are the arguments that
    the model gives.

    `timeout_s`, `note` and `effect`: as in `Tool`, called with the object first. The others: as in
    `ToolSpec`.
    """

    def declare(method: HandlerT) -> HandlerT:
        build = partial(
            build_tool,
            method,
            description,
            permit,
            effect=effect,
            ephemeral=ephemeral,
            parallel=parallel,
            polls=polls,
            offer=offer,
        )
        method.__dict__[_DECLARATION] = _Declared(cache(build), permit, timeout_s, note)
        return method

    return declare


def tools_of(*owners: object) -> list[Tool]:
    """Return the tools declared by the classes of these objects, bound to them."""
    return [
        replace(
            built,
            handler=partial(built.handler, owner),
            timeout_s=partial(one.timeout_s, owner),
            note=partial(one.note, owner),
            effect=built.effect
            if isinstance(built.effect, Effect)
            else partial(built.effect, owner),
        )
        for owner in owners
        for one in _declared_tools(type(owner)).values()
        for built in (one.build(),)
    ]


def build_tools(owner: type) -> list[Tool]:
    """Return the tools that a class declares. Raises what pydantic does for arguments of a type
    that it cannot read.
    """
    return [one.build() for one in _declared_tools(owner).values()]


def permits_of(*owners: type) -> dict[str, ToolPermit]:
    """Return the requirements of the tools declared by these classes, by name."""
    return {name: one.permit for owner in owners for name, one in _declared_tools(owner).items()}


def _declared_tools(owner: type) -> dict[str, _Declared]:
    return {
        one.__name__: one.__dict__[_DECLARATION]
        for one in vars(owner).values()
        if _DECLARATION in getattr(one, "__dict__", ())
    }


async def run_in_thread(work: Callable[[Callable[[], bool]], ThreadResult]) -> ThreadResult:
    """Return the result of `work`, which runs in a thread and gets a function that returns whether
    to stop.

    When cancelled, tells the work to stop and waits until it has ended (`THREAD_STOP_S` at most),
    so that its effects are complete or absent.
    """
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running], timeout=THREAD_STOP_S)
        if running.done() and not running.cancelled():
            running.exception()  # marks it as retrieved, so that asyncio does not log it
        raise
