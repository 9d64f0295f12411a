"""Text in normal form, and text that deceives readers: invisible characters, lookalike names, mass
mentions, terminal escapes. Pure.

Invisible characters (`reveal_hidden`, `strip_hidden`) are marked or removed where the model reads a
text (`agent.prompt`), and removed from names (`channels.text.clean_name`) and from our posts
(`gateway.stream.outbox`). Characters that languages and emoji need stay: joiners in Indic and
Arabic scripts, direction marks beside right-to-left letters, joined emoji, flags, one selector
after a character that has variants (https://www.unicode.org/reports/tr51/,
https://www.unicode.org/reports/tr31/#Layout_and_Format_Control_Characters). All others can hide
words from people that a model reads, or show people other words than the model reads.

Mentions (`break_mentions`, `break_nicks`): Discord accepts with each message that it mentions
nobody (`allowed_mentions`); Telegram and IRC do not, and a name there notifies its owner. A few
names in a post are ordinary talk; in a post with more, each is split by a character of no width, so
that it looks the same and notifies nobody.

Names (`check_name`, used by `gateway.context.conversation`): two names look alike if they have the
same skeleton (https://www.unicode.org/reports/tr39/#Confusable_Detection). The table is that of
Unicode 15.0, as ICU 72 has it (`tests/checks/confusables.py` writes it).

Code (`inline_code`, `escape_invisible`): untrusted text in a post stands in a code span that it
cannot leave, with every invisible character written out.
"""

import gzip
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from gateway.core.events import Sender

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Characters ignorable by default (DerivedCoreProperties.txt). For control characters:
`channels.text.clean_text`."""
_INVISIBLE_RUN: Final = re.compile(f"{_INVISIBLE.pattern}+")
_INVISIBLE_OR_CONTROL: Final = re.compile(
    rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|{_INVISIBLE.pattern}"
)
"""The same, and control characters except white space."""
_SUSPICIOUS: Final = re.compile("[\u202a-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f]")
"""Characters that reverse lines, or spell words with no width: a single one is reported."""
_SUSPICIOUS_RUN: Final = 4
"""Length of a run of other invisible characters that may spell a message, too."""
_REGION_FLAGS: Final = "|".join(
    "".join(chr(0xE0000 + ord(letter)) for letter in region)
    for region in ("gbeng", "gbsct", "gbwls")
)
"""The only region flags for general use:
https://www.unicode.org/reports/tr51/#valid-emoji-tag-sequences."""
_EMOJI: Final = r"[\p{S}\p{Extended_Pictographic}]"
_NEEDED: Final = "|".join((
    r"(?<=[\p{bc=AL}\p{ccc=9}\p{Mongolian}\u0900-\u0dff\u0f00-\u109f\u1780-\u17d3])[\u200c\u200d]",
    rf"(?<={_EMOJI})\ufe0f?\u200d(?={_EMOJI})",
    r"(?<=[\p{S}\p{Extended_Pictographic}#*0-9\u2049])[\ufe0e\ufe0f]",
    r"(?<=[\p{Lo}\p{Sm}\u2100-\u214f\U0001d400-\U0001d7ff0０‘’“”、。！，：；？．])[\ufe00-\ufe0d]",  # noqa: RUF001
    r"(?<=\p{Ideographic})[\U000e0100-\U000e01ef]",
    r"(?<=\p{Mongolian})[\u180b-\u180f]",
    r"[\u115f\u1160](?=[\u1161-\u11ff\ua960-\ua97c\ud7b0-\ud7fb])",
    rf"(?<=\U0001f3f4)(?:{_REGION_FLAGS})\U000e007f",
))  # fmt: skip
"""Invisible characters that visible ones beside them need, for the `regex` library: joiners in
joined and Indic scripts and between emoji, selectors of variants, fillers of Hangul, flags."""
MAX_MENTIONS: Final = 5
MAX_NAME_CHARS: Final = 64
"""Longest name of a person in what the gateway writes by itself."""
LINE_CHARS: Final = 120
"""Longest line of `to_single_line`, if no other length is given."""
_LINE_END: Final = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL_CHARS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
WORD_JOINER: Final = "\u2060"
"""Character of no width that allows no line break. No name holds one."""
_AT_NAME: Final = re.compile(r"(?<![\w@/.])@(?=([A-Za-z][A-Za-z0-9_]{3,31})(?![\w@]))")
"""Mentions as Telegram finds them in a text: core.telegram.org/api/mentions."""
_NICK_CHARS: Final = re.compile(r"[\w\[\]\\`^{}|\-]+")
"""Characters of nicks: https://modern.ircdocs.horse/#clients."""
_NICK_CORE: Final = re.compile(r"[\w|\-]+")
"""The same without those that also surround words: for most clients `nick` in brackets or backticks
notifies, too."""
CONFUSABLES_FILE: Final = Path(__file__).with_name("confusables.gz")
"""Lines of a character and its lookalike."""
_ALPHABETS: Final = ("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK", "LATIN")
"""Alphabets with similar letters; words may mix others, as Japanese does."""
_PRINTABLE_JOINERS = "\u200c\u200d"
"""Format characters that emoji and several scripts need."""
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (also direction marks), surrogate, private, unassigned, line ends."""


def reveal_hidden(text: str) -> str:
    """Replace characters that hide words by e.g. `[U+202E]`, and remove other invisible characters.

    Ordinary text of any language is unchanged. Idempotent.
    """
    return _clean_runs(text, _describe_run) if _INVISIBLE.search(text) else text


def strip_hidden(text: str) -> str:
    """Remove hidden characters as `reveal_hidden` does, without marking them: for names, and for
    our posts.
    """
    return _clean_runs(text, lambda _: "") if _INVISIBLE.search(text) else text


def strip_invisible(text: str) -> str:
    """Remove all invisible characters, also where a language needs them: for searching in the
    text.
    """
    return _INVISIBLE_OR_CONTROL.sub("", text)


@cache
def _needed_pattern(*, right_to_left: bool) -> Any:  # noqa: ANN401 - the library has no types
    import regex  # noqa: PLC0415 - takes 3 MB, and few texts have such a character

    return regex.compile(rf"[\u200e\u200f\u061c]|{_NEEDED}" if right_to_left else _NEEDED)


def _clean_runs(text: str, describe: Callable[[str], str]) -> str:
    """Replace each run of invisible characters: what is needed of its beginning stays, and
    `describe` gives what stands for the rest.
    """
    needed = _needed_pattern(
        right_to_left=any(
            unicodedata.bidirectional(char) in ("R", "AL") for char in _INVISIBLE.sub("", text)
        )
    )

    def clean(run: re.Match[str]) -> str:
        found = needed.match(text, run.start())
        kept = found[0] if found is not None else ""
        return kept + describe(run[0][len(kept) :])

    return _INVISIBLE_RUN.sub(clean, text)


def _describe_run(run: str) -> str:
    """Return the mark of characters that may spell words; empty: they spell none."""
    suspicious = _SUSPICIOUS.search(run)
    if suspicious is None and len(run) < _SUSPICIOUS_RUN:
        return ""
    more = f" and {len(run) - 1} more" if len(run) > 1 else ""
    return f"[U+{ord(suspicious[0] if suspicious else run[0]):04X}{more}]"


_JSON_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def replace_half_escapes(json_text: str) -> str:
    """Return JSON with U+FFFD for each escape of half a character: many parsers refuse the whole
    text for it.
    """
    return _JSON_ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], json_text)


def mentions_many(text: str) -> bool:
    """Return whether more than `MAX_MENTIONS` people are mentioned by @name."""
    return len({found[1].casefold() for found in _AT_NAME.finditer(text)}) > MAX_MENTIONS


def break_mentions(piece: str) -> str:
    """Split the @names in a piece of such a text; an `@` at the end may continue in the next
    piece.
    """
    return re.sub(r"@(?=[A-Za-z]|\Z)", f"@{WORD_JOINER}", piece)


def break_nicks(text: str, inside: Collection[str], fold: Callable[[str], str]) -> str:
    """Split nicks if more than `MAX_MENTIONS` of those in the room are in the text.

    `inside`: the nicks of the room, folded by `fold`.
    """
    mentioned = set[str]()

    def break_match(found: re.Match[str]) -> str:
        nick = found[0]
        if (folded := fold(nick)) in inside:
            mentioned.add(folded)
            # A nick of one letter cannot be split: the joiner in front still makes it another word.
            at = 1 if len(nick) > 1 else 0
            return f"{nick[:at]}{WORD_JOINER}{nick[at:]}"
        return (
            _NICK_CORE.sub(break_match, found[0])
            if _NICK_CORE.search(found[0]) and not _NICK_CORE.fullmatch(found[0])
            else found[0]
        )

    broken = _NICK_CHARS.sub(break_match, text)
    return broken if len(mentioned) > MAX_MENTIONS else text


class NameWarning(NamedTuple):
    """Reason to doubt a sender's name."""

    reason: Literal["alike", "same", "perhaps", "mixed"]
    """alike: it looks like another's; same: another sender has it, too; perhaps: a sender known to
    the platform had it, and the platform does not confirm that this is the same person; mixed: its
    letters are of several alphabets."""
    other: str
    """The other's name, untrusted; for mixed: the alphabets."""
    id: str = ""
    """For same: the sender's own id, which tells the two apart."""


def check_name(sender: "Sender", others: "Iterable[Sender]") -> NameWarning | None:
    """Check whether this person may be mistaken for one of the others. None: no reason to think so.

    `others` may hold the person themselves, and earlier owners of the name.
    """
    skeletons = _name_skeletons(sender.name)
    for other in others:
        if other.id == sender.id or skeletons.isdisjoint(_name_skeletons(other.name)):
            continue
        if other.name.casefold() != sender.name.casefold():
            return NameWarning("alike", other.name)
        if other.verified:  # otherwise only the name is known: it may be the same person
            return (
                NameWarning("same", other.name, sender.id)
                if sender.verified
                else NameWarning("perhaps", other.name)
            )
    alphabets = mixed_alphabets(sender.name)
    return NameWarning("mixed", " and ".join(alphabets)) if alphabets else None


def describe_name_warning(doubted: NameWarning, other: str) -> str:
    """Describe the warning in words; `other`: the other name in a form that may be shown there."""
    match doubted.reason:
        case "alike":
            return f"not {other}: the name only looks alike"
        case "same":
            return f"id {escape_frame(doubted.id)}, not the other {other}"
        case "perhaps":
            return f"not known to be the {other} of before"
        case "mixed":
            return f"the name mixes {doubted.other} letters"


def mixed_alphabets(name: str) -> tuple[str, ...]:
    """Return the alphabets that are mixed in one word of a name; empty: none."""
    if name.isascii():
        return ()
    for word in "".join(
        char if char.isalpha() or unicodedata.combining(char) else " " for char in name
    ).split():
        scripts = {unicodedata.name(char, "").split(" ")[0] for char in word}
        mixed = [alphabet for alphabet in _ALPHABETS if alphabet in scripts]
        if len(mixed) > 1:
            return tuple(alphabet.capitalize() for alphabet in mixed)
    return ()


@lru_cache(maxsize=4_000)
def _name_skeletons(name: str) -> frozenset[str]:
    visible = " ".join(strip_hidden(name).split())
    return frozenset({_skeleton(visible), _skeleton(visible.casefold())} - {""})


def _skeleton(text: str) -> str:
    return unicodedata.normalize(
        "NFD", unicodedata.normalize("NFD", text).translate(_confusables())
    )


@lru_cache(maxsize=1)
def _confusables() -> dict[int, str]:
    """Load the table when it is first needed: it takes 1 MB and 15 ms."""
    with gzip.open(CONFUSABLES_FILE, "rt", encoding="utf-8") as lines:
        return {ord(line[0]): line[1:].rstrip("\n") for line in lines}


def normalize_text(text: str) -> str:
    """Return the text in normal form, so that equal words are equal bytes, whichever editor saved
    them.

    One kind of line end, no control characters but tab, no space at the end of a line or around the
    whole. Lone surrogates, which JSON can spell and no wire can carry, are replaced.
    """
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _CONTROL_CHARS.sub("", _LINE_END.sub("\n", text))
    return "\n".join(line.rstrip() for line in text.split("\n")).strip()


def to_single_line(text: str, most: int = LINE_CHARS) -> str:
    """Return the text on one line, without invisible characters, at most `most` characters long."""
    is_simple = text.isascii() and text.isprintable()  # the usual case, and the fast one
    printable = (
        text
        if is_simple
        else "".join(
            c if unicodedata.category(c)[0] not in "CZ" else " " for c in normalize_text(text)
        )
    )
    return " ".join(printable.split())[:most].rstrip()


def sanitize_name(name: str) -> str:
    """Replace characters in a name that could close a frame or imitate one."""
    return to_single_line("".join("_" if c in '[]():"' else c for c in name), 100) or "_"


def shorten(text: str, chars: int) -> str:
    """Return the text in at most `chars` characters, with `…` at its end if it was cut."""
    return text if len(text) <= chars else f"{text[: chars - 1].rstrip()}…"


def one_line(text: str, chars: int) -> str:
    """Return the text on one line of at most `chars` characters, with one space between words."""
    return shorten(" ".join(text.split()), chars)


def escape_markdown(name: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return an untrusted name on one line so that Markdown shows it as it is.

    Parentheses and what ends a link get no backslash: they need none, and with one they would begin
    and end maths.
    """
    return re.sub(r"(?=[!-'*-/:-@\[\\^-`{-~])", r"\\", one_line(name, max_chars))


_BLOCK_START: Final = re.compile(r"\s*(?:[`~]{3}|[-*+#>|]|\d+[.)])")
"""Beginning of Markdown that is no paragraph, so that nothing may stand in front of it on its
line."""


def name_in_front(markdown: str, names: Sequence[str]) -> str:
    """Return a text with these names in front, unless it has them all."""
    said, plain = markdown.replace("\\", ""), [re.escape(one.replace("\\", "")) for one in names]
    if all(re.search(rf"(?<!\w){name}(?!\w)", said, re.IGNORECASE) for name in plain):
        return markdown
    gap = "\n\n" if _BLOCK_START.match(markdown) else " "
    return f"{', '.join(map(escape_markdown, names))}:{gap}{markdown}"


def escape_frame(name: str, marks: str = "[]():") -> str:
    """Replace characters of an untrusted name that are not visible, or that could end the frame
    around it, by `_`.
    """
    return "".join(char if char.isprintable() and char not in marks else "_" for char in name)


def escape_unprintable(text: str) -> str:
    """Escape everything that a terminal could interpret."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char in _PRINTABLE_JOINERS or unicodedata.category(char) not in _UNPRINTABLE_CATEGORIES
        else char.encode("unicode_escape").decode()
        for char in text
    )


NAME_CHARS: Final = 40
PLACE_CHARS: Final = 120
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Letters and marks that display nothing
(https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point), and variation selectors, in
which text can be hidden."""


def escape_invisible(text: str) -> str:
    """Return the text with nothing hidden in it, and nothing that ends the code or line around
    it.
    """
    if text.isascii() and text.isprintable() and "`" not in text:
        return text
    return "".join(
        char if _is_visible(char) else json.dumps(char)[1:-1] if char != "`" else "\\u0060"
        for char in text
    )


def _is_visible(char: str) -> bool:
    is_escaped = unicodedata.category(char) in {*_UNPRINTABLE_CATEGORIES, "Zs"}
    return char == " " or not (is_escaped or char == "`" or _BLANK.match(char))


def inline_code(text: str, max_chars: int = NAME_CHARS) -> str:
    """Return untrusted text as code."""
    escaped = escape_invisible(text.strip())
    return f"`{shorten(escaped, max_chars)}`" if escaped else "`?`"
