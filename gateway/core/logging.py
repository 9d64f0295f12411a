"""Log lines of the process, their context, and progress of slow work on standard error.

The program and its libraries log through the standard library: text on a terminal, JSON elsewhere.
Each line has its time (UTC), level, logger and message, and the conversation, turn and post it
belongs to (`gateway.core.context_var.log_context`). Lines quote servers and people: before that,
secrets are redacted and terminal escapes escaped.
"""

import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, TextIO

from gateway.core.context_var import LOG_FIELDS
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable

_TITLE_LOOKUP: ContextVar[Callable[[str], str]] = ContextVar("title")
LogFormat = Literal["auto", "text", "json"]
"""`auto`: text on a terminal, else JSON."""
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("auto", "text", "json")
NOISY_LOGGERS: Final = ("httpx", "httpcore", "irc", "asyncio", "aiosqlite")
"""Libraries that log each request."""
_COLORS: Final = {logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}
"""Colours of levels on a terminal (ECMA-48, SGR); green for the others."""
logger = logging.getLogger("reverie")
ReportProgress = Callable[[int, int], None]
"""Called with the done and the total amount. From any thread, as often as one likes."""
PROGRESS_LINE_S: Final = 10.0


def set_title_lookup(title: Callable[[str], str]) -> None:
    """Show titles of conversations in log lines, from here on and in tasks started from here on."""
    _TITLE_LOOKUP.set(title)


class _UnfailingFile(io.FileIO):
    """File in which what cannot be written is lost without an error."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        with suppress(OSError):
            super().write(data)
        return len(data)


def secure_standard_streams() -> None:
    """Let no closed or full standard error end the program, and no character that an output cannot
    show. Call it first.

    Closed standard streams get their numbers back, as /dev/null: the next files to be opened would
    get these, and whatever a library writes to standard error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", errors="replace", closefd=False)  # noqa: SIM115 - until the end
    if sys.stderr is sys.__stderr__:
        raw = io.BufferedWriter(_UnfailingFile(2, "w", closefd=False))
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
    if (
        sys.stdout is sys.__stdout__
        and isinstance(sys.stdout, io.TextIOWrapper)
        and sys.stdout.errors == "strict"
    ):
        sys.stdout.reconfigure(errors="replace")


def start_logging(
    level: int,
    redactor: Redactor | None = None,
    *,
    form: LogFormat = "auto",
    stream: TextIO | None = None,
) -> None:
    """Log one line per event, to standard error if `stream` is None. `redactor`: None where no
    secrets are known.

    A line that cannot be made or written is lost. Uncaught exceptions are logged, too: Python
    itself would print them unredacted.
    """
    out, terminal = stream or sys.stderr, False
    handler = logging.StreamHandler(out)
    logging.raiseExceptions = False
    with suppress(ValueError):  # it was closed
        terminal = out.isatty()
    handler.setFormatter(LineFormatter(redactor or Redactor(), form, terminal=terminal))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = _log_uncaught
    for noisy in NOISY_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """One line for each record, and in text the lines of its traceback; with colours on a terminal
    unless `NO_COLOR` is set (https://no-color.org).
    """

    def __init__(self, redactor: Redactor, form: LogFormat, *, terminal: bool) -> None:
        super().__init__()
        self._redactor = redactor
        self._is_text = form == "text" or (form == "auto" and terminal)
        self._has_colors = terminal and not os.environ.get("NO_COLOR")

    def format(self, record: logging.LogRecord) -> str:
        at, context = datetime.fromtimestamp(record.created, UTC), dict(LOG_FIELDS.get())
        title = _TITLE_LOOKUP.get(None)
        if title is not None and "conversation" in context:
            context["place"] = title(context["conversation"])
        fields = {"event": record.getMessage(), **context}
        fields |= {"level": record.levelname.lower(), "logger": record.name}
        fields = {key: escape_unprintable(self._redactor(one)) for key, one in fields.items()}
        fields["timestamp"] = f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
        if record.exc_info:
            # It has several lines, and each of them may quote untrusted text.
            lines = self._redactor(self.formatException(record.exc_info)).split("\n")
            fields["exception"] = "\n".join(map(escape_unprintable, lines))
        if not self._is_text:
            return json.dumps(fields, ensure_ascii=False)
        level = f"{fields['level']:<9}"
        if self._has_colors:
            level = f"\x1b[{_COLORS.get(record.levelno, 32)}m{level}\x1b[0m"
        about = "".join(f" {key}={fields[key]}" for key in context)
        line = f"{at:%Y-%m-%d %H:%M:%S} [{level}] {fields['event']} [{fields['logger']}]{about}"
        return f"{line}\n{fields['exception']}" if record.exc_info else line


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":
        logger.critical(
            "too little memory: raise the limit of this process (ulimit -d, MemoryMax), or free "
            "some"
        )
    elif issubclass(kind, Exception):
        logger.critical("this is a bug, and the end", exc_info=(kind, error, trace))
    else:
        sys.__excepthook__(kind, error, trace)


def show_progress(
    what: str, unit: str, out: TextIO | None = None, *, now: Callable[[], float] = time.monotonic
) -> ReportProgress:
    """Return what shows the progress of `what`, counted in `unit`: a line every `PROGRESS_LINE_S`
    seconds, and none for shorter work. `out` None: standard error.
    """
    stream, last = out or sys.stderr, now()

    def report(done: int, whole: int) -> None:
        nonlocal last
        if (at := now()) - last >= PROGRESS_LINE_S:
            last = at
            stream.write(f"{what}: {done:,} of {whole:,} {unit}\n")
            stream.flush()

    return report
