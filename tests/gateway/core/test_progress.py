"""Progress of slow work: a bar on a terminal, lines elsewhere."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from gateway.core.logging import show_progress

ROOT = Path(__file__).parents[3]


def test_where_no_terminal_is_what_is_over_soon_says_nothing() -> None:
    out = io.StringIO()
    with show_progress("replaying", "entries", out) as tell:
        tell(1, 2)
    assert out.getvalue() == ""


def test_where_no_terminal_is_slow_work_tells_a_line_now_and_then() -> None:
    now = 0.0
    out = io.StringIO()
    with show_progress("replaying", "entries", out, now=lambda: now) as tell:
        for done in range(0, 31_000, 1_000):
            now = done / 1_000
            tell(done, 31_000)
    assert out.getvalue().splitlines() == [f"replaying: {n:,} of 31,000 entries" for n in (10_000, 20_000, 30_000)]


def test_on_a_terminal_there_is_a_bar_that_leaves_nothing_behind() -> None:
    theirs, ours = pty.openpty()
    code = (
        "from gateway.core.logging import show_progress\n"
        "with show_progress('replaying', 'entries') as tell: tell(500, 1000)\n"
        "import sys; print('over', file=sys.stderr)"
    )
    try:
        env = {**os.environ, "TERM": "xterm"}
        subprocess.run([sys.executable, "-c", code], stderr=ours, check=True, cwd=ROOT, env=env)
        told = os.read(theirs, 65_536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert "replaying" in told
    assert "500/1000" in told
    assert told.rstrip().endswith("over")
    assert "\x1b[2K" in told
