"""Models of the agents: built from the settings when needed, shared, cached, metered, and closed
when unused.

- `open_model_services` is the entry point; `ModelServices` is what it yields.
- `ModelPool` builds each model once (`AgentModel`: with fallbacks and summarizer) and closes it
  when nothing holds it.
- `TokenCounters` estimate requests before they are sent. Counting bytes is enough where nothing
  depends on the last percent, because every bill corrects it. The tokenizer takes 27 MB once it is
  loaded, so it is used only for prompts that begin to fill their window, unless the operator asks
  for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

from agent.cache.plan import CachePolicy, CacheProfile
from agent.cache.prices import PriceTable
from agent.cache.prompt_cache import CacheWarmer, PromptCache
from agent.cache.state import LIFETIME_S, Cadence
from agent.models.base import Model, ModelRequest
from agent.models.client import Candidate
from agent.models.config import CacheFactory, build_model, fallback_chain
from agent.models.settings import ModelConfig, ProviderSettings
from agent.tokens.counter import OfflineCounter, RequestMeter, TokenEstimate, TokenMeter
from agent.tokens.endpoint import EndpointCounter
from agent.workspace.cache import WorkspaceCache
from gateway.config.loader import ConfigError
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.config.source import ConfigProblem, format_key
from gateway.core.clock import Clock
from gateway.core.facts import TurnRecord
from gateway.core.frozen import frozen
from gateway.store import StoreReader

logger = logging.getLogger("reverie.cache")


CADENCE_TURNS = 1_000
"""Newest turns that are read: about twenty of each of fifty conversations."""


@frozen(eq=False)
class AgentModel:
    """Model in the form that one agent uses."""

    name: str
    model: Model
    """With its fallbacks."""
    candidates: Sequence[Candidate]
    """All that may answer, first those of `model`, in their order."""
    summarizer: Model | None
    """Model for summaries of conversations. None: `model`."""
    caches: frozenset[PromptCache]
    """Prompt caches of all that may answer."""

    @property
    def primary(self) -> Model:
        """Model without its fallbacks."""
        return self.candidates[0].model

    @property
    def cache(self) -> PromptCache | None:
        """Prompt cache of `primary`. None: it has none."""
        return self.candidates[0].cache

    def ceiling_usd(self, request: ModelRequest) -> float:
        """Return the highest possible cost of a request in US dollars, whichever model answers."""
        return max([cache.max_cost_usd(request) for cache in self.caches], default=0.0)


_ModelKey = tuple[str, ModelConfig, ProviderSettings]
"""Name in `llm.models`, configuration without its fallbacks, and its provider."""


class ModelPool:
    """All models of a gateway. Everything happens on the event loop."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        make_cache: CacheFactory,
        warmer: CacheWarmer,
        *,
        override: Model | None = None,
    ) -> None:
        """Raises ConfigError. `make_cache`: see `build_model`. `warmer` keeps the caches of models
        warm as long as these are used.

        `override`: model of every agent, in place of the configured one.
        """
        self._clock = clock
        self._make_cache = make_cache
        self._override = override
        self._warmer = warmer
        self._closing = set[asyncio.Task[None]]()
        self._pool: dict[_ModelKey, Candidate] = {}
        self._holds: dict[AgentModel, int] = {}
        self._settings = settings
        self._agent_models: dict[tuple[str, str], AgentModel] = {}
        self._summarizer: tuple[Model | None, Sequence[Candidate]]
        """Model for summaries, and all models that may answer in its place. None: each agent's
        own."""
        self._summarizer, self._agent_models = self._build_all(settings)

    @property
    def caches(self) -> list[PromptCache]:
        """Prompt caches of all models."""
        return [one.cache for one in self._pool.values() if one.cache is not None]

    def set_prices(self, prices: PriceTable) -> None:
        """Apply a price table that was read again."""
        for (_, config, provider), one in self._pool.items():
            if one.cache is not None:
                price = provider.find_price(prices, config)
                one.cache.dialect = replace(one.cache.dialect, price=price)

    def get(self, agent: str, name: str) -> AgentModel:
        """Return an agent's model by its key in `llm.models`. It is built on first use, without
        IO. Raises ConfigError.
        """
        if (agent, name) not in self._agent_models:
            self._agent_models[agent, name] = self._build_agent_model(
                self._settings, self._summarizer, agent, name
            )
        return self._agent_models[agent, name]

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Prepare new settings, as a `gateway.config.reload.ChangeListener`. Raises ConfigError.

        From then on `get` returns new models where the configuration differs.
        """
        summarizer, agent_models = self._build_all(new)

        def apply() -> None:
            self._settings, self._summarizer, self._agent_models = new, summarizer, agent_models
            self.close_unused()

        return apply

    @contextlib.contextmanager
    def holding(self, agent_model: AgentModel) -> Iterator[AgentModel]:
        """Keep a model open inside the `with` block, whatever the settings say."""
        self.hold(agent_model)
        try:
            yield agent_model
        finally:
            self.release(agent_model)

    def hold(self, agent_model: AgentModel) -> None:
        """Keep a model open until `release`."""
        self._holds[agent_model] = self._holds.get(agent_model, 0) + 1

    def release(self, agent_model: AgentModel) -> None:
        """Release a model; once for each `hold`."""
        self._holds[agent_model] -= 1
        if not self._holds[agent_model]:
            del self._holds[agent_model]
            self.close_unused()

    def close_unused(self) -> None:
        """Close what nothing uses any more."""
        used = {id(one.model) for one in self._summarizer[1]}
        used |= {
            id(one.model)
            for agent_model in (*self._agent_models.values(), *self._holds)
            for one in agent_model.candidates
        }
        for key, (model, cache, _) in list(self._pool.items()):
            if id(model) not in used:
                del self._pool[key]
                if cache is not None:
                    self._warmer.forget(cache)
                self.close_later(model.aclose())

    def close_later(self, closing: Coroutine[None, None, None]) -> None:
        """Close in the background what nothing uses any more. Returns at once."""
        self._closing.add(task := asyncio.create_task(_close_quietly(closing)))
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all models, and return once everything is closed."""
        for model in (*[one.model for one in self._pool.values()], self._override):
            if model is not None:
                await model.aclose()
        if self._closing:
            await asyncio.wait(self._closing)

    def _build_all(
        self, settings: Settings
    ) -> tuple[tuple[Model | None, Sequence[Candidate]], dict[tuple[str, str], AgentModel]]:
        """Return the summarizer and each agent's configured model; others are built on demand."""
        names = [(agent.id, agent.model) for agent in settings.agents]
        for _, name in names:  # before the summarizer, which shares models of the agents
            if self._override is None:
                self._build_chain(settings, name)
        summarizer: tuple[Model | None, Sequence[Candidate]] = None, ()
        if wanted := settings.llm.context_optimization.compaction.summarizer_model:
            summarizer = self._build_chain(settings, wanted)
        return summarizer, {
            (agent, name): self._build_agent_model(settings, summarizer, agent, name)
            for agent, name in names
        }

    def _build_agent_model(
        self,
        settings: Settings,
        summarizer: tuple[Model | None, Sequence[Candidate]],
        agent: str,
        name: str,
    ) -> AgentModel:
        if self._override is None:
            model, chain = self._build_chain(settings, name)
        else:
            model, chain = self._override, [Candidate(self._override)]
        candidates, before = (*chain, *summarizer[1]), self._agent_models.get((agent, name))
        if before is not None and candidates == before.candidates:
            return before
        return AgentModel(
            name=name,
            model=model,
            candidates=candidates,
            summarizer=summarizer[0],
            caches=frozenset(one.cache for one in candidates if one.cache is not None),
        )

    def _build_chain(self, settings: Settings, name: str) -> tuple[Model, Sequence[Candidate]]:
        """Return the model with its fallbacks, and the list of these. Raises ConfigError for a
        model that its provider cannot make.
        """
        llm = settings.llm
        names = fallback_chain(name, llm.models)
        keys = dict[str, _ModelKey]()
        for key in names:
            config = llm.models[key]
            bare = config.model_copy(update={"fallbacks": ()})
            keys[key] = key, bare, llm.providers[config.provider]
        built = {
            key: self._pool[model_key] for key, model_key in keys.items() if model_key in self._pool
        }
        try:
            model = build_model(
                name,
                llm.models,
                llm.providers,
                self._clock,
                made=built,
                cache=self._make_cache,
            )
        except (ImportError, ValueError) as error:
            key = format_key(("llm", "models", next(one for one in names if one not in built)))
            raise ConfigError((ConfigProblem("", 0, key, str(error)),)) from error
        self._pool |= {model_key: built[key] for key, model_key in keys.items()}
        return model, [built[key] for key in names]


async def _close_quietly(closing: Coroutine[None, None, None]) -> None:
    try:
        await closing
    except Exception:  # a bug in an adapter that nobody uses any more
        logger.exception("closing what is not used any more broke")


class TokenCounters:
    """Token counters of one gateway: a cascade for each model.

    The provider's own counter where it has one; else, and from the first outage of it on, cl100k,
    which is loaded when it is first needed. Bytes are counted where no prompt is measured by a
    tokenizer: with `token_counter` off, and until cl100k is loaded.
    """

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self.live = live
        self._clock = clock
        self._tokenizer = OfflineCounter()
        self.fine, self.rough = TokenMeter(self._tokenizer), TokenMeter()
        self._endpoints: dict[tuple[str, ProviderSettings, int], EndpointCounter | None] = {}
        """By key of the provider, its configuration, and the size of the cache. None: it cannot
        count."""

    def gauge(self, name: str, config: ModelConfig, provider: ProviderSettings) -> RequestMeter:
        """Return the counter for one model, which its provider calls `name`."""
        return _ModelGauge(self, name, config.provider, provider)

    def endpoint(self, key: str, provider: ProviderSettings) -> EndpointCounter | None:
        """Return the counter that asks this provider.

        None: the settings do not want it, or the provider cannot count.
        """
        settings = self.live.optimization.token_counter
        if not settings.enabled or settings.backend == "tiktoken":
            return None
        endpoint_key = key, provider, settings.cache_capacity
        if endpoint_key not in self._endpoints:
            self._endpoints[endpoint_key] = provider.make_counter(
                self._clock, settings.cache_capacity
            )
        return self._endpoints[endpoint_key]

    def take_unused(self, providers: Mapping[str, ProviderSettings]) -> list[EndpointCounter]:
        """Remove and return the counters that these providers do not use; the caller closes
        them.
        """
        capacity = self.live.optimization.token_counter.cache_capacity
        unused = [
            one for one in self._endpoints if one != (one[0], providers.get(one[0]), capacity)
        ]
        popped = [self._endpoints.pop(one) for one in unused]
        return [one for one in popped if one is not None]

    async def aclose(self) -> None:
        """Stop counting and loading."""
        for endpoint in self._endpoints.values():
            if endpoint is not None:
                await endpoint.aclose()
        self._tokenizer.close()


class _ModelGauge:
    def __init__(
        self,
        counters: TokenCounters,
        name: str,
        key: str,
        provider: ProviderSettings,
    ) -> None:
        self._counting = counters
        self._name = name
        self._key = key
        self._provider = provider
        self._found_for: object = None
        """The settings for which the provider's own counter was looked up."""
        self._found: EndpointCounter | None = None
        self._counted_requests: dict[str, ModelRequest] = {}
        """The one request by agent that the provider was asked to count: its prefix is the same in
        all others."""

    @property
    def _endpoint(self) -> EndpointCounter | None:
        settings = self._counting.live.optimization
        if settings is not self._found_for:
            found = self._counting.endpoint(self._key, self._provider)
            self._found_for, self._found = settings, found
        return self._found

    def estimate(self, model: str, request: ModelRequest) -> tuple[TokenMeter, TokenEstimate]:
        counters, endpoint = self._counting, self._endpoint
        is_enabled = "token_counter" in counters.live.enabled[request.shared_key]
        is_counted = endpoint is not None and endpoint.is_exact
        meter = counters.fine if is_enabled and not is_counted else counters.rough
        estimate = meter.estimate(model, request)
        if is_enabled and endpoint is not None and request.shared_key not in self._counted_requests:
            self._counted_requests[request.shared_key] = request
            endpoint.request_count(
                endpoint.write(request, self._name),
                lambda tokens: meter.record_count(estimate, tokens),
            )
        return meter, estimate

    def is_exact(self, request: ModelRequest) -> bool:
        counted, endpoint = self._counted_requests.get(request.shared_key), self._endpoint
        if endpoint is None or counted is None or counted.conversation is not request.conversation:
            return False
        return (
            endpoint.is_exact
            and endpoint.get_count(endpoint.write(counted, self._name)) is not None
        )


class ModelServices:
    """Services that the models of all agents share."""

    def __init__(
        self,
        live: LiveSettings,
        pool: ModelPool,
        workspaces: WorkspaceCache,
        counters: TokenCounters,
        keep_warm: CacheWarmer,
    ) -> None:
        self.live = live
        self.pool = pool
        self.workspaces = workspaces
        self.keep_warm = keep_warm
        self._counters = counters

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Apply new settings to models, prices and workspaces, as a
        `gateway.config.reload.ChangeListener`.
        """
        apply_pool, workspace_config = (
            self.pool.prepare(new),
            new.llm.context_optimization.workspace_cache,
        )

        def apply() -> None:
            apply_pool()
            self.pool.set_prices(self.live.prices)
            self.workspaces.reconfigure(
                watch_debounce_ms=workspace_config.watch_debounce_ms,
                max_age_seconds=workspace_config.max_age_seconds,
            )
            for endpoint in self._counters.take_unused(new.llm.providers):
                self.pool.close_later(endpoint.aclose())

        return apply

    async def aclose(self) -> None:
        """Close all of them."""
        await self.pool.aclose()
        await self._counters.aclose()

    async def restore_cadences(self, reader: StoreReader) -> None:
        """Restore from the log how often each conversation makes requests, as it was known before a
        restart.
        """
        cadences = {agent.id: Cadence() for agent in self.live.settings.agents}
        for one in await reader.newest_entries(CADENCE_TURNS, kinds=["turn_ended"]):
            if isinstance(one.fact, TurnRecord) and one.conversation is not None:
                cadence = cadences.setdefault(one.fact.agent, Cadence())
                for _ in range(one.fact.requests):  # each of them counted before the restart
                    cadence.observe_request(
                        one.conversation, one.at.timestamp(), one.fact.own_tokens
                    )
        for cache in self.pool.caches:
            for agent, cadence in cadences.items():
                cache.restore_cadence(agent, deepcopy(cadence))


@contextlib.asynccontextmanager
async def open_model_services(
    live: LiveSettings, clock: Clock, *, model: Model | None
) -> AsyncIterator[ModelServices]:
    """Open the models and their services, and close them at the end. Raises PriceTableError,
    and ConfigError for a model that its provider cannot make.

    `model`: for all agents, in place of the configured ones. Later changes of the settings apply.
    """
    workspace_config = live.optimization.workspace_cache
    workspaces = WorkspaceCache(
        clock,
        watch_debounce_ms=workspace_config.watch_debounce_ms,
        max_age_seconds=workspace_config.max_age_seconds,
    )
    counters = TokenCounters(live, clock)
    warmer = CacheWarmer(clock, budget_usd=lambda: live.optimization.prompt_cache.keep_warm_usd)
    make_cache = _build_cache_factory(clock, live, counters, warmer)
    live.prices  # noqa: B018 - read now, so that a broken table ends the start
    pool = ModelPool(live.settings, clock, make_cache, warmer, override=model)
    services = ModelServices(live, pool, workspaces, counters, warmer)
    live.on_change(services.prepare)
    try:
        yield services
    finally:
        await services.aclose()


def _build_cache_factory(
    clock: Clock, live: LiveSettings, counters: TokenCounters, warmer: CacheWarmer
) -> CacheFactory:

    def policy(providers: frozenset[str], agent_id: str) -> CachePolicy:
        config = live.optimization.prompt_cache
        if "prompt_cache" not in live.enabled[agent_id]:
            return CachePolicy(kind="off")
        return CachePolicy(
            kind=config.policy,
            allows_hour=config.long_ttl >= LIFETIME_S["1h"]
            and not providers.isdisjoint(config.long_ttl_providers),
            short_lifetime="1h" if config.short_ttl >= LIFETIME_S["1h"] else "5m",
            keeps_warm=config.keep_warm_usd > 0,
        )

    def make_cache(
        model: Model, config: ModelConfig, provider: ProviderSettings
    ) -> PromptCache | None:
        if not provider.is_metered:
            return None
        name = config.name or provider.kind
        price = provider.find_price(live.prices, config)
        if not price.known:
            logger.warning(
                "%s is not in prices.yaml: cost and caching are taken from `default` there", name
            )
        caching = provider.traits(config.name or "").caching
        return PromptCache(
            model,
            CacheProfile(provider=provider.kind, model=name, price=price, caching=caching),
            clock=clock,
            gauge=counters.gauge(name, config, provider),
            policy=partial(policy, frozenset({provider.kind, config.provider})),
            warmer=warmer if provider.keeps_warm else None,
        )

    return make_cache
