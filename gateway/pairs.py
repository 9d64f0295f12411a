"""Who may speak to the agents, as whoever runs the command line has it: each act is written into the audit with it."""

from collections.abc import Sequence
from typing import Final, assert_never

from gateway.clock import Clock
from gateway.orders import ControlResponse, PairingRequest
from gateway.records import AuditRecord
from gateway.redaction import Redact, Redactor
from gateway.roster import deskless
from gateway.roster.deskless import OPERATOR
from gateway.store import Store
from gateway.store.lines import HIDDEN_VALUE, is_request_id

CLI_EVIDENCE: Final = "may use the gateway's own files"
"""Only the user that the gateway runs as reaches its store and its socket."""


class PairingAdmin:
    """Carries out `PairingRequest`s."""

    def __init__(self, store: Store, clock: Clock, redact: Redact | None = None) -> None:
        """`redact` is given what is written into the audit."""
        self._store, self._clock, self._redact = store, clock, redact or Redactor()

    async def execute(self, order: PairingRequest) -> ControlResponse:
        """Do it, and say what came of it. Raises StoreError: then nothing is done."""
        store, clock = self._store, self._clock

        def also(ok: bool, words: str) -> Sequence[AuditRecord]:
            return (self._build_audit(order, ok=ok, words=words),)

        match order.what:
            case "list":
                lines = await deskless.list_access(store, clock.now())
                return ControlResponse(ok=True, lines=tuple(lines) or ("nobody asks, and nobody was let in",))
            case "approve":
                ok, words = await deskless.approve(store, clock, order.who, also=also)
            case "revoke":
                ok, words = await deskless.revoke(store, clock, order.who, also=also)
            case "seed":
                ok, words = await deskless.seed(store, clock, order.who, role=order.role, also=also)
            case _:
                assert_never(order.what)
        return ControlResponse(ok=ok, lines=(words,))

    def _build_audit(self, order: PairingRequest, *, ok: bool, words: str) -> AuditRecord:
        role = f" {order.role}" if order.what == "seed" else ""
        code = order.what == "approve" and not is_request_id(order.who)
        given = f" {HIDDEN_VALUE if code else order.who}" if order.who else ""
        return AuditRecord(
            what="pair",
            by=OPERATOR,
            name=order.by,
            evidence=CLI_EVIDENCE,
            role=OPERATOR,
            rule="the command line",
            at=None,
            args=self._redact(f"{order.what}{given}{role}"),
            ok=ok,
            result=self._redact(words),
        )
