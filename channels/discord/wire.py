"""Events of the gateway, and messages of the history, as notifications; options of commands as
text. Pure.

Every parser accepts any object and returns None for irrelevant or unreadable data: a payload that
Discord changes is dropped, and nothing fails.
https://discord.com/developers/docs/events/gateway-events
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

from channels.base import CommandArg, CommandSpec, Rejected, SubcommandSpec
from channels.discord.directory import (
    SILENT_TYPES,
    DiscordDirectory,
    display_name,
    extra_lines,
    interaction_sender,
    is_direct_interaction,
    mentioned_handles,
    mentions_us,
    message_files,
    resolve_references,
    user_sender,
)
from channels.discord.ids import get_snowflake, get_snowflakes, parse_id, snowflake_time
from channels.split import utf16_length
from channels.text import (
    Json,
    clean_text,
    get_bool,
    get_datetime,
    get_int,
    get_number,
    get_object,
    get_objects,
    get_raw_str,
    get_str,
    parse_button_command,
    single_line,
)
from gateway.core.events import (
    EDITED,
    MAX_QUOTED_CHARS,
    Address,
    Attachment,
    Command,
    EventId,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Notification,
    QuotedMessage,
    ReactionChanged,
    Receipt,
    Sender,
    SenderId,
    ThreadId,
)

_SUBCOMMAND: Final = 1
_EMPTY_ARG: Final = '""'
"""Placeholder of an omitted argument before a later one."""


def format_options(command: Json, specs: Sequence[CommandSpec]) -> str:
    """Return the options as command text: a subcommand, and the arguments in the table's order,
    quoted where needed.

    People give options in any order and leave some out. Options that the table does not have (of an
    outdated menu) come last, so that the parser reports them as surplus.
    https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-application-command-data-structure
    """
    spec = next((row for row in specs if row.name == get_str(command, "name").lower()), None)
    options, words = get_objects(command, "options"), list[str]()
    definition: CommandSpec | SubcommandSpec | None = spec
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        name = get_str(options[0], "name").lower()
        definition = next((sub for sub in spec.subs if sub.name == name), None) if spec else None
        words, options = [quote_word(name)], get_objects(options[0], "options")
    values = {get_str(option, "name"): _option_value(option) for option in options}
    words += _ordered_words(definition.args if definition is not None else (), values)
    return " ".join([*words, *(quote_word(value) for value in values.values())])


def find_focused(command: Json) -> tuple[str, str, str, dict[str, str]] | None:
    """Return subcommand, option and current text of the option being typed, and the other options.
    None: none is.
    """
    options, sub = get_objects(command, "options"), ""
    if options and get_int(options[0], "type") == _SUBCOMMAND:
        sub, options = get_str(options[0], "name"), get_objects(options[0], "options")
    found = next((option for option in options if get_bool(option, "focused")), None)
    if found is None:
        return None
    given = {
        get_str(option, "name"): _option_value(option) for option in options if option is not found
    }
    return sub, get_str(found, "name"), _option_value(found), given


def quote_word(word: str) -> str:
    """Return `word` as one word of command text."""
    word = " ".join(clean_text(word).split())
    if re.fullmatch(r'[^\s"“„”`]\S*', word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ordered_words(args: Sequence[CommandArg], values: dict[str, str]) -> list[str]:
    """Remove the table's arguments from `values` and return them as words."""
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


class DiscordRefused(Rejected):
    """Discord answered with a 4xx: surely not done."""

    def __init__(self, reason: str, *, status: int, code: int = 0) -> None:
        super().__init__(reason)
        self.status, self.code = status, code


def parse_channel_id(
    to: Address, directory: DiscordDirectory, message: MessageId | None = None
) -> str:
    """Return the Discord channel of an address: a thread is a channel. Raises `Rejected`.

    `message`: of this one, if it is known there; the message that a thread is made of stands in the
    room.
    """
    room = directory.places.get(to.room)
    # The first message of a post in a forum has the id of the post, and stands in it.
    is_post = room is not None and room.kind in SILENT_TYPES
    stands_in_room = to.thread in directory.unopened or (str(message) == to.thread and not is_post)
    name = to.room if to.thread is None or stands_in_room else to.thread
    return _require_id(name, "channel")


def _require_id(name: str, what: str) -> str:
    if found := parse_id(name):
        return found
    raise Rejected(f"{name!r} is not a {what} of Discord")


def parse_message_id(message: MessageId) -> str:
    """Return the message's id. Raises `Rejected`: answers to commands have ids, too, but cannot be
    used.
    """
    return _require_id(message.removesuffix(EDITED), "message")


def parse_reply_id(message: MessageId | None) -> str:
    """Return the message that an answer to `message` replies to: itself, or what it asks about.
    Empty: none.
    """
    return parse_id(
        message.rpartition(":")[2]
        if message and message.startswith(ASK_PREFIX)
        else (message or "").removesuffix(EDITED)
    )


def build_receipt(answer: object) -> Receipt:
    """Return the receipt for Discord's message object."""
    found = get_snowflake(answer, "id")
    return Receipt(ids=(MessageId(found),) if found else ())


_USER_MESSAGE_TYPES = frozenset({0, 19, 20, 23})
"""Message types: plain, reply, and answers of other bots to commands. All others are written by
Discord."""
_THREAD_STARTER_TYPE = 21
"""First message in a thread that was created from a message, which is its `referenced_message`."""
_FORWARD_TYPE = 1
_VOICE_FLAG = 1 << 13
"""Voice message
(https://discord.com/developers/docs/resources/message#message-object-message-flags)."""
_MAX_EDIT_AGE = timedelta(minutes=10)
"""An update is an edit if its `edited_timestamp` is newer: pins and link previews repeat an old
one."""
_SLASH_COMMAND = 2, 1
"""Interaction and command type."""
_BUTTON = 3, 2
"""Interaction and component type."""
INTERACTION_PREFIX = "interaction:"
"""Prefix of the ids of native commands and taps: it distinguishes their answers from replies to
messages."""
ASK_PREFIX: Final = "ask:"
"""Prefix of a form's `custom_id`, which goes on with the message asked about, and of the id of such
a question, which goes on with the interaction and that message."""
ASKED_KEY: Final = "_asked"
"""Field of our own in a sent form: the message asked about."""
_MESSAGE_COMMAND: Final = 2, 3
"""Interaction and command type."""
_FORM: Final = 5
_EXPLAIN: Final = "Explain this message."
"""Question of somebody who left the form empty."""
_ATTACHMENT_FORMS: dict[str, Literal["image", "audio", "video"]] = {
    "image": "image",
    "audio": "audio",
    "video": "video",
}


def parse_message(data: Json, directory: DiscordDirectory) -> Message | None:
    """Return a message of somebody else. `directory` must know the channel."""
    number_, channel = get_snowflake(data, "id"), get_snowflake(data, "channel_id")
    is_thread_starter = get_int(data, "type") == _THREAD_STARTER_TYPE
    if is_thread_starter:
        if directory.is_own_thread(channel):
            return None  # the conversation there begins with it
        first = get_object(data, "referenced_message")
        data = {**first, "guild_id": data.get("guild_id")} if first else {}
    sender = _parse_author(data)
    if not number_ or not channel or sender is None or sender.id == directory.own_id:
        return None
    if not _is_user_message(data):
        return None
    where = (
        (get_snowflake(data, "channel_id") or channel, get_snowflake(data, "id"))
        if is_thread_starter
        else (channel, number_)
    )
    (text, carried), files = (
        _message_text(data, sender, directory),
        _parse_attachments(data, *where),
    )
    if not text and not files:
        return None
    # Whoever calls us, and goes on with nothing that we said, is answered in a thread.
    opens = (
        not is_thread_starter
        and directory.opens_threads(get_snowflake(data, "channel_id"))
        and _message_kind(data, directory) == "mention"
        and not _is_reply_to(data, directory.own_id)
        and not _COMMAND_TEXT.match(text)
    )
    room = directory.address(channel)
    return Message(
        id=MessageId(number_),
        at=replace(room, thread=ThreadId(number_)) if opens else room,
        sender=sender,
        text=text,
        sent=snowflake_time(number_),
        kind="room"
        if is_thread_starter
        else _message_kind(data, directory),  # its addressee got it in the channel
        reply_to=None if is_thread_starter else _reply_target(data),
        attachments=files,
        carried=carried,
        quoted=None if is_thread_starter else _quoted_message(data, directory),
        opens_thread=opens,
    )


_COMMAND_TEXT = re.compile(r"(?:@\S+\s+)?[!/]\w")
"""A command in words, as far as the usual prefix tells."""


_MAX_TITLE_CHARS = 100
"""https://discord.com/developers/docs/resources/channel#start-thread-from-message."""
_TITLE_CHARS = 60
_MARKUP = re.compile(
    r"<(?:@[!&]?|#|a?:\w+:|/[^:>]+:|t:)[-\d\w:]+>|\*\*|__|~~|\|\||`|\A[#>\s]+|@(?=\w)"
)


def thread_title(title: str, question: Message | None) -> str:
    """Return the title of a thread: `title` if it has any text, else the first words of the message
    that it is made of.

    One line of at most `_MAX_TITLE_CHARS`, without mentions.
    """
    text = single_line(_MARKUP.sub("", title), _MAX_TITLE_CHARS)
    if not text and question is not None:
        said = re.sub(r"\A\s*@\S+[,:]?\s+", "", question.text)
        text = " ".join(_MARKUP.sub("", said).split())
        if len(text) > _TITLE_CHARS:
            text = text[:_TITLE_CHARS].rsplit(" ", 1)[0] + "…"
        text = single_line(text or question.sender.name, _MAX_TITLE_CHARS)
    while utf16_length(text) > _MAX_TITLE_CHARS:
        text = text[:-1]
    return text or "Question"


def _quoted_message(data: Json, directory: DiscordDirectory) -> QuotedMessage | None:
    replied = get_object(data, "referenced_message")
    if not _reply_target(data) or _message_kind(data, directory) == "room":
        return None
    author = _parse_author(replied)
    files = _parse_attachments(
        replied, get_snowflake(replied, "channel_id"), get_snowflake(replied, "id")
    )
    if author is None:
        return None
    known = author.id in {directory.own_id, get_snowflake(get_object(data, "author"), "id")}
    text = "" if known else _message_text(replied, author, directory)[0][:MAX_QUOTED_CHARS]
    return QuotedMessage(sender=author, text=text, attachments=files) if text or files else None


def parse_edit(data: Json, directory: DiscordDirectory, now: datetime) -> MessageEdited | None:
    """Return the edit of a message."""
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
        at=directory.address(channel, number_),
        sender=sender,
        message=MessageId(number_),
        text=text,
        sent=when,
        direct=_is_direct(data, directory),
        mention=_message_kind(data, directory) == "mention",
        carried=carried,
    )


def parse_deletes(data: Json, directory: DiscordDirectory, now: datetime) -> list[MessageDeleted]:
    """Return the deletions of messages, one by one or in bulk."""
    channel = get_snowflake(data, "channel_id")
    if not channel:
        return []
    ids = [get_snowflake(data, "id"), *get_snowflakes(data, "ids")]
    direct = _is_direct(data, directory)
    return [
        MessageDeleted(
            id=EventId(found),
            at=directory.address(channel, found),
            message=MessageId(found),
            sent=now,
            direct=direct,
        )
        for found in ids
        if found
    ]


def parse_reaction(
    data: Json, directory: DiscordDirectory, now: datetime, nonce: str, *, added: bool
) -> ReactionChanged | None:
    """Return an added or removed reaction. `nonce` makes its id unique among equal ones."""
    channel, user, to = (
        get_snowflake(data, key) for key in ("channel_id", "user_id", "message_id")
    )
    emoji, known = get_object(data, "emoji"), get_object(get_object(data, "member"), "user")
    emoji_name, sender = get_str(emoji, "name"), user_sender({**known, "id": user}, data)
    if not channel or not to or not emoji_name or sender is None or user == directory.own_id:
        return None
    return ReactionChanged(
        id=EventId(f"{to}.{user}.{nonce}"),
        at=directory.address(channel, to),
        sender=sender,
        message=MessageId(to),
        reaction=f":{custom}:" if (custom := get_snowflake(emoji, "id")) else emoji_name,
        added=added,
        sent=now,
        direct=_is_direct(data, directory),
    )


def parse_command(
    data: Json, directory: DiscordDirectory, specs: Sequence[CommandSpec] = ()
) -> Command | None:
    """Return a native slash command of ours, or a tap on a button as its command; None: neither.

    The sender of a tap is who tapped, whoever the message was for. `specs`: the command table, for
    the order of the arguments.
    """
    number_, channel = get_snowflake(data, "id"), get_snowflake(data, "channel_id")
    command, sender, tapped = (
        get_object(data, "data"),
        interaction_sender(data),
        button_command(data),
    )
    is_slash = (get_int(data, "type"), get_int(command, "type")) == _SLASH_COMMAND
    slash = (
        (get_str(command, "name").lower(), format_options(command, specs)) if is_slash else ("", "")
    )
    name, args = tapped or slash
    if not (number_ and channel and sender and name):
        return None
    return Command(
        id=EventId(INTERACTION_PREFIX + number_),
        at=directory.address(channel),
        sender=sender,
        name=name,
        args=args,
        sent=snowflake_time(number_),
        origin="button" if tapped else "native",
        direct=is_direct_interaction(data),
        language=get_str(data, "locale") or None,
    )


def button_command(data: Json) -> tuple[str, str] | None:
    """Return name and arguments of the command that an interaction gives by a tap on a button.
    None: it is no tap.

    https://discord.com/developers/docs/components/reference#button
    """
    component = get_object(data, "data")
    if (get_int(data, "type"), get_int(component, "component_type")) != _BUTTON:
        return None
    return parse_button_command(get_raw_str(component, "custom_id"))


def asked_message(data: Json) -> tuple[str, Json] | None:
    """Return id and data of the message on which somebody used our menu. None: it is no such
    interaction.

    https://discord.com/developers/docs/interactions/application-commands#message-commands
    """
    command = get_object(data, "data")
    if (get_int(data, "type"), get_int(command, "type")) != _MESSAGE_COMMAND:
        return None
    target = get_snowflake(command, "target_id")
    return (
        (target, get_object(get_object(get_object(command, "resolved"), "messages"), target))
        if target
        else None
    )


def form_target(data: Json) -> str:
    """Return the message that a sent form asks about; empty if it is no form of ours."""
    form_id = get_raw_str(get_object(data, "data"), "custom_id")
    is_ours = get_int(data, "type") == _FORM and form_id.startswith(ASK_PREFIX)
    return parse_id(form_id.removeprefix(ASK_PREFIX)) if is_ours else ""


def _parse_question(data: Json, directory: DiscordDirectory) -> Message | None:
    """Return a sent form as a question about a message. `ASKED_KEY` of the form: that message, if
    it is known.
    """
    number_, channel = get_snowflake(data, "id"), get_snowflake(data, "channel_id")
    target, sender = form_target(data), interaction_sender(data)
    if not (target and number_ and channel and sender):
        return None
    rows = get_objects(get_object(data, "data"), "components")
    inputs = [
        get_object(row, "component") or next(iter(get_objects(row, "components")), {})
        for row in rows
    ]
    question = next(
        (text for field in inputs if (text := clean_text(get_str(field, "value")).strip())),
        _EXPLAIN,
    )
    asked, quoted = get_object(data, ASKED_KEY), None
    if author := _parse_author(asked):
        text, files = (
            _message_text(asked, author, directory)[0],
            _parse_attachments(asked, channel, target),
        )
        quoted = QuotedMessage(sender=author, text=text[:MAX_QUOTED_CHARS], attachments=files)
    return Message(
        id=MessageId(f"{ASK_PREFIX}{number_}:{target}"),
        at=directory.address(channel),
        sender=sender,
        text=question,
        sent=snowflake_time(number_),
        kind="direct" if is_direct_interaction(data) else "mention",
        reply_to=MessageId(target),
        quoted=quoted,
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
    """Return the notifications of one gateway event. `specs`: see `parse_command`."""
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
            found = parse_command(data, directory, specs) or _parse_question(data, directory)
    return [] if found is None else [found]


def _parse_author(data: Json) -> Sender | None:
    """Return the author. A webhook can take any name and picture, so only its id identifies it."""
    author = get_object(data, "author")
    webhook_id = get_snowflake(data, "webhook_id")
    # An answer to another bot's command has its application as `webhook_id`, and is that bot's own
    # message.
    if webhook_id and webhook_id != get_snowflake(data, "application_id"):
        return Sender(
            id=SenderId(f"webhook:{webhook_id}"),
            name=display_name(author) or webhook_id,
            is_bot=True,
        )
    return user_sender({**author, "bot": True} if webhook_id else author, data)


def _is_user_message(data: Json) -> bool:
    return (get_int(data, "type") or 0) in _USER_MESSAGE_TYPES


def _message_text(data: Json, sender: Sender, directory: DiscordDirectory) -> tuple[str, str]:
    """Return the whole text, and the part of it that the sender did not write."""
    text = resolve_references(get_str(data, "content"), mentioned_handles(data), directory).strip(
        "\n"
    )
    lines = [text] if text.strip() else []
    others = extra_lines(data, directory, embeds=sender.is_bot)
    carried = others if sender.is_bot or get_objects(data, "message_snapshots") else []
    return "\n".join([*lines, *others]), "\n".join(carried)


def _reply_target(data: Json) -> MessageId | None:
    reference = get_object(data, "message_reference")
    to = get_snowflake(reference, "message_id")
    same = get_snowflake(reference, "channel_id") in {"", get_snowflake(data, "channel_id")}
    return MessageId(to) if to and same and get_int(reference, "type") != _FORWARD_TYPE else None


def _is_direct(data: Json, directory: DiscordDirectory) -> bool:
    """Return whether it happened outside of guilds.

    Guild events name their guild, and its channels are known before their history is read.
    """
    return not get_snowflake(data, "guild_id") and directory.is_direct(
        get_snowflake(data, "channel_id")
    )


def _message_kind(
    data: Json, directory: DiscordDirectory
) -> Literal["direct", "mention", "reply", "room"]:
    """Return whom the message addresses; mentions of everybody, or of a role that people have, do
    not address us.
    """
    if _is_direct(data, directory):
        return "direct"
    me = directory.own_id
    if mentions_us(get_str(data, "content"), me) or any(
        map(directory.is_own_role, get_snowflakes(data, "mention_roles"))
    ):
        return "mention"
    if _is_reply_to(data, me):  # a reply pings its addressee, so `mentions` proves nothing here
        return "reply"
    mentioned = [get_snowflake(user, "id") for user in get_objects(data, "mentions")]
    if me and me in mentioned:
        return "mention"
    # In a thread that we have opened people talk to us, unless they name somebody else.
    is_ours = directory.is_own_thread(get_snowflake(data, "channel_id")) and not (
        mentioned or _reply_target(data)
    )
    return "reply" if is_ours else "room"


def _is_reply_to(data: Json, user: str) -> bool:
    author = get_object(get_object(data, "referenced_message"), "author")
    return bool(user) and get_snowflake(author, "id") == user and bool(_reply_target(data))


def _parse_attachments(data: Json, channel: str, message_id: str) -> tuple[Attachment, ...]:
    found = []
    for file in message_files(data):
        number_, kind, size = (
            get_snowflake(file, "id"),
            get_str(file, "content_type"),
            get_int(file, "size"),
        )
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
