"""Sizes of whole requests: every part counts, and texts are not counted twice."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelMessage, ModelRequest, SystemBlock, TextPart, ToolResult
from agent.tokens.counter import (
    FRAME_TOKENS,
    MAX_IMAGE_TOKENS,
    TOOL_TOKENS,
    OfflineCounter,
    TokenMeter,
    count_heuristically,
    measure_prompt,
)
from gateway.core.media_types import identify_image
from gateway.core.tool_spec import Image, ToolCall
from tests.kits.models import BLOCKS, TOOL, assistant, request, user

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x96\0\0\0\x32"  # 150 x 50


class Bytes:
    """Counts as the heuristic does, and remembers what it was asked."""

    is_exact = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return count_heuristically(text)


texts = st.text(max_size=40)
pieces = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ToolCall, id=texts, name=texts, arguments=texts),
    st.builds(ToolResult, id=texts, text=texts),
    st.builds(Image, media_type=st.just("image/png"), data=st.binary(max_size=30), description=texts),
)
saids = st.builds(
    ModelMessage, role=st.sampled_from(["user", "assistant"]), parts=st.lists(pieces, max_size=4).map(tuple)
)
requests = st.builds(
    ModelRequest,
    blocks=st.lists(st.builds(SystemBlock, name=texts, text=texts, ttl=st.just("long")), max_size=4).map(tuple),
    conversation=st.lists(saids, max_size=6).map(tuple),
    now=texts,
    tools=st.sampled_from([(), (TOOL,), (TOOL, TOOL)]),
    max_output_tokens=st.just(9),
    shared_key=st.just("k"),
)


@given(requests, saids)
def test_what_is_added_is_added(asked: ModelRequest, more: ModelMessage) -> None:
    before = measure_prompt(asked, Bytes().count)
    longer = replace(asked, conversation=(*asked.conversation, more))
    after = measure_prompt(longer, Bytes().count)
    assert after.conversation[:-1] == before.conversation
    assert after.total == before.total + after.conversation[-1]
    assert after.conversation[-1] >= FRAME_TOKENS
    assert (len(after.blocks), len(after.conversation)) == (len(asked.blocks), len(longer.conversation))


def test_parts() -> None:
    said = ModelMessage(role="user", parts=(ToolResult(id="1", text="four words of text"), TextPart(text="hi")))
    called = ModelMessage(role="assistant", parts=(ToolCall(id="1", name="look_up", arguments='{"a":1}'),))
    size = measure_prompt(replace(request(user("hi"), called, said, tools=(TOOL,)), now="It is noon."), Bytes().count)
    assert size.tools == sum(map(count_heuristically, (TOOL.name, TOOL.description, TOOL.schema))) + TOOL_TOKENS
    assert size.blocks == tuple(count_heuristically(block.text) for block in BLOCKS)
    assert size.conversation == (
        1 + FRAME_TOKENS,
        2 + 2 + TOOL_TOKENS + FRAME_TOKENS,
        6 + 1 + TOOL_TOKENS + FRAME_TOKENS,
    )
    assert size.now == 4 + FRAME_TOKENS
    assert size.total == size.tools + sum(size.blocks) + sum(size.conversation) + size.now


@pytest.mark.parametrize(
    ("data", "tokens"), [(PNG, 11), (b"GIF89a" + b"\xff" * 9, MAX_IMAGE_TOKENS), (b"?", MAX_IMAGE_TOKENS)]
)
def test_images_count_by_their_pixels(data: bytes, tokens: int) -> None:
    asked = request(
        ModelMessage(role="user", parts=(Image(media_type="image/png", data=data, description="a picture"),))
    )
    assert measure_prompt(asked, Bytes().count, look=identify_image).conversation == (tokens + FRAME_TOKENS,)
    assert measure_prompt(asked, Bytes().count).conversation == (MAX_IMAGE_TOKENS + FRAME_TOKENS,)


@pytest.fixture
def loaded() -> Iterator[OfflineCounter]:
    counter = OfflineCounter(load_after_s=0)
    counter.count("")
    counter.wait_loaded()
    yield counter
    counter.close()


def test_a_long_conversation_is_counted_once(loaded: OfflineCounter) -> None:
    """The margins are wide: the figures themselves are in the benchmark's output."""
    past = [
        user(f"{n}: what about this?") if n % 2 == 0 else assistant(f"{n}: well, it depends.") for n in range(4_001)
    ]
    meter = TokenMeter(loaded)
    meter.estimate("m-1", request(*past))
    known = [_timed(meter, request(*past, assistant(f"new {n}"), user(f"newer {n}"))) for n in range(20)]
    assert min(known) < 0.02


def _timed(meter: TokenMeter, asked: ModelRequest) -> float:
    begun = time.perf_counter()
    meter.estimate("m-1", asked)
    return time.perf_counter() - begun
