"""A dream as a turn: what is written down of it, also if it is interrupted."""

import asyncio
from pathlib import Path

import pytest

from agent.models.base import Model
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway.core.events import TaskFinished
from gateway.core.facts import TurnRecord
from gateway.runtime.dream_turn import DreamRunner
from gateway.runtime.turn_handle import TurnHandle, TurnResult
from gateway.stream.internal import InternalIntake
from gateway.stream.routing import Bindings
from reverie.testing.channels import story
from tests.kits.journal import OWN, ROOM, Papers, at, papers
from tests.kits.policies import attention_of
from tests.kits.tools import dispatcher
from tests.kits.turns import ANYWHERE, Idle, context_of, handle

LONG = "- marzipan\n" * 20


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.runtime.dream_turn.MEMORY_CHARS", 100)


async def dream(kit: Papers, model: Model, lane: TurnHandle | None = None) -> TurnResult:
    agent = Idle(kit.store, kit.clock)
    agent.id = "reverie"
    gateway = handle(kit.store, kit.clock)
    context = context_of(gateway, agent, model, dispatcher([]))
    attention = attention_of(kit.store, gateway.live.settings)
    internal = InternalIntake(kit.store, kit.clock, attention, Bindings((ANYWHERE,)))
    return await DreamRunner(kit.dreaming, kit.notes, internal).run(
        context, OWN, lane or TurnHandle()
    )


async def finished(kit: Papers) -> list[TaskFinished]:
    return [one.fact for one in await kit.store.entries() if isinstance(one.fact, TaskFinished)]


async def turns(kit: Papers) -> list[TurnRecord]:
    found = await kit.store.newest_entries(10, kinds=["turn_ended"])
    return [
        one.fact
        for one in found
        if isinstance(one.fact, TurnRecord) and one.conversation == OWN.conversation
    ]


def model(kit: Papers, **more: float) -> ScriptedModel:
    rules = (ScriptRule(match="is the most", reply="- marzipan"), ScriptRule(match="", reply=LONG))
    return ScriptedModel(Script(rules=rules, **more), clock=kit.clock)  # type: ignore[arg-type]


@story
async def test_the_record_says_what_it_cost_and_nothing_of_what_it_was_about(
    tmp_path: Path,
) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        report = await dream(kit, model(kit))
        assert (
            report.has_failed,
            report.has_yielded,
            report.autonomous,
            report.was_interrupted,
        ) == (
            False,
            True,
            True,
            False,
        )
        (turn,) = await turns(kit)
        assert (turn.outcome, turn.cause, turn.requests, turn.heard, turn.text) == (
            "silent",
            "dream",
            2,
            "",
            "",
        )
        (told,) = await finished(kit)
        assert "marzipan" not in repr((turn, told))
        assert told.ok


@story
async def test_without_anything_new_nothing_is_written_down(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        report = await dream(kit, model(kit))
        assert not report.has_failed
        assert await turns(kit) == []
        assert await finished(kit) == []


@story
async def test_an_interrupted_dream_changes_nothing_and_is_paid_for(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        lane, thinks = TurnHandle(), model(kit, delay_s=1.0)
        taking = asyncio.create_task(dream(kit, thinks, lane))
        while len(thinks.requests) < 2:  # the first answer was too long
            await asyncio.sleep(0)
            kit.clock.advance(0.5)
        lane.interrupt()
        report = await taking
        assert (report.was_interrupted, report.has_failed) == (True, False)
        (turn,) = await turns(kit)
        assert (turn.outcome, turn.reason, turn.requests, turn.cause) == (
            "failed",
            "interrupted",
            1,
            "dream",
        )
        assert turn.usage.input_tokens > 0
        assert not (kit.directory / "MEMORY.md").exists()
        assert kit.notes.material_tokens("reverie") > 0


@story
async def test_one_that_is_interrupted_before_it_asked_anything_leaves_no_trace(
    tmp_path: Path,
) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        lane = TurnHandle()
        lane.interrupt()
        report = await dream(kit, model(kit), lane)
        assert report.was_interrupted
        assert await turns(kit) == []
