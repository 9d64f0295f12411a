r"""A strict loopback Discord (HTTP API version 10 and gateway) for tests.

    async with DiscordApi(Options(heartbeat_s=0.2)) as api:     # or: api = DiscordApi(); await api.start(); api.stop()
        DiscordConfig(platform="discord", token=api.token, api_url=api.api_url, gateway_url=api.gateway_url, ...)
        await api.connected()                                   # -> the session that is up, once there is one
        said = api.says(api.room, api.ann, f"<@{api.bot}> hi")  # -> message id; mentions are read from the text
        answer = await api.shown(api.room, 1)                   # -> the bot's first message that all see there

There is one bot, `api.bot`, one guild with the rooms `api.room` and `api.other`, and `api.ann` and
`api.ben`; more by `api.world.add_user(name, bot=...)`, `.add_guild`, `.add_channel(name,
kind=FORUM)`, `.dm(user)`. People do `api.says` (with `reply_to`, `files`, `ago_s`, `webhook_id`),
`.edits`, `.deletes`, `.reacts`, `.threads`, `.slash`; they see `api.visible(channel)`,
`api.texts(channel)`, and of a slash command also `api.told(interaction)`.

Strict: token (401, 4004), intents (4013, 4014, and each event goes only to who asked for it),
heartbeats (4009), 120 events per minute (4008), sessions and their past (RESUME replays; closing
with 1000 or 1001 ends a session), shards, nonces that are enforced, limits of length, locked
threads, `world.muted` and `world.hidden` channels, buckets with X-RateLimit headers
(`Options.limits`), interactions (3 s, once, 15 min).

Records: `api.calls` (each request: `.line` as `POST /channels/1/messages`, `.body`, `.at_s`,
`.status`), `api.identifies`, `api.resumes`, `api.connections` (`.received`, `.beats`,
`.close_code`), `api.typings`, and `api.offences`: what Discord allows and a careful bot never does
(a message that may mention by accident).

Faults, at any time: `api.faults` (see there) for HTTP and for handshakes; `api.cut(code)` closes
every socket, 0 without a close frame; `api.ask_reconnect()`; `api.forget()` makes sessions
unresumable; `api.raw(text)` sends any text. `api.faults.add(r"POST /channels/\d+/messages", "500
after")` breaks the next such request.
"""

import asyncio
import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

from reverie.testing.servers.discord_api_gateway import CONTENT, RECONNECT, Connection, Session
from reverie.testing.servers.discord_api_rest import (
    LOADING,
    Acts,
    Call,
    Commands,
    Faults,
    Interaction,
    Options,
    Rest,
    Talk,
)
from reverie.testing.servers.discord_api_world import (
    DM,
    EPHEMERAL,
    FORUM,
    STARTER,
    Json,
    World,
    when,
)

HAS_THREAD: Final = 1 << 5


class People:
    """The half of the server that tests speak to."""

    def __init__(self) -> None:
        self.world = world = World()
        self.sessions: list[Session] = []
        self.bot, self.guild, self.room, self.other = (
            world.bot,
            world.guild,
            world.room,
            world.other,
        )
        self.ann, self.ben = world.ann, world.ben
        self.cdn_url = ""
        self.news: Callable[[], None] = lambda: None

    def visible(self, channel: str) -> list[Json]:
        """What everybody sees of the bot there now, oldest first."""
        mine = (m for m in self.world.messages[channel].values() if m["author"]["id"] == self.bot)
        return [m for m in mine if m["type"] != STARTER and not m["flags"] & (EPHEMERAL | LOADING)]

    def texts(self, channel: str) -> list[str]:
        return [message["content"] for message in self.visible(channel)]

    def dispatch(self, event: str, data: Json) -> None:
        """To every session that takes it, connected or not."""
        channel = self.world.channels.get(data.get("channel_id", ""), {})
        guild = data.get("guild_id")
        for session in self.sessions:
            if (
                session.valid
                and session.serves(guild)
                and session.wants(event, private=channel.get("type") == DM)
            ):
                session.dispatch(
                    event, self._veiled(session, data) if event.startswith("MESSAGE_") else data
                )
        self.news()

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
        url = f"{self.cdn_url}/{path}"
        made = {"id": number, "filename": name, "size": len(data), "url": url, "proxy_url": url}
        return made | {"content_type": kind}

    def replying(self, channel: str, number: str) -> Json | None:
        """What a reply to that message has beside its text; None: there is no such message."""
        to = self.world.messages[channel].get(number)
        if to is None:
            return None
        reference = {"channel_id": channel, "message_id": number, "type": 0}
        shown = {key: value for key, value in to.items() if key != "referenced_message"}
        return {"type": 19, "message_reference": reference, "referenced_message": shown}

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
        """Somebody says something -> its id. `more`: fields of the message. `ago_s` puts it into
        the past, silently.
        """
        reply = self.replying(channel, reply_to) if reply_to is not None else {}
        assert reply is not None
        more = reply | {"attachments": [self.keep(*file) for file in files]} | more
        made = self.world.add_message(channel, user, text, ago_s=ago_s, **more)
        if reply:
            author = reply["referenced_message"]["author"]
            made["mentions"] = [author, *(u for u in made["mentions"] if u["id"] != author["id"])]
        if not ago_s:
            self.show(made)
        return str(made["id"])

    def edits(self, channel: str, message: str, text: str) -> None:
        made = self.world.messages[channel][message]
        made |= {"content": text, "edited_timestamp": when(self.world.ids.new())}
        self.dispatch("MESSAGE_UPDATE", self.world.seen_live(made))

    def deletes(self, channel: str, message: str) -> None:
        del self.world.messages[channel][message]
        self.dispatch("MESSAGE_DELETE", {"id": message} | self._place(channel))

    def reacts(
        self, channel: str, message: str, user: str, emoji: str, *, added: bool = True
    ) -> None:
        """`emoji`: a character, or `name:id`."""
        shown, _, number = emoji.partition(":")
        made: Json = {
            "user_id": user,
            "message_id": message,
            "emoji": {"id": number or None, "name": shown},
        }
        made |= {"burst": False, "type": 0}
        made |= self._place(channel)
        if "guild_id" in made and added:
            made["member"] = self.world.member(user) | {"user": self.world.users[user]}
        self.dispatch("MESSAGE_REACTION_ADD" if added else "MESSAGE_REACTION_REMOVE", made)

    def threads(
        self, parent: str, user: str, name: str, text: str = "", *, at: str | None = None
    ) -> str:
        """Somebody starts a thread (at a message), or a post if the parent is a forum -> its id."""
        made = self.starts_thread(
            parent, name, user, self.world.messages[parent][at] if at else None
        )
        if text:
            self.says(made["id"], user, text)
        return str(made["id"])

    def starts_thread(self, parent: str, name: str, user: str, message: Json | None) -> Json:
        """A thread is there; of one that is made of a message, the first message shows that."""
        made = self.world.add_thread(parent, name, user, at=message["id"] if message else None)
        self.dispatch("THREAD_CREATE", made | {"newly_created": True})
        if message:
            message["flags"] |= HAS_THREAD
            self.dispatch("MESSAGE_UPDATE", self.world.seen_live(message))
            reference = {
                "channel_id": parent,
                "message_id": message["id"],
                "guild_id": made["guild_id"],
                "type": 0,
            }
            more: Json = {
                "type": STARTER,
                "message_reference": reference,
                "referenced_message": {**message},
            }
            self.show(self.world.add_message(made["id"], user, "", **more))
        return made

    def _place(self, channel: str) -> Json:
        guild = self.world.channels[channel].get("guild_id")
        return {"channel_id": channel} | ({"guild_id": guild} if guild else {})


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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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

    async def until(self, true: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Wait for something to be so; looked at after every request, payload and loss. Raises
        TimeoutError.
        """
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
        messages = (
            self.world.messages[interaction.channel].get(number) for number in interaction.messages
        )
        return [
            message["content"] for message in messages if message and not message["flags"] & LOADING
        ]

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

    def raw(self, text: str) -> None:
        """Any text to all that are connected."""
        for session in self.live:
            assert session.connection is not None
            session.connection.queue.put_nowait(text)


JUNK: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        7,
        2**53,
        2**63,
        2**64,
        2**70,
        -(2**70),
        0.5,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "0",
        "-1",
        "x",
        " ",
        "\x00",
        "\ud800",
        "18446744073709551616",
        "9" * 400,
        "12\u0665",
        "a" * 5000,
    ),
    *(
        "2026-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "2026-13-45",
        "NaN",
    ),
    *(
        "<@1> <@&2> <#3> </x:4> <:e:5>",
        "```" * 700,
        "<@" * 900,
        "\u202e\u0000\u2028",
        "\U0001f600" * 50,
    ),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        {"id": None},
        {"id": {}},
        [1, "x", None, {}],
        {"": ""},
        {"id": "1"},
    ),
)
BAD_OPS: Final[tuple[Any, ...]] = (
    -1,
    2,
    3,
    4,
    5,
    6,
    8,
    11,
    12,
    13,
    14,
    99,
    2**64,
    "0",
    "x",
    None,
    True,
    0.5,
    [],
    {},
)
"""Not 7 and 9 (they rightly end a connection) nor 1 (each is answered, and answers are counted)."""
UNKNOWN: Final = (
    "",
    "X",
    "MESSAGE_CREATE\n",
    "message_create",
    "READY_SUPPLEMENTAL",
    "POLL_VOTE",
    "\ud800",
    "A" * 3000,
)
DEEP: Final = 200


def samples(api: DiscordApi) -> list[tuple[str, Json]]:
    """Valid dispatches of every kind that an adapter might read."""
    world, room, ann, bot = api.world, api.room, api.ann, api.bot
    place = {"guild_id": api.guild, "channel_id": room}
    dm, forum = world.dm(ann), world.add_channel("forum", kind=FORUM)
    thread = world.add_thread(forum, "question", ann)
    asked = world.add_message(room, ann, f"<@{bot}> **hi** <#{room}> <:smile:123> ||no||")
    file = {
        "id": "77",
        "filename": "a.png",
        "size": 3,
        "url": "http://127.0.0.1:1/a.png",
        "content_type": "image/png",
    }
    rich: Json = {
        "attachments": [
            file | {"width": 4, "height": 4, "duration_secs": 1.5, "proxy_url": file["url"]}
        ],
        "embeds": [
            {
                "type": "rich",
                "title": "t",
                "description": "d",
                "fields": [{"name": "n", "value": "v"}],
            }
        ],
        "sticker_items": [{"id": "5", "name": "wave", "format_type": 1}],
        "poll": {
            "question": {"text": "q"},
            "answers": [{"answer_id": 1, "poll_media": {"text": "a"}}],
            "expiry": "2026-01-01T00:00:00+00:00",
            "allow_multiselect": False,
            "layout_type": 1,
        },
        "message_snapshots": [
            {"message": {"content": "fwd", "attachments": [file], "mentions": []}}
        ],
        "mention_roles": [api.guild],
    }
    said = [
        asked,
        world.add_message(room, ann, f"<@{bot}> look", **rich),
        world.add_message(room, ann, "yes", **(api.replying(room, asked["id"]) or {})),
        world.add_message(dm, ann, "hello"),
        world.add_message(thread["id"], ann, "in a thread"),
        world.add_message(room, "4242", "from a hook", webhook_id="4242"),
    ]
    reaction = {
        "user_id": ann,
        "message_id": asked["id"],
        "emoji": {"id": None, "name": "x"},
        "burst": False,
        "type": 0,
    }
    member = world.member(ann) | {"user": world.users[ann]}
    role = world.guilds[api.guild]["roles"][0]
    command = {
        "id": "9",
        "name": "status",
        "type": 1,
        "options": [{"name": "entry", "type": 3, "value": "1"}],
    }
    interaction = {
        "id": "99",
        "application_id": bot,
        "type": 2,
        "token": "t",
        "version": 1,
        "data": command,
    } | place
    found = [("MESSAGE_CREATE", world.seen_live(message)) for message in said]
    found += [
        (
            "MESSAGE_UPDATE",
            world.seen_live(said[1]) | {"edited_timestamp": "2026-01-01T00:00:00+00:00"},
        ),
        ("MESSAGE_DELETE", {"id": "5"} | place),
        ("MESSAGE_DELETE_BULK", {"ids": ["5", "6"]} | place),
        ("MESSAGE_REACTION_ADD", reaction | place | {"member": member}),
        ("MESSAGE_REACTION_REMOVE", reaction | place),
        ("MESSAGE_REACTION_REMOVE_ALL", {"message_id": "5"} | place),
        ("INTERACTION_CREATE", interaction | {"member": member | {"permissions": "8"}}),
        ("GUILD_CREATE", world.guild_create(api.guild)),
        ("GUILD_UPDATE", world.guilds[api.guild]),
        ("GUILD_DELETE", {"id": "8", "unavailable": True}),
        ("CHANNEL_UPDATE", world.channels[room]),
        ("CHANNEL_CREATE", world.channels[forum]),
        ("THREAD_CREATE", thread | {"newly_created": True}),
        (
            "THREAD_LIST_SYNC",
            {"guild_id": api.guild, "threads": [thread], "members": [], "channel_ids": [forum]},
        ),
        (
            "THREAD_MEMBERS_UPDATE",
            {"id": thread["id"], "guild_id": api.guild, "member_count": 1, "added_members": []},
        ),
        ("GUILD_ROLE_CREATE", {"guild_id": api.guild, "role": role}),
        ("GUILD_MEMBER_UPDATE", member | {"guild_id": api.guild}),
        ("USER_UPDATE", world.users[bot]),
        ("TYPING_START", {"user_id": ann, "timestamp": 1700000000, "member": member} | place),
        ("RESUMED", {"_trace": []}),
    ]
    return [(event, json.loads(json.dumps(data))) for event, data in found]


class Mutants:
    """An endless stream of them."""

    def __init__(self, api: DiscordApi, seed: int) -> None:
        self._samples = samples(api)
        self._ids = api.world.ids
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._number = 0

    def text(self) -> str:
        """One as it would stand on the wire; sometimes no JSON at all."""
        roll = self._random.random()
        text = json.dumps(self._one())
        if roll < 0.02:
            return text[: self._random.randrange(len(text))]
        return (
            self._random.choice(("", "null", "[]", "3", '"x"', "{", "\x00", "[" * DEEP))
            if roll < 0.03
            else text
        )

    def _one(self) -> object:
        rolls, self._number = self._random, self._number + 1
        event, data = rolls.choice(self._samples)
        payload: Json = {"op": 0, "t": event, "s": 1000 + self._number, "d": copy.deepcopy(data)}
        if "id" in data and event.startswith("MESSAGE") and rolls.random() < 0.5:
            payload["d"]["id"] = self._ids.new()  # one that was not seen before
        roll = rolls.random()
        if roll < 0.80:
            for _ in range(rolls.choice((1, 1, 2, 5))):
                self._spoil(payload["d"])
        elif roll < 0.86:
            payload["d"] = self._junk()
        elif roll < 0.90:
            payload["t"] = rolls.choice((*UNKNOWN, self._junk()))
        elif roll < 0.94:
            payload["op"] = rolls.choice(BAD_OPS)
        elif roll < 0.96:
            payload["op"], payload["d"] = (
                10,
                rolls.choice((None, {}, [], "x", {"heartbeat_interval": self._junk()})),
            )
        elif roll < 0.98:
            payload["s"] = self._junk()
        else:
            payload.pop(rolls.choice(tuple(payload)))
        return payload

    def _spoil(self, node: object) -> None:
        """Walk down from here, and break one thing."""
        while True:
            rolls = self._random
            if isinstance(node, dict) and node:
                key: Any = rolls.choice(tuple(node))
            elif isinstance(node, list) and node:
                key = rolls.randrange(len(node))
            else:
                return
            if isinstance(node[key], dict | list) and node[key] and rolls.random() < 0.7:
                node = node[key]
                continue
            if rolls.random() < 0.3:
                del node[key]
            else:
                node[key] = self._junk()
            return

    def _junk(self) -> Any:
        made = copy.deepcopy(self._random.choice(JUNK))
        if self._random.random() < 0.01:
            for _ in range(DEEP):
                made = [made] if self._random.random() < 0.5 else {"id": made}
        return made
