"""Log entries for people: one line each, safe on any terminal."""
# size: a table of all kinds reads best in one piece

import unicodedata

from gateway.events import Alarm, Command, Deleted, Delivery, Edited, Finished, Link, Membership, Message, Reacted
from gateway.records import (
    Carded,
    CompactionLocked,
    CursorMoved,
    Directed,
    DmnSaved,
    Dreamed,
    Evidence,
    Fact,
    Folded,
    Handled,
    Judged,
    Noted,
    PartEnded,
    Previewed,
    PreviewEnded,
    Queued,
    Reminded,
    ReminderEnded,
    Rewound,
    Sending,
    TurnEnded,
)
from gateway.store.entries import Stored

_JOINERS = "\u200c\u200d"
"""Format characters that emoji and several scripts need."""
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (also what turns the direction of text), surrogate, private, unassigned, line ends."""


def line(entry: Stored) -> str:
    """One entry, without a line end and without any character that could move a terminal."""
    time = entry.at.strftime("%Y-%m-%d %H:%M:%S")
    cause = f"  (of {entry.cause})" if entry.cause is not None else ""
    return printable(
        f"{entry.seq:>8}  {time}  {entry.kind:<10}  {entry.conversation or '-'}  {told(entry.fact)}{cause}"
    )


def printable(text: str) -> str:
    """The text with everything that a terminal could obey in escaped form."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _harmless(char) else char.encode("unicode_escape").decode() for char in text)


def _harmless(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in _UNPRINTABLE


def told(fact: Fact) -> str:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
    """What a fact says, in its own (untrusted) characters."""
    match fact:
        case Message() | Edited():
            return f"<{fact.sender.name}> {fact.text}"
        case Deleted():
            return f"<{fact.sender.name if fact.sender else '?'}> deleted {fact.message}"
        case Reacted():
            return f"<{fact.sender.name}> {'+' if fact.added else '-'}{fact.reaction} {fact.message}"
        case Membership():
            return " ".join(filter(None, [f"<{fact.sender.name}> {fact.change}", fact.subject, fact.text]))
        case Command():
            return f"<{fact.sender.name}> {fact.name} {fact.args}"
        case Link():
            return f"{fact.channel} {'up' if fact.up else 'down'}: {fact.reason}"
        case Alarm():
            return f"{fact.reminder}: {fact.text}" if fact.reminder else fact.text
        case Finished():
            return f"{fact.what} {'is done' if fact.ok else 'failed'}: {fact.text}"
        case Judged():
            return f"{fact.fate}, urgency {fact.urgency}, by {fact.rule} ({fact.type}, {fact.role})"
        case TurnEnded():
            return f"{fact.outcome}, {len(fact.covers)} told, {fact.omitted} omitted: {fact.text or fact.reason or '-'}"
        case Folded():
            return f"view starts at {fact.start} ({', '.join(fact.kinds) or 'drop'}): {fact.reason}"
        case CompactionLocked():
            return f"{fact.holder} until {fact.until:%Y-%m-%d %H:%M:%S}"
        case Evidence():
            return f"{fact.tool} of turn {fact.turn}, {len(fact.text)} characters: {fact.origin or fact.what}"
        case Rewound():
            return f"turns from {fact.first} to {fact.last} are taken back, by {fact.by}"
        case Carded():
            return f"{fact.reason}: {fact.text}"
        case Queued():
            return f"{fact.post.key}: {fact.post.text}"
        case Sending():
            return f"{fact.post} part {fact.part}"
        case PartEnded():
            return f"{fact.post} part {fact.part} {fact.state} {fact.reason}".rstrip()
        case Delivery():
            return f"{fact.post} {fact.state} {fact.reason}".rstrip()
        case Previewed():
            return f"{fact.message} shows an answer while it grows"
        case PreviewEnded():
            return f"{fact.message} {'stays: ' + fact.reason if fact.reason else 'is gone'}"
        case CursorMoved():
            return f"{fact.channel} at {fact.value}"
        case Handled():
            return f"nothing is to be done about what came up to {fact.upto} (turn {fact.turn})"
        case Reminded():
            return f"{fact.reminder}, {fact.schedule}: {fact.text}"
        case ReminderEnded():
            return f"{fact.reminder} is over: {fact.reason}"
        case Noted():
            return f"{'for good' if fact.lasting else 'in the journal'} ({fact.scope}) {fact.title}: {fact.text}"
        case Dreamed():
            return f"memory of {fact.agent} up to {fact.upto}: {fact.reason}"
        case Directed():
            return f"{fact.agent} {fact.what}, by {fact.by}"
        case DmnSaved():
            return f"{fact.agent} {fact.state}".lstrip()
