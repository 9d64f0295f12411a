"""How a command is run: in a sandbox of bubblewrap's, or as the gateway's own user. Pure.

Inside there is the system (`/usr`, read-only), an `/etc` of our making, the agent's files at `/workspace`, skills at
`/skills`, and a `/tmp` that is gone afterwards; own processes, own users without any capability, and no network unless
the operator says so. Nothing else of the machine has a name there. See bwrap(1).

A gateway that runs as root sets the sandbox up as root, without a user namespace, and the command runs as `nobody`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.settings_tools import BashConfig

HOME: Final = "/workspace"
SKILLS_PATH: Final = "/skills"
NICE: Final = 10
MAX_OPEN_FILES: Final = 1024
MARKER_VARIABLE: Final = "REVERIE_COMMAND"
"""In the environment of what runs: by its value what was left behind is found. Inside a sandbox it is not set."""
BWRAP_PROCESSES: Final = 2
"""Processes of bubblewrap's own: one outside, which waits, and the first one inside."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UID: Final = "1000"
"""Inside. Outside it is the gateway's own user: so what is made in /workspace is the gateway's."""
NOBODY: Final = 65534
"""User and group of commands where the gateway runs as root, inside and outside."""
_AS_NOBODY: Final = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all"),
    *("--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
)
"""setpriv(1), of util-linux."""
_UNSHARED_BY_ROOT: Final = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
"""No user namespace: root of the machine stands outside of it, whatever the command is called inside."""
_CAPABILITIES_OF_ROOT: Final = tuple(
    word for one in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH") for word in ("--cap-add", f"CAP_{one}")
)
"""What setpriv needs, and to enter /workspace; all are given up before the command begins."""
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
"""What programs need there, and no more: what else is there is the operator's."""
_OURS: Final = Path(__file__).parent / "etc"
_GENERATED_ETC: Final = ("group", "hosts", "nsswitch.conf", "passwd")
_LAUNCH: Final = (
    "echo 1000 2>/dev/null >/proc/self/oom_score_adj; "  # if memory ends, these end first
    "ulimit -c 0; ulimit -n {files} 2>/dev/null; ulimit -f {blocks} || exit 126; "
    'exec nice -n {nice} "$@"'
)
_ULIMIT_BLOCK_BYTES: Final = 512
"""What `ulimit -f` counts in, by POSIX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMounts:
    """What of the machine a command sees beside the system. All paths are absolute and resolved."""

    root: Path
    skills: tuple[Path, ...] = ()
    """Directories, shown read-only under their names."""
    hidden: tuple[Path, ...] = ()
    """Directories that it must not see even where they are below `/usr`."""


def build_sandboxed_argv(
    command: str, box: SandboxMounts, config: BashConfig, *, bwrap: str, strict: bool, filter_file: str, root: bool
) -> tuple[str, ...]:
    """Return the program and its arguments that run a command in the sandbox.

    `strict`: forbid new user namespaces inside, as bubblewrap can since 0.8. `filter_file`: as
    `seccomp.filter_file` gives it. `root`: the gateway runs as root.
    """
    return (
        *build_limited_argv(config),
        # The file is opened here, as the descriptor that bubblewrap reads it from.
        *("/bin/sh", "-c", f'exec "$@" {_FILTER_FD}<"$0"', filter_file),
        *(bwrap, "--seccomp", str(_FILTER_FD)),
        *(_UNSHARED_BY_ROOT if root else ("--unshare-all", "--unshare-user")),
        *(("--disable-userns",) if strict and not root else ()),
        *(("--share-net",) if config.network else ()),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(_CAPABILITIES_OF_ROOT if root else ("--uid", _UID, "--gid", _UID)),
        *("--hostname", "sandbox", "--clearenv"),
        *(word for name, value in build_environment(HOME).items() for word in ("--setenv", name, value)),
        *_mount_arguments(box, config),
        *("--chdir", HOME, "--", *(_AS_NOBODY if root else ()), "/bin/bash", "-c", command),
    )


def build_unsandboxed_argv(command: str, config: BashConfig, *, root: bool) -> tuple[str, ...]:
    """Return the same without a sandbox: only what a command takes is bounded."""
    return (*build_limited_argv(config), *(_AS_NOBODY if root else ()), "/bin/bash", "-c", command)


def build_limited_argv(config: BashConfig) -> tuple[str, ...]:
    """Return what stands in front of a program so that it and all that it starts have limits that they cannot lift."""
    script = _LAUNCH.format(files=MAX_OPEN_FILES, blocks=max(1, config.disk_bytes // _ULIMIT_BLOCK_BYTES), nice=NICE)
    return ("/bin/sh", "-c", script, "sh")


def build_environment(home: str) -> dict[str, str]:
    """Return all of a command's environment."""
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
    """Of /tmp, which is memory."""
    return min(config.disk_bytes, config.memory_bytes // 4)


def _mount_arguments(box: SandboxMounts, config: BashConfig) -> Iterator[str]:
    for path in _SYSTEM:
        yield from ("--ro-bind-try", path, path)
    for path in (
        "/etc",
        "/etc/ssl",
        *((SKILLS_PATH,) if box.skills else ()),
    ):  # made by the way they would be closed to `nobody`
        yield from ("--perms", "0755", "--dir", path)
    for path in (*_ETC, *(("/etc/resolv.conf",) if config.network else ())):
        yield from ("--ro-bind-try", path, path)
    for name in _GENERATED_ETC:
        yield from ("--ro-bind", str(_OURS / name), f"/etc/{name}")
    below = [one for one in box.hidden if any(Path(path) in one.parents for path in _SYSTEM)]
    for hidden in below:
        if not any(other in hidden.parents for other in below):  # that is empty then, and nothing can be made there
            yield from ("--size", "4096", "--tmpfs", str(hidden), "--remount-ro", str(hidden))
    yield from ("--proc", "/proc", "--dev", "/dev")
    # Each file system in memory has a size; those that need not be written are not.
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config) // 4), "--tmpfs", "/dev/shm")  # noqa: S108 - its own
    yield from ("--perms", "1777", "--size", str(scratch_bytes(config)), "--tmpfs", "/tmp")  # noqa: S108 - its own
    yield from ("--bind", str(box.root), HOME)
    for name, skill in {skill.name: skill for skill in reversed(box.skills)}.items():
        yield from ("--ro-bind-try", str(skill), f"{SKILLS_PATH}/{name}")
    # A gateway that runs as root is outside who owns /proc/sys and /proc/sysrq-trigger, whatever it is inside.
    yield from ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
