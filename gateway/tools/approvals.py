"""Approvals: calls that wait for an admin, the notices that ask for them, and the admins' decisions.

A request becomes durable in one transaction with its notice, and a decision in one with the answer to the admin. So
after a crash each approval is either decided, or recorded as dropped because nobody waits for it any more. The first
verdict in the log counts.

What an approval for longer than one call covers is decided in `gateway.tools.grants`.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, NamedTuple

from gateway.access.approval_texts import (
    APPROVAL_DURATIONS,
    APPROVAL_ID_ALPHABET,
    APPROVAL_ID_CHARS,
    PLACE_CHARS,
    Approver,
    approval_buttons,
    can_decide,
    explain_not_approved,
    explain_too_long,
    format_arguments,
    inline_code,
    is_weak_requester,
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
from gateway.core.events import (
    Address,
    ConversationId,
    DeliveryReport,
    EventId,
    MembershipChanged,
    Message,
    MessageEdited,
    Post,
    PostKey,
    Sender,
)
from gateway.core.facts import (
    ApprovalEnded,
    ApprovalRequested,
    ApprovalRevoked,
    ApprovalVerdict,
    Judgement,
    PostQueued,
    Seq,
    ToolRefused,
    TurnId,
    TurnRecord,
    dedup_key,
    is_inner,
)
from gateway.core.format import format_duration
from gateway.core.i18n import _
from gateway.core.identity import AccessPolicy, has_role_holder, person_key, role_of
from gateway.core.labels import INTEGRITIES, Integrity, Label, rank_integrity
from gateway.core.permissions import PermissionDecision, lowest_role
from gateway.core.ratelimit import LruDict
from gateway.core.tool import Requester, ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.store import AppendResult, LogEntry, NewEntry, Store
from gateway.store.effects import CommandEffect, EffectFact, build_notice_end
from gateway.stream.routing import PrivacyCache
from gateway.tools.grants import CallScope, ToolGrant, ToolGrants, approval_key, covers, scope_of, shape_of
from gateway.tools.mcp.review import ToolDefinitionReview

logger = logging.getLogger("reverie.tools")

_NO_SEQ: Final = Seq(0)
ID_TRIES: Final = 8
"""Random ids of one length that are tried before they get longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """Call that needs an admin's approval."""

    call: ToolCall
    context: ToolContext
    required_role: str
    """Lowest role that needs no approval for the tool; the approver must have it, too."""
    decision: PermissionDecision
    label: Label
    """Label of the turn's request."""

    @property
    def arguments(self) -> str:
        """Arguments in full, as people are shown them."""
        return format_arguments(self.call.arguments)

    @property
    def standing(self) -> Integrity:
        """Integrity of the text that may come in without ending an approval for longer.

        That of the tool, of whoever asked, or of what is in view: the lowest of the first two, or the last if higher.
        """
        asked = lowest_role([self.required_role, *(one.role for one in self.context.requesters)])
        return INTEGRITIES[max(rank_integrity(asked), rank_integrity(self.label.integrity))]

    @property
    def scope(self) -> CallScope:
        """What decides which grants cover the call."""
        context, tool = self.context, self.call.name
        place, integrity = context.at.conversation, self.label.integrity
        askers = frozenset(person_key(context.at.channel, one.id) for one in context.requesters)
        return CallScope(context.agent, tool, place, shape_of(tool, self.arguments), askers, integrity)


@dataclass(slots=True, kw_only=True)
class PendingApproval:
    """Call that waits for an approval."""

    request: ApprovalRequest
    room: Address
    """Place where the approval is asked for."""
    fact: ApprovalRequested | None = None
    """Fact of the request; None: not durable yet."""
    seq: Seq = _NO_SEQ
    """Position of that fact in the log."""
    deadline_s: float = 0.0
    """Deadline on the clock's `monotonic`, in seconds."""
    waiters: int = 0
    """Number of callers that wait for it. 0: nobody waits any more."""
    claimed: bool = False
    """True while a verdict is being written."""
    granted_by: str = ""
    """Admin who meanwhile approved the tool for longer. Empty: nobody."""
    verdict: ApprovalVerdict | None = None
    notice: Post | None = None
    """Post that asks for it. None: not durable yet."""
    delivered: bool | None = None
    """True if the whole notice was shown. None: not known yet."""
    delivery_known: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once `delivered` is known."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each change of these fields."""

    def set_delivered(self, *, whole: bool) -> None:
        """Record whether the whole notice was shown."""
        self.delivered = whole
        self.delivery_known.set()
        self.changed.set()


def approval_ended_key(name: str) -> str:
    """Return the key of the one entry with the verdict on it."""
    return f"{approval_key(name)}:ended"


MAX_PENDING_PER_CONVERSATION: Final = 5
"""Limit of open approvals in one conversation: more would be approved without being read."""
MAX_TURNS_SEARCHED: Final = 50
"""Newest turns that are searched for the call of a tool that brought text from outside."""
MAX_PENDING: Final = 20
"""Limit of open approvals in all conversations."""
MAX_REMEMBERED_REFUSALS: Final = 1_000
"""Calls without approval that are remembered, so that a turn does not ask for the same call again."""


class ApprovalCallKey(NamedTuple):
    """Identity of a call: two calls with equal keys are the same."""

    turn: TurnId
    tool: str
    arguments: str


NOTICE_DELIVERY_S: Final = 2.0
"""Seconds to wait for the confirmation that a notice was delivered, when an admin answers at once; less than
`gateway.commands.dispatcher.ANSWER_TIMEOUT_S`."""


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
        """`cluster` None: this is the only process; else a call waits in the process that takes its turn."""
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
        self.grants = ToolGrants(store)
        self._pending: dict[ApprovalCallKey, tuple[PendingApproval, asyncio.Task[ApprovalVerdict]]] = {}
        self._tasks = set[asyncio.Task[ApprovalVerdict]]()
        self._refused_calls = LruDict[ApprovalCallKey, ApprovalVerdict](MAX_REMEMBERED_REFUSALS)
        store.subscribe(self._on_delivered, DeliveryReport)
        store.subscribe(self._on_decided, ApprovalEnded)
        store.subscribe(self._on_decided_elsewhere, ApprovalEnded, ApprovalRevoked, TurnRecord, own=False)
        store.subscribe(self._on_arrived, Message, MessageEdited, MembershipChanged, Judgement)

    @property
    def room(self) -> Address | None:
        """Place of all notices. None: the place of the turn."""
        room = self._live.settings.tools.approvals.room
        return Address.parse(room) if room else None

    @property
    def pending(self) -> list[PendingApproval]:
        """Waiting calls that can be decided, oldest first."""
        return [one for one, __ in self._pending.values() if one.fact is not None and one.verdict is None]

    def _on_delivered(self, entries: Sequence[LogEntry]) -> None:
        """Record deliveries of notices. Subscribes to `DeliveryReport`.

        A call whose notice was not shown whole cannot be approved.
        """
        for entry in entries:
            if isinstance(entry.fact, DeliveryReport):
                for one, __ in self._pending.values():
                    if one.notice is not None and one.notice.key == entry.fact.post:
                        one.set_delivered(whole=entry.fact.state == "sent")

    def _on_decided(self, entries: Sequence[LogEntry]) -> None:
        """Begin grants of the session, in the order of the log: what comes in behind one may end it."""
        facts = [one.fact for one in entries if isinstance(one.fact, ApprovalEnded)]
        decided = {one.approval for one in facts if one.verdict == "session"}
        for one, __ in self._pending.values():
            if one.fact is not None and one.fact.approval in decided:
                self.grants.add_session_grant(one.fact.approval, one.request.scope, one.fact.standing)

    def _on_decided_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Take what was decided about calls that wait here. Grants of a conversation that has moved away end."""
        for entry in entries:
            match entry.fact:
                case ApprovalEnded(approval=name, verdict=verdict, by=by):
                    for one in [one for one in self.pending if one.fact is not None and one.fact.approval == name]:
                        self._apply_verdict(one, verdict, by, AppendResult(entry.seq, is_new=True))
                case ApprovalRevoked(tool="") if entry.conversation is not None:
                    self.grants.reset_conversation(entry.conversation)
                case ApprovalRevoked(approval=name):
                    self.grants.drop_session_grants(name)
                case TurnRecord(requests=requests) if requests and entry.conversation is not None:
                    self.grants.reset_conversation(entry.conversation)

    def _on_arrived(self, entries: Sequence[LogEntry]) -> None:
        """End grants of the session where a text comes in that the agent may be shown."""
        texts = {one.seq: one.fact for one in entries if not isinstance(one.fact, Judgement)}
        for one in entries:
            text = texts.get(one.cause) if one.cause is not None else None
            if (
                text is None
                or not isinstance(one.fact, Judgement)
                or one.fact.fate == "refused"
                or not one.conversation
            ):
                continue
            is_foreign = bool(
                getattr(text, "carried", "") or getattr(text, "attachments", ()) or getattr(text, "quoted", None)
            )
            self.grants.end_foreign(one.conversation, "outside" if is_foreign else one.fact.role)

    async def recover(self, lease: LeaseName = "") -> None:
        """Record the requests of processes that have ended as dropped, before the first turn.

        `lease`: those of the turns that its holder takes. Empty: all.
        """
        for one in await self._store.undecided():
            place = one.conversation or ConversationId("")
            if isinstance(one.fact, ApprovalRequested) and lease in ("", lease_of(place)):
                notice = await self._find_notice(one.fact)
                end = self._build_end_entries(one.fact, "dropped", Address.parse(place), one.seq, notice=notice)
                await self._store.append(end)

    async def close(self) -> None:
        """Return once all requests are decided in the log. Call after the turns have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def is_granted(self, request: ApprovalRequest) -> bool:
        """Return whether an approval for longer covers the call, as the log says at this moment."""
        return not request.call.is_recovered and await self.grants.is_granted(request.scope)

    def record_result(self, tool: str, label: Label, conversation: ConversationId) -> None:
        """End the approvals there that hold until such text comes in. What a tool brings in does not end its own."""
        self.grants.end_foreign(conversation, label.integrity, tool=tool)

    async def request_approval(self, request: ApprovalRequest) -> str:
        """Wait for an approval. Returns an empty text if it is given, else the reason for the model. Raises StoreError.

        Approved calls are not asked for again; the same call twice in a turn is asked for once. Calls that cannot be
        asked for are refused at once. When cancelled, the request is dropped, and a later answer has no effect.
        """
        if await self.is_granted(request):
            return ""
        turn, tool = request.context.turn, request.call.name
        if why := explain_too_long(request.arguments):
            await self._record_refusal(request, why)
            return f"Refused: {request.decision.rule}, and {why}. Nothing was done. Do it in smaller calls."
        call = ApprovalCallKey(turn, tool, request.arguments)
        if call in self._refused_calls:
            return self._render_verdict(self._refused_calls[call], request)
        if any(key.turn == turn and verdict == "expired" for key, verdict in self._refused_calls.items()):
            return await self._record_refusal(request, "nobody answered when this turn asked before")
        room = self.room or request.context.at
        nobody = "" if call in self._pending else await self._no_approver_reason(room, request.required_role)
        refusal = nobody or ("" if call in self._pending else self._limit_refusal(request))
        if refusal:
            return await self._record_refusal(request, refusal)
        if call not in self._pending:
            pending = PendingApproval(request=request, room=room)
            task = asyncio.create_task(self._process_request(pending, call))
            self._pending[call] = pending, task
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)
        pending, task = self._pending[call]
        pending.waiters += 1
        try:
            return self._render_verdict(await asyncio.shield(task), request)
        finally:
            pending.waiters -= 1
            pending.changed.set()

    async def _process_request(self, pending: PendingApproval, call: ApprovalCallKey) -> ApprovalVerdict:
        """Process a request from the notice to the verdict.

        Never cancelled: that its caller has gone is a verdict, too.
        """
        try:
            requested = await self._post_request(pending)
            timer = asyncio.create_task(self._wake_at_deadline(pending))
            try:
                verdict = await self._wait_for_verdict(pending, requested)
            finally:
                timer.cancel()
        finally:
            del self._pending[call]
        if verdict not in APPROVAL_DURATIONS:
            self._refused_calls.put(call, verdict)
        logger.info("%s: %s: %s", call.turn, call.tool, verdict)
        return verdict

    def _on_task_done(self, task: asyncio.Task[ApprovalVerdict]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # the waiting caller gets it, too
            logger.error("an approval broke", exc_info=task.exception())

    async def _wake_at_deadline(self, pending: PendingApproval) -> None:
        await self._clock.sleep(max(0.0, pending.deadline_s - self._clock.monotonic()))
        pending.changed.set()

    async def _wait_for_verdict(self, pending: PendingApproval, requested: ApprovalRequested) -> ApprovalVerdict:
        while pending.verdict is None:
            if not pending.claimed:
                if pending.granted_by:
                    return await self._record_end(pending, requested, "once", pending.granted_by)
                if not pending.waiters or pending.delivered is False:
                    return await self._record_end(pending, requested, "dropped")
                if self._clock.monotonic() >= pending.deadline_s:
                    return await self._record_end(pending, requested, "expired")
            await pending.changed.wait()
            pending.changed.clear()
        return pending.verdict

    def _render_verdict(self, verdict: ApprovalVerdict, request: ApprovalRequest) -> str:
        return explain_not_approved(
            verdict, request.call.name, format_duration(self._live.settings.tools.approvals.timeout)
        )

    def _limit_refusal(self, request: ApprovalRequest) -> str:
        """Return why no more calls may wait. Empty: it may."""
        here = sum(one.request.context.at == request.context.at for one, __ in self._pending.values())
        if here >= MAX_PENDING_PER_CONVERSATION or len(self._pending) >= MAX_PENDING:
            return "too many other calls wait for an approval"
        return ""

    async def _no_approver_reason(self, room: Address, required_role: str) -> str:
        """Return the reason why nobody could ever approve it there. Empty: somebody could."""
        channel, place, may = room.channel, room.conversation, roles_that_may_approve(required_role)
        if is_inner(place) or not self._channels.command_prefix(channel):
            return "nobody can be asked here"
        if not has_role_holder(self._access_policy, channel, may):
            return f"nobody at {channel} may approve it"
        newest = await self._privacy.newest_message(place) if await self._privacy.is_direct(place) else None
        if newest is not None and role_of(self._access_policy, room, newest.sender) not in may:
            return "nobody who may approve it is here"
        return ""

    async def _record_refusal(self, request: ApprovalRequest, why: str) -> str:
        context, rule = request.context, f"{request.decision.rule}, and {why}"
        logger.info("%s: %s is refused: %s", context.turn, request.call.name, rule)
        fact = ToolRefused(
            turn=context.turn,
            agent=context.agent,
            tool=request.call.name,
            role=request.decision.role,
            rule=rule,
            label=request.label,
        )
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=context.at.conversation)])
        return f"Refused: {rule}. Nothing was done; do not try it again."

    async def _describe_cause(self, label: Label, place: ConversationId, shown: ConversationId) -> str:
        """Describe the least trusted text in a request. Only a message of the place where it is shown is quoted."""
        if label.is_trusted or not label.source:
            return ""
        newest = await self._store.newest_entries(MAX_TURNS_SEARCHED, kinds=["turn_ended"], conversation=place)
        turns = [one.fact for one in newest if isinstance(one.fact, TurnRecord)] if shown == place else []
        return await self._sources.describe(label.source, shown, turns)

    async def _post_request(self, pending: PendingApproval) -> ApprovalRequested:
        """Post the notice, in one transaction with the fact of the request."""
        request, now, tries, timeout_s = (
            pending.request,
            self._clock.now(),
            0,
            self._live.settings.tools.approvals.timeout,
        )
        context, place = request.context, request.context.at.conversation
        cause = await self._describe_cause(request.label, place, pending.room.conversation)
        while True:
            name = "".join(secrets.choice(APPROVAL_ID_ALPHABET) for _ in range(APPROVAL_ID_CHARS + tries // ID_TRIES))
            requested = ApprovalRequested(
                approval=name,
                agent=context.agent,
                tool=request.call.name,
                arguments=request.arguments,
                turn=context.turn,
                asked_by=tuple(asker.id for asker in context.requesters),
                room=pending.room.conversation,
                until=now + timedelta(seconds=timeout_s),
                label=request.label,
                rule=request.decision.rule,
                standing=request.standing,
                needs=request.required_role,
            )
            channel = self._channels.get(pending.room.channel)
            has_buttons = channel is not None and channel.capabilities.buttons
            text = render_approval_request(
                requested,
                askers=context.requesters,
                cause=cause,
                shape=request.scope.shape,
                place=place if pending.room != context.at else "",
                named=self._privacy.titles.add_titles,
                prefix=self._channels.command_prefix(pending.room.channel),
                span=format_duration(timeout_s),
                has_buttons=has_buttons,
            )
            request_entry = NewEntry(fact=requested, at=now, conversation=place, key=approval_key(name))
            key = _notice_key(requested)
            buttons = approval_buttons(name) if has_buttons else ()
            post = Post(key=key, to=pending.room, text=text, style="notice", buttons=buttons)
            post_entry = NewEntry(
                fact=PostQueued(post=post),
                at=now,
                conversation=pending.room.conversation,
                key=f"post:{key}",
                cause=request_entry,
            )
            request_result, _ = await self._store.append([request_entry, post_entry])
            if request_result.is_new:  # otherwise the id was used before
                pending.notice = post
                pending.fact, pending.seq, pending.deadline_s = (
                    requested,
                    request_result.seq,
                    self._clock.monotonic() + timeout_s,
                )
                return requested
            tries += 1

    async def _record_end(
        self, pending: PendingApproval, requested: ApprovalRequested, verdict: ApprovalVerdict, by: str = ""
    ) -> ApprovalVerdict:
        pending.claimed = True
        await self._store.append(
            self._build_end_entries(
                requested, verdict, pending.request.context.at, pending.seq, notice=pending.notice, by=by
            )
        )
        entry = await self._store.entry_by_key(approval_ended_key(requested.approval))
        assert entry is not None
        assert isinstance(entry.fact, ApprovalEnded)
        pending.verdict = entry.fact.verdict  # an admin's verdict may be there although its write seemed to fail
        return pending.verdict

    def _build_end_entries(
        self,
        requested: ApprovalRequested,
        verdict: ApprovalVerdict,
        at: Address,
        cause: Seq,
        *,
        notice: Post | None,
        by: str = "",
    ) -> Sequence[NewEntry]:
        """Return the end of a request, and of the buttons under its notice."""
        fact = ApprovalEnded(
            approval=requested.approval, agent=requested.agent, tool=requested.tool, verdict=verdict, by=by
        )
        now, key = self._clock.now(), approval_ended_key(requested.approval)
        return [
            NewEntry(fact=fact, at=now, conversation=at.conversation, key=key, cause=cause),
            *(
                NewEntry(fact=one.fact, at=now, conversation=one.place, key=one.key, cause=cause)
                for one in build_notice_end(notice, render_outcome(verdict, by))
            ),
        ]

    async def list_waiting(self, approver: Approver) -> list[tuple[ApprovalRequested, float]]:
        """Return the calls that this admin may decide in this place, oldest first, each with the seconds left."""
        now = self._clock.now()
        return [
            (one.fact, max(0.0, (one.fact.until - now).total_seconds()))
            for one in await self._store.undecided()
            if isinstance(one.fact, ApprovalRequested) and self._may_decide(approver, Address.parse(one.fact.room))
        ]

    def list_definitions(self) -> list[tuple[str, str]]:
        """Return the definitions of tools that wait for review: the code of each, and its difference as Markdown."""
        return [(one.code, one.describe()) for one in self.definitions.list_pending()]

    async def list_grants(self, approver: Approver) -> list[ToolGrant]:
        """Return the grants that this admin may revoke in this place."""
        return [
            grant
            for grant in await self.grants.list_grants()
            if self._may_decide(approver, Address.parse(grant.scope.conversation))
        ]

    async def decide(self, approver: Approver, name: str, verdict: ApprovalVerdict) -> CommandEffect:
        """Decide the approval with this id. The decision holds once its facts are written and the effect is settled."""
        change = await self._decide_here(approver, name, verdict)
        change = change or await self._decide_elsewhere(approver, name, verdict)
        return change or CommandEffect(answer=await self._render_ended(approver, name))

    async def _decide_elsewhere(self, approver: Approver, name: str, verdict: ApprovalVerdict) -> CommandEffect | None:
        """Decide about a call that waits in another process, as the log has it. None: none of that id does.

        That process takes the verdict from the log; the first one counts.
        """
        entries = [(one.fact, one.conversation or ConversationId("")) for one in await self._store.undecided()]
        found = [one for one in entries if isinstance(one[0], ApprovalRequested) and one[0].approval == name]
        if not found or self._cluster.holds(lease_of(found[0][1])):
            return None
        (asked, place), at = found[0], Address.parse(found[0][1])
        assert isinstance(asked, ApprovalRequested)
        if not self._may_decide(approver, Address.parse(asked.room)):
            return CommandEffect(answer=_render_unknown(name))
        notice = await self._find_notice(asked)
        if verdict != "denied" and not await self._was_sent_whole(notice):
            return CommandEffect(
                answer=_("`{id}` cannot be approved yet: the whole call has not been shown here.").format(id=name)
            )
        if self._clock.now() >= asked.until:
            return CommandEffect(
                answer=_("Too late: `{id}` has ended, or somebody is deciding about it now.").format(id=name)
            )
        senders = [Sender(id=one, name="", verified=True) for one in asked.asked_by]
        askers = [
            Requester(id=one.id, name=one.id, role=role_of(self._access_policy, at, one), verified=True)
            for one in senders
        ]
        if verdict != "denied" and (refusal := _explain_may_not(approver, asked.tool, asked.needs, at, askers)):
            return CommandEffect(answer=refusal)
        scope = scope_of(asked, place, shape_of(asked.tool, asked.arguments))
        return self._build_verdict(approver, asked, scope, verdict, askers, notice)

    async def _find_notice(self, asked: ApprovalRequested) -> Post | None:
        queued = await self._store.entry_by_key(f"post:{_notice_key(asked)}")
        return queued.fact.post if queued is not None and isinstance(queued.fact, PostQueued) else None

    async def _was_sent_whole(self, notice: Post | None) -> bool:
        if notice is None:
            return False
        report = DeliveryReport(
            id=EventId(notice.key), at=notice.to, post=notice.key, state="sent", reason="", sent=self._clock.now()
        )
        entry = await self._store.entry_by_key(dedup_key(report))
        return entry is not None and isinstance(entry.fact, DeliveryReport) and entry.fact.state == "sent"

    def _build_verdict(  # noqa: PLR0917 - the decision, then what it is about
        self,
        approver: Approver,
        asked: ApprovalRequested,
        scope: CallScope,
        verdict: ApprovalVerdict,
        askers: Sequence[Requester],
        notice: Post | None,
    ) -> CommandEffect:
        lasts = verdict in ("session", "always")
        fact = ApprovalEnded(
            approval=asked.approval,
            agent=scope.agent,
            tool=scope.tool,
            verdict=verdict,
            by=approver.name,
            shape=scope.shape if lasts else "",
        )
        answer = render_decision(
            verdict,
            asked,
            askers=askers,
            shape=scope.shape,
            place=scope.conversation if scope.conversation != approver.at.conversation else "",
            prefix=self._channels.command_prefix(approver.at.channel),
        )
        return CommandEffect(
            answer=answer,
            facts=(
                EffectFact(fact, scope.conversation, approval_ended_key(asked.approval)),
                *build_notice_end(notice, render_outcome(verdict, approver.name)),
            ),
        )

    async def _decide_here(self, approver: Approver, name: str, verdict: ApprovalVerdict) -> CommandEffect | None:
        """See `decide`. None: nothing of that id waits in this process."""
        found = next((one for one in self.pending if one.fact and one.fact.approval == name), None)
        if found is None:
            return self.definitions.approve(approver, name) if verdict != "denied" else None
        if not self._may_decide(approver, found.room):
            return CommandEffect(answer=_render_unknown(name))
        if verdict != "denied" and not await _was_shown_whole(found):
            return CommandEffect(
                answer=_("`{id}` cannot be approved yet: the whole call has not been shown here.").format(id=name)
            )
        if (
            found.verdict is not None
            or found.claimed
            or not found.waiters
            or self._clock.monotonic() >= found.deadline_s
        ):
            return CommandEffect(
                answer=_("Too late: `{id}` has ended, or somebody is deciding about it now.").format(id=name)
            )
        request, askers = found.request, found.request.context.requesters
        assert found.fact is not None
        refusal = _explain_may_not(approver, request.call.name, request.required_role, request.context.at, askers)
        if verdict != "denied" and refusal:
            return CommandEffect(answer=refusal)
        found.claimed = True  # nothing is awaited from here on: the caller must settle the effect
        change = self._build_verdict(approver, found.fact, request.scope, verdict, askers, found.notice)
        return replace(change, settle=lambda result: self._apply_verdict(found, verdict, approver.name, result))

    async def revoke(self, approver: Approver, tool: str) -> CommandEffect:
        """Revoke the grants for a tool, in all places for which this admin may decide here."""
        revoked = [grant for grant in await self.list_grants(approver) if grant.scope.tool == tool]
        for grant in revoked:
            self.grants.drop_session_grant(grant)
        if not revoked:
            return CommandEffect(answer=_("{tool} has no longer approval here.").format(tool=inline_code(tool)))
        facts = [
            EffectFact(
                ApprovalRevoked(agent=grant.scope.agent, tool=tool, by=approver.name, approval=grant.approval),
                grant.scope.conversation,
            )
            for grant in revoked
        ]
        places = ", ".join(dict.fromkeys(inline_code(grant.scope.conversation, PLACE_CHARS) for grant in revoked))
        text = _("I took back the approval of {tool} in {rooms}.").format(tool=inline_code(tool), rooms=places)
        return CommandEffect(answer=text, facts=tuple(facts))

    def reset_conversation(self, agent: str, conversation: ConversationId, by: str) -> Sequence[EffectFact]:
        """Drop the grants of a conversation that is started afresh. Append the facts: other processes drop theirs."""
        self.grants.reset_conversation(conversation)
        fact = ApprovalRevoked(agent=agent, tool="", by=by)
        return [EffectFact(fact, conversation)]

    def _may_decide(self, approver: Approver, asked_in: Address) -> bool:
        return can_decide(approver, asked_in, self.room)

    def _apply_verdict(
        self, found: PendingApproval, verdict: ApprovalVerdict, by: str, result: AppendResult | None
    ) -> None:
        found.claimed = False
        if result is not None and result.is_new:
            found.verdict = verdict
            if verdict in ("session", "always"):
                scope = found.request.scope
                for one in self.pending:
                    if not one.request.call.is_recovered and covers(scope, one.request.scope):
                        one.granted_by = by
                        one.changed.set()
        found.changed.set()

    async def _render_ended(self, approver: Approver, name: str) -> str:
        """Render the outcome of an approval that does not wait any more."""
        requested = await self._store.entry_by_key(approval_key(name))
        if requested is None or not isinstance(requested.fact, ApprovalRequested):
            return _render_unknown(name)
        if not self._may_decide(approver, Address.parse(requested.fact.room)):
            return _render_unknown(name)
        ended = await self._store.entry_by_key(approval_ended_key(name))
        if ended is None or not isinstance(ended.fact, ApprovalEnded):
            return _("Too late: somebody is deciding about `{id}` now.").format(id=name)
        return render_already_decided(name, ended.fact.verdict, ended.fact.by)


async def _was_shown_whole(pending: PendingApproval) -> bool:
    """Return True if the notice was shown whole; waits a moment until that is known."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NOTICE_DELIVERY_S):
            await pending.delivery_known.wait()
    return pending.delivered is True


def _notice_key(requested: ApprovalRequested) -> PostKey:
    """Return the key of the notice that asks for it."""
    return PostKey(hashlib.sha256(f"{approval_key(requested.approval)}:{requested.turn}".encode()).hexdigest()[:26])


def _explain_may_not(approver: Approver, tool: str, needs: str, at: Address, askers: Sequence[Requester]) -> str:
    """Return why this person may not approve a call that was asked for at that place. Empty: they may."""
    if approver.role not in roles_that_may_approve(needs):
        return _("{tool} needs the role {role}. Only somebody with that role can approve it.").format(
            tool=inline_code(tool), role=needs
        )
    if is_weak_requester(approver, at.channel, askers, needs):
        return _("You asked for this without the right to do it. Somebody else must approve it.")
    return ""


def _render_unknown(name: str) -> str:
    return _("There is no request {id} here.").format(id=inline_code(name))
