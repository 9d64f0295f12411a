"""Updates of the Bot API as notifications (core.telegram.org/bots/api#update). Pure.

Reads the JSON itself: fields and kinds that are not known yet come up all the time, and one that cannot be read
must cost nothing but itself.

From updates as they came to notifications: albums put together, moved groups remembered. Pure.

Service messages: who came and went, and what a place is called now. Pure.

Whom a message is said to: us, by a command, a mention or a reply, or the room. Pure.
"""

import logging
from collections import Counter, OrderedDict
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

_PRESENT_STATUSES = frozenset({"member", "administrator", "creator", "restricted"})
_MAX_TITLE_CHARS = 128
_MAX_NAMES = 4_096
"""Chats and forum topics: what was told of earlier ones is in the log."""
_UPDATE_KINDS = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "my_chat_member",
)
"""Of updates that tell their chat; a press of a button tells of its `message`."""


def parse_membership(message: Json, view: TelegramUpdateContext, now: datetime) -> tuple[MembershipChanged, ...]:
    """What a service message says; nothing if it is none, or concerns ourselves (`parse_own_membership` does)."""
    at, by, number = parse_place(message, view), parse_sender(message), parse_message_id(message, view)
    if at is None or by is None or number is None:
        return ()
    sent = get_datetime(message, "date") or now

    def event(
        change: Literal["join", "part", "kick", "title"],
        who: Sender,
        index: int = 0,
        subject: str | None = None,
        text: str | None = None,
    ) -> MembershipChanged:
        event_id = EventId(f"{number}.{index}")
        return MembershipChanged(id=event_id, at=at, sender=who, change=change, sent=sent, subject=subject, text=text)

    joined = [
        who
        for one in get_objects(message, "new_chat_members")
        if (who := parse_user(one)) and who.id != str(view.own_id)
    ]
    if joined:
        return tuple(event("join", who, index) for index, who in enumerate(joined))
    left = parse_user(get_object(message, "left_chat_member"))
    if left and left.id != str(view.own_id):
        return (event("part", left) if left.id == by.id else event("kick", by, subject=left.name),)
    topic = get_object(message, "forum_topic_created") or get_object(message, "forum_topic_edited")
    title = single_line(get_raw_str(message, "new_chat_title") or get_raw_str(topic, "name"), _MAX_TITLE_CHARS)
    if title and by.id != str(view.own_id):
        return (event("title", by, text=title),)
    return ()


class ChatTitles:
    """What chats and forum topics are called, from the updates that tell it."""

    def __init__(self) -> None:
        self._names: OrderedDict[Address, PlaceNames] = OrderedDict()

    def apply_update(self, update: Json, view: TelegramUpdateContext) -> None:
        """Take in what an update tells of its place."""
        for kind in _UPDATE_KINDS:
            message = get_object(update, kind) or get_object(get_object(update, "callback_query"), kind)
            at = parse_place(message, view)
            if at is not None:
                self._store(replace(at, thread=None), _chat_names(get_object(message, "chat")))
                if at.thread is not None:
                    self._store(at, _topic_names(message))

    def place_names(self, at: Address, view: TelegramUpdateContext) -> PlaceNames:
        """Of a thread with the names of its room."""
        known = self._names.get(replace(at, thread=None), PlaceNames())
        if at.thread is not None and (topic := self._names.get(at)) is not None:
            known = replace(known, thread=topic.thread, thread_created_as=topic.thread_created_as)
        return replace(known, me=f"@{view.username}" if view.username else None)

    def _store(self, at: Address, told: PlaceNames) -> None:
        before = self._names.get(at)
        if at.thread is not None and before is not None and told.thread is None:
            first = told.thread_created_as or before.thread_created_as
            told = replace(before, thread_created_as=first)
        self._names[at] = told
        self._names.move_to_end(at)
        if len(self._names) > _MAX_NAMES:
            self._names.popitem(last=False)


def _chat_names(chat: Json) -> PlaceNames:
    if get_raw_str(chat, "type") == "private":
        handle = clean_name(get_raw_str(chat, "username"))
        return PlaceNames(person=full_name(chat) or None, handle=f"@{handle}" if handle else "")
    # Descriptions of groups are not told in updates, and nothing else there is a topic.
    return PlaceNames(room=get_str(chat, "title") or None, topic="")


def _topic_names(message: Json) -> PlaceNames:
    """What a message in a forum topic tells of it: its name by now, or what it was called when it was created."""
    now = get_object(message, "forum_topic_edited") or get_object(message, "forum_topic_created")
    first = get_object(get_object(message, "reply_to_message"), "forum_topic_created")
    return PlaceNames(thread=get_str(now, "name") or None, thread_created_as=get_str(first, "name") or None)


def parse_own_membership(
    event: Json, view: TelegramUpdateContext, now: datetime, update_id: int
) -> tuple[MembershipChanged, ...]:
    """We were taken into a place or out of it; in private: somebody blocked us, or wants us back."""
    at, by = parse_place(event, view), parse_sender(event)
    before, after = (_is_present(get_object(event, key)) for key in ("old_chat_member", "new_chat_member"))
    if at is None or by is None or before is None or after is None or before is after:
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
            sender=by,
            change=change,
            sent=get_datetime(event, "date") or now,
            subject=full_name(get_object(get_object(event, "new_chat_member"), "user")) or None
            if change == "kick"
            else None,
            text=clean_name(get_raw_str(get_object(event, "chat"), "title")) or None if change == "invite" else None,
        ),
    )


def _is_present(member: Json) -> bool | None:
    """Whether a member is there; None: not told."""
    status = get_raw_str(member, "status")
    if status == "restricted":
        return member.get("is_member") is not False
    return status in _PRESENT_STATUSES if status else None


MessageKind = Literal["direct", "mention", "reply", "room"]

TEXT_FIELDS = (("text", "entities"), ("caption", "caption_entities"))
"""Where text stands, and what marks it."""


def parse_command(message: Json, view: TelegramUpdateContext) -> tuple[str, str] | None:
    """Name and arguments of a command that is said to us.

    One that was forwarded, or sent by a bot for somebody, was not written by whom it comes from.
    """
    first = next((one for one in get_objects(message, "entities") if get_int(one, "offset") == 0), {})
    units = Utf16Text(get_raw_str(message, "text"))
    where = units.find_span(get_int(first, "offset"), get_int(first, "length"))
    others = (
        bool(forward_origin_name(message))
        or bool(get_object(message, "via_bot"))
        or message.get("is_automatic_forward") is True
    )
    if get_raw_str(first, "type") != "bot_command" or not where or others:
        return None
    word, _, whom = units.cut(*where).removeprefix("/").partition("@")
    private = get_raw_str(get_object(message, "chat"), "type") == "private"
    ours = whom.casefold() == view.username.casefold() if whom else private or _is_known_command(word, view)
    return (word.lower(), units.cut(where[1], units.size).strip()) if word and ours else None


def _is_known_command(word: str, view: TelegramUpdateContext) -> bool:
    return not view.commands or word.lower() in view.commands


def replied_message(message: Json) -> Json:
    """The message that this one replies to. What stands in a topic "replies" to the topic's beginning."""
    about = get_object(message, "reply_to_message")
    begins = message.get("is_topic_message") is True and (
        "forum_topic_created" in about or get_int(about, "message_id") == get_int(message, "message_thread_id")
    )
    return {} if begins else about


def message_kind(message: Json, view: TelegramUpdateContext, about: Json) -> MessageKind:
    """`about`: what `replied_message` says."""
    if get_raw_str(get_object(message, "chat"), "type") == "private":
        return "direct"
    if any(_mentions_us(message, text, entities, view) for text, entities in TEXT_FIELDS):
        return "mention"
    return "reply" if get_int(get_object(about, "from"), "id") == view.own_id else "room"


def _mentions_us(message: Json, text: str, entities: str, view: TelegramUpdateContext) -> bool:
    units = Utf16Text(get_raw_str(message, text))
    for entity in get_objects(message, entities):
        where, kind = units.find_span(get_int(entity, "offset"), get_int(entity, "length")), get_raw_str(entity, "type")
        if kind == "text_mention" and get_int(get_object(entity, "user"), "id") == view.own_id:
            return True
        if where and kind in ("mention", "bot_command") and view.username:
            named = units.cut(*where).partition("@")[2]
            if named.casefold() == view.username.casefold():
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
    (text, carried), files = _message_text(message, view), parse_attachments(message)
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
    if described := describe_content(message):
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
        words = words or describe_content(external) or "(another chat)"
    elif not words and not view.can_read_all and get_int(get_object(about, "from"), "id") not in (None, view.own_id):
        if get_raw_str(get_object(message, "chat"), "type") == "private":
            return ""
        whom = parse_user(get_object(about, "from"))
        by = f"{whom.name}: " if whom else ""
        words = clean_text(get_raw_str(about, "text") or get_raw_str(about, "caption")) or describe_content(about)
    if not words.strip():
        return ""
    return quote_lines(by + (words if len(words) <= _QUOTE_CHARS else words[:_QUOTE_CHARS] + "…"))


logger = logging.getLogger("reverie.telegram")
_MAX_ALBUM_ITEMS = 10
"""The most that one holds (core.telegram.org/bots/api#sendmediagroup)."""
_MAX_UPDATE_ID = 2**52
_SHARED_TYPES = frozenset({"group", "supergroup", "channel"})
"""Types of chats that more than one person is in."""
_MAX_CHATS = 10_000
ALBUM_WAIT_S = 0.7
"""For so long nothing must be added to an album before it counts as whole. Telegram delivers it within a blink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """What became of the updates that were looked at."""

    notifications: tuple[Notification, ...]
    """To be emitted, together with `cursor`."""
    button_presses: tuple[str, ...]
    """Presses to be answered once that is done."""
    cursor: TelegramCursor
    count: int
    """How many of the updates these are, from the first. The others are to be shown again, a little later: they
    begin with an album that may not be whole yet."""


def valid_updates(updates: Iterable[object]) -> list[Json]:
    """Those that have an id, each once, in the order of their ids."""
    found = {_update_id(one): one for one in updates if isinstance(one, dict)}
    return [found[update_id] for update_id in sorted(found) if 0 < update_id < _MAX_UPDATE_ID]


class UpdateReader:
    """Reads one account's updates."""

    def __init__(self, view: TelegramUpdateContext, *, counting: bool, ranks: TelegramRanks | None = None) -> None:
        """`ranks` is kept up by whoever asks Telegram; None: nobody has any.

        `counting`: what is not taken is shown again, and the cursor moves on with what is.

        A webhook's updates come in any order and in small pieces: they are taken as they are, and not counted.
        """
        self.context = view if counting else replace(view, cursor=replace(view.cursor, offset=None))
        self._is_ordered = counting
        self.ranks = ranks or TelegramRanks(frozenset())
        self.durable_cursor = self.context.cursor
        """What is certainly written down: to be set by whoever emits."""
        self.numbers = MessageNumbers()
        self._titles = ChatTitles()
        self._audiences: OrderedDict[str, tuple[int, bool]] = OrderedDict()
        """Chat, as Telegram names it now -> its newest update, and whether anybody can read it, as that said."""
        self._held_album_sizes: Counter[str] = Counter()
        """How many pictures albums had when they were held back."""

    def reset(self) -> None:
        """Whoever emitted before may have been cut: go on from what is durable. Where groups moved stays known."""
        self.context = replace(self.context, cursor=replace(self.durable_cursor, moved=self.context.cursor.moved))
        self._held_album_sizes.clear()

    @property
    def allowed_updates(self) -> tuple[str, ...]:
        """The kinds of updates to be asked for."""
        return (*ALLOWED_UPDATES, MEMBER_UPDATE) if self.ranks.is_enabled else ALLOWED_UPDATES

    def record_move(self, old: str, new: str) -> None:
        """A group has a new id."""
        self.context = replace(self.context, cursor=self.context.cursor.with_move(old, new))

    def place_names(self, at: Address) -> PlaceNames | None:
        """What people call that place."""
        return self._titles.place_names(at, self.context)

    def chat_id(self, room: str) -> str:
        """Where Telegram has a room now."""
        return self.context.cursor.current_chat(room)

    def audience(self, at: Address) -> Audience | None:
        """Who can read what is said there. All topics of a group are its members'."""
        known = self._audiences.get(self.chat_id(at.room))
        return None if known is None else "everybody" if known[1] else "room"

    def _learn_audience(self, update: Json) -> None:
        """Only what has a username can be opened by anybody (core.telegram.org/bots/api#chat)."""
        for event in update.values():
            for holder in (event, get_object(event, "message")):
                chat = get_object(holder, "chat")
                number = get_int(chat, "id")
                if number is not None and get_raw_str(chat, "type") in _SHARED_TYPES:
                    last, before = self._audiences.get(str(number), (0, False))
                    # A webhook's updates come in any order: an older one may close a chat, and does not open it.
                    public = bool(get_raw_str(chat, "username")) and (before or _update_id(update) > last)
                    self._audiences[str(number)] = max(last, _update_id(update)), public
                    self._audiences.move_to_end(str(number))
        while len(self._audiences) > _MAX_CHATS:
            self._audiences.popitem(last=False)

    def read_batch(self, updates: Sequence[Json], now: datetime) -> UpdateBatch:
        """Read `updates` (`valid_updates` made them) up to the first album that may still grow."""
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
                pictures = [one for one, key in zip(updates[:count], albums, strict=False) if key == albums[index]]
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
        """How many updates stand before the first album that may still grow; no album is cut in two."""
        sizes = Counter(key for key in albums if key)
        count = len(updates)
        for key, size in sizes.items():
            last = max(index for index, other in enumerate(albums) if other == key)
            chat = message_chat(updates[last])
            followed = any(message_chat(one) == chat for one in updates[last + 1 :])
            if size < _MAX_ALBUM_ITEMS and self._held_album_sizes[key] < size and not followed:
                count = min(count, albums.index(key))
        while cut := [key for key in albums[:count] if key and key in albums[count:]]:
            count = albums.index(cut[0])
        return count

    def _read_album(self, pictures: Sequence[Json], now: datetime) -> Sequence[Notification]:
        read_ = [event for picture in pictures for event in self._read_update(picture, now)]
        messages = [event for event in read_ if isinstance(event, Message)]
        return [merge_album(messages), *(event for event in read_ if event not in messages)] if messages else read_

    def _read_update(self, update: Json, now: datetime) -> tuple[Notification, ...]:
        try:
            return tuple(self._with_ranks(event, now) for event in parse_update(update, self.context, now))
        except Exception:
            logger.exception("%s: update %d cannot be read and is left out", self.context.channel, _update_id(update))
            return ()

    def _with_ranks(self, event: Notification, now: datetime) -> Notification:
        """With what Telegram says of whoever did it, there."""
        if (
            not isinstance(event, Message | MessageEdited | ReactionChanged | MembershipChanged | Command)
            or not event.sender.verified
        ):
            return event
        found = self.ranks.ranks_of(self.chat_id(event.at.room), event.sender.id, now)
        return replace(event, sender=replace(event.sender, ranks=found)) if found else event


def _update_id(update: Json) -> int:
    return get_int(update, "update_id") or 0
