"""Sizes of the view: token estimates, and the shares of a model's window. Pure.

The view is the part of a conversation that the model sees. Between folds it only grows at its end, so that its bytes
stay a cached prefix. A fold moves its beginning forward by a large step, seldom, instead of by one turn, always.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes per token, on the low side: too high an estimate folds early, too low a one overflows."""

WINDOW_SHARE = 0.60
"""Share of the model's window that may be used at all: beyond it answers get worse."""
MIN_USABLE_TOKENS = 8_000
"""Tokens of a small window that may be used in any case: persona and tools alone would fill 60 % of 8k."""
ANSWER_SHARE = 0.25
"""Largest share of the window that is kept for an answer, whatever the model's own limit is."""
SLACK_SHARE = 1 / 16
"""Share of the window that is never used: estimates are off by as much before the first bill corrects them."""
RESERVED_SHARE = 0.25
"""Share of the usable window that stays free for output and tool results."""
KEEP_SHARE = 0.50
"""Share of the budget that survives a fold, so that the next fold is far off."""
UNREAD_SHARE = 0.50
"""Share of the budget that unread messages may take."""

MAX_IMAGE_TOKENS = 1_600
"""Tokens of one image at most, after a large one was scaled down (see `PIXELS_PER_TOKEN`)."""
PIXELS_PER_TOKEN = 750
"""Pixels of an image per token (platform.claude.com, build-with-claude/vision)."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text. Never 0: the frame around a message costs some too."""
    return int(len(text.encode()) / BYTES_PER_TOKEN) + 4


class ImageSize(Protocol):
    """Size of an image."""

    @property
    def width(self) -> int:
        """Pixels. 0: not known."""

    @property
    def height(self) -> int:
        """Pixels. 0: not known."""


def estimate_image_tokens(images: Iterable[ImageSize]) -> int:
    """Estimate the tokens of images. An image of unknown size counts as the largest."""
    pixels = (image.width * image.height for image in images)
    return sum(min(MAX_IMAGE_TOKENS, count // PIXELS_PER_TOKEN + 1) if count else MAX_IMAGE_TOKENS for count in pixels)


def answer_tokens(context_tokens: int, output_tokens: int) -> int:
    """Return the tokens kept for an answer: `output_tokens`, but at most a share of a small window."""
    return min(output_tokens, int(context_tokens * ANSWER_SHARE))


def usable_tokens(context_tokens: int, output_tokens: int) -> int:
    """Return the limit of whole prompts, so that enough of the window stays free for an answer."""
    share = max(int(context_tokens * WINDOW_SHARE), MIN_USABLE_TOKENS)
    answer = answer_tokens(context_tokens, output_tokens)
    return max(256, min(share, context_tokens - answer - int(context_tokens * SLACK_SHARE)))


def budget_tokens(context_tokens: int, fixed_tokens: int) -> int:
    """Return the tokens for the conversation, without blocks and reserve: at least a few lines' worth."""
    return max(256, int(context_tokens * WINDOW_SHARE * (1 - RESERVED_SHARE)) - fixed_tokens)


def fold_start(sizes: Sequence[int], budget: int) -> int:
    """Return the index of the first turn to keep, so that half of the budget is free. 0: all turns fit."""
    total = sum(sizes)
    if total <= budget:
        return 0
    goal = min(total, budget) * KEEP_SHARE
    kept = 0
    for index in range(len(sizes) - 1, -1, -1):
        kept += sizes[index]
        if kept > goal:
            return index + 1
    return 0


def choose_unread(sizes_tokens: Sequence[int], spoken: Sequence[bool], budget: int) -> tuple[tuple[int, ...], bool]:
    """Return the indices of the unread messages to show, oldest first, and whether some to the agent must wait.

    Messages to the agent (`spoken`) are taken from the oldest on; overheard ones fill the rest of the room, newest
    first. Together they fill `UNREAD_SHARE` of the budget at most, but at least one message is shown.
    """
    room, chosen = budget * UNREAD_SHARE, list[int]()
    for index in (index for index, is_spoken in enumerate(spoken) if is_spoken):
        room -= sizes_tokens[index]
        if chosen and room < 0:
            return tuple(chosen), True
        chosen.append(index)
    for index in reversed([index for index, is_spoken in enumerate(spoken) if not is_spoken]):
        room -= sizes_tokens[index]
        if chosen and room < 0:
            break
        chosen.append(index)
    return tuple(sorted(chosen)), False
