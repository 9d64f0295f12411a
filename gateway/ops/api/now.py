"""What the gateway is doing just now: its standing, its channels, the agents' networks."""

from dataclasses import asdict
from datetime import UTC, timedelta

from gateway.events import Usage
from gateway.ledger import read_share
from gateway.ops.api.asks import ApiQuery, HoursQuery
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.shapes import (
    ChannelList,
    ChannelStatus,
    DmnHistory,
    DmnModeChange,
    DmnStatusList,
    GatewayStatus,
    TurnInProgress,
    UsageTotals,
)

MAX_MODES = 2_000
"""Of one answer, the newest."""


def token_fields(usage: Usage, cost_usd: float) -> dict[str, float]:
    """As `Tokens` has them."""
    return {
        "input_tokens": usage.input_tokens,
        "read_tokens": usage.cache_read_tokens,
        "written_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": cost_usd,
    }


async def get_status(desk: ApiBackend, _query: ApiQuery) -> GatewayStatus:
    """The gateway as a whole."""
    house, now = desk.services, desk.services.clock.now().astimezone(UTC)
    seen = house.stats.snapshot()
    spent = await (await desk.open_reader()).spending_sums("all", since=now.date().isoformat())
    usage = sum((one.usage for one in spent), Usage())
    return GatewayStatus(
        version=house.version,
        started=seen.started,
        now=now,
        ready=seen.is_ready,
        model=house.describe_model(),
        agents=tuple(house.list_minds()),
        today=UsageTotals(
            requests=sum(one.requests for one in spent),
            read_share=read_share(usage),
            **token_fields(usage, sum(one.cost_usd for one in spent)),
        ),
        activity=tuple(
            TurnInProgress(
                turn=one.turn,
                agent=one.agent,
                conversation=one.conversation,
                since=one.since,
                tool=next(reversed(one.tools.values()), ""),
            )
            for one in house.turn_tracker.running
        ),
    )


async def list_channels(desk: ApiBackend, _query: ApiQuery) -> ChannelList:
    """Every account's connection."""
    return ChannelList(channels=tuple(ChannelStatus(**asdict(one)) for one in desk.services.stats.snapshot().channels))


async def list_minds(desk: ApiBackend, _query: ApiQuery) -> DmnStatusList:
    """Each agent's Default Mode Network."""
    return DmnStatusList(agents=tuple(desk.services.list_minds()))


async def get_dmn_history(desk: ApiBackend, query: HoursQuery) -> DmnHistory:
    """When which agent entered which mode."""
    since = desk.services.clock.now() - timedelta(hours=query.hours)
    modes, states = dict[str, str](), list[DmnModeChange]()
    for at, agent, mode in await (await desk.open_reader()).dmn_modes(since):
        if modes.get(agent) != mode:
            states.append(DmnModeChange(at=at, agent=agent, mode=mode))
        modes[agent] = mode
    return DmnHistory(states=tuple(states[-MAX_MODES:]))
