"""Sandbox of commands: its seccomp filter, limits and their measurement, and the arguments of
bubblewrap.

The filter is an allow-list, like that of container engines: other calls do not exist for a command
(ENOSYS), among them io_uring, userfaultfd, the kernel's key rings, bpf, mounts and new namespaces.
Sockets are of the families of local and internet traffic only, so no AF_VSOCK reaches a hypervisor.
Set-user-id and set-group-id bits cannot be set, because a file in the agent's directory stays on
the machine. Built by libseccomp (seccomp_rule_add(3), seccomp_export_bpf(3)).

A socket or named pipe can be written to through a read-only mount. So a command whose directory is
read in other places makes none (`is_read_elsewhere`): what a command there knows would come out
here.

The sandbox contains the system (`/usr`, read-only), a generated `/etc`, the agent's files at
`/workspace`, skills at `/skills`, and a `/tmp` that is discarded afterwards. It has its own
processes, its own users without any capability, and no network unless the operator allows it.
Nothing else of the machine has a name there. See bwrap(1).

A gateway that runs as root sets the sandbox up as root, and the command runs as `nobody`. Its user
namespace has the machine's own ids, and is made by `warden.py`.

The kernel limits what a command takes (getrlimit(2)): the size of a file, the memory of each
process, and the processes and threads of all of them, which are counted in the sandbox's user
namespace (user_namespaces(7)). The free space of the disk is measured (statvfs(3)). A container or
service that limits memory limits all commands together.
"""

import asyncio
import ctypes
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from gateway.config.tools import BashConfig
from gateway.core.frozen import frozen
from gateway.plugins.skills import SKILLS_PATH

LIBRARY: Final = "libseccomp.so.2"
"""Debian's package `libseccomp2`; apt and systemd need it, too."""

_ALLOWED: Final = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chown clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range dup dup2 dup3 epoll_create epoll_create1
epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group
faccessat faccessat2 fadvise64 fallocate fchdir fchown fchownat fcntl fdatasync fgetxattr flistxattr
flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_waitv futimesat
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create mincore mkdir mkdirat
mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat
pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read readahead readlink
readlinkat readv recvfrom recvmmsg recvmsg removexattr rename renameat renameat2 restart_syscall
rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop
semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid
setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid
setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd
signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill
time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat
utimes vfork vmsplice wait4 waitid write writev
""".split()  # noqa: SIM905 - a page of names reads better than a page of quotes
_AF_UNIX: Final = 1
_SOCKET_FAMILIES: Final = (2, 10, 16)
"""AF_INET, AF_INET6, AF_NETLINK."""
_SOCKET_TYPE: Final = 0xF
_CONNECTED_TYPES: Final = (1, 5)
"""SOCK_STREAM, SOCK_SEQPACKET: of a pair of these, none can get a name and take others'
messages."""
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, UNAME26 with both; the last one queries the current one."""
_NEW_NAMESPACES: Final = 0x7E020000
"""All CLONE_NEW* flags but CLONE_NEWTIME, which clone(2) does not take."""
_SET_ID_BITS: Final = 0o6000
_FILE_TYPE: Final = 0o170000
_REGULAR_TYPES: Final = (0, 0o100000)
"""Of mknod(2): a regular file."""
_CREATE_FLAGS: Final = 0o20000100
"""O_CREAT and O_TMPFILE: without them open(2) takes no mode."""

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7


class _SeccompArgument(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_uint),
        ("compare", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def _rules(is_read_elsewhere: bool) -> Iterator[tuple[str, _SeccompArgument | None]]:
    """Yield the allowed calls, each with a condition on an argument. One matching rule of a call is
    enough.
    """
    yield from ((name, None) for name in _ALLOWED)
    yield from (("socket", _SeccompArgument(0, _EQUAL, family)) for family in _SOCKET_FAMILIES)
    yield from (("personality", _SeccompArgument(0, _EQUAL, one)) for one in _PERSONALITIES)
    yield "clone", _SeccompArgument(0, _MASKED_EQUAL, _NEW_NAMESPACES, 0)
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}
    nodes = {"mknod": 1, "mknodat": 2}
    if is_read_elsewhere:
        yield from (
            ("socketpair", _SeccompArgument(1, _MASKED_EQUAL, _SOCKET_TYPE, one))
            for one in _CONNECTED_TYPES
        )
        mask = _SET_ID_BITS | _FILE_TYPE
        yield from (
            (name, _SeccompArgument(at, _MASKED_EQUAL, mask, one))
            for name, at in nodes.items()
            for one in _REGULAR_TYPES
        )
    else:
        yield "socket", _SeccompArgument(0, _EQUAL, _AF_UNIX)
        yield "socketpair", None
        modes |= nodes
    yield from (
        (name, _SeccompArgument(at, _MASKED_EQUAL, _SET_ID_BITS, 0)) for name, at in modes.items()
    )
    for name, flags in (("open", 1), ("openat", 2)):
        yield name, _SeccompArgument(flags, _MASKED_EQUAL, _CREATE_FLAGS, 0)
        yield name, _SeccompArgument(flags + 1, _MASKED_EQUAL, _SET_ID_BITS, 0)


@cache
def filter_file(*, is_read_elsewhere: bool) -> str:
    """Return the path of the compiled filter (classic BPF), readable for as long as this process
    lives.

    `is_read_elsewhere`: commands of places with fewer readers see what this one makes.

    Raises OSError if it cannot be built: then no command may run in the sandbox.
    """
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = (
        *(
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.POINTER(_SeccompArgument),
        ),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    filter_ = library.seccomp_init(_ERRNO | errno.ENOSYS)  # libraries then try older calls
    if not filter_:
        raise OSError("libseccomp gives no filter")
    try:
        for name, argument in _rules(is_read_elsewhere):
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
    return (
        f"/proc/{os.getpid()}/fd/{fd}"  # opened anew for each command, so read from its beginning
    )


ADDRESS_SPACE_FACTOR: Final = 4
"""Limit of a process's address space, as a multiple of its memory: programs reserve more than they
use."""
OUTPUT_BYTES: Final = 200_000
"""Output of one command that is kept: its beginning and its end."""
MAX_PRINTED_BYTES: Final = 20_000_000
"""Limit of a command's output, kept or not."""
DISK_USE_FACTOR: Final = 10
"""Limit of disk space that a command may take, as a multiple of the limit for one file."""
MB: Final = 1_000_000


def check_disk(config: BashConfig, before: int, now: int) -> str:
    """Return the reason to end a command that took this much free space of the disk, in bytes.
    Empty: none.

    Others write there, too: so only large amounts count, or those that take the last free space.
    """
    taken, one = before - now, config.disk_bytes
    if taken > DISK_USE_FACTOR * one or (now < one < DISK_USE_FACTOR * taken):
        return f"the disk lost {taken // MB} MB while it ran, and has {now // MB} MB left"
    return ""


DISK_INTERVAL_S: Final = 0.05
"""Seconds between two looks at the disk."""


async def watch_disk(config: BashConfig, folder: Path) -> str:
    """Return the reason to end a command that writes to this folder, once there is one."""
    before = measure_disk(folder)
    while True:
        if why := check_disk(config, before, measure_disk(folder)):
            return why
        await asyncio.sleep(DISK_INTERVAL_S)


def measure_disk(folder: Path) -> int:
    """Return the bytes of free space there; none if it cannot be measured."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


HOME: Final = "/workspace"
NICE: Final = 10
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UID: Final = "1000"
"""User inside. Outside it is the gateway's own user: so files made in /workspace are the
gateway's."""
NOBODY: Final = 65534
"""User and group of commands of a gateway that runs as root, inside and outside."""
_AS_NOBODY: Final = (
    *(
        "setpriv",
        "--reuid",
        str(NOBODY),
        "--regid",
        str(NOBODY),
        "--clear-groups",
        "--inh-caps=-all",
    ),
    *("--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
)
"""Command line of setpriv(1), of util-linux."""
_LIMIT_TASKS: Final = 'ulimit -u "$0" 2>/dev/null; exec "$@"'
"""Setting it fails where it is lower already."""
_UNSHARED_BY_ROOT: Final = (
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
"""Without a user namespace of bubblewrap's, which would know one user only, and not `nobody` beside
root."""
_CAPABILITIES_OF_ROOT: Final = tuple(
    word
    for one in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH")
    for word in ("--cap-add", f"CAP_{one}")
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
_LAUNCH: Final = (
    # if memory runs out, these processes are killed first
    "echo 1000 2>/dev/null >/proc/self/oom_score_adj; "
    "ulimit -c 0; ulimit -n {files} 2>/dev/null; "
    "ulimit -f {blocks} && ulimit -d {data} && ulimit -v {space} || exit 126; "
    'exec nice -n {nice} "$@"'
)
_ULIMIT_BLOCK_BYTES: Final = 512
"""Unit of `ulimit -f`, by POSIX. Memory is given in KiB."""
_KIB: Final = 1024


@frozen
class SandboxMounts:
    """Paths of the machine that a command sees beside the system. All are absolute and resolved."""

    root: Path
    """Directory of the command's place, which alone it may change."""
    shown: Mapping[str, Path] = field(default_factory=dict)
    """Directories that it may read, by their paths inside. `root` is one of them."""
    skills: tuple[Path, ...] = ()
    """Directories, mounted read-only under their names."""
    hidden: tuple[Path, ...] = ()
    """Directories that it must not see even if they are below `/usr`."""


def build_sandboxed_argv(
    command: str,
    box: SandboxMounts,
    config: BashConfig,
    *,
    bwrap: str,
    filter_file: str,
    root: bool,
    outer: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the program and arguments that run a command in the sandbox.

    `filter_file`: as the function of that name returns it. `root`: the gateway runs as root.
    `outer`: program and arguments around all of it.
    """
    return (
        # The file is opened here, where it can be, as the descriptor from which bubblewrap reads
        # it.
        *("/bin/sh", "-c", f'exec "$@" {_FILTER_FD}<"$0"', filter_file),
        *outer,
        *_build_limiting_argv(config),
        *(bwrap, "--seccomp", str(_FILTER_FD)),
        *(_UNSHARED_BY_ROOT if root else ("--unshare-all", "--unshare-user")),
        *(("--share-net",) if config.network else ()),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(_CAPABILITIES_OF_ROOT if root else ("--uid", _UID, "--gid", _UID)),
        *("--hostname", "sandbox", "--clearenv"),
        *(
            word
            for name, value in build_environment(HOME).items()
            for word in ("--setenv", name, value)
        ),
        *_mount_arguments(box, config),
        *("--chdir", HOME, "--"),
        *_build_command_argv(command, config, root=root),
    )


def build_unsandboxed_argv(
    command: str, config: BashConfig, *, root: bool, outer: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the program and arguments that run a command without a sandbox: only its resources are
    limited.

    `root`, `outer`: as for the sandbox.
    """
    inner = _build_command_argv(command, config, root=root, counts_tasks=root)
    return (*outer, *_build_limiting_argv(config), *inner)


def _build_command_argv(
    command: str, config: BashConfig, *, root: bool, counts_tasks: bool = True
) -> tuple[str, ...]:
    """Return the arguments behind the sandbox. `counts_tasks`: the kernel counts those of commands
    alone, so that they can be limited.
    """
    tasks = (_LIMIT_TASKS, str(config.processes)) if counts_tasks else ('exec "$@"', "bash")
    as_user = _AS_NOBODY if root else ()
    return (*as_user, "/bin/bash", "-c", *tasks, "/bin/bash", "-c", command)


def _build_limiting_argv(config: BashConfig) -> tuple[str, ...]:
    """Return the arguments before a program that set limits which it and its children cannot
    lift.
    """
    script = _LAUNCH.format(
        files=1024,
        blocks=max(1, config.disk_bytes // _ULIMIT_BLOCK_BYTES),
        data=config.memory_bytes // _KIB,
        space=ADDRESS_SPACE_FACTOR * config.memory_bytes // _KIB,
        nice=NICE,
    )
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
    for name in ("group", "hosts", "nsswitch.conf", "passwd"):
        yield from ("--ro-bind", str(_OURS / name), f"/etc/{name}")
    below = [one for one in box.hidden if any(Path(path) in one.parents for path in _SYSTEM)]
    for hidden in below:
        if not any(
            other in hidden.parents for other in below
        ):  # it is empty then, and nothing can be made there
            yield from ("--size", "4096", "--tmpfs", str(hidden), "--remount-ro", str(hidden))
    yield from ("--proc", "/proc", "--dev", "/dev")
    # Each file system in memory has a size; those that need not be written are read-only.
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config) // 4), "--tmpfs", "/dev/shm")  # noqa: S108 - the sandbox's own
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config)), "--tmpfs", "/tmp")  # noqa: S108 - the sandbox's own
    yield from ("--bind", str(box.root), HOME)
    made = dict.fromkeys(
        f"/{parent}"
        for path in box.shown
        for parent in reversed(PurePosixPath(path[1:]).parents[:-1])
    )
    for parent in made:
        yield from ("--perms", "0755", "--dir", parent)
    for path, directory in sorted(box.shown.items()):
        yield from ("--bind" if directory == box.root else "--ro-bind", str(directory), path)
    for name, skill in {skill.name: skill for skill in reversed(box.skills)}.items():
        yield from ("--ro-bind-try", str(skill), f"{SKILLS_PATH}/{name}")
    # Outside, a gateway that runs as root owns /proc/sys and /proc/sysrq-trigger, whatever user it
    # is inside.
    yield from ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
