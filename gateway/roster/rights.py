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

from gateway.roster.groups import is_verifiable
from gateway.standing import ADMIN_ROLES, ROLE_ORDER, AccessPolicy, Role


def explain_role_refusal(
    policy: AccessPolicy, *, by: str, role: Role, whom: str, wants: Role | Literal[""], seen: Role = "guest"
) -> str:
    """Why they may not; empty: they may. `role`: of who wants it, in the scope where it is to hold.

    `seen`: what whoever is meant was when they spoke last where it is wanted.
    """
    if role not in ADMIN_ROLES:
        return "Only owners and admins decide that."
    if by in list_accounts_of(policy, whom):
        return "Nobody changes what they are themselves."
    if wants in ADMIN_ROLES and not is_verifiable(whom):
        return "Nobody vouches for a mask, so it is never made admin or owner."
    if any("owner" in given for given in _iter_configured_roles(policy, whom)):
        return "The configuration makes them an owner; only there that is changed."
    if role == "owner":
        lesser = is_global_owner(policy, whom) and not is_global_owner(policy, by)
        return "Only who owns everything changes what somebody may do who does, too." if lesser else ""
    if seen in ADMIN_ROLES or find_strongest_role(policy, whom) in ADMIN_ROLES:
        return "Only an owner changes what an admin or owner may do."
    return "Only an owner makes somebody admin or owner." if wants in ADMIN_ROLES else ""


def list_accounts_of(policy: AccessPolicy, person: str) -> tuple[str, ...]:
    """All accounts of a person."""
    return (person, *sorted(policy.roster_state().links.get(person, ())))


def find_strongest_role(policy: AccessPolicy, person: str) -> Role:
    """The strongest role that they were given anywhere, whether they are blocked or not; guest: none."""
    return max({"guest", *_collect_roles(policy, person)}, key=ROLE_ORDER.index)


def is_global_owner(policy: AccessPolicy, person: str) -> bool:
    """Whether they are an owner in all places."""
    known, accounts = policy.roster_state().grants, list_accounts_of(policy, person)
    given = (grant for one in accounts for grant in known.get(one, ()) if not grant.scope)
    return any(policy.roles.get(one) == "owner" for one in accounts) or any(one.role == "owner" for one in given)


def is_blocked_anywhere(policy: AccessPolicy, person: str) -> bool:
    """Whether one of their accounts is, in whichever place."""
    return "blocked" in _collect_roles(policy, person)


def _collect_roles(policy: AccessPolicy, person: str) -> set[Role]:
    known = policy.roster_state().grants
    given = {role for roles in _iter_configured_roles(policy, person) for role in roles}
    return given | {grant.role for one in list_accounts_of(policy, person) for grant in known.get(one, ())}


def _iter_configured_roles(policy: AccessPolicy, person: str) -> Iterator[Sequence[Role]]:
    for one in list_accounts_of(policy, person):
        if one in policy.roles:
            yield (policy.roles[one],)
        yield tuple(grant.role for grant in policy.grants.get(one, ()))
