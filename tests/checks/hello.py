"""Files and functions that one "hello" runs through: `python tests/checks/hello.py [CHECKOUT]`.
Nothing is limited.

Also the frames of our code between the begin of the turn and the request's first byte.

`reverie run` on a loopback IRC server and a model that streams one sentence. The second "hello" is
traced, by `sys.setprofile` in the event loop's thread, from the line on the wire to a second after
the answer.
"""

import asyncio
import collections
import contextlib
import itertools
import json
import os
import runpy
import signal
import sys
import tempfile
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PACKAGES = ("gateway/", "channels/", "agent/")
SETTLE_S = 1.0
TURN = "gateway/runtime/turn.py"
"""The turn begins in the first frame of this file."""
EVENT_LOOP = "asyncio/events.py"
SEND = ("httpx/_client.py", "send")
"""File and function of the HTTP client that send a request."""
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Parts of the functions that they stand in."""


def run_traced(checkout: Path, config: str, result: Path) -> None:
    """Run the gateway of a checkout in this process. SIGURG starts the trace, SIGWINCH writes it to
    `result`."""
    calls: list[tuple[str, str, int]] = []
    sent: list[list[tuple[str, str]]] = []
    prefix = f"{checkout}/"
    begun = weakref.WeakKeyDictionary[asyncio.Task[Any], list[tuple[str, str]]]()

    def path_of(frame: FrameType) -> str:
        """Return the path of our own code. Empty: it is other code."""
        path = frame.f_code.co_filename.removeprefix(prefix)
        return path if path.startswith(PACKAGES) else ""

    def frames_above(frame: FrameType | None) -> list[tuple[str, str]]:
        """Return our frames, outermost first, also those that created the task."""
        found = list[tuple[str, str]]()
        while frame is not None and not frame.f_code.co_filename.endswith(EVENT_LOOP):
            if path := path_of(frame):
                found.append((path, frame.f_code.co_qualname))
            frame = frame.f_back
        task = asyncio.current_task()
        return [*(begun.get(task, []) if task is not None else []), *reversed(found)]

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if path := path_of(frame):
            calls.append((path, frame.f_code.co_qualname, frame.f_code.co_firstlineno))
        elif frame.f_code.co_name == SEND[1] and frame.f_code.co_filename.endswith(SEND[0]):
            sent.append(frames_above(frame))

    def create_task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        begun[task] = (
            frames_above(sys._getframe()) if loop.is_running() and asyncio.current_task() else []
        )
        return task

    def start(_: int, __: object) -> None:
        asyncio.get_running_loop().set_task_factory(create_task)
        sys.setprofile(record)

    def finish(_: int, __: object) -> None:
        sys.setprofile(None)
        write_result(result, [calls, sent])

    signal.signal(signal.SIGURG, start)
    signal.signal(signal.SIGWINCH, finish)
    run_gateway(checkout, config)


def run_gateway(checkout: Path, config: str) -> None:
    """Run the gateway of a checkout in this process."""
    sys.path[0] = str(checkout)
    sys.argv = ["reverie", "run", "--config", config]
    module = "gateway.cli.main" if (checkout / "gateway/cli/main.py").is_file() else "gateway.cli"
    runpy.run_module(module, run_name="__main__")


def write_result(path: Path, result: object) -> None:
    """Write it as JSON, complete as soon as the file exists."""
    path.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
    path.with_suffix(".part").rename(path)


async def trace_hello(
    checkout: Path, child: str = __file__, *, messages: int = 2
) -> tuple[Any, float, float]:
    """Return what the child wrote about the last of the messages, with the times of the model
    request and the answer.

    Times are `time.perf_counter`, which both processes share.
    """
    from tests.bench.gateway_kit import NICK, ROOM, FastModel, Wire, write_config  # noqa: PLC0415 - not in the child

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "calls.json"
        async with Wire() as wire, FastModel() as model:
            config = Path(folder) / "config"
            write_config(
                config, irc_port=wire.port, model_url=model.url, store=config / "reverie.db"
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                child,
                "--child",
                str(checkout),
                str(config),
                str(result),
                env={**os.environ, "PYTHONPATH": str(checkout)},
            )
            try:
                await wire.joined(NICK, ROOM)
                asked, answered_s = 0, 0.0
                for number in range(messages):
                    before, asked = len(wire.lines), len(model.stamps)
                    if number == messages - 1:
                        await asyncio.sleep(SETTLE_S)  # what the message before left behind is done
                        process.send_signal(signal.SIGURG)
                        await asyncio.sleep(SETTLE_S)
                    await wire.say(ROOM, f"{NICK}: hello")
                    answered_s = await wire.said_s(f"PRIVMSG {ROOM} ", after=before)
                    await asyncio.sleep(SETTLE_S)
                process.send_signal(signal.SIGWINCH)
                while not result.exists():
                    await asyncio.sleep(0.1)
                trace = json.loads(result.read_text(encoding="utf-8"))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
        return trace, model.stamps[asked], answered_s


def main() -> None:
    """Print the figures, and the files in the order in which they are entered first."""
    checkout = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    traced, _, _ = asyncio.run(trace_hello(checkout))
    calls: list[tuple[str, str, int]] = traced[0]
    sent: list[list[tuple[str, str]]] = traced[1]
    files = collections.Counter(path for path, _, _ in calls)
    functions = {tuple(call) for call in calls if not call[1].endswith(COMPREHENSIONS)}
    moves = [
        (before[0], now[0]) for before, now in itertools.pairwise(calls) if before[0] != now[0]
    ]
    left = {calls[0][0]}
    back = 0
    for _, entered in moves:
        back += entered in left
        left.add(entered)
    print(f"{len(files)} files, {len(functions)} functions, {len(calls):,} calls")
    print(f"{len(moves):,} moves from file to file, {back:,} of them back to a file already left")
    for turn in {
        tuple(itertools.dropwhile(lambda one: one[0] != TURN, map(tuple, stack))): None
        for stack in sent
    }:
        print(f"{len(turn)} frames from the begin of the turn to the first byte of the request:")
        print("".join(f"  {path} {name}\n" for path, name in turn), end="")
    for path in files:
        print(f"  {files[path]:5} {path}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_traced(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        main()
