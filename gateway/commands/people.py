"""Commands about people: `pair`, `room`, `role`, `block`, `unblock` and `link`.

Their changes are facts. Notices, and joining and leaving of rooms, follow once those are durable
(`gateway.access.pairing`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal

from channels.base import CommandCompletion
from gateway.access import pairing
from gateway.access.linking import AccountClaim
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
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.commands.rooms import ROOM_ARG
from gateway.context.conversation import is_addressed
from gateway.core.events import Address, ChannelName, Message, MessageDeleted, MessageEdited
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    CodeIssued,
    RoleAssigned,
    RoomAccessChanged,
    Seq,
    dedup_key,
)
from gateway.core.format import format_duration, format_time
from gateway.core.i18n import _
from gateway.core.identity import (
    ADMIN_ROLES,
    identify,
    is_bridged,
    normalize_person_key,
    person_key,
)
from gateway.core.text_safety import inline_code
from gateway.store import StoreReader
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.stream.attention import assess


async def suggest_people(typed: CommandCompletion, context: CommandContext) -> list[str]:
    """Suggest names and ids of recent senders there; then, to admins everywhere, people with a
    role.
    """
    recent = await read_recent_senders(context.gateway.store, typed.at.conversation)
    names = Counter(sender.name for sender in recent.values())
    named = [name for name, times in names.items() if times == 1]
    wide = identify(context.gateway.people, typed.at, typed.sender).global_role in ADMIN_ROLES
    return [*named, *recent, *([one.person for one in context.access.roster.roles] if wide else [])]


async def _suggest_accounts(typed: CommandCompletion, context: CommandContext) -> list[str]:
    own = person_key(typed.at.channel, typed.sender.id)
    return sorted(context.gateway.people.roster_state().links.get(own, ()))


async def _suggest_requests(typed: CommandCompletion, context: CommandContext) -> list[str]:
    kind: RequestKind = "room" if typed.name == "room" else "pair"
    return [one.request for one in context.access.roster.pending_requests(kind) if one.request]


_WHO_ARG: Final = make_arg(
    "who",
    "A person: an id as in whoami, or a name that was active here lately.",
    needed=True,
    suggests=suggest_people,
)
_WHERE_ARG: Final = make_arg("where", "In this room only, or everywhere.", "here", "everywhere")
_CODE_ARG: Final = make_arg("code", "The code.", needed=True, rest=True, secret=True)
_REQUEST_ARG: Final = make_arg(
    "code",
    "The code, or the id of the request or person, as in list.",
    needed=True,
    rest=True,
    suggests=_suggest_requests,
    secret=True,
)
_ROOM_REQUEST_ARG: Final = replace(
    _REQUEST_ARG, summary="The code, or the id of the request or room, as in list.", required=False
)
_ASSIGNABLE_ROLES: Final[Mapping[str, Literal["owner", "admin", "member"]]] = {
    "owner": "owner",
    "admin": "admin",
    "member": "member",
}
"""Roles that `role set` can give."""


ROLE = command(
    "role",
    "Show and change who may do what.",
    group="people",
    role="admin",
    needs_global_role=True,
    private=True,
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
            suggests=suggest_people,
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


async def _find_person(call: CommandCall, context: CommandContext) -> PersonMatch | CommandEffect:
    """Return the person that the argument `who` means, or the reason why nobody."""
    at = call.command.at
    recent = await read_recent_senders(context.gateway.store, at.conversation)
    known = dict.fromkeys([*context.gateway.people.roles, *context.gateway.people.grants], "")
    known |= {
        one.person: one.name for one in context.access.roster.pending_requests("pair", "room")
    }
    known |= {one.person: one.name for one in context.access.roster.roles}
    names = {one: sender.name for one, sender in recent.items()}
    found = find_person(
        call.arguments["who"], at, context.gateway.channels.capabilities, names, known
    )
    if isinstance(found, str):
        return refuse(found)
    sender = recent.get(found.person)
    return (
        found
        if sender is None
        else found._replace(last_role=identify(context.gateway.people, at, sender).role)
    )


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


def room_address(at: Address) -> Address:
    """Return the room's address, without the thread."""
    return Address(channel=at.channel, room=at.room)


PAIR = command(
    "pair",
    "Decide who may write to me in private.",
    group="people",
    role="admin",
    needs_global_role=True,
    private=True,
)


@command("pair list", "List who waits for approval, and who is approved.")
async def list_pairings(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List who waits for approval, and who is approved; to the operator also the rooms."""
    roster = context.access.roster
    asking = roster.pending_requests("pair")
    lines = [*format_requests(asking, "pair", call.prefix), *format_paired_people(roster.roles)]
    if not call.is_operator:
        return done("\n".join(lines))
    waiting = roster.pending_requests("room")
    lines += [
        *format_requests(waiting, "room", call.prefix),
        *format_open_rooms(roster.rooms, context.gateway.people),
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
        "roles": [
            {"person": one.person, "role": one.role, "scope": one.scope, "by": one.by}
            for one in roster.roles
        ],
        "rooms": [{"room": one.room.conversation, "by": one.by} for one in roster.rooms],
    }
    return done("\n".join(lines), data=data)


@command("pair approve", "Approve a person who waits.", args=(_REQUEST_ARG,))
async def approve_pairing(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Approve a person who asked; for the operator also a room that somebody asked for."""
    request = _find_request(context, call, "pair", *(("room",) if call.is_operator else ()))
    return request if isinstance(request, CommandEffect) else await _approve(call, context, request)


async def _approve(
    call: CommandCall, context: CommandContext, request: CodeIssued
) -> CommandEffect:
    """Approve a request; what its person asked in vain is answered now."""
    asked = await _find_refused_lines(context, request)
    if request not in context.access.roster.pending_requests(request.what):  # decided meanwhile
        return refuse(_(BEING_DECIDED_TEXT))
    if request.room is not None:
        outcome = pairing.approve_room(request, request.room, call.person)
    else:
        outcome = pairing.approve_pairing(
            request, call.person, existing=context.access.roster.find_grant(request.person)
        )
        sure = describe_verification(request.person, context.gateway.channels.capabilities)
        outcome = replace(outcome, answer=f"{outcome.answer} {sure}")
    return replace(outcome, facts=(*outcome.facts, *asked)) if outcome.ok else outcome


MAX_REFUSED_AGE: Final = timedelta(days=1)
"""Age of a question that is still answered after the approval."""
MAX_REFUSED_LINES: Final = 10
"""Lines that are told of somebody who was let in: the question, and those before it."""
_LET_IN: Final = "written before they were let in"


async def _find_refused_lines(
    context: CommandContext, request: CodeIssued
) -> tuple[EffectFact, ...]:
    """Return what somebody wrote in vain where they asked to be let in, to be appended once more
    with their approval.

    The newest line to the agent is due, and their lines before it are context. Each enters once, at
    a new position: a turn that is under way covers no later one. Nothing of somebody who is or was
    blocked, or was heard since.
    """
    at, policy, now = request.at, context.gateway.people, context.gateway.clock.now()
    if request.room is not None and room_address(at) != request.room:
        at = request.room
    found = list[EffectFact]()
    recent = await context.gateway.store.newest_entries(
        RECENT_LINES, kinds=MESSAGE_KINDS, conversation=at.conversation
    )
    for entry in reversed(recent):
        message = entry.fact
        if (
            not isinstance(message, Message)
            or person_key(at.channel, message.sender.id) != request.person
        ):
            continue
        before = await context.gateway.store.find_judgement(entry.seq)
        if (
            before is None
            or before.fate != "refused"
            or message.sender.is_bot
            or len(found) == MAX_REFUSED_LINES
        ):
            break
        role = identify(policy, at, message.sender).role
        if "blocked" in (role, before.role) or now - message.sent > MAX_REFUSED_AGE:
            break
        text = await _read_current_text(context.gateway.store, entry.seq, message)
        if text is None or message.history or not (found or is_addressed(message)):
            continue
        message = replace(message, text=text, as_guest=before.role == "guest")
        listen = context.gateway.places.bindings.find(message.at).listen
        decision = AccessDecision(allowed=True, role=role, rule=_LET_IN)
        judged = assess(context.attention.policy, message, decision, listen)
        if judged.fate not in ("due", "context"):
            break
        judged = replace(judged, role=before.role, rule=f"{judged.rule}; {_LET_IN}")
        judged = replace(judged, fate="context", urgency=AMBIENT) if found else judged
        found.append(EffectFact(message, at.conversation, f"let_in:{dedup_key(message)}", judged))
    return tuple(reversed(found))


async def _read_current_text(reader: StoreReader, seq: Seq, message: Message) -> str | None:
    """Return the text of a message as it reads now: its author's edits were refused as well. None:
    it was deleted.
    """
    text = message.text
    for change in await reader.message_changes(
        message.at.conversation, after=seq, newest=RECENT_LINES
    ):
        if isinstance(change.fact, MessageDeleted) and change.fact.message == message.id:
            return None
        if isinstance(change.fact, MessageEdited) and change.fact.message == message.id:
            text = change.fact.text if change.fact.sender.id == message.sender.id else text
    return text


@command(
    "pair seed",
    "Approve a person who never asked.",
    args=(
        make_arg("who", "channel:id, as whoami shows it.", needed=True),
        make_arg("role", "The role. Without one: member.", *_ASSIGNABLE_ROLES),
    ),
    operator=True,
)
async def seed_person(call: CommandCall, context: CommandContext) -> CommandEffect:
    written, role = call.arguments["who"], _ASSIGNABLE_ROLES[call.arguments.get("role", "member")]
    name, __, number = written.partition(":")
    channels = context.gateway.live.settings.channels
    if not (name and number):
        return refuse(_("Write channel:id, as `whoami` shows it, for example telegram.main:1001."))
    if name not in channels:
        known = ", ".join(map(inline_code, channels)) or _("none")
        text = _("There is no channel {channel}. The channels are: {channels}.")
        return refuse(text.format(channel=inline_code(name), channels=known))
    able = context.gateway.channels.capabilities.get(ChannelName(name))
    if able is not None and (wrong := explain_invalid_id(written, able)):
        return refuse(wrong)
    whom = normalize_person_key(written)
    if is_bridged(whom):
        return refuse(_(BRIDGED_NO_ROLE_TEXT))
    if role in ADMIN_ROLES and not is_verifiable(whom):
        return refuse(_(MASK_NOT_ADMIN_TEXT))
    given = context.access.roster.find_grant(whom)
    if given is not None and given.role == role:
        return refuse(
            _("{person} is already {role}.").format(
                person=format_person(whom, given.name), role=role
            )
        )
    fact = RoleAssigned(
        person=whom, role=role, name=given.name if given else "", by=call.person, why="seed"
    )
    words = _("{person} is {role} from now on.").format(person=format_person(whom), role=role)
    return done(words, fact)


@command("pair revoke", "Refuse a person who waits, or withdraw an approval.", args=(_WHO_ARG,))
async def revoke_pairing(call: CommandCall, context: CommandContext) -> CommandEffect:
    roster, name = context.access.roster, call.arguments["who"].strip("` ").lower()
    for request in roster.pending_requests("pair", "room"):
        if request.request == name:
            return pairing.revoke_code(request, call.person)
    whom = await _find_person(call, context)
    if isinstance(whom, CommandEffect):
        return whom
    policy, by = context.gateway.people, call.person
    if not call.is_operator and (
        why := explain_role_refusal(
            policy,
            by=by,
            role=call.global_role,
            whom=whom.person,
            wants="",
            last_role=whom.last_role,
        )
    ):
        return refuse(why)
    outcome = pairing.revoke_pairing(whom.person, roster.find_grant(whom.person), call.person)
    if outcome.ok and (others := list_accounts_of(context.gateway.people, whom.person)[1:]):
        accounts = ", ".join(map(format_person, others))
        stay = _("Their roles as {accounts} stay.").format(accounts=accounts)
        return replace(outcome, answer=f"{outcome.answer} {stay}")
    return outcome


ROOM = command(
    "room",
    "Decide in which rooms I may speak.",
    group="rooms",
    role="admin",
    needs_global_role=True,
    private=True,
)


@command("room list", "List rooms that are approved, and rooms that wait.")
async def list_open_rooms(call: CommandCall, context: CommandContext) -> CommandEffect:
    roster = context.access.roster
    waiting = format_requests(roster.pending_requests("room"), "room", call.prefix)
    return done("\n".join([*waiting, *format_open_rooms(roster.rooms, context.gateway.people)]))


@command(
    "room approve",
    "Approve a room that waits. Without a code or an id: this room.",
    args=(_ROOM_REQUEST_ARG,),
)
async def approve_room(call: CommandCall, context: CommandContext) -> CommandEffect:
    if call.arguments.get("code"):
        request = _find_request(context, call, "room")
        if isinstance(request, CommandEffect):
            return request
        return await _approve(call, context, request)
    if call.command.direct:
        return refuse(_("Write that in the room, or add the code that I showed there."))
    return await _open_here(call, context, room_address(call.command.at))


async def _open_here(call: CommandCall, context: CommandContext, room: Address) -> CommandEffect:
    """Open the room in which the command was given. A code that was shown for it is used up."""
    if is_room_allowed(context.gateway.people, room):
        return refuse(_("This room is already approved."))
    for request in context.access.roster.pending_requests("room"):
        if request.room == room:
            return await _approve(call, context, request)
    opened = RoomAccessChanged(room=room, open=True, by=call.person)
    words = _("Approved: {room}.").format(room=format_room(room.conversation))
    return done(words, EffectFact(opened, room.conversation))


@command(
    "room revoke", "Withdraw the approval of a room. Without a name: this room.", args=(ROOM_ARG,)
)
async def close_room(call: CommandCall, context: CommandContext) -> CommandEffect:
    at, written = call.command.at, call.arguments.get("room", "").strip("` ")
    if not written and call.command.direct:
        return refuse(_("Write the name of the room, as `room list` shows it."))
    wanted = written.casefold() or room_address(at).conversation.casefold()
    for one in context.access.roster.rooms:
        own = one.room.room.casefold() if one.room.channel == at.channel else ""
        if wanted in (one.room.conversation.casefold(), own):
            return _close_room(context, one, call.person)
    shown = format_room(written or room_address(at).conversation)
    text = _(
        "{room} was not approved by a command. Only the configuration can close a room that it "
        "opens."
    )
    return refuse(text.format(room=shown))


def _close_room(context: CommandContext, one: RoomAccessChanged, by: str) -> CommandEffect:
    closed = RoomAccessChanged(room=one.room, open=False, by=by, about=one.about)
    configured = is_room_configured(context.gateway.people, one.room)
    text = (
        _("I took back the approval of {room}. The configuration still opens it.")
        if configured
        else _("I took back the approval of {room}. I leave it, if the platform lets me.")
    ).format(room=format_room(one.room.conversation, one.about))
    return done(text, EffectFact(closed, one.room.conversation))


def _find_request(
    context: CommandContext, call: CommandCall, *kinds: RequestKind
) -> CodeIssued | CommandEffect:
    """Return the request that an admin means: by its code, its name, or its person or room."""
    now_s = context.gateway.clock.monotonic()
    tried = context.access.attempts.count(call.person, now_s)
    if tried >= pairing.MAX_ATTEMPTS and not call.is_operator:
        return refuse(_(TRY_LATER_TEXT))
    request = find_request(context.access.roster.pending_requests(*kinds), call.arguments["code"])
    if request is None:
        context.access.attempts.add(call.person, now_s)
        return refuse(render_unknown_request(call.arguments["code"], call.prefix, kinds[0]))
    return request


@command("role list", "List everybody who has a role, and why.")
async def list_roles(_call: CommandCall, context: CommandContext) -> CommandEffect:
    return done("\n".join(format_roles(context.gateway.people, context.access.roster.roles)))


@command(
    "unblock",
    "Stop ignoring a person.",
    group="people",
    args=(_WHO_ARG, _WHERE_ARG),
    role="admin",
    private=True,
)
@command(
    "block",
    "Ignore a person from now on.",
    group="people",
    args=(_WHO_ARG, _WHERE_ARG),
    role="admin",
    private=True,
)
@command("role clear", "Take back a role that was given by command.", args=(_WHO_ARG, _WHERE_ARG))
@command(
    "role set",
    "Give a person a role.",
    args=(_WHO_ARG, make_arg("role", "The role.", *_ASSIGNABLE_ROLES, needed=True), _WHERE_ARG),
)
async def change_role(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Change what a person may do; `unblock` without a scope everywhere and here, as far as the
    sender may.
    """
    whom, at = await _find_person(call, context), _find_scope(call)
    if isinstance(whom, CommandEffect):
        return whom
    if isinstance(at, CommandEffect):
        return at
    policy, roster, by = context.gateway.people, context.access.roster, call.person
    match call.sub or call.command.name:
        case "set":
            wants = _ASSIGNABLE_ROLES[call.arguments["role"]]
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


LINK = command(
    "link",
    "Show that you are the same person on another platform.",
    group="me and you",
    default_sub="code",
    direct_only=True,
    private=True,
    needs_gateway=True,
)


@command("link start", "Get a code. Send it to me from your other account.")
async def start_link(call: CommandCall, context: CommandContext) -> CommandEffect:
    return context.access.linker.start_link(_build_claim(call))


@command("link code", "Send me a code that I showed you.", args=(_CODE_ARG,))
async def submit_link_code(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Link the account that showed this code.

    Of a code of `pair` or `room` an admin is shown the request. It is not approved at once: the
    code may come from a link that somebody else made.
    """
    if call.global_role in ADMIN_ROLES:
        asked = find_by_code(
            context.access.roster.pending_requests("pair", "room"), call.arguments["code"]
        )
        if asked is not None:
            text = render_request_for_owners(asked, call.prefix, has_buttons=False)
            return replace(refuse(text), buttons=request_buttons(asked))
    return context.access.linker.submit_code(_build_claim(call), call.arguments["code"])


@command("link list", "List your linked accounts.")
async def list_links(call: CommandCall, context: CommandContext) -> CommandEffect:
    return context.access.linker.list_accounts(_build_claim(call))


@command(
    "link remove",
    "Unlink one of your accounts.",
    args=(make_arg("account", "As list shows it.", needed=True, suggests=_suggest_accounts),),
)
async def remove_link(call: CommandCall, context: CommandContext) -> CommandEffect:
    return context.access.linker.unlink(_build_claim(call), call.arguments["account"])


def _build_claim(call: CommandCall) -> AccountClaim:
    sender = call.command.sender
    return AccountClaim(call.person, sender.name, call.command.at, sender.verified, call.role)
