"""Who may speak to the agents, as whoever runs the command line has it: each act is written into the audit with it."""

from collections.abc import Sequence
from typing import Final, assert_never

from gateway.clock import Clock
from gateway.orders import Answer, PairOrder
from gateway.records import Audited
from gateway.redaction import Redact, Redactor
from gateway.roster import deskless
from gateway.roster.deskless import OPERATOR
from gateway.store import Store
from gateway.store.lines import HIDDEN, is_id

EVIDENCE: Final = "may use the gateway's own files"
"""Only the user that the gateway runs as reaches its store and its socket."""


class Pairs:
    """Carries out `PairOrder`s."""

    def __init__(self, store: Store, clock: Clock, redact: Redact | None = None) -> None:
        """`redact` is given what is written into the audit."""
        self._store, self._clock, self._redact = store, clock, redact or Redactor()

    async def execute(self, order: PairOrder) -> Answer:
        """Do it, and say what came of it. Raises StoreError: then nothing is done."""
        store, clock = self._store, self._clock

        def also(ok: bool, words: str) -> Sequence[Audited]:
            return (self._build_audit(order, ok=ok, words=words),)

        match order.what:
            case "list":
                lines = await deskless.listed(store, clock.now())
                return Answer(ok=True, lines=tuple(lines) or ("nobody asks, and nobody was let in",))
            case "approve":
                ok, words = await deskless.approve(store, clock, order.who, also=also)
            case "revoke":
                ok, words = await deskless.revoke(store, clock, order.who, also=also)
            case "seed":
                ok, words = await deskless.seed(store, clock, order.who, role=order.role, also=also)
            case _:
                assert_never(order.what)
        return Answer(ok=ok, lines=(words,))

    def _build_audit(self, order: PairOrder, *, ok: bool, words: str) -> Audited:
        role = f" {order.role}" if order.what == "seed" else ""
        code = order.what == "approve" and not is_id(order.who)
        given = f" {HIDDEN if code else order.who}" if order.who else ""
        return Audited(
            what="pair",
            by=OPERATOR,
            name=order.by,
            evidence=EVIDENCE,
            role=OPERATOR,
            rule="the command line",
            at=None,
            args=self._redact(f"{order.what}{given}{role}"),
            ok=ok,
            result=self._redact(words),
        )
