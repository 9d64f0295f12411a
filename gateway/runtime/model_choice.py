"""Which model each agent thinks with: `/model`. What was chosen holds over restarts, until it is reset.

The choice is durable with the command. Then the model is made ready, while turns are taken with the one before; the
first turn that begins after that is taken with it. If it cannot be made ready the choice is taken back, durably, with
the post that says so.

What `gateway.runtime.model_choice` is asked, and what it needs of agents.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agent.models.base import ModelError, ModelUnusable
from agent.models.config import context_tokens_of, output_tokens_of, takes_images
from channels.aio import cancel_and_wait
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, MessageId, Post, PostKey
from gateway.core.facts import ModelSelected, PostQueued, Seq, inner_conversation
from gateway.runtime.models import AgentModel, ModelServices
from gateway.store import AppendResult, NewEntry, OutboxPost, Store
from gateway.store.effects import CommandEffect, EffectFact


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoiceRequest:
    """Somebody wants an agent to think with another model."""

    name: str
    """A key of `llm.models`. Empty: what the configuration says."""
    at: Address
    """Where that was said: it is about whoever answers there."""
    by: str
    """Who, for people."""
    reply_to: MessageId | None = None
    """What is told later is a reply to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredModel:
    """A model that is configured. Nothing of it is secret."""

    name: str
    provider: str
    kind: str
    model_name: str
    """By its provider. Empty: it has one only."""
    context_tokens: int
    max_output_tokens: int
    has_price: bool
    """What it costs is known."""
    takes_images: bool
    fallbacks: tuple[str, ...]
    used_by: tuple[str, ...]
    """By which agents."""


class ModelChoiceAgent(Protocol):
    """What is needed of an agent: `gateway.runtime.agent.Agent`."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def agent_model(self) -> AgentModel:
        """What its next turn is taken with."""

    def use_model(self, thinker: AgentModel) -> None:
        """From the next turn on."""

    async def warm_up(self) -> None:
        """Have a local model read in what all conversations begin with. Raises nothing."""


class ModelChoiceAgents(Protocol):
    """What is needed of all: `gateway.runtime.agents.Agents`."""

    def agent_for(self, conversation: ConversationId) -> ModelChoiceAgent:
        """Whose it is."""

    @property
    def agents(self) -> Sequence[ModelChoiceAgent]:
        """Each agent."""


logger = logging.getLogger("reverie.choosing")

NOTIFY_AFTER_S = 5.0
"""Whoever chose a model that is ready later than that is told so."""
GATEWAY_NAME = "reverie"
"""Who takes back what cannot be."""
NOT_CONFIGURED = "it is not configured any more"


class _PendingChoice(NamedTuple):
    """Somebody has chosen."""

    agent: ModelChoiceAgent
    request: ModelChoiceRequest
    model_name: str
    """What that is now."""
    seq: Seq
    """Of the command."""
    number: int
    """Among those about this agent."""


class ModelSelector:
    """For all agents."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: Store,
        clock: Clock,
        equipment: ModelServices,
        minds: ModelChoiceAgents,
        chosen: Mapping[str, str],
        post: Callable[[OutboxPost], None],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`chosen`: what held at the start. `post` is called with what is said, after it is durable.

        `spawn` starts a task whose failure stops all.
        """
        self._live = live
        self._store = store
        self._clock = clock
        self._model_services = equipment
        self._agents = minds
        self._chosen = dict(chosen)
        """By agent: what holds, also if it is not ready yet."""
        self._post = post
        self._spawn = spawn
        self._choice_counts: dict[str, int] = {}
        """By agent: how many words came; the newest counts."""
        self._in_progress = Counter[str]()
        """By agent: how many of them are being carried out."""
        self._tasks = set[asyncio.Task[None]]()
        self._closed = False

    def agent_id_for(self, conversation: ConversationId) -> str:
        """Whose it is."""
        return self._agents.agent_for(conversation).id

    def wanted_model(self, agent: str) -> str:
        """A key of `llm.models`: what the agent thinks with as soon as that is ready."""
        chosen = self._chosen.get(agent, "")
        return chosen if chosen in self._live.settings.llm.models else self._configured_model(agent)

    def apply_settings(self, mind: ModelChoiceAgent, *, all_of_it: bool) -> None:
        """The settings are others: it goes on with what they say of its model, from its next turn on. Returns at once.

        `all_of_it`: also if it is the same model. What is just being made ready is taken when it is.
        """
        name = self.wanted_model(mind.id)
        if self._in_progress[mind.id] and mind.agent_model.name in self._live.settings.llm.models:
            name = mind.agent_model.name
        thinker = self._model_services.agent_model(mind.id, name)
        other = thinker is not mind.agent_model
        if other or all_of_it:
            mind.use_model(thinker)
        if other:
            logger.info("%s thinks with %s from its next turn on", mind.id, thinker.primary.label)
            self._start_task(self._start_and_warm_up(mind, thinker))

    def list_models(self) -> list[ConfiguredModel]:
        """All that is configured, in that order."""
        llm, found = self._live.settings.llm, list[ConfiguredModel]()
        for name, model in llm.models.items():
            provider = llm.providers[model.provider]
            price = self._model_services.prices.find(model.name or provider.kind, provider=provider.kind)
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
                    used_by=tuple(mind.id for mind in self._agents.agents if mind.agent_model.name == name),
                )
            )
        return found

    def choose(self, wish: ModelChoiceRequest) -> CommandEffect:
        """Decide; `name` is one of `listed`, or empty. The change's words are for whoever wants more said."""
        mind = self._agents.agent_for(wish.at.conversation)
        held, name = self._chosen.get(mind.id, ""), wish.name or self._configured_model(mind.id)
        if held == wish.name and mind.agent_model.name == name:
            return CommandEffect(answer=f"`{mind.id}` thinks with `{name}` already.")
        fact = EffectFact(ModelSelected(agent=mind.id, model=wish.name, by=wish.by), inner_conversation(mind.id))
        return CommandEffect(
            answer=f"`{mind.id}` thinks with `{name}` from its next turn on.",
            facts=(fact,),
            settle=lambda asked: self._settle(mind, wish, asked),
        )

    async def close(self) -> None:
        """Leave off what was begun, and begin nothing more: the next start takes it up."""
        self._closed = True
        await cancel_and_wait(*self._tasks)

    def _configured_model(self, agent: str) -> str:
        return next(one.model for one in self._live.settings.agents if one.id == agent)

    def _settle(self, mind: ModelChoiceAgent, wish: ModelChoiceRequest, asked: AppendResult | None) -> None:
        if asked is None or not asked.is_new:
            return
        self._chosen[mind.id] = wish.name
        number = self._choice_counts[mind.id] = self._choice_counts.get(mind.id, 0) + 1
        logger.info("%s is to think with %s, by %s", mind.id, self.wanted_model(mind.id), wish.by)
        if not self._closed:
            word = _PendingChoice(mind, wish, self.wanted_model(mind.id), asked.seq, number)
            self._in_progress[mind.id] += 1
            self._start_task(self._carry_out(word))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            return work.close()
        self._tasks.add(task := self._spawn(work))
        return task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, word: "_PendingChoice") -> None:
        try:
            await self._change(word)
        finally:
            self._in_progress[word.agent.id] -= 1

    async def _change(self, word: "_PendingChoice") -> None:
        began_s = self._clock.monotonic()
        try:
            await self._start_model(word)
        except ModelError as error:
            return await self._take_back(word, error.reason)
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", word.model_name)
            return await self._take_back(word, "internal error")
        await self._model_services.restore_cadences(self._store)
        if not self._is_newest(word):
            return None
        if word.model_name not in self._live.settings.llm.models:
            return await self._take_back(word, NOT_CONFIGURED)
        word.agent.use_model(self._model_services.agent_model(word.agent.id, word.model_name))
        if self._clock.monotonic() - began_s > NOTIFY_AFTER_S:
            await self._post_reply(
                word, f"`{word.model_name}` is ready: `{word.agent.id}` thinks with it from its next turn on."
            )
        return await word.agent.warm_up()

    async def _start_model(self, word: "_PendingChoice") -> None:
        """Make it ready, as the settings say by then. Raises ModelError."""
        thinker: AgentModel | None = None
        while True:
            if word.model_name not in self._live.settings.llm.models:
                raise ModelUnusable(NOT_CONFIGURED)
            if thinker is (thinker := self._model_services.agent_model(word.agent.id, word.model_name)):
                return
            with self._model_services.pool.holding(thinker):
                await thinker.primary.start()

    async def _start_and_warm_up(self, mind: ModelChoiceAgent, thinker: AgentModel) -> None:
        """It is used already: whoever speaks first waits for it, or is told."""
        try:
            with self._model_services.pool.holding(thinker):
                await thinker.primary.start()
        except ModelError as error:
            logger.error("the model %s is not usable: %s", thinker.primary.label, error.reason)  # noqa: TRY400 - no bug
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", thinker.name)
        await self._model_services.restore_cadences(self._store)
        await mind.warm_up()

    def _is_newest(self, word: "_PendingChoice") -> bool:
        """Nobody has said something else meanwhile."""
        return word.number == self._choice_counts[word.agent.id]

    async def _take_back(self, word: "_PendingChoice", why: str) -> None:
        agent, used = word.agent.id, word.agent.agent_model.name
        logger.warning("%s is not usable: %s", word.model_name, why)
        if not self._is_newest(word):
            return
        self._chosen[agent] = "" if used == self._configured_model(agent) else used
        fact = ModelSelected(agent=agent, model=self._chosen[agent], by=GATEWAY_NAME)
        taken = NewEntry(fact=fact, at=self._clock.now(), conversation=inner_conversation(agent), cause=word.seq)
        await self._post_reply(
            word, f"`{word.model_name}` is not usable: {_inline_code(why)}. `{agent}` goes on with `{used}`.", taken
        )

    async def _post_reply(self, word: "_PendingChoice", words: str, *more: NewEntry) -> None:
        """Say it there, in one transaction with more."""
        now, wish = self._clock.now(), word.request
        key = PostKey(hashlib.sha256(f"chosen:{word.seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=wish.at, text=words, reply_to=wish.reply_to)
        place = wish.at.conversation
        queued = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{key}", cause=word.seq)
        *_, written = await self._store.append([*more, queued])
        self._post(OutboxPost(seq=written.seq, at=now, post=post, parts=()))


def _inline_code(text: str) -> str:
    """A reason in words, which may hold what a server said: one line of code that it cannot end."""
    return f"`{' '.join(text.split())[:200].replace('`', chr(39))}`"
