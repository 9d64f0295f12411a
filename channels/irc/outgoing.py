"""What we send on one connection: paced, in order, and confirmed by barriers.

IRC has no acknowledgements, but a server answers in order: when it has answered a PING, it has dealt with
all that was written before, and has said so if it refused any of it (RFC 1459 section 4.6.2). Where the
server answers by label, each line is confirmed by its own answer instead, however late that comes.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable

from channels.base import BeforeSend, RecipientAway, SendError, Uncertain, Unreachable, no_before_send
from channels.irc import refusals
from channels.irc.batches import LabelClosed, ReceivedLine
from channels.irc.bucket import IrcTokenBucket
from channels.irc.identity import IdentityState, absence_text
from channels.irc.isupport import Isupport
from channels.irc.labels import LabelTracker
from channels.irc.parts import NO_SUCH_NICK, DirectDelivery, PingBarrier, SendItem, resolve_item
from channels.irc.senders import message_target
from channels.irc.window import LineVerdict, SendWindow
from channels.irc.wire import IrcLine, add_tags, format_line
from gateway.clock import Clock
from gateway.events import Receipt, RoomId

MAX_IN_FLIGHT = 4
"""Parts that may be unconfirmed before a barrier is set: the burst that servers allow."""
_MAX_UNCONFIRMED_LINES = 64
"""The same for lines, so that answers to CTCP never pile up."""
_MAX_RESENDS = 2


class IrcOutgoing:
    """The way out of one connection. `run` it, `close` it when the connection is gone."""

    def __init__(self, clock: Clock, bucket: IrcTokenBucket, write: Callable[[str], bool]) -> None:
        """`write` takes one line; False: the connection is dead and the line surely did not go out."""
        self._clock, self._bucket, self._write = clock, bucket, write
        self._waiting: deque[SendItem] = deque()
        self._unconfirmed: list[SendItem] = []
        """Parts that are written whole, no barrier behind them yet."""
        self._window: SendWindow[SendItem] = SendWindow()
        """All that was written since the last barrier."""
        self._pings: deque[PingBarrier] = deque()
        self._unlabelled: set[SendItem] = set()
        """Parts that are being written, to be confirmed by a barrier."""
        self._labels: LabelTracker[SendItem] = LabelTracker()
        self.uses_labels = False
        """The server agreed to answer by label. Set it as that changes; what is under way goes on as it began."""
        self._labels_ignored = False
        """It does not keep to that."""
        self.resolve_target: Callable[[RoomId], tuple[str, IdentityState]] = lambda chat: (
            message_target(chat),
            "known",
        )
        """As `Identities.whom`."""
        self.whois_lines: Callable[[str], list[str]] = lambda _: []
        """As `Identities.ask`."""
        self.fold: Callable[[str], str] = str.lower
        self._awaiting_whois: dict[str, tuple[float, list[SendItem]]] = {}
        """Folded nick -> since when WHOIS is to tell who has it, and what waits for that."""
        self._blocked: list[SendItem] = []
        """What waits until it is known what became of lines to the same person under another nick."""
        self._tokens, self._numbers = itertools.count(1), itertools.count(1)
        self._wake = asyncio.Event()
        self._close_reason = ""

    def queue_line(self, raw: str, target: str = "") -> None:
        """Queue a line of our own behind all others; `target` (folded) if it is a message, which may be refused.

        The same line twice in the queue is the later one, for it may undo what stands between: a server that asks again
        and again must not fill our memory.
        """
        if not target and (
            same := next((item for item in self._waiting if item.future is None and raw in item.lines), None)
        ):
            self._waiting.remove(same)
        self._waiting.append(SendItem(deque([raw]), target))
        self._wake.set()

    def write_if_idle(self, raw: str) -> bool:
        """Write a line that nobody needs, if the pace allows it and the next line, too; False: not written."""
        free = not self._waiting and self._bucket.wait_s(self._clock.monotonic(), tokens=2) == 0
        if free and not self._close_reason and self._write(raw):
            self._bucket.take()
            return True
        return False

    def queue_ping(self) -> None:
        """Set a barrier as soon as the pace allows, before what waits."""
        position = 1 if self._waiting and self._waiting[0].lines_written else 0
        self._waiting.insert(position, SendItem(deque()))
        self._wake.set()

    async def send(
        self,
        lines: list[str],
        target: str,
        going: BeforeSend = no_before_send,
        *,
        whole: str = "",
        alone: str = "",
        direct: DirectDelivery | None = None,
    ) -> Receipt:
        """Send one part to the folded `target`; return once the server has certainly taken it. Raises SendError.

        `whole`: the lines are one multiline batch with this text. `alone`: it is this command, and no message: it gets
        barriers of its own, so that its refusal is never taken for a message's. `direct`: it goes only while that
        person is known to have a nick; else `RecipientAway` is raised. `going` is awaited when it is the part's turn
        and the pace allows, before anything of it is written.
        """
        if self._close_reason:
            raise Unreachable(self._close_reason)
        item = SendItem(deque(lines), target, asyncio.get_running_loop().create_future(), going, whole, alone, direct)
        item.texts, item.position = tuple(lines), next(self._numbers)
        assert item.future is not None
        self._waiting.append(item)
        self._wake.set()
        return await item.future

    async def run(self) -> None:
        """Write what is queued, at the bucket's pace. Ends only by cancellation."""
        while True:
            self._discard_cancelled()
            barrier = self._is_barrier_due()
            if not self._waiting and not barrier:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_s = self._bucket.wait_s(self._clock.monotonic())
            if wait_s > 0:
                await self._clock.sleep(wait_s)
                continue  # who was first may have been cancelled meanwhile
            if not barrier and not self._resolve_nick(self._waiting[0]):
                continue
            if not barrier and not self._waiting[0].is_handed_over:
                await self._call_before_send(self._waiting[0])
                continue  # the connection may be gone, or a barrier due, by now
            self._bucket.take()
            if barrier:
                self._write_ping()
            else:
                self._write_next()

    def _resolve_nick(self, item: SendItem) -> bool:
        """Whether it may be written now, to whoever it is for. Else it is put aside, or given up."""
        if item.direct is None or not item.lines:
            return True
        nick, state = self.resolve_target(item.direct.chat)
        folded = self.fold(nick)
        if state == "known" or (state == "told" and item.is_whois_checked):
            if not self._is_pending_elsewhere(item.direct.chat, folded):
                item.nick, item.target = nick, folded
                return True
            self._blocked.append(self._waiting.popleft())
            if self._unconfirmed:
                self._bucket.take()
                self._write_ping()
        elif state == "other":
            self._waiting.popleft()
            self._fail_away(item, item.direct.chat)
        elif folded in self._awaiting_whois:
            self._awaiting_whois[folded][1].append(self._waiting.popleft())
        elif self._window.has_target(folded):  # a refusal of these lines would be taken for an answer, or the reverse
            self._bucket.take()
            self._write_ping()
        else:
            self._awaiting_whois[folded] = self._clock.monotonic(), [self._waiting.popleft()]
            for raw in self.whois_lines(nick):
                self._bucket.take()
                if not self._write(raw):
                    self.close("the connection is lost")
                    break
        return False

    def _is_pending_elsewhere(self, chat: RoomId, folded: str) -> bool:
        """Whether lines to the same person under another nick are not answered yet: they may have to go again."""
        open_ = [*self._unconfirmed, *(item for ping in self._pings for item in ping.items), *self._labels.owners()]
        return any(one.direct is not None and one.direct.chat == chat and one.target != folded for one in open_)

    def _fail_away(self, item: SendItem, chat: RoomId) -> None:
        """Nobody that we know of is the person who it is for."""
        self._unlabelled.discard(item)
        self._labels.forget(item)
        if item.future is not None and not item.future.done():
            cut_off = Uncertain(f"perhaps not all of it was said: {absence_text(chat)}")
            item.future.set_exception(cut_off if item.lines_written else RecipientAway(absence_text(chat)))

    def _requeue(self, items: Iterable[SendItem]) -> None:
        """They are the next ones, in their order."""
        first = 1 if self._waiting and self._waiting[0].lines_written else 0
        for item in sorted(items, key=lambda one: one.position):
            position = first
            while position < len(self._waiting) and 0 < self._waiting[position].position < item.position:
                position += 1
            self._waiting.insert(position, item)
        self._wake.set()

    def handle_whois(self, nick: str) -> None:
        """The server has answered WHOIS about this (folded) nick."""
        _, items = self._awaiting_whois.pop(nick, (0.0, []))
        chats = {item.direct.chat for item in items if item.direct is not None}
        self._requeue(items)
        for item in self._waiting:
            item.is_whois_checked = item.is_whois_checked or (item.direct is not None and item.direct.chat in chats)

    def release_unanswered(self, before_s: float) -> bool:
        """Go on with what waits for an answer to WHOIS since before; whether anything does."""
        late = [nick for nick, (since_s, _) in self._awaiting_whois.items() if since_s < before_s]
        for nick in late:
            self.handle_whois(nick)
        return bool(late)

    async def _call_before_send(self, item: SendItem) -> None:
        """Let whoever sends this write down that it goes. A failure is theirs, and nothing of it is written."""
        item.is_handed_over = True
        try:
            await item.before_send()
        except Exception as error:  # noqa: BLE001 - the caller's own, handed back where it waits
            if item in self._waiting:
                self._waiting.remove(item)
            if item.future is not None and not item.future.done():
                item.future.set_exception(error)

    def _discard_cancelled(self) -> None:
        while self._waiting and self._waiting[0].is_cancelled:
            self._waiting.popleft()

    def _is_barrier_due(self) -> bool:
        parts = len(self._unconfirmed)
        idle = not any(item.future is not None and not item.is_cancelled for item in self._waiting)
        midway = bool(self._waiting and self._waiting[0].lines_written)
        due = (parts > 0 and idle) or parts >= MAX_IN_FLIGHT or len(self._window) >= _MAX_UNCONFIRMED_LINES
        apart = len(self._window) > 0 and bool(
            self._window.lone_command or (self._waiting and self._waiting[0].lone_command)
        )
        return (due or apart) and not midway

    def _write_ping(self) -> None:
        token = f"reverie-{next(self._tokens)}"
        if self._write(format_line("PING", token)):
            self._pings.append(PingBarrier(token, self._unconfirmed, self._window, self._clock.monotonic()))
            self._unconfirmed, self._window = [], SendWindow()
        else:
            self.close("the connection is lost")

    def _write_next(self) -> None:
        item = self._waiting[0]
        if not item.lines:
            self._waiting.popleft()
            self._write_ping()
        elif not self._write(self._next_wire_line(item)):
            self.close("the connection is lost")
        else:
            item.lines.popleft()
            item.lines_written += 1
            if not item.lines:
                self._waiting.popleft()
                if item in self._unlabelled:
                    self._unlabelled.discard(item)
                    self._unconfirmed.append(item)
                elif item.future is not None and (verdict := self._labels.complete(item)):
                    self._settle(item, verdict)

    def _next_wire_line(self, item: SendItem) -> str:
        """The next line as it goes out, with a label if the server knows what to do with it; and remember it."""
        raw = self._next_line(item)
        if not item.target:
            return raw
        if item.lines_written == 0 and item.future is not None and (self._labels_ignored or not self.uses_labels):
            self._unlabelled.add(item)
        if item.multiline_text and item.lines_written:
            return raw  # the server answers the opening of the batch
        if item.future is None or item in self._unlabelled:
            self._window.lone_command = item.lone_command
            self._window.add_line(item, item.target, item.multiline_text or raw.partition(" :")[2])
            return raw
        return add_tags(raw, {"label": self._labels.add_line(item, self._clock.monotonic())})

    def _next_line(self, item: SendItem) -> str:
        """Its next line."""
        if item.direct is None:
            return item.lines[0]
        pieces = item.direct.split(item.nick, item.lines[0])
        if len(pieces) > 1:
            item.lines.popleft()
            item.lines.extendleft(reversed(pieces))
        return item.direct.format(item.nick, item.lines[0], item.lines_written == 0)

    def _settle(self, item: SendItem, verdict: LineVerdict) -> None:
        """Tell whoever waits for it, unless it goes again to the same person under the nick that they have now."""
        refused = verdict.fate == "refused" and verdict.reason.endswith(NO_SUCH_NICK)
        if (
            item.direct is None
            or not refused
            or item.resend_count >= _MAX_RESENDS
            or self.resolve_target(item.direct.chat)[1] == "other"
        ):
            resolve_item(item, verdict)
        else:
            item.resend_count, item.lines_written, item.lines = item.resend_count + 1, 0, deque(item.texts)
            self._blocked.append(item)

    def _requeue_blocked(self) -> None:
        """Something that was written is answered."""
        behind, self._blocked = self._blocked, []
        self._requeue(behind)

    def oldest_ping_age_s(self) -> float:
        """How long the oldest unanswered barrier has been waiting; 0: none is."""
        return self._clock.monotonic() - self._pings[0].sent_s if self._pings else 0.0

    def expire_labels(self, patience_s: float) -> None:
        """Whoever has waited longer than that for an answer by label is told that nobody knows.

        Then barriers are set again: the next one shall not wait so long.
        """
        for item in self._labels.take_overdue(self._clock.monotonic() - patience_s):
            self._labels_ignored = True
            resolve_item(item, LineVerdict("unknown", reason="the server did not answer"))

    def feed(self, heard: ReceivedLine | LabelClosed, me: str, isupport: Isupport) -> None:
        """Take in a line from the server: PONG, a refusal, or an echo of ours (`me` is our nick)."""
        if heard.label:
            if isinstance(heard, ReceivedLine):
                self._labels.feed(heard.label, heard.line)
            if not (isinstance(heard, ReceivedLine) and not heard.is_complete) and (
                ended := self._labels.close(heard.label)
            ):
                self._settle(*ended)
                self._requeue_blocked()
            return
        if isinstance(heard, LabelClosed):
            return
        said = heard.line
        # Answers come in order: before the PONG to a barrier, they are about what was written before it.
        window = self._pings[0].window if self._pings else self._window
        if said.command == "PONG":
            self._handle_pong(said)
        elif refusals.is_message_refusal(said) or refusals.is_command_refusal(said, window.lone_command):
            # The first parameter of a numeric is our own nick.
            names = {isupport.fold(param) for param in said.params[said.command != "FAIL" :]}
            window.record_refusal(names, refusals.refusal_reason(said), anybody=refusals.is_untargeted(said))
        elif said.command in {"PRIVMSG", "NOTICE"} and isupport.fold(said.source.nick) == isupport.fold(me):
            window.record_echo(isupport.fold(said.param(0)), said.param(1), said.tags.get("msgid"))

    def _handle_pong(self, said: IrcLine) -> None:
        """Match by token; a server that does not repeat it (jaraco's) still answers in order."""
        tokens = [ping.token for ping in self._pings]
        known = next((tokens.index(param) for param in said.params if param in tokens), 0)
        for _ in range(min(known + 1, len(self._pings))):
            ping = self._pings.popleft()
            verdicts = ping.window.verdicts()
            for item in ping.items:
                self._settle(item, verdicts[item])
        self._requeue_blocked()

    def close(self, reason: str) -> None:
        """The connection is gone: written parts are uncertain, waiting ones were surely not sent."""
        self._close_reason = self._close_reason or reason
        # Taken apart before anybody is told: whoever is told may look.
        items = [item for ping in self._pings for item in ping.items] + self._unconfirmed + list(self._waiting)
        items += [item for item in self._labels.owners() if item not in items]
        items += [*self._blocked, *(item for _, waiting in self._awaiting_whois.values() for item in waiting)]
        self._waiting.clear()
        self._blocked.clear()
        self._awaiting_whois.clear()
        self._pings.clear()
        self._unconfirmed, self._window, self._labels = [], SendWindow(), LabelTracker()
        for item in items:
            if item.future is not None and not item.future.done():
                error: SendError = Uncertain(reason) if item.lines_written else Unreachable(reason)
                item.future.set_exception(error)
