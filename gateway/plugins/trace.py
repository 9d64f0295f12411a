"""Trace: the explanation of one event for people, by the command `why`.

An explanation names other entries by their numbers only, and never quotes them.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated, Final, NamedTuple

from gateway.commands.context import CommandCall, find_hidden, sees_everything
from gateway.commands.definition import command
from gateway.commands.info import SAVED_STATE_KINDS, find_entry_places
from gateway.commands.parser import escape_code
from gateway.core.events import (
    Alarm,
    DeliveryReport,
    Message,
    MessageDeleted,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    ConversationRewound,
    OwnerTold,
    PartSendEnded,
    PostQueued,
    RoomAttended,
    Seq,
    ToolRefused,
    TurnRecord,
    UnreadDismissed,
    inner_conversation,
    is_inner,
)
from gateway.core.format import format_duration, format_moment
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES
from gateway.core.labels import Label
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable, inline_code
from gateway.plugin import Plugin
from gateway.plugins.approvals import ApprovalRequested
from gateway.store import LogEntry, StoreReader
from gateway.store.archive import has_left
from gateway.store.effects import CommandEffect, done, refuse
from gateway.store.format import TURN_CAUSE_TEXTS, TURN_OUTCOME_TEXTS, format_entry
from gateway.store.overview import EventOutcome, NotificationRow, find_notifications
from gateway.store.queries import COLUMNS, using
from gateway.store.reader import first_entry

_URGENCIES: Final = {
    AMBIENT: "overheard",
    LOW: "it can wait",
    NORMAL: "to be looked at soon",
    URGENT: "urgent",
}
_MAX_LISTED: Final = 20
_LATE_S: Final = 60.0
"""Time between the saying of a message and its entry from which it came late."""
FIRST_LOOKED_AT_BY = (
    f"SELECT {COLUMNS} FROM log {using('log_turn')} "  # noqa: S608 - constants only
    "WHERE kind = 'turn_ended' AND conversation > 'agent/' AND conversation < 'agent0' AND seq > "
    "$1 AND EXISTS (SELECT 1 FROM json_each(body, '$.looked') WHERE json_extract(value, '$[0]') = "
    "$2 AND CAST(json_extract(value, '$[1]') AS bigint) >= $3) ORDER BY seq LIMIT 1"
)
"""Parameters: the position of the event, its conversation, and the position again. Inner
conversations have names that begin with `agent/`; 0 is the character after the slash."""


class Trail(NamedTuple):
    """The few entries that decide the outcome of an event. None: there is no such entry."""

    event: LogEntry
    row: NotificationRow
    looked_at: LogEntry | None
    """Turn of the inner conversation in which the agent saw it."""
    dealt_with: LogEntry | None
    """Turn or dismissal that removed it from the unread events."""
    next_turn: LogEntry | None
    """The next finished turn there, if that one was interrupted."""


async def load_trail(reader: StoreReader, event: LogEntry) -> Trail | None:
    """Return the entries that concern an event. None: this entry was never judged."""
    for row in await find_notifications(reader, [event.seq]):
        looked = await reader.rows(FIRST_LOOKED_AT_BY, event.seq, row.place, event.seq)
        return Trail(
            event,
            row,
            first_entry(looked),
            await reader.entry(row.dealt_seq) if row.dealt_seq else None,
            await reader.entry(row.after_seq) if row.after_seq else None,
        )
    return None


async def explain_event(
    reader: StoreReader, seq: int, *, sees_everything: bool = False
) -> list[str] | None:
    """Explain the entry at `seq`, one line each, safe on any terminal. None: there is no such entry
    in the log.

    For an event the last line names its outcome. `sees_everything`: the reader may know what was
    said everywhere. Raises StoreError.
    """
    if (entry := await reader.entry(seq)) is None:
        return None
    if (found := await load_trail(reader, entry)) is None:
        story = [
            "not an event from outside: nothing was decided about it",
            *await _explain_internal(reader, entry, sees_everything=sees_everything),
        ]
    else:
        judged = found.row.judged
        article = "an" if judged.role[:1] in "aeiou" else "a"
        story = [
            f"{_URGENCIES[judged.urgency]}, from {article} {judged.role} (type {judged.type})",
            *await _explain_alarm(reader, entry, sees_everything=sees_everything),
            *await _explain_message(reader, entry),
            *await _explain_judged(reader, found, sees_everything=sees_everything),
            f"outcome: {found.row.fate}",
        ]
    return [format_entry(entry, Redactor()), *(escape_unprintable(line) for line in story)]


async def _explain_message(reader: StoreReader, entry: LogEntry) -> list[str]:
    message, lines = entry.fact, list[str]()
    if not isinstance(message, Message):
        return lines
    late_s = (entry.at - message.sent).total_seconds()
    if late_s >= _LATE_S:
        why = "the gateway was away, not connected, or could not write its log"
        lines.append(f"taken in {format_duration(late_s)} after it was said: until then {why}")
    changed = await reader.latest_message_change(message, entry.seq)
    if changed is not None:
        how = "deleted" if isinstance(changed.fact, MessageDeleted) else "edited"
        lines.append(f"it was {how} later (entry {changed.seq})")
    return lines


async def _explain_judged(reader: StoreReader, found: Trail, *, sees_everything: bool) -> list[str]:
    judged, fate = found.row.judged, found.row.fate
    if judged.fate == "refused":
        return [f"refused, and never shown to the model: {judged.rule}"]
    if fate is EventOutcome.COMMAND:
        return [
            f"a command, never shown to the model: {judged.rule}",
            *await _explain_reply(reader, found.event, "answer"),
        ]
    if fate is EventOutcome.NOTED:
        return [f"noted; it needs no turn: {judged.rule}"]
    asked = "context for the next turn" if judged.fate == "context" else "due for a turn"
    lines = [
        f"{asked}: {judged.rule}",
        *_explain_look(found),
        *await _explain_told(reader, found.looked_at),
        *await _explain_wait(reader, found),
    ]
    handler = found.dealt_with
    if handler is None:
        return [
            *lines,
            "context for the next turn there"
            if found.looked_at
            else "no turn has ended there since",
        ]
    if isinstance(handler.fact, UnreadDismissed):
        return [
            *lines,
            f"it needs no turn: it was deleted, or the view was begun afresh (entry {handler.seq})",
        ]
    assert isinstance(handler.fact, TurnRecord)
    lines.append(await _explain_turn(reader, found, handler, handler.fact))
    if not isinstance(found.event.fact, Alarm):
        lines += await _explain_attended_turn(reader, handler.fact, sees_everything=sees_everything)
    return [
        *lines,
        *await _explain_trust(reader, handler, handler.fact),
        *_explain_work(found.next_turn or handler),
        *await _explain_reply(reader, found.next_turn or handler),
        *await _explain_rewinds(reader, found.event, handler),
    ]


async def _explain_rewinds(reader: StoreReader, event: LogEntry, handler: LogEntry) -> list[str]:
    lines = list[str]()
    for one in await reader.entries(
        after=handler.seq, kinds=["rewound"]
    ):  # of all places: there are few
        back = one.fact
        if not isinstance(back, ConversationRewound) or one.conversation != handler.conversation:
            continue
        if back.first <= handler.seq <= back.last:
            again = ", to be answered again" if event.seq in back.again else ""
            lines.append(f"that turn was taken back in entry {one.seq}, by {back.by}{again}")
    return lines


async def _explain_wait(reader: StoreReader, found: Trail) -> list[str]:
    place, handler = found.row.place, found.dealt_with
    turns = await reader.entries(
        after=found.event.seq, kinds=["turn_ended"], conversation=place, limit=_MAX_LISTED
    )
    for entry in turns:
        turn = entry.fact
        if (
            isinstance(turn, TurnRecord)
            and turn.outcome == "interrupted"
            and turn.failure
            and not turn.upto
        ):
            waits = "it waits for one" if handler is None else "it waited for one"
            told = f"({turn.failure}: {turn.reason})"
            return [f"no model answered in {_format_turn(entry)} {told}; {waits}"]
    return []


def _explain_look(found: Trail) -> list[str]:
    """Explain a look from the inner conversation, unless that turn or one within it handled the
    event.
    """
    look, handler = found.looked_at, found.dealt_with
    if (
        look is None
        or not isinstance(look.fact, TurnRecord)
        or (handler is not None and handler.seq <= look.seq)
    ):
        return []
    ended = "" if look.fact.outcome == "replied" else f", which {_format_turn_end(look.fact)}"
    return [f"looked at in {_format_turn(look)}{ended}"]


async def _explain_turn(
    reader: StoreReader, found: Trail, handler: LogEntry, turn: TurnRecord
) -> str:
    inside = handler.conversation is not None and is_inner(handler.conversation)
    ended = _format_turn_end(turn, inside=inside)
    if found.event.seq not in turn.covers:
        return (
            f"only counted, for newer lines filled the prompt, in {_format_turn(handler)}, "
            f"which {ended}"
        )
    if turn.within is not None:
        return (
            f"in {await _find_turn_label(reader, turn.within)} the agent spoke here (entry "
            f"{handler.seq}), and {ended}"
        )
    if turn.outcome != "interrupted":
        how = (
            "told as context"
            if found.row.fate is EventOutcome.CONTEXT and found.looked_at
            else "shown to the model"
        )
        return f"{how} in {_format_turn(handler)}, which {ended}"
    later = found.next_turn
    if later is None or not isinstance(later.fact, TurnRecord):
        return f"heard in {_format_turn(handler)}, which {ended}; no turn has ended there since"
    then = _format_turn_end(later.fact)
    return (
        f"heard in {_format_turn(handler)}, which {ended}; the next turn there, "
        f"{_format_turn(later)}, {then}"
    )


def _explain_work(ended: LogEntry) -> list[str]:
    turn, lines = ended.fact, list[str]()
    if not isinstance(turn, TurnRecord):
        return lines
    named = Counter(one.name for step in turn.steps for one in step.calls if not one.ended)
    if named:
        most = ", ".join(f"{name} {count}" for name, count in named.most_common(5))
        lines.append(f"it called tools {named.total()} times in {len(turn.steps)} steps ({most})")
    if turn.instead_of:
        lines.append(
            f"{turn.model} answered as a fallback, because others did not ({turn.instead_of})"
        )
    return lines


def _format_turn_end(turn: TurnRecord, *, inside: bool = False) -> str:
    ended = "ended" if inside and turn.outcome == "replied" else TURN_OUTCOME_TEXTS[turn.outcome]
    return f"{ended}: {turn.reason}" if turn.reason else ended


def _format_turn(entry: LogEntry) -> str:
    assert isinstance(entry.fact, TurnRecord)
    inside = (
        " of the inner conversation"
        if entry.conversation is not None and is_inner(entry.conversation)
        else ""
    )
    return f"turn {entry.fact.turn}{inside} (entry {entry.seq})"


async def _find_turn_label(reader: StoreReader, turn: str) -> str:
    found = await reader.entry_by_key(f"turn:{turn}")
    return (
        _format_turn(found)
        if found is not None and isinstance(found.fact, TurnRecord)
        else f"turn {turn}"
    )


async def _explain_alarm(
    reader: StoreReader, entry: LogEntry, *, sees_everything: bool
) -> list[str]:
    alarm = entry.fact
    if isinstance(alarm, Alarm) and alarm.attended and entry.cause is not None:
        return await _explain_attended(reader, entry.cause, alarm, sees_everything=sees_everything)
    if not isinstance(alarm, Alarm) or not alarm.reminder:
        return []
    reminded = await reader.entry_by_key(f"reminded:{alarm.reminder}")
    since = f" (set in entry {reminded.seq})" if reminded is not None else ""
    times = f"; {alarm.missed} before it passed while nobody could tell" if alarm.missed else ""
    again = f"; it comes again at {alarm.next:%Y-%m-%d %H:%M:%S} UTC" if alarm.next else ""
    return [f"one time of reminder {alarm.reminder}{since}{times}{again}"]


async def _explain_attended_turn(
    reader: StoreReader, turn: TurnRecord, *, sees_everything: bool
) -> list[str]:
    covered = [await reader.entry(seq) for seq in turn.covers] if turn.cause == "attended" else []
    alarms = [one for one in covered if one is not None and isinstance(one.fact, Alarm)]
    return [
        line
        for one in alarms
        for line in await _explain_alarm(reader, one, sees_everything=sees_everything)
    ]


async def _explain_attended(
    reader: StoreReader, seq: Seq, alarm: Alarm, *, sees_everything: bool
) -> list[str]:
    """Explain the decision of the inner conversation at `seq`. Its reason may be made of the text
    of other rooms, unless the room was told it.
    """
    entry = await reader.entry(seq)
    if entry is None or not isinstance(entry.fact, RoomAttended):
        return []
    where = await _find_turn_label(reader, entry.fact.turn)
    if not entry.fact.reason:
        why = ", without a reason"
    else:
        why = (
            f": {entry.fact.reason}"
            if sees_everything or alarm.text == entry.fact.reason
            else ", for a reason that may be of other rooms"
        )
    return [f"attended by the inner conversation (entry {seq}), in {where}{why}"]


async def _explain_internal(
    reader: StoreReader, entry: LogEntry, *, sees_everything: bool
) -> list[str]:
    fact, lines = entry.fact, list[str]()
    if entry.cause is not None:
        lines.append(f"it follows from entry {entry.cause}")
    if isinstance(fact, DeliveryReport):
        post = await reader.entry_by_key(f"post:{fact.post}")
        lines += [f"how the post of entry {post.seq} ended"] if post is not None else []
    elif isinstance(fact, PostQueued):
        lines += await _explain_delivery(reader, entry, fact, "post")
    elif isinstance(fact, TurnRecord):
        shown = ", ".join(str(seq) for seq in fact.covers[-_MAX_LISTED:]) or "nothing new"
        more = (
            f"{len(fact.covers) - _MAX_LISTED} more and " if len(fact.covers) > _MAX_LISTED else ""
        )
        lines.append(
            f"a turn because of {TURN_CAUSE_TEXTS[fact.cause]}, which was shown entries "
            f"{more}{shown}"
        )
        lines += await _explain_attended_turn(reader, fact, sees_everything=sees_everything)
        lines += [*await _explain_trust(reader, entry, fact), *_explain_work(entry)]
        lines += await _explain_reply(reader, entry)
    elif isinstance(fact, ToolRefused | ApprovalRequested | RoomAttended | OwnerTold):
        lines += _explain_label(fact.label)
    return lines


async def _explain_trust(reader: StoreReader, ended: LogEntry, turn: TurnRecord) -> list[str]:
    kinds = ["tool_refused", "approval_asked"]
    held = await reader.newest_entries(
        _MAX_LISTED, kinds=kinds, conversation=ended.conversation, before=ended.seq
    )
    lines = _explain_label(turn.label)
    for entry in held:
        if isinstance(entry.fact, ToolRefused | ApprovalRequested) and entry.fact.turn == turn.turn:
            what = "refused" if isinstance(entry.fact, ToolRefused) else "asked about"
            lines.append(
                f"its call of {entry.fact.tool} was {what} (entry {entry.seq}): {entry.fact.rule}"
            )
    return [*lines, *await _explain_told(reader, ended)]


async def _explain_told(reader: StoreReader, ended: LogEntry | None) -> list[str]:
    if ended is None or not isinstance(turn := ended.fact, TurnRecord) or not turn.agent:
        return []
    inner = inner_conversation(turn.agent)
    told = await reader.newest_entries(
        _MAX_LISTED, kinds=["told"], conversation=inner, before=ended.seq
    )
    return [
        f"that turn had an owner told (entry {one.seq})"
        for one in told
        if isinstance(one.fact, OwnerTold)
        and (one.fact.turn, one.fact.state) == (turn.turn, "held")
    ]


def _explain_label(label: Label | None) -> list[str]:
    """Name the least trusted words of a request, unless the owner's, the operator's and the agent's
    own are all.
    """
    if label is None or label.integrity == "owner":
        return []
    source = f", in {label.source}" if label.source else ""
    return [f"the least trusted words in view: {label.integrity}{source}"]


async def _explain_reply(reader: StoreReader, cause: LogEntry, word: str = "reply") -> list[str]:
    for queued in await reader.caused_by(cause.seq):
        if isinstance(queued.fact, PostQueued):
            return await _explain_delivery(reader, queued, queued.fact, word)
    return []


async def _explain_delivery(
    reader: StoreReader, queued: LogEntry, fact: PostQueued, word: str
) -> list[str]:
    ended = await reader.entry_by_key(f"delivery:{fact.post.to.conversation}:{fact.post.key}")
    if ended is not None and isinstance(ended.fact, DeliveryReport):
        reason = f": {ended.fact.reason}" if ended.fact.reason else ""
        if ended.fact.state == "uncertain":
            notices = [
                one.seq
                for one in await reader.caused_by(ended.seq)
                if isinstance(one.fact, PostQueued)
            ]
            reason += f"; the person was told so (entry {notices[0]})" if notices else ""
        return [
            f"the {word} (entry {queued.seq}) is {ended.fact.state} (entry {ended.seq}){reason}"
        ]
    parts = await reader.newest_entries(
        200, after=queued.seq, kinds=["part"], conversation=queued.conversation
    )
    failed = [
        one.fact.reason
        for one in parts
        if isinstance(one.fact, PartSendEnded)
        and one.fact.post == fact.post.key
        and one.fact.state == "waiting"
    ]
    reason = f": {failed[-1]}" if failed else ""
    return [f"the {word} (entry {queued.seq}) is still to be delivered{reason}"]


class Trace(Plugin):
    """Answers `why`."""

    name = "trace"
    summary = "explains what happened to an event, by the command why"

    @command(
        "why",
        "Explain what happened to a log entry, and which rule decided.",
        group="how I run",
        role="admin",
    )
    async def why(
        self,
        call: CommandCall,
        entry: Annotated[
            int, "The number of the entry, as in log tail. Without it: my last answer."
        ] = 0,
    ) -> CommandEffect:
        """Explain a log entry of this conversation; in a direct chat, to admins everywhere, of any
        that they may see.

        Without a number: the last answer in this conversation, in one sentence.
        """
        gateway = self.context.gateway
        store = gateway.store
        if "entry" not in call.arguments:
            now = gateway.live.to_local(gateway.clock.now())
            return done(await _explain_last_answer(call, store, now))
        asked = await store.entry(entry)
        if asked is not None and asked.conversation != call.command.at.conversation:
            if not call.command.direct:
                text = _("Entry {number} is from another conversation. Ask me in a direct chat.")
                return done(text.format(number=entry))
            names_all = asked.kind in SAVED_STATE_KINDS and not sees_everything(call)
            places = self.context.gateway.places
            if (
                call.global_role not in ADMIN_ROLES
                or names_all
                or await find_hidden(call, places, find_entry_places(asked))
            ):
                text = _("You may not see the conversation of entry {number}.")
                return refuse(text.format(number=entry))
        found = await explain_event(store, entry, sees_everything=sees_everything(call))
        if found is not None:
            return done("```\n" + escape_code("\n".join(found)) + "\n```")
        if await has_left(store, entry):
            text = _("Entry {number} is so old that it has left the log.")
        else:
            text = _("There is no entry {number}.")
        return refuse(text.format(number=entry))


async def _explain_last_answer(call: CommandCall, reader: StoreReader, now: datetime) -> str:
    turns = await reader.newest_entries(
        _MAX_LISTED, kinds=["turn_ended"], conversation=call.command.at.conversation
    )
    for ended in reversed(turns):
        turn = ended.fact
        assert isinstance(turn, TurnRecord)
        if not turn.covers or turn.outcome != "replied":
            continue
        asked = await reader.entry(turn.covers[-1])
        if asked is None or not isinstance(asked.fact, Message):
            continue
        return _(
            "At {time} I answered {name}, with {requests} to {model}. `{prefix}why {entry}` says "
            "more."
        ).format(
            time=format_moment(ended.at, now),
            name=inline_code(asked.fact.sender.name),
            requests=ngettext("{count} request", "{count} requests", turn.requests).format(
                count=turn.requests
            ),
            model=turn.model or _("no model"),
            prefix=call.prefix,
            entry=asked.seq,
        )
    return _("I have answered nobody here lately.")
