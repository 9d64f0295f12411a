"""Commands that read the log. All of them except `log rebuild` read beside a running gateway.

Exit codes: 0 done; 2 nothing could be done (the reason is on stderr). In addition 1 for `log
rebuild`: a difference was found and corrected.
"""

import argparse
import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from gateway.command_line import (
    add_command,
    build_redactor,
    drop_output,
    load_settings,
    report_failure,
)
from gateway.core.facts import fact_kinds
from gateway.core.logging import show_progress
from gateway.core.redaction import Redactor
from gateway.store import (
    LogRow,
    Store,
    StoreError,
    StoreLocation,
    StoreReader,
    rebuild,
    store_location,
)
from gateway.store.archive import read_rows, row_to_line, whole_since
from gateway.store.format import format_entry
from gateway.store.types import read_entries


def add_commands(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `log` to a command line."""
    log = subparsers.add_parser("log", help="read, export and verify the log")
    commands = log.add_subparsers(dest="log_command", required=True, metavar="COMMAND")

    def command(
        name: str, handler: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        return add_command(commands, name, text, handler, where="config or store")

    text = "print entries, oldest first"
    show = add_command(commands, "show", text, log_show_command, where="config or store")
    text = "a file of an old month beside the store (STORE.2026-03.jsonl.gz), in place of the log"
    show.add_argument("file", nargs="?", type=Path, metavar="FILE", help=text)
    show.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    show.add_argument(
        "--kind",
        action="append",
        choices=sorted(fact_kinds()),
        metavar="K",
        help="only these kinds (repeatable)",
    )
    show.add_argument(
        "--match", metavar="TERMS", help="only messages with these words (an FTS5 query)"
    )
    show.add_argument("--after", type=int, metavar="SEQ", help="only entries after this one")
    show.add_argument(
        "--last", type=int, metavar="N", help="the newest N only (default 50, without --after)"
    )
    show.add_argument("--jsonl", action="store_true", help="one JSON object per line")
    tailed = command("tail", log_tail_command, "print the newest entries, and follow")
    tailed.add_argument(
        "-n", type=int, default=10, metavar="N", help="number of entries to start with (default 10)"
    )
    tailed.add_argument("-f", "--follow", action="store_true", help="continue until interrupted")
    exported = command("export", log_export_command, "print the entire log as JSON lines")
    exported.add_argument(
        "--jsonl", action="store_true", help="one JSON object per line (the only form)"
    )
    exported.add_argument(
        "--output", type=Path, metavar="FILE", help="a new file instead of standard output"
    )
    command(
        "rebuild", log_rebuild_command, "compare every table with the log, and repair differences"
    )


_TAIL_POLL_S = 0.25
"""Seconds between two looks of `tail -f`; a look that finds nothing costs one index probe."""


def log_show_command(args: argparse.Namespace) -> int:
    """Handle `log show`."""
    last = 50 if args.last is None and args.after is None else args.last
    if args.file is not None:
        return _show_file(args, last)

    async def run(reader: StoreReader) -> None:
        await _tell_beginning(reader)
        write = partial(_write_rows, sys.stdout, build_redactor(args.config), jsonl=args.jsonl)
        chosen = {"kinds": args.kind, "conversation": args.conversation, "match": args.match}
        if last is None:
            await _write_from(reader, args.after, write, **chosen)
        else:
            after, limit = args.after or 0, max(0, last)
            write(await reader.entry_rows(after=after, limit=limit, newest=True, **chosen))

    return _run(args, run)


def _show_file(args: argparse.Namespace, last: int | None) -> int:
    if args.match is not None:
        return report_failure("log", ValueError("--match searches the log; in a file, use zgrep"))
    try:
        found = (
            row
            for row in read_rows(args.file)
            if row[0] > (args.after or 0)
            and (args.kind is None or row[2] in args.kind)
            and args.conversation in (None, row[3])
        )
        redactor = build_redactor(args.config)
        for row in found if last is None else deque(found, maxlen=max(0, last)):
            _write_rows(sys.stdout, redactor, [row], jsonl=args.jsonl)
    except StoreError as error:
        return report_failure("log", error)
    return 0


def _run(args: argparse.Namespace, run: Callable[[StoreReader], Coroutine[Any, Any, None]]) -> int:
    async def opened() -> None:
        async with await Store.open_readonly(_find_store(args)) as reader:
            await run(reader)
            sys.stdout.flush()

    try:
        asyncio.run(opened())
    except BrokenPipeError:
        drop_output()
    except KeyboardInterrupt:  # the usual end of `tail -f`
        pass
    except (StoreError, OSError) as error:
        return report_failure("log", error)
    return 0


def _find_store(args: argparse.Namespace) -> StoreLocation:
    path: Path | None = args.store
    return store_location(load_settings(args.config).store) if path is None else path


async def _tell_beginning(reader: StoreReader) -> None:
    """Say on stderr from when on the log is whole, if old months have left it."""
    if (since := await whole_since(reader)) is not None:
        sys.stderr.write(
            f"the log is whole since {since:%Y-%m-%d}; older months: reverie log show "
            f"{reader.path}.YYYY-MM.jsonl.gz\n"
        )


def log_tail_command(args: argparse.Namespace) -> int:
    """Handle `log tail`."""

    async def run(reader: StoreReader) -> None:
        write = partial(_write_rows, sys.stdout, build_redactor(args.config), jsonl=False)
        position: int = await reader.last_position()
        write(await reader.entry_rows(limit=max(0, args.n), newest=True, before=position + 1))
        while args.follow:
            sys.stdout.flush()
            await asyncio.sleep(_TAIL_POLL_S)
            position = await _write_from(reader, position, write)

    return _run(args, run)


def log_export_command(args: argparse.Namespace) -> int:
    """Handle `log export`. A file is readable by its owner only, and never replaces another."""

    async def run(reader: StoreReader) -> None:
        await _tell_beginning(reader)
        if args.output is None:
            await _write_from(reader, 0, partial(_write_rows, sys.stdout, Redactor(), jsonl=True))
            return
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        tell = show_progress("exporting the log", "entries")
        with os.fdopen(opened, "w", encoding="ascii") as file:
            last = await reader.last_position()

            def write(page: list[LogRow]) -> None:
                _write_rows(file, Redactor(), page, jsonl=True)
                tell(page[-1][0], max(last, page[-1][0]))

            await _write_from(reader, 0, write)

    return _run(args, run)


def log_rebuild_command(args: argparse.Namespace) -> int:
    """Handle `log rebuild`."""
    try:
        tell = show_progress("replaying the log", "entries")
        differences = asyncio.run(rebuild(_find_store(args), progress=tell))
    except StoreError as error:
        return report_failure("log", error)
    for one in differences:
        print(
            f"{one.table}: differed from the log, {one.missing} missing and {one.extra} extra "
            "rows; repaired"
        )
    if not differences:
        print("every table matches the log")
    return 1 if differences else 0


def _write_rows(out: TextIO, redactor: Redactor, page: list[LogRow], *, jsonl: bool) -> None:
    lines = (
        map(row_to_line, page)
        if jsonl
        else [format_entry(one, redactor) for one in read_entries(page)]
    )
    out.writelines(line + "\n" for line in lines)


async def _write_from(
    reader: StoreReader,
    after: int,
    write: Callable[[list[LogRow]], None],
    **chosen: Any,  # noqa: ANN401 - of `entry_rows`
) -> int:
    while page := await reader.entry_rows(after=after, limit=1_000, **chosen):
        write(page)
        after = page[-1][0]
    return after
