"""Reports of limits: owners are told, once a day for each, that a rate or a budget was reached.

The path decides what may start a turn, and reserves and settles its money
(`gateway.access.limits`); each limit that was reached is a fact in the log.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from gateway.access.texts import format_person
from gateway.core.events import Address, ConversationId
from gateway.core.facts import LimitReached
from gateway.core.i18n import N_, _
from gateway.core.text_safety import inline_code
from gateway.plugin import Plugin, PluginContext
from gateway.store import LogEntry

SUBJECT_CHARS: Final = 160
_REPORTS: Final[Mapping[str, str]] = {
    "sender": N_(
        "{subject} has reached a limit in {room} ({rule}). I read further messages but do not "
        "answer them. I tell you "
        "this once a day."
    ),
    "room": N_(
        "The room {subject} has reached a limit ({rule}). I read further messages there but do not "
        "answer them. I tell you this once a day."
    ),
    "agent": N_(
        "The agent {subject} has reached a limit in {room} ({rule}). It reads further messages but "
        "does not answer them. I tell you this once a day."
    ),
}


class Budgets(Plugin):
    """Tells owners of the limits that were reached in this process."""

    name = "budgets"
    summary = "tells owners which rates and budgets were reached"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        context.gateway.store.subscribe(self._on_limits, LimitReached, own=True)

    def _on_limits(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(fact := entry.fact, LimitReached):
                key = (
                    f"limit:{fact.limit}:{fact.whose}:{fact.subject}:{entry.at.date().isoformat()}"
                )
                text = partial(_render, fact, entry.conversation or ConversationId(""))
                self.context.gateway.notices.tell(key, text)


def _render(fact: LimitReached, place: ConversationId, _to: Address | None) -> str:
    """Return the notice in Markdown. Names of people and places are untrusted: shown as code."""
    subject, where = format_person(fact.subject, fact.name), inline_code(place, SUBJECT_CHARS)
    return _(_REPORTS[fact.whose]).format(subject=subject, rule=fact.rule, room=where)
