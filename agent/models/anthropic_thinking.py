"""Answers that thought before they called tools, as long as they may be sent back. No IO.

Obeys platform.claude.com/docs/en/build-with-claude/{extended-thinking, preserved-thinking}: within a tool loop such
an answer goes back verbatim or without its thinking, and newer models bind thinking to exactly what was in front of
it (tools, system, messages; not the marks).
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.models.base import ModelMessage, TextPart, ToolCall, ToolResult

Json = dict[str, object]

_MAX_ANSWERS = 256
"""A loop has tens at most, a gateway a few at a time."""


class RequestSuffix(NamedTuple):
    """What is told for one request only, at its end. Empty: nothing."""

    aside: str = ""
    """In the user's words."""
    now: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingAnswer:
    """One such answer."""

    prefix_digest: str
    """`PrefixHash.digest` of all that was in front of it."""
    suffix: RequestSuffix
    """What was told right in front of it for that request only: the thinking is bound to it, too."""
    text: str
    calls: tuple[ToolCall, ...]
    """At least one."""
    content: Sequence[Json] = field(repr=False)
    """As it came."""


RecallThinking = Callable[[ModelMessage], ThinkingAnswer | None]
"""Given an assistant's `ModelMessage`: the answer that it was, if that thought and is remembered."""


class PrefixHash:
    """A hash over what stands in front of an answer. Nothing is hashed before somebody asks."""

    def __init__(self, head: object) -> None:
        self._head = head
        self._hash = hashlib.sha256()
        self._hashed_count = -1
        """Messages that are in it. -1: not even the head."""

    def digest(self, messages: Sequence[Json]) -> str:
        """Hash the head and `messages`, which begin with those of the call before, all but its last two."""
        if self._hashed_count < 0:
            self._hash.update(_canonical_json(self._head))
            self._hashed_count = 0
        for message in messages[
            self._hashed_count : -2
        ]:  # what is told stands in one of the last, and is the other one
            self._hash.update(_canonical_json(message))
            self._hashed_count += 1
        whole = self._hash.copy()
        for message in messages[self._hashed_count :]:
            whole.update(_canonical_json(message))
        return whole.hexdigest()


class ThinkingStore:
    """Those of one model. What is not remembered any more goes back without thinking, which the API allows."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, ThinkingAnswer | None] = OrderedDict()
        """By the first call's id. None: it goes back without, and so does what comes later in its loop."""

    def recall(self, said: ModelMessage) -> ThinkingAnswer | None:
        """Return the answer that `said` repeats, word for word and call for call."""
        calls = tuple(part for part in said.parts if isinstance(part, ToolCall))
        thought = self._answers.get(calls[0].id) if calls else None
        if thought is None:
            return None
        words = "".join(part.text for part in said.parts if isinstance(part, TextPart)).strip()
        return thought if (thought.text, thought.calls) == (words, calls) else None

    def remember(self, thought: ThinkingAnswer, conversation: Sequence[ModelMessage]) -> None:
        """Remember an answer to `conversation`."""
        given_up = any(self._answers.get(ident, thought) is None for ident in _loop_call_ids(conversation))
        self._answers[thought.calls[0].id] = None if given_up else thought
        while len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def disable(self, idents: Sequence[str]) -> None:
        """Never again send the thinking of these, nor of what comes later in their loops."""
        self._answers.update(dict.fromkeys(idents))


def _loop_call_ids(conversation: Sequence[ModelMessage]) -> Iterator[str]:
    """Yield the first call's id of each answer since the user spoke."""
    for said in reversed(conversation):
        if said.role == "user" and not any(isinstance(part, ToolResult) for part in said.parts):
            return
        yield from [part.id for part in said.parts if isinstance(part, ToolCall)][:1]


def _canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
