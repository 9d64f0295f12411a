"""What a command sees of the machine, and what it can do to it: next to nothing."""

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.config.tools import BashConfig
from gateway.plugins.shell import sandbox, warden
from gateway.plugins.shell.sandbox import SandboxMounts, build_sandboxed_argv, filter_file
from reverie.testing.channels import story
from reverie.testing.waiting import until
from tests.kits.shell import Desk, desk

BWRAP = shutil.which("bwrap")
ROOT = os.geteuid() == 0
"""Commands of a gateway that runs as root run as `nobody`."""
BOX = "bubblewrap"
pytestmark = pytest.mark.boxed


LIMITS = BashConfig()
said = partial(build_sandboxed_argv, filter_file="/filter", root=False)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, BOX) as made:
        yield made


def test_the_sandbox_is_said_in_its_programs_words() -> None:
    """As a whole, so that nothing is let in by the way."""
    argv = said(
        "echo 'a b'", SandboxMounts(root=Path("/data/files")), LIMITS, bwrap="/usr/bin/bwrap"
    )
    at = argv.index("/usr/bin/bwrap")
    assert argv[at : at + 15] == (
        *("/usr/bin/bwrap", "--seccomp", "3", "--unshare-all", "--unshare-user"),
        *(
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL",
            "--uid",
            "1000",
            "--gid",
            "1000",
        ),
        *("--hostname", "sandbox"),
    )
    assert argv[:4] == ("/bin/sh", "-c", 'exec "$@" 3<"$0"', "/filter")
    limited = ("/bin/bash", "-c", 'ulimit -u "$0" 2>/dev/null; exec "$@"', "256")
    assert argv[-10:] == ("--chdir", "/workspace", "--", *limited, "/bin/bash", "-c", "echo 'a b'")
    writable = [
        argv[n + 1 : n + 3] for n, word in enumerate(argv) if word in ("--bind", "--dev-bind")
    ]
    assert writable == [("/data/files", "/workspace")]
    assert "--share-net" not in argv
    assert "/etc/resolv.conf" not in argv
    open_ = BashConfig(network=True)
    networked = said("x", SandboxMounts(root=Path("/d")), open_, bwrap="bwrap")
    assert {"--share-net", "/etc/resolv.conf"} <= {*networked}


async def test_it_has_few_things_and_names_that_are_made_up(it: Desk) -> None:
    assert (await it.bash("ls /; pwd; id; whoami; hostname")).split("\n")[1:-1] == [
        *(
            path
            for path in sorted(
                [
                    "bin",
                    "dev",
                    "etc",
                    "files",
                    "lib",
                    "proc",
                    "sbin",
                    "tmp",
                    "usr",
                    "workspace",
                    *libs(),
                ]
            )
        ),
        "/workspace",
        "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)"
        if ROOT
        else "uid=1000(agent) gid=1000(agent) groups=1000(agent)",
        "nobody" if ROOT else "agent",
        "sandbox",
    ]
    etc = set((await it.bash("ls /etc")).split("\n")[1:-1])
    assert {"passwd", "group", "hosts", "nsswitch.conf"} <= etc
    assert not etc & {
        "shadow",
        "ssh",
        "sudoers",
        "resolv.conf",
        "machine-id",
        "gshadow",
        "cron.d",
    }
    assert "root:x:0:0:root:/nonexistent" in await it.bash("cat /etc/passwd")


def libs() -> list[str]:
    """Not every machine has these."""
    return [name for name in ("lib32", "lib64", "libx32") if Path("/", name).exists()]


async def test_what_need_not_be_written_cannot_be(it: Desk) -> None:
    tried = ("/x", "/etc/x", "/etc/passwd", "/usr/x", "/usr/bin/env", "/dev/x")
    told = await it.bash(
        f"for one in {' '.join(tried)}; do (echo 1 > $one) 2>/dev/null && echo $one; done"
    )
    assert told == "[exit status 1, no output]"
    assert (
        await it.bash("echo 1 | tee /dev/null /tmp/x /dev/shm/x; cat /tmp/x")
        == "[exit status 0]\n1\n1\n"
    )
    assert "No such file" in await it.bash("cat /tmp/x"), "it is gone with the command"
    # as outside it is root who runs the tests, maybe: what there is is written
    setting = "/proc/sys/kernel/panic"
    assert "Read-only" in await it.bash(f"x=$(cat {setting}); (echo $x > {setting})")


async def test_it_has_no_power(it: Desk) -> None:
    told = await it.bash("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    assert dict(line.split() for line in told.splitlines()[1:]) == {
        **{f"Cap{kind}:": "0" * 16 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
        "NoNewPrivs:": "1",
    }
    for command in (
        "mount -t tmpfs x /tmp",
        "unshare -Ur true",
        "chroot /usr",
        "mknod x b 8 0",
        "chown 0 .",
    ):
        assert "[exit status 0" not in await it.bash(command), command
    assert "[exit status 0" not in await it.bash("su root -c true </dev/null")
    lowered = await it.bash("was=$(nice); renice -n $((was - 1)) $$; [ $(nice) -lt $was ]")
    assert "[exit status 1]" in lowered


@contextmanager
def listening() -> Iterator[tuple[int, str]]:
    """On loopback, and at an abstract address that has no file."""
    name = f"reverie-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield server.getsockname()[1], name


CONNECT = """/usr/bin/python3 -c '
import socket
for family, where in ((socket.AF_INET, ("127.0.0.1", {})), (socket.AF_UNIX, "\\0{}")):
    try:
        socket.socket(family).connect(where)
        print("in")
    except OSError:
        print("out")
'"""


@pytest.mark.parametrize(("network", "told"), [(False, "out\nout\n"), (True, "in\nout\n")])
async def test_it_has_a_network_only_if_the_operator_says_so(
    tmp_path: Path, network: bool, told: str
) -> None:
    with listening() as (port, name):
        async with desk(tmp_path, BOX, network=network) as it:
            assert await it.bash(CONNECT.format(port, name)) == f"[exit status 0]\n{told}"


@story
async def test_what_is_in_memory_has_a_size(tmp_path: Path) -> None:
    async with desk(tmp_path, BOX, memory_bytes=40_000_000) as it:
        for where in ("/tmp", "/dev/shm"):
            told = await it.bash(f"head -c 30000000 /dev/zero > {where}/x; stat -c %s {where}/x")
            assert "No space left" in told
            assert int(told.split()[-1]) <= 10_100_000, "whole pages"


@story
async def test_skills_are_read_only(tmp_path: Path) -> None:
    skill = tmp_path / "workspace" / "skills" / "cook"
    skill.mkdir(parents=True)
    text = "---\nname: cook\ndescription: Cook soup.\n---\nBoil water."
    (skill / "SKILL.md").write_text(text)
    async with desk(tmp_path, BOX) as it:
        told = await it.bash(
            "ls /skills; cat /skills/cook/SKILL.md; echo; echo x > /skills/cook/SKILL.md"
        )
        assert told.startswith(f"[exit status 1]\ncook\n{text}\n")
        assert "Read-only file system" in told
        assert it.shell.describe() == (
            "Sandbox, no network, /workspace writable, /files and /skills "
            "readable, 60 s (at most 600 s)."
        )


def test_what_is_hidden_is_hidden_below_the_system_too() -> None:
    box = SandboxMounts(
        root=Path("/r"), hidden=(Path("/usr/local/share"), Path("/srv"), Path("/usr"))
    )
    argv = said("ls /usr/local/share | wc -l", box, LIMITS, bwrap="bwrap")
    assert [argv[n + 1] for n, word in enumerate(argv) if word == "--tmpfs"] == [
        "/usr/local/share",
        "/dev/shm",
        "/tmp",
    ]


@story
async def test_hidden_directories_are_empty_inside(tmp_path: Path) -> None:
    async with desk(tmp_path, BOX, hidden=(Path("/usr/share"),)) as it:
        assert await it.bash("ls /usr/share; echo x > /usr/share/x") == (
            "[exit status 1]\n/bin/bash: line 1: /usr/share/x: Read-only file system\n"
        )


def run_as_somebody(
    command: str, limits: BashConfig = LIMITS
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run it for a gateway that is not root. What it said, and the distance of the owner of `file`
    from the gateway."""
    assert BWRAP
    folder = Path(tempfile.mkdtemp())
    try:
        ours = shutil.copytree(sandbox._OURS, folder / "etc")
        root = folder / "files"
        root.mkdir()
        folder.chmod(0o755)
        other = (
            ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "--"]
            if ROOT
            else []
        )
        if other:
            os.chown(root, 12345, 12345)
        shutil.copy(filter_file(is_read_elsewhere=True), folder / "filter")
        (folder / "filter").chmod(0o644)
        at = str(folder / "filter")
        argv = [
            word.replace(str(sandbox._OURS), str(ours))
            for word in build_sandboxed_argv(
                command, SandboxMounts(root=root), limits, bwrap=BWRAP, filter_file=at, root=False
            )
        ]
        done = subprocess.run(
            [*other, *argv],
            env={"PATH": sandbox.PATH},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=root,
        )
        made = root / "file"
        return done, made.stat().st_uid - (12345 if other else os.getuid()) if made.exists() else 0
    finally:
        shutil.rmtree(folder)


def test_it_works_for_whoever_is_not_root() -> None:
    command = (
        "id -un; echo words > file; ls -l file; ls / /root; unshare -Ur true; (echo 1 > "
        "/proc/sys/kernel/panic)"
    )
    done, whose = run_as_somebody(command)
    assert done.stdout.startswith("agent\n-rw-r--r-- 1 agent agent 6 "), done.stderr
    assert whose == 0
    assert "/root" in done.stderr
    assert "unshare failed" in done.stderr
    assert "panic" in done.stderr


FORKS = """exec /usr/bin/python3 -c '
import os, signal
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            signal.pause()
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
os.killpg(0, signal.SIGKILL)
'"""
"""Forks until the kernel says no; or says that it may have 500 children."""
FEW = BashConfig(processes=68)


def test_the_kernel_gives_a_command_so_many_processes_and_no_more() -> None:
    done, _ = run_as_somebody(FORKS, FEW)
    assert int(done.stdout) == 66, "with itself, and the first process of the sandbox"


@pytest.mark.skipif(not ROOT, reason="for a gateway that runs as root")
@pytest.mark.parametrize("mode", ["bubblewrap", "off"])
def test_the_kernel_gives_a_command_of_roots_gateway_so_many_processes_and_no_more(
    tmp_path: Path, mode: str
) -> None:
    assert BWRAP
    os.chown(tmp_path, sandbox.NOBODY, sandbox.NOBODY)
    outer, box = (
        (sys.executable, "-I", "-S", warden.__file__, warden.OWN_USERS),
        SandboxMounts(root=tmp_path),
    )
    if mode == "off":
        argv = sandbox.build_unsandboxed_argv(FORKS, FEW, root=True, outer=outer)
    else:
        argv = build_sandboxed_argv(
            FORKS,
            box,
            FEW,
            bwrap=BWRAP,
            filter_file=filter_file(is_read_elsewhere=True),
            root=True,
            outer=outer,
        )
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": sandbox.PATH}
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 67, (
            "with itself; the first one in the sandbox is not `nobody`"
        )


@story
async def test_what_one_command_takes_is_left_to_the_others(tmp_path: Path) -> None:
    threads = (
        "import threading, time\nfor _ in range(60): threading.Thread(target=time.sleep, "
        "args=(600,)).start()\n"
    )
    async with desk(tmp_path, BOX, processes=68) as it:
        it.root.mkdir(parents=True)
        (it.root / "many.py").write_text(f"{threads}open('there', 'w').close()")
        (it.root / "more.py").write_text(
            f"{threads}import os\nprint('as many', flush=True); os._exit(0)"
        )
        await it.bash("/usr/bin/python3 many.py", background=True)
        await until((it.root / "there").exists)
        assert (
            await it.bash("/usr/bin/python3 more.py; echo | cat") == "[exit status 0]\nas many\n\n"
        )


@story
async def test_a_machine_without_bubblewrap_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.shell.PATH", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    async with desk(tmp_path, BOX) as it:
        told = await it.refuses("bash", command="touch x")
        assert "bubblewrap (bwrap) is not installed" in told
        assert "tools.bash.sandbox to off" in told
        assert not (it.root / "x").exists()


@story
async def test_a_sandbox_that_does_not_work_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may allow no namespaces at all."""
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/bash\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr("gateway.plugins.shell.PATH", f"{fake.parent}:{sandbox.PATH}")
    why = "the sandbox does not work: bwrap: No permissions to create new namespace)"
    async with desk(tmp_path, BOX) as it:
        assert f"{why}: the operator can" in await it.refuses("bash", command="echo x")
        assert it.shell.describe() == f"No command can be run here ({why}."
        fake.write_text('#!/bin/bash\nexec /bin/bash -c "${!#}"\n')
        assert await it.bash("echo x") == "[exit status 0]\nx\n"
        assert it.shell.describe().startswith("Sandbox")


async def test_many_at_once_try_it_once(it: Desk) -> None:
    told = await asyncio.gather(*(it.bash(f"echo {n}") for n in range(8)))
    assert told == [f"[exit status 0]\n{n}\n" for n in range(8)]


SYSTEM_CALLS = """/usr/bin/python3 -c '
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
for name, number in (("io_uring_setup", 425), ("userfaultfd", 323), ("add_key", 248), ("keyctl", 250), ("bpf", 321)):
    given = libc.syscall(number, 0, 0, 0, 0, 0)
    print(name, given if given >= 0 else errno.errorcode[ctypes.get_errno()])
for family in (40, 38, 17):
    try:
        print(family, socket.socket(family, socket.SOCK_STREAM))
    except OSError as error:
        print(family, errno.errorcode[error.errno])
'"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
@story
async def test_system_calls_that_reach_the_kernel_around_the_sandbox_are_not_there(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, BOX, network=True) as it:
        told = await it.bash(SYSTEM_CALLS)
        assert {line.split()[1] for line in told.splitlines()[1:]} == {"ENOSYS"}, told
        assert len(told.splitlines()) == 9


async def test_what_programs_need_works_in_it(it: Desk) -> None:
    told = await it.bash(
        "set -e; git init -q x; cd x; echo 1 > f; git add f; git -c user.name=a -c "
        "user.email=a@b commit -qm x; chmod 755 f; cp -a f g; tar cf t f g; mkdir d; tar xpf t "
        "-C d; seq 9 | sort -r | xargs -P4 -n1 true; /usr/bin/python3 -c 'import threading, "
        "subprocess, sqlite3, asyncio; asyncio.run(asyncio.sleep(0)); "
        't = threading.Thread(target=print); t.start(); t.join(); subprocess.run(["true"], '
        "check=True); "
        'sqlite3.connect("a.db").execute("create table t(x)")\'; stat -c %a f d/g'
    )
    assert told == "[exit status 0]\n\n755\n755\n"


@story
async def test_no_file_becomes_somebody_elses_program(tmp_path: Path) -> None:
    async with desk(tmp_path, BOX) as it:
        await it.bash(
            "cp /usr/bin/id a; chmod 4755 a; cp a b; chmod g+s b; install -m 6755 a c; mkdir d; "
            "chmod 2777 d; "
            """/usr/bin/python3 -c 'import os; os.close(os.open("e", os.O_CREAT | os.O_WRONLY, 0o4755))'; """
            """/usr/bin/python3 -c 'import os; os.mknod("f", 0o104755)'; touch g; exit 0"""
        )
        made = {path.name: path.stat() for path in it.root.iterdir()}
        assert {"a", "b", "d", "g"} <= set(made)
        assert not [name for name, found in made.items() if found.st_mode & 0o6000]
        if ROOT:
            assert {found.st_uid for found in made.values()} == {sandbox.NOBODY}, (
                "nothing is root's"
            )


# keyctl(KEYCTL_GET_KEYRING_ID)
SESSION_KEYRING = "import ctypes; print(ctypes.CDLL(None).syscall(250, 0, -3, 0))"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number is that of x86_64")
@story
async def test_a_command_has_a_key_ring_of_its_own_without_a_sandbox_too(tmp_path: Path) -> None:
    ours = ctypes.CDLL(None).syscall(250, 0, -3, 0)
    async with desk(tmp_path, "off") as it:
        theirs = (await it.bash(f"/usr/bin/python3 -c '{SESSION_KEYRING}'")).split()[-1]
        assert int(theirs) > 0
        assert int(theirs) != ours
