"""What the agents' Default Mode Networks remember from the last run."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from agent.signals import State, restore
from gateway.store import Reader

logger = logging.getLogger("reverie.dmn")


async def restored(store: Reader, agents: Sequence[str], now: datetime) -> dict[str, State]:
    """The state of each agent's DMN as it was saved last, with what the log says that it did today."""
    states, today = {}, now.astimezone(UTC).date().isoformat()
    for place, agent in enumerate(agents):
        saved = await store.dmn_state(agent) or (await store.dmn_state("") if place == 0 else None)
        try:
            state = restore(saved) if saved else State()
        except ValueError:  # another version's
            logger.warning("the saved state of %s's DMN cannot be read; it begins at rest", agent)
            state = State()
        turns, cost_usd = await store.autonomous(agent, today)
        known = state.turns_today if state.day == today else 0
        spent_up = state.spent_up and state.day == today
        states[agent] = replace(
            state, day=today, turns_today=max(turns, known), spent_today_usd=cost_usd, spent_up=spent_up
        )
    return states
