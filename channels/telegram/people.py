"""People and places of Telegram updates: senders, attachments, other content, and who runs which group. Pure.

Telegram verifies user ids. A message in the name of a chat (a channel, or an anonymous administrator) has the chat as
its sender: that is stable, but the person is unknown, so it is never verified. A message that a business bot sends in
its owner's name is the bot's.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from channels.telegram.ids import TelegramCursor, format_message_id
from channels.text import (
    Json,
    clean_name,
    get_datetime,
    get_int,
    get_number,
    get_object,
    get_objects,
    get_raw_str,
    get_str,
    single_line,
)
from gateway.core.events import Address, Attachment, ChannelName, MessageId, RoomId, Sender, SenderId, ThreadId
from gateway.core.lru import LruDict

_Form = Literal["image", "audio", "video", "file", "sticker", "location"]
_FILE_KINDS: dict[str, tuple[_Form, str | None]] = {
    "animation": ("video", "video/mp4"),
    "video": ("video", None),
    "video_note": ("video", "video/mp4"),
    "audio": ("audio", None),
    "voice": ("audio", "audio/ogg"),
    "document": ("file", None),
}
"""Key -> form, and the content type if Telegram fixes it without sending it."""
_RECORDED_KINDS = ("voice", "video_note")
_FORMS_BY_TYPE: dict[str, _Form] = {"image": "image", "audio": "audio", "video": "video"}
_MAX_POLL_OPTIONS, _TEXT_CHARS = 12, 300


def parse_attachments(message: Json) -> tuple[Attachment, ...]:
    """Return files in the order of `_FILE_KINDS`; a photo only in its largest size."""
    found = []
    sizes = [size for size in get_objects(message, "photo") if get_raw_str(size, "file_id")]
    if sizes:
        largest = max(sizes, key=lambda size: (get_int(size, "width") or 0) * (get_int(size, "height") or 0))
        found.append(_build_attachment(largest, "image", "image/jpeg"))
    for key, (form, default_type) in _FILE_KINDS.items():
        file = get_object(message, key)
        # An animation is also sent as a document, for old clients.
        if get_raw_str(file, "file_id") and not (key == "document" and "animation" in message):
            content_type = get_str(file, "mime_type") or default_type
            kind = _FORMS_BY_TYPE.get((content_type or "").partition("/")[0], form) if key == "document" else form
            found.append(_build_attachment(file, kind, content_type, recorded=key in _RECORDED_KINDS))
    sticker = get_object(message, "sticker")
    if get_raw_str(sticker, "file_id"):
        sticker_type = "video/webm" if sticker.get("is_video") is True else "image/webp"
        found.append(
            _build_attachment(sticker, "sticker", None if sticker.get("is_animated") is True else sticker_type)
        )
    return tuple(found)


def _build_attachment(file: Json, form: _Form, content_type: str | None, *, recorded: bool = False) -> Attachment:
    size = get_number(file, "file_size")
    return Attachment(
        id=get_str(file, "file_id"),
        form=form,
        name=clean_name(get_raw_str(file, "file_name")) or None,
        content_type=content_type,
        size_bytes=int(size) if size is not None else None,
        duration_s=get_number(file, "duration"),
        recorded=recorded,
    )


def describe_content(message: Json) -> str:
    """Return a line for content that is neither text nor a file; empty if there is none."""
    if venue := get_object(message, "venue"):
        where = _format_position(get_object(venue, "location"))
        return (
            f"[venue: {clean_name(get_raw_str(venue, 'title'))}, {clean_name(get_raw_str(venue, 'address'))} ({where})]"
        )
    if location := get_object(message, "location"):
        return f"[location: {_format_position(location)}]"
    if contact := get_object(message, "contact"):
        return f"[contact: {full_name(contact)}, {clean_name(get_raw_str(contact, 'phone_number'))}]"
    if poll := get_object(message, "poll"):
        options = " | ".join(
            clean_name(get_raw_str(option, "text")) for option in get_objects(poll, "options")[:_MAX_POLL_OPTIONS]
        )
        return f"[poll: {single_line(get_raw_str(poll, 'question'), _TEXT_CHARS)}: {options}]"
    if dice := get_object(message, "dice"):
        return f"[dice: {clean_name(get_raw_str(dice, 'emoji'))} {get_int(dice, 'value') or 0}]"
    if sticker := get_object(message, "sticker"):
        parts = (clean_name(get_raw_str(sticker, "emoji")), clean_name(get_raw_str(sticker, "set_name")))
        return f"[{' '.join(filter(None, ['sticker:', *parts]))}]"
    if game := get_object(message, "game"):
        return f"[game: {clean_name(get_raw_str(game, 'title'))}]"
    if checklist := get_object(message, "checklist"):
        tasks = " | ".join(
            clean_name(get_raw_str(task, "text")) for task in get_objects(checklist, "tasks")[:_MAX_POLL_OPTIONS]
        )
        return f"[checklist: {single_line(get_raw_str(checklist, 'title'), _TEXT_CHARS)}: {tasks}]"
    return "[story]" if get_object(message, "story") else ""


def _format_position(location: Json) -> str:
    def degrees(key: str) -> str:
        value = location.get(key)
        fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 180  # noqa: PLR2004
        return f"{value:.6f}".rstrip("0").rstrip(".") if fine else "?"

    return f"{degrees('latitude')}, {degrees('longitude')}"


def full_name(person: Json) -> str:
    """Return first and last name, else the title or the user name."""
    whole_name = " ".join(
        filter(None, [clean_name(get_raw_str(person, "first_name")), clean_name(get_raw_str(person, "last_name"))])
    )
    return whole_name or clean_name(get_raw_str(person, "title")) or clean_name(get_raw_str(person, "username"))


RANKS: Final = ("creator", "administrator")
"""core.telegram.org/bots/api#chatmember."""
MEMBER_UPDATE: Final = "chat_member"
"""Update about changed members, sent where the bot is an administrator. It must be requested by name."""
ANY_CHAT: Final = "*"
_MAX_AGE: Final = timedelta(minutes=10)
_RETRY_AFTER: Final = timedelta(minutes=1)
"""Delay after an unanswered request."""
_MAX_CONCURRENT: Final = 20
_MAX_GROUPS: Final = 1_000
_GROUP_TYPES: Final = frozenset({"group", "supergroup"})


@dataclass(slots=True)
class _GroupRanks:
    asked_at: datetime
    is_answered: bool = False
    ranks: dict[int, str] = field(default_factory=dict)


class TelegramRanks:
    """Administrators of groups, for one account. Chats have their current ids.

    Messages do not contain ranks, so they are requested, and only for groups where the operator uses them. Old answers
    are not trusted: then nobody has a rank.
    """

    def __init__(self, rooms: AbstractSet[str]) -> None:
        """Track the chats in `rooms`; `*`: all. Empty: none, so nothing is ever requested."""
        self._rooms = rooms
        self._groups = LruDict[str, _GroupRanks](_MAX_GROUPS)

    @property
    def is_enabled(self) -> bool:
        """True if any chat is tracked."""
        return bool(self._rooms)

    def chats_to_ask(self, updates: Iterable[Json], now: datetime) -> list[str]:
        """Return the chats to request before these updates are read."""
        if not self._rooms:
            return []
        chats = dict.fromkeys(chat for update in updates if (chat := _group_of(update)) and self._is_relevant(chat))
        return [chat for chat in chats if self._is_due(chat, now)][:_MAX_CONCURRENT]

    def record_answer(self, chat: str, members: Sequence[Json] | None, now: datetime) -> None:
        """Record the answer to a request of `now`; None: there was none."""
        found = _GroupRanks(asked_at=now, is_answered=members is not None)
        for member in members or ():
            user, status = get_int(get_object(member, "user"), "id"), get_raw_str(member, "status")
            if user is not None and status in RANKS:
                found.ranks[user] = status
        self._groups.put(chat, found)

    def apply_update(self, update: Json) -> None:
        """Apply one update: a member became an administrator, or is none any more."""
        change = get_object(update, MEMBER_UPDATE)
        member, when = get_object(change, "new_chat_member"), get_datetime(change, "date")
        group = self._groups.get(str(get_int(get_object(change, "chat"), "id")))
        user, status = get_int(get_object(member, "user"), "id"), get_raw_str(member, "status")
        if group is None or user is None:
            return
        if status not in RANKS:
            group.ranks.pop(user, None)
        elif when is not None and when >= group.asked_at:  # an older change is already part of the answer
            group.ranks[user] = status

    def ranks_of(self, chat: str, user: str, now: datetime) -> tuple[str, ...]:
        """Return the user's rank there: one or none."""
        group = self._groups.get(chat)
        if group is None or not group.is_answered or now - group.asked_at >= _MAX_AGE or not user.isdecimal():
            return ()
        rank = group.ranks.get(int(user))
        return (rank,) if rank else ()

    def _is_relevant(self, chat: str) -> bool:
        return ANY_CHAT in self._rooms or chat in self._rooms

    def _is_due(self, chat: str, now: datetime) -> bool:
        group = self._groups.get(chat)
        return group is None or now - group.asked_at >= (_MAX_AGE if group.is_answered else _RETRY_AFTER)


def _group_of(update: Json) -> str:
    """Return the group of an update; empty: none."""
    for event in update.values():
        for holder in (event, get_object(event, "message")):
            chat = get_object(holder, "chat")
            if get_raw_str(chat, "type") in _GROUP_TYPES and (number := get_int(chat, "id")) is not None:
                return str(number)
    return ""


_PLACEHOLDER_USERS = frozenset({1087968824, 136817688, 777000})
"""Users that represent a chat: GroupAnonymousBot, Channel_Bot, Telegram (core.telegram.org/bots/api#message)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramUpdateContext:
    """State that is needed to read an update."""

    channel: ChannelName
    own_id: int
    """Our own user id."""
    username: str
    """Our user name, without `@`; empty if there is none."""
    can_read_all: bool = True
    """False: privacy mode, so the message that a reply refers to was perhaps never sent to us."""
    rooms: frozenset[str] = frozenset()
    """Configured rooms."""
    commands: frozenset[str] = frozenset()
    """Names of our commands. Empty: unknown, so any command may be ours."""
    cursor: TelegramCursor = field(default_factory=TelegramCursor)


def parse_place(message: Json, context: TelegramUpdateContext) -> Address | None:
    """Return the place of a message. A chain of replies has a `message_thread_id` too, but is no thread of ours."""
    chat = get_int(get_object(message, "chat"), "id")
    if chat is None:
        return None
    thread = get_int(message, "message_thread_id") if message.get("is_topic_message") is True else None
    return Address(
        channel=context.channel,
        room=RoomId(context.cursor.known_room(str(chat), context.rooms)),
        thread=ThreadId(str(thread)) if thread is not None else None,
    )


def parse_message_id(message: Json, context: TelegramUpdateContext, referenced: Json | None = None) -> MessageId | None:
    """Return the id of the message, or of `referenced`, the one it refers to. None: missing."""
    own_chat, target = get_int(get_object(message, "chat"), "id"), message if referenced is None else referenced
    number = get_int(target, "message_id")
    if own_chat is None or number is None:
        return None
    # A reply may refer to a message from before the group moved.
    chat = get_int(get_object(target, "chat"), "id") or own_chat
    return format_message_id(number, str(chat), context.cursor.known_room(str(own_chat), context.rooms))


def parse_sender(event: Json, *, user: str = "from", chat: str = "sender_chat") -> Sender | None:
    """Return the sender of an event; None: missing."""
    person, behind_chat = get_object(event, "sender_business_bot") or get_object(event, user), get_object(event, chat)
    user_id, chat_id = get_int(person, "id"), get_int(behind_chat, "id")
    if chat_id is not None and (user_id is None or user_id in _PLACEHOLDER_USERS):
        return Sender(id=SenderId(str(chat_id)), name=full_name(behind_chat) or str(chat_id))
    return parse_user(person)


def parse_user(person: Json) -> Sender | None:
    """Return a user; None: missing."""
    user_id = get_int(person, "id")
    if user_id is None:
        return None
    return Sender(
        id=SenderId(str(user_id)),
        name=full_name(person) or str(user_id),
        is_bot=person.get("is_bot") is True,
        verified=user_id not in _PLACEHOLDER_USERS,
    )


def forward_origin_name(message: Json) -> str:
    """Return the name of a forwarded message's author, for display; empty if it was not forwarded."""
    origin = get_object(message, "forward_origin")
    legacy: Mapping[str, object] = {
        key: message[key] for key in ("forward_from", "forward_from_chat") if key in message
    }
    if not origin and not legacy and "forward_date" not in message:
        return ""
    for key in ("sender_user", "sender_chat", "chat"):
        if named := full_name(get_object(origin, key)):
            return named
    named = clean_name(get_raw_str(origin, "sender_user_name") or get_raw_str(message, "forward_sender_name"))
    for key in ("forward_from", "forward_from_chat"):
        named = named or full_name(get_object(legacy, key))
    return named or "somebody"
