"""What a command prints, and how it ended: kept as far as there is room, and made harmless to read. Pure."""

import re
import signal
from dataclasses import dataclass
from typing import Final

from channels.text import clean_text

_SEQUENCE: Final = re.compile(
    r"\x1b(?:"
    r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"
    r"|[PX^_][^\x1b]{0,4096}(?:\x1b\\)?"
    r"|[ -/]{0,8}[0-~])"
)
"""Commands to a terminal (ECMA-48): CSI; OSC; other strings; the short ones."""


SIGNAL_STATUS_BASE: Final = 128
"""What shells add to the number of the signal that ended a program."""
MIN_SHOWN_S: Final = 1.0
"""How long a command took is told from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """How a command ended."""

    status: int
    """As it exited, or 128 and the signal that ended it."""
    end_reason: str
    """Why it was ended; empty: it ended by itself."""
    duration_s: float

    def render(self) -> str:
        """In a few words."""
        after = f" after {self.duration_s:.0f} s" if self.duration_s >= MIN_SHOWN_S else ""
        if self.end_reason:
            return f"ended{after}: {self.end_reason}"
        return f"exit status {self.status}{_format_signal(self.status - SIGNAL_STATUS_BASE)}{after}"


class OutputBuffer:
    """The beginning and the end of an output, each half of what may be kept."""

    def __init__(self, most_bytes: int) -> None:
        self._head_bytes, self._tail_bytes = most_bytes - most_bytes // 2, most_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self.total_bytes = 0
        """Bytes, also of what is not kept."""

    def append(self, piece: bytes) -> None:
        """It printed more."""
        self.total_bytes += len(piece)
        room = self._head_bytes - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if len(self._tail) > 2 * self._tail_bytes:  # not at each piece: that would copy it all each time
            del self._tail[: -self._tail_bytes]

    @property
    def dropped_bytes(self) -> int:
        """How many bytes between the beginning and the end are not kept."""
        return max(0, self.total_bytes - self._head_bytes - self._tail_bytes)

    def render(self) -> str:
        """What is kept, to be read; where something is missing it says how much."""
        if not self.dropped_bytes:
            return strip_terminal_codes(bytes(self._head + self._tail))
        head, tail = (
            strip_terminal_codes(bytes(self._head)),
            strip_terminal_codes(bytes(self._tail[-self._tail_bytes :])),
        )
        return f"{head}\n[... {self.dropped_bytes} bytes are not kept ...]\n{tail}"


def _format_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return ""
    too_large = ": a file became larger than it may be" if number == signal.SIGXFSZ else ""
    return f" ({name}{too_large})"


def strip_terminal_codes(output: bytes) -> str:
    """What a terminal would show in the end, in plain lines: without its commands, and without what was overwritten."""
    text = _SEQUENCE.sub("", output.decode("utf-8", "replace"))
    return clean_text("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))
