"""Markdown into lines with mIRC formatting (https://modern.ircdocs.horse/formatting). Pure.

Code is never touched. Only `**bold**` and `*italic*` with clear edges become formatting; underscores
never do, because `__dunder__` and `snake_case` are more common on IRC than underscore emphasis.
"""

import re
from collections.abc import Iterator

from channels.split import split

_BOLD, _ITALIC = "\x02", "\x1d"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MIRC = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_TOKEN = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|!?\[(?P<label>[^\[\]]*)\]\((?P<target>[^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*)\)"
    r"|<(?P<auto>[a-z][a-z0-9+.\-]*:[^\s<>]+)>"
    r"|(?P<url>\bhttps?://[^\s*<>]+)"
    r"|\\(?P<escaped>[*_`])",
    re.IGNORECASE,
)
_STRONG = re.compile(r"(?<![A-Za-z0-9_*])\*\*(?![\s*])(.+?)(?<![\s*])\*\*(?![A-Za-z0-9_*])")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9_*])\*(?![\s*])([^*]+?)(?<![\s*])\*(?![A-Za-z0-9_*])")
_HELD = re.compile("\ue000([0-9]+)\ue001")
_TOGGLE_BYTES = 4
"""Room to close and open again what a cut goes through: two toggles, one byte each, on either side."""


def plain(text: str) -> str:
    """What was said on IRC without its formatting and control characters; tabs become spaces."""
    return _CONTROL.sub("", _MIRC.sub("", text)).replace("\t", " ").replace("\n", " ")


def render(markdown: str) -> tuple[str, ...]:
    """The lines to show, none blank, each without CR, LF or NUL.

    Fences lose their marks and keep their lines byte for byte (indentation too).
    """
    text = _CONTROL.sub("", re.sub(r"\r\n?", "\n", markdown))
    lines = tuple(line for line in _lines(text.split("\n")) if line.strip(_BOLD + _ITALIC + " \t"))
    # Nothing but marks: say the marks rather than nothing. Nothing but control characters: say that.
    return lines or tuple(line for line in text.split("\n") if line.strip()) or ("\ufffd",)


def cut(line: str, limit_bytes: int) -> tuple[str, ...]:
    """One rendered line as pieces of at most `limit_bytes`; formatting goes on across a cut."""
    if _BOLD not in line and _ITALIC not in line:
        return split(line, limit_bytes)
    if len(line.encode("utf-8", "replace")) <= limit_bytes:
        return (line,)
    pieces, opened = [], ""
    for piece in split(line, limit_bytes - _TOGGLE_BYTES):
        begun = opened
        for mark in piece:
            if mark in (_BOLD, _ITALIC):
                opened = opened.replace(mark, "") if mark in opened else opened + mark
        if piece.strip(_BOLD + _ITALIC + " "):
            pieces.append(begun + piece + opened)
    return tuple(pieces)


def _lines(source: list[str]) -> Iterator[str]:
    fence = ""
    for line in source:
        mark = _FENCE.fullmatch(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
            else:
                yield line
        elif mark and (mark[1][0] == "~" or "`" not in mark[2]):
            fence = mark[1]
        elif heading := _HEADING.fullmatch(line):
            yield _BOLD + _inline(heading[1]).replace(_BOLD, "") + _BOLD
        else:
            yield _inline(line)


def _inline(line: str) -> str:
    """Take out what emphasis must not touch, mark emphasis, put it back."""
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(_shown(found))
        return f"\ue000{len(held) - 1}\ue001"

    # The two private-use marks would be ambiguous if the text had them: then leave the line alone.
    if "\ue000" in line or "\ue001" in line:
        return line
    marked = _STRONG.sub(rf"{_BOLD}\1{_BOLD}", _TOKEN.sub(hold, line))
    marked = _EMPHASIS.sub(rf"{_ITALIC}\1{_ITALIC}", marked)
    return _HELD.sub(lambda found: held[int(found[1])], marked)


def _shown(found: re.Match[str]) -> str:
    if found["code"] or found["url"]:
        return found[0]
    if found["auto"]:
        return found["auto"]
    if found["escaped"]:
        return found["escaped"]
    label, target = found["label"], found["target"]
    if not label or not target or label == target:
        return label or target or found[0]
    return f"{label} ({target})"
