"""What messages are called. Pure.

A message's number is unique inside its chat only (core.telegram.org/bots/api#message), and a supergroup counts from 1,
also one that was a group before. To us it is the same place still, so what is said there after the move names its
chat, too: else it would be taken for what the group said under the same number.
"""

from gateway.events import MessageId

_LAST = 2**31


def named(number: int, chat: str, room: str) -> MessageId:
    """The id of a message of `chat`, which is known to us as `room`."""
    return MessageId(str(number) if chat == room else f"{chat}:{number}")


def number_of(message: MessageId, chat: str, room: str) -> int | None:
    """Reverse `named`. None: it is not in that chat, or no message (but a button press, or another platform's)."""
    where, _, number = message.rpartition(":")
    fine = (where or room) == chat and number.isascii() and number.isdigit() and len(number) <= len(str(_LAST))
    return int(number) if fine and 0 < int(number) < _LAST else None
