"""Whether to read a prefix only so that it stays cached. Pure: the caller sends the request, if any.

A refresh costs one read of all that is in front of it, and a few of them save, if the conversation comes back while
they last, what writing again costs more than reading, of what would be gone by then. They never cost more together
than losing it does: whatever comes, it is paid for twice at most. The budget is money that may be spent for this; its
default is none, because an idle gateway must cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import NamedTuple

from agent.cache.ask import PlannedRequest, calibrate_block
from agent.cache.cadence import Cadence
from agent.cache.lifetimes import CacheMultipliers, is_hour_cheaper
from agent.cache.marks import MAX_BREAKPOINTS
from agent.cache.plan import plan_reread
from agent.cache.prices import Price
from agent.cache.warmth import LIFETIME_S, CachedUntil
from agent.models.base import CacheBreakpoint, ToolCall
from agent.tokens.meter import TokenEstimate
from gateway.events import CacheTtl, Usage

REFRESH_MARGIN_S = 10.0
"""Before the end: as long as a request may take to arrive."""


_MIN_SAVING_RATIO = 2.0
"""What is expected to be saved, against what it surely costs: the odds are estimates, and money spent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConversation:
    """What of a conversation is cached while nobody asks."""

    conversation: str
    refresh_tokens: int
    """That a refresh would read."""
    expiring_tokens: int
    """Of these, what is gone at `until_s`; what is in front of it lives longer."""
    max_billed_tokens: int
    """Tokens that a refresh could be billed for."""
    lifetime: CacheTtl
    """Of what is mortal."""
    last_request_s: float
    """When it was last really asked for."""
    expires_s: float
    """When the first of it will be gone (`Warmth.lasting`)."""


class CacheRefresh(NamedTuple):
    """A refresh that is worth its money."""

    at_s: float
    max_cost_usd: float
    """What it costs if the provider has lost everything, and writes it for an hour."""


def plan_refresh(
    resting: IdleConversation, cadence: Cadence, price: Price, *, budget_usd: float = 0.0, lengthens: bool = True
) -> CacheRefresh | None:
    """Return when to read it again, a little before it is gone; None: let it go.

    `lengthens`: what is not cached may be written for an hour. Ask anew after each refresh and after each request:
    the longer nobody came, the less likely it pays.
    """
    lasts_s = LIFETIME_S[resting.lifetime]
    most_usd = price.input_cost_usd(
        Usage(cache_write_tokens=resting.max_billed_tokens, cache_write_1h_tokens=resting.max_billed_tokens)
    )
    if most_usd is None or not 0.0 < most_usd <= budget_usd or resting.refresh_tokens < price.minimum_tokens:
        return None
    costs = CacheMultipliers(price.read, price.write_5m, price.write_1h)
    odds = cadence.odds(resting.conversation)
    if lengthens and resting.lifetime == "5m" and is_hour_cheaper(odds.kept, odds.written, costs):
        return None  # once it is gone it will be written for an hour, which it could not be as long as it lives
    idle_s = max(0.0, resting.expires_s - resting.last_request_s)
    saved, costs_now = (
        resting.expiring_tokens * (price.write_multiplier(resting.lifetime) - price.read),
        resting.refresh_tokens * price.read,
    )
    most = int(saved / costs_now - idle_s / lasts_s) if costs_now else 0
    chance = refreshes = 0.0
    for number in range(1, most + 1):
        refreshes += 1.0 - chance  # this one is sent only if nobody has come until then
        chance = cadence.return_probability(resting.conversation, idle_s, number * (lasts_s - REFRESH_MARGIN_S))
        if chance * saved > _MIN_SAVING_RATIO * refreshes * costs_now:
            return CacheRefresh(resting.expires_s - REFRESH_MARGIN_S, most_usd)
    return None


def find_idle_conversation(ask: PlannedRequest, lasting: Sequence[CachedUntil]) -> IdleConversation | None:
    """Say what is cached of the last request of a conversation. None: nothing that could be read by itself."""
    place = _last_cached_segment(ask, lasting)
    if place is None or ask.cleared_tokens:  # of a shorter request the provider would leave out something else
        return None
    unit, until_s = lasting[place].prefix.segment, lasting[place].expires_s
    longer = [one.prefix.segment for one in lasting[:place] if one.expires_s > until_s]
    tokens, kept = _billed_tokens(ask, unit + 1), _billed_tokens(ask, longer[-1] + 1 if longer else 0)
    return IdleConversation(
        conversation=ask.request.conversation_id,
        refresh_tokens=tokens,
        expiring_tokens=tokens - kept,
        max_billed_tokens=max(tokens, ask.billed_tokens),
        lifetime=lasting[place].prefix.lifetime,
        last_request_s=ask.sent_at_s,
        expires_s=until_s,
    )


def build_refresh_request(ask: PlannedRequest, lasting: Sequence[CachedUntil], at_s: float) -> PlannedRequest | None:
    """Make of a conversation's last request one that reads what is cached of it, and answers nothing.

    The same bytes and the same marks, up to the last cached place. None: there is none.
    """
    place = _last_cached_segment(ask, lasting)
    if place is None:
        return None
    cached, request = lasting[place].prefix, ask.request
    laid = ask.segments[: cached.segment + 1]
    last, places = laid[-1], {(unit.behind, unit.number) for unit in laid}
    marks = [mark for mark in request.breakpoints if (mark.behind, mark.index) in places]
    if not marks or (marks[-1].behind, marks[-1].index) != (last.behind, last.number):
        lifetime = "5m" if marks and marks[-1].lifetime == "5m" else cached.lifetime  # 1 h in front of 5 m
        marks = [
            *marks[: MAX_BREAKPOINTS - 1],
            CacheBreakpoint(behind=last.behind, index=last.number, lifetime=lifetime),
        ]
    blocks = len(request.blocks) if last.behind == "said" else last.number + 1 if last.behind == "block" else 0
    planned, estimate = plan_reread(laid, tuple(marks)), _billed_estimate(ask)
    return replace(
        ask,
        request=replace(
            request,
            blocks=request.blocks[:blocks],
            conversation=request.conversation[: last.number + 1] if last.behind == "said" else (),
            aside="",
            now="",
            answer_only=False,  # else nothing of the messages would be read
            breakpoints=planned.breakpoints,
            max_output_tokens=0,
        ),
        segments=laid,
        digests=ask.digests[: cached.segment + 1],
        plan=replace(planned, blocks=tuple([calibrate_block(block, estimate) for block in planned.blocks])),
        estimate=estimate,
        sent_at_s=at_s,
    )


def _last_cached_segment(ask: PlannedRequest, lasting: Sequence[CachedUntil]) -> int | None:
    """Return which of the cached places is the last that a request can end at."""
    for place in range(len(lasting) - 1, -1, -1):
        unit = ask.segments[lasting[place].prefix.segment]
        said = ask.request.conversation[unit.number].parts if unit.behind == "said" else ()
        # Calls without their results are refused.
        if unit.takes_breakpoint and not any(isinstance(part, ToolCall) for part in said):
            return place
    return None


def _billed_tokens(ask: PlannedRequest, units: int) -> int:
    """Return how many these first units have, as they will be billed."""
    return _billed_estimate(ask).correct(sum(unit.tokens for unit in ask.segments[:units]))


def _billed_estimate(ask: PlannedRequest) -> TokenEstimate:
    """The estimate as it should have been."""
    return replace(ask.estimate, tokens=ask.billed_tokens) if ask.billed_tokens else ask.estimate


@dataclass(slots=True)
class KeepWarmBudget:
    """What each agent has spent on this today."""

    _today: date = date.min
    _spent: dict[str, float] = field(default_factory=dict)

    def remaining_usd(self, agent: str, today: date, budget_usd: float) -> float:
        """Return what is left of its budget. Days are UTC's."""
        if today != self._today:
            self._today, self._spent = today, {}
        return max(0.0, budget_usd - self._spent.get(agent, 0.0))

    def spend(self, agent: str, usd: float) -> None:
        """Take it out; less than nothing puts back what was taken out today."""
        self._spent[agent] = max(0.0, self._spent.get(agent, 0.0) + usd)
