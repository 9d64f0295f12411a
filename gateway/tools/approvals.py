"""Approvals: calls that wait for an admin, the notices that ask for them, and the admins'
decisions.

A request becomes durable in one transaction with its notice, and a decision in one with the answer
to the admin. So after a crash each approval is either decided, or recorded as dropped because
nobody waits for it any more. The first verdict in the log counts, in whichever process it was
given. An approval is for one call: there are none for longer.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, NamedTuple

from gateway.access.approval_texts import (
    APPROVAL_ID_ALPHABET,
    APPROVAL_ID_CHARS,
    Approver,
    approval_buttons,
    can_decide,
    explain_not_approved,
    explain_too_long,
    format_arguments,
    inline_code,
    render_already_decided,
    render_approval_request,
    render_decision,
    render_outcome,
    roles_that_may_approve,
)
from gateway.access.channels import Channels
from gateway.cluster.cluster import Cluster, LeaseName, lease_of
from gateway.config.reload import LiveSettings
from gateway.context.sources import SourceFinder
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, DeliveryReport, Post, PostKey
from gateway.core.facts import (
    ApprovalEnded,
    ApprovalRequested,
    ApprovalVerdict,
    PostQueued,
    Seq,
    ToolRefused,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.format import format_duration
from gateway.core.i18n import _
from gateway.core.identity import AccessPolicy, has_role_holder, role_of
from gateway.core.labels import Label
from gateway.core.permissions import PermissionDecision
from gateway.core.ratelimit import LruDict
from gateway.core.tool import Requester, ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.store import LogEntry, NewEntry, Store
from gateway.store.effects import CommandEffect, EffectFact, build_notice_end
from gateway.stream.routing import PrivacyCache
from gateway.tools.mcp.review import ToolDefinitionReview

logger = logging.getLogger("reverie.tools")

_NO_SEQ: Final = Seq(0)
MAX_PENDING_PER_CONVERSATION: Final = 5
"""Limit of open approvals in one conversation: more would be approved without being read."""
MAX_TURNS_SEARCHED: Final = 50
"""Newest turns that are searched for the call of a tool that brought text from outside."""
MAX_PENDING: Final = 20
"""Limit of open approvals in all conversations."""
MAX_REMEMBERED_REFUSALS: Final = 1_000
"""Calls without approval that are remembered, so that a turn does not ask for the same call
again."""


class ApprovalCallKey(NamedTuple):
    """Identity of a call: two calls with equal keys are the same."""

    turn: TurnId
    tool: str
    arguments: str


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A call of this process that waits for an approval."""

    asked: ApprovalRequested
    """Its request; without an id until that is durable."""
    at: Address
    """Place of the call."""
    askers: Sequence[Requester]
    role: str
    """The role whose rights counted."""
    seq: Seq = _NO_SEQ
    """Position of the request in the log."""
    deadline_s: float = 0.0
    """Deadline on the clock's `monotonic`, in seconds."""
    waiters: int = 0
    """Number of callers that wait for it. 0: nobody waits any more."""
    claimed: bool = False
    """True while a verdict is being written."""
    undelivered: bool = False
    """True if the notice was not shown whole."""
    verdict: ApprovalVerdict | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each change of these fields."""


def approval_key(name: str) -> str:
    """Return the key of the entry that requests the approval with this id."""
    return f"approval:{name}"


def approval_ended_key(name: str) -> str:
    """Return the key of the one entry with the verdict on it."""
    return f"{approval_key(name)}:ended"


class Approvals:
    """Waiting calls of all agents, the notices that ask for them, and the admins' decisions."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        live: LiveSettings,
        places: PrivacyCache,
        access_policy: AccessPolicy,
        channels: Channels,
        definitions: ToolDefinitionReview,
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster` None: this is the only process; else a call waits in the process that takes its
        turn.
        """
        self._cluster = cluster or Cluster()
        self._store = store
        self._clock = clock
        self._live = live
        self._privacy = places
        self._access_policy = access_policy
        self._channels = channels
        self.definitions = definitions
        """Definitions of MCP tools that wait for review; the same command approves them."""
        self._sources = SourceFinder(store, access_policy)
        self._waiting: dict[ApprovalCallKey, tuple[_Waiting, asyncio.Task[ApprovalVerdict]]] = {}
        self._tasks = set[asyncio.Task[ApprovalVerdict]]()
        self._refused_calls = LruDict[ApprovalCallKey, ApprovalVerdict](MAX_REMEMBERED_REFUSALS)
        store.subscribe(self._on_delivered, DeliveryReport)
        store.subscribe(self._on_decided, ApprovalEnded)

    @property
    def room(self) -> Address | None:
        """Place of all notices. None: the place of the turn."""
        room = self._live.settings.tools.approvals.room
        return Address.parse(room) if room else None

    def _on_delivered(self, entries: Sequence[LogEntry]) -> None:
        """End the calls whose notice was not shown whole."""
        for entry in entries:
            if isinstance(entry.fact, DeliveryReport) and entry.fact.state != "sent":
                for one, __ in self._waiting.values():
                    if _notice_key(one.asked) == entry.fact.post:
                        one.undelivered = True
                        one.changed.set()

    def _on_decided(self, entries: Sequence[LogEntry]) -> None:
        """Take the verdict on a call that waits here, from whichever process."""
        for entry in entries:
            if (
                isinstance(entry.fact, ApprovalEnded)
                and (one := self._find_waiting(entry.fact.approval)) is not None
            ):
                one.verdict = entry.fact.verdict
                one.changed.set()

    def _find_waiting(self, name: str) -> _Waiting | None:
        return next((one for one, __ in self._waiting.values() if one.asked.approval == name), None)

    async def recover(self, lease: LeaseName = "") -> None:
        """Record the requests of processes that have ended as dropped, before the first turn.

        `lease`: those of the turns that its holder takes. Empty: all.
        """
        for one in await self._store.undecided():
            place = one.conversation or ConversationId("")
            if isinstance(one.fact, ApprovalRequested) and lease in ("", lease_of(place)):
                await self._append_end(one.fact, "dropped", place, one.seq)

    async def close(self) -> None:
        """Return once all requests are decided in the log. Call after the turns have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def request_approval(
        self,
        call: ToolCall,
        context: ToolContext,
        needs: str,
        decision: PermissionDecision,
        label: Label,
    ) -> str:
        """Wait for an approval. Returns an empty text if it is given, else the reason for the
        model. Raises StoreError.

        `needs`: lowest role that needs no approval for the tool. `label`: of the turn's request.
        The same call twice in a turn is asked for once. Calls that cannot be asked for are refused
        at once. When cancelled, the request is dropped, and a later answer has no effect.
        """
        may, arguments = roles_that_may_approve(needs), format_arguments(call.arguments)
        asked = ApprovalRequested(
            approval="",
            agent=context.agent,
            tool=call.name,
            arguments=arguments,
            turn=context.turn,
            asked_by=tuple(one.id for one in context.requesters),
            weak=tuple(one.id for one in context.requesters if one.role not in may),
            room=(self.room or context.at).conversation,
            until=self._clock.now(),
            label=label,
            rule=decision.rule,
            needs=needs,
        )
        waiting = _Waiting(
            asked=asked, at=context.at, askers=context.requesters, role=decision.role
        )
        if why := explain_too_long(arguments):
            await self._record_refusal(waiting, why)
            return f"Refused: {decision.rule}, and {why}. Nothing was done. Do it in smaller calls."
        key = ApprovalCallKey(context.turn, call.name, arguments)
        span = format_duration(self._live.settings.tools.approvals.timeout)
        if key in self._refused_calls:
            return explain_not_approved(self._refused_calls[key], asked.tool, span)
        if any(
            one.turn == asked.turn and verdict == "expired"
            for one, verdict in self._refused_calls.items()
        ):
            return await self._record_refusal(
                waiting, "nobody answered when this turn asked before"
            )
        nobody = (
            ""
            if key in self._waiting
            else await self._no_approver_reason(Address.parse(asked.room), needs)
        )
        if refusal := nobody or ("" if key in self._waiting else self._limit_refusal(context.at)):
            return await self._record_refusal(waiting, refusal)
        if key not in self._waiting:
            task = asyncio.create_task(self._process_request(waiting, key))
            self._waiting[key] = waiting, task
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)
        waiting, task = self._waiting[key]
        waiting.waiters += 1
        try:
            return explain_not_approved(await asyncio.shield(task), asked.tool, span)
        finally:
            waiting.waiters -= 1
            waiting.changed.set()

    async def _process_request(self, waiting: _Waiting, key: ApprovalCallKey) -> ApprovalVerdict:
        """Process a request from the notice to the verdict.

        Never cancelled: that its caller has gone is a verdict, too.
        """
        try:
            await self._post_request(waiting)
            timer = asyncio.create_task(self._wake_at_deadline(waiting))
            try:
                verdict = await self._wait_for_verdict(waiting)
            finally:
                timer.cancel()
        finally:
            del self._waiting[key]
        if verdict != "once":
            self._refused_calls.put(key, verdict)
        logger.info("%s: %s: %s", key.turn, key.tool, verdict)
        return verdict

    def _on_task_done(self, task: asyncio.Task[ApprovalVerdict]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # the waiting caller gets it, too
            logger.error("an approval broke", exc_info=task.exception())

    async def _wake_at_deadline(self, waiting: _Waiting) -> None:
        await self._clock.sleep(max(0.0, waiting.deadline_s - self._clock.monotonic()))
        waiting.changed.set()

    async def _wait_for_verdict(self, waiting: _Waiting) -> ApprovalVerdict:
        while waiting.verdict is None:
            is_late = self._clock.monotonic() >= waiting.deadline_s
            if not waiting.claimed and (not waiting.waiters or waiting.undelivered or is_late):
                waiting.claimed = True
                over: ApprovalVerdict = (
                    "dropped" if not waiting.waiters or waiting.undelivered else "expired"
                )
                return await self._append_end(
                    waiting.asked, over, waiting.at.conversation, waiting.seq
                )
            await waiting.changed.wait()
            waiting.changed.clear()
        return waiting.verdict

    def _limit_refusal(self, at: Address) -> str:
        here = sum(one.at == at for one, __ in self._waiting.values())
        if here >= MAX_PENDING_PER_CONVERSATION or len(self._waiting) >= MAX_PENDING:
            return "too many other calls wait for an approval"
        return ""

    async def _no_approver_reason(self, room: Address, required_role: str) -> str:
        """Return the reason why nobody could ever approve it there. Empty: somebody could."""
        channel, place, may = room.channel, room.conversation, roles_that_may_approve(required_role)
        if is_inner(place) or not self._channels.command_prefix(channel):
            return "nobody can be asked here"
        if not has_role_holder(self._access_policy, channel, may):
            return f"nobody at {channel} may approve it"
        newest = (
            await self._privacy.newest_message(place)
            if await self._privacy.is_direct(place)
            else None
        )
        if newest is not None and role_of(self._access_policy, room, newest.sender) not in may:
            return "nobody who may approve it is here"
        return ""

    async def _record_refusal(self, waiting: _Waiting, why: str) -> str:
        asked, rule = waiting.asked, f"{waiting.asked.rule}, and {why}"
        logger.info("%s: %s is refused: %s", asked.turn, asked.tool, rule)
        fact = ToolRefused(
            turn=asked.turn,
            agent=asked.agent,
            tool=asked.tool,
            role=waiting.role,
            rule=rule,
            label=asked.label,
        )
        await self._store.append(
            [NewEntry(fact=fact, at=self._clock.now(), conversation=waiting.at.conversation)]
        )
        return f"Refused: {rule}. Nothing was done; do not try it again."

    async def _describe_cause(
        self, label: Label, place: ConversationId, shown: ConversationId
    ) -> str:
        """Describe the least trusted text in a request. Only a message of the place where it is
        shown is quoted.
        """
        if label.is_trusted or not label.source:
            return ""
        newest = await self._store.newest_entries(
            MAX_TURNS_SEARCHED, kinds=["turn_ended"], conversation=place
        )
        turns = (
            [one.fact for one in newest if isinstance(one.fact, TurnRecord)]
            if shown == place
            else []
        )
        return await self._sources.describe(label.source, shown, turns)

    async def _post_request(self, waiting: _Waiting) -> None:
        """Post the notice, in one transaction with the fact of the request."""
        place, room = waiting.at.conversation, Address.parse(waiting.asked.room)
        now, timeout_s = self._clock.now(), self._live.settings.tools.approvals.timeout
        cause = await self._describe_cause(waiting.asked.label, place, room.conversation)
        channel = self._channels.get(room.channel)
        has_buttons = channel is not None and channel.capabilities.buttons
        while True:
            name = "".join(secrets.choice(APPROVAL_ID_ALPHABET) for _ in range(APPROVAL_ID_CHARS))
            asked = replace(waiting.asked, approval=name, until=now + timedelta(seconds=timeout_s))
            text = render_approval_request(
                asked,
                askers=waiting.askers,
                cause=cause,
                place=place if room != waiting.at else "",
                named=self._privacy.titles.add_titles,
                prefix=self._channels.command_prefix(room.channel),
                span=format_duration(timeout_s),
                has_buttons=has_buttons,
            )
            buttons = approval_buttons(name) if has_buttons else ()
            post = Post(key=_notice_key(asked), to=room, text=text, style="notice", buttons=buttons)
            request = NewEntry(fact=asked, at=now, conversation=place, key=approval_key(name))
            notice = NewEntry(
                fact=PostQueued(post=post),
                at=now,
                conversation=room.conversation,
                key=f"post:{post.key}",
                cause=request,
            )
            result, _ = await self._store.append([request, notice])
            if result.is_new:  # otherwise the id was used before
                waiting.deadline_s = self._clock.monotonic() + timeout_s
                waiting.asked, waiting.seq = asked, result.seq
                return

    async def _append_end(
        self, asked: ApprovalRequested, verdict: ApprovalVerdict, place: ConversationId, cause: Seq
    ) -> ApprovalVerdict:
        """Record the end of a request, and of the buttons under its notice. Returns the verdict
        that counts.
        """
        now, key = self._clock.now(), approval_ended_key(asked.approval)
        fact = ApprovalEnded(
            approval=asked.approval, agent=asked.agent, tool=asked.tool, verdict=verdict, by=""
        )
        ends = build_notice_end(await self._find_notice(asked), render_outcome(verdict, ""))
        await self._store.append(
            [
                NewEntry(fact=fact, at=now, conversation=place, key=key, cause=cause),
                *(
                    NewEntry(
                        fact=one.fact, at=now, conversation=one.place, key=one.key, cause=cause
                    )
                    for one in ends
                ),
            ]
        )
        entry = await self._store.entry_by_key(key)
        assert entry is not None
        assert isinstance(entry.fact, ApprovalEnded)
        return (
            entry.fact.verdict
        )  # an admin's verdict may be there although its write seemed to fail

    async def list_waiting(self, approver: Approver) -> list[tuple[ApprovalRequested, float]]:
        """Return the calls that this admin may decide in this place, oldest first, each with the
        seconds left.
        """
        now = self._clock.now()
        return [
            (one.fact, max(0.0, (one.fact.until - now).total_seconds()))
            for one in await self._store.undecided()
            if isinstance(one.fact, ApprovalRequested)
            and can_decide(approver, Address.parse(one.fact.room), self.room)
        ]

    async def decide(self, approver: Approver, name: str, *, approved: bool) -> CommandEffect:
        """Decide the approval with this id. The decision holds once its facts are written and the
        effect is settled.

        The process in which the call waits takes the verdict from the log.
        """
        entry = await self._store.entry_by_key(approval_key(name))
        if entry is None or not isinstance(asked := entry.fact, ApprovalRequested):
            change = self.definitions.approve(approver, name) if approved else None
            return change or CommandEffect(answer=_render_unknown(name))
        place = entry.conversation or ConversationId("")
        if not can_decide(approver, Address.parse(asked.room), self.room):
            return CommandEffect(answer=_render_unknown(name))
        notice = await self._find_notice(asked)
        ended = await self._store.entry_by_key(approval_ended_key(name))
        if ended is not None and isinstance(ended.fact, ApprovalEnded):
            return CommandEffect(
                answer=render_already_decided(name, ended.fact.verdict, ended.fact.by)
            )
        waiting = self._find_waiting(
            name
        )  # nothing is awaited from here on: the caller must settle the effect
        is_over = self._cluster.holds(lease_of(place)) if waiting is None else _is_over(waiting)
        if is_over or self._clock.now() >= asked.until:
            text = _("Too late: `{id}` has ended, or somebody is deciding about it now.")
            return CommandEffect(answer=text.format(id=name))
        if approved and (refusal := _explain_may_not(approver, asked, Address.parse(place))):
            return CommandEffect(answer=refusal)
        if waiting is not None:
            waiting.claimed = True
        verdict: ApprovalVerdict = "once" if approved else "denied"
        fact = ApprovalEnded(
            approval=name, agent=asked.agent, tool=asked.tool, verdict=verdict, by=approver.name
        )
        return CommandEffect(
            answer=render_decision(asked.tool, approved=approved),
            facts=(
                EffectFact(fact, place, approval_ended_key(name)),
                *build_notice_end(notice, render_outcome(verdict, approver.name)),
            ),
            settle=lambda _result: self._unclaim(waiting),
        )

    def _unclaim(self, waiting: _Waiting | None) -> None:
        """Let the wait go on: with the verdict, if that could be written."""
        if waiting is not None:
            waiting.claimed = False
            waiting.changed.set()

    async def _find_notice(self, asked: ApprovalRequested) -> Post | None:
        queued = await self._store.entry_by_key(f"post:{_notice_key(asked)}")
        return (
            queued.fact.post if queued is not None and isinstance(queued.fact, PostQueued) else None
        )


def _notice_key(requested: ApprovalRequested) -> PostKey:
    return PostKey(
        hashlib.sha256(f"{approval_key(requested.approval)}:{requested.turn}".encode()).hexdigest()[
            :26
        ]
    )


def _is_over(waiting: _Waiting) -> bool:
    """Return True if the call does not wait any more, or somebody is deciding about it."""
    return waiting.claimed or not waiting.waiters or waiting.verdict is not None


def _explain_may_not(approver: Approver, asked: ApprovalRequested, at: Address) -> str:
    """Return why this person may not approve a call that was asked for at that place. Empty: they
    may.
    """
    if approver.role not in roles_that_may_approve(asked.needs):
        return _(
            "{tool} needs the role {role}. Only somebody with that role can approve it."
        ).format(tool=inline_code(asked.tool), role=asked.needs)
    if approver.at.channel == at.channel and approver.sender in asked.weak:
        return _("You asked for this without the right to do it. Somebody else must approve it.")
    return ""


def _render_unknown(name: str) -> str:
    return _("There is no request {id} here.").format(id=inline_code(name))
