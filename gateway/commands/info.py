"""What the commands answer. Each reads, and returns Markdown; what it may look at is the `CommandContext` it is given.

A handler may fail with any exception: the desk answers for it. It changes nothing by itself: of what is to change it
hands the facts over (`CommandReply.change`), to be written down with its answer.

The commands by which admins say a word to calls of tools that wait for one.

`log tail`: the newest entries of the log, as far as whoever asks may see them.

`why` and `usage`: what they may tell of other places than the one where they are asked.

The commands that change what the agent sees of a conversation.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Final, get_args

from gateway.access.approval_texts import APPROVER_ROLES, PLACE_CHARS, Approver, inline_code
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandHandler,
    CommandReply,
    ConversationPrivacy,
    find_hidden,
    sees_everything,
)
from gateway.commands.parser import find_nearest
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME
from gateway.core.events import Address, Command, ConversationId, MessageId, Post, SenderId
from gateway.core.facts import ApprovalVerdict, Fact, LimitReached, NoteWritten
from gateway.core.format import describe_channel, format_duration, format_time
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER
from gateway.core.redaction import Redact
from gateway.core.scopes import PUBLIC
from gateway.runtime.rewind import MOST_EXCHANGES, TURN_RUNNING, RewindAction, RewindRequest, parse_count
from gateway.store import LogEntry, SpendingSum, StoreReader, ledger
from gateway.store.effects import CommandEffect
from gateway.store.format import format_entry
from gateway.stream.trace import explain_event
from gateway.stream.uncertain_sends import find_uncertain_posts
from gateway.tools.approvals import ApprovalDecisions

MAX_ARGUMENTS_CHARS = 200
"""Of arguments, in the list: the notice shows them whole."""
NO_APPROVALS = "No tool waits for approvals."


async def handle_approve(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Let one go ahead, or tell what waits."""
    if world.approvals is None:
        return CommandReply(text=NO_APPROVALS)
    if "id" not in ask.arguments:
        return CommandReply(text=await _render_approvals(world.approvals, _build_approver(ask)))
    match ask.arguments.get("lasting"):
        case "session":
            return await _decide(world.approvals, ask, "session")
        case "always":
            return await _decide(world.approvals, ask, "always")
        case _:
            return await _decide(world.approvals, ask, "once")


async def handle_deny(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Refuse one."""
    return CommandReply(text=NO_APPROVALS) if world.approvals is None else await _decide(world.approvals, ask, "denied")


async def handle_revoke(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Take back what was approved for longer."""
    if world.approvals is None:
        return CommandReply(text=NO_APPROVALS)
    return _build_reply(await world.approvals.revoke(_build_approver(ask), ask.arguments["tool"]))


async def _decide(deciding: ApprovalDecisions, ask: CommandCall, verdict: ApprovalVerdict) -> CommandReply:
    return _build_reply(await deciding.decide(_build_approver(ask), ask.arguments["id"].strip("`").lower(), verdict))


def _build_reply(change: CommandEffect) -> CommandReply:
    return CommandReply(text=change.answer, effect=change)


def _build_approver(ask: CommandCall) -> Approver:
    command = ask.command
    return Approver(
        at=command.at, sender=command.sender.id, role=ask.role, is_direct=command.direct, global_role=ask.global_role
    )


async def _render_approvals(deciding: ApprovalDecisions, approver: Approver) -> str:
    waiting = [
        f"- `{one.request.approval}`: {inline_code(one.request.tool)} in turn "
        f"{inline_code(one.request.turn)}, "
        f"for {format_duration(one.remaining_s)} more: "
        f"{inline_code(one.request.arguments, MAX_ARGUMENTS_CHARS)}"
        for one in deciding.list_waiting(approver)
    ]
    granted = [
        f"- {inline_code(one.tool)} of {inline_code(one.agent)} in "
        f"{inline_code(one.conversation, PLACE_CHARS)}, {lasting}"
        for one, lasting in (await deciding.list_grants(approver)).items()
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.global_role in APPROVER_ROLES:
        for one in deciding.definitions.list_pending():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])


async def handle_new(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Nothing of what was said there until now is in view any more."""
    answer = await _change_view("new", ask, world)
    if world.approvals is not None and answer.text != TURN_RUNNING:
        world.approvals.reset_conversation(ask.command.at.conversation)
    return answer


async def handle_retry(ask: CommandCall, world: CommandContext) -> CommandReply:
    """What was answered last is answered again."""
    return await _change_view("retry", ask, world)


async def handle_rewind(ask: CommandCall, world: CommandContext) -> CommandReply:
    """The newest exchanges there are taken back."""
    count = parse_count(ask.arguments.get("n", ""))
    if count is None:
        return CommandReply(text=f"Write how many exchanges I am to take back: a number from 1 to {MOST_EXCHANGES}.")
    return await _change_view("rewind", ask, world, count)


async def handle_compact(ask: CommandCall, world: CommandContext) -> CommandReply:
    """The view there is made smaller; what came of it is told in a post of its own."""
    return await _change_view("compact", ask, world)


async def _change_view(what: RewindAction, ask: CommandCall, world: CommandContext, count: int = 1) -> CommandReply:
    command = ask.command
    wish = RewindRequest(
        action=what,
        at=command.at,
        by=f"{command.at.channel}:{command.sender.id}",
        count=count,
        is_direct=command.direct,
        is_trusted=ask.role in ("owner", "admin"),
        reply_to=MessageId(command.id) if command.origin == "text" else None,
    )
    change = await world.rewinds.plan(wish)
    return CommandReply(text=change.answer, effect=change)


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
    """The story of one log entry of this conversation. Of others tells `gateway.commands.info`."""
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
    "new": handle_new,
    "retry": handle_retry,
    "rewind": handle_rewind,
    "compact": handle_compact,
    "approve": handle_approve,
    "deny": handle_deny,
    "revoke": handle_revoke,
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


DEFAULT_ENTRIES: Final = 10
MAX_ENTRIES: Final = 100
MAX_ENTRY_CHARS: Final = 300
"""Of one entry."""
SAVED_STATE_KINDS: Final = frozenset({"dmn", "cursor"})
"""States that are saved, which tell no more than what led to them, but name every place."""
_LISTED_KINDS: Final = sorted(
    {tag for fact in get_args(Fact) for tag in get_args(fact.__annotations__["kind"])} - SAVED_STATE_KINDS
)


class LogCommands:
    """`log tail`."""

    def __init__(self, reader: StoreReader, redact: Redact, places: ConversationPrivacy) -> None:
        """`redact` is given what an entry says before it is shortened."""
        self._reader, self._redact, self._places = reader, redact, places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"log tail": self.tail}

    async def tail(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """The newest entries, oldest first. Of private places of others an admin sees no more than that there are."""
        wanted = ask.arguments.get("n", str(DEFAULT_ENTRIES))
        if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MAX_ENTRIES:
            return CommandReply(text=f"How many: a number from 1 to {MAX_ENTRIES}.", ok=False)
        found = await self._reader.newest_entries(int(wanted), kinds=_LISTED_KINDS)
        unseen = await find_hidden(ask, self._places, [place for entry in found for place in find_entry_places(entry)])
        shown = [self._format_entry(entry) for entry in found if not unseen.intersection(find_entry_places(entry))]
        text = "\n".join(shown).replace("`", "'")
        beyond = len(found) - len(shown)
        lines = [f"```\n{text}\n```"] if shown else []
        if beyond:
            lines.append(f"{beyond} more of private conversations, which owners see.")
        return CommandReply(text="\n".join(lines) or "Nothing has happened yet.")

    def _format_entry(self, entry: LogEntry) -> str:
        told = format_entry(entry, self._redact).strip()
        return told if len(told) <= MAX_ENTRY_CHARS else f"{told[: MAX_ENTRY_CHARS - 1]}…"


def find_entry_places(entry: LogEntry) -> list[ConversationId]:
    """The places that an entry tells of."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, NoteWritten) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, LimitReached) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places


class CrossRoomCommands:
    """Stand in front of those that do it. Of other places they tell who administers everywhere, alone with the agent.

    Of private ones only owners.
    """

    def __init__(self, places: ConversationPrivacy) -> None:
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of their commands."""
        return {"why": self.why, "usage": self.usage}

    async def why(self, ask: CommandCall, world: CommandContext) -> str | CommandReply:
        """As `handlers.why_`, of an entry that may be shown."""
        number = int(ask.arguments["entry"])
        entry = await world.reader.entry(number)
        if entry is None or not ask.command.direct or entry.conversation == ask.command.at.conversation:
            return await handle_why(ask, world)
        names_all = entry.kind in SAVED_STATE_KINDS and not sees_everything(ask)
        if (
            ask.global_role not in ADMIN_ROLES
            or names_all
            or await find_hidden(ask, self._places, find_entry_places(entry))
        ):
            return CommandReply(text=f"Entry {number} is of a conversation that you may not see.", ok=False)
        return await render_trace(world, number)

    async def usage(self, ask: CommandCall, world: CommandContext) -> str:
        """As `handlers.usage`, without the names of private conversations."""

        async def named(places: list[ConversationId]) -> list[ConversationId]:
            unseen = await find_hidden(ask, self._places, places)
            return [place for place in places if place not in unseen]

        return await handle_usage(ask, world, named)
