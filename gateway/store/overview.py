"""What whoever looks on asks of a store: pages of what was noticed, said, taken and spent, without their long bodies.

Its own connection, so that nothing that the gateway itself asks waits for it.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from gateway.events import ConversationId
from gateway.records import Seq
from gateway.store import overview_queries as queries
from gateway.store.connection import connect_reader
from gateway.store.overview_rows import Event, PlaceSeen, SpentIn, Spoken, TurnSeen
from gateway.store.queries import LAST
from gateway.store.reader import Reader
from gateway.store.schema import check_current

SpentKey = Literal["channel", "conversation", "agent", "model"]


class Overview(Reader):
    """More questions. As with a `Reader`, each method is one statement; all are bounded."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open for reading beside a running gateway. Raises Missing, TooNew or Unreadable."""
        await asyncio.to_thread(check_current, path)
        return cls(path, await connect_reader(path))

    async def notifications(
        self,
        limit: int,
        *,
        before: int | None = None,
        after: int = 0,
        conversation: ConversationId | None = None,
        oldest: bool = False,
    ) -> list[Event]:
        """Notifications with `after` < seq < `before` and their fates: the newest first, or the oldest first."""
        sql = queries.NOTICED_THERE if conversation is not None else queries.NOTICED
        there = [] if conversation is None else [conversation]
        end = LAST if before is None else before
        rows = await self._rows(sql["oldest" if oldest else "newest"], after, end, limit, *there)
        return [Event.from_row(row) for row in rows]

    async def notifications_at(self, seqs: Sequence[int]) -> list[Event]:
        """The same of these positions, in their order; what is no notification is left out."""
        rows = await self._rows(queries.NOTICED_AT, json.dumps(sorted(set(seqs))))
        return [Event.from_row(row) for row in rows]

    async def spoken_entries(self, conversation: ConversationId, limit: int) -> list[Spoken]:
        """What was said there lately, the oldest first."""
        return [Spoken.from_row(row) for row in reversed(await self._rows(queries.SPOKEN, conversation, limit))]

    async def recent_conversations(self, limit: int) -> list[PlaceSeen]:
        """The conversations in which something happened last, that one first."""
        return [
            PlaceSeen(
                conversation=ConversationId(place),
                last=Spoken.from_row(last) if last[0] is not None else None,
                seq=Seq(seq),
                at=datetime.fromisoformat(at),
                unread=unread,
            )
            for place, seq, at, unread, *last in await self._rows(queries.PLACES, limit)
        ]

    async def recent_turns(
        self, limit: int, *, before: int | None = None, after: int = 0, conversation: ConversationId | None = None
    ) -> list[TurnSeen]:
        """The newest turns with `after` < seq < `before`, the newest first."""
        end = LAST if before is None else before
        if conversation is None:
            rows = await self._rows(queries.TURNS, after, end, limit)
        else:
            rows = await self._rows(queries.TURNS_THERE, after, end, limit, conversation)
        return [TurnSeen.from_row(row) for row in rows]

    async def count_missed(self, after: int, upto: int) -> int:
        """How many entries behind `after`, up to and with `upto`, whoever looks on is told of.

        As far as they are counted (`TURNS_MOST`).
        """
        return int((await self._rows(queries.MISSED, after, upto))[0][0])

    async def first_entry_since(self, at: datetime) -> Seq:
        """The first entry that is as new as that; behind all of them if none is."""
        return Seq((await self._rows(queries.SINCE, _written(at)))[0][0])

    async def spending_over_time(self, by: SpentKey, since: datetime, *, daily: bool) -> list[SpentIn]:
        """What was spent from then on, by hour or by day (UTC), and by the key."""
        if daily:
            return [SpentIn.from_row(row) for row in await self._rows(queries.DAYS_BY[by], since.date().isoformat())]
        return [SpentIn.from_row(row) for row in await self._rows(queries.SPENT_BY[by], _written(since))]

    async def dmn_modes(self, since: datetime) -> list[tuple[datetime, str, str]]:
        """Each saved state of an agent from then on, oldest first: when, whose, and its mode."""
        return [
            (datetime.fromisoformat(at), agent, mode)
            for at, agent, mode in await self._rows(queries.MODES, _written(since))
        ]


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
