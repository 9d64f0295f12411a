"""Large results and prompts that become too long, in whole turns on a real store: also for the turns after them."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.models.base import ModelRequest, PromptTooLong, StreamChunk, TextPart, ToolResult
from gateway.context.evidence import EvidenceStore
from gateway.core.events import ToolCallRecord
from gateway.core.facts import TurnId, TurnRecord
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.stream.routing import Bindings
from tests.kits.journal import sight_of
from tests.kits.places import privacy
from tests.kits.scripted_turn import Drawer, Played, Say
from tests.kits.turns import ANYWHERE, ROOM, Desk, at_desk

PAGE = "".join(f"line {number}: é\n" for number in range(20_000))
LOOK = Say(calls=(("c", "look_up"),))


@dataclass
class Brings(Drawer):
    """Each call brings the next of these."""

    texts: list[str] = field(default_factory=list)

    async def call(self, call: ToolCall) -> ToolResult:
        self.used.append(call)
        return ToolResult(id=call.id, text=self.texts.pop(0), kind="page", origin="https://a")


class Refuses(Played):
    """Says of these requests, counted from 0, that they are too long."""

    def __init__(self, *answers: Say) -> None:
        super().__init__(*answers)
        self.refused: set[int] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if len(self.requests) in self.refused:
            self.requests.append(request)
            raise PromptTooLong("prompt is too long")
        async for chunk in super().stream(request):
            yield chunk


def opens(desk: Desk) -> EvidenceStore:
    return EvidenceStore(desk.store, desk.clock, privacy(desk.store, Bindings((ANYWHERE,))))


HERE = ToolContext(turn=TurnId("later"), agent="ana", at=ROOM, visibility=Visibility(scope=PUBLIC), autonomous=False)


def called(ended: TurnRecord) -> list[ToolCallRecord]:
    return [one for step in ended.steps for one in step.calls]


def test_a_large_result_is_whole_in_the_log_and_in_part_in_every_prompt(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        desk.drawer = Brings(texts=[PAGE])
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        (one,) = called(ended)
        assert one.source is not None
        assert desk.compacted == ["tool_result_truncated"]
        assert (await opens(desk).find(one.source.handle, *sight_of(HERE))).text == PAGE
        (evidence,) = await desk.store.newest_entries(9, kinds=["evidence"])
        (turn,) = await desk.store.newest_entries(9, kinds=["turn_ended"])
        assert evidence.seq < turn.seq
        assert (await opens(desk).find(f"t{turn.seq}.1", *sight_of(HERE))).text == PAGE
        desk.means.history._cached.clear()  # as after a restart
        await desk.say("ann", "and?")
        await desk.take()
        first, second, third = [request.conversation for request in desk.model.requests]
        assert third[: len(second)] == second
        assert second[: len(first)] == first

    at_desk(tmp_path, story, LOOK)


def test_a_turn_that_has_become_too_long_is_folded_in_its_middle(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        model = Refuses()
        desk = Desk(desk.store, model)
        for number in range(6):
            await desk.say("ann", f"{number}: " + "a long story " * 200)
            await desk.take()
        model.answers = [replace(LOOK, arguments=f'{{"q": {number}}}') for number in range(3)]
        model.refused = {len(model.requests) + 2}
        desk.drawer = Brings(texts=[f"{number}" * 4_000 for number in range(3)])
        await desk.say("ann", "now look")
        assert not (await desk.take()).has_failed
        ended = (await desk.ended())[-1]
        assert ended.outcome == "replied"
        refused, again, last = [request.conversation for request in model.requests[-3:]]
        assert len(again) < len(refused)
        (fold,) = await desk.store.newest_entries(9, kinds=["folded"])
        assert fold.seq < (await desk.store.newest_entries(1, kinds=["turn_ended"]))[0].seq
        first, second, third = called(ended)
        assert first.source is not None
        assert (await opens(desk).find(first.source.handle, *sight_of(HERE))).text == "0" * 4_000
        assert [second.result, third.result] == ["1" * 4_000, "2" * 4_000]
        for _ in range(2):  # the second time as after a restart
            desk.means.history._cached.clear()
            await desk.say("ann", "and?")
            await desk.take()
            assert model.requests[-1].conversation[: len(last)] == last
            last = model.requests[-1].conversation

    at_desk(tmp_path, story)


def test_a_turn_that_stays_too_long_fails_and_the_next_one_is_answered(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        model = Refuses(LOOK)
        desk = Desk(desk.store, model)
        await desk.say("ann", "a story " * 200)
        model.refused = {1, 2, 3}
        desk.drawer = Brings(texts=["x" * 4_000])
        assert (await desk.take()).has_failed
        (ended,) = await desk.ended()
        assert (ended.outcome, ended.reason, len(model.requests)) == ("failed", "prompt is too long", 4)
        await desk.say("ann", "and now?")
        assert not (await desk.take()).has_failed

    at_desk(tmp_path, story)


def test_what_was_kept_for_a_turn_that_was_cut_off_harms_nobody(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        desk.drawer = Brings(texts=[PAGE, PAGE])
        desk.model.answers = [LOOK, Say(waits=True), LOOK]
        await desk.say("ann", "hello")

        class Stops(Brings):
            async def call(self, call: ToolCall) -> ToolResult:
                desk.lane.interrupt()
                return await super().call(call)

        desk.drawer = Stops(texts=[PAGE])
        assert (await desk.take()).was_interrupted
        desk.model.answers = [LOOK]
        desk.drawer = Brings(texts=[PAGE])
        assert not (await desk.take()).has_failed
        last = (await desk.ended())[-1]
        (one,) = called(last)
        assert one.source is not None
        assert (await opens(desk).find(one.source.handle, *sight_of(HERE))).text == PAGE
        assert last.outcome == "replied"

    at_desk(tmp_path, story)


def test_who_spoke_in_the_middle_is_heard_once_also_where_the_turn_is_shortened(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        model = Refuses()
        desk = Desk(desk.store, model)
        for number in range(4):
            await desk.say("ann", f"{number}: " + "a long story " * 200)
            await desk.take()
        model.answers = [LOOK, LOOK]
        model.refused = {len(model.requests) + 1}

        async def meanwhile() -> None:
            await desk.say("bob", "wait for me")
            desk.lane.steer()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "now look")
        await desk.take()
        ended = (await desk.ended())[-1]
        assert (ended.outcome, len(ended.covers)) == ("replied", 2)
        assert "bob" not in ended.heard
        for request in model.requests[-3:]:
            texts = [part.text for said in request.conversation for part in said.parts if isinstance(part, TextPart)]
            assert [sum(words in text for text in texts) for words in ("wait for me", "now look")] == [1, 1]
        last = model.requests[-1].conversation
        desk.means.history._cached.clear()
        await desk.say("ann", "and?")
        await desk.take()
        assert model.requests[-1].conversation[: len(last)] == last

    at_desk(tmp_path, story)
