"""Google's Gemini API, streamed: `models/NAME:streamGenerateContent`.

Obeys ai.google.dev/api/generate-content and ai.google.dev/gemini-api/docs: function-calling,
thinking, thought-signatures, caching, image-understanding, document-processing,
generate-content/api-errors. Settings come first, then requests and responses, both without IO, then
the model.

Gemini has no cache marks: it caches the beginnings of prompts by itself (implicit caching), so all
that is asked of a request is that its beginning keeps its bytes.

A thought signature is the model's thinking in a form that only Google reads. It belongs to the part
that it came with. Gemini 3 and later refuse a tool loop in which the first call of an answer has
none.
"""

import base64
import json
import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from typing import Literal
from urllib.parse import quote

from pydantic import AliasPath, BaseModel, ConfigDict, Field, SecretStr
from pydantic.alias_generators import to_camel

from agent.models.adapt import Json, append_suffix, parse_tool_input, read_kept, write_kept
from agent.models.base import (
    EMPTY_USER_TEXT,
    AnswerSpoiled,
    ModelBusy,
    ModelMessage,
    ModelRequest,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.http import (
    DEFAULT_TIMEOUT_S,
    GEMINI_VERSION,
    HalfJoiner,
    ModelHttpClient,
    RemoteModel,
    SseEvent,
    StreamText,
    encode_json,
    gemini_headers,
    join_endpoint,
    parse_event,
    report_unread,
    sanitize_reason,
)
from agent.prompt import join_surrogates
from gateway.core.events import Usage
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

logger = logging.getLogger(__name__)

_UNSIGNED = "skip_thought_signature_validator"
"""Stands for the signature of a call that another model wrote (thought-signatures, FAQ)."""
_NO_SIGNATURES = re.compile(r"(?:models/)?(?:gemini-[12]\.|gemma|learnlm)", re.IGNORECASE)
"""Matches models that demand no signatures, by the beginning of their name."""
_LEAST_THINKING: tuple[tuple[re.Pattern[str], Json], ...] = (
    (re.compile(r"gemini-2\.5-pro"), {"thinkingBudget": 128}),
    (re.compile(r"gemini-2\.5"), {"thinkingBudget": 0}),
    (re.compile(r"gemini-(?!1|2)"), {"thinkingLevel": "LOW"}),
)
"""The least that all models of a name take (thinking, levels and budgets)."""
_SEEN_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})
"""Media types that it takes, of those that an `Image` may have."""


def build_gemini_request(
    request: ModelRequest, *, model: str, refused: frozenset[str] = frozenset()
) -> Json:
    """Build the body of a request, as `encode_body` takes it. The same request gives the same
    bytes.

    All blocks are one system instruction, in their order. `refused`: signatures that the server
    does not take back.
    """
    body: Json = {}
    if request.blocks:
        text = "\n\n".join([block.text for block in request.blocks])
        body["systemInstruction"] = {"parts": [{"text": text}]}
    if request.tools:
        body["tools"] = _encode_tools(request.tools)
        if request.answer_only:
            body["toolConfig"] = {"functionCallingConfig": {"mode": "NONE"}}
    body["contents"] = _encode_contents(request, model, refused)
    options: Json = {"maxOutputTokens": request.max_output_tokens}
    if request.thinks_less:
        least = [one for name, one in _LEAST_THINKING if name.search(model)]
        options |= {"thinkingConfig": least[0]} if least else {}
    body["generationConfig"] = options
    return body


@lru_cache(maxsize=16)
def _encode_tools(tools: tuple[ToolSpec, ...]) -> bytes:
    # `parameters` takes a part of OpenAPI's schemas, without references: those of MCP have more.
    return encode_json(
        [
            {
                "functionDeclarations": [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "parametersJsonSchema": json.loads(tool.schema),
                    }
                    for tool in tools
                ]
            }
        ]
    )


def _encode_contents(request: ModelRequest, model: str, refused: frozenset[str]) -> bytes:
    """Return the contents as JSON. The parts of a message without images are kept with it."""
    form = f"gemini {model} {hash(refused)}"
    contents: list[tuple[str, list[bytes]]] = []
    calls: dict[str, ToolCall] = {}
    for message in append_suffix(request):
        written = message.wire.get(form)
        if written is None:
            parts = (
                _model_parts(message, model, refused)
                if message.role == "assistant"
                else _user_parts(message, calls, model)
            )
            written = b",".join([encode_json(part) for part in parts])
            if not any(isinstance(part, Image) for part in message.parts):
                message.wire[form] = written
        calls = {part.id: part for part in message.parts if isinstance(part, ToolCall)}
        role = "model" if message.role == "assistant" else "user"
        if not written:
            continue
        if contents and contents[-1][0] == role:
            contents[-1][1].append(written)
        else:
            contents.append((role, [written]))
    nothing = ("user", [encode_json({"text": EMPTY_USER_TEXT})])
    if not contents or contents[0][0] == "model":  # a call follows a user's content only
        contents.insert(0, nothing)
    if contents[-1][0] == "model":
        contents.append(nothing)
    encoded = [
        b'{"role":"%s","parts":[%s]}' % (role.encode(), b",".join(parts))
        for role, parts in contents
    ]
    return b"[%s]" % b",".join(encoded)


def _model_parts(message: ModelMessage, model: str, refused: frozenset[str]) -> list[Json]:
    """Return an answer's parts, each with the signature that it came with. Texts without any are
    one part.
    """
    text = "".join([part.text for part in message.parts if isinstance(part, TextPart)])
    kept = read_kept(message.thinking, model).get("parts", ())
    parts = [_sign({"text": one["text"]}, one.get("thoughtSignature"), refused) for one in kept]
    if "".join([one["text"] for one in kept]).strip() != text.strip():
        parts = [{"text": text}] if text.strip() else []
    calls: list[Json] = []
    for call in message.parts:
        if isinstance(call, ToolCall):
            own = read_kept(call.extra, model)
            written = {"name": call.name, "args": parse_tool_input(call.arguments)}
            part: Json = {"functionCall": _own_id(own) | written}
            calls.append(_sign(part, own.get("thoughtSignature"), refused))
    unsigned = not any("thoughtSignature" in part for part in calls)
    if calls and unsigned and not _NO_SIGNATURES.match(model):
        calls[0]["thoughtSignature"] = _UNSIGNED
    return parts + calls


def _sign(part: Json, signature: object, refused: frozenset[str]) -> Json:
    is_taken = signature and signature not in refused
    return part | ({"thoughtSignature": signature} if is_taken else {})


def _user_parts(message: ModelMessage, calls: Mapping[str, ToolCall], model: str) -> list[Json]:
    """Return the parts of the user's side. `calls`: those of the answer before, by id."""
    parts: list[Json] = []
    for part in message.parts:
        if isinstance(part, ToolResult) and (call := calls.get(part.id)) is not None:
            result = {"error" if part.is_error else "output": part.text}
            named = _own_id(read_kept(call.extra, model)) | {"name": call.name}
            parts.append({"functionResponse": named | {"response": result}})
        elif isinstance(part, Image) and part.media_type in _SEEN_TYPES:
            data = base64.b64encode(part.data).decode()
            parts.append({"inlineData": {"mimeType": part.media_type, "data": data}})
        elif isinstance(part, Image):
            parts.append({"text": part.description})
        elif isinstance(part, TextPart | ToolResult) and part.text.strip():  # empty ones: 400
            parts.append({"text": part.text})
    return parts


def _own_id(kept: Mapping[str, object]) -> Json:
    """Return the id that Gemini gave a call, if any. The turn may have changed that of the call."""
    return {"id": kept["id"]} if "id" in kept else {}


class _Received(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _FunctionCall(_Received):
    id: StreamText | None = None
    name: StreamText = ""
    args: dict[str, object] | None = None


class _Part(_Received):
    text: StreamText | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Candidate(_Received):
    parts: list[_Part] | None = Field(None, validation_alias=AliasPath("content", "parts"))
    finish_reason: str | None = None
    finish_message: StreamText | None = None


class _UsageMetadata(_Received):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Chunk(_Received):
    """One `data:` line."""

    candidates: list[_Candidate] = Field(default=[])
    block_reason: str | None = Field(
        None, validation_alias=AliasPath("promptFeedback", "blockReason")
    )
    usage_metadata: _UsageMetadata | None = None
    model_version: str | None = None
    error: object | None = None


_STOP_REASONS: dict[str, Literal["end", "length", "refused"]] = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "ESCALATION",
            "MODEL_ARMOR",
            "PUP_LIMITED_DISABLED",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
        ),
        "refused",
    ),
}
"""Finish reasons that are no plain end (ai.google.dev/api/generate-content, FinishReason)."""
_SPOILED = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"})
"""Finish reasons of answers that came out unusable: the next one is another one."""
_CUT_ENDING = (SseEvent(name="", data='{"candidates": [{"finishReason": "MAX_TOKENS"}]}'),)
"""End of an answer that was broken off because it went on behind its limit."""


class _Answer:
    def __init__(self, *, model: str) -> None:
        self._asked_model = self._model = model
        self.text_halves = HalfJoiner()
        self._texts: list[Json] = []
        """Parts with text, neighbours without a signature as one."""
        self._calls: list[_Part] = []
        self.usage: Usage | None = None
        """None: not reported yet."""
        self.finish_reason = ""
        """In Google's word. Empty: not received yet."""
        self.explanation = ""
        """Of the finish reason. Untrusted."""
        self.block_reason = ""
        """Why the prompt is refused, in Google's word. Empty: it is not."""

    def add_chunk(self, chunk: _Chunk) -> tuple[str, str]:
        """Process one chunk. Return its text and its thinking."""
        self._model = chunk.model_version or self._model
        if (used := chunk.usage_metadata) is not None:
            read = used.cached_content_token_count or 0
            self.usage = Usage(
                input_tokens=max(0, (used.prompt_token_count or 0) - read),
                cache_read_tokens=read,
                output_tokens=(used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
            )
        self.block_reason = chunk.block_reason or self.block_reason
        text = thinking = ""
        for candidate in chunk.candidates[:1]:
            self.finish_reason = candidate.finish_reason or self.finish_reason
            self.explanation = candidate.finish_message or self.explanation
            for part in candidate.parts or ():
                if part.function_call is not None:
                    self._calls.append(part)
                elif part.thought:
                    thinking += join_surrogates(part.text or "")
                elif part.text:
                    text += part.text
                    self._add_text(part.text, part.thought_signature)
        return self.text_halves.join(text) if text else "", thinking

    def _add_text(self, text: str, signature: str | None) -> None:
        if not signature and self._texts and "thoughtSignature" not in self._texts[-1]:
            self._texts[-1]["text"] = f"{self._texts[-1]['text']}{text}"
        else:
            self._texts.append(_sign({"text": text}, signature, frozenset()))

    @property
    def is_empty(self) -> bool:
        """Return whether there is neither text nor a call."""
        return not self._texts and not self._calls

    def tool_calls(self, conversation: Sequence[ModelMessage]) -> list[ToolCall]:
        """Return the calls in their order. A call without an id gets one that the conversation does
        not have: the number of the calls so far is in it.
        """
        if not self._calls:
            return []
        earlier = sum(
            isinstance(part, ToolCall) for message in conversation for part in message.parts
        )
        calls = []
        for index, part in enumerate(self._calls, earlier):
            call, signature = part.function_call, part.thought_signature
            assert call is not None
            kept: Json = {"id": call.id} if call.id else {}
            kept |= {"thoughtSignature": signature} if signature else {}
            calls.append(
                ToolCall(
                    id=call.id or f"call_{index}",
                    name=call.name,
                    arguments=join_surrogates(json.dumps(call.args or {}, ensure_ascii=False)),
                    extra=write_kept(kept, self._asked_model),
                )
            )
        return calls

    def build_end(self) -> StreamEnd:
        """Return the end of the stream. Call it once there is a finish reason.

        Calls come whole, so with calls an answer is not cut.
        """
        stop = _STOP_REASONS.get(self.finish_reason, "end")
        is_signed = any("thoughtSignature" in part for part in self._texts)
        return StreamEnd(
            stop_reason="tools" if self._calls and stop != "refused" else stop,
            usage=self.usage or Usage(),
            model=self._model,
            thinking=write_kept({"parts": self._texts}, self._asked_model)
            if self._calls and is_signed
            else "",
        )


class GeminiModel(RemoteModel):
    """One Gemini model.

    Signatures are kept with the calls (`ToolCall.extra`) and with the text in front of calls
    (`StreamEnd.thinking`), and are sent back with them in all later requests, so that the
    beginning of a prompt stays the same. A call that another model wrote has none; the value that
    Google documents for this stands in its place. If the server refuses signatures (they are
    another account's, or too old), the request is sent once more without those that it had.

    Thinking is never yielded as text. Tool calls are yielded right before `StreamEnd`. A prompt
    that is blocked raises `RequestRefused`, a stream without a finish reason `ModelBusy`, and a
    call that Gemini itself could not read `AnswerSpoiled`. With `max_output_tokens` 0 nothing is
    sent: the API has no such request.
    """

    family = "gemini"

    def __init__(
        self,
        *,
        name: str,
        model: str,
        api_key: str = "",
        base_url: str = "https://generativelanguage.googleapis.com",
        context_tokens: int = 200_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        takes_images: bool = True,
        may_leak_calls: bool = False,
        proxy: SecretStr | None = None,
    ) -> None:
        """`api_key` empty: none is sent. `may_leak_calls`: as in `StreamEnd`.

        Raises ValueError for a bad URL or key.
        """
        path = quote(model if "/" in model else f"models/{model}")
        url = join_endpoint(base_url, f"/{path}:streamGenerateContent", GEMINI_VERSION)
        super().__init__(
            ModelHttpClient(
                url=f"{url}{'&' if '?' in url else '?'}alt=sse",
                headers=gemini_headers(api_key),
                secret=api_key,
                timeout_s=timeout_s,
                proxy=proxy,
            ),
            name=name,
            model=model,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            takes_images=takes_images,
            may_leak_calls=may_leak_calls,
        )
        self._secret = api_key
        self._takes_thinking_config = True
        self._refused_signatures: frozenset[str] = frozenset()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:  # noqa: C901, PLR0912 - in their order
        if not request.max_output_tokens:
            yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)
            return
        while True:
            sent = request if self._takes_thinking_config else replace(request, thinks_less=False)
            body = build_gemini_request(sent, model=self._model, refused=self._refused_signatures)
            answer, unread, has_begun = _Answer(model=self._model), 0, False
            try:
                async with aclosing(
                    self._api.stream_events(
                        body, max_tokens=request.max_output_tokens, ending=_CUT_ENDING
                    )
                ) as events:
                    async for event in events:
                        chunk = parse_event(_Chunk, event.data)
                        if chunk is None:
                            unread += 1
                            continue
                        if chunk.error is not None:
                            raise self._api.read_stream_error(event.data)
                        text, thinking = answer.add_chunk(chunk)
                        if not has_begun:
                            has_begun = True
                            yield StreamStart(usage=answer.usage)
                        if thinking:
                            yield ThinkingDelta(text=thinking)
                        if text:
                            yield TextPart(text=text)
                break
            except RequestRefused as error:
                if has_begun or not self._adapt_to_refusal(sent, body, error.provider_message):
                    raise
        if answer.block_reason:
            yield StreamStart(usage=answer.usage)
            why = sanitize_reason(answer.block_reason, self._secret)
            raise RequestRefused(
                f"{self._api.host} blocked the prompt: {why}", caused_by_prompt=True
            )
        if not answer.finish_reason:
            yield StreamStart(usage=answer.usage)
            raise ModelBusy(f"{self._api.host} cut the answer off")
        if answer.finish_reason in _SPOILED or (
            answer.finish_reason == "OTHER" and answer.is_empty
        ):
            yield StreamStart(usage=answer.usage)
            why = sanitize_reason(f"{answer.finish_reason} {answer.explanation}", self._secret)
            raise AnswerSpoiled(f"{self._api.host} spoiled its answer: {why}")
        if rest := answer.text_halves.join("", final=True):
            yield TextPart(text=rest)
        if unread:
            report_unread(unread, where=self.label, has_content=not answer.is_empty)
        end = answer.build_end()
        if end.stop_reason == "tools":
            for call in answer.tool_calls(request.conversation):
                yield call
        yield replace(end, may_leak_calls=self._may_leak_calls)

    def _adapt_to_refusal(self, request: ModelRequest, body: Json, reason: str) -> bool:
        """Change how requests are written, if that avoids the refusal. True: send the request
        again.
        """
        contents = body["contents"]
        assert isinstance(contents, bytes)
        if re.search(r"thought.?signature", reason, re.IGNORECASE):
            sent = {
                part.get("thoughtSignature", _UNSIGNED)
                for content in json.loads(contents)
                for part in content["parts"]
            }
            if not (new := sent - {_UNSIGNED} - self._refused_signatures):
                return False
            logger.info(
                "%s does not take %d of its signatures back: left out", self.label, len(new)
            )
            self._refused_signatures |= new
            return True
        if request.thinks_less and re.search(r"thinking|budget", reason, re.IGNORECASE):
            logger.info("%s takes no thinkingConfig: not sent from now on", self.label)
            self._takes_thinking_config = False
            return True
        return False
