"""What was found in the log or in a journal, as it is told: who, where, when, and a quotation. Filtered by `Sight`."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from agent.journal import REMEMBERED_TITLE, JournalEntry, to_single_line
from gateway.events import ConversationId, Message, MessageEdited
from gateway.hands import ToolContext
from gateway.labels import recorded_label
from gateway.records import NoteWritten, Seq, TurnId, TurnRecord
from gateway.redaction import Redact, Redactor
from gateway.relevance import fold_case
from gateway.scopes import TRUSTED_ROLES, is_shared_scope, is_trusted
from gateway.store import EntryLocation, LogEntry, StoreReader, search_terms
from gateway.titles import PlaceTitles

MAX_QUOTE_CHARS: Final = 300
"""Of what is quoted of one."""
SEARCHED_KINDS: Final = ("direct", "mention", "reply", "room", "edited", "turn_ended", "noted")
"""What is looked through in the log: all that is in the search index."""
OWNER_SCOPE: Final = ""
"""The scope of what is made of all scopes: no place has it, so it is seen only by who sees everything."""
OWN_TOOLS: Final = frozenset({"journal", "remember", "stay_silent", "yield_to_user"})
"""They bring nobody's words into a turn."""

ReadHandwritten = Callable[[str], Awaitable[Sequence[JournalEntry]]]
"""What people wrote into an agent's journal. May raise OSError."""

_NOWHERE: Final = Seq(0)
_QUOTED_WORD: Final = re.compile(r"[^\W_]+")
_PREFIX_CHARS: Final = 3
"""Of a word, from which on what only begins with it counts too: harbour, harbours."""


class SearchPlaces(Protocol):
    """Who knows who can read what is said: `gateway.places.PrivacyCache`."""

    @property
    def titles(self) -> PlaceTitles:
        """What places are called."""

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Who may be told of what stands there."""

    async def note_scope(self, conversation: ConversationId, seq: Seq, noted: NoteWritten) -> str:
        """Who may be told of a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """Something that was found."""

    seq: Seq
    """Where it stands in the log; 0: nowhere."""
    at: datetime
    scope: str
    origin: str
    """Who said it, or how it was written down, and where. On one line."""
    text: str
    """All of it, untrusted."""
    handle: str = ""
    """What tools take for it: `m` and its position, of a note `n`. Empty: there is none."""
    is_foreign: bool = True
    """It may be the idea of somebody who is no owner or admin."""

    def render(self, words: Sequence[str], most: int = MAX_QUOTE_CHARS) -> str:
        """As the model is told of it."""
        return f"[{self.at:%Y-%m-%d %H:%M} UTC] {self.origin}: {quote_text(self.text, words, most)}"


class HitBuilder:
    """Tells entries of the log as hits."""

    def __init__(self, reader: StoreReader, places: SearchPlaces, redact: Redact | None = None) -> None:
        """`redact` is given what was said, before anything is cut."""
        self._reader = reader
        self._places = places
        self._redact = redact or Redactor()

    async def scope_of(self, one: LogEntry | EntryLocation) -> str:
        """Who may be told of it. Of a note without its text: who may be told at most."""
        if one.conversation is None:
            return OWNER_SCOPE
        if isinstance(one, LogEntry) and isinstance(one.fact, NoteWritten):
            return await self._places.note_scope(one.conversation, one.seq, one.fact)
        if isinstance(one, EntryLocation) and one.is_note and not is_shared_scope(one.scope or OWNER_SCOPE):
            return one.scope or OWNER_SCOPE
        return await self._places.scope(one.conversation, one.seq)

    async def build(self, one: LogEntry, where: ToolContext) -> SearchHit | None:
        """None: it may not be told to the model at all, or does not hold any more.

        What comes back must still go through `where.sight`.
        """
        if one.conversation is None:
            return None
        await self._places.titles.load([one.conversation])
        fact, place, scope = one.fact, self._format_place(one.conversation, where), await self.scope_of(one)
        if isinstance(fact, NoteWritten):
            if fact.agent != where.agent or await self._is_cut(one):
                return None
            who, handle = self._format_note_origin(fact, scope, where), f"n{one.seq}"
            foreign = not is_trusted(fact.role, foreign=fact.foreign)
            return SearchHit(
                seq=one.seq,
                at=one.at,
                scope=scope,
                origin=who,
                text=self._redact(note_text(fact)),
                handle=handle,
                is_foreign=foreign,
            )
        if isinstance(fact, TurnRecord):
            who = "you" if fact.agent in ("", where.agent) else sanitize_name(fact.agent)
            if fact.outcome == "failed" or await self._is_cut(one):
                return None
            return _build_hit(
                one, scope, f"{who}, {place}", self._redact(fact.text), foreign=await self._is_foreign_turn(fact.turn)
            )
        if not isinstance(fact, Message | MessageEdited):
            return None
        first = one if isinstance(fact, Message) else await self._find_original(one.conversation, fact)
        judged = await self._reader.find_judgement(first.seq) if first is not None else None
        if first is None or judged is None or judged.fate not in ("due", "context"):
            return None
        if not await self._is_current(one, first):
            return None
        edited = ", edited" if isinstance(fact, MessageEdited) else ""
        who = f"{sanitize_name(fact.sender.name)} ({judged.role}{edited}), {place}"
        carries = isinstance(first.fact, Message) and (bool(first.fact.carried) or bool(fact.carried))
        return _build_hit(one, scope, who, self._redact(fact.text), foreign=carries or judged.role not in TRUSTED_ROLES)

    def _format_place(self, conversation: ConversationId, where: ToolContext) -> str:
        """Where that is, seen from there: by its title, and the address that tools take."""
        if conversation == where.at.conversation:
            return "here"
        label, titled = self._places.titles.label(conversation), self._places.titles.title(conversation)
        if label == conversation:
            return f"in {sanitize_name(conversation)}"
        return f"in {sanitize_name(titled)} at {sanitize_name(conversation)}"

    def _format_note_origin(self, noted: NoteWritten, scope: str, where: ToolContext) -> str:
        """How something was written down, and whose it is."""
        of = scope if is_shared_scope(scope) else self._format_place(ConversationId(scope), where)
        return f"{REMEMBERED_TITLE if noted.lasting else 'your journal'} ({of})"

    async def _is_foreign_turn(self, turn: TurnId | None) -> bool:
        """Whether a turn may have done it for others than owners and admins, or for what its tools brought."""
        found = await self._reader.entry_by_key(f"turn:{turn}") if turn is not None else None
        ended = found.fact if found is not None else None
        if not isinstance(ended, TurnRecord):
            return True
        if (label := recorded_label(ended)) is not None:
            return bool(label.foreign) or label.role not in TRUSTED_ROLES
        if not ended.covers:
            return True
        heard = [await self._reader.find_judgement(seq) for seq in ended.covers]
        used = {called.name for step in ended.steps for called in step.calls}
        return not used <= OWN_TOOLS or any(one is None or one.role not in TRUSTED_ROLES for one in heard)

    async def _find_original(self, conversation: ConversationId, edited: MessageEdited) -> LogEntry | None:
        """The message as it was before."""
        judged = await self._reader.entry_by_key(f"message:{conversation}:{edited.message}")
        return judged if judged is not None and isinstance(judged.fact, Message) else None

    async def _is_current(self, one: LogEntry, first: LogEntry) -> bool:
        """Whether the message, which stands first there, reads like this now, and was not taken back."""
        assert isinstance(first.fact, Message)
        newest = await self._reader.latest_message_change(first.fact, first.seq) or first
        return newest.seq == one.seq and not await self._is_cut(first)

    async def _is_cut(self, one: LogEntry) -> bool:
        return any(placed.is_removed for placed in await self._reader.locate_entries([one.seq]))


def to_handwritten_hit(one: JournalEntry) -> SearchHit:
    """What a person wrote into the journal. What says no scope is the owner's."""
    return SearchHit(
        seq=_NOWHERE,
        at=one.at,
        scope=one.scope or OWNER_SCOPE,
        origin="your journal (by hand)",
        text=note_text(one),
        is_foreign=False,
    )


def scope_of_hit(hit: SearchHit) -> str:
    """For `Sight.of`."""
    return hit.scope


def match_all_terms(terms: Sequence[str]) -> str:
    """For `Reader.newest(match=...)`: said with all of them, as the index splits and folds them itself."""
    return " ".join(f"{search_terms(term)}*" if len(term) >= _PREFIX_CHARS else search_terms(term) for term in terms)


def split_words(text: str) -> list[str]:
    """As `contains_all_words` and `quote_text` look for them."""
    return _QUOTED_WORD.findall(fold_case(text))


def contains_all_words(text: str, words: Sequence[str]) -> bool:
    """Whether all these words, of `split_words`, are in it, whatever its case and accents."""
    there = fold_case(text)
    return all(word in there for word in words)


def quote_text(text: str, words: Sequence[str], most: int = MAX_QUOTE_CHARS) -> str:
    """On one line and bounded, around the first of the words; it cannot look like more than a quotation."""
    line = to_single_line(text, len(text)).replace('"', "'")
    if len(line) > most:
        # Each character at the place of its own.
        there = line.lower() if line.isascii() else "".join(fold_case(c)[:1] or " " for c in line)
        places = [place for word in words if (place := there.find(word)) >= 0]
        start = max(0, min(min(places, default=0) - most // 4, len(line) - most))
        end = start + most
        line = f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"
    return f'"{line}"'


def note_text(noted: NoteWritten | JournalEntry) -> str:
    """What was written down, with its title."""
    return f"{noted.title}: {noted.text}" if noted.title else noted.text


def _build_hit(one: LogEntry, scope: str, who: str, text: str, *, foreign: bool) -> SearchHit:
    return SearchHit(
        seq=one.seq, at=one.at, scope=scope, origin=who, text=text, handle=f"m{one.seq}", is_foreign=foreign
    )


def sanitize_name(name: str) -> str:
    """What others chose can neither close a frame nor look like one."""
    return to_single_line("".join("_" if c in '[]():"' else c for c in name), 100) or "_"
