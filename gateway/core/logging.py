"""The process's own log: what it does, for whoever runs it. Readable on a terminal, JSON elsewhere.

All of the program, and its libraries, log by the standard library; structlog lays the lines out. Each has its time
(UTC), level, logger and message, and what it is about (`gateway.core.logging`): conversation, turn, post. They quote
what servers and people say: secrets are taken out, and what a terminal could obey is escaped, before that.

How far slow work has come, on standard error: a bar on a terminal, now and then a line elsewhere.

What the log lines that are written just now are about: a conversation, a turn, a post.

Whoever begins with something says so once; every log line of that work, also of libraries, then carries it
(`gateway.core.logging`). It costs a context variable, and nothing where nobody logs.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, TextIO, cast

from gateway.core.redaction import Redact, Redactor
from gateway.core.text_safety import escape_unprintable

_TITLE_LOOKUP: ContextVar[Callable[[str], str]] = ContextVar("title")
_LOG_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def log_context(**what: str) -> Iterator[None]:
    """Until this ends, and in tasks that are begun meanwhile, log lines carry these, and none of what held before.

    Nothing is taken over, because a task of one conversation may be begun in the middle of another's turn.
    """
    before = _LOG_CONTEXT.set(what)
    try:
        yield
    finally:
        _LOG_CONTEXT.reset(before)


def current_log_context() -> Mapping[str, str]:
    """What holds now; with `place`, what people call the conversation, once `set_title_lookup` was called."""
    found, title = _LOG_CONTEXT.get(), _TITLE_LOOKUP.get(None)
    if title is None or "conversation" not in found:
        return found
    return {**found, "place": title(found["conversation"])}


def set_title_lookup(title: Callable[[str], str]) -> None:
    """From here on, and in tasks that are begun from here on, log lines tell what conversations are called."""
    _TITLE_LOOKUP.set(title)


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


ReportProgress = Callable[[int, int], None]
"""Told how much is done, and of how much. From any thread, as often as one likes."""
PROGRESS_LINE_S: Final = 10.0
"""Between two lines where no terminal is."""


@contextmanager
def show_progress(
    what: str, unit: str, out: TextIO | None = None, *, now: Callable[[], float] = time.monotonic
) -> Iterator[ReportProgress]:
    """Show how far `what` has come, counted in `unit`, until this ends: a bar that leaves nothing behind.

    Where `out` (None: standard error) is no terminal, a line every `PROGRESS_LINE_S` seconds; nothing for what is over
    sooner.
    """
    stream = out or sys.stderr
    if stream.isatty():
        yield from _progress_bar(what, unit, stream)
    else:
        yield _progress_lines(what, unit, stream, now)


def _progress_bar(what: str, unit: str, stream: TextIO) -> Iterator[ReportProgress]:
    from rich.console import Console  # noqa: PLC0415 - only where a person looks
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit)
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, whole: int) -> None:
            bar.update(task, completed=done, total=whole)

        yield tell


def _progress_lines(what: str, unit: str, stream: TextIO, now: Callable[[], float]) -> ReportProgress:
    last = now()

    def tell(done: int, whole: int) -> None:
        nonlocal last
        if (at := now()) - last >= PROGRESS_LINE_S:
            last = at
            stream.write(f"{what}: {done:,} of {whole:,} {unit}\n")
            stream.flush()

    return tell
