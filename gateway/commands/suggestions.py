"""Suggestions for native commands that somebody is typing: for people who may use the command,
never for guests.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from channels.base import CommandCompletion
from gateway.access.policy import decide
from gateway.commands.context import CommandContext
from gateway.commands.definition import SuggestedArg
from gateway.core.events import Command, EventId

MAX_CHOICES: Final = 25
MAX_CHOICE_CHARS: Final = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object-application-command-option-choice-structure
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Any time: access does not depend on it."""


async def suggest_values(context: CommandContext, typed: CommandCompletion) -> Sequence[str]:
    """Return at most 25 suggestions of at most 100 characters. Raises what the argument's source
    raises.
    """
    row = context.commands.people.get(typed.name)
    given = Command(
        id=EventId("typed"),
        at=typed.at,
        sender=typed.sender,
        name=typed.name,
        args="",
        sent=_EPOCH,
        origin="native",
        direct=typed.direct,
    )
    decision = decide(context.gateway.people, given)
    may_use = decision.allowed and decision.role != "guest" and not typed.sender.is_bot
    if row is None or not may_use or (row.direct_only and not typed.direct):
        return ()
    row = row.find_sub(typed.sub) or row
    if not row.is_allowed_for(decision.role, direct=typed.direct, everywhere=decision.global_role):
        return ()
    args = row.args
    arg = next((one for one in args if one.name == typed.arg), None)
    if not isinstance(arg, SuggestedArg):
        return ()
    found = await arg.source(typed, context) if arg.source is not None else arg.choices
    return rank_suggestions(found, typed.prefix)


def rank_suggestions(suggestions: Iterable[str], prefix: str) -> list[str]:
    """Return the suggestions that begin with the given text, then those that contain it."""
    wanted = prefix.strip(" `").casefold()
    usable = [
        one
        for one in dict.fromkeys(suggestions)
        if 0 < len(one) <= MAX_CHOICE_CHARS and one.isprintable()
    ]
    first = [one for one in usable if one.casefold().startswith(wanted)]
    others = [one for one in usable if wanted in one.casefold() and one not in first]
    return [*first, *others][:MAX_CHOICES]
