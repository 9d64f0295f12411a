"""Asking the histories for what was said while nobody told us."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from channels.base import Denied, Emit, Rejected, SendError
from channels.discord import gaps, wire
from channels.discord.directory import DiscordDirectory, DiscordPlace
from channels.discord.gaps import DiscordProgress
from channels.discord.ids import get_snowflake
from channels.discord.inbox import RawGatewayEvent
from channels.discord.rest import DiscordRestClient, fetch_channel, parse_messages
from channels.payload import Json, get_bool, get_int
from gateway.clock import Clock
from gateway.events import Notification

logger = logging.getLogger("reverie.discord")
REFILL: Final = "_REFILL"
"""From ourselves: a history that could not be had is asked for again."""
LATE: Final = "_LATE"
"""From ourselves: all guilds should have been told by now."""
_TRIES_KEY: Final = "_tries"
GAP_EVENTS: Final = frozenset({"READY", "GUILD_CREATE", REFILL, LATE})
_PAGE_SIZE = 100
_MAX_CONCURRENT = 8
"""Channels whose history is asked for at the same time; Discord allows 50 requests a second in all."""
_LOG_EVERY = 50
"""After so many of them it is logged how far this is."""
_RETRY_FIRST_S, _RETRY_MAX_S = 2.0, 60.0
"""What could not be had is asked for again so soon; each time it takes twice as long, up to the second."""


class DiscordBackfill:
    """Emits what was missed, and closes the gaps."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: DiscordDirectory,
        progress: DiscordProgress,
        api: DiscordRestClient,
        new: Callable[[Sequence[Notification]], Sequence[Notification]],
        later: Callable[[float, RawGatewayEvent], None],
    ) -> None:
        """`new` takes away what went out already; `later` puts something into the inbox after so many seconds."""
        self._clock, self._rooms, self._directory, self._progress = clock, rooms, directory, progress
        self._api, self._unseen, self._put_delayed = api, new, later

    async def fill(self, item: RawGatewayEvent, data: Json, emit: Emit) -> None:
        """Emit what was said in a guild (or, at READY, directly) while we were not told; then the gap is closed."""
        if item.event == LATE:
            await self._fill_unannounced(item.shard, emit, data)
            return
        shard, guild = item.shard, "" if item.event == "READY" else get_snowflake(data, "id")
        if not self._progress.has_gap(shard, guild):
            return
        if item.event == "GUILD_CREATE" and get_bool(data, "unavailable"):
            return  # it comes again once the outage is over
        now = self._clock.now()
        if guild:
            asked = gaps.plan_history(
                self._directory.guild_places(guild), self._progress.history_after(shard, now), self._rooms
            )
        else:  # all of them: nobody tells again which message is their newest
            asked = [place for direct in self._progress.direct_chats if (place := self._direct_place(direct))]
        if asked and self._progress.exceeds_history_age(shard, now):
            logger.warning("what was said before the last `history_age` while we were away is not answered")
        if await self._fetch_histories(asked, self._progress.history_after(shard, now), emit):
            self._progress.close_gap(shard, guild)
        else:
            self._retry_later(shard, REFILL, data, guild)

    def _retry_later(self, shard: int, event: str, before: Json, guild: str = "") -> None:
        tries = min(max(get_int(before, _TRIES_KEY) or 0, 0), 9)
        self._put_delayed(
            min(_RETRY_FIRST_S * 2.0**tries, _RETRY_MAX_S),
            RawGatewayEvent(shard, event, {"id": guild, _TRIES_KEY: tries + 1}),
        )

    async def _fill_unannounced(self, shard: int, emit: Emit, data: Json) -> None:
        """GUILD_CREATE has not come for all guilds: emit what was said where we know of a room without it.

        Their gaps stay open, for what is said until it comes. Where Discord names no guilds, none need come.
        """
        if not self._progress.has_guild_gap(shard):
            return
        complete = True
        for room in self._rooms - {gaps.ANY_ROOM} - set(self._directory.places):
            try:
                told = await fetch_channel(self._api, room)
            except Rejected:
                told = {"id": room, "type": 0}  # perhaps a guild: then there is no history either
            except SendError as error:
                logger.warning("room %s is not known: %s", room, error.reason)
                complete = False
                continue
            self._directory.add_channel(told, get_snowflake(told, "guild_id"))
        places = [
            place
            for place in self._directory.places.values()
            if not place.is_direct
            and (not place.guild or self._progress.has_gap(shard, place.guild))
            and gaps.is_open_place(place, self._rooms)
        ]
        if (
            await self._fetch_histories(places, self._progress.history_after(shard, self._clock.now()), emit)
            and complete
        ):
            self._progress.close_gap(shard, gaps.ANY_ROOM)
        else:
            self._retry_later(shard, LATE, data)

    def _direct_place(self, channel: str) -> DiscordPlace | None:
        return self._directory.places.get(channel) or self._directory.add_channel({"id": channel, "type": 1}, "")

    async def _fetch_histories(self, places: Sequence[DiscordPlace], since: int, emit: Emit) -> bool:
        """Whether all of them could be had."""
        free, complete, done = asyncio.Semaphore(_MAX_CONCURRENT), True, 0

        async def one(place: DiscordPlace) -> None:
            nonlocal complete, done
            async with free:
                complete = await self._fetch_history(place, since, emit) and complete
                done += 1
                if done % _LOG_EVERY == 0:
                    logger.info("asked %d of %d histories for what was said while we were away", done, len(places))

        try:
            async with asyncio.TaskGroup() as tasks:
                for place in places:
                    tasks.create_task(one(place))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return complete

    async def _fetch_history(self, place: DiscordPlace, since: int, emit: Emit) -> bool:
        """Emit what was said in one place behind `since`, oldest first; whether that could be had."""
        while True:
            try:
                answer = await self._api.call(
                    "GET",
                    "/channels/{channel_id}/messages",
                    params={"limit": _PAGE_SIZE, "after": since},
                    again=False,  # others wait meanwhile
                    channel_id=place.id,
                )
            except (Rejected, Denied) as error:  # not ours to read: there is no gap either
                logger.info("the history of %s is closed to us: %s", place.id, error.reason)
                return True
            except SendError as error:
                logger.warning("the history of %s could not be had: %s", place.id, error.reason)
                return False
            page = [data for data in parse_messages(answer) if int(get_snowflake(data, "id") or 0) > since]
            told = [event for data in page if (event := wire.parse_message(data, self._directory)) is not None]
            if new := self._unseen(told):
                logger.info("%d messages in %s were said while we were away", len(new), place.id)
                await emit(new)
            if len(page) < _PAGE_SIZE:
                return True
            since = int(get_snowflake(page[-1], "id"))
