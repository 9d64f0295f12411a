"""Tools: the `Tool` type, the context of the turn that calls it, and blocking work in a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar

from gateway.core.events import Address, SenderId, ToolImage
from gateway.core.facts import TurnId
from gateway.core.permissions import ALLOW_ANYBODY, ToolPermit, lowest_role, proven_role
from gateway.core.scopes import Visibility
from gateway.core.tool_spec import ArgumentsT, Image, ResultExcerpt, ToolArguments, ToolCall, ToolSpec, parse_arguments
from gateway.core.trust import TrustLabel

ThreadResult = TypeVar("ThreadResult")
THREAD_STOP_S: Final = 5.0
"""How long cancelled work is waited for: a disk that does not answer must not keep the gateway from ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """A person whose message a turn answers."""

    id: SenderId
    name: str
    """Display name. Anybody can take it."""
    role: str
    """Their role when they wrote it."""
    verified: bool
    ranks: tuple[str, ...] = ()
    """Like `Sender.ranks`. The same for `is_bot`."""
    is_bot: bool = False


@dataclass(slots=True)
class TurnTrust:
    """Authorship of everything in a turn's requests so far."""

    foreign: str = ""
    """First source that brought text from outside into the requests, including texts in view before the turn. Empty:
    none."""
    role: str = "owner"
    """Lowest role among the authors so far, including texts in view before the turn."""

    @property
    def label(self) -> TrustLabel:
        """Role and source as one `TrustLabel`."""
        return TrustLabel(self.role, self.foreign)

    def add(self, label: TrustLabel) -> None:
        """Record that from here on the requests hold a text with this label, too."""
        now = self.label | label
        self.role, self.foreign = now.role, now.foreign


async def _never_written(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The turn that calls a tool, and its place."""

    turn: TurnId
    agent: str
    at: Address
    visibility: Visibility
    autonomous: bool
    requesters: tuple[Requester, ...] = ()
    """Senders of the new messages addressed to the agent, oldest first. Empty: nobody."""
    overheard_roles: tuple[str, ...] = ()
    """Roles of the senders of other new messages in the request, which were not addressed to the agent."""
    reminder_roles: tuple[str, ...] = ()
    """Lowest role of the people who set each reminder shown in this turn."""
    trust: TurnTrust = field(default_factory=TurnTrust, compare=False)
    """One object, shared by all calls of a turn."""
    was_user_written: Callable[[str], Awaitable[bool]] = field(default=_never_written, compare=False)
    """Return True if a person who may use the agent (a member or above) wrote this exact text in this conversation
    since its last fresh start. Raises StoreError."""

    @property
    def least_role(self) -> str:
        """The lowest role among all authors of the turn's request, except text from outside.

        Without proof of identity, an admin counts as a member. `owner`: the request holds the operator's own words
        alone.
        """
        requester_roles = [proven_role(one.role, verified=one.verified) for one in self.requesters]
        return lowest_role([*requester_roles, *self.overheard_roles, *self.reminder_roles, self.trust.role])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """Result of a tool and its origin."""

    text: str
    kind: str = "text"
    origin: str = ""
    excerpt: ResultExcerpt | None = None
    is_untrusted: bool = False
    """True for other people's words: they are fenced when shown to the model. Tools must not fence them."""
    is_foreign: bool = False
    """True for text from outside (web, MCP, other rooms), which may influence the rest of the turn."""
    role: str = "owner"
    """Lowest role among the authors of the text, where that is known."""
    images: tuple[tuple[ToolImage, Image], ...] = ()
    is_error: bool = False
    """True to show the result as a failure."""


ToolHandler = Callable[[Any, ToolContext], Awaitable[str | ToolOutput]]
ToolCost = Literal["free", "cheap", "dear"]
"""Cost of a call: negligible; time or traffic; money, or much time or traffic."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its description for the model, its arguments and its handler."""

    spec: ToolSpec
    arguments_type: type[ToolArguments] | None
    """None: the handler gets the arguments as the model wrote them (JSON text, perhaps malformed)."""
    handler: ToolHandler
    """Returns the result for the model, of any length. Raises ToolCallRefused if the call is not allowed or not
    possible.

    It is cancelled at its time limit or when its turn is cancelled, and then leaves nothing running.
    """
    permit: ToolPermit = ALLOW_ANYBODY
    timeout_s: float = 30.0
    """Time limit of one call; then it is cancelled. Waiting for an approval does not count."""
    cost: ToolCost = "free"
    assess_risk: Callable[[Any, ToolContext], Awaitable[str]] | None = None
    """Return the reason why an admin has to approve a call with these arguments, for people. Empty: no such reason.
    None: there never is one.

    Raises StoreError.
    """

    async def find_risk(self, call: ToolCall, context: ToolContext) -> str:
        """Run `assess_risk` on a call as the model wrote it. Raises StoreError, ToolCallRefused for bad arguments."""
        if self.assess_risk is None:
            return ""
        return await self.assess_risk(
            call.arguments if self.arguments_type is None else parse_arguments(self.arguments_type, call.arguments),
            context,
        )

    @classmethod
    def create(
        cls,
        spec: ToolSpec,
        takes: type[ArgumentsT],
        does: Callable[[ArgumentsT, ToolContext], Awaitable[str | ToolOutput]],
        permit: ToolPermit = ALLOW_ANYBODY,
        *,
        time_s: float = 30.0,
        cost: ToolCost = "free",
        risks: Callable[[ArgumentsT, ToolContext], Awaitable[str]] | None = None,
    ) -> Self:
        """Make a tool whose handler takes the given arguments type, checked by the type checker."""
        return cls(spec, takes, does, permit, time_s, cost, risks)


async def run_in_thread(work: Callable[[Callable[[], bool]], ThreadResult]) -> ThreadResult:
    """Return the result of `work`, which runs in a thread and gets a function that returns whether to stop.

    When cancelled, tells the work to stop and waits until it has ended (`THREAD_STOP_S` at most), so that its effects
    are complete or absent.
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
