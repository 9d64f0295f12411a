"""Whether a message that is said to an agent may start a turn: rates and budgets, of senders, rooms and agents.

What is refused stays in the log as context. Where it was said, that is told once (`silence`), and owners are told.

Owners and admins are always answered, where they are that. What they say takes from the agent's own bucket as far as
something is in it, so that others get less while they are busy with it; senders' and rooms' buckets it leaves alone.
Accounts that are linked are one person: one bucket, one sum; so are all masks of one host, for nicks are changed at
once. A repeat of what is in the log already costs nothing.

Budgets are of what people cause who are neither owners nor admins. A sender's sum is their share of what turns cost
(`gateway.store.projections`), a room's and an agent's those of all of them. Before each request of a turn as much is
set aside as it may cost at most (`afford`), until its turn has ended and the bill is known: turns that run at once
cannot spend the same money. A request without a known price counts with the one that is assumed.

Token buckets: so many at once, then so many a minute. Pure: times are handed in.

https://en.wikipedia.org/wiki/Token_bucket. All is counted in whole numbers (nanoseconds, millionths of one a minute),
so nothing drifts, however long and in however many steps a bucket fills.

Which limit bites, and what is said about it. Pure.

Whether it is time to say once more that a limit is reached. Pure: times are handed in.

In one room, whatever limits bite there, a notice is followed by silence for `QUIET_S` at least; and the same limit is
told again only if it did not bite at all in between.

What answers cost, by whose they are and by day. Pure.

How many commands one person is answered in a minute. Pure: times are handed in.

What the operator lets people have. Pure.

A memory of bounded size: what was not written to for longest is forgotten first.

How much may be asked of the agents, and what it may cost: so often, and so much money a day.

`bucket`, `costs`, `silence` and `words` decide and are pure; `limits` knows the clock and the log.
"""

import asyncio
import hashlib
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeVar

from agent.cache.prices import ASSUMED_PRICE
from gateway.access.approval_texts import inline_code
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, Message, Post, PostKey, Sender, SenderId, Usage
from gateway.core.facts import AMBIENT, URGENT, Judgement, LimitReached, PostQueued, TurnRecord, dedup_key
from gateway.core.identity import ADMIN_ROLES, AccessPolicy, person_key, role_of, stable_source
from gateway.core.metrics import LimitStats
from gateway.store import AppendResult, NewEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.store.projections import NANO_PER_USD, spending_shares

WINDOW_S = 60.0
PEOPLE = 10_000
"""Remembered at once; who was quiet for longest is forgotten first."""


class Pace:
    """A sliding window per person."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def try_acquire(self, person: str, now_s: float, per_minute: int) -> bool:
        """Whether one more is answered at this monotonic time, of so many in a minute; it counts if so."""
        times = self._times.setdefault(person, deque())
        self._times.move_to_end(person)
        if len(self._times) > PEOPLE:
            self._times.popitem(last=False)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        if len(times) >= per_minute:
            return False
        times.append(now_s)
        return True


class Rate(NamedTuple):
    """How often."""

    burst: int
    """At once. 0 with a pace: one."""
    per_minute: float
    """Then. 0, with a burst of 0: as often as anybody likes."""

    @property
    def is_limited(self) -> bool:
        """Whether it is a limit at all."""
        return self.burst > 0 or self.per_minute > 0

    def __str__(self) -> str:
        return f"{max(1, self.burst)} at once, then {self.per_minute:g} a minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Of what is said to an agent, and of what answers cost."""

    sender: Rate
    room: Rate
    agent: Rate
    sender_usd: float | None = None
    """A UTC day, of what people cause who are no admins. None: no limit, as in the next."""
    room_usd: float | None = None
    agent_usd: float | None = None


K = TypeVar("K")
V = TypeVar("V")

MAX_REMEMBERED: Final = 10_000
"""People, rooms or notices that are remembered at once."""


class LruDict(OrderedDict[K, V]):
    """A dict of at most `most` things. Write with `keep`."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Remember, as the newest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


_NANO: Final = 1_000_000_000
_MICRO: Final = 1_000_000
_TOKEN: Final = 60 * _NANO * _MICRO
"""One of what a bucket holds: in nanoseconds, at a millionth a minute."""


class _TokenBucket:
    """What is left at a moment."""

    __slots__ = ("at_ns", "full_ns", "level")

    def __init__(self, level: int, at_ns: int) -> None:
        self.level = level
        self.at_ns = at_ns
        self.full_ns = at_ns
        """When it was last known to be full."""


class TokenBuckets:
    """A bucket for each of those who are remembered. The others' are full."""

    def __init__(self, rate: Rate, most: int = MAX_REMEMBERED) -> None:
        self.rate = rate
        self._capacity = _capacity_of(rate)
        self._refill_rate = _refill_rate_of(rate)
        """Millionths a minute."""
        self._buckets = LruDict[str, _TokenBucket](most)

    def set_rate(self, rate: Rate) -> None:
        """Go by that from now on: what was taken stays taken, and comes back at the new pace."""
        more = _capacity_of(rate) - self._capacity
        for whose in self._buckets:
            bucket = self._buckets[whose]
            bucket.level = max(0, bucket.level + more)
        self.rate, self._capacity, self._refill_rate = rate, _capacity_of(rate), _refill_rate_of(rate)

    def has_token(self, whose: str, now_s: float) -> bool:
        """Whether one more may be taken at this monotonic time, which is not before any that was told earlier."""
        if not self.rate.is_limited or whose not in self._buckets:
            return True
        return self._refill(self._buckets[whose], now_s).level >= _TOKEN

    def take(self, whose: str, now_s: float) -> bool:
        """Take one if it is there; whether it was."""
        if not self.rate.is_limited:
            return True
        bucket = self._buckets.get(whose)
        bucket = _TokenBucket(self._capacity, _to_ns(now_s)) if bucket is None else self._refill(bucket, now_s)
        if bucket.level < _TOKEN:
            return False
        bucket.level -= _TOKEN
        self._buckets.put(whose, bucket)
        return True

    def give_back(self, whose: str, taken_s: float, now_s: float) -> None:
        """One that was taken then was not used. Never gives more than there would be if it had not been taken."""
        bucket = self._buckets.get(whose)
        if bucket is not None:
            self._refill(bucket, now_s)
            # While one was missing the bucket may have filled where else it would have been full already.
            gone = max(0, bucket.at_ns - _to_ns(taken_s)) * self._refill_rate
            bucket.level = min(self._capacity, bucket.level + max(0, _TOKEN - gone))

    def was_full_since(self, whose: str, since_s: float) -> bool:
        """Whether it was full at any moment after that one, as far as it was looked at since."""
        bucket = self._buckets.get(whose)
        return bucket is None or bucket.full_ns > _to_ns(since_s)

    def _refill(self, bucket: _TokenBucket, now_s: float) -> _TokenBucket:
        now_ns = max(bucket.at_ns, _to_ns(now_s))
        bucket.level += (now_ns - bucket.at_ns) * self._refill_rate
        bucket.at_ns = now_ns
        if bucket.level >= self._capacity:
            bucket.level, bucket.full_ns = self._capacity, now_ns
        return bucket


def _capacity_of(rate: Rate) -> int:
    return max(1, rate.burst) * _TOKEN


def _refill_rate_of(rate: Rate) -> int:
    return round(rate.per_minute * _MICRO)


def _to_ns(at_s: float) -> int:
    return round(at_s * _NANO)


KEPT_DAYS: Final = 3
"""Kept at once: a clock that is set wrong for a moment loses no sums."""


class DailyCosts:
    """In billionths of a dollar, as `gateway.store.projections` counts."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._days = LruDict[str, dict[str, int]](KEPT_DAYS)

    def set_day(self, day: str, sums: Mapping[str, int]) -> None:
        """That day (YYYY-MM-DD, UTC) they have cost so much until now."""
        self._days.put(day, dict(sums))

    def add(self, day: str, whose: str, nano_usd: int) -> None:
        """One more. Where too many are known, those are forgotten who cost least."""
        sums = self._days.get(day, {})
        sums[whose] = sums.get(whose, 0) + nano_usd
        if len(sums) > 2 * self._most:
            sums = dict(heapq.nlargest(self._most, sums.items(), key=lambda one: one[1]))
        self._days.put(day, sums)

    def total(self, day: str, whose: Iterable[str]) -> int:
        """What these have cost together on that day."""
        sums = self._days.get(day)
        return 0 if sums is None else sum(sums.get(one, 0) for one in whose)


QUIET_S: Final = 600.0


class NoticeThrottle:
    """Remembers what was said where."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._last_said_s = LruDict[tuple[str, str], float](2 * most)
        """When, monotonic: of each limit in a room, and of any (``""``)."""

    def is_due(self, room: str, limit: str, now_s: float, free_since: Callable[[float], bool]) -> bool:
        """Whether a notice may be said. `free_since`: whether the limit was free at any moment after that one."""
        last, before = self._last_said_s.get((room, "")), self._last_said_s.get((room, limit))
        if last is not None and now_s - last < QUIET_S:
            return False
        return before is None or free_since(before)

    def record(self, room: str, limit: str, now_s: float) -> None:
        """A notice is said."""
        self._last_said_s.put((room, limit), now_s)
        self._last_said_s.put((room, ""), now_s)

    def forget(self, room: str, limit: str) -> None:
        """It was not said after all."""
        self._last_said_s.pop((room, limit), None)
        self._last_said_s.pop((room, ""), None)


LimitKind = Literal["rate", "cost"]
LimitScope = Literal["sender", "room", "agent"]

SUBJECT_CHARS: Final = 160

_NOTICES: Final[dict[tuple[LimitKind, LimitScope], str]] = {
    ("rate", "sender"): "You write to me faster than I can answer. I go on reading, and will answer again in a while.",
    ("rate", "room"): "More is said to me here than I can answer. I go on reading, and will answer again in a while.",
    ("rate", "agent"): "I am asked for more than I can answer just now. I go on reading, and will answer again in a "
    "while.",
    ("cost", "sender"): "I have used up what I may spend on answering you today; from 00:00 UTC on again.",
    ("cost", "room"): "I have used up what I may spend here today; from 00:00 UTC on again.",
    ("cost", "agent"): "I have used up what I may spend on answers today; from 00:00 UTC on again.",
}


class LimitHit(NamedTuple):
    """A limit that is reached."""

    limit: LimitKind
    whose: LimitScope
    subject: str
    """The person, the room or the agent."""
    rule: str
    """The setting, and what it says."""

    def key(self, day: str) -> str:
        """Tells it from all others; what money may be spent is another limit each day (YYYY-MM-DD)."""
        own = f"{self.limit}:{self.whose}:{self.subject}"
        return f"{own}:{day}" if self.limit == "cost" else own


def format_limit_notice(bite: LimitHit) -> str:
    """What is said once to those who ask for too much."""
    return _NOTICES[bite.limit, bite.whose]


def format_limit_report(bite: LimitHit, place: ConversationId) -> str:
    """What owners are told, in Markdown. Names of people and places are theirs, so they stand in code."""
    whose, where = inline_code(bite.subject, SUBJECT_CHARS), inline_code(place, SUBJECT_CHARS)
    return (
        f"The {bite.whose} {whose} has reached a limit ({bite.rule}), in {where}. What comes beyond it is read, and "
        "not answered. I say this once a day."
    )


LIMITS_LOOK_BACK: Final = 1_000
"""So many of the last limits that were reached are read at a start: what was told today is not told again."""
NOTICE_RATE: Final = Rate(30, 10.0)
"""On each channel. Beyond these, whoever comes is not even told: a raid in direct chats would else become ours."""


class LimitDecision(NamedTuple):
    """What becomes of a message."""

    judged: Judgement
    post: Post | None = None
    """To be said there. None: nothing."""
    change: CommandEffect | None = None
    """To be written down with it, and settled then, as a command's."""


class _TakenTokens(NamedTuple):
    """What one that is to be answered took."""

    at_s: float
    buckets: Sequence[tuple[TokenBuckets, str]]


class UsageLimiter:
    """One for all channels. Everything happens on the event loop."""

    def __init__(
        self,
        most: LimitSettings,
        clock: Clock,
        who: AccessPolicy,
        *,
        tell: Callable[[str, str], None] = lambda _key, _text: None,
        stats: LimitStats | None = None,
    ) -> None:
        """`tell`: a text for owners, with the name of what it is about (`Owners.tell`). Returns at once."""
        self._clock = clock
        self._policy = who
        self._tell = tell
        self.stats = stats or LimitStats()
        rates: dict[LimitScope, Rate] = {"agent": most.agent, "room": most.room, "sender": most.sender}
        self._rates: Mapping[LimitScope, TokenBuckets] = {whose: TokenBuckets(rate) for whose, rate in rates.items()}
        self._usd = _budgets_usd(most)
        self._costs: Mapping[LimitScope, DailyCosts] = {
            "agent": DailyCosts(),
            "room": DailyCosts(),
            "sender": DailyCosts(),
        }
        self._reserved: dict[ConversationId, dict[tuple[LimitScope, str], int]] = {}
        """Billionths of a dollar, for the requests of the turn that runs there."""
        self._budget_freed = asyncio.Event()
        """Set when something is set aside no more; then there is another."""
        self._notices = TokenBuckets(NOTICE_RATE)
        self._notice_throttle = NoticeThrottle()
        self._reported = LruDict[str, None]()
        """Limits that owners were told of, by name and day."""
        self._taken = LruDict[str, _TakenTokens]()
        """By messages that are not in the log yet."""

    def update(self, most: LimitSettings) -> None:
        """Go by these limits from now on; what was spent and taken stays so. Returns at once."""
        for whose, buckets in self._rates.items():
            buckets.set_rate(getattr(most, whose))
        self._usd = _budgets_usd(most)
        self._notify_freed()

    async def load(self, reader: StoreReader) -> None:
        """Learn from the log what was spent and told today. Call it once, before anything comes in."""
        now, day = self._clock.now(), self._today()
        for one in await reader.newest_entries(LIMITS_LOOK_BACK, kinds=["limited"]):
            fact = one.fact
            if not isinstance(fact, LimitReached) or one.conversation is None:
                continue
            bite = LimitHit(fact.limit, fact.whose, fact.subject, fact.rule)
            age_s, then = max(0.0, (now - one.at).total_seconds()), one.at.date().isoformat()
            if then == day:
                self._reported.put(_daily_key(bite, day), None)
            if age_s < QUIET_S or then == day:
                room = _room_key(Address.parse(one.conversation))
                self._notice_throttle.record(room, bite.key(then), self._clock.monotonic() - age_s)
        for costs in self._costs.values():
            costs.set_day(day, {})
        for share in await reader.spending_sums("share", since=day):
            agent, place, sender, provider = share.key.split("\n", 3)
            unpriced = share.unpriced > 0 and share.unpriced == share.requests and bool(provider)
            nano = _assumed_nano_usd(share.usage) if unpriced else round(share.cost_usd * NANO_PER_USD)
            self._add_cost(day, agent, Address.parse(place), SenderId(sender), nano)

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """These were appended to the log: turns are paid for, notices are said, repeats get back what they took."""
        for entry, done in zip(entries, written, strict=True):
            if isinstance(entry.fact, TurnRecord) and done.is_new:
                self._record_turn_costs(entry, entry.fact)
            elif isinstance(entry.fact, LimitReached) and done.is_new:
                posted = any(isinstance(one.fact, PostQueued) and one.cause is entry.cause for one in entries)
                self._on_limit_reached(entry, entry.fact, told=posted)
            elif isinstance(entry.fact, Message) and entry.key is not None:
                self._settle_tokens(entry.key, back=not done.is_new)

    def check(self, message: Message, judged: Judgement, agent: str) -> LimitDecision:
        """Whether this message may start a turn of that agent; what is not to start one passes.

        `judged`: by access and attention. What the verdict changes is to be written down before the next message there
        is checked.
        """
        key = dedup_key(message)
        if judged.fate != "due" or judged.urgency < URGENT:
            return LimitDecision(judged)
        self._settle_tokens(key, back=True)  # it could not be written down the last time, or comes twice at once
        taken = self._take(message.at, message.sender, judged.role, agent)
        if isinstance(taken, LimitHit):
            return self._refuse(message, judged, taken)
        self._taken.put(key, taken)
        return LimitDecision(judged)

    def take_or_explain(self, at: Address, sender: Sender, role: str, agent: str) -> str:
        """Why this person may not have that agent think there now, for people. Empty: they may, and it counts."""
        taken = self._take(at, sender, role, agent)
        return format_limit_notice(taken) if isinstance(taken, LimitHit) else ""

    def reserve(
        self, at: Address, agent: str, askers: Sequence[Sender], cost_usd: float, spent_usd: float = 0.0
    ) -> LimitHit | None:
        """Set aside what the next request of the turn there may cost at most, until `settle`. Not None: it may not be.

        `spent_usd`: what the turn has cost so far. Owners and admins cost nobody's budget; where one who is none asks
        beside them, theirs counts.
        """
        asks = self._find_payers(at, agent, askers)
        nano = _to_nano_usd(cost_usd) + _to_nano_usd(spent_usd)
        if cost_usd <= 0:
            return None
        for whose, ones in asks:
            if self._exceeds_budget(whose, ones, nano, self._reserved_elsewhere(whose, ones, at)):
                return self._build_budget_hit(whose, ones)
        self._set_reserved(at, asks, nano)
        return None

    async def wait_for_budget(
        self, at: Address, agent: str, askers: Sequence[Sender], cost_usd: float, spent_usd: float = 0.0
    ) -> None:
        """Return once `afford` does not depend on what other turns have set aside, which may not be needed."""
        asks = self._find_payers(at, agent, askers)
        nano = _to_nano_usd(cost_usd) + _to_nano_usd(spent_usd)
        self._set_reserved(at, asks, _to_nano_usd(spent_usd))
        while cost_usd > 0 and self._waits_for_others(at, asks, nano):
            await self._budget_freed.wait()

    def _waits_for_others(self, at: Address, asks: Sequence[tuple[LimitScope, Sequence[str]]], nano: int) -> bool:
        if any(self._exceeds_budget(whose, ones, nano) for whose, ones in asks):
            return False  # whatever becomes of the others
        return any(
            self._exceeds_budget(whose, ones, nano, self._reserved_elsewhere(whose, ones, at)) for whose, ones in asks
        )

    def release(self, conversation: ConversationId) -> None:
        """The turn there has ended, and what it cost is counted."""
        if self._reserved.pop(conversation, None):
            self._notify_freed()

    def _set_reserved(self, at: Address, asks: Sequence[tuple[LimitScope, Sequence[str]]], nano: int) -> None:
        before = self._reserved.get(at.conversation, {})
        self._reserved[at.conversation] = {(whose, ones[0]): nano for whose, ones in asks}
        if not asks:
            del self._reserved[at.conversation]
        if before:
            self._notify_freed()

    def _notify_freed(self) -> None:
        """Something that was set aside may be free."""
        freed, self._budget_freed = self._budget_freed, asyncio.Event()
        freed.set()

    def _reserved_elsewhere(self, whose: LimitScope, ones: Sequence[str], at: Address) -> int:
        """What is set aside for turns elsewhere."""
        return sum(
            aside.get((whose, ones[0]), 0) for place, aside in self._reserved.items() if place != at.conversation
        )

    def _find_payers(self, at: Address, agent: str, askers: Sequence[Sender]) -> list[tuple[LimitScope, Sequence[str]]]:
        """Whose budgets a turn is paid from. None: of nobody's."""
        payers = [one for one in askers if role_of(self._policy, at, one) not in ADMIN_ROLES]
        return self._budget_subjects(at, agent, payers) if payers else []

    def build_unpaid_entries(self, at: Address, message: Message | None, bite: LimitHit) -> list[NewEntry]:
        """What is to be written down where a turn could not be paid: once a day a notice to whoever asked last, too."""
        self.stats.count_limited(bite.limit, bite.whose)
        now, day, now_s, room = self._clock.now(), self._today(), self._clock.monotonic(), _room_key(at)
        over = self._notice_throttle.is_due(room, bite.key(day), now_s, lambda _: False)
        told = message is not None and over and not message.sender.is_bot and self._notices.take(at.channel, now_s)
        if not told and _daily_key(bite, day) in self._reported:
            return []
        fact = LimitReached(limit=bite.limit, whose=bite.whose, subject=bite.subject, rule=bite.rule)
        entries = [NewEntry(fact=fact, at=now, conversation=at.conversation)]
        if told and message is not None:
            post = _build_limit_post(message, bite)
            key = f"post:{post.key}"
            entries.append(NewEntry(fact=PostQueued(post=post), at=now, conversation=at.conversation, key=key))
        return entries

    def _budget_subjects(
        self, at: Address, agent: str, senders: Sequence[Sender]
    ) -> list[tuple[LimitScope, Sequence[str]]]:
        """Whose budgets count, the widest first."""
        people = dict.fromkeys(tuple(self._linked_subjects(at, one)) for one in senders)
        return [("agent", (agent,)), ("room", (_room_key(at),)), *(("sender", same) for same in people)]

    def _exceeds_budget(self, whose: LimitScope, ones: Sequence[str], nano: int, aside: int = 0) -> bool:
        """Whether that much more is more than they may have today."""
        usd = self._usd[whose]
        return usd is not None and self._costs[whose].total(self._today(), ones) + aside + nano > usd * NANO_PER_USD

    def _build_budget_hit(self, whose: LimitScope, ones: Sequence[str]) -> LimitHit:
        return LimitHit("cost", whose, ones[0], f"access.budgets.{whose}_usd: ${self._usd[whose]:g} a day")

    def _take(self, at: Address, sender: Sender, role: str, agent: str) -> "_TakenTokens | LimitHit":
        """What is taken for one that is to be answered, or what is in the way."""
        now_s, room, same = self._clock.monotonic(), _room_key(at), self._linked_subjects(at, sender)
        asks: dict[LimitScope, str] = {"agent": agent, "room": room, "sender": same[0]}
        if role in ADMIN_ROLES:
            asks = {"agent": agent}
        elif bite := self._find_budget_hit(at, sender, agent) or self._find_rate_hit(asks, now_s):
            return bite
        return _TakenTokens(
            now_s, [(self._rates[one], who) for one, who in asks.items() if self._rates[one].take(who, now_s)]
        )

    def _settle_tokens(self, key: str, *, back: bool) -> None:
        """What that message took is settled."""
        taken = self._taken.pop(key, None)
        if taken is not None and back:
            for buckets, whose in taken.buckets:
                buckets.give_back(whose, taken.at_s, self._clock.monotonic())

    def _linked_subjects(self, at: Address, sender: Sender) -> Sequence[str]:
        """All accounts of whoever this is, in an order that is the same for each of them."""
        own = stable_source(person_key(at.channel, sender.id))
        linked = self._policy.roster_state().links.get(own, ()) if sender.verified else ()
        return sorted({own, *linked}) if linked else (own,)

    def _find_budget_hit(self, at: Address, sender: Sender, agent: str) -> LimitHit | None:
        """Nothing is left for one more request, however little it costs."""
        for whose, ones in self._budget_subjects(at, agent, [sender]):
            if self._exceeds_budget(whose, ones, 1):
                return self._build_budget_hit(whose, ones)
        return None

    def _find_rate_hit(self, asks: Mapping[LimitScope, str], now_s: float) -> LimitHit | None:
        """The widest limit that bites: in a raid that is the room's, and not one of each raider."""
        for whose, one in asks.items():
            if not self._rates[whose].has_token(one, now_s):
                return LimitHit("rate", whose, one, f"access.rates.{whose}: {self._rates[whose].rate}")
        return None

    def _refuse(self, message: Message, judged: Judgement, bite: LimitHit) -> LimitDecision:
        """What comes beyond a limit is context. Bots are told nothing: they might answer."""
        self.stats.count_limited(bite.limit, bite.whose)
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=bite.rule)
        now_s, room, day = self._clock.monotonic(), _room_key(message.at), self._today()
        name = bite.key(day)
        over = self._notice_throttle.is_due(room, name, now_s, lambda since_s: self._was_free_since(bite, since_s))
        told = over and not message.sender.is_bot and self._notices.take(message.at.channel, now_s)
        if not told and _daily_key(bite, day) in self._reported:
            return LimitDecision(judged)
        if told:
            self._notice_throttle.record(room, name, now_s)

        def settle(asked: AppendResult | None) -> None:
            if told and (asked is None or not asked.is_new):  # if it is written down all the same, `wrote` is told
                self._notice_throttle.forget(room, name)
                self._notices.give_back(message.at.channel, now_s, self._clock.monotonic())

        fact = LimitReached(limit=bite.limit, whose=bite.whose, subject=bite.subject, rule=bite.rule)
        post = _build_limit_post(message, bite) if told else None
        return LimitDecision(judged, post, CommandEffect(answer="", facts=(EffectFact(fact),), settle=settle))

    def _on_limit_reached(self, entry: NewEntry, fact: LimitReached, *, told: bool) -> None:
        """It is written down that somebody has reached a limit."""
        bite, day = LimitHit(fact.limit, fact.whose, fact.subject, fact.rule), entry.at.date().isoformat()
        place = entry.conversation or ConversationId("")
        if told:
            self.stats.count_notice()
            self._notice_throttle.record(_room_key(Address.parse(place)), bite.key(day), self._clock.monotonic())
        if _daily_key(bite, day) not in self._reported:
            self._reported.put(_daily_key(bite, day), None)
            self._tell(_daily_key(bite, day), format_limit_report(bite, place))

    def _was_free_since(self, bite: LimitHit, since_s: float) -> bool:
        """Whether it did not bite at all in between. What was to be spent on a day stays spent."""
        return bite.limit == "rate" and self._rates[bite.whose].was_full_since(bite.subject, since_s)

    def _record_turn_costs(self, entry: NewEntry, turn: TurnRecord) -> None:
        if entry.conversation is None:
            return
        at, day = Address.parse(entry.conversation), entry.at.date().isoformat()
        for one in spending_shares(turn):
            self._add_cost(day, turn.agent, at, one.sender, one.cost_nano_usd)
        unpriced = sum(_assumed_nano_usd(one.usage) for one in turn.accounts if one.cost_usd is None)
        for sender in turn.senders:
            self._add_cost(day, turn.agent, at, sender, unpriced // len(turn.senders))

    def _add_cost(self, day: str, agent: str, at: Address, sender: SenderId, nano: int) -> None:
        """This much was spent for somebody there. What owners and admins cost, and what nobody caused, is left out."""
        who = Sender(id=sender, name="", verified=True)
        if not sender or role_of(self._policy, at, who) in ADMIN_ROLES:
            return
        self._costs["agent"].add(day, agent, nano)
        self._costs["room"].add(day, _room_key(at), nano)
        self._costs["sender"].add(day, stable_source(person_key(at.channel, sender)), nano)

    def _today(self) -> str:
        return self._clock.now().date().isoformat()


def _to_nano_usd(usd: float) -> int:
    return round(min(usd, 1e6) * NANO_PER_USD)


def _budgets_usd(most: LimitSettings) -> Mapping[LimitScope, float | None]:
    return {"agent": most.agent_usd, "room": most.room_usd, "sender": most.sender_usd}


def _assumed_nano_usd(usage: Usage) -> int:
    """What requests may have cost whose price nobody knows, in billionths of a dollar."""
    return round((ASSUMED_PRICE.cost_usd(usage) or 0.0) * NANO_PER_USD)


def _room_key(at: Address) -> str:
    """The room that a thread is of."""
    return at.conversation if at.thread is None else Address(channel=at.channel, room=at.room).conversation


def _daily_key(bite: LimitHit, day: str) -> str:
    return f"limit:{bite.limit}:{bite.whose}:{bite.subject}:{day}"


def _build_limit_post(message: Message, bite: LimitHit) -> Post:
    """Always the same for the same message."""
    key = PostKey(hashlib.sha256(f"limited:{dedup_key(message)}".encode()).hexdigest()[:26])
    return Post(key=key, to=message.at, text=format_limit_notice(bite), reply_to=message.id, style="notice")
