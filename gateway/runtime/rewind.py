"""Rewind: changes to a conversation's view on request (`/new`, `/rewind`, `/retry`, `/compact`).

- `plan_new`, `plan_rewind` and `plan_retry` decide which turns leave the view, and the answer.
  Pure. The log keeps everything: only the view changes.
- `Rewinder` carries the plans out. A plan holds while no turn runs there: the place's lock is held
  from the decision until its facts are durable.

People count exchanges. An exchange ends with a turn that posted a reply there. Interrupted turns
directly in front of it belong to it, because it answered them; turns behind it (silent ones, and
messages posted there out of the inner conversation) leave with it.

`plan_retry` goes back to the newest turn that had input, with the interrupted turns in front of it.
What the agent has done there since then leaves too, for it followed from that answer; but a last
message out of the inner conversation, behind all that, stays: it was no answer.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.context.conversation import LOCK_TIMEOUT_S, ConversationLocks, is_addressed
from gateway.core.clock import Clock
from gateway.core.events import Address, ConversationId, MessageId, Post, PostKey
from gateway.core.facts import (
    MESSAGE_KINDS,
    URGENT,
    ConversationRewound,
    Fact,
    PostQueued,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    is_inner,
)
from gateway.core.i18n import N_, _, ngettext
from gateway.runtime.agents import Agents
from gateway.store import AppendResult, LogEntry, NewEntry, Store, StoreError
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.stream.inbox import ReadyConversation

T = TypeVar("T")
logger = logging.getLogger("reverie.rewinds")

RewindAction = Literal["new", "rewind", "retry", "compact"]
MOST_EXCHANGES = 1_000
"""Exchanges taken back at once: more is a mistake, or a case for `plan_new`."""
TURN_RUNNING = N_("I am just answering here. Send the command again when I have finished.")
_ALREADY_FRESH = N_("I see no earlier messages here: there is nothing to start over.")
_NOTHING = Seq(0)

MAX_EARLIER_TURNS = 20
"""Turns that are searched for the last read position: messages posted unasked read nothing."""
MAX_REWOUND_LINES = 50
"""Lines that one turn reads at most."""
COMPACT_TIMEOUT_S = 8.0
"""Longest wait of a caller from outside; less than `gateway.core.control_socket.ANSWER_S`."""
_TOLD_FATES = ("due", "context")
COMPACTING = N_("I am shortening what I see of this conversation. I tell you the result here.")


class TurnInView(NamedTuple):
    """A turn in view."""

    seq: Seq
    fact: TurnRecord
    missed: tuple[Seq, ...] = ()
    """For a turn that failed before it had its input: the messages that it was to read."""

    @property
    def covers(self) -> tuple[Seq, ...]:
        """Entries that it read, or was to read."""
        return self.fact.covers or self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """Planned change of a view."""

    text: str
    """Sentence for the requester."""
    fact: ViewFolded | ConversationRewound | None = None
    """Entry for the conversation's log. None: the view does not change."""
    dismissed: UnreadDismissed | None = None
    """Entry that dismisses unread messages not addressed to the agent. None: there is none."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The entries of the plan."""
        return tuple(fact for fact in (self.fact, self.dismissed) if fact is not None)

    @property
    def is_retry(self) -> bool:
        """Messages become unread again, and need a turn."""
        return isinstance(self.fact, ConversationRewound) and bool(self.fact.again)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """Request to change a conversation's view."""

    action: RewindAction
    at: Address
    by: str
    """Author, for people."""
    count: int = 1
    """For `rewind`: number of exchanges."""
    is_direct: bool | None = None
    """True: it is a direct chat. None: unknown."""
    is_trusted: bool = False
    """An owner or admin asks."""
    reply_to: MessageId | None = None
    """Message that the later result of `compact` replies to."""


class Rewinder:
    """Carries out rewinds, for all agents."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        room_locks: ConversationLocks,
        agents: Agents,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._store = store
        self._clock = clock
        self._room_locks = room_locks
        self._agents = agents
        self._tasks = tasks
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def plan(self, request: RewindRequest) -> CommandEffect:
        """Plan a change. While a turn runs nothing changes; until the effect is settled no turn
        begins there.
        """
        place = request.at.conversation
        if not self._agents.holds(place):
            return refuse(_(HELD_ELSEWHERE))
        lock = self._room_locks.lock_for(place)
        if lock.locked():
            return refuse(_(TURN_RUNNING))
        if request.action == "compact":
            return done(
                _(COMPACTING),
                then=lambda cause: self._start_task(self._compact_and_post(request, cause)),
            )
        release = await self._room_locks.acquire(place, LOCK_TIMEOUT_S)
        if release is None:  # a turn had waited for it, and is about to begin
            return refuse(_(TURN_RUNNING))
        try:
            plan = await self._decide(request, place)
        except BaseException:
            release()
            raise
        if not plan.facts:
            release()
            return refuse(plan.text)
        facts = tuple(map(EffectFact, plan.facts))
        return CommandEffect(
            answer=plan.text,
            facts=facts,
            settle=lambda written: self._settle(request, plan, release, written),
        )

    async def compact_now(self, place: ConversationId) -> str:
        """Fold the view of a place. Return the result in words, unless it takes longer than the
        requester waits.
        """
        if self._room_locks.lock_for(place).locked():
            return _(TURN_RUNNING)
        task = self._start_task(self._compact(place))
        await asyncio.wait({task}, timeout=COMPACT_TIMEOUT_S)
        if task.done() and not task.cancelled():
            return task.result()
        return _("I am still working on it. The log will show the result.")

    async def close(self) -> None:
        """Cancel what was begun, and begin nothing more: commands still arrive while the gateway
        stops.
        """
        self._closed = True
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, request: RewindRequest, place: ConversationId) -> RewindPlan:
        found = await self._store.view_entries(place)
        view = [
            TurnInView(turn.seq, turn.fact)
            for turn in found.turns
            if isinstance(turn.fact, TurnRecord)
        ]
        if request.action == "rewind":
            return plan_rewind(view, request.count, request.by)
        if request.action == "retry":
            return plan_retry(
                [await self._with_missed(turn, place) for turn in view], request.by, place
            )
        folded = (
            found.fold.fact
            if found.fold is not None and isinstance(found.fold.fact, ViewFolded)
            else None
        )
        unread = await self._store.unread_entries(place, most=MAX_REWOUND_LINES)
        return plan_new(
            view, folded, request.by, overheard=find_overheard_upto(unread.messages, unread.upto)
        )

    async def _with_missed(self, turn: TurnInView, place: ConversationId) -> TurnInView:
        """Return the turn with the messages that it was to read, if it failed before."""
        ended = turn.fact
        if ended.outcome != "failed" or ended.covers or not ended.omitted:
            return turn
        earlier = [
            one.fact
            for one in await self._store.newest_turns(
                place, before=turn.seq, newest=MAX_EARLIER_TURNS
            )
        ]
        after = max((one.upto for one in earlier if isinstance(one, TurnRecord)), default=Seq(0))
        messages = await self._store.newest_entries(
            MAX_REWOUND_LINES,
            after=after,
            before=ended.upto + 1,
            kinds=MESSAGE_KINDS,
            conversation=place,
        )
        judgements = [(one.seq, await self._store.find_judgement(one.seq)) for one in messages]
        return turn._replace(
            missed=tuple(
                seq for seq, one in judgements if one is not None and one.fate in _TOLD_FATES
            )
        )

    def _settle(
        self,
        request: RewindRequest,
        plan: RewindPlan,
        release: Callable[[], None],
        written: AppendResult | None,
    ) -> None:
        place = request.at.conversation
        release()
        if written is None or not written.is_new:
            return
        logger.info("%s: %s, by %s: %s", place, request.action, request.by, plan.text)
        if plan.is_retry:
            self._agents.notice(
                ReadyConversation(
                    conversation=place,
                    urgency=URGENT,
                    direct=request.is_direct,
                    handle_in_place=True,
                    trusted=request.is_trusted,
                )
            )

    def _start_task(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if self._closed:
            task.cancel()
        return task

    async def _compact(self, place: ConversationId) -> str:
        try:
            return await self._agents.compact(place)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception:  # a bug: the requester gets an answer, and everything else goes on
            logger.exception("folding %s broke", place)
            return _("That did not work. My operator can find the reason in the log.")

    async def _compact_and_post(self, request: RewindRequest, seq: Seq) -> None:
        place = request.at.conversation
        text = await self._compact(place)
        now = self._clock.now()
        key = PostKey(hashlib.sha256(f"compacted:{seq}".encode()).hexdigest()[:26])
        post = Post(key=key, to=request.at, text=text, reply_to=request.reply_to)
        entry = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{key}", cause=seq
        )
        await self._store.append([entry])


def plan_new(
    view: Sequence[TurnInView], folded: ViewFolded | None, by: str, *, overheard: Seq = _NOTHING
) -> RewindPlan:
    """Begin afresh: no earlier message stays in view, or is read as new. `folded`: the newest fold
    there.

    `overheard`: log position up to which all unread entries are addressed to others. 0: there are
    none.
    """
    head = folded is not None and bool(folded.head)
    unread = UnreadDismissed(upto=overheard) if overheard else None
    if not view and not head:
        text = (
            _("I saw no earlier messages here. I also skip what others wrote since.")
            if unread
            else _(_ALREADY_FRESH)
        )
        return RewindPlan(text=text, dismissed=unread)
    start = max(view[-1].seq + 1 if view else 0, folded.start if folded is not None else 0)
    newest = next((turn.fact for turn in reversed(view) if turn.fact.upto), None)
    is_owed = newest is not None and newest.outcome == "interrupted"
    if view:
        text = ngettext(
            "I started over: I no longer see {count} earlier turn. The log keeps it.",
            "I started over: I no longer see {count} earlier turns. The log keeps them.",
            len(view),
        ).format(count=len(view))
        if head:
            text = f"{text} {_('I no longer see the summary before that, either.')}"
    else:
        text = _(
            "I started over: I no longer see the summary of earlier turns. The log keeps "
            "everything."
        )
    if is_owed:
        text = f"{text} {_('I do not answer the question that was still open.')}"
    return RewindPlan(
        text=text,
        fact=ViewFolded(start=Seq(start), reason=f"{by} asked for a fresh view", kinds=("new",)),
        dismissed=unread,
    )


def find_overheard_upto(unread: Sequence[LogEntry], upto: Seq) -> Seq:
    """Return the log position up to which all unread entries are addressed to others.

    Entries addressed to the agent are still answered.

    `unread`, `upto`: as in `UnreadEntries`. 0: there are none.
    """
    if not unread:
        return _NOTHING
    addressed = [one.seq for one in unread if is_addressed(one.fact)]
    return Seq(addressed[0] - 1) if addressed else upto


def plan_rewind(view: Sequence[TurnInView], count: int, by: str) -> RewindPlan:
    """Take back the newest exchanges, or all in view if these are fewer. `count`: at least 1."""
    if not view:
        return RewindPlan(text=_("I see no exchange here that I could take back."))
    first, found = _find_exchanges(view, count)
    leaving = view[first:]
    text = ngettext(
        "I took back the last exchange.", "I took back the last {count} exchanges.", found
    ).format(count=found)
    if found < count:
        text = f"{text} {_('I see no more of them here.')}"
    return RewindPlan(
        text=text,
        fact=ConversationRewound(first=leaving[0].seq, last=leaving[-1].seq, by=by),
    )


def plan_retry(view: Sequence[TurnInView], by: str, conversation: ConversationId) -> RewindPlan:
    """Answer the last input once more."""
    with_input = [
        index for index, turn in enumerate(view) if turn.covers and turn.fact.within is None
    ]
    if is_inner(conversation) or not with_input:
        return RewindPlan(text=_("I see no question here that I could answer again."))
    first = _include_interrupted(view, with_input[-1])
    last = max(index for index, turn in enumerate(view) if turn.fact.within is None)
    leaving = view[first : last + 1]
    again = tuple(sorted({seq for turn in leaving for seq in turn.covers}))
    text = ngettext(
        "I take back my last answer and answer {count} message again.",
        "I take back my last answer and answer {count} messages again.",
        len(again),
    )
    return RewindPlan(
        text=text.format(count=len(again)),
        fact=ConversationRewound(first=leaving[0].seq, last=leaving[-1].seq, by=by, again=again),
    )


def _find_exchanges(view: Sequence[TurnInView], count: int) -> tuple[int, int]:
    """Return where the newest `count` exchanges begin, and their number.

    Turns without a reply count as one exchange.
    """
    ends = [index for index, turn in enumerate(view) if turn.fact.text and turn.fact.within is None]
    if len(ends) <= count:  # including everything in front of the first of them
        return (0 if len(ends) < count or not ends else _include_interrupted(view, ends[0])), max(
            1, len(ends)
        )
    return _include_interrupted(view, ends[-count]), count


def _include_interrupted(view: Sequence[TurnInView], index: int) -> int:
    while index > 0 and view[index - 1].fact.outcome == "interrupted":
        index -= 1
    return index
