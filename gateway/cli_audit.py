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

from gateway.cli_reading import ResolveStore, add_store_options, report_failure, run_with_reader
from gateway.fields import Duration
from gateway.ops.report import format_table
from gateway.records import AuditRecord, Seq
from gateway.redaction import Redactor
from gateway.standing import normalize_person_key
from gateway.store import StoreReader
from gateway.store.lines import escape_unprintable

DEFAULT_AUDIT_ROWS: Final = 50
"""Shown, if nobody says how many."""
_AUDIT_PAGE: Final = 500
"""Read at once."""
_AUDIT_DURATION: TypeAdapter[float] = TypeAdapter(Duration)
_AUDITED: TypeAdapter[AuditRecord] = TypeAdapter(AuditRecord)

AuditRow = tuple[Seq, datetime, AuditRecord]


def add_audit_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `audit_command` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    text = "acts of administration: who, where, what, and what came of it; the newest last"
    parser: argparse.ArgumentParser = subparsers.add_parser("audit", help=text, description=text)
    add_store_options(parser, resolve_store)
    parser.add_argument("--since", metavar="WHEN", help="2h, 3d, or a date: 2026-03-04, 2026-03-04T07:00 (UTC)")
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_AUDIT_ROWS,
        metavar="N",
        help=f"the newest N only (default {DEFAULT_AUDIT_ROWS})",
    )
    parser.add_argument("--by", metavar="PERSON", help="of these only: channel:id, or operator")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(handler=audit_command)


def audit_command(args: argparse.Namespace) -> int:
    """Handler of `audit_command`."""
    try:
        since = None if args.since is None else parse_since(args.since, datetime.now(UTC))
    except ValueError as error:
        return report_failure("audit", error)

    async def run(reader: StoreReader) -> None:
        found = await read_audit_rows(reader, since=since, by=args.by, limit=max(0, args.limit))
        if args.json:
            sys.stdout.write(
                json.dumps([_audit_row_as_json(act) for act in found]) + "\n"
            )  # ASCII: safe on every terminal
        else:
            sys.stdout.writelines(line + "\n" for line in format_audit(found))

    return run_with_reader("audit", args, run)


async def read_audit_rows(reader: StoreReader, *, since: datetime | None, by: str | None, limit: int) -> list[AuditRow]:
    """The newest of them, oldest first. Reads no further back than it must."""
    wanted = None if by is None else normalize_person_key(by) if ":" in by else by
    found, before = list[AuditRow](), None
    while len(found) < limit:
        page = await reader.newest_entries(_AUDIT_PAGE, before=before, kinds=["audited"])
        for entry in reversed(page):
            if since is not None and entry.at < since:
                return found[::-1]
            if isinstance(entry.fact, AuditRecord) and wanted in (None, entry.fact.by) and len(found) < limit:
                found.append((entry.seq, entry.at, entry.fact))
        if len(page) < _AUDIT_PAGE:
            break
        before = page[0].seq
    return found[::-1]


def format_audit(found: Sequence[AuditRow]) -> list[str]:
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
        lines.append(tuple(escape_unprintable(redact(cell)) for cell in cells))
    return format_table(lines)


def parse_since(said: str, now: datetime) -> datetime:
    """A span before now, or a date. Raises ValueError, in words."""
    text = said.strip()
    try:
        if "-" in text or "T" in text:
            at = datetime.fromisoformat(text)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        return now - timedelta(seconds=_AUDIT_DURATION.validate_python(text))
    except (ValidationError, ValueError, OverflowError) as error:
        raise ValueError(f"not a duration or a date: {text!r}; write 45m, 2h, 3d or 2026-03-04T07:00") from error


def _audit_row_as_json(act: AuditRow) -> dict[str, object]:
    seq, at, fact = act
    return {"seq": seq, "when": at.isoformat(), **_AUDITED.dump_python(fact, mode="json")}
