"""IRC lines: parsing any of them without failing, building safe ones, and the protocol features
that are pure parsing.

- Lines: RFC 1459 section 2.3.1, https://modern.ircdocs.horse,
  https://ircv3.net/specs/extensions/message-tags.
- `Isupport`: numeric 005, https://modern.ircdocs.horse/#rplisupport-005.
- Refusals: the numerics and FAIL lines that reject a command of ours.

Parsing never raises: a server may send anything. Pure.
"""

import contextlib
import re
import string
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from irc.client import NickMask
from irc.features import FeatureSet
from irc.message import Tag

from channels.base import RateLimited, Rejected, SendError

_MAX_MONITORS = 100
_DEFAULT_PREFIX = MappingProxyType({"@": "o", "+": "v"})
_DEFAULT_CHANMODES = ("beI", "k", "l", "imnpst")
"""RFC 2811 section 4, for servers that send no CHANMODES."""
_MAX_HISTORY_LINES = 10_000
# fmt: off
_FEATURES: Final = frozenset({
    "BOT", "BOUNCER_NETID", "CASEMAPPING", "CHANMODES", "CHANTYPES", "CHATHISTORY", "MONITOR",
    "MSGREFTYPES", "NETWORK", "PREFIX", "STATUSMSG", "TOPICLEN", "WHOX", "draft/CHATHISTORY",
})
# fmt: on

_UPPER, _LOWER = string.ascii_uppercase.encode(), string.ascii_lowercase.encode()
_CASEMAPPINGS = {
    "ascii": bytes.maketrans(_UPPER, _LOWER),
    "rfc1459": bytes.maketrans(_UPPER + b"[]\\~", _LOWER + b"{}|^"),
    "rfc1459-strict": bytes.maketrans(_UPPER + b"[]\\", _LOWER + b"{}|"),
}
"""Of bytes, which takes a seventh of the time: none of them is a part of another character in
UTF-8."""
_UNICODE_CASEMAPPINGS = frozenset({"precis", "rfc7613", "rfc8265"})


class Isupport(FeatureSet):  # type: ignore[misc]  # irc ships no types
    """Server features from numeric 005, as far as they are used:
    https://modern.ircdocs.horse/#rplisupport-005.

    `load` the parameters of a 005. Features that are missing or invalid have the defaults of the
    protocol.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read()

    def load(self, arguments: Sequence[str]) -> None:
        super().load(arguments)
        self._read()

    def load_feature(self, feature: str) -> None:
        """Load `NAME`, `NAME=value` or `-NAME`.

        The library keeps each as an attribute of that name, so only used ones are loaded, and it
        leaves out a plain `NAME`.
        """
        name, equals, _ = feature.removeprefix("-").partition("=")
        if name in _FEATURES:
            with contextlib.suppress(ValueError):
                super().load_feature(
                    feature if equals or feature.startswith("-") else f"{feature}="
                )

    def _read(self) -> None:
        features = vars(self)

        def text(name: str) -> str:
            value = features.get(name)
            return value if isinstance(value, str) else ""

        def number(name: str, default: int, most: int) -> int:
            value = features.get(name)
            # True: sent without a value
            return value if type(value) is int and value <= most else default

        casemapping = text("casemapping")
        self._casemap = _CASEMAPPINGS.get(casemapping, _CASEMAPPINGS["rfc1459"])
        self.has_wide_nicks = casemapping in _UNICODE_CASEMAPPINGS
        """Nicks may have letters beyond ASCII, according to CASEMAPPING."""
        self._room_signs = tuple(text("chantypes") or "#&")
        self._status_signs = text("statusmsg")
        name = features.get("network", True)
        self.network_name = re.sub(
            r"\\x([0-9A-Fa-f]{2})",
            lambda found: chr(int(found[1], 16)),
            "" if name is True else str(name),
        )
        r"""Name of the network; empty: not sent. Bytes are written in hexadecimal, e.g. a space as
        `\x20`."""
        prefix = features.get("prefix", _DEFAULT_PREFIX)
        self.rank_modes: Mapping[str, str] = prefix if isinstance(prefix, Mapping) else {}
        """Sign in front of a nick -> letter of its mode; the highest first. `PREFIX=`: the server
        has no ranks."""
        groups = features.get("chanmodes", _DEFAULT_CHANMODES)
        self.mode_groups = [*(() if groups is True else groups), "", "", "", ""][:4]
        """Mode letters by their parameter: lists, always, only when set, never."""
        mode = text("bot")
        self.bot_mode = mode if len(mode) == 1 and mode.isascii() else ""
        """User mode that marks a bot; empty: none."""
        self.bouncer_network = str(features.get("bouncer_netid", ""))
        """Id of the network that a bouncer (soju) connects us to; empty: not sent."""
        self.monitors = (
            max(1, number("monitor", _MAX_MONITORS, _MAX_MONITORS)) if "monitor" in features else 0
        )
        """Number of nicks that MONITOR may watch; 0: no MONITOR."""
        self.has_whox = "whox" in features
        draft = number("draft/chathistory", 0, _MAX_HISTORY_LINES)
        self.history_lines = number("chathistory", draft, _MAX_HISTORY_LINES)
        """Most lines of one CHATHISTORY answer; 0: not sent."""
        self.history_by_id = "msgid" in text("msgreftypes").split(",")
        """CHATHISTORY accepts message ids as references."""
        self.topic_bytes = number("topiclen", 0, 16_384)
        """Longest topic; 0: not sent.

        Counted as bytes, the stricter reading: servers do not say whether they count bytes or
        characters."""

    def fold(self, name: str) -> str:
        """Return a key that is equal for names that the server considers the same. Keeps the
        length.
        """
        folded = name.encode("utf-8", "surrogatepass").translate(self._casemap)
        return folded.decode("utf-8", "surrogatepass")

    def is_room(self, target: str) -> bool:
        return target.startswith(self._room_signs)

    def room_of(self, target: str) -> str | None:
        """Return the channel of a message to `target` (`#ops` for `@#ops`, whose rank signs
        restrict it: STATUSMSG); None: a person.
        """
        bare = target.lstrip(self._status_signs) if self._status_signs else target
        if bare.startswith(self._room_signs):
            return bare
        return target if target.startswith(self._room_signs) else None


_NOBODY: Final = NickMask("")
NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})


class IrcLine(NamedTuple):
    """One parsed line. `command` is upper case; numerics are three digits."""

    command: str
    params: tuple[str, ...] = ()
    source: NickMask = _NOBODY
    """Sender; `user` and `host` are None if the server left them out."""
    tags: Mapping[str, str] = NO_TAGS

    def param(self, index: int) -> str:
        """Return the parameter, or an empty text if the server left it out."""
        return self.params[index] if -len(self.params) <= index < len(self.params) else ""


def parse_line(raw: str) -> IrcLine | None:
    """Parse one line without its CR LF. None if there is no command in it."""
    rest = raw.strip("\r\n").replace("\x00", "")
    tags, source = NO_TAGS, _NOBODY
    if rest.startswith("@"):
        head, _, rest = rest[1:].partition(" ")
        tags = _parse_tags(head)
    rest = rest.lstrip(" ")
    if rest.startswith(":"):
        head, _, rest = rest[1:].partition(" ")
        source = NickMask(head if "!" in head else head.replace("@", "!@", 1))
    head, colon, trailing = rest.partition(" :")
    words = [word for word in head.split(" ") if word]
    if not words:
        return None
    params = (*words[1:], trailing) if colon else tuple(words[1:])
    return IrcLine(words[0].upper(), params, source, tags)


def _parse_tags(head: str) -> dict[str, str]:
    tags = {}
    for item in head.split(";"):
        if (
            len(item) - len(item.rstrip("\\"))
        ) % 2:  # a lone backslash at the end is dropped: the library keeps it
            item = item[:-1]  # noqa: PLW2901
        tag = Tag.parse(item)
        if tag["key"]:
            tags[tag["key"]] = tag["value"] or ""
    return tags


def format_line(command: str, *middles: str, trailing: str | None = None) -> str:
    """Build a line to send, without CR LF. Only logins use the library's commands.

    No parameter can end the line or become another one: CR and LF become a space in `trailing`, and
    are removed elsewhere with NUL; lone surrogates become `?`. Raises ValueError for a middle
    parameter that is empty, begins with a colon or holds a space.
    """
    parts = [command]
    for middle in middles:
        clean = re.sub(r"[\r\n\0]+", "", middle)
        if not clean or clean.startswith(":") or " " in clean:
            raise ValueError(f"not a parameter: {middle!r}")
        parts.append(clean)
    if trailing is not None:
        parts.append(":" + re.sub(r"[\r\n]+", " ", trailing))
    return " ".join(parts).replace("\0", "").encode("utf-8", "replace").decode()


_NICK_CHARACTERS = r"A-Za-z0-9_\[\]\\`^{}|\-"
"""RFC 2812 section 2.3.1: letters beyond ASCII are not included, so `你好reverie` and `reverieは`
mention us."""
_UNSPACED_SCRIPTS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
)
"""Letters of scripts that put no space (or, in Korean, a particle) between a name and the next
word."""
_WIDE_NICK_CHARACTERS = rf"[^\W{_UNSPACED_SCRIPTS}]|[\[\]\\`^{{}}|\-]"
"""Nick characters on servers that allow letters of any script."""
_TIME = r"\d{1,2}:\d\d(?::\d\d)?"
_QUOTED = re.compile(
    r"(?:[a-z][a-z0-9+.\-]*://|www\.)\S*|`+[^`\n]*`+|“[^”\n]*”|„[^“”\n]*[“”]|«[^»\n]*»|(?<![^\s(\[])([\"'])(?:(?!\1)[^\n])*\1(?![^\s.,;:!?)\]])"
    rf"|^[ \t]*(?:>[ \t]|\[{_TIME}\]|(?:{_TIME}[ \t]+)?<[@+%&~!]?[^\s<>]+>[ \t]).*",
    re.IGNORECASE | re.MULTILINE,
)
"""URLs, code, quotations, and pasted lines of a log: names in them are talked about."""


def mentions_nick(text: str, nick: str, isupport: Isupport) -> bool:
    """Return whether `nick` is a separate word in `text`, compared as the server compares nicks.

    Characters that nicks are made of on this server continue a word; so do a slash, an `@` of an
    address and a dot of a host name (`reverie.org` is no mention; `reverie.` at the end of a
    sentence is). Not mentioned is a name in a URL, in code, in quotes or in a pasted line of a log,
    a channel `#reverie`, and what is voted on with `reverie++`.
    """
    folded_nick = isupport.fold(nick)
    if not nick or folded_nick not in isupport.fold(text):
        return False  # most lines
    folded = isupport.fold(_QUOTED.sub(lambda found: " " * len(found[0]), text))
    word = re.escape(folded_nick)
    wide = isupport.has_wide_nicks or not nick.isascii()
    part = rf"(?:{_WIDE_NICK_CHARACTERS})" if wide else f"[{_NICK_CHARACTERS}]"
    before = rf"(?<!{part})(?<![/#])(?<!{part}[.@])"
    after = rf"(?!{part}|/|\+\+|[.@]{part})"
    return re.search(before + word + after, folded) is not None


_CODES: Final = (
    r"(?:[\x02\x0f\x11\x16\x1d-\x1f\u200b-\u200d\u2060\ufeff]"
    r"|\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?)*+"
)
"""Formatting (https://modern.ircdocs.horse/formatting) and characters of no width."""
_RELAYED: Final = re.compile(
    rf"{_CODES}(?:\[[^\[\]\s]{{1,40}}\]{_CODES}[ ]*+{_CODES})?"
    rf"<{_CODES}[@+%&~!]?([^<>\r\n]{{1,120}})>{_CODES}:?{_CODES}[ ]*+{_CODES}(.*)",
    re.DOTALL,
)


def split_relayed(text: str) -> tuple[str, str] | None:
    """Return the name, as it is written, and the words of a line by which a bridge passes on what
    somebody said.

    `<name> words`, also with a name like `name/platform`, `[platform]` in front, colours, and
    characters of no width. None: it has no such form.
    """
    found = _RELAYED.fullmatch(text)
    return None if found is None else (found[1], found[2])


_REMOVED = re.compile(
    r"\bkill(?:ed)?\b(?!.*collision)|\b[kgzdxq]-?lined?\b|\bbanned\b|\b(?:auto|a)kill(?:ed)?\b|\bdnsbl\b",
    re.IGNORECASE,
)


def classify_goodbye(text: str) -> Literal["flooded", "removed", ""]:
    """Return why a server closes, by the text of its ERROR, which no standard lays down.

    flooded: we sent too fast. removed: an operator or the network threw us off, or a ban did.
    Empty: anything else.
    """
    if re.search(r"excess flood|flooding|recvq", text, re.IGNORECASE):
        return "flooded"
    return "removed" if _REMOVED.search(text) else ""


# fmt: off
TARGET_REFUSALS: Final = frozenset({
    "401", "402", "403", "404", "405", "406", "408", "415", "416", "432", "437", "439", "442",
    "447", "461", "477", "480", "482", "486", "489", "492", "494", "531", "539", "716",
})
"""Numerics that refuse a message to the target they name; not 301 (away) and 717 (target
informed)."""
UNTARGETED_REFUSALS: Final = frozenset(["407", "411", "412", "413", "414", "417"])
"""Numerics that refuse a message and need not name its target."""
JOIN_REFUSALS: Final = frozenset({
    "403", "405", "407", "437", "448", "470", "471", "473", "474", "475", "476", "477", "479",
    "480", "485", "489", "495", "500", "520", "524", "926",
})
"""Numerics that refuse a JOIN to the room they name."""
# fmt: on
_NO_POSTING: Final = re.compile(r"\((?:403|404|442|477|482|486|489|531|716)\)\Z")
"""End of a reason for which nothing can be said to a room or person: gone, moderated, banned, wants
a mode."""
_CONTENT: Final = re.compile("block|censor|colou?r|contain|filter|spam|caps", re.IGNORECASE)
"""Words of a reason that is about what a message said: servers give 404 for it, too (InspIRCd's
filter, censor)."""
_TOO_FAST: Final = "(439)"
"""End of the reason after messages to too many targets: ERR_TARGETTOOFAST of ircu and hybrid."""
_TOO_FAST_S: Final = 120.0
_SECONDS: Final = re.compile(r"\b([0-9]{1,4}) *s(?:ec|econds?)?\b")
_UNKNOWN_COMMAND: Final = "421"
_FAIL_COMMANDS: Final = frozenset({"PRIVMSG", "NOTICE", "*"})


def is_refusal(line: IrcLine, command: str) -> bool:
    """Return whether the line may refuse a message of ours, or `command` (empty: none), or does not
    know that.
    """
    if line.command == "FAIL":
        refused = line.param(0).upper()
        return refused in _FAIL_COMMANDS or (refused == command != "")
    if line.command == _UNKNOWN_COMMAND:
        return line.param(1).upper() == command != ""
    return line.command in TARGET_REFUSALS or line.command in UNTARGETED_REFUSALS


def is_untargeted(line: IrcLine) -> bool:
    """Return whether the line need not name the target that it is about."""
    return line.command in UNTARGETED_REFUSALS or line.command in {"FAIL", _UNKNOWN_COMMAND}


def refusal_reason(line: IrcLine) -> str:
    """Return the reason, for people and logs."""
    text = line.param(-1) or "refused"
    code = " ".join(line.params[:2]) if line.command == "FAIL" else ""
    return f"{text[:300]} ({line.command}{' ' + code[:100] if code else ''})"


def is_posting_refused(reason: str) -> bool:
    """Return whether by a reason of `refusal_reason` nothing can be said to that room or person for
    now.
    """
    return _NO_POSTING.search(reason) is not None and _CONTENT.search(reason) is None


def refusal_error(reason: str) -> SendError:
    """Return the error to raise for a reason of `refusal_reason`."""
    if not reason.endswith(_TOO_FAST):
        return Rejected(reason)
    seconds = _SECONDS.search(reason)
    return RateLimited(reason, retry_after_s=float(seconds[1]) if seconds else _TOO_FAST_S)


# Bouncers speak for themselves on our connection: ZNC (https://wiki.znc.in), soju
# (https://soju.im) and bip. What their own nicks are told is a command line of theirs, so they are
# nobody to talk to. They stay connected to us while they have no connection to the network: then
# the link is down.
CAP_PREFIXES: Final = ("znc.in/", "soju.im/")
"""Beginnings of capabilities that only bouncers offer."""
NETWORK_CAPS: Final = frozenset({"soju.im/bouncer-networks", "soju.im/bouncer-networks-notify"})
"""https://codeberg.org/emersion/soju/src/branch/master/doc/ext/bouncer-networks.md: the state of
the network."""
_ZNC_HOST: Final = "znc.in"
_ZNC_SERVER: Final = "irc.znc.in"
_ZNC_STATUS_PREFIX: Final = "*"
"""ZNC's default StatusPrefix. No server allows it in a nick (RFC 2812 section 2.3.1)."""
BIP_NICK: Final = "-bip"  # no server allows such a nick either
_SERVICES: Final = frozenset({"bouncerserv", BIP_NICK})
"""Of soju and bip, in lower case."""
_BIP_HOSTS: Final = frozenset({"b.i.p", "bip.bip.bip"})
"""Hosts of what bip (https://bip.milkypond.org) says itself and plays back. It offers no
capabilities, and plays back without times."""
_NETWORK_LOST = re.compile(
    r"Disconnected from IRC|.*you are not connected to IRC|disconnected from |failed "
    r"connecting/registering to "
)
"""What ZNC's status and soju's service say once they have lost the network, and of messages that
went nowhere."""
_NETWORK_STATE = re.compile(r"(?:^|;)state=(?!connected)")


def is_bouncer_nick(nick: str) -> bool:
    """Return whether a nick is one of a bouncer itself, such as `*status`."""
    return nick.startswith(_ZNC_STATUS_PREFIX) or nick.lower() in _SERVICES


def is_from_bip(line: IrcLine) -> bool:
    """Return whether bip made a line, perhaps of an older one of the person that it names."""
    return line.source.host in _BIP_HOSTS


def is_from_bouncer(line: IrcLine) -> bool:
    """Return whether the bouncer itself says a line, in place of a person on the network."""
    return is_bouncer_nick(line.source.nick) or line.source.host == _ZNC_HOST


def is_welcome_without_network(line: IrcLine) -> bool:
    """Return whether ZNC welcomes us itself, as it does without a connection to the network, whose
    welcome follows.
    """
    return line.command == "001" and line.source == _ZNC_SERVER


def says_network_is_lost(line: IrcLine, network: str) -> bool:
    """Return whether the bouncer reports that it has no connection to the network with this id of
    soju's, or ZNC's.
    """
    if line.command == "BOUNCER":
        is_ours = line.param(0).upper() == "NETWORK" and bool(network) and line.param(1) == network
        return is_ours and _NETWORK_STATE.search(line.param(2)) is not None
    is_told = line.command in {"PRIVMSG", "NOTICE"} and is_bouncer_nick(line.source.nick)
    return is_told and _NETWORK_LOST.match(line.param(1)) is not None
