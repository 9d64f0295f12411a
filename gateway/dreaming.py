"""A dream: what the agent wrote down since the last one is consolidated into MEMORY.md, by one request to its model.

What it is made of comes from private places, too. So nothing of it is said, and its result is told to a verified owner
alone: neither text nor notes belong into the record of its turn, which stands in a public conversation.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent import view
from agent.brief import Brief, Exchange
from agent.models.base import Malformed, Model, Request, ToolCall, TooLong, ToolResult, ToolSpec
from agent.outcome import NOTHING, Outcome, Progress
from agent.prompts import prompt as instructions
from agent.turn import Tools, take_turn
from agent.view import estimate_tokens
from agent.workspace.text import tidy
from gateway.events import Account, Usage
from gateway.material import Material, Note, indented, material, told
from gateway.memory import Memory, diff, newest_dream
from gateway.notes import Notes
from gateway.records import Seq
from gateway.store import Store

NOTES_TOKENS: Final = 8_000
"""Of notes in one dream; the rest is for the next."""
REASON: Final = "dreamt"
_ROUNDS: Final = 1
_AGAIN: Final = (
    "That is {} characters, and {} is the most. Write the whole file again, shorter: drop what matters least."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dream:
    """What came of it."""

    outcome: Literal["dreamt", "unchanged", "failed"]
    """unchanged: there was nothing new, or nothing of it was worth a change."""
    reason: str = ""
    """Why it failed; holds no secrets and nothing that was noted."""
    diff: str = ""
    """What changed in the file, as a unified diff. Private."""
    accounts: tuple[Account, ...] = ()
    requests: int = 0
    usage: Usage = NOTHING
    model: str = ""


class _NoHands:
    """The same tools, so that the cached prefix is the same; none is carried out."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(id=call.id, text="You are dreaming: no tools. Write the text of MEMORY.md.", is_error=True)


class Dreaming:
    """Dreams for all agents. One dream of an agent at a time."""

    def __init__(
        self,
        store: Store,
        notes: Notes,
        memory: Memory,
        propose: Callable[[str, Sequence[Note]], Awaitable[None]] | None = None,
    ) -> None:
        """`propose` tells owners of an agent's notes that wait for their word. None: nobody is told."""
        self._propose = propose
        self._store = store
        self._journal = notes
        self._memory = memory

    async def dream(
        self,
        brief: Brief,
        model: Model,
        tools: Tools,
        *,
        agent: str,
        memory_chars: int,
        afford: Callable[[Request], bool] = lambda _: True,
        progress: Progress | None = None,
    ) -> Dream:
        """One dream. `brief`: the inner conversation's persona, binding and card, with nothing said in it.

        `tools`, `afford` and `progress` as `agent.turn.take_turn`; no tool is carried out. A failure changes nothing,
        and what was noted is there for the next one. Raises StoreError. Cancelled, `progress` says what it cost, and
        the file is as before, or its new version is durable and `Memory.settle` goes on with it.
        """
        if not memory_chars:
            return Dream(outcome="unchanged", reason="dmn.memory_chars is 0")
        try:
            await self._memory.finish_write(agent)
            before = await self._memory.read(agent)
        except OSError as error:
            return Dream(outcome="failed", reason=f"MEMORY.md cannot be read: {error.strerror or error}")
        last = await newest_dream(self._store, agent)
        if last is not None:
            self._journal.mark_dreamt(agent, last.fact.upto)  # one that was cancelled may have been durable
        found = await material(
            self._store, agent, last.fact.upto if last is not None else Seq(0), _room(brief, model, before)
        )
        if found.pending and self._propose is not None:
            await self._propose(agent, found.pending)
        if not found.notes:
            return await self._skip(agent, before, found)
        asking = _Asking(model, _NoHands(tools), agent, afford, progress or Progress())
        after, done = await asking.request_text(
            replace(brief, input_text=prompt(before, found.notes, memory_chars)), memory_chars
        )
        if not after:
            return _of(done, "failed", reason=done.reason or "the model wrote nothing")
        return await self._save(agent, before, after, found.upto, done)

    async def _skip(self, agent: str, before: str, found: Material) -> Dream:
        """There is nothing to ask a model for. What owners were told of they are not told again."""
        if found.pending:
            try:
                await self._memory.rewrite(agent, before=before, after=before, upto=found.upto, reason=REASON)
            except OSError as error:
                return Dream(outcome="failed", reason=f"MEMORY.md cannot be written: {error.strerror or error}")
            self._journal.mark_dreamt(agent, found.upto)
        return Dream(outcome="unchanged", reason="nothing was written down since the last dream that may change it")

    async def _save(self, agent: str, before: str, after: str, upto: Seq, done: Outcome) -> Dream:
        try:
            same = await self._memory.rewrite(agent, before=before, after=f"{after}\n", upto=upto, reason=REASON)
        except OSError as error:
            return _of(done, "failed", reason=f"MEMORY.md cannot be written: {error.strerror or error}")
        if not same:
            return _of(done, "failed", reason="MEMORY.md was changed meanwhile: the next dream begins with that")
        self._journal.mark_dreamt(agent, upto)
        changed = diff(before, f"{after}\n")
        return _of(done, "dreamt" if changed else "unchanged", changed=changed)


def prompt(before: str, notes: Sequence[Note], memory_chars: int) -> str:
    """What the model is asked. Pure. What is quoted is indented, so that nothing of it looks like a frame."""
    memory = indented(before) if tidy(before) else "(empty)"
    lines = "\n".join(told(note) for note in notes)
    asked = instructions("dreaming").replace("{chars}", str(memory_chars))
    return f"{asked}\n\nMEMORY.md as it is now:\n{memory}\n\nWritten down since, the oldest first:\n{lines}"


def cut(text: str, most: int) -> str:
    """The lines that fit; of a single long one its beginning. `text` has no empty lines at its ends. Pure."""
    if len(text) <= most:
        return text
    lines = text[: most + 1].rpartition("\n")[0].rstrip()
    return lines or text[:most].rstrip()


def cleaned(text: str) -> str:
    """What a model wrote, without what only wraps a file: a fence around all of it, its own name as a heading. Pure."""
    lines = tidy(text).split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    text = tidy("\n".join(lines))
    return text.removeprefix("# MEMORY.md\n").strip("\n") if text.startswith("# MEMORY.md\n") else text


@dataclass(frozen=True, slots=True)
class _Asking:
    """Asks the model for the file."""

    model: Model
    tools: Tools
    agent: str
    afford: Callable[[Request], bool]
    progress: Progress

    async def request_text(self, brief: Brief, most: int) -> tuple[str, Outcome]:
        """The file's new text, and what it cost. Empty: there is none, and the outcome says why."""
        most -= 1  # the line end at the file's
        done = await self._ask(brief)
        text = cleaned(done.text) if done.outcome == "replied" else ""
        if len(text) <= most:
            return text, done
        first = Exchange(input_text=brief.input_text, reply=done.text)
        again = replace(brief, history=(*brief.history, first), input_text=_AGAIN.format(len(text), most))
        done = await self._ask(again)
        shorter = cleaned(done.text) if done.outcome == "replied" else ""
        return cut(shorter or text, most), done

    async def _ask(self, brief: Brief) -> Outcome:
        try:
            return await take_turn(
                brief,
                self.model,
                self.tools,
                key=self.agent,
                max_tool_rounds=_ROUNDS,
                afford=self.afford,
                progress=self.progress,
            )
        except (TooLong, Malformed) as error:
            self.progress.record_lost(error.accounts)
            return self.progress.finish(Outcome(outcome="failed", reason=error.reason))


def _room(brief: Brief, model: Model, before: str) -> int:
    """Tokens for notes."""
    fixed = sum(
        map(estimate_tokens, (brief.persona, brief.binding.prompt, brief.card, before, instructions("dreaming")))
    )
    return min(NOTES_TOKENS, view.budget_tokens(model.context_tokens, fixed))


def _of(
    done: Outcome, outcome: Literal["dreamt", "unchanged", "failed"], *, reason: str = "", changed: str = ""
) -> Dream:
    return Dream(
        outcome=outcome,
        reason=reason,
        diff=changed,
        accounts=done.accounts,
        requests=done.requests,
        usage=done.usage,
        model=done.model,
    )
