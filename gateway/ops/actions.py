"""Orders of the operator from outside: stop a turn, kill its running tools, reload the configuration.

Each order is recorded in the audit log together with its result.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.config.reload import ReloadResult
from gateway.core.clock import Clock
from gateway.core.control_messages import ControlResponse, KillToolRequest, ReloadRequest, StopTurnRequest
from gateway.core.events import Address, ConversationId
from gateway.core.facts import AuditRecord
from gateway.core.redaction import Redactor
from gateway.runtime.agents import Agents
from gateway.store import NewEntry, Store

EVIDENCE: Final = "may use the gateway's own files, or bears its token"
OPERATOR: Final = "operator"
NO_TOOL_RUNS: Final = "No tool runs there."

_OperatorOrder = StopTurnRequest | KillToolRequest | ReloadRequest


class OperatorActions:
    """Carries out `StopTurnRequest`, `KillToolRequest` and `ReloadRequest`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        agents: Agents,
        *,
        kill: Callable[[ConversationId], Sequence[str]],
        reload: Callable[[], Awaitable[ReloadResult]],
        redactor: Redactor,
    ) -> None:
        """`kill` ends the tools that run in a conversation and returns their names. `reload`: `LiveSettings.reload`."""
        self._store, self._clock, self._agents, self._kill, self._redactor = store, clock, agents, kill, redactor
        self._reload_settings = reload

    async def carry_out(self, order: _OperatorOrder) -> ControlResponse:
        """Carry out the order and return its result. Raises StoreError."""
        if isinstance(order, ReloadRequest):
            return await self._reload(order)
        try:
            at = Address.parse(order.conversation)
        except ValueError:
            return ControlResponse(
                ok=False, lines=(f"{order.conversation} is no conversation: write it as the log has it",)
            )
        return await (self._stop(order, at) if isinstance(order, StopTurnRequest) else self._kill_tools(order, at))

    async def _stop(self, order: StopTurnRequest, at: Address) -> ControlResponse:
        change = await self._agents.plan_stop(at, order.by)
        now, ok = self._clock.now(), bool(change.facts)
        entries = [
            NewEntry(fact=one.fact, at=now, conversation=at.conversation, key=one.key or None) for one in change.facts
        ]
        written = None
        try:
            written, *_ = await self._store.append(
                [*entries, self._build_audit_entry(order, at, ok=ok, words=change.answer)]
            )
        finally:
            change.settle(written)
        return ControlResponse(ok=ok, lines=(change.answer,))

    async def _kill_tools(self, order: KillToolRequest, at: Address) -> ControlResponse:
        names = self._kill(at.conversation)
        words = f"Ended: {', '.join(names)}. The turn goes on." if names else NO_TOOL_RUNS
        await self._store.append([self._build_audit_entry(order, at, ok=bool(names), words=words)])
        return ControlResponse(ok=bool(names), lines=(words,))

    async def _reload(self, order: ReloadRequest) -> ControlResponse:
        result = await self._reload_settings()
        ok = not (result.problems or result.read_error)
        await self._store.append([self._build_audit_entry(order, None, ok=ok, words=str(result))])
        return ControlResponse(ok=ok, lines=tuple(map(self._redactor, result.lines)))

    def _build_audit_entry(
        self, order: StopTurnRequest | KillToolRequest | ReloadRequest, at: Address | None, *, ok: bool, words: str
    ) -> NewEntry:
        fact = AuditRecord(
            what=order.kind,
            by=OPERATOR,
            name=self._redactor(order.by),
            evidence=EVIDENCE,
            role=OPERATOR,
            rule="runs the gateway",
            at=at,
            args="",
            ok=ok,
            result=self._redactor(words),
        )
        return NewEntry(fact=fact, at=self._clock.now(), conversation=at.conversation if at is not None else None)
