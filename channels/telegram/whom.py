"""Whom a message is said to: us, by a command, a mention or a reply, or the room. Pure."""

from typing import Literal

from channels.payload import Json, obj, objs, raw, whole
from channels.telegram.entities import Units
from channels.telegram.people import View, origin

Kind = Literal["direct", "mention", "reply", "room"]

BODIES = (("text", "entities"), ("caption", "caption_entities"))
"""Where text stands, and what marks it."""


def command(message: Json, view: View) -> tuple[str, str] | None:
    """Name and arguments of a command that is said to us.

    One that was forwarded, or sent by a bot for somebody, was not written by whom it comes from.
    """
    first = next((one for one in objs(message, "entities") if whole(one, "offset") == 0), {})
    units = Units(raw(message, "text"))
    where = units.find_span(whole(first, "offset"), whole(first, "length"))
    others = bool(origin(message)) or bool(obj(message, "via_bot")) or message.get("is_automatic_forward") is True
    if raw(first, "type") != "bot_command" or not where or others:
        return None
    word, _, whom = units.cut(*where).removeprefix("/").partition("@")
    private = raw(obj(message, "chat"), "type") == "private"
    ours = whom.casefold() == view.username.casefold() if whom else private or _known(word, view)
    return (word.lower(), units.cut(where[1], units.size).strip()) if word and ours else None


def _known(word: str, view: View) -> bool:
    return not view.commands or word.lower() in view.commands


def answered(message: Json) -> Json:
    """The message that this one replies to. What stands in a topic "replies" to the topic's beginning."""
    about = obj(message, "reply_to_message")
    begins = message.get("is_topic_message") is True and (
        "forum_topic_created" in about or whole(about, "message_id") == whole(message, "message_thread_id")
    )
    return {} if begins else about


def kind(message: Json, view: View, about: Json) -> Kind:
    """`about`: what `answered` says."""
    if raw(obj(message, "chat"), "type") == "private":
        return "direct"
    if any(_mentions(message, text, entities, view) for text, entities in BODIES):
        return "mention"
    return "reply" if whole(obj(about, "from"), "id") == view.own_id else "room"


def _mentions(message: Json, text: str, entities: str, view: View) -> bool:
    units = Units(raw(message, text))
    for entity in objs(message, entities):
        where, kind = units.find_span(whole(entity, "offset"), whole(entity, "length")), raw(entity, "type")
        if kind == "text_mention" and whole(obj(entity, "user"), "id") == view.own_id:
            return True
        if where and kind in ("mention", "bot_command") and view.username:
            named = units.cut(*where).partition("@")[2]
            if named.casefold() == view.username.casefold():
                return True
    return False
