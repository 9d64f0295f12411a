"""Cleaning of all incoming and outgoing text, and readers of untrusted JSON. Pure.

The `get_*` readers never raise: a value of another type counts as missing.
"""

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from gateway.core.text_safety import strip_hidden

_NAME_CHARS = 64
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that file names must not contain."""
_RESERVED_CHARS = str.maketrans(dict.fromkeys('"<>|?*:;', "_"))
"""Characters that some file systems refuse in names, or that parsers of headers read differently
(the first and the last)."""
_FILE_NAME_CHARS = 100
_EXTENSION_CHARS = 12
_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}"
)
"""RFC 6838 section 4.2, without parameters."""


def clean_text(text: str) -> str:
    """Return `text` with clean line ends and control characters, and without surrogates.

    Line feeds are the only line ends and tabs the only other control characters. A lone surrogate
    becomes U+FFFD: it cannot be encoded as UTF-8.
    """
    if text.isprintable():  # most lines
        return text
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", _LINE_ENDS.sub("\n", text)))


def single_line(text: str, chars: int) -> str:
    """Return `text` on one line of at most `chars` characters."""
    return " ".join(clean_text(text).split())[:chars]


def fold_words(text: str) -> str:
    """Return the words of a text without case and punctuation, with a space between."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def clean_name(text: str) -> str:
    """Return the name of a person, chat or file on one line of bounded length, without invisible
    characters.
    """
    return single_line(strip_hidden(clean_text(text)), _NAME_CHARS)


def clean_outgoing(text: str) -> str:
    """Return `text` as it may be sent: cleaned, and without invisible characters and direction
    marks.
    """
    return strip_hidden(clean_text(text))


def safe_file_name(text: str) -> str:
    """Return a file name to send: no path, only visible characters, its extension kept; never
    empty.

    Direction marks are removed, too: they display `exe.txt` as `txt.exe`.
    """
    base = re.split(r"[/\\]", text)[-1]
    visible = "".join(
        character
        for character in base
        if unicodedata.category(character) not in _INVISIBLE_CATEGORIES
    ).translate(_RESERVED_CHARS)
    bare = single_line(visible, len(visible)).strip(". ")
    stem, dot, extension = bare.rpartition(".")
    if dot and len(extension) <= _EXTENSION_CHARS:
        return f"{stem[: _FILE_NAME_CHARS - len(extension) - 1].rstrip()}.{extension}"
    return bare[:_FILE_NAME_CHARS].rstrip() or "file"


def safe_content_type(text: str) -> str:
    """Return `text` if it is a media type, else the generic one: it becomes a header line."""
    return text if _MEDIA_TYPE.fullmatch(text) else "application/octet-stream"


_BUTTON_COMMAND: Final = re.compile(r"([a-z0-9_]{1,32})(?: (\S.*))?")


def parse_button_command(data: str) -> tuple[str, str] | None:
    """Return name and arguments of the command that a tap gives
    (`gateway.core.events.PostButton.command`).

    None: no button of ours has this data. Data that a client made up is as good as a written
    command, and no better.
    """
    found = _BUTTON_COMMAND.fullmatch(data) if data.isprintable() else None
    return (found[1], (found[2] or "").strip()) if found else None


Json = Mapping[str, object]
"""Untrusted JSON object; only the readers below look inside."""

_MAX_NUMBER = 2**53
_EMPTY: Json = {}


def get_object(source: object, key: str) -> Json:
    """Return the object at `key`; empty if there is none."""
    value = _get_value(source, key)
    return value if isinstance(value, Mapping) else _EMPTY


def get_objects(source: object, key: str) -> list[Json]:
    """Return the objects in the list at `key`."""
    value = _get_value(source, key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def get_int(source: object, key: str) -> int | None:
    """Return the integer at `key`."""
    value = _get_value(source, key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_number(source: object, key: str) -> float | None:
    """Return the finite number at `key`, if it is not negative."""
    value = _get_value(source, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _MAX_NUMBER else None  # NaN compares false


def get_bool(source: object, key: str) -> bool:
    """Return True if `true` is at `key`."""
    return _get_value(source, key) is True


def get_raw_str(source: object, key: str) -> str:
    """Return the unchanged string at `key`, for offsets that count in it. Empty if there is
    none.
    """
    value = _get_value(source, key)
    return value if isinstance(value, str) else ""


def get_str(source: object, key: str) -> str:
    """Return the string at `key`, cleaned."""
    return clean_text(get_raw_str(source, key))


def get_datetime(source: object, key: str, *, needs_zone: bool = False) -> datetime | None:
    """Return the time at `key`, Unix time or ISO 8601, in UTC; None if there is none.

    A text without a zone is in UTC, or with `needs_zone` no time.
    """
    seconds = get_int(source, key)
    try:
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
        found = datetime.fromisoformat(get_raw_str(source, key))
        if needs_zone and found.tzinfo is None:
            return None
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _get_value(source: object, key: str) -> object:
    return source.get(key) if isinstance(source, Mapping) else None
