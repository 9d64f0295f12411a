"""What agents remember by themselves: notes in a journal, MEMORY.md, and dreams, which turn notes
into MEMORY.md.

`journal.py` writes notes, `memory_file.py` MEMORY.md, `dreams.py` dreams. Here stand the tools and
commands about them, and how notes are forgotten: the log keeps them, but nothing shows them any
more. The deletion is durable in the log first; then the journal loses the entry and MEMORY.md its
line. A mark file names the last deletion that reached the files, so a start completes the others.

What of MEMORY.md stands in the prompt is part of the persona (`agent.workspace.persona`).
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from channels.aio import run_to_completion
from channels.base import CommandCompletion
from gateway.cluster.cluster import EVERYTHING, agent_lease
from gateway.commands.context import (
    CommandCall,
    build_tool_context,
    format_place,
    sees_everything,
    send_follow_up,
)
from gateway.commands.definition import command
from gateway.core.events import ConversationId, Message
from gateway.core.facts import NoteForgotten, NoteWritten, Seq, TurnRecord
from gateway.core.i18n import N_, _
from gateway.core.identity import ADMIN_ROLES
from gateway.core.labels import join
from gateway.core.permissions import OUT, OWN
from gateway.core.private_files import agent_state_directory
from gateway.core.route import WAITING, RouteRefused, route
from gateway.core.scopes import OWNER_SCOPE, PUBLIC
from gateway.core.text_safety import escape_invisible, inline_code, to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.memory.dreams import Dreamer, find_pending_notes, render_pending_notes
from gateway.plugins.memory.journal import JournalStore, find_kept_notes, iter_unmarked
from gateway.plugins.memory.journal_file import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from gateway.plugins.memory.memory_file import (
    UNDONE,
    MemoryStore,
    find_last_effective_dream,
    format_as_list_item,
    load_dreams,
    load_memory_change,
    remove_note_lines,
    split_entries,
)
from gateway.plugins.memory.search import (
    HitBuilder,
    SearchHit,
    match_all_terms,
    split_words,
    to_handwritten_hit,
)
from gateway.store import LogEntry, NewEntry
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.stream.routing import find_agent

if TYPE_CHECKING:
    from gateway.core.api_models import WaitingItem

logger = logging.getLogger("reverie.memory")

MAX_QUERY_CHARS: Final = 200
MAX_MATCHES: Final = 10
MAX_WORDS: Final = 12
NO_MATCH: Final = (
    "None of your notes that may be shown here matches. All words must occur in the note; or give "
    "its handle from recall, e.g. n12."
)
NOT_ALLOWED: Final = (
    "Only an owner or admin may have you forget that, or whoever alone had you write it down. In a "
    "direct chat, anybody may have you forget what you wrote down in that chat."
)
DEFAULT_ENTRIES: Final = 5
MAX_NOTES: Final = 20
MAX_NOTE_CHARS: Final = 300
MAX_ENTRIES: Final = 500
"""Entries of MEMORY.md of an agent in the panel."""
EDIT_PATH: Final = "/api/plugins/memory/edit"
MAX_MEMORY_CHARS: Final = 6_000
OWNERS_ALONE: Final = N_("Only an owner can do that, in a direct chat with me.")
_HANDLE: Final = re.compile(r"n([0-9]{1,18})")
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_PAGE: Final = 200
_MAX_SEARCHED: Final = 2_000
"""Notes that are searched: hidden ones must not keep visible ones from the answer."""

_VisibleNote = tuple[SearchHit, bool]
"""A note that may be shown, and whether it is to be kept for good."""


class Memory(Plugin):
    """Journal, MEMORY.md and dreams of all agents."""

    name = "memory"
    summary = "keeps notes in a journal, and dreams them into MEMORY.md"
    family = "itself"
    watches = (NoteWritten,)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self.notes, self.file = JournalStore(gateway), MemoryStore(gateway)
        self.dreamer = Dreamer(gateway, context.internal, self.notes, self.file)
        self._gateway, self._store, self._places = gateway, gateway.store, gateway.places
        self._hits = HitBuilder(gateway.store, gateway.places, gateway.redactor)
        self._lock = asyncio.Lock()

    async def on_lease(self, lease: str) -> None:
        """Complete in the files of the agents that are led here from now on what a crash or a full
        disk held back. Disk errors are logged.
        """
        for agent in (one.id for one in self._gateway.live.settings.agents):
            if lease in {EVERYTHING, agent_lease(agent)}:
                await self.recover(agent)

    async def recover(self, agent: str) -> None:
        """Complete the files of an agent. Raises StoreError; disk errors are logged."""
        await self.notes.recover(agent)
        try:
            await self.file.finish_write(agent)
        except OSError as error:
            logger.warning("the memory of %s cannot be written or read: %s", agent, error)
        await self.apply_to_files(agent)

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        self.notes.on_notes(entries)

    # Tools

    @tool(
        "Write into your journal. What happened, what you found out, what you plan; it is not "
        "posted, and what is private stays private.",
        effect=OWN,
        ephemeral=True,
    )
    async def journal(
        self,
        context: ToolContext,
        *,
        title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="One line.")],
        text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)],
    ) -> str:
        title = to_single_line(title, len(title))
        if len(title) > MAX_TITLE_CHARS:
            raise ToolCallRefused(f"A title has at most {MAX_TITLE_CHARS} characters.")
        await self.notes.write(context, title, text, lasting=False)
        return "It is in your journal."

    @tool(
        "Keep a fact for good, unposted. What is private stays private.",
        effect=OWN,
        offer="described",
    )
    async def remember(
        self,
        context: ToolContext,
        *,
        text: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_TEXT_CHARS,
                description="Clear by itself: who, what, since when.",
            ),
        ],
    ) -> str:
        await self.notes.write(context, "", text, lasting=True)
        return "You will remember it."

    @tool(
        "Delete notes of yours. What remember or journal made; messages stay.",
        effect=OUT,
    )
    async def forget(
        self,
        context: ToolContext,
        *,
        what: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_QUERY_CHARS,
                description="Words of the note, or its handle, e.g. n12.",
            ),
        ],
    ) -> str | ToolOutput:
        """Forget the note that is meant, or list the candidates. Raises ToolCallRefused and
        StoreError.

        On return it is durable. On cancellation it is forgotten all the same, or not at all.
        """
        seq = parse_note_handle(what)
        found = await (
            self._find_note(seq, context) if seq is not None else self._find_by_words(what, context)
        )
        if not found:
            raise ToolCallRefused(NO_MATCH)
        deletable = [
            (one, hit) for one, hit in found if await self._may_delete(one, hit.scope, context)
        ]
        if not deletable:
            raise ToolCallRefused(NOT_ALLOWED)
        if len(deletable) > 1:
            words = split_words(what)
            lines = [f"{hit.handle} {hit.render(words)}" for _, hit in deletable[:MAX_MATCHES]]
            more = " There are more: give more words." if len(deletable) > MAX_MATCHES else ""
            head = f"Several are like that. Nothing is forgotten yet: name one by its handle.{more}"
            return ToolOutput(
                text="\n".join([head, *lines]),
                kind="messages",
                origin="your notes",
                is_untrusted=True,
                label=join(hit.label for _, hit in deletable[:MAX_MATCHES]),
            )
        return await run_to_completion(self._forget_note(deletable[0][0], context))

    async def _may_delete(self, note: LogEntry, scope: str, context: ToolContext) -> bool:
        """Return whether the requesters may have a note deleted that they can see."""
        if _is_asked_by_admins(context):
            return True
        if await self._places.is_direct(context.at.conversation):
            return scope == context.visibility.scope
        asking = {one.id for one in context.requesters if one.verified}
        turn = note.fact.turn if isinstance(note.fact, NoteWritten) else None
        written = await self._store.entry_by_key(f"turn:{turn}")
        if written is None or not isinstance(written.fact, TurnRecord) or len(asking) != 1:
            return False
        heard = [await self._store.entry(seq) for seq in written.fact.covers]
        asked = {
            one.fact.sender.id
            for one in heard
            if one is not None and isinstance(one.fact, Message) and one.fact.kind != "room"
        }
        return note.conversation == context.at.conversation and asked == asking

    async def _find_note(self, seq: Seq, context: ToolContext) -> list[tuple[LogEntry, SearchHit]]:
        """Return the note at a log position, unless it is forgotten or not visible in this
        context.
        """
        one = await self._store.entry(seq)
        return await self._filter_visible([one], context) if one is not None else []

    async def _find_by_words(
        self, what: str, context: ToolContext
    ) -> list[tuple[LogEntry, SearchHit]]:
        """Return the newest notes that hold all the words, a few more than are shown."""
        terms = [
            term for term in to_single_line(what, len(what)).split() if any(map(str.isalnum, term))
        ][:MAX_WORDS]
        found, match = list[tuple[LogEntry, SearchHit]](), match_all_terms(terms)
        most = _MAX_SEARCHED if terms else 0
        async for one in self._store.iter_newest(most, kinds=["noted"], match=match):
            found += await self._filter_visible([one], context)
            if len(found) == _PAGE:
                break
        return found

    async def _filter_visible(
        self, entries: Iterable[LogEntry], context: ToolContext
    ) -> list[tuple[LogEntry, SearchHit]]:
        """Return the notes that are visible in this context and not forgotten, as `recall` finds
        them.
        """
        notes = [one for one in entries if isinstance(one.fact, NoteWritten)]
        hits = [(one, await self._hits.build(one, context)) for one in notes]
        return context.visibility.only_visible(
            [(one, hit) for one, hit in hits if hit is not None], lambda pair: pair[1].scope
        )

    async def _forget_note(self, note: LogEntry, context: ToolContext) -> str:
        by = (
            ", ".join(f"{to_single_line(one.name, 100)} ({one.role})" for one in context.requesters)
            or "the agent itself"
        )
        fact = NoteForgotten(agent=context.agent, note=note.seq, by=by, turn=context.turn)
        entry = NewEntry(
            fact=fact,
            at=self._gateway.clock.now(),
            conversation=context.at.conversation,
            key=f"forgotten:{note.seq}",
        )
        await self._store.append([entry])
        trusted = note.seq if _is_asked_by_admins(context) else None
        late = (
            ""
            if await self.apply_to_files(context.agent, trusted=trusted)
            else " The files could not be written just now, and follow at the next start."
        )
        return (
            "It is forgotten. What MEMORY.md made of it leaves with the next dream. Do not "
            f"tell it again.{late}"
        )

    async def apply_to_files(self, agent: str, *, trusted: Seq | None = None) -> bool:
        """Remove forgotten notes from the files. False: a disk error. Raises StoreError.

        `trusted`: a note deleted by an owner or admin, whose lines in MEMORY.md go whoever wrote
        them.
        """
        mark = agent_state_directory(self._store.path, agent) / "forgotten.mark"
        async with self._lock:
            try:
                async for one in iter_unmarked(self._store, mark, "forgotten", agent):
                    if isinstance(one.fact, NoteForgotten):
                        await self._remove_from_files(
                            one.fact, one.seq, any_author=one.fact.note == trusted
                        )
            except OSError as error:
                logger.warning("what %s forgot is still in its files: %s", agent, error)
                return False
        return True

    async def _remove_from_files(
        self, forgotten: NoteForgotten, at: Seq, *, any_author: bool
    ) -> None:
        note = await self._store.entry(forgotten.note)
        if note is None or not isinstance(note.fact, NoteWritten):
            return
        await self.notes.remove_note(forgotten.agent, note, at)
        before = await self.file.read(forgotten.agent)
        after = remove_note_lines(before, note.fact.text)
        if after == before:
            return
        newest_first = await load_dreams(self._store, forgotten.agent)
        # Otherwise somebody could write down what already stands there, to have it removed.
        if any_author or any(forgotten.note in one.fact.notes for one in newest_first):
            upto = newest_first[0].fact.upto if newest_first else Seq(0)
            await self.file.rewrite(
                forgotten.agent, before=before, after=after, upto=upto, reason="forgotten"
            )

    # Commands

    async def suggest_notes(self, typed: CommandCompletion) -> list[str]:
        """Suggest notes of that place, the newest first."""
        agents = [one.id for one in self._gateway.live.settings.agents]
        agent, place = find_agent(self._places.bindings, typed.at, agents), typed.at.conversation
        found = await find_kept_notes(self._store, _PAGE, place)
        return [f"n{one.seq}" for one, noted in reversed(found) if noted.agent == agent]

    @command(
        "journal",
        "Show what I wrote down here lately.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
    )
    async def show_journal(
        self,
        call: CommandCall,
        n: Annotated[int, "How many entries.", Field(le=MAX_NOTES)] = DEFAULT_ENTRIES,
    ) -> CommandEffect:
        """List the newest entries, with those that people wrote into the files, the newest
        first.
        """
        where = await build_tool_context(call, self._places)
        found = [
            *await self._find_notes(call, where, n),
            *await self._find_handwritten(call, where),
        ]
        found.sort(key=lambda one: (one[0].at, one[0].seq), reverse=True)
        lines = [_format_note(one, call) for one in found[:n]]
        return done("\n".join(lines) or _("My journal has nothing that I may show here."))

    @route("GET", WAITING)
    async def list_waiting(self) -> "list[WaitingItem]":
        """Return the notes of others, which an owner may add to MEMORY.md."""
        from gateway.core.api_models import WaitingAction, WaitingItem  # noqa: PLC0415 - pages alone ask

        return [
            WaitingItem(
                id=f"n{one.seq}",
                kind="note",
                who=one.noted.by or agent,
                place=one.place,
                what=f"{agent} noted this to keep, and somebody else's words were in view",
                words=one.noted.text,
                since=one.at,
                actions=(
                    WaitingAction(
                        label="Add to memory",
                        words=("memory", "approve", f"n{one.seq}"),
                        agent=agent,
                        style="yes",
                        role="own",
                    ),
                    WaitingAction(
                        label="Forget",
                        words=("memory", "forget", f"n{one.seq}"),
                        agent=agent,
                        style="no",
                    ),
                ),
            )
            for agent in self._gateway.live.agents
            for one in await find_pending_notes(self._store, agent)
        ]

    @route("GET", "journal", panel="Journal")
    async def list_notes(self) -> list[dict[str, object]]:
        """Return the newest notes of all agents, the newest first."""
        return [
            {
                "when": one.at,
                "agent": note.agent,
                "where": self._places.titles.label(one.conversation) if one.conversation else "",
                "note": f"{note.title}: {note.text}" if note.title else note.text,
                "kept": "for good" if note.lasting else "",
                "_actions": [
                    {
                        "label": "Forget",
                        "words": ["memory", "forget", f"n{one.seq}"],
                        "agent": note.agent,
                        "confirm": "Forget this note?",
                    }
                ],
            }
            for one, note in reversed(await find_kept_notes(self._store, 100))
        ]

    @route("GET", "entries", panel="Memory")
    async def list_entries(self) -> list[dict[str, object]]:
        """Return the entries of each agent's MEMORY.md."""
        rows = list[dict[str, object]]()
        for agent in self._gateway.live.agents:
            try:
                text = await self.file.read(agent)
            except OSError as error:
                raise RouteRefused(f"MEMORY.md of {agent} cannot be read: {error}") from None
            entries = list(filter(str.strip, split_entries(text)))
            for entry in entries[:MAX_ENTRIES]:
                change = {"label": "Edit", "path": EDIT_PATH, "edit": {"after": entry}}
                question = f"Forget “{to_single_line(entry, 80)}”?"
                forget = {"label": "Forget", "path": EDIT_PATH, "confirm": question}
                needs = {"role": "own", "body": {"agent": agent, "before": entry, "after": ""}}
                actions = [{**one, **needs} for one in (change, forget)]
                rows.append({"agent": agent, "entry": entry, "_actions": actions})
            if (more := len(entries) - MAX_ENTRIES) > 0:
                rows.append({"agent": agent, "entry": f"(and {more} more in the file)"})
        return rows

    @route("POST", "edit", role="own")
    async def edit_entry(
        self,
        *,
        agent: str,
        before: Annotated[str, Field(min_length=1)],
        after: str,
    ) -> dict[str, object]:
        """Put another text in place of an entry of MEMORY.md. `after` empty: the entry goes."""
        if agent not in self._gateway.live.agents:
            raise RouteRefused(f"there is no agent {agent}")
        try:
            why = await self.file.edit(agent, before, after)
        except OSError as error:
            why = f"MEMORY.md cannot be written: {error.strerror or error}"
        if why:
            raise RouteRefused(why)
        return {"done": True}

    memory_command = command(
        "memory",
        "Show and change what I remember for good.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
    )

    @command("memory show", "Show all that I may tell here.")
    async def show_memory(self, call: CommandCall) -> CommandEffect:
        """List lasting notes; to an owner in a direct chat also MEMORY.md, which comes from all
        places.
        """
        where = await build_tool_context(call, self._places)
        lines = [
            _format_note(one, call)
            for one in await self._find_notes(call, where, MAX_NOTES, lasting=True)
        ]
        if lines:
            lines.insert(0, _("Notes that I keep, the newest first:"))
        if where.visibility.sees_everything:
            lines = [*await self._render_memory_file(where.agent), *lines]
        return done("\n".join(lines) or _("I keep no notes that I may show here."))

    @command("memory forget", "Forget a note.")
    async def forget_note(
        self,
        call: CommandCall,
        note: Annotated[
            str, "The number of the note, as in journal or memory show.", suggest_notes
        ],
    ) -> CommandEffect:
        seq, where = parse_note_handle(note), await build_tool_context(call, self._places)
        if seq is None:
            return refuse(
                _(
                    "Write the number of a note, for example `n12`, as `journal` or `memory show` "
                    "shows it."
                )
            )
        found = [
            one
            for one, hit in await self._find_note(seq, where)
            if _may_see(hit.scope, call, where)
        ]
        if not found:
            return refuse(
                _("There is no note `{note}` that I may show here.").format(note=f"n{seq}")
            )
        if not _may_forget(found[0], call):
            return refuse(
                _(
                    "I wrote that note in another room. Only an owner or admin of all rooms can "
                    "delete it."
                )
            )
        words = _(
            "I forgot note `{note}`. If MEMORY.md contains something from it, the next dream "
            "removes that."
        ).format(note=f"n{seq}")
        forgotten = EffectFact(
            NoteForgotten(agent=where.agent, note=seq, by=f"{call.person} ({call.role})"),
            key=f"forgotten:{seq}",
        )
        return done(
            words,
            forgotten,
            then=lambda cause: self._gateway.tasks.create_task(
                self._forget_in_files(call, where.agent, seq, cause)
            ),
        )

    @command("memory pending", "List notes of others, which an owner may add to MEMORY.md.")
    async def list_pending_notes(self, call: CommandCall) -> CommandEffect:
        """List the notes that wait for an owner, to an owner in a direct chat: they may come from
        any place.
        """
        if not sees_everything(call):
            return refuse(_(OWNERS_ALONE))
        found = await find_pending_notes(self._store, call.agent)
        if not found:
            return done(_("No note waits for your decision."))
        return done(render_pending_notes(found, call.prefix, format_place))

    @command("memory approve", "Add one of these notes to MEMORY.md.")
    async def approve_note(
        self,
        call: CommandCall,
        note: Annotated[str, "The number of the note, as in memory pending.", suggest_notes],
    ) -> CommandEffect:
        """Add a note to MEMORY.md, word for word. A repeated command adds it once."""
        if not sees_everything(call):
            return refuse(_(OWNERS_ALONE))
        seq, agent = parse_note_handle(note), call.agent
        pending = await find_pending_notes(self._store, agent)
        found = next((one for one in pending if one.seq == seq), None)
        if found is None:
            text = _(
                "No note with that number waits for your decision. `memory pending` shows those "
                "that wait."
            )
            return refuse(text)
        try:
            why = await self.file.approve(agent, found.seq, found.noted.text)
        except OSError as error:
            logger.warning("the memory of %s cannot be written: %s", agent, error)
            why = _("I cannot write the file; my log says why")
        if why:
            text = _("I did not add note `{note}` to MEMORY.md: {reason}.")
            return refuse(text.format(note=f"n{seq}", reason=why))
        shown = map(escape_invisible, format_as_list_item(found.noted.text).split("\n"))
        return done("\n".join([_("I added this to MEMORY.md:"), "```", *shown, "```"]))

    @command("memory undo", "Undo the last dream: MEMORY.md is as it was before.", operator=True)
    async def undo_dream(
        self,
        call: CommandCall,
        force: Annotated[
            Literal["force"] | None, "Do it even if somebody has edited it since."
        ] = None,
    ) -> CommandEffect:
        """Put back what MEMORY.md said before the last dream. Repeated, it goes back dream by
        dream.
        """
        if call.global_role != "owner":
            return refuse(_(OWNERS_ALONE))
        agent = call.agent
        await self.file.finish_write(agent)
        dreams, text = await load_dreams(self._store, agent), await self.file.read(agent)
        last = find_last_effective_dream(dreams)
        if last is None:
            return refuse(_("There is no dream to undo."))
        if text == last.fact.before:
            return refuse(_("The last dream changed nothing, or was already undone."))
        if text != last.fact.after and force is None:
            words = _(
                "Somebody edited MEMORY.md after the last dream. `memory undo force` undoes both, "
                "the dream and the edits."
            )
            return refuse(words)
        upto = dreams[0].fact.upto  # the notes are not dreamt of again: their result was rejected
        if not await self.file.rewrite(
            agent, before=text, after=last.fact.before, upto=upto, reason=UNDONE
        ):
            return refuse(_("MEMORY.md has just changed. Send the command again."))
        text = _("MEMORY.md is again as it was before {time} UTC.").format(
            time=f"{last.at:%Y-%m-%d %H:%M}"
        )
        return done(text)

    async def _forget_in_files(self, call: CommandCall, agent: str, seq: Seq, cause: Seq) -> None:
        trusted = seq if call.global_role in ADMIN_ROLES else None
        if not await self.apply_to_files(agent, trusted=trusted):
            text = _("I could not write my files. Note `{note}` leaves them at my next start.")
            text = text.format(note=f"n{seq}")
            await send_follow_up(self._gateway, call, cause, text)

    async def _find_notes(
        self, call: CommandCall, where: ToolContext, most: int, *, lasting: bool = False
    ) -> list[_VisibleNote]:
        found = list[_VisibleNote]()
        async for one in self._store.iter_newest(_MAX_SEARCHED, kinds=["noted"]):
            if not isinstance(one.fact, NoteWritten) or (lasting and not one.fact.lasting):
                continue
            if not _may_see(await self._hits.scope_of(one), call, where):
                continue
            if (hit := await self._hits.build(one, where)) is not None:
                found.append((hit, one.fact.lasting))
            if len(found) == most:
                break
        return found

    async def _find_handwritten(self, call: CommandCall, where: ToolContext) -> list[_VisibleNote]:
        try:
            entries = await self.notes.read_handwritten(where.agent)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", where.agent, error)
            return []
        hits = [
            replace(hit, text=self._gateway.redactor(hit.text))
            for hit in map(to_handwritten_hit, entries)
        ]
        return [(hit, False) for hit in hits if _may_see(hit.scope, call, where)]

    async def _render_memory_file(self, agent: str) -> list[str]:
        """Return the file, below what the last dream changed in it."""
        try:
            whole = await self.file.read(agent)
        except OSError as error:
            logger.warning("the memory of %s cannot be read: %s", agent, error)
            return [_("I cannot read MEMORY.md; my log says why.")]
        redactor, lines = self._gateway.redactor, list[str]()
        if (change := await load_memory_change(self._store, agent, text=whole)) is not None:
            dream, changes = change
            head = _("Last dream, {time} UTC:").format(time=f"{dream.at:%Y-%m-%d %H:%M}")
            lines = [head, "```", *(escape_invisible(redactor(one)) for one in changes), "```"]
        text = redactor(whole.strip())
        if not text:
            return lines
        cut = (
            text
            if len(text) <= MAX_MEMORY_CHARS
            else text[:MAX_MEMORY_CHARS].rpartition("\n")[0] or text[:MAX_MEMORY_CHARS]
        )
        lines += ["MEMORY.md:", "```", *map(escape_invisible, cut.split("\n")), "```"]
        if cut != text:
            lines.append(_("(and {count} more characters)").format(count=len(text) - len(cut)))
        return lines


def parse_note_handle(written: str) -> Seq | None:
    """Return the note that a handle names, e.g. n12, as `recall` shows it. None: it is no
    handle.
    """
    match = _HANDLE.fullmatch(written.strip(_QUOTES).lower())
    return Seq(int(match[1])) if match is not None else None


def _is_asked_by_admins(context: ToolContext) -> bool:
    requesters = context.requesters
    return bool(requesters) and all(one.role in ADMIN_ROLES for one in requesters)


def _may_see(scope: str, call: CommandCall, where: ToolContext) -> bool:
    if call.command.direct and call.role not in ADMIN_ROLES:
        return scope == where.visibility.scope
    return where.visibility.can_see(scope)


def _may_forget(note: LogEntry, call: CommandCall) -> bool:
    here = call.command.at.conversation
    own = isinstance(note.fact, NoteWritten) and note.fact.scope == here
    return (
        call.global_role in ADMIN_ROLES
        or note.conversation == here
        or (call.command.direct and own)
    )


def _format_note(one: _VisibleNote, call: CommandCall) -> str:
    hit, is_lasting = one
    name = f"`{hit.handle}` " if hit.handle else ""
    where = "" if hit.scope == call.command.at.conversation else f", {_format_scope(hit.scope)}"
    how = f", {_('to keep')}" if is_lasting else f", {_('by hand')}" if not hit.handle else ""
    text = inline_code(to_single_line(hit.text, len(hit.text)), MAX_NOTE_CHARS)
    return f"- {name}{hit.at:%Y-%m-%d %H:%M} UTC{where}{how}: {text}"


def _format_scope(scope: str) -> str:
    if scope == PUBLIC:
        return _("public")
    return _("for the owner") if scope == OWNER_SCOPE else format_place(ConversationId(scope))
