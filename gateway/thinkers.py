"""The models that agents think with, as the settings say by now.

Made when they are needed, shared, and closed once nothing uses them any more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from agent.cache.keeper import CachingModel
from agent.cache.outlook import UNKNOWN_FORECAST, CacheForecast
from agent.models.base import Model, ModelRequest
from agent.models.build import ModelWrapper, build_model, fallback_chain
from agent.models.config import AnthropicConfig, ModelConfig, ProviderConfig
from gateway.clock import Clock
from gateway.settings import Settings

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
        """As `gateway.live.SettingsListener`: from then on `of` gives others, where theirs is another recipe."""
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
