"""What holds of the agents from the last run: their Default Mode Networks' states, and what they think with."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from agent.signals import DmnState, load_state
from gateway.records import ModelSelected
from gateway.settings import Settings
from gateway.store import StoreReader

logger = logging.getLogger("reverie.dmn")
_models_logger = logging.getLogger("reverie.choosing")


async def load_dmn_states(store: StoreReader, agents: Sequence[str], now: datetime) -> dict[str, DmnState]:
    """The state of each agent's DMN as it was saved last, with what the log says that it did today."""
    states, today = {}, now.astimezone(UTC).date().isoformat()
    for place, agent in enumerate(agents):
        saved = await store.dmn_state(agent) or (await store.dmn_state("") if place == 0 else None)
        try:
            state = load_state(saved) if saved else DmnState()
        except ValueError:  # another version's
            logger.warning("the saved state of %s's DMN cannot be read; it begins at rest", agent)
            state = DmnState()
        turns, cost_usd = await store.autonomous_usage(agent, today)
        known = state.turns_today if state.day == today else 0
        spent_up = state.spent_up and state.day == today
        states[agent] = replace(
            state, day=today, turns_today=max(turns, known), spent_today_usd=cost_usd, spent_up=spent_up
        )
    return states


async def load_chosen_models(reader: StoreReader, settings: Settings) -> dict[str, str]:
    """What was chosen for which agent and can still be had: a key of `llm.models` each. Raises StoreError."""
    configured, found = {agent.id: agent.model for agent in settings.agents}, dict[str, str]()
    for one in await reader.current_facts("model_chosen"):
        fact = one.fact
        if not isinstance(fact, ModelSelected) or fact.agent not in configured:
            continue
        if fact.model in settings.llm.models:
            found[fact.agent] = fact.model
        else:
            told = fact.agent, fact.by, fact.model, configured[fact.agent]
            _models_logger.warning(
                "%s was to think with what %s chose, %s, which is not in llm.models: %s is used", *told
            )
    return found
