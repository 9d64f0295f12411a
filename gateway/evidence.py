"""What was told in part: kept whole, and read again by its handle (`gateway.handles`)."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.journal import to_single_line
from agent.models.base import ResultExcerpt, ToolCall, ToolResult
from agent.steps import MAX_SOURCE_CHARS
from agent.tools.evidence import FETCH_EVIDENCE, FetchEvidenceArgs
from agent.tools.schema import ToolCallRefused
from gateway.clock import Clock
from gateway.events import ConversationId, EvidenceRef
from gateway.handles import HandleContent, HandleResolver, HandleScopes, build_handle_content
from gateway.hands import ToolContext, ToolOutput
from gateway.labels import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel, label_of_turn
from gateway.records import Evidence, Seq, TurnId, TurnRecord
from gateway.settings_context import ContextOptimizationConfig
from gateway.store import NewEntry, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvidence:
    """Where one turn keeps what it does not tell: an `agent.telling.ResultArchive`."""

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
        """For one turn. `usable_tokens`: of the model's window. `cut`: as of `agent.telling.ResultArchive`."""
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
