"""What messages are called. Pure.

A message's number is unique inside its chat only (core.telegram.org/bots/api#message), and a supergroup counts from 1,
also one that was a group before. To us it is the same place still, so what is said there after the move names its
chat, too: else it would be taken for what the group said under the same number.

What an adapter must remember over a restart. Pure.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from gateway.core.events import MessageId

_OFFSET_EXPIRES = timedelta(days=6)
"""After a week without updates the next id is chosen at random (core.telegram.org/bots/api#update): an
offset as old as that could confirm updates that nobody has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramCursor:
    """How far the updates are taken in, and which groups have a new id."""

    offset: int | None = None
    """The first update not taken in. None: whatever Telegram has."""
    at_s: int = 0
    """Unix time when the last update was taken in."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Of groups that became supergroups: old id to new."""
    bot: str = ""
    """Whose updates they are, by what stands in front of the token's colon. Empty: that was not written down."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Reverse `dump`. What cannot be read is as if there were none: everything pending comes again."""
        try:
            value = json.loads(text or "{}")
            offset, at_s, moved = value.get("offset"), value.get("at", 0), value.get("moved", {})
            bot = str(value.get("bot", ""))
            if (offset is None or isinstance(offset, int)) and isinstance(at_s, int) and isinstance(moved, dict):
                return cls(offset=offset, at_s=at_s, moved={str(old): str(new) for old, new in moved.items()}, bot=bot)
        except (ValueError, AttributeError, RecursionError):
            pass
        return cls()

    def to_json(self) -> str:
        """As JSON, the same for equal cursors."""
        value: dict[str, object] = {"offset": self.offset, "at": self.at_s, "moved": dict(self.moved)}
        if self.bot:
            value["bot"] = self.bot
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    def for_bot(self, bot: str) -> Self:
        """For this bot: each counts its own updates, and another's offset would confirm what nobody has seen."""
        return replace(self, bot=bot, offset=self.offset if self.bot in ("", bot) else None)

    def request_offset(self, now: datetime) -> int | None:
        """The offset to ask with."""
        return self.offset if now.timestamp() - self.at_s < _OFFSET_EXPIRES.total_seconds() else None

    def advance(self, update_id: int, now: datetime) -> Self:
        """All up to `update_id` is taken in."""
        return replace(self, offset=update_id + 1, at_s=int(now.timestamp()))

    def with_move(self, old: str, new: str) -> Self:
        """The group `old` is now `new`."""
        return self if self.moved.get(old) == new or old == new else replace(self, moved={**self.moved, old: new})

    def known_room(self, chat: str, rooms: frozenset[str]) -> str:
        """Under which id the chat is known to us: the one that the operator lists, else the first it had."""
        if chat in rooms:
            return chat
        return next((old for old, new in self.moved.items() if new == chat), chat)

    def current_chat(self, room: str) -> str:
        """Where Telegram has the room now."""
        return self.moved.get(room, room)


_MAX_NUMBER = 2**31


def format_message_id(number: int, chat: str, room: str) -> MessageId:
    """The id of a message of `chat`, which is known to us as `room`."""
    return MessageId(str(number) if chat == room else f"{chat}:{number}")


def parse_message_number(message: MessageId, chat: str, room: str) -> int | None:
    """Reverse `format_message_id`.

    None: it is not in that chat, or no message (but a button press, or another platform's).
    """
    where, _, number = message.rpartition(":")
    fine = (where or room) == chat and number.isascii() and number.isdigit() and len(number) <= len(str(_MAX_NUMBER))
    return int(number) if fine and 0 < int(number) < _MAX_NUMBER else None


class MessageNumbers:
    """The newest message ids that are known, for finding out what became of a message of ours.

    Supergroups and channels count by themselves; all other chats of an account share one sequence
    (core.telegram.org/api/updates#message-related-event-sequences).
    """

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._newest: dict[int, int] = {}
        self._own: dict[int, deque[int]] = {}

    def reset(self, now: datetime) -> None:
        """What is older may have messages of an earlier process of ours behind it, which nobody knows of here."""
        self._since = now
        self._newest.clear()
        self._own.clear()

    def record_received(self, chat: int, number: int, sent_s: int) -> None:
        """Telegram told us of this message, which was sent at that time (Unix)."""
        if self._since is not None and sent_s >= int(self._since.timestamp()):
            self._newest[_sequence(chat)] = max(number, self._newest.get(_sequence(chat), 0))

    def record_sent(self, chat: int, number: int) -> None:
        """This one is ours."""
        self._newest[_sequence(chat)] = max(number, self._newest.get(_sequence(chat), 0))
        self._own.setdefault(_sequence(chat), deque(maxlen=200)).append(number)

    def mark_unknown(self, chat: int) -> None:
        """There may be one of ours that nobody knows of."""
        self._newest.pop(_sequence(chat), None)

    def newest(self, chat: int) -> int | None:
        """None: it is not known."""
        return self._newest.get(_sequence(chat))

    def recent_own(self, chat: int) -> tuple[int, ...]:
        """Lately."""
        return tuple(self._own.get(_sequence(chat), ()))


def has_own_sequence(chat: int) -> bool:
    """Whether the chat has a sequence of its own."""
    return chat < _SUPERGROUP_MAX_ID


_SUPERGROUP_MAX_ID = -(10**12)


def _sequence(chat: int) -> int:
    return chat if has_own_sequence(chat) else 0
