"""Ids that are unique without coordination."""

import secrets
from datetime import UTC, datetime, timedelta

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARS = 26
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def new_id(now: datetime) -> str:
    """A ULID (github.com/ulid/spec): 26 characters, sorts by time to the millisecond, 80 random bits."""
    value = ((now - _EPOCH) // _MILLISECOND << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def moment_of(made: str) -> datetime | None:
    """When an id of ours was made, UTC, to the millisecond. None: it is none of ours."""
    if len(made) != _CHARS or not all(char in _ALPHABET for char in made):
        return None
    value = sum(_ALPHABET.index(char) << shift for char, shift in zip(made, range(125, -1, -5), strict=True))
    try:
        return _EPOCH + (value >> 80) * _MILLISECOND
    except OverflowError:  # a time that no calendar has
        return None
