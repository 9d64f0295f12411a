"""What a turn may do beside saying something: what a tool is, and what it is told of the turn that uses it.

Work that blocks, for tools: in a thread, and not left alone there when nobody waits for it any more.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Somebody whose words a turn answers."""

    id: SenderId
    name: str
    """For display only; anybody can take it."""
    role: str
    """When they spoke."""
    verified: bool
    ranks: tuple[str, ...] = ()
    """As `Sender.ranks`, and the next, too."""
    is_bot: bool = False


@dataclass(slots=True)
class TurnTrust:
    """What has happened in a turn so far, as far as its tools depend on it."""

    foreign: str = ""
    """What brought text from outside into its requests first, what was in view before it included. Empty: nothing."""
    role: str = "owner"
    """The lowest role of whoever wrote what its requests held so far, what was in view before it included."""

    @property
    def label(self) -> TrustLabel:
        """Both."""
        return TrustLabel(self.role, self.foreign)

    def add(self, label: TrustLabel) -> None:
        """From here on its requests hold this, too."""
        now = self.label | label
        self.role, self.foreign = now.role, now.foreign


async def _never_written(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Which turn uses its tools, and where."""

    turn: TurnId
    agent: str
    at: Address
    visibility: Visibility
    autonomous: bool
    requesters: tuple[Requester, ...] = ()
    """Who said what is new to the agent, oldest first. Empty: nobody did."""
    overheard_roles: tuple[str, ...] = ()
    """Roles of others whose new words it was told, though they were not said to it."""
    reminder_roles: tuple[str, ...] = ()
    """The least role of those who had each reminder set that it was told."""
    trust: TurnTrust = field(default_factory=TurnTrust, compare=False)
    """The same for all calls of a turn."""
    was_user_written: Callable[[str], Awaitable[bool]] = field(default=_never_written, compare=False)
    """Whether somebody who may use the agent (a member or above) wrote this text literally in this conversation, since
    it began afresh. Raises StoreError."""

    @property
    def least_role(self) -> str:
        """The lowest role of everybody whose words the turn's request holds, except text from outside.

        Who gave administration no proof counts as a member at most. `owner`: there are the operator's own words alone.
        """
        asked = [proven_role(one.role, verified=one.verified) for one in self.requesters]
        return lowest_role([*asked, *self.overheard_roles, *self.reminder_roles, self.trust.role])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool brought, and where that is from: all as in `ToolResult`."""

    text: str
    kind: str = "text"
    origin: str = ""
    excerpt: ResultExcerpt | None = None
    is_untrusted: bool = False
    """Somebody else's words: they are fenced where they are told. Never fence them yourself."""
    is_foreign: bool = False
    """They came from outside (web, MCP, other rooms), so what the turn does from here on may be their idea."""
    role: str = "owner"
    """The lowest role of whoever wrote them, where that is known."""
    images: tuple[tuple[ToolImage, Image], ...] = ()
    is_error: bool = False
    """It is told as a failure."""


ToolHandler = Callable[[Any, ToolContext], Awaitable[str | ToolOutput]]
ToolCost = Literal["free", "cheap", "dear"]
"""Of a call: nothing to speak of; time or traffic; money, or much of these."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: how it is told, what it takes, who carries it out."""

    spec: ToolSpec
    arguments_type: type[ToolArguments] | None
    """None: `does` is handed the arguments as the model wrote them (JSON text, perhaps malformed)."""
    handler: ToolHandler
    """Gives what the model is told, with no limit to its length. Raises Refused for what may not or cannot be.

    It is cancelled when its time is over or its turn is cut off, and then leaves nothing running.
    """
    permit: ToolPermit = ALLOW_ANYBODY
    timeout_s: float = 30.0
    """Of one call; then it is cancelled. Time that it waits for an approval does not count."""
    cost: ToolCost = "free"
    assess_risk: Callable[[Any, ToolContext], Awaitable[str]] | None = None
    """Why an admin has to approve a call with these arguments, for people. Empty: for no such reason. None: never.

    Raises StoreError.
    """

    async def find_risk(self, call: ToolCall, where: ToolContext) -> str:
        """The same of a call as the model wrote it. Raises StoreError, and Refused for what cannot be read."""
        if self.assess_risk is None:
            return ""
        return await self.assess_risk(
            call.arguments if self.arguments_type is None else parse_arguments(self.arguments_type, call.arguments),
            where,
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
        """The same, with the types held to each other."""
        return cls(spec, takes, does, permit, time_s, cost, risks)


ThreadResult = TypeVar("ThreadResult")

THREAD_STOP_S: Final = 5.0
"""That work which was told to stop is waited for: a disk that does not answer must not keep the gateway from ending."""


async def run_in_thread(work: Callable[[Callable[[], bool]], ThreadResult]) -> ThreadResult:
    """Give what it makes. It is handed a question, to be asked now and then: whether to stop.

    Cancelled, it tells the work to stop and waits until it has ended, so that what it does is done, or is not.
    """
    stop = threading.Event()
    doing = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([doing], timeout=THREAD_STOP_S)
        if doing.done() and not doing.cancelled():
            doing.exception()  # nobody is told of it
        raise
