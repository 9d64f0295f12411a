"""Names that only look like another's. Pure.

Two names look alike if they have the same skeleton (https://www.unicode.org/reports/tr39/#Confusable_Detection). The
table is that of Unicode 15.0, as ICU 72 has it (`tests/checks/confusables.py` writes it).
"""

import gzip
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gateway.events import Sender
from gateway.safety.marks import strip_hidden

CONFUSABLES_FILE: Final = Path(__file__).with_name("confusables.gz")
"""Lines of a character and what it looks like."""
_ALPHABETS: Final = ("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK", "LATIN")
"""Their letters look like each other's; of others a word may have two, as Japanese has three."""
_CACHED_NAMES: Final = 4_000


class NameWarning(NamedTuple):
    """What is to be known of somebody's name."""

    reason: Literal["alike", "same", "perhaps", "mixed"]
    """alike: it looks like another's; same: another has it, too; perhaps: somebody had it whom the platform knew, and
    it does not say that this is the same person; mixed: its letters are of several alphabets."""
    other: str
    """The other's name, untrusted; mixed: which alphabets."""


def check_name(sender: Sender, others: Iterable[Sender]) -> NameWarning | None:
    """Whether this person may be taken for one of the others, or was meant to be for somebody. None: no reason to.

    `others` may hold the person themselves, and those who had the name before.
    """
    looks = _name_skeletons(sender.name)
    for other in others:
        if other.id == sender.id or looks.isdisjoint(_name_skeletons(other.name)):
            continue
        if other.name.casefold() != sender.name.casefold():
            return NameWarning("alike", other.name)
        if other.verified:  # without that a name is all there is: it may be one person twice
            return NameWarning("same" if sender.verified else "perhaps", other.name)
    found = mixed_alphabets(sender.name)
    return NameWarning("mixed", " and ".join(found)) if found else None


def looks_like(one: str, other: str) -> bool:
    """Whether people may take one for the other."""
    return not _name_skeletons(one).isdisjoint(_name_skeletons(other))


def describe_name_warning(doubted: NameWarning, other: str) -> str:
    """In words; `other`: its name, as it may be shown there."""
    match doubted.reason:
        case "alike":
            return f"not {other}: the name only looks alike"
        case "same":
            return f"not the other {other}: only the name is the same"
        case "perhaps":
            return f"not known to be the {other} of before"
        case "mixed":
            return f"the name mixes {doubted.other} letters"


def mixed_alphabets(name: str) -> tuple[str, ...]:
    """The alphabets whose letters are mixed in one word of a name; empty: none are."""
    if name.isascii():
        return ()
    for word in "".join(char if char.isalpha() or unicodedata.combining(char) else " " for char in name).split():
        found = {unicodedata.name(char, "").split(" ")[0] for char in word}
        mixed = [alphabet for alphabet in _ALPHABETS if alphabet in found]
        if len(mixed) > 1:
            return tuple(alphabet.capitalize() for alphabet in mixed)
    return ()


@lru_cache(maxsize=_CACHED_NAMES)
def _name_skeletons(name: str) -> frozenset[str]:
    """What a name looks like, as it is written and in small letters."""
    bare = " ".join(strip_hidden(name).split())
    return frozenset({_skeleton(bare), _skeleton(bare.casefold())} - {""})


def _skeleton(text: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).translate(_confusables()))


@lru_cache(maxsize=1)
def _confusables() -> dict[int, str]:
    """1 MB and 15 ms, so it is read when it is first needed."""
    with gzip.open(CONFUSABLES_FILE, "rt", encoding="utf-8") as lines:
        return {ord(line[0]): line[1:].rstrip("\n") for line in lines}
