"""MiniMax's models, through its API that is compatible with OpenAI's chat completions.

Obeys platform.minimax.io/docs, api-reference:
- text-chat-openai: the limit is `max_completion_tokens`; `reasoning_split` puts thinking into
  `reasoning_content` and `reasoning_details` instead of the text; `thinking` turns that of
  MiniMax-M3 off, and M2.x always thinks.
- text-openai-api and guides/text-m2-function-call: in a tool loop, thinking goes back whole, in
  `reasoning_details`.
- text-prompt-caching: equal beginnings of 512 tokens and more are cached by the server itself, and
  written at no charge. So the prompt's blocks are joined into one system message, in their order,
  and no marks are sent. Marks exist in MiniMax's copy of the Messages API alone (kind `anthropic`,
  anthropic-api-compatible-cache), where writing costs 1.25 times the input.
- errorcode: a code of MiniMax's own says what is wrong. It comes as `base_resp` with the status
  200, also in a stream, or in parentheses behind the message of an error (measured by
  terrylica/cc-skills, plugins/minimax, errors-and-responses.md: an unknown model and a prompt that
  does not fit have the code 2013 of any wrong parameter).
"""

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import ClassVar

from agent.models.adapt import Json
from agent.models.base import ModelError, ModelRequest
from agent.models.http import ModelHttpClient, SseEvent
from agent.models.openai import ChatCompletionChunk, ChatCompletionResponse, OpenAIModel

_STATUS_BY_CODE = {
    1001: 504,  # timeout
    1002: 429,  # requests per minute
    1004: 401,  # not authorized
    1008: 402,  # insufficient balance
    1026: 400,  # sensitive input
    1027: 400,  # sensitive output
    1039: 429,  # tokens per minute: "retry later"
    1041: 429,  # connections
    1042: 400,  # too many invisible characters
    2013: 400,  # parameters
    2045: 429,  # requests grow too fast
    2049: 401,  # invalid key
    2056: 402,  # the plan's use of five hours is up
    2061: 403,  # the plan does not include the model
}
"""HTTP status that says the same as a code (errorcode); others are errors of the server."""
_ABOUT_CONTENT = frozenset({1026, 1027, 1042})
_CODE_AT_END = re.compile(r"\((\d{4})\)\s*$", re.ASCII)
_UNKNOWN_MODEL = re.compile(r"unknown model", re.IGNORECASE)
_MAY_BE_ERROR = re.compile(r'"(?:base_resp|error)"')


def translate_error(status: int, body: bytes) -> tuple[int, bytes] | None:
    """Return the HTTP status and the body with which other servers report this error. None: the
    body holds none of MiniMax's.
    """
    try:
        top: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(top, dict):
        return None
    base, error = top.get("base_resp"), top.get("error")
    if isinstance(base, dict) and base.get("status_code"):
        code = int(base["status_code"]) if isinstance(base["status_code"], int) else 0
        message = f"{base.get('status_msg') or ''} ({code})"
        found = _STATUS_BY_CODE.get(code, 500)
    elif isinstance(error, dict):
        message = str(error.get("message") or "")
        written = _CODE_AT_END.search(message)
        code = int(written[1]) if written else 0
        stated = str(error.get("http_code") or "")
        found = _STATUS_BY_CODE.get(code) or (int(stated) if stated.isdecimal() else status)
    else:
        return None
    if found == 400 and _UNKNOWN_MODEL.search(message):  # noqa: PLR2004 - HTTP's own number
        found = 404
    told: Json = {"message": message}
    if code in _ABOUT_CONTENT:
        told["type"] = "content_filter"
    return found, json.dumps({"error": told, "request_id": top.get("request_id")}).encode()


class MiniMaxClient(ModelHttpClient):
    """Reads errors of MiniMax, also where the HTTP status is 200."""

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError | None:
        status, body = translate_error(status, body) or (status, body)
        if trace := headers.get("trace-id"):
            headers = {**headers, "request-id": trace}
        return super().read_error(status, headers, body)

    async def stream_events(
        self,
        body: Mapping[str, object],
        *,
        max_tokens: int = 0,
        ending: Sequence[SseEvent] = (),
    ) -> AsyncGenerator[SseEvent]:
        async with aclosing(
            super().stream_events(body, max_tokens=max_tokens, ending=ending)
        ) as events:
            async for event in events:
                if _MAY_BE_ERROR.search(event.data):
                    told = translate_error(500, event.data.encode("utf-8", "replace"))
                    error = told and super().read_error(told[0], {}, told[1])
                    if error:
                        raise error
                yield event


class _Growing:
    """A text that comes in pieces: each the next part, or all of it so far.

    The reference says parts, and so it was measured; the streaming example in text-openai-api
    reads the whole text so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._repeats, self._grew = True, False
        """Whether each piece may have repeated the text before it; whether one has, with more."""

    def add(self, piece: str) -> str:
        """Add a piece, and return what is new in it."""
        if self.text and self._repeats:
            self._repeats = piece.startswith(self.text) and (self._grew or piece != self.text)
            self._grew = self._repeats
        new = piece[len(self.text) :] if self._repeats else piece
        self.text += new
        return new


class MiniMaxResponse(ChatCompletionResponse):
    """As `ChatCompletionResponse`, with the pieces of each segment of thinking put together."""

    def __init__(self, *, model: str) -> None:
        super().__init__(model=model)
        self._said, self._thought = _Growing(), _Growing()
        self._segments: dict[str, tuple[Json, _Growing]] = {}

    def add_chunk(self, chunk: ChatCompletionChunk) -> str:
        for choice in chunk.choices or ():
            if (delta := choice.delta) is None:
                continue
            if isinstance(delta.content, str) and delta.content:
                delta.content = self._said.add(delta.content)
            if isinstance(delta.reasoning_content, str) and delta.reasoning_content:
                delta.reasoning_content = self._thought.add(delta.reasoning_content)
            if isinstance(delta.reasoning_details, list):
                new, text = self._add_details(delta.reasoning_details)
                delta.reasoning_details = new
                delta.reasoning_content = delta.reasoning_content or text
        return super().add_chunk(chunk)

    def _add_details(self, details: list[object]) -> tuple[list[object], str]:
        """Return the segments that begin here, and the new text of all."""
        begun, text = list[object](), ""
        for detail in details:
            if not isinstance(detail, dict):
                continue
            key = json.dumps([detail.get("id"), detail.get("index")])
            if key not in self._segments:
                self._segments[key] = {**detail, "text": ""}, _Growing()
                begun.append(self._segments[key][0])
            segment, growing = self._segments[key]
            text += growing.add(str(detail.get("text") or ""))
            segment["text"] = growing.text
        return begun, text


class MiniMaxModel(OpenAIModel):
    """One of MiniMax's models: an `OpenAIModel` whose thinking comes apart from the text."""

    family = "minimax"
    takes_max_completion_tokens: ClassVar[bool] = True
    client_type: ClassVar[type[ModelHttpClient]] = MiniMaxClient
    response_type: ClassVar[type[ChatCompletionResponse]] = MiniMaxResponse

    def build_body(self, request: ModelRequest) -> Json:
        body = super().build_body(request)
        extra: Json = {"reasoning_split": True}
        if body.pop("reasoning_effort", None) is not None:
            extra["thinking"] = {"type": "disabled"}
        dropped = self._dialect.dropped_fields
        return body | {field: value for field, value in extra.items() if field not in dropped}
