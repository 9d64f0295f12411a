"""Sources of labels for people: who wrote the text that a label names, when, and how it begins.

`Label.source` is the gateway's own words; authors, names and texts are looked up here, only when
people are told. All of that is untrusted, and shown as code.
"""

import re
from collections.abc import Sequence
from typing import Final

from gateway.core.events import ConversationId, MembershipChanged, Message, Sender
from gateway.core.facts import Seq, TurnRecord
from gateway.core.format import format_time
from gateway.core.i18n import N_, _
from gateway.core.identity import AccessPolicy, identify, proven_role
from gateway.core.text_safety import PLACE_CHARS, inline_code, to_single_line
from gateway.store import LogEntry, StoreReader

SNIPPET_CHARS: Final = 80
"""Characters of a text that are shown."""
_MESSAGE: Final = re.compile(r"(.*?)\bm(\d{1,18})")
"""A source that is a message, with what of it is meant: `m15`, `an attachment of m15`."""
_MESSAGE_PARTS: Final = {
    "an attachment of ": N_("an attachment of {message}"),
    "a forward or quotation in ": N_("a forward or quotation in {message}"),
}
_OTHER_SOURCES: Final = frozenset(
    {
        N_("the topic"),
        N_("what came to mind"),
        N_("the summary of earlier turns"),
        N_("an attachment"),
        N_("the word of a link"),
    }
)
"""Sources in the words of the log that need no look-up."""


class SourceFinder:
    """Finds the sources of labels in the log."""

    def __init__(self, reader: StoreReader, access_policy: AccessPolicy) -> None:
        self._reader = reader
        self._access_policy = access_policy

    async def describe(
        self, source: str, place: ConversationId, turns: Sequence[TurnRecord] = ()
    ) -> str:
        """Describe a source, for people in this place. `turns`: where its tool may have been
        called, oldest first.

        Of another conversation no text is shown.
        """
        if found := _MESSAGE.fullmatch(source):
            entry = await self._reader.entry(Seq(int(found[2])))
            if entry is None:
                return source
            message = self.describe_message(entry, place)
            return (
                _(_MESSAGE_PARTS[found[1]]).format(message=message)
                if found[1] in _MESSAGE_PARTS
                else message
            )
        if (
            source == "the topic"
            and (changed := await self._reader.last_topic_change(place)) is not None
        ):
            return _("the topic, set by {author}, {text}").format(
                author=self._describe_author(changed), text=_format_text(changed.text or "")
            )
        for called in [
            called
            for turn in turns[::-1]
            for step in turn.steps[::-1]
            for called in step.calls[::-1]
        ]:
            if called.name == source:
                if called.origin:
                    text, origin = (
                        _("a result of {tool}, from {origin}"),
                        inline_code(called.origin, PLACE_CHARS),
                    )
                    return text.format(tool=inline_code(source), origin=origin)
                return _("a result of {tool}").format(tool=inline_code(source))
        return _(source) if source in _OTHER_SOURCES else source

    def describe_message(self, entry: LogEntry, place: ConversationId) -> str:
        """Describe the author of a message, with the beginning of its text if it was said in this
        place.
        """
        message = entry.fact
        if not isinstance(message, Message | MembershipChanged):
            return _("entry {number}").format(number=entry.seq)
        if entry.conversation != place:
            return _("a message in {room}").format(
                room=inline_code(entry.conversation or "", PLACE_CHARS)
            )
        return f"{self._describe_author(message)}, {_format_text(message.text or '')}"

    def _role(self, written: Message | MembershipChanged) -> str:
        return proven_role(
            identify(self._access_policy, written.at, written.sender).role,
            verified=written.sender.verified,
        )

    def _describe_author(self, written: Message | MembershipChanged) -> str:
        sender: Sender = written.sender
        return _("{name} ({role}) at {time}").format(
            name=inline_code(sender.name or sender.id),
            role=self._role(written),
            time=format_time(written.sent),
        )


def _format_text(text: str) -> str:
    return inline_code(to_single_line(text, SNIPPET_CHARS), SNIPPET_CHARS)
