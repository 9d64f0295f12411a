"""What may stand in a command that somebody is still writing.

Whoever may use a command is shown what fits; a guest, and whoever may not, nothing. What there is comes from sources,
by argument, which the gateway hands in.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from channels.base import CommandCompletion
from gateway import access
from gateway.access import AccessDecision
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME, CommandDefinition
from gateway.events import Command, EventId
from gateway.standing import AccessPolicy

MAX_CHOICES: Final = 25
MAX_CHOICE_CHARS: Final = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object-application-command-option-choice-structure"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Who may be heard does not depend on it."""

SuggestionSource = Callable[[CommandCompletion], Awaitable[Sequence[str]]]
"""What may be meant there, the likeliest first; it may be asked with each key that is pressed."""


class CommandSuggester:
    """A `channels.base.CommandCompleter`."""

    def __init__(self, policy: AccessPolicy, sources: Mapping[str, SuggestionSource]) -> None:
        """`sources`: by `command sub argument`, else `command argument`, else `argument`.

        The choices of the table, and the commands themselves, are known without.
        """
        self._policy, self._sources = policy, sources

    async def __call__(self, typed: CommandCompletion) -> Sequence[str]:
        """At most 25, each at most 100 characters. Raises what a source raises."""
        decision, row = self._decide(typed), COMMANDS_BY_NAME.get(typed.name)
        if row is None or not decision.allowed or decision.role == "guest" or not _is_allowed(row, typed, decision):
            return ()
        sub = row.find_sub(typed.sub)
        arg = next((one for one in (sub.args if sub else row.args) if one.name == typed.arg), None)
        if arg is None:
            return ()
        if arg.choices:
            return rank_suggestions(arg.choices, typed.prefix)
        if row.name == "help":
            return rank_suggestions([one.name for one in COMMANDS if _is_allowed(one, typed, decision)], typed.prefix)
        keys = (" ".join(filter(None, (row.name, typed.sub, arg.name))), f"{row.name} {arg.name}", arg.name)
        source = next((self._sources[key] for key in keys if key in self._sources), None)
        return rank_suggestions(await source(typed), typed.prefix) if arg.suggests and source is not None else ()

    def _decide(self, typed: CommandCompletion) -> AccessDecision:
        """As if it had been given."""
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
        return access.decide(self._policy, command)


def rank_suggestions(found: Iterable[str], begun: str) -> list[str]:
    """Those that go on as what was begun, then those that have it in them."""
    wanted = begun.casefold().strip()
    usable = [one for one in dict.fromkeys(found) if 0 < len(one) <= MAX_CHOICE_CHARS and one.isprintable()]
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
