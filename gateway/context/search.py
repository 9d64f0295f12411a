"""Search of the log, the journal and MEMORY.md, limited to what may be shown where the search is
made.

- Terms: `extract_terms` finds words worth a search in new messages, `weigh_terms` and
  `score_candidates` rank the entries that hold them. Pure.
- Hits: `HitBuilder` turns log entries into quotations (`SearchHit`) with author, place and time.
  The caller filters them by `Visibility`.
"""

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from agent.journal import REMEMBERED_TITLE, JournalEntry, to_single_line
from gateway.core.events import ConversationId, Message, MessageEdited
from gateway.core.facts import NoteWritten, Seq, TurnRecord, is_inner
from gateway.core.labels import OUTSIDE_LABEL, TRUSTED_LABEL, Label, label_of_role, readers_of
from gateway.core.permissions import lowest_role
from gateway.core.redaction import Redactor
from gateway.core.scopes import OWNER_SCOPE, is_shared_scope
from gateway.core.tool import ToolContext
from gateway.store import EntryLocation, LogEntry, StoreReader, search_terms
from gateway.stream.routing import PrivacyCache

if TYPE_CHECKING:
    import regex

ENGLISH_STOP_WORDS: Final = """
about above actually after again against almost alone along already also although always among
another anybody anyone anything anyway aren around away back because been before behind being below
best better between both bring came cannot check come comes coming could couldn days didn different
does doesn doing done down during each either else enough even ever every everybody everyone
everything exactly first found from further gave getting give given gives goes going gone good great
hadn half hasn have haven having hello help hence here hers herself himself just keep kind knew know
known last later least less like little long look looking looks made make makes making many maybe
mean means might mine more most much must myself need needs neither never next nice nobody none
nothing okay once only onto other others otherwise ours ourselves over part people perhaps please
point possible pretty probably quite rather really right said same says seem seems seen several
shall should shouldn show simply since some somebody someone something sometimes soon still stuff
such sure take taken tell than thank thanks that their theirs them themselves then there these they
thing things think this those though thought through time today together told tomorrow under until
upon used using very want wants wasn well went were weren what whatever when where whether which
while whole whom whose will with within without work would wouldn yeah years yesterday your yours
yourself
"""

GERMAN_STOP_WORDS: Final = """
aber alle allem allen aller alles also andere anderen anders auch beide beim bereits bitte dabei
damit danke dann darf darum dass dazu deine deinem deinen denn deren deshalb dessen diese diesem
diesen dieser dieses doch dort durch eben eigentlich eine einem einen einer eines einfach einmal
etwas euch euer eure falls fast ganz gegen genau gerade gern gibt gleich habe haben hallo hast hatte
hatten hier hinter ihnen ihre ihrem ihren ihrer immer jede jedem jeden jeder jetzt kann kannst kein
keine keinem keinen keiner können könnte machen macht mehr mein meine meinem meinen meiner muss
möchte müssen nach neben nicht nichts noch oder ohne schon sehr sein seine seinem seinen seiner
selbst sich sind sollte sonst unser unsere unter viel viele vielleicht wann waren warum weil welche
welchem welchen welcher wenig wenn werde werden wieder will wird wirklich wissen wohl wollen wurde
wurden würde zwar zwischen über
"""

FRENCH_STOP_WORDS: Final = """
aussi autre autres avait avant avec avez avoir avons beaucoup bien bonjour cela celle celles celui
cependant ceux chaque chez comme comment contre dans depuis deux dire dois doit donc dont déjà elle
elles encore entre faire fait faut fois jamais jusque leur leurs lors lorsque mais merci mieux moins
même mêmes notre nous parce parfois pendant peut peux plus plutôt pour pourquoi pouvez quand quel
quelle quelles quelque quelques quels quoi rien sans sera serait seulement sinon soit sont sous suis
sujet tous tout toute toutes trop très vers voici voilà votre vous vraiment étaient était êtes être
"""

SPANISH_STOP_WORDS: Final = """
ahora algo alguna algunas alguno algunos algún antes aquel aquella aquí aunque bien bueno cada casi
como contra cual cuando cuanto cuál cuándo cómo decir desde después donde durante dónde ella ellas
ellos entonces entre eran eres esas esos esta estaba estar estas este esto estos estoy está están
fueron gracias había hace hacer hacia hasta hola luego mejor menos mientras misma mismo mucha mucho
muchos nada nadie nosotros nuestra nuestro nunca otra otras otro otros para pero poco podría porque
puede puedo pues quien quiere quiero quién siempre sino sobre solo sólo también tampoco tanto tengo
tiene tienen toda todas todavía todo todos usted ustedes vamos
"""

RUSSIAN_STOP_WORDS: Final = """
благодаря более больше будет будто буду была были было быть вами ваша ваше ваши весь вместо вообще
вопрос время всегда всего всем всех вчера давай даже должен другие другой если есть завтра здесь
знаю именно иногда каждый какая какие какой когда конечно которая которого которое которой которые
который куда либо лучше меня мной может можно надо наконец наша наше наши него некоторые нельзя
несколько нечего никогда ничего нужно однако опять очень перед пожалуйста пока после потом потому
почему почти привет просто разве себе себя сегодня сейчас сказал сказать снова собой совсем спасибо
такая также такие такой тебе тебя теперь тоже только тысяч хорошо хотя хочу чего через чтобы чуть
этим этих этого этой этом этот
"""  # noqa: RUF001 - another alphabet

STOP_WORDS: Final = frozenset(
    (
        f"{ENGLISH_STOP_WORDS} {GERMAN_STOP_WORDS} {FRENCH_STOP_WORDS} {SPANISH_STOP_WORDS} "
        f"{RUSSIAN_STOP_WORDS}"
    ).split()
)

MAX_TERMS: Final = 8
"""The rarest terms, which are searched."""
MAX_LOOKED_UP_TERMS: Final = 12
"""Terms whose frequency is looked up."""
HALF_LIFE: Final = timedelta(days=30)
"""Time after which half of the bonus for being new is gone."""
AGE_FLOOR: Final = 0.5
"""Smallest weight of old text: it must not lose to new text that matches less of the question."""
NOTE_WEIGHT: Final = 2.0
"""Factor for notes, which were written to be found again."""
MAX_CHANCE_TEXTS: Final = 20
"""Terms are enough if by chance at most so many texts hold all of them."""
NOTES_SHARE: Final = 16
"""Texts per note, at least: so terms of notes may be more frequent by this factor."""

_NOTE_DISCOUNT: Final = math.log(NOTES_SHARE)
_MIN_LETTERS: Final = 4
"""Shortest word that is searched."""
_MIN_EAST_ASIAN_CHARS: Final = 2
"""Shortest word of an East Asian script, where a word has fewer characters."""
_EAST_ASIAN_START: Final = "\u2e80"
"""Start of Han, kana and Hangul."""
_MIN_DIGITS: Final = 3
"""Shortest number."""
_MAX_TERM_CHARS: Final = 80
_MIN_TEXTS: Final = 5_000
"""Smallest assumed number of texts: in a small store, words used a few times are still rare."""
_COMMON_SHARE: Final = 0.05
"""Share of texts above which a word, in more than `MAX_CHANCE_TEXTS` texts, is too common."""
_TEXTS_PER_ENTRY: Final = 0.5
"""Texts per log entry, roughly: judgements and deliveries stand between the texts."""
_MAX_LINES: Final = 50
_MAX_LINE_CHARS: Final = 4_000

_WORD: Final = re.compile(r"[^\W_]+")

MAX_QUOTE_CHARS: Final = 300
"""Longest quotation."""
SEARCHED_KINDS: Final = ("direct", "mention", "reply", "room", "edited", "turn_ended", "noted")
"""Kinds of log entries in the search index."""
OWN_TOOLS: Final = frozenset({"journal", "remember", "stay_silent", "yield_to_user"})
"""Tools that bring nobody's words into a turn."""

_NOWHERE: Final = Seq(0)
_PREFIX_CHARS: Final = 3
"""Length of a word from which longer words with this beginning match too: harbour, harbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        self._reader = reader
        self._places = places
        self._redactor = redactor

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
            origin, handle = self._format_note_origin(fact, scope, context), f"n{one.seq}"
            return SearchHit(
                seq=one.seq,
                at=one.at,
                scope=scope,
                origin=origin,
                text=self._redactor(note_text(fact)),
                handle=handle,
                label=_with_readers(fact.label, scope, handle),
            )
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
        first = (
            one if isinstance(fact, Message) else await self._find_original(one.conversation, fact)
        )
        judged = await self._reader.find_judgement(first.seq) if first is not None else None
        if first is None or judged is None or judged.fate not in ("due", "context"):
            return None
        if not await self._is_current(one, first):
            return None
        role, edited = judged.role, ""
        if isinstance(fact, MessageEdited):
            own = await self._reader.find_judgement(one.seq)
            role, edited = lowest_role([role, own.role if own is not None else role]), ", edited"
        origin = f"{sanitize_name(fact.sender.name)} ({role}{edited}), {place}"
        carries = isinstance(first.fact, Message) and (
            bool(first.fact.carried) or bool(fact.carried)
        )
        label = OUTSIDE_LABEL if carries else label_of_role(role)
        return _build_hit(one, scope, origin, self._redactor(fact.text), label)

    def _format_place(self, conversation: ConversationId, context: ToolContext) -> str:
        """Return the place as seen from the context: its title, and the address that tools take."""
        if conversation == context.at.conversation:
            return "here"
        if is_inner(conversation):
            return "by yourself"
        label, titled = (
            self._places.titles.trusted_label(conversation),
            self._places.titles.title(conversation),
        )
        if label == conversation:
            return f"in {sanitize_name(conversation)}"
        return f"in {sanitize_name(titled)} at {sanitize_name(conversation)}"

    def _format_note_origin(self, noted: NoteWritten, scope: str, context: ToolContext) -> str:
        owner = (
            scope if is_shared_scope(scope) else self._format_place(ConversationId(scope), context)
        )
        return f"{REMEMBERED_TITLE if noted.lasting else 'your journal'} ({owner})"

    async def _find_original(
        self, conversation: ConversationId, edited: MessageEdited
    ) -> LogEntry | None:
        original = await self._reader.entry_by_key(f"message:{conversation}:{edited.message}")
        return original if original is not None and isinstance(original.fact, Message) else None

    async def _is_current(self, one: LogEntry, first: LogEntry) -> bool:
        """Return whether `one` is the present text of the message `first`, which was not
        deleted.
        """
        assert isinstance(first.fact, Message)
        newest = await self._reader.latest_message_change(first.fact, first.seq) or first
        return newest.seq == one.seq and not await self._is_cut(first)

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


def scope_of_hit(hit: SearchHit) -> str:
    """Return the scope, as the key for `Visibility.only_visible`."""
    return hit.scope


def match_all_terms(terms: Sequence[str]) -> str:
    """Return a query for `StoreReader.newest_entries(match=...)`: texts with all the terms, folded
    by the index.
    """
    return " ".join(
        f"{search_terms(term)}*" if len(term) >= _PREFIX_CHARS else search_terms(term)
        for term in terms
    )


@cache
def _term_pattern() -> "regex.Pattern[str]":
    """Return the pattern of a word or a whole identifier: a path, an address, a name with points or
    dashes in it.
    """
    import regex  # noqa: PLC0415 - takes 8 MB, and an idle gateway looks nothing up

    return regex.compile(r"[\w\p{M}]+(?:[./:@#+\-]+[\w\p{M}]+)*")


def split_words(text: str) -> list[str]:
    """Split text into words for `contains_all_words` and `quote_text`."""
    return _WORD.findall(fold_case(text))


def contains_all_words(text: str, words: Sequence[str]) -> bool:
    """Return whether a text holds all these words of `split_words`, in any case and with any
    accents.
    """
    folded = fold_case(text)
    return all(word in folded for word in words)


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


def sanitize_name(name: str) -> str:
    """Replace characters in a name that could close a frame or imitate one."""
    return to_single_line("".join("_" if c in '[]():"' else c for c in name), 100) or "_"


def _build_hit(one: LogEntry, scope: str, origin: str, text: str, label: Label) -> SearchHit:
    handle = f"m{one.seq}"
    label = _with_readers(label, scope, handle)
    return SearchHit(
        seq=one.seq, at=one.at, scope=scope, origin=origin, text=text, handle=handle, label=label
    )


def _with_readers(label: Label, scope: str, source: str) -> Label:
    return Label(label.integrity, readers_of(scope), source)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWeights:
    """Weights of search terms."""

    terms: Mapping[str, float]
    """Weight of each term in nats: the logarithm of the number of texts per text that holds it."""
    threshold: float
    """Sum that the terms of a text must reach together."""

    def score(self, found: Iterable[str], *, noted: bool) -> float:
        """Return the score of a text with these terms. 0: not enough. `noted`: the text is a
        note.
        """
        found_weights = [self.terms[term] for term in found]
        return (
            sum(each * each for each in found_weights) * (NOTE_WEIGHT if noted else 1.0)
            if self.is_enough(sum(found_weights), noted=noted)
            else 0.0
        )

    def is_enough(self, total: float, *, noted: bool) -> bool:
        """Return whether a sum of weights is enough."""
        return total >= self.threshold - (_NOTE_DISCOUNT if noted else 0.0)


def fold_case(text: str) -> str:
    """Remove case and accents, as the search index does."""
    if text.isascii():  # most texts are
        return text.lower()
    return "".join(
        c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c)
    )


_FOLDED_STOP_WORDS: Final = frozenset(map(fold_case, STOP_WORDS))


def extract_terms(lines: Sequence[str]) -> list[str]:
    """Return the terms of these messages (oldest first) that may be worth a search.

    At most `MAX_LOOKED_UP_TERMS`, those of the newest message first. Within one message identifiers
    come first, then long words, which are the rarest.
    """
    found: dict[str, None] = {}
    for line in reversed(lines[-_MAX_LINES:]):
        text = unicodedata.normalize(
            "NFC", line[:_MAX_LINE_CHARS]
        ).lower()  # the index folds the rest in the same way
        terms = [term for term in map(_clean_term, _term_pattern().findall(text)) if term]
        terms.sort(key=lambda term: (term.isalpha(), -len(term)))
        found |= dict.fromkeys(terms)
        if len(found) >= MAX_LOOKED_UP_TERMS:
            break
    return list(found)[:MAX_LOOKED_UP_TERMS]


def _clean_term(found: str) -> str:
    """Return a term; empty: it is not worth a search."""
    term = found.strip("_")[:_MAX_TERM_CHARS]
    if term.isalpha():
        return (
            ""
            if fold_case(term) in _FOLDED_STOP_WORDS
            or len(term) < (_MIN_EAST_ASIAN_CHARS if term[0] >= _EAST_ASIAN_START else _MIN_LETTERS)
            else term
        )
    if any(map(str.isalpha, term)):
        return (
            term
            if len(term) >= (_MIN_DIGITS if any(map(str.isdigit, term)) else _MIN_LETTERS)
            else ""
        )
    return term if sum(map(str.isdigit, term)) >= _MIN_DIGITS else ""


def weigh_terms(uses: Mapping[str, Sequence[int]], last: int, max_chars: int) -> TermWeights:
    """Return the weights of the rarest `MAX_TERMS` terms.

    `uses`: log positions of texts that hold a term, newest first, at most `limit`; their density
    gives the number of all. `last`: the last position of the log.
    """
    texts = last * _TEXTS_PER_ENTRY
    common = max(MAX_CHANCE_TEXTS, texts * _COMMON_SHARE)
    texts = max(texts, _MIN_TEXTS)
    counts = {
        term: len(seqs) * (last / (last - seqs[-1] + 1) if len(seqs) >= max_chars else 1)
        for term, seqs in uses.items()
    }
    rare = sorted((count, term) for term, count in counts.items() if 0 < count <= common)[
        :MAX_TERMS
    ]
    unused = [(1.0, term) for term, count in counts.items() if not count]  # the files may hold it
    terms = {term: math.log(texts / count) for count, term in (*rare, *unused)}
    return TermWeights(terms=terms, threshold=math.log(texts / MAX_CHANCE_TEXTS))


def score_candidates(
    uses: Mapping[str, Sequence[int]], weights: TermWeights, notes: Collection[int]
) -> dict[int, float]:
    """Return the texts that hold enough of the terms, with their scores. `notes`: log positions of
    notes.
    """
    sums: dict[int, float] = {}
    for term, weight in weights.terms.items():
        for seq in uses[term]:
            sums[seq] = sums.get(seq, 0.0) + weight
    found: dict[int, list[str]] = {
        seq: [] for seq, weight in sums.items() if weights.is_enough(weight, noted=seq in notes)
    }
    for term in weights.terms:
        for seq in found.keys() & uses[term]:
            found[seq].append(term)
    return {seq: weights.score(terms, noted=seq in notes) for seq, terms in found.items()}


def build_term_phrases(weights: TermWeights) -> list[tuple[str, str]]:
    """Return each term with the phrase that `find_terms_in` searches."""
    return [(term, f" {normalize_text(term)} ") for term in weights.terms]


def find_terms_in(text: str, looked_for: Sequence[tuple[str, str]]) -> list[str]:
    """Return the terms that a text outside the index holds. `looked_for`: result of
    `build_term_phrases`.
    """
    spaced = f" {normalize_text(text)} "
    return [term for term, phrase in looked_for if phrase in spaced]


@lru_cache(maxsize=32_768)  # the agents' own files are searched again before each turn
def normalize_text(text: str) -> str:
    """Return the words alone, folded, with one space between them."""
    return " ".join(_WORD.findall(fold_case(text)))


def apply_age(weight: float, age: timedelta) -> float:
    """Return the weight reduced by age. A time in the future counts as new."""
    return weight * (AGE_FLOOR + (1 - AGE_FLOOR) * math.exp2(-max(timedelta(0), age) / HALF_LIFE))
