"""What was told in part: kept whole, and read again by its handle (`gateway.context.evidence`).

What handles name: pieces of the log, each to be told only where it may be.

They are positions in the log, short because they are told with each summary:

- `e<seq>`: an `Evidence`.
- `t<seq>.<n>`: what the n-th call of the turn brought whose record stands there, counted from 1 over all its steps.
- `m<seq>`: a message, as it reads now, or what the agent said.
- `v<a>-<b>`: the turns of the conversation where it is asked that ended at a <= seq < b, and in front of them what
  stood in front of the first of them in the view.

Nobody learns of one that may not be told to them whether it exists.

Turns as a text, for whoever asks for those that are not in view any more. Pure.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from agent.journal import to_single_line
from agent.models.base import ToolResult
from agent.steps import MAX_SOURCE_CHARS
from agent.tools.specs import FETCH_EVIDENCE, FetchEvidenceArgs
from agent.view_forms import result_source
from gateway.config.models import ContextOptimizationConfig
from gateway.context.history import label_of_turn
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, EvidenceRef, Message, MessageDeleted, MessageEdited
from gateway.core.facts import Evidence, Seq, TurnId, TurnRecord, ViewFolded
from gateway.core.scopes import Visibility
from gateway.core.tool import ToolContext, ToolOutput
from gateway.core.tool_spec import ResultExcerpt, ToolCall, ToolCallRefused
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel
from gateway.store import NewEntry, Store, StoreReader


def render_turn_transcript(seq: Seq, at: datetime, turn: TurnRecord) -> str:
    """One turn: what was heard, which tools were used, where their results are, what was said. Word for word.

    Ends with an empty line. Nothing, for a turn in which nothing was heard or done.
    """
    told = [line for line in _transcript_lines(seq, turn) if line]
    return "\n".join([f"== {at:%Y-%m-%d %H:%M} UTC ==", *told, "", ""]) if told else ""


def _transcript_lines(seq: Seq, turn: TurnRecord) -> Iterator[str]:
    yield turn.heard
    number = 0
    for step in turn.steps:
        yield f"[you, meanwhile] {step.text}" if step.text else ""
        for called in step.calls:
            number += 1
            asked = f"[you called {called.name} {called.arguments}"
            whole = result_source(seq, number, called)
            yield f"{asked}]" if called.ended else f"{asked} -> {whole.handle}, {whole.chars} characters]"
        yield step.heard
    if turn.text and turn.outcome != "failed":
        yield f"[you] {turn.text}"
    elif turn.outcome == "interrupted":
        yield "[you were interrupted]"
    elif turn.heard:
        yield "[you said nothing]"


MAX_TURNS: Final = 2_000
"""Of one handle."""
UNKNOWN_HANDLE: Final = (
    "There is nothing with that handle that may be told here. A handle is one of those that stand where something "
    "was told in part, e.g. e12, t12.3 or v12-34; what was said can also be found with recall."
)
_HANDLE: Final = re.compile(r"([temv])([0-9]{1,18})(?:([.-])([0-9]{1,18}))?")
"""No more digits than a position in the log can have."""
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_PAGE: Final = 200
_FOLDS_PAGE: Final = 20


class HandleScopes(Protocol):
    """Who knows who can read what is said: `gateway.stream.routing.PrivacyCache`."""

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Who may be told of what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleContent:
    """What a handle names."""

    source: EvidenceRef
    text: str
    """All of it, exactly. Untrusted."""


class HandleResolver:
    """Opens them."""

    def __init__(self, reader: StoreReader, places: HandleScopes) -> None:
        self._reader = reader
        self._places = places

    async def find(self, handle: str, sight: Visibility, place: ConversationId) -> HandleContent:
        """What this names, asked with this sight in this place.

        Raises Refused, with what would do, if it names nothing that may be told there; and StoreError.
        """
        match = _HANDLE.fullmatch(handle.strip(_QUOTES).lower())
        opened = await self._resolve(match, sight, place) if match is not None else None
        if opened is None:
            raise ToolCallRefused(UNKNOWN_HANDLE)
        return opened

    async def _resolve(self, handle: re.Match[str], sight: Visibility, place: ConversationId) -> HandleContent | None:
        kind, first, mark, second = handle.groups()
        if kind == "v" and mark == "-" and second is not None:
            return await self._render_turns(Seq(int(first)), Seq(int(second)), sight, place)
        if (mark == ".") != (kind == "t") or mark == "-":
            return None
        entry = await self._reader.entry(int(first))
        if entry is None or entry.conversation is None:
            return None
        if entry.conversation != place and not sight.can_see(await self._places.scope(entry.conversation, entry.seq)):
            return None
        match entry.fact:
            case Evidence(what=what, origin=origin, text=text) if kind == "e":
                return build_handle_content(f"e{entry.seq}", what, origin, text)
            case TurnRecord() as turn if kind == "t" and second is not None:
                return await self._find_result(entry.seq, turn, int(second), sight, entry.conversation)
            case TurnRecord(text=text) if kind == "m" and text:
                return build_handle_content(
                    f"m{entry.seq}", "message", to_single_line(f"you, {entry.conversation}"), text
                )
            case Message() as message if kind == "m":
                return await self._find_message(entry.seq, message, entry.conversation)
        return None

    async def _find_result(
        self, seq: Seq, turn: TurnRecord, number: int, sight: Visibility, place: ConversationId
    ) -> HandleContent | None:
        calls = [called for step in turn.steps for called in step.calls]
        if not 0 < number <= len(calls) or calls[number - 1].ended:
            return None
        called = calls[number - 1]
        if called.source is not None:  # only a part of it stands there
            return await self.find(called.source.handle, sight, place)
        return HandleContent(source=result_source(seq, number, called), text=called.result)

    async def _find_message(self, seq: Seq, said: Message, place: ConversationId) -> HandleContent | None:
        """With its newest words. None: it is gone, or was never to be told."""
        judged = await self._reader.find_judgement(seq)
        if judged is None or judged.fate not in ("due", "context"):
            return None
        newest = await self._reader.latest_message_change(said, seq)
        if newest is not None and isinstance(newest.fact, MessageDeleted):
            return None
        text = newest.fact.text if newest is not None and isinstance(newest.fact, MessageEdited) else said.text
        return build_handle_content(f"m{seq}", "message", to_single_line(f"{said.sender.name}, {place}"), text)

    async def _render_turns(
        self, first: Seq, end: Seq, sight: Visibility, place: ConversationId
    ) -> HandleContent | None:
        if not first < end or not sight.can_see(await self._places.scope(place)):
            return None
        more = await self._reader.seq_after_turns(place, first, end, count=MAX_TURNS)
        if more is not None:
            raise ToolCallRefused(
                f"v{first}-{end} has more than {MAX_TURNS:,} turns, the most that one handle opens. "
                f"The first {MAX_TURNS:,} of them are v{first}-{more}, and the others are v{more}-{end}."
            )
        pieces, behind = list[str](), first
        while page := await self._reader.turns_between(place, behind, end, most=_PAGE):
            pieces += [
                render_turn_transcript(one.seq, one.at, one.fact) for one in page if isinstance(one.fact, TurnRecord)
            ]
            behind = Seq(page[-1].seq + 1)
        if not any(pieces):
            return None
        head = await self._find_head(place, first)
        text = "".join([f"{head}\n\n" if head else "", *pieces])
        return build_handle_content(f"v{first}-{end}", "turns", place, text)

    async def _find_head(self, place: ConversationId, first: Seq) -> str:
        """What stood in front of the turn that ended at `first`, or was the first behind that."""
        before: int | None = None
        while page := await self._reader.newest_entries(
            _FOLDS_PAGE, before=before, kinds=["folded"], conversation=place
        ):
            for one in reversed(page):
                if isinstance(one.fact, ViewFolded) and one.fact.start <= first:
                    return one.fact.head
            before = page[0].seq
        return ""


def build_handle_content(handle: str, kind: str, origin: str, text: str) -> HandleContent:
    """This text, under this handle."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return HandleContent(
        source=EvidenceRef(handle=handle, kind=kind, origin=origin, chars=len(text), sha256=digest), text=text
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvidence:
    """Where one turn keeps what it does not tell: an `agent.turn_context.ResultArchive`."""

    store: "EvidenceStore"
    turn: TurnId
    conversation: ConversationId
    budget_tokens: int
    max_result_tokens: int
    record_cut: Callable[[], None]

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        """Make it durable. Raises StoreError."""
        return await self.store.keep(self.turn, self.conversation, call, result)


class EvidenceStore:
    """Of all agents."""

    def __init__(self, store: Store, clock: Clock, places: HandleScopes) -> None:
        self._store = store
        self._clock = clock
        self._handles = HandleResolver(store, places)

    def for_turn(
        self,
        turn: TurnId,
        conversation: ConversationId,
        said: ContextOptimizationConfig,
        usable_tokens: int,
        cut: Callable[[], None],
    ) -> TurnEvidence:
        """For one turn. `usable_tokens`: of the model's window. `cut`: as of `agent.turn_context.ResultArchive`."""
        return TurnEvidence(
            store=self,
            turn=turn,
            conversation=conversation,
            budget_tokens=said.folds.active_evidence_tokens,
            max_result_tokens=int(usable_tokens * said.compaction.tool_result_max_pct),
            record_cut=cut,
        )

    async def keep(self, turn: TurnId, conversation: ConversationId, call: ToolCall, result: ToolResult) -> EvidenceRef:
        """Write down what a call brought, and say where it stands. Raises StoreError.

        The same again is not written twice. Cancelled, it is written or not, and nothing refers to it.
        """
        origin = to_single_line(result.origin[:MAX_SOURCE_CHARS], MAX_SOURCE_CHARS) or _describe_call(call)
        fact = Evidence(turn=turn, call=call.id, tool=call.name, what=result.kind, origin=origin, text=result.text)
        number = 0
        while (seq := await self._keep(fact, conversation, f"evidence:{turn}:{call.id}:{number}")) is None:
            number += 1
        return build_handle_content(f"e{seq}", fact.what, origin, fact.text).source

    async def _keep(self, fact: Evidence, conversation: ConversationId, key: str) -> Seq | None:
        """Where it stands. None: that key names something else, which the call brought before."""
        (written,) = await self._store.append(
            [NewEntry(fact=fact, at=self._clock.now(), conversation=conversation, key=key)]
        )
        if written.is_new:
            return written.seq
        before = await self._store.entry(written.seq)
        same = before is not None and (before.conversation, before.fact) == (conversation, fact)
        return written.seq if same else None

    async def fetch(self, asked: FetchEvidenceArgs, where: ToolContext) -> ToolOutput:
        """Carry out `fetch_evidence`: one line of ours, then the text exactly. Raises Refused and StoreError."""
        it = await self.find(asked.handle, where)
        label = await self._label_of(it.source.handle, where)
        source, end = it.source, min(asked.offset + asked.limit, it.source.chars)
        if asked.offset >= source.chars > 0:
            raise ToolCallRefused(f"{source.handle} has {source.chars} characters: offset must be less.")
        more = f"; go on at offset {end}" if end < source.chars else "; that is its end"
        origin = f", from {to_single_line(source.origin, MAX_SOURCE_CHARS)}" if source.origin else ""
        head = (
            f"[{source.handle}: {to_single_line(source.kind)}{origin}; characters {asked.offset} to {end} of "
            f"{source.chars}{more}; sha256 {source.sha256[:12]}]\n"
        )
        return ToolOutput(
            text=head + it.text[asked.offset : end],
            kind=source.kind,
            origin=source.origin,
            excerpt=ResultExcerpt(source=source, offset=asked.offset - len(head)),
            is_untrusted=True,
            is_foreign=bool(label.foreign),
            role=label.role,
        )

    async def _label_of(self, handle: str, where: ToolContext) -> TrustLabel:
        """Of what a tool brought: that of its turn. What else is opened may be anybody's words."""
        entry = await self._store.entry(int(handle[1:].partition(".")[0])) if handle[:1] in ("e", "t") else None
        fact = entry.fact if entry is not None else None
        if isinstance(fact, Evidence):
            if fact.turn == where.turn:  # its requests hold a part of it already
                return TRUSTED_LABEL
            ended = await self._store.entry_by_key(f"turn:{fact.turn}")
            fact = ended.fact if ended is not None else None
        return (
            await label_of_turn(self._store, fact)
            if isinstance(fact, TurnRecord)
            else TrustLabel(ANYBODY_ROLE, FETCH_EVIDENCE.name)
        )

    async def find(self, handle: str, where: ToolContext) -> HandleContent:
        """As `HandleResolver.find`, for a turn."""
        return await self._handles.find(handle, where.visibility, where.at.conversation)


def _describe_call(call: ToolCall) -> str:
    """Where a result is from whose tool does not tell: the call."""
    given = call.arguments if call.arguments.strip() != "{}" else ""
    return to_single_line(f"{call.name} {given}"[: 2 * MAX_SOURCE_CHARS], MAX_SOURCE_CHARS)
