"""Which model each agent thinks with: `/model`. What was chosen holds over restarts, until it is reset.

The choice is durable with the command. Then the model is made ready, while turns are taken with the one before; the
first turn that begins after that is taken with it. If it cannot be made ready the choice is taken back, durably, with
the post that says so.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import NamedTuple

from agent.models.base import ModelError, Unusable
from agent.models.config import context_tokens_of, output_tokens_of, sees
from channels.tasks import end
from gateway.changes import Change, Made
from gateway.choice import Listed, Mind, Minds, Wish
from gateway.clock import Clock
from gateway.equipment import Equipment
from gateway.events import ConversationId, Post, PostKey
from gateway.live import Live
from gateway.records import ModelChosen, Queued, Seq, inner
from gateway.store import Appended, Entry, OutboxPost, Store
from gateway.thinkers import Thinker

logger = logging.getLogger("reverie.choosing")

PATIENCE_S = 5.0
"""Whoever chose a model that is ready later than that is told so."""
GATEWAY = "reverie"
"""Who takes back what cannot be."""
GONE = "it is not configured any more"


class _Word(NamedTuple):
    """Somebody has chosen."""

    mind: Mind
    wish: Wish
    name: str
    """What that is now."""
    seq: Seq
    """Of the command."""
    number: int
    """Among those about this agent."""


class Choosing:
    """For all agents."""

    def __init__(
        self,
        *,
        live: Live,
        store: Store,
        clock: Clock,
        equipment: Equipment,
        minds: Minds,
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
        self._equipment = equipment
        self._minds = minds
        self._chosen = dict(chosen)
        """By agent: what holds, also if it is not ready yet."""
        self._post = post
        self._spawn = spawn
        self._words: dict[str, int] = {}
        """By agent: how many words came; the newest counts."""
        self._changing = Counter[str]()
        """By agent: how many of them are being carried out."""
        self._tasks = set[asyncio.Task[None]]()
        self._closed = False

    def agent(self, conversation: ConversationId) -> str:
        """Whose it is."""
        return self._minds.of(conversation).id

    def wanted(self, agent: str) -> str:
        """A key of `llm.models`: what the agent thinks with as soon as that is ready."""
        chosen = self._chosen.get(agent, "")
        return chosen if chosen in self._live.settings.llm.models else self._configured(agent)

    def renew(self, mind: Mind, *, all_of_it: bool) -> None:
        """The settings are others: it goes on with what they say of its model, from its next turn on. Returns at once.

        `all_of_it`: also if it is the same model. What is just being made ready is taken when it is.
        """
        name = self.wanted(mind.id)
        if self._changing[mind.id] and mind.thinker.name in self._live.settings.llm.models:
            name = mind.thinker.name
        thinker = self._equipment.thinker(mind.id, name)
        other = thinker is not mind.thinker
        if other or all_of_it:
            mind.think_with(thinker)
        if other:
            logger.info("%s thinks with %s from its next turn on", mind.id, thinker.first.label)
            self._begin(self._warm(mind, thinker))

    def listed(self) -> list[Listed]:
        """All that is configured, in that order."""
        llm, found = self._live.settings.llm, list[Listed]()
        for name, model in llm.models.items():
            provider = llm.providers[model.provider]
            price = self._equipment.prices.of(model.name or provider.kind, provider=provider.kind)
            found.append(
                Listed(
                    name=name,
                    provider=model.provider,
                    kind=provider.kind,
                    called=model.name or "",
                    context_tokens=context_tokens_of(model, provider),
                    max_output_tokens=output_tokens_of(model, provider),
                    priced=price.known and price.priced,
                    sees=sees(model, provider),
                    fallbacks=model.fallbacks,
                    used=tuple(mind.id for mind in self._minds.all if mind.thinker.name == name),
                )
            )
        return found

    def choose(self, wish: Wish) -> Change:
        """Decide; `name` is one of `listed`, or empty. The change's words are for whoever wants more said."""
        mind = self._minds.of(wish.at.conversation)
        held, name = self._chosen.get(mind.id, ""), wish.name or self._configured(mind.id)
        if held == wish.name and mind.thinker.name == name:
            return Change(words=f"`{mind.id}` thinks with `{name}` already.")
        fact = Made(ModelChosen(agent=mind.id, model=wish.name, by=wish.by), inner(mind.id))
        return Change(
            words=f"`{mind.id}` thinks with `{name}` from its next turn on.",
            facts=(fact,),
            settle=lambda asked: self._settle(mind, wish, asked),
        )

    async def close(self) -> None:
        """Leave off what was begun, and begin nothing more: the next start takes it up."""
        self._closed = True
        await end(*self._tasks)

    def _configured(self, agent: str) -> str:
        return next(one.model for one in self._live.settings.agents if one.id == agent)

    def _settle(self, mind: Mind, wish: Wish, asked: Appended | None) -> None:
        if asked is None or not asked.fresh:
            return
        self._chosen[mind.id] = wish.name
        number = self._words[mind.id] = self._words.get(mind.id, 0) + 1
        logger.info("%s is to think with %s, by %s", mind.id, self.wanted(mind.id), wish.by)
        if not self._closed:
            word = _Word(mind, wish, self.wanted(mind.id), asked.seq, number)
            self._changing[mind.id] += 1
            self._begin(self._carry_out(word))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            return work.close()
        self._tasks.add(task := self._spawn(work))
        return task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, word: "_Word") -> None:
        try:
            await self._change(word)
        finally:
            self._changing[word.mind.id] -= 1

    async def _change(self, word: "_Word") -> None:
        began_s = self._clock.monotonic()
        try:
            await self._ready(word)
        except ModelError as error:
            return await self._take_back(word, error.reason)
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", word.name)
            return await self._take_back(word, "internal error")
        await self._equipment.recall(self._store)
        if not self._counts(word):
            return None
        if word.name not in self._live.settings.llm.models:
            return await self._take_back(word, GONE)
        word.mind.think_with(self._equipment.thinker(word.mind.id, word.name))
        if self._clock.monotonic() - began_s > PATIENCE_S:
            await self._tell(word, f"`{word.name}` is ready: `{word.mind.id}` thinks with it from its next turn on.")
        return await word.mind.warm_up()

    async def _ready(self, word: "_Word") -> None:
        """Make it ready, as the settings say by then. Raises ModelError."""
        thinker: Thinker | None = None
        while True:
            if word.name not in self._live.settings.llm.models:
                raise Unusable(GONE)
            if thinker is (thinker := self._equipment.thinker(word.mind.id, word.name)):
                return
            with self._equipment.thinkers.held(thinker):
                await thinker.first.start()

    async def _warm(self, mind: Mind, thinker: Thinker) -> None:
        """It is used already: whoever speaks first waits for it, or is told."""
        try:
            with self._equipment.thinkers.held(thinker):
                await thinker.first.start()
        except ModelError as error:
            logger.error("the model %s is not usable: %s", thinker.first.label, error.reason)  # noqa: TRY400 - no bug
        except Exception:  # a bug in an adapter
            logger.exception("making %s ready broke", thinker.name)
        await self._equipment.recall(self._store)
        await mind.warm_up()

    def _counts(self, word: "_Word") -> bool:
        """Nobody has said something else meanwhile."""
        return word.number == self._words[word.mind.id]

    async def _take_back(self, word: "_Word", why: str) -> None:
        agent, used = word.mind.id, word.mind.thinker.name
        logger.warning("%s is not usable: %s", word.name, why)
        if not self._counts(word):
            return
        self._chosen[agent] = "" if used == self._configured(agent) else used
        fact = ModelChosen(agent=agent, model=self._chosen[agent], by=GATEWAY)
        taken = Entry(fact=fact, at=self._clock.now(), conversation=inner(agent), cause=word.seq)
        await self._tell(word, f"`{word.name}` is not usable: {_quoted(why)}. `{agent}` goes on with `{used}`.", taken)

    async def _tell(self, word: "_Word", words: str, *more: Entry) -> None:
        """Say it there, in one transaction with more."""
        now, wish = self._clock.now(), word.wish
        key = PostKey(hashlib.sha256(f"chosen:{word.seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=wish.at, text=words, reply_to=wish.reply_to)
        place = wish.at.conversation
        queued = Entry(fact=Queued(post=post), at=now, conversation=place, key=f"post:{key}", cause=word.seq)
        *_, written = await self._store.append([*more, queued])
        self._post(OutboxPost(seq=written.seq, at=now, post=post, parts=()))


def _quoted(text: str) -> str:
    """A reason in words, which may hold what a server said: one line of code that it cannot end."""
    return f"`{' '.join(text.split())[:200].replace('`', chr(39))}`"
