"""Probe of an IRC network: login as configured, without joining rooms or sending messages.

Codes: `irc.tls`, `irc.password`, `irc.banned`, `irc.nick`, `irc.sasl`, `irc.network`,
`irc.login`, `irc.rooms`, and those of `net`. https://modern.ircdocs.horse/#connection-registration

Rooms are checked by their modes and bans, which many servers send to everybody
(https://modern.ircdocs.horse/#rplchannelmodeis-324, #rplbanlist-367, #errnosuchchannel-403 there).
"""

import asyncio
import ssl
from collections.abc import Container
from fnmatch import fnmatchcase
from typing import Final

from channels.base import Denied, SendError
from channels.irc.config import IrcConfig, TlsConfig, create_ssl_context
from channels.irc.connection import IrcConnection
from channels.irc.registration import LOGIN_REMEDY, IrcRegistration
from channels.irc.state import IrcState
from channels.irc.wire import IrcLine, parse_line
from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, bad, ok
from gateway.core.net_probe import PROXY_FIX, explain_connection_error, probe_net
from gateway.core.proxy import ProxyFailed, find_proxy, through

_MAX_ROOMS: Final = 10
_END_OF_REPLIES: Final = "rooms-are-asked"
_ROOM_REPLIES_S: Final = 5.0
"""Seconds for the replies about rooms: some servers send none, others a line a second."""
_CA_KEY: Final = "tls: {ca_file: FILE}"
"""Key of another root certificate, where the channel has no name yet."""
_NICK_ERRORS = {
    "433": "taken",
    "436": "taken",
    "437": "reserved by the services",
    "432": "not allowed",
}


async def probe_irc_server(config: IrcConfig) -> list[Finding]:
    """Connect, with TLS where it is configured, and close. Takes 10 s at most; raises nothing but
    CancelledError.
    """
    try:
        tls = create_ssl_context(config.tls)
    except Denied as denied:
        return [_explain_tls_files(denied)]
    try:
        way = through(find_proxy(config.proxy, f"irc://{config.host}"))
    except ValueError as error:
        return [bad("net.proxy", str(error), PROXY_FIX)]
    if way:
        return [
            ok(
                "net.proxy",
                f"{config.host}:{config.port} is reached{way}: the login will show whether that "
                "works",
            )
        ]
    return [await probe_net(config.host, config.port, tls=tls or False, ca_key=_CA_KEY)]


async def probe_irc(
    config: IrcConfig, *, where: str = "", known: Container[str] = ()
) -> list[Finding]:
    """Connect, log in and quit. Takes 10 s at most; raises nothing but CancelledError.

    `known`: rooms that exist, even if the server hides them from those outside.
    """
    login = config.sasl.password if config.sasl is not None else None
    configured = [config.password, login, *config.on_connect, *config.keys.values()]
    found = FindingCollector(where, [secret.get_secret_value() for secret in configured if secret])
    try:
        tls = create_ssl_context(config.tls)
    except Denied as denied:
        found.add(_explain_tls_files(denied))
        return found.findings
    session = _IrcProbeSession(config, found, known)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await session.run(tls)
    except TimeoutError:
        if session.has_spoken:
            found.bad(
                "irc.login",
                f"{config.host} did not accept the connection within {PROBE_TIMEOUT_S:.0f} s",
                "try again later",
            )
        else:
            fix = "check the port and whether it uses TLS (6697 does, 6667 does not)"
            found.bad("net.timeout", f"{config.host}:{config.port} does not answer", fix)
    except ProxyFailed as error:
        found.bad("net.proxy", f"{config.host}:{config.port} cannot be reached: {error}", PROXY_FIX)
    except (OSError, UnicodeError) as error:
        ca_key = f"channels.{where}.tls.ca_file" if where else _CA_KEY
        is_tls = isinstance(error, ssl.SSLError)
        if isinstance(error, OSError) and error.errno is not None and not is_tls:
            # asyncio merges the errors of several addresses into one: probe again for the exact
            # one.
            found.add(await probe_net(config.host, config.port, tls=tls or False, ca_key=ca_key))
        if not found.has_failed:
            found.add(explain_connection_error(error, config.host, config.port, ca_key=ca_key))
    if session.has_spoken:
        _judge_tls(config, found)
    session.report()
    return found.findings


class _IrcProbeSession:
    def __init__(self, config: IrcConfig, found: FindingCollector, known: Container[str]) -> None:
        self._config, self._found, self._known = config, found, known
        self._connection = IrcConnection(self.on_line, self.mark_lost)
        self._state = IrcState(config.nick)
        self._login = IrcRegistration(config, self._connection, self._state)
        self._done = asyncio.Event()
        self._last_words = ""
        self._nick_refusal: tuple[str, str] | None = None
        """Numeric and text of the first refusal of our nick."""
        self._rooms = config.rooms[:_MAX_ROOMS]
        self._bans: list[tuple[str, str]] = []
        """Rooms, and masks of whom they ban."""
        self._own_mask = ""
        self._missing: set[str] = set()
        self.has_spoken = False
        """True once the server has sent a line of IRC."""

    async def run(self, tls: ssl.SSLContext | None) -> None:
        """Run until everything is known or the login failed. Raises OSError."""
        try:
            await self._connection.open(self._config, self._config.port, tls)
            await self._done.wait()
        finally:
            self._done.set()  # ignores further lines
            await self._connection.close_gracefully("just looking")

    def on_line(self, raw: str) -> None:
        line = parse_line(raw)
        if line is None or self._done.is_set():
            return
        self.has_spoken = True
        if (
            line.command in _NICK_ERRORS
            and not self._login.is_welcomed
            and self._nick_refusal is None
        ):
            self._nick_refusal = (line.command, line.param(-1))
        try:
            self._login.feed(line)
        except SendError as error:
            self._end(_explain_refusal(error.reason, self._config))
        else:
            self._handle(line)

    def _handle(self, line: IrcLine) -> None:
        self._state.apply(line, now_s=0.0)
        match line.command:
            case "PING":
                self._connection.pong(f":{line.param(-1)}")
            case "ERROR":
                self._last_words = line.param(-1)
            case "376" | "422" if self._rooms:
                self._connection.userhost([self._state.nick])
                for room in self._rooms:
                    self._connection.mode(room, "")
                    self._connection.mode(room, "b")
                self._connection.ping(_END_OF_REPLIES)
                asyncio.get_running_loop().call_later(_ROOM_REPLIES_S, self._done.set)
            case "376" | "422":
                self._done.set()
            case "PONG" if line.param(-1) == _END_OF_REPLIES:
                self._done.set()
            case _:
                self._learn_room(line)

    def _learn_room(self, line: IrcLine) -> None:
        match line.command:
            case "302":  # `nick*=+user@host`: https://modern.ircdocs.horse/#rpluserhost-302
                nick, _, userhost = line.param(-1).strip().partition("=")
                self._own_mask = f"{nick.rstrip('*')}!{userhost[1:]}"
            case "367":
                self._bans.append((line.param(1).lower(), line.param(2)))
            case "401" | "403":  # ngIRCd answers 401, no such nick or channel
                self._missing.add(line.param(1).lower())

    def mark_lost(self, reason: str) -> None:
        if self._done.is_set() or self._login.is_welcomed:
            self._done.set()
            return
        words = f"{reason}: {self._last_words}" if self._last_words else reason
        fix = (
            "ask the network, or try later"
            if self.has_spoken
            else "check the port and whether it uses TLS"
        )
        self._end(bad("irc.login", f"{self._config.host} refused the connection: {words}", fix))

    def _end(self, finding: Finding) -> None:
        self._found.add(finding)
        self._done.set()

    def report(self) -> None:
        login, found, config = self._login, self._found, self._config
        if not login.is_welcomed:
            return
        network = found.clean(self._state.isupport.network_name)[:60]
        name = f" ({network})" if network else ""
        found.ok("irc.network", f"{config.host}{name} accepts the connection")
        if self._nick_refusal is None:
            found.ok("irc.nick", f"the nick {self._state.nick} is free")
        else:
            numeric, words = self._nick_refusal
            what = (
                f"the nick {config.nick} is {_NICK_ERRORS[numeric]} ({words}); it would be "
                f"{self._state.nick}"
            )
            found.warn(
                "irc.nick",
                what,
                "choose another nick, or wait: the bot takes the nick back when it is free",
            )
        for room in self._rooms:
            self._report_room(room)
        if self._state.account:
            found.ok("irc.sasl", f"logged in to the services as {self._state.account}")
        elif "sasl" in login.offered_caps and not config.on_connect:
            what = (
                "not logged in to the network's services, so anybody may take the nick while "
                "the bot is away"
            )
            found.warn(
                "irc.sasl", what, "register the nick with the services, and add sasl to the channel"
            )

    def _report_room(self, room: str) -> None:
        """Add what may keep the bot out of a room, or from posting there."""
        found, modes = self._found, self._state.room_modes.get(self._state.isupport.fold(room))
        if room.lower() in self._missing:
            if room not in self._known:
                what = f"there is no room {room}, or it is hidden: the bot would create it and be"
                fix = "check its name, or create the room before the bot joins"
                found.warn("irc.rooms", f"{what} alone there", fix)
            return
        if modes is None:
            what = f"whether the bot can post in {room}: the server says nothing of it"
            found.unknown("irc.rooms", what, "see whether it joins when the gateway runs")
            return
        bans = [mask for place, mask in self._bans if place == room.lower()]
        own = self._own_mask.lower()  # a mask of IRC has `*` and `?` alone
        if banned := [one for one in bans if fnmatchcase(own, one.lower().replace("[", "[[]"))]:
            fix = "ask an operator there to remove the ban, or to exempt the bot (+e)"
            found.bad("irc.rooms", f"{room} bans the bot (+b {banned[0]})", fix)
        has_key = room.lower() in map(str.lower, self._config.keys)
        has_it = {"k": has_key, "R": bool(self._state.account)}
        limits = [one for one in _ROOM_LIMITS if one[0] in modes and not has_it.get(one[0])]
        for mode, what, fix in limits:
            found.warn("irc.rooms", f"{room} {what} (+{mode})", fix.format(room=room))
        if not banned and not limits:
            found.ok("irc.rooms", f"{room} exists")


_ROOM_LIMITS: Final[tuple[tuple[str, str, str], ...]] = (
    ("i", "is invite-only", "ask an operator there to invite the bot, or to let it in by +I"),
    (
        "k",
        "needs a key, which the bot does not have",
        'add the key: rooms: [{{name: "{room}", key: "..."}}]',
    ),
    ("m", "lets only people with voice write", "ask an operator there to give the bot voice (+v)"),
    ("R", "is for people who are logged in", "register the nick, and add sasl to the channel"),
)
"""Mode of a room, what it means, and what to do
(https://modern.ircdocs.horse/#channel-modes; R: InspIRCd, ngIRCd, UnrealIRCd)."""


def _explain_tls_files(denied: Denied) -> Finding:
    return bad("irc.tls", denied.reason, "correct the names of the files under tls")


_NO_MECHANISM: Final = "choose another mechanism, or remove sasl"
_REFUSALS: Final = (
    ("does not offer SASL", "irc.sasl", _NO_MECHANISM),
    ("without the SASL login", "irc.sasl", _NO_MECHANISM),
    ("sasl capability", "irc.sasl", _NO_MECHANISM),
    (
        "SASL login failed",
        "irc.sasl",
        (
            "correct the account's name ({account}) or its password (for the services, not for the "
            "server)"
        ),
    ),
    (
        "password",
        "irc.password",
        "correct the server's password (not that of the services, which is under sasl)",
    ),
    ("banned", "irc.banned", "ask the network's staff"),
    ("nick", "irc.nick", "choose another nick"),
    ("", "irc.login", "try again later, or ask the network"),
)
"""Words of a refusal, its code, and what to do; the first that fits counts."""


def _explain_refusal(reason: str, config: IrcConfig) -> Finding:
    code, fix = next((code, fix) for words, code, fix in _REFUSALS if words in reason)
    account = config.sasl.account if config.sasl else ""
    return bad(code, reason.removesuffix(LOGIN_REMEDY), fix.format(account=account))


def _judge_tls(config: IrcConfig, found: FindingCollector) -> None:
    if config.tls is False and not config.host.startswith(("127.", "localhost", "::1")):
        what = "everything, including passwords, goes over the network unencrypted"
        found.warn("irc.tls", what, "set tls: true and the port for it (usually 6697)")
    elif isinstance(config.tls, TlsConfig) and not config.tls.verify:
        found.warn(
            "irc.tls",
            "any certificate is accepted, so anybody on the network path can read along",
            "remove verify: false",
        )
    elif config.tls is not False:
        found.ok("irc.tls", "the certificate is valid")
