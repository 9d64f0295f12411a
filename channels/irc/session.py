"""One connection's session: login, rooms, and the handling of each line; and the queue of
notifications.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine, Iterable

from channels.aio import BackpressureBuffer, with_timeout
from channels.base import Denied, Emit, Unreachable
from channels.irc.bouncer import is_from_bouncer, says_network_is_lost
from channels.irc.compose import HostmaskTracker, MultilineLimits, TypingState
from channels.irc.config import IrcConfig
from channels.irc.connection import IrcConnection
from channels.irc.history import PING_PREFIX, IrcEmitter
from channels.irc.identity import IdentityState, NickIdentities
from channels.irc.inbound import CtcpResponder, IrcLineContext
from channels.irc.membership import IrcMembership, RoomModes
from channels.irc.outgoing import FloodPace, IrcOutgoing
from channels.irc.people import NO_CURSOR, IrcState, IrcUsers, NetsplitTracker, who_query
from channels.irc.registration import IrcRegistration, LoginHistory, NickServLogin, StsUpgrade
from channels.irc.render import strip_formatting
from channels.irc.wire import (
    BatchCollector,
    BatchEvent,
    HistoryBatch,
    IrcLine,
    Isupport,
    ReceivedLine,
    classify_goodbye,
    format_line,
    parse_line,
)
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, ConnectionChanged, Message, Notification, RoomId
from gateway.core.ratelimit import TokenBuckets

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
_CAP_TIMEOUT_S = 10.0
"""Longer than servers take to answer CAP."""
_MOTD_WAIT_S = 5.0
_JOIN_WAIT_S = 10.0
_IDENTIFY_WAIT_S = 15.0
_TICK_S = 10.0
_LABEL_PATIENCE_S = 10.0
"""Time for the answer to a labelled line, before the server is asked whether it has got so far."""
_LOGGED_OUT_TIMEOUT_S = 60.0
"""Time that services have to accept a new login."""


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
        logins: LoginHistory,
        pace: FloodPace,
        secure_port: int | None,
    ) -> None:
        """Start logged out.

        `state`, `logins` and `pace` outlive the connection; `secure_port` is its TLS port, None
        without TLS.
        """
        self.name, self._config, self.clock, self.inbox, self.state = (
            name,
            config,
            clock,
            inbox,
            state,
        )
        self._secure_port = secure_port
        self.connection = IrcConnection(self)
        self.registration = IrcRegistration(
            config, self.connection, logins, secure=secure_port is not None
        )
        self.isupport = Isupport()
        self._nickserv, self._logins = NickServLogin(config, logins, self.isupport.fold), logins
        self._is_identified = asyncio.Event()
        """Nothing more is expected of the services."""
        self.nick = config.nick
        self.last_heard_s = self._logged_in_s = clock.monotonic()
        self.users, self.room_modes = IrcUsers(self.isupport), RoomModes(self.isupport)
        self.identities = NickIdentities(self.users, self.isupport)
        self._batches, self._netsplits = BatchCollector(), NetsplitTracker(self.isupport)
        self._hostmask, self.typing_state = HostmaskTracker(), TypingState()
        self._emitter = IrcEmitter(self, config.history_age)
        self._ctcp = CtcpResponder(config.contact)
        self.outgoing = IrcOutgoing(self, TokenBuckets(pace.rate(config.flood, clock.monotonic())))
        self.membership = IrcMembership(self, config)
        self._whois_waiters: dict[str, list[asyncio.Future[None]]] = {}
        """Folded nick -> who waits for the end of its WHOIS."""
        self._waiters: list[tuple[RoomId, asyncio.Future[None]]] = []
        self._is_ready = asyncio.Event()
        """Welcomed, and the server has sent everything it sends unasked (end of MOTD)."""
        self.welcomed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Reason of the end of the connection; Denied if another attempt is useless."""
        self._pace = pace
        self._error_text = ""
        """Text of the server's ERROR."""
        self._kill_text = ""
        """Who threw us off with KILL, and why."""
        self.upgrade_port: int | None = None
        """Set if the connection ended because the server wants TLS on this port."""

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
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._whois_waiters.setdefault(self.isupport.fold(nick), []).append(answered)
            self.queue_lines(self.identities.whois_lines(nick))
            await answered
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

    @property
    def multiline(self) -> MultilineLimits | None:
        """Limits of one multiline message; None: the server has none."""
        agreed = {"batch", "draft/multiline"} <= self.caps
        return (
            MultilineLimits.parse(self.registration.offered_value("draft/multiline") or "")
            if agreed
            else None
        )

    def max_body_bytes(self, target: str) -> int:
        """Return the text limit of a message to `target`.

        Computed with the longer of our current and configured nick.
        """
        nick = max(len(self.nick.encode()), len(self._config.nick.encode()))
        return self._hostmask.max_body_bytes(target, nick, self.isupport)

    def mark_lost(self, reason: str) -> None:
        """Record that the connection is lost, or must be treated so."""
        reason += f": {self._error_text}" if self._error_text else ""
        self.outgoing.close(reason, is_complete=bool(self._error_text))
        if self.lost.done():
            return
        cause = classify_goodbye(self._error_text)
        if cause == "flooded":
            wait_s = self._pace.record_kill(self.clock.monotonic())
            logger.warning(
                "%s: the server says that we send too fast; half as fast from now on", self.name
            )
            if not wait_s:
                self.lost.set_result(reason)
                return
            reason = (
                "thrown off three times in an hour for sending too fast: lower `flood` "
                f"({self._error_text})"
            )
            self.lost.set_exception(Denied(reason, retry_after_s=wait_s))
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

    def on_line(self, raw: str) -> None:
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
                self._handle_event(event)

    def _handle_welcome(self) -> None:
        if self.welcomed.is_set():
            self.mark_lost("the bouncer has connected to the network anew")
        elif self.registration.is_welcomed:
            self.nick = self.registration.nick
            self.welcomed.set()

    def _feed_registration(self, line: IrcLine) -> bool:
        """Return whether the connection lives on."""
        had_account_tag = "account-tag" in self.caps
        try:
            self.registration.feed(line)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
        except Unreachable as unreachable:
            self.mark_lost(unreachable.reason)
        except StsUpgrade as upgrade:
            self.upgrade_port = upgrade.port
            self.mark_lost(str(upgrade))
        if line.command == "CAP":
            self._save_sts_policy()
            self.outgoing.uses_labels = {"batch", "labeled-response"} <= self.caps
            self._emitter.has_history = {"batch", "draft/chathistory", "server-time"} <= self.caps
            if had_account_tag and "account-tag" not in self.caps:
                for room in self.membership.entered_rooms:
                    self._query_who(room)
        if not self.registration.is_logged_out:
            self._logged_in_s = self.last_heard_s
        return not self.lost.done()

    def _save_sts_policy(self) -> None:
        """Store the policy at once, across restarts: https://ircv3.net/specs/extensions/sts."""
        offered, sts = self.registration.offered_value("sts"), self.state.sts_policy
        if self._secure_port is None or offered is None:
            return
        before = sts.serialized
        sts.record_policy(self._config.host, self._secure_port, offered, self.clock.now())
        if sts.serialized != before:
            self.inbox.put_notification(None, self.state.cursor or NO_CURSOR)

    def _handle_event(self, event: BatchEvent) -> None:
        if isinstance(event, HistoryBatch):
            lines, target = len(event.lines), event.target
            logger.info(
                "%s: %d lines of %s are read again", self.name, lines, target[:100] or "people"
            )
            self._emitter.emit_history(
                event, self._line_context(history_place=self.isupport.fold(target))
            )
            return
        self.outgoing.feed(event)
        if isinstance(event, ReceivedLine):
            self._handle_line(event)

    def _handle_line(self, received: ReceivedLine) -> None:  # noqa: C901, PLR0912 - one case per command
        """Update the state and emit events for one line after the login."""
        line, fold = received.line, self.isupport.fold
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
            line, self.last_heard_s, batched=received.is_netsplit
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
        self.queue_lines(format_line("NAMES", room) for room in self.users.take_doubted_rooms())
        self._hostmask.feed(line, mine=mine)
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
            case "421" | "FAIL" if "TAGMSG" in line.params:
                self.typing_state.is_unsupported = True
            case "JOIN" if mine and "time" in line.tags:
                self._emitter.record_time(line)
        self.room_modes.feed(line, self.nick)
        self.membership.feed(line)
        if mine and line.command == "JOIN" and self.membership.is_wanted(line.param(0)):
            self._emitter.request_recent(line.param(0))
        self._feed_nickserv(line)
        if line.command in {"366", "MODE"}:
            self._query_modes()

    def _feed_nickserv(self, line: IrcLine) -> None:
        refused_before = self._logins.nickserv_refusal
        self.queue_lines(self._nickserv.feed(line, self.nick, self.registration.account))
        if self._nickserv.is_answered:
            self._is_identified.set()
        if (refusal := self._logins.nickserv_refusal) != refused_before:
            logger.error(
                "%s: the services refuse `nickserv.password`; it is not sent again: %s",
                self.name,
                refusal,
            )

    @property
    def login_problem(self) -> str:
        """Why we are not logged in to the services as configured by `nickserv`. Empty: we are, or
        nothing is known.
        """
        refusal = self._logins.nickserv_refusal
        return f"the services refuse `nickserv.password`: {refusal}" if refusal else ""

    def _query_modes(self) -> None:
        """Ask for room modes while nothing else is queued: nothing waits for the answer."""
        while (room := self.room_modes.next_query()) and self.outgoing.write_if_idle(
            format_line("MODE", room)
        ):
            self.room_modes.mark_queried(room)

    def _update_identities(self, line: IrcLine) -> None:
        """Continue sends that wait for WHOIS or for a person to return."""
        if nick := self.identities.feed_whois(line, self.last_heard_s):
            self.outgoing.handle_whois(nick)
            for answered in self._whois_waiters.pop(nick, ()):
                if not answered.done():
                    answered.set_result(None)
        elif line.command == "421" and line.param(1).upper() == "WHOIS":
            self.identities.is_whois_unsupported = True
            self.outgoing.release_unanswered(math.inf)
        for chat, waiter in self._waiters:
            if not waiter.done() and self.identities.is_sign_of(chat, line):
                waiter.set_result(None)

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
            await with_timeout(self.clock, CONNECT_TIMEOUT_S, self._wait_for_welcome())
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
        await self._log_in_to_services()
        self._emitter.hold_rooms(self.membership.join_configured())
        if self.isupport.monitors:
            self.membership.recover_nick()
        try:
            await with_timeout(self.clock, _JOIN_WAIT_S, self.membership.initial_joins_done.wait())
        except TimeoutError:
            logger.warning("%s: some rooms did not answer our JOIN", self.name)
        return True

    async def _log_in_to_services(self) -> None:
        """Send the lines of `on_connect`, and return once NickServ has answered, or will not."""
        self.queue_lines(
            line.get_secret_value().replace("{nick}", self.nick) for line in self._config.on_connect
        )
        self.queue_lines(self._nickserv.start(self.nick, self.registration.account))
        if self._nickserv.is_answered:
            return
        self._is_identified.clear()
        try:
            await with_timeout(self.clock, _IDENTIFY_WAIT_S, self._is_identified.wait())
        except TimeoutError:
            logger.warning("%s: the services do not answer; joining rooms without them", self.name)

    async def _wait_for_welcome(self) -> None:
        while not self.welcomed.is_set():
            with contextlib.suppress(TimeoutError):
                await with_timeout(self.clock, _CAP_TIMEOUT_S, self.welcomed.wait())
                return
            self.registration.handle_silence()

    async def work_periodically(self) -> None:
        """Request the missed messages, then do the periodic work. Ends only by cancellation."""
        self._emitter.request_history(
            [room for room in self.membership.configured_rooms if self.membership.is_in_room(room)]
        )
        while True:
            await self.clock.sleep(_TICK_S)
            self._tick()

    def _tick(self) -> None:
        now_s = self.clock.monotonic()
        self.membership.tick()
        self.outgoing.set_rate(self._pace.rate(self._config.flood, now_s))
        self.outgoing.probe_labels(_LABEL_PATIENCE_S)
        self._emitter.check_timeout()
        self._query_modes()
        if self.outgoing.release_unanswered(now_s - _WHOIS_TIMEOUT_S):
            self.identities.is_whois_unsupported = not self.identities.has_whois_answer
        if self.registration.is_logged_out and now_s - self._logged_in_s > _LOGGED_OUT_TIMEOUT_S:
            self.mark_lost("the services logged us out and do not let us in again")

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
                if not self.inbox.is_full:
                    self.outgoing.expire_labels(PING_INTERVAL_S + PING_TIMEOUT_S)
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
