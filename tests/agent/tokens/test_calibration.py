"""Calibration of token estimates by bills."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelMessage, ModelRequest
from agent.tokens.counter import (
    MAX_IMAGE_TOKENS,
    MIN_TOKENS,
    RATIO_BOUNDS,
    Calibration,
    OfflineCounter,
    TokenMeter,
    count_prompt_tokens,
    drift_percent,
    prior_ratio,
)
from gateway.core.events import Usage
from gateway.core.tool_spec import Image
from tests.kits.models import request, user

requests = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), max_size=60)


@given(requests, st.integers(0, 10**7))
def test_no_bill_leads_it_out_of_bounds(seen: list[tuple[int, int]], tokens: int) -> None:
    learnt = Calibration()
    for estimated, billed in seen:
        learnt.observe("m", estimated, billed)
    assert RATIO_BOUNDS[0] <= learnt.ratio("m") <= RATIO_BOUNDS[1]
    assert tokens * RATIO_BOUNDS[0] <= learnt.calibrate("m", tokens) <= tokens * RATIO_BOUNDS[1] + 1
    assert learnt.calibrate("m", tokens) <= learnt.calibrate("m", tokens + 1)


@given(st.floats(0.5, 2.0), st.lists(st.integers(1_000, 200_000), min_size=1, max_size=40))
def test_a_steady_ratio_is_known_after_one_bill(ratio: float, sizes: list[int]) -> None:
    learnt = Calibration()
    for size in sizes:
        learnt.observe("m", size, round(size * ratio))
        assert drift_percent(learnt.calibrate("m", size), round(size * ratio)) < 0.6


@given(st.permutations([1.3] * 8 + [0.3] * 4 + [3.9] * 3))
def test_odd_bills_change_nothing(ratios: list[float]) -> None:
    learnt = Calibration()
    for ratio in ratios:
        learnt.observe("m", 10_000, round(10_000 * ratio))
    assert learnt.calibrate("m", 1_000) == 1_300


def test_another_tokenizer_under_the_same_name_is_learnt() -> None:
    learnt = Calibration()
    for _ in range(100):
        learnt.observe("m", 1_000, 1_000)
    for _ in range(8):
        learnt.observe("m", 1_000, 1_500)
    assert learnt.calibrate("m", 1_000) == 1_500
    assert learnt.calibrate("other", 1_000) == 1_000


def test_short_requests_teach_nothing() -> None:
    learnt = Calibration()
    learnt.observe("m", MIN_TOKENS - 1, 4_000)
    learnt.observe("m", 4_000, 0)
    assert learnt.ratio("m") == 1.0


def test_a_server_that_makes_up_names_does_not_fill_the_memory() -> None:
    learnt = Calibration()
    for number in range(1_000):
        learnt.observe(f"m{number}", 1_000, 2_000)
        learnt.observe("ours", 1_000, 1_500)
    assert (learnt.ratio("m999"), learnt.ratio("m0")) == (2.0, 1.0)
    assert learnt.ratio("ours") == 1.5
    assert len(learnt._ratios) == len(learnt._median_ratio) == 64


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
    usage = Usage(input_tokens=100, cache_read_tokens=first.tokens, cache_write_tokens=first.tokens - 100)
    assert count_prompt_tokens(usage) == 2 * first.tokens
    meter.record_bill(first, usage)
    second = meter.estimate("m-1", asked)
    assert second.tokens == count_prompt_tokens(usage)
    meter.record_bill(second, Usage())  # not billed
    assert meter.estimate("m-1", asked) == second
    assert second.correct(second.size.total) == second.tokens
    assert abs(sum(map(second.correct, second.size.blocks)) - 2 * sum(second.size.blocks)) <= 4


def test_images_are_no_business_of_the_tokenizer() -> None:
    meter = TokenMeter()
    image = Image(media_type="image/png", data=b"?", description="a picture")
    plain = meter.estimate("m-1", _long())
    asked = replace(
        _long(), conversation=(ModelMessage(role="user", parts=(image,) * 10 + _long().conversation[0].parts),)
    )
    shown = meter.estimate("m-1", asked)
    assert shown.size.images == shown.tokens - plain.tokens == 10 * MAX_IMAGE_TOKENS
    meter.record_count(shown, shown.size.images + 2 * shown.text_tokens)
    assert meter.estimate("m-1", _long()).tokens == 2 * plain.tokens
    assert meter.estimate("m-1", asked).tokens == shown.size.images + 2 * shown.text_tokens
    small = meter.estimate("m-1", asked)
    for _ in range(9):
        meter.record_count(small, 300)  # the images were far smaller than thought: that teaches nothing
    assert meter.estimate("m-1", _long()).tokens == 2 * plain.tokens


def test_ways_of_estimating_are_corrected_apart() -> None:
    counter = OfflineCounter(load_after_s=0)
    meter = TokenMeter(counter)
    rough = meter.estimate("m-1", _long())
    assert rough.method == "heuristic"
    counter.wait_loaded()
    fine = meter.estimate("m-1", _long())
    assert fine.method == "tiktoken"
    assert fine.size.total != rough.size.total
    meter.record_count(rough, rough.size.total * 3)
    meter.record_count(fine, fine.size.total * 2)
    assert meter.estimate("m-1", _long()).tokens == fine.size.total * 2
    counter.close()


def _long() -> ModelRequest:
    return request(user("The quick brown fox jumps over the lazy dog. " * 50))
