"""Updates of the Bot API as notifications (core.telegram.org/bots/api#update). Pure.

Reads the JSON itself: fields and kinds that are not known yet come up all the time, and one that cannot be read
must cost nothing but itself.
"""

from dataclasses import replace
from datetime import datetime

from channels.payload import Json, get_datetime, get_int, get_object, get_objects, get_raw_str, get_str
from channels.telegram import media
from channels.telegram.entities import quote_lines, to_markdown
from channels.telegram.people import (
    TelegramUpdateContext,
    forward_origin_name,
    parse_message_id,
    parse_place,
    parse_sender,
    parse_user,
)
from channels.telegram.service import parse_membership, parse_own_membership
from channels.telegram.whom import TEXT_FIELDS, MessageKind, message_kind, parse_command, replied_message
from channels.text import clean_name, clean_text
from gateway.events import Command, EventId, Message, MessageEdited, Notification, ReactionChanged

ALLOWED_UPDATES = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "callback_query",
    "my_chat_member",
)
"""What we ask for. Reactions must be asked for by name, and are told to administrators only."""

_QUOTE_CHARS = 300


def parse_update(update: Json, view: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    """What an update says; nothing for what does not concern us. Equal for equal updates, but for missing times."""
    update_id = get_int(update, "update_id") or 0
    if found := get_object(update, "message") or get_object(update, "channel_post"):
        return _parse_message(found, view, now)
    if found := get_object(update, "edited_message") or get_object(update, "edited_channel_post"):
        return _parse_edit(found, view, now, update_id)
    if found := get_object(update, "message_reaction"):
        return _parse_reactions(found, view, now, update_id)
    if found := get_object(update, "callback_query"):
        return _parse_button(found, view, now)
    if found := get_object(update, "my_chat_member"):
        return parse_own_membership(found, view, now, update_id)
    return ()


def parse_migration(update: Json) -> tuple[str, str] | None:
    """The old and the new id of a group, if this update says that it became a supergroup."""
    message = get_object(update, "message")
    here = get_int(get_object(message, "chat"), "id")
    to, since = get_int(message, "migrate_to_chat_id"), get_int(message, "migrate_from_chat_id")
    if here is None or (to is None and since is None):
        return None
    return (str(here), str(to)) if to is not None else (str(since), str(here))


def album_key(update: Json) -> str:
    """Names the album that an update is one picture of; empty if it is none."""
    message = get_object(update, "message") or get_object(update, "channel_post")
    group = get_raw_str(message, "media_group_id")
    return f"{get_int(get_object(message, 'chat'), 'id')}/{group}" if group else ""


def message_chat(update: Json) -> int | None:
    """Where a new message stands."""
    return get_int(get_object(get_object(update, "message") or get_object(update, "channel_post"), "chat"), "id")


def button_press(update: Json) -> str:
    """The id of the button press that waits for an answer; empty if there is none."""
    return get_raw_str(get_object(update, "callback_query"), "id")


def merge_album(messages: list[Message]) -> Message:
    """The pictures of one album, in order, as one message."""
    order: tuple[MessageKind, ...] = ("direct", "mention", "reply", "room")
    return replace(
        messages[0],
        text="\n".join(message.text for message in messages if message.text),
        kind=min((message.kind for message in messages), key=order.index),
        attachments=tuple(item for message in messages for item in message.attachments),
        carried="\n".join(message.carried for message in messages if message.carried),
    )


def _parse_message(message: Json, view: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    at, who, number = parse_place(message, view), parse_sender(message), parse_message_id(message, view)
    if at is None or who is None or number is None:
        return ()
    if happened := parse_membership(message, view, now):
        return happened
    if who.id == str(view.own_id):
        return ()
    sent = get_datetime(message, "date") or now
    if called := parse_command(message, view):
        return (
            Command(
                id=EventId(number),
                at=at,
                sender=who,
                name=called[0],
                args=called[1],
                sent=sent,
                origin="native",
                direct=_is_private(message),
            ),
        )
    (text, carried), files = _message_text(message, view), media.parse_attachments(message)
    if not text.strip() and not files:
        return ()
    about = replied_message(message)
    language = get_str(get_object(message, "from"), "language_code")
    return (
        Message(
            id=number,
            at=at,
            sender=who,
            text=text,
            sent=sent,
            kind=message_kind(message, view, about),
            reply_to=parse_message_id(message, view, about),
            attachments=files,
            language=language or None,
            carried=carried,
        ),
    )


def _parse_edit(message: Json, view: TelegramUpdateContext, now: datetime, update_id: int) -> tuple[Notification, ...]:
    at, who, number = parse_place(message, view), parse_sender(message), parse_message_id(message, view)
    if at is None or who is None or number is None or who.id == str(view.own_id):
        return ()
    if "live_period" in get_object(message, "location"):
        return ()  # a moving position, every few seconds
    sent = get_datetime(message, "edit_date") or get_datetime(message, "date") or now
    text, carried = _message_text(message, view)
    return (
        MessageEdited(
            id=EventId(f"{number}.{update_id}"),
            at=at,
            sender=who,
            message=number,
            text=text,
            sent=sent,
            direct=_is_private(message),
            carried=carried,
        ),
    )


def _parse_reactions(
    event: Json, view: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[Notification, ...]:
    at, who, number = (
        parse_place(event, view),
        parse_sender(event, user="user", chat="actor_chat"),
        parse_message_id(event, view),
    )
    if at is None or who is None or number is None or who.id == str(view.own_id):
        return ()
    old, new = ([_reaction_name(one) for one in get_objects(event, key)] for key in ("old_reaction", "new_reaction"))
    changes = [(one, False) for one in old if one not in new] + [(one, True) for one in new if one not in old]
    sent = get_datetime(event, "date") or now
    return tuple(
        ReactionChanged(
            id=EventId(f"{update_id}.{index}"),
            at=at,
            sender=who,
            message=number,
            reaction=reaction,
            added=added,
            sent=sent,
            direct=_is_private(event),
        )
        for index, (reaction, added) in enumerate(dict.fromkeys(changes))
        if reaction
    )


def _reaction_name(one: Json) -> str:
    return (
        clean_name(get_raw_str(one, "emoji"))
        or clean_name(get_raw_str(one, "custom_emoji_id"))
        or clean_name(get_raw_str(one, "type"))
    )


def _parse_button(query: Json, view: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    """Buttons under messages; those under inline results name no place."""
    at, who = parse_place(get_object(query, "message"), view), parse_user(get_object(query, "from"))
    if at is None or who is None or not get_raw_str(query, "id"):
        return ()
    # The prefix tells it from a message's id: nothing can be a reply to a press.
    pressed = EventId(f"button:{get_str(query, 'id')}")
    args = get_str(query, "data").strip()
    direct = _is_private(get_object(query, "message"))
    return (Command(id=pressed, at=at, sender=who, name="button", args=args, sent=now, origin="native", direct=direct),)


def _is_private(message: Json) -> bool:
    return get_raw_str(get_object(message, "chat"), "type") == "private"


def _message_text(message: Json, view: TelegramUpdateContext) -> tuple[str, str]:
    """All of it, and the part that its sender did not write."""
    lines = []
    if forwarded := forward_origin_name(message):
        lines.append(f"(forwarded from {forwarded})")
    if via := clean_name(get_raw_str(get_object(message, "via_bot"), "username")):
        lines.append(f"(by way of @{via})")
    quote = _quoted_text(message, view)
    if quote:
        lines.append(quote)
    for text, entities in TEXT_FIELDS:
        if get_raw_str(message, text):
            lines.append(to_markdown(get_raw_str(message, text), get_objects(message, entities)))
    if described := media.describe_content(message):
        lines.append(described)
    text = "\n".join(lines)
    return text, text if forwarded or via else quote


def _quoted_text(message: Json, view: TelegramUpdateContext) -> str:
    """What is replied to, where the reply alone would not tell.

    A chosen part of it, something from another chat, or what privacy mode has hidden from us.
    """
    words = get_str(get_object(message, "quote"), "text")
    about, external = replied_message(message), get_object(message, "external_reply")
    by = ""
    if external:
        by = f"{forward_origin_name({'forward_origin': external.get('origin')}) or 'somebody'}: "
        words = words or media.describe_content(external) or "(another chat)"
    elif not words and not view.can_read_all and get_int(get_object(about, "from"), "id") not in (None, view.own_id):
        if get_raw_str(get_object(message, "chat"), "type") == "private":
            return ""
        whom = parse_user(get_object(about, "from"))
        by = f"{whom.name}: " if whom else ""
        words = clean_text(get_raw_str(about, "text") or get_raw_str(about, "caption")) or media.describe_content(about)
    if not words.strip():
        return ""
    return quote_lines(by + (words if len(words) <= _QUOTE_CHARS else words[:_QUOTE_CHARS] + "…"))
