"""Usage and cost of model requests, expected and billed, for people: the commands `usage` and
`cache`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final, Literal

from gateway.commands.context import OPERATOR_PLACE, CommandCall, find_hidden
from gateway.commands.definition import command
from gateway.commands.parser import escape_code
from gateway.core.events import Address, BlockUsage, ConversationId, RequestUsage, Usage
from gateway.core.facts import Seq, TurnRecord
from gateway.core.format import format_time, format_usd
from gateway.core.frozen import frozen
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES
from gateway.plugin import Plugin
from gateway.store import SpendingKey, SpendingSum, StoreReader
from gateway.store.effects import CommandEffect, done, refuse

MAX_TURNS_READ = 2_000
"""Turns searched for requests at most, unless more requests are wanted."""
_PAGE = 200
LEDGER_COLUMNS = ("tokens", "read", "write 5m", "write 1h", "uncached")
SHARING_RULE = "each message that a turn was told bears an equal share of all that the turn cost"
MONTH_DAYS: Final = 30
DEFAULT_REQUESTS: Final = 10
SummedBy = Literal["conversation", "room", "sender", "day", "agent", "model"]


class UsageReports(Plugin):
    """Tells people what requests to models cost."""

    name = "usage"
    summary = "tells what the use of models costs: usage, cache"

    @command(
        "cache",
        "Show how much of this conversation came from the model's cache, and the last miss.",
        group="this conversation",
        role="admin",
    )
    async def show_cache(self, call: CommandCall) -> str:
        store, here = self.context.gateway.store, call.command.at.conversation
        lines = [await self._render_spending(_("Here today"), self._day(), here)]
        recent = await newest_requests(store, 50, here)
        if missed := [one for one in recent if one.account.missed]:
            last = missed[-1]
            lines.append(
                _("Last cache miss ({time}, entry {number}, {model}): `{cause}`").format(
                    time=format_time(last.at),
                    number=last.seq,
                    model=last.account.model,
                    cause=escape_code(last.account.missed),
                )
            )
        elif recent:
            text = ngettext(
                "No cache miss in the last request.",
                "No cache miss in the last {count} requests.",
                len(recent),
            )
            lines.append(text.format(count=len(recent)))
        return "\n".join(f"- {line}" for line in lines)

    @command(
        "usage",
        "Show what this room cost today, in tokens and money.",
        group="this conversation",
        role="member",
    )
    async def show_usage(self, call: CommandCall) -> str:
        """Show today's cost in this room with its threads; in a direct chat, admins everywhere also
        see all rooms."""
        at, day = call.command.at, self._day()
        room = Address(channel=at.channel, room=at.room).conversation
        lines = [await self._render_spending(_("Here today"), day, room, threads=True)]
        if call.global_role in ADMIN_ROLES and not call.command.direct:
            lines.append(_("Ask me in a direct chat to see all rooms."))
        elif call.global_role in ADMIN_ROLES:
            lines.append(await self._render_spending(_("Everywhere today"), day))
            title = _("Everywhere in {days} days").format(days=MONTH_DAYS)
            lines.append(await self._render_spending(title, self._day(MONTH_DAYS - 1)))
            gateway = self.context.gateway
            rooms = _dearest_first(await gateway.store.spending_sums("room", since=day))
            hidden = await find_hidden(
                call, gateway.places, [ConversationId(one.key) for one in rooms]
            )
            listed = [one for one in rooms if one.key not in hidden]
            today = _("`{room}` today: {spending}")
            lines += [
                today.format(room=escape_code(one.key), spending=format_spending(one))
                for one in listed[:5]
            ]
        return "\n".join(f"- {line}" for line in lines)

    @command(
        "cache",
        "Show the expected and billed use of the models' caches, and the cost.",
        group="this conversation",
        operator=True,
    )
    async def show_ledger(
        self,
        call: CommandCall,
        by: Annotated[SummedBy, "Sums for each of these."] | None = None,
        since: Annotated[str, "Sums from this day on: YYYY-MM-DD (UTC)."] | None = None,
        last: Annotated[
            int, f"The newest few requests (default {DEFAULT_REQUESTS}; with by: none)."
        ]
        | None = None,
    ) -> CommandEffect:
        """Show it for a conversation that is named, else for all."""
        reader, at = self.context.gateway.store, call.command.at
        here = None if at == OPERATOR_PLACE else at.conversation
        try:
            day = date.fromisoformat(since).isoformat() if since is not None else ""
        except ValueError:
            return refuse(f"{since!r} is not a day: write it as 2026-03-04")
        if last is None:
            last = 0 if by else DEFAULT_REQUESTS
        requests = await newest_requests(reader, last, here)
        sums = await reader.spending_sums("all", since=day, conversation=here)
        none = SpendingSum(key="", requests=0, unpriced=0, usage=Usage(), cost_usd=0.0)
        total, parts = sums[0] if sums else none, list[SpendingSum]()
        lines = [line for one in requests for line in (*format_request(one), "")]
        if by:
            parts = await reader.spending_sums(by, since=day, conversation=here)
            lines += [*format_spending_table(by, parts), ""] if parts else []
            lines += [f"({SHARING_RULE})", ""] if parts and by == "sender" else []
        when = f"since {day}" if day else "since the log began"
        lines.append(f"{here or 'all conversations'}, {when}: {format_spending(total)}")
        data = {
            "requests": requests,
            "expected": [expected_usage(one.account.blocks) for one in requests],
            "total": total,
            "by": by,
            "sums": parts,
        }
        return done("\n".join(lines), data=data)

    def _day(self, ago: int = 0) -> str:
        today = self.context.gateway.clock.now().astimezone(UTC).date()
        return (today - timedelta(days=ago)).isoformat()

    async def _render_spending(
        self, when: str, since: str, place: ConversationId | None = None, *, threads: bool = False
    ) -> str:
        sums = await self.context.gateway.store.spending_sums(
            "all", since=since, conversation=place, threads=threads
        )
        if not sums:
            return _("{when}: no requests to a model.").format(when=when)
        return f"{when}: {format_spending(sums[0])}."


@frozen
class LedgerRequest:
    """One model request, and the turn that it was made for."""

    seq: Seq
    at: datetime
    """End of the turn, UTC."""
    conversation: ConversationId | None
    agent: str
    account: RequestUsage


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
        found = [
            LedgerRequest(
                seq=entry.seq,
                at=entry.at,
                conversation=entry.conversation,
                agent=entry.fact.agent,
                account=account,
            )
            for entry in page
            if isinstance(entry.fact, TurnRecord)
            for account in entry.fact.accounts
        ]
        requests, before, turns_read = found + requests, page[0].seq, turns_read + len(page)
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
    for one in _dearest_first(sums):
        usage, nobody = one.usage, by == "sender" and one.key.endswith(":")
        counts = (f"{one.requests:,}",) if requests else ()
        tokens = (
            _format_count(usage.prompt_tokens),
            format_read_share(usage),
            _format_count(usage.cache_write_tokens),
        )
        rows.append(
            (
                f"{one.key}(nobody)" if nobody else one.key or "-",
                *counts,
                *tokens,
                _format_count(usage.output_tokens),
                _format_cost(one),
            )
        )
    return align_columns(rows)


def _dearest_first(sums: Iterable[SpendingSum]) -> list[SpendingSum]:
    return sorted(sums, key=lambda one: (-one.cost_usd, -one.usage.prompt_tokens, one.key))


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
    part = usage.read_share
    return "-" if part is None else f"{100 * part:.1f} %"


def _format_cost(spending: SpendingSum) -> str:
    if spending.unpriced and spending.cost_usd == 0:
        return format_usd(None)
    cost = format_usd(spending.cost_usd)
    return _("at least {cost}").format(cost=cost) if spending.unpriced else cost


def _token_counts(usage: Usage) -> tuple[int, ...]:
    hour, written = usage.cache_write_1h_tokens, usage.cache_write_tokens
    return usage.prompt_tokens, usage.cache_read_tokens, written - hour, hour, usage.input_tokens


def _format_count(count: int) -> str:
    return f"{count:,}"
