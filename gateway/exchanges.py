"""How long two bots have been talking to each other. Pure.

A bot that the operator listed is answered, but not for ever: what it says to us, time after time with no
person speaking in between, is at last only context. A program that carries no mark of a bot is known by how it answers.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from math import inf
from typing import Final, NamedTuple

from gateway.events import ConversationId, Message
from gateway.records import AMBIENT, Judgement

MAX_LOOP_CONVERSATIONS = 1_000
"""Remembered at once; the others are counted again from the log."""
EXCHANGE_LOOK_BACK = 50
"""Messages of the log that are counted again; `access.max_bot_exchanges` beyond it counts as this."""


def count_exchanges(exchanges: int, message: Message, judged: Judgement) -> int:
    """Exchanges with bots in a row, this message included."""
    if judged.fate == "refused":
        return exchanges
    if not message.sender.is_bot:
        return 0
    return exchanges + (judged.fate == "due")


def break_loop(judged: Judgement, exchanges: int, limit: int) -> Judgement:
    """The judgement of a bot's message, after the loop is broken if it is time. `exchanges`: with this one."""
    if judged.fate != "due" or exchanges <= min(limit, EXCHANGE_LOOK_BACK):
        return judged
    rule = f"loop broken: {limit} exchanges with bots (access.max_bot_exchanges)"
    return replace(judged, fate="context", urgency=AMBIENT, rule=rule)


def recount_exchanges(messages: Iterable[Message], judge: Callable[[Message], Judgement]) -> int:
    """The count that the log's newest messages give, oldest first."""
    exchanges = 0
    for message in messages:
        exchanges = count_exchanges(exchanges, message, judge(message))
    return exchanges


class BotExchangeCounter:
    """The counts of the conversations in which something was said lately."""

    def __init__(self) -> None:
        self._counts: OrderedDict[ConversationId, int] = OrderedDict()

    def get(self, conversation: ConversationId) -> int | None:
        """None: not remembered."""
        return self._counts.get(conversation)

    def put(self, conversation: ConversationId, exchanges: int) -> None:
        """Remember."""
        self._counts[conversation] = exchanges
        self._counts.move_to_end(conversation)
        if len(self._counts) > MAX_LOOP_CONVERSATIONS:
            self._counts.popitem(last=False)


LOOP_SCORE: Final = 120
"""Of what rounds in a row count: then it is a program, whatever its platform says of it."""
REPEATED_LOOP_SCORE: Final = 42
"""The same after it was found out once."""
ECHO_SCORE: Final = 21
"""What a round counts in which somebody says at once what was said before: six are enough."""
SLOW_ECHO_SCORE: Final = 9
"""The same within seconds: a person who plays a game may do so for a while."""
SIMILAR_SCORE: Final = 2
"""Nearly the same words as before, at once."""
FAST_SCORE: Final = 1
"""Other words, but faster than anybody reads or types: who writes ahead of our answers may seem so for a while."""
REACTION_S: Final = 0.7
"""Nobody reads a line and answers it faster."""
MAX_TYPING_CHARS_S: Final = 20.0
"""Nobody types faster for long: 240 words a minute."""
LONG_CHARS: Final = 40
"""Shorter lines say nothing about the pace of typing."""
ECHO_S: Final = 1.5
"""Who says the same again as fast as this has not read our line."""
SLOW_ECHO_S: Final = 4.0
"""Who does so time after time hardly reads it."""
REMEMBERED_LINES: Final = 2
"""Of what somebody said last."""
SAME_RATIO: Final = 0.9
COMPARED_CHARS: Final = 400
_WORDS: Final = re.compile(r"\w+")
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3_600.0
CALM_S: Final = 3_600.0
"""Who was calm for so long begins anew."""


class LoopPause(NamedTuple):
    """Somebody is not answered for a while."""

    remaining_s: float
    is_new: bool
    """It was found out just now."""
    is_first: bool
    """For the first time since they were calm, and nobody else was told so there in that time."""


@dataclass(slots=True)
class _SenderTalk:
    """Between us and one sender in one conversation. Times are monotonic, in seconds."""

    score: int = 0
    """What their last answers in a row count that no person would give so."""
    recent_texts: tuple[str, ...] = ()
    """What they said last, the newest at the end."""
    last_said_s: float = -inf
    pause_count: int = 0
    """How often they were found out."""
    paused_until_s: float = -inf
    """Not answered until then."""


class BotLoopGuard:
    """Finds senders that answer each of our lines as no person does: by rhythm, and by what both sides say."""

    def __init__(self) -> None:
        self._own_posts: OrderedDict[ConversationId, tuple[float, str]] = OrderedDict()
        """When we last said something there, and what."""
        self._talks: OrderedDict[tuple[ConversationId, str], _SenderTalk] = OrderedDict()
        self._notified: OrderedDict[ConversationId, float] = OrderedDict()
        """When somebody was first told there that they are not answered: a crowd is told once."""

    def record_post(self, conversation: ConversationId, text: str) -> None:
        """We are about to say that there."""
        at_s, _ = self._own_posts.pop(conversation, (-inf, ""))
        self._own_posts[conversation] = at_s, text[:COMPARED_CHARS]
        if len(self._own_posts) > MAX_LOOP_CONVERSATIONS:
            self._own_posts.popitem(last=False)

    def record_sending(self, conversation: ConversationId, now_s: float) -> None:
        """The beginning of it is handed to the platform."""
        self._own_posts[conversation] = now_s, self._own_posts.get(conversation, (-inf, ""))[1]

    def check_line(self, conversation: ConversationId, sender: str, text: str, now_s: float) -> LoopPause | None:
        """They say something that would be answered. Not None: it is not to be.

        A round is our line and then theirs. What they say without a line of ours in between belongs to the same round.
        """
        talk = self._talks.pop((conversation, sender), None) or _SenderTalk()
        self._talks[conversation, sender] = talk
        if len(self._talks) > MAX_LOOP_CONVERSATIONS:
            self._talks.popitem(last=False)
        if now_s < talk.paused_until_s:
            return LoopPause(talk.paused_until_s - now_s, is_new=False, is_first=False)
        if now_s - max(talk.last_said_s, talk.paused_until_s) > CALM_S:
            talk.pause_count = 0
        ours_s, ours = self._own_posts.get(conversation, (-inf, ""))
        if ours_s > talk.last_said_s:  # else it is more of what they said before
            counts = _score_round(talk, text, now_s - ours_s, now_s, ours)
            talk.score = talk.score + counts if counts else 0
        talk.recent_texts, talk.last_said_s = (*talk.recent_texts, _normalize_words(text))[-REMEMBERED_LINES:], now_s
        if talk.score < (REPEATED_LOOP_SCORE if talk.pause_count else LOOP_SCORE):
            return None
        pause_s = min(FIRST_PAUSE_S * 2.0**talk.pause_count, LONGEST_PAUSE_S)
        talk.score, talk.pause_count, talk.paused_until_s = 0, talk.pause_count + 1, now_s + pause_s
        first = talk.pause_count == 1 and now_s - self._notified.get(conversation, -inf) > CALM_S
        if first:
            self._notified.pop(conversation, None)
            self._notified[conversation] = now_s
            if len(self._notified) > MAX_LOOP_CONVERSATIONS:
                self._notified.popitem(last=False)
        return LoopPause(pause_s, is_new=True, is_first=first)


def _score_round(talk: _SenderTalk, text: str, after_s: float, now_s: float, ours: str) -> int:
    """What this round counts. 0: a person may have read our line and written this. `after_s`: after our line."""
    said, before = _normalize_words(text), (*talk.recent_texts, _normalize_words(ours))
    if said in before and after_s <= SLOW_ECHO_S:
        return ECHO_SCORE if after_s <= ECHO_S else SLOW_ECHO_SCORE
    if after_s <= ECHO_S and any(_is_similar(said, one) for one in before[-2:]):
        return SIMILAR_SCORE
    typed = len(text) >= LONG_CHARS and len(text) / max(now_s - talk.last_said_s, 0.001) > MAX_TYPING_CHARS_S
    return FAST_SCORE if typed or after_s <= REACTION_S else 0


def _normalize_words(text: str) -> str:
    """The words alone."""
    return " ".join(_WORDS.findall(text[:COMPARED_CHARS].casefold())) or text[:COMPARED_CHARS]


def _is_similar(one: str, other: str) -> bool:
    shortest, longest = sorted((len(one), len(other)))
    if not longest or shortest / longest < SAME_RATIO:
        return False
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= SAME_RATIO
