"""What of the past and of the new lines fits a request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent import view
from agent.models.base import MAX_IMAGES, MAX_IMAGES_BYTES
from agent.prompt import hear, render_line
from gateway.events import SenderId
from gateway.hearing import Heard
from gateway.past import PastTurn
from gateway.records import MediaRef, Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the model is told as new."""

    heard: str = ""
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`."""
    media: tuple[MediaRef, ...] = ()
    more: bool = False
    """What was said to the agent behind the last of `covers` did not fit: it is for another turn."""


def fit(
    past: Sequence[PastTurn], lines: Sequence[Heard], *, omitted: int, budget: int, plain: bool, force: bool
) -> tuple[int, Told]:
    """How many of the past turns leave the view, and what is told of the new lines.

    `budget`: tokens for both. `omitted`: unread lines that are not among `lines`. `force`: the provider
    said that it does not fit. Images count by their number and their bytes as well.
    """
    told = pick(lines, omitted=omitted, budget=budget, plain=plain)
    return fold(past, told, budget=budget, force=force), told


def pick(lines: Sequence[Heard], *, omitted: int, budget: int, plain: bool) -> Told:
    """What is told of the new lines. The same."""
    chosen, more = view.choose([_tokens(one) for one in lines], [one.line.addressed for one in lines], budget)
    left_out = len(lines) - len(chosen)
    return replace(tell([lines[index] for index in chosen], omitted=omitted + left_out, plain=plain), more=more)


def fold(past: Sequence[PastTurn], told: Told, *, budget: int, force: bool) -> int:
    """How many of the past turns leave the view, so that this can be told. The same."""
    new = view.estimate_tokens(told.heard) + view.images_tokens(told.media)
    start = view.fold_start([turn.tokens for turn in past], budget - new, force=force)
    if any(turn.media for turn in past):
        bytes_left = MAX_IMAGES_BYTES - sum(ref.size_bytes for ref in told.media)
        start = max(
            start,
            view.fold_start([len(turn.media) for turn in past], MAX_IMAGES - len(told.media)),
            view.fold_start([sum(ref.size_bytes for ref in turn.media) for turn in past], bytes_left),
        )
    return start


def tell(lines: Sequence[Heard], *, omitted: int, plain: bool) -> Told:
    """All of these lines, with their images."""
    return Told(
        heard=hear([one.line for one in lines], omitted=omitted, plain=plain),
        covers=tuple(one.seq for one in lines),
        senders=tuple(one.sender for one in lines),
        media=tuple(ref for one in lines for ref in one.images),
    )


def _tokens(one: Heard) -> int:
    return view.estimate_tokens(render_line(one.line)) + view.images_tokens(one.images)
