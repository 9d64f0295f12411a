"""Loops with bots: listed bots are answered, but not for ever; and who may invite the bot where."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from agent.models.scripted import Script
from channels.base import Rejected
from channels.console import ConsoleChannel
from gateway.access.policy import decide
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    EventId,
    MembershipChanged,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement
from gateway.core.identity import AccessPolicy
from gateway.store import Store
from gateway.stream import attention
from gateway.stream.attention import LOOP_PAUSE_S, LOOP_ROUNDS, BotLoopGuard
from tests.kits.gateway import CONSOLE, Gateway, Screen, running

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
        await gateway.console.receive_message("reverie: hello", sender="ann", room="lobby")
        await gateway.screen.until(1)
        assert len(gateway.scripted.requests) == 1
    assert (await judged(gateway.path))[0] == expected


def verdict(fate: Literal["due", "context", "refused", "noted"]) -> Judgement:
    return Judgement(type="t", urgency=0, fate=fate, rule="r", role="guest")


@pytest.mark.parametrize(
    ("before", "bot", "fate", "after"),
    [
        (2, True, "due", 3),
        (2, True, "context", 2),
        (2, True, "refused", 2),
        (2, False, "due", 0),
        (2, False, "noted", 0),
        (2, False, "refused", 2),
    ],
)
def test_what_counts(
    before: int, bot: bool, fate: Literal["due", "context", "refused", "noted"], after: int
) -> None:
    assert attention.count_exchanges(before, said("x", 1, bot=bot), verdict(fate)) == after


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


PLACE = ConversationId("irc.test/eve")


class Chat:
    """One sender and the bot, on a clock of its own."""

    def __init__(self) -> None:
        self.loops, self.now_s = BotLoopGuard(), 1_000.0
        self.answered = 0
        self.pauses: list[float] = []

    def ours(self) -> None:
        self.loops.record_sending(PLACE, self.now_s)

    def theirs(
        self, text: str, *, after_s: float, sender: str = "eve", is_answered: bool = True
    ) -> bool:
        """Let them write so long after the last line. Return whether it is answered."""
        self.now_s += after_s
        if pause_s := self.loops.check_line(PLACE, sender, text, self.now_s):
            self.pauses.append(pause_s)
            return False
        self.answered += 1
        if is_answered:
            self.now_s += 1.0
            self.ours()
        return True


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("Pardon?", 0.05),
        ("Pardon?", 0.5),
        ("An answer that no person types in this time, word by word.", 1.5),
    ],
)
def test_who_answers_faster_than_anybody_reads_or_types_is_a_program(
    text: str, after_s: float
) -> None:
    chat = Chat()
    for _ in range(300):
        chat.theirs(text, after_s=after_s)
    assert chat.answered == LOOP_ROUNDS
    assert chat.pauses.count(LOOP_PAUSE_S) == 1
    chat.now_s += LOOP_PAUSE_S
    assert chat.theirs(text, after_s=after_s)


@pytest.mark.parametrize("seed", range(20))
def test_a_person_who_types_fast_and_ahead_is_none(seed: int) -> None:
    """Ten characters a second, without a break, whenever answers come."""
    chance, chat = random.Random(seed), Chat()
    for number in range(200):
        words = f"{number}: " + "".join(chance.choices("abcdefgh ", k=chance.randint(3, 80)))
        took_s = len(words) / 10 + chance.uniform(0.2, 1.5)
        answers_s = chance.uniform(0.3, 4.0)
        if answers_s < took_s:
            chat.now_s += answers_s
            chat.ours()
            took_s -= answers_s
        assert chat.theirs(words, after_s=took_s, is_answered=False), number


def test_a_person_who_answers_at_once_with_short_words_is_none() -> None:
    chat = Chat()
    for number in range(100):
        assert chat.theirs(
            ["yes", "no", "go on", "lol", "ok", "north", "again"][number % 7], after_s=1.2
        )


def test_a_person_who_plays_a_game_is_none() -> None:
    chat = Chat()
    for number in range(60):
        assert chat.theirs(
            "roll" if number % 9 else "how many points is that?", after_s=2.0 + number % 5
        )


def test_a_person_in_a_lively_room_is_none() -> None:
    chat = Chat()
    for number in range(200):
        assert chat.theirs("and now?", after_s=0.1, sender=f"p{number % 5}")
