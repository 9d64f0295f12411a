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

from agent.outcome import Outcome
from gateway.acting import Rooms
from gateway.changes import Change, Made
from gateway.ending import Writing
from gateway.events import Address, ConversationId
from gateway.fitting import Told, tell
from gateway.fresh import MOST_LINES
from gateway.ids import new_id
from gateway.lane import Lane
from gateway.means import Means
from gateway.records import Seq, TurnEnded, TurnId
from gateway.store import Appended
from gateway.turn import Begun, Dealt, omitted

logger = logging.getLogger("reverie.stopping")

FREE_S = 2.0
"""A door that is free is had at once; a turn that has just ended leaves when that is written, also to a busy disk."""
LOOK_S = 2.0
"""Whoever wants something left off does not wait longer; less than `gateway.commands.desk.ANSWER_S`."""
STOPPED = "I leave it off, and say nothing more of it."
UNHEARD = "I leave it: what was said here until now is not answered."
ALREADY = "I am leaving it off already."
NOTHING = "Nothing is under way here."


class Mind(Protocol):
    """What is needed of the agent there: `gateway.mind.Mind`."""

    def turn_handle(self, conversation: ConversationId) -> Lane | None:
        """Of the turn that runs there. None: none does."""

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """Whether a turn would come there by what is unread, or goes on."""

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnEnded:
        """What is to be written down if it is left off there now."""

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """It is: end the turn that runs there, and owe none."""


class Stopping:
    """For all agents."""

    def __init__(self, of: Callable[[ConversationId], Mind], doors: Rooms) -> None:
        """`of`: whose a conversation is."""
        self._agent_for = of
        self._room_locks = doors

    async def plan_stop(self, at: Address, by: str) -> Change:
        """Decide. Until the change is settled no turn begins there, and none ends. `by`: who wants it, for people."""
        place = at.conversation
        mind, why = self._agent_for(place), f"{by} had it left off"
        lane = mind.turn_handle(place)
        if lane is not None and lane.stop_reason:
            return Change(answer=ALREADY)
        held = lane if lane is not None and lane.hold() else None
        door = None if held is not None else await self._acquire_lock(place)
        try:
            owes = held is not None or await mind.owes_answer(place)
            record = await mind.prepare_stop(place, why) if owes else None
        except BaseException:
            _go_on(held, door)
            raise
        if record is None:
            _go_on(held, door)
            return Change(answer=NOTHING)

        def settle(asked: Appended | None) -> None:
            if asked is not None and asked.is_new:
                logger.info("%s: left off, by %s", place, by)
                mind.stop_turn(place, why)
            _go_on(held, door)

        made = Made(record, key=f"turn:{record.turn}")
        return Change(answer=UNHEARD if held is None else STOPPED, facts=(made,), settle=settle)

    async def _acquire_lock(self, place: ConversationId) -> asyncio.Lock | None:
        """The door there, held. None: somebody else is in there, who takes no turn of it."""
        door = self._room_locks.lock_for(place)
        try:
            async with asyncio.timeout(FREE_S):
                await door.acquire()
        except TimeoutError:
            return None
        return door


async def heard(means: Means, conversation: ConversationId, why: str) -> TurnEnded:
    """What is to be written down where something is left off: all that is unread there now is heard, and over.

    What a turn that runs there has heard is among it. What takes long to be looked at is counted only.
    """
    now, unread = means.clock.now(), await means.store.unread_entries(conversation, most=MOST_LINES)
    begun = Begun(
        turn=TurnId(new_id(now)),
        place=Address.parse(conversation),
        autonomous=False,
        unread=unread,
        messages=await means.reader.read_current(unread),
    )
    told = Told()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):  # what came beside words may have to be fetched first
            lines = await means.reader.render(begun.messages, sees=False)
            told = tell(lines, omitted=0, plain=means.is_small_model) if lines else told
    newest = await means.store.newest_entries(1)
    upto = max([unread.upto, *[one.seq for one in newest]])  # more may be unread than one turn is told of
    dealt = Dealt(rendered=told, omitted=omitted(unread, told), upto=Seq(upto))
    return Writing(means.store, means.clock, means.agent_id, means.redact).build_record(
        begun, Outcome(outcome="yielded", reason=why), dealt
    )


def _go_on(lane: Lane | None, door: asyncio.Lock | None) -> None:
    if lane is not None:
        lane.release()
    if door is not None:
        door.release()
