"""What the operator is told of the log: `audit`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter

from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.core.facts import AuditRecord, Seq
from gateway.core.format import format_table
from gateway.core.identity import normalize_person_key
from gateway.core.moments import parse_past_moment
from gateway.core.text_safety import escape_unprintable
from gateway.store import StoreReader
from gateway.store.effects import CommandEffect, done, refuse
from gateway.store.format import actor_name

DEFAULT_AUDIT_ROWS: Final = 50
"""Entries shown by default."""
AUDIT_PAGE: Final = 500
"""Entries read at once."""
_AUDITED: TypeAdapter[AuditRecord] = TypeAdapter(AuditRecord)

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
        {"seq": seq, "when": at.isoformat(), **_AUDITED.dump_python(fact, mode="json")}
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
