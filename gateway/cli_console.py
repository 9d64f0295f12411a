"""`reverie console`: four panes in the terminal, on a running gateway or on one that it runs itself.

Exit codes: 0 it was left; 1 the gateway that it ran ended by itself; 2 no console could be opened (the reason stands
on stderr).
"""

import argparse
import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli_reading import ResolveSettings, current_user, report_failure
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.console.starting import ConsoleTarget


def add_console_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `console` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    text = "watch the gateway and talk to it in this terminal; runs one if none runs"
    made: argparse.ArgumentParser = subparsers.add_parser("console", help=text, description=text)
    made.add_argument("--config", type=Path, metavar="DIR", help="the configuration directory")
    where = made.add_mutually_exclusive_group()
    where.add_argument("--url", default="", metavar="URL", help="attach there, with the token in REVERIE_TOKEN")
    where.add_argument("--run", action="store_true", help="run a gateway; fails if one runs with this store")
    made.set_defaults(handler=console_command, resolve_settings=resolve_settings)


def console_command(args: argparse.Namespace) -> int:
    """The handler."""
    from gateway.console.starting import ConsoleUnavailable, find_target  # noqa: PLC0415 - the other commands start faster without it

    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # where Textual reads, and where it draws
        return report_failure("console", ValueError("it needs a terminal; `reverie log tail -f` can be piped"))
    settings = args.resolve_settings(args.config) if args.config is not None else None
    try:
        target = asyncio.run(
            find_target(settings, args.config, os.environ, datetime.now(UTC), url=args.url, run=args.run)
        )
        return asyncio.run(_run_console(target, settings, args.config))
    except (ConsoleUnavailable, OSError, ValueError) as error:
        return report_failure("console", error)


async def _run_console(target: "ConsoleTarget", settings: Settings | None, directory: Path | None) -> int:
    from gateway.console.api import GatewayApiClient  # noqa: PLC0415 - the same
    from gateway.console.app import ConsoleApp  # noqa: PLC0415 - nothing else imports Textual
    from gateway.console.child import GatewayProcess  # noqa: PLC0415 - the same

    child = None
    if target.is_own:
        assert settings is not None
        assert directory is not None
        child = GatewayProcess(directory, settings.store.path, target.port, target.token)
        await child.start()
    api, broke = GatewayApiClient(target.url, target.token), False
    try:
        app = ConsoleApp(api, f"{current_user()} at the console", child)
        await app.run_async()
    finally:
        await api.close()
        if child is not None:
            broke = child.has_exited
            with contextlib.suppress(OSError):  # a terminal that is gone
                sys.stderr.write("" if broke else "stopping the gateway ...\n")
                sys.stderr.flush()
            await child.stop()
    return 1 if broke else app.return_code or 0
