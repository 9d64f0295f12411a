"""People and places of Telegram updates: senders and attachments. Pure.

Telegram verifies user ids. A message in the name of a chat (a channel, or an anonymous
administrator) has the chat as its sender: that is stable, but the person is unknown, so it is never
verified. A message that a business bot sends in its owner's name is the bot's.
"""

import re
from dataclasses import field
from datetime import timedelta
from typing import Final, Literal

import telegram
from telegram.constants import ChatID

from channels.telegram.ids import TelegramCursor, format_message_id
from channels.text import clean_name, clean_text, get_object, get_raw_str
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.frozen import frozen

_Form = Literal["image", "audio", "video", "file", "sticker", "location"]
_FILE_KINDS: dict[str, tuple[_Form, str | None]] = {
    "animation": ("video", "video/mp4"),
    "video": ("video", None),
    "video_note": ("video", "video/mp4"),
    "audio": ("audio", None),
    "voice": ("audio", "audio/ogg"),
    "document": ("file", None),
}
"""Attribute -> form, and the content type if Telegram fixes it without sending it."""
_FORMS_BY_TYPE: dict[str, _Form] = {"image": "image", "audio": "audio", "video": "video"}
_MAX_NUMBER = 2**53


def parse_attachments(
    message: telegram.Message | telegram.ExternalReplyInfo,
) -> tuple[Attachment, ...]:
    """Return files in the order of `_FILE_KINDS`; a photo only in its largest size."""
    found = []
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        found.append(_build_attachment(largest, "image", "image/jpeg"))
    for kind, (usual_form, default_type) in _FILE_KINDS.items():
        file = getattr(message, kind)
        # An animation is also sent as a document, for old clients.
        if file is not None and not (kind == "document" and message.animation):
            content_type = clean_text(getattr(file, "mime_type", None) or "") or default_type
            general_type = (content_type or "").partition("/")[0]
            form = (
                _FORMS_BY_TYPE.get(general_type, usual_form) if kind == "document" else usual_form
            )
            found.append(
                _build_attachment(
                    file, form, content_type, recorded=kind in ("voice", "video_note")
                )
            )
    if sticker := message.sticker:
        sticker_type = "video/webm" if sticker.is_video else "image/webp"
        found.append(
            _build_attachment(sticker, "sticker", None if sticker.is_animated else sticker_type)
        )
    return tuple(found)


_File = (
    telegram.PhotoSize
    | telegram.Animation
    | telegram.Video
    | telegram.VideoNote
    | telegram.Audio
    | telegram.Voice
    | telegram.Document
    | telegram.Sticker
)


def _build_attachment(
    file: _File, form: _Form, content_type: str | None, *, recorded: bool = False
) -> Attachment:
    size, duration = file.file_size, getattr(file, "duration", None)
    return Attachment(
        id=clean_text(file.file_id),
        form=form,
        name=clean_name(getattr(file, "file_name", None) or "") or None,
        content_type=content_type,
        size_bytes=size if isinstance(size, int) and 0 <= size < _MAX_NUMBER else None,
        duration_s=None if duration is None else seconds(duration),
        recorded=recorded,
    )


def seconds(period: float | timedelta) -> float:
    """Return a length of time of the library, which is changing from numbers to `timedelta`, in
    seconds.
    """
    return period.total_seconds() if isinstance(period, timedelta) else float(period)


def full_name(
    person: telegram.User
    | telegram.Chat
    | telegram.ChatFullInfo
    | telegram.Contact
    | telegram.SharedUser,
) -> str:
    """Return first and last name, else the title or the user name."""
    first, last, title, username = (
        clean_name(getattr(person, name, None) or "")
        for name in ("first_name", "last_name", "title", "username")
    )
    return " ".join(filter(None, [first, last])) or title or username


_HANDLE: Final = re.compile(r"[A-Za-z0-9_]{4,32}")
"""https://core.telegram.org/method/account.checkUsername."""


def mention_of(person: telegram.User | telegram.SharedUser | None) -> str:
    """Return how somebody is called in a text of somebody else's: by the user name, else by the id.

    The names that people choose freely can be words, which are not the author's.
    """
    if person is None:
        return "@somebody"
    return format_mention(
        person.username, person.user_id if isinstance(person, telegram.SharedUser) else person.id
    )


def format_mention(username: str | None, user: int | None) -> str:
    """Return the text of `mention_of`."""
    return f"@{username}" if _HANDLE.fullmatch(username or "") else f"@user-{user}"


ANY_CHAT: Final = "*"
RANKS: Final = (telegram.ChatMember.OWNER, telegram.ChatMember.ADMINISTRATOR)
GROUP_TYPES: Final = frozenset({"group", "supergroup"})


def is_present(member: telegram.ChatMember) -> bool:
    """Return whether somebody is in a chat: https://core.telegram.org/bots/api#chatmember."""
    return (
        member.is_member
        if isinstance(member, telegram.ChatMemberRestricted)
        else member.status in {"member", "administrator", "creator"}
    )


def shows_history(chat: telegram.ChatFullInfo) -> bool:
    """Return whether new members of a group can read what was said before they came.

    `has_visible_history` is for private groups, and "available only to chat administrators"
    (https://core.telegram.org/bots/api#chatfullinfo). In groups that are public, forums, or a
    channel's discussion, all is visible:
    https://core.telegram.org/tdlib/docs/classtd_1_1td__api_1_1supergroup_full_info.html.
    """
    return bool(chat.has_visible_history or chat.username or chat.is_forum or chat.linked_chat_id)


def changed_members(update: telegram.Update) -> list[tuple[int, int]]:
    """Return chat and user of those who came or went by an update, or whose rights have changed."""
    if changed := update.chat_member or update.my_chat_member:
        user: telegram.User | None = changed.new_chat_member.user  # the library checks nothing
        return [(changed.chat.id, user.id)] if user else []
    if (message := update.message) is None:
        return []
    gone = [message.left_chat_member] if message.left_chat_member else []
    return [(message.chat.id, user.id) for user in (*message.new_chat_members, *gone)]


_PLACEHOLDER_USERS = frozenset({ChatID.ANONYMOUS_ADMIN, ChatID.FAKE_CHANNEL, ChatID.SERVICE_CHAT})
"""Users that represent a chat: GroupAnonymousBot, Channel_Bot, Telegram
(core.telegram.org/bots/api#message)."""


@frozen
class TelegramUpdateContext:
    """State that is needed to read an update."""

    channel: ChannelName
    own_id: int
    username: str
    """Our user name, without `@`; empty if there is none."""
    rooms: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    """Names of our commands. Empty: unknown, so any command may be ours."""
    cursor: TelegramCursor = field(default_factory=TelegramCursor)


_Event = (
    telegram.Message
    | telegram.MaybeInaccessibleMessage
    | telegram.MessageReactionUpdated
    | telegram.ChatMemberUpdated
)


def parse_place(event: _Event, context: TelegramUpdateContext) -> Address:
    """Return the place of an event. A chain of replies has a `message_thread_id` too, but is no
    thread of ours.
    """
    thread = (
        event.message_thread_id
        if isinstance(event, telegram.Message) and event.is_topic_message
        else None
    )
    return Address(
        channel=context.channel,
        room=RoomId(context.cursor.known_room(str(event.chat.id), context.rooms)),
        thread=ThreadId(str(thread)) if thread is not None else None,
    )


def parse_message_id(
    event: telegram.Message | telegram.MessageReactionUpdated,
    context: TelegramUpdateContext,
    referenced: telegram.Message | None = None,
) -> MessageId:
    """Return the id of the event's message, or of `referenced`, the one it refers to."""
    target = referenced or event
    # A reply may refer to a message from before the group moved.
    room = context.cursor.known_room(str(event.chat.id), context.rooms)
    return format_message_id(target.message_id, str(target.chat.id), room)


def parse_sender(message: telegram.Message) -> Sender | None:
    """Return the sender of a message; None: it has none."""
    return sender_of(message.sender_business_bot or message.from_user, message.sender_chat)


def sender_of(user: telegram.User | None, chat: telegram.Chat | None = None) -> Sender | None:
    """Return the sender, given the user and the chat that an event names; None: neither."""
    if chat is not None and (user is None or user.id in _PLACEHOLDER_USERS):
        return Sender(id=SenderId(str(chat.id)), name=full_name(chat) or str(chat.id))
    return parse_user(user) if user else None


def parse_user(user: telegram.User) -> Sender:
    """Return a user."""
    return Sender(
        id=SenderId(str(user.id)),
        name=full_name(user) or str(user.id),
        is_bot=user.is_bot is True,
        verified=user.id not in _PLACEHOLDER_USERS,
    )


_LEGACY_FORWARDS = ("forward_from", "forward_from_chat", "forward_date")
"""Fields of messages before Bot API 7.0, which the library no longer knows."""


def forward_origin_name(message: telegram.Message) -> str:
    """Return the name of a forwarded message's author, for display; empty if it was not
    forwarded.
    """
    if message.forward_origin:
        return origin_name(message.forward_origin)
    old = message.api_kwargs
    if not any(key in old for key in _LEGACY_FORWARDS):
        return ""
    person, chat = get_object(old, "forward_from"), get_object(old, "forward_from_chat")
    names = (
        get_raw_str(person, "first_name"),
        get_raw_str(chat, "title"),
        get_raw_str(old, "forward_sender_name"),
    )
    return next(filter(None, map(clean_name, names)), "somebody")


def origin_name(origin: telegram.MessageOrigin) -> str:
    """Return the name of a message's first author, for display."""
    for key in ("sender_user", "sender_chat", "chat"):
        if (author := getattr(origin, key, None)) and (name := full_name(author)):
            return name
    return clean_name(getattr(origin, "sender_user_name", "")) or "somebody"
