"""What to send next, what to do about a part that was not simply sent, and how a post ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from channels.base import RateLimited, RecipientAway, SendError, Uncertain, Unreachable
from gateway.records import PartSendEnded
from gateway.store import OutboxPart

MAX_AGE_S = 24 * 3600.0
"""An answer to yesterday's question is worse than none; Telegram keeps updates for the same time."""
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
FIRST_AWAY_S, MAX_AWAY_S = 10.0, 300.0
"""Until a person is looked for again of whom there was no sign: they may be about to log in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """What becomes of one part after one attempt."""

    state: Literal["uncertain", "failed", "waiting"]
    reason: str
    wait_s: float = 0.0
    """Before the next attempt; 0 for the final states."""
    maybe_seen: bool = False
    """As `PartSendEnded.maybe_seen`."""


def decide_retry(
    error: SendError, *, attempts: int, age_s: float, since_s: float | None = None, resend_s: float = 0.0
) -> RetryDecision:
    """Decide after the `attempts`-th attempt at a part of a post that is `age_s` seconds old.

    `since_s`: seconds since the part was handed over for the first time of those that may have shown it,
    with this attempt if it ended in `Uncertain`; None: surely not seen. `resend_s` is the channel's.
    """
    if since_s is None and isinstance(error, Uncertain):
        since_s = 0.0
    end: Literal["uncertain", "failed"] = "failed" if since_s is None else "uncertain"
    wait_s = min(FIRST_RETRY_S * 2.0 ** min(max(attempts, 1) - 1, 10), MAX_RETRY_S)
    if isinstance(error, RateLimited):
        wait_s = error.retry_after_s
    if isinstance(error, RecipientAway):
        wait_s = min(FIRST_AWAY_S * wait_s, MAX_AWAY_S)
    match error:
        case Uncertain() | RateLimited() | Unreachable() | RecipientAway():
            if since_s is not None and not (since_s >= 0.0 and can_resend(since_s + wait_s, resend_s)):
                return RetryDecision(state="uncertain", reason=error.reason)
            if age_s >= MAX_AGE_S:
                return RetryDecision(state=end, reason=f"gave up after {int(age_s // 3600)} h: {error.reason}")
            return RetryDecision(state="waiting", reason=error.reason, wait_s=wait_s, maybe_seen=since_s is not None)
        case _:  # Denied, Rejected: asking again changes nothing
            return RetryDecision(state=end, reason=error.reason)


def can_resend(since_s: float, resend_s: float) -> bool:
    """Whether a part first handed over `since_s` seconds ago may be sent again without being shown twice.

    A clock that went back tells nothing: then it may not.
    """
    return 0.0 <= since_s < resend_s


def recover_parts(
    parts: Sequence[OutboxPart], *, now: datetime, resend_s: float
) -> dict[int, Literal["uncertain", "waiting"]]:
    """What becomes of the parts that a crash left in the middle of being sent, by index.

    Only the last one that was handed over is sent again: another would come after its successor.
    """
    gone = [part.index for part in parts if part.state in ("sending", "sent", "uncertain") or part.first_at is not None]
    ends: dict[int, Literal["uncertain", "waiting"]] = {}
    for part in parts:
        if part.state == "sending":
            since_s = (now - part.first_at).total_seconds() if part.first_at is not None else -1.0
            again = can_resend(since_s, resend_s) and part.index == max(gone)
            ends[part.index] = "waiting" if again else "uncertain"
    return ends


def select_window(parts: Sequence[OutboxPart], size: int, *, resend_s: float = 0.0) -> list[OutboxPart]:
    """What to send next: nothing once a part has failed, for half a reply is worse than none.

    Where parts are sent again they go one by one: the second try of one must not come after its successor.
    """
    if any(part.state == "failed" for part in parts):
        return []
    return [part for part in parts if part.state == "pending"][: 1 if resend_s > 0 else size]


def is_unsent(parts: Sequence[OutboxPart]) -> bool:
    """Whether surely nothing of the post has been seen yet."""
    return all(part.state == "pending" and part.first_at is None for part in parts)


def apply_part_end(part: OutboxPart, end: PartSendEnded) -> OutboxPart:
    """The part as that attempt left it."""
    first_at = None if end.state == "waiting" and not end.maybe_seen else part.first_at
    state = "pending" if end.state == "waiting" else end.state
    return replace(part, state=state, reason=end.reason, attempts=part.attempts + 1, first_at=first_at)


def summarize_parts(parts: Sequence[OutboxPart]) -> tuple[Literal["sent", "uncertain", "failed"], str]:
    """The last word on a whole post: its worst part, and why."""
    worst: Literal["failed", "uncertain"]
    for worst in ("failed", "uncertain"):
        for part in parts:
            if part.state == worst:
                return worst, f"part {part.index + 1} of {len(parts)}: {part.reason}"
    return "sent", ""
