"""One-time codes: how they are written and compared. Pure; chance is in `gateway.roster.minting`."""

import hashlib
import hmac
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from gateway.records import CodeIssued
from gateway.standing import normalize_person_key

CODE_ALPHABET: Final = "ACDEFGHJKMNPRTUWXY3479"
"""No two of these are taken for each other in common typefaces, in either case: no 0/O/Q, 1/I/L, 2/Z, 5/S, 6/G, 8/B,
U/V. 22 to the 8th is 5e10, and a person has 30 tries in an hour."""
CODE_CHARS: Final = 8
CODE_LIFETIME: Final = timedelta(hours=1)
MAX_PENDING_CODES: Final = 20
"""Of one channel, for people and rooms together. One more replaces the oldest, so that nobody keeps others out."""
MAX_CODES_PER_SOURCE: Final = 3
"""Of these from one person, or from one host. There is no fourth before one of them is over."""
_MAX_WRITTEN_CHARS: Final = 100
"""Nobody writes a code in more characters than that."""


def format_code(code: str) -> str:
    """As people are shown it."""
    return f"{code[: CODE_CHARS // 2]}-{code[CODE_CHARS // 2 :]}"


def normalize_code(written: str) -> str:
    """What somebody wrote, without case, white space, dashes and marks around it."""
    wide = unicodedata.normalize("NFKC", written[:_MAX_WRITTEN_CHARS]).upper()
    return "".join(char for char in wide if char.isalnum())


def hash_code(salt: str, code: str) -> str:
    """What the log keeps of a code beside the salt."""
    return hashlib.sha256(f"{salt}{code}".encode("utf-8", "replace")).hexdigest()


def find_by_code(given: Iterable[CodeIssued], written: str) -> CodeIssued | None:
    """The one that this is the code of. Takes as long for a wrong code as for a right one."""
    code, found = normalize_code(written), None
    for one in given:
        if hmac.compare_digest(hash_code(one.salt, code), one.digest):
            found = one
    return found


def find_request(given: Sequence[CodeIssued], written: str) -> CodeIssued | None:
    """The request that an admin means: by its code, by its name, or by whom or which room it is for.

    People are meant by `channel:id`, rooms by `channel/room`, both as they are listed. A name that somebody gave
    themselves, or a room's title, never counts.
    """
    if (found := find_by_code(given, written)) is not None:
        return found
    word = written.strip("` \t\n")
    for one in given:
        if word.lower() == one.request:
            return one
    for one in given:
        meant = normalize_person_key(word) == one.person if one.room is None else word == one.room.conversation
        if meant:
            return one
    return None


def filter_unexpired(given: Iterable[CodeIssued], now: datetime) -> list[CodeIssued]:
    """Those that are still good."""
    return [one for one in given if now < one.until]
