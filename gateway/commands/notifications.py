"""Notification types, thresholds and rules: texts about them, and the command `notify`.

The functions are pure, and serve the command line too (`gateway.cli.agent`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from channels.base import CommandCompletion
from channels.text import single_line
from gateway.access.approval_texts import inline_code
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandHandler,
    CommandReply,
    match_suggestions,
    sees_everything,
)
from gateway.core.facts import AMBIENT, LOW, NORMAL, URGENT, AttentionRuleSet, AttentionThresholdSet, Fact, Judgement
from gateway.core.text_safety import escape_unprintable
from gateway.store import NotificationTypeCount, PendingCounts, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.attention import (
    MAX_RULES,
    MAX_THRESHOLDS,
    REGEX_TIMED_OUT,
    AttentionOverrideStore,
    AttentionPolicy,
    AttentionRule,
    Urgency,
    build_override_rule,
    find_effective_threshold,
    iter_named_rules,
)

URGENCY_WORDS: Final = ("ambient", "low", "normal", "urgent")
"""Names of the urgencies, by number."""
URGENCY_BY_WORD: Final[Mapping[str, Urgency]] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}
"""Urgencies by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeThreshold:
    """Threshold of one type."""

    type: str
    lowest: str
    """Name of the lowest urgency that passes."""
    where: str
    """Origin of the threshold: a configuration key, `notify threshold` and a prefix, or `default`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatistics:
    """A rule that decides about notifications, and how often it did so lately."""

    rule: str
    """Name as in `reverie log why`."""
    says: str
    """The operator's rule in words; empty for built-in ones."""
    decided: int
    late: int
    """Times that its regular expression took too long, so that it did not decide."""


def list_thresholds(policy: AttentionPolicy, types: Iterable[str]) -> list[TypeThreshold]:
    """Return the threshold of each type, in the same order."""
    found = [(dotted, *find_effective_threshold(policy, dotted)) for dotted in types]
    return [
        TypeThreshold(type=dotted, lowest=URGENCY_WORDS[level], where=says or "default")
        for dotted, level, says in found
    ]


def count_decisions(policy: AttentionPolicy | None, judged: Sequence[Judgement]) -> list[RuleStatistics]:
    """Count decisions: the rules in the order in which they are tried, then all others, the most frequent first.

    `judged` may be older than the present rules, which are identified by position only.
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
    """Return a rule in words."""
    terms = [rule.type]
    if rule.keyword is not None:
        terms.append(f"with {rule.keyword!r}")
    if rule.regex is not None:
        terms.append(f"with /{rule.regex.source}/")
    if rule.role is not None:
        terms.append(f"from a {rule.role} or higher")
    return f"{', '.join(terms)}: {URGENCY_WORDS[rule.urgency]}"


def render_types(types: Sequence[NotificationTypeCount]) -> list[str]:
    """Return a table of types, a line each."""
    rows = [(one.type, str(one.count), _format_time(one.first_at), _format_time(one.last_at)) for one in types]
    return _render_table(("type", "count", "first seen (UTC)", "last seen"), rows, ">1") or [
        "no notification was seen yet"
    ]


def render_thresholds(found: Sequence[TypeThreshold]) -> list[str]:
    """Return a table of thresholds, a line each."""
    rows = [(one.type, one.lowest, one.where) for one in found]
    return _render_table(("type", "passes from", "because of"), rows) or ["no notification was seen yet: name a type"]


def render_decisions(found: Sequence[RuleStatistics], judged: int) -> list[str]:
    """Return a table of decisions; `judged`: number of notifications counted."""
    rows = []
    for one in found:
        slow = f"(too slow: {one.late})" if one.late else ""
        rows.append((one.rule, str(one.decided), f"{one.says} {slow}".strip()))
    table = _render_table(("decided by", "times", "which says"), rows, ">1")
    return [*table, f"(of the newest {judged} notifications)"]


def render_pending(pending: Sequence[PendingCounts]) -> list[str]:
    """Return a table of unread counts."""
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
    """Return a table with columns as wide as their content; columns in `right` are right-aligned. Empty without rows.

    Cells name rooms and people, so terminal control characters are escaped.
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


MAX_TYPES: Final = 40
"""Types in one answer, the latest ones."""
RECENT_NOTIFICATIONS: Final = 500
"""Notifications for which decisions are counted."""
MAX_TYPE_CHARS: Final = 200
MAX_KEYWORD_CHARS: Final = 100
_MAX_RULE_CHARS: Final = MAX_TYPE_CHARS + MAX_KEYWORD_CHARS + 200
_DIRECT: Final = ".direct."
_NO_TYPE: Final = "Write a type, as `notify types` lists them, or the beginning of some: whole words between its dots."


class NotificationCommands:
    """Handlers of `notify`."""

    def __init__(self, overrides: AttentionOverrideStore, reader: StoreReader, policy: AttentionPolicy) -> None:
        """`policy`: the attention policy that contains the overrides."""
        self._overrides = overrides
        self._reader = reader
        self._policy = policy

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {
            "notify types": self.types,
            "notify threshold": self.threshold,
            "notify rules": self.rules,
            "notify rule": self.rule,
            "notify unrule": self.unrule,
        }

    async def types(self, call: CommandCall, _context: CommandContext) -> str:
        """List types, the newest first; those of direct chats only for an owner in a direct chat, else counted."""
        found = await self._reader.notification_types()
        shown = found if sees_everything(call) else _without_direct_types(found)
        newest = sorted(shown, key=lambda one: one.last_at, reverse=True)
        bars = list_thresholds(self._policy, [one.type for one in newest[:MAX_TYPES]])
        lines = [
            f"- {inline_code(one.type, MAX_TYPE_CHARS)}: {one.count}, the last {one.last_at:%Y-%m-%d %H:%M} UTC; "
            f"{_format_threshold(bar.lowest, bar.where)}"
            for one, bar in zip(newest, bars, strict=False)
        ]
        if len(newest) > MAX_TYPES:
            lines.append(f"- and {len(newest) - MAX_TYPES} that came before")
        if len(shown) < len(found):
            lines.append(f"- and {len(found) - len(shown)} of direct chats")
        return "\n".join(lines) if lines else "No notification came so far."

    async def threshold(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Show the threshold of a type, or set it."""
        dotted = _parse_type(call.arguments["type"]).removesuffix(".*")
        if not dotted:
            return CommandReply(text=_NO_TYPE, ok=False)
        urgency, here = call.arguments.get("urgency"), self._policy.overrides().thresholds
        if urgency is None:
            return CommandReply(text=self._describe_threshold(self._policy, dotted))
        if urgency == "reset":
            if dotted not in here:
                return CommandReply(
                    text=f"Nothing was set here for it. {self._describe_threshold(self._policy, dotted)}"
                )
            left = replace(self._policy.overrides(), thresholds={one: here[one] for one in here if one != dotted})
            then = replace(self._policy, overrides=lambda: left)
            words = f"What was set here is taken back. {self._describe_threshold(then, dotted)}"
            return _build_change_reply(words, AttentionThresholdSet(type=dotted, value=None, by=call.person))
        if dotted not in here and len(here) >= MAX_THRESHOLDS:
            return CommandReply(
                text=f"There are {MAX_THRESHOLDS} of them already: take one back with `reset`.", ok=False
            )
        words = (
            f"From now on {inline_code(dotted, MAX_TYPE_CHARS)} "
            f"{_format_threshold(urgency, '')}.{await self._find_unseen_note(dotted)}"
        )
        return _build_change_reply(
            words, AttentionThresholdSet(type=dotted, value=URGENCY_BY_WORD[urgency], by=call.person)
        )

    async def rules(self, _call: CommandCall, _context: CommandContext) -> str:
        """List the rules in the order in which they are tried, and how often each decided lately."""
        newest = await self._reader.newest_entries(RECENT_NOTIFICATIONS, kinds=["judged"])
        judged = [one.fact for one in newest if isinstance(one.fact, Judgement)]
        found = [one for one in count_decisions(self._policy, judged) if one.says]
        lines = [
            f"- {inline_code(one.rule)}: {inline_code(one.says, _MAX_RULE_CHARS)}; {one.decided} decided by it"
            for one in found
        ]
        return "\n".join([*lines, f"(of the newest {len(judged)} notifications)"]) if lines else "There are no rules."

    async def rule(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Add a rule before all others."""
        dotted, keyword = (
            _parse_type(call.arguments["type"]),
            single_line(call.arguments.get("keyword", ""), MAX_KEYWORD_CHARS + 1),
        )
        if not dotted:
            return CommandReply(text=_NO_TYPE, ok=False)
        if len(keyword) > MAX_KEYWORD_CHARS:
            return CommandReply(text=f"A keyword has at most {MAX_KEYWORD_CHARS} characters.", ok=False)
        if self._overrides.is_full:
            return CommandReply(
                text=f"There are {MAX_RULES} of them already: take one back with `notify unrule`.", ok=False
            )
        unseen = await self._find_unseen_note(dotted)
        name, release = self._overrides.reserve_name()
        level = URGENCY_BY_WORD[call.arguments["urgency"]]
        fact = AttentionRuleSet(rule=name, type=dotted, urgency=level, keyword=keyword, by=call.person)
        says = inline_code(describe_rule(build_override_rule(fact)), _MAX_RULE_CHARS)
        words = f"Rule `{name}` is added, in front of all others: {says}.{unseen}"
        return CommandReply(
            text=words, effect=CommandEffect(answer=words, facts=(EffectFact(fact),), settle=lambda _: release())
        )

    async def unrule(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Remove a rule that was added here."""
        wanted = call.arguments["id"].strip(" `").lower()
        found = next((one for one in self._overrides.rules if one.rule == wanted), None)
        if found is None:
            added = ", ".join(f"`{one.rule}`" for one in self._overrides.rules)
            there = f"Those that were added here: {added}." if added else "None was added here."
            return CommandReply(text=f"There is no rule {inline_code(wanted)} to take back. {there}", ok=False)
        return _build_change_reply(f"Rule `{found.rule}` is taken back.", replace(found, gone=True, by=call.person))

    async def suggest(self, typed: CommandCompletion) -> list[str]:
        """Suggest recent types and their prefixes, the newest first; or the rules that were added."""
        if typed.sub == "unrule":
            return match_suggestions([one.rule for one in self._overrides.rules], typed.prefix)
        newest = sorted(
            _without_direct_types(await self._reader.notification_types()), key=lambda one: one.last_at, reverse=True
        )
        words = (one.type.split(".") for one in newest)
        heads = (".".join(some[:end]) for some in words for end in range(len(some), 0, -1))
        return match_suggestions(dict.fromkeys(heads), typed.prefix)

    def _describe_threshold(self, policy: AttentionPolicy, dotted: str) -> str:
        level, says = find_effective_threshold(policy, dotted)
        return f"{inline_code(dotted, MAX_TYPE_CHARS)} {_format_threshold(URGENCY_WORDS[level], says or 'default')}."

    async def _find_unseen_note(self, dotted: str) -> str:
        """Return a note for a type that never came: it may be misspelt."""
        for one in await self._reader.notification_types():
            together = one.type.endswith(".*") and dotted.startswith(one.type[:-1])  # counted with others
            if together or one.type == dotted or one.type.startswith(f"{dotted}.") or fnmatchcase(one.type, dotted):
                return ""
        return " Nothing like that came so far."


def _without_direct_types(types: Sequence[NotificationTypeCount]) -> list[NotificationTypeCount]:
    """Return the types without those of direct chats; other types from there name the same channel and room."""
    heads = [one.type.partition(_DIRECT) for one in types if _DIRECT in one.type]
    alone = {(f"{channel}.", f".{room}") for channel, _, room in heads}
    return [
        one
        for one in types
        if not any(one.type.startswith(channel) and one.type.endswith(room) for channel, room in alone)
    ]


def _parse_type(written: str) -> str:
    """Return a written type; empty: it cannot be one."""
    dotted = written.strip(" `")
    return dotted if dotted.isprintable() and len(dotted) <= MAX_TYPE_CHARS and dotted.strip(".*") else ""


def _format_threshold(lowest: str, says: str) -> str:
    because = f" ({inline_code(says, _MAX_RULE_CHARS)})" if says and says != "default" else ""
    return f"passes whatever it is{because}" if lowest == URGENCY_WORDS[0] else f"passes from {lowest} on{because}"


def _build_change_reply(words: str, fact: Fact) -> CommandReply:
    return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(EffectFact(fact),)))
