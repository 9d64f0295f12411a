"""Rate limits and budgets of senders, rooms and agents: whether a message may start a turn.

A refused message stays in the log as context. A notice is posted in the room, at most one in
`QUIET_S` whatever limits are reached there, and one about a budget only once in its day; and
owners are notified.

Owners and admins are always answered, where they have that role. Their messages take tokens from
the agent's own bucket as far as it holds any, so that others get less while the agent is busy with
them; the buckets of senders and rooms stay as they are. Linked accounts are one person: one bucket,
one sum. All masks of one host are one person too, because a nick is easily changed. People behind
one bridge have buckets and budgets of their own; those of the room bound them in all, for any of
them can take more names. A repeat of a message that is already in the log costs nothing.

Rates count messages, and the turns that answer them: those for one person, and those of an agent
for all people except owners and admins. A turn beyond its rate waits (`gateway.stream.inbox`), and
answers what is written meanwhile, too. A message whose turn would wait longer than
`MAX_TURN_WAIT_S` is refused.

Budgets of a UTC day cover the cost that is caused by people who are neither owners nor admins. A
sender's sum is their share of the cost of turns
(`gateway.store.projections`); the sum of a room or an agent is that of all its senders. What an
agent does of its own has a budget of a day besides (`dmn.daily_cost_usd`).

Money has two steps. Before each request of a turn, its highest possible cost is reserved
(`UsageLimiter.reserve`), in all these budgets at once: turns that run at the same time cannot spend
the same money. The turn's record in the log settles it: the reservation ends, and the costs count.
So the log alone decides what was spent, also after a crash. A request without a known price counts
with an assumed one. What the requests under way cost when a process ends is not known, and not
counted.

Where several processes share the store, costs and notices of the others count as the log tells
them. The rates of an agent hold in each process, which is for the channels that it holds.

All but `UsageLimiter` is pure: times are arguments.
"""

import asyncio
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter

from gateway.access.policy import Routed
from gateway.config.models import RateConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Command,
    ConversationId,
    Message,
    Post,
    PostKey,
    Sender,
    SenderId,
    room_of,
)
from gateway.core.facts import (
    AMBIENT,
    URGENT,
    LimitReached,
    PostQueued,
    Seq,
    TurnId,
    TurnRecord,
    dedup_key,
)
from gateway.core.i18n import N_, _
from gateway.core.identity import (
    ADMIN_ROLES,
    AccessPolicy,
    hide_nick,
    identify,
    person_key,
)
from gateway.core.ratelimit import MAX_REMEMBERED, LruDict, Rate, TokenBuckets
from gateway.store import LogEntry, NewEntry, StoreReader
from gateway.store.effects import Decision, EffectFact, build_effect_entries, queue_post
from gateway.store.spending import (
    NANO_PER_USD,
    budget_cost,
    budget_costs,
    to_nano_usd,
    total_cost_usd,
)

QUIET_S: Final = 600.0
"""Shortest time between two notices in one room."""
LimitKind = Literal["rate", "cost"]
RateScope = Literal["sender", "room", "agent", "sender_turns", "agent_turns"]
LimitScope = Literal["sender", "room", "agent"]
BudgetScope = LimitScope | Literal["autonomous"]
"""autonomous: what an agent does of its own, whoever pays for it besides."""
LIMIT_SCOPES: Final[tuple[LimitScope, ...]] = ("agent", "room", "sender")
"""The widest first."""
_TURN_RATES: Final[Mapping[RateScope, LimitScope]] = {
    "agent_turns": "agent",
    "sender_turns": "sender",
}
"""The rates of turns, and whose they are."""
MAX_TURN_WAIT_S: Final = 30.0
"""Longest time for which a turn waits for its rate: nobody is left longer without a word."""
_NOTICES: Final[dict[tuple[LimitKind, LimitScope], str]] = {
    ("rate", "sender"): N_(
        "You write faster than I can answer. I keep reading, and answer again in a while."
    ),
    ("rate", "room"): N_(
        "There are more messages here than I can answer. I keep reading, and answer again in a "
        "while."
    ),
    ("rate", "agent"): N_(
        "I get more questions than I can answer right now. I keep reading, and answer again in a "
        "while."
    ),
    ("cost", "sender"): N_(
        "I have used up today's budget for answers to you. I answer again from 00:00 UTC."
    ),
    ("cost", "room"): N_(
        "I have used up today's budget for this room. I answer again from 00:00 UTC."
    ),
    ("cost", "agent"): N_("I have used up today's budget. I answer again from 00:00 UTC."),
}


class LimitHit(NamedTuple):
    """A limit that was reached."""

    limit: LimitKind
    scope: LimitScope
    subject: str
    rule: str
    """The setting and its value."""
    is_own: bool = False
    """True: the agent's own budget (`dmn.daily_cost_usd`), of which no sender is told."""

    def key(self, at: datetime) -> str:
        """Key of the limit, distinct from all others. A budget is another limit each UTC day."""
        own = f"{self.limit}:{self.scope}:{self.subject}"
        return own if self.limit == "rate" else f"{own}:{_day(at)}"


def _day(at: datetime) -> str:
    return at.date().isoformat()


def format_limit_notice(hit: LimitHit) -> str:
    """Return the notice for the room."""
    return _(_NOTICES[hit.limit, hit.scope])


NOTICE_RATE: Final = Rate(30, 10.0)
"""Notices on each channel.

Above this rate no notice is posted: else a raid in direct chats would make us flood them.
"""


class Payers(NamedTuple):
    """Whose budgets a turn is paid from."""

    at: Address
    agent: str
    askers: Sequence[Sender] = ()
    """People whom it answers. Owners and admins use nobody's budget; if somebody without such a
    role asks too, that person's budget counts."""
    autonomous: bool = False
    """True: the agent's own daily budget counts."""


class _Budget(NamedTuple):
    scope: BudgetScope
    nano_usd: float
    rule: str


Subjects = dict[BudgetScope, Sequence[Sequence[str]]]
"""Agent, room and people that a message or a turn counts for; each as its names, which are several
for linked accounts. The first name stands for all."""


class _Reservation(NamedTuple):
    """What one turn has spent, and what that is with the cost of its next request."""

    keys: Collection[tuple[BudgetScope, str]]
    spent_nano: int
    total_nano: int


def _list_budgets(settings: Settings) -> list[_Budget]:
    own_usd = settings.dmn.daily_cost_usd
    own_rule = f"dmn.daily_cost_usd: ${own_usd:g} a day"
    budgets = [_Budget("autonomous", own_usd * NANO_PER_USD, own_rule)]
    for scope in LIMIT_SCOPES:
        usd: float | None = getattr(settings.access.budgets, f"{scope}_usd")
        if usd is not None:
            rule = f"access.budgets.{scope}_usd: ${usd:g} a day"
            budgets.append(_Budget(scope, usd * NANO_PER_USD, rule))
    return budgets


class UsageLimiter:
    """Limits of all channels. Runs on the event loop only.

    A message is judged once, by `judge`. A turn's money has two steps: `reserve` before each
    request, and `settle` at its end.
    """

    def __init__(self, live: LiveSettings, clock: Clock, policy: AccessPolicy) -> None:
        self._clock, self._policy = clock, policy
        self.metrics = CollectorRegistry()
        self._limited = Counter(
            "reverie_limited",
            "Messages that were not answered, by the limit that was reached and whose it is.",
            ["limit", "whose"],
            registry=self.metrics,
        )
        self._noticed = Counter(
            "reverie_limit_notices", "Notices that a limit was reached.", registry=self.metrics
        )
        self._rates = {scope: TokenBuckets(Rate(0, 0.0)) for scope in get_args(RateScope)}
        self._budgets: Sequence[_Budget] = ()
        self._agents: Sequence[str] = ()
        self._costs = LruDict[tuple[str, str, str], int](2 * MAX_REMEMBERED)
        """Billionths of a dollar by UTC day, scope and name."""
        self._reserved: dict[TurnId, _Reservation] = {}
        self._loaded = Seq(0)
        """Position up to which `load` has read costs."""
        self._budget_freed = asyncio.Event()
        """Set for those that wait for a budget when one may be free; then replaced."""
        self._notices = TokenBuckets(NOTICE_RATE)
        self._said = LruDict[tuple[str, str], float](2 * MAX_REMEMBERED)
        """Monotonic time of the last notice in each room (``""``), and of each budget there."""
        self._reported = LruDict[str, None]()
        """Limits that are in the log, by name and day."""
        self._taken = LruDict[str, tuple[float, Sequence[tuple[TokenBuckets, str]]]]()
        """Tokens of messages and commands that are not in the log yet, by dedup key: the monotonic
        time, and the buckets with the names."""
        live.follow(self._use)

    def _use(self, settings: Settings) -> None:
        """Take over rates and budgets; taken tokens stay taken, and a budget may be higher now."""
        for scope, buckets in self._rates.items():
            now: RateConfig = getattr(settings.access.rates, scope)
            buckets.set_rate(Rate(now.burst, now.per_minute))
        self._budgets = _list_budgets(settings)
        self._agents = [one.id for one in settings.agents]
        self._budget_freed.set()
        self._budget_freed = asyncio.Event()

    async def load(self, reader: StoreReader) -> None:
        """Read from the log what was spent and announced today. Call it once, before any message is
        accepted.
        """
        self._loaded = await reader.last_position()
        self._costs.clear()
        now = self._clock.now()
        day = _day(now)
        for one in await reader.newest_entries(1_000, kinds=["limited"]):
            if not isinstance(one.fact, LimitReached) or one.conversation is None:
                continue
            hit = _hit_of(one.fact)
            age_s, then = max(0.0, (now - one.at).total_seconds()), _day(one.at)
            if then == day:
                self._reported.put(_daily_key(hit, day), None)
            if age_s < QUIET_S or then == day:
                self._record_notice(
                    Address.parse(one.conversation), hit, one.at, self._clock.monotonic() - age_s
                )
        for agent in self._agents:
            _, usd = await reader.autonomous_usage(agent, day)
            self._count(day, "autonomous", agent, to_nano_usd(usd))
        for share in await reader.spending_sums("share", since=day):
            agent, place, sender, provider = share.key.split("\n", 3)
            nano = budget_cost(share, provider)
            self._add_cost(day, agent, Address.parse(place), SenderId(sender), nano)

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Settle turns with their costs, record notices, and keep the tokens of messages that are
        in the log now.
        """
        for entry in entries:
            if isinstance(entry.fact, TurnRecord):
                if entry.seq > self._loaded:
                    self._add_turn(entry, entry.fact)
                self.settle(entry.fact.turn)
            elif isinstance(entry.fact, LimitReached):
                hit = _hit_of(entry.fact)
                self._reported.put(_daily_key(hit, _day(entry.at)), None)
                if any(
                    isinstance(one.fact, PostQueued) and one.cause == entry.cause for one in entries
                ):
                    at, now_s = (
                        Address.parse(entry.conversation or ConversationId("")),
                        self._clock.monotonic(),
                    )
                    self._notices.use(at.channel, now_s)
                    self._record_notice(at, hit, entry.at, now_s)
            elif isinstance(entry.fact, Message | Command) and entry.key is not None:
                self._taken.pop(entry.key, None)

    def give_back(self, event: Message | Command) -> None:
        """Give back the tokens of an event that the log had already. Call it after it was appended
        in vain.
        """
        if (taken := self._taken.pop(dedup_key(event), None)) is not None:
            at_s, used = taken
            for buckets, subject in used:
                buckets.give_back(subject, at_s, self._clock.monotonic())

    async def judge(self, routed: Routed, decided: Decision) -> Decision | None:
        """Decide whether a message that is to start a turn may: the rates of its sender, of the
        room and of the agent, and whether their budgets are spent. Append what the decision changes
        before the next message of that conversation is judged.
        """
        message, judged = routed.event, decided.judgement
        assert isinstance(message, Message)
        if judged.fate != "due" or judged.urgency < URGENT:
            return None
        assert routed.room is not None
        subjects: Subjects = {
            "agent": [(routed.agent,)],
            "room": [(routed.room,)],
            "sender": [_names(hide_nick(routed.person), routed.linked)],
        }
        hit = self._take(message, judged.role, subjects)
        if hit is None:
            return None
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=hit.rule)
        post, fact = self._tell(message, hit)
        decided = replace(decided, judgement=judged, post=post)
        return decided if fact is None else decided.with_facts([EffectFact(fact)])

    def take_or_explain(self, command: Command, role: str, agent: str) -> str:
        """Take tokens for a command that has that agent's model asked. Return why it may not, for
        people; empty: taken.

        """
        subjects = self._subjects(command.at, agent, [command.sender])
        hit = self._take(command, role, subjects)
        if hit is not None:
            return format_limit_notice(hit)
        if role not in ADMIN_ROLES:
            self.plan_turn(command.at, command.sender)
        return ""

    def plan_turn(
        self, at: Address, sender: Sender, wait_s: float = 0.0, planned_s: float = math.inf
    ) -> float:
        """Return the time for which a turn for that person, who is neither owner nor admin, is to
        wait: at least `wait_s`, and for its rate at most `MAX_TURN_WAIT_S`.

        The turn is counted, unless another one that answers it begins within `planned_s`.
        """
        now_s = self._clock.monotonic()
        whose = {"agent": self._policy.agent_of(at), "sender": self._names_of(at, sender)[0]}
        paced = [(self._rates[rate], whose[scope]) for rate, scope in _TURN_RATES.items()]
        rate_s = max(buckets.wait_s(subject, now_s) for buckets, subject in paced)
        wait_s = max(wait_s, min(MAX_TURN_WAIT_S, rate_s))
        if wait_s < planned_s:
            for buckets, subject in paced:
                buckets.use(subject, now_s)
        return wait_s

    async def reserve(
        self,
        turn: TurnId,
        payers: Payers,
        ceiling_usd: float,
        spent_usd: float = 0.0,
        *,
        waits: bool = True,
    ) -> LimitHit | None:
        """Reserve the highest cost of the turn's next request, until the next call or `settle`.
        Return the exceeded budget; None: reserved.

        `spent_usd`: cost of the turn so far. What other turns have reserved and may not use is
        waited for; `waits` False: it counts as spent.
        """
        at, agent, subjects = payers.at, payers.agent, Subjects()
        people = [
            one for one in payers.askers if identify(self._policy, at, one).role not in ADMIN_ROLES
        ]
        if people:
            subjects = self._subjects(at, agent, people)
        if payers.autonomous:
            subjects["autonomous"] = [(agent,)]
        spent, nano = to_nano_usd(spent_usd), to_nano_usd(ceiling_usd)
        self.settle(turn)
        keys = [(scope, names[0]) for scope, each in subjects.items() for names in each]
        self._reserved[turn] = _Reservation(keys, spent, spent)
        if ceiling_usd <= 0:
            return None
        while self._find_exceeded(subjects, spent + nano, turn) is not None:
            hit = self._find_exceeded(subjects, spent + nano, turn, only_spent=waits)
            if hit is not None:
                return hit
            await self._budget_freed.wait()
        self._reserved[turn] = _Reservation(keys, spent, spent + nano)
        return None

    def spent_today_usd(self, agent: str) -> float:
        """Return the cost of what the agent has done of its own on this UTC day."""
        return self._costs.get((_day(self._clock.now()), "autonomous", agent), 0) / NANO_PER_USD

    def settle(self, turn: TurnId) -> None:
        """End the turn's reservation. The turn's record does so too, and counts its costs."""
        if self._reserved.pop(turn, None) is not None:
            self._budget_freed.set()
            self._budget_freed = asyncio.Event()

    def build_unpaid_entries(
        self, at: Address, message: Message | None, hit: LimitHit
    ) -> list[NewEntry]:
        """Return the entries for a turn that no budget covers: once a day with a notice for the
        last sender.
        """
        post, fact = self._tell(message, hit)
        facts = [] if fact is None else [EffectFact(fact)]
        facts += [] if post is None else [queue_post(post)]
        now, place = self._clock.now(), at.conversation
        return build_effect_entries(facts, [None] * len(facts), at=now, place=place)

    def _subjects(self, at: Address, agent: str, senders: Sequence[Sender]) -> Subjects:
        people = list(dict.fromkeys(self._names_of(at, one) for one in senders))
        return {"agent": [(agent,)], "room": [(room_of(at.conversation),)], "sender": people}

    def _find_exceeded(
        self,
        subjects: Subjects,
        nano: int,
        turn: TurnId | None = None,
        *,
        only_spent: bool = False,
    ) -> LimitHit | None:
        """Return the budget that this additional cost exceeds, with what other turns than that one
        have reserved, or only with what they have spent. `turn` None: they do not count.
        """
        day = _day(self._clock.now())
        others = [] if turn is None else [one for own, one in self._reserved.items() if own != turn]
        for scope, most_nano, rule in self._budgets:
            for names in subjects.get(scope, ()):
                total, key = nano, (scope, names[0])
                for name in names:
                    total += self._costs.get((day, scope, name), 0)
                for one in others:
                    if key in one.keys:
                        total += one.spent_nano if only_spent else one.total_nano
                if total > most_nano:
                    if scope == "autonomous":
                        return LimitHit("cost", "agent", names[0], rule, is_own=True)
                    return LimitHit("cost", scope, names[0], rule)
        return None

    def _take(self, event: Message | Command, role: str, subjects: Subjects) -> LimitHit | None:
        now_s, key = self._clock.monotonic(), dedup_key(event)
        if key in self._taken:  # not appended the last time, or received twice at once
            self.give_back(event)
        scopes: Sequence[LimitScope] = LIMIT_SCOPES
        if role in ADMIN_ROLES:
            scopes = ("agent",)
        elif hit := self._find_exceeded(subjects, 1) or self._find_rate_hit(subjects, now_s):
            return hit
        buckets = [(self._rates[scope], subjects[scope][0][0]) for scope in scopes]
        self._taken.put(key, (now_s, [one for one in buckets if one[0].take(one[1], now_s)]))
        return None

    def _names_of(self, at: Address, sender: Sender) -> Sequence[str]:
        own = hide_nick(person_key(at.channel, sender.id))
        return _names(
            own, self._policy.roster_state().links.get(own, ()) if sender.verified else ()
        )

    def _find_rate_hit(self, subjects: Subjects, now_s: float) -> LimitHit | None:
        """Return the widest limit that is reached: in a raid that is the room's, and not one for
        each sender.
        """
        whose = {scope: subjects[scope][0][0] for scope in LIMIT_SCOPES}
        for scope, subject in whose.items():
            buckets = self._rates[scope]
            if buckets.wait_s(subject, now_s):
                return LimitHit("rate", scope, subject, f"access.rates.{scope}: {buckets.rate}")
        for rate, scope in _TURN_RATES.items():
            buckets, subject = self._rates[rate], whose[scope]
            if buckets.wait_s(subject, now_s) > MAX_TURN_WAIT_S:
                return LimitHit("rate", scope, subject, f"access.rates.{rate}: {buckets.rate}")
        return None

    def _tell(
        self, message: Message | None, hit: LimitHit
    ) -> tuple[Post | None, LimitReached | None]:
        """Count a limit that was reached. Return the notice that answers this message and the fact
        for the log; None: none is due.
        """
        self._limited.labels(hit.limit, hit.scope).inc()
        post = None if message is None else self._build_notice(message, hit)
        if post is None and _daily_key(hit, _day(self._clock.now())) in self._reported:
            return None, None
        name = message.sender.name if message and hit.scope == "sender" else ""
        fact = LimitReached(
            limit=hit.limit, whose=hit.scope, subject=hit.subject, rule=hit.rule, name=name
        )
        return post, fact

    def _build_notice(self, message: Message, hit: LimitHit) -> Post | None:
        """Return the notice that answers this message, the same post each time. None: none is
        due. No notice goes to bots: they might answer it.
        """
        now_s, room = self._clock.monotonic(), room_of(message.at.conversation)
        if message.sender.is_bot or self._notices.wait_s(message.at.channel, now_s):
            return None
        if (
            now_s - self._said.get((room, ""), -QUIET_S) < QUIET_S
            or (room, hit.key(self._clock.now())) in self._said
        ):
            return None
        self._noticed.inc()
        key = PostKey(hashlib.sha256(f"limited:{dedup_key(message)}".encode()).hexdigest()[:26])
        return Post(
            key=key,
            to=message.at,
            text=format_limit_notice(hit),
            reply_to=message.id,
            style="notice",
        )

    def _record_notice(self, at: Address, hit: LimitHit, then: datetime, now_s: float) -> None:
        room = room_of(at.conversation)
        self._said.put((room, ""), now_s)
        if hit.limit != "rate":
            self._said.put((room, hit.key(then)), now_s)

    def _add_turn(self, entry: LogEntry, turn: TurnRecord) -> None:
        if entry.conversation is None:
            return
        day, at = _day(entry.at), Address.parse(entry.conversation)
        if turn.autonomous and turn.within is None:
            nano = to_nano_usd(total_cost_usd(turn.accounts))
            self._count(day, "autonomous", turn.agent, nano)
        for sender, nano in budget_costs(turn):
            self._add_cost(day, turn.agent, at, sender, nano)

    def _add_cost(self, day: str, agent: str, at: Address, sender: SenderId, nano: int) -> None:
        """Add a cost to the sums of agent, room and sender.

        Costs of owners and admins, and costs that nobody caused, are left out.
        """
        who = Sender(id=sender, name="", verified=True)
        if not sender or identify(self._policy, at, who).role in ADMIN_ROLES:
            return
        self._count(day, "agent", agent, nano)
        self._count(day, "room", room_of(at.conversation), nano)
        self._count(day, "sender", hide_nick(person_key(at.channel, sender)), nano)

    def _count(self, day: str, scope: BudgetScope, name: str, nano: int) -> None:
        self._costs.put((day, scope, name), self._costs.get((day, scope, name), 0) + nano)


def _names(own: str, linked: Collection[str]) -> Sequence[str]:
    """Return all accounts of a person, in an order that is the same for each of them."""
    return tuple(sorted({own, *linked})) if linked else (own,)


def _hit_of(fact: LimitReached) -> LimitHit:
    kind: LimitKind = "rate" if fact.limit == "rate" else "cost"
    return LimitHit(kind, fact.whose, fact.subject, fact.rule)


def _daily_key(hit: LimitHit, day: str) -> str:
    return f"limit:{hit.limit}:{hit.scope}:{hit.subject}:{day}"
