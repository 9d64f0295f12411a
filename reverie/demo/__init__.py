"""The command `reverie demo`: a tour of a real gateway on this machine, or a chat with a real
model.

- `chat.py`: the chat, and what starts and ends everything. `tour.py`: the steps of the tour.
- `stage.py`: the IRC server, its people, and the gateway as a process.
- `stand_in.py`: the rules that answer in place of a model.
- `terminal.py`: what is shown, and what is typed.

It stands above the gateway's command line, because server and stand-in are fakes of
`reverie.testing`.
"""

import argparse
import os
from typing import Any


def add_commands(commands: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add it to a command line."""
    text = "show what a bot does, and talk to one, on a private IRC server of this machine"
    parser = commands.add_parser("demo", help=text, description=text)
    parser.add_argument(
        "--once", metavar="LINE", help="say one line, wait for the answer, and exit"
    )
    parser.add_argument(
        "--model",
        choices=("stand-in", "embedded"),
        help="in place of a model whose key is in the environment: rules and a tour, or a very "
        "small model, if it is installed (default without a key: stand-in)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=6667,
        help="port of the IRC server (default 6667, or any free one)",
    )
    parser.set_defaults(handler=_demo)


def _demo(args: argparse.Namespace) -> int:
    from reverie.demo.chat import run_demo  # noqa: PLC0415 - the other commands start faster without it

    return run_demo(once=args.once, model=args.model, port=args.port, env=os.environ)
