"""A server of Acme on loopback. Scripts and faults are those of `ModelApi`."""

import json
from collections.abc import Iterator
from typing import Any

from reverie.testing.servers.model_api import Answer, ModelApi, Reply, Seen

Json = dict[str, Any]


class AcmeApi(ModelApi):
    """Refuses what the rules of the API forbid, and keeps it in `violations`."""

    def reply(self, seen: Seen) -> Reply:
        key = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if not key or self.key not in (None, key):
            return _refusal(401, "the key is not valid")
        if seen.path == "/v1/models":
            listed = json.dumps({"data": self.models or []}).encode()
            return Reply(
                answer=Answer(headers={"content-type": "application/json"}), events=[listed]
            )
        if wrong := next(_complaints(seen.body), None):
            self.violated(seen, wrong)
            return _refusal(400, wrong)
        answer = self.take(seen.body)
        events = [f"data: {json.dumps(one)}\n\n".encode() for one in _events(answer)]
        return Reply(answer=answer, events=events)


def _events(answer: Answer) -> Iterator[Json]:
    for start in range(0, len(answer.text), 4):
        yield {"text": answer.text[start : start + 4]}
    for ident, name, arguments in answer.calls:
        yield {"call": {"id": ident, "name": name, "arguments": arguments}}
    tokens = answer.usage or {"prompt": 9, "output": 3}
    yield {"end": answer.stop or ("calls" if answer.calls else "done"), **tokens}


def _refusal(status: int, message: str) -> Reply:
    body = json.dumps({"error": {"message": message}}).encode()
    return Reply(answer=Answer(status=status, body=body), events=[])


def _complaints(body: Json) -> Iterator[str]:
    """Yield what is wrong with a request."""
    if body.keys() - {"model", "messages", "tools", "limit", "calls"}:
        yield "there is a field that is not known"
    if not body.get("messages") or body["messages"][-1]["role"] != "user":
        yield "the last message must be the user's"
    called = {call["id"] for one in body["messages"] for call in one.get("calls", ())}
    answered = {result["id"] for one in body["messages"] for result in one.get("results", ())}
    if called != answered:
        yield "each call needs a result"
