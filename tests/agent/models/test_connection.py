"""Connections to models' servers: when one is used again, and what counts as an answer."""

import asyncio

import pytest

from agent.models.base import ModelBusy
from agent.models.http import ModelHttpClient
from reverie.testing.servers.ports import LoopbackServer, read_head


class Scripted(LoopbackServer):
    """Sends the same bytes for each request."""

    def __init__(self, answer: bytes, *, answers: int = 100) -> None:
        """`answers`: so many on one connection, which is closed then."""
        super().__init__()
        self._answer, self._answers = answer, answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self._answers):
            await read_head(reader)
            writer.write(self._answer)


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(("answers", "connections"), [(100, 1), (2, 2)])
async def test_a_connection_is_used_again_while_it_is_open(answers: int, connections: int) -> None:
    whole = OK + b"content-length: 2\r\n\r\n{}"
    async with Scripted(whole, answers=answers) as server:
        client = ModelHttpClient(url=f"http://127.0.0.1:{server.port}/v1", headers={})
        for _ in range(3):
            assert await client.fetch() == b"{}"
            for _ in range(10):  # what the server does next has arrived
                await asyncio.sleep(0)
        await client.aclose()
        assert server.connections == connections


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-type: appl",
        OK + b"content-length: 5\r\n\r\n{}",
        OK + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        OK + b"a: " + 200_000 * b"x",
    ],
)
async def test_an_answer_that_is_cut_or_no_http_is_busy(answer: bytes) -> None:
    async with Scripted(answer, answers=1) as server:
        client = ModelHttpClient(url=f"http://127.0.0.1:{server.port}/v1", headers={})
        with pytest.raises(ModelBusy):
            await client.fetch()
        await client.aclose()
