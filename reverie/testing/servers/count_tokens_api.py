"""A loopback `/v1/messages/count_tokens`, as strict as the real one about what it is sent."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agent.tokens.counter import count_heuristically
from agent.models.anthropic_wire import build_counted_body
from agent.tokens.endpoint import EndpointCounter
from gateway.core.clock import ManualClock
from reverie.testing.servers.ports import LoopbackServer, read_head

KEY = "sk-very-secret-0123456789"
Body = dict[str, object]
MAY = {"messages", "model", "output_config", "system", "thinking", "tool_choice", "tools"}


@dataclass(kw_only=True)
class Reply:
    """`body` None: as many tokens as the request has, by bytes."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    silent: bool = False
    drips: bool = False
    """White space for ever, so that there is never silence."""


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: Body
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class CountApi(LoopbackServer):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Asked] = []
        self.script: deque[Reply] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._answer(reader, writer):
            pass

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, path, headers, _ = await read_head(reader)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        asked = Asked(path, headers, body)
        self.seen.append(asked)
        await self.changed()
        reply = self.script.popleft() if self.script else Reply()
        if unknown := set(body) - MAY:
            told = {
                "error": {
                    "type": "invalid_request_error",
                    "message": f"Extra inputs: {sorted(unknown)}",
                }
            }
            reply = Reply(status=400, body=json.dumps(told).encode())
        if reply.silent:
            await reader.read()  # until the client hangs up
            asked.gone.set()
            return False
        content = (
            json.dumps({"input_tokens": size(body)}).encode() if reply.body is None else reply.body
        )
        if reply.drips:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        kept = {
            "content-type": "application/json",
            "content-length": str(len(content)),
        } | reply.headers
        lines = [
            f"HTTP/1.1 {reply.status} Scripted",
            *(f"{name}: {value}" for name, value in kept.items()),
            "",
            "",
        ]
        writer.write(
            "\r\n".join(lines).encode() + (content[: len(content) // 2] if reply.cut else content)
        )
        await writer.drain()
        return not reply.cut


def size(body: Body) -> int:
    return count_heuristically(json.dumps(body, sort_keys=True))


def body(text: str, *, mark: bool = False) -> Body:
    """A request as it goes to `/v1/messages`."""
    words: Body = {"type": "text", "text": text}
    if mark:
        words["cache_control"] = {"type": "ephemeral", "ttl": "5m"}
    return {
        "model": "m-1",
        "max_tokens": 9,
        "stream": True,
        "messages": [{"role": "user", "content": [words]}],
    }


@contextlib.asynccontextmanager
async def asking(
    *, capacity: int = 1024, timeout_s: float = 10.0
) -> AsyncIterator[tuple[CountApi, EndpointCounter, ManualClock]]:
    """A server, a counter that asks it, and the counter's clock; none of its tasks is left behind."""
    clock = ManualClock()
    async with CountApi() as api, asyncio.timeout(120):
        counter = EndpointCounter(
            clock=clock,
            write=build_counted_body,
            api_key=KEY,
            base_url=api.url,
            capacity=capacity,
            timeout_s=timeout_s,
        )
        try:
            yield api, counter, clock
        finally:
            await counter.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "count_tokens"]
