"""What administrators set of attention while the gateway runs: thresholds and rules.

The log has each (`ThresholdSet`, `RuleSet`), and the newest word on a type or a rule holds. Here is the picture of that
in memory: `begin` reads it, and from then on it is told of all that is written, whoever wrote it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.attention import NOTHING_MADE, Made, Rule
from gateway.records import Fact, RuleSet, ThresholdSet
from gateway.store import Appended, Entry, Reader

MOST_RULES: Final = 50
"""Each event is held against all of them."""
MOST_THRESHOLDS: Final = 200
_LAST: Final = 2 * MOST_RULES + 1
"""Among so many entries about rules one makes a rule: no more than `MOST_RULES` can be taken back in a row."""


class Overrides:
    """Those of a store. `wrote` is for `Store.hear`; then `begin`, before the first use."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rules: dict[str, RuleSet] = {}
        """By name, in the order of the log."""
        self._thresholds: dict[str, int] = {}
        self._overrides = NOTHING_MADE
        self._newest_number = 0
        """The number of the newest rule."""
        self._reserved_names: set[str] = set()
        """Names of rules that may be written soon."""
        self._buffered: list[Fact] | None = []
        """What was written while the log is read. None: it was read."""

    async def load(self) -> None:
        """Read what holds. Raises StoreError."""
        numbered = await self._reader.newest_entries(_LAST, kinds=["rule_set"])
        holding = [*await self._reader.current_facts("threshold_set"), *await self._reader.current_facts("rule_set")]
        early, self._buffered = self._buffered or [], None
        for fact in (*(one.fact for one in (*numbered, *holding)), *early):
            self._apply(fact)
        self._overrides = made(self._rules.values(), self._thresholds)

    def on_appended(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        """Take what was written now into the picture."""
        news = [
            entry.fact
            for entry, one in zip(entries, written, strict=True)
            if one.is_new and isinstance(entry.fact, RuleSet | ThresholdSet)
        ]
        if self._buffered is not None:
            self._buffered += news
            return
        for fact in news:
            self._apply(fact)
        if news:
            self._overrides = made(self._rules.values(), self._thresholds)

    def current(self) -> Made:
        """What holds, for `attention.Policy.made`."""
        return self._overrides

    @property
    def rules(self) -> Sequence[RuleSet]:
        """In the order in which they were made."""
        return list(self._rules.values())

    @property
    def is_full(self) -> bool:
        """Whether there may be no more rules."""
        return len(self._rules.keys() | self._reserved_names) >= MOST_RULES

    def reserve_name(self) -> tuple[str, Callable[[], None]]:
        """For a rule that is to be made: a name that none ever had. Call the other once that is written, or is not."""
        self._newest_number += 1
        name = f"r{self._newest_number}"
        self._reserved_names.add(name)
        return name, lambda: self._reserved_names.discard(name)

    def _apply(self, fact: Fact) -> None:
        match fact:
            case RuleSet(rule=name, gone=gone):
                self._rules.pop(name, None)
                if not gone:
                    self._rules[name] = fact
                number = name.removeprefix("r")
                self._newest_number = max(
                    self._newest_number, int(number) if number.isascii() and number.isdigit() else 0
                )
            case ThresholdSet(type=dotted, value=None):
                self._thresholds.pop(dotted, None)
            case ThresholdSet(type=dotted, value=int(value)):
                self._thresholds[dotted] = value
            case _:
                pass


def rule_of(fact: RuleSet) -> Rule:
    """As attention reads it. Pure."""
    return Rule(type=fact.type, urgency=fact.urgency, keyword=fact.keyword or None, name=fact.rule)


def made(rules: Iterable[RuleSet], thresholds: Mapping[str, int]) -> Made:
    """As attention reads them: the newest rule is tried first, so that it holds as soon as it is made. Pure."""
    return Made(rules=tuple(map(rule_of, rules))[::-1], thresholds=dict(thresholds))
