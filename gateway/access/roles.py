"""Role changes and blocks that an admin asks for. Pure."""

from collections.abc import Sequence
from typing import Literal

from gateway.access.roster import PersonMatch, Roster, explain_role_refusal, list_accounts_of
from gateway.access.texts import format_person, format_room, is_verifiable
from gateway.core.events import Address
from gateway.core.facts import RoleAssigned
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX, AccessPolicy, Role
from gateway.store.effects import CommandEffect, done, refuse


class RoleScope:
    """Scope of a role: one room, or everywhere."""

    def __init__(self, at: Address | None, role: Role) -> None:
        """`at`: None: everywhere. `role`: of the person who makes the change, in that scope."""
        self.name = "" if at is None else Address(channel=at.channel, room=at.room).conversation
        self.label = (
            _("everywhere") if at is None else _("in {room}").format(room=format_room(self.name))
        )
        self.role = role


def give_role(
    policy: AccessPolicy,
    roster: Roster,
    whom: PersonMatch,
    by: str,
    at: RoleScope,
    *,
    wants: Literal["owner", "admin", "member"],
) -> CommandEffect:
    """Give somebody a role in that scope."""
    if why := explain_role_refusal(
        policy, by=by, role=at.role, whom=whom.person, wants=wants, last_role=whom.last_role
    ):
        return refuse(why)
    if whom.is_by_name and wants in ADMIN_ROLES:
        return refuse(
            _("Anybody can take any name. If you mean {person}, write that id.").format(
                person=whom.label
            )
        )
    if not is_verifiable(whom.person) and ("*" in whom.person or "?" in whom.person):
        return refuse(_("Only the configuration can give a role to a pattern of masks."))
    if not is_verifiable(whom.person) and not policy.allow_masks:
        return refuse(
            _(
                "I cannot give a role to a mask: the server does not confirm it, and tomorrow "
                "somebody else may have "
                "it. The operator can allow it with `access.masks`."
            )
        )
    before = roster.find_grant(whom.person, at.name)
    if before is not None and before.role == wants:
        text = _("{person} is already {role} {where}.")
        return done(text.format(person=whom.label, role=wants, where=at.label))
    fact = _build_role_fact(whom, wants, by, at.name, "role")
    text = (
        _("{person} is {role} {where} from now on, and was {before} until now.")
        if before is not None and before.role
        else _("{person} is {role} {where} from now on.")
    ).format(
        person=whom.label,
        role=wants,
        where=at.label,
        before=before.role if before is not None else "",
    )
    if policy.roles.get(whom.person) == "blocked":
        text = f"{text} {_('But the configuration still blocks them.')}"
    return done(text, fact)


def clear_role(
    policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: RoleScope
) -> CommandEffect:
    """Take back the role that somebody was given in that scope."""
    before = roster.find_grant(whom.person, at.name)
    if why := explain_role_refusal(
        policy, by=by, role=at.role, whom=whom.person, wants="", last_role=whom.last_role
    ):
        return refuse(why)
    if before is None:
        text = _(
            "{person} has no role {where} that was given by a command. Roles of the configuration "
            "stay."
        ).format(person=whom.label, where=at.label)
        elsewhere = [one.scope for one in roster.roles if one.person == whom.person]
        if elsewhere:
            rooms = ", ".join(format_room(one) if one else _("everywhere") for one in elsewhere)
            text = f"{text} {_('They have roles here: {rooms}.').format(rooms=rooms)}"
        return refuse(text)
    fact = _build_role_fact(whom, "", by, at.name, "role")
    text = _("{person} is no longer {role} {where}. Roles of the configuration stay.")
    return done(text.format(person=whom.label, role=before.role, where=at.label), fact)


def block_person(
    policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: RoleScope
) -> CommandEffect:
    """Block somebody in that scope."""
    pattern = PersonMatch(widen_mask(whom.person), whom.name)
    for one in (whom, pattern):
        if why := explain_role_refusal(
            policy, by=by, role=at.role, whom=one.person, wants="blocked", last_role=whom.last_role
        ):
            return refuse(why)
    before = roster.find_grant(pattern.person, at.name)
    if before is not None and before.role == "blocked":
        return refuse(
            _("{person} is already blocked {where}.").format(person=pattern.label, where=at.label)
        )
    texts = [
        _("Blocked: {person}, {where}. I ignore them from now on.").format(
            person=pattern.label, where=at.label
        )
    ]
    if pattern.person != whom.person:
        texts.append(
            _("The server does not confirm who that was, so this blocks everybody from that host.")
        )
    others = [one for one in list_accounts_of(policy, whom.person) if one != whom.person]
    if others and at.name:  # an admin of one room may not see the other accounts
        more = ngettext(
            "This also blocks {count} linked account.",
            "This also blocks {count} linked accounts.",
            len(others),
        )
        texts.append(more.format(count=len(others)))
    elif others:
        texts.append(
            _("This also blocks their linked accounts: {accounts}.").format(
                accounts=", ".join(map(format_person, others))
            )
        )
    if before is not None:
        texts.append(_("Their role was {role}.").format(role=before.role))
    return done(" ".join(texts), _build_role_fact(pattern, "blocked", by, at.name, "block"))


def unblock_person(
    policy: AccessPolicy, roster: Roster, whom: PersonMatch, by: str, at: Sequence[RoleScope]
) -> CommandEffect:
    """Unblock somebody in those of these scopes where they are blocked."""
    found = [
        (scope, one)
        for scope in at
        for one in dict.fromkeys((whom.person, widen_mask(whom.person)))
        if (before := roster.find_grant(one, scope.name)) is not None and before.role == "blocked"
    ]
    for scope, one in found:
        if why := explain_role_refusal(
            policy, by=by, role=scope.role, whom=one, wants="", last_role=whom.last_role
        ):
            return refuse(why)
    if not found:
        if policy.roles.get(whom.person) == "blocked":
            return refuse(
                _(
                    "`access.roles.blocked` in the configuration blocks {person}. Only the "
                    "operator can change that."
                ).format(person=whom.label)
            )
        places = _(" or ").join(one.label for one in at)
        return refuse(_("{person} is not blocked {where}.").format(person=whom.label, where=places))
    facts = (
        _build_role_fact(PersonMatch(one, whom.name), "", by, scope.name, "block")
        for scope, one in found
    )
    names = ", ".join(f"{format_person(one)} {scope.label}" for scope, one in found)
    text = _(
        "Not blocked any more: {people}. Roles that they had before do not come back; give them "
        "again if needed."
    )
    return done(text.format(people=names), *facts)


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
