"""The tools of a turn, carried out where it may use them.

The list of tools is the same in every turn, so that it never changes what is cached; what is not allowed is refused
at the call, with a reason that the model understands.

Where every call of a tool has to pass: by right, or by an admin's word.

Tools whose descriptions a model's window has room for: of its own, and of those that come and go.

What tools an agent has, told to people: by family, with who may have them used. Pure.

What tools carry out just now, and how an operator ends it.

What an agent is told of its tools for one turn: how they run, what is approved, what came and went. Pure.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Final, Literal, Protocol

from agent.journal import to_single_line
from agent.models.base import ToolResult
from agent.turn_context import call_key
from agent.view import estimate_tokens
from gateway.access.approval_texts import inline_code
from gateway.config.tools import ToolsConfig
from gateway.context.history import was_begun_by_cut_off_turn
from gateway.context.observer import ToolProgress
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, Sender
from gateway.core.facts import ToolRefused, ToolStarted, TurnId
from gateway.core.identity import ROLE_ORDER, AccessPolicy, Role, role_of
from gateway.core.permissions import (
    PermissionDecision,
    PermissionRequest,
    ToolPermit,
    ToolRule,
    apply_rules,
    decide_permission,
    lowest_role,
    proven_role,
)
from gateway.core.redaction import Redact, Redactor
from gateway.core.tool import Requester, Tool, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCall, ToolCallRefused, ToolSpec, parse_arguments
from gateway.core.trust import TrustLabel
from gateway.store import NewEntry, Store, StoreError

logger = logging.getLogger("reverie.tools")

ALREADY_BEGUN: Final = (
    "Not carried out: the same was begun right before the gateway was stopped, and may have had its effect. Look what "
    "it has done; if it is still to be done, call it once more."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that needs an admin's word."""

    agent: str
    tool: str
    arguments: str
    """JSON text as the model wrote it: untrusted."""
    turn: TurnId
    at: Address
    """Where the turn is."""
    requesters: Sequence[Requester]
    role: str
    """Whose rights counted."""
    required_role: str
    """The lowest role that could have it called without being asked: whoever approves it has that, too."""
    rule: str
    """Why it is needed, for people."""
    least_role: str = ""
    """The least role of those whose words are behind it. Empty: not known."""
    foreign: bool = False
    """Text from outside is behind it, too."""
    recovered: bool = False
    """As `ToolCall.recovered`: what was approved for other calls is not meant for it."""


class ApprovalRequester(Protocol):
    """Who gets it."""

    async def request_approval(self, wanted: ApprovalRequest) -> str:
        """Wait for it. Empty: it is given. Else why not, for the model. Raises StoreError.

        Cancelled, nobody is waited for any more, and a word that comes later does nothing.
        """


class PermissionGate:
    """Of all agents."""

    def __init__(
        self, config: ToolsConfig, store: Store, clock: Clock, approving: ApprovalRequester, *, who: AccessPolicy
    ) -> None:
        """`who`: who somebody is by now. That is asked anew for each call, and after each approval."""
        self._access_policy = who
        self._config = config
        self._store = store
        self._clock = clock
        self._approvals = approving

    def reconfigure(self, config: ToolsConfig) -> None:
        """Go by these rules from the next call on. Returns at once."""
        self._config = config

    def required_role(self, hand: Tool) -> str:
        """The lowest role that may have it called, by the operator's rules."""
        return apply_rules(hand.spec.name, hand.permit, self._config.rules).role

    async def authorize(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        """Whether it may be carried out. Empty: it may; else why not, for the model. Raises StoreError.

        What is refused by right is written down; what waits for a word is written down by whoever gets it.
        """
        name = hand.spec.name
        permit = apply_rules(name, hand.permit, self._config.rules)
        if call.is_recovered:
            where.trust.foreign = where.trust.foreign or name
        situation = self._build_situation(where, call, await hand.find_risk(call, where))
        verdict = decide_permission(name, permit, situation)
        if verdict.outcome == "refused":
            await self._record_refusal(name, verdict, where)
            return f"Refused: {verdict.rule}. Nothing was done."
        if verdict.outcome == "allowed":
            return await self._record_begin(hand, call, where)
        refusal = await self._approvals.request_approval(
            ApprovalRequest(
                agent=where.agent,
                tool=name,
                arguments=call.arguments,
                turn=where.turn,
                at=where.at,
                requesters=where.requesters,
                role=verdict.role,
                required_role=permit.role,
                rule=verdict.rule,
                recovered=call.is_recovered,
                least_role=least_role_behind(situation),
                foreign=bool(situation.foreign),
            )
        )
        if refusal:
            return refusal
        now = decide_permission(
            name, apply_rules(name, hand.permit, self._config.rules), self._build_situation(where, call, "")
        )
        if now.outcome == "refused":  # somebody was blocked, or lost a role, while it was waited for
            await self._record_refusal(name, now, where)
            return f"Refused: {now.rule}. Nothing was done."
        return await self._record_begin(hand, call, where)

    async def _record_begin(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        """Write down what may change something outside before it does, so that no crash has it done twice unawares.

        Not empty: another turn had begun the same there, and did not end.
        """
        if not has_side_effects(hand):
            return ""
        digest = hashlib.sha256(call_key(call).encode("utf-8", "surrogatepass")).hexdigest()
        fact = ToolStarted(turn=where.turn, agent=where.agent, tool=hand.spec.name, arguments=digest)
        place = where.at.conversation
        before = await was_begun_by_cut_off_turn(self._store, place, fact)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place)])
        return ALREADY_BEGUN if before else ""

    def _build_situation(self, where: ToolContext, call: ToolCall, risk: str) -> PermissionRequest:
        seen = where.trust.label
        return PermissionRequest(
            roles=[self._effective_role(asker, where.at) for asker in where.requesters],
            unasked_role=lowest_role([self._config.unasked_role, *where.reminder_roles, seen.role]),
            overheard_roles=(*where.overheard_roles, *where.reminder_roles, seen.role),
            is_private=where.visibility.is_private,
            foreign=seen.foreign,
            is_recovered=call.is_recovered,
            risk=risk,
        )

    def _effective_role(self, asker: Requester, at: Address) -> str:
        """The weaker of what somebody was when they spoke and what they are now."""
        return lowest_role(
            [proven_role(asker.role, verified=asker.verified), current_role(self._access_policy, at, asker)]
        )

    async def _record_refusal(self, name: str, verdict: PermissionDecision, where: ToolContext) -> None:
        logger.info("%s: %s is refused: %s", where.turn, name, verdict.rule)
        fact = ToolRefused(turn=where.turn, agent=where.agent, tool=name, role=verdict.role, rule=verdict.rule)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=where.at.conversation)])


def current_role(who: AccessPolicy, at: Address, asker: Requester) -> Role:
    """What somebody who spoke there is by now. Pure."""
    ranks, is_bot = asker.ranks, asker.is_bot
    sender = Sender(id=asker.id, name=asker.name, verified=asker.verified, ranks=ranks, is_bot=is_bot)
    return role_of(who, at, sender)


def least_role_behind(now: PermissionRequest) -> str:
    """The least role of those whose words are behind a call."""
    return lowest_role([*(now.roles or [now.unasked_role]), *now.overheard_roles])


def has_side_effects(hand: Tool) -> bool:
    """Whether it may change something outside that only an admin may have changed."""
    return hand.spec.is_task and not hand.spec.is_parallel and hand.permit.role in ("admin", "owner")


@dataclass(slots=True, eq=False)
class _RunningCall:
    conversation: ConversationId
    name: str
    began_s: float
    """As `time.monotonic` has it."""
    task: asyncio.Task[ToolResult]
    killed: bool = False


class RunningCalls:
    """For all agents: each conversation is one agent's."""

    def __init__(self) -> None:
        self._calls: list[_RunningCall] = []

    def describe(self, conversation: ConversationId) -> list[str]:
        """What is carried out there, in a few words each, the oldest first."""
        now_s = time.monotonic()
        return [
            f"{one.name}, for {now_s - one.began_s:.0f} s" for one in self._calls if one.conversation == conversation
        ]

    async def run(
        self, conversation: ConversationId, name: str, work: Coroutine[Any, Any, ToolResult]
    ) -> ToolResult | None:
        """Carry it out there. None: it was killed, and has ended.

        Cancelled, it ends the work, too, and lets the cancellation through.
        """
        one = _RunningCall(conversation, name, time.monotonic(), asyncio.ensure_future(work))
        self._calls.append(one)
        try:
            await asyncio.wait({one.task})
        except asyncio.CancelledError:
            one.task.cancel()
            await asyncio.wait({one.task})
            raise
        finally:
            self._calls.remove(one)
        return None if one.killed and one.task.cancelled() else one.task.result()

    def kill(self, conversation: ConversationId) -> list[str]:
        """End all that is carried out there; its names. Returns at once."""
        there = [one for one in self._calls if one.conversation == conversation and not one.killed]
        for one in there:
            one.killed = True
            one.task.cancel()
        return [one.name for one in there]


MAX_RESULT_CHARS: Final = 1_000_000
"""Of one result: what is more is not even kept."""
MAX_TOOL_NAME_CHARS: Final = 80


class ToolGate(Protocol):
    """Where every call has to pass."""

    async def authorize(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        """Whether it may be carried out. Empty: it may; else why not, for the model. May wait for an admin's word.

        Raises StoreError.
        """


class NoApprovalGate:
    """The gate where nobody can be asked: what needs a word is refused."""

    async def authorize(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        now = PermissionRequest(
            roles=[asker.role for asker in where.requesters],
            unasked_role="guest",
            overheard_roles=(*where.overheard_roles, *where.reminder_roles, where.trust.role),
            is_private=where.visibility.is_private,
            foreign=where.trust.foreign,
            is_recovered=call.is_recovered,
            risk=await hand.find_risk(call, where),
        )
        verdict = decide_permission(hand.spec.name, hand.permit, now)
        return "" if verdict.outcome == "allowed" else f"Refused: {verdict.rule}. Nothing was done."


class DynamicTools(Protocol):
    """Tools that come and go while the gateway runs."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that are there now."""

    def all_tools(self) -> Mapping[str, Tool]:
        """Those that are or were there, by name: one that has gone says so itself."""


ToolCallCounter = Callable[[str, Literal["ok", "error", "refused", "timeout", "unknown"], float], None]
"""Told of each call: its tool, what came of it, and how many seconds it took once it was allowed."""


ToolUseListener = Callable[[TurnId, ToolProgress], None]
"""Told of each call, when it begins and when it has ended."""
KILLED_BY_OPERATOR: Final = "The operator ended it. It may have had an effect all the same."


class ToolDispatcher:
    """All tools of an agent.

    What a model is told of them is pinned: it stands in front of all that is cached. What comes and goes meanwhile can
    be called at once all the same, and `news` tells of it.
    """

    def __init__(
        self,
        hands: Sequence[Tool],
        gate: ToolGate | None = None,
        *,
        late: DynamicTools | None = None,
        counted: ToolCallCounter = lambda *_: None,
        off: Sequence[str] = (),
        doing: RunningCalls | None = None,
        redact: Redact | None = None,
        used: ToolUseListener = lambda _turn, _tool: None,
    ) -> None:
        """`gate`: None, where nobody can be asked. `off`: globs of tools that there are not. `redact` is given results.

        `doing`: where it is noted what is carried out, if others note it there, too.
        """
        self._gate = gate or NoApprovalGate()
        self._off = tuple(off)
        self._tools = {hand.spec.name: hand for hand in self._enabled(hands)}
        self._dynamic = late
        self._count_call = counted
        self._on_use = used
        self._redact = redact or Redactor()
        self._running = doing or RunningCalls()
        self.specs: tuple[ToolSpec, ...] = ()
        """As the model is told of them."""
        self.pin_specs()

    def pin_specs(self) -> None:
        """Tell the model of those that are there now, from the next request on."""
        names = {name: hand.spec for name, hand in (self._tools | self._dynamic_by_name()).items()}
        self.specs = tuple([names[name] for name in sorted(names)])

    @property
    def changed_names(self) -> tuple[list[str], list[str]]:
        """Names of the tools that came, and of those that went, since the model was told of them."""
        told, now = {spec.name for spec in self.specs}, {*self._tools, *self._dynamic_by_name()}
        return sorted(now - told), sorted(told - now)

    def permits(self) -> dict[str, ToolPermit]:
        """What each that is there needs, by name."""
        return {name: hand.permit for name, hand in sorted((self._tools | self._dynamic_by_name()).items())}

    def running_calls(self, conversation: ConversationId) -> list[str]:
        """What is carried out there just now, in a few words each, the oldest first."""
        return self._running.describe(conversation)

    def for_turn(self, where: ToolContext) -> "TurnTools":
        """For one turn."""
        return TurnTools(self, where)

    async def call(self, call: ToolCall, where: ToolContext) -> ToolResult:
        """Carry out one call. Raises `StoreError` and cancellation only."""
        told = ToolProgress(call=call.id, name=call.name, arguments=call.arguments, state="started")
        self._on_use(where.turn, told)
        result = ToolResult(id=call.id, text="It was cut off.", is_error=True)
        try:
            carried = await self._running.run(where.at.conversation, call.name, self._call(call, where))
            result = carried or replace(result, text=KILLED_BY_OPERATOR)
        finally:
            self._on_use(where.turn, replace(told, state="ended", result=result.text, error=result.is_error))
        return result

    async def _call(self, call: ToolCall, where: ToolContext) -> ToolResult:
        hand = self._find_tool(call.name)
        if hand is not None and self._asks_for_schema(hand, call):
            where.trust.add(TrustLabel(foreign=call.name))  # a server wrote it
            said = f"{hand.spec.description}\nIt takes: {hand.spec.schema}"
            return ToolResult(
                id=call.id, text=said, kind="text", origin="what the tool says of itself", is_untrusted=True
            )
        if hand is None:
            self._count_call(call.name, "unknown", 0.0)
            name = to_single_line(call.name[: 2 * MAX_TOOL_NAME_CHARS], MAX_TOOL_NAME_CHARS)
            return ToolResult(id=call.id, text=f"There is no tool named {name!r}.", is_error=True)
        try:
            asked: object = (
                call.arguments if hand.arguments_type is None else parse_arguments(hand.arguments_type, call.arguments)
            )
            refusal = await self._gate.authorize(hand, call, where)
        except ToolCallRefused as refused:
            asked, refusal = None, str(refused)
        if refusal:
            self._count_call(call.name, "refused", 0.0)
            return ToolResult(id=call.id, text=refusal, is_error=True)
        began = time.monotonic()
        told, outcome = await self._run(hand, asked, where)
        self._count_call(call.name, outcome, time.monotonic() - began)
        given = ToolOutput(text=told) if isinstance(told, str) else told
        return self._build_result(call, given, where, error=outcome != "ok" or given.is_error)

    async def _run(
        self, hand: Tool, asked: object, where: ToolContext
    ) -> tuple[str | ToolOutput, Literal["ok", "error", "refused", "timeout"]]:
        name = hand.spec.name
        try:
            async with asyncio.timeout(hand.timeout_s):
                return await hand.handler(asked, where), "ok"
        except ToolCallRefused as refused:
            logger.info("%s: %s is refused: %s", where.turn, name, refused)
            return str(refused), "refused"
        except StoreError:
            raise  # without its log the gateway cannot go on
        except TimeoutError:
            logger.warning("%s: %s took longer than %g s", where.turn, name, hand.timeout_s)
            took = f"It took longer than {hand.timeout_s:g} s and was ended. It may have had an effect all the same."
            return took, "timeout"
        except Exception as error:  # a bug in that tool: the model goes on without it
            logger.exception("%s: %s broke", where.turn, name)
            return f"That did not work (internal error: {type(error).__name__}).", "error"

    def _find_tool(self, name: str) -> Tool | None:
        found = self._tools.get(name)
        if found is None and self._dynamic is not None and not is_off(name, self._off):
            found = self._dynamic.all_tools().get(name)
        return found

    def _asks_for_schema(self, hand: Tool, call: ToolCall) -> bool:
        """It came after the model was told of its tools, and is asked what it takes."""
        told = any(spec.name == hand.spec.name for spec in self.specs)
        return not told and '"required"' in hand.spec.schema and call.arguments.strip() in ("", "{}")

    def _dynamic_by_name(self) -> dict[str, Tool]:
        return (
            {hand.spec.name: hand for hand in self._enabled(self._dynamic.tools)} if self._dynamic is not None else {}
        )

    def _enabled(self, hands: Sequence[Tool]) -> list[Tool]:
        return [hand for hand in hands if not is_off(hand.spec.name, self._off)]

    def _build_result(self, call: ToolCall, given: ToolOutput, where: ToolContext, *, error: bool) -> ToolResult:
        where.trust.add(TrustLabel(given.role, call.name if given.is_foreign else ""))
        whole = self._redact(given.text)
        text, beyond = whole[:MAX_RESULT_CHARS], len(whole) - MAX_RESULT_CHARS
        return ToolResult(
            id=call.id,
            text=text if beyond <= 0 else f"{text}\n[{beyond} more characters are lost: ask for less at once]",
            is_error=error,
            kind=given.kind,
            origin=self._redact(given.origin),
            excerpt=given.excerpt,
            is_untrusted=given.is_untrusted,
            images=given.images,
        )


@dataclass(frozen=True, slots=True)
class TurnTools:
    """`agent.turn.Toolset` for one turn."""

    dispatcher: ToolDispatcher
    context: ToolContext

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.dispatcher.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.dispatcher.call(call, self.context)


def is_off(name: str, off: Sequence[str]) -> bool:
    """Whether one of the globs matches the tool."""
    return any(fnmatchcase(name, glob) for glob in off)


MAX_WINDOW_SHARE = 0.25
"""Of a model's window, for what it is told of tools; and the same again for tools of servers."""


def fit_families(
    agent: str, families: Mapping[str, list[Tool]], window: int, off: Sequence[str]
) -> dict[str, list[Tool]]:
    """Those whose descriptions the window has room for, the first always. `off`: globs of tools that there are not."""
    kept, left, tokens = dict[str, list[Tool]](), list[str](), 0
    for family, some in families.items():
        specs = [hand.spec for hand in some if not is_off(hand.spec.name, off)]
        tokens += sum(estimate_tokens(spec.name + spec.description + spec.schema) for spec in specs)
        if kept and (left or tokens > window * MAX_WINDOW_SHARE):
            left.append(family)
        else:
            kept[family] = some
    if left:
        logger.warning(
            "%s has no tools for %s: the window of its model has %d tokens, and they would fill too much of it. "
            "Choose a model with a larger one, or leave others out by tools.off",
            agent,
            ", ".join(left),
            window,
        )
    return kept


class FittedDynamicTools:
    """`DynamicTools` for one agent: what there is no room for is not told, and said to the operator once."""

    def __init__(self, late: DynamicTools, agent: str, most_tokens: int) -> None:
        self._dynamic = late
        self._agent = agent
        self._max_tokens = most_tokens
        self._omitted: list[str] = []

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that fit, the first by name before the others."""
        kept, left, tokens = list[Tool](), list[str](), 0
        for hand in sorted(self._dynamic.tools, key=lambda one: one.spec.name):
            spec = hand.spec
            size = estimate_tokens(spec.name + spec.description + spec.schema)
            if tokens + size <= self._max_tokens:
                kept.append(hand)
                tokens += size
            else:
                left.append(spec.name)
        if left and left != self._omitted:
            logger.warning(
                "%s is not told of %d tools of servers, %s: they would take more than %d tokens of its model's window. "
                "Choose a model with a larger one, or name those that are needed in tools.mcp.NAME.tools",
                self._agent,
                len(left),
                f"{left[0]} to {left[-1]}" if len(left) > 1 else left[0],
                self._max_tokens,
            )
        self._omitted = left
        return kept

    def all_tools(self) -> Mapping[str, Tool]:
        """All, by name: one that is not told can be called all the same."""
        return self._dynamic.all_tools()


MAX_NAMES = 20


def render_tool_status(shell: str, approved: Sequence[str], came: Sequence[str], went: Sequence[str]) -> str:
    """A line each, in the operator's weight: names of tools have no characters that could be anything else.

    `shell`: empty, where nobody can have it used.
    """
    lines = [shell] if shell else []
    if approved:
        lines.append(f"Approved here until it is taken back: {_format_names(approved)}.")
    if came:
        lines.append(
            f"Tools that came since yours were listed: {_format_names(came)}. Call them by call_capability; "
            "without args that "
            "tells what they take."
        )
    if went:
        lines.append(f"Tools that are gone: {_format_names(went)}.")
    return "\n".join(lines)


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


_SCOPE_TEXTS = {"any": "", "private": ", in private places only", "room": ", in rooms that are not private only"}
_APPROVAL_TEXTS = {
    "never": "",
    "untrusted": ", approved by an admin once text from outside is in view",
    "always": ", each call approved by an admin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """The tools of one agent."""

    families: Mapping[str, Mapping[str, ToolPermit]] = field(default_factory=dict)
    """What each needs by its own permit, by its family (`files`, `shell`, ...) and name."""
    rules: Sequence[ToolRule] = ()
    """The operator's."""
    off: Sequence[str] = ()
    """Globs: tools that no agent is told of. Those that match nothing are told, too: they keep something away."""
    running: Sequence[str] = ()
    """What is under way in the place that is asked about, a few words each."""
    status_lines: Sequence[str] = ()
    """Of what they depend on, one line each: the shell, MCP servers. May hold anybody's words."""

    def render(self) -> str:
        """Everything, in Markdown."""
        lines = [
            f"- {family}: {told}" for family, tools in self.families.items() if (told := self._render_family(tools))
        ]
        lines += [f"- off: {', '.join(inline_code(one) for one in self.off)}"] if self.off else []
        lines += [f"- {inline_code(state, 200)}" for state in self.status_lines]
        return "\n".join(lines) or "I have no tools."

    def _render_family(self, tools: Mapping[str, ToolPermit]) -> str:
        needs = {
            name: apply_rules(name, permit, self.rules)
            for name, permit in sorted(tools.items())
            if not any(fnmatchcase(name, glob) for glob in self.off)
        }
        alike = groupby(sorted(needs, key=lambda name: _permit_sort_key(needs[name])), key=lambda name: needs[name])
        return "; ".join(f"{_format_codes(names)} ({_format_permit(permit)})" for permit, names in alike)


def _permit_sort_key(permit: ToolPermit) -> tuple[int, str, str]:
    return ROLE_ORDER.index(permit.role), permit.scope, permit.approval


def _format_codes(names: Iterable[str]) -> str:
    return ", ".join(map(inline_code, names))


def _format_permit(permit: ToolPermit) -> str:
    role = "anybody" if permit.role == "guest" else f"{permit.role}{'' if permit.role == 'owner' else ' and above'}"
    return f"{role}{_SCOPE_TEXTS[permit.scope]}{_APPROVAL_TEXTS[permit.approval]}"
