"""How large a request is, piece by piece. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.models.base import Block, Image, Request, Said, Text, ToolCall, ToolSpec
from agent.tokens.base import Counter
from agent.view import Sized, images_tokens

FRAME_TOKENS = 4
"""Around each message: its role and where it begins and ends (view.estimate_tokens counts as many)."""
TOOL_TOKENS = 12
"""Around each tool, call and result: the words of the JSON that it is told in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """Tokens of a request's parts, in its order."""

    tools: int
    blocks: tuple[int, ...]
    """One each."""
    conversation: tuple[int, ...]
    """One for each `Said`."""
    now: int
    """Of what holds for this request only: `aside` and `now`."""
    images: int
    """Of the conversation's: these follow from pixels, so no tokenizer's ratio concerns them."""
    message_images: tuple[int, ...] = ()
    """The same for each `Said`."""
    total: int = field(init=False)
    """Of the whole prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.tools + sum(self.blocks) + sum(self.conversation) + self.now)


@dataclass(frozen=True, slots=True)
class _Unknown:
    width: int = 0
    height: int = 0


Look = Callable[[bytes], Sized | None]
"""What reads an image's size from its bytes; None: it cannot."""


def prompt_size(
    request: Request,
    counter: Counter,
    *,
    look: Look = lambda _: None,
    before: tuple[Request, PromptSize] | None = None,
) -> PromptSize:
    """Estimate each part, uncorrected. Costs a look-up for each piece that was counted before.

    `before`: an earlier request, measured in the same way: what both have in common (the same objects) is not
    even looked up.
    """
    count = counter.count
    known = 0 if before is None else common(before[0].conversation, request.conversation)
    sizes = [_said(said, count, look) for said in request.conversation[known:]]
    old = before[1] if before is not None else None
    return PromptSize(
        tools=sum(tool_size(tool, counter) for tool in request.tools),
        blocks=tuple(block_size(block, counter) for block in request.blocks),
        conversation=(*(old.conversation[:known] if old else ()), *[words + images for words, images in sizes]),
        now=sum([count(words) + FRAME_TOKENS for words in (request.aside, request.now) if words]),
        images=sum([images for _, images in sizes]) + (sum(old.message_images[:known]) if old else 0),
        message_images=(*(old.message_images[:known] if old else ()), *[images for _, images in sizes]),
    )


def common(old: Sequence[object], new: Sequence[object]) -> int:
    """How many of both, from the first, are the same objects."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (one, other) in pairs if one is not other), min(len(old), len(new)))


def tool_size(tool: ToolSpec, counter: Counter) -> int:
    """One tool, as the model is told of it."""
    return counter.count(tool.name) + counter.count(tool.description) + counter.count(tool.schema) + TOOL_TOKENS


def block_size(block: Block, counter: Counter) -> int:
    """One block of the system prompt."""
    return counter.count(block.text)


def _said(said: Said, count: Callable[[str], int], look: Look) -> tuple[int, int]:
    """Tokens of the words and of the images."""
    words, images = FRAME_TOKENS, 0
    for part in said.parts:
        if isinstance(part, Text):
            words += count(part.text)
        elif isinstance(part, Image):
            images += images_tokens((look(part.data) or _Unknown(),))
        elif isinstance(part, ToolCall):
            words += count(part.name) + count(part.arguments) + TOOL_TOKENS
        else:
            words += count(part.text) + TOOL_TOKENS
    return words, images
