"""A panel of the dashboard: in which rooms most is said, and when something was said there last.

The rows come from a table that the gateway derives from its log, so they hold what was said before
the plugin was installed, too.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import Field

from reverie import LogEntry, Message, Plugin, Table, route

COUNT = """
    INSERT INTO busy_rooms (place, messages, last) VALUES ($1, 1, $2)
    ON CONFLICT (place) DO UPDATE SET messages = busy_rooms.messages + 1, last = excluded.last
"""


def _fold(entry: LogEntry) -> Iterable[tuple[str, tuple[str | int, ...]]]:
    """Count a message in its room."""
    if isinstance(entry.fact, Message) and entry.conversation:
        yield COUNT, (str(entry.conversation), int(entry.at.timestamp()))


class BusyRooms(Plugin):
    """Counts what is said in rooms, and shows it."""

    name = "busy_rooms"
    summary = "shows in which rooms most is said"
    tables: ClassVar = (
        Table(
            name="busy_rooms",
            columns="place text PRIMARY KEY, messages bigint NOT NULL, last bigint NOT NULL",
            kinds=frozenset({"room", "mention", "reply"}),
            fold=_fold,
        ),
    )

    @route("GET", "rooms", panel="Busy rooms")
    async def rooms(
        self, *, most: Annotated[int, Field(ge=1, le=100)] = 10
    ) -> list[dict[str, str | int]]:
        """Return a row for each of the busiest rooms. Direct chats are left out."""
        found = await self.context.gateway.store.rows(
            "SELECT place, messages, last FROM busy_rooms ORDER BY messages DESC, place LIMIT $1",
            most,
        )
        return [
            {
                "Room": place,
                "Messages": messages,
                "Last": datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M"),
            }
            for place, messages, last in found
        ]
