"""What admins say to calls that wait, and what they take back: decided here, written down with the answer to them."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.changes import Change, Made
from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId
from gateway.records import ApprovalAsked, ApprovalEnded, ApprovalRevoked, Verdict
from gateway.store import Appended, Reader
from gateway.tools import consent, grants
from gateway.tools.approvals import Approvals
from gateway.tools.consent import Approver
from gateway.tools.grants import Grant
from gateway.tools.mcp.review import Definitions
from gateway.tools.notices import Open, ended_key, key_of

DELIVERY_S: Final = 2.0
"""A notice that an admin answers at once may be about to be confirmed; less than `gateway.commands.desk.ANSWER_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A call that waits, for people."""

    request: ApprovalAsked
    remaining_s: float
    """Until the answer is no."""


class Deciding:
    """For all agents and admins."""

    def __init__(
        self,
        approvals: Approvals,
        definitions: Definitions,
        reader: Reader,
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

    def list_waiting(self, approver: Approver) -> list[Waiting]:
        """What this admin may decide where they are, oldest first."""
        now_s = self._clock.monotonic()
        return [
            Waiting(request=one.fact, remaining_s=max(0.0, one.deadline_s - now_s))
            for one in self._approvals.pending
            if one.fact is not None and self._may_decide(approver, one.room)
        ]

    async def list_grants(self, approver: Approver) -> dict[Grant, str]:
        """What is approved for longer than a call, and how long, of what this admin may take back where they are."""
        told = await self._approvals.grants.list_grants()
        return {one: long for one, long in told.items() if self._may_decide(approver, Address.parse(one.conversation))}

    async def decide(self, approver: Approver, name: str, verdict: Verdict) -> Change:
        """Somebody says a word on the approval of that name. It holds once it is written down and settled."""
        found = next((one for one in self._approvals.pending if one.fact and one.fact.approval == name), None)
        if found is None:
            change = self.definitions.approve(approver, name) if verdict != "denied" else None
            return change or Change(answer=await self._render_ended(approver, name))
        if not self._may_decide(approver, found.room):
            return Change(answer=_unknown(name))
        if verdict != "denied" and not await _shown(found):
            return Change(answer=f"`{name}` cannot be approved: what it would run has not been shown here whole yet.")
        if (
            found.verdict is not None
            or found.claimed
            or not found.waiters
            or self._clock.monotonic() >= found.deadline_s
        ):
            return Change(answer=f"Too late: `{name}` is over, or just being decided.")
        wanted, at = found.request, approver.at
        if verdict != "denied" and approver.role not in consent.approvers(wanted.required_role):
            return Change(
                answer=f"{consent.code(wanted.tool)} is for the role {wanted.required_role}: so is approving it."
            )
        if verdict != "denied" and consent.weak(approver, wanted.at.channel, wanted.requesters, wanted.required_role):
            return Change(answer="You asked for it without the right to: somebody else has to approve it.")
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
        covers = consent.covering(shape.least_role, wanted.required_role, foreign=shape.foreign)
        where = place if wanted.at != at else ""
        return Change(
            answer=consent.decided(verdict, wanted.tool, where, self._command_prefixes[at.channel], covers),
            facts=(Made(fact, place, ended_key(name)),),
            settle=lambda asked: self._apply_verdict(found, verdict, by, asked),
        )

    async def revoke(self, approver: Approver, tool: str) -> Change:
        """The tool is not approved for longer any more: there, or wherever this admin may decide from there."""
        taken = [one for one in await self.list_grants(approver) if one.tool == tool]
        for one in taken:
            self._approvals.grants.drop_session_grant(one)
        if not taken:
            return Change(answer=f"{consent.code(tool)} is not approved here for longer than a call.")
        facts = [Made(ApprovalRevoked(agent=one.agent, tool=tool, by=approver.name), one.conversation) for one in taken]
        places = ", ".join(dict.fromkeys(consent.code(one.conversation, consent.PLACE_CHARS) for one in taken))
        return Change(answer=f"Approved no more: {consent.code(tool)} in {places}.", facts=tuple(facts))

    def reset_conversation(self, conversation: ConversationId) -> None:
        """Somebody has a conversation begin afresh, whether or not anything was in view there."""
        self._approvals.grants.reset_conversation(conversation)

    def _may_decide(self, approver: Approver, asked_in: Address) -> bool:
        return consent.may(approver, asked_in, self._approvals.room)

    def _apply_verdict(self, found: Open, verdict: Verdict, by: str, asked: Appended | None) -> None:
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
        asked = await self._reader.entry_by_key(key_of(name))
        if asked is None or not isinstance(asked.fact, ApprovalAsked):
            return _unknown(name)
        if not self._may_decide(approver, Address.parse(asked.fact.room)):
            return _unknown(name)
        ended = await self._reader.entry_by_key(ended_key(name))
        if ended is None or not isinstance(ended.fact, ApprovalEnded):
            return f"Too late: `{name}` is just being decided."
        return consent.over(name, ended.fact.verdict, ended.fact.by)


async def _shown(one: Open) -> bool:
    """Whether all of what it would run was shown; waits a moment until that is known."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DELIVERY_S):
            await one.delivery_known.wait()
    return one.delivered is True


def _unknown(name: str) -> str:
    return f"No approval {consent.code(name)} was asked for here."
