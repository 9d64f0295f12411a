"""Log lines: text on a terminal, JSON elsewhere, without secrets, with their context; and progress
of slow work."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.context_var import log_context
from gateway.core.logging import (
    LogFormat,
    show_progress,
    start_logging,
)
from gateway.core.redaction import Redactor

ROOT = Path(__file__).parents[3]
SECRET = "swordfish-pie"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    yield
    root.handlers[:], sys.excepthook = handlers, hook
    root.setLevel(level)


def lines(form: LogFormat) -> tuple[logging.Logger, io.StringIO]:
    out = io.StringIO()
    start_logging(logging.INFO, Redactor([SECRET]), form=form, stream=out)
    return logging.getLogger("reverie.test"), out


def test_a_line_elsewhere_than_on_a_terminal_is_json_with_what_it_is_about() -> None:
    log, out = lines("auto")
    with log_context(conversation="irc.libera/#x", turn="01H"):
        log.warning("%s said %s", "ann", "hö")
    told = json.loads(out.getvalue())
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "ann said hö",
        "level": "warning",
        "logger": "reverie.test",
        "conversation": "irc.libera/#x",
        "turn": "01H",
    }


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "too little memory: raise the limit of this process"),
        (
            RuntimeError("can't start new thread"),
            "too little memory: raise the limit of this process",
        ),
        (RuntimeError("x"), "this is a bug, and the end"),
    ],
)
def test_what_ends_the_process_is_told_and_a_lack_of_memory_is_no_bug(
    error: Exception, told: str
) -> None:
    _, out = lines("text")
    sys.excepthook(type(error), error, None)
    assert told in out.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_in_it_steers_a_terminal_or_tells_a_secret(form: LogFormat) -> None:
    log, out = lines(form)
    with log_context(conversation=f"irc/\x1b[2J{SECRET}"):
        try:
            int(f"\x1b]0;{SECRET}\a\r")
        except ValueError:
            log.exception("%s", f"a\x1b[2Jb\nc {SECRET}")
    told = out.getvalue()
    assert "\x1b" not in told
    assert "\r" not in told
    assert SECRET not in told
    assert "ValueError" in told
    assert told.count("Traceback") == 1
    if form == "json":
        assert len(told.splitlines()) == 1


def test_what_nobody_caught_is_written_without_secrets() -> None:
    code = (
        "from gateway.core.logging import start_logging; from gateway.core.redaction import "
        "Redactor; start_logging(20, Redactor(['swordfish' + '-pie'])); raise "
        "ValueError('-'.join(('swordfish', 'pie')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1
    assert "ValueError: [redacted]" in done.stderr
    assert SECRET not in done.stderr


def test_a_line_that_cannot_be_written_or_made_stops_nothing() -> None:
    log, out = lines("json")
    log.info("two %d", "no number")
    log.info("three")
    assert json.loads(out.getvalue())["event"] == "three"
    out.close()
    log.info("four")


def test_slow_work_tells_a_line_now_and_then() -> None:
    now = 0.0
    out = io.StringIO()
    tell = show_progress("replaying", "entries", out, now=lambda: now)
    for done in range(0, 31_000, 1_000):
        now = done / 1_000
        tell(done, 31_000)
    assert out.getvalue().splitlines() == [
        f"replaying: {n:,} of 31,000 entries" for n in (10_000, 20_000, 30_000)
    ]
