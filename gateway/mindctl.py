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
from agent.signals import Directive, DmnMode, DmnPolicy, DmnState
from gateway.ops.report import format_duration
from gateway.orders import ControlResponse, DmnAction, DmnRequest, DmnStatus, WantedTurn
from gateway.records import DmnDirective, DmnStateSaved
from gateway.spoken import parse_moment

DEFAULT_QUIET: Final = timedelta(hours=1)
"""So long, if nobody says how long."""
QUERY_ORDERS: Final = frozenset[DmnAction]({"status", "debug"})
"""What only asks, and changes nothing."""
_DIRECTIVE_ORDERS: Final[dict[DmnAction, signals.DmnOrder]] = {
    "pause": "pause",
    "wake": "wake",
    "sleep": "store",
    "quiet": "quiet",
    "rest": "rest",
    "off": "off",
}
_CENT: Final = 0.01


class DmnSource(Protocol):
    """One agent's network: a running `gateway.loop.AgentLoop`, or a `SavedDmn` one."""

    @property
    def agent(self) -> str:
        """Its id."""

    @property
    def state(self) -> DmnState:
        """As it is now."""

    @property
    def policy(self) -> DmnPolicy:
        """How the operator wants it."""

    @property
    def next_tick_s(self) -> float | None:
        """Until its timer comes. None: none is armed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDmn:
    """One that does not run."""

    agent: str
    state: DmnState
    policy: DmnPolicy
    next_tick_s: float | None = None


class DmnCommand(NamedTuple):
    """What one agent is to be told, and the record of it. Whoever carries it out writes that down first."""

    agent: str
    directive: Directive
    directed: DmnDirective


def answer_order(
    order: DmnRequest, minds: Sequence[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    """What to answer, and what is to be done for that to be true."""
    meant = [mind for mind in minds if order.agent in (None, mind.agent)]
    if not meant:
        there = ", ".join(mind.agent for mind in minds)
        return ControlResponse(ok=False, lines=(f"there is no agent {order.agent}; there is {there}",)), []
    if (
        order.what in QUERY_ORDERS or order.what == "presence"
    ):  # which is no network's: what they are by then is the answer
        seen = [snapshot_dmn(mind, now) for mind in meant]
        lines = [
            line
            for one in seen
            for line in (format_next_turns(one) if order.what == "debug" else format_dmn_status(one, now))
        ]
        return ControlResponse(ok=True, lines=tuple(lines), data=tuple(seen)), []
    return _direct_agents(order, meant, now)


def build_directive_facts(
    mind: DmnSource, directive: Directive, directed: DmnDirective
) -> tuple[DmnDirective, DmnStateSaved]:
    """What is to be written down before an agent is told: who said so, and the state by which it holds over a crash."""
    after, _ = dmn.step(mind.state, directive, mind.policy)
    return directed, DmnStateSaved(state=signals.dump_state(after), agent=mind.agent)


def parse_until(said: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Until when, UTC: a time as `gateway.spoken` reads it, or so many seconds. None for nothing.

    Raises BadSchedule, in words.
    """
    text = said.strip().removeprefix("until").strip()
    if not text:
        return None
    whole = now.replace(microsecond=0)  # or 2 h from now would be told as more than that
    return parse_moment(f"{text}s" if text.isascii() and text.isdigit() else text, whole, zone).astimezone(UTC)


def _direct_agents(
    order: DmnRequest, minds: Iterable[DmnSource], now: datetime
) -> tuple[ControlResponse, list[DmnCommand]]:
    until = order.until if order.what in ("sleep", "quiet") else None
    if order.what == "quiet" and until is None:
        until = now + DEFAULT_QUIET
    lines, seen, todo, ok = [], [], list[DmnCommand](), True
    for mind in minds:
        on = order.on if order.what == "sleep" else ()
        directive = Directive(at=now, order=_DIRECTIVE_ORDERS[order.what], until=until, on=on)
        after, _ = dmn.step(mind.state, directive, mind.policy)
        one = snapshot_dmn(
            SavedDmn(agent=mind.agent, state=after, policy=mind.policy, next_tick_s=mind.next_tick_s), now
        )
        if order.what in ("sleep", "rest") and mind.state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            ok = False
            lines.append(f"{mind.agent} is {mind.state.mode}, which is more: wake it first")
        else:
            todo.append(
                DmnCommand(
                    mind.agent, directive, DmnDirective(agent=mind.agent, what=order.what, by=order.by, until=until)
                )
            )
            lines.append(f"{mind.agent} is {one.mode}{_format_rest(one, now)}")
        seen.append(one)
    return ControlResponse(ok=ok, lines=tuple(lines), data=tuple(seen)), todo


def snapshot_dmn(mind: DmnSource, now: datetime) -> DmnStatus:
    """One agent's network, for programs."""
    state, policy = mind.state, mind.policy
    today = state.day == now.astimezone(UTC).date().isoformat()
    quiet = state.quiet_until is not None and state.quiet_until > now
    return DmnStatus(
        agent=mind.agent,
        mode=state.mode.value,
        next_tick_s=mind.next_tick_s,
        running=state.running,
        waiting=tuple(owed.conversation for owed in state.waiting),
        wanted=tuple(
            WantedTurn(conversation=place, why=_pending_reason(state, place))
            for place in dmn.due_conversations(state, policy)
        ),
        held=dmn.blocking_reasons(state, policy, now),
        low=state.low,
        in_a_row=state.autonomous,
        max_in_a_row=policy.max_autonomous_turns,
        turns_today=state.turns_today if today else 0,
        daily_turns=policy.daily_turns,
        spent_today_usd=state.spent_today_usd if today else 0.0,
        daily_cost_usd=policy.daily_cost_usd,
        errors=state.errors,
        quiet=quiet,
        quiet_until=_finite_until(state.quiet_until) if quiet else None,
        stored_until=_finite_until(state.stored_until),
        wake_on=state.wake_on,
        presence=state.presence,
    )


def format_dmn_status(one: DmnStatus, now: datetime) -> list[str]:
    """Its standing, for people; the first line names the agent."""
    tick = "" if one.next_tick_s is None else f"; it looks again in {format_duration(max(0.0, one.next_tick_s))}"
    turns, cost = f"{one.turns_today} of {one.daily_turns} turns", _format_dollars(one.spent_today_usd)
    errors = f", {one.errors} failed in a row" if one.errors else ""
    lists = (
        ("running", one.running),
        ("waiting", one.waiting),
        ("pending", tuple(f"{wish.conversation} ({wish.why})" for wish in one.wanted)),
        ("low", one.low),
    )
    row = f"{one.in_a_row} of {one.max_in_a_row} turns in a row{errors}"
    return [
        f"{one.agent} is {one.mode}{_format_rest(one, now)}{tick}",
        f"  unasked: {turns}, {cost} of {_format_dollars(one.daily_cost_usd)} today; {row}",
        *(f"  {name}: {', '.join(places)}" for name, places in lists if places),
        f"  people: {one.presence}",
    ]


def format_next_turns(one: DmnStatus) -> list[str]:
    """What its next tick would start, and what keeps it from that."""
    lines = [f"{place}: a turn is owed, and waits for a lane" for place in one.waiting]
    blocked = f" - blocked by: {'; '.join(one.held)}" if one.held else ""
    lines += [f"would fire: {wish.conversation} ({wish.why}){blocked}" for wish in one.wanted]
    if not one.wanted:
        lines.append(f"nothing is pending{blocked.replace(' - blocked by', '; anything would be blocked by')}")
    return [f"{one.agent} is {one.mode}", *(f"  {line}" for line in lines)]


def _pending_reason(state: DmnState, place: str) -> str:
    if place in state.pending:
        return "pending"
    return "continuing" if place in state.continuing else "low"


def _format_rest(one: DmnStatus, now: datetime) -> str:
    stored = f" until {_format_until(one.stored_until, now)}" if one.mode == DmnMode.STORED else ""
    kinds = f" or {', '.join(one.wake_on)} comes" if one.wake_on else ""
    quiet = f", and quiet until {_format_until(one.quiet_until, now)}" if one.quiet else ""
    return f"{stored}{kinds}{quiet}"


def _format_until(until: datetime | None, now: datetime) -> str:
    if until is None:
        return "it is woken"
    return f"{until:%Y-%m-%d %H:%M} UTC (for {_format_duration(until - now)})"


def _format_duration(time: timedelta) -> str:
    hours, minutes = divmod(math.ceil(time.total_seconds() / 60), 60)
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count) or "0 min"


def _finite_until(until: datetime | None) -> datetime | None:
    return None if until is None or until >= dmn.FOREVER else until


def _format_dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= _CENT or amount == 0 else f"${amount:.4f}"
