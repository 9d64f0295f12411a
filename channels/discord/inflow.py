"""Event pipeline: raw gateway events to emitted notifications, in order, with missed messages read
from the histories.

Discord keeps no queue for absent clients: missed messages are found by requesting each channel's
messages after the newest known one. Until that is done the durable position must not advance.
`DiscordProgress` (pure) tracks positions and gaps, `DiscordBackfill` reads the histories,
`DiscordEventPipeline` processes the inbox.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from channels.aio import BackpressureBuffer, cancel_and_wait
from channels.base import Denied, Emit, Rejected, SendError
from channels.discord import wire
from channels.discord.directory import ANY_ROOM, DiscordDirectory, DiscordPlace
from channels.discord.ids import get_snowflake, parse_id, snowflake_at
from channels.discord.rest import fetch_channel, parse_messages
from channels.text import Json, get_bool, get_int, get_object, get_objects, get_str
from gateway.core.clock import Clock, new_id
from gateway.core.events import Command, Message, Notification
from gateway.core.ratelimit import LruDict

if TYPE_CHECKING:
    from channels.discord.session import DiscordAccountState

logger = logging.getLogger("reverie.discord")
MAX_DIRECTS = 200
"""Direct chats that are remembered, the latest ones: Discord does not list them."""
_MARGIN = timedelta(seconds=60)
"""Messages arrive not quite in the order of their ids; repeated ones are recognised by their id."""
_MARGIN_SNOWFLAKES = int(_MARGIN / timedelta(milliseconds=1)) << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumableSession:
    """Session that a new connection can resume."""

    id: str
    seq: int
    gateway: str
    refused_count: int = 0
    """Consecutive attempts that were not granted."""


class DiscordProgress:
    """Position of each shard in the messages, and the gaps in what it has received."""

    def __init__(self, cursor: str | None, history_age_s: float) -> None:
        self._history_age = timedelta(seconds=min(history_age_s, 10.0**9))
        marks, self.direct_chats = _parse_cursor(cursor)
        self.session = parse_session(cursor)
        """Session of the first shard, which has the direct messages, up to the last event that was
        processed."""
        self._previous_mark = min(marks, default=None)
        """Position of the previous process, its earliest shard's, for the number of shards may have
        changed; None once every shard has begun from there."""
        self._marks: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._guessed: set[int] = set()
        """Shards whose position is from our own clock, which may be ahead of Discord's."""
        self._unseen_since = _parse_unseen(cursor)
        """Id after which direct chats that are not in `direct_chats` may have messages that were
        never received: a session was lost. None: they have none."""
        self._gaps: dict[int, set[str]] = {}
        """Shard -> guilds with an open gap; an empty name stands for direct chats, `ANY_ROOM` for
        any guild."""

    def begin_session(
        self, shard: int, guilds: Iterable[str], now: datetime, *, shards: int = 1
    ) -> None:
        """Begin a new session, one of `shards`, which may have missed messages everywhere.

        `guilds`: empty if Discord does not list them.
        """
        if shard not in self._marks and self._previous_mark is not None:
            self._marks[shard] = self._previous_mark
        has_position = shard in self._marks and self._history_age > timedelta(0)
        guild_gaps = set(guilds) or (
            {ANY_ROOM} if shards == 1 else set()
        )  # one of several shards may have no guild
        self._gaps[shard] = (
            guild_gaps | ({""} if self.direct_chats and not shard else set())
            if has_position
            else set()
        )
        if not has_position:
            self._marks[shard] = snowflake_at(now)
            self._guessed.add(shard)
        self._newest[shard] = max(self._newest.get(shard, 0), self._marks[shard])
        if len(self._marks) >= shards:
            self._previous_mark = None

    def open_gap(self, shard: int, guild: str) -> None:
        """Open a gap for a guild that became unavailable: its messages do not arrive now."""
        if self._history_age > timedelta(0):
            self._gaps.setdefault(shard, set()).add(guild)

    def has_gap(self, shard: int, guild: str) -> bool:
        """Return whether messages of the guild may be missing."""
        missing = self._gaps.get(shard, set())
        return guild in missing or (bool(guild) and ANY_ROOM in missing)

    def has_guild_gap(self, shard: int) -> bool:
        """Return whether messages of any guild may be missing."""
        return bool(self._gaps.get(shard, set()) - {""})

    def close_gap(self, shard: int, guild: str) -> None:
        """Close the gap: nothing is missing any more."""
        self._gaps.get(shard, set()).discard(guild)

    def record_message(self, shard: int, message: str, now: datetime) -> None:
        """Advance to a message that is being made durable. An id from the future advances to now
        only.
        """
        number = min(int(message), snowflake_at(now + _MARGIN))
        if shard in self._guessed:
            self._guessed.discard(shard)
            self._marks[shard], self._newest[shard] = min(self._marks.get(shard, number), number), 0
        self._newest[shard] = max(self._newest.get(shard, 0), number)

    def record_direct(self, direct: str) -> None:
        """Record that somebody spoke in a direct chat."""
        self.direct_chats.pop(direct, None)
        self.direct_chats[direct] = None
        while len(self.direct_chats) > MAX_DIRECTS:
            del self.direct_chats[next(iter(self.direct_chats))]

    def lose_directs(self) -> bool:
        """Record that a session with its direct messages is lost; return whether there may have
        been any.
        """
        mark = self._marks.get(0, self._previous_mark)
        if mark is None or self._history_age <= timedelta(0):
            return False
        mark = max(1, mark - _MARGIN_SNOWFLAKES)
        self._unseen_since = mark if self._unseen_since is None else min(mark, self._unseen_since)
        return True

    def unseen_after(self, direct: str) -> int | None:
        """Return the id after which messages of a direct chat may never have been received; None:
        it is known.
        """
        return None if direct in self.direct_chats else self._unseen_since

    def history_after(self, shard: int, now: datetime) -> int:
        """Return the id after which messages must be requested."""
        mark = self._marks.get(shard, self._previous_mark or 0)
        return max(mark - _MARGIN_SNOWFLAKES, snowflake_at(now - self._history_age))

    def exceeds_history_age(self, shard: int, now: datetime) -> bool:
        """Return whether the gap begins before the configured history age."""
        return self._marks.get(shard, 0) < snowflake_at(now - self._history_age)

    def to_cursor(self) -> str:
        """Return the state as text; the position of a shard with gaps is where they begin."""
        for shard, newest in self._newest.items():
            if not self._gaps.get(shard):
                self._marks[shard] = newest
        marks = {str(shard): str(mark) for shard, mark in sorted(self._marks.items())}
        if self._previous_mark is not None:
            marks["*"] = str(self._previous_mark)
        found: dict[str, object] = {"v": 1, "marks": marks, "directs": [*self.direct_chats]}
        if self._unseen_since is not None:
            found["unseen"] = str(self._unseen_since)
        if self.session is not None:
            found["session"] = [self.session.id, self.session.seq, self.session.gateway]
        return json.dumps(found, separators=(",", ":"))

    def record_event(self, shard: int, event: str, data: Json, seq: int) -> None:
        """Record that an event of a session is being made durable."""
        if shard:
            return
        if event == "READY":
            session, gateway = get_str(data, "session_id"), get_str(data, "resume_gateway_url")
            self.session = (
                ResumableSession(id=session, seq=seq, gateway=gateway)
                if session and gateway
                else None
            )
        elif self.session is not None and seq > self.session.seq:
            self.session = replace(self.session, seq=seq)


def _parse_cursor(cursor: str | None) -> tuple[list[int], dict[str, None]]:
    """Return positions and direct chats of a cursor, the latest last; empty if it is not one of
    ours.
    """
    try:
        found = json.loads(cursor or "{}")
        marks = [int(parse_id(mark)) for mark in found.get("marks", {}).values()]
        directs = dict.fromkeys(parse_id(direct) for direct in found.get("directs", ()))
        directs.pop("", None)
        return marks, directs
    except (ValueError, AttributeError, TypeError):
        return [], {}


def _parse_unseen(cursor: str | None) -> int | None:
    """Return the end of what is certainly known of all direct chats; None: it is not before the
    cursor.
    """
    try:
        return int(parse_id(json.loads(cursor or "{}").get("unseen"))) or None
    except (ValueError, AttributeError, TypeError):
        return None


def parse_session(cursor: str | None) -> ResumableSession | None:
    """Return the session that a cursor holds; None: none."""
    try:
        session, seq, gateway = json.loads(cursor or "{}").get("session", ())
    except (ValueError, AttributeError, TypeError):
        return None
    is_valid = isinstance(session, str) and isinstance(seq, int) and isinstance(gateway, str)
    return ResumableSession(id=session, seq=seq, gateway=gateway) if is_valid else None


def is_open_place(place: DiscordPlace, rooms: AbstractSet[str]) -> bool:
    """Return whether the place has messages and the operator has opened it: itself, its parent, its
    guild, or all.
    """
    return place.has_messages and (
        ANY_ROOM in rooms or bool({place.id, place.parent, place.guild} & rooms)
    )


def plan_history(
    places: Iterable[DiscordPlace], since: int, rooms: AbstractSet[str]
) -> list[DiscordPlace]:
    """Return the places to request messages after `since` from: all whose newest message is not
    known to be older.

    A place that is opened by its own id is always included: `last_message_id` need not be right.
    """
    return [
        place
        for place in places
        if is_open_place(place, rooms)
        and (place.id in rooms or not place.last_message or int(place.last_message) > since)
    ]


@dataclass(frozen=True, slots=True)
class RawGatewayEvent:
    """One unparsed event of the gateway."""

    shard: int
    event: str
    data: object
    seq: int = 0
    """Its number in the session; 0: it has none, or it is not of the session that runs."""
    unread: tuple["RawGatewayEvent", ...] = ()
    """Events of an earlier session that come after this one, and become durable with it."""


DiscordInbox: TypeAlias = BackpressureBuffer[RawGatewayEvent | Notification]
REFILL: Final = "_REFILL"
"""Event of our own: request a history again that could not be read."""
UNSEEN: Final = "_UNSEEN"
"""Event of our own: look again for earlier messages of a direct chat, whose history could not be
read."""
LATE: Final = "_LATE"
"""Event of our own: GUILD_CREATE should have arrived for all guilds by now."""
_TRIES_KEY: Final = "_tries"
GAP_EVENTS: Final = frozenset({"READY", "GUILD_CREATE", REFILL, LATE})
_PAGE_SIZE = 100
_MAX_CONCURRENT = 8
"""Histories that are requested at the same time; Discord allows 50 requests a second in total."""
_LOG_EVERY = 50
"""Histories between two log lines about the progress."""
_RETRY_FIRST_S, _RETRY_MAX_S = 2.0, 60.0
"""First and longest delay before a history is requested again; each failure doubles it."""


class DiscordBackfill:
    """Reader of missed messages; closes the gaps."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: DiscordDirectory,
        progress: DiscordProgress,
        pipeline: "DiscordEventPipeline",
    ) -> None:
        self._clock, self._rooms, self._directory, self._progress = (
            clock,
            rooms,
            directory,
            progress,
        )
        self._pipeline, self._api = pipeline, pipeline.api

    async def fill(self, item: RawGatewayEvent, data: Json, emit: Emit) -> None:
        """Emit the missed messages of a guild (or, at READY, of direct chats), and close the
        gap.
        """
        if item.event == LATE:
            await self._fill_unannounced(item.shard, emit, data)
            return
        shard, guild = item.shard, "" if item.event == "READY" else get_snowflake(data, "id")
        if not self._progress.has_gap(shard, guild):
            return
        if item.event == "GUILD_CREATE" and get_bool(data, "unavailable"):
            return  # another one follows after the outage
        now = self._clock.now()
        if guild:
            places = plan_history(
                self._directory.guild_places(guild),
                self._progress.history_after(shard, now),
                self._rooms,
            )
        else:  # all of them: Discord does not send their newest message ids
            latest_first = reversed(self._progress.direct_chats)
            places = [place for direct in latest_first if (place := self._direct_place(direct))]
        if places and self._progress.exceeds_history_age(shard, now):
            logger.warning(
                "what was said before the last `history_age` while we were away is not answered"
            )
        if await self._fetch_histories(places, self._progress.history_after(shard, now), emit):
            self._progress.close_gap(shard, guild)
        else:
            self._retry_later(shard, REFILL, data, guild)

    def _retry_later(self, shard: int, event: str, previous: Json, guild: str = "") -> None:
        tries = min(max(get_int(previous, _TRIES_KEY) or 0, 0), 9)
        self._pipeline.put_delayed(
            min(_RETRY_FIRST_S * 2.0**tries, _RETRY_MAX_S),
            RawGatewayEvent(shard, event, {"id": guild, _TRIES_KEY: tries + 1}),
        )

    async def _fill_unannounced(self, shard: int, emit: Emit, data: Json) -> None:
        """Emit missed messages of known rooms whose guild has not sent GUILD_CREATE in time.

        Their gaps stay open until it arrives. If Discord lists no guilds, it need not arrive.
        """
        if not self._progress.has_guild_gap(shard):
            return
        complete = True
        for room in self._rooms - {ANY_ROOM} - set(self._directory.places):
            try:
                channel = await fetch_channel(self._api, room)
            except Rejected:
                channel = {"id": room, "type": 0}  # perhaps a guild, which has no history
            except SendError as error:
                logger.warning("room %s is not known: %s", room, error.reason)
                complete = False
                continue
            self._directory.add_channel(channel, get_snowflake(channel, "guild_id"))
        places = [
            place
            for place in self._directory.places.values()
            if not place.is_direct
            and (not place.guild or self._progress.has_gap(shard, place.guild))
            and is_open_place(place, self._rooms)
        ]
        if (
            await self._fetch_histories(
                places, self._progress.history_after(shard, self._clock.now()), emit
            )
            and complete
        ):
            self._progress.close_gap(shard, ANY_ROOM)
        else:
            self._retry_later(shard, LATE, data)

    def _direct_place(self, channel: str) -> DiscordPlace | None:
        return self._directory.places.get(channel) or self._directory.add_channel(
            {"id": channel, "type": 1}, ""
        )

    async def _fetch_histories(
        self, places: Sequence[DiscordPlace], since: int, emit: Emit
    ) -> bool:
        """Emit the missed messages of all places; return whether all histories could be read."""
        slots, complete, done = asyncio.Semaphore(_MAX_CONCURRENT), True, 0

        async def fetch(place: DiscordPlace) -> None:
            nonlocal complete, done
            async with slots:
                complete = await self._fetch_history(place, since, emit) and complete
                done += 1
                if done % _LOG_EVERY == 0:
                    logger.info(
                        "asked %d of %d histories for what was said while we were away",
                        done,
                        len(places),
                    )

        try:
            async with asyncio.TaskGroup() as tasks:
                for place in places:
                    tasks.create_task(fetch(place))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return complete

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
            page = _messages_after(answer, since)
            if new := self._pipeline.drop_seen(self._parse(page)):
                logger.info("%d messages in %s were said while we were away", len(new), place.id)
                await emit(new)
            if len(page) < _PAGE_SIZE:
                return True
            since = int(get_snowflake(page[-1], "id"))

    async def read_unseen(self, shard: int, channel: str, previous: Json) -> Sequence[Notification]:
        """Return the newest messages of a direct chat that were said while a session ran that is
        lost, oldest first.

        None are missing if the chat is known. Otherwise it is known from now on, unless its history
        cannot be read: then this is tried again later; `previous` is the event of an earlier try.
        """
        since = self._progress.unseen_after(channel)
        if since is None:
            return ()
        try:
            answer = await self._api.call(
                "GET",
                "/channels/{channel_id}/messages",
                params={"limit": _PAGE_SIZE},
                again=False,  # other work waits meanwhile
                channel_id=channel,
            )
        except (Rejected, Denied) as error:
            logger.info("the history of %s is closed to us: %s", channel, error.reason)
            answer = None
        except SendError as error:
            logger.warning("the history of %s could not be had: %s", channel, error.reason)
            self._retry_later(shard, UNSEEN, previous, channel)
            return ()
        self._progress.record_direct(channel)
        return self._pipeline.drop_seen(self._parse(_messages_after(answer, since)))

    def _parse(self, page: Iterable[Json]) -> list[Message]:
        return [
            event
            for data in page
            if (event := wire.parse_message(data, self._directory)) is not None
        ]


def _messages_after(answer: object, since: int) -> list[Json]:
    """Return the message objects in an answer whose id is greater, oldest first."""
    return [data for data in parse_messages(answer) if int(get_snowflake(data, "id") or 0) > since]


def _is_direct(notifications: Sequence[Notification]) -> bool:
    """Return whether somebody speaks to us in a direct chat, be it by a command."""
    return any(
        event.direct
        if isinstance(event, Command)
        else isinstance(event, Message) and event.kind == "direct"
        for event in notifications
    )


_BATCH_SIZE = 256
_MAX_SEEN = 4096
_GUILDS_TIMEOUT_S = 5.0
CHANNEL_EVENT_PREFIXES = ("MESSAGE_", "INTERACTION_")
"""Prefixes of events that happen in a channel."""


class DiscordEventPipeline:
    """Processor of the inbox: learns places, fills gaps, emits."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: DiscordDirectory,
        progress: DiscordProgress,
        inbox: DiscordInbox,
        state: "DiscordAccountState",
    ) -> None:
        """Read `inbox`."""
        self._clock, self._directory, self._progress, self._inbox = (
            clock,
            directory,
            progress,
            inbox,
        )
        self._state, self.api = state, state.api
        self._backlog = DiscordBackfill(
            clock, rooms=rooms, directory=directory, progress=progress, pipeline=self
        )
        self._seen = LruDict[str, None](_MAX_SEEN)
        """Recently emitted messages: history and gateway send some of them twice."""
        self._unresolved: set[str] = set()
        """Channels that Discord could not describe at the first attempt."""
        self._cursor = ""
        self._has_new_session = False
        """A session has begun, and its position is not durable yet: messages missed before the
        first one count from there."""
        self._delayed: dict[asyncio.Task[None], int] = {}
        """Tasks that add an event to the inbox later, with its shard."""
        self.deleted_ids: set[str] = set()
        """Messages of ours that we deleted ourselves."""

    async def run(self, emit: Emit) -> None:
        """Process events. Ends only by cancellation or by an error of `emit`."""
        try:
            while True:
                batch: list[Notification] = []
                for item in await self._inbox.get_batch(_BATCH_SIZE):
                    if not isinstance(item, RawGatewayEvent):
                        batch.append(item)
                        continue
                    if self._starts_gap(item):
                        await self._flush(emit, batch)
                        batch = []
                    batch += await self._process(item, emit)
                    for unread in item.unread:
                        batch += await self._process(
                            RawGatewayEvent(item.shard, unread.event, unread.data), emit
                        )
                await self._flush(emit, batch)
        finally:
            await cancel_and_wait(*self._delayed)

    async def _flush(self, emit: Emit, batch: Sequence[Notification]) -> None:
        cursor = self._progress.to_cursor()
        if batch or self._has_new_session:
            await emit(batch, cursor=None if cursor == self._cursor else cursor)
            self._cursor, self._has_new_session = cursor, False

    def _starts_gap(self, item: RawGatewayEvent) -> bool:
        return item.event in GAP_EVENTS

    async def _process(self, item: RawGatewayEvent, emit: Emit) -> Sequence[Notification]:
        """Process one event and return its notifications. An event that fails is dropped and
        logged.
        """
        try:
            data: Json = get_object({"d": item.data}, "d")
            self._progress.record_event(item.shard, item.event, data, item.seq)
            self._directory.apply_event(item.event, data)
            if item.event.startswith(CHANNEL_EVENT_PREFIXES):
                await self._learn_place(data)
            now = self._clock.now()
            notifications = self.drop_seen(
                wire.parse_event(
                    item.event,
                    data,
                    self._directory,
                    now,
                    new_id(now),
                    specs=self._state.interactions.specs,
                )
            )
            if item.event == UNSEEN or _is_direct(notifications):
                channel = get_snowflake(data, "id" if item.event == UNSEEN else "channel_id")
                notifications = [
                    *await self._backlog.read_unseen(item.shard, channel, data),
                    *notifications,
                ]
            self._update_progress(item, data, notifications)
        except Exception:
            logger.exception("an event %.40r is dropped", item.event)
            return []
        if self._starts_gap(item):
            if (
                not item.unread
            ):  # else the session before this one is needed until these are durable
                await self._flush(emit, ())
            await self._backlog.fill(item, data, emit)
        return notifications

    def _update_progress(
        self, item: RawGatewayEvent, data: Json, notifications: Sequence[Notification]
    ) -> None:
        """Update positions and gaps."""
        number = get_snowflake(data, "id")
        match item.event:
            case "READY":
                guilds = [get_snowflake(guild, "id") for guild in get_objects(data, "guilds")]
                shard_info = data.get("shard")
                shards = (
                    shard_info[1] if isinstance(shard_info, list) and len(shard_info) > 1 else 1
                )
                self._progress.begin_session(
                    item.shard,
                    filter(None, guilds),
                    self._clock.now(),
                    shards=shards if isinstance(shards, int) else 1,
                )
                self._has_new_session = True
                self._state.begin_session(self._progress.to_cursor())
                for task in [task for task, shard in self._delayed.items() if shard == item.shard]:
                    task.cancel()  # it belongs to the previous session
                self.put_delayed(_GUILDS_TIMEOUT_S, RawGatewayEvent(item.shard, LATE, {}))
            case "GUILD_DELETE":
                if data.get("unavailable") is True:
                    self._progress.open_gap(item.shard, number)
                else:
                    self._progress.close_gap(item.shard, number)
            case "MESSAGE_CREATE" if number:
                self._progress.record_message(item.shard, number, self._clock.now())
            case _:
                pass
        channel = get_snowflake(data, "channel_id")
        if channel and _is_direct(notifications) and self._progress.unseen_after(channel) is None:
            self._progress.record_direct(channel)

    def drop_seen(self, notifications: Sequence[Notification]) -> list[Notification]:
        """Return the notifications without repeated messages and without deletions of our own."""
        if len(self.deleted_ids) > _MAX_SEEN:
            self.deleted_ids.clear()
        new: list[Notification] = []
        for event in notifications:
            if isinstance(event, Message):
                if event.id in self._seen:
                    continue
                self._seen.put(event.id, None)
                if event.opens_thread:
                    self._directory.plan_thread(event.at)
            if event.kind == "deleted" and event.message in self.deleted_ids:
                self.deleted_ids.discard(event.message)
                continue
            new.append(event)
        return new

    async def _learn_place(self, data: Json) -> None:
        """Request an unknown channel of a guild: a thread that was archived, or that existed before
        we joined.
        """
        channel, guild = get_snowflake(data, "channel_id"), get_snowflake(data, "guild_id")
        if (
            not channel
            or not guild
            or (channel in self._directory.places and channel not in self._unresolved)
        ):
            return
        self._unresolved.discard(channel)
        description = get_object(data, "channel")
        if get_snowflake(description, "id") != channel:
            try:
                description = await fetch_channel(self.api, channel)
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

    def put_delayed(self, delay_s: float, item: RawGatewayEvent) -> None:
        async def wait() -> None:
            await self._clock.sleep(delay_s)
            self._inbox.put(item)

        self._delayed[task := asyncio.create_task(wait())] = item.shard
        task.add_done_callback(self._delayed.pop)
