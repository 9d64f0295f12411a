"""Pairing from the command line, whether the gateway runs or not.

Each function reads the current state from the log first, so it needs nothing else. A running gateway is notified of
each appended entry (`Store.subscribe`) and delivers the notices; else the next start delivers them.

`PairingAdmin` carries out the requests of the command line, each with an audit record.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal, assert_never

from gateway.access import pairing
from gateway.access.pairing import AccessResult, reject
from gateway.access.roster import Roster, describe_grant
from gateway.access.texts import find_request, format_person, format_request, is_verifiable, render_unknown_request
from gateway.core.clock import Clock, ManualClock
from gateway.core.control_messages import ControlResponse, PairingRequest
from gateway.core.facts import AuditRecord, Fact, RoleAssigned
from gateway.core.identity import ADMIN_ROLES, normalize_person_key
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store, StoreReader
from gateway.store.effects import EffectFact
from gateway.store.format import HIDDEN_VALUE, is_request_id

OPERATOR: Final = "operator"
"""Name of the actor where no other is given."""
ExtraFacts = Callable[[bool, str], Sequence[Fact]]
"""Returns the facts to append together with a result, from whether it succeeded and its text."""


async def list_access(reader: StoreReader, now: datetime) -> list[str]:
    """Return pending requests, granted roles and approved rooms: a line each, without codes. Raises StoreError."""
    roster = await _load_roster(reader, ManualClock(now))
    lines = [
        f"asks: {format_request(one)}: `reverie pair approve {one.request}`"
        for one in roster.pending_requests("pair", "room")
    ]
    lines += [
        f"{one.role}{f' in {one.scope}' if one.scope else ''}: {format_person(one.person, one.name)}, "
        f"{describe_grant(one)}"
        for one in roster.roles
    ]
    return lines + [
        f"room: {format_person(one.room.conversation, one.about)}, approved by {one.by}" for one in roster.rooms
    ]


async def approve(
    store: Store, clock: Clock, code: str, by: str = OPERATOR, *, extra_facts: ExtraFacts | None = None
) -> tuple[bool, str]:
    """Approve the request of this code: accept the person, or open the room. Return whether that is done, and a text.

    `code`: the code, or the request's name, person or room, as `list_access` shows them.

    Raises StoreError: then nothing is done.
    """
    roster = await _load_roster(store, clock)
    request = find_request(roster.pending_requests("pair", "room"), code)
    if request is None:
        return await _append_result(store, clock, reject(render_unknown_request(code, "reverie ", "pair")), extra_facts)
    if request.room is not None:
        return await _append_result(store, clock, pairing.approve_room(request, request.room, by), extra_facts)
    return await _append_result(
        store, clock, pairing.approve_pairing(request, by, existing=roster.find_grant(request.person)), extra_facts
    )


async def revoke(
    store: Store, clock: Clock, who: str, by: str = OPERATOR, *, extra_facts: ExtraFacts | None = None
) -> tuple[bool, str]:
    """Revoke somebody's role from pairing (`channel:id`), or a request's code (its name).

    Results and errors as in `approve`.
    """
    roster = await _load_roster(store, clock)
    request = next((one for one in roster.pending_requests("pair", "room") if one.request == who.lower()), None)
    if request is not None:
        return await _append_result(store, clock, pairing.revoke_code(request, by), extra_facts)
    return await _append_result(
        store,
        clock,
        pairing.revoke_pairing(normalize_person_key(who), roster.find_grant(normalize_person_key(who)), by),
        extra_facts,
    )


async def seed(
    store: Store,
    clock: Clock,
    person: str,
    by: str = OPERATOR,
    *,
    role: Literal["owner", "admin", "member"] = "member",
    extra_facts: ExtraFacts | None = None,
) -> tuple[bool, str]:
    """Give a role to somebody who never asked: `channel:id`, as `whoami` shows it.

    Results and errors as in `approve`.
    """
    whom = normalize_person_key(person)
    if not all(whom.partition(":")[::2]):
        words = "Write channel:id, as `whoami` shows it, e.g. telegram.main:1001."
        return await _append_result(store, clock, reject(words), extra_facts)
    if role in ADMIN_ROLES and not is_verifiable(whom):
        return await _append_result(
            store, clock, reject("Nobody vouches for a mask, so it is never made admin or owner."), extra_facts
        )
    roster = await _load_roster(store, clock)
    given = roster.find_grant(whom)
    if given is not None and given.role == role:
        return await _append_result(
            store, clock, reject(f"{format_person(whom, given.name)} is {role} already."), extra_facts
        )
    fact = RoleAssigned(person=whom, role=role, name=given.name if given else "", by=by, why="seed")
    return await _append_result(
        store, clock, AccessResult(f"{format_person(whom)} is {role} from now on.", (EffectFact(fact),)), extra_facts
    )


async def _load_roster(reader: StoreReader, clock: Clock) -> Roster:
    roster = Roster(reader, clock)
    await roster.load()
    return roster


async def _append_result(
    store: Store, clock: Clock, outcome: AccessResult, extra_facts: ExtraFacts | None
) -> tuple[bool, str]:
    now = clock.now()
    facts = (*outcome.facts, *map(EffectFact, extra_facts(outcome.ok, outcome.text) if extra_facts is not None else ()))
    await store.append([NewEntry(fact=one.fact, at=now, conversation=one.place, key=one.key or None) for one in facts])
    return outcome.ok, outcome.text


CLI_EVIDENCE: Final = "may use the gateway's own files"
"""Only the user that runs the gateway can access its store and its socket."""


class PairingAdmin:
    """Executor of `PairingRequest`s."""

    def __init__(self, store: Store, clock: Clock, redactor: Redactor) -> None:
        """`redactor` is applied to the texts of the audit."""
        self._store, self._clock, self._redactor = store, clock, redactor

    async def execute(self, order: PairingRequest) -> ControlResponse:
        """Execute the request and return its result. Raises StoreError: then nothing is done."""
        store, clock = self._store, self._clock

        def extra_facts(ok: bool, words: str) -> Sequence[AuditRecord]:
            return (self._build_audit(order, ok=ok, words=words),)

        match order.what:
            case "list":
                lines = await list_access(store, clock.now())
                return ControlResponse(ok=True, lines=tuple(lines) or ("nobody asks, and nobody was let in",))
            case "approve":
                ok, words = await approve(store, clock, order.who, extra_facts=extra_facts)
            case "revoke":
                ok, words = await revoke(store, clock, order.who, extra_facts=extra_facts)
            case "seed":
                ok, words = await seed(store, clock, order.who, role=order.role, extra_facts=extra_facts)
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
            args=self._redactor(f"{order.what}{given}{role}"),
            ok=ok,
            result=self._redactor(words),
        )
