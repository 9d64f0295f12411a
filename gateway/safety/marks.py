"""Characters that nobody sees, and those that turn lines around. Pure.

What languages and emoji need stays: joiners in Indic and Arabic scripts, marks of direction beside letters that are
written from right to left, joined emoji, flags, one selector behind what has variants
(https://www.unicode.org/reports/tr51/, https://www.unicode.org/reports/tr31/#Layout_and_Format_Control_Characters). All
else can hide words from people that a model reads, or show people other words than it reads.
"""

import re
import unicodedata
from typing import Final

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""What is ignorable by default (DerivedCoreProperties.txt). Control characters are `channels.text.clean_text`'s."""
_INVISIBLE_OR_CONTROL: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|{_INVISIBLE.pattern}")
"""The same, and control characters but for those between words."""
_SUSPICIOUS: Final = re.compile("[\u202a-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f]")
"""Turns lines around, or spells words in characters of no width: one is worth telling."""
_SUSPICIOUS_RUN: Final = 4
"""So many of the others in a row spell something, too."""
_DIRECTION_MARKS: Final = frozenset("\u200e\u200f\u061c")
_JOINERS: Final = frozenset("\u200c\u200d")
_ZWJ: Final = "\u200d"
_JAMO: Final = re.compile("[\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb]")
_FILLERS: Final = frozenset("\u115f\u1160")
_MONGOLIAN: Final = re.compile("[\u1820-\u18aa]")
_REGION_FLAG: Final = re.compile(
    "|".join("".join(chr(0xE0000 + ord(letter)) for letter in region) for region in ("gbeng", "gbsct", "gbwls"))
)
"""The only flags of regions that are for general use: https://www.unicode.org/reports/tr51/#valid-emoji-tag-sequences."""
_BLACK_FLAG, _END_OF_FLAG = "\U0001f3f4", "\U000e007f"
_KEYCAPS: Final = frozenset("#*0123456789‼⁉〰〽ℹ")  # noqa: RUF001 - it is the emoji
"""Have an emoji variant, and are no symbols by category."""
_WITH_VARIANTS: Final = frozenset("0０‘’“”、。！，：；？．")  # noqa: RUF001 - these are meant
_VIRAMA: Final = 9
_PICTURES: Final = re.compile("[\U0001f000-\U0001faff]")
_RTL: Final = frozenset({"R", "AL"})


def reveal_hidden(text: str) -> str:
    """`text` as people wrote it, with what hides words told like `[U+202E]`, and the rest of what nobody sees left out.

    Ordinary text of any language is the same. Doing it twice is doing it once.
    """
    return _HiddenTextReader(text, tells=True).read() if _INVISIBLE.search(text) else text


def strip_hidden(text: str) -> str:
    """The same without telling: for names, and for what we say."""
    return _HiddenTextReader(text, tells=False).read() if _INVISIBLE.search(text) else text


def strip_invisible(text: str) -> str:
    """Without any of the characters that nobody sees, also where a language needs them: to look for something in it."""
    return _INVISIBLE_OR_CONTROL.sub("", text)


class _HiddenTextReader:
    """Goes through one text."""

    def __init__(self, text: str, *, tells: bool) -> None:
        self._text, self._tells = text, tells
        self._out: list[str] = []
        self._run: list[str] = []
        """Unseen characters in a row, not yet decided about."""
        self._suspicious = ""
        """The first of these that is worth telling."""
        self._rtl: bool | None = None

    def read(self) -> str:
        at = 0
        while at < len(self._text):
            char = self._text[at]
            if not _INVISIBLE.match(char):
                size = 1
            elif not (size := self._kept_length(char, at)):
                self._run.append(char)
                self._suspicious = self._suspicious or (char if _SUSPICIOUS.match(char) else "")
                at += 1
                continue
            self._flush()
            self._out += self._text[at : at + size]
            at += size
        self._flush()
        return "".join(self._out)

    def _flush(self) -> None:
        self._out += self._revealed()
        self._run, self._suspicious = [], ""

    def _revealed(self) -> str:
        if not self._tells or not (self._suspicious or len(self._run) >= _SUSPICIOUS_RUN):
            return ""
        more = f" and {len(self._run) - 1} more" if len(self._run) > 1 else ""
        return f"[U+{ord(self._suspicious or self._run[0]):04X}{more}]"

    def _previous(self) -> str:
        """What will stand in front of the next character; empty: nothing."""
        return (self._revealed() or "".join(self._out[-1:]))[-1:]

    def _kept_length(self, char: str, at: int) -> int:
        """How many characters from `at` on belong to what stands in front of them; 0: none."""
        before, behind = self._previous(), self._text[at + 1 : at + 2]
        if char in _DIRECTION_MARKS:
            return int(before not in _DIRECTION_MARKS and self._is_right_to_left())
        if char in _JOINERS:
            return int(_takes_joiner(before) or (char == _ZWJ and self._follows_emoji() and _is_emoji_base(behind)))
        if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
            return int(_takes_selector(before, char))
        if "\u180b" <= char <= "\u180f":
            return int(bool(_MONGOLIAN.match(before)))
        if char in _FILLERS:
            return int(bool(_JAMO.match(behind) and behind not in _FILLERS))
        found = _REGION_FLAG.match(self._text, at) if before == _BLACK_FLAG else None
        return found.end() - at + 1 if found and self._text[found.end() :].startswith(_END_OF_FLAG) else 0

    def _is_right_to_left(self) -> bool:
        if self._rtl is None:
            self._rtl = any(
                unicodedata.bidirectional(char) in _RTL for char in self._text if char not in _DIRECTION_MARKS
            )
        return self._rtl

    def _follows_emoji(self) -> bool:
        """Whether an emoji stands in front, perhaps with a selector or a colour of skin."""
        return not self._revealed() and any(
            _is_emoji_base(char) for char in self._out[-1:] + (self._out[-2:-1] if self._out[-1:] == ["\ufe0f"] else [])
        )


def _is_emoji_base(char: str) -> bool:
    if not char:
        return False
    category = unicodedata.category(char)
    return category in ("So", "Sm", "Sk") or (category == "Cn" and bool(_PICTURES.match(char)))


def _takes_joiner(before: str) -> bool:
    """Whether a joiner behind it changes how it is written: behind a virama, or in a script that is joined."""
    if not before:
        return False
    joined = unicodedata.bidirectional(before) == "AL" or bool(_MONGOLIAN.match(before))
    return joined or unicodedata.combining(before) == _VIRAMA or _is_indic(before)


def _is_indic(char: str) -> bool:
    # Devanagari to Sinhala, Tibetan, Myanmar, Khmer: there a joiner also follows letters and vowel signs.
    spans = (("\u0900", "\u0dff"), ("\u0f00", "\u0fff"), ("\u1000", "\u109f"), ("\u1780", "\u17d3"))
    return any(first <= char <= last for first, last in spans) and char.isprintable()


def _takes_selector(before: str, selector: str) -> bool:
    if not before or _INVISIBLE.match(before):
        return False
    category = unicodedata.category(before)
    if selector in "\ufe0e\ufe0f":
        return category[0] == "S" or before in _KEYCAPS or bool(_PICTURES.match(before))
    if selector >= "\U000e0100":
        return category == "Lo" and before >= "\u3400"
    other_font = unicodedata.decomposition(before).startswith("<font>")
    return category in ("Lo", "Sm") or other_font or before in _WITH_VARIANTS
