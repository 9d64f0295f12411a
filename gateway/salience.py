"""What in a room's talk is worth a look, though nobody spoke to the agent. Pure: times come in.

Off unless the operator turns it on. A room is lifted once, and then not again for a while, whatever is said there:
a flood of questions makes one turn, not hundreds.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.events import ConversationId, Message

MAX_SALIENCE_ROOMS: Final = 1_000
"""Remembered at once. One that was forgotten has no average until it has been watched anew."""
SHORT_AVERAGE_S: Final = 60.0
LONG_AVERAGE_S: Final = 3_600.0
"""Lines are counted with weights that fall off with these times, in seconds: what happens now, and what is usual."""
MIN_ACTIVE_LINES: Final = 10.0
"""Lines within the short time below which nothing is unusual, however quiet the room was."""

_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f")
"""Also the wide one of East Asian scripts, and the Arabic one."""
_TRAILING_CHARS: Final = " \t\r\n\"'\u201d\u2019\u00bb)]*_~`!"
"""What may stand behind a question mark: white space, quotes, brackets, marks of emphasis."""
_ADDRESSED: Final = re.compile(r"(?<!\S)@\w|\A\S{1,64}[:,]\s|\A<@")
"""`@name` anywhere, or `name:` or `name,` in front. Also `well, ...`: who is in doubt keeps quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaliencePolicy:
    """What the operator finds worth a look."""

    people: frozenset[str] = frozenset()
    """By `channel:sender id`. Whatever they say."""
    keywords: Sequence[str] = ()
    """Any of these in the text, in any case."""
    questions: bool = False
    """A question that is put to nobody."""
    activity: float = 0.0
    """So many times as many lines as are usual there. 0: however many."""
    rest_s: float = 300.0
    """Seconds after a room was lifted in which it is not lifted again."""


def is_open_question(message: Message) -> bool:
    """It ends with a question mark and names nobody, as far as its text shows."""
    text = message.text[-4_096:].rstrip(_TRAILING_CHARS)
    if not text.endswith(_QUESTION_MARKS) or message.reply_to is not None or _ADDRESSED.search(message.text[:4_096]):
        return False
    return "://" not in text.rsplit(maxsplit=1)[-1]


@dataclass(slots=True)
class _RoomActivity:
    watched_since: datetime
    last_line_at: datetime
    short_count: float = 0.0
    long_count: float = 0.0
    lifted_at: datetime | None = None

    def count(self, at: datetime) -> float:
        """Take in a line; how many times as many as usual there are now. 0: too few, or not watched long enough.

        The long count has only been growing since `since`, and is judged by what it could have become by now
        (the usual correction: https://arxiv.org/abs/1412.6980, section 3).
        """
        at = max(at, self.last_line_at)
        passed = (at - self.last_line_at).total_seconds()
        self.last_line_at = at
        self.long_count *= math.exp(-passed / LONG_AVERAGE_S)
        usual = self.long_count / LONG_AVERAGE_S
        watched = (at - self.watched_since).total_seconds()
        self.short_count = self.short_count * math.exp(-passed / SHORT_AVERAGE_S) + 1
        self.long_count += 1
        if self.short_count < MIN_ACTIVE_LINES or watched < LONG_AVERAGE_S or usual <= 0:
            return 0.0
        return (self.short_count / SHORT_AVERAGE_S) / (usual / (1 - math.exp(-watched / LONG_AVERAGE_S)))


class SalienceDetector:
    """Decides, and remembers what it must of the rooms in which something was said lately."""

    def __init__(self, said: Callable[[], SaliencePolicy]) -> None:
        """`said`: what the operator finds worth a look by now."""
        self._policy = said
        self._rooms: OrderedDict[ConversationId, _RoomActivity] = OrderedDict()

    def find_reason(self, message: Message, at: datetime) -> str | None:
        """Which key of the configuration makes this line of a room worth a look; None: none does.

        `at`: when we learnt of it. To be asked once for each line that would be ambient otherwise.
        """
        salience = self._policy()
        if not (salience.people or salience.keywords or salience.questions or salience.activity):
            return None
        place = message.at.conversation
        room = self._rooms.setdefault(place, _RoomActivity(watched_since=at, last_line_at=at))
        self._rooms.move_to_end(place)
        if len(self._rooms) > MAX_SALIENCE_ROOMS:
            self._rooms.popitem(last=False)
        why = _find_salience_key(salience, message, room.count(at))
        resting = room.lifted_at is not None and (at - room.lifted_at).total_seconds() < salience.rest_s
        if why is None or resting:
            return None
        room.lifted_at = at
        return f"attention.salience.{why}"


def _find_salience_key(salience: SaliencePolicy, message: Message, times: float) -> str | None:
    text = message.text.casefold()
    if f"{message.at.channel}:{message.sender.id}" in salience.people:
        return "people"
    if message.sender.is_bot:
        return None
    if any(word.casefold() in text for word in salience.keywords):
        return "keywords"
    if salience.questions and is_open_question(message):
        return "questions"
    return "activity" if 0 < salience.activity <= times else None
