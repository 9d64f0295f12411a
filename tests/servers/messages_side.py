"""The Messages API's side of `ModelApi`: checks requests, keeps account of the cache, words the answers. No sockets."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.servers.messages_answer import events, message
from tests.servers.messages_binding import verify
from tests.servers.messages_cache import MessagesCache, Ticket, missed
from tests.servers.messages_editing import edited
from tests.servers.messages_prompt import Json
from tests.servers.messages_rules import MAX_BYTES, Complaint, betas_of, check
from tests.servers.model_api_events import Answer

COUNT = "/messages/count_tokens"
_JSON = {"content-type": "application/json"}


@dataclass(kw_only=True)
class Reply:
    """What is sent for one request."""

    answer: Answer
    events: list[bytes]
    began: Callable[[], None] = lambda: None
    """To be called when the first byte goes out."""
    message: Json | None = None
    ticket: Ticket | None = None


class MessagesSide:
    """State: the cache, and the messages that `diagnostics` may name."""

    def __init__(self, *, cache: MessagesCache | None, clock: Callable[[], float], window: int | None) -> None:
        self.cache = cache
        self._counter = cache or MessagesCache(lambda text: len(text) // 4 + 1)
        self._clock = clock
        self._window = window
        self._told: dict[str, Ticket] = {}
        self._last = 0

    def refuse(self, path: str, headers: Mapping[str, str], body: Json, size: int) -> Complaint | None:
        """Return why the request is refused. `size`: of the body, in bytes."""
        if size > MAX_BYTES:
            return Complaint("Request exceeds the maximum size", 413, "request_too_large")
        wrong = check(body, headers, counting=path.endswith(COUNT))
        if wrong is None and (bound := verify(body, betas_of(headers)).wrong):
            wrong = Complaint(bound)
        if wrong is None and self._window and (tokens := self._counter.count(body)) > self._window:
            wrong = Complaint(f"prompt is too long: {tokens} tokens > {self._window} maximum")
        return wrong

    def refusal(self, wrong: Complaint) -> Reply:
        ident = self._ident("req")
        told = json.dumps(wrong.wire(ident)).encode()
        return Reply(answer=Answer(status=wrong.status, headers={"request-id": ident}, body=told), events=[])

    def count(self, body: Json) -> Reply:
        told = json.dumps({"input_tokens": self._counter.count(body)}).encode()
        return Reply(answer=Answer(headers=_JSON), events=[told])

    def reply(self, answer: Answer, headers: Mapping[str, str], body: Json) -> Reply:
        """Word the answer. The cache sees the request now, and the answer's beginning when `began` is called."""
        if answer.status != 200:
            return Reply(answer=answer, events=[])
        verdict = verify(body, betas_of(headers))
        read, applied = edited(verdict.body, self._counter.count)
        ticket = None
        if self.cache is not None:
            workspace = headers.get("x-api-key") or headers.get("authorization", "")
            ticket = self.cache.begin(read, at_s=self._clock(), workspace=workspace)
        if body.get("max_tokens") == 0:
            answer = replace(answer, text="", calls=(), thinking=None, content=(), stop="max_tokens")
        usage = answer.usage or self._usage(answer, read, ticket)
        whole = message(answer, verdict.body, usage, self._ident("msg"))
        if dropped := [*verdict.dropped, *answer.dropped]:
            whole["input_transformations"] = dropped
        if "context_management" in body:
            whole["context_management"] = {"applied_edits": applied}
        if "diagnostics" in body:
            whole["diagnostics"] = answer.diagnostics or self._diagnose(body["diagnostics"], ticket)
        if ticket is not None:
            self._told[whole["id"]] = ticket
        out = events(answer, whole)
        if not body.get("stream"):
            answer, out = replace(answer, headers=_JSON | answer.headers), [json.dumps(whole).encode()]
        return Reply(answer=answer, events=out, began=lambda: self._began(ticket), message=whole, ticket=ticket)

    def _began(self, ticket: Ticket | None) -> None:
        if self.cache is not None and ticket is not None:
            self.cache.began(ticket)

    def _usage(self, answer: Answer, body: Json, ticket: Ticket | None) -> Json:
        said = answer.text + "".join(arguments for *_, arguments in answer.calls)
        output = 0 if body.get("max_tokens") == 0 else len(said) // 4 + 1
        thought = len(answer.thinking or "") // 4
        if ticket is None:
            return {"input_tokens": len(json.dumps(body)) // 4, "output_tokens": output}
        return ticket.usage.wire(output + thought) | {"output_tokens_details": {"thinking_tokens": thought}}

    def _diagnose(self, asked: Json | None, ticket: Ticket | None) -> Json | None:
        """Return why the cache was missed. None: it was not, or nobody asked."""
        before = (asked or {}).get("previous_message_id")
        if before is None or ticket is None:
            return None
        if before not in self._told:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        why = missed(self._told[before], ticket)
        return {"cache_miss_reason": {"type": why[0], "cache_missed_input_tokens": why[1]}} if why else None

    def _ident(self, kind: str) -> str:
        self._last += 1
        return f"{kind}_{self._last}"
