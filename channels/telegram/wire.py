"""Updates of the Bot API as notifications (core.telegram.org/bots/api#update). Pure.

Reads the JSON itself: new fields and kinds of updates appear often, and an update that cannot be read must affect no
other. `UpdateReader` reads batches: it joins albums, remembers moved groups, and advances the cursor. `parse_update`
and the functions around it read one update.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from channels.base import Audience
from channels.telegram.ids import MessageNumbers, TelegramCursor
from channels.telegram.people import (
    MEMBER_UPDATE,
    TelegramRanks,
    TelegramUpdateContext,
    describe_content,
    forward_origin_name,
    full_name,
    parse_attachments,
    parse_message_id,
    parse_place,
    parse_sender,
    parse_user,
)
from channels.telegram.render import Utf16Text, quote_lines, to_markdown
from channels.text import (
    Json,
    clean_name,
    clean_text,
    get_datetime,
    get_int,
    get_object,
    get_objects,
    get_raw_str,
    get_str,
    single_line,
)
from gateway.core.events import (
    Address,
    Command,
    EventId,
    MembershipChanged,
    Message,
    MessageEdited,
    Notification,
    PlaceNames,
    ReactionChanged,
    Sender,
)
from gateway.core.lru import LruDict

logger = logging.getLogger("reverie.telegram")
_PRESENT_STATUSES = frozenset({"member", "administrator", "creator", "restricted"})
_MAX_TITLE_CHARS = 128
_MAX_NAMES = 4_096
"""Chats and forum topics whose names are kept; names of earlier ones are in the log."""
_UPDATE_KINDS = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "my_chat_member",
)
"""Updates that contain their chat; a button press contains it in its `message`."""


def parse_membership(message: Json, context: TelegramUpdateContext, now: datetime) -> tuple[MembershipChanged, ...]:
    """Return the events of a service message; empty for other messages.

    Our own membership is left out: `parse_own_membership` handles it.
    """
    at, sender, number = parse_place(message, context), parse_sender(message), parse_message_id(message, context)
    if at is None or sender is None or number is None:
        return ()
    sent = get_datetime(message, "date") or now

    def event(
        change: Literal["join", "part", "kick", "title"],
        member: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> MembershipChanged:
        event_id = EventId(f"{number}.{index}")
        return MembershipChanged(
            id=event_id, at=at, sender=member, change=change, sent=sent, subject=subject, text=text
        )

    joined = [
        member
        for user in get_objects(message, "new_chat_members")
        if (member := parse_user(user)) and member.id != str(context.own_id)
    ]
    if joined:
        return tuple(event("join", member, index) for index, member in enumerate(joined))
    left = parse_user(get_object(message, "left_chat_member"))
    if left and left.id != str(context.own_id):
        return (event("part", left) if left.id == sender.id else event("kick", sender, subject=left.name),)
    topic = get_object(message, "forum_topic_created") or get_object(message, "forum_topic_edited")
    title = single_line(get_raw_str(message, "new_chat_title") or get_raw_str(topic, "name"), _MAX_TITLE_CHARS)
    if title and sender.id != str(context.own_id):
        return (event("title", sender, text=title),)
    return ()


class ChatTitles:
    """Names of chats and forum topics, from the updates that contain them."""

    def __init__(self) -> None:
        self._names = LruDict[Address, PlaceNames](_MAX_NAMES)

    def apply_update(self, update: Json, context: TelegramUpdateContext) -> None:
        """Learn the names of an update's place."""
        for kind in _UPDATE_KINDS:
            message = get_object(update, kind) or get_object(get_object(update, "callback_query"), kind)
            at = parse_place(message, context)
            if at is not None:
                self._store(replace(at, thread=None), _chat_names(get_object(message, "chat")))
                if at.thread is not None:
                    self._store(at, _topic_names(message))

    def place_names(self, at: Address, context: TelegramUpdateContext) -> PlaceNames:
        """Return the names of a place; for a thread also those of its room."""
        names = self._names.get(replace(at, thread=None), PlaceNames())
        if at.thread is not None and (topic := self._names.get(at)) is not None:
            names = replace(names, thread=topic.thread, thread_created_as=topic.thread_created_as)
        return replace(names, me=f"@{context.username}" if context.username else None)

    def _store(self, at: Address, names: PlaceNames) -> None:
        before = self._names.get(at)
        if at.thread is not None and before is not None and names.thread is None:
            first = names.thread_created_as or before.thread_created_as
            names = replace(before, thread_created_as=first)
        self._names.put(at, names)


def _chat_names(chat: Json) -> PlaceNames:
    if get_raw_str(chat, "type") == "private":
        handle = clean_name(get_raw_str(chat, "username"))
        return PlaceNames(person=full_name(chat) or None, handle=f"@{handle}" if handle else "")
    # Updates do not contain the descriptions of groups, and nothing else in a group is a topic.
    return PlaceNames(room=get_str(chat, "title") or None, topic="")


def _topic_names(message: Json) -> PlaceNames:
    """Return a forum topic's current name, or its name at creation, if the message has it."""
    now = get_object(message, "forum_topic_edited") or get_object(message, "forum_topic_created")
    first = get_object(get_object(message, "reply_to_message"), "forum_topic_created")
    return PlaceNames(thread=get_str(now, "name") or None, thread_created_as=get_str(first, "name") or None)


def parse_own_membership(
    event: Json, context: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[MembershipChanged, ...]:
    """Return the event of being added to or removed from a place; in private: blocked or unblocked by somebody."""
    at, sender = parse_place(event, context), parse_sender(event)
    before, after = (_is_present(get_object(event, key)) for key in ("old_chat_member", "new_chat_member"))
    if at is None or sender is None or before is None or after is None or before is after:
        return ()
    change: Literal["join", "part", "kick", "invite"]
    if get_raw_str(get_object(event, "chat"), "type") == "private":
        change = "join" if after else "part"
    else:
        change = "invite" if after else "kick"
    return (
        MembershipChanged(
            id=EventId(f"{update_id}.me"),
            at=at,
            sender=sender,
            change=change,
            sent=get_datetime(event, "date") or now,
            subject=full_name(get_object(get_object(event, "new_chat_member"), "user")) or None
            if change == "kick"
            else None,
            text=clean_name(get_raw_str(get_object(event, "chat"), "title")) or None if change == "invite" else None,
        ),
    )


def _is_present(member: Json) -> bool | None:
    """Return whether a member is there; None: unknown."""
    status = get_raw_str(member, "status")
    if status == "restricted":
        return member.get("is_member") is not False
    return status in _PRESENT_STATUSES if status else None


MessageKind = Literal["direct", "mention", "reply", "room"]

TEXT_FIELDS = (("text", "entities"), ("caption", "caption_entities"))
"""Fields with text, and the fields with its entities."""


def parse_command(message: Json, context: TelegramUpdateContext) -> tuple[str, str] | None:
    """Return name and arguments of a command that is addressed to us.

    A command that was forwarded, or sent through an inline bot, does not count: its sender did not write it.
    """
    first = next((entity for entity in get_objects(message, "entities") if get_int(entity, "offset") == 0), {})
    units = Utf16Text(get_raw_str(message, "text"))
    where = units.find_span(get_int(first, "offset"), get_int(first, "length"))
    is_foreign = (
        bool(forward_origin_name(message))
        or bool(get_object(message, "via_bot"))
        or message.get("is_automatic_forward") is True
    )
    if get_raw_str(first, "type") != "bot_command" or not where or is_foreign:
        return None
    word, _, addressee = units.cut(*where).removeprefix("/").partition("@")
    private = get_raw_str(get_object(message, "chat"), "type") == "private"
    ours = (
        addressee.casefold() == context.username.casefold()
        if addressee
        else private or _is_known_command(word, context)
    )
    return (word.lower(), units.cut(where[1], units.size).strip()) if word and ours else None


def _is_known_command(word: str, context: TelegramUpdateContext) -> bool:
    return not context.commands or word.lower() in context.commands


def replied_message(message: Json) -> Json:
    """Return the message that this one replies to.

    A message in a topic "replies" to the topic's beginning, which does not count.
    """
    replied = get_object(message, "reply_to_message")
    is_topic_start = message.get("is_topic_message") is True and (
        "forum_topic_created" in replied or get_int(replied, "message_id") == get_int(message, "message_thread_id")
    )
    return {} if is_topic_start else replied


def message_kind(message: Json, context: TelegramUpdateContext, replied: Json) -> MessageKind:
    """Return whom the message addresses. `replied`: the result of `replied_message`."""
    if get_raw_str(get_object(message, "chat"), "type") == "private":
        return "direct"
    if any(_mentions_us(message, text, entities, context) for text, entities in TEXT_FIELDS):
        return "mention"
    return "reply" if get_int(get_object(replied, "from"), "id") == context.own_id else "room"


def _mentions_us(message: Json, text: str, entities: str, context: TelegramUpdateContext) -> bool:
    units = Utf16Text(get_raw_str(message, text))
    for entity in get_objects(message, entities):
        where, kind = units.find_span(get_int(entity, "offset"), get_int(entity, "length")), get_raw_str(entity, "type")
        if kind == "text_mention" and get_int(get_object(entity, "user"), "id") == context.own_id:
            return True
        if where and kind in ("mention", "bot_command") and context.username:
            named = units.cut(*where).partition("@")[2]
            if named.casefold() == context.username.casefold():
                return True
    return False


ALLOWED_UPDATES = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "callback_query",
    "my_chat_member",
)
"""Kinds of updates to request. Reactions must be requested by name, and are sent to administrators only."""

_QUOTE_CHARS = 300


def parse_update(update: Json, context: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    """Return the events of an update; empty for irrelevant ones. Deterministic, except for missing times."""
    update_id = get_int(update, "update_id") or 0
    if found := get_object(update, "message") or get_object(update, "channel_post"):
        return _parse_message(found, context, now)
    if found := get_object(update, "edited_message") or get_object(update, "edited_channel_post"):
        return _parse_edit(found, context, now, update_id)
    if found := get_object(update, "message_reaction"):
        return _parse_reactions(found, context, now, update_id)
    if found := get_object(update, "callback_query"):
        return _parse_button(found, context, now)
    if found := get_object(update, "my_chat_member"):
        return parse_own_membership(found, context, now, update_id)
    return ()


def parse_migration(update: Json) -> tuple[str, str] | None:
    """Return the old and the new id of a group, if this update reports that it became a supergroup."""
    message = get_object(update, "message")
    chat = get_int(get_object(message, "chat"), "id")
    to, since = get_int(message, "migrate_to_chat_id"), get_int(message, "migrate_from_chat_id")
    if chat is None or (to is None and since is None):
        return None
    return (str(chat), str(to)) if to is not None else (str(since), str(chat))


def album_key(update: Json) -> str:
    """Return the key of the album that the update's picture belongs to; empty if none."""
    message = get_object(update, "message") or get_object(update, "channel_post")
    group = get_raw_str(message, "media_group_id")
    return f"{get_int(get_object(message, 'chat'), 'id')}/{group}" if group else ""


def message_chat(update: Json) -> int | None:
    """Return the chat of a new message."""
    return get_int(get_object(get_object(update, "message") or get_object(update, "channel_post"), "chat"), "id")


def button_press(update: Json) -> str:
    """Return the id of a button press that needs an answer; empty if there is none."""
    return get_raw_str(get_object(update, "callback_query"), "id")


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


def _parse_message(message: Json, context: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    at, sender, number = parse_place(message, context), parse_sender(message), parse_message_id(message, context)
    if at is None or sender is None or number is None:
        return ()
    if memberships := parse_membership(message, context, now):
        return memberships
    if sender.id == str(context.own_id):
        return ()
    sent = get_datetime(message, "date") or now
    if command := parse_command(message, context):
        return (
            Command(
                id=EventId(number),
                at=at,
                sender=sender,
                name=command[0],
                args=command[1],
                sent=sent,
                origin="native",
                direct=_is_private(message),
            ),
        )
    (text, carried), files = _message_text(message, context), parse_attachments(message)
    if not text.strip() and not files:
        return ()
    replied = replied_message(message)
    language = get_str(get_object(message, "from"), "language_code")
    return (
        Message(
            id=number,
            at=at,
            sender=sender,
            text=text,
            sent=sent,
            kind=message_kind(message, context, replied),
            reply_to=parse_message_id(message, context, replied),
            attachments=files,
            language=language or None,
            carried=carried,
        ),
    )


def _parse_edit(
    message: Json, context: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[Notification, ...]:
    at, sender, number = parse_place(message, context), parse_sender(message), parse_message_id(message, context)
    if at is None or sender is None or number is None or sender.id == str(context.own_id):
        return ()
    if "live_period" in get_object(message, "location"):
        return ()  # a live location, updated every few seconds
    sent = get_datetime(message, "edit_date") or get_datetime(message, "date") or now
    text, carried = _message_text(message, context)
    return (
        MessageEdited(
            id=EventId(f"{number}.{update_id}"),
            at=at,
            sender=sender,
            message=number,
            text=text,
            sent=sent,
            direct=_is_private(message),
            carried=carried,
        ),
    )


def _parse_reactions(
    event: Json, context: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[Notification, ...]:
    at, sender, number = (
        parse_place(event, context),
        parse_sender(event, user="user", chat="actor_chat"),
        parse_message_id(event, context),
    )
    if at is None or sender is None or number is None or sender.id == str(context.own_id):
        return ()
    old, new = (
        [_reaction_name(emoji) for emoji in get_objects(event, key)] for key in ("old_reaction", "new_reaction")
    )
    changes = [(emoji, False) for emoji in old if emoji not in new] + [
        (emoji, True) for emoji in new if emoji not in old
    ]
    sent = get_datetime(event, "date") or now
    return tuple(
        ReactionChanged(
            id=EventId(f"{update_id}.{index}"),
            at=at,
            sender=sender,
            message=number,
            reaction=reaction,
            added=added,
            sent=sent,
            direct=_is_private(event),
        )
        for index, (reaction, added) in enumerate(dict.fromkeys(changes))
        if reaction
    )


def _reaction_name(reaction: Json) -> str:
    return (
        clean_name(get_raw_str(reaction, "emoji"))
        or clean_name(get_raw_str(reaction, "custom_emoji_id"))
        or clean_name(get_raw_str(reaction, "type"))
    )


def _parse_button(query: Json, context: TelegramUpdateContext, now: datetime) -> tuple[Notification, ...]:
    """Return a press of a button under a message; inline results have no place."""
    at, sender = parse_place(get_object(query, "message"), context), parse_user(get_object(query, "from"))
    if at is None or sender is None or not get_raw_str(query, "id"):
        return ()
    # The prefix distinguishes it from a message's id: nothing can reply to a press.
    pressed = EventId(f"button:{get_str(query, 'id')}")
    args = get_str(query, "data").strip()
    direct = _is_private(get_object(query, "message"))
    return (
        Command(id=pressed, at=at, sender=sender, name="button", args=args, sent=now, origin="native", direct=direct),
    )


def _is_private(message: Json) -> bool:
    return get_raw_str(get_object(message, "chat"), "type") == "private"


def _message_text(message: Json, context: TelegramUpdateContext) -> tuple[str, str]:
    """Return the whole text, and the part of it that the sender did not write."""
    lines = []
    if forwarded := forward_origin_name(message):
        lines.append(f"(forwarded from {forwarded})")
    if via := clean_name(get_raw_str(get_object(message, "via_bot"), "username")):
        lines.append(f"(by way of @{via})")
    quote = _quoted_text(message, context)
    if quote:
        lines.append(quote)
    for text, entities in TEXT_FIELDS:
        if get_raw_str(message, text):
            lines.append(to_markdown(get_raw_str(message, text), get_objects(message, entities)))
    if described := describe_content(message):
        lines.append(described)
    text = "\n".join(lines)
    return text, text if forwarded or via else quote


def _quoted_text(message: Json, context: TelegramUpdateContext) -> str:
    """Return the quoted text, where the reply alone would be unclear.

    That is a selected part, a message of another chat, or one that privacy mode has hidden from us.
    """
    quoted = get_str(get_object(message, "quote"), "text")
    replied, external = replied_message(message), get_object(message, "external_reply")
    prefix = ""
    if external:
        prefix = f"{forward_origin_name({'forward_origin': external.get('origin')}) or 'somebody'}: "
        quoted = quoted or describe_content(external) or "(another chat)"
    elif (
        not quoted
        and not context.can_read_all
        and get_int(get_object(replied, "from"), "id") not in (None, context.own_id)
    ):
        if get_raw_str(get_object(message, "chat"), "type") == "private":
            return ""
        author = parse_user(get_object(replied, "from"))
        prefix = f"{author.name}: " if author else ""
        quoted = clean_text(get_raw_str(replied, "text") or get_raw_str(replied, "caption")) or describe_content(
            replied
        )
    if not quoted.strip():
        return ""
    return quote_lines(prefix + (quoted if len(quoted) <= _QUOTE_CHARS else quoted[:_QUOTE_CHARS] + "…"))


_MAX_ALBUM_ITEMS = 10
"""Largest album (core.telegram.org/bots/api#sendmediagroup)."""
_MAX_UPDATE_ID = 2**52
_SHARED_TYPES = frozenset({"group", "supergroup", "channel"})
"""Types of chats with more than one person."""
_MAX_CHATS = 10_000
ALBUM_WAIT_S = 0.7
"""Seconds without a new picture after which an album counts as complete. Telegram usually delivers it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """Result of reading updates."""

    notifications: tuple[Notification, ...]
    """Events to emit together with `cursor`."""
    button_presses: tuple[str, ...]
    """Presses to answer after that."""
    cursor: TelegramCursor
    count: int
    """Number of updates read, from the first. The others must be passed again a little later: they begin with an album
    that may be incomplete."""


def valid_updates(updates: Iterable[object]) -> list[Json]:
    """Return the updates that have an id, each once, in the order of their ids."""
    found = {_update_id(update): update for update in updates if isinstance(update, dict)}
    return [found[update_id] for update_id in sorted(found) if 0 < update_id < _MAX_UPDATE_ID]


class UpdateReader:
    """Reader of one account's updates."""

    def __init__(self, context: TelegramUpdateContext, *, counting: bool, ranks: TelegramRanks | None = None) -> None:
        """Read in order with a cursor (`counting`, for polling), or each update as it arrives (for a webhook).

        Polled updates that are not read are returned again, and the cursor advances with those that are. A webhook's
        updates arrive in any order and in small pieces, so they need no cursor. `ranks` is updated by its owner; None:
        nobody has any.
        """
        self.context = context if counting else replace(context, cursor=replace(context.cursor, offset=None))
        self._is_ordered = counting
        self.ranks = ranks or TelegramRanks(frozenset())
        self.durable_cursor = self.context.cursor
        """Cursor that is certainly durable; set by the code that emits."""
        self.numbers = MessageNumbers()
        self._titles = ChatTitles()
        self._audiences = LruDict[str, tuple[int, bool]](_MAX_CHATS)
        """Current chat id -> its newest update, and whether that update shows it as public."""
        self._held_album_sizes: Counter[str] = Counter()
        """Pictures in each held album, when it was held back."""

    def reset(self) -> None:
        """Go on from the durable cursor, for an earlier emit may have been interrupted. Moved groups stay known."""
        self.context = replace(self.context, cursor=replace(self.durable_cursor, moved=self.context.cursor.moved))
        self._held_album_sizes.clear()

    @property
    def allowed_updates(self) -> tuple[str, ...]:
        """Kinds of updates to request."""
        return (*ALLOWED_UPDATES, MEMBER_UPDATE) if self.ranks.is_enabled else ALLOWED_UPDATES

    def record_move(self, old: str, new: str) -> None:
        """Record the new id of a group."""
        self.context = replace(self.context, cursor=self.context.cursor.with_move(old, new))

    def place_names(self, at: Address) -> PlaceNames | None:
        """Return the names of a place."""
        return self._titles.place_names(at, self.context)

    def chat_id(self, room: str) -> str:
        """Return Telegram's current id of a room."""
        return self.context.cursor.current_chat(room)

    def audience(self, at: Address) -> Audience | None:
        """Return the audience of a place. All topics of a group are readable by its members."""
        chat = self._audiences.get(self.chat_id(at.room))
        return None if chat is None else "everybody" if chat[1] else "room"

    def _learn_audience(self, update: Json) -> None:
        """Record whether chats are public: only one with a username is (core.telegram.org/bots/api#chat)."""
        for event in update.values():
            for holder in (event, get_object(event, "message")):
                chat = get_object(holder, "chat")
                number = get_int(chat, "id")
                if number is not None and get_raw_str(chat, "type") in _SHARED_TYPES:
                    last, before = self._audiences.get(str(number), (0, False))
                    # A webhook's updates arrive in any order: an older one may make a chat private, but not public.
                    public = bool(get_raw_str(chat, "username")) and (before or _update_id(update) > last)
                    self._audiences.put(str(number), (max(last, _update_id(update)), public))

    def read_batch(self, updates: Sequence[Json], now: datetime) -> UpdateBatch:
        """Read `updates` (from `valid_updates`) up to the first album that may still grow."""
        albums = [album_key(update) for update in updates]
        count = self._count_complete(updates, albums) if self._is_ordered else len(updates)
        self._held_album_sizes = Counter(key for key in albums[count:] if key)
        batch: list[Notification] = []
        for index, update in enumerate(updates[:count]):
            if change := parse_migration(update):
                self.record_move(*change)
            self.ranks.apply_update(update)
            self._record_number(update)
            self._titles.apply_update(update, self.context)
            self._learn_audience(update)
            if not albums[index]:
                batch += self._read_update(update, now)
            elif albums.index(albums[index]) == index:
                pictures = [
                    picture for picture, key in zip(updates[:count], albums, strict=False) if key == albums[index]
                ]
                batch += self._read_album(pictures, now)
        cursor = self.context.cursor
        if count and self._is_ordered:
            cursor = cursor.advance(_update_id(updates[count - 1]), now)
            self.context = replace(self.context, cursor=cursor)
        buttons = tuple(press for update in updates[:count] if (press := button_press(update)))
        return UpdateBatch(notifications=tuple(batch), button_presses=buttons, cursor=cursor, count=count)

    def _record_number(self, update: Json) -> None:
        message = get_object(update, "message") or get_object(update, "channel_post")
        chat, number, sent_s = (
            get_int(get_object(message, "chat"), "id"),
            get_int(message, "message_id"),
            get_int(message, "date"),
        )
        if chat is not None and number is not None and sent_s is not None:
            self.numbers.record_received(chat, number, sent_s)

    def _count_complete(self, updates: Sequence[Json], albums: Sequence[str]) -> int:
        """Return the number of updates before the first album that may still grow; no album is split."""
        sizes = Counter(key for key in albums if key)
        count = len(updates)
        for key, size in sizes.items():
            last = max(index for index, other in enumerate(albums) if other == key)
            chat = message_chat(updates[last])
            followed = any(message_chat(update) == chat for update in updates[last + 1 :])
            if size < _MAX_ALBUM_ITEMS and self._held_album_sizes[key] < size and not followed:
                count = min(count, albums.index(key))
        while cut := [key for key in albums[:count] if key and key in albums[count:]]:
            count = albums.index(cut[0])
        return count

    def _read_album(self, pictures: Sequence[Json], now: datetime) -> Sequence[Notification]:
        events = [event for picture in pictures for event in self._read_update(picture, now)]
        messages = [event for event in events if isinstance(event, Message)]
        return [merge_album(messages), *(event for event in events if event not in messages)] if messages else events

    def _read_update(self, update: Json, now: datetime) -> tuple[Notification, ...]:
        try:
            return tuple(self._with_ranks(event, now) for event in parse_update(update, self.context, now))
        except Exception:
            logger.exception("%s: update %d cannot be read and is left out", self.context.channel, _update_id(update))
            return ()

    def _with_ranks(self, event: Notification, now: datetime) -> Notification:
        """Return the event with the sender's ranks in its chat."""
        if (
            not isinstance(event, Message | MessageEdited | ReactionChanged | MembershipChanged | Command)
            or not event.sender.verified
        ):
            return event
        found = self.ranks.ranks_of(self.chat_id(event.at.room), event.sender.id, now)
        return replace(event, sender=replace(event.sender, ranks=found)) if found else event


def _update_id(update: Json) -> int:
    return get_int(update, "update_id") or 0
