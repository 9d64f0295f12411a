"""Every handler of the command table, and what may stand in its arguments, made with what they need."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from channels.base import Channel, CommandTyped
from gateway import attention
from gateway.acting import Rooms
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.commands.elsewhere import ElsewhereCommands
from gateway.commands.handlers import HANDLERS
from gateway.commands.later import Later
from gateway.commands.log import LogCommands
from gateway.commands.mind import DmnCommands, PendingCommands
from gateway.commands.notes import NotesCommands
from gateway.commands.notify import NotifyCommands
from gateway.commands.people import PeopleCommands
from gateway.commands.persons import Persons
from gateway.commands.remind import RemindCommands
from gateway.commands.rooms import RoomCommands
from gateway.commands.running import RunningCommands
from gateway.commands.saying import Saying
from gateway.commands.sparing import SparingCommands
from gateway.commands.suggest import Source
from gateway.commands.thinking import ThinkingCommands
from gateway.commands.world import Handler
from gateway.events import Address, ChannelName, Command
from gateway.life import Life
from gateway.live import Live
from gateway.minds import Minds
from gateway.ops.stats import Stats
from gateway.overrides import Overrides
from gateway.people import People
from gateway.records import Seq
from gateway.redaction import Redact
from gateway.roster.finding import heard
from gateway.runner import Runner
from gateway.standing import ADMINS, person, standing
from gateway.store import OutboxPost, Store
from gateway.tools.consent import Approver
from gateway.tools.deciding import Deciding
from gateway.travels import Travels


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """All that commands may act on."""

    live: Live
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    people: People
    bindings: Bindings
    attend: attention.Policy
    overrides: Overrides
    life: Life
    minds: Minds
    doors: Rooms
    travels: Travels
    runner: Runner
    stats: Stats
    redact: Redact
    deciding: Deciding
    post: Callable[[OutboxPost], None]
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class Desks:
    """All of them."""

    def __init__(self, house: House) -> None:
        self._house = house
        people, later = house.people, Later(house.store, house.clock, house.post, house.life.places.titles.named)
        self._rooms = RoomCommands(
            reader=house.store,
            clock=house.clock,
            who=people.policy,
            bindings=house.bindings,
            channels=house.channels.keys(),
            travels=house.travels,
            later=later,
            titles=house.life.places.titles,
        )
        self._saying = Saying(
            reader=house.store,
            who=people.policy,
            bindings=house.bindings,
            places=house.life.places,
            channels=house.channels.keys(),
            doors=house.doors,
            forget=house.minds.forget,
            post=house.post,
            spawn=house.spawn,
            rooms=self._rooms.places,
            inside=house.travels.inside,
        )
        self._running = RunningCommands(runner=house.runner, stats=house.stats, live=house.live, later=later)
        self._remind = RemindCommands(house.life.reminders, house.store, house.life.places)
        self._notify = NotifyCommands(house.overrides, house.store, house.attend)
        self._notes = _notes(house, later)
        self._dmn = DmnCommands(
            house.minds.loops,
            house.life.places,
            house.clock,
            agent_of=_agent_of(house),
            timezone=lambda: house.live.settings.dmn.timezone,
        )

    @property
    def answers(self) -> Mapping[str, Handler]:
        """What answers: by `name` or `name sub`, all of the table."""
        house, people, store, places = self._house, self._house.people, self._house.store, self._house.life.places
        persons = Persons(
            roster=people.roster,
            policy=people.policy,
            linking=people.linking,
            manners=people.manners,
            clock=house.clock,
        )
        return {
            **HANDLERS,
            **PeopleCommands(persons).handlers,
            **SparingCommands(people.limits.over, _agent_of(house)).handlers,
            **self._dmn.handlers,
            **PendingCommands(store, places).handlers,
            **ThinkingCommands(house.minds.stopping, house.minds.choosing).handlers,
            **ElsewhereCommands(places).handlers,
            **LogCommands(store, house.redact, places).handlers,
            **self._remind.handlers,
            **self._notify.handlers,
            **self._notes.handlers,
            **self._rooms.handlers,
            **self._saying.handlers,
            **self._running.handlers,
        }

    @property
    def sources(self) -> Mapping[str, Source]:
        """What may stand in arguments, as `gateway.commands.suggest` has it."""
        return {
            "who": self._who,
            "account": self._accounts,
            "room": self._places,
            "channel": self._channels,
            "model switch name": self._models,
            "approve id": self._waiting,
            "deny id": self._waiting,
            "revoke tool": self._granted,
            "remind cancel id": self._remind.ids,
            "notify unrule id": self._notify.suggested,
            "type": self._notify.suggested,
            "note": self._notes.numbers,
        }

    async def _who(self, typed: CommandTyped) -> list[str]:
        """Who spoke there lately: names that mean one of them, then ids; then, to admins of all, who has a role."""
        recent = await heard(self._house.store, typed.at.conversation)
        names = Counter(sender.name for sender in recent.values())
        named = [name for name, times in names.items() if times == 1]
        wide = standing(self._house.people.policy, typed.at, typed.sender).everywhere in ADMINS
        known = [one.person for one in self._house.people.roster.roles] if wide else []
        return [*named, *recent, *known]

    async def _accounts(self, typed: CommandTyped) -> list[str]:
        own = person(typed.at.channel, typed.sender.id)
        return sorted(self._house.people.policy.known().links.get(own, ()))

    async def _places(self, _typed: CommandTyped) -> list[str]:
        titles = self._house.life.places.titles
        return [titles.label(place.conversation) for place in await self._rooms.places()]

    async def _channels(self, _typed: CommandTyped) -> list[str]:
        return list(self._house.channels)

    async def _models(self, _typed: CommandTyped) -> list[str]:
        return [one.name for one in self._house.minds.choosing.listed()]

    async def _waiting(self, typed: CommandTyped) -> list[str]:
        return [one.asked.approval for one in self._house.deciding.waiting(self._approver(typed))]

    async def _granted(self, typed: CommandTyped) -> list[str]:
        return [one.tool for one in await self._house.deciding.granted(self._approver(typed))]

    def _approver(self, typed: CommandTyped) -> Approver:
        who = standing(self._house.people.policy, typed.at, typed.sender)
        return Approver(
            at=typed.at, sender=typed.sender.id, role=who.role, direct=typed.direct, everywhere=who.everywhere
        )


def _notes(house: House, later: Later) -> NotesCommands:
    life = house.life

    async def tell(command: Command, cause: Seq, words: str) -> None:
        await later.tell(command, cause, words, private=True)

    return NotesCommands(
        house.store,
        life.places,
        life.forgetting,
        memory=life.memory.read,
        by_hand=life.notes.by_hand,
        agent_of=_agent_of(house),
        spawn=house.spawn,
        tell=tell,
        let_in=life.memory.approve,
        redact=house.redact,
    )


def _agent_of(house: House) -> Callable[[Address], str]:
    return lambda at: house.minds.of(at.conversation).id
