"""IRC lines: reading any of them without failing, and building safe ones. Pure.

Grammar: RFC 1459 section 2.3.1, https://modern.ircdocs.horse and
https://ircv3.net/specs/extensions/message-tags. Reading never raises: a server may send anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from channels.irc.isupport import Isupport

_TAG_ESCAPES = {":": ";", "s": " ", "r": "\r", "n": "\n"}
_TAG_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_TO_ESCAPE = str.maketrans({";": "\\:", " ": "\\s", "\r": "\\r", "\n": "\\n", "\\": "\\\\"})
_MAX_TAG_BYTES = 4094
"""Tag data that a client may send: https://ircv3.net/specs/extensions/message-tags#size-limit."""
_WIRE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class IrcSource:
    """Who sent a line. `user` and `host` are empty where the server left them out."""

    nick: str
    user: str = ""
    host: str = ""

    @property
    def mask(self) -> str:
        """As on the wire: `nick!user@host`, or the bare name."""
        return self.nick + (f"!{self.user}" if self.user else "") + (f"@{self.host}" if self.host else "")


@dataclass(frozen=True, slots=True)
class IrcLine:
    """One line as sent. `command` is upper case; numerics are three digits."""

    command: str
    params: tuple[str, ...] = ()
    source: IrcSource = IrcSource("")
    tags: Mapping[str, str] = field(default_factory=dict)

    def param(self, index: int) -> str:
        """The parameter, or an empty text if the server left it out."""
        return self.params[index] if -len(self.params) <= index < len(self.params) else ""


def parse_line(raw: str) -> IrcLine | None:
    """Read one line without its CR LF. None if there is no command in it."""
    rest = raw.strip("\r\n").replace("\x00", "")
    tags: dict[str, str] = {}
    source = IrcSource("")
    if rest.startswith("@"):
        head, _, rest = rest[1:].partition(" ")
        tags = _parse_tags(head)
    rest = rest.lstrip(" ")
    if rest.startswith(":"):
        head, _, rest = rest[1:].partition(" ")
        source = _parse_source(head)
    head, colon, trailing = rest.partition(" :")
    words = [word for word in head.split(" ") if word]
    if not words:
        return None
    params = (*words[1:], trailing) if colon else tuple(words[1:])
    return IrcLine(words[0].upper(), params, source, tags)


def _parse_tags(head: str) -> dict[str, str]:
    tags = {}
    for item in head.split(";"):
        key, _, value = item.partition("=")
        if key:
            tags[key] = _TAG_ESCAPE.sub(lambda found: _TAG_ESCAPES.get(found[1], found[1]), value)
    return tags


def _parse_source(head: str) -> IrcSource:
    rest, _, host = head.partition("@")
    nick, _, user = rest.partition("!")
    return IrcSource(nick, user, host)


def add_tags(raw: str, tags: Mapping[str, str]) -> str:
    """`raw` with more tags in front.

    A tag that would make it too long for a server is left out: a line without a tag is better than none.
    """
    head, _, rest = raw[1:].partition(" ") if raw.startswith("@") else ("", "", raw)
    known = head.split(";") if head else []
    for key, value in tags.items():
        item = f"{key}={_printable(value).translate(_TO_ESCAPE)}" if value else key
        if len(";".join([*known, item]).encode()) <= _MAX_TAG_BYTES:
            known.append(item)
    return f"@{';'.join(known)} {rest}" if known else rest


def format_line(command: str, *middles: str, trailing: str | None = None) -> str:
    """Build a line to send, without CR LF. Every line that we send is made here (`add_tags` puts tags in front).

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


_NICK_CHARACTERS = r"A-Za-z0-9_\[\]\\`^{}|\-"
"""RFC 2812 section 2.3.1: letters beyond ASCII are none of them, so `你好reverie` and `reverieは` name us."""
_UNSPACED_SCRIPTS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
)
"""Letters of scripts that put no space (or, in Korean, a particle) between a name and what follows."""
_WIDE_NICK_CHARACTERS = rf"[^\W{_UNSPACED_SCRIPTS}]|[\[\]\\`^{{}}|\-]"
"""Where nicks may have letters of any script."""
_URL = re.compile(r"(?:[a-z][a-z0-9+.\-]*://|www\.)\S*", re.IGNORECASE)


def mentions_nick(text: str, nick: str, isupport: Isupport) -> bool:
    """Whether `nick` stands in `text` as a word of its own, compared as the server compares nicks.

    Characters that nicks are made of on this server continue a word; so do a slash, an `@` of an address and a dot
    of a host name (`reverie.org` is not us; `reverie.` at the end of a sentence is).
    """
    folded = isupport.fold(_URL.sub(lambda found: " " * len(found[0]), text))
    word = re.escape(isupport.fold(nick))
    wide = isupport.wide_nicks or not nick.isascii()
    part = rf"(?:{_WIDE_NICK_CHARACTERS})" if wide else f"[{_NICK_CHARACTERS}]"
    before = rf"(?<!{part})(?<!/)(?<!{part}[.@])"
    after = rf"(?!{part}|/|[.@]{part})"
    return bool(nick) and re.search(before + word + after, folded) is not None
