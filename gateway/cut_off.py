"""What a turn did before its process ended: it is taken again then, and what it did is not done twice."""

from collections.abc import Callable
from typing import Final

from gateway.events import ConversationId
from gateway.records import NoteWritten, ReminderSet, ToolStarted, TurnId
from gateway.store import LogEntry, StoreReader

RECENT_ENTRIES: Final = 20
"""Newest ones: more than a turn writes down."""


async def find_write_of_cut_off_turn(
    reader: StoreReader,
    place: ConversationId,
    turn: TurnId | None,
    same: Callable[[LogEntry, NoteWritten | ReminderSet], bool],
) -> LogEntry | None:
    """What another turn there wrote down, since the last one that ended, and which is the same. None: nothing.

    `turn`: which asks. One turn runs there at a time, so another that has not ended never will.
    """
    if turn is None:
        return None
    ended = await reader.newest_entries(1, kinds=["turn_ended"], conversation=place)
    for one in await reader.newest_entries(RECENT_ENTRIES, kinds=["noted", "reminded"], conversation=place):
        fact = one.fact
        since = not ended or one.seq > ended[0].seq
        if since and isinstance(fact, NoteWritten | ReminderSet) and fact.turn not in (None, turn) and same(one, fact):
            return one
    return None


async def was_begun_by_cut_off_turn(reader: StoreReader, place: ConversationId, begun: ToolStarted) -> bool:
    """Whether another turn there began the same since the last one that ended, and this one did not yet."""
    ended = await reader.newest_entries(1, kinds=["turn_ended"], conversation=place)
    found = [
        one.fact
        for one in await reader.newest_entries(RECENT_ENTRIES, kinds=["tool_begun"], conversation=place)
        if isinstance(one.fact, ToolStarted) and (not ended or one.seq > ended[0].seq)
    ]
    same = [one.turn for one in found if (one.tool, one.arguments) == (begun.tool, begun.arguments)]
    return bool(same) and begun.turn not in same
