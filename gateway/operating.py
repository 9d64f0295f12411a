"""What whoever runs the gateway does from outside: ends a turn, or the tool that runs in it; has it read its settings.

Each act is written into the audit with what it does.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.clock import Clock
from gateway.events import Address, ConversationId
from gateway.orders import Answer, KillOrder, ReloadOrder, StopOrder
from gateway.records import Audited
from gateway.redaction import Redact
from gateway.reloading import Reloaded
from gateway.stopping import Stopping
from gateway.store import Entry, Store

EVIDENCE: Final = "may use the gateway's own files, or bears its token"
OPERATOR: Final = "operator"
IDLE: Final = "No tool runs there."

_Order = StopOrder | KillOrder | ReloadOrder


class Operating:
    """Carries out `StopOrder`s, `KillOrder`s and `ReloadOrder`s."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        stopping: Stopping,
        *,
        kill: Callable[[ConversationId], Sequence[str]],
        reload: Callable[[], Awaitable[Reloaded]],
        redact: Redact,
    ) -> None:
        """`kill` ends the tools that run somewhere, and returns their names. `reload`: `Live.reload`."""
        self._store, self._clock, self._stopping, self._kill, self._redact = store, clock, stopping, kill, redact
        self._reload_settings = reload

    async def carry_out(self, order: _Order) -> Answer:
        """Do it, and say what came of it. Raises StoreError."""
        if isinstance(order, ReloadOrder):
            return await self._reload(order)
        try:
            at = Address.parse(order.conversation)
        except ValueError:
            return Answer(ok=False, lines=(f"{order.conversation} is no conversation: write it as the log has it",))
        return await (self._stop(order, at) if isinstance(order, StopOrder) else self._kill_tools(order, at))

    async def _stop(self, order: StopOrder, at: Address) -> Answer:
        change = await self._stopping.plan_stop(at, order.by)
        now, ok = self._clock.now(), bool(change.facts)
        made = [Entry(fact=one.fact, at=now, conversation=at.conversation, key=one.key or None) for one in change.facts]
        written = None
        try:
            written, *_ = await self._store.append(
                [*made, self._build_audit_entry(order, at, ok=ok, words=change.answer)]
            )
        finally:
            change.settle(written)
        return Answer(ok=ok, lines=(change.answer,))

    async def _kill_tools(self, order: KillOrder, at: Address) -> Answer:
        names = self._kill(at.conversation)
        words = f"Ended: {', '.join(names)}. The turn goes on." if names else IDLE
        await self._store.append([self._build_audit_entry(order, at, ok=bool(names), words=words)])
        return Answer(ok=bool(names), lines=(words,))

    async def _reload(self, order: ReloadOrder) -> Answer:
        came = await self._reload_settings()
        ok = not (came.problems or came.read_error)
        await self._store.append([self._build_audit_entry(order, None, ok=ok, words=str(came))])
        return Answer(ok=ok, lines=tuple(map(self._redact, came.lines)))

    def _build_audit_entry(
        self, order: StopOrder | KillOrder | ReloadOrder, at: Address | None, *, ok: bool, words: str
    ) -> Entry:
        fact = Audited(
            what=order.kind,
            by=OPERATOR,
            name=self._redact(order.by),
            evidence=EVIDENCE,
            role=OPERATOR,
            rule="runs the gateway",
            at=at,
            args="",
            ok=ok,
            result=self._redact(words),
        )
        return Entry(fact=fact, at=self._clock.now(), conversation=at.conversation if at is not None else None)
