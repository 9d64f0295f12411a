"""Pairing from the command line: for a gateway that runs, and for one that does not.

Each reads what holds from the log first, so that it needs nothing else. What it writes a running gateway takes in as it
is written (`Store.hear`), and delivers what there is to say; else the next one does that.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal

from gateway.changes import Made
from gateway.clock import Clock, ManualClock
from gateway.records import Fact, RoleGiven
from gateway.roster import pairing
from gateway.roster.codes import find
from gateway.roster.groups import vouched
from gateway.roster.pairing import Outcome, no
from gateway.roster.roster import Roster, rule
from gateway.roster.words import named, no_request, waiting
from gateway.standing import ADMINS, folded
from gateway.store import Entry, Reader, Store

OPERATOR: Final = "operator"
"""Who acts, where nobody else is named."""
Also = Callable[[bool, str], Sequence[Fact]]
"""What is to become durable together with what came of it: whether it is done, and words."""


async def listed(reader: Reader, now: datetime) -> list[str]:
    """Who asks to be let in, which rooms wait, and who was let in: a line each, without codes. Raises StoreError."""
    roster = await _roster(reader, ManualClock(now))
    lines = [
        f"asks: {waiting(one)}: `reverie pair approve {one.request}`" for one in roster.pending_requests("pair", "room")
    ]
    lines += [
        f"{one.role}{f' in {one.scope}' if one.scope else ''}: {named(one.person, one.name)}, {rule(one)}"
        for one in roster.roles
    ]
    return lines + [f"room: {named(one.room.conversation, one.about)}, approved by {one.by}" for one in roster.rooms]


async def approve(
    store: Store, clock: Clock, code: str, by: str = OPERATOR, *, also: Also | None = None
) -> tuple[bool, str]:
    """Let in whoever was shown this code, or open the room that it was shown for: whether that is done, and words.

    `code`: that, or the name of the request, or whom or which room it is for, as `listed` shows them.

    Raises StoreError: then nothing is done.
    """
    roster = await _roster(store, clock)
    request = find(roster.pending_requests("pair", "room"), code)
    if request is None:
        return await _done(store, clock, no(no_request(code, "reverie ", "pair")), also)
    if request.room is not None:
        return await _done(store, clock, pairing.opened(request, request.room, by), also)
    return await _done(store, clock, pairing.let_in(request, by, has=roster.find_grant(request.person)), also)


async def revoke(
    store: Store, clock: Clock, who: str, by: str = OPERATOR, *, also: Also | None = None
) -> tuple[bool, str]:
    """Let somebody in no more (`channel:id`), or make the code of a request good no more (its name). As `approve`."""
    roster = await _roster(store, clock)
    request = next((one for one in roster.pending_requests("pair", "room") if one.request == who.lower()), None)
    if request is not None:
        return await _done(store, clock, pairing.turned_away(request, by), also)
    return await _done(store, clock, pairing.let_go(folded(who), roster.find_grant(folded(who)), by), also)


async def seed(
    store: Store,
    clock: Clock,
    person: str,
    by: str = OPERATOR,
    *,
    role: Literal["owner", "admin", "member"] = "member",
    also: Also | None = None,
) -> tuple[bool, str]:
    """Let somebody in who never asked: `channel:id`, as `whoami` shows it. As `approve`."""
    whom = folded(person)
    if not all(whom.partition(":")[::2]):
        words = "Write channel:id, as `whoami` shows it, e.g. telegram.main:1001."
        return await _done(store, clock, no(words), also)
    if role in ADMINS and not vouched(whom):
        return await _done(store, clock, no("Nobody vouches for a mask, so it is never made admin or owner."), also)
    roster = await _roster(store, clock)
    given = roster.find_grant(whom)
    if given is not None and given.role == role:
        return await _done(store, clock, no(f"{named(whom, given.name)} is {role} already."), also)
    fact = RoleGiven(person=whom, role=role, name=given.name if given else "", by=by, why="seed")
    return await _done(store, clock, Outcome(f"{named(whom)} is {role} from now on.", (Made(fact),)), also)


async def _roster(reader: Reader, clock: Clock) -> Roster:
    roster = Roster(reader, clock)
    await roster.load()
    return roster


async def _done(store: Store, clock: Clock, outcome: Outcome, also: Also | None) -> tuple[bool, str]:
    now = clock.now()
    facts = (*outcome.facts, *map(Made, also(outcome.ok, outcome.text) if also is not None else ()))
    await store.append([Entry(fact=one.fact, at=now, conversation=one.place, key=one.key or None) for one in facts])
    return outcome.ok, outcome.text
