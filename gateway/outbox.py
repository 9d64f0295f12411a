"""From a durable post to a delivery, exactly once or recorded as uncertain.

A post is in the store before this sees it. Before a part is handed to its platform that is written
down, and so is what became of it. So after a crash every part is one of: surely not sent (it is sent),
surely sent (it is not), or in between: then nobody can know, and it is recorded as uncertain and shown.
Within a conversation posts go out in order; conversations do not wait for each other.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from channels.base import Channel, KnowsRecipients, RecipientAway, Rejected
from channels.tasks import with_timeout
from gateway import retry
from gateway.attempt import DeliveryAttempt, describe_bug
from gateway.clock import Clock
from gateway.correlation import log_context
from gateway.events import Address, ChannelName, ConversationId, DeliveryReport, EventId, Post, PostKey, Receipt
from gateway.inbox import ReadyConversation
from gateway.outfiles import OutgoingFiles
from gateway.records import Fact, Judgement, PartSendEnded, PostQueued, dedup_key
from gateway.redaction import Redact, Redactor
from gateway.store import NewEntry, OutboxPart, OutboxPost, Store

logger = logging.getLogger("reverie.outbox")

DOUBT_S = 60.0
"""A notice that an answer may not have arrived waits so long, or until something else is to be said there."""
LOST_IN_CRASH_TEXT = "the process ended while this part was being sent"
SETTLE_S = 1.0
"""After its channel has ended, an attempt gets this long to write down what became of it."""


class Outbox:
    """Delivers what is queued in the store."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[ChannelName, Channel],
        clock: Clock,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        *,
        files: OutgoingFiles | None = None,
        judge: Callable[[DeliveryReport], Judgement | None] = lambda _: None,
        arrived: Callable[[ReadyConversation], None] = lambda _: None,
        redact: Redact | None = None,
        doubt: Callable[[Post, bool], Awaitable[Post | None]] | None = None,
    ) -> None:
        """`spawn` starts a task whose failure stops the gateway: a bug here must not go unseen.

        `files`: None, if nobody else puts any there. `judge` says what becomes of a delivery of what a turn said that
        did not go well (None: nothing), which is written down with it; `arrived` is called if it is due. Of what the
        machine itself says nobody is told. `redact` is given every text that goes out. `doubt`: what whoever waited for
        a post is told because it may not have arrived (`doubts.notice`); None: nothing.
        """
        self._store = store
        self._channels = channels
        self._clock = clock
        self._spawn = spawn
        self._files = files or OutgoingFiles(store)
        self._judge = judge
        self._on_ready = arrived
        self._redact = redact or Redactor()
        self._make_uncertain_notice = doubt
        self._held_notices: dict[ConversationId, tuple[PostKey, asyncio.Event]] = {}
        """The notice that waits in a place; set: it waits no longer."""
        self._link_events: dict[ChannelName, asyncio.Event] = {}
        """Set while it is up."""
        self._queues: dict[ConversationId, deque[OutboxPost]] = {}
        self._workers: dict[ConversationId, asyncio.Task[None]] = {}
        self._away_conversations: set[ConversationId] = set()
        """Where the next post is for somebody who is not there: nothing is under way."""
        self._in_flight: defaultdict[ChannelName, set[asyncio.Future[list[Receipt | BaseException]]]] = defaultdict(set)
        """What is handed over just now."""
        self._stopping = False

    async def recover(self) -> None:
        """Take up what an earlier process left. Call once, before anything is put."""
        for item in await self._store.undelivered_posts():
            channel = self._channels.get(item.post.to.channel)
            resend_s = channel.capabilities.resend_window_s if channel else 0.0
            parts, ended = list(item.parts), []
            for index, state in retry.recover_parts(parts, now=self._clock.now(), resend_s=resend_s).items():
                logger.warning("post %s part %d is %s: %s", item.post.key, index, state, LOST_IN_CRASH_TEXT)
                end = PartSendEnded(
                    post=item.post.key,
                    part=index,
                    state=state,
                    reason=LOST_IN_CRASH_TEXT,
                    maybe_seen=state == "waiting",
                )
                parts = [retry.apply_part_end(part, end) if part.index == index else part for part in parts]
                ended.append(end)
            await self._record(item.post, ended)
            self.put(replace(item, parts=tuple(parts)))
        await self._files.sweep()

    def put(self, item: OutboxPost) -> None:
        """Deliver a post that is already queued in the store. Returns at once."""
        if self._stopping:
            return  # the store has it: the next process delivers it
        place = item.post.to.conversation
        self._queues.setdefault(place, deque()).append(item)
        if place in self._held_notices:
            self._held_notices[place][1].set()
        if place not in self._workers:
            self._workers[place] = self._spawn(self._deliver_queue(place))

    def set_link_up(self, channel: ChannelName, up: bool) -> None:
        """The connection of a channel came up or went down."""
        if not self._stopping:
            event = self._link_event(channel)
            (event.set if up else event.clear)()

    async def wait_until_sent(self, place: ConversationId, grace_s: float) -> None:
        """Return once nothing waits to be said there, or after `grace_s` seconds of real time."""
        if (worker := self._workers.get(place)) and place not in self._away_conversations:
            await asyncio.wait({worker}, timeout=grace_s)

    async def pause(self, channel: ChannelName, grace_s: float) -> None:
        """Deliver what waits there for up to `grace_s` seconds of real time, then begin nothing until its link is up.

        Returns once what was begun has ended, or after `grace_s` more.
        """
        named = {place for place in self._workers if Address.parse(place).channel == channel}
        working = [self._workers[place] for place in named - self._away_conversations]
        for place in named & self._held_notices.keys():
            self._held_notices[place][1].set()
        if working and self._link_event(channel).is_set():
            await asyncio.wait(working, timeout=grace_s)
        self.set_link_up(channel, up=False)
        if flying := self._in_flight[channel]:
            await asyncio.wait(flying, timeout=grace_s)

    async def drain(self, grace_s: float) -> None:
        """Go on delivering for up to `grace_s` seconds of real time, then begin nothing more."""
        for _, held in self._held_notices.values():
            held.set()
        if working := self._active_workers():
            await asyncio.wait(working, timeout=grace_s)
        self._stopping = True
        for event in self._link_events.values():
            event.set()  # whoever waits for a link wakes, and sees that we stop

    async def close(self) -> None:
        """End all work. Call after the channels have ended: their sends then say what became of them."""
        workers = list(self._workers.values())
        if working := self._active_workers():
            # An attempt that is over still has to be written down; one that is not stays `sending`.
            await asyncio.wait(working, timeout=SETTLE_S)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _deliver_queue(self, place: ConversationId) -> None:
        queue = self._queues[place]
        try:
            while queue and not self._stopping:
                if not await self._wait_until_due(place, queue):
                    return
                with log_context(conversation=place, post=queue[0].post.key):
                    await self._deliver(queue[0])
                if queue.popleft().post.file is not None:
                    await self._files.sweep()
        finally:
            self._held_notices.pop(place, None)
            del self._workers[place], self._queues[place]

    async def _wait_until_due(self, place: ConversationId, queue: deque[OutboxPost]) -> bool:
        """Let a notice wait for company, or for its time. False: we stop."""
        item = queue[0]
        if place in self._held_notices and self._held_notices[place][0] == item.post.key:
            if len(queue) == 1 and (left_s := DOUBT_S - self._age_s(item)) > 0:
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._clock, left_s, self._held_notices[place][1].wait())
            if not self._stopping:
                del self._held_notices[place]
        return not self._stopping

    async def _deliver(self, item: OutboxPost) -> None:
        post, parts = item.post, list(item.parts)
        attempt, cutter, away = DeliveryAttempt(post, self._clock, self._record), None, False
        while not parts or retry.select_window(parts, 1):
            channel = await self._wait_for_channel(item)
            if channel is None:
                return
            if retry.is_unsent(parts) and self._age_s(item) >= retry.MAX_AGE_S:
                reason = f"gave up after 24 h: {parts[0].reason}" if away else "the link was down for too long"
                await self._record(post, [self._delivery(post, "failed", reason)])
                return
            if not parts or (attempt.unsaved_bodies and channel is not cutter):  # another one may cut it in another way
                try:
                    attempt.unsaved_bodies, cutter = channel.split(replace(post, text=self._redact(post.text))), channel
                except Exception as error:  # a bug in the adapter: ended here, or it would end every start
                    logger.exception("post %s cannot be cut", post.key)
                    await self._record(post, [self._delivery(post, "failed", describe_bug(error))])
                    return
                parts = [
                    OutboxPart(index=i, body=b, state="pending", reason="", attempts=0)
                    for i, b in enumerate(attempt.unsaved_bodies)
                ]
            able = channel.capabilities
            attempt.resend_s = able.resend_window_s
            window = retry.select_window(parts, able.max_in_flight, resend_s=able.resend_window_s)
            results = await self._send(channel, post, attempt, window)
            ended, wait_s = attempt.evaluate(window, results, self._age_s(item))
            away = any(isinstance(one, RecipientAway) for one in results)
            news = [end for end in ended if attempt.is_news(end) or (away and parts[end.part].reason != end.reason)]
            for end in ended:
                parts[end.part] = retry.apply_part_end(
                    replace(parts[end.part], first_at=attempt.first_handed_over(parts[end.part])), end
                )
            finished = [] if retry.select_window(parts, 1) else [self._delivery(post, *retry.summarize_parts(parts))]
            await self._record(post, [*news, *finished])
            if finished:
                return
            if away:
                await self._wait_until_present(channel, post, wait_s)
            elif wait_s:
                await self._clock.sleep(wait_s)
        # Nothing was left to send: a crash came between the last part and the word on the whole.
        await self._record(post, [self._delivery(post, *retry.summarize_parts(parts))])

    async def _wait_until_present(self, channel: Channel, post: Post, most_s: float) -> None:
        """Return once whoever the post is for may be there, or after `most_s`."""
        place = post.to.conversation
        self._away_conversations.add(place)
        try:
            if isinstance(channel, KnowsRecipients):
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._clock, most_s, channel.wait_for_recipient(post.to))
            else:
                await self._clock.sleep(most_s)
        finally:
            self._away_conversations.discard(place)

    def _active_workers(self) -> list[asyncio.Task[None]]:
        """What may soon be said."""
        return [task for place, task in self._workers.items() if place not in self._away_conversations]

    async def _wait_for_channel(self, item: OutboxPost) -> Channel | None:
        """What the post goes to, once its link is up. None: we stop, or it is no longer to be waited for."""
        name = item.post.to.channel
        while True:
            if name not in self._channels and self._age_s(item) >= retry.MAX_AGE_S:
                await self._record(item.post, [self._delivery(item.post, "failed", f"no channel {name} is configured")])
                return None
            await self._link_event(name).wait()
            if self._stopping:
                return None
            if (channel := self._channels.get(name)) is not None:
                return channel
            self._link_event(name).clear()  # it was taken away

    def _link_event(self, channel: ChannelName) -> asyncio.Event:
        event = self._link_events.setdefault(channel, asyncio.Event())
        if self._stopping:
            event.set()
        return event

    async def _send(
        self, channel: Channel, post: Post, attempt: DeliveryAttempt, window: Sequence[OutboxPart]
    ) -> list[Receipt | BaseException]:
        """What came of each of them; of the first alone, if nothing was sent."""
        file = None
        try:
            if window[0].index == 0 and post.file is not None:
                file = await self._files.load_file(post.file, channel.capabilities)
        except Rejected as error:
            return [error]
        parts = [attempt.build_part(part, file if part.index == 0 else None) for part in window]
        sends = [channel.send(part, attempt.make_going(one)) for part, one in zip(parts, window, strict=True)]
        flying = asyncio.gather(*sends, return_exceptions=True)
        self._in_flight[channel.name].add(flying)
        flying.add_done_callback(self._in_flight[channel.name].discard)
        return await flying

    def _age_s(self, item: OutboxPost) -> float:
        return (self._clock.now() - item.at).total_seconds()

    def _delivery(self, post: Post, state: Literal["sent", "uncertain", "failed"], reason: str) -> DeliveryReport:
        return DeliveryReport(
            id=EventId(post.key), at=post.to, post=post.key, state=state, reason=reason, sent=self._clock.now()
        )

    async def _record(self, post: Post, facts: Sequence[Fact]) -> None:
        now, place = self._clock.now(), post.to.conversation
        entries, told, queued = list[NewEntry](), list[NewEntry](), dict[int, Post]()
        for fact in facts:
            key = dedup_key(fact) if isinstance(fact, DeliveryReport) else None
            entries.append(entry := NewEntry(fact=fact, at=now, conversation=place, key=key))
            if isinstance(fact, DeliveryReport) and fact.state != "sent" and await self._is_from_turn(post):
                judged = self._judge(fact)
                if judged is not None:
                    told.append(NewEntry(fact=judged, at=now, conversation=place, cause=entry))
            if (
                isinstance(fact, DeliveryReport)
                and fact.state == "uncertain"
                and (doubt := await self._build_uncertain_notice(post))
            ):
                queued[len(told)] = doubt
                told.append(
                    NewEntry(
                        fact=PostQueued(post=doubt), at=now, conversation=place, key=f"post:{doubt.key}", cause=entry
                    )
                )
        written = await self._store.append([*entries, *told])
        for index, doubt in queued.items():
            if (done := written[len(entries) + index]).is_new:
                self._put_next(OutboxPost(seq=done.seq, at=now, post=doubt, parts=()))
        for one, entry in zip(written[len(entries) :], told, strict=True):
            if isinstance(entry.fact, Judgement) and entry.fact.fate == "due" and one.is_new:
                self._on_ready(ReadyConversation(conversation=place, urgency=entry.fact.urgency, type=entry.fact.type))

    async def _build_uncertain_notice(self, post: Post) -> Post | None:
        """What is to be said of it, unless that is to be said there already."""
        if self._make_uncertain_notice is None or post.to.conversation in self._held_notices:
            return None
        channel = self._channels.get(post.to.channel)
        return await self._make_uncertain_notice(post, channel is not None and channel.capabilities.replies)

    def _put_next(self, item: OutboxPost) -> None:
        """Deliver it before all else that waits there: it is about what was said last."""
        place = item.post.to.conversation
        if self._stopping:
            return
        if waiting := self._queues.get(place):
            waiting.insert(1, item)
        else:
            self.put(item)
        held = self._held_notices[place] = item.post.key, asyncio.Event()
        if len(self._queues[place]) > 2:  # noqa: PLR2004 - it, what was said last, and something else
            held[1].set()

    async def _is_from_turn(self, post: Post) -> bool:
        """Whether it is what a turn said: else it answers a command, and no agent knows of it."""
        queued = await self._store.entry_by_key(f"post:{post.key}")
        cause = await self._store.entry(queued.cause) if queued is not None and queued.cause is not None else None
        return cause is not None and cause.kind in ("turn_ended", "acted")
