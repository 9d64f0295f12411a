"""A storm over three platforms around the real program: from a seed come kills, and all that fails
around it.

People on Telegram, Discord and IRC ask, wait for what they hear, and ask again. Each question
carries a token (`t17z`), which the model names once. Everything but the program is in this process
and outlives each kill, and what became of a question is judged from what its person was shown,
never from the log. Time goes by `SPEED` times as fast, for the program and for the dates of the
platforms; what a kernel or a library waits for takes as long as ever.

Where the log loses its end, what was said in that end may be known to nobody; it may be answered
once, or told.
"""

import asyncio
import contextlib
import functools
import itertools
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from gateway.runtime.turn_record import FAILURE_TEXTS
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_http import BAD_GATEWAY
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Action, Options
from reverie.testing.servers.ircd import Client, Ircd
from reverie.testing.servers.model_api import Answer, Json, ModelApi, failure
from tests.kits.delivery_judge import DOUBT, TOKEN, Asked
from tests.kits.gateway_process import Program, so
from tests.kits.platform_users import (
    DISCORD,
    IRC,
    NICK,
    PLATFORMS,
    TELEGRAM,
    IrcClient,
    OnDiscord,
    OnIrc,
    OnTelegram,
)
from tests.kits.small_disk import SmallDisk, small_disk

SPEED = 20.0
ROOM = "#room"
FAST = """
import asyncio, time
from datetime import UTC, datetime
import channels.discord.rest
import channels.irc.history
import channels.irc.session
import gateway.app
import gateway.ingest.intake

class Fast:
    def now(self):
        return datetime.fromtimestamp({begun} + (time.time() - {begun}) * {speed} + {ahead}, UTC)

    def monotonic(self):
        return time.monotonic() * {speed}

    async def sleep(self, delay_s):
        await asyncio.sleep(max(0.0, delay_s) / {speed})

gateway.app.SystemClock = Fast
channels.discord.rest.HEARTBEAT_TIMEOUT_S /= {speed}
channels.irc.history._LIVE_WINDOW *= {speed}
read, kept = (open({directory!r} + name, "ab", buffering=0) for name in ("/read.txt", "/kept.txt"))
on_line, accept = channels.irc.session.IrcSession.on_line, gateway.ingest.intake.Intake.accept

def note_read(self, raw):
    read.write(raw.encode() + b"\\n")
    on_line(self, raw)

async def note_kept(self, channel, batch, **more):
    await accept(self, channel, batch, **more)
    kept.write(repr(batch).encode() + b"\\n")

channels.irc.session.IrcSession.on_line = note_read
gateway.ingest.intake.Intake.accept = note_kept
"""
"""What the program runs before its own first step: its clock, what a library or a machine under
load waits for, and notes of the lines that it has read from IRC and of what the intake has kept."""
PATIENCE_S = 120.0
"""For a step of the program that has to come, on a machine with other work."""
UNSAVED_S = 1.5
"""What was said less than this before the store was deleted or copied may not have been saved."""
DISK_SIZE = "256m"
"""Room for a store of an hour three times: a deleted one keeps its room until it is saved in a
copy."""
CLOSED_S = 5.0
"""What IRC relayed before a connection ended is read within this time, or never. No network keeps
it for us."""
Seat = OnTelegram | OnDiscord | OnIrc
OUTCOMES = ("answered", "told", "uncertain told", "lost", "doubled", "silent")


@dataclass(eq=False)
class Question:
    seat: Seat
    tokens: list[str]
    """What it asks about; an edit adds what it asks about then."""
    said_s: float
    seen: int
    """Messages of the bot that its person had been shown."""
    ears: Client | None = None
    """IRC: the connection of the bot that it was relayed to."""
    message: str = ""
    """Its id, where it can be edited."""
    ended_s: float = float("inf")
    outcome: str = ""
    """What came of it: one of `OUTCOMES`; `unheard`: the bot was not there for long enough. Empty:
    not yet."""


@dataclass
class Fault:
    """Something that went wrong for a while."""

    kind: str
    platforms: Sequence[str]
    begun_s: float
    ended_s: float = float("inf")

    def meets(self, question: Question) -> bool:
        """Whether that was asked, or waited for, while it lasted or right after."""
        heard = self.begun_s <= question.ended_s and question.said_s <= self.ended_s + 1
        return heard and question.seat.platform in self.platforms


@dataclass
class Table:
    """What became of the questions, by kind of fault and platform."""

    injected: Counter[str] = field(default_factory=Counter)
    rows: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def failed(self) -> int:
        """Questions that were lost, doubled or met with silence."""
        return sum(
            row[one]
            for (kind, _), row in self.rows.items()
            if kind == "all"
            for one in OUTCOMES[3:]
        )

    def __str__(self) -> str:
        columns = ("injected", "accepted", *OUTCOMES, "unheard")
        lines = [f"| {'fault':28} | {'platform':8} | " + " | ".join(columns) + " |"]
        for (kind, platform), row in sorted(
            self.rows.items(), key=lambda item: (item[0][0] == "all", item[0])
        ):
            counts = {
                "injected": self.injected[kind],
                "accepted": sum(row[one] for one in OUTCOMES),
                **row,
            }
            told = " | ".join(f"{counts.get(column, 0):{len(column)}}" for column in columns)
            lines.append(f"| {kind:28} | {platform.partition('.')[0]:8} | {told} |")
        return "\n".join(lines)


class TokenFile:
    """A file that only grows, line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._tokens = path, 0, set[str]()

    def tokens(self) -> set[str]:
        if self._path.exists() and self._path.stat().st_size > self._at:
            with self._path.open("rb") as file:
                file.seek(self._at)
                lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._at += len(lines)
            self._tokens.update(TOKEN.findall(lines.decode(errors="replace")))
        return self._tokens


class Storm(Program):
    """All of it. Use as `async with storm(directory, seed) as it`."""

    speed = SPEED

    def __init__(  # noqa: PLR0917 - what stands around the program
        self,
        disk: SmallDisk,
        directory: Path,
        telegram: BotApi,
        discord: DiscordApi,
        ircd: Ircd,
        model: ModelApi,
        seed: int,
    ) -> None:
        channels: Json = {
            TELEGRAM: {
                "platform": "telegram",
                "token": telegram.token,
                "base_url": telegram.url,
                "rooms": ["*"],
                "poll_timeout": 2,
                "request_timeout": 2,
                "flood": {"per_chat_s": 0, "group_per_min": 10000, "overall_per_s": 10000},
            },
            DISCORD: {
                "platform": "discord",
                "token": discord.token,
                "api_url": discord.api_url,
                "gateway_url": discord.gateway_url,
                "rooms": [discord.guild],
                "history_age": 86400,
                "request_timeout": 2,
                "typing": False,
            },
            IRC: {
                "platform": "irc",
                "host": "127.0.0.1",
                "port": ircd.port,
                "tls": False,
                "nick": NICK,
                "rooms": [ROOM],
                "page_lines": 0,
                "flood": {"burst": 100, "per_s": 100.0},
            },
        }
        super().__init__(directory, model, seed, channels, context_tokens=30_000)
        self.telegram, self.discord, self.ircd = telegram, discord, ircd
        self.disk, self.prefix = disk, disk.prefix
        self.store = disk.directory / "reverie.db"
        self.seats: list[Seat] = []
        self.questions: list[Question] = []
        self.waiting: list[Question] = []
        self.faults: list[Fault] = []
        self.talking = True
        self.ahead_s = 0.0
        """Simulated time that was skipped."""
        self.closed: dict[Client, float] = {}
        """Connections that ended, and when."""
        self.read, self.kept = TokenFile(directory / "read.txt"), TokenFile(directory / "kept.txt")
        self.unkept: set[str] = set()
        """What nobody keeps: it was said on IRC to a process that was killed before it was written,
        or its end of the log is lost."""
        self.asked_about: set[str] = set()
        self.model_faults: list[Callable[[], Answer | None]] = []
        self.sabotage = ""
        """Python that a process runs before its own first step."""
        self.pause_s = 0.6
        """At most so long somebody is silent who was answered."""
        self.uses_tools = self.edits = self.split = False
        self.slow_s = 0.5
        self.deleted_s: float | None = None
        """Since when the store is deleted."""
        self.changing = asyncio.Lock()
        """Held by whoever ends and starts the program."""
        self._begun_s, self._begun_mono_s = time.time(), time.monotonic()
        model.default = self._answer

    async def begin(self) -> None:
        """Have everybody there, and the program."""
        olga = self.telegram.person("Olga")
        self.config["store"]["path"] = str(self.store)
        self.config["access"]["roles"] = {"owner": [f"{TELEGRAM}:{olga.id}"]}
        self.config["llm"]["providers"]["fake"]["timeout"] = 120 / SPEED
        self.config["recall"] = {
            "ambient_tokens": 0
        }  # what was dealt with would be read out of the newest message
        self.telegram.private_says(olga, "/help")
        lounge = self.telegram.group("lounge")
        for name, chat in (("Ann", None), ("Ben", None), ("Gus", lounge), ("Nora", lounge)):
            self.seats.append(OnTelegram(self.telegram, self.telegram.person(name), chat))
        world = self.discord.world
        rooms = {TELEGRAM: str(lounge.id), DISCORD: world.other}
        bindings = [
            {"match": {"channel": channel, "room": room}} for channel, room in rooms.items()
        ]
        self.config["agents"] = [{"id": "second", "bindings": bindings}, {"id": "reverie"}]
        people = {name: world.add_user(name) for name in ("cy", "dot")}
        self.seats += [
            OnDiscord(self.discord, world.ann, world.room),
            OnDiscord(self.discord, world.ben, world.other),
            *(OnDiscord(self.discord, user, world.dm(user)) for user in people.values()),
        ]
        for name, room in (("dan", ROOM), ("eve", ROOM), ("fay", ""), ("gil", "")):
            client = IrcClient(name, self.ircd.port)
            await client.begin()
            if room:
                await client.join(room)
            self.seats.append(OnIrc(client, room))
        await self.start()
        await self.is_up()

    async def is_up(self) -> None:
        """Return once the bot is on all three platforms."""
        there = [seat for seat in self.seats if isinstance(seat, OnIrc)]
        polls = len(self.telegram.asked("getUpdates"))
        is_there = await so(
            lambda: bool(self.discord.live) and all(map(self.ears, there)), PATIENCE_S
        )
        assert is_there, self.log[-2000:]
        assert await so(lambda: len(self.telegram.asked("getUpdates")) > polls, PATIENCE_S), (
            self.log[-2000:]
        )

    @property
    def simulated_days(self) -> float:
        return (self.wall_s() - self._begun_s) / 86400

    def explain(self, question: Question) -> str:
        """What is known of it, for whoever looks for the fault."""
        seat, since = question.seat, question.said_s - self._begun_mono_s
        met = [
            (
                f"{one.kind} "
                f"{one.begun_s - self._begun_mono_s:.1f}-{one.ended_s - self._begun_mono_s:.1f}"
            )
            for one in self.faults
            if one.meets(question)
        ]
        shown = [
            text
            for text in seat.shown()[question.seen :]
            if FINAL.search(text) or any(t in text for t in question.tokens)
        ]
        where = f"{seat.platform} {seat.name} {'alone' if seat.direct else 'in a room'}"
        return (
            f"{question.outcome}: {question.tokens} at {since:.1f} s, {where}; "
            f"{'; '.join(met)}; shown {shown[:4]}"
        )

    def wall_s(self) -> float:
        """The time of the storm's world, seconds since the epoch."""
        return self._begun_s + (REAL_TIME() - self._begun_s) * self.speed + self.ahead_s

    def program(self, directory: Path) -> str:
        """What a process runs that has its notes in that directory."""
        return (
            FAST.format(
                begun=self._begun_s, speed=self.speed, ahead=self.ahead_s, directory=str(directory)
            )
            + self.sabotage
            + MAIN
        )

    async def start(self) -> None:
        self.write()
        log = self.directory / "stderr.txt"
        self._log_at = log.stat().st_size if log.exists() else 0
        self.code = self.program(self.directory)
        self.process = await self.launch("run", "--config", str(self.directory))

    # What is said and heard

    async def person(self, seat: Seat, roll: random.Random) -> None:
        """Ask, wait for what comes of it, ask again."""
        while True:
            await asyncio.sleep(roll.uniform(0.05, self.pause_s))
            if not self.talking or (isinstance(seat, OnIrc) and self.ears(seat) is None):
                continue
            question = await self.ask(seat)
            if self.edits and not isinstance(seat, OnIrc):
                await asyncio.sleep(roll.uniform(0, 0.3))
                self.edit(question)
            patience_s = time.monotonic() + roll.uniform(2, 10)
            while question in self.waiting and time.monotonic() < patience_s:
                await asyncio.sleep(0.1)
            if question.ended_s == float("inf"):
                await asyncio.sleep(1)

    async def ask(self, seat: Seat) -> Question:
        """A person says a line with a new token to the bot."""
        token = self.token()
        question = Question(seat, [token], time.monotonic(), len(seat.shown()), self.ears(seat))
        question.message = seat.say(f"what about {token}?", to_bot=True)
        if isinstance(seat, OnIrc):
            await so(lambda: any(token in line for line in self.ircd.lines[-50:]))
            if question.ears is not self.ears(seat):
                question.ears = None  # it came or went just then
        self.questions.append(question)
        self.waiting.append(question)
        if not any(session.valid for session in self.discord.sessions):
            self.forget_first_contacts()
        return question

    def edit(self, question: Question) -> None:
        """They want to know something else."""
        question.tokens.append(token := self.token())
        text = f"what about {token}?"
        if isinstance(question.seat, OnTelegram):
            self.telegram.edits(
                question.seat.chat or question.seat.person, int(question.message), text
            )
        elif isinstance(question.seat, OnDiscord):
            head = "" if question.seat.direct else f"<@{self.discord.bot}> "
            self.discord.edits(question.seat.channel, question.message, head + text)

    def ears(self, seat: Seat) -> Client | None:
        """Who of the bot's connections IRC relays to what is said there."""
        if not isinstance(seat, OnIrc) or (self.split and seat.room):
            return None
        there = self.ircd.rooms.get(seat.room, []) if seat.room else self.ircd.here()
        return next(
            (one for one in there if one.user == NICK and one.nick == NICK and not one.closed), None
        )

    def is_over(self, question: Question) -> bool:
        """Whether that question needs no more patience."""
        if question.ended_s < float("inf") or self._is_unheard(question):
            return True
        shown = "\n".join(question.seat.shown()[question.seen :])
        if any(token in TOKEN.findall(shown) for token in question.tokens) or FINAL.search(shown):
            question.ended_s = time.monotonic()
        return question.ended_s < float("inf")

    def _is_unheard(self, question: Question) -> bool:
        """Whether nobody keeps it: the program has never read it from IRC, or could not write it,
        or lost it."""
        (token, *_), ears = question.tokens, question.ears
        if (
            token in self.unkept
            or not isinstance(question.seat, OnIrc)
            or token in self.read.tokens()
        ):
            return token in self.unkept
        return ears is None or time.monotonic() > self.closed.get(ears, float("inf")) + CLOSED_S

    async def watch(self) -> None:
        """Note when connections of the bot end, and when people wait no more."""
        beats = itertools.count()
        while True:
            if next(beats) % 10 == 0:
                self.waiting = [one for one in self.waiting if not self.is_over(one)]
            for client in self.ircd.clients:
                if client.closed and client.user == NICK:
                    self.closed.setdefault(client, time.monotonic())
            await asyncio.sleep(0.01)

    # The model

    def _answer(self, body: Json) -> Answer:
        """Each token of what is new in exactly one line."""
        for fault in self.model_faults:
            if (answer := fault()) is not None:
                return answer
        new = _new(body)
        if self.uses_tools and body.get("tools") and not any(one["role"] == "tool" for one in new):
            return Answer(calls=((f"c{len(self.model.seen)}", *TOOL),))
        tokens = _tokens(new)
        self.asked_about.update(tokens)
        self.asked.append(Asked(datetime.fromtimestamp(self.wall_s(), UTC), frozenset(tokens)))
        count = self.random.choice((1, 1, 2, 3))
        cuts = [len(tokens) * i // count for i in range(count + 1)]
        lines = (f"{' '.join(tokens[i:j])} so much for that" for i, j in itertools.pairwise(cuts))
        return Answer(
            text="\n".join(lines),
            delay_s=self.random.choice((0.0, 0.02, self.random.uniform(0, self.slow_s))),
        )

    # What goes wrong

    async def inject(self, kind: str) -> None:
        """One fault, from its beginning to its end."""
        platforms, make = KINDS[kind]
        fault = Fault(kind, platforms, time.monotonic())
        self.faults.append(fault)
        await make(self)
        fault.ended_s = time.monotonic()

    async def kill(self) -> None:
        """SIGKILL. What IRC said and was not kept was in its memory alone."""
        await super().kill()
        self.unkept |= self.read.tokens() - self.kept.tokens()
        if self.deleted_s is not None:
            self.forget_since(self.deleted_s, (IRC,))

    def forget_first_contacts(self) -> None:
        """Discord tells of a direct chat in the session of that time alone: whoever has none never
        learns of it."""
        known = [one.seat for one in self.questions if self.kept.tokens().intersection(one.tokens)]
        for one in self.waiting:
            if isinstance(one.seat, OnDiscord) and one.seat.direct and one.seat not in known:
                self.unkept.update(one.tokens)

    def forget_since(self, since_s: float, platforms: Sequence[str]) -> None:
        """What was said there since then need not be known to anybody."""
        late = (
            one
            for one in self.questions
            if one.said_s > since_s - UNSAVED_S and one.seat.platform in platforms
        )
        self.unkept.update(token for one in late for token in one.tokens)

    async def killed(self) -> None:
        """SIGKILL, and a new process."""
        async with self.changing:
            await self.kill()
            await self.launched()

    async def launched(self) -> None:
        """Start the program, and let it come so far that it can be ended well."""
        await self.start()
        assert await so(lambda: "serving" in self.log_now, PATIENCE_S), self.log_now[-3000:]

    @property
    def log_now(self) -> str:
        """What the newest process has written."""
        with (self.directory / "stderr.txt").open("rb") as log:
            log.seek(self._log_at)
            return log.read().decode()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def on_disk(self, script: str) -> None:
        made = await asyncio.create_subprocess_exec(
            *self.prefix, "sh", "-ec", f'cd "$0"; {script}', self.disk.directory
        )
        assert await made.wait() == 0

    async def lasts(self, least_s: float = 1.0, most_s: float = 2.5) -> None:
        await asyncio.sleep(self.random.uniform(least_s, most_s))

    def bot(self) -> Client | None:
        """Its connection to IRC, if it is in the room."""
        return next(
            (one for one in self.ircd.rooms.get(ROOM, []) if one.user == NICK and not one.lost),
            None,
        )

    async def round(self, *kinds: str) -> None:
        """These faults beside each other, each from a moment on."""

        async def begin(kind: str) -> None:
            await asyncio.sleep(self.random.uniform(0, 1))
            await self.inject(kind)

        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(begin(kind))

    async def night(self) -> None:
        """Everybody has been answered and sleeps, and the program is not there for some hours."""
        await self.settle()
        async with self.changing:
            await self.end()
            self.ahead_s += self.random.uniform(4, 14) * 3600
            await self.launched()
        await self.is_up()
        self.talking = True

    # Verdict

    async def settle(self, limit_s: float = 120.0) -> None:
        """People say nothing more; return once nobody waits, or after so long."""
        self.talking = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.waiting:
                    await asyncio.sleep(0.2)

    def verdict(self) -> Table:
        table = Table(
            Counter(fault.kind for fault in self.faults) + Counter({"all": len(self.faults)})
        )
        for seat in self.seats:
            shown, mine = seat.shown(), [one for one in self.questions if one.seat is seat]
            places = token_places(shown)
            for number, question in enumerate(mine):
                outcome = judge(question, shown, places, mine[number + 1 :])
                if outcome == "silent" and self._is_unheard(question):
                    outcome = "unheard"
                elif outcome == "silent" and not self.asked_about.intersection(question.tokens):
                    outcome = "lost"
                question.outcome = outcome
                for kind in {fault.kind for fault in self.faults if fault.meets(question)} or {
                    "(none)"
                }:
                    table.rows[kind, seat.platform][outcome] += 1
                table.rows["all", seat.platform][outcome] += 1
        return table

    def out_of_order(self) -> list[str]:
        """Questions whose answer was shown before that to an earlier one of the same person."""
        found = list[str]()
        for seat in self.seats:
            mine = [one for one in self.questions if one.seat is seat]
            found += [
                f"{seat.platform} {seat.name}: {token}"
                for token in find_out_of_order(mine, seat.shown())
            ]
        return found


def find_out_of_order(questions: Sequence[Question], shown: Sequence[str]) -> list[str]:
    """Return the tokens of one person that were answered before an earlier one of theirs. Pure."""
    places, found, last = token_places(shown), list[str](), -1
    for question in questions:
        at = [places[token][0] for token in question.tokens if places.get(token)]
        if not at:
            continue
        if at[-1] < last:
            found.append(question.tokens[-1])
        last = max(last, at[-1])
    return found


def token_places(shown: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """In which of the messages each token stands."""
    places = defaultdict[str, list[int]](list)
    for place, text in enumerate(shown):
        for token in TOKEN.findall(text):
            places[token].append(place)
    return places


def judge(
    question: Question,
    shown: Sequence[str],
    places: Mapping[str, Sequence[int]],
    later: Sequence[Question],
) -> str:
    """What came of a question, as far as its person was shown. Pure.

    `later`: what the same person asked after it. A sentence about a failure counts only before
    those are answered.
    """
    if any(len(places.get(token, ())) > 1 for token in question.tokens):
        return "doubled"
    if any(places.get(token) for token in question.tokens):
        return "answered"
    after = shown[question.seen :]
    if any(DOUBT in text for text in after):
        return "uncertain told"
    next_answer = min(
        (places[token][0] for one in later for token in one.tokens if places.get(token)),
        default=len(shown),
    )
    return (
        "told"
        if any(FINAL.search(text) for text in shown[question.seen : next_answer])
        else "silent"
    )


REAL_TIME = time.time
Make = Callable[[Storm], Awaitable[None]]
MAIN = "import sys; from gateway.cli.main import main; sys.exit(main())"
FINAL = re.compile("|".join(re.escape(text) for text in (*FAILURE_TEXTS.values(), DOUBT)))
"""Sentences after which a person expects no more."""


def _new(body: Json) -> list[Json]:
    """The messages behind the model's last answer."""
    found = list[Json]()
    for message in reversed(body["messages"]):
        text = str(message.get("content") or "")
        if (
            message["role"] == "assistant"
            and not message.get("tool_calls")
            and not text.startswith("(used the tool")
        ):
            break
        found.insert(0, message)
    return found


def _tokens(messages: Sequence[Json]) -> list[str]:
    """Those that people said there, each once, as they read now."""
    text = "\n".join(str(one.get("content") or "") for one in messages if one["role"] == "user")
    return list(dict.fromkeys(TOKEN.findall(QUOTED.sub("", text))))


async def _terminate(it: Storm) -> None:
    async with it.changing:
        await it.end()
        await it.launched()


async def _fill_disk(it: Storm) -> None:
    async with it.changing:
        await it.disk.fill(it.pid)
        await it.lasts()
        killed = it.random.random() < 0.5
        if killed:
            await it.kill()
            await it.start()
            await it.lasts()
        await it.disk.free(it.pid)
        assert await so(lambda: "serving" in it.log_now, PATIENCE_S), it.log_now[-3000:]
        await asyncio.sleep(1.0)  # until it has noticed


LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def _locked(it: Storm) -> AsyncIterator[None]:
    """For longer than five seconds, also of real time."""
    other = await asyncio.create_subprocess_exec(
        *(*it.prefix, sys.executable, "-c", LOCKING, str(it.store)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert await other.stdout.readline() == b"locked\n"
        yield
        await asyncio.sleep(5.2)
    finally:
        other.stdin.close()
        await other.wait()


async def _lock_store(it: Storm) -> None:
    async with it.changing, _locked(it):
        pass


async def _lock_store_at_start(it: Storm) -> None:
    """The program is killed, and the next one finds the store locked."""
    async with it.changing:
        await it.kill()
        async with _locked(it):
            await it.start()
        assert await so(lambda: "serving" in it.log_now, PATIENCE_S), it.log_now[-3000:]


async def _delete_store(it: Storm, put: str = "") -> None:
    """It is noticed, and then the process is killed: the next one takes up what was saved."""
    async with it.changing:
        it.deleted_s = time.monotonic()
        await it.on_disk(f"rm reverie.db reverie.db-wal reverie.db-shm; {put or ':'}")
        assert await so(lambda: "all that it held is in" in it.log_now, PATIENCE_S), it.log_now[
            -3000:
        ]
        await it.lasts(0.5, 1.5)
        if put:
            await it.on_disk("rm reverie.db")
        await it.kill()
        it.deleted_s = None
        await it.launched()


def _telegram(
    does: str,
    methods: Sequence[str],
    *what: Any,
    executed: bool = True,
    share: float = 0.3,
    **more: Any,
) -> Make:
    """Something happens to a share of these calls; half of them are carried out, if any may be."""

    async def happens(it: Storm) -> None:
        faults = it.telegram.faults
        rules = [
            getattr(faults, does)(
                method,
                *what,
                times=None,
                where=lambda _: it.random.random() < share,
                **more,
                **({"after": True} if after else {}),
            )
            for method in methods
            for after in ((False, True) if executed else (False,))
        ]
        await it.lasts()
        for rule in rules:
            faults.rules.remove(rule)
        faults.release()

    return happens


def _discord(*does: Action, times: int = 6) -> Make:
    """Some of the next messages meet one of these."""

    async def happens(it: Storm) -> None:
        for _ in range(times):
            it.discord.faults.add(r"POST /channels/\d+/messages", it.random.choice(does))
        await it.lasts()
        it.discord.faults.rest.clear()

    return happens


async def _forget_session(it: Storm) -> None:
    it.discord.forget()
    it.forget_first_contacts()
    it.discord.cut(4000)
    await it.lasts(1, 2)


async def _ask_reconnect(it: Storm) -> None:
    it.discord.ask_reconnect()
    await it.lasts(1, 2)


async def _cut_discord(it: Storm) -> None:
    it.discord.cut(it.random.choice((0, 4000, 4009)))
    await it.lasts(1, 2)


async def _zombie(it: Storm) -> None:
    """Nothing is acknowledged any more on the connection that is there."""
    it.discord.faults.hold_acks = True
    lost = [session.connection for session in it.discord.live]
    await so(lambda: all(one is None or one.close_code is not None for one in lost), 12)
    it.discord.faults.hold_acks = False


async def _irc_kill(it: Storm) -> None:
    """An operator throws it off; it stays away for a minute."""
    if bot := it.bot():
        bot.send(f":oper!o@host KILL {NICK} :host!oper (spam)")
        bot.drop_after_flush()
    await it.lasts(4, 5)


async def _irc_flood(it: Storm) -> None:
    """Thrown off in the middle of what it says, with what was not read yet."""
    if bot := it.bot():
        it.ircd.faults.flooder = NICK
        it.ircd.faults.flood_at = sum("PRIVMSG" in line for line in bot.lines) + it.random.randint(
            2, 4
        )
        await so(lambda: bot.closed)
        it.ircd.faults.flood_at = None
    await it.lasts(1, 2)


async def _irc_reset(it: Storm) -> None:
    if bot := it.bot():
        bot.drop()
    await it.lasts(1, 2)


async def _irc_half_open(it: Storm) -> None:
    if bot := it.bot():
        bot.lose()
        await so(
            lambda: any(
                one.user == NICK for one in it.ircd.clients[it.ircd.clients.index(bot) + 1 :]
            ),
            12,
        )
        bot.drop()
    await it.lasts(1, 2)


async def _netsplit(it: Storm) -> None:
    """Whoever is in the room is gone, then back."""
    people = [seat.name for seat in it.seats if isinstance(seat, OnIrc) and seat.room]
    people += [f"other{number}" for number in range(50)]
    it.split = True
    for name in people:
        if bot := it.bot():
            bot.send(f":{name}!{name}@test.host QUIT :hub.test leaf.test")
    await it.lasts(1, 2)
    for name in people:
        if bot := it.bot():
            bot.send(f":{name}!{name}@test.host JOIN {ROOM}")
    it.split = False
    await it.lasts(0.5, 1)


def _model(answer: Answer, share: float = 0.7) -> Make:
    async def happens(it: Storm) -> None:
        def fault() -> Answer | None:
            return answer if it.random.random() < share else None

        it.model_faults.append(fault)
        await it.lasts()
        it.model_faults.remove(fault)

    return happens


async def _slow_model(it: Storm) -> None:
    it.slow_s = 1.5
    await it.lasts()
    it.slow_s = 0.5


async def _use_tools(it: Storm) -> None:
    it.uses_tools = True
    await it.lasts()
    it.uses_tools = False


async def _edit(it: Storm) -> None:
    """People ask, and then ask for something else in the same message."""
    it.edits = True
    await it.lasts()
    it.edits = False


async def _refuse_places(it: Storm) -> None:
    """The bot may not post in any room for a while; the platforms say that it may again, or they do
    not."""
    lounge, world = (
        next(one.chat for one in it.seats if isinstance(one, OnTelegram) and one.chat),
        it.discord.world,
    )
    owner = next(one.person for one in it.seats if isinstance(one, OnTelegram))
    is_kicked = it.random.random() < 0.5
    lounge.muted, lounge.closed = not is_kicked, is_kicked
    world.muted |= {world.room, world.other}
    it.ircd.options.voiceless = {NICK}
    await it.lasts()
    lounge.muted = lounge.closed = False
    world.muted.clear()
    it.ircd.options.voiceless = set()
    if it.random.random() < 0.5:
        it.telegram.mutes(lounge, owner, again=False)
        it.discord.dispatch("CHANNEL_UPDATE", world.channels[world.room])
        if bot := it.bot():
            bot.send(f":oper!o@host MODE {ROOM} +v {bot.nick}")


QUOTED = re.compile(r'\((your message|[^"\n]* changed the message) "[^"]*"')
"""What the model is told of older words."""
TOOL = ("recall", '{"query": "tea"}')
SENDS = ("sendMessage", "editMessageText")
POLLS = ("getUpdates",)
ALL, ON_TELEGRAM, ON_DISCORD, ON_IRC = PLATFORMS, (TELEGRAM,), (DISCORD,), (IRC,)
SENTENCE = "never whole, because this is where it ends"
KINDS: Mapping[str, tuple[Sequence[str], Make]] = {
    "kill -9": (ALL, Storm.killed),
    "SIGTERM": (ALL, _terminate),
    "disk full": (ALL, _fill_disk),
    "store locked": (ALL, _lock_store),
    "store deleted": (ALL, _delete_store),
    "store replaced": (ALL, functools.partial(_delete_store, put="echo other > reverie.db")),
    "store locked at the start": (ALL, _lock_store_at_start),
    "Telegram 500 on sends": (ON_TELEGRAM, _telegram("fail", SENDS, 500)),
    "Telegram 502 on sends": (
        ON_TELEGRAM,
        _telegram("say", SENDS, BAD_GATEWAY, status=502, kind="text/html"),
    ),
    "Telegram 504 on sends": (ON_TELEGRAM, _telegram("fail", SENDS, 504, "Gateway Timeout")),
    "Telegram cuts sends": (ON_TELEGRAM, _telegram("drop", SENDS)),
    "Telegram silent on sends": (ON_TELEGRAM, _telegram("stall", SENDS, share=0.1)),
    "Telegram 429 on sends": (
        ON_TELEGRAM,
        _telegram("fail", SENDS, 429, retry_after=10, executed=False),
    ),
    "Telegram 401 on sends": (ON_TELEGRAM, _telegram("fail", SENDS, 401, executed=False)),
    "Telegram 5xx on polls": (ON_TELEGRAM, _telegram("fail", POLLS, 502, share=0.8)),
    "Telegram cuts polls": (ON_TELEGRAM, _telegram("drop", POLLS, share=0.8)),
    "Telegram 429 on polls": (
        ON_TELEGRAM,
        _telegram("fail", POLLS, 429, retry_after=5, executed=False),
    ),
    "Telegram 401 on polls": (
        ON_TELEGRAM,
        _telegram("fail", POLLS, 401, executed=False, share=1.0),
    ),
    "Telegram 404 on polls": (
        ON_TELEGRAM,
        _telegram("fail", POLLS, 404, executed=False, share=1.0),
    ),
    "Discord invalid session": (ON_DISCORD, _forget_session),
    "Discord asks to reconnect": (ON_DISCORD, _ask_reconnect),
    "Discord cut": (ON_DISCORD, _cut_discord),
    "Discord zombie": (ON_DISCORD, _zombie),
    "Discord 5xx on sends": (
        ON_DISCORD,
        _discord("500 before", "500 after", "502 before", "502 after"),
    ),
    "Discord cuts sends": (ON_DISCORD, _discord("reset before", "reset after")),
    "Discord 429 on sends": (ON_DISCORD, _discord("429")),
    "Discord silent on sends": (ON_DISCORD, _discord("silent", times=2)),
    "IRC KILL": (ON_IRC, _irc_kill),
    "IRC Excess Flood": (ON_IRC, _irc_flood),
    "IRC reset": (ON_IRC, _irc_reset),
    "IRC half-open": (ON_IRC, _irc_half_open),
    "IRC netsplit": (ON_IRC, _netsplit),
    "model hangs": (ALL, _model(Answer(text=SENTENCE, silent_after=0))),
    "model hangs in the middle": (ALL, _model(Answer(text=SENTENCE, silent_after=3))),
    "model overloaded": (ALL, _model(failure(529, "overloaded_error"), share=1.0)),
    "model 500": (ALL, _model(Answer(status=500))),
    "model 429": (ALL, _model(failure(429, "rate_limit_error", retry_after_s=5))),
    "model cut": (ALL, _model(Answer(text=SENTENCE, cut_after=3))),
    "model malformed": (ALL, _model(Answer(text=SENTENCE, garbled_after=3))),
    "model slow": (ALL, _slow_model),
    "refused places": (ALL, _refuse_places),
    "edits": ((TELEGRAM, DISCORD), _edit),
    "tool turns": (ALL, _use_tools),
}
"""Fault -> where it can be felt, and how it is made."""
CHANGES = tuple(KINDS)[:8]
"""Those of the process and its store, of which one happens at a time."""


@contextlib.asynccontextmanager
async def storm(directory: Path, seed: int) -> AsyncIterator[Storm]:
    """Servers, people and the program; nothing that was started outlives this."""
    async with (
        small_disk(directory / "disk", DISK_SIZE) as disk,
        town(Storm, disk, directory, seed) as it,
    ):
        yield it


SomeStorm = TypeVar("SomeStorm", bound=Storm)


@contextlib.asynccontextmanager
async def town(
    make: Callable[[SmallDisk, Path, BotApi, DiscordApi, Ircd, ModelApi, int], SomeStorm],
    disk: SmallDisk,
    directory: Path,
    seed: int,
) -> AsyncIterator[SomeStorm]:
    """The same on any disk, with whatever of the program `make` puts between servers and people."""
    async with contextlib.AsyncExitStack() as opened:
        telegram, discord = (
            await opened.enter_async_context(BotApi()),
            await opened.enter_async_context(DiscordApi(Options(heartbeat_s=1.0))),
        )
        ircd, model = (
            await opened.enter_async_context(Ircd()),
            await opened.enter_async_context(ModelApi()),
        )
        it = make(disk, directory, telegram, discord, ircd, model, seed)
        opened.push_async_callback(it.close)
        opened.enter_context(mock.patch("time.time", it.wall_s))
        await it.begin()
        people = [
            asyncio.create_task(it.person(seat, random.Random(it.random.random())))
            for seat in it.seats
        ]
        people.append(asyncio.create_task(it.watch()))
        try:
            yield it
            assert not any(person.done() for person in people)
        finally:
            for person in people:
                person.cancel()
            await asyncio.gather(*people, return_exceptions=True)
            for seat in it.seats:
                if isinstance(seat, OnIrc):
                    await seat.client.end()
