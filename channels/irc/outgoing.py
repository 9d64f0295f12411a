"""What we send on one connection: paced, in order, and confirmed by barriers.

IRC has no acknowledgements, but a server answers in order: when it has answered a PING, it has dealt with
all that was written before, and has said so if it refused any of it (RFC 1459 section 4.6.2).
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from channels.base import Going, Rejected, SendError, Uncertain, Unreachable, unrecorded
from channels.irc.window import Verdict, Window
from channels.irc.wire import Isupport, Line, line
from gateway.clock import Clock
from gateway.events import Receipt

WINDOW = 4
"""Parts that may be unconfirmed before a barrier is set: the burst that servers allow."""
_MOST_LINES = 64
"""The same for lines, so that answers to CTCP never pile up."""
# fmt: off
_TARGET_REFUSED = frozenset({
    "401", "402", "403", "404", "405", "406", "408", "415", "416", "432", "437", "439", "442",
    "447", "461", "477", "480", "482", "486", "489", "492", "494", "531", "539", "716",
})
# fmt: on
"""Numerics that refuse a message to the target they name; 301 (away) and 717 (told of us) do not."""
_ANY_REFUSED = frozenset(["407", "411", "412", "413", "414", "417"])
"""The same, for those that need not name a target."""


class Bucket:
    """Token bucket (RFC 2813 section 5.8 in today's words). Pure: time is handed in."""

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens, self._at_s = float(burst), now_s

    def wait_s(self, now_s: float) -> float:
        """How long until there is a token; 0: there is one."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        # A billionth of slack: floating point must not make us sleep for nothing.
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) / self._per_s

    def take(self) -> None:
        """Use a token up."""
        self._tokens -= 1


@dataclass(eq=False, slots=True)
class _Item:
    """Lines that belong together: one part of a post, or something of our own."""

    lines: deque[str]
    target: str = ""
    """Folded; empty: not a message."""
    done: asyncio.Future[Receipt] | None = None
    """None: not a part."""
    going: Going = unrecorded
    """Awaited before the first line is written."""
    gone: bool = False
    written: int = 0

    @property
    def dropped(self) -> bool:
        return self.done is not None and self.done.cancelled() and self.written == 0


@dataclass(eq=False, slots=True)
class _Ping:
    token: str
    covers: list[_Item]
    window: Window[_Item]
    sent_s: float


class Outgoing:
    """The way out of one connection. `run` it, `close` it when the connection is gone."""

    def __init__(self, clock: Clock, bucket: Bucket, write: Callable[[str], bool]) -> None:
        """`write` takes one line; False: the connection is dead and the line surely did not go out."""
        self._clock, self._bucket, self._write = clock, bucket, write
        self._waiting: deque[_Item] = deque()
        self._unconfirmed: list[_Item] = []
        """Parts that are written whole, no barrier behind them yet."""
        self._window: Window[_Item] = Window()
        """All that was written since the last barrier."""
        self._pings: deque[_Ping] = deque()
        self._tokens = itertools.count(1)
        self._wake = asyncio.Event()
        self._lost = ""

    def say(self, raw: str, target: str = "") -> None:
        """Queue a line of our own behind all others; `target` (folded) if it is a message, which may be refused."""
        self._waiting.append(_Item(deque([raw]), target))
        self._wake.set()

    def ping(self) -> None:
        """Set a barrier as soon as the pace allows, before what waits."""
        position = 1 if self._waiting and self._waiting[0].written else 0
        self._waiting.insert(position, _Item(deque()))
        self._wake.set()

    async def send(self, lines: list[str], target: str, going: Going = unrecorded) -> Receipt:
        """Send one part to the folded `target`; return once the server has certainly taken it. Raises SendError.

        `going` is awaited when it is the part's turn and the pace allows, before anything of it is written.
        """
        if self._lost:
            raise Unreachable(self._lost)
        item = _Item(deque(lines), target, asyncio.get_running_loop().create_future(), going)
        assert item.done is not None
        self._waiting.append(item)
        self._wake.set()
        return await item.done

    async def run(self) -> None:
        """Write what is queued, at the bucket's pace. Ends only by cancellation."""
        while True:
            self._drop_cancelled()
            barrier = self._barrier_due()
            if not self._waiting and not barrier:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_s = self._bucket.wait_s(self._clock.monotonic())
            if wait_s > 0:
                await self._clock.sleep(wait_s)
                continue  # who was first may have been cancelled meanwhile
            if not barrier and not self._waiting[0].gone:
                await self._go(self._waiting[0])
                continue  # the connection may be gone, or a barrier due, by now
            self._bucket.take()
            if barrier:
                self._write_ping()
            else:
                self._write_next()

    async def _go(self, item: _Item) -> None:
        """Let whoever sends this write down that it goes. A failure is theirs, and nothing of it is written."""
        item.gone = True
        try:
            await item.going()
        except Exception as error:  # noqa: BLE001 - the caller's own, handed back where it waits
            if item in self._waiting:
                self._waiting.remove(item)
            if item.done is not None and not item.done.done():
                item.done.set_exception(error)

    def _drop_cancelled(self) -> None:
        while self._waiting and self._waiting[0].dropped:
            self._waiting.popleft()

    def _barrier_due(self) -> bool:
        parts = len(self._unconfirmed)
        idle = not any(item.done is not None and not item.dropped for item in self._waiting)
        midway = bool(self._waiting and self._waiting[0].written)
        due = (parts > 0 and idle) or parts >= WINDOW or len(self._window) >= _MOST_LINES
        return due and not midway

    def _write_ping(self) -> None:
        token = f"reverie-{next(self._tokens)}"
        if self._write(line("PING", token)):
            self._pings.append(_Ping(token, self._unconfirmed, self._window, self._clock.monotonic()))
            self._unconfirmed, self._window = [], Window()
        else:
            self.close("the connection is lost")

    def _write_next(self) -> None:
        item = self._waiting[0]
        if not item.lines:
            self._waiting.popleft()
            self._write_ping()
        elif not self._write(item.lines[0]):
            self.close("the connection is lost")
        else:
            raw = item.lines.popleft()
            item.written += 1
            if item.target:
                self._window.wrote(item, item.target, raw.partition(" :")[2])
            if not item.lines:
                self._waiting.popleft()
                if item.done is not None:
                    self._unconfirmed.append(item)

    def oldest_ping_age_s(self) -> float:
        """How long the oldest unanswered barrier has been waiting; 0: none is."""
        return self._clock.monotonic() - self._pings[0].sent_s if self._pings else 0.0

    def feed(self, said: Line, me: str, isupport: Isupport) -> None:
        """Take in a line from the server: PONG, a refusal, or an echo of ours (`me` is our nick)."""
        # Answers come in order: before the PONG to a barrier, they are about what was written before it.
        window = self._pings[0].window if self._pings else self._window
        if said.command == "PONG":
            self._pong(said)
        elif said.command in _TARGET_REFUSED or said.command in _ANY_REFUSED:
            # The first parameter is our own nick.
            names = {isupport.fold(param) for param in said.params[1:]}
            window.refuse(names, _reason(said), anybody=said.command in _ANY_REFUSED)
        elif said.command == "FAIL" and said.param(0).upper() in {"PRIVMSG", "NOTICE", "*"}:
            window.refuse({isupport.fold(param) for param in said.params}, _reason(said), anybody=True)
        elif said.command in {"PRIVMSG", "NOTICE"} and isupport.fold(said.source.nick) == isupport.fold(me):
            window.echo(isupport.fold(said.param(0)), said.param(1), said.tags.get("msgid"))

    def _pong(self, said: Line) -> None:
        """Match by token; a server that does not repeat it (jaraco's) still answers in order."""
        tokens = [ping.token for ping in self._pings]
        known = next((tokens.index(param) for param in said.params if param in tokens), 0)
        for _ in range(min(known + 1, len(self._pings))):
            ping = self._pings.popleft()
            verdicts = ping.window.verdicts()
            for item in ping.covers:
                _finish(item, verdicts[item])

    def close(self, reason: str) -> None:
        """The connection is gone: written parts are uncertain, waiting ones were surely not sent."""
        self._lost = self._lost or reason
        # Taken apart before anybody is told: whoever is told may look.
        items = [item for ping in self._pings for item in ping.covers] + self._unconfirmed + list(self._waiting)
        self._waiting.clear()
        self._pings.clear()
        self._unconfirmed, self._window = [], Window()
        for item in items:
            if item.done is not None and not item.done.done():
                error: SendError = Uncertain(reason) if item.written else Unreachable(reason)
                item.done.set_exception(error)


def _finish(item: _Item, verdict: Verdict) -> None:
    if item.done is None or item.done.done():
        return
    match verdict.fate:
        case "taken":
            item.done.set_result(Receipt(ids=verdict.ids))
        case "refused":
            item.done.set_exception(Rejected(verdict.reason))
        case "unknown":
            item.done.set_exception(Uncertain(f"refused in part: {verdict.reason}"))


def _reason(said: Line) -> str:
    return f"{said.param(-1) or 'refused'} ({said.command})"
