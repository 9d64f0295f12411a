"""Decisions about the delivery of a post: retries, what a restart makes of a part, and the outcome.
Pure.

Before a part is handed to its platform that is recorded, and so is the result. So after a crash
every part is one of: surely not sent (it is sent), surely sent (it is not sent again), or in
between: then it is sent again where the platform shows no part twice, else it is uncertain.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from channels.base import (
    Channel,
    FindsSent,
    MayNotPost,
    RateLimited,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    Unsettled,
)
from gateway.core.events import Post
from gateway.core.facts import PartSendEnded
from gateway.store.types import OutboxPart

MAX_AGE_S = 24 * 3600.0
"""Age at which a post is given up: a late answer is worse than none; Telegram keeps updates for the
same time."""
MAX_ABSENCE_S = 7 * MAX_AGE_S
"""Age at which a post for one person who is not there, or for a place where the bot may not post,
is given up."""
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
FIRST_AWAY_S, MAX_AWAY_S = 10.0, 600.0
"""Seconds until a recipient who was not there is looked for again: they may be about to log in."""
MAX_REFUSED_S = 3600.0
"""Longest time until a post is tried again where the bot may not post: platforms do not tell of
every change."""


def explain_age(age_s: float, reason: str) -> str:
    """Return why a post that is so old is given up: `reason` is that of the last attempt."""
    return f"gave up after {int(age_s // 3600)} h: {reason}"


def resend_window_s(post: Post, channel: Channel) -> float:
    """Return the seconds in which a part of the post may be handed over again: without a limit if
    that replaces one.
    """
    if post.replaces is not None:
        return math.inf
    return MAX_AGE_S if isinstance(channel, FindsSent) else channel.capabilities.resend_window_s


def can_resend(since_s: float, resend_s: float) -> bool:
    """Return whether a part first handed over `since_s` seconds ago may be sent again without being
    shown twice.

    Negative if the clock was set back, which proves nothing: then it may not.
    """
    return 0.0 <= since_s < resend_s


def recover_parts(
    parts: Sequence[OutboxPart], *, now: datetime, resend_s: float
) -> dict[int, Literal["uncertain", "waiting"]]:
    """Return the states of the parts that a crash interrupted, by index.

    Only the last one that was handed over is sent again: another would come after its successor.
    """
    gone = [
        part.index
        for part in parts
        if part.state in ("sending", "sent", "uncertain") or part.first_at is not None
    ]
    ends: dict[int, Literal["uncertain", "waiting"]] = {}
    for part in parts:
        if part.state == "sending":
            since_s = (now - part.first_at).total_seconds() if part.first_at is not None else -1.0
            again = can_resend(since_s, resend_s) and part.index == max(gone)
            ends[part.index] = "waiting" if again else "uncertain"
    return ends


def is_interrupted(part: OutboxPart) -> bool:
    """Return whether it may have been sent by a process that recorded no end of it."""
    return part.state == "sending" or (part.state == "pending" and part.first_at is not None)


def select_window(
    parts: Sequence[OutboxPart], size: int, *, resend_s: float = 0.0
) -> list[OutboxPart]:
    """Return the parts to send next: none once a part has failed, because half a reply is worse
    than none.

    Where parts may be sent again they go one by one: a second try must not come after the
    successor.
    """
    if any(part.state == "failed" for part in parts):
        return []
    return [part for part in parts if part.state == "pending"][: 1 if resend_s > 0 else size]


def apply_part_end(part: OutboxPart, end: PartSendEnded) -> OutboxPart:
    """Return the part after that attempt."""
    first_at = None if end.state == "waiting" and not end.maybe_seen else part.first_at
    state = "pending" if end.state == "waiting" else end.state
    return replace(
        part, state=state, reason=end.reason, attempts=part.attempts + 1, first_at=first_at
    )


def summarize_parts(
    parts: Sequence[OutboxPart],
) -> tuple[Literal["sent", "uncertain", "failed"], str]:
    """Return the result of a whole post: that of its worst part, and the reason."""
    states: tuple[Literal["failed", "uncertain"], ...] = ("failed", "uncertain")
    for worst in states:
        for part in parts:
            if part.state == worst:
                return worst, f"part {part.index + 1} of {len(parts)}: {part.reason}"
    return "sent", ""


def end_failed_part(
    post: Post,
    part: OutboxPart,
    error: Exception,
    *,
    age_s: float,
    since_s: float | None,
    resend_s: float,
    finds_sent: bool,
) -> tuple[PartSendEnded, float]:
    """Return what came of a failed attempt at a part, and the seconds before the next; 0 if there
    is none.

    `age_s`: age of the post. `since_s`: seconds since the first hand-over that may have shown the
    part, including this attempt; None: surely not seen. It is not None once it was handed over and
    `error` is no `SendError`. `resend_s` is the channel's. `finds_sent`: it looks for what it may
    have sent.
    """
    is_for_nobody = post.style == "notice" and post.reply_to is None
    if isinstance(error, MayNotPost) and (is_for_nobody or post.replaces is not None):
        error = Rejected(error.reason)  # it is not said later
    if since_s is None and isinstance(error, Uncertain):
        since_s = 0.0
    is_unseen = since_s is None
    state: Literal["uncertain", "failed", "waiting"] = "failed" if is_unseen else "uncertain"
    reason, wait_s = error.reason if isinstance(error, SendError) else describe_bug(error), 0.0
    if isinstance(error, Uncertain | RateLimited | Unreachable | RecipientAway | MayNotPost):
        max_age_s, wait_s = _find_wait(error, part.attempts + 1)
        # A channel that looks for its messages could not tell what became of this one.
        is_final = finds_sent and isinstance(error, Uncertain) and not isinstance(error, Unsettled)
        may_repeat = since_s is None or (
            since_s >= 0.0 and not is_final and can_resend(since_s + wait_s, resend_s)
        )
        if may_repeat and age_s < max_age_s:
            state = "waiting"
        elif may_repeat:
            reason = explain_age(age_s, reason)
    is_waiting = state == "waiting"
    return PartSendEnded(
        post=post.key,
        part=part.index,
        state=state,
        reason=reason,
        maybe_seen=is_waiting and not is_unseen,
        may_not_post=is_waiting and isinstance(error, MayNotPost),
    ), wait_s if is_waiting else 0.0


def _find_wait(error: SendError, attempts: int) -> tuple[float, float]:
    """Return the age at which a post is given up, and the seconds before the next attempt."""
    if isinstance(error, RateLimited):
        return MAX_AGE_S, error.retry_after_s
    doublings = min(attempts - 1, 10)
    if isinstance(error, RecipientAway | MayNotPost):
        max_wait_s = MAX_REFUSED_S if isinstance(error, MayNotPost) else MAX_AWAY_S
        return MAX_ABSENCE_S, min(FIRST_AWAY_S * 2.0**doublings, max_wait_s)
    return MAX_AGE_S, min(FIRST_RETRY_S * 2.0**doublings, MAX_RETRY_S)


def describe_bug(error: Exception) -> str:
    """Return the reason for an internal error: without its message, which may contain anything."""
    return f"internal error: {type(error).__name__}"
