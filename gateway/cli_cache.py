"""`reverie cache`: what each model request was expected to read from the provider's cache, what was billed, and sums.

Reads beside a running gateway. Exit codes: 0 done, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import json
import sys
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from pydantic import TypeAdapter

from gateway import ledger
from gateway.cli_reading import ResolveStore, add_store_options, run_with_reader
from gateway.events import Usage
from gateway.ledger import LedgerRequest
from gateway.store import SpendingKey, SpendingSum, StoreReader
from gateway.store.lines import escape_unprintable

SPENDING_KEYS: Final[tuple[SpendingKey, ...]] = ("conversation", "room", "sender", "day", "agent", "model")
DEFAULT_REQUESTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsageReport:
    """All that the command tells, as it is told to programs."""

    requests: list[LedgerRequest]
    expected: list[Usage]
    """Of each request, as its blocks add up."""
    total: SpendingSum
    by: SpendingKey | None
    """What `sums` are told apart by; None: there are none."""
    sums: list[SpendingSum]


_CACHE_USAGE_REPORT = TypeAdapter(CacheUsageReport)


def add_cache_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `cache_command` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    text = "what the models' caches were expected to do, what was billed, and what it cost"
    parser: argparse.ArgumentParser = subparsers.add_parser("cache", help=text, description=text)
    add_store_options(parser, resolve_store)
    parser.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    parser.add_argument(
        "--last", type=int, metavar="N", help=f"the newest N requests (default {DEFAULT_REQUESTS}; with --by: none)"
    )
    parser.add_argument("--by", choices=SPENDING_KEYS, metavar="KEY", help=f"sums for each {', '.join(SPENDING_KEYS)}")
    parser.add_argument("--since", type=_parse_day, metavar="DAY", help="sums from this day on (YYYY-MM-DD, UTC)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(handler=cache_command)


def cache_command(args: argparse.Namespace) -> int:
    """Handler of `cache_command`."""

    async def run(reader: StoreReader) -> None:
        shown = await _collect_cache_usage(reader, args)
        if args.json:
            print(json.dumps(_CACHE_USAGE_REPORT.dump_python(shown, mode="json")))  # ASCII: safe on every terminal
            return
        for line in _format_cache_usage(shown, args):
            sys.stdout.write(escape_unprintable(line) + "\n")

    return run_with_reader("cache", args, run)


async def _collect_cache_usage(reader: StoreReader, args: argparse.Namespace) -> CacheUsageReport:
    by: SpendingKey | None = args.by
    last = args.last if args.last is not None else 0 if by else DEFAULT_REQUESTS
    asked = await ledger.newest_requests(reader, max(0, last), args.conversation)
    total = await reader.spending_sums("all", since=args.since or "", conversation=args.conversation)
    nothing = SpendingSum(key="", requests=0, unpriced=0, usage=Usage(), cost_usd=0.0)
    return CacheUsageReport(
        requests=asked,
        expected=[ledger.expected_usage(one.account.blocks) for one in asked],
        total=total[0] if total else nothing,
        by=by,
        sums=await reader.spending_sums(by, since=args.since or "", conversation=args.conversation) if by else [],
    )


def _format_cache_usage(shown: CacheUsageReport, args: argparse.Namespace) -> list[str]:
    lines = []
    for one in shown.requests:
        lines += [*ledger.format_request(one), ""]
    if shown.by and shown.sums:
        lines += [*ledger.format_spending_table(shown.by, shown.sums), ""]
        if shown.by == "sender":
            lines += [f"({ledger.SHARING_RULE})", ""]
    place = args.conversation or "all conversations"
    when = f"since {args.since}" if args.since else "since the log began"
    return [*lines, f"{place}, {when}: {ledger.format_spending(shown.total)}"]


def _parse_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day: write it as 2026-03-04") from None
