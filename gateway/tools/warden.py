"""A program of its own: runs a command, and ends all that the command started, once it or the gateway has ended.

`python -I -S warden.py PROGRAM [ARGUMENT]...`, with a pipe as its standard input that ends when the command has to.
Whoever loses its parent below this program becomes its child (PR_SET_CHILD_SUBREAPER, prctl(2)), so a process can
neither leave it by a new session nor by a double fork, and when this program has ended nobody is left. It has the
gateway's own priority, which the command has not. The exit status is the command's, or 128 and its signal.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
"""The number of keyctl(2), by processor."""
KEYCTL_JOIN_SESSION_KEYRING = 1
CANNOT_START = 126
KILL_ROUND_S = 0.005


def main() -> int:
    """Run it to its end."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    warden = os.getpid()
    child = os.fork()
    if child == 0:
        _exec_command(sys.argv[1:], warden, libc)
    code = None
    while code is None:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready and not os.read(0, 1024):
            break
        if woken in ready:
            os.read(woken, 1024)
        code = _reap_children(child)
    _kill_tree(child)
    return 128 + signal.SIGKILL if code is None else code


def _exec_command(argv: list[str], warden: int, libc: ctypes.CDLL) -> None:
    """The command, which ends if the warden is killed."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != warden:
        os._exit(CANNOT_START)
    os.setsid()
    if (keyctl := KEYCTL.get(os.uname().machine)) is not None:  # an empty key ring in place of the gateway's
        libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - that is what it is for
    except OSError:
        os._exit(CANNOT_START)


def _reap_children(child: int) -> int | None:
    """Whoever has ended is let go. Returns the command's status, once it has."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            exited = os.waitstatus_to_exitcode(status)
            code = exited if exited >= 0 else 128 - exited


def _kill_tree(child: int) -> None:
    """Kill until nobody is left. First whole groups, at once: so they cannot fork faster than they are killed."""
    for pid in (child, *_child_pids(child)):
        _kill(pid, group=True)
    while True:
        for pid in _descendants(os.getpid()):
            _kill(pid)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], KILL_ROUND_S)


def _kill(pid: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def _child_pids(pid: int) -> list[int]:
    """Of its first thread: those of a sandbox's outer process are there."""
    try:
        return [int(one) for one in Path("/proc", str(pid), "task", str(pid), "children").read_bytes().split()]
    except OSError:
        return []


def _descendants(top: int) -> set[int]:
    """All that come from it, as far as they can be seen."""
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed, and quickly
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {top}


if __name__ == "__main__":
    sys.exit(main())
