"""What people write, in one form. Pure: the same words give the same bytes, whichever editor saved them."""

import re

_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def decode_text(content: bytes) -> str:
    """A file as text: what is not UTF-8 is replaced, a byte order mark dropped, the rest is `normalize_text`."""
    return normalize_text(content.decode("utf-8", "replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))


def normalize_text(text: str) -> str:
    """One kind of line end, no control characters but tab, no space at the end of a line or around the whole.

    Lone surrogates, which JSON can spell and no wire can carry, are replaced.
    """
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _CONTROL_CHARS.sub("", _LINE_END.sub("\n", text))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip()
