"""The real program while its store or its own log fails it: a disk that is full, a lock, no
standard error."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.core.events import DeliveryReport
from reverie.testing.channels import story
from reverie.testing.servers.ports import free_port
from reverie.testing.waiting import until
from tests.gateway.system.platforms.telegram_kit import Town, town
from tests.kits.gateway_process import CHECKOUT
from tests.kits.small_disk import SmallDisk, small_disk

LOCKED = "another program holds a lock on the store: end it"
LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA locking_mode = {sys.argv[2]}")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def locked(store: Path, mode: str = "NORMAL") -> AsyncIterator[None]:
    """Another process holds the store's lock. `mode` EXCLUSIVE: nobody can even read it."""
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LOCKING, str(store), mode),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert await other.stdout.readline() == b"locked\n"
    try:
        yield
    finally:
        other.stdin.close()
        await other.wait()


async def ran(it: Town, *arguments: str) -> tuple[int | None, str]:
    """A command of the shell: its exit code, and what it wrote."""
    made = await asyncio.create_subprocess_exec(
        *(*it.prefix, sys.executable, "-c", it.code, *arguments, "--config", str(it.directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=CHECKOUT,
    )
    out, _ = await made.communicate()
    return made.returncode, out.decode()


async def says(it: Town, text: str, times: int = 1) -> None:
    """Return once that stands so often in its log."""
    await until(lambda: it.log.count(text) >= times, every_s=0.02)


def put_on(it: Town, disk: SmallDisk) -> int:
    """Have the store there; the port of the operator's server."""
    port = free_port()
    it.prefix, it.store = disk.prefix, disk.directory / "reverie.db"
    it.config |= {"store": {"path": str(it.store)}, "ops": {"port": port}}
    it.write()
    return port


@story
async def test_a_disk_that_is_full_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """Without a store, and with one whose program was killed."""
    async with small_disk(tmp_path / "disk") as disk, town(tmp_path) as it:
        if not disk.prefix:
            pytest.skip("a disk can be filled before the start only in a namespace of its own")
        put_on(it, disk)
        ann = it.api.person("Ann")
        for number in (1, 2):
            token = it.say(ann)
            await disk.fill(0)
            await it.start()
            await says(it, "make room where the store is; it is tried again and again", number)
            assert it.process is not None
            assert it.process.returncode is None
            await disk.free(0)
            await it.answered(token)
            await it.kill()


@story
async def test_a_store_that_is_locked_at_start_is_waited_for(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, port = it.api.person("Ann"), free_port()
        it.config |= {"ops": {"port": port}}
        it.write()
        await it.start()
        await it.answered(it.say(ann))
        await it.calm()
        await it.end()
        token = it.say(ann)
        async with locked(it.store, "EXCLUSIVE"):
            await it.start()
            await says(it, "it is tried again and again")
            code, told = await ran(it, "health")
            assert (code, LOCKED in told) == (1, True)
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{port}/ready")
            assert (answer.status_code, LOCKED in answer.text) == (503, True)
            await it.end()
            it.config["store"]["exit_after"] = 0.5
            it.write()
            await it.start()
            assert it.process is not None
            assert await it.process.wait() == os.EX_TEMPFAIL
            it.config["store"]["exit_after"] = None
            it.write()
            await it.start()
            await says(it, "it is tried again and again", 3)
        await it.answered(token)
        await it.end()


@pytest.mark.parametrize("ruin", ["2>&-", "2>/dev/full", "2> >(exit 0)", "0<&- 1>&- 2>&-"])
@story
async def test_without_a_standard_error_it_starts_and_works(ruin: str, tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.prefix = ("bash", "-c", f'exec "$@" {ruin}', "bash")
        await it.start()
        await it.answered(it.say(it.api.person("Ann")))
        await it.end()
        it.prefix = ()
        assert (await ran(it, "log", "rebuild"))[0] == 0, "no line of the log came into the store"


def _count_sends(store: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as reading:
        return int(reading.execute("SELECT count(*) FROM log WHERE kind = 'sending'").fetchone()[0])


@story
async def test_a_log_that_lost_its_end_is_told_once_and_what_waited_to_be_sent_is_uncertain(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        ann = it.api.person("Ann")
        await it.start()
        await it.answered(it.say(ann))
        it.api.faults.stall("sendMessage")
        token = it.say(ann)
        await until(lambda: _count_sends(it.store) == 2)
        saved = {
            name: (it.directory / name).read_bytes() for name in ("reverie.db", "reverie.db-wal")
        }
        it.api.faults.release()
        await it.answered(token)
        await it.calm()
        await it.kill()
        (it.directory / "reverie.db-shm").unlink()
        for name, data in saved.items():
            (it.directory / name).write_bytes(data)
        await it.start()
        await it.answered(it.say(ann))
        assert it.heard(token) == 1
        reasons = [
            one.fact.reason for one in await it.entries() if isinstance(one.fact, DeliveryReport)
        ]
        assert reasons.count("the log has lost its end: it may have been sent") == 1
        assert it.log.count("the end of the log is lost: it had come to") == 1
        await it.kill()
        await it.start()
        await it.answered(it.say(ann))
        assert it.log.count("the end of the log is lost: it had come to") == 1
        await it.end()


@story
async def test_descriptors_that_are_used_up_are_told_once_and_people_are_answered_again(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        port = free_port()
        it.config |= {"ops": {"port": port}}
        it.write()
        it.prefix = ("prlimit", "--nofile=64")
        ann = it.api.person("Ann")
        await it.start()
        await it.answered(it.say(ann))
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        await says(it, "file descriptors are in use; raise LimitNOFILE")
        for _, writer in crowd:
            writer.close()
        await it.answered(it.say(ann))
        assert it.log.count("file descriptors are in use") == 1
        assert "Traceback" not in it.log
        await it.end()
