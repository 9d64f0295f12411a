"""What the commands answer. Each reads, and returns Markdown; what it may look at is the `World` it is given.

A handler may fail with any exception: the desk answers for it. It changes nothing by itself: of what is to change it
hands the facts over (`Answer.change`), to be written down with its answer.
"""

from collections.abc import Sequence
from datetime import UTC, timedelta

from gateway import ledger
from gateway.commands import context
from gateway.commands.parse import nearest
from gateway.commands.table import BY_NAME, RANKS, Row
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, ConversationId, Post
from gateway.ops.report import clock_time, span, told
from gateway.store import Spending
from gateway.why import why

SHOWN_POSTS = 10
"""So far back is looked for a long answer that has a next page."""
MAX_SEQ_DIGITS = 18
RECENT = 50
"""Requests of a conversation among which a miss is looked for."""
MONTH_DAYS = 30
DEAREST = 5
"""Rooms that are told by name."""


async def help_(ask: Ask, world: World) -> str:
    """All that this person may use, or one command in full."""
    prefix = world.prefix[ask.command.at.channel]
    wanted = ask.command.args.split(maxsplit=1)
    if not wanted:
        return "\n".join(f"- {_usage(row, prefix)}: {row.summary}" for row in ask.listed())
    row = BY_NAME.get(wanted[0].removeprefix(prefix).lower())
    if row is None or row not in ask.listed():
        return unknown(ask, wanted[0].removeprefix(prefix), prefix)
    return f"{_usage(row, prefix)}: {row.summary}"


def unknown(ask: Ask, name: str, prefix: str) -> str:
    """There is no such command: the nearest ones."""
    meant = " or ".join(f"`{prefix}{near}`" for near in nearest(name, [row.name for row in ask.listed()]))
    return f"I do not know that command. {f'Did you mean {meant}? ' if meant else ''}`{prefix}help` lists what I know."


async def about(ask: Ask, world: World) -> str:
    """The truth about what is speaking."""
    contact = world.contacts.get(ask.command.at.channel)
    lines = ["I am a bot, not a person: a program that answers with a language model.", f"Model: {world.model()}."]
    lines.append(f"Who runs me: {contact}" if contact else "Who runs me has left no contact here.")
    if prefix := world.prefix[ask.command.at.channel]:
        lines.append(f"`{prefix}help` lists what I can be asked.")
    return "\n".join(lines)


async def whoami(ask: Ask, _world: World) -> str:
    """As the operator would write this person into the configuration."""
    command = ask.command
    vouched = "which the platform vouches for" if command.sender.verified else "which nobody vouches for"
    return (
        f"You are `{_code(f'{command.at.channel}:{command.sender.id}')}`, {vouched}. Role: {ask.role}, by {ask.rule}."
    )


async def status(ask: Ask, world: World) -> str:
    """What is up. Guests are told of the channel that they are on."""
    now, snapshot = world.clock.now(), world.stats.snapshot()
    everything = RANKS.index(ask.role) >= RANKS.index("member")
    shown = [one for one in snapshot.channels if everything or one.channel == ask.command.at.channel]
    running = span((now - snapshot.started).total_seconds())
    lines = [f"Running for {running} with {world.model()}; the agent is {world.mode()}."]
    return "\n".join(lines + [f"- {one.channel}: {one.state} since {clock_time(one.since)}" for one in shown])


async def channels(_ask: Ask, world: World) -> str:
    """Every channel, as `reverie channels` has it."""
    now = world.clock.now()
    return "\n".join(f"- {one.channel} ({one.platform}): {told(one, now)}" for one in world.stats.snapshot().channels)


async def version(_ask: Ask, world: World) -> str:
    """Which release this is."""
    return f"Reverie {world.version}"


async def why_(ask: Ask, world: World) -> str:
    """The story of one log entry. What was said elsewhere is only told in a direct chat."""
    number = ask.command.args.strip()
    if not (number.isascii() and number.isdigit() and len(number) <= MAX_SEQ_DIGITS):
        return "Write the number of a log entry behind it, as `reverie log tail` shows them."
    entry = await world.reader.entry(int(number))
    if entry is not None and not ask.command.direct and entry.conversation != ask.command.at.conversation:
        return f"Entry {number} is not of this conversation: ask me in a direct chat."
    story = await why(world.reader, int(number))
    return f"There is no entry {number}." if story is None else "```\n" + _code("\n".join(story)) + "\n```"


async def cache(ask: Ask, world: World) -> str:
    """What the provider's cache gave this conversation today, and what it last failed to give."""
    here = ask.command.at.conversation
    today = await world.reader.spending("all", since=_day(world), conversation=here)
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


async def usage(ask: Ask, world: World) -> str:
    """What was spent in this room, threads included; elsewhere, only to admins and only in a direct chat."""
    at, day = ask.command.at, _day(world)
    room = Address(channel=at.channel, room=at.room).conversation
    lines = [_spent("Here today", await world.reader.spending("all", since=day, conversation=room, threads=True))]
    if RANKS.index(ask.role) >= RANKS.index("admin"):
        if not ask.command.direct:
            return f"- {lines[0]}\n- Of all rooms I tell you in a direct chat."
        month = _day(world, MONTH_DAYS - 1)
        lines.append(_spent("Everywhere today", await world.reader.spending("all", since=day)))
        lines.append(_spent(f"Everywhere in {MONTH_DAYS} days", await world.reader.spending("all", since=month)))
        rooms = await world.reader.spending("room", since=day)
        dearest = sorted(rooms, key=lambda one: (-one.cost_usd, -ledger.prompt_tokens(one.usage), one.key))
        lines += [f"`{_code(one.key)}` today: {ledger.summed(one)}" for one in dearest[:DEAREST]]
    return "\n".join(f"- {line}" for line in lines)


async def more(ask: Ask, world: World) -> str | Answer:
    """The next page of the last long answer there."""
    post = await next_page(world, ask.command.at.conversation)
    return Answer(text=post.text, page=post.page + 1) if post else "There is nothing more to show."


async def next_page(world: World, conversation: ConversationId, *, look_back: int = SHOWN_POSTS) -> Post | None:
    """The last long answer among the newest posts there, if not all of it has been shown.

    Private answers do not count, and are not shown to others.
    """
    posts = [post for post in await world.reader.posts(conversation, newest=SHOWN_POSTS) if not post.private]
    for post in reversed(posts[-look_back:]):
        if (pages := world.pages(post)) > 1:
            return post if post.page < pages else None
    return None


HANDLERS: dict[str, Handler] = {
    "help": help_,
    "about": about,
    "whoami": whoami,
    "status": status,
    "more": more,
    "version": version,
    "usage": usage,
    "cache": cache,
    "why": why_,
    "channels": channels,
    "new": context.new,
    "retry": context.retry,
    "rewind": context.rewind,
    "compact": context.compact,
}


def _usage(row: Row, prefix: str) -> str:
    return f"`{prefix}{row.name}{f' {row.argument}' if row.argument else ''}`"


def _day(world: World, ago: int = 0) -> str:
    """Today in UTC, or so many days before."""
    return (world.clock.now().astimezone(UTC).date() - timedelta(days=ago)).isoformat()


def _spent(where: str, sums: Sequence[Spending]) -> str:
    return f"{where}: {ledger.summed(sums[0])}." if sums else f"{where}: no request to a model."


def _code(text: str) -> str:
    """Text that cannot end the code it stands in."""
    return text.replace("`", "'")
