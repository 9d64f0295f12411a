"""What happened to an event, and which rule decided: read from the log, told to people.

Of other entries than the one that was asked about only the numbers are told, never what was said in them.
"""

from dataclasses import dataclass
from typing import Final

from gateway.events import Alarm, Delivery
from gateway.fates import Fate, fates
from gateway.records import Handled, Judged, PartEnded, Queued, Rewound, TurnEnded, is_inner
from gateway.store import Reader, Stored
from gateway.store.lines import line, printable

ENDED = {
    "replied": "replied",
    "silent": "stayed silent",
    "yielded": "yielded",
    "failed": "failed",
    "interrupted": "was interrupted",
}

_CAUSES: Final = {
    "addressed": "what somebody said to the agent",
    "noticed": "something there that was worth a look",
    "alarm": "a reminder",
    "continued": "what it was doing",
    "digest": "what was pending everywhere",
    "dream": "what it had written down",
}
_MOST: Final = 20
"""Entries that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The few entries that decide what became of an event. None: there is no such."""

    event: Stored
    judgement: Stored
    looked_at: Stored | None = None
    """The turn of an inner conversation that looked at it."""
    dealt_with: Stored | None = None
    """The turn or the decision that took it from the unread ones."""
    next_turn: Stored | None = None
    """If that was interrupted: the next turn there."""

    @property
    def outcome(self) -> Fate:
        """By the rules that hold for the log as a whole."""
        found = (self.event, self.judgement, self.looked_at, self.dealt_with, self.next_turn)
        log = {entry.seq: entry for entry in found if entry is not None}
        return fates(log[seq] for seq in sorted(log))[self.event.seq]


async def trail(reader: Reader, event: Stored) -> Trail | None:
    """All that concerns an event. None: nothing was ever decided about this entry."""
    judgement = next((found for found in await reader.caused_by(event.seq) if isinstance(found.fact, Judged)), None)
    if judgement is None or not isinstance(judgement.fact, Judged):
        return None
    if judgement.fact.fate in ("refused", "noted") or judgement.conversation is None:
        return Trail(event=event, judgement=judgement)
    over = await reader.handled_by(judgement)
    interrupted = over is not None and isinstance(over.fact, TurnEnded) and over.fact.outcome == "interrupted"
    return Trail(
        event=event,
        judgement=judgement,
        looked_at=await reader.first_looked_at_by(judgement),
        dealt_with=over,
        next_turn=await reader.next_finished_turn(over) if over is not None and interrupted else None,
    )


async def why(reader: Reader, seq: int) -> list[str] | None:
    """The story of the entry at `seq`, a line each, safe on any terminal. None: there is no such entry.

    Of an event the last line names its fate (`gateway.fates`).
    """
    entry = await reader.entry(seq)
    if entry is None:
        return None
    found = await trail(reader, entry)
    if found is None or not isinstance(found.judgement.fact, Judged):
        story = ["not an event from outside: nothing was decided about it", *await _inside(reader, entry)]
    else:
        judged = found.judgement.fact
        article = "an" if judged.role[:1] in "aeiou" else "a"
        noticed = f"noticed as {judged.type}, urgency {judged.urgency}, from {article} {judged.role}"
        story = [noticed, *await _alarm(reader, entry), *await _story(reader, found, judged), f"fate: {found.outcome}"]
    return [line(entry), *(printable(told) for told in story)]


async def _story(reader: Reader, found: Trail, judged: Judged) -> list[str]:
    if judged.fate == "refused":
        return [f"refused, and never shown to the model: {judged.rule}"]
    if found.outcome is Fate.COMMAND:
        return [f"a command, never shown to the model: {judged.rule}", *await _reply(reader, found.event, "answer")]
    if found.outcome is Fate.NOTED:
        return [f"noted; it needs no turn: {judged.rule}"]
    asked = "context for the next turn" if judged.fate == "context" else "due for a turn"
    told = [f"{asked}: {judged.rule}", *_looked_at(found)]
    over = found.dealt_with
    if over is None:
        return [*told, "context for the next turn there" if found.looked_at else "no turn has ended there since"]
    if isinstance(over.fact, Handled):
        where = await _other(reader, over.fact.turn)
        return [*told, f"in {where} the agent decided that nothing is to be done about it (entry {over.seq})"]
    assert isinstance(over.fact, TurnEnded)
    told.append(await _turn(reader, found, over, over.fact))
    return [*told, *await _reply(reader, found.next_turn or over), *await _taken_back(reader, found.event, over)]


async def _taken_back(reader: Reader, event: Stored, over: Stored) -> list[str]:
    """Whether the turn that dealt with it is out of view since then, as if it had not been."""
    told = list[str]()
    for one in await reader.entries(after=over.seq, kinds=["rewound"]):  # of all places: there are few
        back = one.fact
        if not isinstance(back, Rewound) or one.conversation != over.conversation:
            continue
        if back.first <= over.seq <= back.last:
            again = ", to be answered again" if event.seq in back.again else ""
            told.append(f"that turn was taken back in entry {one.seq}, by {back.by}{again}")
    return told


def _looked_at(found: Trail) -> list[str]:
    """That the agent looked at it by itself, unless it was dealt with by that turn, or in its course."""
    look, over = found.looked_at, found.dealt_with
    if look is None or not isinstance(look.fact, TurnEnded) or (over is not None and over.seq <= look.seq):
        return []
    told = f"looked at in {_name(look)}"
    why = f": {look.fact.reason}" if look.fact.reason else ""
    return [told if look.fact.outcome == "replied" else f"{told}, which {ENDED[look.fact.outcome]}{why}"]


async def _turn(reader: Reader, found: Trail, over: Stored, turn: TurnEnded) -> str:
    inside = over.conversation is not None and is_inner(over.conversation)
    ended = "ended" if inside and turn.outcome == "replied" else ENDED[turn.outcome]
    ended += f": {turn.reason}" if turn.reason else ""
    if found.event.seq not in turn.covers:
        return f"only counted, for newer lines filled the prompt, in {_name(over)}, which {ended}"
    if turn.within is not None:
        return f"in {await _other(reader, turn.within)} the agent spoke here (entry {over.seq}), and {ended}"
    if turn.outcome != "interrupted":
        told = "told as context" if found.outcome is Fate.CONTEXT and found.looked_at else "shown to the model"
        return f"{told} in {_name(over)}, which {ended}"
    later = found.next_turn
    if later is None or not isinstance(later.fact, TurnEnded):
        return f"heard in {_name(over)}, which {ended}; no turn has ended there since"
    then = ENDED[later.fact.outcome] + (f": {later.fact.reason}" if later.fact.reason else "")
    return f"heard in {_name(over)}, which {ended}; the next turn there, {_name(later)}, {then}"


def _name(entry: Stored) -> str:
    assert isinstance(entry.fact, TurnEnded)
    inside = " of the inner conversation" if entry.conversation is not None and is_inner(entry.conversation) else ""
    return f"turn {entry.fact.turn}{inside} (entry {entry.seq})"


async def _other(reader: Reader, turn: str) -> str:
    found = await reader.entry_by_key(f"turn:{turn}")
    return _name(found) if found is not None and isinstance(found.fact, TurnEnded) else f"turn {turn}"


async def _alarm(reader: Reader, entry: Stored) -> list[str]:
    alarm = entry.fact
    if not isinstance(alarm, Alarm) or not alarm.reminder:
        return []
    reminded = await reader.entry_by_key(f"reminded:{alarm.reminder}")
    since = f" (set in entry {reminded.seq})" if reminded is not None else ""
    times = f"; {alarm.missed} before it passed while nobody could tell" if alarm.missed else ""
    again = f"; it comes again at {alarm.next:%Y-%m-%d %H:%M:%S} UTC" if alarm.next else ""
    return [f"one time of reminder {alarm.reminder}{since}{times}{again}"]


async def _inside(reader: Reader, entry: Stored) -> list[str]:
    """Of what the gateway did by itself: what it belongs to."""
    fact, told = entry.fact, list[str]()
    if entry.cause is not None:
        told.append(f"it follows from entry {entry.cause}")
    if isinstance(fact, Delivery):
        post = await reader.entry_by_key(f"post:{fact.post}")
        told += [f"how the post of entry {post.seq} ended"] if post is not None else []
    elif isinstance(fact, Queued):
        told += await _delivered(reader, entry, fact, "post")
    elif isinstance(fact, TurnEnded):
        shown = ", ".join(str(seq) for seq in fact.covers[-_MOST:]) or "nothing new"
        more = f"{len(fact.covers) - _MOST} more and " if len(fact.covers) > _MOST else ""
        told.append(f"a turn because of {_CAUSES[fact.cause]}, which was shown entries {more}{shown}")
        told += await _reply(reader, entry)
    return told


async def _reply(reader: Reader, cause: Stored, word: str = "reply") -> list[str]:
    for queued in await reader.caused_by(cause.seq):
        if isinstance(queued.fact, Queued):
            return await _delivered(reader, queued, queued.fact, word)
    return []


async def _delivered(reader: Reader, queued: Stored, fact: Queued, word: str) -> list[str]:
    ended = await reader.entry_by_key(f"delivery:{fact.post.to.conversation}:{fact.post.key}")
    if ended is None or not isinstance(ended.fact, Delivery):
        return [f"the {word} (entry {queued.seq}) is still to be delivered{await _waits(reader, queued, fact)}"]
    reason = f": {ended.fact.reason}" if ended.fact.reason else ""
    return [f"the {word} (entry {queued.seq}) is {ended.fact.state} (entry {ended.seq}){reason}"]


async def _waits(reader: Reader, queued: Stored, fact: Queued) -> str:
    """What a post waits for, as its newest attempt has it."""
    parts = await reader.newest_entries(_MOST, after=queued.seq, kinds=["part"], conversation=queued.conversation)
    ended = [one.fact for one in parts if isinstance(one.fact, PartEnded) and one.fact.post == fact.post.key]
    return f": {ended[-1].reason}" if ended and ended[-1].state == "waiting" else ""
