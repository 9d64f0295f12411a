"""Commands of the shell of a plugin of the tests."""

import argparse
from typing import Any


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("scores")
    parser.add_argument("player")
    parser.set_defaults(handler=_show)


def _show(args: argparse.Namespace) -> int:
    print(f"{args.player} has 17 points")
    return 0
