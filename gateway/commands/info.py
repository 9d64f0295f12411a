"""Commands that need no service of their own: `help`, `status`, `why`, `usage`, `approve`, `new` and others.

Each handler reads from its `CommandContext` and returns Markdown, or a `CommandReply` whose effect holds the facts to
append. A handler may fail with any exception: the dispatcher answers for it. `BASE_HANDLERS` lists them.

Two groups need to know who can read a place: `LogCommands` (`log tail`), and `CrossRoomCommands`, which replaces `why`
and `usage` where several rooms are shown.
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
from gateway.commands.parser import escape_code, find_nearest
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME
from gateway.core.events import Address, Command, ConversationId, MessageId, Post, SenderId
from gateway.core.facts import ApprovalVerdict, Fact, LimitReached, NoteWritten
from gateway.core.format import describe_channel, format_duration, format_time
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import shorten
from gateway.runtime.rewind import MOST_EXCHANGES, TURN_RUNNING, RewindAction, RewindRequest, parse_count
from gateway.store import LogEntry, SpendingSum, StoreReader, ledger
from gateway.store.effects import CommandEffect
from gateway.store.format import format_entry
from gateway.stream.trace import explain_event
from gateway.stream.uncertain_sends import find_uncertain_posts
from gateway.tools.approvals import Approvals

MAX_POSTS_SEARCHED = 10
"""Posts that are searched for a long answer with a next page."""
RECENT_REQUESTS = 50
"""Requests of a conversation that are searched for a cache miss."""
MONTH_DAYS = 30
MAX_ROOMS_LISTED = 5
"""Rooms that are listed by name."""
_MODEL_HOST = re.compile(r" at \S+?(?=,|$)")
"""Host after a model's name, as in `agent.models.base.Model.label`."""
DEFAULT_LOG_ENTRIES: Final = 10
MAX_LOG_ENTRIES: Final = 100
MAX_LOG_ENTRY_CHARS: Final = 300
SAVED_STATE_KINDS: Final = frozenset({"dmn", "cursor"})
"""Saved states, which add nothing to the entries that led to them, but name every place."""
_LISTED_KINDS: Final = sorted(
    {tag for fact in get_args(Fact) for tag in get_args(fact.__annotations__["kind"])} - SAVED_STATE_KINDS
)
MAX_LISTED_ARGUMENTS_CHARS = 200
"""Characters of a call's arguments in the list of approvals: the request itself shows them in full."""
NO_APPROVALS_TEXT = "No tool waits for approvals."

PlaceFilter = Callable[[list[ConversationId]], Awaitable[list[ConversationId]]]
"""Returns those of the given conversations that may be named."""


async def hide_all_places(_places: list[ConversationId]) -> list[ConversationId]:
    """Return none: a `PlaceFilter` for callers that may see no room by name."""
    return []


async def handle_help(call: CommandCall, context: CommandContext) -> str:
    """Show all commands that this person may use, or the help of one."""
    prefix = context.prefixes[call.command.at.channel]
    wanted = call.arguments.get("command", "").removeprefix(prefix).lower()
    if not wanted:
        return help.render_command_list(call.available_commands(), prefix)
    row = COMMANDS_BY_NAME.get(wanted)
    if row is None or row not in call.available_commands():
        return answer_unknown_command(call, wanted, prefix)
    named = call.arguments.get("sub", "")
    sub = row.find_sub(named.lower())
    return (
        help.explain_unknown_sub(row, named, prefix) if named and sub is None else help.render_command(row, prefix, sub)
    )


def answer_unknown_command(call: CommandCall, name: str, prefix: str) -> str:
    """Return the answer to an unknown command: the nearest ones that this person may use."""
    return help.explain_unknown_command(find_nearest(name, [row.name for row in call.available_commands()]), prefix)


async def handle_about(call: CommandCall, context: CommandContext) -> str:
    """Say that a machine is answering, with its model and its operator."""
    contact = context.operator_contact(call.command.at.channel)
    lines = [
        "I am a bot, not a person: a program that answers with a language model.",
        f"Model: {_format_model(call, context)}.",
    ]
    lines.append(f"Who runs me: {contact}" if contact else "Who runs me has left no contact here.")
    if prefix := context.prefixes[call.command.at.channel]:
        lines.append(f"`{prefix}help` lists what I can be asked.")
    return "\n".join(lines)


def _format_model(call: CommandCall, context: CommandContext) -> str:
    """Return the name of the model that answers people, with its host only for admins everywhere."""
    return context.model_name() if call.global_role in ADMIN_ROLES else _MODEL_HOST.sub("", context.model_name())


async def handle_whoami(call: CommandCall, _context: CommandContext) -> str:
    """Show the sender's id as the configuration takes it, and their role."""
    command = call.command
    vouched = "which the platform vouches for" if command.sender.verified else "which nobody vouches for"
    why = f", by {call.rule}" if ROLE_ORDER.index(call.role) > ROLE_ORDER.index("guest") else ""
    return f"You are `{escape_code(f'{command.at.channel}:{command.sender.id}')}`, {vouched}. Role: {call.role}{why}."


async def handle_status(call: CommandCall, context: CommandContext) -> str:
    """Show the state of the gateway. Guests see only the channel that they are on."""
    now, snapshot = context.clock.now(), context.stats.snapshot()
    everything = ROLE_ORDER.index(call.role) >= ROLE_ORDER.index("member")
    shown = [one for one in snapshot.channels if everything or one.channel == call.command.at.channel]
    running = format_duration((now - snapshot.started).total_seconds())
    lines = [f"Running for {running} with {_format_model(call, context)}; the agent is {context.agent_mode()}."]
    lines += [f"Under way here: {one}." for one in context.tools_at(call.command.at).running]
    return "\n".join(lines + [f"- {one.channel}: {one.state} since {format_time(one.since)}" for one in shown])


async def handle_channels(_call: CommandCall, context: CommandContext) -> str:
    """List every channel, as `reverie channels`."""
    now = context.clock.now()
    return "\n".join(
        f"- {one.channel} ({one.platform}): {describe_channel(one, now)}" for one in context.stats.snapshot().channels
    )


async def handle_version(_call: CommandCall, context: CommandContext) -> str:
    """Show the release."""
    return f"Reverie {context.version}"


async def handle_why(call: CommandCall, context: CommandContext) -> str:
    """Explain one log entry of this conversation. `CrossRoomCommands` extends it to others."""
    number = int(call.arguments["entry"])
    entry = await context.reader.entry(number)
    if entry is not None and entry.conversation != call.command.at.conversation:
        return f"Entry {number} is not of this conversation: ask me in a direct chat."
    return await render_trace(context, number)


async def render_trace(context: CommandContext, number: int) -> str:
    """Return the explanation of an entry of any place."""
    found = await explain_event(context.reader, number)
    return f"There is no entry {number}." if found is None else "```\n" + escape_code("\n".join(found)) + "\n```"


async def handle_cache(call: CommandCall, context: CommandContext) -> str:
    """Show today's use of the provider's cache in this conversation, and its last miss."""
    here = call.command.at.conversation
    today = await context.reader.spending_sums("all", since=_utc_day(context), conversation=here)
    recent = await ledger.newest_requests(context.reader, RECENT_REQUESTS, here)
    missed = [one for one in recent if one.account.missed]
    lines = [_format_spending("Here today", today)]
    if missed:
        last = missed[-1]
        lines.append(
            f"Last miss ({format_time(last.at)}, entry {last.seq}, {last.account.model}): "
            f"`{escape_code(last.account.missed)}`"
        )
    elif recent:
        lines.append(f"No miss in the last {len(recent)} request{'' if len(recent) == 1 else 's'}.")
    return "\n".join(f"- {line}" for line in lines)


async def handle_usage(call: CommandCall, context: CommandContext, keep_nameable: PlaceFilter = hide_all_places) -> str:
    """Show today's cost in this room with its threads; in a direct chat, admins everywhere also see all rooms."""
    at, day = call.command.at, _utc_day(context)
    room = Address(channel=at.channel, room=at.room).conversation
    lines = [
        _format_spending(
            "Here today", await context.reader.spending_sums("all", since=day, conversation=room, threads=True)
        )
    ]
    if call.global_role in ADMIN_ROLES:
        if not call.command.direct:
            return f"- {lines[0]}\n- Of all rooms I tell you in a direct chat."
        month = _utc_day(context, MONTH_DAYS - 1)
        lines.append(_format_spending("Everywhere today", await context.reader.spending_sums("all", since=day)))
        lines.append(
            _format_spending(f"Everywhere in {MONTH_DAYS} days", await context.reader.spending_sums("all", since=month))
        )
        rooms = await context.reader.spending_sums("room", since=day)
        dearest = sorted(rooms, key=lambda one: (-one.cost_usd, -ledger.prompt_tokens(one.usage), one.key))
        shown = await keep_nameable([ConversationId(one.key) for one in dearest])
        listed = [one for one in dearest if one.key in shown]
        lines += [f"`{escape_code(one.key)}` today: {ledger.format_spending(one)}" for one in listed[:MAX_ROOMS_LISTED]]
    return "\n".join(f"- {line}" for line in lines)


async def handle_tools(call: CommandCall, context: CommandContext) -> str:
    """List the tools of the agent there, by family."""
    return context.tools_at(call.command.at).render()


async def handle_more(call: CommandCall, context: CommandContext) -> str | CommandReply:
    """Show the next page of the last long answer there."""
    post = await find_next_page(context, call.command)
    if post is None:
        return "There is nothing more to show."
    return CommandReply(text=post.text, page=post.page + 1, private=post.private)


async def handle_again(call: CommandCall, context: CommandContext) -> str:
    """Repeat answers that may not have arrived, word for word."""
    posts = await find_uncertain_posts(context.reader, call.command.at.conversation)
    return "\n\n".join(post.text for post in posts) or "Nothing that I said here is in doubt."


async def find_next_page(
    context: CommandContext, command: Command, *, look_back: int = MAX_POSTS_SEARCHED
) -> Post | None:
    """Return the last long answer among the newest posts there, if a page of it was not shown yet.

    Private answers are shown only to the sender of the command; in a direct chat there is nobody else.
    """
    posts = list[Post]()
    for post in reversed(await context.reader.newest_posts(command.at.conversation, newest=MAX_POSTS_SEARCHED)):
        if not post.private or command.direct or await _is_asked_by(context, post, command.sender.id):
            posts.append(post)
        if len(posts) == look_back:
            break
    for post in posts:
        if (pages := context.count_pages(post)) > 1:
            return post if post.page < pages else None
    return None


async def _is_asked_by(context: CommandContext, post: Post, sender: SenderId) -> bool:
    """Return whether the post answers a command of this sender."""
    if post.reply_to is None:
        return False
    for family in ("message", "command"):  # as in `facts.dedup_key`
        entry = await context.reader.entry_by_key(f"{family}:{post.to.conversation}:{post.reply_to}")
        if entry is not None and isinstance(entry.fact, Command):
            return entry.fact.sender.id == sender
    return False


async def handle_new(call: CommandCall, context: CommandContext) -> CommandReply:
    """Start the conversation afresh: earlier messages are not in view any more."""
    answer = await _change_view("new", call, context)
    if context.approvals is not None and answer.text != TURN_RUNNING:
        context.approvals.reset_conversation(call.command.at.conversation)
    return answer


async def handle_retry(call: CommandCall, context: CommandContext) -> CommandReply:
    """Answer the last message again."""
    return await _change_view("retry", call, context)


async def handle_rewind(call: CommandCall, context: CommandContext) -> CommandReply:
    """Remove the newest exchanges from view."""
    count = parse_count(call.arguments.get("n", ""))
    if count is None:
        return CommandReply(text=f"Write how many exchanges I am to take back: a number from 1 to {MOST_EXCHANGES}.")
    return await _change_view("rewind", call, context, count)


async def handle_compact(call: CommandCall, context: CommandContext) -> CommandReply:
    """Compact the view; the result is posted later."""
    return await _change_view("compact", call, context)


async def _change_view(what: RewindAction, call: CommandCall, context: CommandContext, count: int = 1) -> CommandReply:
    command = call.command
    request = RewindRequest(
        action=what,
        at=command.at,
        by=f"{command.at.channel}:{command.sender.id}",
        count=count,
        is_direct=command.direct,
        is_trusted=call.role in ("owner", "admin"),
        reply_to=MessageId(command.id) if command.origin == "text" else None,
    )
    change = await context.rewinds.plan(request)
    return CommandReply(text=change.answer, effect=change)


async def handle_approve(call: CommandCall, context: CommandContext) -> CommandReply:
    """Approve a tool call, or list those that wait."""
    if context.approvals is None:
        return CommandReply(text=NO_APPROVALS_TEXT)
    if "id" not in call.arguments:
        return CommandReply(text=await _render_approvals(context.approvals, _build_approver(call)))
    match call.arguments.get("lasting"):
        case "session":
            return await _decide_approval(context.approvals, call, "session")
        case "always":
            return await _decide_approval(context.approvals, call, "always")
        case _:
            return await _decide_approval(context.approvals, call, "once")


async def handle_deny(call: CommandCall, context: CommandContext) -> CommandReply:
    """Deny a tool call."""
    return (
        CommandReply(text=NO_APPROVALS_TEXT)
        if context.approvals is None
        else await _decide_approval(context.approvals, call, "denied")
    )


async def handle_revoke(call: CommandCall, context: CommandContext) -> CommandReply:
    """Revoke an approval that was given for longer."""
    if context.approvals is None:
        return CommandReply(text=NO_APPROVALS_TEXT)
    return _build_reply(await context.approvals.revoke(_build_approver(call), call.arguments["tool"]))


async def _decide_approval(approvals: Approvals, call: CommandCall, verdict: ApprovalVerdict) -> CommandReply:
    return _build_reply(await approvals.decide(_build_approver(call), call.arguments["id"].strip("`").lower(), verdict))


def _build_reply(change: CommandEffect) -> CommandReply:
    return CommandReply(text=change.answer, effect=change)


def _build_approver(call: CommandCall) -> Approver:
    command = call.command
    return Approver(
        at=command.at, sender=command.sender.id, role=call.role, is_direct=command.direct, global_role=call.global_role
    )


async def _render_approvals(approvals: Approvals, approver: Approver) -> str:
    waiting = [
        f"- `{one.approval}`: {inline_code(one.tool)} in turn {inline_code(one.turn)}, "
        f"for {format_duration(remaining_s)} more: {inline_code(one.arguments, MAX_LISTED_ARGUMENTS_CHARS)}"
        for one, remaining_s in approvals.list_waiting(approver)
    ]
    granted = [
        f"- {inline_code(one.tool)} of {inline_code(one.agent)} in "
        f"{inline_code(one.conversation, PLACE_CHARS)}, {lasting}"
        for one, lasting in (await approvals.list_grants(approver)).items()
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.global_role in APPROVER_ROLES:
        for one in approvals.definitions.list_pending():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])


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
    """Return the errors of these handlers: each command, or each subcommand, must have one, and none may be unknown."""
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


def _utc_day(context: CommandContext, ago: int = 0) -> str:
    """Return the date in UTC, today or that many days before."""
    return (context.clock.now().astimezone(UTC).date() - timedelta(days=ago)).isoformat()


def _format_spending(where: str, sums: Sequence[SpendingSum]) -> str:
    return f"{where}: {ledger.format_spending(sums[0])}." if sums else f"{where}: no request to a model."


class LogCommands:
    """Handler of `log tail`."""

    def __init__(self, reader: StoreReader, redactor: Redactor, places: ConversationPrivacy) -> None:
        """`redactor` is applied to an entry's text before it is cut."""
        self._reader, self._redactor, self._places = reader, redactor, places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"log tail": self.tail}

    async def tail(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        """List the newest entries, oldest first.

        To admins, entries of other people's private places are only counted.
        """
        wanted = call.arguments.get("n", str(DEFAULT_LOG_ENTRIES))
        if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MAX_LOG_ENTRIES:
            return CommandReply(text=f"How many: a number from 1 to {MAX_LOG_ENTRIES}.", ok=False)
        found = await self._reader.newest_entries(int(wanted), kinds=_LISTED_KINDS)
        hidden = await find_hidden(call, self._places, [place for entry in found for place in find_entry_places(entry)])
        shown = [self._format_entry(entry) for entry in found if not hidden.intersection(find_entry_places(entry))]
        text = escape_code("\n".join(shown))
        hidden_count = len(found) - len(shown)
        lines = [f"```\n{text}\n```"] if shown else []
        if hidden_count:
            lines.append(f"{hidden_count} more of private conversations, which owners see.")
        return CommandReply(text="\n".join(lines) or "Nothing has happened yet.")

    def _format_entry(self, entry: LogEntry) -> str:
        return shorten(format_entry(entry, self._redactor).strip(), MAX_LOG_ENTRY_CHARS)


def find_entry_places(entry: LogEntry) -> list[ConversationId]:
    """Return the places that an entry names."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, NoteWritten) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, LimitReached) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places


class CrossRoomCommands:
    """Handlers of `why` and `usage` across conversations, for admins everywhere in a direct chat.

    Private places are shown to owners only.
    """

    def __init__(self, places: ConversationPrivacy) -> None:
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"why": self.why, "usage": self.usage}

    async def why(self, call: CommandCall, context: CommandContext) -> str | CommandReply:
        """Explain an entry, if it may be shown."""
        number = int(call.arguments["entry"])
        entry = await context.reader.entry(number)
        if entry is None or not call.command.direct or entry.conversation == call.command.at.conversation:
            return await handle_why(call, context)
        names_all = entry.kind in SAVED_STATE_KINDS and not sees_everything(call)
        if (
            call.global_role not in ADMIN_ROLES
            or names_all
            or await find_hidden(call, self._places, find_entry_places(entry))
        ):
            return CommandReply(text=f"Entry {number} is of a conversation that you may not see.", ok=False)
        return await render_trace(context, number)

    async def usage(self, call: CommandCall, context: CommandContext) -> str:
        """Show the cost, without the names of private conversations."""

        async def keep_nameable(places: list[ConversationId]) -> list[ConversationId]:
            hidden = await find_hidden(call, self._places, places)
            return [place for place in places if place not in hidden]

        return await handle_usage(call, context, keep_nameable)
