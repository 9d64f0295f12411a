"""What of the past and of the new lines fits a request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent import view
from agent.models.base import MAX_IMAGES, MAX_IMAGES_BYTES
from agent.prompt import render_line, render_prompt_lines
from gateway.events import SenderId
from gateway.hearing import RenderedMessage
from gateway.past import HistoryView
from gateway.records import MediaRef, Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedInput:
    """What the model is told as new."""

    text: str = ""
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`."""
    media: tuple[MediaRef, ...] = ()
    has_more: bool = False
    """What was said to the agent behind the last of `covers` did not fit: it is for another turn."""


def fit_lines(lines: Sequence[RenderedMessage], *, omitted: int, budget: int, plain: bool) -> RenderedInput:
    """What is told of the new lines.

    `budget`: tokens for them and what is in view. `omitted`: unread lines that are not among `lines`.
    """
    chosen, more = view.choose_unread(
        [_estimate_line_tokens(one) for one in lines], [one.line.is_addressed for one in lines], budget
    )
    left_out = len(lines) - len(chosen)
    return replace(
        render_lines([lines[index] for index in chosen], omitted=omitted + left_out, plain=plain), has_more=more
    )


def count_turns_over_image_limit(seen: HistoryView, told: RenderedInput) -> int:
    """How many turns must leave, or there are more images than one request takes."""
    if not any(turn.media for turn in seen.turns):
        return 0
    bytes_left = MAX_IMAGES_BYTES - sum(ref.size_bytes for ref in told.media)
    return max(
        view.fold_start([len(turn.media) for turn in seen.turns], MAX_IMAGES - len(told.media)),
        view.fold_start([sum(ref.size_bytes for ref in turn.media) for turn in seen.turns], bytes_left),
    )


def render_lines(lines: Sequence[RenderedMessage], *, omitted: int, plain: bool) -> RenderedInput:
    """All of these lines, with their images."""
    return RenderedInput(
        text=render_prompt_lines([one.line for one in lines], omitted=omitted, plain=plain),
        covers=tuple(one.seq for one in lines),
        senders=tuple(one.sender for one in lines),
        media=tuple(ref for one in lines for ref in one.images),
    )


def _estimate_line_tokens(one: RenderedMessage) -> int:
    return view.estimate_tokens(render_line(one.line)) + view.estimate_image_tokens(one.images)
