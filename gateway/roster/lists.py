"""Who asks, who may, what is open: as lists for people. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.records import CodeGiven, RoleGiven, RoomOpened
from gateway.roster.roster import rule
from gateway.roster.words import approving, named, place, waiting
from gateway.standing import RANKS, Policy
from gateway.tools.consent import code

_LET_IN: Final = ("pairing", "seed")


def asking(requests: Sequence[CodeGiven], what: str, prefix: str) -> list[str]:
    """Who was shown a code, without the codes."""
    if not requests:
        return [f"Nobody asks {what}."]
    return [f"Asking {what}:", *(f"- {waiting(one)}: {approving(one, prefix)}" for one in requests)]


def paired(roles: Iterable[RoleGiven]) -> list[str]:
    """Who was let in while I ran."""
    lines = [_given(one) for one in roles if one.why in _LET_IN]
    return ["Let in:", *lines] if lines else ["Nobody was let in but by the configuration."]


def open_rooms(rooms: Sequence[RoomOpened], policy: Policy) -> list[str]:
    """Where I may speak."""
    lines = [f"- {place(one.room.conversation, one.about)}, approved by {code(one.by)}" for one in rooms]
    configured = [
        f"- {place(f'{channel}/{room}')}, by the configuration"
        for channel, listed in policy.open_rooms.items()
        for room in sorted(listed)
    ]
    return ["Open:", *configured, *lines] if configured or lines else ["No room is open."]


def roles(policy: Policy, given: Iterable[RoleGiven]) -> list[str]:
    """Everybody who has a role, the strongest first, and why; what was given later stands behind the configuration."""
    lines = [(RANKS.index(role), f"- {named(one)}: {role}, by the configuration") for one, role in policy.roles.items()]
    lines += [
        (RANKS.index(grant.role), f"- {named(one)}: {grant.role} in {place(grant.scope)}, by the configuration")
        for one, grants in policy.grants.items()
        for grant in grants
    ]
    lines += [
        (
            RANKS.index(rule_.role),
            (
                f"- {code(rule_.platform_role)} in {place(f'{rule_.channel}/{rule_.room}')}: "
                f"{rule_.role}, by the configuration"
            ),
        )
        for rule_ in policy.platform_roles
    ]
    lines += [(RANKS.index(one.role), _given(one)) for one in given if one.role]
    return [line for _, line in sorted(lines, key=lambda one: -one[0])] or ["Nobody has a role."]


def _given(one: RoleGiven) -> str:
    where = f" in {place(one.scope)}" if one.scope else ""
    return f"- {named(one.person, one.name)}: {one.role}{where}, {code(rule(one), 200)}"
