"""One connection's session: its rooms, its nick, and the handling of each line."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Final

from channels.aio import RoomSignals, with_timeout
from channels.base import Denied, Rejected, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.connection import IrcConnection, IrcRegistration
from channels.irc.history import (
    HISTORY_CAPS,
    PING_PREFIX,
    IrcEmitter,
    IrcNotificationQueue,
    LastingState,
)
from channels.irc.inbound import CTCP_RATE, EVENT_COMMANDS, IrcLineContext, answer_ctcp
from channels.irc.outgoing import IrcOutgoing
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
    refusal_reason,
    says_network_is_lost,
)
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, RoomId
from gateway.core.ratelimit import Rate, TokenBuckets

logger = logging.getLogger("reverie.irc")
_ROOMS_PER_JOIN = 10
_BYTES_PER_JOIN = 400
"""A server cuts lines longer than 512 bytes, and half a room's name is another room's."""
_REMEDIES: Final = {
    "470": "its operators send the bot elsewhere: ask them, or configure that room",
    "471": "it is full: ask its operators for a higher limit (+l)",
    "473": "have an operator there invite the bot, or put it on the list of who may come (+I)",
    "474": "ask its operators to lift the ban",
}
_RETRY_S: Final = 300.0
"""Delay between two attempts to enter the rooms that we are not in."""


def _join_lines(rooms: Mapping[str, str]) -> list[str]:
    """Return the lines that join these rooms. `rooms`: room -> key; empty: it has none.

    Rooms with a key stand first, because keys belong to rooms by position (RFC 2812 section 3.2.1).
    """
    batches: list[list[str]] = []
    for room in sorted(rooms, key=lambda room: not rooms[room]):
        last = batches[-1] if batches else []
        size = len(",".join([*last, room, *(rooms[one] for one in [*last, room])]).encode())
        if last and len(last) < _ROOMS_PER_JOIN and size <= _BYTES_PER_JOIN:
            last.append(room)
        else:
            batches.append([room])
    keys = [",".join(filter(None, map(rooms.__getitem__, batch))) for batch in batches]
    return [
        format_line("JOIN", ",".join(batch), *filter(None, [key]))
        for batch, key in zip(batches, keys, strict=True)
    ]


_NICK_POLL_S = 60.0
_MAX_FORCED_NICK_S: Final = 6 * 3600.0
"""Longest time for which we keep a nick that was forced on us. The first time it is
`_NICK_POLL_S`, and each time twice as long."""
_MAX_LEFT = 100
"""Unwanted rooms that we leave at most; more are tolerated, to end the fight with the server."""


class IrcMembership:
    """Rooms and nick of one connection: joining, rejoining, and recovery of the configured nick.

    Follows the changes of the connection's state. Sets of rooms are folded.
    """

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        *,
        state: IrcState,
        lasting: LastingState,
        outgoing: IrcOutgoing,
        clock: Clock,
    ) -> None:
        self._name, self.config, self._state, self._lasting = name, config, state, lasting
        self._outgoing, self._clock, self._fold = outgoing, clock, state.isupport.fold
        self._requested: set[str] = set()
        """Rooms whose JOIN is not answered yet."""
        self._refusals: dict[str, str] = {}
        self._answers = RoomSignals()
        """Notified with a room of `_requested` when it leaves that."""
        self.unconfigured_rooms: set[str] = set()
        """Rooms that we were put into against the configuration, and have left. A bouncer is there
        for its other clients, too, so behind one they are only ignored."""
        self._leaving: set[str] = set()
        self._is_lost = False
        self._joined_s = self._asked_nick_s = clock.monotonic()
        """Times of the last attempt to enter the rooms that we are not in, and to get our nick."""
        self._is_nick_forced = False
        self._forced_nick_s = _NICK_POLL_S

    def is_in_room(self, room: str) -> bool:
        return self._fold(room) in self._state.rooms

    def join_refusal(self, room: str) -> str:
        """Return why we are not in a room; empty: we are, or nothing is known."""
        folded = self._fold(room)
        if self.is_in_room(room):
            return ""
        if folded in self._lasting.barred_rooms:
            return "it was thrown out or left, and goes back when an admin has it join"
        return self._refusals.get(folded, "")

    async def join_configured(self) -> None:
        """Request the configured rooms; return once each is entered or refused."""
        self.join_missing()
        while self._requested:
            await self._answers.wait(next(iter(self._requested)))

    def join_missing(self) -> None:
        """Request the configured rooms that we are not in, except barred ones."""
        barred = self._lasting.barred_rooms
        self._send_joins([room for room in self.config.rooms if self._fold(room) not in barred])
        self._joined_s = self._clock.monotonic()

    def accept_invitation(self, room: str) -> None:
        """Request this room if it is configured (it may have refused us) and not barred. One
        request at a time: people may invite us as often as they like.
        """
        folded = self._fold(room)
        if folded not in self._requested | self._lasting.barred_rooms:
            self._send_joins([one for one in self.config.rooms if self._fold(one) == folded])

    def apply_config(self, config: IrcConfig) -> None:
        """Leave rooms that are no longer configured; join those that are new, or that have a new
        key.
        """
        before = {self._fold(room): room for room in self.config.rooms}
        rooms = {self._fold(room): room for room in config.rooms}
        known, barred = self.config.keys, self._lasting.barred_rooms
        rekeyed = {self._fold(room) for room, key in config.keys.items() if key != known.get(room)}
        self.config = config
        for folded in before.keys() - rooms.keys():
            if self._settle_joins({folded}) or self.is_in_room(folded):
                self._leaving.add(folded)
                self._outgoing.queue_lines([format_line("PART", before[folded])])
        new = rooms.keys() - before.keys()
        barred -= new
        self.unconfigured_rooms -= new
        wanted = new | (rekeyed - barred)
        self._send_joins(room for folded, room in rooms.items() if folded in wanted)

    def _send_joins(self, rooms: Iterable[str]) -> None:
        """Request rooms.

        Rooms that we are in (a bouncer kept us there) are left out: servers do not answer such a
        JOIN.
        """
        wanted = {
            self._fold(room): room
            for room in rooms
            if self._fold(room) in self._leaving or not self.is_in_room(room)
        }
        keys = {self._fold(room): key.get_secret_value() for room, key in self.config.keys.items()}
        self._outgoing.queue_lines(
            _join_lines({room: keys.get(folded, "") for folded, room in wanted.items()})
        )
        self._requested |= wanted.keys()

    async def join(self, room: str) -> None:
        """Request a room on command; return once we are in. Raises SendError."""
        folded = self._fold(room)
        self._lasting.barred_rooms.discard(folded)
        self.unconfigured_rooms.discard(folded)
        if self.is_in_room(room):
            return
        self._send_joins([room])
        await self._answers.wait(folded)
        if self._is_lost:
            raise Unreachable("the connection is lost")
        if not self.is_in_room(room):
            raise Rejected(self.join_refusal(room))

    def begin_leave(self, room: str) -> None:
        """Mark a room that we are about to leave on command, so that it is not rejoined.

        Call `end_leave` afterwards.
        """
        folded = self._fold(room)
        self._lasting.barred_rooms.add(folded)
        self._leaving.add(folded)

    def end_leave(self, room: str) -> None:
        """Record that the PART is answered, or will not be: from now on a removal counts as a
        kick.
        """
        self._leaving.discard(self._fold(room))

    def follow(self, told: Changes) -> None:
        line, left = told.line, told.left
        if line.command == "MODE" or told.entered:
            self._lasting.rights.notify(line.param(0).lower())
        if told.entered:
            if told.entered not in self._leaving:
                self._leave_unconfigured(told.entered)
            self._refusals.pop(told.entered, None)
            self._settle_joins({told.entered})
        elif left:
            if left not in self.unconfigured_rooms | self._leaving:
                # We never leave a room by ourselves: it was a kick, or a forced part.
                who, where = line.source.nick[:100], line.param(0)[:100]
                logger.warning("%s: thrown out of %s by %s", self._name, where, who)
                self._lasting.barred_rooms.add(left)
            self._leaving.discard(left)
        elif line.command in {"NICK", "QUIT"}:
            self._follow_nick(told)

    def _settle_joins(self, rooms: set[str]) -> set[str]:
        """End the requests for these rooms; return those that were requested."""
        settled = self._requested & rooms
        self._requested -= settled
        for room in settled:
            self._answers.notify(room)
        return settled

    def handle_refusal(self, line: IrcLine) -> None:
        refusal = refusal_reason(line)
        for room in self._settle_joins(set(map(self._fold, line.params[1:]))):
            remedy = (
                self._bad_key_remedy(room)
                if line.command == "475"
                else _REMEDIES.get(line.command, "")
            )
            self._refusals[room] = f"{refusal}; {remedy}" if remedy else refusal
            logger.error("%s: cannot join %s: %s", self._name, room, self._refusals[room])

    def _bad_key_remedy(self, room: str) -> str:
        name = next((name for name in self.config.rooms if self._fold(name) == room), room)
        has_key = room in map(self._fold, self.config.keys)
        return (
            f"{'another key is needed' if has_key else 'it needs a key'}: rooms: [{{name: "
            f'"{name}", key: "..."}}]'
        )

    def _leave_unconfigured(self, room: str) -> None:
        """Leave a room that the server put us into (470, or any JOIN of its own) against the
        configuration.
        """
        wanted = room in self._requested or room in map(self._fold, self.config.rooms)
        unwanted = self.unconfigured_rooms
        if wanted or room in unwanted or len(unwanted) >= _MAX_LEFT:
            return
        unwanted.add(room)
        ignored = self._state.is_bouncer
        what = "which is not configured; " + ("ignoring it" if ignored else "leaving it")
        logger.info("%s: put into %s, %s", self._name, room[:100], what)
        if not ignored:
            self._outgoing.queue_lines([format_line("PART", room)])

    def tick(self) -> None:
        """Do the periodic work: rejoin rooms, and recover the nick."""
        now_s = self._clock.monotonic()
        if now_s - self._joined_s >= _RETRY_S:
            self.join_missing()
        if now_s - self._asked_nick_s >= _NICK_POLL_S:
            self._request_nick()

    def _request_nick(self) -> None:
        self._asked_nick_s = self._clock.monotonic()
        if self._state.me != self._fold(self.config.nick):
            self._outgoing.queue_lines([format_line("NICK", self.config.nick)])

    def nick_problem(self) -> str:
        """Return why we have another nick than the configured one, if it was forced on us; else an
        empty text.
        """
        if not self._is_nick_forced:
            return ""
        return (
            f"the network or its services changed our nick from {self.config.nick} to "
            f"{self._state.nick}"
        )

    def _follow_nick(self, told: Changes) -> None:
        """Process a line that may be about our nick.

        A nick that an operator (SANICK) or services have given us is kept for a while: undone at
        once, they would do it again at once. https://docs.inspircd.org/3/modules/sanick/
        """
        wanted = self._fold(self.config.nick)
        if told.is_mine and told.line.command == "NICK":
            logger.info("%s: we are %s now", self._name, self._state.nick[:100])
            self._is_nick_forced = self._state.me != wanted  # we ask for no other nick than ours
            if self._is_nick_forced:
                now_s = self._clock.monotonic()
                self._asked_nick_s = now_s + self._forced_nick_s - _NICK_POLL_S
                self._forced_nick_s = min(2 * self._forced_nick_s, _MAX_FORCED_NICK_S)
                logger.warning("%s: %s", self._name, self.nick_problem())
        elif told.nick == wanted and not self._is_nick_forced:
            self._request_nick()

    def close(self) -> None:
        """Fail all pending joins: the connection is lost."""
        self._is_lost = True
        self._settle_joins(self._requested)


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
