"""Backups and restores while others write, are killed, or have no room: what is there is whole, or
was not touched."""

import json
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.store import rebuild
from tests.kits.backup import configured, grown, made, put, stored, tree, write
from tests.kits.gateway_process import MAIN
from tests.kits.store import heard, run

ROOT = Path(__file__).resolve().parents[3]

LOAD = """
import asyncio, itertools, json, sys, time
from pathlib import Path
from tests.kits.store import heard, opened

numbers, taken = itertools.count(1), []
FILL = "words that fill a line of a talk, as people write them " * 4

async def caller(store, until):
    while time.monotonic() < until:
        began = time.monotonic()
        await store.append(heard(next(numbers), FILL))
        taken.append((began, time.monotonic() - began))

async def main():
    async with await opened(Path(sys.argv[1])) as store:
        print("on", flush=True)
        await asyncio.gather(*(caller(store, time.monotonic() + float(sys.argv[2])) for _ in range(16)))
    print(json.dumps(taken))

asyncio.run(main())
"""


def child(code: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)]


@pytest.mark.parametrize("seconds", [2.0, pytest.param(20.0, marks=pytest.mark.soak)])
def test_a_gateway_that_takes_in_thousands_a_second_goes_on(tmp_path: Path, seconds: float) -> None:
    settings = grown(tmp_path / "a")
    with child(LOAD, settings.store.path, seconds) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "on\n"
        time.sleep(seconds * 0.4)  # some load to copy
        began = time.monotonic()
        backup = made(settings, tmp_path / "b.tar")
        ended = time.monotonic()
        taken = json.loads(writer.stdout.readline())
    beside = [took for at, took in taken if began <= at <= ended]
    alone = [took for at, took in taken if at < began]
    rate = len(beside) / (min(ended, max(at for at, _ in taken)) - began)
    print(
        f"{backup.store.entries} entries, {backup.size_bytes / 1e6:.0f} MB in {ended - began:.1f} "
        f"s beside {rate:.0f} notifications/s; an append took p99 {p99(beside) * 1e3:.0f} ms "
        f"(alone {p99(alone) * 1e3:.0f} ms)"
    )
    assert beside, "it went on"
    assert statistics.median(beside) < ended - began, "nobody waits for the whole copy"
    put(tmp_path / "b.tar", other := configured(tmp_path / "c"))
    with closing(sqlite3.connect(settings.store.path)) as connection:
        connection.execute("ATTACH ? AS copy", (str(other.store.path),))
        told = "SELECT * FROM main.log WHERE seq <= ? EXCEPT SELECT * FROM copy.log"
        assert connection.execute(told, (backup.store.last,)).fetchall() == [], (
            "all until one moment"
        )
    assert run(rebuild(other.store.path)) == []


BACKUP = """
import json, sys
from pathlib import Path
from tests.kits.backup import configured, made
print("on", flush=True)
made(configured(Path(sys.argv[1])), Path(sys.argv[2]))
"""

RESTORE = """
import os, signal, sys
from pathlib import Path
from tests.kits.backup import configured, put

left, step = int(sys.argv[3]), [0]

def watched(event, args):  # https://docs.python.org/3/library/audit_events.html
    if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        step[0] += 1
        if step[0] > left and sys.argv[4] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif step[0] == left + 1:
            raise {"interrupted": KeyboardInterrupt(), "refused": OSError(5, "Input/output error")}[sys.argv[4]]

config, target = configured(Path(sys.argv[1])), Path(sys.argv[2])
sys.addaudithook(watched)
put(target, config)
print(step[0], flush=True)
"""


@pytest.mark.parametrize("rounds", [4, pytest.param(30, marks=pytest.mark.soak)])
def test_a_backup_that_is_killed_leaves_none_and_the_next_takes_its_rest_away(
    tmp_path: Path, rounds: int
) -> None:
    settings = grown(tmp_path / "a")
    stored(
        settings,
        [one for number in range(4000) for one in heard(number, "a line of some length " * 20)],
    )
    out = tmp_path / "out"
    out.mkdir()
    killed = 0
    for number in range(rounds):
        with child(BACKUP, tmp_path / "a", out / "b.tar") as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "on\n"
            time.sleep(0.01 + 0.03 * (number % 5))
            running.send_signal(signal.SIGKILL)
        if running.returncode == -signal.SIGKILL and not (out / "b.tar").exists():
            killed += 1
        (out / "b.tar").unlink(missing_ok=True)
    assert killed
    made(settings, out / "b.tar")
    assert [path.name for path in out.iterdir()] == ["b.tar"]


def _two(tmp_path: Path) -> tuple[dict[str, bytes], int]:
    """A backup. Return what is in it, and how many steps of its restore there are that a kill can
    come in front of."""
    settings = grown(tmp_path / "a")
    stored(settings, heard(1))
    made(settings, tmp_path / "b.tar")
    with child(RESTORE, tmp_path / "count", tmp_path / "b.tar", 10**6, "killed") as running:
        assert running.stdout is not None
        steps = int(running.stdout.read())
    return snapshot_state(tmp_path / "count"), steps


def snapshot_state(directory: Path) -> dict[str, bytes]:
    """Return what a gateway finds there: the files in their places, and the messages in its log."""
    found = {name: text for name, text in tree(directory).items() if "reverie.db" not in name}
    with closing(sqlite3.connect(directory / "data/reverie.db")) as connection:
        found["log"] = repr(
            connection.execute("SELECT seq, body FROM log WHERE kind = 'room'").fetchall()
        ).encode()
    return found


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_restore_that_is_killed_anywhere_leaves_no_store_or_all(
    tmp_path: Path, every: int
) -> None:
    backed_up, steps = _two(tmp_path)
    assert steps > 20
    seen = []
    for step in sorted({*range(0, steps, every), *range(steps - 8, steps)}):
        here = tmp_path / f"{step}"
        with child(RESTORE, here, tmp_path / "b.tar", step, "killed") as running:
            pass
        assert running.returncode == -signal.SIGKILL
        seen.append((here / "data/reverie.db").exists())
        if not seen[-1]:
            if (here / "persona").exists() or (
                here / "data/mind/ann"
            ).exists():  # the store comes last
                with pytest.raises(FileExistsError, match="move it away"):
                    put(tmp_path / "b.tar", configured(here))
                for name in ("data", "persona", "work"):
                    shutil.rmtree(here / name, ignore_errors=True)
            put(tmp_path / "b.tar", configured(here))
            assert not list(here.rglob(".restoring*")), "what the kill left is gone"
        assert snapshot_state(here) == backed_up
    assert {*seen} == {True, False}, "kills came before and after the one moment"


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["interrupted", pytest.param("refused", marks=pytest.mark.system)])
def test_a_restore_that_is_broken_off_anywhere_leaves_nothing_or_all(
    tmp_path: Path, how: str, every: int
) -> None:
    """Somebody presses Ctrl-C, or the disk does not do what it is told: unlike a kill that leaves
    time to clean up."""
    backed_up, steps = _two(tmp_path)
    seen = set()
    for step in sorted({*range(0, steps, every), *range(steps - 8, steps)}):
        here = tmp_path / f"{step}"
        with child(RESTORE, here, tmp_path / "b.tar", step, how) as running:
            pass
        is_there = (here / "data/reverie.db").exists()
        seen.add((running.returncode == 0, is_there))
        assert (snapshot_state(here) if is_there else tree(here)) == (
            backed_up if is_there else {}
        ), step
    assert (False, False) in seen


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.kits.backup import configured, made, put
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
config = configured(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    made(config, Path(sys.argv[2])) if sys.argv[4] == "backup" else put(Path(sys.argv[2]), config)
except Exception as error:
    print(type(error).__name__, error)
else:
    print("done")
"""


@pytest.mark.parametrize("what", ["backup", "restore"])
@pytest.mark.parametrize(
    "most_bytes",
    [10_000, *(pytest.param(most, marks=pytest.mark.system) for most in (300_000, 600_000))],
)
def test_a_disk_that_is_full_leaves_nothing_half(
    tmp_path: Path, what: str, most_bytes: int
) -> None:
    """A limit on the size of files stands in for it: writing fails in the same places."""
    settings = grown(tmp_path / "a")
    stored(settings, *[heard(number, "a line of some length " * 20) for number in range(400)])
    made(settings, tmp_path / "b.tar")
    assert settings.store.path.stat().st_size > 600_000
    directory, target = (tmp_path / "a", "c.tar") if what == "backup" else (tmp_path / "c", "b.tar")
    with child(FULL, directory, tmp_path / target, most_bytes, what) as running:
        assert running.stdout is not None
        told = running.stdout.read()
    assert running.returncode == 0
    assert any(name in told for name in ("OSError", "StoreUnreadable", "StoreUnavailable")), told
    assert tree(tmp_path / "c") == {}
    assert not (tmp_path / "c.tar").exists()
    assert not list(tmp_path.rglob(".reverie-backup-*"))


CONFIG = """\
channels: {irc.test: {platform: irc, host: 127.0.0.1, nick: r, tls: false}}
agents: [{id: ann, bindings: []}, {id: bob, workspace: persona, files: work}]
llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}
store: {path: data/reverie.db}
"""


def test_a_backup_that_a_disk_refuses_has_failed_and_one_to_nowhere_is_bad_usage(
    tmp_path: Path,
) -> None:
    stored(grown(tmp_path / "a"), heard(1))
    write(tmp_path / "a/reverie.yaml", CONFIG)
    command = [
        sys.executable,
        "-B",
        "-m",
        "gateway.cli",
        "backup",
        "--config",
        str(tmp_path / "a"),
        "-o",
    ]
    nowhere = f"backup: {tmp_path}/nowhere: No such file"
    for limit, target, code, told in (
        ("10000", "b.tar", 1, "disk"),
        ("unlimited", "nowhere/b.tar", 2, nowhere),
        ("unlimited", "nowhere/", 2, nowhere),
        ("unlimited", "b.tar", 0, ""),
        ("unlimited", "b.tar", 2, f"backup: {tmp_path}/b.tar: it is there already"),
    ):
        limited = ["prlimit", f"--fsize={limit}", *command, f"{tmp_path}/{target}"]
        ran = subprocess.run(limited, check=False, cwd=ROOT, capture_output=True, text=True)
        assert (ran.returncode, told in ran.stderr) == (code, True), ran.stderr
        assert "Traceback" not in ran.stderr


NO_ROOM = f"""
import errno, sys

def refuse(event, args):  # https://docs.python.org/3/library/audit_events.html
    if event in ("os.link", "os.rename"):
        raise OSError(errno.ENOSPC, "No space left on device")

sys.addaudithook(refuse)
{MAIN}
"""


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_disk_without_room_is_told_with_what_is_lost_and_what_to_do(
    tmp_path: Path, what: str
) -> None:
    stored(settings := grown(tmp_path / "a"), heard(1))
    made(settings, tmp_path / "b.tar")
    directory = tmp_path / ("a" if what == "backup" else "c")
    write(directory / "reverie.yaml", CONFIG)
    last = ["-o", str(tmp_path / "c.tar")] if what == "backup" else [str(tmp_path / "b.tar")]
    command = [sys.executable, "-c", NO_ROOM, what, "--config", str(directory), *last]
    ran = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    told = (
        "disk is full",
        "nothing was " + ("lost" if what == "backup" else "restored"),
        "make room",
    )
    assert (ran.returncode, [one in ran.stderr for one in told]) == (1, [True] * 3), ran.stderr
