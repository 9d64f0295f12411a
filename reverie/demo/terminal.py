"""The terminal of the demo, or a pipe in its place: what is shown, and what is typed."""

import asyncio
import contextlib
import importlib
import io
import os
import re
import shutil
import sys
import termios
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from gateway.core.text_safety import escape_unprintable

_COLOURS: Final = {"you": "bold green", "reverie": "bold cyan"}
_OTHERS: Final = "bold magenta"
_GREEN, _DIM, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"
_ERASE_LINE: Final = "\r\x1b[K"
_MAX_COLUMNS: Final = 100
_INDENT: Final = "    "


class Terminal:
    """Shows lines above the prompt, and asks for one line at a time."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self.is_interactive = os.isatty(0) and self._console.is_terminal
        """True: a person sits there."""
        self._moves = self.is_interactive and not self._console.is_dumb_terminal
        self._readline: Any = None
        self._prompt = ""
        """Shown while a line is asked for."""
        self._is_ended = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the terminal. Afterwards it is as it was before, also where a line is still asked
        for.
        """
        if not self.is_interactive:
            yield
            return
        before = termios.tcgetattr(0)
        with contextlib.suppress(ImportError):  # some builds of Python lack it
            self._readline = importlib.import_module("readline")
            self._readline.parse_and_bind("set enable-bracketed-paste off")
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            if self._prompt:
                self._write("\n")

    def show_head(self, text: str) -> None:
        """Show a heading."""
        self._show(Text(f"\n{text}", "bold yellow"))

    def tell(self, text: str) -> None:
        """Show what the demo says about itself."""
        wrap = partial(
            textwrap.fill,
            width=min(self._columns - 1, _MAX_COLUMNS) if self._console.is_terminal else 1_000,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._show(Text("\n".join(map(wrap, text.split("\n"))), "dim"))

    def show_link(self, address: str) -> None:
        """Show an address, in one piece."""
        self._show(Text.assemble(_INDENT, (address, "underline blue")), is_whole=True)

    def show_message(self, sender: str, text: str, private: str = "") -> None:
        """Show a message. `private`: who alone reads it."""
        head = f"<{sender} (to {private} alone)> " if private else f"<{sender}> "
        shown = Text.assemble((head, _COLOURS.get(sender, _OTHERS)), escape_unprintable(text))
        self._show(shown)

    async def ask(self, proposal: str = "") -> str | None:
        """Return the line that is typed next; `proposal` where it is empty, or the input of a
        program has ended. None: a person has ended the input, or nothing is proposed.
        """
        typed = None if self._is_ended else await self._read_line(proposal)
        if typed is None:
            self._is_ended = True
            if self.is_interactive or not proposal:
                return None
        line = (typed or "").strip()
        if not self.is_interactive or (not line and proposal):
            if self._moves:
                self._write(f"\x1b[A{_ERASE_LINE}")
            self._show(Text.assemble(("you> ", _COLOURS["you"]), line or proposal))
        return line or proposal

    async def _read_line(self, proposal: str) -> str | None:
        loop = asyncio.get_running_loop()
        asked = loop.create_future()

        def settle(line: str | None) -> None:
            if not asked.done():
                asked.set_result(line)

        def read() -> None:  # in a thread: terminal, pipe and file all block
            line = self._read()
            with contextlib.suppress(RuntimeError):  # the demo has ended meanwhile
                loop.call_soon_threadsafe(settle, line)

        self._prompt = f"you [{proposal}]> " if proposal else "you> "
        if self._moves and not self._console.no_color:
            shown = f"{_PLAIN}{_DIM} [{proposal}]{_PLAIN}{_GREEN}" if proposal else ""
            self._prompt = f"{_GREEN}you{shown}> {_PLAIN}"
        threading.Thread(target=read, name="keyboard", daemon=True).start()
        line: str | None = await asked
        self._prompt = ""
        return line

    def _read(self) -> str | None:
        """Read a line. None: the end."""
        if self.is_interactive:
            invisible = r"\001\1\002" if self._readline else r"\1"
            try:
                return input(re.sub(r"(\x1b\[[\d;]*m)", invisible, self._prompt))
            except EOFError:
                return None
        # Unbuffered: a lock of `sys.stdin` would be held at exit by a thread that waits.
        with io.FileIO(0, closefd=False) as file:
            line = file.readline()
        return line.decode("utf-8", "replace") if line else None

    @property
    def _columns(self) -> int:
        return shutil.get_terminal_size().columns

    def _show(self, text: Text, *, is_whole: bool = False) -> None:
        is_asking = self.is_interactive and self._prompt
        if is_asking:
            self._write(_ERASE_LINE if self._moves else "\n")
        soft_wrap = is_whole or not self._console.is_terminal
        self._console.print(text, soft_wrap=soft_wrap, width=self._columns)
        if is_asking:
            typed = self._readline.get_line_buffer() if self._readline else ""
            self._write(f"{self._prompt}{typed}")

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
