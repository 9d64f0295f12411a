"""A day of life: people on three platforms, a gateway among them, and what everybody saw of it.

The platforms are the strict fakes, reached through the real adapters, in simulated time: a day takes
seconds. A day is a table of scenes; its record is what the judge (`tests/life/judge.py`) reads.
"""

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from agent.workspace.persona import DEFAULT_WORKSPACE
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import BindingConfig
from gateway.core.events import TaskFinished
from gateway.store import Store
from reverie.testing.servers import (
    bot_api_methods,
    bot_api_world,
    discord_api_rest,
    discord_api_world,
    ircd,
)
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.ircd import CAPS, Ircd
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from reverie.testing.servers.web_server import Page, WebServer
from reverie.testing.simulated_time import JumpingClock, simulate
from tests.kits.platform_users import ACCOUNTS, DISCORD, IRC, NICK, TELEGRAM, IrcClient
from tests.life.judge import BOT, Day, Line, Request
from tests.life.model import Ask, Reasonable, place_of

TAP = "tap"
"""The text of a scene in which somebody taps the first button that they see, if there is one."""
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)


class Scene(NamedTuple):
    at: str
    """HH:MM; of the next day with a plus in front."""
    place: str
    """`#room` on IRC, a room on Discord, a group on Telegram; `alone`: with the bot, on Telegram."""
    who: str
    text: str
    """With `@` in front it is said to the bot; with `^` it replies to the bot's newest words."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a day takes place."""

    irc: tuple[str, ...] = ()
    discord: tuple[str, ...] = ()
    telegram: tuple[str, ...] = ()
    """Groups."""
    owners: tuple[str, ...]
    """On Telegram."""
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Of the workspace."""
    pages: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Path of a web page -> what it says, from what time on. `{site}` in a scene is its address."""
    until: str = "23:59"


def moment(at: str) -> datetime:
    hours, minutes = at.lstrip("+").split(":")
    days = at.count("+")
    return MIDNIGHT + timedelta(days=days, hours=int(hours), minutes=int(minutes))


class _Stamped(list[tuple[str, str]]):
    """Knows when each was added."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__()
        self.at, self._now = list[datetime](), now

    def append(self, item: tuple[str, str]) -> None:
        self.at.append(self._now())
        super().append(item)


class World:
    def __init__(
        self, setting: Setting, scenes: Sequence[Scene], folder: Path, clock: JumpingClock
    ) -> None:
        self.setting, self.scenes, self.folder, self.clock = setting, scenes, folder, clock
        self.jobs = list["asyncio.Future[None]"]()
        self.site = WebServer()
        self.telegram, self.discord = BotApi(), DiscordApi(Options(heartbeat_grace_s=3600))
        self.ircd = Ircd(ircd.Options(caps=f"{CAPS} sasl=PLAIN", sasl=ACCOUNTS))
        self.requests = list[Request]()
        self.model = Reasonable()
        self.said = list[Line]()
        self.people: dict[str, Person] = {}
        self.groups: dict[str, Chat] = {}
        self.rooms: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self.clients: dict[str, IrcClient] = {}

    def answer(self, body: Json) -> Answer:
        given = self.model.answer(body)
        self.requests.append(Request(self.clock.now(), place_of(body), body, given))
        ask, count = Ask(body), len(self.requests)
        if ask.called("bash") and not ask.results[-1].startswith("!"):
            self._hold(self._has_job_ended)
        if any(name == "web_fetch" for _, name, _ in given.calls):
            self._hold(lambda: _later(len(self.requests) > count))
        return given

    async def _has_job_ended(self) -> bool:
        async with await Store.open_readonly(self.folder / "reverie.db") as reader:
            found = await reader.entries(kinds=["finished"])
            return any(isinstance(one.fact, TaskFinished) and one.fact.at for one in found)

    def _hold(self, done: Callable[[], Awaitable[bool]]) -> None:
        """No time passes before this, which no coroutine of the gateway does."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.works(ended)  # type: ignore[attr-defined] # it is the simulated one

        async def wait() -> None:
            for _ in range(1_000):
                if await done():
                    break
                await asyncio.sleep(0.01)
            ended.set_result(None)

        self.jobs.append(asyncio.ensure_future(wait()))

    async def enter(self) -> None:
        """Everybody is where they are going to speak."""
        for name in self.setting.owners:
            self.person(name)
        for title in self.setting.telegram:
            self.groups[title] = self.telegram.group(title)
        for title in self.setting.discord:
            self.rooms[title] = self.discord.world.add_channel(title)
        for scene in self.scenes:
            if scene.place in self.rooms:
                self.users.setdefault(scene.who, "")
                self.users[scene.who] = self.users[scene.who] or self.discord.world.add_user(
                    scene.who
                )
            elif scene.place.startswith("#"):
                if scene.who not in self.clients:
                    client = self.clients[scene.who] = IrcClient(
                        scene.who, self.ircd.port, scene.who if scene.who in ACCOUNTS else ""
                    )
                    client.said = _Stamped(self.clock.now)
                    await client.begin()
                    for room in self.setting.irc:
                        await client.join(room)
            else:
                self.person(scene.who)

    def person(self, name: str) -> Person:
        if name not in self.people:
            self.people[name] = self.telegram.person(name.title(), username=name)
        return self.people[name]

    def play(self, scene: Scene) -> None:
        to_bot, reply = scene.text.startswith("@"), scene.text.startswith("^")
        text = scene.text.lstrip("@^").strip().replace("{site}", self.site.url(""))
        place = f"alone:{scene.who}" if scene.place == "alone" else scene.place
        if scene.text == TAP:
            self.taps(self.people[scene.who])
            return
        self.said.append(
            Line(
                self.clock.now(), place, scene.who, text, to_bot or reply or scene.place == "alone"
            )
        )
        if scene.place in self.rooms:
            channel = self.rooms[scene.place]
            head = f"<@{self.discord.bot}> " if to_bot else ""
            newest = self.discord.visible(channel)[-1]["id"] if reply else None
            self.discord.says(channel, self.users[scene.who], head + text, reply_to=newest)
        elif scene.place.startswith("#"):
            head = f"{NICK}: " if to_bot else ""
            self.clients[scene.who].send(f"PRIVMSG {scene.place} :{head}{text}")
        else:
            person, chat = self.people[scene.who], self.groups.get(scene.place)
            more: Json = {}
            if reply:
                shown = [one for one in self.telegram.shown(chat or person) if one.by_bot]
                more = {"reply_to": shown[-1].id}
            if chat is None:
                self.telegram.private_says(person, text, **more)
            else:
                (self.telegram.mentions if to_bot else self.telegram.group_says)(
                    chat, person, text, **more
                )

    def taps(self, person: Person) -> None:
        """They tap the first button, if the bot's newest words have one: yes."""
        shown = self.telegram.shown(person)
        if shown and shown[-1].taps:
            self.telegram.presses(person, person, shown[-1].id, shown[-1].taps[0])

    def writes(self, path: str, text: str) -> None:
        """A web page says this from now on."""
        self.site.pages[path] = Page(text.encode(), {"content-type": "text/plain"})

    def heard(self) -> Iterator[Line]:
        chats: dict[str, Chat | Person] = {**self.groups}
        chats |= {f"alone:{name}": one for name, one in self.people.items()}
        for title, chat in chats.items():
            for shown in self.telegram.shown(chat):
                if shown.by_bot:
                    at = datetime.fromtimestamp(shown.body["date"], UTC)
                    yield Line(at, title, BOT, shown.text)
        for title, channel in self.rooms.items():
            for one in self.discord.visible(channel):
                yield Line(datetime.fromisoformat(one["timestamp"]), title, BOT, one["content"])
        said = next((one.said for one in self.clients.values()), None)
        if isinstance(said, _Stamped):
            for at, (room, text) in zip(said.at, said, strict=True):
                yield Line(at, room, BOT, text)

    def config(self, url: str) -> Json:
        channels: Json = {}
        if self.setting.irc:
            channels[IRC] = {
                "platform": "irc",
                "host": "127.0.0.1",
                "port": self.ircd.port,
                "tls": False,
                "nick": NICK,
                "rooms": list(self.setting.irc),
            }
        if self.setting.discord:
            channels[DISCORD] = {
                "platform": "discord",
                "token": self.discord.token,
                "api_url": self.discord.api_url,
                "gateway_url": self.discord.gateway_url,
                "rooms": [self.discord.guild],
                "typing": False,
            }
        channels[TELEGRAM] = {
            "platform": "telegram",
            "token": self.telegram.token,
            "base_url": self.telegram.url,
            "rooms": [str(one.id) for one in self.groups.values()],
            "typing": False,
            "preview": "off",
        }
        owners = [f"{TELEGRAM}:{self.people[name].id}" for name in self.setting.owners]
        usual: Json = {
            "channels": channels,
            "agents": [{"id": "reverie", "workspace": "workspace"}],
            "llm": {
                "providers": {"p": {"kind": "anthropic", "base_url": url, "api_key": "test"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
                "context_optimization": {"workspace_cache": {"enabled": False}},
            },
            "access": {"dm": "open", "roles": {"owner": owners}},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
            "tools": {"web": {"allow_private": [f"127.0.0.1:{self.site.port}"]}},
        }
        return merged(usual, self.setting.config)


def watching(*names: str, sleep: str = "23:00-07:00", **more: Any) -> Json:
    """Configuration of an agent that looks after its rooms, in which everybody may read all."""
    binding: Json = {"match": {"room": "*"}, "private": False}
    attention: Json = {"presence": {"sleep": sleep}}
    usual: Json = {"attention": attention, "dmn": {"forage": True}}
    if "speaks_up" in BindingConfig.model_fields:
        binding["speaks_up"] = "when_useful"
    else:  # versions before had this instead
        attention["salience"] = {"questions": True, "keywords": list(names)}
    return merged(
        {**usual, "agents": [{"id": "reverie", "workspace": "workspace", "bindings": [binding]}]},
        more,
    )


async def _later(true: bool) -> bool:
    return true


def merged(below: Json, above: Mapping[str, Any]) -> Json:
    """Of both; what is in both and no mapping is taken from `above`."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = (
            merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
        )
    return both


async def _live(
    setting: Setting, scenes: Sequence[Scene], folder: Path, clock: JumpingClock
) -> Day:
    theirs = SimpleNamespace(
        time=lambda: clock.now().timestamp(),
        monotonic=clock.monotonic,
        monotonic_ns=lambda: int(clock.monotonic() * 1e9),
    )
    async with contextlib.AsyncExitStack() as opened:
        for module in (bot_api_world, bot_api_methods, discord_api_world, discord_api_rest):
            opened.enter_context(mock.patch.object(module, "time", theirs))

        def now() -> str:
            return clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")

        opened.enter_context(mock.patch.object(ircd, "_now", now))
        world = World(setting, scenes, folder, clock)
        cache = MessagesCache(lambda text: -(-len(text) // 4))
        for server in (world.telegram, world.discord, world.ircd, world.site):
            await opened.enter_async_context(server)
        api = await opened.enter_async_context(ModelApi(cache=cache, clock=clock.monotonic))
        api.default = world.answer
        await world.enter()
        for client in world.clients.values():
            opened.push_async_callback(client.end)
        workspace = folder / "workspace"
        shutil.copytree(DEFAULT_WORKSPACE, workspace)
        for name, text in setting.files.items():
            workspace.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
            workspace.joinpath(name).write_text(text)
        settings = parse_config(world.config(api.url), folder)
        stop = asyncio.Event()
        running = asyncio.create_task(app.run(settings, stop, clock=clock))
        happens: list[tuple[datetime, Callable[[], None]]] = [
            (moment(one.at), functools.partial(world.play, one)) for one in scenes
        ]
        happens += [
            (moment(at), functools.partial(world.writes, path, text))
            for path, versions in setting.pages.items()
            for at, text in versions
        ]
        for at, happen in sorted(happens, key=lambda one: one[0]):
            await _until(at, clock, running)
            happen()
        await _until(moment(setting.until), clock, running)
        stop.set()
        await asyncio.gather(running, *world.jobs)
        assert not api.violations, api.violations[0]
        assert not world.discord.offences
        usages = [one.message["usage"] for one in api.seen if one.message is not None]
        async with await Store.open_readonly(folder / "reverie.db") as reader:
            log = list(await reader.entries(limit=1_000_000))
        said = sorted([*world.said, *world.heard()], key=lambda one: one.at)
        return Day(said=said, requests=world.requests, log=log, usage=usages)


async def _until(at: datetime, clock: JumpingClock, running: "asyncio.Task[None]") -> None:
    waiting = asyncio.create_task(clock.sleep((at - clock.now()).total_seconds()))
    await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        await running
        raise AssertionError("the gateway has ended")


def live(setting: Setting, scenes: Sequence[Scene], folder: Path, *, begin: str) -> Day:
    return simulate(
        lambda clock: _live(setting, scenes, folder, clock),
        begin=moment(begin),
        limit_s=120.0,
        grace_s=0.001,
        lately_s=0.003,
    )
