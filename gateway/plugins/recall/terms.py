"""Terms: which words of messages are worth a search, and how much a text that holds them tells.

`is_small_talk` and `extract_terms` choose words, `weigh_terms` and `score_candidates` rank texts by
them. Pure.
"""

import math
import string
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

from gateway.core.frozen import frozen
from gateway.plugins.memory.search import fold_case, fold_words

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

_MIN_LETTERS: Final = 4
_MIN_EAST_ASIAN_CHARS: Final = 2
"""Shortest word of an East Asian script, where a word has fewer characters."""
_EAST_ASIAN_START: Final = "\u2e80"
"""Start of Han, kana and Hangul."""
_MIN_DIGITS: Final = 3
_MIN_TEXTS: Final = 5_000
"""Smallest assumed number of texts: in a small store, words used a few times are still rare."""
_COMMON_SHARE: Final = 0.05
"""Share of texts above which a word, in more than `MAX_CHANCE_TEXTS` texts, is too common."""
_TEXTS_PER_ENTRY: Final = 0.5
"""Texts per log entry, roughly: judgements and deliveries stand between the texts."""

MAX_SMALL_CHARS: Final = 3
"""Most letters of a word that is never searched."""


def is_small_talk(text: str, own_name: str) -> bool:
    """Return whether no word of a text is worth a search: all are short, or everybody uses them.
    `own_name`: of the agent. False where only a closer look can tell.
    """
    words = [found.strip(string.punctuation) for found in text.lower().split()]
    return all(
        word in STOP_WORDS
        or word == own_name
        or not word
        or (len(word) <= MAX_SMALL_CHARS and word.isalpha() and word.isascii())
        for word in words
    )


@cache
def _term_pattern() -> "regex.Pattern[str]":
    """Return the pattern of a word or a whole identifier: a path, an address, a name with points or
    dashes in it.
    """
    import regex  # noqa: PLC0415 - takes 8 MB, and an idle gateway looks nothing up

    return regex.compile(r"[\w\p{M}]+(?:[./:@#+\-]+[\w\p{M}]+)*")


def contains_all_words(text: str, words: Sequence[str]) -> bool:
    """Return whether a text holds all these words of `split_words`, in any case and with any
    accents.
    """
    folded = fold_case(text)
    return all(word in folded for word in words)


@frozen
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
        return total >= self.threshold - (math.log(NOTES_SHARE) if noted else 0.0)


_FOLDED_STOP_WORDS: Final = frozenset(map(fold_case, STOP_WORDS))


def extract_terms(lines: Sequence[str]) -> list[str]:
    """Return the terms of these messages (oldest first) that may be worth a search.

    At most `MAX_LOOKED_UP_TERMS`, those of the newest message first. Within one message identifiers
    come first, then long words, which are the rarest.
    """
    found: dict[str, None] = {}
    for line in reversed(lines[-50:]):
        text = unicodedata.normalize(
            "NFC", line[:4_000]
        ).lower()  # the index folds the rest in the same way
        terms = [term for term in map(_clean_term, _term_pattern().findall(text)) if term]
        terms.sort(key=lambda term: (term.isalpha(), -len(term)))
        found |= dict.fromkeys(terms)
        if len(found) >= MAX_LOOKED_UP_TERMS:
            break
    return list(found)[:MAX_LOOKED_UP_TERMS]


def _clean_term(found: str) -> str:
    term = found.strip("_")[:80]
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
    return [(term, f" {fold_words(term)} ") for term in weights.terms]


def find_terms_in(text: str, looked_for: Sequence[tuple[str, str]]) -> list[str]:
    """Return the terms that a text outside the index holds. `looked_for`: result of
    `build_term_phrases`.
    """
    spaced = f" {fold_words(text)} "
    return [term for term, phrase in looked_for if phrase in spaced]


def apply_age(weight: float, age: timedelta) -> float:
    """Return the weight reduced by age. A time in the future counts as new."""
    return weight * (AGE_FLOOR + (1 - AGE_FLOOR) * math.exp2(-max(timedelta(0), age) / HALF_LIFE))
