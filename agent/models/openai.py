"""OpenAI-compatible streaming chat completions: OpenAI, llama.cpp, vLLM, Ollama and their kin.

Obeys platform.openai.com/docs/api-reference/chat (and chat-streaming) and guides/images-vision; llama.cpp
tools/server/README.md; for the oddities of others see the comments where they are met.
"""

import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from pydantic import ValidationError

from agent.models.anthropic_wire import tool_input
from agent.models.base import Busy, Chunk, Image, Request, Said, Text, ToolCall, ToolResult, with_now
from agent.models.failures import stream_failure
from agent.models.http import DEFAULT_TIMEOUT_S, Api, endpoint
from agent.models.openai_answer import Answer, ChunkIn

_OPENAI_HOSTS = re.compile(r"([a-z0-9-]+\.)?api\.openai\.com(:443)?")
"""OpenAI itself, also by region (eu.api.openai.com): takes fields that strict compatible servers refuse, and
its reasoning models refuse `max_tokens`."""


class OpenAIModel:
    """One model behind `/v1/chat/completions`.

    Text is what the model says, never what it thinks (`reasoning_content`, `reasoning`). Tool calls are
    yielded whole, right before `End`, and only if the model stopped for them: what a length limit cut is
    not a call. A stream without a finish reason was cut, and raises `Busy`.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        base_url: str,
        api_key: str = "",
        context_tokens: int = 128_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        family: str = "openai",
        sampling: Mapping[str, float] | None = None,
        reuse: bool = True,
        sees: bool = False,
    ) -> None:
        """`api_key` empty or `none`: none is sent. `sampling` goes into every request. Raises ValueError.

        `reuse` False: for llama.cpp, which may close a connection just when it is used again (measured).
        """
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        url = endpoint(base_url, "/chat/completions")
        self._api = Api(url=url, headers=headers, secret=secret, timeout_s=timeout_s, reuse=reuse)
        self._strict_openai = _OPENAI_HOSTS.fullmatch(self._api.where) is not None
        self._secret = secret
        self._model = model
        self._sampling = dict(sampling or {})
        self.name = name
        self.label = f"{model} at {self._api.where}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = family
        self.takes_tools = True
        self.sees = sees

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        answer = Answer(earlier_calls=_count_calls(request), model=self._model)
        body = translate(request, model=self._model, strict_openai=self._strict_openai)
        done = False
        async with aclosing(self._api.events(body | self._sampling)) as events:
            async for event in events:
                # Read on after the end, so that the connection can be used again.
                done = done or event.data.strip() == "[DONE]"
                if not done and (text := answer.take(self._parse(event.data))):
                    yield Text(text=text)
        if answer.stop is None:
            raise Busy(f"{self._api.where} cut the answer off")
        end = answer.end()
        if end.stop == "tools":
            for call in answer.calls():
                yield call
        yield end

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    def _parse(self, data: str) -> "ChunkIn":
        try:
            chunk = ChunkIn.model_validate_json(data)
        except ValidationError:
            raise Busy(f"{self._api.where} sent a garbled stream") from None
        if chunk.error is not None:
            raise stream_failure(data, where=self._api.where, secret=self._secret)
        return chunk


def translate(request: Request, *, model: str, strict_openai: bool) -> dict[str, object]:
    """Lay out `request` as a chat completion. The same request gives the same bytes.

    `content` is always there, and a string but where there are images; `tool_calls` is left out when empty:
    chat templates break on both (llama.cpp#13516, vllm#13978). Blocks become one system message at the
    beginning, the only place where every template takes one.
    """
    messages: list[dict[str, object]] = []
    if request.blocks:
        messages.append({"role": "system", "content": "\n\n".join(b.text for b in request.blocks)})
    for said in with_now(request):
        messages.extend(_messages(said))
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": json.loads(t.schema)},
            }
            for t in request.tools
        ]
    if strict_openai:
        body["max_completion_tokens"] = request.max_output_tokens
        body["prompt_cache_key"] = request.shared_key
    else:
        body["max_tokens"] = request.max_output_tokens
    return body


def _messages(said: Said) -> list[dict[str, object]]:
    texts = [part.text for part in said.parts if isinstance(part, Text)]
    if said.role == "assistant":
        calls = [
            {
                "id": part.id,
                "type": "function",
                "function": {"name": part.name, "arguments": _arguments(part.arguments)},
            }
            for part in said.parts
            if isinstance(part, ToolCall)
        ]
        message: dict[str, object] = {"role": "assistant", "content": "".join(texts)}
        return [message | {"tool_calls": calls}] if calls else [message]
    messages: list[dict[str, object]] = [
        {"role": "tool", "tool_call_id": part.id, "content": part.text}
        for part in said.parts
        if isinstance(part, ToolResult)
    ]
    if any(isinstance(part, Image) for part in said.parts):
        pieces = [_shown(part) for part in said.parts if isinstance(part, Text | Image)]
        messages.append({"role": "user", "content": pieces})
    elif texts:
        messages.append({"role": "user", "content": "\n\n".join(texts)})
    return messages


def _shown(part: Text | Image) -> dict[str, object]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}


def _arguments(written: str) -> str:
    """Echo a call's arguments as the model wrote them, if they are an object.

    vLLM (entrypoints/chat_utils.py parses them) and Ollama (`invalid tool call arguments`) answer 400 to others.
    """
    read = tool_input(written)
    return json.dumps(read, ensure_ascii=False) if read == {"malformed_arguments": written} else written or "{}"


def _count_calls(request: Request) -> int:
    return sum(isinstance(part, ToolCall) for said in request.conversation for part in said.parts)
