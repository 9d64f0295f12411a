"""HTTP of the fake Bot API, and what may go wrong on it. Every byte of an answer is ours."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from reverie.testing.servers.ports import read_head

Json = dict[str, Any]

_TEXTS = (
    "text caption parse_mode url secret_token callback_query_id file_id action name language_code "
    "username emoji title description business_connection_id quote quote_parse_mode "
    "inline_message_id message_effect_id"
)
TEXTS = frozenset(_TEXTS.split())
"""Parameters that are text even where they look like JSON."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came with a request."""

    name: str
    content: bytes
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read to its last byte."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    parameters: Json
    """From query and body, decoded: what a form carries as JSON text is what the JSON says."""
    uploads: dict[str, Upload] = field(default_factory=dict)


async def read_request(reader: asyncio.StreamReader, begun: bytes = b"") -> Request | None:
    """The next request, whose first bytes are `begun`; None if the client closed or broke off."""
    try:
        _, where, headers, _ = await read_head(reader, begun)
        body = await _body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    target = urlsplit(where)
    fields: list[tuple[str, str]] = parse_qsl(target.query, keep_blank_values=True)
    uploads: dict[str, Upload] = {}
    kind = headers.get("content-type", "")
    parameters: Json = {}
    if kind.startswith("application/json") and body:
        parameters = json.loads(body)
    elif kind.startswith("multipart/form-data"):
        fields += _multipart(kind, body, uploads)
    else:
        fields += parse_qsl(body.decode(), keep_blank_values=True)
    return Request(
        unquote(target.path),
        headers,
        {name: _value(name, text) for name, text in fields} | parameters,
        uploads,
    )


def answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole response."""
    head = (
        f"HTTP/1.1 {status} X\r\nServer: fake\r\nContent-Type: {kind}\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def post(url: str, headers: dict[str, str], body: bytes) -> int:
    """POST over a connection of its own; the status. Raises OSError if there is no answer."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        lines = [
            f"POST {target.path or '/'} HTTP/1.1",
            f"Host: {target.netloc}",
            "Connection: close",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        status = re.match(rb"HTTP/1\.\d (\d{3})", await reader.readline())
        if status is None:
            raise ConnectionError("no answer")
        await reader.read()
        return int(status[1])
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _value(name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _multipart(kind: str, body: bytes, uploads: dict[str, Upload]) -> list[tuple[str, str]]:
    whole = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    fields: list[tuple[str, str]] = []
    for part in whole.walk():
        if part.is_multipart():
            continue
        name, file = str(part.get_param("name", header="content-disposition")), part.get_filename()
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        if file is None:
            fields.append((name, content.decode()))
        else:
            uploads[name] = Upload(file, content, part.get_content_type())
    return fields


BAD_GATEWAY = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"
)


@dataclass(slots=True)
class Call:
    """One request of the bot."""

    method: str
    parameters: Json
    at_s: float = field(default_factory=time.monotonic)
    """When its last byte was read: comparable across processes on one Linux machine."""
    processed: bool = False
    """What was asked for has happened."""
    answer: Json | None = None
    """As it went out; None: no proper answer was given (yet)."""

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.parameters.get(name, default)


Where = Callable[[Call], bool]


@dataclass(slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, for the calls that it meets."""

    does: Literal["answer", "drop", "stall", "slow", "hang_up"]
    method: str
    times: int | None
    where: Where | None = None
    after: bool = False
    """The call is processed first."""
    wire: bytes = b""
    """`answer`: instead of any; `drop`: goes out before the connection is reset."""
    chunk_bytes: int = 0
    every_s: float = 0.0
    met: int = 0

    def meets(self, call: Call) -> bool:
        return (
            self.times != 0
            and self.method in (call.method, "*")
            and (self.where is None or self.where(call))
        )


class Faults:
    """Added at any time; the oldest that meets a call happens to it. `times=None`: until
    `clear`.
    """

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        self.released = asyncio.Event()

    def fail(
        self,
        method: str,
        code: int,
        description: str | None = None,
        *,
        retry_after: float | None = None,
        times: int | None = 1,
        after: bool = False,
        where: Where | None = None,
    ) -> Fault:
        """Answer with an error in the API's own words; `after` processing it all the same."""
        words = {
            429: f"Too Many Requests: retry after {retry_after}",
            401: "Unauthorized",
            502: "Bad Gateway",
        }
        body: Json = {
            "ok": False,
            "error_code": code,
            "description": description or words.get(code, "Internal Error"),
        }
        if retry_after is not None:
            body["parameters"] = {"retry_after": retry_after}
        wire = answer(code, json.dumps(body).encode())
        return self._add(
            Fault(does="answer", method=method, times=times, where=where, after=after, wire=wire)
        )

    def say(
        self,
        method: str,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "application/json",
        times: int | None = 1,
        after: bool = False,
        where: Where | None = None,
    ) -> Fault:
        """Answer with any body: broken JSON, HTML (`BAD_GATEWAY`), nothing."""
        wire = answer(status, body, kind)
        return self._add(
            Fault(does="answer", method=method, times=times, where=where, after=after, wire=wire)
        )

    def drop(
        self,
        method: str,
        *,
        after: bool = False,
        begun: bytes = b"",
        times: int | None = 1,
        where: Where | None = None,
    ) -> Fault:
        """Reset the connection without an answer, or with the first bytes of one (`begun`)."""
        return self._add(
            Fault(does="drop", method=method, times=times, where=where, after=after, wire=begun)
        )

    def stall(
        self, method: str, *, after: bool = False, times: int | None = 1, where: Where | None = None
    ) -> Fault:
        """Say nothing until `release`, then answer; the connection stays open."""
        self.released.clear()
        return self._add(Fault(does="stall", method=method, times=times, where=where, after=after))

    def release(self) -> None:
        """Let what is stalled go on."""
        self.released.set()

    def slow(
        self,
        method: str,
        *,
        chunk_bytes: int = 1,
        every_s: float = 0.0,
        times: int | None = 1,
        where: Where | None = None,
    ) -> Fault:
        """Send a proper answer in segments of `chunk_bytes`, `every_s` apart."""
        fault = Fault(does="slow", method=method, times=times, where=where, after=True)
        fault.chunk_bytes, fault.every_s = chunk_bytes, every_s
        return self._add(fault)

    def hang_up(self, method: str, *, times: int | None = 1, where: Where | None = None) -> Fault:
        """Answer properly, then close the kept-alive connection without having said so."""
        return self._add(Fault(does="hang_up", method=method, times=times, where=where, after=True))

    def clear(self) -> None:
        """Nothing goes wrong any more, and what is stalled goes on."""
        self.rules.clear()
        self.release()

    def of(self, call: Call) -> Fault | None:
        """What happens to this call; counts as one time."""
        fault = next((rule for rule in self.rules if rule.meets(call)), None)
        if fault is not None:
            fault.met += 1
            if fault.times is not None:
                fault.times -= 1
        return fault

    def _add(self, fault: Fault) -> Fault:
        self.rules.append(fault)
        return fault
