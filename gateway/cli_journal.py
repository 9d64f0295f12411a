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

from agent.journal import Entry, parse, written
from gateway import own_files
from gateway.cli_reading import ResolveSettings, reading, refused
from gateway.hits import all_of, holds, words_of
from gateway.notes import entry_of
from gateway.records import Noted
from gateway.settings import AgentConfig, Settings
from gateway.store import Reader
from gateway.store.lines import printable

DONE, NOTHING = 0, 1
OWNER: Final = "owner"
"""The scope, in words, of what says none."""
_SHOWN: Final = 20
_PAGE: Final = 500
_FILE_BYTES: Final = 64_000_000
"""Of the journal's end."""


def add_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `journal` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    text = "what an agent wrote down, the newest last"
    parser: argparse.ArgumentParser = subparsers.add_parser("journal", help=text, description=text)
    commands = parser.add_subparsers(dest="journal_command", metavar="COMMAND")
    _options(parser, None)
    parser.add_argument("-n", type=int, default=_SHOWN, metavar="N", help=f"how many (default {_SHOWN})")
    parser.set_defaults(handler=show, resolve_settings=resolve_settings, wrong=parser.error)
    text = "the entries that hold all of these words, whatever their case"
    searched = commands.add_parser("search", help=text, description=text)
    _options(searched, argparse.SUPPRESS)
    searched.add_argument("-n", type=int, default=argparse.SUPPRESS, metavar="N", help=f"how many (default {_SHOWN})")
    searched.add_argument("words", nargs="+", metavar="WORD")
    searched.set_defaults(handler=search)
    text = "all entries; what a terminal could obey is escaped unless it goes to a file"
    exported = commands.add_parser("export", help=text, description=text)
    _options(exported, argparse.SUPPRESS)
    form = exported.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one array, an entry a line")
    form.add_argument("--markdown", action="store_true", help="as the journal's file has them (the default)")
    exported.add_argument("-o", "--output", type=Path, metavar="FILE", help="a new file instead of standard output")
    exported.set_defaults(handler=export)


def _options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """What can stand in front of a command, and behind it."""
    parser.add_argument("--config", type=Path, default=default, metavar="DIR", help="the configuration directory")
    parser.add_argument("--agent", default=default, metavar="ID", help="which agent (default: the first)")
    text = f"only what is of this: public, {OWNER}, or a private place, e.g. irc.libera/nick"
    parser.add_argument("--scope", default=default, metavar="S", help=text)


def show(args: argparse.Namespace) -> int:
    """Handler of `journal`."""

    async def run(reader: Reader, agent: AgentConfig) -> bool:
        _show(await _newest(reader, agent, args.scope, args.n, ()), "(there is nothing yet)")
        return True

    return _run(args, run)


def search(args: argparse.Namespace) -> int:
    """Handler of `journal search`."""

    async def run(reader: Reader, agent: AgentConfig) -> bool:
        terms = [term for word in args.words for term in word.split() if words_of(term)]
        found = await _newest(reader, agent, args.scope, args.n, terms) if terms else []
        _show(found, "(nothing was found)")
        return bool(found)

    return _run(args, run)


def export(args: argparse.Namespace) -> int:
    """Handler of `journal export`. A file is made readable by its owner alone, and never replaces one."""

    async def run(reader: Reader, agent: AgentConfig) -> bool:
        entries = await _newest(reader, agent, args.scope, sys.maxsize, ())
        lines = _json(entries) if args.json else (line for one in entries for line in written(one).split("\n")[:-1])
        if args.output is None:
            sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
            return True
        opened = os.open(args.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
        return True

    return _run(args, run)


async def _newest(
    reader: Reader, agent: AgentConfig, scope: str | None, most: int, terms: Sequence[str]
) -> list[Entry]:
    """At most so many, the newest last: notes of the log, and what people wrote into the file. Raises OSError."""
    words = [word for term in terms for word in words_of(term)]
    file = own_files.own(agent.workspace, reader.path, agent.id) / own_files.JOURNAL
    text = await asyncio.to_thread(own_files.tail, file, most=_FILE_BYTES)
    by_hand = [one for one in parse(text.decode("utf-8", "replace")) if not one.note_id and _fits(one, scope, words)]
    noted: list[Entry] = []
    async for one in _noted(reader, agent, all_of(terms) or None):
        if len(noted) >= most:
            break
        if _fits(one, scope, ()):  # the index has found the words
            noted.append(one)
    return sorted([*reversed(noted), *by_hand], key=lambda one: one.at)[max(0, len(noted) + len(by_hand) - most) :]


async def _noted(reader: Reader, agent: AgentConfig, match: str | None) -> AsyncIterator[Entry]:
    """Notes of the log, the newest first."""
    before = None
    while page := await reader.newest_entries(_PAGE, before=before, kinds=["noted"], match=match):
        for one in reversed(page):
            if isinstance(one.fact, Noted) and one.fact.agent == agent.id:
                yield entry_of(one.fact, one)
        before = page[0].seq


def _fits(one: Entry, scope: str | None, words: Sequence[str]) -> bool:
    return scope in (None, one.scope or OWNER) and holds(f"{one.title}\n{one.text}", words)


def _show(entries: Sequence[Entry], nothing: str) -> None:
    """For people: a line of what each is, then what it says."""
    lines = [] if entries else [nothing]
    for one in entries:
        by = "" if one.note_id else " (by hand)"
        lines.append(f"{one.at:%Y-%m-%d %H:%M} UTC  {one.scope or OWNER}{by}  {one.title}".rstrip())
        lines += [*(f"    {line}".rstrip() for line in one.text.splitlines()), ""]
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def _json(entries: Sequence[Entry]) -> Iterator[str]:
    """One array; ASCII, hence safe on every terminal."""
    yield "["
    for place, one in enumerate(entries):
        told = {"at": one.at.isoformat(), "scope": one.scope, "title": one.title, "text": one.text, "note": one.note_id}
        yield json.dumps(told) + ("," if place < len(entries) - 1 else "")
    yield "]"


def _run(args: argparse.Namespace, run: Callable[[Reader, AgentConfig], Awaitable[bool]]) -> int:
    """Turn what a person can cause into exit codes."""
    if args.config is None:
        args.wrong("the following arguments are required: --config")
    settings: Settings = args.resolve_settings(args.config)
    agents = {agent.id: agent for agent in settings.agents}
    name = args.agent or settings.agents[0].id
    if name not in agents:
        return refused("journal", ValueError(f"there is no agent {name}; there are: {', '.join(agents)}"))
    found = True

    async def opened(reader: Reader) -> None:
        nonlocal found
        found = await run(reader, agents[name])

    args.store = settings.store.path
    return reading("journal", args, opened) or (DONE if found else NOTHING)
