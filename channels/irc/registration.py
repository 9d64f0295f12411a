"""Login to a server, from its first line to the welcome. `CapNegotiation` and `SaslExchange` are
pure.

- `CapNegotiation`: https://ircv3.net/specs/extensions/capability-negotiation.
- SASL: https://ircv3.net/specs/extensions/sasl-3.1; PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix
  A, SCRAM-SHA-256 RFC 5802 and RFC 7677.
- `IrcRegistration`: https://modern.ircdocs.horse/#connection-registration.

Servers without CAP (421, or silence) are accepted as they are, unless SASL is configured.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from channels.base import Denied, SendError, Unreachable
from channels.irc.bouncer import CAP_PREFIXES, NETWORK_CAPS, is_welcome_without_network
from channels.irc.config import IrcConfig, SaslConfig
from channels.irc.connection import IrcConnection
from channels.irc.render import strip_formatting
from channels.irc.tls import sts_port
from channels.irc.wire import IrcLine, format_line

# fmt: off
WANTED_CAPS: Final = frozenset({
    "account-notify", "account-tag", "batch", "chghost", "draft/chathistory",
    "draft/event-playback", "draft/message-redaction", "draft/multiline", "echo-message",
    "extended-join", "extended-monitor", "labeled-response", "message-tags", "multi-prefix",
    "server-time", "standard-replies", "userhost-in-names",
    *NETWORK_CAPS,
})
# fmt: on
"""Capabilities that the adapter uses: of what others report (`setname`, `away-notify`,
`invite-notify`), nothing depends. `sts` must never be requested."""
_NEEDS_BATCH: Final = frozenset(
    {"draft/chathistory", "draft/event-playback", "draft/multiline", "labeled-response"}
)
_MAX_OFFERED: Final = 500
CapProgress = Literal["listed", "settled", ""]
"""listed: the list is complete; settled: all requests are answered; empty: neither."""


class CapNegotiation:
    """State of the capabilities; fed with every CAP line."""

    def __init__(self, *, sasl: bool = False) -> None:
        """Want `WANTED_CAPS`, and the capability `sasl` if asked."""
        self._wanted = WANTED_CAPS | {"sasl"} if sasl else WANTED_CAPS
        self.offered: dict[str, str] = {}
        """Name -> value."""
        self.enabled: set[str] = set()
        self._requested: set[str] = set()
        self._one_by_one: list[str] = []
        """Capabilities of `_requested` that are requested one by one, in order."""
        self._is_listed = False

    def request(self) -> list[list[str]]:
        """Return the request (its names) for wanted and offered capabilities that are not enabled,
        if there are any.
        """
        wanted = (self._wanted & self.offered.keys()) - self.enabled - self._requested
        if "batch" not in self.offered:
            wanted -= _NEEDS_BATCH
        self._requested |= wanted
        return [sorted(wanted)] if wanted else []

    def feed(self, line: IrcLine) -> tuple[CapProgress, list[list[str]]]:
        """Process a line; return the progress, and the requests to send."""
        names = line.param(-1).split() if len(line.params) > 2 else []  # noqa: PLR2004 - target, subcommand, list
        match line.param(1).upper():
            case "LS" if not self._is_listed:
                self._add_offered(names)
                self._is_listed = not (line.param(2) == "*" and len(line.params) > 3)  # noqa: PLR2004 - one more: the `*`
                return ("listed" if self._is_listed else ""), []
            case "ACK":
                acknowledged = {name for name in names if name.lstrip("-~=") in self._wanted}
                self.enabled -= {name[1:] for name in acknowledged if name.startswith("-")}
                self.enabled |= {
                    name.lstrip("~=") for name in acknowledged if not name.startswith("-")
                }
                return self._resolve({name.lstrip("-~=") for name in acknowledged}), []
            case "NAK":
                return self._handle_nak(set(names))
            case "NEW":
                self._add_offered(names)
                return "", self.request()
            case "DEL":
                gone = {name.partition("=")[0] for name in names}
                self.enabled -= gone
                self._requested -= gone
                self.offered = {
                    name: value for name, value in self.offered.items() if name not in gone
                }
                return "", []
            case _:
                return "", []

    def give_up(self) -> CapProgress:
        """Stop waiting for the server: capabilities not listed or answered by now do not count."""
        if not self._is_listed and self.offered:
            self._is_listed = True
            return "listed"
        return self._resolve(set(self._requested))

    def _handle_nak(self, names: set[str]) -> tuple[CapProgress, list[list[str]]]:
        """Request one by one: a request is granted whole or not at all, and the server may name any
        of it as wrong.
        """
        if not self._one_by_one and len(self._requested) > 1:
            self._one_by_one = sorted(self._requested)
            return "", [[name] for name in self._one_by_one]
        return self._resolve(
            (self._requested & names) or set(self._one_by_one[:1] or self._requested)
        ), []

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
"""Bounds the time that a server can make us compute; RFC 7677 asks for 4096 or more."""
_MAX_CHALLENGE_CHARS = 65_536


class SaslError(Exception):
    """The other side broke the mechanism's rules or failed to authenticate itself."""


class SaslExchange:
    """One login over AUTHENTICATE, in base64 chunks of 400 characters.

    `plain`: account and password, in plain text inside TLS; the account is also the authorization
    identity, as in https://ircv3.net/specs/extensions/sasl-3.1. `external`: the TLS client
    certificate. `scram-sha-256`: proof of the password without sending it; the server must prove
    that it knows it, too.
    """

    def __init__(self, config: SaslConfig, nonce: str) -> None:
        self.mechanism = config.mechanism.upper()
        self._account, self._password = (
            config.account,
            config.password.get_secret_value() if config.password else "",
        )
        self._nonce = nonce
        self._received = ""
        name = self._account.replace("=", "=3D").replace(",", "=2C")
        self._first, self._signature, self._step = f"n={name},r={nonce}", b"", 0
        self.is_server_proven = config.mechanism != "scram-sha-256"
        """The server proved that it knows the password, where the mechanism has it do so."""

    def feed(self, chunk: str) -> list[str]:
        """Process one AUTHENTICATE parameter; return the parameters to send (none: more chunks
        follow).

        Raises SaslError.
        """
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
        return encode_chunks(self.respond(challenge))

    def respond(self, challenge: bytes) -> bytes:
        """Return the response; the first challenge is empty. Raises SaslError."""
        if self.mechanism == "PLAIN":
            return f"{self._account}\0{self._account}\0{self._password}".encode()
        if self.mechanism == "EXTERNAL":
            return self._account.encode()
        self._step += 1
        if self._step == 1:
            return f"n,,{self._first}".encode()
        if self._step == 2:  # noqa: PLR2004 - RFC 5802 section 5 counts the same
            return self._client_final(challenge)
        # An error (RFC 5802 section 7) is no proof. The numeric that follows decides.
        if not challenge.startswith(b"e="):
            self._verify_server(challenge)
        return b""

    def _client_final(self, challenge: bytes) -> bytes:
        try:
            fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
            nonce, salt, count = (
                fields["r"],
                base64.b64decode(fields["s"], validate=True),
                int(fields["i"]),
            )
        except (ValueError, KeyError) as error:
            raise SaslError("the server's SCRAM challenge is malformed") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the server's SCRAM nonce does not continue ours")
        if not 1 <= count <= _MAX_ITERATIONS:
            raise SaslError("the server's SCRAM iteration count is unreasonable")
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, count)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        auth_message = f"{self._first},{challenge.decode()},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(
            hmac.digest(salted, b"Server Key", "sha256"), auth_message, "sha256"
        )
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify_server(self, challenge: bytes) -> None:
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(challenge.split(b",", maxsplit=1)[0], expected):
            raise SaslError("the server does not know the password (SCRAM signature differs)")
        self.is_server_proven = True


def encode_chunks(payload: bytes) -> list[str]:
    """Return `payload` as AUTHENTICATE parameters; a last chunk of exactly 400, and an empty
    payload, end with `+`.
    """
    encoded = base64.b64encode(payload).decode()
    cut = [encoded[start : start + _CHUNK_CHARS] for start in range(0, len(encoded), _CHUNK_CHARS)]
    return cut if cut and len(cut[-1]) < _CHUNK_CHARS else [*cut, "+"]


_NICK_TAKEN = {"433", "436", "437"}
_SASL_FAILED = {"902", "904", "905", "906", "907", "908"}
_SASL_REFUSED = {"902", "904", "905"}
"""Numerics of `_SASL_FAILED` that mean that the services refused the login. The others are about
the exchange itself.
"""
_MAX_REFUSALS = 3
LOGIN_REMEDY: Final = "; unless the services are just away, correct sasl.account or sasl.password"
_MAX_NICK_TRIES = 20
_MAX_DISALLOWED = 2
_MAX_LOGOUTS = 3
_REFUSAL_TEXTS = {"464": "the server password is refused", "465": "we are banned from this server"}


@dataclass(slots=True)
class LoginHistory:
    """SASL results over the connections of one run."""

    has_succeeded: bool = False
    """The configuration was valid at least once: a failure may be the network's."""
    refused_count: int = 0
    """Consecutive connections that the services refused since."""
    nickserv_refusal: str = ""
    """What NickServ said when it refused our password, which is then not sent again."""


_SERVICE_REFUSALS = re.compile(
    r"invalid|incorrect|wrong|unknown|denied|disabled|fail|syntax|(?:not|n't) (?:a )?regist|(?:may "
    r"not|cannot|can't) ",
    re.IGNORECASE,
)
_SERVICE_CONSENTS = re.compile(r"identified|recogni[sz]ed|accepted|logged in", re.IGNORECASE)
"""Answers of Atheme, Anope and ratbox-services to IDENTIFY; "identify" alone is in what they ask of
everybody."""
_NICK_KEPT = frozenset({"432", "433", "437"})


class NickServLogin:
    """Login by IDENTIFY, and recovery of the nick by REGAIN or GHOST. `start` and `feed` return the
    lines to send.

    The words of services are no protocol. So 900 (RPL_LOGGEDIN) counts where the server sends it,
    known words else, and the caller waits for `is_answered` for a limited time only.
    """

    def __init__(self, config: IrcConfig, logins: LoginHistory, fold: Callable[[str], str]) -> None:
        """Build it; `logins` is updated, and `fold` is how the server folds names."""
        self._config, self._nickserv, self._logins, self._fold = (
            config,
            config.nickserv,
            logins,
            fold,
        )
        self._step: Literal["recover", "identify", "done"] = "done"

    @property
    def is_answered(self) -> bool:
        """Nothing more is expected of the services."""
        return self._step == "done"

    def start(self, nick: str, account: str) -> list[str]:
        """Begin, once welcomed as `nick`; `account`: that of our login by SASL, or empty."""
        if self._nickserv is None:
            return []
        password = self._nickserv.password.get_secret_value() if self._nickserv.password else ""
        may_recover = account or (password and not self._logins.nickserv_refusal)
        if (
            self._fold(nick) == self._fold(self._config.nick)
            or self._nickserv.recover == "off"
            or not may_recover
        ):
            return self._identify(nick, account)
        self._step = "recover"
        return [
            self._message(
                self._nickserv.recover.upper(), self._config.nick, *filter(None, [password])
            )
        ]

    def feed(self, line: IrcLine, nick: str, account: str) -> list[str]:
        """Process a line, after which we are `nick`, and `account` to the services."""
        if self._nickserv is None:
            return []
        is_ours = self._fold(nick) == self._fold(self._config.nick)
        service = self._fold(self._nickserv.service.partition("@")[0])
        if line.command == "NICK" and is_ours and self._fold(line.param(0)) == self._fold(nick):
            return self._identify(nick, account)  # also when it became free later
        is_absent = line.command == "401" and self._fold(line.param(1).partition("@")[0]) == service
        if is_absent or (self._step == "identify" and account):
            self._step = "done"
        elif self._step == "recover" and line.command in _NICK_KEPT:
            return self._identify(nick, account)
        elif line.command == "NOTICE" and self._fold(line.source.nick) == service:
            return self._handle_notice(line.param(-1), nick, account)
        return []

    def _handle_notice(self, text: str, nick: str, account: str) -> list[str]:
        refused = _SERVICE_REFUSALS.search(text)
        if self._step == "recover":
            if refused:
                return self._identify(nick, account)
            ghost = self._nickserv is not None and self._nickserv.recover == "ghost"
            return [format_line("NICK", self._config.nick)] if ghost else []
        if self._step == "identify" and refused:
            self._logins.nickserv_refusal = strip_formatting(text)[:200]
            self._step = "done"
        elif self._step == "identify" and _SERVICE_CONSENTS.search(text):
            self._step = "done"
        return []

    def _identify(self, nick: str, account: str) -> list[str]:
        """Send IDENTIFY unless we are logged in; the account is named unless it is our nick."""
        self._step = "done"
        if (
            self._nickserv is None
            or self._nickserv.password is None
            or account
            or self._logins.nickserv_refusal
        ):
            return []
        self._step = "identify"
        name = self._nickserv.account or self._config.nick
        named = [] if self._fold(name) == self._fold(nick) else [name]
        return [self._message("IDENTIFY", *named, self._nickserv.password.get_secret_value())]

    def _message(self, *words: str) -> str:
        service = self._nickserv.service if self._nickserv else ""
        return format_line("PRIVMSG", service, trailing=" ".join(words))


class StsUpgrade(Exception):
    """The server demands TLS on `port`; nothing more may be sent in plain text."""

    def __init__(self, port: int) -> None:
        super().__init__(f"the server asks for TLS on port {port} (sts)")
        self.port = port


class IrcRegistration:
    """One login, begun by `IrcConnection.open`; `feed` it every line, and it answers by the
    connection's commands.

    After the welcome it goes on tracking CAP NEW and DEL, and our account.
    """

    def __init__(
        self, config: IrcConfig, connection: IrcConnection, logins: LoginHistory, *, secure: bool
    ) -> None:
        """Build it; `logins` is updated, and `secure` means that the connection is TLS already."""
        self._config, self._connection = config, connection
        self._logins, self._secure = logins, secure
        self._exchange = (
            SaslExchange(config.sasl, secrets.token_urlsafe(18)) if config.sasl else None
        )
        self._caps = CapNegotiation(sasl=config.sasl is not None)
        self._tries = self._disallowed = self._logouts = 0
        self._is_logged_in = False
        """SASL was configured and succeeded."""
        self.account = ""
        """Our services account; empty: none."""
        self.nick = config.nick
        """Our nick, valid once welcomed."""
        self.is_welcomed = False
        self.has_no_network = False
        """The bouncer that we are connected to has no connection to the network, so its welcome is
        awaited."""

    @property
    def is_bouncer(self) -> bool:
        """True if we are connected to a bouncer."""
        return any(name.startswith(CAP_PREFIXES) for name in self._caps.offered)

    @property
    def caps(self) -> set[str]:
        """Enabled capabilities."""
        return self._caps.enabled

    def offered_value(self, name: str) -> str | None:
        """Return the value that a capability was offered with; None: not offered."""
        return self._caps.offered.get(name)

    @property
    def is_logged_out(self) -> bool:
        """True if SASL is configured, and we are welcomed but not logged in at the moment."""
        return self.is_welcomed and self._exchange is not None and not self._is_logged_in

    def feed(self, line: IrcLine) -> None:
        """Process a line, and answer it.

        Raises Denied if going on is pointless or would be unauthenticated, Unreachable if only the
        services seem to be away (try again later), and StsUpgrade.
        """
        if line.command == "CAP":
            self._handle_cap(line)
        elif line.command == "900":
            self.account = line.param(2)
        elif line.command == "901":
            self.account = ""
            if self.is_welcomed and self._is_logged_in:
                self._log_in_again()
        elif self._exchange and (not self.is_welcomed or self.is_logged_out):
            self._feed_sasl(line, self._exchange)
        if not self.is_welcomed:
            self._feed_unwelcomed(line)

    def _feed_sasl(self, line: IrcLine, exchange: SaslExchange) -> None:
        if line.command == "AUTHENTICATE":
            try:
                chunks = exchange.feed(line.param(0))
            except SaslError as failed:
                self._connection.send_items("AUTHENTICATE", "*")  # ends the exchange
                raise Denied(f"SASL login failed: {failed}") from failed
            for chunk in chunks:
                self._connection.send_items("AUTHENTICATE", chunk)
        elif line.command in _SASL_FAILED:
            raise self._refusal_error(line)
        elif line.command == "903":
            if not exchange.is_server_proven:
                raise Denied("SASL login failed: the server skipped its SCRAM proof")
            self._is_logged_in = True
            self._logins.has_succeeded, self._logins.refused_count = True, 0
            if not self.is_welcomed:
                self._connection.cap("END")

    def _feed_unwelcomed(self, line: IrcLine) -> None:
        if line.command == "432":
            # Services send this for a nick that they reserve (SVSHOLD of InspIRCd), and servers for
            # a nick that our suffix makes too long. So the configured nick is invalid only if it
            # was never reported as taken.
            self._disallowed += 1
            if self._disallowed == self._tries + 1 == _MAX_DISALLOWED:
                raise Denied(
                    f"the server does not allow the nick {self._config.nick}: {line.param(-1)}"
                )
        if line.command in _NICK_TAKEN or line.command == "432":
            self._try_next_nick()
        elif line.command in _REFUSAL_TEXTS:
            raise Denied(f"{_REFUSAL_TEXTS[line.command]}: {line.param(-1)}")
        elif is_welcome_without_network(line):
            self.has_no_network = True
        elif line.command == "001":
            if self._exchange and not self._is_logged_in:
                raise self._login_error(
                    "the server welcomed us without the SASL login that is configured (does it "
                    "offer SASL?)"
                )
            self.is_welcomed = True
            if line.param(0) not in {"", "*"}:
                self.nick = line.param(0)

    def _try_next_nick(self) -> None:
        self._tries += 1
        if self._tries > _MAX_NICK_TRIES:
            raise Unreachable(f"{self._config.nick} and all names like it are taken")
        short = self._config.nick if self._tries < 6 else self._config.nick[:6]  # noqa: PLR2004 - NICKLEN 9, RFC 1459
        self._connection.nick(short + "_" + (str(self._tries) if self._tries > 1 else ""))

    def _handle_cap(self, line: IrcLine) -> None:
        progress, requests = self._caps.feed(line)
        port = sts_port(self.offered_value("sts") or "")
        if port and not self._secure and (progress == "listed" or line.param(1).upper() == "NEW"):
            raise StsUpgrade(port)
        for names in requests:
            self._connection.cap("REQ", *names)
        if not self.is_welcomed:
            self._negotiate(progress)
        elif progress == "listed":
            self._request_caps()

    def handle_silence(self) -> None:
        """Go on after a long silence: the server may have left a part of CAP out."""
        is_login_unfinished = (
            self._exchange is not None and "sasl" not in self.caps
        )  # it is mandatory
        if not self.is_welcomed and not is_login_unfinished:
            self._negotiate(self._caps.give_up())

    def _negotiate(self, progress: CapProgress) -> None:
        """Request the capabilities once they are listed; go on to the login once all requests are
        answered.
        """
        if progress == "listed" and not self._request_caps():
            progress = "settled"
        if progress == "settled" and self._exchange is None:
            self._connection.cap("END")
        elif progress == "settled" and self._exchange is not None:
            self._check_mechanism(self._exchange.mechanism)
            if "sasl" not in self.caps:
                raise self._login_error("the server refused the sasl capability")
            self._connection.send_items("AUTHENTICATE", self._exchange.mechanism)

    def _request_caps(self) -> bool:
        """Request the capabilities that are missing; return whether there were any."""
        requests = self._caps.request()
        for names in requests:
            self._connection.cap("REQ", *names)
        return bool(requests)

    def _check_mechanism(self, name: str) -> None:
        mechanisms = (self.offered_value("sasl") or "").upper()
        if self.offered_value("sasl") is None or (mechanisms and name not in mechanisms.split(",")):
            raise self._login_error(
                f"the server does not offer SASL {name}; remove `sasl` or change it"
            )

    def _log_in_again(self) -> None:
        """Log in again at once after the services ended our login, or raise Unreachable to
        reconnect.
        """
        self._is_logged_in = False
        self._logouts += 1
        if "sasl" not in self.caps or self._logouts > _MAX_LOGOUTS or self._config.sasl is None:
            raise Unreachable("the services logged us out")
        self._exchange = SaslExchange(self._config.sasl, secrets.token_urlsafe(18))
        self._connection.send_items("AUTHENTICATE", self._exchange.mechanism)

    def _refusal_error(self, line: IrcLine) -> SendError:
        reason = f"SASL login failed: {' '.join(line.params[1:])} ({line.command})"
        if line.command in _SASL_REFUSED and self._logins.has_succeeded:
            # Some servers answer 904 also while their services are away, so once or twice may be
            # the network's fault. More refusals (the channel waits a minute between two) mean a
            # changed password, and endless attempts would look like guessing.
            self._logins.refused_count += 1
            if self._logins.refused_count >= _MAX_REFUSALS:
                return Denied(
                    f"{reason}; refused {_MAX_REFUSALS} times in a row{LOGIN_REMEDY}", may_pass=True
                )
        return self._login_error(reason, LOGIN_REMEDY)

    def _login_error(self, reason: str, remedy: str = "") -> SendError:
        """Return Unreachable if the login worked before: it will again, once the services are back.
        Else Denied.

        That may pass, too: at a restart the services may be away, and then servers answer so or
        offer no SASL.
        """
        return (
            Unreachable(reason)
            if self._logins.has_succeeded
            else Denied(reason + remedy, may_pass=True)
        )
