"""What a search of the log and the journal finds, as quotations with author, place and time.

`HitBuilder` builds them of log entries; the caller filters them by `Visibility`. The functions
below it fold, match and quote texts. Pure.
"""

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from gateway.core.events import ConversationId, Message, MessageEdited
from gateway.core.facts import NoteWritten, Seq, TurnRecord, is_inner
from gateway.core.frozen import frozen
from gateway.core.identity import lowest_role
from gateway.core.labels import OUTSIDE_LABEL, TRUSTED_LABEL, Label, label_of_role, readers_of
from gateway.core.redaction import Redactor
from gateway.core.scopes import OWNER_SCOPE, is_shared_scope
from gateway.core.text_safety import sanitize_name, to_single_line
from gateway.core.tool import ToolContext
from gateway.plugins.memory.journal_file import REMEMBERED_TITLE, JournalEntry
from gateway.store import EntryLocation, LogEntry, StoreReader, search_terms
from gateway.stream.routing import PrivacyCache

_WORD: Final = re.compile(r"[^\W_]+")

MAX_QUOTE_CHARS: Final = 300
_NOWHERE: Final = Seq(0)
_PREFIX_CHARS: Final = 3
"""Length of a word from which longer words with this beginning match too: harbour, harbours."""


@frozen
class SearchHit:
    """Entry that was found."""

    seq: Seq
    """Log position; 0: it is not in the log."""
    at: datetime
    scope: str
    origin: str
    """Author or kind of note, and place. On one line."""
    text: str
    """The whole text, untrusted."""
    handle: str = ""
    """Handle that tools take: `m` and the log position, for a note `n`. Empty: there is none."""
    label: Label = OUTSIDE_LABEL
    """Label of the text. Its readers are those of `scope`."""

    def render(self, words: Sequence[str], limit: int = MAX_QUOTE_CHARS) -> str:
        """Return the hit as a line for the model."""
        return f"[{self.at:%Y-%m-%d %H:%M}] {self.origin}: {quote_text(self.text, words, limit)}"


class HitBuilder:
    """Turns log entries into hits."""

    def __init__(self, reader: StoreReader, places: PrivacyCache, redactor: Redactor) -> None:
        """`redactor` is applied to texts before anything is cut."""
        self._reader, self._places, self._redactor = reader, places, redactor

    async def scope_of(self, one: LogEntry | EntryLocation) -> str:
        """Return the scope of an entry. For a note without its text: the widest possible scope."""
        if one.conversation is None:
            return OWNER_SCOPE
        if isinstance(one, LogEntry) and isinstance(one.fact, NoteWritten):
            return await self._places.note_scope(one.conversation, one.seq, one.fact)
        if (
            isinstance(one, EntryLocation)
            and one.is_note
            and not is_shared_scope(one.scope or OWNER_SCOPE)
        ):
            return one.scope or OWNER_SCOPE
        return await self._places.scope(one.conversation, one.seq)

    async def build(self, one: LogEntry, context: ToolContext) -> SearchHit | None:
        """Return the hit. None: the model may never see it, or it is outdated.

        The caller must still filter the hit by `context.visibility`.
        """
        if one.conversation is None:
            return None
        await self._places.titles.load([one.conversation])
        fact, place, scope = (
            one.fact,
            self._format_place(one.conversation, context),
            await self.scope_of(one),
        )
        if isinstance(fact, NoteWritten):
            if fact.agent != context.agent or await self._is_cut(one):
                return None
            shared = is_shared_scope(scope)
            owner = scope if shared else self._format_place(ConversationId(scope), context)
            origin = f"{REMEMBERED_TITLE if fact.lasting else 'your journal'} ({owner})"
            return _build_hit(one, scope, origin, self._redactor(note_text(fact)), fact.label)
        if isinstance(fact, TurnRecord):
            origin = "you" if fact.agent in ("", context.agent) else sanitize_name(fact.agent)
            if fact.outcome == "failed" or await self._is_cut(one):
                return None
            return _build_hit(
                one,
                scope,
                f"{origin}, {place}",
                self._redactor(fact.text or fact.note),
                fact.label,
            )
        if not isinstance(fact, Message | MessageEdited):
            return None
        return await self._build_message(one, fact, place, scope)

    async def _build_message(
        self, one: LogEntry, fact: Message | MessageEdited, place: str, scope: str
    ) -> SearchHit | None:
        first: LogEntry | None = one
        if isinstance(fact, MessageEdited):
            first = await self._reader.entry_by_key(f"message:{one.conversation}:{fact.message}")
        if first is None or not isinstance(first.fact, Message):
            return None
        judged = await self._reader.find_judgement(first.seq)
        if judged is None or judged.fate not in ("due", "context"):
            return None
        newest = await self._reader.latest_message_change(first.fact, first.seq) or first
        if newest.seq != one.seq or await self._is_cut(first):
            return None
        role, edited = judged.role, ""
        if isinstance(fact, MessageEdited):
            own = await self._reader.find_judgement(one.seq)
            role, edited = lowest_role([role, own.role if own is not None else role]), ", edited"
        origin = f"{sanitize_name(fact.sender.name)} ({role}{edited}), {place}"
        label = OUTSIDE_LABEL if first.fact.carried or fact.carried else label_of_role(role)
        return _build_hit(one, scope, origin, self._redactor(fact.text), label)

    def _format_place(self, conversation: ConversationId, context: ToolContext) -> str:
        """Return the place as seen from the context: its title, and the address that tools take."""
        if conversation == context.at.conversation:
            return "here"
        if is_inner(conversation):
            return "by yourself"
        titles, address = self._places.titles, sanitize_name(conversation)
        if titles.trusted_label(conversation) == conversation:
            return f"in {address}"
        return f"in {sanitize_name(titles.title(conversation))} at {address}"

    async def _is_cut(self, one: LogEntry) -> bool:
        return any(placed.is_removed for placed in await self._reader.locate_entries([one.seq]))


def to_handwritten_hit(one: JournalEntry) -> SearchHit:
    """Return a person's journal entry as a hit. Without a scope it is the owner's."""
    return SearchHit(
        seq=_NOWHERE,
        at=one.at,
        scope=one.scope or OWNER_SCOPE,
        origin="your journal (by hand)",
        text=note_text(one),
        label=_with_readers(TRUSTED_LABEL, one.scope or OWNER_SCOPE, "your journal"),
    )


def match_all_terms(terms: Sequence[str]) -> str:
    """Return a query for `StoreReader.newest_entries(match=...)`: texts with all the terms, folded
    by the index.
    """
    return " ".join(
        f"{search_terms(term)}*" if len(term) >= _PREFIX_CHARS else search_terms(term)
        for term in terms
    )


def split_words(text: str) -> list[str]:
    """Split text into words for `contains_all_words` and `quote_text`."""
    return _WORD.findall(fold_case(text))


def quote_text(text: str, words: Sequence[str], max_chars: int = MAX_QUOTE_CHARS) -> str:
    """Quote a text on one line, around the first of the words. The result cannot be mistaken for a
    frame.
    """
    line = to_single_line(text, len(text)).replace('"', "'")
    if len(line) > max_chars:
        # Folded character by character, so that positions stay the same.
        folded = line.lower() if line.isascii() else "".join(fold_case(c)[:1] or " " for c in line)
        places = [place for word in words if (place := folded.find(word)) >= 0]
        start = max(0, min(min(places, default=0) - max_chars // 4, len(line) - max_chars))
        end = start + max_chars
        line = f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"
    return f'"{line}"'


def note_text(noted: NoteWritten | JournalEntry) -> str:
    """Return the text of a note, with its title."""
    return f"{noted.title}: {noted.text}" if noted.title else noted.text


def _build_hit(one: LogEntry, scope: str, origin: str, text: str, label: Label) -> SearchHit:
    handle = f"{'n' if isinstance(one.fact, NoteWritten) else 'm'}{one.seq}"
    label = _with_readers(label, scope, handle)
    return SearchHit(
        seq=one.seq, at=one.at, scope=scope, origin=origin, text=text, handle=handle, label=label
    )


def _with_readers(label: Label, scope: str, source: str) -> Label:
    return Label(label.integrity, readers_of(scope), source)


def fold_case(text: str) -> str:
    """Remove case and accents, as the search index does."""
    if text.isascii():  # most texts are
        return text.lower()
    return "".join(
        c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c)
    )


@lru_cache(maxsize=32_768)  # the agents' own files are searched again before each turn
def fold_words(text: str) -> str:
    """Return the words alone, folded, with one space between them."""
    return " ".join(_WORD.findall(fold_case(text)))
