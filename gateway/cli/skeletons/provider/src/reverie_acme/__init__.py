"""Acme: a provider of models for Reverie.

The API is a toy, so that everything works before you change anything. A request is `{"model": ...,
"messages": [...], "tools": [...], "limit": ...}`, posted to `/v1/answer`. The answer is a stream of
server-sent events: `{"text": ...}`, `{"call": {"id": ..., "name": ..., "arguments": ...}}`, and
last `{"end": "done" | "calls" | "limit", "prompt": ..., "output": ...}` with numbers of tokens.
Replace `build_request`, `_Event` and what `AcmeModel.stream` makes of it; the tests say what has to
hold.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from reverie import Plugin
from reverie.providers import (
    EMPTY_USER_TEXT,
    KeyedSettings,
    Model,
    ModelBusy,
    ModelHttpClient,
    ModelMessage,
    ModelOptions,
    ModelRequest,
    ModelTraits,
    ProviderUrl,
    RemoteModel,
    StreamChunk,
    StreamEnd,
    StreamText,
    TextPart,
    ToolCall,
    ToolResult,
    Usage,
    append_suffix,
    join_endpoint,
    parse_event,
    report_unread,
)

Json = dict[str, Any]


class AcmeSettings(KeyedSettings):
    """A section of `llm.providers` with `kind: acme`."""

    usual: ClassVar = ModelTraits(context_tokens=128_000, output_tokens=8_192)

    kind: Literal["acme"]
    base_url: ProviderUrl = "https://api.acme.example"

    def make(self, options: ModelOptions, **_: object) -> Model:
        return AcmeModel(options, self)


def build_request(request: ModelRequest, model: str) -> Json:
    """Build the body of a request: the same request gives the same bytes, as caches need it."""
    messages: list[Json] = []
    if request.blocks:
        text = "\n\n".join([block.text for block in request.blocks])
        messages.append({"role": "system", "text": text})
    messages += [_encode(said) for said in append_suffix(request)]
    if messages[-1:] == [] or messages[-1]["role"] != "user":
        messages.append({"role": "user", "text": EMPTY_USER_TEXT})
    tools = [
        {"name": one.name, "about": one.description, "parameters": json.loads(one.schema)}
        for one in request.tools
    ]
    limit = request.max_output_tokens
    body: Json = {"model": model, "messages": messages, "tools": tools, "limit": limit}
    return body | ({"calls": False} if request.answer_only else {})


def _encode(said: ModelMessage) -> Json:
    return {
        "role": said.role,
        "text": "\n".join(part.text for part in said.parts if isinstance(part, TextPart)),
        "calls": [
            {"id": part.id, "name": part.name, "arguments": part.arguments}
            for part in said.parts
            if isinstance(part, ToolCall)
        ],
        "results": [
            {"id": part.id, "text": part.text}
            for part in said.parts
            if isinstance(part, ToolResult)
        ],
    }


class _Call(BaseModel):
    id: StreamText
    name: StreamText
    arguments: StreamText


class _Event(BaseModel):
    text: StreamText = ""
    call: _Call | None = None
    end: Literal["done", "calls", "limit"] | None = None
    prompt: int = 0
    output: int = 0


_STOP_REASONS: dict[str, Literal["end", "tools", "length"]] = {
    "done": "end",
    "calls": "tools",
    "limit": "length",
}


class AcmeModel(RemoteModel):
    """One model. Fulfils `reverie.Model`; see its contract for each method."""

    family = "acme"

    def __init__(self, options: ModelOptions, settings: AcmeSettings) -> None:
        # It raises a ModelError for each failure of the way and each status but 200.
        api = ModelHttpClient(
            url=join_endpoint(settings.base_url, "/answer"),
            headers=settings.headers,
            secret=settings.secret,
            timeout_s=options["timeout_s"],
            proxy=settings.proxy,
        )
        super().__init__(api, **options)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:  # there is no request that only fills a cache
            yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)
            return
        body, calls, end, unread = build_request(request, self._model), list[_Call](), _Event(), 0
        async with aclosing(
            self._api.stream_events(body, max_tokens=request.max_output_tokens)
        ) as events:
            async for event in events:
                read = parse_event(_Event, event.data)
                if read is None:
                    unread += 1
                    continue
                end = read
                if read.call is not None:
                    calls.append(read.call)
                if read.text:
                    yield TextPart(text=read.text)
        if end.end is None:
            raise ModelBusy(f"{self._api.host} cut the answer off")
        if unread:
            report_unread(unread, where=self.label, has_content=end.output > 0)
        for call in calls:
            yield ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        yield StreamEnd(
            stop_reason=_STOP_REASONS[end.end],
            usage=Usage(input_tokens=end.prompt, output_tokens=end.output),
            model=self._model,
            may_leak_calls=self._may_leak_calls,
        )


class AcmePlugin(Plugin):
    """Brings the provider: a section of `llm.providers` has `kind: acme`."""

    name = "acme"
    summary = "asks Acme"
    providers: ClassVar = {"acme": AcmeSettings}
