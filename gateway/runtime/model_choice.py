"""Model choice: which model each agent uses (`/model`). A choice survives restarts, until it is
reset.

A choice is a fact; whoever appended it, each process uses the model from the next turn on, which
waits until it has started. If it cannot be started the choice is taken back by another fact, with
the post that says so.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agent.models.base import ModelError
from channels.aio import cancel_and_wait
from gateway.config.models import Settings
from gateway.core.events import Address, ConversationId, MessageId, Post, PostKey
from gateway.core.facts import (
    ModelSelected,
    PostQueued,
    RoomAssigned,
    Seq,
    inner_conversation,
)
from gateway.core.i18n import _
from gateway.core.text_safety import PLACE_CHARS, inline_code
from gateway.runtime.agent import Agent
from gateway.runtime.agents import Agents
from gateway.runtime.models import AgentModel, ModelServices
from gateway.store import LogEntry, NewEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact, done
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.choosing")

GATEWAY_NAME = "reverie"
"""Author of choices that are taken back."""


class ModelSelector:
    """Chooses models, for all agents."""

    def __init__(
        self,
        gateway: GatewayHandle,
        agents: Agents,
        models: ModelServices,
        chosen: Mapping[str, str],
    ) -> None:
        """`chosen`: choices at the start."""
        self._agents, self._models = agents, models
        self._live, self._store, self._clock = gateway.live, gateway.store, gateway.clock
        self._tasks, self._bindings = gateway.tasks, gateway.places.bindings
        self._notices = gateway.notices
        self._chosen = dict(chosen)
        """Choices by agent."""
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
            self.tell_gone()

        return apply

    def tell_gone(self) -> None:
        """Tell owners, once each, of choices for rooms whose agent or model is not configured any
        more: the configured one answers there.
        """
        known = {*self._agents.by_id, *self._live.settings.llm.models, ""}
        for room, chosen in self._bindings.chosen.items():
            for name in {chosen.agent, chosen.model} - known:
                text = partial(_render_gone, room, name)
                self._notices.tell(f"room_assigned:{room}:{name}", text)

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

    def choose(
        self, name: str, at: Address, *, by: str, reply_to: MessageId | None = None
    ) -> CommandEffect:
        """Plan to use another model for the agent that answers there. The effect's answer is for
        the author.

        `name`: a key of `llm.models`; empty: the configured one. `by`: author, for people.
        `reply_to`: message that a later post replies to.
        """
        agent = self._agents.agent_for(at.conversation)
        before, model = self._chosen.get(agent.id, ""), name or self._configured_model(agent.id)
        if before == name and agent.agent_model.name == model:
            return done(_("`{agent}` already uses `{model}`.").format(agent=agent.id, model=model))
        fact = ModelSelected(agent=agent.id, model=name, by=by)
        check = partial(self._check, agent, fact, before, at=at, reply_to=reply_to)
        return done(
            _("`{agent}` uses `{model}` from its next answer on.").format(
                agent=agent.id, model=model
            ),
            EffectFact(fact, inner_conversation(agent.id)),
            then=lambda seq: self._start_task(check(seq=seq)),
        )

    def choose_for_room(
        self,
        at: Address,
        words: str,
        *,
        by: str,
        agent: str | None = None,
        model: str | None = None,
        reply_to: MessageId | None = None,
    ) -> CommandEffect:
        """Plan to have another agent or model answer in a room and its threads, and to answer with
        these words. None: as before; empty: as configured.

        A model that cannot be started is taken back, as by `choose`.
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
        check = partial(self._check_room, fact, before, at=at, reply_to=reply_to)
        return done(
            words,
            EffectFact(fact, at.conversation),
            then=(lambda seq: self._start_task(check(seq=seq))) if model else None,
        )

    async def _check_room(
        self,
        choice: RoomAssigned,
        before: RoomAssigned,
        *,
        at: Address,
        reply_to: MessageId | None,
        seq: Seq,
    ) -> None:
        agent = self._agents.agent_for(at.conversation)
        reason = await self._find_start_problem(agent.context_for(at.conversation).model)
        if reason and self._bindings.chosen.get(choice.room.conversation) == choice:
            text = _("I cannot use `{model}`: {reason}. This room stays with the model before it.")
            text = text.format(model=choice.model, reason=_inline_code(reason))
            reversal = replace(before, by=GATEWAY_NAME)
            await self._take_back(
                reversal, at.conversation, text, at=at, reply_to=reply_to, seq=seq
            )

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
        self._running.add(task := self._tasks.create_task(work))
        return task.add_done_callback(self._running.discard)

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

    async def _check(
        self,
        agent: Agent,
        choice: ModelSelected,
        before: str,
        *,
        at: Address,
        reply_to: MessageId | None,
        seq: Seq,
    ) -> None:
        """Take the choice back if its model cannot be started, durably, with the post that says
        so. `before`: the choice before it.
        """
        chosen = agent.agent_model
        reason = await self._find_start_problem(chosen)
        if not reason or self._chosen[agent.id] != choice.model:
            return
        text = _("I cannot use `{model}`: {reason}. `{agent}` stays with `{used}`.").format(
            model=chosen.name,
            reason=_inline_code(reason),
            agent=agent.id,
            used=before or self._configured_model(agent.id),
        )
        reversal = replace(choice, model=before, by=GATEWAY_NAME)
        place = inner_conversation(agent.id)
        await self._take_back(reversal, place, text, at=at, reply_to=reply_to, seq=seq)

    async def _take_back(
        self,
        reversal: ModelSelected | RoomAssigned,
        place: ConversationId,
        text: str,
        *,
        at: Address,
        reply_to: MessageId | None,
        seq: Seq,
    ) -> None:
        """Take a choice back, with the post that says so, in one transaction."""
        now = self._clock.now()
        key = PostKey(hashlib.sha256(f"chosen:{seq}".encode()).hexdigest()[:26])
        queued = PostQueued(post=Post(key=key, to=at, text=text, reply_to=reply_to))
        await self._store.append(
            [
                NewEntry(fact=reversal, at=now, conversation=place, cause=seq),
                NewEntry(
                    fact=queued,
                    at=now,
                    conversation=at.conversation,
                    key=f"post:{key}",
                    cause=seq,
                ),
            ]
        )


def _render_gone(room: ConversationId, name: str, _to: Address | None) -> str:
    text = _("{name} was chosen for {room}, and is not configured any more: it no longer counts.")
    return text.format(room=inline_code(room, PLACE_CHARS), name=inline_code(name))


def _turn_settings_key(settings: Settings) -> object:
    """Return the settings that a turn keeps from its begin, beside its model: equal while these are
    unchanged.
    """
    agents = {one.id: one.bindings for one in settings.agents}
    return settings.tools, agents


def _inline_code(text: str) -> str:
    """Return a reason, which may hold a server's text, as one line of code that it cannot end."""
    return f"`{' '.join(text.split())[:200].replace('`', chr(39))}`"


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
