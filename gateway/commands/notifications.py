"""The command `notify`: types of notifications, thresholds, rules, and how often each rule decided."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from channels.base import CommandCompletion
from channels.text import single_line
from gateway.access.approval_texts import inline_code
from gateway.commands.agent import show_pending
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandReply,
    sees_everything,
)
from gateway.commands.definition import CommandDefinition, SubcommandDefinition, make_arg
from gateway.core.facts import AMBIENT, LOW, NORMAL, URGENT, AttentionRuleSet, AttentionThresholdSet, Fact, Judgement
from gateway.core.i18n import N_, _
from gateway.store import NotificationTypeCount
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.attention import (
    MAX_RULES,
    MAX_THRESHOLDS,
    REGEX_TIMED_OUT,
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


def count_decisions(policy: AttentionPolicy, judged: Sequence[Judgement]) -> list[RuleStatistics]:
    """Count decisions: the rules in the order in which they are tried, then all others, the most frequent first.

    `judged` may be older than the present rules, which are identified by position only.
    """
    decided, late = Counter[str](), Counter[str]()
    for one in judged:
        rule, *slow = one.rule.split(REGEX_TIMED_OUT)
        decided[rule] += 1
        late.update(slow)
    known = {name: describe_rule(rule) for name, rule in iter_named_rules(policy)}
    order = [*known, *(rule for rule, __ in decided.most_common() if rule not in known)]
    order += [rule for rule in late if rule not in order]
    return [
        RuleStatistics(rule=rule, says=known.get(rule, ""), decided=decided[rule], late=late[rule]) for rule in order
    ]


def describe_rule(rule: AttentionRule) -> str:
    """Return a rule in words."""
    terms = [rule.type]
    if rule.keyword is not None:
        terms.append(_("with {text}").format(text=repr(rule.keyword)))
    if rule.regex is not None:
        terms.append(_("with {text}").format(text=f"/{rule.regex.source}/"))
    if rule.role is not None:
        terms.append(_("from {role} and above").format(role=rule.role))
    return f"{', '.join(terms)}: {URGENCY_WORDS[rule.urgency]}"


MAX_TYPES: Final = 40
"""Types in one answer, the latest ones."""
RECENT_NOTIFICATIONS: Final = 500
"""Notifications for which decisions are counted."""
MAX_TYPE_CHARS: Final = 200
MAX_KEYWORD_CHARS: Final = 100
_MAX_RULE_CHARS: Final = MAX_TYPE_CHARS + MAX_KEYWORD_CHARS + 200
_DIRECT: Final = ".direct."
_NO_TYPE: Final = N_("Write a type as `notify types` shows it, or its first words up to a dot.")


async def show_types(call: CommandCall, context: CommandContext) -> CommandReply:
    """List types, the newest first; those of direct chats only for an owner in a direct chat, else counted."""
    found = await context.store.notification_types()
    shown = found if sees_everything(call) else _without_direct_types(found)
    newest = sorted(shown, key=lambda one: one.last_at, reverse=True)
    bars = list_thresholds(context.attention.policy, [one.type for one in newest[:MAX_TYPES]])
    lines = [
        _("- {type}: {count} so far, the last at {time} UTC; {threshold}").format(
            type=inline_code(one.type, MAX_TYPE_CHARS),
            count=one.count,
            time=f"{one.last_at:%Y-%m-%d %H:%M}",
            threshold=_format_threshold(bar.lowest, bar.where),
        )
        for one, bar in zip(newest, bars, strict=False)
    ]
    if len(newest) > MAX_TYPES:
        lines.append(_("- and {count} older types").format(count=len(newest) - MAX_TYPES))
    if len(shown) < len(found):
        lines.append(_("- and {count} types of direct chats").format(count=len(found) - len(shown)))
    return CommandReply(text="\n".join(lines) or _("There was no notification so far."), data=found)


async def change_threshold(call: CommandCall, context: CommandContext) -> CommandReply:
    """Show the threshold of a type, or set it."""
    dotted = _parse_type(call.arguments["type"]).removesuffix(".*")
    if not dotted:
        return CommandReply(text=_(_NO_TYPE), ok=False)
    urgency, here = call.arguments.get("urgency"), context.attention.overrides.thresholds
    if urgency is None:
        return CommandReply(
            text=_describe_threshold(context.attention.policy, dotted),
            data=list_thresholds(context.attention.policy, [dotted]),
        )
    if urgency == "reset":
        if dotted not in here:
            return CommandReply(
                text=f"{_('No threshold was set by command for this type.')} "
                f"{_describe_threshold(context.attention.policy, dotted)}"
            )
        left = replace(context.attention.overrides, thresholds={one: here[one] for one in here if one != dotted})
        then = replace(context.attention.policy, overrides=left)
        words = f"{_('The threshold is removed.')} {_describe_threshold(then, dotted)}"
        return _build_change_reply(words, AttentionThresholdSet(type=dotted, value=None, by=call.person))
    if dotted not in here and len(here) >= MAX_THRESHOLDS:
        text = _("There are already {count} thresholds, which is the most. Remove one with `reset`.")
        return CommandReply(text=text.format(count=MAX_THRESHOLDS), ok=False)
    words = _("From now on, for {type}: {threshold}.").format(
        type=inline_code(dotted, MAX_TYPE_CHARS), threshold=_format_threshold(urgency, "")
    )
    words += await _find_unseen_note(context, dotted)
    return _build_change_reply(
        words, AttentionThresholdSet(type=dotted, value=URGENCY_BY_WORD[urgency], by=call.person)
    )


async def show_rules(_call: CommandCall, context: CommandContext) -> CommandReply:
    """List the rules in the order in which they are tried, and how often each decided lately."""
    newest = await context.store.newest_entries(RECENT_NOTIFICATIONS, kinds=["judged"])
    judged = [one.fact for one in newest if isinstance(one.fact, Judgement)]
    found = count_decisions(context.attention.policy, judged)
    lines = [
        _("- {id}: {rule}; decisions: {count}").format(
            id=inline_code(one.rule), rule=inline_code(one.says, _MAX_RULE_CHARS), count=one.decided
        )
        for one in found
        if one.says
    ]
    counted = _("(counted over the newest {count} notifications)").format(count=len(judged))
    text = "\n".join([*lines, counted]) if lines else _("There are no rules.")
    return CommandReply(text=text, data=found)


async def add_rule(call: CommandCall, context: CommandContext) -> CommandReply:
    """Add a rule before all others."""
    dotted, keyword = (
        _parse_type(call.arguments["type"]),
        single_line(call.arguments.get("keyword", ""), MAX_KEYWORD_CHARS + 1),
    )
    if not dotted:
        return CommandReply(text=_(_NO_TYPE), ok=False)
    if len(keyword) > MAX_KEYWORD_CHARS:
        text = _("A keyword can have at most {count} characters.").format(count=MAX_KEYWORD_CHARS)
        return CommandReply(text=text, ok=False)
    if context.attention.is_full:
        return CommandReply(
            text=_("There are already {count} rules, which is the most. Remove one with `notify unrule`.").format(
                count=MAX_RULES
            ),
            ok=False,
        )
    unseen = await _find_unseen_note(context, dotted)
    name, release = context.attention.reserve_name()
    level = URGENCY_BY_WORD[call.arguments["urgency"]]
    fact = AttentionRuleSet(rule=name, type=dotted, urgency=level, keyword=keyword, by=call.person)
    says = inline_code(describe_rule(build_override_rule(fact)), _MAX_RULE_CHARS)
    words = _("I added rule `{id}` in front of all others: {rule}.").format(id=name, rule=says) + unseen
    return CommandReply(
        text=words, effect=CommandEffect(answer=words, facts=(EffectFact(fact),), settle=lambda _: release())
    )


async def remove_rule(call: CommandCall, context: CommandContext) -> CommandReply:
    """Remove a rule that was added here."""
    wanted = call.arguments["id"].strip(" `").lower()
    found = next((one for one in context.attention.rules if one.rule == wanted), None)
    if found is None:
        added = ", ".join(f"`{one.rule}`" for one in context.attention.rules)
        text = _("There is no rule {id} that was added by command.").format(id=inline_code(wanted))
        if added:
            text = f"{text} {_('These were added: {rules}.').format(rules=added)}"
        return CommandReply(text=text, ok=False)
    words = _("I removed rule `{id}`.").format(id=found.rule)
    return _build_change_reply(words, replace(found, gone=True, by=call.person))


async def suggest_rules(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest the rules that were added."""
    return [one.rule for one in context.attention.rules]


async def suggest_types(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest recent types and their prefixes, the newest first."""
    newest = sorted(
        _without_direct_types(await context.store.notification_types()), key=lambda one: one.last_at, reverse=True
    )
    words = (one.type.split(".") for one in newest)
    heads = (".".join(some[:end]) for some in words for end in range(len(some), 0, -1))
    return list(dict.fromkeys(heads))


def _describe_threshold(policy: AttentionPolicy, dotted: str) -> str:
    level, says = find_effective_threshold(policy, dotted)
    threshold = _format_threshold(URGENCY_WORDS[level], says or "default")
    return _("{type}: {threshold}.").format(type=inline_code(dotted, MAX_TYPE_CHARS), threshold=threshold)


async def _find_unseen_note(context: CommandContext, dotted: str) -> str:
    """Return a note for a type that never came: it may be misspelt."""
    for one in await context.store.notification_types():
        together = one.type.endswith(".*") and dotted.startswith(one.type[:-1])  # counted with others
        if together or one.type == dotted or one.type.startswith(f"{dotted}.") or fnmatchcase(one.type, dotted):
            return ""
    return f" {_('No notification of this type came so far; is it spelled right?')}"


def _without_direct_types(types: Sequence[NotificationTypeCount]) -> list[NotificationTypeCount]:
    """Return the types without those of direct chats; other types from there name the same channel and room."""
    heads = [one.type.partition(_DIRECT) for one in types if _DIRECT in one.type]
    alone = {(f"{channel}.", f".{room}") for channel, __, room in heads}
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
    threshold = _("all pass") if lowest == URGENCY_WORDS[0] else _("{urgency} and above pass").format(urgency=lowest)
    return f"{threshold} ({inline_code(says, _MAX_RULE_CHARS)})" if says and says != "default" else threshold


def _build_change_reply(words: str, fact: Fact) -> CommandReply:
    return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(EffectFact(fact),)))


COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="notify",
        group="what I do",
        summary="Show and change what may interrupt me.",
        subs=(
            SubcommandDefinition(
                name="types",
                summary="List the types of notifications so far, and their thresholds.",
                handler=show_types,
            ),
            SubcommandDefinition(
                name="threshold",
                summary="Set the lowest urgency of a type that passes. Without one: show it.",
                args=(
                    make_arg("type", "A type, or the beginning of one.", form="word", needed=True, suggests=True),
                    make_arg(
                        "urgency", "The lowest urgency that passes.", "ambient", "low", "normal", "urgent", "reset"
                    ),
                ),
                handler=change_threshold,
            ),
            SubcommandDefinition(
                name="rules", summary="List the rules that raise and lower urgency.", handler=show_rules
            ),
            SubcommandDefinition(
                name="rule",
                summary="Add a rule.",
                args=(
                    make_arg(
                        "urgency", "The urgency that the rule gives.", "ambient", "low", "normal", "urgent", needed=True
                    ),
                    make_arg("type", "A type, or the beginning of one.", form="word", needed=True, suggests=True),
                    make_arg("keyword", "The rule counts only for texts with this word.", rest=True),
                ),
                handler=add_rule,
            ),
            SubcommandDefinition(
                name="unrule",
                summary="Remove a rule that was added by command.",
                args=(
                    make_arg("id", "The id of the rule, as in notify rules.", form="id", needed=True, suggests=True),
                ),
                handler=remove_rule,
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
)

(_NOTIFY,) = COMMANDS
OPERATOR_COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    replace(
        _NOTIFY,
        aliases=("notifications",),
        subs=(
            *_NOTIFY.subs,
            SubcommandDefinition(
                name="pending", summary="Count what I have not read yet, by conversation.", handler=show_pending
            ),
        ),
    ),
)
"""What the operator alone may do."""
