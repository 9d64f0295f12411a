"""The IRC channel: connects, stays connected, and hands over what happens."""

import asyncio
import contextlib
import logging
import random as _random
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from channels.base import Capabilities, CommandSpec, Denied, Emit, Going, Part, Rejected, Unreachable, unrecorded
from channels.irc import tls
from channels.irc.backoff import Backoff
from channels.irc.config import IrcConfig
from channels.irc.inbox import Inbox
from channels.irc.outgoing import WINDOW
from channels.irc.paging import pages_of, surely_bytes
from channels.irc.render import FORMATTING, cut
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
_JOIN_WAIT_S = 10.0
_MOTD_WAIT_S = 5.0
_REGAIN_S = 60.0
_LAST_WORDS_S = 0.2
"""Real seconds that `emit` has, after we are told to end, for what was already heard."""


class IrcChannel:
    """One account on one IRC network; a `channels.base.Channel`."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        commands: Sequence[CommandSpec] = (),
        random: Callable[[], float] = _random.random,
    ) -> None:
        del cursor, commands  # no server-side queue and no native commands yet
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._inbox = Inbox(self._pause)
        self._connection: Connection | None = None
        self._session: Session | None = None
        """Set while parts can be sent."""
        self._up: bool | None = None
        self._up_s = 0.0
        """When it came up last."""
        self._logged_in = False
        """SASL succeeded in this run: the configuration is right, so a failure is the network's."""

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(platform="IRC", formatting=FORMATTING, window=WINDOW)

    def split(self, post: Post) -> tuple[str, ...]:
        pages = self._pages(post)
        return pages[min(post.page, len(pages)) - 1]

    def pages(self, post: Post) -> int:
        return len(self._pages(post))

    def _pages(self, post: Post) -> tuple[tuple[str, ...], ...]:
        target, nick = _target(post.to), self._config.nick
        return pages_of(post.text, surely_bytes(nick, target), self._body_bytes(target), self._config.page_lines)

    def _body_bytes(self, target: str) -> int:
        return self._session.body_bytes(target) if self._session else surely_bytes(self._config.nick, target)

    async def send(self, part: Part, going: Going = unrecorded) -> Receipt:
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
            limit = session.body_bytes(target)
            bodies = cut(part.body, limit) or split(part.body, limit)
            lines = [line(command, target, trailing=body) for body in bodies]
        except ValueError as error:
            raise Rejected(f"{target!r} is not a room or nick") from error
        return await session.outgoing.send(lines, session.isupport.fold(target), going)

    async def run(self, emit: Emit) -> None:
        self._up, self._logged_in = None, False
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
            try:
                await end(life)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(first(pump, self._inbox.drained()), _LAST_WORDS_S)
            finally:
                await end(pump, life)

    def _pause(self, full: bool) -> None:
        transport = self._connection.transport if self._connection else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if full else transport.resume_reading)()

    async def _stay_connected(self) -> None:
        context = tls.context(self._config.tls)
        backoff = Backoff()
        while True:
            try:
                reason = await self._connect_once(context)
            except Denied as denied:
                self._link(up=False, reason=denied.reason)
                raise
            up_s = self._clock.monotonic() - self._up_s if self._up else 0.0
            self._link(up=False, reason=reason)
            delay_s = backoff.next_s(up_s, self._random())
            _LOG.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    def _link(self, *, up: bool, reason: str) -> None:
        if self._up is not up:
            self._up = up
            now, self._up_s = self._clock.now(), self._clock.monotonic()
            self._inbox.put(Link(id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now))

    async def _connect_once(self, context: ssl.SSLContext | None) -> str:
        """One connection from its first packet to its last; why it ended. Raises Denied."""
        # Here and not above: importing the irc library takes 200 ms, and check-config does not need it.
        from channels.irc.connection import connection_to  # noqa: PLC0415

        session = Session(
            self._name, self._config, self._clock, self._write, self._inbox.put, logged_in_before=self._logged_in
        )
        helpers: list[asyncio.Task[None]] = []
        try:
            host, port = self._config.host, self._config.port
            # Kept before it is open: whenever we are cancelled, it is closed.
            self._connection = connection = connection_to(session.on_line, session.end)
            try:
                await within(self._clock, self._config.connect_timeout, connection.open(host, port, context))
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
            self._logged_in = self._logged_in or session.logged_in
            if session.lost.done():
                session.lost.exception()  # seen, also when we are cancelled
            session.outgoing.close("the connection is lost" if session.lost.done() else "the gateway is stopping")
            try:
                await end(*helpers)
            finally:
                await self._hang_up()

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
        session.mark_as_bot()
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


def _helper(work: Coroutine[None, None, None], session: Session) -> asyncio.Task[None]:
    """Run beside the session; a mistake in it ends the session loudly instead of staying unseen."""

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not session.lost.done():
            session.lost.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(finished)
    return task
