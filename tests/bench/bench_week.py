"""A simulated week of the whole gateway: mixed traffic on three platforms, and what became of all
of it.

`python -m tests.bench.bench_week [--days 7] [--seed 1] [--hourly 12]`. Rooms where it speaks up, direct
chats, edits, reactions, deletions, reminders of each kind, link flaps, a restart each night, one
kill, an owner who goes away, tools that work, and limits small enough to bite. Against a strict
Messages API with prices. Ends with an error if an event has no fate or two, if `reverie why` tells
another, or if a day passes its limits. Prints what became of what.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from agent.signals import Signal, Tick
from gateway.config.models import Settings
from gateway.context.conversation import ATTENDED_NOTICE
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
from gateway.core.facts import Judgement, Seq, TurnRecord
from gateway.plugins.trace import explain_event
from gateway.runtime.agent import Agent
from gateway.store import LogEntry, Store, rebuild
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import PLATFORMS, ROOMS, TELEGRAM, Gateway, on_platforms
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, Json, ModelApi, failure
from reverie.testing.simulated_time import JumpingClock, simulate
from tests.kits.outcomes import compute_outcomes

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
    whats = (
        ["say"] * 60
        + ["ask"] * 14
        + ["direct"] * 12
        + ["edit", "delete", "react", "react", "topic", "join"]
    )
    whats += ["command", "flap", "refused", "refused"]
    at_s = 0.0
    while at_s < count * DAY_S:
        hour = at_s % DAY_S / 3_600
        at_s += rng.expovariate(
            hourly * len(PLATFORMS) * (1.0 if 7 <= hour <= 22 else 0.05) / 3_600
        )
        what, channel = rng.choice(whats), rng.choice(list(PLATFORMS))
        away = 2 <= at_s / DAY_S < 4  # the owner is
        who = (
            OWNER
            if channel == TELEGRAM and not away and rng.random() < 0.15
            else rng.choice(PEOPLE)
        )
        room = None if what == "direct" else rng.choice(ROOMS)
        found.append(Happening(at_s, what, len(found), channel, room, who))
    found += [
        Happening(day * DAY_S + 21 * 3_600, "restart", -1, "", None, "")
        for day in range(int(count))
    ]
    found += [Happening(0.4 * count * DAY_S + 777, "kill", -1, "", None, "")]
    return sorted(one for one in found if one.at_s < count * DAY_S)


def event(one: Happening, now: datetime, said: list[Message], rng: random.Random) -> Notification:
    """As the platform tells it. What is about a message is about one of those that were `said`
    there."""
    at = Address(channel=ChannelName(one.channel), room=RoomId(one.room or one.who))
    sender = Sender(id=SenderId(one.who), name=one.who, verified=True)
    ident, about = (
        EventId(f"e{one.number}"),
        [message for message in said[-200:] if message.at == at],
    )
    if one.what in ("edit", "delete", "react") and about:
        message = rng.choice(about[-5:])
        if one.what == "delete":
            return MessageDeleted(id=ident, at=at, message=message.id, sent=now)
        if one.what == "edit":
            return MessageEdited(
                id=ident,
                at=at,
                sender=message.sender,
                message=message.id,
                text="I meant tea",
                sent=now,
            )
        return ReactionChanged(
            id=ident, at=at, sender=sender, message=message.id, reaction="+1", added=True, sent=now
        )
    if one.what == "topic":
        return MembershipChanged(
            id=ident, at=at, sender=sender, change="topic", sent=now, text=f"topic {one.number}"
        )
    if one.what == "join":
        return MembershipChanged(id=ident, at=at, sender=sender, change="join", sent=now)
    if one.what == "command":
        return Command(
            id=ident, at=at, sender=sender, name="status", args="", sent=now, origin="native"
        )
    if one.what == "flap":
        return ConnectionChanged(
            id=ident, channel=at.channel, up=False, reason="ping timeout", sent=now
        )
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
        content = next(
            one["content"] for one in reversed(body["messages"]) if one["role"] == "user"
        )
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if (dice := rng.random()) < 0.02:
            return (
                failure(529, "overloaded_error")
                if dice < 0.012
                else failure(400, "invalid_request_error")
            )
        told = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        if not told or blocks[-1]["type"] == "tool_result":
            return Answer(text=f"done {next(numbers)}")
        if "MEMORY.md" in told and "dream ended" not in told:
            return Answer(text=f"- people like tea ({next(numbers)})\n")
        return (
            _looks(told, rng, call)
            or _does(told, rng, call)
            or Answer(text=f"well {next(numbers)}")
        )

    return answer


def _looks(
    told: str, rng: random.Random, call: Callable[..., tuple[str, str, str]]
) -> Answer | None:
    """At what is pending everywhere."""
    places = re.findall(r"^## (\S+/\S+)$", told, re.MULTILINE)
    if not places:
        return None
    calls = [
        call("attend", room=place, reason="a question") for place in places if rng.random() < 0.3
    ]
    if rng.random() < 0.3:
        calls.append(call("journal", title="a day", text="they talked about tea and outages " * 20))
    return Answer(calls=(*calls, call("yield_to_user")))


def _does(
    told: str, rng: random.Random, call: Callable[..., tuple[str, str, str]]
) -> Answer | None:
    """What somebody asked for, or waits for in a room."""
    if ATTENDED_NOTICE in told:
        return Answer(text=f"about that, number {rng.randrange(10**9)}")
    if "remind me in" in told:
        return Answer(calls=(call("remind", text="stretch", at="in 2h"),))
    if "remind me every" in told:
        return Answer(calls=(call("remind", text="drink", every="1 day"),))
    if "remind me on" in told:
        return Answer(
            calls=(call("remind", text="stand up", cron="0 9 * * 1-5", timezone="Europe/Zurich"),)
        )
    if "remember" in told:
        return Answer(calls=(call("remember", text=f"someone likes tea {rng.randrange(10**9)}"),))
    dice = rng.random()
    if dice < 0.1:
        return Answer(calls=(call("stay_silent"),))
    if dice < 0.2:
        return Answer(calls=(call("yield_to_user"),))
    return Answer(calls=(call("intentions"),)) if dice < 0.4 else None


DAILY_TURNS, DAILY_USD = 20, 0.30
FEW = [
    *[
        "bash",
        "job*",
        "*_file",
        "glob",
        "grep",
        "view_image",
        "web_*",
        "load_skill",
        "react",
        "*_own",
        "read_room",
    ],
    *["who", "set_topic", "forget"],
]
"""Nobody uses these in that week."""
SAMPLED = 5
"""Events of each fate that `explain_event` is asked about."""


@dataclass
class Week:
    log: list[LogEntry]
    ticks: int
    requests: int
    emitted: set[str]
    stories: dict[Seq, list[str]] = field(default_factory=dict)
    fates: dict[Seq, EventOutcome] = field(default_factory=dict)


def configuration(folder: Path, url: str) -> Settings:
    return on_platforms(
        folder,
        bindings=[{"private": False, "speaks_up": "when_useful"}],
        llm={
            "providers": {"p": {"kind": "anthropic", "base_url": url, "api_key": "test"}},
            "models": {
                "main": {"provider": "p", "name": "claude-sonnet-5-5", "max_output_tokens": 500}
            },
            "context_optimization": {"workspace_cache": {"enabled": False}},
        },
        attention={
            "coalesce": 1.5,
            "rules": [
                {"type": "*.room.*", "keyword": "outage", "urgency": "normal"},
                {"type": f"{TELEGRAM}.room.*", "role": "owner", "urgency": "normal"},
            ],
            "presence": {"sleep": "23:30-06:30", "timezone": "Europe/Zurich"},
        },
        dmn={
            "daily_turns": DAILY_TURNS,
            "daily_cost_usd": DAILY_USD,
            "dream_tokens": 200,
            "forage_per_day": DAILY_TURNS,
        },
        tools={"off": FEW},
    )


async def live(clock: JumpingClock, folder: Path, count: float, seed: int, hourly: float) -> Week:
    rng, said, emitted, ticks = random.Random(seed), list[Message](), set[str](), 0
    send = Agent.send

    def seeing(self: Agent, signal: Signal) -> None:
        nonlocal ticks
        ticks += isinstance(signal, Tick)
        send(self, signal)

    async with ModelApi(
        cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic
    ) as api:
        api.default = model(rng)
        gateway = Gateway(configuration(folder, api.url), None, clock=clock)
        with mock.patch.object(Agent, "send", seeing):
            gateway.start()
            for one in days(count, rng, hourly=hourly):
                await clock.sleep(one.at_s - clock.monotonic())
                if one.what in ("restart", "kill"):
                    await (gateway.end() if one.what == "restart" else gateway.kill())
                    gateway.start()
                    continue
                told = event(one, clock.now(), said, rng)
                said += [told] if isinstance(told, Message) else []
                emitted.add(told.id)
                await gateway.tell(one.channel, told)
                if one.what == "flap":
                    await clock.sleep(rng.expovariate(1 / 60))
                    await gateway.tell(one.channel, up(one, clock.now()))
            await clock.sleep(2 * 3_600)
            await gateway.end()
        assert not api.violations, api.violations[0]
        return Week(
            log=await gateway.entries(), ticks=ticks, requests=len(api.seen), emitted=emitted
        )


def one_fate_each(week: Week) -> None:
    """Raises AssertionError for an event without a fate."""
    events = {one.cause for one in week.log if isinstance(one.fact, Judgement)}
    week.fates |= compute_outcomes(week.log)
    assert set(week.fates) == events, "every event has a fate, and nothing else"
    kept = {str(getattr(one.fact, "id", "")) for one in week.log if one.seq in events}
    assert week.emitted <= kept, "every event that was told is in the log"


async def told_why(week: Week, path: Path) -> None:
    """Raises AssertionError where `reverie why` tells another fate, or no rule."""
    rules = {one.cause: one.fact.rule for one in week.log if isinstance(one.fact, Judgement)}
    by_fate: dict[EventOutcome, list[Seq]] = defaultdict(list)
    for seq, fate in week.fates.items():
        by_fate[fate].append(seq)
    async with await Store.open_readonly(path) as reader:
        for fate, seqs in by_fate.items():
            for seq in random.Random(1).sample(seqs, min(SAMPLED, len(seqs))):
                story = await explain_event(reader, seq)
                assert story is not None
                assert story[-1] == f"outcome: {fate}", story
                assert any(rules[seq] in line for line in story), story
                week.stories[seq] = story


def by_day(week: Week) -> dict[str, tuple[Counter[str], int, float]]:
    """By UTC day: turns by cause, and how many of them nobody asked for, and what these cost."""
    found: dict[str, tuple[Counter[str], int, float]] = {}
    for one in week.log:
        if isinstance(one.fact, TurnRecord) and one.fact.within is None:
            causes, turns, usd = found.get(f"{one.at:%Y-%m-%d}", (Counter[str](), 0, 0.0))
            spent = (
                sum(account.cost_usd or 0.0 for account in one.fact.accounts)
                if one.fact.autonomous
                else 0.0
            )
            causes[one.fact.cause] += 1
            found[f"{one.at:%Y-%m-%d}"] = causes, turns + one.fact.autonomous, usd + spent
    return found


def within_limits(week: Week) -> None:
    """Raises AssertionError for a day that passes them."""
    for day, (_, turns, usd) in by_day(week).items():
        assert turns <= DAILY_TURNS, f"{turns} turns on {day}"
        assert usd <= DAILY_USD, f"${usd:.4f} on {day}"


def tables(week: Week) -> Iterator[str]:
    kinds = {one.seq: one.kind for one in week.log}
    counted = Counter((fate, kinds[seq]) for seq, fate in week.fates.items())
    columns = sorted({kind for _, kind in counted})
    yield from _table(
        "what became of", columns, [(f, [counted[f, k] for k in columns]) for f in EventOutcome]
    )
    yield ""
    days_ = by_day(week)
    causes = sorted({cause for turns, _, _ in days_.values() for cause in turns})
    rows = [
        (day, [*(turns[cause] for cause in causes), own, f"{usd:.3f}"])
        for day, (turns, own, usd) in days_.items()
    ]
    rows.append(("limit", [*("" for _ in causes), DAILY_TURNS, f"{DAILY_USD:.3f}"]))
    yield from _table("turns by cause", [*causes, "unasked", "$"], rows)
    started = sum(turns for _, turns, _ in days_.values())
    yield (
        f"\n{week.ticks} wake-ups, {week.requests} model requests, {started} turns that nobody "
        "asked for"
    )


def _table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[object]]]
) -> Iterator[str]:
    yield f"{title:19}" + "".join(f"{column:>11}" for column in columns)
    for name, cells in rows:
        yield f"{name:19}" + "".join(f"{cell!s:>11}" for cell in cells)


def run(folder: Path, *, count: float, seed: int, hourly: float, limit_s: float = 3_600.0) -> Week:
    """Live it, and hold it to its promises."""
    week = simulate(
        lambda clock: live(clock, folder, count, seed, hourly), limit_s=limit_s, grace_s=0.002
    )
    one_fate_each(week)
    asyncio.run(told_why(week, folder / "reverie.db"))
    within_limits(week)
    assert asyncio.run(rebuild(folder / "reverie.db")) == [], "every table is what the log says"
    return week


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hourly", type=float, default=12.0)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(
            "\n".join(
                tables(run(Path(folder), count=said.days, seed=said.seed, hourly=said.hourly))
            )
        )


if __name__ == "__main__":
    main()
