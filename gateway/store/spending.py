"""What a turn cost, shared among those whose messages it was told. Pure.

The rule: each message that a turn was told bears an equal share of all that the turn cost. Shares are whole
tokens and billionths of a dollar, so that they add up to exactly what was billed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.events import SenderId, Usage
from gateway.records import TurnRecord

MAX_NUMBER = 2**50
"""Of each number. A server can bill what it likes; beyond this it is nonsense, and SQLite's integers must hold sums."""
NANO_PER_USD = 1_000_000_000
"""Billionths in a dollar: the cheapest token read from a cache costs five of them."""
NOBODY = SenderId("")
"""Bears what nobody's message caused, or what an earlier version did not tell of."""


class SpendingShare(NamedTuple):
    """One sender's part in the requests of one turn to one model, in the order of the table's columns."""

    agent: str
    provider: str
    """Empty: not told."""
    model: str
    sender: SenderId
    requests: int
    """Whole ones: a turn's stand with some of its senders, and say nothing about these."""
    unpriced: int
    """Of these, without a known price."""
    input: int
    read: int
    written: int
    """To the cache, for however long."""
    written_1h: int
    output: int
    cost_nano_usd: int


def usage_of(*columns: int) -> Usage:
    """What these columns of the table say: input, read, written, written_1h and output."""
    uncached, read, written, written_1h, output = columns
    return Usage(
        input_tokens=uncached,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
        output_tokens=output,
    )


def spending_shares(turn: TurnRecord) -> list[SpendingShare]:
    """A turn's costs: by what was asked, and by who had spoken. Nothing if nothing was asked."""
    weights = Counter(turn.senders) or Counter((NOBODY,))
    sums: dict[tuple[str, str], list[int]] = {}
    for provider, model, requests, usage, cost_usd in _billed_requests(turn):
        priced = cost_usd is not None and math.isfinite(cost_usd)
        numbers = [
            requests,
            0 if priced else requests,
            usage.input_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            usage.cache_write_1h_tokens,
            usage.output_tokens,
            int(min(max(cost_usd * NANO_PER_USD, 0.0), MAX_NUMBER) + 0.5) if cost_usd is not None and priced else 0,
        ]
        before = sums.setdefault((provider, model), [0] * len(numbers))
        sums[provider, model] = [min(old + max(0, new), MAX_NUMBER) for old, new in zip(before, numbers, strict=True)]
    return [
        SpendingShare(turn.agent, provider, model, sender, *part)
        for (provider, model), numbers in sums.items()
        for sender, part in zip(weights, _split_numbers(numbers, list(weights.values())), strict=True)
    ]


def _billed_requests(turn: TurnRecord) -> Iterator[tuple[str, str, int, Usage, float | None]]:
    """Those that were accounted for, then the rest together, whose price nobody told."""
    rest = turn.usage
    for account in turn.accounts:
        yield account.provider, account.model, 1, account.usage, account.cost_usd
        rest = _subtract_usage(rest, account.usage)
    if turn.requests > len(turn.accounts):
        yield "", turn.model, turn.requests - len(turn.accounts), rest, None


def _subtract_usage(whole: Usage, part: Usage) -> Usage:
    return Usage(
        input_tokens=whole.input_tokens - part.input_tokens,
        cache_read_tokens=whole.cache_read_tokens - part.cache_read_tokens,
        cache_write_tokens=whole.cache_write_tokens - part.cache_write_tokens,
        cache_write_1h_tokens=whole.cache_write_1h_tokens - part.cache_write_1h_tokens,
        output_tokens=whole.output_tokens - part.output_tokens,
    )


def _split_numbers(numbers: Sequence[int], weights: Sequence[int]) -> Iterator[list[int]]:
    """Each number in parts that stand to each other as the weights do, and add up to it."""
    whole, upto, given = sum(weights), 0, [0] * len(numbers)
    for weight in weights:
        upto += weight
        reached = [number * upto // whole for number in numbers]
        yield [now - before for now, before in zip(reached, given, strict=True)]
        given = reached
