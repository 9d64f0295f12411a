"""Cohere: a provider of models for Reverie, over version 2 of Cohere's chat API.

Obeys docs.cohere.com: reference/chat-stream, docs/streaming, docs/tool-use-streaming,
reference/list-models, reference/errors. A tool plan is the model's thinking in front of calls, and
goes back with them.
"""

import base64
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Literal
from urllib.parse import SplitResult

from pydantic import BaseModel

from reverie import Plugin
from reverie.providers import (
    EMPTY_USER_TEXT,
    HalfJoiner,
    Image,
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
    SetupChoice,
    StreamChunk,
    StreamEnd,
    StreamStart,
    StreamText,
    TextPart,
    ThinkingDelta,
    ToolCall,
    ToolResult,
    Usage,
    append_suffix,
    join_endpoint,
    parse_event,
    parse_tool_input,
    report_unread,
    sanitize_reason,
)

Json = dict[str, Any]


class CohereSettings(KeyedSettings):
    """A section of `llm.providers` with `kind: cohere`."""

    usual: ClassVar = ModelTraits(context_tokens=128_000)
    account_site: ClassVar = "dashboard.cohere.com"
    choices: ClassVar = (SetupChoice("cohere", "needs a key from dashboard.cohere.com"),)

    kind: Literal["cohere"]
    base_url: ProviderUrl = "https://api.cohere.com"
    """Any server with the chat API, with `/v2` or without."""

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        """`/compatibility` there is OpenAI's API."""
        is_own = not url.path.startswith("/compatibility")
        return url.hostname == "api.cohere.com" and is_own

    @property
    def root(self) -> str:
        """Address without a version."""
        return self.base_url.strip().rstrip("/").removesuffix("/v2")

    def traits(self, model: str) -> ModelTraits:
        return self.usual._replace(takes_images="vision" in model)

    def list_request(self) -> tuple[str, Mapping[str, str]]:
        url = join_endpoint(f"{self.root}/v1", "/models")
        return f"{url}?endpoint=chat&page_size=1000", self.headers

    def listed_models(self, answer: object) -> Sequence[object]:
        rows = answer.get("models") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            return ()
        return [{**row, "id": row.get("name")} for row in rows if isinstance(row, dict)]

    def make(self, options: ModelOptions, **_: object) -> Model:
        return CohereModel(options, self)


def build_request(request: ModelRequest, model: str) -> Json:
    """Build the body of a request."""
    messages: list[Json] = []
    if request.blocks:
        text = "\n\n".join([block.text for block in request.blocks])
        messages.append({"role": "system", "content": text})
    for said in append_suffix(request):
        messages += [_assistant(said)] if said.role == "assistant" else _user(said)
    if messages[-1:] == [] or messages[-1]["role"] in ("system", "assistant"):
        messages.append({"role": "user", "content": EMPTY_USER_TEXT})
    body: Json = {"model": model, "messages": messages, "stream": True}
    body["max_tokens"] = request.max_output_tokens
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": json.loads(tool.schema),
                },
            }
            for tool in request.tools
        ]
        if request.answer_only:
            body["tool_choice"] = "NONE"
    if request.thinks_less and "reasoning" in model:
        body["thinking"] = {"type": "disabled"}
    return body


def _user(said: ModelMessage) -> list[Json]:
    """Return the messages of the user's side: results of tools, then what is said."""
    results: list[Json] = []
    content: list[Json] = []
    for part in said.parts:
        if isinstance(part, ToolResult):
            results.append({"role": "tool", "tool_call_id": part.id, "content": part.text})
        elif isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
    return [*results, {"role": "user", "content": content}] if content else results


_PLAN = "cohere:"
"""In front of a tool plan that is kept: other clients write other things there."""


def _assistant(said: ModelMessage) -> Json:
    text = "".join([part.text for part in said.parts if isinstance(part, TextPart)])
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {
                "name": part.name,
                "arguments": json.dumps(parse_tool_input(part.arguments), ensure_ascii=False),
            },
        }
        for part in said.parts
        if isinstance(part, ToolCall)
    ]
    message: Json = {"role": "assistant"} | ({"content": text} if text or not calls else {})
    if calls and said.thinking.startswith(_PLAN):
        message["tool_plan"] = said.thinking.removeprefix(_PLAN)
    return message | ({"tool_calls": calls} if calls else {})


class _Function(BaseModel):
    name: StreamText = ""
    arguments: StreamText = ""


class _Call(BaseModel):
    id: StreamText = ""
    function: _Function = _Function()


class _Content(BaseModel):
    text: StreamText | None = None
    thinking: StreamText | None = None


class _Message(BaseModel):
    content: _Content | list[object] | None = None
    tool_plan: StreamText | None = None
    tool_calls: _Call | list[object] | None = None


class _Tokens(BaseModel):
    input_tokens: float = 0
    output_tokens: float = 0


class _Usage(BaseModel):
    tokens: _Tokens = _Tokens()


class _Delta(BaseModel):
    message: _Message = _Message()
    finish_reason: str | None = None
    error: StreamText | None = None
    usage: _Usage = _Usage()


class _Event(BaseModel):
    """One `data:` line."""

    type: str
    delta: _Delta = _Delta()


_STOP_REASONS: dict[str, Literal["end", "tools", "length"]] = {
    "COMPLETE": "end",
    "STOP_SEQUENCE": "end",
    "TOOL_CALL": "tools",
    "MAX_TOKENS": "length",
}
"""Others (ERROR, TIMEOUT) end an answer that is not whole."""


class _Answer:
    """State of one response while it streams."""

    def __init__(self) -> None:
        self.text, self.plan, self.calls = HalfJoiner(), "", list[_Call]()
        self.is_empty = True
        self.end = _Delta()
        """Of the last event. Without a finish reason: it has not come."""

    def add(self, event: _Event) -> StreamChunk | None:
        """Process one event. Return what is new in it."""
        told = event.delta.message
        if isinstance(told.tool_calls, _Call):
            self.is_empty = False
            if event.type == "tool-call-start":
                self.calls.append(told.tool_calls)
            elif self.calls:
                self.calls[-1].function.arguments += told.tool_calls.function.arguments
        content = told.content if isinstance(told.content, _Content) else _Content()
        self.plan += told.tool_plan or ""
        if event.type == "message-start":
            return StreamStart()
        if event.type == "message-end":
            self.end = event.delta
        if thought := content.thinking or told.tool_plan:
            return ThinkingDelta(text=thought)
        if content.text and (text := self.text.join(content.text)):
            self.is_empty = False
            return TextPart(text=text)
        return None


class CohereModel(RemoteModel):
    """One model. Fulfils `reverie.Model`; see its contract for each method."""

    family = "cohere"

    def __init__(self, options: ModelOptions, settings: CohereSettings) -> None:
        api = ModelHttpClient(
            url=join_endpoint(f"{settings.root}/v2", "/chat"),
            headers=settings.headers,
            secret=settings.secret,
            timeout_s=options["timeout_s"],
            proxy=settings.proxy,
        )
        super().__init__(api, **options)
        self._secret = settings.secret

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:  # there is no request that only fills a cache
            yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)
            return
        body, answer, unread = build_request(request, self._model), _Answer(), 0
        async with aclosing(
            self._api.stream_events(body, max_tokens=request.max_output_tokens)
        ) as events:
            async for event in events:
                read = parse_event(_Event, event.data)
                if read is None:
                    unread += 1
                elif (chunk := answer.add(read)) is not None:
                    yield chunk
        end = answer.end
        if (stop := _STOP_REASONS.get(end.finish_reason or "")) is None:
            why = sanitize_reason(end.error or end.finish_reason or "", self._secret)
            raise ModelBusy(f"{self._api.host} cut the answer off{f': {why}' if why else ''}")
        if rest := answer.text.join("", final=True):
            yield TextPart(text=rest)
        if unread:
            report_unread(unread, where=self.label, has_content=not answer.is_empty)
        calls = answer.calls if stop in ("tools", "length") else []
        for call in calls:
            written = call.function.arguments or "{}"
            yield ToolCall(id=call.id, name=call.function.name, arguments=written)
        tokens = end.usage.tokens
        yield StreamEnd(
            stop_reason=stop,
            usage=Usage(
                input_tokens=int(tokens.input_tokens), output_tokens=int(tokens.output_tokens)
            ),
            model=self._model,
            may_leak_calls=self._may_leak_calls,
            thinking=f"{_PLAN}{answer.plan}" if answer.plan and calls else "",
        )


class CoherePlugin(Plugin):
    """Brings the provider: a section of `llm.providers` has `kind: cohere`."""

    name = "cohere"
    summary = "asks Cohere"
    providers: ClassVar = {"cohere": CohereSettings}
