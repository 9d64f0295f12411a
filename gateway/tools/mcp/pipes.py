"""A server that is a program of ours, spoken to on its standard input and output.

As the specification has it (2025-11-25, basic/transports, stdio; basic/lifecycle, shutdown): one JSON-RPC message is a
line; to end, close its input, wait, then SIGTERM, then SIGKILL. The library's own transport passes on more of the
environment, holds lines of any length, leaves children behind and logs what it cannot read.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from channels.tasks import cancel_and_wait
from gateway.process import READ_BYTES, ChildProcess, select_environment, start_process

logger = logging.getLogger("reverie.mcp")

MAX_MESSAGE_BYTES: Final = 16_777_216
"""Of one message: a picture of a whole screen is a few MB as base64."""
MAX_UNSENT_BYTES: Final = 16_777_216
"""Of what was said to a server that does not listen."""
PASSED_ENVIRONMENT: Final = ("PATH", "HOME", "LANG")
"""Of the environment: a server gets none of our secrets but its own."""
CLOSE_WAIT_S: Final = 2.0
"""After its input was closed, as the library has it."""
TERMINATE_WAIT_S: Final = 1.0
"""After SIGTERM."""

_IncomingMessage = SessionMessage | Exception
StdioStreams = tuple[MemoryObjectReceiveStream[_IncomingMessage], MemoryObjectSendStream[SessionMessage]]


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], *, lost: Callable[[str], None], heard: Callable[[str], None]
) -> AsyncIterator[StdioStreams]:
    """Start it, and speak with it. However this ends, it and all in its group have ended.

    `lost` is called with the reason when it can say nothing more, `heard` with each line of its standard error.
    Raises NotStarted.
    """
    async with start_process(
        command, env=select_environment(*PASSED_ENVIRONMENT) | dict(env), listens=True, stderr="pipe"
    ) as child:
        into, out_of = anyio.create_memory_object_stream[_IncomingMessage](0)
        said, to_say = anyio.create_memory_object_stream[SessionMessage](0)
        working = [
            asyncio.create_task(_read_messages(child, into, lost)),
            asyncio.create_task(_write_messages(child, to_say, lost)),
            asyncio.create_task(_read_stderr(child, heard)),
        ]
        try:
            yield out_of, said
        finally:
            try:
                await _stop_process(child)
            finally:
                for stream in (into, out_of, said, to_say):
                    stream.close()
                await cancel_and_wait(*working)


async def _read_messages(
    child: ChildProcess, into: MemoryObjectSendStream[_IncomingMessage], lost: Callable[[str], None]
) -> None:
    """Hand on all it says, to its end."""
    assert child.stdout is not None
    try:
        async for line in _read_lines(child.stdout):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                logger.debug("a server said %d bytes that are no message", len(line))  # some print what they do
                continue
            await into.send(SessionMessage(message))
    except OverflowError:
        lost(f"it said more than {MAX_MESSAGE_BYTES:,} bytes at once")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # nobody listens any more
    else:
        lost("it ended")
    into.close()


async def _read_lines(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Raises OverflowError for one that is too long."""
    held, looked = bytearray(), 0
    while piece := await output.read(READ_BYTES):
        held += piece
        while (at := held.find(b"\n", looked)) >= 0:
            yield bytes(held[:at])
            del held[: at + 1]
            looked = 0
        looked = len(held)
        if looked > MAX_MESSAGE_BYTES:
            raise OverflowError


async def _write_messages(
    child: ChildProcess, to_say: MemoryObjectReceiveStream[SessionMessage], lost: Callable[[str], None]
) -> None:
    """Never waits for a server that does not read, so nobody who speaks to it does."""
    assert child.stdin is not None
    async for one in to_say:
        line = one.message.model_dump_json(by_alias=True, exclude_unset=True)
        child.stdin.write(line.encode() + b"\n")
        if child.stdin.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            lost("it does not listen")


async def _read_stderr(child: ChildProcess, heard: Callable[[str], None]) -> None:
    """Its standard error, so that it never waits for a reader."""
    assert child.stderr is not None
    while piece := await child.stderr.read(READ_BYTES):
        for line in piece.splitlines():
            heard(line.decode("utf-8", "replace"))


async def _stop_process(child: ChildProcess) -> None:
    """As the specification has it; whoever started it does the last step. Cancelled, that comes at once."""
    assert child.stdin is not None
    child.stdin.close()
    for wait_s, then in ((CLOSE_WAIT_S, signal.SIGTERM), (TERMINATE_WAIT_S, None)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await child.wait()
        if child.status is not None or then is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, then)
