"""Which words of new messages are worth looking up, and what of the found has to do with them. Pure."""

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import regex

from gateway.stop_words import STOP_WORDS

MAX_TERMS: Final = 8
"""That are looked for, the rarest."""
MAX_LOOKED_UP_TERMS: Final = 12
"""Of which it is looked up how rare they are."""
HALF_LIFE: Final = timedelta(days=30)
"""After which half of what was said counts for being new is gone."""
AGE_FLOOR: Final = 0.5
"""What is old counts so much at least: it must not lose to what is new and has to do with less of the question."""
NOTE_WEIGHT: Final = 2.0
"""What was written down to be found again counts so many times."""
MAX_CHANCE_TEXTS: Final = 20
"""Terms say enough together if by chance at most so many texts have all of them."""
NOTES_SHARE: Final = 16
"""There are so many times fewer notes than texts, at least: so their terms may be so much more frequent."""

_NOTE_DISCOUNT: Final = math.log(NOTES_SHARE)
_MIN_LETTERS: Final = 4
"""Of a word that is looked for."""
_MIN_EAST_ASIAN_CHARS: Final = 2
"""Of one in a script where a word has fewer signs."""
_EAST_ASIAN_START: Final = "\u2e80"
"""From here on: Han, kana, Hangul."""
_MIN_DIGITS: Final = 3
"""Of a number."""
_MAX_TERM_CHARS: Final = 80
_MIN_TEXTS: Final = 5_000
"""A store is taken as holding at least so many texts: in a small one, what was said a few times is still rare."""
_COMMON_SHARE: Final = 0.05
"""A word in more texts than this, and more than `MAX_CHANCE_TEXTS`, tells nothing."""
_TEXTS_PER_ENTRY: Final = 0.5
"""In the log, roughly: judgements and deliveries stand between the texts (0.55 in bench_recall)."""
_MAX_LINES: Final = 50
_MAX_LINE_CHARS: Final = 4_000

_TERM: Final = regex.compile(r"[\w\p{M}]+(?:[./:@#+\-]+[\w\p{M}]+)*")
"""A word, or an identifier: a path, an address, a name with points or dashes in it, whole."""
_WORD: Final = re.compile(r"[^\W_]+")


def fold_case(text: str) -> str:
    """Without case and accents, as the search index has it."""
    if text.isascii():  # most is
        return text.lower()
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))


_FOLDED_STOP_WORDS: Final = frozenset(map(fold_case, STOP_WORDS))


def extract_terms(lines: Sequence[str]) -> list[str]:
    """What of these messages, the oldest first, may be worth looking up.

    At most `MAX_LOOKED_UP_TERMS`, the newest first.

    Of one message first what looks like a name of something, then what is long: the rarest words are.
    """
    found: dict[str, None] = {}
    for line in reversed(lines[-_MAX_LINES:]):
        text = unicodedata.normalize("NFC", line[:_MAX_LINE_CHARS]).lower()  # the index folds the rest as it does
        told = [term for term in map(_clean_term, _TERM.findall(text)) if term]
        told.sort(key=lambda term: (term.isalpha(), -len(term)))
        found |= dict.fromkeys(told)
        if len(found) >= MAX_LOOKED_UP_TERMS:
            break
    return list(found)[:MAX_LOOKED_UP_TERMS]


def _clean_term(found: str) -> str:
    """Empty: not worth looking up."""
    term = found.strip("_")[:_MAX_TERM_CHARS]
    if term.isalpha():
        return (
            ""
            if fold_case(term) in _FOLDED_STOP_WORDS
            or len(term) < (_MIN_EAST_ASIAN_CHARS if term[0] >= _EAST_ASIAN_START else _MIN_LETTERS)
            else term
        )
    if any(map(str.isalpha, term)):
        return term if len(term) >= (_MIN_DIGITS if any(map(str.isdigit, term)) else _MIN_LETTERS) else ""
    return term if sum(map(str.isdigit, term)) >= _MIN_DIGITS else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWeights:
    """What terms tell."""

    terms: Mapping[str, float]
    """Of each how surprising it is, in nats: the logarithm of how many texts there are to one that has it."""
    threshold: float
    """What the terms of one text must have together for it to be looked at."""

    def score(self, found: Iterable[str], *, noted: bool) -> float:
        """What these say together of a text that has them. 0: not enough. `noted`: it was written down to be found."""
        told = [self.terms[term] for term in found]
        return (
            sum(each * each for each in told) * (NOTE_WEIGHT if noted else 1.0)
            if self.is_enough(sum(told), noted=noted)
            else 0.0
        )

    def is_enough(self, together: float, *, noted: bool) -> bool:
        """Whether so much is enough."""
        return together >= self.threshold - (_NOTE_DISCOUNT if noted else 0.0)


def weigh_terms(uses: Mapping[str, Sequence[int]], last: int, most: int) -> TermWeights:
    """How much each term tells, of the rarest `MAX_TERMS`.

    `uses`: where texts with it stand in a log whose last entry is `last`, the newest first, at most `most` of them:
    how densely those stand tells how many there are.
    """
    texts = last * _TEXTS_PER_ENTRY
    common = max(MAX_CHANCE_TEXTS, texts * _COMMON_SHARE)
    texts = max(texts, _MIN_TEXTS)
    counts = {
        term: len(seqs) * (last / (last - seqs[-1] + 1) if len(seqs) >= most else 1) for term, seqs in uses.items()
    }
    rare = sorted((count, term) for term, count in counts.items() if 0 < count <= common)[:MAX_TERMS]
    unused = [(1.0, term) for term, count in counts.items() if not count]  # the files may have it
    terms = {term: math.log(texts / count) for count, term in (*rare, *unused)}
    return TermWeights(terms=terms, threshold=math.log(texts / MAX_CHANCE_TEXTS))


def score_candidates(
    uses: Mapping[str, Sequence[int]], weights: TermWeights, notes: Collection[int]
) -> dict[int, float]:
    """What is found with enough of the terms, and what they say. `notes`: where notes stand."""
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
    """The terms, and how `find_terms_in` looks for them."""
    return [(term, f" {normalize_text(term)} ") for term in weights.terms]


def find_terms_in(text: str, looked_for: Sequence[tuple[str, str]]) -> list[str]:
    """The terms that are in a text outside of the index.

    `text`: `normalize_text`; `looked_for`: `build_term_phrases`.
    """
    spaced = f" {text} "
    return [term for term, phrase in looked_for if phrase in spaced]


def normalize_text(text: str) -> str:
    """Its words alone, `fold_case`, one space between them."""
    return " ".join(_WORD.findall(fold_case(text)))


def apply_age(weight: float, age: timedelta) -> float:
    """By which what is found is put in order. `age`: what is of the future counts as new."""
    return weight * (AGE_FLOOR + (1 - AGE_FLOOR) * math.exp2(-max(timedelta(0), age) / HALF_LIFE))
