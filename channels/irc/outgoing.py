"""Outgoing lines of one connection: paced, confirmed, in order for each target, and targets take
turns.

IRC has no acknowledgements, but a server answers in order: when it has answered a PING, it has
processed all lines written before, and has reported each refusal among them (RFC 1459 section
4.6.2). Such a PING is a barrier here. A part of a post is one line.

Lines are paced by a token bucket (RFC 2813 section 5.8). `SendWindow` is pure; `IrcOutgoing` does
the writing.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from channels.aio import RoomSignals
from channels.base import (
    BeforeSend,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from channels.irc.connection import IrcConnection
from channels.irc.render import strip_formatting
from channels.irc.state import Changes, IrcState, absence_text, resolve_target, whois_lines
from channels.irc.wire import (
    IrcLine,
    format_line,
    is_refusal,
    is_untargeted,
    refusal_error,
    refusal_reason,
)
from gateway.core.clock import Clock
from gateway.core.events import MessageId, Receipt, RoomId
from gateway.core.ratelimit import LruDict, Rate, TokenBuckets


@dataclass(eq=False, slots=True)
class SendItem:
    """One line: a part of a post, or a line of our own."""

    raw: str
    target: str = ""
    """Folded; empty: not a message."""
    future: asyncio.Future[Receipt] | None = None
    """Result for the caller of `send`; None: not a part."""
    before_send: BeforeSend = no_before_send
    lone_command: str = ""
    chat: RoomId | None = None
    """Set if the item is for one person, under whatever nick they have when it is written."""
    is_handed_over: bool = False
    echo: Receipt | None = None
    """Set once the server has echoed the line."""

    def settle(self, outcome: Receipt | SendError) -> None:
        if self.future is None or self.future.done():
            return
        if isinstance(outcome, Receipt):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


class SendWindow:
    """Lines written between two barriers, and the server's answers to them. Targets are folded
    names.

    A server answers each line at most once: with an echo (with `echo-message`), with a numeric, or
    not at all. Numerics name a target, not a line. So, for each target: without a refusal all lines
    were accepted; as many refusals as lines without an echo refuse all of those; with fewer, echoed
    lines were accepted, and the fate of the others is unknown.
    """

    def __init__(self) -> None:
        self.lines: list[SendItem] = []
        self.token, self.sent_s = "", 0.0
        """Token of the PING that ends the window, and the time when it was written."""
        self._answered_counts: Counter[str] = Counter()
        """Target -> number of its lines up to the last answer."""
        self._refusals: Counter[str] = Counter()
        """Target -> number of numerics that name it; empty target: numerics without one."""
        self._reasons: dict[str, str] = {}
        self.strange_echoes: set[str] = set()
        """Targets with an echo of other text than ours."""

    def record_echo(self, target: str, text: str, msgid: str | None) -> None:
        """Record an echo of a line of ours. Unknown text (of a bouncer's other client) is
        ignored.
        """
        lines, seen = [line for line in self.lines if line.target == target], strip_formatting(text)
        for index in range(self._answered_counts[target], len(lines)):
            # Perhaps it is cut, or without formatting. A room that changes words echoes another
            # line: whether ours was accepted stays unknown.
            said = strip_formatting(lines[index].raw.partition(" :")[2])
            if seen and said.startswith(seen) and bool(said.strip()) == bool(seen.strip()):
                lines[index].echo = Receipt(ids=(MessageId(msgid),) if msgid else ())
                self._answered_counts[target] = index + 1
                return
        self.strange_echoes.add(target)

    def record_refusal(self, names: Collection[str], reason: str, *, anybody: bool) -> None:
        """Record a refusal of a line to one of `names`, or, with `anybody`, perhaps to an unnamed
        target.
        """
        target = next((line.target for line in self.lines if line.target in names), "")
        if target or (anybody and self.lines):  # with no lines, it is about something else
            self._refusals[target] += 1
            self._answered_counts[target] += 1
            self._reasons.setdefault(target, reason)

    def outcomes(self) -> Iterator[tuple[SendItem, Receipt | SendError]]:
        """Return the outcome of each line, once the server has answered the barrier."""
        silent = Counter(line.target for line in self.lines if line.echo is None)
        nameless = self._refusals[""]
        refused = sum(min(self._refusals[target], count) for target, count in silent.items())
        for line in self.lines:
            refusals, reason = (
                self._refusals[line.target],
                self._reasons.get(line.target) or self._reasons.get("", ""),
            )
            if line.echo is not None or not (refusals or nameless):
                yield line, line.echo or Receipt()
            elif refusals >= silent[line.target] or refused + nameless >= silent.total():
                yield line, refusal_error(reason)
            else:
                yield line, Uncertain(f"perhaps it was not said: {reason}")


NO_SUCH_NICK = "(401)"
"""End of the reason if nobody has that nick: ERR_NOSUCHNICK."""


_LINES: Final = "lines"
MAX_IN_FLIGHT = 4
"""Unconfirmed parts that trigger a barrier: the burst that servers allow."""
_MAX_UNCONFIRMED_LINES = 64
"""Unconfirmed lines that trigger a barrier, so that answers to CTCP never pile up."""
_MAX_TARGETS: Final = 1_000


class IrcOutgoing:
    """Send queue of one connection. `run` it, `close` it when the connection is gone."""

    def __init__(
        self, connection: IrcConnection, state: IrcState, clock: Clock, rate: Rate
    ) -> None:
        self._connection, self._state, self._clock = connection, state, clock
        self._bucket = TokenBuckets(rate)
        self._waiting: deque[SendItem] = deque()
        self._window = SendWindow()
        self._pending: deque[SendWindow] = deque()
        self._is_ping_wanted = False
        self._whois_since: dict[str, float] = {}
        """Folded nick -> time of the WHOIS request that is not answered yet."""
        self.whois_ends = RoomSignals()
        """Notified with a folded nick when its WHOIS has ended."""
        self._tokens = itertools.count(1)
        self._turns, self._last_turns = itertools.count(1), LruDict[str, int](_MAX_TARGETS)
        """Counter of the lines, and the number of the last one to each chat or folded target; an
        empty one for lines of our own."""
        self._wake = asyncio.Event()
        self._is_lost = False
        """A line could not be written. `close` follows, once what the server has said before is
        read."""
        self._close_reason = ""

    def queue_lines(self, lines: Iterable[str], target: str = "") -> None:
        """Append lines of our own; `target` (folded) if they are messages, which may be refused.

        An equal queued line is removed first, for the new one may undo lines between the two: a
        server that makes us repeat a line must not fill our memory.
        """
        for raw in lines:
            same = (item for item in self._waiting if item.future is None and item.raw == raw)
            if not target and (earlier := next(same, None)):
                self._waiting.remove(earlier)
            self._waiting.append(SendItem(raw, target))
        self._wake.set()

    def write_if_idle(self, raw: str) -> bool:
        """Write an optional line, if the rate limit leaves room for it and one more; False: not
        written.
        """
        free = (
            not self._waiting
            and self._bucket.wait_s(_LINES, self._clock.monotonic(), tokens=2) == 0
        )
        return free and not self._close_reason and self._write(raw)

    def is_free(self) -> bool:
        """Return whether a message would be written at once."""
        return (
            not self._waiting
            and not self._close_reason
            and not self._is_barrier_due(None)
            and self._bucket.wait_s(_LINES, self._clock.monotonic()) == 0
        )

    def _write(self, raw: str) -> bool:
        """Write a line and count it. False: the connection is dead."""
        self._bucket.use(_LINES, self._clock.monotonic())
        self._is_lost = not self._connection.write(raw)
        return not self._is_lost

    def queue_ping(self) -> None:
        """Set a barrier as soon as the rate limit allows, before the waiting items."""
        self._is_ping_wanted = True
        self._wake.set()

    async def send(
        self,
        raw: str,
        target: str,
        before_send: BeforeSend = no_before_send,
        *,
        lone_command: str = "",
        chat: RoomId | None = None,
    ) -> Receipt:
        """Send one line to the folded `target`; return once the server has certainly accepted it.
        Raises SendError.

        `lone_command`: the line is this command, not a message: it gets barriers of its own, so
        that its refusal is never attributed to a message. `chat`: it is sent only while that person
        is known to have a nick, and to that nick; else `RecipientAway` is raised. `before_send` is
        awaited when it is the line's turn and the rate limit allows, before it is written.
        """
        if self._close_reason:
            raise Unreachable(self._close_reason)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append(SendItem(raw, target, future, before_send, lone_command, chat))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Write queued lines at the bucket's rate, until one cannot be written."""
        while not self._is_lost:
            item = self._choose_next()
            barrier = self._is_barrier_due(item)
            if item is None and not barrier:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_s = self._bucket.wait_s(_LINES, self._clock.monotonic())
            if wait_s > 0:
                await self._clock.sleep(wait_s)  # the item may be cancelled meanwhile
            elif item is None or barrier:
                self._write_ping()
            elif item.chat is not None and not self._resolve_nick(item, item.chat):
                continue
            elif not item.is_handed_over:
                await self._call_before_send(item)
            elif self._write(item.raw):
                self._waiting.remove(item)
                self._last_turns.put(item.chat or item.target, next(self._turns))
                if item.target:
                    self._window.lines.append(item)

    def _resolve_nick(self, item: SendItem, chat: RoomId) -> bool:
        """Return whether the item may be written now, to its resolved nick. Else it waits, or is
        failed.
        """
        now_s = self._clock.monotonic()
        nick, state = resolve_target(self._state, chat, now_s)
        folded = self._state.isupport.fold(nick)
        if state == "known":
            command, _, rest = item.raw.split(" ", 2)
            item.target, item.raw = folded, f"{command} {nick} {rest}"
            return True
        if state == "other":
            self._fail_away(chat)
        elif any(line.target == folded for line in self._window.lines):
            self._write_ping()  # a refusal of these lines would be taken for an answer to WHOIS
        else:
            self._whois_since[folded] = now_s
            for raw in whois_lines(self._state, nick):
                self._write(raw)
        return False

    def _is_held(self, chat: RoomId) -> bool:
        """Return whether items for this person wait for WHOIS, or for the result of lines to them
        under another nick.
        """
        now_s = self._clock.monotonic()
        nick = self._state.isupport.fold(resolve_target(self._state, chat, now_s)[0])
        windows = [*self._pending, self._window]
        return nick in self._whois_since or any(
            line.chat == chat and line.target != nick for window in windows for line in window.lines
        )

    def _fail_away(self, chat: RoomId) -> None:
        """Fail all that waits for this person, who is not known to be present."""
        for item in [item for item in self._waiting if item.chat == chat]:
            self._waiting.remove(item)
            item.settle(RecipientAway(absence_text(chat)))

    def handle_whois(self, nick: str) -> None:
        """Go on with what waits for WHOIS about this (folded) nick."""
        self._whois_since.pop(nick, None)
        self.whois_ends.notify(nick)
        self._wake.set()

    def unanswered_whois(self, before_s: float) -> list[str]:
        """Return the folded nicks whose WHOIS was requested before `before_s`."""
        return [nick for nick, since_s in self._whois_since.items() if since_s < before_s]

    async def _call_before_send(self, item: SendItem) -> None:
        """Await the item's `before_send`. If it fails, the error is the caller's, and nothing is
        written.
        """
        item.is_handed_over = True
        try:
            await item.before_send()
        except Exception as error:  # noqa: BLE001 - the caller's own error, raised where it waits
            if item in self._waiting:
                self._waiting.remove(item)
            if item.future is not None and not item.future.done():
                item.future.set_exception(error)

    def _choose_next(self) -> SendItem | None:
        """Return the item whose turn it is: targets take turns, and in each of them the order is
        kept.

        So a short answer does not wait for long ones elsewhere. Nothing passes a line of our own,
        such as a JOIN.
        """
        for item in [item for item in self._waiting if item.future and item.future.cancelled()]:
            self._waiting.remove(item)
        best, best_turn = None, (True, 0)
        for item in self._waiting:
            if item.future is None:
                return best or item
            turn = (not item.is_handed_over, self._last_turns.get(item.chat or item.target, 0))
            is_held = item.chat is not None and self._is_held(item.chat)
            if not is_held and (best is None or turn < best_turn):
                best, best_turn = item, turn
        return best

    def _is_barrier_due(self, item: SendItem | None) -> bool:
        lines = self._window.lines
        parts = sum(line.future is not None for line in lines)
        idle = item is None or item.future is None
        apart = lines and (lines[0].lone_command or (item is not None and item.lone_command))
        return bool(
            self._is_ping_wanted
            or apart
            or (parts and idle)
            or parts >= MAX_IN_FLIGHT
            or len(lines) >= _MAX_UNCONFIRMED_LINES
        )

    def _write_ping(self) -> None:
        token = f"reverie-{next(self._tokens)}"
        if self._write(format_line("PING", token)):
            self._window.token, self._window.sent_s = token, self._clock.monotonic()
            self._pending.append(self._window)
            self._window, self._is_ping_wanted = SendWindow(), False

    def oldest_ping_age_s(self) -> float:
        """Return the age of the oldest unanswered barrier; 0: there is none."""
        return self._clock.monotonic() - self._pending[0].sent_s if self._pending else 0.0

    def record_echo(self, told: Changes) -> None:
        line, window = told.line, self._pending[0] if self._pending else self._window
        window.record_echo(told.target, line.param(1), line.tags.get("msgid"))

    def handle_reply(self, line: IrcLine) -> None:
        """Process a numeric or FAIL: perhaps it refuses a line of ours."""
        # Answers come in order: before the PONG to a barrier, they are about lines written before
        # it.
        window = self._pending[0] if self._pending else self._window
        command = window.lines[0].lone_command if window.lines else ""
        if is_refusal(line, command):
            # The first parameter of a numeric is our own nick.
            params = line.params[line.command != "FAIL" :]
            names = set(map(self._state.isupport.fold, params))
            window.record_refusal(names, refusal_reason(line), anybody=is_untargeted(line))

    def handle_pong(self, line: IrcLine) -> None:
        """Match by token; a server that does not repeat it (jaraco's) still answers in order."""
        tokens = [window.token for window in self._pending]
        index = next((tokens.index(param) for param in line.params if param in tokens), 0)
        for _ in range(min(index + 1, len(self._pending))):
            for item, outcome in self._pending.popleft().outcomes():
                is_gone = isinstance(outcome, Rejected) and outcome.reason.endswith(NO_SUCH_NICK)
                if item.chat and is_gone:
                    item.settle(RecipientAway(absence_text(item.chat)))
                    self._fail_away(item.chat)  # their order is that of the calls
                item.settle(outcome)
        self._wake.set()

    def close(self, reason: str, *, is_complete: bool = False) -> None:
        """Fail all items: the connection is gone. What was echoed was sent, other written lines are
        uncertain, waiting ones were surely not sent.

        `is_complete`: the server has said goodbye, so we have all its answers. It works in order:
        behind a PING without an answer it has processed nothing; and before, only what it echoed,
        if it echoes. An echo of a private message may come late, from another server.
        """
        self._close_reason = self._close_reason or reason
        echoes, is_room = "echo-message" in self._state.caps, self._state.isupport.is_room
        outcomes: list[tuple[SendItem, Receipt | SendError]] = []
        for number, window in enumerate([*self._pending, self._window]):
            for line in window.lines:
                is_changed = line.target in window.strange_echoes  # the room changes what is said
                is_unseen = number > 0 or (echoes and is_room(line.target) and not is_changed)
                error = Unreachable if is_complete and is_unseen else Uncertain
                outcomes.append((line, line.echo or error(reason)))
        outcomes += [(item, Unreachable(reason)) for item in self._waiting]
        # Cleared before any future is resolved: its callbacks may look at this object.
        self._waiting.clear()
        self._whois_since.clear()
        self._pending.clear()
        self._window = SendWindow()
        for item, outcome in outcomes:
            item.settle(outcome)
