"""Unread input of a turn: messages with their current texts, replies, attachments and notices of
system events.

`ConversationReader` reads it from the log. Everything else is pure: `render_system_event` writes
the one-line notice of an event that is not a message, `event_as_message` puts such events among the
messages in the order of the log, and `render_lines` chooses what fits a request.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args
from weakref import WeakValueDictionary

from agent import view
from agent.models.base import MAX_IMAGES, MAX_IMAGES_BYTES
from agent.prompt import PromptLine, fence_text, render_line
from agent.tokens.counter import estimate_media_tokens, estimate_tokens
from gateway.access.policy import decide
from gateway.context.history import HistoryView
from gateway.core.events import (
    MAX_QUOTED_CHARS,
    Address,
    Alarm,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    EventId,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    PlaceRenamed,
    Post,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    TaskFinished,
)
from gateway.core.facts import (
    INNER_CHANNEL,
    LOW,
    MESSAGE_KINDS,
    Fact,
    MediaRef,
    PlatformAction,
    RoomAttended,
    Seq,
    TurnRecord,
    dedup_key,
)
from gateway.core.frozen import frozen
from gateway.core.i18n import N_
from gateway.core.identity import (
    ADMIN_ROLES,
    AccessPolicy,
    Role,
    identify,
    lowest_role,
    proven_role,
    text_role,
)
from gateway.core.labels import (
    OUTSIDE_LABEL,
    TRUSTED_LABEL,
    Label,
    label_of_role,
    label_of_work,
    rank_integrity,
)
from gateway.core.media_types import is_document
from gateway.core.text_safety import NameWarning, check_name
from gateway.store import StoreReader, UnreadEntries
from gateway.stream.again import TURN_KINDS
from gateway.stream.handle import GatewayHandle
from gateway.stream.media import DescribedAttachment, MediaStore, is_image

SystemEvent = (
    Alarm
    | TaskFinished
    | ReactionChanged
    | DeliveryReport
    | ConnectionChanged
    | PlaceRenamed
    | MembershipChanged
    | Command
)
NoticePieces = tuple[tuple[Literal["own", "name", "quoted"], str], ...]
"""Shaped like `agent.prompt.PromptLine.event`."""

SYSTEM_EVENTS: Final = get_args(SystemEvent)
"""Of commands only `start`, with the word of the link that somebody came by."""
DELIVERY_DOUBT: Final = (
    'may or may not have been delivered (whoever waited for it may say "again" to see it once '
    "more; "
    "do not repeat it unasked)"
)
ATTENDED_NOTICE: Final = "you decided to look at this room"
"""Notice of a room that the inner conversation had attended, before the reason."""
POST_SNIPPET_CHARS: Final = 80
"""Characters of an own post that a notice quotes: enough to recognise it."""

_RENAME_TEXTS: Final = {
    "room": "this room is now called",
    "server": "the server is now called",
    "thread": "this thread is now called",
    "topic": "the topic is now",
    "me": "you are now called",
}

MAX_MESSAGES: Final = 500
"""Newest messages of a conversation that are searched for a text or a person."""
NOBODY = Sender(id=SenderId(""), name="")
NO_VIEW: Final = HistoryView()

MAX_CHANGES = 1_000
"""Edits and deletions read for one turn. More than that is a raid, and then the oldest messages
keep their first texts."""
MAX_REPLIES = 20
"""Messages whose reply target is looked up; each costs one or two store queries."""
MAX_REACTIONS = 20
"""Reactions looked up to find out whether the message is the agent's own. Reactions to older
messages are not rendered."""
REPLY_SNIPPET_CHARS = 200
"""Characters of a message that is replied to; a longer one is told by its handle, or beside the
line."""
_QUOTED: Final = "a quoted message"
"""Source of the label of its text."""


class CurrentMessage(NamedTuple):
    """Unread message that has not been deleted, or another event in the form of a message."""

    seq: Seq
    message: Message
    """With its newest text. The sender of an event that is not a message is `NOBODY`."""
    is_edited: bool
    notice: NoticePieces = ()
    """Notice of a system event. Empty: the entry is a message."""
    label: Label = TRUSTED_LABEL
    """Trust label of the text in the notice."""
    setter: Sender | None = None
    """Whoever set the reminder, and pays for it. None: it is none, or the agent's own."""


@frozen
class RenderedMessage:
    """Unread message, rendered for the model."""

    seq: Seq
    sender: SenderId
    """Its author; of a reminder, whoever set it."""
    line: PromptLine
    images: tuple[MediaRef, ...] = ()
    label: Label = TRUSTED_LABEL
    """Trust label of everyone whose words the line holds: sender, authors of quoted and forwarded
    text, of attachments."""


@frozen
class RenderedInput:
    """Input that is new to the model, as text."""

    text: str = ""
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Sender of each entry of `covers`."""
    media: tuple[MediaRef, ...] = ()
    has_more: bool = False
    """Addressed messages after the last of `covers` did not fit: they are left for another turn."""


class _ReplyTarget(NamedTuple):
    name: str
    text: str
    label: Label
    seq: Seq | None = None
    """Its log position. None: the log has not got it, or it is the agent's own."""


class ConversationReader:
    """Reads and renders the unread messages of a conversation."""

    def __init__(
        self,
        gateway: GatewayHandle,
        media: MediaStore,
        *,
        fetches: bool = True,
    ) -> None:
        """`fetches` False: attachments are only described."""
        self._store, self._media, self._fetches = gateway.store, media, fetches
        self.access_policy, self.redactor = gateway.people, gateway.redactor

    async def read_current(self, unread: UnreadEntries) -> tuple[CurrentMessage, ...]:
        """Return the unread messages that still exist, with their newest texts, oldest first."""
        messages = await self._read_messages(unread)
        if len(messages) == len(unread.messages):
            return messages
        others = await self._read_system_events(unread)
        others += await self._read_edits(unread)
        return tuple(sorted((*messages, *others), key=lambda one: one.seq))

    async def _read_system_events(self, unread: UnreadEntries) -> list[CurrentMessage]:
        """Return the events that are not messages.

        Reactions and delivery reports count only if they concern a turn's post.
        """
        found = [
            (stored.seq, stored.fact)
            for stored in unread.messages
            if isinstance(stored.fact, SYSTEM_EVENTS)
        ]
        posts = await self._find_own_posts([fact for _, fact in found])
        awaited = {
            stored.seq: line
            for stored in unread.messages
            if isinstance(stored.fact, Alarm)
            and stored.fact.source
            and (line := await self._read_awaited(stored.cause))
        }
        if reactions := [(seq, fact) for seq, fact in found if isinstance(fact, ReactionChanged)]:
            taken_back = await self._find_taken_back(*reactions[0])
            found = [(seq, fact) for seq, fact in found if seq not in taken_back]
        return [
            CurrentMessage(
                seq,
                event_as_message(fact),
                is_edited=False,
                notice=self._render_system_event(fact, posts, awaited.get(seq)),
                label=await self._system_event_label(fact, posts, awaited.get(seq)),
                setter=find_setter(fact),
            )
            for seq, fact in found
            if fact.id in posts or not isinstance(fact, ReactionChanged | DeliveryReport)
        ]

    async def _find_taken_back(self, seq: Seq, first: ReactionChanged) -> set[Seq]:
        """Return the reactions there, from the `first` on, that were taken back since."""
        place = first.at.conversation
        open_ones, gone = dict[tuple[SenderId, MessageId, str], Seq](), set[Seq]()
        for entry in await self._store.entries(
            after=seq - 1, kinds=["reacted"], conversation=place
        ):
            assert isinstance(entry.fact, ReactionChanged)
            key = (entry.fact.sender.id, entry.fact.message, entry.fact.reaction)
            if entry.fact.added:
                open_ones[key] = entry.seq
            elif key in open_ones:
                gone.add(open_ones.pop(key))
        return gone

    async def _read_awaited(self, line: Seq | None) -> CurrentMessage | None:
        """Return the line that an intention waited for, with its newest text. None: deleted."""
        entry = await self._store.entry(line) if line is not None else None
        if entry is None:
            return None
        left = await self._read_messages(
            UnreadEntries(messages=(entry,), omitted=0, upto=entry.seq, has_changes=True)
        )
        return left[0] if left else None

    async def _system_event_label(
        self, event: SystemEvent, posts: Mapping[EventId, Post], line: CurrentMessage | None
    ) -> Label:
        label = await self.label_of_post(posts[event.id]) if event.id in posts else TRUSTED_LABEL
        if isinstance(event, Alarm) and event.attended and event.text:
            return await self._label_of_reason(event)
        if isinstance(event, Alarm):
            role = await find_alarm_role(self._store, self.access_policy, event)
            label |= Label(readers=event.readers) | label_of_role(role, "a reminder")
            return label if line is None else label | self._text_label(line.seq, line.message)
        if isinstance(event, TaskFinished):
            return label | label_of_work(event.integrity, event.readers, event.what)
        if isinstance(event, Command):
            return Label("outside", source="the word of a link")
        if isinstance(event, PlaceRenamed):  # the event does not name who renamed it
            return label | Label("guest")
        if isinstance(event, ConnectionChanged | DeliveryReport) and event.reason:
            return label | Label(
                "outside", source="the words of a platform"
            )  # an IRC operator chose those of a KILL
        if isinstance(event, ReactionChanged | MembershipChanged):
            role = identify(self.access_policy, event.at, event.sender).role
            label |= label_of_role(proven_role(role, verified=event.sender.verified))
        return label

    async def _label_of_reason(self, alarm: Alarm) -> Label:
        """Return the label of the reason in the notice of an attended room: that of the request
        that decided.
        """
        noticed = await self._store.entry_by_key(dedup_key(alarm) or "")
        cause = noticed.cause if noticed is not None else None
        decided = await self._store.entry(cause) if cause is not None else None
        if decided is None or not isinstance(decided.fact, RoomAttended):
            return OUTSIDE_LABEL
        # Else the text is the gateway's own, and names somebody whose line is shown as well.
        return decided.fact.label if decided.fact.reason == alarm.text else TRUSTED_LABEL

    async def label_of_post(self, post: Post) -> Label:
        """Return the label of an own post: of all that its turn saw.

        A post that comes from no turn (the answer to a command) may quote anybody.
        """
        _, cause = await self._store.find_post(post.key)
        ended = cause.fact if cause is not None else None
        if isinstance(ended, PlatformAction):
            found = await self._store.entry_by_key(f"turn:{ended.turn}")
            ended = found.fact if found is not None else None
        return ended.label if isinstance(ended, TurnRecord) else Label("guest")

    async def _find_own_posts(self, events: Sequence[SystemEvent]) -> dict[EventId, Post]:
        found, posts = dict[EventId, Post](), dict[MessageId, Post | None]()
        for event in reversed(events):
            if isinstance(event, ReactionChanged) and (
                event.message in posts or len(posts) < MAX_REACTIONS
            ):
                if event.message not in posts:
                    posts[event.message] = await self._store.find_own_post(
                        event.at.conversation, event.message
                    )
                post = posts[event.message]
                if post is not None:
                    found[event.id] = post
            elif isinstance(event, DeliveryReport):
                post, cause = await self._store.find_post(event.post)
                # Answers of the gateway to commands are not the agent's, which knows nothing of
                # them.
                if post is not None and cause is not None and cause.kind in TURN_KINDS:
                    found[event.id] = post
        return found

    async def _read_messages(self, unread: UnreadEntries) -> tuple[CurrentMessage, ...]:
        messages = [
            (stored.seq, stored.fact)
            for stored in unread.messages
            if isinstance(stored.fact, Message)
        ]
        if not (unread.has_changes and messages):
            return tuple(
                CurrentMessage(seq, self._redact_message(message), is_edited=False)
                for seq, message in messages
            )
        place = messages[0][1].at.conversation
        changes = [
            (stored.seq, stored.fact)
            for stored in await self._store.message_changes(
                place, after=messages[0][0], newest=MAX_CHANGES
            )
        ]
        deleted = {
            change.message: seq for seq, change in changes if isinstance(change, MessageDeleted)
        }
        edits = [change for _, change in changes if isinstance(change, MessageEdited)]
        left = []
        for seq, message in messages:
            if deleted.get(message.id, Seq(0)) > seq:
                continue
            newest = next(
                (edit for edit in reversed(edits) if self._is_valid_edit(edit, message)), None
            )
            edited = message
            if newest is not None:  # its sender is who they are when they write this text
                carried = newest.carried or message.carried
                edited = replace(message, sender=newest.sender, text=newest.text, carried=carried)
            is_edited = edited.text != message.text
            left.append(CurrentMessage(seq, self._redact_message(edited), is_edited=is_edited))
        return tuple(left)

    async def _read_edits(self, unread: UnreadEntries) -> list[CurrentMessage]:
        """Return notices of the new texts of messages that an earlier turn read, one for each."""
        newest = {
            one.fact.message: one for one in unread.messages if isinstance(one.fact, MessageEdited)
        }
        for one in unread.messages:
            if isinstance(one.fact, Message):  # it is read with its newest text
                newest.pop(one.fact.id, None)
        found = list[CurrentMessage]()
        for message, stored in list(newest.items())[-MAX_REPLIES:]:
            edit = stored.fact
            assert isinstance(edit, MessageEdited)
            first = await self._store.entry_by_key(f"message:{edit.at.conversation}:{message}")
            if (
                first is None
                or not isinstance(first.fact, Message)
                or not self._is_valid_edit(edit, first.fact)
            ):
                continue
            now = await self._store.latest_message_change(first.fact, first.seq)
            if now is None or not isinstance(now.fact, MessageEdited):  # deleted since
                continue
            was, reads = (
                self.redactor(first.fact.text)[:POST_SNIPPET_CHARS],
                self.redactor(now.fact.text),
            )
            pieces: NoticePieces = (
                ("name", edit.sender.name),
                ("own", " changed the message "),
                ("quoted", was),
                ("own", " and now says: "),
                ("quoted", reads),
            )
            label = self._text_label(first.seq, first.fact) | self._text_label(
                stored.seq, replace(first.fact, sender=edit.sender, carried=now.fact.carried)
            )
            as_message = replace(event_as_message(edit), sender=edit.sender)
            found.append(
                CurrentMessage(stored.seq, as_message, is_edited=False, notice=pieces, label=label)
            )
        return found

    def _redact_message(self, message: Message) -> Message:
        text = self.redactor(message.text)
        return message if text == message.text else replace(message, text=text)

    def _render_system_event(
        self, event: SystemEvent, posts: Mapping[EventId, Post], line: CurrentMessage | None
    ) -> NoticePieces:
        post = self.redactor(posts[event.id].text if event.id in posts else "")
        pieces = render_system_event(event, post)
        if isinstance(event, Alarm) and event.source:
            where: NoticePieces = (("quoted", event.source),)
            if line is None:
                pieces = (*pieces, ("own", "; there was talk in "), *where)
            else:
                name, text = line.message.sender.name, line.message.text
                pieces = (*pieces, ("own", "; "), ("name", name), ("own", " wrote in "), *where)
                pieces = (*pieces, ("own", ": "), ("quoted", text))
        return tuple((kind, self.redactor(text)) for kind, text in pieces)

    def _is_valid_edit(self, edit: MessageEdited, message: Message) -> bool:
        """Return whether the author of the message made the edit, and is not blocked."""
        same = edit.message == message.id and edit.sender.id == message.sender.id
        return same and identify(self.access_policy, edit.at, edit.sender).role != "blocked"

    async def is_answer_owed(
        self, unread: UnreadEntries, current: Sequence[CurrentMessage]
    ) -> bool:
        """Return whether an unread message still wants an answer.

        False if all that asked for one was deleted, and for events that only report. A reaction to
        the agent's message wants one if a rule of the operator makes it more urgent than reactions
        are.
        """
        shown = {one.seq for one in current}
        for stored in unread.messages:
            if isinstance(stored.fact, ReactionChanged) and stored.seq in shown:
                judged = await self._store.find_judgement(stored.seq)
                if judged is not None and judged.urgency > LOW:
                    return True
        waiting = {stored.seq for stored in unread.messages if wants_answer(stored.fact)}
        left = [one for one in current if one.seq in waiting]
        if not waiting:  # those that ask for an answer come first, so none of the omitted ones does
            return False
        if (
            unread.omitted
            or len(left) == len(waiting)
            or any(is_addressed(one.message) for one in left)
        ):
            return True
        judgements = [await self._store.find_judgement(one.seq) for one in left]
        return any(judged is not None and judged.fate == "due" for judged in judgements)

    async def render(
        self, current: Sequence[CurrentMessage], *, sees: bool, view: HistoryView = NO_VIEW
    ) -> tuple[RenderedMessage, ...]:
        """Return the rendered lines. `sees`: the model takes images, so they are attached.

        What a message replies to brings its attachments, unless these stand in the `view` or among
        the lines already.
        """
        shown = dict[Seq, tuple[str, ...]]()
        for one in current:
            if one.message.quoted is not None and one.message.quoted.attachments:
                shown[one.seq] = await self._find_shown_attachments(one.message, current, view)
        messages = [
            (one.seq, replace(one.message, quoted=None) if shown.get(one.seq) else one.message)
            for one in current
        ]
        attached = dict[Seq, tuple[DescribedAttachment, ...]]()
        if not self._fetches:
            attached = {
                seq: tuple(
                    DescribedAttachment(self._media.describe_unread(seq, message, place))
                    for place in range(len(message.attachments))
                )
                for seq, message in messages
            }
        elif any(message.shown_attachments for _, message in messages):
            attached = await self._media.describe_attachments(messages, sees=sees)
            in_view = {ref.sha256 for turn in view.turns for ref in turn.record.media}
            for seq, message in messages:  # images of messages replied to that the view shows
                found, own = attached.get(seq, ()), len(message.attachments)
                attached[seq] = (
                    *found[:own],
                    *[
                        DescribedAttachment(f"{one.description} (shown above)")
                        if one.image is not None and one.image.sha256 in in_view
                        else one
                        for one in found[own:]
                    ],
                )
        targets, unread = dict[Seq, _ReplyTarget | None](), {o.message.id: o for o in current}
        for one in [one for one in current if one.message.reply_to is not None][-MAX_REPLIES:]:
            targets[one.seq] = await self._find_reply_target(one.message, unread)
        roles = {  # as they are now, whatever they were when the line was judged
            one.seq: identify(self.access_policy, one.message.at, one.message.sender).role
            for one in current
            if not one.notice
        }
        said = [(o.seq, o.message, roles[o.seq]) for o in current if o.seq in roles]
        lookalikes = await _find_impersonations(self._store, said)
        return tuple(
            [
                self._render_notice(one)
                if one.notice
                else self._render_message(
                    one,
                    roles[one.seq],
                    targets.get(one.seq),
                    attached.get(one.seq, ()),
                    shown.get(one.seq, ()),
                    lookalikes.get(one.message.id),
                )
                for one in current
            ]
        )

    async def _find_shown_attachments(
        self, message: Message, current: Sequence[CurrentMessage], view: HistoryView
    ) -> tuple[str, ...]:
        """Return descriptions of what a message replies to if its attachments are shown already.
        Empty: they are not.

        A document of a message that was not addressed to the agent was only described.
        """
        stored = await self._store.entry_by_key(
            f"message:{message.at.conversation}:{message.reply_to}"
        )
        if stored is None or not isinstance(stored.fact, Message):
            return ()
        first, files = stored.fact, stored.fact.attachments
        is_new = any(other.seq == stored.seq for other in current)
        images = sum(
            ref.line == stored.seq and not ref.pages
            for turn in view.turns
            for ref in turn.record.media
        )
        is_told = is_new or any(stored.seq in turn.record.covers for turn in view.turns)
        is_shown = (is_new or images >= sum(map(is_image, files))) and (
            is_told and (first.kind != "room" or not any(map(is_document, files)))
        )
        quoted = message.quoted.attachments if message.quoted is not None else ()
        if not is_shown or len(files) != len(quoted):
            return ()
        told = [
            self._media.describe_unread(stored.seq, first, place) for place in range(len(files))
        ]
        return tuple(f"(with the message replied to, shown above:) {text}" for text in told)

    def _text_label(self, seq: Seq | None, message: Message, role: Role | None = None) -> Label:
        """Return the label of the text alone. `seq`: its log position; None: it is quoted in
        another message. `role`: of its sender; None: that is asked.
        """
        role = role or identify(self.access_policy, message.at, message.sender).role
        proven = proven_role(text_role(message, role), verified=message.sender.verified)
        label = label_of_role(proven)
        if message.carried:
            return label | Label(
                "outside", source=f"a forward or quotation in m{seq}" if seq else _QUOTED
            )
        return replace(label, source=f"m{seq}" if seq else _QUOTED)

    def _render_notice(self, one: CurrentMessage) -> RenderedMessage:
        message = one.message
        line = PromptLine(
            sender="",
            role="",
            sent=message.sent,
            text="",
            is_addressed=is_addressed(message),
            event=one.notice,
        )
        payer = one.setter or message.sender
        return RenderedMessage(seq=one.seq, sender=payer.id, line=line, label=one.label)

    def _render_message(  # noqa: PLR0917 - all that is known of it
        self,
        one: CurrentMessage,
        role: Role,
        target: _ReplyTarget | None,
        attached: Sequence[DescribedAttachment],
        shown: Sequence[str],
        lookalike: NameWarning | None,
    ) -> RenderedMessage:
        """Return a message as its line, with the label of everyone whose words are in it."""
        message, told, quoted = one.message, one.message, one.message.quoted
        images = tuple([one.image for one in attached if one.image is not None])
        quotes = all(line.startswith(">") for line in message.carried.splitlines())
        if target is not None and target.text and quotes:  # the author of these lines is known
            told = replace(message, carried="")
        label = self._text_label(one.seq, told, role)
        is_attached = target is None and quoted is not None and bool(quoted.attachments)
        # Somebody else's words may be in an attachment, or its name.
        if is_attached or any(
            not one.recorded and (one.form not in ("sticker", "location") or one.name)
            for one in message.shown_attachments
        ):
            label |= Label("outside", source=f"an attachment of m{one.seq}")
        descriptions = [*[one.description for one in attached], *shown]
        reply_to, beside = None, tuple[str, ...]()
        if target is not None:
            label |= target.label
            reply_to = (target.name, target.text[:REPLY_SNIPPET_CHARS])
            beside = _quote_target(one, target)
        if images:  # their authors may have written in them
            label |= Label("outside", source="an attachment")
        line = PromptLine(
            sender=message.sender.name,
            role=role,
            is_bot=message.sender.is_bot,
            sent=message.sent,
            text=message.text,
            is_addressed=is_addressed(message),
            reply_to=reply_to,
            is_edited=one.is_edited,
            attachments=(*beside, *map(self.redactor, descriptions)),
            lookalike=lookalike,
        )
        return RenderedMessage(
            seq=one.seq, sender=message.sender.id, line=line, images=images, label=label
        )

    async def _find_reply_target(
        self, message: Message, unread: Mapping[MessageId, CurrentMessage]
    ) -> _ReplyTarget | None:
        """Return the message that another one replies to, as far as it is known and may be
        shown.
        """
        assert message.reply_to is not None
        place, earlier, seq = message.at.conversation, None, None
        if (new := unread.get(message.reply_to)) is not None:
            earlier, seq = new.message, new.seq
        elif message.kind != "reply":
            stored = await self._store.entry_by_key(f"message:{place}:{message.reply_to}")
            if stored is not None and isinstance(stored.fact, Message):
                earlier, seq = stored.fact, stored.seq
        if earlier is not None:
            # A reply does not bring in the words of refused senders.
            allowed = decide(self.access_policy, earlier).allowed
            label, text = self._text_label(None, earlier), self.redactor(earlier.text)
            return _ReplyTarget(earlier.sender.name, text, label, seq) if allowed else None
        post = await self._store.find_own_post(place, message.reply_to)
        if post is not None:
            return _ReplyTarget("you", self.redactor(post.text), await self.label_of_post(post))
        if message.kind == "reply":
            return _ReplyTarget("you", "", TRUSTED_LABEL)
        if message.quoted is None or not message.quoted.text:
            return None
        label, text = Label("outside", source=_QUOTED), self.redactor(message.quoted.text)
        return _ReplyTarget(message.quoted.sender.name, text, label)


def is_addressed(fact: Fact) -> bool:
    """Return whether a fact is addressed to the agent, not merely posted where it listens. A
    reminder is.
    """
    is_reminder = isinstance(fact, Alarm) and not fact.attended
    return is_reminder or (isinstance(fact, Message) and fact.kind != "room")


def find_setter(fact: Fact) -> Sender | None:
    """Return the person who asked for an alarm. None: the agent itself, or it is no alarm."""
    if not isinstance(fact, Alarm) or not fact.by:
        return None
    return Sender(id=fact.by, name=fact.asked_by, verified=True)


async def find_alarm_role(reader: StoreReader, access_policy: AccessPolicy, alarm: Alarm) -> str:
    """Return the least role of those who may have caused an alarm, when it was set and now. Ranks
    of a platform are those of their newest message.
    """
    if alarm.attended or alarm.role == "":
        return "owner"  # the agent's own decision
    then, at, setter = alarm.role or "guest", alarm.at, find_setter(alarm)
    if setter is None or at is None:
        return then
    now: str = identify(access_policy, at, setter).role
    if rank_integrity(now) < rank_integrity(then) and now != "blocked":
        newest = await reader.newest_entries(
            MAX_MESSAGES, kinds=MESSAGE_KINDS, conversation=at.conversation
        )
        senders = (one.fact.sender for one in reversed(newest) if isinstance(one.fact, Message))
        known = next((sender for sender in senders if sender.id == alarm.by), None)
        now = identify(access_policy, at, known).role if known is not None else now
    return lowest_role([then, now])


def wants_answer(fact: Fact) -> bool:
    """Return whether a fact asks for an answer by itself. Mere reports do not."""
    return not isinstance(
        fact, ReactionChanged | DeliveryReport | PlaceRenamed | MessageEdited | Command
    )


def find_reply_to(current: Sequence[CurrentMessage]) -> MessageId | None:
    """Return the message that a reply answers: the newest addressed one, else the newest. None:
    there is none.
    """
    # The others cannot be replied to.
    messages = [one.message for one in current if not one.notice]
    addressed = [message for message in messages if is_addressed(message)] or messages
    return addressed[-1].id if addressed else None


def render_lines(
    lines: Sequence[RenderedMessage], *, omitted: int, plain: bool, budget: float = math.inf
) -> RenderedInput:
    """Choose the lines that fit, and render them with their images, each once.

    `budget`: tokens for these lines and the history in view. `omitted`: unread entries that are not
    among `lines`.
    """
    texts = [render_line(one.line, plain=plain) for one in lines]
    sizes = [
        estimate_tokens(text) + (estimate_media_tokens(one.images) if one.images else 0)
        for one, text in zip(lines, texts, strict=True)
    ]
    chosen, more = tuple(range(len(lines))), False
    if sum(sizes) > budget * view.UNREAD_SHARE:
        chosen, more = view.choose_unread(sizes, [one.line.is_addressed for one in lines], budget)
    omitted += len(lines) - len(chosen)
    older = [f"({omitted} earlier lines are not shown)"] if omitted else []
    shown = [lines[index] for index in chosen]
    return RenderedInput(
        text="\n".join([*older, *[texts[index] for index in chosen]]),
        covers=tuple([one.seq for one in shown]),
        senders=tuple([one.sender for one in shown]),
        media=tuple([ref for one in shown for ref in one.images]),
        has_more=more,
    )


def count_turns_over_image_limit(history: HistoryView, rendered: RenderedInput) -> int:
    """Return how many of the oldest turns must leave to keep within the images that one request
    takes.
    """
    if not any(turn.record.media for turn in history.turns):
        return 0
    bytes_left = MAX_IMAGES_BYTES - sum(ref.size_bytes for ref in rendered.media)
    return max(
        view.fold_start(
            [len(turn.record.media) for turn in history.turns], MAX_IMAGES - len(rendered.media)
        ),
        view.fold_start(
            [sum(ref.size_bytes for ref in turn.record.media) for turn in history.turns], bytes_left
        ),
    )


def render_system_event(event: SystemEvent, post: str = "") -> NoticePieces:
    """Return the notice of an event. `post`: text of the own post that a reaction or a delivery
    report refers to.
    """
    match event:
        case Alarm():
            attended = event.attended and _with_reason(ATTENDED_NOTICE, event.text)
            return attended or _render_reminder(event)
        case TaskFinished():
            came = "ended" if event.ok else "failed"
            return (("name", event.what), *_with_reason(f" {came}", event.text))
        case ReactionChanged():
            reaction: NoticePieces = (
                ("name", event.sender.name),
                ("own", " reacted with "),
                ("name", event.reaction),
            )
            return (*reaction, *_with_reason(" to your message", post[:POST_SNIPPET_CHARS]))
        case DeliveryReport():
            which: NoticePieces = (
                (("quoted", post[:POST_SNIPPET_CHARS]), ("own", " ")) if post.strip() else ()
            )
            known = "could not be delivered" if event.state == "failed" else DELIVERY_DOUBT
            return (("own", "your message "), *which, *_with_reason(known, event.reason))
        case PlaceRenamed():
            return _render_rename(event)
        case MembershipChanged():
            what = "the name of this place" if event.change == "title" else "the topic"
            own = f" changed {what} to" if event.text else f" removed {what}"
            return (("name", event.sender.name), *_with_reason(own, event.text or ""))
        case Command():
            return (
                ("name", event.sender.name),
                *_with_reason(" opened this chat through a link with the word", event.args),
            )
        case ConnectionChanged():
            return (
                ("name", event.channel),
                *_with_reason(" is up" if event.up else " is down", event.reason),
            )


def _quote_target(one: CurrentMessage, target: _ReplyTarget) -> tuple[str, ...]:
    """Return what the line does not show of the message that an addressed one replies to, or where
    it is found.
    """
    if len(target.text) <= REPLY_SNIPPET_CHARS or not is_addressed(one.message):
        return ()
    if target.seq is not None:
        return (f'(the whole message replied to: fetch_evidence("m{target.seq}"))',)
    if target.name == "you":
        return ()
    text = target.text[:MAX_QUOTED_CHARS]
    fenced = fence_text(text, about="the message replied to", key=f"{one.seq} {one.message.id}")
    return (f"(the message replied to:)\n{fenced}\n",)


def event_as_message(event: SystemEvent | MessageEdited) -> Message:
    """Return a system event as a message without sender and text."""
    return Message(
        id=MessageId(event.id),
        at=event.at or Address(channel=INNER_CHANNEL, room=RoomId("nowhere")),
        sender=NOBODY,
        text="",
        sent=event.sent,
        kind="mention" if is_addressed(event) else "room",
    )


def _render_rename(event: PlaceRenamed) -> NoticePieces:
    parts: NoticePieces = ()
    for one in event.changed:
        name = getattr(event.names, one)
        words: NoticePieces = (
            (("own", f"{_RENAME_TEXTS[one]} "), ("quoted", name))
            if name
            else (("own", f"the {one} is gone"),)
        )
        parts = (*parts, ("own", "; "), *words) if parts else words
    return parts


def _render_reminder(alarm: Alarm) -> NoticePieces:
    by: NoticePieces = (("name", alarm.asked_by),)
    if alarm.intended:
        parts: NoticePieces = (("own", f"do now what you intended as {alarm.reminder}"),)
        parts = (*parts, ("own", ", asked for by "), *by) if alarm.asked_by else parts
    elif alarm.asked_by:
        parts = (("own", "reminder that "), *by, ("own", " asked for"))
    else:
        parts = (("own", "your reminder"),)
    due = f", due {_format_time(alarm.due, alarm.sent)}" if alarm.due is not None else ""
    missed = f", missed {alarm.missed} times before" if alarm.missed > 1 else ", missed once before"
    again = ""
    if alarm.next is not None and not alarm.source:
        again = f", again {_format_time(alarm.next, alarm.sent)}"
    return (*parts, *_with_reason(f"{due}{missed if alarm.missed else ''}{again}", alarm.text))


def _with_reason(own: str, words: str) -> NoticePieces:
    return (("own", f"{own}: "), ("quoted", words)) if words.strip() else (("own", own),)


def _format_time(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


TURN_RUNNING: Final = N_("I am just answering here. Send the command again when I have finished.")
LOCK_TIMEOUT_S: Final = 0.1
"""Time to acquire a lock: a free one is acquired at once, unless an earlier waiter has not taken it
yet."""


class ConversationLocks:
    """Locks of conversations: one turn at a time in each, also for turns from elsewhere."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[ConversationId, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, conversation: ConversationId) -> asyncio.Lock:
        """Return the lock of a conversation, which is held while a turn runs there."""
        lock = self._locks.get(conversation)
        if lock is None:
            self._locks[conversation] = lock = asyncio.Lock()
        return lock

    async def acquire(
        self, conversation: ConversationId, wait_s: float
    ) -> Callable[[], None] | None:
        """Acquire the lock of a conversation. Return what releases it. None: it is held for longer
        than `wait_s`.
        """
        lock = self.lock_for(conversation)
        try:
            async with asyncio.timeout(wait_s):
                await lock.acquire()
        except TimeoutError:
            return None
        return lock.release

    def is_busy(self, conversation: ConversationId) -> bool:
        """Return True if a turn runs there."""
        lock = self._locks.get(conversation)
        return lock is not None and lock.locked()


async def _find_impersonations(
    store: StoreReader, messages: Sequence[tuple[Seq, Message, Role]]
) -> dict[MessageId, NameWarning]:
    """Return warnings about senders in a room whose names can be mistaken for somebody else's, by
    message id.

    `messages`: oldest first, all of one place, with the roles of their senders. None for direct
    messages. Owners and admins, whose
    role is shown beside the name, are only told apart from people of the same name.
    """
    messages = [one for one in messages if one[1].kind != "direct"]
    if not messages:
        return {}
    first, message, _role = messages[0]
    before = await store.newest_senders(message.at.conversation, before=first, most=50)
    senders = [*before, *[one.sender for _, one, _ in messages]]
    others = {(one.id, one.name, one.verified): one for one in senders}.values()
    found = dict[MessageId, NameWarning]()
    for _seq, message, role in messages:
        doubted = check_name(message.sender, others)
        if doubted is not None and (role not in ADMIN_ROLES or doubted.reason == "same"):
            found[message.id] = doubted
    return found
