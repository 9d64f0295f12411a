"""From what the gateway or the history tells to notifications. Pure.

Every reader takes any object and gives None for what is not its business or cannot be read: a payload that
Discord changes tomorrow is dropped, and nothing breaks. https://discord.com/developers/docs/events/gateway-events
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from channels.base import CommandSpec
from channels.discord.directory import Directory
from channels.discord.ids import snowflake, snowflakes, time_of
from channels.discord.options import written
from channels.discord.people import alone, asker, member_ranks
from channels.discord.text import beside, display_name, names_us, people_in, readable
from channels.payload import Json, flag, moment, number, obj, objs, string, whole
from gateway.events import (
    Attachment,
    Command,
    Deleted,
    Edited,
    EventId,
    Message,
    MessageId,
    Notification,
    Reacted,
    Sender,
    SenderId,
)

_SAID = frozenset({0, 19, 20, 23})
"""Message types: plain, reply, and what other bots answer to their commands. All others are said by Discord."""
_STARTER = 21
"""Stands first in a thread that was made of a message, and has that message as `referenced_message`."""
_FORWARD = 1
_VOICE = 1 << 13
"""A voice message (https://discord.com/developers/docs/resources/message#message-object-message-flags)."""
_FRESH_EDIT = timedelta(minutes=10)
"""An update tells of an edit if its `edited_timestamp` is so new: pins and link previews repeat an old one."""
_SLASH = 2, 1
"""Interaction and command type."""
INTERACTION = "interaction:"
"""Ids of native commands begin so: what answers one is told from a reply to a message."""
_FORMS: dict[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}


def message(data: Json, directory: Directory) -> Message | None:
    """What somebody else said. Needs `directory` to know the channel."""
    number_, channel = snowflake(data, "id"), snowflake(data, "channel_id")
    starts = whole(data, "type") == _STARTER
    if starts:
        data = _started_by(data)
    sender = _author(data)
    if not number_ or not channel or sender is None or sender.id == directory.own_id:
        return None
    if not _is_said(data):
        return None
    where = (snowflake(data, "channel_id") or channel, snowflake(data, "id")) if starts else (channel, number_)
    (shown, carried), files = _said(data, sender, directory), _attachments(data, *where)
    if not shown and not files:
        return None
    return Message(
        id=MessageId(number_),
        at=directory.address(channel),
        sender=sender,
        text=shown,
        sent=time_of(number_),
        kind="room" if starts else _kind(data, directory),  # whoever it was said to read it where it was said
        reply_to=None if starts else _replied(data),
        attachments=files,
        carried=carried,
    )


def _started_by(data: Json) -> Json:
    """The message that a thread was made of; nothing if it is not told."""
    first = obj(data, "referenced_message")
    return {**first, "guild_id": data.get("guild_id")} if first else {}


def edited(data: Json, directory: Directory, now: datetime) -> Edited | None:
    """A message that now reads differently."""
    number_, channel, when = snowflake(data, "id"), snowflake(data, "channel_id"), moment(data, "edited_timestamp")
    sender = _author(data)
    if not number_ or not channel or when is None or now - when > _FRESH_EDIT:
        return None
    if sender is None or sender.id == directory.own_id or not _is_said(data):
        return None
    text, carried = _said(data, sender, directory)
    return Edited(
        id=EventId(f"{number_}@{when.timestamp():.6f}"),
        at=directory.address(channel),
        sender=sender,
        message=MessageId(number_),
        text=text,
        sent=when,
        direct=_direct(data, directory),
        carried=carried,
    )


def deleted(data: Json, directory: Directory, now: datetime) -> list[Deleted]:
    """Messages that are gone, one by one or in bulk."""
    channel = snowflake(data, "channel_id")
    if not channel:
        return []
    gone = [snowflake(data, "id"), *snowflakes(data, "ids")]
    at, direct = directory.address(channel), _direct(data, directory)
    return [
        Deleted(id=EventId(found), at=at, message=MessageId(found), sent=now, direct=direct) for found in gone if found
    ]


def reacted(data: Json, directory: Directory, now: datetime, nonce: str, *, added: bool) -> Reacted | None:
    """A reaction was put on or taken off. `nonce` tells it from the same one earlier."""
    channel, user, to = (snowflake(data, key) for key in ("channel_id", "user_id", "message_id"))
    emoji, member = obj(data, "emoji"), obj(data, "member")
    shown = string(emoji, "name")
    if not channel or not user or not to or not shown or user == directory.own_id:
        return None
    who = obj(member, "user")
    return Reacted(
        id=EventId(f"{to}.{user}.{nonce}"),
        at=directory.address(channel),
        sender=Sender(
            id=SenderId(user),
            name=display_name(who, member) or user,
            is_bot=flag(who, "bot"),
            verified=True,
            ranks=member_ranks(data),
        ),
        message=MessageId(to),
        reaction=f":{shown}:" if snowflake(emoji, "id") else shown,
        added=added,
        sent=now,
        direct=_direct(data, directory),
    )


def command(data: Json, directory: Directory, specs: Sequence[CommandSpec] = ()) -> Command | None:
    """A native slash command of ours. `specs`: the table, which has the order of the arguments."""
    number_, channel = snowflake(data, "id"), snowflake(data, "channel_id")
    asked, who = obj(data, "data"), asker(data)
    name = string(asked, "name").lower()
    if (whole(data, "type"), whole(asked, "type")) != _SLASH or not (number_ and channel and who and name):
        return None
    return Command(
        id=EventId(INTERACTION + number_),
        at=directory.address(channel),
        sender=who,
        name=name,
        args=written(asked, specs),
        sent=time_of(number_),
        origin="native",
        direct=alone(data),
    )


def read(
    event: str,
    data: Json,
    directory: Directory,
    now: datetime,
    nonce: str,
    *,
    specs: Sequence[CommandSpec] = (),
) -> Sequence[Notification]:
    """All that one event of the gateway means to us. `specs`: as for `command`."""
    found: Notification | None = None
    match event:
        case "MESSAGE_CREATE":
            found = message(data, directory)
        case "MESSAGE_UPDATE":
            found = edited(data, directory, now)
        case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
            return deleted(data, directory, now)
        case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE":
            found = reacted(data, directory, now, nonce, added=event.endswith("ADD"))
        case "INTERACTION_CREATE":
            found = command(data, directory, specs)
        case _:
            pass
    return [] if found is None else [found]


def _author(data: Json) -> Sender | None:
    """Who said it. A webhook can take any name and picture, and Discord vouches for nothing but its id."""
    author = obj(data, "author")
    who, hook = snowflake(author, "id"), snowflake(data, "webhook_id")
    # An answer to another bot's command carries its application as `webhook_id`, and is that bot's own.
    if hook and hook != snowflake(data, "application_id"):
        return Sender(id=SenderId(f"webhook:{hook}"), name=display_name(author, {}) or hook, is_bot=True)
    if not who:
        return None
    name = display_name(author, obj(data, "member")) or who
    is_bot = flag(author, "bot") or bool(hook)
    return Sender(id=SenderId(who), name=name, is_bot=is_bot, verified=True, ranks=member_ranks(data))


def _is_said(data: Json) -> bool:
    return (whole(data, "type") or 0) in _SAID


def _said(data: Json, sender: Sender, directory: Directory) -> tuple[str, str]:
    """All of it, and the part that its sender did not write."""
    shown = readable(string(data, "content"), people_in(data), directory).strip("\n")
    lines = [shown] if shown.strip() else []
    others = beside(data, directory, embeds=sender.is_bot)
    carried = others if objs(data, "message_snapshots") or (sender.is_bot and objs(data, "embeds")) else []
    return "\n".join([*lines, *others]), "\n".join(carried)


def _replied(data: Json) -> MessageId | None:
    reference = obj(data, "message_reference")
    to = snowflake(reference, "message_id")
    same = snowflake(reference, "channel_id") in {"", snowflake(data, "channel_id")}
    return MessageId(to) if to and same and whole(reference, "type") != _FORWARD else None


def _direct(data: Json, directory: Directory) -> bool:
    """What happens in a guild names it, and its channels are known before the history is asked."""
    return not snowflake(data, "guild_id") and directory.is_direct(snowflake(data, "channel_id"))


def _kind(data: Json, directory: Directory) -> Literal["direct", "mention", "reply", "room"]:
    """Whom it was said to; a mention of everybody or of a role that people have is not said to us."""
    if _direct(data, directory):
        return "direct"
    me = directory.own_id
    to_us = bool(me) and snowflake(obj(obj(data, "referenced_message"), "author"), "id") == me and bool(_replied(data))
    if names_us(string(data, "content"), me) or any(map(directory.is_own_role, snowflakes(data, "mention_roles"))):
        return "mention"
    if to_us:  # a reply pings whom it answers, so `mentions` tells nothing here
        return "reply"
    return "mention" if any(snowflake(user, "id") == me for user in objs(data, "mentions") if me) else "room"


def _attachments(data: Json, channel: str, message_id: str) -> tuple[Attachment, ...]:
    found = []
    for file in objs(data, "attachments"):
        number_, kind, size = snowflake(file, "id"), string(file, "content_type"), whole(file, "size")
        if number_:
            found.append(
                Attachment(
                    id=f"{channel}/{message_id}/{number_}",
                    form=_FORMS.get(kind.partition("/")[0], "file"),
                    name=string(file, "filename") or None,
                    content_type=kind or None,
                    size_bytes=size if size is not None and size >= 0 else None,
                    duration_s=number(file, "duration_secs"),
                    recorded=bool((whole(data, "flags") or 0) & _VOICE),
                )
            )
    return tuple(found)
