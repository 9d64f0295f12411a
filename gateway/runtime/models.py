"""The models that agents think with, as the settings say by now.

Made when they are needed, shared, and closed once nothing uses them any more.

What the agents of a gateway think with: models whose caches are looked after, workspaces, and their switches.

How large requests are before they are sent: which counter is used for which agent and model, and when.

Bytes are enough where nothing depends on the last percent, because every bill corrects them. The tokenizer takes 27 MB
once it is loaded, so it is, unless the operator asks for it, only for prompts that begin to fill their window.

The day's money of one agent's autonomous turns: a request is made only if it can be paid, whatever it costs.

What is spent is known only afterwards, so each request is taken for as dear as it may get until its turn has ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from agent.cache.client import CachingModel
from agent.cache.keep_warm import CacheWarmer
from agent.cache.plan import UNKNOWN_FORECAST, CacheForecast, CachePolicy, CacheProfile
from agent.cache.prices import PriceTable
from agent.cache.state import LIFETIME_S, Cadence
from agent.models.anthropic_wire import build_anthropic_request
from agent.models.base import Model, ModelRequest
from agent.models.config import (
    AnthropicConfig,
    ModelConfig,
    ModelWrapper,
    ProviderConfig,
    ScriptedConfig,
    build_model,
    context_tokens_of,
    fallback_chain,
    takes_breakpoints,
)
from agent.tokens.calibration import RequestMeter, TokenEstimate, TokenMeter
from agent.tokens.counter import OfflineCounter
from agent.tokens.endpoint import EndpointCounter, build_counter
from agent.workspace.cache import WorkspaceCache
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.core.facts import TurnRecord
from gateway.core.media_types import identify_image
from gateway.store import StoreReader

LARGE_SHARE = 0.25
"""Of a model's window: of a prompt beyond that it matters how large it is."""


class TokenCounters:
    """The counters of one gateway."""

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._tokenizer, self._bytes = OfflineCounter(), OfflineCounter()
        self._bytes.close()  # it never loads anything
        self.fine, self.rough = (
            TokenMeter(self._tokenizer, look=identify_image),
            TokenMeter(self._bytes, look=identify_image),
        )
        self._endpoints: dict[_EndpointKey, EndpointCounter] = {}

    @property
    def live(self) -> LiveSettings:
        """What the operator wants by now."""
        return self._live

    def gauge(self, name: str, config: ModelConfig, provider: ProviderConfig) -> RequestMeter:
        """For one model, which its provider calls `name`."""
        return _ModelGauge(self, name, context_tokens_of(config, provider), config.provider, provider)

    def endpoint(self, key: str, provider: ProviderConfig) -> EndpointCounter | None:
        """What asks this provider to count, if the operator wants that by now and it can."""
        said = self._live.optimization.token_counter
        if not said.enabled or said.backend == "tiktoken" or not isinstance(provider, AnthropicConfig):
            return None
        asked = _EndpointKey(key, provider, said.cache_capacity)
        if asked not in self._endpoints:
            counter = build_counter(
                said.backend, provider, self._tokenizer, capacity=said.cache_capacity, clock=self._clock
            )
            assert isinstance(counter, EndpointCounter)
            self._endpoints[asked] = counter
        return self._endpoints[asked]

    def take_unused(self, providers: Mapping[str, ProviderConfig]) -> list[EndpointCounter]:
        """Those that nobody asks any more if these are the providers, by now; they are to be closed."""
        capacity = self._live.optimization.token_counter.cache_capacity
        gone = [one for one in self._endpoints if one != (one.key, providers.get(one.key), capacity)]
        return [self._endpoints.pop(one) for one in gone]

    async def aclose(self) -> None:
        """Stop asking and loading."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()
        self._tokenizer.close()


class _EndpointKey(NamedTuple):
    """Who is asked to count, and how much of that is remembered."""

    key: str
    provider: AnthropicConfig
    capacity: int


class _ModelGauge:
    """`agent.cache.keeper.Gauge` for one model."""

    def __init__(
        self, counting: TokenCounters, name: str, window_tokens: int, key: str, provider: ProviderConfig
    ) -> None:
        self._counting = counting
        self._name = name
        self._window_tokens = window_tokens
        self._key = key
        self._provider = provider
        self._counted_requests: dict[str, ModelRequest] = {}
        """By agent, the one request that the provider was asked to count: its prefix is the same in all others."""

    @property
    def _endpoint(self) -> EndpointCounter | None:
        return self._counting.endpoint(self._key, self._provider)

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None
    ) -> tuple[TokenMeter, TokenEstimate]:
        counting, live = self._counting, self._counting.live
        rough = counting.rough.estimate(model, request, before)
        if not live.enabled_optimizations(request.shared_key).token_counter:
            return counting.rough, rough
        meter, estimate = counting.rough, rough
        wanted = live.optimization.token_counter.backend == "tiktoken"
        endpoint = self._endpoint
        counted = endpoint is not None and endpoint.is_exact
        if wanted or (not counted and rough.tokens > LARGE_SHARE * self._window_tokens):
            meter, estimate = counting.fine, counting.fine.estimate(model, request, before)
        if endpoint is not None and request.shared_key not in self._counted_requests:
            self._counted_requests[request.shared_key] = request
            endpoint.request_count(self._body(request), lambda tokens: meter.record_count(estimate, tokens))
        return meter, estimate

    def is_exact(self, request: ModelRequest) -> bool:
        asked, endpoint = self._counted_requests.get(request.shared_key), self._endpoint
        if endpoint is None or asked is None or asked.conversation is not request.conversation:
            return False
        return endpoint.is_exact and endpoint.get_count(self._body(asked)) is not None

    def _body(self, request: ModelRequest) -> dict[str, object]:
        return build_anthropic_request(request, model=self._name).body


logger = logging.getLogger("reverie.cache")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentModel:
    """A model as one agent thinks with it."""

    name: str
    """A key of `llm.models`."""
    model: Model
    """With its fallbacks behind it."""
    primary: Model
    """Without them."""
    ceiling_usd: Callable[[ModelRequest], float]
    """What a request may cost at most, in US dollars, whichever of its models answers."""
    outlook: Callable[[str], CacheForecast]
    """What the cache of a conversation is like, of the model that is asked first."""
    caching_models: frozenset[CachingModel]
    """Of all that may answer."""
    models: Sequence[Model]
    """All that may answer, first those of `model`, in their order."""
    summarizer: Model | None
    """Who makes summaries of conversations. None: `model`."""


class ClosingTasks:
    """What is closed while everything else goes on."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[None]]()

    def start(self, closing: Coroutine[None, None, None]) -> None:
        """Returns at once."""
        self._tasks.add(task := asyncio.create_task(self._close(closing)))
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Return once all of it is closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _close(self, closing: Coroutine[None, None, None]) -> None:
        try:
            await closing
        except Exception:  # a bug in an adapter, of what nobody uses any more
            logger.exception("closing what is not used any more broke")


class _ModelKey(NamedTuple):
    """What one model is made of: the same recipe, the same model."""

    name: str
    config: ModelConfig
    """Without its fallbacks."""
    provider: ProviderConfig
    clear_keeping: int | None
    """As `build_model` has it, of providers that can."""


class _ModelSettings(NamedTuple):
    """What the settings say of models."""

    models: Mapping[str, ModelConfig]
    providers: Mapping[str, ProviderConfig]
    clear_keeping: int | None
    summarizer: str

    @classmethod
    def from_settings(cls, settings: Settings) -> "_ModelSettings":
        llm, folds = settings.llm, settings.llm.context_optimization.folds
        keeping = folds.keep_recent_tool_results if folds.provider_side == "clear" else None
        return cls(llm.models, llm.providers, keeping, llm.context_optimization.compaction.summarizer_model)


class _SummarizerModels(NamedTuple):
    model: Model | None = None
    models: Sequence[Model] = ()


class ModelPool:
    """All of them. Everything happens on the event loop."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        around: ModelWrapper,
        *,
        instead: Model | None = None,
        gone: Callable[[Model], None] = lambda _: None,
        endings: "ClosingTasks",
    ) -> None:
        """`around`: as `build_model` has it. `gone` is called with each model that nothing uses any more.

        `instead`: with it each agent thinks, instead of the model that the settings name now.
        """
        self._clock = clock
        self._wrap = around
        self._overrides = {agent.id: (agent.model, instead) for agent in settings.agents} if instead is not None else {}
        self._on_unused = gone
        self._closing = endings
        self._pool: dict[_ModelKey, Model] = {}
        self._holds: dict[AgentModel, int] = {}
        self._settings = _ModelSettings.from_settings(settings)
        self._agent_models: dict[tuple[str, str], AgentModel] = {}
        self._summarizer, self._agent_models = self._build_all(self._settings, settings)

    @property
    def caching_models(self) -> list[CachingModel]:
        """Of all models that there are."""
        return [one for one in self._pool.values() if isinstance(one, CachingModel)]

    def get(self, agent: str, name: str) -> AgentModel:
        """By an agent's id and a key of `llm.models`: made when it is first asked for, without IO."""
        if (agent, name) not in self._agent_models:
            self._agent_models[agent, name] = self._build_agent_model(self._settings, self._summarizer, agent, name)
        return self._agent_models[agent, name]

    def prepare(self, new: Settings) -> Callable[[], None]:
        """As `gateway.config.reload.SettingsListener`.

        From then on `of` gives others, where theirs is another recipe.
        """
        said = _ModelSettings.from_settings(new)
        summarizer, made = self._build_all(said, new)

        def put() -> None:
            self._settings, self._summarizer, self._agent_models = said, summarizer, made
            self.close_unused()

        return put

    @contextlib.contextmanager
    def holding(self, thinker: AgentModel) -> Iterator[AgentModel]:
        """What it is made of stays open meanwhile, whatever the settings say."""
        self.hold(thinker)
        try:
            yield thinker
        finally:
            self.release(thinker)

    def hold(self, thinker: AgentModel) -> None:
        """The same, until `let_go`."""
        self._holds[thinker] = self._holds.get(thinker, 0) + 1

    def release(self, thinker: AgentModel) -> None:
        """Once for each `hold`."""
        self._holds[thinker] -= 1
        if not self._holds[thinker]:
            del self._holds[thinker]
            self.close_unused()

    def close_unused(self) -> None:
        """Close what nothing uses any more."""
        used = {id(one) for one in self._summarizer.models}
        used |= {id(one) for thinker in (*self._agent_models.values(), *self._holds) for one in thinker.models}
        for recipe, model in list(self._pool.items()):
            if id(model) not in used:
                del self._pool[recipe]
                self._on_unused(model)
                self._closing.start(model.aclose())

    async def aclose(self) -> None:
        """Close all of them."""
        instead = {id(model): model for _, model in self._overrides.values()}
        for model in (*self._pool.values(), *instead.values()):
            await model.aclose()

    def _build_all(
        self, said: _ModelSettings, settings: Settings
    ) -> tuple[_SummarizerModels, dict[tuple[str, str], AgentModel]]:
        """What each agent thinks with, by the settings; other names are made when they are asked for."""
        names = [(agent.id, agent.model) for agent in settings.agents]
        for agent, name in names:  # before the summarizer, which shares what they think with as they do
            if name not in self._overrides.get(agent, ()):
                self._build_chain(said, name, said.clear_keeping)
        summarizer = _SummarizerModels()
        if said.summarizer:
            keeping = (
                said.clear_keeping
                if any(said.summarizer in fallback_chain(name, said.models) for _, name in names)
                else None
            )
            summarizer = _SummarizerModels(*self._build_chain(said, said.summarizer, keeping))
        return summarizer, {
            (agent, name): self._build_agent_model(said, summarizer, agent, name) for agent, name in names
        }

    def _build_agent_model(
        self, said: _ModelSettings, summarizer: _SummarizerModels, agent: str, name: str
    ) -> AgentModel:
        known, instead = self._overrides.get(agent, ("", None))
        if instead is None or known != name:
            model, singles = self._build_chain(said, name, said.clear_keeping)
        else:
            model, singles = instead, [instead]
        whole, before = (*singles, *summarizer.models), self._agent_models.get((agent, name))
        if before is not None and [*map(id, whole)] == [*map(id, before.models)]:
            return before
        keepers = [one for one in whole if isinstance(one, CachingModel)]
        first = singles[0]
        return AgentModel(
            name=name,
            model=model,
            primary=first,
            ceiling_usd=partial(_max_ceiling_usd, keepers),
            outlook=partial(first.forecast, agent) if isinstance(first, CachingModel) else _unknown_outlook,
            caching_models=frozenset(keepers),
            models=whole,
            summarizer=summarizer.model,
        )

    def _build_chain(self, said: _ModelSettings, name: str, keeping: int | None) -> tuple[Model, Sequence[Model]]:
        """The model with its fallbacks, and all of these, each of which is there once."""
        names = fallback_chain(name, said.models)
        recipes = {key: _model_key(said, key, keeping) for key in names}
        made = {key: self._pool[recipe] for key, recipe in recipes.items() if recipe in self._pool}
        model = build_model(
            name, said.models, said.providers, self._clock, made=made, clear_keeping=keeping, around=self._wrap
        )
        self._pool |= {recipe: made[key] for key, recipe in recipes.items()}
        return model, [made[key] for key in names]


def _model_key(said: _ModelSettings, name: str, keeping: int | None) -> _ModelKey:
    config = said.models[name]
    provider = said.providers[config.provider]
    clears = keeping if isinstance(provider, AnthropicConfig) else None
    return _ModelKey(name, config.model_copy(update={"fallbacks": ()}), provider, clears)


def _max_ceiling_usd(keepers: Sequence[CachingModel], request: ModelRequest) -> float:
    return max((keeper.max_cost_usd(request) for keeper in keepers), default=0.0)


def _unknown_outlook(_place: str) -> CacheForecast:
    return UNKNOWN_FORECAST


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
    """Puts a keeper around each single model (`agent.models.config.ModelWrapper`)."""

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


class DailyBudget:
    """One for each agent."""

    def __init__(self, *, left_usd: Callable[[], float]) -> None:
        """`left_usd`: of today's money, without the turns that run now."""
        self._left_usd = left_usd
        self._reserved: dict[str, float] = {}
        """By conversation, for the requests of the turn that runs there."""

    def reserve(self, request: ModelRequest, cost_usd: float) -> bool:
        """Whether one more request can be paid that may cost so much; if so, that is set aside until `settle`."""
        if cost_usd > 0 and sum(self._reserved.values()) + cost_usd > self._left_usd():
            return False
        self._reserved[request.conversation_id] = self._reserved.get(request.conversation_id, 0.0) + cost_usd
        return True

    def settle(self, conversation: ConversationId) -> None:
        """The turn there has ended, and what it cost is counted elsewhere now."""
        self._reserved.pop(conversation, None)
