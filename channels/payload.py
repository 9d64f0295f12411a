"""Reading JSON that nobody vouches for: each reader gives what it promises, whatever is there. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime

from channels.text import clean_text

Json = Mapping[str, object]
"""An object as it came; only the readers below look inside."""

_MAX_NUMBER = 2**53
_EMPTY: Json = {}


def get_object(of: object, key: str) -> Json:
    """The object at `key`; empty if there is none."""
    value = _get_value(of, key)
    return value if isinstance(value, Mapping) else _EMPTY


def get_objects(of: object, key: str) -> list[Json]:
    """The objects in the list at `key`."""
    value = _get_value(of, key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def get_int(of: object, key: str) -> int | None:
    """The whole number at `key`."""
    value = _get_value(of, key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_number(of: object, key: str) -> float | None:
    """The finite number at `key`, if it is not negative."""
    value = _get_value(of, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _MAX_NUMBER else None  # NaN compares false


def get_bool(of: object, key: str) -> bool:
    """Whether `true` stands at `key`."""
    return _get_value(of, key) is True


def get_raw_str(of: object, key: str) -> str:
    """The string at `key` as it came: offsets count in it. Empty if there is none."""
    value = _get_value(of, key)
    return value if isinstance(value, str) else ""


def get_str(of: object, key: str) -> str:
    """The string at `key`, fit for our text."""
    return clean_text(get_raw_str(of, key))


def get_datetime(of: object, key: str) -> datetime | None:
    """The time at `key`, as Unix time or ISO 8601, in UTC; None if there is none."""
    seconds = get_int(of, key)
    try:
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
        found = datetime.fromisoformat(get_raw_str(of, key))
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _get_value(of: object, key: str) -> object:
    return of.get(key) if isinstance(of, Mapping) else None
