"""Commands about rooms: `rooms`, `join`, `part`, and `say`, with which admins post elsewhere in the agent's name."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.access.approval_texts import PLACE_CHARS, inline_code
from gateway.access.policy import decide, is_room_allowed
from gateway.access.texts import format_room
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandReply,
    RoomNotFound,
    follow_up_key,
    resolve_room,
    send_follow_up,
)
from gateway.commands.definition import ROOM_ARG, CommandDefinition, make_arg
from gateway.core.events import Address, ChannelName, Message, Post, PostKey, Usage
from gateway.core.facts import CodeIssued, PostQueued, RoomAccessChanged, Seq, TurnId, TurnRecord
from gateway.core.identity import ANY_ROOM, ROLE_ORDER
from gateway.runtime.rewind import LOCK_TIMEOUT_S
from gateway.store import AppendResult
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.attention import ListenMode
from gateway.stream.rooms import RoomAction

BUSY = "A turn is under way there just now. Say it again in a moment."


async def say_elsewhere(call: CommandCall, context: CommandContext) -> CommandReply:
    """Post the text there. It is recorded as a turn of that room, so its agent knows of it."""
    try:
        to = resolve_room(
            call.arguments["room"],
            call.command.at.channel,
            context.channels,
            await known_rooms(context),
            context.places.titles,
        )
    except RoomNotFound as no:
        return CommandReply(text=str(no), ok=False)
    name, text = inline_code(to.conversation, PLACE_CHARS), call.arguments["text"].strip()
    if not text:
        return CommandReply(text="Write what I am to say.", ok=False)
    newest = await context.places.newest_message(to.conversation)
    alone = newest is not None and newest.kind == "direct"
    if not (
        _may_write_to(context, newest) if newest is not None and alone else is_room_allowed(context.access_policy, to)
    ):
        return CommandReply(text=f"I may not speak in {name}: it is no room that is open to me.", ok=False)
    if not alone and context.membership.is_inside(to) is False:
        text = f"I am not in {name}: `{call.prefix}join` takes me there."
        return CommandReply(text=text, ok=False)
    lock = context.agents.room_locks.lock_for(to.conversation)
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_S):
            await lock.acquire()
    except TimeoutError:
        return CommandReply(text=BUSY, ok=False)
    key = follow_up_key(call.command, "said")
    facts = _build_said_facts(key, to, text, context.agents.bindings.find(to).agent)
    words = f"I say it in {name}."
    effect = CommandEffect(answer=words, facts=facts, settle=lambda _: lock.release())
    return CommandReply(text=words, effect=effect)


def _may_write_to(context: CommandContext, message: Message) -> bool:
    """Return whether the sender of this direct message has a role."""
    decided = decide(context.access_policy, message)
    return decided.allowed and ROLE_ORDER.index(decided.role) >= ROLE_ORDER.index("member")


def _build_said_facts(key: PostKey, to: Address, text: str, agent: str) -> tuple[EffectFact, ...]:
    """Return the facts of a post by `say`. `agent`: agent of the room. Empty: none, so no turn is recorded."""
    post = EffectFact(PostQueued(post=Post(key=key, to=to, text=text)), to.conversation, f"post:{key}")
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


MAX_ROOMS = 200
"""Most rooms listed by name."""


@dataclass(frozen=True, slots=True)
class _KnownRoom:
    """One line of the list."""

    at: Address
    reason: str
    """Reason why it is open, or that it waits."""
    title: str = ""
    """Its own title. Untrusted."""


async def list_rooms(_call: CommandCall, context: CommandContext) -> CommandReply:
    """List every room that is open, or waits for approval."""
    found = await _find_known(context)
    lines = [_format_room(context, room) for room in found[:MAX_ROOMS]]
    lines += [f"- {inline_code(name)}: any room is open." for name in _find_open_channels(context)]
    lines += [f"- and {len(found) - MAX_ROOMS} more."] if len(found) > MAX_ROOMS else []
    return CommandReply(text="\n".join(lines) or "No room is open to me, and none waits to be opened.")


async def join_room(call: CommandCall, context: CommandContext) -> CommandReply:
    """Join a room that is open."""
    prefix = call.prefix
    try:
        at = await _resolve(context, call.arguments["room"], call)
    except RoomNotFound as no:
        return CommandReply(text=str(no), ok=False)
    name = inline_code(at.conversation, PLACE_CHARS)
    if not context.membership.can_join(at.channel):
        text = f"People add a bot to rooms there: add me to it, and `{prefix}room approve` opens it."
        return CommandReply(text=text, ok=False)
    if not is_room_allowed(context.access_policy, at):
        text = f"{name} is not open to me. An admin opens it by `{prefix}room approve`, or the operator lists it."
        return CommandReply(text=text, ok=False)
    if context.membership.is_inside(at) and not context.membership.was_sent_out(at):
        return CommandReply(text=f"I am in {name} already.")
    words = f"I enter {name}. If I cannot, I say so here."
    return CommandReply(
        text=words,
        effect=CommandEffect(answer=words, settle=lambda appended: _begin_travel(context, call, at, "enter", appended)),
    )


async def leave_room(call: CommandCall, context: CommandContext) -> CommandReply:
    """Leave a room, and stay out of it."""
    command, prefix = call.command, call.prefix
    written = call.arguments.get("room", "")
    if not written and command.direct:
        return CommandReply(text="We are alone here: name the room that I am to leave.", ok=False)
    try:
        at = await _resolve(context, written, call) if written else command.at
    except RoomNotFound as no:
        return CommandReply(text=str(no), ok=False)
    name = inline_code(at.conversation, PLACE_CHARS)
    if not context.membership.can_leave(at.channel):
        return CommandReply(text="Rooms are not left there.", ok=False)
    if context.membership.is_inside(at) is False and context.membership.was_sent_out(at):
        return CommandReply(text=f"I am not in {name}.")
    words = f"I leave {name}, and stay out until `{prefix}join` or until I am started anew."
    return CommandReply(
        text=words,
        effect=CommandEffect(answer=words, settle=lambda appended: _begin_travel(context, call, at, "leave", appended)),
    )


def _begin_travel(
    context: CommandContext, call: CommandCall, at: Address, way: RoomAction, appended: AppendResult | None
) -> None:
    if appended is None or not appended.is_new:
        return

    async def on_failure(reason: str) -> None:
        words = f"I cannot {way} {inline_code(at.conversation, PLACE_CHARS)}: {inline_code(reason, PLACE_CHARS)}."
        await send_follow_up(context, call, appended.seq, words, private=False)

    context.membership.start(way, at, on_failure)


async def _resolve(context: CommandContext, written: str, call: CommandCall) -> Address:
    """Raises `RoomNotFound`."""
    return resolve_room(
        written, call.command.at.channel, context.channels, await known_rooms(context), context.places.titles
    )


async def known_rooms(context: CommandContext) -> list[Address]:
    """Return every room that is known by name, sorted."""
    return [room.at for room in await _find_known(context)]


async def _find_known(context: CommandContext) -> list[_KnownRoom]:
    """Return the configured, the approved and the waiting rooms; each once, sorted by name."""
    found: dict[Address, _KnownRoom] = {}
    for channel, rooms in context.access_policy.open_rooms.items():
        for name in rooms - {ANY_ROOM}:
            at = Address(channel=channel, room=name)
            found[at] = _KnownRoom(at, "configured")
    about = {
        one.fact.room: one.fact
        for one in await context.store.current_facts("room_opened")
        if isinstance(one.fact, RoomAccessChanged)
    }
    for conversation in context.access_policy.roster_state().rooms:
        at = Address.parse(conversation)
        opened = about.get(at)
        found.setdefault(at, _KnownRoom(at, "approved", opened.about if opened else ""))
    now = context.clock.now()
    for one in await context.store.current_facts("code_given"):
        if isinstance(one.fact, CodeIssued) and one.fact.room is not None and one.fact.until > now:
            found.setdefault(one.fact.room, _KnownRoom(one.fact.room, "waits to be approved", one.fact.about))
    return sorted(found.values(), key=lambda room: room.at.conversation)


def _find_open_channels(context: CommandContext) -> list[ChannelName]:
    return sorted(channel for channel, rooms in context.access_policy.open_rooms.items() if ANY_ROOM in rooms)


def _format_room(context: CommandContext, room: _KnownRoom) -> str:
    at, bound = room.at, context.agents.bindings.find(room.at)
    inside = "stays out" if context.membership.was_sent_out(at) else _PRESENCE_WORDS[context.membership.is_inside(at)]
    agent = f"agent {inline_code(bound.agent)}" if bound.agent else "nobody's"
    words = [room.reason, inside, _LISTEN_WORDS[bound.listen], agent, "private" if bound.private else ""]
    return f"- {format_room(at.conversation, room.title)}: {', '.join(filter(None, words))}"


_LISTEN_WORDS: Mapping[ListenMode, str] = {
    "off": "listens to nothing",
    "mention": "listens to mentions",
    "ambient": "listens to mentions, and reads the rest",
    "all": "listens to all",
}
_PRESENCE_WORDS = {True: "in it", False: "not in it", None: ""}

COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="rooms",
        group="rooms",
        needs_gateway=True,
        summary="List my rooms, and how I behave there.",
        role="admin",
        needs_global_role=True,
        private=True,
        handler=list_rooms,
    ),
    CommandDefinition(
        name="join",
        group="rooms",
        needs_gateway=True,
        summary="Enter a room.",
        args=(make_arg("room", "The room.", form="room", needed=True, suggests=True),),
        role="admin",
        needs_global_role=True,
        handler=join_room,
    ),
    CommandDefinition(
        name="part",
        group="rooms",
        needs_gateway=True,
        summary="Leave a room. Without a name: this room.",
        args=(ROOM_ARG,),
        role="admin",
        needs_global_role=True,
        handler=leave_room,
    ),
    CommandDefinition(
        name="say",
        group="rooms",
        needs_gateway=True,
        summary="Post a text in another room, in my name.",
        args=(
            make_arg("room", "The room.", form="room", needed=True, suggests=True),
            make_arg("text", "The text.", needed=True, rest=True),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
        handler=say_elsewhere,
    ),
)
