"""The API as it is asked over HTTP: finds the row, reads what is asked, writes the answer."""

import json
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.events import ConversationId
from gateway.ops.api import asks
from gateway.ops.api.house import House
from gateway.ops.api.openapi import spec
from gateway.ops.api.reading import Desk
from gateway.ops.api.table import EVENTS_PATH, SPEC_PATH, TABLE, Row
from gateway.ops.api.telling import Telling
from gateway.ops.api.written import entitle, untitled, written
from gateway.ops.http import JSON, Flow, Head, Page, Refused, problem
from gateway.ops.stream import Stream
from gateway.store import StoreError

_ROWS: dict[tuple[str, str], Row] = {(row.method, row.path): row for row in TABLE}
_AFTER: TypeAdapter[asks.After] = TypeAdapter(asks.After)
METHODS = {
    EVENTS_PATH: "GET, HEAD",
    SPEC_PATH: "GET, HEAD",
    **{row.path: "POST" if row.method == "POST" else "GET, HEAD" for row in TABLE},
}
"""By path, what may be asked of it."""


class Door:
    """One for each server. Close it."""

    def __init__(self, house: House) -> None:
        self._services = house
        self._backend = Desk(house)

    async def respond(self, head: Head, body: bytes, stream: Stream) -> Page | Flow:
        """The answer to a request of whoever bears the token, for a path and a method that are there."""
        try:
            if head.path == EVENTS_PATH:
                after = _after(head)
                return Flow(content_type="text/event-stream", chunks=lambda: stream.subscribe(after))
            if head.path == SPEC_PATH:
                return Page(body=json.dumps(spec(self._services.version)), content_type=JSON)
            row = _ROWS["GET" if head.method == "HEAD" else head.method, head.path]
            answer = await row.handler(self._backend, _asked(row, head, body))
            told, titles = answer.model_dump(mode="json"), self._services.titles
            await titles.load([ConversationId(named) for _, named in untitled(told)])
            entitle(told, titles.title)
            return Page(body=written(told, self._services.redact, chars=row.max_text_chars), content_type=JSON)
        except Refused as refused:
            return refused.response
        except StoreError as error:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"the store cannot be read: {error}")

    def create_encoder(self) -> Telling:
        """What makes events of what happens, from now on."""
        return Telling(self._backend)

    async def close(self) -> None:
        """Let go of the store."""
        await self._backend.close()


def _asked(row: Row, head: Head, body: bytes) -> Any:  # noqa: ANN401 - each row takes something else
    """What is asked. Raises Refused."""
    try:
        if row.method == "GET":
            return row.input_type.validate_python(dict(head.query))
        return row.input_type.validate_json(body)
    except ValidationError as error:
        raise Refused(problem(HTTPStatus.BAD_REQUEST, _wrong(error))) from None


def _after(head: Head) -> int | None:
    said = dict(head.query)
    last = head.headers.get("last-event-id", "")
    if last and "after" not in said:
        said["after"] = last
    try:
        return _AFTER.validate_python(said).after
    except ValidationError as error:
        raise Refused(problem(HTTPStatus.BAD_REQUEST, _wrong(error))) from None


def _wrong(error: ValidationError) -> str:
    """The first mistake in words, without what was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where or 'the body'}: {first['msg']}"
