"""What the server is like, as it tells in numeric 005: https://modern.ircdocs.horse/#rplisupport-005. Pure."""

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULT_LINE_BYTES = 512
"""With CR LF and the sender's mask, without tags: RFC 1459 section 2.3."""
_MAX_LINE_BYTES = 16_384
_MAX_MONITORS = 100
_DEFAULT_PREFIX = MappingProxyType({"@": "o", "+": "v"})
_DEFAULT_CHANMODES = ("beI", "k", "l", "imnpst")
"""RFC 2811 section 4, for servers that do not say."""
_MAX_HISTORY_LINES = 10_000

_UPPER = string.ascii_uppercase
_CASEMAPPINGS = {
    "ascii": str.maketrans(_UPPER, string.ascii_lowercase),
    "rfc1459": str.maketrans(_UPPER + "[]\\~", string.ascii_lowercase + "{}|^"),
    "rfc1459-strict": str.maketrans(_UPPER + "[]\\", string.ascii_lowercase + "{}|"),
}
_UNICODE_CASEMAPPINGS = frozenset({"precis", "rfc7613", "rfc8265"})


def _parse_number(text: str, default: int, most: int) -> int:
    # isdecimal would let other scripts' digits through, and int() refuses thousands of digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else default


def _parse_prefix(value: str, before: Mapping[str, str]) -> Mapping[str, str]:
    """`(ov)@+`; empty: nobody has a rank there."""
    letters, closed, signs = value.removeprefix("(").partition(")")
    fits = value.startswith("(") and closed and len(letters) == len(signs) == len(set(signs))
    if value and not fits:
        return before
    return MappingProxyType(dict(zip(signs, letters, strict=True)) if value else {})


def _unescape(value: str) -> str:
    r"""With its bytes in hexadecimal, e.g. a space as `\x20`: https://modern.ircdocs.horse/#rplisupport-005."""
    return re.sub(r"\\x([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), value)


def _parse_chanmodes(value: str) -> tuple[str, str, str, str]:
    """`A,B,C,D`, and more that nobody knows yet."""
    lists, always, when_set, never = [*value.split(","), "", "", "", ""][:4]
    return lists, always, when_set, never


@dataclass(frozen=True, slots=True)
class Isupport:
    """What the server told in 005, as far as it matters here: https://modern.ircdocs.horse/#rplisupport-005."""

    casemapping: str = "rfc1459"
    wide_nicks: bool = False
    """Nicks may have letters beyond ASCII, as CASEMAPPING tells."""
    network: str = ""
    """What the network is called; empty: the server does not say."""
    chantypes: str = "#&"
    statusmsg: str = ""
    prefix: Mapping[str, str] = field(default_factory=lambda: _DEFAULT_PREFIX)
    """Sign in front of a nick -> letter of the mode that it stands for; the highest first."""
    chanmodes: tuple[str, str, str, str] = _DEFAULT_CHANMODES
    """Letters of modes by what parameter they take: of lists, always, only when set, never."""
    line_bytes: int = DEFAULT_LINE_BYTES
    user_bytes: int = 10
    """Longest user name, without the `~` of a failed ident check."""
    host_bytes: int = 63
    """Longest host that is shown; 63 where the server does not say, as sopel has it."""
    bot_mode: str = ""
    """The mode that marks us as a bot; empty: none."""
    monitors: int = 0
    """How many nicks may be watched with MONITOR; 0: no MONITOR."""
    whox: bool = False
    history_lines: int = 0
    """Most lines of one CHATHISTORY answer; 0: the server does not say."""
    history_by_id: bool = False
    """CHATHISTORY takes message ids as references."""
    topic_bytes: int = 0
    """Longest topic; 0: the server does not say. It does not say either whether it counts bytes, which are more."""
    tags_denied: str = ""
    """CLIENTTAGDENY: names of client tags that are not relayed; `*` all, `-name` not this one."""

    def with_tokens(self, tokens: Iterable[str]) -> "Isupport":  # noqa: C901, PLR0912 - one case per token
        """With `tokens` (`NAME`, `NAME=value` or `-NAME`) taken in. Nonsense changes nothing."""
        values = {name: getattr(self, name) for name in self.__slots__}
        default = Isupport()
        for token in tokens:
            name, _, value = token.removeprefix("-").partition("=")
            gone = token.startswith("-")
            match name:
                case "CASEMAPPING":
                    values["casemapping"] = default.casemapping if gone or value not in _CASEMAPPINGS else value
                    values["wide_nicks"] = not gone and value in _UNICODE_CASEMAPPINGS
                case "NETWORK":
                    values["network"] = "" if gone else _unescape(value)
                case "CHANTYPES":
                    # Empty would mean a server without channels, where we would have nothing to do.
                    values["chantypes"] = default.chantypes if gone or not value else value
                case "STATUSMSG":
                    values["statusmsg"] = "" if gone else value
                case "PREFIX":
                    values["prefix"] = _DEFAULT_PREFIX if gone else _parse_prefix(value, values["prefix"])
                case "CHANMODES":
                    values["chanmodes"] = _DEFAULT_CHANMODES if gone else _parse_chanmodes(value)
                case "LINELEN":
                    number = default.line_bytes if gone else _parse_number(value, default.line_bytes, _MAX_LINE_BYTES)
                    values["line_bytes"] = max(DEFAULT_LINE_BYTES, min(number, _MAX_LINE_BYTES))
                case "USERLEN":
                    values["user_bytes"] = default.user_bytes if gone else _parse_number(value, default.user_bytes, 99)
                case "HOSTLEN":
                    values["host_bytes"] = default.host_bytes if gone else max(63, _parse_number(value, 63, 255))
                case "MONITOR":
                    values["monitors"] = 0 if gone else max(1, _parse_number(value, _MAX_MONITORS, _MAX_MONITORS))
                case "WHOX":
                    values["whox"] = not gone
                case "CHATHISTORY" | "draft/CHATHISTORY":
                    values["history_lines"] = 0 if gone else _parse_number(value, 0, _MAX_HISTORY_LINES)
                case "MSGREFTYPES":
                    values["history_by_id"] = not gone and "msgid" in value.split(",")
                case "TOPICLEN":
                    values["topic_bytes"] = 0 if gone else _parse_number(value, 0, _MAX_LINE_BYTES)
                case "CLIENTTAGDENY":
                    values["tags_denied"] = "" if gone else value
                case "BOT":
                    values["bot_mode"] = value if not gone and len(value) == 1 and value.isascii() else ""
                case _:
                    pass
        return Isupport(**values)

    def relays_tag(self, tag: str) -> bool:
        """Whether a client tag (its name without `+`) reaches others: the message-tags page, section CLIENTTAGDENY."""
        denied = self.tags_denied.split(",")
        return tag not in denied and ("*" not in denied or f"-{tag}" in denied)

    def fold(self, name: str) -> str:
        """Equal for names that the server holds to be the same. Keeps the length."""
        return name.translate(_CASEMAPPINGS[self.casemapping])

    def is_room(self, target: str) -> bool:
        """Whether `target` names a channel rather than a person."""
        return target[:1] in self.chantypes if target else False

    def status_prefix(self, target: str) -> str:
        """The signs in front of a room's name that say that only people with such a rank are meant (STATUSMSG)."""
        room = self.room_of(target)
        return "" if room is None else target[: len(target) - len(room)]

    def room_of(self, target: str) -> str | None:
        """The channel that a message to `target` was said in (`@#ops` is said in `#ops`); None: a person."""
        bare = target.lstrip(self.statusmsg) if self.statusmsg else target
        if self.is_room(bare):
            return bare
        return target if self.is_room(target) else None
