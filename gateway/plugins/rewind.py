"""Rewind: changes to a conversation's view on request (`/new`, `/rewind`, `/retry`).

`plan_new`, `plan_rewind` and `plan_retry` decide which turns leave the view, and the answer. Pure.
The log keeps everything: only the view changes. A plan holds while no turn runs there: the place's
lock is held from the decision until its facts are durable.

People count exchanges. An exchange ends with a turn that posted a reply there. Interrupted turns
directly in front of it belong to it, because it answered them; turns behind it (silent ones, and
messages posted there out of the inner conversation) leave with it.

`plan_retry` goes back to the newest turn that had input, with the interrupted turns in front of it.
What the agent has done there since then leaves too, for it followed from that answer; but a last
message out of the inner conversation, behind all that, stays: it was no answer.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.context.conversation import LOCK_TIMEOUT_S, TURN_RUNNING, is_addressed
from gateway.core.events import ConversationId
from gateway.core.facts import (
    MESSAGE_KINDS,
    URGENT,
    ConversationRewound,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    is_inner,
)
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES
from gateway.plugin import Plugin
from gateway.store import AppendResult, LogEntry
from gateway.store.effects import CommandEffect, done, refuse
from gateway.stream.inbox import ReadyConversation

logger = logging.getLogger("reverie.rewind")

MOST_EXCHANGES: Final = 1_000
"""Exchanges taken back at once: more is a mistake, or a case for `plan_new`."""
MAX_EARLIER_TURNS: Final = 20
"""Turns that are searched for the last read position: messages posted unasked read nothing."""
MAX_REWOUND_LINES: Final = 50
"""Lines that one turn reads at most."""
_NOTHING: Final = Seq(0)


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


Planner = Callable[[Sequence[TurnInView], ViewFolded | None], Awaitable[CommandEffect]]
"""Plans a change of a view: the turns in it, and its newest fold."""


class Rewind(Plugin):
    """Carries out rewinds, for all agents."""

    name = "rewind"
    summary = "takes back what the agent sees of a conversation: new, rewind, retry"

    @command(
        "new",
        "Start over: I no longer see what was said here before.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
        private=False,
    )
    async def begin_afresh(self, call: CommandCall) -> CommandEffect:
        place, store = call.command.at.conversation, self.context.gateway.store

        async def plan(view: Sequence[TurnInView], folded: ViewFolded | None) -> CommandEffect:
            unread = await store.unread_entries(place, most=MAX_REWOUND_LINES)
            overheard = find_overheard_upto(unread.messages, unread.upto)
            return plan_new(view, folded, call.author, overheard=overheard)

        return await self._change_view(call, plan)

    @command(
        "retry",
        "Answer the last question here again.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
        asks_model=True,
        private=False,
    )
    async def retry_answer(self, call: CommandCall) -> CommandEffect:
        place = call.command.at.conversation

        async def plan(view: Sequence[TurnInView], _: object) -> CommandEffect:
            turns = [await self._with_missed(turn, place) for turn in view]
            return plan_retry(turns, call.author, place)

        return await self._change_view(call, plan)

    @command(
        "rewind",
        "Take back the last exchange here, or the last few.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
        private=False,
    )
    async def rewind_exchanges(
        self,
        call: CommandCall,
        n: Annotated[int, "How many exchanges.", Field(le=MOST_EXCHANGES)] = 1,
    ) -> CommandEffect:
        async def plan(view: Sequence[TurnInView], _: object) -> CommandEffect:
            return plan_rewind(view, n, call.author)

        return await self._change_view(call, plan)

    async def _change_view(self, call: CommandCall, plan: Planner) -> CommandEffect:
        """Plan a change. While a turn runs nothing changes; until the effect is settled no turn
        begins there.
        """
        place, locks = call.command.at.conversation, self.context.locks
        gateway = self.context.gateway
        if not gateway.channels.cluster.takes_turns_of(place):
            return refuse(_(HELD_ELSEWHERE))
        if locks.lock_for(place).locked():
            return refuse(_(TURN_RUNNING))
        release = await locks.acquire(place, LOCK_TIMEOUT_S)
        if release is None:  # a turn had waited for it, and is about to begin
            return refuse(_(TURN_RUNNING))
        try:
            found = await gateway.store.view_entries(place)
            view = [
                TurnInView(turn.seq, turn.fact)
                for turn in found.turns
                if isinstance(turn.fact, TurnRecord)
            ]
            folded = None if found.fold is None else found.fold.fact
            planned = await plan(view, folded if isinstance(folded, ViewFolded) else None)
        except BaseException:
            release()
            raise
        if not planned.facts:
            release()
            return planned

        def settle(written: AppendResult | None) -> None:
            release()
            if written is not None and written.is_new:
                self._tell(call, planned)

        return replace(planned, settle=settle)

    def _tell(self, call: CommandCall, planned: CommandEffect) -> None:
        place = call.command.at.conversation
        logger.info("%s: %s, by %s: %s", place, call.command.name, call.author, planned.answer)
        if is_retry(planned):
            self.context.inbox.add(
                ReadyConversation(
                    conversation=place,
                    urgency=URGENT,
                    direct=call.command.direct,
                    handle_in_place=True,
                    trusted=call.role in ADMIN_ROLES,
                )
            )

    async def _with_missed(self, turn: TurnInView, place: ConversationId) -> TurnInView:
        """Return the turn with the messages that it was to read, if it failed before."""
        ended, store = turn.fact, self.context.gateway.store
        if ended.outcome != "failed" or ended.covers or not ended.omitted:
            return turn
        earlier = await store.newest_turns(place, before=turn.seq, newest=MAX_EARLIER_TURNS)
        after = max(
            (one.fact.upto for one in earlier if isinstance(one.fact, TurnRecord)), default=Seq(0)
        )
        messages = await store.newest_entries(
            MAX_REWOUND_LINES,
            after=after,
            before=ended.upto + 1,
            kinds=MESSAGE_KINDS,
            conversation=place,
        )
        judgements = [(one.seq, await store.find_judgement(one.seq)) for one in messages]
        return turn._replace(
            missed=tuple(
                seq for seq, one in judgements if one is not None and one.fate in ("due", "context")
            )
        )


def is_retry(planned: CommandEffect) -> bool:
    """Return whether messages become unread again, and need a turn."""
    facts = [one.fact for one in planned.facts]
    return any(isinstance(fact, ConversationRewound) and fact.again for fact in facts)


def plan_new(
    view: Sequence[TurnInView], folded: ViewFolded | None, by: str, *, overheard: Seq = _NOTHING
) -> CommandEffect:
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
            else _("I see no earlier messages here: there is nothing to start over.")
        )
        return done(text, unread) if unread else refuse(text)
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
    fact = ViewFolded(start=Seq(start), reason=f"{by} asked for a fresh view", kinds=("new",))
    return done(text, fact, unread) if unread else done(text, fact)


def find_overheard_upto(unread: Sequence[LogEntry], upto: Seq) -> Seq:
    """Return the log position up to which all unread entries are addressed to others.

    Entries addressed to the agent are still answered.

    `unread`, `upto`: as in `UnreadEntries`. 0: there are none.
    """
    if not unread:
        return _NOTHING
    addressed = [one.seq for one in unread if is_addressed(one.fact)]
    return Seq(addressed[0] - 1) if addressed else upto


def plan_rewind(view: Sequence[TurnInView], count: int, by: str) -> CommandEffect:
    """Take back the newest exchanges, or all in view if these are fewer. `count`: at least 1."""
    if not view:
        return refuse(_("I see no exchange here that I could take back."))
    first, found = _find_exchanges(view, count)
    leaving = view[first:]
    text = ngettext(
        "I took back the last exchange.", "I took back the last {count} exchanges.", found
    ).format(count=found)
    if found < count:
        text = f"{text} {_('I see no more of them here.')}"
    return done(text, ConversationRewound(first=leaving[0].seq, last=leaving[-1].seq, by=by))


def plan_retry(view: Sequence[TurnInView], by: str, conversation: ConversationId) -> CommandEffect:
    """Answer the last input once more."""
    with_input = [
        index for index, turn in enumerate(view) if turn.covers and turn.fact.within is None
    ]
    if is_inner(conversation) or not with_input:
        return refuse(_("I see no question here that I could answer again."))
    first = _include_interrupted(view, with_input[-1])
    last = max(index for index, turn in enumerate(view) if turn.fact.within is None)
    leaving = view[first : last + 1]
    again = tuple(sorted({seq for turn in leaving for seq in turn.covers}))
    text = ngettext(
        "I take back my last answer and answer {count} message again.",
        "I take back my last answer and answer {count} messages again.",
        len(again),
    )
    rewound = ConversationRewound(first=leaving[0].seq, last=leaving[-1].seq, by=by, again=again)
    return done(text.format(count=len(again)), rewound)


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
