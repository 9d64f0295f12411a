"""CommonMark as models write it: markdown-it's parser with a few changed rules. Pure.

Differences from https://spec.commonmark.org/0.31.2/, and the reasons:

- Emphasis needs clear edges: never inside a word (`a*b*c`, `2**3`), never around one identifier
  (`__init__`, `_private_`), never at a slash (`src/**/*.py`); but also where CJK text has no
  spaces, and letters of a word may be bold (`**H**yper**T**ext`, `walk**ed**`).
- `~~strike~~` and `||spoiler||` are supported; HTML, link definitions and underlined headings are
  text.
- A line continues a quote or a list item only if it is marked or indented itself.
- `>` quotes only before a space: `>=`, `>_<` and Python's `>>> ` are text.
- A table is a code block, its columns aligned.
- Mathematics in LaTeX (`MATHS`) is text as it is written.
- A bare address is text, whatever characters it holds.
- Content that is nested too deeply is text; nothing is dropped.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block
from markdown_it.rules_inline import StateInline, image, link
from markdown_it.rules_inline.state_inline import Delimiter

_MAX_DEPTH = 20
"""Levels of quotes (one each) and lists (two each); parsing recurses, and the output is for
people."""
_MAX_DELIMITER_RUN = 3
"""Longer runs of `*` or `_` are ornaments or blanks to fill in, not emphasis."""
_IDENTIFIER = re.compile(r"_++[A-Za-z0-9][A-Za-z0-9_]*+(?<=_)")
_URL_REST = re.compile(r"://(?:[^\s*<>\[\]`|~\\]|~(?!~))*[^\s*<>\[\]`|~\\_]")
_SCHEME = re.compile(r"(?<![A-Za-z0-9])https?", re.IGNORECASE)
TABLE_RULE = re.compile(r" {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?")
"""Line below the head of a table."""
_CELL_END = re.compile(r"(?<!\\)\|")
_CELL_LINK = re.compile(r"!?\[([^\]\n]+)\]\(<?([^)>\s]+)>?\)")
_CELL_MARKS = re.compile(r"(\*\*|~~|`)(?=\S)(.*?\S)\1")
MATHS = re.compile(
    r"\\\((?:[^\\]|\\[^()])+?\\\)|\\\[(?:[^\\]|\\[^\[\]])+?\\\]|\$\$[^$]+\$\$|\$(?=\S)[^$\n]*(?<=\S)\$(?!\d)"
)
"""Mathematics in LaTeX. Between single dollars it is some only with a backslash: else they may be
prices."""
_PAIRS = {"~": "s", "|": "spoiler"}
_LETTER = r"[^\W\d_]"
_BOLD_LETTERS = re.compile(
    rf"(?:(?<![\w*/])(?=\*\*{_LETTER}+\*\*{_LETTER})|(?<={_LETTER}{{2}})"
    rf"|(?<={_LETTER})(?=\*\*{_LETTER}+\*\*{_LETTER}{{2}}))\*\*({_LETTER}+)\*\*(?![\d*_/])"
)
"""Letters of a word; `x**y**z` may be a power."""


@functools.cache
def commonmark_parser() -> MarkdownIt:
    """Return the shared parser. It keeps no state between two texts."""
    markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_DEPTH + 10})
    markdown.disable(["html_block", "html_inline", "lheading", "reference"])
    # Addresses are shown to people as they were written.
    markdown.normalizeLink = markdown.normalizeLinkText = lambda link: link  # type: ignore[assignment,method-assign]  # as documented
    block, inline = markdown.block.ruler, markdown.inline.ruler
    block.at("blockquote", _parse_quote, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    block.at("list", _parse_list, {"alt": ["paragraph", "reference", "blockquote"]})
    block.before("fence", "pipe_table", _parse_table, {"alt": ["paragraph", "reference"]})
    block.before("paragraph", "unmarked", _ends_quote, {"alt": ["blockquote"]})
    block.before("paragraph", "outdented", _ends_list_item, {"alt": ["paragraph"]})
    markdown.inline.add_terminator_char("|")
    inline.after("text", "url", _parse_url)
    inline.at("newline", _parse_newline)
    inline.before("escape", "maths", _parse_maths)
    inline.before("emphasis", "bold_letters", _parse_bold_letters)
    inline.at("emphasis", _scan_delimiters)
    inline.at("link", _parse_link)
    inline.at("image", _parse_image)
    markdown.inline.ruler2.before("emphasis", "pairs", _pair_delimiters)
    return markdown


def _parse_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    def line(at: int) -> str:
        return state.src[state.bMarks[at] + state.tShift[at] : state.eMarks[at]]

    if (
        start + 1 >= end
        or "|" not in line(start)
        or not TABLE_RULE.fullmatch(line(start + 1).rstrip())
    ):
        return False
    if silent or state.is_code_block(start):
        return silent and not state.is_code_block(start)
    after = start + 2
    while after < end and "|" in line(after) and state.sCount[after] >= state.blkIndent:
        after += 1
    token = state.push("fence", "code", 0)
    token.content, token.map = (
        "\n".join(format_table([line(at) for at in range(start, after)])) + "\n",
        [start, after],
    )
    state.line = after
    return True


def format_table(lines: Sequence[str]) -> list[str]:
    """Return the rows of a Markdown table with aligned columns, for a font of equal widths;
    `lines[1]` is its rule.

    Links become their text with the address behind it.
    """
    head, rule, *body = map(split_cells, lines)
    rows = [
        [_CELL_MARKS.sub(r"\2", _CELL_LINK.sub(r"\1 (\2)", cell)) for cell in row]
        for row in (head, *body)
    ]
    columns = max(map(len, rows))
    widths = [
        max(_display_width(row[at]) if at < len(row) else 0 for row in rows)
        for at in range(columns)
    ]
    is_right = [
        at < len(rule) and rule[at].endswith(":") and not rule[at].startswith(":")
        for at in range(columns)
    ]
    return [
        " | ".join(
            " " * (widths[at] - _display_width(cell)) + cell
            if is_right[at]
            else cell + " " * (widths[at] - _display_width(cell))
            for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def split_cells(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table, as they are written."""
    cells = [
        cell.strip().replace("\\|", "|") for cell in _CELL_END.split(line.strip().removeprefix("|"))
    ]
    return cells[:-1] if len(cells) > 1 and not cells[-1] else cells


def _display_width(text: str) -> int:
    """Return the columns of a terminal that the text takes (UAX 11)."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _parse_quote(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    head = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]][:3]
    quotes = head[:1] == ">" and head != ">>>" and head[1:2] in {"", " ", "\t", ">"}
    return quotes and state.level < _MAX_DEPTH and blockquote(state, start, end, silent)


def _parse_list(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    return state.level < _MAX_DEPTH and list_block(state, start, end, silent)


def _ends_quote(_state: StateBlock, _start: int, _end: int, silent: bool) -> bool:
    """Return whether a line without `>` ends a quote: it always does. It starts nothing."""
    return silent


def _ends_list_item(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    """Return whether a line to the left of its list item's text ends the item. It starts
    nothing.
    """
    return silent and state.sCount[start] < state.blkIndent


def _parse_newline(state: StateInline, silent: bool) -> bool:
    """Keep every line break, and the indentation behind it."""
    if state.src[state.pos] != "\n":
        return False
    if not silent:
        state.pending = state.pending.rstrip(" \t")
        state.push("softbreak", "br", 0)
    state.pos += 1
    return True


def _parse_maths(state: StateInline, silent: bool) -> bool:
    found = MATHS.match(state.src, state.pos) if state.src[state.pos] in "\\$" else None
    if found is None or not ("\\" in found[0] or found[0].startswith("$$")):
        return False
    if not silent:
        state.pending += found[0]
    state.pos = found.end()
    return True


def _parse_url(state: StateInline, silent: bool) -> bool:
    at = state.pos
    if state.src[at] != ":" or not any(
        _SCHEME.fullmatch(state.src, max(at - size, 0), at) for size in (4, 5)
    ):
        return False
    found = _URL_REST.match(state.src, at, state.posMax)
    if not found:
        return False
    if not silent:
        state.append_pending(found[0])
    state.pos = found.end()
    return True


def _parse_link(state: StateInline, silent: bool) -> bool:
    return state.src[state.pos] == "[" and _may_link(state) and link(state, silent)


def _parse_image(state: StateInline, silent: bool) -> bool:
    return state.src[state.pos] == "!" and _may_link(state) and image(state, silent)


def _may_link(state: StateInline) -> bool:
    """Return whether a link can still end after this position: each needs a `](`. Saves a long
    search.
    """
    known, last = state.env.get("last_link", ("", -1))
    if known is not state.src:
        last = state.src.rfind("](")
        state.env["last_link"] = (state.src, last)
    return bool(state.pos < last)


def _parse_bold_letters(state: StateInline, silent: bool) -> bool:
    found = _BOLD_LETTERS.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("strong_open", "strong", 1)
        state.push("text", "", 0).content = found[1]
        state.push("strong_close", "strong", -1)
    state.pos = found.end()
    return True


def _scan_delimiters(state: StateInline, silent: bool) -> bool:
    """Record possible beginnings and ends of emphasis; the library pairs them afterwards."""
    at, marker = state.pos, state.src[state.pos]
    if silent or marker not in "*_~|":
        return False
    before = state.src[at - 1] if at else " "
    if (
        marker == "_"
        and not _is_word(before)
        and (word := _IDENTIFIER.match(state.src, at, state.posMax))
    ):
        return _append_literal(state, word.end())
    end = at
    while end < state.posMax and state.src[end] == marker:
        end += 1
    length = end - at
    after = state.src[end] if end < state.posMax else " "
    opens = not after.isspace() and after != "/" and not _is_word(before)
    closes = not before.isspace() and before != "/" and not _is_word(after)
    paired = marker in _PAIRS
    if not (opens or closes) or (length != 2 if paired else length > _MAX_DELIMITER_RUN):  # noqa: PLR2004 - `~~` and `||`
        return _append_literal(state, end)
    for _ in range(1 if paired else length):
        state.push("text", "", 0).content = marker * (length if paired else 1)
        # Length 0 leaves the "rule of 3" (section 6.2 of the standard) out of pairs.
        size = 0 if paired else length
        state.delimiters.append(
            Delimiter(ord(marker), size, len(state.tokens) - 1, -1, opens, closes)
        )
    state.pos = end
    return True


def _append_literal(state: StateInline, end: int) -> bool:
    state.append_pending(state.src[state.pos : end])
    state.pos = end
    return True


def _is_word(char: str) -> bool:
    """Return whether the character belongs to a word in a script that separates words by spaces, or
    to a path.
    """
    return (char.isalnum() and char < "\u0590") or char in "_/"


def _pair_delimiters(state: StateInline) -> None:
    """Turn the paired `~~` and `||` into opening and closing tokens."""
    inside = (meta["delimiters"] for meta in state.tokens_meta if meta and "delimiters" in meta)
    for delimiters in (state.delimiters, *inside):
        for opening in delimiters:
            kind = _PAIRS.get(chr(opening.marker))
            if kind and opening.end != -1:
                ends = ((opening.token, "open", 1), (delimiters[opening.end].token, "close", -1))
                for index, edge, nesting in ends:
                    token = state.tokens[index]
                    token.type, token.nesting, token.content = f"{kind}_{edge}", nesting, ""
