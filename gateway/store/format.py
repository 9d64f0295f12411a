"""Log entries for people: one line each, safe on any terminal."""

import json
import re
from dataclasses import replace

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
    ApprovalEnded,
    ApprovalRequested,
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
    McpToolApproved,
    MemoryConsolidated,
    ModelSelected,
    MonthArchived,
    NoteForgotten,
    NoteWritten,
    PartSendEnded,
    PartSendStarted,
    PlatformAction,
    PostQueued,
    PreviewEnded,
    PreviewShown,
    ReminderEnded,
    ReminderSet,
    RoleAssigned,
    RoomAccessChanged,
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
"""Replacement for a secret."""
_CODE_COMMANDS = frozenset({"link", "pair", "room"})
_CODELESS_ARGUMENTS = frozenset({"", "list", "start"})
"""Commands that take a code in any spelling, and the arguments with which they take none."""
_ONE_TIME_CODE = re.compile(r"\b[A-Z0-9]{4}-[A-Z0-9]{4}\b")
"""Codes as `gateway.access.texts.format_code` writes them."""
_ONE_TIME_CODE_CHARS = 8
_REQUEST_ID = re.compile(r"[a-z]{5}|[A-Za-z0-9._-]+[:/][^\s`]+")
"""Names of requests, as `gateway.access.pairing` makes them; people and rooms, as lists show
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
            return f"{fact.by} ({fact.name})" if fact.name else fact.by
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
        case Message() | MessageEdited() | Alarm():
            return fact.text
        case MessageDeleted():
            return f"deleted {fact.message}"
        case ReactionChanged():
            return f"{'+' if fact.added else '-'}{fact.reaction}"
        case MembershipChanged():
            return " ".join(filter(None, [fact.change, fact.subject, fact.text]))
        case PlaceRenamed():
            names = (fact.names.person, fact.names.thread, fact.names.room, fact.names.server)
            return f"is called {' in '.join(filter(None, names)) or '?'}"
        case Command():
            return f"{fact.name} {fact.args}".rstrip()
        case ConnectionChanged():
            return _with_reason("up" if fact.up else "down", fact.reason)
        case TaskFinished():
            return f"{fact.what} {'is done' if fact.ok else 'failed'}: {fact.text}"
        case Judgement():
            return f"{fact.fate}, urgency {fact.urgency}, by {fact.rule} ({fact.type}, {fact.role})"
        case TurnRecord():
            return (
                f"{fact.outcome}, {len(fact.covers)} told, {fact.omitted} omitted: "
                f"{fact.text or fact.reason or '-'}"
            )
        case ViewFolded():
            return f"view starts at {fact.start} ({', '.join(fact.kinds) or 'drop'}): {fact.reason}"
        case CompactionLocked():
            return f"{fact.holder} until {fact.until:%Y-%m-%d %H:%M:%S}"
        case Evidence():
            return (
                f"{fact.tool} of turn {fact.turn}, {len(fact.text)} characters: "
                f"{fact.origin or fact.what}"
            )
        case ConversationRewound():
            return f"turns from {fact.first} to {fact.last} are taken back, by {fact.by}"
        case ChannelCardPinned():
            return f"{fact.reason}: {fact.text}"
        case PostQueued():
            return fact.post.text
        case PartSendStarted():
            return f"{fact.post} part {fact.part}"
        case PartSendEnded():
            return _with_reason(f"{fact.post} part {fact.part} {fact.state}", fact.reason)
        case DeliveryReport():
            return _with_reason(fact.state, fact.reason)
        case PreviewShown():
            return f"{fact.message} shows an answer while it grows"
        case PreviewEnded():
            return (
                f"{fact.message} "
                f"{'stays: ' + fact.reason if fact.reason else 'is no preview any more'}"
            )
        case CursorMoved():
            return f"{fact.channel} at {fact.value}"
        case UnreadDismissed():
            return (
                f"no turn is needed for what came up to {fact.upto}: it was deleted, or the "
                "view was begun afresh"
            )
        case RoomAttended():
            return _with_reason(f"attends {fact.at.conversation} in turn {fact.turn}", fact.reason)
        case ReminderSet():
            return f"{fact.reminder}, {fact.schedule}: {fact.text}"
        case ReminderEnded():
            return f"{fact.reminder} is over: {fact.reason}"
        case NoteWritten():
            return (
                f"{'for good' if fact.lasting else 'in the journal'} ({fact.scope}) "
                f"{fact.title}: {fact.text}"
            )
        case MemoryConsolidated():
            return f"memory of {fact.agent} up to {fact.upto}: {fact.reason}"
        case DmnDirective():
            return f"{fact.agent} {fact.what}, by {fact.by}"
        case DmnStateSaved():
            return f"{fact.agent} {_describe_dmn_state(fact.state)}"
        case (
            ApprovalRequested()
            | ApprovalEnded()
            | McpToolApproved()
            | ToolRefused()
            | ToolStarted()
            | PlatformAction()
        ):
            return _describe_tool_fact(fact)
        case NoteForgotten():
            return f"note {fact.note} is to be forgotten, by {fact.by}"
        case _:
            return _describe_people_fact(fact)


def _with_reason(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state


def _describe_dmn_state(state: str) -> str:
    """Summarise a saved state, or return it whole if that fails; `reverie dmn status` and an export
    show all of it.
    """
    try:
        saved = json.loads(state)
        summary = (
            f"is {saved['mode']}, people are {saved['presence']}, {saved['turns_today']:d} "
            "turns unasked today"
        )
        return f"{summary} (${saved['spent_today_usd']:.2f})"
    except (ValueError, TypeError, KeyError):
        return state


def _describe_people_fact(  # noqa: C901 - one case per kind
    fact: CodeIssued
    | CodeEnded
    | RoleAssigned
    | RoomAccessChanged
    | AudienceReported
    | IdentityLinked
    | AttentionThresholdSet
    | ModelSelected
    | LimitReached
    | MonthArchived
    | AuditRecord,
) -> str:
    match fact:
        case CodeIssued():
            return (
                f"{fact.request}: {fact.person} was shown a code ({fact.what}) in "
                f"{fact.at.conversation}"
            )
        case CodeEnded():
            return f"{fact.request} is {fact.state}, by {fact.by}"
        case RoleAssigned():
            return (
                f"{fact.person} is {fact.role or 'nothing'} {fact.scope or 'everywhere'}, by "
                f"{fact.by} ({fact.why})"
            )
        case RoomAccessChanged():
            return f"{fact.room.conversation} is {'open' if fact.open else 'closed'}, by {fact.by}"
        case AudienceReported():
            return f"what is said in {fact.at.conversation} is readable to: {fact.scope}"
        case IdentityLinked():
            return (
                f"{fact.one} and {fact.other} are {'' if fact.joined else 'not '}one person, by "
                f"{fact.by}"
            )
        case AttentionThresholdSet():
            return (
                f"the threshold of {fact.type} is "
                f"{'as configured' if fact.value is None else fact.value}, by {fact.by}"
            )
        case ModelSelected():
            return f"{fact.agent} thinks with {fact.model or 'the configured model'}, by {fact.by}"
        case LimitReached():
            return f"{fact.whose} {fact.subject} is past its {fact.limit} limit: {fact.rule}"
        case MonthArchived():
            return (
                f"old entries of {fact.month} up to {fact.upto} leave the log for a file beside it"
            )
        case AuditRecord():
            return (
                f"{fact.by} ({fact.role}): {fact.what} {fact.args}: "
                f"{'' if fact.ok else 'not done: '}{fact.result}"
            )


def _describe_tool_fact(
    fact: ApprovalRequested
    | ApprovalEnded
    | McpToolApproved
    | ToolRefused
    | ToolStarted
    | PlatformAction,
) -> str:
    match fact:
        case ApprovalRequested():
            return (
                f"{fact.approval}: {fact.tool} in turn {fact.turn} needs an approval: "
                f"{fact.arguments}"
            )
        case ApprovalEnded():
            return f"{fact.approval}: {fact.tool}: {fact.verdict} {fact.by}".rstrip()
        case McpToolApproved():
            return (
                f"{fact.tool} of the MCP server {fact.server} may be used as described, by "
                f"{fact.by or 'configuration'}"
            )
        case ToolRefused():
            return f"{fact.tool} in turn {fact.turn} is refused: {fact.rule}"
        case ToolStarted():
            return f"{fact.tool} in turn {fact.turn} begins"
        case PlatformAction():
            return (
                f"{fact.what} {fact.message or fact.at.conversation} {fact.state} "
                f"{fact.reason}: {fact.text}"
            )
