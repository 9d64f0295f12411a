"""Commands about people: `role`, `block`, `unblock` and `seen`. Their changes are facts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from channels.base import CommandCompletion
from gateway.access.roster import (
    PersonMatch,
    Roster,
    explain_role_refusal,
    find_person,
    format_roles,
    list_accounts_of,
    read_recent_senders,
)
from gateway.access.texts import format_person, format_room, is_verifiable
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.core.events import Address, Message
from gateway.core.facts import MESSAGE_KINDS, RoleAssigned
from gateway.core.format import format_duration, format_time
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX, AccessPolicy, Role, identify
from gateway.core.text_safety import inline_code
from gateway.store.effects import CommandEffect, done, refuse
from gateway.stream.handle import GatewayHandle

AssignableRole = Literal["owner", "admin", "member"]
"""Roles that `role set` can give."""


async def suggest_people(gateway: GatewayHandle, typed: CommandCompletion) -> list[str]:
    """Suggest names and ids of recent senders there; then, to admins everywhere, people with a
    role.
    """
    recent = await read_recent_senders(gateway.store, typed.at.conversation)
    names = Counter(sender.name for sender in recent.values())
    named = [name for name, times in names.items() if times == 1]
    wide = identify(gateway.people, typed.at, typed.sender).global_role in ADMIN_ROLES
    return [*named, *recent, *([one.person for one in gateway.roster.roles] if wide else [])]


async def _suggest_people(typed: CommandCompletion, context: CommandContext) -> list[str]:
    return await suggest_people(context.gateway, typed)


async def find_named_person(
    gateway: GatewayHandle, at: Address, written: str
) -> PersonMatch | CommandEffect:
    """Return the person that somebody named in that place, or the reason why nobody."""
    recent, roster = await read_recent_senders(gateway.store, at.conversation), gateway.roster
    known = dict.fromkeys([*gateway.people.roles, *gateway.people.grants], "")
    known |= {one.person: one.name for one in roster.pending_requests("pair", "room")}
    known |= {one.person: one.name for one in roster.roles}
    names = {one: sender.name for one, sender in recent.items()}
    found = find_person(written, at, gateway.channels.capabilities, names, known)
    if isinstance(found, str):
        return refuse(found)
    sender = recent.get(found.person)
    return (
        found
        if sender is None
        else found._replace(last_role=identify(gateway.people, at, sender).role)
    )


_WHO_ARG: Final = make_arg(
    "who",
    "A person: an id as in whoami, or a name that was active here lately.",
    needed=True,
    suggests=_suggest_people,
)


_WHERE_ARG: Final = make_arg("where", "In this room only, or everywhere.", "here", "everywhere")


_ROLES: Final[Mapping[str, AssignableRole]] = {one: one for one in get_args(AssignableRole)}


ROLE = command(
    "role",
    "Show and change who may do what.",
    group="people",
    role="admin",
    needs_global_role=True,
)


@command(
    "seen",
    "Show when somebody last wrote here.",
    group="this conversation",
    args=(
        make_arg(
            "who",
            "The name that they had then.",
            needed=True,
            rest=True,
            suggests=_suggest_people,
        ),
    ),
    needs_gateway=True,
)
async def show_last_seen(call: CommandCall, context: CommandContext) -> CommandEffect:
    name = call.arguments["who"].removeprefix("@")
    lines = await context.gateway.store.newest_entries(
        2_000, kinds=MESSAGE_KINDS, conversation=call.command.at.conversation
    )
    for entry in reversed(lines):
        said = entry.fact
        if isinstance(said, Message) and name.casefold() in {
            said.sender.name.casefold(),
            f"user-{said.sender.id}",
        }:
            ago = format_duration(
                max(0.0, (context.gateway.clock.now() - said.sent).total_seconds())
            )
            return done(
                _("{name} last wrote here at {time}, {ago} ago.").format(
                    name=inline_code(said.sender.name), time=format_time(said.sent), ago=ago
                )
            )
    return done(_("I have not seen {name} write here lately.").format(name=inline_code(name)))


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


def _find_scope(call: CommandCall) -> RoleScope | CommandEffect:
    """Return the scope of the change. An admin of one place can act there only."""
    where, wide = call.arguments.get("where"), call.global_role in ADMIN_ROLES
    if where == "here" or (where is None and not wide):
        if call.command.direct:
            return refuse(_("Write that in the room that you mean."))
        return RoleScope(call.command.at, call.role)
    if not wide:
        return refuse(
            _("You are {role} only here. Write `here` at the end.").format(role=call.role)
        )
    return RoleScope(None, call.global_role)


@command("role list", "List everybody who has a role, and why.")
async def list_roles(_call: CommandCall, context: CommandContext) -> CommandEffect:
    return done("\n".join(format_roles(context.gateway.people, context.gateway.roster.roles)))


@command(
    "unblock",
    "Stop ignoring a person.",
    group="people",
    args=(_WHO_ARG, _WHERE_ARG),
    role="admin",
)
@command(
    "block",
    "Ignore a person from now on.",
    group="people",
    args=(_WHO_ARG, _WHERE_ARG),
    role="admin",
)
@command("role clear", "Take back a role that was given by command.", args=(_WHO_ARG, _WHERE_ARG))
@command(
    "role set",
    "Give a person a role.",
    args=(_WHO_ARG, make_arg("role", "The role.", *_ROLES, needed=True), _WHERE_ARG),
)
async def change_role(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Change what a person may do; `unblock` without a scope everywhere and here, as far as the
    sender may.
    """
    gateway, by, at = context.gateway, call.person, _find_scope(call)
    whom = await find_named_person(gateway, call.command.at, call.arguments["who"])
    if isinstance(whom, CommandEffect):
        return whom
    if isinstance(at, CommandEffect):
        return at
    policy, roster = gateway.people, gateway.roster
    match call.sub or call.command.name:
        case "set":
            return give_role(policy, roster, whom, by, at, wants=_ROLES[call.arguments["role"]])
        case "clear":
            return clear_role(policy, roster, whom, by, at)
        case "block":
            return block_person(policy, roster, whom, by, at)
        case _:
            places = [at]
            if not at.name and "where" not in call.arguments and not call.command.direct:
                places.append(RoleScope(call.command.at, call.role))
            return unblock_person(policy, roster, whom, by, places)
