"""The IRC channel: connects, stays connected, and hands over what happens."""

import asyncio
import logging
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from channels.backoff import Backoff
from channels.base import (
    Audience,
    BeforeSend,
    Capabilities,
    CommandSpec,
    Denied,
    Emit,
    Part,
    Rejected,
    RoomMembers,
    Unreachable,
    no_before_send,
)
from channels.irc import acts, fitting, tls
from channels.irc.config import IrcConfig
from channels.irc.inbox import IrcNotificationQueue
from channels.irc.memory import IrcState
from channels.irc.outgoing import MAX_IN_FLIGHT
from channels.irc.registration import LoginHistory
from channels.irc.render import FORMATTING
from channels.irc.senders import direct_chat, message_target
from channels.irc.sending import send_part, send_typing
from channels.irc.session import IrcSession
from channels.irc.upkeep import bring_up, join_room, start_helper, watch_silence
from channels.irc.wire import format_line
from channels.irc.writing import TYPING_INTERVAL_S
from channels.tasks import cancel_and_wait, with_timeout
from gateway.clock import Clock
from gateway.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    EventId,
    MessageId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
)
from gateway.fields import ConfigSection
from gateway.ids import new_id

if TYPE_CHECKING:
    from channels.irc.connection import IrcConnection


logger = logging.getLogger("reverie.irc")
_LOGIN_REFUSED_DELAY_S = 60.0
"""Between two logins that the services refuse, at least."""


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
        del commands  # IRC has no native ones
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._inbox = IrcNotificationQueue(self._pause)
        self._state, self._logins = IrcState(cursor), LoginHistory()
        self._connection: IrcConnection | None = None
        self._session: IrcSession | None = None
        """Set while parts can be sent."""
        self._up: bool | None = None
        self._up_s = 0.0
        """When it came up last."""

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        # `replies` is False though replies are marked where the server lets us: few people's clients show it, and
        # which networks do is not known before we are there. Whom a message answers must stand in its text.
        return Capabilities(platform="IRC", formatting=FORMATTING, max_in_flight=MAX_IN_FLIGHT)

    def split(self, post: Post) -> tuple[str, ...]:
        return fitting.split_post(post, self._config, self._session)

    def page_count(self, post: Post) -> int:
        return len(fitting.paginate_post(post, self._config, self._session))

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        return await send_part(*self._require_target(part.to), part, going)

    def place_names(self, at: Address) -> PlaceNames | None:
        session = self._session
        if session is None:
            return None
        server, me = session.isupport.network or None, session.nick
        if session.isupport.is_room(at.room):
            thread = f"those of rank {at.thread} alone" if at.thread else None
            return PlaceNames(room=at.room, thread=thread, server=server, me=me)
        return PlaceNames(person=session.identities.current_nick(at.room), server=server, me=me)

    def _require_target(self, at: Address) -> tuple[IrcSession, str]:
        """What is connected, and what a place is called there now."""
        if self._session is None:
            raise Unreachable(f"{self._name} is not connected")
        if at.thread is None:
            return self._session, self._session.identities.current_nick(at.room)
        target = message_target(at.room, at.thread)
        if self._session.isupport.status_prefix(target) != at.thread:  # else all of the room would hear it
            raise Rejected(f"this server does not let anybody write to {target}")
        return self._session, target

    async def wait_for_recipient(self, at: Address) -> None:
        if self._session is not None:
            await self._session.wait_for_person(at.room)

    typing_interval_s = TYPING_INTERVAL_S

    async def typing(self, at: Address, *, active: bool) -> None:
        if self._session is not None:
            send_typing(self._session, at, self._clock.monotonic(), active=active)

    @property
    def nick(self) -> str:
        return self._config.nick if self._session is None else self._session.nick

    def direct_room(self, sender: Sender) -> RoomId:
        return direct_chat(sender)

    async def join(self, at: Address) -> None:
        await join_room(self._require_target(at)[0], self._clock, at.room)

    async def leave(self, at: Address) -> None:
        await acts.part_room(self._require_target(at)[0], at.room)

    def is_joined(self, room: RoomId) -> bool | None:
        return acts.is_in_room(self._session, room) if self._session else None

    def join_refusal(self, room: RoomId) -> str:
        session = self._session
        return session.membership.join_refusal(room, session.isupport, self._clock.monotonic()) if session else ""

    def audience(self, at: Address) -> Audience | None:
        session = self._session
        if at.thread is not None:
            return "thread"
        known = session.room_modes.is_open(session.isupport.fold(at.room)) if session is not None else None
        return None if known is None else "everybody" if known else "room"

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await acts.send_reaction(*self._require_target(at), at.room, message, reaction, add=add)

    async def delete(self, at: Address, message: MessageId) -> None:
        await acts.redact_message(*self._require_target(at), at.room, message)

    async def set_topic(self, at: Address, topic: str) -> None:
        await acts.send_topic(*self._require_target(at), topic)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        return acts.list_room_members(
            self._require_target(at)[0], self._require_target(replace(at, thread=None))[1], at.room, most
        )

    def apply_config(self, config: ConfigSection) -> bool:
        mine = self._config
        if self._session is None or not isinstance(config, IrcConfig):
            return False
        if config.model_copy(update={"rooms": mine.rooms}) != mine:
            return False
        self._config = config
        self._session.membership.apply_config(config, self._session.isupport, self._clock.monotonic())
        return True

    def take_over(self, before: "IrcChannel") -> None:
        """Go on where that one has ended, if on the same network: with what it heard and nobody took. Before `run`."""
        mine, theirs = self._config, before._config  # noqa: SLF001 - its own kind
        if (mine.host, mine.port) == (theirs.host, theirs.port):
            self._state = before._state  # noqa: SLF001 - the same
            self._state.barred_rooms -= {room.lower() for room in mine.rooms if room not in theirs.rooms}  # named anew
            for item in before._inbox.filter_pending(lambda _: True):  # noqa: SLF001 - the same
                self._inbox.put(item)

    async def run(self, emit: Emit) -> None:
        self._up, self._logins = None, LoginHistory()
        self._inbox.filter_pending(
            lambda item: not isinstance(item[0], ConnectionChanged)
        )  # how the link was when it was cut is no news
        reading_on = asyncio.create_task(self._inbox.resume_when_stuck(self._clock))
        try:
            await self._inbox.run_producer_consumer(self._stay_connected(), self._inbox.run(emit))
        finally:
            await cancel_and_wait(reading_on)

    @property
    def dropped_count(self) -> int:
        return self._inbox.dropped_count

    def _pause(self, full: bool) -> None:
        transport = self._connection.transport if self._connection else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if full else transport.resume_reading)()

    async def _stay_connected(self) -> None:
        tls.create_ssl_context(self._config.tls)  # a mistake in it is told now
        backoff = Backoff()
        while True:
            try:
                reason = await self._connect_once()
            except Denied as denied:
                self._report_link(up=False, reason=denied.reason)
                raise
            up_s = self._clock.monotonic() - self._up_s if self._up else 0.0
            if reason is None:
                continue
            self._report_link(up=False, reason=reason)
            delay_s = max(
                backoff.next_delay_s(up_s, self._random()),
                _LOGIN_REFUSED_DELAY_S if self._logins.refused_count else 0.0,
            )
            logger.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    def _report_link(self, *, up: bool, reason: str) -> None:
        if self._up is not up:
            self._up = up
            now, self._up_s = self._clock.now(), self._clock.monotonic()
            self._inbox.put_notification(
                ConnectionChanged(id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now)
            )

    async def _connect_once(self) -> str | None:
        """One connection from its first packet to its last; why it ended (None: to go on over TLS). Raises Denied."""
        # Here and not above: importing the irc library takes 200 ms, and check-config does not need it.
        from channels.irc.connection import create_connection  # noqa: PLC0415

        strict = self._state.sts_policy.tls_port(self._config.host, self._clock.now())
        context, port = tls.create_ssl_context(self._config.tls or strict is not None), strict or self._config.port
        session = IrcSession(
            self._name,
            self._config,
            self._clock,
            self._write,
            self._inbox.put_notification,
            state=self._state,
            logins=self._logins,
            secure_port=port if context is not None else None,
        )
        helpers: list[asyncio.Task[None]] = []
        try:
            host = self._config.host
            # Kept before it is open: whenever we are cancelled, it is closed.
            self._connection = connection = create_connection(session.on_line, session.mark_lost)
            try:
                await with_timeout(self._clock, self._config.connect_timeout, connection.open(host, port, context))
            except OSError as error:  # TLS errors and timeouts are OSErrors
                return f"cannot connect to {host}:{port}: {tls.connect_error_text(error)}"
            if self._inbox.is_full:
                self._pause(True)
            session.start()
            works = (
                session.outgoing.run(),
                watch_silence(session, self._config, self._clock, lambda: self._inbox.is_full),
            )
            helpers = [start_helper(session, work) for work in works]
            helpers.append(
                start_helper(session, bring_up(session, self._config, self._clock, lambda: self._came_up(session)))
            )
            reason = await asyncio.shield(session.lost)
            if session.upgrade_port is not None:
                self._state.sts_policy.record_upgrade(self._config.host, session.upgrade_port)
                logger.warning("%s: %s", self._name, reason)
            return reason if session.upgrade_port is None else None
        finally:
            await self._tear_down(session, port if context is not None else None, helpers)

    def _came_up(self, session: IrcSession) -> None:
        self._session = session
        self._report_link(up=True, reason=f"connected to {self._config.host} as {session.nick}")

    async def _tear_down(self, session: IrcSession, secure_port: int | None, helpers: list[asyncio.Task[None]]) -> None:
        self._session = None
        if secure_port is not None and session.welcomed.is_set():
            self._state.sts_policy.record_policy(self._config.host, secure_port, None, self._clock.now())
            if self._state.sts_policy.serialized:
                self._inbox.put_notification(None, self._state.cursor)
        if session.lost.done():
            session.lost.exception()  # seen, also when we are cancelled
        session.outgoing.close("the connection is lost" if session.lost.done() else "the gateway is stopping")
        session.flush()
        try:
            await cancel_and_wait(*helpers)
        finally:
            await self._disconnect()

    def _write(self, raw: str) -> bool:
        if self._connection is None or not self._connection.is_alive:
            return False
        self._connection.send_raw(raw)
        return True

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close_gracefully(format_line("QUIT", trailing="goodbye"))
