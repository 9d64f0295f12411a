"""Careful reading of JSON from elsewhere: what is missing or of the wrong type reads as nothing. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

Json = Mapping[str, object]
"""A JSON object whose members may be anything."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NAME_CHARS = 64
_LARGEST = 2**53
_NOTHING: Json = {}


def table(of: Json, key: str) -> Json:
    """The object at `key`; empty if there is none."""
    value = of.get(key)
    return value if isinstance(value, dict) else _NOTHING


def tables(of: Json, key: str) -> list[Json]:
    """The objects in the list at `key`."""
    value = of.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def whole(of: Json, key: str) -> int | None:
    """The whole number at `key`."""
    value = of.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(of: Json, key: str) -> float | None:
    """The number at `key`, if it is not negative."""
    value = of.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _LARGEST else None


def raw(of: Json, key: str) -> str:
    """The string at `key` as it came: offsets count in it."""
    value = of.get(key)
    return value if isinstance(value, str) else ""


def string(of: Json, key: str) -> str:
    """The string at `key`, fit for our text."""
    return clean(raw(of, key))


def clean(text: str) -> str:
    """Without control characters but tabs and line feeds, and without lone surrogates."""
    return _CONTROL.sub(
        "", text.replace("\r\n", "\n").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )


def name(text: str) -> str:
    """What somebody called a person, chat or file, on one line of bearable length."""
    return line(text, _NAME_CHARS)


def line(text: str, chars: int) -> str:
    """On one line of at most so many characters."""
    return " ".join(clean(text).split())[:chars]


def moment(seconds: int | None, otherwise: datetime) -> datetime:
    """Unix time as a time."""
    if seconds is None or seconds <= 0:
        return otherwise
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return otherwise
