"""A scripted answer in the words of the Messages API, whole or as events. Pure.

Sources: platform.claude.com/docs/en, api/messages and build-with-claude/streaming. Every stream holds a ping and an
event that nobody knows, because real ones may.
"""

import json

from tests.servers.messages_binding import sign
from tests.servers.messages_models import known, profile
from tests.servers.messages_prompt import Json
from tests.servers.model_api_events import Answer, faulty, pieces


def message(answer: Answer, body: Json, usage: Json, ident: str) -> Json:
    """Return the whole message, as it is without `stream`."""
    content = _content(answer, body)
    stop = answer.stop or ("tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn")
    whole: Json = {
        "id": ident,
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": answer.stop_details,
        "usage": usage,
    }
    return whole


def events(answer: Answer, whole: Json) -> list[bytes]:
    """Return the message as it is streamed, with the answer's faults."""
    late = {"stop_reason", "stop_sequence", "stop_details"}
    told = {key: whole[key] for key in ("context_management",) if key in whole}
    start = {key: None if key in late | told.keys() else value for key, value in whole.items()}
    start |= {"content": [], "usage": whole["usage"] | {"output_tokens": 1}}
    out: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        {"type": "invented_later", "delta": "of another shape"},
    ]
    written = dict(enumerate(arguments for *_, arguments in answer.calls))
    for index, block in enumerate(whole["content"]):
        first = len(whole["content"]) - len(answer.calls)
        bare, deltas = _streamed(block, written.get(index - first))
        out.append({"type": "content_block_start", "index": index, "content_block": bare})
        out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        out.append({"type": "content_block_stop", "index": index})
    end = {key: whole[key] for key in sorted(late)}
    out += [{"type": "message_delta", "delta": end, "usage": whole["usage"], **told}, {"type": "message_stop"}]
    return faulty(answer, [f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n".encode() for e in out])


def _content(answer: Answer, body: Json) -> list[Json]:
    """Return the blocks, thinking signed and shown as the request wants it."""
    scripted: list[Json] = list(answer.content)
    scripted += [{"type": "thinking", "thinking": answer.thinking}] if answer.thinking else []
    scripted += [{"type": "text", "text": answer.text}] if answer.text else []
    scripted += [{"type": "tool_use", "id": i, "name": n, "input": _parsed(a)} for i, n, a in answer.calls]
    quiet = known(body["model"]) and not profile(body["model"]).sampling
    shown = (body.get("thinking") or {}).get("display") or ("omitted" if quiet else "summarized")
    said: list[Json] = []
    for block in scripted:
        if block["type"] == "thinking":
            thought = "" if shown == "omitted" else block["thinking"]
            said.append({"type": "thinking", "thinking": thought, "signature": sign(body, said, thought)})
        elif block["type"] == "redacted_thinking":
            said.append({"type": "redacted_thinking", "data": sign(body, said, "")})
        else:
            said.append(block)
    return said


def _streamed(block: Json, arguments: str | None) -> tuple[Json, list[Json]]:
    """Return a block as it starts, and its deltas. `arguments`: as the model wrote them, perhaps no JSON."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "thinking":
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thoughts, signature]
    if block["type"] == "tool_use":
        text = json.dumps(block["input"]) if arguments is None else arguments
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text)]
        ]
    return block, []


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
