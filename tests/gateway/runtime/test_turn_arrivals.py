"""Whatever arrives in the middle of turns, in whatever mode: each line is told once, in order, and dealt with once."""

import asyncio
import re
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.base import MessagePart, ModelMessage, ModelRequest, TextPart, ToolResult
from gateway.core.facts import AMBIENT, URGENT
from gateway.core.tool_spec import ToolCall
from tests.kits.examples import examples
from tests.kits.scripted_turn import Drawer, Say
from tests.kits.turns import Desk, at_desk

BOUNDARIES = st.lists(
    st.tuples(
        st.lists(st.booleans(), max_size=3),  # lines that arrive: said to the agent, or only near it
        st.sampled_from(["steer", "queue", "interrupt", "interrupt the answer"]),
    ),
    max_size=6,
)
LINE = re.compile(r"line(\d+)\.")


class Busy(Drawer):
    """Tools during which things happen."""

    def __init__(self, desk: Desk, boundaries: list[tuple[list[bool], str]]) -> None:
        super().__init__()
        self._desk = desk
        self._left = boundaries
        self.numbers = list[int]()

    async def line(self, *, spoken: bool) -> None:
        self.numbers.append(len(self.numbers))
        urgency, kind = (URGENT, "mention") if spoken else (AMBIENT, "room")
        await self._desk.say("ann", f"line{self.numbers[-1]}.", kind=kind, urgency=urgency)  # type: ignore[arg-type]

    async def call(self, call: ToolCall) -> ToolResult:
        lines, mode = self._left.pop(0)
        for spoken in lines:
            await self.line(spoken=spoken)
        if mode == "steer":
            self._desk.lane.steer()
        elif mode == "interrupt":
            self._desk.lane.interrupt()
            await asyncio.Event().wait()
        elif mode == "interrupt the answer":
            asyncio.get_running_loop().call_soon(self._desk.lane.interrupt)
        return await super().call(call)


def flat(conversation: tuple[ModelMessage, ...]) -> list[tuple[str, MessagePart]]:
    return [(said.role, part) for said in conversation for part in said.parts]


def told(request: ModelRequest) -> list[int]:
    texts = [part.text for _, part in flat(request.conversation) if isinstance(part, TextPart)]
    return [int(number) for text in texts for number in LINE.findall(text)]


@settings(max_examples=examples(30))
@given(BOUNDARIES)
def test_nothing_is_lost_or_told_twice_and_order_is_kept(boundaries: list[tuple[list[bool], str]]) -> None:
    async def story(desk: Desk) -> None:
        desk.drawer = busy = Busy(desk, list(boundaries))
        while desk.model.answers or not busy.numbers or await desk.unread():
            if not await desk.unread():
                await busy.line(spoken=True)
            await desk.take()
        ended = await desk.ended()
        covers = [seq for turn in ended for seq in turn.covers]
        assert len(covers) == len(set(covers)) == len(busy.numbers)
        assert covers == sorted(covers)
        assert [turn.upto for turn in ended] == sorted(turn.upto for turn in ended)
        assert len(desk.posts) == sum(turn.outcome == "replied" for turn in ended)
        await busy.line(spoken=True)
        desk.means.history._cached.clear()  # read from the log, as after a restart
        await desk.take()
        assert told(desk.model.requests[-1]) == busy.numbers
        for before, after in pairwise(desk.model.requests):
            assert flat(after.conversation)[: len(flat(before.conversation))] == flat(before.conversation)

    rounds = [Say(calls=(("call_0", "look_up"),), arguments=f'{{"q": {number}}}') for number in range(len(boundaries))]
    with tempfile.TemporaryDirectory() as folder:
        at_desk(Path(folder), story, *rounds)
