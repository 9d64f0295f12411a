"""What becomes of an admin's word on what somebody is: roles, blocks. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

from gateway.changes import Made
from gateway.events import Address
from gateway.records import RoleGiven
from gateway.roster.finding import Found
from gateway.roster.groups import vouched
from gateway.roster.pairing import Outcome, no
from gateway.roster.rights import refusal, same
from gateway.roster.roster import Roster
from gateway.roster.words import named, place
from gateway.standing import ADMINS, MASK, Policy, Role

_NONE: Final = "the configuration says what they are, if it says anything"


class Scope:
    """Where something is to hold."""

    def __init__(self, at: Address | None, role: Role) -> None:
        """`at`: None is everywhere. `role`: of whoever wants it, there."""
        self.name = "" if at is None else Address(channel=at.channel, room=at.room).conversation
        self.label = "everywhere" if at is None else f"in {place(self.name)}"
        self.role = role


def given(
    policy: Policy, roster: Roster, whom: Found, by: str, at: Scope, *, wants: Literal["owner", "admin", "member"]
) -> Outcome:
    """Somebody has that role from now on, there."""
    if why := refusal(policy, by=by, role=at.role, whom=whom.person, wants=wants, seen=whom.last_role):
        return no(why)
    if whom.is_by_name and wants in ADMINS:
        return no(f"Anybody can take a name. If you mean {whom.label}, write that id.")
    if not vouched(whom.person) and ("*" in whom.person or "?" in whom.person):
        return no("Only the configuration gives roles to patterns of masks.")
    if not vouched(whom.person) and not policy.allow_masks:
        return no("Nobody vouches for a mask: anybody may have it tomorrow. `access.masks` lets it be given a role.")
    before = roster.find_grant(whom.person, at.name)
    fact = _role(whom, wants, by, at.name, "role")
    was = f", was {before.role}" if before is not None and before.role else ""
    return Outcome(f"{whom.label} is {wants} {at.label} from now on{was}.{_blocked(policy, whom)}", (Made(fact),))


def cleared(policy: Policy, roster: Roster, whom: Found, by: str, at: Scope) -> Outcome:
    """What somebody was given there is taken back."""
    before = roster.find_grant(whom.person, at.name)
    if why := refusal(policy, by=by, role=at.role, whom=whom.person, wants="", seen=whom.last_role):
        return no(why)
    if before is None:
        elsewhere = [one.scope or "everywhere" for one in roster.roles if one.person == whom.person]
        told = f" They have roles: {', '.join(map(place, elsewhere))}." if elsewhere else ""
        return no(f"{whom.label} was given nothing {at.label}: {_NONE}.{told}")
    fact = _role(whom, "", by, at.name, "role")
    return Outcome(f"{whom.label} is no longer {before.role} {at.label}: {_NONE}.", (Made(fact),))


def blocked(policy: Policy, roster: Roster, whom: Found, by: str, at: Scope) -> Outcome:
    """Nothing is heard of somebody there any more."""
    pattern = Found(mask(whom.person), whom.name)
    for one in (whom, pattern):
        if why := refusal(policy, by=by, role=at.role, whom=one.person, wants="blocked", seen=whom.last_role):
            return no(why)
    before = roster.find_grant(pattern.person, at.name)
    if before is not None and before.role == "blocked":
        return no(f"{pattern.label} is blocked {at.label} already.")
    told = f"I hear nothing of {pattern.label} {at.label} any more."
    if pattern.person != whom.person:
        told += " Nobody vouches for who that was, so this is everybody from that host."
    others = [one for one in same(policy, whom.person) if one != whom.person]
    if others and at.name:  # who else they are is nothing for who administers a room
        told += f" With them goes who is linked: {len(others)} more account{'' if len(others) == 1 else 's'}."
    elif others:
        told += f" With them goes who is linked: {', '.join(map(named, others))}."
    if before is not None:
        told += f" They were {before.role}."
    return Outcome(told, (Made(_role(pattern, "blocked", by, at.name, "block")),))


def unblocked(policy: Policy, roster: Roster, whom: Found, by: str, at: Sequence[Scope]) -> Outcome:
    """Somebody is heard again, in those of these scopes where they were blocked."""
    found = [
        (scope, one)
        for scope in at
        for one in dict.fromkeys((whom.person, mask(whom.person)))
        if (before := roster.find_grant(one, scope.name)) is not None and before.role == "blocked"
    ]
    for scope, one in found:
        if why := refusal(policy, by=by, role=scope.role, whom=one, wants="", seen=whom.last_role):
            return no(why)
    if not found:
        if policy.roles.get(whom.person) == "blocked":
            return no(f"{whom.label} is blocked by `access.roles.blocked`: only there that is changed.")
        return no(f"{whom.label} is not blocked {' or '.join(one.label for one in at)}.")
    facts = tuple(Made(_role(Found(one, whom.name), "", by, scope.name, "block")) for scope, one in found)
    told = ", ".join(f"{named(one)} {scope.label}" for scope, one in found)
    return Outcome(f"Not blocked any more: {told}. What they were before they are given anew, if at all.", facts)


def mask(whom: str) -> str:
    """Of a mask, everybody from its host: a nick and a user name are changed in a moment. Others are themselves."""
    head, mark, shown = whom.partition(f":{MASK}")
    host = shown.rpartition("@")[2]
    if not mark or "@" not in shown or not host.strip("*?."):
        return whom
    return f"{head}{mark}*!*@{host.replace('*', '?')}"


def _role(
    whom: Found,
    role: Literal["owner", "admin", "member", "blocked", ""],
    by: str,
    scope: str,
    why: Literal["role", "block"],
) -> RoleGiven:
    return RoleGiven(person=whom.person, role=role, scope=scope, name=whom.name, by=by, why=why)


def _blocked(policy: Policy, whom: Found) -> str:
    blocked = policy.roles.get(whom.person) == "blocked"
    return " They are blocked by the configuration all the same." if blocked else ""
