"""What the commands answer. Each reads, and returns Markdown; what it may look at is the `CommandContext` it is given.

A handler may fail with any exception: the desk answers for it. It changes nothing by itself: of what is to change it
hands the facts over (`CommandReply.change`), to be written down with its answer.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, timedelta

from gateway import ledger
from gateway.commands import approve, context, help  # noqa: A004 - the command has this name
from gateway.commands.parse import find_nearest
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.doubts import find_uncertain_posts
from gateway.events import Address, Command, ConversationId, Post, SenderId
from gateway.ops.report import describe_channel, format_duration, format_time
from gateway.standing import ADMIN_ROLES, ROLE_ORDER
from gateway.store import SpendingSum
from gateway.why import explain_event

MAX_POSTS_SEARCHED = 10
"""So far back is looked for a long answer that has a next page."""
RECENT_REQUESTS = 50
"""Requests of a conversation among which a miss is looked for."""
MONTH_DAYS = 30
MAX_ROOMS_LISTED = 5
"""Rooms that are told by name."""

_HOST = re.compile(r" at \S+?(?=,|$)")
"""Behind a model's name, as `agent.models.base.Model.label` has it."""

PlaceFilter = Callable[[list[ConversationId]], Awaitable[list[ConversationId]]]
"""Those of some conversations that may be named."""


async def hide_all_places(_places: list[ConversationId]) -> list[ConversationId]:
    """None of them."""
    return []


async def handle_help(ask: CommandCall, world: CommandContext) -> str:
    """All that this person may use, or one command in full, or one thing that it can do."""
    prefix = world.prefixes[ask.command.at.channel]
    wanted = ask.arguments.get("command", "").removeprefix(prefix).lower()
    if not wanted:
        return help.render_command_list(ask.available_commands(), prefix)
    row = COMMANDS_BY_NAME.get(wanted)
    if row is None or row not in ask.available_commands():
        return answer_unknown_command(ask, wanted, prefix)
    named = ask.arguments.get("sub", "")
    sub = row.find_sub(named.lower())
    return (
        help.explain_unknown_sub(row, named, prefix) if named and sub is None else help.render_command(row, prefix, sub)
    )


def answer_unknown_command(ask: CommandCall, name: str, prefix: str) -> str:
    """There is no such command: the nearest ones that this person may use."""
    return help.explain_unknown_command(find_nearest(name, [row.name for row in ask.available_commands()]), prefix)


async def handle_about(ask: CommandCall, world: CommandContext) -> str:
    """The truth about what is speaking."""
    contact = world.operator_contact(ask.command.at.channel)
    lines = [
        "I am a bot, not a person: a program that answers with a language model.",
        f"Model: {_format_model(ask, world)}.",
    ]
    lines.append(f"Who runs me: {contact}" if contact else "Who runs me has left no contact here.")
    if prefix := world.prefixes[ask.command.at.channel]:
        lines.append(f"`{prefix}help` lists what I can be asked.")
    return "\n".join(lines)


def _format_model(ask: CommandCall, world: CommandContext) -> str:
    """What answers people. Where it runs is told to those who administer everything."""
    return world.model_name() if ask.global_role in ADMIN_ROLES else _HOST.sub("", world.model_name())


async def handle_whoami(ask: CommandCall, _world: CommandContext) -> str:
    """As the operator would write this person into the configuration."""
    command = ask.command
    vouched = "which the platform vouches for" if command.sender.verified else "which nobody vouches for"
    why = f", by {ask.rule}" if ROLE_ORDER.index(ask.role) > ROLE_ORDER.index("guest") else ""
    return f"You are `{_escape_code(f'{command.at.channel}:{command.sender.id}')}`, {vouched}. Role: {ask.role}{why}."


async def handle_status(ask: CommandCall, world: CommandContext) -> str:
    """What is up. Guests are told of the channel that they are on."""
    now, snapshot = world.clock.now(), world.stats.snapshot()
    everything = ROLE_ORDER.index(ask.role) >= ROLE_ORDER.index("member")
    shown = [one for one in snapshot.channels if everything or one.channel == ask.command.at.channel]
    running = format_duration((now - snapshot.started).total_seconds())
    lines = [f"Running for {running} with {_format_model(ask, world)}; the agent is {world.agent_mode()}."]
    lines += [f"Under way here: {one}." for one in world.tools_at(ask.command.at).running]
    return "\n".join(lines + [f"- {one.channel}: {one.state} since {format_time(one.since)}" for one in shown])


async def handle_channels(_ask: CommandCall, world: CommandContext) -> str:
    """Every channel, as `reverie channels` has it."""
    now = world.clock.now()
    return "\n".join(
        f"- {one.channel} ({one.platform}): {describe_channel(one, now)}" for one in world.stats.snapshot().channels
    )


async def handle_version(_ask: CommandCall, world: CommandContext) -> str:
    """Which release this is."""
    return f"Reverie {world.version}"


async def handle_why(ask: CommandCall, world: CommandContext) -> str:
    """The story of one log entry of this conversation. Of others tells `gateway.commands.elsewhere`."""
    number = int(ask.arguments["entry"])
    entry = await world.reader.entry(number)
    if entry is not None and entry.conversation != ask.command.at.conversation:
        return f"Entry {number} is not of this conversation: ask me in a direct chat."
    return await render_trace(world, number)


async def render_trace(world: CommandContext, number: int) -> str:
    """What happened to that entry, wherever it is."""
    found = await explain_event(world.reader, number)
    return f"There is no entry {number}." if found is None else "```\n" + _escape_code("\n".join(found)) + "\n```"


async def handle_cache(ask: CommandCall, world: CommandContext) -> str:
    """What the provider's cache gave this conversation today, and what it last failed to give."""
    here = ask.command.at.conversation
    today = await world.reader.spending_sums("all", since=_utc_day(world), conversation=here)
    recent = await ledger.newest_requests(world.reader, RECENT_REQUESTS, here)
    missed = [one for one in recent if one.account.missed]
    lines = [_format_spending("Here today", today)]
    if missed:
        last = missed[-1]
        lines.append(
            f"Last miss ({format_time(last.at)}, entry {last.seq}, {last.account.model}): "
            f"`{_escape_code(last.account.missed)}`"
        )
    elif recent:
        lines.append(f"No miss in the last {len(recent)} request{'' if len(recent) == 1 else 's'}.")
    return "\n".join(f"- {line}" for line in lines)


async def handle_usage(ask: CommandCall, world: CommandContext, named: PlaceFilter = hide_all_places) -> str:
    """What was spent in this room, threads included; elsewhere, only to admins of all, and only in a direct chat."""
    at, day = ask.command.at, _utc_day(world)
    room = Address(channel=at.channel, room=at.room).conversation
    lines = [
        _format_spending(
            "Here today", await world.reader.spending_sums("all", since=day, conversation=room, threads=True)
        )
    ]
    if ask.global_role in ADMIN_ROLES:
        if not ask.command.direct:
            return f"- {lines[0]}\n- Of all rooms I tell you in a direct chat."
        month = _utc_day(world, MONTH_DAYS - 1)
        lines.append(_format_spending("Everywhere today", await world.reader.spending_sums("all", since=day)))
        lines.append(
            _format_spending(f"Everywhere in {MONTH_DAYS} days", await world.reader.spending_sums("all", since=month))
        )
        rooms = await world.reader.spending_sums("room", since=day)
        dearest = sorted(rooms, key=lambda one: (-one.cost_usd, -ledger.prompt_tokens(one.usage), one.key))
        shown = await named([ConversationId(one.key) for one in dearest])
        told = [one for one in dearest if one.key in shown]
        lines += [f"`{_escape_code(one.key)}` today: {ledger.format_spending(one)}" for one in told[:MAX_ROOMS_LISTED]]
    return "\n".join(f"- {line}" for line in lines)


async def handle_tools(ask: CommandCall, world: CommandContext) -> str:
    """What the agent there could do, by family."""
    return world.tools_at(ask.command.at).render()


async def handle_more(ask: CommandCall, world: CommandContext) -> str | CommandReply:
    """The next page of the last long answer there."""
    post = await find_next_page(world, ask.command)
    if post is None:
        return "There is nothing more to show."
    return CommandReply(text=post.text, page=post.page + 1, private=post.private)


async def handle_again(ask: CommandCall, world: CommandContext) -> str:
    """What may not have arrived, word for word."""
    posts = await find_uncertain_posts(world.reader, ask.command.at.conversation)
    return "\n\n".join(post.text for post in posts) or "Nothing that I said here is in doubt."


async def find_next_page(
    world: CommandContext, command: Command, *, look_back: int = MAX_POSTS_SEARCHED
) -> Post | None:
    """The last long answer among the newest posts there, if not all of it has been shown.

    Private answers are not shown to others than who asked; in a direct chat there is nobody else.
    """
    posts = list[Post]()
    for post in reversed(await world.reader.newest_posts(command.at.conversation, newest=MAX_POSTS_SEARCHED)):
        if not post.private or command.direct or await _is_asked_by(world, post, command.sender.id):
            posts.append(post)
        if len(posts) == look_back:
            break
    for post in posts:
        if (pages := world.count_pages(post)) > 1:
            return post if post.page < pages else None
    return None


async def _is_asked_by(world: CommandContext, post: Post, sender: SenderId) -> bool:
    """Whether that answers a command of theirs."""
    if post.reply_to is None:
        return False
    for family in ("message", "command"):  # as `records.key_of` has them
        entry = await world.reader.entry_by_key(f"{family}:{post.to.conversation}:{post.reply_to}")
        if entry is not None and isinstance(entry.fact, Command):
            return entry.fact.sender.id == sender
    return False


BASE_HANDLERS: dict[str, CommandHandler] = {
    "help": handle_help,
    "about": handle_about,
    "whoami": handle_whoami,
    "status": handle_status,
    "more": handle_more,
    "again": handle_again,
    "version": handle_version,
    "usage": handle_usage,
    "cache": handle_cache,
    "why": handle_why,
    "channels": handle_channels,
    "new": context.handle_new,
    "retry": context.handle_retry,
    "rewind": context.handle_rewind,
    "compact": context.handle_compact,
    "approve": approve.handle_approve,
    "deny": approve.handle_deny,
    "revoke": approve.handle_revoke,
    "tools": handle_tools,
}


def find_handler_gaps(handlers: Mapping[str, CommandHandler]) -> list[str]:
    """What is wrong with these handlers: each command has one, or each of its subs; and none is for nothing."""
    known = {row.name for row in COMMANDS} | {f"{row.name} {sub.name}" for row in COMMANDS for sub in row.subs}
    wrong = [f"{name}: there is no such command" for name in handlers if name not in known]
    for row in COMMANDS:
        subs = [f"{row.name} {sub.name}" for sub in row.subs]
        missing = [name for name in subs or [row.name] if name not in handlers]
        if row.name not in handlers:
            wrong += [f"{name}: nothing answers" for name in missing]
        elif subs and not missing:
            wrong.append(f"{row.name}: each of its subs has a handler of its own")
    return sorted(wrong)


def _utc_day(world: CommandContext, ago: int = 0) -> str:
    """Today in UTC, or so many days before."""
    return (world.clock.now().astimezone(UTC).date() - timedelta(days=ago)).isoformat()


def _format_spending(where: str, sums: Sequence[SpendingSum]) -> str:
    return f"{where}: {ledger.format_spending(sums[0])}." if sums else f"{where}: no request to a model."


def _escape_code(text: str) -> str:
    """Text that cannot end the code it stands in."""
    return text.replace("`", "'")
