"""Outbox: from a durable post to a delivery, exactly once or recorded as uncertain.

A post is in the store before the outbox gets it. Before a part is handed to its platform that is
recorded, and so is the result. So after a crash every part is one of: surely not sent (it is sent),
surely sent (it is not sent again), or in between: then it is unknown, and it is recorded as
uncertain and reported. Within a conversation posts are sent in order; conversations do not wait for
each other.

Decisions on retries and the outcome of a post are pure functions. `DeliveryAttempt` records its
hand-overs, `OutgoingFiles` holds the files that go with posts, and `Outbox` delivers. Files are
named by digest, so the same file in two posts is stored once, and a changed one is detected.
Whoever waits for an answer that may not have arrived gets a notice, and the command `again` repeats
it (`find_uncertain_posts`).

Where several processes share the store, each delivers only the posts of the channels that it holds.
It takes over what an earlier holder has left as after a crash (`Outbox.open_channel`).
"""

import asyncio
import contextlib
import hashlib
import logging
import math
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal

from channels.aio import with_timeout
from channels.base import (
    Capabilities,
    Channel,
    FindsSent,
    KnowsPostingRights,
    KnowsRecipients,
    MayNotPost,
    OutgoingFile,
    Part,
    RateLimited,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    Unsettled,
    is_provisional,
)
from gateway.cluster.cluster import Cluster
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    EventId,
    Message,
    MessageId,
    Post,
    PostFile,
    PostKey,
    Receipt,
)
from gateway.core.facts import (
    MESSAGE_KINDS,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    PreviewShown,
    Seq,
    dedup_key,
)
from gateway.core.i18n import _, use_language
from gateway.core.logging import log_context
from gateway.core.private_files import is_half_written, read_private, replace_private
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_markdown
from gateway.store import (
    REMOVED_TEXT,
    LogEntry,
    NewEntry,
    OutboxPart,
    OutboxPost,
    Store,
    StoreClosed,
    StoreError,
    StoreReader,
)
from gateway.stream.internal import InternalIntake

logger = logging.getLogger("reverie.outbox")

MAX_AGE_S = 24 * 3600.0
"""Age at which a post is given up: a late answer is worse than none; Telegram keeps updates for the
same time."""
MAX_ABSENCE_S = 7 * MAX_AGE_S
"""Age at which a post for one person who is not there, or for a place where the bot may not post,
is given up."""
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
FIRST_AWAY_S, MAX_AWAY_S = 10.0, 600.0
"""Seconds until a recipient who was not there is looked for again: they may be about to log in."""
MAX_REFUSED_S = 3600.0
"""Longest time until a post is tried again where the bot may not post: platforms do not tell of
every change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """Result of one attempt at a part."""

    state: Literal["uncertain", "failed", "waiting"]
    reason: str
    wait_s: float = 0.0
    """Seconds before the next attempt; 0 for the final states."""
    maybe_seen: bool = False
    """As `PartSendEnded.maybe_seen`."""


def decide_retry(
    error: SendError,
    *,
    attempts: int,
    age_s: float,
    since_s: float | None = None,
    resend_s: float = 0.0,
) -> RetryDecision:
    """Decide after the `attempts`-th attempt at a part of a post that is `age_s` seconds old.

    `since_s`: seconds since the first hand-over that may have shown the part, including this
    attempt if it ended in `Uncertain`; None: surely not seen. `resend_s` is the channel's.
    """
    if since_s is None and isinstance(error, Uncertain):
        since_s = 0.0
    end: Literal["uncertain", "failed"] = "failed" if since_s is None else "uncertain"
    wait_s = min(FIRST_RETRY_S * 2.0 ** min(max(attempts, 1) - 1, 10), MAX_RETRY_S)
    if isinstance(error, RateLimited):
        wait_s = error.retry_after_s
    if isinstance(error, RecipientAway):
        wait_s = min(FIRST_AWAY_S * wait_s, MAX_AWAY_S)
    if isinstance(error, MayNotPost):
        wait_s = min(FIRST_AWAY_S * 2.0 ** min(max(attempts, 1) - 1, 10), MAX_REFUSED_S)
    match error:
        case Uncertain() | RateLimited() | Unreachable() | RecipientAway() | MayNotPost():
            if since_s is not None and not (
                since_s >= 0.0 and can_resend(since_s + wait_s, resend_s)
            ):
                return RetryDecision(state="uncertain", reason=error.reason)
            if age_s >= (
                MAX_ABSENCE_S if isinstance(error, RecipientAway | MayNotPost) else MAX_AGE_S
            ):
                return RetryDecision(
                    state=end, reason=f"gave up after {int(age_s // 3600)} h: {error.reason}"
                )
            return RetryDecision(
                state="waiting", reason=error.reason, wait_s=wait_s, maybe_seen=since_s is not None
            )
        case _:  # Denied, Rejected: asking again changes nothing
            return RetryDecision(state=end, reason=error.reason)


def _resend_window_s(post: Post, channel: Channel) -> float:
    """Return the seconds in which a part of the post may be handed over again: without a limit if
    that replaces one.
    """
    if post.replaces is not None:
        return math.inf
    return MAX_AGE_S if isinstance(channel, FindsSent) else channel.capabilities.resend_window_s


def can_resend(since_s: float, resend_s: float) -> bool:
    """Return whether a part first handed over `since_s` seconds ago may be sent again without being
    shown twice.

    Negative if the clock was set back, which proves nothing: then it may not.
    """
    return 0.0 <= since_s < resend_s


def recover_parts(
    parts: Sequence[OutboxPart], *, now: datetime, resend_s: float
) -> dict[int, Literal["uncertain", "waiting"]]:
    """Return the states of the parts that a crash interrupted, by index.

    Only the last one that was handed over is sent again: another would come after its successor.
    """
    gone = [
        part.index
        for part in parts
        if part.state in ("sending", "sent", "uncertain") or part.first_at is not None
    ]
    ends: dict[int, Literal["uncertain", "waiting"]] = {}
    for part in parts:
        if part.state == "sending":
            since_s = (now - part.first_at).total_seconds() if part.first_at is not None else -1.0
            again = can_resend(since_s, resend_s) and part.index == max(gone)
            ends[part.index] = "waiting" if again else "uncertain"
    return ends


def _is_interrupted(part: OutboxPart) -> bool:
    return part.state == "sending" or (part.state == "pending" and part.first_at is not None)


def select_window(
    parts: Sequence[OutboxPart], size: int, *, resend_s: float = 0.0
) -> list[OutboxPart]:
    """Return the parts to send next: none once a part has failed, because half a reply is worse
    than none.

    Where parts may be sent again they go one by one: a second try must not come after the
    successor.
    """
    if any(part.state == "failed" for part in parts):
        return []
    return [part for part in parts if part.state == "pending"][: 1 if resend_s > 0 else size]


def apply_part_end(part: OutboxPart, end: PartSendEnded) -> OutboxPart:
    """Return the part after that attempt."""
    first_at = None if end.state == "waiting" and not end.maybe_seen else part.first_at
    state = "pending" if end.state == "waiting" else end.state
    return replace(
        part, state=state, reason=end.reason, attempts=part.attempts + 1, first_at=first_at
    )


def summarize_parts(
    parts: Sequence[OutboxPart],
) -> tuple[Literal["sent", "uncertain", "failed"], str]:
    """Return the result of a whole post: that of its worst part, and the reason."""
    worst: Literal["failed", "uncertain"]
    for worst in ("failed", "uncertain"):
        for part in parts:
            if part.state == worst:
                return worst, f"part {part.index + 1} of {len(parts)}: {part.reason}"
    return "sent", ""


class DeliveryAttempt:
    """Hand-overs of one post's parts to the platform, and what followed."""

    def __init__(self, post: Post, clock: Clock, outbox: "Outbox") -> None:
        self._post = post
        self._clock = clock
        self._outbox = outbox
        self.unsaved_bodies: tuple[str, ...] | None = None
        """Rendered parts, if they are not in the store yet."""
        self.resend_s = 0.0
        """Seconds in which a part may be handed over again, see `_resend_window_s`."""
        self.finder: FindsSent | None = None
        """The channel, if it looks for a part that may have been sent before it sends that
        again."""
        self.positions: dict[int, str] = {}
        """Position of the channel at the last hand-over, by part. Recorded for `finder` alone."""
        self.handed_over_at: dict[int, datetime] = {}
        """Time of the hand-over, by part. Cleared before each attempt."""
        self._first_handed_over_s: dict[int, float] = {}
        """Monotonic time of the first hand-over in this process, by part, as
        `OutboxPart.first_at`."""

    async def hand_over(self, part: OutboxPart) -> None:
        """Record that the part is handed over now: from then on a crash leaves it uncertain.

        Raises `Uncertain` if a repetition could be shown by now; StoreClosed if others may send it
        instead, because they have removed this process.
        """
        since_s = self._since_s(part.index, part.first_at)
        if since_s is not None and not can_resend(since_s, self.resend_s):
            raise Uncertain(part.reason)  # it waited too long for its turn
        bodies, self.unsaved_bodies = self.unsaved_bodies, None
        self.handed_over_at[part.index] = self._clock.now()
        if since_s is None:
            self._first_handed_over_s[part.index] = self._clock.monotonic()
        after = ""
        if self.finder is not None:
            # If none is known now, the earlier one still holds: whoever looked has found nothing of
            # ours behind it.
            after = self.positions[part.index] = self.finder.position(
                self._post.to
            ) or self.positions.get(part.index, "")
        started = PartSendStarted(post=self._post.key, part=part.index, bodies=bodies, after=after)
        await self._outbox.record(self._post, [started])
        await self._outbox.confirm()

    def find_after(self, part: OutboxPart) -> str | None:
        """Return the part's `Part.maybe_sent_after`."""
        looks = self.finder is not None and part.first_at is not None
        return self.positions.get(part.index, "") if looks else None

    def _since_s(self, index: int, first: datetime | None) -> float | None:
        """Return the seconds since then. Negative if the clock was set back before that time."""
        if first is None:
            return None
        since_s = (self._clock.now() - first).total_seconds()
        if since_s < 0 or index not in self._first_handed_over_s:
            return since_s
        return max(since_s, self._clock.monotonic() - self._first_handed_over_s[index])

    def evaluate(
        self, part: OutboxPart, result: Receipt | BaseException, age_s: float
    ) -> tuple[PartSendEnded, float]:
        """Return what came of an attempt at a part, and the seconds before the next. Raises what
        ends the process.

        `age_s`: age of the post.
        """
        key, index = self._post.key, part.index
        first_at = part.first_at or self.handed_over_at.get(index)
        if isinstance(result, Receipt):
            return PartSendEnded(post=key, part=index, state="sent", reason="", ids=result.ids), 0.0
        is_passing = self._post.style == "notice" or self._post.replaces is not None
        if isinstance(result, MayNotPost) and is_passing:  # it is not said later
            result = Rejected(result.reason)
        if isinstance(result, SendError):
            # A channel that looks for its messages could not tell what became of this one.
            is_final = isinstance(result, Uncertain) and not isinstance(result, Unsettled)
            found = decide_retry(
                result,
                attempts=part.attempts + 1,
                age_s=age_s,
                since_s=self._since_s(
                    index, first_at if isinstance(result, Uncertain) else part.first_at
                ),
                resend_s=0.0 if is_final and self.finder is not None else self.resend_s,
            )
            known = found.state == "waiting" and part.reason == found.reason
            level = logging.DEBUG if known else logging.WARNING
            logger.log(level, "post %s part %d is %s: %s", key, index, found.state, found.reason)
            end = PartSendEnded(
                post=key,
                part=index,
                state=found.state,
                reason=found.reason,
                maybe_seen=found.maybe_seen,
                may_not_post=found.state == "waiting" and isinstance(result, MayNotPost),
            )
            return end, found.wait_s
        if isinstance(result, StoreError) or not isinstance(result, Exception):
            raise result
        # A bug in the adapter: ended here, or the same part would end the process at every start.
        logger.error("post %s part %d broke", key, index, exc_info=result)
        state: Literal["uncertain", "failed"] = "failed" if first_at is None else "uncertain"
        return PartSendEnded(post=key, part=index, state=state, reason=describe_bug(result)), 0.0


def describe_bug(error: Exception) -> str:
    """Return the reason for an internal error: without its message, which may contain anything."""
    return f"internal error: {type(error).__name__}"


_DIGEST: Final = "[0-9a-f]{64}"
"""Names of our files."""
FILE_AGE_S: Final = 3600.0
"""Seconds for which a file stays where other processes store files, too: its post may not be in the
log yet. Longer than the clocks of two hosts differ."""


class OutgoingFiles:
    """Files of the posts of one store."""

    def __init__(self, store: StoreReader, *, is_shared: bool = False) -> None:
        """`is_shared`: other processes store files there, too."""
        self._store = store
        self._least_age_s = FILE_AGE_S if is_shared else None
        self._directory = store.path.parent / "outfiles"
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def store_file(self, data: bytes) -> AsyncIterator[str]:
        """Store a file and yield its digest. Append the post that refers to it inside the context.
        Raises OSError.

        `sweep` removes files that no waiting post needs.
        """
        async with self._lock:
            digest = hashlib.sha256(data).hexdigest()
            await asyncio.to_thread(replace_private, self._directory / digest, data)
            yield digest

    async def load_file(self, file: PostFile, able: Capabilities) -> OutgoingFile:
        """Return the file for the channel. Raises Rejected: a post is not sent without its file."""
        try:
            data = await asyncio.to_thread(
                read_private, self._directory / file.sha256, most=file.size_bytes
            )
        except OSError as error:
            logger.warning("the file %s cannot be read: %s", file.sha256, error.strerror or error)
            data = None
        if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Rejected("the file that goes with it is gone, or is not what it was")
        if len(data) > able.max_file_bytes:
            raise Rejected(
                f"{able.platform} takes no files of more than {able.max_file_bytes} bytes"
            )
        return OutgoingFile(name=file.name, content_type=file.content_type, data=data)

    async def sweep(self) -> None:
        """Remove files that no waiting post needs. Errors of the file system are logged. Raises
        StoreError.
        """
        async with self._lock:
            waiting = {
                item.post.file.sha256
                for item in await self._store.undelivered_posts()
                if item.post.file is not None
            }
            await asyncio.to_thread(_remove_unneeded, self._directory, waiting, self._least_age_s)


def _remove_unneeded(directory: Path, keep: set[str], least_age_s: float | None) -> None:
    """Remove what is not to be kept. `least_age_s`: younger files stay; None: none does."""
    try:
        names = [path.name for path in directory.iterdir() if path.name not in keep]
        ours = [one for one in names if re.fullmatch(_DIGEST, one) or is_half_written(one, _DIGEST)]
        for path in [directory / one for one in ours]:
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if least_age_s is None or time.time() - path.stat().st_mtime >= least_age_s:
                    path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("files that were sent cannot be removed: %s", error)


MAX_LEARNED: Final = 2000
"""Newest messages in the log that a channel is told of which looks for its own."""
MAX_HAND_OVERS: Final = 1000
"""Newest hand-overs in a conversation that are searched for those of a post that an earlier process
began."""
LOST_IN_CRASH_TEXT = "the process ended while this part was being sent"
OUTDATED_TEXT = "the bot might not post there when it was to be said"
SETTLE_S = 1.0
"""Seconds for an attempt, after its channel has ended, to record its result."""


class Outbox:
    """Delivers the posts that are queued in the store."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[ChannelName, Channel],
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        files: OutgoingFiles | None = None,
        internal: InternalIntake | None = None,
        redactor: Redactor,
        cluster: Cluster | None = None,
    ) -> None:
        """`files`: None, if nobody else stores any. `redactor` is applied to every outgoing text.

        Nothing is delivered before `recover`, or `open_channel`. `cluster` None: this is the only
        process.

        `internal` judges the report of a failed delivery of a turn's post; reports of the gateway's
        own posts are not judged. None: no report is.
        """
        self._store = store
        self._channels = channels
        self._clock = clock
        self._tasks = tasks
        self._cluster = cluster or Cluster()
        self._files = files or OutgoingFiles(store)
        self._internal = internal
        self._redactor = redactor
        self._taught = dict[ChannelName, Channel]()
        """Channels that know the messages in the log."""
        self._opened = dict[ChannelName, Seq]()
        """Channels whose posts are delivered here, with the position up to which all were taken
        over."""
        self._delivers_all = False
        """Posts of all channels are delivered here: `recover` was called."""
        self._recovered_to: Seq | None = None
        """The same position of all channels, once `recover` has taken over the posts of all."""
        self._early = dict[ChannelName, list[OutboxPost]]()
        """Posts queued while those of an earlier process are taken over, by channel."""
        self._closing = set[ChannelName]()
        """Channels that were opened, and are being closed."""
        self._own_notices = set[PostKey]()
        """Notices about uncertain posts that are being appended."""
        self._link_events: dict[ChannelName, asyncio.Event] = {}
        """Set while the link is up."""
        self._queues: dict[ConversationId, deque[OutboxPost]] = {}
        self._workers: dict[ConversationId, asyncio.Task[None]] = {}
        self._away_conversations: dict[ConversationId, bool] = {}
        """Conversations whose next post waits for its recipient, or (True) for the right to post:
        nothing is under way.
        """
        self._refused_at: dict[ConversationId, datetime] = {}
        """Time of the last refusal of a place where the bot may not, or might not post."""
        self._in_flight: defaultdict[
            ChannelName, set[asyncio.Future[list[Receipt | BaseException]]]
        ] = defaultdict(set)
        """Sends that are under way."""
        self._stopping = False
        store.subscribe(self._on_queued, PostQueued)
        store.subscribe(self._on_link, ConnectionChanged)

    async def recover(self, *, unsure: str = "") -> None:
        """Take over the posts of an earlier process, on all channels, and deliver all from now on.
        Call it once.

        `unsure`: why each of them may have been sent since; then they are uncertain. Empty: nobody
        can have sent them.
        """
        self._delivers_all = True
        if unsure:  # the log may lack messages of ours, which would be taken for others
            self._taught = dict(self._channels)
        self._recovered_to = await self._recover(await self._store.undelivered_posts(), unsure)
        for name in list(self._early):
            self._put_early(name, self._recovered_to)
        await self._files.sweep()

    async def give_up_posts(self, unsure: str) -> None:
        """End the posts of all earlier processes as uncertain, and deliver none.

        `unsure`: as of `recover`. Call it before any channel is opened.
        """
        await self._recover(await self._store.undelivered_posts(), unsure)

    async def open_channel(self, name: ChannelName) -> None:
        """Take over the posts of a channel from the process that held it before, and deliver them
        from now on.

        Call it while the channel is held, and its link is down. It is told of its messages, which
        other processes may ask it for.
        """
        self._link_events.pop(name, None)
        self._closing.discard(name)
        self._early[name] = []
        if (channel := self._channels.get(name)) is not None:
            await self.teach(channel)
        # What stands in the log up to here may be delivered already, and be published to this
        # process only later.
        last = await self._store.last_position()
        recovered = [
            item for item in await self._store.undelivered_posts() if item.post.to.channel == name
        ]
        self._opened[name] = max(await self._recover(recovered), last)
        self._put_early(name, self._opened[name])
        await self._files.sweep()

    async def close_channel(self, name: ChannelName) -> None:
        """Deliver nothing more on a channel: what is not delivered stays in the log for the process
        that opens it next.

        Call it after the channel has ended: its sends have results by then.
        """
        self._opened.pop(name, None)
        self._early.pop(name, None)
        self._closing.add(name)
        self._link_event(name).set()  # those that wait for it wake up, and find that it is closed
        workers = {
            place: task
            for place, task in self._workers.items()
            if Address.parse(place).channel == name
        }
        await _end_workers(
            workers.values(),
            [workers[place] for place in workers.keys() - self._away_conversations],
        )
        self._link_events.pop(name, None)
        self._taught.pop(name, None)

    async def _recover(self, recovered: Sequence[OutboxPost], unsure: str = "") -> Seq:
        """Queue these posts of an earlier process. Return the position of the last one; 0: there is
        none.
        """
        interrupted = Counter(
            (item.post.to.channel, item.post.to.room)
            for item in recovered
            if any(map(_is_interrupted, item.parts))
        )
        for place, message in await self._store.open_previews():
            if is_provisional(message):
                at = Address.parse(place)
                interrupted[at.channel, at.room] += 1
        for item in recovered:
            if unsure:
                logger.warning("post %s is uncertain: %s", item.post.key, unsure)
                await self._end_post(item.post, "uncertain", unsure)
                continue
            channel, room = (
                self._channels.get(item.post.to.channel),
                (item.post.to.channel, item.post.to.room),
            )
            resend_s = 0.0 if channel is None else _resend_window_s(item.post, channel)
            if interrupted[room] > 1 and resend_s == MAX_AGE_S:
                resend_s = (
                    0.0  # whoever looks cannot tell which thread of the room a message belongs to
                )
            parts, ended = list(item.parts), []
            for index, state in recover_parts(
                parts, now=self._clock.now(), resend_s=resend_s
            ).items():
                logger.warning(
                    "post %s part %d is %s: %s", item.post.key, index, state, LOST_IN_CRASH_TEXT
                )
                end = PartSendEnded(
                    post=item.post.key,
                    part=index,
                    state=state,
                    reason=LOST_IN_CRASH_TEXT,
                    maybe_seen=state == "waiting",
                )
                parts = [
                    apply_part_end(part, end) if part.index == index else part for part in parts
                ]
                ended.append(end)
            await self.record(item.post, ended)
            self._put(replace(item, parts=tuple(parts)))
        return max((item.seq for item in recovered), default=Seq(0))

    def _put_early(self, name: ChannelName, upto: Seq) -> None:
        for item in self._early.pop(name, ()):
            if item.seq > upto:
                self._put(item)

    def _on_queued(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if not isinstance(entry.fact, PostQueued):
                continue
            item = OutboxPost(seq=entry.seq, at=entry.at, post=entry.fact.post, parts=())
            name = item.post.to.channel
            upto = self._opened.get(name, self._recovered_to)
            if item.post.key in self._own_notices and self._delivers(name):
                self._put_next(item)
            elif upto is not None:
                if item.seq > upto:  # else it was taken over already
                    self._put(item)
            elif name in self._early or self._delivers_all:
                self._early.setdefault(name, []).append(item)

    def _delivers(self, name: ChannelName) -> bool:
        return self._delivers_all or name in self._opened or name in self._early

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                self.set_link_up(entry.fact.channel, up=entry.fact.up or entry.fact.says)

    def _put(self, item: OutboxPost) -> None:
        if self._stopping:
            return  # the store has it: the next process delivers it
        place = item.post.to.conversation
        self._queues.setdefault(place, deque()).append(item)
        if place not in self._workers:
            self._workers[place] = self._tasks.create_task(self._deliver_queue(place))

    def _put_next(self, item: OutboxPost) -> None:
        """Deliver a notice before all other waiting posts: it is about the previous one."""
        waiting = self._queues.get(item.post.to.conversation)
        if waiting and not self._stopping:
            waiting.insert(1, item)
        else:
            self._put(item)

    async def _deliver_queue(self, place: ConversationId) -> None:
        queue = self._queues[place]
        try:
            while queue and not self._ends(place):
                with log_context(conversation=place, post=queue[0].post.key):
                    refused_at = self._refused_at.get(place)
                    if (
                        refused_at is None
                        or queue[0].at > refused_at
                        or await self._is_from_turn(queue[0].post)
                    ):
                        await self._deliver(queue[0])
                    # answers to commands that nobody waits for any more, and which would all come
                    # at once
                    else:
                        await self._end_post(queue[0].post, "failed", OUTDATED_TEXT)
                if queue.popleft().post.file is not None:
                    await self._files.sweep()
        finally:
            self._refused_at.pop(place, None)
            del self._workers[place], self._queues[place]

    def _ends(self, place: ConversationId) -> bool:
        """Return whether nothing more is delivered there by this process."""
        return self._stopping or Address.parse(place).channel in self._closing

    async def _deliver(self, item: OutboxPost) -> None:
        post, parts = item.post, list(item.parts)
        attempt, cutter = DeliveryAttempt(post, self._clock, self), None
        attempt.positions = await self._find_positions(item)
        away = await self._find_absence(item) if self._age_s(item) >= MAX_AGE_S else ""
        while not parts or select_window(parts, 1):
            channel = await self._wait_for_channel(item, parts, away=away)
            if channel is None:
                return
            # Another channel may split it in another way.
            if not parts or (attempt.unsaved_bodies and channel is not cutter):
                cut = await self._split(channel, post, attempt)
                if cut is None:
                    return
                parts, cutter = cut, channel
            attempt.resend_s = _resend_window_s(post, channel)
            attempt.finder = await self._find_finder(channel, post)
            window = select_window(
                parts, channel.capabilities.max_in_flight, resend_s=attempt.resend_s
            )
            results = await self._send(channel, post, attempt, window, last=len(parts) - 1)
            absence = next(
                (one for one in results if isinstance(one, RecipientAway | MayNotPost)), None
            )
            away = absence.reason if absence is not None else ""
            news, wait_s, age_s = list[PartSendEnded](), 0.0, self._age_s(item)
            for part, result in zip(
                window, results, strict=False
            ):  # fewer results: the other parts were not tried
                end, part_wait_s = attempt.evaluate(part, result, age_s)
                wait_s = max(wait_s, part_wait_s)
                handed_over_at = attempt.handed_over_at.get(part.index)
                # A part that was not handed over and waits again needs no record.
                if end.state != "waiting" or handed_over_at or (away and part.reason != end.reason):
                    news.append(end)
                parts[part.index] = apply_part_end(
                    replace(part, first_at=part.first_at or handed_over_at), end
                )
            if not select_window(parts, 1):
                await self._end_post(post, *summarize_parts(parts), news)
                return
            await self.record(post, news)
            if absence is not None:
                await self._wait_until_present(
                    channel, post, wait_s, refused=isinstance(absence, MayNotPost)
                )
            elif wait_s:
                await self._clock.sleep(wait_s)
        # Nothing was left to send: a crash came between the last part and the report.
        await self._end_post(post, *summarize_parts(parts))

    async def _find_positions(self, item: OutboxPost) -> dict[int, str]:
        """Return the channel's position at the last hand-over that an earlier process recorded, by
        part.
        """
        if all(part.first_at is None for part in item.parts):
            return {}
        found = await self._store.newest_entries(
            MAX_HAND_OVERS,
            after=item.seq,
            kinds=["sending"],
            conversation=item.post.to.conversation,
        )
        facts = [one.fact for one in found if isinstance(one.fact, PartSendStarted)]
        return {fact.part: fact.after for fact in facts if fact.post == item.post.key}

    async def _find_finder(self, channel: Channel, post: Post) -> FindsSent | None:
        """Return the channel if it looks for what it sent. It is told of the newest messages in the
        log before.
        """
        await self.teach(channel)
        return channel if isinstance(channel, FindsSent) and post.replaces is None else None

    async def teach(self, channel: Channel) -> None:
        """Tell a channel that looks for what it sent of the newest messages in the log, once."""
        if not isinstance(channel, FindsSent) or self._taught.get(channel.name) is channel:
            return
        name = channel.name
        found = await self._store.newest_entries(
            MAX_LEARNED, kinds=[*MESSAGE_KINDS, "command", "part", "previewed"]
        )
        if self._taught.get(name) is channel:  # for another post meanwhile
            return
        self._taught[name] = channel
        for entry in found:
            match entry.fact:
                case Message() | Command() as heard if heard.at.channel == name:
                    channel.learn(heard.at, MessageId(heard.id), heard.sent, own=False)
                case PreviewShown(at=at, message=message) if at.channel == name:
                    channel.learn(at, message, entry.at, own=True)
                case PartSendEnded(state="sent" | "uncertain" as state, ids=ids):
                    at = Address.parse(entry.conversation or "")
                    for own in ids if state == "sent" else (None,):
                        if at.channel == name:
                            channel.learn(at, own, entry.at, own=True)
                case _:
                    pass

    async def _find_absence(self, item: OutboxPost) -> str:
        """Return why the recipient was not there when an earlier process tried last; empty: they
        were, or nobody did.

        Other reasons for which a part waits are recorded only for one that was handed over.
        """
        place = item.post.to.conversation
        found = await self._store.newest_entries(
            2, after=item.seq, kinds=["sending", "part"], conversation=place
        )
        facts = [one.fact for one in found if isinstance(one.fact, PartSendStarted | PartSendEnded)]
        mine = [one for one in facts if one.post == item.post.key]
        ends = [one for one in mine if isinstance(one, PartSendEnded) and one.state == "waiting"]
        if ends and ends[-1] is mine[-1] and ends[-1].may_not_post:
            return ends[-1].reason
        return ends[-1].reason if len(ends) == len(mine) > 0 else ""

    async def _wait_for_channel(
        self, item: OutboxPost, parts: Sequence[OutboxPart], *, away: str
    ) -> Channel | None:
        """Return the post's channel once its link is up. None: the outbox stops, or the post is too
        old and given up.

        `away`: why the recipient was not there at the last attempt; empty: they were, or there was
        none.
        """
        name = item.post.to.channel
        while True:
            if name not in self._channels and self._age_s(item) >= MAX_AGE_S:
                await self._end_post(item.post, "failed", f"no channel {name} is configured")
                return None
            await self._link_event(name).wait()
            if self._ends(item.post.to.conversation):
                return None
            if (channel := self._channels.get(name)) is not None:
                break
            self._link_event(name).clear()  # it was removed
        surely_unseen = all(part.state == "pending" and part.first_at is None for part in parts)
        age_s = self._age_s(item)
        if surely_unseen and age_s >= (MAX_ABSENCE_S if away else MAX_AGE_S):
            reason = (
                f"gave up after {int(age_s // 3600)} h: {away}"
                if away
                else "the link was down for too long"
            )
            await self._end_post(item.post, "failed", reason)
            return None
        return channel

    def _link_event(self, channel: ChannelName) -> asyncio.Event:
        event = self._link_events.setdefault(channel, asyncio.Event())
        if self._stopping or channel in self._closing:
            event.set()
        return event

    async def _split(
        self, channel: Channel, post: Post, attempt: DeliveryAttempt
    ) -> list[OutboxPart] | None:
        """Return the post's parts as the channel splits it. None: it cannot, and the post is given
        up.
        """
        try:
            bodies = channel.split(replace(post, text=self._redactor(post.text)))
        except Exception as error:  # a bug in the adapter: ended here, or it would end every start
            logger.exception("post %s cannot be cut", post.key)
            await self._end_post(post, "failed", describe_bug(error))
            return None
        attempt.unsaved_bodies = bodies
        return [
            OutboxPart(index=i, body=b, state="pending", reason="", attempts=0)
            for i, b in enumerate(bodies)
        ]

    async def _send(
        self,
        channel: Channel,
        post: Post,
        attempt: DeliveryAttempt,
        window: Sequence[OutboxPart],
        *,
        last: int,
    ) -> list[Receipt | BaseException]:
        """Return the result of each part; of the first alone, if nothing was sent. `last`: index of
        the post's last.
        """
        attempt.handed_over_at.clear()
        file = None
        try:
            if window[0].index == 0 and post.file is not None:
                file = await self._files.load_file(post.file, channel.capabilities)
            replaced = await self._find_replaced(post, window[0].index, channel.capabilities)
        except Rejected as error:
            return [error]
        sends = [
            channel.send(
                Part(
                    key=f"{post.key}#{part.index}",
                    to=post.to,
                    body=part.body,
                    reply_to=post.reply_to if part.index == 0 else None,
                    style=post.style,
                    private=post.private,
                    file=file if part.index == 0 else None,
                    buttons=post.buttons if part.index == last else (),
                    replaces=replaced,
                    finishes=next(iter(post.previews[part.index :]), None),
                    notify=post.notify,
                    thread_title=post.thread_title,
                    maybe_sent_after=attempt.find_after(part),
                ),
                partial(attempt.hand_over, part),
            )
            for part in window
        ]
        with use_language(post.language):
            sends_done = asyncio.gather(*sends, return_exceptions=True)
        self._in_flight[channel.name].add(sends_done)
        sends_done.add_done_callback(self._in_flight[channel.name].discard)
        results = await sends_done
        taken = [isinstance(one, Receipt) for one in results]
        # what was taken behind it shows that one may post there: it was refused for what it says
        return [
            Rejected(one.reason) if isinstance(one, MayNotPost) and any(taken[number:]) else one
            for number, one in enumerate(results)
        ]

    async def _find_replaced(self, post: Post, part: int, able: Capabilities) -> MessageId | None:
        """Return the message that this part replaces. None: the post replaces none. Raises
        Rejected: there is none.
        """
        if post.replaces is None:
            return None
        found = (
            await self._store.message_ids(post.to.conversation, post.replaces)
            if able.buttons
            else []
        )
        if part >= len(found):
            raise Rejected(
                "it takes more messages than it replaces"
                if found
                else "what it replaces was not shown"
            )
        return found[part]

    async def _wait_until_present(
        self, channel: Channel, post: Post, max_wait_s: float, *, refused: bool
    ) -> None:
        """Return once the recipient may be there, or (`refused`) the bot may post there, or after
        `max_wait_s`.
        """
        place = post.to.conversation
        self._away_conversations[place] = refused
        if refused:
            self._refused_at[place] = self._clock.now()
        try:
            with contextlib.suppress(TimeoutError):
                if refused and isinstance(channel, KnowsPostingRights):
                    await with_timeout(self._clock, max_wait_s, channel.wait_for_rights(post.to))
                elif not refused and isinstance(channel, KnowsRecipients):
                    await with_timeout(self._clock, max_wait_s, channel.wait_for_recipient(post.to))
                else:
                    await self._clock.sleep(max_wait_s)
        finally:
            del self._away_conversations[place]

    def _age_s(self, item: OutboxPost) -> float:
        return (self._clock.now() - item.at).total_seconds()

    async def record(self, post: Post, facts: Sequence[PartSendStarted | PartSendEnded]) -> None:
        """Append facts about the parts of a post."""
        await self._store.append(self._part_entries(post, facts))

    async def confirm(self) -> None:
        """Return if the posts are this process's to deliver. Raises StoreClosed if it was
        removed.
        """
        if not await self._cluster.confirm():
            self._store.give_up()
            raise StoreClosed(REMOVED_TEXT)

    def _part_entries(
        self, post: Post, facts: Sequence[PartSendStarted | PartSendEnded]
    ) -> list[NewEntry]:
        now = self._clock.now()
        return [NewEntry(fact=fact, at=now, conversation=post.to.conversation) for fact in facts]

    async def _end_post(
        self,
        post: Post,
        state: Literal["sent", "uncertain", "failed"],
        reason: str,
        news: Sequence[PartSendEnded] = (),
    ) -> None:
        """Append the end of a post after the `news` of its parts, with what follows: a judgement, a
        notice of doubt.
        """
        now, place = self._clock.now(), post.to.conversation
        report = DeliveryReport(
            id=EventId(post.key), at=post.to, post=post.key, state=state, reason=reason, sent=now
        )
        ended = NewEntry(fact=report, at=now, conversation=place, key=dedup_key(report))
        entries, notices = [*self._part_entries(post, news), ended], set[PostKey]()
        if self._internal is not None and state != "sent" and await self._is_from_turn(post):
            entries.append(
                NewEntry(fact=self._internal.judge(report), at=now, conversation=place, cause=ended)
            )
        if state != "sent":
            channel = self._channels.get(post.to.channel)
            marks_replies = channel is not None and channel.capabilities.replies
            refusal = reason if state == "failed" else ""
            if doubt := await build_doubt_notice(
                self._store, post, refusal, marks_replies=marks_replies
            ):
                notices |= {doubt.key} if not refusal else set()
                queued = PostQueued(post=doubt)
                entries.append(
                    NewEntry(
                        fact=queued,
                        at=now,
                        conversation=place,
                        key=f"post:{doubt.key}",
                        cause=ended,
                    )
                )
        self._own_notices |= notices
        try:
            await self._store.append(entries)
        finally:
            self._own_notices -= notices

    async def _is_from_turn(self, post: Post) -> bool:
        """Return whether a turn made the post: else it answers a command, and no agent knows of
        it.
        """
        queued = await self._store.entry_by_key(f"post:{post.key}")
        cause = (
            await self._store.entry(queued.cause)
            if queued is not None and queued.cause is not None
            else None
        )
        return cause is not None and cause.kind in ("turn_ended", "acted")

    def set_link_up(self, channel: ChannelName, up: bool) -> None:
        """Record that the connection of a channel came up or went down."""
        if not self._stopping and channel not in self._closing:
            event = self._link_event(channel)
            (event.set if up else event.clear)()

    def count_absent(self, channel: ChannelName) -> int:
        """Return how many people there have posts that wait until they are seen."""
        waiting = [place for place, refused in self._away_conversations.items() if not refused]
        return sum(Address.parse(place).channel == channel for place in waiting)

    async def wait_until_sent(self, place: ConversationId, grace_s: float) -> None:
        """Return once no post waits there, or after `grace_s` seconds of real time."""
        if (worker := self._workers.get(place)) and place not in self._away_conversations:
            await asyncio.wait({worker}, timeout=grace_s)

    async def pause(self, channel: ChannelName, grace_s: float) -> None:
        """Deliver queued posts for up to `grace_s` seconds of real time, then start nothing until
        the link is up.

        Returns once the running sends have ended, or after `grace_s` more.
        """
        named = {place for place in self._workers if Address.parse(place).channel == channel}
        working = [self._workers[place] for place in named - self._away_conversations.keys()]
        if working and self._link_event(channel).is_set():
            await asyncio.wait(working, timeout=grace_s)
        self.set_link_up(channel, up=False)
        if running := self._in_flight[channel]:
            await asyncio.wait(running, timeout=grace_s)

    async def drain(self, grace_s: float) -> None:
        """Go on delivering for up to `grace_s` seconds of real time, then start nothing more."""
        if working := self._active_workers():
            await asyncio.wait(working, timeout=grace_s)
        self._stopping = True
        for event in self._link_events.values():
            event.set()  # those that wait for a link wake up, and find that the outbox stops

    async def close(self) -> None:
        """End all work. Call it after the channels have ended: their sends have results by then."""
        await _end_workers(self._workers.values(), self._active_workers())

    def _active_workers(self) -> list[asyncio.Task[None]]:
        return [
            task for place, task in self._workers.items() if place not in self._away_conversations
        ]


async def _end_workers(
    workers: Iterable[asyncio.Task[None]], working: Sequence[asyncio.Task[None]]
) -> None:
    """End them. A finished attempt of those that are `working` is still recorded; an unfinished one
    stays `sending`.
    """
    ending = list(workers)
    if working:
        await asyncio.wait(working, timeout=SETTLE_S)
    for worker in ending:
        worker.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


MAX_REFUSAL_CHARS: Final = 300
MAX_REPEATED: Final = 3
"""Newest answers that are repeated at once."""
UNCERTAIN_LOOK_BACK: Final = 200
"""Deliveries and commands of a place that are searched."""


async def find_uncertain_posts(reader: StoreReader, conversation: ConversationId) -> list[Post]:
    """Return answers that may not have arrived there and were not repeated since, oldest first."""
    posts = list[Post]()
    for stored in reversed(
        await reader.newest_entries(
            UNCERTAIN_LOOK_BACK, kinds=["delivery", "command"], conversation=conversation
        )
    ):
        fact = stored.fact
        if isinstance(fact, Command) and fact.name == "again":
            if any(isinstance(one.fact, PostQueued) for one in await reader.caused_by(stored.seq)):
                break
            continue
        if (
            isinstance(fact, DeliveryReport)
            and fact.state == "uncertain"
            and (post := await _find_answer(reader, fact.post))
        ):
            posts.append(post)
        if len(posts) == MAX_REPEATED:
            break
    return posts[::-1]


async def build_doubt_notice(
    reader: StoreReader, post: Post, refusal: str, *, marks_replies: bool
) -> Post | None:
    """Return the notice for the person who waited for this post; always the same. None: nobody did.

    Of an answer it says that it may not have arrived, or (`refusal` not empty) why it was refused.
    A notice that may not have arrived, and one of the gateway itself to whoever had written, is
    said once more: it may be read twice. `marks_replies`: the channel shows to whom a post replies;
    else the notice begins with the name.
    """
    key = PostKey(hashlib.sha256(f"doubt:{post.key}".encode()).hexdigest()[:26])
    if await _find_answer(reader, post.key) is None:
        return (
            replace(post, key=key)
            if not refusal and await _is_said_once_more(reader, post)
            else None
        )
    newest = await reader.newest_entries(1, kinds=MESSAGE_KINDS, conversation=post.to.conversation)
    direct = (
        bool(newest) and isinstance(newest[0].fact, Message) and newest[0].fact.kind == "direct"
    )
    if not direct and post.reply_to is None:
        return None
    question = (
        None
        if direct
        else await reader.entry_by_key(f"message:{post.to.conversation}:{post.reply_to}")
    )
    name = (
        question.fact.sender.name
        if question is not None and isinstance(question.fact, Message)
        else ""
    )
    called = f"{escape_markdown(name)}: " if name and not marks_replies else ""
    with use_language(post.language):
        text = (
            _("(My answer cannot be shown here: {reason})").format(
                reason=escape_markdown(Redactor()(refusal), MAX_REFUSAL_CHARS)
            )
            if refusal
            else _('(My last answer may not have reached you. Write "again", and I repeat it.)')
            if direct
            else _(
                '(My last answer may not have reached you. Write "again" to me, and I repeat it.)'
            )
        )
    return Post(
        key=key,
        to=post.to,
        text=f"{called}{text}",
        reply_to=post.reply_to,
        style="notice",
        private=post.private,
    )


async def _find_answer(reader: StoreReader, key: PostKey) -> Post | None:
    """Return the post if a turn or `again` posted it. Notices of the gateway itself are never
    repeated.
    """
    queued = await reader.entry_by_key(f"post:{key}")
    if queued is None or queued.cause is None or not isinstance(queued.fact, PostQueued):
        return None
    cause = await reader.entry(queued.cause)
    if cause is None:
        return None
    repeats = isinstance(cause.fact, Command) and cause.fact.name == "again"
    return queued.fact.post if repeats or cause.kind in ("turn_ended", "acted") else None


async def _is_said_once_more(reader: StoreReader, post: Post) -> bool:
    """Return whether it is the first notice about an answer, or the gateway's to somebody whom the
    agent hears.
    """
    queued = await reader.entry_by_key(f"post:{post.key}")
    if queued is None or queued.cause is None:
        return False
    cause, judged = await reader.entry(queued.cause), await reader.find_judgement(queued.cause)
    if cause is not None and isinstance(cause.fact, DeliveryReport):
        return await _find_answer(reader, cause.fact.post) is not None
    is_message = cause is not None and isinstance(cause.fact, Message)
    return is_message and judged is not None and judged.fate != "refused"
