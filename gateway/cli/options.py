"""Shared parts of the commands: options for store and configuration, and how answers and failures are printed."""

import argparse
import asyncio
import contextlib
import getpass
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gateway.config.models import Settings
from gateway.core.text_safety import escape_unprintable
from gateway.store import Store, StoreError, StoreReader

ResolveStore = Callable[[Path], Path]
"""Returns the store's path for a configuration directory. The caller handles its exceptions."""
ResolveSettings = Callable[[Path], Settings]
"""Returns the settings of a configuration directory. The caller handles its exceptions."""


def add_store_options(parser: argparse.ArgumentParser, resolve_store: ResolveStore) -> None:
    """Add `--store` and `--config`, of which one is required."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--store", type=Path, metavar="PATH", help="the store's file")
    where.add_argument("--config", type=Path, metavar="DIR", help="the configuration that names it")
    parser.set_defaults(resolve_store=resolve_store)


def resolve_store_path(args: argparse.Namespace) -> Path:
    """Return the path of the store. Raises what the command's `ResolveStore` raises."""
    path: Path = args.store if args.store is not None else args.resolve_store(args.config)
    return path


def run_with_reader(
    command: str, args: argparse.Namespace, run: Callable[[StoreReader], Coroutine[Any, Any, None]]
) -> int:
    """Run a command with a reader of the store. Return 0, or 2 after printing the reason to stderr."""

    async def opened() -> None:
        async with await Store.open_readonly(resolve_store_path(args)) as reader:
            await run(reader)
            sys.stdout.flush()

    try:
        asyncio.run(opened())
    except BrokenPipeError:  # the reader closed the pipe (https://docs.python.org/3/library/signal.html)
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:  # the usual end of `tail -f`
        pass
    except (StoreError, OSError) as error:
        return report_failure(command, error)
    return 0


def report_failure(command: str, error: Exception) -> int:
    """Print why nothing could be done; return exit code 2."""
    sys.stderr.write(f"reverie {command}: {escape_unprintable(str(error))}\n")
    return 2


def current_user() -> str:
    """Return the name of the user who runs this command. It is not verified."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name
        return f"user {os.getuid()}"
