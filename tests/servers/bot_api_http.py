"""Just enough HTTP/1.1 for the fake Bot API: requests in, parameters out. Every byte of an answer is ours."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]

_TEXTS = (
    "text caption parse_mode url secret_token callback_query_id file_id action name language_code username emoji "
    "title description business_connection_id quote quote_parse_mode inline_message_id message_effect_id"
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
        head = begun + await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:] if x)}
        body = await _body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    target = urlsplit(lines[0].split(" ")[1])
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
        unquote(target.path), headers, {name: _value(name, text) for name, text in fields} | parameters, uploads
    )


def answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole response."""
    head = f"HTTP/1.1 {status} X\r\nServer: fake\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def post(url: str, headers: dict[str, str], body: bytes) -> int:
    """POST over a connection of its own; the status. Raises OSError if there is no answer."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        lines = [f"POST {target.path or '/'} HTTP/1.1", f"Host: {target.netloc}", "Connection: close"]
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
