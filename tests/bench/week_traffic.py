"""The traffic of a simulated week: what people and platforms do, and what the model says to it. All by dice."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    EventId,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Notification,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
)
from tests.kits.console_platforms import PLATFORMS
from tests.kits.simulated_gateway import ROOMS, TELEGRAM
from tests.servers.model_api import Answer, Json, failure

DAY_S = 86_400.0
PEOPLE = tuple(f"p{number}" for number in range(8))
OWNER = "olga"
SAYS = (
    "nice weather",
    "anybody here?",
    "does the build work for you?",
    "there is an outage",
    "I read that, too",
    "lol",
    "what do you think, who could know?",
)
ASKS = (
    "reverie, what is new?",
    "reverie: can you look it up?",
    "hello",
    "what did I say yesterday?",
    "remember that I like tea",
    "!status",
    "!help",
)
REMINDS = ("remind me in 2 hours to stretch", "remind me every day", "remind me on workdays")


@dataclass(frozen=True, slots=True, order=True)
class Happening:
    """Something at a time."""

    at_s: float
    what: str
    """say, ask, edit, delete, react, topic, join, command, flap, refused; or restart, kill."""
    number: int
    channel: str
    room: str | None
    who: str


def days(count: float, rng: random.Random, *, hourly: float) -> list[Happening]:
    """`hourly`: events of people in the busiest hour of one platform."""
    found: list[Happening] = []
    whats = ["say"] * 60 + ["ask"] * 14 + ["direct"] * 12 + ["edit", "delete", "react", "react", "topic", "join"]
    whats += ["command", "flap", "refused", "refused"]
    at_s = 0.0
    while at_s < count * DAY_S:
        hour = at_s % DAY_S / 3_600
        at_s += rng.expovariate(hourly * len(PLATFORMS) * (1.0 if 7 <= hour <= 22 else 0.05) / 3_600)
        what, channel = rng.choice(whats), rng.choice(list(PLATFORMS))
        away = 2 <= at_s / DAY_S < 4  # the owner is
        who = OWNER if channel == TELEGRAM and not away and rng.random() < 0.15 else rng.choice(PEOPLE)
        room = None if what == "direct" else rng.choice(ROOMS)
        found.append(Happening(at_s, what, len(found), channel, room, who))
    found += [Happening(day * DAY_S + 21 * 3_600, "restart", -1, "", None, "") for day in range(int(count))]
    found += [Happening(0.4 * count * DAY_S + 777, "kill", -1, "", None, "")]
    return sorted(one for one in found if one.at_s < count * DAY_S)


def event(one: Happening, now: datetime, said: list[Message], rng: random.Random) -> Notification:
    """As the platform tells it. What is about a message is about one of those that were `said` there."""
    at = Address(channel=ChannelName(one.channel), room=RoomId(one.room or one.who))
    sender = Sender(id=SenderId(one.who), name=one.who, verified=True)
    ident, about = EventId(f"e{one.number}"), [message for message in said[-200:] if message.at == at]
    if one.what in ("edit", "delete", "react") and about:
        message = rng.choice(about[-5:])
        if one.what == "delete":
            return MessageDeleted(id=ident, at=at, message=message.id, sent=now)
        if one.what == "edit":
            return MessageEdited(
                id=ident, at=at, sender=message.sender, message=message.id, text="I meant tea", sent=now
            )
        return ReactionChanged(id=ident, at=at, sender=sender, message=message.id, reaction="+1", added=True, sent=now)
    if one.what == "topic":
        return MembershipChanged(id=ident, at=at, sender=sender, change="topic", sent=now, text=f"topic {one.number}")
    if one.what == "join":
        return MembershipChanged(id=ident, at=at, sender=sender, change="join", sent=now)
    if one.what == "command":
        return Command(id=ident, at=at, sender=sender, name="status", args="", sent=now, origin="native")
    if one.what == "flap":
        return ConnectionChanged(id=ident, channel=at.channel, up=False, reason="ping timeout", sent=now)
    if one.what == "refused":
        at = Address(channel=at.channel, room=RoomId("#elsewhere"))
    asked = one.what == "ask" or one.room is None
    text = rng.choice(REMINDS if asked and rng.random() < 0.03 else ASKS if asked else SAYS)
    kind = "direct" if one.room is None else "mention" if asked else "room"
    return Message(id=MessageId(ident), at=at, sender=sender, text=text, sent=now, kind=kind)  # type: ignore[arg-type] # one of these


def up(one: Happening, now: datetime) -> ConnectionChanged:
    """The link is back."""
    return ConnectionChanged(
        id=EventId(f"u{one.number}"), channel=ChannelName(one.channel), up=True, reason="", sent=now
    )


def model(rng: random.Random) -> Callable[[Json], Answer]:
    """What it says is decided by what it is told last, and by dice."""
    numbers = iter(range(1, 10**9))

    def call(name: str, **arguments: Any) -> tuple[str, str, str]:
        return f"toolu_{next(numbers)}", name, json.dumps(arguments)

    def answer(body: Json) -> Answer:
        content = next(one["content"] for one in reversed(body["messages"]) if one["role"] == "user")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if (dice := rng.random()) < 0.02:
            return failure(529, "overloaded_error") if dice < 0.012 else failure(400, "invalid_request_error")
        told = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        if not told or blocks[-1]["type"] == "tool_result":
            return Answer(text=f"done {next(numbers)}")
        if "MEMORY.md" in told and "dream ended" not in told:
            return Answer(text=f"- people like tea ({next(numbers)})\n")
        return _looks(told, rng, call) or _does(told, rng, call) or Answer(text=f"well {next(numbers)}")

    return answer


def _looks(told: str, rng: random.Random, call: Callable[..., tuple[str, str, str]]) -> Answer | None:
    """At what is pending everywhere."""
    places = re.findall(r"^## (\S+/\S+)$", told, re.MULTILINE)
    if not places:
        return None
    calls = []
    for place in places:
        dice = rng.random()
        if dice < 0.3:
            calls.append(call("send_message", address=place, text=f"about that, number {rng.randrange(10**9)}"))
        elif dice < 0.7:
            calls.append(call("mark_handled", address=place))
    if rng.random() < 0.3:
        calls.append(call("journal", title="a day", text="they talked about tea and outages " * 20))
    return Answer(calls=(*calls, call("yield_to_user")))


def _does(told: str, rng: random.Random, call: Callable[..., tuple[str, str, str]]) -> Answer | None:
    """What somebody asked for."""
    if "remind me in" in told:
        return Answer(calls=(call("remind", text="stretch", at="in 2h"),))
    if "remind me every" in told:
        return Answer(calls=(call("remind", text="drink", every="1 day"),))
    if "remind me on" in told:
        return Answer(calls=(call("remind", text="stand up", cron="0 9 * * 1-5", timezone="Europe/Zurich"),))
    if "remember" in told:
        return Answer(calls=(call("remember", text=f"someone likes tea {rng.randrange(10**9)}"),))
    dice = rng.random()
    if dice < 0.1:
        return Answer(calls=(call("stay_silent"),))
    if dice < 0.2:
        return Answer(calls=(call("yield_to_user"),))
    return Answer(calls=(call("list_reminders"),)) if dice < 0.4 else None
