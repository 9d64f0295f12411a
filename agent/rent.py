"""What a fold saves and what it costs, in tokens at the input price. Pure.

Keeping S tokens that could go costs S * read at each request: a rent. Letting them go writes R tokens to the cache anew
that would have been read, where R is what stands behind the first change: R * (write - read), once. Of R, what is told
in its last form is written that way once, sooner or later; what will change again is written once more at each fold.
Folds are as far apart as is cheapest in the long run if one is made as soon as the rent, the coming turn's included,
has grown to the price of the latter (as in the economic order quantity, where the cost of ordering equals the cost of
holding). And only if what is still to be saved, until the cache is cold and a fold is free, is worth all of R.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agent.layout import TurnSizes, ViewShape, current_shape, estimate_turn_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldEconomics:
    """What one way to fold comes to. One minus another is what the first one comes to on top of the second."""

    gain: int
    """Tokens that go."""
    rent: float
    """Tokens that could have gone, times the requests that repeated them all the same, the coming turn's included."""
    rewritten: int
    """Tokens behind the first change, as they are told then."""
    rewritten_again: int
    """Of these, what the next fold is going to change."""

    def __sub__(self, other: "FoldEconomics") -> "FoldEconomics":
        return FoldEconomics(
            gain=self.gain - other.gain,
            rent=self.rent - other.rent,
            rewritten=self.rewritten - other.rewritten,
            rewritten_again=self.rewritten_again - other.rewritten_again,
        )

    def is_worthwhile(self, *, read: float, write: float, ahead: float) -> bool:
        """Whether it is time, where the cache is warm."""
        dearer = max(0.0, write - read)
        return self.rent * read >= self.rewritten_again * dearer and self.gain * read * ahead >= self.rewritten * dearer


def assess_fold(
    turns: Sequence[TurnSizes], shape: ViewShape, *, spared: int, excerpts: int, keep: int, loops: int
) -> FoldEconomics:
    """`spared`: results that are whole now in trimmed turns; `keep`, `loops`: newest results and loops that stay."""
    now = current_shape(turns, spared)
    before, after = estimate_turn_tokens(turns, now, excerpts), estimate_turn_tokens(turns, shape, excerpts)
    first = next((place for place, taken in enumerate(before) if after[place] != taken), len(turns))
    last = [
        after[place]
        for place in range(first, len(turns))
        if after[place] != before[place] and after[place] <= turns[place].trimmed
    ]
    coming = sum(turn.requests for turn in turns) / max(1, len(turns))
    since = [*accumulate((turn.requests for turn in reversed(turns)), initial=coming)][-2::-1]
    return FoldEconomics(
        gain=sum(before) - sum(after),
        rent=sum(gain * since[place] for place, gain in _iter_gains(turns, now, shape, keep=keep, loops=loops)),
        rewritten=sum(after[first:]),
        rewritten_again=sum(after[first:]) - sum(last),
    )


def _iter_gains(
    turns: Sequence[TurnSizes], now: ViewShape, shape: ViewShape, *, keep: int, loops: int
) -> Iterator[tuple[int, int]]:
    """What goes, each with the turn since whose end it could have gone."""
    results = [(place, saved) for place, turn in enumerate(turns) for saved in turn.results]
    newest = len(turns) - 1
    for number, (was, is_) in enumerate(zip(_cleared_results(turns, now), _cleared_results(turns, shape), strict=True)):
        if is_ and not was:
            newer = number + keep
            yield results[newer][0] if newer < len(results) else newest, results[number][1]
    for place in range(now.trimmed, shape.trimmed):
        turn = turns[place]
        yield place, turn.whole - turn.trimmed - sum(turn.results)
    for place in range(now.summed, shape.summed):
        yield min(place + loops, newest), turns[place].trimmed - turns[place].summed


def _cleared_results(turns: Sequence[TurnSizes], shape: ViewShape) -> list[bool]:
    """Of each result that a trim would clear, oldest first, whether it is."""
    found, spared = list[bool](), shape.spared
    for place in range(len(turns) - 1, -1, -1):
        for _ in turns[place].results:
            spares = shape.summed <= place < shape.trimmed and spared > 0
            spared -= spares
            found.append(place < shape.trimmed and not spares)
    return found[::-1]
