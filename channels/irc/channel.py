"""The IRC channel: connects, stays connected, and hands over what happens."""

import asyncio
import contextlib
import logging
import random as _random
import ssl
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from channels.base import Capabilities, Denied, Emit, Part, Rejected, Unreachable
from channels.irc.config import IrcConfig, Tls
from channels.irc.inbox import Inbox
from channels.irc.outgoing import WINDOW
from channels.irc.render import cut, render
from channels.irc.session import Session
from channels.irc.tasks import end, first, within
from channels.irc.wire import line
from channels.split import split
from gateway.clock import Clock
from gateway.events import Address, ChannelName, EventId, Link, Post, Receipt
from gateway.ids import new_id

if TYPE_CHECKING:
    from channels.irc.connection import Connection

_LOG = logging.getLogger("reverie.irc")
_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 1.0, 300.0
_STABLE_S = 60.0
"""A connection that was up for so long counts as a success: the next back-off begins anew."""
_JOIN_WAIT_S = 10.0
_MOTD_WAIT_S = 5.0
_REGAIN_S = 60.0
_FORMATTING = (
    "IRC shows plain lines: **bold**, *italic* and `code` survive, headings become bold, code blocks lose their "
    "fences; tables and nested lists do not work, and every line is a message of its own, so keep it short."
)


class IrcChannel:
    """One account on one IRC network; a `channels.base.Channel`."""

    def __init__(
        self, name: ChannelName, config: IrcConfig, clock: Clock, random: Callable[[], float] = _random.random
    ) -> None:
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._inbox = Inbox(self._pause)
        self._connection: Connection | None = None
        self._session: Session | None = None
        """Set while parts can be sent."""
        self._up: bool | None = None

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(platform="IRC", formatting=_FORMATTING, window=WINDOW)

    def split(self, post: Post) -> tuple[str, ...]:
        limit = self._body_bytes(_target(post.to))
        return tuple(piece for shown in render(post.text) for piece in cut(shown, limit))

    def _body_bytes(self, target: str) -> int:
        if self._session is not None:
            return self._session.body_bytes(target)
        # Not connected: as if the mask were the longest possible.
        return max(512 - len(f":{self._config.nick}!~@ PRIVMSG {target} :\r\n".encode()) - 10 - 63, 64)

    async def send(self, part: Part) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        session = self._session
        if session is None:
            raise Unreachable(f"{self._name} is not connected")
        target, command = _target(part.to), "NOTICE" if part.style == "notice" else "PRIVMSG"
        if "," in target or target.startswith("$"):
            raise Rejected(f"{target} is not one room or person")
        try:
            # Usually one: the room for text may have shrunk since the post was split.
            bodies = split(part.body, session.body_bytes(target))
            lines = [line(command, target, trailing=body) for body in bodies]
        except ValueError as error:
            raise Rejected(f"{target!r} is not a room or nick") from error
        return await session.outgoing.send(lines, session.isupport.fold(target))

    async def run(self, emit: Emit) -> None:
        self._up = None
        pump, life = asyncio.create_task(self._inbox.run(emit)), asyncio.create_task(self._stay_connected())
        try:
            await asyncio.wait({pump, life}, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                # Denied: what was said until now, and that the link is down, still goes in.
                await first(pump, self._inbox.drained())
            for task in (pump, life):
                if task.done():
                    task.result()
        finally:
            await end(pump, life)

    def _pause(self, full: bool) -> None:
        transport = self._connection.transport if self._connection else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if full else transport.resume_reading)()

    async def _stay_connected(self) -> None:
        tls = _tls(self._config.tls)
        failures = 0
        while True:
            begun_s = self._clock.monotonic()
            try:
                reason = await self._connect_once(tls)
            except Denied as denied:
                self._link(up=False, reason=denied.reason)
                raise
            was_stable = self._up is True and self._clock.monotonic() - begun_s >= _STABLE_S
            self._link(up=False, reason=reason)
            failures = 0 if was_stable else failures
            most_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** min(failures, 20))
            failures += 1
            delay_s = max(_BACKOFF_FIRST_S, most_s * (0.5 + self._random() / 2))
            _LOG.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    def _link(self, *, up: bool, reason: str) -> None:
        if self._up is not up:
            self._up = up
            now = self._clock.now()
            self._inbox.put(Link(id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now))

    async def _connect_once(self, tls: ssl.SSLContext | None) -> str:
        """One connection from its first packet to its last; why it ended. Raises Denied."""
        # Here and not above: importing the irc library takes 200 ms, and check-config does not need it.
        from channels.irc.connection import connect  # noqa: PLC0415

        session = Session(self._name, self._config, self._clock, self._write, self._inbox.put)
        helpers: list[asyncio.Task[None]] = []
        try:
            host, port = self._config.host, self._config.port
            opening = connect(host, port, tls, session.on_line, session.end)
            try:
                self._connection = await within(self._clock, self._config.connect_timeout, opening)
            except OSError as error:  # TLS errors and timeouts are OSErrors
                return f"cannot connect to {host}:{port}: {str(error) or 'timeout'}"
            if self._inbox.full:
                self._pause(True)
            session.start()
            helpers = [_helper(work, session) for work in (session.outgoing.run(), self._watch(session))]
            helpers.append(_helper(self._come_up(session), session))
            return await asyncio.shield(session.lost)
        finally:
            self._session = None
            if session.lost.done():
                session.lost.exception()  # seen, also when we are cancelled
            session.outgoing.close("the connection is lost" if session.lost.done() else "the gateway is stopping")
            await self._hang_up()
            await end(*helpers)

    def _write(self, raw: str) -> bool:
        if self._connection is None or not self._connection.alive:
            return False
        self._connection.send_raw(raw)
        return True

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.goodbye(line("QUIT", trailing="goodbye"))

    async def _come_up(self, session: Session) -> None:
        """From the first line to `Link(up=True)`; then go on asking for our nick."""
        try:
            await within(self._clock, self._config.connect_timeout, session.welcomed.wait())
        except TimeoutError:
            session.end("the server did not welcome us in time")
            return
        with contextlib.suppress(TimeoutError):  # jaraco's server and some bouncers send no MOTD
            await within(self._clock, _MOTD_WAIT_S, session.ready.wait())
        session.join(self._config.rooms)
        try:
            await within(self._clock, _JOIN_WAIT_S, session.joined.wait())
        except TimeoutError:
            _LOG.warning("%s: some rooms did not answer our JOIN", self._name)
        self._session = session
        self._link(up=True, reason=f"connected to {self._config.host} as {session.nick}")
        while True:
            await self._clock.sleep(_REGAIN_S)
            session.regain_nick()

    async def _watch(self, session: Session) -> None:
        """End the session when the server has gone quiet, or answers everything but our PINGs."""
        config = self._config
        while True:
            quiet_s = self._clock.monotonic() - session.heard_s
            if self._inbox.full or quiet_s < config.ping_interval:
                await self._clock.sleep(config.ping_interval - (0 if self._inbox.full else quiet_s))
                if not self._inbox.full and session.outgoing.oldest_ping_age_s() > self._patience_s:
                    session.end("the server does not answer PING")
                continue
            heard_s = session.heard_s
            session.outgoing.ping()
            await self._clock.sleep(config.ping_timeout)
            if session.heard_s == heard_s and not self._inbox.full:
                session.end(f"nothing heard for {config.ping_interval + config.ping_timeout:.0f} s")

    @property
    def _patience_s(self) -> float:
        return self._config.ping_interval + self._config.ping_timeout


def _target(to: Address) -> str:
    """A direct chat is named `nick!user@host` (or `nick!account:name`); IRC wants the nick."""
    return to.room.partition("!")[0] or to.room


def _tls(config: bool | Tls) -> ssl.SSLContext | None:
    """Raises Denied if a file of the configuration cannot be used."""
    if config is False:
        return None
    tls = config if isinstance(config, Tls) else Tls()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _helper(work: Coroutine[None, None, None], session: Session) -> asyncio.Task[None]:
    """Run beside the session; a mistake in it ends the session loudly instead of staying unseen."""

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not session.lost.done():
            session.lost.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(finished)
    return task
