"""One run of a Discord account: logged in, connected, and everything that lives as long as that."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp
import discord

from channels.backoff import Backoff
from channels.base import CommandSpec, Denied, Emit
from channels.discord.client import Client
from channels.discord.config import DiscordConfig
from channels.discord.directory import Directory
from channels.discord.gaps import Progress
from channels.discord.inbox import Inbox, Raw
from channels.discord.inflow import Inflow
from channels.discord.interactions import Answers
from channels.discord.rest import Api
from channels.discord.shards import Shards
from channels.tasks import end
from gateway.clock import Clock
from gateway.events import ChannelName, EventId, Link
from gateway.ids import new_id

_LOG = logging.getLogger("reverie.discord")


class Life:
    """What the channel holds while it runs."""

    def __init__(
        self,
        name: ChannelName,
        config: DiscordConfig,
        clock: Clock,
        *,
        random: Callable[[], float],
        commands: Sequence[CommandSpec],
        directory: Directory,
        progress: Progress,
    ) -> None:
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._directory = directory
        self.api = Api()
        self.answers = Answers(self.api, clock, commands)
        self.inbox = Inbox()
        self.inflow = Inflow(
            clock,
            rooms=frozenset(config.rooms),
            directory=directory,
            progress=progress,
            inbox=self.inbox,
            api=self.api,
        )
        self._shards: Shards | None = None
        self._up: bool | None = None

    async def run(self, emit: Emit) -> None:
        """As `Channel.run`."""
        await self.inbox.between(self._stay_connected(), self.inflow.run(emit))

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while True:
            try:
                reason = await self._logged_in()
            except Denied as denied:
                self._link(False, denied.reason)
                raise
            self._link(False, reason)
            delay_s = backoff.next_s(0.0, self._random())
            _LOG.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _logged_in(self) -> str:
        """Log in and stay; why it could not log in. Raises `Denied`."""
        client = self.client()
        registering: asyncio.Task[None] | None = None
        try:
            try:
                me = await client.enter(self._config.token.get_secret_value().strip())
            except discord.LoginFailure:
                raise Denied("Discord refuses the token: copy it again from the developer portal") from None
            except (discord.DiscordException, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
                return f"cannot log in to Discord: {type(error).__name__}"
            self._directory.me = me or self._directory.me
            self.api.client = client
            registering = asyncio.create_task(self.answers.register())
            await self.connected(client)
            return "the connection has ended"
        finally:
            self.api.client = None
            await end(*([registering] if registering else []))
            await self.answers.close()
            await client.http.close()

    def client(self) -> Client:
        """What is logged in with."""
        return Client(self._config, self.take)

    async def connected(self, client: Client) -> None:
        """Be connected to the gateway. Ends only by cancellation or `Denied`."""
        self._shards = Shards(
            client,
            self._config,
            self._clock,
            random=self._random,
            inbox=self.inbox,
            api=self.api,
            link=self._link,
        )
        await self._shards.run()

    def take(self, shard: int, event: str, data: object) -> None:
        """What the gateway tells, as it comes. Never waits, never raises."""
        if event in {"READY", "RESUMED"}:
            if self._shards is None:
                self._link(True, "connected to Discord")
            else:
                self._shards.came_up(shard)
        elif event == "INTERACTION_CREATE":
            self.answers.asked(data)
        self.inbox.put(Raw(shard, event, data))

    def _link(self, up: bool, reason: str) -> None:
        if self._up is not up:
            self._up = up
            now = self._clock.now()
            self.inbox.put(Link(id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now))
