"""The process's own log: what it does, for whoever runs it. Readable on a terminal, JSON elsewhere.

All of the program, and its libraries, log by the standard library; structlog lays the lines out. Each has its time
(UTC), level, logger and message, and what it is about (`gateway.correlation`): conversation, turn, post. They quote
what servers and people say: secrets are taken out, and what a terminal could obey is escaped, before that.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Literal, TextIO, cast

from gateway.correlation import current_log_context
from gateway.redaction import Redact, Redactor
from gateway.store.lines import escape_unprintable

LogFormat = Literal["auto", "text", "json"]
"""`auto`: text on a terminal, else JSON."""
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("auto", "text", "json")
NOISY_LOGGERS: Final = ("httpx", "httpcore", "irc", "asyncio", "aiosqlite")
"""Libraries that tell of each request."""
_LogEvent = dict[str, Any]
_Processor = Callable[[Any, str, _LogEvent], Any]
"""structlog's own type; its values are whatever was logged."""

logger = logging.getLogger("reverie")


def start_logging(
    level: int, redact: Redact | None = None, *, form: LogFormat = "auto", stream: TextIO | None = None
) -> None:
    """One line per event, on standard error if no `stream` is named. `redact`: None, where no secrets are known.

    What nobody caught ends there, too: Python itself would write it as it is.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(build_formatter(redact or Redactor(), form, terminal=out.isatty()))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = _log_uncaught
    for noisy in NOISY_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def build_formatter(redact: Redact, form: LogFormat, *, terminal: bool) -> logging.Formatter:
    """How lines are laid out; in colours on a terminal, unless `NO_COLOR` is set (https://no-color.org)."""
    with _without_rich():
        import structlog  # noqa: PLC0415 - the commands that log nothing start faster without it
        from structlog.dev import ConsoleRenderer, plain_traceback  # noqa: PLC0415 - the same

    text = form == "text" or (form == "auto" and terminal)
    first: list[_Processor] = [_add_context, structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name]
    first += [structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%S" if text else "iso", utc=True)]
    colors = terminal and not os.environ.get("NO_COLOR")
    lines: _Processor = (
        ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=0, exception_formatter=plain_traceback)
        if text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    last: list[_Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _CleanProcessor(redact),
        lines,
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=cast("Any", first), processors=cast("Any", last), keep_exc_info=False, keep_stack_info=False
    )


def _add_context(_logger: object, _name: str, event: _LogEvent) -> _LogEvent:
    return {**event, **current_log_context()}


class _CleanProcessor:
    """Takes secrets out of all that a line holds, and escapes what a terminal could obey."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def __call__(self, _logger: object, _name: str, event: _LogEvent) -> _LogEvent:
        return {key: self._clean_value(key, value) for key, value in event.items()}

    def _clean_value(self, key: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        told = self._redact(value)
        # A traceback has lines of its own, and each of them may quote anything.
        return "\n".join(map(escape_unprintable, told.split("\n"))) if key == "exception" else escape_unprintable(told)


@contextmanager
def _without_rich() -> Iterator[None]:
    """Have structlog do without it: 8 MB and 70 ms, for tracebacks that are laid out plainly here."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # how the import system is told that there is none
    try:
        yield
    finally:
        with suppress(KeyError):
            del sys.modules["rich"]


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        logger.critical("this is a bug, and the end", exc_info=(kind, error, trace))
    else:
        sys.__excepthook__(kind, error, trace)
