"""From raw events to what the gateway is told, in order, and with what was missed in between."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from channels.base import CommandSpec, Emit, Rejected, SendError
from channels.discord import wire
from channels.discord.backlog import GAP_EVENTS, LATE, DiscordBackfill
from channels.discord.directory import DiscordDirectory
from channels.discord.gaps import DiscordProgress
from channels.discord.ids import get_snowflake
from channels.discord.inbox import DiscordInbox, RawGatewayEvent
from channels.discord.rest import DiscordRestClient, fetch_channel
from channels.payload import Json, get_object, get_objects
from channels.tasks import cancel_and_wait
from gateway.clock import Clock
from gateway.events import Message, Notification
from gateway.ids import new_id

logger = logging.getLogger("reverie.discord")
_BATCH_SIZE = 256
_MAX_SEEN = 4096
_GUILDS_TIMEOUT_S = 5.0
CHANNEL_EVENT_PREFIXES = ("MESSAGE_", "INTERACTION_")
"""So begin the events that happen in a channel."""


class DiscordEventPipeline:
    """Reads the inbox: learns, fills gaps, emits."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: DiscordDirectory,
        progress: DiscordProgress,
        inbox: DiscordInbox,
        api: DiscordRestClient,
        began: Callable[[str], None],
        specs: Sequence[CommandSpec] = (),
    ) -> None:
        """`began` is told the cursor of each session as it begins, durable or not."""
        self._clock, self._directory, self._progress, self._specs = clock, directory, progress, specs
        self._inbox, self._api, self._on_session_begin = inbox, api, began
        self._backlog = DiscordBackfill(
            clock,
            rooms=rooms,
            directory=directory,
            progress=progress,
            api=api,
            new=self._drop_seen,
            later=self._put_delayed,
        )
        self._seen: OrderedDict[str, None] = OrderedDict()
        """Messages that went out lately: history and gateway tell some of them twice."""
        self._unresolved: set[str] = set()
        """Channels that Discord could not tell us of just then."""
        self._cursor = ""
        self._has_new_session = False
        """A session has begun, and where is not durable yet: messages missed before the first one count from there."""
        self._delayed: dict[asyncio.Task[None], int] = {}
        """What is put into the inbox later, and of which shard."""
        self.deleted_ids: set[str] = set()
        """Messages of ours that we took away ourselves."""

    async def run(self, emit: Emit) -> None:
        """Ends only by cancellation or by what `emit` raises."""
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
        """One event: what it teaches is kept, what it tells is given back. A bad one is dropped, with a log line."""
        try:
            data: Json = get_object({"d": item.data}, "d")
            self._directory.apply_event(item.event, data)
            if item.event.startswith(CHANNEL_EVENT_PREFIXES):
                await self._learn_place(data)
            now = self._clock.now()
            told = self._drop_seen(
                wire.parse_event(item.event, data, self._directory, now, new_id(now), specs=self._specs)
            )
            self._update_progress(item, data, told)
        except Exception:
            logger.exception("an event %.40r is dropped", item.event)
            return []
        if self._starts_gap(item):
            await self._backlog.fill(item, data, emit)
        return told

    def _update_progress(self, item: RawGatewayEvent, data: Json, told: Sequence[Notification]) -> None:
        """Keep what decides where a gap would begin."""
        number = get_snowflake(data, "id")
        match item.event:
            case "READY":
                guilds = [get_snowflake(guild, "id") for guild in get_objects(data, "guilds")]
                told_of = data.get("shard")
                shards = told_of[1] if isinstance(told_of, list) and len(told_of) > 1 else 1
                self._progress.begin_session(
                    item.shard,
                    filter(None, guilds),
                    self._clock.now(),
                    shards=shards if isinstance(shards, int) else 1,
                )
                self._has_new_session = True
                self._on_session_begin(self._progress.to_cursor())
                for task in [task for task, shard in self._delayed.items() if shard == item.shard]:
                    task.cancel()  # what it would ask for is of the session before
                self._put_delayed(_GUILDS_TIMEOUT_S, RawGatewayEvent(item.shard, LATE, {}))
            case "GUILD_DELETE":
                if data.get("unavailable") is True:
                    self._progress.open_gap(item.shard, number)
                else:
                    self._progress.close_gap(item.shard, number)
            case "MESSAGE_CREATE" if number:
                self._progress.record_message(item.shard, number, self._clock.now())
                if any(isinstance(event, Message) and event.kind == "direct" for event in told):
                    self._progress.record_direct(get_snowflake(data, "channel_id"), number)
            case _:
                pass

    def _drop_seen(self, told: Sequence[Notification]) -> list[Notification]:
        """Without messages that went out already, and without what we took away ourselves."""
        if len(self.deleted_ids) > _MAX_SEEN:
            self.deleted_ids.clear()
        new: list[Notification] = []
        for event in told:
            if isinstance(event, Message):
                if event.id in self._seen:
                    continue
                self._seen[event.id] = None
                if len(self._seen) > _MAX_SEEN:
                    self._seen.popitem(last=False)
            if event.kind == "deleted" and event.message in self.deleted_ids:
                self.deleted_ids.discard(event.message)
                continue
            new.append(event)
        return new

    async def _learn_place(self, data: Json) -> None:
        """A thread that nobody told us of (it was archived, or we just got in) is asked for."""
        channel, guild = get_snowflake(data, "channel_id"), get_snowflake(data, "guild_id")
        if not channel or not guild or (channel in self._directory.places and channel not in self._unresolved):
            return
        self._unresolved.discard(channel)
        told = get_object(data, "channel")
        if get_snowflake(told, "id") != channel:
            try:
                told = await fetch_channel(self._api, channel)
            except SendError as error:
                logger.warning("channel %s is not known: %s", channel, error.reason)
                if not isinstance(error, Rejected):
                    self._unresolved.add(channel)  # the next time it may be told
        if get_snowflake(told, "id") != channel or self._directory.add_channel(told, guild) is None:
            # It is at least in that guild; as a room of its own it is closed unless opened.
            self._directory.add_channel({"id": channel, "type": 0}, guild)

    def _put_delayed(self, delay_s: float, item: RawGatewayEvent) -> None:
        async def wait() -> None:
            await self._clock.sleep(delay_s)
            self._inbox.put(item)

        self._delayed[task := asyncio.create_task(wait())] = item.shard
        task.add_done_callback(self._delayed.pop)
