"""The command `notify`: types of notifications, and thresholds."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from channels.base import CommandCompletion
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.core.facts import AMBIENT, LOW, NORMAL, URGENT, AttentionThresholdSet
from gateway.core.i18n import N_, _
from gateway.core.text_safety import inline_code
from gateway.store import StoreReader
from gateway.store.effects import CommandEffect, done, refuse
from gateway.stream.attention import (
    MAX_THRESHOLDS,
    AttentionPolicy,
    Urgency,
    find_effective_threshold,
)

URGENCY_BY_WORD: Final[Mapping[str, Urgency]] = {
    "ambient": AMBIENT,
    "low": LOW,
    "normal": NORMAL,
    "urgent": URGENT,
}
"""Urgencies by name, in the order of their numbers."""
MAX_TYPE_CHARS: Final = 200
_NO_TYPE: Final = N_("Write a type as `notify types` shows it, or its first words up to a dot.")


class TypeCount(NamedTuple):
    """Counter of one notification type, of all places together."""

    type: str
    seen: int
    last_at: datetime
    """UTC."""


async def count_types(reader: StoreReader) -> list[TypeCount]:
    """Return the counters of notification types, by name. Bounded: see
    `gateway.store.projections`.
    """
    rows = await reader.rows("SELECT type, count, last_at FROM notification_type ORDER BY type")
    return [TypeCount(name, seen, datetime.fromisoformat(last)) for name, seen, last in rows]


async def suggest_types(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest types and their prefixes, the newest first."""
    found = await count_types(context.gateway.store)
    words = [one.type.split(".") for one in sorted(found, key=lambda one: one.last_at)[::-1]]
    heads = (".".join(some[:end]) for some in words for end in range(len(some), 0, -1))
    return list(dict.fromkeys(heads))


NOTIFY = command(
    "notify",
    "Show and change what may interrupt me.",
    group="what I do",
    role="admin",
    needs_global_role=True,
    aliases=("notifications",),
)


@command("notify types", "List the types of notifications so far, and their thresholds.")
async def show_types(_call: CommandCall, context: CommandContext) -> CommandEffect:
    found = await count_types(context.gateway.store)
    line = _("- {type}: {count} so far, the last at {time} UTC; {threshold}")
    lines = [
        line.format(
            type=inline_code(one.type, MAX_TYPE_CHARS),
            count=one.seen,
            time=f"{one.last_at:%Y-%m-%d %H:%M}",
            threshold=_describe_threshold(context.attention.policy, one.type),
        )
        for one in sorted(found, key=lambda one: one.last_at, reverse=True)
    ]
    return done("\n".join(lines) or _("There was no notification so far."), data=found)


@command(
    "notify threshold",
    "Set the lowest urgency of a type that passes. Without one: show it.",
    args=(
        make_arg(
            "type",
            "A type, or the beginning of one.",
            needed=True,
            suggests=suggest_types,
        ),
        make_arg("urgency", "The lowest urgency that passes.", *URGENCY_BY_WORD, "reset"),
    ),
)
async def change_threshold(call: CommandCall, context: CommandContext) -> CommandEffect:
    dotted = call.arguments["type"].strip(" `").removesuffix(".*")
    if not (dotted.isprintable() and len(dotted) <= MAX_TYPE_CHARS and dotted.strip(".*")):
        return refuse(_(_NO_TYPE))
    urgency, here = call.arguments.get("urgency"), context.attention.thresholds
    policy, name = context.attention.policy, inline_code(dotted, MAX_TYPE_CHARS)
    if urgency is None:
        level, says = find_effective_threshold(policy, dotted)
        data = {"type": dotted, "lowest": list(URGENCY_BY_WORD)[level], "where": says or "default"}
        return done(f"{name}: {_describe_threshold(policy, dotted)}.", data=[data])
    if urgency == "reset":
        left = {one: here[one] for one in here if one != dotted}
        then = _describe_threshold(replace(policy, set_thresholds=left), dotted)
        if dotted not in here:
            none = _("No threshold was set by command for this type.")
            return done(f"{none} {name}: {then}.")
        words = f"{_('The threshold is removed.')} {name}: {then}."
        return done(words, AttentionThresholdSet(type=dotted, value=None, by=call.person))
    if dotted not in here and len(here) >= MAX_THRESHOLDS:
        return refuse(
            _(
                "There are already {count} thresholds, which is the most. Remove one with `reset`."
            ).format(count=MAX_THRESHOLDS)
        )
    words = _("From now on, for {type}: {threshold}.").format(
        type=name, threshold=_format_level(urgency)
    )
    known = [f"{one.type}." for one in await count_types(context.gateway.store)]
    if not any(one.startswith(f"{dotted}.") or f"{dotted}.".startswith(one) for one in known):
        words += f" {_('No notification of this type came so far; is it spelled right?')}"
    return done(
        words, AttentionThresholdSet(type=dotted, value=URGENCY_BY_WORD[urgency], by=call.person)
    )


def _describe_threshold(policy: AttentionPolicy, dotted: str) -> str:
    level, says = find_effective_threshold(policy, dotted)
    what = _format_level(list(URGENCY_BY_WORD)[level])
    return f"{what} ({inline_code(says, 2 * MAX_TYPE_CHARS)})" if says else what


def _format_level(lowest: str) -> str:
    if lowest == "ambient":
        return _("all of them reach me")
    return _("only {urgency} and above reach me").format(urgency=lowest)
