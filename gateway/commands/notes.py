"""The commands about what an agent wrote down: its journal, and what it remembers for good."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from agent.journal import flat
from channels.base import CommandTyped
from gateway.changes import Change, Made
from gateway.commands.sight import matching, place_of, sees_all, sight_of
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, Command, ConversationId
from gateway.forgetting import Forgetting, seq_of
from gateway.hands import Whereabouts
from gateway.hits import ByHand, Hit, Hits, Scopes, by_hand, scope_of_hit
from gateway.material import render_waiting, waiting
from gateway.memory import as_lines
from gateway.records import Forgotten, Noted, Seq, TurnId
from gateway.redaction import Redact, Redactor
from gateway.scopes import PUBLIC, Sight
from gateway.standing import ADMINS
from gateway.store import Appended, Reader, Stored
from gateway.titles import Titles
from gateway.tools.consent import code, visible

logger = logging.getLogger("reverie.commands")

ENTRIES: Final = 5
"""Of the journal, if nobody says how many."""
MOST: Final = 20
"""Notes in one answer."""
NOTE_CHARS: Final = 300
"""Of a note in one answer."""
MEMORY_CHARS: Final = 6_000
"""Of MEMORY.md in one answer."""
OWNERS_ALONE: Final = "Only an owner who is alone with me can look at what waits, and decide about it."
_PAGE: Final = 200
_PAGES: Final = 10
"""So many notes are looked at: what may not be told here must not hide what may."""


class Homes(Scopes, Protocol):
    """Who knows places: `gateway.places.Places`."""

    @property
    def titles(self) -> Titles:
        """What places are called."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Sight:
        """What a turn there may see."""


class _Shown(NamedTuple):
    """A note that may be told."""

    handle: str
    """Empty: it has none."""
    hit: Hit
    lasting: bool


class NotesCommands:
    """`journal` and `memory`: of the agent whose conversation it is.

    A room is told what is public and its own; a direct chat its own alone, an administrator there also what is public,
    and an owner everything.
    """

    def __init__(
        self,
        reader: Reader,
        places: Homes,
        forgetting: Forgetting,
        *,
        memory: Callable[[str], Awaitable[str]],
        by_hand: ByHand,
        agent_of: Callable[[Address], str],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        tell: Callable[[Command, Seq, str], Awaitable[None]],
        let_in: Callable[[str, Seq, str], Awaitable[str]],
        redact: Redact | None = None,
    ) -> None:
        """`memory`: an agent's MEMORY.md; may raise OSError. `spawn` starts a task whose failure stops the gateway.

        `tell` says something in a post of its own, where the command (whose entry is named) was given. `let_in`:
        `gateway.memory.Memory.approve`. `redact` is given notes before they are cut.
        """
        self._reader = reader
        self._places = places
        self._forgetting = forgetting
        self._search = Hits(reader, places, redact)
        self._redact = redact or Redactor()
        self._read_memory = memory
        self._read_handwritten = by_hand
        self._find_agent = agent_of
        self._spawn = spawn
        self._send_follow_up = tell
        self._approve_note = let_in

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {
            "journal": self.journal,
            "memory show": self.show,
            "memory forget": self.forget,
            "memory pending": self.pending,
            "memory approve": self.approve,
        }

    async def journal(self, ask: Ask, _world: World) -> Answer:
        """The newest entries, also what people wrote there, the newest first."""
        count = ask.arguments.get("n", str(ENTRIES)).strip()
        if not (count.isascii() and count.isdigit() and len(count) <= len(str(MOST)) and 1 <= int(count) <= MOST):
            return Answer(text=f"Write how many entries: a number from 1 to {MOST}.", ok=False)
        where = await self._build_tool_context(ask)
        found = [*await self._find_notes(ask, where, int(count)), *await self._find_handwritten(ask, where)]
        found.sort(key=lambda one: (one.hit.at, one.hit.seq), reverse=True)
        lines = [_line(one, ask) for one in found[: int(count)]]
        return Answer(text="\n".join(lines) if lines else "There is nothing in my journal that may be told here.")

    async def show(self, ask: Ask, _world: World) -> str:
        """What was to be remembered for good; to an owner alone, MEMORY.md too, which is made of all places."""
        where = await self._build_tool_context(ask)
        lines = [_line(one, ask) for one in await self._find_notes(ask, where, MOST, lasting=True)]
        told = ["To be remembered, the newest first:", *lines] if lines else []
        if where.visibility.sees_everything:
            told = [*await self._render_memory_file(where.agent), *told]
        return "\n".join(told) if told else "There is nothing that I remember for good and may tell here."

    async def forget(self, ask: Ask, _world: World) -> Answer:
        """Tell nobody of a note any more."""
        seq, where = seq_of(ask.arguments["note"]), await self._build_tool_context(ask)
        if seq is None:
            return Answer(text="Write a note's number, e.g. `n12`, as `journal` and `memory show` have it.", ok=False)
        found = [one for one, hit in await self._forgetting.find_note(seq, where) if _told(hit.scope, ask, where)]
        if not found:
            return Answer(text=f"There is no note `n{seq}` that may be told here.", ok=False)
        if not _may(found[0], ask):
            return Answer(text="That was written down elsewhere: an owner or admin of all places can do it.", ok=False)
        words = f"Note `n{seq}` is forgotten. What MEMORY.md made of it leaves with the next dream."
        made = Made(Forgotten(agent=where.agent, note=seq, by=f"{ask.person} ({ask.role})"), key=f"forgotten:{seq}")
        settle = partial(self._settle_forget, ask, where.agent, seq)
        return Answer(text=words, effect=Change(answer=words, facts=(made,), settle=settle))

    async def pending(self, ask: Ask, world: World) -> Answer:
        """What waits for an owner's word, to an owner alone: it may come from any place."""
        if not sees_all(ask):
            return Answer(text=OWNERS_ALONE, ok=False)
        found = await waiting(self._reader, self._find_agent(ask.command.at))
        if not found:
            return Answer(text="Nothing waits for your word.")
        return Answer(text=render_waiting(found, world.prefixes[ask.command.at.channel], place_of))

    async def approve(self, ask: Ask, _world: World) -> Answer:
        """Let a note into MEMORY.md, word for word. Said twice it is done once."""
        if not sees_all(ask):
            return Answer(text=OWNERS_ALONE, ok=False)
        seq, agent = seq_of(ask.arguments["note"]), self._find_agent(ask.command.at)
        note = next((one for one in await waiting(self._reader, agent) if one.seq == seq), None)
        if note is None:
            text = "No note with that number waits: `memory pending` shows those that do."
            return Answer(text=text, ok=False)
        try:
            why = await self._approve_note(agent, note.seq, note.noted.text)
        except OSError as error:
            logger.warning("the memory of %s cannot be written: %s", agent, error)
            why = "the file cannot be written; my log says why"
        if why:
            return Answer(text=f"Note `n{seq}` is not in MEMORY.md: {why}.", ok=False)
        shown = [visible(line) for line in as_lines(note.noted.text).split("\n")]
        return Answer(text="\n".join(["It is in MEMORY.md now:", "```", *shown, "```"]))

    async def suggest_numbers(self, typed: CommandTyped) -> list[str]:
        """To suggest: notes that were written down in that place, the newest first."""
        agent, place = self._find_agent(typed.at), typed.at.conversation
        page = await self._reader.newest_entries(_PAGE, kinds=["noted"], conversation=place)
        gone = await self._reader.forgotten_notes([one.seq for one in page])
        left = [one for one in reversed(page) if one.seq not in gone]
        names = [f"n{one.seq}" for one in left if isinstance(one.fact, Noted) and one.fact.agent == agent]
        return matching(names, typed.prefix)

    def _settle_forget(self, ask: Ask, agent: str, seq: Seq, asked: Appended | None) -> None:
        if asked is not None and asked.is_new:
            self._spawn(self._settle_files(ask, agent, seq, asked.seq))

    async def _settle_files(self, ask: Ask, agent: str, seq: Seq, asked: Seq) -> None:
        trusted = [seq] if ask.global_role in ADMINS else []
        if not await self._forgetting.apply_to_files(agent, trusted=trusted):
            words = f"My files could not be written: note `n{seq}` leaves them at the next start."
            await self._send_follow_up(ask.command, asked, words)

    async def _build_tool_context(self, ask: Ask) -> Whereabouts:
        """As a turn there would stand."""
        at = ask.command.at
        sight = await sight_of(ask, self._places)
        return Whereabouts(turn=TurnId(""), agent=self._find_agent(at), at=at, visibility=sight, autonomous=False)

    async def _find_notes(self, ask: Ask, where: Whereabouts, most: int, *, lasting: bool = False) -> list[_Shown]:
        """Notes of the log that may be told there, the newest first."""
        found, before = list[_Shown](), None
        for _ in range(_PAGES):
            page = await self._reader.newest_entries(_PAGE, before=before, kinds=["noted"])
            for one in reversed(page):
                if not isinstance(one.fact, Noted) or (lasting and not one.fact.lasting):
                    continue
                if not _told(await self._search.scope_of(one), ask, where):
                    continue
                hit = await self._search.build(one, where)
                if hit is not None:
                    found.append(_Shown(hit.handle, hit, one.fact.lasting))
                if len(found) == most:
                    return found
            if len(page) < _PAGE:
                break
            before = page[0].seq
        return found

    async def _find_handwritten(self, ask: Ask, where: Whereabouts) -> list[_Shown]:
        """By people, in the journal."""
        try:
            entries = await self._read_handwritten(where.agent)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", where.agent, error)
            return []
        hits = [replace(hit, text=self._redact(hit.text)) for hit in map(by_hand, entries)]
        return [_Shown("", hit, lasting=False) for hit in hits if _told(scope_of_hit(hit), ask, where)]

    async def _render_memory_file(self, agent: str) -> list[str]:
        try:
            text = self._redact((await self._read_memory(agent)).strip())
        except OSError as error:
            logger.warning("the memory of %s cannot be read: %s", agent, error)
            return ["MEMORY.md cannot be read; my log says why."]
        if not text:
            return []
        cut = text if len(text) <= MEMORY_CHARS else text[:MEMORY_CHARS].rpartition("\n")[0] or text[:MEMORY_CHARS]
        more = [f"(and {len(text) - len(cut)} more characters)"] if cut != text else []
        return ["MEMORY.md:", "```", *(visible(line) for line in cut.split("\n")), "```", *more]


def _told(scope: str, ask: Ask, where: Whereabouts) -> bool:
    """Whether a note of that scope may be told to whoever asks."""
    if ask.command.direct and ask.role not in ADMINS:
        return scope == where.visibility.scope
    return where.visibility.can_see(scope)


def _may(note: Stored, ask: Ask) -> bool:
    """Whether who asks may have a note forgotten that they may be told."""
    here = ask.command.at.conversation
    own = isinstance(note.fact, Noted) and note.fact.scope == here
    return ask.global_role in ADMINS or note.conversation == here or (ask.command.direct and own)


def _line(one: _Shown, ask: Ask) -> str:
    hit = one.hit
    name = f"`{one.handle}` " if one.handle else ""
    where = "" if hit.scope == ask.command.at.conversation else f", {_home(hit.scope)}"
    how = ", to remember" if one.lasting else ", by hand" if not one.handle else ""
    text = code(flat(hit.text, len(hit.text)), NOTE_CHARS)
    return f"- {name}{hit.at:%Y-%m-%d %H:%M} UTC{where}{how}: {text}"


def _home(scope: str) -> str:
    if scope == PUBLIC:
        return PUBLIC
    return place_of(ConversationId(scope)) if scope else "for the owner"
