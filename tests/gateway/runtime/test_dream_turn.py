"""A dream as a turn: what is written down of it, also if it is interrupted."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from agent.models.base import Model
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.context.prompt_context import ChannelCards, PromptContextBuilder
from gateway.core import identity
from gateway.core.events import ConversationId, TaskFinished
from gateway.core.facts import TurnRecord
from gateway.core.redaction import Redactor
from gateway.runtime.dream_turn import DreamTurnRunner
from gateway.runtime.lane import TurnHandle
from gateway.stream.routing import Bindings, PrivacyCache
from tests.kits.channels import story
from tests.kits.journal import OWN, ROOM, Papers, at, papers
from tests.kits.tools import dispatcher

LONG = "- marzipan\n" * 20


async def me(_: PersonaScope) -> PersonaBundle:
    return PersonaBundle(identity="I am", private="")


class Told:
    """What the others hear of a dream."""

    def __init__(self) -> None:
        self.finished: list[TaskFinished] = []
        self.forgotten: list[ConversationId] = []

    async def tell(self, finished: TaskFinished) -> None:
        self.finished.append(finished)


def dreams(
    kit: Papers, model: Model, told: Told, *, afford: Callable[[object], bool] = lambda _: True
) -> DreamTurnRunner:
    who = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={})
    bindings = Bindings([])
    briefing = PromptContextBuilder(
        persona=me,
        peers=(),
        bindings=bindings,
        access_policy=who,
        cards=ChannelCards(kit.store, kit.clock, {}, who, redactor=Redactor()),
        places=PrivacyCache(kit.store, bindings),
    )
    return DreamTurnRunner(
        agent="reverie",
        store=kit.store,
        clock=kit.clock,
        model=model,
        dreamer=kit.dreaming,
        prompt_context=briefing,
        tools_for=dispatcher([]).for_turn,
        memory_chars=100,
        afford=afford,
        on_answered=lambda *_: None,
        on_finished=told.tell,
        forget_view=told.forgotten.append,
    )


async def turns(kit: Papers) -> list[TurnRecord]:
    found = await kit.store.newest_entries(10, kinds=["turn_ended"])
    return [one.fact for one in found if isinstance(one.fact, TurnRecord) and one.conversation == OWN.conversation]


def model(kit: Papers, **more: float) -> ScriptedModel:
    rules = (ScriptRule(match="is the most", reply="- marzipan"), ScriptRule(match="", reply=LONG))
    return ScriptedModel(Script(rules=rules, **more), clock=kit.clock)  # type: ignore[arg-type]


@story
async def test_the_record_says_what_it_cost_and_nothing_of_what_it_was_about(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        told = Told()
        report = await dreams(kit, model(kit), told).run(OWN, TurnHandle())
        assert (report.has_failed, report.has_yielded, report.autonomous, report.was_interrupted) == (
            False,
            True,
            True,
            False,
        )
        (turn,) = await turns(kit)
        assert (turn.outcome, turn.cause, turn.requests, turn.heard, turn.text) == ("silent", "dream", 2, "", "")
        assert "marzipan" not in repr((turn, told.finished))
        assert told.finished[0].ok
        assert told.forgotten == [OWN.conversation]


@story
async def test_without_anything_new_nothing_is_written_down(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        told = Told()
        report = await dreams(kit, model(kit), told).run(OWN, TurnHandle())
        assert not report.has_failed
        assert await turns(kit) == []
        assert told.finished == []


@story
async def test_an_interrupted_dream_changes_nothing_and_is_paid_for(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        lane, told, thinks = TurnHandle(), Told(), model(kit, delay_s=1.0)
        taking = asyncio.create_task(dreams(kit, thinks, told).run(OWN, lane))
        while len(thinks.requests) < 2:  # the first answer was too long
            await asyncio.sleep(0)
            kit.clock.advance(0.5)
        lane.interrupt()
        report = await taking
        assert (report.was_interrupted, report.has_failed) == (True, False)
        (turn,) = await turns(kit)
        assert (turn.outcome, turn.reason, turn.requests, turn.cause) == ("failed", "interrupted", 1, "dream")
        assert turn.usage.input_tokens > 0
        assert not (kit.directory / "MEMORY.md").exists()
        assert kit.notes.material_tokens("reverie") > 0


@story
async def test_one_that_is_interrupted_before_it_asked_anything_leaves_no_trace(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "marzipan")
        lane = TurnHandle()
        lane.interrupt()
        report = await dreams(kit, model(kit), Told()).run(OWN, lane)
        assert report.was_interrupted
        assert await turns(kit) == []
