"""Anthropic's Messages API, natively and streamed.

Obeys platform.claude.com/docs/en/api/messages and build-with-claude/{streaming,extended-thinking}.
Sampling parameters are never sent: newer models refuse them.
"""

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pydantic import ValidationError

from agent.models.anthropic_stream import AnthropicEvent, AnthropicResponse
from agent.models.anthropic_wire import (
    CONTEXT_EDITING_BETA,
    AnthropicRequest,
    Effort,
    ThinkingAnswer,
    ThinkingMode,
    ThinkingStore,
    build_anthropic_request,
    build_options,
    find_capabilities,
    find_context_editing,
    render_context_editing,
)
from agent.models.base import (
    ModelBusy,
    ModelRequest,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamStart,
    TextPart,
    ThinkingDelta,
)
from agent.models.http import DEFAULT_TIMEOUT_S, NO_HEADERS, ModelHttpClient, error_from_stream, join_endpoint

_VERSION = "2023-06-01"
_CONTEXT_MANAGEMENT = "context_management"
_KNOWN_EVENTS = frozenset(
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
_NO_SYSTEM = re.compile(
    r"role .?system.? is not supported|unexpected role .?system|role: input should be", re.IGNORECASE
)
"""The API's own words, its older ones, and those of servers that check requests by a schema."""
_THINKING_REFUSED = re.compile(r"`(redacted_)?thinking`|\.content\.\d+: Input tag .* expected tags")
"""How the API says (with 400) that thinking which was sent back is not what it was, or not where it was; or that a
block which came beside it is not one that it takes back."""

_NO_CONTEXT_EDITING = re.compile(r"context[_-]management")
"""It is the name of the field, and part of the header's."""

logger = logging.getLogger(__name__)


class AnthropicModel:
    """One Claude model.

    Marks come from `ModelRequest.marks` alone. What holds for one request only goes into a system message where the
    model takes such, else to the end of the user's words, in either case behind the marks.

    Thinking is never yielded. Where an answer thought before it called tools, the API wants that thinking back
    verbatim in the rest of the loop, and bound to the exact prefix that it came after. `Said` has no place for it, so
    the instance remembers such answers by their first call's id and sends them as they came, as long as everything
    before them is unchanged and the caller says the same words and calls; what was told right before one for its
    request only is part of that, and is then told there again. Otherwise (a fold, a restart, the 257th such answer)
    the answer is sent without thinking, which the API allows: whatever came later is then bound to a changed prefix
    and goes without, too. If the API finds fault with what is sent back, the request is made once more without, and
    the loop goes on so. Tool calls are yielded whole, right before `End`, and only if the model stopped for them:
    what a length limit cut is not a call.
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
        takes_images: bool = True,
        effort: Effort | None = None,
        thinking: ThinkingMode = "default",
        leaks: bool = False,
        clear_keeping: int | None = None,
    ) -> None:
        """`api_key` empty or `none`: none is sent. `effort` None: the model's default. `leaks`: as `End.leaks`.

        `clear_keeping`: so many of the newest tool results stay where the API leaves old ones out of long prompts by
        itself, which it is asked to if the model is known to have that. None: it is not asked.

        Raises ValueError for a bad URL or key, and for what the model is known to refuse.
        """
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": secret} if secret else {})
        url = join_endpoint(base_url, "/messages")
        self._api = ModelHttpClient(url=url, headers=headers, secret=secret, timeout_s=timeout_s)
        self._secret = secret
        self._model = model
        self._options = build_options(model, effort, thinking)
        self._takes_system_messages = find_capabilities(model).takes_system_messages
        self._takes_breakpoints = True
        self._leaks = leaks
        keep = clear_keeping
        self._context_editing = (
            None if keep is None else find_context_editing(model, context_tokens, max_output_tokens, keep)
        )
        self._thinking_store = ThinkingStore()
        self.name = name
        self.label = f"{model} at {self._api.host}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = "anthropic"
        self.takes_tools = True
        self.takes_images = takes_images

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        while True:
            asked = (
                {}
                if self._context_editing is None
                else {_CONTEXT_MANAGEMENT: render_context_editing(self._context_editing, request.conversation)}
            )
            wire = build_anthropic_request(
                request if self._takes_breakpoints else replace(request, breakpoints=()),
                model=self._model,
                recall=self._thinking_store.recall,
                options=self._options | asked,
                systems=self._takes_system_messages,
            )
            answer = AnthropicResponse(model=self._model)
            begun = False
            try:
                async with aclosing(self._stream_text(wire, answer)) as texts:
                    async for chunk in texts:
                        begun = begun or isinstance(chunk, TextPart)
                        yield chunk
                break
            except RequestRefused as error:
                if begun or not self._adapt_to_refusal(wire, f"{error.reason} {error.provider_message}"):
                    raise
        for note in answer.notes:
            logger.info("%s %s", self.label, note)
        if answer.is_window_full:
            yield StreamStart(usage=answer.usage)
            raise PromptTooLong(f"{self._api.host} filled its window before the answer was whole")
        end = replace(answer.build_end(), ephemeral_from=wire.ephemeral_from, may_leak_calls=self._leaks)
        if end.stop_reason == "tools":
            self._remember_thinking(request, wire, answer)
            for call in answer.tool_calls():
                yield call
        yield end

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _stream_text(
        self, wire: AnthropicRequest, answer: AnthropicResponse
    ) -> AsyncGenerator[StreamStart | ThinkingDelta | TextPart]:
        """Ask, fill `answer` and yield its text meanwhile."""
        more = {"anthropic-beta": CONTEXT_EDITING_BETA} if _CONTEXT_MANAGEMENT in wire.body else NO_HEADERS
        if "stream" not in wire.body:
            try:
                answer.add_whole_response(await self._api.post(wire.body, more))
            except ValueError:
                raise ModelBusy(f"{self._api.host} sent a garbled answer") from None
            return
        try:
            async with aclosing(self._api.stream_events(wire.body, more)) as events:
                async for event in events:
                    if event.name in _KNOWN_EVENTS and (text := answer.add_event(self._parse_event(event.data))):
                        yield TextPart(text=text)
                    if answer.thinking:
                        yield ThinkingDelta(text=answer.thinking)
                    if event.name == "message_start":
                        yield StreamStart(usage=answer.usage)
        except ModelBusy:
            if not answer.is_complete:  # else only the connection's end was missing
                raise
        if not answer.is_complete:
            raise ModelBusy(f"{self._api.host} cut the answer off")

    def _parse_event(self, data: str) -> AnthropicEvent:
        try:
            event = AnthropicEvent.model_validate_json(data)
        except ValidationError:
            raise ModelBusy(f"{self._api.host} sent a garbled stream") from None
        if event.type == "error":
            raise error_from_stream(data, where=self._api.host, secret=self._secret)
        return event

    def _adapt_to_refusal(self, wire: AnthropicRequest, reason: str) -> bool:
        """Whether the request can be written in another way that this refusal does not concern."""
        if wire.has_system_messages and _NO_SYSTEM.search(reason):
            logger.info("%s takes no system messages: told in the user's words from now on", self.label)
            self._takes_system_messages = False
            return True
        if wire.recalled_call_ids and _THINKING_REFUSED.search(reason):
            logger.info("%s does not take its thinking back: left out for the rest of this loop", self.label)
            self._thinking_store.disable(wire.recalled_call_ids)
            return True
        if self._takes_breakpoints and "cache_control" in reason and wire.has_breakpoints:
            logger.warning("%s takes no cache_control: nothing is marked for its cache any more", self.label)
            self._takes_breakpoints = False
            return True
        if _CONTEXT_MANAGEMENT in wire.body and _NO_CONTEXT_EDITING.search(reason):
            logger.info("%s does not leave tool results out by itself: not asked to any more", self.label)
            self._context_editing = None
            return True
        return False

    def _remember_thinking(self, request: ModelRequest, wire: AnthropicRequest, answer: AnthropicResponse) -> None:
        content = answer.raw_content()
        if any(block.get("type") in {"thinking", "redacted_thinking"} for block in content):
            thought = ThinkingAnswer(
                prefix_digest=wire.digest(),
                suffix=wire.suffix,
                text=answer.text().strip(),
                calls=answer.tool_calls(),
                content=content,
            )
            self._thinking_store.remember(thought, request.conversation)
