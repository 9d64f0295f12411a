"""`reverie log show|tail|why|export|rebuild`: the log for people and for programs.

Everything but `rebuild` reads beside a running gateway. Exit codes: 0 done, 1 `rebuild` found and mended a
difference, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TextIO, get_args

from gateway.cli_reading import ResolveStore, add_store_options, report_failure, resolve_store_path, run_with_reader
from gateway.events import ConversationId
from gateway.progress import ReportProgress, show_progress
from gateway.records import Fact
from gateway.redaction import Redactor
from gateway.store import LogEntry, LogRow, StoreError, StoreReader, rebuild
from gateway.store.lines import format_entry
from gateway.why import explain_event

ResolveRedactor = Callable[[Path], Redactor]
"""From a configuration directory to what knows its secrets. What people read is without them; as JSON the log is told
as it stands."""
_LOG_PAGE = 1_000
"""Entries in memory at once."""
_TAIL_POLL_S = 0.25
"""How often `tail -f` looks; a look that finds nothing costs one index probe."""


def add_log_parser(
    subparsers: Any,  # noqa: ANN401 - argparse's type has no public name
    resolve_store: ResolveStore,
    secrets: ResolveRedactor = lambda _: Redactor(),
) -> None:
    """Add `log` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    log = subparsers.add_parser("log", help="read, export and verify the log")
    commands = log.add_subparsers(dest="log_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        add_store_options(parser, resolve_store)
        parser.set_defaults(handler=handler, secrets=secrets)
        return parser

    shown = command("show", log_show_command, "print entries, oldest first")
    shown.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    shown.add_argument(
        "--kind", action="append", choices=fact_kinds(), metavar="K", help="only these kinds (repeatable)"
    )
    shown.add_argument("--match", metavar="TERMS", help="only what was said with these words (an FTS5 query)")
    shown.add_argument("--after", type=int, metavar="SEQ", help="everything after this entry")
    shown.add_argument("--last", type=int, metavar="N", help="the newest N only (default 50, without --after)")
    shown.add_argument("--jsonl", action="store_true", help="one JSON object per line")
    tailed = command("tail", log_tail_command, "print the newest entries, and follow")
    tailed.add_argument("-n", type=int, default=10, metavar="N", help="how many to begin with (default 10)")
    tailed.add_argument("-f", "--follow", action="store_true", help="go on until interrupted")
    exported = command("export", log_export_command, "print the entire log as JSON lines")
    exported.add_argument("--jsonl", action="store_true", help="one JSON object per line (the only form)")
    exported.add_argument("--output", type=Path, metavar="FILE", help="a new file instead of standard output")
    add_why_parser(commands, resolve_store, secrets)
    command("rebuild", log_rebuild_command, "verify every table against the log, and mend what differs")


def add_why_parser(
    subparsers: Any,  # noqa: ANN401 - argparse's type has no public name
    resolve_store: ResolveStore,
    secrets: ResolveRedactor = lambda _: Redactor(),
) -> None:
    """Add `explain_event`, which stands under `log` and by itself."""
    text = "tell what happened to an event, and which rule decided"
    parser: argparse.ArgumentParser = subparsers.add_parser("why", help=text, description=text)
    add_store_options(parser, resolve_store)
    parser.add_argument("seq", type=int, metavar="SEQ", help="the event's number, as `log show` tells it")
    parser.set_defaults(handler=why_command, secrets=secrets)


def fact_kinds() -> list[str]:
    """Every kind of entry there is."""
    tags = (get_args(fact.__annotations__["kind"]) for fact in get_args(Fact))
    return sorted({tag for group in tags for tag in group})


def log_show_command(args: argparse.Namespace) -> int:
    """Handler of `log show`."""

    async def run(reader: StoreReader) -> None:
        redact = _log_redactor(args)
        last = 50 if args.last is None and args.after is None else args.last
        if last is None:
            pages = _iter_pages(reader, args.after, kinds=args.kind, conversation=args.conversation, match=args.match)
        else:
            newest = await reader.entry_rows(
                after=args.after or 0,
                kinds=args.kind,
                conversation=args.conversation,
                match=args.match,
                limit=max(0, last),
                newest=True,
            )
            pages = _iter_single_page(newest)
        async for page in pages:
            _write_rows(sys.stdout, page, redact, jsonl=args.jsonl)

    return run_with_reader("log", args, run)


def log_tail_command(args: argparse.Namespace) -> int:
    """Handler of `log tail`."""

    async def run(reader: StoreReader) -> None:
        redact = _log_redactor(args)
        page = await reader.entry_rows(limit=max(0, args.n), newest=True)
        last = page or (await reader.entry_rows(limit=1, newest=True) if args.n <= 0 else [])
        seen = last[-1][0] if last else 0
        _write_rows(sys.stdout, page, redact, jsonl=False)
        while args.follow:
            sys.stdout.flush()
            await asyncio.sleep(_TAIL_POLL_S)
            async for more in _iter_pages(reader, seen):
                _write_rows(sys.stdout, more, redact, jsonl=False)
                seen = more[-1][0]

    return run_with_reader("log", args, run)


def log_export_command(args: argparse.Namespace) -> int:
    """Handler of `log export`. A file is made readable by its owner alone, and never replaces one."""

    async def run(reader: StoreReader) -> None:
        if args.output is None:
            await _export_log(reader, sys.stdout, _no_progress)
            return
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as file, show_progress("exporting the log", "entries") as tell:
            await _export_log(reader, file, tell)

    return run_with_reader("log", args, run)


def why_command(args: argparse.Namespace) -> int:
    """Handler of `explain_event` and `log why`."""
    found = True

    async def run(reader: StoreReader) -> None:
        nonlocal found
        redact, story = _log_redactor(args), await explain_event(reader, args.seq)
        found = story is not None
        sys.stdout.writelines(f"{redact(told)}\n" for told in story or [f"there is no entry {args.seq}"])

    return run_with_reader("why", args, run) or (0 if found else 2)


def log_rebuild_command(args: argparse.Namespace) -> int:
    """Handler of `log rebuild`."""
    try:
        with show_progress("replaying the log", "entries") as tell:
            differences = asyncio.run(rebuild(resolve_store_path(args), progress=tell))
    except StoreError as error:
        return report_failure("log", error)
    for one in differences:
        print(f"{one.table}: differed from the log, {one.missing} missing and {one.extra} extra rows; mended")
    if not differences:
        print("every table is what the log says")
    return 1 if differences else 0


def _row_as_json(row: LogRow) -> str:
    seq, at, kind, conversation, key, cause, body = row
    head = {"seq": seq, "at": at, "kind": kind, "conversation": conversation, "key": key, "cause": cause}
    fact = body if body.isascii() else json.dumps(json.loads(body))  # ASCII: safe on every terminal
    return f'{json.dumps(head)[:-1]}, "body": {fact}}}'


def _log_redactor(args: argparse.Namespace) -> Redactor:
    """What knows as much as was named."""
    made: Redactor = args.secrets(args.config) if args.config is not None else Redactor()
    return made


def _write_rows(out: TextIO, page: list[LogRow], redact: Redactor, *, jsonl: bool) -> None:
    out.writelines(
        (_row_as_json(row) if jsonl else format_entry(LogEntry.from_row(row), redact)) + "\n" for row in page
    )


async def _export_log(reader: StoreReader, out: TextIO, tell: ReportProgress) -> None:
    newest = await reader.entry_rows(limit=1, newest=True)
    last = newest[0][0] if newest else 0
    async for page in _iter_pages(reader, 0):
        _write_rows(out, page, Redactor(), jsonl=True)
        tell(page[-1][0], max(last, page[-1][0]))


def _no_progress(_done: int, _whole: int) -> None:
    """What is written to the terminal itself shows how far it is."""


async def _iter_pages(
    reader: StoreReader,
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


async def _iter_single_page(page: list[LogRow]) -> AsyncIterator[list[LogRow]]:
    yield page
