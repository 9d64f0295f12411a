"""Salience of room talk: by text, by sender, and by rate."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.policy import AccessDecision
from gateway.config.models import SalienceConfig
from gateway.core.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.store import Store
from gateway.stream.attention import (
    MAX_SALIENCE_ROOMS,
    AttentionPolicy,
    AttentionRule,
    ListenMode,
    SalienceDetector,
    is_open_question,
    judge,
)
from gateway.stream.trace import explain_event
from tests.kits.gateway import running

NOW = datetime(2026, 3, 1, tzinfo=UTC)
YES = AccessDecision(allowed=True, role="guest", rule="open")
NO = AccessDecision(allowed=False, role="guest", rule="closed")
ANN = Sender(id=SenderId("a"), name="ann")


class Salient:
    """A detector with these settings."""

    def __init__(self, policy: SalienceConfig) -> None:
        self._policy, self._detector = policy, SalienceDetector()

    def find_reason(self, message: Message, at: datetime) -> str | None:
        return self._detector.find_reason(self._policy, message, at)


def said(text: str = "hi", room: str = "#python") -> Message:
    at = Address(channel=ChannelName("irc.x"), room=RoomId(room))
    return Message(id=MessageId("1"), at=at, sender=ANN, text=text, sent=NOW, kind="room")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("does anybody know how to quit vim?", True),
        ("¿sabe alguien?  ", True),
        ("知道吗？", True),
        ("**really?**", True),
        ("(anybody here?)", True),
        ("what?!", True),
        ("ann: do you know?", False),
        ("ann, do you know?", False),
        ("do you know, @ann?", False),
        ("write to a@b.example, or?", True),
        ("http://x.example/?", False),
        ("I asked? Then I slept.", False),
        ("", False),
    ],
)
def test_questions_to_nobody(text: str, asked: bool) -> None:
    assert is_open_question(said(text)) == asked


def test_an_answer_to_somebody_is_no_question_to_nobody() -> None:
    assert not is_open_question(replace(said("why?"), reply_to=MessageId("0")))


@pytest.mark.parametrize(
    ("salience", "message", "rule"),
    [
        (SalienceConfig(), said("anybody? fire!"), None),
        (SalienceConfig(people=("irc.x:a",)), said(), "attention.salience.people"),
        (SalienceConfig(people=("irc.y:a",)), said(), None),
        (SalienceConfig(keywords=("FIRE", "flood")), said("a fire!"), "attention.salience.keywords"),
        (SalienceConfig(keywords=("fire",)), said("tea"), None),
        (SalienceConfig(questions=True), said("tea?"), "attention.salience.questions"),
        (SalienceConfig(questions=True), replace(said("tea?"), sender=replace(ANN, is_bot=True)), None),
        (SalienceConfig(activity=0.001), said(), None),
    ],
)
def test_each_is_named_by_its_key(salience: SalienceConfig, message: Message, rule: str | None) -> None:
    assert Salient(salience).find_reason(message, NOW) == rule


def test_a_room_that_was_lifted_rests_and_others_do_not() -> None:
    salient = Salient(SalienceConfig(questions=True, rest=60))
    assert salient.find_reason(said("a?"), NOW)
    assert [salient.find_reason(said("b?"), after(second)) for second in (0, 1, 59, -500)] == [None] * 4
    assert salient.find_reason(said("b?", "#other"), after(1))
    assert salient.find_reason(said("c"), after(61)) is None
    assert salient.find_reason(said("c?"), after(62))


def test_a_raid_is_lifted_once() -> None:
    salient = Salient(SalienceConfig(questions=True, keywords=("raid",), activity=2))
    lifted = [salient.find_reason(said(f"raid {number}?"), after(number / 100)) for number in range(6_000)]
    assert len([one for one in lifted if one]) == 1


def _talk(salient: Salient, every: float, upto: float, start: float = 0) -> list[str]:
    found = []
    at = start
    while at < upto:
        found.append(salient.find_reason(said(), after(at)))
        at += every
    return [one for one in found if one]


def test_more_lines_than_usual_are_unusual_once_there_is_a_usual() -> None:
    salient = Salient(SalienceConfig(activity=5))
    assert _talk(salient, 1, 600) == [], "nobody knows yet what is usual"
    salient = Salient(SalienceConfig(activity=5))
    assert _talk(salient, 60, 7_200) == [], "a line a minute is usual"
    assert _talk(salient, 5, 7_400, start=7_200) == ["attention.salience.activity"]
    steady = Salient(SalienceConfig(activity=5))
    assert _talk(steady, 5, 10_800) == [], "the same pace is usual for this room"
    assert _talk(steady, 2, 11_400, start=10_800) == [], "and a little more is not five times as many"


def test_what_is_usual_is_known_after_an_hour_and_right_from_then_on() -> None:
    young = Salient(SalienceConfig(activity=5))
    assert _talk(young, 60, 1_800) == []
    assert _talk(young, 1, 1_900, start=1_800) == []
    even = Salient(SalienceConfig(activity=1.3))
    assert _talk(even, 5, 4_000) == [], "the hour that was watched counts as one, not as a part of many"


def test_few_lines_are_never_unusual() -> None:
    salient = Salient(SalienceConfig(activity=2))
    assert _talk(salient, 3_000, 20_000) == []
    assert _talk(salient, 1, 20_009, start=20_000) == []


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from(["a", "b?"])), max_size=60))
def test_no_times_can_upset_it(lines: list[tuple[float, str]]) -> None:
    salient = Salient(SalienceConfig(activity=1, questions=True, rest=10))
    for seconds, text in lines:
        assert salient.find_reason(said(text), after(seconds)) in {
            None,
            "attention.salience.questions",
            "attention.salience.activity",
        }


def test_memory_is_bounded() -> None:
    salient = Salient(SalienceConfig(questions=True))
    for number in range(MAX_SALIENCE_ROOMS + 10):
        salient.find_reason(said("?", f"#{number}"), NOW)
    assert salient.find_reason(said("?", f"#{MAX_SALIENCE_ROOMS}"), NOW) is None
    assert salient.find_reason(said("?", "#0"), NOW), "forgotten, so lifted anew"


@pytest.mark.parametrize(
    ("listen", "decision", "fate", "rule", "asked"),
    [
        ("ambient", YES, "due", "attention.salience.questions", 1),
        ("mention", YES, "noted", "listen: mention", 0),
        ("off", YES, "noted", "listen: off", 0),
        ("all", YES, "due", "listen: all", 0),
        ("ambient", NO, "refused", "closed", 0),
    ],
)
def test_only_what_would_be_ambient_is_lifted(
    listen: ListenMode, decision: AccessDecision, fate: str, rule: str, asked: int
) -> None:
    heard: list[Message] = []

    def lift(message: Message) -> str:
        heard.append(message)
        return "attention.salience.questions"

    judged = judge(AttentionPolicy(thresholds={}), said("?"), decision, listen, lift)
    assert (judged.fate, judged.rule, len(heard)) == (fate, rule, asked)
    assert judged.urgency == {"refused": 0, "due": 3 if listen == "all" else 2, "noted": 0}[fate]


def test_rules_come_first_and_thresholds_hold() -> None:
    def lift(_: Message) -> str:
        return "attention.salience.people"

    ruled = AttentionPolicy(rules=(AttentionRule(type="irc", urgency=0),), thresholds={})
    assert judge(ruled, said(), YES, "ambient", lift).rule == "attention.rules[0]"
    high = AttentionPolicy(thresholds={"irc": 3})
    assert judge(high, said(), YES, "ambient", lift).rule == "attention.thresholds.irc is 3"
    normal = AttentionPolicy(thresholds={"irc": 2})
    assert judge(normal, said(), YES, "ambient", lift).fate == "due"


def test_a_lifted_line_wakes_the_agent_at_its_next_tick_and_is_told_with_its_rule(tmp_path: Path) -> None:
    async def story() -> None:
        attention = {"coalesce": 0, "salience": {"questions": True, "people": ["console:bob"]}}
        pace = {"engaged": "20ms", "working": "20ms", "foraging": "20ms", "resting": "20ms"}
        async with running(tmp_path, rooms=("lobby", "cellar"), attention=attention, dmn=pace) as gateway:
            await gateway.console.receive_message("nice weather", sender="ann", room="lobby")
            await gateway.console.receive_message("anybody here?", sender="ann", room="lobby")
            await gateway.took(1)
            await gateway.console.receive_message("still nobody?", sender="ann", room="lobby")
            await gateway.console.receive_message("nice weather", sender="bob", room="cellar")
            await gateway.took(2)
        lobby, cellar = await gateway.turns()
        assert (len(lobby.covers), len(cellar.covers)) == (2, 1)
        assert (lobby.cause, cellar.cause) == ("digest", "digest")
        async with await Store.open_readonly(gateway.path) as reader:
            told = [(await explain_event(reader, entry.seq) or [])[2] for entry in await reader.entries(kinds=["room"])]
        assert told == [
            "context for the next turn: room talk is ambient",
            "due for a turn: attention.salience.questions",
            "context for the next turn: room talk is ambient",
            "due for a turn: attention.salience.people",
        ]

    asyncio.run(story())
