"""How large a request is, piece by piece. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.models.base import Image, ModelMessage, ModelRequest, SystemBlock, TextPart, ToolCall, ToolSpec
from agent.tokens.base import TokenCounter
from agent.view import ImageSize, estimate_image_tokens

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
    """One for each `ModelMessage`."""
    now: int
    """Of what holds for this request only: `aside` and `now`."""
    images: int
    """Of the conversation's: these follow from pixels, so no tokenizer's ratio concerns them."""
    message_images: tuple[int, ...] = ()
    """The same for each `ModelMessage`."""
    total: int = field(init=False)
    """Of the whole prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.tools + sum(self.blocks) + sum(self.conversation) + self.now)


@dataclass(frozen=True, slots=True)
class _UnknownImageSize:
    width: int = 0
    height: int = 0


ReadImageSize = Callable[[bytes], ImageSize | None]
"""What reads an image's size from its bytes; None: it cannot."""


def measure_prompt(
    request: ModelRequest,
    counter: TokenCounter,
    *,
    look: ReadImageSize = lambda _: None,
    before: tuple[ModelRequest, PromptSize] | None = None,
) -> PromptSize:
    """Estimate each part, uncorrected. Costs a look-up for each piece that was counted before.

    `before`: an earlier request, measured in the same way: what both have in common (the same objects) is not
    even looked up.
    """
    count = counter.count
    known = 0 if before is None else common_prefix_length(before[0].conversation, request.conversation)
    sizes = [_measure_message(said, count, look) for said in request.conversation[known:]]
    old = before[1] if before is not None else None
    return PromptSize(
        tools=sum(measure_tool(tool, counter) for tool in request.tools),
        blocks=tuple(measure_block(block, counter) for block in request.blocks),
        conversation=(*(old.conversation[:known] if old else ()), *[words + images for words, images in sizes]),
        now=sum([count(words) + FRAME_TOKENS for words in (request.aside, request.now) if words]),
        images=sum([images for _, images in sizes]) + (sum(old.message_images[:known]) if old else 0),
        message_images=(*(old.message_images[:known] if old else ()), *[images for _, images in sizes]),
    )


def common_prefix_length(old: Sequence[object], new: Sequence[object]) -> int:
    """How many of both, from the first, are the same objects."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (one, other) in pairs if one is not other), min(len(old), len(new)))


def measure_tool(tool: ToolSpec, counter: TokenCounter) -> int:
    """One tool, as the model is told of it."""
    return counter.count(tool.name) + counter.count(tool.description) + counter.count(tool.schema) + TOOL_TOKENS


def measure_block(block: SystemBlock, counter: TokenCounter) -> int:
    """One block of the system prompt."""
    return counter.count(block.text)


def _measure_message(said: ModelMessage, count: Callable[[str], int], look: ReadImageSize) -> tuple[int, int]:
    """Tokens of the words and of the images."""
    words, images = FRAME_TOKENS, 0
    for part in said.parts:
        if isinstance(part, TextPart):
            words += count(part.text)
        elif isinstance(part, Image):
            images += estimate_image_tokens((look(part.data) or _UnknownImageSize(),))
        elif isinstance(part, ToolCall):
            words += count(part.name) + count(part.arguments) + TOOL_TOKENS
        else:
            words += count(part.text) + TOOL_TOKENS
    return words, images
