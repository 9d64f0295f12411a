"""Message ids and the cursor of a Telegram account. Pure.

A message's number is unique inside its chat only (core.telegram.org/bots/api#message), and a
supergroup counts from 1, also one that was a group before. For the gateway it stays the same place,
so ids of messages after the move also contain the chat: otherwise they would equal ids from before
the move.
"""

from collections.abc import Generator, Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Literal, Self

from pydantic import TypeAdapter, ValidationError

from gateway.core.events import EDITED, MessageId
from gateway.core.frozen import frozen
from gateway.core.ratelimit import LruDict

_OFFSET_EXPIRES = timedelta(days=6)
"""After a week without updates the next id is chosen at random (core.telegram.org/bots/api#update):
an offset as old as that could confirm updates that were never received."""


@frozen
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
    def parse(cls, text: str | None) -> "TelegramCursor":
        """Reverse `to_json`. An invalid cursor counts as none: all pending updates arrive again."""
        try:
            return _CURSOR.validate_json(text or "{}")
        except ValidationError:
            return cls()

    def to_json(self) -> str:
        return _CURSOR.dump_json(self).decode()

    def for_bot(self, bot: str) -> Self:
        """Return the cursor for this bot.

        Each bot counts its own updates, and another bot's offset would confirm updates never
        received.
        """
        return replace(self, bot=bot, offset=self.offset if self.bot in ("", bot) else None)

    def request_offset(self, now: datetime) -> int | None:
        """Return the offset to request with; None if it is too old."""
        return (
            self.offset if now.timestamp() - self.at_s < _OFFSET_EXPIRES.total_seconds() else None
        )

    def advance(self, update_id: int, now: datetime) -> Self:
        return replace(self, offset=update_id + 1, at_s=int(now.timestamp()))

    def with_move(self, old: str, new: str) -> Self:
        return (
            self
            if self.moved.get(old) == new or old == new
            else replace(self, moved={**self.moved, old: new})
        )

    def known_room(self, chat: str, rooms: frozenset[str]) -> str:
        """Return the id that we use for the chat: the one that the operator lists, else its first
        one.
        """
        if chat in rooms:
            return chat
        return next((old for old, new in self.moved.items() if new == chat), chat)


_CURSOR = TypeAdapter(TelegramCursor)
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
    message_chat, _, number = message.removesuffix(EDITED).rpartition(":")
    is_valid = (
        (message_chat or room) == chat
        and number.isascii()
        and number.isdigit()
        and len(number) <= len(str(_MAX_NUMBER))
    )
    return int(number) if is_valid and 0 < int(number) < _MAX_NUMBER else None


_MAX_KNOWN = 2000
_DOUBT_S = 60
"""Seconds by which Telegram's clock may differ from ours."""
GAP, CRASH_GAP, _MAX_PROBED = 10, 40, 120
"""Consecutive unused numbers that end a search; the same in the shared sequence after a crash,
which may have cut off many other messages; and the most numbers that are looked at."""


class MessageNumbers:
    """Newest known message numbers, to find out whether a message of ours was sent.

    Supergroups and channels count by themselves; all other chats of an account share one sequence
    (core.telegram.org/api/updates#message-related-event-sequences). A message that is sent has a
    greater number than all that were known before. So what stands behind those in its chat, is ours
    and not known, is that message.
    """

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._known: dict[int, LruDict[int, None]] = {}
        """Sequence -> recent numbers of messages of others, and of ours that are accounted for."""
        self._doubts: dict[int, float] = {}
        """Chat -> Unix time at which a message of ours with an unknown number may have been
        there."""

    def record_received(self, chat: int, number: int, sent_s: float) -> None:
        """Record a message of somebody else, sent at that Unix time."""
        self._record(chat, number)
        for other, doubt_s in tuple(self._doubts.items()):
            if sequence_of(other) == sequence_of(chat) and sent_s > doubt_s + _DOUBT_S:
                del self._doubts[other]

    def record_sent(self, chat: int, number: int) -> None:
        """Record a message of ours. Call it in the order in which they were sent to a chat."""
        sequence = sequence_of(chat)
        if number < self._newest.get(sequence, 0) - _MAX_KNOWN:  # another account counts here now
            del self._newest[sequence], self._known[sequence]
        self._record(chat, number)
        self._doubts.pop(chat, None)

    def _record(self, chat: int, number: int) -> None:
        sequence = sequence_of(chat)
        self._newest[sequence] = max(number, self._newest.get(sequence, 0))
        self._known.setdefault(sequence, LruDict(_MAX_KNOWN)).put(number, None)

    def mark_unknown(self, chat: int, now_s: float) -> None:
        """Record that a message of ours with an unknown number may be in the chat at that Unix
        time.
        """
        self._doubts[chat] = now_s

    def newest(self, chat: int) -> int | None:
        """Return the newest number. None: unknown, or one of ours that is not known may be
        newer.
        """
        return None if chat in self._doubts else self._newest.get(sequence_of(chat))

    def search(
        self, chat: int, after: int, gap: int
    ) -> Generator[int, Literal["ours", "other", "none"], int | None]:
        """Yield the numbers to look at, and take what is there; return that of an unknown message
        of ours, if any.

        `gap`: consecutive numbers without a message in this chat that end the search behind all
        that is known. Raises OverflowError if too much was said since.
        """
        sequence, number, last, probed = sequence_of(chat), after, after, 0
        while number < max(last, self._newest.get(sequence, 0)) + gap:
            number += 1
            if number in self._known.get(sequence, ()):
                continue
            probed += 1
            if probed > _MAX_PROBED:
                raise OverflowError("too much was said since")
            found = yield number
            if found == "ours":
                return number
            if found == "other":
                last = number
        return None


_SUPERGROUP_MAX_ID = -(10**12)


def sequence_of(chat: int) -> int:
    """Return the name of the sequence of numbers that the chat has: its own id, or 0 for the shared
    one.
    """
    return chat if chat < _SUPERGROUP_MAX_ID else 0
