"""`reverie reminders list`: what is still to come, everywhere.

Reads beside a running gateway. Exit codes: 0 done, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from gateway.cli_reading import ResolveStore, add_store_options, run_with_reader
from gateway.ops.report import format_table
from gateway.schedules import describe_schedule_text
from gateway.store import PendingReminder, StoreReader
from gateway.store.lines import escape_unprintable

_REMINDERS: TypeAdapter[Sequence[PendingReminder]] = TypeAdapter(Sequence[PendingReminder])


def add_reminders_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `reminders` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("reminders", help="what people and the agent asked to be reminded of")
    commands = parser.add_subparsers(dest="reminders_command", required=True, metavar="COMMAND")
    text = "the reminders that are still to come, the next first"
    listing = commands.add_parser("list", help=text, description=text)
    listing.add_argument("--json", action="store_true", help="for programs")
    add_store_options(listing, resolve_store)
    listing.set_defaults(handler=reminders_list_command)


def reminders_list_command(args: argparse.Namespace) -> int:
    """Handler of `reminders list`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.pending_reminders()
        if args.json:
            print(json.dumps(_REMINDERS.dump_python(found, mode="json")))  # ASCII: safe on every terminal
        else:
            sys.stdout.writelines(line + "\n" for line in format_reminders(found))

    return run_with_reader("reminders", args, run)


def format_reminders(found: Sequence[PendingReminder]) -> list[str]:
    """For people: a table, or a sentence that says that there are none."""
    if not found:
        return ["there are no reminders"]
    lines: list[tuple[str, ...]] = [("id", "next (UTC)", "again", "where", "asked for by", "text")]
    for one in found:
        where = one.conversation or f"{one.agent} itself"
        cells = (
            one.id,
            f"{one.due:%Y-%m-%d %H:%M:%S}",
            describe_schedule_text(one.schedule),
            where,
            one.asked_by or "-",
            one.text,
        )
        lines.append(tuple(map(escape_unprintable, cells)))
    return format_table(lines)
