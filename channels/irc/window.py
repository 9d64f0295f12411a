"""Which of several lines a server took, judged by what it said before it answered the barrier. Pure.

A server deals with our lines in order and answers each at most once: with an echo (if `echo-message` is
on), with a numeric, or not at all. Numerics name a target, not a line. So, for each target: without a
refusal all was taken; as many refusals as lines without an echo refuse all of those; with fewer, what was
echoed was taken, and of the rest nobody knows.
"""

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from channels.irc.render import strip_formatting
from gateway.events import MessageId

LineFate = Literal["taken", "refused", "unknown"]
LineOwner = TypeVar("LineOwner", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LineVerdict:
    """What became of all lines of one owner (to one target); `unknown` also if they fared differently."""

    fate: LineFate
    ids: tuple[MessageId, ...] = ()
    """The server's names of those lines that it echoed."""
    reason: str = ""
    """What the server said against it; empty if it was taken."""


@dataclass(eq=False, slots=True)
class _WrittenLine(Generic[LineOwner]):
    owner: LineOwner
    target: str
    text: str
    is_echoed: bool = False
    id: MessageId | None = None


class SendWindow(Generic[LineOwner]):
    """The lines written between two barriers. Targets are folded names."""

    def __init__(self) -> None:
        self._lines: list[_WrittenLine[LineOwner]] = []
        self.lone_command = ""
        """The command that stands in it all by itself; empty: messages."""
        self._answered_counts: Counter[str] = Counter()
        """Target -> how many of its lines are behind the last answer."""
        self._refusals: Counter[str] = Counter()
        """Target -> numerics that name it; the empty one: they name none."""
        self._reasons: dict[str, str] = {}

    def add_line(self, owner: LineOwner, target: str, text: str) -> None:
        """One line went out."""
        self._lines.append(_WrittenLine(owner, target, text))

    def has_target(self, target: str) -> bool:
        """Whether a line to it is among them."""
        return any(line.target == target for line in self._lines)

    def record_echo(self, target: str, text: str, msgid: str | None) -> None:
        """The server showed us a line of ours. A text that we did not write (a bouncer's other client) is ignored."""
        lines = [line for line in self._lines if line.target == target]
        for index in range(self._answered_counts[target], len(lines)):
            if _is_echo_of(lines[index].text, text):
                lines[index].is_echoed = True
                lines[index].id = MessageId(msgid) if msgid else None
                self._answered_counts[target] = index + 1
                return

    def record_refusal(self, names: Collection[str], reason: str, *, anybody: bool) -> None:
        """The server refused a line to one of `names`, or, if `anybody`, perhaps to somebody it did not name."""
        target = next((line.target for line in self._lines if line.target in names), "")
        if target or (anybody and self._lines):  # where nothing waits, it is about something else
            self._refusals[target] += 1
            self._answered_counts[target] += 1
            self._reasons.setdefault(target, reason)

    def __len__(self) -> int:
        return len(self._lines)

    def verdicts(self) -> dict[LineOwner, LineVerdict]:
        """Once the server has answered the barrier."""
        silent = Counter(line.target for line in self._lines if not line.is_echoed)
        named = sum(min(self._refusals[target], count) for target, count in silent.items())
        nameless = self._refusals[""]
        fates: dict[str, LineFate] = {}
        for target, count in silent.items():
            if not self._refusals[target] and not nameless:
                fates[target] = "taken"
            elif self._refusals[target] >= count or named + nameless >= silent.total():
                fates[target] = "refused"
            else:
                fates[target] = "unknown"
        owners: dict[LineOwner, list[_WrittenLine[LineOwner]]] = {}
        for line in self._lines:
            owners.setdefault(line.owner, []).append(line)
        return {owner: self._verdict(lines, fates) for owner, lines in owners.items()}

    def _verdict(self, lines: list[_WrittenLine[LineOwner]], fates: dict[str, LineFate]) -> LineVerdict:
        found = {"taken" if line.is_echoed else fates[line.target] for line in lines}
        ids = tuple(line.id for line in lines if line.id)
        if found == {"taken"}:
            return LineVerdict("taken", ids)
        reason = self._reasons.get(lines[0].target) or self._reasons[""]
        return LineVerdict("refused" if found == {"refused"} else "unknown", ids, reason)


def _is_echo_of(written: str, shown: str) -> bool:
    """A server may cut a line, or strip its formatting; a room that changes words leaves us in doubt."""
    return bool(strip_formatting(shown)) and strip_formatting(written).startswith(strip_formatting(shown))
