"""Commands about rooms: `rooms`, `join`, `part`, and `say`, with which admins post elsewhere in the
agent's name.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from channels.base import CommandCompletion
from gateway.access.policy import ListenMode, decide, is_room_allowed
from gateway.access.texts import format_room
from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    follow_up_key,
    send_follow_up,
)
from gateway.commands.definition import command, make_arg
from gateway.commands.parser import join_or, quote_code
from gateway.context.conversation import LOCK_TIMEOUT_S
from gateway.core.events import Address, ChannelName, Post, PostKey, RoomId, Usage
from gateway.core.facts import Seq, TurnId, TurnRecord
from gateway.core.i18n import N_, _
from gateway.core.identity import ANY_ROOM, ROLE_ORDER
from gateway.core.text_safety import PLACE_CHARS, inline_code
from gateway.store.effects import CommandEffect, EffectFact, done, queue_post, refuse
from gateway.stream.handle import GatewayHandle
from gateway.stream.rooms import RoomAction

BUSY = N_("I am just answering there. Try again in a moment.")


async def suggest_rooms(gateway: GatewayHandle) -> list[str]:
    """Suggest all known rooms."""
    return [gateway.places.titles.label(place.conversation) for place in await known_rooms(gateway)]


async def _suggest_rooms(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return await suggest_rooms(context.gateway)


@command(
    "say",
    "Post a text in another room, in my name.",
    group="rooms",
    args=(
        make_arg("room", "The room.", needed=True, suggests=_suggest_rooms),
        make_arg("text", "The text.", needed=True, rest=True),
    ),
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def say_elsewhere(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Post the text there. It is recorded as a turn of that room, so its agent knows of it."""
    to = await _resolve(context, call.arguments["room"], call)
    if isinstance(to, CommandEffect):
        return to
    name, text = inline_code(to.conversation, PLACE_CHARS), call.arguments["text"].strip()
    if not text:
        return refuse(_("Write the text that I shall post."))
    newest = await context.gateway.places.newest_message(to.conversation)
    alone = newest is not None and newest.kind == "direct"
    if newest is not None and alone:
        decided = decide(context.gateway.people, newest)
        may = decided.allowed and ROLE_ORDER.index(decided.role) >= ROLE_ORDER.index("member")
    else:
        may = is_room_allowed(context.gateway.people, to)
    if not may:
        return refuse(_("I may not post in {room}: it is not approved.").format(room=name))
    if not alone and context.membership.is_inside(to) is False:
        text = _("I am not in {room}. `{command}` lets me enter it.").format(
            room=name, command=f"{call.prefix}join"
        )
        return refuse(text)
    release = await context.agents.room_locks.acquire(to.conversation, LOCK_TIMEOUT_S)
    if release is None:
        return refuse(_(BUSY))
    key = follow_up_key(call.command, "said")
    facts = _build_said_facts(key, to, text, context.gateway.places.bindings.find(to).agent)
    words = _("I post it in {room}.").format(room=name)
    return replace(done(words, *facts), settle=lambda _: release())


def _build_said_facts(key: PostKey, to: Address, text: str, agent: str) -> tuple[EffectFact, ...]:
    """Return the facts of a post by `say`. `agent`: agent of the room. Empty: none, so no turn is
    recorded.
    """
    post = queue_post(Post(key=key, to=to, text=text))
    turn = TurnRecord(
        turn=TurnId(key),
        covers=(),
        omitted=0,
        heard="",
        upto=Seq(0),
        outcome="replied",
        text=text,
        reason="",
        model="",
        usage=Usage(),
        requests=0,
        autonomous=False,
        agent=agent,
    )
    return (*((EffectFact(turn, to.conversation, f"turn:{key}"),) if agent else ()), post)


@command(
    "rooms",
    "List my rooms, and how I behave there.",
    group="rooms",
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def list_rooms(_call: CommandCall, context: CommandContext) -> CommandEffect:
    found = await _find_known(context.gateway)
    lines = [_format_room(context, at, *about) for at, about in found]
    lines += [
        _("- {channel}: every room is approved.").format(channel=inline_code(name))
        for name, rooms in sorted(context.gateway.people.open_rooms.items())
        if ANY_ROOM in rooms
    ]
    return done("\n".join(lines) or _("No room is approved, and no room waits for approval."))


@command(
    "join",
    "Enter a room.",
    group="rooms",
    args=(make_arg("room", "The room.", needed=True, suggests=_suggest_rooms),),
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def join_room(call: CommandCall, context: CommandContext) -> CommandEffect:
    at = await _resolve(context, call.arguments["room"], call)
    if isinstance(at, CommandEffect):
        return at
    name = inline_code(at.conversation, PLACE_CHARS)
    approve, can_approve = f"{call.prefix}room approve", "room" in context.commands.people
    if not context.gateway.channels.holds(at.channel):
        return refuse(_(HELD_ELSEWHERE))
    if not context.membership.can_join(at.channel):
        text = _("On this platform, people add me to rooms.")
        if can_approve:
            then = _("Add me to the room, then write `{command}` there.")
            text = f"{text} {then.format(command=approve)}"
        written = quote_code(call.arguments["room"])
        others = [
            f"`{call.prefix}join {one}/{written}`"
            for one in context.gateway.channels
            if context.membership.can_join(one)
        ]
        if others and "/" not in written:
            hint = _("For a room of another channel, write {commands}.")
            text = f"{text} {hint.format(commands=join_or(others))}"
        return refuse(text)
    if not is_room_allowed(context.gateway.people, at):
        text = _("{room} is not approved. The operator can add it to the configuration.")
        if can_approve:
            text = _(
                "{room} is not approved. Invite me there: I show you a code for `{command}`. Or "
                "the operator can add it to the configuration."
            )
        return refuse(text.format(room=name, command=approve))
    membership = context.membership
    if membership.is_inside(at) and not membership.was_sent_out(at):
        return done(_("I am already in {room}.").format(room=name))
    words = _("I enter {room}. If that fails, I tell you here.").format(room=name)
    return done(words, then=lambda cause: _begin_travel(context, call, at, "enter", cause))


@command(
    "part",
    "Leave a room. Without a name: this room.",
    group="rooms",
    args=(make_arg("room", "The room, as in rooms.", suggests=_suggest_rooms),),
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def leave_room(call: CommandCall, context: CommandContext) -> CommandEffect:
    command, prefix = call.command, call.prefix
    written = call.arguments.get("room", "")
    if not written and command.direct:
        return refuse(_("This is a direct chat. Write the name of the room that I shall leave."))
    at = await _resolve(context, written, call) if written else command.at
    if isinstance(at, CommandEffect):
        return at
    name = inline_code(at.conversation, PLACE_CHARS)
    if not context.gateway.channels.holds(at.channel):
        return refuse(_(HELD_ELSEWHERE))
    membership = context.membership
    if not membership.can_leave(at.channel):
        return refuse(_("I cannot leave rooms on that platform."))
    if membership.is_inside(at) is False and membership.was_sent_out(at):
        return done(_("I am not in {room}.").format(room=name))
    words = _("I leave {room}. I come back after `{command}`, or after a restart.").format(
        room=name, command=f"{prefix}join"
    )
    return done(words, then=lambda cause: _begin_travel(context, call, at, "leave", cause))


def _begin_travel(
    context: CommandContext, call: CommandCall, at: Address, way: RoomAction, cause: Seq
) -> None:
    async def on_failure(reason: str) -> None:
        text = (
            _("I cannot enter {room}: {reason}.")
            if way == "enter"
            else _("I cannot leave {room}: {reason}.")
        )
        words = text.format(
            room=inline_code(at.conversation, PLACE_CHARS), reason=inline_code(reason, PLACE_CHARS)
        )
        await send_follow_up(context.gateway, call, cause, words)

    context.membership.start(way, at, on_failure)


async def _resolve(
    context: CommandContext, written: str, call: CommandCall
) -> Address | CommandEffect:
    """Return the place written as `channel/room`, as `channel/room/thread`, or as a room of the
    command's channel; or the answer that there is none.

    A known room is also found in any case of its letters, or by its title, if only one fits.
    """
    known, channels = await known_rooms(context.gateway), context.gateway.channels
    wanted = written.strip().strip("`")
    called = [at for at in context.gateway.places.titles.find_places(wanted, known) if at in known]
    if len(called) > 1:
        found = ", ".join(inline_code(at.conversation, PLACE_CHARS) for at in called)
        text = _("Several rooms have the name {name}: {rooms}. Write one of these.")
        return refuse(text.format(name=inline_code(written, PLACE_CHARS), rooms=found))
    if called:
        return called[0]
    try:
        at = _parse_room(wanted, call.command.at.channel, channels)
    except ValueError:
        text = _("{room} is not a room. Write it as `rooms` shows it.")
        return refuse(text.format(room=inline_code(written, PLACE_CHARS)))
    if at.channel not in channels:
        return refuse(_("I have no channel {channel}.").format(channel=inline_code(at.channel)))
    folded = at.conversation.casefold()
    alike = [one for one in known if one.conversation.casefold() == folded]
    return alike[0] if len(alike) == 1 and at not in known else at


def _parse_room(wanted: str, here: ChannelName, channels: Collection[ChannelName]) -> Address:
    channel = wanted.partition("/")[0]
    if channel in channels:
        return Address.parse(wanted)
    if wanted.count("/") in (1, 2) and not wanted.startswith(("#", "&", "+", "!")):
        return Address.parse(wanted)  # of an unknown channel, which the caller reports
    return Address(channel=here, room=RoomId(wanted))


async def known_rooms(gateway: GatewayHandle) -> list[Address]:
    """Return every room that is known by name, sorted."""
    return [at for at, _about in await _find_known(gateway)]


async def _find_known(gateway: GatewayHandle) -> list[tuple[Address, tuple[str, str]]]:
    """Return the configured, the approved and the waiting rooms, each once, sorted by name: with
    the reason why it is approved, or that it waits, and its own title, which is untrusted.
    """
    found: dict[Address, tuple[str, str]] = {}
    for channel, rooms in gateway.people.open_rooms.items():
        for name in rooms - {ANY_ROOM}:
            at = Address(channel=channel, room=name)
            found[at] = _("in the configuration"), ""
    for opened in gateway.roster.rooms:
        found.setdefault(opened.room, (_("approved"), opened.about))
    for asked in gateway.roster.pending_requests("room"):
        if asked.room is not None:
            found.setdefault(asked.room, (_("waits for approval"), asked.about))
    return sorted(found.items(), key=lambda one: one[0].conversation)


def _format_room(context: CommandContext, at: Address, reason: str, title: str) -> str:
    bound = context.gateway.places.bindings.find(at)
    inside = (
        _("left by command")
        if context.membership.was_sent_out(at)
        else _(_PRESENCE_TEXTS[context.membership.is_inside(at)])
    )
    agent = (
        _("agent {agent}").format(agent=inline_code(bound.agent)) if bound.agent else _("no agent")
    )
    words = [
        reason,
        inside,
        _(_LISTEN_TEXTS[bound.listen]),
        agent,
        _("private") if bound.private else "",
    ]
    return f"- {format_room(at.conversation, title)}: {', '.join(filter(None, words))}"


_LISTEN_TEXTS: Mapping[ListenMode, str] = {
    "off": N_("reads nothing"),
    "mention": N_("reads mentions"),
    "ambient": N_("answers mentions, reads the rest"),
    "all": N_("answers everything"),
}
_PRESENCE_TEXTS = {True: N_("I am in it"), False: N_("I am not in it"), None: ""}
