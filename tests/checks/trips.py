"""Trips to the database that one "hello" takes: `python tests/checks/trips.py [CHECKOUT]`. Nothing
is limited.

A trip is one function executed on a connection's thread. As in `hello.py`, with the third "hello":
the second one still learns the room's names. All trips from the line on the wire to a second after
the answer are printed in order: commits with the kinds of their facts, reads with the store's
method and its callers.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

Trip = tuple[float, str, str]
"""Time, `commit` or `read`, and its description."""


def run_counted(checkout: Path, config: str, result: Path) -> None:
    """Run the gateway of a checkout in this process. SIGURG starts the count, SIGWINCH writes it to
    `result`."""
    from tests.checks.hello import run_gateway, write_result  # noqa: PLC0415 - in the child only

    sys.path.insert(0, str(checkout))
    from gateway.store.sqlite_log import SqliteLog  # noqa: PLC0415 - of the checkout

    log: Any = SqliteLog
    run = log.run
    trips: list[Trip] = []

    async def counted(one: Any, function: Any, *args: Any) -> Any:
        callers = " <- ".join(_callers(sys._getframe(1))[:4])
        if function != one.append:
            trips.append((time.perf_counter(), "read", callers))
            return await run(one, function, *args)
        plan = await run(one, function, *args)
        trips.append((time.perf_counter(), "commit", ", ".join(row.kind for row in plan.rows)))
        return plan

    log.run = counted
    signal.signal(signal.SIGURG, lambda *_: trips.clear())
    signal.signal(signal.SIGWINCH, lambda *_: write_result(result, trips))
    run_gateway(checkout, config)


def _callers(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:
        if "/gateway/" in frame.f_code.co_filename and frame.f_code.co_name not in (
            "_rows",
            "_first_entry",
        ):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def main() -> None:
    """Print the trips, and how many there are before the model request leaves."""
    from tests.checks.hello import trace_hello  # noqa: PLC0415 - not in the child

    checkout = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    trips, asked_s, answered_s = asyncio.run(trace_hello(checkout, __file__, messages=3))
    for name, upto_s in (
        ("before the model request", asked_s),
        ("before the answer", answered_s),
        ("all", None),
    ):
        told = [kind for at, kind, _ in trips if upto_s is None or at < upto_s]
        print(f"{name}: {told.count('commit')} commits, {told.count('read')} reads")
    marks = [(asked_s, "", "model request"), (answered_s, "", "answer on the wire")]
    start_s = trips[0][0]
    for at, kind, what in sorted([*map(tuple, trips), *marks]):
        print(f"  {(at - start_s) * 1000:7.1f} ms  {kind:6} {what}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_counted(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        main()
