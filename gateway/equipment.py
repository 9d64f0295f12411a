"""What the agents of a gateway think with: models whose caches are looked after, workspaces, and their switches."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agent.cache.cadence import Cadence
from agent.cache.dialect import CacheProfile
from agent.cache.keeper import CachingModel
from agent.cache.plan import CachePolicy
from agent.cache.prices import PriceTable
from agent.cache.warmer import CacheWarmer
from agent.cache.warmth import LIFETIME_S
from agent.models.base import Model
from agent.models.config import AnthropicConfig, ModelConfig, ProviderConfig, ScriptedConfig, takes_breakpoints
from agent.workspace.cache import WorkspaceCache
from gateway.clock import Clock
from gateway.counting import TokenCounters
from gateway.live import LiveSettings
from gateway.records import TurnRecord
from gateway.settings import Settings
from gateway.store import StoreReader
from gateway.thinkers import AgentModel, ClosingTasks, ModelPool

logger = logging.getLogger("reverie.cache")

_CACHING: Mapping[str, Literal["marks", "automatic", "none"]] = {
    "openai": "automatic",
    "llamacpp": "automatic",
    "local": "automatic",
}


CADENCE_TURNS = 1_000
"""Newest turns that are looked at: some twenty of each of fifty conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServices:
    """Everything that is shared by the agents' minds."""

    pool: ModelPool
    workspaces: WorkspaceCache
    live: LiveSettings
    keep_warm: CacheWarmer

    def agent_model(self, agent: str, name: str) -> AgentModel:
        """What an agent thinks with under this key of `llm.models`, as the settings say by now. Hold it to use it."""
        return self.pool.get(agent, name)

    @property
    def prices(self) -> PriceTable:
        """By now."""
        return self.live.prices

    @property
    def caching_models(self) -> Sequence[CachingModel]:
        """Of all models that there are."""
        return self.pool.caching_models

    async def restore_cadences(self, reader: StoreReader) -> None:
        """Learn from the log how often each conversation is asked in, as it was known before a restart."""
        habits: dict[str, Cadence] = {}
        for one in await reader.newest_entries(CADENCE_TURNS, kinds=["turn_ended"]):
            if isinstance(one.fact, TurnRecord) and one.fact.requests and one.conversation is not None:
                habits.setdefault(one.fact.agent, Cadence()).observe_request(one.conversation, one.at.timestamp())
        for keeper in self.caching_models:
            for agent, cadence in habits.items():
                keeper.restore_cadence(agent, Cadence.restore(cadence.dump()))


@contextlib.asynccontextmanager
async def open_model_services(live: LiveSettings, clock: Clock, *, model: Model | None) -> AsyncIterator[ModelServices]:
    """Get everything ready, and put it away at the end. `model`: for all agents, instead of those in the settings.

    What the settings say meanwhile counts from then on. Raises BadPrices.
    """
    said = live.optimization.workspace_cache
    workspaces = WorkspaceCache(clock, watch_debounce_ms=said.watch_debounce_ms, max_age_seconds=said.max_age_seconds)
    counting = TokenCounters(live, clock)
    warmer = CacheWarmer(clock, budget_usd=lambda: live.optimization.prompt_cache.keep_warm_usd)
    around = _CachingWrapper(clock, live, counting, warmer)
    live.prices  # noqa: B018 - read now, so that a broken table ends the start
    endings = ClosingTasks()
    thinkers = ModelPool(live.settings, clock, around, instead=model, gone=around.forget_model, endings=endings)
    live.add_listener(_ModelSettingsListener(live, thinkers, workspaces, counting, endings))
    try:
        yield ModelServices(pool=thinkers, workspaces=workspaces, live=live, keep_warm=warmer)
    finally:
        await thinkers.aclose()
        await workspaces.aclose()
        await counting.aclose()
        await endings.aclose()


class _ModelSettingsListener:
    """Puts in force what the settings say of it."""

    def __init__(
        self,
        live: LiveSettings,
        thinkers: ModelPool,
        workspaces: WorkspaceCache,
        counting: TokenCounters,
        endings: ClosingTasks,
    ) -> None:
        self._live = live
        self._pool = thinkers
        self._workspaces = workspaces
        self._counters = counting
        self._closing = endings

    def prepare(self, new: Settings) -> Callable[[], None]:
        put_thinkers, said = self._pool.prepare(new), new.llm.context_optimization.workspace_cache

        def put() -> None:
            put_thinkers()
            for keeper in self._pool.caching_models:
                price = self._live.prices.find(keeper.dialect.model, provider=keeper.dialect.provider)
                keeper.dialect = replace(keeper.dialect, price=price)
            self._workspaces.reconfigure(watch_debounce_ms=said.watch_debounce_ms, max_age_seconds=said.max_age_seconds)
            for endpoint in self._counters.take_unused(new.llm.providers):
                self._closing.start(endpoint.aclose())

        return put


class _CachingWrapper:
    """Puts a keeper around each single model (`agent.models.build.ModelWrapper`)."""

    def __init__(self, clock: Clock, live: LiveSettings, counting: TokenCounters, warmer: CacheWarmer) -> None:
        self._clock = clock
        self._live = live
        self._counters = counting
        self._warmer = warmer

    def forget_model(self, model: Model) -> None:
        """Nobody thinks with it any more."""
        if isinstance(model, CachingModel):
            self._warmer.forget_model(model)

    def __call__(self, model: Model, config: ModelConfig, provider: ProviderConfig) -> Model:
        if isinstance(provider, ScriptedConfig):
            return model
        name = config.name or provider.kind
        price = self._live.prices.find(name, provider=provider.kind)
        if not price.known:
            logger.warning("%s is not in prices.yaml: cost and caching are taken from `default` there", name)
        caching = "marks" if takes_breakpoints(config, provider) else _CACHING.get(provider.kind, "none")
        dialect = CacheProfile(provider=provider.kind, model=name, price=price, caching=caching)
        return CachingModel(
            model,
            dialect,
            clock=self._clock,
            gauge=self._counters.gauge(name, config, provider),
            policy=partial(self._policy, frozenset({provider.kind, config.provider})),
            rests=self._warmer.on_idle if isinstance(provider, AnthropicConfig) else None,
        )

    def _policy(self, provider: frozenset[str], agent_id: str) -> CachePolicy:
        said = self._live.optimization.prompt_cache
        if not self._live.enabled_optimizations(agent_id).prompt_cache:
            return CachePolicy(kind="off")
        long = said.long_ttl >= LIFETIME_S["1h"] and not provider.isdisjoint(said.long_ttl_providers)
        return CachePolicy(
            kind=said.policy, allows_hour=long, short_lifetime="1h" if said.short_ttl >= LIFETIME_S["1h"] else "5m"
        )
