"""Discord ids, which contain their creation time. Pure.

https://discord.com/developers/docs/reference#snowflakes
"""

import hashlib
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
_ID_DIGITS = 20
_NONCE_CHARACTERS = 22
"""Discord allows 25; this many digits of base 62 hold 128 bits."""
_DIGITS = string.digits + string.ascii_letters


def get_snowflake(data: object, key: str) -> str:
    """Return the id at `key` in normal form, or an empty text."""
    return parse_id(data.get(key)) if isinstance(data, Mapping) else ""


def get_snowflakes(data: object, key: str) -> list[str]:
    """Return the ids in the list at `key`."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return [found for item in value if (found := parse_id(item))] if isinstance(value, list) else []


def parse_id(value: object) -> str:
    """Return the id in normal form if `value` is one (a text or a number of 64 bits), else an empty
    text.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 64:
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _ID_DIGITS:
        return str(int(value)) if 0 < int(value) < 1 << 64 else ""
    return ""


def snowflake_time(snowflake: str) -> datetime:
    """Return the creation time of an id."""
    return _EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def snowflake_at(when: datetime) -> int:
    """Return the smallest id that could be created at that time; 0 before Discord's epoch."""
    return max(0, int((when - _EPOCH) / timedelta(milliseconds=1))) << 22


def message_nonce(key: str) -> str:
    """Return at most 25 characters, the same for the same key at all times."""
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big")
    digits = []
    for _ in range(_NONCE_CHARACTERS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
