"""A loopback MiniMax, as far as chat completions go.

    async with MiniMaxApi() as api: ...     # besides what `ModelApi` has
        api.then(base_resp(1002, "rate limit"), error_object(400, 2013, "unknown model 'x'"))

- Refused, and kept in `violations`: what the reference does not know (platform.minimax.io/docs,
  api-reference/text-chat-openai; it does not know `tool_choice` either, but M3 respects `none`:
  terrylica/cc-skills, plugins/minimax, M3-EMPIRICAL.md), the deprecated `max_tokens`, pictures for
  M2.x, thinking of the tool loop under way that does not come back as it was sent
  (guides/text-m2-function-call).
- With `reasoning_split`, thinking comes in pieces as `reasoning_content` and `reasoning_details`,
  without it as `<think>` in the text.
- `cumulative=True`: each piece repeats those before it, as the streaming example of
  api-reference/text-openai-api reads them.
- `Answer.error_after=(2, "1027")` ends a stream with that code in `base_resp`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from reverie.testing.servers.model_api import (
    Answer,
    ModelApi,
    Reply,
    Seen,
    completions,
    pieces,
)
from reverie.testing.servers.model_api_rules import openai

Json = dict[str, Any]
_KEYS = {
    "model",
    "service_tier",
    "messages",
    "thinking",
    "reasoning_split",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
}
_MESSAGE_KEYS = {
    "role",
    "name",
    "content",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning_details",
}
_MODELS = {
    "MiniMax-M3": 524_288,
    "MiniMax-M2.7": 204_800,
    "MiniMax-M2.7-highspeed": 204_800,
    "MiniMax-M2.5": 204_800,
    "MiniMax-M2.1": 204_800,
    "MiniMax-M2": 204_800,
}
"""Names, and the most output tokens of each."""
_ENVELOPE: Json = {
    "input_sensitive": False,
    "output_sensitive": False,
    "input_sensitive_type": 0,
    "output_sensitive_type": 0,
    "output_sensitive_int": 0,
}


def base_resp(code: int, message: str) -> Answer:
    """An error as the native API writes it: with the status 200, and no stream."""
    body = json.dumps({"base_resp": {"status_code": code, "status_msg": message}}).encode()
    return Answer(headers={"content-type": "application/json"}, body=body)


def error_object(status: int, code: int, message: str) -> Answer:
    """An error as chat completions write it."""
    kind = {400: "bad_request_error", 401: "authorized_error", 429: "rate_limit_error"}
    told = {
        "type": "error",
        "error": {
            "type": kind.get(status, "api_error"),
            "message": f"{message} ({code})",
            "http_code": str(status),
        },
        "request_id": "0640ba838096cbdbe96fe03bc1654ebe",
    }
    return Answer(status=status, body=json.dumps(told).encode())


@dataclass(kw_only=True)
class MiniMaxApi(ModelApi):
    """See the top of the file."""

    cumulative: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._thought: dict[str, list[Json]] = {}
        """What was sent as thinking, by the id of each call behind it."""

    def reply(self, seen: Seen) -> Reply:
        shown = seen.headers.get("authorization", "")
        if not shown.startswith("Bearer ") or (self.key and shown != f"Bearer {self.key}"):
            told = "login fail: Please carry the API secret key in the 'Authorization' field"
            return Reply(answer=error_object(401, 1004, told), events=[])
        if seen.path != "/v1/chat/completions":
            return super().reply(seen)
        wrong = next(self._wrong(seen.body), None) or openai(_plain(seen.body))
        if wrong is not None:
            self.violated(seen, wrong)
            return Reply(answer=error_object(400, 2013, f"invalid params, {wrong}"), events=[])
        answer = self.take(seen.body)
        if answer.status != 200:
            return Reply(answer=answer, events=[])
        if answer.headers.get("content-type") == "application/json":
            return Reply(answer=answer, events=[answer.body])
        return Reply(answer=answer, events=list(self._chunks(answer, seen.body)))

    def _wrong(self, body: Json) -> Iterator[str]:
        for key in body.keys() - _KEYS:
            yield f"unknown field {key}"
        if (name := body.get("model")) not in _MODELS:
            yield f"unknown model '{name}'"
        limit = body.get("max_completion_tokens", 1)
        if not 1 <= limit <= _MODELS[body["model"]]:
            yield f"does not support max tokens > {_MODELS[body['model']]}"
        if body.get("thinking", {"type": "adaptive"}).get("type") not in ("adaptive", "disabled"):
            yield "thinking.type must be adaptive or disabled"
        messages = body.get("messages") or []
        for place, message in enumerate(messages):
            for key in message.keys() - _MESSAGE_KEYS:
                yield f"messages[{place}]: unknown field {key}"
            if isinstance(message["content"], list):
                kinds = {part["type"] for part in message["content"]}
                if kinds - {"text", "image_url"} or name != "MiniMax-M3":
                    yield f"messages[{place}]: {name} does not take {sorted(kinds)}"
                if any(part.keys() - {"type", "text", "image_url"} for part in message["content"]):
                    yield f"messages[{place}]: unknown field in a part"
        asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
        for message in messages[asked[-1] if asked else 0 :]:
            for call in message.get("tool_calls") or ():
                sent = self._thought.get(call["id"])
                if sent and message.get("reasoning_details") != sent:
                    yield f"the thinking in front of {call['id']} did not come back"

    def _chunks(self, answer: Answer, body: Json) -> Iterator[bytes]:
        thinking = answer.thinking or ""
        if thinking and body.get("reasoning_split"):
            whole: Json = {
                "type": "reasoning.text",
                "id": "reasoning-text-1",
                "format": "MiniMax-response-v1",
                "index": 0,
                "text": thinking,
            }
            self._thought |= {ident: [whole] for ident, *_ in answer.calls}
            deltas = [
                {"reasoning_content": piece, "reasoning_details": [whole | {"text": piece}]}
                for piece in self._grown(pieces(thinking))
            ]
            answer = replace(answer, thinking=None, deltas=tuple(deltas))
        elif thinking:
            answer = replace(
                answer, thinking=None, text=f"<think>\n{thinking}\n</think>\n{answer.text}"
            )
        if self.cumulative:
            said = [{"content": piece} for piece in self._grown(pieces(answer.text))]
            answer = replace(answer, text="", deltas=(*answer.deltas, *said))
        if not (body.get("stream_options") or {}).get("include_usage"):
            answer = replace(answer, usage={})
        for place, event in enumerate(completions(replace(answer, error_after=None), body)):
            if answer.error_after is not None and place == answer.error_after[0]:
                code, message = int(answer.error_after[1]), answer.error_says
                told = {"choices": None, "base_resp": {"status_code": code, "status_msg": message}}
                yield b"data: " + json.dumps(told | _ENVELOPE).encode() + b"\n\n"
                return
            if event.startswith(b"data: {"):
                chunk = json.loads(event[6:]) | _ENVELOPE
                if chunk["usage"] is not None:
                    chunk["base_resp"] = {"status_code": 0, "status_msg": ""}
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            else:
                yield event

    def _grown(self, texts: list[str]) -> list[str]:
        if not self.cumulative:
            return texts
        return ["".join(texts[: end + 1]) for end in range(len(texts))]


def _plain(body: Json) -> Json:
    """Return the request as another server with chat completions would get it."""
    rest = {
        key: value
        for key, value in body.items()
        if key not in {"reasoning_split", "thinking", "max_completion_tokens"}
    }
    messages = [
        {
            key: value
            for key, value in message.items()
            if key not in {"reasoning_content", "reasoning_details"}
        }
        for message in body.get("messages") or []
    ]
    return rest | {"max_tokens": body.get("max_completion_tokens"), "messages": messages}
