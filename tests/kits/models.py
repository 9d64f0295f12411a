"""Shared by the model tests: requests, and running a model against the fake server."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from agent.models.anthropic import AnthropicModel
from agent.models.base import (
    Model,
    ModelMessage,
    ModelRequest,
    StreamChunk,
    StreamEnd,
    StreamStart,
    SystemBlock,
    TextPart,
    ThinkingDelta,
)
from agent.models.client import Candidate, ModelClient
from agent.models.gemini import GeminiModel
from agent.models.http import encode_body
from agent.models.minimax import MiniMaxModel
from agent.models.openai import OpenAIDialect, OpenAIModel, build_chat_request
from agent.models.settings import ProviderSettings
from agent.models.vertex import VertexModel
from gateway.core.clock import Clock, SystemClock
from gateway.core.tool_spec import ToolSpec
from gateway.plugins import settings_model
from reverie.testing.servers.gemini_api import GeminiApi
from reverie.testing.servers.minimax_api import MiniMaxApi
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.servers.vertex_api import VertexApi

M = TypeVar("M", bound=Model)
KEY = "sk-very-secret-0123456789"
BLOCKS = (
    SystemBlock(name="identity", text="You are Reverie."),
    SystemBlock(name="skills", text="You can look things up."),
    SystemBlock(name="binding", text="Keep it short here."),
    SystemBlock(name="channel", text="This is #python."),
)
TOOL = ToolSpec(
    name="look_up",
    description="Look up a word.",
    schema='{"properties":{},"type":"object"}',
    offer="described",
)


def parse_provider(written: Mapping[str, Any]) -> ProviderSettings:
    """A section of `llm.providers`. Raises ValidationError."""
    llm: Any = settings_model().model_fields["llm"].annotation
    found = llm.model_validate({"providers": {"x": dict(written)}, "models": {}})
    provider: ProviderSettings = found.providers["x"]
    return provider


def user(*texts: str) -> ModelMessage:
    return ModelMessage(role="user", parts=tuple(TextPart(text=text) for text in texts))


def assistant(text: str) -> ModelMessage:
    return ModelMessage(role="assistant", parts=(TextPart(text=text),))


def request(
    *said: ModelMessage, tools: tuple[ToolSpec, ...] = (), blocks: tuple[SystemBlock, ...] = BLOCKS
) -> ModelRequest:
    return ModelRequest(
        blocks=blocks,
        conversation=said or (user("hi"),),
        tools=tools,
        max_output_tokens=100,
        shared_key="reverie",
    )


def chat_body(
    asked: ModelRequest, *, model: str = "m", dialect: OpenAIDialect | None = None
) -> Any:
    """The body of a chat completion, as a server reads it."""
    body = build_chat_request(asked, model=model, dialect=dialect or OpenAIDialect())
    return json.loads(encode_body(body))


SERVERS: dict[str, type[ModelApi]] = {
    "anthropic": ModelApi,
    "openai": ModelApi,
    "minimax": MiniMaxApi,
    "vertex": VertexApi,
    "gemini": GeminiApi,
}
"""The fake server of each kind of remote provider."""


def make(
    kind: str, url: str, timeout_s: float = 10.0
) -> OpenAIModel | AnthropicModel | GeminiModel:
    if kind == "gemini":
        return GeminiModel(
            name="main",
            model="gemini-3.8-flash",
            base_url=url,
            api_key=KEY,
            timeout_s=timeout_s,
        )
    if kind == "minimax":
        return MiniMaxModel(
            name="main",
            model="MiniMax-M3",
            base_url=url,
            api_key=KEY,
            timeout_s=timeout_s,
            takes_images=True,
        )
    if kind == "vertex":
        return VertexModel(
            name="main",
            model="m-1",
            project="a-project",
            region="europe-west1",
            base_url=url,
            metadata_url=url,
            clock=SystemClock(),
            timeout_s=timeout_s,
        )
    if kind == "openai":
        return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)
    return AnthropicModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)


def client_of(
    models: Sequence[Model], *, clock: Clock, attempts: int = 4, first_token_s: float = math.inf
) -> ModelClient:
    """A client of models without prompt caches."""
    candidates = [Candidate(model, first_token_s=first_token_s) for model in models]
    return ModelClient(candidates, clock=clock, random=lambda: 0.0, attempts=attempts)


async def ask(model: Model, asked: ModelRequest | None = None) -> list[StreamChunk]:
    return [
        chunk
        async for chunk in model.stream(asked or request())
        if not isinstance(chunk, StreamStart) and chunk != ThinkingDelta(text="")
    ]


def text(chunks: list[StreamChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextPart))


def end(chunks: list[StreamChunk]) -> StreamEnd:
    assert isinstance(chunks[-1], StreamEnd)
    assert not any(isinstance(chunk, StreamEnd) for chunk in chunks[:-1])
    return chunks[-1]


@asynccontextmanager
async def against(
    make_model: Callable[[str], M], *, strict: bool = True
) -> AsyncIterator[tuple[GeminiApi, M]]:
    """A fresh server, and a model pointed at it."""
    async with GeminiApi(strict=strict) as api, aclosing(make_model(api.url)) as model:
        yield api, model
