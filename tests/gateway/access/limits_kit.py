"""Kit of the limits: checks, appends and settles messages as the intake does, with a store or
without one."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gateway.access.limits import LimitDecision, UsageLimiter, format_limit_report, limit_report_key
from gateway.config.models import AccessConfig, BudgetsConfig, LlmConfig, RatesConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConversationId,
    EventId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.facts import Fact, Judgement, LimitReached, PostQueued, dedup_key
from gateway.core.identity import AccessPolicy, RosterState
from gateway.core.ratelimit import Rate
from gateway.store import AppendResult, LogEntry, NewEntry, Store, rebuild
from tests.kits.policies import PlayedPolicy
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
    return LiveSettings(Settings.model_construct(access=access, agents=(), llm=llm))


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


def entries(message: Message, verdict: LimitDecision, clock: ManualClock) -> list[NewEntry]:
    """Return the entries that `gateway.ingest.intake` makes."""
    place = message.at.conversation
    first = NewEntry(fact=message, at=clock.now(), conversation=place, key=dedup_key(message))
    made = [first, NewEntry(fact=verdict.judged, at=clock.now(), conversation=place, cause=first)]
    if verdict.change is not None:
        made += verdict.change.entries(first)
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
        self.told: list[tuple[str, str]] = []
        """Keys and texts of the notices for owners. A limit that is in the log already is told no
        more that day."""
        self._limits_told: set[str] = set()
        self.live = allowed
        self.limits = UsageLimiter(allowed, clock, policy(known))
        store.subscribe(self.limits.on_appended)
        store.subscribe(self._tell, LimitReached)

    async def load(self) -> None:
        before = await self.store.entries(kinds=["limited"], limit=100_000)
        self._limits_told = {
            limit_report_key(one.fact, one.at)
            for one in before
            if isinstance(one.fact, LimitReached)
        }
        await self.limits.load(self.store)

    def _tell(self, entries: Sequence[LogEntry]) -> None:
        for one in entries:
            assert isinstance(one.fact, LimitReached)
            key = limit_report_key(one.fact, one.at)
            if key not in self._limits_told:
                self.told.append(
                    (key, format_limit_report(one.fact, one.conversation or ConversationId("")))
                )
            self._limits_told.add(key)

    async def take(self, message: Message, role: str = "guest") -> LimitDecision:
        verdict = self.limits.check(message, judged(message, role), AGENT)
        made = entries(message, verdict, self.clock)
        written: Sequence[AppendResult] | None = None
        try:
            written = await self.store.append(made)
        finally:
            if verdict.change is not None:
                verdict.change.settle(written[0] if written else None)
        if not written[0].is_new:
            self.limits.give_back(message)
        return verdict

    async def answered(self, *messages: Message) -> int:
        """Return how many of these messages may start a turn."""
        return sum([(await self.take(one)).judged.fate == "due" for one in messages])

    async def flood(self, lines: int, *, each_s: float) -> int:
        """Send `count` mentions by 600 people, in batches as a platform does. Return how many may
        start a turn."""
        answered, made = 0, list[NewEntry]()
        for number in range(lines):
            message = said(f"raider{number % 600}")
            verdict = self.limits.check(message, judged(message), AGENT)
            answered += verdict.judged.fate == "due"
            first, *_ = mine = entries(message, verdict, self.clock)
            made += mine
            if verdict.change is not None or number % 100 == 0 or number == lines - 1:
                written = await self.store.append(made)
                if verdict.change is not None:
                    verdict.change.settle(written[made.index(first)])
                made = []
            self.clock.advance(each_s)
        return answered

    async def pay(self, message: Message, *usd: float | None) -> None:
        """End a turn that was shown this message."""
        made = spent(
            message.at.conversation,
            *[account(cost=one) for one in usd],
            senders=[message.sender.id],
            at=self.clock.now(),
        )
        await self.store.append([made])

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
