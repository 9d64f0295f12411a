"""Dispatch of tool calls: the permission gate, one agent's tools, and the calls under way.

The list of tools is the same in every turn, so that it never changes the cached prefix. A call that
is not allowed is refused, with a reason that the model understands.

Permission comes first (`PermissionGate`), then calls under way (`RunningCalls`), dispatch
(`ToolDispatcher`, `TurnTools`), fitting tools into a model's window, and rendering them for the
model and for people.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from agent.journal import to_single_line
from agent.models.base import ToolResult
from agent.tokens.counter import estimate_tokens
from agent.turn_context import call_key
from gateway.access.approval_texts import inline_code
from gateway.config.reload import LiveSettings
from gateway.context.history import was_begun_by_cut_off_turn
from gateway.context.observer import ToolProgress, TurnTracker
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, Sender
from gateway.core.facts import ToolRefused, ToolStarted
from gateway.core.i18n import N_, _
from gateway.core.identity import ROLE_ORDER, AccessPolicy, Role, role_of
from gateway.core.labels import Label, join, label_of_role
from gateway.core.permissions import (
    Effect,
    PermissionDecision,
    PermissionRequest,
    ToolPermit,
    ToolRule,
    apply_rules,
    decide_permission,
    lowest_role,
    proven_role,
)
from gateway.core.redaction import Redactor
from gateway.core.tool import Requester, Tool, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCall, ToolCallRefused, ToolSpec, find_unknown_arguments
from gateway.store import NewEntry, Store, StoreError
from gateway.stream.routing import PrivacyCache
from gateway.tools.approvals import Approvals
from gateway.tools.metrics import ToolStats

logger = logging.getLogger("reverie.tools")

ALREADY_BEGUN: Final = (
    "Not carried out: the same was begun right before the gateway was stopped, and may have had "
    "its effect. Look what "
    "it has done; if it is still to be done, call it once more."
)


class PermissionGate:
    """Permission check that every call passes. One for all agents."""

    def __init__(  # noqa: PLR0917 - what each decision looks at
        self,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        approvals: Approvals,
        access_policy: AccessPolicy,
        places: PrivacyCache,
    ) -> None:
        """`access_policy` is read anew for each call, and after each approval."""
        self._live = live
        self._store = store
        self._clock = clock
        self.approvals = approvals
        self._access_policy = access_policy
        self._places = places

    async def authorize(self, tool: Tool, call: ToolCall, context: ToolContext) -> str:
        """Return an empty text if the call may be carried out, else the reason for the model.

        Raises StoreError, and ToolCallRefused for arguments that cannot be meant.

        Refusals by role are recorded here; calls that wait for an approval are recorded by the
        approver's side.
        """
        name = tool.spec.name
        permit = apply_rules(name, tool.permit, self._live.settings.tools.rules)
        if call.is_recovered:
            context.request.add(Label("outside", source=f"the call of {name} in the text"))
        here = await self._places.with_memberships(
            context.visibility, context.request.label.readers
        )
        context = replace(context, visibility=here)
        effect = await tool.find_effect(call, context)
        now = await self._build_request(context, effect)
        verdict = decide_permission(name, permit, now)
        if verdict.outcome == "approval":
            if refusal := await self.approvals.request_approval(
                call, context, permit.role, verdict, now.label
            ):
                return refusal
            permit = apply_rules(name, tool.permit, self._live.settings.tools.rules)
            verdict = decide_permission(name, permit, await self._build_request(context, effect))
        if (
            verdict.outcome == "refused"
        ):  # perhaps somebody was blocked or lost a role while it waited
            await self._record_refusal(name, verdict, context)
            return f"Refused: {verdict.rule}. Nothing was done."
        return await self._record_begin(tool, call, context)

    async def _record_begin(self, tool: Tool, call: ToolCall, context: ToolContext) -> str:
        """Record the begin of a call with side effects, so that no crash repeats it unnoticed.

        Returns a text for the model if another turn began the same call there and did not end it,
        else an empty one.
        """
        if not has_side_effects(tool):
            return ""
        digest = hashlib.sha256(call_key(call).encode("utf-8", "surrogatepass")).hexdigest()
        fact = ToolStarted(
            turn=context.turn, agent=context.agent, tool=tool.spec.name, arguments=digest
        )
        place = context.at.conversation
        before = await was_begun_by_cut_off_turn(self._store, place, fact)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place)])
        return ALREADY_BEGUN if before else ""

    async def _build_request(self, context: ToolContext, effect: Effect) -> PermissionRequest:
        roles = [await self._effective_role(asker, context.at) for asker in context.requesters]
        return PermissionRequest(
            roles=roles,
            unasked_role=lowest_role(
                [self._live.settings.tools.unasked_role, context.unasked_role]
            ),
            here=context.visibility,
            label=join([context.request.label, *map(label_of_role, roles)]),
            effect=effect,
        )

    async def _effective_role(self, asker: Requester, at: Address) -> str:
        """Return the lower of a person's role when they wrote and their role now, with the login
        that they have now.
        """
        if asker.verified and current_role(self._access_policy, at, asker) in ("owner", "admin"):
            person = Sender(id=asker.id, name=asker.name, verified=True)
            asker = replace(asker, verified=await self._places.is_logged_in(at, person))
        return lowest_role(
            [
                proven_role(asker.role, verified=asker.verified),
                current_role(self._access_policy, at, asker),
            ]
        )

    async def _record_refusal(
        self, name: str, verdict: PermissionDecision, context: ToolContext
    ) -> None:
        logger.info("%s: %s is refused: %s", context.turn, name, verdict.rule)
        fact = ToolRefused(
            turn=context.turn, agent=context.agent, tool=name, role=verdict.role, rule=verdict.rule
        )
        await self._store.append(
            [NewEntry(fact=fact, at=self._clock.now(), conversation=context.at.conversation)]
        )


def current_role(who: AccessPolicy, at: Address, asker: Requester) -> Role:
    """Return the current role of a person who wrote there. Pure."""
    ranks, is_bot = asker.ranks, asker.is_bot
    sender = Sender(
        id=asker.id, name=asker.name, verified=asker.verified, ranks=ranks, is_bot=is_bot
    )
    return role_of(who, at, sender)


def are_blocked(access_policy: AccessPolicy, at: Address, requesters: Sequence[Requester]) -> bool:
    """Return whether a person asked there, and everyone who did is blocked by now. Pure."""
    return bool(requesters) and all(
        current_role(access_policy, at, one) == "blocked" for one in requesters
    )


def has_side_effects(tool: Tool) -> bool:
    """Return True if the tool may change something outside, as only admins may."""
    return not tool.spec.is_parallel and tool.permit.role in ("admin", "owner")


KILLED_BY_OPERATOR: Final = "The operator ended it. It may have had an effect all the same."


@dataclass(slots=True, eq=False)
class _RunningCall:
    conversation: ConversationId
    name: str
    began_s: float
    """Start, as in `time.monotonic`."""
    task: asyncio.Task[ToolResult]
    killed: bool = False


class RunningCalls:
    """Calls under way of all agents, told to the tracker of turns. Each conversation belongs to one
    agent.
    """

    def __init__(self, tracker: TurnTracker, stats: ToolStats) -> None:
        self._tracker = tracker
        self.stats = stats
        """Counters of the calls that have ended."""
        self._calls: list[_RunningCall] = []

    def describe(self, conversation: ConversationId) -> list[str]:
        """Return the calls under way there, each in a few words, oldest first."""
        now_s = time.monotonic()
        return [
            _("{tool}, for {seconds} s").format(tool=one.name, seconds=round(now_s - one.began_s))
            for one in self._calls
            if one.conversation == conversation
        ]

    async def run(
        self, call: ToolCall, context: ToolContext, work: Coroutine[Any, Any, ToolResult]
    ) -> ToolResult:
        """Run the work of a call. Returns once it has ended, also if it was killed.

        When cancelled, cancels the work, waits for its end and passes the cancellation on.
        """
        progress = ToolProgress(
            call=call.id, name=call.name, arguments=call.arguments, state="started"
        )
        self._tracker.tool_changed(context.turn, progress)
        result = ToolResult(id=call.id, text="It was cut off.", is_error=True)
        try:
            result = await self._run(call.name, context.at.conversation, work) or replace(
                result, text=KILLED_BY_OPERATOR
            )
        finally:
            ended = replace(progress, state="ended", result=result.text, error=result.is_error)
            self._tracker.tool_changed(context.turn, ended)
        return result

    async def _run(
        self, name: str, conversation: ConversationId, work: Coroutine[Any, Any, ToolResult]
    ) -> ToolResult | None:
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
        """Kill all calls under way there. Returns their names, without waiting for their end."""
        matching = [
            one for one in self._calls if one.conversation == conversation and not one.killed
        ]
        for one in matching:
            one.killed = True
            one.task.cancel()
        return [one.name for one in matching]


MAX_RESULT_CHARS: Final = 1_000_000
"""Characters of one result: more is dropped, not even kept as evidence."""
MAX_TOOL_NAME_CHARS: Final = 80
MAX_IGNORED_CHARS: Final = 200
"""Characters of the names of unknown arguments."""


class DynamicTools(Protocol):
    """Tools that come and go while the gateway runs."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that are there now."""

    def all_tools(self) -> Mapping[str, Tool]:
        """Return the tools that are or were there, by name: one that is gone says so when it is
        called.
        """


class ToolDispatcher:
    """All tools of an agent.

    The specs that the model receives are pinned, because they stand before everything that is
    cached. Tools that come or go meanwhile can be called at once all the same; `changed_names`
    lists them.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        gate: PermissionGate,
        running: RunningCalls,
        redactor: Redactor,
        *,
        agent: str = "",
        dynamic: DynamicTools | None = None,
        max_dynamic_tokens: int = 0,
        off: Sequence[str] = (),
        notes: Mapping[str, Callable[[], str]] = MappingProxyType({}),
    ) -> None:
        """`off`: globs of disabled tools. `redactor` is applied to results. `notes`: last sentence
        of a tool's description, from the settings, by its name.

        `max_dynamic_tokens`: room for the specs of dynamic tools. One without room can be called
        all the same.
        """
        self._gate = gate
        self._off = tuple(off)
        self._tools = {
            tool.spec.name: tool for tool in tools if not is_off(tool.spec.name, self._off)
        }
        self._agent = agent
        self._dynamic = dynamic
        self._max_dynamic_tokens = max_dynamic_tokens
        self._omitted: list[str] = []
        """Names of the dynamic tools without room, as they were logged last."""
        self._redactor = redactor
        self._running = running
        self._notes = notes
        self.specs: tuple[ToolSpec, ...] = ()
        """Specs as the model receives them."""
        self.last_turn_s: float | None = None
        """Begin of the last turn, on the clock's `monotonic`. None: there was none."""
        self.pin_specs()

    def pin_specs(self) -> None:
        """Send the specs of the current tools, from the next request on."""
        names = {name: tool.spec for name, tool in (self._tools | self._dynamic_by_name()).items()}
        for name, note in self._notes.items():
            if name in names:
                description = f"{names[name].description} {note()}".rstrip()
                names[name] = replace(names[name], description=description)
        self.specs = tuple([names[name] for name in sorted(names)])

    @property
    def changed_names(self) -> tuple[list[str], list[str]]:
        """Names of the tools that came, and of those that went, since the specs were pinned."""
        pinned, now = {spec.name for spec in self.specs}, {*self._tools, *self._dynamic_by_name()}
        return sorted(now - pinned), sorted(pinned - now)

    def permits(self) -> dict[str, ToolPermit]:
        """Return the permit of each current tool, by name."""
        return {
            name: tool.permit
            for name, tool in sorted((self._tools | self._dynamic_by_name()).items())
        }

    def for_turn(self, context: ToolContext) -> "TurnTools":
        """Return the tools for one turn."""
        return TurnTools(self, context)

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Carry out one call. Raises only `StoreError` and cancellation."""
        return await self._running.run(call, context, self._call(call, context))

    async def _call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = self._find_tool(call.name)
        if tool is not None and self._asks_for_schema(tool, call):
            context.request.add(
                Label("outside", source=call.name)
            )  # an MCP server wrote the description
            text = f"{tool.spec.description}\nIt takes: {tool.spec.schema}"
            return ToolResult(
                id=call.id,
                text=text,
                kind="text",
                origin="what the tool says of itself",
                is_untrusted=True,
            )
        if tool is None:
            self._running.stats.count_call(call.name, "unknown", 0.0)
            name = to_single_line(call.name[: 2 * MAX_TOOL_NAME_CHARS], MAX_TOOL_NAME_CHARS)
            return ToolResult(id=call.id, text=f"There is no tool named {name!r}.", is_error=True)
        try:
            arguments = tool.parse(call)
            refusal = await self._gate.authorize(tool, call, context)
        except ToolCallRefused as refused:
            arguments, refusal = {}, str(refused)
        if refusal:
            self._running.stats.count_call(call.name, "refused", 0.0)
            return ToolResult(id=call.id, text=refusal, is_error=True)
        began = time.monotonic()
        returned, outcome = await self._run(tool, arguments, context)
        self._running.stats.count_call(call.name, outcome, time.monotonic() - began)
        output = ToolOutput(text=returned) if isinstance(returned, str) else returned
        if tool.arguments is not None and (
            names := find_unknown_arguments(tool.arguments, call.arguments)
        ):
            ignored = to_single_line(", ".join(names)[: 2 * MAX_IGNORED_CHARS], MAX_IGNORED_CHARS)
            output = replace(
                output,
                text=f"{output.text}\n(It takes no such argument, so this was ignored: {ignored})",
            )
        return self._build_result(call, output, context, error=outcome != "ok" or output.is_error)

    async def _run(
        self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[str | ToolOutput, Literal["ok", "error", "refused", "timeout"]]:
        name, limit_s = tool.spec.name, tool.timeout_s()
        try:
            async with asyncio.timeout(limit_s):
                return await tool.handler(context, **arguments), "ok"
        except ToolCallRefused as refused:
            logger.info("%s: %s is refused: %s", context.turn, name, refused)
            return str(refused), "refused"
        except StoreError:
            raise  # the gateway cannot go on without its log
        except TimeoutError:
            logger.warning("%s: %s took longer than %g s", context.turn, name, limit_s)
            took = (
                f"It took longer than {limit_s:g} s and was ended. It may have had an effect "
                "all the same."
            )
            return took, "timeout"
        except Exception as error:  # a bug in that tool: the model goes on without it
            logger.exception("%s: %s broke", context.turn, name)
            return f"That did not work (internal error: {type(error).__name__}).", "error"

    def _find_tool(self, name: str) -> Tool | None:
        found = self._tools.get(name)
        if found is None and self._dynamic is not None and not is_off(name, self._off):
            found = self._dynamic.all_tools().get(name)
        return found

    def _asks_for_schema(self, tool: Tool, call: ToolCall) -> bool:
        """Return True for a call without arguments of a tool that the model has no spec of: it asks
        for the schema.
        """
        is_pinned = any(spec.name == tool.spec.name for spec in self.specs)
        return (
            not is_pinned
            and '"required"' in tool.spec.schema
            and call.arguments.strip() in ("", "{}")
        )

    def _dynamic_by_name(self) -> dict[str, Tool]:
        """Return the dynamic tools whose specs fit, in the order of their names. The others are
        logged once.
        """
        kept, left, tokens = dict[str, Tool](), list[str](), 0
        for tool in (
            sorted(self._dynamic.tools, key=lambda one: one.spec.name)
            if self._dynamic is not None
            else ()
        ):
            spec = tool.spec
            size = estimate_tokens(spec.name + spec.description + spec.schema)
            if tokens + size <= self._max_dynamic_tokens:
                kept[spec.name] = tool
                tokens += size
            else:
                left.append(spec.name)
        if left and left != self._omitted:
            logger.warning(
                "%s is not told of %d tools of servers, %s: they would take more than %d tokens of "
                "its model's window. Choose a model with a larger one, or name those that are "
                "needed in tools.mcp.NAME.tools",
                self._agent,
                len(left),
                f"{left[0]} to {left[-1]}" if len(left) > 1 else left[0],
                self._max_dynamic_tokens,
            )
        self._omitted = left
        return {name: tool for name, tool in kept.items() if not is_off(name, self._off)}

    def _build_result(
        self, call: ToolCall, output: ToolOutput, context: ToolContext, *, error: bool
    ) -> ToolResult:
        context.request.add(replace(output.label, source=output.label.source or call.name))
        redacted = self._redactor(output.text)
        text, beyond = redacted[:MAX_RESULT_CHARS], len(redacted) - MAX_RESULT_CHARS
        return ToolResult(
            id=call.id,
            text=text
            if beyond <= 0
            else f"{text}\n[{beyond} more characters are lost: ask for less at once]",
            is_error=error,
            kind=output.kind,
            origin=self._redactor(output.origin),
            excerpt=output.excerpt,
            is_untrusted=output.is_untrusted,
            images=output.images,
        )


@dataclass(frozen=True, slots=True)
class TurnTools:
    """`agent.turn.Toolset` of one turn."""

    dispatcher: ToolDispatcher
    context: ToolContext

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.dispatcher.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.dispatcher.call(call, self.context)


def is_off(name: str, off: Sequence[str]) -> bool:
    """Return True if one of the globs matches the tool."""
    return any(fnmatchcase(name, glob) for glob in off)


MAX_WINDOW_SHARE = 0.25
"""Share of a model's window for the specs of tools; the same again for the tools of MCP servers."""


def fit_families(
    agent: str, families: Mapping[str, list[Tool]], window: int, off: Sequence[str]
) -> dict[str, list[Tool]]:
    """Return the families whose specs fit the window; the first is always kept. `off`: globs of
    disabled tools.
    """
    kept, left, tokens = dict[str, list[Tool]](), list[str](), 0
    for family, some in families.items():
        specs = [tool.spec for tool in some if not is_off(tool.spec.name, off)]
        tokens += sum(estimate_tokens(spec.name + spec.description + spec.schema) for spec in specs)
        if kept and (left or tokens > window * MAX_WINDOW_SHARE):
            left.append(family)
        else:
            kept[family] = some
    if left:
        logger.warning(
            "%s has no tools for %s: the window of its model has %d tokens, and they would fill "
            "too much of it. Choose a model with a larger one, or leave others out by tools.off",
            agent,
            ", ".join(left),
            window,
        )
    return kept


MAX_NAMES = 20


def render_tool_status(came: Sequence[str], went: Sequence[str]) -> str:
    """Render what changed about the tools, a line each. It has the operator's weight: names are
    safe characters.
    """
    lines = []
    if came:
        lines.append(
            f"New tools: {_format_names(came)}. Call them with call_capability; without args it "
            "shows their arguments."
        )
    if went:
        lines.append(f"Tools that no longer exist: {_format_names(went)}.")
    return "\n".join(lines)


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


_SCOPE_TEXTS = {
    "private": N_("only in private chats"),
    "room": N_("only in rooms that are not private"),
}
_APPROVAL_TEXTS = {"always": N_("an admin must approve each call")}


def render_tool_list(
    families: Mapping[str, Mapping[str, ToolPermit]],
    rules: Sequence[ToolRule] = (),
    off: Sequence[str] = (),
    states: Sequence[str] = (),
) -> str:
    """Render the tools of one agent as Markdown, for people.

    `families`: permits by the family (`files`, `shell`, ...) and name of the tool, without the
    operator's `rules`. `off`: globs of disabled tools; those without a match are shown, too: they
    keep something away. `states`: state of what the tools depend on, a line each, perhaps with
    anybody's words.
    """
    lines = list[str]()
    for family, tools in families.items():
        permits = {
            name: apply_rules(name, tools[name], rules)
            for name in sorted(tools)
            if not is_off(name, off)
        }
        alike = groupby(
            sorted(permits, key=lambda name: _permit_sort_key(permits[name])),
            key=permits.__getitem__,
        )
        if rendered := "; ".join(
            f"{_format_codes(names)} ({_format_permit(permit)})" for permit, names in alike
        ):
            lines.append(f"- {family}: {rendered}")
    lines += [_("- off: {tools}").format(tools=_format_codes(off))] if off else []
    lines += [f"- {inline_code(state, 200)}" for state in states]
    return "\n".join(lines) or _("I have no tools.")


def _permit_sort_key(permit: ToolPermit) -> tuple[int, str, str]:
    return ROLE_ORDER.index(permit.role), permit.scope, permit.approval


def _format_codes(names: Iterable[str]) -> str:
    return ", ".join(map(inline_code, names))


def _format_permit(permit: ToolPermit) -> str:
    role = (
        _("anybody") if permit.role == "guest" else _("{role} and above").format(role=permit.role)
    )
    texts = (_SCOPE_TEXTS.get(permit.scope, ""), _APPROVAL_TEXTS.get(permit.approval, ""))
    return ", ".join(
        [permit.role if permit.role == "owner" else role, *(_(text) for text in texts if text)]
    )
