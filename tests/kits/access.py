"""Who may do what, on a real store: events come in as intake takes them, commands as the desk has
them answered."""

import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

from pydantic import SecretStr

from channels.base import ChannelConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.access.policy import AccessDecision, decide
from gateway.access.roster import Roster
from gateway.app import make_channel
from gateway.commands.context import OPERATOR_PLACE, CommandCall
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    EventId,
    MembershipChanged,
    Message,
    MessageId,
    Notification,
    Post,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import CodeEnded, Fact, PostQueued, dedup_key
from gateway.core.redaction import Redactor
from gateway.ingest.intake import undecided
from gateway.plugins.pairing import Pairing
from gateway.store import AppendResult, LogEntry, NewEntry, OutboxPost, Store
from gateway.store.effects import CommandEffect, Decision
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import RoomMembership
from tests.kits.commands import answer_of, command_context
from tests.kits.places import PlayedChannels
from tests.kits.plugins import plugins_of
from tests.kits.policies import PlayedPolicy, routed
from tests.kits.settings import live_settings
from tests.kits.tasks import LooseTasks

P = ParamSpec("P")
TG, DC, IRC = ChannelName("telegram.main"), ChannelName("discord.main"), ChannelName("irc.libera")
PLATFORMS: dict[ChannelName, ChannelConfig] = {
    TG: TelegramConfig(platform="telegram", token=SecretStr("1:abc")),
    DC: DiscordConfig(platform="discord", token=SecretStr("abc")),
    IRC: IrcConfig(host="127.0.0.1", nick="reverie"),
}
PREFIX = {TG: "/", DC: "/", IRC: "!"}
LOBBY = Address(channel=IRC, room=RoomId("#lobby"))
CODE = re.compile(r"`([A-Z0-9]{4}-[A-Z0-9]{4})`")
SAID = re.compile(r"(?:approve|link) ([A-Z0-9]{4}-[A-Z0-9]{4})`")

POLICY = PlayedPolicy(
    dm_policy="pairing",
    roles={
        f"{TG}:1": "owner",
        f"{TG}:2": "admin",
        f"{TG}:3": "member",
        f"{TG}:9": "blocked",
        f"{DC}:2": "admin",
    },
    open_rooms={IRC: frozenset({LOBBY.room})},
    room_policy="approval",
)


def somebody(sender_id: str, name: str = "", *, verified: bool = True, **more: Any) -> Sender:
    return Sender(id=SenderId(sender_id), name=name or f"n{sender_id}", verified=verified, **more)


OWNER, ADMIN, MEMBER, BLOCKED = (somebody(one) for one in ("1", "2", "3", "9"))
EVE = somebody("666", "Eve")
MASK = somebody("mask:eve!e@evil.example", "eve", verified=False)


def alone(channel: ChannelName, sender: Sender) -> Address:
    """The direct chat with somebody, which each platform names in its own way."""
    return Address(channel=channel, room=RoomId(f"dm-{sender.id}"))


class Moves(RoomMembership):
    """Notes the rooms to enter and to leave."""

    def __init__(self, town: "Town") -> None:
        self._town, tasks = town, LooseTasks()
        outbox = Outbox(town.store, {}, town.clock, tasks, redactor=Redactor())
        super().__init__(town.store, PlayedChannels(), tasks, outbox, town.policy)

    def accept_invite(self, at: Address) -> None:
        self._town.joined.append(at)

    def leave_closed(self, at: Address) -> None:
        self._town.left.append(at)


class Town:
    """A gateway without agents and without platforms."""

    def __init__(self, store: Store, clock: ManualClock, policy: PlayedPolicy = POLICY) -> None:
        self.store, self.clock = store, clock
        self.roster = Roster(store, clock)
        self.policy = replace(policy, roster=lambda: self.roster.known)
        self.posted: list[OutboxPost] = []
        """Notices to people whose codes have ended."""
        self.joined: list[Address] = []
        self.left: list[Address] = []
        made = live_settings(channels=PLATFORMS).settings
        self.manners = PlayedChannels(
            prefixes=PREFIX,
            platforms={
                name: make_channel(name, made, clock, None).capabilities for name in PLATFORMS
            },
            private_address=lambda at, sender: (
                alone(at.channel, sender) if at.channel == IRC else at
            ),
        )
        store.subscribe(self.roster.on_appended)
        Moves(self)
        store.subscribe(self._on_code_ended, CodeEnded, PostQueued)
        self._ids = itertools.count(1)
        world = command_context(
            store,
            clock,
            live=live_settings(channels=PLATFORMS, agents=()),
            people=self.policy,
            channels=self.manners,
            roster=self.roster,
        )
        plugins = plugins_of(Pairing, gateway=world.gateway)
        self.world = replace(world, plugins=plugins)
        pairing = plugins.get(Pairing)
        assert pairing is not None
        self.pairing = pairing

    def _on_code_ended(self, entries: Sequence[LogEntry]) -> None:
        if any(isinstance(entry.fact, CodeEnded) for entry in entries):
            self.posted += [
                OutboxPost(seq=entry.seq, at=entry.at, post=entry.fact.post, parts=())
                for entry in entries
                if isinstance(entry.fact, PostQueued)
            ]

    def id(self) -> str:
        return f"e{next(self._ids)}"

    def message(
        self, channel: ChannelName, sender: Sender, at: Address | None = None, **more: Any
    ) -> Message:
        made = Message(
            id=MessageId(self.id()),
            at=at or alone(channel, sender),
            sender=sender,
            text="hello",
            sent=self.clock.now(),
            kind="direct" if at is None else "mention",
        )
        return replace(made, **more)

    def invite(
        self, channel: ChannelName, sender: Sender, room: str, title: str | None = None
    ) -> MembershipChanged:
        return MembershipChanged(
            id=EventId(self.id()),
            at=Address(channel=channel, room=RoomId(room)),
            sender=sender,
            change="invite",
            sent=self.clock.now(),
            text=title,
        )

    async def hear(self, event: Notification) -> Post | None:
        """It comes in, and is refused or not; what is said to it, if anything. As
        `gateway.ingest.intake` does it."""
        greeting = await self.greet(event)
        await self.write(event, greeting)
        return greeting.post if greeting else None

    async def shown(self, event: Notification) -> Post:
        """The same, where something has to be said to it."""
        post = await self.hear(event)
        assert post is not None
        return post

    async def greet(self, event: Notification) -> Decision | None:
        came = routed(event, self.policy)
        return await self.pairing.judge(came, undecided(came))

    async def write(
        self, event: Notification, greeting: Decision | None
    ) -> tuple[AppendResult, ...]:
        place = event.at
        asked = NewEntry(
            fact=event,
            at=self.clock.now(),
            conversation=place.conversation if place else None,
            key=dedup_key(event),
        )
        entries = [asked]
        if greeting is not None:
            if greeting.effect is not None:
                entries += greeting.effect.entries(asked)
            assert greeting.post is not None
            key = f"post:{greeting.post.key}"
            fact = PostQueued(post=greeting.post)
            entries.append(
                NewEntry(
                    fact=fact,
                    at=asked.at,
                    conversation=greeting.post.to.conversation,
                    key=key,
                    cause=asked,
                )
            )
        written = await self.store.append(entries)
        if greeting is not None and greeting.effect is not None:
            greeting.effect.settle(written[0])
        return written

    def command(
        self,
        channel: ChannelName,
        sender: Sender,
        line: str,
        at: Address | None = None,
        args: str = "",
    ) -> Command:
        return Command(
            id=EventId(self.id()),
            at=at or alone(channel, sender),
            sender=sender,
            name=line.split(maxsplit=1)[0],
            args=args,
            sent=self.clock.now(),
            origin="native",
            direct=at is None,
        )

    async def ask(
        self,
        channel: ChannelName,
        sender: Sender,
        line: str,
        *,
        at: Address | None = None,
        **given: str,
    ) -> CommandEffect:
        """A command, as the desk has it answered, written down with what it changes."""
        event = self.command(channel, sender, line, at)
        answer = await self.decided(event, line, **given)
        await self.settled(event, answer)
        return answer

    async def decided(self, event: Command, line: str, **given: str) -> CommandEffect:
        who: AccessDecision = decide(self.policy, event)
        assert who.allowed, who.rule
        sub = line.partition(" ")[2]
        ask = CommandCall(
            command=event,
            role=who.role,
            global_role=who.global_role,
            sub=sub,
            arguments=given,
            prefix=PREFIX[event.at.channel],
        )
        return await answer_of(ask, self.world)

    async def shell(self, line: str, **given: str) -> CommandEffect:
        """A command of the operator, written down with what it changes."""
        sender = Sender(id=SenderId("operator"), name="root at the command line", verified=True)
        event = self.command(OPERATOR_PLACE.channel, sender, line, OPERATOR_PLACE)
        ask = CommandCall(
            command=event,
            role="owner",
            global_role="owner",
            sub=line.partition(" ")[2],
            arguments=given,
            prefix="reverie ctl ",
            is_operator=True,
        )
        answer = await answer_of(ask, self.world)
        await self.settled(event, answer)
        return answer

    async def settled(self, event: Command, change: CommandEffect | None) -> None:
        asked = NewEntry(
            fact=event,
            at=self.clock.now(),
            conversation=event.at.conversation,
            key=dedup_key(event),
        )
        written: tuple[AppendResult, ...] = ()
        try:
            written = await self.store.append([asked, *(change.entries(asked) if change else ())])
        finally:
            if change is not None:
                change.settle(written[0] if written else None)

    async def facts(self, *kinds: str) -> list[Fact]:
        return [entry.fact for entry in await self.store.entries(kinds=kinds)]

    def role(self, channel: ChannelName, sender: Sender, at: Address | None = None) -> str:
        return decide(self.policy, self.message(channel, sender, at)).role

    async def paired(self, channel: ChannelName, sender: Sender) -> None:
        """Somebody is let in, from the first word on."""
        post = await self.shown(self.message(channel, sender))
        answer = await self.ask(TG, OWNER, "pair approve", code=code(post))
        assert answer.ok, answer.answer

    async def linked(
        self, one: tuple[ChannelName, Sender], other: tuple[ChannelName, Sender]
    ) -> None:
        """Two accounts that are heard show that they are one person's."""
        first = await self.ask(*one, "link start")
        second = await self.ask(*other, "link code", code=code(first))
        last = await self.ask(*one, "link code", code=code(second))
        assert last.ok, last.answer


def code(said: Post | CommandEffect) -> str:
    text = said.text if isinstance(said, Post) else said.answer
    match = CODE.search(text) or SAID.search(text)
    assert match, text
    return match[1]


@contextlib.asynccontextmanager
async def town(
    folder: Path, policy: PlayedPolicy = POLICY, *, clock: ManualClock | None = None
) -> AsyncIterator[Town]:
    """Open, with what an earlier one left there."""
    clock = clock or ManualClock()
    async with await Store.open(folder / "reverie.db", clock) as store:
        made = Town(store, clock, policy)
        await made.roster.load()
        yield made
