"""What is known about notifications, for people: their types, what may interrupt, what waits. Pure.

The command line tells it (`gateway.cli_notifications`), and whatever else is asked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.attention import (
    REGEX_TIMED_OUT,
    AttentionPolicy,
    AttentionRule,
    Urgency,
    find_effective_threshold,
    iter_named_rules,
)
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, Judgement
from gateway.store import NotificationTypeCount, PendingCounts
from gateway.store.lines import escape_unprintable

URGENCY_WORDS: Final = ("ambient", "low", "normal", "urgent")
"""The urgencies, by their numbers."""
URGENCY_BY_WORD: Final[Mapping[str, Urgency]] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}
"""The same the other way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeThreshold:
    """What passes of one type."""

    type: str
    lowest: str
    """The lowest urgency that passes, as a word."""
    where: str
    """What says so: a key of the configuration, `notify threshold` and a prefix, or `default`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatistics:
    """Something that decides about notifications, and how often it did so lately."""

    rule: str
    """As `reverie log why` names it."""
    says: str
    """An operator's rule in words; empty for what is built in."""
    decided: int
    late: int
    """How often its regular expression took too long, so that it did not decide."""


def list_thresholds(policy: AttentionPolicy, types: Iterable[str]) -> list[TypeThreshold]:
    """What passes of each type, in their order."""
    found = [(dotted, *find_effective_threshold(policy, dotted)) for dotted in types]
    return [
        TypeThreshold(type=dotted, lowest=URGENCY_WORDS[level], where=says or "default")
        for dotted, level, says in found
    ]


def count_decisions(policy: AttentionPolicy | None, judged: Sequence[Judgement]) -> list[RuleStatistics]:
    """The rules in the order in which they are tried, then all else that decided, the most frequent first.

    `judged` may be of a time when other rules stood there: they are told apart by their places alone.
    """
    decided, late = Counter[str](), Counter[str]()
    for one in judged:
        rule, *slow = one.rule.split(REGEX_TIMED_OUT)
        decided[rule] += 1
        late.update(slow)
    known = {name: describe_rule(rule) for name, rule in iter_named_rules(policy)} if policy is not None else {}
    order = [*known, *(rule for rule, _ in decided.most_common() if rule not in known)]
    order += [rule for rule in late if rule not in order]
    return [
        RuleStatistics(rule=rule, says=known.get(rule, ""), decided=decided[rule], late=late[rule]) for rule in order
    ]


def describe_rule(rule: AttentionRule) -> str:
    """An operator's rule in words."""
    terms = [rule.type]
    if rule.keyword is not None:
        terms.append(f"with {rule.keyword!r}")
    if rule.regex is not None:
        terms.append(f"with /{rule.regex.source}/")
    if rule.role is not None:
        terms.append(f"from a {rule.role} or higher")
    return f"{', '.join(terms)}: {URGENCY_WORDS[rule.urgency]}"


def render_types(types: Sequence[NotificationTypeCount]) -> list[str]:
    """A table, a line each."""
    rows = [(one.type, str(one.count), _format_time(one.first_at), _format_time(one.last_at)) for one in types]
    return _render_table(("type", "count", "first seen (UTC)", "last seen"), rows, ">1") or [
        "no notification was seen yet"
    ]


def render_thresholds(found: Sequence[TypeThreshold]) -> list[str]:
    """The same of thresholds."""
    rows = [(one.type, one.lowest, one.where) for one in found]
    return _render_table(("type", "passes from", "because of"), rows) or ["no notification was seen yet: name a type"]


def render_decisions(found: Sequence[RuleStatistics], judged: int) -> list[str]:
    """The same of what decides; `judged`: of how many notifications this tells."""
    rows = []
    for one in found:
        slow = f"(too slow: {one.late})" if one.late else ""
        rows.append((one.rule, str(one.decided), f"{one.says} {slow}".strip()))
    table = _render_table(("decided by", "times", "which says"), rows, ">1")
    return [*table, f"(of the newest {judged} notifications)"]


def render_pending(pending: Sequence[PendingCounts]) -> list[str]:
    """The same of what is unread."""
    rows = [
        (
            one.conversation,
            *(str(count) for count in (one.urgent, one.normal, one.low, one.ambient)),
            _format_time(one.since),
        )
        for one in pending
    ]
    head = ("conversation", "urgent", "normal", "low", "ambient", "oldest (UTC)")
    return _render_table(head, rows, ">1234") or ["nothing is unread"]


def _format_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Columns as wide as what is in them; those that `right` numbers stand on their right. Nothing of no rows.

    Rooms and people are named in cells: what a terminal could obey is escaped.
    """
    if not rows:
        return []
    safe = [head, *([escape_unprintable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if str(index) in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in safe
    ]
