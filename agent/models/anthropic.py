"""Anthropic's Messages API, natively and streamed.

Obeys platform.claude.com/docs/en/api/messages and build-with-claude/{streaming,extended-thinking}.
Sampling parameters are never sent: newer models refuse them.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import ValidationError

from agent.models.anthropic_answer import Answer, EventIn
from agent.models.anthropic_wire import Json, translate
from agent.models.base import Busy, Chunk, Request, Said, Text, ToolCall
from agent.models.failures import stream_failure
from agent.models.http import DEFAULT_TIMEOUT_S, Api, endpoint

_VERSION = "2023-06-01"
_KNOWN = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
"""Other events (`ping`, and what is yet to be invented) are not even read."""
_REMEMBERED = 256
"""Answers with thinking kept for their tool loops: a loop has tens at most, a gateway a few at a time."""


class AnthropicModel:
    """One Claude model.

    Thinking is left at the model's default and never yielded. Where an answer thought before it called
    tools, the API wants that thinking back verbatim in the rest of the loop, and bound to the exact
    prefix that it came after. `Said` has no place for it, so the instance remembers such answers by their
    first call's id and sends them as they came, as long as everything before them is unchanged and the
    caller says the same words and calls. Otherwise (a fold, a restart, the 257th such answer) the answer is sent
    without thinking, which the API allows: whatever came later is then bound to a changed prefix
    and goes without, too. Tool calls are yielded whole, right before `End`, and only if the model
    stopped for them: what a length limit cut is not a call.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        api_key: str = "",
        base_url: str = "https://api.anthropic.com",
        context_tokens: int = 200_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        sees: bool = True,
    ) -> None:
        """`api_key` empty or `none`: none is sent. Raises ValueError for a bad URL or key."""
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": secret} if secret else {})
        url = endpoint(base_url, "/messages")
        self._api = Api(url=url, headers=headers, secret=secret, timeout_s=timeout_s)
        self._secret = secret
        self._model = model
        self._thought: OrderedDict[str, tuple[str, tuple[Text | ToolCall, ...], list[Json]]] = OrderedDict()
        self.name = name
        self.label = f"{model} at {self._api.where}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = "anthropic"
        self.takes_tools = True
        self.sees = sees

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        body, digest = translate(request, model=self._model, recall=self._recall)
        answer = Answer(model=self._model)
        words: list[str] = []
        async with aclosing(self._api.events(body)) as events:
            async for event in events:
                if event.name in _KNOWN and (text := answer.take(self._parse(event.data))):
                    words.append(text)
                    yield Text(text=text)
        if not answer.complete:
            raise Busy(f"{self._api.where} cut the answer off")
        end = answer.end()
        if end.stop == "tools":
            self._remember(digest, "".join(words), answer)
            for call in answer.calls():
                yield call
        yield end

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    def _parse(self, data: str) -> EventIn:
        try:
            event = EventIn.model_validate_json(data)
        except ValidationError:
            raise Busy(f"{self._api.where} sent a garbled stream") from None
        if event.type == "error":
            raise stream_failure(data, where=self._api.where, secret=self._secret)
        return event

    def _remember(self, digest: str, words: str, answer: Answer) -> None:
        raw = answer.raw()
        if not any(block.get("type") in {"thinking", "redacted_thinking"} for block in raw):
            return
        calls = answer.calls()
        self._thought[calls[0].id] = (digest, (Text(text=words.strip()), *calls), raw)
        while len(self._thought) > _REMEMBERED:
            self._thought.popitem(last=False)

    def _recall(self, said: Said, digest: str) -> list[Json] | None:
        calls = tuple(part for part in said.parts if isinstance(part, ToolCall))
        remembered = self._thought.get(calls[0].id) if calls else None
        if remembered is None:
            return None
        words = "".join(part.text for part in said.parts if isinstance(part, Text)).strip()
        came_after, parts, raw = remembered
        return raw if came_after == digest and parts == (Text(text=words), *calls) else None
