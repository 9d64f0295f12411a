"""Commands about an agent's notes: `journal` and `memory`."""

import logging
from dataclasses import replace
from typing import Final

from agent.journal import to_single_line
from channels.base import CommandCompletion
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    build_tool_context,
    format_place,
    sees_everything,
    send_follow_up,
)
from gateway.commands.definition import command, make_arg
from gateway.context.dream import find_pending_notes, render_pending_notes
from gateway.context.journal import parse_note_handle
from gateway.context.memory import (
    UNDONE,
    find_last_effective_dream,
    format_as_list_item,
    load_dreams,
    load_memory_change,
)
from gateway.context.search import (
    HitBuilder,
    SearchHit,
    scope_of_hit,
    to_handwritten_hit,
)
from gateway.core.events import ConversationId
from gateway.core.facts import NoteForgotten, NoteWritten, Seq
from gateway.core.i18n import N_, _
from gateway.core.identity import ADMIN_ROLES
from gateway.core.scopes import OWNER_SCOPE, PUBLIC
from gateway.core.text_safety import escape_invisible, inline_code
from gateway.core.tool import ToolContext
from gateway.store import LogEntry
from gateway.store.effects import CommandEffect, EffectFact, done, refuse

logger = logging.getLogger("reverie.commands")

DEFAULT_ENTRIES: Final = 5
"""Entries of the journal, if no number is given."""
MAX_NOTES: Final = 20
"""Notes in one answer."""
MAX_NOTE_CHARS: Final = 300
"""Characters of one note in an answer."""
MAX_MEMORY_CHARS: Final = 6_000
"""Characters of MEMORY.md in an answer."""
OWNERS_ALONE: Final = N_("Only an owner can do that, in a direct chat with me.")
_PAGE_SIZE: Final = 200
_MAX_PAGES: Final = 10
"""Pages of notes that are searched: hidden notes must not keep visible ones from the answer."""


_VisibleNote = tuple[SearchHit, bool]
"""A note that may be shown, and whether it is to be kept for good."""


async def suggest_notes(typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest notes of that place, the newest first."""
    agent, place = context.agent_at(typed.at), typed.at.conversation
    page = await context.gateway.store.newest_entries(
        _PAGE_SIZE, kinds=["noted"], conversation=place
    )
    gone = await context.gateway.store.forgotten_notes([one.seq for one in page])
    left = [one for one in reversed(page) if one.seq not in gone]
    return [
        f"n{one.seq}"
        for one in left
        if isinstance(one.fact, NoteWritten) and one.fact.agent == agent
    ]


@command(
    "journal",
    "Show what I wrote down here lately.",
    group="this conversation",
    args=(make_arg("n", "How many entries.", most=MAX_NOTES),),
    role="admin",
    allowed_in_own_chat=True,
    private=True,
)
async def show_journal(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List the newest entries, with those that people wrote into the files, the newest first."""
    count = int(call.arguments.get("n", DEFAULT_ENTRIES))
    where = await build_tool_context(call, context.gateway.places)
    found = [
        *await _find_notes(context, call, where, count),
        *await _find_handwritten(context, call, where),
    ]
    found.sort(key=lambda one: (one[0].at, one[0].seq), reverse=True)
    lines = [_format_note(one, call) for one in found[:count]]
    return done("\n".join(lines) or _("My journal has nothing that I may show here."))


MEMORY = command(
    "memory",
    "Show and change what I remember for good.",
    group="this conversation",
    role="admin",
    allowed_in_own_chat=True,
    private=True,
)


@command("memory show", "Show all that I may tell here.")
async def show_memory(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List lasting notes; to an owner in a direct chat also MEMORY.md, which comes from all
    places."""
    where = await build_tool_context(call, context.gateway.places)
    lines = [
        _format_note(one, call)
        for one in await _find_notes(context, call, where, MAX_NOTES, lasting=True)
    ]
    lines_shown = [_("Notes that I keep, the newest first:"), *lines] if lines else []
    if where.visibility.sees_everything:
        lines_shown = [
            *await _render_memory_file(context, where.agent),
            *lines_shown,
        ]
    return done("\n".join(lines_shown) or _("I keep no notes that I may show here."))


@command(
    "memory forget",
    "Forget a note.",
    args=(
        make_arg(
            "note",
            "The number of the note, as in journal or memory show.",
            needed=True,
            suggests=suggest_notes,
        ),
    ),
)
async def forget_note(call: CommandCall, context: CommandContext) -> CommandEffect:
    seq, where = (
        parse_note_handle(call.arguments["note"]),
        await build_tool_context(call, context.gateway.places),
    )
    if seq is None:
        return refuse(
            _(
                "Write the number of a note, for example `n12`, as `journal` or `memory show` "
                "shows it."
            )
        )
    found = [
        one
        for one, hit in await context.forgetter.find_note(seq, where)
        if _may_see(hit.scope, call, where)
    ]
    if not found:
        return refuse(_("There is no note `{note}` that I may show here.").format(note=f"n{seq}"))
    if not _may_forget(found[0], call):
        return refuse(
            _(
                "I wrote that note in another room. Only an owner or admin of all rooms can delete "
                "it."
            )
        )
    words = _(
        "I forgot note `{note}`. If MEMORY.md contains something from it, the next dream removes "
        "that."
    ).format(note=f"n{seq}")
    forgotten = EffectFact(
        NoteForgotten(agent=where.agent, note=seq, by=f"{call.person} ({call.role})"),
        key=f"forgotten:{seq}",
    )
    return done(
        words,
        forgotten,
        then=lambda cause: context.gateway.tasks.create_task(
            _forget_in_files(context, call, where.agent, seq, cause)
        ),
    )


@command("memory pending", "List notes of others, which an owner may add to MEMORY.md.")
async def list_pending_notes(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List the notes that wait for an owner, to an owner in a direct chat: they may come from any
    place."""
    if not sees_everything(call):
        return refuse(_(OWNERS_ALONE))
    found = await find_pending_notes(context.gateway.store, call.agent)
    if not found:
        return done(_("No note waits for your decision."))
    return done(render_pending_notes(found, call.prefix, format_place))


@command(
    "memory approve",
    "Add one of these notes to MEMORY.md.",
    args=(
        make_arg(
            "note",
            "The number of the note, as in memory pending.",
            needed=True,
            suggests=suggest_notes,
        ),
    ),
)
async def approve_note(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Add a note to MEMORY.md, word for word. A repeated command adds it once."""
    if not sees_everything(call):
        return refuse(_(OWNERS_ALONE))
    seq, agent = parse_note_handle(call.arguments["note"]), call.agent
    note = next(
        (one for one in await find_pending_notes(context.gateway.store, agent) if one.seq == seq),
        None,
    )
    if note is None:
        text = _(
            "No note with that number waits for your decision. `memory pending` shows those that "
            "wait."
        )
        return refuse(text)
    try:
        why = await context.forgetter.memory.approve(agent, note.seq, note.noted.text)
    except OSError as error:
        logger.warning("the memory of %s cannot be written: %s", agent, error)
        why = _("I cannot write the file; my log says why")
    if why:
        return refuse(
            _("I did not add note `{note}` to MEMORY.md: {reason}.").format(
                note=f"n{seq}", reason=why
            )
        )
    shown = [escape_invisible(line) for line in format_as_list_item(note.noted.text).split("\n")]
    return done("\n".join([_("I added this to MEMORY.md:"), "```", *shown, "```"]))


async def _forget_in_files(
    context: CommandContext, call: CommandCall, agent: str, seq: Seq, cause: Seq
) -> None:
    trusted = [seq] if call.global_role in ADMIN_ROLES else []
    if not await context.forgetter.apply_to_files(agent, trusted=trusted):
        words = _("I could not write my files. Note `{note}` leaves them at my next start.").format(
            note=f"n{seq}"
        )
        await send_follow_up(context, call, cause, words, private=True)


async def _find_notes(
    context: CommandContext,
    call: CommandCall,
    where: ToolContext,
    most: int,
    *,
    lasting: bool = False,
) -> list[_VisibleNote]:
    """Return notes of the log that may be shown there, the newest first."""
    found, before = list[_VisibleNote](), None
    search = HitBuilder(context.gateway.store, context.gateway.places, context.gateway.redactor)
    for __ in range(_MAX_PAGES):
        page = await context.gateway.store.newest_entries(
            _PAGE_SIZE, before=before, kinds=["noted"]
        )
        for one in reversed(page):
            if not isinstance(one.fact, NoteWritten) or (lasting and not one.fact.lasting):
                continue
            if not _may_see(await search.scope_of(one), call, where):
                continue
            hit = await search.build(one, where)
            if hit is not None:
                found.append((hit, one.fact.lasting))
            if len(found) == most:
                return found
        if len(page) < _PAGE_SIZE:
            break
        before = page[0].seq
    return found


async def _find_handwritten(
    context: CommandContext, call: CommandCall, where: ToolContext
) -> list[_VisibleNote]:
    """Return entries that people wrote into the journal's files."""
    try:
        entries = await context.forgetter.journal.read_handwritten(where.agent)
    except OSError as error:
        logger.warning("the journal of %s cannot be read: %s", where.agent, error)
        return []
    hits = [
        replace(hit, text=context.gateway.redactor(hit.text))
        for hit in map(to_handwritten_hit, entries)
    ]
    return [(hit, False) for hit in hits if _may_see(scope_of_hit(hit), call, where)]


async def _render_last_dream(context: CommandContext, agent: str, text: str) -> list[str]:
    """Return what the last dream changed in the file, which says `text` now."""
    found = await load_memory_change(context.gateway.store, agent, text=text)
    if found is None:
        return []
    dream, changes = found
    head = _("Last dream, {time} UTC:").format(time=f"{dream.at:%Y-%m-%d %H:%M}")
    return [
        head,
        "```",
        *(escape_invisible(context.gateway.redactor(one)) for one in changes),
        "```",
    ]


async def _render_memory_file(context: CommandContext, agent: str) -> list[str]:
    """Return the file, below what the last dream changed in it."""
    try:
        whole = await context.forgetter.memory.read(agent)
    except OSError as error:
        logger.warning("the memory of %s cannot be read: %s", agent, error)
        return [_("I cannot read MEMORY.md; my log says why.")]
    changes = await _render_last_dream(context, agent, whole)
    text = context.gateway.redactor(whole.strip())
    if not text:
        return changes
    cut = (
        text
        if len(text) <= MAX_MEMORY_CHARS
        else text[:MAX_MEMORY_CHARS].rpartition("\n")[0] or text[:MAX_MEMORY_CHARS]
    )
    more = (
        [_("(and {count} more characters)").format(count=len(text) - len(cut))]
        if cut != text
        else []
    )
    return [
        *changes,
        "MEMORY.md:",
        "```",
        *(escape_invisible(line) for line in cut.split("\n")),
        "```",
        *more,
    ]


@command(
    "memory undo",
    "Undo the last dream: MEMORY.md is as it was before.",
    args=(make_arg("force", "Do it even if somebody has edited it since.", "force"),),
    operator=True,
)
async def undo_dream(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Put back what MEMORY.md said before the last dream. Repeated, it goes back dream by dream."""
    agent, memory = call.agent, context.forgetter.memory
    await memory.finish_write(agent)
    dreams, text = await load_dreams(context.gateway.store, agent), await memory.read(agent)
    last = find_last_effective_dream(dreams)
    if last is None:
        return refuse(_("There is no dream to undo."))
    if text == last.fact.before:
        return refuse(_("The last dream changed nothing, or was already undone."))
    if text != last.fact.after and "force" not in call.arguments:
        words = _(
            "Somebody edited MEMORY.md after the last dream. `memory undo force` undoes both, the "
            "dream and the edits."
        )
        return refuse(words)
    upto = dreams[0].fact.upto  # the notes are not dreamt of again: their result was rejected
    if not await memory.rewrite(
        agent, before=text, after=last.fact.before, upto=upto, reason=UNDONE
    ):
        return refuse(_("MEMORY.md has just changed. Send the command again."))
    text = _("MEMORY.md is again as it was before {time} UTC.").format(
        time=f"{last.at:%Y-%m-%d %H:%M}"
    )
    return done(text)


def _may_see(scope: str, call: CommandCall, where: ToolContext) -> bool:
    """Return whether a note of that scope may be shown to the sender."""
    if call.command.direct and call.role not in ADMIN_ROLES:
        return scope == where.visibility.scope
    return where.visibility.can_see(scope)


def _may_forget(note: LogEntry, call: CommandCall) -> bool:
    """Return whether the sender may forget a note that they may see."""
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
