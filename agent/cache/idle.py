"""The cache of an idle conversation: reading a prefix again only to keep it cached
(`plan_refresh`), and the state of a history's cache, for compaction (`forecast_cache`). Pure.

Refreshes: a refresh costs one read of everything in front of it. A few of them save, if a request
comes while they last, the difference between writing and reading for what would have expired. What
all conversations share is refreshed too, where refreshing a conversation does not pay. Together
they never cost more than the loss of the prefix does, so at worst it is paid for twice. The budget
is money that may be spent for this; its default is none, because an idle gateway must cost nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.cache.plan import MAX_BREAKPOINTS, CachePlan, PlannedRequest, account_blocks
from agent.cache.prices import Price
from agent.cache.state import LIFETIME_S, CachedPrefix, expected_requests, return_probability
from agent.models.base import CacheBreakpoint
from agent.tokens.counter import TokenEstimate
from gateway.core.events import CacheTtl, Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import ToolCall

REFRESH_MARGIN_S = 10.0
"""Time between a refresh and the expiry of the cache: as long as a request may take to arrive."""

_MIN_SAVING_RATIO = 2.0
"""Least expected saving as a multiple of the sure cost: the odds are estimates."""


class CacheRefresh(NamedTuple):
    """A refresh that is worth its cost."""

    at_s: float
    max_cost_usd: float
    """Cost if the provider has lost everything, and writes it for an hour."""
    lifetime: CacheTtl
    """Lifetime of what expires."""
    is_shared: bool = False
    """True: only what all conversations share is read."""


def plan_refresh(
    planned: PlannedRequest,
    lasting: Sequence[CachedPrefix],
    lengths: Sequence[float],
    price: Price,
    *,
    last_request_s: float,
    budget_usd: float,
) -> CacheRefresh | None:
    """Return when to read the cached part (`lasting`) of a conversation's last request again,
    shortly before it expires. None: let it expire, or nothing can be read by itself.

    `lengths`: expected gaps (`Cadence.lengths`). `last_request_s`: time of the last request that
    was not a refresh. Plan anew after each refresh and each request: the longer there was no
    request, the less likely a refresh pays.
    """
    place = _last_cached_segment(planned, lasting)
    if place is None:
        return None
    segment, lifetime, expires_s = lasting[place]
    longer = [cached.segment for cached in lasting[:place] if cached.expires_s > expires_s]
    tokens, kept = (
        _billed_tokens(planned, segment + 1),
        _billed_tokens(planned, longer[-1] + 1 if longer else 0),
    )
    most = max(tokens, planned.billed_tokens)
    most_usd = price.input_cost_usd(Usage(cache_write_tokens=most, cache_write_1h_tokens=most))
    if most_usd is None or not 0.0 < most_usd <= budget_usd or tokens < price.minimum_tokens:
        return None
    idle_s, lasts_s = max(0.0, expires_s - last_request_s), LIFETIME_S[lifetime]
    saved, costs_now = (
        (tokens - kept) * (price.write_multiplier(lifetime) - price.read),
        tokens * price.read,
    )
    chance = refreshes = 0.0
    for number in range(1, int(saved / costs_now - idle_s / lasts_s) + 1 if costs_now else 1):
        refreshes += 1.0 - chance  # this one is sent only if there was no request until then
        chance = return_probability(lengths, idle_s, number * (lasts_s - REFRESH_MARGIN_S))
        if chance * saved > _MIN_SAVING_RATIO * refreshes * costs_now:
            return CacheRefresh(expires_s - REFRESH_MARGIN_S, most_usd, lifetime)
    return None


def shared_prefixes(
    planned: PlannedRequest, lasting: Sequence[CachedPrefix]
) -> tuple[CachedPrefix, ...]:
    """Return those of the cached prefixes that all conversations share."""
    return tuple([cached for cached in lasting if planned.segments[cached.segment].is_shared])


def build_refresh_request(
    planned: PlannedRequest, lasting: Sequence[CachedPrefix], at_s: float
) -> PlannedRequest | None:
    """Build a request that reads the cached part of a conversation's last request, without an
    answer.

    The same bytes and breakpoints, up to the last cached prefix. None: nothing is cached.
    """
    place = _last_cached_segment(planned, lasting)
    if place is None:
        return None
    cached, request = lasting[place], planned.request
    segments = planned.segments[: cached.segment + 1]
    last, places = segments[-1], {(segment.behind, segment.number) for segment in segments}
    breakpoints = [mark for mark in request.breakpoints if (mark.behind, mark.index) in places]
    if not breakpoints or (breakpoints[-1].behind, breakpoints[-1].index) != (
        last.behind,
        last.number,
    ):
        lifetime = (
            "5m" if breakpoints and breakpoints[-1].lifetime == "5m" else cached.lifetime
        )  # 1 h in front of 5 m
        breakpoints = [
            *breakpoints[: MAX_BREAKPOINTS - 1],
            CacheBreakpoint(behind=last.behind, index=last.number, lifetime=lifetime),
        ]
    blocks = (
        len(request.blocks)
        if last.behind == "said"
        else last.number + 1
        if last.behind == "block"
        else 0
    )
    estimate = _billed_estimate(planned)
    plan = CachePlan(
        breakpoints=tuple(breakpoints),
        read_segments=len(segments),
        writes=(),
        blocks=account_blocks(segments, len(segments), (), estimate.ratio),
    )
    return replace(
        planned,
        request=replace(
            request,
            blocks=request.blocks[:blocks],
            conversation=request.conversation[: last.number + 1] if last.behind == "said" else (),
            aside="",
            now="",
            answer_only=False,  # else nothing of the messages would be read
            breakpoints=plan.breakpoints,
            max_output_tokens=0,
        ),
        segments=segments,
        plan=plan,
        estimate=estimate,
        sent_at_s=at_s,
    )


def _last_cached_segment(planned: PlannedRequest, lasting: Sequence[CachedPrefix]) -> int | None:
    """Return the index of the last cached prefix at which a request can end."""
    for place in range(len(lasting) - 1, -1, -1):
        segment = planned.segments[lasting[place].segment]
        parts = (
            planned.request.conversation[segment.number].parts if segment.behind == "said" else ()
        )
        # Calls without their results are refused.
        if segment.takes_breakpoint and not any(isinstance(part, ToolCall) for part in parts):
            return place
    return None


def _billed_tokens(planned: PlannedRequest, count: int) -> int:
    """Return the tokens of the first `count` segments as they will be billed."""
    tokens = planned.segments[count - 1].end_tokens if count else 0
    return _billed_estimate(planned).correct(tokens)


def _billed_estimate(planned: PlannedRequest) -> TokenEstimate:
    return (
        replace(planned.estimate, tokens=planned.billed_tokens)
        if planned.billed_tokens
        else planned.estimate
    )


@frozen
class CacheForecast:
    """State of the cache of one conversation's history."""

    is_cold: bool | None
    """True: nothing of the history is cached. None: not known, without a request in this
    process."""
    read_share: float
    """Price of reading from the cache, as a share of the input price."""
    write_share: float
    """Price of writing to the cache, as a share of the input price."""
    expected_requests: float
    """Expected number of requests before a gap that the cache does not survive."""


UNKNOWN_FORECAST = CacheForecast(
    is_cold=None, read_share=1.0, write_share=1.0, expected_requests=20.0
)
"""Forecast for a model without cache management: each request costs all of its tokens."""


def forecast_cache(
    planned: PlannedRequest | None,
    cached: Sequence[CachedPrefix],
    lengths: Sequence[float],
    price: Price,
) -> CacheForecast:
    """Return the state of a conversation's cache.

    `planned`: its last request. `cached`: the cached prefixes of that. `lengths`: expected gaps
    (`Cadence.lengths`).
    """
    lifetime: CacheTtl = "5m"
    cold: bool | None = None
    if planned is not None:
        # A refresh may have kept it warm.
        cold = not cached or planned.segments[cached[-1].segment].behind != "said"
        if planned.plan.breakpoints:  # that of a tool loop may be shorter
            lifetime = planned.plan.breakpoints[-1].lifetime if cold else cached[-1].lifetime
    return CacheForecast(
        is_cold=cold,
        read_share=price.read,
        write_share=price.write_multiplier(lifetime),
        expected_requests=expected_requests(lengths, lifetime),
    )
