"""What a turn hears: unread messages as they read now, with what they reply to and what came beside them.

What happened and is no message, as the model is told of it: one line in the frame's own words. Pure.

What of the past and of the new lines fits a request. Pure.

What nobody said, put as something that is told in its place among what people said. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol

from agent import view
from agent.brief import PromptLine
from agent.models.base import MAX_IMAGES, MAX_IMAGES_BYTES
from agent.prompt import render_line, render_prompt_lines
from gateway.access.policy import decide
from gateway.access.roster import ImpersonationCheck
from gateway.context.history import HistoryView, label_of_turn
from gateway.core.events import (
    Address,
    Alarm,
    ConnectionChanged,
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
from gateway.core.facts import INNER_CHANNEL, Fact, MediaRef, PlatformAction, PostQueued, Seq, TurnRecord, address_of
from gateway.core.identity import AccessPolicy, role_of
from gateway.core.permissions import proven_role
from gateway.core.redaction import Redact, Redactor
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel
from gateway.store import StoreReader, UnreadEntries
from gateway.stream.media import DescribedAttachment

SystemEvent = Alarm | TaskFinished | ReactionChanged | DeliveryReport | ConnectionChanged | PlaceRenamed
NoticePieces = tuple[tuple[Literal["own", "name", "quoted"], str], ...]
"""As `agent.brief.PromptLine.happened`."""

SYSTEM_EVENTS: Final = (Alarm, TaskFinished, ReactionChanged, DeliveryReport, ConnectionChanged, PlaceRenamed)
DELIVERY_DOUBT: Final = (
    'may or may not have been delivered (whoever waited for it may say "again" to see it once more; '
    "do not repeat it unasked)"
)
POST_SNIPPET_CHARS: Final = 80
"""Of a post of ours: enough to know it again."""


def render_system_event(event: SystemEvent, post: str = "") -> NoticePieces:
    """The line. `post`: how the post of ours began that a reaction or a delivery is about."""
    match event:
        case Alarm():
            return _render_reminder(event)
        case TaskFinished():
            came = "ended" if event.ok else "failed"
            return (("name", event.what), *_with_reason(f" {came}", event.text))
        case ReactionChanged():
            reaction: NoticePieces = (("name", event.sender.name), ("own", " reacted with "), ("name", event.reaction))
            return (*reaction, *_with_reason(" to your message", post[:POST_SNIPPET_CHARS]))
        case DeliveryReport():
            which: NoticePieces = (("quoted", post[:POST_SNIPPET_CHARS]), ("own", " ")) if post.strip() else ()
            known = "could not be delivered" if event.state == "failed" else DELIVERY_DOUBT
            return (("own", "your message "), *which, *_with_reason(known, event.reason))
        case PlaceRenamed():
            return _render_rename(event)
        case ConnectionChanged():
            return (("name", event.channel), *_with_reason(" is up" if event.up else " is down", event.reason))


def wants_answer(fact: Fact) -> bool:
    """Whether it asks for an answer by itself: what only reports does not."""
    return not isinstance(fact, ReactionChanged | DeliveryReport | PlaceRenamed)


_RENAME_TEXTS: Final = {
    "room": "this room is now called",
    "server": "the server is now called",
    "thread": "this thread is now called",
    "topic": "the topic is now",
    "me": "you are now called",
}


def _render_rename(event: PlaceRenamed) -> NoticePieces:
    """What has another name now, in one sentence."""
    parts: NoticePieces = ()
    for one in event.changed:
        name = getattr(event.names, one)
        words: NoticePieces = (
            (("own", f"{_RENAME_TEXTS[one]} "), ("quoted", name)) if name else (("own", f"the {one} is gone"),)
        )
        parts = (*parts, ("own", "; "), *words) if parts else words
    return parts


def _render_reminder(alarm: Alarm) -> NoticePieces:
    whose: NoticePieces = (("own", "reminder that "), ("name", alarm.asked_by), ("own", " asked for"))
    parts: NoticePieces = whose if alarm.asked_by else (("own", "your reminder"),)
    due = f", due {_format_time(alarm.due, alarm.sent)}" if alarm.due is not None else ""
    missed = f", missed {alarm.missed} times before" if alarm.missed > 1 else ", missed once before"
    again = f", again {_format_time(alarm.next, alarm.sent)}" if alarm.next is not None else ""
    return (*parts, *_with_reason(f"{due}{missed if alarm.missed else ''}{again}", alarm.text))


def _with_reason(own: str, words: str) -> NoticePieces:
    return (("own", f"{own}: "), ("quoted", words)) if words.strip() else (("own", own),)


def _format_time(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


NOBODY = Sender(id=SenderId(""), name="")
NOWHERE = Address(channel=INNER_CHANNEL, room=RoomId("nowhere"))


def topic_change_as_message(change: MembershipChanged) -> Message:
    """A changed topic as something said in the room, so that it is told in its place."""
    return Message(
        id=MessageId(change.id),
        at=change.at,
        sender=change.sender,
        text=change.text or "",
        sent=change.sent,
        kind="room",
    )


def event_as_message(event: SystemEvent, *, addressed: bool) -> Message:
    """What nobody said, put as something that nobody said. `addressed`: it was said to the agent."""
    return Message(
        id=MessageId(event.id),
        at=address_of(event) or NOWHERE,
        sender=NOBODY,
        text="",
        sent=event.sent,
        kind="mention" if addressed else "room",
    )


MAX_CHANGES = 1_000
"""Edits and deletions looked at for one turn: more is a raid, and then the oldest texts stand."""
MAX_REPLIES = 20
"""Lines whose reply is looked up, each with a question to the store or two."""
MAX_REACTIONS = 20
"""Messages that were reacted to and are looked up, to tell ours from others. Reactions to older ones are not told."""
REPLY_SNIPPET_CHARS = 200
"""Of a message replied to, before the prompt shortens it further."""


class CurrentMessage(NamedTuple):
    """An unread message that has not been deleted."""

    seq: Seq
    message: Message
    """With its newest text. What is none is put as one that `NOBODY` said."""
    is_edited: bool
    is_topic_change: bool = False
    """It is no message, but a change of the topic, put as one."""
    is_title_change: bool = False
    """With `topic`: it was the name of the room or thread instead."""
    notice: NoticePieces = ()
    """It is no message, but something else that happened, put as one. Empty: it is one."""
    label: TrustLabel = TRUSTED_LABEL
    """Of what happened: who wrote words in it. A reminder's words are judged apart
    (`gateway.context.requesters.find_reminder_roles`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedMessage:
    """One unread message as the model is told of it."""

    seq: Seq
    sender: SenderId
    line: PromptLine
    images: tuple[MediaRef, ...] = ()
    label: TrustLabel = TRUSTED_LABEL
    """Of everybody whose words it holds: the sender, whoever is quoted or forwarded, whoever made what is attached."""


class AttachmentSource(Protocol):
    """What came beside the words: `gateway.stream.media.MediaStore` knows."""

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        """What to say and show of each message's attachments."""


class ConversationReader:
    """Reads what is needed to tell a turn what is new."""

    def __init__(
        self, store: StoreReader, access_policy: AccessPolicy, media: AttachmentSource, redact: Redact | None = None
    ) -> None:
        """`redact` is given all that people said before anything is cut. None: what knows no configuration."""
        self._store = store
        self._access = access_policy
        self._media = media
        self._redact = redact or Redactor()
        self._namesakes = ImpersonationCheck(store, access_policy)

    async def read_current(self, unread: UnreadEntries) -> tuple[CurrentMessage, ...]:
        """What is left of the unread messages, with their newest words. Oldest first."""
        said = await self._read_messages(unread)
        others = [
            CurrentMessage(
                stored.seq,
                self._redact_message(topic_change_as_message(stored.fact)),
                is_edited=False,
                is_topic_change=True,
                is_title_change=stored.fact.change == "title",
            )
            for stored in unread.messages
            if isinstance(stored.fact, MembershipChanged)
        ]
        others += await self._read_system_events(unread)
        return tuple(sorted((*said, *others), key=lambda one: one.seq)) if others else said

    async def _read_system_events(self, unread: UnreadEntries) -> list[CurrentMessage]:
        """What is no message. Of reactions and deliveries, those of what a turn said."""
        found = [(stored.seq, stored.fact) for stored in unread.messages if isinstance(stored.fact, SYSTEM_EVENTS)]
        said = await self._find_own_posts([fact for _, fact in found])
        return [
            CurrentMessage(
                seq,
                event_as_message(fact, addressed=is_addressed(fact)),
                is_edited=False,
                notice=self._render_system_event(fact, said),
                label=await self._system_event_label(fact, said),
            )
            for seq, fact in found
            if fact.id in said or not isinstance(fact, ReactionChanged | DeliveryReport)
        ]

    async def _system_event_label(self, event: SystemEvent, said: Mapping[EventId, Post]) -> TrustLabel:
        label = await self.label_of_post(said[event.id]) if event.id in said else TRUSTED_LABEL
        if isinstance(event, PlaceRenamed):  # who called it so is not told
            return label | TrustLabel(ANYBODY_ROLE)
        return label | self._role_label(event.at, event.sender) if isinstance(event, ReactionChanged) else label

    def _role_label(self, at: Address, sender: Sender) -> TrustLabel:
        return TrustLabel(proven_role(role_of(self._access, at, sender), verified=sender.verified))

    async def label_of_post(self, post: Post) -> TrustLabel:
        """Of a post of ours: all that its turn was shown. What no turn said (a command's answer) may quote anybody."""
        queued = await self._store.entry_by_key(f"post:{post.key}")
        cause = await self._store.entry(queued.cause) if queued is not None and queued.cause else None
        ended = cause.fact if cause is not None else None
        if isinstance(ended, PlatformAction):
            found = await self._store.entry_by_key(f"turn:{ended.turn}")
            ended = found.fact if found is not None else None
        return await label_of_turn(self._store, ended) if isinstance(ended, TurnRecord) else TrustLabel(ANYBODY_ROLE)

    async def _find_own_posts(self, events: Sequence[SystemEvent]) -> dict[EventId, Post]:
        """What of ours they are about, by their ids."""
        said, posts = dict[EventId, Post](), dict[MessageId, Post | None]()
        for event in reversed(events):
            if isinstance(event, ReactionChanged) and (event.message in posts or len(posts) < MAX_REACTIONS):
                if event.message not in posts:
                    posts[event.message] = await self._store.find_own_post(event.at.conversation, event.message)
                post = posts[event.message]
                if post is not None:
                    said[event.id] = post
            elif isinstance(event, DeliveryReport):
                queued = await self._store.entry_by_key(f"post:{event.post}")
                cause = await self._store.entry(queued.cause) if queued is not None and queued.cause else None
                # What the gateway itself answers to commands is not the agent's, which knows nothing of it.
                if queued and isinstance(queued.fact, PostQueued) and cause and cause.kind in ("turn_ended", "acted"):
                    said[event.id] = queued.fact.post
        return said

    async def _read_messages(self, unread: UnreadEntries) -> tuple[CurrentMessage, ...]:
        said = [(stored.seq, stored.fact) for stored in unread.messages if isinstance(stored.fact, Message)]
        if not (unread.has_changes and said):
            return tuple(CurrentMessage(seq, self._redact_message(message), is_edited=False) for seq, message in said)
        place = said[0][1].at.conversation
        changes = [
            (stored.seq, stored.fact)
            for stored in await self._store.message_changes(place, after=said[0][0], newest=MAX_CHANGES)
        ]
        gone = {change.message: seq for seq, change in changes if isinstance(change, MessageDeleted)}
        edits = [change for _, change in changes if isinstance(change, MessageEdited)]
        left = []
        for seq, message in said:
            if gone.get(message.id, Seq(0)) > seq:
                continue
            newest = next((edit for edit in reversed(edits) if self._is_valid_edit(edit, message)), None)
            text, carried = (message if newest is None else newest).text, message.carried
            carried = carried if newest is None else newest.carried or carried
            now = replace(message, text=text, carried=carried)
            left.append(CurrentMessage(seq, self._redact_message(now), is_edited=text != message.text))
        return tuple(left)

    def _redact_message(self, message: Message) -> Message:
        text = self._redact(message.text)
        return message if text == message.text else replace(message, text=text)

    def _render_system_event(self, event: SystemEvent, said: Mapping[EventId, Post]) -> NoticePieces:
        post = self._redact(said[event.id].text if event.id in said else "")
        return tuple((kind, self._redact(text)) for kind, text in render_system_event(event, post))

    def _is_valid_edit(self, edit: MessageEdited, message: Message) -> bool:
        """Only who wrote it can have changed it, and only while they may be heard."""
        same = edit.message == message.id and edit.sender.id == message.sender.id
        return same and role_of(self._access, edit.at, edit.sender) != "blocked"

    async def is_answer_owed(self, unread: UnreadEntries, standing: Sequence[CurrentMessage]) -> bool:
        """Whether anybody still wants an answer: not if all that did was deleted, and not what only reports."""
        asking = {stored.seq for stored in unread.messages if wants_answer(stored.fact)}
        left = [one for one in standing if one.seq in asking]
        if not asking:
            return False  # what asks is told first, so there is none among what was left out
        if unread.omitted or len(left) == len(asking) or any(is_addressed(one.message) for one in left):
            return True
        judgements = [await self._store.find_judgement(one.seq) for one in left]
        return any(judged is not None and judged.fate == "due" for judged in judgements)

    async def render(self, standing: Sequence[CurrentMessage], *, sees: bool) -> tuple[RenderedMessage, ...]:
        """The lines, and the images that a model which sees is shown with them."""
        messages = [(one.seq, one.message) for one in standing]
        beside = {}
        if any(message.attachments for _, message in messages):
            beside = await self._media.describe_attachments(messages, sees=sees)
        answers = await self._find_reply_targets([one.message for one in standing])
        doubts = await self._namesakes([(o.seq, o.message) for o in standing if not o.notice])
        return tuple(
            RenderedMessage(
                seq=one.seq,
                sender=one.message.sender.id,
                line=replace(
                    self._build_line(
                        one, answers.get(one.message.id), tuple(a.description for a in beside.get(one.seq, ()))
                    ),
                    lookalike=doubts.get(one.message.id),
                ),
                images=tuple(a.image for a in beside.get(one.seq, ()) if a.image is not None),
                label=self._message_label(one, answers.get(one.message.id)) | _images_label(beside.get(one.seq, ())),
            )
            for one in standing
        )

    def _message_label(self, one: CurrentMessage, answers: "_ReplyTarget | None") -> TrustLabel:
        if one.notice:
            return one.label
        quotes = answers is not None and bool(answers.text) and _is_quotation(one.message.carried)
        label = self._text_label(replace(one.message, carried="") if quotes else one.message)
        if any(not kept.recorded and kept.form not in ("sticker", "location") for kept in one.message.attachments):
            label |= TrustLabel(foreign="an attachment")
        return label if answers is None else label | answers.label

    def _text_label(self, message: Message) -> TrustLabel:
        """Of the text alone."""
        label = self._role_label(message.at, message.sender)
        return label | TrustLabel(ANYBODY_ROLE, "a forwarded or quoted message") if message.carried else label

    def _build_line(self, one: CurrentMessage, answers: "_ReplyTarget | None", attached: tuple[str, ...]) -> PromptLine:
        message = one.message
        if one.notice:
            said = is_addressed(message)
            return PromptLine(sender="", role="", sent=message.sent, text="", is_addressed=said, event=one.notice)
        return PromptLine(
            sender=message.sender.name,
            role=role_of(self._access, message.at, message.sender),
            is_bot=message.sender.is_bot,
            sent=message.sent,
            text=message.text,
            is_addressed=is_addressed(message),
            reply_to=(answers.name, answers.text) if answers is not None else None,
            is_edited=one.is_edited,
            attachments=tuple(map(self._redact, attached)),
            is_topic_change=one.is_topic_change,
            is_title_change=one.is_title_change,
        )

    async def _find_reply_targets(self, messages: Sequence[Message]) -> "dict[MessageId, _ReplyTarget]":
        """Whom each of these replies to, and how that began, as far as it is known and may be told."""
        near = {message.id: message for message in messages}
        found = dict[MessageId, _ReplyTarget]()
        for message in [message for message in messages if message.reply_to is not None][-MAX_REPLIES:]:
            answered = await self._find_reply_target(message, near)
            if answered is not None:
                found[message.id] = answered
        return found

    async def _find_reply_target(self, message: Message, near: dict[MessageId, Message]) -> "_ReplyTarget | None":
        assert message.reply_to is not None
        place = message.at.conversation
        earlier = near.get(message.reply_to)
        if earlier is None and message.kind != "reply":
            stored = await self._store.entry_by_key(f"message:{place}:{message.reply_to}")
            earlier = stored.fact if stored is not None and isinstance(stored.fact, Message) else None
        if earlier is not None:
            heard = decide(self._access, earlier).allowed  # a reply is no way in for those who are refused
            text = self._redact(earlier.text)[:REPLY_SNIPPET_CHARS]
            return _ReplyTarget(earlier.sender.name, text, self._text_label(earlier)) if heard else None
        post = await self._store.find_own_post(place, message.reply_to)
        if post is not None:
            return _ReplyTarget("you", self._redact(post.text)[:REPLY_SNIPPET_CHARS], await self.label_of_post(post))
        return _ReplyTarget("you", "", TRUSTED_LABEL) if message.kind == "reply" else None


class _ReplyTarget(NamedTuple):
    """What a message replies to: whom, the beginning of what they said, and who wrote that."""

    name: str
    text: str
    label: TrustLabel


def _is_quotation(carried: str) -> bool:
    """It is the message replied to, or a part of it: whose words that are is known."""
    return bool(carried) and all(line.startswith(">") for line in carried.splitlines())


def _images_label(attached: Sequence[DescribedAttachment]) -> TrustLabel:
    """Of pictures: whoever drew them may have written in them."""
    return TrustLabel(foreign="an attachment") if any(one.image is not None for one in attached) else TRUSTED_LABEL


def is_addressed(fact: Fact) -> bool:
    """Whether it was said to the agent, and not only within its hearing. A reminder is."""
    return isinstance(fact, Alarm) or (isinstance(fact, Message) and fact.kind != "room")


def find_reply_to(standing: Sequence[CurrentMessage]) -> MessageId | None:
    """What a reply to these is a reply to: the newest that was said to the agent; the newest of all if none was."""
    messages = [one.message for one in standing if not (one.is_topic_change or one.notice)]  # nobody can reply to those
    said = [message for message in messages if is_addressed(message)] or messages
    return said[-1].id if said else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedInput:
    """What the model is told as new."""

    text: str = ""
    covers: tuple[Seq, ...] = ()
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`."""
    media: tuple[MediaRef, ...] = ()
    has_more: bool = False
    """What was said to the agent behind the last of `covers` did not fit: it is for another turn."""


def fit_lines(lines: Sequence[RenderedMessage], *, omitted: int, budget: int, plain: bool) -> RenderedInput:
    """What is told of the new lines.

    `budget`: tokens for them and what is in view. `omitted`: unread lines that are not among `lines`.
    """
    chosen, more = view.choose_unread(
        [_estimate_line_tokens(one) for one in lines], [one.line.is_addressed for one in lines], budget
    )
    left_out = len(lines) - len(chosen)
    return replace(
        render_lines([lines[index] for index in chosen], omitted=omitted + left_out, plain=plain), has_more=more
    )


def count_turns_over_image_limit(seen: HistoryView, told: RenderedInput) -> int:
    """How many turns must leave, or there are more images than one request takes."""
    if not any(turn.media for turn in seen.turns):
        return 0
    bytes_left = MAX_IMAGES_BYTES - sum(ref.size_bytes for ref in told.media)
    return max(
        view.fold_start([len(turn.media) for turn in seen.turns], MAX_IMAGES - len(told.media)),
        view.fold_start([sum(ref.size_bytes for ref in turn.media) for turn in seen.turns], bytes_left),
    )


def render_lines(lines: Sequence[RenderedMessage], *, omitted: int, plain: bool) -> RenderedInput:
    """All of these lines, with their images."""
    return RenderedInput(
        text=render_prompt_lines([one.line for one in lines], omitted=omitted, plain=plain),
        covers=tuple(one.seq for one in lines),
        senders=tuple(one.sender for one in lines),
        media=tuple(ref for one in lines for ref in one.images),
    )


def _estimate_line_tokens(one: RenderedMessage) -> int:
    return view.estimate_tokens(render_line(one.line)) + view.estimate_image_tokens(one.images)
