"""Where every call of a tool has to pass: by right, or by an admin's word."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.models.base import ToolCall
from agent.repeats import named
from gateway import access
from gateway.clock import Clock
from gateway.cut_off import begun_before
from gateway.events import Address, Sender
from gateway.hands import Asker, Hand, Whereabouts
from gateway.records import ToolBegun, ToolRefused, TurnId
from gateway.settings_tools import ToolsConfig
from gateway.store import Entry, Store
from gateway.tools.permits import Situation, Verdict, decide, ruled, standing, weakest

logger = logging.getLogger("reverie.tools")

BEGUN: Final = (
    "Not carried out: the same was begun right before the gateway was stopped, and may have had its effect. Look what "
    "it has done; if it is still to be done, call it once more."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call that needs an admin's word."""

    agent: str
    tool: str
    arguments: str
    """JSON text as the model wrote it: untrusted."""
    turn: TurnId
    at: Address
    """Where the turn is."""
    requesters: Sequence[Asker]
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


class Approving(Protocol):
    """Who gets it."""

    async def request_approval(self, wanted: Wanted) -> str:
        """Wait for it. Empty: it is given. Else why not, for the model. Raises StoreError.

        Cancelled, nobody is waited for any more, and a word that comes later does nothing.
        """


class Gate:
    """Of all agents."""

    def __init__(
        self, config: ToolsConfig, store: Store, clock: Clock, approving: Approving, *, who: access.Policy
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

    def required_role(self, hand: Hand) -> str:
        """The lowest role that may have it called, by the operator's rules."""
        return ruled(hand.spec.name, hand.permit, self._config.rules).role

    async def authorize(self, hand: Hand, call: ToolCall, where: Whereabouts) -> str:
        """Whether it may be carried out. Empty: it may; else why not, for the model. Raises StoreError.

        What is refused by right is written down; what waits for a word is written down by whoever gets it.
        """
        name = hand.spec.name
        permit = ruled(name, hand.permit, self._config.rules)
        if call.is_recovered:
            where.trust.foreign = where.trust.foreign or name
        situation = self._build_situation(where, call, await hand.find_risk(call, where))
        verdict = decide(name, permit, situation)
        if verdict.outcome == "refused":
            await self._record_refusal(name, verdict, where)
            return f"Refused: {verdict.rule}. Nothing was done."
        if verdict.outcome == "allowed":
            return await self._record_begin(hand, call, where)
        refusal = await self._approvals.request_approval(
            Wanted(
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
                least_role=least(situation),
                foreign=bool(situation.foreign),
            )
        )
        if refusal:
            return refusal
        now = decide(name, ruled(name, hand.permit, self._config.rules), self._build_situation(where, call, ""))
        if now.outcome == "refused":  # somebody was blocked, or lost a role, while it was waited for
            await self._record_refusal(name, now, where)
            return f"Refused: {now.rule}. Nothing was done."
        return await self._record_begin(hand, call, where)

    async def _record_begin(self, hand: Hand, call: ToolCall, where: Whereabouts) -> str:
        """Write down what may change something outside before it does, so that no crash has it done twice unawares.

        Not empty: another turn had begun the same there, and did not end.
        """
        if not acts(hand):
            return ""
        digest = hashlib.sha256(named(call).encode("utf-8", "surrogatepass")).hexdigest()
        fact = ToolBegun(turn=where.turn, agent=where.agent, tool=hand.spec.name, arguments=digest)
        place = where.at.conversation
        before = await begun_before(self._store, place, fact)
        await self._store.append([Entry(fact=fact, at=self._clock.now(), conversation=place)])
        return BEGUN if before else ""

    def _build_situation(self, where: Whereabouts, call: ToolCall, risk: str) -> Situation:
        seen = where.trust.label
        return Situation(
            roles=[self._effective_role(asker, where.at) for asker in where.requesters],
            unasked_role=weakest([self._config.unasked_role, *where.reminder_roles, seen.role]),
            overheard_roles=(*where.overheard_roles, *where.reminder_roles, seen.role),
            is_private=where.visibility.is_private,
            foreign=seen.foreign,
            is_recovered=call.is_recovered,
            risk=risk,
        )

    def _effective_role(self, asker: Asker, at: Address) -> str:
        """The weaker of what somebody was when they spoke and what they are now."""
        return weakest([standing(asker.role, verified=asker.verified), role_now(self._access_policy, at, asker)])

    async def _record_refusal(self, name: str, verdict: Verdict, where: Whereabouts) -> None:
        logger.info("%s: %s is refused: %s", where.turn, name, verdict.rule)
        fact = ToolRefused(turn=where.turn, agent=where.agent, tool=name, role=verdict.role, rule=verdict.rule)
        await self._store.append([Entry(fact=fact, at=self._clock.now(), conversation=where.at.conversation)])


def role_now(who: access.Policy, at: Address, asker: Asker) -> access.Role:
    """What somebody who spoke there is by now. Pure."""
    ranks, is_bot = asker.ranks, asker.is_bot
    sender = Sender(id=asker.id, name=asker.name, verified=asker.verified, ranks=ranks, is_bot=is_bot)
    return access.role_of(who, at, sender)


def least(now: Situation) -> str:
    """The least role of those whose words are behind a call."""
    return weakest([*(now.roles or [now.unasked_role]), *now.overheard_roles])


def acts(hand: Hand) -> bool:
    """Whether it may change something outside that only an admin may have changed."""
    return hand.spec.is_task and not hand.spec.is_parallel and hand.permit.role in ("admin", "owner")
