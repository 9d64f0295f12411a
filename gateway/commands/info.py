"""Commands that show something: `help`, `status`, `log`, `audit` and others.

A handler reads from its `CommandContext` and answers in Markdown. It may raise: the dispatcher
answers for it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from channels.base import CanPage, CommandCompletion, HasPlaceNames
from gateway import __version__
from gateway.access.texts import render_identity
from gateway.cluster.monitor import render_process_report
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    find_hidden,
    format_place,
    sees_everything,
)
from gateway.commands.definition import command, find_available, make_arg
from gateway.commands.parser import InvalidArguments, escape_code, find_nearest, quote_code
from gateway.core.events import Address, Command, ConversationId, Message, Post, SenderId
from gateway.core.facts import (
    AuditRecord,
    LimitReached,
    NoteWritten,
    PluginFact,
    PostQueued,
    Seq,
    fact_adapter,
    fact_kinds,
    is_inner,
)
from gateway.core.format import (
    describe_channel,
    describe_problem,
    describe_state,
    format_duration,
    format_table,
)
from gateway.core.i18n import _, ngettext
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER, identify, normalize_person_key
from gateway.core.moments import parse_past_moment
from gateway.core.redaction import Redactor
from gateway.core.removed import find_removed
from gateway.core.scopes import PUBLIC
from gateway.core.text_safety import escape_unprintable, inline_code
from gateway.store import LogEntry, StoreReader
from gateway.store.effects import CommandEffect, done, refuse
from gateway.store.format import actor_name, describe, describe_contents
from gateway.stream.again import find_uncertain_posts

MAX_LOG_ENTRY_CHARS: Final = 200
_STEP_KINDS: Final = frozenset({"judged", "sending", "part", "delivery"})
"""Steps on the way of an event or a post, which `why` explains."""
SAVED_STATE_KINDS: Final = frozenset({"dmn", "cursor"})
"""Saved states, which add nothing to the entries that led to them, but name every place."""


async def _suggest_commands(typed: CommandCompletion, context: CommandContext) -> list[str]:
    who, about = (
        identify(context.gateway.people, typed.at, typed.sender),
        typed.given.get("command", ""),
    )
    rows = find_available(context.commands.people, who.role, who.global_role, direct=typed.direct)
    if typed.arg == "command":
        return [row.name for row in rows]
    return [
        sub.name
        for row in rows
        if about.strip("/!").lower() in (row.name, *row.aliases)
        for sub in row.subs
    ]


@command(
    "help",
    "List all commands, or explain one.",
    group="me and you",
    args=(
        make_arg("command", "The command to explain.", suggests=_suggest_commands),
        make_arg("sub", "One of its subcommands.", suggests=_suggest_commands),
    ),
    aliases=("commands",),
)
async def handle_help(call: CommandCall, context: CommandContext) -> CommandEffect:
    prefix = call.prefix
    wanted = call.arguments.get("command", "").removeprefix(prefix).lower()
    if not wanted:
        channel = context.gateway.channels.get(call.command.at.channel)
        return done(
            help.render_command_list(call.available, prefix, brief=isinstance(channel, CanPage))
        )
    row = next((one for one in call.available if wanted in (one.name, *one.aliases)), None)
    if row is None:
        return done(answer_unknown_command(call, wanted))
    named = call.arguments.get("sub", "")
    sub = row.find_sub(named.lower())
    if named and sub is None:
        reason = _("There is no `{name}`.").format(name=f"{row.name} {quote_code(named)}")
        wrong = InvalidArguments(reason=reason)
        return done(help.explain_invalid_arguments(row, wrong, prefix))
    return done(help.render_command(row, prefix, sub))


def answer_unknown_command(call: CommandCall, name: str) -> str:
    """Return the answer to an unknown command: what to do in its place, or the nearest that this
    person may use.
    """
    if gone := find_removed([name.lower()]):
        return _(gone)
    return help.explain_unknown_command(
        find_nearest(name, [row.name for row in call.available]), call.prefix
    )


@command(
    "about",
    "Show what I am and who runs me.",
    group="me and you",
    aliases=("start",),
    needs_gateway=True,
    private=False,
)
async def handle_about(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Say what answers here and who runs it. `start`, which platforms have people give first, is a
    welcome.
    """
    settings, at = context.gateway.live.settings, call.command.at
    config = settings.channels.get(at.channel)
    channel: object = context.gateway.channels.get(at.channel)
    contact = getattr(config, "contact", None) or settings.commands.contact
    lists = _("`{help}` lists all commands.").format(help=f"{call.prefix}help")
    if call.command.name == "start":
        names = channel.place_names(at) if isinstance(channel, HasPlaceNames) else None
        me = inline_code((names and names.me) or _("my name"))
        text = _(
            "Hello! I am a bot that answers with a language model. Just write to me here; in a "
            "group, begin with {me}."
        )
        return done(f"{text.format(me=me)} {lists if call.prefix else ''}".rstrip())
    text = _("I am a bot, not a person: a program that answers with a language model ({model}).")
    operator = (
        _("My operator: {contact}").format(contact=contact)
        if contact
        else _("My operator has not given a contact.")
    )
    lines = [text.format(model=_model_names(context)), operator, *([lists] if call.prefix else [])]
    return done("\n".join(lines))


def _model_names(context: CommandContext) -> str:
    return re.sub(r" at \S+?(?=,|$)", "", context.agents.model_labels)


@command("whoami", "Show your id and your role.", group="me and you")
async def handle_whoami(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Show the sender's id as the configuration takes it, and their role; to owners and admins also
    its origin."""
    who = render_identity(call.command.at.channel, call.command.sender)
    role = _("Your role: {role}.").format(role=call.role)
    if call.role in ADMIN_ROLES:
        rule = identify(context.gateway.people, call.command.at, call.command.sender).rule
        role = _("Your role: {role} ({rule}).").format(role=call.role, rule=rule)
    return done(f"{who} {role}")


@command(
    "status",
    "Show the connections, the model, and what I am doing.",
    group="how I run",
    needs_gateway=True,
)
async def handle_status(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Show the state of the gateway. Guests see only the channel that they are on."""
    now, snapshot = context.gateway.clock.now(), context.supervisor.stats.snapshot()
    everything = ROLE_ORDER.index(call.role) >= ROLE_ORDER.index("member")
    shown = [
        one for one in snapshot.channels if everything or one.channel == call.command.at.channel
    ]
    running = format_duration((now - snapshot.started).total_seconds())
    lines = [
        _("I have been running for {time}, with {model}. My state: {mode}.").format(
            time=running, model=_model_names(context), mode=context.agents.mode_label
        )
    ]
    under_way = context.agents.registry.running.describe(call.command.at.conversation)
    lines += [_("I am working on this here: {call}.").format(call=one) for one in under_way]
    if call.global_role in ADMIN_ROLES:
        lines += [f"- {describe_problem(one)}" for one in snapshot.problems]
    states = [f"- {one.channel}: {describe_state(one)}" for one in shown]
    report = (
        context.gateway.channels.cluster.describe() if call.global_role in ADMIN_ROLES else None
    )
    if report is None:
        return done("\n".join(lines + states))
    tables = ["```", *map(escape_code, render_process_report(report, now)), "```"]
    return done("\n".join(lines + states + tables), data=report)


@command(
    "channels",
    "List all channels with their state.",
    group="how I run",
    role="admin",
    needs_global_role=True,
    needs_gateway=True,
)
async def handle_channels(_call: CommandCall, context: CommandContext) -> CommandEffect:
    now, found = context.gateway.clock.now(), context.supervisor.stats.snapshot().channels
    text = "\n".join(
        f"- {one.channel} ({one.platform}): {describe_channel(one, now)}" for one in found
    )
    return done(text, data=found)


@command("version", "Show the version of Reverie.", group="me and you")
async def handle_version(_call: CommandCall, _context: CommandContext) -> CommandEffect:
    return done(f"Reverie {__version__}")


@command(
    "tools",
    "List my tools, and who may ask for them.",
    group="approvals",
    role="member",
    needs_gateway=True,
)
async def handle_tools(call: CommandCall, context: CommandContext) -> CommandEffect:
    channel: object = context.gateway.channels.get(call.command.at.channel)
    return done(context.agents.describe_tools(call.command.at, brief=isinstance(channel, CanPage)))


@command(
    "more",
    "Show the next page of my last long answer here.",
    group="me and you",
    needs_gateway=True,
    private=False,
)
async def handle_more(call: CommandCall, context: CommandContext) -> CommandEffect:
    post = await find_next_page(context, call.command)
    if post is None:
        return done(_("There is nothing more to show."))
    return replace(done(post.text), page=post.page + 1, private=post.private)


@command(
    "again",
    "Repeat an answer that may not have arrived here.",
    group="me and you",
    needs_gateway=True,
    private=False,
)
async def handle_again(call: CommandCall, context: CommandContext) -> CommandEffect:
    posts = await find_uncertain_posts(context.gateway.store, call.command.at.conversation)
    if not posts:
        return done(_("All my messages here have arrived."))
    return done("\n\n".join(post.text for post in posts))


async def find_next_page(
    context: CommandContext,
    command: Command,
    *,
    only_newest: bool = False,
    max_age: timedelta = timedelta.max,
) -> Post | None:
    """Return a long answer there of which a page was not shown yet; its `page` is the last one
    shown.

    The newest answer to the sender of the command comes first, then the newest of all, then older
    ones in this order; `only_newest`: no older ones. Private answers are shown only to whom they
    answer; in a direct chat there is nobody else.
    """
    entries = await context.gateway.store.newest_entries(
        10, kinds=["post"], conversation=command.at.conversation
    )
    posts, own = list[Post](), list[Post]()
    for entry in reversed(entries):
        if (
            not isinstance(entry.fact, PostQueued)
            or context.gateway.clock.now() - entry.at > max_age
        ):
            continue
        post = entry.fact.post
        is_own = command.direct or await _is_asked_by(context, post, command.sender.id)
        if is_own:
            own.append(post)
        if is_own or not post.private:
            posts.append(post)
    older = [] if only_newest else [*own[1:], *posts[1:]]
    for post in [*own[:1], *posts[:1], *older]:
        channel: object = context.gateway.channels.get(post.to.channel)
        shown = max(
            one.page for one in posts[: posts.index(post) + 1] if one.text == post.text
        )  # since it was said
        if isinstance(channel, CanPage) and channel.page_count(post) > shown:
            return replace(post, page=shown)
    return None


async def _is_asked_by(context: CommandContext, post: Post, sender: SenderId) -> bool:
    if post.reply_to is None:
        return False
    for family in ("message", "command"):  # as in `facts.dedup_key`
        entry = await context.gateway.store.entry_by_key(
            f"{family}:{post.to.conversation}:{post.reply_to}"
        )
        if entry is not None and isinstance(entry.fact, Command | Message):
            return entry.fact.sender.id == sender
    return False


LOG = command(
    "log",
    "Show the log.",
    group="how I run",
    default_sub="tail",
    role="admin",
    needs_global_role=True,
    direct_only=True,
)


@command(
    "log tail",
    "Show the newest log entries.",
    args=(make_arg("n", "How many entries.", most=100),),
)
async def tail_log(call: CommandCall, context: CommandContext) -> CommandEffect:
    """List the newest entries, oldest first.

    To admins, entries of other people's private places are only counted, and so are those of
    plugins in an agent's inner conversation.
    """
    wanted = int(call.arguments.get("n", 10))
    found = await context.gateway.store.newest_entries(
        wanted, kinds=sorted(fact_kinds() - SAVED_STATE_KINDS - _STEP_KINDS)
    )
    hidden = await find_hidden(
        call,
        context.gateway.places,
        [place for entry in found for place in find_entry_places(entry)],
    )
    lines = [
        f"- {entry.seq}, {entry.at:%H:%M:%S}"
        + (f", {format_place(entry.conversation)}" if entry.conversation is not None else "")
        + f": {_describe_entry(entry, context.gateway.redactor)}"
        for entry in found
        if not hidden.intersection(find_entry_places(entry))
        and (
            sees_everything(call)
            or not (
                isinstance(entry.fact, PluginFact)
                and entry.conversation is not None
                and is_inner(entry.conversation)
            )
        )
    ]
    if hidden_count := len(found) - len(lines):
        text = ngettext(
            "{count} more entry is from a private conversation. Only owners can see it.",
            "{count} more entries are from private conversations. Only owners can see them.",
            hidden_count,
        )
        lines.append(text.format(count=hidden_count))
    return done("\n".join(lines) or _("Nothing has happened yet."))


def _describe_entry(entry: LogEntry, redactor: Redactor) -> str:
    text = (
        _("I said: {text}").format(text=describe_contents(entry.fact))
        if isinstance(entry.fact, PostQueued)
        else describe(entry.fact)
    )
    return inline_code(quote_code(redactor(text), MAX_LOG_ENTRY_CHARS), MAX_LOG_ENTRY_CHARS)


def find_entry_places(entry: LogEntry) -> list[ConversationId]:
    """Return the places that an entry names."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, NoteWritten) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, LimitReached) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places


DEFAULT_AUDIT_ROWS: Final = 50
AUDIT_PAGE: Final = 500
"""Entries read at once."""

AuditRow = tuple[Seq, datetime, AuditRecord]


@command(
    "audit",
    "Show administrative commands: who, where, what, and the result; the newest last.",
    group="how I run",
    args=(
        make_arg("since", "2h, 3d, 08:00, yesterday, or 2026-03-04T07:00 (UTC)."),
        make_arg("by", "Only of this person: channel:id, or operator."),
        make_arg("limit", f"The newest few only (default {DEFAULT_AUDIT_ROWS}).", number=True),
    ),
    operator=True,
)
async def show_audit(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Not recorded itself: it changes nothing, and would be all that it shows."""
    given, limit = call.arguments, int(call.arguments.get("limit", DEFAULT_AUDIT_ROWS))
    try:
        now, utc = context.gateway.clock.now(), ZoneInfo("UTC")
        since = parse_past_moment(given["since"], now, utc) if "since" in given else None
    except ValueError as error:
        return refuse(str(error))
    found = await read_audit_rows(
        context.gateway.store, since=since, by=given.get("by"), limit=limit
    )
    data = [
        {"seq": seq, "when": at.isoformat(), **fact_adapter().dump_python(fact, mode="json")}
        for seq, at, fact in found
    ]
    return done("\n".join(format_audit(found)), data=data)


async def read_audit_rows(
    reader: StoreReader, *, since: datetime | None, by: str | None, limit: int
) -> list[AuditRow]:
    """Return the newest matching entries, oldest first. Reads back no further than needed."""
    wanted = None if by is None else normalize_person_key(by) if ":" in by else by
    found, before = list[AuditRow](), None
    while len(found) < limit:
        page = await reader.newest_entries(AUDIT_PAGE, before=before, kinds=["audited"])
        for entry in reversed(page):
            if since is not None and entry.at < since:
                return found[::-1]
            if (
                isinstance(entry.fact, AuditRecord)
                and wanted in (None, entry.fact.by)
                and len(found) < limit
            ):
                found.append((entry.seq, entry.at, entry.fact))
        if len(page) < AUDIT_PAGE:
            break
        before = page[0].seq
    return found[::-1]


def format_audit(found: Sequence[AuditRow]) -> list[str]:
    """Render for people: a table, or a sentence if there are none."""
    if not found:
        return ["there were no administrative commands"]
    lines: list[tuple[str, ...]] = [
        ("entry", "when (UTC)", "who", "role", "where", "what", "result")
    ]
    for seq, at, fact in found:
        where = fact.at.conversation if fact.at is not None else "command line"
        result = fact.result if fact.ok else f"not done: {fact.result}"
        cells = (
            str(seq),
            f"{at:%Y-%m-%d %H:%M:%S}",
            actor_name(fact),
            fact.role,
            where,
            f"{fact.what} {fact.args}".rstrip(),
            result,
        )
        lines.append(tuple(map(escape_unprintable, cells)))
    return format_table(lines)
