"""What is said of an attachment in its line, whether or not the model sees it. Pure.

`[image photo.jpg, 640x480, 34 KB]`, `[voice note, 12 s: "on my way"]`, `[file report.pdf, 1.2 MB]`
"""

from gateway.events import Attachment

MAX_NAME_CHARS = 60
MAX_TRANSCRIPT_CHARS = 2_000
"""Of what was said in a voice note: some two minutes of speech."""

_KB, _MB = 1_000, 1_000_000
_MINUTE_S = 60


def describe_attachment(
    attachment: Attachment,
    *,
    size_bytes: int | None = None,
    pixels: tuple[int, int] = (0, 0),
    words: str = "",
    note: str = "",
) -> str:
    """One line in brackets.

    `size_bytes` and `pixels` (0: unknown) as they were found, rather than as they were told. `words`: what
    was said in it. `note`: why it is not shown. What comes from outside cannot close the brackets.
    """
    size = attachment.size_bytes if size_bytes is None else size_bytes
    name = _short_name(attachment.name)
    kind = "voice note" if attachment.form == "audio" and not name else attachment.form
    facts = (
        f"{kind} {name}".rstrip(),
        f"{pixels[0]}x{pixels[1]}" if all(pixels) else "",
        "" if attachment.duration_s is None else _format_length(attachment.duration_s),
        _format_size(size) if size is not None and kind != "voice note" else "",
        note,
    )
    said = _clean_label(words)
    if len(said) > MAX_TRANSCRIPT_CHARS:
        said = f"{said[:MAX_TRANSCRIPT_CHARS]}..."
    told = ", ".join(fact for fact in facts if fact)
    return f'[{told}: "{said}"]' if said else f"[{told}]"


def _short_name(name: str | None) -> str:
    last = _clean_label(name or "").replace("\\", "/").rpartition("/")[2].strip(" .")
    return last if len(last) <= MAX_NAME_CHARS else f"{last[:MAX_NAME_CHARS]}..."


def _clean_label(text: str) -> str:
    """Words of one line that close neither a bracket nor a quotation."""
    kept = "".join(c if c.isprintable() and c not in "[]" else " " for c in text).replace('"', "'")
    return " ".join(kept.split())


def _format_size(size_bytes: int) -> str:
    if size_bytes < _KB:
        return f"{size_bytes} bytes"
    if size_bytes < _MB:
        return f"{size_bytes / _KB:.0f} KB"
    return f"{size_bytes / _MB:.1f} MB"


def _format_length(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), _MINUTE_S)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
