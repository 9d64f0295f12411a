"""`reverie memory show|diff|undo`: what an agent knows for good, what the last dream changed, and how to take it back.

Works beside a running gateway. Exit codes: 0 done, 1 `memory_undo_command` changed nothing (the reason stands on
stderr), 2 nothing could be done (the same).
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from gateway import own_files
from gateway.cli_reading import ResolveSettings, report_failure
from gateway.clock import SystemClock
from gateway.memory import (
    UNDONE,
    DreamRecord,
    MemoryFile,
    MemoryStore,
    find_last_effective_dream,
    format_diff,
    load_dreams,
)
from gateway.settings import AgentConfig, Settings
from gateway.store import Store, StoreError, StoreInUse
from gateway.store.lines import escape_unprintable

_FILE_ONLY_NOTICE: Final = "The gateway is running, so only the file was changed: the next dream begins with it."


class _MemoryUnchanged(Exception):
    """Nothing was done; the message says why."""


def add_memory_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `memory` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("memory", help="what an agent knows for good, and what dreams made of it")
    commands = parser.add_subparsers(dest="memory_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        made.add_argument("--agent", metavar="ID", help="which agent (default: the first)")
        made.set_defaults(handler=handler, resolve_settings=resolve_settings)
        return made

    command("show", memory_show_command, "print MEMORY.md")
    command("diff", memory_diff_command, "what the last dream changed")
    undoing = command("undo", memory_undo_command, "put back what MEMORY.md said before the last dream")
    undoing.add_argument("--force", action="store_true", help="also if somebody has edited it since")


def memory_show_command(args: argparse.Namespace) -> int:
    """Handler of `memory show`."""

    def run(settings: Settings, agent: AgentConfig) -> None:
        text = _memory_file(settings, agent).read()
        _print_lines([f"({_memory_file(settings, agent).path})", "", *(text.splitlines() or ["(empty)"])])

    return _run_memory_command(args, run)


def memory_diff_command(args: argparse.Namespace) -> int:
    """Handler of `memory diff`."""

    def run(settings: Settings, agent: AgentConfig) -> None:
        last = find_last_effective_dream(asyncio.run(_read_dreams(settings, agent)))
        if last is None:
            raise _MemoryUnchanged(f"{agent.id} has not dreamt yet, or all of it was undone")
        changed = format_diff(last.fact.before, last.fact.after)
        _print_lines(
            [f"({agent.id} dreamt at {last.at:%Y-%m-%d %H:%M} UTC)", "", *(changed.splitlines() or ["(no change)"])]
        )

    return _run_memory_command(args, run)


def memory_undo_command(args: argparse.Namespace) -> int:
    """Handler of `memory undo`. Again and again, it goes back dream by dream."""

    def run(settings: Settings, agent: AgentConfig) -> None:
        _print_lines(asyncio.run(_undo_dream(settings, agent, force=args.force)))

    return _run_memory_command(args, run)


async def _undo_dream(settings: Settings, agent: AgentConfig, *, force: bool) -> list[str]:
    file, found = _memory_file(settings, agent), await _read_dreams(settings, agent)
    try:
        store = await Store.open(settings.store.path, SystemClock())
    except StoreInUse:
        last = _find_undoable_dream(found, file.read(), force=force)
        file.write(last.fact.before)
        return [f"{file.path} says again what it said before {last.at:%Y-%m-%d %H:%M} UTC.", _FILE_ONLY_NOTICE]
    async with store:
        memory = MemoryStore(store, SystemClock(), lambda _: file.path.parent)
        await memory.finish_write(agent.id)
        before = await memory.read(agent.id)
        last = _find_undoable_dream(found, before, force=force)
        upto = found[0].fact.upto  # what was noted is not dreamt of again: it was not wanted like that
        await memory.rewrite(agent.id, before=before, after=last.fact.before, upto=upto, reason=UNDONE)
    return [f"{file.path} says again what it said before {last.at:%Y-%m-%d %H:%M} UTC."]


def _find_undoable_dream(found: list[DreamRecord], text: str, *, force: bool) -> DreamRecord:
    last = find_last_effective_dream(found)
    if last is None:
        raise _MemoryUnchanged("there is no dream to undo")
    if text == last.fact.before:
        raise _MemoryUnchanged("the last dream changed nothing, or is undone already")
    if text != last.fact.after and not force:
        raise _MemoryUnchanged("MEMORY.md was edited since the last dream: undo it with --force, which drops the edits")
    return last


async def _read_dreams(settings: Settings, agent: AgentConfig) -> list[DreamRecord]:
    async with await Store.open_readonly(settings.store.path) as reader:
        return await load_dreams(reader, agent.id)


def _memory_file(settings: Settings, agent: AgentConfig) -> MemoryFile:
    directory = own_files.agent_directory(agent.workspace, settings.store.path, agent.id)
    return MemoryFile(settings.store.path, directory, agent.id)


def _run_memory_command(args: argparse.Namespace, run: Callable[[Settings, AgentConfig], None]) -> int:
    """Turn what a person can cause into exit codes."""
    settings: Settings = args.resolve_settings(args.config)
    agents = {agent.id: agent for agent in settings.agents}
    name = args.agent or settings.agents[0].id
    if name not in agents:
        return report_failure("memory", ValueError(f"there is no agent {name}; there are: {', '.join(agents)}"))
    try:
        run(settings, agents[name])
    except _MemoryUnchanged as reason:
        report_failure("memory", reason)
        return 1
    except (StoreError, OSError) as error:
        return report_failure("memory", error)
    return 0


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{escape_unprintable(line)}\n" for line in lines)
