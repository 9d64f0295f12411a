"""What to send next, what to do about a part that was not simply sent, and how a post ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from channels.base import RateLimited, SendError, Uncertain, Unreachable
from gateway.records import PartEnded
from gateway.store import OutboxPart

MAX_AGE_S = 24 * 3600.0
"""An answer to yesterday's question is worse than none; Telegram keeps updates for the same time."""
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one part after one attempt."""

    state: Literal["uncertain", "failed", "waiting"]
    reason: str
    wait_s: float = 0.0
    """Before the next attempt; 0 for the final states."""


def verdict(error: SendError, *, attempts: int, age_s: float) -> Verdict:
    """Decide after the `attempts`-th attempt at a part of a post that is `age_s` seconds old."""
    match error:
        case Uncertain():
            return Verdict(state="uncertain", reason=error.reason)
        case RateLimited() | Unreachable() if age_s >= MAX_AGE_S:
            return Verdict(state="failed", reason=f"gave up after {int(age_s // 3600)} h: {error.reason}")
        case RateLimited():
            return Verdict(state="waiting", reason=error.reason, wait_s=error.retry_after_s)
        case Unreachable():
            wait_s = min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 10), MAX_WAIT_S)
            return Verdict(state="waiting", reason=error.reason, wait_s=wait_s)
        case _:  # Denied, Rejected: asking again changes nothing
            return Verdict(state="failed", reason=error.reason)


def window(parts: Sequence[OutboxPart], size: int) -> list[OutboxPart]:
    """What to send next: nothing once a part has failed, for half a reply is worse than none."""
    if any(part.state == "failed" for part in parts):
        return []
    return [part for part in parts if part.state == "pending"][:size]


def after(part: OutboxPart, end: PartEnded) -> OutboxPart:
    """The part as that attempt left it."""
    state = "pending" if end.state == "waiting" else end.state
    return replace(part, state=state, reason=end.reason, attempts=part.attempts + 1)


def sum_up(parts: Sequence[OutboxPart]) -> tuple[Literal["sent", "uncertain", "failed"], str]:
    """The last word on a whole post: its worst part, and why."""
    worst: Literal["failed", "uncertain"]
    for worst in ("failed", "uncertain"):
        for part in parts:
            if part.state == worst:
                return worst, f"part {part.index + 1} of {len(parts)}: {part.reason}"
    return "sent", ""
