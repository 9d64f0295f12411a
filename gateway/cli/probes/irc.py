"""Probe of an IRC network: login as configured, without joining rooms or sending messages.

Codes: `irc.tls`, `irc.sts`, `irc.password`, `irc.banned`, `irc.nick`, `irc.sasl`, `irc.network`, `irc.login`,
`irc.rooms`, and those of `probes.base`. https://modern.ircdocs.horse/#connection-registration

Rooms are checked by their modes, which most servers send to everybody
(https://modern.ircdocs.horse/#rplchannelmodeis-324, https://modern.ircdocs.horse/#errnosuchchannel-403).
"""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from channels.base import Denied, SendError
from channels.irc.config import IrcConfig, TlsConfig
from channels.irc.registration import IrcRegistration, LoginHistory, StsUpgrade
from channels.irc.wire import IrcLine, format_line, parse_line
from gateway.cli.probes.base import PROBE_TIMEOUT_S, Finding, FindingCollector, explain_connection_error, probe_net

if TYPE_CHECKING:
    from channels.irc.connection import IrcConnection

MAX_ROOMS: Final = 10
"""Most rooms that are queried."""
_END_OF_REPLIES: Final = "rooms-are-asked"


class IrcRoomProbe:
    """Queries the modes of rooms and collects the replies. Pure."""

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = list(rooms)[:MAX_ROOMS]
        self._modes: dict[str, str] = {}
        self._missing: set[str] = set()

    def build_queries(self) -> list[str]:
        """Return the lines of the query; empty without rooms."""
        if not self._rooms:
            return []
        return [*(format_line("MODE", room) for room in self._rooms), format_line("PING", _END_OF_REPLIES)]

    def feed(self, line: IrcLine) -> bool:
        """Process a line of the server. Return whether it was the last reply."""
        if line.command == "324":
            self._modes[line.param(1).lower()] = line.param(2)
        elif line.command in ("401", "403"):  # ngIRCd answers 401, no such nick or channel
            self._missing.add(line.param(1).lower())
        return line.command == "PONG" and line.param(-1) == _END_OF_REPLIES

    def report(self, found: FindingCollector) -> None:
        """Add a finding for each room. A room without a reply gets none: the server may conceal it."""
        for room in self._rooms:
            modes = self._modes.get(room.lower())
            if room.lower() in self._missing:
                what = f"there is no room {room}, or it hides: whoever joins makes it, and is alone there"
                found.warn("irc.rooms", what, "look at its name, or make the room before the bot joins")
            elif modes is not None and "i" in modes.partition("-")[0]:
                fix = "have an operator there invite the bot, or put it on the list of who may come (+I)"
                found.warn("irc.rooms", f"{room} lets in only who is invited (+i)", fix)
            elif modes is not None and "k" in modes.partition("-")[0]:
                what = f"{room} asks for a key (+k), which the bot does not have"
                found.warn("irc.rooms", what, "have an operator there take the key away, or invite the bot")
            elif modes is not None:
                found.ok("irc.rooms", f"{room} is there")


_LOGIN_PATIENCE_S: Final = 4.0
"""Seconds after which unanswered steps of the login are given up."""
_ROOM_REPLIES_S: Final = 2.0
"""Seconds for the replies about rooms: some servers send none."""
_LOOPBACK_PREFIXES = ("127.", "localhost", "::1")
_NICK_ERRORS = {"433": "taken", "436": "taken", "437": "held by the services", "432": "not allowed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcProbeResult:
    """Findings, and what is known about the network."""

    findings: list[Finding] = field(default_factory=list)
    network: str = ""
    """Its own name. Empty: not stated, or the login failed."""
    nick: str = ""
    """Nick after the welcome. Empty: the login failed."""
    account: str = ""
    """Services account that we are logged in to. Empty: none."""
    mechanisms: tuple[str, ...] | None = None
    """Offered SASL mechanisms; empty: SASL without a list. None: no SASL."""


async def probe_irc(config: IrcConfig, *, where: str = "") -> IrcProbeResult:
    """Connect, log in and quit. Takes 10 s at most; raises nothing but CancelledError."""
    from channels.irc.tls import create_ssl_context  # noqa: PLC0415 - with the library

    configured = [config.password, config.sasl.password if config.sasl else None]
    found = FindingCollector(where, [secret.get_secret_value() for secret in configured if secret])
    try:
        tls = create_ssl_context(config.tls)
    except Denied as denied:
        found.bad("irc.tls", denied.reason, "correct the names of the files under tls")
        return IrcProbeResult(findings=found.findings)
    session = _IrcProbeSession(config, found, secure=tls is not None)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await _run_session(config, session, tls)
    except TimeoutError:
        problem = explain_connection_error(TimeoutError(), config.host, config.port)
        if session.has_spoken:
            found.bad("irc.login", f"{config.host} did not let us in within {PROBE_TIMEOUT_S:.0f} s", "try again later")
        else:
            found.bad(
                problem.code, problem.what, "look at the port, and whether it takes TLS (6697 does, 6667 does not)"
            )
    except (OSError, UnicodeError) as error:
        ca_key = f"channels.{where}.tls.ca_file" if where else "tls: {ca_file: FILE}"
        if isinstance(error, OSError) and error.errno is not None and not str(error).startswith("[SSL"):
            # asyncio merges the errors of several addresses into one: probe again for the exact one.
            found.findings += await probe_net(config.host, config.port, tls=tls or False, where=where, ca_key=ca_key)
        if not found.has_failed:
            problem = explain_connection_error(error, config.host, config.port, ca_key=ca_key)
            found.bad(problem.code, problem.what, problem.fix)
    _warn_unwise(config, session, found)
    return session.build_result()


async def _run_session(config: IrcConfig, session: "_IrcProbeSession", tls: object) -> None:
    """Run the session until everything is known or it failed. Raises OSError."""
    from channels.irc.connection import IrcConnection  # noqa: PLC0415 - takes a fifth of a second

    session.connection = connection = IrcConnection(session)
    try:
        await connection.open(config.host, config.port, tls)  # type: ignore[arg-type] # `context`'s own
        session.start()
        await session.wait(_LOGIN_PATIENCE_S)
    finally:
        session.stop()
        await connection.close_gracefully(format_line("QUIT", trailing="just looking"))


class _IrcProbeSession:
    """State of one login."""

    def __init__(self, config: IrcConfig, found: FindingCollector, *, secure: bool) -> None:
        self._config, self._found = config, found
        self._login = IrcRegistration(config, secrets.token_urlsafe(18), LoginHistory(), secure=secure)
        self._done = asyncio.Event()
        self._room_probe = IrcRoomProbe(config.rooms)
        self._last_words = self._network = ""
        self._nick_refusal: tuple[str, str] | None = None
        """Numeric and text of the first refusal of our nick."""
        self.has_spoken = False
        """True once the server has sent a line of IRC."""
        self.connection: IrcConnection | None = None

    def write(self, raw: str) -> None:
        """Write a line."""
        if self.connection is not None:
            self.connection.send_raw(raw)

    def start(self) -> None:
        """Send the first lines."""
        for raw in self._login.start():
            self.write(raw)

    async def wait(self, hurry_s: float) -> None:
        """Wait until everything is known. After `hurry_s` seconds unanswered steps of the login are given up."""
        try:
            await asyncio.wait_for(self._done.wait(), hurry_s)
        except TimeoutError:
            for raw in self._login.handle_silence():
                self.write(raw)
            await self._done.wait()

    def on_line(self, raw: str) -> None:
        """Process a line of the server."""
        line = parse_line(raw)
        if line is None or self._done.is_set():
            return
        self.has_spoken = True
        if line.command in _NICK_ERRORS and not self._login.is_welcomed and self._nick_refusal is None:
            self._nick_refusal = (line.command, line.param(-1))
        try:
            for answer in self._login.feed(line):
                self.write(answer)
        except StsUpgrade as upgrade:
            what = f"{self._config.host} wants to be spoken to over TLS on port {upgrade.port}"
            self._fail("irc.sts", what, f"write port: {upgrade.port} and tls: true", warning=True)
        except SendError as error:
            self._fail(*_explain_refusal(error.reason, self._config))
        else:
            self._handle(line)

    def _handle(self, line: IrcLine) -> None:
        match line.command:
            case "PING":
                self.write(format_line("PONG", trailing=line.param(-1)))
            case "ERROR":
                self._last_words = line.param(-1)
            case "005":
                tokens = dict(token.partition("=")[::2] for token in line.params[1:-1])
                self._network = self._found.clean(tokens.get("NETWORK", ""))[:60] or self._network
            case "376" | "422":
                asking = self._room_probe.build_queries()
                for raw in asking:
                    self.write(raw)
                if asking:
                    asyncio.get_running_loop().call_later(_ROOM_REPLIES_S, self._done.set)
                else:
                    self._done.set()
            case _ if self._room_probe.feed(line):
                self._done.set()

    def mark_lost(self, reason: str) -> None:
        """Process the end of the connection."""
        if self._done.is_set():
            return
        if not self._login.is_welcomed:
            words = f"{reason}: {self._last_words}" if self._last_words else reason
            fix = (
                "look at the port, and whether it takes TLS" if not self.has_spoken else "ask the network, or try later"
            )
            self._fail("irc.login", f"{self._config.host} did not let us in: {words}", fix)
        self._done.set()

    def stop(self) -> None:
        """Ignore further lines."""
        self._done.set()

    def _fail(self, code: str, what: str, fix: str, *, warning: bool = False) -> None:
        (self._found.warn if warning else self._found.bad)(code, what, fix)
        self._done.set()

    def build_result(self) -> IrcProbeResult:
        """Return what is known; add the findings of a successful login."""
        login, found, config = self._login, self._found, self._config
        offered = login.offered_value("sasl")
        mechanisms = None if offered is None else tuple(one for one in offered.upper().split(",") if one)
        if login.is_welcomed:
            name = f" ({self._network})" if self._network else ""
            found.ok("irc.network", f"{config.host}{name} lets us in")
            self._judge_nick()
            self._room_probe.report(found)
            if login.account:
                found.ok("irc.sasl", f"the services know us as {login.account}")
            elif mechanisms is not None:
                what = "not logged in to the network's services, so anybody may take the nick while the bot is away"
                found.warn("irc.sasl", what, "register the nick with the services, and write sasl")
        nick = login.nick if login.is_welcomed else ""
        return IrcProbeResult(
            findings=found.findings, network=self._network, nick=nick, account=login.account, mechanisms=mechanisms
        )

    def _judge_nick(self) -> None:
        login, config = self._login, self._config
        if self._nick_refusal is None:
            self._found.ok("irc.nick", f"the nick {login.nick} is free")
            return
        numeric, words = self._nick_refusal
        what = f"the nick {config.nick} is {_NICK_ERRORS[numeric]} ({words}); it would be {login.nick}"
        fix = "choose another nick, or wait until it is free: the bot takes it back then"
        self._found.warn("irc.nick", what, fix)


def _explain_refusal(reason: str, config: IrcConfig) -> tuple[str, str, str]:
    """Return code, text and remedy for a refused login."""
    if "does not offer SASL" in reason or "without the SASL login" in reason or "sasl capability" in reason:
        return "irc.sasl", reason, "choose another mechanism, or leave sasl out"
    if reason.startswith("SASL"):
        account = config.sasl.account if config.sasl else ""
        fix = f"correct the account's name ({account}) or its password; it is the services', not the server's"
        return "irc.sasl", reason, fix
    if "password" in reason:
        return "irc.password", reason, "correct the server's password (not that of the services, which is under sasl)"
    if "banned" in reason:
        return "irc.banned", reason, "ask the network's staff"
    if "nick" in reason or "names like it" in reason:
        return "irc.nick", reason, "choose another nick"
    return "irc.login", reason, "try again later, or ask the network"


def _warn_unwise(config: IrcConfig, session: _IrcProbeSession, found: FindingCollector) -> None:
    """Add warnings on settings that work but are unwise."""
    local = config.host.startswith(_LOOPBACK_PREFIXES)
    if not session.has_spoken:
        return
    if config.tls is False and not local:
        what = "everything, passwords too, goes over the network in the clear"
        found.warn("irc.tls", what, "write tls: true, and the port for it (mostly 6697)")
    elif isinstance(config.tls, TlsConfig) and not config.tls.verify:
        found.warn("irc.tls", "any certificate is accepted, so anybody on the way can listen", "take verify: false out")
    elif config.tls is not False:
        found.ok("irc.tls", "the certificate is good")
