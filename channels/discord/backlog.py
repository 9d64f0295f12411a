"""Asking the histories for what was said while nobody told us."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from channels.base import Denied, Emit, Rejected, SendError
from channels.discord import gaps, wire
from channels.discord.directory import Directory, Place
from channels.discord.gaps import Progress
from channels.discord.ids import snowflake
from channels.discord.inbox import Raw
from channels.discord.rest import Api, channel_of, messages
from channels.payload import Json, flag, whole
from gateway.clock import Clock
from gateway.events import Notification

_LOG = logging.getLogger("reverie.discord")
REFILL: Final = "_REFILL"
"""From ourselves: a history that could not be had is asked for again."""
LATE: Final = "_LATE"
"""From ourselves: all guilds should have been told by now."""
_TRIES: Final = "_tries"
BEGIN_A_GAP: Final = frozenset({"READY", "GUILD_CREATE", REFILL, LATE})
_PAGE = 100
_AT_ONCE = 8
"""Channels whose history is asked for at the same time; Discord allows 50 requests a second in all."""
_TOLD = 50
"""After so many of them it is logged how far this is."""
_AGAIN_S, _MOST_S = 2.0, 60.0
"""What could not be had is asked for again so soon; each time it takes twice as long, up to the second."""


class Backlog:
    """Emits what was missed, and closes the gaps."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: Directory,
        progress: Progress,
        api: Api,
        new: Callable[[Sequence[Notification]], Sequence[Notification]],
        later: Callable[[float, Raw], None],
    ) -> None:
        """`new` takes away what went out already; `later` puts something into the inbox after so many seconds."""
        self._clock, self._rooms, self._directory, self._progress = clock, rooms, directory, progress
        self._api, self._unseen, self._put_delayed = api, new, later

    async def fill(self, item: Raw, data: Json, emit: Emit) -> None:
        """Emit what was said in a guild (or, at READY, directly) while we were not told; then the gap is closed."""
        if item.event == LATE:
            await self._fill_unannounced(item.shard, emit, data)
            return
        shard, guild = item.shard, "" if item.event == "READY" else snowflake(data, "id")
        if not self._progress.has_gap(shard, guild):
            return
        if item.event == "GUILD_CREATE" and flag(data, "unavailable"):
            return  # it comes again once the outage is over
        now = self._clock.now()
        if guild:
            asked = gaps.plan(
                self._directory.guild_places(guild), self._progress.history_after(shard, now), self._rooms
            )
        else:  # all of them: nobody tells again which message is their newest
            asked = [place for direct in self._progress.direct_chats if (place := self._direct_place(direct))]
        if asked and self._progress.exceeds_history_age(shard, now):
            _LOG.warning("what was said before the last `history_age` while we were away is not answered")
        if await self._fetch_histories(asked, self._progress.history_after(shard, now), emit):
            self._progress.close_gap(shard, guild)
        else:
            self._retry_later(shard, REFILL, data, guild)

    def _retry_later(self, shard: int, event: str, before: Json, guild: str = "") -> None:
        tries = min(max(whole(before, _TRIES) or 0, 0), 9)
        self._put_delayed(min(_AGAIN_S * 2.0**tries, _MOST_S), Raw(shard, event, {"id": guild, _TRIES: tries + 1}))

    async def _fill_unannounced(self, shard: int, emit: Emit, data: Json) -> None:
        """GUILD_CREATE has not come for all guilds: emit what was said where we know of a room without it.

        Their gaps stay open, for what is said until it comes. Where Discord names no guilds, none need come.
        """
        if not self._progress.has_guild_gap(shard):
            return
        complete = True
        for room in self._rooms - {gaps.ANY} - set(self._directory.places):
            try:
                told = await channel_of(self._api, room)
            except Rejected:
                told = {"id": room, "type": 0}  # perhaps a guild: then there is no history either
            except SendError as error:
                _LOG.warning("room %s is not known: %s", room, error.reason)
                complete = False
                continue
            self._directory.add_channel(told, snowflake(told, "guild_id"))
        places = [
            place
            for place in self._directory.places.values()
            if not place.is_direct
            and (not place.guild or self._progress.has_gap(shard, place.guild))
            and gaps.acts(place, self._rooms)
        ]
        if (
            await self._fetch_histories(places, self._progress.history_after(shard, self._clock.now()), emit)
            and complete
        ):
            self._progress.close_gap(shard, gaps.ANY)
        else:
            self._retry_later(shard, LATE, data)

    def _direct_place(self, channel: str) -> Place | None:
        return self._directory.places.get(channel) or self._directory.add_channel({"id": channel, "type": 1}, "")

    async def _fetch_histories(self, places: Sequence[Place], since: int, emit: Emit) -> bool:
        """Whether all of them could be had."""
        free, complete, done = asyncio.Semaphore(_AT_ONCE), True, 0

        async def one(place: Place) -> None:
            nonlocal complete, done
            async with free:
                complete = await self._fetch_history(place, since, emit) and complete
                done += 1
                if done % _TOLD == 0:
                    _LOG.info("asked %d of %d histories for what was said while we were away", done, len(places))

        try:
            async with asyncio.TaskGroup() as tasks:
                for place in places:
                    tasks.create_task(one(place))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return complete

    async def _fetch_history(self, place: Place, since: int, emit: Emit) -> bool:
        """Emit what was said in one place behind `since`, oldest first; whether that could be had."""
        while True:
            try:
                answer = await self._api.call(
                    "GET",
                    "/channels/{channel_id}/messages",
                    params={"limit": _PAGE, "after": since},
                    again=False,  # others wait meanwhile
                    channel_id=place.id,
                )
            except (Rejected, Denied) as error:  # not ours to read: there is no gap either
                _LOG.info("the history of %s is closed to us: %s", place.id, error.reason)
                return True
            except SendError as error:
                _LOG.warning("the history of %s could not be had: %s", place.id, error.reason)
                return False
            page = [data for data in messages(answer) if int(snowflake(data, "id") or 0) > since]
            told = [event for data in page if (event := wire.message(data, self._directory)) is not None]
            if new := self._unseen(told):
                _LOG.info("%d messages in %s were said while we were away", len(new), place.id)
                await emit(new)
            if len(page) < _PAGE:
                return True
            since = int(snowflake(page[-1], "id"))
