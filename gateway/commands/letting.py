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
        self._persons = persons
        self._tries = Tries()

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
        roster, prefix = self._persons.roster, self._prefix(ask)
        return "\n".join([*asking(roster.pending("pair"), "to speak to me alone", prefix), *paired(roster.roles)])

    async def _pair_approve(self, ask: Ask, _world: World) -> Answer:
        request = self._handed(ask, "pair")
        if isinstance(request, Outcome):
            return self._persons.answer(request)
        outcome = pairing.let_in(request, ask.person, has=self._persons.roster.given(request.person))
        sure = words.sure(request.person, self._persons.manners.platforms)
        return self._persons.answer(outcome._replace(words=f"{outcome.words} That is {sure}."))

    async def _pair_revoke(self, ask: Ask, world: World) -> Answer:
        roster, name = self._persons.roster, ask.given["who"].strip("` ").lower()
        for request in roster.pending("pair", "room"):
            if request.request == name:
                return self._persons.answer(pairing.turned_away(request, ask.person))
        whom = await self._persons.whom(ask, world)
        if isinstance(whom, Outcome):
            return self._persons.answer(whom)
        policy, by = self._persons.policy, ask.person
        if why := refusal(policy, by=by, role=ask.everywhere, whom=whom.person, wants="", seen=whom.seen):
            return self._persons.answer(no(why))
        outcome = pairing.let_go(whom.person, roster.given(whom.person), ask.person)
        if outcome.ok and (others := same(self._persons.policy, whom.person)[1:]):
            told = ", ".join(map(words.named, others))
            outcome = outcome._replace(words=f"{outcome.words} What they have as {told} they have still.")
        return self._persons.answer(outcome)

    async def _room_list(self, ask: Ask, _world: World) -> str:
        roster = self._persons.roster
        waiting = asking(roster.pending("room"), "to have me in a room", self._prefix(ask))
        return "\n".join([*waiting, *open_rooms(roster.rooms, self._persons.policy)])

    async def _room_approve(self, ask: Ask, _world: World) -> Answer:
        if ask.given.get("code"):
            request = self._handed(ask, "room")
            if isinstance(request, Outcome):
                return self._persons.answer(request)
            assert request.room is not None
            return self._persons.answer(pairing.opened(request, request.room, ask.person))
        if ask.command.direct:
            return self._persons.answer(no("Say it in the room, or with the code that I showed there."))
        return self._persons.answer(self._here(ask.person, room_of(ask.command.at)))

    def _here(self, by: str, room: Address) -> Outcome:
        """Open the room where it is said. A code that was shown for it has done its work."""
        if listed(self._persons.policy, room):
            return no("This room is open for me already.")
        for request in self._persons.roster.pending("room"):
            if request.room == room:
                return pairing.opened(request, room, by)
        opened = RoomOpened(room=room, open=True, by=by)
        return Outcome(f"Open: {words.place(room.conversation)}.", (Made(opened, room.conversation),))

    async def _room_revoke(self, ask: Ask, _world: World) -> Answer:
        at, written = ask.command.at, ask.given.get("room", "").strip("` ")
        if not written and ask.command.direct:
            return self._persons.answer(no("Write which room, as `room list` has it."))
        wanted = written.casefold() or room_of(at).conversation.casefold()
        for one in self._persons.roster.rooms:
            own = one.room.room.casefold() if one.room.channel == at.channel else ""
            if wanted in (one.room.conversation.casefold(), own):
                return self._persons.answer(self._closed(one, ask.person))
        shown = words.place(written or room_of(at).conversation)
        return self._persons.answer(no(f"{shown} was not approved. What the configuration opens is closed only there."))

    def _closed(self, one: RoomOpened, by: str) -> Outcome:
        closed = RoomOpened(room=one.room, open=False, by=by, about=one.about)
        configured = listed(replace(self._persons.policy, known=lambda: NOTHING_KNOWN), one.room)
        more = "The configuration opens it all the same." if configured else "I leave it, where I can by myself."
        told = f"Not approved any more: {words.place(one.room.conversation, one.about)}. {more}"
        return Outcome(told, (Made(closed, one.room.conversation),))

    def _handed(self, ask: Ask, what: What) -> CodeGiven | Outcome:
        """Which request an admin means: by its code, its name, or its person or room."""
        channel, now_s = ask.command.at.channel, self._persons.clock.monotonic()
        if not self._tries.may(ask.person, channel, now_s):
            return no(words.TRY_LATER)
        request = find(self._persons.roster.pending(what), ask.given["code"])
        if request is None:
            self._tries.wrong(ask.person, channel, now_s)
            return no(words.no_request(ask.given["code"], self._prefix(ask), what))
        return request

    def _prefix(self, ask: Ask) -> str:
        return self._persons.manners.of(ask.command.at.channel)
