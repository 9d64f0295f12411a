"""What we use of discord.py has public names, and simcord, somebody else's model of Discord, agrees
with us."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import simcord

from channels.base import CommandArg, CommandSpec
from channels.discord.channel import DiscordChannel
from channels.discord.config import DiscordConfig
from channels.discord.rest import EVENTS, DiscordClient
from channels.discord.session import DiscordAccountState, DiscordSession
from gateway.core.clock import SystemClock
from gateway.core.events import MessageDeleted, MessageEdited, ReactionChanged, RoomId
from tests.channels.discord.channel_kit import NAME, Running, part, place

COMMANDS = (
    CommandSpec(name="status", summary="Show how it goes"),
    CommandSpec(
        name="log",
        summary="Show the log",
        args=(CommandArg(name="entry", summary="Which"),),
        private=True,
    ),
)


class _Clock(SystemClock):
    """The time that it is in the simulation."""

    env: simcord.Env | None = None

    def now(self) -> datetime:
        return self.env.now() if self.env else super().now()

    def monotonic(self) -> float:
        return self.now().timestamp()


class _Life(DiscordSession):
    """Its client is simcord's already: logged in, and fed."""

    simulated: DiscordClient

    async def _run_logged_in(self) -> str:
        self._directory.own_id = str(self.simulated.user.id) if self.simulated.user else ""
        self.api.client = self.simulated
        try:
            await self.interactions.register_commands(self.simulated)
            self.report_link(True, "simulated")
            await asyncio.Event().wait()
        finally:
            self.api.client = None
            await self.interactions.close()
        return ""


class _Channel(DiscordChannel):
    made: _Life

    def create_session(self) -> DiscordSession:
        return self.made


@contextlib.asynccontextmanager
async def simulated(
    *rooms: str, commands: Sequence[CommandSpec] = COMMANDS
) -> AsyncIterator[tuple[simcord.Env, Running]]:
    config = DiscordConfig.model_validate(
        {"platform": "discord", "token": "simcord", "rooms": rooms}
    )
    clock = _Clock()
    channel = _Channel(NAME, config, clock, commands=commands)
    life = channel.made = _Life(
        NAME,
        config,
        clock,
        random=lambda: 0.0,
        directory=channel._directory,
        state=DiscordAccountState(clock, commands, None),
    )
    client = life.simulated = DiscordClient(config, life)
    _also_for_simcord(client)
    async with simcord.run(client) as env:
        clock.env = env
        run = Running(channel)
        await run.up()
        await env.settle()
        try:
            yield env, run
        finally:
            await run.end()


def _also_for_simcord(client: DiscordClient) -> None:
    """It has no socket and no HTTP, so it hands events to the library's readers, and answers its
    requests."""
    state: Any = client._connection

    def both(event: str, theirs: Any) -> Any:
        def parse(data: Any) -> None:
            client.handle_event(event, data, 0)
            if event != "INTERACTION_CREATE":
                theirs(data)

        return parse

    async def request(route: Any, *, middlewares: object, **more: Any) -> Any:
        del middlewares
        return await client.http.request(route, **more)

    state.parsers |= {
        event: both(event, theirs) for event, theirs in state.parsers.items() if event in EVENTS
    }
    vars(client)["_request_of_library"] = request


async def test_what_people_do_arrives() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        said = await ann.send(room, f"<@{env.backend.bot_user.id}> hello")
        message = await run.message()
        assert (message.at, message.kind, message.sender.id) == (
            place(str(room.id)),
            "mention",
            str(ann.id),
        )
        assert run.channel.space(RoomId(str(room.id))) == str(guild.id)
        await ann.edit(said, "hello you")
        assert (await run.one(MessageEdited)).text == "hello you"
        await ann.react(said, "👍")
        assert (await run.one(ReactionChanged)).reaction == "👍"
        await ann.delete(said)
        assert (await run.one(MessageDeleted)).message == message.id


async def test_a_direct_message_is_answered_in_its_channel() -> None:
    async with simulated() as (env, run):
        ann = env.create_user("ann")
        await ann.send_dm("hello")
        message = await run.message()
        assert message.kind == "direct"
        assert run.channel.space(message.at.room) is None
        await run.channel.send(part("hello too", message.at.room))
        assert [shown.content for shown in ann.dm_channel.history()] == ["hello", "hello too"]


async def test_a_command_is_registered_acknowledged_and_answered() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        assert set(ann.available_commands(room)) == {"status", "log"}
        result = await ann.slash(room, "status")
        assert result.deferred
        command = await run.command()
        assert (command.name, command.args, command.origin, command.direct) == (
            "status",
            "",
            "native",
            False,
        )
        assert (command.sender.id, command.at) == (str(ann.id), place(str(room.id)))
        await run.channel.send(part("all is well", str(room.id), reply_to=command.id))
        assert result.response is not None
        assert result.response.content == "all is well"
        assert not result.response.ephemeral
        await run.channel.send(part("and more", str(room.id), key="post#1"))
        assert room.last_message is not None
        assert room.last_message.content == "and more"
