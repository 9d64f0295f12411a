"""The offline counter: the real ranks, no network, little memory, and no blocking."""

import gzip
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelMessage, ModelRequest, SystemBlock, TextPart, ToolResult
from agent.tokens.counter import (
    FRAME_TOKENS,
    MAX_IMAGE_TOKENS,
    RANKS_FILE,
    RATIO_BOUNDS,
    TOOL_TOKENS,
    Calibration,
    OfflineCounter,
    TokenMeter,
    count_heuristically,
    load_tokenizer,
    measure_prompt,
    prior_ratio,
)
from gateway.core.events import Usage
from gateway.core.tool_spec import Image, ToolCall
from tests.kits.models import BLOCKS, TOOL, request, user

ROOT = Path(__file__).parents[3]
SPECIAL = "<|endoftext|> and <|fim_prefix|>"


@pytest.fixture(scope="module")
def counter() -> OfflineCounter:
    made = OfflineCounter(load_after_s=0)
    made.choose()
    made.wait_loaded()
    assert made.choose() is not count_heuristically
    return made


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("naïve — 😀", 5),
        (
            "\ud800",
            1,
        ),  # half a surrogate pair, as JSON may hold: counted as the replacement character
        ("a\ud800b", 3),
        ("\x00\x07", 2),
        ("<|endofprompt|>", 7),  # ordinary text, not the one special token
    ],
)
def test_texts(counter: OfflineCounter, text: str, tokens: int) -> None:
    assert counter.choose()(text) == tokens
    assert counter.choose()(text) == tokens


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_any_text_has_a_number_of_tokens(counter: OfflineCounter, text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert (size + 127) // 128 <= counter.choose()(text) <= size
    assert size / 3.5 <= count_heuristically(text) < size / 3.5 + 1


def test_it_counts_as_tiktoken_itself_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # under which tiktoken keeps what it downloaded
    )
    (tmp_path / name).write_bytes(gzip.decompress(RANKS_FILE.read_bytes()))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    import tiktoken  # noqa: PLC0415 - the published one, for comparison only

    published, ours = tiktoken.get_encoding("cl100k_base"), load_tokenizer()
    assert published._pat_str == ours._pat_str
    for path in (
        ROOT / "ARCHITECTURE.md",
        ROOT / "agent/tokens/counter.py",
        ROOT / "tests/kits/strategies.py",
    ):
        text = path.read_text(encoding="utf-8") + "\u3042 \u05d0  \n\n\t" + SPECIAL
        assert ours.encode_ordinary(text) == published.encode(text, disallowed_special=())


def test_until_it_is_loaded_bytes_are_counted() -> None:
    made = OfflineCounter(load_after_s=60)
    assert made.choose() is count_heuristically
    made.close()
    made.close()
    assert made.choose() is count_heuristically


@pytest.mark.parametrize(
    "how", ["missing", "cut", "not gzip", "a bit flipped", "garbage", "another file", "endless"]
)
def test_with_broken_ranks_bytes_are_counted_and_it_is_said_once(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cl100k_base.tiktoken.gz"
    whole = RANKS_FILE.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    content = {
        "cut": whole[:-1000],
        "not gzip": b"<html>",
        "a bit flipped": bytes(flipped),
        "garbage": whole[:20] + b"\xff" * 1000 + whole[1020:],
        "another file": gzip.compress(gzip.decompress(whole)[:-20]),
        "endless": gzip.compress(b"\0" * 50_000_000),
    }
    if how != "missing":
        file.write_bytes(content[how])
    made = OfflineCounter(file=file, load_after_s=0)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            assert made.choose() is count_heuristically
            made.wait_loaded()
    made.close()
    assert made.choose() is count_heuristically
    assert len(caplog.records) == 1
    assert (
        caplog.records[0]
        .getMessage()
        .startswith("tokens are estimated from bytes: cl100k_base.tiktoken.gz ")
    )


# Sizes of whole requests: every part counts, and texts are not counted twice.


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
    st.builds(
        Image, media_type=st.just("image/png"), data=st.binary(max_size=30), description=texts
    ),
)
saids = st.builds(
    ModelMessage,
    role=st.sampled_from(["user", "assistant"]),
    parts=st.lists(pieces, max_size=4).map(tuple),
)
requests = st.builds(
    ModelRequest,
    blocks=st.lists(st.builds(SystemBlock, name=texts, text=texts), max_size=4).map(tuple),
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
    assert (len(after.blocks), len(after.conversation)) == (
        len(asked.blocks),
        len(longer.conversation),
    )


def test_parts() -> None:
    said = ModelMessage(
        role="user", parts=(ToolResult(id="1", text="four words of text"), TextPart(text="hi"))
    )
    called = ModelMessage(
        role="assistant", parts=(ToolCall(id="1", name="look_up", arguments='{"a":1}'),)
    )
    size = measure_prompt(
        replace(request(user("hi"), called, said, tools=(TOOL,)), now="It is noon."), Bytes().count
    )
    assert (
        size.tools
        == sum(map(count_heuristically, (TOOL.name, TOOL.description, TOOL.schema))) + TOOL_TOKENS
    )
    assert size.blocks == tuple(count_heuristically(block.text) for block in BLOCKS)
    assert size.conversation == (
        1 + FRAME_TOKENS,
        2 + 2 + TOOL_TOKENS + FRAME_TOKENS,
        6 + 1 + TOOL_TOKENS + FRAME_TOKENS,
    )
    assert size.now == 4 + FRAME_TOKENS
    assert size.total == size.tools + sum(size.blocks) + sum(size.conversation) + size.now


@pytest.mark.parametrize(
    ("data", "tokens"),
    [(PNG, 11), (b"GIF89a" + b"\xff" * 9, MAX_IMAGE_TOKENS), (b"?", MAX_IMAGE_TOKENS)],
)
def test_images_count_by_their_pixels(data: bytes, tokens: int) -> None:
    asked = request(
        ModelMessage(
            role="user", parts=(Image(media_type="image/png", data=data, description="a picture"),)
        )
    )
    assert measure_prompt(asked, Bytes().count).conversation == (tokens + FRAME_TOKENS,)


# Calibration of token estimates by bills.


requests_calibration = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), max_size=60
)


@given(requests_calibration)
def test_no_bill_leads_it_out_of_bounds(seen: list[tuple[int, int]]) -> None:
    learnt = Calibration()
    for estimated, billed in seen:
        learnt.observe("m", estimated, billed)
    assert RATIO_BOUNDS[0] <= learnt.ratio("m") <= RATIO_BOUNDS[1]


@given(st.permutations([1.3] * 8 + [0.3] * 4 + [3.9] * 3))
def test_odd_bills_change_nothing(ratios: list[float]) -> None:
    learnt = Calibration()
    for ratio in ratios:
        learnt.observe("m", 10_000, round(10_000 * ratio))
    assert learnt.ratio("m") == 1.3


@pytest.mark.parametrize(
    ("model", "ratio"),
    [
        ("gpt-5", 1.0),
        ("claude-3-5-haiku-20241022", 1.05),
        ("claude-2.1", 1.05),
        ("claude-sonnet-4-20250514", 1.05),
        ("claude-opus-4-6", 1.05),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", 1.05),
        ("claude-opus-4-7", 1.35),
        ("claude-opus-4-7-20260401", 1.35),
        ("claude-sonnet-5-5", 1.35),
        ("claude-fable-5-1", 1.35),
    ],
)
def test_claude_counts_more_before_it_has_answered(model: str, ratio: float) -> None:
    assert prior_ratio(model) == ratio


def test_a_meter_learns_from_bills_however_they_are_split() -> None:
    meter = TokenMeter()
    asked = _long()
    first = meter.estimate("m-1", asked)
    assert first.tokens == first.size.total
    usage = Usage(
        input_tokens=100, cache_read_tokens=first.tokens, cache_write_tokens=first.tokens - 100
    )
    assert usage.prompt_tokens == 2 * first.tokens
    meter.record_count(first, usage.prompt_tokens)
    second = meter.estimate("m-1", asked)
    assert second.tokens == usage.prompt_tokens
    assert second.correct(second.size.total) == second.tokens
    assert abs(sum(map(second.correct, second.size.blocks)) - 2 * sum(second.size.blocks)) <= 4


def test_images_are_no_business_of_the_tokenizer() -> None:
    meter = TokenMeter()
    image = Image(media_type="image/png", data=b"?", description="a picture")
    plain = meter.estimate("m-1", _long())
    asked = replace(
        _long(),
        conversation=(
            ModelMessage(role="user", parts=(image,) * 10 + _long().conversation[0].parts),
        ),
    )
    shown = meter.estimate("m-1", asked)
    assert shown.size.images == shown.tokens - plain.tokens == 10 * MAX_IMAGE_TOKENS
    meter.record_count(shown, shown.size.images + 2 * (shown.size.total - shown.size.images))
    assert meter.estimate("m-1", _long()).tokens == 2 * plain.tokens
    assert meter.estimate("m-1", asked).tokens == shown.size.images + 2 * (
        shown.size.total - shown.size.images
    )
    small = meter.estimate("m-1", asked)
    for _ in range(9):
        meter.record_count(
            small, 300
        )  # the images were far smaller than thought: that teaches nothing
    assert meter.estimate("m-1", _long()).tokens == 2 * plain.tokens


def _long() -> ModelRequest:
    return request(user("The quick brown fox jumps over the lazy dog. " * 50))
