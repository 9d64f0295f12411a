"""Discord's ids, which hold the time they were made: https://discord.com/developers/docs/reference#snowflakes. Pure."""

import hashlib
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
_ID_DIGITS = 20
_NONCE_CHARACTERS = 22
"""Of at most 25; so many digits of 62 hold 128 bits."""
_DIGITS = string.digits + string.ascii_letters


def get_snowflake(data: object, key: str) -> str:
    """The id under `key` in its one spelling, or an empty text."""
    return parse_id(data.get(key)) if isinstance(data, Mapping) else ""


def get_snowflakes(data: object, key: str) -> list[str]:
    """The ids in the list under `key`."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return [found for item in value if (found := parse_id(item))] if isinstance(value, list) else []


def parse_id(value: object) -> str:
    """The id that `value` is (a text or a number of 64 bits), or an empty text."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 64:
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _ID_DIGITS:
        return str(int(value)) if 0 < int(value) < 1 << 64 else ""
    return ""


def snowflake_time(snowflake: str) -> datetime:
    """When an id was made."""
    return _EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def snowflake_at(when: datetime) -> int:
    """The smallest id that could be made at that time; 0 before there was Discord."""
    return max(0, int((when - _EPOCH) / timedelta(milliseconds=1))) << 22


def message_nonce(key: str) -> str:
    """At most 25 characters, the same for the same key at all times."""
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big")
    digits = []
    for _ in range(_NONCE_CHARACTERS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
