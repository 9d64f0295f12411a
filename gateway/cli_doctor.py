"""`reverie doctor`: what is wrong, what will surprise somebody, and what to do about it.

Only reads, also beside a running gateway. Exit codes: 0 nothing is bad, 1 something is, 2 bad usage, or there is no
configuration.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

INTERRUPTED_CODE = 1
"""The exit code of somebody who did not wait."""


def add_doctor_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `doctor` to a command line. The parsed namespace carries its handler as `handler(args) -> int`."""
    text = "look at everything that can be reached, and say what is wrong and what to do about it"
    parser = subparsers.add_parser("doctor", help=text, description=text)
    parser.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--offline", action="store_true", help="ask nobody beyond this machine")
    parser.set_defaults(handler=doctor_command)


def doctor_command(args: argparse.Namespace) -> int:
    """Handler of `doctor`."""
    import logging  # noqa: PLC0415 - only here

    from gateway.doctor.base import DoctorEnvironment  # noqa: PLC0415 - the other commands start faster without it
    from gateway.doctor.examine import examine  # noqa: PLC0415 - the same
    from gateway.doctor.report import ReportStyle  # noqa: PLC0415 - the same

    logging.disable(logging.CRITICAL)  # libraries and adapters log what the findings say
    progress = _DoctorProgress(sys.stderr) if sys.stderr.isatty() and not args.json else None
    where = DoctorEnvironment(directory=args.config, env=os.environ, offline=args.offline)

    async def shown() -> int:
        """What was found is shown before the loop's end, which waits for a name server that does not answer."""
        report = await examine(where, progress.show if progress else lambda *_: None)
        if progress:
            progress.clear()
        if args.json:
            sys.stdout.write(f"{report.to_json()}\n")
        else:
            style = ReportStyle(colour=supports_colour(sys.stdout, os.environ), ascii=not _can_encode_signs(sys.stdout))
            sys.stdout.writelines(f"{line}\n" for line in report.render_lines(style))
        sys.stdout.flush()
        return report.exit_code

    try:
        return asyncio.run(shown())
    except BrokenPipeError:  # whoever read us has seen enough (https://docs.python.org/3/library/signal.html)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    finally:
        logging.disable(logging.NOTSET)


def supports_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """On a terminal, unless somebody said no (https://no-color.org)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def _can_encode_signs(stream: TextIO) -> bool:
    """Whether the signs can be written there."""
    try:
        "✓✗".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _DoctorProgress:
    """One line on a terminal that says what is still looked at."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0
        columns = os.get_terminal_size(stream.fileno()).columns or 80  # 0: it does not say
        self._max_width = min(columns - 1, 78)  # what the terminal folds would stay when the rest is taken away

    def show(self, done: int, of: int, left: Sequence[str]) -> None:
        """Show it in place of what was shown before."""
        names = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")  # noqa: PLR2004 - what a line has room for
        line = f"looking: {done} of {of} ({names})"[: self._max_width] if left else ""
        self._stream.write(f"\r{line:<{self._width}}")
        self._stream.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Leave the line empty."""
        self._stream.write(f"\r{'':<{self._width}}\r")
        self._stream.flush()
