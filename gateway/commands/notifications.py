"""The command `notify`: types of notifications, and thresholds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from channels.base import CommandCompletion
from gateway.access.approval_texts import inline_code
from gateway.commands.agent import show_pending
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    sees_everything,
)
from gateway.commands.definition import command, make_arg
from gateway.core.facts import AMBIENT, LOW, NORMAL, URGENT, AttentionThresholdSet
from gateway.core.i18n import N_, _
from gateway.store import NotificationTypeCount
from gateway.store.effects import CommandEffect, done, refuse
from gateway.stream.attention import (
    MAX_THRESHOLDS,
    AttentionPolicy,
    Urgency,
    find_effective_threshold,
)

URGENCY_WORDS: Final = ("ambient", "low", "normal", "urgent")
"""Names of the urgencies, by number."""
URGENCY_BY_WORD: Final[Mapping[str, Urgency]] = {
    "ambient": AMBIENT,
    "low": LOW,
    "normal": NORMAL,
    "urgent": URGENT,
}
"""Urgencies by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeThreshold:
    """Threshold of one type."""

    type: str
    lowest: str
    """Name of the lowest urgency that passes."""
    where: str
    """Origin of the threshold: a configuration key, `notify threshold` and a prefix, or
    `default`."""


def list_thresholds(policy: AttentionPolicy, types: Iterable[str]) -> list[TypeThreshold]:
    """Return the threshold of each type, in the same order."""
    found = [(dotted, *find_effective_threshold(policy, dotted)) for dotted in types]
    return [
        TypeThreshold(type=dotted, lowest=URGENCY_WORDS[level], where=says or "default")
        for dotted, level, says in found
    ]


MAX_TYPES: Final = 40
"""Types in one answer, the latest ones."""
MAX_TYPE_CHARS: Final = 200
_DIRECT: Final = ".direct."
_NO_TYPE: Final = N_("Write a type as `notify types` shows it, or its first words up to a dot.")


async def suggest_types(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest recent types and their prefixes, the newest first."""
    newest = sorted(
        _without_direct_types(await context.store.notification_types()),
        key=lambda one: one.last_at,
        reverse=True,
    )
    words = (one.type.split(".") for one in newest)
    heads = (".".join(some[:end]) for some in words for end in range(len(some), 0, -1))
    return list(dict.fromkeys(heads))


command(
    "notify",
    "Show and change what may interrupt me.",
    group="what I do",
    role="admin",
    needs_global_role=True,
    private=True,
    aliases=("notifications",),
).declare()


@command("notify types", "List the types of notifications so far, and their thresholds.")
async def show_types(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List types, the newest first; those of direct chats only for an owner in a direct chat, else
    counted."""
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
    return done("\n".join(lines) or _("There was no notification so far."), data=found)


@command(
    "notify threshold",
    "Set the lowest urgency of a type that passes. Without one: show it.",
    args=(
        make_arg(
            "type",
            "A type, or the beginning of one.",
            form="word",
            needed=True,
            suggests=suggest_types,
        ),
        make_arg(
            "urgency",
            "The lowest urgency that passes.",
            "ambient",
            "low",
            "normal",
            "urgent",
            "reset",
        ),
    ),
)
async def change_threshold(call: CommandCall, context: CommandContext) -> CommandEffect:
    dotted = _parse_type(call.arguments["type"]).removesuffix(".*")
    if not dotted:
        return refuse(_(_NO_TYPE))
    urgency, here = call.arguments.get("urgency"), context.attention.thresholds
    if urgency is None:
        data = list_thresholds(context.attention.policy, [dotted])
        return done(_describe_threshold(context.attention.policy, dotted), data=data)
    if urgency == "reset":
        if dotted not in here:
            none = _("No threshold was set by command for this type.")
            return done(f"{none} {_describe_threshold(context.attention.policy, dotted)}")
        left = {one: here[one] for one in here if one != dotted}
        then = replace(context.attention.policy, set_thresholds=left)
        words = f"{_('The threshold is removed.')} {_describe_threshold(then, dotted)}"
        return done(words, AttentionThresholdSet(type=dotted, value=None, by=call.person))
    if dotted not in here and len(here) >= MAX_THRESHOLDS:
        text = _(
            "There are already {count} thresholds, which is the most. Remove one with `reset`."
        )
        return refuse(text.format(count=MAX_THRESHOLDS))
    words = _("From now on, for {type}: {threshold}.").format(
        type=inline_code(dotted, MAX_TYPE_CHARS), threshold=_format_threshold(urgency, "")
    )
    words += await _find_unseen_note(context, dotted)
    return done(
        words, AttentionThresholdSet(type=dotted, value=URGENCY_BY_WORD[urgency], by=call.person)
    )


@command("notify rules", "Say where rules are set: in the file, under attention.rules.")
async def show_rules(_call: CommandCall, _context: CommandContext) -> CommandEffect:
    return done(
        _("Put rules under `attention.rules` in the configuration file: they hold at once.")
    )


def _describe_threshold(policy: AttentionPolicy, dotted: str) -> str:
    level, says = find_effective_threshold(policy, dotted)
    threshold = _format_threshold(URGENCY_WORDS[level], says or "default")
    return _("{type}: {threshold}.").format(
        type=inline_code(dotted, MAX_TYPE_CHARS), threshold=threshold
    )


async def _find_unseen_note(context: CommandContext, dotted: str) -> str:
    """Return a note for a type that never came: it may be misspelt."""
    for one in await context.store.notification_types():
        together = one.type.endswith(".*") and dotted.startswith(
            one.type[:-1]
        )  # counted with others
        if (
            together
            or one.type == dotted
            or one.type.startswith(f"{dotted}.")
            or fnmatchcase(one.type, dotted)
        ):
            return ""
    return f" {_('No notification of this type came so far; is it spelled right?')}"


def _without_direct_types(types: Sequence[NotificationTypeCount]) -> list[NotificationTypeCount]:
    """Return the types without those of direct chats; other types from there name the same channel
    and room.
    """
    heads = [one.type.partition(_DIRECT) for one in types if _DIRECT in one.type]
    alone = {(f"{channel}.", f".{room}") for channel, __, room in heads}
    return [
        one
        for one in types
        if not any(
            one.type.startswith(channel) and one.type.endswith(room) for channel, room in alone
        )
    ]


def _parse_type(written: str) -> str:
    """Return a written type; empty: it cannot be one."""
    dotted = written.strip(" `")
    return (
        dotted
        if dotted.isprintable() and len(dotted) <= MAX_TYPE_CHARS and dotted.strip(".*")
        else ""
    )


def _format_threshold(lowest: str, says: str) -> str:
    threshold = (
        _("all pass")
        if lowest == URGENCY_WORDS[0]
        else _("{urgency} and above pass").format(urgency=lowest)
    )
    return (
        f"{threshold} ({inline_code(says, 2 * MAX_TYPE_CHARS)})"
        if says and says != "default"
        else threshold
    )


command("notify pending", "Count what I have not read yet, by conversation.", operator=True)(
    show_pending
)
