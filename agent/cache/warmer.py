"""Keeps idle conversations in the prompt cache.

`CacheWarmer` sends the refreshes that `agent.cache.idle` finds worth their cost; without a budget
it sends nothing. A refresh begins only while the model has no other request under way, one at a
time, and its last request did not fail. A refresh that failed is not tried again before the
conversation goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import date, datetime
from typing import NamedTuple

from agent.cache.idle import CacheRefresh
from agent.cache.prompt_cache import PromptCache, wait_first
from agent.models.base import ModelError
from gateway.core.clock import Clock
from gateway.core.events import RequestUsage
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.cache")
_MAX_REFRESH_TIMES = 1_000
"""Limit of conversations whose last refresh is remembered."""


class _IdleKey(NamedTuple):
    """Idle conversation of an agent with a model."""

    model: PromptCache
    agent: str
    place: str


class CacheWarmer:
    """Refreshes the caches of all models. There is one, so that each agent has one budget a day."""

    def __init__(self, clock: Clock, *, budget_usd: Callable[[], float]) -> None:
        """Start without conversations.

        `budget_usd`: returns the budget per agent and UTC day; called anew each time.
        """
        self._clock = clock
        self._budget_usd = budget_usd
        self._spent_usd = LruDict[tuple[str, date], float]()
        """Agent and UTC day -> money spent on refreshes."""
        self._refresh_times: dict[_IdleKey, float] = {}
        """Time of the next refresh of each conversation."""
        self.refreshed_at = LruDict[tuple[str, str], datetime](_MAX_REFRESH_TIMES)
        """Time of the last refresh, by agent and conversation; the oldest are forgotten."""
        self._dropped: set[tuple[PromptCache, str]] = set()
        """Models that an agent does not use any more."""
        self._changed = asyncio.Event()

    def replace_caches(
        self, agent: str, before: Collection[PromptCache], after: Collection[PromptCache]
    ) -> None:
        """Keep an agent's prompts warm at its new models only."""
        self._dropped = {
            (model, owner) for model, owner in self._dropped if owner != agent or model not in after
        }
        self._dropped |= {(model, agent) for model in before if model not in after}
        self._refresh_times = {
            key: at_s
            for key, at_s in self._refresh_times.items()
            if (key.model, key.agent) not in self._dropped
        }

    def forget_cache(self, model: PromptCache) -> None:
        self._dropped = {dropped for dropped in self._dropped if dropped[0] is not model}
        self._refresh_times = {
            key: at_s for key, at_s in self._refresh_times.items() if key.model is not model
        }

    def forget_conversation(self, model: PromptCache, agent: str, place: str) -> None:
        """Keep a conversation warm no longer: its turns run in another process."""
        self._refresh_times.pop(_IdleKey(model, agent, place), None)

    def on_idle(self, model: PromptCache, agent: str, place: str) -> None:
        """Schedule a refresh after an answer has ended. Called by `PromptCache`."""
        self._schedule(_IdleKey(model, agent, place))
        self._changed.set()

    async def run(self, on_refresh: Callable[[str, RequestUsage], None]) -> None:
        """Keep caches warm until cancelled. `on_refresh` is called with the agent and the account
        of each refresh.
        """
        while True:
            self._changed.clear()
            free = [
                key
                for key in self._refresh_times
                if not (key.model.pending_requests or key.model.is_failing)
            ]
            if not free:
                await self._changed.wait()
                continue
            first = min(free, key=self._refresh_times.__getitem__)
            wait_s = self._refresh_times[first] - self._clock.now().timestamp()
            if wait_s > 0:
                await wait_first(self._clock.sleep(wait_s), self._changed.wait())
                continue
            due = self._schedule(first)
            if (
                due is not None
                and due.at_s <= self._clock.now().timestamp()
                and not first.model.pending_requests
            ):
                await self._refresh(first, due, on_refresh)

    def _schedule(self, key: _IdleKey) -> CacheRefresh | None:
        """Decide anew when to refresh a conversation.

        Other conversations may have used the same prefix meanwhile, or money may have been spent.
        """
        self._refresh_times.pop(key, None)
        budget_usd = self._budget_usd()
        if not budget_usd or (key.model, key.agent) in self._dropped:
            return None
        left_usd = budget_usd - self._spent_usd.get((key.agent, self._clock.now().date()), 0.0)
        due = key.model.plan_refresh(key.agent, key.place, budget_usd=left_usd)
        if due is not None:
            self._refresh_times[key] = due.at_s
        return due

    async def _refresh(
        self, key: _IdleKey, due: CacheRefresh, on_refresh: Callable[[str, RequestUsage], None]
    ) -> None:
        del self._refresh_times[key]
        # Until the cost is known: a refresh that breaks off may be billed as a whole.
        day = key.agent, self._clock.now().date()
        spent_usd = self._spent_usd.get(day, 0.0)
        self._spent_usd.put(day, spent_usd + due.max_cost_usd)
        try:
            account = await key.model.refresh(key.agent, key.place)
        except ModelError as error:
            logger.info("%s is not kept warm: %s", key.place, error.reason)
            return
        cost_usd = 0.0 if account is None else account.cost_usd or 0.0
        self._spent_usd.put(day, spent_usd + cost_usd)
        if account is not None:
            read = account.usage.cache_read_tokens
            logger.info(
                "%s is kept warm: %d tokens were read again for $%.6f", key.place, read, cost_usd
            )
            on_refresh(key.agent, account)
            self.refreshed_at.put((key.agent, key.place), self._clock.now())
        self._schedule(key)
