"""Stops (`/stop`): what is unread in a place counts as consumed, and the turn there ends."""

import logging
from typing import Final

from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.core.events import Address
from gateway.core.i18n import N_, _
from gateway.runtime.agents import Agents
from gateway.store import AppendResult
from gateway.store.effects import CommandEffect, EffectFact, done, refuse

logger = logging.getLogger("reverie.agents")

LOCK_TIMEOUT_S: Final = 2.0
"""Time to acquire the lock: a free one is acquired at once; a turn that just ended holds it until
its record is written."""
STOPPED: Final = N_("Stopped. I do not answer what was written here until now.")
ALREADY_STOPPING: Final = N_("I am already stopping.")
NOTHING_RUNNING: Final = N_("I am not doing anything here.")


async def plan_stop(agents: Agents, at: Address, by: str) -> CommandEffect:
    """Plan a stop. `by`: who requests it, for people.

    Everything unread in the place becomes durable as consumed in the transaction that holds the
    command, so it is not answered later, even if the process dies before the turn has ended. Until
    the effect is settled no turn begins there, and none ends: it has either answered before the
    command, or posts nothing more.
    """
    place, why = at.conversation, f"{by} had it left off"
    agent = agents.agent_for(place)
    if not agents.holds(place):
        return refuse(_(HELD_ELSEWHERE))
    handle = agent.turn_handle(place)
    if handle is not None and handle.stop_reason:
        return done(_(ALREADY_STOPPING))
    is_held = handle is not None and handle.hold()
    if handle is not None and is_held:
        release = handle.release
    else:  # else another caller keeps it, who takes no turn there
        release = await agents.room_locks.acquire(place, LOCK_TIMEOUT_S) or (lambda: None)
    try:
        owes = is_held or await agent.owes_answer(place)
        record = await agent.build_stop_record(place, why) if owes else None
    except BaseException:
        release()
        raise
    if record is None:
        release()
        return refuse(_(NOTHING_RUNNING))

    def settle(written: AppendResult | None) -> None:
        if written is not None and written.is_new:
            logger.info("%s: left off, by %s", place, by)
            agent.stop_turn(place, why)
        release()

    fact = EffectFact(record, key=f"turn:{record.turn}")
    return CommandEffect(answer=_(STOPPED), facts=(fact,), settle=settle)
