"""Logging in to a server, from the first line to the welcome. Pure: lines in, lines out.

https://ircv3.net/specs/extensions/capability-negotiation and https://modern.ircdocs.horse/#connection-registration.
Servers without CAP (421, or silence) are welcomed as they are, unless SASL was asked for.
"""

from dataclasses import dataclass

from channels.base import Denied, SendError, Unreachable
from channels.irc.caps import CapNegotiation
from channels.irc.config import IrcConfig, SaslConfig
from channels.irc.sasl import (
    ExternalMechanism,
    PlainMechanism,
    SaslError,
    SaslExchange,
    SaslMechanism,
    ScramSha256Mechanism,
)
from channels.irc.sts import StsCapability
from channels.irc.wire import IrcLine, format_line

_NICK_TAKEN = {"433", "436", "437"}
_SASL_FAILED = {"902", "904", "905", "906", "907", "908"}
_SASL_REFUSED = {"902", "904", "905"}
"""Of these: the services looked, and said no. The others are about the exchange itself."""
_MAX_REFUSALS = 3
_MAX_NICK_TRIES = 20
_MAX_DISALLOWED = 2
_MAX_LOGOUTS = 3
_REFUSAL_TEXTS = {"464": "the server password is refused", "465": "we are banned from this server"}


@dataclass(slots=True)
class LoginHistory:
    """What SASL has come to so far, over the connections of one run."""

    has_succeeded: bool = False
    """The configuration was right at least once: a failure may be the network's."""
    refused_count: int = 0
    """Connections in a row that the services refused since."""


class StsUpgrade(Exception):
    """The server wants to be spoken to over TLS, on `port`; nothing more may be said in the clear."""

    def __init__(self, port: int) -> None:
        super().__init__(f"the server asks for TLS on port {port} (sts)")
        self.port = port


class IrcRegistration:
    """One login. `feed` it every line; afterwards it goes on tracking CAP NEW and DEL, and our account."""

    def __init__(self, config: IrcConfig, nonce: str, logins: LoginHistory, *, secure: bool) -> None:
        """`logins` is kept up to date. `secure`: the connection is TLS already."""
        self._config = config
        self._nonce, self._logins, self._secure = nonce, logins, secure
        self._exchange = SaslExchange(_create_mechanism(config.sasl, nonce)) if config.sasl else None
        self._extra = frozenset({"sasl"}) if config.sasl else frozenset()
        self._caps = CapNegotiation()
        self._tries = self._disallowed = self._logouts = 0
        self.is_logged_in = False
        """SASL was configured and succeeded."""
        self.account = ""
        """Ours, as the services call it; empty: none."""
        self.nick = config.nick
        """Ours, once welcomed."""
        self.is_welcomed = False

    @property
    def caps(self) -> set[str]:
        """What the server agreed to."""
        return self._caps.enabled

    def offered_value(self, name: str) -> str | None:
        """The value that a capability was offered with; None: it is not offered."""
        return self._caps.offered.get(name)

    @property
    def is_logged_out(self) -> bool:
        """SASL is configured, and we are welcomed but not logged in at the moment."""
        return self.is_welcomed and self._exchange is not None and not self.is_logged_in

    def start(self) -> list[str]:
        """What to send first."""
        config = self._config
        username = config.username or "".join(c for c in config.nick if c.isascii() and c.isalnum()) or "reverie"
        realname = config.realname or config.contact or config.nick
        password = [format_line("PASS", trailing=config.password.get_secret_value())] if config.password else []
        user = format_line("USER", username.replace(" ", "_"), "0", "*", trailing=realname)
        return ["CAP LS 302", *password, format_line("NICK", config.nick), user]

    def feed(self, said: IrcLine) -> list[str]:
        """What to send in answer. Raises Denied if going on is pointless or would be unauthenticated.

        Raises Unreachable if only the services seem to be away: try again later. Raises Upgrade.
        """
        if said.command == "CAP":
            return self._handle_cap(said)
        if said.command in {"900", "901"}:
            self.account = said.param(2) if said.command == "900" else ""
            return self._handle_logged_out() if said.command == "901" and self.is_welcomed and self.is_logged_in else []
        if self._exchange and (not self.is_welcomed or self.is_logged_out):
            if said.command == "AUTHENTICATE":
                return self._authenticate(said)
            if said.command in _SASL_FAILED:
                raise self._refusal_error(said)
            if said.command == "903":
                return self._handle_logged_in()
        return [] if self.is_welcomed else self._feed_unwelcomed(said)

    def _feed_unwelcomed(self, said: IrcLine) -> list[str]:
        if said.command == "432":
            # Services say this of a nick that they hold for somebody (SVSHOLD of InspIRCd), and servers of one that
            # is too long with what we put behind it. So the nick is at fault if it was never called taken, either.
            self._disallowed += 1
            if self._disallowed == self._tries + 1 == _MAX_DISALLOWED:
                raise Denied(f"the server does not allow the nick {self._config.nick}: {said.param(-1)}")
        if said.command in _NICK_TAKEN or said.command == "432":
            return [format_line("NICK", self._next_nick())]
        if said.command in _REFUSAL_TEXTS:
            raise Denied(f"{_REFUSAL_TEXTS[said.command]}: {said.param(-1)}")
        return self._handle_welcome(said) if said.command == "001" else []

    def _next_nick(self) -> str:
        self._tries += 1
        if self._tries > _MAX_NICK_TRIES:
            raise Unreachable(f"{self._config.nick} and all names like it are taken")
        short = self._config.nick if self._tries < 6 else self._config.nick[:6]  # noqa: PLR2004 - NICKLEN 9, RFC 1459
        return short + "_" + (str(self._tries) if self._tries > 1 else "")

    def _handle_cap(self, said: IrcLine) -> list[str]:
        news, answers = self._caps.feed(said, self._extra)
        port = StsCapability.parse(self.offered_value("sts") or "").port
        if port and not self._secure and (news == "listed" or said.param(1).upper() == "NEW"):
            raise StsUpgrade(port)
        if self.is_welcomed:
            return answers or (self._caps.request(self._extra) if news == "listed" else [])
        return (
            self._finish_negotiation() if news == "settled" else self._request_caps() if news == "listed" else answers
        )

    def handle_silence(self) -> list[str]:
        """What to send when nothing has come for long: the server may have left a part of CAP out."""
        if self.is_welcomed or (self._exchange and "sasl" not in self.caps):
            return []  # without the login there is no going on
        news = self._caps.give_up()
        return self._finish_negotiation() if news == "settled" else self._request_caps() if news == "listed" else []

    def _request_caps(self) -> list[str]:
        self._check_mechanism()
        return self._caps.request(self._extra) or ["CAP END"]

    def _finish_negotiation(self) -> list[str]:
        """All requests are answered."""
        if not self._exchange:
            return ["CAP END"]
        if "sasl" not in self.caps:
            raise self._login_error("the server refused the sasl capability")
        return [format_line("AUTHENTICATE", self._exchange.mechanism.name)]

    def _check_mechanism(self) -> None:
        if self._exchange:
            mechanisms = (self.offered_value("sasl") or "").upper()
            name = self._exchange.mechanism.name
            if self.offered_value("sasl") is None or (mechanisms and name not in mechanisms.split(",")):
                raise self._login_error(f"the server does not offer SASL {name}; remove `sasl` or change it")

    def _authenticate(self, said: IrcLine) -> list[str]:
        if not self._exchange:
            return []
        try:
            return [format_line("AUTHENTICATE", chunk) for chunk in self._exchange.feed(said.param(0))]
        except SaslError as failed:
            raise Denied(f"SASL login failed: {failed}") from failed

    def _handle_logged_in(self) -> list[str]:
        mechanism = self._exchange.mechanism if self._exchange else None
        if isinstance(mechanism, ScramSha256Mechanism) and not mechanism.is_server_verified:
            raise Denied("SASL login failed: the server skipped its SCRAM proof")
        self.is_logged_in = True
        self._logins.has_succeeded, self._logins.refused_count = True, 0
        return [] if self.is_welcomed else ["CAP END"]

    def _handle_logged_out(self) -> list[str]:
        """The services have let go of us: log in again at once, or leave and come back."""
        self.is_logged_in = False
        self._logouts += 1
        if "sasl" not in self.caps or self._logouts > _MAX_LOGOUTS or self._config.sasl is None:
            raise Unreachable("the services logged us out")
        self._exchange = SaslExchange(_create_mechanism(self._config.sasl, f"{self._nonce}{self._logouts}"))
        return [format_line("AUTHENTICATE", self._exchange.mechanism.name)]

    def _refusal_error(self, said: IrcLine) -> SendError:
        reason = f"SASL login failed: {' '.join(said.params[1:])} ({said.command})"
        if said.command in _SASL_REFUSED and self._logins.has_succeeded:
            # Some servers answer 904 also while their services are away, so once or twice may be the network's
            # trouble. Again and again (the channel leaves a minute between two) is a password that was changed,
            # and asking for ever would look like guessing it.
            self._logins.refused_count += 1
            if self._logins.refused_count >= _MAX_REFUSALS:
                return Denied(f"{reason}; refused {_MAX_REFUSALS} times in a row")
        return self._login_error(reason)

    def _login_error(self, reason: str) -> SendError:
        """What was accepted before will be again, once the services are back; until then we stay away."""
        return Unreachable(reason) if self._logins.has_succeeded else Denied(reason)

    def _handle_welcome(self, said: IrcLine) -> list[str]:
        if self._exchange and not self.is_logged_in:
            raise self._login_error(
                "the server welcomed us without the SASL login that is configured (does it offer SASL?)"
            )
        self.is_welcomed = True
        if said.param(0) not in {"", "*"}:
            self.nick = said.param(0)
        return []


def _create_mechanism(sasl: SaslConfig, nonce: str) -> SaslMechanism:
    password = sasl.password.get_secret_value() if sasl.password else ""
    match sasl.mechanism:
        case "plain":
            return PlainMechanism(sasl.account, password)
        case "external":
            return ExternalMechanism(sasl.account)
        case "scram-sha-256":
            return ScramSha256Mechanism(sasl.account, password, nonce)
