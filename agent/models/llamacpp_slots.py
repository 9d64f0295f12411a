"""Which conversation is kept in which slot of a llama.cpp server. Pure.

A slot holds one evaluated prompt, and what the next one shares with it from the beginning need not be evaluated
again. Nothing is shared between slots, so two rules make the most of them:

- A conversation keeps its slot, and when there are too few, the one that was quiet for longest loses its own.
- A slot that holds nothing is prepared with what all conversations of an agent begin with. Until it is, a new
  conversation rather takes over one that begins in this way, if that costs its conversation less than it saves.

A server that chooses by itself (`id_slot` -1) takes the slot that is most alike, also if that is another conversation's
(ggml-org/llama.cpp discussion 13606; measured: two conversations in turn evaluate their history again each time).
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from agent.models.base import ModelRequest

_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class _LlamaCppSlot:
    prefix: str = ""
    """What its prompt begins with, as `prompt_prefix` names it. Empty: it holds nothing."""
    conversation_id: str = ""
    """Whose conversation it keeps. Empty: nobody's."""
    tokens: int = 0
    """Of the prompt and the answer."""
    last_used: int = 0
    """When it was last taken, by counting. 0: never."""
    is_busy: bool = False


def prompt_prefix(request: ModelRequest) -> str:
    """Name what a request begins with: its tools and first block. Empty if it has neither."""
    if not request.blocks and not request.tools:
        return ""
    first = [block.text for block in request.blocks[:1]]
    told = json.dumps([[(t.name, t.description, t.schema) for t in request.tools], first])
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()


class LlamaCppSlots:
    """What we know of a server's slots."""

    def __init__(self, total: int) -> None:
        self._slots = [_LlamaCppSlot() for _ in range(total)]
        self._count = 0

    def acquire(self, request: ModelRequest) -> int | None:
        """Choose a slot for a request and keep it busy. None: all that could be taken are busy."""
        prefix = prompt_prefix(request)
        free = [number for number, slot in enumerate(self._slots) if not slot.is_busy]
        if not free:
            return None
        worth = sum(len(block.text) for block in request.blocks[:1]) / _CHARS_PER_TOKEN
        number = min(free, key=lambda number: self._rank(self._slots[number], request.conversation_id, prefix, worth))
        slot = self._slots[number]
        if slot.conversation_id != request.conversation_id or not slot.conversation_id:
            slot.tokens = 0
        slot.conversation_id, slot.prefix, slot.is_busy = request.conversation_id, prefix, True
        self._count += 1
        slot.last_used = self._count
        return number

    def _rank(self, slot: _LlamaCppSlot, place: str, prefix: str, worth: float) -> tuple[int, int]:
        if place and slot.conversation_id == place:
            return (0, 0)
        if slot.prefix == prefix and not slot.conversation_id:
            return (1, slot.last_used)
        if slot.prefix == prefix and slot.tokens <= 2 * worth:
            return (2, slot.last_used)
        if not slot.conversation_id:
            return (3, slot.last_used)
        return (4, slot.last_used)

    def held_tokens(self, number: int) -> int:
        """How many tokens of its conversation the slot holds. 0: it is new there."""
        return self._slots[number].tokens

    def release(self, number: int, *, tokens: int | None) -> None:
        """A slot is free again, and holds so many tokens. None: nobody knows how far it came."""
        slot = self._slots[number]
        slot.is_busy = False
        slot.tokens = slot.tokens if tokens is None else tokens

    def acquire_spare(self, known: frozenset[str], *, wanted: str = "") -> int | None:
        """Choose a slot, and keep it busy, that keeps nobody's conversation and begins with nothing of `known`.

        With `wanted`, a prefix: rather one that begins with it already, and if there is none and none is left, one of
        those that begin alike. Another agent's last one is never taken.
        """
        free = {
            number: slot.prefix
            for number, slot in enumerate(self._slots)
            if not slot.is_busy and not slot.conversation_id
        }
        alike = Counter(free.values())
        for number in sorted(free, key=lambda number: (free[number] != wanted, free[number] in known)):
            prefix = free[number]
            if not prefix or prefix not in known or (wanted and (prefix == wanted or alike[prefix] > 1)):
                self._slots[number].is_busy = True
                return number
        return None

    def release_prepared(self, number: int, prefix: str) -> None:
        """A slot begins with this now, and is free. Empty: it did not come that far."""
        self._slots[number].is_busy = False
        self._slots[number].prefix = prefix
