"""`pair` and `room`: who may speak to me alone, and where I may speak."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.access import is_room_allowed
from gateway.changes import EffectFact
from gateway.commands.persons import PeopleContext, room_address
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address
from gateway.records import CodeIssued, RoomAccessChanged
from gateway.roster import pairing, words
from gateway.roster.codes import find_request
from gateway.roster.lists import format_open_rooms, format_paired_people, format_requests
from gateway.roster.pairing import AccessResult, reject
from gateway.roster.rights import explain_role_refusal, list_accounts_of
from gateway.roster.roster import RequestKind
from gateway.roster.tries import AttemptLimiter
from gateway.standing import EMPTY_ROSTER


class PairingCommands:
    """Answers them."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons
        self._attempts = AttemptLimiter()

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {
            "pair list": self._pair_list,
            "pair approve": self._pair_approve,
            "pair revoke": self._pair_revoke,
            "room list": self._room_list,
            "room approve": self._room_approve,
            "room revoke": self._room_revoke,
        }

    async def _pair_list(self, ask: CommandCall, _world: CommandContext) -> str:
        roster, prefix = self._people.roster, self._prefix(ask)
        return "\n".join(
            [
                *format_requests(roster.pending_requests("pair"), "to speak to me alone", prefix),
                *format_paired_people(roster.roles),
            ]
        )

    async def _pair_approve(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        request = self._find_request(ask, "pair")
        if isinstance(request, AccessResult):
            return self._people.build_reply(request)
        outcome = pairing.approve_pairing(request, ask.person, has=self._people.roster.find_grant(request.person))
        sure = words.describe_verification(request.person, self._people.channel_names.platforms)
        return self._people.build_reply(outcome._replace(text=f"{outcome.text} That is {sure}."))

    async def _pair_revoke(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        roster, name = self._people.roster, ask.arguments["who"].strip("` ").lower()
        for request in roster.pending_requests("pair", "room"):
            if request.request == name:
                return self._people.build_reply(pairing.revoke_code(request, ask.person))
        whom = await self._people.find_person(ask, world)
        if isinstance(whom, AccessResult):
            return self._people.build_reply(whom)
        policy, by = self._people.policy, ask.person
        if why := explain_role_refusal(
            policy, by=by, role=ask.global_role, whom=whom.person, wants="", seen=whom.last_role
        ):
            return self._people.build_reply(reject(why))
        outcome = pairing.revoke_pairing(whom.person, roster.find_grant(whom.person), ask.person)
        if outcome.ok and (others := list_accounts_of(self._people.policy, whom.person)[1:]):
            told = ", ".join(map(words.format_person, others))
            outcome = outcome._replace(text=f"{outcome.text} What they have as {told} they have still.")
        return self._people.build_reply(outcome)

    async def _room_list(self, ask: CommandCall, _world: CommandContext) -> str:
        roster = self._people.roster
        waiting = format_requests(roster.pending_requests("room"), "to have me in a room", self._prefix(ask))
        return "\n".join([*waiting, *format_open_rooms(roster.rooms, self._people.policy)])

    async def _room_approve(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        if ask.arguments.get("code"):
            request = self._find_request(ask, "room")
            if isinstance(request, AccessResult):
                return self._people.build_reply(request)
            assert request.room is not None
            return self._people.build_reply(pairing.approve_room(request, request.room, ask.person))
        if ask.command.direct:
            return self._people.build_reply(reject("Say it in the room, or with the code that I showed there."))
        return self._people.build_reply(self._open_here(ask.person, room_address(ask.command.at)))

    def _open_here(self, by: str, room: Address) -> AccessResult:
        """Open the room where it is said. A code that was shown for it has done its work."""
        if is_room_allowed(self._people.policy, room):
            return reject("This room is open for me already.")
        for request in self._people.roster.pending_requests("room"):
            if request.room == room:
                return pairing.approve_room(request, room, by)
        opened = RoomAccessChanged(room=room, open=True, by=by)
        return AccessResult(f"Open: {words.format_room(room.conversation)}.", (EffectFact(opened, room.conversation),))

    async def _room_revoke(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        at, written = ask.command.at, ask.arguments.get("room", "").strip("` ")
        if not written and ask.command.direct:
            return self._people.build_reply(reject("Write which room, as `room list` has it."))
        wanted = written.casefold() or room_address(at).conversation.casefold()
        for one in self._people.roster.rooms:
            own = one.room.room.casefold() if one.room.channel == at.channel else ""
            if wanted in (one.room.conversation.casefold(), own):
                return self._people.build_reply(self._close_room(one, ask.person))
        shown = words.format_room(written or room_address(at).conversation)
        return self._people.build_reply(
            reject(f"{shown} was not approved. What the configuration opens is closed only there.")
        )

    def _close_room(self, one: RoomAccessChanged, by: str) -> AccessResult:
        closed = RoomAccessChanged(room=one.room, open=False, by=by, about=one.about)
        configured = is_room_allowed(replace(self._people.policy, roster_state=lambda: EMPTY_ROSTER), one.room)
        more = "The configuration opens it all the same." if configured else "I leave it, where I can by myself."
        told = f"Not approved any more: {words.format_room(one.room.conversation, one.about)}. {more}"
        return AccessResult(told, (EffectFact(closed, one.room.conversation),))

    def _find_request(self, ask: CommandCall, what: RequestKind) -> CodeIssued | AccessResult:
        """Which request an admin means: by its code, its name, or its person or room."""
        channel, now_s = ask.command.at.channel, self._people.clock.monotonic()
        if not self._attempts.is_allowed(ask.person, channel, now_s):
            return reject(words.TRY_LATER_TEXT)
        request = find_request(self._people.roster.pending_requests(what), ask.arguments["code"])
        if request is None:
            self._attempts.record_failure(ask.person, channel, now_s)
            return reject(words.render_unknown_request(ask.arguments["code"], self._prefix(ask), what))
        return request

    def _prefix(self, ask: CommandCall) -> str:
        return self._people.channel_names.command_prefix(ask.command.at.channel)
