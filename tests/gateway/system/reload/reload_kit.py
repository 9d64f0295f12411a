"""Reloads at random under traffic: a gateway in a process of its own, on servers of all three platforms.

Each version of the configuration has a number, its edition, in several places that must be seen together: in what
stands in front of a prompt and in how long the answer may be; in what a command begins with and in who somebody is.
"""

import asyncio
import contextlib
import copy
import json
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.core.events import Command, ConnectionChanged, Message
from gateway.core.facts import Judgement, TurnRecord
from gateway.store import Store
from tests.gateway.system.reload.chatting_users import OnDiscord, OnIrc, OnTelegram, Seat
from tests.kits.platform_users import ACCOUNTS, NICK, IrcClient, so
from tests.servers.bot_api import BotApi
from tests.servers.discord_api import DiscordApi
from tests.servers.ircd import MODERN, Ircd, Options
from tests.servers.model_api import Answer, Json, ModelApi

ROOT = Path(__file__).parents[4]
TELEGRAM, DISCORD, IRC, EXTRA = "telegram.main", "discord.main", "irc.main", "irc.extra"
FIRST = 1_000
"""How long the answers of edition 0 may be, in tokens."""
WAIT_S = 120.0


@dataclass
class Town:
    """All of it."""

    directory: Path
    telegram: BotApi
    discord: DiscordApi
    ircd: Ircd
    model: ModelApi
    seats: list[Seat]
    base: Json
    random: random.Random
    edition: int = 0
    mixed: list[str] = field(default_factory=list)
    """What was seen that belongs to two editions."""
    away: dict[str, int] = field(default_factory=dict)
    """Channels that are taken out, with the edition in which they come back."""
    changed: Counter[str] = field(default_factory=Counter)
    config: Json = field(default_factory=dict)
    people: list[str] = field(default_factory=list)
    """Who olga is."""
    process: asyncio.subprocess.Process | None = None

    def write(self, config: Json | str) -> None:
        """As an editor does."""
        new = self.directory / "reverie.yaml.new"
        new.write_text(config if isinstance(config, str) else json.dumps(config))  # JSON is YAML
        new.chmod(0o600)
        new.replace(self.directory / "reverie.yaml")

    async def begin(self) -> None:
        self.config = editioned(self.base, 0)
        self.write(self.config)
        with (self.directory / "gateway.log").open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.gateway.system.reload.gateway_child", str(self.directory), "20"),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        await so(lambda: all(f"{name} is up" in self.log() for name in (TELEGRAM, DISCORD, IRC)), "all to be up")

    async def asked(self, what: str) -> Json:
        """What the process says to it."""
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{what}\n".encode())
        async with asyncio.timeout(WAIT_S):
            line = await process.stdout.readline()
        assert line, f"the gateway has ended: {self.log()[-2000:]}"
        told: Json = json.loads(line)
        return told

    def log(self) -> str:
        return (self.directory / "gateway.log").read_text()

    async def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.asked("stop")
            async with asyncio.timeout(120):
                await self.process.wait()
        assert self.process is None or self.process.returncode == 0, self.log()[-3000:]

    async def reload(self) -> None:
        """One more edition, or one time in ten a file that is broken."""
        if self.random.random() < 0.1:
            self.changed["broken"] += 1
            self.write(self.broken())
            came = await self.asked("reload")
            assert (came["taken"], came["later"], bool(came["problems"])) == ([], [], True), came
            return
        self.edition += 1
        self.config = self.next()
        self.write(self.config)
        came = await self.asked("reload")
        assert (came["later"], came["problems"], came["unread"]) == ([], [], ""), came  # taken, unless it is already

    async def plain(self) -> None:
        """As it was at the beginning, and everybody is there."""
        self.edition += 1
        self.away.clear()
        self.config = editioned(self.base, self.edition)
        self.write(self.config)
        came = await self.asked("reload")
        assert came["problems"] == [], came

    def broken(self) -> Json | str:
        """A configuration that cannot be used."""
        bad = copy.deepcopy(self.config)
        match self.random.randrange(5):
            case 0:
                return "channels: [broken"
            case 1:
                bad["channels"] = {}
            case 2:
                bad["agents"][0]["model"] = "nobody"
            case 3:
                bad["channels"][IRC] = bad["channels"].get(IRC, self.base["channels"][IRC]) | {
                    "tls": {"ca_file": "/nowhere/ca.pem"}
                }
            case _:
                bad["access"]["dm"] = "perhaps"
        bad["agents"][0]["bindings"][0]["prompt"] = "Edition 9999."
        return bad

    def next(self) -> Json:
        """The next edition: something of it at random, too."""
        dice, new = self.random, editioned(self.config, self.edition)
        match dice.randrange(8):
            case 0:
                self.changed["context optimization"] += 1
                new["llm"]["context_optimization"] = {
                    "prompt_cache": {"enabled": dice.random() < 0.5},
                    "compaction": {"enabled": dice.random() < 0.5},
                }
            case 1:
                self.changed["threshold"] += 1
                new["attention"]["thresholds"] = {"direct": dice.choice(["ambient", "low"])}
            case 2:
                self.changed["dmn"] += 1
                new["dmn"] = {"resting": dice.randrange(100, 400)}
            case 3 | 4:
                self._change_a_channel(new)
            case 5:
                self._take_one_away(new)
            case 6:
                self._extra(new)
            case _:
                self.changed["words alone"] += 1
        for name in [name for name, until in self.away.items() if until <= self.edition]:
            del self.away[name]
            new["channels"][name] = self.base["channels"][name]
            self.changed["channel back"] += 1
        there = [one for one in self.people if one.partition(":")[0] in new["channels"]]
        new["access"]["roles"] = dict.fromkeys(new["access"]["roles"], there)
        return new

    def _change_a_channel(self, new: Json) -> None:
        name = self.random.choice([one for one in new["channels"] if one != EXTRA])
        self.changed[f"{name.partition('.')[0]} changed"] += 1
        was = new["channels"][name]
        more: Json = {"request_timeout": was.get("request_timeout", 5) % 9 + 1}
        if name == IRC:
            more = {"page_lines": was.get("page_lines", 12) % 97 + 1}
        new["channels"][name] = was | more

    def _take_one_away(self, new: Json) -> None:
        there = [one for one in new["channels"] if one != EXTRA]
        if len(there) > 1:
            name = self.random.choice(there)
            del new["channels"][name]
            self.away[name] = self.edition + self.random.randrange(1, 4)
            self.changed["channel gone"] += 1

    def _extra(self, new: Json) -> None:
        if new["channels"].pop(EXTRA, None) is None:
            new["channels"][EXTRA] = self.base["channels"][IRC] | {"nick": "second", "rooms": ["#second"]}
        self.changed["another account"] += 1

    def answer(self, body: Json) -> Answer:
        """What the model says: the lines that it is told as new; and whether what it is told is of one edition."""
        text = json.dumps(body["messages"])
        prompts = {int(one) for one in re.findall(r"Edition (\d+)\.", text)}
        room = int(body.get("max_tokens") or body["max_completion_tokens"])
        if prompts != {room - FIRST}:
            self.mixed.append(f"a prompt of {sorted(prompts)} and room of {room - FIRST}")
        newest = [one for one in body["messages"] if one["role"] == "user"][-1]
        lines = re.findall(r"line ([\w-]+-\d+\.)", json.dumps(newest["content"]))
        return Answer(text=" ".join(f"re {line}" for line in dict.fromkeys(lines)) or "nothing")


def editioned(config: Json, edition: int) -> Json:
    """The same in another edition."""
    new = copy.deepcopy(config)
    new["agents"][0]["bindings"][0]["prompt"] = f"Edition {edition}."
    new["llm"]["models"]["main"]["max_output_tokens"] = FIRST + edition
    new["commands"]["prefix"] = "!."[edition % 2]
    people = new["access"]["roles"].pop("owner", None) or new["access"]["roles"].pop("admin")
    new["access"]["roles"] = {("owner", "admin")[edition % 2]: people}
    return new


def configured(it: Town, rooms: dict[str, list[str]]) -> Json:
    unhurried = {whose: {"burst": 0, "per_minute": 0.0} for whose in ("sender", "room", "agent")}
    return {
        "channels": {
            TELEGRAM: {
                "platform": "telegram",
                "token": it.telegram.token,
                "base_url": it.telegram.url,
                "rooms": rooms[TELEGRAM],
                "poll_timeout": 2,
                "request_timeout": 5,
                "typing": False,
                "preview": "off",
                "flood": {"per_chat_s": 0, "group_per_min": 100000, "overall_per_s": 10000},
            },
            DISCORD: {
                "platform": "discord",
                "token": it.discord.token,
                "api_url": it.discord.api_url,
                "gateway_url": it.discord.gateway_url,
                "rooms": rooms[DISCORD],
                "request_timeout": 5,
                "typing": False,
            },
            IRC: {
                "platform": "irc",
                "host": "127.0.0.1",
                "port": it.ircd.port,
                "tls": False,
                "nick": NICK,
                "rooms": rooms[IRC],
                "flood": {"burst": 100, "per_s": 1000.0},
            },
        },
        "agents": [{"id": "reverie", "bindings": [{"match": {"channel": "*"}, "prompt": "", "listen": "mention"}]}],
        "llm": {
            "providers": {"fake": {"kind": "openai", "base_url": it.model.url, "api_key": "none"}},
            "models": {"main": {"provider": "fake", "name": "fake", "context_tokens": 100_000}},
        },
        "attention": {"coalesce": 0},
        "commands": {"per_minute": 100_000},
        "access": {"dm": "open", "roles": {"owner": it.people}, "rates": unhurried},
        "store": {"path": "reverie.db"},
        "ops": {"port": 0},
    }


@contextlib.asynccontextmanager
async def town(directory: Path, seed: int) -> AsyncIterator[Town]:
    """Servers up, and olga in her places; the gateway runs."""
    options = Options(
        caps=f"{MODERN} sasl=PLAIN",
        sasl=ACCOUNTS,
        isupport=(*Options().isupport, "CHATHISTORY=50"),
        joins_timed=False,  # the gateway's seconds are shorter than the server's, so their clocks must not be compared
    )
    async with BotApi() as telegram, DiscordApi() as discord, Ircd(options) as ircd, ModelApi() as model:
        client = IrcClient("olga", ircd.port, "olga")
        await client.begin()
        await client.join("#room")
        lounge, olga = telegram.group("lounge"), telegram.person("Olga", username="olga")
        number = discord.world.add_user("olga")
        seats: list[Seat] = [
            OnTelegram(telegram, olga),
            OnTelegram(telegram, olga, lounge),
            OnDiscord(discord, number, discord.world.dm(number)),
            OnDiscord(discord, number, discord.room),
            OnIrc(ircd, client),
            OnIrc(ircd, client, "#room"),
        ]
        it = Town(directory, telegram, discord, ircd, model, seats, {}, random.Random(seed))
        me = {TELEGRAM: f"{TELEGRAM}:{olga.id}", DISCORD: f"{DISCORD}:{number}", IRC: f"{IRC}:account:olga"}
        rooms = {TELEGRAM: [str(lounge.id)], DISCORD: [discord.room], IRC: ["#room"]}
        it.people = sorted(me.values())
        it.base = configured(it, rooms)
        model.default = it.answer
        await it.begin()
        try:
            yield it
        finally:
            await it.end()
            await client.end()
        assert model.violations == []
        assert discord.offences == []


@dataclass(frozen=True)
class Story:
    """What was seen of it."""

    reloads: int
    lines: int
    slowest_s: float
    changed: Counter[str]
    before: Json
    after: Json

    def __str__(self) -> str:
        held = ", ".join(f"{name} {self.before[name]} -> {self.after[name]}" for name in self.before)
        said = ", ".join(f"{name} {times}" for name, times in sorted(self.changed.items()))
        return (
            f"{self.reloads} reloads ({said}); {self.lines} lines, each answered once, the slowest after "
            f"{self.slowest_s:.1f} s; held after {min(100, self.reloads)} and at the end: {held}"
        )


async def play(directory: Path, reloads: int, seed: int) -> Story:
    """So many reloads under traffic. Raises AssertionError for whatever is lost, doubled, mixed or left over."""
    before: Json = {}
    async with town(directory, seed) as it:
        slowest_s, lines = 0.0, 0
        for stretch in [min(100, reloads), max(0, reloads - 100)]:
            over = asyncio.Event()
            talking = [asyncio.create_task(seat.talk(over)) for seat in it.seats]
            try:
                for _ in range(stretch):
                    await it.reload()
                    await heard(it, talking)
                await it.plain()
            finally:
                over.set()
                await asyncio.gather(*talking)
            before = before or await quiet(it)
        after = await quiet(it)
        for seat in it.seats:
            assert set(seat.answers().values()) <= {1}, {k: v for k, v in seat.answers().items() if v != 1}
            slowest_s, lines = max(slowest_s, seat.slowest_s), lines + len(seat.said)
        assert it.mixed == []
        changed = it.changed
    await whole(directory / "reverie.db")
    return Story(reloads, lines, slowest_s, changed, before, after)


async def heard(it: Town, talking: list[asyncio.Task[None]]) -> None:
    """Return once somebody was answered, so that each edition is met by somebody. Raises what ended a talk."""
    for seat in it.seats:
        seat.news.clear()

    async def answered(seat: Seat) -> None:
        await seat.news.wait()

    news = [asyncio.create_task(answered(seat)) for seat in it.seats]
    done, _ = await asyncio.wait([*news, *talking], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    for task in news:
        task.cancel()
    for task in done & set(talking):
        await task


async def quiet(it: Town) -> dict[str, int]:
    """What the gateway holds once it has nothing to do."""
    async with asyncio.timeout(WAIT_S):
        last: Json = {}
        while True:
            await asyncio.sleep(0.5)
            now = await it.asked("figures")
            if (now["tasks"], now["threads"], now["files"]) == tuple(
                last.get(k) for k in ("tasks", "threads", "files")
            ):
                return dict(now)
            last = now


async def whole(path: Path) -> None:
    """Everything in the log was decided by one edition alone."""
    async with await Store.open_readonly(path) as reader:
        entries = await reader.entries(limit=10**7)
        judged = {one.cause: one.fact for one in entries if isinstance(one.fact, Judgement)}
    mixed, seen = list[str](), Counter[str]()
    for one in entries:
        fact, verdict = one.fact, judged.get(one.seq)
        if verdict is None or not isinstance(fact, Command | Message) or fact.at.channel != IRC:
            continue
        if isinstance(fact, Command):
            edition = {"whoami": "owner", "status": "admin"}[fact.name]
        elif fact.text in ("!whoami", ".status"):
            edition = {"!whoami": "admin", ".status": "owner"}[fact.text]
        else:
            continue
        seen[f"{fact.kind} {edition}"] += 1
        if verdict.role != edition:
            mixed.append(f"{one.seq}: {fact.kind} of {edition} by {verdict.role}")
    assert not mixed, mixed[:20]
    print(f"decided by one edition: {dict(seen)}")
    facts: list[Any] = [one.fact for one in entries]
    ended = Counter(seq for fact in facts if isinstance(fact, TurnRecord) for seq in fact.covers)
    assert not (twice := [seq for seq, times in ended.items() if times > 1]), f"dealt with twice: {twice}"
    ups = Counter(fact.channel for fact in facts if isinstance(fact, ConnectionChanged) and fact.up)
    print(f"connected: {dict(ups)}")
