"""A gateway on three platforms, over sockets, with a model that does whatever any text in its
request says.

An order is a word like `obey-017` that stands somewhere in a text. The model carries it out in each
turn whose request holds the word, wherever it stands: system blocks, history, tool results, names,
topics, memory. An order sleeps until the test wakes it, as an injection does that waits for its
moment.
"""

import asyncio
import contextlib
import itertools
import json
import re
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from agent.models.adapt import append_suffix
from agent.models.base import Model, ModelRequest, StreamChunk, StreamEnd, TextPart, ToolResult
from gateway import app
from gateway.config.loader import parse_config
from gateway.context.workspace_fs import directory_of
from gateway.core.events import Address, ChannelName, RoomId, Usage
from gateway.core.facts import Fact, TurnRecord
from gateway.core.tool_spec import ToolCall
from gateway.plugins.approvals import ApprovalRequested
from gateway.store import Store
from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers import bot_api_world, discord_api_world, ircd
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat
from reverie.testing.servers.bot_api_world import Person as TelegramPerson
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.ircd import MODERN, Ircd
from reverie.testing.servers.ircd import Options as IrcOptions
from reverie.testing.servers.web_server import Page, WebServer
from reverie.testing.waiting import until
from tests.attacks.hostile_kit import Obedient

Platform = Literal["irc", "telegram", "discord"]
PLATFORMS: tuple[Platform, ...] = ("irc", "telegram", "discord")
CHANNELS = {one: ChannelName(f"{one}.main") for one in PLATFORMS}
DAY_S = 86_400.0
VIEW_CHANNEL = 1 << 10
"""https://discord.com/developers/docs/topics/permissions#permissions-bitwise-permission-flags."""
INNER = "agent/reverie"
WORD = re.compile(r"obey-\d{3,}")
KEPT = re.compile(r"obey-\d{3,}|mark-[0-9a-f]{8}|canary-[0-9a-f]{10}")
SECRET = re.compile(r"canary-[0-9a-f]{10}")
TO_SUM_UP = ("The window is nearly full: ", "MEMORY.md as it is now:")
"""By these words it is asked for a summary of what leaves its view, and for MEMORY.md."""
SEEN = "{seen}"
"""In an order's arguments and words: all secrets that stand in the request by then."""
Call = tuple[str, dict[str, object]]


class LeapingClock:
    """Goes as the system's does, and further when it is told so."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._sleepers = set[asyncio.Future[None]]()

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead_s)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    async def sleep(self, delay_s: float) -> None:
        due = self.monotonic() + delay_s
        await asyncio.sleep(0)
        while (left := due - self.monotonic()) > 0:
            woken = asyncio.get_running_loop().create_future()
            self._sleepers.add(woken)
            try:
                await asyncio.wait({woken}, timeout=left)
            finally:
                self._sleepers.discard(woken)

    def leap(self, delay_s: float) -> None:
        self._ahead_s += delay_s
        for one in self._sleepers:
            if not one.done():
                one.set_result(None)


@dataclass
class Order:
    calls: tuple[Call, ...]
    says: str
    places: set[str]
    """Conversations in which it obeys: so that attacks do not meet each other."""
    asleep: bool = False
    once: bool = False
    """It is an errand, which the model has done then."""
    tried: int = 0
    """How often it was obeyed."""
    done: bool = False
    """A call of it has brought a result."""


class Puppet(Obedient):
    """A `Model` that obeys everybody. What it is to sum up it sums up by the words that matter to
    an attacker."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.requests = defaultdict[str, int](int)
        """By conversation."""
        self.holds: dict[str, asyncio.Event] = {}
        """It does not answer there before that."""
        self.held = set[str]()
        self.shown = defaultdict[str, set[str]](set)
        """Secrets that stood in its requests, by conversation."""
        self._obeyed = defaultdict[str, list[str]](list)
        """In the turn of that conversation."""
        self._numbers = itertools.count(1)

    def order(self, order: Order) -> str:
        word = f"obey-{next(self._numbers):03}"
        self.orders[word] = order
        return word

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        place = request.conversation_id
        self.requests[place] += 1
        if hold := self.holds.get(place):
            self.held.add(place)
            await hold.wait()
        everything, parts = (
            _everything(request),
            request.conversation[-1].parts if request.conversation else (),
        )
        self.shown[place].update(SECRET.findall(everything))
        calls, text = list[ToolCall](), "Yes."
        results = [part for part in parts if isinstance(part, ToolResult)]
        for part in results:
            if made_for := self.orders.get(part.id.partition("x")[0]):
                made_for.done = True
        if any(words in everything for words in TO_SUM_UP):
            text = "\n".join(dict.fromkeys(KEPT.findall(everything))) or "Nothing."
        else:
            if not results:
                self._obeyed[place].clear()
            seen = "+".join(dict.fromkeys(SECRET.findall(everything)))
            calls = self._obey(everything, place, seen)
            said = [self.orders[word].says.replace(SEEN, seen) for word in self._obeyed[place]]
            text = " ".join(one for one in said if one) or text
        if not calls:
            yield TextPart(text=text)
        for call in calls:
            yield call
        usage = Usage(input_tokens=len(everything) // 4, output_tokens=10)
        yield StreamEnd(stop_reason="tools" if calls else "end", usage=usage, model="puppet")

    def _obey(self, everything: str, place: str, seen: str) -> list[ToolCall]:
        made = list[ToolCall]()
        for word in dict.fromkeys(WORD.findall(everything)):
            order = self.orders.get(word)
            done = (
                order is not None
                and order.once
                and (order.done or (order.tried and not order.calls))
            )
            if (
                order is None
                or order.asleep
                or done
                or place not in order.places
                or word in self._obeyed[place]
            ):
                continue
            self._obeyed[place].append(word)
            order.tried += 1
            for name, arguments in order.calls:
                written = json.dumps(arguments).replace(SEEN, seen)
                made.append(
                    ToolCall(id=f"{word}x{next(self._numbers)}", name=name, arguments=written)
                )
        return made


def _everything(request: ModelRequest) -> str:
    said = [part for one in append_suffix(request) for part in one.parts]
    texts = [part.text for part in said if isinstance(part, TextPart | ToolResult)]
    blocks = [block.text for block in request.blocks]
    return "\n".join(
        [*texts, *blocks, *(f"{tool.description} {tool.schema}" for tool in request.tools)]
    )


@dataclass(frozen=True)
class Person:
    """Somebody on one platform."""

    platform: Platform
    name: str
    id: str
    """As `access.roles` has it, behind the channel."""
    telegram: TelegramPerson | None = None


@dataclass
class Place(ABC):
    """A room or a direct chat on one platform, as people there see it and act in it."""

    world: "World"
    room: str
    direct: bool = False
    platform: Platform = field(init=False)

    @property
    def conversation(self) -> str:
        return Address(channel=CHANNELS[self.platform], room=RoomId(self.room)).conversation

    @abstractmethod
    async def says(self, who: Person, text: str, *, to_bot: bool = True, reply_to: str = "") -> str:
        """The message's id."""

    @abstractmethod
    def posts(self) -> list[str]:
        """What people see of the bot there now."""

    @abstractmethod
    def files(self) -> list[str]:
        """Names of the files that the bot has posted."""

    @abstractmethod
    def topic(self) -> str:
        """Empty: there is none."""


@dataclass
class OnTelegram(Place):
    chat: Chat | TelegramPerson | None = None
    platform: Platform = field(init=False, default="telegram")

    async def says(
        self, who: Person, text: str, *, to_bot: bool = True, reply_to: str = "", **more: Any
    ) -> str:
        api = self.world.telegram
        assert who.telegram is not None
        more |= {"reply_to": int(reply_to)} if reply_to else {}
        if self.direct:
            return str(api.private_says(who.telegram, text, **more))
        assert self.chat is not None
        say = api.mentions if to_bot else api.group_says
        return str(say(self.chat, who.telegram, text, **more))

    def posts(self) -> list[str]:
        return self.world.telegram.said(int(self.room))

    def files(self) -> list[str]:
        shown = self.world.telegram.shown(int(self.room))
        found = [one.body for one in shown if one.by_bot and "document" in one.body]
        return [str(body["document"].get("file_name")) for body in found]

    def topic(self) -> str:
        return ""


@dataclass
class OnDiscord(Place):
    platform: Platform = field(init=False, default="discord")

    async def says(
        self, who: Person, text: str, *, to_bot: bool = True, reply_to: str = "", **more: Any
    ) -> str:
        api = self.world.discord
        head = f"<@{api.bot}> " if to_bot and not self.direct else ""
        return api.says(self.room, who.id, head + text, reply_to=reply_to or None, **more)

    def posts(self) -> list[str]:
        return self.world.discord.texts(self.room)

    def files(self) -> list[str]:
        visible = self.world.discord.visible(self.room)
        return [file["filename"] for one in visible for file in one["attachments"]]

    def topic(self) -> str:
        return self.world.discord.world.channels[self.room].get("topic") or ""


@dataclass
class OnIrc(Place):
    platform: Platform = field(init=False, default="irc")

    @property
    def target(self) -> str:
        return self.room.partition("!")[0]

    async def says(self, who: Person, text: str, *, to_bot: bool = True, reply_to: str = "") -> str:
        number = f"x{next(self.world.numbers)}"
        tags = {
            "msgid": number,
            "time": self.world.clock.now().isoformat(timespec="milliseconds")[:23] + "Z",
        }
        tags |= {"account": who.name} if who.id.startswith("account:") else {}
        tags |= {"+draft/reply": reply_to} if reply_to else {}
        head = "reverie: " if to_bot and not self.direct else ""
        to = "reverie" if self.direct else self.room
        await self.world.ircd.say(
            to, head + " ".join(text.split()), by=f"{who.name}!u@{who.name}.example", **tags
        )
        return number

    def posts(self) -> list[str]:
        head = f"PRIVMSG {self.target} :"
        lines = [re.sub(r"^@\S+ ", "", line) for line in self.world.ircd.lines]
        return [line.removeprefix(head) for line in lines if line.startswith(head)]

    def files(self) -> list[str]:
        return []

    def topic(self) -> str:
        return self.world.ircd.topics.get(self.room, "")


@dataclass
class World:
    folder: Path
    telegram: BotApi
    discord: DiscordApi
    ircd: Ircd
    site: WebServer
    """The attacker's, which the operator lets be fetched."""
    clock: LeapingClock = field(default_factory=LeapingClock)
    puppet: Puppet = field(default_factory=Puppet)
    model: Model | None = field(init=False)
    """The puppet, if nobody else. None: the one that is configured."""
    roles: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Role -> people, as the operator writes them."""
    rooms: list[str] = field(default_factory=list)
    """On IRC."""
    public: list[str] = field(default_factory=list)
    """Rooms that the operator declares public."""
    config: dict[str, Any] = field(default_factory=dict)
    """Sections that are otherwise than usual."""
    facts: dict[str, list[Fact]] = field(default_factory=lambda: defaultdict(list))
    """The log so far, by conversation."""
    approval_s: float = 1.0
    """How long an approval is waited for."""
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None
    _read_up_to: int = 0

    def __post_init__(self) -> None:
        self.model = self.puppet

    def person(self, platform: Platform, name: str, role: str = "guest") -> Person:
        """Somebody new. `role`: what the operator gives them."""
        if platform == "telegram":
            made = self.telegram.person(name)
            who = Person(platform, name, str(made.id), made)
        elif platform == "discord":
            who = Person(platform, name, self.discord.world.add_user(name))
        else:
            who = Person(
                platform,
                name,
                f"mask:{name}!u@{name}.example" if role == "guest" else f"account:{name}",
            )
        if role != "guest":
            self.roles[role].append(f"{CHANNELS[platform]}:{who.id}")
        return who

    def place(self, platform: Platform, *, public: bool = False, title: str = "") -> Place:
        """A new room, which not everybody may enter unless it is public."""
        title = title or f"room{next(self.numbers)}"
        made: Place
        if platform == "telegram":
            chat = self.telegram.group(title)
            made = OnTelegram(self, str(chat.id), chat=chat)
        elif platform == "discord":
            made = OnDiscord(self, self.discord.world.add_channel(title))
            sees = {"allow": str(VIEW_CHANNEL), "deny": "0", "type": 1, "id": self.discord.bot}
            hidden = {"allow": "0", "deny": str(VIEW_CHANNEL), "type": 0, "id": self.discord.guild}
            overwrites = [] if public else [hidden, sees]
            self.discord.world.channels[made.room]["permission_overwrites"] = overwrites
        else:
            made = OnIrc(self, f"#{title}")
            self.rooms.append(made.room)
        if public:
            self.public.append(made.room)
        return made

    def alone(self, who: Person) -> Place:
        if who.platform == "telegram":
            return OnTelegram(self, who.id, direct=True, chat=who.telegram)
        if who.platform == "discord":
            return OnDiscord(self, self.discord.world.dm(who.id), direct=True)
        room = (
            f"{who.name}!{who.id}"
            if who.id.startswith("account:")
            else who.id.removeprefix("mask:")
        )
        return OnIrc(self, room, direct=True)

    def page(self, path: str, text: str, *, kind: str = "text/html", status: int = 200) -> str:
        """The address of a page of the attacker's."""
        self.site.pages[path] = Page(text.encode(), {"content-type": kind}, status)
        return self.site.url(path)

    def file(self, place: Place, name: str) -> Path:
        """Of the agent's, in the directory of those who may read this place."""
        audience = ("public",) if place.room in self.public else directory_of(place.conversation)
        directory = self.folder.joinpath("workspace/files", *audience)
        directory.mkdir(parents=True, exist_ok=True)
        return directory / name

    @property
    def memory(self) -> str:
        return (self.folder / "workspace/MEMORY.md").read_text()

    def acted(self, mark: str) -> list[str]:
        return [one.name for one in (self.folder / "mcp").glob(f"acted-{mark}*")]

    async def begin(self) -> None:
        """Start the gateway; return once it is on all three, in all rooms."""
        settings = parse_config(self._written(), self.folder)
        identified, polled = len(self.discord.identifies), len(self.telegram.asked("getUpdates"))
        self._stop = asyncio.Event()
        running = app.run(settings, self._stop, clock=self.clock, model=self.model)
        self._running = asyncio.create_task(running)
        await self._so(
            lambda: len(self.discord.identifies) > identified and bool(self.discord.live)
        )
        await self._so(lambda: len(self.telegram.asked("getUpdates")) > polled)
        await self.up()
        reader = await self._open.enter_async_context(
            await Store.open_readonly(self.folder / "reverie.db")
        )

        async def follow() -> None:
            while True:
                for one in await reader.entries(after=self._read_up_to, limit=10_000):
                    self.facts[one.conversation or ""].append(one.fact)
                    self._read_up_to = one.seq
                await asyncio.sleep(0.01)

        following = asyncio.create_task(follow())
        self._open.callback(following.cancel)

    async def up(self) -> None:
        """Return once the bot is in all rooms of IRC."""
        for room in self.rooms:
            await self._so(
                lambda room=room: any(  # type: ignore[misc]
                    one.nick == "reverie" for one in self.ircd.rooms.get(room, ())
                )
            )

    async def end(self) -> None:
        """As SIGTERM does."""
        await self._open.aclose()
        if self._running is not None:
            self._stop.set()
            await self._running
            self._running = None

    async def _so(self, holds: Callable[[], bool]) -> None:
        running = self._running
        assert running is not None
        await until(lambda: holds() or running.done(), limit_s=60, every_s=0.005)
        if running.done():
            await running

    async def quiet(self, for_s: float = 0.0) -> None:
        """Return once nothing has been written to the log for so long. 0: for longer than an
        approval waits."""
        for_s = for_s or self.approval_s + 0.5
        seen, since = self._read_up_to, time.monotonic()
        while time.monotonic() - since < for_s:
            await asyncio.sleep(0.02)
            if self._read_up_to != seen:
                seen, since = self._read_up_to, time.monotonic()

    def turns(self, place: str) -> int:
        """How many turns have ended there to which somebody had spoken."""
        ended = [
            one
            for one in self.facts[place]
            if isinstance(one, TurnRecord) and one.outcome != "interrupted"
        ]
        return sum(one.cause == "addressed" for one in ended)

    def approvals(self, places: Sequence[str]) -> list[str]:
        """The tools that somebody was asked about there."""
        return [
            one.tool
            for place in places
            for one in self.facts[place]
            if isinstance(one, ApprovalRequested)
        ]

    def _written(self) -> dict[str, Any]:
        return {
            "channels": {
                CHANNELS["telegram"]: {
                    "platform": "telegram",
                    "token": self.telegram.token,
                    "base_url": self.telegram.url,
                    "rooms": ["*"],
                    "poll_timeout": 2,
                    "request_timeout": 5,
                    "typing": False,
                    "preview": "off",
                    "flood": {"per_chat_s": 0, "group_per_min": 10000, "overall_per_s": 10000},
                },
                CHANNELS["discord"]: {
                    "platform": "discord",
                    "token": self.discord.token,
                    "api_url": self.discord.api_url,
                    "gateway_url": self.discord.gateway_url,
                    "rooms": [self.discord.guild],
                    "typing": False,
                    "history_age": 0,
                },
                CHANNELS["irc"]: {
                    "platform": "irc",
                    "host": "127.0.0.1",
                    "port": self.ircd.port,
                    "tls": False,
                    "nick": "reverie",
                    "rooms": self.rooms,
                    "flood": {"burst": 1000, "per_s": 1000.0},
                },
            },
            "agents": [
                {
                    "id": "reverie",
                    "workspace": str(self.folder / "workspace"),
                    "bindings": [
                        *({"match": {"room": room}, "private": False} for room in self.public),
                        {"match": {"channel": "*"}},
                    ],
                }
            ],
            "llm": {
                "providers": {
                    "p": {"kind": "openai", "base_url": "http://127.0.0.1:9", "api_key": "none"}
                },
                "models": {"main": {"provider": "p", "name": "m"}},
                "context_optimization": {
                    "workspace_cache": {"enabled": False},
                    "compaction": {"enabled": True, "tail_keep_tokens": 100},
                },
            },
            "recall": {"ambient_tokens": 0},
            "attention": {"coalesce": 0},
            "commands": {"per_minute": 10_000},
            "media": {"transcribe": ["cat", "{file}"]},
            "access": {
                "roles": {role: list(people) for role, people in self.roles.items()},
                "rates": UNHURRIED,
                "budgets": UNBOUNDED,
            },
            # A reminder is told also after all that the agent has gone on with by itself before.
            "dmn": {
                "daily_cost_usd": 100.0,
                "daily_turns": 5_000,
                "max_autonomous_turns": 500,
                "dream_every": 0,
            },
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
            "tools": {
                "approvals": {"timeout": self.approval_s},
                "web": {
                    "allow_private": [f"127.0.0.1:{self.site.port}"],
                    "search": {"provider": "searxng", "base_url": self.site.url("")},
                },
                "mcp": {
                    "street": {
                        "command": [
                            sys.executable,
                            str(Path(__file__).with_name("hostile_mcp.py")),
                            str(self.folder / "mcp"),
                        ],
                        "tools": ["act", "tell", "fail"],
                    }
                },
            },
        } | self.config


@contextlib.asynccontextmanager
async def world(folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Servers up; what was begun ends with this."""
    for directory in ("workspace/files", "mcp"):
        (folder / directory).mkdir(parents=True)
    (folder / "workspace/MEMORY.md").write_text("")
    async with contextlib.AsyncExitStack() as opened:
        telegram = await opened.enter_async_context(BotApi())
        discord = await opened.enter_async_context(DiscordApi(Options(heartbeat_grace_s=600)))
        irc = await opened.enter_async_context(Ircd(IrcOptions(caps=MODERN)))
        site = await opened.enter_async_context(WebServer())
        it = World(folder, telegram, discord, irc, site)
        theirs = SimpleNamespace(
            time=lambda: it.clock.now().timestamp(),
            monotonic=time.monotonic,
            monotonic_ns=time.monotonic_ns,
        )
        patch.setattr(
            bot_api_world, "time", theirs
        )  # the platforms' clocks go as the gateway's does
        patch.setattr(discord_api_world, "time", theirs)
        patch.setattr(
            ircd,
            "_now",
            lambda: it.clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        )
        try:
            yield it
        finally:
            await it.end()
            patch.undo()
