"""Role changes and blocks that an admin asks for. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

from gateway.access.pairing import AccessResult, reject
from gateway.access.roster import PersonMatch, Roster, explain_role_refusal, list_accounts_of
from gateway.access.texts import format_person, format_room, is_verifiable
from gateway.core.events import Address
from gateway.core.facts import RoleAssigned
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX, AccessPolicy, Role
from gateway.store.effects import EffectFact

_CONFIGURATION_DECIDES: Final = "the configuration says what they are, if it says anything"


class RoleScope:
    """Scope of a role: one room, or everywhere."""

    def __init__(self, at: Address | None, role: Role) -> None:
        """`at`: None: everywhere. `role`: of the person who makes the change, in that scope."""
        self.name = "" if at is None else Address(channel=at.channel, room=at.room).conversation
        self.label = "everywhere" if at is None else f"in {format_room(self.name)}"
        self.role = role


def give_role(
    policy: AccessPolicy,
    roster: Roster,
    whom: PersonMatch,
    by: str,
    at: RoleScope,
    *,
    wants: Literal["owner", "admin", "member"],
) -> AccessResult:
    """Give somebody a role in that scope."""
    if why := explain_role_refusal(
        policy, by=by, role=at.role, whom=whom.person, wants=wants, last_role=whom.last_role
    ):
        return reject(why)
    if whom.is_by_name and wants in ADMIN_ROLES:
        return reject(f"Anybody can take a name. If you mean {whom.label}, write that id.")
    if not is_verifiable(whom.person) and ("*" in whom.person or "?" in whom.person):
        return reject("Only the configuration gives roles to patterns of masks.")
    if not is_verifiable(whom.person) and not policy.allow_masks:
        return reject(
            "Nobody vouches for a mask: anybody may have it tomorrow. `access.masks` lets it be given a role."
        )
    before = roster.find_grant(whom.person, at.name)
    fact = _build_role_fact(whom, wants, by, at.name, "role")
    was = f", was {before.role}" if before is not None and before.role else ""
    return AccessResult(
        f"{whom.label} is {wants} {at.label} from now on{was}.{_format_block_warning(policy, whom)}",
        (EffectFact(fact),),
    )


def clear_role(policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: RoleScope) -> AccessResult:
    """Take back the role that somebody was given in that scope."""
    before = roster.find_grant(whom.person, at.name)
    if why := explain_role_refusal(policy, by=by, role=at.role, whom=whom.person, wants="", last_role=whom.last_role):
        return reject(why)
    if before is None:
        elsewhere = [one.scope or "everywhere" for one in roster.roles if one.person == whom.person]
        note = f" They have roles: {', '.join(map(format_room, elsewhere))}." if elsewhere else ""
        return reject(f"{whom.label} was given nothing {at.label}: {_CONFIGURATION_DECIDES}.{note}")
    fact = _build_role_fact(whom, "", by, at.name, "role")
    return AccessResult(
        f"{whom.label} is no longer {before.role} {at.label}: {_CONFIGURATION_DECIDES}.", (EffectFact(fact),)
    )


def block_person(policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: RoleScope) -> AccessResult:
    """Block somebody in that scope."""
    pattern = PersonMatch(widen_mask(whom.person), whom.name)
    for one in (whom, pattern):
        if why := explain_role_refusal(
            policy, by=by, role=at.role, whom=one.person, wants="blocked", last_role=whom.last_role
        ):
            return reject(why)
    before = roster.find_grant(pattern.person, at.name)
    if before is not None and before.role == "blocked":
        return reject(f"{pattern.label} is blocked {at.label} already.")
    text = f"I hear nothing of {pattern.label} {at.label} any more."
    if pattern.person != whom.person:
        text += " Nobody vouches for who that was, so this is everybody from that host."
    others = [one for one in list_accounts_of(policy, whom.person) if one != whom.person]
    if others and at.name:  # an admin of one room may not see the other accounts
        text += f" With them goes who is linked: {len(others)} more account{'' if len(others) == 1 else 's'}."
    elif others:
        text += f" With them goes who is linked: {', '.join(map(format_person, others))}."
    if before is not None:
        text += f" They were {before.role}."
    return AccessResult(text, (EffectFact(_build_role_fact(pattern, "blocked", by, at.name, "block")),))


def unblock_person(
    policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: Sequence[RoleScope]
) -> AccessResult:
    """Unblock somebody in those of these scopes where they are blocked."""
    found = [
        (scope, one)
        for scope in at
        for one in dict.fromkeys((whom.person, widen_mask(whom.person)))
        if (before := roster.find_grant(one, scope.name)) is not None and before.role == "blocked"
    ]
    for scope, one in found:
        if why := explain_role_refusal(policy, by=by, role=scope.role, whom=one, wants="", last_role=whom.last_role):
            return reject(why)
    if not found:
        if policy.roles.get(whom.person) == "blocked":
            return reject(f"{whom.label} is blocked by `access.roles.blocked`: only there that is changed.")
        return reject(f"{whom.label} is not blocked {' or '.join(one.label for one in at)}.")
    facts = tuple(
        EffectFact(_build_role_fact(PersonMatch(one, whom.name), "", by, scope.name, "block")) for scope, one in found
    )
    names = ", ".join(f"{format_person(one)} {scope.label}" for scope, one in found)
    return AccessResult(f"Not blocked any more: {names}. What they were before they are given anew, if at all.", facts)


def widen_mask(whom: str) -> str:
    """Return the mask of everybody from the same host: nick and user name are easily changed.

    Other ids stay as they are.
    """
    head, mark, shown = whom.partition(f":{MASK_PREFIX}")
    host = shown.rpartition("@")[2]
    if not mark or "@" not in shown or not host.strip("*?."):
        return whom
    return f"{head}{mark}*!*@{host.replace('*', '?')}"


def _build_role_fact(
    whom: PersonMatch,
    role: Literal["owner", "admin", "member", "blocked", ""],
    by: str,
    scope: str,
    why: Literal["role", "block"],
) -> RoleAssigned:
    return RoleAssigned(person=whom.person, role=role, scope=scope, name=whom.name, by=by, why=why)


def _format_block_warning(policy: AccessPolicy, whom: PersonMatch) -> str:
    blocked = policy.roles.get(whom.person) == "blocked"
    return " They are blocked by the configuration all the same." if blocked else ""
