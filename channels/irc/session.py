"""One connection's life: log in, join, follow what the server says. Sync; `channel` waits for it.

What goes on beside a session while it lasts: coming up, watching the server, getting back what we lost.

What was heard, and what of it is durable once it is emitted.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain

from channels.aio import BackpressureBuffer, with_timeout
from channels.base import Denied, Emit, Rejected, Uncertain, Unreachable
from channels.irc.compose import LOCAL_ID_PREFIX, HostmaskTracker, MultilineLimits, TypingState
from channels.irc.config import IrcConfig
from channels.irc.history import PING_PREFIX, IrcEmitter, PutNotification
from channels.irc.identity import IdentityState, NickIdentities
from channels.irc.inbound import CtcpResponder, IrcLineContext
from channels.irc.membership import IrcMembership, RoomModes
from channels.irc.outgoing import IrcOutgoing, IrcTokenBucket
from channels.irc.people import NO_CURSOR, IrcState, IrcUsers, NetsplitTracker, who_query
from channels.irc.registration import IrcRegistration, LoginHistory, StsUpgrade
from channels.irc.render import strip_formatting
from channels.irc.tls import StsCapability
from channels.irc.wire import (
    BatchCollector,
    HistoryBatch,
    IrcLine,
    Isupport,
    LabelClosed,
    ReceivedLine,
    format_line,
    parse_line,
)
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, Message, Notification, RoomId

BATCH_SIZE = 256
STUCK_TIMEOUT_S = 15.0
"""Nothing was taken for so long: a server would soon end a connection that nobody reads."""
MAX_HELD = 8192
"""Then so many are held at most."""

_QueueItem = tuple[Notification | None, str | None]


class IrcNotificationQueue(BackpressureBuffer[_QueueItem]):
    """Notifications, each with the cursor that becomes durable with it.

    IRC tells nothing twice. So while nobody takes what was heard (the log cannot be written) it goes on being read, and
    past `MAX_HELD` the oldest leaves first: what is said to nobody in particular before what is said to us.
    """

    def __init__(self, pause: Callable[[bool], None] = lambda _: None) -> None:
        super().__init__(pause)
        self.dropped_count = 0

    def put_notification(self, notification: Notification | None, cursor: str | None = None) -> None:
        """As `put`. Without a notification the cursor becomes durable by itself."""
        self.put((notification, cursor))
        if len(self._items) > MAX_HELD:
            self._drop_oldest(MAX_HELD // 8)

    async def resume_when_stuck(self, clock: Clock) -> None:
        """See to it that reading goes on also if nothing is taken for long. Ends only by cancellation."""
        while True:
            await self.wait_until_full()
            try:
                await with_timeout(clock, STUCK_TIMEOUT_S, self.wait_for_room())
            except TimeoutError:
                self._capacity = float("inf")  # until it is drained
                self._signal_room()

    def _drop_oldest(self, count: int) -> None:
        held = list(self._items)
        talk = (
            place
            for place, (one, _) in enumerate(held)
            if not isinstance(one, ConnectionChanged) and not _is_addressed(one)
        )
        rest = (place for place, (one, _) in enumerate(held) if _is_addressed(one))
        gone = {place for place, _ in zip(chain(talk, rest), range(count), strict=False)}
        self.dropped_count += sum(isinstance(held[place][0], Message) for place in gone)
        self._items.clear()
        self._items.extend(item for place, item in enumerate(held) if place not in gone)

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by what `emit` raises."""
        while True:
            taken = await self.get_batch(BATCH_SIZE)
            batch = [notification for notification, _ in taken if notification is not None]
            cursor = next((moved for _, moved in reversed(taken) if moved is not None), None)
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)


def _is_addressed(one: Notification | None) -> bool:
    return isinstance(one, Message) and one.kind != "room"


logger = logging.getLogger("reverie.irc")
_WHOIS_TIMEOUT_S = 15.0
"""Longer than servers take to answer WHOIS."""
_LOGGED_OUT_TIMEOUT_S = 60.0
"""How long services may take to let us in again."""


class IrcSession:
    """Fed with lines by the connection; tells through its events."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        write: Callable[[str], bool],
        put: PutNotification,
        *,
        state: IrcState,
        logins: LoginHistory,
        secure_port: int | None,
    ) -> None:
        """`state` and `logins` outlive the connection; `secure_port`: where it is TLS; None: it is not."""
        self.name, self._config, self._clock, self._write = name, config, clock, write
        self.registration = IrcRegistration(config, secrets.token_urlsafe(18), logins, secure=secure_port is not None)
        self._secure_port = secure_port
        self.state = state
        self._emitter = IrcEmitter(put, state, lambda: LOCAL_ID_PREFIX + new_id(clock.now()), config.history_age)
        self._batches, self.users, self._netsplits, self.identities = (
            BatchCollector(),
            IrcUsers(),
            NetsplitTracker(),
            NickIdentities(),
        )
        self.room_modes = RoomModes()
        self._hostmask, self.typing_state, self._numbers = HostmaskTracker(), TypingState(), itertools.count(1)
        self.last_heard_s = self._logged_in_s = clock.monotonic()
        self._ctcp = CtcpResponder(config.contact, config.source, self.last_heard_s)
        self.isupport = Isupport()
        self.nick = config.nick
        self.outgoing = IrcOutgoing(
            clock, IrcTokenBucket(config.flood.burst, config.flood.per_s, self.last_heard_s), write
        )
        self.outgoing.resolve_target = self.resolve_target
        self.outgoing.fold = lambda name: self.isupport.fold(name)  # noqa: PLW0108 - `isupport` changes
        self.outgoing.whois_lines = lambda nick: self.identities.whois_lines(nick, self.isupport)
        self._waiters: list[tuple[RoomId, asyncio.Future[None]]] = []
        self.membership = IrcMembership(name, config, state, self.outgoing.queue_line, self.last_heard_s)
        self.ready = asyncio.Event()
        """Welcomed, and the server has said all it says on its own (end of MOTD)."""
        self.welcomed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection ended; Denied if there is no use in another."""
        self._error_text = ""
        """Of the server: its ERROR."""
        self.upgrade_port: int | None = None
        """The connection ended because the server wants TLS on this port."""

    def start(self) -> None:
        """Say the first lines."""
        for raw in self.registration.start():
            self._write(raw)

    def resolve_target(self, chat: RoomId) -> tuple[str, IdentityState]:
        """As `NickIdentities.whom`, at this moment."""
        self.identities.has_account_updates = "account-notify" in self.registration.caps
        return self.identities.resolve_target(chat, self.users, self.isupport, self._clock.monotonic())

    async def wait_for_person(self, chat: RoomId) -> None:
        """Return once there is a sign of that person, or the connection has ended."""
        sign: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((chat, sign))
        try:
            await sign
        finally:
            self._waiters.remove((chat, sign))

    @property
    def multiline(self) -> MultilineLimits | None:
        """What one multiline message may hold; None: the server takes none."""
        agreed = {"batch", "draft/multiline"} <= self.registration.caps
        return MultilineLimits.parse(self.registration.offered_value("draft/multiline") or "") if agreed else None

    def new_batch_reference(self) -> str:
        """A new name for a batch of ours."""
        return f"b{next(self._numbers)}"

    def mark_lost(self, reason: str) -> None:
        """The connection is lost, or shall be held to be."""
        reason += f": {self._error_text}" if self._error_text else ""
        self.outgoing.close(reason)
        if not self.lost.done():
            self.lost.set_result(reason)

    def flush(self) -> None:
        """Nothing more will be heard: tell what was held back, and whoever waits for a room."""
        self._emitter.flush(self._clock.now())
        self.membership.close()
        for _, sign in self._waiters:
            if not sign.done():
                sign.set_result(None)

    def on_line(self, raw: str) -> None:
        """Handle one line. May raise on what nobody thought of: the connection logs that and goes on."""
        self.last_heard_s = self._clock.monotonic()
        said = parse_line(raw)
        if said is None or self.lost.done() or not self._feed_registration(said):
            return
        if said.command == "PING":
            self._write(format_line("PONG", trailing=said.param(-1)))
        elif said.command == "ERROR":
            # https://modern.ircdocs.horse/#error-message: the server is about to hang up. Not all do so at once.
            self._error_text = strip_formatting(said.param(-1))[:300]
            self.mark_lost("the server closed the connection")
            return
        elif said.command == "001" and not self.welcomed.is_set():
            self.nick = self.registration.nick
            self.welcomed.set()
        elif said.command == "PONG" and said.param(-1).startswith(PING_PREFIX):
            self._queue_lines(self._emitter.handle_pong(said.param(-1), self._clock.now()))
            return
        if self.welcomed.is_set():
            for heard in self._batches.feed(said):
                self._handle_event(heard)

    def _feed_registration(self, said: IrcLine) -> bool:
        before = "account-tag" in self.registration.caps
        try:
            for answer in self.registration.feed(said):
                self._write(answer)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
        except Unreachable as unreachable:
            self.mark_lost(unreachable.reason)
        except StsUpgrade as upgrade:
            self.upgrade_port = upgrade.port
            self.mark_lost(str(upgrade))
        if said.command == "CAP":
            self._save_sts_policy()
            self.outgoing.uses_labels = {"batch", "labeled-response"} <= self.registration.caps
            self._emitter.has_history = {"batch", "draft/chathistory", "server-time"} <= self.registration.caps
            if before and "account-tag" not in self.registration.caps:
                for room in self.membership.entered_rooms:
                    self._query_who(room)
        if not self.registration.is_logged_out:
            self._logged_in_s = self.last_heard_s
        return not self.lost.done()

    def _save_sts_policy(self) -> None:
        """https://ircv3.net/specs/extensions/sts: what is told over TLS is remembered at once, and over restarts."""
        offered, sts = self.registration.offered_value("sts"), self.state.sts_policy
        if self._secure_port is None or offered is None:
            return
        before = sts.serialized
        sts.record_policy(self._config.host, self._secure_port, StsCapability.parse(offered), self._clock.now())
        if sts.serialized != before:
            self._emitter.put(None, self.state.cursor or NO_CURSOR)

    def _handle_event(self, heard: ReceivedLine | LabelClosed | HistoryBatch) -> None:
        if isinstance(heard, HistoryBatch):
            logger.info(
                "%s: %d lines of %s are read again", self.name, len(heard.lines), heard.target[:100] or "people"
            )
            self._queue_lines(
                self._emitter.emit_history(
                    heard, self._line_context(past=self.isupport.fold(heard.target)), self._clock.now()
                )
            )
            return
        self.outgoing.feed(heard, self.nick, self.isupport)
        if isinstance(heard, ReceivedLine):
            self._handle_line(heard)

    def _handle_line(self, heard: ReceivedLine) -> None:  # noqa: C901, PLR0912 - one case per command
        """What a logged-in client must know and tell."""
        said, now, fold = heard.line, self._clock.now(), self.isupport.fold
        mine = fold(said.source.nick) == fold(self.nick)
        if said.command.isdecimal() or said.command == "PONG" or (mine and said.command == "JOIN"):
            self._emitter.sync_clock(said, now, self.last_heard_s)
        quiet = self._netsplits.is_netsplit(said, self.isupport, self.last_heard_s, batched=heard.is_netsplit)
        if said.command == "JOIN":
            self.users.feed(said, self.nick, self.isupport)
        self.identities.feed(said, self.users, self.isupport)
        if not quiet:
            self._emitter.emit_line(said, self._line_context(), now, self.last_heard_s)
        if said.command != "JOIN":
            self.users.feed(said, self.nick, self.isupport)
        self._update_identities(said)
        self._queue_lines(format_line("NAMES", room) for room in self.users.ranks.take_doubted())
        self._hostmask.feed(said, mine=mine)
        match said.command:
            case "005":
                self.isupport = self.isupport.with_tokens(said.params[1:])
            case "376" | "422":
                self.ready.set()
            case "366":
                self._query_who(said.param(1))
            case "NICK" if mine and said.param(0):
                logger.info("%s: we are %s now", self.name, said.param(0)[:100])
                self.nick = said.param(0)
            case "PRIVMSG" | "NOTICE" if mine and "msgid" in said.tags:
                self.state.own_message_ids.add(said.tags["msgid"])
            case "PRIVMSG" if not mine:
                self._answer_ctcp(said)
            case "421" | "FAIL" if "TAGMSG" in said.params:
                self.typing_state.is_unsupported = True
            case "JOIN" if mine and "time" in said.tags:
                self._emitter.record_time(said, now)
        self.room_modes.feed(said, self.nick, self.isupport)
        self.membership.feed(said, self.nick, self.isupport, self.last_heard_s)
        if said.command in {"366", "MODE"}:
            self._query_modes()

    def _query_modes(self) -> None:
        """Learn who may enter our rooms, as far as nothing else is to be said: nobody waits for it."""
        while (room := self.room_modes.next_query()) and self.outgoing.write_if_idle(format_line("MODE", room)):
            self.room_modes.mark_queried(room)

    def _update_identities(self, said: IrcLine) -> None:
        """Go on with what waits to know who has a nick, or for somebody to come back."""
        if told := self.identities.feed_whois(said, self.isupport, self.last_heard_s):
            self.outgoing.handle_whois(told)
        elif said.command == "421" and said.param(1).upper() == "WHOIS":
            self.identities.is_whois_unsupported = True
            self.outgoing.release_unanswered(math.inf)
        for chat, sign in self._waiters:
            if not sign.done() and self.identities.is_sign_of(chat, said, self.isupport):
                sign.set_result(None)

    def _query_who(self, room: str) -> None:
        """Learn the accounts of who was there before us, if the server tells of changes but not with each line."""
        ask = (
            self.isupport.whox
            and "account-notify" in self.registration.caps
            and "account-tag" not in self.registration.caps
        )
        if ask and self.isupport.fold(room) in self.membership.entered_rooms:
            self.outgoing.queue_line(who_query(room))

    def _answer_ctcp(self, said: IrcLine) -> None:
        answer = self._ctcp.answer(said, self.last_heard_s)
        if answer is not None:
            self.outgoing.queue_line(answer, self.isupport.fold(said.source.nick))

    def max_body_bytes(self, target: str) -> int:
        """How much text fits a message to `target`; our nick counts as the longer of what it is and shall be."""
        nick = max(len(self.nick.encode()), len(self._config.nick.encode()))
        return self._hostmask.max_body_bytes(target, nick, self.isupport)

    def handle_slow_login(self) -> None:
        """We have been waiting for long to be welcomed."""
        for raw in self.registration.handle_silence():
            self._write(raw)

    def join_rooms(self) -> None:
        """Say that we are a bot, if the server has a mode for that, and ask to be let into our rooms.

        `presence.joined` is set when all is answered. https://ircv3.net/specs/extensions/bot-mode
        """
        if self.isupport.bot_mode:
            self.outgoing.queue_line(format_line("MODE", self.nick, f"+{self.isupport.bot_mode}"))
        rooms = self.membership.join_configured(self.isupport, self._clock.monotonic())
        self._emitter.hold_rooms(map(self.isupport.fold, rooms))
        self.membership.recover_nick(self.nick, self.isupport)

    def request_history(self) -> None:
        """Ask for what was said while we were away."""
        rooms = [
            room
            for room in self.membership.configured_rooms
            if self.isupport.fold(room) in self.membership.entered_rooms
        ]
        self._queue_lines(self._emitter.request_history(rooms, self._clock.now(), self.isupport))

    def tick(self) -> None:
        """To be called now and then."""
        now_s = self._clock.monotonic()
        self.membership.tick(self.nick, self.isupport, now_s)
        self._emitter.check_timeout(self._clock.now())
        self._query_modes()
        if self.outgoing.release_unanswered(now_s - _WHOIS_TIMEOUT_S):
            self.identities.is_whois_unsupported = not self.identities.has_whois_answer
        if self.registration.is_logged_out and now_s - self._logged_in_s > _LOGGED_OUT_TIMEOUT_S:
            self.mark_lost("the services logged us out and do not let us in again")

    def _queue_lines(self, lines: Iterable[str]) -> None:
        for raw in lines:
            self.outgoing.queue_line(raw)

    def _line_context(self, past: str | None = None) -> IrcLineContext:
        return IrcLineContext(
            channel=self.name,
            own_nick=self.nick,
            rooms={self.isupport.fold(room): room for room in self.membership.configured_rooms},
            isupport=self.isupport,
            people=self.users,
            has_account_tag="account-tag" in self.registration.caps,
            own_message_ids=self.state.own_message_ids,
            history_place=past,
            own_account=self.registration.account,
        )


_CAP_TIMEOUT_S = 10.0
"""Longer than servers take to answer CAP."""
_JOIN_WAIT_S = 10.0
_JOIN_ANSWER_S = 30.0
_MOTD_WAIT_S = 5.0
_TICK_S = 10.0


async def bring_up(session: IrcSession, config: IrcConfig, clock: Clock, up: Callable[[], None]) -> None:
    """From the first line to `up`; then look after rooms and nick. Ends only by cancellation or with the session."""
    try:
        await with_timeout(clock, config.connect_timeout, _wait_for_welcome(session, clock))
    except TimeoutError:
        session.mark_lost("the server did not welcome us in time")
        return
    with contextlib.suppress(TimeoutError):  # jaraco's server and some bouncers send no MOTD
        await with_timeout(clock, _MOTD_WAIT_S, session.ready.wait())
    session.join_rooms()
    try:
        await with_timeout(clock, _JOIN_WAIT_S, session.membership.initial_joins_done.wait())
    except TimeoutError:
        logger.warning("%s: some rooms did not answer our JOIN", session.name)
    up()
    session.request_history()
    while True:
        await clock.sleep(_TICK_S)
        session.tick()


async def _wait_for_welcome(session: IrcSession, clock: Clock) -> None:
    while not session.welcomed.is_set():
        with contextlib.suppress(TimeoutError):
            await with_timeout(clock, _CAP_TIMEOUT_S, session.welcomed.wait())
            return
        session.handle_slow_login()


async def watch_silence(session: IrcSession, config: IrcConfig, clock: Clock, full: Callable[[], bool]) -> None:
    """End the session when the server has gone quiet, or answers everything but our PINGs.

    While `full`, we do not read, and nothing is known of the server.
    """
    patience_s = config.ping_interval + config.ping_timeout
    while True:
        quiet_s = clock.monotonic() - session.last_heard_s
        if full() or quiet_s < config.ping_interval:
            await clock.sleep(config.ping_interval - (0 if full() else quiet_s))
            if not full() and session.outgoing.oldest_ping_age_s() > patience_s:
                session.mark_lost("the server does not answer PING")
            if not full():
                session.outgoing.expire_labels(patience_s)
            continue
        heard_s = session.last_heard_s
        session.outgoing.queue_ping()
        await clock.sleep(config.ping_timeout)
        if session.last_heard_s == heard_s and not full():
            session.mark_lost(f"nothing heard for {patience_s:.0f} s")


async def join_room(session: IrcSession, clock: Clock, room: str) -> None:
    """Enter a room that we were asked into. Raises SendError: `Rejected` with the server's reason."""
    if not session.isupport.is_room(room) or "," in room:
        raise Rejected(f"{room!r} is not a room")
    try:
        entering = session.membership.join(room, session.isupport, clock.monotonic())
    except ValueError as error:
        raise Rejected(f"{room!r} is not a room") from error
    try:
        await with_timeout(clock, _JOIN_ANSWER_S, asyncio.wait_for(entering, None))
    except TimeoutError:
        raise Uncertain("the server did not answer our JOIN") from None


def start_helper(session: IrcSession, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Run beside the session; a mistake in it ends the session loudly instead of staying unseen."""

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not session.lost.done():
            session.lost.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(finished)
    return task
