"""What is done to all text that comes in or goes out. Pure.

Reading JSON that nobody vouches for: each reader gives what it promises, whatever is there. Pure.
"""

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.core.text_safety import strip_hidden

_NAME_CHARS = 64
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that a name of a file does without."""
_RESERVED_CHARS = str.maketrans(dict.fromkeys('"<>|?*:;', "_"))
"""No file is called so on every system, and readers of headers do not agree on the first and the last."""
_FILE_NAME_CHARS = 100
_EXTENSION_CHARS = 12
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}")
"""RFC 6838 section 4.2, without parameters."""
_DEFAULT_MEDIA_TYPE = "application/octet-stream"


def clean_text(text: str) -> str:
    """`text` with line feeds as its only line ends, tabs as its only other control characters, and no surrogates.

    A lone surrogate becomes U+FFFD: it cannot be written as UTF-8.
    """
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", _LINE_ENDS.sub("\n", text)))


def single_line(text: str, chars: int) -> str:
    """On one line of at most so many characters."""
    return " ".join(clean_text(text).split())[:chars]


def clean_name(text: str) -> str:
    """What somebody called a person, chat or file, on one line of bearable length, without what nobody sees."""
    return single_line(strip_hidden(clean_text(text)), _NAME_CHARS)


def clean_outgoing(text: str) -> str:
    """`text` as it may be said: `clean_text`, and without what nobody sees or what turns lines around."""
    return strip_hidden(clean_text(text))


def safe_file_name(text: str) -> str:
    """What a file is called where it is sent: no path, nothing that is not shown, its extension kept; never empty.

    Marks of direction go too: they make `exe.txt` of `txt.exe`.
    """
    base = re.split(r"[/\\]", text)[-1]
    shown = "".join(one for one in base if unicodedata.category(one) not in _INVISIBLE_CATEGORIES).translate(
        _RESERVED_CHARS
    )
    bare = single_line(shown, len(shown)).strip(". ")
    stem, dot, extension = bare.rpartition(".")
    if dot and len(extension) <= _EXTENSION_CHARS:
        return f"{stem[: _FILE_NAME_CHARS - len(extension) - 1].rstrip()}.{extension}"
    return bare[:_FILE_NAME_CHARS].rstrip() or "file"


def safe_content_type(text: str) -> str:
    """`text` if it names a type of content, else the one that says nothing: it becomes a line of a header."""
    return text if _MEDIA_TYPE.fullmatch(text) else _DEFAULT_MEDIA_TYPE


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
