from pathlib import Path

import pytest

from agent.cache.prices import Price, PriceTable
from gateway.core.events import Usage

TABLE = Path(__file__).parents[3] / "config" / "prices.yaml"
PRICES = PriceTable.parse(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("model", "input_usd", "output_usd", "read", "minimum"),
    [
        ("claude-opus-5-5", 4, 20, 0.05, 512),
        ("claude-sonnet-5-5", 2, 10, 0.05, 512),
        ("claude-sonnet-5-5@20261001", 2, 10, 0.05, 512),
        ("us.anthropic.claude-opus-5-v1:0", 5, 25, 0.1, 512),
        ("claude-haiku-5-5", 0.1, 0.5, 0.1, 512),
        ("claude-fable-5-1", 10, 50, 0.025, 512),
        ("claude-mythos-5-1", None, None, 0.025, 512),
        ("claude-fable-5-2", None, None, 0.1, 1_024),
        ("claude-opus-5", 5, 25, 0.1, 512),
        ("claude-sonnet-5", 2, 10, 0.1, 1_024),
        ("claude-opus-4-7", None, None, 0.1, 2_048),
        ("claude-opus-4-5-20251101", None, None, 0.1, 4_096),
        ("claude-haiku-4-5-20251001", None, None, 0.1, 4_096),
        ("Claude-Opus-4-1", None, None, 0.1, 1_024),
        ("gpt-6.1-sol", None, None, 0.05, 1_024),
        ("gpt-5.5-2026-04-01", 5, 30, 0.1, 1_024),
        ("deepseek-v4-flash", 0.14, 0.28, 0.02, 64),
    ],
)
def test_the_table_knows(
    model: str, input_usd: float | None, output_usd: float | None, read: float, minimum: int
) -> None:
    price = PRICES.find(model)
    assert price.known
    assert (price.input_usd, price.output_usd, price.read, price.minimum_tokens) == (
        input_usd,
        output_usd,
        read,
        minimum,
    )


def test_writes_cost_what_the_provider_says() -> None:
    sonnet, old, new = (
        PRICES.find("claude-sonnet-5"),
        PRICES.find("gpt-5.5"),
        PRICES.find("gpt-5.6-terra"),
    )
    assert (sonnet.write_multiplier("5m"), sonnet.write_multiplier("1h")) == (1.25, 2.0)
    assert (old.write_multiplier("5m"), new.write_multiplier("5m")) == (1.0, 1.25)


def test_an_unknown_model_says_so_and_costs_what_the_default_does() -> None:
    price = PRICES.find("nobody-knows-me")
    assert not price.known
    assert price.input_usd == PRICES.default.input_usd
    assert PRICES.default.known


def test_a_server_of_ones_own_costs_nothing() -> None:
    price = PRICES.find("claude-like-merge.gguf", provider="llamacpp")
    assert price.known
    assert price.cost_usd(Usage(input_tokens=1_000_000, output_tokens=1_000)) == 0


def test_a_request_costs_the_sum_of_its_parts() -> None:
    usage = Usage(
        input_tokens=1_000,
        cache_read_tokens=100_000,
        cache_write_tokens=3_000,
        cache_write_1h_tokens=1_000,
        output_tokens=500,
    )
    price = PRICES.find("claude-sonnet-5")
    expected = (1_000 + 100_000 * 0.1 + 2_000 * 1.25 + 1_000 * 2.0) * 2 / 1e6
    assert price.input_cost_usd(usage) == pytest.approx(expected)
    assert price.cost_usd(usage) == pytest.approx(expected + 500 * 10 / 1e6)


def test_a_long_prompt_costs_more_from_its_first_token_however_much_was_cached() -> None:
    price = PRICES.find("claude-haiku-5-5")
    assert price.cost_usd(Usage(input_tokens=100_000, output_tokens=100)) == pytest.approx(
        0.01 + 0.000_05
    )
    long = Usage(
        input_tokens=1, cache_read_tokens=90_000, cache_write_tokens=10_000, output_tokens=100
    )
    assert price.cost_usd(long) == pytest.approx((1 + 9_000 + 12_500) * 0.5 / 1e6 + 100 * 2.5 / 1e6)


def test_what_has_no_price_has_no_cost() -> None:
    assert PRICES.find("claude-opus-4-8").cost_usd(Usage(input_tokens=1)) is None
    assert not PRICES.find("claude-opus-4-8").is_priced
    assert Price(input_usd=1).cost_usd(Usage(input_tokens=1)) is None


@pytest.mark.parametrize(
    "text",
    [
        "models: [",
        "[]",
        "models: []",
        "{models: [{input_usd: 1}], default: {}}",
        "{models: [], default: {input_usd: -1}}",
        "{models: [], default: {inputs_usd: 1}}",
        "{models: [], default: {input_usd: .nan}}",
    ],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        PriceTable.parse(text)


@pytest.mark.parametrize("text", ["[" * 5_000, "[" * 5_000 + "]" * 5_000])
def test_a_table_that_is_nested_without_end_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        PriceTable.parse(text)
