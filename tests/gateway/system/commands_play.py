"""A play: what people do on one platform, line by line, and what they are shown for it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from reverie.testing.servers.model_api import Answer
from tests.kits.platform_users import IRC, PLATFORMS, WAIT_S, Seat
from tests.kits.three_platforms import Town, Where

Stage = Where | Literal["elsewhere"]
"""`elsewhere`: alone with the bot on the next platform."""
SLOW_S: Final = 60.0
"""The model, where it is to be stopped."""


@dataclass(frozen=True, kw_only=True)
class Line:
    says: str
    """A pattern: what they are shown then. Groups with a name are known from then on."""
    by: str = "olga"
    where: Stage = "room"
    on: Mapping[str, str] = field(default_factory=dict)
    """`says` on a platform where that is another one."""


@dataclass(frozen=True, kw_only=True)
class Use(Line):
    """They use a command. In `given` and `says`, `@name@` stands for what is known."""

    command: str
    """By the names of the table: `dmn pause`."""
    given: Mapping[str, str] = field(default_factory=dict)
    told: bool = False
    """Its answer is one that the agent gives, or knows of."""


@dataclass(frozen=True, kw_only=True)
class Say(Line):
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """What the model wants then: tools and their arguments."""


@dataclass(frozen=True, kw_only=True)
class Slow(Line):
    """They say something, and the model takes its time."""

    text: str


@dataclass(frozen=True, kw_only=True)
class AskIn(Line):
    """They want the bot in this room: it is invited, or spoken to there."""


class Play:
    def __init__(self, town: Town, platform: str) -> None:
        self.town, self.platform = town, platform
        others = [*PLATFORMS[PLATFORMS.index(platform) + 1 :], *PLATFORMS]
        self._elsewhere = others[0]
        self.known: dict[str, str] = {
            "channel": platform,
            "nora": town.id(platform, "nora"),
            "den": town.room(platform, "den"),
            "other": town.id(self._elsewhere, "olga"),
        }
        self.used: set[str] = set()
        """By the names of the table."""
        self.written: list[str] = []
        """Every command, as text."""
        self.answers: list[str] = []
        """The first line of each answer that the agent has no part in."""

    async def all(self, *lines: Line) -> None:
        """One after the other."""
        for line in lines:
            await self.act(line)

    async def act(self, line: Line) -> None:
        """Do it. Raises AssertionError if what is shown is something else."""
        seat = self._seat(line)
        watched = self._watched(line, seat)
        since = len(watched.shown())
        if isinstance(line, Slow):
            await self._slowly(line, seat)
            return
        if isinstance(line, Say) and line.calls:
            calls = ((f"c{number}", *call) for number, call in enumerate(line.calls))
            self.town.model.then(Answer(calls=tuple(calls)))
        match line:
            case Use(command=command, given=given):
                self.used.add(command)
                name, _, sub = command.partition(" ")
                self.written.append(
                    seat.give(name, sub, {key: self._filled(value) for key, value in given.items()})
                )
            case Say(text=text):
                seat.say(text, to_bot=True)
            case _:
                seat.asks_in()
        found = await self.town.heard(
            watched, since, self._filled(line.on.get(self.platform, line.says))
        )
        self.known |= {name: value for name, value in found.groupdict().items() if value}
        if isinstance(line, Use) and not line.told:
            self.answers.append(watched.shown()[since].split("\n")[0])

    async def restarted(self) -> None:
        """This channel is restarted by a command, and comes back."""
        before, joined = await self.town.ups(self.platform), self.town.joins()
        await self.act(
            Use(command="restart", given={"channel": "@channel@"}, says="I disconnect @channel@")
        )
        async with asyncio.timeout(WAIT_S):
            while await self.town.ups(self.platform) == before:
                await asyncio.sleep(0.01)
        if self.platform == IRC:
            await self.town.so(lambda: self.town.joins() > joined, "the room on IRC")

    async def _slowly(self, line: Slow, seat: Seat) -> None:
        asked = len(self.town.model.seen)
        self.town.model.then(Answer(text="too late", delay_s=SLOW_S))
        seat.say(line.text, to_bot=True)
        await self.town.so(lambda: len(self.town.model.seen) > asked, "the model")

    def _seat(self, line: Line) -> Seat:
        if line.where == "elsewhere":
            return self.town.seat(self._elsewhere, line.by, "alone")
        return self.town.seat(self.platform, line.by, line.where)

    def _watched(self, line: Line, seat: Seat) -> Seat:
        """Where they look for an answer."""
        if isinstance(line, Use):
            return self.town.answering(seat, line.command)
        return (
            self.town.seat(IRC, line.by, "alone")
            if isinstance(line, AskIn) and self.platform == IRC
            else seat
        )

    def _filled(self, text: str) -> str:
        for name, value in self.known.items():
            text = text.replace(f"@{name}@", value)
        return text
