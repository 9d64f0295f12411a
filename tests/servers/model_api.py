"""A loopback server that speaks both model APIs: OpenAI's chat completions and Anthropic's messages.

    async with ModelApi() as api:            # or, without a loop of your own: with ModelApi.threaded() as api:
        base_url = api.url                   # http://127.0.0.1:PORT, for `base_url` of either kind
        api.then(Answer(text="hi"), Answer(status=429, headers={"retry-after": "2"}))
        ...
        assert api.seen[0].body["messages"]  # every request, in order of arrival

- `/v1/chat/completions` and `/v1/messages` (with and without `/v1`) stream the next scripted `Answer`; with none
  left `default(body)` makes one: it echoes the newest user message, `You said: ...`.
- `seen[i].at_s` is `time.monotonic()` when the request's last byte was read: comparable across processes on
  one Linux machine. `seen[i].hung_up` turns true if the client closed before the answer was complete.
- STRICT: what the real APIs refuse is refused (`messages_rules`, `model_api_rules`), kept in `violations`, and not
  counted against the script. `strict=False` turns that off.
- `cache=MessagesCache(tokens)` makes the usage of `/v1/messages` what that cache says at the time of `clock`; the
  API key is the workspace. Without `stream` the message comes whole. `max_tokens: 0` is answered without the script.
- `/v1/messages/count_tokens` counts with the cache's tokens (without one, a token is four characters), or answers
  what `then_counts` scripted. `window`: a longer prompt is refused.
- `models`: what `/v1/models` lists, and all there is (None: everything is, and there is no list); `key`: the only one
  that is let in (None: any). Both may be set at any time.
- `python -m tests.servers.model_api [PORT]` serves echoes for ever and says its URL on the first line.
"""

import asyncio
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from tests.servers import model_api_rules
from tests.servers.messages_cache import MessagesCache
from tests.servers.messages_rules import Complaint
from tests.servers.messages_side import COUNT, MessagesSide, Reply
from tests.servers.model_api_events import Answer, Json, completions, failure
from tests.servers.model_api_seen import Seen, Violation


class ModelApi:
    """See the top of the file."""

    def __init__(
        self,
        *,
        strict: bool = True,
        port: int = 0,
        cache: MessagesCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        window: int | None = None,
    ) -> None:
        self.strict = strict
        self.violations: list[Violation] = []
        self.default: Callable[[Json], Answer] = echo
        self.seen: list[Seen] = []
        self.url = ""
        self.models: list[Json] | None = None
        self.key: str | None = None
        self.connections = 0
        """Accepted so far."""
        self._port = port
        self._messages = MessagesSide(cache=cache, clock=clock, window=window)
        self._script: deque[Answer] = deque()
        self._counts: deque[Answer] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def then(self, *answers: Answer) -> None:
        """Put `answers` at the end of the script."""
        self._script.extend(answers)

    def then_counts(self, *answers: Answer) -> None:
        """The same for count_tokens, which has a script of its own. An answer with status 200 counts."""
        self._counts.extend(answers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @classmethod
    @contextmanager
    def threaded(
        cls,
        *,
        strict: bool = True,
        port: int = 0,
        cache: MessagesCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[Self]:
        """Serve from a thread of its own. `clock` and the cache's `tokens` are called there."""
        api = cls(strict=strict, port=port, cache=cache, clock=clock)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(api.__aenter__(), loop).result()
            yield api
        finally:
            asyncio.run_coroutine_threadsafe(api.__aexit__(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ahead = bytearray()
        try:
            while await self._request(reader, writer, ahead):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test is done
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ahead: bytearray) -> bool:
        """Answer one request; whether another may follow on this connection."""
        head = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        ahead.clear()
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(at_s=time.monotonic(), path=head[0].split()[1], headers=headers, body=_parsed(raw))
        self.seen.append(seen)
        reply = self._reply(seen, len(raw))
        seen.message, seen.ticket = reply.message, reply.ticket
        gone = asyncio.create_task(reader.read(1))  # ends with the connection, or begins the next request
        sending = asyncio.create_task(_send(writer, reply))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not gone.exception():
                ahead += gone.result()
            seen.hung_up = gone.done() and not ahead and not sending.done()
            if not seen.hung_up:
                await sending
            return sending.done() and sending.exception() is None and sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            seen.finished.set()

    def _reply(self, seen: Seen, size: int) -> Reply:
        path, body = seen.path, seen.body
        native = path.endswith(("/messages", COUNT))
        if (door := self._door(seen)) is not None:
            return door
        if not native and not path.endswith("/chat/completions"):
            return Reply(answer=Answer(status=404, body=b'{"error": {"message": "no such path"}}'), events=[])
        if self.strict and (wrong := self._refused(native, seen, size)):
            self.violations.append(Violation(status=wrong.status, complaint=wrong.message, path=path, body=body))
            return self._messages.refusal(wrong)
        if path.endswith(COUNT):
            answer = self._counts.popleft() if self._counts else Answer()
            return self._messages.count(body) if answer.status == 200 else Reply(answer=answer, events=[])
        if native and body.get("max_tokens") == 0 and not (self._script and self._script[0].status != 200):
            answer = Answer()
        else:
            answer = self._script.popleft() if self._script else self.default(body)
        if native:
            return self._messages.reply(answer, seen.headers, body)
        return Reply(answer=answer, events=completions(answer, body))

    def _door(self, seen: Seen) -> Reply | None:
        """Whether the key is good, which models there are, and whether the one that is asked for is there."""
        shown = seen.headers.get("x-api-key") or seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and shown != self.key:
            told = failure(401, "authentication_error", code="invalid_api_key")
            return Reply(answer=told, events=[])
        if self.models is None:
            return None
        if seen.path.partition("?")[0].endswith("/models"):
            listed = json.dumps({"object": "list", "data": self.models}).encode()
            return Reply(answer=Answer(headers={"content-type": "application/json"}), events=[listed])
        asked = seen.body.get("model")
        if asked not in [model["id"] for model in self.models]:
            body = {"type": "error", "error": {"type": "not_found_error", "message": f"model: {asked}"}}
            return Reply(answer=Answer(status=404, body=json.dumps(body).encode()), events=[])
        return None

    def _refused(self, native: bool, seen: Seen, size: int) -> Complaint | None:
        if native:
            return self._messages.refuse(seen.path, seen.headers, seen.body, size)
        complaint = model_api_rules.openai(seen.body)
        return Complaint(complaint) if complaint else None


def _parsed(raw: bytes) -> Json:
    """Return the body; what is no JSON object is an empty one, which the rules refuse."""
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def echo(body: Json) -> Answer:
    """Answer with the newest message's text."""
    content = body["messages"][-1]["content"]
    if isinstance(content, list):
        content = "\n".join(str(b.get("text") or b.get("content") or "") for b in content)
    return Answer(text=f"You said: {content}")


async def _send(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    answer = reply.answer
    await asyncio.sleep(answer.delay_s)
    if answer.status != 200:
        lines = [f"HTTP/1.1 {answer.status} Scripted", f"content-length: {len(answer.body)}"]
        lines += ["content-type: application/json"] if "content-type" not in answer.headers else []
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
        await writer.drain()
        return True
    told = {"content-type": "text/event-stream", "request-id": "req_scripted"} | answer.headers
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.write(f"HTTP/1.1 200 OK\r\n{head}transfer-encoding: chunked\r\n\r\n".encode())
    for place, event in enumerate([*reply.events, b""]):
        if place == answer.cut_after:
            return False
        if place == answer.silent_after:
            await writer.drain()
            await asyncio.Event().wait()
        if not place:
            reply.began()
        size = answer.split_bytes or len(event) or 1
        for start in range(0, max(1, len(event)), size):
            piece = event[start : start + size]
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            if answer.split_bytes:
                await asyncio.sleep(0)
    return True


async def _serve(port: int) -> None:
    async with ModelApi(port=port) as api:
        print(api.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
