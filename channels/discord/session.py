"""One run of a Discord account, from login to stop, and the state that is kept between runs."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

import aiohttp
import discord

from channels.aio import Backoff, cancel_and_wait
from channels.base import CommandSpec, Denied, Emit
from channels.discord.config import DiscordConfig
from channels.discord.directory import DiscordDirectory
from channels.discord.gateway import DiscordGateway
from channels.discord.ids import get_snowflake
from channels.discord.inflow import (
    DiscordEventPipeline,
    DiscordInbox,
    DiscordProgress,
    RawGatewayEvent,
)
from channels.discord.interactions import InteractionResponder
from channels.discord.rest import DiscordClient, DiscordRestClient, describe_failure
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId

logger = logging.getLogger("reverie.discord")


class DiscordAccountState:
    """State of an account that outlives a run."""

    def __init__(
        self,
        clock: Clock,
        directory: DiscordDirectory,
        commands: Sequence[CommandSpec],
        cursor: str | None,
    ) -> None:
        self.api = DiscordRestClient()
        self.interactions = InteractionResponder(self.api, clock, directory, commands)
        """Commands may be answered for a quarter of an hour, across connections."""
        self.inbox = DiscordInbox()
        """With the events that were not emitted when a run ended."""
        self.identified_s = -math.inf
        """Monotonic time of the latest request for a new session."""
        self.cursor = cursor
        """Position up to which all events are certainly durable. None: no session has begun."""


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
        self.api, self.interactions, self.inbox = state.api, state.interactions, state.inbox
        self.progress = DiscordProgress(state.cursor, config.history_age)
        self.pipeline = DiscordEventPipeline(
            clock,
            rooms=frozenset(config.rooms),
            directory=directory,
            progress=self.progress,
            state=state,
        )
        self.is_replaying = False
        """True while an earlier process's session is resumed for its direct messages."""
        self.up: bool | None = None
        """Last reported state of the link. None: none was reported."""

    async def run(self, emit: Emit) -> None:
        """Log in, connect and emit. Ends only by cancellation, by `Denied`, or by an error of
        `emit`.
        """
        try:
            await self.inbox.run_producer_consumer(self._stay_connected(), self.pipeline.run(emit))
        finally:
            self.inbox.filter_pending(lambda item: isinstance(item, RawGatewayEvent))

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
        try:
            client = DiscordClient(self._config, self)
        except ValueError as error:  # of the environment's proxy
            raise Denied(str(error)) from None
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
            application = str(client.application_id)
            registering = asyncio.create_task(self.interactions.register_commands(application))
            await DiscordGateway(client, self._config, self._clock, self).run()
        finally:
            self.api.client = None
            await cancel_and_wait(*([registering] if registering else []))
            await self.interactions.close()
            await client.close()

    def handle_raw_event(self, event: str, data: object, seq: int) -> None:
        """Queue an event of the gateway. Never waits, never raises."""
        if self.is_replaying:
            # The rest of what was missed is in the histories.
            if not event.startswith("MESSAGE_") or get_snowflake(data, "guild_id"):
                return
        elif event == "INTERACTION_CREATE":
            data = self.interactions.handle_interaction(data)
        self.inbox.put(RawGatewayEvent(event, data, seq))

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
