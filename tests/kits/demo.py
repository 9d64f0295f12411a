"""`reverie demo` at a terminal of its own, with its files in a directory of the test's."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROMPT = r"you(?: \[[^]]*\])?> $"


def demo_environment(directory: Path, more: Mapping[str, str]) -> dict[str, str]:
    """This one without keys of people who run tests; files of the demo go into `directory`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith(("_API_KEY", "_BASE_URL"))
    }
    return {**kept, "TMPDIR": str(directory), "TERM": "xterm-256color", **more}


def left_running(directory: Path) -> list[str]:
    """The processes that were started with a path in this directory."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if (line := one.read_text().replace("\0", " ")) and str(directory) in line:
                found.append(line)
    return found


class DemoTerminal:
    """The command, what it has drawn, and when."""

    def __init__(self, directory: Path, *arguments: str, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reverie", "demo", "--port", "0", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=demo_environment(directory, {"COLUMNS": "80", **env}),
            preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 - no thread runs yet
        )
        os.close(theirs)
        self.drawn: list[tuple[float, str]] = []
        """Seconds since the start, and what was drawn then."""
        self._began_s = time.monotonic()
        self._read_to = 0

    @property
    def text(self) -> str:
        """All that was drawn, without sequences of control."""
        return SEQUENCE.sub("", "".join(part for _, part in self.drawn)).replace("\r\n", "\n")

    def until(self, pattern: str) -> re.Match[str]:
        """Read until a match is drawn after the last one."""
        while not (found := re.compile(pattern).search(self.text, self._read_to)):
            assert self._read(), self.text
        self._read_to = found.end()
        return found

    def keys(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def hang_up(self) -> None:
        """Close the terminal, as a window is closed."""
        os.close(self._ours)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(30)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # the other side is closed
            return False
        self.drawn.append((time.monotonic() - self._began_s, data.decode("utf-8", "replace")))
        return bool(data)


@contextlib.contextmanager
def at_terminal(directory: Path, *arguments: str, **env: str) -> Iterator[DemoTerminal]:
    """The demo; whatever happens, it has ended afterwards."""
    terminal = DemoTerminal(directory, *arguments, **env)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
