"""Updates of the Bot API as notifications (core.telegram.org/bots/api#update). Pure.

`parse_updates` parses raw updates with the library's models; `parse_update` and the functions
around it read one update. `UpdateReader` reads batches: it joins albums, remembers moved groups,
and advances the cursor.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import telegram

from channels.aio import RoomSignals
from channels.base import Audience
from channels.telegram.content import (
    UNTOLD_SERVICE,
    describe_content,
    describe_service,
    passes_on,
    read_rich_text,
)
from channels.telegram.ids import TAP_PREFIX, MessageNumbers
from channels.telegram.people import (
    TelegramUpdateContext,
    changed_members,
    forward_origin_name,
    full_name,
    is_present,
    origin_name,
    parse_attachments,
    parse_message_id,
    parse_place,
    parse_sender,
    parse_user,
    sender_of,
)
from channels.telegram.render import Utf16Text, quote_lines, to_markdown
from channels.text import clean_name, clean_text, parse_button_command, single_line
from gateway.core.events import (
    MAX_QUOTED_CHARS,
    NOTIFICATION,
    Address,
    Command,
    EventId,
    MembershipChanged,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    PlaceNames,
    QuotedMessage,
    ReactionChanged,
    Sender,
    SenderId,
)
from gateway.core.frozen import frozen
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.telegram")
_MAX_UPDATE_ID = 2**52
_ESSENTIAL = (
    "message_id date chat from sender_chat sender_business_bot user actor_chat id chat_instance "
    "message is_topic_message message_thread_id forward_origin forward_from forward_from_chat "
    "forward_date via_bot is_automatic_forward quote external_reply old_reaction new_reaction "
    "old_chat_member new_chat_member migrate_to_chat_id migrate_from_chat_id text caption data"
)
_ESSENTIAL_FIELDS = frozenset(_ESSENTIAL.split())
"""Fields that say where an event happened, who acted, what was said, and what its sender did not
write. Where one of them is odd, the event is dropped as a whole."""


def parse_updates(found: Iterable[object]) -> tuple[telegram.Update, ...]:
    """Parse raw updates, each id once, in their order.

    The library refuses a whole batch for one odd update. Here such an update is read by its
    essential fields, or is empty, and what has no id is no update. `UpdateReader` checks the events
    of an update.
    """
    updates = {
        update["update_id"]: update
        for update in found
        if isinstance(update, dict)
        and type(number := update.get("update_id")) is int
        and 0 < number < _MAX_UPDATE_ID
    }
    return tuple(_parse_raw(updates[number]) for number in sorted(updates))


def _parse_raw(raw: dict[str, Any]) -> telegram.Update:
    with contextlib.suppress(Exception):  # whatever is odd
        return _parse_sound(raw)
    logger.warning(
        "update %d is read only in part: it is not as the Bot API describes it", raw["update_id"]
    )
    with contextlib.suppress(Exception):
        return _parse_sound(_essence(raw))
    return telegram.Update(raw["update_id"])


def _parse_sound(raw: dict[str, Any]) -> telegram.Update:
    """Return the parsed update. Raises whatever the library does, and TypeError: its models check
    no types.
    """
    update = telegram.Update.de_json(raw)
    message = update.message or update.edited_message or update.message_reaction
    chat, user = update.effective_chat, update.effective_user
    ids = [number for changed in changed_members(update) for number in changed]
    ids += [message.message_id, message.chat.id] if message else []
    ids += [chat.id if chat else 0, user.id if user else 0]
    is_dated = message is None or isinstance(message.date, datetime)
    if (
        not is_dated
        or any(type(number) is not int for number in ids)
        or not isinstance(chat.type if chat else "", str)
    ):
        raise TypeError("a date, an id or a type of chat is none")
    return update


def _essence(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: value for name, value in event.items() if name in _ESSENTIAL_FIELDS}
        if isinstance(event, dict)
        else event
        for kind, event in raw.items()
    }


_MAX_TITLE_CHARS = 128
_MAX_PLACES = 10_000
"""Chats and forum topics whose names and audiences are kept; names of earlier ones are in the
log."""


def parse_membership(
    message: telegram.Message, context: TelegramUpdateContext
) -> tuple[MembershipChanged, ...]:
    """Return the events of a service message; empty for other messages.

    Our own membership is left out: `parse_own_membership` handles it.
    """
    sender = parse_sender(message)
    if sender is None:
        return ()
    at, number, own = (
        parse_place(message, context),
        parse_message_id(message, context),
        str(context.own_id),
    )

    def event(
        change: Literal["join", "part", "kick", "title"],
        member: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> MembershipChanged:
        return MembershipChanged(
            id=EventId(f"{number}.{index}"),
            at=at,
            sender=member,
            change=change,
            sent=message.date,
            subject=subject,
            text=text,
        )

    joined = [member for user in message.new_chat_members if (member := parse_user(user)).id != own]
    if joined:
        return tuple(event("join", member, index) for index, member in enumerate(joined))
    if message.left_chat_member and (left := parse_user(message.left_chat_member)).id != own:
        return (
            event("part", left)
            if left.id == sender.id
            else event("kick", sender, subject=left.name),
        )
    topic = message.forum_topic_created or message.forum_topic_edited
    title = single_line(
        message.new_chat_title or (topic.name if topic else None) or "", _MAX_TITLE_CHARS
    )
    return (event("title", sender, text=title),) if title and sender.id != own else ()


def _chat_names(chat: telegram.Chat) -> PlaceNames:
    if chat.type == "private":
        handle = clean_name(chat.username or "")
        return PlaceNames(person=full_name(chat) or None, handle=f"@{handle}" if handle else "")
    # Updates do not contain the descriptions of groups, and nothing else in a group is a topic.
    return PlaceNames(room=clean_text(chat.title or "") or None, topic="")


_OWN_CHANGES: Final[Mapping[tuple[bool, bool], Literal["join", "part", "invite", "kick"]]] = {
    (True, True): "join",
    (True, False): "part",
    (False, True): "invite",
    (False, False): "kick",
}
"""Whether a chat is private, and whether we are there now -> what has happened to us."""


def parse_own_membership(
    event: telegram.ChatMemberUpdated, context: TelegramUpdateContext, update_id: int
) -> tuple[MembershipChanged, ...]:
    """Return the event of being added to or removed from a place; in private: blocked or unblocked
    by somebody.
    """
    before, after = is_present(event.old_chat_member), is_present(event.new_chat_member)
    if before is after:
        return ()
    change = _OWN_CHANGES[event.chat.type == "private", after]
    return (
        MembershipChanged(
            id=EventId(f"{update_id}.me"),
            at=parse_place(event, context),
            sender=parse_user(event.from_user),
            change=change,
            sent=event.date,
            subject=full_name(event.new_chat_member.user) or None if change == "kick" else None,
            text=clean_name(event.chat.title or "") or None if change == "invite" else None,
        ),
    )


MessageKind = Literal["direct", "mention", "reply", "room"]


def _texts(message: telegram.Message) -> Iterator[tuple[str, Sequence[telegram.MessageEntity]]]:
    if message.text:
        yield message.text, message.entities
    if message.caption:
        yield message.caption, message.caption_entities


def parse_command(
    message: telegram.Message, context: TelegramUpdateContext
) -> tuple[str, str] | None:
    """Return name and arguments of a command that is addressed to us.

    A command that was forwarded, or sent through an inline bot, does not count: its sender did not
    write it. For the same reason a mention stands in the arguments as `mention_of` has it.
    """
    is_foreign = (
        bool(forward_origin_name(message))
        or message.via_bot is not None
        or message.is_automatic_forward
    )
    first = next((entity for entity in message.entities if entity.offset == 0), None)
    if first is None or first.type != "bot_command" or is_foreign:
        return None
    units = Utf16Text(message.text or "")
    where = units.find_span(first)
    if where is None:
        return None
    word, _, addressee = units.cut(*where).removeprefix("/").partition("@")
    ours = (
        addressee.casefold() == context.username.casefold()
        if addressee
        else message.chat.type == "private"
        or not context.commands
        or word.lower() in context.commands
    )
    mentions = [entity for entity in message.entities if entity.type == "text_mention"]
    args = to_markdown(message.text or "", mentions).removeprefix(units.cut(*where)).strip()
    return (word.lower(), args) if word and ours else None


def replied_message(message: telegram.Message) -> telegram.Message | None:
    """Return the message that this one replies to.

    A message in a topic "replies" to the topic's beginning, which does not count.
    """
    replied = message.reply_to_message
    is_topic_start = replied is not None and (
        replied.forum_topic_created is not None or replied.message_id == message.message_thread_id
    )
    return None if message.is_topic_message and is_topic_start else replied


def message_kind(
    message: telegram.Message, context: TelegramUpdateContext, replied: telegram.Message | None
) -> MessageKind:
    """Return whom the message addresses. `replied`: the result of `replied_message`."""
    if message.chat.type == "private":
        return "direct"
    if any(_mentions_us(text, entities, context) for text, entities in _texts(message)):
        return "mention"
    return (
        "reply"
        if replied and replied.from_user and replied.from_user.id == context.own_id
        else "room"
    )


def _mentions_us(
    text: str, entities: Iterable[telegram.MessageEntity], context: TelegramUpdateContext
) -> bool:
    units = Utf16Text(text)
    for entity in entities:
        if entity.type == "text_mention" and entity.user and entity.user.id == context.own_id:
            return True
        if (
            entity.type in ("mention", "bot_command")
            and context.username
            and (where := units.find_span(entity))
        ):
            named = units.cut(*where).partition("@")[2]
            if named.casefold() == context.username.casefold():
                return True
    return False


ALLOWED_UPDATES = (
    "message",
    "edited_message",
    "message_reaction",
    "callback_query",
    "my_chat_member",
    "chat_member",
)
"""Kinds of updates to request. Reactions and changed members must be requested by name, and are
sent to administrators only. Posts of channels, and messages to channels, to business accounts and
in guest mode, are not read."""


def parse_update(
    update: telegram.Update, context: TelegramUpdateContext, now: datetime
) -> tuple[Notification, ...]:
    """Return the events of an update; empty for irrelevant ones. `now` is the time of those without
    one.
    """
    chat = update.effective_chat
    if chat is not None and chat.is_direct_messages:
        return ()  # private chats of a channel with many people, whom nothing else keeps apart
    if message := update.message:
        return _parse_message(message, context)
    if edited := update.edited_message:
        return _parse_edit(edited, context, update.update_id)
    if update.message_reaction:
        return _parse_reactions(update.message_reaction, context, update.update_id)
    if update.callback_query:
        return _parse_button(update.callback_query, context, now)
    if update.my_chat_member and update.my_chat_member.chat.type != telegram.Chat.CHANNEL:
        return parse_own_membership(update.my_chat_member, context, update.update_id)
    return ()


def parse_migration(update: telegram.Update) -> tuple[str, str] | None:
    """Return the old and the new id of a group, if this update reports that it became a
    supergroup.
    """
    message = update.message
    if message and message.migrate_to_chat_id:
        return str(message.chat.id), str(message.migrate_to_chat_id)
    if message and message.migrate_from_chat_id:
        return str(message.migrate_from_chat_id), str(message.chat.id)
    return None


def album_key(update: telegram.Update) -> str:
    """Return the key of the album that the update's picture belongs to; empty if none."""
    message = update.message
    return (
        f"{message.chat.id}/{message.media_group_id}" if message and message.media_group_id else ""
    )


def merge_album(messages: list[Message]) -> Message:
    """Return the pictures of one album, in order, as one message."""
    order: tuple[MessageKind, ...] = ("direct", "mention", "reply", "room")
    return replace(
        messages[0],
        text="\n".join(message.text for message in messages if message.text),
        kind=min((message.kind for message in messages), key=order.index),
        attachments=tuple(item for message in messages for item in message.attachments),
        carried="\n".join(message.carried for message in messages if message.carried),
    )


def _parse_message(
    message: telegram.Message, context: TelegramUpdateContext
) -> tuple[Notification, ...]:
    sender = parse_sender(message)
    if sender is None:
        return ()
    if memberships := parse_membership(message, context):
        return memberships
    if sender.id == str(context.own_id):
        return ()
    at, number = parse_place(message, context), parse_message_id(message, context)
    if command := parse_command(message, context):
        return (_to_command(message, command, EventId(number), at, sender),)
    (text, carried), files = _message_text(message), parse_attachments(message)
    if not text.strip() and not files:
        return _parse_service(message, context, sender)
    replied = replied_message(message)
    kind = message_kind(message, context, replied)
    return (
        Message(
            id=number,
            at=at,
            sender=sender,
            text=text,
            sent=message.date,
            kind=kind,
            reply_to=parse_message_id(message, context, replied) if replied else None,
            attachments=files,
            language=_language(message.from_user),
            carried=carried,
            quoted=_quoted_message(message, context) if kind != "room" else None,
        ),
    )


def _to_command(
    message: telegram.Message,
    command: tuple[str, str],
    event_id: EventId,
    at: Address,
    sender: Sender,
) -> Command:
    return Command(
        id=event_id,
        at=at,
        sender=sender,
        name=command[0],
        args=command[1],
        sent=message.edit_date or message.date,
        origin="native",
        direct=message.chat.type == "private",
        language=_language(message.from_user),
    )


def _parse_service(
    message: telegram.Message, context: TelegramUpdateContext, sender: Sender
) -> tuple[Message, ...]:
    """Return what happened in the chat as a line of whoever did it, which is no reason for an
    answer.

    In a private chat, what cannot be read is a message: whoever sent it waits for an answer.
    """
    private, told = message.chat.type == "private", describe_service(message)
    if not told and (not private or any(getattr(message, name) for name in UNTOLD_SERVICE)):
        return ()
    pinned = message.pinned_message
    return (
        Message(
            id=parse_message_id(message, context),
            at=parse_place(message, context),
            sender=sender,
            text=told or "[a kind of message that is not read here]",
            sent=message.date,
            kind="direct" if private else "room",
            reply_to=parse_message_id(message, context, pinned)
            if isinstance(pinned, telegram.Message)
            else None,
            carried=told if passes_on(message) else "",
            history=bool(told),
        ),
    )


def _parse_edit(
    message: telegram.Message, context: TelegramUpdateContext, update_id: int
) -> tuple[Notification, ...]:
    sender = parse_sender(message)
    if sender is None or sender.id == str(context.own_id):
        return ()
    if message.location and message.location.live_period is not None:
        return ()  # a live location, updated every few seconds
    at, number = parse_place(message, context), parse_message_id(message, context)
    direct = message.chat.type == "private"
    if direct and message.edit_date and (command := parse_command(message, context)):
        # Telegram also reports changes that nobody made (core.telegram.org/bots/api#update); those
        # have no edit date, or that of the last edit, so the same id.
        edited = EventId(f"{number}.{int(message.edit_date.timestamp())}")
        return (_to_command(message, command, edited, at, sender),)
    text, carried = _message_text(message)
    return (
        MessageEdited(
            id=EventId(f"{number}.{update_id}"),
            at=at,
            sender=sender,
            message=number,
            text=text,
            sent=message.edit_date or message.date,
            direct=direct,
            mention=message_kind(message, context, None) == "mention",
            carried=carried,
        ),
    )


def _parse_reactions(
    event: telegram.MessageReactionUpdated, context: TelegramUpdateContext, update_id: int
) -> tuple[Notification, ...]:
    sender = sender_of(event.user, event.actor_chat)
    if sender is None or sender.id == str(context.own_id):
        return ()
    old, new = (
        [
            clean_name(getattr(one, "emoji", getattr(one, "custom_emoji_id", one.type)))
            for one in reactions
        ]
        for reactions in (event.old_reaction, event.new_reaction)
    )
    changes = [(name, False) for name in old if name not in new] + [
        (name, True) for name in new if name not in old
    ]
    return tuple(
        ReactionChanged(
            id=EventId(f"{update_id}.{index}"),
            at=parse_place(event, context),
            sender=sender,
            message=parse_message_id(event, context),
            reaction=reaction,
            added=added,
            sent=event.date,
            direct=event.chat.type == "private",
        )
        for index, (reaction, added) in enumerate(dict.fromkeys(changes))
        if reaction
    )


def _language(user: telegram.User | None) -> str | None:
    return clean_text((user.language_code if user else None) or "") or None


def _parse_button(
    query: telegram.CallbackQuery, context: TelegramUpdateContext, now: datetime
) -> tuple[Notification, ...]:
    """Return a tap on a button under a message as its command; the sender is who tapped, whoever
    the message was for.

    A tap has no time of its own, and may come late after an outage: its command names what it
    decides about, and that expires by itself. Buttons of inline results have no place.
    """
    command = parse_button_command(query.data or "")
    if query.message is None or command is None:
        return ()
    return (
        Command(
            id=EventId(TAP_PREFIX + clean_text(query.id)),
            at=parse_place(query.message, context),
            sender=parse_user(query.from_user),
            name=command[0],
            args=command[1],
            sent=now,
            origin="button",
            direct=query.message.chat.type == "private",
            language=_language(query.from_user),
        ),
    )


def _message_text(message: telegram.Message) -> tuple[str, str]:
    """Return the whole text, and the part of it that the sender did not write."""
    lines = []
    if forwarded := forward_origin_name(message):
        lines.append(f"(forwarded from {forwarded})")
    if via := clean_name((message.via_bot.username if message.via_bot else None) or ""):
        lines.append(f"(by way of @{via})")
    if quote := _quoted_text(message):
        lines.append(quote)
    lines += [to_markdown(text, entities) for text, entities in _texts(message)]
    if rich := read_rich_text(message.api_kwargs.get("rich_message")):
        lines.append(rich)
    if described := describe_content(message):
        lines.append(described)
    text = "\n".join(lines)
    if forwarded or message.via_bot:
        return text, text
    return text, "\n".join(filter(None, [quote, described if passes_on(message) else ""]))


def _quoted_text(message: telegram.Message) -> str:
    """Return quoted text that is no whole message of this chat: a selected part, or a message of
    another chat.
    """
    quoted, added = (message.quote.text, False) if message.quote else _replied_item(message)
    quoted, external, prefix = clean_text(quoted), message.external_reply, ""
    if external:
        prefix = f"{origin_name(external.origin)}: "
        quoted = quoted or describe_content(external) or "(another chat)"
    if not quoted.strip():
        return ""
    # Lines of a quotation alone count as words of the sender of the message replied to.
    return ("(perhaps added by somebody else:)\n" if added else "") + quote_lines(
        prefix + (quoted if len(quoted) <= MAX_QUOTED_CHARS else quoted[:MAX_QUOTED_CHARS] + "…")
    )


def _replied_item(message: telegram.Message) -> tuple[str, bool]:
    """Return the item of a poll or checklist that a message replies to, or that it replies to a
    story; and whether others than the sender of that message may have written the item.
    """
    if message.reply_to_story is not None:
        return "(a story, which bots cannot open)", False
    if (replied := message.reply_to_message) is None:
        return "", False
    option, listed, author = message.reply_to_poll_option_id, replied.checklist, replied.from_user
    found = [
        (one.text, bool(one.added_by_chat) or one.added_by_user not in {None, author})
        for one in (replied.poll.options if replied.poll and option is not None else ())
        if one.persistent_id == option
    ]
    found += [
        (one.text, bool(listed and listed.others_can_add_tasks))
        for one in (listed.tasks if listed else ())
        if one.id == message.reply_to_checklist_task_id
    ]
    return found[0] if found else ("", False)


def _quoted_message(
    message: telegram.Message, context: TelegramUpdateContext
) -> QuotedMessage | None:
    """Return the message that this one replies to, with the files of it, also if it stands in
    another chat.
    """
    replied = replied_message(message)
    if replied is None:
        external = message.external_reply
        files = parse_attachments(external) if external else ()
        if external is None or not files:
            return None
        user = getattr(external.origin, "sender_user", None)
        sender = (
            parse_user(user) if user else Sender(id=SenderId(""), name=origin_name(external.origin))
        )
        return QuotedMessage(sender=sender, attachments=files)
    author, files = parse_sender(replied), parse_attachments(replied)
    if author is None:
        return None
    replier = parse_sender(message)
    known = author.id in {str(context.own_id), replier.id if replier else ""}
    text = (
        ""
        if known
        else "\n".join(to_markdown(*one) for one in _texts(replied)) or describe_content(replied)
    )
    if not text.strip() and not files:
        return None
    return QuotedMessage(sender=author, text=text[:MAX_QUOTED_CHARS], attachments=files)


_MAX_ALBUM_ITEMS = 10
"""Largest album (core.telegram.org/bots/api#sendmediagroup)."""
ALBUM_WAIT_S = 0.7
"""Seconds without a new picture after which an album counts as complete. Telegram usually delivers
it at once."""


@frozen
class UpdateBatch:
    """Result of reading updates."""

    notifications: tuple[Notification, ...]
    """Events to emit together with the reader's cursor."""
    count: int
    """Number of updates read, from the first. The others must be passed again a little later: they
    begin with an album that may be incomplete."""


class UpdateReader:
    """Reader of one account's updates."""

    def __init__(self, context: TelegramUpdateContext, *, counting: bool) -> None:
        """Read in order with a cursor (`counting`, for polling), or each update as it arrives (for
        a webhook).

        Polled updates that are not read are returned again, and the cursor advances with those that
        are. A webhook's updates arrive in any order and in small pieces, so they need no cursor.
        """
        self.context = (
            context if counting else replace(context, cursor=replace(context.cursor, offset=None))
        )
        self._is_ordered = counting
        self.durable_cursor = self.context.cursor
        """Cursor that is certainly durable; set by the code that emits."""
        self.numbers = MessageNumbers()
        self.rights = RoomSignals()
        """Notified with the current id of a chat when what we may do there has changed."""
        self._names = LruDict[Address, PlaceNames](_MAX_PLACES)
        self._audiences = LruDict[str, tuple[int, bool]](_MAX_PLACES)
        """Current chat id -> its newest update, and whether that update shows it as public."""
        self.newest_said = LruDict[Address, MessageId](_MAX_PLACES)
        """Place -> what somebody else said there last, as far as is known."""
        self._held_album_sizes: Counter[str] = Counter()
        """Pictures in each held album, when it was held back."""

    def reset(self) -> None:
        """Go on from the durable cursor, for an earlier emit may have been interrupted. Moved
        groups stay known.
        """
        self.context = replace(
            self.context, cursor=replace(self.durable_cursor, moved=self.context.cursor.moved)
        )
        self._held_album_sizes.clear()

    def record_move(self, old: str, new: str) -> None:
        self.context = replace(self.context, cursor=self.context.cursor.with_move(old, new))

    def place_names(self, at: Address) -> PlaceNames | None:
        """Return the names of a place; for a thread also those of its room."""
        names = self._names.get(replace(at, thread=None), PlaceNames())
        if at.thread is not None and (topic := self._names.get(at)) is not None:
            names = replace(names, thread=topic.thread, thread_created_as=topic.thread_created_as)
        me = self.context.username
        return replace(names, me=f"@{me}" if me else None)

    def chat_id(self, room: str) -> str:
        return self.context.cursor.moved.get(room, room)

    def audience(self, at: Address) -> Audience | None:
        """Return the audience of a place. All topics of a group are readable by its members."""
        chat = self._audiences.get(self.chat_id(at.room))
        return None if chat is None else "everybody" if chat[1] else "room"

    def _learn_audience(self, update: telegram.Update) -> None:
        """Record whether a chat is public: only one with a username is
        (core.telegram.org/bots/api#chat).
        """
        chat = update.effective_chat
        if chat and chat.type in {"group", "supergroup", "channel"}:
            last, before = self._audiences.get(str(chat.id), (0, False))
            # A webhook's updates arrive in any order: an older one may make a chat private, but not
            # public.
            public = bool(chat.username) and (before or update.update_id > last)
            self._audiences.put(str(chat.id), (max(last, update.update_id), public))

    def read_batch(
        self,
        updates: Sequence[telegram.Update],
        now: datetime,
        ranks: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> UpdateBatch:
        """Read `updates` (from `parse_updates`) up to the first album that may still grow. `ranks`:
        group and user to rank.
        """
        for move in filter(None, map(parse_migration, updates)):
            self.record_move(*move)
        albums = [album_key(update) for update in updates]
        count = self._count_complete(updates, albums) if self._is_ordered else len(updates)
        self._held_album_sizes = Counter(key for key in albums[count:] if key)
        batch: list[Notification] = []
        for index, (update, album) in enumerate(zip(updates[:count], albums, strict=False)):
            if not album:
                batch += self._read_update(update, now)
            elif albums.index(album) == index:
                pictures = (
                    other
                    for other, key in zip(updates[:count], albums, strict=False)
                    if key == album
                )
                batch += self._read_album(pictures, now)
        batch = [self._with_rank(event, ranks) for event in batch]
        if count and self._is_ordered:
            cursor = self.context.cursor.advance(updates[count - 1].update_id, now)
            self.context = replace(self.context, cursor=cursor)
        for event in batch:
            if (isinstance(event, Message) and not event.history) or (
                isinstance(event, Command) and event.origin != "button"
            ):
                self.newest_said.put(event.at, MessageId(event.id))
        return UpdateBatch(notifications=tuple(batch), count=count)

    def _learn(self, update: telegram.Update) -> None:
        """Remember what the update tells of its place, before it is read."""
        if message := update.message:
            self.numbers.record_received(
                message.chat.id, message.message_id, int(message.date.timestamp())
            )
        self._learn_names(update)
        self._learn_audience(update)
        if update.my_chat_member:
            self.rights.notify(str(update.my_chat_member.chat.id))

    def _learn_names(self, update: telegram.Update) -> None:
        query = update.callback_query
        event = (
            update.message
            or update.edited_message
            or update.message_reaction
            or update.my_chat_member
            or (query.message if query else None)
        )
        if event is None:
            return
        at = parse_place(event, self.context)
        self._names.put(replace(at, thread=None), _chat_names(event.chat))
        if at.thread is not None and isinstance(event, telegram.Message):
            before = self._names.get(at, PlaceNames())
            now = event.forum_topic_edited or event.forum_topic_created
            start = event.reply_to_message.forum_topic_created if event.reply_to_message else None
            names = PlaceNames(
                thread=clean_text((now.name if now else None) or "") or before.thread,
                thread_created_as=clean_text(start.name if start else "")
                or before.thread_created_as,
            )
            self._names.put(at, names)

    def _count_complete(self, updates: Sequence[telegram.Update], albums: Sequence[str]) -> int:
        """Return the number of updates before the first album that may still grow; no album is
        split.
        """
        chats = [message.chat.id if (message := update.message) else None for update in updates]
        count = len(updates)
        for key, size in Counter(key for key in albums if key).items():
            last = max(index for index, other in enumerate(albums) if other == key)
            followed = chats[last] in chats[last + 1 :]
            if size < _MAX_ALBUM_ITEMS and self._held_album_sizes[key] < size and not followed:
                count = min(count, albums.index(key))
        while cut := [key for key in albums[:count] if key and key in albums[count:]]:
            count = albums.index(cut[0])
        return count

    def _read_album(
        self, pictures: Iterable[telegram.Update], now: datetime
    ) -> Sequence[Notification]:
        events = [event for picture in pictures for event in self._read_update(picture, now)]
        messages = [event for event in events if isinstance(event, Message)]
        return (
            [merge_album(messages), *(event for event in events if event not in messages)]
            if messages
            else events
        )

    def _read_update(self, update: telegram.Update, now: datetime) -> Sequence[Notification]:
        """Return the events of an update, all of which can be stored; of one that is odd, what can
        be read.
        """
        with contextlib.suppress(Exception):
            return self._read_sound(update, now)
        with contextlib.suppress(Exception):
            return self._read_sound(_parse_raw(_essence(update.to_dict())), now)
        logger.warning("%s: update %d is left out", self.context.channel, update.update_id)
        return ()

    def _read_sound(self, update: telegram.Update, now: datetime) -> Sequence[Notification]:
        """Raises ValueError unless each event can be written down and read back."""
        self._learn(update)
        events = parse_update(update, self.context, now)
        for event in events:
            NOTIFICATION.validate_json(NOTIFICATION.dump_json(event, warnings="error"))
        return events

    def _with_rank(
        self, event: Notification, ranks: Mapping[str, Mapping[str, str]]
    ) -> Notification:
        if not isinstance(
            event, Message | MessageEdited | ReactionChanged | MembershipChanged | Command
        ):
            return event
        rank = ranks.get(self.chat_id(event.at.room), {}).get(event.sender.id)
        return replace(event, sender=replace(event.sender, ranks=(rank,))) if rank else event
