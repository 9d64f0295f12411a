"""Commands about agents and the running gateway: `dmn`, `pending`, `remind`, `restart`, `reload`, `model` and `stop`.

`LimitedModelCommands` puts the usage limits before `retry` and `compact`, which ask a model.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal
from zoneinfo import ZoneInfo

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
from gateway.commands.parser import escape_code, find_nearest
from gateway.config.reload import LiveSettings, ReloadResult
from gateway.context.reminders import ReminderService, format_due, normalize_reminder_id
from gateway.context.schedule import ScheduleError, describe_schedule_text
from gateway.core.clock import Clock
from gateway.core.control_messages import DmnRequest, DmnStatus, WantedTurn
from gateway.core.events import Address, ChannelName, ConversationId, MessageId, Sender
from gateway.core.facts import DmnDirective, DmnStateSaved, ReminderEnded, inner_conversation
from gateway.core.identity import ADMIN_ROLES
from gateway.core.metrics import GatewayStats
from gateway.runtime.agents import NOTHING_RUNNING, Agents
from gateway.runtime.dmn_admin import (
    DmnCommand,
    answer_order,
    build_directive_facts,
    format_dmn_status,
    parse_until,
)
from gateway.runtime.loop import AgentLoop
from gateway.runtime.model_choice import ConfiguredModel, ModelChoiceRequest, ModelSelector
from gateway.store import AppendResult, PendingCounts, PendingReminder, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.supervisor import ChannelSupervisor, RestartResult

MAX_CONVERSATIONS: Final = 20
"""Conversations in one answer."""
_MAX_AUTHOR_CHARS: Final = 200
"""Limit of `DmnRequest.by`."""
_URGENCY_LEVELS: Final = ("urgent", "normal", "low", "ambient")
_DMN_ORDERS: Final[tuple[Literal["pause", "wake", "sleep", "quiet", "off"], ...]] = (
    "pause",
    "wake",
    "sleep",
    "quiet",
    "off",
)


class DmnCommands:
    """Handlers of `dmn`: orders are for the agent of that place; `status` shows all agents."""

    def __init__(
        self,
        loops: Sequence[AgentLoop],
        places: ConversationPrivacy,
        clock: Clock,
        *,
        agent_of: Callable[[Address], str],
        timezone: Callable[[], str],
    ) -> None:
        """`agent_of`: agent of a place. `timezone`: present time zone for times of day."""
        self._loops = loops
        self._places = places
        self._clock = clock
        self._agent_of = agent_of
        self._timezone = timezone

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {"dmn status": self.status, **{f"dmn {what}": partial(self._order, what) for what in _DMN_ORDERS}}

    async def status(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Show the state of each agent.

        Private conversations are only counted, except for an owner in a direct chat.
        """
        now = self._clock.now()
        response, _ = answer_order(DmnRequest(what="status", by=_format_author(call)), self._loops, now)
        places = [place for one in response.data for place in _mentioned_places(one)]
        private = await find_hidden(call, self._places, places)
        await self._places.titles.load(places)
        label = self._places.titles.label
        lines = [
            line for one in response.data for line in format_dmn_status(_hide_private_places(one, private, label), now)
        ]
        return CommandReply(text="\n".join(["```", *map(escape_code, lines), "```"]))

    async def _order(
        self, what: Literal["pause", "wake", "sleep", "quiet", "off"], call: CommandCall, _context: CommandContext
    ) -> CommandReply:
        now = self._clock.now()
        try:
            until = parse_until(call.arguments.get("until", ""), now, ZoneInfo(self._timezone()))
        except ScheduleError as error:
            return CommandReply(text=str(error), ok=False)
        order = DmnRequest(what=what, by=_format_author(call), agent=self._agent_of(call.command.at), until=until)
        response, todo = answer_order(order, self._loops, now)
        words = "\n".join(f"{line}." for line in response.lines)
        if not todo:
            return CommandReply(text=words, ok=response.ok)
        facts = [fact for one in todo for fact in self._build_facts(one)]
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, facts=tuple(facts), settle=partial(self._send_directives, todo)),
            ok=response.ok,
        )

    def _build_facts(self, order: DmnCommand) -> Sequence[EffectFact]:
        both: tuple[DmnDirective, DmnStateSaved] = build_directive_facts(
            self._find_loop(order.agent), order.directive, order.directed
        )
        return [EffectFact(fact, place=inner_conversation(order.agent)) for fact in both]

    def _find_loop(self, agent: str) -> AgentLoop:
        return next(loop for loop in self._loops if loop.id == agent)

    def _send_directives(self, todo: Iterable[DmnCommand], appended: AppendResult | None) -> None:
        if appended is not None and appended.is_new:
            for one in todo:
                self._find_loop(one.agent).send(one.directive)


class PendingCommands:
    """Handler of `pending`."""

    def __init__(self, reader: StoreReader, places: ConversationPrivacy) -> None:
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handler by command name."""
        return {"pending": self.pending}

    async def pending(self, call: CommandCall, _context: CommandContext) -> str:
        """List unread counts by conversation; private ones are only counted, except for an owner in a direct chat."""
        found = await self._reader.pending_counts()
        private = await find_hidden(call, self._places, (one.conversation for one in found))
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


def _format_author(call: CommandCall) -> str:
    return call.person[:_MAX_AUTHOR_CHARS]


def _mentioned_places(one: DmnStatus) -> Iterable[ConversationId]:
    return (*one.running, *one.waiting, *one.low, *(wish.conversation for wish in one.wanted))


def _hide_private_places(
    one: DmnStatus, private: Collection[ConversationId], label: Callable[[ConversationId], str]
) -> DmnStatus:
    """Return the status with titles of the first conversations; the others and private ones are only counted."""
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
    visible = [place for place in places if place not in private]
    counts = {"more": len(visible) - MAX_CONVERSATIONS, "private": len(places) - len(visible)}
    shown = [ConversationId(label(place)) for place in visible[:MAX_CONVERSATIONS]]
    return [*shown, *(ConversationId(f"{count} {what}") for what, count in counts.items() if count > 0)]


def _format_unread(some: Sequence[PendingCounts]) -> str:
    sums = {level: sum(getattr(one, level) for one in some) for level in _URGENCY_LEVELS}
    return ", ".join(f"{count} {level}" for level, count in sums.items() if count)


MAX_REMINDERS: Final = 20
"""Reminders of a place in one answer."""
MAX_REMINDER_CHARS: Final = 160
"""Characters of a reminder's text."""


class ReminderCommands:
    """Handlers of `remind`: people see the reminders of their conversation; admins in a direct chat also others."""

    def __init__(self, reminders: ReminderService, reader: StoreReader, places: ConversationPrivacy) -> None:
        self._reminders = reminders
        self._reader = reader
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {"remind list": self.list_reminders, "remind cancel": self.cancel}

    async def list_reminders(self, call: CommandCall, _context: CommandContext) -> str:
        """List the pending reminders, the next first."""
        here, elsewhere, private = await self._find_reminders(call)
        lines = [*map(self._format_reminder, here[:MAX_REMINDERS]), *_format_remaining(here)] or [
            "There are no reminders here."
        ]
        if elsewhere or private:
            others = [
                f"{self._format_reminder(one)}, in {format_place(one.conversation or inner_conversation(one.agent))}"
                for one in elsewhere[:MAX_REMINDERS]
            ]
            counted = [f"- {private} in private conversations"] if private else []
            lines += ["", "Elsewhere:", *others, *_format_remaining(elsewhere), *counted]
        return "\n".join(lines)

    async def cancel(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """End a reminder for good."""
        wanted = normalize_reminder_id(call.arguments["id"].strip(" `"))
        here, elsewhere, _ = await self._find_reminders(call)
        row = next((one for one in (*here, *elsewhere) if one.id == wanted), None)
        if row is None:
            return CommandReply(text=f"There is no reminder {inline_code(call.arguments['id'])} here.", ok=False)
        words = f"Reminder `{row.id}` is cancelled."
        fact = ReminderEnded(reminder=row.id, reason=f"cancelled by {call.person}")
        ended = EffectFact(fact, place=row.conversation or inner_conversation(row.agent))
        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=(ended,), settle=self._settle_cancel))

    async def suggest_ids(self, typed: CommandCompletion) -> list[str]:
        """Suggest reminders of that place, the next first."""
        return match_suggestions(
            [one.id for one in await self._reader.pending_reminders(typed.at.conversation)], typed.prefix
        )

    def _settle_cancel(self, appended: AppendResult | None) -> None:
        if appended is not None and appended.is_new:
            self._reminders.notify_changed()

    async def _find_reminders(self, call: CommandCall) -> tuple[list[PendingReminder], list[PendingReminder], int]:
        """Return the reminders of this place, those of others that may be shown here, and the number of the rest."""
        at = call.command.at.conversation
        if not (call.command.direct and call.global_role in ADMIN_ROLES):
            return list(await self._reader.pending_reminders(at)), [], 0
        rows = await self._reader.pending_reminders()
        others = [one for one in rows if one.conversation != at]
        private = await find_hidden(call, self._places, (one.conversation for one in others if one.conversation))
        visible = [one for one in others if one.conversation not in private]
        return [one for one in rows if one.conversation == at], visible, len(others) - len(visible)

    def _format_reminder(self, one: PendingReminder) -> str:
        requester = f", asked for by {inline_code(one.asked_by)}" if one.asked_by else ""
        text = inline_code(one.text, MAX_REMINDER_CHARS)
        return (
            f"- `{one.id}`: {format_due(one, self._reminders.timezone)}, "
            f"{describe_schedule_text(one.schedule)}{requester}: {text}"
        )


def _format_remaining(rows: Sequence[PendingReminder]) -> Sequence[str]:
    return [f"(and {len(rows) - MAX_REMINDERS} later ones)"] if len(rows) > MAX_REMINDERS else []


MAX_REASON_CHARS = 300
MAX_KEYS = 40
MAX_PROBLEMS = 20


class OperationsCommands:
    """Handlers of `restart` and `reload`."""

    def __init__(
        self, *, supervisor: ChannelSupervisor, stats: GatewayStats, live: LiveSettings, follow_up: CommandFollowUp
    ) -> None:
        self._supervisor, self._stats, self._live, self._follow_up = supervisor, stats, live, follow_up

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"restart": self.restart, "reload": self.reload}

    async def restart(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Reconnect a channel; the result is posted later, unless it is up."""
        written = call.arguments["channel"].strip("`")
        names = [one.channel for one in self._stats.snapshot().channels]
        found = [name for name in names if name.casefold() == written.casefold()]
        if not found:
            meant = " or ".join(map(inline_code, find_nearest(written, names) or names))
            return CommandReply(text=f"I have no channel {inline_code(written)}: there is {meant}.", ok=False)
        (name,) = found
        if self._supervisor.is_restarting(name):
            return CommandReply(text=f"{inline_code(name)} is being restarted already.", ok=False)
        words = f"I disconnect {inline_code(name)} and connect it again. If that does not work, I say so here."
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, settle=lambda appended: self._begin_restart(call, name, appended)),
        )

    def _begin_restart(self, call: CommandCall, name: ChannelName, appended: AppendResult | None) -> None:
        if appended is None or not appended.is_new:
            return

        async def on_result(result: RestartResult) -> None:
            if words := _render_restart(name, result):
                await self._follow_up.send(call.command, appended.seq, words, private=True)

        self._supervisor.start_restart(name, f"restarted by {call.person}", on_result)

    async def reload(self, _call: CommandCall, _context: CommandContext) -> CommandReply:
        """Read the configuration again, and list what changed: keys and places, never values."""
        result = await self._live.reload()
        return CommandReply(text="\n".join(_render_reload(result)), ok=not (result.problems or result.read_error))


def _render_restart(name: ChannelName, result: RestartResult) -> str:
    reason = inline_code(result.reason, MAX_REASON_CHARS)
    match result.state:
        case "refused":
            return f"{inline_code(name)} is refused, and stays off: {reason}."
        case "down":
            return f"{inline_code(name)} is not connected yet: {reason}. It goes on trying."
        case _:
            return ""


def _render_reload(result: ReloadResult) -> list[str]:
    if result.read_error:
        return [
            f"I cannot read the configuration: {inline_code(result.read_error, MAX_REASON_CHARS)}. What I had goes on."
        ]
    if result.problems:
        shown = [
            f"- {inline_code(single_line(str(one), MAX_REASON_CHARS), MAX_REASON_CHARS)}"
            for one in result.problems[:MAX_PROBLEMS]
        ]
        more = len(result.problems) - len(shown)
        rest = [f"- and {more} more; `reverie check-config` shows all."] if more else []
        return ["The configuration is broken, so what I had goes on:", *shown, *rest]
    lines = [f"Changed from now on: {_format_keys(result.applied)}."] if result.applied else []
    lines += (
        [f"Changed, but only after a restart: {_format_keys(result.after_restart)}."] if result.after_restart else []
    )
    return lines or ["The configuration says what it said before."]


def _format_keys(keys: tuple[str, ...]) -> str:
    shown = ", ".join(inline_code(key, MAX_REASON_CHARS) for key in keys[:MAX_KEYS])
    return f"{shown} and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else shown


class LimitedModelCommands:
    """Handlers that check the usage limits before `retry` and `compact`."""

    def __init__(
        self, take_or_explain: Callable[[Address, Sender, str, str], str], agent_of: Callable[[Address], str]
    ) -> None:
        """`take_or_explain`: as `gateway.access.limits.UsageLimiter.take_or_explain`. `agent_of`: agent of a place."""
        self._take_or_explain, self._agent_of = take_or_explain, agent_of

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"retry": self.retry, "compact": self.compact}

    async def retry(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Check the limits, then `info.handle_retry`."""
        return self._find_refusal(call) or await handle_retry(call, context)

    async def compact(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Check the limits, then `info.handle_compact`."""
        return self._find_refusal(call) or await handle_compact(call, context)

    def _find_refusal(self, call: CommandCall) -> CommandReply | None:
        at = call.command.at
        why = self._take_or_explain(at, call.command.sender, call.role, self._agent_of(at))
        return CommandReply(text=why, ok=False) if why else None


MAX_NAME_CHARS = 60
"""Characters shown of an unknown name."""
MAX_SUGGESTED_NAMES = 3
"""Names that are suggested where none is near."""


class ModelCommands:
    """Handlers of `stop` and `model`."""

    def __init__(self, agents: Agents, selector: ModelSelector) -> None:
        self._agents = agents
        self._selector = selector

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {
            "stop": self.stop,
            "model list": self.list_models,
            "model switch": self.switch,
            "model reset": self.reset,
        }

    async def stop(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Stop the running turn of this conversation."""
        change = await self._agents.plan_stop(call.command.at, call.person)
        return CommandReply(text=change.answer, effect=change, ok=change.answer != NOTHING_RUNNING)

    async def list_models(self, _call: CommandCall, _context: CommandContext) -> str:
        """List every configured model."""
        return "\n".join(f"- {_format_model(one)}" for one in self._selector.list_models())

    async def switch(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Choose another model."""
        name, known = call.arguments["name"].strip(), {one.name: one for one in self._selector.list_models()}
        if name not in known:
            meant = find_nearest(name, list(known)) or list(known)[:MAX_SUGGESTED_NAMES]
            there = " or ".join(f"`{_escape_line(one)}`" for one in meant)
            text = (
                f"There is no model `{_escape_line(name[:MAX_NAME_CHARS])}`. Did you mean {there}? `model "
                "list` shows all."
            )
            return CommandReply(text=text, ok=False)
        return self._choose(call, name)

    async def reset(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """Choose the configured model."""
        return self._choose(call, "")

    def _choose(self, call: CommandCall, name: str) -> CommandReply:
        command, before = (
            call.command,
            self._selector.wanted_model(self._selector.agent_id_for(call.command.at.conversation)),
        )
        request = ModelChoiceRequest(
            name=name,
            at=command.at,
            by=call.person,
            reply_to=MessageId(command.id) if command.origin == "text" else None,
        )
        change = self._selector.choose(request)
        known = {one.name: one for one in self._selector.list_models()}
        more = ""
        if change.facts and name in known and known[name].context_tokens < known[before].context_tokens:
            more = f" Its window is smaller, {known[name].context_tokens:,} tokens: what does not fit is folded."
        return CommandReply(text=change.answer + more, effect=change)


def _format_model(one: ConfiguredModel) -> str:
    called = f" `{_escape_line(one.model_name)}`" if one.model_name else ""
    parts = [
        f"`{_escape_line(one.name)}`: {one.kind}{called}",
        f"a window of {one.context_tokens:,} tokens, answers up to {one.max_output_tokens:,}",
        "price known" if one.has_price else "price not known",
    ]
    if one.takes_images:
        parts.append("sees images")
    if one.fallbacks:
        parts.append(f"falls back to {', '.join(f'`{_escape_line(name)}`' for name in one.fallbacks)}")
    if one.used_by:
        parts.append(f"in use by {', '.join(f'`{_escape_line(agent)}`' for agent in one.used_by)}")
    return "; ".join(parts)


def _escape_line(text: str) -> str:
    """Return a text as one line that cannot end the code around it."""
    return escape_code(" ".join(text.split()))
