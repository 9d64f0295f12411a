"""`pair` and `room`: who may speak to me alone, and where I may speak."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.access import listed
from gateway.changes import Made
from gateway.commands.persons import Persons, room_of
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address
from gateway.records import CodeGiven, RoomOpened
from gateway.roster import pairing, words
from gateway.roster.codes import find
from gateway.roster.lists import asking, open_rooms, paired
from gateway.roster.pairing import Outcome, no
from gateway.roster.rights import refusal, same
from gateway.roster.roster import What
from gateway.roster.tries import Tries
from gateway.standing import NOTHING_KNOWN


class LettingCommands:
    """Answers them."""

    def __init__(self, persons: Persons) -> None:
        self._people = persons
        self._attempts = Tries()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {
            "pair list": self._pair_list,
            "pair approve": self._pair_approve,
            "pair revoke": self._pair_revoke,
            "room list": self._room_list,
            "room approve": self._room_approve,
            "room revoke": self._room_revoke,
        }

    async def _pair_list(self, ask: Ask, _world: World) -> str:
        roster, prefix = self._people.roster, self._prefix(ask)
        return "\n".join(
            [*asking(roster.pending_requests("pair"), "to speak to me alone", prefix), *paired(roster.roles)]
        )

    async def _pair_approve(self, ask: Ask, _world: World) -> Answer:
        request = self._find_request(ask, "pair")
        if isinstance(request, Outcome):
            return self._people.build_reply(request)
        outcome = pairing.let_in(request, ask.person, has=self._people.roster.find_grant(request.person))
        sure = words.sure(request.person, self._people.channel_names.platforms)
        return self._people.build_reply(outcome._replace(text=f"{outcome.text} That is {sure}."))

    async def _pair_revoke(self, ask: Ask, world: World) -> Answer:
        roster, name = self._people.roster, ask.arguments["who"].strip("` ").lower()
        for request in roster.pending_requests("pair", "room"):
            if request.request == name:
                return self._people.build_reply(pairing.turned_away(request, ask.person))
        whom = await self._people.find_person(ask, world)
        if isinstance(whom, Outcome):
            return self._people.build_reply(whom)
        policy, by = self._people.policy, ask.person
        if why := refusal(policy, by=by, role=ask.global_role, whom=whom.person, wants="", seen=whom.last_role):
            return self._people.build_reply(no(why))
        outcome = pairing.let_go(whom.person, roster.find_grant(whom.person), ask.person)
        if outcome.ok and (others := same(self._people.policy, whom.person)[1:]):
            told = ", ".join(map(words.named, others))
            outcome = outcome._replace(text=f"{outcome.text} What they have as {told} they have still.")
        return self._people.build_reply(outcome)

    async def _room_list(self, ask: Ask, _world: World) -> str:
        roster = self._people.roster
        waiting = asking(roster.pending_requests("room"), "to have me in a room", self._prefix(ask))
        return "\n".join([*waiting, *open_rooms(roster.rooms, self._people.policy)])

    async def _room_approve(self, ask: Ask, _world: World) -> Answer:
        if ask.arguments.get("code"):
            request = self._find_request(ask, "room")
            if isinstance(request, Outcome):
                return self._people.build_reply(request)
            assert request.room is not None
            return self._people.build_reply(pairing.opened(request, request.room, ask.person))
        if ask.command.direct:
            return self._people.build_reply(no("Say it in the room, or with the code that I showed there."))
        return self._people.build_reply(self._open_here(ask.person, room_of(ask.command.at)))

    def _open_here(self, by: str, room: Address) -> Outcome:
        """Open the room where it is said. A code that was shown for it has done its work."""
        if listed(self._people.policy, room):
            return no("This room is open for me already.")
        for request in self._people.roster.pending_requests("room"):
            if request.room == room:
                return pairing.opened(request, room, by)
        opened = RoomOpened(room=room, open=True, by=by)
        return Outcome(f"Open: {words.place(room.conversation)}.", (Made(opened, room.conversation),))

    async def _room_revoke(self, ask: Ask, _world: World) -> Answer:
        at, written = ask.command.at, ask.arguments.get("room", "").strip("` ")
        if not written and ask.command.direct:
            return self._people.build_reply(no("Write which room, as `room list` has it."))
        wanted = written.casefold() or room_of(at).conversation.casefold()
        for one in self._people.roster.rooms:
            own = one.room.room.casefold() if one.room.channel == at.channel else ""
            if wanted in (one.room.conversation.casefold(), own):
                return self._people.build_reply(self._close_room(one, ask.person))
        shown = words.place(written or room_of(at).conversation)
        return self._people.build_reply(
            no(f"{shown} was not approved. What the configuration opens is closed only there.")
        )

    def _close_room(self, one: RoomOpened, by: str) -> Outcome:
        closed = RoomOpened(room=one.room, open=False, by=by, about=one.about)
        configured = listed(replace(self._people.policy, roster_state=lambda: NOTHING_KNOWN), one.room)
        more = "The configuration opens it all the same." if configured else "I leave it, where I can by myself."
        told = f"Not approved any more: {words.place(one.room.conversation, one.about)}. {more}"
        return Outcome(told, (Made(closed, one.room.conversation),))

    def _find_request(self, ask: Ask, what: What) -> CodeGiven | Outcome:
        """Which request an admin means: by its code, its name, or its person or room."""
        channel, now_s = ask.command.at.channel, self._people.clock.monotonic()
        if not self._attempts.is_allowed(ask.person, channel, now_s):
            return no(words.TRY_LATER)
        request = find(self._people.roster.pending_requests(what), ask.arguments["code"])
        if request is None:
            self._attempts.record_failure(ask.person, channel, now_s)
            return no(words.no_request(ask.arguments["code"], self._prefix(ask), what))
        return request

    def _prefix(self, ask: Ask) -> str:
        return self._people.channel_names.command_prefix(ask.command.at.channel)
