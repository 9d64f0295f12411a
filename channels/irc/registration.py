"""Logging in to a server, from the first line to the welcome. Pure: lines in, lines out.

https://ircv3.net/specs/extensions/capability-negotiation and https://modern.ircdocs.horse/#connection-registration.
Servers without CAP (421, or silence) are welcomed as they are, unless SASL was asked for.
"""

from channels.base import Denied, SendError, Unreachable
from channels.irc.config import IrcConfig, Sasl
from channels.irc.sasl import Exchange, External, Failed, Mechanism, Plain, ScramSha256
from channels.irc.wire import Line, line

WANTED = frozenset(
    {
        "account-notify",
        "account-tag",
        "batch",
        "chghost",
        "echo-message",
        "extended-join",
        "message-tags",
        "multi-prefix",
        "server-time",
        "setname",
        "userhost-in-names",
    }
)
"""Capabilities whose effects are handled here. `sts` must never be requested."""
_NICK_TAKEN = {"433", "436", "437"}
_SASL_FAILED = {"902", "904", "905", "906", "907", "908"}
_REFUSED = {"464": "the server password is refused", "465": "we are banned from this server"}


class Registration:
    """One login. `feed` it every line; afterwards it goes on tracking CAP NEW and DEL."""

    def __init__(self, config: IrcConfig, nonce: str, *, logged_in_before: bool = False) -> None:
        """`logged_in_before`: SASL with this configuration succeeded on an earlier connection of this run."""
        self._config = config
        self._logged_in_before = logged_in_before
        self._exchange = Exchange(_mechanism(config.sasl, nonce)) if config.sasl else None
        self._offered: dict[str, str] = {}
        self._asked: set[str] = set()
        self._tries = 0
        self.logged_in = False
        """SASL was configured and succeeded."""
        self.caps: set[str] = set()
        """What the server agreed to."""
        self.nick = config.nick
        """Ours, once welcomed."""
        self.welcomed = False

    def start(self) -> list[str]:
        """What to send first."""
        config = self._config
        username = config.username or "".join(c for c in config.nick if c.isascii() and c.isalnum()) or "reverie"
        realname = config.realname or config.contact or config.nick
        password = [line("PASS", trailing=config.password.get_secret_value())] if config.password else []
        user = line("USER", username.replace(" ", "_"), "0", "*", trailing=realname)
        return ["CAP LS 302", *password, line("NICK", config.nick), user]

    def feed(self, said: Line) -> list[str]:
        """What to send in answer. Raises Denied if going on is pointless or would be unauthenticated.

        Raises Unreachable if only the services seem to be away: try again later.
        """
        if said.command == "CAP":
            return self._cap(said)
        if self.welcomed:
            return []
        if said.command == "AUTHENTICATE":
            return self._authenticate(said)
        if said.command in _NICK_TAKEN:
            return [line("NICK", self._next_nick())]
        if said.command == "432" and not self._tries:
            raise Denied(f"the server does not allow the nick {self._config.nick}: {said.param(-1)}")
        if said.command in _REFUSED:
            raise Denied(f"{_REFUSED[said.command]}: {said.param(-1)}")
        if said.command in _SASL_FAILED and self._exchange:
            told = " ".join(said.params[1:])
            raise self._no_login(f"SASL login failed: {told} ({said.command})")
        if said.command == "903" and self._exchange:
            return self._logged_in()
        if said.command == "001":
            return self._welcome(said)
        return []

    def _next_nick(self) -> str:
        self._tries += 1
        short = self._config.nick if self._tries < 6 else self._config.nick[:6]  # noqa: PLR2004 - NICKLEN 9, RFC 1459
        return short + "_" + (str(self._tries) if self._tries > 1 else "")

    def _cap(self, said: Line) -> list[str]:
        names = said.param(-1).split() if len(said.params) > 2 else []  # noqa: PLR2004 - target, subcommand, list
        match said.param(1).upper():
            case "LS" if not self.welcomed:
                self._offered.update({name.partition("=")[0]: name.partition("=")[2] for name in names})
                return [] if said.param(2) == "*" and len(said.params) > 3 else self._request()  # noqa: PLR2004
            case "ACK":
                for name in names:
                    (self.caps.discard if name.startswith("-") else self.caps.add)(name.lstrip("-~="))
                return self._answered({name.lstrip("-~=") for name in names})
            case "NAK":
                refused = self._asked & set(names) or set(self._asked)
                if len(refused) == 1:
                    return self._answered(refused)
                # A request is granted whole or not at all: ask one by one.
                return [line("CAP", "REQ", trailing=name) for name in sorted(refused)]
            case "NEW":
                new = sorted(WANTED & {name.partition("=")[0] for name in names} - self.caps)
                return [line("CAP", "REQ", trailing=" ".join(new))] if new else []
            case "DEL":
                self.caps -= set(names)
                return []
            case _:
                return []

    def _request(self) -> list[str]:
        wanted = WANTED & self._offered.keys()
        if self._exchange:
            mechanisms = self._offered.get("sasl", "").upper()
            if "sasl" not in self._offered or (
                mechanisms and self._exchange.mechanism.name not in mechanisms.split(",")
            ):
                raise self._no_login(
                    f"the server does not offer SASL {self._exchange.mechanism.name}; remove `sasl` or change it"
                )
            wanted |= {"sasl"}
        if not wanted:
            return ["CAP END"]
        self._asked = set(wanted)
        return [line("CAP", "REQ", trailing=" ".join(sorted(wanted)))]

    def _answered(self, names: set[str]) -> list[str]:
        waiting = bool(self._asked)
        self._asked -= names
        if self.welcomed or not waiting or self._asked:
            return []
        if not self._exchange:
            return ["CAP END"]
        if "sasl" not in self.caps:
            raise self._no_login("the server refused the sasl capability")
        return [line("AUTHENTICATE", self._exchange.mechanism.name)]

    def _authenticate(self, said: Line) -> list[str]:
        if not self._exchange:
            return []
        try:
            return [line("AUTHENTICATE", chunk) for chunk in self._exchange.feed(said.param(0))]
        except Failed as failed:
            raise Denied(f"SASL login failed: {failed}") from failed

    def _logged_in(self) -> list[str]:
        mechanism = self._exchange.mechanism if self._exchange else None
        if isinstance(mechanism, ScramSha256) and not mechanism.proven:
            raise Denied("SASL login failed: the server skipped its SCRAM proof")
        self.logged_in = True
        return ["CAP END"]

    def _no_login(self, reason: str) -> SendError:
        """What was accepted before will be again, once the services are back; until then we stay away."""
        return Unreachable(reason) if self._logged_in_before else Denied(reason)

    def _welcome(self, said: Line) -> list[str]:
        if self._exchange and not self.logged_in:
            raise self._no_login(
                "the server welcomed us without the SASL login that is configured (does it offer SASL?)"
            )
        self.welcomed = True
        if said.param(0) not in {"", "*"}:
            self.nick = said.param(0)
        return []


def _mechanism(sasl: Sasl, nonce: str) -> Mechanism:
    password = sasl.password.get_secret_value() if sasl.password else ""
    match sasl.mechanism:
        case "plain":
            return Plain(sasl.account, password)
        case "external":
            return External(sasl.account)
        case "scram-sha-256":
            return ScramSha256(sasl.account, password, nonce)
