"""IRC lines: reading any of them without failing, and building safe ones. Pure.

Grammar: RFC 1459 section 2.3.1, https://modern.ircdocs.horse and
https://ircv3.net/specs/extensions/message-tags. Reading never raises: a server may send anything.
"""

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

DEFAULT_LINE_BYTES = 512
"""With CR LF and the sender's mask, without tags: RFC 1459 section 2.3."""
_MOST_LINE_BYTES = 16_384
_TAG_ESCAPES = {":": ";", "s": " ", "r": "\r", "n": "\n"}
_TAG_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_WIRE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Source:
    """Who sent a line. `user` and `host` are empty where the server left them out."""

    nick: str
    user: str = ""
    host: str = ""

    @property
    def mask(self) -> str:
        """As on the wire: `nick!user@host`, or the bare name."""
        return self.nick + (f"!{self.user}" if self.user else "") + (f"@{self.host}" if self.host else "")


@dataclass(frozen=True, slots=True)
class Line:
    """One line as sent. `command` is upper case; numerics are three digits."""

    command: str
    params: tuple[str, ...] = ()
    source: Source = Source("")
    tags: Mapping[str, str] = field(default_factory=dict)

    def param(self, index: int) -> str:
        """The parameter, or an empty text if the server left it out."""
        return self.params[index] if -len(self.params) <= index < len(self.params) else ""


def parse(raw: str) -> Line | None:
    """Read one line without its CR LF. None if there is no command in it."""
    rest = raw.strip("\r\n").replace("\x00", "")
    tags: dict[str, str] = {}
    source = Source("")
    if rest.startswith("@"):
        head, _, rest = rest[1:].partition(" ")
        tags = _tags(head)
    rest = rest.lstrip(" ")
    if rest.startswith(":"):
        head, _, rest = rest[1:].partition(" ")
        source = _source(head)
    head, colon, trailing = rest.partition(" :")
    words = [word for word in head.split(" ") if word]
    if not words:
        return None
    params = (*words[1:], trailing) if colon else tuple(words[1:])
    return Line(words[0].upper(), params, source, tags)


def _tags(head: str) -> dict[str, str]:
    tags = {}
    for item in head.split(";"):
        key, _, value = item.partition("=")
        if key:
            tags[key] = _TAG_ESCAPE.sub(lambda found: _TAG_ESCAPES.get(found[1], found[1]), value)
    return tags


def _source(head: str) -> Source:
    rest, _, host = head.partition("@")
    nick, _, user = rest.partition("!")
    return Source(nick, user, host)


def line(command: str, *middles: str, trailing: str | None = None) -> str:
    """Build a line to send, without CR LF. Every line that we send is made here.

    No parameter can end the line or become another one: CR and LF become a space in `trailing`, and
    are removed elsewhere with NUL; lone surrogates become `?`. Raises ValueError for a middle
    parameter that is empty, begins with a colon or holds a space.
    """
    parts = [command]
    for middle in middles:
        clean = _WIRE_BREAKS.sub("", _printable(middle))
        if not clean or clean.startswith(":") or " " in clean:
            raise ValueError(f"not a parameter: {middle!r}")
        parts.append(clean)
    if trailing is not None:
        parts.append(":" + _WIRE_BREAKS.sub(" ", _printable(trailing)))
    return " ".join(parts)


def _printable(text: str) -> str:
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


_UPPER = string.ascii_uppercase
_FOLDS = {
    "ascii": str.maketrans(_UPPER, string.ascii_lowercase),
    "rfc1459": str.maketrans(_UPPER + "[]\\~", string.ascii_lowercase + "{}|^"),
    "rfc1459-strict": str.maketrans(_UPPER + "[]\\", string.ascii_lowercase + "{}|"),
}


def _number(text: str, default: int, most: int) -> int:
    # isdecimal would let other scripts' digits through, and int() refuses thousands of digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else default


@dataclass(frozen=True, slots=True)
class Isupport:
    """What the server told in 005, as far as it matters here: https://modern.ircdocs.horse/#rplisupport-005."""

    casemapping: str = "rfc1459"
    chantypes: str = "#&"
    statusmsg: str = ""
    line_bytes: int = DEFAULT_LINE_BYTES
    user_bytes: int = 10
    """Longest user name, without the `~` of a failed ident check."""
    bot_mode: str = ""
    """The mode that marks us as a bot; empty: none."""

    def updated(self, tokens: Iterable[str]) -> "Isupport":
        """With `tokens` (`NAME`, `NAME=value` or `-NAME`) taken in. Nonsense changes nothing."""
        values = {name: getattr(self, name) for name in self.__slots__}
        default = Isupport()
        for token in tokens:
            name, _, value = token.removeprefix("-").partition("=")
            gone = token.startswith("-")
            match name:
                case "CASEMAPPING":
                    values["casemapping"] = default.casemapping if gone or value not in _FOLDS else value
                case "CHANTYPES":
                    # Empty would mean a server without channels, where we would have nothing to do.
                    values["chantypes"] = default.chantypes if gone or not value else value
                case "STATUSMSG":
                    values["statusmsg"] = "" if gone else value
                case "LINELEN":
                    number = default.line_bytes if gone else _number(value, default.line_bytes, _MOST_LINE_BYTES)
                    values["line_bytes"] = max(DEFAULT_LINE_BYTES, min(number, _MOST_LINE_BYTES))
                case "USERLEN":
                    values["user_bytes"] = default.user_bytes if gone else _number(value, default.user_bytes, 99)
                case "BOT":
                    values["bot_mode"] = value if not gone and len(value) == 1 and value.isascii() else ""
                case _:
                    pass
        return Isupport(**values)

    def fold(self, name: str) -> str:
        """Equal for names that the server holds to be the same. Keeps the length."""
        return name.translate(_FOLDS[self.casemapping])

    def is_room(self, target: str) -> bool:
        """Whether `target` names a channel rather than a person."""
        return target[:1] in self.chantypes if target else False

    def room_of(self, target: str) -> str | None:
        """The channel that a message to `target` was said in (`@#ops` is said in `#ops`); None: a person."""
        bare = target.lstrip(self.statusmsg) if self.statusmsg else target
        if self.is_room(bare):
            return bare
        return target if self.is_room(target) else None


_NICK_CHARACTERS = r"\w\[\]\\`^{}|\-"
_URL = re.compile(r"(?:[a-z][a-z0-9+.\-]*://|www\.)\S*", re.IGNORECASE)


def mentions(text: str, nick: str, isupport: Isupport) -> bool:
    """Whether `nick` stands in `text` as a word of its own, compared as the server compares nicks.

    Characters that nicks are made of continue a word; so do a slash, an `@` of an address and a dot
    of a host name (`reverie.org` is not us; `reverie.` at the end of a sentence is).
    """
    folded = isupport.fold(_URL.sub(lambda found: " " * len(found[0]), text))
    word = re.escape(isupport.fold(nick))
    before = rf"(?<![{_NICK_CHARACTERS}/])(?<![{_NICK_CHARACTERS}][.@])"
    after = rf"(?![{_NICK_CHARACTERS}/]|[.@][{_NICK_CHARACTERS}])"
    return bool(nick) and re.search(before + word + after, folded) is not None
