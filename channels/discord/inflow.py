"""Event pipeline: raw gateway events to emitted notifications, in order, with missed messages read
from the histories.

Discord keeps no queue for absent clients: missed messages are found by requesting each channel's
messages after the newest known one. Until that is done the durable position must not advance.
`DiscordProgress` (pure) tracks position and gaps, `DiscordEventPipeline` processes the inbox.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from pydantic import BaseModel, ValidationError

from channels.aio import BackpressureBuffer, cancel_and_wait
from channels.base import Denied, Emit, Rejected, SendError
from channels.discord import wire
from channels.discord.directory import (
    ANY_ROOM,
    SILENT_TYPES,
    DiscordDirectory,
    DiscordPlace,
)
from channels.discord.ids import get_snowflake, snowflake_at
from channels.discord.rest import parse_messages
from channels.text import Json, get_bool, get_int, get_object, get_objects, get_str
from gateway.core.clock import Clock, new_id
from gateway.core.events import Command, Message, Notification
from gateway.core.frozen import frozen
from gateway.core.ratelimit import LruDict

if TYPE_CHECKING:
    from channels.discord.session import DiscordAccountState

logger = logging.getLogger("reverie.discord")
MAX_DIRECTS = 200
"""Direct chats that are remembered, the latest ones: Discord does not list them."""
_MARGIN = timedelta(seconds=60)
"""Messages arrive not quite in the order of their ids; repeated ones are recognised by their id."""
_MARGIN_SNOWFLAKES = int(_MARGIN / timedelta(milliseconds=1)) << 22


@frozen
class ResumableSession:
    """Session that a new connection can resume."""

    id: str
    seq: int
    gateway: str
    refused_count: int = 0
    """Consecutive attempts that were not granted."""


class _Cursor(BaseModel):
    mark: int | None = None
    unseen: int | None = None
    directs: list[str] = []
    session: ResumableSession | None = None


class DiscordProgress:
    """Position in the messages, and the gaps in what was received."""

    def __init__(self, cursor: str | None, history_age_s: float) -> None:
        """Go on from a cursor; one that is not ours counts as none."""
        try:
            saved = _Cursor.model_validate_json(cursor or "{}")
        except ValidationError:
            saved = _Cursor()
        self._history_age = timedelta(seconds=min(history_age_s, 10.0**9))
        self.direct_chats = dict.fromkeys(saved.directs)
        """The latest last."""
        self.session = saved.session
        """Session, up to the last event that was processed."""
        self._mark = saved.mark
        self._unseen = saved.unseen
        """Id after which direct chats that are not in `direct_chats` may have messages that were
        never received: a session was lost. None: they have none."""
        self._newest = 0
        self._is_guessed = False
        """The position is from our own clock, which may be ahead of Discord's."""
        self._gaps: set[str] | None = None
        """Guilds with an open gap; an empty name stands for direct chats. None: no session has
        begun."""

    def begin_session(self, guilds: Iterable[str], now: datetime) -> None:
        """Begin a new session, which may have missed messages in all of its guilds."""
        self._gaps = set()
        if self._mark is None or self._history_age <= timedelta(0):
            self._mark, self._is_guessed = snowflake_at(now), True
        else:
            self._gaps = {*guilds, *([""] if self.direct_chats else [])}
        self._newest = max(self._newest, self._mark)

    def open_gap(self, guild: str) -> None:
        """Open a gap for a guild that became unavailable: its messages do not arrive now."""
        if self._history_age > timedelta(0) and self._gaps is not None:
            self._gaps.add(guild)

    def has_gap(self, guild: str) -> bool:
        return guild in (self._gaps or ())

    def close_gap(self, guild: str) -> None:
        if self._gaps is not None:
            self._gaps.discard(guild)

    def record_message(self, message: str, now: datetime) -> None:
        """Advance to a message that is being made durable. An id from the future advances to now
        only.
        """
        number = min(int(message), snowflake_at(now + _MARGIN))
        if self._is_guessed:
            self._is_guessed = False
            self._mark, self._newest = min(self._mark or number, number), 0
        self._newest = max(self._newest, number)

    def record_direct(self, direct: str) -> None:
        self.direct_chats.pop(direct, None)
        self.direct_chats[direct] = None
        while len(self.direct_chats) > MAX_DIRECTS:
            del self.direct_chats[next(iter(self.direct_chats))]

    def lose_directs(self) -> bool:
        """Record that a session with its direct messages is lost; return whether there may have
        been any.
        """
        if self._mark is None or self._history_age <= timedelta(0):
            return False
        self._unseen = min(self._unseen or self._mark, max(1, self._mark - _MARGIN_SNOWFLAKES))
        return True

    def unseen_after(self, direct: str) -> int | None:
        """Return the id after which messages of a direct chat may never have been received; None:
        it is known.
        """
        return None if direct in self.direct_chats else self._unseen

    def history_after(self, now: datetime) -> int:
        return max((self._mark or 0) - _MARGIN_SNOWFLAKES, snowflake_at(now - self._history_age))

    def exceeds_history_age(self, now: datetime) -> bool:
        """Return whether the gap begins before the configured history age."""
        return (self._mark or 0) < snowflake_at(now - self._history_age)

    def to_cursor(self) -> str:
        """Return the state as text; the position is where the gaps begin, if there are any."""
        if self._gaps is not None and not self._gaps:
            self._mark = self._newest
        directs, session = list(self.direct_chats), self.session
        return _Cursor(
            mark=self._mark, unseen=self._unseen, directs=directs, session=session
        ).model_dump_json()

    def record_event(self, event: str, data: Json, seq: int) -> None:
        """Record that an event of a session is being made durable."""
        if event == "READY":
            session, gateway = get_str(data, "session_id"), get_str(data, "resume_gateway_url")
            found = ResumableSession(id=session, seq=seq, gateway=gateway)
            self.session = found if session and gateway else None
        elif self.session is not None and seq > self.session.seq:
            self.session = replace(self.session, seq=seq)


def plan_history(
    places: Iterable[DiscordPlace], since: int, rooms: AbstractSet[str]
) -> list[DiscordPlace]:
    """Return the places to request messages after `since` from: all whose newest message is not
    known to be older, of those that the operator has opened: themselves, their parents, their
    guilds, or all.

    A place that is opened by its own id is always included: `last_message_id` need not be right.
    """
    return [
        place
        for place in places
        if place.kind not in SILENT_TYPES
        and (ANY_ROOM in rooms or {place.id, place.parent, place.guild} & rooms)
        and (place.id in rooms or not place.last_message or int(place.last_message) > since)
    ]


@frozen(kw_only=False)
class RawGatewayEvent:
    """One unparsed event of the gateway."""

    event: str
    data: object
    seq: int = 0
    """Its number in the session; 0: it has none."""


DiscordInbox: TypeAlias = BackpressureBuffer[RawGatewayEvent | Notification]
REFILL: Final = "_REFILL"
"""Event of our own: request a history again that could not be read."""
_TRIES_KEY: Final = "_tries"
GAP_EVENTS: Final = frozenset({"READY", "GUILD_CREATE", REFILL})
_PAGE_SIZE = 100
_MAX_CONCURRENT = 8
"""Histories that are requested at the same time; Discord allows 50 requests a second in total."""
_RETRY_FIRST_S, _RETRY_MAX_S = 2.0, 60.0
"""First and longest delay before a history is requested again; each failure doubles it."""
_MAX_SEEN = 4096


class DiscordEventPipeline:
    """Processor of the inbox: learns places, reads missed messages, emits."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: DiscordDirectory,
        progress: DiscordProgress,
        state: "DiscordAccountState",
    ) -> None:
        self._clock, self._rooms, self._directory, self._progress = (
            clock,
            rooms,
            directory,
            progress,
        )
        self._state, self._inbox, self._api = state, state.inbox, state.api
        self._seen = LruDict[str, None](_MAX_SEEN)
        """Recently emitted messages: history and gateway send some of them twice."""
        self._unresolved: set[str] = set()
        """Channels that Discord could not describe at the first attempt."""
        self._has_new_session = False
        """A session has begun, and its position is not durable yet: messages missed before the
        first one count from there."""
        self._delayed: set[asyncio.Task[None]] = set()
        """Tasks that request a history again later."""
        self.deleted_ids = LruDict[str, None](_MAX_SEEN)
        """Messages of ours that we deleted ourselves."""

    async def run(self, emit: Emit) -> None:
        """Process events. Ends only by cancellation or by an error of `emit`."""
        try:
            while True:
                batch: list[Notification] = []
                for item in await self._inbox.get_batch(256):
                    if not isinstance(item, RawGatewayEvent):
                        batch.append(item)
                        continue
                    if item.event in GAP_EVENTS:
                        await self._flush(emit, batch)
                        batch = []
                    batch += await self._process(item, emit)
                await self._flush(emit, batch)
        finally:
            await cancel_and_wait(*self._delayed)

    async def _flush(self, emit: Emit, batch: Sequence[Notification]) -> None:
        cursor = self._progress.to_cursor()
        if batch or self._has_new_session:
            await emit(batch, cursor=None if cursor == self._state.cursor else cursor)
            self._state.cursor = cursor
            self._has_new_session = False

    async def _process(self, item: RawGatewayEvent, emit: Emit) -> Sequence[Notification]:
        """Process one event and return its notifications. An event that fails is dropped and
        logged.
        """
        try:
            data: Json = get_object({"d": item.data}, "d")
            self._progress.record_event(item.event, data, item.seq)
            self._directory.apply_event(item.event, data)
            if item.event.startswith(("MESSAGE_", "INTERACTION_")):
                await self._learn_place(data)
            now, specs = self._clock.now(), self._state.interactions.specs
            notifications = self._drop_seen(
                wire.parse_event(item.event, data, self._directory, now, new_id(now), specs=specs)
            )
            self._update_progress(item.event, data)
        except Exception:
            logger.exception("an event %.40r is dropped", item.event)
            return []
        channel = get_snowflake(data, "channel_id")
        if channel and any(
            event.kind == "direct" or (isinstance(event, Command) and event.direct)
            for event in notifications
        ):
            since, place = self._progress.unseen_after(channel), self._direct_place(channel)
            if since is None or not place or await self._fetch_history(place, since, emit):
                self._progress.record_direct(channel)  # else it is read with the next message
        if item.event in GAP_EVENTS:
            await self._flush(emit, ())
            await self._fill(item.event, data, emit)
        return notifications

    def _update_progress(self, event: str, data: Json) -> None:
        number = get_snowflake(data, "id")
        match event:
            case "READY":
                guilds = [get_snowflake(guild, "id") for guild in get_objects(data, "guilds")]
                self._progress.begin_session(filter(None, guilds), self._clock.now())
                self._has_new_session = True
                for task in self._delayed:
                    task.cancel()  # it belongs to the previous session
            case "GUILD_DELETE" if data.get("unavailable") is True:
                self._progress.open_gap(number)
            case "GUILD_DELETE":
                self._progress.close_gap(number)
            case "MESSAGE_CREATE" if number:
                self._progress.record_message(number, self._clock.now())

    def _drop_seen(self, notifications: Sequence[Notification]) -> list[Notification]:
        """Return the notifications without repeated messages and without deletions of our own."""
        new: list[Notification] = []
        for event in notifications:
            if isinstance(event, Message):
                if event.id in self._seen:
                    continue
                self._seen.put(event.id, None)
                if event.opens_thread:
                    self._directory.plan_thread(event.at)
            if event.kind == "deleted" and event.message in self.deleted_ids:
                del self.deleted_ids[event.message]
                continue
            new.append(event)
        return new

    async def _learn_place(self, data: Json) -> None:
        """Request an unknown channel of a guild: a thread that was archived, or that existed before
        we joined.
        """
        channel, guild = get_snowflake(data, "channel_id"), get_snowflake(data, "guild_id")
        is_known = channel in self._directory.places and channel not in self._unresolved
        if not channel or not guild or is_known:
            return
        self._unresolved.discard(channel)
        description = get_object(data, "channel")
        if get_snowflake(description, "id") != channel:
            try:
                # Once, because other work waits meanwhile.
                answer = await self._api.call(
                    "GET", "/channels/{channel_id}", again=False, channel_id=channel
                )
                description = get_object({"d": answer}, "d")
            except SendError as error:
                logger.warning("channel %s is not known: %s", channel, error.reason)
                if not isinstance(error, Rejected):
                    self._unresolved.add(channel)  # requested again with its next event
        if (
            get_snowflake(description, "id") != channel
            or self._directory.add_channel(description, guild) is None
        ):
            # It is at least in that guild; as a room of its own it is closed unless the operator
            # opened it.
            self._directory.add_channel({"id": channel, "type": 0}, guild)

    async def _fill(self, event: str, data: Json, emit: Emit) -> None:
        """Emit the missed messages of a guild (or, at READY, of direct chats), and close the
        gap.
        """
        guild = "" if event == "READY" else get_snowflake(data, "id")
        # Of a guild that is unavailable another GUILD_CREATE follows after the outage.
        if not self._progress.has_gap(guild) or get_bool(data, "unavailable"):
            return
        now = self._clock.now()
        since = self._progress.history_after(now)
        if guild:
            places = plan_history(self._directory.guild_places(guild), since, self._rooms)
        else:  # all of them: Discord does not send their newest message ids
            latest_first = reversed(self._progress.direct_chats)
            places = [place for direct in latest_first if (place := self._direct_place(direct))]
        if places and self._progress.exceeds_history_age(now):
            logger.warning(
                "what was said before the last `history_age` while we were away is not answered"
            )
        if await self._fetch_histories(places, since, emit):
            self._progress.close_gap(guild)
            return
        tries = min(max(get_int(data, _TRIES_KEY) or 0, 0), 9)
        again = RawGatewayEvent(REFILL, {"id": guild, _TRIES_KEY: tries + 1})
        task = asyncio.create_task(
            self._put_later(again, min(_RETRY_FIRST_S * 2.0**tries, _RETRY_MAX_S))
        )
        self._delayed.add(task)
        task.add_done_callback(self._delayed.discard)

    async def _put_later(self, item: RawGatewayEvent, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._inbox.put(item)

    def _direct_place(self, channel: str) -> DiscordPlace | None:
        return self._directory.places.get(channel) or self._directory.add_channel(
            {"id": channel, "type": 1}, ""
        )

    async def _fetch_histories(
        self, places: Sequence[DiscordPlace], since: int, emit: Emit
    ) -> bool:
        """Emit the missed messages of all places; return whether all histories could be read."""
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def fetch(place: DiscordPlace) -> bool:
            async with slots:
                return await self._fetch_history(place, since, emit)

        try:
            async with asyncio.TaskGroup() as tasks:
                fetching = [tasks.create_task(fetch(place)) for place in places]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return all(task.result() for task in fetching)

    async def _fetch_history(self, place: DiscordPlace, since: int, emit: Emit) -> bool:
        """Emit the messages of one place after `since`, oldest first; return whether its history
        could be read.
        """
        while True:
            try:
                answer = await self._api.call(
                    "GET",
                    "/channels/{channel_id}/messages",
                    params={"limit": _PAGE_SIZE, "after": since},
                    again=False,  # other work waits meanwhile
                    channel_id=place.id,
                )
            except (Rejected, Denied) as error:  # not readable for us, so nothing is missing
                logger.info("the history of %s is closed to us: %s", place.id, error.reason)
                return True
            except SendError as error:
                logger.warning("the history of %s could not be had: %s", place.id, error.reason)
                return False
            page = parse_messages(answer)
            parsed = [wire.parse_message(data, self._directory) for data in page]
            if new := self._drop_seen([message for message in parsed if message is not None]):
                logger.info("%d messages in %s were said while we were away", len(new), place.id)
                await emit(new)
            before, since = since, int(get_snowflake(page[-1], "id") or 0) if page else 0
            if len(page) < _PAGE_SIZE or since <= before:
                return True
