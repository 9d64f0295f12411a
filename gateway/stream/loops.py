"""Loops: talks of the agent with programs are broken.

Whoever the platform marks as a bot, and the operator listed, is answered some times in a row, until
a person writes there. Who has no mark is taken for a program after many answers in a row that came
faster than a person reads or types, and is left alone for a while. Its lines are context then.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from gateway.access.policy import Routed
from gateway.access.texts import format_person, format_room
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Message, Post, PostKey
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    PartSendStarted,
    dedup_key,
)
from gateway.core.i18n import N_, _
from gateway.core.identity import ADMIN_ROLES
from gateway.core.ratelimit import LruDict
from gateway.store import LogEntry, Store
from gateway.store.effects import Decision
from gateway.stream.notices import Notices

MAX_PLACES: Final = 1_000
"""Places remembered at once; exchanges of the others are counted again from the log."""
EXCHANGE_LOOK_BACK: Final = 50
"""Messages of the log that are counted again; a larger `access.max_bot_exchanges` counts as
this."""
LOOP_ROUNDS: Final = 120
"""Rounds in a row that no person could have written at which a sender is taken for a program,
although its platform does not say so."""
LOOP_PAUSE_S: Final = 3_600.0
"""Time for which a program is not answered then."""
REACTION_S: Final = 0.7
"""Shortest time, in seconds, in which a person reads a line and answers it."""
MAX_TYPING_CHARS_S: Final = 20.0
"""Fastest typing of a person over a longer text: 240 words a minute."""
LONG_CHARS: Final = 40
"""Length below which a line says nothing about the pace of typing."""
_BROKEN: Final = "loop broken: "
_TEXT: Final = N_("You answer faster than a person can read. I do not answer you here for an hour.")


@dataclass(slots=True)
class _SenderTalk:
    rounds: int = 0
    """Their last answers in a row that no person could have written in that time."""
    last_said_s: float = -inf
    paused_until_s: float = -inf


class LoopGuard:
    """Recognises programs among the senders of all channels."""

    def __init__(self, store: Store, clock: Clock, live: LiveSettings, notices: Notices) -> None:
        self._reader, self._clock, self._live, self._notices = store, clock, live, notices
        self._exchanges = LruDict[ConversationId, int](MAX_PLACES)
        self._posted_s = LruDict[ConversationId, float](MAX_PLACES)
        self._talks = LruDict[tuple[ConversationId, str], _SenderTalk](MAX_PLACES)
        store.subscribe(self._on_sending, PartSendStarted)

    def _on_sending(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            first = isinstance(entry.fact, PartSendStarted) and not entry.fact.part
            if first and entry.conversation is not None:
                self._posted_s.put(entry.conversation, self._clock.monotonic())

    async def judge(self, routed: Routed, decided: Decision) -> Decision | None:
        """Judge a line that would be answered. A repeated one counts again: at worst a loop ends,
        or a person's message counts, one message too late. Raises StoreError.
        """
        message, judged = routed.event, decided.judgement
        assert isinstance(message, Message)
        if message.sender.is_bot:
            return await self._judge_bot(message, decided) if judged.fate == "due" else None
        if judged.fate != "refused":
            self._exchanges.put(message.at.conversation, 0)
        if judged.fate != "due" or routed.role in ADMIN_ROLES:
            return None
        left_s = self._pause_s(message)
        if not left_s:
            return None
        rule = f"no person answers so fast; they are answered again in {left_s:.0f} s"
        decided = _break(decided, rule)
        return decided if left_s < LOOP_PAUSE_S else self._tell(routed, message, decided)

    async def _judge_bot(self, message: Message, decided: Decision) -> Decision | None:
        place, limit = message.at.conversation, self._live.settings.access.max_bot_exchanges
        before = self._exchanges.get(place)
        now = 1 + (await self._recount(place) if before is None else before)
        self._exchanges.put(place, now)
        if now <= min(limit, EXCHANGE_LOOK_BACK):
            return None
        return _break(decided, f"{limit} exchanges with bots (access.max_bot_exchanges)")

    async def _recount(self, place: ConversationId) -> int:
        """Count the exchanges again from the log, back to the newest line of a person who is
        heard.
        """
        exchanges = 0
        for entry in reversed(
            await self._reader.newest_entries(
                EXCHANGE_LOOK_BACK, kinds=MESSAGE_KINDS, conversation=place
            )
        ):
            judged = await self._reader.find_judgement(entry.seq)
            if judged is None or judged.fate == "refused" or not isinstance(entry.fact, Message):
                continue
            if not entry.fact.sender.is_bot:
                break
            exchanges += judged.fate == "due" or judged.rule.startswith(_BROKEN)
        return exchanges

    def _pause_s(self, message: Message) -> float:
        """Return the seconds for which a sender is not answered: all of `LOOP_PAUSE_S` with the
        line that shows it, 0 for a person.

        A round is our line followed by theirs. Further lines of theirs without one of ours belong
        to the same round.
        """
        key, now_s = (message.at.conversation, message.sender.id), self._clock.monotonic()
        talk = self._talks.get(key) or _SenderTalk()
        self._talks.put(key, talk)
        ours_s, before_s = self._posted_s.get(message.at.conversation, -inf), talk.last_said_s
        talk.last_said_s = now_s
        if now_s < talk.paused_until_s:
            return talk.paused_until_s - now_s
        if ours_s > before_s:  # else it continues what they wrote before
            length = len(message.text)
            typed_s = length / MAX_TYPING_CHARS_S if length >= LONG_CHARS else 0.0
            is_fast = now_s - ours_s <= REACTION_S or now_s - before_s < typed_s
            talk.rounds = talk.rounds + 1 if is_fast else 0
        if talk.rounds < LOOP_ROUNDS:
            return 0.0
        talk.rounds, talk.paused_until_s = 0, now_s + LOOP_PAUSE_S
        return LOOP_PAUSE_S

    def _tell(self, routed: Routed, message: Message, decided: Decision) -> Decision:
        who = format_person(routed.person, message.sender.name)
        place = message.at.conversation
        self._notices.tell(
            f"loop:{place}",
            lambda _to: _(
                "{person} answers all my messages in {room} faster than a person can, so it is "
                "probably a program. I do not answer it for an hour. `block` ends that. I "
                "tell you this once a day."
            ).format(person=who, room=format_room(place)),
        )
        key = PostKey(hashlib.sha256(f"loop:{dedup_key(message)}".encode()).hexdigest()[:26])
        return replace(decided, post=Post(key=key, to=message.at, text=_(_TEXT), style="notice"))


def _break(decided: Decision, rule: str) -> Decision:
    judged = decided.judgement
    judged = replace(judged, fate="context", urgency=AMBIENT, rule=f"{_BROKEN}{rule}")
    return replace(decided, judgement=judged)
