"""Kit of the limits: checks, appends and settles messages as the intake does, with a store or
without one."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gateway.access.limits import (
    LimitHit,
    Payers,
    UsageLimiter,
)
from gateway.config.models import (
    AccessConfig,
    AgentConfig,
    BudgetsConfig,
    LlmConfig,
    RatesConfig,
    Settings,
)
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
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
    ThreadId,
)
from gateway.core.facts import (
    Fact,
    Judgement,
    LimitReached,
    PostQueued,
    TurnId,
    TurnRecord,
    dedup_key,
)
from gateway.core.identity import AccessPolicy, RosterState
from gateway.core.ratelimit import Rate
from gateway.plugins.budgets import Budgets
from gateway.store import AppendResult, NewEntry, Store, rebuild
from gateway.store.effects import Decision
from tests.kits.handle import handle_of
from tests.kits.owners import NotedNotices
from tests.kits.plugins import plugin_of
from tests.kits.policies import PlayedPolicy, routed
from tests.kits.store import account, spent

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
CHANNEL = ChannelName("irc.test")
AGENT = "reverie"
FREE = Rate(0, 0.0)
Kind = Literal["direct", "mention", "reply", "room"]


def most(
    sender: Rate = FREE, room: Rate = FREE, agent: Rate = FREE, **usd: float | None
) -> LiveSettings:
    rates = dict.fromkeys(RatesConfig.model_fields, FREE) | {
        "sender": sender,
        "room": room,
        "agent": agent,
    }
    budgets = dict.fromkeys(BudgetsConfig.model_fields, None) | usd
    access = AccessConfig.model_validate(
        {"rates": {name: one._asdict() for name, one in rates.items()}, "budgets": budgets}
    )
    llm = LlmConfig.model_construct(providers={}, models={})
    agents = (AgentConfig.model_construct(id=AGENT),)
    return LiveSettings(Settings.model_construct(access=access, agents=agents, llm=llm))


def policy(known: Callable[[], RosterState] = RosterState) -> AccessPolicy:
    return PlayedPolicy(
        dm_policy="open",
        roles={f"{CHANNEL}:root": "owner"},
        open_rooms={},
        roster=known,
        agents=lambda _: AGENT,
    )


_numbers = itertools.count(1)


def said(
    who: str = "ann",
    room: str = "#a",
    *,
    kind: Kind = "mention",
    thread: str | None = None,
    bot: bool = False,
) -> Message:
    at = Address(
        channel=CHANNEL, room=RoomId(room), thread=None if thread is None else ThreadId(thread)
    )
    sender = Sender(id=SenderId(who), name=who, verified=not who.startswith("mask:"), is_bot=bot)
    return Message(
        id=MessageId(f"m{next(_numbers)}"),
        at=at,
        sender=sender,
        text="reverie?",
        sent=NOON,
        kind=kind,
    )


def ordered(who: str = "ann", room: str = "#a") -> Command:
    """Return a command that has a model asked."""
    at, sender = (
        Address(channel=CHANNEL, room=RoomId(room)),
        Sender(id=SenderId(who), name=who, verified=True),
    )
    number = EventId(f"m{next(_numbers)}")
    return Command(
        id=number,
        at=at,
        sender=sender,
        name="retry",
        args="",
        sent=NOON,
        origin="text",
        direct=True,
    )


def judged(message: Message, role: str = "guest") -> Judgement:
    where = f"{message.at.channel}.{message.kind}.{message.at.room}"
    return Judgement(type=where, urgency=3, fate="due", rule="a mention is urgent", role=role)


async def judge(
    limits: UsageLimiter,
    message: Message,
    judgement: Judgement,
    agent: str = AGENT,
    *,
    known: Callable[[], RosterState] = RosterState,
) -> Decision:
    """Return what is decided after the limits have judged a message."""
    before = Decision(judgement=judgement)
    return await limits.judge(routed(message, policy(known), agent=agent), before) or before


def entries(message: Message, verdict: Decision, clock: ManualClock) -> list[NewEntry]:
    """Return the entries that `gateway.ingest.intake` makes."""
    place = message.at.conversation
    first = NewEntry(fact=message, at=clock.now(), conversation=place, key=dedup_key(message))
    made = [
        first,
        NewEntry(fact=verdict.judgement, at=clock.now(), conversation=place, cause=first),
    ]
    if verdict.effect is not None:
        made += verdict.effect.entries(first)
    if verdict.post is not None:
        queued = PostQueued(post=verdict.post)
        made.append(
            NewEntry(
                fact=queued,
                at=clock.now(),
                conversation=place,
                key=f"post:{verdict.post.key}",
                cause=first,
            )
        )
    return made


class House:
    """One process of the gateway: its limits on its store."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        allowed: LiveSettings,
        known: Callable[[], RosterState] = RosterState,
    ) -> None:
        self.store = store
        self.clock = clock
        self._told_before = set[str]()
        self.live = allowed
        self._known = known
        self.limits = UsageLimiter(allowed, clock, policy(known))
        store.subscribe(self.limits.on_appended)
        self._notices = NotedNotices()
        plugin_of(Budgets, gateway=handle_of(store, clock, notices=self._notices))

    async def load(self) -> None:
        before = await self.store.entries(kinds=["limited"], limit=100_000)
        self._told_before = {
            f"limit:{one.fact.limit}:{one.fact.whose}:{one.fact.subject}:{one.at.date()}"
            for one in before
            if isinstance(one.fact, LimitReached)
        }
        await self.limits.load(self.store)

    @property
    def told(self) -> list[tuple[str, str]]:
        """What owners are told, with its key: once for each, also over a restart."""
        told = dict(reversed(self._notices.told))
        return [
            (key, told[key]) for key in dict(self._notices.told) if key not in self._told_before
        ]

    async def take(self, message: Message, role: str = "guest") -> Decision:
        verdict = await judge(self.limits, message, judged(message, role), known=self._known)
        made = entries(message, verdict, self.clock)
        written: Sequence[AppendResult] | None = None
        try:
            written = await self.store.append(made)
        finally:
            if verdict.effect is not None:
                verdict.effect.settle(written[0] if written else None)
        if not written[0].is_new:
            self.limits.give_back(message)
        return verdict

    async def answered(self, *messages: Message) -> int:
        """Return how many of these messages may start a turn."""
        return sum([(await self.take(one)).judgement.fate == "due" for one in messages])

    async def reserve(
        self,
        message: Message,
        ceiling_usd: float,
        askers: Sequence[Sender] = (),
        *,
        spent_usd: float = 0.0,
        waits: bool = True,
    ) -> LimitHit | None:
        """Reserve for a request of the turn that answers this message."""
        payers = Payers(message.at, AGENT, askers or [message.sender])
        return await self.limits.reserve(
            TurnId(message.id), payers, ceiling_usd, spent_usd, waits=waits
        )

    async def reserve_own(self, turn: str, ceiling_usd: float, spent_usd: float) -> LimitHit | None:
        """Reserve for a request of a turn that nobody asked for."""
        payers = Payers(said().at, AGENT, autonomous=True)
        return await self.limits.reserve(TurnId(turn), payers, ceiling_usd, spent_usd, waits=False)

    async def end(self, turn: str, *usd: float) -> None:
        """End a turn that nobody asked for."""
        accounts = [account(cost=one) for one in usd]
        made = spent(said().at.conversation, *accounts, senders=[], at=self.clock.now())
        assert isinstance(made.fact, TurnRecord)
        fact = replace(made.fact, turn=TurnId(turn), autonomous=True, agent=AGENT)
        await self.store.append([replace(made, fact=fact, key=None)])

    async def pay(self, message: Message, *usd: float | None) -> None:
        """End a turn that was shown this message."""
        made = spent(
            message.at.conversation,
            *[account(cost=one) for one in usd],
            senders=[message.sender.id],
            at=self.clock.now(),
        )
        assert isinstance(made.fact, TurnRecord)
        await self.store.append([replace(made, fact=replace(made.fact, turn=TurnId(message.id)))])

    async def facts(self, kind: str) -> list[Fact]:
        return [one.fact for one in await self.store.entries(kinds=[kind], limit=100_000)]

    async def notices(self) -> list[str]:
        return [one.post.text for one in await self.facts("post") if isinstance(one, PostQueued)]

    async def limited(self) -> list[LimitReached]:
        return [one for one in await self.facts("limited") if isinstance(one, LimitReached)]


@asynccontextmanager
async def living(
    tmp: Path,
    allowed: LiveSettings,
    *,
    clock: ManualClock | None = None,
    known: Callable[[], RosterState] = RosterState,
) -> AsyncIterator[House]:
    """Open one process on the store in `tmp`, which outlives it, and compare its tables with the
    log at the end."""
    clock = clock or ManualClock(NOON)
    async with await Store.open(tmp / "reverie.db", clock) as store:
        house = House(store, clock, allowed, known)
        await house.load()
        yield house
    assert await rebuild(tmp / "reverie.db") == []
