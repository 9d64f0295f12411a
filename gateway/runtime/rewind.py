"""Changes the view of a conversation because somebody asked for it.

`gateway.runtime.rewind` decides, this carries it out.

What is decided holds while no turn runs there: the room's door is held from the decision until its facts are durable.

Taking back what a conversation's view shows: which turns leave it, and what is said of that. Pure.

People count exchanges. One ends with a turn that said something there by itself; what was interrupted directly in front
of it is part of it, for it was answered there; and what came behind it - turns that stayed silent, and what was said
there out of the inner conversation - leaves with it. The log keeps everything: only the view changes.

`plan_retry` goes back to the newest turn that was told something, with those in front of it that were interrupted. What
the agent has done since then by itself leaves too, for it followed from that answer; but what it said there last out of
its inner conversation, behind all that, stays: it was no answer.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from gateway.core.clock import Clock
from gateway.core.control_messages import ContextRequest, ControlResponse
from gateway.core.events import Address, Alarm, ConversationId, Message, MessageId, Post, PostKey
from gateway.core.facts import (
    MESSAGE_KINDS,
    URGENT,
    ConversationRewound,
    Fact,
    PostQueued,
    Seq,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    is_inner,
)
from gateway.store import AppendResult, LogEntry, NewEntry, OutboxPost, Store, StoreError
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.inbox import ReadyConversation
from gateway.tools.platform import ConversationLocks

RewindAction = Literal["new", "rewind", "retry", "compact"]
MOST_EXCHANGES = 1_000
"""Taken back at once: more is a mistake, or `plan_new`."""
TURN_RUNNING = "A turn is under way here; say it again when it has ended."
_ALREADY_FRESH = "Nothing is in view here: it is fresh already."
_NOTHING = Seq(0)


class TurnInView(NamedTuple):
    """A turn in view."""

    seq: Seq
    fact: TurnRecord
    missed: tuple[Seq, ...] = ()
    """Of a turn that broke before it was told anything: the messages that it was to be told."""

    @property
    def covers(self) -> tuple[Seq, ...]:
        """What it was told, or was to be told."""
        return self.fact.covers or self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """What comes of it."""

    text: str
    """One sentence for whoever asked."""
    fact: ViewFolded | ConversationRewound | None = None
    """To be written down in that conversation. None: nothing of the view changes."""
    dismissed: UnreadDismissed | None = None
    """The same of what was overheard there and not told yet."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Both."""
        return tuple(fact for fact in (self.fact, self.dismissed) if fact is not None)

    @property
    def is_retry(self) -> bool:
        """Something is unread again, and wants a turn."""
        return isinstance(self.fact, ConversationRewound) and bool(self.fact.again)


def plan_new(
    view: Sequence[TurnInView], folded: ViewFolded | None, by: str, *, overheard: Seq = _NOTHING
) -> RewindPlan:
    """Begin afresh: nothing of what was said until now is in view, nor told as new. `folded`: the newest fold there.

    `find_overheard_upto`: up to here all that is unread was said to others. 0: nothing is.
    """
    head = folded is not None and bool(folded.head)
    unread = UnreadDismissed(turn=TurnId(""), upto=overheard) if overheard else None
    if not view and not head:
        words = "Nothing was in view here; what was overheard is not told any more." if unread else _ALREADY_FRESH
        return RewindPlan(text=words, dismissed=unread)
    start = max(view[-1].seq + 1 if view else 0, folded.start if folded is not None else 0)
    gone = f"{_format_turns(len(view))}{' and what stood in front of them' if head else ''}"
    return RewindPlan(
        text=f"A fresh view: {gone} left it; the log keeps all.",
        fact=ViewFolded(start=Seq(start), reason=f"{by} asked for a fresh view", kinds=("new",)),
        dismissed=unread,
    )


def find_overheard_upto(unread: Sequence[LogEntry], upto: Seq) -> Seq:
    """Up to where all that is unread was said to others: what was said to the agent is answered all the same.

    `unread`, `upto`: as `Unread` has them. 0: nothing is.
    """
    if not unread:
        return _NOTHING
    asked = [one.seq for one in unread if _asks_agent(one)]
    return Seq(asked[0] - 1) if asked else upto


def _asks_agent(one: LogEntry) -> bool:
    return isinstance(one.fact, Alarm) or (isinstance(one.fact, Message) and one.fact.kind != "room")


def plan_rewind(view: Sequence[TurnInView], count: int, by: str) -> RewindPlan:
    """Take back the newest exchanges: as many as are in view, if that is fewer. `count`: at least 1."""
    if not view:
        return RewindPlan(text="Nothing is in view here that could be taken back.")
    first, found = _find_exchanges(view, count)
    short = f" (of {count}: no more are in view)" if found < count else ""
    gone = view[first:]
    return RewindPlan(
        text=(
            f"Taken back: the last {_format_exchanges(found)}{short}, which {_format_were_turns(len(gone))} "
            "of this conversation."
        ),
        fact=ConversationRewound(first=gone[0].seq, last=gone[-1].seq, by=by),
    )


def plan_retry(view: Sequence[TurnInView], by: str, conversation: ConversationId) -> RewindPlan:
    """Answer once more what was answered last."""
    told = [place for place, turn in enumerate(view) if turn.covers and turn.fact.within is None]
    if is_inner(conversation) or not told:
        return RewindPlan(text="Nothing is in view here that could be answered again.")
    first = _include_interrupted(view, told[-1])
    last = max(place for place, turn in enumerate(view) if turn.fact.within is None)
    gone = view[first : last + 1]
    again = tuple(sorted({seq for turn in gone for seq in turn.covers}))
    lines = f"{len(again)} message{'' if len(again) == 1 else 's'}"
    return RewindPlan(
        text=f"Once more: {lines} of this conversation {'is' if len(again) == 1 else 'are'} answered again, "
        f"and {_format_turns(len(gone))} taken back.",
        fact=ConversationRewound(first=gone[0].seq, last=gone[-1].seq, by=by, again=again),
    )


def parse_count(said: str) -> int | None:
    """How many exchanges somebody means; nothing: one. None: that is no number of exchanges."""
    text = said.strip()
    if not text:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_EXCHANGES))):
        return None
    return count if 1 <= (count := int(text)) <= MOST_EXCHANGES else None


def _find_exchanges(view: Sequence[TurnInView], count: int) -> tuple[int, int]:
    """Where the newest so many begin, and how many there are; what nobody saw an answer to counts as one."""
    ends = [place for place, turn in enumerate(view) if turn.fact.text and turn.fact.within is None]
    if len(ends) <= count:  # and whatever is in front of the first of them
        return (0 if len(ends) < count or not ends else _include_interrupted(view, ends[0])), max(1, len(ends))
    return _include_interrupted(view, ends[-count]), count


def _include_interrupted(view: Sequence[TurnInView], place: int) -> int:
    """Where what that turn answered begins."""
    while place > 0 and view[place - 1].fact.outcome == "interrupted":
        place -= 1
    return place


def _format_turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


def _format_exchanges(count: int) -> str:
    return f"{count} exchanges" if count > 1 else "exchange"


def _format_were_turns(count: int) -> str:
    return f"{'was' if count == 1 else 'were'} {_format_turns(count)}"


logger = logging.getLogger("reverie.rewinds")

MAX_EARLIER_TURNS = 20
"""Turns among which is looked for how far was read before: what was said there unasked reads nothing."""
MAX_REWOUND_LINES = 50
"""As many as a turn is told of at once."""
LOCK_TIMEOUT_S = 0.1
"""A door that is free is had at once, unless somebody who waited for it has not come in yet."""
COMPACT_TIMEOUT_S = 8.0
"""Of whoever asks from outside; less than `gateway.core.control_socket.ANSWER_S`."""
_TOLD_FATES = ("due", "context")
COMPACTING = "I make what I see of this conversation smaller, and say here what came of it."


class RewindAgents(Protocol):
    """What is needed of the agents: `gateway.runtime.agents.Agents`."""

    def forget_view(self, conversation: ConversationId) -> None:
        """What is kept of the view there is not what the log has."""

    def notice(self, arrival: ReadyConversation) -> None:
        """Something is ripe for a turn."""

    async def compact(self, conversation: ConversationId) -> str:
        """Fold the view there now, while no turn runs there; in words, what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """What somebody wants of a conversation."""

    action: RewindAction
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


class Rewinder:
    """For all agents."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        doors: ConversationLocks,
        minds: RewindAgents,
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

    async def plan(self, wish: RewindRequest) -> CommandEffect:
        """Decide. Where a turn is under way nothing changes; until a change is settled no turn begins there."""
        place = wish.at.conversation
        door = self._room_locks.lock_for(place)
        if door.locked():
            return CommandEffect(answer=TURN_RUNNING)
        if wish.action == "compact":
            return CommandEffect(answer=COMPACTING, settle=lambda asked: self._start_compaction(wish, asked))
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await door.acquire()
        except TimeoutError:  # a turn had waited for it, and is about to begin
            return CommandEffect(answer=TURN_RUNNING)
        try:
            back = await self._decide(wish, place)
        except BaseException:
            door.release()
            raise
        if not back.facts:
            door.release()
            return CommandEffect(answer=back.text)
        facts = tuple(map(EffectFact, back.facts))
        return CommandEffect(answer=back.text, facts=facts, settle=lambda asked: self._settle(wish, back, door, asked))

    async def handle_order(self, order: ContextRequest) -> ControlResponse:
        """Decide, write it down and say what came of it: for somebody who is not in that conversation."""
        try:
            at = Address.parse(order.conversation)
        except ValueError:
            return ControlResponse(
                ok=False, lines=(f"{order.conversation} is no conversation: write it as the log has it",)
            )
        wish = RewindRequest(action=order.what, at=at, by=order.by, count=order.count, is_trusted=True)
        change = await self.plan(wish)
        if wish.action == "compact" and change.answer != TURN_RUNNING:
            return ControlResponse(ok=True, lines=(await self._compact_with_timeout(at.conversation),))
        written: Sequence[AppendResult] = ()
        try:
            now, place = self._clock.now(), at.conversation
            made = [NewEntry(fact=one.fact, at=now, conversation=place) for one in change.facts]
            written = await self._store.append(made)
        finally:
            change.settle(written[0] if written else None)
        return ControlResponse(ok=bool(change.facts), lines=(change.answer,))

    async def _compact_with_timeout(self, place: ConversationId) -> str:
        """What came of folding, if that is known before whoever asked has waited too long."""
        words: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = self._start_task(self._compact_into(place, words))
        await asyncio.wait({task}, timeout=COMPACT_TIMEOUT_S)
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

    async def _decide(self, wish: RewindRequest, place: ConversationId) -> RewindPlan:
        turns = await self._store.turns_in_view(place)
        view = [TurnInView(turn.seq, turn.fact) for turn in turns if isinstance(turn.fact, TurnRecord)]
        if wish.action == "rewind":
            return plan_rewind(view, wish.count, wish.by)
        if wish.action == "retry":
            return plan_retry([await self._with_missed(turn, place) for turn in view], wish.by, place)
        newest = await self._store.newest_fold(place)
        folded = newest.fact if newest is not None and isinstance(newest.fact, ViewFolded) else None
        unread = await self._store.unread_entries(place, most=MAX_REWOUND_LINES)
        return plan_new(view, folded, wish.by, overheard=find_overheard_upto(unread.messages, unread.upto))

    async def _with_missed(self, turn: TurnInView, place: ConversationId) -> TurnInView:
        """With what it was to be told, if it broke before."""
        ended = turn.fact
        if ended.outcome != "failed" or ended.covers or not ended.omitted:
            return turn
        earlier = [one.fact for one in await self._store.newest_turns(place, before=turn.seq, newest=MAX_EARLIER_TURNS)]
        after = max((one.upto for one in earlier if isinstance(one, TurnRecord)), default=Seq(0))
        said = await self._store.newest_entries(
            MAX_REWOUND_LINES, after=after, before=ended.upto + 1, kinds=MESSAGE_KINDS, conversation=place
        )
        judged = [(one.seq, await self._store.find_judgement(one.seq)) for one in said]
        return turn._replace(missed=tuple(seq for seq, one in judged if one is not None and one.fate in _TOLD_FATES))

    def _settle(self, wish: RewindRequest, back: RewindPlan, door: asyncio.Lock, asked: AppendResult | None) -> None:
        place = wish.at.conversation
        self._agents.forget_view(place)
        door.release()
        if asked is None or not asked.is_new:
            return
        logger.info("%s: %s, by %s: %s", place, wish.action, wish.by, back.text)
        if back.is_retry:
            self._agents.notice(
                ReadyConversation(
                    conversation=place,
                    urgency=URGENT,
                    direct=wish.is_direct,
                    handle_in_place=True,
                    trusted=wish.is_trusted,
                )
            )

    def _start_compaction(self, wish: RewindRequest, asked: AppendResult | None) -> None:
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

    async def _compact_and_post(self, wish: RewindRequest, seq: Seq) -> None:
        """Fold, and tell there what came of it."""
        place = wish.at.conversation
        words = await self._compact(place)
        now = self._clock.now()
        key = PostKey(hashlib.sha256(f"compacted:{seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=wish.at, text=words, reply_to=wish.reply_to)
        entry = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{key}", cause=seq)
        (queued,) = await self._store.append([entry])
        self._post(OutboxPost(seq=queued.seq, at=now, post=post, parts=()))
