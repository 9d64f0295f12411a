"""The commands `reverie store copy` and `reverie dashboard`.

Exit codes:
- `store copy`: 0 done and compared; 2 refused, or the copy is not right.
- `dashboard`: 0 the page is there; 1 nobody answers, or another gateway does; 2 the configuration
  has no such page.
"""

import argparse
import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.command_line import add_command, dashboard_url, load_settings, report_failure
from gateway.core.clock import SystemClock
from gateway.core.control_socket import find_gateway_state
from gateway.core.logging import show_progress
from gateway.store import ServerStore, StoreError, StoreLocation, store_location


def add_commands(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `store` and `dashboard` to a command line."""
    store = subparsers.add_parser("store", help="move the store to another engine")
    text = (
        "copy the whole store into an empty one, between files and PostgreSQL databases, and "
        "compare both"
    )
    commands = store.add_subparsers(dest="store_command", required=True, metavar="COMMAND")
    copy = add_command(commands, "copy", text, store_copy_command, where="config")
    text = (
        "a file, or a URL like postgresql://user@host/database (its password: PGPASSWORD or "
        "~/.pgpass)"
    )
    copy.add_argument(
        "--from", dest="source", metavar="STORE", help=f"{text}; without it, the configured store"
    )
    copy.add_argument(
        "--to", dest="target", required=True, metavar="STORE", help="the same, empty or missing"
    )
    text = "show the address of the dashboard"
    add_command(subparsers, "dashboard", text, dashboard_command, where="config")


def store_copy_command(args: argparse.Namespace) -> int:
    """Handle `store copy`."""
    from gateway.store.transfer import transfer_store  # noqa: PLC0415 - the other commands start faster without it

    config = load_settings(args.config).store
    source = (
        store_location(config) if args.source is None else _parse_store(args.source, config.path)
    )
    target = _parse_store(args.target, config.path)
    try:
        tell = show_progress("copying the log", "entries")
        done = transfer_store(source, target, SystemClock(), tell)
    except (StoreError, OSError) as error:
        return report_failure("store copy", error)
    print(f"{target} holds all {done.entries:,} entries of {source}; sha256 {done.digest}")
    return 0


def _parse_store(text: str, path: Path) -> StoreLocation:
    """Return the store that is meant. `path`: where the local files of a database are."""
    return ServerStore(text, path) if "://" in text else Path(text)


def dashboard_command(args: argparse.Namespace) -> int:
    """Handle `dashboard`.

    On a terminal the URL contains the token behind `#`, which no browser sends to a server, so one
    click opens the page. Elsewhere the token is left out, because the output may be stored; and
    also where another gateway answers.
    """
    settings = load_settings(args.config, needs=("store", "ops"))
    try:
        address = dashboard_url(settings.ops)
    except ValueError as error:
        return report_failure("dashboard", error)
    token = settings.ops.token.get_secret_value() if settings.ops.token is not None else ""
    answers, ended = _is_answering(f"{address}health"), _is_gateway_stopped(settings.store.path)
    fragment = (
        f"#token={quote(token, safe='')}" if sys.stdout.isatty() and not (answers and ended) else ""
    )
    sys.stdout.write(f"{address}{fragment}\n")
    if answers and not ended:
        return 0
    why = "another gateway or another program answers there" if answers else "nothing answers there"
    also = ", and set ops.port to a free one" if answers else ""
    sys.stderr.write(
        f"{why}; start this one: reverie run --config {shlex.quote(str(args.config))}{also}\n"
    )
    return 1


def _is_gateway_stopped(store: Path) -> bool:
    """Return whether no gateway runs with this store.

    False also where that cannot be seen, as from outside a container.
    """
    return not asyncio.run(find_gateway_state(store)).is_alive and os.access(store.parent, os.X_OK)


def _is_answering(url: str) -> bool:
    import httpx  # noqa: PLC0415 - the other commands start faster without it

    try:
        return httpx.get(url, timeout=3.0, trust_env=False).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
