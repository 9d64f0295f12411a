"""What a file is, by its first bytes: never by its name or by what anybody says of it. Pure.

Obeys the PNG specification (5.2, 11.2.2), GIF89a (section 18), ITU-T T.81 (B.2.2) and
developers.google.com/speed/webp/docs/riff_container.
"""

from typing import Literal, NamedTuple

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers that are followed by the size of the picture."""
_MAX_JPEG_MARKERS = 10_000
"""Looked at before a size is given up: photographs have some dozens, and a file of nothing else takes a second."""
_JPEG_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length."""
_SOUND_MAGIC = (
    (0, b"OggS", ".ogg"),
    (0, b"fLaC", ".flac"),
    (0, b"ID3", ".mp3"),
    (0, b"\xff\xfb", ".mp3"),
    (4, b"ftyp", ".m4a"),
    (8, b"WAVE", ".wav"),
    (0, b"\x1aE\xdf\xa3", ".webm"),
)


class ImageInfo(NamedTuple):
    """A still image that models take."""

    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    width: int
    height: int
    """Pixels; both 0 if they could not be read."""


def identify_image(data: bytes) -> ImageInfo | None:
    """What kind of picture this is; None if it is none of the four that models take."""
    if data.startswith(_PNG):
        return ImageInfo("image/png", _big_endian(data, 16, 4), _big_endian(data, 20, 4))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageInfo("image/gif", _little_endian(data, 6, 2), _little_endian(data, 8, 2))
    if data.startswith(b"\xff\xd8\xff"):
        return ImageInfo("image/jpeg", *_jpeg_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageInfo("image/webp", *_webp_size(data))
    return None


def sound_suffix(data: bytes) -> str:
    """How a file with this sound is best named, for programs that look at names; `.bin` if it is not known."""
    return next((suffix for at, magic, suffix in _SOUND_MAGIC if data[at : at + len(magic)] == magic), ".bin")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MAX_JPEG_MARKERS):
        if at + 9 > len(data) or data[at] != 0xFF:  # noqa: PLR2004 - begins every marker
            break
        marker = data[at + 1]
        if marker in _JPEG_FRAME_MARKERS:
            return _big_endian(data, at + 7, 2), _big_endian(data, at + 5, 2)
        if marker == 0xFF:  # noqa: PLR2004 - a fill byte
            at += 1
        elif marker in _JPEG_BARE_MARKERS:
            at += 2
        else:
            at += 2 + max(2, _big_endian(data, at + 2, 2))
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return _little_endian(data, 24, 3) + 1, _little_endian(data, 27, 3) + 1
    if kind == b"VP8L":
        bits = _little_endian(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _little_endian(data, 26, 2) & 0x3FFF, _little_endian(data, 28, 2) & 0x3FFF
    return 0, 0


def _big_endian(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _little_endian(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
