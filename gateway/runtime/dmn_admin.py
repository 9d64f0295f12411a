"""Administration of the agents' Default Mode Networks: their state for people, and orders to them.

Pure, but for `load_dmn_states`, which reads what the last run left.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final, get_args
from zoneinfo import ZoneInfo

from agent import dmn, signals
from agent.dmn import load_state
from agent.signals import Directive, DmnMode, DmnState
from gateway.core.control_messages import DmnStatus, WantedTurn
from gateway.core.events import PresenceLevel
from gateway.core.facts import DmnDirective, DmnStateSaved
from gateway.core.format import format_duration
from gateway.core.i18n import N_, _
from gateway.core.moments import parse_moment
from gateway.store import StoreReader

if TYPE_CHECKING:
    from gateway.runtime.agent import Agent

logger = logging.getLogger("reverie.dmn")

_DIRECTIVE_ORDERS: Final[Mapping[str, signals.DmnOrder]] = {
    "pause": "pause",
    "wake": "wake",
    "sleep": "store",
    "store": "store",
    "quiet": "quiet",
    "rest": "rest",
    "off": "off",
}
MODE_TEXTS: Final[Mapping[str, str]] = {
    "engaged": N_("in a conversation"),
    "working": N_("at work"),
    "foraging": N_("awake"),
    "resting": N_("resting"),
    "stored": N_("asleep"),
    "dreaming": N_("sorting notes"),
    "paused": N_("paused"),
    "off": N_("off"),
}
"""Modes of a Default Mode Network, for people."""
_PRESENCE_TEXTS: Final[Mapping[str, str]] = {
    "focused": N_("writing to me"),
    "present": N_("around"),
    "idle": N_("quiet for a while"),
    "away": N_("away"),
    "sleeping": N_("asleep"),
}
_CENT: Final = 0.01


PRESENCE_ORDER: Final = "presence "
"""Beginning of `DmnDirective.what` where the presence of people is set by hand."""


async def load_dmn_states(
    store: StoreReader, agents: Sequence[str], now: datetime
) -> dict[str, DmnState]:
    """Return each agent's DMN state as it was last saved, with today's counts from the log."""
    states, today = {}, now.astimezone(UTC).date().isoformat()
    for agent in agents:
        saved = await store.dmn_state(agent)
        try:
            state = load_state(saved) if saved else DmnState()
        except ValueError:  # written by another version
            logger.warning("the saved state of %s's DMN cannot be read; it begins at rest", agent)
            state = DmnState()
        turns, _cost_usd = await store.autonomous_usage(agent, today)
        known = state.turns_today if state.day == today else 0
        spent_up = state.spent_up and state.day == today
        states[agent] = replace(
            state,
            day=today,
            turns_today=max(turns, known),
            foraged_today=state.foraged_today if state.day == today else 0,
            spent_up=spent_up,
        )
    return states


def read_directive(directed: DmnDirective, at: datetime) -> Directive:
    """Return what the Default Mode Network is told by an order in the log."""
    return Directive(
        at=at, order=_DIRECTIVE_ORDERS[directed.what], until=directed.until, on=directed.on
    )


def read_presence_order(directed: DmnDirective) -> PresenceLevel | None:
    """Return the presence of people that was set by hand. None: it is to be estimated."""
    return next(
        (one for one in get_args(PresenceLevel) if f"{PRESENCE_ORDER}{one}" == directed.what), None
    )


def parse_until(text_given: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the end of a period, UTC: a time as `gateway.core.moments` reads it, or a number
    of seconds.

    None for an empty text. Raises InvalidTime, in words.
    """
    text = text_given.strip().removeprefix("until").strip()
    if not text:
        return None
    whole = now.replace(microsecond=0)  # so that 2 h from now is not shown as more than that
    return parse_moment(
        f"{text}s" if text.isascii() and text.isdigit() else text, whole, zone
    ).astimezone(UTC)


def direct_agents(
    what: str,
    agents: Iterable["Agent"],
    now: datetime,
    *,
    by: str,
    until: datetime | None = None,
    on: tuple[str, ...] = (),
    zone: tzinfo = UTC,
) -> tuple[list[str], list[DmnStatus], list[tuple[DmnDirective, DmnStateSaved]]]:
    """Return the answer to an order, a line for each network; their state afterwards; and for each
    that obeys the entries that make it true: the order, and the state by which it survives a crash.

    `what`: pause, wake, sleep, quiet, rest or off. `until`: end of `sleep` or `quiet`. None: until
    it is woken; for an hour. `on`: with `sleep`, types of notifications that wake it, too.
    `zone`: of the times in the answer.
    """
    until = until if what in ("sleep", "quiet") else None
    if what == "quiet" and until is None:
        until = now + timedelta(hours=1)
    lines, statuses, facts = [], [], list[tuple[DmnDirective, DmnStateSaved]]()
    for agent in agents:
        wake_on = on if what == "sleep" else ()
        directive = Directive(at=now, order=_DIRECTIVE_ORDERS[what], until=until, on=wake_on)
        after = dmn.step(agent.state, directive, agent.policy)[0]
        one = snapshot_dmn(agent, now, after)
        if what in ("sleep", "rest") and agent.state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            lines.append(
                _("{agent} is {mode}; write `dmn wake` first").format(
                    agent=agent.id, mode=_(MODE_TEXTS[agent.state.mode])
                )
            )
        else:
            directed = DmnDirective(agent=agent.id, what=what, by=by, until=until, on=wake_on)
            saved = DmnStateSaved(state=dmn.dump_state(after), agent=agent.id)
            facts.append((directed, saved))
            lines.append(
                _("{agent} is {mode}").format(agent=agent.id, mode=_(MODE_TEXTS[one.mode]))
                + _format_rest(one, now.astimezone(zone))
            )
        statuses.append(one)
    return lines, statuses, facts


def snapshot_dmn(agent: "Agent", now: datetime, state: DmnState | None = None) -> DmnStatus:
    """Return the state of one agent's network, for programs. `state`: None: the present one."""
    state, policy = state or agent.state, agent.policy
    today = state.day == now.astimezone(UTC).date().isoformat()
    quiet = state.quiet_until is not None and state.quiet_until > now
    return DmnStatus(
        agent=agent.id,
        mode=state.mode.value,
        next_tick_s=agent.next_tick_s,
        running=state.running,
        waiting=tuple(owed.conversation for owed in state.waiting),
        wanted=tuple(
            WantedTurn(
                conversation=place,
                why="pending"
                if place in state.pending
                else "continuing"
                if place in state.continuing
                else "low",
            )
            for place in dmn.due_conversations(state, policy, now)
        ),
        held=dmn.blocking_reasons(state, policy, now),
        low=state.low,
        in_a_row=dmn.count_in_a_row(state, policy, now),
        max_in_a_row=policy.max_autonomous_turns,
        turns_today=state.turns_today if today else 0,
        daily_turns=policy.daily_turns,
        foraged_today=state.foraged_today if today else 0,
        forage_per_day=policy.forage_per_day,
        spent_today_usd=agent.spent_today_usd,
        daily_cost_usd=policy.daily_cost_usd,
        errors=state.errors,
        quiet=quiet,
        quiet_until=_finite_until(state.quiet_until) if quiet else None,
        stored_until=_finite_until(state.stored_until),
        wake_on=state.wake_on,
        presence=state.presence,
    )


def format_dmn_status(status: DmnStatus, now: datetime) -> list[str]:
    """Return the state of a network, for people; the first line names the agent."""
    mode = _put_in_words(MODE_TEXTS, status.mode)
    head = _("{agent} is {mode}").format(agent=status.agent, mode=mode) + _format_rest(status, now)
    if status.next_tick_s is not None:
        text = _("it checks again in {time}")
        head = f"{head}; {text.format(time=format_duration(max(0.0, status.next_tick_s)))}"
    unasked = _(
        "on its own: {turns} of {most_turns} turns and {cost} of {most_cost} today; {row} of "
        "{most_row} turns in a row"
    ).format(
        turns=status.turns_today,
        most_turns=status.daily_turns,
        cost=_format_dollars(status.spent_today_usd),
        most_cost=_format_dollars(status.daily_cost_usd),
        row=status.in_a_row,
        most_row=status.max_in_a_row,
    )
    if status.forage_per_day:
        looks = _("{count} of {most} looks at what is less urgent today").format(
            count=status.foraged_today, most=status.forage_per_day
        )
        unasked = f"{unasked}, {looks}"
    if status.errors:
        unasked = f"{unasked}, {_('{count} failed in a row').format(count=status.errors)}"
    lists = (
        (_("answering now"), status.running),
        (_("waiting to answer"), status.waiting),
        (
            _("wants to look at"),
            tuple(f"{wish.conversation} ({wish.why})" for wish in status.wanted),
        ),
        (_("less urgent"), status.low),
    )
    return [
        head,
        f"  {unasked}",
        *(f"  {name}: {', '.join(places)}" for name, places in lists if places),
        f"  {_('people')}: {_put_in_words(_PRESENCE_TEXTS, status.presence)}",
    ]


def _put_in_words(texts: Mapping[str, str], state: str) -> str:
    """Return a state for people. One that only a gateway of another version knows, which the
    console shows, too, stays as it is.
    """
    return _(texts[state]) if state in texts else state


def _format_rest(status: DmnStatus, now: datetime) -> str:
    rest = ""
    if status.mode == DmnMode.STORED:
        until = status.stored_until
        rest = f" {_('until `dmn wake`') if until is None else _format_until(until, now)}"
    if status.wake_on:
        rest += (
            f" {_('or until one of these comes: {types}').format(types=', '.join(status.wake_on))}"
        )
    if status.quiet:
        until = status.quiet_until
        quiet = (
            _("quiet until `dmn wake`")
            if until is None
            else f"{_('quiet')} {_format_until(until, now)}"
        )
        rest += f", {quiet}"
    return rest


def _format_until(until: datetime, now: datetime) -> str:
    left_s = 60 * math.ceil((until - now).total_seconds() / 60)
    return _("until {time} (in {span})").format(
        time=f"{until.astimezone(now.tzinfo):%Y-%m-%d %H:%M %Z}", span=format_duration(left_s)
    )


def _finite_until(until: datetime | None) -> datetime | None:
    return None if until is None or until >= dmn.FOREVER else until


def _format_dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= _CENT or amount == 0 else f"${amount:.4f}"
