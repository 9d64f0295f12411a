"""From updates as they came to notifications: albums put together, moved groups remembered. Pure."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from channels.base import Audience
from channels.payload import Json, obj, raw, whole
from channels.telegram.cursor import Cursor
from channels.telegram.ids import Numbers
from channels.telegram.people import View
from channels.telegram.ranks import CHANGES, Ranks
from channels.telegram.service import ChatTitles
from channels.telegram.wire import ALLOWED, album, button, chat_of, merged, moved, read
from gateway.events import Address, Command, Edited, Membership, Message, Notification, PlaceNames, Reacted

_LOG = logging.getLogger("reverie.telegram")
_ALBUM = 10
"""The most that one holds (core.telegram.org/bots/api#sendmediagroup)."""
_LAST_ID = 2**52
_SHARED = frozenset({"group", "supergroup", "channel"})
"""Types of chats that more than one person is in."""
_MOST_CHATS = 10_000
ALBUM_S = 0.7
"""For so long nothing must be added to an album before it counts as whole. Telegram delivers it within a blink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of the updates that were looked at."""

    notifications: tuple[Notification, ...]
    """To be emitted, together with `cursor`."""
    button_presses: tuple[str, ...]
    """Presses to be answered once that is done."""
    cursor: Cursor
    count: int
    """How many of the updates these are, from the first. The others are to be shown again, a little later: they
    begin with an album that may not be whole yet."""


def valid(updates: Iterable[object]) -> list[Json]:
    """Those that have an id, each once, in the order of their ids."""
    found = {_id(one): one for one in updates if isinstance(one, dict)}
    return [found[update_id] for update_id in sorted(found) if 0 < update_id < _LAST_ID]


class Inbound:
    """Reads one account's updates."""

    def __init__(self, view: View, *, counting: bool, ranks: Ranks | None = None) -> None:
        """`ranks` is kept up by whoever asks Telegram; None: nobody has any.

        `counting`: what is not taken is shown again, and the cursor moves on with what is.

        A webhook's updates come in any order and in small pieces: they are taken as they are, and not counted.
        """
        self.context = view if counting else replace(view, cursor=replace(view.cursor, offset=None))
        self._is_ordered = counting
        self.ranks = ranks or Ranks(frozenset())
        self.durable_cursor = self.context.cursor
        """What is certainly written down: to be set by whoever emits."""
        self.numbers = Numbers()
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
        return (*ALLOWED, CHANGES) if self.ranks.is_enabled else ALLOWED

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
            for holder in (event, obj(event, "message")):
                chat = obj(holder, "chat")
                number = whole(chat, "id")
                if number is not None and raw(chat, "type") in _SHARED:
                    last, before = self._audiences.get(str(number), (0, False))
                    # A webhook's updates come in any order: an older one may close a chat, and does not open it.
                    public = bool(raw(chat, "username")) and (before or _id(update) > last)
                    self._audiences[str(number)] = max(last, _id(update)), public
                    self._audiences.move_to_end(str(number))
        while len(self._audiences) > _MOST_CHATS:
            self._audiences.popitem(last=False)

    def read_batch(self, updates: Sequence[Json], now: datetime) -> Taken:
        """Read `updates` (`valid` made them) up to the first album that may still grow."""
        albums = [album(update) for update in updates]
        count = self._count_complete(updates, albums) if self._is_ordered else len(updates)
        self._held_album_sizes = Counter(key for key in albums[count:] if key)
        batch: list[Notification] = []
        for index, update in enumerate(updates[:count]):
            if change := moved(update):
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
            cursor = cursor.advance(_id(updates[count - 1]), now)
            self.context = replace(self.context, cursor=cursor)
        buttons = tuple(press for update in updates[:count] if (press := button(update)))
        return Taken(notifications=tuple(batch), button_presses=buttons, cursor=cursor, count=count)

    def _record_number(self, update: Json) -> None:
        message = obj(update, "message") or obj(update, "channel_post")
        chat, number, sent_s = whole(obj(message, "chat"), "id"), whole(message, "message_id"), whole(message, "date")
        if chat is not None and number is not None and sent_s is not None:
            self.numbers.record_received(chat, number, sent_s)

    def _count_complete(self, updates: Sequence[Json], albums: Sequence[str]) -> int:
        """How many updates stand before the first album that may still grow; no album is cut in two."""
        sizes = Counter(key for key in albums if key)
        count = len(updates)
        for key, size in sizes.items():
            last = max(index for index, other in enumerate(albums) if other == key)
            chat = chat_of(updates[last])
            followed = any(chat_of(one) == chat for one in updates[last + 1 :])
            if size < _ALBUM and self._held_album_sizes[key] < size and not followed:
                count = min(count, albums.index(key))
        while cut := [key for key in albums[:count] if key and key in albums[count:]]:
            count = albums.index(cut[0])
        return count

    def _read_album(self, pictures: Sequence[Json], now: datetime) -> Sequence[Notification]:
        read_ = [event for picture in pictures for event in self._read_update(picture, now)]
        messages = [event for event in read_ if isinstance(event, Message)]
        return [merged(messages), *(event for event in read_ if event not in messages)] if messages else read_

    def _read_update(self, update: Json, now: datetime) -> tuple[Notification, ...]:
        try:
            return tuple(self._with_ranks(event, now) for event in read(update, self.context, now))
        except Exception:  # noqa: BLE001 - reading is careful; if it still fails, that costs one update and no more
            _LOG.exception("%s: update %d cannot be read and is left out", self.context.channel, _id(update))
            return ()

    def _with_ranks(self, event: Notification, now: datetime) -> Notification:
        """With what Telegram says of whoever did it, there."""
        if not isinstance(event, Message | Edited | Reacted | Membership | Command) or not event.sender.verified:
            return event
        found = self.ranks.ranks_of(self.chat_id(event.at.room), event.sender.id, now)
        return replace(event, sender=replace(event.sender, ranks=found)) if found else event


def _id(update: Json) -> int:
    return whole(update, "update_id") or 0
