"""What admins say to calls that wait, and what they take back: decided here, written down with the answer to them."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.changes import CommandEffect, EffectFact
from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId
from gateway.records import ApprovalEnded, ApprovalRequested, ApprovalRevoked, ApprovalVerdict
from gateway.store import AppendResult, StoreReader
from gateway.tools import consent, grants
from gateway.tools.approvals import ApprovalQueue
from gateway.tools.consent import Approver
from gateway.tools.grants import ToolGrant
from gateway.tools.mcp.review import ToolDefinitionReview
from gateway.tools.notices import PendingApproval, approval_ended_key, approval_key

NOTICE_DELIVERY_S: Final = 2.0
"""A notice that an admin answers at once may be about to be confirmed; less than
`gateway.commands.desk.ANSWER_TIMEOUT_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingApproval:
    """A call that waits, for people."""

    request: ApprovalRequested
    remaining_s: float
    """Until the answer is no."""


class ApprovalDecisions:
    """For all agents and admins."""

    def __init__(
        self,
        approvals: ApprovalQueue,
        definitions: ToolDefinitionReview,
        reader: StoreReader,
        clock: Clock,
        prefix: Mapping[ChannelName, str],
    ) -> None:
        """`prefix`: of commands, as `commands.World` has it."""
        self._approvals = approvals
        self.definitions = definitions
        """Of MCP tools: those that wait are approved by the same command."""
        self._reader = reader
        self._clock = clock
        self._command_prefixes = prefix

    def list_waiting(self, approver: Approver) -> list[WaitingApproval]:
        """What this admin may decide where they are, oldest first."""
        now_s = self._clock.monotonic()
        return [
            WaitingApproval(request=one.fact, remaining_s=max(0.0, one.deadline_s - now_s))
            for one in self._approvals.pending
            if one.fact is not None and self._may_decide(approver, one.room)
        ]

    async def list_grants(self, approver: Approver) -> dict[ToolGrant, str]:
        """What is approved for longer than a call, and how long, of what this admin may take back where they are."""
        told = await self._approvals.grants.list_grants()
        return {one: long for one, long in told.items() if self._may_decide(approver, Address.parse(one.conversation))}

    async def decide(self, approver: Approver, name: str, verdict: ApprovalVerdict) -> CommandEffect:
        """Somebody says a word on the approval of that name. It holds once it is written down and settled."""
        found = next((one for one in self._approvals.pending if one.fact and one.fact.approval == name), None)
        if found is None:
            change = self.definitions.approve(approver, name) if verdict != "denied" else None
            return change or CommandEffect(answer=await self._render_ended(approver, name))
        if not self._may_decide(approver, found.room):
            return CommandEffect(answer=_render_unknown(name))
        if verdict != "denied" and not await _was_shown_whole(found):
            return CommandEffect(
                answer=f"`{name}` cannot be approved: what it would run has not been shown here whole yet."
            )
        if (
            found.verdict is not None
            or found.claimed
            or not found.waiters
            or self._clock.monotonic() >= found.deadline_s
        ):
            return CommandEffect(answer=f"Too late: `{name}` is over, or just being decided.")
        wanted, at = found.request, approver.at
        if verdict != "denied" and approver.role not in consent.roles_that_may_approve(wanted.required_role):
            return CommandEffect(
                answer=f"{consent.inline_code(wanted.tool)} is for the role {wanted.required_role}: so is approving it."
            )
        if verdict != "denied" and consent.is_weak_requester(
            approver, wanted.at.channel, wanted.requesters, wanted.required_role
        ):
            return CommandEffect(answer="You asked for it without the right to: somebody else has to approve it.")
        found.claimed = True  # nothing is awaited from here on: whoever is handed it has to settle it
        by, place = approver.name, wanted.at.conversation
        shape = found.provenance
        fact = ApprovalEnded(
            approval=name,
            agent=wanted.agent,
            tool=wanted.tool,
            verdict=verdict,
            by=by,
            least=shape.least_role,
            foreign=shape.foreign,
            arguments=shape.arguments,
        )
        covers = consent.describe_coverage(shape.least_role, wanted.required_role, foreign=shape.foreign)
        where = place if wanted.at != at else ""
        return CommandEffect(
            answer=consent.render_decision(verdict, wanted.tool, where, self._command_prefixes[at.channel], covers),
            facts=(EffectFact(fact, place, approval_ended_key(name)),),
            settle=lambda asked: self._apply_verdict(found, verdict, by, asked),
        )

    async def revoke(self, approver: Approver, tool: str) -> CommandEffect:
        """The tool is not approved for longer any more: there, or wherever this admin may decide from there."""
        taken = [one for one in await self.list_grants(approver) if one.tool == tool]
        for one in taken:
            self._approvals.grants.drop_session_grant(one)
        if not taken:
            return CommandEffect(answer=f"{consent.inline_code(tool)} is not approved here for longer than a call.")
        facts = [
            EffectFact(ApprovalRevoked(agent=one.agent, tool=tool, by=approver.name), one.conversation) for one in taken
        ]
        places = ", ".join(dict.fromkeys(consent.inline_code(one.conversation, consent.PLACE_CHARS) for one in taken))
        return CommandEffect(answer=f"Approved no more: {consent.inline_code(tool)} in {places}.", facts=tuple(facts))

    def reset_conversation(self, conversation: ConversationId) -> None:
        """Somebody has a conversation begin afresh, whether or not anything was in view there."""
        self._approvals.grants.reset_conversation(conversation)

    def _may_decide(self, approver: Approver, asked_in: Address) -> bool:
        return consent.can_decide(approver, asked_in, self._approvals.room)

    def _apply_verdict(
        self, found: PendingApproval, verdict: ApprovalVerdict, by: str, asked: AppendResult | None
    ) -> None:
        found.claimed = False
        if asked is not None and asked.is_new:
            found.verdict = verdict
            if verdict in ("session", "always"):
                if verdict == "session":
                    self._approvals.grants.add_session_grant(found.grant, asked.seq, found.provenance)
                for one in self._approvals.pending:
                    same = one.grant == found.grant and not one.request.recovered
                    if same and grants.covers(found.provenance, one.provenance, one.request.required_role):
                        one.granted_by = by
                        one.changed.set()
        found.changed.set()

    async def _render_ended(self, approver: Approver, name: str) -> str:
        """What became of what does not wait any more."""
        asked = await self._reader.entry_by_key(approval_key(name))
        if asked is None or not isinstance(asked.fact, ApprovalRequested):
            return _render_unknown(name)
        if not self._may_decide(approver, Address.parse(asked.fact.room)):
            return _render_unknown(name)
        ended = await self._reader.entry_by_key(approval_ended_key(name))
        if ended is None or not isinstance(ended.fact, ApprovalEnded):
            return f"Too late: `{name}` is just being decided."
        return consent.render_already_decided(name, ended.fact.verdict, ended.fact.by)


async def _was_shown_whole(one: PendingApproval) -> bool:
    """Whether all of what it would run was shown; waits a moment until that is known."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NOTICE_DELIVERY_S):
            await one.delivery_known.wait()
    return one.delivered is True


def _render_unknown(name: str) -> str:
    return f"No approval {consent.inline_code(name)} was asked for here."
