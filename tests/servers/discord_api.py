"""A strict loopback Discord (HTTP API version 10 and gateway) for tests.

async with DiscordApi() as api:         # or: api = DiscordApi(Options(heartbeat_s=0.2)); await api.start(); ...
    DiscordConfig(platform="discord", token=api.token, api_url=api.api_url, gateway_url=api.gateway_url, rooms=("*",))
    await api.connected()                               # once a session is up
    said = api.says(api.room, api.ann, f"<@{api.bot}> hi", reply_to=None)       # -> message id; mentions from the text
    answer = await api.shown(api.room, 1)               # -> the first message of the bot there, as JSON
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.servers.discord_api_faults import Faults, Options
from tests.servers.discord_api_gateway import CONTENT, RECONNECT, Connection, Session
from tests.servers.discord_api_rest import Call, Rest
from tests.servers.discord_api_talk import Talk
from tests.servers.discord_api_world import DM, EPHEMERAL, Json, World, when

__all__ = ["Call", "DiscordApi", "Faults", "Json", "Options"]


class DiscordApi:
    """The server. See the top of the file."""

    def __init__(self, options: Options | None = None) -> None:
        self.options, self.faults, self.world = options or Options(), Faults(), World()
        self.calls: list[Call] = []
        self.connections: list[Connection] = []
        self.sessions: list[Session] = []
        self.identifies: list[tuple[float, Json]] = []
        self.resumes: list[tuple[float, Json]] = []
        self.typings: list[str] = []
        self.faults_of_ours: list[str] = []
        self.compressing = False
        self.port = 0
        self.rest = Rest(self)
        self.talk = Talk(self, self.rest)
        self._runner: web.AppRunner | None = None
        self._waiting: list[asyncio.Future[None]] = []
        world = self.world
        self.bot, self.guild, self.room, self.other = world.bot, world.guild, world.room, world.other
        self.ann, self.ben = world.ann, world.ben

    @property
    def token(self) -> str:
        return self.options.token

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v10"

    @property
    def gateway_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/gw"

    async def start(self) -> None:
        """Listen; the same port again after `stop`."""
        app = web.Application(client_max_size=26 * 2**20)
        app.router.add_route("*", "/api/v10/{tail:.*}", self.rest.handle)
        app.router.add_get("/gw", self._socket)
        app.router.add_get("/gw/", self._socket)
        app.router.add_get("/cdn/{tail:.*}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut everybody off and stop listening."""
        assert self._runner is not None
        for connection in self.connections:
            connection.cut()
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if self.faults.no_sockets:
            return web.Response(status=503)
        self.compressing = request.query.get("compress") == "zlib-stream"
        socket = web.WebSocketResponse(max_msg_size=4096, compress=False)
        await socket.prepare(request)
        assert isinstance(request.transport, asyncio.Transport)
        connection = Connection(self, socket, request.transport)
        self.connections.append(connection)
        self.changed()
        await connection.serve()
        return socket

    async def _file(self, request: web.Request) -> web.StreamResponse:
        data, kind = self.world.files.get(request.match_info["tail"], (b"", ""))
        return web.Response(body=data, content_type=kind) if kind else web.Response(status=404)

    def changed(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def until(self, true: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait for something to be so; looked at after every request, payload and loss. Raises TimeoutError."""
        try:
            async with asyncio.timeout(limit_s):
                while not true():
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            calls = "\n".join(f"{call.line} {call.status}" for call in self.calls[-40:])
            raise TimeoutError(f"{len(self.identifies)} identifies; the calls so far:\n{calls}") from None

    @property
    def live(self) -> list[Session]:
        """Sessions that somebody is connected to."""
        return [session for session in self.sessions if session.connection is not None]

    async def connected(self) -> Session:
        """The session that is up, once there is one."""
        await self.until(lambda: bool(self.live))
        return self.live[-1]

    async def shown(self, channel: str, count: int = 1) -> Json:
        """The `count`-th message of the bot that everybody sees there, once it is there."""
        await self.until(lambda: len(self.visible(channel)) >= count)
        return self.visible(channel)[count - 1]

    def visible(self, channel: str) -> list[Json]:
        """What people see of the bot there now, oldest first."""
        mine = (m for m in self.world.messages[channel].values() if m["author"]["id"] == self.bot)
        return [m for m in mine if not m["flags"] & EPHEMERAL]

    def texts(self, channel: str) -> list[str]:
        return [message["content"] for message in self.visible(channel)]

    def dispatch(self, event: str, data: Json) -> None:
        """To every session that takes it, connected or not."""
        channel = self.world.channels.get(data.get("channel_id", ""), {})
        for session in self.sessions:
            if session.valid and session.wants(event, private=channel.get("type") == DM):
                session.dispatch(event, self._veiled(session, data) if event.startswith("MESSAGE_") else data)
        self.changed()

    def _veiled(self, session: Session, data: Json) -> Json:
        """Without the intent, content is shown only where it was meant for the bot."""
        open_to = "guild_id" not in data or data.get("author", {}).get("id") == self.bot
        named = any(user["id"] == self.bot for user in data.get("mentions", ()))
        if session.intents & CONTENT or open_to or named or "content" not in data:
            return data
        return data | {"content": "", "embeds": [], "attachments": [], "components": []}

    def show(self, message: Json) -> None:
        self.dispatch("MESSAGE_CREATE", self.world.seen_live(message))

    def keep(self, name: str, data: bytes, kind: str) -> Json:
        """Put a file on the CDN -> an attachment."""
        number = self.world.ids.new()
        path = f"attachments/{number}/{name}"
        self.world.files[path] = (data, kind)
        url = f"http://127.0.0.1:{self.port}/cdn/{path}"
        made = {"id": number, "filename": name, "size": len(data), "url": url, "proxy_url": url}
        return made | {"content_type": kind}

    def says(
        self,
        channel: str,
        user: str,
        text: str,
        *,
        reply_to: str | None = None,
        files: Sequence[tuple[str, bytes, str]] = (),
        ago_s: float = 0.0,
        **more: Any,
    ) -> str:
        """Somebody says something -> its id. `files`: name, bytes, content type. `more`: fields of the message."""
        if reply_to is not None:
            more = self.talk.replying(channel, reply_to, strict=True) | more
        attachments = [self.keep(*file) for file in files]
        made = self.world.add_message(channel, user, text, ago_s=ago_s, **({"attachments": attachments} | more))
        if reply_to is not None:
            author = more["referenced_message"]["author"]
            made["mentions"] = [author, *(u for u in made["mentions"] if u["id"] != author["id"])]
        self.show(made)
        return str(made["id"])

    def edits(self, channel: str, message: str, text: str) -> None:
        made = self.world.messages[channel][message]
        made |= {"content": text, "edited_timestamp": when(self.world.ids.new())}
        self.dispatch("MESSAGE_UPDATE", self.world.seen_live(made))

    def deletes(self, channel: str, message: str) -> None:
        del self.world.messages[channel][message]
        self.dispatch("MESSAGE_DELETE", {"id": message} | self._place(channel))

    def reacts(self, channel: str, message: str, user: str, emoji: str, *, added: bool = True) -> None:
        made = {"user_id": user, "message_id": message, "emoji": {"id": None, "name": emoji}, "burst": False, "type": 0}
        made |= self._place(channel)
        if "guild_id" in made and added:
            made["member"] = self.world.member(user) | {"user": self.world.users[user]}
        self.dispatch("MESSAGE_REACTION_ADD" if added else "MESSAGE_REACTION_REMOVE", made)

    def threads(self, parent: str, user: str, name: str, text: str = "", *, at: str | None = None) -> str:
        """Somebody starts a thread (at a message), or a post if the parent is a forum -> its id."""
        made = self.world.add_thread(parent, name, user, at=at)
        self.dispatch("THREAD_CREATE", made | {"newly_created": True})
        if text:
            self.says(made["id"], user, text)
        return str(made["id"])

    def _place(self, channel: str) -> Json:
        guild = self.world.channels[channel].get("guild_id")
        return {"channel_id": channel} | ({"guild_id": guild} if guild else {})

    def cut(self, code: int = 0) -> None:
        """Close every socket with that code; 0: without a close frame."""
        for connection in self.connections:
            with contextlib.suppress(AttributeError):
                connection.close(code) if code else connection.cut()

    def ask_reconnect(self) -> None:
        """RECONNECT to all."""
        for session in self.live:
            assert session.connection is not None
            session.connection.send(RECONNECT)

    def forget(self) -> None:
        """No session can be resumed any more."""
        for session in self.sessions:
            session.valid = False

    def raw(self, text: str) -> None:
        """Any text, to all that are connected."""
        for session in self.live:
            assert session.connection is not None
            session.connection.queue.put_nowait(text)
