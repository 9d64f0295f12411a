"""Rate limits and budgets of senders, rooms and agents: whether a message may start a turn.

A refused message stays in the log as context. A notice is posted in the room, at most one in
`QUIET_S` whatever limits are reached there, and one about a budget only once in its day or hour;
and owners are notified.

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

Budgets, of a day and of an hour of the clock, cover the cost that is caused by people who are
neither owners nor admins. A sender's sum is their share of the cost of turns
(`gateway.store.projections`); the sum of a room or an agent is that of all its senders. Before each
request of a turn, its highest possible cost is reserved (`UsageLimiter.reserve`) until the turn has
ended and its cost is known: turns that run at the same time cannot spend the same money. A request
without a known price counts with an assumed one. What the requests under way cost when a process
ends is not known, and not counted.

Where several processes share the store, costs and notices of the others count as the log tells
them. The rates of an agent hold in each process, which is for the channels that it holds.

All but `UsageLimiter` is pure: times are arguments.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter

from gateway.access.approval_texts import inline_code
from gateway.config.models import RateConfig
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
)
from gateway.core.facts import (
    AMBIENT,
    URGENT,
    Judgement,
    LimitReached,
    PostQueued,
    Seq,
    TurnRecord,
    dedup_key,
)
from gateway.core.i18n import N_, _
from gateway.core.identity import (
    ADMIN_ROLES,
    AccessPolicy,
    is_bridged,
    person_key,
    role_of,
    stable_source,
)
from gateway.core.ratelimit import MAX_REMEMBERED, LruDict, Rate, TokenBuckets
from gateway.store import LogEntry, NewEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.store.spending import NANO_PER_USD, WindowCosts, budget_cost, budget_costs, to_nano_usd

QUIET_S: Final = 600.0
"""Shortest time between two notices in one room."""
LimitKind = Literal["rate", "cost", "hour_cost"]
BudgetKind = Literal["cost", "hour_cost"]
RateScope = Literal["sender", "room", "agent", "sender_turns", "agent_turns"]
LimitScope = Literal["sender", "room", "agent"]
LIMIT_SCOPES: Final[tuple[LimitScope, ...]] = ("agent", "room", "sender")
"""The widest first."""
MAX_TURN_WAIT_S: Final = 30.0
"""Longest time for which a turn waits for its rate: nobody is left longer without a word."""
BUDGET_KINDS: Final[tuple[BudgetKind, ...]] = ("cost", "hour_cost")
"""Of a day, and of an hour."""
SUBJECT_CHARS: Final = 160
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
    ("hour_cost", "sender"): N_(
        "I have used up this hour's budget for answers to you. I answer again from the next full "
        "hour."
    ),
    ("hour_cost", "room"): N_(
        "I have used up this hour's budget for this room. I answer again from the next full hour."
    ),
    ("hour_cost", "agent"): N_(
        "I have used up this hour's budget. I answer again from the next full hour."
    ),
}
_REPORTS: Final[dict[LimitScope, str]] = {
    "sender": N_(
        "{subject} has reached a limit in {room} ({rule}). I read further messages but do not "
        "answer them. I tell you "
        "this once a day."
    ),
    "room": N_(
        "The room {subject} has reached a limit ({rule}). I read further messages there but do not "
        "answer them. I tell you this once a day."
    ),
    "agent": N_(
        "The agent {subject} has reached a limit in {room} ({rule}). It reads further messages but "
        "does not answer them. I tell you this once a day."
    ),
}


class LimitHit(NamedTuple):
    """A limit that was reached."""

    limit: LimitKind
    scope: LimitScope
    subject: str
    """Person, room or agent."""
    rule: str
    """The setting and its value."""

    def key(self, at: datetime) -> str:
        """Key of the limit, distinct from all others. A budget is another limit each day or hour
        (UTC).
        """
        own = f"{self.limit}:{self.scope}:{self.subject}"
        return own if self.limit == "rate" else f"{own}:{_window(self.limit, at)}"


def _turn_rates(agent: str, person: str) -> list[tuple[RateScope, str]]:
    return [("agent_turns", agent), ("sender_turns", person)]


def _window(kind: BudgetKind, at: datetime) -> str:
    """Return the day (YYYY-MM-DD) or the hour (YYYY-MM-DDTHH) of a budget."""
    return at.date().isoformat() if kind == "cost" else at.strftime("%Y-%m-%dT%H")


def format_limit_notice(hit: LimitHit) -> str:
    """Return the notice for the room."""
    return _(_NOTICES[hit.limit, hit.scope])


def limit_report_key(fact: LimitReached, at: datetime) -> str:
    """Return the key of the notice for owners: the same for one limit on one day."""
    return _daily_key(
        LimitHit(fact.limit, fact.whose, fact.subject, fact.rule), at.date().isoformat()
    )


def format_limit_report(
    fact: LimitReached, place: ConversationId, _to: Address | None = None
) -> str:
    """Return the notice for owners, in Markdown, wherever it is posted.

    Names of people and places are untrusted, so they are shown as code.
    """
    subject, where = inline_code(fact.subject, SUBJECT_CHARS), inline_code(place, SUBJECT_CHARS)
    return _(_REPORTS[fact.whose]).format(subject=subject, rule=fact.rule, room=where)


LIMITS_LOOK_BACK: Final = 1_000
"""Newest `limited` entries read at a start, so that notices of today are not repeated."""
TURNS_PAGE: Final = 50
"""Turns read at once at a start, until one is older than this hour."""
NOTICE_RATE: Final = Rate(30, 10.0)
"""Notices on each channel.

Above this rate no notice is posted: else a raid in direct chats would make us flood them.
"""


class LimitDecision(NamedTuple):
    """Result of the check of one message."""

    judged: Judgement
    post: Post | None = None
    """Notice to post there. None: nothing."""
    change: CommandEffect | None = None
    """Facts to append together with the message, settled as those of a command. None: nothing."""


class _TakenTokens(NamedTuple):
    at_s: float
    buckets: Sequence[tuple[TokenBuckets, str]]


class UsageLimiter:
    """Limits of all channels. Runs on the event loop only."""

    def __init__(self, live: LiveSettings, clock: Clock, policy: AccessPolicy) -> None:
        self._live, self._clock, self._policy = live, clock, policy
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
        self._buckets = {scope: TokenBuckets(self._rate(scope)) for scope in get_args(RateScope)}
        self._costs: dict[tuple[LimitScope, BudgetKind], WindowCosts] = {
            (scope, kind): WindowCosts() for scope in LIMIT_SCOPES for kind in BUDGET_KINDS
        }
        self._reserved: dict[ConversationId, dict[tuple[LimitScope, str], int]] = {}
        """Billionths of a dollar reserved for the requests of the turn that runs in each
        conversation."""
        self._loaded = Seq(0)
        """Position up to which `load` has read costs."""
        self._budget_freed = asyncio.Event()
        """Set when a reservation ends; then replaced by a new event."""
        self._notices = TokenBuckets(NOTICE_RATE)
        self._said = LruDict[tuple[str, str], float](2 * MAX_REMEMBERED)
        """Monotonic time of the last notice in each room (``""``), and of each budget there."""
        self._reported = LruDict[str, None]()
        """Limits that are in the log, by name and day."""
        self._taken = LruDict[str, _TakenTokens]()
        """Tokens of messages and commands that are not in the log yet, by dedup key."""
        live.on_change(lambda _: self._notify_freed)  # a budget may be higher now

    def _rate(self, scope: RateScope) -> Rate:
        now: RateConfig = getattr(self._live.settings.access.rates, scope)
        return Rate(now.burst, now.per_minute)

    def _rated(self, scope: RateScope) -> TokenBuckets:
        """Return the buckets at the rate of the settings in force; taken tokens stay taken."""
        buckets, rate = self._buckets[scope], self._rate(scope)
        if buckets.rate != rate:
            buckets.set_rate(rate)
        return buckets

    def _budget(self, scope: LimitScope, kind: BudgetKind) -> tuple[str, float | None]:
        """Return the setting of a budget, and its value."""
        name = f"{scope}_usd" if kind == "cost" else f"{scope}_hour_usd"
        usd: float | None = getattr(self._live.settings.access.budgets, name)
        return f"access.budgets.{name}", usd

    async def load(self, reader: StoreReader) -> None:
        """Read from the log what was spent and announced today. Call it once, before any message is
        accepted.
        """
        self._loaded = await reader.last_position()
        self._costs = {one: WindowCosts() for one in self._costs}
        now, day = self._clock.now(), self._today()
        for one in await reader.newest_entries(LIMITS_LOOK_BACK, kinds=["limited"]):
            fact = one.fact
            if not isinstance(fact, LimitReached) or one.conversation is None:
                continue
            hit = LimitHit(fact.limit, fact.whose, fact.subject, fact.rule)
            age_s, then = max(0.0, (now - one.at).total_seconds()), one.at.date().isoformat()
            if then == day:
                self._reported.put(_daily_key(hit, day), None)
            if age_s < QUIET_S or then == day:
                self._record_notice(
                    Address.parse(one.conversation), hit, one.at, self._clock.monotonic() - age_s
                )
        await self._load_costs(reader, now, day)

    async def _load_costs(self, reader: StoreReader, now: datetime, day: str) -> None:
        for share in await reader.spending_sums("share", since=day):
            agent, place, sender, provider = share.key.split("\n", 3)
            self._add_cost(
                "cost",
                now,
                agent,
                Address.parse(place),
                SenderId(sender),
                budget_cost(share, provider),
            )
        hour, before = _window("hour_cost", now), None
        while turns := await reader.newest_entries(TURNS_PAGE, kinds=["turn_ended"], before=before):
            for entry in turns:
                if _window("hour_cost", entry.at) == hour and isinstance(entry.fact, TurnRecord):
                    self._record_turn_costs(entry, entry.fact, ["hour_cost"])
            if _window("hour_cost", turns[0].at) < hour:
                break
            before = turns[0].seq

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Add the costs of turns, record notices, and keep the tokens of messages that are in the
        log now.
        """
        for entry in entries:
            if isinstance(entry.fact, TurnRecord):
                if entry.seq > self._loaded:
                    self._record_turn_costs(entry, entry.fact, BUDGET_KINDS)
            elif isinstance(entry.fact, LimitReached):
                hit = LimitHit(
                    entry.fact.limit, entry.fact.whose, entry.fact.subject, entry.fact.rule
                )
                self._reported.put(_daily_key(hit, entry.at.date().isoformat()), None)
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
                self._settle_tokens(entry.key, back=False)

    def give_back(self, event: Message | Command) -> None:
        """Give back the tokens of an event that the log had already. Call it after it was appended
        in vain.
        """
        self._settle_tokens(dedup_key(event), back=True)

    def check(self, message: Message, judged: Judgement, agent: str) -> LimitDecision:
        """Decide whether this message may start a turn of that agent. A message that would not
        start one passes.

        `judged`: the judgement of access and attention. Append what the decision changes before the
        next message of that conversation is checked.
        """
        key = dedup_key(message)
        if judged.fate != "due" or judged.urgency < URGENT:
            return LimitDecision(judged)
        self._settle_tokens(key, back=True)  # not appended the last time, or received twice at once
        taken = self._take(message.at, message.sender, judged.role, agent)
        if isinstance(taken, LimitHit):
            return self._refuse(message, judged, taken)
        self._taken.put(key, taken)
        return LimitDecision(judged)

    def take_or_explain(self, command: Command, role: str, agent: str) -> str:
        """Take tokens for a command that has that agent's model asked. Return why it may not, for
        people; empty: taken.

        """
        key = dedup_key(command)
        self._settle_tokens(key, back=True)
        taken = self._take(command.at, command.sender, role, agent)
        if isinstance(taken, LimitHit):
            return format_limit_notice(taken)
        self._taken.put(key, taken)
        self.count_turn(command.at, command.sender)
        return ""

    def turn_wait_s(self, at: Address, sender: Sender) -> float:
        """Return the time for which a turn for that person is to wait, at most
        `MAX_TURN_WAIT_S`.
        """
        now_s, paced = self._clock.monotonic(), self._find_paced(at, sender)
        return min(
            MAX_TURN_WAIT_S,
            max((self._rated(turns).wait_s(whose, now_s) for turns, whose in paced), default=0),
        )

    def count_turn(self, at: Address, sender: Sender) -> None:
        """Count a turn that begins for that person, now or after its wait."""
        for turns, whose in self._find_paced(at, sender):
            self._rated(turns).use(whose, self._clock.monotonic())

    def _find_paced(self, at: Address, sender: Sender) -> list[tuple[RateScope, str]]:
        """Return the rates of turns that hold for that person there. Empty: none do."""
        if role_of(self._policy, at, sender) in ADMIN_ROLES:
            return []
        return _turn_rates(self._policy.agent_of(at), self._linked_subjects(at, sender)[0])

    def reserve(
        self,
        at: Address,
        agent: str,
        askers: Sequence[Sender],
        cost_usd: float,
        spent_usd: float = 0.0,
    ) -> LimitHit | None:
        """Reserve the highest cost of the turn's next request, until `release`. Return the exceeded
        limit; None: none.

        `spent_usd`: cost of the turn so far. Owners and admins use nobody's budget; if somebody
        without such a role asks too, that person's budget counts.
        """
        budgets = self._find_payers(at, agent, askers)
        nano = to_nano_usd(cost_usd) + to_nano_usd(spent_usd)
        if cost_usd <= 0:
            return None
        for scope, subjects in budgets:
            aside = self._reserved_elsewhere(scope, subjects, at)
            if (kind := self._find_exceeded(scope, subjects, nano + aside)) is not None:
                return self._build_budget_hit(scope, subjects, kind)
        self._set_reserved(at, budgets, nano)
        return None

    async def wait_for_budget(
        self,
        at: Address,
        agent: str,
        askers: Sequence[Sender],
        cost_usd: float,
        spent_usd: float = 0.0,
    ) -> None:
        """Return once `reserve` does not depend on the reservations of other turns, which may not
        be used up.
        """
        budgets = self._find_payers(at, agent, askers)
        nano = to_nano_usd(cost_usd) + to_nano_usd(spent_usd)
        self._set_reserved(at, budgets, to_nano_usd(spent_usd))
        while cost_usd > 0 and self._waits_for_others(at, budgets, nano):
            await self._budget_freed.wait()

    def _waits_for_others(
        self, at: Address, budgets: Sequence[tuple[LimitScope, Sequence[str]]], nano: int
    ) -> bool:
        if any(self._find_exceeded(scope, subjects, nano) for scope, subjects in budgets):
            return False  # whatever the others release
        return any(
            self._find_exceeded(
                scope, subjects, nano + self._reserved_elsewhere(scope, subjects, at)
            )
            for scope, subjects in budgets
        )

    def release(self, conversation: ConversationId) -> None:
        """End the reservation of the turn there: it has ended, and its cost is counted."""
        if self._reserved.pop(conversation, None):
            self._notify_freed()

    def _set_reserved(
        self, at: Address, budgets: Sequence[tuple[LimitScope, Sequence[str]]], nano: int
    ) -> None:
        before = self._reserved.get(at.conversation, {})
        self._reserved[at.conversation] = {
            (scope, subjects[0]): nano for scope, subjects in budgets
        }
        if not budgets:
            del self._reserved[at.conversation]
        if before:
            self._notify_freed()

    def _notify_freed(self) -> None:
        """Wake those that wait for a budget."""
        freed, self._budget_freed = self._budget_freed, asyncio.Event()
        freed.set()

    def _reserved_elsewhere(self, scope: LimitScope, subjects: Sequence[str], at: Address) -> int:
        """Return the sum of the reservations of turns in other conversations."""
        return sum(
            aside.get((scope, subjects[0]), 0)
            for place, aside in self._reserved.items()
            if place != at.conversation
        )

    def _find_payers(
        self, at: Address, agent: str, askers: Sequence[Sender]
    ) -> list[tuple[LimitScope, Sequence[str]]]:
        """Return the budgets with a limit that a turn is paid from. Empty: none."""
        payers = [one for one in askers if role_of(self._policy, at, one) not in ADMIN_ROLES]
        budgets = self._budget_subjects(at, agent, payers) if payers else []
        return [
            one
            for one in budgets
            if any(self._budget(one[0], kind)[1] is not None for kind in BUDGET_KINDS)
        ]

    def build_unpaid_entries(
        self, at: Address, message: Message | None, hit: LimitHit
    ) -> list[NewEntry]:
        """Return the entries for a turn that no budget covers: once a day with a notice for the
        last sender.
        """
        self._limited.labels(hit.limit, hit.scope).inc()
        now = self._clock.now()
        post = None if message is None else self._build_notice(message, hit)
        if post is None and _daily_key(hit, self._today()) in self._reported:
            return []
        fact = LimitReached(limit=hit.limit, whose=hit.scope, subject=hit.subject, rule=hit.rule)
        entries = [NewEntry(fact=fact, at=now, conversation=at.conversation)]
        if post is not None:
            key = f"post:{post.key}"
            entries.append(
                NewEntry(fact=PostQueued(post=post), at=now, conversation=at.conversation, key=key)
            )
        return entries

    def _budget_subjects(
        self, at: Address, agent: str, senders: Sequence[Sender]
    ) -> list[tuple[LimitScope, Sequence[str]]]:
        people = dict.fromkeys(tuple(self._linked_subjects(at, one)) for one in senders)
        return [
            ("agent", (agent,)),
            ("room", (_room_key(at),)),
            *(("sender", same) for same in people),
        ]

    def _find_exceeded(
        self, scope: LimitScope, subjects: Sequence[str], nano: int
    ) -> BudgetKind | None:
        """Return the budget that this additional cost exceeds, that of the day first."""
        for kind in BUDGET_KINDS:
            _, usd = self._budget(scope, kind)
            if usd is None:
                continue
            spent = self._costs[scope, kind].total(_window(kind, self._clock.now()), subjects)
            if spent + nano > usd * NANO_PER_USD:
                return kind
        return None

    def _build_budget_hit(
        self, scope: LimitScope, subjects: Sequence[str], kind: BudgetKind
    ) -> LimitHit:
        name, usd = self._budget(scope, kind)
        return LimitHit(
            kind, scope, subjects[0], f"{name}: ${usd:g} {'a day' if kind == 'cost' else 'an hour'}"
        )

    def _take(
        self, at: Address, sender: Sender, role: str, agent: str
    ) -> "_TakenTokens | LimitHit":
        """Take the tokens for a message that is to be answered, or return the limit that was
        reached.
        """
        now_s, room, same = (
            self._clock.monotonic(),
            _room_key(at),
            self._linked_subjects(at, sender),
        )
        subjects: dict[LimitScope, str] = {"agent": agent, "room": room, "sender": same[0]}
        if role in ADMIN_ROLES:
            subjects = {"agent": agent}
        elif hit := self._find_budget_hit(at, sender, agent) or self._find_rate_hit(
            subjects, now_s
        ):
            return hit
        return _TakenTokens(
            now_s,
            [
                (self._buckets[scope], subject)
                for scope, subject in subjects.items()
                if self._rated(scope).take(subject, now_s)
            ],
        )

    def _settle_tokens(self, key: str, *, back: bool) -> None:
        """Forget the tokens of that message, or give them back."""
        taken = self._taken.pop(key, None)
        if taken is not None and back:
            for buckets, subject in taken.buckets:
                buckets.give_back(subject, taken.at_s, self._clock.monotonic())

    def _linked_subjects(self, at: Address, sender: Sender) -> Sequence[str]:
        """Return all accounts of this sender, in an order that is the same for each of them."""
        own = _own_key(at, sender.id)
        linked = self._policy.roster_state().links.get(own, ()) if sender.verified else ()
        return sorted({own, *linked}) if linked else (own,)

    def _find_budget_hit(self, at: Address, sender: Sender, agent: str) -> LimitHit | None:
        """Return the budget with nothing left for one more request, however cheap."""
        for scope, subjects in self._budget_subjects(at, agent, [sender]):
            if (kind := self._find_exceeded(scope, subjects, 1)) is not None:
                return self._build_budget_hit(scope, subjects, kind)
        return None

    def _find_rate_hit(self, subjects: Mapping[LimitScope, str], now_s: float) -> LimitHit | None:
        """Return the widest limit that is reached: in a raid that is the room's, and not one for
        each sender.
        """
        for scope, subject in subjects.items():
            if not self._rated(scope).has_token(subject, now_s):
                return LimitHit(
                    "rate", scope, subject, f"access.rates.{scope}: {self._rate(scope)}"
                )
        for turns, subject in _turn_rates(subjects["agent"], subjects["sender"]):
            if self._rated(turns).wait_s(subject, now_s) > MAX_TURN_WAIT_S:
                whose: LimitScope = "agent" if turns == "agent_turns" else "sender"
                return LimitHit(
                    "rate", whose, subject, f"access.rates.{turns}: {self._rate(turns)}"
                )
        return None

    def _refuse(self, message: Message, judged: Judgement, hit: LimitHit) -> LimitDecision:
        """Turn the message into context. No notice goes to bots: they might answer it."""
        self._limited.labels(hit.limit, hit.scope).inc()
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=hit.rule)
        post = self._build_notice(message, hit)
        if post is None and _daily_key(hit, self._today()) in self._reported:
            return LimitDecision(judged)
        fact = LimitReached(limit=hit.limit, whose=hit.scope, subject=hit.subject, rule=hit.rule)
        return LimitDecision(judged, post, CommandEffect(answer="", facts=(EffectFact(fact),)))

    def _build_notice(self, message: Message, hit: LimitHit) -> Post | None:
        """Return the notice that answers this message, the same post each time. None: none is
        due.
        """
        now_s, room = self._clock.monotonic(), _room_key(message.at)
        if message.sender.is_bot or not self._notices.has_token(message.at.channel, now_s):
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
        room = _room_key(at)
        self._said.put((room, ""), now_s)
        if hit.limit != "rate":
            self._said.put((room, hit.key(then)), now_s)

    def _record_turn_costs(
        self, entry: LogEntry, turn: TurnRecord, kinds: Sequence[BudgetKind]
    ) -> None:
        if entry.conversation is None:
            return
        for sender, nano in budget_costs(turn):
            for kind in kinds:
                self._add_cost(
                    kind, entry.at, turn.agent, Address.parse(entry.conversation), sender, nano
                )

    def _add_cost(  # noqa: PLR0917 - the columns of the sum, in their order
        self, kind: BudgetKind, then: datetime, agent: str, at: Address, sender: SenderId, nano: int
    ) -> None:
        """Add a cost of that time to the sums of agent, room and sender.

        Costs of owners and admins, and costs that nobody caused, are left out.
        """
        who = Sender(id=sender, name="", verified=True)
        if not sender or role_of(self._policy, at, who) in ADMIN_ROLES:
            return
        window = _window(kind, then)
        self._costs["agent", kind].add(window, agent, nano)
        self._costs["room", kind].add(window, _room_key(at), nano)
        self._costs["sender", kind].add(window, _own_key(at, sender), nano)

    def _today(self) -> str:
        return self._clock.now().date().isoformat()


def _own_key(at: Address, sender: SenderId) -> str:
    key = person_key(at.channel, sender)
    return key if is_bridged(key) else stable_source(key)


def _room_key(at: Address) -> str:
    """Return the room, or for a thread its room."""
    return (
        at.conversation
        if at.thread is None
        else Address(channel=at.channel, room=at.room).conversation
    )


def _daily_key(hit: LimitHit, day: str) -> str:
    return f"limit:{hit.limit}:{hit.scope}:{hit.subject}:{day}"
