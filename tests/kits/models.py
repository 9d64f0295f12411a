"""Shared by the model tests: requests, and running a model against the fake server."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

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
)
from agent.models.openai import OpenAIModel
from gateway.core.tool_spec import ToolSpec
from tests.servers.model_api import ModelApi

M = TypeVar("M", bound=Model)
KEY = "sk-very-secret-0123456789"
BLOCKS = (
    SystemBlock(name="identity", text="You are Reverie.", ttl="long"),
    SystemBlock(name="skills", text="You can look things up.", ttl="long"),
    SystemBlock(name="binding", text="Keep it short here.", ttl="long"),
    SystemBlock(name="channel", text="This is #python.", ttl="short"),
)
TOOL = ToolSpec(
    name="look_up", description="Look up a word.", schema='{"properties":{},"type":"object"}'
)


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


def make(kind: str, url: str, timeout_s: float = 10.0) -> OpenAIModel | AnthropicModel:
    if kind == "openai":
        return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)
    return AnthropicModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)


async def ask(model: Model, asked: ModelRequest | None = None) -> list[StreamChunk]:
    return [
        chunk
        async for chunk in model.stream(asked or request())
        if not isinstance(chunk, StreamStart)
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
) -> AsyncIterator[tuple[ModelApi, M]]:
    """A fresh server, and a model pointed at it."""
    async with ModelApi(strict=strict) as api, aclosing(make_model(api.url)) as model:
        yield api, model
