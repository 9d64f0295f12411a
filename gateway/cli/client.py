"""Commands that a running gateway carries out, in 0.1 s: `reverie status`, `reverie ctl why 17`.

Its socket is asked before the settings, plugins and the store are imported, which takes most of the
time of a command. Of the configuration only the store's place is read: its mistakes and warnings
are told where the gateway reads it again (`reverie reload`, `reverie check-config`). All else is
left to `gateway.cli.main`: no gateway runs, the files are no YAML, the command is one of a plugin.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.command_line import (
    add_config,
    add_process_name,
    current_user,
    default_config,
    drop_output,
    print_json,
    report_failure,
)
from gateway.config.source import (
    DEFAULT_STORE,
    ConfigSource,
    is_config_file,
    merge_sources,
    read_yaml_file,
    value_at,
)
from gateway.core.logging import secure_standard_streams
from gateway.core.process_files import (
    ANSWER_S,
    READ_S,
    ControlError,
    GatewayNotAnswering,
    GatewayNotRunning,
    exchange,
    list_process_paths,
    process_path,
    socket_path,
)
from gateway.core.removed import find_removed
from gateway.core.text_safety import escape_unprintable

HELP: Final = (
    "run a command of the chat, also without `ctl`: `pair list`, `why 17`, `audit`; `ctl help` "
    "lists them"
)
HELP_FLAGS: Final = {"-h", "--help"}
CHAT_COMMANDS: Final = {
    "about", "again", "approve", "audit", "block", "cache", "channels", "commands", "compact",
    "deny", "dmn", "files", "intentions", "join", "journal", "kill", "link", "memory", "model",
    "more", "notifications", "notify", "pair", "part", "pause", "persona", "quiet", "recap",
    "remind", "reminders", "restart", "retry", "rewind", "role", "room", "rooms", "say", "seen",
    "show", "start", "status", "stop", "tools", "unblock", "usage", "wake", "whoami", "why",
}  # fmt: skip
"""Commands of the chat, known without their plugins; a test compares them with the table. Not
`reload`, which each process carries out."""
_PLAIN_CHARS: Final = 200
"""An order of fewer characters keeps each limit of `CommandRequest`."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line after `reverie ctl`."""
    parser = argparse.ArgumentParser(prog="reverie ctl", description=HELP, allow_abbrev=False)
    parser.add_argument(
        "words",
        nargs="+",
        metavar="WORD",
        help="name, subcommand, arguments (also as --NAME VALUE)",
    )
    parser.add_argument(
        "--in", dest="place", default="", metavar="CONVERSATION", help="e.g. irc.libera/#python"
    )
    parser.add_argument(
        "--agent", default="", metavar="ID", help="the agent (default: that of the conversation)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: the answer, and its data"
    )
    add_config(parser)
    add_process_name(
        parser,
        "the process that carries it out (default: any on this host; all of them for `reload`)",
    )
    return parser


def ask_gateway(argv: Sequence[str]) -> int | None:
    """Have the running gateway carry out a command line, and return the exit code. None: nothing
    was sent, and `gateway.cli.main` decides what it is.
    """
    is_ctl = argv[:1] == ["ctl"]
    line = argv[1:] if is_ctl else argv
    if (
        not line
        or not (is_ctl or line[0] in CHAT_COMMANDS)
        or HELP_FLAGS & {*line}
        or find_removed(line)
    ):
        return None
    secure_standard_streams()
    args, unknown = build_parser().parse_known_intermixed_args(line)
    if args.words[0].lower() == "reload":
        return None
    directory = args.config or default_config()
    store = None if unknown or directory is None else _find_store(directory)
    order = {"words": args.words, "place": args.place, "agent": args.agent}
    order["by"] = f"{current_user()} at the command line"
    sent = json.dumps(order).encode()
    if store is None or len(sent) > _PLAIN_CHARS:
        return None
    for path in map(socket_path, list_process_paths(process_path(store, args.name))):
        try:
            answer = _parse_answer(path, exchange(path, sent, READ_S + ANSWER_S))
        except GatewayNotRunning:
            continue
        except ControlError as error:
            return report_failure("ctl", error)
        return print_answer(answer, as_json=args.json)
    return None


def _parse_answer(path: Path, line: bytes) -> dict[str, Any]:
    """Return the answer from a socket. Raises GatewayNotAnswering if it is none of a gateway."""
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
    if isinstance(answer, dict) and {"ok", "understood", "lines", "data"} == answer.keys():
        return answer
    raise GatewayNotAnswering(
        f"another program, or a gateway of another version, listens on {path}"
    )


def _find_store(directory: Path) -> Path | None:
    """Return the path of the store in a configuration, which is read without its checks. None: it
    has mistakes, or cannot be read.
    """
    source = ConfigSource()
    try:
        for file in sorted(filter(is_config_file, directory.iterdir())):
            merge_sources(source, read_yaml_file(file, os.environ))
        path = value_at(source.data, "store", "path") or DEFAULT_STORE
        if source.problems or ("store", "path") in source.unresolved or not isinstance(path, str):
            return None
        return directory.absolute() / Path(path).expanduser()
    except (OSError, ValueError, RuntimeError):
        return None


def print_answer(answer: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the answer of a gateway (`ControlResponse`), and return the exit code."""
    try:
        if as_json:
            print_json(answer)
        else:
            out = sys.stdout if answer["ok"] else sys.stderr
            lines = (escape_unprintable(line) for line in answer["lines"] if line != "```")
            out.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            return report_failure("ctl", error)
    if not answer["understood"]:
        return 2
    return 0 if answer["ok"] else 1
