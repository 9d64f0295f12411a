"""Commands that show something or decide about a tool: `help`, `status`, `why`, `usage`, `approve`, `log` and others.

A handler reads from its `CommandContext` and returns Markdown, or a `CommandReply` whose effect holds the facts to
append. It may fail with any exception: the dispatcher answers for it. `COMMANDS` lists them.
"""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, timedelta
from importlib.metadata import version
from typing import Final, get_args

from channels.base import CanPage
from gateway.access.approval_texts import APPROVER_ROLES, PLACE_CHARS, Approver, inline_code
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import CommandCall, CommandContext, CommandReply, find_hidden, sees_everything
from gateway.commands.definition import CommandDefinition, SubcommandDefinition, make_arg
from gateway.commands.parser import escape_code, find_nearest
from gateway.core.events import Address, Command, ConversationId, Post, SenderId
from gateway.core.facts import ApprovalVerdict, Fact, LimitReached, NoteWritten
from gateway.core.format import describe_channel, describe_problem, format_duration, format_time
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import shorten
from gateway.store import LogEntry, SpendingSum, ledger
from gateway.store.archive import ArchivedLog
from gateway.store.effects import CommandEffect
from gateway.store.format import format_entry
from gateway.stream.outbox import find_uncertain_posts
from gateway.stream.trace import explain_event
from gateway.tools.approvals import Approvals
from gateway.tools.grants import MAX_SHAPE_CHARS

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


async def handle_help(call: CommandCall, _context: CommandContext) -> str:
    """Show all commands that this person may use, or the help of one."""
    prefix = call.prefix
    wanted = call.arguments.get("command", "").removeprefix(prefix).lower()
    if not wanted:
        return help.render_command_list(call.available, prefix)
    row = next((one for one in call.available if wanted in (one.name, *one.aliases)), None)
    if row is None:
        return answer_unknown_command(call, wanted)
    named = call.arguments.get("sub", "")
    sub = row.find_sub(named.lower())
    return (
        help.explain_unknown_sub(row, named, prefix) if named and sub is None else help.render_command(row, prefix, sub)
    )


def answer_unknown_command(call: CommandCall, name: str) -> str:
    """Return the answer to an unknown command: the nearest ones that this person may use."""
    return help.explain_unknown_command(find_nearest(name, [row.name for row in call.available]), call.prefix)


async def handle_about(call: CommandCall, context: CommandContext) -> str:
    """Say that a machine is answering, with its model and its operator."""
    settings = context.live.settings
    channel = settings.channels.get(call.command.at.channel)
    contact = getattr(channel, "contact", None) or settings.commands.contact
    lines = [
        "I am a bot, not a person: a program that answers with a language model.",
        f"Model: {_format_model(call, context)}.",
    ]
    lines.append(f"Who runs me: {contact}" if contact else "Who runs me has left no contact here.")
    if call.prefix:
        lines.append(f"`{call.prefix}help` lists what I can be asked.")
    return "\n".join(lines)


def _format_model(call: CommandCall, context: CommandContext) -> str:
    """Return the name of the model that answers people, with its host only for admins everywhere."""
    label = context.agents.model_labels
    return label if call.global_role in ADMIN_ROLES else _MODEL_HOST.sub("", label)


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
    lines = [f"Running for {running} with {_format_model(call, context)}; the agent is {context.agents.mode_label}."]
    under_way = context.agents.running_calls(call.command.at.conversation)
    lines += [f"Under way here: {one}." for one in under_way]
    if call.global_role in ADMIN_ROLES:
        lines += [f"- {describe_problem(one)}" for one in snapshot.problems]
    return "\n".join(lines + [f"- {one.channel}: {one.state} since {format_time(one.since)}" for one in shown])


async def handle_channels(_call: CommandCall, context: CommandContext) -> CommandReply:
    """List every channel, as `reverie channels`."""
    now, found = context.clock.now(), context.stats.snapshot().channels
    text = "\n".join(f"- {one.channel} ({one.platform}): {describe_channel(one, now)}" for one in found)
    return CommandReply(text=text, data=found)


async def handle_version(_call: CommandCall, _context: CommandContext) -> str:
    """Show the release."""
    return f"Reverie {version('reverie-gateway')}"


async def handle_why(call: CommandCall, context: CommandContext) -> str | CommandReply:
    """Explain a log entry of this conversation; in a direct chat, to admins everywhere, of any that they may see."""
    number = int(call.arguments["entry"])
    entry = await ArchivedLog(context.store).entry(number)
    if entry is not None and entry.conversation != call.command.at.conversation:
        if not call.command.direct:
            return f"Entry {number} is not of this conversation: ask me in a direct chat."
        names_all = entry.kind in SAVED_STATE_KINDS and not sees_everything(call)
        if (
            call.global_role not in ADMIN_ROLES
            or names_all
            or await find_hidden(call, context, find_entry_places(entry))
        ):
            return CommandReply(text=f"Entry {number} is of a conversation that you may not see.", ok=False)
    found = await explain_event(context.store, number)
    return f"There is no entry {number}." if found is None else "```\n" + escape_code("\n".join(found)) + "\n```"


async def handle_cache(call: CommandCall, context: CommandContext) -> str:
    """Show today's use of the provider's cache in this conversation, and its last miss."""
    here = call.command.at.conversation
    today = await context.store.spending_sums("all", since=_utc_day(context), conversation=here)
    recent = await ledger.newest_requests(context.store, RECENT_REQUESTS, here)
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


async def handle_usage(call: CommandCall, context: CommandContext) -> str:
    """Show today's cost in this room with its threads; in a direct chat, admins everywhere also see all rooms."""
    at, day = call.command.at, _utc_day(context)
    room = Address(channel=at.channel, room=at.room).conversation
    lines = [
        _format_spending(
            "Here today", await context.store.spending_sums("all", since=day, conversation=room, threads=True)
        )
    ]
    if call.global_role in ADMIN_ROLES:
        if not call.command.direct:
            return f"- {lines[0]}\n- Of all rooms I tell you in a direct chat."
        month = _utc_day(context, MONTH_DAYS - 1)
        lines.append(_format_spending("Everywhere today", await context.store.spending_sums("all", since=day)))
        lines.append(
            _format_spending(f"Everywhere in {MONTH_DAYS} days", await context.store.spending_sums("all", since=month))
        )
        rooms = await context.store.spending_sums("room", since=day)
        dearest = sorted(rooms, key=lambda one: (-one.cost_usd, -one.usage.prompt_tokens, one.key))
        hidden = await find_hidden(call, context, [ConversationId(one.key) for one in dearest])
        listed = [one for one in dearest if one.key not in hidden]
        lines += [f"`{escape_code(one.key)}` today: {ledger.format_spending(one)}" for one in listed[:MAX_ROOMS_LISTED]]
    return "\n".join(f"- {line}" for line in lines)


async def handle_tools(call: CommandCall, context: CommandContext) -> str:
    """List the tools of the agent there, by family."""
    return context.agents.describe_tools(call.command.at)


async def handle_more(call: CommandCall, context: CommandContext) -> str | CommandReply:
    """Show the next page of the last long answer there."""
    post = await find_next_page(context, call.command)
    if post is None:
        return "There is nothing more to show."
    return CommandReply(text=post.text, page=post.page + 1, private=post.private)


async def handle_again(call: CommandCall, context: CommandContext) -> str:
    """Repeat answers that may not have arrived, word for word."""
    posts = await find_uncertain_posts(context.store, call.command.at.conversation)
    return "\n\n".join(post.text for post in posts) or "Nothing that I said here is in doubt."


async def find_next_page(
    context: CommandContext, command: Command, *, look_back: int = MAX_POSTS_SEARCHED
) -> Post | None:
    """Return the last long answer among the newest posts there, if a page of it was not shown yet.

    Private answers are shown only to the sender of the command; in a direct chat there is nobody else.
    """
    posts = list[Post]()
    for post in reversed(await context.store.newest_posts(command.at.conversation, newest=MAX_POSTS_SEARCHED)):
        if not post.private or command.direct or await _is_asked_by(context, post, command.sender.id):
            posts.append(post)
        if len(posts) == look_back:
            break
    for post in posts:
        channel: object = context.channels.get(post.to.channel)
        if isinstance(channel, CanPage) and (pages := channel.page_count(post)) > 1:
            return post if post.page < pages else None
    return None


async def _is_asked_by(context: CommandContext, post: Post, sender: SenderId) -> bool:
    """Return whether the post answers a command of this sender."""
    if post.reply_to is None:
        return False
    for family in ("message", "command"):  # as in `facts.dedup_key`
        entry = await context.store.entry_by_key(f"{family}:{post.to.conversation}:{post.reply_to}")
        if entry is not None and isinstance(entry.fact, Command):
            return entry.fact.sender.id == sender
    return False


async def handle_approve(call: CommandCall, context: CommandContext) -> CommandReply:
    """Approve a tool call, or list those that wait."""
    if "id" not in call.arguments:
        return CommandReply(text=await _render_approvals(context.approvals, _build_approver(call)))
    match call.arguments.get("lasting"):
        case "session":
            return await _decide_approval(call, context, "session")
        case "always":
            return await _decide_approval(call, context, "always")
        case _:
            return await _decide_approval(call, context, "once")


async def handle_deny(call: CommandCall, context: CommandContext) -> CommandReply:
    """Deny a tool call."""
    return await _decide_approval(call, context, "denied")


async def handle_revoke(call: CommandCall, context: CommandContext) -> CommandReply:
    """Revoke an approval that was given for longer."""
    return _build_reply(await context.approvals.revoke(_build_approver(call), call.arguments["tool"]))


async def _decide_approval(call: CommandCall, context: CommandContext, verdict: ApprovalVerdict) -> CommandReply:
    approval = call.arguments["id"].strip("`").lower()
    return _build_reply(await context.approvals.decide(_build_approver(call), approval, verdict))


def _build_reply(change: CommandEffect) -> CommandReply:
    return CommandReply(text=change.answer, effect=change)


def _build_approver(call: CommandCall) -> Approver:
    command = call.command
    return Approver(
        at=command.at, sender=command.sender.id, role=call.role, is_direct=command.direct, global_role=call.global_role
    )


_LASTING: Final = {"always": "for good", "session": "until less trusted text comes in or it begins afresh there"}


def _format_askers(askers: Collection[str]) -> str:
    return " or ".join(inline_code(one, PLACE_CHARS) for one in sorted(askers)) or "nobody"


async def _render_approvals(approvals: Approvals, approver: Approver) -> str:
    waiting = [
        f"- `{one.approval}`: {inline_code(one.tool)} in turn {inline_code(one.turn)}, "
        f"for {format_duration(remaining_s)} more: {inline_code(one.arguments, MAX_LISTED_ARGUMENTS_CHARS)}"
        for one, remaining_s in approvals.list_waiting(approver)
    ]
    granted = [
        f"- {inline_code(one.scope.tool)} of {inline_code(one.scope.agent)} in "
        f"{inline_code(one.scope.conversation, PLACE_CHARS)} for {_format_askers(one.scope.askers)}, "
        f"{_LASTING[one.lasting]}: {inline_code(one.scope.shape, MAX_SHAPE_CHARS)}"
        for one in await approvals.list_grants(approver)
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.global_role in APPROVER_ROLES:
        for one in approvals.definitions.list_pending():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])


def _utc_day(context: CommandContext, ago: int = 0) -> str:
    """Return the date in UTC, today or that many days before."""
    return (context.clock.now().astimezone(UTC).date() - timedelta(days=ago)).isoformat()


def _format_spending(where: str, sums: Sequence[SpendingSum]) -> str:
    return f"{where}: {ledger.format_spending(sums[0])}." if sums else f"{where}: no request to a model."


async def tail_log(call: CommandCall, context: CommandContext) -> CommandReply:
    """List the newest entries, oldest first.

    To admins, entries of other people's private places are only counted.
    """
    wanted = call.arguments.get("n", str(DEFAULT_LOG_ENTRIES))
    if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MAX_LOG_ENTRIES:
        return CommandReply(text=f"How many: a number from 1 to {MAX_LOG_ENTRIES}.", ok=False)
    found = await context.store.newest_entries(int(wanted), kinds=_LISTED_KINDS)
    hidden = await find_hidden(call, context, [place for entry in found for place in find_entry_places(entry)])
    shown = [_format_entry(context, entry) for entry in found if not hidden.intersection(find_entry_places(entry))]
    text = escape_code("\n".join(shown))
    hidden_count = len(found) - len(shown)
    lines = [f"```\n{text}\n```"] if shown else []
    if hidden_count:
        lines.append(f"{hidden_count} more of private conversations, which owners see.")
    return CommandReply(text="\n".join(lines) or "Nothing has happened yet.")


def _format_entry(context: CommandContext, entry: LogEntry) -> str:
    return shorten(format_entry(entry, context.redactor).strip(), MAX_LOG_ENTRY_CHARS)


def find_entry_places(entry: LogEntry) -> list[ConversationId]:
    """Return the places that an entry names."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, NoteWritten) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, LimitReached) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places


COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="help",
        group="me and you",
        summary="What can be asked of me.",
        args=(
            make_arg("command", "One command in full.", form="command", suggests=True),
            make_arg("sub", "One thing that it can do.", form="command"),
        ),
        private=True,
        aliases=("commands",),
        handler=handle_help,
    ),
    CommandDefinition(
        name="about",
        group="me and you",
        needs_gateway=True,
        summary="What I am, and who runs me.",
        aliases=("start",),  # Telegram's first button
        handler=handle_about,
    ),
    CommandDefinition(
        name="whoami", group="me and you", summary="Who you are to me, and why.", private=True, handler=handle_whoami
    ),
    CommandDefinition(
        name="status",
        group="how I run",
        needs_gateway=True,
        summary="Where I am connected, what answers, and what I am doing.",
        handler=handle_status,
    ),
    CommandDefinition(
        name="more",
        group="me and you",
        needs_gateway=True,
        summary="The next page of my last long answer here.",
        handler=handle_more,
    ),
    CommandDefinition(
        name="again",
        group="me and you",
        needs_gateway=True,
        summary="Repeat an answer of mine that may not have arrived here.",
        handler=handle_again,
    ),
    CommandDefinition(
        name="version", group="me and you", summary="Which version of Reverie this is.", handler=handle_version
    ),
    CommandDefinition(
        name="usage",
        group="this conversation",
        summary="Tokens and money that were spent in this room today.",
        role="member",
        private=True,
        handler=handle_usage,
    ),
    CommandDefinition(
        name="tools",
        group="approvals",
        needs_gateway=True,
        summary="Which tools I have, and who may have me use them.",
        role="member",
        private=True,
        handler=handle_tools,
    ),
    CommandDefinition(
        name="cache",
        group="this conversation",
        summary="How much of this conversation the model's cache gives, and what it missed last.",
        role="admin",
        private=True,
        handler=handle_cache,
    ),
    CommandDefinition(
        name="why",
        group="how I run",
        summary="What happened to an entry of the log, and which rule decided.",
        args=(make_arg("entry", "Its number, as log tail shows it.", form="number", needed=True),),
        role="admin",
        private=True,
        handler=handle_why,
    ),
    CommandDefinition(
        name="channels",
        group="how I run",
        needs_gateway=True,
        summary="Every channel: state, age, reconnects, reason.",
        role="admin",
        needs_global_role=True,
        private=True,
        handler=handle_channels,
    ),
    CommandDefinition(
        name="approve",
        group="approvals",
        needs_gateway=True,
        summary="Let go ahead what waits for an admin's word. Without an id: what waits.",
        args=(
            make_arg("id", "As I told it when I asked.", form="id", suggests=True),
            make_arg("lasting", "For more than this once.", "session", "always"),
        ),
        role="admin",
        handler=handle_approve,
    ),
    CommandDefinition(
        name="deny",
        group="approvals",
        needs_gateway=True,
        summary="Refuse what waits for an admin's word.",
        args=(make_arg("id", "As I told it.", form="id", needed=True, suggests=True),),
        role="admin",
        handler=handle_deny,
    ),
    CommandDefinition(
        name="revoke",
        group="approvals",
        needs_gateway=True,
        summary="Ask again before a tool that was approved for longer.",
        args=(make_arg("tool", "Its name.", form="word", needed=True, suggests=True),),
        role="admin",
        handler=handle_revoke,
    ),
    CommandDefinition(
        name="log",
        group="how I run",
        summary="What happened lately.",
        subs=(
            SubcommandDefinition(
                name="tail",
                summary="The newest entries.",
                args=(make_arg("n", "How many.", form="number"),),
                handler=tail_log,
            ),
        ),
        default_sub="tail",
        role="admin",
        needs_global_role=True,
        direct_only=True,
        private=True,
    ),
)
