"""Approvals: calls that wait for an admin, the notices that ask for them, and the admins'
decisions.

A request becomes durable in one transaction with its notice, and a decision in one with the answer
to the admin. So after a crash each approval is either decided, or recorded as dropped because
nobody waits for it any more. The first verdict in the log counts, in whichever process it was
given. An approval is for one call: there are none for longer. The key of a request in the log is
`approval:ID`, that of its verdict `approval:ID:ended`.

A turn waits for a verdict for `PATIENCE_S` at most, and only while nobody speaks to the agent
there. Then it goes on without, and the call is detached: it waits by itself, also across restarts.
Once it is approved it is carried out as it was asked for, and its result wakes the agent, as that
of a job would.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.tools import find_inner_call, read_call
from channels.aio import wait_first, with_timeout
from channels.base import CommandCompletion
from gateway.cluster.cluster import EVERYTHING, lease_of
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.context.evidence import keep_result
from gateway.core.events import (
    Address,
    Command,
    ConversationId,
    DeliveryReport,
    EventId,
    MembershipChanged,
    Message,
    Post,
    PostButton,
    PostKey,
    TaskFinished,
    Time,
)
from gateway.core.facts import (
    URGENT,
    Judgement,
    PluginFact,
    PostQueued,
    Seq,
    ToolRefused,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.format import format_duration, format_moment
from gateway.core.frozen import frozen
from gateway.core.i18n import N_, _
from gateway.core.identity import ADMIN_ROLES, Role, has_role_holder, identify, proven_role
from gateway.core.labels import Label, RequestLabel
from gateway.core.permissions import PermissionDecision, describe_cause
from gateway.core.ratelimit import LruDict
from gateway.core.route import WAITING, route
from gateway.core.text_safety import PLACE_CHARS, escape_invisible, inline_code, to_single_line
from gateway.core.tool import Requester, ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.mcp import Mcp
from gateway.store import LogEntry, NewEntry
from gateway.store.effects import (
    CommandEffect,
    EffectFact,
    build_notice_end,
    done,
    queue_post,
    refuse,
)
from gateway.store.queries import COLUMNS
from gateway.stream.handle import GatewayHandle
from gateway.tools.metrics import ToolLabels

if TYPE_CHECKING:
    from gateway.commands.services import Services
    from gateway.core.api_models import WaitingItem
    from gateway.runtime.agents import Agents

logger = logging.getLogger("reverie.approvals")

APPROVAL_ID_ALPHABET: Final = "23456789bcfghjkmnpqrstvwxyz"
"""Letters of approval ids: none that is mistaken for another, no vowels, so that no id is a word,
and never `pwd`, because text after it is taken for a secret.
"""
APPROVAL_ID_CHARS: Final = 4
"""Enough ids for years of requests; an id in use is drawn again."""
MAX_SHOWN_BYTES: Final = 3_000
"""Longest arguments that can be approved, in bytes: about one post of Telegram, two of Discord, ten
lines of IRC.

Longer ones cannot be approved: nobody reads them.
"""
MAX_BRIEF_CHARS: Final = 160
"""Longest arguments that a notice shows; of longer ones it shows the beginning, and `show` all."""
LINE_CHARS: Final = 300
"""Characters of arguments in one line: fits a line of IRC where most characters take one byte."""
TOOL_CHARS: Final = 200
"""Long enough to show a tool's name whole."""
MAX_REQUESTER_NAMES: Final = 5
"""Requesters shown by name; the others are counted."""

_MARKUP: Final = re.compile(r"[^\w ,;:'.-]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that could be markup in a sentence with names: all but letters, and underscores within
names."""

MAX_PENDING_PER_CONVERSATION: Final = 5
"""Limit of open approvals in one conversation: more would be approved without being read."""
MAX_TURNS_SEARCHED: Final = 50
"""Newest turns that are searched for the call of a tool that brought text from outside."""
MAX_PENDING: Final = 50
"""Limit of open approvals in all conversations."""
MAX_REMEMBERED_REFUSALS: Final = 1_000
"""Calls without approval that are remembered, so that a turn does not ask for the same call
again."""

UNDECIDED: Final = (
    f"SELECT {COLUMNS} FROM log WHERE kind = 'approval_asked' AND NOT EXISTS ("  # noqa: S608 - constants only
    "SELECT 1 FROM log AS ended WHERE ended.key = log.key || ':ended') ORDER BY seq"
)
"""Open requests, oldest first. Reads all there ever were."""


@frozen
class ApprovalRequested(PluginFact):
    """A tool call that waits for an admin's approval."""

    is_kept = True
    approval: str
    """Id of the approval, as people write it."""
    agent: str
    tool: str
    arguments: str
    """Arguments as shown to people: complete, on one line."""
    turn: TurnId
    askers: tuple[Requester, ...] = ()
    """The people who asked for the call; empty: the agent itself."""
    unasked_role: str = "guest"
    """As `gateway.core.tool.ToolContext.unasked_role`."""
    sees_everything: bool = False
    """True if the turn was alone with an owner."""
    room: ConversationId
    """Conversation where the approval is asked for; the entry itself belongs to the conversation of
    the turn."""
    until: Time
    """Time at which the approval counts as denied."""
    label: Label
    """Label of the request that led to the call."""
    rule: str
    """The rule that asks for it, for people."""
    needs: str = "owner"
    """Lowest role that may approve it."""
    kind: Literal["approval_asked"] = "approval_asked"

    def describe(self) -> str:
        asks = f"{self.tool} in turn {self.turn} needs an approval"
        return f"{self.approval}: {asks}: {self.arguments}"


ApprovalVerdict = Literal["once", "denied", "expired", "dropped"]
"""Approved for this call; not approved; no decision in time; the turn ended before a decision."""


@frozen
class ApprovalEnded(PluginFact):
    """Result of an approval request."""

    is_kept = True
    approval: str
    agent: str
    tool: str
    verdict: ApprovalVerdict
    by: str
    """Id of the person who decided. Empty: nobody."""
    name: str = ""
    """Display name of that person. Untrusted."""
    kind: Literal["approval_ended"] = "approval_ended"

    def describe(self) -> str:
        return f"{self.approval}: {self.tool}: {self.verdict} {self.by}".rstrip()


PATIENCE_S: Final = 120.0
"""Seconds that a turn waits for an approval."""
STILL_WAITS: Final = (
    "Not done yet: it waits for an admin, who was asked. Once it is approved it is carried out "
    "without you, and you are told the result, so do not call it again. Go on with what you can "
    "do now, and say that this waits for an approval."
)
MAX_TOLD_CHARS: Final = 1_500
"""Characters of the result of a call, in the notice that it has ended."""
MAX_CUT: Final = 50
"""Newest verdicts that are searched for a call that was cut."""

_CallKey = tuple[TurnId, str, str]
"""Turn, tool and arguments of a call: two calls with equal keys are the same."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A call of this process that waits for an approval, or is carried out after one."""

    asked: ApprovalRequested
    """Its request; without an id until that is durable."""
    at: Address
    """Place of the call."""
    waiters: int = 0
    """Number of callers in the turn that wait for it."""
    is_detached: bool = False
    """True once the turn has gone on without it, unless that was stopped then."""
    spoken_to: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once somebody speaks to the agent in the place of the call."""
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a verdict is being written."""
    over: asyncio.Future[ApprovalVerdict | None] = field(default_factory=asyncio.Future)
    """Done with the verdict in the log, or with None once nobody needs one any more."""
    request: RequestLabel | None = None
    """Of the call that is carried out without its turn. None: not yet, or it is not."""
    task: asyncio.Task[ApprovalVerdict] = field(init=False)
    """Ends with the verdict, and with what follows from that if no turn waits."""

    @property
    def key(self) -> _CallKey:
        return self.asked.turn, self.asked.tool, self.asked.arguments

    def end(self, verdict: ApprovalVerdict | None) -> None:
        """Set the verdict, if it waits for one."""
        if not self.over.done():
            self.over.set_result(verdict)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Take the verdict, from whichever process. Nobody needs one once its turn was stopped, or
        if the notice was not shown whole.
        """
        for entry in entries:
            match entry.fact:
                case ApprovalEnded(approval=self.asked.approval, verdict=verdict):
                    self.end(verdict)
                case Judgement(urgency=urgency, fate="due") if urgency == URGENT:
                    if entry.conversation == self.at.conversation:
                        self.spoken_to.set()
                case TurnRecord() as turn if turn.turn == self.asked.turn and _is_stopped(turn):
                    self.is_detached = False
                    self.end(None)
                case DeliveryReport() as report if report.post == _notice_key(self.asked):
                    if report.state != "sent":
                        self.end(None)


class Approvals(Plugin):
    """Waiting calls of all agents, the notices that ask for them, and the admins' decisions. A call
    waits in the process that takes the turns of its place.
    """

    name = "approvals"
    summary = "asks admins about calls of tools, and takes their answers: approve, deny"
    facts = (ApprovalRequested, ApprovalEnded)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock, self._live = gateway.store, gateway.clock, gateway.live
        self._places, self._people, self._channels = (
            gateway.places,
            gateway.people,
            gateway.channels,
        )
        self._waiting: list[_Waiting] = []
        self._refused_calls = LruDict[_CallKey, ApprovalVerdict](MAX_REMEMBERED_REFUSALS)
        self._agents: Agents
        mcp = context.plugins.get(Mcp.name)
        self._mcp = mcp if isinstance(mcp, Mcp) else None
        """Has definitions of tools that wait for review; the same command approves them."""
        self.metrics = CollectorRegistry()
        self._verdicts, self._labels = (
            Counter(
                "reverie_tool_approvals",
                "Calls that an admin was asked about, by what came of it.",
                ["tool", "verdict"],
                registry=self.metrics,
            ),
            ToolLabels(),
        )
        Gauge(
            "reverie_tool_approvals_waiting",
            "Calls that wait for an admin now.",
            registry=self.metrics,
        ).set_function(lambda: len(self._list_open()))

    @property
    def room(self) -> Address | None:
        """Place of all notices. None: the place of the turn."""
        room = self._live.settings.tools.approvals.room
        return Address.parse(room) if room else None

    def on_built(self, services: "Services") -> None:
        self._agents = services.agents

    def _list_open(self) -> list[_Waiting]:
        return [one for one in self._waiting if not one.over.done()]

    async def on_lease(self, lease: str) -> None:
        """Go on waiting for the detached calls, before the first turn. A request is recorded
        as dropped if its turn was stopped, or cut: that turn is taken again.
        """
        known = {one.asked.approval for one in self._waiting}  # if the lease comes back
        for asked, entry in await self._find_undecided():
            place = entry.conversation or ConversationId("")
            if lease not in (EVERYTHING, lease_of(place)):
                continue
            turn = await self._find_turn(asked)
            if turn is None or _is_stopped(turn):
                self._count(asked, await self._append_end(asked, "dropped"))
            elif asked.approval not in known:
                self._begin(_Waiting(asked=asked, at=Address.parse(place), is_detached=True))
        for ended in await self._store.newest_entries(MAX_CUT, kinds=["approval_ended"]):
            if ended.conversation and lease in (EVERYTHING, lease_of(ended.conversation)):
                await self._tell_lost(ended)

    async def stop(self) -> None:
        """Return once the requests of all turns are decided in the log. The next start goes on
        waiting for the detached calls, and tells of those that are under way, which end.
        """
        for one in self._waiting:
            if one.is_detached:
                one.task.cancel()
        await asyncio.gather(*(one.task for one in self._waiting), return_exceptions=True)

    @hook
    async def approve(self, turn: ToolContext, call: ToolCall, decision: PermissionDecision) -> str:
        """Wait for an admin, as long as nobody needs the turn. The same call twice in a turn is
        asked for once. Calls that cannot be asked for are refused at once. When cancelled, the
        request is dropped, and a later answer has no effect.
        """
        asked = ApprovalRequested(
            approval="",
            agent=turn.agent,
            tool=call.name,
            arguments=format_arguments(call.arguments),
            turn=turn.turn,
            askers=turn.requesters,
            unasked_role=turn.unasked_role,
            sees_everything=turn.visibility.sees_everything,
            room=(self.room or turn.at).conversation,
            until=self._clock.now(),
            label=decision.label,
            rule=decision.rule,
            needs=decision.needs,
        )
        new = _Waiting(asked=asked, at=turn.at)
        if any(one.key == new.key and one.request is turn.request for one in self._waiting):
            return ""  # it is carried out, as it was approved
        if why := explain_too_long(asked.arguments):
            await self._record_refusal(new, decision.role, why)
            return f"Refused: {decision.rule}, and {why}. Nothing was done. Do it in smaller calls."
        if new.key in self._refused_calls:
            return self._explain(self._refused_calls[new.key], asked.tool)
        detached = [one for one in self._list_open() if one.is_detached and one.at == turn.at]
        if any(one.key[1:] == new.key[1:] for one in detached):
            return STILL_WAITS
        why = await self._why_nobody_is_asked(new)
        waiting = next((one for one in self._list_open() if one.key == new.key), None)
        if waiting is None:
            if why:
                return await self._record_refusal(new, decision.role, why)
            waiting = new
            self._begin(new)
        waiting.waiters += 1
        try:
            # A message that interrupts the turn ends the call, too.
            interrupts = self._places.bindings.find(turn.at).arrivals == "interrupt"
            spoken = asyncio.Event() if interrupts else waiting.spoken_to
            if all(one.asked.turn != turn.turn for one in detached):  # else it has waited before
                with contextlib.suppress(TimeoutError):
                    going_on = wait_first(waiting.task, spoken.wait())
                    await with_timeout(self._clock, PATIENCE_S, going_on)
            if waiting.task.done():
                return self._explain(waiting.task.result(), asked.tool)
            waiting.is_detached = True
            return STILL_WAITS
        finally:
            waiting.waiters -= 1
            if not (waiting.waiters or waiting.is_detached):
                waiting.end(None)

    async def _why_nobody_is_asked(self, new: _Waiting) -> str:
        """Return why nobody is asked about this call. Empty: somebody is."""
        asked, refused = new.asked, self._refused_calls.items()
        if any(one[0] == asked.turn and verdict == "expired" for one, verdict in refused):
            return "nobody answered when this turn asked before"
        room, may = Address.parse(asked.room), roles_that_may_approve(asked.needs)
        if is_inner(asked.room) or not self._channels.command_prefix(room.channel):
            return "nobody can be asked here"
        if not has_role_holder(self._people, room.channel, may):
            return f"nobody at {room.channel} may approve it"
        if await self._places.is_direct(asked.room):
            newest = await self._places.newest_message(asked.room)
            if newest and identify(self._people, room, newest.sender).role not in may:
                return "nobody who may approve it is here"
        waiting = [one.at for one in self._list_open()]
        if len(waiting) >= MAX_PENDING or waiting.count(new.at) >= MAX_PENDING_PER_CONVERSATION:
            return (
                "too many other calls wait for an admin, who has to decide about them first "
                "(approve lists them, and deny all denies them)"
            )
        return ""

    def _begin(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        waiting.task = asyncio.create_task(self._process_request(waiting))

    async def _suggest_waiting(self, typed: CommandCompletion) -> list[str]:
        who = identify(self._people, typed.at, typed.sender)
        waiting = await self.list_waiting(typed, who.role, who.global_role)
        return [one.approval for one in waiting]

    @command(
        "approve",
        "Approve a tool call that waits. Without an id: list them.",
        group="approvals",
        role="admin",
        needs_gateway=True,
        private=False,
    )
    async def handle_approve(
        self,
        call: CommandCall,
        id: Annotated[str, "The id in my question.", _suggest_waiting] = "",  # noqa: A002 - people see this name
    ) -> CommandEffect:
        if not id:
            return done(await self._render_waiting(call))
        return await self.decide(call, id, approved=True)

    @command(
        "deny",
        "Deny a tool call that waits.",
        group="approvals",
        role="admin",
        needs_gateway=True,
        private=False,
    )
    async def handle_deny(
        self,
        call: CommandCall,
        id: Annotated[str, "The id in my question, or all.", _suggest_waiting],  # noqa: A002 - people see this name
    ) -> CommandEffect:
        if id.strip("`").lower() != "all":
            return await self.decide(call, id, approved=False)
        waiting = await self.list_waiting(call.command, call.role, call.global_role)
        if not waiting:
            return refuse(_("Nothing waits for approval here."))
        denied = done("")
        try:
            for one in waiting:
                decided = await self.decide(call, one.approval, approved=False)
                answer = f"{denied.answer}\n{decided.answer}".strip()
                denied = replace(denied + decided, answer=answer)
        except BaseException:  # none of them stays locked
            denied.settle(None)
            raise
        return denied

    @command(
        "show",
        "Show a tool call that waits for approval, whole.",
        group="approvals",
        role="admin",
        needs_gateway=True,
        private=False,
    )
    async def handle_show(
        self,
        call: CommandCall,
        id: Annotated[str, "The id in my question.", _suggest_waiting],  # noqa: A002 - people see this name
    ) -> CommandEffect:
        name, written = id.strip("`").lower(), call.command
        waiting = await self.list_waiting(written, call.role, call.global_role)
        asked = next((one for one in waiting if one.approval == name), None)
        if asked is None:
            return refuse(_render_unknown(name))
        shown, buttons = render_whole_call(asked, call.prefix), approval_buttons(name)
        if written.origin != "button":
            return done(shown, buttons=buttons)
        post = Post(
            key=_notice_key(asked, "shown"),
            to=written.at,
            text=shown,
            style="notice",
            buttons=buttons,
        )
        return done(_("The whole call is below."), queue_post(post))

    async def _render_waiting(self, call: CommandCall) -> str:
        now = self._clock.now()
        requests = await self.list_waiting(call.command, call.role, call.global_role)
        waiting = [
            _("- `{id}`: {tool}, {time} left: {arguments}").format(
                id=one.approval,
                tool=inline_code(one.tool),
                time=format_duration(max(0.0, (one.until - now).total_seconds())),
                arguments=inline_code(one.arguments, MAX_BRIEF_CHARS),
            )
            for one in requests
        ]
        lines = (
            [_("Waiting for approval here:"), *waiting]
            if waiting
            else [_("Nothing waits for approval here.")]
        )
        if call.global_role in ADMIN_ROLES and self._mcp is not None:
            for one in self._mcp.list_pending():
                text = _("`{command}` turns it on.").format(command=f"approve {one.code}")
                lines += ["", one.describe(), text]
        return "\n".join(lines)

    async def _process_request(self, waiting: _Waiting) -> ApprovalVerdict:
        """Process a request from the notice to the verdict, and what follows if no turn waits.

        Cancelled only once it is detached: that its caller has gone is a verdict, too.
        """
        asked, place = waiting.asked, waiting.at.conversation
        try:
            verdict = await self._wait_for_verdict(waiting)
            if verdict != "once":
                self._refused_calls.put(waiting.key, verdict)
            self._count(asked, verdict)
            is_needed = waiting.is_detached and not waiting.waiters
            if is_needed and self._channels.cluster.takes_turns_of(place):
                if verdict == "once":
                    await self._carry_out(waiting)
                else:
                    await self._tell_end(waiting, self._explain(verdict, asked.tool))
        except Exception:
            logger.exception("%s: %s waited for an approval", asked.turn, asked.tool)
            return "dropped"
        finally:
            self._waiting.remove(waiting)
        return verdict

    async def _wait_for_verdict(self, waiting: _Waiting) -> ApprovalVerdict:
        watched = DeliveryReport, ApprovalEnded, Judgement, TurnRecord
        unsubscribe = self._store.subscribe(waiting.on_appended, *watched)
        try:
            if not waiting.asked.approval:
                waiting.asked = await self._post_request(waiting)
            elif ended := await self._store.entry_by_key(
                f"approval:{waiting.asked.approval}:ended"
            ):
                waiting.on_appended([ended])  # by another process, since that was read
            left_s = (waiting.asked.until - self._clock.now()).total_seconds()
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, max(0.0, left_s), asyncio.shield(waiting.over))
            async with waiting.deciding:  # a verdict that is being written just now counts
                over: ApprovalVerdict = "dropped" if waiting.over.done() else "expired"
                waiting.end(None)
                verdict = waiting.over.result()
            return verdict or await self._append_end(waiting.asked, over)
        finally:
            unsubscribe()

    def _count(self, asked: ApprovalRequested, verdict: ApprovalVerdict) -> None:
        self._verdicts.labels(self._labels.find(asked.tool), verdict).inc()
        logger.info("%s: %s: %s", asked.turn, asked.tool, verdict)

    def _explain(self, verdict: ApprovalVerdict, tool: str) -> str:
        span = format_duration(self._live.settings.tools.approvals.timeout)
        return explain_not_approved(verdict, tool, span)

    async def _carry_out(self, waiting: _Waiting) -> None:
        """Carry out what was approved after its turn had gone on, for the people who asked for it
        and with the rights that they have now. Its result wakes the agent.
        """
        asked, at, request = waiting.asked, waiting.at, RequestLabel(waiting.asked.label)
        place, agent = at.conversation, self._agents.agent_for(at.conversation)
        if agent.id != asked.agent:  # its tools are not those that were asked for
            why = f"Not done, because {asked.agent} is no longer here."
            await self._tell_end(waiting, why)
            return
        everything = asked.sees_everything and await self._are_owners(asked, at)
        turn = ToolContext(
            turn=asked.turn,
            agent=asked.agent,
            at=at,
            visibility=await self._places.visibility(place, everything=everything),
            autonomous=not asked.askers,
            requesters=asked.askers,
            unasked_role=asked.unasked_role,
            request=request,
        )
        waiting.request = request
        call = ToolCall(id=asked.approval, name=asked.tool, arguments=asked.arguments)
        result = await agent.context_for(place).tools.call(call, turn)
        text = to_single_line(result.text, MAX_TOLD_CHARS)
        if len(result.text) > MAX_TOLD_CHARS:
            # Under a turn that has no record: so it counts as text from outside.
            unknown = TurnId(f"approval-{asked.approval}")
            kept = await keep_result(self.context.gateway, unknown, place, call, result)
            text = f'{text} ... fetch_evidence("{kept.handle}") gives all of it'
        outcome, ok = f"it was approved, with this result: {text}", not result.is_error
        await self._tell_end(waiting, outcome, ok=ok, label=request.label)

    async def _are_owners(self, asked: ApprovalRequested, at: Address) -> bool:
        """Return whether those who asked are owners now, with the logins that they have now."""
        return bool(asked.askers) and all(
            [
                identify(self._people, at, one).role == "owner"
                and await self._channels.is_logged_in(at, one)
                for one in asked.askers
            ]
        )

    async def _tell_end(
        self, waiting: _Waiting, outcome: str, *, ok: bool = False, label: Label | None = None
    ) -> None:
        """Let the agent know what became of a call for which no turn waited: once, the event has a
        key of its own.
        """
        asked, label = waiting.asked, label or waiting.asked.label
        called = f"{asked.tool} {asked.arguments[:MAX_BRIEF_CHARS]}"
        await self.context.internal.submit(
            TaskFinished(
                id=EventId(f"approval-{asked.approval}"),
                what="call",
                ok=ok,
                text=f"{called}: {outcome}",
                sent=self._clock.now(),
                agent=asked.agent,
                at=waiting.at,
                integrity=label.integrity,
                readers=label.readers,
                promised=True,
            )
        )

    async def _tell_lost(self, ended: LogEntry) -> None:
        """Let the agent know of a verdict for which no turn waited, if that was not told before."""
        fact, place = ended.fact, ended.conversation
        assert isinstance(fact, ApprovalEnded)
        assert place is not None
        found = await self._find_request(fact.approval)
        if found is None or any(one.asked.approval == fact.approval for one in self._waiting):
            return
        asked, _entry = found
        turn = await self._find_turn(asked)
        if turn is None or _is_stopped(turn) or not _was_told_to_wait(turn, asked):
            return
        outcome = (
            "it was approved, but the gateway was stopped then: look what it has done"
            if fact.verdict == "once"
            else self._explain(fact.verdict, asked.tool)
        )
        await self._tell_end(_Waiting(asked=asked, at=Address.parse(place)), outcome)

    async def _find_turn(self, asked: ApprovalRequested) -> TurnRecord | None:
        entry = await self._store.entry_by_key(f"turn:{asked.turn}")
        return entry.fact if entry is not None and isinstance(entry.fact, TurnRecord) else None

    async def _record_refusal(self, waiting: _Waiting, role: str, why: str) -> str:
        asked, rule = waiting.asked, f"{waiting.asked.rule}, and {why}"
        logger.info("%s: %s is refused: %s", asked.turn, asked.tool, rule)
        fact = ToolRefused(
            turn=asked.turn,
            agent=asked.agent,
            tool=asked.tool,
            role=role,
            rule=rule,
            label=asked.label,
        )
        await self._store.append(
            [NewEntry(fact=fact, at=self._clock.now(), conversation=waiting.at.conversation)]
        )
        return f"Refused: {rule}. Nothing was done; do not try it again."

    async def _post_request(self, waiting: _Waiting) -> ApprovalRequested:
        """Post the notice, in one transaction with the fact of the request, and return that."""
        place, room = waiting.at.conversation, Address.parse(waiting.asked.room)
        now, timeout_s = self._clock.now(), self._live.settings.tools.approvals.timeout
        cause = await describe_source(
            self.context.gateway, waiting.asked.label, place, room.conversation
        )
        channel = self._channels.get(room.channel)
        has_buttons = channel is not None and channel.capabilities.buttons
        while True:
            name = "".join(secrets.choice(APPROVAL_ID_ALPHABET) for _ in range(APPROVAL_ID_CHARS))
            asked = replace(waiting.asked, approval=name, until=now + timedelta(seconds=timeout_s))
            text = render_approval_request(
                asked,
                cause=cause,
                place=place if room != waiting.at else "",
                named=self._places.titles.add_titles,
                prefix=self._channels.command_prefix(room.channel),
                span=format_duration(timeout_s),
                has_buttons=has_buttons,
            )
            buttons = approval_buttons(name, whole=_is_brief(asked)) if has_buttons else ()
            post = Post(key=_notice_key(asked), to=room, text=text, style="notice", buttons=buttons)
            request = NewEntry(fact=asked, at=now, conversation=place, key=f"approval:{name}")
            notice = NewEntry(
                fact=PostQueued(post=post),
                at=now,
                conversation=room.conversation,
                key=f"post:{post.key}",
                cause=request,
            )
            result, _ = await self._store.append([request, notice])
            if result.is_new:  # otherwise the id was used before
                return asked

    async def _append_end(
        self, asked: ApprovalRequested, verdict: ApprovalVerdict
    ) -> ApprovalVerdict:
        """Record the end of a request, and of the buttons under its notice. Returns the verdict
        that counts: an admin's may be there although its write seemed to fail.
        """
        found = await self._find_request(asked.approval)
        assert found is not None
        fact = ApprovalEnded(
            approval=asked.approval, agent=asked.agent, tool=asked.tool, verdict=verdict, by=""
        )
        key, ends = f"approval:{asked.approval}:ended", await self._end_notices(asked, fact)
        facts = [EffectFact(fact, key=key), *ends]
        request = found[1]
        await self._store.append(
            [
                NewEntry(
                    fact=one.fact,
                    at=self._clock.now(),
                    conversation=one.place or request.conversation,
                    key=one.key,
                    cause=request.seq,
                )
                for one in facts
            ]
        )
        entry = await self._store.entry_by_key(key)
        assert entry is not None
        assert isinstance(entry.fact, ApprovalEnded)
        return entry.fact.verdict

    async def list_waiting(
        self, written: Command | CommandCompletion, role: Role, global_role: Role
    ) -> list[ApprovalRequested]:
        """Return the calls that somebody with these roles may decide where they write, oldest
        first.
        """
        return [
            asked
            for asked, _entry in await self._find_undecided()
            if can_decide(written, role, global_role, Address.parse(asked.room), self.room)
        ]

    @route("GET", WAITING)
    async def list_requests(self) -> "list[WaitingItem]":
        """Return the calls that wait, and the definitions of tools, which are approved by the same
        command.
        """
        from gateway.core.api_models import WaitingAction, WaitingItem  # noqa: PLC0415 - pages alone ask

        calls = [
            WaitingItem(
                id=asked.approval,
                kind="approval",
                who=", ".join(one.name or one.id for one in asked.askers) or asked.agent,
                place=asked.room,
                what=f"{asked.agent} wants to use {asked.tool}: {asked.rule}",
                words=asked.arguments,
                since=entry.at,
                until=asked.until,
                actions=(
                    WaitingAction(
                        label="Approve",
                        words=("approve", asked.approval),
                        place=asked.room,
                        style="yes",
                        role="own" if asked.needs == "owner" else "operate",
                    ),
                    WaitingAction(
                        label="Deny", words=("deny", asked.approval), place=asked.room, style="no"
                    ),
                ),
            )
            for asked, entry in await self._find_undecided()
        ]
        definitions = [
            WaitingItem(
                id=one.code,
                kind="tool",
                who=one.server,
                place="",
                what=f"the MCP server {one.server} describes its tool {one.tool} anew",
                words=one.definition,
                actions=(
                    WaitingAction(label="Turn it on", words=("approve", one.code), style="yes"),
                ),
            )
            for one in (self._mcp.list_pending() if self._mcp is not None else ())
        ]
        return calls + definitions

    async def _find_undecided(self) -> list[tuple[ApprovalRequested, LogEntry]]:
        """Return the open requests, oldest first, each with its entry."""
        entries = map(LogEntry.from_row, await self._store.rows(UNDECIDED))
        return [(one.fact, one) for one in entries if isinstance(one.fact, ApprovalRequested)]

    async def _find_request(self, name: str) -> tuple[ApprovalRequested, LogEntry] | None:
        entry = await self._store.entry_by_key(f"approval:{name}")
        if entry is None or not isinstance(entry.fact, ApprovalRequested):
            return None
        return entry.fact, entry

    async def decide(self, call: CommandCall, name: str, *, approved: bool) -> CommandEffect:
        """Decide the approval with this id, as written. The decision holds once its facts are
        written and the effect is settled, which the caller must do: no other is given before.

        The process in which the call waits takes the verdict from the log.
        """
        name, written = name.strip("`").lower(), call.command
        found = await self._find_request(name)
        if (
            found is None
            and approved
            and self._mcp is not None
            and (change := self._mcp.approve(name, call))
        ):
            return change
        if found is None or not can_decide(
            written, call.role, call.global_role, Address.parse(found[0].room), self.room
        ):
            return refuse(_render_unknown(name))
        asked, place = found[0], found[1].conversation or ConversationId("")
        fact = ApprovalEnded(
            approval=name,
            agent=asked.agent,
            tool=asked.tool,
            verdict="once" if approved else "denied",
            by=call.person,
            name=written.sender.name,
        )
        ends, key = await self._end_notices(asked, fact), f"approval:{name}:ended"
        ended = await self._store.entry_by_key(key)
        if ended is not None and isinstance(over := ended.fact, ApprovalEnded):
            person = inline_code(over.name or over.by, PLACE_CHARS)
            return refuse(_(_OVER_TEXTS[over.verdict]).format(id=name, person=person))
        waiting = next((one for one in self._waiting if one.asked.approval == name), None)
        is_over = (
            self._channels.cluster.takes_turns_of(place)
            if waiting is None
            else waiting.over.done() or waiting.deciding.locked()
        )
        if is_over or self._clock.now() >= asked.until:
            return refuse(
                _("Too late: `{id}` has ended, or somebody is deciding about it now.").format(
                    id=name
                )
            )
        if approved and (refusal := _explain_may_not(call, asked, Address.parse(place))):
            return refuse(refusal)
        text = (
            _("Approved: I run this call of {tool}.")
            if approved
            else _("Denied: I do not run {tool}.")
        )
        decided = CommandEffect(
            answer=text.format(tool=inline_code(asked.tool)),
            facts=(EffectFact(fact, place, key), *ends),
        )
        if waiting is None:
            return decided
        await waiting.deciding.acquire()  # at once: it is not locked
        return replace(decided, settle=lambda _result: waiting.deciding.release())

    async def _end_notices(
        self, asked: ApprovalRequested, ended: ApprovalEnded
    ) -> list[EffectFact]:
        """Return the posts that take the buttons from the notice, and from the call as a tap showed
        it.
        """
        outcome = render_outcome(ended.verdict, ended.name or ended.by)
        keys = (_notice_key(asked), _notice_key(asked, "shown"))
        posts = [await self._store.find_post(key) for key in keys]
        return [end for post, _cause in posts for end in build_notice_end(post, outcome)]


def _is_stopped(turn: TurnRecord) -> bool:
    """Return whether somebody has stopped that turn, or was blocked: what it asked for counts no
    longer.
    """
    return turn.outcome == "yielded" and bool(turn.reason)


def _was_told_to_wait(turn: TurnRecord, asked: ApprovalRequested) -> bool:
    told = (call for step in turn.steps for call in step.calls if call.result == STILL_WAITS)
    calls = [(one.name, format_arguments(one.arguments)) for one in map(find_inner_call, told)]
    return (asked.tool, asked.arguments) in calls


def _notice_key(asked: ApprovalRequested, what: str = "approval") -> PostKey:
    named = f"{what}:{asked.approval}:{asked.turn}"
    return PostKey(hashlib.sha256(named.encode()).hexdigest()[:26])


def _explain_may_not(call: CommandCall, asked: ApprovalRequested, at: Address) -> str:
    """Return why this person may not approve a call that was asked for at that place. Empty: they
    may.
    """
    may = roles_that_may_approve(asked.needs)
    if call.role not in may:
        return _(
            "{tool} needs the role {role}. Only somebody with that role can approve it."
        ).format(tool=inline_code(asked.tool), role=asked.needs)
    weak = [one.id for one in asked.askers if one.role not in may]
    if call.command.at.channel == at.channel and call.command.sender.id in weak:
        return _("You asked for this without the right to do it. Somebody else must approve it.")
    return ""


def _render_unknown(name: str) -> str:
    return _("There is no request {id} here.").format(id=inline_code(name))


def format_arguments(written: str) -> str:
    """Return a model's arguments in full, as they are executed and people are shown them: on one
    line, each key once.
    """
    # Text that is no JSON is for its tool to accept or to refuse.
    with contextlib.suppress(ValueError, RecursionError):
        written = json.dumps(json.loads(written or "{}"), ensure_ascii=False)
    return escape_invisible(written.strip() or "{}")


def explain_too_long(shown: str) -> str:
    """Return why arguments of this length cannot be approved, for the model. Empty: they can be
    shown in full.
    """
    size = len(shown.encode())
    if size <= MAX_SHOWN_BYTES:
        return ""
    return (
        f"its arguments take {size} bytes, and an admin can approve only what they are shown "
        f"whole, at most {MAX_SHOWN_BYTES} bytes"
    )


def _split_into_code_lines(shown: str) -> str:
    """Return the text as code, in lines that no platform cuts.

    No line begins or ends with a space, which might be lost.
    """
    lines, places = [], range(LINE_CHARS, LINE_CHARS // 2, -1)
    while len(shown) > LINE_CHARS:
        at = next((one for one in places if " " not in shown[one - 1 : one + 1]), LINE_CHARS)
        lines.append(shown[:at])
        shown = shown[at:]
    return "\n".join(f"`{line}`" for line in [*lines, shown])


def render_approval_request(
    asked: ApprovalRequested,
    *,
    cause: str,
    place: str,
    prefix: str,
    span: str,
    has_buttons: bool,
    named: Callable[[str], str] = str,
) -> str:
    """Return the request that is posted for admins, in Markdown.

    Three lines: who asks for what; whose words it rests on; until when it waits. A long call is
    shown whole by `show` alone, which offers to approve it.

    `cause`: the least trusted text behind it, from `describe_source`; empty: none is named.
    `place`: the conversation of the turn; empty: the same room. `span`: the time until it expires.
    `has_buttons`: `approval_buttons` are shown below. `named` inserts titles of places into a text.
    """
    agent, tool = inline_code(asked.agent), inline_code(asked.tool, TOOL_CHARS)
    may = (
        _("May {agent} use {tool} in {room}?").format(
            agent=agent, tool=tool, room=named(inline_code(place, PLACE_CHARS))
        )
        if place
        else _("May {agent} use {tool}?").format(agent=agent, tool=tool)
    )
    call = inline_code(asked.arguments, MAX_BRIEF_CHARS)
    why = _explain_why(asked, cause)
    until = _("If nobody answers by {time} UTC (in {span}), I do not do it.").format(
        time=f"{asked.until:%H:%M}", span=span
    )
    if not has_buttons:
        until = f"{_format_decisions(asked.approval, prefix, whole=_is_brief(asked))} {until}"
    return f"{may} {describe_requesters(asked.askers)}: {call}\n{why}\n{until}"


def _explain_why(asked: ApprovalRequested, cause: str) -> str:
    """Return why a call has to be approved, in Markdown. The `cause` replaces what the rule says of
    it.
    """
    rule, idea = asked.rule, describe_cause(asked.label)
    if cause and rule.startswith(f"{idea}, so "):
        rule = ""
    elif cause:
        rule = rule.removeprefix(f"{idea}, and ").removesuffix(f", and {idea}")
    because = _("Why: {why}.").format(why=_MARKUP.sub("?", rule)) if rule else ""
    source = _("The idea may come from {cause}.").format(cause=cause) if cause else ""
    return " ".join(filter(None, (because, source)))


def render_whole_call(asked: ApprovalRequested, prefix: str) -> str:
    """Return a call that waits, with all its arguments and how to decide, in Markdown."""
    text = _("`{id}`: {tool} with this:").format(
        id=asked.approval, tool=inline_code(asked.tool, TOOL_CHARS)
    )
    code = _split_into_code_lines(asked.arguments)
    return f"{text}\n{code}\n{_format_decisions(asked.approval, prefix)}"


def _is_brief(asked: ApprovalRequested) -> bool:
    return len(asked.arguments) <= MAX_BRIEF_CHARS


def _format_decisions(approval: str, prefix: str, *, whole: bool = True) -> str:
    """Return the commands that decide. Not `whole`: of a call that is to be looked at first."""
    first = "approve" if whole else "show"
    return _("`{approve}` or `{deny}`.").format(
        approve=f"{prefix}{first} {approval}", deny=f"{prefix}deny {approval}"
    )


def approval_buttons(approval: str, *, whole: bool = True) -> tuple[PostButton, ...]:
    """Return the buttons under a request. Not `whole`: of a call that is to be looked at first."""
    first = (
        PostButton(label=_("Yes"), command=f"approve {approval}")
        if whole
        else PostButton(label=_("Show it whole"), command=f"show {approval}")
    )
    return (first, PostButton(label=_("No"), command=f"deny {approval}"))


def describe_requesters(askers: Sequence[Requester]) -> str:
    """Return the people who asked for a call, as text."""
    if not askers:
        return _("Nobody asked for it")
    people = ", ".join(
        f"{inline_code(asker.name or asker.id)} ({asker.role})"
        for asker in askers[:MAX_REQUESTER_NAMES]
    )
    if len(askers) > MAX_REQUESTER_NAMES:
        return _("Asked by {people} and {count} more").format(
            people=people, count=len(askers) - MAX_REQUESTER_NAMES
        )
    return _("Asked by {people}").format(people=people)


def can_decide(
    written: Command | CommandCompletion,
    role: Role,
    global_role: Role,
    asked_in: Address,
    room: Address | None,
) -> bool:
    """Return whether somebody with this role may decide by what they write about a request in that
    conversation. `room`: the room for approvals.

    Admins may in the same room, including its threads, and in the room for approvals; an owner
    everywhere also in a direct chat with an agent.
    """
    if role not in ADMIN_ROLES:
        return False
    here = (written.at.channel, written.at.room)
    if any(place is not None and here == (place.channel, place.room) for place in (asked_in, room)):
        return True
    return global_role == "owner" and written.direct


def roles_that_may_approve(needs: str) -> tuple[Role, ...]:
    """Return the roles that may approve what needs this role: admins, unless it needs more."""
    return ADMIN_ROLES[-1:] if needs == "owner" else ADMIN_ROLES


_OVER_TEXTS: Final[dict[ApprovalVerdict, str]] = {
    "once": N_("Too late: {person} approved `{id}`."),
    "denied": N_("Too late: {person} denied `{id}`."),
    "expired": N_("Too late: nobody answered `{id}` in time."),
    "dropped": N_("Too late: nobody needs `{id}` any more."),
}


def render_outcome(verdict: ApprovalVerdict, by: str) -> str:
    """Return the line under a request that has ended: what became of it."""
    outcome = {
        "once": _("Approved"),
        "denied": _("Denied"),
        "expired": _("Expired: nobody answered in time, so I did not do it"),
        "dropped": _("Ended: nobody needs it any more"),
    }
    if not by:
        return f"**{outcome[verdict]}**."
    return _("**{outcome}** by {person}.").format(
        outcome=outcome[verdict], person=inline_code(by, PLACE_CHARS)
    )


def explain_not_approved(verdict: ApprovalVerdict, tool: str, span: str) -> str:
    """Return the result for the model that waited, in one sentence. Empty: the call is approved."""
    if verdict == "once":
        return ""
    reasons = {
        "denied": f"an admin was asked and denied this call of {tool}",
        "expired": f"no admin approved this call of {tool} within {span}",
        "dropped": f"nobody waits for this call of {tool} any more",
    }
    return (
        f"Not done, because {reasons[verdict]}: do not try it again, but say what it would have "
        "been for."
    )


SNIPPET_CHARS: Final = 80
"""Characters of a text behind a call that are shown."""
_MESSAGE: Final = re.compile(r"(.*?)\bm(\d{1,18})")
"""A source that is a message, with what of it is meant: `m15`, `an attachment of m15`."""
_MESSAGE_PARTS: Final = {
    "an attachment of ": N_("an attachment of {message}"),
    "a forward or quotation in ": N_("a forward or quotation in {message}"),
}
_OTHER_SOURCES: Final = frozenset(
    {
        N_("the topic"),
        N_("what came to mind"),
        N_("the summary of earlier turns"),
        N_("an attachment"),
        N_("the word of a link"),
    }
)
"""Sources in the words of the log that need no look-up."""


async def describe_source(
    gateway: GatewayHandle, label: Label, place: ConversationId, shown: ConversationId
) -> str:
    """Describe the least trusted text in a request of a place, for people in the conversation where
    that is shown: who wrote the text, when, and how it begins. Empty: none is named.

    `Label.source` is the gateway's own words; authors, names and texts are untrusted, and shown as
    code. Of another conversation than the one where it is shown no text is quoted.
    """
    source = label.source
    if label.is_trusted or not source:
        return ""
    if found := _MESSAGE.fullmatch(source):
        entry = await gateway.store.entry(Seq(int(found[2])))
        if entry is None:
            return source
        text = _(_MESSAGE_PARTS.get(found[1], "{message}"))
        return text.format(message=_describe_message(gateway, entry, shown))
    if source == "the topic":
        changed = await gateway.store.last_topic_change(shown)
        if changed is not None:
            return _("the topic, set by {author}, {text}").format(
                author=_describe_author(gateway, changed), text=_format_snippet(changed.text or "")
            )
    newest = await gateway.store.newest_entries(
        MAX_TURNS_SEARCHED, kinds=["turn_ended"], conversation=place
    )
    turns = [one.fact for one in newest if isinstance(one.fact, TurnRecord) and shown == place]
    calls = (call for turn in turns[::-1] for step in turn.steps[::-1] for call in step.calls[::-1])
    called = next((one for one in calls if read_call(one)[0] == source), None)
    if called is None:
        return _(source) if source in _OTHER_SOURCES else source
    if not called.origin:
        return _("a result of {tool}").format(tool=inline_code(source))
    return _("a result of {tool}, from {origin}").format(
        tool=inline_code(source), origin=inline_code(called.origin, PLACE_CHARS)
    )


def _describe_message(gateway: GatewayHandle, entry: LogEntry, place: ConversationId) -> str:
    """Describe the author of a message, with the beginning of its text if it was said in this
    place.
    """
    message = entry.fact
    if not isinstance(message, Message | MembershipChanged):
        return _("entry {number}").format(number=entry.seq)
    if entry.conversation != place:
        return _("a message in {room}").format(
            room=inline_code(entry.conversation or "", PLACE_CHARS)
        )
    return f"{_describe_author(gateway, message)}, {_format_snippet(message.text or '')}"


def _describe_author(gateway: GatewayHandle, written: Message | MembershipChanged) -> str:
    sender = written.sender
    role = identify(gateway.people, written.at, sender).role
    return _("{name} ({role}) at {time}").format(
        name=inline_code(sender.name or sender.id),
        role=proven_role(role, verified=sender.verified),
        time=format_moment(written.sent, gateway.live.to_local(gateway.clock.now())),
    )


def _format_snippet(text: str) -> str:
    return inline_code(to_single_line(text, SNIPPET_CHARS), SNIPPET_CHARS)
