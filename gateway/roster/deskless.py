"""Pairing from the command line: for a gateway that runs, and for one that does not.

Each reads what holds from the log first, so that it needs nothing else. What it writes a running gateway takes in as it
is written (`Store.hear`), and delivers what there is to say; else the next one does that.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal

from gateway.changes import EffectFact
from gateway.clock import Clock, ManualClock
from gateway.records import Fact, RoleAssigned
from gateway.roster import pairing
from gateway.roster.codes import find_request
from gateway.roster.groups import is_verifiable
from gateway.roster.pairing import AccessResult, reject
from gateway.roster.roster import Roster, describe_grant
from gateway.roster.words import format_person, format_request, render_unknown_request
from gateway.standing import ADMIN_ROLES, normalize_person_key
from gateway.store import NewEntry, Store, StoreReader

OPERATOR: Final = "operator"
"""Who acts, where nobody else is named."""
ExtraFacts = Callable[[bool, str], Sequence[Fact]]
"""What is to become durable together with what came of it: whether it is done, and words."""


async def list_access(reader: StoreReader, now: datetime) -> list[str]:
    """Who asks to be let in, which rooms wait, and who was let in: a line each, without codes. Raises StoreError."""
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
    store: Store, clock: Clock, code: str, by: str = OPERATOR, *, also: ExtraFacts | None = None
) -> tuple[bool, str]:
    """Let in whoever was shown this code, or open the room that it was shown for: whether that is done, and words.

    `code`: that, or the name of the request, or whom or which room it is for, as `list_access` shows them.

    Raises StoreError: then nothing is done.
    """
    roster = await _load_roster(store, clock)
    request = find_request(roster.pending_requests("pair", "room"), code)
    if request is None:
        return await _append_result(store, clock, reject(render_unknown_request(code, "reverie ", "pair")), also)
    if request.room is not None:
        return await _append_result(store, clock, pairing.approve_room(request, request.room, by), also)
    return await _append_result(
        store, clock, pairing.approve_pairing(request, by, has=roster.find_grant(request.person)), also
    )


async def revoke(
    store: Store, clock: Clock, who: str, by: str = OPERATOR, *, also: ExtraFacts | None = None
) -> tuple[bool, str]:
    """Let somebody in no more (`channel:id`), or make the code of a request good no more (its name). As `approve`."""
    roster = await _load_roster(store, clock)
    request = next((one for one in roster.pending_requests("pair", "room") if one.request == who.lower()), None)
    if request is not None:
        return await _append_result(store, clock, pairing.revoke_code(request, by), also)
    return await _append_result(
        store,
        clock,
        pairing.revoke_pairing(normalize_person_key(who), roster.find_grant(normalize_person_key(who)), by),
        also,
    )


async def seed(
    store: Store,
    clock: Clock,
    person: str,
    by: str = OPERATOR,
    *,
    role: Literal["owner", "admin", "member"] = "member",
    also: ExtraFacts | None = None,
) -> tuple[bool, str]:
    """Let somebody in who never asked: `channel:id`, as `whoami` shows it. As `approve`."""
    whom = normalize_person_key(person)
    if not all(whom.partition(":")[::2]):
        words = "Write channel:id, as `whoami` shows it, e.g. telegram.main:1001."
        return await _append_result(store, clock, reject(words), also)
    if role in ADMIN_ROLES and not is_verifiable(whom):
        return await _append_result(
            store, clock, reject("Nobody vouches for a mask, so it is never made admin or owner."), also
        )
    roster = await _load_roster(store, clock)
    given = roster.find_grant(whom)
    if given is not None and given.role == role:
        return await _append_result(store, clock, reject(f"{format_person(whom, given.name)} is {role} already."), also)
    fact = RoleAssigned(person=whom, role=role, name=given.name if given else "", by=by, why="seed")
    return await _append_result(
        store, clock, AccessResult(f"{format_person(whom)} is {role} from now on.", (EffectFact(fact),)), also
    )


async def _load_roster(reader: StoreReader, clock: Clock) -> Roster:
    roster = Roster(reader, clock)
    await roster.load()
    return roster


async def _append_result(
    store: Store, clock: Clock, outcome: AccessResult, also: ExtraFacts | None
) -> tuple[bool, str]:
    now = clock.now()
    facts = (*outcome.facts, *map(EffectFact, also(outcome.ok, outcome.text) if also is not None else ()))
    await store.append([NewEntry(fact=one.fact, at=now, conversation=one.place, key=one.key or None) for one in facts])
    return outcome.ok, outcome.text
