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
from gateway.store import overview_queries
from gateway.store.connection import connect_reader
from gateway.store.overview_rows import ConversationRow, NotificationRow, SpendingBucket, SpokenRow, TurnRow
from gateway.store.queries import LAST
from gateway.store.reader import StoreReader
from gateway.store.schema import check_current_schema

OverviewSpendingKey = Literal["channel", "conversation", "agent", "model"]


class OverviewReader(StoreReader):
    """More questions. As with a `StoreReader`, each method is one statement; all are bounded."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open for reading beside a running gateway. Raises Missing, TooNew or Unreadable."""
        await asyncio.to_thread(check_current_schema, path)
        return cls(path, await connect_reader(path))

    async def notifications(
        self,
        limit: int,
        *,
        before: int | None = None,
        after: int = 0,
        conversation: ConversationId | None = None,
        oldest: bool = False,
    ) -> list[NotificationRow]:
        """Notifications with `after` < seq < `before` and their fates: the newest first, or the oldest first."""
        sql = overview_queries.NOTIFICATIONS_IN if conversation is not None else overview_queries.NOTIFICATIONS
        there = [] if conversation is None else [conversation]
        end = LAST if before is None else before
        rows = await self._rows(sql["oldest" if oldest else "newest"], after, end, limit, *there)
        return [NotificationRow.from_row(row) for row in rows]

    async def notifications_at(self, seqs: Sequence[int]) -> list[NotificationRow]:
        """The same of these positions, in their order; what is no notification is left out."""
        rows = await self._rows(overview_queries.NOTIFICATIONS_AT, json.dumps(sorted(set(seqs))))
        return [NotificationRow.from_row(row) for row in rows]

    async def spoken_entries(self, conversation: ConversationId, limit: int) -> list[SpokenRow]:
        """What was said there lately, the oldest first."""
        return [
            SpokenRow.from_row(row) for row in reversed(await self._rows(overview_queries.SPOKEN, conversation, limit))
        ]

    async def recent_conversations(self, limit: int) -> list[ConversationRow]:
        """The conversations in which something happened last, that one first."""
        return [
            ConversationRow(
                conversation=ConversationId(place),
                last=SpokenRow.from_row(last) if last[0] is not None else None,
                seq=Seq(seq),
                at=datetime.fromisoformat(at),
                unread=unread,
            )
            for place, seq, at, unread, *last in await self._rows(overview_queries.PLACES, limit)
        ]

    async def recent_turns(
        self, limit: int, *, before: int | None = None, after: int = 0, conversation: ConversationId | None = None
    ) -> list[TurnRow]:
        """The newest turns with `after` < seq < `before`, the newest first."""
        end = LAST if before is None else before
        if conversation is None:
            rows = await self._rows(overview_queries.TURNS, after, end, limit)
        else:
            rows = await self._rows(overview_queries.TURNS_IN, after, end, limit, conversation)
        return [TurnRow.from_row(row) for row in rows]

    async def count_missed(self, after: int, upto: int) -> int:
        """How many entries behind `after`, up to and with `upto`, whoever looks on is told of.

        As far as they are counted (`TURNS_MOST`).
        """
        return int((await self._rows(overview_queries.MISSED, after, upto))[0][0])

    async def first_entry_since(self, at: datetime) -> Seq:
        """The first entry that is as new as that; behind all of them if none is."""
        return Seq((await self._rows(overview_queries.SINCE, _to_log_time(at)))[0][0])

    async def spending_over_time(
        self, by: OverviewSpendingKey, since: datetime, *, daily: bool
    ) -> list[SpendingBucket]:
        """What was spent from then on, by hour or by day (UTC), and by the key."""
        if daily:
            return [
                SpendingBucket.from_row(row)
                for row in await self._rows(overview_queries.DAYS_BY[by], since.date().isoformat())
            ]
        return [
            SpendingBucket.from_row(row) for row in await self._rows(overview_queries.SPENT_BY[by], _to_log_time(since))
        ]

    async def dmn_modes(self, since: datetime) -> list[tuple[datetime, str, str]]:
        """Each saved state of an agent from then on, oldest first: when, whose, and its mode."""
        return [
            (datetime.fromisoformat(at), agent, mode)
            for at, agent, mode in await self._rows(overview_queries.MODES, _to_log_time(since))
        ]


def _to_log_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
