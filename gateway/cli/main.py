"""The `reverie` command: its argument parser, and `run` and `check-config`.

The other commands are in the modules of `_COMMAND_GROUPS`, in `ctl`, and in plugins.
"""

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from difflib import get_close_matches
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, Final

from channels.aio import cancel_and_wait
from gateway import __version__
from gateway.cli.client import HELP as CTL_HELP
from gateway.cli.ctl import operator_commands, run_ctl
from gateway.command_line import (
    BAD_USAGE,
    add_command,
    add_process_name,
    load_config,
    load_settings,
    report_failure,
)
from gateway.config.loader import ConfigError, ConfigFiles, LoadedConfig
from gateway.config.models import BudgetsConfig
from gateway.core.logging import LOG_FORMATS, secure_standard_streams, start_logging
from gateway.core.name_clash import find_name_clashes
from gateway.core.process_files import default_process_name
from gateway.core.redaction import Redactor
from gateway.core.removed import find_removed
from gateway.store import StoreError, store_location

DONE, FAILED, TRY_AGAIN = 0, 1, os.EX_TEMPFAIL
"""Exit codes: done; failed while running; the log was given up (75), so a supervisor should start
again. See `BAD_USAGE`."""

MAX_PORT: Final = 65_535
STARTUP_S = 3.0
"""Seconds after the start when everything permanent is in memory: libraries, settings,
connections."""

logger = logging.getLogger("reverie")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. argparse exits by itself with 2 on bad usage."""
    secure_standard_streams()
    parser, commands = _build_parser()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    argv = {(): ["--help"], ("version",): ["--version"]}.get(tuple(argv), argv)
    called = next((word for word in argv if not word.startswith("-")), "")
    line = argv[argv.index(called) + (called == "ctl") :] if called else []
    if gone := find_removed(line):
        return report_failure(called, ValueError(gone))
    if called == "ctl":
        return run_ctl(line)
    if called not in commands.choices or called == "completion":
        modules = [module for module, names in _COMMAND_GROUPS.items() if called in names]
        is_here = not called or modules or called in commands.choices or _is_of_plugin(called)
        if not is_here and called in operator_commands():
            return run_ctl(argv)
        _add_commands(commands, called, modules)
    if called and called not in commands.choices:
        parser.error(
            _describe_unknown(
                "command", called, [*commands.choices, *operator_commands()], "reverie"
            )
        )
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        own = commands.choices[called]
        own.error(_describe_unknown("argument", unknown[0], own.format_help().split(), own.prog))
    if called == "completion":
        return _print_completion(parser, commands, args.shell)
    code: int = args.handler(args)
    return code


def _describe_unknown(what: str, written: str, names: Sequence[str], command: str) -> str:
    near = get_close_matches(written, names, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"there is no {what} {written}: {meant}`{command} --help` lists all"


def _build_parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = argparse.ArgumentParser(prog="reverie", description="A chat-platform bot gateway.")
    parser.add_argument("--version", action="version", version=f"reverie {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text, handler in (
        ("run", "run the gateway", _run),
        ("check-config", "check the configuration and list all mistakes", _check_config),
    ):
        add_command(commands, name, help_text, handler, where="config")
    add_process_name(
        commands.choices["run"],
        "name of this process among those that share the store (default: host and process id)",
    )
    commands.choices["run"].add_argument(
        "--ops-port",
        type=_port,
        metavar="PORT",
        help="in place of ops.port: each process of a host needs its own; 0: a free one",
    )
    commands.choices["run"].add_argument(
        "--verbose", action="store_true", help="log debugging detail"
    )
    commands.choices["run"].add_argument(
        "--log",
        choices=LOG_FORMATS,
        default="auto",
        help="format of its own log (default auto: text on a terminal, else JSON)",
    )
    commands.add_parser("ctl", help=CTL_HELP, add_help=False)
    commands.add_parser(
        "completion",
        help="print a script that completes `reverie` in a shell, e.g. for ~/.bashrc: "
        'eval "$(reverie completion bash)"',
    ).add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser, commands


def _print_completion(parser: argparse.ArgumentParser, commands: Any, shell: str) -> int:  # noqa: ANN401 - as below
    import shtab  # noqa: PLC0415 - only here

    for name, command in operator_commands().items():
        if name not in commands.choices:
            commands.add_parser(name, help=command.summary)
    print(shtab.complete(parser, shell))
    return DONE


_COMMAND_GROUPS: Final = {
    "gateway.cli.log": ("log",),
    "gateway.cli.plugins": ("plugins", "new"),
    "gateway.cli.operate": ("store", "dashboard"),
    "reverie.demo": ("demo",),
}
"""Commands of each module. Only that of the called command is imported; all for `--help`."""


def _is_of_plugin(command: str) -> bool:
    from gateway.plugins import find_plugins  # noqa: PLC0415 - the other commands start faster without it

    return any(command in one.subcommands for one in find_plugins().used)


def _add_commands(commands: Any, called: str, modules: Collection[str]) -> None:  # noqa: ANN401 - as above
    """Add the commands of these modules; without any, all commands. Those of plugins get their
    arguments only where they are called or completed; what their modules raise is printed.
    """
    from gateway.plugins import find_plugins  # noqa: PLC0415 - the other commands start faster without it

    for module in modules or _COMMAND_GROUPS:
        import_module(module).add_commands(commands)
    for plugin in () if modules else find_plugins().used:
        for name, (text, arguments) in plugin.subcommands.items():
            if name in commands.choices:
                print(f"plugin {plugin.name}: there is a command {name} already", file=sys.stderr)
                continue
            parser = commands.add_parser(name, help=text, description=text)
            if called in (name, "completion"):
                try:
                    resolve_name(arguments)(parser)
                except Exception as error:  # noqa: BLE001 - code of anybody's is imported here
                    print(f"plugin {plugin.name}: its commands fail: {error}", file=sys.stderr)
                    if name == called:
                        raise SystemExit(FAILED) from None


def _check_config(args: argparse.Namespace) -> int:
    from gateway.config.check_registry import CheckEnvironment  # noqa: PLC0415 - the other commands start faster without it
    from gateway.config.validation import list_used_models  # noqa: PLC0415 - as above
    from gateway.plugins.doctor.examine import CONFIG_CHECKS, examine  # noqa: PLC0415 - as above

    settings = load_settings(args.config, needs=None)
    where = CheckEnvironment(directory=args.config, env=os.environ, offline=True)
    report = asyncio.run(examine(where, CONFIG_CHECKS))
    for one in report.findings:
        if one.level != "ok":
            sign = "" if one.level == "bad" else "warning: "
            print(f"{sign}{one.where}: {one.what}; {one.fix}", file=sys.stderr)
    if report.exit_code == FAILED:
        return BAD_USAGE
    location = store_location(settings.store)
    print(
        f"the configuration in {args.config} is good: {len(settings.channels)} channel(s), store "
        f"{location}"
    )
    if unused := settings.llm.models.keys() - list_used_models(settings):
        print(f"models that no agent uses until /model chooses them: {', '.join(sorted(unused))}")
    print(_describe_budgets(settings.access.budgets))
    return DONE


def _describe_budgets(budgets: BudgetsConfig) -> str:
    limits = (
        f"\n  one {name.removesuffix('_usd').replace('sender', 'person')}: "
        f"{'no limit' if usd is None else f'${usd:g} a day'}"
        for name, usd in budgets
    )
    return f"cost limits for people without the role admin (access.budgets):{''.join(limits)}"


def _run(args: argparse.Namespace) -> int:
    # Until `_end_start`: collections during the start take a fifth of its time.
    gc.disable()
    from gateway.config.secrets import collect_secrets  # noqa: PLC0415 - the other commands start faster without it

    loaded = load_config(args.config, needs=None)
    redactor = Redactor(collect_secrets(loaded.settings, loaded.resolved_values))
    name = (args.name or default_process_name()) if loaded.settings.store.url is not None else ""
    start_logging(logging.DEBUG if args.verbose else logging.INFO, redactor, form=args.log)
    return asyncio.run(_end_soon(_serve(loaded, args, redactor, name)))


async def _end_soon(serving: Awaitable[int]) -> int:
    """Await the exit code, and return it. The process ends with it in 3 s, also while a thread
    looks up a name that no server answers.
    """
    code = await serving
    end = threading.Timer(3.0, os._exit, [code])  # nothing is open any more
    end.daemon = True
    end.start()
    return code


async def _serve(
    loaded: LoadedConfig, args: argparse.Namespace, redactor: Redactor, name: str
) -> int:
    from gateway import app  # noqa: PLC0415 - the other commands start faster without it
    from gateway.app import ChannelUnavailable  # noqa: PLC0415 - the same
    from gateway.config.reload import LiveSettings  # noqa: PLC0415 - as above
    from gateway.config.secrets import PriceTableError  # noqa: PLC0415 - as above

    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_loop_error_reporter())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ops = {} if args.ops_port is None else {"port": args.ops_port}
    files = ConfigFiles(args.config, os.environ, loaded.referenced_files, ops)
    settings = files.with_ops(loaded.settings)
    live = LiveSettings(settings, files)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, live.request_reload)
    for number in (
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
    ):  # their default ends the process
        asyncio.get_running_loop().add_signal_handler(
            number, logger.info, "%s is ignored", number.name
        )
    settled = asyncio.create_task(_end_start())
    try:
        await app.run(settings, stop, live=live, redactor=redactor, name=name)
    except (ChannelUnavailable, ConfigError, PriceTableError) as error:
        logger.error("%s", error)  # noqa: TRY400 - the operator can fix it; a traceback does not help
        return BAD_USAGE
    except StoreError as error:
        logger.error("%s", error)  # noqa: TRY400 - as above
        return FAILED
    except (app.StoreGivenUp, app.ProcessRemoved) as error:
        logger.error("%s", error)  # noqa: TRY400 - as above
        return TRY_AGAIN
    finally:
        await cancel_and_wait(settled)
    return DONE


def _loop_error_reporter() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return what logs errors outside of tasks. That descriptors are used up is one line a minute.

    asyncio tries to accept a connection a hundred times a second then, and reports each try with a
    traceback.
    """
    next_s = 0.0

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal next_s
        if getattr(context.get("exception"), "errno", None) not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= next_s:
            next_s = loop.time() + 60.0
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            logger.error(
                "connections cannot be accepted: all %d file descriptors are in use; raise "
                "LimitNOFILE",
                limit,
            )

    return report


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 to {MAX_PORT}")
    return int(text)


async def _end_start() -> None:
    """Exclude everything created during the start from garbage collection, once that is over.

    Traversing it took 45 ms about once in a hundred messages, while somebody waited
    (bench_gateway). Packages of our names are told then, or when the start has failed: to look for
    them takes 20 ms.
    """
    try:
        await asyncio.sleep(STARTUP_S)
        gc.enable()
    finally:
        for clash in find_name_clashes():
            logger.warning("%s: %s", *clash)
    gc.collect()
    with contextlib.suppress(ImportError, OSError, AttributeError):  # another C library than glibc
        import ctypes  # noqa: PLC0415 - 5 ms that no start has to take

        ctypes.CDLL(None).malloc_trim(0)  # 2 MB that the start needed
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
