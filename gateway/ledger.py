"""What model requests were expected to cost and did cost: read from the log, in numbers and told to people."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.events import Account, BlockAccount, ConversationId, Usage
from gateway.ops.report import clock_time
from gateway.records import Seq, TurnEnded
from gateway.store import Reader, Spending, SpentBy, Stored

LOOK_BACK = 2_000
"""Turns that are looked through for requests at most, unless more requests are wanted."""
_PAGE = 200
_DIGITS = ((1.0, 2), (0.01, 4))
"""From how many dollars on, and how many digits then stand behind the point; else 6."""
COLUMNS = ("tokens", "read", "write 5m", "write 1h", "uncached")
RULE = "each message that a turn was told bears an equal share of all that the turn cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One model request, and the turn that it was made for."""

    seq: Seq
    """The turn's entry in the log."""
    at: datetime
    """When the turn ended, UTC."""
    conversation: ConversationId | None
    agent: str
    account: Account


def asked(entries: Iterable[Stored]) -> list[Asked]:
    """The accounts of all turns among these entries, in their order."""
    return [
        Asked(seq=entry.seq, at=entry.at, conversation=entry.conversation, agent=entry.fact.agent, account=account)
        for entry in entries
        if isinstance(entry.fact, TurnEnded)
        for account in entry.fact.accounts
    ]


async def newest(reader: Reader, most: int, conversation: ConversationId | None = None) -> list[Asked]:
    """The newest requests, there or anywhere, oldest first. Does not read a long log to its beginning."""
    found: list[Asked] = []
    before, looked = None, 0
    while len(found) < most and looked < max(LOOK_BACK, most):
        size = min(most, _PAGE)
        if conversation is None:
            page = await reader.newest_entries(size, before=before, kinds=["turn_ended"])
        else:
            page = await reader.newest_turns(conversation, before=before, newest=size)
        if not page:
            break
        found, before, looked = asked(page) + found, page[0].seq, looked + len(page)
    return found[max(0, len(found) - most) :]


def expected(blocks: Iterable[BlockAccount]) -> Usage:
    """What these blocks were expected to be billed as; of the answer nothing is."""
    parts = [
        Usage(
            input_tokens=block.tokens - block.read - block.written,
            cache_read_tokens=block.read,
            cache_write_tokens=block.written,
            cache_write_1h_tokens=block.written if block.lifetime == "1h" else 0,
        )
        for block in blocks
    ]
    return sum(parts, Usage())


def prompt_tokens(usage: Usage) -> int:
    """What a prompt had, however it was billed."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def read_share(usage: Usage) -> float | None:
    """How much of the prompts was read from the cache, 0 to 1; None: there were none."""
    whole = prompt_tokens(usage)
    return usage.cache_read_tokens / whole if whole > 0 else None


def told(one: Asked) -> list[str]:
    """One request, a line each. Untrusted text is in them as it came."""
    account = one.account
    was, billed = _row(expected(account.blocks)), _row(account.usage)
    off = [f"{is_ - should:+,}" if is_ != should else "0" for should, is_ in zip(was, billed, strict=True)]
    rows = [
        ("counted" if account.exact else "estimated", *COLUMNS),
        *((block.name, *map(_number, _row(expected([block])))) for block in account.blocks),
        ("expected", *map(_number, was)),
        ("billed", *map(_number, billed)),
        ("difference", *off),
    ]
    asking = f"{one.conversation or '-'}  {one.agent or '-'}"
    head = f"{clock_time(one.at)}  {asking}  {account.provider} {account.model}"
    lines = [f"{head}  {money(account.cost_usd)}  (entry {one.seq})", *(f"  {line}" for line in aligned(rows))]
    lines += [f"  left out by the provider: {account.cleared:,} tokens"] if account.cleared else []
    return [*lines, f"  missed: {account.missed}"] if account.missed else lines


def summed(one: Spending) -> str:
    """A sum in half a sentence."""
    usage = one.usage
    requests = f"{one.requests:,} request{'' if one.requests == 1 else 's'}"
    tokens = (
        f"{share(usage)} of {prompt_tokens(usage):,} input tokens read from the cache, {usage.output_tokens:,} output"
    )
    return f"{requests}: {tokens}, {_cost(one)}"


def by_key(by: SpentBy, sums: Sequence[Spending]) -> list[str]:
    """A table of sums, a line each, the dearest first."""
    requests = () if by == "sender" else ("requests",)
    rows: list[tuple[str, ...]] = [(by, *requests, "input", "read", "written", "output", "cost")]
    for one in sorted(sums, key=lambda one: (-one.cost_usd, -prompt_tokens(one.usage), one.key)):
        usage = one.usage
        counts = (f"{one.requests:,}",) if requests else ()
        tokens = (_number(prompt_tokens(usage)), share(usage), _number(usage.cache_write_tokens))
        rows.append((_named(by, one.key), *counts, *tokens, _number(usage.output_tokens), _cost(one)))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def share(usage: Usage) -> str:
    """The part that was read from the cache, in percent."""
    part = read_share(usage)
    return "-" if part is None else f"{100 * part:.1f} %"


def money(usd: float | None) -> str:
    """A sum in dollars, the finer the less it is; None: the price is not known."""
    if usd is None:
        return "price not known"
    return f"${usd:,.{next((digits for least, digits in _DIGITS if usd >= least), 6) if usd else 2}f}"


def _named(by: SpentBy, key: str) -> str:
    return f"{key}(nobody)" if by == "sender" and key.endswith(":") else key or "-"


def _cost(one: Spending) -> str:
    if one.unpriced and one.cost_usd == 0:
        return money(None)
    return f"at least {money(one.cost_usd)}" if one.unpriced else money(one.cost_usd)


def _row(usage: Usage) -> tuple[int, ...]:
    """In the order of `COLUMNS`."""
    hour, written = usage.cache_write_1h_tokens, usage.cache_write_tokens
    return prompt_tokens(usage), usage.cache_read_tokens, written - hour, hour, usage.input_tokens


def _number(count: int) -> str:
    return f"{count:,}"
