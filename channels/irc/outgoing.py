"""Outgoing lines of one connection: paced, confirmed, in order for each target, and targets take
turns.

IRC has no acknowledgements, but a server answers in order: when it has answered a PING, it has
processed all lines written before, and has reported each refusal among them (RFC 1459 section
4.6.2). Such a PING is a barrier here. Where the server answers by label
(https://ircv3.net/specs/extensions/labeled-response), each line is confirmed by its own answer
instead: there is always exactly one, but it may be late (a refusal by another server of the
network).

Lines are paced by a token bucket (RFC 2813 section 5.8). `SendWindow` is pure; `IrcOutgoing` does
the writing.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from channels.base import (
    BeforeSend,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from channels.irc.compose import retarget
from channels.irc.config import IrcRateLimit
from channels.irc.identity import absence_text
from channels.irc.render import strip_formatting
from channels.irc.wire import (
    IrcLine,
    LabelClosed,
    ReceivedLine,
    add_tags,
    format_line,
    is_command_refusal,
    is_message_refusal,
    is_untargeted,
    refusal_error,
    refusal_reason,
)
from gateway.core.events import MessageId, Receipt, RoomId
from gateway.core.ratelimit import LruDict, Rate, TokenBuckets

if TYPE_CHECKING:
    from channels.irc.session import IrcSession


LineFate = Literal["taken", "refused", "unknown"]
_PERHAPS_CUT: Final = "perhaps not all of it was said"


def _outcome(
    fates: Collection[LineFate], ids: Iterable[MessageId | None], reason: str
) -> Receipt | SendError:
    """Return what became of lines that belong together; nobody knows if their fates differ."""
    if set(fates) == {"taken"}:
        return Receipt(ids=tuple(filter(None, ids)))
    return (
        refusal_error(reason)
        if set(fates) == {"refused"}
        else Uncertain(f"{_PERHAPS_CUT}: {reason}")
    )


@dataclass(eq=False, slots=True)
class _WrittenLine:
    owner: Hashable
    target: str
    text: str
    is_echoed: bool = False
    id: MessageId | None = None


_MIN_PACE: Final = 1 / 16
_RECOVERY_PER_S: Final = 0.1 / 3600
_MAX_FLOOD_KILLS, _FLOOD_WINDOW_S = 3, 3600.0


class FloodPace:
    """Share of the configured pace that an account uses, learned from the times the server threw it
    off for flooding.

    Each time halves it, and it grows by a tenth of the configured pace in an hour. Pure.
    """

    def __init__(self) -> None:
        self._share, self._since_s = 1.0, 0.0
        self._kills_s: deque[float] = deque(maxlen=_MAX_FLOOD_KILLS)

    def share(self, now_s: float) -> float:
        """Return the share, above 0, at most 1."""
        return min(1.0, self._share + (now_s - self._since_s) * _RECOVERY_PER_S)

    def rate(self, flood: IrcRateLimit, now_s: float) -> Rate:
        """Return the rate of the lines."""
        share = self.share(now_s)
        return Rate(max(1, int(flood.burst * share)), 60 * flood.per_s * share)

    def record_kill(self, now_s: float) -> float:
        """Halve the pace; return the seconds until the next connection, so that there are at most
        three in an hour.
        """
        self._share, self._since_s = max(_MIN_PACE, self.share(now_s) / 2), now_s
        self._kills_s.append(now_s)
        is_full = len(self._kills_s) == _MAX_FLOOD_KILLS
        return max(0.0, self._kills_s[0] + _FLOOD_WINDOW_S - now_s) if is_full else 0.0


class SendWindow:
    """Lines written between two barriers, and the server's answers to them. Targets are folded
    names.

    A server answers each line at most once: with an echo (with `echo-message`), with a numeric, or
    not at all. Numerics name a target, not a line. So, for each target: without a refusal all lines
    were accepted; as many refusals as lines without an echo refuse all of those; with fewer, echoed
    lines were accepted, and the fate of the others is unknown.
    """

    def __init__(self) -> None:
        self._lines: list[_WrittenLine] = []
        self.lone_command = ""
        """Command that is alone in the window; empty: messages."""
        self._answered_counts: Counter[str] = Counter()
        """Target -> number of its lines up to the last answer."""
        self._refusals: Counter[str] = Counter()
        """Target -> number of numerics that name it; empty target: numerics without one."""
        self._reasons: dict[str, str] = {}
        self._strange_echoes: set[str] = set()
        """Targets with an echo of other text than ours: the room changes what is said."""

    def add_line(self, owner: Hashable, target: str, text: str) -> None:
        """Record a written line."""
        self._lines.append(_WrittenLine(owner, target, text))

    def has_target(self, target: str) -> bool:
        """Return whether the window has a line to `target`."""
        return any(line.target == target for line in self._lines)

    def record_echo(self, target: str, text: str, msgid: str | None) -> None:
        """Record an echo of a line of ours. Unknown text (of a bouncer's other client) is
        ignored.
        """
        lines = [line for line in self._lines if line.target == target]
        for index in range(self._answered_counts[target], len(lines)):
            if _is_echo_of(lines[index].text, text):
                lines[index].is_echoed = True
                lines[index].id = MessageId(msgid) if msgid else None
                self._answered_counts[target] = index + 1
                return
        self._strange_echoes.add(target)

    def echoed(self, owner: Hashable) -> Receipt | None:
        """Return the receipt of an owner whose lines were all echoed; None: not all were."""
        lines = [line for line in self._lines if line.owner is owner]
        if not lines or not all(line.is_echoed for line in lines):
            return None
        return Receipt(ids=tuple(line.id for line in lines if line.id is not None))

    def is_unseen(self, owner: Hashable) -> bool:
        """Return whether a server that echoes at once surely relayed no line of `owner`, now that
        it says no more.
        """
        return not any(
            line.is_echoed or line.target in self._strange_echoes
            for line in self._lines
            if line.owner is owner
        )

    def record_refusal(self, names: Collection[str], reason: str, *, anybody: bool) -> None:
        """Record a refusal of a line to one of `names`, or, with `anybody`, perhaps to an unnamed
        target.
        """
        target = next((line.target for line in self._lines if line.target in names), "")
        if target or (anybody and self._lines):  # with no lines, it is about something else
            self._refusals[target] += 1
            self._answered_counts[target] += 1
            self._reasons.setdefault(target, reason)

    def __len__(self) -> int:
        return len(self._lines)

    def outcomes(self) -> dict[Hashable, Receipt | SendError]:
        """Return the outcome for each owner, once the server has answered the barrier."""
        silent = Counter(line.target for line in self._lines if not line.is_echoed)
        named = sum(min(self._refusals[target], count) for target, count in silent.items())
        nameless = self._refusals[""]
        fates: dict[str, LineFate] = {}
        for target, count in silent.items():
            if not self._refusals[target] and not nameless:
                fates[target] = "taken"
            elif self._refusals[target] >= count or named + nameless >= silent.total():
                fates[target] = "refused"
            else:
                fates[target] = "unknown"
        owned: dict[Hashable, list[_WrittenLine]] = {}
        for line in self._lines:
            owned.setdefault(line.owner, []).append(line)
        return {
            owner: _outcome(
                ["taken" if line.is_echoed else fates[line.target] for line in lines],
                [line.id for line in lines],
                self._reasons.get(lines[0].target) or self._reasons.get("", ""),
            )
            for owner, lines in owned.items()
        }


def _is_echo_of(written: str, echoed: str) -> bool:
    """Return whether the server echoed this line, perhaps cut or without formatting.

    A room that changes words gives False: whether the line was accepted stays unknown.
    """
    said, seen = strip_formatting(written), strip_formatting(echoed)
    return bool(seen) and said.startswith(seen) and bool(said.strip()) == bool(seen.strip())


NO_SUCH_NICK = "(401)"
"""End of the reason if nobody has that nick: ERR_NOSUCHNICK."""


@dataclass(eq=False, slots=True)
class SendItem:
    """Lines that belong together: one part of a post, or a line of our own."""

    lines: deque[str]
    """Lines to write."""
    target: str = ""
    """Folded; empty: not a message."""
    future: asyncio.Future[Receipt] | None = None
    """Result for the caller of `send`; None: not a part."""
    before_send: BeforeSend = no_before_send
    """Awaited before the first line is written."""
    multiline_text: str = ""
    """Set if the lines are one multiline batch: the server answers the batch, not its lines."""
    lone_command: str = ""
    """Command that the item is; empty: a message."""
    chat: RoomId | None = None
    """Set if the item is for one person, under whatever nick they have when it is written."""
    nick: str = ""
    """With `chat`: the nick it is written to."""
    all_lines: tuple[str, ...] = ()
    """All lines, to write them again under another nick."""
    resend_count: int = 0
    """Number of such repeats."""
    is_whois_checked: bool = False
    """WHOIS was requested for the item."""
    position: int = 0
    """Of two items for one person the lower one is written first."""
    is_handed_over: bool = False
    lines_written: int = 0
    labelled: "list[_LabelledLine]" = field(default_factory=list)
    """Lines written with a label."""

    @property
    def place(self) -> str:
        """The person or the folded room that it is for; empty: a line of our own."""
        return self.chat or self.target

    @property
    def is_cancelled(self) -> bool:
        return self.future is not None and self.future.cancelled() and self.lines_written == 0

    @property
    def labelled_outcome(self) -> Receipt | SendError | None:
        """Outcome of a labelled item; None: it is not labelled, or a line or an answer is
        missing.
        """
        if self.lines or not self.labelled or not all(line.is_answered for line in self.labelled):
            return None
        refusals = [line.refusal for line in self.labelled]
        fates: list[LineFate] = ["refused" if refusal else "taken" for refusal in refusals]
        return _outcome(
            fates, [line.id for line in self.labelled], next(filter(None, refusals), "")
        )


@dataclass(eq=False, slots=True)
class _LabelledLine:
    """Line written with a label (https://ircv3.net/specs/extensions/labeled-response), and the
    answer to it.
    """

    item: SendItem
    sent_s: float
    refusal: str = ""
    id: MessageId | None = None
    is_answered: bool = False


@dataclass(eq=False, slots=True)
class PingBarrier:
    """PING that is not answered yet."""

    token: str
    items: list[SendItem]
    window: SendWindow
    sent_s: float


_NUMERIC_DIGITS: Final = 3
_LINES: Final = "lines"
"""Key of the one bucket."""
MAX_IN_FLIGHT = 4
"""Unconfirmed parts that trigger a barrier: the burst that servers allow."""
_MAX_UNCONFIRMED_LINES = 64
"""Unconfirmed lines that trigger a barrier, so that answers to CTCP never pile up."""
_MAX_RESENDS = 2
_MAX_TARGETS: Final = 1_000


class IrcOutgoing:
    """Send queue of one connection. `run` it, `close` it when the connection is gone."""

    def __init__(self, session: "IrcSession", bucket: TokenBuckets) -> None:
        """Write with the session. `bucket`: rate of the lines."""
        self._session, self._clock, self._bucket = session, session.clock, bucket
        self._waiting: deque[SendItem] = deque()
        self._unconfirmed: list[SendItem] = []
        """Parts that are completely written, without a barrier behind them yet."""
        self._window: SendWindow = SendWindow()
        """Lines written since the last barrier."""
        self._pings: deque[PingBarrier] = deque()
        self._unlabelled: set[SendItem] = set()
        """Parts in progress that a barrier will confirm."""
        self._labels: dict[str, _LabelledLine] = {}
        """Label -> line without an answer so far."""
        self.uses_labels = False
        """The server agreed to answer by label. Set on every change; items in progress keep their
        way of confirmation.
        """
        self._label_patience_s = 0.0
        """Age at a barrier of a label whose answer does not come any more once that is answered; 0:
        not asked yet."""
        self._labels_ignored = False
        """The server agreed to labels but does not answer by them."""
        self._awaiting_whois: dict[str, tuple[float, list[SendItem]]] = {}
        """Folded nick -> time of the WHOIS request, and the items that wait for the answer."""
        self._blocked: list[SendItem] = []
        """Items that wait for the result of lines to the same person under another nick."""
        self._tokens, self._numbers, self._label_numbers = (
            itertools.count(1),
            itertools.count(1),
            itertools.count(1),
        )
        self._turns, self._last_turns = itertools.count(1), LruDict[str, int](_MAX_TARGETS)
        """Counter of the lines, and the number of the last one to each `SendItem.place`."""
        self._wake = asyncio.Event()
        self._is_lost = False
        """A line could not be written. `close` follows, once what the server has said before is
        read."""
        self._close_reason = ""

    def set_rate(self, rate: Rate) -> None:
        """Write at this rate from now on."""
        self._bucket.set_rate(rate)

    def queue_line(self, raw: str, target: str = "") -> None:
        """Append a line of our own; `target` (folded) if it is a message, which may be refused.

        An equal queued line is removed first, for the new one may undo lines between the two: a
        server that makes us repeat a line must not fill our memory.
        """
        if not target and (
            same := next(
                (item for item in self._waiting if item.future is None and raw in item.lines), None
            )
        ):
            self._waiting.remove(same)
        self._waiting.append(SendItem(deque([raw]), target))
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

    def _write(self, raw: str) -> bool:
        """Write a line and count it. False: the connection is dead."""
        self._bucket.use(_LINES, self._clock.monotonic())
        return self._session.write(raw)

    def queue_ping(self) -> None:
        """Set a barrier as soon as the rate limit allows, before the waiting items."""
        position = 1 if self._waiting and self._waiting[0].lines_written else 0
        self._waiting.insert(position, SendItem(deque()))
        self._wake.set()

    async def send(
        self,
        lines: Sequence[str],
        target: str,
        before_send: BeforeSend = no_before_send,
        *,
        multiline_text: str = "",
        lone_command: str = "",
        chat: RoomId | None = None,
    ) -> Receipt:
        """Send one part to the folded `target`; return once the server has certainly accepted it.
        Raises SendError.

        `multiline_text`: the lines are one multiline batch with this text. `lone_command`: the part
        is this command, not a message: it gets barriers of its own, so that its refusal is never
        attributed to a message. `chat`: it is sent only while that person is known to have a nick,
        and to that nick; else `RecipientAway` is raised. `before_send` is awaited when it is the
        part's turn and the rate limit allows, before anything of it is written.
        """
        if self._close_reason:
            raise Unreachable(self._close_reason)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        item = SendItem(
            deque(lines), target, future, before_send, multiline_text, lone_command, chat
        )
        item.all_lines, item.position = tuple(lines), next(self._numbers)
        self._waiting.append(item)
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Write queued lines at the bucket's rate. Ends only by cancellation."""
        while True:
            if self._is_lost:
                await asyncio.Event().wait()
            self._choose_next()
            barrier = self._is_barrier_due()
            if not self._waiting and not barrier:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_s = self._bucket.wait_s(_LINES, self._clock.monotonic())
            if wait_s > 0:
                await self._clock.sleep(wait_s)
                continue  # the first item may have been cancelled meanwhile
            if not barrier and not self._resolve_nick(self._waiting[0]):
                continue
            if not barrier and not self._waiting[0].is_handed_over:
                await self._call_before_send(self._waiting[0])
                continue  # the connection may be gone, or a barrier due, by now
            if barrier:
                self._write_ping()
            else:
                self._write_next()

    def _resolve_nick(self, item: SendItem) -> bool:
        """Return whether the item may be written now, to its resolved nick. Else it is set aside,
        or failed.
        """
        if item.chat is None or not item.lines:
            return True
        nick, state = self._session.resolve_target(item.chat)
        folded = self._session.isupport.fold(nick)
        if state == "known" or (state == "confirmed" and item.is_whois_checked):
            if not self._is_pending_elsewhere(item.chat, folded):
                item.nick, item.target = nick, folded
                return True
            self._blocked.append(self._waiting.popleft())
            if self._unconfirmed:
                self._write_ping()
        elif state == "other":
            self._fail_away(self._waiting.popleft(), item.chat)
        elif folded in self._awaiting_whois:
            self._awaiting_whois[folded][1].append(self._waiting.popleft())
        elif self._window.has_target(
            folded
        ):  # a refusal of these lines would be confused with an answer to WHOIS
            self._write_ping()
        else:
            self._awaiting_whois[folded] = self._clock.monotonic(), [self._waiting.popleft()]
            if not all(self._write(raw) for raw in self._session.identities.whois_lines(nick)):
                self._is_lost = True
        return False

    def _is_pending_elsewhere(self, chat: RoomId, folded: str) -> bool:
        """Return whether lines to the same person under another nick are unanswered: they may have
        to be repeated.
        """
        pending = [*self._unconfirmed, *(item for ping in self._pings for item in ping.items)]
        pending += [line.item for line in self._labels.values()]
        return any(item.chat == chat and item.target != folded for item in pending)

    def _fail_away(self, item: SendItem, chat: RoomId) -> None:
        """Fail the item because its recipient is not known to be present."""
        self._unlabelled.discard(item)
        self._forget_labels(item)
        if item.future is not None and not item.future.done():
            cut_off = Uncertain(f"{_PERHAPS_CUT}: {absence_text(chat)}")
            item.future.set_exception(
                cut_off if item.lines_written else RecipientAway(absence_text(chat))
            )

    def _requeue(self, items: Iterable[SendItem]) -> None:
        """Insert the items at the front; those for one person keep their order."""
        first = 1 if self._waiting and self._waiting[0].lines_written else 0
        for item in sorted(items, key=lambda entry: entry.position):
            earlier = [
                index
                for index, other in enumerate(self._waiting, 1)
                if other.place == item.place and other.position < item.position
            ]
            self._waiting.insert(max([first, *earlier]), item)
        self._wake.set()

    def handle_whois(self, nick: str) -> None:
        """Release the items that wait for WHOIS about this (folded) nick."""
        _, items = self._awaiting_whois.pop(nick, (0.0, []))
        chats = {item.chat for item in items}
        self._requeue(items)
        for item in self._waiting:
            item.is_whois_checked = item.is_whois_checked or item.chat in chats

    def release_unanswered(self, before_s: float) -> bool:
        """Release items that have waited for WHOIS since before `before_s`; return whether there
        were any.
        """
        late = [nick for nick, (since_s, _) in self._awaiting_whois.items() if since_s < before_s]
        for nick in late:
            self.handle_whois(nick)
        return bool(late)

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

    def _choose_next(self) -> None:
        """Move the item whose turn it is to the front: targets take turns, and in each of them the
        order is kept.

        So a short answer does not wait for long ones elsewhere. Nothing passes a line of our own,
        such as a JOIN.
        """
        for item in [item for item in self._waiting if item.is_cancelled]:
            self._waiting.remove(item)
        if not self._waiting or self._waiting[0].is_handed_over:
            return
        movable = itertools.takewhile(lambda item: item.future is not None, self._waiting)
        chosen = min(
            movable, key=lambda item: self._last_turns.get(item.place, 0), default=self._waiting[0]
        )
        self._waiting.remove(chosen)
        self._waiting.appendleft(chosen)

    def _is_barrier_due(self) -> bool:
        parts = len(self._unconfirmed)
        idle = not any(item.future is not None and not item.is_cancelled for item in self._waiting)
        midway = bool(self._waiting and self._waiting[0].lines_written)
        due = (
            (parts > 0 and idle)
            or parts >= MAX_IN_FLIGHT
            or len(self._window) >= _MAX_UNCONFIRMED_LINES
        )
        apart = len(self._window) > 0 and bool(
            self._window.lone_command or (self._waiting and self._waiting[0].lone_command)
        )
        return (due or apart) and not midway

    def _write_ping(self) -> None:
        token = f"reverie-{next(self._tokens)}"
        if self._write(format_line("PING", token)):
            self._pings.append(
                PingBarrier(token, self._unconfirmed, self._window, self._clock.monotonic())
            )
            self._unconfirmed, self._window = [], SendWindow()
        else:
            self._is_lost = True

    def _write_next(self) -> None:
        item = self._waiting[0]
        if not item.lines:
            self._waiting.popleft()
            self._write_ping()
        elif not self._write(self._next_wire_line(item)):
            self._is_lost = True
        else:
            item.lines.popleft()
            item.lines_written += 1
            self._last_turns.put(item.place, next(self._turns))
            if not item.lines:
                self._waiting.popleft()
                if item in self._unlabelled:
                    self._unlabelled.discard(item)
                    self._unconfirmed.append(item)
                elif (outcome := item.labelled_outcome) is not None:
                    self._settle(item, outcome)

    def _next_wire_line(self, item: SendItem) -> str:
        """Return the next line as written, with a label if the server supports it; record it."""
        if item.chat is not None:
            pieces = retarget(
                item.lines.popleft(), item.nick, self._session.max_body_bytes(item.nick)
            )
            item.lines.extendleft(reversed(pieces))
        raw = item.lines[0]
        if not item.target:
            return raw
        if (
            item.lines_written == 0
            and item.future is not None
            and (self._labels_ignored or not self.uses_labels)
        ):
            self._unlabelled.add(item)
        if item.multiline_text and item.lines_written:
            return raw  # the server answers the opening of the batch
        if item.future is None or item in self._unlabelled:
            self._window.lone_command = item.lone_command
            self._window.add_line(item, item.target, item.multiline_text or raw.partition(" :")[2])
            return raw
        label = f"r{next(self._label_numbers)}"
        self._labels[label] = _LabelledLine(item, self._clock.monotonic())
        item.labelled.append(self._labels[label])
        return add_tags(raw, {"label": label})

    def _settle(self, item: SendItem, outcome: Receipt | SendError) -> None:
        """Resolve the item, or repeat it under the person's current nick if its nick was gone."""
        chat = (
            item.chat
            if isinstance(outcome, Rejected) and outcome.reason.endswith(NO_SUCH_NICK)
            else None
        )
        if (
            chat
            and item.resend_count < _MAX_RESENDS
            and self._session.resolve_target(chat)[1] != "other"
        ):
            item.resend_count, item.lines_written, item.lines = (
                item.resend_count + 1,
                0,
                deque(item.all_lines),
            )
            item.labelled = []
            self._blocked.append(item)
        elif item.future is not None and not item.future.done():
            if isinstance(outcome, Receipt):
                item.future.set_result(outcome)
            else:
                item.future.set_exception(RecipientAway(absence_text(chat)) if chat else outcome)

    def _requeue_blocked(self) -> None:
        items, self._blocked = self._blocked, []
        self._requeue(items)

    def oldest_ping_age_s(self) -> float:
        """Return the age of the oldest unanswered barrier; 0: there is none."""
        return self._clock.monotonic() - self._pings[0].sent_s if self._pings else 0.0

    def expire_labels(self, timeout_s: float) -> None:
        """Fail items whose label is unanswered for longer than `timeout_s` as uncertain.

        From then on barriers are used instead, so that later items do not wait so long.
        """
        self._expire_labels(self._clock.monotonic() - timeout_s)

    def probe_labels(self, patience_s: float) -> None:
        """Set a barrier if a label is unanswered for longer than `patience_s`: its answer should
        come before that.
        """
        before_s = self._clock.monotonic() - patience_s
        if not self._pings and any(line.sent_s < before_s for line in self._labels.values()):
            self._label_patience_s = patience_s
            self.queue_ping()

    def _expire_labels(self, before_s: float) -> None:
        for item in dict.fromkeys(
            line.item for line in self._labels.values() if line.sent_s < before_s
        ):
            self._labels_ignored = True
            self._forget_labels(item)
            self._settle(item, Uncertain(f"{_PERHAPS_CUT}: the server did not answer"))

    def _forget_labels(self, item: SendItem) -> None:
        """Ignore all further answers to the item's lines."""
        self._labels = {
            label: line for label, line in self._labels.items() if line.item is not item
        }
        item.labelled = []

    def _feed_labelled(self, received: ReceivedLine | LabelClosed) -> None:
        """Process a line of an answer by label, or its end; an unknown label is ignored."""
        entry = self._labels.get(received.label)
        if entry is None:
            return
        if isinstance(received, ReceivedLine):
            line = received.line
            if line.command == "FAIL" or (
                len(line.command) == _NUMERIC_DIGITS and line.command[0] in "45"
            ):
                entry.refusal = entry.refusal or refusal_reason(line)
            elif line.command in {"PRIVMSG", "NOTICE"} and (msgid := line.tags.get("msgid")):
                entry.id = MessageId(msgid)
            if not received.is_complete:
                return
        del self._labels[received.label]
        entry.is_answered = True
        if (outcome := entry.item.labelled_outcome) is not None:
            self._settle(entry.item, outcome)
        self._requeue_blocked()

    def feed(self, received: ReceivedLine | LabelClosed) -> None:
        """Process a line from the server: PONG, a refusal, or an echo of ours."""
        if received.label or isinstance(received, LabelClosed):
            self._feed_labelled(received)
            return
        me, isupport = self._session.nick, self._session.isupport
        line = received.line
        # Answers come in order: before the PONG to a barrier, they are about lines written before
        # it.
        window = self._pings[0].window if self._pings else self._window
        if line.command == "PONG":
            self._handle_pong(line)
        elif is_message_refusal(line) or is_command_refusal(line, window.lone_command):
            # The first parameter of a numeric is our own nick.
            names = {isupport.fold(param) for param in line.params[line.command != "FAIL" :]}
            window.record_refusal(names, refusal_reason(line), anybody=is_untargeted(line))
        elif line.command in {"PRIVMSG", "NOTICE"} and isupport.fold(
            line.source.nick
        ) == isupport.fold(me):
            window.record_echo(isupport.fold(line.param(0)), line.param(1), line.tags.get("msgid"))

    def _handle_pong(self, line: IrcLine) -> None:
        """Match by token; a server that does not repeat it (jaraco's) still answers in order."""
        tokens = [ping.token for ping in self._pings]
        index = next((tokens.index(param) for param in line.params if param in tokens), 0)
        for _ in range(min(index + 1, len(self._pings))):
            ping = self._pings.popleft()
            outcomes = ping.window.outcomes()
            for item in ping.items:
                self._settle(item, outcomes[item])
            if self._label_patience_s:
                self._expire_labels(ping.sent_s - self._label_patience_s)
        self._requeue_blocked()

    def _find_unseen(self) -> set[SendItem]:
        """Return the written items that no line was relayed of, if the server has answered all that
        it processed.

        It works in order: behind a PING without an answer it has processed nothing; and before,
        only what it echoed, if it echoes. An echo of a private message may come late, from another
        server.
        """
        echoes = "echo-message" in self._session.caps
        windows = [*((ping.window, ping.items) for ping in self._pings)]
        windows.append(
            (
                self._window,
                [*self._unconfirmed, *(item for item in self._waiting if item.lines_written)],
            )
        )
        unseen = {
            item
            for number, (window, items) in enumerate(windows)
            for item in items
            if not item.labelled
            and (
                number > 0
                or (
                    echoes
                    and self._is_room(item)
                    and not item.multiline_text
                    and window.is_unseen(item)
                )
            )
        }
        for item in {line.item for line in self._labels.values()}:
            if (
                echoes
                and self._is_room(item)
                and not any(line.is_answered for line in item.labelled)
            ):
                unseen.add(item)
        return unseen

    def _is_room(self, item: SendItem) -> bool:
        return self._session.isupport.is_room(item.target)

    def close(self, reason: str, *, is_complete: bool = False) -> None:
        """Fail all items: the connection is gone. Written parts are uncertain, waiting ones were
        surely not sent.

        `is_complete`: the server has said goodbye, so we have all its answers: what it did not
        process was not sent.
        """
        self._close_reason = self._close_reason or reason
        unseen = self._find_unseen() if is_complete else set()
        windows = [
            *((ping.items, ping.window) for ping in self._pings),
            (self._unconfirmed, self._window),
        ]
        echoed = [
            (item, window.echoed(item))
            for items, window in windows
            for item in items
            if is_complete
        ]
        receipts = {item: receipt for item, receipt in echoed if receipt is not None}
        # Cleared before any future is resolved: its callbacks may look at this object.
        items = (
            [item for ping in self._pings for item in ping.items]
            + self._unconfirmed
            + list(self._waiting)
        )
        items += [line.item for line in self._labels.values() if line.item not in items]
        items += [
            *self._blocked,
            *(item for _, waiting in self._awaiting_whois.values() for item in waiting),
        ]
        self._waiting.clear()
        self._blocked.clear()
        self._awaiting_whois.clear()
        self._pings.clear()
        self._unconfirmed, self._window, self._labels = [], SendWindow(), {}
        for item in items:
            if item.future is None or item.future.done():
                continue
            if item in receipts:
                item.future.set_result(receipts[item])
            else:
                is_open = item.lines_written and item not in unseen
                item.future.set_exception(Uncertain(reason) if is_open else Unreachable(reason))
