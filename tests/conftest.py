"""What holds for every test."""

import asyncio
import functools
import inspect
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kits.examples import examples

settings.register_profile("reverie", max_examples=examples(), deadline=None)
settings.load_profile("reverie")
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # so a shell starts what runs in its background
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # and so would all be that a test starts and interrupts

ROOT = Path(__file__).parent
BOX = ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true")


@cache
def no_box() -> str:
    """Why no command can be put into a sandbox here. Empty: it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: apt-get install bubblewrap"
    done = subprocess.run(BOX, capture_output=True, check=False, timeout=30)
    return (
        f"bubblewrap does not work here: {done.stderr.decode(errors='replace').strip()}"
        if done.returncode
        else ""
    )


INTEGRATION = (
    "attacks/",
    "channels/conformance/",
    "channels/irc/test_real_servers.py",
    "gateway/config/test_example_configs.py",
    "gateway/plugins/dashboard/test_dashboard.py",
    "gateway/plugins/backup/test_backup_faults.py",
    "gateway/plugins/console/",
    "gateway/plugins/doctor/",
    "gateway/plugins/setup/",
    "gateway/plugins/shell/",
    "gateway/system/crash/",
    "gateway/system/long_run/",
    "gateway/system/permission_matrix/",
    "gateway/system/platforms/",
    "gateway/system/reload/",
    "gateway/system/test_commands_on_all_platforms.py",
    "gateway/system/test_irc.py",
    "gateway/test_app.py",
    "gateway/plugins/test_mcp.py",
    "life/",
    "packaging/",
    "reverie/",
    "servers/",
)
"""Tests that run the program as a process, a whole platform over sockets, or a sandbox."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the integration tier by their place."""
    for item in items:
        if item.path.relative_to(ROOT).as_posix().startswith(INTEGRATION):
            item.add_marker("integration")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sum up what tests have recorded as numbers."""
    sums = Counter[str]()
    for name in ("passed", "failed", "xfailed", "xpassed"):
        for report in terminalreporter.getreports(name):
            if report.when == "call":
                sums.update(
                    {key: value for key, value in report.user_properties if isinstance(value, int)}
                )
    for key, value in sums.items():
        terminalreporter.write_line(f"{value:>6} {key}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test in a sandbox is skipped where there is none, and fails for that where it must not be
    missing."""
    if item.get_closest_marker("boxed") is not None and no_box():
        if os.environ.get("CI"):
            pytest.fail(no_box())
        pytest.skip(no_box())


@pytest.fixture
def anyio_backend() -> str:
    """Tests and fixtures that are coroutines run on one asyncio loop
    (https://anyio.readthedocs.io/en/stable/testing.html)."""
    return "asyncio"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """An async test that hangs fails after five minutes, unless it is to run for long."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) and pyfuncitem.get_closest_marker("soak") is None:

        @functools.wraps(test)
        async def bounded(**fixtures: object) -> None:
            async with asyncio.timeout(300):
                await test(**fixtures)

        pyfuncitem.obj = bounded
    return (yield)


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """A thread that outlives its work keeps the process from ending."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(5)
            assert not thread.is_alive(), f"{thread.name} is left behind"
