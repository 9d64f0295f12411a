"""`reverie audit`: every act of administration, by whom, and what came of it.

Reads beside a running gateway. Exit codes: 0 done, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway.cli_reading import ResolveStore, add_store, reading, refused
from gateway.fields import Duration
from gateway.ops.report import table
from gateway.records import Audited, Seq
from gateway.redaction import Redactor
from gateway.standing import folded
from gateway.store import Reader
from gateway.store.lines import printable

LIMIT: Final = 50
"""Shown, if nobody says how many."""
_PAGE: Final = 500
"""Read at once."""
_DURATION: TypeAdapter[float] = TypeAdapter(Duration)
_FACT: TypeAdapter[Audited] = TypeAdapter(Audited)

Act = tuple[Seq, datetime, Audited]


def add_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `audit` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    text = "acts of administration: who, where, what, and what came of it; the newest last"
    parser: argparse.ArgumentParser = subparsers.add_parser("audit", help=text, description=text)
    add_store(parser, resolve_store)
    parser.add_argument("--since", metavar="WHEN", help="2h, 3d, or a date: 2026-03-04, 2026-03-04T07:00 (UTC)")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"the newest N only (default {LIMIT})")
    parser.add_argument("--by", metavar="PERSON", help="of these only: channel:id, or operator")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(handler=audit)


def audit(args: argparse.Namespace) -> int:
    """Handler of `audit`."""
    try:
        since = None if args.since is None else since_of(args.since, datetime.now(UTC))
    except ValueError as error:
        return refused("audit", error)

    async def run(reader: Reader) -> None:
        found = await acts(reader, since=since, by=args.by, limit=max(0, args.limit))
        if args.json:
            sys.stdout.write(json.dumps([_as_json(act) for act in found]) + "\n")  # ASCII: safe on every terminal
        else:
            sys.stdout.writelines(line + "\n" for line in told(found))

    return reading("audit", args, run)


async def acts(reader: Reader, *, since: datetime | None, by: str | None, limit: int) -> list[Act]:
    """The newest of them, oldest first. Reads no further back than it must."""
    wanted = None if by is None else folded(by) if ":" in by else by
    found, before = list[Act](), None
    while len(found) < limit:
        page = await reader.newest_entries(_PAGE, before=before, kinds=["audited"])
        for entry in reversed(page):
            if since is not None and entry.at < since:
                return found[::-1]
            if isinstance(entry.fact, Audited) and wanted in (None, entry.fact.by) and len(found) < limit:
                found.append((entry.seq, entry.at, entry.fact))
        if len(page) < _PAGE:
            break
        before = page[0].seq
    return found[::-1]


def told(found: Sequence[Act]) -> list[str]:
    """For people: a table, or a sentence that says that there are none."""
    if not found:
        return ["nobody administered anything"]
    redact = Redactor()
    lines: list[tuple[str, ...]] = [("entry", "when (UTC)", "who", "role", "where", "what", "result")]
    for seq, at, fact in found:
        who = f"{fact.by} ({fact.name})" if fact.name else fact.by
        where = fact.at.conversation if fact.at is not None else "command line"
        result = fact.result if fact.ok else f"not done: {fact.result}"
        cells = (
            str(seq),
            f"{at:%Y-%m-%d %H:%M:%S}",
            who,
            fact.role,
            where,
            f"{fact.what} {fact.args}".rstrip(),
            result,
        )
        lines.append(tuple(printable(redact(cell)) for cell in cells))
    return table(lines)


def since_of(said: str, now: datetime) -> datetime:
    """A span before now, or a date. Raises ValueError, in words."""
    text = said.strip()
    try:
        if "-" in text or "T" in text:
            at = datetime.fromisoformat(text)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        return now - timedelta(seconds=_DURATION.validate_python(text))
    except (ValidationError, ValueError, OverflowError) as error:
        raise ValueError(f"not a duration or a date: {text!r}; write 45m, 2h, 3d or 2026-03-04T07:00") from error


def _as_json(act: Act) -> dict[str, object]:
    seq, at, fact = act
    return {"seq": seq, "when": at.isoformat(), **_FACT.dump_python(fact, mode="json")}
