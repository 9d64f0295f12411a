"""A dream: what the agent wrote down since the last one is consolidated into MEMORY.md, by one request to its model.

What it is made of comes from private places, too. So nothing of it is said, and its result is told to a verified owner
alone: neither text nor notes belong into the record of its turn, which stands in a public conversation.

What a dream is made of: what was written down since the last one, and what of it is to be forgotten.

Of notes of turns that had read words of others than owners and admins, or text from outside, no model makes MEMORY.md:
those that are to be remembered for good wait for an owner's word.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from agent import view
from agent.brief import NO_USAGE, PromptInput, PromptTurn, TurnOutcome, TurnProgress
from agent.journal import to_single_line
from agent.models.base import Model, ModelRequest, PromptTooLong, RequestRefused, ToolResult
from agent.prompts import load_prompt
from agent.turn import Toolset, take_turn
from agent.view import estimate_tokens
from agent.workspace.character_card import normalize_text
from gateway.access.approval_texts import escape_invisible
from gateway.context.journal import JournalStore
from gateway.context.memory import MemoryStore, find_newest_dream, format_as_list_item, format_diff, load_dreams
from gateway.core.events import ConversationId, RequestUsage, Usage
from gateway.core.facts import NoteForgotten, NoteWritten, Seq
from gateway.core.scopes import PUBLIC, is_trusted
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.store import LogEntry, Store, StoreReader

_PAGE: Final = 200
_MAX_PENDING_NOTES: Final = 1_000
"""Notes that are looked through for those that wait."""
_MAX_PENDING_CHARS: Final = 8_000
"""Of such notes shown at once, each of them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamNote:
    """Something that was written down."""

    seq: Seq
    """Where it stands; of what is forgotten, where that does."""
    at: datetime
    place: ConversationId
    """Where it was written down."""
    noted: NoteWritten
    is_forgotten: bool = False
    """It is to be forgotten, and a dream before had it."""

    @property
    def is_trusted(self) -> bool:
        """Whether a dream may make something of it."""
        return is_trusted(self.noted.role, foreign=self.noted.foreign)


class DreamInput(NamedTuple):
    """What was written down since some moment."""

    notes: list[DreamNote]
    """What a dream may make something of, the oldest first."""
    pending: list[DreamNote]
    """What is to be remembered only with an owner's word, the oldest first."""
    upto: Seq
    """Nothing that stands up to here is left out."""


async def load_dream_input(store: Store, agent: str, after: Seq, budget: int) -> DreamInput:
    """The oldest notes since then that fit in so many tokens; at least one, if there is any."""
    found, waiting, since, upto = list[DreamNote](), list[DreamNote](), after, after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        gone = await store.forgotten_notes([one.seq for one in page])
        for one in page:
            note = await _find_note(store, one, since) if one.seq not in gone else None
            if note is None or note.noted.agent != agent:
                continue
            if note.is_trusted:
                budget -= estimate_tokens(render_note(note))
                if found and budget < 0:
                    return DreamInput(found, waiting, upto)
                found.append(note)
            elif note.noted.lasting and not note.is_forgotten:
                waiting.append(note)
            upto = one.seq
        if len(page) < _PAGE:
            return DreamInput(found, waiting, upto)
        after = page[-1].seq


async def _find_note(store: Store, one: LogEntry, since: Seq) -> DreamNote | None:
    """None: no dream before had it, and none is to have it. Those before had what was noted until `since`."""
    if isinstance(one.fact, NoteForgotten):
        noted = await store.entry(one.fact.note) if one.fact.note <= since else None
        if noted is not None and isinstance(noted.fact, NoteWritten):
            return _build_note(one.seq, noted, noted.fact, forgotten=True)
    return _build_note(one.seq, one, one.fact) if isinstance(one.fact, NoteWritten) else None


def _build_note(seq: Seq, of: LogEntry, noted: NoteWritten, *, forgotten: bool = False) -> DreamNote:
    place = of.conversation or ConversationId("")
    return DreamNote(seq=seq, at=of.at, place=place, noted=noted, is_forgotten=forgotten)


async def find_pending_notes(store: StoreReader, agent: str) -> list[DreamNote]:
    """An agent's newest that were to be remembered and wait for an owner's word, oldest first. Raises StoreError."""
    found = await store.newest_entries(_MAX_PENDING_NOTES, kinds=["noted"])
    gone = await store.forgotten_notes([one.seq for one in found])
    approved = {seq for dream in await load_dreams(store, agent) for seq in dream.fact.notes}
    notes = [
        _build_note(one.seq, one, one.fact)
        for one in found
        if isinstance(one.fact, NoteWritten) and one.seq not in gone
    ]
    return [
        one
        for one in notes
        if one.noted.agent == agent and one.noted.lasting and not one.is_trusted and one.seq not in approved
    ]


def render_note(note: DreamNote) -> str:
    """As the model is told of it: a quotation, with whose words it was made of, and where."""
    noted = note.noted
    whence = "public" if noted.scope == PUBLIC else f"private, of {to_single_line(noted.scope)}"
    whence += f"; from the words of the role {to_single_line(noted.role)}, in {to_single_line(note.place)}"
    what = "to remember" if noted.lasting else "journal"
    what = "to be forgotten: MEMORY.md must say nothing of it any more" if note.is_forgotten else what
    title = f" {to_single_line(noted.title)}" if noted.title else ""
    return f"[{note.at:%Y-%m-%d %H:%M} UTC] ({what}; {whence}){title}\n{indent_text(noted.text)}"


def indent_text(text: str) -> str:
    """So that nothing of it looks like a frame."""
    return "\n".join(f"  {line}" for line in normalize_text(text).split("\n"))


def render_pending_notes(notes: Sequence[DreamNote], prefix: str, label: Callable[[ConversationId], str]) -> str:
    """What an owner is asked, in Markdown: each note whole, as it would stand in MEMORY.md, or not at all. Pure.

    `prefix`: in front of a command where it is read. `label`: how a place is called there.
    """
    lines, left = list[str](), _MAX_PENDING_CHARS
    for shown, one in enumerate(notes):
        text = [escape_invisible(line) for line in format_as_list_item(one.noted.text).split("\n")]
        left -= sum(map(len, text))
        if shown and left < 0:
            lines.append(f"And {len(notes) - shown} more: `{prefix}memory pending` shows them once these are decided.")
            break
        role, beside = one.noted.role or "guest", ", beside text from outside" if one.noted.foreign else ""
        lines.append(f"`n{one.seq}`, {one.at:%Y-%m-%d %H:%M} UTC, in {label(one.place)}, lowest role {role}{beside}:")
        lines += ["```", *text, "```"]
    head = (
        "I was asked to remember this by others than owners and admins, or beside words of theirs. Nothing of it is in "
        "MEMORY.md unless you say so:"
    )
    tail = (
        f"`{prefix}memory approve NUMBER` puts one into MEMORY.md, word for word. `{prefix}memory forget NUMBER` has "
        "me forget it. If you do nothing, it stays out."
    )
    return "\n".join([head, *lines, tail])


MAX_NOTES_TOKENS: Final = 8_000
"""Of notes in one dream; the rest is for the next."""
DREAM_REASON: Final = "dreamt"
_MAX_TOOL_ROUNDS: Final = 1
_TOO_LONG_PROMPT: Final = (
    "That is {} characters, and {} is the most. Write the whole file again, shorter: drop what matters least."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult:
    """What came of it."""

    outcome: Literal["dreamt", "unchanged", "failed"]
    """unchanged: there was nothing new, or nothing of it was worth a change."""
    reason: str = ""
    """Why it failed; holds no secrets and nothing that was noted."""
    diff: str = ""
    """What changed in the file, as a unified diff. Private."""
    accounts: tuple[RequestUsage, ...] = ()
    requests: int = 0
    usage: Usage = NO_USAGE
    model: str = ""


class _DisabledTools:
    """The same tools, so that the cached prefix is the same; none is carried out."""

    def __init__(self, tools: Toolset) -> None:
        self._tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(id=call.id, text="You are dreaming: no tools. Write the text of MEMORY.md.", is_error=True)


class Dreamer:
    """Dreams for all agents. One dream of an agent at a time."""

    def __init__(
        self,
        store: Store,
        notes: JournalStore,
        memory: MemoryStore,
        propose: Callable[[str, Sequence[DreamNote]], Awaitable[None]] | None = None,
    ) -> None:
        """`propose` tells owners of an agent's notes that wait for their word. None: nobody is told."""
        self._propose = propose
        self._store = store
        self._journal = notes
        self._memory = memory

    async def dream(
        self,
        brief: PromptInput,
        model: Model,
        tools: Toolset,
        *,
        agent: str,
        memory_chars: int,
        afford: Callable[[ModelRequest], bool] = lambda _: True,
        progress: TurnProgress | None = None,
    ) -> DreamResult:
        """One dream. `brief`: the inner conversation's persona, binding and card, with nothing said in it.

        `tools`, `afford` and `progress` as `agent.turn.take_turn`; no tool is carried out. A failure changes nothing,
        and what was noted is there for the next one. Raises StoreError. Cancelled, `progress` says what it cost, and
        the file is as before, or its new version is durable and `MemoryStore.settle` goes on with it.
        """
        if not memory_chars:
            return DreamResult(outcome="unchanged", reason="dmn.memory_chars is 0")
        try:
            await self._memory.finish_write(agent)
            before = await self._memory.read(agent)
        except OSError as error:
            return DreamResult(outcome="failed", reason=f"MEMORY.md cannot be read: {error.strerror or error}")
        last = await find_newest_dream(self._store, agent)
        if last is not None:
            self._journal.mark_dreamt(agent, last.fact.upto)  # one that was cancelled may have been durable
        found = await load_dream_input(
            self._store,
            agent,
            last.fact.upto if last is not None else Seq(0),
            _notes_budget_tokens(brief, model, before),
        )
        if found.pending and self._propose is not None:
            await self._propose(agent, found.pending)
        if not found.notes:
            return await self._skip(agent, before, found)
        asking = _MemoryRequest(model, _DisabledTools(tools), agent, afford, progress or TurnProgress())
        after, done = await asking.request_text(
            replace(brief, input_text=render_dream_prompt(before, found.notes, memory_chars)), memory_chars
        )
        if not after:
            return _build_result(done, "failed", reason=done.reason or "the model wrote nothing")
        return await self._save(agent, before, after, found.upto, done)

    async def _skip(self, agent: str, before: str, found: DreamInput) -> DreamResult:
        """There is nothing to ask a model for. What owners were told of they are not told again."""
        if found.pending:
            try:
                await self._memory.rewrite(agent, before=before, after=before, upto=found.upto, reason=DREAM_REASON)
            except OSError as error:
                return DreamResult(outcome="failed", reason=f"MEMORY.md cannot be written: {error.strerror or error}")
            self._journal.mark_dreamt(agent, found.upto)
        return DreamResult(
            outcome="unchanged", reason="nothing was written down since the last dream that may change it"
        )

    async def _save(self, agent: str, before: str, after: str, upto: Seq, done: TurnOutcome) -> DreamResult:
        try:
            same = await self._memory.rewrite(agent, before=before, after=f"{after}\n", upto=upto, reason=DREAM_REASON)
        except OSError as error:
            return _build_result(done, "failed", reason=f"MEMORY.md cannot be written: {error.strerror or error}")
        if not same:
            return _build_result(
                done, "failed", reason="MEMORY.md was changed meanwhile: the next dream begins with that"
            )
        self._journal.mark_dreamt(agent, upto)
        changed = format_diff(before, f"{after}\n")
        return _build_result(done, "dreamt" if changed else "unchanged", changed=changed)


def render_dream_prompt(before: str, notes: Sequence[DreamNote], memory_chars: int) -> str:
    """What the model is asked. Pure. What is quoted is indented, so that nothing of it looks like a frame."""
    memory = indent_text(before) if normalize_text(before) else "(empty)"
    lines = "\n".join(render_note(note) for note in notes)
    asked = load_prompt("dreaming").replace("{chars}", str(memory_chars))
    return f"{asked}\n\nMEMORY.md as it is now:\n{memory}\n\nWritten down since, the oldest first:\n{lines}"


def truncate_lines(text: str, most: int) -> str:
    """The lines that fit; of a single long one its beginning. `text` has no empty lines at its ends. Pure."""
    if len(text) <= most:
        return text
    lines = text[: most + 1].rpartition("\n")[0].rstrip()
    return lines or text[:most].rstrip()


def strip_wrapping(text: str) -> str:
    """What a model wrote, without what only wraps a file: a fence around all of it, its own name as a heading. Pure."""
    lines = normalize_text(text).split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    text = normalize_text("\n".join(lines))
    return text.removeprefix("# MEMORY.md\n").strip("\n") if text.startswith("# MEMORY.md\n") else text


@dataclass(frozen=True, slots=True)
class _MemoryRequest:
    """Asks the model for the file."""

    model: Model
    tools: Toolset
    agent: str
    afford: Callable[[ModelRequest], bool]
    progress: TurnProgress

    async def request_text(self, brief: PromptInput, most: int) -> tuple[str, TurnOutcome]:
        """The file's new text, and what it cost. Empty: there is none, and the outcome says why."""
        most -= 1  # the line end at the file's
        done = await self._ask(brief)
        text = strip_wrapping(done.text) if done.outcome == "replied" else ""
        if len(text) <= most:
            return text, done
        first = PromptTurn(input_text=brief.input_text, reply=done.text)
        again = replace(brief, history=(*brief.history, first), input_text=_TOO_LONG_PROMPT.format(len(text), most))
        done = await self._ask(again)
        shorter = strip_wrapping(done.text) if done.outcome == "replied" else ""
        return truncate_lines(shorter or text, most), done

    async def _ask(self, brief: PromptInput) -> TurnOutcome:
        try:
            return await take_turn(
                brief,
                self.model,
                self.tools,
                key=self.agent,
                max_tool_rounds=_MAX_TOOL_ROUNDS,
                afford=self.afford,
                progress=self.progress,
            )
        except (PromptTooLong, RequestRefused) as error:
            self.progress.record_lost(error.accounts)
            return self.progress.finish(TurnOutcome(outcome="failed", reason=error.reason))


def _notes_budget_tokens(brief: PromptInput, model: Model, before: str) -> int:
    """Tokens for notes."""
    fixed = sum(
        map(estimate_tokens, (brief.persona, brief.binding.prompt, brief.card, before, load_prompt("dreaming")))
    )
    return min(MAX_NOTES_TOKENS, view.budget_tokens(model.context_tokens, fixed))


def _build_result(
    done: TurnOutcome, outcome: Literal["dreamt", "unchanged", "failed"], *, reason: str = "", changed: str = ""
) -> DreamResult:
    return DreamResult(
        outcome=outcome,
        reason=reason,
        diff=changed,
        accounts=done.accounts,
        requests=done.requests,
        usage=done.usage,
        model=done.model,
    )
