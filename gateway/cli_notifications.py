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
from gateway.cli_reading import ResolveSettings, add_store_options, run_with_reader
from gateway.notifications import RuleStatistics, TypeThreshold
from gateway.overrides import AttentionOverrideStore
from gateway.policies import build_attention_policy
from gateway.records import Judgement
from gateway.settings import Settings
from gateway.store import NotificationTypeCount, PendingCounts, StoreReader

DEFAULT_NOTIFICATIONS: Final = 1_000
"""Notifications that `notification_rules_command` counts, if nobody says how many."""

_NOTIFICATION_ROWS: TypeAdapter[
    Sequence[NotificationTypeCount] | Sequence[TypeThreshold] | Sequence[RuleStatistics] | Sequence[PendingCounts]
] = TypeAdapter(
    Sequence[NotificationTypeCount] | Sequence[TypeThreshold] | Sequence[RuleStatistics] | Sequence[PendingCounts]
)


def add_notifications_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
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

    add_store_options(
        command("types", notification_types_command, "the types that were seen: how often, first and last"), store_of
    )
    effective = command(
        "threshold", notification_threshold_command, "the lowest urgency that passes of each type, and what says so"
    )
    effective.add_argument("types", nargs="*", metavar="TYPE", help="of these (default: of all that were seen)")
    effective.add_argument("--config", type=Path, metavar="DIR", required=True, help="the configuration")
    ruling = command("rules", notification_rules_command, "the rules in their order, and how often each decided lately")
    add_store_options(ruling, store_of)
    ruling.add_argument(
        "--last",
        type=int,
        metavar="N",
        default=DEFAULT_NOTIFICATIONS,
        help=f"of the newest N (default {DEFAULT_NOTIFICATIONS})",
    )
    add_store_options(
        command("pending", notification_pending_command, "what is unread, by conversation and urgency"), store_of
    )


def notification_types_command(args: argparse.Namespace) -> int:
    """Handler of `notifications types`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.notification_types()
        _print_rows(args, found, notifications.render_types(found))

    return run_with_reader("notifications", args, run)


def notification_threshold_command(args: argparse.Namespace) -> int:
    """Handler of `notifications threshold`. Types that are named need no store."""
    settings: Settings = args.resolve_settings(args.config)
    policy = build_attention_policy(settings)

    def told(policy: attention.AttentionPolicy, named: Sequence[str]) -> None:
        found = notifications.list_thresholds(policy, named)
        _print_rows(args, found, notifications.render_thresholds(found))

    async def run(reader: StoreReader) -> None:
        told(
            await _with_overrides(policy, reader), args.types or [one.type for one in await reader.notification_types()]
        )

    args.store = settings.store.path
    if args.types and not args.store.exists():
        told(policy, args.types)
        return 0
    return run_with_reader("notifications", args, run)


def notification_rules_command(args: argparse.Namespace) -> int:
    """Handler of `notifications rules`."""
    policy: attention.AttentionPolicy | None = None
    if args.config is not None:
        settings: Settings = args.resolve_settings(args.config)
        policy, args.store = build_attention_policy(settings), settings.store.path

    async def run(reader: StoreReader) -> None:
        newest = await reader.newest_entries(max(0, args.last), kinds=["judged"])
        judged = [one.fact for one in newest if isinstance(one.fact, Judgement)]
        found = notifications.count_decisions(policy and await _with_overrides(policy, reader), judged)
        _print_rows(args, found, notifications.render_decisions(found, len(judged)))

    return run_with_reader("notifications", args, run)


def notification_pending_command(args: argparse.Namespace) -> int:
    """Handler of `notifications pending`."""

    async def run(reader: StoreReader) -> None:
        found = await reader.pending_counts()
        _print_rows(args, found, notifications.render_pending(found))

    return run_with_reader("notifications", args, run)


async def _with_overrides(policy: attention.AttentionPolicy, reader: StoreReader) -> attention.AttentionPolicy:
    """With what administrators set while gateways ran."""
    overrides = AttentionOverrideStore(reader)
    await overrides.load()
    return replace(policy, overrides=overrides.current)


def _print_rows(
    args: argparse.Namespace,
    found: Sequence[NotificationTypeCount]
    | Sequence[TypeThreshold]
    | Sequence[RuleStatistics]
    | Sequence[PendingCounts],
    lines: Sequence[str],
) -> None:
    if args.json:
        print(json.dumps(_NOTIFICATION_ROWS.dump_python(found, mode="json")))  # ASCII: safe on every terminal
    else:
        sys.stdout.writelines(line + "\n" for line in lines)
