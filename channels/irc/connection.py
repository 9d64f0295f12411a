"""Connection to a server, and its login.

`IrcConnection` is the `irc` library's (jaraco) transport, login lines and commands:
https://python-irc.readthedocs.io/en/latest/irc.html#module-irc.client_aio. What is ours here, and
why, is in docs/decisions/0054-use-the-irc-library-where-it-is-right.md: lines go to its owner
unparsed, no line closes the connection, and nothing is logged (a line may hold a password).

`IrcRegistration` is the login from the first line to the welcome
(https://modern.ircdocs.horse/#connection-registration):

- Capabilities: https://ircv3.net/specs/extensions/capability-negotiation.
- SASL: https://ircv3.net/specs/extensions/sasl-3.1; PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix
  A, SCRAM-SHA-256 RFC 5802 and RFC 7677. `SaslExchange` is pure.

Servers without CAP (421) are accepted as they are, unless SASL is configured.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

from irc.client_aio import AioConnection, AioReactor, IrcProtocol
from irc.connection import AioFactory
from jaraco.stream.buffer import LenientDecodingLineBuffer

from channels.base import Denied, Unreachable
from channels.irc.config import IrcConfig, SaslConfig, check_fingerprint
from channels.irc.state import IrcState
from channels.irc.wire import CAP_PREFIXES, NETWORK_CAPS, IrcLine, is_welcome_without_network
from gateway.core.proxy import ProxyFailed, find_proxy, through

logger = logging.getLogger("reverie.irc")
MAX_LINE_BYTES = 32_768
"""Tags may have 8191 bytes and a server may raise LINELEN; a longer line is dropped."""
_MAX_UNSENT_BYTES = 1_000_000
"""Our messages are paced, so only answers to PING can pile up: from a server that sends many and
reads nothing."""
_QUIT_TIMEOUT_S = 0.6
"""Real seconds that the server has to close after QUIT. The channel promises to end within one."""
_LINE_ENDS = re.compile(r"[\r\n]+")


class _BoundedLineBuffer(LenientDecodingLineBuffer):  # type: ignore[misc]  # jaraco.stream ships no types
    """The library's buffer (UTF-8, else latin-1, which cannot fail) without lines of any length."""

    buffer: bytes
    is_skipping = False

    def lines(self) -> Iterator[str]:
        for line in super().lines():
            if self.is_skipping or len(line) > MAX_LINE_BYTES:
                logger.warning("threw away a line of more than %d bytes", MAX_LINE_BYTES)
            else:
                yield line
            self.is_skipping = False
        if len(self.buffer) > MAX_LINE_BYTES:
            self.buffer, self.is_skipping = b"", True


class _ConnectionProtocol(IrcProtocol):  # type: ignore[misc]  # irc ships no types
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The library sets it only after data may have arrived.
        self.connection.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.connection.read_rest()
        self.connection.disconnect(str(exc) if exc else "the server closed the connection")


async def _connect_through(proxy: str, host: str, port: int) -> socket.socket:
    """Return a connection to this server through a proxy, which resolves its name. Raises
    ProxyFailed.
    """
    from python_socks import ProxyError  # noqa: PLC0415 - only where a proxy is used
    from python_socks.async_.asyncio import Proxy  # noqa: PLC0415 - the same

    try:
        return await Proxy.from_url(proxy.replace("socks5h:", "socks5:"), rdns=True).connect(
            host, port
        )
    except (ProxyError, OSError) as error:
        raise ProxyFailed(f"cannot connect{through(proxy)}: {error}") from None


class IrcConnection(AioConnection):  # type: ignore[misc]  # irc ships no types
    """One connection. `open` it; then use the library's commands (`nick`, `cap`, `send_items`,
    ...).
    """

    protocol_class = _ConnectionProtocol
    buffer_class = _BoundedLineBuffer
    transport: asyncio.Transport | None = None

    def __init__(self, on_line: Callable[[str], None], on_lost: Callable[[str], None]) -> None:
        """Hand each line to `on_line`, which may raise: that is logged; and the reason to
        `on_lost`, once, when the connection is lost.
        """
        # Capabilities are asked for first: without them a server may welcome us at once.
        super().__init__(
            AioReactor(on_connect=lambda *_: self.cap("LS", "302"), loop=asyncio.get_running_loop())
        )
        self._on_line, self._on_lost = on_line, on_lost
        self._closed = asyncio.Event()

    async def open(self, config: IrcConfig, port: int, tls: ssl.SSLContext | None) -> None:
        """Connect and begin the login: CAP LS, PASS, NICK, USER. Raises OSError (ssl.SSLError is
        one).

        A certificate without a configured fingerprint is refused before anything is sent.
        """
        username = "".join(c for c in config.nick if c.isascii() and c.isalnum()) or "reverie"
        # Without a limit, closing TLS waits 30 s for a server that does not answer.
        options: dict[str, Any] = {"ssl": tls} | (
            {"ssl_shutdown_timeout": _QUIT_TIMEOUT_S} if tls else {}
        )

        async def connect(
            protocol: asyncio.Protocol, address: tuple[str, int]
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            try:
                proxy = find_proxy(config.proxy, f"irc://{config.host}")
            except ValueError as error:
                raise ProxyFailed(str(error)) from None
            if proxy:
                connected = await _connect_through(proxy, *address)
                name = config.host if tls is not None else None
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: protocol, sock=connected, server_hostname=name, **options
                )
            else:
                transport, _ = await AioFactory(**options)(protocol, address)
            try:
                if tls is not None:
                    check_fingerprint(
                        config.tls,
                        transport.get_extra_info("ssl_object").getpeercert(binary_form=True),
                    )
            except ssl.SSLError:
                transport.abort()
                raise
            return transport, protocol

        await self.connect(
            config.host,
            port,
            config.nick,
            password=f":{config.password.get_secret_value()}"
            if config.password
            else None,  # it may have spaces
            username=username,
            ircname=config.contact or config.nick,
            connect_factory=connect,
        )

    def process_data(self, new_data: bytes) -> None:
        self.buffer.feed(new_data)
        for line in self.buffer:
            try:
                self._on_line(line)
            except Exception:
                # No line of a server, and no bug that it triggers, closes the connection.
                logger.exception("could not handle a line from %s; it is ignored", self.server)

    def read_rest(self) -> None:
        """Read what the server had said before a write failed: echoes, answers, and why it closed
        the connection.

        asyncio reads no more after a failed write. What has arrived under TLS cannot be read this
        way.
        """
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return
        with contextlib.suppress(OSError), self.transport.get_extra_info("socket").dup() as rest:
            while data := rest.recv(_MAX_UNSENT_BYTES):
                self.process_data(data)

    def send_raw(self, string: str) -> None:
        """Write one line of the library's commands. Nothing happens on a dead connection."""
        self.write(string)

    def write(self, raw: str) -> bool:
        """Write one line, whatever is in it. False: the connection is dead, and the line surely was
        not sent.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self._closed.is_set():
            return False
        line = _LINE_ENDS.sub(" ", raw).replace("\0", "")
        transport.write(line.encode("utf-8", "replace") + b"\r\n")
        if transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            # Later, not here: a caller of `write` does not expect the connection to be lost inside
            # the call.
            asyncio.get_running_loop().call_soon(
                self.disconnect, "the server does not read what we send"
            )
        return True

    def disconnect(self, message: str = "we hung up") -> None:
        """Close now, without QUIT, and tell the owner, once."""
        if self.transport is not None:
            self.transport.abort()
        if not self._closed.is_set():
            self._closed.set()
            self.connected = False
            self._on_lost(message)

    async def close_gracefully(self, message: str) -> None:
        """Send QUIT, let the server close, close after 0.6 s if it does not.

        In real seconds: a program must end also while a simulated clock stands still. Waiting
        matters: closing with unread input resets the connection, and the server may never read the
        QUIT.
        """
        try:
            if self.transport is not None and not self._closed.is_set():
                self.transport.resume_reading()
                self.quit(message)
                await asyncio.wait_for(self._closed.wait(), _QUIT_TIMEOUT_S)
        except TimeoutError:
            logger.debug("%s did not answer QUIT", self.server)
        finally:
            self.disconnect()


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
