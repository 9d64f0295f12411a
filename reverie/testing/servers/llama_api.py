"""A loopback llama.cpp server, as far as prompts kept in slots go: tools/server/README.md. A word
is a token.

    async with LlamaApi(slots=2) as api: ...     # besides what `ModelApi` has

- Each slot holds the last prompt and answer; `timings` say how much of a new prompt it began with.
- `forgets=True`: idle slots are emptied when another one is used, and a pinned one is not filled
  again (ggml-org/llama.cpp#28139; the default of llama-server with a unified cache).
- `hangs=True`: prompts with `n_predict` 0 are never done.
"""

import json
from dataclasses import dataclass
from typing import Any

from reverie.testing.servers.model_api import Answer, ModelApi, Reply, Seen, completions

Json = dict[str, Any]
_JSON = {"content-type": "application/json"}


@dataclass(kw_only=True)
class LlamaApi(ModelApi):
    """See the top of the file."""

    slots: int = 2
    forgets: bool = False
    hangs: bool = False
    window: int = 8192

    def __post_init__(self) -> None:
        super().__init__()
        self.held: list[list[str]] = [[] for _ in range(self.slots)]
        self.timings: list[Json] = []
        """Of every completion."""

    @property
    def answered(self) -> list[Seen]:
        """Completions that were to answer something."""
        return [seen for seen in self.completions if seen.body.get("n_predict") != 0]

    @property
    def read_in(self) -> list[Seen]:
        """Completions that were not."""
        return [seen for seen in self.completions if seen.body.get("n_predict") == 0]

    @property
    def completions(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.endswith("/chat/completions")]

    def reply(self, seen: Seen) -> Reply:
        body = seen.body
        if seen.path == "/props":
            return _told({"total_slots": self.slots})
        if not seen.path.endswith("/chat/completions"):
            return super().reply(seen)
        if len(prompt := rendered(body)) > self.window:
            text = (
                f"request ({len(prompt)} tokens) exceeds the available context size "
                f"({self.window} tokens)"
            )
            error = {"code": 400, "message": text, "type": "exceed_context_size_error"}
            return Reply(
                answer=Answer(status=400, body=json.dumps({"error": error}).encode()), events=[]
            )
        reply = super().reply(seen)
        return reply if reply.answer.status != 200 else self._evaluated(reply.answer, body, prompt)

    def _evaluated(self, answer: Answer, body: Json, prompt: list[str]) -> Reply:
        read_in = body.get("n_predict") == 0
        if read_in:
            answer = Answer(stop="length", silent_after=1 if self.hangs else None)
        number = body.get("id_slot", -1)
        if number < 0:
            number = max(range(self.slots), key=lambda slot: _common(self.held[slot], prompt))
        cached = min(_common(self.held[number], prompt), len(prompt) - 1)
        self.held[number] = prompt + answer.text.split()
        if self.forgets:
            self.held = [held if slot == number else [] for slot, held in enumerate(self.held)]
        timings = {
            "cache_n": cached,
            "prompt_n": len(prompt) - cached,
            "predicted_n": len(answer.text.split()),
        }
        self.timings.append(timings)
        events = completions(answer, body)
        last = b"data: " + json.dumps({"choices": [], "timings": timings}).encode() + b"\n\n"
        return Reply(answer=answer, events=[*events[:-1], last, events[-1]])


def rendered(body: Json) -> list[str]:
    """The prompt's tokens. Raises KeyError for a message that a template would break on."""
    words = []
    for message in body["messages"]:
        words += [f"<{message['role']}>", *message["content"].split(), "<end>"]
    return [*words, "<assistant>"]


def _common(one: list[str], other: list[str]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _told(value: Json) -> Reply:
    return Reply(answer=Answer(headers=_JSON), events=[json.dumps(value).encode()])
