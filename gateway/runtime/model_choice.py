"""Model choice: which model each agent uses (`/model`). A choice survives restarts, until it is
reset.

A choice is a fact; whoever appended it, each process uses the model from the next turn on, which
waits until it has started. If it cannot be started, whoever chose it is told, and may choose again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace

from agent.models.base import ModelError
from channels.aio import cancel_and_wait
from gateway.config.models import Settings
from gateway.core.events import Address
from gateway.core.facts import (
    ModelSelected,
    RoomAssigned,
    Seq,
    inner_conversation,
)
from gateway.core.i18n import _
from gateway.core.text_safety import inline_code
from gateway.runtime.agent import Agent
from gateway.runtime.agents import Agents
from gateway.runtime.models import AgentModel, ModelServices
from gateway.runtime.turn_record import post_notice
from gateway.store import LogEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact, done
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.choosing")


class ModelSelector:
    """Chooses models, for all agents."""

    def __init__(
        self,
        gateway: GatewayHandle,
        agents: Agents,
        models: ModelServices,
        chosen: Mapping[str, str],
    ) -> None:
        self._gateway, self._agents, self._models = gateway, agents, models
        self._live, self._bindings = gateway.live, gateway.places.bindings
        self._chosen = dict(chosen)
        self._running = set[asyncio.Task[None]]()
        self._closed = False
        self._turn_settings = _turn_settings_key(gateway.live.settings)
        for agent in agents.agents:
            if chosen.get(agent.id, agent.agent_model.name) != agent.agent_model.name:
                agent.use_model(models.pool.get(agent.id, chosen[agent.id]))
        gateway.live.on_change(self.prepare)
        gateway.store.subscribe(self._on_selected, ModelSelected)

    def _on_selected(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(fact := entry.fact, ModelSelected) and fact.agent in self._agents.by_id:
                self._chosen[fact.agent] = fact.model
                self._use_wanted(self._agents.by_id[fact.agent])

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
                self._use_wanted(agent, rebuild=turns_change)

        return apply

    def _use_wanted(self, agent: Agent, *, rebuild: bool = False) -> None:
        """Use the model that is wanted now, from the agent's next turn on. Returns at once.

        `rebuild`: also if the model stays the same.
        """
        agent_model = self._models.pool.get(agent.id, self.wanted_model(agent.id))
        other = agent_model is not agent.agent_model
        if other or rebuild:
            agent.use_model(agent_model)
        if other:
            logger.info(
                "%s thinks with %s from its next turn on", agent.id, agent_model.primary.label
            )
            self._start_task(self._start_and_warm_up(agent, agent_model))

    def choose(self, name: str, at: Address, *, by: str) -> CommandEffect:
        """Plan to use another model for the agent that answers there. The effect's answer is for
        the author.

        `name`: a key of `llm.models`; empty: the configured one. `by`: author, for people.
        """
        agent = self._agents.agent_for(at.conversation)
        before, model = self._chosen.get(agent.id, ""), name or self._configured_model(agent.id)
        if before == name and agent.agent_model.name == model:
            return done(_("`{agent}` already uses `{model}`.").format(agent=agent.id, model=model))
        fact = ModelSelected(agent=agent.id, model=name, by=by)
        text = _("`{agent}` uses `{model}` from its next answer on.")
        return done(
            text.format(agent=agent.id, model=model),
            EffectFact(fact, inner_conversation(agent.id)),
            then=lambda seq: self._start_task(self._tell_unusable(model, at, seq)),
        )

    def choose_for_room(
        self,
        at: Address,
        words: str,
        *,
        by: str,
        agent: str | None = None,
        model: str | None = None,
    ) -> CommandEffect:
        """Plan to have another agent or model answer in a room and its threads, and to answer with
        these words. None: as before; empty: as configured.
        """
        room = replace(at, thread=None)
        before = self._bindings.chosen.get(room.conversation) or RoomAssigned(
            room=room, agent="", model="", by=by
        )
        fact = replace(
            before,
            agent=before.agent if agent is None else agent,
            model=before.model if model is None else model,
            by=by,
        )
        return done(
            words,
            EffectFact(fact, at.conversation),
            then=(lambda seq: self._start_task(self._tell_unusable(fact.model, at, seq)))
            if model
            else None,
        )

    async def _tell_unusable(self, name: str, at: Address, seq: Seq) -> None:
        agent = self._agents.agent_for(at.conversation)
        used = agent.agent_model, agent.context_for(at.conversation).model
        agent_model = next((one for one in used if one.name == name), None)
        if agent_model is not None and (reason := await self._find_start_problem(agent_model)):
            text = _("I cannot use `{model}`: {reason}. It stays chosen until you choose another.")
            text = text.format(
                model=name,
                reason=inline_code(" ".join(reason.replace("`", "'").split()), 200),
            )
            await post_notice(self._gateway, at, text, seq)

    async def _find_start_problem(self, agent_model: AgentModel) -> str:
        """Start a model, and return why that cannot be done. Empty: it is started."""
        try:
            with self._models.pool.holding(agent_model):
                await agent_model.primary.start()
        except ModelError as error:
            return error.reason
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", agent_model.name)
            return "internal error"
        return ""

    async def close(self) -> None:
        """Cancel what was begun, and begin nothing more: the next start takes it up."""
        self._closed = True
        await cancel_and_wait(*self._running)

    def _configured_model(self, agent: str) -> str:
        return next(one.model for one in self._live.settings.agents if one.id == agent)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            return work.close()
        self._running.add(task := self._gateway.tasks.create_task(work))
        return task.add_done_callback(self._running.discard)

    async def _start_and_warm_up(self, agent: Agent, agent_model: AgentModel) -> None:
        """Start a model that is in use already: the first turn waits for it, or reports the
        error.
        """
        if reason := await self._find_start_problem(agent_model):
            logger.error("the model %s is not usable: %s", agent_model.primary.label, reason)
        await self._models.restore_cadences(self._gateway.store)
        await agent.warm_up()


def _turn_settings_key(settings: Settings) -> object:
    """Return the settings that a turn keeps from its begin, beside its model: equal while these are
    unchanged.
    """
    agents = {one.id: one.bindings for one in settings.agents}
    return settings.tools, agents


async def load_chosen_models(reader: StoreReader, settings: Settings) -> dict[str, str]:
    """Return the chosen models that are still configured: by agent, a key of `llm.models`. Raises
    StoreError.
    """
    configured, found = {agent.id: agent.model for agent in settings.agents}, dict[str, str]()
    for one in await reader.current_facts("model_chosen"):
        fact = one.fact
        if not isinstance(fact, ModelSelected) or fact.agent not in configured:
            continue
        if fact.model in settings.llm.models:
            found[fact.agent] = fact.model
        else:
            args = fact.agent, fact.by, fact.model, configured[fact.agent]
            logger.warning(
                "%s was to think with what %s chose, %s, which is not in llm.models: %s is used",
                *args,
            )
    return found
