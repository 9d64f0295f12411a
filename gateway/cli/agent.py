"""Commands about the agents: context, dmn, journal, memory, notifications, reminders.

Exit codes: 0 done; 2 nothing could be done (the reason is on stderr). 1 for `context` and `dmn`: not carried out (the
answer says why); for `journal`: nothing was found; for `memory undo`: nothing was changed (the reason is on stderr).

`context` and `dmn` ask the running gateway. Without one they change the store through the same functions, effective
from the next start; `dmn status` and `dmn debug` then show the saved state, and `context compact` needs a running
gateway, because it calls the model. The other commands work beside a running gateway.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter

from agent import signals
from agent.journal import JournalEntry, format_entry, parse_journal
from gateway.cli.options import (
    ResolveSettings,
    ResolveStore,
    add_store_options,
    current_user,
    print_answer,
    report_failure,
    run_with_reader,
)
from gateway.commands import notifications
from gateway.commands.notifications import URGENCY_WORDS, RuleStatistics, TypeThreshold
from gateway.config.models import AgentConfig, Settings
from gateway.context.journal import to_journal_entry
from gateway.context.memory import (
    UNDONE,
    DreamRecord,
    MemoryFile,
    MemoryStore,
    find_last_effective_dream,
    format_diff,
    load_dreams,
)
from gateway.context.schedule import describe_schedule_text
from gateway.context.search import contains_all_words, match_all_terms, split_words
from gateway.core.clock import SystemClock
from gateway.core.control_messages import ContextRequest, ControlResponse, DmnAction, DmnRequest
from gateway.core.control_socket import (
    ControlError,
    GatewayNotRunning,
    SocketPathTooLong,
    send_control_request,
    socket_path,
)
from gateway.core.events import ConversationId, PresenceLevel
from gateway.core.facts import NORMAL, Judgement, NoteWritten, inner_conversation
from gateway.core.format import format_duration, format_table
from gateway.core.private_files import JOURNAL_FILE, agent_directory, read_tail
from gateway.core.text_safety import escape_unprintable
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat
from gateway.runtime.dmn_admin import (
    QUERY_ORDERS,
    SavedDmn,
    answer_order,
    build_directive_facts,
    load_dmn_states,
    parse_until,
)
from gateway.runtime.rewind import MOST_EXCHANGES, RewindAction, parse_count
from gateway.store import (
    NewEntry,
    NotificationTypeCount,
    PendingCounts,
    PendingReminder,
    Store,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreReader,
)
from gateway.stream import attention, policies
from gateway.stream.attention import AttentionOverrideStore
from gateway.stream.policies import build_attention_policy

CONTEXT_HELP: dict[RewindAction, str] = {
    "new": "begin afresh: nothing of what was said there until now is seen any more",
    "retry": "answer once more what was answered last there",
    "rewind": "take back the newest exchanges there",
    "compact": "make what is seen of it smaller, now",
}


def add_context_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `context` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("context", help="change what an agent sees of a conversation")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for what, text in CONTEXT_HELP.items():
        command: argparse.ArgumentParser = commands.add_parser(what, help=text, description=text)
        command.add_argument("conversation", metavar="CONVERSATION", help="as the log has it, e.g. irc.libera/#python")
        if what == "rewind":
            command.add_argument("count", nargs="?", default="1", metavar="N", help="how many (default 1)")
        command.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        command.set_defaults(handler=context_command, resolve_settings=resolve_settings)


def context_command(args: argparse.Namespace) -> int:
    """Handle the subcommands of `context`."""
    settings: Settings = args.resolve_settings(args.config)
    count = parse_count(getattr(args, "count", "1"))
    if count is None:
        return report_failure("context", ValueError(f"N is a number from 1 to {MOST_EXCHANGES}"))
    place = ConversationId(args.conversation)
    try:
        if not settings.store.path.exists():  # opening would create one
            return report_failure("context", FileNotFoundError(f"there is no store at {settings.store.path}"))
        order = ContextRequest(
            what=args.what, conversation=place, by=f"{current_user()} at the command line", count=count
        )
        answer = asyncio.run(_send_context_order(settings.store.path, order))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("context", error)
    return print_answer(answer)


async def _send_context_order(store: Path, order: ContextRequest) -> ControlResponse:
    try:
        return await send_control_request(socket_path(store), order)
    except (GatewayNotRunning, SocketPathTooLong):
        pass
    if order.what == "compact":
        return ControlResponse(ok=False, lines=("no gateway is running, and only a running one folds: start it",))
    return await _apply_context_order(store, order)


async def _apply_context_order(path: Path, order: ContextRequest) -> ControlResponse:
    """Apply the order to the store, under its lock."""
    from gateway.runtime.rewind import Rewinder  # noqa: PLC0415 - as below
    from gateway.tools.platform import ConversationLocks  # noqa: PLC0415 - the other commands start faster without it

    async with await Store.open(path, SystemClock()) as store, asyncio.TaskGroup() as tasks:
        rewinds = Rewinder(
            store=store,
            clock=SystemClock(),
            room_locks=ConversationLocks(),
            agents=_NoRunningAgents(),
            tasks=tasks,
        )
        answer = await rewinds.handle_order(order)
    if not answer.ok:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


class _NoRunningAgents:
    """Stand-in for the running agents: the next start reads the log and handles what is unread."""

    def forget_view(self, conversation: ConversationId) -> None:
        """Do nothing: no view is kept."""

    def notice(self, arrival: object) -> None:
        """Do nothing: the next start notices it."""

    async def compact(self, conversation: ConversationId) -> str:
        raise NotImplementedError(conversation)


DMN_HELP: dict[DmnAction, str] = {
    "status": "what each agent is doing, and what it may still do today",
    "pause": "no autonomous turns, until an owner or admin speaks to the agent, or it is woken",
    "wake": "end rest, pause, quiet and off",
    "sleep": "rest until a time, or until it is woken",
    "quiet": "start nothing below urgent for a time (default 1h)",
    "rest": "leave off what it is doing by itself",
    "off": "no autonomous turns, also after a restart, until it is woken",
    "presence": "how near the people are, whatever their words show, until auto or the end of the process",
    "debug": "what would start next, and what it is blocked by",
}


def add_dmn_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `dmn` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("dmn", help="see and steer what the agents do by themselves")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for what in get_args(DmnAction):
        command: argparse.ArgumentParser = commands.add_parser(what, help=DMN_HELP[what], description=DMN_HELP[what])
        if what in ("sleep", "quiet"):
            text = "how long (45m, 2h), or until when (until 07:00, in dmn.timezone)"
            command.add_argument("when", nargs="*", metavar="WHEN", help=text)
        if what == "sleep":
            text = "a type of notifications that wakes it, too, e.g. telegram.main.room (repeatable)"
            command.add_argument("--on", action="append", default=[], metavar="TYPE", help=text)
        if what == "presence":
            command.add_argument("level", choices=(*get_args(PresenceLevel), "auto"), help="auto: as their words show")
        else:
            command.add_argument("--agent", metavar="ID", help="this one only (default: all)")
        command.add_argument("--json", action="store_true", help="for programs")
        command.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        command.set_defaults(handler=dmn_command, resolve_settings=resolve_settings)


def dmn_command(args: argparse.Namespace) -> int:
    """Handle the subcommands of `dmn`."""
    settings: Settings = args.resolve_settings(args.config)
    now = datetime.now(UTC)
    try:
        order = DmnRequest(
            what=args.what,
            by=f"{current_user()} at the command line",
            agent=getattr(args, "agent", None),
            until=parse_until(" ".join(getattr(args, "when", ())), now, ZoneInfo(settings.dmn.timezone)),
            on=tuple(getattr(args, "on", ())),
            level=getattr(args, "level", "auto"),
        )
        answer = asyncio.run(_send_dmn_order(settings, order, now))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("dmn", error)
    return print_answer(answer, as_json=args.json)


async def _send_dmn_order(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    path = settings.store.path
    try:
        return await send_control_request(socket_path(path), order)
    except (GatewayNotRunning, SocketPathTooLong):
        pass
    if order.what == "presence":
        return ControlResponse(
            ok=False, lines=("no gateway is running, and who is near is told to a running one: start it",)
        )
    if order.what in QUERY_ORDERS:
        return await _read_dmn_states(settings, order, now)
    return await _apply_dmn_order(settings, order, now)


async def _read_dmn_states(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    """Answer from the saved states. Waiting turns are not saved: the next start determines them again."""
    path = settings.store.path
    try:
        async with await Store.open_readonly(path) as reader:
            minds = await _load_dmn_states(settings, reader, now)
            waits = [f"{place} ({URGENCY_WORDS[urgency]})" for place, urgency in await reader.due_conversations(NORMAL)]
    except StoreMissing:
        minds, waits = await _load_dmn_states(settings, None, now), []
    answer, _ = answer_order(order, minds, now)
    heartbeat, head = read_heartbeat(path, now), f"no gateway is running with the store {path}; this was saved"
    # it was killed just now, or it could not create its socket
    if heartbeat is not None and heartbeat.age_s < STALE_HEARTBEAT_S:
        head = (
            f"no gateway answers, though one gave a sign of life {format_duration(heartbeat.age_s)} ago; this was saved"
        )
    unread = [f"unread, for the next start: {', '.join(waits)}"] if waits else []
    lines = (head, *answer.lines, *unread) if answer.ok else answer.lines
    return answer.model_copy(update={"lines": lines})


async def _apply_dmn_order(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    """Change the saved states under the store's lock, with the function that a running gateway uses."""
    async with await Store.open(settings.store.path, SystemClock()) as store:
        minds = {mind.id: mind for mind in await _load_dmn_states(settings, store, now)}
        answer, directives = answer_order(order, list(minds.values()), now)
        entries = list[NewEntry]()
        for agent, directive, directed in directives:
            record, saved = build_directive_facts(minds[agent], directive, directed)
            entries += [
                NewEntry(fact=record, at=now, conversation=inner_conversation(agent)),
                NewEntry(fact=saved, at=now),
            ]
        await store.append(entries)
    if not directives:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


async def _load_dmn_states(settings: Settings, reader: StoreReader | None, now: datetime) -> list[SavedDmn]:
    ids = [agent.id for agent in settings.agents]
    states = await load_dmn_states(reader, ids, now) if reader is not None else {}
    return [
        SavedDmn(
            id=agent, state=states.get(agent, signals.DmnState()), policy=policies.build_dmn_policy(settings, agent)
        )
        for agent in ids
    ]


DONE, NOTHING = 0, 1
OWNER_SCOPE: Final = "owner"
"""Name of the scope of entries without one."""
_DEFAULT_ENTRIES: Final = 20
_JOURNAL_PAGE: Final = 500
_MAX_JOURNAL_BYTES: Final = 64_000_000
"""Bytes that are read from the end of the journal."""


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
    """Add the options that may stand before or after a subcommand."""
    parser.add_argument("--config", type=Path, default=default, metavar="DIR", help="the configuration directory")
    parser.add_argument("--agent", default=default, metavar="ID", help="which agent (default: the first)")
    text = f"only what is of this: public, {OWNER_SCOPE}, or a private place, e.g. irc.libera/nick"
    parser.add_argument("--scope", default=default, metavar="S", help=text)


def journal_show_command(args: argparse.Namespace) -> int:
    """Handle `journal`."""

    async def run(reader: StoreReader, agent: AgentConfig) -> bool:
        _print_entries(await _read_newest_entries(reader, agent, args.scope, args.n, ()), "(there is nothing yet)")
        return True

    return _run_journal_command(args, run)


def journal_search_command(args: argparse.Namespace) -> int:
    """Handle `journal search`."""

    async def run(reader: StoreReader, agent: AgentConfig) -> bool:
        terms = [term for word in args.words for term in word.split() if split_words(term)]
        found = await _read_newest_entries(reader, agent, args.scope, args.n, terms) if terms else []
        _print_entries(found, "(nothing was found)")
        return bool(found)

    return _run_journal_command(args, run)


def journal_export_command(args: argparse.Namespace) -> int:
    """Handle `journal export`. A file is readable by its owner only, and never replaces another."""

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
    """Return at most `most` entries, newest last: notes of the log, and entries that people wrote into the file.

    Raises OSError.
    """
    words = [word for term in terms for word in split_words(term)]
    file = agent_directory(agent.workspace, reader.path, agent.id) / JOURNAL_FILE
    text = await asyncio.to_thread(read_tail, file, most=_MAX_JOURNAL_BYTES)
    by_hand = [
        one
        for one in parse_journal(text.decode("utf-8", "replace"))
        if not one.note_id and _matches_entry(one, scope, words)
    ]
    noted: list[JournalEntry] = []
    async for one in _iter_noted(reader, agent, match_all_terms(terms) or None):
        if len(noted) >= most:
            break
        if _matches_entry(one, scope, ()):  # the index has matched the words
            noted.append(one)
    return sorted([*reversed(noted), *by_hand], key=lambda one: one.at)[max(0, len(noted) + len(by_hand) - most) :]


async def _iter_noted(reader: StoreReader, agent: AgentConfig, match: str | None) -> AsyncIterator[JournalEntry]:
    """Yield the notes of the log, newest first."""
    before = None
    while page := await reader.newest_entries(_JOURNAL_PAGE, before=before, kinds=["noted"], match=match):
        for one in reversed(page):
            if isinstance(one.fact, NoteWritten) and one.fact.agent == agent.id:
                yield to_journal_entry(one.fact, one)
        before = page[0].seq


def _matches_entry(one: JournalEntry, scope: str | None, words: Sequence[str]) -> bool:
    return scope in (None, one.scope or OWNER_SCOPE) and contains_all_words(f"{one.title}\n{one.text}", words)


def _print_entries(entries: Sequence[JournalEntry], nothing: str) -> None:
    """Print for people: a heading for each entry, then its text."""
    lines = [] if entries else [nothing]
    for one in entries:
        by = "" if one.note_id else " (by hand)"
        lines.append(f"{one.at:%Y-%m-%d %H:%M} UTC  {one.scope or OWNER_SCOPE}{by}  {one.title}".rstrip())
        lines += [*(f"    {line}".rstrip() for line in one.text.splitlines()), ""]
    sys.stdout.writelines(f"{escape_unprintable(line)}\n" for line in lines)


def _entries_as_json(entries: Sequence[JournalEntry]) -> Iterator[str]:
    """Yield the lines of a JSON array; ASCII, hence safe on every terminal."""
    yield "["
    for place, one in enumerate(entries):
        fields = {
            "at": one.at.isoformat(),
            "scope": one.scope,
            "title": one.title,
            "text": one.text,
            "note": one.note_id,
        }
        yield json.dumps(fields) + ("," if place < len(entries) - 1 else "")
    yield "]"


def _run_journal_command(args: argparse.Namespace, run: Callable[[StoreReader, AgentConfig], Awaitable[bool]]) -> int:
    """Run a subcommand; turn errors that a person can cause into exit codes."""
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


_FILE_ONLY_NOTICE: Final = "The gateway is running, so only the file was changed: the next dream begins with it."


class _MemoryUnchanged(Exception):
    """Nothing was changed; the message says why."""


def add_memory_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `memory` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("memory", help="what an agent knows for good, and what dreams made of it")
    commands = parser.add_subparsers(dest="memory_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        parser.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        parser.add_argument("--agent", metavar="ID", help="which agent (default: the first)")
        parser.set_defaults(handler=handler, resolve_settings=resolve_settings)
        return parser

    command("show", memory_show_command, "print MEMORY.md")
    command("diff", memory_diff_command, "what the last dream changed")
    undoing = command("undo", memory_undo_command, "put back what MEMORY.md said before the last dream")
    undoing.add_argument("--force", action="store_true", help="also if somebody has edited it since")


def memory_show_command(args: argparse.Namespace) -> int:
    """Handle `memory show`."""

    def run(settings: Settings, agent: AgentConfig) -> None:
        text = _memory_file(settings, agent).read()
        _print_lines([f"({_memory_file(settings, agent).path})", "", *(text.splitlines() or ["(empty)"])])

    return _run_memory_command(args, run)


def memory_diff_command(args: argparse.Namespace) -> int:
    """Handle `memory diff`."""

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
    """Handle `memory undo`. Repeated, it goes back dream by dream."""

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
        upto = found[0].fact.upto  # the notes are not dreamt of again: their result was rejected
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
    directory = agent_directory(agent.workspace, settings.store.path, agent.id)
    return MemoryFile(settings.store.path, directory, agent.id)


def _run_memory_command(args: argparse.Namespace, run: Callable[[Settings, AgentConfig], None]) -> int:
    """Run a subcommand; turn errors that a person can cause into exit codes."""
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


DEFAULT_NOTIFICATIONS: Final = 1_000
"""Notifications that `notifications rules` counts by default."""

_NOTIFICATION_ROWS: TypeAdapter[
    Sequence[NotificationTypeCount] | Sequence[TypeThreshold] | Sequence[RuleStatistics] | Sequence[PendingCounts]
] = TypeAdapter(
    Sequence[NotificationTypeCount] | Sequence[TypeThreshold] | Sequence[RuleStatistics] | Sequence[PendingCounts]
)


def add_notifications_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `notifications` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("notifications", help="what was noticed, what may interrupt, and what waits")
    commands = parser.add_subparsers(dest="notifications_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.set_defaults(handler=handler, resolve_settings=resolve_settings)
        return parser

    def store_of(directory: Path) -> Path:
        return resolve_settings(directory).store.path

    add_store_options(
        command("types", notification_types_command, "the types that were seen: how often, first and last"), store_of
    )
    effective = command(
        "threshold", notification_threshold_command, "the lowest urgency that passes of each type, and what says so"
    )
    effective.add_argument("types", nargs="*", metavar="TYPE", help="of these (default: of all that were seen)")
    effective.add_argument("--config", type=Path, metavar="DIR", required=True, help="the configuration")
    ruling = command("rules", notification_rules_command, "the rules in their order, and how often each decided lately")
    add_store_options(ruling, store_of)
    ruling.add_argument(
        "--last",
        type=int,
        metavar="N",
        default=DEFAULT_NOTIFICATIONS,
        help=f"of the newest N (default {DEFAULT_NOTIFICATIONS})",
    )
    add_store_options(
        command("pending", notification_pending_command, "what is unread, by conversation and urgency"), store_of
    )


def notification_types_command(args: argparse.Namespace) -> int:
    """Handle `notifications types`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.notification_types()
        _print_rows(args, found, notifications.render_types(found))

    return run_with_reader("notifications", args, run)


def notification_threshold_command(args: argparse.Namespace) -> int:
    """Handle `notifications threshold`. Named types need no store."""
    settings: Settings = args.resolve_settings(args.config)
    policy = build_attention_policy(settings)

    def print_thresholds(policy: attention.AttentionPolicy, named: Sequence[str]) -> None:
        found = notifications.list_thresholds(policy, named)
        _print_rows(args, found, notifications.render_thresholds(found))

    async def run(reader: StoreReader) -> None:
        print_thresholds(
            await _with_overrides(policy, reader), args.types or [one.type for one in await reader.notification_types()]
        )

    args.store = settings.store.path
    if args.types and not args.store.exists():
        print_thresholds(policy, args.types)
        return 0
    return run_with_reader("notifications", args, run)


def notification_rules_command(args: argparse.Namespace) -> int:
    """Handle `notifications rules`."""
    policy: attention.AttentionPolicy | None = None
    if args.config is not None:
        settings: Settings = args.resolve_settings(args.config)
        policy, args.store = build_attention_policy(settings), settings.store.path

    async def run(reader: StoreReader) -> None:
        newest = await reader.newest_entries(max(0, args.last), kinds=["judged"])
        judged = [one.fact for one in newest if isinstance(one.fact, Judgement)]
        found = notifications.count_decisions(policy and await _with_overrides(policy, reader), judged)
        _print_rows(args, found, notifications.render_decisions(found, len(judged)))

    return run_with_reader("notifications", args, run)


def notification_pending_command(args: argparse.Namespace) -> int:
    """Handle `notifications pending`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.pending_counts()
        _print_rows(args, found, notifications.render_pending(found))

    return run_with_reader("notifications", args, run)


async def _with_overrides(policy: attention.AttentionPolicy, reader: StoreReader) -> attention.AttentionPolicy:
    """Return the policy with the overrides that administrators set at run time."""
    overrides = AttentionOverrideStore(reader)
    await overrides.load()
    return replace(policy, overrides=overrides.current)


def _print_rows(
    args: argparse.Namespace,
    found: Sequence[NotificationTypeCount]
    | Sequence[TypeThreshold]
    | Sequence[RuleStatistics]
    | Sequence[PendingCounts],
    lines: Sequence[str],
) -> None:
    if args.json:
        print(json.dumps(_NOTIFICATION_ROWS.dump_python(found, mode="json")))  # ASCII: safe on every terminal
    else:
        sys.stdout.writelines(line + "\n" for line in lines)


_REMINDERS: TypeAdapter[Sequence[PendingReminder]] = TypeAdapter(Sequence[PendingReminder])


def add_reminders_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `reminders` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("reminders", help="what people and the agent asked to be reminded of")
    commands = parser.add_subparsers(dest="reminders_command", required=True, metavar="COMMAND")
    text = "the reminders that are still to come, the next first"
    listing = commands.add_parser("list", help=text, description=text)
    listing.add_argument("--json", action="store_true", help="for programs")
    add_store_options(listing, resolve_store)
    listing.set_defaults(handler=reminders_list_command)


def reminders_list_command(args: argparse.Namespace) -> int:
    """Handle `reminders list`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.pending_reminders()
        if args.json:
            print(json.dumps(_REMINDERS.dump_python(found, mode="json")))  # ASCII: safe on every terminal
        else:
            sys.stdout.writelines(line + "\n" for line in format_reminders(found))

    return run_with_reader("reminders", args, run)


def format_reminders(found: Sequence[PendingReminder]) -> list[str]:
    """Render for people: a table, or a sentence if there are none."""
    if not found:
        return ["there are no reminders"]
    lines: list[tuple[str, ...]] = [("id", "next (UTC)", "again", "where", "asked for by", "text")]
    for one in found:
        where = one.conversation or f"{one.agent} itself"
        cells = (
            one.id,
            f"{one.due:%Y-%m-%d %H:%M:%S}",
            describe_schedule_text(one.schedule),
            where,
            one.asked_by or "-",
            one.text,
        )
        lines.append(tuple(map(escape_unprintable, cells)))
    return format_table(lines)
