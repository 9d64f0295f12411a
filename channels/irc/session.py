"""One connection's session: login, rooms, and the handling of each line; and the queue of
notifications.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable

from channels.aio import BackpressureBuffer, RoomSignals, with_timeout
from channels.base import Denied, Emit, Unreachable
from channels.irc.bouncer import is_from_bouncer, says_network_is_lost
from channels.irc.config import IrcConfig
from channels.irc.connection import IrcConnection
from channels.irc.history import PING_PREFIX, IrcEmitter
from channels.irc.identity import IdentityState, NickIdentities
from channels.irc.inbound import CtcpResponder, IrcLineContext
from channels.irc.membership import IrcMembership, RoomModes
from channels.irc.outgoing import IrcOutgoing
from channels.irc.people import IrcState, IrcUsers, NetsplitTracker, who_query
from channels.irc.registration import IrcRegistration
from channels.irc.render import strip_formatting
from channels.irc.wire import (
    Batch,
    BatchCollector,
    IrcLine,
    Isupport,
    classify_goodbye,
    format_line,
    parse_line,
)
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, ConnectionChanged, Message, Notification, RoomId
from gateway.core.ratelimit import Rate

logger = logging.getLogger("reverie.irc")
BATCH_SIZE = 256
CONNECT_TIMEOUT_S = 60.0
"""Longest time from the first packet to the welcome."""
PING_INTERVAL_S = 60.0
"""Silence after which the server is asked whether it is there."""
PING_TIMEOUT_S = 30.0
"""Silence after that until the bot connects again."""
STUCK_TIMEOUT_S = 15.0
"""Seconds without progress after which reading resumes: a server would soon close a connection that
nobody reads."""
MAX_HELD = 8192
"""Limit of the queue while reading goes on although nothing is emitted."""

_QueueItem = tuple[Notification | None, str | None]


class IrcNotificationQueue(BackpressureBuffer[_QueueItem]):
    """Notifications to emit, each with the cursor that becomes durable with it.

    IRC sends nothing twice. So while nothing can be emitted (the log cannot be written) reading
    goes on, and past `MAX_HELD` the oldest items are dropped: room messages first, then messages
    addressed to us.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connection: IrcConnection | None = None
        """The connection that is read. None: there is none."""
        self.dropped_count = 0

    def set_paused(self, paused: bool) -> None:
        transport = self.connection.transport if self.connection else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if paused else transport.resume_reading)()

    def put_notification(
        self, notification: Notification | None, cursor: str | None = None
    ) -> None:
        """Append a notification. Without one, the cursor becomes durable by itself."""
        self.put((notification, cursor))
        if len(self._items) > MAX_HELD:
            self._drop_oldest(MAX_HELD // 8)

    async def resume_when_stuck(self, clock: Clock) -> None:
        """Resume reading if nothing is taken for long. Ends only by cancellation."""
        while True:
            await self.wait_until_full()
            try:
                await with_timeout(clock, STUCK_TIMEOUT_S, self.wait_for_room())
            except TimeoutError:
                self._capacity = float("inf")  # until it is drained
                self._signal_room()

    def _drop_oldest(self, count: int) -> None:
        held = list(self._items)
        candidates = [
            index
            for index, (event, _) in enumerate(held)
            if not isinstance(event, ConnectionChanged)
        ]
        candidates.sort(key=lambda index: _is_addressed(held[index][0]))  # stable: the oldest first
        dropped = set(candidates[:count])
        self.dropped_count += sum(isinstance(held[index][0], Message) for index in dropped)
        self._items.clear()
        self._items.extend(item for index, item in enumerate(held) if index not in dropped)

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by an error of `emit`."""
        while True:
            items = await self.get_batch(BATCH_SIZE)
            batch = [notification for notification, _ in items if notification is not None]
            cursor = next(
                (position for _, position in reversed(items) if position is not None), None
            )
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)


def _is_addressed(notification: Notification | None) -> bool:
    return isinstance(notification, Message) and notification.kind != "room"


_WHOIS_TIMEOUT_S = 15.0
"""Longer than servers take to answer WHOIS."""
_MOTD_WAIT_S = 5.0
_JOIN_WAIT_S = 10.0
_TICK_S = 10.0
_MIN_PACE = 1 / 16


class IrcSession:
    """State of one connection, fed with its lines; reports through its events."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        inbox: IrcNotificationQueue,
        *,
        state: IrcState,
    ) -> None:
        """Start logged out. `state` outlives the connection."""
        self.name, self._config, self.clock, self.inbox, self.state = (
            name,
            config,
            clock,
            inbox,
            state,
        )
        self.connection = IrcConnection(self)
        self.registration = IrcRegistration(config, self.connection)
        self.isupport = Isupport()
        self.nick = config.nick
        self.last_heard_s = clock.monotonic()
        self.users, self.room_modes = IrcUsers(self.isupport), RoomModes(self.isupport)
        self.identities = NickIdentities(self.users, self.isupport)
        self._batches, self._netsplits = BatchCollector(), NetsplitTracker(self.isupport)
        self._emitter = IrcEmitter(self)
        self._ctcp = CtcpResponder(config.contact)
        flood = config.flood
        self.outgoing = IrcOutgoing(
            self,
            Rate(max(1, int(flood.burst * state.pace)), 60 * flood.per_s * state.pace),
        )
        self.membership = IrcMembership(self, config)
        self._whois_ends = RoomSignals()
        """Notified with a folded nick when its WHOIS has ended."""
        self._waiters: list[tuple[RoomId, asyncio.Future[None]]] = []
        self._is_ready = asyncio.Event()
        """Welcomed, and the server has sent everything it sends unasked (end of MOTD)."""
        self.welcomed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Reason of the end of the connection; Denied if another attempt is useless."""
        self._error_text = ""
        """Text of the server's ERROR."""
        self._kill_text = ""
        """Who threw us off with KILL, and why."""

    @property
    def caps(self) -> set[str]:
        """Enabled capabilities."""
        return self.registration.caps

    def write(self, raw: str) -> bool:
        """Write one line at once. False: the connection is dead, and the line surely was not
        sent.
        """
        if not self.connection.is_alive:
            return False
        self.connection.send_raw(raw)
        return True

    def queue_lines(self, lines: Iterable[str]) -> None:
        """Write lines of our own as soon as the rate limit allows."""
        for raw in lines:
            self.outgoing.queue_line(raw)

    def resolve_target(self, chat: RoomId) -> tuple[str, IdentityState]:
        """Return the nick of a direct chat and how certain it is, see
        `NickIdentities.resolve_target`.
        """
        self.identities.has_account_updates = "account-notify" in self.caps
        return self.identities.resolve_target(chat, self.clock.monotonic())

    async def confirm_person(self, chat: RoomId) -> bool:
        """Return whether some nick is the person's for sure, after WHOIS of those that may be.
        Waits for answers.
        """
        nick, state = self.resolve_target(chat)
        while state == "unknown":
            self.queue_lines(self.identities.whois_lines(nick))
            await self._whois_ends.wait(self.isupport.fold(nick))
            nick, state = self.resolve_target(chat)
        return state != "other"

    async def wait_for_person(self, chat: RoomId) -> None:
        """Return once a line shows that person, or the connection has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((chat, waiter))
        try:
            await waiter
        finally:
            self._waiters.remove((chat, waiter))

    def mark_lost(self, reason: str) -> None:
        """Record that the connection is lost, or must be treated so."""
        reason += f": {self._error_text}" if self._error_text else ""
        self.outgoing.close(reason, is_complete=bool(self._error_text))
        if self.lost.done():
            return
        cause = classify_goodbye(self._error_text)
        if cause == "flooded":
            self.state.pace = max(self.state.pace / 2, _MIN_PACE)
            logger.warning(
                "%s: thrown off for sending too fast; half as fast from now on", self.name
            )
            self.lost.set_result(f"{reason}; lower `flood`")
        elif cause == "removed" or self._kill_text:
            self.lost.set_exception(
                Denied(f"thrown off the network: {self._error_text or self._kill_text}")
            )
        else:
            self.lost.set_result(reason)

    def flush(self) -> None:
        """Release everything that waits for lines: no more will arrive."""
        self._emitter.flush()
        self.membership.close()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def on_line(self, raw: str) -> None:  # noqa: C901 - one case per command
        """Handle one line. May raise for unexpected input: the connection logs that and goes on."""
        self.last_heard_s = self.clock.monotonic()
        line = parse_line(raw)
        if line is None or self.lost.done() or not self._feed_registration(line):
            return
        if line.command == "PING":
            self.connection.pong(f":{line.param(-1)}")
        elif line.command == "KILL" and self.isupport.fold(line.param(0)) == self.isupport.fold(
            self.nick
        ):
            if "collision" not in line.param(-1).lower():
                self._kill_text = strip_formatting(
                    f"killed by {line.source.nick}: {line.param(-1)}"
                )[:300]
        elif line.command == "ERROR":
            # https://modern.ircdocs.horse/#error-message: the server is about to close. Not all do
            # so at once.
            self._error_text = strip_formatting(line.param(-1))[:300]
            self.mark_lost("the server closed the connection")
            return
        elif line.command == "001":
            self._handle_welcome()
        elif line.command == "PONG" and line.param(-1).startswith(PING_PREFIX):
            self._emitter.handle_pong(line.param(-1))
            return
        if self.welcomed.is_set():
            for event in self._batches.feed(line):
                if isinstance(event, Batch):
                    self._handle_history(event)
                else:
                    self._handle_line(event)

    def _handle_welcome(self) -> None:
        if self.welcomed.is_set():
            self.mark_lost("the bouncer has connected to the network anew")
        elif self.registration.is_welcomed:
            self.nick = self.registration.nick
            self.welcomed.set()

    def _feed_registration(self, line: IrcLine) -> bool:
        """Return whether the connection lives on."""
        try:
            self.registration.feed(line)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
        except Unreachable as unreachable:
            self.mark_lost(unreachable.reason)
        if line.command == "CAP":
            self._emitter.has_history = {"batch", "draft/chathistory", "server-time"} <= self.caps
        return not self.lost.done()

    def _handle_history(self, batch: Batch) -> None:
        lines, target = len(batch.lines), batch.target
        logger.info("%s: %d lines of %s are read again", self.name, lines, target[:100] or "people")
        place = self.isupport.fold(target)
        self._emitter.emit_history(batch, self._line_context(history_place=place))

    def _handle_line(self, line: IrcLine) -> None:  # noqa: C901, PLR0912 - one case per command
        """Update the state and emit events for one line after the login."""
        self.outgoing.feed(line)
        fold = self.isupport.fold
        if self.registration.is_bouncer and says_network_is_lost(
            line, self.isupport.bouncer_network
        ):
            self.mark_lost("the bouncer has lost its connection to the network")
        if is_from_bouncer(line):
            return
        mine = fold(line.source.nick) == fold(self.nick)
        if line.command.isdecimal() or line.command == "PONG" or (mine and line.command == "JOIN"):
            self._emitter.sync_clock(line)
        is_netsplit = self._netsplits.is_netsplit(
            line, self.last_heard_s, batched=self._batches.is_netsplit(line)
        )
        if line.command == "JOIN":
            self.users.feed(line, self.nick)
        self.identities.feed(line)
        place = line.param(1) if line.command.isdecimal() else line.param(0)
        if not is_netsplit and not self.membership.is_ignored(place):
            self._emitter.emit_line(line, self._line_context())
        if line.command != "JOIN":
            self.users.feed(line, self.nick)
        self._update_identities(line)
        match line.command:
            case "005":
                self.isupport.load(line.params)
            case "376" | "422":
                self._is_ready.set()
            case "366":
                self._query_who(line.param(1))
            case "NICK" if mine and line.param(0):
                logger.info("%s: we are %s now", self.name, line.param(0)[:100])
                self.nick = line.param(0)
            case "PRIVMSG" | "NOTICE" if mine and "msgid" in line.tags:
                self.state.own_message_ids.put(line.tags["msgid"], None)
            case "PRIVMSG" if not mine:
                if answer := self._ctcp.answer(line, self.last_heard_s):
                    self.outgoing.queue_line(answer, fold(line.source.nick))
            case "900":  # rooms for those who are logged in may let us in now
                self.membership.join_missing()
            case "JOIN" if mine and "time" in line.tags:
                self._emitter.record_time(line)
        self.room_modes.feed(line, self.nick)
        self.membership.feed(line)
        if line.command in {"366", "MODE"}:
            self._query_modes()

    def _query_modes(self) -> None:
        """Ask for room modes while nothing else is queued: nothing waits for the answer."""
        while (room := self.room_modes.next_query()) and self.outgoing.write_if_idle(
            format_line("MODE", room)
        ):
            self.room_modes.mark_queried(room)

    def _update_identities(self, line: IrcLine) -> None:
        """Continue sends that wait for WHOIS or for a person to return."""
        if nick := self.identities.feed_whois(line, self.last_heard_s):
            self._end_whois(nick)
        elif line.command == "421" and line.param(1).upper() == "WHOIS":
            self._give_up_whois(self.last_heard_s + 1)
        for chat, waiter in self._waiters:
            if not waiter.done() and self.identities.is_sign_of(chat, line):
                waiter.set_result(None)

    def _end_whois(self, nick: str) -> None:
        self.outgoing.handle_whois(nick)
        self._whois_ends.notify(nick)

    def _give_up_whois(self, before_s: float) -> None:
        """Go on without the answers to WHOIS that was requested before that."""
        for nick in self.outgoing.unanswered_whois(before_s):
            self.identities.mark_absent(nick, self.clock.monotonic())
            self._end_whois(nick)

    def _query_who(self, room: str) -> None:
        """Ask for the accounts of people who joined before us, if the server reports changes but
        not with each line.
        """
        is_needed = (
            self.isupport.has_whox
            and "account-notify" in self.caps
            and "account-tag" not in self.caps
        )
        if is_needed and self.membership.is_in_room(room):
            self.outgoing.queue_line(who_query(room))

    def _line_context(self, history_place: str | None = None) -> IrcLineContext:
        return IrcLineContext(
            channel=self.name,
            own_nick=self.nick,
            rooms={self.isupport.fold(room): room for room in self.membership.configured_rooms},
            isupport=self.isupport,
            people=self.users,
            has_account_tag="account-tag" in self.caps,
            has_account_notify="account-notify" in self.caps,
            bridges=frozenset(map(self.isupport.fold, self._config.bridges)),
            own_message_ids=self.state.own_message_ids,
            history_place=history_place,
            own_account=self.registration.account,
        )

    async def bring_up(self) -> bool:
        """Wait for the welcome and join rooms. Return whether the session is up; False: it is
        lost.
        """
        try:
            await with_timeout(self.clock, CONNECT_TIMEOUT_S, self.welcomed.wait())
        except TimeoutError:
            away = "the bouncer has no connection to the network"
            self.mark_lost(
                away
                if self.registration.has_no_network
                else "the server did not welcome us in time"
            )
            return False
        with contextlib.suppress(TimeoutError):  # jaraco's server and some bouncers send no MOTD
            await with_timeout(self.clock, _MOTD_WAIT_S, self._is_ready.wait())
        if self.isupport.bot_mode:  # https://ircv3.net/specs/extensions/bot-mode
            self.outgoing.queue_line(format_line("MODE", self.nick, f"+{self.isupport.bot_mode}"))
        self.queue_lines(
            line.get_secret_value().replace("{nick}", self.nick) for line in self._config.on_connect
        )
        self._emitter.hold_rooms(self._config.rooms)
        self.membership.join_configured()
        try:
            await with_timeout(self.clock, _JOIN_WAIT_S, self.membership.initial_joins_done.wait())
        except TimeoutError:
            logger.warning("%s: some rooms did not answer our JOIN", self.name)
        return True

    async def work_periodically(self) -> None:
        """Request the missed messages, then do the periodic work. Ends only by cancellation."""
        self._emitter.request_history(
            [room for room in self.membership.configured_rooms if self.membership.is_in_room(room)]
        )
        while True:
            await self.clock.sleep(_TICK_S)
            self._tick()

    def _tick(self) -> None:
        self.membership.tick()
        self._query_modes()
        self._give_up_whois(self.clock.monotonic() - _WHOIS_TIMEOUT_S)

    async def watch_silence(self) -> None:
        """End the session when the server is silent, or answers everything but our PINGs.

        While the inbox is full, nothing is read, so the server's state is unknown.
        """
        while True:
            silence_s = self.clock.monotonic() - self.last_heard_s
            if self.inbox.is_full or silence_s < PING_INTERVAL_S:
                await self.clock.sleep(PING_INTERVAL_S - (0 if self.inbox.is_full else silence_s))
                if (
                    not self.inbox.is_full
                    and self.outgoing.oldest_ping_age_s() > PING_INTERVAL_S + PING_TIMEOUT_S
                ):
                    self.mark_lost("the server does not answer PING")
                continue
            heard_s = self.last_heard_s
            self.outgoing.queue_ping()
            await self.clock.sleep(PING_TIMEOUT_S)
            if self.last_heard_s == heard_s and not self.inbox.is_full:
                self.mark_lost(f"nothing heard for {PING_INTERVAL_S + PING_TIMEOUT_S:.0f} s")

    def start_helper(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine beside the session; its error ends the session instead of staying
        unnoticed.
        """

        def finished(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) and not self.lost.done():
                self.lost.set_exception(error)

        task = asyncio.create_task(work)
        task.add_done_callback(finished)
        return task
