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

from gateway.cli_reading import ResolveStore, add_store, reading, refused, store_path
from gateway.events import ConversationId
from gateway.progress import Tell, progress
from gateway.records import Fact
from gateway.redaction import Redactor
from gateway.store import LogRow, Reader, Stored, StoreError, rebuild
from gateway.store.lines import line
from gateway.why import why

ResolveSecrets = Callable[[Path], Redactor]
"""From a configuration directory to what knows its secrets. What people read is without them; as JSON the log is told
as it stands."""
_PAGE = 1_000
"""Entries in memory at once."""
_POLL_S = 0.25
"""How often `tail -f` looks; a look that finds nothing costs one index probe."""


def add_parser(subparsers: Any, resolve_store: ResolveStore, secrets: ResolveSecrets = lambda _: Redactor()) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `log` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    log = subparsers.add_parser("log", help="read, export and verify the log")
    commands = log.add_subparsers(dest="log_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        add_store(parser, resolve_store)
        parser.set_defaults(handler=handler, secrets=secrets)
        return parser

    shown = command("show", show, "print entries, oldest first")
    shown.add_argument("--conversation", metavar="X", help="only this one, e.g. irc.libera/#python")
    shown.add_argument("--kind", action="append", choices=kinds(), metavar="K", help="only these kinds (repeatable)")
    shown.add_argument("--match", metavar="TERMS", help="only what was said with these words (an FTS5 query)")
    shown.add_argument("--after", type=int, metavar="SEQ", help="everything after this entry")
    shown.add_argument("--last", type=int, metavar="N", help="the newest N only (default 50, without --after)")
    shown.add_argument("--jsonl", action="store_true", help="one JSON object per line")
    tailed = command("tail", tail, "print the newest entries, and follow")
    tailed.add_argument("-n", type=int, default=10, metavar="N", help="how many to begin with (default 10)")
    tailed.add_argument("-f", "--follow", action="store_true", help="go on until interrupted")
    exported = command("export", export, "print the entire log as JSON lines")
    exported.add_argument("--jsonl", action="store_true", help="one JSON object per line (the only form)")
    exported.add_argument("--output", type=Path, metavar="FILE", help="a new file instead of standard output")
    add_why(commands, resolve_store, secrets)
    command("rebuild", rebuild_command, "verify every table against the log, and mend what differs")


def add_why(subparsers: Any, resolve_store: ResolveStore, secrets: ResolveSecrets = lambda _: Redactor()) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `why`, which stands under `log` and by itself."""
    text = "tell what happened to an event, and which rule decided"
    parser: argparse.ArgumentParser = subparsers.add_parser("why", help=text, description=text)
    add_store(parser, resolve_store)
    parser.add_argument("seq", type=int, metavar="SEQ", help="the event's number, as `log show` tells it")
    parser.set_defaults(handler=why_command, secrets=secrets)


def kinds() -> list[str]:
    """Every kind of entry there is."""
    tags = (get_args(fact.__annotations__["kind"]) for fact in get_args(Fact))
    return sorted({tag for group in tags for tag in group})


def show(args: argparse.Namespace) -> int:
    """Handler of `log show`."""

    async def run(reader: Reader) -> None:
        redact = _redactor(args)
        last = 50 if args.last is None and args.after is None else args.last
        if last is None:
            pages = _pages(reader, args.after, kinds=args.kind, conversation=args.conversation, match=args.match)
        else:
            newest = await reader.entry_rows(
                after=args.after or 0,
                kinds=args.kind,
                conversation=args.conversation,
                match=args.match,
                limit=max(0, last),
                newest=True,
            )
            pages = _one_page(newest)
        async for page in pages:
            _write(sys.stdout, page, redact, jsonl=args.jsonl)

    return reading("log", args, run)


def tail(args: argparse.Namespace) -> int:
    """Handler of `log tail`."""

    async def run(reader: Reader) -> None:
        redact = _redactor(args)
        page = await reader.entry_rows(limit=max(0, args.n), newest=True)
        last = page or (await reader.entry_rows(limit=1, newest=True) if args.n <= 0 else [])
        seen = last[-1][0] if last else 0
        _write(sys.stdout, page, redact, jsonl=False)
        while args.follow:
            sys.stdout.flush()
            await asyncio.sleep(_POLL_S)
            async for more in _pages(reader, seen):
                _write(sys.stdout, more, redact, jsonl=False)
                seen = more[-1][0]

    return reading("log", args, run)


def export(args: argparse.Namespace) -> int:
    """Handler of `log export`. A file is made readable by its owner alone, and never replaces one."""

    async def run(reader: Reader) -> None:
        if args.output is None:
            await _export(reader, sys.stdout, _unseen)
            return
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as file, progress("exporting the log", "entries") as tell:
            await _export(reader, file, tell)

    return reading("log", args, run)


def why_command(args: argparse.Namespace) -> int:
    """Handler of `why` and `log why`."""
    found = True

    async def run(reader: Reader) -> None:
        nonlocal found
        redact, story = _redactor(args), await why(reader, args.seq)
        found = story is not None
        sys.stdout.writelines(f"{redact(told)}\n" for told in story or [f"there is no entry {args.seq}"])

    return reading("why", args, run) or (0 if found else 2)


def rebuild_command(args: argparse.Namespace) -> int:
    """Handler of `log rebuild`."""
    try:
        with progress("replaying the log", "entries") as tell:
            differences = asyncio.run(rebuild(store_path(args), progress=tell))
    except StoreError as error:
        return refused("log", error)
    for one in differences:
        print(f"{one.table}: differed from the log, {one.missing} missing and {one.extra} extra rows; mended")
    if not differences:
        print("every table is what the log says")
    return 1 if differences else 0


def _json_line(row: LogRow) -> str:
    seq, at, kind, conversation, key, cause, body = row
    head = {"seq": seq, "at": at, "kind": kind, "conversation": conversation, "key": key, "cause": cause}
    fact = body if body.isascii() else json.dumps(json.loads(body))  # ASCII: safe on every terminal
    return f'{json.dumps(head)[:-1]}, "body": {fact}}}'


def _redactor(args: argparse.Namespace) -> Redactor:
    """What knows as much as was named."""
    made: Redactor = args.secrets(args.config) if args.config is not None else Redactor()
    return made


def _write(out: TextIO, page: list[LogRow], redact: Redactor, *, jsonl: bool) -> None:
    out.writelines((_json_line(row) if jsonl else line(Stored.from_row(row), redact)) + "\n" for row in page)


async def _export(reader: Reader, out: TextIO, tell: Tell) -> None:
    newest = await reader.entry_rows(limit=1, newest=True)
    last = newest[0][0] if newest else 0
    async for page in _pages(reader, 0):
        _write(out, page, Redactor(), jsonl=True)
        tell(page[-1][0], max(last, page[-1][0]))


def _unseen(_done: int, _whole: int) -> None:
    """What is written to the terminal itself shows how far it is."""


async def _pages(
    reader: Reader,
    after: int,
    *,
    kinds: list[str] | None = None,
    conversation: ConversationId | None = None,
    match: str | None = None,
) -> AsyncIterator[list[LogRow]]:
    while page := await reader.entry_rows(
        after=after, kinds=kinds, conversation=conversation, match=match, limit=_PAGE
    ):
        yield page
        after = page[-1][0]


async def _one_page(page: list[LogRow]) -> AsyncIterator[list[LogRow]]:
    yield page
