"""Suggestions for native commands that somebody is typing: for people who may use the command, never for guests."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from channels.base import CommandCompletion
from gateway.access.approval_texts import Approver
from gateway.access.policy import AccessDecision, decide
from gateway.access.roster import read_recent_senders
from gateway.commands.agent import suggest_reminders
from gateway.commands.context import CommandContext
from gateway.commands.definition import CommandDefinition
from gateway.commands.journal import suggest_notes
from gateway.commands.notifications import suggest_types
from gateway.commands.rooms import known_rooms
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME
from gateway.core.events import Command, EventId
from gateway.core.identity import ADMIN_ROLES, identify, person_key

MAX_CHOICES: Final = 25
MAX_CHOICE_CHARS: Final = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object-application-command-option-choice-structure"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Any time: access does not depend on it."""

SuggestionSource = Callable[[CommandCompletion, CommandContext], Awaitable[Sequence[str]]]
"""Returns suggestions for an argument, the likeliest first; may be called at every key press."""


async def _suggest_people(typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest names and ids of recent senders there; then, to admins everywhere, people with a role."""
    recent = await read_recent_senders(context.store, typed.at.conversation)
    names = Counter(sender.name for sender in recent.values())
    named = [name for name, times in names.items() if times == 1]
    wide = identify(context.access_policy, typed.at, typed.sender).global_role in ADMIN_ROLES
    return [*named, *recent, *([one.person for one in context.roster.roles] if wide else [])]


async def _suggest_accounts(typed: CommandCompletion, context: CommandContext) -> list[str]:
    own = person_key(typed.at.channel, typed.sender.id)
    return sorted(context.access_policy.roster_state().links.get(own, ()))


async def _suggest_rooms(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    titles = context.places.titles
    return [titles.label(place.conversation) for place in await known_rooms(context)]


async def _suggest_channels(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return list(context.channels)


async def _suggest_models(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [one.name for one in context.model_selector.list_models()]


async def _suggest_waiting_approvals(typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [one.approval for one, _ in await context.approvals.list_waiting(_build_approver(typed, context))]


async def _suggest_granted_tools(typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [one.scope.tool for one in await context.approvals.list_grants(_build_approver(typed, context))]


async def _suggest_strangers(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [one.request for one in context.roster.pending_requests("pair") if one.request]


async def _suggest_waiting_rooms(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [one.request for one in context.roster.pending_requests("room") if one.request]


async def _suggest_times(_typed: CommandCompletion, _context: CommandContext) -> list[str]:
    return ["30m", "1h", "2h", "4h", "8h", "1d", "07:30"]


def _build_approver(typed: CommandCompletion, context: CommandContext) -> Approver:
    who = identify(context.access_policy, typed.at, typed.sender)
    return Approver(
        at=typed.at, sender=typed.sender.id, role=who.role, is_direct=typed.direct, global_role=who.global_role
    )


SOURCES: Final[Mapping[str, SuggestionSource]] = {
    "who": _suggest_people,
    "account": _suggest_accounts,
    "room": _suggest_rooms,
    "channel": _suggest_channels,
    "model switch name": _suggest_models,
    "approve id": _suggest_waiting_approvals,
    "deny id": _suggest_waiting_approvals,
    "revoke tool": _suggest_granted_tools,
    "pair approve code": _suggest_strangers,
    "room approve code": _suggest_waiting_rooms,
    "until": _suggest_times,
    "remind cancel id": suggest_reminders,
    "type": suggest_types,
    "note": suggest_notes,
}
"""Sources by `command sub argument`, else `command argument`, else `argument`."""


async def suggest_values(
    context: CommandContext, typed: CommandCompletion, sources: Mapping[str, SuggestionSource] = SOURCES
) -> Sequence[str]:
    """Return at most 25 suggestions of at most 100 characters. Raises what a source raises.

    Choices of the table, and command names, need no source.
    """
    decision, row = _decide(context, typed), COMMANDS_BY_NAME.get(typed.name)
    if row is None or not decision.allowed or decision.role == "guest" or not _is_allowed(row, typed, decision):
        return ()
    sub = row.find_sub(typed.sub)
    arg = next((one for one in (sub.args if sub else row.args) if one.name == typed.arg), None)
    if arg is None:
        return ()
    if arg.choices:
        return rank_suggestions(arg.choices, typed.prefix)
    if row.name == "help" and arg.name == "sub":
        explained = COMMANDS_BY_NAME.get(typed.given.get("command", "").strip("/!").lower())
        subs = explained.subs if explained is not None and _is_allowed(explained, typed, decision) else ()
        return rank_suggestions([one.name for one in subs], typed.prefix)
    if row.name == "help":
        return rank_suggestions([one.name for one in COMMANDS if _is_allowed(one, typed, decision)], typed.prefix)
    keys = (" ".join(filter(None, (row.name, typed.sub, arg.name))), f"{row.name} {arg.name}", arg.name)
    source = next((sources[key] for key in keys if key in sources), None)
    return rank_suggestions(await source(typed, context), typed.prefix) if arg.suggests and source is not None else ()


def _decide(context: CommandContext, typed: CommandCompletion) -> AccessDecision:
    """Return the access decision, as if the command had been given."""
    command = Command(
        id=EventId("typed"),
        at=typed.at,
        sender=typed.sender,
        name=typed.name,
        args="",
        sent=_EPOCH,
        origin="native",
        direct=typed.direct,
    )
    return decide(context.access_policy, command)


def rank_suggestions(suggestions: Iterable[str], prefix: str) -> list[str]:
    """Return the suggestions that begin with the given text, then those that contain it."""
    wanted = prefix.strip(" `").casefold()
    usable = [one for one in dict.fromkeys(suggestions) if 0 < len(one) <= MAX_CHOICE_CHARS and one.isprintable()]
    first = [one for one in usable if one.casefold().startswith(wanted)]
    others = [one for one in usable if wanted in one.casefold() and one not in first]
    return [*first, *others][:MAX_CHOICES]


def _is_allowed(row: CommandDefinition, typed: CommandCompletion, decision: AccessDecision) -> bool:
    able = row.is_allowed_for(
        decision.role,
        direct=typed.direct,
        everywhere=decision.global_role,
        sub=row.find_sub(typed.sub) if row.name == typed.name else None,
    )
    return able and not typed.sender.is_bot and (typed.direct or not row.direct_only)
