"""The commands about what agents do by themselves: their networks, and what is unread."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, Protocol
from zoneinfo import ZoneInfo

from agent.signals import Directive
from gateway import mindctl
from gateway.changes import Change, Made
from gateway.clock import Clock
from gateway.commands.sight import Homes, hidden, place_of
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, ConversationId
from gateway.mindctl import Told
from gateway.orders import DmnOrder, MindSeen, Wish
from gateway.records import Directed, DmnSaved, inner
from gateway.schedules import BadSchedule
from gateway.store import Appended, Pending, Reader

MOST_TOLD: Final = 20
"""Conversations in one answer."""
_BY_CHARS: Final = 200
"""As many as an order takes."""
_LEVELS: Final = ("urgent", "normal", "low", "ambient")
_SET: Final[tuple[Literal["pause", "wake", "sleep", "quiet", "off"], ...]] = ("pause", "wake", "sleep", "quiet", "off")


class Running(mindctl.Mind, Protocol):
    """One agent's network that runs: `gateway.loop.Loop`."""

    def send(self, signal: Directive, /) -> None:
        """Let it hold. Returns at once."""


class DmnCommands:
    """`dmn`: what somebody says is for the agent of that place; `status` tells of all."""

    def __init__(
        self,
        minds: Sequence[Running],
        places: Homes,
        clock: Clock,
        *,
        agent_of: Callable[[Address], str],
        timezone: Callable[[], str],
    ) -> None:
        """`agent_of`: whose conversation it is. `timezone`: where times of day are read, by now."""
        self._minds = minds
        self._places = places
        self._clock = clock
        self._agent_of = agent_of
        self._timezone = timezone

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {"dmn status": self.status, **{f"dmn {what}": partial(self._order, what) for what in _SET}}

    async def status(self, ask: Ask, _world: World) -> Answer:
        """How each agent is. Private conversations are counted, but for an owner alone."""
        now = self._clock.now()
        said, _ = mindctl.answer(DmnOrder(what="status", by=_by(ask)), self._minds, now)
        places = [place for one in said.data for place in _places(one)]
        private = await hidden(ask, self._places, places)
        await self._places.titles.load(places)
        label = self._places.titles.label
        lines = [line for one in said.data for line in mindctl.told(_counted(one, private, label), now)]
        return Answer(text="\n".join(["```", *(line.replace("`", "'") for line in lines), "```"]))

    async def _order(self, what: Literal["pause", "wake", "sleep", "quiet", "off"], ask: Ask, _world: World) -> Answer:
        now = self._clock.now()
        try:
            until = mindctl.until_of(ask.arguments.get("until", ""), now, ZoneInfo(self._timezone()))
        except BadSchedule as error:
            return Answer(text=str(error), ok=False)
        order = DmnOrder(what=what, by=_by(ask), agent=self._agent_of(ask.command.at), until=until)
        said, todo = mindctl.answer(order, self._minds, now)
        words = "\n".join(f"{line}." for line in said.lines)
        if not todo:
            return Answer(text=words, ok=said.ok)
        facts = [made for one in todo for made in self._build_facts(one)]
        return Answer(
            text=words,
            effect=Change(answer=words, facts=tuple(facts), settle=partial(self._send_directives, todo)),
            ok=said.ok,
        )

    def _build_facts(self, told: Told) -> Sequence[Made]:
        both: tuple[Directed, DmnSaved] = mindctl.facts(self._find_mind(told.agent), told.directive, told.directed)
        return [Made(fact, place=inner(told.agent)) for fact in both]

    def _find_mind(self, agent: str) -> Running:
        return next(mind for mind in self._minds if mind.agent == agent)

    def _send_directives(self, todo: Iterable[Told], asked: Appended | None) -> None:
        if asked is not None and asked.is_new:
            for one in todo:
                self._find_mind(one.agent).send(one.directive)


class PendingCommands:
    """`pending`."""

    def __init__(self, reader: Reader, places: Homes) -> None:
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name."""
        return {"pending": self.pending}

    async def pending(self, ask: Ask, _world: World) -> str:
        """What is unread, by conversation; private ones are counted, but for an owner alone."""
        found = await self._reader.pending_counts()
        private = await hidden(ask, self._places, (one.conversation for one in found))
        shown = [one for one in found if one.conversation not in private]
        lines = [f"{place_of(one.conversation)}: {_sum([one])}, since {one.since:%Y-%m-%d %H:%M} UTC" for one in shown]
        if more := shown[MOST_TOLD:]:
            lines[MOST_TOLD:] = [f"in {len(more)} more: {_sum(more)}"]
        if private:
            unnamed = [one for one in found if one.conversation in private]
            lines.append(f"in {len(unnamed)} private conversation{'s'[: len(unnamed) > 1]}: {_sum(unnamed)}")
        return "\n".join(f"- {line}" for line in lines) if lines else "Nothing is unread."


def _by(ask: Ask) -> str:
    return ask.person[:_BY_CHARS]


def _places(one: MindSeen) -> Iterable[ConversationId]:
    return (*one.running, *one.waiting, *one.low, *(wish.conversation for wish in one.wanted))


def _counted(one: MindSeen, private: Collection[ConversationId], label: Callable[[ConversationId], str]) -> MindSeen:
    """With so many private conversations, and not their names; of many others only the first."""
    lists = {name: tuple(_named(getattr(one, name), private, label)) for name in ("running", "waiting", "low")}
    wanted = [
        Wish(conversation=place, why=why)
        for why in dict.fromkeys(wish.why for wish in one.wanted)
        for place in _named([wish.conversation for wish in one.wanted if wish.why == why], private, label)
    ]
    return one.model_copy(update={**lists, "wanted": tuple(wanted)})


def _named(
    places: Sequence[ConversationId], private: Collection[ConversationId], label: Callable[[ConversationId], str]
) -> list[ConversationId]:
    told = [place for place in places if place not in private]
    counts = {"more": len(told) - MOST_TOLD, "private": len(places) - len(told)}
    shown = [ConversationId(label(place)) for place in told[:MOST_TOLD]]
    return [*shown, *(ConversationId(f"{count} {what}") for what, count in counts.items() if count > 0)]


def _sum(some: Sequence[Pending]) -> str:
    sums = {level: sum(getattr(one, level) for one in some) for level in _LEVELS}
    return ", ".join(f"{count} {level}" for level, count in sums.items() if count)
