"""What is done to all text that comes in or goes out. Pure."""

import re
import unicodedata

from gateway.safety.marks import strip_hidden

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
