"""Gets an admin's word for a call that needs one.

That it is asked for is durable with the notice that asks, and what is decided with the answer to whoever decides. So
after a crash each approval is decided, or nobody waits for it any more and that is written down. One verdict counts:
the first that is in the log.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.clock import Clock
from gateway.events import Address, ChannelName, DeliveryReport
from gateway.ops.report import format_duration
from gateway.places import PrivacyCache
from gateway.records import ApprovalRequested, ApprovalVerdict, ToolRefused, TurnId, is_inner
from gateway.settings_tools import ApprovalsConfig
from gateway.standing import AccessPolicy, has_role_holder, role_of
from gateway.store import AppendResult, NewEntry, OutboxPost, Store
from gateway.tools import consent
from gateway.tools.gate import ApprovalRequest
from gateway.tools.grants import CallProvenance, ToolGrant, ToolGrants, digest_arguments
from gateway.tools.notices import ApprovalNotices, PendingApproval

logger = logging.getLogger("reverie.tools")

MAX_PENDING_PER_CONVERSATION: Final = 5
"""Open at once in one conversation: more would be approved without being read."""
MAX_PENDING: Final = 20
"""The same everywhere."""
MAX_REMEMBERED_REFUSALS: Final = 1_000
"""Calls that got no word, so that nobody is asked for one again in the same turn."""


class ApprovalCallKey(NamedTuple):
    """What makes two calls the same."""

    turn: TurnId
    tool: str
    arguments: str


class ApprovalQueue:
    """Of all agents. It is `gateway.tools.gate.ApprovalRequester`; `gateway.tools.deciding` is the other side."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: ApprovalsConfig,
        *,
        post: Callable[[OutboxPost], None],
        places: PrivacyCache,
        who: AccessPolicy,
        prefix: Mapping[ChannelName, str],
    ) -> None:
        """`post` is called with each notice, after it is durable. `prefix`: of commands, as `commands.World` has it.

        Raises ValueError if `config.room` is no address.
        """
        self._store = store
        self._clock = clock
        self._timeout_s = config.timeout
        self._notices = ApprovalNotices(
            store, clock, lambda: self._timeout_s, post, prefix, named=places.titles.add_titles
        )
        self.room = Address.parse(config.room) if config.room else None
        """Where all approvals are asked for. None: where the turn is."""
        self._privacy = places
        self._access_policy = who
        self._command_prefixes = prefix
        self.grants = ToolGrants(store)
        self._pending: dict[ApprovalCallKey, tuple[PendingApproval, asyncio.Task[ApprovalVerdict]]] = {}
        self._tasks = set[asyncio.Task[ApprovalVerdict]]()
        self._refused_calls = OrderedDict[ApprovalCallKey, ApprovalVerdict]()

    def reconfigure(self, config: ApprovalsConfig) -> None:
        """Ask so from now on; what waits waits as it was said. Returns at once. Raises ValueError as at the start."""
        self.room = Address.parse(config.room) if config.room else None
        self._timeout_s = config.timeout

    @property
    def pending(self) -> list[PendingApproval]:
        """What waits and can be decided, oldest first."""
        return [one for one, _ in self._pending.values() if one.fact is not None and one.verdict is None]

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """For `Store.hear`: what became of notices. What was not shown whole cannot be approved."""
        for entry, done in zip(entries, written, strict=True):
            if isinstance(entry.fact, DeliveryReport) and done.is_new:
                for one, _ in self._pending.values():
                    if one.post == entry.fact.post:
                        one.set_delivered(whole=entry.fact.state == "sent")

    async def recover(self) -> None:
        """Nobody waits any more for what an earlier process asked. Call once, before the first turn."""
        await self._notices.recover()

    async def close(self) -> None:
        """Return once it is written down what nobody waits for any more. Call after the turns have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def request_approval(self, wanted: ApprovalRequest) -> str:
        """As `Approving.ask`.

        What is approved already is not asked for; the same call twice in a turn is asked for once. What cannot be asked
        for is refused at once. The store is told of all of it.
        """
        grant = ToolGrant(wanted.agent, wanted.tool, wanted.at.conversation)
        shape = CallProvenance(
            wanted.least_role, wanted.foreign, digest_arguments(consent.normalize_arguments(wanted.arguments))
        )
        if not wanted.recovered and await self.grants.is_granted(grant, shape, wanted.required_role):
            return ""
        if why := consent.explain_too_long(consent.format_arguments(wanted.arguments)):
            await self._record_refusal(wanted, why)
            return f"Refused: {wanted.rule}, and {why}. Nothing was done. Do it in smaller calls."
        call = ApprovalCallKey(wanted.turn, wanted.tool, consent.normalize_arguments(wanted.arguments))
        if call in self._refused_calls:
            return self._render_verdict(self._refused_calls[call], wanted)
        if any(one.turn == wanted.turn and verdict == "expired" for one, verdict in self._refused_calls.items()):
            return await self._record_refusal(wanted, "nobody answered when this turn asked before")
        room = self.room or wanted.at
        nobody = "" if call in self._pending else await self._no_approver_reason(room, wanted.required_role)
        refusal = nobody or ("" if call in self._pending else self._limit_refusal(wanted))
        if refusal:
            return await self._record_refusal(wanted, refusal)
        if call not in self._pending:
            made = PendingApproval(request=wanted, room=room)
            task = asyncio.create_task(self._process_request(made, call))
            self._pending[call] = made, task
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)
        one, task = self._pending[call]
        one.waiters += 1
        try:
            return self._render_verdict(await asyncio.shield(task), wanted)
        finally:
            one.waiters -= 1
            one.changed.set()

    async def _process_request(self, one: PendingApproval, call: ApprovalCallKey) -> ApprovalVerdict:
        """From the notice to the verdict. Nobody cancels it: whoever waited has gone, and that is a verdict, too."""
        try:
            asked = await self._notices.post_request(one)
            timer = asyncio.create_task(self._wake_at_deadline(one))
            try:
                verdict = await self._wait_for_verdict(one, asked)
            finally:
                timer.cancel()
        finally:
            del self._pending[call]
        if verdict not in consent.APPROVAL_DURATIONS:
            self._refused_calls[call] = verdict
            while len(self._refused_calls) > MAX_REMEMBERED_REFUSALS:
                self._refused_calls.popitem(last=False)
        logger.info("%s: %s: %s", one.request.turn, one.request.tool, verdict)
        return verdict

    def _on_task_done(self, task: asyncio.Task[ApprovalVerdict]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # whoever waits gets it, too
            logger.error("an approval broke", exc_info=task.exception())

    async def _wake_at_deadline(self, one: PendingApproval) -> None:
        await self._clock.sleep(max(0.0, one.deadline_s - self._clock.monotonic()))
        one.changed.set()

    async def _wait_for_verdict(self, one: PendingApproval, asked: ApprovalRequested) -> ApprovalVerdict:
        while one.verdict is None:
            if not one.claimed:
                if one.granted_by:
                    return await self._notices.record_end(one, asked, "once", one.granted_by)
                if not one.waiters or one.delivered is False:
                    return await self._notices.record_end(one, asked, "dropped")
                if self._clock.monotonic() >= one.deadline_s:
                    return await self._notices.record_end(one, asked, "expired")
            await one.changed.wait()
            one.changed.clear()
        return one.verdict

    def _render_verdict(self, verdict: ApprovalVerdict, wanted: ApprovalRequest) -> str:
        return consent.explain_not_approved(verdict, wanted.tool, format_duration(self._timeout_s))

    def _limit_refusal(self, wanted: ApprovalRequest) -> str:
        here = sum(one.request.at == wanted.at for one, _ in self._pending.values())
        if here >= MAX_PENDING_PER_CONVERSATION or len(self._pending) >= MAX_PENDING:
            return "too many other calls wait for an approval"
        return ""

    async def _no_approver_reason(self, room: Address, needs: str) -> str:
        """Why nobody could ever approve anything there. Empty: somebody could."""
        channel, place, may = room.channel, room.conversation, consent.roles_that_may_approve(needs)
        if is_inner(place) or not self._command_prefixes.get(channel):
            return "nobody can be asked here"
        if not has_role_holder(self._access_policy, channel, may):
            return f"nobody at {channel} may approve it"
        newest = await self._privacy.newest_message(place) if await self._privacy.is_direct(place) else None
        if newest is not None and role_of(self._access_policy, room, newest.sender) not in may:
            return "nobody who may approve it is here"
        return ""

    async def _record_refusal(self, wanted: ApprovalRequest, why: str) -> str:
        rule = f"{wanted.rule}, and {why}"
        logger.info("%s: %s is refused: %s", wanted.turn, wanted.tool, rule)
        fact = ToolRefused(turn=wanted.turn, agent=wanted.agent, tool=wanted.tool, role=wanted.role, rule=rule)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=wanted.at.conversation)])
        return f"Refused: {rule}. Nothing was done; do not try it again."
