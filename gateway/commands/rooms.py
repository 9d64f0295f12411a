"""The commands about rooms: where the agent is, and going into rooms and out of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway import access
from gateway.attention import ListenMode
from gateway.bindings import Bindings
from gateway.changes import CommandEffect
from gateway.clock import Clock
from gateway.commands.finding import RoomNotFound, resolve_room
from gateway.commands.later import CommandFollowUp
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address, ChannelName
from gateway.records import CodeIssued, RoomAccessChanged
from gateway.roster.words import format_room
from gateway.standing import ANY_ROOM, AccessPolicy
from gateway.store import AppendResult, StoreReader
from gateway.titles import PlaceTitles
from gateway.tools.consent import PLACE_CHARS, inline_code
from gateway.travels import RoomAction, RoomMembership

MAX_ROOMS = 200
"""Told of by name."""


@dataclass(frozen=True, slots=True)
class _KnownRoom:
    """A line of the table."""

    at: Address
    reason: str
    """Why it is open, or that it is not yet."""
    title: str = ""
    """What it calls itself. Untrusted."""


class RoomCommands:
    """`rooms`, `join` and `part`."""

    def __init__(
        self,
        *,
        reader: StoreReader,
        clock: Clock,
        who: AccessPolicy,
        bindings: Bindings,
        channels: Collection[ChannelName],
        travels: RoomMembership,
        later: CommandFollowUp,
        titles: PlaceTitles | None = None,
    ) -> None:
        """`channels`: all that there are. `titles`: what places are called. None: only ids name rooms."""
        self._titles = titles
        self._reader, self._clock, self._who, self._bindings = reader, clock, who, bindings
        self._channels, self._travels, self._later = channels, travels, later

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"rooms": self.rooms, "join": self.join, "part": self.part}

    async def rooms(self, _ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Every room that is open, or waits to be opened."""
        found = await self._find_known()
        lines = [self._format_room(room) for room in found[:MAX_ROOMS]]
        lines += [f"- {inline_code(name)}: any room is open." for name in self._find_open_channels()]
        lines += [f"- and {len(found) - MAX_ROOMS} more."] if len(found) > MAX_ROOMS else []
        return CommandReply(text="\n".join(lines) or "No room is open to me, and none waits to be opened.")

    async def join(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """Enter a room that is open."""
        prefix = world.prefixes[ask.command.at.channel]
        try:
            at = await self._resolve(ask.arguments["room"], ask)
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name = inline_code(at.conversation, PLACE_CHARS)
        if not self._travels.can_join(at.channel):
            text = f"People add a bot to rooms there: add me to it, and `{prefix}room approve` opens it."
            return CommandReply(text=text, ok=False)
        if not access.is_room_allowed(self._who, at):
            text = f"{name} is not open to me. An admin opens it by `{prefix}room approve`, or the operator lists it."
            return CommandReply(text=text, ok=False)
        if self._travels.is_inside(at) and not self._travels.was_sent_out(at):
            return CommandReply(text=f"I am in {name} already.")
        words = f"I enter {name}. If I cannot, I say so here."
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, settle=lambda asked: self._begin_travel(ask, at, "enter", asked)),
        )

    async def part(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """Leave a room, and stay out of it."""
        command, prefix = ask.command, world.prefixes[ask.command.at.channel]
        written = ask.arguments.get("room", "")
        if not written and command.direct:
            return CommandReply(text="We are alone here: name the room that I am to leave.", ok=False)
        try:
            at = await self._resolve(written, ask) if written else command.at
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name = inline_code(at.conversation, PLACE_CHARS)
        if not self._travels.can_leave(at.channel):
            return CommandReply(text="Rooms are not left there.", ok=False)
        if self._travels.is_inside(at) is False and self._travels.was_sent_out(at):
            return CommandReply(text=f"I am not in {name}.")
        words = f"I leave {name}, and stay out until `{prefix}join` or until I am started anew."
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, settle=lambda asked: self._begin_travel(ask, at, "leave", asked)),
        )

    def _begin_travel(self, ask: CommandCall, at: Address, way: RoomAction, asked: AppendResult | None) -> None:
        if asked is None or not asked.is_new:
            return

        async def told(reason: str) -> None:
            words = f"I cannot {way} {inline_code(at.conversation, PLACE_CHARS)}: {inline_code(reason, PLACE_CHARS)}."
            await self._later.send(ask.command, asked.seq, words, private=False)

        self._travels.start(way, at, told)

    async def _resolve(self, written: str, ask: CommandCall) -> Address:
        """Raises `RoomNotFound`."""
        return resolve_room(written, ask.command.at.channel, self._channels, await self.known_rooms(), self._titles)

    async def known_rooms(self) -> list[Address]:
        """Every room that is known by name, in the order of their names."""
        return [room.at for room in await self._find_known()]

    async def _find_known(self) -> list[_KnownRoom]:
        """The configured ones, the approved ones, and those that wait for it; each once, by name."""
        found: dict[Address, _KnownRoom] = {}
        for channel, rooms in self._who.open_rooms.items():
            for name in rooms - {ANY_ROOM}:
                at = Address(channel=channel, room=name)
                found[at] = _KnownRoom(at, "configured")
        about = {
            one.fact.room: one.fact
            for one in await self._reader.current_facts("room_opened")
            if isinstance(one.fact, RoomAccessChanged)
        }
        for conversation in self._who.roster_state().rooms:
            at = Address.parse(conversation)
            told = about.get(at)
            found.setdefault(at, _KnownRoom(at, "approved", told.about if told else ""))
        now = self._clock.now()
        for one in await self._reader.current_facts("code_given"):
            if isinstance(one.fact, CodeIssued) and one.fact.room is not None and one.fact.until > now:
                found.setdefault(one.fact.room, _KnownRoom(one.fact.room, "waits to be approved", one.fact.about))
        return sorted(found.values(), key=lambda room: room.at.conversation)

    def _find_open_channels(self) -> list[ChannelName]:
        return sorted(channel for channel, rooms in self._who.open_rooms.items() if ANY_ROOM in rooms)

    def _format_room(self, room: _KnownRoom) -> str:
        at, bound = room.at, self._bindings.find(room.at)
        inside = "stays out" if self._travels.was_sent_out(at) else _PRESENCE_WORDS[self._travels.is_inside(at)]
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
