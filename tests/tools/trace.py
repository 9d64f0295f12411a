"""Trace of one plain message: the code and the trips to the database that a "hello" on IRC takes.

`make trace`, or `python -m tests.tools.trace [CHECKOUT]`. Nothing is limited.

`reverie run` on a loopback IRC server and a model that streams one sentence. The third "hello" is
traced, by `sys.setprofile` in the event loop's thread, from the line on the wire to a second after
the answer: the first fills caches, and the second still learns the room's names.

Figures are those of Python 3.11. A comprehension or generator expression is no function of its own,
but part of the one that it stands in; a lambda is one.
"""

import ast
import asyncio
import collections
import itertools
import sys
import time
import weakref
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.tools.watched import ROOT, run_child, watched

PACKAGES = ("gateway/", "channels/", "agent/")
MESSAGES: Final = 3
"""Messages, of which the last is traced."""
SETTLE_S = 1.0
TURN = "gateway/runtime/turn.py"
"""The turn begins in the first frame of this file."""
EVENT_LOOP = "asyncio/events.py"
SEND = ("httpx/_transports/default.py", "handle_async_request")
"""File and function of the HTTP library that send a request."""
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Parts of the functions that they stand in."""

Call = tuple[str, str, int]
"""File, qualified name and first line of a function that was entered."""
Trip = tuple[float, str, str]
"""Time, `commit` or `read`, and what it was: kinds of facts, or the callers. A trip is one function
executed on a connection's thread."""


class Recorder:
    """What a gateway in this process does."""

    def __init__(self, checkout: Path) -> None:
        self._prefix = f"{checkout}/"
        self._begun = weakref.WeakKeyDictionary[asyncio.Task[Any], list[tuple[str, str]]]()
        self.calls: list[Call] = []
        self.sent: list[list[tuple[str, str]]] = []
        """Frames of our code above each request to the model, outermost first."""
        self.trips: list[Trip] = []

    def _path_of(self, frame: FrameType) -> str:
        """Return the path of our own code. Empty: it is other code."""
        path = frame.f_code.co_filename.removeprefix(self._prefix)
        return path if path.startswith(PACKAGES) else ""

    def _frames_above(self, frame: FrameType | None) -> list[tuple[str, str]]:
        """Return our frames, outermost first, also those that created the task."""
        found = list[tuple[str, str]]()
        while frame is not None and not frame.f_code.co_filename.endswith(EVENT_LOOP):
            if path := self._path_of(frame):
                found.append((path, frame.f_code.co_qualname))
            frame = frame.f_back
        task = asyncio.current_task()
        return [*(self._begun.get(task, []) if task is not None else []), *reversed(found)]

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call, as `sys.setprofile` tells it."""
        if event != "call":
            return
        if path := self._path_of(frame):
            self.calls.append((path, frame.f_code.co_qualname, frame.f_code.co_firstlineno))
        elif frame.f_code.co_name == SEND[1] and frame.f_code.co_filename.endswith(SEND[0]):
            self.sent.append(self._frames_above(frame))

    def create_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any
    ) -> asyncio.Task[Any]:
        """Create a task that knows the frames above it, as a task factory."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        is_inside = loop.is_running() and asyncio.current_task() is not None
        self._begun[task] = self._frames_above(sys._getframe()) if is_inside else []
        return task

    def record_trips(self) -> None:
        """Record the trips to the database from now on."""
        from gateway.store.sqlite_log import SqliteLog  # noqa: PLC0415 - of the checkout

        log: Any = SqliteLog
        run = log.run

        async def counted(one: Any, function: Any, *args: Any) -> Any:
            callers = " <- ".join(_callers(sys._getframe(1))[:4])
            if not function.__name__.startswith("append"):
                self.trips.append((time.perf_counter(), "read", callers))
                return await run(one, function, *args)
            plan = await run(one, function, *args)
            kinds = ", ".join(row.kind for row in plan.rows)
            self.trips.append((time.perf_counter(), "commit", kinds))
            return plan

        log.run = counted


def _callers(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:
        if "/gateway/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def run_traced(checkout: Path) -> None:
    """Run the gateway of a checkout in this process, and trace it while it is told to."""
    sys.path.insert(0, str(checkout))
    recorder = Recorder(checkout)
    recorder.record_trips()

    def begin() -> None:
        recorder.trips.clear()
        asyncio.get_running_loop().set_task_factory(recorder.create_task)
        sys.setprofile(recorder.record)

    def end() -> object:
        sys.setprofile(None)
        return recorder.calls, recorder.sent, recorder.trips

    run_child(begin, end)


async def trace_hello(checkout: Path) -> tuple[list[Any], float, float]:
    """Return the calls, the frames above the requests and the trips of the last message, with the
    times of the model request and the answer.

    Times are `time.perf_counter`, which both processes share.
    """
    from gateway.cli.main import STARTUP_S  # noqa: PLC0415 - not in the child, as `watched` does

    async with watched("tests.tools.trace", checkout) as gateway:
        await asyncio.sleep(STARTUP_S)  # what a start leaves for later is done
        for _ in range(MESSAGES - 1):
            await gateway.ask("hello")
            await asyncio.sleep(SETTLE_S)  # what the message before left behind is done
        await gateway.begin()
        answered = await gateway.ask("hello")
        await asyncio.sleep(SETTLE_S)
        return await gateway.end(), answered.requested_s, answered.replied_s


async def count_trips(checkout: Path) -> tuple[int, int]:
    """Return the commits and the reads of the last message."""
    (_, _, trips), _, _ = await trace_hello(checkout)
    kinds = [kind for _, kind, _ in trips]
    return kinds.count("commit"), kinds.count("read")


def count_statements(file: Path) -> int:
    """Return the number of statements in a file of Python."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def main() -> None:
    """Print the figures, then the trips, then the files in the order in which they are entered."""
    checkout = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    (traced, sent, trips), asked_s, answered_s = asyncio.run(trace_hello(checkout))
    calls: list[Call] = [tuple(call) for call in traced if not call[1].endswith(COMPREHENSIONS)]
    files = {path: count_statements(checkout / path) for path, _, _ in calls}
    functions = set(calls)
    print(
        f"{len(files)} files, {sum(files.values()):,} statements in them, {len(functions)} "
        f"functions, {len(calls):,} calls"
    )
    for turn in {
        tuple(itertools.dropwhile(lambda one: one[0] != TURN, map(tuple, stack))): None
        for stack in sent
    }:
        print(f"{len(turn)} frames from the begin of the turn to the first byte of the request:")
        print("".join(f"  {path} {name}\n" for path, name in turn), end="")
    for name, upto_s in (
        ("before the model request", asked_s),
        ("before the answer", answered_s),
        ("all", None),
    ):
        kinds = [kind for at_s, kind, _ in trips if upto_s is None or at_s < upto_s]
        print(f"{name}: {kinds.count('commit')} commits, {kinds.count('read')} reads")
    marks = [(asked_s, "", "model request"), (answered_s, "", "answer on the wire")]
    for at_s, kind, what in sorted([*map(tuple, trips), *marks]):
        print(f"  {(at_s - trips[0][0]) * 1000:7.1f} ms  {kind:6} {what}")
    for path, statements in files.items():
        entered = collections.Counter(name for file, name, _ in calls if file == path)
        inside = sum(function[0] == path for function in functions)
        print(
            f"{path}: {statements} statements, {inside} functions, {entered.total()} calls\n    "
            + ", ".join(f"{name} {count}" for name, count in entered.most_common())
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_traced(Path(sys.argv[2]))
    else:
        main()
