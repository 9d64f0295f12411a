"""`reverie journal [search|export]`: what an agent wrote down, and what people wrote into its journal.

Reads beside a running gateway. Exit codes: 0 done, 1 nothing was found, 2 nothing could be done (the reason stands on
stderr).
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from agent.journal import JournalEntry, format_entry, parse_journal
from gateway import own_files
from gateway.cli_reading import ResolveSettings, report_failure, run_with_reader
from gateway.hits import contains_all_words, match_all_terms, split_words
from gateway.notes import to_journal_entry
from gateway.records import NoteWritten
from gateway.settings import AgentConfig, Settings
from gateway.store import StoreReader
from gateway.store.lines import escape_unprintable

DONE, NOTHING = 0, 1
OWNER_SCOPE: Final = "owner"
"""The scope, in words, of what says none."""
_DEFAULT_ENTRIES: Final = 20
_JOURNAL_PAGE: Final = 500
_MAX_JOURNAL_BYTES: Final = 64_000_000
"""Of the journal's end."""


def add_journal_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `journal` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    text = "what an agent wrote down, the newest last"
    parser: argparse.ArgumentParser = subparsers.add_parser("journal", help=text, description=text)
    commands = parser.add_subparsers(dest="journal_command", metavar="COMMAND")
    _add_journal_options(parser, None)
    parser.add_argument(
        "-n", type=int, default=_DEFAULT_ENTRIES, metavar="N", help=f"how many (default {_DEFAULT_ENTRIES})"
    )
    parser.set_defaults(handler=journal_show_command, resolve_settings=resolve_settings, wrong=parser.error)
    text = "the entries that hold all of these words, whatever their case"
    searched = commands.add_parser("search", help=text, description=text)
    _add_journal_options(searched, argparse.SUPPRESS)
    searched.add_argument(
        "-n", type=int, default=argparse.SUPPRESS, metavar="N", help=f"how many (default {_DEFAULT_ENTRIES})"
    )
    searched.add_argument("words", nargs="+", metavar="WORD")
    searched.set_defaults(handler=journal_search_command)
    text = "all entries; what a terminal could obey is escaped unless it goes to a file"
    exported = commands.add_parser("export", help=text, description=text)
    _add_journal_options(exported, argparse.SUPPRESS)
    form = exported.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one array, an entry a line")
    form.add_argument("--markdown", action="store_true", help="as the journal's file has them (the default)")
    exported.add_argument("-o", "--output", type=Path, metavar="FILE", help="a new file instead of standard output")
    exported.set_defaults(handler=journal_export_command)


def _add_journal_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """What can stand in front of a command, and behind it."""
    parser.add_argument("--config", type=Path, default=default, metavar="DIR", help="the configuration directory")
    parser.add_argument("--agent", default=default, metavar="ID", help="which agent (default: the first)")
    text = f"only what is of this: public, {OWNER_SCOPE}, or a private place, e.g. irc.libera/nick"
    parser.add_argument("--scope", default=default, metavar="S", help=text)


def journal_show_command(args: argparse.Namespace) -> int:
    """Handler of `journal`."""

    async def run(reader: StoreReader, agent: AgentConfig) -> bool:
        _print_entries(await _read_newest_entries(reader, agent, args.scope, args.n, ()), "(there is nothing yet)")
        return True

    return _run_journal_command(args, run)


def journal_search_command(args: argparse.Namespace) -> int:
    """Handler of `journal search`."""

    async def run(reader: StoreReader, agent: AgentConfig) -> bool:
        terms = [term for word in args.words for term in word.split() if split_words(term)]
        found = await _read_newest_entries(reader, agent, args.scope, args.n, terms) if terms else []
        _print_entries(found, "(nothing was found)")
        return bool(found)

    return _run_journal_command(args, run)


def journal_export_command(args: argparse.Namespace) -> int:
    """Handler of `journal export`. A file is made readable by its owner alone, and never replaces one."""

    async def run(reader: StoreReader, agent: AgentConfig) -> bool:
        entries = await _read_newest_entries(reader, agent, args.scope, sys.maxsize, ())
        lines = (
            _entries_as_json(entries)
            if args.json
            else (line for one in entries for line in format_entry(one).split("\n")[:-1])
        )
        if args.output is None:
            sys.stdout.writelines(f"{escape_unprintable(line)}\n" for line in lines)
            return True
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
        return True

    return _run_journal_command(args, run)


async def _read_newest_entries(
    reader: StoreReader, agent: AgentConfig, scope: str | None, most: int, terms: Sequence[str]
) -> list[JournalEntry]:
    """At most so many, the newest last: notes of the log, and what people wrote into the file. Raises OSError."""
    words = [word for term in terms for word in split_words(term)]
    file = own_files.agent_directory(agent.workspace, reader.path, agent.id) / own_files.JOURNAL_FILE
    text = await asyncio.to_thread(own_files.read_tail, file, most=_MAX_JOURNAL_BYTES)
    by_hand = [
        one
        for one in parse_journal(text.decode("utf-8", "replace"))
        if not one.note_id and _matches_entry(one, scope, words)
    ]
    noted: list[JournalEntry] = []
    async for one in _iter_noted(reader, agent, match_all_terms(terms) or None):
        if len(noted) >= most:
            break
        if _matches_entry(one, scope, ()):  # the index has found the words
            noted.append(one)
    return sorted([*reversed(noted), *by_hand], key=lambda one: one.at)[max(0, len(noted) + len(by_hand) - most) :]


async def _iter_noted(reader: StoreReader, agent: AgentConfig, match: str | None) -> AsyncIterator[JournalEntry]:
    """Notes of the log, the newest first."""
    before = None
    while page := await reader.newest_entries(_JOURNAL_PAGE, before=before, kinds=["noted"], match=match):
        for one in reversed(page):
            if isinstance(one.fact, NoteWritten) and one.fact.agent == agent.id:
                yield to_journal_entry(one.fact, one)
        before = page[0].seq


def _matches_entry(one: JournalEntry, scope: str | None, words: Sequence[str]) -> bool:
    return scope in (None, one.scope or OWNER_SCOPE) and contains_all_words(f"{one.title}\n{one.text}", words)


def _print_entries(entries: Sequence[JournalEntry], nothing: str) -> None:
    """For people: a line of what each is, then what it says."""
    lines = [] if entries else [nothing]
    for one in entries:
        by = "" if one.note_id else " (by hand)"
        lines.append(f"{one.at:%Y-%m-%d %H:%M} UTC  {one.scope or OWNER_SCOPE}{by}  {one.title}".rstrip())
        lines += [*(f"    {line}".rstrip() for line in one.text.splitlines()), ""]
    sys.stdout.writelines(f"{escape_unprintable(line)}\n" for line in lines)


def _entries_as_json(entries: Sequence[JournalEntry]) -> Iterator[str]:
    """One array; ASCII, hence safe on every terminal."""
    yield "["
    for place, one in enumerate(entries):
        told = {"at": one.at.isoformat(), "scope": one.scope, "title": one.title, "text": one.text, "note": one.note_id}
        yield json.dumps(told) + ("," if place < len(entries) - 1 else "")
    yield "]"


def _run_journal_command(args: argparse.Namespace, run: Callable[[StoreReader, AgentConfig], Awaitable[bool]]) -> int:
    """Turn what a person can cause into exit codes."""
    if args.config is None:
        args.wrong("the following arguments are required: --config")
    settings: Settings = args.resolve_settings(args.config)
    agents = {agent.id: agent for agent in settings.agents}
    name = args.agent or settings.agents[0].id
    if name not in agents:
        return report_failure("journal", ValueError(f"there is no agent {name}; there are: {', '.join(agents)}"))
    found = True

    async def opened(reader: StoreReader) -> None:
        nonlocal found
        found = await run(reader, agents[name])

    args.store = settings.store.path
    return run_with_reader("journal", args, opened) or (DONE if found else NOTHING)
