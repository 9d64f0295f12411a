"""Taking back what a conversation's view shows: which turns leave it, and what is said of that. Pure.

People count exchanges. One ends with a turn that said something there by itself; what was interrupted directly in front
of it is part of it, for it was answered there; and what came behind it - turns that stayed silent, and what was said
there out of the inner conversation - leaves with it. The log keeps everything: only the view changes.

`plan_retry` goes back to the newest turn that was told something, with those in front of it that were interrupted. What
the agent has done since then by itself leaves too, for it followed from that answer; but what it said there last out of
its inner conversation, behind all that, stays: it was no answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.events import Alarm, ConversationId, Message
from gateway.records import ConversationRewound, Fact, Seq, TurnId, TurnRecord, UnreadDismissed, ViewFolded, is_inner
from gateway.store import LogEntry

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
