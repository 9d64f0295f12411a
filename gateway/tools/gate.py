"""Where every call of a tool has to pass: by right, or by an admin's word."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.models.base import ToolCall
from agent.repeats import call_key
from gateway.clock import Clock
from gateway.cut_off import was_begun_by_cut_off_turn
from gateway.events import Address, Sender
from gateway.hands import Requester, Tool, ToolContext
from gateway.records import ToolRefused, ToolStarted, TurnId
from gateway.settings_tools import ToolsConfig
from gateway.standing import AccessPolicy, Role, role_of
from gateway.store import NewEntry, Store
from gateway.tools.permits import (
    PermissionDecision,
    PermissionRequest,
    apply_rules,
    decide_permission,
    lowest_role,
    proven_role,
)

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
