"""Commands about people: `pair`, `room`, `role`, `block`, `unblock` and `link`.

Their changes are facts. Notices, and joining and leaving of rooms, follow once those are durable
(`gateway.access.pairing`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal

from gateway.access import pairing
from gateway.access.approval_texts import inline_code
from gateway.access.linking import AccountClaim
from gateway.access.pairing import AccessResult, reject
from gateway.access.policy import AccessDecision, is_room_allowed, is_room_configured
from gateway.access.roles import RoleScope, block_person, clear_role, give_role, unblock_person
from gateway.access.roster import (
    BRIDGED_NO_ROLE_TEXT,
    MASK_NOT_ADMIN_TEXT,
    RECENT_LINES,
    PersonMatch,
    RequestKind,
    explain_invalid_id,
    explain_role_refusal,
    find_person,
    format_open_rooms,
    format_paired_people,
    format_requests,
    format_roles,
    list_accounts_of,
    read_recent_senders,
)
from gateway.access.texts import (
    BEING_DECIDED_TEXT,
    TRY_LATER_TEXT,
    describe_verification,
    find_by_code,
    find_request,
    format_person,
    format_room,
    is_verifiable,
    render_request_for_owners,
    render_unknown_request,
    request_buttons,
)
from gateway.commands.context import CommandCall, CommandContext, CommandReply
from gateway.commands.definition import (
    CODE_ARG,
    REQUEST_ARG,
    ROOM_ARG,
    ROOM_REQUEST_ARG,
    WHERE_ARG,
    WHO_ARG,
    CommandDefinition,
    SubcommandDefinition,
    make_arg,
)
from gateway.context.conversation import is_addressed
from gateway.core.events import Address, ChannelName, Message, MessageDeleted, MessageEdited
from gateway.core.facts import AMBIENT, MESSAGE_KINDS, CodeIssued, RoleAssigned, RoomAccessChanged, Seq, dedup_key
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES, is_bridged, normalize_person_key, person_key, role_of
from gateway.store import StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream import attention


def _build_reply(context: CommandContext, outcome: AccessResult) -> CommandReply:
    """Return the reply, with the facts to append. The caller must return it without awaiting anything."""
    if not outcome.facts:
        return CommandReply(text=outcome.text, ok=outcome.ok)
    settle = context.roster.reserve_request(outcome.request)
    if settle is None:
        return CommandReply(text=_(BEING_DECIDED_TEXT), ok=False)
    change = CommandEffect(answer=outcome.text, facts=outcome.facts, settle=settle)
    return CommandReply(text=outcome.text, effect=change, ok=outcome.ok)


async def _find_person(call: CommandCall, context: CommandContext) -> PersonMatch | AccessResult:
    """Return the person that the argument `who` means, or the reason why nobody."""
    at = call.command.at
    recent = await read_recent_senders(context.store, at.conversation)
    known = dict.fromkeys([*context.access_policy.roles, *context.access_policy.grants], "")
    known |= {one.person: one.name for one in context.roster.pending_requests("pair", "room")}
    known |= {one.person: one.name for one in context.roster.roles}
    names = {one: sender.name for one, sender in recent.items()}
    found = find_person(call.arguments["who"], at, context.channels.platforms, names, known)
    if isinstance(found, str):
        return reject(found)
    sender = recent.get(found.person)
    return found if sender is None else found._replace(last_role=role_of(context.access_policy, at, sender))


def _find_scope(call: CommandCall) -> RoleScope | AccessResult:
    """Return the scope of the change. An admin of one place can act there only."""
    where, wide = call.arguments.get("where"), call.global_role in ADMIN_ROLES
    if where == "here" or (where is None and not wide):
        if call.command.direct:
            return reject(_("Write that in the room that you mean."))
        return RoleScope(call.command.at, call.role)
    if not wide:
        return reject(_("You are {role} only here. Write `here` at the end.").format(role=call.role))
    return RoleScope(None, call.global_role)


def room_address(at: Address) -> Address:
    """Return the room's address, without the thread."""
    return Address(channel=at.channel, room=at.room)


async def list_pairings(call: CommandCall, context: CommandContext) -> CommandReply:
    """List who waits for approval, and who is approved; to the operator also the rooms."""
    roster = context.roster
    asking = roster.pending_requests("pair")
    lines = [*format_requests(asking, "pair", call.prefix), *format_paired_people(roster.roles)]
    if not call.is_operator:
        return CommandReply(text="\n".join(lines))
    waiting = roster.pending_requests("room")
    lines += [
        *format_requests(waiting, "room", call.prefix),
        *format_open_rooms(roster.rooms, context.access_policy),
    ]
    data = {
        "requests": [
            {
                "request": one.request,
                "person": one.person,
                "name": one.name,
                "room": one.room and one.room.conversation,
                "until": one.until,
            }
            for one in (*asking, *waiting)
        ],
        "roles": [{"person": one.person, "role": one.role, "scope": one.scope, "by": one.by} for one in roster.roles],
        "rooms": [{"room": one.room.conversation, "by": one.by} for one in roster.rooms],
    }
    return CommandReply(text="\n".join(lines), data=data)


async def approve_pairing(call: CommandCall, context: CommandContext) -> CommandReply:
    """Approve a person who asked; for the operator also a room that somebody asked for."""
    request = _find_request(context, call, "pair", *(("room",) if call.is_operator else ()))
    if not isinstance(request, AccessResult):
        request = await _approve(call, context, request)
    return _build_reply(context, request)


async def _approve(call: CommandCall, context: CommandContext, request: CodeIssued) -> AccessResult:
    """Approve a request; what its person asked in vain is answered now."""
    asked = await _find_refused_lines(context, request)
    if request not in context.roster.pending_requests(request.what):  # decided meanwhile
        return reject(_(BEING_DECIDED_TEXT))
    if request.room is not None:
        outcome = pairing.approve_room(request, request.room, call.person)
    else:
        outcome = pairing.approve_pairing(request, call.person, existing=context.roster.find_grant(request.person))
        sure = describe_verification(request.person, context.channels.platforms)
        outcome = outcome._replace(text=f"{outcome.text} {sure}")
    return outcome._replace(facts=(*outcome.facts, *asked)) if outcome.ok else outcome


MAX_REFUSED_AGE: Final = timedelta(days=1)
"""Age of a question that is still answered after the approval."""
MAX_REFUSED_LINES: Final = 10
"""Lines that are told of somebody who was let in: the question, and those before it."""
_LET_IN: Final = "written before they were let in"


async def _find_refused_lines(context: CommandContext, request: CodeIssued) -> tuple[EffectFact, ...]:
    """Return what somebody wrote in vain where they asked to be let in, to be appended once more with their approval.

    The newest line to the agent is due, and their lines before it are context. Each enters once, at a new position: a
    turn that is under way covers no later one. Nothing of somebody who is or was blocked, or was heard since.
    """
    at, policy, now = request.at, context.access_policy, context.clock.now()
    if request.room is not None and room_address(at) != request.room:
        at = request.room
    found = list[EffectFact]()
    recent = await context.store.newest_entries(RECENT_LINES, kinds=MESSAGE_KINDS, conversation=at.conversation)
    for entry in reversed(recent):
        message = entry.fact
        if not isinstance(message, Message) or person_key(at.channel, message.sender.id) != request.person:
            continue
        before = await context.store.find_judgement(entry.seq)
        if before is None or before.fate != "refused" or message.sender.is_bot or len(found) == MAX_REFUSED_LINES:
            break
        role = role_of(policy, at, message.sender)
        if "blocked" in (role, before.role) or now - message.sent > MAX_REFUSED_AGE:
            break
        text = await _read_current_text(context.store, entry.seq, message)
        if text is None or message.history or not (found or is_addressed(message)):
            continue
        message = replace(message, text=text, as_guest=before.role == "guest")
        listen = context.agents.bindings.find(message.at).listen
        decision = AccessDecision(allowed=True, role=role, rule=_LET_IN)
        judged = attention.judge(context.attention.policy, message, decision, listen)
        if judged.fate not in ("due", "context"):
            break
        judged = replace(judged, role=before.role, rule=f"{judged.rule}; {_LET_IN}")
        judged = replace(judged, fate="context", urgency=AMBIENT) if found else judged
        found.append(EffectFact(message, at.conversation, f"let_in:{dedup_key(message)}", judged))
    return tuple(reversed(found))


async def _read_current_text(reader: StoreReader, seq: Seq, message: Message) -> str | None:
    """Return the text of a message as it reads now: its author's edits were refused as well. None: it was deleted."""
    text = message.text
    for change in await reader.message_changes(message.at.conversation, after=seq, newest=RECENT_LINES):
        if isinstance(change.fact, MessageDeleted) and change.fact.message == message.id:
            return None
        if isinstance(change.fact, MessageEdited) and change.fact.message == message.id:
            text = change.fact.text if change.fact.sender.id == message.sender.id else text
    return text


async def seed_person(call: CommandCall, context: CommandContext) -> CommandReply:
    """Give a role to somebody who never asked."""
    written, role = call.arguments["who"], _ASSIGNABLE_ROLES[call.arguments.get("role", "member")]
    name, __, number = written.partition(":")
    channels = context.live.settings.channels
    if not (name and number):
        return CommandReply(text=_("Write channel:id, as `whoami` shows it, for example telegram.main:1001."), ok=False)
    if (channel := channels.get(ChannelName(name))) is None:
        known = ", ".join(map(inline_code, channels)) or _("none")
        text = _("There is no channel {channel}. The channels are: {channels}.")
        return CommandReply(text=text.format(channel=inline_code(name), channels=known), ok=False)
    if wrong := explain_invalid_id(written, channel.platform):
        return CommandReply(text=wrong, ok=False)
    whom = normalize_person_key(written)
    if is_bridged(whom):
        return CommandReply(text=_(BRIDGED_NO_ROLE_TEXT), ok=False)
    if role in ADMIN_ROLES and not is_verifiable(whom):
        return CommandReply(text=_(MASK_NOT_ADMIN_TEXT), ok=False)
    given = context.roster.find_grant(whom)
    if given is not None and given.role == role:
        return CommandReply(
            text=_("{person} is already {role}.").format(person=format_person(whom, given.name), role=role), ok=False
        )
    fact = RoleAssigned(person=whom, role=role, name=given.name if given else "", by=call.person, why="seed")
    words = _("{person} is {role} from now on.").format(person=format_person(whom), role=role)
    return _build_reply(context, AccessResult(words, (EffectFact(fact),)))


async def revoke_pairing(call: CommandCall, context: CommandContext) -> CommandReply:
    """Refuse a request, or take the approval of a person back."""
    roster, name = context.roster, call.arguments["who"].strip("` ").lower()
    for request in roster.pending_requests("pair", "room"):
        if request.request == name:
            return _build_reply(context, pairing.revoke_code(request, call.person))
    whom = await _find_person(call, context)
    if isinstance(whom, AccessResult):
        return _build_reply(context, whom)
    policy, by = context.access_policy, call.person
    if not call.is_operator and (
        why := explain_role_refusal(
            policy, by=by, role=call.global_role, whom=whom.person, wants="", last_role=whom.last_role
        )
    ):
        return _build_reply(context, reject(why))
    outcome = pairing.revoke_pairing(whom.person, roster.find_grant(whom.person), call.person)
    if outcome.ok and (others := list_accounts_of(context.access_policy, whom.person)[1:]):
        accounts = ", ".join(map(format_person, others))
        outcome = outcome._replace(
            text=f"{outcome.text} {_('Their roles as {accounts} stay.').format(accounts=accounts)}"
        )
    return _build_reply(context, outcome)


async def list_open_rooms(call: CommandCall, context: CommandContext) -> str:
    """List who asks to have me in a room, and the open rooms."""
    roster = context.roster
    waiting = format_requests(roster.pending_requests("room"), "room", call.prefix)
    return "\n".join([*waiting, *format_open_rooms(roster.rooms, context.access_policy)])


async def approve_room(call: CommandCall, context: CommandContext) -> CommandReply:
    """Open the room that somebody asks for, or the room of the command."""
    if call.arguments.get("code"):
        request = _find_request(context, call, "room")
        if isinstance(request, AccessResult):
            return _build_reply(context, request)
        return _build_reply(context, await _approve(call, context, request))
    if call.command.direct:
        return _build_reply(context, reject(_("Write that in the room, or add the code that I showed there.")))
    return _build_reply(context, await _open_here(call, context, room_address(call.command.at)))


async def _open_here(call: CommandCall, context: CommandContext, room: Address) -> AccessResult:
    """Open the room in which the command was given. A code that was shown for it is used up."""
    if is_room_allowed(context.access_policy, room):
        return reject(_("This room is already approved."))
    for request in context.roster.pending_requests("room"):
        if request.room == room:
            return await _approve(call, context, request)
    opened = RoomAccessChanged(room=room, open=True, by=call.person)
    words = _("Approved: {room}.").format(room=format_room(room.conversation))
    return AccessResult(words, (EffectFact(opened, room.conversation),))


async def close_room(call: CommandCall, context: CommandContext) -> CommandReply:
    """Close a room that was approved."""
    at, written = call.command.at, call.arguments.get("room", "").strip("` ")
    if not written and call.command.direct:
        return _build_reply(context, reject(_("Write the name of the room, as `room list` shows it.")))
    wanted = written.casefold() or room_address(at).conversation.casefold()
    for one in context.roster.rooms:
        own = one.room.room.casefold() if one.room.channel == at.channel else ""
        if wanted in (one.room.conversation.casefold(), own):
            return _build_reply(context, _close_room(context, one, call.person))
    shown = format_room(written or room_address(at).conversation)
    text = _("{room} was not approved by a command. Only the configuration can close a room that it opens.")
    return _build_reply(context, reject(text.format(room=shown)))


def _close_room(context: CommandContext, one: RoomAccessChanged, by: str) -> AccessResult:
    closed = RoomAccessChanged(room=one.room, open=False, by=by, about=one.about)
    configured = is_room_configured(context.access_policy, one.room)
    text = (
        _("I took back the approval of {room}. The configuration still opens it.")
        if configured
        else _("I took back the approval of {room}. I leave it, if the platform lets me.")
    ).format(room=format_room(one.room.conversation, one.about))
    return AccessResult(text, (EffectFact(closed, one.room.conversation),))


def _find_request(context: CommandContext, call: CommandCall, *kinds: RequestKind) -> CodeIssued | AccessResult:
    """Return the request that an admin means: by its code, its name, or its person or room."""
    now_s = context.clock.monotonic()
    if not context.code_attempts.is_allowed(call.person, now_s) and not call.is_operator:
        return reject(_(TRY_LATER_TEXT))
    request = find_request(context.roster.pending_requests(*kinds), call.arguments["code"])
    if request is None:
        context.code_attempts.record_failure(call.person, now_s)
        return reject(render_unknown_request(call.arguments["code"], call.prefix, kinds[0]))
    return request


_ASSIGNABLE_ROLES: Final[Mapping[str, Literal["owner", "admin", "member"]]] = {
    "owner": "owner",
    "admin": "admin",
    "member": "member",
}
"""Roles that `role set` can give."""


async def list_roles(_call: CommandCall, context: CommandContext) -> str:
    """List everybody who has a role."""
    return "\n".join(format_roles(context.access_policy, context.roster.roles))


async def set_role(call: CommandCall, context: CommandContext) -> CommandReply:
    """Give a person a role."""
    policy, roster, wants = context.access_policy, context.roster, _ASSIGNABLE_ROLES[call.arguments["role"]]
    return await _change_role(
        call, context, lambda whom, at: give_role(policy, roster, whom, call.person, at, wants=wants)
    )


async def clear_given_role(call: CommandCall, context: CommandContext) -> CommandReply:
    """Take back a role that was given at run time."""
    policy, roster = context.access_policy, context.roster
    return await _change_role(call, context, lambda whom, at: clear_role(policy, roster, whom, call.person, at))


async def block(call: CommandCall, context: CommandContext) -> CommandReply:
    """Block somebody."""
    policy, roster = context.access_policy, context.roster
    return await _change_role(call, context, lambda whom, at: block_person(policy, roster, whom, call.person, at))


async def unblock(call: CommandCall, context: CommandContext) -> CommandReply:
    """Unblock somebody; without a scope everywhere and here, as far as the sender may."""
    policy, roster = context.access_policy, context.roster
    both = "where" not in call.arguments and call.global_role in ADMIN_ROLES and not call.command.direct
    also = [RoleScope(call.command.at, call.role)] if both else []
    return await _change_role(
        call, context, lambda whom, at: unblock_person(policy, roster, whom, call.person, [at, *also])
    )


async def _change_role(
    call: CommandCall, context: CommandContext, decide: Callable[[PersonMatch, RoleScope], AccessResult]
) -> CommandReply:
    whom, at = await _find_person(call, context), _find_scope(call)
    if isinstance(whom, AccessResult):
        return _build_reply(context, whom)
    return _build_reply(context, at if isinstance(at, AccessResult) else decide(whom, at))


async def start_link(call: CommandCall, context: CommandContext) -> CommandReply:
    """Show a code by which another account is linked."""
    return _build_reply(context, context.account_linker.start_link(_build_claim(call)))


async def submit_link_code(call: CommandCall, context: CommandContext) -> CommandReply:
    """Link the account that showed this code.

    Of a code of `pair` or `room` an admin is shown the request. It is not approved at once: the code may come from a
    link that somebody else made.
    """
    if call.global_role in ADMIN_ROLES:
        asked = find_by_code(context.roster.pending_requests("pair", "room"), call.arguments["code"])
        if asked is not None:
            text = render_request_for_owners(asked, call.prefix, has_buttons=False)
            return CommandReply(text=text, buttons=request_buttons(asked), ok=False)
    return _build_reply(context, context.account_linker.submit_code(_build_claim(call), call.arguments["code"]))


async def list_links(call: CommandCall, context: CommandContext) -> CommandReply:
    """List the accounts of this person."""
    return _build_reply(context, context.account_linker.list_accounts(_build_claim(call)))


async def remove_link(call: CommandCall, context: CommandContext) -> CommandReply:
    """Unlink an account of this person."""
    return _build_reply(context, context.account_linker.unlink(_build_claim(call), call.arguments["account"]))


def _build_claim(call: CommandCall) -> AccountClaim:
    sender = call.command.sender
    return AccountClaim(call.person, sender.name, call.command.at, sender.verified, call.role)


COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="link",
        group="me and you",
        needs_gateway=True,
        summary="Show that you are the same person on another platform.",
        subs=(
            SubcommandDefinition(
                name="start",
                summary="Get a code. Send it to me from your other account.",
                handler=start_link,
            ),
            SubcommandDefinition(
                name="code", summary="Send me a code that I showed you.", args=(CODE_ARG,), handler=submit_link_code
            ),
            SubcommandDefinition(name="list", summary="List your linked accounts.", handler=list_links),
            SubcommandDefinition(
                name="remove",
                summary="Unlink one of your accounts.",
                args=(make_arg("account", "As list shows it.", form="person", needed=True, suggests=True),),
                handler=remove_link,
            ),
        ),
        default_sub="code",
        direct_only=True,
        private=True,
    ),
    CommandDefinition(
        name="block",
        group="people",
        summary="Ignore a person from now on.",
        args=(WHO_ARG, WHERE_ARG),
        role="admin",
        private=True,
        handler=block,
    ),
    CommandDefinition(
        name="unblock",
        group="people",
        summary="Stop ignoring a person.",
        args=(WHO_ARG, WHERE_ARG),
        role="admin",
        private=True,
        handler=unblock,
    ),
    CommandDefinition(
        name="role",
        group="people",
        summary="Show and change who may do what.",
        subs=(
            SubcommandDefinition(name="list", summary="List everybody who has a role, and why.", handler=list_roles),
            SubcommandDefinition(
                name="set",
                summary="Give a person a role.",
                args=(WHO_ARG, make_arg("role", "The role.", "owner", "admin", "member", needed=True), WHERE_ARG),
                handler=set_role,
            ),
            SubcommandDefinition(
                name="clear",
                summary="Take back a role that was given by command.",
                args=(WHO_ARG, WHERE_ARG),
                handler=clear_given_role,
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="pair",
        group="people",
        summary="Decide who may write to me in private.",
        subs=(
            SubcommandDefinition(
                name="list", summary="List who waits for approval, and who is approved.", handler=list_pairings
            ),
            SubcommandDefinition(
                name="approve", summary="Approve a person who waits.", args=(REQUEST_ARG,), handler=approve_pairing
            ),
            SubcommandDefinition(
                name="revoke",
                summary="Refuse a person who waits, or withdraw an approval.",
                args=(WHO_ARG,),
                handler=revoke_pairing,
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="room",
        group="rooms",
        summary="Decide in which rooms I may speak.",
        subs=(
            SubcommandDefinition(
                name="list", summary="List rooms that are approved, and rooms that wait.", handler=list_open_rooms
            ),
            SubcommandDefinition(
                name="approve",
                summary="Approve a room that waits. Without a code or an id: this room.",
                args=(ROOM_REQUEST_ARG,),
                handler=approve_room,
            ),
            SubcommandDefinition(
                name="revoke",
                summary="Withdraw the approval of a room. Without a name: this room.",
                args=(ROOM_ARG,),
                handler=close_room,
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
)

_PAIR: Final = next(row for row in COMMANDS if row.name == "pair")
OPERATOR_COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    replace(
        _PAIR,
        subs=(
            *_PAIR.subs,
            SubcommandDefinition(
                name="seed",
                summary="Approve a person who never asked.",
                args=(
                    make_arg("who", "channel:id, as whoami shows it.", form="person", needed=True),
                    make_arg("role", "The role. Without one: member.", *_ASSIGNABLE_ROLES),
                ),
                handler=seed_person,
            ),
        ),
    ),
)
"""What the operator alone may do."""
