"""Cut text into pieces that fit a limit counted in UTF-8 bytes. Pure."""

_LONGEST_CODE_POINT_BYTES = 4


def split(text: str, limit_bytes: int) -> tuple[str, ...]:
    """Pieces of at most `limit_bytes` UTF-8 bytes each; none is blank; none for blank text.

    Cuts at the last white space that fits, else between two code points (never inside one). Joined
    again, only white space at the cuts is missing; white space at the very start stays, because it
    is the indentation of code. Lone surrogates become `?`. Raises ValueError if `limit_bytes` < 4.
    """
    if limit_bytes < _LONGEST_CODE_POINT_BYTES:
        raise ValueError(f"a code point may need 4 bytes; the limit is {limit_bytes}")
    rest = text.encode("utf-8", "replace")
    pieces: list[str] = []
    while rest.strip():
        piece, rest = _first(rest, limit_bytes)
        if piece.strip():
            pieces.append(piece)
    return tuple(pieces)


def _first(data: bytes, limit_bytes: int) -> tuple[str, bytes]:
    """The longest piece that fits, and what follows it without the white space between."""
    if len(data) <= limit_bytes:
        return data.decode().rstrip(), b""
    end = limit_bytes
    while data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte, RFC 3629 section 3
        end -= 1
    window = data[:end].decode()
    following = data[end : end + _LONGEST_CODE_POINT_BYTES].decode("utf-8", "ignore")[:1]
    if not following.isspace():
        space = next((i for i in range(len(window) - 1, 0, -1) if window[i].isspace()), 0)
        if window[:space].strip():
            window = window[:space]
    taken = len(window.encode())
    return window.rstrip(), data[taken:].decode().lstrip().encode()
