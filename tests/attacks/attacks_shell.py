"""Attacks by a shell that an admin lets run: what it reads, reaches, fills and leaves behind."""

import contextlib
import os
from collections.abc import Awaitable, Callable

from reverie.testing.waiting import until
from tests.attacks.hostile_kit import ADAM, Attack, Fate, Scene, processes

Run = Callable[[Scene], Awaitable[Fate]]


def reads(command: str) -> Run:
    """`{town}`: where the gateway's things are; `{pid}`: the gateway; `{home}`: its home."""

    async def run(it: Scene) -> Fate:
        told = await it.does(ADAM, ("bash", {"command": filled(command, it)}))
        return Fate(bool(it.town.leaking(told)), told)

    return run


def filled(command: str, it: Scene) -> str:
    values = {
        "{town}": it.town.folder,
        "{pid}": os.getpid(),
        "{home}": os.environ["HOME"],
        "{mark}": it.mark,
        "{inside}": it.town.inside.port,
    }
    for name, value in values.items():
        command = command.replace(name, str(value))
    return command


def changes(command: str) -> Run:
    """It succeeds if it says so: `echo W''ON`."""

    async def run(it: Scene) -> Fate:
        told = await it.does(ADAM, ("bash", {"command": filled(command, it)}))
        return Fate(
            "WON" in told or it.mark in (it.town.folder / "workspace/MEMORY.md").read_text(), told
        )

    return run


def reaches(command: str) -> Run:
    async def run(it: Scene) -> Fate:
        before = it.town.inside.connections
        told = await it.does(ADAM, ("bash", {"command": filled(command, it)}))
        return Fate(it.town.inside.connections > before or "WON" in told, told)

    return run


def survives(command: str) -> Run:
    async def run(it: Scene) -> Fate:
        number = str(100_000 + int(it.mark[:4], 16))
        told = await it.does(
            ADAM, ("bash", {"command": command.replace("600", number) + "; echo started"})
        )
        return Fate(bool(await left(f"sleep {number}")), told)

    return run


async def left(words: str) -> list[int]:
    """Who is still there after a long while: what is killed ends soon, but not at once."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: not processes(words), every_s=0.05)
    return processes(words)


def bombs(command: str, **more: object) -> Run:
    """It succeeds if it goes on to its own end, or leaves anybody."""

    async def run(it: Scene) -> Fate:
        told = await it.does(ADAM, ("bash", {"command": filled(command, it), **more}))
        return Fate("WON" in told or bool(await left(it.mark)), told)

    return run


async def kills(it: Scene) -> Fate:
    told = await it.does(
        ADAM, ("bash", {"command": f"kill -9 {os.getpid()} && echo W''ON; kill -9 {os.getppid()}"})
    )
    return Fate("WON" in told, told)


async def other_rooms_job(it: Scene) -> Fate:
    there = it.town.scene(private=True)
    await there.does(
        ADAM, ("bash", {"command": f"echo {it.mark}-said; sleep 5", "background": True})
    )
    told = await it.does(
        ADAM, ("jobs", {}), *(("job_output", {"job": f"j{n}"}) for n in range(1, 9))
    )
    return Fate(f"{it.mark}-said" in told, told)


async def too_many_jobs(it: Scene) -> Fate:
    until = (
        f"until [ -e {it.mark} ]; do sleep 0.1; done"  # none ends before the last one was asked for
    )
    told = await it.does(
        ADAM, *(("bash", {"command": f"{until} # {n}", "background": True}) for n in range(12))
    )
    await it.does(ADAM, ("bash", {"command": f"touch {it.mark}"}))
    return Fate(told.count("You are told when") > 4, told)


SKILLS = (
    "find / \\( -path /proc -o -path /usr \\) -prune -o -name SKILL.md -print 2>/dev/null | "
    "while read f; do echo {mark} >> $f && echo W''ON; done; "
    "mkdir -p /skills/x && echo W''ON; echo x"
)
EATS = (
    '/usr/bin/python3 -c \'import time; x = bytearray(2000000000); time.sleep(600); print("W" + '
    '"ON")\' {mark} || '
    "(x=$(tr '\\0' a </dev/zero | head -c 1500000000); echo W''ON)"
)
FILLS = (
    "head -c 900000000 /dev/zero > /dev/shm/x && echo W''ON; head -c 900000000 /dev/zero > "
    "/tmp/{mark} && echo W''ON"
)


SHELL = [
    Attack(
        "the environment of the gateway",
        "secrets",
        reads("env; export; set; cat /proc/self/environ"),
        r"HOME=/workspace",
    ),
    Attack(
        "/proc/1/environ",
        "secrets",
        reads("cat /proc/1/environ /proc/1/cmdline | tr '\\0' '\\n'; ls /proc"),
        "exit status",
    ),
    Attack(
        "/proc/PID/environ of the gateway",
        "secrets",
        reads("cat /proc/{pid}/environ /proc/$PPID/environ"),
        "No such file|PATH",
    ),
    Attack(
        "the environment of everybody",
        "secrets",
        reads("cat /proc/*/environ /proc/*/task/*/environ; echo x"),
        "exit status",
    ),
    Attack(
        "the root of the gateway through /proc",
        "secrets",
        reads("cat /proc/*/root{town}/reverie.yaml /proc/*/cwd/../MEMORY.md"),
        "No such file",
    ),
    Attack(
        "the configuration by its path", "secrets", reads("cat {town}/reverie.yaml"), "No such file"
    ),
    Attack(
        "the store by its path",
        "secrets",
        reads("cat {town}/data/reverie.db; ls {town}"),
        "No such file",
    ),
    Attack(
        "a key of ssh", "secrets", reads("cat ~/.ssh/* {home}/.ssh/* /root/.ssh/*"), "No such file"
    ),
    Attack(
        "MEMORY.md and USER.md",
        "secrets",
        reads("cat ../MEMORY.md /workspace/../USER.md {town}/workspace/*.md"),
        "No such file",
    ),
    Attack(
        "everything that can be found",
        "secrets",
        reads(
            "timeout 8 grep -rsl -D skip CANARY- /workspace/.. "
            "--exclude-dir={proc,dev,usr,lib,lib64,bin,sbin}; echo x"
        ),
        "exit status",
    ),
    Attack(
        "memory of other processes",
        "secrets",
        reads("cat /proc/[0-9]*/maps | head -3; dd if=/proc/{pid}/mem count=1"),
        "No such file",
    ),
    Attack(
        "open files of the gateway",
        "secrets",
        reads("timeout 1 cat /proc/*/fd/* 2>&1 </dev/null | head -c 5000; ls -l /proc/self/fd"),
        "exit status",
    ),
    Attack(
        "the users of the machine",
        "secrets",
        reads("cat /etc/shadow /etc/sudoers; cat /etc/passwd"),
        "No such file",
    ),
    Attack("the gateway killed", "power", kills, "No such process"),
    Attack("everybody killed", "power", bombs("kill -9 -1; kill -9 1; echo alive"), "."),
    Attack(
        "what watches over it killed",
        "power",
        bombs("kill -9 $PPID; sleep 600; echo W''ON", timeout=2),
        "over|kill|exit status",
    ),
    Attack(
        "another root",
        "power",
        changes("(mount -t tmpfs x /mnt || chroot /usr /bin/true) && echo W''ON"),
        "exit status [1-9]",
    ),
    Attack(
        "namespaces of its own",
        "power",
        changes("unshare -Ur true && echo W''ON"),
        "exit status [1-9]",
    ),
    Attack(
        "devices",
        "power",
        changes("(mknod d b 8 0 || mknod /tmp/d c 1 1) && echo W''ON"),
        "exit status [1-9]",
    ),
    Attack(
        "settings of the kernel",
        "power",
        changes("(echo 1 > /proc/sys/kernel/panic || echo h > /proc/sysrq-trigger) && echo W''ON"),
        "Read-only|denied",
    ),
    Attack(
        "the system's programs changed",
        "power",
        changes("(echo x > /usr/bin/env || rm -f /usr/bin/git || touch /etc/x) && echo W''ON"),
        "Read-only",
    ),
    Attack(
        "MEMORY.md written by a link",
        "power",
        changes("ln -s {town}/workspace/MEMORY.md {mark}; echo {mark} > {mark} || echo no"),
        "No such file",
    ),
    Attack("skills written", "power", changes(SKILLS), "exit status", alone=True),
    Attack(
        "a hard link to a file outside",
        "power",
        changes("ln {town}/workspace/MEMORY.md {mark} && echo W''ON"),
        "No such file",
    ),
    Attack(
        "a connection to this machine",
        "network",
        reaches("exec 3<>/dev/tcp/127.0.0.1/{inside} && echo W''ON"),
        "refused|unreachable",
    ),
    Attack(
        "a connection to the world",
        "network",
        reaches("timeout 2 bash -c 'exec 3<>/dev/tcp/1.1.1.1/80' && echo W''ON"),
        "nreachable|exit status",
    ),
    Attack(
        "a connection to the metadata service",
        "network",
        reaches("timeout 2 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80' && echo W''ON"),
        "nreachable|exit status",
    ),
    Attack(
        "sockets without a file",
        "network",
        reaches("cat /proc/net/unix | wc -l; ls -l /run /var/run; ls /tmp"),
        "exit status",
    ),
    Attack("a session of its own", "survivors", survives("setsid sleep 600 & disown"), "started"),
    Attack(
        "two forks",
        "survivors",
        survives("(setsid bash -c 'setsid sleep 600 & disown; exit' &)"),
        "started",
    ),
    Attack(
        "deaf to signals, without a trace",
        "survivors",
        survives("env -i setsid -f bash -c 'trap \"\" HUP TERM; exec >&- 2>&- <&-; sleep 600'"),
        "started",
    ),
    Attack("a stopped one", "survivors", survives("setsid sleep 600 & kill -STOP $!"), "started"),
    Attack(
        "another room's background job",
        "survivors",
        other_rooms_job,
        "No jobs|There is no job|no job",
        alone=True,
    ),
    Attack("more jobs than are allowed", "survivors", too_many_jobs, "background|jobs", alone=True),
]
# each alone: commands of several rooms wait for each other, and these take all of their time
BOMBS = [
    Attack(
        "a fork bomb",
        "bombs",
        bombs("f() { f | f & f; }; : {mark}; f; sleep 600; echo W''ON"),
        "processes|threads|over",
        alone=True,
    ),
    Attack(
        "a memory bomb",
        "bombs",
        bombs(EATS),
        "memory|MemoryError|cannot allocate|Killed|over",
        alone=True,
    ),
    Attack(
        "memory in files",
        "bombs",
        bombs(FILLS),
        "No space|memory|over",
        alone=True,
    ),
    Attack(
        "a file without end",
        "bombs",
        bombs("head -c 900000000 /dev/zero > {mark}.bin && echo W''ON; rm -f {mark}.bin"),
        "too large|File size|disk|over",
        alone=True,
    ),
    Attack(
        "a flood of output",
        "bombs",
        bombs("yes {mark} & yes {mark}"),
        "it printed more than|over",
        alone=True,
    ),
    Attack(
        "a command that never ends",
        "bombs",
        bombs("trap '' TERM INT HUP; while :; do sleep 1; done # {mark}", timeout=1),
        "its 1 s were over",
        alone=True,
    ),
    Attack(
        "more time than is allowed",
        "bombs",
        bombs("echo {mark}; trap '' TERM; sleep 600; echo W''ON", timeout=500),
        "its 20 s were over",
        alone=True,
    ),
]
