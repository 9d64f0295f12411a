"""One connection's session: login, rooms, and the handling of each line."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine

from channels.aio import with_timeout
from channels.base import Denied, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.connection import IrcConnection
from channels.irc.history import (
    HISTORY_CAPS,
    PING_PREFIX,
    IrcEmitter,
    IrcNotificationQueue,
    LastingState,
)
from channels.irc.inbound import CTCP_RATE, EVENT_COMMANDS, IrcLineContext, answer_ctcp
from channels.irc.membership import IrcMembership
from channels.irc.outgoing import IrcOutgoing
from channels.irc.registration import IrcRegistration
from channels.irc.render import strip_formatting
from channels.irc.state import (
    WHOX_FIELDS,
    Changes,
    IrcState,
    is_sign_of,
    resolve_target,
    whois_lines,
)
from channels.irc.wire import (
    JOIN_REFUSALS,
    IrcLine,
    classify_goodbye,
    format_line,
    is_from_bouncer,
    parse_line,
    says_network_is_lost,
)
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, RoomId
from gateway.core.ratelimit import Rate, TokenBuckets

logger = logging.getLogger("reverie.irc")
CONNECT_TIMEOUT_S = 60.0
"""Longest time from the first packet to the welcome."""
PING_INTERVAL_S = 60.0
"""Silence after which the server is asked whether it is there."""
PING_TIMEOUT_S = 30.0
"""Silence after that until the bot connects again."""
_WHOIS_TIMEOUT_S = 15.0
"""Longer than servers take to answer WHOIS."""
_TICK_S = 10.0
_LOGIN_COMMANDS = frozenset({"CAP", "001", "900", "901"})
"""Commands that matter to the registration also after the welcome."""


class IrcSession:
    """One connection, fed with its lines; `state` is what they have said."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        inbox: IrcNotificationQueue,
        *,
        lasting: LastingState,
    ) -> None:
        self._name, self._config, self.clock = name, config, clock
        self._inbox, self._lasting = inbox, lasting
        self.connection = IrcConnection(self.on_line, self.mark_lost)
        self.state = IrcState(config.nick)
        self._registration = IrcRegistration(config, self.connection, self.state)
        self.last_heard_s = clock.monotonic()
        flood = config.flood
        rate = Rate(max(1, int(flood.burst * lasting.pace)), 60 * flood.per_s * lasting.pace)
        self.outgoing = IrcOutgoing(self.connection, self.state, clock, rate)
        self.membership = IrcMembership(
            name, config, state=self.state, lasting=lasting, outgoing=self.outgoing, clock=clock
        )
        self.context = IrcLineContext(name, self.state, lasting.own_message_ids)
        self.context.follow(config)
        self._emitter = IrcEmitter(self.context, lasting, inbox, self.outgoing, clock)
        self._ctcp = TokenBuckets(CTCP_RATE)
        self._arrivals: dict[RoomId, asyncio.Event] = {}
        """Set and forgotten once a line shows the person of that direct chat."""
        self._is_ready = asyncio.Event()
        """Welcomed, and the server has sent everything it sends unasked (end of MOTD)."""
        self._welcomed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Reason of the end of the connection; Denied if another attempt is useless."""
        self._error_text = ""
        self._missed_lines = dict[str, None]()  # of `on_connect`, to services that were away

    def apply_config(self, config: IrcConfig) -> None:
        self.membership.apply_config(config)
        self.context.follow(config)

    async def confirm_person(self, chat: RoomId) -> bool:
        """Return whether some nick is the person's for sure, after WHOIS of those that may be.
        Waits for answers.
        """
        while True:
            nick, found = resolve_target(self.state, chat, self.clock.monotonic())
            if found != "unknown":
                return found == "known"
            self.outgoing.queue_lines(whois_lines(self.state, nick))
            await self.outgoing.whois_ends.wait(self.state.isupport.fold(nick))

    async def wait_for_person(self, chat: RoomId) -> None:
        """Return once a line shows that person, or the connection has ended."""
        await self._arrivals.setdefault(chat, asyncio.Event()).wait()

    def mark_lost(self, reason: str) -> None:
        """Record that the connection is lost, or must be treated so."""
        reason += f": {self._error_text}" if self._error_text else ""
        self.outgoing.close(reason, is_complete=bool(self._error_text))
        if self.lost.done():
            return
        cause = classify_goodbye(self._error_text)
        if cause == "flooded":
            self._lasting.pace = max(self._lasting.pace / 2, 1 / 16)
            logger.warning(
                "%s: thrown off for sending too fast; half as fast from now on", self._name
            )
            self.lost.set_result(f"{reason}; lower `flood`")
        elif cause == "removed":
            self.lost.set_exception(Denied(f"thrown off the network: {self._error_text}"))
        else:
            self.lost.set_result(reason)

    def flush(self) -> None:
        """Release everything that waits for lines: no more will arrive."""
        self._emitter.flush()
        self.membership.close()
        for arrival in self._arrivals.values():
            arrival.set()

    def on_line(self, raw: str) -> None:
        """Handle one line. May raise for unexpected input: the connection logs that and goes on."""
        self.last_heard_s = self.clock.monotonic()
        line = parse_line(raw)
        if line is None or self.lost.done():
            return
        if line.command in _LOGIN_COMMANDS or not self._welcomed.is_set():
            self._feed_registration(line)
            if self.lost.done():
                return
        match line.command:
            case "PING":
                self.connection.pong(f":{line.param(-1)}")
            case "ERROR":
                # https://modern.ircdocs.horse/#error-message: the server is about to close. Not all
                # do so at once.
                self._error_text = strip_formatting(line.param(-1))[:300]
                self.mark_lost("the server closed the connection")
                return
        if self._welcomed.is_set() and (told := self.state.apply(line, self.last_heard_s)):
            if told.history is None:
                self._handle_line(told)
            else:
                logger.info("%s: %d lines are read again", self._name, len(told.history.lines))
                self._emitter.emit_history(told.history)

    def _feed_registration(self, line: IrcLine) -> None:
        if line.command == "001" and self._welcomed.is_set() and self.state.is_bouncer:
            self.mark_lost("the bouncer has connected to the network anew")
            return
        try:
            self._registration.feed(line)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
        except Unreachable as unreachable:
            self.mark_lost(unreachable.reason)
        self._emitter.has_history = self.state.caps >= HISTORY_CAPS
        if self._registration.is_welcomed:
            self._welcomed.set()

    def _is_bouncers(self, told: Changes) -> bool:
        """Return whether a line is the bouncer's own, or of a room where it is for its other
        clients.
        """
        line, ignored = told.line, self.membership.unconfigured_rooms
        if says_network_is_lost(line, self.state.isupport.bouncer_network):
            self.mark_lost("the bouncer has lost its connection to the network")
        topic_of = line.param(1) if line.command == "332" else ""
        is_ignored = told.target in ignored or self.state.isupport.fold(topic_of) in ignored
        return is_from_bouncer(line) or is_ignored

    def _handle_line(self, told: Changes) -> None:  # noqa: C901, PLR0912 - one case per command
        line, mine = told.line, told.is_mine
        if self.state.is_bouncer and self._is_bouncers(told):
            return
        if line.command in EVENT_COMMANDS and not (mine or told.is_netsplit):
            self._emitter.emit_line(told)
        match line.command:
            case "PRIVMSG" | "NOTICE" if mine:
                self.outgoing.record_echo(told)
                if msgid := line.tags.get("msgid"):
                    self._lasting.own_message_ids.put(msgid, None)
            case "PRIVMSG" if line.param(1).startswith("\x01"):
                answer = answer_ctcp(line, self._config.contact)
                if answer and self._ctcp.take("", self.last_heard_s):
                    self.outgoing.queue_lines([answer], told.nick)
            case "PONG" if line.param(-1).startswith(PING_PREFIX):
                self._emitter.handle_pong(line.param(-1))
            case "PONG":
                self._emitter.sync_clock(line)
                self.outgoing.handle_pong(line)
            case "INVITE" if told.target == self.state.me:
                self.membership.accept_invitation(line.param(1))
            case "JOIN" | "PART" | "KICK" | "MODE" | "NICK" | "QUIT":
                if told.entered:
                    self._emitter.sync_clock(line)
                    self._emitter.record_time(line)
                self.membership.follow(told)
            case command if command.isdecimal() or command == "FAIL":
                self._handle_reply(told)
        for chat in [chat for chat in self._arrivals if is_sign_of(self.state, chat, line)]:
            self._arrivals.pop(chat).set()

    def _handle_reply(self, told: Changes) -> None:
        line = told.line
        self._emitter.sync_clock(line)
        self.outgoing.handle_reply(line)
        if told.whois:
            self.outgoing.handle_whois(told.whois)
        if line.command in JOIN_REFUSALS:
            self.membership.handle_refusal(line)
        match line.command:
            case "005":
                self.context.follow(self.membership.config)
            case "376" | "422":
                self._is_ready.set()
            case "366":
                self._query_who(line.param(1))
                self._query_modes()
            case "421" if line.param(1).upper() == "WHOIS":
                self._give_up_whois(self.last_heard_s + 1)
            case "401" | "440":  # nobody has that nick, or the services are down
                away = line.param(1).lower()
                missed = [one for one in self._connect_lines() if away in one.lower().split()[:2]]
                self._missed_lines |= dict.fromkeys(missed)
            case "900":  # rooms for those who are logged in may let us in now
                self.membership.join_missing()

    def _query_modes(self) -> None:
        """Ask for room modes while nothing else is queued: nothing waits for the answer."""
        rooms = self.state.unknown_modes
        while rooms and self.outgoing.write_if_idle(format_line("MODE", next(iter(rooms)))):
            del rooms[next(iter(rooms))]

    def _give_up_whois(self, before_s: float) -> None:
        """Go on without the answers to WHOIS that was requested before that."""
        for nick in self.outgoing.unanswered_whois(before_s):
            self.state.mark_absent(nick, self.clock.monotonic())
            self.outgoing.handle_whois(nick)

    def _query_who(self, room: str) -> None:
        """Ask for the accounts of people who joined before us, if the server reports changes but
        not with each line.
        """
        caps = self.state.caps
        is_needed = "account-notify" in caps and "account-tag" not in caps
        if is_needed and self.state.isupport.has_whox and self.membership.is_in_room(room):
            self.outgoing.queue_lines([format_line("WHO", room, WHOX_FIELDS)])

    def _connect_lines(self) -> list[str]:
        lines = [line.get_secret_value() for line in self._config.on_connect]
        return [line.replace("{nick}", self.state.nick) for line in lines]

    async def bring_up(self) -> bool:
        """Wait for the welcome and join rooms. Return whether the session is up; False: it is
        lost.
        """
        try:
            await with_timeout(self.clock, CONNECT_TIMEOUT_S, self._welcomed.wait())
        except TimeoutError:
            away = "the bouncer has no connection to the network"
            self.mark_lost(
                away
                if self._registration.has_no_network
                else "the server did not welcome us in time"
            )
            return False
        with contextlib.suppress(TimeoutError):  # jaraco's server and bouncers may send none
            await with_timeout(self.clock, 5.0, self._is_ready.wait())
        if bot_mode := self.state.isupport.bot_mode:  # https://ircv3.net/specs/extensions/bot-mode
            self.outgoing.queue_lines([format_line("MODE", self.state.nick, f"+{bot_mode}")])
        self.outgoing.queue_lines(self._connect_lines())
        self._emitter.hold_rooms(self._config.rooms)
        try:
            await with_timeout(self.clock, 10.0, self.membership.join_configured())
        except TimeoutError:
            logger.warning("%s: some rooms did not answer our JOIN", self._name)
        return True

    async def work_periodically(self) -> None:
        """Request the missed messages, then do the periodic work. Ends only by cancellation."""
        membership = self.membership
        rooms = [room for room in membership.config.rooms if membership.is_in_room(room)]
        self._emitter.request_history(rooms)
        while True:
            await self.clock.sleep(_TICK_S)
            membership.tick()
            self.outgoing.queue_lines(self._missed_lines)
            self._missed_lines = {}
            self._query_modes()
            self._give_up_whois(self.clock.monotonic() - _WHOIS_TIMEOUT_S)

    async def watch_silence(self) -> None:
        """End the session when the server is silent, or answers everything but our PINGs.

        While the inbox is full, nothing is read, so the server's state is unknown.
        """
        while True:
            silence_s = self.clock.monotonic() - self.last_heard_s
            if self._inbox.is_full or silence_s < PING_INTERVAL_S:
                await self.clock.sleep(PING_INTERVAL_S - (0 if self._inbox.is_full else silence_s))
                if (
                    not self._inbox.is_full
                    and self.outgoing.oldest_ping_age_s() > PING_INTERVAL_S + PING_TIMEOUT_S
                ):
                    self.mark_lost("the server does not answer PING")
                continue
            heard_s = self.last_heard_s
            self.outgoing.queue_ping()
            await self.clock.sleep(PING_TIMEOUT_S)
            if self.last_heard_s == heard_s and not self._inbox.is_full:
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
