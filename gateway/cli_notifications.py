"""`reverie notifications types|threshold|rules|pending`: what was noticed, what may interrupt, and what waits.

Reads beside a running gateway. Exit codes: 0 done, 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from gateway import attention, notifications
from gateway.cli_reading import ResolveSettings, add_store, reading
from gateway.notifications import Deciding, Threshold
from gateway.overrides import Overrides
from gateway.policies import attention_policy
from gateway.records import Judged
from gateway.settings import Settings
from gateway.store import Pending, Reader, SeenType

LAST: Final = 1_000
"""Notifications that `rules` counts, if nobody says how many."""

_SHOWN: TypeAdapter[Sequence[SeenType] | Sequence[Threshold] | Sequence[Deciding] | Sequence[Pending]] = TypeAdapter(
    Sequence[SeenType] | Sequence[Threshold] | Sequence[Deciding] | Sequence[Pending]
)


def add_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `notifications` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("notifications", help="what was noticed, what may interrupt, and what waits")
    commands = parser.add_subparsers(dest="notifications_command", required=True, metavar="COMMAND")

    def command(name: str, handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", help="for programs")
        made.set_defaults(handler=handler, resolve_settings=resolve_settings)
        return made

    def store_of(directory: Path) -> Path:
        return resolve_settings(directory).store.path

    add_store(command("types", types, "the types that were seen: how often, first and last"), store_of)
    effective = command("threshold", threshold, "the lowest urgency that passes of each type, and what says so")
    effective.add_argument("types", nargs="*", metavar="TYPE", help="of these (default: of all that were seen)")
    effective.add_argument("--config", type=Path, metavar="DIR", required=True, help="the configuration")
    ruling = command("rules", rules, "the rules in their order, and how often each decided lately")
    add_store(ruling, store_of)
    ruling.add_argument("--last", type=int, metavar="N", default=LAST, help=f"of the newest N (default {LAST})")
    add_store(command("pending", pending, "what is unread, by conversation and urgency"), store_of)


def types(args: argparse.Namespace) -> int:
    """Handler of `notifications types`."""

    async def run(reader: Reader) -> None:
        found = await reader.notification_types()
        _show(args, found, notifications.told_types(found))

    return reading("notifications", args, run)


def threshold(args: argparse.Namespace) -> int:
    """Handler of `notifications threshold`. Types that are named need no store."""
    settings: Settings = args.resolve_settings(args.config)
    policy = attention_policy(settings)

    def told(policy: attention.Policy, named: Sequence[str]) -> None:
        found = notifications.thresholds(policy, named)
        _show(args, found, notifications.told_thresholds(found))

    async def run(reader: Reader) -> None:
        told(await _by_now(policy, reader), args.types or [one.type for one in await reader.notification_types()])

    args.store = settings.store.path
    if args.types and not args.store.exists():
        told(policy, args.types)
        return 0
    return reading("notifications", args, run)


def rules(args: argparse.Namespace) -> int:
    """Handler of `notifications rules`."""
    policy: attention.Policy | None = None
    if args.config is not None:
        settings: Settings = args.resolve_settings(args.config)
        policy, args.store = attention_policy(settings), settings.store.path

    async def run(reader: Reader) -> None:
        newest = await reader.newest_entries(max(0, args.last), kinds=["judged"])
        judged = [one.fact for one in newest if isinstance(one.fact, Judged)]
        found = notifications.deciding(policy and await _by_now(policy, reader), judged)
        _show(args, found, notifications.told_deciding(found, len(judged)))

    return reading("notifications", args, run)


def pending(args: argparse.Namespace) -> int:
    """Handler of `notifications pending`."""

    async def run(reader: Reader) -> None:
        found = await reader.pending_counts()
        _show(args, found, notifications.told_pending(found))

    return reading("notifications", args, run)


async def _by_now(policy: attention.Policy, reader: Reader) -> attention.Policy:
    """With what administrators set while gateways ran."""
    overrides = Overrides(reader)
    await overrides.load()
    return replace(policy, overrides=overrides.current)


def _show(
    args: argparse.Namespace,
    found: Sequence[SeenType] | Sequence[Threshold] | Sequence[Deciding] | Sequence[Pending],
    lines: Sequence[str],
) -> None:
    if args.json:
        print(json.dumps(_SHOWN.dump_python(found, mode="json")))  # ASCII: safe on every terminal
    else:
        sys.stdout.writelines(line + "\n" for line in lines)
