"""Program that runs a command, and ends everything that the command started, once it or the gateway
has ended.

`python -I -S warden.py [--own-users] PROGRAM [ARGUMENT]...`, with a pipe as standard input that is
closed to end the command. A process below this program that loses its parent becomes its child
(PR_SET_CHILD_SUBREAPER, prctl(2)), so none can escape by a new session or a double fork, and when
this program has ended none is left. It has the gateway's own priority, unlike the command. The exit
status is the command's, or 128 and its signal.

`--own-users` (of root) starts the program in a user namespace with the same ids, where the kernel
counts its processes apart from all others (user_namespaces(7)). Where none can be made, it starts
without.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

OWN_USERS = "--own-users"
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
"""Number of keyctl(2), by processor."""
KEYCTL_JOIN_SESSION_KEYRING = 1
CANNOT_START = 126


def main() -> int:
    """Run the command to its end. Return the exit status."""
    import ctypes  # noqa: PLC0415 - the gateway imports this file for its path alone

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    warden = os.getpid()
    has_own_users = sys.argv[1] == OWN_USERS
    asked, asks = os.pipe()
    done, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tells)
        if has_own_users and libc.unshare(CLONE_NEWUSER) == 0:
            os.write(asks, b"?")
            os.read(done, 1)
        _exec_command(sys.argv[2 if has_own_users else 1 :], warden, libc)
    os.close(asks)
    if has_own_users and os.read(asked, 1):
        _map_same_ids(child)
    os.close(tells)
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


def _map_same_ids(child: int) -> None:
    """Give the user namespace of the child the ids of ours."""
    for kind in ("uid_map", "gid_map"):
        mapped = [
            line.split()
            for line in Path("/proc/self", kind).read_text(encoding="ascii").splitlines()
        ]
        same = "".join(f"{inside} {inside} {count}\n" for inside, _, count in mapped)
        with contextlib.suppress(OSError):
            Path("/proc", str(child), kind).write_text(same, encoding="ascii")


def _exec_command(argv: list[str], warden: int, libc: "ctypes.CDLL") -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != warden:
        os._exit(CANNOT_START)
    os.setsid()
    if (
        keyctl := KEYCTL.get(os.uname().machine)
    ) is not None:  # an empty key ring in place of the gateway's
        libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the purpose of this program
    except OSError:
        os._exit(CANNOT_START)


def _reap_children(child: int) -> int | None:
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
    """Kill until no process is left.

    First whole groups, at once, so that they cannot fork faster than they are killed.
    """
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
        select.select([], [], [], 0.005)


def _kill(pid: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def _child_pids(pid: int) -> list[int]:
    """Return the children of its first thread: a sandbox's outer process has all of its children
    there.
    """
    try:
        return [
            int(one)
            for one in Path("/proc", str(pid), "task", str(pid), "children").read_bytes().split()
        ]
    except OSError:
        return []


def _descendants(top: int) -> set[int]:
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - only names, and quickly
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
