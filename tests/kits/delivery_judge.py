"""The judge of the kill test: from the log, the wire and what the model was asked to what went
wrong. Pure.

Every line of a person carries a token (`t17z`). Every line of a reply carries a mark (`r5.2`:
second line of the model's fifth answer), and each token of the new lines stands in exactly one line
of the answer. So the log says which line owes an answer, and the wire says how often it got one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gateway.core.events import Address, ConversationId, DeliveryReport, Message, Post
from gateway.core.facts import PartSendEnded, PartSendStarted, PostQueued, Seq, TurnRecord
from gateway.store import LogEntry

TOKEN = re.compile(r"\bt\d+z\b")
MARK = re.compile(r"^r(\d+)\.(\d+)\b")
DOUBT = "may not have reached you"
"""Stands in the machine's own word on an answer that is uncertain: said again for each such
answer."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A PRIVMSG of the bot, as the IRC server read it."""

    target: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A model request: when it arrived, and the tokens of its new lines."""

    at: datetime
    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by, each in order."""

    entries: Sequence[LogEntry]
    wire: Sequence[Shown]
    asked: Sequence[Asked]


@dataclass
class Verdict:
    """What became of the lines. `faults` says in words what may never happen."""

    accepted: int = 0
    answered: int = 0
    uncertain: int = 0
    lost: int = 0
    duplicated: int = 0
    asked_twice: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why parts of posts are uncertain."""
    faults: list[str] = field(default_factory=list)

    def lose(self, what: str) -> None:
        self.lost += 1
        self.faults.append(f"lost: {what}")

    def duplicate(self, what: str) -> None:
        self.duplicated += 1
        self.faults.append(f"duplicated: {what}")


def fair(found: Verdict) -> None:
    """Each line is answered once, or recorded as uncertain; nothing is lost or doubled. Else
    AssertionError."""
    assert found.faults == [], found.faults
    assert (found.lost, found.duplicated, found.asked_twice) == (0, 0, 0)
    assert found.answered + found.uncertain == found.accepted > 0


@dataclass(frozen=True, slots=True)
class _Part:
    place: ConversationId
    body: str
    state: str
    """As in `PartSendEnded`; `sending` if nothing was recorded after it was handed over; `unsent`
    before."""
    reason: str


class _Log:
    """The log, read for judging."""

    def __init__(self, entries: Iterable[LogEntry]) -> None:
        self.owed: list[tuple[Seq, str]] = []
        """Lines said to the bot, with their token."""
        self.covering: dict[Seq, list[LogEntry]] = {}
        self.parts: list[_Part] = []
        """In the order in which they have to appear."""
        self.ended: dict[str, DeliveryReport] = {}
        self.reasons: Counter[str] = Counter()
        left: dict[ConversationId | None, tuple[Seq, ...]] = {}
        bodies: dict[str, tuple[str, ...]] = {}
        states: dict[tuple[str, int], tuple[str, str]] = {}
        posts: list[Post] = []
        for entry in entries:
            match entry.fact:
                case Message(kind="direct" | "mention", text=text) if found := TOKEN.search(text):
                    self.owed.append((entry.seq, found[0]))
                case TurnRecord(
                    covers=covers, outcome="interrupted"
                ):  # the next turn there answers these, too
                    left[entry.conversation] = (*left.get(entry.conversation, ()), *covers)
                case TurnRecord(covers=covers):
                    for seq in (*left.pop(entry.conversation, ()), *covers):
                        self.covering.setdefault(seq, []).append(entry)
                case PostQueued(post=whole) if DOUBT not in whole.text:
                    posts.append(whole)
                case PartSendStarted(post=post, part=part) as sending:
                    bodies[post] = sending.bodies or bodies[post]
                    states[post, part] = ("sending", "")
                case PartSendEnded(post=post, part=part, state=state, reason=reason):
                    states[post, part] = (state, reason)
                    self.reasons += Counter([reason] if state == "uncertain" else [])
                case DeliveryReport() as delivery:
                    self.ended[delivery.post] = delivery
        for queued_post in posts:
            key, place = queued_post.key, queued_post.to.conversation
            for index, body in enumerate(bodies.get(key, queued_post.text.splitlines())):
                self.parts.append(_Part(place, body, *states.get((key, index), ("unsent", ""))))


def judge(evidence: Evidence) -> Verdict:
    """Hold what was promised against what happened."""
    log, verdict = _Log(evidence.entries), Verdict()
    evidence = replace(evidence, wire=[shown for shown in evidence.wire if DOUBT not in shown.text])
    verdict.reasons = log.reasons
    _lines(log, evidence, verdict)
    _parts(log, evidence.wire, verdict)
    _order(log, evidence.wire, verdict)
    _asked(log, evidence, verdict)
    return verdict


def _lines(log: _Log, evidence: Evidence, verdict: Verdict) -> None:
    """Each accepted line is answered once, or the line of the reply that names it is uncertain and
    says why."""
    times = Counter(token for shown in evidence.wire for token in TOKEN.findall(shown.text))
    naming = {token: part for part in log.parts for token in TOKEN.findall(part.body)}
    accepted = Counter(token for _, token in log.owed)
    for seq, token in log.owed:
        turns, part = log.covering.get(seq, []), naming.get(token)
        verdict.accepted += 1
        if accepted[token] > 1 or len(turns) > 1 or times[token] > 1:
            verdict.duplicate(
                f"{token}: {accepted[token]} times accepted, {len(turns)} turns, {times[token]} "
                "answers"
            )
        elif not turns or part is None:
            verdict.lose(
                f"{token}: " + ("no turn covers it" if not turns else "its turn does not answer it")
            )
        elif times[token] == 1:
            verdict.answered += 1
        elif part.state == "uncertain" and part.reason and _said_to_be_uncertain(log, turns[0]):
            verdict.uncertain += 1
        else:
            verdict.lose(f"{token}: not on the wire, and its part is {part.state}: {part.reason}")


def _said_to_be_uncertain(log: _Log, turn: LogEntry) -> bool:
    assert isinstance(turn.fact, TurnRecord)
    delivery = log.ended.get(str(turn.fact.turn))
    return delivery is not None and delivery.state == "uncertain" and bool(delivery.reason)


def _parts(log: _Log, wire: Sequence[Shown], verdict: Verdict) -> None:
    """Each part is seen as often as the log says, at the place that it is for; nothing else is
    seen."""
    allowed = {"sent": {1}, "uncertain": {0, 1}}
    seen = Counter(wire)
    known = {Shown(_nick_or_room(part.place), part.body): part for part in log.parts}
    for shown, part in known.items():
        if seen[shown] > 1:
            verdict.duplicate(f"{shown} was seen {seen[shown]} times")
        elif part.state not in allowed:
            verdict.lose(f"{shown} ended as {part.state}: {part.reason}")
        elif seen[shown] not in allowed[part.state]:
            verdict.lose(f"{shown} is {part.state} and was not seen")
    verdict.faults += [f"not in the log: {shown}" for shown in seen if shown not in known]


def _order(log: _Log, wire: Sequence[Shown], verdict: Verdict) -> None:
    """In each conversation what was seen follows the order of turns, and of lines within a
    reply."""
    place = {Shown(_nick_or_room(part.place), part.body): at for at, part in enumerate(log.parts)}
    newest: dict[str, int] = {}
    for shown in wire:
        at = place.get(shown, -1)
        if at >= 0 and at < newest.get(shown.target, -1):
            verdict.faults.append(f"out of order: {shown}")
        newest[shown.target] = max(at, newest.get(shown.target, -1))


def _asked(log: _Log, evidence: Evidence, verdict: Verdict) -> None:
    """Once a turn is in the log, the model is not asked about its lines again."""
    tokens = {
        entry.seq: TOKEN.findall(entry.fact.text)
        for entry in evidence.entries
        if isinstance(entry.fact, Message)
    }
    done = {
        token: turns[0].at for seq, turns in log.covering.items() for token in tokens.get(seq, ())
    }
    for asked in evidence.asked:
        again = sorted(token for token in asked.tokens if token in done and done[token] < asked.at)
        if again:
            verdict.asked_twice += 1
            verdict.faults.append(
                f"asked again at {asked.at} about {again}, dealt with at {done[again[0]]}"
            )


def _nick_or_room(conversation: ConversationId) -> str:
    return Address.parse(conversation).room.partition("!")[0]
