"""Login to a server, from its first line to the welcome. `SaslExchange` is pure.

- Capabilities: https://ircv3.net/specs/extensions/capability-negotiation.
- SASL: https://ircv3.net/specs/extensions/sasl-3.1; PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix
  A, SCRAM-SHA-256 RFC 5802 and RFC 7677.
- `IrcRegistration`: https://modern.ircdocs.horse/#connection-registration.

Servers without CAP (421) are accepted as they are, unless SASL is configured.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from channels.base import Denied, Unreachable
from channels.irc.config import IrcConfig, SaslConfig
from channels.irc.connection import IrcConnection
from channels.irc.state import IrcState
from channels.irc.wire import (
    CAP_PREFIXES,
    NETWORK_CAPS,
    IrcLine,
    is_welcome_without_network,
)

# fmt: off
WANTED_CAPS: Final = frozenset({
    "account-notify", "account-tag", "batch", "chghost", "draft/chathistory",
    "draft/event-playback", "draft/message-redaction", "echo-message", "extended-join",
    "extended-monitor", "message-tags", "multi-prefix", "server-time", "standard-replies",
    "userhost-in-names",
    *NETWORK_CAPS,
})
# fmt: on
"""Capabilities that the adapter uses: of what others report (`setname`, `away-notify`,
`invite-notify`), nothing depends. `sts` must never be requested."""
_NEEDS_BATCH: Final = frozenset({"draft/chathistory", "draft/event-playback"})
_MAX_OFFERED: Final = 500
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


_NICK_REFUSED = {"432", "433", "436", "437"}
"""432 is also sent for a nick that services reserve (SVSHOLD of InspIRCd)."""
_SASL_FAILED = {"902", "904", "905", "906", "907", "908"}
LOGIN_REMEDY: Final = "; unless the services are just away, correct sasl.account or sasl.password"
_MAX_NICK_TRIES = 20
_REFUSAL_TEXTS = {"464": "the server password is refused", "465": "we are banned from this server"}


class IrcRegistration:
    """One login, begun by `IrcConnection.open`; `feed` it every line, and it answers by the
    connection's commands.

    After the welcome it goes on tracking CAP NEW and DEL, and our account.
    """

    def __init__(self, config: IrcConfig, connection: IrcConnection, state: IrcState) -> None:
        """Record our nick and account, and the capabilities, in `state`."""
        self._config, self._connection, self._state = config, connection, state
        self._exchange = (
            SaslExchange(config.sasl, secrets.token_urlsafe(18)) if config.sasl else None
        )
        self._wanted_caps = WANTED_CAPS | {"sasl"} if config.sasl else WANTED_CAPS
        self.offered_caps: dict[str, str] = {}
        self._requested_caps: set[str] = set()
        self._is_cap_listed = self._is_cap_refused = False
        self._tries = 0
        self._is_logged_in = False
        """SASL was configured and succeeded."""
        self.is_welcomed = False
        self.has_no_network = False
        """The bouncer that we are connected to has no connection to the network, so its welcome is
        awaited."""

    def feed(self, line: IrcLine) -> None:
        """Process a line, and answer it.

        Raises Denied if going on is pointless or would be unauthenticated, and Unreachable if
        another attempt is due at once. A failed login may pass: while services are away, servers
        refuse it, or offer no SASL.
        """
        if line.command == "CAP":
            self._handle_cap(line)
        elif line.command == "900":
            self._state.account = line.param(2)
        elif line.command == "901":
            self._state.account = ""
            if self.is_welcomed and self._exchange is not None:
                raise Unreachable("the services logged us out")
        if not self.is_welcomed:
            if self._exchange is not None:
                self._feed_sasl(line, self._exchange)
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
            reason = f"SASL login failed: {' '.join(line.params[1:])} ({line.command})"
            raise Denied(reason + LOGIN_REMEDY)
        elif line.command == "903":
            if not exchange.is_server_proven:
                raise Denied("SASL login failed: the server skipped its SCRAM proof")
            self._is_logged_in = True
            self._connection.cap("END")

    def _feed_unwelcomed(self, line: IrcLine) -> None:
        if line.command in _NICK_REFUSED:
            self._try_next_nick(line.param(-1))
        elif line.command in _REFUSAL_TEXTS:
            raise Denied(f"{_REFUSAL_TEXTS[line.command]}: {line.param(-1)}")
        elif is_welcome_without_network(line):
            self.has_no_network = True
        elif line.command == "001":
            if self._exchange and not self._is_logged_in:
                raise Denied(
                    "the server welcomed us without the SASL login that is configured (does it "
                    "offer SASL?)"
                )
            self.is_welcomed = True
            if line.param(0) not in {"", "*"}:
                self._state.set_nick(line.param(0))

    def _try_next_nick(self, refusal: str) -> None:
        self._tries += 1
        if self._tries > _MAX_NICK_TRIES:
            what = f"the server does not allow the nick {self._config.nick} and names like it"
            raise Denied(f"{what}: {refusal}")
        short = self._config.nick if self._tries < 6 else self._config.nick[:6]  # noqa: PLR2004 - NICKLEN 9, RFC 1459
        self._connection.nick(short + "_" + (str(self._tries) if self._tries > 1 else ""))

    def _handle_cap(self, line: IrcLine) -> None:  # noqa: C901 - one case per subcommand
        names = line.param(-1).split() if len(line.params) > 2 else []  # noqa: PLR2004 - target, subcommand, list
        requests: list[list[str]] = []
        is_settled = False
        match line.param(1).upper():
            case "LS" if not self._is_cap_listed:
                self._add_offered(names)
                self._is_cap_listed = not (line.param(2) == "*" and len(line.params) > 3)  # noqa: PLR2004 - one more: the `*`
                if self._is_cap_listed:
                    requests = self._missing_caps()
                    is_settled = not requests
            case "ACK":
                self._state.caps |= self._wanted_caps.intersection(names)
                is_settled = self._resolve(names)
            case "NAK" if not self._is_cap_refused:
                # A request is granted whole or not at all, so each is requested by itself now.
                self._is_cap_refused = True
                requests = [[name] for name in sorted(self._requested_caps)]
            case "NAK":
                is_settled = self._resolve(names)
            case "NEW":
                self._add_offered(names)
                requests = self._missing_caps()
            case "DEL":
                for name in (name.partition("=")[0] for name in names):
                    self._state.caps.discard(name)
                    self._requested_caps.discard(name)
                    self.offered_caps.pop(name, None)
        self._state.is_bouncer = any(name.startswith(CAP_PREFIXES) for name in self.offered_caps)
        for request in requests:
            self._connection.cap("REQ", *request)
        if is_settled and not self.is_welcomed:
            self._go_on()

    def _missing_caps(self) -> list[list[str]]:
        """Return the request (its names) for wanted and offered capabilities that are not enabled,
        if there are any.
        """
        missing = self._wanted_caps & self.offered_caps.keys()
        missing -= self._state.caps | self._requested_caps
        if "batch" not in self.offered_caps:
            missing -= _NEEDS_BATCH
        self._requested_caps |= missing
        return [sorted(missing)] if missing else []

    def _add_offered(self, names: list[str]) -> None:
        for name, _, value in (item.partition("=") for item in names):
            if name in self.offered_caps or len(self.offered_caps) < _MAX_OFFERED:
                self.offered_caps[name] = value

    def _resolve(self, names: list[str]) -> bool:
        """Return whether with these names all requests are answered."""
        waiting = bool(self._requested_caps)
        self._requested_caps.difference_update(names)
        return waiting and not self._requested_caps

    def _go_on(self) -> None:
        """Go on to the login, or the end of the registration: all requests are answered."""
        if self._exchange is None:
            self._connection.cap("END")
            return
        name, mechanisms = self._exchange.mechanism, self.offered_caps.get("sasl")
        if mechanisms is None or (mechanisms and name not in mechanisms.upper().split(",")):
            raise Denied(f"the server does not offer SASL {name}; remove `sasl` or change it")
        if "sasl" not in self._state.caps:
            raise Denied("the server refused the sasl capability")
        self._connection.send_items("AUTHENTICATE", name)
