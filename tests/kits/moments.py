"""Room moments: short scenes on three platforms, played through a whole gateway, and what is right in each.

`tests/bench/moments.yaml` holds the scenes. A model never sees what is expected: it gets the request that the gateway
builds, and what people were shown is judged afterwards.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from agent.models.base import Model
from gateway.core.events import DeliveryReport
from gateway.core.facts import Fact, Judgement, PartSendEnded, PostQueued, TurnRecord
from tests.attacks.world import CHANNELS, OnDiscord, OnTelegram, Person, Place, Platform, World, world
from tests.kits.waiting import until

MOMENTS: Final = Path(__file__).parents[1] / "bench/moments.yaml"
KINDS: Final = ("answers", "stays silent", "uses the right tool")
WINDOW_S: Final = 2.0
"""Of coalescing, in real time: what is said in one breath is read together."""
EMBEDDED: Final = {"providers": {"p": {"kind": "local"}}, "models": {"main": {"provider": "p"}}}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Saying(_Part):
    """Somebody says something."""

    by: str
    says: str
    """`PAGE` stands for the address of the moment's page."""
    to: Literal["you", "room"] = "room"
    """you: in a room, with the mention that the platform has for that."""
    reply: str = ""
    """`you`: to the agent's newest post. Else the number of a saying so far, from 1."""
    edits: int = 0
    """Number of the saying that now reads so. 0: it is a new one."""
    file: tuple[str, str] | None = None
    """Name and text of a document that comes with it."""


class Expected(_Part):
    """What is right. `tool` empty and not silent: an answer."""

    silent: bool = False
    tool: tuple[str, ...] = ()
    """One of these is called."""
    given: str = ""
    """Expression that matches in the JSON of that call's arguments."""
    says: tuple[str, ...] = ()
    """Expressions that each match in what people are shown."""
    never: tuple[str, ...] = ()
    """Expressions of which none matches there, nor the name of a called tool."""

    @property
    def kind(self) -> str:
        return KINDS[1] if self.silent else KINDS[2] if self.tool else KINDS[0]


class Moment(_Part):
    """One scene."""

    name: str
    platform: Platform
    room: str = ""
    """Its title. Empty: any."""
    direct: bool = False
    """It is the direct chat with the first of `people`."""
    people: dict[str, str]
    """Role of each: owner, admin, member, guest, or bot (a guest whom the platform calls a bot). `ann~2`: another
    ann."""
    topic: str = ""
    also: str = ""
    """Title of another room, in which the agent is."""
    binding: dict[str, Any] = {}
    """What the operator set for the room."""
    page: str = ""
    """Text of a page on the web."""
    said: tuple[tuple[Saying, ...], ...]
    """What is said in one breath, breath after breath: the agent has answered what it answers before the next begins.
    Judged is what it does about the last."""
    expect: Expected


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the agent did about the last breath."""

    shown: str
    """All that it posted there."""
    calls: tuple[tuple[str, str], ...]
    """Tools, with their arguments as JSON."""
    asked: bool
    """False: attention let no turn begin, so the model was not asked."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One moment, judged."""

    moment: Moment
    outcome: Outcome
    wrong: str
    """Empty: it was right."""


def load_moments() -> tuple[Moment, ...]:
    """Read the scenes."""
    return tuple(Moment.model_validate(one) for one in yaml.safe_load(MOMENTS.read_text(encoding="utf-8")))


def judge(expected: Expected, outcome: Outcome) -> str:
    """Return what is wrong. Empty: nothing."""
    called = [name for name, _ in outcome.calls]
    if expected.silent:
        return (
            "it posted" if outcome.shown else "it used a tool" if set(called) - {"stay_silent", "yield_to_user"} else ""
        )
    done = [given for name, given in outcome.calls if name in expected.tool]
    if expected.tool and not done:
        return f"it did not call {' or '.join(expected.tool)}"
    if expected.given and not any(re.search(expected.given, given) for given in done):
        return f"it did not give {expected.given}"
    if not expected.tool and not outcome.shown:
        return "it posted nothing"
    missing = [one for one in expected.says if not re.search(one, outcome.shown, re.IGNORECASE)]
    forbidden = [one for one in expected.never if re.search(one, "\n".join([outcome.shown, *called]), re.IGNORECASE)]
    return f"it did not say {missing[0]}" if missing else f"it had {forbidden[0]}" if forbidden else ""


class _Scene:
    """A moment in a world."""

    def __init__(self, it: World, moment: Moment, number: int) -> None:
        self.it, self.moment = it, moment
        self.people = {name: self._person(name, role) for name, role in moment.people.items()}
        first = next(iter(self.people.values()))
        title = moment.room or f"moment-{number}"
        self.place: Place = it.alone(first) if moment.direct else it.place(moment.platform, public=True, title=title)
        self.page = it.page(f"/moment{number}", moment.page) if moment.page else ""
        if moment.also:
            it.place(moment.platform, public=True, title=moment.also)
        if moment.topic and moment.platform == "discord":
            it.discord.world.channels[self.place.room]["topic"] = moment.topic
        elif moment.topic:
            it.ircd.topics[self.place.room] = moment.topic
        self._ids: list[str] = []

    def _person(self, name: str, role: str) -> Person:
        shown, bot = name.partition("~")[0], role == "bot"
        if not bot or self.moment.platform == "irc":
            return self.it.person(self.moment.platform, shown, "guest" if bot else role)
        if self.moment.platform == "telegram":
            made = self.it.telegram.person(shown, is_bot=True)
            return Person("telegram", shown, str(made.id), made)
        return Person("discord", shown, self.it.discord.world.add_user(shown, bot=True))

    @property
    def binding(self) -> dict[str, Any]:
        match = {"channel": CHANNELS[self.moment.platform], "room": self.place.room}
        return {"match": match, "private": False, **self.moment.binding}

    async def play(self) -> Outcome:
        """Play it; return what came of its last breath."""
        outcome = Outcome(shown="", calls=(), asked=False)
        for breath in self.moment.said:
            begun, shown = len(self._facts()), len(self.place.posts())
            for one in breath:
                await self._say(one)
            due = await self._heard(breath, begun)
            if due:
                await until(lambda begun=begun: self._ended(begun), every_s=0.01)  # type: ignore[misc]
                await until(self._delivered, every_s=0.01)
            calls = [
                (one.name, one.arguments) for turn in self._turns(begun) for step in turn.steps for one in step.calls
            ]
            outcome = Outcome(shown="\n".join(self.place.posts()[shown:]), calls=tuple(calls), asked=due)
        return outcome

    async def _say(self, one: Saying) -> None:
        who, text = self.people[one.by], one.says.replace("PAGE", self.page)
        reply = self._newest_post() if one.reply == "you" else self._ids[int(one.reply) - 1] if one.reply else ""
        to_bot, place = one.to == "you", self.place
        if one.edits and isinstance(place, OnTelegram):
            chat = place.chat
            assert chat is not None
            at = f"@{self.it.telegram.world.bot.username} " if to_bot else ""
            self.it.telegram.edits(chat, int(self._ids[one.edits - 1]), at + text)
        elif one.edits:
            head = f"<@{self.it.discord.bot}> " if to_bot else ""
            self.it.discord.edits(place.room, self._ids[one.edits - 1], head + text)
        elif one.file is not None and isinstance(place, OnTelegram):
            assert place.chat is not None
            assert who.telegram is not None
            at = f"@{self.it.telegram.world.bot.username} " if to_bot and not place.direct else ""
            entities = [{"type": "mention", "offset": 0, "length": len(at) - 1}] if at else []
            more = {
                "caption": at + text,
                "caption_entities": entities,
                "media": {"file_name": one.file[0], "mime_type": "text/plain"},
            }
            self._ids.append(
                str(self.it.telegram.sends(place.chat, who.telegram, "document", one.file[1].encode(), **more))
            )
        elif one.file is not None:
            assert isinstance(place, OnDiscord)
            files = [(one.file[0], one.file[1].encode(), "text/plain")]
            self._ids.append(await place.says(who, text, to_bot=to_bot, files=files))
        else:
            self._ids.append(await place.says(who, text, to_bot=to_bot, reply_to=reply))

    def _newest_post(self) -> str:
        """The id of what the agent has posted there last."""
        sent = [one.ids[-1] for one in self._facts() if isinstance(one, PartSendEnded) and one.ids]
        return str(sent[-1])

    def _facts(self) -> Sequence[Fact]:
        return self.it.facts[self.place.conversation]

    async def _heard(self, breath: Sequence[Saying], begun: int) -> bool:
        """Return once all of it is in the log: whether a turn is to be taken."""

        def judged() -> list[Judgement]:
            new = self._facts()[begun:]
            return [one for before, one in pairwise(new) if isinstance(one, Judgement) and before.kind in _SAID]

        await until(lambda: len(judged()) >= len(breath), every_s=0.005)
        return any(one.fate == "due" for one in judged())

    def _turns(self, begun: int) -> list[TurnRecord]:
        return [one for one in self._facts()[begun:] if isinstance(one, TurnRecord) and one.outcome != "interrupted"]

    def _ended(self, begun: int) -> bool:
        return bool(self._turns(begun))

    def _delivered(self) -> bool:
        new = self._facts()
        queued, ended = (sum(isinstance(one, kind) for one in new) for kind in (PostQueued, DeliveryReport))
        return queued <= ended


_SAID: Final = ("direct", "mention", "reply", "room", "edited")


def configured(it: World, scenes: Sequence[_Scene], *, embedded: bool) -> dict[str, Any]:
    """Sections of the configuration: a binding for each scene, the default persona, the usual tools."""
    usual = it._written()
    groups = [one.place.room for one in scenes if one.moment.platform == "telegram" and not one.place.direct]
    also = [str(chat.id) for chat in it.telegram.world.chats.values() if not chat.private]
    channels = usual["channels"] | {
        CHANNELS["telegram"]: usual["channels"][CHANNELS["telegram"]] | {"rooms": sorted({*groups, *also})}
    }
    agent = {"id": "reverie", "bindings": [*(one.binding for one in scenes), {"match": {"channel": "*"}}]}
    return {
        "channels": channels,
        "agents": [agent],
        "attention": {"coalesce": WINDOW_S},
        "access": usual["access"] | {"dm": "open"},
        "tools": {key: value for key, value in usual["tools"].items() if key != "mcp"},
    } | ({"llm": usual["llm"] | EMBEDDED} if embedded else {})


async def play(
    moments: Sequence[Moment], model: Model | None, folder: Path, patch: pytest.MonkeyPatch, *, at_once: int
) -> list[Verdict]:
    """Play moments, so many at once. `model` None: the embedded one."""
    async with world(folder, patch) as it:
        it.model = model
        scenes = [_Scene(it, moment, number) for number, moment in enumerate(moments, start=1)]
        it.config = configured(it, scenes, embedded=model is None)
        await it.begin()
        gate = asyncio.Semaphore(at_once)

        async def one(scene: _Scene) -> Verdict:
            async with gate:
                outcome = await scene.play()
            return Verdict(moment=scene.moment, outcome=outcome, wrong=judge(scene.moment.expect, outcome))

        return await asyncio.gather(*map(one, scenes))
