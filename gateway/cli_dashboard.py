"""`reverie dashboard`: where the page is that shows the running gateway.

On a terminal the address holds the token behind `#`, which no browser sends to any server, so one click opens the page.
Elsewhere the token is left out: what is printed there may be kept; and so it is where another gateway answers. Exit
codes: 0 it is there, 1 nobody answers there, or another (said on stderr), 2 there is no such page as it is configured
(the reason stands on stderr).
"""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.cli_reading import ResolveSettings, report_failure
from gateway.ops.health import STALE_HEARTBEAT_S, heartbeat_file
from gateway.settings import Settings
from gateway.settings_operator import OpsConfig

WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what listens there is reached here
DASHBOARD_TIMEOUT_S = 3.0


def add_dashboard_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `dashboard` to a command line. Its parsed namespace carries its handler as `handler(args) -> int`."""
    text = "the address of the page that shows the running gateway"
    parser: argparse.ArgumentParser = subparsers.add_parser("dashboard", help=text, description=text)
    parser.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
    parser.set_defaults(handler=dashboard_command, resolve_settings=resolve_settings)


def dashboard_command(args: argparse.Namespace) -> int:
    """Its handler."""
    settings: Settings = args.resolve_settings(args.config)
    try:
        address = dashboard_url(settings.ops)
    except ValueError as error:
        return report_failure("dashboard", error)
    token = settings.ops.token.get_secret_value() if settings.ops.token is not None else ""
    answers, ended = _is_answering(f"{address}health"), _is_gateway_stopped(settings.store.path, time.time())
    told = f"#token={quote(token, safe='')}" if sys.stdout.isatty() and not (answers and ended) else ""
    sys.stdout.write(f"{address}{told}\n")
    if answers and not ended:
        return 0
    why = "what answers there is another gateway's, or no gateway" if answers else "nobody answers there"
    also = ", and set ops.port to a free one" if answers else ""
    sys.stderr.write(f"{why}; start this one: reverie run --config {shlex.quote(str(args.config))}{also}\n")
    return 1


def dashboard_url(ops: OpsConfig) -> str:
    """Where the page is, without the token. Raises ValueError where there is none, or where nobody can know."""
    if ops.token is None:
        raise ValueError("there is no page without a token: set ops.token, at least 16 characters")
    if not ops.port:
        raise ValueError("ops.port is 0, any free one: the log of the gateway says which; set a port to have it here")
    host = WILDCARD_HOSTS.get(ops.host, ops.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{ops.port}/"


def _is_gateway_stopped(store: Path, now_s: float) -> bool:
    """Nobody runs with this store. False also where that cannot be seen, as from outside a container."""
    try:
        return now_s - heartbeat_file(store).stat().st_mtime > STALE_HEARTBEAT_S
    except FileNotFoundError:
        return os.path.isdir(store.parent)  # noqa: PTH112 - it raises nothing
    except OSError:
        return False


def _is_answering(url: str) -> bool:
    import httpx  # noqa: PLC0415 - the other commands start faster without it

    try:
        return httpx.get(url, timeout=DASHBOARD_TIMEOUT_S, trust_env=False).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
