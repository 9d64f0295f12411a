"""What becomes of a code that was handed in to let somebody in or to open a room, and of taking that back. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from gateway.changes import Made
from gateway.events import Address
from gateway.records import CodeGiven, CodeOver, RoleGiven, RoomOpened
from gateway.roster.letters import ended, letter
from gateway.roster.words import named, place

LET_IN: Final = "You are let in: from now on I answer you here."


class Outcome(NamedTuple):
    """What came of a wish."""

    text: str
    facts: tuple[Made, ...] = ()
    """To become durable together."""
    ok: bool = True
    """False: what was wanted is not done."""
    request: str = ""
    """The code that it uses up: nobody else may decide about it meanwhile. Empty: none."""


def no(words: str) -> Outcome:
    """It is not done."""
    return Outcome(words, ok=False)


def over(request: CodeGiven, state: Literal["used", "revoked", "expired"], by: str) -> Made:
    """A code is good no more. Said once of each."""
    return Made(CodeOver(request=request.request, state=state, by=by), request.at.conversation, ended(request))


def expired(requests: Iterable[CodeGiven]) -> tuple[Made, ...]:
    """Say of these that their time is over, so that nobody needs to look at them again."""
    return tuple(over(one, "expired", "") for one in requests)


def let_in(request: CodeGiven, by: str, *, has: RoleGiven | None) -> Outcome:
    """Whoever was shown this code may speak. `has`: the role that they were given meanwhile; it stays."""
    who = named(request.person, request.name)
    if has is not None and has.role != "guest":
        words = f"{who} is {has.role} already."
        return Outcome(words, (over(request, "used", by),), ok=has.role != "blocked", request=request.request)
    given = RoleGiven(person=request.person, role="member", name=request.name, by=by, why="pairing")
    facts = (
        Made(given, request.at.conversation, f"paired:{request.salt}"),
        over(request, "used", by),
        letter(request, LET_IN),
    )
    return Outcome(f"Let in: {who}.", facts, request=request.request)


def turned_away(request: CodeGiven, by: str) -> Outcome:
    """A code that was not used yet is taken back."""
    words = f"The code of {named(request.person, request.name)} is good no more."
    return Outcome(words, (over(request, "revoked", by),), request=request.request)


def opened(request: CodeGiven, room: Address, by: str) -> Outcome:
    """The room that this code was shown for is open. That is told where the code was shown.

    An admin's command, and its answer, may be seen by nobody else.
    """
    inside = (request.at.channel, request.at.room) == (room.channel, room.room)
    told = f"{'This room' if inside else place(room.conversation, request.about)} is open for me now."
    facts: Sequence[Made] = (
        Made(RoomOpened(room=room, open=True, by=by, about=request.about), room.conversation, f"opened:{request.salt}"),
        over(request, "used", by),
        letter(request, told),
    )
    asked = f"{named(request.person, request.name)} had asked for it."
    return Outcome(f"Open: {place(room.conversation, request.about)}. {asked}", tuple(facts), request=request.request)


def let_go(person: str, given: RoleGiven | None, by: str) -> Outcome:
    """Take back that somebody was let in."""
    if given is None or given.role == "blocked":
        return no(f"{named(person)} was not let in by anybody; `role list` tells who may what, and why.")
    taken = RoleGiven(person=person, role="", name=given.name, by=by, why="pairing")
    return Outcome(f"Let in no more: {named(person, given.name)}, who was {given.role}.", (Made(taken),))
