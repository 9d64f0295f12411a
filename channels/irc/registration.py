"""Logging in to a server, from the first line to the welcome. Pure: lines in, lines out.

https://ircv3.net/specs/extensions/capability-negotiation and https://modern.ircdocs.horse/#connection-registration.
Servers without CAP (421, or silence) are welcomed as they are, unless SASL was asked for.

SASL mechanisms as conversations: challenge in, answer out. Pure.

https://ircv3.net/specs/extensions/sasl-3.1; PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix A,
SCRAM-SHA-256 RFC 5802 and RFC 7677.

Which abilities the server offers, and which of them are on. Pure.

https://ircv3.net/specs/extensions/capability-negotiation
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from channels.base import Denied, SendError, Unreachable
from channels.irc.config import IrcConfig, SaslConfig
from channels.irc.tls import StsCapability
from channels.irc.wire import IrcLine, format_line

WANTED_CAPS: Final = frozenset(
    {
        "account-notify",
        "account-tag",
        "away-notify",
        "batch",
        "chghost",
        "draft/chathistory",
        "draft/event-playback",
        "draft/message-redaction",
        "draft/multiline",
        "echo-message",
        "extended-monitor",
        "extended-join",
        "invite-notify",
        "labeled-response",
        "message-tags",
        "multi-prefix",
        "server-time",
        "setname",
        "standard-replies",
        "userhost-in-names",
    }
)
"""Capabilities whose effects are handled here. `sts` must never be requested."""
_NEEDS_BATCH: Final = frozenset({"draft/chathistory", "draft/event-playback", "draft/multiline", "labeled-response"})
_MAX_OFFERED: Final = 500
CapProgress = Literal["listed", "settled", ""]
"""The list is whole; all requests are answered; neither."""


class CapNegotiation:
    """Fed with every CAP line."""

    def __init__(self) -> None:
        self.offered: dict[str, str] = {}
        """Name -> value."""
        self.enabled: set[str] = set()
        self._requested: set[str] = set()
        self._one_by_one: list[str] = []
        """Of these, what is asked for one by one, in that order."""
        self._is_listed = False

    def request(self, extra: frozenset[str]) -> list[str]:
        """Ask for what is wanted, offered and not on; `extra` is wanted, too."""
        wanted = ((WANTED_CAPS | extra) & self.offered.keys()) - self.enabled - self._requested
        if "batch" not in self.offered:
            wanted -= _NEEDS_BATCH
        self._requested |= wanted
        return [format_line("CAP", "REQ", trailing=" ".join(sorted(wanted)))] if wanted else []

    def feed(self, said: IrcLine, extra: frozenset[str]) -> tuple[CapProgress, list[str]]:
        """What it means, and what to send in answer."""
        names = said.param(-1).split() if len(said.params) > 2 else []  # noqa: PLR2004 - target, subcommand, list
        match said.param(1).upper():
            case "LS" if not self._is_listed:
                self._add_offered(names)
                self._is_listed = not (said.param(2) == "*" and len(said.params) > 3)  # noqa: PLR2004 - one more: the `*`
                return ("listed" if self._is_listed else ""), []
            case "ACK":
                known = {name for name in names if name.lstrip("-~=") in WANTED_CAPS | extra}
                self.enabled -= {name[1:] for name in known if name.startswith("-")}
                self.enabled |= {name.lstrip("~=") for name in known if not name.startswith("-")}
                return self._resolve({name.lstrip("-~=") for name in known}), []
            case "NAK":
                return self._handle_nak(set(names))
            case "NEW":
                self._add_offered(names)
                return "", self.request(extra)
            case "DEL":
                gone = {name.partition("=")[0] for name in names}
                self.enabled -= gone
                self._requested -= gone
                self.offered = {name: value for name, value in self.offered.items() if name not in gone}
                return "", []
            case _:
                return "", []

    def give_up(self) -> CapProgress:
        """The server keeps us waiting: what it has not listed or answered by now does not count."""
        if not self._is_listed and self.offered:
            self._is_listed = True
            return "listed"
        return self._resolve(set(self._requested))

    def _handle_nak(self, names: set[str]) -> tuple[CapProgress, list[str]]:
        """A request is granted whole or not at all, so ask one by one: whatever the server says was wrong in it."""
        if not self._one_by_one and len(self._requested) > 1:
            self._one_by_one = sorted(self._requested)
            return "", [format_line("CAP", "REQ", trailing=name) for name in self._one_by_one]
        return self._resolve((self._requested & names) or set(self._one_by_one[:1] or self._requested)), []

    def _add_offered(self, names: list[str]) -> None:
        for name, _, value in (item.partition("=") for item in names):
            if name in self.offered or len(self.offered) < _MAX_OFFERED:
                self.offered[name] = value

    def _resolve(self, names: set[str]) -> CapProgress:
        waiting = bool(self._requested)
        self._requested -= names
        self._one_by_one = [name for name in self._one_by_one if name in self._requested]
        return "settled" if waiting and not self._requested else ""


_CHUNK_CHARS = 400
_MAX_ITERATIONS = 1_000_000
"""A server must not make us count for minutes; RFC 7677 asks for 4096 or more."""
_MAX_CHALLENGE_CHARS = 65_536


class SaslError(Exception):
    """The other side broke the mechanism's rules or is not who it says."""


class SaslMechanism(Protocol):
    """One login."""

    name: str

    def respond(self, challenge: bytes) -> bytes:
        """What to answer; the first challenge is empty. Raises Failed."""


class PlainMechanism:
    """Account and password, in the clear inside TLS.

    The account is the authorization identity, too, as https://ircv3.net/specs/extensions/sasl-3.1 shows it.
    """

    name = "PLAIN"

    def __init__(self, account: str, password: str) -> None:
        self._account, self._password = account, password

    def respond(self, challenge: bytes) -> bytes:  # noqa: ARG002 - PLAIN says the same to everything
        return f"{self._account}\0{self._account}\0{self._password}".encode()


class ExternalMechanism:
    """The TLS client certificate says it all."""

    name = "EXTERNAL"

    def __init__(self, account: str) -> None:
        self._account = account

    def respond(self, challenge: bytes) -> bytes:  # noqa: ARG002 - EXTERNAL says the same to everything
        return self._account.encode()


class ScramSha256Mechanism:
    """Proves the password without telling it, and checks that the server knows it too."""

    name = "SCRAM-SHA-256"

    def __init__(self, account: str, password: str, nonce: str) -> None:
        self._password = password.encode()
        self._nonce = nonce
        name = account.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={nonce}"
        self._signature = b""
        self._step = 0
        self.is_server_verified = False
        """The server proved that it knows the password, too."""

    def respond(self, challenge: bytes) -> bytes:
        self._step += 1
        if self._step == 1:
            return f"n,,{self._first}".encode()
        if self._step == 2:  # noqa: PLR2004 - RFC 5802 section 5 counts the same
            return self._client_final(challenge)
        # An error of section 7 is no proof. What it means for us, the numeric behind it says.
        return b"" if challenge.startswith(b"e=") else self._verify_server(challenge)

    def _client_final(self, challenge: bytes) -> bytes:
        try:
            fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
            nonce, salt, count = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
        except (ValueError, KeyError) as error:
            raise SaslError("the server's SCRAM challenge is malformed") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the server's SCRAM nonce does not continue ours")
        if not 1 <= count <= _MAX_ITERATIONS:
            raise SaslError("the server's SCRAM iteration count is unreasonable")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, count)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        whole = f"{self._first},{challenge.decode()},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), whole, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify_server(self, challenge: bytes) -> bytes:
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(challenge.split(b",", maxsplit=1)[0], expected):
            raise SaslError("the server does not know the password (SCRAM signature differs)")
        self.is_server_verified = True
        return b""


class SaslExchange:
    """One mechanism over AUTHENTICATE's base64 in chunks of 400."""

    def __init__(self, mechanism: SaslMechanism) -> None:
        self.mechanism = mechanism
        self._received = ""

    def feed(self, chunk: str) -> list[str]:
        """One parameter of AUTHENTICATE in; the parameters to answer out (none: more is to come). Raises Failed."""
        self._received += "" if chunk == "+" else chunk
        if len(self._received) > _MAX_CHALLENGE_CHARS:
            raise SaslError("the server's challenge never ends")
        if len(chunk) == _CHUNK_CHARS:
            return []
        encoded, self._received = self._received, ""
        try:
            challenge = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SaslError("the server's challenge is not base64") from error
        return encode_chunks(self.mechanism.respond(challenge))


def encode_chunks(payload: bytes) -> list[str]:
    """`payload` as AUTHENTICATE parameters; a last chunk of exactly 400, and nothing at all, end with `+`."""
    encoded = base64.b64encode(payload).decode()
    cut = [encoded[start : start + _CHUNK_CHARS] for start in range(0, len(encoded), _CHUNK_CHARS)]
    return cut if cut and len(cut[-1]) < _CHUNK_CHARS else [*cut, "+"]


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
