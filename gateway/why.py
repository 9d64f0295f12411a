"""What happened to an event, and which rule decided: read from the log, told to people."""

from gateway.events import Command, Delivery
from gateway.records import Judged, Queued, TurnEnded
from gateway.store import Reader, Stored
from gateway.store.lines import line, printable

ENDED = {"replied": "replied", "silent": "stayed silent", "yielded": "yielded", "failed": "failed"}


async def why(reader: Reader, seq: int) -> list[str] | None:
    """The story of the entry at `seq`, a line each, safe on any terminal. None: there is no such entry."""
    entry = await reader.entry(seq)
    if entry is None:
        return None
    judgement = next((found for found in await reader.caused_by(seq) if isinstance(found.fact, Judged)), None)
    if judgement is None or not isinstance(judgement.fact, Judged):
        return [line(entry), "not an event from outside: nothing was decided about it"]
    judged = judgement.fact
    noticed = f"noticed as {judged.type}, urgency {judged.urgency}, from a {judged.role}"
    return [line(entry), printable(noticed), *[printable(told) for told in await _fate(reader, entry, judged)]]


async def _fate(reader: Reader, entry: Stored, judged: Judged) -> list[str]:
    if judged.fate == "refused":
        return [f"refused, and never shown to the model: {judged.rule}"]
    if judged.fate == "noted":
        if isinstance(entry.fact, Command):
            return [f"a command, never shown to the model: {judged.rule}", *await _reply(reader, entry, "answer")]
        return [f"noted; it needs no turn: {judged.rule}"]
    asked = "context for the next turn" if judged.fate == "context" else "due for a turn"
    over = await reader.turn_over(entry)
    if over is None or not isinstance(over.fact, TurnEnded):
        return [f"{asked}: {judged.rule}", "no turn has ended there since"]
    turn = over.fact
    shown = "shown to the model" if entry.seq in turn.covers else "only counted, for newer lines filled the prompt,"
    ended = f"{shown} in turn {turn.turn} (entry {over.seq}), which {ENDED[turn.outcome]}"
    return [f"{asked}: {judged.rule}", f"{ended}: {turn.reason}" if turn.reason else ended, *await _reply(reader, over)]


async def _reply(reader: Reader, cause: Stored, word: str = "reply") -> list[str]:
    for queued in await reader.caused_by(cause.seq):
        if isinstance(queued.fact, Queued):
            post = queued.fact.post
            ended = await reader.by_key(f"delivery:{post.to.conversation}:{post.key}")
            if ended is None or not isinstance(ended.fact, Delivery):
                return [f"the {word} (entry {queued.seq}) is still to be delivered"]
            reason = f": {ended.fact.reason}" if ended.fact.reason else ""
            return [f"the {word} (entry {queued.seq}) is {ended.fact.state} (entry {ended.seq}){reason}"]
    return []
