"""Ids that are unique without coordination."""

import secrets
from datetime import datetime

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(now: datetime) -> str:
    """A ULID (github.com/ulid/spec): 26 characters, sorts by time to the millisecond, 80 random bits."""
    value = (int(now.timestamp() * 1000) << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
