"""Sandbox of commands: its seccomp filter, limits and their measurement, and the arguments of bubblewrap.

The filter is an allow-list, like that of container engines: other calls do not exist for a command (ENOSYS), among them
io_uring, userfaultfd, the kernel's key rings, bpf, mounts and new namespaces. Sockets are of the families of local and
internet traffic only, so no AF_VSOCK reaches a hypervisor. Set-user-id and set-group-id bits cannot be set, because a
file in the agent's directory stays on the machine. Built by libseccomp (seccomp_rule_add(3), seccomp_export_bpf(3)).

The sandbox contains the system (`/usr`, read-only), a generated `/etc`, the agent's files at `/workspace`, skills at
`/skills`, and a `/tmp` that is discarded afterwards. It has its own processes, its own users without any capability,
and no network unless the operator allows it. Nothing else of the machine has a name there. See bwrap(1).

A gateway that runs as root sets the sandbox up as root, and the command runs as `nobody`. Its user namespace has the
machine's own ids, and is made by `warden.py`.

Usage is measured as the kernel reports it: proc(5), statvfs(3). The kernel limits the tasks of a user namespace by
itself (RLIMIT_NPROC, getrlimit(2); user_namespaces(7)), so a fork bomb has no time to grow between two measurements.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gateway.config.tools import BashConfig
from gateway.core.process import ChildProcess

LIBRARY: Final = "libseccomp.so.2"
"""Debian's package `libseccomp2`; apt and systemd need it, too."""

_ALLOWED: Final = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chown clock_getres clock_gettime clock_nanosleep
close close_range connect copy_file_range dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait
epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate
fchdir fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
ftruncate futex futex_waitv futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid
geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl
ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link
linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create mincore mkdir
mkdirat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink
mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat pause pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64
pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr
rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer
setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl
shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink symlinkat sync
sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime
utimensat utimes vfork vmsplice wait4 waitid write writev
""".split()  # noqa: SIM905 - a page of names reads better than a page of quotes
_SOCKET_FAMILIES: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, UNAME26 with both; the last one queries the current one."""
_NEW_NAMESPACES: Final = 0x7E020000
"""All CLONE_NEW* flags but CLONE_NEWTIME, which clone(2) does not take."""
_SET_ID_BITS: Final = 0o6000
_CREATE_FLAGS: Final = 0o20000100
"""O_CREAT and O_TMPFILE: without them open(2) takes no mode."""

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7


class _SeccompArgument(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("index", ctypes.c_uint),
        ("compare", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def _rules() -> Iterator[tuple[str, _SeccompArgument | None]]:
    """Yield the allowed calls, each with a condition on an argument. One matching rule of a call is enough."""
    yield from ((name, None) for name in _ALLOWED)
    yield from (("socket", _SeccompArgument(0, _EQUAL, family)) for family in _SOCKET_FAMILIES)
    yield from (("personality", _SeccompArgument(0, _EQUAL, one)) for one in _PERSONALITIES)
    yield "clone", _SeccompArgument(0, _MASKED_EQUAL, _NEW_NAMESPACES, 0)
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    yield from ((name, _SeccompArgument(at, _MASKED_EQUAL, _SET_ID_BITS, 0)) for name, at in modes.items())
    for name, flags in (("open", 1), ("openat", 2)):
        yield name, _SeccompArgument(flags, _MASKED_EQUAL, _CREATE_FLAGS, 0)
        yield name, _SeccompArgument(flags + 1, _MASKED_EQUAL, _SET_ID_BITS, 0)


@cache
def filter_file() -> str:
    """Return the path of the compiled filter (classic BPF), readable for as long as this process lives.

    Raises OSError if it cannot be built: then no command may run in the sandbox.
    """
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_SeccompArgument)),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    filter_ = library.seccomp_init(_ERRNO | errno.ENOSYS)  # libraries then try older calls
    if not filter_:
        raise OSError("libseccomp gives no filter")
    try:
        for name, argument in _rules():
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # this processor, or this version of the library, does not have it
                continue
            conditions = (_SeccompArgument * 1)(argument) if argument is not None else None
            if failed := library.seccomp_rule_add_array(
                filter_, _ALLOW, number, int(conditions is not None), conditions
            ):
                raise OSError(-failed, f"libseccomp refuses the rule of {name}")
        fd = os.memfd_create("seccomp")
        if failed := library.seccomp_export_bpf(filter_, fd):
            raise OSError(-failed, "libseccomp cannot write the filter")
    finally:
        library.seccomp_release(filter_)
    return f"/proc/{os.getpid()}/fd/{fd}"  # opened anew for each command, so read from its beginning


THREADS_PER_PROCESS: Final = 16
"""Limit of threads, for each process of the limit of processes."""
_COUNTS_BY_NAMESPACE: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 14)
"""False on older kernels, where RLIMIT_NPROC counts all processes of the gateway's user."""
OUTPUT_FLOOD_FACTOR: Final = 100
"""Limit of a command's output, as a multiple of what is kept of it."""
DISK_USE_FACTOR: Final = 10
"""Limit of disk space that a command may take, as a multiple of the limit for one file."""
MAX_NEW_FILES: Final = 100_000
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """Resources that all processes of a command use together."""

    processes: int = 0
    threads: int = 0
    memory_bytes: int = 0
    """Their own memory: anonymous, shared, swapped out, and in files without a name; not the files that they read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Free space of the disk to which a command writes."""

    free_bytes: int
    free_files: int
    """0 where the file system does not count them."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one command: the operator's, and its time."""

    config: BashConfig
    time_s: float

    @property
    def tasks(self) -> int:
        """Processes and threads that the kernel allows at once: a few more than those from which on it is ended."""
        return self.config.processes * (THREADS_PER_PROCESS + 1)

    def check_processes(self, processes: int) -> str:
        """Return the reason to end a command with this number of processes. Empty: none."""
        return (
            f"it had more than {self.config.processes} processes at once" if processes > self.config.processes else ""
        )

    def check_usage(self, load: ProcessUsage) -> str:
        """Return the reason to end a command whose processes use this much. Empty: none."""
        if load.threads > self.config.processes * THREADS_PER_PROCESS:
            return f"it had more than {self.config.processes * THREADS_PER_PROCESS} threads at once"
        if load.memory_bytes > self.config.memory_bytes:
            return f"its processes took more than {self.config.memory_bytes // MB} MB of memory together"
        return self.check_processes(load.processes)

    def check_disk(self, before: DiskSpace, now: DiskSpace) -> str:
        """Return the reason to end a command that wrote this much to the disk. Empty: none.

        Others write there, too: so only large amounts count, or those that take the last free space.
        """
        taken = before.free_bytes - now.free_bytes
        if taken > DISK_USE_FACTOR * self.config.disk_bytes or (
            now.free_bytes < self.config.disk_bytes < DISK_USE_FACTOR * taken
        ):
            return f"the disk lost {taken // MB} MB while it ran, and has {now.free_bytes // MB} MB left"
        if before.free_files - now.free_files > MAX_NEW_FILES:
            return f"more than {MAX_NEW_FILES} files were made while it ran"
        return ""

    def check_output(self, written: int) -> str:
        """Return the reason to end a command that printed this much. Empty: none."""
        max_bytes = OUTPUT_FLOOD_FACTOR * self.config.output_bytes
        return f"it printed more than {max_bytes // MB} MB; put such output into a file" if written > max_bytes else ""


SAMPLE_INTERVAL_S: Final = 0.05
"""Seconds between two checks. In that time a program may take some 100 MB beyond its limit."""
REST_FACTOR: Final = 20
"""Checks take a twentieth of the time at most, however many processes there are."""
HALT_ROUND_S: Final = 0.002
"""Seconds between two looks at the processes of a command that is being halted."""
_CLEAN_ROUNDS: Final = 2
"""Looks that find none running: a process that was stopping may have started another one during the first."""
_MOUNT_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
"""Space, tab, line end and backslash in proc_pid_mountinfo(5)."""
MAX_PROCESSES: Final = 1_000_000
_KIB: Final = 1024
_STAT_BLOCK_BYTES: Final = 512
_PROC: Final = Path("/proc")
_TELLS_CHILDREN: Final = Path("/proc/thread-self/children").exists()
"""False on kernels without CONFIG_PROC_CHILDREN: then all processes are scanned, which takes longer."""


async def watch_limits(pid: int, limits: CommandLimits, folder: Path, *, keepers: int) -> str:
    """Return the reason to end the processes that this one started, once there is one.

    `folder`: where they write. `keepers`: as in `list_descendants`.
    """
    before = measure_disk(folder)
    while True:
        began = time.thread_time()  # not wall time: busy processors must not make checks rarer
        why = _check_limits(pid, limits, keepers=keepers) or limits.check_disk(before, measure_disk(folder))
        if why:
            return why
        await asyncio.sleep(max(SAMPLE_INTERVAL_S, REST_FACTOR * (time.thread_time() - began)))


def _check_limits(pid: int, limits: CommandLimits, *, keepers: int) -> str:
    found = list_descendants(pid, limits.config.processes + 1, keepers=keepers)
    if crowded := limits.check_processes(len(found)):
        return crowded
    why = limits.check_usage(measure_usage(found))
    return why and limits.check_usage(measure_usage(found, exact=True))


def list_descendants(pid: int, most: int, *, keepers: int = 0) -> list[int]:
    """Return the descendants of a process, without itself; at most `most`, nearest first.

    `keepers`: number of generations that are left out, too.
    """
    found = list(_child_pids(pid))
    for _ in range(keepers):
        found = [child for one in found for child in _child_pids(one)]
    for one in found:  # it grows meanwhile
        if len(found) > most:
            break
        found += _child_pids(one)
    return found[:most]


class CommandGate:
    """Start of a command, which others can halt while they run."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._halts = 0
        self._stopped: list[int] = []
        self._changing = asyncio.Lock()
        """Held while the command starts, or is being halted."""
        self._is_open = asyncio.Event()
        self._is_open.set()

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Wait until the command may start. It cannot be halted before the end of the block."""
        while True:
            await self._is_open.wait()
            async with self._changing:
                if self._is_open.is_set():
                    yield
                    return

    def started(self, child: ChildProcess) -> None:
        """Say which process is above all of its own."""
        self._child = child

    async def halt(self) -> None:
        """Stop all of its processes, or its start. As many calls of `go_on` let it go on."""
        async with self._changing:
            self._halts += 1
            self._is_open.clear()
            try:
                clean_rounds = 0
                while clean_rounds < _CLEAN_ROUNDS and self._child is not None and self._child.status is None:
                    found = list_descendants(self._child.pid, MAX_PROCESSES)
                    running = [one for one in found if _is_running(one)]
                    clean_rounds = clean_rounds + 1 if found and not running else 0  # none found: it is about to start
                    for pid in running:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGSTOP)
                    self._stopped += running
                    await asyncio.sleep(HALT_ROUND_S)
            except BaseException:
                self.go_on()
                raise

    def go_on(self) -> None:
        """Take back one halt."""
        self._halts -= 1
        if self._halts:
            return
        if self._child is not None and self._child.status is None:
            for pid in {*self._stopped} & {*list_descendants(self._child.pid, MAX_PROCESSES)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self._stopped.clear()
        self._is_open.set()

    def mount_points(self) -> set[str] | None:
        """Return the paths at which something is mounted, as its innermost process sees them. None: there is none."""
        if self._child is None or self._child.status is not None:
            return None
        pids = list_descendants(self._child.pid, MAX_PROCESSES)
        lines = _read_bytes(_PROC / str(pids[-1]) / "mountinfo").splitlines() if pids else []
        paths = [_MOUNT_ESCAPE.sub(lambda one: bytes([int(one[1], 8)]), line.split(b" ")[4]) for line in lines]
        return {os.fsdecode(path) for path in paths}


def _is_running(pid: int) -> bool:
    """Return whether a process is neither stopped nor has ended."""
    fields = _read_bytes(_PROC / str(pid) / "stat").rpartition(b")")[2].split()
    return bool(fields) and fields[0] not in (b"T", b"t", b"Z", b"X")


def measure_usage(pids: Iterable[int], *, exact: bool = False) -> ProcessUsage:
    """Measure the usage of these processes. `exact`: count shared memory once, which takes long for large processes."""
    processes = threads = kib = 0
    files: dict[int, int] = {}
    for pid in pids:
        processes += 1
        status = _read_table(_PROC / str(pid) / "status")
        threads += status.get("Threads", 0)
        own_kib = status.get("RssAnon", 0) + status.get("RssShmem", 0) + status.get("VmSwap", 0)
        if exact and (rollup := _read_table(_PROC / str(pid) / "smaps_rollup")):
            own_kib = min(
                own_kib, rollup.get("Pss_Anon", own_kib) + rollup.get("Pss_Shmem", 0) + rollup.get("SwapPss", 0)
            )
        kib += own_kib
        files.update(_memory_files(pid))
    return ProcessUsage(processes=processes, threads=threads, memory_bytes=kib * _KIB + sum(files.values()))


def _memory_files(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the inode and bytes of the files without a name that it holds in memory (memfd_create(2))."""
    folder = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(folder):  # noqa: PTH208 - only names, and quickly
            file = f"{folder}/{name}"
            with contextlib.suppress(OSError):  # it is closed by now
                if os.readlink(file).startswith("/memfd:"):  # noqa: PTH115 - the same
                    status = os.stat(file)  # noqa: PTH116 - the same
                    yield status.st_ino, status.st_blocks * _STAT_BLOCK_BYTES


def measure_disk(folder: Path) -> DiskSpace:
    """Return the free space there; none if it cannot be measured."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return DiskSpace(free_bytes=0, free_files=0)
    return DiskSpace(free_bytes=status.f_bavail * status.f_frsize, free_files=status.f_favail)


def kill_marked(mark: str) -> None:
    """Kill every visible process that was started with `mark` in its environment, `NAME=value`."""
    before = True
    for _ in range(10):  # processes that fork or execute another program meanwhile are found in the next round
        found = [pid for pid in _all_pids() if mark.encode() in _read_bytes(_PROC / str(pid) / "environ").split(b"\0")]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found and not before:
            return
        before = bool(found)


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - only names, and quickly


def _child_pids(pid: int) -> Iterator[int]:
    if not _TELLS_CHILDREN:
        yield from (one for one in _all_pids() if _parent_pid(one) == pid)
        return
    try:
        threads = os.listdir(_PROC / str(pid) / "task")  # noqa: PTH208 - the same
    except OSError:
        return
    for thread in threads:
        yield from map(int, _read_bytes(_PROC / str(pid) / "task" / thread / "children").split())


def _parent_pid(pid: int) -> int:
    """Return the parent's id; 0 if the process has ended."""
    fields = _read_bytes(_PROC / str(pid) / "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read_table(path: Path) -> dict[str, int]:
    """Parse lines `Name:  123 kB`, those with a number."""
    found = {}
    for line in _read_bytes(path).splitlines():
        name, _, value = line.partition(b":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            found[name.decode("ascii", "replace")] = int(number[0])
    return found


def _read_bytes(path: Path) -> bytes:
    """Return the content; nothing if the process has ended meanwhile, or belongs to somebody else."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


HOME: Final = "/workspace"
SKILLS_PATH: Final = "/skills"
NICE: Final = 10
MAX_OPEN_FILES: Final = 1024
MARKER_VARIABLE: Final = "REVERIE_COMMAND"
"""Set in the environment of each command, to find the processes it left behind. Not set inside a sandbox."""
BWRAP_PROCESSES: Final = 2
"""Processes of bubblewrap itself: one outside, which waits, and the first one inside."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UID: Final = "1000"
"""User inside. Outside it is the gateway's own user: so files made in /workspace are the gateway's."""
NOBODY: Final = 65534
"""User and group of commands of a gateway that runs as root, inside and outside."""
_AS_NOBODY: Final = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all"),
    *("--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
)
"""Command line of setpriv(1), of util-linux."""
_LIMIT_TASKS: Final = 'ulimit -u "$0" 2>/dev/null; exec "$@"'
"""Setting it fails where it is lower already."""
_UNSHARED_BY_ROOT: Final = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
"""Without a user namespace of bubblewrap's, which would know one user only, and not `nobody` beside root."""
_CAPABILITIES_OF_ROOT: Final = tuple(
    word for one in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH") for word in ("--cap-add", f"CAP_{one}")
)
"""Needed by setpriv, and to enter /workspace; all are dropped before the command begins."""
_FILTER_FD: Final = 3
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
"""Paths that programs need; everything else there is the operator's."""
_OURS: Final = Path(__file__).parent / "etc"
_GENERATED_ETC: Final = ("group", "hosts", "nsswitch.conf", "passwd")
_LAUNCH: Final = (
    "echo 1000 2>/dev/null >/proc/self/oom_score_adj; "  # if memory runs out, these processes are killed first
    "ulimit -c 0; ulimit -n {files} 2>/dev/null; ulimit -f {blocks} || exit 126; "
    'exec nice -n {nice} "$@"'
)
_ULIMIT_BLOCK_BYTES: Final = 512
"""Unit of `ulimit -f`, by POSIX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMounts:
    """Paths of the machine that a command sees beside the system. All are absolute and resolved."""

    root: Path
    skills: tuple[Path, ...] = ()
    """Directories, mounted read-only under their names."""
    hidden: tuple[Path, ...] = ()
    """Directories that it must not see even if they are below `/usr`."""
    closed_files: tuple[str, ...] = ()
    """Files in `root` that it can neither read nor write, by their paths there."""
    closed_directories: tuple[str, ...] = ()
    """Directories in `root` that are empty to it."""


def build_sandboxed_argv(
    command: str,
    box: SandboxMounts,
    limits: CommandLimits,
    *,
    bwrap: str,
    strict: bool,
    filter_file: str,
    root: bool,
    outer: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the program and arguments that run a command in the sandbox.

    `strict`: forbid new user namespaces inside, which bubblewrap can since 0.8. `filter_file`: as the function of that
    name returns it. `root`: the gateway runs as root. `outer`: program and arguments around all of it.
    """
    config = limits.config
    return (
        # The file is opened here, where it can be, as the descriptor from which bubblewrap reads it.
        *("/bin/sh", "-c", f'exec "$@" {_FILTER_FD}<"$0"', filter_file),
        *outer,
        *_build_limiting_argv(config),
        *(bwrap, "--seccomp", str(_FILTER_FD)),
        *(_UNSHARED_BY_ROOT if root else ("--unshare-all", "--unshare-user")),
        *(("--disable-userns",) if strict and not root else ()),
        *(("--share-net",) if config.network else ()),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(_CAPABILITIES_OF_ROOT if root else ("--uid", _UID, "--gid", _UID)),
        *("--hostname", "sandbox", "--clearenv"),
        *(word for name, value in build_environment(HOME).items() for word in ("--setenv", name, value)),
        *_mount_arguments(box, config),
        *("--chdir", HOME, "--"),
        *_build_command_argv(command, limits, root=root, counts_tasks=root or _COUNTS_BY_NAMESPACE),
    )


def build_unsandboxed_argv(
    command: str, limits: CommandLimits, *, root: bool, outer: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the program and arguments that run a command without a sandbox: only its resources are limited.

    `root`, `outer`: as for the sandbox.
    """
    inner = _build_command_argv(command, limits, root=root, counts_tasks=root)  # else those of the gateway's user count
    return (*outer, *_build_limiting_argv(limits.config), *inner)


def _build_command_argv(command: str, limits: CommandLimits, *, root: bool, counts_tasks: bool) -> tuple[str, ...]:
    """Return the arguments behind the sandbox. `counts_tasks`: the kernel counts those of commands alone."""
    return (
        *(_AS_NOBODY if root else ()),
        *(("/bin/bash", "-c", _LIMIT_TASKS, str(limits.tasks)) if counts_tasks else ()),
        *("/bin/bash", "-c", command),
    )


def _build_limiting_argv(config: BashConfig) -> tuple[str, ...]:
    """Return the arguments before a program that set limits which it and its children cannot lift."""
    script = _LAUNCH.format(files=MAX_OPEN_FILES, blocks=max(1, config.disk_bytes // _ULIMIT_BLOCK_BYTES), nice=NICE)
    return ("/bin/sh", "-c", script, "sh")


def build_environment(home: str) -> dict[str, str]:
    """Return the whole environment of a command."""
    return {
        "PATH": PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "USER": "agent",
        "SHELL": "/bin/bash",
    }


def scratch_bytes(config: BashConfig) -> int:
    """Return the size of /tmp, which is memory."""
    return min(config.disk_bytes, config.memory_bytes // 4)


def _mount_arguments(box: SandboxMounts, config: BashConfig) -> Iterator[str]:
    for path in _SYSTEM:
        yield from ("--ro-bind-try", path, path)
    for path in (
        "/etc",
        "/etc/ssl",
        *((SKILLS_PATH,) if box.skills else ()),
    ):  # made implicitly, they would be closed to `nobody`
        yield from ("--perms", "0755", "--dir", path)
    for path in (*_ETC, *(("/etc/resolv.conf",) if config.network else ())):
        yield from ("--ro-bind-try", path, path)
    for name in _GENERATED_ETC:
        yield from ("--ro-bind", str(_OURS / name), f"/etc/{name}")
    below = [one for one in box.hidden if any(Path(path) in one.parents for path in _SYSTEM)]
    for hidden in below:
        if not any(other in hidden.parents for other in below):  # it is empty then, and nothing can be made there
            yield from ("--size", "4096", "--tmpfs", str(hidden), "--remount-ro", str(hidden))
    yield from ("--proc", "/proc", "--dev", "/dev")
    # Each file system in memory has a size; those that need not be written are read-only.
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config) // 4), "--tmpfs", "/dev/shm")  # noqa: S108 - the sandbox's own
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config)), "--tmpfs", "/tmp")  # noqa: S108 - the sandbox's own
    yield from ("--bind", str(box.root), HOME)
    for file in box.closed_files:
        yield from ("--ro-bind", "/dev/null", f"{HOME}/{file}")  # without devices: opening it is refused
    for closed in box.closed_directories:
        yield from ("--size", "4096", "--tmpfs", f"{HOME}/{closed}", "--remount-ro", f"{HOME}/{closed}")
    for name, skill in {skill.name: skill for skill in reversed(box.skills)}.items():
        yield from ("--ro-bind-try", str(skill), f"{SKILLS_PATH}/{name}")
    # Outside, a gateway that runs as root owns /proc/sys and /proc/sysrq-trigger, whatever user it is inside.
    yield from ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
