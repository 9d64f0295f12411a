"""The embedded model on a machine that has other things to do: a real child process, real weights."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.local import LocalModel
from tests.agent.models.test_local import QUESTION, needs_weights
from tests.kits.models import ask, end


def to_one_core(pid: int) -> None:
    """All its threads: it does not learn that they cannot run at the same time any more."""
    core = min(os.sched_getaffinity(pid))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def computed_s(pid: int) -> float:
    """How long the process kept a core busy, whatever else ran (proc(5): utime, stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def times_slept(pid: int) -> int:
    """How often its threads waited for something (proc(5): voluntary_ctxt_switches)."""
    told = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for status in told)


@needs_weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one thread waits for nobody")
def test_threads_that_wait_for_each_other_leave_the_core_to_others() -> None:
    async def story() -> None:
        model = LocalModel()
        try:
            await model.start()
            assert model.pid is not None
            to_one_core(model.pid)
            before = computed_s(model.pid)
            assert end(await ask(model, replace(QUESTION, max_output_tokens=4))).usage.output_tokens
            assert computed_s(model.pid) - before < 2  # 0.1, and 8 to 12 with threads that spin meanwhile
        finally:
            await model.aclose()

    asyncio.run(story())


@needs_weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(os.cpu_count() == 1, reason="llama.cpp takes one thread by itself")
def test_no_more_threads_than_it_has_cores() -> None:
    async def story() -> None:
        model = LocalModel()
        mine = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(mine)})  # what the child inherits, as from a container
            await model.start()
            assert model.pid is not None
            before = times_slept(model.pid)
            assert end(await ask(model, replace(QUESTION, max_output_tokens=8))).usage.output_tokens
            assert times_slept(model.pid) - before < 1000  # 60, and 6000 where two threads wait for each other
        finally:
            os.sched_setaffinity(0, mine)
            await model.aclose()

    asyncio.run(story())
