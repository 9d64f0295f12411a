"""`reverie replay FILE|--since WHEN`: has a stretch of the log decided again, and compares.

Exit codes: 0 nothing differs, 1 something does, 2 nothing could be done (the reason stands on stderr). Reads beside a
running gateway.
"""

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway import policies
from gateway.cli_reading import ResolveSettings, report_failure
from gateway.fields import Duration
from gateway.progress import show_progress
from gateway.replay import ReplayReport, add_policy_remarks, format_replay_report, replay_report_as_json
from gateway.settings import Settings
from gateway.store import StoreError
from gateway.store.lines import escape_unprintable

_REPLAY_DURATION: TypeAdapter[float] = TypeAdapter(Duration)


def add_replay_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `replay` to a command line. Its parsed namespace carries its handler as `handler(args) -> int`."""
    text = "decide again what the log says was decided, and compare effects and bytes"
    parser: argparse.ArgumentParser = subparsers.add_parser("replay", help=text, description=text)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a store, or what `log export` has written")
    parser.add_argument("--since", metavar="WHEN", help="a time (2026-03-04T07:00, in UTC), or how long ago (2h, 7d)")
    parser.add_argument("--config", type=Path, metavar="DIR", help="the configuration: its store, and its policies")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(handler=replay_command, resolve_settings=resolve_settings)


def replay_command(args: argparse.Namespace) -> int:
    """Handler of `replay`."""
    try:
        settings: Settings | None = args.resolve_settings(args.config) if args.config is not None else None
        path = args.file if args.file is not None else settings.store.path if settings is not None else None
        if path is None:
            raise ValueError("say which: a file, or --config with a directory whose store it is")  # noqa: TRY301 - told as the others
        since = _parse_replay_since(args.since, datetime.now(UTC)) if args.since is not None else None
        report = asyncio.run(_replay_file(path, since))
    except (StoreError, OSError, ValueError) as error:
        return report_failure("replay", error)
    if settings is not None:
        now = {agent.id: policies.build_dmn_policy(settings, agent.id) for agent in settings.agents}
        add_policy_remarks(report, now)
    if args.json:
        sys.stdout.write(json.dumps(replay_report_as_json(report)) + "\n")  # ASCII: safe on every terminal
    else:
        sys.stdout.writelines(f"{escape_unprintable(line)}\n" for line in format_replay_report(report))
    return 0 if report.is_identical else 1


async def _replay_file(path: Path, since: datetime | None) -> ReplayReport:
    from gateway.replaying import open_log, replay_log  # noqa: PLC0415 - the other commands start faster without it

    with show_progress("deciding again", "entries") as tell:
        async with open_log(path) as reader:
            return await replay_log(reader, since=since, progress=tell)


def _parse_replay_since(said: str, now: datetime) -> datetime:
    """A time, or so long before now. Raises ValueError, in words."""
    try:
        if "-" in said:
            at = datetime.fromisoformat(said)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        if said.endswith("d"):
            return now - timedelta(days=float(said[:-1]))
        return now - timedelta(seconds=_REPLAY_DURATION.validate_python(said))
    except (ValidationError, ValueError, OverflowError) as error:
        raise ValueError(f"not a time or a duration: {said!r}; write 2026-03-04T07:00, 2h or 7d") from error
