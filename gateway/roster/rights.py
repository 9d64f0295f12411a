"""Who may change what whom is. Pure.

| who      | may give                         | to whom                                         |
|----------|----------------------------------|-------------------------------------------------|
| an owner | everything                       | everybody but themselves and the configuration's owners |
| an admin | member, blocked, nothing         | whoever is neither admin nor owner anywhere     |
| others   | nothing                          |                                                 |

A mask is never made admin or owner. All of it holds for the accounts of one person together. Who owns one place only
changes nothing of who owns all. What a platform makes of somebody is known of those alone who spoke there lately.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from gateway.roster.groups import vouched
from gateway.standing import ADMINS, RANKS, Policy, Role


def refusal(policy: Policy, *, by: str, role: Role, whom: str, wants: Role | Literal[""], seen: Role = "guest") -> str:
    """Why they may not; empty: they may. `role`: of who wants it, in the scope where it is to hold.

    `seen`: what whoever is meant was when they spoke last where it is wanted.
    """
    if role not in ADMINS:
        return "Only owners and admins decide that."
    if by in same(policy, whom):
        return "Nobody changes what they are themselves."
    if wants in ADMINS and not vouched(whom):
        return "Nobody vouches for a mask, so it is never made admin or owner."
    if any("owner" in given for given in _configured(policy, whom)):
        return "The configuration makes them an owner; only there that is changed."
    if role == "owner":
        lesser = owns(policy, whom) and not owns(policy, by)
        return "Only who owns everything changes what somebody may do who does, too." if lesser else ""
    if seen in ADMINS or strongest(policy, whom) in ADMINS:
        return "Only an owner changes what an admin or owner may do."
    return "Only an owner makes somebody admin or owner." if wants in ADMINS else ""


def same(policy: Policy, person: str) -> tuple[str, ...]:
    """All accounts of a person."""
    return (person, *sorted(policy.roster_state().links.get(person, ())))


def strongest(policy: Policy, person: str) -> Role:
    """The strongest role that they were given anywhere, whether they are blocked or not; guest: none."""
    return max({"guest", *_given(policy, person)}, key=RANKS.index)


def owns(policy: Policy, person: str) -> bool:
    """Whether they are an owner in all places."""
    known, accounts = policy.roster_state().grants, same(policy, person)
    given = (grant for one in accounts for grant in known.get(one, ()) if not grant.scope)
    return any(policy.roles.get(one) == "owner" for one in accounts) or any(one.role == "owner" for one in given)


def blocked_anywhere(policy: Policy, person: str) -> bool:
    """Whether one of their accounts is, in whichever place."""
    return "blocked" in _given(policy, person)


def _given(policy: Policy, person: str) -> set[Role]:
    known = policy.roster_state().grants
    given = {role for roles in _configured(policy, person) for role in roles}
    return given | {grant.role for one in same(policy, person) for grant in known.get(one, ())}


def _configured(policy: Policy, person: str) -> Iterator[Sequence[Role]]:
    for one in same(policy, person):
        if one in policy.roles:
            yield (policy.roles[one],)
        yield tuple(grant.role for grant in policy.grants.get(one, ()))
