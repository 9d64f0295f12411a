"""Dispatch of tool calls: the permission gate, one agent's tools, and the calls under way.

The list of tools is the same in every turn, so that it never changes the cached prefix. A call that
is not allowed is refused, with a reason that the model understands.

Permission comes first (`PermissionGate`), then calls under way (`RunningCalls`), dispatch
(`ToolDispatcher`), the tools of all agents as their models have room for them (`ToolRegistry`), and
rendering them for the model and for people.
"""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Literal

from agent.models.base import Model, ToolResult
from agent.tokens.counter import estimate_tokens
from agent.tools import render_entry
from agent.turn_context import call_key
from gateway.context.history import was_begun_by_cut_off_turn
from gateway.context.observer import ToolProgress, TurnTracker
from gateway.core.events import Address, ConversationId, Sender
from gateway.core.facts import ToolRefused, ToolStarted
from gateway.core.i18n import N_, _
from gateway.core.identity import ROLE_ORDER, identify, lowest_role, proven_role
from gateway.core.labels import Label, join, label_of_role
from gateway.core.permissions import (
    Effect,
    PermissionDecision,
    PermissionRequest,
    ToolPermit,
    ToolRule,
    apply_rules,
    decide_permission,
)
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_markdown, inline_code, to_single_line
from gateway.core.tool import Requester, Tool, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCall, ToolCallRefused, ToolSpec, find_unknown_arguments
from gateway.hooks import Plugins
from gateway.plugin import Ask, Refuse
from gateway.store import NewEntry, StoreError
from gateway.store.types import StatementRefused
from gateway.stream.handle import GatewayHandle
from gateway.tools.metrics import ToolStats

logger = logging.getLogger("reverie.tools")

ALREADY_BEGUN: Final = (
    "Not carried out: the same was begun right before the gateway was stopped, and may have had "
    "its effect. Look what "
    "it has done; if it is still to be done, call it once more."
)


class PermissionGate:
    """Permission check that every call passes. One for all agents."""

    def __init__(self, gateway: GatewayHandle, plugins: Plugins) -> None:
        """The access policy is read anew for each call, and after each approval."""
        self._live, self._store, self._clock = gateway.live, gateway.store, gateway.clock
        self._access_policy, self._places = gateway.people, gateway.places
        self._plugins = plugins

    async def authorize(self, tool: Tool, call: ToolCall, context: ToolContext) -> str:
        """Return an empty text if the call may be carried out, else the reason for the model.

        Raises StoreError, and ToolCallRefused for arguments that cannot be meant.

        Refusals by role are recorded here; calls that wait for an approval are recorded by the
        plugin that asks for it. Without one, they are refused.
        """
        name = tool.spec.name
        permit = apply_rules(name, tool.permit, self._live.settings.tools.rules)
        if call.is_recovered:
            context.request.label |= Label("outside", source=f"the call of {name} in the text")
        here = await self._places.with_memberships(
            context.visibility, context.request.label.readers
        )
        context = replace(context, visibility=here)
        effect = await tool.find_effect(call, context)
        now = await self._build_request(context, effect)
        verdict = decide_permission(name, permit, now)
        match await self._plugins.before_call(context, call, tool):
            case Refuse(rule):
                verdict = replace(verdict, outcome="refused", rule=rule)
            case Ask(rule) if verdict.outcome == "allowed":
                verdict = replace(verdict, outcome="approval", rule=rule)
        if verdict.outcome == "approval":
            refusal = await self._plugins.approve(context, call, verdict)
            if refusal:
                return refusal
            if refusal is None:
                rule = f"{verdict.rule}, and no plugin that asks for approvals is on"
                verdict = replace(verdict, outcome="refused", rule=rule)
            else:
                permit = apply_rules(name, tool.permit, self._live.settings.tools.rules)
                now = await self._build_request(context, effect)
                verdict = decide_permission(name, permit, now)
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
        if asker.verified and identify(self._access_policy, at, asker).role in ("owner", "admin"):
            person = Sender(id=asker.id, name=asker.name, verified=True)
            asker = replace(asker, verified=await self._places.channels.is_logged_in(at, person))
        return lowest_role(
            [
                proven_role(asker.role, verified=asker.verified),
                identify(self._access_policy, at, asker).role,
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
        self.tracker = tracker
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
        self.tracker.tell(context.turn, progress)
        began_s, task = time.monotonic(), asyncio.ensure_future(work)
        one = _RunningCall(context.at.conversation, call.name, began_s, task)
        self._calls.append(one)
        result = ToolResult(id=call.id, text="It was cut off.", is_error=True)
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                result = task.result()
            elif one.killed:
                result = replace(result, text=KILLED_BY_OPERATOR)
            else:  # a bug in that tool: the turn goes on
                logger.error("%s: %s cancelled itself", context.turn, call.name)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._calls.remove(one)
            ended = replace(progress, state="ended", result=result.text, error=result.is_error)
            self.tracker.tell(context.turn, ended)
        return result

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
        dynamic: Callable[[], Sequence[Tool]] | None = None,
        max_dynamic_tokens: int = 0,
        off: Sequence[str] = (),
    ) -> None:
        """`dynamic`: returns the tools that come and go. `off`: globs of disabled tools. `redactor`
        is applied to results.

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
        self.specs: tuple[ToolSpec, ...] = ()
        """Specs as the model receives them."""
        self.specs_tokens = 0
        """Estimated size of the specs."""
        self.may_change = dynamic is not None
        self.last_turn_s: float | None = None
        """Begin of the last turn, on the clock's `monotonic`. None: there was none."""
        self.pin_specs()

    def pin_specs(self) -> None:
        """Send the specs of the current tools, from the next request on."""
        offered = self._offered_specs()
        self.specs = tuple([offered[name] for name in sorted(offered)])
        self.specs_tokens = sum(map(_estimate_spec_tokens, self.specs))

    def _offered_specs(self) -> dict[str, ToolSpec]:
        """Return the specs of the current tools that can work as configured, by name."""
        specs = dict[str, ToolSpec]()
        for name, tool in (self._dynamic_by_name() | self._tools).items():
            if (note := tool.note()) is not None:
                described = f"{tool.spec.description} {note}" if note else tool.spec.description
                specs[name] = replace(tool.spec, description=described)
        return specs

    @property
    def changed_names(self) -> tuple[list[str], list[str]]:
        """Names of the tools that came, and of those that went, since the specs were pinned."""
        pinned, now = {spec.name for spec in self.specs}, self._offered_specs().keys()
        return sorted(now - pinned), sorted(pinned - now)

    def current_tools(self) -> list[Tool]:
        """Return all current tools, by name."""
        return [tool for _, tool in sorted((self._dynamic_by_name() | self._tools).items())]

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Carry out one call. Raises only `StoreError` and cancellation."""
        return await self._running.run(call, context, self._call(call, context))

    async def _call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = self._find_tool(call.name)
        if tool is None:
            self._running.stats.count_call(call.name, "unknown", 0.0)
            name = to_single_line(call.name[: 2 * MAX_TOOL_NAME_CHARS], MAX_TOOL_NAME_CHARS)
            return ToolResult(id=call.id, text=f"There is no tool named {name!r}.", is_error=True)
        is_named = tool.spec.offer != "described" and call.arguments.strip() in ("", "{}")
        if is_named and json.loads(tool.spec.schema).get("required"):
            return self._describe(tool, call, context)
        arguments = dict[str, Any]()
        try:
            arguments = tool.parse(call)
            refusal = await self._gate.authorize(tool, call, context)
        except ToolCallRefused as refused:
            refusal = str(refused)
            if tool.arguments is not None and not arguments and tool.spec.offer != "described":
                refusal = f"{refusal}\nIt takes: {tool.spec.schema}"
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
                found = await tool.handler(context, **arguments)
            if not isinstance(found, str | ToolOutput):
                raise TypeError(f"it returns {type(found).__name__}")  # noqa: TRY301 - a bug as any
            return found, "ok"
        except ToolCallRefused as refused:
            logger.info("%s: %s is refused: %s", context.turn, name, refused)
            return str(refused), "refused"
        except TimeoutError:
            logger.warning("%s: %s took longer than %g s", context.turn, name, limit_s)
            took = (
                f"It took longer than {limit_s:g} s and was ended. It may have had an effect "
                "all the same."
            )
            return took, "timeout"
        except Exception as error:  # a bug in that tool: the model goes on without it
            if isinstance(error, StoreError) and not isinstance(error.__cause__, StatementRefused):
                raise  # the gateway cannot go on without its log
            logger.exception("%s: %s broke", context.turn, name)
            return f"That did not work (internal error: {type(error).__name__}).", "error"

    def _find_tool(self, name: str) -> Tool | None:
        found = self._tools.get(name)
        if found is None and self._dynamic is not None and not is_off(name, self._off):
            found = next((one for one in self._dynamic() if one.spec.name == name), None)
        return found

    def _describe(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        """Return what a tool takes. Of one that comes and goes, e.g. of an MCP server, anybody may
        have written that.
        """
        is_own = call.name in self._tools
        if not is_own:
            context.request.label |= Label("outside", source=call.name)
        spec = next((one for one in self.specs if one.name == call.name), tool.spec)
        return ToolResult(
            id=call.id,
            text=f"{spec.description}\nIt takes: {spec.schema}",
            kind="text",
            origin="what the tool says of itself",
            is_untrusted=not is_own,
        )

    def _dynamic_by_name(self) -> dict[str, Tool]:
        """Return the dynamic tools whose specs fit, in the order of their names. The others are
        logged once.
        """
        kept, left, tokens = dict[str, Tool](), list[str](), 0
        for tool in (
            sorted(self._dynamic(), key=lambda one: one.spec.name)
            if self._dynamic is not None
            else ()
        ):
            spec = tool.spec
            if spec.name in kept:  # the first of a name is called, so it is the one described
                continue
            size = _estimate_spec_tokens(spec)
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
        context.request.label |= replace(output.label, source=output.label.source or call.name)
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


def _estimate_spec_tokens(spec: ToolSpec) -> int:
    if spec.offer == "described":
        return estimate_tokens(spec.name + spec.description + spec.schema)
    return estimate_tokens(render_entry(spec)) if spec.offer == "named" else 0


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
        tokens += sum(map(_estimate_spec_tokens, specs))
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


class ToolRegistry:
    """Tools of all agents."""

    def __init__(
        self,
        gateway: GatewayHandle,
        gate: PermissionGate,
        running: RunningCalls,
        plugins: Plugins,
    ) -> None:
        self._live, self._redactor = gateway.live, gateway.redactor
        self._gate = gate
        self.running = running
        self._plugins = plugins

    @cached_property
    def _families(self) -> dict[str, list[Tool]]:
        """All tools by family, in the order of their importance."""
        families = dict[str, list[Tool]]()
        for one in self._plugins.all:
            if tools := self._plugins.tools(one):
                families.setdefault(one.family or one.name, []).extend(tools)
        return families

    def build_dispatcher(self, agent: str, model: Model) -> ToolDispatcher:
        """Build the dispatcher of an agent. `model`: its own; a small window has no room for all
        tools.
        """
        config, families = self._live.settings.tools, self._families

        def dynamic() -> list[Tool]:
            return [one for some in (self._plugins.dynamic_tools() or {}).values() for one in some]

        if model.takes_tools:
            families = fit_families(agent, families, model.context_tokens, config.all_off)
        return ToolDispatcher(
            [tool for some in families.values() for tool in some],
            self._gate,
            self.running,
            self._redactor,
            agent=agent,
            dynamic=dynamic if self._plugins.dynamic_tools() is not None else None,
            max_dynamic_tokens=int(model.context_tokens * MAX_WINDOW_SHARE),
            off=config.all_off,
        )

    def render_tools(self, dispatcher: ToolDispatcher, *, brief: bool = False) -> str:
        """Render the tools of an agent, and the state of what they depend on in this process, for
        people. `brief`: as `render_tool_list`.
        """
        config, tools = self._live.settings.tools, dispatcher.current_tools()
        return render_tool_list(
            tools, config.rules, config.all_off, self._plugins.states(), brief=brief
        )


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
MAX_TOLD_CHARS: Final = 100
"""Characters shown of what a tool does."""
_APPROVAL_TEXTS = {"always": N_("an admin must approve each call")}


def render_tool_list(
    tools: Iterable[Tool],
    rules: Sequence[ToolRule] = (),
    off: Sequence[str] = (),
    states: Sequence[str] = (),
    *,
    brief: bool = False,
) -> str:
    """Render the tools of one agent as Markdown, for people: by who may have them used, each with
    what it does. `brief`: their names alone.

    `rules`: the operator's. `off`: globs of disabled tools; those without a match are shown, too:
    they keep something away. `states`: state of what the tools depend on, a line each, perhaps with
    anybody's words.
    """
    ruled = [
        (apply_rules(one.spec.name, one.permit, rules), one)
        for one in tools
        if not is_off(one.spec.name, off)
    ]
    ruled.sort(
        key=lambda pair: (
            ROLE_ORDER.index(pair[0].role),
            pair[0].scope,
            pair[0].approval,
            pair[1].spec.name,
        )
    )
    lines = list[str]()
    for permit, pairs in groupby(ruled, key=lambda pair: pair[0]):
        who, some = _format_permit(permit), [one for __, one in pairs]
        if brief:
            lines.append(f"- {who}: {_format_codes(one.spec.name for one in some)}")
            continue
        lines.append(f"**{who}**")
        for one in some:  # the first sentence of its description, which others may have written
            text = re.split(r"(?<=[.!?])\s|\n", one.spec.description.strip(), maxsplit=1)[0]
            lines.append(f"- {inline_code(one.spec.name)}: {escape_markdown(text, MAX_TOLD_CHARS)}")
    lines += [_("- off: {tools}").format(tools=_format_codes(off))] if off else []
    lines += [f"- {inline_code(state, 200)}" for state in states]
    return "\n".join(lines) or _("I have no tools.")


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
