"""Texts in files: whether it is one, how a part of it is told, and how a piece of it is replaced. Pure.

Replacing works on bytes: what is not UTF-8, a byte order mark and the line ends of a file stay as they are.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from agent.tools.schema import ToolCallRefused
from gateway.pictures import identify_image, sound_suffix

MAX_READ_CHARS: Final = 200_000
"""Told at once."""
MAX_LINE_CHARS: Final = 20_000
"""Of one line: files that programs write have everything on one."""
MAX_REPLACEMENTS: Final = 100_000
"""Replaced at once."""
MAX_OLD_BYTES: Final = 100_000
"""Of a piece that is looked for."""
_HEAD_BYTES: Final = 8_192
"""Looked through for a NUL, as git does: texts have none."""
_SHOWN_PLACES: Final = 3
_SHOWN_LINES: Final = 30
"""Of each of them."""
_CONTEXT_LINES: Final = 2
"""Lines in front of it and behind it."""
_BOM: Final = b"\xef\xbb\xbf"
_REPLACEMENT_CHAR: Final = "\ufffd"
_KINDS: Final = (
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xff\xfe", "a text in UTF-16, and only UTF-8 can be read"),
    (b"\xfe\xff", "a text in UTF-16, and only UTF-8 can be read"),
)
"""What may have no NUL at its beginning."""
_BINARY_KINDS: Final = (
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
)
_LINE_END: Final = rb"(?:\r\n|(?<!\r)\n)"
"""A line's end, never half of one."""
_NUMBERED_LINE: Final = re.compile(r"\s*\d+\t")


class DecodedText(NamedTuple):
    """A file, as it is told."""

    lines: Sequence[str]
    """Without line ends; a line end at the end of the file begins no line."""
    notes: str
    """What cannot be seen in the lines. Empty: nothing."""


class TextEdit(NamedTuple):
    """A file with a piece of it replaced."""

    data: bytes
    starts: Sequence[int]
    """Where what was put in begins, in bytes."""
    length: int
    """Of the longest of them."""


def describe_binary(data: bytes) -> str:
    """What a file is that is no text, and what can be done with it. Empty: it is a text."""
    for magic, what in _KINDS:
        if data.startswith(magic):
            return what
    if b"\0" not in data[:_HEAD_BYTES]:
        return ""
    if identify_image(data):
        return "a picture: look at it with view_image"
    if sound_suffix(data) != ".bin":
        return "a sound"
    return next((what for magic, what in _BINARY_KINDS if data.startswith(magic)), "binary data")


def decode_text(data: bytes) -> DecodedText:
    """The file as text, whatever is in it."""
    bom = data.startswith(_BOM)
    text = data[len(_BOM) if bom else 0 :].decode("utf-8", "replace").replace("\0", _REPLACEMENT_CHAR)
    lost = text.count(_REPLACEMENT_CHAR) - data.count(_REPLACEMENT_CHAR.encode())
    crlf, ends = text.count("\r\n"), text.count("\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if crlf:
        lines = [line.removesuffix("\r") for line in lines]
    notes = (
        "begins with a byte order mark" if bom else "",
        "" if not crlf else "lines end with CRLF" if crlf == ends else f"{crlf} of its lines end with CRLF",
        f"{lost} bytes that are no text in UTF-8 are shown as {_REPLACEMENT_CHAR}" if lost else "",
    )
    return DecodedText(lines, "; ".join(note for note in notes if note))


def render_lines(name: str, text: DecodedText, offset: int, limit: int) -> tuple[str, int]:
    """So many lines of it, numbered, from this one on (1: the first); and the last that is told. Raises Refused."""
    total = len(text.lines)
    notes = f"; {text.notes}" if text.notes else ""
    if not total:
        return f"{name} is empty{notes}.", 0
    if offset > total:
        raise ToolCallRefused(f"{name} has {total:,} lines: offset can be 1 to {total}.")
    shown, chars, last = list[str](), 0, offset - 1
    for number, line in enumerate(text.lines[offset - 1 : offset - 1 + limit], start=offset):
        one = number_line(number, line)
        chars += len(one) + 1
        if shown and chars > MAX_READ_CHARS:
            break
        shown.append(one)
        last = number
    part = "" if (offset, last) == (1, total) else f", here {offset} to {last}"
    more = f" (go on with offset={last + 1})" if last < total else ""
    return "\n".join([f"{name}, {total} {'line' if total == 1 else 'lines'}{part}{more}{notes}", *shown]), last


def number_line(number: int, line: str) -> str:
    """A line as `cat -n` writes it."""
    beyond = len(line) - MAX_LINE_CHARS
    cut = f"{line[:MAX_LINE_CHARS]}... [{beyond:,} more characters in this line]" if beyond > 0 else line
    return f"{number:6}\t{cut}"


def encode_text(text: str) -> bytes:
    """Raises Refused for what no file in UTF-8 has."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolCallRefused(
            "The text has half a surrogate pair in it, which is no character: write the whole one."
        ) from None


def replace_text(name: str, data: bytes, old: str, new: str, *, everywhere: bool, most: int) -> TextEdit:
    """The file with `new` where `old` stands; a line end is as the file has it. Raises Refused, e.g. for too much.

    Unless `everywhere`, `old` must stand there exactly once. What is refused quotes nothing of the file.
    """
    wanted = encode_text(old.replace("\r\n", "\n"))
    put = encode_text(new.replace("\r\n", "\n"))
    if len(wanted) > MAX_OLD_BYTES:
        raise ToolCallRefused(
            f"`old` has at most {MAX_OLD_BYTES:,} bytes: name less of the file, or write all of it anew."
        )
    pattern = re.compile(_LINE_END.join(map(re.escape, wanted.split(b"\n"))))
    crlf = data.count(b"\r\n") * 2 > data.count(b"\n")
    places = list[re.Match[bytes]]()
    for place in pattern.finditer(data):
        places.append(place)
        if len(places) > MAX_REPLACEMENTS:
            raise ToolCallRefused(
                f"That stands in {name} more than {MAX_REPLACEMENTS:,} times: change it with the shell."
            )
    if not places:
        raise ToolCallRefused(_explain_not_found(name, data, wanted, put))
    again = pattern.search(data, places[0].start() + 1)
    if again and not everywhere:
        lines = _format_line_numbers(
            data, [place.start() for place in (places if len(places) > 1 else [places[0], again])]
        )
        times = f"{max(2, len(places))} times" if len(places) > 1 else "more than once, overlapping"
        raise ToolCallRefused(
            f"`old` stands in {name} {times} ({lines}): add lines around it until it stands there once, "
            "or set `all` to replace every one."
        )
    if len(data) + len(places) * (2 * len(put) - len(wanted)) > 2 * most:  # line ends are two bytes at most
        raise ToolCallRefused(f"{name} would have more than the {most:,} bytes that a file may have.")
    made = _apply_replacements(data, places, put, crlf=crlf)
    if made.data == data:
        raise ToolCallRefused(f"That would change nothing in {name}: `old` and `new` are the same.")
    return made


def render_edit(name: str, made: TextEdit) -> str:
    """What became of the file: the lines that changed, with some around them."""
    count = len(made.starts)
    lines = decode_text(made.data).lines
    shown = [f"{name}, {len(lines)} lines; {'1 place' if count == 1 else f'{count} places'} changed:"]
    last = 0
    for start in made.starts[:_SHOWN_PLACES]:
        line = made.data.count(b"\n", 0, start) + 1
        height = made.data.count(b"\n", start, start + max(0, made.length - 1))
        first = max(line - _CONTEXT_LINES, last + 1)
        if last and first > last + 1:
            shown.append("   ...")
        last = max(last, min(line + min(height, _SHOWN_LINES) + _CONTEXT_LINES, len(lines)))
        shown += [number_line(number, lines[number - 1]) for number in range(first, last + 1)]
    return "\n".join(shown if count <= _SHOWN_PLACES else [*shown, f"   ... and {count - _SHOWN_PLACES} more places"])


def _apply_replacements(data: bytes, places: Iterable[re.Match[bytes]], put: bytes, *, crlf: bool) -> TextEdit:
    wide = put.replace(b"\n", b"\r\n")
    pieces, starts, end, size, length = list[bytes](), list[int](), 0, 0, 0
    for place in places:
        was = place.group()
        now = wide if b"\r\n" in was or (crlf and b"\n" not in was) else put
        pieces += (data[end : place.start()], now)
        size += place.start() - end
        starts.append(size)
        size += len(now)
        length = max(length, len(now))
        end = place.end()
    return TextEdit(b"".join([*pieces, data[end:]]), starts, length)


def _explain_not_found(name: str, data: bytes, wanted: bytes, put: bytes) -> str:
    why = f"`old` does not stand in {name}"
    lines = [line for line in wanted.decode().split("\n") if line.strip()]
    if lines and all(map(_NUMBERED_LINE.match, lines)):
        return f"{why}: leave out the line numbers and the tabs behind them."
    words = wanted.split()
    loose = re.search(rb"\s+".join(map(re.escape, words)), data) if words else None
    if loose:
        return (
            f"{why}, but with other blanks or line ends in {_format_line_numbers(data, [loose.start()])}: "
            "copy it exactly."
        )
    if put.strip() and put in data:
        return (
            f"{why}, but `new` does already, in {_format_line_numbers(data, [data.index(put)])}: nothing is to be done."
        )
    first = lines[0].strip().encode() if lines else b""
    if first and first in data:
        return (
            f"{why}: its first line does, in {_format_line_numbers(data, [data.index(first)])}, and goes "
            "on differently."
        )
    return f"{why}: read the file again, and copy it exactly."


def _format_line_numbers(data: bytes, starts: Sequence[int]) -> str:
    """In which lines these places are."""
    numbers = [str(data.count(b"\n", 0, start) + 1) for start in starts[:5]]
    more = " and more" if len(starts) > len(numbers) else ""
    return f"{'line' if len(starts) == 1 else 'lines'} {', '.join(numbers)}{more}"
