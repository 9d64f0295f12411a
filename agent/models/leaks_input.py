"""Looking for what models write around tool calls, in a text that is still coming. Pure.

Each search is a generator that yields while the text does not decide it yet, and goes on where it was: what it finds is
the same however the text was cut into pieces, and each character is looked at a fixed number of times.
"""

import html
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

ScanResult = TypeVar("ScanResult")
Scan = Generator[None, None, ScanResult]
"""Yields where more of the text is needed."""

MAX_TAG_CHARS: Final = 256
MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 500_000
"""Of the arguments of one call, or of one value among them."""
MAX_DEPTH: Final = 64
"""Of lists and objects within each other."""

ENVELOPE_TAGS: Final = frozenset(
    ["tool_call", "tool_calls", "toolcall", "function_call", "function_calls", "tool_use", "tools"]
)
"""Tags around calls."""
SPECIAL_TOKENS: Final = frozenset(
    [
        *("tool_calls_begin", "tool_calls_end", "tool_call_begin", "tool_call_end", "tool_sep"),
        *("tool_calls_section_begin", "tool_calls_section_end", "tool_call_argument_begin"),
        *("tool_call_start", "tool_call", "/tool_call", "python_tag", "python_start", "python_end"),
        *("open", "close", "sep", "channel", "constrain", "message", "call", "start", "end"),
        *("START_ACTION", "END_ACTION"),
    ]
)
END_TOKENS: Final = frozenset({"eom_id", "eot_id", "im_end", "end_of_msg", "end_of_sentence", "endoftext", "return"})
"""What stands behind a whole answer."""
_TAGS: Final = ENVELOPE_TAGS | {"function", "invoke", "parameter", "param", "arg_key", "arg_value", "s"}
_PREFIXES: Final = ("", "|DSML|", "minimax:", "antml:")
"""DeepSeek's, MiniMax's and Claude's."""
_TAG_HEADS: Final = frozenset(
    [f"{slash}{prefix}{tag}" for slash in ("", "/") for prefix in _PREFIXES for tag in _TAGS]
    + [f"|{name}|" for name in SPECIAL_TOKENS | END_TOKENS]
)
_TAG_HEAD_PREFIXES: Final = frozenset(head[:length] for head in _TAG_HEADS for length in range(len(head) + 1))
_LOOKALIKE_CHARS: Final = str.maketrans("\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}", "|_")
"""DeepSeek's special tokens, and the same as people type them."""
_HEAD_END: Final = re.compile("[^A-Za-z0-9_:/|\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}]")
_TAG_END: Final = re.compile(r"[<>\n]")
_ATTRIBUTE: Final = re.compile(r"""([A-Za-z_]{1,32}) ?= ?(?:"([^"]*)"|'([^']*)')""")
_NAME_END: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_STRUCTURE: Final = re.compile(r"""["'{}\[\]()]""")
_STRING_ENDS: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CLOSING_BRACKETS: Final = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupTag:
    """A tag or a special token."""

    name: str
    """Without prefix, slash and lines: `invoke`, `tool_sep`."""
    end: int
    """Behind it."""
    is_special: bool = False
    is_closing: bool = False
    value: str = ""
    """Behind a `=`: `f` in `<function=f>`."""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """What it names: `<function=f>` and `<invoke name="f">`."""
        return self.value or self.attributes.get("name", "")


class TextScanner:
    """A text, as far as it has come."""

    def __init__(self) -> None:
        self.text = ""
        self.is_complete = False

    def wait_for_end(self) -> Scan[None]:
        """Wait for its end."""
        while not self.is_complete:
            yield

    def read_char(self, at: int) -> Scan[str]:
        """The character there; empty behind the end."""
        while at >= len(self.text):
            if self.is_complete:
                return ""
            yield
        return self.text[at]

    def skip_space(self, at: int) -> Scan[int]:
        """Where the white space ends."""
        while True:
            while at < len(self.text) and self.text[at].isspace():
                at += 1
            if at < len(self.text) or self.is_complete:
                return at
            yield

    def starts_with(self, at: int, literal: str) -> Scan[bool]:
        """Whether this stands there."""
        while not self.is_complete and len(self.text) - at < len(literal) and literal.startswith(self.text[at:]):
            yield
        return self.text.startswith(literal, at)

    def find(self, one: re.Pattern[str], at: int, within: int | None = None) -> Scan[int]:
        """Where the next such character is; `one` matches single ones. -1: nowhere, or not `within` so many."""
        start, end = at, None if within is None else at + within
        while True:
            found = one.search(self.text, start) if end is None else one.search(self.text, start, end)
            if found:
                return found.start()
            if self.is_complete or (end is not None and len(self.text) >= end):
                return -1
            start = max(start, len(self.text))
            yield

    def read_name(self, at: int) -> Scan[str]:
        """What could be a tool's name there; empty: nothing could."""
        end = yield from self.find(_NAME_END, at, MAX_NAME_CHARS)
        if end < 0:
            return self.text[at:] if self.is_complete and len(self.text) - at < MAX_NAME_CHARS else ""
        return self.text[at:end]

    def read_tag(self, at: int) -> Scan[MarkupTag | None]:
        """What stands there, beginning with `<`. None: nothing that is known here."""
        end = at + 1
        while True:
            found = _HEAD_END.search(self.text, end)
            head = self.text[at + 1 : found.start() if found else len(self.text)].translate(_LOOKALIKE_CHARS)
            if head not in (_TAG_HEADS if found else _TAG_HEAD_PREFIXES) or (found is None and self.is_complete):
                return None
            if found:
                break
            yield
        special, end = head.startswith("|") and head.endswith("|"), found.start()
        if self.text[end] == ">":
            return _parse_tag(head, special, "", end + 1)
        if special or not (self.text[end] == "=" or self.text[end].isspace()):
            return None
        close = yield from self.find(_TAG_END, end, MAX_TAG_CHARS)
        if close < 0 or self.text[close] != ">":
            return None
        return _parse_tag(head, special, self.text[end:close], close + 1)

    def find_extent(self, at: int) -> Scan[tuple[int, str]]:  # noqa: C901 - one small machine
        """The end of the list, object or parenthesis that begins there, and what is wrong with it; empty: nothing.

        What is within quotes of either kind counts as a string.
        """
        pos, quote, open_ = at, "", list[str]()
        while True:
            found = (_STRING_ENDS[quote] if quote else _STRUCTURE).search(self.text, pos)
            if found is None:
                if self.is_complete:
                    return len(self.text), "it is cut off"
                pos = max(pos, len(self.text))
                yield
                continue
            pos, one = found.end(), found.group()
            if pos - at > MAX_VALUE_CHARS:
                return pos, f"its arguments are longer than {MAX_VALUE_CHARS} characters"
            if one == "\\":
                pos += 1
            elif one in "\"'":
                quote = "" if quote else one
            elif one in _CLOSING_BRACKETS:
                open_.append(_CLOSING_BRACKETS[one])
                if len(open_) > MAX_DEPTH:
                    return pos, f"its arguments are nested deeper than {MAX_DEPTH}"
            elif open_.pop() != one:
                return pos, f"{one!r} closes what is not open"
            elif not open_:
                return pos, ""


def _parse_tag(head: str, special: bool, rest: str, end: int) -> MarkupTag:
    if special:
        return MarkupTag(name=head[1:-1], end=end, is_special=True)
    closing, name = head.startswith("/"), head.removeprefix("/")
    for prefix in _PREFIXES[1:]:
        name = name.removeprefix(prefix)
    value, attributes = "", dict[str, str]()
    if rest.startswith("="):
        value = rest[1:].strip().strip("\"'")
    else:
        for key, double, single in _ATTRIBUTE.findall(rest):
            attributes[key] = html.unescape(double or single)
    return MarkupTag(name=name, end=end, is_closing=closing, value=value, attributes=attributes)
