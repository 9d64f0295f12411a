"""What messages are called. Pure.

A message's number is unique inside its chat only (core.telegram.org/bots/api#message), and a supergroup counts from 1,
also one that was a group before. To us it is the same place still, so what is said there after the move names its
chat, too: else it would be taken for what the group said under the same number.
"""

from collections import deque
from datetime import datetime

from gateway.events import MessageId

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
