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

    def lane(self, conversation: ConversationId) -> Lane | None:
        """Of the turn that runs there. None: none does."""

    async def owes(self, conversation: ConversationId) -> bool:
        """Whether a turn would come there by what is unread, or goes on."""

    async def left_off(self, conversation: ConversationId, why: str) -> TurnEnded:
        """What is to be written down if it is left off there now."""

    def leave_off(self, conversation: ConversationId, why: str) -> None:
        """It is: end the turn that runs there, and owe none."""


class Stopping:
    """For all agents."""

    def __init__(self, of: Callable[[ConversationId], Mind], doors: Rooms) -> None:
        """`of`: whose a conversation is."""
        self._of = of
        self._doors = doors

    async def ask(self, at: Address, by: str) -> Change:
        """Decide. Until the change is settled no turn begins there, and none ends. `by`: who wants it, for people."""
        place = at.conversation
        mind, why = self._of(place), f"{by} had it left off"
        lane = mind.lane(place)
        if lane is not None and lane.left_off:
            return Change(words=ALREADY)
        held = lane if lane is not None and lane.hold() else None
        door = None if held is not None else await self._entered(place)
        try:
            owes = held is not None or await mind.owes(place)
            record = await mind.left_off(place, why) if owes else None
        except BaseException:
            _go_on(held, door)
            raise
        if record is None:
            _go_on(held, door)
            return Change(words=NOTHING)

        def settle(asked: Appended | None) -> None:
            if asked is not None and asked.fresh:
                logger.info("%s: left off, by %s", place, by)
                mind.leave_off(place, why)
            _go_on(held, door)

        made = Made(record, key=f"turn:{record.turn}")
        return Change(words=UNHEARD if held is None else STOPPED, facts=(made,), settle=settle)

    async def _entered(self, place: ConversationId) -> asyncio.Lock | None:
        """The door there, held. None: somebody else is in there, who takes no turn of it."""
        door = self._doors.of(place)
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
    now, unread = means.clock.now(), await means.store.unread(conversation, most=MOST_LINES)
    begun = Begun(
        turn=TurnId(new_id(now)),
        place=Address.parse(conversation),
        autonomous=False,
        unread=unread,
        standing=await means.hearing.standing(unread),
    )
    told = Told()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):  # what came beside words may have to be fetched first
            lines = await means.hearing.tell(begun.standing, sees=False)
            told = tell(lines, omitted=0, plain=means.plain) if lines else told
    newest = await means.store.newest(1)
    upto = max([unread.upto, *[one.seq for one in newest]])  # more may be unread than one turn is told of
    dealt = Dealt(told=told, omitted=omitted(unread, told), upto=Seq(upto))
    return Writing(means.store, means.clock, means.agent_id, means.redact).record(
        begun, Outcome(outcome="yielded", reason=why), dealt
    )


def _go_on(lane: Lane | None, door: asyncio.Lock | None) -> None:
    if lane is not None:
        lane.release()
    if door is not None:
        door.release()
