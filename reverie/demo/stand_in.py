"""What answers in place of a model: an API of chat completions that follows a few rules.

The gateway talks to it as to any other model. The rules read the newest line of the conversation,
as the gateway shows it to models: `[date time] name (role): text`.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from operator import add, mul, sub
from typing import Final

from reverie.testing.servers.model_api import Answer, Json, ModelApi

_EVENT: Final = re.compile(r"^\[[\d-]+ [\d:]+\] (.+)$", re.MULTILINE)
_REMINDER: Final = re.compile(r"\(.*reminder.*: \"(.*)\"\)$")
_LINE: Final = re.compile(r"(\S+) \([^)]*\): (?:reverie[,:]? *)?(.*)", re.IGNORECASE)
_REMIND: Final = re.compile(
    r"remind me in (?P<at>\d+ *[smh][a-z]*) *(?:to|that|of|about)? *(?P<text>.+)",
    re.IGNORECASE,
)
_TOPIC: Final = re.compile(r"set the topic to:? *(.+)", re.IGNORECASE)
_AS_ASKED: Final = re.compile(r"set the topic as \w+ asked", re.IGNORECASE)
_OPERATORS: Final = {
    "+": add,
    "plus": add,
    "-": sub,
    "minus": sub,
    "*": mul,
    "x": mul,
    "times": mul,
}
_SUM: Final = re.compile(
    rf"(?<!\d)(\d{{1,9}}) *({'|'.join(map(re.escape, _OPERATORS))}) *(\d{{1,9}})(?!\d)",
    re.IGNORECASE,
)
_PHRASES: Final = (
    (r"may i talk|can i talk", "Of course, {name}. Welcome!"),
    (
        r"\b(hello|hi|hey|good (morning|day|evening))\b",
        "Hello! I am Reverie, a bot.",
    ),
    (r"\bthank", "You are welcome."),
    (
        r"who are you|what are you|what can you|\bhelp\b",
        "I greet, tell the time, do sums, remind you, and set the topic if I may.",
    ),
    (r"\b(time|clock)\b", "It is {time}."),
    (
        "",
        "I have no rule for that: I am only a stand-in for a model. /help lists my rules.",
    ),
)
"""The first pattern that is found counts."""


class StandIn(ModelApi):
    """The API."""

    def __init__(self) -> None:
        super().__init__()
        self.default = answer

    @contextlib.contextmanager
    def holding(self) -> Iterator[asyncio.Event]:
        """Leave requests without an answer, and set the event once there is one."""
        held = asyncio.Event()

        def hold(_: Json) -> Answer:
            held.set()
            return Answer(silent_after=0)

        self.default = hold
        try:
            yield held
        finally:
            self.default = answer


def answer(body: Json) -> Answer:
    """Answer a request of chat completions. Pure, but for the time of day."""
    events, results = list[str](), list[str]()
    for message in body["messages"]:
        content = message.get("content")
        if message["role"] == "tool":
            results.append(str(content))
        elif message["role"] == "user" and (found := _EVENT.findall(str(content))):
            events, results = [*events, *found], []
    event = events[-1] if events else ""
    if results:
        return Answer(text=_report(results[-1]))
    if reminder := _REMINDER.search(event):
        return Answer(text=f"Time to {reminder[1]}! You asked me to remind you.")
    said = _LINE.match(event)
    name, text = said.groups() if said else ("you", event)
    if wanted := _REMIND.search(text):
        return _call(body, "remind", at=f"in {wanted['at']}", text=wanted["text"].rstrip(".!"))
    topics = [one for said in events for one in _TOPIC.findall(said)]
    if topics and (_TOPIC.search(text) or _AS_ASKED.search(text)):
        return _call(body, "set_topic", topic=topics[-1])
    if asked := _SUM.search(text):
        compute = _OPERATORS[asked[2].lower()]
        return Answer(text=f"{asked[0]} is {compute(int(asked[1]), int(asked[3]))}.")
    phrase = next(reply for pattern, reply in _PHRASES if re.search(pattern, text, re.IGNORECASE))
    return Answer(text=phrase.format(name=name, time=f"{datetime.now().astimezone():%H:%M}"))


def _call(body: Json, tool: str, **arguments: str) -> Answer:
    return Answer(calls=((f"call_{len(body['messages'])}", tool, json.dumps(arguments)),))


def _report(result: str) -> str:
    """Tell in one sentence what came of a call."""
    if result.startswith("Refused"):
        return "I may not do that for you: it is for admins and the owner."
    reminder = re.match(r"Reminder .* is set .*(in \w+)\.", result)
    return f"I will remind you {reminder[1]}." if reminder else f"Done. {result}"
