"""The seccomp filter of the sandbox: the system calls that a command may make.

An allow-list, like that of container engines: other calls do not exist for a command (ENOSYS), among them io_uring,
userfaultfd, the kernel's key rings, bpf, mounts and new namespaces. Sockets are of the families of local and internet
traffic only, so no AF_VSOCK reaches a hypervisor. Set-user-id and set-group-id bits cannot be set, because a file in
the agent's directory stays on the machine. Built by libseccomp (seccomp_rule_add(3), seccomp_export_bpf(3)).
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from functools import cache
from typing import Final

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
