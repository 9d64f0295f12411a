"""The commands about what agents do by themselves: their networks, and what is unread.

The commands about reminders.

The commands about what runs: connecting a channel anew, and reading the configuration again.

The commands about what the agent thinks with, and that have it leave off: `/stop` and `/model`.

The commands that have a model asked: refused where somebody asks for more than they may.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, Protocol
from zoneinfo import ZoneInfo

from agent.signals import Directive
from channels.base import CommandCompletion
from channels.text import single_line
from gateway.access.approval_texts import inline_code
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandFollowUp,
    CommandHandler,
    CommandReply,
    ConversationPrivacy,
    find_hidden,
    format_place,
    match_suggestions,
)
from gateway.commands.info import handle_compact, handle_retry
from gateway.commands.parser import find_nearest
from gateway.config.reload import LiveSettings, ReloadResult
from gateway.context.reminders import ReminderService, format_due, normalize_reminder_id
from gateway.context.schedule import ScheduleError, describe_schedule_text
from gateway.core.clock import Clock
from gateway.core.control_messages import DmnRequest, DmnStatus, WantedTurn
from gateway.core.events import Address, ChannelName, ConversationId, MessageId, Sender
from gateway.core.facts import DmnDirective, DmnStateSaved, ReminderEnded, inner_conversation
from gateway.core.identity import ADMIN_ROLES
from gateway.core.metrics import GatewayStats
from gateway.runtime.agents import (
    DmnCommand,
    DmnSource,
    answer_order,
    build_directive_facts,
    format_dmn_status,
    parse_until,
)
from gateway.runtime.model_choice import ConfiguredModel, ModelChoiceRequest, ModelSelector
from gateway.runtime.turn import NOTHING_RUNNING, TurnStopper
from gateway.store import AppendResult, PendingCounts, PendingReminder, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.supervisor import ChannelSupervisor, RestartResult

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


class RunningDmn(DmnSource, Protocol):
    """One agent's network that runs: `gateway.runtime.loop.AgentLoop`."""

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
        said, _ = answer_order(DmnRequest(what="status", by=_format_author(ask)), self._minds, now)
        places = [place for one in said.data for place in _mentioned_places(one)]
        private = await find_hidden(ask, self._places, places)
        await self._places.titles.load(places)
        label = self._places.titles.label
        lines = [
            line for one in said.data for line in format_dmn_status(_hide_private_places(one, private, label), now)
        ]
        return CommandReply(text="\n".join(["```", *(line.replace("`", "'") for line in lines), "```"]))

    async def _order(
        self, what: Literal["pause", "wake", "sleep", "quiet", "off"], ask: CommandCall, _world: CommandContext
    ) -> CommandReply:
        now = self._clock.now()
        try:
            until = parse_until(ask.arguments.get("until", ""), now, ZoneInfo(self._timezone()))
        except ScheduleError as error:
            return CommandReply(text=str(error), ok=False)
        order = DmnRequest(what=what, by=_format_author(ask), agent=self._agent_of(ask.command.at), until=until)
        said, todo = answer_order(order, self._minds, now)
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
        both: tuple[DmnDirective, DmnStateSaved] = build_directive_facts(
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


MAX_REMINDERS: Final = 20
"""Of a place, in one answer."""
MAX_REMINDER_CHARS: Final = 160
"""Of a reminder's text."""


class ReminderCommands:
    """`remind`: whoever may use it sees those of their conversation; administrators, alone with the agent, others."""

    def __init__(self, reminders: ReminderService, reader: StoreReader, places: ConversationPrivacy) -> None:
        self._reminders = reminders
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {"remind list": self.list_reminders, "remind cancel": self.cancel}

    async def list_reminders(self, ask: CommandCall, _world: CommandContext) -> str:
        """Those that are still to come, the next first."""
        here, elsewhere, private = await self._find_reminders(ask)
        lines = [*map(self._format_reminder, here[:MAX_REMINDERS]), *_format_remaining(here)] or [
            "There are no reminders here."
        ]
        if elsewhere or private:
            told = [
                f"{self._format_reminder(one)}, in {format_place(one.conversation or inner_conversation(one.agent))}"
                for one in elsewhere[:MAX_REMINDERS]
            ]
            counted = [f"- {private} in private conversations"] if private else []
            lines += ["", "Elsewhere:", *told, *_format_remaining(elsewhere), *counted]
        return "\n".join(lines)

    async def cancel(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """End one for good."""
        wanted = normalize_reminder_id(ask.arguments["id"].strip(" `"))
        here, elsewhere, _ = await self._find_reminders(ask)
        row = next((one for one in (*here, *elsewhere) if one.id == wanted), None)
        if row is None:
            return CommandReply(text=f"There is no reminder {inline_code(ask.arguments['id'])} here.", ok=False)
        words = f"Reminder `{row.id}` is cancelled."
        fact = ReminderEnded(reminder=row.id, reason=f"cancelled by {ask.person}")
        made = EffectFact(fact, place=row.conversation or inner_conversation(row.agent))
        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(made,), settle=self._settle_cancel))

    async def suggest_ids(self, typed: CommandCompletion) -> list[str]:
        """To suggest: those of that place, the next first."""
        return match_suggestions(
            [one.id for one in await self._reader.pending_reminders(typed.at.conversation)], typed.prefix
        )

    def _settle_cancel(self, asked: AppendResult | None) -> None:
        if asked is not None and asked.is_new:
            self._reminders.notify_changed()

    async def _find_reminders(self, ask: CommandCall) -> tuple[list[PendingReminder], list[PendingReminder], int]:
        """Those of this place, those of others that may be told here, and how many may not."""
        at = ask.command.at.conversation
        if not (ask.command.direct and ask.global_role in ADMIN_ROLES):
            return list(await self._reader.pending_reminders(at)), [], 0
        rows = await self._reader.pending_reminders()
        others = [one for one in rows if one.conversation != at]
        private = await find_hidden(ask, self._places, (one.conversation for one in others if one.conversation))
        told = [one for one in others if one.conversation not in private]
        return [one for one in rows if one.conversation == at], told, len(others) - len(told)

    def _format_reminder(self, one: PendingReminder) -> str:
        asked = f", asked for by {inline_code(one.asked_by)}" if one.asked_by else ""
        text = inline_code(one.text, MAX_REMINDER_CHARS)
        return (
            f"- `{one.id}`: {format_due(one, self._reminders.timezone)}, "
            f"{describe_schedule_text(one.schedule)}{asked}: {text}"
        )


def _format_remaining(rows: Sequence[PendingReminder]) -> Sequence[str]:
    return [f"(and {len(rows) - MAX_REMINDERS} later ones)"] if len(rows) > MAX_REMINDERS else []


MAX_REASON_CHARS = 300
MAX_KEYS = 40
MAX_PROBLEMS = 20


class OperationsCommands:
    """`restart` and `reload`."""

    def __init__(
        self, *, runner: ChannelSupervisor, stats: GatewayStats, live: LiveSettings, later: CommandFollowUp
    ) -> None:
        self._runner, self._stats, self._live, self._later = runner, stats, live, later

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"restart": self.restart, "reload": self.reload}

    async def restart(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Cut a channel and connect it again; what came of it is told later if it is not up, or if nobody would see."""
        written = ask.arguments["channel"].strip("`")
        names = [one.channel for one in self._stats.snapshot().channels]
        found = [name for name in names if name.casefold() == written.casefold()]
        if not found:
            meant = " or ".join(map(inline_code, find_nearest(written, names) or names))
            return CommandReply(text=f"I have no channel {inline_code(written)}: there is {meant}.", ok=False)
        (name,) = found
        if self._runner.is_restarting(name):
            return CommandReply(text=f"{inline_code(name)} is being restarted already.", ok=False)
        words = f"I disconnect {inline_code(name)} and connect it again. If that does not work, I say so here."
        return CommandReply(
            text=words, effect=CommandEffect(answer=words, settle=lambda asked: self._begin_restart(ask, name, asked))
        )

    def _begin_restart(self, ask: CommandCall, name: ChannelName, asked: AppendResult | None) -> None:
        if asked is None or not asked.is_new:
            return

        async def told(came: RestartResult) -> None:
            if words := _render_restart(name, came):
                await self._later.send(ask.command, asked.seq, words, private=True)

        self._runner.start_restart(name, f"restarted by {ask.person}", told)

    async def reload(self, _ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Read the configuration again, and tell what changed: keys and places, never values."""
        came = await self._live.reload()
        return CommandReply(text="\n".join(_render_reload(came)), ok=not (came.problems or came.read_error))


def _render_restart(name: ChannelName, came: RestartResult) -> str:
    reason = inline_code(came.reason, MAX_REASON_CHARS)
    match came.state:
        case "refused":
            return f"{inline_code(name)} is refused, and stays off: {reason}."
        case "down":
            return f"{inline_code(name)} is not connected yet: {reason}. It goes on trying."
        case _:
            return ""


def _render_reload(came: ReloadResult) -> list[str]:
    if came.read_error:
        return [
            f"I cannot read the configuration: {inline_code(came.read_error, MAX_REASON_CHARS)}. What I had goes on."
        ]
    if came.problems:
        shown = [
            f"- {inline_code(single_line(str(one), MAX_REASON_CHARS), MAX_REASON_CHARS)}"
            for one in came.problems[:MAX_PROBLEMS]
        ]
        more = len(came.problems) - len(shown)
        rest = [f"- and {more} more; `reverie check-config` shows all."] if more else []
        return ["The configuration is broken, so what I had goes on:", *shown, *rest]
    lines = [f"Changed from now on: {_format_keys(came.applied)}."] if came.applied else []
    lines += [f"Changed, but only after a restart: {_format_keys(came.after_restart)}."] if came.after_restart else []
    return lines or ["The configuration says what it said before."]


def _format_keys(keys: tuple[str, ...]) -> str:
    shown = ", ".join(inline_code(key, MAX_REASON_CHARS) for key in keys[:MAX_KEYS])
    return f"{shown} and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else shown


class LimitedModelCommands:
    """Stand in front of those that do it."""

    def __init__(self, over: Callable[[Address, Sender, str, str], str], agent_of: Callable[[Address], str]) -> None:
        """`over`: as `gateway.access.limits.UsageLimiter.over`. `agent_of`: whose conversation it is."""
        self._over, self._agent_of = over, agent_of

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of their commands."""
        return {"retry": self.retry, "compact": self.compact}

    async def retry(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """As `context.retry`."""
        return self._find_refusal(ask) or await handle_retry(ask, world)

    async def compact(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """As `context.compact`."""
        return self._find_refusal(ask) or await handle_compact(ask, world)

    def _find_refusal(self, ask: CommandCall) -> CommandReply | None:
        at = ask.command.at
        why = self._over(at, ask.command.sender, ask.role, self._agent_of(at))
        return CommandReply(text=why, ok=False) if why else None


MAX_NAME_CHARS = 60
"""Of a name that is not there, which are shown."""
MAX_SUGGESTED_NAMES = 3
"""Names that are shown where none is near."""


class ModelCommands:
    """The handlers."""

    def __init__(self, stopping: TurnStopper, choosing: ModelSelector) -> None:
        self._canceller = stopping
        self._model_choice = choosing

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the command's name, and its sub."""
        return {
            "stop": self.stop,
            "model list": self.list_models,
            "model switch": self.switch,
            "model reset": self.reset,
        }

    async def stop(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Leave off what is done here."""
        change = await self._canceller.plan_stop(ask.command.at, ask.person)
        return CommandReply(text=change.answer, effect=change, ok=change.answer != NOTHING_RUNNING)

    async def list_models(self, _ask: CommandCall, _world: CommandContext) -> str:
        """Every model that is configured."""
        return "\n".join(f"- {_format_model(one)}" for one in self._model_choice.list_models())

    async def switch(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Think with another one."""
        name, known = ask.arguments["name"].strip(), {one.name: one for one in self._model_choice.list_models()}
        if name not in known:
            meant = find_nearest(name, list(known)) or list(known)[:MAX_SUGGESTED_NAMES]
            there = " or ".join(f"`{_escape_code(one)}`" for one in meant)
            text = (
                f"There is no model `{_escape_code(name[:MAX_NAME_CHARS])}`. Did you mean {there}? `model "
                "list` shows all."
            )
            return CommandReply(text=text, ok=False)
        return self._choose(ask, name)

    async def reset(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Think with what the configuration says."""
        return self._choose(ask, "")

    def _choose(self, ask: CommandCall, name: str) -> CommandReply:
        command, before = (
            ask.command,
            self._model_choice.wanted_model(self._model_choice.agent_id_for(ask.command.at.conversation)),
        )
        wish = ModelChoiceRequest(
            name=name,
            at=command.at,
            by=ask.person,
            reply_to=MessageId(command.id) if command.origin == "text" else None,
        )
        change = self._model_choice.choose(wish)
        known = {one.name: one for one in self._model_choice.list_models()}
        more = ""
        if change.facts and name in known and known[name].context_tokens < known[before].context_tokens:
            more = f" Its window is smaller, {known[name].context_tokens:,} tokens: what does not fit is folded."
        return CommandReply(text=change.answer + more, effect=change)


def _format_model(one: ConfiguredModel) -> str:
    called = f" `{_escape_code(one.model_name)}`" if one.model_name else ""
    told = [
        f"`{_escape_code(one.name)}`: {one.kind}{called}",
        f"a window of {one.context_tokens:,} tokens, answers up to {one.max_output_tokens:,}",
        "price known" if one.has_price else "price not known",
    ]
    if one.takes_images:
        told.append("sees images")
    if one.fallbacks:
        told.append(f"falls back to {', '.join(f'`{_escape_code(name)}`' for name in one.fallbacks)}")
    if one.used_by:
        told.append(f"in use by {', '.join(f'`{_escape_code(agent)}`' for agent in one.used_by)}")
    return "; ".join(told)


def _escape_code(text: str) -> str:
    """Text that cannot end the code it stands in."""
    return " ".join(text.split()).replace("`", "'")
