"""From what the gateway or the history tells to notifications. Pure.

Every reader takes any object and gives None for what is not its business or cannot be read: a payload that
Discord changes tomorrow is dropped, and nothing breaks. https://discord.com/developers/docs/events/gateway-events

The options of a native command, as the same text that people write behind its name elsewhere. Pure.

https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-application-command-data-structure

What requests name: channels and messages of Discord in our words, and back. Pure.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from channels.base import CommandArg, CommandSpec, Rejected, SubcommandSpec
from channels.discord.directory import (
    DiscordDirectory,
    display_name,
    extra_lines,
    interaction_sender,
    is_direct_interaction,
    member_ranks,
    mentioned_names,
    mentions_us,
    resolve_references,
)
from channels.discord.ids import get_snowflake, get_snowflakes, parse_id, snowflake_time
from channels.text import (
    Json,
    clean_text,
    get_bool,
    get_datetime,
    get_int,
    get_number,
    get_object,
    get_objects,
    get_str,
)
from gateway.core.events import (
    Address,
    Attachment,
    Command,
    EventId,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Notification,
    ReactionChanged,
    Receipt,
    Sender,
    SenderId,
)

_SUBCOMMAND: Final = 1
_UNQUOTED: Final = re.compile(r'[^\s"“„”`]\S*')
_EMPTY_ARG: Final = '""'
"""Stands where an argument is left out and a later one is given."""


def format_options(asked: Json, specs: Sequence[CommandSpec]) -> str:
    """What would be written: a sub, and the arguments in the order of the table, quoted where they must be.

    People give options in any order and leave some out. What the table does not have (a menu that is too old) comes
    last, so that it is told to be too much.
    """
    spec = next((one for one in specs if one.name == get_str(asked, "name").lower()), None)
    options, words = get_objects(asked, "options"), list[str]()
    of: CommandSpec | SubcommandSpec | None = spec
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        name = get_str(options[0], "name").lower()
        of = next((sub for sub in spec.subs if sub.name == name), None) if spec else None
        words, options = [quote_word(name)], get_objects(options[0], "options")
    values = {get_str(option, "name"): _option_value(option) for option in options}
    words += _ordered_words(of.args if of is not None else (), values)
    return " ".join([*words, *(quote_word(value) for value in values.values())])


def find_focused(asked: Json) -> tuple[str, str, str] | None:
    """Sub, option, and what stands there until now, of the one that is being written. None: none is."""
    options, sub = get_objects(asked, "options"), ""
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        sub, options = get_str(options[0], "name"), get_objects(options[0], "options")
    found = next((option for option in options if get_bool(option, "focused")), None)
    return (sub, get_str(found, "name"), _option_value(found)) if found is not None else None


def quote_word(word: str) -> str:
    """One word, whatever it has in it."""
    word = " ".join(clean_text(word).split())
    if _UNQUOTED.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ordered_words(args: Sequence[CommandArg], values: dict[str, str]) -> list[str]:
    """Takes the values that the table has out of `values`."""
    words, missing = list[str](), 0
    for arg in args:
        value = values.pop(arg.name, "")
        if not value:
            missing += 1
            continue
        words += [_EMPTY_ARG] * missing + [value if arg.rest else quote_word(value)]
        missing = 0
    return words


def _option_value(option: Json) -> str:
    value = option.get("value")
    return clean_text(str(value)).strip() if isinstance(value, str | int | float) else ""


def parse_channel_id(to: Address) -> str:
    """The Discord channel behind an address: a thread is one of its own. Raises `Rejected`."""
    found = parse_id(to.thread or to.room)
    if not found:
        raise Rejected(f"{to.thread or to.room!r} is not a channel of Discord")
    return found


def parse_message_id(message: MessageId) -> str:
    """Its number. Raises `Rejected`: answers to commands have names, too, but cannot be touched."""
    found = parse_id(message)
    if not found:
        raise Rejected(f"{message!r} is not a message of Discord")
    return found


def build_receipt(answer: object) -> Receipt:
    """For the message object that Discord answers with."""
    found = get_snowflake(answer, "id")
    return Receipt(ids=(MessageId(found),) if found else ())


_USER_MESSAGE_TYPES = frozenset({0, 19, 20, 23})
"""Message types: plain, reply, and what other bots answer to their commands. All others are said by Discord."""
_THREAD_STARTER_TYPE = 21
"""Stands first in a thread that was made of a message, and has that message as `referenced_message`."""
_FORWARD_TYPE = 1
_VOICE_FLAG = 1 << 13
"""A voice message (https://discord.com/developers/docs/resources/message#message-object-message-flags)."""
_MAX_EDIT_AGE = timedelta(minutes=10)
"""An update tells of an edit if its `edited_timestamp` is so new: pins and link previews repeat an old one."""
_SLASH_COMMAND = 2, 1
"""Interaction and command type."""
INTERACTION_PREFIX = "interaction:"
"""Ids of native commands begin so: what answers one is told from a reply to a message."""
_ATTACHMENT_FORMS: dict[str, Literal["image", "audio", "video"]] = {
    "image": "image",
    "audio": "audio",
    "video": "video",
}


def parse_message(data: Json, directory: DiscordDirectory) -> Message | None:
    """What somebody else said. Needs `directory` to know the channel."""
    number_, channel = get_snowflake(data, "id"), get_snowflake(data, "channel_id")
    starts = get_int(data, "type") == _THREAD_STARTER_TYPE
    if starts:
        data = _thread_starter(data)
    sender = _parse_author(data)
    if not number_ or not channel or sender is None or sender.id == directory.own_id:
        return None
    if not _is_user_message(data):
        return None
    where = (get_snowflake(data, "channel_id") or channel, get_snowflake(data, "id")) if starts else (channel, number_)
    (shown, carried), files = _message_text(data, sender, directory), _parse_attachments(data, *where)
    if not shown and not files:
        return None
    return Message(
        id=MessageId(number_),
        at=directory.address(channel),
        sender=sender,
        text=shown,
        sent=snowflake_time(number_),
        kind="room" if starts else _message_kind(data, directory),  # whoever it was said to read it where it was said
        reply_to=None if starts else _reply_target(data),
        attachments=files,
        carried=carried,
    )


def _thread_starter(data: Json) -> Json:
    """The message that a thread was made of; nothing if it is not told."""
    first = get_object(data, "referenced_message")
    return {**first, "guild_id": data.get("guild_id")} if first else {}


def parse_edit(data: Json, directory: DiscordDirectory, now: datetime) -> MessageEdited | None:
    """A message that now reads differently."""
    number_, channel, when = (
        get_snowflake(data, "id"),
        get_snowflake(data, "channel_id"),
        get_datetime(data, "edited_timestamp"),
    )
    sender = _parse_author(data)
    if not number_ or not channel or when is None or now - when > _MAX_EDIT_AGE:
        return None
    if sender is None or sender.id == directory.own_id or not _is_user_message(data):
        return None
    text, carried = _message_text(data, sender, directory)
    return MessageEdited(
        id=EventId(f"{number_}@{when.timestamp():.6f}"),
        at=directory.address(channel),
        sender=sender,
        message=MessageId(number_),
        text=text,
        sent=when,
        direct=_is_direct(data, directory),
        carried=carried,
    )


def parse_deletes(data: Json, directory: DiscordDirectory, now: datetime) -> list[MessageDeleted]:
    """Messages that are gone, one by one or in bulk."""
    channel = get_snowflake(data, "channel_id")
    if not channel:
        return []
    gone = [get_snowflake(data, "id"), *get_snowflakes(data, "ids")]
    at, direct = directory.address(channel), _is_direct(data, directory)
    return [
        MessageDeleted(id=EventId(found), at=at, message=MessageId(found), sent=now, direct=direct)
        for found in gone
        if found
    ]


def parse_reaction(
    data: Json, directory: DiscordDirectory, now: datetime, nonce: str, *, added: bool
) -> ReactionChanged | None:
    """A reaction was put on or taken off. `nonce` tells it from the same one earlier."""
    channel, user, to = (get_snowflake(data, key) for key in ("channel_id", "user_id", "message_id"))
    emoji, member = get_object(data, "emoji"), get_object(data, "member")
    shown = get_str(emoji, "name")
    if not channel or not user or not to or not shown or user == directory.own_id:
        return None
    who = get_object(member, "user")
    return ReactionChanged(
        id=EventId(f"{to}.{user}.{nonce}"),
        at=directory.address(channel),
        sender=Sender(
            id=SenderId(user),
            name=display_name(who, member) or user,
            is_bot=get_bool(who, "bot"),
            verified=True,
            ranks=member_ranks(data),
        ),
        message=MessageId(to),
        reaction=f":{shown}:" if get_snowflake(emoji, "id") else shown,
        added=added,
        sent=now,
        direct=_is_direct(data, directory),
    )


def parse_command(data: Json, directory: DiscordDirectory, specs: Sequence[CommandSpec] = ()) -> Command | None:
    """A native slash command of ours. `specs`: the table, which has the order of the arguments."""
    number_, channel = get_snowflake(data, "id"), get_snowflake(data, "channel_id")
    asked, who = get_object(data, "data"), interaction_sender(data)
    name = get_str(asked, "name").lower()
    if (get_int(data, "type"), get_int(asked, "type")) != _SLASH_COMMAND or not (number_ and channel and who and name):
        return None
    return Command(
        id=EventId(INTERACTION_PREFIX + number_),
        at=directory.address(channel),
        sender=who,
        name=name,
        args=format_options(asked, specs),
        sent=snowflake_time(number_),
        origin="native",
        direct=is_direct_interaction(data),
    )


def parse_event(
    event: str,
    data: Json,
    directory: DiscordDirectory,
    now: datetime,
    nonce: str,
    *,
    specs: Sequence[CommandSpec] = (),
) -> Sequence[Notification]:
    """All that one event of the gateway means to us. `specs`: as for `parse_command`."""
    found: Notification | None = None
    match event:
        case "MESSAGE_CREATE":
            found = parse_message(data, directory)
        case "MESSAGE_UPDATE":
            found = parse_edit(data, directory, now)
        case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
            return parse_deletes(data, directory, now)
        case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE":
            found = parse_reaction(data, directory, now, nonce, added=event.endswith("ADD"))
        case "INTERACTION_CREATE":
            found = parse_command(data, directory, specs)
        case _:
            pass
    return [] if found is None else [found]


def _parse_author(data: Json) -> Sender | None:
    """Who said it. A webhook can take any name and picture, and Discord vouches for nothing but its id."""
    author = get_object(data, "author")
    who, hook = get_snowflake(author, "id"), get_snowflake(data, "webhook_id")
    # An answer to another bot's command carries its application as `webhook_id`, and is that bot's own.
    if hook and hook != get_snowflake(data, "application_id"):
        return Sender(id=SenderId(f"webhook:{hook}"), name=display_name(author, {}) or hook, is_bot=True)
    if not who:
        return None
    name = display_name(author, get_object(data, "member")) or who
    is_bot = get_bool(author, "bot") or bool(hook)
    return Sender(id=SenderId(who), name=name, is_bot=is_bot, verified=True, ranks=member_ranks(data))


def _is_user_message(data: Json) -> bool:
    return (get_int(data, "type") or 0) in _USER_MESSAGE_TYPES


def _message_text(data: Json, sender: Sender, directory: DiscordDirectory) -> tuple[str, str]:
    """All of it, and the part that its sender did not write."""
    shown = resolve_references(get_str(data, "content"), mentioned_names(data), directory).strip("\n")
    lines = [shown] if shown.strip() else []
    others = extra_lines(data, directory, embeds=sender.is_bot)
    carried = (
        others if get_objects(data, "message_snapshots") or (sender.is_bot and get_objects(data, "embeds")) else []
    )
    return "\n".join([*lines, *others]), "\n".join(carried)


def _reply_target(data: Json) -> MessageId | None:
    reference = get_object(data, "message_reference")
    to = get_snowflake(reference, "message_id")
    same = get_snowflake(reference, "channel_id") in {"", get_snowflake(data, "channel_id")}
    return MessageId(to) if to and same and get_int(reference, "type") != _FORWARD_TYPE else None


def _is_direct(data: Json, directory: DiscordDirectory) -> bool:
    """What happens in a guild names it, and its channels are known before the history is asked."""
    return not get_snowflake(data, "guild_id") and directory.is_direct(get_snowflake(data, "channel_id"))


def _message_kind(data: Json, directory: DiscordDirectory) -> Literal["direct", "mention", "reply", "room"]:
    """Whom it was said to; a mention of everybody or of a role that people have is not said to us."""
    if _is_direct(data, directory):
        return "direct"
    me = directory.own_id
    to_us = (
        bool(me)
        and get_snowflake(get_object(get_object(data, "referenced_message"), "author"), "id") == me
        and bool(_reply_target(data))
    )
    if mentions_us(get_str(data, "content"), me) or any(
        map(directory.is_own_role, get_snowflakes(data, "mention_roles"))
    ):
        return "mention"
    if to_us:  # a reply pings whom it answers, so `mentions` tells nothing here
        return "reply"
    return "mention" if any(get_snowflake(user, "id") == me for user in get_objects(data, "mentions") if me) else "room"


def _parse_attachments(data: Json, channel: str, message_id: str) -> tuple[Attachment, ...]:
    found = []
    for file in get_objects(data, "attachments"):
        number_, kind, size = get_snowflake(file, "id"), get_str(file, "content_type"), get_int(file, "size")
        if number_:
            found.append(
                Attachment(
                    id=f"{channel}/{message_id}/{number_}",
                    form=_ATTACHMENT_FORMS.get(kind.partition("/")[0], "file"),
                    name=get_str(file, "filename") or None,
                    content_type=kind or None,
                    size_bytes=size if size is not None and size >= 0 else None,
                    duration_s=get_number(file, "duration_secs"),
                    recorded=bool((get_int(data, "flags") or 0) & _VOICE_FLAG),
                )
            )
    return tuple(found)
