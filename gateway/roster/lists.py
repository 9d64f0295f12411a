"""Who asks, who may, what is open: as lists for people. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.records import CodeIssued, RoleAssigned, RoomAccessChanged
from gateway.roster.roster import describe_grant
from gateway.roster.words import format_approve_command, format_person, format_request, format_room
from gateway.standing import ROLE_ORDER, AccessPolicy
from gateway.tools.consent import inline_code

_PAIRING_REASONS: Final = ("pairing", "seed")


def format_requests(requests: Sequence[CodeIssued], what: str, prefix: str) -> list[str]:
    """Who was shown a code, without the codes."""
    if not requests:
        return [f"Nobody asks {what}."]
    return [f"Asking {what}:", *(f"- {format_request(one)}: {format_approve_command(one, prefix)}" for one in requests)]


def format_paired_people(roles: Iterable[RoleAssigned]) -> list[str]:
    """Who was let in while I ran."""
    lines = [_format_grant(one) for one in roles if one.why in _PAIRING_REASONS]
    return ["Let in:", *lines] if lines else ["Nobody was let in but by the configuration."]


def format_open_rooms(rooms: Sequence[RoomAccessChanged], policy: AccessPolicy) -> list[str]:
    """Where I may speak."""
    lines = [f"- {format_room(one.room.conversation, one.about)}, approved by {inline_code(one.by)}" for one in rooms]
    configured = [
        f"- {format_room(f'{channel}/{room}')}, by the configuration"
        for channel, listed in policy.open_rooms.items()
        for room in sorted(listed)
    ]
    return ["Open:", *configured, *lines] if configured or lines else ["No room is open."]


def format_roles(policy: AccessPolicy, given: Iterable[RoleAssigned]) -> list[str]:
    """Everybody who has a role, the strongest first, and why; what was given later stands behind the configuration."""
    lines = [
        (ROLE_ORDER.index(role), f"- {format_person(one)}: {role}, by the configuration")
        for one, role in policy.roles.items()
    ]
    lines += [
        (
            ROLE_ORDER.index(grant.role),
            f"- {format_person(one)}: {grant.role} in {format_room(grant.scope)}, by the configuration",
        )
        for one, grants in policy.grants.items()
        for grant in grants
    ]
    lines += [
        (
            ROLE_ORDER.index(rule_.role),
            (
                f"- {inline_code(rule_.platform_role)} in {format_room(f'{rule_.channel}/{rule_.room}')}: "
                f"{rule_.role}, by the configuration"
            ),
        )
        for rule_ in policy.platform_roles
    ]
    lines += [(ROLE_ORDER.index(one.role), _format_grant(one)) for one in given if one.role]
    return [line for _, line in sorted(lines, key=lambda one: -one[0])] or ["Nobody has a role."]


def _format_grant(one: RoleAssigned) -> str:
    where = f" in {format_room(one.scope)}" if one.scope else ""
    return f"- {format_person(one.person, one.name)}: {one.role}{where}, {inline_code(describe_grant(one), 200)}"
