"""The commands about what agents do by themselves: their networks, and what is unread."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, Protocol
from zoneinfo import ZoneInfo

from agent.signals import Directive
from gateway import mindctl
from gateway.changes import CommandEffect, EffectFact
from gateway.clock import Clock
from gateway.commands.sight import ConversationPrivacy, find_hidden, format_place
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address, ConversationId
from gateway.mindctl import DmnCommand
from gateway.orders import DmnRequest, DmnStatus, WantedTurn
from gateway.records import DmnDirective, DmnStateSaved, inner_conversation
from gateway.schedules import ScheduleError
from gateway.store import AppendResult, PendingCounts, StoreReader

MAX_CONVERSATIONS: Final = 20
"""Conversations in one answer."""
_MAX_AUTHOR_CHARS: Final = 200
"""As many as an order takes."""
_URGENCY_LEVELS: Final = ("urgent", "normal", "low", "ambient")
_DMN_ORDERS: Final[tuple[Literal["pause", "wake", "sleep", "quiet", "off"], ...]] = (
    "pause",
    "wake",
    "sleep",
    "quiet",
    "off",
)


class RunningDmn(mindctl.DmnSource, Protocol):
    """One agent's network that runs: `gateway.loop.AgentLoop`."""

    def send(self, signal: Directive, /) -> None:
        """Let it hold. Returns at once."""


class DmnCommands:
    """`dmn`: what somebody says is for the agent of that place; `status` tells of all."""

    def __init__(
        self,
        minds: Sequence[RunningDmn],
        places: ConversationPrivacy,
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
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {"dmn status": self.status, **{f"dmn {what}": partial(self._order, what) for what in _DMN_ORDERS}}

    async def status(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """How each agent is. Private conversations are counted, but for an owner alone."""
        now = self._clock.now()
        said, _ = mindctl.answer_order(DmnRequest(what="status", by=_format_author(ask)), self._minds, now)
        places = [place for one in said.data for place in _mentioned_places(one)]
        private = await find_hidden(ask, self._places, places)
        await self._places.titles.load(places)
        label = self._places.titles.label
        lines = [
            line
            for one in said.data
            for line in mindctl.format_dmn_status(_hide_private_places(one, private, label), now)
        ]
        return CommandReply(text="\n".join(["```", *(line.replace("`", "'") for line in lines), "```"]))

    async def _order(
        self, what: Literal["pause", "wake", "sleep", "quiet", "off"], ask: CommandCall, _world: CommandContext
    ) -> CommandReply:
        now = self._clock.now()
        try:
            until = mindctl.parse_until(ask.arguments.get("until", ""), now, ZoneInfo(self._timezone()))
        except ScheduleError as error:
            return CommandReply(text=str(error), ok=False)
        order = DmnRequest(what=what, by=_format_author(ask), agent=self._agent_of(ask.command.at), until=until)
        said, todo = mindctl.answer_order(order, self._minds, now)
        words = "\n".join(f"{line}." for line in said.lines)
        if not todo:
            return CommandReply(text=words, ok=said.ok)
        facts = [made for one in todo for made in self._build_facts(one)]
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, facts=tuple(facts), settle=partial(self._send_directives, todo)),
            ok=said.ok,
        )

    def _build_facts(self, told: DmnCommand) -> Sequence[EffectFact]:
        both: tuple[DmnDirective, DmnStateSaved] = mindctl.build_directive_facts(
            self._find_mind(told.agent), told.directive, told.directed
        )
        return [EffectFact(fact, place=inner_conversation(told.agent)) for fact in both]

    def _find_mind(self, agent: str) -> RunningDmn:
        return next(mind for mind in self._minds if mind.agent == agent)

    def _send_directives(self, todo: Iterable[DmnCommand], asked: AppendResult | None) -> None:
        if asked is not None and asked.is_new:
            for one in todo:
                self._find_mind(one.agent).send(one.directive)


class PendingCommands:
    """`pending`."""

    def __init__(self, reader: StoreReader, places: ConversationPrivacy) -> None:
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name."""
        return {"pending": self.pending}

    async def pending(self, ask: CommandCall, _world: CommandContext) -> str:
        """What is unread, by conversation; private ones are counted, but for an owner alone."""
        found = await self._reader.pending_counts()
        private = await find_hidden(ask, self._places, (one.conversation for one in found))
        shown = [one for one in found if one.conversation not in private]
        lines = [
            f"{format_place(one.conversation)}: {_format_unread([one])}, since {one.since:%Y-%m-%d %H:%M} UTC"
            for one in shown
        ]
        if more := shown[MAX_CONVERSATIONS:]:
            lines[MAX_CONVERSATIONS:] = [f"in {len(more)} more: {_format_unread(more)}"]
        if private:
            unnamed = [one for one in found if one.conversation in private]
            lines.append(f"in {len(unnamed)} private conversation{'s'[: len(unnamed) > 1]}: {_format_unread(unnamed)}")
        return "\n".join(f"- {line}" for line in lines) if lines else "Nothing is unread."


def _format_author(ask: CommandCall) -> str:
    return ask.person[:_MAX_AUTHOR_CHARS]


def _mentioned_places(one: DmnStatus) -> Iterable[ConversationId]:
    return (*one.running, *one.waiting, *one.low, *(wish.conversation for wish in one.wanted))


def _hide_private_places(
    one: DmnStatus, private: Collection[ConversationId], label: Callable[[ConversationId], str]
) -> DmnStatus:
    """With so many private conversations, and not their names; of many others only the first."""
    lists = {name: tuple(_label_places(getattr(one, name), private, label)) for name in ("running", "waiting", "low")}
    wanted = [
        WantedTurn(conversation=place, why=why)
        for why in dict.fromkeys(wish.why for wish in one.wanted)
        for place in _label_places([wish.conversation for wish in one.wanted if wish.why == why], private, label)
    ]
    return one.model_copy(update={**lists, "wanted": tuple(wanted)})


def _label_places(
    places: Sequence[ConversationId], private: Collection[ConversationId], label: Callable[[ConversationId], str]
) -> list[ConversationId]:
    told = [place for place in places if place not in private]
    counts = {"more": len(told) - MAX_CONVERSATIONS, "private": len(places) - len(told)}
    shown = [ConversationId(label(place)) for place in told[:MAX_CONVERSATIONS]]
    return [*shown, *(ConversationId(f"{count} {what}") for what, count in counts.items() if count > 0)]


def _format_unread(some: Sequence[PendingCounts]) -> str:
    sums = {level: sum(getattr(one, level) for one in some) for level in _URGENCY_LEVELS}
    return ", ".join(f"{count} {level}" for level, count in sums.items() if count)
