"""One-time codes: how they are written and compared. Pure; chance is in `gateway.roster.minting`."""

import hashlib
import hmac
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from gateway.records import CodeGiven
from gateway.standing import folded

ALPHABET: Final = "ACDEFGHJKMNPRTUWXY3479"
"""No two of these are taken for each other in common typefaces, in either case: no 0/O/Q, 1/I/L, 2/Z, 5/S, 6/G, 8/B,
U/V. 22 to the 8th is 5e10, and a person has 30 tries in an hour."""
LENGTH: Final = 8
LIFE: Final = timedelta(hours=1)
MOST_PENDING: Final = 20
"""Of one channel, for people and rooms together. One more replaces the oldest, so that nobody keeps others out."""
MOST_OF_SOURCE: Final = 3
"""Of these from one person, or from one host. There is no fourth before one of them is over."""
_MOST_WRITTEN: Final = 100
"""Nobody writes a code in more characters than that."""


def spelled(code: str) -> str:
    """As people are shown it."""
    return f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}"


def normal(written: str) -> str:
    """What somebody wrote, without case, white space, dashes and marks around it."""
    wide = unicodedata.normalize("NFKC", written[:_MOST_WRITTEN]).upper()
    return "".join(char for char in wide if char.isalnum())


def digest(salt: str, code: str) -> str:
    """What the log keeps of a code beside the salt."""
    return hashlib.sha256(f"{salt}{code}".encode("utf-8", "replace")).hexdigest()


def matching(given: Iterable[CodeGiven], written: str) -> CodeGiven | None:
    """The one that this is the code of. Takes as long for a wrong code as for a right one."""
    code, found = normal(written), None
    for one in given:
        if hmac.compare_digest(digest(one.salt, code), one.digest):
            found = one
    return found


def find(given: Sequence[CodeGiven], written: str) -> CodeGiven | None:
    """The request that an admin means: by its code, by its name, or by whom or which room it is for.

    People are meant by `channel:id`, rooms by `channel/room`, both as they are listed. A name that somebody gave
    themselves, or a room's title, never counts.
    """
    if (found := matching(given, written)) is not None:
        return found
    word = written.strip("` \t\n")
    for one in given:
        if word.lower() == one.request:
            return one
    for one in given:
        meant = folded(word) == one.person if one.room is None else word == one.room.conversation
        if meant:
            return one
    return None


def pending(given: Iterable[CodeGiven], now: datetime) -> list[CodeGiven]:
    """Those that are still good."""
    return [one for one in given if now < one.until]
