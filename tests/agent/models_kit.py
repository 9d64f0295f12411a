"""Shared by the model tests: requests, and running a model against the fake server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent.models.anthropic import AnthropicModel
from agent.models.base import Began, Block, Chunk, End, Model, Request, Said, Text, ToolSpec
from agent.models.openai import OpenAIModel
from tests.servers.model_api import ModelApi

M = TypeVar("M", bound=Model)
KEY = "sk-very-secret-0123456789"
BLOCKS = (
    Block(name="identity", text="You are Reverie.", ttl="long"),
    Block(name="skills", text="You can look things up.", ttl="long"),
    Block(name="binding", text="Keep it short here.", ttl="long"),
    Block(name="channel", text="This is #python.", ttl="short"),
)
TOOL = ToolSpec(name="look_up", description="Look up a word.", schema='{"properties":{},"type":"object"}')


def user(*texts: str) -> Said:
    return Said(role="user", parts=tuple(Text(text=text) for text in texts))


def assistant(text: str) -> Said:
    return Said(role="assistant", parts=(Text(text=text),))


def request(*said: Said, tools: tuple[ToolSpec, ...] = (), blocks: tuple[Block, ...] = BLOCKS) -> Request:
    return Request(
        blocks=blocks, conversation=said or (user("hi"),), tools=tools, max_output_tokens=100, shared_key="reverie"
    )


def make(kind: str, url: str, timeout_s: float = 10.0) -> OpenAIModel | AnthropicModel:
    if kind == "openai":
        return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)
    return AnthropicModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=timeout_s)


async def ask(model: Model, asked: Request | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(asked or request()) if not isinstance(chunk, Began)]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


def end(chunks: list[Chunk]) -> End:
    assert isinstance(chunks[-1], End)
    assert not any(isinstance(chunk, End) for chunk in chunks[:-1])
    return chunks[-1]


def against(
    make_model: Callable[[str], M], story: Callable[[ModelApi, M], Awaitable[None]], *, strict: bool = True
) -> None:
    """Run `story` with a fresh server and a model pointed at it."""

    async def run() -> None:
        async with ModelApi(strict=strict) as api, asyncio.timeout(120):
            model = make_model(api.url)
            try:
                await story(api, model)
            finally:
                await model.aclose()

    asyncio.run(run())
