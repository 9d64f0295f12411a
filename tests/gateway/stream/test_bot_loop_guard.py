"""Loops with bots: listed bots are answered, but not for ever; and who may invite the bot where."""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from agent.models.scripted import Script
from channels.base import Rejected
from gateway.access.policy import decide
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    EventId,
    MembershipChanged,
    Message,
    MessageId,
    Notification,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, PartSendStarted
from gateway.core.identity import AccessPolicy
from gateway.store import NewEntry, Store
from gateway.store.effects import Decision
from gateway.stream.loops import LOOP_PAUSE_S, LOOP_ROUNDS, LoopGuard
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Gateway, Screen, running
from tests.kits.owners import NotedNotices
from tests.kits.policies import routed
from tests.kits.settings import live_settings

ROLES = {
    "dm": "open",
    "roles": {
        "owner": ["console:olga"],
        "admin": ["console:root"],
        "member": ["console:b0t"],
        "blocked": ["console:mal"],
    },
}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def said(
    who: str, number: int, *, bot: bool = False, kind: Literal["mention", "room"] = "mention"
) -> Message:
    return Message(
        id=MessageId(f"m{number}"),
        at=Address(channel=CONSOLE, room=RoomId("lobby")),
        sender=Sender(id=SenderId(who), name=who, verified=True, is_bot=bot),
        text=f"reverie: {number}",
        sent=datetime.now(UTC),
        kind=kind,
    )


async def emit(gateway: Gateway, events: Sequence[Notification]) -> None:
    await gateway.console._up.wait()
    assert gateway.console._emit is not None
    for event in events:
        await gateway.console._emit([event])


async def judged(path: Path) -> list[tuple[str, str]]:
    async with await Store.open_readonly(path) as reader:
        entries = await reader.entries(kinds=["mention", "room"])
        found = [await reader.find_judgement(entry.seq) for entry in entries]
    return [(one.fate, one.rule) for one in found if one is not None]


DUE = ("due", "a mention is urgent")


def broken(limit: int) -> tuple[str, str]:
    return ("context", f"loop broken: {limit} exchanges with bots (access.max_bot_exchanges)")


async def test_a_talk_between_bots_ends_until_a_person_speaks(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access={**ROLES, "max_bot_exchanges": 2}) as gateway:
        await emit(gateway, [said("b0t", number, bot=True) for number in range(4)])
        await emit(
            gateway, [said("mal", 10, kind="room")]
        )  # who is not heard does not go on with it either
        await emit(gateway, [said("b0t", 11, bot=True, kind="room")])
        await emit(gateway, [said("b0t", 12, bot=True)])
        await emit(gateway, [said("ann", 13, kind="room"), said("b0t", 14, bot=True)])
        await gateway.screen.until(1)
    fates = await judged(gateway.path)
    assert fates[:4] == [DUE, DUE, broken(2), broken(2)]
    assert [fate for fate, _ in fates[4:6]] == ["refused", "context"]
    assert fates[6] == broken(2)
    assert fates[8] == DUE


async def test_the_count_outlives_a_restart(tmp_path: Path) -> None:
    rules = {**ROLES, "max_bot_exchanges": 3}
    async with running(tmp_path, Script(), access=rules) as gateway:
        await emit(gateway, [said("ann", 0), said("b0t", 1, bot=True), said("b0t", 2, bot=True)])
    async with running(tmp_path, Script(), access=rules) as gateway:
        await emit(gateway, [said("b0t", 3, bot=True), said("b0t", 4, bot=True)])
    assert await judged(gateway.path) == [DUE, DUE, DUE, DUE, broken(3)]


@pytest.mark.parametrize(
    ("bot", "limit", "expected"),
    [("b0t", 0, broken(0)), ("other", 5, ("refused", "bots are not answered"))],
)
async def test_bots_are_not_answered_unless_listed_and_allowed(
    tmp_path: Path, bot: str, limit: int, expected: tuple[str, str]
) -> None:
    async with running(tmp_path, Script(), access={**ROLES, "max_bot_exchanges": limit}) as gateway:
        await emit(gateway, [said(bot, 1, bot=True)])
        await gateway.ask("reverie: hello", sender="ann", room="lobby")
        assert len(gateway.scripted.requests) == 1
    assert (await judged(gateway.path))[0] == expected


OWNER, STRANGER = (Sender(id=SenderId(who), name=who, verified=True) for who in ("olga", "ann"))


def invitation(sender: Sender, room: str = "lobby", number: int = 1) -> MembershipChanged:
    return MembershipChanged(
        id=EventId(f"i{number}"),
        at=Address(channel=CONSOLE, room=RoomId(room)),
        sender=sender,
        change="invite",
        sent=NOW,
    )


@pytest.mark.parametrize(
    ("event", "allowed", "rule"),
    [
        (invitation(OWNER), True, "invited by an owner, and in channels.console.rooms"),
        (invitation(OWNER, "cellar"), False, "invited, but not in channels.console.rooms"),
        (invitation(replace(OWNER, verified=False)), False, "only an owner or admin may invite"),
        (invitation(STRANGER), False, "only an owner or admin may invite"),
        (invitation(replace(OWNER, id=SenderId("mal"))), False, "access.roles.blocked"),
    ],
)
def test_who_may_invite(event: MembershipChanged, allowed: bool, rule: str) -> None:
    policy = AccessPolicy(
        dm_policy="open",
        roles={"console:olga": "owner", "console:mal": "blocked"},
        open_rooms={ChannelName("console"): frozenset({RoomId("lobby")})},
    )
    decision = decide(policy, event)
    assert (decision.allowed, decision.rule) == (allowed, rule)


class Mobile(ConsoleChannel):
    """Enters rooms, and refuses some."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(CONSOLE, screen.show)
        self.entered: list[str] = []

    async def join(self, at: Address) -> None:
        self.entered.append(at.room)
        if at.room == "banned":
            raise Rejected("you are banned there")
        if at.room == "odd":
            raise KeyError("a bug")


async def test_an_invitation_is_followed_once_and_failures_are_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rooms = ["lobby", "banned", "odd"]
    screen = Screen()
    console = Mobile(screen)
    async with running(
        tmp_path, Script(), channels={CONSOLE: console}, rooms=rooms, access=ROLES
    ) as gateway:
        asked = [invitation(OWNER, room, number) for number, room in enumerate([*rooms, "cellar"])]
        await emit(gateway, [*asked, asked[0], invitation(STRANGER, number=9)])
        await console.receive_message("reverie: hello", sender="ann", room="lobby")
        await screen.until(1)
    assert console.entered == rooms
    for line in (
        "invited, and entered console/lobby",
        "invited, but cannot enter console/banned: you are banned there",
        "entering console/odd broke",
        "invited, but cannot enter console/odd: an error in my program",
    ):
        assert line in caplog.text


PLACE = Address(channel=CONSOLE, room=RoomId("lobby"))


class Chat:
    """One sender and the bot, on a clock of its own."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, ManualClock()
        self.loops = LoopGuard(store, self.clock, live_settings(), NotedNotices())
        self.answered = 0
        self.rules: list[str] = []

    async def ours(self) -> None:
        sending = PartSendStarted(post=PostKey("p"), part=0, bodies=None)
        entry = NewEntry(fact=sending, at=NOW, conversation=PLACE.conversation)
        await self.store.append([entry])

    async def theirs(
        self, text: str, *, after_s: float, sender: str = "eve", is_answered: bool = True
    ) -> bool:
        """Let them write so long after the last line. Return whether it is answered."""
        self.clock.advance(after_s)
        line = replace(said(sender, 1), text=text)
        due = Judgement(type="t", urgency=3, fate="due", rule="r", role="guest")
        decided = await self.loops.judge(routed(line), Decision(judgement=due))
        if decided is not None:
            self.rules.append(decided.judgement.rule)
            return False
        self.answered += 1
        if is_answered:
            self.clock.advance(1.0)
            await self.ours()
        return True


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Chat]:
    async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
        yield Chat(store)


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("Pardon?", 0.05),
        ("Pardon?", 0.5),
        ("An answer that no person types in this time, word by word.", 1.5),
    ],
)
async def test_who_answers_faster_than_anybody_reads_or_types_is_a_program(
    chat: Chat, text: str, after_s: float
) -> None:
    for _ in range(300):
        await chat.theirs(text, after_s=after_s)
    assert chat.answered == LOOP_ROUNDS
    told = "loop broken: no person answers so fast; they are answered again in 3600 s"
    assert chat.rules.index(told) == 0
    chat.clock.advance(LOOP_PAUSE_S)
    assert await chat.theirs(text, after_s=after_s)


@pytest.mark.parametrize("seed", range(20))
async def test_a_person_who_types_fast_and_ahead_is_none(chat: Chat, seed: int) -> None:
    """Ten characters a second, without a break, whenever answers come."""
    chance = random.Random(seed)
    for number in range(200):
        words = f"{number}: " + "".join(chance.choices("abcdefgh ", k=chance.randint(3, 80)))
        took_s = len(words) / 10 + chance.uniform(0.2, 1.5)
        answers_s = chance.uniform(0.3, 4.0)
        if answers_s < took_s:
            chat.clock.advance(answers_s)
            await chat.ours()
            took_s -= answers_s
        assert await chat.theirs(words, after_s=took_s, is_answered=False), number


@pytest.mark.parametrize(
    ("lines", "after_s", "people"),
    [
        (["yes", "no", "go on", "lol", "ok", "north", "again"], 1.2, 1),
        (["roll", "how many points is that?"], 2.0, 1),
        (["and now?"], 0.1, 5),  # a lively room
    ],
)
async def test_a_person_who_answers_at_once_is_none(
    chat: Chat, lines: list[str], after_s: float, people: int
) -> None:
    for number in range(200):
        text, sender = lines[number % len(lines)], f"p{number % people}"
        assert await chat.theirs(text, after_s=after_s, sender=sender)
