"""Through everything at once: console in, store, DMN, turn, outbox, console out."""

import asyncio
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway import app
from gateway.core.clock import SystemClock
from gateway.core.facts import TurnRecord
from gateway.store import Store, rebuild
from reverie.testing.gateway import running


async def test_room_talk_is_context_and_a_mention_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.say("nice weather", sender="ann", room="lobby")
        await gateway.say("is it?", sender="bob", room="lobby")
        await gateway.ask("reverie, is it?", sender="ann", room="lobby")
    (turn,) = await gateway.turns()
    assert len(turn.covers) == 3
    heard = turn.heard.splitlines()
    assert [" (overheard)" in line for line in heard] == [True, True, False]
    assert heard[2].endswith("ann (guest): reverie, is it?")


@pytest.mark.parametrize(
    ("call", "text", "outcome", "shown"),
    [
        ("stay_silent", "", "silent", 0),
        ("stay_silent", "thinking aloud", "silent", 0),
        ("yield_to_user", "", "yielded", 0),
        ("yield_to_user", "Good night.", "replied", 1),
    ],
)
async def test_ways_to_end_a_turn(
    tmp_path: Path, call: str, text: str, outcome: str, shown: int
) -> None:
    script = Script(rules=(ScriptRule(match="quiet", reply=text, calls=((call, "{}"),)),))
    async with running(tmp_path, script) as gateway:
        await gateway.say("quiet please", sender="ann")
        await gateway.say("bye", sender="bob")
        await gateway.screen.until(1 + shown)
        await gateway.took(2)
    assert len(gateway.sent("ann")) == shown
    assert outcome in [turn.outcome for turn in await gateway.turns()]


async def test_stopping_parks_a_turn_and_the_next_start_takes_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        app, "TURN_GRACE_S", 0.05
    )  # the grace is for real models; here it is certain to run out

    async with running(tmp_path, Script(delay_s=60)) as gateway:
        await gateway.say("hello", sender="ann")
        await gateway.asked(1)
    assert not gateway.screen.parts
    assert not await gateway.turns()
    async with running(tmp_path) as again:
        await again.screen.until(1)
    assert again.sent("ann")[0].endswith("hello")


async def test_every_table_is_what_the_log_says(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for number in range(5):
            await gateway.say(f"hello {number}", sender=f"p{number % 2}")
        while sum(len(turn.covers) for turn in await gateway.turns()) < 5:
            await asyncio.sleep(0.005)
    assert await rebuild(tmp_path / "reverie.db") == []
    async with await Store.open_readonly(tmp_path / "reverie.db") as reader:
        assert await reader.undelivered_posts() == []


@pytest.mark.parametrize("tokens", [200_000, 4_000])
async def test_a_burst_of_questions_is_told_whole_and_in_order_over_several_turns(
    tmp_path: Path, tokens: int
) -> None:
    """By number of lines in a large window, by their size in a small one."""
    questions = [f"question {number:03d}" + " and so on" * 5 for number in range(120)]

    model = ScriptedModel(context_tokens=tokens, clock=SystemClock())
    async with running(tmp_path, model, attention={"coalesce": 0.5}) as gateway:
        for text in questions:
            await gateway.say(text)
        turns: list[TurnRecord] = []
        async with asyncio.timeout(120):
            while sum(len(turn.covers) for turn in turns) < len(questions):
                turns = await gateway.turns()
                await asyncio.sleep(0.005)
    told = [seq for turn in turns for seq in turn.covers]
    assert told == sorted(set(told))
    assert len(told) == len(questions)
    assert not sum(turn.omitted for turn in turns)
    heard = "\n".join(turn.heard for turn in turns)
    assert [heard.count(text) for text in questions] == [1] * len(questions)
    assert "not shown" not in heard
    assert 2 < len(turns) < 60
