"""The control socket: real sockets, misbehaving clients, sockets left by dead processes."""

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.aio import cancel_and_wait
from gateway.core import control_socket
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    ControlServer,
    ask_state,
    send_control_request,
)
from gateway.core.metrics import GatewaySnapshot, HealthProblem
from gateway.core.process_files import (
    GatewayNotAnswering,
    GatewayNotRunning,
    socket_path,
)
from reverie.testing.waiting import until

STATUS = CommandRequest(words=("status",), by="a test")


async def echo(order: CommandRequest) -> ControlResponse:
    return ControlResponse(
        ok=True, lines=(f"{' '.join(order.words)} of {order.agent} by {order.by}",)
    )


def state() -> GatewaySnapshot:
    since = datetime(2026, 7, 1, 12, tzinfo=UTC)
    return GatewaySnapshot(
        started=since, channels=(), problems=(HealthProblem(what="x", since=since, reason="why"),)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@contextlib.asynccontextmanager
async def listening(made: ControlServer, path: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(made.run())
    try:
        while not await _heard(path) or made._connections:
            await asyncio.sleep(0)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _heard(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def raw(path: Path, *pieces: bytes, end: bool = False) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if end:
            writer.write_eof()
        async with asyncio.timeout(120):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_an_order_reaches_the_handler_and_its_answer_the_client(path: Path) -> None:
    async with listening(ControlServer(path, echo, state), path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        answer = await send_control_request(
            path, CommandRequest(words=("quiet",), by="ann", agent="reverie")
        )
        assert answer == ControlResponse(ok=True, lines=("quiet of reverie by ann",))
    assert not path.exists()
    with pytest.raises(GatewayNotRunning):
        await send_control_request(path, STATUS)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((b"{\n",), "not an order: the line: Invalid JSON"),
        ((b'{"words": "explode", "by": "x"}\n',), "not an order: words: "),
        ((b'{"words": ["off"], "by": "x", "more": 1}\n',), "not an order: more: "),
        ((b'{"words": ["off"], "by": "' + b"x" * 201 + b'"}\n',), "not an order: by: "),
        ((b'{"words": [], "by": "x"}\n',), "not an order: words: "),
        ((b"\xff\xfe\x00\n",), "not an order: "),
        ((b"[" * 30_000 + b"\n",), "not an order: "),
        ((b"\n",), "not an order: "),
        ((b"GET / HTTP/1.1\r\n", b"\r\n"), "not an order: "),
        ((b'{"words": ["sta', b'tus"], "by": "x"}\n'), "status of  by x"),
        ((b"x" * (MAX_REQUEST_BYTES + 1),), f"an order has at most {MAX_REQUEST_BYTES} bytes"),
    ],
)
async def test_odd_orders_get_an_answer_and_harm_nobody(
    pieces: tuple[bytes, ...], said: str, path: Path
) -> None:
    async with listening(ControlServer(path, echo, state), path):
        told = await raw(path, *pieces)
        if told:  # a reset may overtake the answer to what was too much
            answer = json.loads(told)
            assert answer["lines"][0].startswith(said)
            assert answer["ok"] is said.startswith("status")
        assert told or len(pieces[0]) > MAX_REQUEST_BYTES
        assert await raw(path, end=True)  # who says nothing at all is told so, too
        assert (await send_control_request(path, STATUS)).ok


async def test_who_keeps_it_waiting_is_let_go_and_a_crowd_is_kept_out(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    never = asyncio.Event()

    async def slow(order: CommandRequest) -> ControlResponse:
        if order.words == ("debug",):
            await never.wait()
        return await echo(order)

    made = ControlServer(path, slow, state)
    async with listening(made, path):
        idle = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS)]
        while len(made._connections) < MAX_CONNECTIONS:
            await asyncio.sleep(0)
        with pytest.raises(GatewayNotAnswering, match=r"busy or ending|did not answer"):
            await send_control_request(path, STATUS)
        for _, writer in idle:
            writer.close()
        while made._connections:
            await asyncio.sleep(0)
        assert (await send_control_request(path, STATUS)).ok
        monkeypatch.setattr(control_socket, "READ_S", 0.05)
        assert await raw(path, b'{"wha') == b""
        monkeypatch.setattr(control_socket, "READ_S", 5.0)
        monkeypatch.setattr(control_socket, "ANSWER_S", 0.05)
        answer = await send_control_request(path, CommandRequest(words=("debug",), by="x"))
        assert answer.lines == ("the gateway did not get to it within 0 s",)


async def test_ending_lets_go_of_whoever_is_connected(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr(control_socket, "READ_S", 600.0)
    made = ControlServer(path, echo, state)
    async with listening(made, path):
        reader, writer = await asyncio.open_unix_connection(path)
        await asyncio.sleep(0)  # perhaps it has not been accepted yet
    async with asyncio.timeout(120):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert not path.exists()


async def test_the_socket_of_a_dead_process_is_replaced_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, other = tmp_path / "s.sock", tmp_path / "t.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(os.fspath(path))
    assert path.exists()
    other.write_text("dear to somebody")
    with pytest.raises(GatewayNotRunning):
        await send_control_request(path, STATUS)
    async with listening(ControlServer(path, echo, state), path):
        assert (await send_control_request(path, STATUS)).ok
    await ControlServer(other, echo, state).run()
    await ControlServer(tmp_path / "none" / "s.sock", echo, state).run()
    assert other.read_text() == "dear to somebody"
    assert caplog.text.count("cannot steer this gateway") == 2


async def test_a_socket_that_somebody_else_put_there_is_left_alone(path: Path) -> None:
    async with listening(ControlServer(path, echo, state), path):
        path.unlink()
        path.write_text("a successor's")
    assert path.read_text() == "a successor's"


@pytest.mark.parametrize("directory", ["d", "d" * 100])
async def test_the_path_stands_beside_the_store_however_long_it_is(
    tmp_path: Path, directory: str
) -> None:
    assert socket_path(Path("/data/reverie.db")) == Path("/data/reverie.db.sock")
    (tmp_path / directory).mkdir()
    path = socket_path(tmp_path / "x" / ".." / directory / "reverie.db")
    assert path == tmp_path / directory / "reverie.db.sock"
    serving = asyncio.create_task(ControlServer(path, echo, state).run())
    await until(path.is_socket)
    async with asyncio.timeout(60):
        assert (await send_control_request(path, STATUS)).ok
    await cancel_and_wait(serving)
    with pytest.raises(GatewayNotRunning):
        await send_control_request(path, STATUS)


async def test_it_tells_its_state_and_whoever_tells_none_is_found_out(path: Path) -> None:
    with pytest.raises(GatewayNotRunning):
        await ask_state(path, 60)
    async with listening(ControlServer(path, echo, state), path):
        assert await ask_state(path, 60) == state()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hung:
        hung.bind(os.fspath(path))
        hung.listen()
        with pytest.raises(GatewayNotAnswering, match=r"did not answer in 0\.01 s"):
            await ask_state(path, 0.01)
