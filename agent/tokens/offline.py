"""Counting without a network: cl100k, and until that is loaded the heuristic."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent.tokens import ranks
from agent.tokens.base import count_heuristically

if TYPE_CHECKING:
    from tiktoken import Encoding


CountMethod = Literal["heuristic", "tiktoken"]

LOAD_AFTER_S = 0.5
"""From the first count on. Loading holds the interpreter for 0.07 s: by then the first request is under way, and what
is waited for is the model."""
MAX_EXACT_CHARS = 65_536
"""Counted as a whole, within 3 ms (20 ms for one letter repeated); of longer texts that many are."""
_SLICES = 16
_GENERATION_SIZE = 16_384
"""Texts that are surely remembered: more than the past that fits a window. 2.5 MB when twice as many are."""
logger = logging.getLogger(__name__)


class MemoizedCount:
    """A function of texts that remembers its newest results: at least those of 16,384 texts, at most twice that.

    Two generations: what is asked for again moves to the young one, and when that is full the old one goes. Nothing
    is reordered and no text kept alive: keys are Python's own hashes, which a string keeps once computed. Two of
    32,768 texts share all 64 bits once in 3 * 10^10 times, and then an estimate is wrong.
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
    """Counts with cl100k once that is loaded, which the first count begins, in a thread; until then roughly.

    Never exact: it is no model's own tokenizer any more. Not for several threads at once.
    """

    is_exact = False

    def __init__(self, *, file: Path = ranks.RANKS_FILE, load_after_s: float = LOAD_AFTER_S) -> None:
        self._file = file
        self._load_after_s = load_after_s
        self._encoding: Encoding | None = None
        self._count = MemoizedCount(count_heuristically)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.method: CountMethod = "heuristic"
        """How texts are counted. Changes at most once, from one `count` to the next, and never back."""

    def count(self, text: str) -> int:
        if self._thread is None:
            self._thread = threading.Thread(target=self._load, name="tokens", daemon=True)
            self._thread.start()
        elif self.method == "heuristic" and self._encoding is not None:
            self._count, self.method = MemoizedCount(self._count_encoded), "tiktoken"
        return self._count(text)

    def wait_loaded(self, timeout_s: float | None = None) -> None:
        """Wait until loading has ended, if it has begun; for tools and tests that want the better numbers."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Give up loading if it has not begun. What was counted can be counted still. Safe to call twice."""
        self._closing.set()
        self.wait_loaded()

    def _load(self) -> None:
        if self._closing.wait(self._load_after_s):
            return
        try:
            self._encoding = ranks.load_tokenizer(self._file)
        except ranks.TokenizerUnavailable as broken:
            logger.warning("tokens are estimated from bytes: %s", broken)

    def _count_encoded(self, text: str) -> int:
        assert self._encoding is not None
        if len(text) <= MAX_EXACT_CHARS:
            return len(self._encoding.encode_ordinary(text))
        # A megabyte of one letter takes 0.35 s, all on the event loop: slices from all over it stand for the rest.
        size = MAX_EXACT_CHARS // _SLICES
        step = (len(text) - size) // (_SLICES - 1)
        counted = sum(len(self._encoding.encode_ordinary(text[at * step : at * step + size])) for at in range(_SLICES))
        return -(-counted * len(text) // MAX_EXACT_CHARS)
