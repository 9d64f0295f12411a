"""From raw events to what the gateway is told, in order, and with what was missed in between."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from channels.base import CommandSpec, Emit, Rejected, SendError
from channels.discord import wire
from channels.discord.backlog import BEGIN_A_GAP, LATE, Backlog
from channels.discord.directory import Directory
from channels.discord.gaps import Progress
from channels.discord.ids import snowflake
from channels.discord.inbox import Inbox, Raw
from channels.discord.rest import Api, channel_of
from channels.payload import Json, obj, objs
from channels.tasks import end
from gateway.clock import Clock
from gateway.events import Message, Notification
from gateway.ids import new_id

_LOG = logging.getLogger("reverie.discord")
_BATCH = 256
_REMEMBERED = 4096
_LATE_S = 5.0
IN_CHANNELS = ("MESSAGE_", "INTERACTION_")
"""So begin the events that happen in a channel."""


class Inflow:
    """Reads the inbox: learns, fills gaps, emits."""

    def __init__(
        self,
        clock: Clock,
        *,
        rooms: AbstractSet[str],
        directory: Directory,
        progress: Progress,
        inbox: Inbox,
        api: Api,
        began: Callable[[str], None],
        specs: Sequence[CommandSpec] = (),
    ) -> None:
        """`began` is told the cursor of each session as it begins, durable or not."""
        self._clock, self._directory, self._progress, self._specs = clock, directory, progress, specs
        self._inbox, self._api, self._on_session_begin = inbox, api, began
        self._backlog = Backlog(
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
                for item in await self._inbox.get_batch(_BATCH):
                    if not isinstance(item, Raw):
                        batch.append(item)
                        continue
                    if self._starts_gap(item):
                        await self._flush(emit, batch)
                        batch = []
                    batch += await self._process(item, emit)
                await self._flush(emit, batch)
        finally:
            await end(*self._delayed)

    async def _flush(self, emit: Emit, batch: Sequence[Notification]) -> None:
        cursor = self._progress.to_cursor()
        if batch or self._has_new_session:
            await emit(batch, cursor=None if cursor == self._cursor else cursor)
            self._cursor, self._has_new_session = cursor, False

    def _starts_gap(self, item: Raw) -> bool:
        return item.event in BEGIN_A_GAP

    async def _process(self, item: Raw, emit: Emit) -> Sequence[Notification]:
        """One event: what it teaches is kept, what it tells is given back. A bad one is dropped, with a log line."""
        try:
            data: Json = obj({"d": item.data}, "d")
            self._directory.apply_event(item.event, data)
            if item.event.startswith(IN_CHANNELS):
                await self._learn_place(data)
            now = self._clock.now()
            told = self._drop_seen(wire.read(item.event, data, self._directory, now, new_id(now), specs=self._specs))
            self._update_progress(item, data, told)
        except Exception:  # noqa: BLE001 - whatever a payload breaks, the next one is another
            _LOG.exception("an event %.40r is dropped", item.event)
            return []
        if self._starts_gap(item):
            await self._backlog.fill(item, data, emit)
        return told

    def _update_progress(self, item: Raw, data: Json, told: Sequence[Notification]) -> None:
        """Keep what decides where a gap would begin."""
        number = snowflake(data, "id")
        match item.event:
            case "READY":
                guilds = [snowflake(guild, "id") for guild in objs(data, "guilds")]
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
                self._put_delayed(_LATE_S, Raw(item.shard, LATE, {}))
            case "GUILD_DELETE":
                if data.get("unavailable") is True:
                    self._progress.open_gap(item.shard, number)
                else:
                    self._progress.close_gap(item.shard, number)
            case "MESSAGE_CREATE" if number:
                self._progress.record_message(item.shard, number, self._clock.now())
                if any(isinstance(event, Message) and event.kind == "direct" for event in told):
                    self._progress.record_direct(snowflake(data, "channel_id"), number)
            case _:
                pass

    def _drop_seen(self, told: Sequence[Notification]) -> list[Notification]:
        """Without messages that went out already, and without what we took away ourselves."""
        if len(self.deleted_ids) > _REMEMBERED:
            self.deleted_ids.clear()
        new: list[Notification] = []
        for event in told:
            if isinstance(event, Message):
                if event.id in self._seen:
                    continue
                self._seen[event.id] = None
                if len(self._seen) > _REMEMBERED:
                    self._seen.popitem(last=False)
            if event.kind == "deleted" and event.message in self.deleted_ids:
                self.deleted_ids.discard(event.message)
                continue
            new.append(event)
        return new

    async def _learn_place(self, data: Json) -> None:
        """A thread that nobody told us of (it was archived, or we just got in) is asked for."""
        channel, guild = snowflake(data, "channel_id"), snowflake(data, "guild_id")
        if not channel or not guild or (channel in self._directory.places and channel not in self._unresolved):
            return
        self._unresolved.discard(channel)
        told = obj(data, "channel")
        if snowflake(told, "id") != channel:
            try:
                told = await channel_of(self._api, channel)
            except SendError as error:
                _LOG.warning("channel %s is not known: %s", channel, error.reason)
                if not isinstance(error, Rejected):
                    self._unresolved.add(channel)  # the next time it may be told
        if snowflake(told, "id") != channel or self._directory.add_channel(told, guild) is None:
            # It is at least in that guild; as a room of its own it is closed unless opened.
            self._directory.add_channel({"id": channel, "type": 0}, guild)

    def _put_delayed(self, delay_s: float, item: Raw) -> None:
        async def wait() -> None:
            await self._clock.sleep(delay_s)
            self._inbox.put(item)

        self._delayed[task := asyncio.create_task(wait())] = item.shard
        task.add_done_callback(self._delayed.pop)
