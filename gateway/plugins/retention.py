"""Retention: whole months that are old enough leave the log for a file beside it each
(`gateway.store.archive`).

A month leaves when all of it is older than `store.keep`. First its file is written, flushed and
renamed; then the log says so (`MonthArchived`); then small transactions delete its entries. A crash
in between leaves entries in both, and the next pass does it again: nothing is lost, and nothing is
doubled. No derived table changes, except the search index.

What stays, however old it is:

- every kind that is not in `prunable_kinds`: notes, memory, approvals, acts of administration,
  reminders, roles, settings made in chat;
- what waits: an unread message that is due, a post that is not delivered, and all that followed in
  its conversation;
- the newest summary of each conversation's earlier turns. The turns themselves leave: a talk that
  rested for so long goes on from that summary.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.aio import run_to_completion
from gateway.core.clock import Clock
from gateway.core.facts import MonthArchived, Seq, prunable_kinds
from gateway.plugin import Plugin
from gateway.store.archive import add_to_file, month_file
from gateway.store.log import Arguments, Log, Result
from gateway.store.queries import COLUMNS, FIRST_ENTRY_SINCE, for_sqlite
from gateway.store.reader import LogRow, connect
from gateway.store.schema import ServerStore
from gateway.store.store import Store
from gateway.store.types import NewEntry, StoreError

logger = logging.getLogger("reverie.store")

INTERVAL_S: Final = 6 * 3600.0
STEP_ROWS: Final = 100
"""Entries of one transaction: some milliseconds for the log's writer."""
STEP_PAUSE_S: Final = 0.05
"""Pause after each step, for messages: a pass moves at most 2,000 entries a second."""
_PAGE_ROWS: Final = 2_000

_FIND_KEPT: Final = """
INSERT INTO kept
SELECT seq FROM unread WHERE urgency >= 1
UNION SELECT seq FROM outbox
UNION SELECT fold FROM view WHERE fold > 0
UNION SELECT later.seq FROM (
    SELECT waiting.conversation AS place, min(waiting.seq) AS first FROM log AS waiting
    WHERE waiting.seq IN (SELECT seq FROM unread WHERE urgency >= 1 UNION SELECT seq FROM outbox)
    GROUP BY waiting.conversation
) AS begun CROSS JOIN log AS later
WHERE later.conversation = begun.place AND later.seq > begun.first AND later.seq < $1
"""


def _leaving() -> str:
    kinds = ", ".join(f"'{kind}'" for kind in sorted(prunable_kinds()))
    return (
        f"FROM log WHERE seq > $1 AND seq < $2 AND {for_sqlite('+')}kind IN ({kinds}) "  # noqa: S608 - names of kinds, which plugins declare
        "AND NOT EXISTS (SELECT 1 FROM kept WHERE kept.seq = log.seq)"
    )


class Retention(Plugin):
    """Moves old months now and every `INTERVAL_S`, if `store.keep` is configured."""

    name = "retention"
    summary = "moves old months out of the log, as store.keep says"

    async def upkeep(self) -> None:
        gateway = self.context.gateway
        keep_s = gateway.live.settings.store.keep
        while keep_s is not None:
            try:
                if moved := await move_old_months(gateway.store, keep_s, gateway.clock):
                    told = "%d entries of old months have left the log for files beside it"
                    logger.info(told, moved)
            except (StoreError, OSError) as error:
                logger.warning("old entries stay in the log for now: %s", error)
            await gateway.clock.sleep(INTERVAL_S)


async def move_old_months(
    store: Store, keep_s: float, clock: Clock, *, between: Callable[[], None] = lambda: None
) -> int:
    """Move the months all of which is older than so many seconds, and return the number of their
    entries.

    Messages are taken in meanwhile. Raises StoreError and OSError: then the rest stays until the
    next pass. `between`: called between any two steps.
    """
    oldest = (clock.now() - timedelta(seconds=keep_s)).astimezone(UTC)
    begin = oldest.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    location = store.location
    connection = await asyncio.to_thread(
        connect, location, "other" if isinstance(location, ServerStore) else "reader"
    )
    moved = 0
    try:
        end, months = await _in_thread(_find_months, connection, begin)
        for month, last in months:
            await _in_thread(
                add_to_file, month_file(store.path, month), _iter_rows(connection, month, end)
            )
            between()
            fact = MonthArchived(month=month, upto=last)
            await store.append(
                [NewEntry(fact=fact, at=clock.now(), key=f"archived:{month}:{last}")]
            )
            between()
            position = 0
            while rows := await _in_thread(_read_page, connection, position, end, month, STEP_ROWS):
                await store.move_out(rows)
                between()
                moved, position = moved + len(rows), rows[-1][0]
                await clock.sleep(STEP_PAUSE_S)
    finally:
        await _in_thread(connection.close)
    return moved


async def _in_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Call this in a thread. Cancelled, it ends first: nobody may close a connection that a thread
    still uses.
    """
    return await run_to_completion(asyncio.to_thread(function, *args))


def _find_months(connection: Log, begin: datetime) -> tuple[int, Sequence[tuple[str, Seq]]]:
    """Return the first position that is not before `begin`, and the months before it, each with its
    last position.

    What stays is in the temporary table `kept`: a turn that ends from now on covers what is unread
    here.
    """
    ((end,),) = connection.fetch(FIRST_ENTRY_SINCE, (begin.isoformat(timespec="microseconds"),))
    connection.begin_snapshot()
    connection.write("CREATE TEMP TABLE kept (seq bigint PRIMARY KEY)")
    connection.write(_FIND_KEPT, [(end,)])
    connection.commit()
    months = f"SELECT substr(at, 1, 7), max(seq) {_leaving()} GROUP BY substr(at, 1, 7) ORDER BY 1"
    return end, connection.fetch(months, (0, end))


def _iter_rows(connection: Log, month: str, end: int) -> Iterator[LogRow]:
    position = 0
    while rows := _read_page(connection, position, end, month, _PAGE_ROWS):
        yield from rows
        position = rows[-1][0]


def _read_page(connection: Log, position: int, end: int, month: str, most: int) -> list[LogRow]:
    rows = f"SELECT {COLUMNS} {_leaving()} AND substr(at, 1, 7) = $3 ORDER BY seq LIMIT $4"
    return connection.fetch(rows, (position, end, month, most))
