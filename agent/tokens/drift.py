"""How far estimates are from what is billed, learnt for each model. Pure.

An offline tokenizer is not the model's own: Claude's newer ones make some 30 % more tokens of the same text
(platform.claude.com, about-claude/pricing). But each answer says how many its prompt had, so the ratio is known
after one, and good after a few.
"""

import math
import re
from collections import OrderedDict, deque
from statistics import median

MAX_RATIOS = 15
"""Requests that a model's ratio is the median of: seven odd ones among them change next to nothing."""
MIN_TOKENS = 200
"""Of a request that teaches anything: of a shorter one the provider's own frame is the greater part."""
RATIO_BOUNDS = (0.25, 4.0)
"""No tokenizer is further away; a ratio beyond is a mistake, and must neither fill the window nor empty it."""
_MAX_MODELS = 64
"""Ratios kept. More models than these are names that a server makes up."""
_DENSE_RATIO = 1.35
"""Claude since 4.7, over cl100k: +30 % over its predecessors, which were 5 % above."""
_CLAUDE_BEFORE = re.compile(r"claude-(?:v?[123]\b|instant|[a-z]+-4(?!\d|[-.][7-9](?!\d)))")


def prior_ratio(model: str) -> float:
    """Billed over estimated for a model that has not answered yet, by the name that its provider has for it."""
    name = model.lower()
    if "claude" not in name:
        return 1.0
    return 1.05 if _CLAUDE_BEFORE.search(name) else _DENSE_RATIO


def drift_percent(estimated: int, billed: int) -> float:
    """How far an estimate was from the bill, in percent of the bill, whichever way. `billed` is not 0."""
    return 100.0 * abs(estimated - billed) / billed


class Calibration:
    """Remembers how estimates and bills of each model compare. Made for one way of estimating: do not mix."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, deque[float]] = OrderedDict()
        self._median_ratio: dict[str, float] = {}

    def observe(self, model: str, estimated: int, billed: int) -> None:
        """A request estimated at `estimated` (uncorrected) had `billed` input tokens, cached ones included."""
        if min(estimated, billed) < MIN_TOKENS:
            return
        seen = self._ratios.setdefault(model, deque(maxlen=MAX_RATIOS))
        self._ratios.move_to_end(model)
        seen.append(min(max(billed / estimated, RATIO_BOUNDS[0]), RATIO_BOUNDS[1]))
        self._median_ratio[model] = median(seen)
        while len(self._ratios) > _MAX_MODELS:
            forgotten, _ = self._ratios.popitem(last=False)
            del self._median_ratio[forgotten]

    def calibrate(self, model: str, estimated: int) -> int:
        """What `estimated` tokens are likely to be billed as; never less than 1 for at least 1."""
        return math.ceil(estimated * self.ratio(model))

    def ratio(self, model: str) -> float:
        """Billed over estimated, within `RATIO_BOUNDS`."""
        return self._median_ratio[model] if model in self._median_ratio else prior_ratio(model)
