"""What the fake model APIs send: a scripted answer as the events of either API. Pure."""

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
    garbled_after: int | None = None
    """After so many events one that is no JSON."""
    split_bytes: int | None = None
    """Send in pieces of so many bytes, each its own write."""


def _pieces(text: str) -> list[str]:
    return [text[i : i + 12] for i in range(0, len(text), 12)]


def _faulty(answer: Answer, events: list[bytes]) -> list[bytes]:
    if answer.error_after is not None:
        place, kind = answer.error_after
        error = {"type": "error", "error": {"type": kind, "message": f"scripted {kind}"}}
        return [*events[:place], f"event: error\ndata: {json.dumps(error)}\n\n".encode()]
    if answer.garbled_after is not None:
        return [*events[: answer.garbled_after], b"event: message_delta\ndata: {not json\n\n"]
    return events


def completions(answer: Answer, body: Json) -> list[bytes]:
    """As chat completion chunks."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": answer.thinking}] if answer.thinking else []
    deltas += [{"content": piece} for piece in _pieces(answer.text)]
    for index, (ident, name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": ident, "type": "function", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in _pieces(arguments)]
    base: Json = {"id": "c-1", "object": "chat.completion.chunk", "model": body.get("model"), "usage": None}
    chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    stop = answer.stop or ("tool_calls" if answer.calls else "stop")
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    usage = {"prompt_tokens": len(json.dumps(body)) // 4, "completion_tokens": len(answer.text) // 4 + 1}
    if answer.usage != {}:
        chunks.append(base | {"choices": [], "usage": answer.usage or usage})
    events = [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks]
    return _faulty(answer, [b": a comment\n\n", *events, *([b"data: [DONE]\n\n"] if answer.done else [])])


def messages(answer: Answer, body: Json) -> list[bytes]:
    """As events of the Messages API."""
    counted = {"input_tokens": len(json.dumps(body)) // 4, "output_tokens": len(answer.text) // 4 + 1}
    usage: Json = answer.usage or counted
    start: Json = {"id": "msg_1", "role": "assistant", "model": body.get("model"), "content": []}
    out: list[Json] = [
        {"type": "message_start", "message": start | {"usage": usage | {"output_tokens": 1}}},
        {"type": "ping"},
        {"type": "invented_later", "delta": "of another shape"},
    ]
    blocks: list[tuple[Json, list[Json]]] = []
    if answer.thinking:
        thought = {"type": "thinking_delta", "thinking": answer.thinking}
        signature = {"type": "signature_delta", "signature": "c2lnbmVk"}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [thought, signature]))
    if answer.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in _pieces(answer.text)]))
    for ident, name, arguments in answer.calls:
        parts = [{"type": "input_json_delta", "partial_json": p} for p in ["", *_pieces(arguments)]]
        blocks.append(({"type": "tool_use", "id": ident, "name": name, "input": {}}, parts))
    for index, (block, deltas) in enumerate(blocks):
        out.append({"type": "content_block_start", "index": index, "content_block": block})
        out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        out.append({"type": "content_block_stop", "index": index})
    stop = answer.stop or ("tool_use" if answer.calls else "end_turn")
    told = {"output_tokens": usage.get("output_tokens", 1)}
    out += [{"type": "message_delta", "delta": {"stop_reason": stop}, "usage": told}, {"type": "message_stop"}]
    events = [f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n".encode() for e in out]
    return _faulty(answer, events)
