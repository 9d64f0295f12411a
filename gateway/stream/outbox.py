"""Outbox: from a durable post to a delivery, exactly once or recorded as uncertain.

A post is in the store before the outbox gets it. Before a part is handed to its platform that is
recorded, and so is the result (`gateway.stream.delivery_policy` decides what follows). The first
part of a post that can be sent at once is recorded so together with the post, in one transaction.
Within a conversation posts are sent in order; conversations do not wait for each other.

`Outbox` has a queue for each conversation of the channels that it has opened, and `Delivery` brings
one post from its text to its end. Where several processes share the store, each opens the channels
that it holds.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    PostPart,
    RecipientAway,
    Rejected,
    SendError,
    SendsAtOnce,
    Uncertain,
    is_provisional,
)
from gateway.cluster.cluster import Cluster
from gateway.core.clock import Clock
from gateway.core.context_var import log_context
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
    RoomId,
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
from gateway.core.i18n import use_language
from gateway.core.private_files import is_partial_file, read_private, replace_private
from gateway.core.redaction import Redactor
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
from gateway.stream.again import TURN_KINDS, build_doubt_notice
from gateway.stream.attention import InternalIntake
from gateway.stream.delivery_policy import (
    MAX_ABSENCE_S,
    MAX_AGE_S,
    apply_part_end,
    can_resend,
    describe_bug,
    end_failed_part,
    explain_age,
    is_interrupted,
    recover_parts,
    resend_window_s,
    select_window,
    summarize_parts,
)
from gateway.stream.mute import MutePlaces

logger = logging.getLogger("reverie.outbox")

MAX_LEARNED: Final = 2000
"""Newest messages in the log that a channel is told of which looks for its own."""
MAX_HAND_OVERS: Final = 1000
"""Newest hand-overs in a conversation that are searched for those of a post that an earlier process
began."""
LOST_IN_CRASH_TEXT = "the process ended while this part was being sent"
LOST_END_TEXT = "the log has lost its end: it may have been sent"
SETTLE_S = 1.0
"""Seconds for an attempt, after its channel has ended, to record its result."""


_DIGEST: Final = "[0-9a-f]{64}"
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
        ours = [one for one in names if re.fullmatch(_DIGEST, one) or is_partial_file(one)]
        for path in [directory / one for one in ours]:
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if least_age_s is None or time.time() - path.stat().st_mtime >= least_age_s:
                    path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("files that were sent cannot be removed: %s", error)


class Delivery:
    """Delivery of one post."""

    def __init__(self, item: OutboxPost, outbox: "Outbox") -> None:
        self._item, self._post, self._outbox = item, item.post, outbox
        self._clock = outbox.clock
        self._is_begun = any(part.state == "sending" for part in item.parts)
        """That its first part is handed over was recorded with the post, and it was not yet."""
        self._parts = [
            replace(part, state="pending") if part.state == "sending" else part
            for part in item.parts
        ]
        self._unsaved: tuple[str, ...] | None = None
        """Rendered parts, if they are not in the store yet."""
        self._resend_s = 0.0
        """Seconds in which a part may be handed over again, see `resend_window_s`."""
        self._finder: FindsSent | None = None
        """The channel, if it looks for a part that may have been sent before it sends that
        again."""
        self._positions = dict[int, str]()
        """Position of the channel at the last hand-over, by part. Recorded for a finder alone."""
        self._handed_over_at = dict[int, datetime]()
        """Time of the hand-over of this attempt, by part."""
        self._first_handed_over_s = dict[int, float]()
        """Monotonic time of the first hand-over in this process, by part, as
        `OutboxPart.first_at`."""

    async def run(self) -> None:
        """Deliver the post: once this returns its end is recorded, or the outbox stops."""
        post, cutter = self._post, None
        if self._is_begun and self._outbox.find_ready(post) is None:  # since a moment ago
            self._is_begun = False
            why = "the channel was busy"
            taken_back = PartSendEnded(post=post.key, part=0, state="waiting", reason=why)
            await self._outbox.record(post, [taken_back])
        was_tried = any(part.first_at is not None for part in self._parts)
        away = await self._recall_attempts() if was_tried or self._age_s() >= MAX_AGE_S else ""
        while not self._parts or select_window(self._parts, 1):
            channel = await self._wait_for_channel(away)
            if channel is None:
                return
            # Another channel may split it in another way.
            if not self._parts or (self._unsaved and channel is not cutter):
                cutter = channel
                if not await self._split(channel):
                    return
            self._resend_s = resend_window_s(post, channel)
            if isinstance(channel, FindsSent):
                await self._outbox.teach(channel)
                self._finder = channel if post.replaces is None else None
            window = select_window(
                self._parts, channel.capabilities.max_in_flight, resend_s=self._resend_s
            )
            results = await self._send(channel, window)
            absence = next(
                (one for one in results if isinstance(one, RecipientAway | MayNotPost)), None
            )
            away = absence.reason if absence is not None else ""
            news, wait_s = self._apply(window, results, is_away=bool(away))
            if not select_window(self._parts, 1):
                await self._end(*summarize_parts(self._parts), news)
                return
            await self._outbox.record(post, news)
            if absence is not None:
                await self._outbox.wait_until_present(channel, post, absence, wait_s)
            elif wait_s:
                await self._clock.sleep(wait_s)
        # Nothing was left to send: a crash came between the last part and the report.
        await self._end(*summarize_parts(self._parts))

    async def _end(
        self,
        state: Literal["sent", "uncertain", "failed"],
        reason: str,
        news: Sequence[PartSendEnded] = (),
    ) -> None:
        """Record the end of the post. What shows a failed one, and is no part that may have been
        sent, is a preview again, which is deleted: half an answer is worse than none.
        """
        left, at = dict(enumerate(self._post.previews if state == "failed" else ())), self._post.to
        for part in self._parts:
            if part.state in {"sent", "uncertain"}:
                left.pop(part.index, None)
        shown = [PreviewShown(at=at, message=message) for message in left.values()]
        await self._outbox.end_post(self._post, state, reason, [*news, *shown])

    def _age_s(self) -> float:
        return (self._clock.now() - self._item.at).total_seconds()

    async def _recall_attempts(self) -> str:
        """Recall the positions at the last hand-overs by an earlier process. Return why the
        recipient was not there when it tried last; empty: they were, or nobody did.
        """
        if any(part.first_at is not None for part in self._parts):
            facts = await self._own_facts(MAX_HAND_OVERS, "sending")
            self._positions = {
                one.part: one.after for one in facts if isinstance(one, PartSendStarted)
            }
        if self._age_s() < MAX_AGE_S:
            return ""
        # Other reasons for which a part waits are recorded only for one that was handed over.
        mine = await self._own_facts(2, "sending", "part")
        ends = [one for one in mine if isinstance(one, PartSendEnded) and one.state == "waiting"]
        if ends and (len(ends) == len(mine) or (ends[-1] is mine[-1] and ends[-1].may_not_post)):
            return ends[-1].reason
        return ""

    async def _own_facts(self, newest: int, *kinds: str) -> list[PartSendStarted | PartSendEnded]:
        found = await self._outbox.store.newest_entries(
            newest,
            after=self._item.seq,
            kinds=kinds,
            conversation=self._post.to.conversation,
        )
        facts = [one.fact for one in found if isinstance(one.fact, PartSendStarted | PartSendEnded)]
        return [one for one in facts if one.post == self._post.key]

    async def _wait_for_channel(self, away: str) -> Channel | None:
        """Return the post's channel once its link is up. None: the outbox stops, or the post is too
        old and given up.

        `away`: why the recipient was not there at the last attempt; empty: they were, or there was
        none.
        """
        name, outbox, channel = self._post.to.channel, self._outbox, None
        while channel is None:
            if name not in outbox.channels and self._age_s() >= MAX_AGE_S:
                await self._end("failed", f"no channel {name} is configured")
                return None
            link = outbox.link_event(name)
            if outbox.delivers(name):
                await link.wait()
            if not outbox.delivers(name):
                return None
            if (channel := outbox.channels.get(name)) is None:
                link.clear()  # it was removed
        seen = any(part.state != "pending" or part.first_at is not None for part in self._parts)
        age_s = self._age_s()
        if seen or age_s < (MAX_ABSENCE_S if away else MAX_AGE_S):
            return channel
        reason = explain_age(age_s, away) if away else "the link was down for too long"
        await self._end("failed", reason)
        return None

    async def _split(self, channel: Channel) -> bool:
        """Cut the post into parts as the channel does. False: it cannot, and the post is given
        up.
        """
        post = self._post
        try:
            bodies = self._outbox.split(post, channel)
        except Exception as error:  # a bug in the adapter: ended here, or it would end every start
            logger.exception("post %s cannot be cut", post.key)
            await self._end("failed", describe_bug(error))
            return False
        self._unsaved, self._parts = bodies, _pending_parts(bodies)
        return True

    async def _send(
        self, channel: Channel, window: Sequence[OutboxPart]
    ) -> list[Receipt | BaseException]:
        """Return the result of each part; of the first alone, if nothing was sent."""
        post, first, file, replaced = self._post, window[0].index, None, None
        self._handed_over_at = {0: self._item.at} if self._is_begun else {}
        try:
            if first == 0 and post.file is not None:
                file = await self._outbox.files.load_file(post.file, channel.capabilities)
            if post.replaces is not None:
                replaced = await self._find_replaced(channel, post.replaces, first)
        except Rejected as error:
            return [error]
        sends = [
            channel.send(
                PostPart(
                    key=f"{post.key}#{part.index}",
                    to=post.to,
                    body=part.body,
                    reply_to=post.reply_to if part.index == 0 else None,
                    style=post.style,
                    private=post.private,
                    file=file if part.index == 0 else None,
                    buttons=post.buttons if part.index == len(self._parts) - 1 else (),
                    replaces=replaced,
                    finishes=next(iter(post.previews[part.index :]), None),
                    notify=post.notify,
                    thread_title=post.thread_title,
                    maybe_sent_after=self._positions.get(part.index, "")
                    if self._finder is not None and part.first_at is not None
                    else None,
                ),
                partial(self._hand_over, part),
            )
            for part in window
        ]
        with use_language(post.language):
            results = await self._outbox.run_sends(channel.name, sends)
        taken = [isinstance(one, Receipt) for one in results]
        # what was taken behind it shows that one may post there: it was refused for what it says
        return [
            Rejected(one.reason) if isinstance(one, MayNotPost) and any(taken[number:]) else one
            for number, one in enumerate(results)
        ]

    async def _find_replaced(self, channel: Channel, replaced: PostKey, part: int) -> MessageId:
        """Return the message of that post which this part replaces. Raises Rejected: there is
        none.
        """
        found = list[MessageId]()
        if channel.capabilities.buttons:
            found = await self._outbox.store.message_ids(self._post.to.conversation, replaced)
        if part < len(found):
            return found[part]
        raise Rejected(
            "it takes more messages than it replaces" if found else "what it replaces was not shown"
        )

    async def _hand_over(self, part: OutboxPart) -> None:
        """Record that the part is handed over now: from then on a crash leaves it uncertain.

        Raises `Uncertain` if a repetition could be shown by now; StoreClosed if others may send it
        instead, because they have removed this process.
        """
        if part.first_at is None:
            self._first_handed_over_s[part.index] = self._clock.monotonic()
        elif not can_resend(self._since_s(part.index, part.first_at), self._resend_s):
            raise Uncertain(part.reason)  # it waited too long for its turn
        if self._is_begun:
            self._is_begun = False
            await self._outbox.confirm()
            return
        bodies, self._unsaved = self._unsaved, None
        self._handed_over_at[part.index] = self._clock.now()
        after = ""
        if self._finder is not None:
            # If none is known now, the earlier one still holds: whoever looked has found nothing of
            # ours behind it.
            known = self._positions.get(part.index, "")
            after = self._positions[part.index] = self._finder.position(self._post.to) or known
        started = PartSendStarted(post=self._post.key, part=part.index, bodies=bodies, after=after)
        await self._outbox.record(self._post, [started])
        await self._outbox.confirm()

    def _since_s(self, index: int, first: datetime) -> float:
        """Return the seconds since then. Negative if the clock was set back before that time."""
        since_s = (self._clock.now() - first).total_seconds()
        if since_s < 0 or index not in self._first_handed_over_s:
            return since_s
        return max(since_s, self._clock.monotonic() - self._first_handed_over_s[index])

    def _apply(
        self,
        window: Sequence[OutboxPart],
        results: Sequence[Receipt | BaseException],
        *,
        is_away: bool,
    ) -> tuple[list[PartSendEnded], float]:
        """Apply the results of an attempt to its parts. Return what is to be recorded of them, and
        the seconds before the next attempt. Raises what ends the process.
        """
        news, wait_s = list[PartSendEnded](), 0.0
        # fewer results: the other parts were not tried
        for part, result in zip(window, results, strict=False):
            if isinstance(result, StoreError) or not isinstance(result, Receipt | Exception):
                raise result
            handed_over_at = self._handed_over_at.get(part.index)
            if isinstance(result, Receipt):
                end, part_wait_s = (
                    PartSendEnded(
                        post=self._post.key,
                        part=part.index,
                        state="sent",
                        reason="",
                        ids=result.ids,
                    ),
                    0.0,
                )
            else:
                end, part_wait_s = self._end_failed(part, result)
            wait_s = max(wait_s, part_wait_s)
            # A part that was not handed over and waits again needs no record.
            if end.state != "waiting" or handed_over_at or (is_away and part.reason != end.reason):
                news.append(end)
            self._parts[part.index] = apply_part_end(
                replace(part, first_at=part.first_at or handed_over_at), end
            )
        return news, wait_s

    def _end_failed(self, part: OutboxPart, error: Exception) -> tuple[PartSendEnded, float]:
        is_unseen = isinstance(error, SendError) and not isinstance(error, Uncertain)
        first_at = part.first_at or (None if is_unseen else self._handed_over_at.get(part.index))
        end, wait_s = end_failed_part(
            self._post,
            part,
            error,
            age_s=self._age_s(),
            since_s=None if first_at is None else self._since_s(part.index, first_at),
            resend_s=self._resend_s,
            finds_sent=self._finder is not None,
        )
        is_known = end.state == "waiting" and part.reason == end.reason
        bug = None if isinstance(error, SendError) else error
        logger.log(
            logging.ERROR if bug else logging.DEBUG if is_known else logging.WARNING,
            "post %s part %d is %s: %s",
            self._post.key,
            part.index,
            end.state,
            end.reason,
            exc_info=bug,
        )
        return end, wait_s


def _pending_parts(bodies: Sequence[str]) -> list[OutboxPart]:
    return [
        OutboxPart(index=index, body=body, state="pending", reason="", attempts=0)
        for index, body in enumerate(bodies)
    ]


@dataclass(slots=True, eq=False)
class _Opening:
    upto: Seq | None = None
    """Position up to which all posts were taken over. None: they are being taken over."""
    early: list[OutboxPost] = field(default_factory=list)


class Outbox:
    """Delivers the posts that are queued in the store, on the channels that were opened."""

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
        mute: MutePlaces | None = None,
    ) -> None:
        """`files`: None, if nobody else stores any. `redactor` is applied to every outgoing text.
        `cluster` None: this is the only process.

        `internal` judges the report of a failed delivery of a turn's post; reports of the gateway's
        own posts are not judged. None: no report is. `mute` is told of refusals. None: nobody is.
        """
        self.store, self.channels, self.clock, self.redactor = store, channels, clock, redactor
        self.files = files or OutgoingFiles(store)
        self.tasks = tasks
        self._cluster = cluster or Cluster()
        self._internal = internal
        self.mute = mute
        self._taught = dict[ChannelName, Channel]()
        """Channels that know the messages in the log."""
        self._openings = dict[ChannelName | None, _Opening]()
        """Open channels. None: all are open, whatever their names."""
        self._own_notices = set[PostKey]()
        """Notices about uncertain posts that are being appended."""
        self._link_events = defaultdict[ChannelName, asyncio.Event](asyncio.Event)
        """Set while the link is up."""
        self._queues = dict[ConversationId, deque[OutboxPost]]()
        self._workers = dict[ConversationId, asyncio.Task[None]]()
        self._away_conversations = dict[ConversationId, bool]()
        """Conversations whose next post waits for its recipient, or (True) for the right to post:
        nothing is under way.
        """
        self._refused_at = dict[ConversationId, datetime]()
        """Time of the last refusal of a place where the bot may not, or might not post."""
        self._in_flight = defaultdict[
            ChannelName, set[asyncio.Future[list[Receipt | BaseException]]]
        ](set)
        self._stopping = False
        self._begun = dict[PostKey, tuple[str, ...]]()
        """Posts that are being appended with the start of their first part, and their parts."""
        store.extend_appends(self._begin_posts)
        store.subscribe(self._on_queued, PostQueued)
        store.subscribe(self._on_link, ConnectionChanged)

    async def open(self, name: ChannelName | None = None) -> None:
        """Take over the posts of a channel, or (None) of all, from the process that delivered there
        before, and deliver there from now on.

        The link of a channel is down until `set_link_up`, or the log, says otherwise. It is told of
        its messages, which other processes may ask it for. What waited in a log that has lost its
        end may have been sent, so it ends as uncertain.
        """
        opening = self._openings[name] = _Opening()
        if name is not None:
            self._link_events.pop(name, None)
            if (channel := self.channels.get(name)) is not None:
                await self.teach(channel)
        # What stands in the log up to here may be delivered already, and be published to this
        # process only later.
        upto = await self.store.last_position()
        waiting = [
            item
            for item in await self.store.undelivered_posts()
            if name in (None, item.post.to.channel)
        ]
        lost = self.store.lost_end
        for item in waiting:
            if lost is not None and item.seq <= lost.last:
                logger.warning("post %s is uncertain: %s", item.post.key, LOST_END_TEXT)
                await self.end_post(item.post, "uncertain", LOST_END_TEXT)
        await self._take_over([one for one in waiting if lost is None or one.seq > lost.last])
        opening.upto = max([upto, *(item.seq for item in waiting)])
        for item in opening.early:
            if item.seq > opening.upto:
                self._put(item)
        await self.files.sweep()

    async def close_channel(self, name: ChannelName) -> None:
        """Deliver nothing more on a channel: what is not delivered stays in the log for the process
        that opens it next.

        Call it after the channel has ended: its sends have results by then.
        """
        self._openings.pop(name, None)
        # those that wait for it wake up, and find that it is closed
        self._link_events.pop(name, asyncio.Event()).set()
        await self._end_workers(self._places_of(name))
        self._taught.pop(name, None)

    def delivers(self, name: ChannelName) -> bool:
        """Return whether posts of that channel are delivered here."""
        return not self._stopping and not self._openings.keys().isdisjoint((name, None))

    def find_ready(self, post: Post) -> Channel | None:
        """Return the channel of the post if it is delivered here and would send the post at
        once.
        """
        channel = self.channels.get(post.to.channel)
        if (
            channel is not None
            and isinstance(channel, SendsAtOnce)
            and self.delivers(channel.name)
            and self.link_event(channel.name).is_set()
            and channel.sends_at_once(post.to)
            and post.file is None
            and post.replaces is None
        ):
            return channel
        return None

    def split(self, post: Post, channel: Channel) -> tuple[str, ...]:
        """Cut the post into parts as the channel does."""
        return channel.split(replace(post, text=self.redactor(post.text)))

    def _begin_posts(self, entries: Sequence[NewEntry]) -> Sequence[NewEntry]:
        """Return, for each post that can be sent at once, that its first part is handed over: see
        `Store.extend_appends`.

        Nothing comes between the append and the channel's own line, so a crash there is the same as
        one between an append of its own and the line.
        """
        begun = dict[ConversationId, NewEntry]()
        self._begun.clear()
        for entry in entries:
            if not isinstance(entry.fact, PostQueued):
                continue
            post, place = entry.fact.post, entry.fact.post.to.conversation
            channel = None if place in self._queues or place in begun else self.find_ready(post)
            if channel is None:
                continue
            with contextlib.suppress(Exception):  # told when it is delivered
                bodies = self._begun[post.key] = self.split(post, channel)
                started = PartSendStarted(post=post.key, part=0, bodies=bodies)
                begun[place] = NewEntry(fact=started, at=entry.at, conversation=place, cause=entry)
        return list(begun.values())

    async def _take_over(self, waiting: Sequence[OutboxPost]) -> None:
        interrupted = Counter(
            (item.post.to.channel, item.post.to.room)
            for item in waiting
            if any(map(is_interrupted, item.parts))
        )
        for place, message in await self.store.open_previews():
            if is_provisional(message):
                at = Address.parse(place)
                interrupted[at.channel, at.room] += 1
                if (looks := self.channels.get(at.channel)) is not None:
                    await self.teach(looks)
        for item in waiting:
            post, parts, ended = item.post, list(item.parts), list[PartSendEnded]()
            channel = self.channels.get(post.to.channel)
            resend_s = 0.0 if channel is None else resend_window_s(post, channel)
            if interrupted[post.to.channel, post.to.room] > 1 and resend_s == MAX_AGE_S:
                resend_s = (
                    0.0  # whoever looks cannot tell which thread of the room a message belongs to
                )
            states = recover_parts(parts, now=self.clock.now(), resend_s=resend_s)
            for index, state in states.items():
                logger.warning(
                    "post %s part %d is %s: %s", post.key, index, state, LOST_IN_CRASH_TEXT
                )
                end = PartSendEnded(
                    post=post.key,
                    part=index,
                    state=state,
                    reason=LOST_IN_CRASH_TEXT,
                    maybe_seen=state == "waiting",
                )
                parts = [
                    apply_part_end(part, end) if part.index == index else part for part in parts
                ]
                ended.append(end)
            await self.record(post, ended)
            self._put(replace(item, parts=tuple(parts)))

    def _on_queued(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if not isinstance(entry.fact, PostQueued):
                continue
            post = entry.fact.post
            opening = self._openings.get(post.to.channel) or self._openings.get(None)
            if opening is None:
                continue
            parts = _pending_parts(self._begun.pop(post.key, ()))
            if parts:
                parts[0] = replace(parts[0], state="sending")
            item = OutboxPost(seq=entry.seq, at=entry.at, post=post, parts=tuple(parts))
            if item.post.key in self._own_notices:
                self._put_next(item)
            elif opening.upto is None:
                opening.early.append(item)
            elif item.seq > opening.upto:  # else it was taken over already
                self._put(item)

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                self.set_link_up(entry.fact.channel, up=entry.fact.up or entry.fact.says)

    def _put(self, item: OutboxPost) -> None:
        if self._stopping and not any(part.state == "sending" for part in item.parts):
            return  # the store has it: the next process delivers it
        place = item.post.to.conversation
        self._queues.setdefault(place, deque()).append(item)
        if place not in self._workers:
            self._workers[place] = self.tasks.create_task(self._deliver_queue(place))

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
            while queue and (
                self.delivers(queue[0].post.to.channel)
                or any(part.state == "sending" for part in queue[0].parts)
            ):
                item = queue[0]
                with log_context(conversation=place, post=item.post.key):
                    refused_at = self._refused_at.get(place)
                    if (
                        refused_at is None
                        or item.at > refused_at
                        or await self._is_from_turn(item.post)
                    ):
                        await Delivery(item, self).run()
                    # answers to commands that nobody waits for any more, and which would all come
                    # at once
                    else:
                        await self.end_post(
                            item.post,
                            "failed",
                            "the bot might not post there when it was to be said",
                        )
                queue.popleft()
                if item.post.file is not None:
                    await self.files.sweep()
        finally:
            self._refused_at.pop(place, None)
            del self._workers[place], self._queues[place]

    async def teach(self, channel: Channel) -> None:
        """Tell a channel that looks for what it sent of the newest messages in the log, once."""
        name = channel.name
        if not isinstance(channel, FindsSent) or self._taught.get(name) is channel:
            return
        if self.store.lost_end is not None:  # its own messages would be taken for those of others
            return
        found = await self.store.newest_entries(
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

    async def run_sends(
        self, channel: ChannelName, sends: Sequence[Awaitable[Receipt]]
    ) -> list[Receipt | BaseException]:
        """Return the results of these sends, which `pause` waits for."""
        done = asyncio.gather(*sends, return_exceptions=True)
        self._in_flight[channel].add(done)
        done.add_done_callback(self._in_flight[channel].discard)
        return await done

    async def wait_until_present(
        self, channel: Channel, post: Post, absence: RecipientAway | MayNotPost, max_wait_s: float
    ) -> None:
        """Return once the recipient may be there, or the bot may post there, or after
        `max_wait_s`.
        """
        place, waiting, refused = post.to.conversation, None, isinstance(absence, MayNotPost)
        self._away_conversations[place] = refused
        if refused:
            self._refused_at[place] = self.clock.now()
            if self.mute is not None:
                self.mute.begin(post, absence.reason)
        try:
            if refused and isinstance(channel, KnowsPostingRights):
                waiting = channel.wait_for_rights(post.to)
            elif not refused and isinstance(channel, KnowsRecipients):
                waiting = channel.wait_for_recipient(post.to)
            with contextlib.suppress(TimeoutError):
                await (
                    self.clock.sleep(max_wait_s)
                    if waiting is None
                    else with_timeout(self.clock, max_wait_s, waiting)
                )
        finally:
            del self._away_conversations[place]

    async def record(self, post: Post, facts: Sequence[PartSendStarted | PartSendEnded]) -> None:
        """Append facts about the parts of a post."""
        now, place = self.clock.now(), post.to.conversation
        await self.store.append([NewEntry(fact=one, at=now, conversation=place) for one in facts])

    async def confirm(self) -> None:
        """Return if the posts are this process's to deliver. Raises StoreClosed if it was
        removed.
        """
        if not await self._cluster.confirm():
            self.store.give_up()
            raise StoreClosed(REMOVED_TEXT)

    async def end_post(
        self,
        post: Post,
        state: Literal["sent", "uncertain", "failed"],
        reason: str,
        news: Sequence[PartSendEnded | PreviewShown] = (),
    ) -> None:
        """Append the end of a post after the `news` of its parts and previews, with what follows: a
        judgement, a notice of doubt.
        """
        place, notice, now = post.to.conversation, None, self.clock.now()
        entry = partial(NewEntry, at=now, conversation=place)
        report = DeliveryReport(
            id=EventId(post.key),
            at=post.to,
            post=post.key,
            state=state,
            reason=reason,
            sent=now,
        )
        ended = entry(fact=report, key=dedup_key(report))
        entries = [*(entry(fact=one) for one in news), ended]
        if state != "sent":
            if self._internal is not None and await self._is_from_turn(post):
                entries.append(entry(fact=self._internal.build_judgement(report), cause=ended))
            channel = self.channels.get(post.to.channel)
            notice = await build_doubt_notice(
                self.store,
                post,
                reason if state == "failed" else "",
                marks_replies=channel is not None and channel.capabilities.replies,
            )
        if notice is not None:
            queued = PostQueued(post=notice)
            entries.append(entry(fact=queued, key=f"post:{notice.key}", cause=ended))
            if state == "uncertain":
                self._own_notices.add(notice.key)
        try:
            await self.store.append(entries)
        finally:
            if notice is not None:
                self._own_notices.discard(notice.key)
        if state == "failed" and self.mute is not None:
            self.tasks.create_task(self.mute.tell_refused(report))

    async def _is_from_turn(self, post: Post) -> bool:
        """Return whether a turn made the post: else it answers a command, and no agent knows of
        it.
        """
        _, cause = await self.store.find_post(post.key)
        return cause is not None and cause.kind in TURN_KINDS

    def link_event(self, channel: ChannelName) -> asyncio.Event:
        """Return the event that is set while the link of a channel is up."""
        return self._link_events[channel]

    def set_link_up(self, channel: ChannelName, up: bool) -> None:
        """Record that the connection of a channel came up or went down."""
        event = self.link_event(channel)
        (event.set if up else event.clear)()

    def count_absent(self, channel: ChannelName) -> int:
        """Return how many people there have posts that wait until they are seen."""
        waiting = [place for place, refused in self._away_conversations.items() if not refused]
        return sum(Address.parse(place).channel == channel for place in waiting)

    async def wait_until_sent(self, room: Address, grace_s: float | None) -> None:
        """Return once no post waits in that room or its threads, or after `grace_s` seconds of real
        time; None: however long that takes.
        """
        await self._wait_for_workers(self._places_of(room.channel, room.room), grace_s)

    async def pause(self, channel: ChannelName, grace_s: float) -> None:
        """Deliver queued posts for up to `grace_s` seconds of real time, then start nothing until
        the link is up.

        Returns once the running sends have ended, or after `grace_s` more.
        """
        if self.link_event(channel).is_set():
            await self._wait_for_workers(self._places_of(channel), grace_s)
        self.set_link_up(channel, up=False)
        if running := self._in_flight[channel]:
            await asyncio.wait(running, timeout=grace_s)

    async def drain(self, grace_s: float) -> None:
        """Go on delivering for up to `grace_s` seconds of real time, then start nothing more."""
        await self._wait_for_workers(self._workers, grace_s)
        self._stopping = True
        for event in self._link_events.values():
            event.set()  # those that wait for a link wake up, and find that the outbox stops

    async def close(self) -> None:
        """End all work. Call it after the channels have ended: their sends have results by then."""
        await self._end_workers(self._workers)

    def _places_of(self, channel: ChannelName, room: RoomId | None = None) -> list[ConversationId]:
        working = map(Address.parse, self._workers)
        return [
            at.conversation
            for at in working
            if at.channel == channel and (room is None or at.room == room)
        ]

    async def _wait_for_workers(
        self, places: Iterable[ConversationId], grace_s: float | None
    ) -> None:
        """Wait for those that do not wait for a recipient, or the right to post."""
        working = [
            self._workers[one]
            for one in places
            if one in self._workers and one not in self._away_conversations
        ]
        if working:
            await asyncio.wait(working, timeout=grace_s)

    async def _end_workers(self, places: Collection[ConversationId]) -> None:
        """End them. A finished attempt of those that work is still recorded; an unfinished one
        stays `sending`.
        """
        ending = [self._workers[place] for place in places]
        await self._wait_for_workers(places, SETTLE_S)
        for worker in ending:
            worker.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
