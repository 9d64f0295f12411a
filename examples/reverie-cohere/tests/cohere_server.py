"""A loopback Cohere: its chat with streaming, and its list of models.

Refuses what docs.cohere.com forbids: reference/chat-stream, docs/tool-use-overview (each call is
answered by a message of the role tool). Faults and scripts are those of `ModelApi`.
"""

import json
from collections.abc import Iterator
from typing import Any

from reverie.testing.servers.model_api import Answer, ModelApi, Reply, Seen, pieces

Json = dict[str, Any]
_FIELDS = {
    *("model", "messages", "stream", "tools", "tool_choice", "max_tokens", "thinking"),
    *("temperature", "stop_sequences", "seed", "k", "p", "safety_mode"),
}


class CohereApi(ModelApi):
    """See the top of the file."""

    plan = ""
    """Told in front of calls, as the tool plan."""

    def reply(self, seen: Seen) -> Reply:
        bearer = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if not bearer or self.key not in (None, bearer):
            return _refusal(401, "invalid api token")
        if seen.path.startswith("/v1/models?"):
            rows = [{"name": one["id"], "endpoints": ["chat"], **one} for one in self.models or ()]
            told = json.dumps({"models": rows}).encode()
            return Reply(answer=Answer(headers={"content-type": "application/json"}), events=[told])
        if seen.path != "/v2/chat":
            return _refusal(404, "page not found")
        if wrong := next(complaints(seen.body), None):
            self.violated(seen, wrong)
            return _refusal(400, f"invalid request: {wrong}")
        answer = self.take(seen.body)
        events = [{"type": kind, **more} for kind, more in self._events(answer)]
        written = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
        return Reply(answer=answer, events=written)

    def _events(self, answer: Answer) -> Iterator[tuple[str, Json]]:
        """Yield type and fields of each event, as in docs/streaming and tool-use-streaming."""
        begun = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        yield "message-start", {"id": "m-1", "delta": {"message": begun}}
        for piece in pieces(self.plan) if answer.calls else ():
            yield "tool-plan-delta", {"delta": {"message": {"tool_plan": piece}}}
        if answer.text:
            content: Json = {"type": "text", "text": ""}
            yield "content-start", {"index": 0, "delta": {"message": {"content": content}}}
            for piece in pieces(answer.text):
                text = {"message": {"content": {"text": piece}}}
                yield "content-delta", {"index": 0, "delta": text}
            yield "content-end", {"index": 0}
        for index, (ident, name, arguments) in enumerate(answer.calls):
            function = {"name": name, "arguments": ""}
            call = {"id": ident, "type": "function", "function": function}
            yield "tool-call-start", {"index": index, "delta": {"message": {"tool_calls": call}}}
            for piece in pieces(arguments):
                told = {"message": {"tool_calls": {"function": {"arguments": piece}}}}
                yield "tool-call-delta", {"index": index, "delta": told}
            yield "tool-call-end", {"index": index}
        tokens = answer.usage or {"input_tokens": 9, "output_tokens": 3}
        usage = {"billed_units": tokens, "tokens": tokens}
        reason = answer.stop or ("TOOL_CALL" if answer.calls else "COMPLETE")
        end = {"finish_reason": reason, "usage": usage}
        if reason == "ERROR":
            end["error"] = "the generation failed"
        yield "message-end", {"delta": end}


def _refusal(status: int, message: str) -> Reply:
    body = json.dumps({"id": "r-1", "message": message}).encode()
    return Reply(answer=Answer(status=status, body=body), events=[])


def complaints(body: Json) -> Iterator[str]:
    """Yield what is wrong with a request."""
    for field in body.keys() - _FIELDS:
        yield f"unknown field {field}"
    if not isinstance(body.get("model"), str) or body.get("stream") is not True:
        yield "model must be a name, and stream true"
    if not isinstance(body.get("max_tokens", 1), int) or body.get("max_tokens", 1) < 1:
        yield "max_tokens must be at least 1"
    tools = body.get("tools", ())
    for tool in tools:
        if tool.get("type") != "function" or tool["function"].keys() < {"name", "parameters"}:
            yield "a tool is a function with name and parameters"
    if "tool_choice" in body and (not tools or body["tool_choice"] not in ("REQUIRED", "NONE")):
        yield "tool_choice must be REQUIRED or NONE, with tools"
    if "thinking" in body and body["thinking"].get("type") not in ("enabled", "disabled"):
        yield "thinking.type must be enabled or disabled"
    waiting: set[str] = set()
    for place, message in enumerate(body.get("messages") or [{}]):
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            if message.get("tool_call_id") not in waiting or not isinstance(content, str):
                yield f"messages[{place}] answers no call with a text"
            waiting.discard(message.get("tool_call_id"))
            continue
        if waiting:
            yield f"messages[{place}]: calls have no answer"
        if role not in ("system", "user", "assistant"):
            yield f"messages[{place}] has no role"
        calls = message.get("tool_calls", ())
        if not content and not (role == "assistant" and calls):
            yield f"messages[{place}] has no content"
        if isinstance(content, list) and {one["type"] for one in content} - {"text", "image_url"}:
            yield f"messages[{place}] has content of another type"
        for call in calls:
            waiting.add(call["id"])
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield f"messages[{place}]: arguments must be an object"
    if waiting or body["messages"][-1]["role"] not in ("user", "tool"):
        yield "the last message must be of the user or of a tool"
