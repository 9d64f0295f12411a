"""What administrators set of attention while the gateway runs: thresholds and rules.

The log has each (`AttentionThresholdSet`, `AttentionRuleSet`), and the newest word on a type or a rule holds. Here is
the picture of that in memory: `begin` reads it, and from then on it is told of all that is written, whoever wrote it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.attention import NO_OVERRIDES, AttentionOverrides, AttentionRule
from gateway.records import AttentionRuleSet, AttentionThresholdSet, Fact
from gateway.store import AppendResult, NewEntry, StoreReader

MAX_RULES: Final = 50
"""Each event is held against all of them."""
MAX_THRESHOLDS: Final = 200
_RULE_LOOK_BACK: Final = 2 * MAX_RULES + 1
"""Among so many entries about rules one makes a rule: no more than `MAX_RULES` can be taken back in a row."""


class AttentionOverrideStore:
    """Those of a store. `wrote` is for `Store.hear`; then `begin`, before the first use."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._rules: dict[str, AttentionRuleSet] = {}
        """By name, in the order of the log."""
        self._thresholds: dict[str, int] = {}
        self._overrides = NO_OVERRIDES
        self._newest_number = 0
        """The number of the newest rule."""
        self._reserved_names: set[str] = set()
        """Names of rules that may be written soon."""
        self._buffered: list[Fact] | None = []
        """What was written while the log is read. None: it was read."""

    async def load(self) -> None:
        """Read what holds. Raises StoreError."""
        numbered = await self._reader.newest_entries(_RULE_LOOK_BACK, kinds=["rule_set"])
        holding = [*await self._reader.current_facts("threshold_set"), *await self._reader.current_facts("rule_set")]
        early, self._buffered = self._buffered or [], None
        for fact in (*(one.fact for one in (*numbered, *holding)), *early):
            self._apply(fact)
        self._overrides = build_overrides(self._rules.values(), self._thresholds)

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """Take what was written now into the picture."""
        news = [
            entry.fact
            for entry, one in zip(entries, written, strict=True)
            if one.is_new and isinstance(entry.fact, AttentionRuleSet | AttentionThresholdSet)
        ]
        if self._buffered is not None:
            self._buffered += news
            return
        for fact in news:
            self._apply(fact)
        if news:
            self._overrides = build_overrides(self._rules.values(), self._thresholds)

    def current(self) -> AttentionOverrides:
        """What holds, for `attention.Policy.made`."""
        return self._overrides

    @property
    def rules(self) -> Sequence[AttentionRuleSet]:
        """In the order in which they were made."""
        return list(self._rules.values())

    @property
    def is_full(self) -> bool:
        """Whether there may be no more rules."""
        return len(self._rules.keys() | self._reserved_names) >= MAX_RULES

    def reserve_name(self) -> tuple[str, Callable[[], None]]:
        """For a rule that is to be made: a name that none ever had. Call the other once that is written, or is not."""
        self._newest_number += 1
        name = f"r{self._newest_number}"
        self._reserved_names.add(name)
        return name, lambda: self._reserved_names.discard(name)

    def _apply(self, fact: Fact) -> None:
        match fact:
            case AttentionRuleSet(rule=name, gone=gone):
                self._rules.pop(name, None)
                if not gone:
                    self._rules[name] = fact
                number = name.removeprefix("r")
                self._newest_number = max(
                    self._newest_number, int(number) if number.isascii() and number.isdigit() else 0
                )
            case AttentionThresholdSet(type=dotted, value=None):
                self._thresholds.pop(dotted, None)
            case AttentionThresholdSet(type=dotted, value=int(value)):
                self._thresholds[dotted] = value
            case _:
                pass


def build_override_rule(fact: AttentionRuleSet) -> AttentionRule:
    """As attention reads it. Pure."""
    return AttentionRule(type=fact.type, urgency=fact.urgency, keyword=fact.keyword or None, name=fact.rule)


def build_overrides(rules: Iterable[AttentionRuleSet], thresholds: Mapping[str, int]) -> AttentionOverrides:
    """As attention reads them: the newest rule is tried first, so that it holds as soon as it is made. Pure."""
    return AttentionOverrides(rules=tuple(map(build_override_rule, rules))[::-1], thresholds=dict(thresholds))
