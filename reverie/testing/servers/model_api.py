"""A loopback server that speaks both model APIs: OpenAI's chat completions and Anthropic's
messages.

    async with ModelApi() as api:            # or, without a loop of your own: with ModelApi.threaded() as api:
        base_url = api.url                   # http://127.0.0.1:PORT, for `base_url` of either kind
        api.then(Answer(text="hi"), Answer(status=429, headers={"retry-after": "2"}))
        ...
        assert api.seen[0].body["messages"]  # every request, in order of arrival

- `/v1/chat/completions` and `/v1/messages` (with and without `/v1`) stream the next scripted
  `Answer`; with none left `default(body)` makes one: it echoes the newest user message, `You said:
  ...`.
- `seen[i].at_s` is `time.monotonic()` when the request's last byte was read: comparable across
  processes on one Linux machine. `seen[i].hung_up` turns true if the client closed before the
  answer was complete.
- STRICT: what the real APIs refuse is refused (`model_api_rules`), kept in `violations`, and not
  counted against the script. `strict=False` turns that off.
- `cache=MessagesCache(tokens)` makes the usage of `/v1/messages` what that cache says at the time
  of `clock`; the API key is the workspace. Without `stream` the message comes whole. `max_tokens:
  0` is answered without the script.
- `/v1/messages/count_tokens` counts with the cache's tokens (without one, a token is four
  characters). `window`: a longer prompt is refused.
- `models`: what `/v1/models` lists, and all there is (None: everything is, and there is no list);
  `key`: the only one that is let in (None: any). Both may be set at any time.
- `rule`: one more rule for chat completions, of one provider alone (`deepseek`, `mistral` of
  `model_api_rules`).
- `python -m reverie.testing.servers.model_api [PORT]` serves echoes for ever and says its URL on the first
  line.

Sources of the answers: platform.claude.com/docs/en, api/messages and build-with-claude/streaming.
Every stream holds a ping and an event that nobody knows, because real ones may.
"""

import asyncio
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from reverie.testing.servers.messages_cache import MessagesCache, Ticket
from reverie.testing.servers.messages_prompt import known, profile, sign, verify
from reverie.testing.servers.model_api_rules import MAX_BYTES, Complaint, check, openai
from reverie.testing.servers.ports import LoopbackServer, read_head

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One scripted answer, or one fault."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """(id, name, JSON arguments)."""
    extra: Json = field(default_factory=dict)
    """OpenAI: further fields of each call."""
    stop: str | None = None
    """In the API's own words; None: as the content suggests."""
    usage: Json | None = None
    """In the API's own words; None: counted. OpenAI: {} sends none."""
    thinking: str | None = None
    deltas: tuple[Json, ...] = ()
    """OpenAI: deltas in front of the text, as they are."""
    content: tuple[Json, ...] = ()
    """Messages: blocks in front of the rest. `thinking` and `redacted_thinking` are signed by the
    server."""
    stop_details: Json | None = None
    """Messages: with the stop reason `refusal`, `{"type": "refusal", "category": "cyber",
    "explanation": None}`."""
    dropped: tuple[Json, ...] = ()
    """Messages: told in `input_transformations`, as if the server had dropped so much of the
    request."""
    done: bool = True
    """OpenAI: ends with [DONE]."""
    status: int = 200
    """Anything else, or chat completions of type `application/json`: `body` and `headers` are the
    answer."""
    headers: Json = field(default_factory=dict)
    body: bytes = b'{"error": {"type": "api_error", "message": "scripted"}}'
    delay_s: float = 0.0
    """Before the first byte."""
    pace_s: float = 0.0
    """Before each event."""
    cut_after: int | None = None
    """Close the connection after so many events."""
    silent_after: int | None = None
    """Say nothing more after so many events, until the client hangs up."""
    endless_after: int | None = None
    """Repeat the event before for ever after so many events, until the client hangs up."""
    error_after: tuple[int, str] | None = None
    """After so many events an error event of this type, then the end."""
    error_says: str = ""
    """Its message; empty: that it is scripted."""
    garbled_after: int | None = None
    """After so many events one that is no JSON."""
    split_bytes: int | None = None
    """Send in pieces of so many bytes, each its own write."""


def failure(
    status: int, kind: str, *, code: str = "", retry_after_s: float | None = None
) -> Answer:
    """An error as the Messages API writes it (platform.claude.com/docs/en/api/errors)."""
    error: Json = {"type": kind, "message": f"scripted {kind}"} | (
        {"details": {"error_code": code}} if code else {}
    )
    body = json.dumps({"type": "error", "error": error, "request_id": "req_scripted"}).encode()
    return Answer(
        status=status,
        body=body,
        headers={} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"},
    )


def spend_limit() -> Answer:
    """The month's budget is used up: a 429 that waiting does not help (docs/en/api/rate-limits)."""
    return failure(429, "rate_limit_error", code="enforced_spend_limit_reached")


def pieces(text: str) -> list[str]:
    return [text[i : i + 12] for i in range(0, len(text), 12)]


def faulty(answer: Answer, events: list[bytes]) -> list[bytes]:
    if answer.error_after is not None:
        place, kind = answer.error_after
        error = {
            "type": "error",
            "error": {"type": kind, "message": answer.error_says or f"scripted {kind}"},
        }
        return [*events[:place], f"event: error\ndata: {json.dumps(error)}\n\n".encode()]
    if answer.garbled_after is not None:
        return [*events[: answer.garbled_after], b"event: message_delta\ndata: {not json\n\n"]
    return events


def completions(answer: Answer, body: Json) -> list[bytes]:
    """As chat completion chunks."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": answer.thinking}] if answer.thinking else []
    deltas += answer.deltas
    deltas += [{"content": piece} for piece in pieces(answer.text)]
    for index, (ident, name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": ""}
        call = {
            "index": index,
            "id": ident,
            "type": "function",
            "function": function,
        } | answer.extra
        deltas.append({"tool_calls": [call]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": p}}]}
            for p in pieces(arguments)
        ]
    base: Json = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "model": body.get("model"),
        "usage": None,
    }
    chunks = [
        base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    stop = answer.stop or ("tool_calls" if answer.calls else "stop")
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    usage = {
        "prompt_tokens": len(json.dumps(body)) // 4,
        "completion_tokens": len(answer.text) // 4 + 1,
    }
    if answer.usage != {}:
        chunks.append(base | {"choices": [], "usage": answer.usage or usage})
    events = [b"data: " + _written(chunk) + b"\n\n" for chunk in chunks]
    return faulty(
        answer, [b": a comment\n\n", *events, *([b"data: [DONE]\n\n"] if answer.done else [])]
    )


def message(answer: Answer, body: Json, usage: Json, ident: str) -> Json:
    """Return the whole message, as it is without `stream`."""
    content = _content(answer, body)
    stop = answer.stop or (
        "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    )
    whole: Json = {
        "id": ident,
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": answer.stop_details,
        "usage": usage,
    }
    return whole


def events(answer: Answer, whole: Json) -> list[bytes]:
    """Return the message as it is streamed, with the answer's faults."""
    late = {"stop_reason", "stop_sequence", "stop_details"}
    start = {key: None if key in late else value for key, value in whole.items()}
    start |= {"content": [], "usage": whole["usage"] | {"output_tokens": 1}}
    out: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        {"type": "invented_later", "delta": "of another shape"},
    ]
    written = dict(enumerate(arguments for *_, arguments in answer.calls))
    for index, block in enumerate(whole["content"]):
        first = len(whole["content"]) - len(answer.calls)
        bare, deltas = _streamed(block, written.get(index - first))
        out.append({"type": "content_block_start", "index": index, "content_block": bare})
        out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        out.append({"type": "content_block_stop", "index": index})
    end = {key: whole[key] for key in sorted(late)}
    out += [
        {"type": "message_delta", "delta": end, "usage": whole["usage"]},
        {"type": "message_stop"},
    ]
    return faulty(
        answer, [f"event: {e['type']}\ndata: ".encode() + _written(e) + b"\n\n" for e in out]
    )


def _written(value: Json) -> bytes:
    """Write JSON: as UTF-8, but halves of characters, which have none, as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _content(answer: Answer, body: Json) -> list[Json]:
    """Return the blocks, thinking signed and shown as the request wants it."""
    scripted: list[Json] = list(answer.content)
    scripted += [{"type": "thinking", "thinking": answer.thinking}] if answer.thinking else []
    scripted += [{"type": "text", "text": answer.text}] if answer.text else []
    scripted += [
        {"type": "tool_use", "id": i, "name": n, "input": _input(a)} for i, n, a in answer.calls
    ]
    quiet = known(body["model"]) and "enabled" not in profile(body["model"]).thinking
    said: list[Json] = []
    for block in scripted:
        if block["type"] == "thinking":
            thought = "" if quiet else block["thinking"]
            said.append(
                {"type": "thinking", "thinking": thought, "signature": sign(body, said, thought)}
            )
        elif block["type"] == "redacted_thinking":
            said.append({"type": "redacted_thinking", "data": sign(body, said, "")})
        else:
            said.append(block)
    return said


def _streamed(block: Json, arguments: str | None) -> tuple[Json, list[Json]]:
    """Return a block as it starts, and its deltas. `arguments`: as the model wrote them, perhaps no
    JSON.
    """
    if block["type"] == "text":
        return {**block, "text": ""}, [
            {"type": "text_delta", "text": piece} for piece in pieces(block["text"])
        ]
    if block["type"] == "thinking":
        thoughts = [
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])
        ]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thoughts, signature]
    if block["type"] == "tool_use":
        text = json.dumps(block["input"]) if arguments is None else arguments
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text)]
        ]
    return block, []


def _input(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}


@dataclass(kw_only=True)
class Seen:
    """One request."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: Json
    method: str = "POST"
    raw: bytes = b""
    """The body as it came."""
    hung_up: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the answer is out or the client is gone."""
    message: Json | None = None
    """The whole message that was answered, before faults. Messages API only."""
    ticket: Ticket | None = None
    """What the cache made of it."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A request that was refused because it broke the API's rules."""

    status: int
    complaint: str
    path: str
    body: Json


COUNT = "/messages/count_tokens"
_JSON = {"content-type": "application/json"}


@dataclass(kw_only=True)
class Reply:
    """What is sent for one request."""

    answer: Answer
    events: list[bytes]
    began: Callable[[], None] = lambda: None
    """To be called when the first byte goes out."""
    message: Json | None = None
    ticket: Ticket | None = None


class MessagesSide:
    """State: the cache."""

    def __init__(
        self, *, cache: MessagesCache | None, clock: Callable[[], float], window: int | None
    ) -> None:
        self.cache = cache
        self._counter = cache or MessagesCache(lambda text: len(text) // 4 + 1)
        self._clock = clock
        self._window = window
        self._last = 0

    def refuse(
        self, path: str, headers: Mapping[str, str], body: Json, size: int
    ) -> Complaint | None:
        """Return why the request is refused. `size`: of the body, in bytes."""
        if size > MAX_BYTES:
            return Complaint("Request exceeds the maximum size", 413, "request_too_large")
        wrong = check(body, headers, counting=path.endswith(COUNT))
        if wrong is None and (bound := verify(body)):
            wrong = Complaint(bound)
        if wrong is None and self._window and (tokens := self._counter.count(body)) > self._window:
            wrong = Complaint(f"prompt is too long: {tokens} tokens > {self._window} maximum")
        return wrong

    def refusal(self, wrong: Complaint) -> Reply:
        ident = self._ident("req")
        told = json.dumps(wrong.wire(ident)).encode()
        return Reply(
            answer=Answer(status=wrong.status, headers={"request-id": ident}, body=told), events=[]
        )

    def count(self, body: Json) -> Reply:
        told = json.dumps({"input_tokens": self._counter.count(body)}).encode()
        return Reply(answer=Answer(headers=_JSON), events=[told])

    def reply(self, answer: Answer, headers: Mapping[str, str], body: Json) -> Reply:
        """Word the answer. The cache sees the request now, and the answer's beginning when `began`
        is called.
        """
        if answer.status != 200:
            return Reply(answer=answer, events=[])
        ticket = None
        if self.cache is not None:
            workspace = headers.get("x-api-key") or headers.get("authorization", "")
            ticket = self.cache.begin(body, at_s=self._clock(), workspace=workspace)
        if body.get("max_tokens") == 0:
            answer = replace(
                answer, text="", calls=(), thinking=None, content=(), stop="max_tokens"
            )
        usage = answer.usage or self._usage(answer, body, ticket)
        whole = message(answer, body, usage, self._ident("msg"))
        if answer.dropped:
            whole["input_transformations"] = answer.dropped
        out = events(answer, whole)
        if not body.get("stream"):
            answer, out = (
                replace(answer, headers=_JSON | answer.headers),
                [json.dumps(whole).encode()],
            )
        return Reply(
            answer=answer,
            events=out,
            began=lambda: self._began(ticket),
            message=whole,
            ticket=ticket,
        )

    def _began(self, ticket: Ticket | None) -> None:
        if self.cache is not None and ticket is not None:
            self.cache.began(ticket)

    def _usage(self, answer: Answer, body: Json, ticket: Ticket | None) -> Json:
        said = answer.text + "".join(arguments for *_, arguments in answer.calls)
        output = 0 if body.get("max_tokens") == 0 else len(said) // 4 + 1
        thought = len(answer.thinking or "") // 4
        if ticket is None:
            return {"input_tokens": len(json.dumps(body)) // 4, "output_tokens": output}
        return ticket.usage.wire(output + thought) | {
            "output_tokens_details": {"thinking_tokens": thought}
        }

    def _ident(self, kind: str) -> str:
        self._last += 1
        return f"{kind}_{self._last}"


class ModelApi(LoopbackServer):
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
        super().__init__(port=port)
        self.strict = strict
        self.violations: list[Violation] = []
        self.default: Callable[[Json], Answer] = echo
        self.seen: list[Seen] = []
        self.models: list[Json] | None = None
        self.listed_with: Json = {}
        """Further headers of that list."""
        self.key: str | None = None
        self.rule: Callable[[Json], str | None] = lambda _: None
        self._messages = MessagesSide(cache=cache, clock=clock, window=window)
        self._script: deque[Answer] = deque()

    def then(self, *answers: Answer) -> None:
        """Put `answers` at the end of the script."""
        self._script.extend(answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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
            asyncio.run_coroutine_threadsafe(api.start(), loop).result()
            yield api
        finally:
            asyncio.run_coroutine_threadsafe(api.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead = bytearray()
        while await self._request(reader, writer, ahead):
            pass

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ahead: bytearray
    ) -> bool:
        """Answer one request; whether another may follow on this connection."""
        method, path, headers, _ = await read_head(reader, bytes(ahead))
        ahead.clear()
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(
            at_s=time.monotonic(),
            path=path,
            headers=headers,
            body=_parsed(raw),
            method=method,
            raw=raw,
        )
        self.seen.append(seen)
        reply = self.reply(seen)
        seen.message, seen.ticket = reply.message, reply.ticket
        gone = asyncio.create_task(
            reader.read(1)
        )  # ends with the connection, or begins the next request
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

    def take(self, body: Json) -> Answer:
        """Return the next answer of the script, or the default one."""
        return self._script.popleft() if self._script else self.default(body)

    def violated(self, seen: Seen, complaint: str, status: int = 400) -> None:
        """Keep that a request broke the rules."""
        self.violations.append(
            Violation(status=status, complaint=complaint, path=seen.path, body=seen.body)
        )

    def reply(self, seen: Seen) -> Reply:
        """Return what is sent for a request. A fake of another API overrides it: it looks at key,
        path and body, and has the events of `take` in its own words.
        """
        path, body = seen.path, seen.body
        native = path.endswith(("/messages", COUNT))
        if (door := self._door(seen)) is not None:
            return door
        if not native and not path.endswith("/chat/completions"):
            return Reply(
                answer=Answer(status=404, body=b'{"error": {"message": "no such path"}}'), events=[]
            )
        if self.strict and (wrong := self._refused(native, seen)):
            self.violated(seen, wrong.message, wrong.status)
            return self._messages.refusal(wrong)
        if path.endswith(COUNT):
            return self._messages.count(body)
        if (
            native
            and body.get("max_tokens") == 0
            and not (self._script and self._script[0].status != 200)
        ):
            answer = Answer()
        else:
            answer = self.take(body)
        if native:
            return self._messages.reply(answer, seen.headers, body)
        if answer.headers.get("content-type") == "application/json":
            return Reply(answer=answer, events=[answer.body])
        return Reply(answer=answer, events=completions(answer, body))

    def _door(self, seen: Seen) -> Reply | None:
        """Whether the key is good, which models there are, and whether the one that is asked for is
        there.
        """
        shown = seen.headers.get("x-api-key") or seen.headers.get("authorization", "").removeprefix(
            "Bearer "
        )
        if self.key is not None and shown != self.key:
            told = failure(401, "authentication_error", code="invalid_api_key")
            return Reply(answer=told, events=[])
        if self.models is None:
            return None
        if seen.path.partition("?")[0].endswith("/models"):
            listed = json.dumps({"object": "list", "data": self.models}).encode()
            return Reply(
                answer=Answer(headers={"content-type": "application/json"} | self.listed_with),
                events=[listed],
            )
        asked = seen.body.get("model")
        if asked not in [model["id"] for model in self.models]:
            body = {
                "type": "error",
                "error": {"type": "not_found_error", "message": f"model: {asked}"},
            }
            return Reply(answer=Answer(status=404, body=json.dumps(body).encode()), events=[])
        return None

    def _refused(self, native: bool, seen: Seen) -> Complaint | None:
        if native:
            return self._messages.refuse(seen.path, seen.headers, seen.body, len(seen.raw))
        complaint = openai(seen.body) or self.rule(seen.body)
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
        while place == answer.endless_after:
            again = reply.events[place - 1]
            writer.write(f"{len(again):x}\r\n".encode() + again + b"\r\n")
            await writer.drain()
        if place == answer.silent_after:
            await writer.drain()
            await asyncio.Event().wait()
        if not place:
            reply.began()
        if answer.pace_s:
            await asyncio.sleep(answer.pace_s)
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
        print(api.url, flush=True)  # noqa: T201 - whoever started it reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
