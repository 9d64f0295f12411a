"""Command dispatcher: from a command to its judgement, its answer and its audit record.

The answer and the changes of a command are known before anything is appended. So the command, its
judgement, the answer and its facts become durable together, and a command that is received twice is
answered once and changes something once.

Administrative commands are recorded, allowed and refused. Nobody can fill the log with refusals: of
somebody without an administrative role there is one a minute.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter

from channels.aio import is_cancellation
from channels.base import CanCompleteCommands, CommandCompletion
from gateway.access.limits import UsageLimiter
from gateway.access.policy import AccessDecision, Routed, decide
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import OPERATOR_PLACE, CommandCall, CommandContext
from gateway.commands.definition import CommandDefinition, SuggestedArg, find_available
from gateway.commands.info import answer_unknown_command, find_next_page
from gateway.commands.parser import (
    SHORTCUTS,
    InvalidArguments,
    ParsedArguments,
    ParsedCommand,
    join_words,
    mask_secrets,
    parse_arguments,
)
from gateway.core.clock import new_id
from gateway.core.control_messages import (
    OPERATOR,
    OPERATOR_EVIDENCE,
    CommandRequest,
    ControlResponse,
)
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    EventId,
    MessageId,
    Post,
    PostKey,
    Sender,
    SenderId,
)
from gateway.core.facts import AMBIENT, LOW, URGENT, AuditRecord, dedup_key
from gateway.core.format import format_duration, format_time
from gateway.core.i18n import _, current_language
from gateway.core.identity import ADMIN_ROLES, Role, identify, person_key, stable_source
from gateway.core.process_files import GatewayNotRunning
from gateway.core.ratelimit import SlidingWindows
from gateway.core.redaction import Redactor
from gateway.core.removed import find_removed
from gateway.core.text_safety import one_line
from gateway.store import AppendResult, LogEntry, StoreError
from gateway.store.effects import CommandEffect, Decision, EffectFact, build_effect_entries, refuse
from gateway.stream.again import find_uncertain_posts

logger = logging.getLogger("reverie.commands")

MAX_OVERHEARD_MORE_AGE = timedelta(minutes=5)
"""Time after a page in which an unaddressed "more" in a room asks for the next one."""
MAX_COMMAND_AGE_S = 60.0
"""Seconds in which an acting command is carried out; later, its reason may be gone."""
ANSWER_TIMEOUT_S = 5.0
"""Seconds for a handler: longer than a busy disk takes. No other event of the channel is processed
meanwhile."""
OPERATOR_TIMEOUT_S = 9.0
"""Seconds for a handler that the operator waits for; less than
`gateway.core.process_files.ANSWER_S`."""
SHELL_PREFIX: Final = "reverie ctl "
_DATA: Final[TypeAdapter[Any]] = TypeAdapter(Any)
MAX_LINE_CHARS: Final = 200
"""Longest arguments, and longest answer, in an audit record."""
_TOO_MANY: Final = "commands.per_minute"
"""Rule of a command that is not answered because there were too many."""
_MAX_REFUSALS_PER_MINUTE: Final = 1
"""Refusals recorded in a minute for each person."""


class CommandDispatcher:
    """Finds, checks and answers commands."""

    def __init__(self, context: CommandContext, limits: UsageLimiter) -> None:
        """Answer the commands of the context."""
        self._context, self._gateway, self._limits = context, context.gateway, limits
        self.commands = context.commands.people
        """Those of people, by every name."""
        self.operator_commands = context.commands.operator
        """Those that `carry_out` knows, by every name."""
        self._rate_limiter = SlidingWindows()
        self._explained = SlidingWindows()
        self._recorded_refusals = SlidingWindows()
        self._offer_completion(context.gateway.channels)
        context.gateway.store.subscribe(self._on_link, ConnectionChanged)

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        """Complete the commands of a channel that was added while the gateway runs, too."""
        self._offer_completion(
            {entry.fact.channel for entry in entries if isinstance(entry.fact, ConnectionChanged)}
        )

    def _offer_completion(self, names: Iterable[ChannelName]) -> None:
        for name in names:
            channel: object = self._gateway.channels.get(name)
            if isinstance(channel, CanCompleteCommands):
                channel.set_completer(partial(suggest_values, self._context))

    async def confirm(self, read: ParsedCommand) -> Command | None:
        """Return the command that was read. None: it is an ordinary message after all."""
        command = read.command
        if read.only_if_more and not await self._has_more(read):
            return None
        if read.only_if_allowed:
            access = decide(self._gateway.people, command)
            alone = self.commands[command.name].direct_only and not command.direct
            return None if alone or self._find_refusal(command, access) else command
        return command

    async def _has_more(self, read: ParsedCommand) -> bool:
        """Return whether there is something to show for a bare `more` or `again`, which may be an
        ordinary word.
        """
        command = read.command
        if not decide(self._gateway.people, command).allowed:
            return False
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                if command.name == "again":
                    return bool(
                        await find_uncertain_posts(self._gateway.store, command.at.conversation)
                    )
                max_age = MAX_OVERHEARD_MORE_AGE if read.is_unaddressed else timedelta.max
                return (
                    await find_next_page(self._context, command, only_newest=True, max_age=max_age)
                    is not None
                )
        except Exception:  # as for a handler; the word is then an ordinary message
            logger.exception(
                "whether there is more to show in %s cannot be told", command.at.conversation
            )
            return False

    async def judge(self, routed: Routed, decided: Decision) -> Decision | None:
        """Check and answer a command. Raises only on cancellation: the failure of a handler is
        answered too.

        Append the `effect` of a decision before anything else is decided, then settle it.
        """
        command, access = routed.event, routed.access
        assert isinstance(command, Command)
        command = replace(
            command, args=self._gateway.redactor(command.args)
        )  # answers quote them: no secrets
        payload = command.args if command.name == "start" else ""
        if payload:  # of a Telegram link: it is no argument
            command = replace(command, args="")
        row = self.commands.get(command.name)
        now_s = self._gateway.clock.monotonic()
        if refusal := self._find_refusal(command, access):
            return Decision(
                judgement=replace(decided.judgement, fate="refused", rule=refusal),
                effect=self._record_refusal(row, command, access, refusal, now_s),
            )
        judged = replace(decided.judgement, urgency=LOW, rule="no such command")
        tapped = command.origin == "button"
        # An unknown one is answered only where nobody else can be meant.
        if row is None and (tapped or not command.direct):
            return Decision(judgement=judged)
        trusted = access.role in ADMIN_ROLES  # administrators may send many in a minute
        most = self._gateway.live.settings.commands.per_minute
        if not trusted and not self._rate_limiter.try_add(_sender_key(command), now_s, most):
            return Decision(judgement=replace(judged, rule=_TOO_MANY))
        prefix = self._gateway.channels.command_prefix(command.at.channel)
        call = self._build_call(self.commands, command, access, prefix)
        parsed = None if row is None else parse_arguments(row, command.args)
        obstacle = self._find_obstacle(row, call, parsed)
        if row is None or obstacle:
            answer = refuse(obstacle)
        else:
            assert isinstance(parsed, ParsedArguments)
            answer = await self._call_handler(row, call, parsed, ANSWER_TIMEOUT_S)
        is_changed = bool(answer.facts)
        if row is not None and row.is_administrative:
            key = f"audited:{dedup_key(command)}"
            record = EffectFact(
                self._build_record(row, command, answer.answer, ok=answer.ok), key=key
            )
            answer = replace(answer, facts=(*answer.facts, record))
        meant = row if parsed is None or parsed.sub is None else parsed.sub
        private = (
            tapped or meant is None or (meant.private if answer.private is None else answer.private)
        )
        to = (
            self._gateway.channels.private_address(command.at, command.sender)
            if private and not (command.direct or tapped)
            else command.at
        )
        post = Post(
            key=answer_key(command),
            to=to,
            text=self._finish_text(answer.answer),
            reply_to=MessageId(command.id) if to == command.at else None,
            style="notice" if to != command.at or (tapped and is_changed) else "message",
            # In pages only for whoever may ask for the next one in a direct chat.
            private=private and (to == command.at or trusted),
            page=answer.page,
            buttons=answer.buttons if self._shows_choices(command, to) else (),
            language=current_language(),
        )
        if row is not None:
            judged = replace(judged, rule=f"command {row.name}")
        if row is not None and row.asks_model and not obstacle:
            judged = replace(judged, urgency=URGENT)
        if payload:
            judged = replace(
                judged, fate="context", urgency=AMBIENT, rule="they came by a link with a word"
            )
        return Decision(judgement=judged, post=post, effect=answer if answer.changes else None)

    def _shows_choices(self, command: Command, to: Address) -> bool:
        """Return whether an answer to this command, posted there, may have buttons: they act where
        they are tapped.
        """
        channel, agent = self._gateway.channels.get(to.channel), self._context.agent_at
        can_show = (
            command.origin != "button" and channel is not None and channel.capabilities.buttons
        )
        return can_show and (to == command.at or agent(to) == agent(command.at))

    async def explain(self, routed: Routed, decided: Decision) -> Decision | None:
        """Answer a command without an answer. None: nothing is said.

        A tap waits for one, and so does a command where the platform defers commands. Who sends
        too many commands is told so once a minute. Who may talk to the agent but may not use the
        command is told what it needs, once a minute: alone, or where they took the command from a
        menu. A line in a room that looks like a command may be for another bot.
        """
        command, access = routed.event, routed.access
        if decided.post is not None or not isinstance(command, Command):
            return None
        channel, row = (
            self._gateway.channels.get(command.at.channel),
            self.commands.get(command.name),
        )
        refused, tapped = decided.judgement.fate == "refused", command.origin == "button"
        deferred = (
            command.origin == "native"
            and channel is not None
            and channel.capabilities.defers_commands
        )
        is_heard = access.role != "blocked" and not command.sender.is_bot
        to = command.at
        if not tapped and not (deferred and is_heard):
            to = self._gateway.channels.private_address(command.at, command.sender)
            is_for_us = command.direct or command.origin == "native" or to != command.at
            is_told = (refused and is_for_us) or decided.judgement.rule == _TOO_MANY
            now_s = self._gateway.clock.monotonic()
            if not (is_told and is_heard and access.allowed and row is not None):
                return None
            if not self._explained.try_add(_sender_key(command), now_s, _MAX_REFUSALS_PER_MINUTE):
                return None
        if not refused:
            unknown = (
                _("I do not know this button.") if tapped else _("I do not know that command.")
            )
            text = (
                unknown if row is None else _("That was too much at once. Try again in a minute.")
            )
        elif access.allowed and row is not None:
            text = (
                _("This command needs the role {role} or above in all places.")
                if row.find_meant(command.args).needs_global_role
                else _("This command needs the role {role} or above.")
            ).format(role=row.role)
        else:
            text = _("I am not allowed to answer you here.")
        post = Post(
            key=answer_key(command),
            to=to,
            text=text,
            reply_to=MessageId(command.id) if to == command.at else None,
            private=to == command.at and (tapped or not deferred),
            style="message" if to == command.at else "notice",
        )
        return replace(decided, post=post)

    def _find_refusal(self, command: Command, access: AccessDecision) -> str:
        """Return why this person may not use the command. Empty: they may, or it is unknown."""
        row = self.commands.get(command.name)
        if not access.allowed:
            return access.rule
        if command.sender.is_bot:
            return "bots give no commands"
        if row is None:
            return ""
        row = row.find_meant(command.args)
        if row.is_allowed_for(access.role, direct=command.direct, everywhere=access.global_role):
            return ""
        places = (
            " in all places" if row.needs_global_role and access.role != access.global_role else ""
        )
        return f"command {command.name} is for {row.role} and above{places}"

    def _find_late_notice(self, row: CommandDefinition, command: Command, prefix: str) -> str:
        age_s = (self._gateway.clock.now() - command.sent).total_seconds()
        if age_s <= MAX_COMMAND_AGE_S:
            return ""
        return _(
            "Your `{command}` of {time} reached me {late} late, so I did not run it. Send it again "
            "if you still want it."
        ).format(
            command=f"{prefix}{row.name}",
            time=format_time(command.sent),
            late=format_duration(age_s),
        )

    def _build_call(
        self,
        rows: Mapping[str, CommandDefinition],
        command: Command,
        decision: AccessDecision,
        prefix: str,
    ) -> CommandCall:
        available = find_available(rows, decision.role, decision.global_role, direct=command.direct)
        return CommandCall(
            command=command,
            role=decision.role,
            global_role=decision.global_role,
            prefix=prefix,
            available=available,
            agent=self._context.agent_at(command.at),
        )

    def _find_obstacle(
        self,
        row: CommandDefinition | None,
        call: CommandCall,
        parsed: ParsedArguments | InvalidArguments | None,
    ) -> str:
        """Return why a permitted command is not carried out: its time, its place or its arguments.
        Empty: it is.

        `row` None: it is unknown.
        """
        command, prefix = call.command, call.prefix
        if row is None:
            return answer_unknown_command(call, command.name)
        if (row.is_administrative or row.name == "link") and (
            late := self._find_late_notice(row, command, prefix)
        ):
            return late
        if row.direct_only and not command.direct:
            return _("`{command}` works only in a direct chat with me.").format(
                command=f"{prefix}{row.name}"
            )
        if isinstance(parsed, InvalidArguments):
            return _explain_invalid(row, command, parsed, prefix)
        return (
            self._limits.take_or_explain(command, call.role, call.agent) if row.asks_model else ""
        )

    async def _call_handler(
        self,
        row: CommandDefinition,
        call: CommandCall,
        parsed: ParsedArguments,
        timeout_s: float,
    ) -> CommandEffect:
        handling = parsed.sub or row
        handler = handling.handler
        assert handler is not None
        try:
            async with asyncio.timeout(timeout_s):
                call = replace(
                    call, sub=parsed.sub.name if parsed.sub else "", arguments=parsed.arguments
                )
                return await handler(call, self._context)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            # A bug, or an unreadable store: the stream goes on, and the sender is answered.
            reference = answer_key(call.command)[:8]
            of = f" of plugin {handling.plugin}" if handling.plugin else ""
            logger.exception("command %s%s broke (reference %s)", row.name, of, reference)
            if handling.plugin and not isinstance(error, StoreError | TimeoutError):
                what = f"command {row.name}"
                self._context.plugins.record_failure(handling.plugin, what, error)
            text = _(
                "An error in my program stopped this command. Try again; if it happens twice, tell "
                "my operator."
            )
            if call.role in ADMIN_ROLES:
                text = _(
                    "An error in my program stopped this command. Search my log for {reference}."
                )
            return refuse(text.format(reference=reference))

    def _finish_text(self, text: str) -> str:
        return self._gateway.places.titles.add_titles(self._gateway.redactor(text))

    def _record_refusal(
        self,
        row: CommandDefinition | None,
        command: Command,
        decision: AccessDecision,
        rule: str,
        now_s: float,
    ) -> CommandEffect | None:
        """Return the record of a refused use. None: not administrative, or too many."""
        if row is None or not row.is_administrative:
            return None
        trusted = decision.role in ADMIN_ROLES and not command.sender.is_bot
        who = person_key(command.at.channel, command.sender.id)
        if not trusted and not self._recorded_refusals.try_add(
            who, now_s, _MAX_REFUSALS_PER_MINUTE
        ):
            return None
        record = self._build_record(row, command, f"refused: {rule}", ok=False)
        return CommandEffect(
            answer="", facts=(EffectFact(record, key=f"audited:{dedup_key(command)}"),)
        )

    def _build_record(
        self, row: CommandDefinition, command: Command, result: str, *, ok: bool
    ) -> AuditRecord:
        redactor = self._gateway.redactor
        who = identify(self._gateway.people, command.at, command.sender)
        return AuditRecord(
            what=row.name,
            by=person_key(command.at.channel, command.sender.id),
            name=one_line(redactor(command.sender.name), 64),
            evidence=describe_evidence(command),
            role=who.role,
            rule=who.rule,
            at=command.at,
            args=one_line(redactor(mask_secrets(row, command.args)), MAX_LINE_CHARS),
            ok=ok,
            result=one_line(redactor(_first_line(result)), MAX_LINE_CHARS),
        )

    def _build_operator_record(
        self,
        row: CommandDefinition,
        command: Command,
        order: CommandRequest,
        result: str,
        *,
        ok: bool,
    ) -> AuditRecord:
        return replace(
            self._build_record(row, command, result, ok=ok),
            by=OPERATOR,
            evidence=OPERATOR_EVIDENCE,
            role=OPERATOR,
            rule="runs the gateway",
            at=command.at if order.place else None,
        )

    async def carry_out(
        self,
        order: CommandRequest,
        *,
        stopped: bool = False,
        role: Role = "owner",
    ) -> ControlResponse:
        """Carry out what the operator orders from the shell or through the API, which is audited.

        `stopped`: the gateway is not running, only its store is open. `role`: admin for those whom
        the operator lets do only what an admin may. Raises
        GatewayNotRunning for a command that needs a running one, StoreError: then nothing is done.
        """
        context, now = self._context, self._gateway.clock.now()
        try:
            at = Address.parse(order.place) if order.place else OPERATOR_PLACE
        except ValueError:
            return _refuse(f"{order.place} is not a conversation: write it as the log shows it")
        known = [agent.id for agent in context.agents.agents]
        if order.agent and order.agent not in known:
            return _refuse(f"there is no agent {order.agent}; the agents are {', '.join(known)}")
        name, *words = (*SHORTCUTS.get(order.words[0].lower(), order.words[:1]), *order.words[1:])
        row = context.commands.operator.get(name.lower())
        command = Command(
            id=EventId(new_id(now)),
            at=at,
            sender=Sender(id=SenderId(OPERATOR), name=order.by, verified=True),
            name=row.name if row is not None else name,
            args=context.gateway.redactor(join_words(row, words)) if row is not None else "",
            sent=now,
            origin="native",
            direct=not order.place
            or await context.gateway.places.is_direct(at.conversation) is True,
        )
        decision = AccessDecision(
            allowed=True, role=role, rule="it runs the gateway", global_role=role
        )
        call = self._build_call(context.commands.operator, command, decision, SHELL_PREFIX)
        call = replace(
            call,
            is_operator=True,
            agent=order.agent or call.agent,
            names_agent=bool(order.agent),
        )
        if row is None:
            return _refuse(answer_unknown_command(call, name), understood=False)
        if not row.is_allowed_for(role, direct=True, everywhere=role):
            why = f"`{row.name}` needs the role {row.role}, and you have {role}"
            refused = self._build_operator_record(row, command, order, why, ok=False)
            facts = (EffectFact(refused),) if row.is_administrative else ()
            if entries := build_effect_entries(facts, [None] * len(facts), at=now, place=None):
                await context.gateway.store.append(entries)
            return _refuse(why)
        parsed = parse_arguments(row, command.args)
        if isinstance(parsed, InvalidArguments):
            return _refuse(_explain_invalid(row, command, parsed, SHELL_PREFIX), understood=False)
        if stopped and (parsed.sub or row).needs_gateway:
            raise GatewayNotRunning(
                f"`{row.name}` needs a running gateway; none is running with the store "
                f"{context.gateway.store.path}: start it"
            )
        answer = await self._call_handler(row, call, parsed, OPERATOR_TIMEOUT_S)
        record = self._build_operator_record(row, command, order, answer.answer, ok=answer.ok)
        facts = (*((EffectFact(record),) if row.is_administrative else ()), *answer.facts)
        here = at.conversation if order.place else None
        entries = build_effect_entries(facts, [None] * len(facts), at=now, place=here)
        written: Sequence[AppendResult] = ()
        try:
            written = await context.gateway.store.append(entries) if entries else ()
        finally:
            answer.settle(
                written[0] if written and not stopped else None
            )  # nothing follows where nothing runs
        lines = tuple(self._finish_text(answer.answer).split("\n"))
        if stopped and answer.ok and row.is_administrative:
            lines += (
                "The gateway is not running. "
                + (
                    "This takes effect at its next start."
                    if answer.facts
                    else "This is its saved state."
                ),
            )
        return ControlResponse(
            ok=answer.ok,
            lines=lines,
            data=_redact_data(
                _DATA.dump_python(answer.data, mode="json"), context.gateway.redactor
            ),
        )


def _refuse(why: str, *, understood: bool = True) -> ControlResponse:
    return ControlResponse(ok=False, understood=understood, lines=tuple(why.split("\n")))


def _explain_invalid(
    row: CommandDefinition, command: Command, wrong: InvalidArguments, prefix: str
) -> str:
    gone = find_removed([row.name, *command.args.lower().split()[:1]])
    return _(gone) if gone else help.explain_invalid_arguments(row, wrong, prefix)


def _redact_data(data: object, redactor: Redactor) -> object:
    if isinstance(data, str):
        return redactor(data)
    if isinstance(data, dict):
        return {key: _redact_data(value, redactor) for key, value in data.items()}
    return [_redact_data(value, redactor) for value in data] if isinstance(data, list) else data


def _sender_key(command: Command) -> str:
    return stable_source(person_key(command.at.channel, command.sender.id))


def answer_key(command: Command) -> PostKey:
    """Return the key of the post that answers a command: always the same, as long as a ULID."""
    return PostKey(hashlib.sha256(dedup_key(command).encode()).hexdigest()[:26])


def describe_evidence(command: Command) -> str:
    """Return on what evidence the sender is who they are."""
    sender = command.sender
    who = f"account {sender.account}" if sender.account else f"id {sender.id}"
    vouched = "vouched for by the platform" if sender.verified else "which nobody vouches for"
    how = {
        "native": "by the platform's own command",
        "text": "in writing",
        "button": "by a button",
    }[command.origin]
    return one_line(f"{who}, {vouched}; {'a bot; ' if sender.is_bot else ''}{how}", MAX_LINE_CHARS)


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip("` ")), "")


# Suggestions for native commands that somebody is typing: for people who may use the command, never
# for guests

MAX_CHOICES: Final = 25
MAX_CHOICE_CHARS: Final = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object-application-command-option-choice-structure
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Any time: access does not depend on it."""


async def suggest_values(context: CommandContext, typed: CommandCompletion) -> Sequence[str]:
    """Return at most 25 suggestions of at most 100 characters. Raises what the argument's source
    raises.
    """
    row = context.commands.people.get(typed.name)
    given = Command(
        id=EventId("typed"),
        at=typed.at,
        sender=typed.sender,
        name=typed.name,
        args="",
        sent=_EPOCH,
        origin="native",
        direct=typed.direct,
    )
    decision = decide(context.gateway.people, given)
    may_use = decision.allowed and decision.role != "guest" and not typed.sender.is_bot
    if row is None or not may_use or (row.direct_only and not typed.direct):
        return ()
    row = row.find_sub(typed.sub) or row
    if not row.is_allowed_for(decision.role, direct=typed.direct, everywhere=decision.global_role):
        return ()
    arg = next((one for one in row.args if one.name == typed.arg), None)
    if not isinstance(arg, SuggestedArg):
        return ()
    found = await arg.source(typed, context) if arg.source is not None else arg.choices
    return rank_suggestions(found, typed.prefix)


def rank_suggestions(suggestions: Iterable[str], prefix: str) -> list[str]:
    """Return the suggestions that begin with the given text, then those that contain it."""
    wanted = prefix.strip(" `").casefold()
    usable = [
        one
        for one in dict.fromkeys(suggestions)
        if 0 < len(one) <= MAX_CHOICE_CHARS and one.isprintable()
    ]
    first = [one for one in usable if one.casefold().startswith(wanted)]
    others = [one for one in usable if wanted in one.casefold() and one not in first]
    return [*first, *others][:MAX_CHOICES]
