"""Ids that are unique without coordination."""

import secrets
from datetime import UTC, datetime, timedelta

_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID_CHARS = 26
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def new_id(now: datetime) -> str:
    """A ULID (github.com/ulid/spec): 26 characters, sorts by time to the millisecond, 80 random bits."""
    value = ((now - _EPOCH) // _MILLISECOND << 80) | secrets.randbits(80)
    return "".join(_ULID_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def id_created_at(made: str) -> datetime | None:
    """When an id of ours was made, UTC, to the millisecond. None: it is none of ours."""
    if len(made) != _ULID_CHARS or not all(char in _ULID_ALPHABET for char in made):
        return None
    value = sum(_ULID_ALPHABET.index(char) << shift for char, shift in zip(made, range(125, -1, -5), strict=True))
    try:
        return _EPOCH + (value >> 80) * _MILLISECOND
    except OverflowError:  # a time that no calendar has
        return None
