"""Changes the view of a conversation because somebody asked for it: `gateway.rewinding` decides, this carries it out.

What is decided holds while no turn runs there: the room's door is held from the decision until its facts are durable.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway import rewinding
from gateway.acting import Rooms
from gateway.changes import Change, Made
from gateway.clock import Clock
from gateway.events import Address, ConversationId, MessageId, Post, PostKey
from gateway.inbox import Arrival
from gateway.orders import Answer, ContextOrder
from gateway.records import MESSAGES, URGENT, Folded, Queued, Seq, TurnEnded
from gateway.rewinding import BUSY, Seen, TakenBack, What
from gateway.store import Appended, Entry, OutboxPost, Store, StoreError

logger = logging.getLogger("reverie.rewinds")

EARLIER = 20
"""Turns among which is looked for how far was read before: what was said there unasked reads nothing."""
MOST_LINES = 50
"""As many as a turn is told of at once."""
FREE_S = 0.1
"""A door that is free is had at once, unless somebody who waited for it has not come in yet."""
PATIENCE_S = 8.0
"""Of whoever asks from outside; less than `gateway.control.ANSWER_S`."""
_TOLD = ("due", "context")
COMPACTING = "I make what I see of this conversation smaller, and say here what came of it."


class Minds(Protocol):
    """What is needed of the agents: `gateway.minds.Minds`."""

    def forget_view(self, conversation: ConversationId) -> None:
        """What is kept of the view there is not what the log has."""

    def notice(self, arrival: Arrival) -> None:
        """Something is ripe for a turn."""

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now, while no turn runs there; in words, what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants of a conversation."""

    action: What
    at: Address
    by: str
    """Who, for people."""
    count: int = 1
    """Of `rewind`: exchanges."""
    is_direct: bool | None = None
    """Whether it is a direct chat. None: that is not known."""
    is_trusted: bool = False
    """An owner or admin wants it."""
    reply_to: MessageId | None = None
    """What tells later what came of `compact` is a reply to this."""


class Rewinds:
    """For all agents."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        doors: Rooms,
        minds: Minds,
        post: Callable[[OutboxPost], None],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`post` is called with what is said, after it is durable. `spawn` starts a task whose failure stops all."""
        self._store = store
        self._clock = clock
        self._room_locks = doors
        self._agents = minds
        self._post = post
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def plan(self, wish: Wish) -> Change:
        """Decide. Where a turn is under way nothing changes; until a change is settled no turn begins there."""
        place = wish.at.conversation
        door = self._room_locks.lock_for(place)
        if door.locked():
            return Change(answer=BUSY)
        if wish.action == "compact":
            return Change(answer=COMPACTING, settle=lambda asked: self._start_compaction(wish, asked))
        try:
            async with asyncio.timeout(FREE_S):
                await door.acquire()
        except TimeoutError:  # a turn had waited for it, and is about to begin
            return Change(answer=BUSY)
        try:
            back = await self._decide(wish, place)
        except BaseException:
            door.release()
            raise
        if not back.facts:
            door.release()
            return Change(answer=back.text)
        facts = tuple(map(Made, back.facts))
        return Change(answer=back.text, facts=facts, settle=lambda asked: self._settle(wish, back, door, asked))

    async def handle_order(self, order: ContextOrder) -> Answer:
        """Decide, write it down and say what came of it: for somebody who is not in that conversation."""
        try:
            at = Address.parse(order.conversation)
        except ValueError:
            return Answer(ok=False, lines=(f"{order.conversation} is no conversation: write it as the log has it",))
        wish = Wish(action=order.what, at=at, by=order.by, count=order.count, is_trusted=True)
        change = await self.plan(wish)
        if wish.action == "compact" and change.answer != BUSY:
            return Answer(ok=True, lines=(await self._compact_with_timeout(at.conversation),))
        written: Sequence[Appended] = ()
        try:
            now, place = self._clock.now(), at.conversation
            made = [Entry(fact=one.fact, at=now, conversation=place) for one in change.facts]
            written = await self._store.append(made)
        finally:
            change.settle(written[0] if written else None)
        return Answer(ok=bool(change.facts), lines=(change.answer,))

    async def _compact_with_timeout(self, place: ConversationId) -> str:
        """What came of folding, if that is known before whoever asked has waited too long."""
        words: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = self._start_task(self._compact_into(place, words))
        await asyncio.wait({task}, timeout=PATIENCE_S)
        return words.result() if words.done() else "It is under way; the log will say what came of it."

    async def _compact_into(self, place: ConversationId, words: asyncio.Future[str]) -> None:
        words.set_result(await self._compact(place))

    async def close(self) -> None:
        """Leave off what was begun, and begin nothing more: people are still heard while the gateway stops."""
        self._closed = True
        folding = list(self._tasks)
        for task in folding:
            task.cancel()
        await asyncio.gather(*folding, return_exceptions=True)

    async def _decide(self, wish: Wish, place: ConversationId) -> TakenBack:
        turns = await self._store.turns_in_view(place)
        view = [Seen(turn.seq, turn.fact) for turn in turns if isinstance(turn.fact, TurnEnded)]
        if wish.action == "rewind":
            return rewinding.rewind(view, wish.count, wish.by)
        if wish.action == "retry":
            return rewinding.retry([await self._with_missed(turn, place) for turn in view], wish.by, place)
        newest = await self._store.newest_fold(place)
        folded = newest.fact if newest is not None and isinstance(newest.fact, Folded) else None
        unread = await self._store.unread_entries(place, most=MOST_LINES)
        return rewinding.new(view, folded, wish.by, overheard=rewinding.overheard(unread.messages, unread.upto))

    async def _with_missed(self, turn: Seen, place: ConversationId) -> Seen:
        """With what it was to be told, if it broke before."""
        ended = turn.fact
        if ended.outcome != "failed" or ended.covers or not ended.omitted:
            return turn
        earlier = [one.fact for one in await self._store.newest_turns(place, before=turn.seq, newest=EARLIER)]
        after = max((one.upto for one in earlier if isinstance(one, TurnEnded)), default=Seq(0))
        said = await self._store.newest_entries(
            MOST_LINES, after=after, before=ended.upto + 1, kinds=MESSAGES, conversation=place
        )
        judged = [(one.seq, await self._store.find_judgement(one.seq)) for one in said]
        return turn._replace(missed=tuple(seq for seq, one in judged if one is not None and one.fate in _TOLD))

    def _settle(self, wish: Wish, back: TakenBack, door: asyncio.Lock, asked: Appended | None) -> None:
        place = wish.at.conversation
        self._agents.forget_view(place)
        door.release()
        if asked is None or not asked.is_new:
            return
        logger.info("%s: %s, by %s: %s", place, wish.action, wish.by, back.text)
        if back.is_retry:
            self._agents.notice(
                Arrival(
                    conversation=place,
                    urgency=URGENT,
                    direct=wish.is_direct,
                    handle_in_place=True,
                    trusted=wish.is_trusted,
                )
            )

    def _start_compaction(self, wish: Wish, asked: Appended | None) -> None:
        if asked is not None and asked.is_new:
            self._start_task(self._compact_and_post(wish, asked.seq))

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            task.cancel()
        return task

    async def _compact(self, place: ConversationId) -> str:
        """Fold; in words, what came of it."""
        try:
            return await self._agents.compact(place)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception:  # a bug: whoever asked is told, and everything else goes on
            logger.exception("folding %s broke", place)
            return "That did not work. The operator can look it up in the log."

    async def _compact_and_post(self, wish: Wish, seq: Seq) -> None:
        """Fold, and tell there what came of it."""
        place = wish.at.conversation
        words = await self._compact(place)
        now = self._clock.now()
        key = PostKey(hashlib.sha256(f"compacted:{seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=wish.at, text=words, reply_to=wish.reply_to)
        entry = Entry(fact=Queued(post=post), at=now, conversation=place, key=f"post:{key}", cause=seq)
        (queued,) = await self._store.append([entry])
        self._post(OutboxPost(seq=queued.seq, at=now, post=post, parts=()))
