"""The texts in a PNG file. Pure; bounded in size, chunks and decompressed bytes.

Rules: https://www.w3.org/TR/png-3/ sections 5 (chunks) and 11.3.3 (tEXt, zTXt, iTXt).
"""

import struct
import zlib
from collections.abc import Iterator

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_CHUNKS = 20_000
"""A picture of 16 MB in pieces of 8 KiB, the smallest that encoders write, has 2,000."""
MAX_TEXT_BYTES = 4_000_000
"""Of one text, decompressed."""

_CHUNK_HEAD = struct.Struct(">I4s")
_CRC_BYTES = 4


class InvalidPng(ValueError):
    """Not a whole PNG file, or one whose texts cannot be trusted. The text says what is wrong."""


def read_png_texts(content: bytes) -> dict[str, bytes]:
    """The file's texts by keyword in lower case, the first of each, undecoded. Raises `InvalidPng`."""
    found: dict[str, bytes] = {}
    for kind, data in _iter_chunks(content):
        if kind not in (b"tEXt", b"zTXt", b"iTXt"):
            continue
        keyword, nul, rest = data.partition(b"\0")
        if nul:
            found.setdefault(keyword.decode("latin-1").lower(), _decode_chunk_text(kind, rest))
    return found


def _iter_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and data of each chunk up to the end of the picture; pixels are passed over unchecked."""
    if not content.startswith(PNG_SIGNATURE):
        raise InvalidPng("it is not a PNG file")
    at = len(PNG_SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if len(content) - at < _CHUNK_HEAD.size + _CRC_BYTES:
            raise InvalidPng("the PNG file is cut off")
        size, kind = _CHUNK_HEAD.unpack_from(content, at)
        at += _CHUNK_HEAD.size
        if size > len(content) - at - _CRC_BYTES:
            raise InvalidPng("the PNG file is cut off")
        if kind == b"IEND":
            return
        if kind.endswith(b"Xt"):
            data = content[at : at + size]
            if zlib.crc32(kind + data) != int.from_bytes(content[at + size : at + size + _CRC_BYTES], "big"):
                raise InvalidPng(f"the checksum of a text in the PNG file is wrong, at byte {at}")
            yield kind, data
        at += size + _CRC_BYTES
    raise InvalidPng(f"the PNG file has more than {MAX_CHUNKS} chunks")


def _decode_chunk_text(kind: bytes, rest: bytes) -> bytes:
    """What follows the keyword and its NUL."""
    if kind == b"tEXt":
        return rest
    if kind == b"zTXt":
        return _inflate(rest[:1], rest[1:])
    _, _, behind_language = rest[2:].partition(b"\0")
    _, _, text = behind_language.partition(b"\0")
    return _inflate(rest[1:2], text) if rest[:1] == b"\1" else text


def _inflate(method: bytes, packed: bytes) -> bytes:
    if method != b"\0":
        raise InvalidPng("a text in the PNG file is compressed in an unknown way")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, MAX_TEXT_BYTES)
    except zlib.error:
        raise InvalidPng("a compressed text in the PNG file is damaged") from None
    if not unpacker.eof:
        raise InvalidPng(f"a compressed text in the PNG file is cut off or longer than {MAX_TEXT_BYTES} bytes")
    return text
