"""Media files: type and size by their first bytes, and descriptions. Pure.

A type is never taken from a file name or from a sender's claim. Obeys the PNG specification (5.2,
11.2.2), GIF89a (section 18), ITU-T T.81 (B.2.2) and
developers.google.com/speed/webp/docs/riff_container.
"""

from typing import Final, Literal, NamedTuple, get_args

from gateway.core.events import Attachment

MAX_NAME_CHARS = 60
MAX_TRANSCRIPT_CHARS = 2_000
"""Length of the transcript of a voice note: some two minutes of speech."""

_KB, _MB = 1_000, 1_000_000
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers followed by the size of the image."""
_MAX_JPEG_MARKERS = 10_000
"""Markers read before the size is given up: photographs have dozens, and a file of markers takes a
second."""
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


def describe_attachment(
    attachment: Attachment,
    *,
    size_bytes: int | None = None,
    pixels: tuple[int, int] = (0, 0),
    words: str = "",
    note: str = "",
) -> str:
    """Describe an attachment on one line in brackets, whether or not the model sees it.

    E.g. `[image photo.jpg, 640x480, 34 KB]`, `[voice note, 12 s: "on my way"]`, `[file report.pdf,
    1.2 MB]`. `size_bytes` and `pixels` (0: unknown): as measured, not as claimed. `words`: the
    transcript. `note`: why it is not shown. Text from outside cannot close the brackets.
    """
    size = attachment.size_bytes if size_bytes is None else size_bytes
    name = _clean_label(attachment.name or "").replace("\\", "/").rpartition("/")[2].strip(" .")
    if len(name) > MAX_NAME_CHARS:
        name = f"{name[:MAX_NAME_CHARS]}..."
    kind = "voice note" if attachment.form == "audio" and not name else attachment.form
    facts = (
        f"{kind} {name}".rstrip(),
        f"{pixels[0]}x{pixels[1]}" if all(pixels) else "",
        "" if attachment.duration_s is None else _format_length(attachment.duration_s),
        _format_size(size) if size is not None and kind != "voice note" else "",
        note,
    )
    transcript = _clean_label(words)
    if len(transcript) > MAX_TRANSCRIPT_CHARS:
        transcript = f"{transcript[:MAX_TRANSCRIPT_CHARS]}..."
    details = ", ".join(fact for fact in facts if fact)
    return f'[{details}: "{transcript}"]' if transcript else f"[{details}]"


def _clean_label(text: str) -> str:
    """Reduce text to one line that closes neither a bracket nor a quotation."""
    cleaned = "".join(c if c.isprintable() and c not in "[]" else " " for c in text).replace(
        '"', "'"
    )
    return " ".join(cleaned.split())


def _format_size(size_bytes: int) -> str:
    if size_bytes < _KB:
        return f"{size_bytes} bytes"
    if size_bytes < _MB:
        return f"{size_bytes / _KB:.0f} KB"
    return f"{size_bytes / _MB:.1f} MB"


def _format_length(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


ImageType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
IMAGE_TYPES = frozenset(get_args(ImageType))


class ImageInfo(NamedTuple):
    """A still image in a format that models accept."""

    media_type: ImageType
    width: int
    height: int
    """Pixels; both 0 if they could not be read."""


def identify_image(data: bytes) -> ImageInfo | None:
    """Return the type of an image; None if it is none of the four that models accept."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return ImageInfo("image/png", _big_endian(data, 16, 4), _big_endian(data, 20, 4))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageInfo("image/gif", _little_endian(data, 6, 2), _little_endian(data, 8, 2))
    if data.startswith(b"\xff\xd8\xff"):
        return ImageInfo("image/jpeg", *_jpeg_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageInfo("image/webp", *_webp_size(data))
    return None


def sound_suffix(data: bytes) -> str:
    """Return the file name suffix for this sound, for programs that check names; `.bin` if it is
    not known.
    """
    return next(
        (suffix for at, magic, suffix in _SOUND_MAGIC if data[at : at + len(magic)] == magic),
        ".bin",
    )


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


DOCUMENT_SUFFIXES: Final = (
    ".txt", ".md", ".markdown", ".rst", ".csv", ".tsv", ".log", ".json", ".jsonl", ".ndjson",
    ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".xml", ".html", ".htm", ".tex", ".srt",
    ".vtt", ".diff", ".patch", ".sql", ".py", ".pyi", ".js", ".ts", ".tsx", ".jsx", ".css", ".c",
    ".h", ".cc", ".cpp", ".hpp", ".cs", ".java", ".kt", ".go", ".rs", ".rb", ".php", ".pl", ".lua",
    ".swift", ".scala", ".r", ".sh", ".bash", ".ps1", ".bat", ".nix", ".pdf", ".docx", ".xlsx",
)  # fmt: skip
"""Endings of names of files that are fetched to be read as text. What they are is known by their
bytes."""
OFFICE_TYPES: Final = (
    "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
)


def is_text_type(kind: str) -> bool:
    """Return True if a media type is text of some sort. Empty: it may be."""
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("+xml", "+json"))
        or kind in ("application/json", "application/xml", "application/yaml", "application/x-yaml")
        or kind
        in (
            "application/javascript",
            "application/x-javascript",
            "application/x-ndjson",
            "application/toml",
        )
    )


def is_document(attachment: Attachment) -> bool:
    """Return True if a file claims to be one whose text can be extracted."""
    kind = (attachment.content_type or "").partition(";")[0].strip().lower()
    named = (attachment.name or "").lower().endswith(DOCUMENT_SUFFIXES)
    return attachment.form == "file" and (
        named or kind in OFFICE_TYPES or bool(kind and is_text_type(kind))
    )
