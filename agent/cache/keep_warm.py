"""Sends what `agent.cache.plan` finds worth its money: prompts that are read again so that they stay cached.

Nothing is sent, and nothing waited for, while there is no budget. A refresh is begun only while nobody waits for an
answer of that model, one at a time; one that failed is not tried again before the conversation goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from datetime import datetime
from typing import NamedTuple

from agent.cache.client import CachingModel
from agent.cache.plan import CacheRefresh, KeepWarmBudget
from agent.models.base import ModelError
from gateway.core.clock import Clock
from gateway.core.events import RequestUsage

logger = logging.getLogger("reverie.cache")
_MAX_REFRESH_TIMES = 1_000
"""Conversations of which it is known when they were read again."""


class _IdleKey(NamedTuple):
    """A conversation that nobody asks in just now."""

    model: CachingModel
    agent: str
    place: str


class CacheWarmer:
    """One for all models, so that each agent has one budget a day."""

    def __init__(self, clock: Clock, *, budget_usd: Callable[[], float]) -> None:
        """`budget_usd`: per agent and UTC day, asked anew each time."""
        self._clock = clock
        self._budget_usd = budget_usd
        self._budget = KeepWarmBudget()
        self._refresh_times: dict[_IdleKey, float] = {}
        """When to read what again."""
        self._refreshed_at: dict[tuple[str, str], datetime] = {}
        self._dropped: set[tuple[CachingModel, str]] = set()
        """What an agent does not think with any more."""
        self._changed = asyncio.Event()

    def replace_models(self, agent: str, before: Collection[CachingModel], after: Collection[CachingModel]) -> None:
        """An agent thinks with others now: what it asked the former is not kept warm any more."""
        self._dropped = {(one, whose) for one, whose in self._dropped if whose != agent or one not in after}
        self._dropped |= {(one, agent) for one in before if one not in after}
        self._refresh_times = {
            one: at_s for one, at_s in self._refresh_times.items() if (one.model, one.agent) not in self._dropped
        }

    def forget_model(self, keeper: CachingModel) -> None:
        """Nobody thinks with that any more, and it is closed."""
        self._dropped = {one for one in self._dropped if one[0] is not keeper}
        self._refresh_times = {one: at_s for one, at_s in self._refresh_times.items() if one.model is not keeper}

    def on_idle(self, keeper: CachingModel, agent: str, place: str) -> None:
        """An answer has ended there (`CachingModel`)."""
        self._schedule(_IdleKey(keeper, agent, place))
        self._changed.set()

    async def run(self, told: Callable[[str, RequestUsage], None]) -> None:
        """Keep warm until cancelled. `told` is called with the agent and what came of each refresh."""
        while True:
            self._changed.clear()
            free = [one for one in self._refresh_times if not one.model.pending_requests]
            if not free:
                await self._changed.wait()
                continue
            first = min(free, key=self._refresh_times.__getitem__)
            wait_s = self._refresh_times[first] - self._clock.now().timestamp()
            if wait_s > 0:
                await _wait_first(self._clock.sleep(wait_s), self._changed.wait())
                continue
            due = self._schedule(first)
            if due is not None and due.at_s <= self._clock.now().timestamp() and not first.model.pending_requests:
                await self._refresh(first, due, told)

    def _schedule(self, one: _IdleKey) -> CacheRefresh | None:
        """Decide anew: others may have used what it begins with, and money may have been spent."""
        self._refresh_times.pop(one, None)
        budget_usd = self._budget_usd()
        if not budget_usd or (one.model, one.agent) in self._dropped:
            return None
        left_usd = self._budget.remaining_usd(one.agent, self._clock.now().date(), budget_usd)
        due = one.model.plan_refresh(one.agent, one.place, budget_usd=left_usd)
        if due is not None:
            self._refresh_times[one] = due.at_s
        return due

    async def _refresh(self, one: _IdleKey, due: CacheRefresh, told: Callable[[str, RequestUsage], None]) -> None:
        del self._refresh_times[one]
        self._budget.spend(one.agent, due.max_cost_usd)  # until it is known; what is cut off may be billed as a whole
        try:
            account = await one.model.refresh(one.agent, one.place)
        except ModelError as error:
            logger.info("%s is not kept warm: %s", one.place, error.reason)
            return
        cost_usd = 0.0 if account is None else account.cost_usd or 0.0
        self._budget.spend(one.agent, cost_usd - due.max_cost_usd)
        if account is not None:
            read = account.usage.cache_read_tokens
            logger.info("%s is kept warm: %d tokens were read again for $%.6f", one.place, read, cost_usd)
            told(one.agent, account)
            self._refreshed_at[one.agent, one.place] = self._clock.now()
            if len(self._refreshed_at) > _MAX_REFRESH_TIMES:
                del self._refreshed_at[next(iter(self._refreshed_at))]
        self._schedule(one)

    def last_refresh(self, agent: str, place: str) -> datetime | None:
        """When a conversation was read again last; None: never, or long ago."""
        return self._refreshed_at.get((agent, place))


async def _wait_first(*waits: Coroutine[None, None, object]) -> None:
    """Return as soon as one of them does."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
