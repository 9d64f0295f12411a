"""Profile of one plain message: processor and wall time by package and by step of its way.

`make profile`, or `python -m tests.tools.profiler [--checkout DIR] [--messages N]`. Nothing is limited.

Messages are said one at a time. A timer looks every 2 ms which function each thread is in, and
gives it the processor time that the thread has taken since; wall time goes to the event loop's
thread, or to the database's while the loop waits. What the timer itself takes is left out. Code in C
counts for the Python function that calls it.
"""

import argparse
import asyncio
import collections
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.tools.watched import ROOT, run_child, watched

WARM_UP = 20
EVERY_S = 0.002
STEPS: Final = (
    ("line read", "channels.irc.session:IrcSession.on_line", "begin"),
    ("routed and judged", "gateway.store.store:Store.append", "begin"),
    ("in the log", "gateway.store.store:Store.append", "end"),
    ("turn begun", "gateway.runtime.turn:TurnRunner.run", "begin"),
    ("prompt built", "agent.models.client:ModelClient.stream", "begin"),
    ("body built", "agent.models.http:ModelHttpClient._send", "begin"),
    ("request on the wire", "", "requested"),
    ("model's last byte", "", "written"),
    ("answer read", "gateway.store.store:Store.append", "begin"),
    ("answer in the log", "gateway.store.store:Store.append", "end"),
    ("handed to the channel", "channels.irc.outgoing:IrcOutgoing.send", "begin"),
    ("reply on the wire", "", "replied"),
)
"""Steps of a message in their order, with the function that begins or ends them. Without one: seen
from outside."""
WAITING: Final = "(waiting)"
OTHERS: Final = {"gateway.store.sqlite_log": "sqlite", "selectors": WAITING}
"""Modules whose time is that of what they call."""
Mark = tuple[str, float, float]
"""Function and end of it, `time.perf_counter()`, and processor time of the process, in seconds."""


def name_of(frame: FrameType) -> str:
    """Return module and function."""
    return f"{frame.f_globals.get('__name__', '?')} {frame.f_code.co_qualname}"


def package_of(name: str) -> str:
    """Return the package of a function: two levels of ours, one of others'."""
    module = name.partition(" ")[0]
    if module in OTHERS:
        return OTHERS[module]
    depth = 2 if module.startswith(("gateway.", "channels.", "agent.")) else 1
    return ".".join(module.split(".")[:depth])


class Sampler:
    """Where the threads of this process are. By function."""

    def __init__(self) -> None:
        self.cpu_s = collections.defaultdict[str, float](float)
        self.within_cpu_s = collections.defaultdict[str, float](float)
        """With all that it calls; of the event loop's thread."""
        self.wall_s = collections.defaultdict[str, float](float)
        self._clocks: dict[int, tuple[int, float]] = {}
        """By thread: its clock, and its time as it was looked at the last time."""
        self._looked_s = time.perf_counter()

    def look(self, _: int, frame: FrameType | None) -> None:
        """Handle the timer's signal, in the event loop's thread."""
        loop, names = threading.get_ident(), dict[int, str]()
        for ident, top in (sys._current_frames() | ({loop: frame} if frame else {})).items():
            names[ident] = name_of(top)
            clock, before_s = self._clocks.get(ident) or (time.pthread_getcpuclockid(ident), 0.0)
            now_s = time.clock_gettime(clock)
            taken_s, self._clocks[ident] = now_s - (before_s or now_s), (clock, now_s)
            self.cpu_s[names[ident]] += taken_s
            if ident == loop:
                within, one = set[str](), frame
                while one is not None:
                    within.add(name_of(one))
                    one = one.f_back
                for name in within:
                    self.within_cpu_s[name] += taken_s
        others = [name for ident, name in names.items() if ident != loop]
        is_waiting = package_of(names[loop]) == WAITING
        busy = next((name for name in others if package_of(name) == "sqlite"), names[loop])
        self.wall_s[busy if is_waiting else names[loop]] += time.perf_counter() - self._looked_s
        self._looked_s = time.perf_counter()
        clock, _taken_s = self._clocks[loop]
        self._clocks[loop] = clock, time.clock_gettime(clock)


def mark_calls(path: str, marks: list[Mark]) -> None:
    """Let the calls of a function leave marks."""
    module, _, name = path.partition(":")
    owner, method = name.split(".")
    kind = getattr(import_module(module), owner)
    function: Callable[..., Any] = getattr(kind, method)

    def add(end: str) -> None:
        marks.append((f"{path} {end}", time.perf_counter(), time.process_time()))

    def called(*args: Any, **more: Any) -> Any:
        add("begin")
        return function(*args, **more)

    async def awaited(*args: Any, **more: Any) -> Any:
        add("begin")
        try:
            return await function(*args, **more)
        finally:
            add("end")

    setattr(kind, method, awaited if asyncio.iscoroutinefunction(function) else called)


def run_profiled(checkout: Path) -> None:
    """Run the gateway of a checkout in this process, and profile it while it is told to."""
    sys.path.insert(0, str(checkout))
    sampler, marks = Sampler(), list[Mark]()
    for path in {path for _, path, _ in STEPS if path}:
        mark_calls(path, marks)

    def begin() -> None:
        marks.clear()
        signal.signal(signal.SIGALRM, sampler.look)
        signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)

    def end() -> object:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return sampler.cpu_s, sampler.wall_s, sampler.within_cpu_s, marks

    run_child(begin, end)


def find_steps(
    marks: list[Mark], seen: dict[str, float], until_s: float
) -> list[tuple[float, float | None]]:
    """Return when each step of one message was reached, with the processor time until then; None:
    not known, as it was seen from outside."""
    at_s, found = seen["said"], list[tuple[float, float | None]]()
    for _, path, end in STEPS:
        if path:
            name = f"{path} {end}"
            reached = next(((s, cpu) for one, s, cpu in marks if one == name and s >= at_s), None)
            at_s, cpu_s = reached if reached and reached[0] < until_s else (at_s, None)
        else:
            at_s, cpu_s = seen[end], None
        found.append((at_s, cpu_s))
    return found


async def profile(checkout: Path, messages: int, functions: int) -> None:
    """Say the messages, and print what they took."""
    async with watched("tests.tools.profiler", checkout) as gateway:
        for number in range(WARM_UP):
            await gateway.ask("how is the build?", f"alice{number}")
        await gateway.begin()
        answers = [
            await gateway.ask(f"how is build {number}?", f"alice{number % 50}")
            for number in range(messages)
        ]
        cpu_s, wall_s, within_s, marks = await gateway.end()
    marks = [tuple(mark) for mark in marks]
    wall: dict[str, list[float]] = {name: [] for name, _, _ in STEPS}
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in STEPS}
    first = 0
    for answered in answers:
        while first < len(marks) and marks[first][1] < answered.said_s:
            first += 1
        seen = {
            "said": answered.said_s,
            "requested": answered.requested_s,
            "written": answered.written_s,
            "replied": answered.replied_s,
        }
        before_s, cpu_before_s = answered.said_s, None
        steps = find_steps(marks[first : first + 200], seen, answered.replied_s)
        for (name, _, _), (at_s, taken_s) in zip(STEPS, steps, strict=True):
            wall[name].append((at_s - before_s) * 1000)
            before_s = at_s
            if taken_s is not None:
                if cpu_before_s is not None:
                    cpu[name].append((taken_s - cpu_before_s) * 1000)
                cpu_before_s = taken_s
    print(
        f"medians of {messages} messages, ms\n{'step, until':34}   wall    cpu since the last step"
    )
    for name, _, _ in STEPS:
        taken = f"{statistics.median(cpu[name]):7.2f}" if cpu[name] else ""
        print(f"{name:34}{statistics.median(wall[name]):7.2f}{taken}")
    columns = [collections.Counter[str](), collections.Counter[str]()]
    for column, found in zip(columns, (cpu_s, wall_s), strict=True):
        for name, seconds in found.items():
            column[package_of(name)] += seconds * 1000 / messages
    print(f"\nms of each message\n{'package':34}    cpu   wall")
    for name, taken_ms in columns[0].most_common(30):
        print(f"{name:34}{taken_ms:7.2f}{columns[1][name]:7.2f}")
    print(f"{'all':34}{columns[0].total():7.2f}{columns[1].total():7.2f}")
    print(f"\n{'function of ours':64}    cpu   with what it calls")
    for name, seconds in collections.Counter(within_s).most_common(functions):
        if name.startswith(("gateway.", "channels.", "agent.")):
            print(
                f"{name:64}{cpu_s.get(name, 0) * 1000 / messages:7.2f}{seconds * 1000 / messages:7.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--functions", type=int, default=40, help="functions that are listed")
    options = parser.parse_args()
    asyncio.run(profile(options.checkout.resolve(), options.messages, options.functions))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_profiled(Path(sys.argv[2]))
    else:
        main()
