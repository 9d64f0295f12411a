"""Commands passed to their handlers, or to a dispatcher whose handlers repeat what they were
asked."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from channels.base import Capabilities, Channel, CommandCompletion
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import CommandDefinition, CommandHandler
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.info import handle_help
from gateway.config.models import CommandsConfig
from gateway.core.clock import Clock, ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    EventId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import AuditRecord, dedup_key
from gateway.core.identity import AccessPolicy, Role, RoleGrant
from gateway.core.redaction import Redactor
from gateway.ingest.intake import undecided
from gateway.store import NewEntry, Store
from gateway.store.effects import CommandEffect, Decision, done, refuse
from tests.kits.commands import TABLE, answer_of, command_context, dispatcher_of
from tests.kits.places import PlayedChannels
from tests.kits.policies import routed
from tests.kits.settings import live_settings

IRC = ChannelName("irc.x")
LOBBY = Address(channel=IRC, room=RoomId("#lobby"))
POLICY = AccessPolicy(
    dm_policy="open",
    roles={
        "irc.x:account:olga": "owner",
        "irc.x:account:root": "admin",
        "irc.x:account:mia": "member",
        "irc.x:account:mal": "blocked",
    },
    open_rooms={IRC: frozenset({RoomId("#lobby")})},
    grants={"irc.x:account:rick": [RoleGrant("admin", LOBBY.conversation, "granted")]},
)
SENT = datetime(2026, 3, 1, tzinfo=UTC)


def somebody(who: str, **more: Any) -> Sender:
    sender = Sender(id=SenderId(f"account:{who}"), name=who, account=who, verified=True)
    return replace(sender, **more)


def command(
    name: str, args: str = "", who: str = "root", *, direct: bool = False, **more: Any
) -> Command:
    made = Command(
        id=EventId("c1"),
        at=Address(channel=IRC, room=RoomId(who)) if direct else LOBBY,
        sender=somebody(who),
        name=name,
        args=args,
        sent=SENT,
        origin="text",
        direct=direct,
    )
    return replace(made, **more)


def said(
    text: str, kind: Literal["direct", "mention", "reply", "room"] = "mention", who: str = "root"
) -> Message:
    at = Address(channel=IRC, room=RoomId(who)) if kind == "direct" else LOBBY
    return Message(id=MessageId("m1"), at=at, sender=somebody(who), text=text, sent=SENT, kind=kind)


async def echo(ask: CommandCall, _world: CommandContext) -> CommandEffect:
    """Return what was asked, with a second line."""
    shown = ", ".join(f"{name}={value}" for name, value in ask.arguments.items())
    return done(f"{ask.command.name}/{ask.sub}: {shown}\nmore of it")


async def refusing(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
    return refuse("That is not so.")


ECHO: Mapping[str, CommandHandler] = {row.name: echo for row in TABLE.rows} | {
    "deny": refusing,
    "help": handle_help,
}


class Desk:
    """A dispatcher, and its results."""

    def __init__(self, desk: CommandDispatcher, clock: ManualClock) -> None:
        self.desk, self.clock = desk, clock

    async def ask(self, name: str, args: str = "", who: str = "root", **more: Any) -> str:
        """Return the answer. Empty: none."""
        handled = await self.judge(command(name, args, who, **more))
        return handled.post.text if handled.post else ""

    async def judge(self, event: Command) -> Decision:
        """Return what is decided about a command, as the intake has it."""
        came = routed(event, POLICY)
        return await self.desk.judge(came, undecided(came)) or undecided(came)

    async def audited(self, event: Command) -> list[AuditRecord]:
        return audited(await self.judge(event))


def audited(handled: Decision) -> list[AuditRecord]:
    facts = (made.fact for made in (handled.effect.facts if handled.effect else ()))
    return [fact for fact in facts if isinstance(fact, AuditRecord)]


@contextlib.asynccontextmanager
async def counter(
    folder: Path,
    *,
    answers: Mapping[str, CommandHandler] = ECHO,
    redactor: Redactor | None = None,
    per_minute: int = 1000,
    channels: Mapping[ChannelName, Channel] | None = None,
) -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with await Store.open(folder / "reverie.db", clock) as store:
        context = command_context(
            store,
            clock,
            live=live_settings(commands=CommandsConfig(per_minute=per_minute), agents=()),
            channels=PlayedChannels(channels or {IRC: cast("Any", _Named())}, prefixes={IRC: "!"}),
            people=POLICY,
            redactor=redactor or Redactor(),
        )
        yield Desk(dispatcher_of(context, answered_by(answers)), clock)


class _Named:
    """Channel where the bot is called reverie."""

    nick = "reverie"
    capabilities = Capabilities(platform="irc", formatting="plain")


def answered_by(handlers: Mapping[str, CommandHandler]) -> dict[str, CommandDefinition]:
    """Return the table of people with these handlers, by `name` or `name sub`; without one, the
    handler breaks."""

    def find(*names: str) -> CommandHandler:
        return next((handlers[name] for name in names if name in handlers), _broken)

    rows = [
        replace(
            row,
            handler=None if row.subs else find(row.name),
            subs=tuple(
                replace(sub, handler=find(f"{row.name} {sub.name}", row.name)) for sub in row.subs
            ),
        )
        for row in TABLE.rows
    ]
    return {name: row for row in rows for name in (row.name, *row.aliases)}


async def _broken(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
    raise KeyError("nothing answers")


# Commands passed to their handlers without a dispatcher, and appended with their changes as the
# intake does


def typing(at: Address, name: str, sub: str, arg: str, begun: str = "") -> CommandCompletion:
    sender = Sender(id=SenderId("root"), name="root", verified=True)
    return CommandCompletion(
        at=at, sender=sender, direct=False, name=name, sub=sub, arg=arg, prefix=begun
    )


@dataclass
class Counter:
    """One person who gives commands, one after the other."""

    store: Store
    clock: Clock
    context: CommandContext
    at: Address
    role: Role = "owner"
    everywhere: Role | None = None
    """None: the same role."""
    direct: bool = False
    sender: str = "root"
    settles: bool = True
    """False: the process ends after the transaction, and before its effects."""
    last: list[str] = field(default_factory=list)
    """Ids of the given commands."""

    async def __call__(self, said: str, **given: str) -> CommandEffect:
        """`said`: name and subcommand."""
        return await self.give(said, given)

    async def give(
        self,
        said: str,
        given: Mapping[str, str],
        *,
        id: str = "",  # noqa: A002 - it is what it is
        kept: bool = True,
    ) -> CommandEffect:
        """`id`: of the event, else a new one. `kept`: False, if it cannot be appended."""
        name, _, sub = said.partition(" ")
        self.last.append(id or f"c{await self._count()}")
        command = Command(
            id=EventId(self.last[-1]),
            at=self.at,
            sender=Sender(id=SenderId(self.sender), name=self.sender, verified=True),
            name=name,
            args=" ".join((sub, *given.values())).strip(),
            sent=self.clock.now(),
            origin="native",
            direct=self.direct,
        )
        ask = CommandCall(
            command=command,
            role=self.role,
            global_role=self.everywhere or self.role,
            sub=sub,
            arguments=given,
            prefix="!",
        )
        answer = await answer_of(ask, self.context)
        if kept:
            await self._keep(command, answer)
        else:
            answer.settle(None)
        return answer

    async def says(self, said: str, **given: str) -> str:
        """Return the text alone."""
        return (await self(said, **given)).answer

    async def _keep(self, command: Command, answer: CommandEffect) -> None:
        place = command.at.conversation
        noticed = NewEntry(
            fact=command, at=self.clock.now(), conversation=place, key=dedup_key(command)
        )
        written = await self.store.append([noticed, *answer.entries(noticed)])
        if self.settles:
            answer.settle(written[0])

    async def _count(self) -> int:
        return len(await self.store.entries(kinds=["command"])) + 1
