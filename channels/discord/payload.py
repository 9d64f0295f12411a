"""Reading JSON that nobody vouches for: each reader gives what it promises, whatever is there. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

Json = Mapping[str, Any]
"""An object as it came; only the readers below look inside. It never leaves this package."""

_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
"""https://discord.com/developers/docs/reference#snowflakes"""
_ID_DIGITS = 20


def obj(data: object, key: str) -> Json:
    """The object under `key`, or an empty one."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def objs(data: object, key: str) -> list[Json]:
    """The objects in the list under `key`."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text(data: object, key: str) -> str:
    """The text under `key` without lone surrogates and NUL, or an empty one."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return clean(value) if isinstance(value, str) else ""


def clean(value: str) -> str:
    """Without what cannot be stored."""
    return value.replace("\x00", "").encode("utf-8", "replace").decode()


def snowflake(data: object, key: str) -> str:
    """The id under `key` in its one spelling, or an empty text."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return as_id(value)


def snowflakes(data: object, key: str) -> list[str]:
    """The ids in the list under `key`."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return [found for item in value if (found := as_id(item))] if isinstance(value, list) else []


def as_id(value: object) -> str:
    """The id that `value` is (a text or a number of 64 bits), or an empty text."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 64:
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _ID_DIGITS:
        return str(int(value)) if 0 < int(value) < 1 << 64 else ""
    return ""


def number(data: object, key: str) -> int | None:
    """The whole number under `key`; None if there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def seconds(data: object, key: str) -> float | None:
    """The finite, not negative number under `key`."""
    value = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e9 else None  # noqa: PLR2004 - thirty years; NaN compares false


def flag(data: object, key: str) -> bool:
    """Whether `true` stands under `key`."""
    return isinstance(data, Mapping) and data.get(key) is True


def moment(data: object, key: str) -> datetime | None:
    """The time under `key`, in UTC; None if there is none."""
    try:
        found = datetime.fromisoformat(text(data, key))
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def time_of(snowflake: str) -> datetime:
    """When an id was made."""
    return _EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def id_at(when: datetime) -> int:
    """The smallest id that could be made at that time; 0 before there was Discord."""
    return max(0, int((when - _EPOCH) / timedelta(milliseconds=1))) << 22
