"""Command of the shell of a plugin of the tests."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path)
    parser.add_argument("player")
    parser.set_defaults(handler=_show)


def _show(args: argparse.Namespace) -> int:
    print(f"{args.player} has 17 points")
    return 0
