"""Lines that belong together: https://ircv3.net/specs/extensions/batch. Pure.

Netsplit and netjoin batches are marked quiet; history and multiline batches are collected and come out whole;
all other batches, and lines of batches that were never opened, are plain lines. A line that answers a labelled
command says so, also through the batch that it is in: https://ircv3.net/specs/extensions/labeled-response.
"""

from dataclasses import dataclass, field
from typing import Final

from channels.irc.wire import IrcLine

_NETSPLIT_BATCHES: Final = frozenset({"netsplit", "netjoin"})
_MULTILINE: Final = "draft/multiline"
_HISTORY_BATCHES: Final = frozenset({"chathistory", "draft/chathistory-targets"})
_MAX_OPEN = 32
_MAX_LINES = 2_000
"""Of one batch that is collected. Servers answer with at most a few hundred."""
_MAX_BYTES = 1_000_000
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class ReceivedLine:
    """One line to be handled now."""

    line: IrcLine
    is_netsplit: bool = False
    """The network broke apart or came together: nobody did anything."""
    label: str = ""
    """Which command of ours it answers; empty: none."""
    is_complete: bool = True
    """It is all of that answer; False: `LabelClosed` tells when the rest is here."""


@dataclass(frozen=True, slots=True)
class LabelClosed:
    """A labelled batch has ended."""

    label: str


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """A whole answer to CHATHISTORY."""

    kind: str
    target: str
    """As the server named it; empty for a list of targets."""
    lines: tuple[IrcLine, ...]


@dataclass(slots=True)
class _OpenBatch:
    kind: str
    opening: IrcLine
    parent: str
    label: str
    lines: list[IrcLine] = field(default_factory=list)
    size: int = 0


class BatchCollector:
    """Fed with every line; gives back what is to be handled."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenBatch] = {}

    def feed(self, line: IrcLine) -> list[ReceivedLine | LabelClosed | HistoryBatch]:
        """Take in one line."""
        if line.command == "BATCH":
            reference = line.param(0)
            if reference.startswith("+") and len(reference) > 1:
                return self._open_batch(reference[1:], line)
            return self._close_batch(reference[1:]) if reference.startswith("-") else []
        return self._route_line(line, line.tags.get("batch", ""))

    def _open_batch(self, name: str, line: IrcLine) -> list[ReceivedLine | LabelClosed | HistoryBatch]:
        parent = line.tags.get("batch", "")
        label = line.tags.get("label", "")
        # An unfinished batch of the same name, or one too many, is over.
        over = self._close_batch(name) if name in self._open else []
        if len(self._open) >= _MAX_OPEN:
            over += self._close_batch(next(iter(self._open)))
        self._open[name] = _OpenBatch(line.param(1).lower(), line, parent, label)
        return over

    def _close_batch(self, name: str) -> list[ReceivedLine | LabelClosed | HistoryBatch]:
        batch = self._open.pop(name, None)
        if batch is None:
            return []
        out: list[ReceivedLine | LabelClosed | HistoryBatch] = []
        if batch.kind == _MULTILINE:
            whole = _join_multiline(batch)
            out += self._route_line(whole, batch.parent) if whole else []
            if whole and batch.label:
                out = [ReceivedLine(whole, label=batch.label)]
            return out
        if batch.kind in _HISTORY_BATCHES:
            target = batch.opening.param(2) if batch.kind == "chathistory" else ""
            out.append(HistoryBatch(batch.kind, target, tuple(batch.lines)))
        if batch.label:
            out.append(LabelClosed(batch.label))
        return out

    def _route_line(self, line: IrcLine, name: str) -> list[ReceivedLine | LabelClosed | HistoryBatch]:
        label, quiet, whole = line.tags.get("label", ""), False, True
        for _ in range(_MAX_DEPTH):
            batch = self._open.get(name)
            if batch is None:
                break
            if batch.kind in _HISTORY_BATCHES or batch.kind == _MULTILINE:
                return self._collect(name, batch, line)
            quiet = quiet or batch.kind in _NETSPLIT_BATCHES
            if batch.label and not label:
                label, whole = batch.label, False
            name = batch.parent
        return [ReceivedLine(line, quiet, label, whole)]

    def _collect(self, name: str, batch: _OpenBatch, line: IrcLine) -> list[ReceivedLine | LabelClosed | HistoryBatch]:
        batch.size += sum(map(len, line.params))
        batch.lines.append(line)
        if len(batch.lines) < _MAX_LINES and batch.size < _MAX_BYTES:
            return []
        # Longer than any server means it: what is here comes out, the rest are plain lines.
        return self._close_batch(name)


def _join_multiline(batch: _OpenBatch) -> IrcLine | None:
    """https://ircv3.net/specs/extensions/multiline: one message, whose tags stand at the opening of its batch."""
    lines = [line for line in batch.lines if line.command in {"PRIVMSG", "NOTICE"}]
    if not lines:
        return None
    text = lines[0].param(1)
    for line in lines[1:]:
        text += ("" if "draft/multiline-concat" in line.tags else "\n") + line.param(1)
    opening = batch.opening
    source = opening.source if opening.source.nick else lines[0].source
    tags = {key: value for key, value in opening.tags.items() if key != "batch"}
    return IrcLine(lines[0].command, (opening.param(2) or lines[0].param(0), text), source, tags)
