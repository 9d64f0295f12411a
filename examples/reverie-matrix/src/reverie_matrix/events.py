"""Events of rooms as the gateway's notifications. Pure.

The homeserver vouches for the id of a sender. All else in an event is chosen by people, or by their
servers: a value of another type counts as missing.
https://spec.matrix.org/latest/client-server-api/#instant-messaging
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from nio import MatrixRoom

from reverie.platforms import (
    MAX_QUOTED_CHARS,
    Address,
    Attachment,
    ChannelName,
    EventId,
    Json,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Notification,
    QuotedMessage,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
    clean_name,
    get_bool,
    get_int,
    get_object,
    get_raw_str,
    get_str,
    single_line,
)
from reverie_matrix.html import to_markdown

MAX_ID_BYTES: Final = 255
"""https://spec.matrix.org/latest/appendices/#user-identifiers: the same for rooms and events."""
_TEXT_CHARS: Final = 1_000
_FORMS: Final[dict[str, Literal["image", "audio", "video", "file"]]] = {
    "m.image": "image",
    "m.audio": "audio",
    "m.video": "video",
    "m.file": "file",
}
_VOICE: Final = ("org.matrix.msc3245.voice", "m.voice")
_ADMIN_LEVEL, _MODERATOR_LEVEL = 100, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixEvent:
    """An event of a room, as far as this adapter reads it."""

    id: str
    type: str
    sender: str
    sent: datetime
    content: Json
    state_key: str | None = None
    """The person or thing that a state event is about. None: it is no state event."""
    previous: Json
    """Content of the state event that this one takes the place of."""
    is_redacted: bool = False
    thread: str = ""
    """First message of its thread; empty: none."""
    relation: Literal["reply", "edit", "reaction", "redaction", ""] = ""
    target: str = ""
    """Id of the event that it replies to, edits, reacts to or redacts; empty: none."""

    @property
    def is_message(self) -> bool:
        return self.type in ("m.room.message", "m.sticker") and not self.is_redacted


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A room as it is now."""

    channel: ChannelName
    room: MatrixRoom
    direct: bool
    """True: a chat of the bot with one person."""

    @property
    def own_id(self) -> str:
        return str(self.room.own_user_id)

    @property
    def own_name(self) -> str:
        """The bot's display name there."""
        return self.sender(self.own_id).name

    def address(self, thread: str = "") -> Address:
        room = RoomId(self.room.room_id)
        return Address(channel=self.channel, room=room, thread=ThreadId(thread) if thread else None)

    def sender(self, user: str, *, is_bot: bool = False) -> Sender:
        """Return somebody as they are called there, whether they are there or not."""
        found = self.room.users.get(user)
        level = self.room.power_levels.get_user_level(user)
        rank = "admin" if level >= _ADMIN_LEVEL else "moderator"
        return Sender(
            id=SenderId(user),
            name=display_name(user, found.display_name if found else None),
            is_bot=is_bot,
            verified=True,
            ranks=(rank,) if level >= _MODERATOR_LEVEL else (),
        )


def display_name(user: str, chosen: str | None) -> str:
    """Return the name of a person: the one that they chose, else the first part of their id."""
    return clean_name(chosen or "") or clean_name(user[1:].partition(":")[0]) or user


def is_id(text: str, sigil: str) -> bool:
    """Return whether `text` can be the id of an event (`$`) or room (`!`)."""
    return (
        text[:1] == sigil
        and text.isprintable()
        and " " not in text
        and len(text.encode(errors="replace")) <= MAX_ID_BYTES
    )


def parse_event(source: object, now: datetime) -> MatrixEvent | None:
    """Return an event of a room; None: it is none. Its time is not after `now`."""
    event_id, sender = get_raw_str(source, "event_id"), get_raw_str(source, "sender")
    kind = get_raw_str(source, "type")
    if not is_id(event_id, "$") or not is_id(sender, "@") or not kind:
        return None
    content, unsigned = get_object(source, "content"), get_object(source, "unsigned")
    relates = get_object(content, "m.relates_to")
    target, type_of = get_raw_str(relates, "event_id"), get_raw_str(relates, "rel_type")
    replied = get_raw_str(get_object(relates, "m.in_reply_to"), "event_id")
    thread = target if type_of == "m.thread" else ""
    relation: Literal["reply", "edit", "reaction", "redaction", ""] = ""
    if kind == "m.room.redaction":
        relation, target = (
            "redaction",
            get_raw_str(source, "redacts") or get_raw_str(content, "redacts"),
        )
    elif kind == "m.reaction" and type_of == "m.annotation":
        relation = "reaction"
    elif type_of == "m.replace":
        relation = "edit"
    elif replied and not (thread and get_bool(relates, "is_falling_back")):
        relation, target = "reply", replied
    state_key = source.get("state_key") if isinstance(source, dict) else None
    return MatrixEvent(
        id=event_id,
        type=kind,
        sender=sender,
        sent=_time(get_int(source, "origin_server_ts"), now),
        content=content,
        state_key=state_key if isinstance(state_key, str) else None,
        previous=get_object(unsigned, "prev_content"),
        is_redacted=bool(get_object(unsigned, "redacted_because")) or not content,
        thread=thread if is_id(thread, "$") else "",
        relation=relation if is_id(target, "$") else "",
        target=target if relation and is_id(target, "$") else "",
    )


def _time(milliseconds: int | None, now: datetime) -> datetime:
    try:
        return min(now, datetime.fromtimestamp((milliseconds or 0) / 1000, UTC))
    except (OverflowError, OSError, ValueError):
        return now


def read_event(event: MatrixEvent, place: Place, target: MatrixEvent | None) -> Notification | None:
    """Return what the event tells; None: nothing. `target`: the event that it refers to, if it is
    known.
    """
    if event.sender == place.own_id:
        return None
    match event.relation, event.type:
        case "redaction", _:
            return _read_redaction(event, place, target)
        case "reaction", _:
            return _read_reaction(event, place, target, event, added=True)
        case "edit", "m.room.message":
            return _read_edit(event, place, target)
        case "edit", _:
            return None
        case _, "m.room.member":
            return _read_membership(event, place)
        case _, "m.room.topic" | "m.room.name" if event.state_key == "":
            topic = event.type == "m.room.topic"
            return MembershipChanged(
                id=EventId(event.id),
                at=place.address(),
                sender=place.sender(event.sender),
                change="topic" if topic else "title",
                sent=event.sent,
                text=single_line(
                    get_raw_str(event.content, "topic" if topic else "name"), _TEXT_CHARS
                ),
            )
        case _ if event.is_message and event.state_key is None:
            return _read_message(event, place, target)
        case _:
            return None


def message_text(event: MatrixEvent) -> str:
    """Return the text of a message, or the caption of a file, as Markdown."""
    return _text_of(event.content, event.type)


def _text_of(content: Json, kind: str) -> str:
    message_type = get_raw_str(content, "msgtype")
    body = get_str(content, "body")
    if kind == "m.sticker" or (message_type in _FORMS and not _has_caption(content)):
        return ""
    if message_type == "m.location":
        return f"{body} ({get_str(content, 'geo_uri')})"
    if get_raw_str(content, "format") == "org.matrix.custom.html":
        # It is what people are shown; `body` may say something else.
        body = to_markdown(get_raw_str(content, "formatted_body")) or body
    elif get_object(get_object(content, "m.relates_to"), "m.in_reply_to"):
        body = _without_fallback(body)
    return f"/me {body}" if message_type == "m.emote" else body


def _has_caption(content: Json) -> bool:
    """See https://spec.matrix.org/latest/client-server-api/#media-captions."""
    name = get_raw_str(content, "filename")
    return bool(name) and name != get_raw_str(content, "body")


def _without_fallback(body: str) -> str:
    """Return the text of a reply without the lines `> <@who> ...` that older clients put in
    front.
    """
    if not body.startswith("> <@"):
        return body
    lines = body.split("\n")
    first = next((at for at, line in enumerate(lines) if not line.startswith(">")), len(lines))
    return "\n".join(lines[first:]).lstrip("\n") or body


def read_attachments(event: MatrixEvent) -> tuple[Attachment, ...]:
    """Return the file of a message, if it has one."""
    form = (
        "sticker"
        if event.type == "m.sticker"
        else _FORMS.get(get_raw_str(event.content, "msgtype"))
    )
    uri = get_raw_str(event.content, "url")
    if form is None or not is_media_uri(uri):
        return ()
    info = get_object(event.content, "info")
    size, duration = get_int(info, "size"), get_int(info, "duration")
    name = clean_name(get_raw_str(event.content, "filename") or get_raw_str(event.content, "body"))
    return (
        Attachment(
            id=uri,
            form=form,
            name=name or None,
            content_type=single_line(get_raw_str(info, "mimetype"), 128) or None,
            size_bytes=size if size is not None and size >= 0 else None,
            duration_s=duration / 1000 if duration is not None and duration >= 0 else None,
            recorded=any(voice in event.content for voice in _VOICE),
        ),
    )


def is_media_uri(uri: str) -> bool:
    """Return whether it is an address of https://spec.matrix.org/latest/client-server-api/#matrix-content-mxc-uris."""
    return re.fullmatch(r"mxc://[A-Za-z0-9.:\[\]_-]{1,255}/[A-Za-z0-9_-]{1,255}", uri) is not None


def _read_message(
    event: MatrixEvent, place: Place, target: MatrixEvent | None
) -> Notification | None:
    text, attachments = message_text(event), read_attachments(event)
    if not text.strip() and not attachments:
        return None
    replied = target if event.relation == "reply" else None
    is_ours = replied is not None and replied.sender == place.own_id
    kind: Literal["direct", "mention", "reply", "room"] = (
        "direct"
        if place.direct
        else "reply"
        if is_ours
        else "mention"
        if _mentions(event, place, text)
        else "room"
    )
    return Message(
        id=MessageId(event.id),
        at=place.address(event.thread),
        sender=place.sender(event.sender, is_bot=_is_notice(event)),
        text=text,
        sent=event.sent,
        kind=kind,
        reply_to=MessageId(event.target) if event.relation == "reply" else None,
        attachments=attachments,
        quoted=_quote(event, place, replied) if kind != "room" else None,
    )


def _is_notice(event: MatrixEvent) -> bool:
    """Return whether a program wrote it, which must not be answered (`m.notice`)."""
    return get_raw_str(event.content, "msgtype") == "m.notice"


def _quote(event: MatrixEvent, place: Place, replied: MatrixEvent | None) -> QuotedMessage | None:
    if replied is None or not replied.is_message:
        return None
    is_known = replied.sender in (place.own_id, event.sender)
    return QuotedMessage(
        sender=place.sender(replied.sender),
        text="" if is_known else message_text(replied)[:MAX_QUOTED_CHARS],
        attachments=read_attachments(replied),
    )


def _mentions(event: MatrixEvent, place: Place, text: str) -> bool:
    """Return whether the message names the bot: by its id as clients do, or by its name."""
    users = get_object(event.content, "m.mentions").get("user_ids")
    if isinstance(users, list) and place.own_id in users:
        return True
    names = "|".join(map(re.escape, (place.own_id, place.own_name)))
    return re.search(rf"(?<!\w)(?:{names})(?!\w)", text, re.IGNORECASE) is not None


def _read_edit(event: MatrixEvent, place: Place, target: MatrixEvent | None) -> Notification | None:
    """See https://spec.matrix.org/latest/client-server-api/#validity-of-replacement-events."""
    if target is None or not target.is_message or target.sender != event.sender:
        return None
    text = _text_of(get_object(event.content, "m.new_content"), target.type)
    if not text.strip():
        return None
    return MessageEdited(
        id=EventId(event.id),
        at=place.address(target.thread),
        sender=place.sender(event.sender, is_bot=_is_notice(target)),
        message=MessageId(target.id),
        text=text,
        sent=event.sent,
        direct=place.direct,
    )


def reaction_key(event: MatrixEvent) -> str:
    """Return the emoji of a reaction; empty: it has none."""
    return single_line(get_raw_str(get_object(event.content, "m.relates_to"), "key"), 64)


def _read_reaction(
    reaction: MatrixEvent,
    place: Place,
    target: MatrixEvent | None,
    event: MatrixEvent,
    *,
    added: bool,
) -> Notification | None:
    """`event`: the one that adds or removes the reaction; `target`: what it is on."""
    key = reaction_key(reaction)
    if not key:
        return None
    return ReactionChanged(
        id=EventId(event.id),
        at=place.address(target.thread if target else ""),
        sender=place.sender(event.sender),
        message=MessageId(reaction.target),
        reaction=key,
        added=added,
        sent=event.sent,
        direct=place.direct,
    )


def _read_redaction(
    event: MatrixEvent, place: Place, target: MatrixEvent | None
) -> Notification | None:
    """Return what was taken back. `target` as it was before, if it is known."""
    if target is None or target.state_key is not None:
        return None
    if target.relation == "reaction":
        return _read_reaction(target, place, None, event, added=False)
    if target.type not in ("m.room.message", "m.sticker") or target.relation == "edit":
        return None
    return MessageDeleted(
        id=EventId(event.id),
        at=place.address(target.thread),
        message=MessageId(target.id),
        sent=event.sent,
        sender=place.sender(event.sender),
        direct=place.direct,
    )


def _read_membership(event: MatrixEvent, place: Place) -> Notification | None:
    """Return who came or went. Our own joining is left out."""
    now, before = (
        get_raw_str(event.content, "membership"),
        get_raw_str(event.previous, "membership"),
    )
    user = event.state_key or ""
    if not is_id(user, "@"):
        return None
    by_themselves = user == event.sender
    name = display_name(user, get_str(event.content, "displayname"))
    told = MembershipChanged(
        id=EventId(event.id),
        at=place.address(),
        sender=place.sender(event.sender),
        change="join",
        sent=event.sent,
        text=single_line(get_raw_str(event.content, "reason"), _TEXT_CHARS) or None,
    )
    match now, before:
        case "join", "join":
            old = display_name(user, get_str(event.previous, "displayname"))
            renamed = replace(told.sender, name=old)
            return (
                replace(told, change="nick", sender=renamed, subject=name) if old != name else None
            )
        case "join", _:
            return told
        case "leave", "join" if by_themselves:
            return replace(told, change="part")
        case "leave" | "ban", "join":
            gone = display_name(user, get_str(event.previous, "displayname"))
            return replace(told, change="kick", subject=gone)
        case _:
            return None
