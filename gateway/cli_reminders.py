"""`reverie reminders list`: what is still to come, everywhere.

Reads beside a running gateway. Exit codes: 0 done, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from gateway.cli_reading import ResolveStore, add_store, reading
from gateway.ops.report import table
from gateway.schedules import again
from gateway.store import Reader, Reminder
from gateway.store.lines import printable

_SHOWN: TypeAdapter[Sequence[Reminder]] = TypeAdapter(Sequence[Reminder])


def add_parser(subparsers: Any, resolve_store: ResolveStore) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `reminders` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("reminders", help="what people and the agent asked to be reminded of")
    commands = parser.add_subparsers(dest="reminders_command", required=True, metavar="COMMAND")
    text = "the reminders that are still to come, the next first"
    listing = commands.add_parser("list", help=text, description=text)
    listing.add_argument("--json", action="store_true", help="for programs")
    add_store(listing, resolve_store)
    listing.set_defaults(handler=show)


def show(args: argparse.Namespace) -> int:
    """Handler of `reminders list`."""

    async def run(reader: Reader) -> None:
        found = await reader.pending_reminders()
        if args.json:
            print(json.dumps(_SHOWN.dump_python(found, mode="json")))  # ASCII: safe on every terminal
        else:
            sys.stdout.writelines(line + "\n" for line in told(found))

    return reading("reminders", args, run)


def told(found: Sequence[Reminder]) -> list[str]:
    """For people: a table, or a sentence that says that there are none."""
    if not found:
        return ["there are no reminders"]
    lines: list[tuple[str, ...]] = [("id", "next (UTC)", "again", "where", "asked for by", "text")]
    for one in found:
        where = one.conversation or f"{one.agent} itself"
        cells = (one.id, f"{one.due:%Y-%m-%d %H:%M:%S}", again(one.schedule), where, one.asked_by or "-", one.text)
        lines.append(tuple(map(printable, cells)))
    return table(lines)
