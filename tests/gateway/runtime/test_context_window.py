"""Small windows and odd tokenizers: a strict server refuses what does not fit, and nobody is told of it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from agent.models.base import ModelRequest, PromptTooLong, StreamChunk, StreamEnd, TextPart
from agent.tokens.counter import count_heuristically
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.core.facts import AMBIENT, ViewFolded
from gateway.core.tool_spec import ToolCall
from gateway.store import Store
from tests.kits.scripted_turn import Played
from tests.kits.turns import ROOM, WHEN, Desk


class Strict(Played):
    """Counts a prompt its own way, and takes none that leaves no room for the answer that was asked for."""

    def __init__(self, window: int, output: int, scale: float, rounds: int = 0) -> None:
        super().__init__()
        self.context_tokens, self.max_output_tokens = window, output
        self.refused = 0
        self._scale = scale
        self._rounds = rounds

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        told = [part for said in request.conversation for part in said.parts]
        words = [part.text for part in told if not isinstance(part, ToolCall) and hasattr(part, "text")]
        fixed = [block.text for block in request.blocks] + [tool.description + tool.schema for tool in request.tools]
        real = int(sum(count_heuristically(text) + 4 for text in (*words, *fixed, request.now)) * self._scale)
        if real + request.max_output_tokens > self.context_tokens:
            self.refused += 1
            raise PromptTooLong(f"{real} + {request.max_output_tokens} > {self.context_tokens}")
        if len(self.requests) <= self._rounds:
            page = len(self.requests)
            yield ToolCall(id=f"c{page}", name="look_up", arguments=f'{{"page": {page}}}')
        else:
            yield TextPart(text="As you say. " * 30)
        yield StreamEnd(stop_reason="end", usage=Usage(input_tokens=real, output_tokens=90), model="strict")


@pytest.mark.parametrize("scale", [1.0, 1.2, 1.5])
@pytest.mark.parametrize(("window", "output"), [(8_192, 4_096), (8_192, 8_000), (32_768, 16_384)])
def test_an_answer_may_be_asked_for_that_is_as_long_as_the_window(
    tmp_path: Path, window: int, output: int, scale: float
) -> None:
    async def story() -> None:
        model = Strict(window, output, scale)
        async with await Store.open(tmp_path / "r.db", ManualClock(WHEN)) as store:
            desk = Desk(store, model)
            for number in range(60):
                await desk.say("ann", f"{number} " + "much to tell " * (window // 400))
                await desk.take()
            assert {turn.outcome for turn in await desk.ended()} == {"replied"}
            assert model.refused <= 1
            found = await store.entries(kinds=["folded"])
            assert 0 < len([one for one in found if isinstance(one.fact, ViewFolded)]) < 20

    asyncio.run(story())


def test_what_arrives_in_the_middle_is_told_as_far_as_there_is_room(tmp_path: Path) -> None:
    async def story() -> None:
        model = Strict(8_192, 1_024, 1.0, rounds=7)
        async with await Store.open(tmp_path / "r.db", ManualClock(WHEN)) as store:
            desk = Desk(store, model)

            async def crowd() -> None:
                for number in range(40):
                    await desk.say("bob", f"{number} " + "hear me " * 25, kind="room", urgency=AMBIENT)
                await desk.say("cat", "and answer me " * 20)
                desk.lane.steer()
                desk.drawer.meanwhile = crowd

            desk.drawer.meanwhile = crowd
            await desk.say("ann", "look it up")
            report = await desk.take()
            assert not report.has_failed
            assert model.refused == 0
            desk.drawer.meanwhile = None
            for _ in range(20):
                if not await desk.unread():
                    break
                await desk.take()
            spoken = {one.seq for one in await store.entries(kinds=["mention"], conversation=ROOM.conversation)}
            covered = {seq for turn in await desk.ended() for seq in turn.covers}
            assert spoken <= covered  # what was said to it is told, now or later

    asyncio.run(story())
