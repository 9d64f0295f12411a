"""The judge of a day: rules that a person would sign, over what people saw, the requests of the model
and the log. Pure. A rule returns its evidence: what breaks it; nothing if it holds.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from agent.prompts import load_prompt
from gateway.core.facts import TurnRecord
from gateway.store import LogEntry
from reverie.testing.servers.model_api import Answer, Json

BOT: Final = "reverie"
PROMPT: Final = timedelta(minutes=2)
"""Time in which an answer comes."""


class Line(NamedTuple):
    """What people saw. A private chat with the bot is `alone:NAME`."""

    at: datetime
    place: str
    who: str
    text: str
    to_bot: bool = False

    def __str__(self) -> str:
        return f"{self.at:%d %H:%M} {self.place} <{self.who}> {self.text}"


class Request(NamedTuple):
    at: datetime
    place: str
    """The same names; `inner`: the conversation of the agent with itself."""
    body: Json
    answer: Answer

    @property
    def text(self) -> str:
        """All that it shows, but for the tools."""
        return json.dumps([self.body.get("system"), self.body["messages"]], ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Day:
    said: Sequence[Line]
    """By people and the bot, everywhere, in order."""
    requests: Sequence[Request] = ()
    log: Sequence[LogEntry] = ()
    usage: Sequence[Json] = ()
    """Of each request, in the words of the Messages API."""

    def bot(self, place: str = "") -> list[Line]:
        """What the bot said there; empty: anywhere."""
        return [one for one in self.said if one.who == BOT and place in ("", one.place)]

    def unasked(self, place: str = "") -> list[Line]:
        """The same, but for what follows a line to it by less than two minutes."""
        return [
            one
            for one in self.bot(place)
            if not any(
                said.to_bot and said.place == one.place and said.at <= one.at <= said.at + PROMPT
                for said in self.said
            )
        ]


class Rule(NamedTuple):
    name: str
    broken: Callable[[Day], list[str]]


def holds(words: Sequence[str], text: str) -> bool:
    return all(word.casefold() in text.casefold() for word in words)


def asks(line: Line) -> bool:
    """The gateway asks whether the bot may."""
    return line.text.startswith("May ")


def told(place: str, *words: str, since: datetime, by: datetime) -> Rule:
    def broken(day: Day) -> list[str]:
        found = [one for one in day.bot(place) if holds(words, one.text)]
        if any(since <= one.at <= by for one in found):
            return []
        return [f"not told {since:%H:%M}-{by:%H:%M}: {words}", *map(str, found)]

    return Rule(f"{place} is told of {words[0]}", broken)


def told_once(place: str, *words: str) -> Rule:
    """Unasked the bot says so there at most once."""

    def broken(day: Day) -> list[str]:
        found = [str(one) for one in day.unasked(place) if holds(words, one.text)]
        return found if len(found) > 1 else []

    return Rule(f"{place} is told of {words[0]} once", broken)


def nothing_twice() -> Rule:
    """No line of the bot is there twice, unless somebody asked twice."""

    def broken(day: Day) -> list[str]:
        found = Counter((one.place, one.text) for one in day.unasked())
        return [f"{count} x {place}: {text}" for (place, text), count in found.items() if count > 1]

    return Rule("nothing is told twice", broken)


def never(*words: str, outside: Sequence[str]) -> Rule:
    """What was said in private comes out nowhere else, also in no request of another place."""

    def broken(day: Day) -> list[str]:
        seen = [one for one in day.bot() if one.place not in outside and holds(words, one.text)]
        held = [
            f"a request of {one.place} at {one.at:%d %H:%M} holds {words}"
            for one in day.requests
            if one.place not in outside and holds(words, one.text)
        ]
        return [*map(str, seen), *held]

    return Rule(f"{words[0]} stays with {', '.join(outside)}", broken)


def silent(place: str, since: datetime, by: datetime, why: str) -> Rule:
    """The bot says nothing there."""

    def broken(day: Day) -> list[str]:
        return [str(one) for one in day.bot(place) if since <= one.at < by]

    return Rule(f"silent in {place}: {why}", broken)


def answered() -> Rule:
    """Whoever asks the bot something is answered in the same place, and within two minutes."""

    def broken(day: Day) -> list[str]:
        return [
            str(said)
            for said in day.said
            if said.to_bot and said.text.endswith("?")
            if not any(said.at <= one.at <= said.at + PROMPT for one in day.bot(said.place))
        ]

    return Rule("nobody who asked is without an answer", broken)


def once(*, besides: str = "It has ended") -> Rule:
    """A line to the bot brings one answer: what it says in two minutes comes at one moment.
    `besides`: what is told of a job that ended meanwhile."""

    def broken(day: Day) -> list[str]:
        found = []
        for said in day.said:
            there = [one for one in day.said if one.place == said.place]
            ends = [one.at for one in there if one.who != BOT and one.at > said.at]
            by = min([*ends, said.at + PROMPT])
            posts = [
                one
                for one in there
                if one.who == BOT and said.at <= one.at < by and not asks(one)
                if besides not in one.text
            ]
            if said.to_bot and posts and posts[-1].at - posts[0].at > timedelta(seconds=2):
                found += [f"to {said}:", *map(str, posts)]
        return found

    return Rule("an answer is posted once", broken)


def no_afterthought() -> Rule:
    """An answer ends the matter: no request of the same place follows it unless something came."""

    def broken(day: Day) -> list[str]:
        found = []
        for one in day.requests:
            before = [
                said
                for said in day.said
                if said.place == one.place and said.at <= one.at and not asks(said)
            ]
            newest = [part["content"] for part in one.body["messages"] if part["role"] == "user"]
            texts = [newest[-1]] if isinstance(newest[-1], str) else newest[-1]
            is_new = "(nothing new)" not in str(texts[-1])
            if before and before[-1].who == BOT and not is_new:
                found.append(f"{one.at:%d %H:%M:%S} {one.place}, after {before[-1]}")
        return found

    return Rule("an answer that used a tool costs no request afterwards", broken)


def shown(place: str, at: datetime, *words: str) -> Rule:
    """What was asked there then can be answered: it stands in the request."""

    def broken(day: Day) -> list[str]:
        asked = [one for one in day.requests if one.place == place and at <= one.at <= at + PROMPT]
        missing = [word for word in words if not any(holds([word], one.text) for one in asked)]
        told = [line for one in asked for line in str(_directives(one.body)).splitlines()]
        return [f"not shown at {at:%d %H:%M}: {missing}", *told] if missing else []

    return Rule(f"{place} can be answered at {at:%H:%M}", broken)


def guided() -> Rule:
    """By itself it is told which state it is in."""
    states = ("engaged", "working", "foraging", "resting", "stored")

    def broken(day: Day) -> list[str]:
        looks = [one for one in day.requests if one.place == "inner"]
        return [
            f"{one.at:%d %H:%M} {found}"
            for one in looks
            if len(found := [state for state in states if load_prompt(state) in one.text]) != 1
        ]

    return Rule("each look says what to do in that state", broken)


def idle(since: datetime, by: datetime) -> Rule:
    """Nothing is asked of the model."""

    def broken(day: Day) -> list[str]:
        return [f"{one.at:%d %H:%M} {one.place}" for one in day.requests if since <= one.at < by]

    return Rule("an idle day makes no request", broken)


def _directives(body: Json) -> list[Any]:
    return [one["content"] for one in body["messages"] if one["role"] == "system"]


@dataclass(frozen=True)
class Figures:
    unasked: dict[str, int]
    """Messages that nobody asked for, here or elsewhere, by place."""
    asked_requests: int
    unasked_requests: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    unasked_usd: float
    approvals: int


def figures(day: Day) -> Figures:
    turns = [one.fact for one in day.log if isinstance(one.fact, TurnRecord)]

    def cost(*, autonomous: bool) -> float:
        return sum(
            account.cost_usd or 0.0
            for turn in turns
            if turn.autonomous is autonomous
            for account in turn.accounts
        )

    sent = [one for one in day.usage if one["output_tokens"]]
    total = sum(
        one["input_tokens"] + one["cache_read_input_tokens"] + one["cache_creation_input_tokens"]
        for one in sent
    )
    asked = sum(turn.requests for turn in turns if not turn.autonomous)
    calls = [call for one in day.requests for call in one.answer.calls]
    posted = {json.loads(given).get("text") for _, name, given in calls if name == "send_message"}
    return Figures(
        unasked=dict(Counter(one.place for one in day.unasked() if one.text not in posted)),
        asked_requests=asked,
        unasked_requests=len(day.requests) - asked,
        tokens_in=total,
        tokens_out=sum(one["output_tokens"] for one in sent),
        cost_usd=cost(autonomous=False) + cost(autonomous=True),
        unasked_usd=cost(autonomous=True),
        approvals=sum(map(asks, day.bot())),
    )


def report(title: str, day: Day, rules: Sequence[Rule]) -> Iterator[str]:
    """For people: what holds, what does not and why, and the numbers."""
    found = {rule.name: rule.broken(day) for rule in rules}
    broken = {name: evidence for name, evidence in found.items() if evidence}
    it = figures(day)
    yield f"{title}: {len(found) - len(broken)} of {len(found)} rules hold"
    for name, evidence in broken.items():
        yield f"  broken: {name}"
        yield from (f"    {one}" for one in evidence)
    places = ", ".join(f"{place} {count}" for place, count in sorted(it.unasked.items()))
    yield f"  unasked messages: {sum(it.unasked.values())} ({places or 'none'})"
    yield f"  approvals asked for: {it.approvals}"
    yield f"  requests: {it.asked_requests} asked, {it.unasked_requests} unasked"
    yield (
        f"  tokens: {it.tokens_in:,} in, {it.tokens_out:,} out; "
        f"${it.cost_usd:.4f}, of it unasked ${it.unasked_usd:.4f}"
    )
