"""Dreams: consolidation of the notes since the last dream into MEMORY.md, by one request to the
agent's model.

- The notes come from private places, too. So a dream posts nothing, and its result is shown to a
  verified owner alone: neither text nor notes belong into the record of its turn, which stands in a
  public conversation.
- Notes of turns that had read words of others than owners and admins, or text from outside, are not
  given to the model. They stay in the memory of their room; an owner may add one to the file
  (`find_pending_notes`).
- A note that was forgotten after an earlier dream used it is given to the model once more, as one
  to be removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from agent.journal import to_single_line
from agent.models.base import (
    FailureCause,
    Model,
    PromptTooLong,
    RequestRefused,
    ToolResult,
)
from agent.prompt import PromptInput, PromptTurn
from agent.prompts import load_prompt
from agent.tokens.counter import estimate_tokens
from agent.turn import take_turn
from agent.turn_context import NO_USAGE, TurnHost, TurnOutcome, budget_tokens
from agent.workspace.character_card import normalize_text
from gateway.context.journal import JournalStore
from gateway.context.memory import (
    MemoryStore,
    find_newest_dream,
    format_as_list_item,
    list_changed_lines,
    load_dreams,
)
from gateway.core.events import ConversationId, RequestUsage, Usage
from gateway.core.facts import NoteForgotten, NoteWritten, Seq
from gateway.core.i18n import N_, _
from gateway.core.labels import describe_integrity
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import escape_invisible
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.store import LogEntry, Store, StoreReader

_PAGE: Final = 200
_MAX_PENDING_NOTES: Final = 1_000
"""Newest notes that are searched for pending ones."""
_MAX_PENDING_CHARS: Final = 8_000
"""Characters of pending notes shown at once; a note is shown whole or not at all."""

MEMORY_CHARS: Final = 8_000
"""Maximal size of MEMORY.md."""
MAX_NOTES_TOKENS: Final = 8_000
"""Size of the notes in one dream; the rest is left for the next."""
DREAM_REASON: Final = "dreamt"
_MAX_TOOL_ROUNDS: Final = 1
_TOO_LONG_PROMPT: Final = (
    "That is {} characters, and {} is the most. Write the whole file again, "
    "shorter: drop what matters least."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamNote:
    """A note, as a dream uses it."""

    seq: Seq
    """Log position of the note; of a forgotten one, of its `NoteForgotten`."""
    at: datetime
    place: ConversationId
    """Conversation in which it was written."""
    noted: NoteWritten
    is_forgotten: bool = False
    """An earlier dream used it, and it is to be forgotten now."""

    @property
    def is_trusted(self) -> bool:
        """True if a dream may use it."""
        return self.noted.label.is_trusted


class DreamInput(NamedTuple):
    """Notes since a certain log position."""

    notes: list[DreamNote]
    """Notes that a dream may use, oldest first."""
    upto: Seq
    """Log position up to which all notes are included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult:
    """Outcome of one dream."""

    outcome: Literal["dreamt", "unchanged", "failed"]
    """unchanged: there was nothing new, or nothing worth a change."""
    reason: str = ""
    """Reason of a failure; holds no secrets and no text of notes."""
    cause: FailureCause = "broken"
    """Cause of a failure."""
    changed: int = 0
    """Lines of the file that went or came."""
    accounts: tuple[RequestUsage, ...] = ()
    requests: int = 0
    usage: Usage = NO_USAGE
    model: str = ""


class Dreamer:
    """Runs the dreams of all agents. One dream of an agent at a time."""

    def __init__(
        self,
        store: Store,
        notes: JournalStore,
        memory: MemoryStore,
    ) -> None:
        self._store = store
        self._journal = notes
        self._memory = memory

    async def dream(
        self,
        brief: PromptInput,
        model: Model,
        host: TurnHost,
        *,
        agent: str,
        memory_chars: int,
    ) -> DreamResult:
        """Run one dream. Raises StoreError.

        `brief`: persona, binding and card of the inner conversation, without input. A failure
        changes nothing, and the notes are left for the next dream. On cancellation `host.progress`
        holds the costs, and the file is as before, or its new version is durable and
        `MemoryStore.finish_write` completes it.
        """
        try:
            await self._memory.finish_write(agent)
            before = await self._memory.read(agent)
        except OSError as error:
            return DreamResult(
                outcome="failed", reason=f"MEMORY.md cannot be read: {error.strerror or error}"
            )
        last = await find_newest_dream(self._store, agent)
        if last is not None:
            self._journal.mark_dreamt(
                agent, last.fact.upto
            )  # a cancelled dream may have been durable
        found = await load_dream_input(
            self._store,
            agent,
            last.fact.upto if last is not None else Seq(0),
            _notes_budget_tokens(brief, model, before),
        )
        if not found.notes:
            self._journal.mark_dreamt(agent, found.upto)
            return DreamResult(
                outcome="unchanged",
                reason="nothing was written down since the last dream that may change it",
            )
        request = _MemoryRequest(model, host, agent)
        after, done = await request.request_text(
            replace(brief, input_text=render_dream_prompt(before, found.notes, memory_chars)),
            memory_chars,
        )
        if not after:
            return _build_result(done, "failed", reason=done.reason or "the model wrote nothing")
        return await self._save(agent, before, after, found.upto, done)

    async def _save(
        self, agent: str, before: str, after: str, upto: Seq, done: TurnOutcome
    ) -> DreamResult:
        try:
            is_written = await self._memory.rewrite(
                agent, before=before, after=f"{after}\n", upto=upto, reason=DREAM_REASON
            )
        except OSError as error:
            return _build_result(
                done, "failed", reason=f"MEMORY.md cannot be written: {error.strerror or error}"
            )
        if not is_written:
            return _build_result(
                done,
                "failed",
                reason="MEMORY.md was changed meanwhile: the next dream begins with that",
            )
        self._journal.mark_dreamt(agent, upto)
        changed = len(list_changed_lines(before, after))
        return _build_result(done, "dreamt" if changed else "unchanged", changed=changed)


async def load_dream_input(store: Store, agent: str, after: Seq, budget: int) -> DreamInput:
    """Return the oldest notes after `after` that fit into `budget` tokens; at least one, if there
    is any.
    """
    found, since, upto = list[DreamNote](), after, after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        forgotten = await store.forgotten_notes([one.seq for one in page])
        for one in page:
            note = await _find_note(store, one, since) if one.seq not in forgotten else None
            if note is None or note.noted.agent != agent:
                continue
            if note.is_trusted:
                budget -= estimate_tokens(render_note(note))
                if found and budget < 0:
                    return DreamInput(found, upto)
                found.append(note)
            upto = one.seq
        if len(page) < _PAGE:
            return DreamInput(found, upto)
        after = page[-1].seq


async def find_pending_notes(store: StoreReader, agent: str) -> list[DreamNote]:
    """Return an agent's newest notes that wait for an owner's approval, oldest first. Raises
    StoreError.
    """
    found = await store.newest_entries(_MAX_PENDING_NOTES, kinds=["noted"])
    forgotten = await store.forgotten_notes([one.seq for one in found])
    approved = {seq for dream in await load_dreams(store, agent) for seq in dream.fact.notes}
    notes = [
        _build_note(one.seq, one, one.fact)
        for one in found
        if isinstance(one.fact, NoteWritten) and one.seq not in forgotten
    ]
    return [
        one
        for one in notes
        if one.noted.agent == agent
        and one.noted.lasting
        and not one.is_trusted
        and one.seq not in approved
    ]


def render_pending_notes(
    notes: Sequence[DreamNote], prefix: str, label: Callable[[ConversationId], str]
) -> str:
    """Return the question to an owner, in Markdown. Pure.

    Each note is shown whole, as it would stand in MEMORY.md, or not at all. `prefix`: prefix of
    commands where the text is read. `label`: return the label of a place there.
    """
    lines, left = list[str](), _MAX_PENDING_CHARS
    for shown, one in enumerate(notes):
        text = [escape_invisible(line) for line in format_as_list_item(one.noted.text).split("\n")]
        left -= sum(map(len, text))
        if shown and left < 0:
            more = _("And {count} more. When you have decided about these, `{command}` shows them.")
            lines.append(more.format(count=len(notes) - shown, command=f"{prefix}memory pending"))
            break
        head = _("`{note}`, {time} UTC, in {room}, from {authors}:").format(
            note=f"n{one.seq}",
            time=f"{one.at:%Y-%m-%d %H:%M}",
            room=label(one.place),
            authors=_(_AUTHOR_TEXTS[one.noted.label.integrity]),
        )
        lines.append(head)
        lines += ["```", *text, "```"]
    head = _(
        "I was asked to remember these notes. People who are not owners or admins asked for them "
        "or influenced them, so they stay in their rooms unless you add them to MEMORY.md:"
    )
    tail = _(
        "`{approve}` adds a note to MEMORY.md, word for word. `{forget}` deletes it. If you do "
        "nothing, it stays out "
        "of MEMORY.md."
    ).format(approve=f"{prefix}memory approve NUMBER", forget=f"{prefix}memory forget NUMBER")
    return "\n".join([head, *lines, tail])


_AUTHOR_TEXTS: Final = {
    "outside": N_("text from outside"),
    "guest": N_("guests and above"),
    "member": N_("members and above"),
    "admin": N_("admins and above"),
    "owner": N_("owners"),
}
"""Authors of a note, by its integrity."""


def render_dream_prompt(before: str, notes: Sequence[DreamNote], memory_chars: int) -> str:
    """Return the prompt of a dream. Pure. Quoted text is indented, so that nothing of it looks like
    a frame.
    """
    memory = indent_text(before) if normalize_text(before) else "(empty)"
    lines = "\n".join(render_note(note) for note in notes)
    instructions = load_prompt("dreaming").replace("{chars}", str(memory_chars))
    return (
        f"{instructions}\n\nMEMORY.md as it is now:\n{memory}\n\nWritten down since, the oldest "
        f"first:\n{lines}"
    )


def render_note(note: DreamNote) -> str:
    """Return a note as the model sees it: a quotation with its scope, role and place."""
    noted = note.noted
    whence = "public" if noted.scope == PUBLIC else f"private, of {to_single_line(noted.scope)}"
    whence += f"; asked for by {to_single_line(noted.by)}" if noted.by else ""
    whence += (
        f"; rests on {describe_integrity(noted.label.integrity)}, in {to_single_line(note.place)}"
    )
    what = "to remember" if noted.lasting else "journal"
    what = (
        "to be forgotten: MEMORY.md must say nothing of it any more" if note.is_forgotten else what
    )
    title = f" {to_single_line(noted.title)}" if noted.title else ""
    return f"[{note.at:%Y-%m-%d %H:%M} UTC] ({what}; {whence}){title}\n{indent_text(noted.text)}"


def indent_text(text: str) -> str:
    """Indent text, so that nothing of it looks like a frame."""
    return "\n".join(f"  {line}" for line in normalize_text(text).split("\n"))


def truncate_lines(text: str, max_chars: int) -> str:
    """Return the lines that fit into `max_chars` characters. Pure.

    Of a single long line its beginning. `text` has no empty lines at its ends.
    """
    if len(text) <= max_chars:
        return text
    lines = text[: max_chars + 1].rpartition("\n")[0].rstrip()
    return lines or text[:max_chars].rstrip()


def strip_wrapping(text: str) -> str:
    """Remove what wraps a model's file: a fence around all of it, its own name as a heading.
    Pure.
    """
    lines = normalize_text(text).split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    text = normalize_text("\n".join(lines))
    return (
        text.removeprefix("# MEMORY.md\n").strip("\n") if text.startswith("# MEMORY.md\n") else text
    )


async def _find_note(store: Store, entry: LogEntry, since: Seq) -> DreamNote | None:
    """Return the note of a log entry for a dream. None: it does not concern dreams.

    A `NoteForgotten` concerns them only if an earlier dream (up to `since`) used the note.
    """
    if isinstance(entry.fact, NoteForgotten):
        noted = await store.entry(entry.fact.note) if entry.fact.note <= since else None
        if noted is not None and isinstance(noted.fact, NoteWritten):
            return _build_note(entry.seq, noted, noted.fact, forgotten=True)
    return (
        _build_note(entry.seq, entry, entry.fact) if isinstance(entry.fact, NoteWritten) else None
    )


def _build_note(
    seq: Seq, entry: LogEntry, noted: NoteWritten, *, forgotten: bool = False
) -> DreamNote:
    place = entry.conversation or ConversationId("")
    return DreamNote(seq=seq, at=entry.at, place=place, noted=noted, is_forgotten=forgotten)


class DreamHost(TurnHost):
    """Host of a dream. It has the agent's tools, so that the cached prefix stays the same; every
    call is refused.
    """

    def __init__(self, specs: tuple[ToolSpec, ...]) -> None:
        super().__init__()
        self.specs = specs

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(
            id=call.id,
            text="You are dreaming: no tools. Write the text of MEMORY.md.",
            is_error=True,
        )


@dataclass(frozen=True, slots=True)
class _MemoryRequest:
    """Requests to the model for the new text of MEMORY.md."""

    model: Model
    host: TurnHost
    agent: str

    async def request_text(self, brief: PromptInput, max_chars: int) -> tuple[str, TurnOutcome]:
        """Return the file's new text and the outcome. Empty text: there is none, and the outcome
        says why.
        """
        max_chars -= 1  # one character for the file's line end
        done = await self._ask(brief)
        text = strip_wrapping(done.text) if done.outcome == "replied" else ""
        if len(text) <= max_chars:
            return text, done
        first = PromptTurn(input_text=brief.input_text, reply=done.text)
        again = replace(
            brief,
            history=(*brief.history, first),
            input_text=_TOO_LONG_PROMPT.format(len(text), max_chars),
        )
        done = await self._ask(again)
        shorter = strip_wrapping(done.text) if done.outcome == "replied" else ""
        return truncate_lines(shorter or text, max_chars), done

    async def _ask(self, brief: PromptInput) -> TurnOutcome:
        try:
            done = await take_turn(
                brief,
                self.model,
                self.host,
                key=self.agent,
                max_tool_rounds=_MAX_TOOL_ROUNDS,
            )
            return replace(done, outcome="failed", text="") if done.cause == "cut" else done
        except (PromptTooLong, RequestRefused) as error:
            self.host.progress.record_lost(error.accounts)
            return self.host.progress.finish(TurnOutcome(outcome="failed", reason=error.reason))


def _notes_budget_tokens(brief: PromptInput, model: Model, before: str) -> int:
    """Return how many tokens the notes of a dream may take."""
    fixed = sum(
        map(
            estimate_tokens,
            (brief.persona, brief.binding.prompt, brief.card, before, load_prompt("dreaming")),
        )
    )
    return min(MAX_NOTES_TOKENS, budget_tokens(model.context_tokens, fixed))


def _build_result(
    done: TurnOutcome,
    outcome: Literal["dreamt", "unchanged", "failed"],
    *,
    reason: str = "",
    changed: int = 0,
) -> DreamResult:
    return DreamResult(
        outcome=outcome,
        reason=reason,
        cause=done.cause,
        changed=changed,
        accounts=done.accounts,
        requests=done.requests,
        usage=done.usage,
        model=done.model,
    )
