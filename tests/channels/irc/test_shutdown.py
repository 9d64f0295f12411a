"""Being told to end: in any state, within a second, with nothing left behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.irc.channel import IrcChannel
from gateway.core.clock import ManualClock, SystemClock
from tests.channels.irc.channel_kit import NAME, Running, config, part, running, settled
from tests.kits.channels import story
from tests.kits.stopwatch import Stopwatch
from tests.servers.ircd import Ircd
from tests.servers.ircd_tls import LOCALHOST, server_context

TLS = {"ca_file": str(LOCALHOST)}


async def _cancel(run: Running) -> float:
    """Seconds that it took."""
    with Stopwatch() as watch:
        run.task.cancel()
        done, _ = await asyncio.wait({run.task}, timeout=30)
    assert done
    assert run.task.cancelled()
    return watch.seconds


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


@contextlib.asynccontextmanager
async def _served(tls: bool) -> AsyncIterator[tuple[Ircd, dict[str, Any]]]:
    async with Ircd(tls=server_context() if tls else None) as ircd:
        yield ircd, {"tls": TLS if tls else False}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("silent", [False, True])
@story
async def test_ends_within_a_second_with_no_task_left(tls: bool, silent: bool) -> None:
    async with _served(tls) as (ircd, changes), running(ircd, **changes) as run:
        before = asyncio.all_tasks() - {run.task}
        await run.up()
        others = {task for task in asyncio.all_tasks() if "serve" in repr(task) or "_accept" in repr(task)}
        ircd.faults.silent = silent
        assert await _cancel(run) < 1
        assert asyncio.all_tasks() <= before | others
        await ircd.received("QUIT :goodbye")


@story
async def test_ends_within_a_second_when_emit_is_blocked_and_the_server_silent() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        run.open.clear()
        await ircd.say("#room", "never told")
        ircd.faults.silent = True
        assert await _cancel(run) < 1
        assert not run.messages


@pytest.mark.parametrize("silent", [False, True])
@story
async def test_what_was_heard_before_is_still_told(silent: bool) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        run.open.clear()
        bot = ircd.clients[0]
        for number in range(600):
            bot.send(f":al!a@h PRIVMSG #room :{number}")
        bot.send("PING :read")
        await ircd.received("PONG :read")
        ircd.faults.silent = silent
        run.task.cancel()
        await asyncio.sleep(0)
        run.open.set()
        await asyncio.wait({run.task}, timeout=30)
        assert [message.text for message in run.messages] == [str(number) for number in range(600)]


@story
async def test_what_was_heard_before_is_still_told_when_there_is_nobody_to_say_goodbye_to() -> None:
    async with Ircd() as ircd, running(ircd, ManualClock()) as run:
        await run.up()
        run.open.clear()
        await ircd.say("#room", "the last thing")
        await settled(ircd.clients[0], "read")
        ircd.clients[0].drop()
        while run.channel._inbox.connection is not None:
            await asyncio.sleep(0)
        run.task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        run.open.set()
        await asyncio.wait({run.task}, timeout=30)
        assert [message.text for message in run.messages] == ["the last thing"]
        assert run.links == [True, False]


@story
async def test_what_is_heard_during_the_goodbye_is_told_too() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        ircd.faults.silent = True
        run.task.cancel()
        await ircd.received("QUIT")
        bot.send(":al!a@h PRIVMSG #room :one last thing")
        bot.drop_after_flush()
        await asyncio.wait({run.task}, timeout=30)
        assert [message.text for message in run.messages] == ["one last thing"]


@pytest.mark.parametrize("tls", [False, True])
@story
async def test_cancelled_at_any_step_of_connecting_leaves_no_socket(tls: bool) -> None:
    async with _served(tls) as (ircd, changes):
        # The names are looked up and the library imported once before: their sockets and threads are not ours.
        async with running(ircd, **changes) as run:
            await run.up()
        await ircd.until(lambda: all(client.closed for client in ircd.clients))
        before, tasks = _sockets(), asyncio.all_tasks()
        for steps in range(40):
            channel = IrcChannel(NAME, config(ircd.port, **changes), SystemClock())
            run = Running(channel)
            for _ in range(steps):
                await asyncio.sleep(0)
            assert await _cancel(run) < 1
            assert channel._inbox.connection is None
        await ircd.until(lambda: all(client.closed for client in ircd.clients))
        for _ in range(200):
            if _sockets() <= before and asyncio.all_tasks() <= tasks:
                break
            await asyncio.sleep(0.01)
        assert _sockets() <= before
        assert asyncio.all_tasks() <= tasks


@story
async def test_an_impatient_second_cancel_leaves_no_socket() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.silent = True
        run.task.cancel()
        await ircd.received("QUIT")
        assert await _cancel(run) < 0.5
        await ircd.until(lambda: ircd.clients[0].closed)


@story
async def test_a_channel_can_be_run_again() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        await _cancel(run)
        again = Running(run.channel)
        await again.up()
        await run.channel.send(part("here again"))
        await ircd.received("PRIVMSG #room :here again")
        await _cancel(again)
