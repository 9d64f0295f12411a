"""The commands about what an agent wrote down: its journal, and what it remembers for good."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
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
from gateway.core.redaction import Redact, Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.store import AppendResult, LogEntry, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.place_names import PlaceTitles

logger = logging.getLogger("reverie.commands")

DEFAULT_ENTRIES: Final = 5
"""Of the journal, if nobody says how many."""
MAX_NOTES: Final = 20
"""Notes in one answer."""
MAX_NOTE_CHARS: Final = 300
"""Of a note in one answer."""
MAX_MEMORY_CHARS: Final = 6_000
"""Of MEMORY.md in one answer."""
OWNERS_ALONE: Final = "Only an owner who is alone with me can look at what waits, and decide about it."
_PAGE_SIZE: Final = 200
_MAX_PAGES: Final = 10
"""So many notes are looked at: what may not be told here must not hide what may."""


class NotePrivacy(SearchPlaces, Protocol):
    """Who knows places: `gateway.stream.routing.PrivacyCache`."""

    @property
    def titles(self) -> PlaceTitles:
        """What places are called."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """What a turn there may see."""


class _VisibleNote(NamedTuple):
    """A note that may be told."""

    handle: str
    """Empty: it has none."""
    hit: SearchHit
    lasting: bool


class JournalCommands:
    """`journal` and `memory`: of the agent whose conversation it is.

    A room is told what is public and its own; a direct chat its own alone, an administrator there also what is public,
    and an owner everything.
    """

    def __init__(
        self,
        reader: StoreReader,
        places: NotePrivacy,
        forgetting: NoteForgetter,
        *,
        memory: Callable[[str], Awaitable[str]],
        by_hand: ReadHandwritten,
        agent_of: Callable[[Address], str],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        tell: Callable[[Command, Seq, str], Awaitable[None]],
        let_in: Callable[[str, Seq, str], Awaitable[str]],
        redact: Redact | None = None,
    ) -> None:
        """`memory`: an agent's MEMORY.md; may raise OSError. `spawn` starts a task whose failure stops the gateway.

        `tell` says something in a post of its own, where the command (whose entry is named) was given. `let_in`:
        `gateway.context.memory.MemoryStore.approve`. `redact` is given notes before they are cut.
        """
        self._reader = reader
        self._places = places
        self._forgetting = forgetting
        self._search = HitBuilder(reader, places, redact)
        self._redact = redact or Redactor()
        self._read_memory = memory
        self._read_handwritten = by_hand
        self._find_agent = agent_of
        self._spawn = spawn
        self._send_follow_up = tell
        self._approve_note = let_in

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {
            "journal": self.journal,
            "memory show": self.show,
            "memory forget": self.forget,
            "memory pending": self.pending,
            "memory approve": self.approve,
        }

    async def journal(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """The newest entries, also what people wrote there, the newest first."""
        count = ask.arguments.get("n", str(DEFAULT_ENTRIES)).strip()
        if not (
            count.isascii() and count.isdigit() and len(count) <= len(str(MAX_NOTES)) and 1 <= int(count) <= MAX_NOTES
        ):
            return CommandReply(text=f"Write how many entries: a number from 1 to {MAX_NOTES}.", ok=False)
        where = await self._build_tool_context(ask)
        found = [*await self._find_notes(ask, where, int(count)), *await self._find_handwritten(ask, where)]
        found.sort(key=lambda one: (one.hit.at, one.hit.seq), reverse=True)
        lines = [_format_note(one, ask) for one in found[: int(count)]]
        return CommandReply(text="\n".join(lines) if lines else "There is nothing in my journal that may be told here.")

    async def show(self, ask: CommandCall, _world: CommandContext) -> str:
        """What was to be remembered for good; to an owner alone, MEMORY.md too, which is made of all places."""
        where = await self._build_tool_context(ask)
        lines = [_format_note(one, ask) for one in await self._find_notes(ask, where, MAX_NOTES, lasting=True)]
        told = ["To be remembered, the newest first:", *lines] if lines else []
        if where.visibility.sees_everything:
            told = [*await self._render_memory_file(where.agent), *told]
        return "\n".join(told) if told else "There is nothing that I remember for good and may tell here."

    async def forget(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Tell nobody of a note any more."""
        seq, where = parse_note_handle(ask.arguments["note"]), await self._build_tool_context(ask)
        if seq is None:
            return CommandReply(
                text="Write a note's number, e.g. `n12`, as `journal` and `memory show` have it.", ok=False
            )
        found = [one for one, hit in await self._forgetting.find_note(seq, where) if _may_see(hit.scope, ask, where)]
        if not found:
            return CommandReply(text=f"There is no note `n{seq}` that may be told here.", ok=False)
        if not _may_forget(found[0], ask):
            return CommandReply(
                text="That was written down elsewhere: an owner or admin of all places can do it.", ok=False
            )
        words = f"Note `n{seq}` is forgotten. What MEMORY.md made of it leaves with the next dream."
        made = EffectFact(
            NoteForgotten(agent=where.agent, note=seq, by=f"{ask.person} ({ask.role})"), key=f"forgotten:{seq}"
        )
        settle = partial(self._settle_forget, ask, where.agent, seq)
        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(made,), settle=settle))

    async def pending(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """What waits for an owner's word, to an owner alone: it may come from any place."""
        if not sees_everything(ask):
            return CommandReply(text=OWNERS_ALONE, ok=False)
        found = await find_pending_notes(self._reader, self._find_agent(ask.command.at))
        if not found:
            return CommandReply(text="Nothing waits for your word.")
        return CommandReply(text=render_pending_notes(found, world.prefixes[ask.command.at.channel], format_place))

    async def approve(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Let a note into MEMORY.md, word for word. Said twice it is done once."""
        if not sees_everything(ask):
            return CommandReply(text=OWNERS_ALONE, ok=False)
        seq, agent = parse_note_handle(ask.arguments["note"]), self._find_agent(ask.command.at)
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
        """To suggest: notes that were written down in that place, the newest first."""
        agent, place = self._find_agent(typed.at), typed.at.conversation
        page = await self._reader.newest_entries(_PAGE_SIZE, kinds=["noted"], conversation=place)
        gone = await self._reader.forgotten_notes([one.seq for one in page])
        left = [one for one in reversed(page) if one.seq not in gone]
        names = [f"n{one.seq}" for one in left if isinstance(one.fact, NoteWritten) and one.fact.agent == agent]
        return match_suggestions(names, typed.prefix)

    def _settle_forget(self, ask: CommandCall, agent: str, seq: Seq, asked: AppendResult | None) -> None:
        if asked is not None and asked.is_new:
            self._spawn(self._settle_files(ask, agent, seq, asked.seq))

    async def _settle_files(self, ask: CommandCall, agent: str, seq: Seq, asked: Seq) -> None:
        trusted = [seq] if ask.global_role in ADMIN_ROLES else []
        if not await self._forgetting.apply_to_files(agent, trusted=trusted):
            words = f"My files could not be written: note `n{seq}` leaves them at the next start."
            await self._send_follow_up(ask.command, asked, words)

    async def _build_tool_context(self, ask: CommandCall) -> ToolContext:
        """As a turn there would stand."""
        at = ask.command.at
        sight = await find_visibility(ask, self._places)
        return ToolContext(turn=TurnId(""), agent=self._find_agent(at), at=at, visibility=sight, autonomous=False)

    async def _find_notes(
        self, ask: CommandCall, where: ToolContext, most: int, *, lasting: bool = False
    ) -> list[_VisibleNote]:
        """Notes of the log that may be told there, the newest first."""
        found, before = list[_VisibleNote](), None
        for _ in range(_MAX_PAGES):
            page = await self._reader.newest_entries(_PAGE_SIZE, before=before, kinds=["noted"])
            for one in reversed(page):
                if not isinstance(one.fact, NoteWritten) or (lasting and not one.fact.lasting):
                    continue
                if not _may_see(await self._search.scope_of(one), ask, where):
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

    async def _find_handwritten(self, ask: CommandCall, where: ToolContext) -> list[_VisibleNote]:
        """By people, in the journal."""
        try:
            entries = await self._read_handwritten(where.agent)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", where.agent, error)
            return []
        hits = [replace(hit, text=self._redact(hit.text)) for hit in map(to_handwritten_hit, entries)]
        return [_VisibleNote("", hit, lasting=False) for hit in hits if _may_see(scope_of_hit(hit), ask, where)]

    async def _render_memory_file(self, agent: str) -> list[str]:
        try:
            text = self._redact((await self._read_memory(agent)).strip())
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


def _may_see(scope: str, ask: CommandCall, where: ToolContext) -> bool:
    """Whether a note of that scope may be told to whoever asks."""
    if ask.command.direct and ask.role not in ADMIN_ROLES:
        return scope == where.visibility.scope
    return where.visibility.can_see(scope)


def _may_forget(note: LogEntry, ask: CommandCall) -> bool:
    """Whether who asks may have a note forgotten that they may be told."""
    here = ask.command.at.conversation
    own = isinstance(note.fact, NoteWritten) and note.fact.scope == here
    return ask.global_role in ADMIN_ROLES or note.conversation == here or (ask.command.direct and own)


def _format_note(one: _VisibleNote, ask: CommandCall) -> str:
    hit = one.hit
    name = f"`{one.handle}` " if one.handle else ""
    where = "" if hit.scope == ask.command.at.conversation else f", {_format_scope(hit.scope)}"
    how = ", to remember" if one.lasting else ", by hand" if not one.handle else ""
    text = inline_code(to_single_line(hit.text, len(hit.text)), MAX_NOTE_CHARS)
    return f"- {name}{hit.at:%Y-%m-%d %H:%M} UTC{where}{how}: {text}"


def _format_scope(scope: str) -> str:
    if scope == PUBLIC:
        return PUBLIC
    return format_place(ConversationId(scope)) if scope else "for the owner"
