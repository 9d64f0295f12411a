"""Channel states, tables, times, durations and money as text for people. Pure."""

from datetime import datetime
from typing import Final

from gateway.core.i18n import N_, _, ngettext
from gateway.core.metrics import ChannelStats, HealthProblem

_DIGITS = ((1.0, 2), (0.01, 4))
"""Dollars from which on so many decimals are shown; below: 6."""


def format_table(lines: list[tuple[str, ...]]) -> list[str]:
    """Align columns to equal width; the last one keeps its length."""
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def describe_channel(channel: ChannelStats, now: datetime) -> str:
    """Describe the state of one channel in half a sentence."""
    text = describe_state(channel)
    if channel.last_event is not None:
        span = format_duration(age_s(channel.last_event, now))
        text += f", {_('last event {span} ago').format(span=span)}"
    if channel.reconnects:
        count = channel.reconnects
        text += (
            f", {ngettext('{count} reconnect', '{count} reconnects', count).format(count=count)}"
        )
    return f"{text}: {channel.reason}" if channel.reason else text


_STATES: Final = {
    "connecting": N_("connecting"),
    "up": N_("up"),
    "down": N_("down"),
    "refused": N_("refused"),
}


def describe_state(channel: ChannelStats) -> str:
    """Return the state of a channel, and since when."""
    state, time = _(_STATES[channel.state]), format_time(channel.since)
    return _("{state} since {time}").format(state=state, time=time)


def describe_problem(problem: HealthProblem) -> str:
    """Describe one problem on one line, with the time it began."""
    reason = " ".join(problem.reason.split())
    return _("{problem} (since {time})").format(problem=reason, time=format_time(problem.since))


def format_time(at: datetime) -> str:
    """Format a time to the second, in UTC."""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def format_moment(at: datetime, now: datetime) -> str:
    """Format a time to the minute, in the time zone of `now`, with its date unless that is
    today's.
    """
    at = at.astimezone(now.tzinfo)
    return at.strftime("%H:%M %Z" if at.date() == now.date() else "%Y-%m-%d %H:%M %Z")


def age_s(at: datetime, now: datetime) -> float:
    """Return the seconds between `at` and `now`; 0 if the clock was set back."""
    return max(0.0, (now - at).total_seconds())


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit that is not 0, e.g. `3 min`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(count: int) -> str:
    """Format a size on a disk or in memory."""
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1000:.0f} kB"


def format_usd(usd: float | None) -> str:
    """Format dollars, with more decimals for smaller sums; None: the price is not known."""
    if usd is None:
        return _("price not known")
    return (
        f"${usd:,.{next((digits for least, digits in _DIGITS if usd >= least), 6) if usd else 2}f}"
    )
