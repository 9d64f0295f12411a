"""Whether the view of a conversation is folded before a turn, and how. Pure: a plan, which others carry out.

Keeping S tokens that could go costs S * read at each request. Letting them go costs R * (write - read) once, where R
is what stands behind the first change, for that is written to the provider's cache anew. So a fold pays once the rent
that was paid for them has grown to the price (the economic order quantity), if enough requests are still to come.
Where the cache is cold the price is 0.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from agent.projection import Form, Raw, size, summed, trimmed
from agent.stubs import stubs, tokens

KEEP_SHARE = 0.50
"""Of the budget survives a fold under pressure, so that the next one is far off."""
HEAD_SHARE = 0.25
"""Of what survives may be the text that stands in front of the turns."""
MIN_GAIN_TOKENS = 64
"""A fold that nothing presses for saves at least this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One turn in view, in tokens, images included. Made so that `whole >= trimmed >= summed`."""

    whole: int
    trimmed: int
    """With no result spared."""
    summed: int
    """Without excerpts."""
    form: Form = Form.WHOLE
    """As it is told now."""
    results: tuple[int, ...] = ()
    """What each result that a trim would clear saves, oldest first; together `whole - trimmed` at most. What else a
    trim saves (calls that are kept elsewhere) has no part in it."""
    requests: int = 1
    """Model requests that it made."""
    covered: bool = False
    """The newest journal entry of this place was written after it ended."""

    def __post_init__(self) -> None:
        trimmed = min(self.trimmed, self.whole)
        object.__setattr__(self, "trimmed", trimmed)
        object.__setattr__(self, "summed", min(self.summed, trimmed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What else counts. Every number is finite."""

    budget: int
    """Tokens for head, turns and new lines together."""
    new: int = 0
    """Estimated tokens of the new lines, with their images."""
    head: int = 0
    """Estimated tokens of the text in front of the turns. 0: there is none."""
    scale: float = 1.0
    """Tokens billed for the last prompt per token estimated: every estimate is multiplied by it."""
    full: bool = False
    """The provider counted more in the last prompt than `fold_at_pct` allows."""
    force: int = 0
    """The provider said that this turn's prompt is too long: for the n-th time. 0: it did not."""
    cold: bool = False
    """Nothing of the view is in the provider's cache, so to change it costs nothing."""
    read: float = 0.1
    """Share of the input price for what is read from the cache."""
    write: float = 1.25
    """The same for what is written to it."""
    ahead: float = 20.0
    """Requests expected, this turn's included, before the cache is cold anyway."""
    spared: int = 0
    """`Marks.spared` of the view as it is."""
    keep_results: int = 2
    """So many of the newest results stay whole."""
    excerpts: int = 0
    """Tokens of summarised loops' results that may be told word for word."""
    policy: Literal["auto", "always", "full"] = "auto"
    """auto: fold where it costs nothing or pays; always: before each turn; full: only under pressure."""
    compact_above: int | None = None
    """Tokens of head, turns and new lines above which a model is to summarise what gentler means leave too long.
    None: no model does."""
    keep_tail: int = 0
    """Tokens of the newest turns that a summary or the journal does not take the place of, if there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the view is told from now on. Indices are into the turns as they were handed in."""

    start: int = 0
    """`turns[:start]` leave."""
    summed: int = 0
    """`turns[start:summed]` are SUMMED."""
    trimmed: int = 0
    """`turns[summed:trimmed]` are TRIMMED. At least `summed`."""
    spared: int = 0
    """As `Marks.spared`."""
    excerpts: int = 0
    """As `Marks.excerpts_tokens`."""
    head: int = 0
    """What the text in front may take from now on, in estimated tokens. As it is, unless `turns[:start]` leave."""
    kinds: tuple[str, ...] = ()
    """What is done, gentlest first: `trim`, `sum`, `bridge`, `summary`, `drop`. Empty: the view stays."""
    summarise: bool = False
    """A model is to summarise `turns[:start]`. If it cannot: decide again with `compact_above=None`."""
    verdict: str = ""
    """Why, in words, with the numbers. Empty: nothing could go."""

    @property
    def folds(self) -> bool:
        """Whether the view changes."""
        return bool(self.kinds)


def dump(at: Situation) -> str:
    """Canonical JSON."""
    return json.dumps(asdict(at), sort_keys=True, separators=(",", ":"), allow_nan=False)


def load(text: str) -> Situation:
    """Reverse `dump`; what is not there is as it is by default. Raises ValueError or TypeError for anything else."""
    return Situation(**json.loads(text))


def weigh(turn: Raw, *, form: Form, images: int = 0, requests: int = 1, covered: bool = False) -> Sizes:
    """Measure a turn in each form. `images`: tokens of what was shown with it."""
    found = stubs(turn.seq, turn.exchange)
    calls = [called for step in turn.exchange.steps for called in step.calls]
    return Sizes(
        whole=size(turn.exchange) + images,
        trimmed=size(trimmed(turn)) + images,
        summed=size(summed(turn)) + images,
        form=form,
        results=tuple(tokens(calls[number - 1]) - tokens(stub) for number, stub in found.items()),
        requests=requests,
        covered=covered,
    )


def decide(turns: Sequence[Sizes], at: Situation) -> Decision:
    """How the turns in view (oldest first) are told from now on.

    Marks only move forward. Under pressure head and turns take half of the budget afterwards at most, and with the
    new lines no more than all of it, as far as there is anything that can leave.
    """
    forms = [turn.form for turn in turns]
    summed = forms.count(Form.SUMMED)
    return Decision(summed=summed, trimmed=summed + forms.count(Form.TRIMMED), spared=at.spared, head=at.head)
