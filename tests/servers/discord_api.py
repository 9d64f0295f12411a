"""A strict loopback Discord (HTTP API version 10 and gateway) for tests.

    async with DiscordApi(Options(heartbeat_s=0.2)) as api:     # or: api = DiscordApi(); await api.start(); api.stop()
        DiscordConfig(platform="discord", token=api.token, api_url=api.api_url, gateway_url=api.gateway_url, ...)
        await api.connected()                                   # -> the session that is up, once there is one
        said = api.says(api.room, api.ann, f"<@{api.bot}> hi")  # -> message id; mentions are read from the text
        answer = await api.shown(api.room, 1)                   # -> the bot's first message that all see there

There is one bot, `api.bot`, one guild with the rooms `api.room` and `api.other`, and `api.ann` and `api.ben`; more
by `api.world.add_user(name, bot=...)`, `.add_guild`, `.add_channel(name, kind=FORUM)`, `.dm(user)`. People do
`api.says` (with `reply_to`, `files`, `ago_s`, `webhook_id`), `.edits`, `.deletes`, `.reacts`, `.threads`, `.slash`;
they see `api.visible(channel)`, `api.texts(channel)`, and of a slash command also `api.told(interaction)`.

Strict: token (401, 4004), intents (4013, 4014, and each event goes only to who asked for it), heartbeats (4009),
120 events per minute (4008), sessions and their past (RESUME replays; closing with 1000 or 1001 ends a session),
shards, nonces that are enforced, limits of length, locked threads, `world.muted` and `world.hidden` channels,
buckets with X-RateLimit headers (`Options.limits`), interactions (3 s, once, 15 min).

Records: `api.calls` (each request: `.line` as `POST /channels/1/messages`, `.body`, `.at_s`, `.status`),
`api.identifies`, `api.resumes`, `api.connections` (`.received`, `.beats`, `.close_code`), `api.typings`, and
`api.offences`: what Discord allows and a careful bot never does (a message that may mention by accident).

Faults, at any time: `api.faults` (see there) for HTTP and for handshakes; `api.cut(code)` closes every socket, 0
without a close frame; `api.ask_reconnect()`; `api.forget()` makes sessions unresumable; `api.raw(text)` sends any
text. `api.faults.add(r"POST /channels/\\d+/messages", "500 after")` breaks the next such request.
"""

import asyncio
import re
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.servers.discord_api_acts import Acts
from tests.servers.discord_api_commands import LOADING, Commands, Interaction
from tests.servers.discord_api_faults import Faults, Options
from tests.servers.discord_api_gateway import RECONNECT, Connection
from tests.servers.discord_api_people import People
from tests.servers.discord_api_rest import Call, Rest
from tests.servers.discord_api_session import Session
from tests.servers.discord_api_talk import Talk
from tests.servers.discord_api_world import Json


class DiscordApi(People):
    """The server. See the top of the file."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        self.options, self.faults = options or Options(), Faults()
        self.news = self.changed
        self.calls: list[Call] = []
        self.connections: list[Connection] = []
        self.identifies: list[tuple[float, Json]] = []
        """When (monotonic), and the payload's data; refused ones too."""
        self.resumes: list[tuple[float, Json]] = []
        self.typings: list[str] = []
        """Channels, in order."""
        self.offences: list[str] = []
        self.port = 0
        self.rest = Rest(self)
        self.talk = Talk(self, self.rest)
        self.acts = Acts(self, self.rest)
        self.commands = Commands(self, self.rest)
        self._runner: web.AppRunner | None = None
        self._waiting: list[asyncio.Future[None]] = []

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
        """Listen; on the same port again after `stop`."""
        app = web.Application(client_max_size=26 * 2**20)
        app.router.add_route("*", "/api/v10/{tail:.*}", self.rest.handle)
        app.router.add_get("/gw", self._socket)
        app.router.add_get("/gw/", self._socket)
        app.router.add_get("/cdn/{tail:.*}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.cdn_url = f"http://127.0.0.1:{self.port}/cdn"

    async def stop(self) -> None:
        """Cut everybody off and stop listening."""
        assert self._runner is not None
        self.cut()
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
        socket = web.WebSocketResponse(max_msg_size=4096, compress=False, timeout=1.0)
        await socket.prepare(request)
        assert isinstance(request.transport, asyncio.Transport)
        compress = self.options.compress and request.query.get("compress") == "zlib-stream"
        connection = Connection(self, socket, request.transport, compress=compress)
        self.connections.append(connection)
        self.changed()
        await connection.serve()
        return socket

    async def _file(self, request: web.Request) -> web.StreamResponse:
        data, kind = self.world.files.get(request.match_info["tail"], (b"", ""))
        return web.Response(body=data, content_type=kind) if kind else web.Response(status=404)

    def changed(self) -> None:
        """Whoever waits looks again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def until(self, true: Callable[[], bool], limit_s: float = 20.0) -> None:
        """Wait for something to be so; looked at after every request, payload and loss. Raises TimeoutError."""
        try:
            async with asyncio.timeout(limit_s):
                while not true():
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            calls = "\n".join(f"{call.line} {call.status}" for call in self.calls[-40:])
            counts = f"{len(self.identifies)} identifies, {len(self.resumes)} resumes"
            raise TimeoutError(f"{counts}; the calls so far:\n{calls}") from None

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

    def made(self, pattern: str) -> list[Call]:
        """The requests so far whose line matches, from its start."""
        return [call for call in self.calls if re.match(pattern, call.line)]

    def slash(self, channel: str, user: str, name: str, /, **options: str) -> Interaction:
        """Somebody gives a slash command."""
        return self.commands.give(channel, user, name, **options)

    def told(self, interaction: Interaction) -> list[str]:
        """What whoever gave the command was answered, also privately."""
        messages = (self.world.messages[interaction.channel].get(number) for number in interaction.messages)
        return [message["content"] for message in messages if message and not message["flags"] & LOADING]

    def cut(self, code: int = 0) -> None:
        """Close every socket with that code; 0: without a close frame."""
        for connection in self.connections:
            if connection.close_code is None:
                if code:
                    connection.close(code)
                else:
                    connection.cut()

    def ask_reconnect(self) -> None:
        """RECONNECT to all."""
        for session in self.live:
            assert session.connection is not None
            session.connection.send(RECONNECT)

    def tell_guilds(self) -> None:
        """GUILD_CREATE for all, to those that are connected."""
        for session in self.live:
            for guild in filter(session.serves, self.world.guilds):
                session.dispatch("GUILD_CREATE", self.world.guild_create(guild))

    def forget(self) -> None:
        """No session can be resumed any more."""
        for session in self.sessions:
            session.valid = False

    def raw(self, text: str | bytes) -> None:
        """Any text, or a frame of any bytes, to all that are connected."""
        for session in self.live:
            assert session.connection is not None
            session.connection.queue.put_nowait(text)
