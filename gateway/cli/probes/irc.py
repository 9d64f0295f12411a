"""Whether an IRC network lets us in as the configuration says; nothing is joined and nobody is spoken to.

Codes: `irc.tls`, `irc.sts`, `irc.password`, `irc.banned`, `irc.nick`, `irc.sasl`, `irc.network`, `irc.login`,
`irc.rooms`, and those of `probes.net`. https://modern.ircdocs.horse/#connection-registration

What can be told of IRC rooms without going into them: a server says the modes of most to whoever asks. Pure.

Numerics: https://modern.ircdocs.horse/#rplchannelmodeis-324, https://modern.ircdocs.horse/#errnosuchchannel-403
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from channels.base import Denied, SendError
from channels.irc.config import IrcConfig, TlsConfig
from channels.irc.registration import IrcRegistration, LoginHistory, StsUpgrade
from channels.irc.wire import IrcLine, format_line, parse_line
from gateway.cli.probes.base import PROBE_TIMEOUT_S, Finding, FindingCollector, explain_connection_error, probe_net

MAX_ROOMS: Final = 10
"""Rooms that are asked about."""
_END_OF_REPLIES: Final = "rooms-are-asked"


class IrcRoomProbe:
    """Asks about each, and follows what the server says."""

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = list(rooms)[:MAX_ROOMS]
        self._modes: dict[str, str] = {}
        self._missing: set[str] = set()

    def build_queries(self) -> list[str]:
        """The lines that ask; none, where there is nothing to ask about."""
        if not self._rooms:
            return []
        return [*(format_line("MODE", room) for room in self._rooms), format_line("PING", _END_OF_REPLIES)]

    def feed(self, said: IrcLine) -> bool:
        """Take in a line of the server's; whether it was the last one that answers."""
        if said.command == "324":
            self._modes[said.param(1).lower()] = said.param(2)
        elif said.command in ("401", "403"):  # ngIRCd says that there is no such nick or channel
            self._missing.add(said.param(1).lower())
        return said.command == "PONG" and said.param(-1) == _END_OF_REPLIES

    def report(self, found: FindingCollector) -> None:
        """Of rooms that the server says nothing of nothing is told: it may keep them to itself."""
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
"""What has been asked by then and not answered, is not waited for."""
_ROOM_REPLIES_S: Final = 2.0
"""For what a server says of rooms: some say nothing."""
_LOOPBACK_PREFIXES = ("127.", "localhost", "::1")
_NICK_ERRORS = {"433": "taken", "436": "taken", "437": "held by the services", "432": "not allowed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcProbeResult:
    """What was found, and how the network is."""

    findings: list[Finding] = field(default_factory=list)
    network: str = ""
    """As it calls itself. Empty: it does not say, or we were not let in."""
    nick: str = ""
    """Under which we were welcomed. Empty: we were not."""
    account: str = ""
    """Of the services, that we were logged in to. Empty: none."""
    mechanisms: tuple[str, ...] | None = None
    """Offered for SASL; empty: SASL, without saying how. None: no SASL."""


async def probe_irc(config: IrcConfig, *, where: str = "") -> IrcProbeResult:
    """Connect, log in, say goodbye. Never raises but for cancellation; takes 10 s at most."""
    from channels.irc.tls import create_ssl_context  # noqa: PLC0415 - with the library

    given = [config.password, config.sasl.password if config.sasl else None]
    found = FindingCollector(where, [secret.get_secret_value() for secret in given if secret])
    try:
        tls = create_ssl_context(config.tls)
    except Denied as denied:
        found.bad("irc.tls", denied.reason, "correct the names of the files under tls")
        return IrcProbeResult(findings=found.findings)
    talk = _IrcProbeSession(config, found, secure=tls is not None)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await _run_session(config, talk, tls)
    except TimeoutError:
        told = explain_connection_error(TimeoutError(), config.host, config.port)
        if talk.has_spoken:
            found.bad("irc.login", f"{config.host} did not let us in within {PROBE_TIMEOUT_S:.0f} s", "try again later")
        else:
            found.bad(told.code, told.what, "look at the port, and whether it takes TLS (6697 does, 6667 does not)")
    except (OSError, UnicodeError) as error:
        ca_key = f"channels.{where}.tls.ca_file" if where else "tls: {ca_file: FILE}"
        if isinstance(error, OSError) and error.errno is not None and not str(error).startswith("[SSL"):
            # asyncio tells several addresses' errors as one: ask anew, which names it.
            found.findings += await probe_net(config.host, config.port, tls=tls or False, where=where, ca_key=ca_key)
        if not found.has_failed:
            told = explain_connection_error(error, config.host, config.port, ca_key=ca_key)
            found.bad(told.code, told.what, told.fix)
    _warn_unwise(config, talk, found)
    return talk.build_result()


async def _run_session(config: IrcConfig, talk: "_IrcProbeSession", tls: object) -> None:
    """Talk until all is known, or there is nothing more to hope for. Raises OSError."""
    from channels.irc.connection import create_connection  # noqa: PLC0415 - takes a fifth of a second

    connection = create_connection(talk.on_line, talk.on_lost)
    talk.write = connection.send_raw
    try:
        await connection.open(config.host, config.port, tls)  # type: ignore[arg-type] # `context`'s own
        talk.start()
        await talk.wait(_LOGIN_PATIENCE_S)
    finally:
        talk.stop()
        await connection.close_gracefully(format_line("QUIT", trailing="just looking"))


class _IrcProbeSession:
    """One login, followed."""

    def __init__(self, config: IrcConfig, found: FindingCollector, *, secure: bool) -> None:
        self._config, self._found = config, found
        self._login = IrcRegistration(config, secrets.token_urlsafe(18), LoginHistory(), secure=secure)
        self._done = asyncio.Event()
        self._room_probe = IrcRoomProbe(config.rooms)
        self._last_words = self._network = ""
        self._nick_refusal: tuple[str, str] | None = None
        """Numeric and words of the first refusal of our nick."""
        self.has_spoken = False
        """The server has said something that reads like IRC."""
        self.write: Callable[[str], None] = lambda _: None

    def start(self) -> None:
        """Say the first lines."""
        for raw in self._login.start():
            self.write(raw)

    async def wait(self, hurry_s: float) -> None:
        """Until all is known."""
        try:
            await asyncio.wait_for(self._done.wait(), hurry_s)
        except TimeoutError:
            for raw in self._login.handle_silence():
                self.write(raw)
            await self._done.wait()

    def on_line(self, raw: str) -> None:
        """One line of the server's."""
        said = parse_line(raw)
        if said is None or self._done.is_set():
            return
        self.has_spoken = True
        if said.command in _NICK_ERRORS and not self._login.is_welcomed and self._nick_refusal is None:
            self._nick_refusal = (said.command, said.param(-1))
        try:
            for answer in self._login.feed(said):
                self.write(answer)
        except StsUpgrade as upgrade:
            what = f"{self._config.host} wants to be spoken to over TLS on port {upgrade.port}"
            self._fail("irc.sts", what, f"write port: {upgrade.port} and tls: true", warning=True)
        except SendError as error:
            self._fail(*_explain_refusal(error.reason, self._config))
        else:
            self._handle(said)

    def _handle(self, said: IrcLine) -> None:
        match said.command:
            case "PING":
                self.write(format_line("PONG", trailing=said.param(-1)))
            case "ERROR":
                self._last_words = said.param(-1)
            case "005":
                tokens = dict(token.partition("=")[::2] for token in said.params[1:-1])
                self._network = self._found.clean(tokens.get("NETWORK", ""))[:60] or self._network
            case "376" | "422":
                asking = self._room_probe.build_queries()
                for raw in asking:
                    self.write(raw)
                if asking:
                    asyncio.get_running_loop().call_later(_ROOM_REPLIES_S, self._done.set)
                else:
                    self._done.set()
            case _ if self._room_probe.feed(said):
                self._done.set()

    def on_lost(self, reason: str) -> None:
        """The connection has ended."""
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
        """What is said from now on counts no more."""
        self._done.set()

    def _fail(self, code: str, what: str, fix: str, *, warning: bool = False) -> None:
        (self._found.warn if warning else self._found.bad)(code, what, fix)
        self._done.set()

    def build_result(self) -> IrcProbeResult:
        """What is known by now; adds what a login that succeeded tells."""
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
    """Code, what and fix of why we are not let in."""
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


def _warn_unwise(config: IrcConfig, talk: _IrcProbeSession, found: FindingCollector) -> None:
    """What is unwise though it works."""
    local = config.host.startswith(_LOOPBACK_PREFIXES)
    if not talk.has_spoken:
        return
    if config.tls is False and not local:
        what = "everything, passwords too, goes over the network in the clear"
        found.warn("irc.tls", what, "write tls: true, and the port for it (mostly 6697)")
    elif isinstance(config.tls, TlsConfig) and not config.tls.verify:
        found.warn("irc.tls", "any certificate is accepted, so anybody on the way can listen", "take verify: false out")
    elif config.tls is not False:
        found.ok("irc.tls", "the certificate is good")
