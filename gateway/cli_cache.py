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
from gateway.cli_reading import ResolveStore, add_store, reading
from gateway.events import Usage
from gateway.ledger import Asked
from gateway.store import Reader, Spending, SpentBy
from gateway.store.lines import printable

KEYS: Final[tuple[SpentBy, ...]] = ("conversation", "room", "sender", "day", "agent", "model")
LAST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """All that the command tells, as it is told to programs."""

    requests: list[Asked]
    expected: list[Usage]
    """Of each request, as its blocks add up."""
    total: Spending
    by: SpentBy | None
    """What `sums` are told apart by; None: there are none."""
    sums: list[Spending]


_SHOWN = TypeAdapter(Shown)


def add_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `cache` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    text = "what the models' caches were expected to do, what was billed, and what it cost"
    parser: argparse.ArgumentParser = subparsers.add_parser("cache", help=text, description=text)
    add_store(parser, resolve_store)
    parser.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    parser.add_argument(
        "--last", type=int, metavar="N", help=f"the newest N requests (default {LAST}; with --by: none)"
    )
    parser.add_argument("--by", choices=KEYS, metavar="KEY", help=f"sums for each {', '.join(KEYS)}")
    parser.add_argument("--since", type=_day, metavar="DAY", help="sums from this day on (YYYY-MM-DD, UTC)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(handler=cache)


def cache(args: argparse.Namespace) -> int:
    """Handler of `cache`."""

    async def run(reader: Reader) -> None:
        shown = await _look(reader, args)
        if args.json:
            print(json.dumps(_SHOWN.dump_python(shown, mode="json")))  # ASCII: safe on every terminal
            return
        for line in _lines(shown, args):
            sys.stdout.write(printable(line) + "\n")

    return reading("cache", args, run)


async def _look(reader: Reader, args: argparse.Namespace) -> Shown:
    by: SpentBy | None = args.by
    last = args.last if args.last is not None else 0 if by else LAST
    asked = await ledger.newest(reader, max(0, last), args.conversation)
    total = await reader.spending_sums("all", since=args.since or "", conversation=args.conversation)
    nothing = Spending(key="", requests=0, unpriced=0, usage=Usage(), cost_usd=0.0)
    return Shown(
        requests=asked,
        expected=[ledger.expected(one.account.blocks) for one in asked],
        total=total[0] if total else nothing,
        by=by,
        sums=await reader.spending_sums(by, since=args.since or "", conversation=args.conversation) if by else [],
    )


def _lines(shown: Shown, args: argparse.Namespace) -> list[str]:
    lines = []
    for one in shown.requests:
        lines += [*ledger.told(one), ""]
    if shown.by and shown.sums:
        lines += [*ledger.by_key(shown.by, shown.sums), ""]
        if shown.by == "sender":
            lines += [f"({ledger.RULE})", ""]
    place = args.conversation or "all conversations"
    when = f"since {args.since}" if args.since else "since the log began"
    return [*lines, f"{place}, {when}: {ledger.summed(shown.total)}"]


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day: write it as 2026-03-04") from None
