"""What becomes of a code that was handed in to let somebody in or to open a room, and of taking that back. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from gateway.changes import EffectFact
from gateway.events import Address
from gateway.records import CodeEnded, CodeIssued, RoleAssigned, RoomAccessChanged
from gateway.roster.letters import build_requester_notice, code_over_key
from gateway.roster.words import format_person, format_room

PAIRED_TEXT: Final = "You are let in: from now on I answer you here."


class AccessResult(NamedTuple):
    """What came of a wish."""

    text: str
    facts: tuple[EffectFact, ...] = ()
    """To become durable together."""
    ok: bool = True
    """False: what was wanted is not done."""
    request: str = ""
    """The code that it uses up: nobody else may decide about it meanwhile. Empty: none."""


def reject(words: str) -> AccessResult:
    """It is not done."""
    return AccessResult(words, ok=False)


def build_code_over(request: CodeIssued, state: Literal["used", "revoked", "expired"], by: str) -> EffectFact:
    """A code is good no more. Said once of each."""
    return EffectFact(
        CodeEnded(request=request.request, state=state, by=by), request.at.conversation, code_over_key(request)
    )


def build_code_expirations(requests: Iterable[CodeIssued]) -> tuple[EffectFact, ...]:
    """Say of these that their time is over, so that nobody needs to look at them again."""
    return tuple(build_code_over(one, "expired", "") for one in requests)


def approve_pairing(request: CodeIssued, by: str, *, has: RoleAssigned | None) -> AccessResult:
    """Whoever was shown this code may speak. `has`: the role that they were given meanwhile; it stays."""
    who = format_person(request.person, request.name)
    if has is not None and has.role != "guest":
        words = f"{who} is {has.role} already."
        return AccessResult(
            words, (build_code_over(request, "used", by),), ok=has.role != "blocked", request=request.request
        )
    given = RoleAssigned(person=request.person, role="member", name=request.name, by=by, why="pairing")
    facts = (
        EffectFact(given, request.at.conversation, f"paired:{request.salt}"),
        build_code_over(request, "used", by),
        build_requester_notice(request, PAIRED_TEXT),
    )
    return AccessResult(f"Let in: {who}.", facts, request=request.request)


def revoke_code(request: CodeIssued, by: str) -> AccessResult:
    """A code that was not used yet is taken back."""
    words = f"The code of {format_person(request.person, request.name)} is good no more."
    return AccessResult(words, (build_code_over(request, "revoked", by),), request=request.request)


def approve_room(request: CodeIssued, room: Address, by: str) -> AccessResult:
    """The room that this code was shown for is open. That is told where the code was shown.

    An admin's command, and its answer, may be seen by nobody else.
    """
    inside = (request.at.channel, request.at.room) == (room.channel, room.room)
    told = f"{'This room' if inside else format_room(room.conversation, request.about)} is open for me now."
    facts: Sequence[EffectFact] = (
        EffectFact(
            RoomAccessChanged(room=room, open=True, by=by, about=request.about),
            room.conversation,
            f"opened:{request.salt}",
        ),
        build_code_over(request, "used", by),
        build_requester_notice(request, told),
    )
    asked = f"{format_person(request.person, request.name)} had asked for it."
    return AccessResult(
        f"Open: {format_room(room.conversation, request.about)}. {asked}", tuple(facts), request=request.request
    )


def revoke_pairing(person: str, given: RoleAssigned | None, by: str) -> AccessResult:
    """Take back that somebody was let in."""
    if given is None or given.role == "blocked":
        return reject(f"{format_person(person)} was not let in by anybody; `role list` tells who may what, and why.")
    taken = RoleAssigned(person=person, role="", name=given.name, by=by, why="pairing")
    return AccessResult(
        f"Let in no more: {format_person(person, given.name)}, who was {given.role}.", (EffectFact(taken),)
    )
