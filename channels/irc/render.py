"""Markdown to lines with mIRC formatting (https://modern.ircdocs.horse/formatting), and pages of
them. Pure.

Only bold and italic become codes: they lose nothing where a client ignores them. Marks that would
be lost there stay Markdown: `~~wrong~~`, `||secret||` and the backticks of `code`. Formatting of
people is left out.
"""

import re
from collections.abc import Sequence
from typing import Final

from channels.markdown import BULLET, Mark, TextRun, parse_markdown
from channels.split import split_text
from channels.text import clean_text
from gateway.core.i18n import _

BOLD, ITALIC = "\x02", "\x1d"
FORMATTING = (
    "IRC shows plain lines: lists and `code` survive, headings become bold, code blocks lose their "
    "fences, tables are aligned. Use **bold** and *italic* seldom. Each line is a separate "
    "message, and long answers are paged: aim for 1 to 4 lines."
)
LINES_OF_A_FULL_ONE: Final = 3
"""Short lines that take as much of a room's window as one line of the full length."""
BLANK_LINE: Final = " \x0f"
"""Blank line of code: a space, and a code that changes nothing, for servers (ngIRCd) drop white
space at the end."""
_COLOURS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_MARK_CODES: dict[Mark, str] = {"bold": BOLD, "heading": BOLD, "italic": ITALIC}
# Atheme's services also take `ChanServ: op mallory` (modules/chanserv/main.c), with our rights.
_COMMAND = re.compile(r"[!.,@~/;$%&+?-](?=[^\W\d_])|(?:chan|bot)serv(?![^\W_])", re.IGNORECASE)
_STARTS_COMMAND = re.compile(rf"[\s{BOLD}{ITALIC}]*(?:{_COMMAND.pattern})", re.IGNORECASE)
_GUARD = BULLET
_LINE_BYTES: Final = 512
_NICK_BYTES: Final = 30
_USERHOST_BYTES: Final = 12 + 64
"""Longest user name, with the `~` of a failed ident check, and host of common servers."""
_TOGGLE_BYTES = 4
"""Room to close and reopen formatting at a cut: two toggles, one byte each, on either side."""


def strip_formatting(text: str) -> str:
    """Return IRC text on one line, without formatting and control characters."""
    if text.isprintable():  # most lines
        return text
    return clean_text(_COLOURS.sub("", text)).replace("\t", " ").replace("\n", " ")


def render(markdown: str) -> tuple[str, ...]:
    """Return the lines to show, at least one, without CR, LF or NUL. Formatting ends with each line
    and begins again on the next.

    Blank lines are left out, but for those inside a code block; code blocks lose their fences, and
    nothing in them is changed but for `guard_command`.
    """
    writer = _LineWriter()
    runs = parse_markdown(markdown)
    for index, run in enumerate(runs):
        last = index + 1 == len(runs) or runs[index + 1].href != run.href
        writer.write(run, runs[index - 1] if index else None, ends_link=last)
    return writer.lines() or ("\ufffd",)


def guard_command(line: str) -> str:
    """Return `line` so that no other bot takes it as a command: not with `!op`, `.ban`, `ChanServ:`
    or the like as its first word.

    White space and formatting are no guard: bots and services drop them.
    """
    return _GUARD + line if _STARTS_COMMAND.match(line) else line


def split_line(line: str, limit_bytes: int) -> tuple[str, ...]:
    """Return one rendered line as pieces of at most `limit_bytes`; formatting continues across a
    cut.

    No piece is another bot's command.
    """
    line = guard_command(line)
    if len(line.encode("utf-8", "replace")) <= limit_bytes:
        return (line,)
    if _COMMAND.search(line):
        return tuple(map(guard_command, _cut_line(line, limit_bytes - len(_GUARD.encode()))))
    return _cut_line(line, limit_bytes)


def _cut_line(line: str, limit_bytes: int) -> tuple[str, ...]:
    if BOLD not in line and ITALIC not in line:
        return split_text(line, limit_bytes)
    pieces, opened = [], ""
    # To Python, \x1d is white space, which a cut may drop; \x01 is not, and never occurs in a
    # rendered line.
    for held in split_text(line.replace(ITALIC, "\x01"), limit_bytes - _TOGGLE_BYTES):
        piece, begun = held.replace("\x01", ITALIC), opened
        for mark in piece:
            if mark in (BOLD, ITALIC):
                opened = opened.replace(mark, "") if mark in opened else opened + mark
        if piece.strip(BOLD + ITALIC + " "):
            pieces.append(begun + piece + opened)
    return tuple(pieces)


def max_body_bytes(nick: str, target: str) -> int:
    """Return the text limit of a message to `target`.

    RFC 1459 section 2.3 counts the line as the receiver gets it, with the sender's mask in front:
    the longest that servers give counts. `nick` is the configured one.
    """
    names = max(len(nick.encode()) + 3, _NICK_BYTES) + max(
        len(target.encode("utf-8", "replace")), _NICK_BYTES
    )
    return max(_LINE_BYTES - len(":!@ PRIVMSG  :\r\n") - names - _USERHOST_BYTES, 64)


def paginate(
    markdown: str, limit_bytes: int, page_lines: int, more: str
) -> tuple[tuple[str, ...], ...]:
    """Return the pages of a text, at least one, as lines of at most `limit_bytes`; together they
    are all of it.

    A page has `page_lines` lines (0: all), of which a full one counts as `LINES_OF_A_FULL_ONE`,
    plus one that says how to ask for the next (`more`); or one line more, if that is the last.
    """
    pages, left = [list[str]()], page_lines
    lines = [piece for line in render(markdown) for piece in split_line(line, limit_bytes)]
    for line in lines:
        size = max(1, -(-LINES_OF_A_FULL_ONE * len(line.encode("utf-8", "replace")) // limit_bytes))
        if page_lines and pages[-1] and size > left:
            pages.append([])
            left = page_lines
        pages[-1].append(line)
        left -= size
    if len(pages) > 1 and len(pages[-1]) == 1:
        single = pages.pop()
        pages[-1] += single
    note = _('(page {page} of {pages}; write "{more}")')
    for number, page in enumerate(pages[:-1], 1):
        page.append(note.format(page=number, pages=len(pages), more=more))
    return tuple(map(tuple, pages))


class _LineWriter:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._active_codes: list[str] = []
        """Active formatting codes, in the order of their beginning."""
        self._is_code = False
        self._active_signs: list[str] = []
        self._label: list[str] = []
        """Text of the current link so far."""

    def write(self, run: TextRun, before: TextRun | None, *, ends_link: bool) -> None:
        codes = [_MARK_CODES[mark] for mark in sorted(run.marks) if mark in _MARK_CODES]
        signs = [
            sign for mark, sign in {"strike": "~~", "spoiler": "||"}.items() if mark in run.marks
        ]
        if signs != self._active_signs:
            self._toggle_signs(signs, codes, run)
        if "pre" in run.marks:
            lines = run.text.split("\n")
            filled = [index for index, line in enumerate(lines) if line.strip()]
            for index, line in enumerate(lines):
                if index:
                    self._end_line()
                self._is_code = True
                self._add_text(line, run, codes)
                if not line.strip() and filled and filled[0] < index < filled[-1]:
                    self._lines.append(BLANK_LINE)
            return
        text = _in_backticks(run.text) if "code" in run.marks else run.text
        for index, line in enumerate(text.split("\n")):
            if index:
                self._end_line()
            self._add_text(line, run, codes)
        if run.href:
            self._label = [*(self._label if before and before.href == run.href else []), run.text]
            if ends_link and (target := _link_target("".join(self._label), run.href)):
                self._add_text(target, run, codes)

    def lines(self) -> tuple[str, ...]:
        if self._active_signs:
            self._toggle_signs([], [])
        self._end_line()
        return tuple(self._lines)

    def _add_text(self, text: str, run: TextRun, codes: Sequence[str]) -> None:
        if not text:
            return
        if not self._line and "quote" in run.marks:
            self._line.append("> ")
        if not self._is_code and codes != self._active_codes:
            # White space starts no formatting.
            blank = [code for code in self._active_codes if code in codes]
            self._set_format(codes if text.strip() else blank)
        self._line.append(text)

    def _set_format(self, wanted: Sequence[str]) -> None:
        for code in reversed(self._active_codes.copy()):
            if code not in wanted:
                self._line.append(code)
                self._active_codes.remove(code)
        for code in wanted:
            if code not in self._active_codes:
                self._line.append(code)
                self._active_codes.append(code)

    def _toggle_signs(
        self, wanted: list[str], codes: Sequence[str], run: TextRun | None = None
    ) -> None:
        """Write the signs of marks that end before `run`, which has these codes, and begin with
        it.
        """
        # The signs have no formatting that the text inside them lacks.
        self._set_format([code for code in self._active_codes if code in codes])
        self._line += [sign for sign in reversed(self._active_signs) if sign not in wanted]
        if run and not self._line and "quote" in run.marks:
            self._line.append("> ")
        self._line += [sign for sign in wanted if sign not in self._active_signs]
        self._active_signs = wanted

    def _end_line(self) -> None:
        text = "".join(self._line)
        text = text if self._is_code else text.rstrip(" \t")
        if text.strip().strip(BOLD + ITALIC).strip():
            self._lines.append(guard_command(text + "".join(self._active_codes)))
        self._line, self._active_codes, self._is_code = [], [], False


def _in_backticks(code: str) -> str:
    """Return inline code in backticks, more of them than occur together in it."""
    ticks = "`" * (max((len(found) for found in re.findall("`+", code)), default=0) + 1)
    pad = " " if "`" in code else ""
    return f"{ticks}{pad}{code}{pad}{ticks}"


def _link_target(label: str, href: str) -> str:
    """Return the target to write behind a link's label; empty if the label is the target."""
    target = " ".join(href.split())
    return "" if label in {href, href.removeprefix("mailto:")} else f" ({target})"
