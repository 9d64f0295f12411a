"""A model of what is sent while answers get lost, processes are killed and others speak: nothing is
lost or doubled.

The numbers of a platform, its chats and the log are simulated; `MessageNumbers` does the accounting
and the search.
"""

import itertools
import random
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

import pytest

from channels.telegram.ids import CRASH_GAP, GAP, MessageNumbers, sequence_of

PRIVATE, GROUPS = (1, 2, 3, 4, -5), (-1_000_000_000_001, -1_000_000_000_002)
CHATS = (*PRIVATE, *GROUPS)
Probe = Literal["ours", "other", "none"]


@dataclass
class Part:
    """One message that is to be shown once."""

    name: str
    chat: int
    state: Literal["waiting", "sending", "lost", "looking", "shown", "uncertain"] = "waiting"
    after: int | None = None
    crashed: bool = False
    executed: int | None = None
    """Number that the platform gave to it."""
    look: Generator[int, Probe, int | None] | None = None
    probe: int | None = None
    """Number to look at next."""


@dataclass
class Town:
    """A platform, and a gateway whose processes come and go."""

    dice: random.Random
    now_s: float = 1000.0
    ids: dict[int, Iterator[int]] = field(default_factory=dict)
    shown: dict[int, dict[int, str]] = field(default_factory=lambda: {chat: {} for chat in CHATS})
    """Chat -> number -> part; empty: said by somebody else."""
    updates: deque[tuple[int, int, float]] = field(default_factory=deque)
    """Chat, number and time of what the gateway has not heard yet."""
    log: list[tuple[int, int | None, float, bool]] = field(default_factory=list)
    """Chat, number (None: unknown), time and whether it is ours."""
    queues: dict[int, deque[Part]] = field(
        default_factory=lambda: {chat: deque() for chat in CHATS}
    )
    numbers: MessageNumbers = field(default_factory=MessageNumbers)
    parts: list[Part] = field(default_factory=list)
    heard_all: bool = True
    deaf: int = 0
    """Steps for which no updates come."""

    def number(self, chat: int) -> int:
        return next(
            self.ids.setdefault(sequence_of(chat), itertools.count(self.dice.randrange(1, 5000)))
        )

    def speak(self) -> None:
        chat = self.dice.choice(CHATS)
        number = self.number(chat)
        if self.dice.random() < 0.1:  # deleted at once, or nothing that bots hear of
            return
        self.shown[chat][number] = ""
        if self.dice.random() < 0.95:
            self.updates.append((chat, number, self.now_s))

    def poll(self) -> None:
        while self.updates:
            chat, number, at_s = self.updates.popleft()
            self.log.append((chat, number, at_s, False))
            self.numbers.record_received(chat, number, at_s)
        self.heard_all = True

    def execute(self, part: Part) -> None:
        if part.executed is None:
            part.executed = self.number(part.chat)
            self.shown[part.chat][part.executed] = part.name

    def step(self, part: Part) -> None:
        """Advance the first part of a chat's queue."""
        match part.state:
            case "waiting":
                # What the bot says is caused by something that it has heard there.
                part.after, part.state, part.executed = (
                    self.numbers.newest(part.chat),
                    "sending",
                    None,
                )
            case "sending":
                if self.dice.random() < 0.7:
                    self.execute(part)
                if part.executed is not None and self.dice.random() < 0.6:
                    self.end(part, part.executed)
                else:
                    part.state = "lost"
            case "lost":
                if part.after is None or self.dice.random() < 0.01:  # the bot may not look there
                    self.doubt(part)
                elif self.heard_all:  # a look begins once it is up to date
                    others = (
                        sum(queue[0].state != "waiting" for queue in self.queues.values() if queue)
                        - 1
                    )
                    gap = CRASH_GAP if part.crashed and not sequence_of(part.chat) else GAP
                    part.look = self.numbers.search(part.chat, part.after, gap + others)
                    part.state = "looking"
                    self.advance(part, None)
            case "looking":
                assert part.probe is not None
                there = self.shown[part.chat].get(part.probe)
                self.advance(part, "none" if there is None else "ours" if there else "other")

    def advance(self, part: Part, answer: Probe | None) -> None:
        assert part.look is not None
        try:
            part.probe = part.look.send(answer) if answer else next(part.look)
        except StopIteration as found:
            if found.value is None:
                part.state, part.crashed = "waiting", False
            else:
                self.end(part, found.value)
        except OverflowError:
            self.doubt(part)

    def end(self, part: Part, number: int) -> None:
        self.log.append((part.chat, number, self.now_s, True))
        self.numbers.record_sent(part.chat, number)
        part.state = "shown"
        assert self.shown[part.chat][number] == part.name, "another message is taken for it"
        self.queues[part.chat].popleft()

    def doubt(self, part: Part) -> None:
        self.log.append((part.chat, None, self.now_s, True))
        self.numbers.mark_unknown(part.chat, self.now_s)
        part.state = "uncertain"
        self.queues[part.chat].popleft()

    def kill(self) -> None:
        """End the process; the next one knows the log alone."""
        for queue in self.queues.values():
            for part in queue:
                if part.state == "sending" and self.dice.random() < 0.5:
                    self.execute(part)
                if part.state in ("sending", "lost", "looking"):
                    part.state, part.crashed, part.look = "lost", True, None
        self.numbers, self.heard_all, self.deaf = (
            MessageNumbers(),
            False,
            self.dice.choice((0, 0, 300)),
        )
        for chat, number, at_s, ours in self.log:
            if number is None:
                self.numbers.mark_unknown(chat, at_s)
            elif ours:
                self.numbers.record_sent(chat, number)
            else:
                self.numbers.record_received(chat, number, at_s)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += self.dice.choice((0.0, 1.0, 10.0))
            act = self.dice.random()
            self.deaf -= 1
            if act < 0.3:
                self.speak()
            elif act < 0.4:
                if self.deaf <= 0:
                    self.poll()
            elif act < 0.5:
                heard = (
                    self.log[-1][0]
                    if self.log and self.dice.random() < 0.9
                    else self.dice.choice(CHATS)
                )
                self.parts.append(Part(f"part{len(self.parts)}", heard))
                self.queues[heard].append(self.parts[-1])
            elif act < 0.515:
                self.kill()
                for _ in range(self.dice.choice((0, 0, 3, 60, 150))):
                    self.speak()
            elif waiting := [queue[0] for queue in self.queues.values() if queue]:
                self.step(self.dice.choice(waiting))
        for chat in CHATS:
            while queue := self.queues[chat]:
                self.poll()
                self.step(queue[0])


def run_rounds(rounds: int, seed: int) -> Counter[str]:
    """Return what became of the parts. Raises AssertionError where one is lost or doubled."""
    found = Counter[str]()
    for turn in range(rounds):
        town = Town(random.Random(f"{seed}:{turn}"))
        for _ in range(5):
            town.speak()
        town.poll()
        town.live(150)
        times = Counter(name for there in town.shown.values() for name in there.values() if name)
        for part in town.parts:
            assert times[part.name] <= 1, f"round {turn}: {part.name} is doubled"
            assert part.state == "uncertain" or times[part.name] == 1, (
                f"round {turn}: {part.name} is lost"
            )
        for chat in CHATS:
            order = [int(name[4:]) for _, name in sorted(town.shown[chat].items()) if name]
            assert order == sorted(order), f"round {turn}: out of order"
        found += Counter(part.state for part in town.parts)
    return found


def test_what_gets_no_answer_is_shown_once_amid_others_and_kills() -> None:
    found = run_rounds(150, seed=1)
    assert found["uncertain"] < 0.06 * found["shown"]


@pytest.mark.soak
def test_twenty_thousand_rounds_lose_and_double_nothing() -> None:
    found = run_rounds(20_000, seed=2)
    assert found["uncertain"] < 0.06 * found["shown"]
