"""What the commands answer. Each reads, and returns Markdown; what it may look at is the `World` it is given.

A handler may fail with any exception: the desk answers for it. It changes nothing by itself: of what is to change it
hands the facts over (`Answer.change`), to be written down with its answer.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, timedelta

from gateway import ledger
from gateway.commands import approve, context, help  # noqa: A004 - it is what it is
from gateway.commands.parse import nearest
from gateway.commands.table import BY_NAME, TABLE
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.doubts import doubtful
from gateway.events import Address, Command, ConversationId, Post, SenderId
from gateway.ops.report import clock_time, span, told
from gateway.standing import ADMINS, RANKS
from gateway.store import Spending
from gateway.why import why

SHOWN_POSTS = 10
"""So far back is looked for a long answer that has a next page."""
RECENT = 50
"""Requests of a conversation among which a miss is looked for."""
MONTH_DAYS = 30
DEAREST = 5
"""Rooms that are told by name."""

_HOST = re.compile(r" at \S+?(?=,|$)")
"""Behind a model's name, as `agent.models.base.Model.label` has it."""

Named = Callable[[list[ConversationId]], Awaitable[list[ConversationId]]]
"""Those of some conversations that may be named."""


async def unnamed(_places: list[ConversationId]) -> list[ConversationId]:
    """None of them."""
    return []


async def help_(ask: Ask, world: World) -> str:
    """All that this person may use, or one command in full, or one thing that it can do."""
    prefix = world.prefixes[ask.command.at.channel]
    wanted = ask.arguments.get("command", "").removeprefix(prefix).lower()
    if not wanted:
        return help.listing(ask.available_commands(), prefix)
    row = BY_NAME.get(wanted)
    if row is None or row not in ask.available_commands():
        return unknown(ask, wanted, prefix)
    named = ask.arguments.get("sub", "")
    sub = row.find_sub(named.lower())
    return help.no_sub(row, named, prefix) if named and sub is None else help.one(row, prefix, sub)


def unknown(ask: Ask, name: str, prefix: str) -> str:
    """There is no such command: the nearest ones that this person may use."""
    return help.unknown(nearest(name, [row.name for row in ask.available_commands()]), prefix)


async def about(ask: Ask, world: World) -> str:
    """The truth about what is speaking."""
    contact = world.operator_contact(ask.command.at.channel)
    lines = ["I am a bot, not a person: a program that answers with a language model.", f"Model: {_model(ask, world)}."]
    lines.append(f"Who runs me: {contact}" if contact else "Who runs me has left no contact here.")
    if prefix := world.prefixes[ask.command.at.channel]:
        lines.append(f"`{prefix}help` lists what I can be asked.")
    return "\n".join(lines)


def _model(ask: Ask, world: World) -> str:
    """What answers people. Where it runs is told to those who administer everything."""
    return world.model_name() if ask.global_role in ADMINS else _HOST.sub("", world.model_name())


async def whoami(ask: Ask, _world: World) -> str:
    """As the operator would write this person into the configuration."""
    command = ask.command
    vouched = "which the platform vouches for" if command.sender.verified else "which nobody vouches for"
    why = f", by {ask.rule}" if RANKS.index(ask.role) > RANKS.index("guest") else ""
    return f"You are `{_code(f'{command.at.channel}:{command.sender.id}')}`, {vouched}. Role: {ask.role}{why}."


async def status(ask: Ask, world: World) -> str:
    """What is up. Guests are told of the channel that they are on."""
    now, snapshot = world.clock.now(), world.stats.snapshot()
    everything = RANKS.index(ask.role) >= RANKS.index("member")
    shown = [one for one in snapshot.channels if everything or one.channel == ask.command.at.channel]
    running = span((now - snapshot.started).total_seconds())
    lines = [f"Running for {running} with {_model(ask, world)}; the agent is {world.agent_mode()}."]
    lines += [f"Under way here: {one}." for one in world.tools_at(ask.command.at).running]
    return "\n".join(lines + [f"- {one.channel}: {one.state} since {clock_time(one.since)}" for one in shown])


async def channels(_ask: Ask, world: World) -> str:
    """Every channel, as `reverie channels` has it."""
    now = world.clock.now()
    return "\n".join(f"- {one.channel} ({one.platform}): {told(one, now)}" for one in world.stats.snapshot().channels)


async def version(_ask: Ask, world: World) -> str:
    """Which release this is."""
    return f"Reverie {world.version}"


async def why_(ask: Ask, world: World) -> str:
    """The story of one log entry of this conversation. Of others tells `gateway.commands.elsewhere`."""
    number = int(ask.arguments["entry"])
    entry = await world.reader.entry(number)
    if entry is not None and entry.conversation != ask.command.at.conversation:
        return f"Entry {number} is not of this conversation: ask me in a direct chat."
    return await story(world, number)


async def story(world: World, number: int) -> str:
    """What happened to that entry, wherever it is."""
    found = await why(world.reader, number)
    return f"There is no entry {number}." if found is None else "```\n" + _code("\n".join(found)) + "\n```"


async def cache(ask: Ask, world: World) -> str:
    """What the provider's cache gave this conversation today, and what it last failed to give."""
    here = ask.command.at.conversation
    today = await world.reader.spending_sums("all", since=_day(world), conversation=here)
    recent = await ledger.newest(world.reader, RECENT, here)
    missed = [one for one in recent if one.account.missed]
    lines = [_spent("Here today", today)]
    if missed:
        last = missed[-1]
        lines.append(
            f"Last miss ({clock_time(last.at)}, entry {last.seq}, {last.account.model}): `{_code(last.account.missed)}`"
        )
    elif recent:
        lines.append(f"No miss in the last {len(recent)} request{'' if len(recent) == 1 else 's'}.")
    return "\n".join(f"- {line}" for line in lines)


async def usage(ask: Ask, world: World, named: Named = unnamed) -> str:
    """What was spent in this room, threads included; elsewhere, only to admins of all, and only in a direct chat."""
    at, day = ask.command.at, _day(world)
    room = Address(channel=at.channel, room=at.room).conversation
    lines = [_spent("Here today", await world.reader.spending_sums("all", since=day, conversation=room, threads=True))]
    if ask.global_role in ADMINS:
        if not ask.command.direct:
            return f"- {lines[0]}\n- Of all rooms I tell you in a direct chat."
        month = _day(world, MONTH_DAYS - 1)
        lines.append(_spent("Everywhere today", await world.reader.spending_sums("all", since=day)))
        lines.append(_spent(f"Everywhere in {MONTH_DAYS} days", await world.reader.spending_sums("all", since=month)))
        rooms = await world.reader.spending_sums("room", since=day)
        dearest = sorted(rooms, key=lambda one: (-one.cost_usd, -ledger.prompt_tokens(one.usage), one.key))
        shown = await named([ConversationId(one.key) for one in dearest])
        told = [one for one in dearest if one.key in shown]
        lines += [f"`{_code(one.key)}` today: {ledger.summed(one)}" for one in told[:DEAREST]]
    return "\n".join(f"- {line}" for line in lines)


async def tools_(ask: Ask, world: World) -> str:
    """What the agent there could do, by family."""
    return world.tools_at(ask.command.at).render()


async def more(ask: Ask, world: World) -> str | Answer:
    """The next page of the last long answer there."""
    post = await next_page(world, ask.command)
    if post is None:
        return "There is nothing more to show."
    return Answer(text=post.text, page=post.page + 1, private=post.private)


async def again(ask: Ask, world: World) -> str:
    """What may not have arrived, word for word."""
    posts = await doubtful(world.reader, ask.command.at.conversation)
    return "\n\n".join(post.text for post in posts) or "Nothing that I said here is in doubt."


async def next_page(world: World, command: Command, *, look_back: int = SHOWN_POSTS) -> Post | None:
    """The last long answer among the newest posts there, if not all of it has been shown.

    Private answers are not shown to others than who asked; in a direct chat there is nobody else.
    """
    posts = list[Post]()
    for post in reversed(await world.reader.newest_posts(command.at.conversation, newest=SHOWN_POSTS)):
        if not post.private or command.direct or await _asked_by(world, post, command.sender.id):
            posts.append(post)
        if len(posts) == look_back:
            break
    for post in posts:
        if (pages := world.count_pages(post)) > 1:
            return post if post.page < pages else None
    return None


async def _asked_by(world: World, post: Post, sender: SenderId) -> bool:
    """Whether that answers a command of theirs."""
    if post.reply_to is None:
        return False
    for family in ("message", "command"):  # as `records.key_of` has them
        entry = await world.reader.entry_by_key(f"{family}:{post.to.conversation}:{post.reply_to}")
        if entry is not None and isinstance(entry.fact, Command):
            return entry.fact.sender.id == sender
    return False


HANDLERS: dict[str, Handler] = {
    "help": help_,
    "about": about,
    "whoami": whoami,
    "status": status,
    "more": more,
    "again": again,
    "version": version,
    "usage": usage,
    "cache": cache,
    "why": why_,
    "channels": channels,
    "new": context.new,
    "retry": context.retry,
    "rewind": context.rewind,
    "compact": context.compact,
    "approve": approve.approve,
    "deny": approve.deny,
    "revoke": approve.revoke,
    "tools": tools_,
}


def complete(handlers: Mapping[str, Handler]) -> list[str]:
    """What is wrong with these handlers: each command has one, or each of its subs; and none is for nothing."""
    known = {row.name for row in TABLE} | {f"{row.name} {sub.name}" for row in TABLE for sub in row.subs}
    wrong = [f"{name}: there is no such command" for name in handlers if name not in known]
    for row in TABLE:
        subs = [f"{row.name} {sub.name}" for sub in row.subs]
        missing = [name for name in subs or [row.name] if name not in handlers]
        if row.name not in handlers:
            wrong += [f"{name}: nothing answers" for name in missing]
        elif subs and not missing:
            wrong.append(f"{row.name}: each of its subs has a handler of its own")
    return sorted(wrong)


def _day(world: World, ago: int = 0) -> str:
    """Today in UTC, or so many days before."""
    return (world.clock.now().astimezone(UTC).date() - timedelta(days=ago)).isoformat()


def _spent(where: str, sums: Sequence[Spending]) -> str:
    return f"{where}: {ledger.summed(sums[0])}." if sums else f"{where}: no request to a model."


def _code(text: str) -> str:
    """Text that cannot end the code it stands in."""
    return text.replace("`", "'")
