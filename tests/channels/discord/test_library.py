"""What we use of discord.py has public names, and simcord, somebody else's model of Discord, agrees with us."""

import ast
import asyncio
import contextlib
import importlib
import inspect
import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import discord
import pytest
import simcord
from discord.gateway import DiscordWebSocket, KeepAliveHandler, ReconnectWebSocket
from discord.http import HTTPClient, Route

from channels.base import CommandArg, CommandCompletion, CommandSpec, Rejected
from channels.discord.channel import DiscordChannel
from channels.discord.config import DiscordConfig
from channels.discord.gateway import GatewaySocket
from channels.discord.rest import EVENTS, DiscordClient
from channels.discord.session import DiscordAccountState, DiscordSession
from gateway.commands.table import COMMAND_SPECS
from gateway.core.clock import SystemClock
from gateway.core.events import MessageDeleted, MessageEdited, ReactionChanged, RoomId
from tests.channels.discord.channel_kit import NAME, Running, part, place

PACKAGE = Path(__file__).parents[3] / "channels" / "discord"


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (HTTPClient, "request", {"route", "kwargs"}),
        (HTTPClient, "__init__", {"connector"}),
        (Route, "__init__", {"method", "path", "parameters"}),
        (
            DiscordWebSocket,
            "from_client",
            {"client", "initial", "gateway", "shard_id", "session", "sequence", "resume"},
        ),
        (DiscordWebSocket, "__init__", {"socket", "loop"}),
        (DiscordWebSocket, "log_receive", {"_"}),
        (DiscordWebSocket, "poll_event", set()),
        (DiscordWebSocket, "send_as_json", {"data"}),
        (DiscordWebSocket, "resume", set()),
        (DiscordWebSocket, "close", {"code"}),
        (KeepAliveHandler, "__init__", {"ws"}),
        (ReconnectWebSocket, "__init__", {"shard_id", "resume"}),
    ],
)
def test_a_name_that_we_lean_on_exists(owner: type, name: str, parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(getattr(owner, name)).parameters)


def test_its_address_and_its_numbers_are_where_we_look() -> None:
    assert Route("GET", "/gateway").url == f"{Route.BASE}/gateway"
    assert (DiscordWebSocket.DISPATCH, DiscordWebSocket.HEARTBEAT, DiscordWebSocket.HELLO) == (0, 1, 10)
    assert DiscordWebSocket.HEARTBEAT_ACK == 11
    assert {"self.session_id", "self.sequence", "self.socket", "self.log_receive(msg)"} <= set(
        _words(inspect.getsource(DiscordWebSocket))
    )


def _words(source: str) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute | ast.Call)}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.name)
def test_no_inner_name_of_another_object_is_used(file: Path) -> None:
    tree = ast.parse(file.read_text())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    ours = {"self", "before"}  # `before`: the same class
    used = {ast.unparse(node) for node in names if not node.attr.endswith("__")}
    assert {name for name in used if name.split(".")[0] not in ours or name.count(".") > 1} == set()
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [name for name in imported if name.startswith("_") and name != "_"] == []  # `_`: of gettext


def _inheriting() -> list[tuple[type, type]]:
    """Our classes, each with every class of the library that it inherits from."""
    modules = [importlib.import_module(f"channels.discord.{file.stem}") for file in PACKAGE.glob("*.py")]
    ours = [cls for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    ours = [cls for cls in dict.fromkeys(ours) if cls.__module__.startswith("channels.discord.")]
    return [(cls, base) for cls in ours for base in cls.__mro__ if base.__module__.startswith("discord.")]


@pytest.mark.parametrize(("ours", "base"), _inheriting(), ids=lambda cls: cls.__qualname__)
def test_no_inner_name_that_a_class_inherits_is_used(ours: type, base: type) -> None:
    inner = re.compile(r"\bself\.(_[a-z]\w*)")
    theirs = {*inner.findall(inspect.getsource(base)), *(name for name in dir(base) if re.match("_[a-z]", name))}
    assert not theirs.intersection(inner.findall(inspect.getsource(ours)))


def test_the_classes_that_inherit_from_the_library_are_found() -> None:
    assert {(GatewaySocket, DiscordWebSocket), (DiscordClient, discord.Client)} <= set(_inheriting())


COMMANDS = (
    CommandSpec(name="status", summary="Show how it goes"),
    CommandSpec(name="log", summary="Show the log", args=(CommandArg(name="entry", summary="Which"),), private=True),
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
    config = DiscordConfig.model_validate({"platform": "discord", "token": "simcord", "rooms": rooms})
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
    """It has no socket and no HTTP, so it hands events to the library's readers, and answers its requests."""
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

    state.parsers |= {event: both(event, theirs) for event, theirs in state.parsers.items() if event in EVENTS}
    vars(client)["_request_of_library"] = request


async def test_what_people_do_arrives() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        said = await ann.send(room, f"<@{env.backend.bot_user.id}> hello")
        message = await run.message()
        assert (message.at, message.kind, message.sender.id) == (place(str(room.id)), "mention", str(ann.id))
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


async def test_a_reply_to_us_is_told_from_a_reply_to_somebody_else() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        first = await ann.send(room, "who is there?")
        receipt = await run.channel.send(part("me", str(room.id), reply_to=str(first.id)))
        ours = room.last_message
        assert ours is not None
        assert receipt.ids == (str(ours.id),)
        assert ours.reference is not None
        assert ours.reference.message_id == first.id
        await ann.send(room, "and who are you?", reply_to=ours)
        await ann.send(room, "by the way", reply_to=first)
        assert [(await run.message(n)).kind for n in (1, 2, 3)] == ["room", "reply", "room"]
        assert run.messages[1].reply_to == str(ours.id)


async def test_a_thread_is_a_conversation_of_its_room() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        forum = guild.create_forum_channel("questions")
        ann = guild.add_member(env.create_user("ann"))
        api = run.channel._require_session().api
        made = await api.call(
            "POST",
            "/channels/{channel_id}/threads",
            json={"name": "how?", "message": {"content": "ask here", "allowed_mentions": {"parse": []}}},
            channel_id=str(forum.id),
        )
        (post,) = forum.threads
        assert isinstance(made, dict)
        assert made["id"] == str(post.id)
        await ann.send(post, "how does it work?")
        message = await run.message()
        assert message.at == place(str(forum.id), str(post.id))
        await run.channel.send(part("like this", str(forum.id), thread=str(post.id)))
        assert post.last_message is not None
        assert post.last_message.content == "like this"


async def test_where_we_may_not_speak_a_part_is_rejected() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        me = guild.me
        assert me is not None
        silent = discord.PermissionOverwrite(send_messages=False)
        room = guild.create_text_channel("quiet", overwrites={guild.default_role: silent, me: silent})
        with pytest.raises(Rejected, match="Missing Permissions"):
            await run.channel.send(part("hello", str(room.id)))
        with pytest.raises(Rejected, match="404"):
            await run.channel.send(part("hello", "1"))


async def test_a_command_is_registered_acknowledged_and_answered() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        assert set(ann.available_commands(room)) == {"status", "log"}
        result = await ann.slash(room, "status")
        assert result.deferred
        command = await run.command()
        assert (command.name, command.args, command.origin, command.direct) == ("status", "", "native", False)
        assert (command.sender.id, command.at) == (str(ann.id), place(str(room.id)))
        await run.channel.send(part("all is well", str(room.id), reply_to=command.id))
        assert result.response is not None
        assert result.response.content == "all is well"
        assert not result.response.ephemeral
        await run.channel.send(part("and more", str(room.id), key="post#1"))
        assert room.last_message is not None
        assert room.last_message.content == "and more"


async def test_a_private_command_is_answered_to_nobody_else() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        result = await ann.slash(room, "log", entry="17")
        assert result.ephemeral
        command = await run.command()
        assert (command.name, command.args) == ("log", "17")
        await run.channel.send(part("one", str(room.id), key="p#0", reply_to=command.id, private=True))
        await run.channel.send(part("two", str(room.id), key="p#1", private=True))
        assert result.response is not None
        assert (result.response.content, result.response.ephemeral) == ("one", True)
        assert [(shown.content, shown.ephemeral) for shown in result.followups] == [("two", True)]
        assert room.last_message is None
        with pytest.raises(Rejected, match="too old"):
            await run.channel.send(part("three", str(room.id), key="other#1", private=True))


async def test_a_command_from_a_thread_has_the_threads_address() -> None:
    async with simulated() as (env, run):
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        ann = guild.add_member(env.create_user("ann"))
        said = await ann.send(room, "let us talk")
        api = run.channel._require_session().api
        path = "/channels/{channel_id}/messages/{message_id}/threads"
        await api.call("POST", path, json={"name": "talk"}, channel_id=str(room.id), message_id=str(said.id))
        (thread,) = room.threads
        await ann.slash(thread, "status")
        assert (await run.command()).at == place(str(room.id), str(thread.id))


async def test_somebody_elses_discord_takes_the_whole_table() -> None:
    """Its subs, choices and suggestions, as somebody else reads the documentation."""
    async with simulated(commands=COMMAND_SPECS) as (env, run):

        async def suggest(typed: CommandCompletion) -> Sequence[str]:
            return [f"{typed.name}.{typed.sub}.{typed.arg}.{typed.prefix}"]

        run.channel.set_completer(suggest)
        guild = env.create_guild()
        room = guild.create_text_channel("general")
        managers = guild.create_role("managers", permissions=discord.Permissions(manage_guild=True))
        ann = guild.add_member(env.create_user("ann"), roles=[managers])
        ben = guild.add_member(env.create_user("ben"))
        for who, hidden_roles in ((ann, set[str]()), (ben, {"owner", "admin"})):
            assert set(who.available_commands(room)) == {
                f"{spec.name} {sub}".strip()
                for spec in COMMAND_SPECS
                for sub in ([sub.name for sub in spec.subs] or [""])
                if not spec.direct_only and spec.role not in hidden_roles
            }
        result = await ann.slash(room, "role set", role="member", who="Ann Lee")
        assert result.ephemeral
        command = await run.command()
        assert (command.name, command.args) == ("role", 'set "Ann Lee" member')
        offered = await ann.autocomplete(room, "role set", "who", "an", role="member")
        assert [one["value"] for one in offered] == ["role.set.who.an"]
        with pytest.raises(simcord.OptionError):
            await ann.slash(room, "role set", role="king", who="x")
        with pytest.raises(simcord.OptionError):
            await ann.slash(room, "role set", role="member")
        await ann.slash(room, "version")
        assert (await run.command(2)).name == "version"
        said = await ben.send(room, "Lighthouses need whale oil.")
        shown = await ann.context_menu(room, "Ask about this message", said)
        sent = await ann.submit_modal(shown, {"question": "Is that so?"})
        assert sent.ephemeral
        await run.until(lambda: "Is that so?" in run.texts)
        question = run.messages[-1]
        assert question.quoted is not None
        assert (question.kind, question.quoted.text) == ("mention", "Lighthouses need whale oil.")
        await run.channel.send(part("No.", question.at.room, reply_to=question.id))
        assert room.last_message is not None
        assert room.last_message.reference is not None
        assert (room.last_message.content, room.last_message.reference.message_id) == ("No.", said.id)
