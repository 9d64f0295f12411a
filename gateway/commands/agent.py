"""Commands about agents and the running gateway: `dmn`, `stop`, `compact`, `reload` and others."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, get_args
from zoneinfo import ZoneInfo

from channels.base import CommandCompletion
from channels.text import single_line
from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.commands.context import (
    OPERATOR_PLACE,
    CommandCall,
    CommandContext,
    find_hidden,
    follow_up_key,
    send_follow_up,
)
from gateway.commands.definition import command, make_arg
from gateway.commands.parser import escape_code, find_nearest, join_or
from gateway.config.reload import ReloadResult
from gateway.context.conversation import TURN_RUNNING
from gateway.core.control_messages import DmnStatus, WantedTurn
from gateway.core.events import (
    ChannelName,
    ConversationId,
    PresenceLevel,
)
from gateway.core.facts import (
    OPERATOR_CHANNEL,
    DmnDirective,
    Seq,
    inner_conversation,
)
from gateway.core.i18n import _
from gateway.core.moments import InvalidTime
from gateway.core.text_safety import inline_code
from gateway.runtime.agents import plan_stop
from gateway.runtime.dmn_admin import (
    PRESENCE_ORDER,
    direct_agents,
    format_dmn_status,
    parse_until,
    snapshot_dmn,
)
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.stream.supervisor import RestartState

COMPACT_TIMEOUT_S: Final = 8.0
"""Longest wait of an operator for a result; less than `gateway.core.process_files.ANSWER_S`."""
MAX_CONVERSATIONS: Final = 20
_PRESENCE_CHOICES: Final[Mapping[str, PresenceLevel | None]] = {
    **{level: level for level in get_args(PresenceLevel)},
    "auto": None,
}


async def _suggest_channels(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return list(context.gateway.channels)


async def _suggest_times(_typed: CommandCompletion, _context: CommandContext) -> list[str]:
    return ["30m", "1h", "2h", "4h", "8h", "1d", "07:30"]


_UNTIL_ARG: Final = make_arg(
    "until", "A time, such as 30m, 8h or 07:30.", rest=True, suggests=_suggest_times
)

DMN = command(
    "dmn",
    "Control what I do without being asked.",
    group="what I do",
    role="admin",
    needs_global_role=True,
    aliases=("pause", "quiet", "wake"),
)


@command("dmn status", "Show my state, and what I would do next.")
async def show_dmn(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Show each agent's state. Private conversations are only counted, except for an owner in a
    direct chat.
    """
    now = context.gateway.clock.now()
    loops = [
        loop for loop in context.agents.agents if not call.names_agent or call.agent == loop.id
    ]
    found = [snapshot_dmn(one, now) for one in loops]
    places = [
        place
        for one in found
        for place in (
            *one.running,
            *one.waiting,
            *one.low,
            *(wish.conversation for wish in one.wanted),
        )
    ]
    private = await find_hidden(call, context.gateway.places, places)
    await context.gateway.places.titles.load(places)
    label = context.gateway.places.titles.label
    shown = [_hide_private_places(one, private, label) for one in found]
    local = context.gateway.live.to_local(now)
    lines = [line for one in shown for line in format_dmn_status(one, now=local)]
    return done("\n".join(["```", *map(escape_code, lines), "```"]), data=found)


@command("dmn rest", "Stop what I am doing without being asked.", operator=True)
@command("dmn off", "Turn this off, also after a restart.")
@command(
    "dmn quiet",
    "Say nothing without being asked, for an hour or until a time.",
    args=(_UNTIL_ARG,),
)
@command(
    "dmn sleep",
    "Rest until dmn wake, or until a time.",
    args=(_UNTIL_ARG,),
)
@command("dmn wake", "Continue after a pause or a rest.")
@command("dmn pause", "Do nothing without being asked, until dmn wake.")
async def direct_dmn(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Give the order that the subcommand names to the agent of that place; to all, if the operator
    names no place."""
    now, (until_text, __, types) = (
        context.gateway.clock.now(),
        f" {call.arguments.get('until', '')}".partition(" on "),
    )
    what = call.sub
    if what == "quiet" and until_text.strip() == "off":
        what, until_text = "wake", ""
    zone = ZoneInfo(context.gateway.live.settings.dmn.timezone)
    try:
        until = parse_until(until_text, now, zone)
    except InvalidTime as error:
        return refuse(str(error))
    loops = {loop.id: loop for loop in context.agents.agents}
    everyone = call.is_operator and not call.names_agent and call.command.at == OPERATOR_PLACE
    wanted = list(loops.values()) if everyone else [loops[call.agent]]
    lines, statuses, todo = direct_agents(
        what, wanted, now, by=call.author, until=until, on=tuple(types.split()), zone=zone
    )
    words, ok = "\n".join(f"{line}." for line in lines), len(todo) == len(lines)
    facts = [
        EffectFact(fact, place=inner_conversation(fact.agent)) for pair in todo for fact in pair
    ]
    return replace(done(words, *facts, data=statuses), ok=ok)


@command(
    "dmn presence",
    "Set by hand whether people are here, until auto or a restart.",
    args=(make_arg("level", "The presence of people.", *_PRESENCE_CHOICES, needed=True),),
    needs_gateway=True,
    operator=True,
)
async def set_presence(call: CommandCall, context: CommandContext) -> CommandEffect:
    level = _PRESENCE_CHOICES[call.arguments["level"]]
    words = (
        _("I work out the presence of people from what they do.")
        if level is None
        else _("I take people as {presence}, until `auto` or a restart.").format(presence=level)
    )
    facts = [
        EffectFact(
            DmnDirective(agent=loop.id, what=f"{PRESENCE_ORDER}{level or 'auto'}", by=call.author),
            place=inner_conversation(loop.id),
        )
        for loop in context.agents.agents
    ]
    return done(words, *facts)


def _hide_private_places(
    one: DmnStatus, private: Collection[ConversationId], label: Callable[[ConversationId], str]
) -> DmnStatus:
    """Return the status with titles of the first conversations; the others and private ones are
    only counted.
    """
    lists = {
        name: tuple(_label_places(getattr(one, name), private, label))
        for name in ("running", "waiting", "low")
    }
    wanted = [
        WantedTurn(conversation=place, why=why)
        for why in dict.fromkeys(wish.why for wish in one.wanted)
        for place in _label_places(
            [wish.conversation for wish in one.wanted if wish.why == why], private, label
        )
    ]
    return one.model_copy(update={**lists, "wanted": tuple(wanted)})


def _label_places(
    places: Sequence[ConversationId],
    private: Collection[ConversationId],
    label: Callable[[ConversationId], str],
) -> list[ConversationId]:
    visible = [place for place in places if place not in private]
    counts = {"more": len(visible) - MAX_CONVERSATIONS, "private": len(places) - len(visible)}
    shown = [ConversationId(label(place)) for place in visible[:MAX_CONVERSATIONS]]
    return [
        *shown,
        *(ConversationId(f"{count} {what}") for what, count in counts.items() if count > 0),
    ]


MAX_REASON_CHARS = 300


@command(
    "restart",
    "Disconnect a channel and connect it again.",
    group="how I run",
    args=(
        make_arg(
            "channel",
            "The name of the channel.",
            needed=True,
            suggests=_suggest_channels,
        ),
    ),
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def restart_channel(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Reconnect a channel; the result is posted later, unless it is up."""
    written = call.arguments["channel"].strip("`")
    here = [one.channel for one in context.supervisor.stats.snapshot().channels]
    names = list(
        dict.fromkeys(
            [*here, *(name for name in context.gateway.channels if name != OPERATOR_CHANNEL)]
        )
    )
    found = [name for name in names if name.casefold() == written.casefold()]
    if not found:
        meant = join_or(list(map(inline_code, find_nearest(written, names) or names)))
        text = _("I have no channel {channel}. Did you mean {names}?").format(
            channel=inline_code(written), names=meant
        )
        return refuse(text)
    (name,) = found
    if not context.gateway.channels.holds(name):
        return refuse(_(HELD_ELSEWHERE))
    if context.supervisor.is_restarting(name):
        return refuse(_("{channel} is already restarting.").format(channel=inline_code(name)))
    words = _(
        "I disconnect {channel} and connect it again. If that fails, I tell you here."
    ).format(channel=inline_code(name))
    return done(words, then=lambda cause: _begin_restart(context, call, name, cause))


def _begin_restart(
    context: CommandContext, call: CommandCall, name: ChannelName, cause: Seq
) -> None:
    texts = {
        "refused": _("The platform refuses the connection of {channel}: {reason}. I keep trying."),
        "down": _("{channel} is not connected yet: {reason}. I keep trying."),
    }

    async def on_result(state: RestartState, reason: str) -> None:
        if text := texts.get(state):
            why = inline_code(reason, MAX_REASON_CHARS)
            words = text.format(channel=inline_code(name), reason=why)
            await send_follow_up(context.gateway, call, cause, words)

    context.supervisor.start_restart(name, f"restarted by {call.person}", on_result)


@command(
    "reload",
    "Read the configuration again.",
    group="how I run",
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def reload_settings(_call: CommandCall, context: CommandContext) -> CommandEffect:
    """Read the configuration again, and list what changed: keys and places, never values."""
    result = await context.gateway.live.reload()
    text = "\n".join(_render_reload(result))
    return refuse(text) if result.problems or result.read_error else done(text)


def _render_reload(result: ReloadResult) -> list[str]:
    if result.read_error:
        text = _(
            "I cannot read the configuration: {reason}. I go on with the settings that I have."
        )
        return [text.format(reason=inline_code(result.read_error, MAX_REASON_CHARS))]
    if result.problems:
        return [
            _("The configuration has errors, so I go on with the settings that I have:"),
            *(
                f"- {inline_code(single_line(str(one), MAX_REASON_CHARS), MAX_REASON_CHARS)}"
                for one in result.problems
            ),
        ]
    if result.after_restart:
        text = _("These keys need a restart, and all other changes wait for it: {keys}.")
        return [text.format(keys=_format_keys(result.after_restart))]
    if result.applied:
        return [_("Changed, in force now: {keys}.").format(keys=_format_keys(result.applied))]
    return [_("I read the configuration again. Nothing in it has changed.")]


def _format_keys(keys: tuple[str, ...]) -> str:
    return ", ".join(inline_code(key, MAX_REASON_CHARS) for key in keys)


@command(
    "compact",
    "Shorten what I see of this conversation, now.",
    group="this conversation",
    role="admin",
    allowed_in_own_chat=True,
    needs_gateway=True,
    asks_model=True,
    private=False,
)
async def compact_view(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Compact the view. The result is posted later; the operator waits for it."""
    agents, place = context.agents, call.command.at.conversation
    if not agents.holds(place):
        return refuse(_(HELD_ELSEWHERE))
    if agents.room_locks.lock_for(place).locked():
        return refuse(_(TURN_RUNNING))
    if call.is_operator:
        task = agents.compact(place)
        await asyncio.wait({task}, timeout=COMPACT_TIMEOUT_S)
        if task.done() and not task.cancelled():
            return done(task.result())
        return done(_("I am still working on it. The log will show the result."))

    async def follow_up(cause: Seq) -> None:
        text = await agents.compact(place)
        await send_follow_up(context.gateway, call, cause, text, private=False)

    return done(
        _("I am shortening what I see of this conversation. I tell you the result here."),
        then=lambda cause: context.gateway.tasks.create_task(follow_up(cause)),
    )


@command(
    "stop",
    "Stop what I am doing here.",
    group="this conversation",
    role="admin",
    allowed_in_own_chat=True,
    needs_gateway=True,
    private=False,
)
async def stop_turn(call: CommandCall, context: CommandContext) -> CommandEffect:
    said = follow_up_key(call.command, "stopped") if call.is_operator else None
    return await plan_stop(context.agents, call.command.at, call.author, said)


@command(
    "kill",
    "End the tool that runs here. My answer continues.",
    group="this conversation",
    role="admin",
    needs_gateway=True,
    operator=True,
)
async def kill_tools(call: CommandCall, context: CommandContext) -> CommandEffect:
    names = context.agents.registry.running.kill(call.command.at.conversation)
    if not names:
        return refuse(_("No tool runs there."))
    return done(_("I ended {tools}. My answer continues.").format(tools=", ".join(names)))
