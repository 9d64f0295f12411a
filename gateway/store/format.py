"""Log entries for people: one line each, safe on any terminal."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.core.events import (
    Alarm,
    Command,
    ConnectionChanged,
    DeliveryReport,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    PlaceRenamed,
    ReactionChanged,
    TaskFinished,
)
from gateway.core.facts import (
    AttentionThresholdSet,
    AudienceReported,
    AuditRecord,
    ChannelCardPinned,
    CodeEnded,
    CodeIssued,
    CompactionLocked,
    ConversationRewound,
    CursorMoved,
    DmnDirective,
    DmnStateSaved,
    Evidence,
    Fact,
    IdentityLinked,
    Judgement,
    LimitReached,
    MemoryConsolidated,
    ModelSelected,
    MonthArchived,
    NoteForgotten,
    NoteWritten,
    OwnerTold,
    PartSendEnded,
    PartSendStarted,
    PlatformAction,
    PluginFact,
    PostQueued,
    PreviewEnded,
    PreviewShown,
    RoleAssigned,
    RoomAccessChanged,
    RoomAssigned,
    RoomAttended,
    ToolRefused,
    ToolStarted,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
)
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.store.types import LogEntry

TURN_OUTCOME_TEXTS = {
    "replied": "replied",
    "silent": "stayed silent",
    "yielded": "yielded",
    "failed": "failed",
    "interrupted": "was interrupted",
}
TURN_CAUSE_TEXTS = {
    "addressed": "what somebody said to the agent",
    "noticed": "something there that was worth a look",
    "alarm": "a reminder",
    "attended": "a decision of its inner conversation",
    "continued": "what it was doing",
    "digest": "what was pending everywhere",
    "dream": "what it had written down",
}
"""Reasons for a turn; they follow `because of`."""
HIDDEN_VALUE = "***"
_CODE_COMMANDS = frozenset({"link", "pair", "room"})
_CODELESS_ARGUMENTS = frozenset({"", "list", "start"})
"""Commands that take a code in any spelling, and the arguments with which they take none."""
_ONE_TIME_CODE = re.compile(r"\b[A-Z0-9]{4}-[A-Z0-9]{4}\b")
"""Codes as `gateway.access.texts.format_code` writes them."""
_ONE_TIME_CODE_CHARS = 8
_REQUEST_ID = re.compile(r"[a-z]{5}|[A-Za-z0-9._-]+[:/][^\s`]+")
"""Names of requests, as `gateway.plugins.pairing.codes` makes them; people and rooms, as lists show
them."""


def format_entry(entry: LogEntry, redactor: Redactor) -> str:
    """Format one entry, without a line end and without any character that could control a terminal.

    `redactor` is applied to its text before that is escaped.
    """
    time = entry.at.strftime("%Y-%m-%d %H:%M:%S")
    cause = f"  (of {entry.cause})" if entry.cause is not None else ""
    text = redactor(describe(entry.fact))
    return escape_unprintable(
        f"{entry.seq:>8}  {time}  {entry.kind:<10}  {entry.conversation or '-'}  {text}{cause}"
    )


def hide_codes(text: str) -> str:
    """Remove one-time codes from the text."""
    return _ONE_TIME_CODE.sub(HIDDEN_VALUE, text)


def hide_second_half(argument: str) -> str:
    """Hide the second half of a text entered as a one-time code: a mistyped code could be guessed
    from it.
    """
    return argument if is_request_id(argument) else f"{argument[: _ONE_TIME_CODE_CHARS // 2]}****"


def is_request_id(argument: str) -> bool:
    """Return whether this is the name of a request, a person or a room, and surely no one-time
    code.
    """
    return (
        _REQUEST_ID.fullmatch(argument) is not None
        and sum(char.isalnum() for char in argument) != _ONE_TIME_CODE_CHARS
    )


def without_code(fact: Fact) -> Fact:
    """Return the fact without a code that it contains, however that is written."""
    if (
        not isinstance(fact, Command)
        or fact.name not in _CODE_COMMANDS
        or fact.args.strip() in _CODELESS_ARGUMENTS
    ):
        return fact
    sub, _, argument = fact.args.strip().partition(" ")
    if fact.name != "link" and sub in ("approve", "revoke") and is_request_id(argument.strip()):
        return fact
    return replace(
        fact, args=f"{sub} {HIDDEN_VALUE}" if sub in ("approve", "revoke") else HIDDEN_VALUE
    )


def actor_name(fact: Fact) -> str:
    """Return the name of whoever did it, for people. Untrusted. Empty: nobody did, or it is not
    recorded.
    """
    match fact:
        case Message() | MessageEdited() | ReactionChanged() | MembershipChanged() | Command():
            return fact.sender.name
        case MessageDeleted():
            return fact.sender.name if fact.sender is not None else ""
        case Alarm():
            return fact.asked_by
        case AuditRecord():
            return f"{fact.by} ({fact.name})" if fact.name not in ("", fact.by) else fact.by
        case _:
            return ""


def describe(fact: Fact) -> str:
    """Describe a fact of the log: who did it or what it concerns, then its contents as in
    `describe_contents`.
    """
    match fact:
        case (
            Message()
            | MessageEdited()
            | MessageDeleted()
            | ReactionChanged()
            | MembershipChanged()
            | Command()
        ):
            subject = f"<{actor_name(fact) or '?'}> "
        case ConnectionChanged():
            subject = f"{fact.channel} "
        case Alarm():
            subject = f"{fact.reminder}: " if fact.reminder else ""
        case PostQueued():
            subject = f"{fact.post.key}: "
        case DeliveryReport():
            subject = f"{fact.post} "
        case _:
            subject = ""
    about = f" {fact.message}" if isinstance(fact, ReactionChanged) else ""
    return hide_codes(f"{subject}{_describe_contents(without_code(fact))}{about}")


def describe_contents(fact: Fact) -> str:
    """Describe what a fact says, without its sender, for people who see that beside it.

    The text has its own (untrusted) characters. One-time codes, which are valid for an hour, are
    removed.
    """
    return hide_codes(_describe_contents(without_code(fact)))


def _describe_contents(fact: Fact) -> str:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
    match fact:
        case Alarm() if fact.attended:
            return "the agent means to look in here"
        case ReactionChanged():
            return f"{'+' if fact.added else '-'}{fact.reaction}"
        case MembershipChanged():
            return " ".join(filter(None, [fact.change, fact.subject, fact.text]))
        case PlaceRenamed():
            names = (fact.names.person, fact.names.thread, fact.names.room, fact.names.server)
            return f"is called {' in '.join(filter(None, names)) or '?'}"
        case ConnectionChanged():
            return _with_reason("up" if fact.up else "down", fact.reason)
        case TaskFinished():
            return f"{fact.what} {'is done' if fact.ok else 'failed'}: {fact.text}"
        case TurnRecord():
            return (
                f"{fact.outcome}, {len(fact.covers)} told, {fact.omitted} omitted: "
                f"{fact.text or fact.reason or '-'}"
            )
        case ViewFolded():
            return f"view starts at {fact.start} ({', '.join(fact.kinds) or 'drop'}): {fact.reason}"
        case Evidence():
            what = fact.origin or fact.what
            return f"{fact.tool} of turn {fact.turn}, {len(fact.text)} characters: {what}"
        case PartSendEnded():
            return _with_reason(f"{fact.post} part {fact.part} {fact.state}", fact.reason)
        case DeliveryReport():
            return _with_reason(fact.state, fact.reason)
        case PreviewEnded():
            how = f"stays: {fact.reason}" if fact.reason else "is no preview any more"
            return f"{fact.message} {how}"
        case RoomAttended():
            return _with_reason(f"attends {fact.at.conversation} in turn {fact.turn}", fact.reason)
        case OwnerTold():
            about = f" about {fact.about.conversation}" if fact.about is not None else ""
            return f"{fact.who} is told{about} ({fact.state}) in turn {fact.turn}: {fact.text}"
        case NoteWritten():
            where = "for good" if fact.lasting else "in the journal"
            return f"{where} ({fact.scope}) {fact.title}: {fact.text}"
        case DmnStateSaved():
            return f"{fact.agent} {_describe_dmn_state(fact.state)}"
        case RoleAssigned():
            given = f"{fact.role or 'nothing'} {fact.scope or 'everywhere'}"
            return f"{fact.person} is {given}, by {fact.by} ({fact.why})"
        case RoomAccessChanged():
            return f"{fact.room.conversation} is {'open' if fact.open else 'closed'}, by {fact.by}"
        case IdentityLinked():
            joined = "" if fact.joined else "not "
            return f"{fact.one} and {fact.other} are {joined}one person, by {fact.by}"
        case AttentionThresholdSet():
            value = "as configured" if fact.value is None else fact.value
            return f"the threshold of {fact.type} is {value}, by {fact.by}"
        case ModelSelected():
            return f"{fact.agent} thinks with {fact.model or 'the configured model'}, by {fact.by}"
        case RoomAssigned():
            agent, model = fact.agent or "its agent", fact.model or "the agent's model"
            return f"{fact.room.conversation} is answered by {agent} with {model}, by {fact.by}"
        case PlatformAction():
            where = fact.message or fact.at.conversation
            return f"{fact.what} {where} {fact.state} {fact.reason}: {fact.text}"
        case AuditRecord():
            how = "" if fact.ok else "not done: "
            return f"{fact.by} ({fact.role}): {fact.what} {fact.args}: {how}{fact.result}"
        case PluginFact():
            return fact.describe()
        case _:
            return _TEXTS[type(fact)].format(fact).rstrip()


_TEXTS: Final[Mapping[type[Fact], str]] = {
    Message: "{0.text}",
    MessageEdited: "{0.text}",
    Alarm: "{0.text}",
    MessageDeleted: "deleted {0.message}",
    Command: "{0.name} {0.args}",
    Judgement: "{0.fate}, urgency {0.urgency}, by {0.rule} ({0.type}, {0.role})",
    CompactionLocked: "{0.holder} until {0.until:%Y-%m-%d %H:%M:%S}",
    ConversationRewound: "turns from {0.first} to {0.last} are taken back, by {0.by}",
    ChannelCardPinned: "{0.reason}: {0.text}",
    PostQueued: "{0.post.text}",
    PartSendStarted: "{0.post} part {0.part}",
    PreviewShown: "{0.message} shows an answer while it grows",
    CursorMoved: "{0.channel} at {0.value}",
    UnreadDismissed: "no turn is needed for what came up to {0.upto}: it was deleted, or the view "
    "was begun afresh",
    MemoryConsolidated: "memory of {0.agent} up to {0.upto}: {0.reason}",
    DmnDirective: "{0.agent} {0.what}, by {0.by}",
    NoteForgotten: "note {0.note} is to be forgotten, by {0.by}",
    CodeIssued: "{0.request}: {0.person} was shown a code ({0.what}) in {0.at.conversation}",
    CodeEnded: "{0.request} is {0.state}, by {0.by}",
    AudienceReported: "what is said in {0.at.conversation} is readable to: {0.scope}",
    LimitReached: "{0.whose} {0.subject} is past its {0.limit} limit: {0.rule}",
    MonthArchived: "old entries of {0.month} up to {0.upto} leave the log for a file beside it",
    ToolRefused: "{0.tool} in turn {0.turn} is refused: {0.rule}",
    ToolStarted: "{0.tool} in turn {0.turn} begins",
}
"""What each other kind of fact says."""


def _with_reason(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state


def _describe_dmn_state(state: str) -> str:
    """Summarise a saved state, or return it whole if that fails; `reverie dmn status` and an export
    show all of it.
    """
    try:
        saved = json.loads(state)
        return (
            f"is {saved['mode']}, people are {saved['presence']}, {saved['turns_today']:d} "
            "turns unasked today"
        )
    except (ValueError, TypeError, KeyError):
        return state
