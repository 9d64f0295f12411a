"""Invariants of the limits: never more answers than the buckets give, never more notices than are due.

Judged by a reference that does not share the implementation: it counts over every window, and refills its own buckets
in exact fractions.
"""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.access.limits import QUIET_S, LimitDecision, LimitHit, UsageLimiter
from gateway.core.clock import ManualClock
from gateway.core.events import Message
from gateway.core.facts import LimitReached, Seq
from gateway.core.ratelimit import Rate
from gateway.store import AppendResult, NewEntry
from gateway.store.store import list_written
from tests.gateway.access.limits_kit import AGENT, NOON, entries, judged, most, policy, said
from tests.kits.examples import examples
from tests.kits.store import account, spent

PEOPLE = ("ann", "bob", "root", "bot")
ROOMS = ("#a", "#b")
rates = st.builds(Rate, st.integers(0, 4), st.sampled_from([0.0, 1.0, 6.0, 30.0, 7.5]))
dollars = st.none() | st.sampled_from([0.0, 0.5, 2.0])
steps_s = st.sampled_from([0.25, 1.0, 7.0, 30.0, 120.0, 600.0, 5_000.0])


class Reference:
    """Reference bucket: times of taken tokens, and whether they could be taken."""

    def __init__(self, rate: Rate) -> None:
        self.whole = Fraction(max(1, rate.burst))
        self.pace = Fraction(rate.per_minute) / 60
        self.taken: list[Fraction] = []

    def sound(self) -> bool:
        """No window has more tokens than burst and rate give."""
        newest = len(self.taken) - 1
        return all(
            newest - first + 1 <= self.whole + self.pace * (self.taken[newest] - start)
            for first, start in enumerate(self.taken)
        )

    def full_between(self, after: Fraction, until: Fraction) -> bool:
        """Return whether the bucket was full at some moment in between."""
        level, at_s = self.whole, Fraction(0)
        for then in (*self.taken, until):
            upto = min(then, until)
            if level + self.pace * (upto - at_s) >= self.whole:
                filled = at_s if level == self.whole else at_s + (self.whole - level) / (self.pace or 1)
                if max(filled, after) < upto or after < filled <= upto:
                    return True
            if then >= until:
                break
            level, at_s = min(self.whole, level + self.pace * (then - at_s)) - 1, then
        return False


class Whole(RuleBasedStateMachine):
    """State machine in which everybody may do anything at any time."""

    @initialize(sender=rates, room=rates, agent=rates, sender_usd=dollars, room_usd=dollars)
    def begins(self, sender: Rate, room: Rate, agent: Rate, sender_usd: float | None, room_usd: float | None) -> None:
        self.rates = {"sender": sender, "room": room, "agent": agent}
        self.usd = (sender_usd, room_usd)
        self.clock = ManualClock(NOON)
        self.limits = UsageLimiter(
            most(sender, room, agent, sender_usd=sender_usd, room_usd=room_usd), self.clock, policy()
        )
        self.known: dict[str, Seq] = {}
        self.seen: list[Message] = []
        self.buckets: Mapping[str, defaultdict[str, Reference]] = {
            "sender": defaultdict(lambda: Reference(sender)),
            "room": defaultdict(lambda: Reference(room)),
            "agent": defaultdict(lambda: Reference(agent)),
        }
        self.notices: list[tuple[str, LimitReached, Fraction, str]] = []
        self.spent: defaultdict[tuple[str, str], float] = defaultdict(float)

    @property
    def now_s(self) -> Fraction:
        return Fraction(self.clock.monotonic())

    @property
    def day(self) -> str:
        return self.clock.now().date().isoformat()

    @rule(step_s=steps_s)
    def waits(self, step_s: float) -> None:
        self.clock.advance(step_s)

    @rule(who=st.sampled_from(PEOPLE), room=st.sampled_from(ROOMS), times=st.integers(1, 6))
    def speaks(self, who: str, room: str, times: int) -> None:
        for _ in range(times):
            self.seen.append(said(who, room, bot=who == "bot"))
            self.comes(self.seen[-1], written=True)

    @rule(who=st.sampled_from(PEOPLE), room=st.sampled_from(ROOMS))
    def speaks_in_vain(self, who: str, room: str) -> None:
        """Receive a message that cannot be appended; the platform may repeat it."""
        self.seen.append(said(who, room, bot=who == "bot"))
        self.comes(self.seen[-1], written=False)

    @rule(which=st.integers(0, 1_000))
    def is_told_again(self, which: int) -> None:
        if self.seen:
            self.comes(self.seen[which % len(self.seen)], written=True)

    @rule(who=st.sampled_from(PEOPLE), room=st.sampled_from(ROOMS), usd=st.sampled_from([0.1, 0.5]))
    def is_paid_for(self, who: str, room: str, usd: float) -> None:
        at = said(who, room).at.conversation
        turn = spent(at, account(cost=usd), senders=[who], at=self.clock.now())
        self.limits.on_appended(list_written([turn], [AppendResult(Seq(1), is_new=True)]))
        for whose in (f"irc.test:{who}", at) if who != "root" else ():  # what owners cost is in no budget
            self.spent[whose, self.day] += usd

    def comes(self, message: Message, *, written: bool) -> None:
        """Receive a message, and append it."""
        role = "owner" if message.sender.id == "root" else "guest"
        verdict = self.limits.check(message, judged(message, role), AGENT)
        made = entries(message, verdict, self.clock)
        first = made[0]
        assert first.key is not None
        fresh = first.key not in self.known
        if written:
            seq = self.known.setdefault(first.key, Seq(len(self.known) + 1))
            self.limits.on_appended(list_written(made, [AppendResult(seq, is_new=fresh) for _ in made]))
            if not fresh:
                self.limits.give_back(message)
        if verdict.change is not None:
            verdict.change.settle(AppendResult(self.known[first.key], is_new=fresh) if written else None)
        if written and fresh:
            self.counts(message, role, verdict, made)

    def counts(self, message: Message, role: str, verdict: LimitDecision, made: list[NewEntry]) -> None:
        person, room = f"irc.test:{message.sender.id}", message.at.conversation
        if verdict.judged.fate == "due" and role != "owner":
            for whose, one in (("sender", person), ("room", room), ("agent", AGENT)):
                self.buckets[whose][one].taken.append(self.now_s)
                rate: Rate = self.rates[whose]
                assert not rate.is_limited or self.buckets[whose][one].sound(), (whose, one)
            for usd, one in zip(self.usd, (person, room), strict=True):
                assert usd is None or self.spent[one, self.day] < usd + 1e-9
        assert role != "owner" or verdict.judged.fate == "due"
        if verdict.post is not None:
            assert not message.sender.is_bot
            (limited,) = [entry.fact for entry in made if isinstance(entry.fact, LimitReached)]
            self.is_due(room, limited)
            self.notices.append((room, limited, self.now_s, self.day))

    def is_due(self, room: str, limited: LimitReached) -> None:
        """True ten minutes after the last notice there; for the same limit only after it was free."""
        name = LimitHit(limited.limit, limited.whose, limited.subject, "").key(self.day)
        for where, before, then_s, day in self.notices:
            if where == room:
                assert self.now_s - then_s >= Fraction(QUIET_S)
            if where == room and name == LimitHit(before.limit, before.whose, before.subject, "").key(day):
                assert limited.limit == "rate"
                # What owners take is not counted here, and makes the agent's bucket less full than the reference's.
                assert self.buckets[limited.whose][limited.subject].full_between(then_s, self.now_s)


Whole.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
test_whatever_happens = Whole.TestCase
