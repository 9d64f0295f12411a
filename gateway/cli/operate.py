"""Commands that set up and operate a gateway: setup, doctor, backup, restore, console, dashboard.

Each has an `add_*_parser` function and a handler that returns the exit code. Answers go to stdout,
reasons for failures to stderr.

Exit codes:
- `backup`, `restore`: 0 done; 1 interrupted, or the disk failed; 2 refused. A backup can be made
  beside a running gateway.
- `store copy`: 0 done and compared; 2 refused, or the copy is not right.
- `setup`: 0 done; 1 something does not work or was not confirmed; 2 bad usage. Nothing is written
  unless it is 0.
- `doctor`: 0 nothing is bad; 1 something is; 2 bad usage or no configuration; 3 nothing is bad, but
  some checks could not look. It only reads, also beside a running gateway.
- `dashboard`: 0 the page is there; 1 nobody answers, or another gateway does; 2 the configuration
  has no such page.
- `console`: 0 it was left; 2 it could not be opened; 3 no gateway answers.
"""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from gateway.cli.options import add_command, current_user, load_settings, report_failure
from gateway.config.models import OpsConfig
from gateway.core.clock import SystemClock
from gateway.core.logging import show_progress
from gateway.core.text_safety import escape_unprintable
from gateway.ops.health import find_gateway_state
from gateway.store import ServerStore, StoreError, StoreLocation, store_location

if TYPE_CHECKING:
    from gateway.cli.console.client import GatewayApiClient
    from gateway.cli.restore import RestoreReport
    from gateway.store.files import StoreSummary


def add_commands(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `console`, `setup`, `backup`, `restore`, `store`, `doctor` and `dashboard` to a command
    line.
    """
    text = "watch the running gateway and talk to it in this terminal"
    console = add_command(subparsers, "console", text, console_command, where="maybe config")
    text = "connect to the gateway at this address, with the token in REVERIE_TOKEN"
    console.add_argument("--url", default="", metavar="URL", help=text)
    _add_setup_parser(subparsers)
    text = "copy the store and the agents' files into one archive, also while the gateway runs"
    backup = add_command(subparsers, "backup", text, backup_command, where="config")
    backup.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a new file, or the directory for one"
    )
    text = "restore a backup into empty directories"
    restore = add_command(subparsers, "restore", text, restore_command, where="maybe config")
    restore.add_argument("file", type=Path, metavar="FILE", help="the backup")
    restore.add_argument(
        "--verify", action="store_true", help="only check whether it can be restored"
    )
    text = (
        "continue exactly where the backup stopped, e.g. on another machine; only if no gateway "
        "ran since"
    )
    restore.add_argument("--nothing-since", action="store_true", help=text)
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
    text = "check everything that can be reached, and show what is wrong and how to fix it"
    doctor = add_command(subparsers, "doctor", text, doctor_command, where="config", as_json=True)
    doctor.add_argument(
        "--offline", action="store_true", help="make no connections to other machines"
    )
    text = "show the address of the dashboard"
    add_command(subparsers, "dashboard", text, dashboard_command, where="config")


def backup_command(args: argparse.Namespace) -> int:
    """Handle `backup`."""
    from gateway.cli.backup import create_backup  # noqa: PLC0415 - the other commands start faster without it

    settings = load_settings(args.config)
    now = datetime.now(UTC)
    target: Path = args.output if args.output is not None else Path()
    if target.is_dir():
        target /= f"reverie-{now:%Y%m%dT%H%M%SZ}.tar"
    try:
        with show_progress("copying the store", "") as progress:
            report = create_backup(settings, target, now, progress)
    except (StoreError, OSError) as error:
        return report_failure("backup", error)
    except KeyboardInterrupt:
        print("interrupted: no backup was made", file=sys.stderr)
        return 1
    print(f"{report.path}: {report.size_bytes / 1e6:.1f} MB, {_describe_store(report.store)}")
    for name in report.left_out:
        print(
            "left out, because it is not a regular file or has no plain name: "
            f"{escape_unprintable(name)}"
        )
    return 0


def store_copy_command(args: argparse.Namespace) -> int:
    """Handle `store copy`."""
    from gateway.store.transfer import transfer_store  # noqa: PLC0415 - the other commands start faster without it

    config = load_settings(args.config).store
    source = (
        store_location(config) if args.source is None else _parse_store(args.source, config.path)
    )
    target = _parse_store(args.target, config.path)
    try:
        with show_progress("copying the log", "entries") as tell:
            done = transfer_store(source, target, SystemClock(), tell)
    except (StoreError, OSError) as error:
        return report_failure("store copy", error)
    print(
        f"{target} holds all {done.entries:,} entries of {source}, and the same tables; sha256 "
        f"{done.digest}"
    )
    return 0


def _parse_store(text: str, path: Path) -> StoreLocation:
    """Return the store that is meant. `path`: where the local files of a database are."""
    return ServerStore(text, path) if "://" in text else Path(text)


def restore_command(args: argparse.Namespace) -> int:
    """Handle `restore`."""
    from gateway.cli.backup import InvalidBackup  # noqa: PLC0415 - the other commands start faster without it
    from gateway.cli.restore import restore_backup, verify_backup  # noqa: PLC0415 - as above

    try:
        if args.verify:
            made, store = verify_backup(args.file)
            print(
                f"it can be restored: {_describe_store(store)}, made {made:%Y-%m-%d %H:%M:%S} UTC"
            )
            return 0
        if args.config is None:
            return report_failure(
                "restore", ValueError("say where to restore it: --config DIR (or --verify)")
            )
        settings = load_settings(args.config)
        report = restore_backup(
            args.file, settings, datetime.now(UTC), exact=args.nothing_since, by=current_user()
        )
    except InvalidBackup as error:
        return report_failure("restore", ValueError(f"{args.file} cannot be restored: {error}"))
    except (StoreError, OSError) as error:
        return report_failure("restore", error)
    except KeyboardInterrupt:
        print("interrupted: nothing was restored", file=sys.stderr)
        return 1
    _print_restored(report, exact=args.nothing_since)
    return 0


def _print_restored(report: "RestoreReport", *, exact: bool) -> None:
    for place in report.restored_paths:
        print(f"restored: {place}")
    print(f"a backup of {report.made:%Y-%m-%d %H:%M:%S} UTC, {_describe_store(report.store)}")
    changes = report.reconciled
    if exact:
        print(
            "it continues exactly where the backup stopped; if a gateway ran since, people would "
            "see messages twice"
        )
        return
    print(
        f"{changes.uncertain_posts} waiting posts may have been sent since: they are uncertain and "
        "are not sent again"
    )
    print(
        f"{changes.unread_conversations} conversations had unanswered messages: "
        "the agent sees them with the next message there"
    )
    for name in changes.reset_channels:
        print(f"{name} starts again: messages since the backup are not read from its history")
    print("approvals, blocks and roles since the backup are lost; reminders of that time come late")


def _describe_store(store: "StoreSummary") -> str:
    return f"{store.entries} log entries up to {store.last}, integrity checked"


def console_command(args: argparse.Namespace) -> int:
    """Handle `console`."""
    if find_spec("textual") is None:
        return report_failure(
            "console", ValueError("install it: pip install 'reverie-gateway[console]'")
        )
    if not (
        sys.stdin.isatty() and sys.stderr.isatty()
    ):  # Textual reads from stdin and draws on stderr
        return report_failure(
            "console", ValueError("it needs a terminal; `reverie log tail -f` can be piped")
        )
    from gateway.cli.console.client import ApiUnavailable, ConsoleApiError, GatewayApiClient  # noqa: PLC0415 - the other commands start faster without it

    if args.config is None and not args.url:
        return report_failure(
            "console", ValueError("name a configuration with --config, or a gateway with --url")
        )
    settings = (
        load_settings(args.config, needs=("store", "ops")) if args.config is not None else None
    )
    configured = settings.ops.token if settings is not None else None
    token = configured.get_secret_value() if configured is not None else ""
    url = args.url
    try:
        url = url or dashboard_url(settings.ops if settings is not None else OpsConfig())
        token = os.environ.get("REVERIE_TOKEN") or token if args.url else token
        return asyncio.run(_run_console(GatewayApiClient(url, token)))
    except ApiUnavailable as error:
        where = f" --config {shlex.quote(str(args.config))}" if args.config is not None else ""
        sys.stderr.write(
            f"console: no gateway answers at {url} ({error}): start `reverie run{where}`\n"
        )
        return 3
    except (ConsoleApiError, OSError, ValueError) as error:
        return report_failure("console", error)


async def _run_console(api: "GatewayApiClient") -> int:
    from gateway.cli.console.app import ConsoleApp  # noqa: PLC0415 - nothing else imports Textual

    try:
        await api.get_status()
        app = ConsoleApp(api, f"{current_user()} at the console")
        await app.run_async()
    finally:
        await api.close()
    return app.return_code or 0


WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - such a listener is reached here
DASHBOARD_TIMEOUT_S = 3.0


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


def dashboard_url(ops: OpsConfig) -> str:
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


def _is_gateway_stopped(store: Path) -> bool:
    """Return whether no gateway runs with this store.

    False also where that cannot be seen, as from outside a container.
    """
    return not asyncio.run(find_gateway_state(store)).is_alive and os.access(store.parent, os.X_OK)


def _is_answering(url: str) -> bool:
    import httpx  # noqa: PLC0415 - the other commands start faster without it

    try:
        return httpx.get(url, timeout=DASHBOARD_TIMEOUT_S, trust_env=False).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


INTERRUPTED_CODE = 1
"""Exit code after Ctrl-C or a closed pipe."""


def doctor_command(args: argparse.Namespace) -> int:
    """Handle `doctor`."""
    import logging  # noqa: PLC0415 - only here

    from gateway.cli.doctor import ReportStyle, examine  # noqa: PLC0415 - as above
    from gateway.config.check_registry import CheckEnvironment  # noqa: PLC0415 - the other commands start faster without it

    logging.disable(logging.CRITICAL)  # libraries and adapters log what the findings report
    if sys.stderr.isatty() and not args.json:
        sys.stderr.write("checking ...\n")
    where = CheckEnvironment(directory=args.config, env=os.environ, offline=args.offline)

    async def examine_and_print() -> int:
        """Print before the event loop ends, which waits for name servers that do not answer."""
        report = await examine(where)
        if args.json:
            sys.stdout.write(f"{report.to_json()}\n")
        else:
            style = ReportStyle(
                colour=supports_colour(sys.stdout, os.environ),
                ascii=not _can_encode_signs(sys.stdout),
            )
            sys.stdout.writelines(f"{line}\n" for line in report.render_lines(style))
        sys.stdout.flush()
        return report.exit_code

    try:
        return asyncio.run(examine_and_print())
    except (
        BrokenPipeError
    ):  # the reader closed the pipe (https://docs.python.org/3/library/signal.html)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    finally:
        logging.disable(logging.NOTSET)


def supports_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Return whether to use colours: on a terminal, unless the environment forbids it
    (https://no-color.org).
    """
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def _can_encode_signs(stream: TextIO) -> bool:
    try:
        "✓✗".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _add_setup_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    from gateway.cli.setup.dialog import QUESTIONS, SECRETS, flag_of  # noqa: PLC0415 - as above

    text = "ask questions, test the answers, and write the configuration"
    usage = "%(prog)s [--config DIR] [--non-interactive] [an answer by its flag ...]"
    parser = subparsers.add_parser("setup", help=text, description=text, usage=usage)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help="the configuration directory (else setup asks for it)",
    )
    parser.add_argument(
        "--non-interactive", action="store_true", help="ask nothing: use flags or defaults"
    )
    parser.add_argument("--yes", action="store_true", help="change existing files without asking")
    parser.add_argument(
        "--force", action="store_true", help="the same, and also write answers that did not work"
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs; implies --non-interactive"
    )
    answers = parser.add_argument_group("answers, each to one question")
    for key, (_, help_text) in QUESTIONS.items():
        answers.add_argument(flag_of(key), metavar="TEXT", help=help_text)
    hidden = parser.add_argument_group("secrets, by the name of an environment variable or a file")
    for key, (_, help_text) in SECRETS.items():
        either = hidden.add_mutually_exclusive_group()
        either.add_argument(f"{flag_of(key)}-env", metavar="NAME", help=help_text)
        either.add_argument(f"{flag_of(key)}-file", type=Path, metavar="PATH", help="the same")
    parser.set_defaults(handler=setup_command)


def setup_command(args: argparse.Namespace) -> int:
    """Handle `setup`."""
    from gateway.cli.setup.dialog import QUESTIONS, SECRETS, Respondent  # noqa: PLC0415 - the other commands start faster without it
    from gateway.cli.setup.program import run_setup  # noqa: PLC0415 - as above

    given = {key.replace("_", "."): value for key, value in vars(args).items() if value is not None}
    secrets = {key: f"${{{given[f'{key}.env']}}}" for key in SECRETS if f"{key}.env" in given}
    for key in SECRETS:
        if path := given.get(f"{key}.file"):
            secrets[key] = f"${{file:{path.absolute()}}}"
    person = Respondent(
        {key: given[key] for key in QUESTIONS if key in given},
        secrets,
        attended=not (args.non_interactive or args.json),
        force=args.force,
    )
    return run_setup(args.config, person, as_json=args.json, yes=args.yes or args.force)
