"""What of a conversation the model sees. Pure.

Between folds the view only grows at its end, so that its bytes stay a cached prefix. A fold moves the
beginning forward by a large step, seldom, instead of by one turn, always.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

BYTES_PER_TOKEN = 3.5
"""Utf-8 bytes per token, on the low side: an estimate too high folds early, one too low overflows."""

WINDOW_SHARE = 0.60
"""Of the model's window may be used at all: beyond that answers get worse."""
MIN_USABLE_TOKENS = 8_000
"""May be used of a small window all the same: 60 % of 8k would be filled by the persona and the tools alone."""
ANSWER_SHARE = 0.25
"""Of the window is kept for an answer at most, whatever a model may be asked for."""
SLACK_SHARE = 1 / 16
"""Of the window is never used: estimates are that far off before the first bill corrects them."""
RESERVED_SHARE = 0.25
"""Of that stays free for output and for what tools bring in."""
KEEP_SHARE = 0.50
"""Of the budget survives a fold, so that the next one is far off."""
UNREAD_SHARE = 0.50
"""Of the budget may be taken by unread lines alone."""

MAX_IMAGE_TOKENS = 1_600
PIXELS_PER_TOKEN = 750
"""Of an image, after a large one has been scaled down (platform.claude.com, build-with-claude/vision)."""


def estimate_tokens(text: str) -> int:
    """Roughly; never 0, for the frame around each message costs something too."""
    return int(len(text.encode()) / BYTES_PER_TOKEN) + 4


class ImageSize(Protocol):
    """An image, as far as it counts here."""

    @property
    def width(self) -> int:
        """Pixels. 0: not known."""

    @property
    def height(self) -> int:
        """The same."""


def estimate_image_tokens(images: Iterable[ImageSize]) -> int:
    """Roughly; as much as there can be for those whose size is not known."""
    pixels = (image.width * image.height for image in images)
    return sum(min(MAX_IMAGE_TOKENS, each // PIXELS_PER_TOKEN + 1) if each else MAX_IMAGE_TOKENS for each in pixels)


def answer_tokens(context_tokens: int, output_tokens: int) -> int:
    """Tokens of the window that are kept for an answer: `output_tokens`, but not most of a small window."""
    return min(output_tokens, int(context_tokens * ANSWER_SHARE))


def usable_tokens(context_tokens: int, output_tokens: int) -> int:
    """Tokens that whole prompts may have: enough of the window stays free for an answer of `output_tokens`."""
    share = max(int(context_tokens * WINDOW_SHARE), MIN_USABLE_TOKENS)
    answer = answer_tokens(context_tokens, output_tokens)
    return max(256, min(share, context_tokens - answer - int(context_tokens * SLACK_SHARE)))


def budget_tokens(context_tokens: int, fixed_tokens: int) -> int:
    """Tokens for the conversation, after the blocks and the reserve; at least a few lines' worth."""
    return max(256, int(context_tokens * WINDOW_SHARE * (1 - RESERVED_SHARE)) - fixed_tokens)


def fold_start(sizes: Sequence[int], budget: int) -> int:
    """Index of the first turn to keep, so that their sizes have room, and half of it is free; 0: all fits."""
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
    """Which unread lines to tell, by index, oldest first; and whether some that were `spoken` to the agent must wait.

    Those are taken from the oldest, and what was overheard fills the room that is left, newest first. Together
    they fill the share of new lines at most, but at least one line is told.
    """
    room, told = budget * UNREAD_SHARE, list[int]()
    for index in (index for index, said in enumerate(spoken) if said):
        room -= sizes_tokens[index]
        if told and room < 0:
            return tuple(told), True
        told.append(index)
    for index in reversed([index for index, said in enumerate(spoken) if not said]):
        room -= sizes_tokens[index]
        if told and room < 0:
            break
        told.append(index)
    return tuple(sorted(told)), False
