"""Posts that would call many people at once. Pure.

Discord is told with each message that it calls nobody (`allowed_mentions`). Telegram and IRC cannot be told: there a
name calls whoever has it. A few names in a post are a talk; of more each is parted by a character of no width, so that
it reads the same and calls nobody.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

MAX_MENTIONS: Final = 5
"""Different people that one post may call."""
WORD_JOINER: Final = "\u2060"
"""Word joiner: of no width, and no line is broken there. No name holds one."""
_AT_NAME: Final = re.compile(r"(?<![\w@/.])@(?=([A-Za-z][A-Za-z0-9_]{3,31})(?![\w@]))")
"""As Telegram finds them in a text: core.telegram.org/api/mentions."""
_AT_NAME_START: Final = re.compile(r"@(?=[A-Za-z]|\Z)")
_NICK_CHARS: Final = re.compile(r"[\w\[\]\\`^{}|\-]+")
"""What nicks are made of: https://modern.ircdocs.horse/#clients."""
_NICK_CORE: Final = re.compile(r"[\w|\-]+")
"""The same without what also stands around words: for most clients `nick` in brackets or backticks calls, too."""


def mentions_many(text: str) -> bool:
    """Whether more than `MAX_MENTIONS` people are called by @name."""
    return len({found[1].casefold() for found in _AT_NAME.finditer(text)}) > MAX_MENTIONS


def break_mentions(piece: str) -> str:
    """A piece of such a text, with its @names parted; what ends in `@` goes on in another piece."""
    return _AT_NAME_START.sub(f"@{WORD_JOINER}", piece)


def break_nicks(text: str, inside: Collection[str], fold: Callable[[str], str]) -> str:
    """`text` with nicks parted if more than `MAX_MENTIONS` of those (folded) that are `inside` stand in it."""
    called = set[str]()

    def one(found: re.Match[str]) -> str:
        if (folded := fold(found[0])) in inside:
            called.add(folded)
            return _break_nick(found[0])
        return (
            _NICK_CORE.sub(one, found[0])
            if _NICK_CORE.search(found[0]) and not _NICK_CORE.fullmatch(found[0])
            else found[0]
        )

    calm = _NICK_CHARS.sub(one, text)
    return calm if len(called) > MAX_MENTIONS else text


def _break_nick(nick: str) -> str:
    # A nick of one letter has nothing to part: the joiner in front still makes another word of it.
    return f"{nick[0]}{WORD_JOINER}{nick[1:]}" if len(nick) > 1 else f"{WORD_JOINER}{nick}"
