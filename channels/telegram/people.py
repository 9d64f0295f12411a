"""Who did it, and where. Pure.

Telegram vouches for user ids. A message in the name of a chat (a channel, or an anonymous administrator) names
the chat: it is stable, but nobody knows which person it was, so it is never verified. What a business's bot says in
its owner's name is the bot's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from channels.payload import Json, get_int, get_object, get_raw_str
from channels.telegram.cursor import TelegramCursor
from channels.telegram.ids import format_message_id
from channels.telegram.media import full_name
from channels.text import clean_name
from gateway.events import Address, ChannelName, MessageId, RoomId, Sender, SenderId, ThreadId

_PLACEHOLDER_USERS = frozenset({1087968824, 136817688, 777000})
"""Users that stand for a chat: GroupAnonymousBot, Channel_Bot, Telegram (core.telegram.org/bots/api#message)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramUpdateContext:
    """What must be known to read an update."""

    channel: ChannelName
    own_id: int
    """Our own user id."""
    username: str
    """Our own, without `@`; empty if there is none."""
    can_read_all: bool = True
    """False: privacy mode, so what a reply refers to was perhaps never shown to us."""
    rooms: frozenset[str] = frozenset()
    """As configured."""
    commands: frozenset[str] = frozenset()
    """Ours. Empty: not known, then any may be ours."""
    cursor: TelegramCursor = field(default_factory=TelegramCursor)


def parse_place(message: Json, view: TelegramUpdateContext) -> Address | None:
    """Where a message stands. A chain of replies has a `message_thread_id` too, but is no thread of ours."""
    chat = get_int(get_object(message, "chat"), "id")
    if chat is None:
        return None
    thread = get_int(message, "message_thread_id") if message.get("is_topic_message") is True else None
    return Address(
        channel=view.channel,
        room=RoomId(view.cursor.known_room(str(chat), view.rooms)),
        thread=ThreadId(str(thread)) if thread is not None else None,
    )


def parse_message_id(message: Json, view: TelegramUpdateContext, about: Json | None = None) -> MessageId | None:
    """Its id, or that of the message which it is about, as its own chat names it. None: not told."""
    here, said = get_int(get_object(message, "chat"), "id"), message if about is None else about
    number = get_int(said, "message_id")
    if here is None or number is None:
        return None
    # A reply may be to what was said before the group moved.
    chat = get_int(get_object(said, "chat"), "id") or here
    return format_message_id(number, str(chat), view.cursor.known_room(str(here), view.rooms))


def parse_sender(event: Json, *, user: str = "from", chat: str = "sender_chat") -> Sender | None:
    """Who did it; None: not told."""
    person, behind = get_object(event, "sender_business_bot") or get_object(event, user), get_object(event, chat)
    user_id, chat_id = get_int(person, "id"), get_int(behind, "id")
    if chat_id is not None and (user_id is None or user_id in _PLACEHOLDER_USERS):
        return Sender(id=SenderId(str(chat_id)), name=full_name(behind) or str(chat_id))
    return parse_user(person)


def parse_user(person: Json) -> Sender | None:
    """A user."""
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
    """From whom a message was forwarded, for display; empty if it was not."""
    told = get_object(message, "forward_origin")
    legacy: Mapping[str, object] = {
        key: message[key] for key in ("forward_from", "forward_from_chat") if key in message
    }
    if not told and not legacy and "forward_date" not in message:
        return ""
    for key in ("sender_user", "sender_chat", "chat"):
        if named := full_name(get_object(told, key)):
            return named
    named = clean_name(get_raw_str(told, "sender_user_name") or get_raw_str(message, "forward_sender_name"))
    for key in ("forward_from", "forward_from_chat"):
        named = named or full_name(get_object(legacy, key))
    return named or "somebody"
