"""Commands about people: `role`, `block`, `unblock` and `seen`. Their changes are facts."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, get_args

from channels.base import CommandCompletion
from gateway.access.roles import RoleScope, block_person, clear_role, give_role, unblock_person
from gateway.access.roster import PersonMatch, find_person, format_roles, read_recent_senders
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.core.events import Address, Message
from gateway.core.facts import MESSAGE_KINDS
from gateway.core.format import format_duration, format_time
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES, identify
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


SEEN_LINES: Final = 2_000


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
        SEEN_LINES, kinds=MESSAGE_KINDS, conversation=call.command.at.conversation
    )
    for entry in reversed(lines):
        said = entry.fact
        if isinstance(said, Message) and said.sender.name.casefold() == name.casefold():
            ago = format_duration(
                max(0.0, (context.gateway.clock.now() - said.sent).total_seconds())
            )
            return done(
                _("{name} last wrote here at {time}, {ago} ago.").format(
                    name=inline_code(said.sender.name), time=format_time(said.sent), ago=ago
                )
            )
    return done(_("I have not seen {name} write here lately.").format(name=inline_code(name)))


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
            wants = _ROLES[call.arguments["role"]]
            return give_role(policy, roster, whom, by, at, wants=wants)
        case "clear":
            return clear_role(policy, roster, whom, by, at)
        case "block":
            return block_person(policy, roster, whom, by, at)
        case _:
            places = [at]
            if not at.name and "where" not in call.arguments and not call.command.direct:
                places.append(RoleScope(call.command.at, call.role))
            return unblock_person(policy, roster, whom, by, places)
