"""What a turn did before its process ended: it is taken again then, and what it did is not done twice."""

from collections.abc import Callable
from typing import Final

from gateway.events import ConversationId
from gateway.records import Noted, Reminded, TurnId
from gateway.store import Reader, Stored

LOOKED_AT: Final = 20
"""Newest ones: more than a turn writes down."""


async def done_before(
    reader: Reader, place: ConversationId, turn: TurnId | None, same: Callable[[Stored, Noted | Reminded], bool]
) -> Stored | None:
    """What another turn there wrote down, since the last one that ended, and which is the same. None: nothing.

    `turn`: which asks. One turn runs there at a time, so another that has not ended never will.
    """
    if turn is None:
        return None
    ended = await reader.newest(1, kinds=["turn_ended"], conversation=place)
    for one in await reader.newest(LOOKED_AT, kinds=["noted", "reminded"], conversation=place):
        fact = one.fact
        since = not ended or one.seq > ended[0].seq
        if since and isinstance(fact, Noted | Reminded) and fact.turn not in (None, turn) and same(one, fact):
            return one
    return None
