"""Seeing and steering the agents' Default Mode Networks: what an order says of them, and what it tells them. Pure.

The running gateway, the command line beside a stopped one, and whatever else takes orders share it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from agent import dmn, signals
from agent.signals import Directive, Mode, Policy, State
from gateway.ops.report import span
from gateway.orders import Answer, DmnOrder, MindSeen, What, Wish
from gateway.records import Directed, DmnSaved
from gateway.spoken import moment

QUIET: Final = timedelta(hours=1)
"""So long, if nobody says how long."""
ASKS: Final = frozenset[What]({"status", "debug"})
"""What only asks, and changes nothing."""
_ORDERS: Final[dict[What, signals.Order]] = {
    "pause": "pause",
    "wake": "wake",
    "sleep": "store",
    "quiet": "quiet",
    "rest": "rest",
    "off": "off",
}
_CENT: Final = 0.01


class Mind(Protocol):
    """One agent's network: a running `gateway.loop.Loop`, or a `Saved` one."""

    @property
    def agent(self) -> str:
        """Its id."""

    @property
    def state(self) -> State:
        """As it is now."""

    @property
    def policy(self) -> Policy:
        """How the operator wants it."""

    @property
    def next_tick_s(self) -> float | None:
        """Until its timer comes. None: none is armed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One that does not run."""

    agent: str
    state: State
    policy: Policy
    next_tick_s: float | None = None


class Told(NamedTuple):
    """What one agent is to be told, and the record of it. Whoever carries it out writes that down first."""

    agent: str
    directive: Directive
    directed: Directed


def answer(order: DmnOrder, minds: Sequence[Mind], now: datetime) -> tuple[Answer, list[Told]]:
    """What to answer, and what is to be done for that to be true."""
    meant = [mind for mind in minds if order.agent in (None, mind.agent)]
    if not meant:
        there = ", ".join(mind.agent for mind in minds)
        return Answer(ok=False, lines=(f"there is no agent {order.agent}; there is {there}",)), []
    if order.what in ASKS or order.what == "presence":  # which is no network's: what they are by then is the answer
        seen = [look(mind, now) for mind in meant]
        lines = [line for one in seen for line in (fires(one) if order.what == "debug" else told(one, now))]
        return Answer(ok=True, lines=tuple(lines), data=tuple(seen)), []
    return _direct(order, meant, now)


def facts(mind: Mind, directive: Directive, directed: Directed) -> tuple[Directed, DmnSaved]:
    """What is to be written down before an agent is told: who said so, and the state by which it holds over a crash."""
    after, _ = dmn.step(mind.state, directive, mind.policy)
    return directed, DmnSaved(state=signals.save(after), agent=mind.agent)


def until_of(said: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Until when, UTC: a time as `gateway.spoken` reads it, or so many seconds. None for nothing.

    Raises BadSchedule, in words.
    """
    text = said.strip().removeprefix("until").strip()
    if not text:
        return None
    whole = now.replace(microsecond=0)  # or 2 h from now would be told as more than that
    return moment(f"{text}s" if text.isascii() and text.isdigit() else text, whole, zone).astimezone(UTC)


def _direct(order: DmnOrder, minds: Iterable[Mind], now: datetime) -> tuple[Answer, list[Told]]:
    until = order.until if order.what in ("sleep", "quiet") else None
    if order.what == "quiet" and until is None:
        until = now + QUIET
    lines, seen, todo, ok = [], [], list[Told](), True
    for mind in minds:
        on = order.on if order.what == "sleep" else ()
        directive = Directive(at=now, order=_ORDERS[order.what], until=until, on=on)
        after, _ = dmn.step(mind.state, directive, mind.policy)
        one = look(Saved(agent=mind.agent, state=after, policy=mind.policy, next_tick_s=mind.next_tick_s), now)
        if order.what in ("sleep", "rest") and mind.state.mode in (Mode.PAUSED, Mode.OFF):
            ok = False
            lines.append(f"{mind.agent} is {mind.state.mode}, which is more: wake it first")
        else:
            todo.append(
                Told(mind.agent, directive, Directed(agent=mind.agent, what=order.what, by=order.by, until=until))
            )
            lines.append(f"{mind.agent} is {one.mode}{_resting(one, now)}")
        seen.append(one)
    return Answer(ok=ok, lines=tuple(lines), data=tuple(seen)), todo


def look(mind: Mind, now: datetime) -> MindSeen:
    """One agent's network, for programs."""
    state, policy = mind.state, mind.policy
    today = state.day == now.astimezone(UTC).date().isoformat()
    quiet = state.quiet_until is not None and state.quiet_until > now
    return MindSeen(
        agent=mind.agent,
        mode=state.mode.value,
        next_tick_s=mind.next_tick_s,
        running=state.running,
        waiting=tuple(owed.conversation for owed in state.waiting),
        wanted=tuple(Wish(conversation=place, why=_why(state, place)) for place in dmn.wanted(state, policy)),
        held=dmn.held(state, policy, now),
        low=state.low,
        in_a_row=state.autonomous,
        max_in_a_row=policy.max_autonomous_turns,
        turns_today=state.turns_today if today else 0,
        daily_turns=policy.daily_turns,
        spent_today_usd=state.spent_today_usd if today else 0.0,
        daily_cost_usd=policy.daily_cost_usd,
        errors=state.errors,
        quiet=quiet,
        quiet_until=_known(state.quiet_until) if quiet else None,
        stored_until=_known(state.stored_until),
        wake_on=state.wake_on,
        presence=state.presence,
    )


def told(one: MindSeen, now: datetime) -> list[str]:
    """Its standing, for people; the first line names the agent."""
    tick = "" if one.next_tick_s is None else f"; it looks again in {span(max(0.0, one.next_tick_s))}"
    turns, cost = f"{one.turns_today} of {one.daily_turns} turns", _dollars(one.spent_today_usd)
    errors = f", {one.errors} failed in a row" if one.errors else ""
    lists = (
        ("running", one.running),
        ("waiting", one.waiting),
        ("pending", tuple(f"{wish.conversation} ({wish.why})" for wish in one.wanted)),
        ("low", one.low),
    )
    row = f"{one.in_a_row} of {one.max_in_a_row} turns in a row{errors}"
    return [
        f"{one.agent} is {one.mode}{_resting(one, now)}{tick}",
        f"  unasked: {turns}, {cost} of {_dollars(one.daily_cost_usd)} today; {row}",
        *(f"  {name}: {', '.join(places)}" for name, places in lists if places),
        f"  people: {one.presence}",
    ]


def fires(one: MindSeen) -> list[str]:
    """What its next tick would start, and what keeps it from that."""
    lines = [f"{place}: a turn is owed, and waits for a lane" for place in one.waiting]
    blocked = f" - blocked by: {'; '.join(one.held)}" if one.held else ""
    lines += [f"would fire: {wish.conversation} ({wish.why}){blocked}" for wish in one.wanted]
    if not one.wanted:
        lines.append(f"nothing is pending{blocked.replace(' - blocked by', '; anything would be blocked by')}")
    return [f"{one.agent} is {one.mode}", *(f"  {line}" for line in lines)]


def _why(state: State, place: str) -> str:
    if place in state.pending:
        return "pending"
    return "continuing" if place in state.continuing else "low"


def _resting(one: MindSeen, now: datetime) -> str:
    stored = f" until {_when(one.stored_until, now)}" if one.mode == Mode.STORED else ""
    kinds = f" or {', '.join(one.wake_on)} comes" if one.wake_on else ""
    quiet = f", and quiet until {_when(one.quiet_until, now)}" if one.quiet else ""
    return f"{stored}{kinds}{quiet}"


def _when(until: datetime | None, now: datetime) -> str:
    if until is None:
        return "it is woken"
    return f"{until:%Y-%m-%d %H:%M} UTC (for {_length(until - now)})"


def _length(time: timedelta) -> str:
    hours, minutes = divmod(math.ceil(time.total_seconds() / 60), 60)
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count) or "0 min"


def _known(until: datetime | None) -> datetime | None:
    return None if until is None or until >= dmn.FOREVER else until


def _dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= _CENT or amount == 0 else f"${amount:.4f}"
