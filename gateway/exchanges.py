"""How long two bots have been talking to each other. Pure.

A bot that the operator listed is answered, but not for ever: what it says to us, time after time with no
person speaking in between, is at last only context.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from gateway.events import ConversationId, Message
from gateway.records import AMBIENT, Judged

CONVERSATIONS = 1_000
"""Remembered at once; the others are counted again from the log."""
LOOK_BACK = 50
"""Messages of the log that are counted again; `access.max_bot_exchanges` beyond it counts as this."""


def count(exchanges: int, message: Message, judged: Judged) -> int:
    """Exchanges with bots in a row, this message included."""
    if judged.fate == "refused":
        return exchanges
    if not message.sender.is_bot:
        return 0
    return exchanges + (judged.fate == "due")


def broken(judged: Judged, exchanges: int, limit: int) -> Judged:
    """The judgement of a bot's message, after the loop is broken if it is time. `exchanges`: with this one."""
    if judged.fate != "due" or exchanges <= min(limit, LOOK_BACK):
        return judged
    rule = f"loop broken: {limit} exchanges with bots (access.max_bot_exchanges)"
    return replace(judged, fate="context", urgency=AMBIENT, rule=rule)


def recount(messages: Iterable[Message], judge: Callable[[Message], Judged]) -> int:
    """The count that the log's newest messages give, oldest first."""
    exchanges = 0
    for message in messages:
        exchanges = count(exchanges, message, judge(message))
    return exchanges


class Exchanges:
    """The counts of the conversations in which something was said lately."""

    def __init__(self) -> None:
        self._counts: OrderedDict[ConversationId, int] = OrderedDict()

    def get(self, conversation: ConversationId) -> int | None:
        """None: not remembered."""
        return self._counts.get(conversation)

    def keep(self, conversation: ConversationId, exchanges: int) -> None:
        """Remember."""
        self._counts[conversation] = exchanges
        self._counts.move_to_end(conversation)
        if len(self._counts) > CONVERSATIONS:
            self._counts.popitem(last=False)
