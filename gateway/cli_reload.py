"""`reverie reload`: has the running gateway read its configuration again.

Exit codes: 0 it counts, 1 it does not (the answer says why), 2 nobody could be asked (the reason stands on stderr).
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from gateway.cli_reading import ResolveSettings, current_user, print_answer, report_failure
from gateway.control import ControlError, send_control_request, socket_path
from gateway.orders import ReloadRequest
from gateway.settings import Settings


def add_reload_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `reload` to a command line. Its parsed namespace carries its handler as `handler(args) -> int`."""
    text = "have the running gateway read its configuration again, as SIGHUP does"
    parser: argparse.ArgumentParser = subparsers.add_parser("reload", help=text, description=text)
    parser.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
    parser.set_defaults(handler=reload_command, resolve_settings=resolve_settings)


def reload_command(args: argparse.Namespace) -> int:
    """Its handler."""
    settings: Settings = args.resolve_settings(args.config)
    try:
        order = ReloadRequest(by=f"{current_user()} at the command line")
        answer = asyncio.run(send_control_request(socket_path(settings.store.path), order))
    except (ControlError, OSError, ValueError) as error:
        return report_failure("reload", error)
    return print_answer(answer)
