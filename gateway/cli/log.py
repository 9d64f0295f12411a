"""Commands that read the log: log, why, audit, cache.

All of them except `log rebuild` read beside a running gateway.

Exit codes: 0 done; 2 nothing could be done (the reason is on stderr). In addition 1 for `log rebuild`: a difference was
found and corrected.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TextIO

from pydantic import TypeAdapter, ValidationError

from gateway.cli.options import (
    add_command,
    build_redactor,
    print_json,
    report_failure,
    resolve_store,
    run_with_reader,
)
from gateway.core.events import ConversationId, Usage
from gateway.core.facts import AuditRecord, Seq, fact_kinds
from gateway.core.fields import Duration
from gateway.core.format import format_table
from gateway.core.identity import normalize_person_key
from gateway.core.logging import ReportProgress, show_progress
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.store import (
    LogRow,
    SpendingKey,
    SpendingSum,
    StoreError,
    StoreReader,
    ledger,
    rebuild,
)
from gateway.store.archive import ArchivedLog, row_to_line
from gateway.store.format import actor_name, format_entry
from gateway.store.ledger import LedgerRequest
from gateway.store.types import read_entries
from gateway.stream.trace import explain_event

DEFAULT_AUDIT_ROWS: Final = 50
"""Entries shown by default."""
_AUDIT_PAGE: Final = 500
"""Entries read at once."""
_DURATION: TypeAdapter[float] = TypeAdapter(Duration)
_AUDITED: TypeAdapter[AuditRecord] = TypeAdapter(AuditRecord)

AuditRow = tuple[Seq, datetime, AuditRecord]


def add_commands(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `log`, `cache`, `why` and `audit` to a command line."""
    log = subparsers.add_parser("log", help="read, export and verify the log")
    commands = log.add_subparsers(dest="log_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        return add_command(commands, name, text, handler, where="config or store")

    show = command("show", log_show_command, "print entries, oldest first")
    show.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    show.add_argument(
        "--kind", action="append", choices=fact_kinds(), metavar="K", help="only these kinds (repeatable)"
    )
    show.add_argument("--match", metavar="TERMS", help="only messages with these words (an FTS5 query)")
    show.add_argument("--after", type=int, metavar="SEQ", help="only entries after this one")
    show.add_argument("--last", type=int, metavar="N", help="the newest N only (default 50, without --after)")
    show.add_argument("--jsonl", action="store_true", help="one JSON object per line")
    tailed = command("tail", log_tail_command, "print the newest entries, and follow")
    tailed.add_argument("-n", type=int, default=10, metavar="N", help="number of entries to start with (default 10)")
    tailed.add_argument("-f", "--follow", action="store_true", help="continue until interrupted")
    exported = command("export", log_export_command, "print the entire log as JSON lines")
    exported.add_argument("--jsonl", action="store_true", help="one JSON object per line (the only form)")
    exported.add_argument("--output", type=Path, metavar="FILE", help="a new file instead of standard output")
    command("rebuild", log_rebuild_command, "compare every table with the log, and repair differences")
    for parent in (commands, subparsers):
        text = "show what happened to an event, and which rule decided"
        why = add_command(parent, "why", text, why_command, where="config or store")
        why.add_argument("seq", type=int, metavar="SEQ", help="the event's number, as `log show` shows it")

    text = "show the expected and billed use of the models' caches, and the cost"
    cache = add_command(subparsers, "cache", text, cache_command, where="config or store", as_json=True)
    cache.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    text = f"the newest N requests (default {DEFAULT_REQUESTS}; with --by: none)"
    cache.add_argument("--last", type=int, metavar="N", help=text)
    cache.add_argument("--by", choices=SPENDING_KEYS, metavar="KEY", help=f"sums for each {', '.join(SPENDING_KEYS)}")
    cache.add_argument("--since", type=_parse_day, metavar="DAY", help="sums from this day on (YYYY-MM-DD, UTC)")

    text = "show administrative commands: who, where, what, and the result; the newest last"
    audit = add_command(subparsers, "audit", text, audit_command, where="config or store", as_json=True)
    audit.add_argument("--since", metavar="WHEN", help="2h, 3d, or a date: 2026-03-04, 2026-03-04T07:00 (UTC)")
    text = f"the newest N only (default {DEFAULT_AUDIT_ROWS})"
    audit.add_argument("--limit", type=int, default=DEFAULT_AUDIT_ROWS, metavar="N", help=text)
    audit.add_argument("--by", metavar="PERSON", help="only of these people: channel:id, or operator")


def audit_command(args: argparse.Namespace) -> int:
    """Handle `audit`."""
    try:
        since = None if args.since is None else parse_since(args.since, datetime.now(UTC))
    except ValueError as error:
        return report_failure("audit", error)

    async def run(reader: StoreReader) -> None:
        found = await read_audit_rows(reader, since=since, by=args.by, limit=max(0, args.limit))
        if args.json:
            print_json([_audit_row_as_json(act) for act in found])
        else:
            sys.stdout.writelines(line + "\n" for line in format_audit(found))

    return run_with_reader("audit", args, run)


async def read_audit_rows(reader: StoreReader, *, since: datetime | None, by: str | None, limit: int) -> list[AuditRow]:
    """Return the newest matching entries, oldest first. Reads back no further than needed."""
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
    """Render for people: a table, or a sentence if there are none."""
    if not found:
        return ["there were no administrative commands"]
    redactor = Redactor()
    lines: list[tuple[str, ...]] = [("entry", "when (UTC)", "who", "role", "where", "what", "result")]
    for seq, at, fact in found:
        where = fact.at.conversation if fact.at is not None else "command line"
        result = fact.result if fact.ok else f"not done: {fact.result}"
        cells = (
            str(seq),
            f"{at:%Y-%m-%d %H:%M:%S}",
            actor_name(fact),
            fact.role,
            where,
            f"{fact.what} {fact.args}".rstrip(),
            result,
        )
        lines.append(tuple(escape_unprintable(redactor(cell)) for cell in cells))
    return format_table(lines)


def parse_since(text_or_date: str, now: datetime) -> datetime:
    """Parse a duration before now, or a date. Raises ValueError with a message for people."""
    text = text_or_date.strip()
    try:
        if "-" in text or "T" in text:
            at = datetime.fromisoformat(text)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        return now - timedelta(seconds=_DURATION.validate_python(text))
    except (ValidationError, ValueError, OverflowError) as error:
        raise ValueError(f"not a duration or a date: {text!r}; write 45m, 2h, 3d or 2026-03-04T07:00") from error


def _audit_row_as_json(act: AuditRow) -> dict[str, object]:
    seq, at, fact = act
    return {"seq": seq, "when": at.isoformat(), **_AUDITED.dump_python(fact, mode="json")}


SPENDING_KEYS: Final[tuple[SpendingKey, ...]] = ("conversation", "room", "sender", "day", "agent", "model")
DEFAULT_REQUESTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsageReport:
    """Output of `cache`, as printed for programs."""

    requests: list[LedgerRequest]
    expected: list[Usage]
    """Expected usage of each request, from its blocks."""
    total: SpendingSum
    by: SpendingKey | None
    """Key of `sums`; None: there are none."""
    sums: list[SpendingSum]


_CACHE_USAGE_REPORT = TypeAdapter(CacheUsageReport)


def cache_command(args: argparse.Namespace) -> int:
    """Handle `cache`."""

    async def run(reader: StoreReader) -> None:
        usage_report = await _collect_cache_usage(reader, args)
        if args.json:
            print_json(_CACHE_USAGE_REPORT.dump_python(usage_report, mode="json"))
            return
        for line in _format_cache_usage(usage_report, args):
            sys.stdout.write(escape_unprintable(line) + "\n")

    return run_with_reader("cache", args, run)


async def _collect_cache_usage(reader: StoreReader, args: argparse.Namespace) -> CacheUsageReport:
    by: SpendingKey | None = args.by
    last = args.last if args.last is not None else 0 if by else DEFAULT_REQUESTS
    requests = await ledger.newest_requests(reader, max(0, last), args.conversation)
    total = await reader.spending_sums("all", since=args.since or "", conversation=args.conversation)
    nothing = SpendingSum(key="", requests=0, unpriced=0, usage=Usage(), cost_usd=0.0)
    return CacheUsageReport(
        requests=requests,
        expected=[ledger.expected_usage(one.account.blocks) for one in requests],
        total=total[0] if total else nothing,
        by=by,
        sums=await reader.spending_sums(by, since=args.since or "", conversation=args.conversation) if by else [],
    )


def _format_cache_usage(usage_report: CacheUsageReport, args: argparse.Namespace) -> list[str]:
    lines = []
    for one in usage_report.requests:
        lines += [*ledger.format_request(one), ""]
    if usage_report.by and usage_report.sums:
        lines += [*ledger.format_spending_table(usage_report.by, usage_report.sums), ""]
        if usage_report.by == "sender":
            lines += [f"({ledger.SHARING_RULE})", ""]
    place = args.conversation or "all conversations"
    when = f"since {args.since}" if args.since else "since the log began"
    return [*lines, f"{place}, {when}: {ledger.format_spending(usage_report.total)}"]


def _parse_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day: write it as 2026-03-04") from None


_LOG_PAGE = 1_000
"""Entries in memory at once."""
_TAIL_POLL_S = 0.25
"""Seconds between two looks of `tail -f`; a look that finds nothing costs one index probe."""


def log_show_command(args: argparse.Namespace) -> int:
    """Handle `log show`."""

    async def run(reader: StoreReader) -> None:
        redactor, log = build_redactor(args.config), ArchivedLog(reader)
        last = 50 if args.last is None and args.after is None else args.last
        if last is None:
            pages = _iter_pages(log, args.after, kinds=args.kind, conversation=args.conversation, match=args.match)
            async for page in pages:
                _write_rows(sys.stdout, page, redactor, jsonl=args.jsonl)
        else:
            newest = await log.entry_rows(
                after=args.after or 0,
                kinds=args.kind,
                conversation=args.conversation,
                match=args.match,
                limit=max(0, last),
                newest=True,
            )
            _write_rows(sys.stdout, newest, redactor, jsonl=args.jsonl)

    return run_with_reader("log", args, run)


def log_tail_command(args: argparse.Namespace) -> int:
    """Handle `log tail`."""

    async def run(reader: StoreReader) -> None:
        redactor = build_redactor(args.config)
        page = await ArchivedLog(reader).entry_rows(limit=max(0, args.n), newest=True)
        last = page or (await reader.entry_rows(limit=1, newest=True) if args.n <= 0 else [])
        position = last[-1][0] if last else 0
        _write_rows(sys.stdout, page, redactor, jsonl=False)
        while args.follow:
            sys.stdout.flush()
            await asyncio.sleep(_TAIL_POLL_S)
            async for more in _iter_pages(reader, position):
                _write_rows(sys.stdout, more, redactor, jsonl=False)
                position = more[-1][0]

    return run_with_reader("log", args, run)


def log_export_command(args: argparse.Namespace) -> int:
    """Handle `log export`. A file is readable by its owner only, and never replaces another."""

    async def run(reader: StoreReader) -> None:
        if args.output is None:
            await _export_log(reader, sys.stdout, _no_progress)
            return
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as file, show_progress("exporting the log", "entries") as tell:
            await _export_log(reader, file, tell)

    return run_with_reader("log", args, run)


def why_command(args: argparse.Namespace) -> int:
    """Handle `why` and `log why`."""
    found = True

    async def run(reader: StoreReader) -> None:
        nonlocal found
        redactor, story = build_redactor(args.config), await explain_event(reader, args.seq, sees_everything=True)
        found = story is not None
        sys.stdout.writelines(f"{redactor(line)}\n" for line in story or [f"there is no entry {args.seq}"])

    return run_with_reader("why", args, run) or (0 if found else 2)


def log_rebuild_command(args: argparse.Namespace) -> int:
    """Handle `log rebuild`."""
    try:
        with show_progress("replaying the log", "entries") as tell:
            differences = asyncio.run(rebuild(resolve_store(args), progress=tell))
    except StoreError as error:
        return report_failure("log", error)
    for one in differences:
        print(f"{one.table}: differed from the log, {one.missing} missing and {one.extra} extra rows; repaired")
    if not differences:
        print("every table matches the log")
    return 1 if differences else 0


def _write_rows(out: TextIO, page: list[LogRow], redactor: Redactor, *, jsonl: bool) -> None:
    lines = map(row_to_line, page) if jsonl else [format_entry(one, redactor) for one in read_entries(page)]
    out.writelines(line + "\n" for line in lines)


async def _export_log(reader: StoreReader, out: TextIO, progress: ReportProgress) -> None:
    newest = await reader.entry_rows(limit=1, newest=True)
    last = newest[0][0] if newest else 0
    async for page in _iter_pages(ArchivedLog(reader), 0):
        _write_rows(out, page, Redactor(), jsonl=True)
        progress(page[-1][0], max(last, page[-1][0]))


def _no_progress(_done: int, _whole: int) -> None:
    """Show no progress: the output itself does on a terminal."""


async def _iter_pages(
    reader: StoreReader | ArchivedLog,
    after: int,
    *,
    kinds: list[str] | None = None,
    conversation: ConversationId | None = None,
    match: str | None = None,
) -> AsyncIterator[list[LogRow]]:
    while page := await reader.entry_rows(
        after=after, kinds=kinds, conversation=conversation, match=match, limit=_LOG_PAGE
    ):
        yield page
        after = page[-1][0]
