"""A scripted answer of the fake model APIs, and its events as chat completions have them. Pure."""

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One scripted answer, or one fault."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """(id, name, JSON arguments)."""
    stop: str | None = None
    """In the API's own words; None: as the content suggests."""
    usage: Json | None = None
    """In the API's own words; None: counted. OpenAI: {} sends none."""
    thinking: str | None = None
    content: tuple[Json, ...] = ()
    """Messages: blocks in front of the rest. `thinking` and `redacted_thinking` are signed by the server."""
    stop_details: Json | None = None
    """Messages: with the stop reason `refusal`, `{"type": "refusal", "category": "cyber", "explanation": None}`."""
    dropped: tuple[Json, ...] = ()
    """Messages: told in `input_transformations`, as if the server had dropped so much of the request."""
    diagnostics: Json | None = None
    """Messages: told in place of what the cache would say, if the request asks for any."""
    done: bool = True
    """OpenAI: ends with [DONE]."""
    status: int = 200
    """Anything else: `body` and `headers` are the answer."""
    headers: Json = field(default_factory=dict)
    body: bytes = b'{"error": {"type": "api_error", "message": "scripted"}}'
    delay_s: float = 0.0
    """Before the first byte."""
    cut_after: int | None = None
    """Close the connection after so many events."""
    silent_after: int | None = None
    """Say nothing more after so many events, until the client hangs up."""
    error_after: tuple[int, str] | None = None
    """After so many events an error event of this type, then the end."""
    error_says: str = ""
    """Its message; empty: that it is scripted."""
    garbled_after: int | None = None
    """After so many events one that is no JSON."""
    split_bytes: int | None = None
    """Send in pieces of so many bytes, each its own write."""


def failure(status: int, kind: str, *, code: str = "", retry_after_s: float | None = None) -> Answer:
    """An error as the Messages API writes it (platform.claude.com/docs/en/api/errors)."""
    error: Json = {"type": kind, "message": f"scripted {kind}"} | ({"details": {"error_code": code}} if code else {})
    body = json.dumps({"type": "error", "error": error, "request_id": "req_scripted"}).encode()
    return Answer(
        status=status, body=body, headers={} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    )


def spend_limit() -> Answer:
    """The month's budget is used up: a 429 that waiting does not help (docs/en/api/rate-limits)."""
    return failure(429, "rate_limit_error", code="enforced_spend_limit_reached")


def pieces(text: str) -> list[str]:
    return [text[i : i + 12] for i in range(0, len(text), 12)]


def faulty(answer: Answer, events: list[bytes]) -> list[bytes]:
    if answer.error_after is not None:
        place, kind = answer.error_after
        error = {"type": "error", "error": {"type": kind, "message": answer.error_says or f"scripted {kind}"}}
        return [*events[:place], f"event: error\ndata: {json.dumps(error)}\n\n".encode()]
    if answer.garbled_after is not None:
        return [*events[: answer.garbled_after], b"event: message_delta\ndata: {not json\n\n"]
    return events


def completions(answer: Answer, body: Json) -> list[bytes]:
    """As chat completion chunks."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": answer.thinking}] if answer.thinking else []
    deltas += [{"content": piece} for piece in pieces(answer.text)]
    for index, (ident, name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": ident, "type": "function", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in pieces(arguments)]
    base: Json = {"id": "c-1", "object": "chat.completion.chunk", "model": body.get("model"), "usage": None}
    chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    stop = answer.stop or ("tool_calls" if answer.calls else "stop")
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    usage = {"prompt_tokens": len(json.dumps(body)) // 4, "completion_tokens": len(answer.text) // 4 + 1}
    if answer.usage != {}:
        chunks.append(base | {"choices": [], "usage": answer.usage or usage})
    events = [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks]
    return faulty(answer, [b": a comment\n\n", *events, *([b"data: [DONE]\n\n"] if answer.done else [])])
