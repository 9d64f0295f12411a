"""Dreams: consolidation of the notes since the last dream into MEMORY.md, by one request to the
agent's model, as a turn of its inner conversation.

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
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from agent.models.base import ModelRequest, PromptTooLong, RequestRefused, ToolResult
from agent.prompt import PromptInput, PromptTurn
from agent.prompts import load_prompt
from agent.signals import TurnEnded
from agent.tokens.counter import estimate_tokens
from agent.turn import take_turn
from agent.turn_context import TurnHost, TurnOutcome, budget_tokens
from gateway.access.limits import Payers
from gateway.core.clock import new_id
from gateway.core.events import Address, ConversationId, EventId, TaskFinished
from gateway.core.facts import (
    NoteForgotten,
    NoteWritten,
    Seq,
    TurnId,
    TurnRecord,
    inner_conversation,
)
from gateway.core.frozen import frozen
from gateway.core.i18n import N_, _
from gateway.core.labels import TRUSTED_LABEL, describe_integrity
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import escape_invisible, normalize_text, to_single_line
from gateway.core.tool_spec import ToolCall
from gateway.plugins.memory.journal import MAX_SEARCHED_NOTES, JournalStore, find_kept_notes
from gateway.plugins.memory.memory_file import (
    MemoryStore,
    find_newest_dream,
    format_as_list_item,
    list_changed_lines,
    load_dreams,
)
from gateway.runtime.turn_handle import TurnHandle, TurnInterrupted
from gateway.runtime.turn_input import NO_UNREAD, AgentContext
from gateway.runtime.turn_record import PUT_OFF_TEXTS
from gateway.store import LogEntry, NewEntry, Store, StoreReader
from gateway.store.spending import budgeted_usd
from gateway.stream.attention import InternalIntake
from gateway.stream.handle import GatewayHandle

_PAGE: Final = 200
_MAX_PENDING_CHARS: Final = 8_000
"""Characters of pending notes shown at once; a note is shown whole or not at all."""

MEMORY_CHARS: Final = 8_000
MAX_NOTES_TOKENS: Final = 8_000
"""Size of the notes in one dream; the rest is left for the next."""
_TOO_LONG_PROMPT: Final = (
    "That is {} characters, and {} is the most. Write the whole file again, "
    "shorter: drop what matters least."
)


@frozen
class DreamNote:
    """A note, as a dream uses it."""

    seq: Seq
    """Log position of the note; of a forgotten one, of its `NoteForgotten`."""
    at: datetime
    place: ConversationId
    noted: NoteWritten
    is_forgotten: bool = False
    """An earlier dream used it, and it is to be forgotten now."""


class DreamResult(NamedTuple):
    """Outcome of one dream."""

    outcome: Literal["dreamt", "unchanged", "failed"]
    """unchanged: there was nothing new, or nothing worth a change."""
    reason: str = ""
    """Reason of a failure; holds no secrets and no text of notes."""
    changed: int = 0
    """Lines of the file that went or came."""
    done: TurnOutcome = TurnOutcome(outcome="failed")
    """Of its requests. Its text is no part of the result."""


class DreamHost(TurnHost):
    """Host of a dream, which the day's budget of autonomous turns pays. It has the agent's tools,
    so that the cached prefix stays the same; every call is refused.
    """

    def __init__(self, context: AgentContext) -> None:
        super().__init__()
        self.specs = context.tools.specs
        self.context, self.agent = context, context.agent.id
        self.turn = TurnId(new_id(context.gateway.clock.now()))
        self.place = Address.parse(inner_conversation(self.agent))

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(
            id=call.id,
            text="You are dreaming: no tools. Write the text of MEMORY.md.",
            is_error=True,
        )

    async def can_afford(self, request: ModelRequest) -> bool:
        limits, payers = self.context.limits, Payers(self.place, self.agent, autonomous=True)
        ceiling_usd = self.context.model.ceiling_usd(request)
        spent_usd = budgeted_usd(self.progress.current.accounts)
        return await limits.reserve(self.turn, payers, ceiling_usd, spent_usd) is None


class Dreamer:
    """Runs the dreams of all agents. One dream of an agent at a time."""

    def __init__(
        self,
        gateway: GatewayHandle,
        internal: InternalIntake,
        notes: JournalStore,
        memory: MemoryStore,
    ) -> None:
        self._store, self._clock, self._internal = gateway.store, gateway.clock, internal
        self._notes, self._memory = notes, memory

    def material_tokens(self, agent: str) -> int:
        """Return the approximate size of the notes since the last dream."""
        return self._notes.material_tokens(agent)

    async def take_turn(self, context: AgentContext, handle: TurnHandle) -> TurnEnded:
        """Run a dream. Interrupted, it has changed nothing or everything: see `dream`."""
        host = DreamHost(context)
        ended = TurnEnded(
            at=self._clock.now(),
            conversation=host.place.conversation,
            autonomous=True,
            model=context.model.name,
        )
        try:
            front = await context.prompts.build(host.place, NO_UNREAD, (), context.specs_tokens)
            brief = PromptInput(
                persona=front.persona,
                binding=front.binding,
                card=front.card,
                history=(),
                input_text="",
                conversation=host.place.conversation,
            )
            with handle.interruptible():
                result = await self.dream(brief, host)
            await self._record(host, result)
        except TurnInterrupted:
            # It owes no turn, so only its costs are recorded, not that it was interrupted.
            if (done := host.progress.current).requests:
                await self._record(host, DreamResult("failed", "interrupted", done=done))
            return replace(ended, interrupted=True)
        finally:  # its record has counted what it cost
            context.limits.settle(host.turn)
        has_failed, done = result.outcome == "failed", result.done
        ended = replace(ended, yielded=True, failed=has_failed, answered=ended.at)
        if has_failed and done.cause in PUT_OFF_TEXTS:
            ended = replace(ended, answered=None, no_model=done.cause, reason=result.reason)
        return ended

    async def _record(self, host: DreamHost, result: DreamResult) -> None:
        done, failed = result.done, result.outcome == "failed"
        if not done.requests and not failed:  # there was nothing to dream of
            return
        now, turn = self._clock.now(), host.turn
        ended = TurnRecord(
            turn=turn,
            covers=(),
            omitted=0,
            heard="",
            upto=Seq(0),
            outcome="failed" if failed else "silent",
            text="",
            reason=result.reason,
            model=done.model,
            usage=done.usage,
            requests=done.requests,
            autonomous=True,
            accounts=done.accounts,
            agent=host.agent,
            cause="dream",
            label=TRUSTED_LABEL,  # it holds no text
        )
        await self._store.append(
            [NewEntry(fact=ended, at=now, conversation=host.place.conversation, key=f"turn:{turn}")]
        )
        text = result.reason if failed else f"MEMORY.md has changed in {result.changed} lines"
        await self._internal.submit(
            TaskFinished(
                id=EventId(turn), what="dream", ok=not failed, text=text, sent=now, agent=host.agent
            )
        )

    async def dream(self, brief: PromptInput, host: DreamHost) -> DreamResult:
        """Run one dream. Raises StoreError.

        `brief`: persona, binding and card of the inner conversation, without input. A failure
        changes nothing, and the notes are left for the next dream. On cancellation `host.progress`
        holds the costs, and the file is as before, or its new version is durable and
        `MemoryStore.finish_write` completes it.
        """
        agent = host.agent
        try:
            await self._memory.finish_write(agent)
            before = await self._memory.read(agent)
        except OSError as error:
            return DreamResult("failed", f"MEMORY.md cannot be read: {error.strerror or error}")
        last = await find_newest_dream(self._store, agent)
        if last is not None:  # a cancelled dream may have been durable
            self._notes.mark_dreamt(agent, last.fact.upto)
        texts = brief.persona, brief.binding.prompt, brief.card, before, load_prompt("dreaming")
        window = host.context.model.model.context_tokens
        budget = min(MAX_NOTES_TOKENS, budget_tokens(window, sum(map(estimate_tokens, texts))))
        since = last.fact.upto if last is not None else Seq(0)
        notes, upto = await load_dream_input(self._store, agent, since, budget)
        if not notes:
            self._notes.mark_dreamt(agent, upto)
            return DreamResult(
                "unchanged", "nothing was written down since the last dream that may change it"
            )
        brief = replace(brief, input_text=render_dream_prompt(before, notes))
        after, done = await _ask_for_file(brief, host)
        if not after:
            return DreamResult("failed", done.reason or "the model wrote nothing", done=done)
        try:
            is_written = await self._memory.rewrite(
                agent, before=before, after=f"{after}\n", upto=upto, reason="dreamt"
            )
        except OSError as error:
            reason = f"MEMORY.md cannot be written: {error.strerror or error}"
            return DreamResult("failed", reason, done=done)
        if not is_written:
            reason = "MEMORY.md was changed meanwhile: the next dream begins with that"
            return DreamResult("failed", reason, done=done)
        self._notes.mark_dreamt(agent, upto)
        changed = len(list_changed_lines(before, after))
        return DreamResult("dreamt" if changed else "unchanged", changed=changed, done=done)


async def load_dream_input(
    store: Store, agent: str, after: Seq, budget: int
) -> tuple[list[DreamNote], Seq]:
    """Return the oldest notes after `after` that a dream may use and that fit into `budget` tokens;
    at least one, if there is any; and the log position up to which all notes are included.
    """
    found, since, upto = list[DreamNote](), after, after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        forgotten = await store.forgotten_notes([one.seq for one in page])
        for one in page:
            note = await _find_note(store, one, since) if one.seq not in forgotten else None
            if note is None or note.noted.agent != agent:
                continue
            if note.noted.label.is_trusted:
                budget -= estimate_tokens(render_note(note))
                if found and budget < 0:
                    return found, upto
                found.append(note)
            upto = one.seq
        if len(page) < _PAGE:
            return found, upto
        after = page[-1].seq


async def find_pending_notes(store: StoreReader, agent: str) -> list[DreamNote]:
    """Return an agent's newest notes that wait for an owner's approval, oldest first. Raises
    StoreError.
    """
    approved = {seq for dream in await load_dreams(store, agent) for seq in dream.fact.notes}
    return [
        _build_note(one.seq, one, noted)
        for one, noted in await find_kept_notes(store, MAX_SEARCHED_NOTES)
        if noted.agent == agent
        and noted.lasting
        and not noted.label.is_trusted
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


def render_dream_prompt(before: str, notes: Sequence[DreamNote]) -> str:
    """Return the prompt of a dream. Pure. Quoted text is indented, so that nothing of it looks like
    a frame.
    """
    memory = indent_text(before) if normalize_text(before) else "(empty)"
    lines = "\n".join(render_note(note) for note in notes)
    instructions = load_prompt("dreaming").replace("{chars}", str(MEMORY_CHARS))
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


async def _ask_for_file(brief: PromptInput, host: DreamHost) -> tuple[str, TurnOutcome]:
    """Return the file's new text and the outcome of the requests. Empty text: there is none, and
    the outcome says why.
    """
    max_chars = MEMORY_CHARS - 1  # one character for the file's line end
    done = await _ask(brief, host)
    text = strip_wrapping(done.text) if done.outcome == "replied" else ""
    if len(text) <= max_chars:
        return text, done
    first = PromptTurn(input_text=brief.input_text, reply=done.text)
    again = replace(
        brief,
        history=(*brief.history, first),
        input_text=_TOO_LONG_PROMPT.format(len(text), max_chars),
    )
    done = await _ask(again, host)
    shorter = strip_wrapping(done.text) if done.outcome == "replied" else ""
    return truncate_lines(shorter or text, max_chars), done


async def _ask(brief: PromptInput, host: DreamHost) -> TurnOutcome:
    model = host.context.model.model
    try:
        done = await take_turn(brief, model, host, key=host.agent, max_tool_rounds=1)
        return replace(done, outcome="failed", text="") if done.cause == "cut" else done
    except (PromptTooLong, RequestRefused) as error:
        host.progress.record_lost(error.accounts)
        return host.progress.finish(TurnOutcome(outcome="failed", reason=error.reason))
