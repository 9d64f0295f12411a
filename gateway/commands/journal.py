"""Commands about an agent's notes: `journal` and `memory`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from agent.journal import to_single_line
from channels.base import CommandCompletion
from gateway.access.approval_texts import escape_invisible, inline_code
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandHandler,
    CommandReply,
    find_visibility,
    format_place,
    match_suggestions,
    sees_everything,
)
from gateway.context.dream import find_pending_notes, render_pending_notes
from gateway.context.journal import NoteForgetter, parse_note_handle
from gateway.context.memory import format_as_list_item
from gateway.context.search import (
    HitBuilder,
    ReadHandwritten,
    SearchHit,
    SearchPlaces,
    scope_of_hit,
    to_handwritten_hit,
)
from gateway.core.events import Address, Command, ConversationId
from gateway.core.facts import NoteForgotten, NoteWritten, Seq, TurnId
from gateway.core.identity import ADMIN_ROLES
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.store import AppendResult, LogEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.place_names import PlaceTitles

logger = logging.getLogger("reverie.commands")

DEFAULT_ENTRIES: Final = 5
"""Entries of the journal, if no number is given."""
MAX_NOTES: Final = 20
"""Notes in one answer."""
MAX_NOTE_CHARS: Final = 300
"""Characters of one note in an answer."""
MAX_MEMORY_CHARS: Final = 6_000
"""Characters of MEMORY.md in an answer."""
OWNERS_ALONE: Final = "Only an owner who is alone with me can look at what waits, and decide about it."
_PAGE_SIZE: Final = 200
_MAX_PAGES: Final = 10
"""Pages of notes that are searched: hidden notes must not keep visible ones from the answer."""


class NotePrivacy(SearchPlaces, Protocol):
    """Part of `gateway.stream.routing.PrivacyCache` that the journal's commands use."""

    @property
    def titles(self) -> PlaceTitles:
        """Titles of places."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """Return what a turn there may see."""


class _VisibleNote(NamedTuple):
    """A note that may be shown."""

    handle: str
    """Empty: it has none."""
    hit: SearchHit
    lasting: bool


class JournalCommands:
    """Handlers of `journal` and `memory`, about the agent of the conversation.

    A room is shown public notes and its own; a direct chat its own only, an administrator there also public ones, and
    an owner everything.
    """

    def __init__(
        self,
        reader: StoreReader,
        places: NotePrivacy,
        forgetter: NoteForgetter,
        *,
        read_memory: Callable[[str], Awaitable[str]],
        read_handwritten: ReadHandwritten,
        agent_of: Callable[[Address], str],
        tasks: asyncio.TaskGroup,
        send_follow_up: Callable[[Command, Seq, str], Awaitable[None]],
        approve_note: Callable[[str, Seq, str], Awaitable[str]],
        redactor: Redactor,
    ) -> None:
        """`read_memory` returns an agent's MEMORY.md; may raise OSError.

        `send_follow_up` posts a text where the command was given; it takes the command and its entry. `approve_note`:
        `gateway.context.memory.MemoryStore.approve`. `redactor` is applied to notes before they are cut.
        """
        self._reader = reader
        self._places = places
        self._forgetter = forgetter
        self._search = HitBuilder(reader, places, redactor)
        self._redactor = redactor
        self._read_memory = read_memory
        self._read_handwritten = read_handwritten
        self._find_agent = agent_of
        self._tasks = tasks
        self._send_follow_up = send_follow_up
        self._approve_note = approve_note

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {
            "journal": self.journal,
            "memory show": self.show,
            "memory forget": self.forget,
            "memory pending": self.pending,
            "memory approve": self.approve,
        }

    async def journal(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """List the newest entries, with those that people wrote into the files, the newest first."""
        count = call.arguments.get("n", str(DEFAULT_ENTRIES)).strip()
        if not (
            count.isascii() and count.isdigit() and len(count) <= len(str(MAX_NOTES)) and 1 <= int(count) <= MAX_NOTES
        ):
            return CommandReply(text=f"Write how many entries: a number from 1 to {MAX_NOTES}.", ok=False)
        where = await self._build_tool_context(call)
        found = [*await self._find_notes(call, where, int(count)), *await self._find_handwritten(call, where)]
        found.sort(key=lambda one: (one.hit.at, one.hit.seq), reverse=True)
        lines = [_format_note(one, call) for one in found[: int(count)]]
        return CommandReply(text="\n".join(lines) if lines else "There is nothing in my journal that may be told here.")

    async def show(self, call: CommandCall, _context: CommandContext) -> str:
        """List lasting notes; to an owner in a direct chat also MEMORY.md, which comes from all places."""
        where = await self._build_tool_context(call)
        lines = [_format_note(one, call) for one in await self._find_notes(call, where, MAX_NOTES, lasting=True)]
        lines_shown = ["To be remembered, the newest first:", *lines] if lines else []
        if where.visibility.sees_everything:
            lines_shown = [*await self._render_memory_file(where.agent), *lines_shown]
        return "\n".join(lines_shown) if lines_shown else "There is nothing that I remember for good and may tell here."

    async def forget(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Forget a note: it is not shown any more."""
        seq, where = parse_note_handle(call.arguments["note"]), await self._build_tool_context(call)
        if seq is None:
            return CommandReply(
                text="Write a note's number, e.g. `n12`, as `journal` and `memory show` have it.", ok=False
            )
        found = [one for one, hit in await self._forgetter.find_note(seq, where) if _may_see(hit.scope, call, where)]
        if not found:
            return CommandReply(text=f"There is no note `n{seq}` that may be told here.", ok=False)
        if not _may_forget(found[0], call):
            return CommandReply(
                text="That was written down elsewhere: an owner or admin of all places can do it.", ok=False
            )
        words = f"Note `n{seq}` is forgotten. What MEMORY.md made of it leaves with the next dream."
        forgotten = EffectFact(
            NoteForgotten(agent=where.agent, note=seq, by=f"{call.person} ({call.role})"), key=f"forgotten:{seq}"
        )
        settle = partial(self._settle_forget, call, where.agent, seq)
        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(forgotten,), settle=settle))

    async def pending(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """List the notes that wait for an owner, to an owner in a direct chat: they may come from any place."""
        if not sees_everything(call):
            return CommandReply(text=OWNERS_ALONE, ok=False)
        found = await find_pending_notes(self._reader, self._find_agent(call.command.at))
        if not found:
            return CommandReply(text="Nothing waits for your word.")
        return CommandReply(text=render_pending_notes(found, context.prefixes[call.command.at.channel], format_place))

    async def approve(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Add a note to MEMORY.md, word for word. A repeated command adds it once."""
        if not sees_everything(call):
            return CommandReply(text=OWNERS_ALONE, ok=False)
        seq, agent = parse_note_handle(call.arguments["note"]), self._find_agent(call.command.at)
        note = next((one for one in await find_pending_notes(self._reader, agent) if one.seq == seq), None)
        if note is None:
            text = "No note with that number waits: `memory pending` shows those that do."
            return CommandReply(text=text, ok=False)
        try:
            why = await self._approve_note(agent, note.seq, note.noted.text)
        except OSError as error:
            logger.warning("the memory of %s cannot be written: %s", agent, error)
            why = "the file cannot be written; my log says why"
        if why:
            return CommandReply(text=f"Note `n{seq}` is not in MEMORY.md: {why}.", ok=False)
        shown = [escape_invisible(line) for line in format_as_list_item(note.noted.text).split("\n")]
        return CommandReply(text="\n".join(["It is in MEMORY.md now:", "```", *shown, "```"]))

    async def suggest_numbers(self, typed: CommandCompletion) -> list[str]:
        """Suggest notes of that place, the newest first."""
        agent, place = self._find_agent(typed.at), typed.at.conversation
        page = await self._reader.newest_entries(_PAGE_SIZE, kinds=["noted"], conversation=place)
        gone = await self._reader.forgotten_notes([one.seq for one in page])
        left = [one for one in reversed(page) if one.seq not in gone]
        names = [f"n{one.seq}" for one in left if isinstance(one.fact, NoteWritten) and one.fact.agent == agent]
        return match_suggestions(names, typed.prefix)

    def _settle_forget(self, call: CommandCall, agent: str, seq: Seq, appended: AppendResult | None) -> None:
        if appended is not None and appended.is_new:
            self._tasks.create_task(self._settle_files(call, agent, seq, appended.seq))

    async def _settle_files(self, call: CommandCall, agent: str, seq: Seq, appended: Seq) -> None:
        trusted = [seq] if call.global_role in ADMIN_ROLES else []
        if not await self._forgetter.apply_to_files(agent, trusted=trusted):
            words = f"My files could not be written: note `n{seq}` leaves them at the next start."
            await self._send_follow_up(call.command, appended, words)

    async def _build_tool_context(self, call: CommandCall) -> ToolContext:
        """Return the context that a turn there would have."""
        at = call.command.at
        sight = await find_visibility(call, self._places)
        return ToolContext(turn=TurnId(""), agent=self._find_agent(at), at=at, visibility=sight, autonomous=False)

    async def _find_notes(
        self, call: CommandCall, where: ToolContext, most: int, *, lasting: bool = False
    ) -> list[_VisibleNote]:
        """Return notes of the log that may be shown there, the newest first."""
        found, before = list[_VisibleNote](), None
        for _ in range(_MAX_PAGES):
            page = await self._reader.newest_entries(_PAGE_SIZE, before=before, kinds=["noted"])
            for one in reversed(page):
                if not isinstance(one.fact, NoteWritten) or (lasting and not one.fact.lasting):
                    continue
                if not _may_see(await self._search.scope_of(one), call, where):
                    continue
                hit = await self._search.build(one, where)
                if hit is not None:
                    found.append(_VisibleNote(hit.handle, hit, one.fact.lasting))
                if len(found) == most:
                    return found
            if len(page) < _PAGE_SIZE:
                break
            before = page[0].seq
        return found

    async def _find_handwritten(self, call: CommandCall, where: ToolContext) -> list[_VisibleNote]:
        """Return entries that people wrote into the journal's files."""
        try:
            entries = await self._read_handwritten(where.agent)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", where.agent, error)
            return []
        hits = [replace(hit, text=self._redactor(hit.text)) for hit in map(to_handwritten_hit, entries)]
        return [_VisibleNote("", hit, lasting=False) for hit in hits if _may_see(scope_of_hit(hit), call, where)]

    async def _render_memory_file(self, agent: str) -> list[str]:
        try:
            text = self._redactor((await self._read_memory(agent)).strip())
        except OSError as error:
            logger.warning("the memory of %s cannot be read: %s", agent, error)
            return ["MEMORY.md cannot be read; my log says why."]
        if not text:
            return []
        cut = (
            text
            if len(text) <= MAX_MEMORY_CHARS
            else text[:MAX_MEMORY_CHARS].rpartition("\n")[0] or text[:MAX_MEMORY_CHARS]
        )
        more = [f"(and {len(text) - len(cut)} more characters)"] if cut != text else []
        return ["MEMORY.md:", "```", *(escape_invisible(line) for line in cut.split("\n")), "```", *more]


def _may_see(scope: str, call: CommandCall, where: ToolContext) -> bool:
    """Return whether a note of that scope may be shown to the sender."""
    if call.command.direct and call.role not in ADMIN_ROLES:
        return scope == where.visibility.scope
    return where.visibility.can_see(scope)


def _may_forget(note: LogEntry, call: CommandCall) -> bool:
    """Return whether the sender may forget a note that they may see."""
    here = call.command.at.conversation
    own = isinstance(note.fact, NoteWritten) and note.fact.scope == here
    return call.global_role in ADMIN_ROLES or note.conversation == here or (call.command.direct and own)


def _format_note(one: _VisibleNote, call: CommandCall) -> str:
    hit = one.hit
    name = f"`{one.handle}` " if one.handle else ""
    where = "" if hit.scope == call.command.at.conversation else f", {_format_scope(hit.scope)}"
    how = ", to remember" if one.lasting else ", by hand" if not one.handle else ""
    text = inline_code(to_single_line(hit.text, len(hit.text)), MAX_NOTE_CHARS)
    return f"- {name}{hit.at:%Y-%m-%d %H:%M} UTC{where}{how}: {text}"


def _format_scope(scope: str) -> str:
    if scope == PUBLIC:
        return PUBLIC
    return format_place(ConversationId(scope)) if scope else "for the owner"
