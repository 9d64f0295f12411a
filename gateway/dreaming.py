"""A dream: what the agent wrote down since the last one is consolidated into MEMORY.md, by one request to its model.

What it is made of comes from private places, too. So nothing of it is said, and its result is told to a verified owner
alone: neither text nor notes belong into the record of its turn, which stands in a public conversation.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent import view
from agent.brief import PromptInput, PromptTurn
from agent.models.base import Model, ModelRequest, PromptTooLong, RequestRefused, ToolCall, ToolResult, ToolSpec
from agent.outcome import NO_USAGE, TurnOutcome, TurnProgress
from agent.prompts import load_prompt
from agent.turn import Toolset, take_turn
from agent.view import estimate_tokens
from agent.workspace.text import normalize_text
from gateway.events import RequestUsage, Usage
from gateway.material import DreamInput, DreamNote, indent_text, load_dream_input, render_note
from gateway.memory import MemoryStore, find_newest_dream, format_diff
from gateway.notes import JournalStore
from gateway.records import Seq
from gateway.store import Store

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
