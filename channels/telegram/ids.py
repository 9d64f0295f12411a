"""Message ids and the cursor of a Telegram account. Pure.

A message's number is unique inside its chat only (core.telegram.org/bots/api#message), and a supergroup counts from 1,
also one that was a group before. For the gateway it stays the same place, so ids of messages after the move also
contain the chat: otherwise they would equal ids from before the move.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from gateway.core.events import MessageId

_OFFSET_EXPIRES = timedelta(days=6)
"""After a week without updates the next id is chosen at random (core.telegram.org/bots/api#update): an offset as old as
that could confirm updates that were never received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramCursor:
    """Position in the updates, and the new ids of moved groups."""

    offset: int | None = None
    """First update that is not processed. None: all that Telegram has."""
    at_s: int = 0
    """Unix time of the last processed update."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Old id -> new id of groups that became supergroups."""
    bot: str = ""
    """Bot of the updates: the token's part before the colon. Empty: not recorded."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Reverse `to_json`. An invalid cursor counts as none: all pending updates arrive again."""
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
        """Return JSON, the same for equal cursors."""
        value: dict[str, object] = {"offset": self.offset, "at": self.at_s, "moved": dict(self.moved)}
        if self.bot:
            value["bot"] = self.bot
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    def for_bot(self, bot: str) -> Self:
        """Return the cursor for this bot.

        Each bot counts its own updates, and another bot's offset would confirm updates never received.
        """
        return replace(self, bot=bot, offset=self.offset if self.bot in ("", bot) else None)

    def request_offset(self, now: datetime) -> int | None:
        """Return the offset to request with; None if it is too old."""
        return self.offset if now.timestamp() - self.at_s < _OFFSET_EXPIRES.total_seconds() else None

    def advance(self, update_id: int, now: datetime) -> Self:
        """Return the cursor after `update_id`."""
        return replace(self, offset=update_id + 1, at_s=int(now.timestamp()))

    def with_move(self, old: str, new: str) -> Self:
        """Return the cursor with the move of a group."""
        return self if self.moved.get(old) == new or old == new else replace(self, moved={**self.moved, old: new})

    def known_room(self, chat: str, rooms: frozenset[str]) -> str:
        """Return the id that we use for the chat: the one that the operator lists, else its first one."""
        if chat in rooms:
            return chat
        return next((old for old, new in self.moved.items() if new == chat), chat)

    def current_chat(self, room: str) -> str:
        """Return Telegram's current id of the room."""
        return self.moved.get(room, room)


TAP_PREFIX = "button:"
"""Prefix of the ids of taps: it distinguishes their answers from replies to messages."""
_MAX_NUMBER = 2**31


def format_message_id(number: int, chat: str, room: str) -> MessageId:
    """Return the id of a message of `chat`, which we call `room`."""
    return MessageId(str(number) if chat == room else f"{chat}:{number}")


def parse_message_number(message: MessageId, chat: str, room: str) -> int | None:
    """Reverse `format_message_id`.

    None: it is not in that chat, or not a message (a button press, or an id of another platform).
    """
    message_chat, _, number = message.rpartition(":")
    is_valid = (
        (message_chat or room) == chat
        and number.isascii()
        and number.isdigit()
        and len(number) <= len(str(_MAX_NUMBER))
    )
    return int(number) if is_valid and 0 < int(number) < _MAX_NUMBER else None


_MAX_KNOWN = 500


class MessageNumbers:
    """Newest known message numbers, to find out whether a message of ours was sent.

    Supergroups and channels count by themselves; all other chats of an account share one sequence
    (core.telegram.org/api/updates#message-related-event-sequences).
    """

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._newest: dict[int, int] = {}
        self._known: dict[int, deque[int]] = {}
        """Sequence -> recent numbers of messages of others, and of ours that are accounted for."""

    def reset(self, now: datetime) -> None:
        """Forget all numbers; older ones than `now` may be followed by unknown messages of an earlier process."""
        self._since = now
        self._newest.clear()
        self._known.clear()

    def record_received(self, chat: int, number: int, sent_s: int) -> None:
        """Record a received message, sent at that Unix time."""
        self._record_known(chat, number)
        if self._since is not None and sent_s >= int(self._since.timestamp()):
            self._newest[sequence_of(chat)] = max(number, self._newest.get(sequence_of(chat), 0))

    def record_sent(self, chat: int, number: int) -> None:
        """Record a message of ours."""
        self._newest[sequence_of(chat)] = max(number, self._newest.get(sequence_of(chat), 0))
        self._record_known(chat, number)

    def _record_known(self, chat: int, number: int) -> None:
        self._known.setdefault(sequence_of(chat), deque(maxlen=_MAX_KNOWN)).append(number)

    def mark_unknown(self, chat: int) -> None:
        """Forget the newest number: a message of ours with an unknown number may exist."""
        self._newest.pop(sequence_of(chat), None)

    def newest(self, chat: int) -> int | None:
        """Return the newest number; None: unknown."""
        return self._newest.get(sequence_of(chat))

    def is_known(self, chat: int, number: int) -> bool:
        """Return whether a recent message there with that number is known."""
        return number in self._known.get(sequence_of(chat), ())


_SUPERGROUP_MAX_ID = -(10**12)


def has_own_sequence(chat: int) -> bool:
    """Return whether the chat has a number sequence of its own."""
    return chat < _SUPERGROUP_MAX_ID


def sequence_of(chat: int) -> int:
    """Return the name of the sequence of numbers that the chat has: its own id, or 0 for the shared one."""
    return chat if has_own_sequence(chat) else 0
