"""Money and tokens that turns cost: shared out among their senders, summed, and asked for by day.

One table follows the log: `spending` has a row for each day, conversation, agent, model and sender.
`SPENDING_SUMS` answers what an agent, a person or a room has spent since a day.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Self

from agent.cache.prices import ASSUMED_PRICE
from gateway.core.events import RequestUsage, SenderId, Usage
from gateway.core.facts import TurnRecord
from gateway.core.frozen import frozen
from gateway.store.queries import using

MAX_NUMBER = 2**50
"""Limit of each number. A server may report any bill; more than this is nonsense, and sums must fit
SQLite's integers."""
NANO_PER_USD = 1_000_000_000
"""Billionths in a dollar: the cheapest token read from a cache costs five of them."""
NOBODY = SenderId("")
"""Bears the cost of turns that no message caused."""


def to_nano_usd(usd: float) -> int:
    """Return billionths of a dollar, at least 0 and at most `MAX_NUMBER`."""
    return int(min(max(usd * NANO_PER_USD, 0.0), MAX_NUMBER) + 0.5)


def total_cost_usd(accounts: Iterable[RequestUsage]) -> float:
    """Return the cost of the requests whose price is known."""
    return sum(account.cost_usd or 0.0 for account in accounts)


def budgeted_usd(accounts: Iterable[RequestUsage]) -> float:
    """Return the cost of the requests as budgets count it: at `ASSUMED_PRICE` where none is
    known.
    """
    return sum(
        ASSUMED_PRICE.cost_usd(one.usage) or 0.0
        if one.cost_usd is None or not math.isfinite(one.cost_usd)
        else one.cost_usd
        for one in accounts
    )


class SpendingShare(NamedTuple):
    """One sender's share in the requests of one turn to one model, in the order of the table's
    columns. `provider` empty: not recorded.

    Whole requests are divided among the senders: their number has no meaning for a single one.
    `unpriced` are those without a known price, `written` counts tokens of any lifetime.
    """

    agent: str
    provider: str
    model: str
    sender: SenderId
    requests: int
    unpriced: int
    input: int
    read: int
    written: int
    written_1h: int
    output: int
    cost_nano_usd: int


def usage_of(*columns: int) -> Usage:
    """Make a `Usage` of these columns of the table: input, read, written, written_1h and output."""
    uncached, read, written, written_1h, output = columns
    return Usage(
        input_tokens=uncached,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
        output_tokens=output,
    )


def spending_shares(turn: TurnRecord) -> list[SpendingShare]:
    """Return a turn's costs by model and by sender. Empty if no request was made."""
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
            to_nano_usd(cost_usd) if cost_usd is not None and priced else 0,
        ]
        before = sums.setdefault((provider, model), [0] * len(numbers))
        sums[provider, model] = [
            min(old + max(0, new), MAX_NUMBER) for old, new in zip(before, numbers, strict=True)
        ]
    return [
        SpendingShare(turn.agent, provider, model, sender, *part)
        for (provider, model), numbers in sums.items()
        for sender, part in zip(
            weights, _split_numbers(numbers, list(weights.values())), strict=True
        )
    ]


def _billed_requests(turn: TurnRecord) -> Iterator[tuple[str, str, int, Usage, float | None]]:
    """Yield the recorded requests, then the rest together, whose price is not known."""
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
    """Split each number into parts in proportion to the weights that add up to it."""
    total, cumulative, assigned = sum(weights), 0, [0] * len(numbers)
    for weight in weights:
        cumulative += weight
        reached = [number * cumulative // total for number in numbers]
        yield [now - before for now, before in zip(reached, assigned, strict=True)]
        assigned = reached


ADD_AUTONOMOUS = (
    "INSERT INTO autonomous (agent, day, turns, cost_nano_usd) SELECT $1, $2, 1, $3 WHERE true "
    "ON CONFLICT (agent, day) "
    f"DO UPDATE SET turns = autonomous.turns + 1, "
    f"cost_nano_usd = min(autonomous.cost_nano_usd + excluded.cost_nano_usd, {MAX_NUMBER})"
)
_SUMMED_COLUMNS = SpendingShare._fields[4:]
ADD_SPENDING = (
    "INSERT INTO spending (day, conversation, agent, provider, model, sender, "
    f"{', '.join(_SUMMED_COLUMNS)}) "
    "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14 WHERE true "
    "ON CONFLICT (day, conversation, agent, provider, model, sender) DO UPDATE SET "
    + ", ".join(
        f"{name} = min(spending.{name} + excluded.{name}, {MAX_NUMBER})" for name in _SUMMED_COLUMNS
    )
)
AUTONOMOUS_USAGE = "SELECT turns, cost_nano_usd FROM autonomous WHERE agent = $1 AND day = $2"
_SPENDING_KEYS = {
    "all": "''",
    "conversation": "conversation",
    "room": "CASE instr(substr(conversation, instr(conversation, '/') + 1), '/') WHEN 0 THEN "
    "conversation ELSE "
    "substr(conversation, 1, "
    "instr(conversation, '/') + instr(substr(conversation, instr(conversation, '/') + 1), '/') - "
    "1) END",
    "sender": "substr(conversation, 1, instr(conversation, '/') - 1) || ':' || sender",
    "day": "day",
    "agent": "agent",
    "share": "agent || '\n' || conversation || '\n' || sender || '\n' || provider",
    "model": "model",
}
SPENDING_SUMS = {
    by: f"SELECT {key}, sum(requests), sum(unpriced), sum(input), sum(read), sum(written), "  # noqa: S608 - constants only
    "sum(written_1h), sum(output), sum(cost_nano_usd) FROM spending WHERE day >= $1 AND (CAST($2 "
    "AS text) IS NULL OR conversation = $2 OR ($3 > 0 AND conversation > $2 || '/' AND "
    "conversation < $2 || '0')) GROUP BY 1 ORDER BY 1"
    for by, key in _SPENDING_KEYS.items()
}
"""Statements by key of the sums. Parameters: the first day, a conversation or NULL for all, and
whether its threads count too: their names begin with its name and a slash, and 0 is the character
after the slash. A slash in a name is escaped (`Address.conversation`), so the second one ends the
room."""

SpendingKey = Literal["all", "conversation", "room", "sender", "day", "agent", "share", "model"]


@frozen
class SpendingSum:
    """Summed cost of model requests."""

    key: str
    """Value of the key: a conversation, a room, `channel:sender`, a day (YYYY-MM-DD, UTC), ...;
    empty for `all`."""
    requests: int
    """No meaning for a sender: the requests of a turn cannot be shared out."""
    unpriced: int
    """Number of requests without a known price, which are missing from the cost."""
    usage: Usage
    cost_usd: float
    at: datetime | None = None
    """Start of its hour or day, UTC. None: it is of the whole time that was asked for."""

    @classmethod
    def from_row(cls, row: Iterable[Any], at: str = "") -> Self:
        """Make a sum of its key and the columns of the table in their order, for the hour or day
        that begins `at`.
        """
        key, requests, unpriced, *usage, nano_usd = row
        return cls(
            key=key or "",
            requests=requests,
            unpriced=unpriced,
            usage=usage_of(*usage),
            cost_usd=nano_usd / NANO_PER_USD,
            at=datetime.fromisoformat(at).replace(tzinfo=UTC) if at else None,
        )


OverviewSpendingKey = Literal["channel", "conversation", "agent", "model"]
_KEYS = {
    "channel": "substr(conversation, 1, instr(conversation, '/') - 1)",
    "conversation": "conversation",
    "agent": "{}agent{}",
    "model": "{}model{}",
}

_USAGE = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
)


def _summed_usage(name: str) -> str:
    return f"sum(coalesce(CAST(json_extract(body, '$.usage.{name}') AS numeric), 0))"


def hourly_spending_sql(key: str, first_entry: str, most: int) -> str:
    """Sums of the turns behind an entry, by hour: the table has days only. `first_entry`: a
    statement, from ?1 on.
    """
    return f"""
SELECT substr(at, 1, 13) || ':00:00', {_KEYS[key].format("json_extract(body, '$.", "')")},
    sum(CAST(json_extract(body, '$.requests') AS bigint)), 0,
    {", ".join(map(_summed_usage, _USAGE))}, {NANO_PER_USD} * sum((
        SELECT coalesce(sum(CAST(json_extract(value, '$.cost_usd') AS double precision)), 0.0)
        FROM json_each(body, '$.accounts')
    ))
FROM (
    SELECT at, conversation, body FROM log {using("log_kind")}
    WHERE kind = 'turn_ended' AND seq >= ({first_entry}) ORDER BY seq DESC LIMIT {most}
) AS page WHERE at >= $1 AND CAST(json_extract(body, '$.requests') AS bigint) > 0 GROUP BY 1, 2
    ORDER BY 1, 2
"""  # noqa: S608 - the same


DAILY_SPENDING = {
    key: f"SELECT day, {named.format('', '')}, sum(requests), sum(unpriced), sum(input), "  # noqa: S608 - the same
    "sum(read), sum(written), sum(written_1h), sum(output), sum(cost_nano_usd) FROM spending WHERE "
    "day >= $1 GROUP BY 1, 2 ORDER BY 1, 2"
    for key, named in _KEYS.items()
}


def budget_costs(turn: TurnRecord) -> Iterator[tuple[SenderId, int]]:
    """Yield what budgets count of a turn: senders and billionths of a dollar.

    Requests without a known price count at `ASSUMED_PRICE`.
    """
    whole = to_nano_usd(budgeted_usd(turn.accounts))
    for sender, messages in Counter(turn.senders).items():
        yield sender, whole * messages // len(turn.senders)


def budget_cost(share: SpendingSum, provider: str) -> int:
    """Return what budgets count of a sum by `share`. Without a provider nothing is known of its
    requests.
    """
    is_unpriced = share.unpriced > 0 and share.unpriced == share.requests and bool(provider)
    usd = ASSUMED_PRICE.cost_usd(share.usage) or 0.0 if is_unpriced else share.cost_usd
    return round(usd * NANO_PER_USD)
