"""`reverie ctl WORDS`: a command of the command table, in the words of the chat, carried out as the
operator.

The running gateway carries it out. Without one the same handlers work on its store, where that is
enough.

Exit codes: 0 done; 1 not carried out (the answer says why); 2 nothing could be done, or the words
are no command.
"""

import argparse
import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from gateway.cli.client import HELP_FLAGS, build_parser, print_answer
from gateway.command_line import current_user, find_config, load_settings, report_failure
from gateway.commands.definition import CommandDefinition
from gateway.commands.help import render_command
from gateway.config.models import Settings
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import send_control_request
from gateway.core.process_files import (
    ControlError,
    GatewayNotRunning,
    list_process_paths,
    process_name,
    process_path,
    socket_path,
)
from gateway.store import StoreError, store_location
from gateway.store.schema import check_current_schema


def operator_commands() -> Mapping[str, CommandDefinition]:
    """Return the commands of the chat by name: `reverie NAME` stands for `reverie ctl NAME`."""
    from gateway.commands.table import build_table  # noqa: PLC0415 - it needs all of the gateway
    from gateway.plugins import find_plugins  # noqa: PLC0415 - as above

    return build_table(find_plugins().used).operator


def run_ctl(argv: Sequence[str]) -> int:
    """Run the command line after `reverie ctl`. argparse exits by itself with 2 on bad usage."""
    if HELP_FLAGS & {*argv} and (row := operator_commands().get(argv[0])):
        options = build_parser().format_help().rpartition("\n\n")[2]
        print(f"{render_command(row, 'reverie ')}\n\n{options}", end="")
        return 0
    args = _parse_options(argv)
    settings = load_settings(find_config(args.config))
    try:
        order = CommandRequest(
            words=tuple(args.words),
            by=f"{current_user()} at the command line",
            place=args.place,
            agent=args.agent,
        )
        answer = asyncio.run(_send(settings, order, args.name))
    except ValidationError:
        return report_failure("ctl", ValueError("that is too long"))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("ctl", error)
    return print_answer(answer.model_dump(mode="json"), as_json=args.json)


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the line; arguments of the command that are given by their names take their places
    among its words.
    """
    parser = build_parser()
    args, unknown = parser.parse_known_intermixed_args(argv)
    if not unknown:
        return args
    row = operator_commands().get(args.words[0].lower())
    sub = row.find_sub(args.words[1].lower()) if row is not None and len(args.words) > 1 else None
    wanted = (sub or row).args if row is not None else ()
    for arg in wanted:
        parser.add_argument(
            f"--{arg.name}", dest=f"given {arg.name}", metavar="VALUE", default="", help=arg.summary
        )
    args = parser.parse_intermixed_args(argv)
    named = 2 if sub else 1
    words = iter(args.words[named:])
    args.words[named:] = [
        *(getattr(args, f"given {arg.name}") or next(words, "") for arg in wanted),
        *words,
    ]
    while not args.words[-1]:
        args.words.pop()
    return args


async def _send(settings: Settings, order: CommandRequest, name: str) -> ControlResponse:
    store = settings.store.path
    answers = dict[str, ControlResponse]()
    for process in list_process_paths(process_path(store, name)):
        with contextlib.suppress(GatewayNotRunning):
            answers[process_name(process, store)] = await send_control_request(
                socket_path(process), order
            )
            if order.words[0].lower() != "reload":  # which each process does for itself
                break
    if answers:
        return _join_answers(answers)
    if name:
        raise FileNotFoundError(f"no process named {name} runs on this host with the store {store}")
    if settings.store.url is not None and order.words == ("status",):
        return await _read_status(settings)
    if settings.store.url is None and not store.exists() and order.words[:2] != ("pair", "seed"):
        raise FileNotFoundError(
            f"no gateway is running, and there is no store at {store}: start it with `reverie run`"
        )
    from gateway.app import ChannelUnavailable, carry_out_stopped  # noqa: PLC0415 - as above

    try:
        return await carry_out_stopped(settings, order)
    except ChannelUnavailable as error:
        raise ValueError(str(error)) from error


async def _read_status(settings: Settings) -> ControlResponse:
    from gateway.cluster.database import read_processes  # noqa: PLC0415 - an extra, and SQLite needs none of it
    from gateway.cluster.monitor import render_process_report  # noqa: PLC0415 - only here

    assert settings.store.url is not None
    check_current_schema(store_location(settings.store))
    report = await read_processes(settings.store.url.get_secret_value())
    if not report.processes:
        return ControlResponse(
            ok=False, lines=("No process of this gateway is running.",), data=report
        )
    first = "No process of this gateway is running on this host."
    if any(one.host == socket.gethostname() and one.state != "cut off" for one in report.processes):
        first = (
            f"No process on this host has its files beside {settings.store.path}: see that it "
            "is mounted."
        )
    lines = [first, *render_process_report(report, datetime.now(UTC))]
    return ControlResponse(ok=True, lines=tuple(lines), data=report)


def _join_answers(answers: Mapping[str, ControlResponse]) -> ControlResponse:
    if len(answers) == 1:
        return next(iter(answers.values()))
    lines = [f"{name}: {line}" for name, answer in answers.items() for line in answer.lines]
    worst = min(answers.values(), key=lambda one: (one.understood, one.ok))
    return worst.model_copy(update={"lines": tuple(lines)})
