"""From updates as they came to notifications: albums put together, moved groups remembered. Pure."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from channels.base import Audience
from channels.payload import Json, get_int, get_object, get_raw_str
from channels.telegram.cursor import TelegramCursor
from channels.telegram.ids import MessageNumbers
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.ranks import MEMBER_UPDATE, TelegramRanks
from channels.telegram.service import ChatTitles
from channels.telegram.wire import (
    ALLOWED_UPDATES,
    album_key,
    button_press,
    merge_album,
    message_chat,
    parse_migration,
    parse_update,
)
from gateway.events import (
    Address,
    Command,
    MembershipChanged,
    Message,
    MessageEdited,
    Notification,
    PlaceNames,
    ReactionChanged,
)

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
