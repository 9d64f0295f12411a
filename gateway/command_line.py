"""Shared parts of the commands: their common options, the configuration, and how answers and
failures are printed.

Settings and the store are imported where they are used: a command for a running gateway needs
neither (`gateway.cli.client`).
"""

import argparse
import contextlib
import getpass
import json
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.source import ConfigProblem, format_key, is_config_file
from gateway.core.process_files import check_process_name
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable

if TYPE_CHECKING:
    from gateway.config.loader import LoadedConfig
    from gateway.config.models import OpsConfig, Settings

BAD_USAGE = 2
"""Exit code: bad usage or configuration; nothing was done."""
_USAGE = FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError
"""What whoever called names: a path that is not there, is taken, or is not theirs."""


def add_command(
    subparsers: Any,  # noqa: ANN401 - argparse's type has no public name
    name: str,
    text: str,
    handler: Callable[[argparse.Namespace], int],
    *,
    where: Literal["config", "maybe config", "config or store"],
) -> argparse.ArgumentParser:
    """Add a command to a command line: see `fill_command`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=text, description=text)
    fill_command(parser, handler, where=where)
    return parser


def fill_command(
    parser: argparse.ArgumentParser,
    handler: Callable[[argparse.Namespace], int],
    *,
    where: Literal["config", "maybe config", "config or store"],
) -> None:
    """Add `--config` and, if it can do without, `--store` to a command, and its handler.

    The parsed namespace carries the handler as `handler(args) -> int`. Where it needs a
    configuration, `args.config` is set when the handler is called.
    """
    if where in ("config", "maybe config"):
        add_config(parser)
    else:
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--store", type=Path, metavar="PATH", help="the store's file")
        add_config(either, "that names the store ")

    def handle(args: argparse.Namespace) -> int:
        if where != "maybe config" and not (
            getattr(args, "store", None) or getattr(args, "file", None)
        ):
            args.config = find_config(args.config)
        return handler(args)

    parser.set_defaults(handler=handle)


def add_config(parser: Any, which: str = "") -> None:  # noqa: ANN401 - argparse's types of groups have no public names
    """Add `--config` of a command that needs a configuration: see `find_config`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help=f"the configuration directory {which}(default: $REVERIE_CONFIG, ./reverie or "
        "~/.config/reverie)",
    )


def find_config(named: Path | None) -> Path:
    """Return the configuration directory: the one that was named, that of $REVERIE_CONFIG, or the
    first of ./reverie and ~/.config/reverie that has a configuration. Exits if there is none.
    """
    if (found := named or default_config()) is not None:
        return found
    sys.stderr.write(
        "there is no configuration in ./reverie or ~/.config/reverie: name its directory with "
        "--config DIR or $REVERIE_CONFIG, or make one with `reverie setup`\n"
    )
    raise SystemExit(BAD_USAGE)


def default_config() -> Path | None:
    """Return the configuration directory where none is named: see `find_config`."""
    if chosen := os.environ.get("REVERIE_CONFIG"):
        return Path(chosen)
    for name in ("reverie", "~/.config/reverie"):
        with contextlib.suppress(OSError, RuntimeError):  # it may not be read; there is no home
            place = Path(name).expanduser()
            if place.is_dir() and any(map(is_config_file, place.iterdir())):
                return place
    return None


def add_process_name(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `--name`: that of a process among those that share a store."""

    def check(name: str) -> str:
        try:
            return check_process_name(name) if name else ""
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parser.add_argument("--name", type=check, default="", metavar="NAME", help=text)


def load_settings(directory: Path, needs: Collection[str] | None = ("store",)) -> "Settings":
    """Load the settings, as `load_config`."""
    return load_config(directory, needs).settings


def load_config(directory: Path, needs: Collection[str] | None) -> "LoadedConfig":
    """Load the configuration. Exits after all problems were printed to standard error.

    `needs`: the sections whose secrets the command needs. None: all, and everything that `reverie
    run` needs.
    """
    from gateway.config.loader import ConfigError, locate_problem, read_config  # noqa: PLC0415 - see above
    from gateway.config.validation import find_unrunnable  # noqa: PLC0415 - as above

    try:
        loaded = read_config(directory, os.environ, needs=needs)
        unrunnable = find_unrunnable(loaded.settings) if needs is None else ()
        if problems := [ConfigProblem("", 0, format_key(keys), why) for keys, why in unrunnable]:
            raise ConfigError(tuple(locate_problem(one, loaded.positions) for one in problems))  # noqa: TRY301 - as the others
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"{problem}\n")
        count = len(error.problems)
        sys.stderr.write(f"{count} problem{'s' if count > 1 else ''} found\n")
        raise SystemExit(BAD_USAGE) from None
    for warning in loaded.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return loaded


def build_redactor(directory: Path | None) -> Redactor:
    """Return a redactor that knows the secrets of a good configuration, as far as they are set
    here.

    None: only those that everybody knows.
    """
    from gateway.config.loader import read_config  # noqa: PLC0415 - see above
    from gateway.config.secrets import collect_secrets  # noqa: PLC0415 - as above

    if directory is None:
        return Redactor()
    loaded = read_config(directory, os.environ, needs=())
    return Redactor(collect_secrets(loaded.settings, loaded.resolved_values))


def print_json(value: object) -> None:
    """Print one line of ASCII: safe on every terminal."""
    sys.stdout.write(json.dumps(value) + "\n")


def drop_output() -> None:
    """Drop what standard output still holds, because its reader has closed the pipe, or it cannot
    be written (https://docs.python.org/3/library/signal.html#note-on-sigpipe).
    """
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_failure(command: str, error: Exception) -> int:
    """Print why nothing could be done; return exit code 2, or 1 if a disk or the like failed on the
    way.
    """
    from gateway.store.types import StoreUnavailable  # noqa: PLC0415 - see above

    reason = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        reason = f"{error.filename}: {error.strerror}"
    sys.stderr.write(f"reverie {command}: {escape_unprintable(reason)}\n")
    has_failed = isinstance(error, StoreUnavailable) or (
        isinstance(error, OSError) and not isinstance(error, _USAGE)
    )
    return 1 if has_failed else BAD_USAGE


def current_user() -> str:
    """Return the name of the user who runs this command. It is not verified."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name
        return f"user {os.getuid()}"


WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - such a listener is reached here


def dashboard_url(ops: "OpsConfig") -> str:
    """Return the URL of the page, without the token. Raises ValueError if there is none, or its
    port is not known.
    """
    if ops.token is None:
        raise ValueError(
            "the dashboard and the console need a token: set ops.token, at least 16 characters"
        )
    if not ops.port:
        raise ValueError(
            "ops.port is 0 (any free port): the log of the gateway shows which; set a port to see "
            "it here"
        )
    host = WILDCARD_HOSTS.get(ops.host, ops.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{ops.port}/"
