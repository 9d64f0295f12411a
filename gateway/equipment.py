"""What the agents of a gateway think with: models whose caches are looked after, workspaces, and their switches."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from agent.cache.cadence import Cadence
from agent.cache.dialect import Dialect
from agent.cache.keeper import Keeper
from agent.cache.outlook import UNKNOWN, Outlook
from agent.cache.plan import Policy
from agent.cache.prices import Prices
from agent.cache.warmer import KeepWarm
from agent.cache.warmth import LIFETIME_S
from agent.models.base import Model, Request
from agent.models.build import build_model, chain
from agent.models.config import AnthropicConfig, ModelConfig, ProviderConfig, ScriptedConfig, takes_marks
from agent.workspace.cache import WorkspaceCache
from gateway.clock import Clock
from gateway.counting import Counting
from gateway.live import Live
from gateway.price_table import price_table
from gateway.records import TurnEnded
from gateway.settings import Settings
from gateway.store import Reader

logger = logging.getLogger("reverie.cache")

_CACHING: Mapping[str, Literal["marks", "automatic", "none"]] = {
    "openai": "automatic",
    "llamacpp": "automatic",
    "local": "automatic",
}


RECALLED = 1_000
"""Newest turns that are looked at: some twenty of each of fifty conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Everything that is shared by the agents' minds."""

    models: Mapping[str, Model]
    """By the id of the agent that thinks with it."""
    workspaces: WorkspaceCache
    live: Live
    keepers: Sequence[Keeper]
    keep_warm: KeepWarm
    ceilings: Mapping[str, Callable[[Request], float]]
    """By agent: what a request may cost at most, in US dollars, whichever of its models answers."""

    outlooks: Mapping[str, Callable[[str], Outlook]]
    """By agent: what the cache of a conversation is like, of the model that it asks first."""

    summarizer: Model | None
    """Who makes summaries of conversations. None: each agent's own model."""

    async def recall(self, reader: Reader) -> None:
        """Learn from the log how often each conversation is asked in, as it was known before a restart."""
        habits: dict[str, Cadence] = {}
        for one in await reader.newest(RECALLED, kinds=["turn_ended"]):
            if isinstance(one.fact, TurnEnded) and one.fact.requests and one.conversation is not None:
                habits.setdefault(one.fact.agent, Cadence()).asked(one.conversation, one.at.timestamp())
        for keeper in self.keepers:
            for agent, cadence in habits.items():
                keeper.restore(agent, Cadence.restore(cadence.state()))


@contextlib.asynccontextmanager
async def equip(settings: Settings, clock: Clock, live: Live, *, model: Model | None) -> AsyncIterator[Equipment]:
    """Get everything ready, and put it away at the end. `model`: for all agents, instead of those in the settings.

    Raises BadPrices.
    """
    said = live.optimization
    workspaces = WorkspaceCache(
        clock,
        watch_debounce_ms=said.workspace_cache.watch_debounce_ms,
        max_age_seconds=said.workspace_cache.max_age_seconds,
    )
    counting = Counting(live, clock)
    warmer = KeepWarm(clock, budget_usd=lambda: live.optimization.prompt_cache.keep_warm_usd, look=live.refresh)
    around = _Around(clock, live, price_table(live.directory), counting, warmer)
    made: dict[str, Model] = {}
    llm, keeping = settings.llm, said.folds.keep_recent_tool_results if said.folds.provider_side == "clear" else None
    built = partial(build_model, clock=clock, made=made, clear_keeping=keeping, around=around)
    models = {agent.id: model or built(agent.model, llm.models, llm.providers) for agent in settings.agents}
    name = live.optimization.compaction.summarizer_model
    summarizer = build_model(name, llm.models, llm.providers, clock, made=made, around=around) if name else None
    keepers = {name: one for name, one in made.items() if isinstance(one, Keeper)}
    others = chain(name, llm.models) if name else ()
    ceilings = {
        agent.id: partial(
            _ceiling, [keepers[one] for one in (*chain(agent.model, llm.models), *others) if one in keepers]
        )
        for agent in settings.agents
    }
    outlooks: dict[str, Callable[[str], Outlook]] = {
        agent.id: partial(keepers[agent.model].outlook, agent.id) if agent.model in keepers else _unknown
        for agent in settings.agents
    }
    try:
        yield Equipment(
            models=models,
            workspaces=workspaces,
            live=live,
            keepers=tuple(around.keepers),
            keep_warm=warmer,
            ceilings=ceilings,
            outlooks=outlooks,
            summarizer=summarizer,
        )
    finally:
        for one in {id(one): one for one in (*models.values(), summarizer) if one is not None}.values():
            await one.aclose()
        await workspaces.aclose()
        await counting.aclose()


def _ceiling(keepers: Sequence[Keeper], request: Request) -> float:
    return max((keeper.ceiling_usd(request) for keeper in keepers), default=0.0)


def _unknown(_place: str) -> Outlook:
    return UNKNOWN


class _Around:
    """Puts a keeper around each single model (`agent.models.build.Around`)."""

    def __init__(self, clock: Clock, live: Live, prices: Prices, counting: Counting, warmer: KeepWarm) -> None:
        self._clock = clock
        self._live = live
        self._prices = prices
        self._counting = counting
        self._warmer = warmer
        self.keepers: list[Keeper] = []

    def __call__(self, model: Model, config: ModelConfig, provider: ProviderConfig) -> Model:
        if isinstance(provider, ScriptedConfig):
            return model
        name = config.name or provider.kind
        price = self._prices.of(name, provider=provider.kind)
        if not price.known:
            logger.warning("%s is not in prices.yaml: cost and caching are taken from `default` there", name)
        caching = "marks" if takes_marks(config, provider) else _CACHING.get(provider.kind, "none")
        dialect = Dialect(provider=provider.kind, model=name, price=price, caching=caching)
        keeper = Keeper(
            model,
            dialect,
            clock=self._clock,
            gauge=self._counting.gauge(name, config, provider),
            policy=partial(self._policy, frozenset({provider.kind, config.provider})),
            rests=self._warmer.rests if isinstance(provider, AnthropicConfig) else None,
        )
        self.keepers.append(keeper)
        return keeper

    def _policy(self, provider: frozenset[str], agent_id: str) -> Policy:
        said = self._live.optimization.prompt_cache
        if not self._live.switches(agent_id).prompt_cache:
            return Policy(kind="off")
        long = said.long_ttl >= LIFETIME_S["1h"] and not provider.isdisjoint(said.long_ttl_providers)
        return Policy(kind=said.policy, long=long, short="1h" if said.short_ttl >= LIFETIME_S["1h"] else "5m")
