"""Updates of the Bot API as notifications (core.telegram.org/bots/api#update). Pure.

Reads the JSON itself: fields and kinds that are not known yet come up all the time, and one that cannot be read
must cost nothing but itself.
"""

from dataclasses import replace
from datetime import datetime

from channels.payload import Json, moment, obj, objs, raw, string, whole
from channels.telegram import media
from channels.telegram.entities import markdown, quoted
from channels.telegram.people import View, message_id, origin, place, sender, somebody
from channels.telegram.service import membership, my_membership
from channels.telegram.whom import BODIES, Kind, answered, command, kind
from channels.text import clean, name
from gateway.events import Command, Edited, EventId, Message, Notification, Reacted

ALLOWED = (
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


def read(update: Json, view: View, now: datetime) -> tuple[Notification, ...]:
    """What an update says; nothing for what does not concern us. Equal for equal updates, but for missing times."""
    update_id = whole(update, "update_id") or 0
    if found := obj(update, "message") or obj(update, "channel_post"):
        return _message(found, view, now)
    if found := obj(update, "edited_message") or obj(update, "edited_channel_post"):
        return _edited(found, view, now, update_id)
    if found := obj(update, "message_reaction"):
        return _reactions(found, view, now, update_id)
    if found := obj(update, "callback_query"):
        return _button(found, view, now)
    if found := obj(update, "my_chat_member"):
        return my_membership(found, view, now, update_id)
    return ()


def moved(update: Json) -> tuple[str, str] | None:
    """The old and the new id of a group, if this update says that it became a supergroup."""
    message = obj(update, "message")
    here = whole(obj(message, "chat"), "id")
    to, since = whole(message, "migrate_to_chat_id"), whole(message, "migrate_from_chat_id")
    if here is None or (to is None and since is None):
        return None
    return (str(here), str(to)) if to is not None else (str(since), str(here))


def album(update: Json) -> str:
    """Names the album that an update is one picture of; empty if it is none."""
    message = obj(update, "message") or obj(update, "channel_post")
    group = raw(message, "media_group_id")
    return f"{whole(obj(message, 'chat'), 'id')}/{group}" if group else ""


def chat_of(update: Json) -> int | None:
    """Where a new message stands."""
    return whole(obj(obj(update, "message") or obj(update, "channel_post"), "chat"), "id")


def button(update: Json) -> str:
    """The id of the button press that waits for an answer; empty if there is none."""
    return raw(obj(update, "callback_query"), "id")


def merged(messages: list[Message]) -> Message:
    """The pictures of one album, in order, as one message."""
    order: tuple[Kind, ...] = ("direct", "mention", "reply", "room")
    return replace(
        messages[0],
        text="\n".join(message.text for message in messages if message.text),
        kind=min((message.kind for message in messages), key=order.index),
        attachments=tuple(item for message in messages for item in message.attachments),
        carried="\n".join(message.carried for message in messages if message.carried),
    )


def _message(message: Json, view: View, now: datetime) -> tuple[Notification, ...]:
    at, who, number = place(message, view), sender(message), message_id(message, view)
    if at is None or who is None or number is None:
        return ()
    if happened := membership(message, view, now):
        return happened
    if who.id == str(view.own_id):
        return ()
    sent = moment(message, "date") or now
    if called := command(message, view):
        return (
            Command(
                id=EventId(number),
                at=at,
                sender=who,
                name=called[0],
                args=called[1],
                sent=sent,
                origin="native",
                direct=_private(message),
            ),
        )
    (text, carried), files = _text(message, view), media.attachments(message)
    if not text.strip() and not files:
        return ()
    about = answered(message)
    language = string(obj(message, "from"), "language_code")
    return (
        Message(
            id=number,
            at=at,
            sender=who,
            text=text,
            sent=sent,
            kind=kind(message, view, about),
            reply_to=message_id(message, view, about),
            attachments=files,
            language=language or None,
            carried=carried,
        ),
    )


def _edited(message: Json, view: View, now: datetime, update_id: int) -> tuple[Notification, ...]:
    at, who, number = place(message, view), sender(message), message_id(message, view)
    if at is None or who is None or number is None or who.id == str(view.own_id):
        return ()
    if "live_period" in obj(message, "location"):
        return ()  # a moving position, every few seconds
    sent = moment(message, "edit_date") or moment(message, "date") or now
    text, carried = _text(message, view)
    return (
        Edited(
            id=EventId(f"{number}.{update_id}"),
            at=at,
            sender=who,
            message=number,
            text=text,
            sent=sent,
            direct=_private(message),
            carried=carried,
        ),
    )


def _reactions(event: Json, view: View, now: datetime, update_id: int) -> tuple[Notification, ...]:
    at, who, number = place(event, view), sender(event, user="user", chat="actor_chat"), message_id(event, view)
    if at is None or who is None or number is None or who.id == str(view.own_id):
        return ()
    old, new = ([_reaction(one) for one in objs(event, key)] for key in ("old_reaction", "new_reaction"))
    changes = [(one, False) for one in old if one not in new] + [(one, True) for one in new if one not in old]
    sent = moment(event, "date") or now
    return tuple(
        Reacted(
            id=EventId(f"{update_id}.{index}"),
            at=at,
            sender=who,
            message=number,
            reaction=reaction,
            added=added,
            sent=sent,
            direct=_private(event),
        )
        for index, (reaction, added) in enumerate(dict.fromkeys(changes))
        if reaction
    )


def _reaction(one: Json) -> str:
    return name(raw(one, "emoji")) or name(raw(one, "custom_emoji_id")) or name(raw(one, "type"))


def _button(query: Json, view: View, now: datetime) -> tuple[Notification, ...]:
    """Buttons under messages; those under inline results name no place."""
    at, who = place(obj(query, "message"), view), somebody(obj(query, "from"))
    if at is None or who is None or not raw(query, "id"):
        return ()
    # The prefix tells it from a message's id: nothing can be a reply to a press.
    pressed = EventId(f"button:{string(query, 'id')}")
    args = string(query, "data").strip()
    direct = _private(obj(query, "message"))
    return (Command(id=pressed, at=at, sender=who, name="button", args=args, sent=now, origin="native", direct=direct),)


def _private(message: Json) -> bool:
    return raw(obj(message, "chat"), "type") == "private"


def _text(message: Json, view: View) -> tuple[str, str]:
    """All of it, and the part that its sender did not write."""
    lines = []
    if forwarded := origin(message):
        lines.append(f"(forwarded from {forwarded})")
    if via := name(raw(obj(message, "via_bot"), "username")):
        lines.append(f"(by way of @{via})")
    quote = _quote(message, view)
    if quote:
        lines.append(quote)
    for text, entities in BODIES:
        if raw(message, text):
            lines.append(markdown(raw(message, text), objs(message, entities)))
    if described := media.described(message):
        lines.append(described)
    text = "\n".join(lines)
    return text, text if forwarded or via else quote


def _quote(message: Json, view: View) -> str:
    """What is replied to, where the reply alone would not tell.

    A chosen part of it, something from another chat, or what privacy mode has hidden from us.
    """
    words = string(obj(message, "quote"), "text")
    about, external = answered(message), obj(message, "external_reply")
    by = ""
    if external:
        by = f"{origin({'forward_origin': external.get('origin')}) or 'somebody'}: "
        words = words or media.described(external) or "(another chat)"
    elif not words and not view.can_read_all and whole(obj(about, "from"), "id") not in (None, view.own_id):
        if raw(obj(message, "chat"), "type") == "private":
            return ""
        whom = somebody(obj(about, "from"))
        by = f"{whom.name}: " if whom else ""
        words = clean(raw(about, "text") or raw(about, "caption")) or media.described(about)
    if not words.strip():
        return ""
    return quoted(by + (words if len(words) <= _QUOTE_CHARS else words[:_QUOTE_CHARS] + "…"))
