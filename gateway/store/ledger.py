"""Cost ledger: expected and billed usage of model requests, read from the log and formatted for
people.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.core.events import BlockUsage, ConversationId, RequestUsage, Usage
from gateway.core.facts import Seq, TurnRecord
from gateway.core.format import format_time, format_usd
from gateway.core.i18n import _, ngettext
from gateway.store.reader import StoreReader
from gateway.store.spending import SpendingKey, SpendingSum
from gateway.store.types import LogEntry

MAX_TURNS_READ = 2_000
"""Turns searched for requests at most, unless more requests are wanted."""
_PAGE = 200
LEDGER_COLUMNS = ("tokens", "read", "write 5m", "write 1h", "uncached")
SHARING_RULE = "each message that a turn was told bears an equal share of all that the turn cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRequest:
    """One model request, and the turn that it was made for."""

    seq: Seq
    """Position of the turn's entry in the log."""
    at: datetime
    """End of the turn, UTC."""
    conversation: ConversationId | None
    agent: str
    account: RequestUsage


def requests_of(entries: Iterable[LogEntry]) -> list[LedgerRequest]:
    """Return the requests of all turns among these entries, in their order."""
    return [
        LedgerRequest(
            seq=entry.seq,
            at=entry.at,
            conversation=entry.conversation,
            agent=entry.fact.agent,
            account=account,
        )
        for entry in entries
        if isinstance(entry.fact, TurnRecord)
        for account in entry.fact.accounts
    ]


async def newest_requests(
    reader: StoreReader, most: int, conversation: ConversationId | None = None
) -> list[LedgerRequest]:
    """Return the newest requests of a conversation or of all, oldest first. Does not read a long
    log to its start.
    """
    requests: list[LedgerRequest] = []
    before, turns_read = None, 0
    while len(requests) < most and turns_read < max(MAX_TURNS_READ, most):
        size = min(most, _PAGE)
        if conversation is None:
            page = await reader.newest_entries(size, before=before, kinds=["turn_ended"])
        else:
            page = await reader.newest_turns(conversation, before=before, newest=size)
        if not page:
            break
        requests, before, turns_read = (
            requests_of(page) + requests,
            page[0].seq,
            turns_read + len(page),
        )
    return requests[max(0, len(requests) - most) :]


def expected_usage(blocks: Iterable[BlockUsage]) -> Usage:
    """Return the expected billing of these blocks; the output is not included."""
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


def read_share(usage: Usage) -> float | None:
    """Return the share of the prompts that was read from the cache, 0 to 1; None: there were
    none.
    """
    whole = usage.prompt_tokens
    return usage.cache_read_tokens / whole if whole > 0 else None


def format_request(request: LedgerRequest) -> list[str]:
    """Format one request as several lines. They contain untrusted text unchanged."""
    account = request.account
    expected, billed = _token_counts(expected_usage(account.blocks)), _token_counts(account.usage)
    differences = [
        f"{is_ - should:+,}" if is_ != should else "0"
        for should, is_ in zip(expected, billed, strict=True)
    ]
    rows = [
        ("counted" if account.exact else "estimated", *LEDGER_COLUMNS),
        *(
            (block.name, *map(_format_count, _token_counts(expected_usage([block]))))
            for block in account.blocks
        ),
        ("expected", *map(_format_count, expected)),
        ("billed", *map(_format_count, billed)),
        ("difference", *differences),
    ]
    place = f"{request.conversation or '-'}  {request.agent or '-'}"
    head = f"{format_time(request.at)}  {place}  {account.provider} {account.model}"
    lines = [
        f"{head}  {format_usd(account.cost_usd)}  (entry {request.seq})",
        *(f"  {line}" for line in align_columns(rows)),
    ]
    return [*lines, f"  missed: {account.missed}"] if account.missed else lines


def format_spending(spending: SpendingSum) -> str:
    """Format a sum in half a sentence."""
    usage = spending.usage
    text = ngettext(
        "{count} request: {input} input tokens ({share} from the cache), {output} output tokens, "
        "{cost}",
        "{count} requests: {input} input tokens ({share} from the cache), {output} output tokens, "
        "{cost}",
        spending.requests,
    )
    return text.format(
        count=f"{spending.requests:,}",
        input=f"{usage.prompt_tokens:,}",
        share=format_read_share(usage),
        output=f"{usage.output_tokens:,}",
        cost=_format_cost(spending),
    )


def format_spending_table(by: SpendingKey, sums: Sequence[SpendingSum]) -> list[str]:
    """Format sums as a table, one line each, the most expensive first."""
    requests = () if by == "sender" else ("requests",)
    rows: list[tuple[str, ...]] = [(by, *requests, "input", "read", "written", "output", "cost")]
    for one in sorted(sums, key=lambda one: (-one.cost_usd, -one.usage.prompt_tokens, one.key)):
        usage = one.usage
        counts = (f"{one.requests:,}",) if requests else ()
        tokens = (
            _format_count(usage.prompt_tokens),
            format_read_share(usage),
            _format_count(usage.cache_write_tokens),
        )
        rows.append(
            (
                _key_label(by, one.key),
                *counts,
                *tokens,
                _format_count(usage.output_tokens),
                _format_cost(one),
            )
        )
    return align_columns(rows)


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns to equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def format_read_share(usage: Usage) -> str:
    """Format the share that was read from the cache, in percent."""
    part = read_share(usage)
    return "-" if part is None else f"{100 * part:.1f} %"


def _key_label(by: SpendingKey, key: str) -> str:
    return f"{key}(nobody)" if by == "sender" and key.endswith(":") else key or "-"


def _format_cost(spending: SpendingSum) -> str:
    if spending.unpriced and spending.cost_usd == 0:
        return format_usd(None)
    cost = format_usd(spending.cost_usd)
    return _("at least {cost}").format(cost=cost) if spending.unpriced else cost


def _token_counts(usage: Usage) -> tuple[int, ...]:
    """Return the counts in the order of `LEDGER_COLUMNS`."""
    hour, written = usage.cache_write_1h_tokens, usage.cache_write_tokens
    return usage.prompt_tokens, usage.cache_read_tokens, written - hour, hour, usage.input_tokens


def _format_count(count: int) -> str:
    return f"{count:,}"
