"""What is done to all text that comes in or goes out. Pure."""

import re

_NAME_CHARS = 64
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with line feeds as its only line ends, tabs as its only other control characters, and no surrogates.

    A lone surrogate becomes U+FFFD: it cannot be written as UTF-8.
    """
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", _LINE_ENDS.sub("\n", text)))


def line(text: str, chars: int) -> str:
    """On one line of at most so many characters."""
    return " ".join(clean(text).split())[:chars]


def name(text: str) -> str:
    """What somebody called a person, chat or file, on one line of bearable length."""
    return line(text, _NAME_CHARS)
