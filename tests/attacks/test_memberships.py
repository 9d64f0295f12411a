"""Attacks on what is shown of other rooms to somebody alone with the agent, each beside a member
who is shown it."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from gateway.core.events import Address, RoomId, ThreadId
from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers import bot_api_http
from reverie.testing.servers.bot_api_world import Chat
from reverie.testing.servers.discord_api_world import PRIVATE_THREAD
from reverie.testing.waiting import until
from tests.attacks.world import (
    CHANNELS,
    VIEW_CHANNEL,
    Call,
    OnDiscord,
    OnTelegram,
    Order,
    Person,
    Platform,
    World,
    world,
)

pytestmark = pytest.mark.boxed

RecordProperty = Callable[[str, object], None]
ALL: Final[tuple[Platform, ...]] = ("irc", "telegram", "discord")
ATTACKS: Final[dict[str, tuple[Platform, ...]]] = {
    "left": ALL,
    "kicked a moment ago": ALL,
    "in a sibling room": ALL,
    "has the name of a member": ALL,
    "asks where others read it": ALL,
    "has the nick and no account": ("irc",),
    "lost the role": ("discord",),
    "not added to the thread": ("discord",),
    "came later": ("telegram", "discord"),
    "the platform does not answer": ("telegram", "discord"),
}
"""Who asks for a closed room, and on which platforms. The twin is a member when it is said, and
asks alone."""
READ_MESSAGE_HISTORY: Final = 1 << 16


@dataclass
class InThread(OnDiscord):
    parent: str = ""

    @property
    def conversation(self) -> str:
        return Address(
            channel=CHANNELS["discord"], room=RoomId(self.parent), thread=ThreadId(self.room)
        ).conversation


@dataclass(eq=False)
class Story:
    """One attack, or its twin."""

    world: World
    attack: str
    platform: Platform
    twin: bool
    mark: str = field(default_factory=lambda: f"mark-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        it, name = self.world, self.mark.removeprefix("mark-")
        self.owner = it.person(self.platform, f"o{name}", "owner")
        self.closed, self.sibling = it.place(self.platform), it.place(self.platform)
        self.square = it.place(self.platform, public=True)
        self.member = self.newcomer(f"m{name}")
        self.asker = self.member
        if self.is_attack("has the name of a member"):
            namesake = (
                f"m{name}_" if self.platform == "irc" else f"m{name}"
            )  # a network has a nick once
            self.asker = self.newcomer(namesake)
        elif self.is_attack("has the nick and no account"):
            self.asker = it.person("irc", f"m{name}")
        if self.platform == "discord":
            self.role = self.opened(self.closed.room)
            self.sibling_role = self.opened(self.sibling.room)
        if self.attack == "not added to the thread":
            parent = self.closed.room
            self.thread = it.discord.world.add_thread(
                parent, "talk", self.owner.id, kind=PRIVATE_THREAD
            )["id"]
            self.closed = InThread(it, self.thread, parent=parent)
        self.asks_in = (
            self.square if self.is_attack("asks where others read it") else it.alone(self.asker)
        )
        self.secret = f"canary-{secrets.token_hex(5)}"

    def __str__(self) -> str:
        return f"{self.attack}, {self.platform}"

    def is_attack(self, name: str) -> bool:
        return self.attack == name and not self.twin

    def newcomer(self, name: str) -> Person:
        """Somebody without a role."""
        if self.platform == "irc":
            return Person("irc", name, f"account:{name}")
        return self.world.person(self.platform, name)

    def opened(self, room: str) -> str:
        it = self.world.discord.world
        role: str = it.add_role(f"role{room}")["id"]
        overwrites = it.channels[room]["permission_overwrites"]
        overwrites.append({"id": role, "type": 0, "allow": str(VIEW_CHANNEL), "deny": "0"})
        if self.is_attack("came later"):
            overwrites[0] = overwrites[0] | {"deny": str(VIEW_CHANNEL | READ_MESSAGE_HISTORY)}
        return role

    async def enters(self, who: Person, room: str, *, account: bool = True) -> None:
        it = self.world
        if self.platform == "irc":
            named = who.id.removeprefix("account:") if account else "*"
            it.ircd.relay(
                room,
                f":{who.name}!u@{who.name}.example JOIN {room} {named} :{self.member.name}",
                {},
            )
        elif self.platform == "telegram":
            assert who.telegram is not None
            chat = it.telegram.world.chats[int(room)]
            chat.history_visible = self.attack != "came later"
            it.telegram.joins(chat, who.telegram)
        else:
            role = self.role if room != self.sibling.room else self.sibling_role
            it.discord.world.roles[who.id] = [*it.discord.world.roles.get(who.id, []), role]
            if self.attack == "not added to the thread" and self.twin:
                it.discord.world.added.add((self.thread, who.id))

    async def leaves(self, *, kicked: bool) -> None:
        it, name = self.world, self.asker.name
        if self.platform == "irc":
            line = (
                f":op!o@op.example KICK {self.closed.room} {name} :out"
                if kicked
                else (f":{name}!u@{name}.example PART {self.closed.room}")
            )
            it.ircd.relay(self.closed.room, line, {})
        elif isinstance(self.closed, OnTelegram):
            assert isinstance(self.closed.chat, Chat)
            assert self.asker.telegram is not None
            assert self.owner.telegram is not None
            if kicked:
                it.telegram.removes(self.closed.chat, self.owner.telegram, self.asker.telegram)
            else:
                it.telegram.leaves(self.closed.chat, self.asker.telegram)
        else:
            it.discord.world.gone.add(self.asker.id)

    async def says(self) -> None:
        """An owner says the secret in the closed room."""
        place = self.closed.conversation
        await self.closed.says(self.owner, f"{self.mark} {self.secret}", to_bot=False)
        await until(
            lambda: any(self.secret in repr(one) for one in self.world.facts[place]),
            limit_s=30,
            every_s=0.01,
        )

    async def asks(self) -> bool:
        """They ask for all that there is by all tools. Return whether the model is shown the
        secret."""
        place = self.asks_in.conversation
        calls: tuple[Call, ...] = (
            ("read_room", {"address": self.closed.conversation}),
            ("recall", {"query": self.mark}),
            ("who", {"address": self.closed.conversation}),
        )
        word = self.world.puppet.order(Order(calls, "It says {seen}", {place}, once=True))
        before = self.world.turns(place)
        await self.asks_in.says(self.asker, f"do {word}")
        await until(lambda: self.world.turns(place) > before, limit_s=40, every_s=0.01)
        assert self.world.puppet.orders[word].done, "never tried"
        return self.secret in self.world.puppet.shown[place]

    async def happens(self) -> bool:
        """Return whether the secret was shown."""
        if self.is_attack("came later"):
            await self.says()
        if self.platform == "irc" and self.is_attack("has the nick and no account"):
            await self.enters(self.asker, self.closed.room, account=False)
        else:
            room = self.sibling.room if self.is_attack("in a sibling room") else self.closed.room
            await self.enters(self.member, room)
        if not self.is_attack("came later"):
            await self.says()
        await self.changes()
        return await self.asks()

    async def changes(self) -> None:
        it, user = self.world, self.asker.id
        if self.attack == "kicked a moment ago":
            assert await self.asks(), "a member"
            if not self.twin:
                await self.leaves(kicked=True)
            self.secret = f"canary-{secrets.token_hex(5)}"
            await self.says()
        elif self.is_attack("left"):
            await self.leaves(kicked=False)
        elif self.is_attack("lost the role"):
            it.discord.world.roles[user] = []
        elif self.is_attack("the platform does not answer") and self.platform == "discord":
            it.discord.faults.add(rf"GET /guilds/\d+/members/{user}$", "500 before", times=1_000)
        elif self.is_attack("the platform does not answer"):

            def is_theirs(call: bot_api_http.Call) -> bool:
                return str(call.parameters.get("user_id")) == user

            it.telegram.faults.drop("getChatMember", times=None, where=is_theirs)


async def play(folder: Path, patch: pytest.MonkeyPatch, *, twin: bool) -> dict[Story, bool]:
    """Carry all of them out at once; return which secrets were shown."""
    async with asyncio.timeout(300), world(folder, patch) as it:
        stories = [
            Story(it, attack, on, twin) for attack, platforms in ATTACKS.items() for on in platforms
        ]
        roles = {role: list(people) for role, people in it.roles.items()}
        access = {
            "dm": "open",
            "masks": True,
            "roles": roles,
            "rates": UNHURRIED,
            "budgets": UNBOUNDED,
        }
        it.config = {"access": access}
        await it.begin()
        shown = await asyncio.gather(
            *(story.happens() for story in stories), return_exceptions=True
        )
        fates = dict(zip(stories, shown, strict=True))
        assert not [
            f"{story}: {told!r}" for story, told in fates.items() if isinstance(told, BaseException)
        ]
        return {story: told is True for story, told in fates.items()}


def test_nobody_is_shown_a_room_that_they_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty
) -> None:
    shown = asyncio.run(play(tmp_path, monkeypatch, twin=False))
    record_property("attacks", len(shown))
    record_property("attacks held", sum(not one for one in shown.values()))
    assert not [str(story) for story, told in shown.items() if told]


def test_members_are_shown_their_rooms_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty
) -> None:
    shown = asyncio.run(play(tmp_path, monkeypatch, twin=True))
    record_property("benign twins", len(shown))
    record_property("benign twins that worked unasked", sum(shown.values()))
    assert not [str(story) for story, told in shown.items() if not told]
