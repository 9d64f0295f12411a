"""One run of a Discord account, from login to stop, and the state that is kept between runs."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp
import discord

from channels.aio import Backoff, cancel_and_wait
from channels.base import CommandSpec, Denied, Emit
from channels.discord.config import DiscordConfig
from channels.discord.directory import DiscordDirectory
from channels.discord.gateway import DiscordShards, IdentifyLimiter
from channels.discord.ids import get_snowflake
from channels.discord.inflow import (
    CHANNEL_EVENT_PREFIXES,
    DiscordEventPipeline,
    DiscordInbox,
    DiscordProgress,
    RawGatewayEvent,
    ResumableSession,
    parse_session,
)
from channels.discord.interactions import AutocompleteResponder, InteractionResponder
from channels.discord.rest import DiscordClient, DiscordRestClient, describe_failure
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId, Notification

logger = logging.getLogger("reverie.discord")


class DiscordAccountState:
    """State of an account that outlives a run."""

    def __init__(self, clock: Clock, commands: Sequence[CommandSpec], cursor: str | None) -> None:
        self.api = DiscordRestClient()
        self.interactions = InteractionResponder(self.api, clock, commands)
        """Commands may be answered for a quarter of an hour, across connections."""
        self.identify_limiter = IdentifyLimiter()
        self.cursor = cursor
        """Position up to which all events are certainly durable. None: no session has begun."""
        self.previous_session: ResumableSession | None = parse_session(cursor)
        """Session of an earlier process. None: there was none, or it has been tried."""
        self.unread_events: list[RawGatewayEvent] = []
        """Channel events that are not known to be durable."""

    def begin_session(self, cursor: str) -> None:
        """Record the start of the first session: later messages count as missed if they do not
        arrive.
        """
        self.cursor = self.cursor or cursor

    def take_unread(self, guild: str) -> list[RawGatewayEvent]:
        """Remove and return the unread events of a guild; empty: of direct chats."""
        taken = [
            item for item in self.unread_events if get_snowflake(item.data, "guild_id") == guild
        ]
        self.unread_events = [
            item for item in self.unread_events if get_snowflake(item.data, "guild_id") != guild
        ]
        return taken

    def track_cursor(self, emit: Emit) -> Emit:
        """Return an `emit` that records the durable cursor."""

        async def tracked_emit(batch: Sequence[Notification], *, cursor: str | None = None) -> None:
            await emit(batch, cursor=cursor)
            self.cursor = cursor or self.cursor

        return tracked_emit


class DiscordSession:
    """Objects of one run of the channel."""

    def __init__(
        self,
        name: ChannelName,
        config: DiscordConfig,
        clock: Clock,
        *,
        random: Callable[[], float],
        directory: DiscordDirectory,
        state: DiscordAccountState,
    ) -> None:
        self._name, self._config, self._clock, self.random = name, config, clock, random
        self._directory, self.state = directory, state
        self.api, self.interactions = state.api, state.interactions
        self.inbox = DiscordInbox()
        self._progress = DiscordProgress(state.cursor, config.history_age)
        self.pipeline = DiscordEventPipeline(
            clock,
            rooms=frozenset(config.rooms),
            directory=directory,
            progress=self._progress,
            inbox=self.inbox,
            state=state,
        )
        self.autocomplete = AutocompleteResponder(self.api, clock, directory)
        self.is_replaying = False
        """True while an earlier process's session is resumed for its direct messages."""
        self._shards: DiscordShards | None = None
        self.up: bool | None = None
        """Last reported state of the link. None: none was reported."""

    async def run(self, emit: Emit) -> None:
        """Log in, connect and emit. Ends only by cancellation, by `Denied`, or by an error of
        `emit`.
        """
        state = self.state
        try:
            await self.inbox.run_producer_consumer(
                self._stay_connected(), self.pipeline.run(state.track_cursor(emit))
            )
        finally:
            state.previous_session = self._progress.session
            pending = (
                item
                for item in self.inbox.filter_pending(lambda _: True)
                if isinstance(item, RawGatewayEvent)
            )
            unread = (one for item in pending for one in (item, *item.unread))
            state.unread_events = [
                *(item for item in unread if item.event.startswith(CHANNEL_EVENT_PREFIXES)),
                *state.unread_events,
            ]

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while True:
            try:
                reason = await self._run_logged_in()
            except Denied as denied:
                self.report_link(False, denied.reason)
                raise
            self.report_link(False, reason)
            delay_s = backoff.next_delay_s(0.0, self.random())
            logger.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _run_logged_in(self) -> str:
        """Log in and stay connected; return why the login failed. Raises `Denied`."""
        client = self.create_client()
        registering: asyncio.Task[None] | None = None
        try:
            try:
                own_id = await client.log_in(self._config.token.get_secret_value().strip())
            except discord.LoginFailure:
                raise Denied(
                    "Discord refuses the token: copy it again from the developer portal"
                ) from None
            except (
                discord.DiscordException,
                aiohttp.ClientError,
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ) as error:
                return f"cannot log in to Discord: {describe_failure(error)}"
            self._directory.own_id = own_id or self._directory.own_id
            self.api.client = client
            registering = asyncio.create_task(self.interactions.register_commands(client))
            await self.run_gateway(client)
            return "the connection has ended"
        finally:
            self.api.client = None
            await cancel_and_wait(*([registering] if registering else []))
            await self.interactions.close()
            await self.autocomplete.close()
            await client.close()

    def create_client(self, shard: int | None = None, shards: int | None = None) -> DiscordClient:
        """Return a client to log in with. Raises `Denied`."""
        try:
            return DiscordClient(self._config, self, shard=shard, shards=shards)
        except ValueError as error:  # of the environment's proxy
            raise Denied(str(error)) from None

    async def run_gateway(self, client: DiscordClient) -> None:
        """Stay connected to the gateway. Ends only by cancellation or `Denied`."""
        self._shards = DiscordShards(client, self._config, self._clock, self)
        await self._shards.run()

    def handle_raw_event(self, shard: int, event: str, data: object, seq: int) -> None:
        """Queue an event of the gateway. Never waits, never raises."""
        if self.is_replaying and not shard:
            if event == "MESSAGE_CREATE" and not get_snowflake(data, "guild_id"):
                self.state.unread_events.append(RawGatewayEvent(shard, event, data))
            return
        if event == "INTERACTION_CREATE":
            self.interactions.handle_interaction(data)
            data = self.autocomplete.handle_interaction(data)
        # The histories are read after these events, and the unread events are newer than the
        # histories.
        unread = list[RawGatewayEvent]()
        if event == "READY" and not shard:
            unread = self.state.take_unread("")
        elif event == "GUILD_CREATE" and (guild := get_snowflake(data, "id")):
            unread = self.state.take_unread(guild)
        self.inbox.put(RawGatewayEvent(shard, event, data, seq, unread=tuple(unread)))

    def report_lost_directs(self) -> None:
        """Record that the session before a new one is lost, and with it direct messages in chats
        that are not known.
        """
        if self._progress.lose_directs():
            logger.warning(
                "%s: Discord does not give back the session before this one; what was written "
                "meanwhile in direct chats that are new to me is read when its author writes again",
                self._name,
            )

    def report_link(self, up: bool, reason: str) -> None:
        """Emit the state of the link, if it has changed."""
        if self.up is not up:
            self.up = up
            now = self._clock.now()
            self.inbox.put(
                ConnectionChanged(
                    id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now
                )
            )
