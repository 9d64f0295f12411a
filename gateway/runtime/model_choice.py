"""Model choice: which model each agent uses (`/model`). A choice survives restarts, until it is
reset.

The choice is durable with the command. Then the new model is started, while turns use the old one;
the first turn that begins after that uses the new one. If it cannot be started the choice is taken
back, durably, with the post that says so.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.models.base import ModelError, ModelUnusable
from agent.models.config import context_tokens_of, output_tokens_of, takes_images
from channels.aio import cancel_and_wait
from gateway.config.models import Settings
from gateway.core.events import Address, ConversationId, MessageId, Post, PostKey
from gateway.core.facts import ModelSelected, PostQueued, Seq, inner_conversation
from gateway.core.i18n import _
from gateway.runtime.agents import Agent, Agents
from gateway.runtime.models import AgentModel
from gateway.store import AppendResult, LogEntry, NewEntry
from gateway.store.effects import CommandEffect, EffectFact

logger = logging.getLogger("reverie.choosing")

NOTIFY_AFTER_S = 5.0
"""If starting a model takes longer, its readiness is posted."""
START_TIMEOUT_S = 600.0
"""Longest start of a model in another process."""
GATEWAY_NAME = "reverie"
"""Author of choices that are taken back."""
NOT_CONFIGURED = "it is not configured any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoiceRequest:
    """Request to use another model for an agent."""

    name: str
    """A key of `llm.models`. Empty: the configured model."""
    at: Address
    """Place of the command: it concerns the agent that answers there."""
    by: str
    """Author, for people."""
    reply_to: MessageId | None = None
    """Message that later posts reply to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredModel:
    """A configured model. Holds no secrets."""

    name: str
    provider: str
    kind: str
    model_name: str
    """Name at its provider. Empty: the provider has only one."""
    context_tokens: int
    max_output_tokens: int
    has_price: bool
    """Its price is known."""
    takes_images: bool
    fallbacks: tuple[str, ...]
    used_by: tuple[str, ...]
    """Ids of the agents that use it."""


class _PendingChoice(NamedTuple):
    """Choice that is being carried out."""

    agent: Agent
    request: ModelChoiceRequest
    model_name: str
    """Key of the model that it means now."""
    seq: Seq
    """Log position of the command."""
    number: int
    """Number among the choices for this agent."""


class ModelSelector:
    """Chooses models, for all agents."""

    def __init__(self, agents: Agents, chosen: Mapping[str, str]) -> None:
        """`chosen`: choices at the start."""
        self._agents = agents
        self._live = agents.live
        self._store = agents.store
        self._clock = agents.clock
        self._models = agents.models
        self._chosen = dict(chosen)
        """Valid choices by agent, also of models that are not ready yet."""
        self._choice_counts: dict[str, int] = {}
        """Number of choices by agent; the newest counts."""
        self._in_progress = Counter[str]()
        """Number of choices being carried out, by agent."""
        self._running = set[asyncio.Task[None]]()
        self._closed = False
        self._turn_settings = _turn_settings_key(agents.live.settings)
        agents.live.on_change(self.prepare)
        agents.store.subscribe(self._on_selected_elsewhere, ModelSelected, own=False)

    def _on_selected_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Use what was chosen in another process."""
        for entry in entries:
            fact = entry.fact
            agent = self._agents.by_id.get(fact.agent) if isinstance(fact, ModelSelected) else None
            if agent is None or not isinstance(fact, ModelSelected):
                continue
            self._chosen[agent.id] = fact.model
            number = self._choice_counts[agent.id] = self._choice_counts.get(agent.id, 0) + 1
            self._start_task(self._follow(agent, self.wanted_model(agent.id), number))

    async def _follow(self, agent: Agent, name: str, number: int) -> None:
        """Use a model that was chosen, once it is ready here. If it cannot be used, whoever chose
        it takes it back.
        """
        agent_model = self._models.pool.get(agent.id, name)
        if agent_model is agent.agent_model:
            return
        try:
            with self._models.pool.holding(agent_model):
                await agent_model.primary.start()
                if number == self._choice_counts[agent.id]:
                    agent.use_model(agent_model)
        except ModelError as error:
            logger.error(  # noqa: TRY400 - no bug
                "the model %s is not usable here: %s", agent_model.primary.label, error.reason
            )
            return
        await self._models.restore_cadences(self._store)

    def agent_id_for(self, conversation: ConversationId) -> str:
        """Return the id of the conversation's agent."""
        return self._agents.agent_for(conversation).id

    def wanted_model(self, agent: str) -> str:
        """Return the key of the model that the agent uses as soon as it is ready."""
        chosen = self._chosen.get(agent, "")
        return chosen if chosen in self._live.settings.llm.models else self._configured_model(agent)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Apply new settings (a `gateway.config.reload.ChangeListener`) from the next turn on."""
        settings_key = _turn_settings_key(new)

        def apply() -> None:
            turns_change, self._turn_settings = settings_key != self._turn_settings, settings_key
            for agent in self._agents.agents:
                self._apply_settings(agent, rebuild=turns_change)

        return apply

    def _apply_settings(self, agent: Agent, *, rebuild: bool) -> None:
        """Apply new settings to an agent's model, from its next turn on. Returns at once.

        `rebuild`: also if the model stays the same. A model that is just starting is used once it
        is ready.
        """
        name = self.wanted_model(agent.id)
        if self._in_progress[agent.id] and agent.agent_model.name in self._live.settings.llm.models:
            name = agent.agent_model.name
        agent_model = self._models.pool.get(agent.id, name)
        other = agent_model is not agent.agent_model
        if other or rebuild:
            agent.use_model(agent_model)
        if other:
            logger.info(
                "%s thinks with %s from its next turn on", agent.id, agent_model.primary.label
            )
            self._start_task(self._start_and_warm_up(agent, agent_model))

    def list_models(self) -> list[ConfiguredModel]:
        """Return all configured models, in their order."""
        llm, found = self._live.settings.llm, list[ConfiguredModel]()
        for name, model in llm.models.items():
            provider = llm.providers[model.provider]
            price = self._live.prices.find(model.name or provider.kind, provider=provider.kind)
            found.append(
                ConfiguredModel(
                    name=name,
                    provider=model.provider,
                    kind=provider.kind,
                    model_name=model.name or "",
                    context_tokens=context_tokens_of(model, provider),
                    max_output_tokens=output_tokens_of(model, provider),
                    has_price=price.known and price.is_priced,
                    takes_images=takes_images(model, provider),
                    fallbacks=model.fallbacks,
                    used_by=tuple(
                        agent.id for agent in self._agents.agents if agent.agent_model.name == name
                    ),
                )
            )
        return found

    def choose(self, request: ModelChoiceRequest) -> CommandEffect:
        """Plan a choice; `name` is a name of `list_models`, or empty. The effect's answer is for
        the author.
        """
        agent = self._agents.agent_for(request.at.conversation)
        current, name = (
            self._chosen.get(agent.id, ""),
            request.name or self._configured_model(agent.id),
        )
        if current == request.name and agent.agent_model.name == name:
            return CommandEffect(
                answer=_("`{agent}` already uses `{model}`.").format(agent=agent.id, model=name)
            )
        fact = EffectFact(
            ModelSelected(agent=agent.id, model=request.name, by=request.by),
            inner_conversation(agent.id),
        )
        return CommandEffect(
            answer=_("`{agent}` uses `{model}` from its next answer on.").format(
                agent=agent.id, model=name
            ),
            facts=(fact,),
            settle=lambda result: self._settle(agent, request, result),
        )

    async def close(self) -> None:
        """Cancel what was begun, and begin nothing more: the next start takes it up."""
        self._closed = True
        await cancel_and_wait(*self._running)

    def _configured_model(self, agent: str) -> str:
        return next(one.model for one in self._live.settings.agents if one.id == agent)

    def _settle(
        self, agent: Agent, request: ModelChoiceRequest, written: AppendResult | None
    ) -> None:
        if written is None or not written.is_new:
            return
        self._chosen[agent.id] = request.name
        number = self._choice_counts[agent.id] = self._choice_counts.get(agent.id, 0) + 1
        logger.info(
            "%s is to think with %s, by %s", agent.id, self.wanted_model(agent.id), request.by
        )
        if not self._closed:
            choice = _PendingChoice(
                agent, request, self.wanted_model(agent.id), written.seq, number
            )
            self._in_progress[agent.id] += 1
            self._start_task(self._carry_out(choice))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            return work.close()
        self._running.add(task := self._agents.tasks.create_task(work))
        return task.add_done_callback(self._running.discard)

    async def _carry_out(self, choice: _PendingChoice) -> None:
        try:
            await self._change(choice)
        finally:
            self._in_progress[choice.agent.id] -= 1

    async def _change(self, choice: _PendingChoice) -> None:
        began_s = self._clock.monotonic()
        try:
            await self._start_model(choice)
        except ModelError as error:
            return await self._take_back(choice, error.reason)
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", choice.model_name)
            return await self._take_back(choice, "internal error")
        await self._models.restore_cadences(self._store)
        if not self._is_newest(choice):
            return None
        if choice.model_name not in self._live.settings.llm.models:
            return await self._take_back(choice, NOT_CONFIGURED)
        choice.agent.use_model(self._models.pool.get(choice.agent.id, choice.model_name))
        if self._clock.monotonic() - began_s > NOTIFY_AFTER_S:
            await self._post_reply(
                choice,
                _("`{model}` is ready: `{agent}` uses it from its next answer on.").format(
                    model=choice.model_name, agent=choice.agent.id
                ),
            )
        return await choice.agent.warm_up()

    async def _start_model(self, choice: _PendingChoice) -> None:
        """Start the model, as configured by then. Raises ModelError."""
        agent_model: AgentModel | None = None
        while True:
            if choice.model_name not in self._live.settings.llm.models:
                raise ModelUnusable(NOT_CONFIGURED)
            if agent_model is (
                agent_model := self._models.pool.get(choice.agent.id, choice.model_name)
            ):
                return
            with self._models.pool.holding(agent_model):
                await agent_model.primary.start()

    async def _start_and_warm_up(self, agent: Agent, agent_model: AgentModel) -> None:
        """Start a model that is in use already: the first turn waits for it, or reports the
        error.
        """
        try:
            with self._models.pool.holding(agent_model):
                await agent_model.primary.start()
        except ModelError as error:
            logger.error("the model %s is not usable: %s", agent_model.primary.label, error.reason)  # noqa: TRY400 - no bug
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", agent_model.name)
        await self._models.restore_cadences(self._store)
        await agent.warm_up()

    def _is_newest(self, choice: _PendingChoice) -> bool:
        """Return whether no newer choice was made meanwhile."""
        return choice.number == self._choice_counts[choice.agent.id]

    async def _take_back(self, choice: _PendingChoice, why: str) -> None:
        agent, used = choice.agent.id, choice.agent.agent_model.name
        logger.warning("%s is not usable: %s", choice.model_name, why)
        if not self._is_newest(choice):
            return
        self._chosen[agent] = "" if used == self._configured_model(agent) else used
        fact = ModelSelected(agent=agent, model=self._chosen[agent], by=GATEWAY_NAME)
        reversal = NewEntry(
            fact=fact,
            at=self._clock.now(),
            conversation=inner_conversation(agent),
            cause=choice.seq,
        )
        await self._post_reply(
            choice,
            _("I cannot use `{model}`: {reason}. `{agent}` stays with `{used}`.").format(
                model=choice.model_name, reason=_inline_code(why), agent=agent, used=used
            ),
            reversal,
        )

    async def _post_reply(self, choice: _PendingChoice, text: str, *more: NewEntry) -> None:
        """Post a reply, in one transaction with `more`."""
        now, request = self._clock.now(), choice.request
        key = PostKey(hashlib.sha256(f"chosen:{choice.seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=request.at, text=text, reply_to=request.reply_to)
        place = request.at.conversation
        queued = NewEntry(
            fact=PostQueued(post=post),
            at=now,
            conversation=place,
            key=f"post:{key}",
            cause=choice.seq,
        )
        await self._store.append([*more, queued])


def _turn_settings_key(settings: Settings) -> object:
    """Return the settings that a turn keeps from its begin, beside its model: equal while these are
    unchanged.
    """
    agents = {one.id: (one.surface, one.bindings) for one in settings.agents}
    return settings.tools, settings.recall, agents


def _inline_code(text: str) -> str:
    """Return a reason, which may hold a server's text, as one line of code that it cannot end."""
    return f"`{' '.join(text.split())[:200].replace('`', chr(39))}`"
