"""Leaves off what goes on in a conversation because somebody wants that: `/stop`.

What was said there until then becomes durable as heard in the transaction that holds the command. So it is not answered
again by itself, also if the process dies before the turn has ended. Until that is written nothing is written down of
the turn: it has either answered before the word came, or says nothing more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from agent.outcome import TurnOutcome
from gateway.acting import ConversationLocks
from gateway.changes import CommandEffect, EffectFact
from gateway.ending import TurnRecorder
from gateway.events import Address, ConversationId
from gateway.fitting import RenderedInput, render_lines
from gateway.fresh import MAX_UNREAD_LINES
from gateway.ids import new_id
from gateway.lane import TurnHandle
from gateway.means import AgentContext
from gateway.records import Seq, TurnId, TurnRecord
from gateway.store import AppendResult
from gateway.turn import ConsumedInput, TurnStart, count_omitted

logger = logging.getLogger("reverie.stopping")

LOCK_TIMEOUT_S = 2.0
"""A door that is free is had at once; a turn that has just ended leaves when that is written, also to a busy disk."""
RENDER_TIMEOUT_S = 2.0
"""Whoever wants something left off does not wait longer; less than `gateway.commands.desk.ANSWER_TIMEOUT_S`."""
STOPPING = "I leave it off, and say nothing more of it."
LEFT_UNANSWERED = "I leave it: what was said here until now is not answered."
ALREADY_STOPPING = "I am leaving it off already."
NOTHING_RUNNING = "Nothing is under way here."


class StoppableAgent(Protocol):
    """What is needed of the agent there: `gateway.mind.Agent`."""

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """Of the turn that runs there. None: none does."""

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """Whether a turn would come there by what is unread, or goes on."""

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnRecord:
        """What is to be written down if it is left off there now."""

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """It is: end the turn that runs there, and owe none."""


class TurnStopper:
    """For all agents."""

    def __init__(self, of: Callable[[ConversationId], StoppableAgent], doors: ConversationLocks) -> None:
        """`of`: whose a conversation is."""
        self._agent_for = of
        self._room_locks = doors

    async def plan_stop(self, at: Address, by: str) -> CommandEffect:
        """Decide. Until the change is settled no turn begins there, and none ends. `by`: who wants it, for people."""
        place = at.conversation
        mind, why = self._agent_for(place), f"{by} had it left off"
        lane = mind.turn_handle(place)
        if lane is not None and lane.stop_reason:
            return CommandEffect(answer=ALREADY_STOPPING)
        held = lane if lane is not None and lane.hold() else None
        door = None if held is not None else await self._acquire_lock(place)
        try:
            owes = held is not None or await mind.owes_answer(place)
            record = await mind.prepare_stop(place, why) if owes else None
        except BaseException:
            _release(held, door)
            raise
        if record is None:
            _release(held, door)
            return CommandEffect(answer=NOTHING_RUNNING)

        def settle(asked: AppendResult | None) -> None:
            if asked is not None and asked.is_new:
                logger.info("%s: left off, by %s", place, by)
                mind.stop_turn(place, why)
            _release(held, door)

        made = EffectFact(record, key=f"turn:{record.turn}")
        return CommandEffect(answer=LEFT_UNANSWERED if held is None else STOPPING, facts=(made,), settle=settle)

    async def _acquire_lock(self, place: ConversationId) -> asyncio.Lock | None:
        """The door there, held. None: somebody else is in there, who takes no turn of it."""
        door = self._room_locks.lock_for(place)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await door.acquire()
        except TimeoutError:
            return None
        return door


async def build_stop_record(means: AgentContext, conversation: ConversationId, why: str) -> TurnRecord:
    """What is to be written down where something is left off: all that is unread there now is heard, and over.

    What a turn that runs there has heard is among it. What takes long to be looked at is counted only.
    """
    now, unread = means.clock.now(), await means.store.unread_entries(conversation, most=MAX_UNREAD_LINES)
    begun = TurnStart(
        turn=TurnId(new_id(now)),
        place=Address.parse(conversation),
        autonomous=False,
        unread=unread,
        messages=await means.reader.read_current(unread),
    )
    told = RenderedInput()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RENDER_TIMEOUT_S):  # what came beside words may have to be fetched first
            lines = await means.reader.render(begun.messages, sees=False)
            told = render_lines(lines, omitted=0, plain=means.is_small_model) if lines else told
    newest = await means.store.newest_entries(1)
    upto = max([unread.upto, *[one.seq for one in newest]])  # more may be unread than one turn is told of
    dealt = ConsumedInput(rendered=told, omitted=count_omitted(unread, told), upto=Seq(upto))
    return TurnRecorder(means.store, means.clock, means.agent_id, means.redact).build_record(
        begun, TurnOutcome(outcome="yielded", reason=why), dealt
    )


def _release(lane: TurnHandle | None, door: asyncio.Lock | None) -> None:
    if lane is not None:
        lane.release()
    if door is not None:
        door.release()
