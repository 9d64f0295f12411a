"""The last request of each conversation, as far as there is room. Pure."""

from collections import OrderedDict

from agent.cache.ask import PlannedRequest
from agent.models.base import Image

MAX_CONVERSATIONS = 256
"""Conversations."""
MAX_BYTES = 64_000_000
"""Of all that is kept, roughly: requests hold their texts and images whole, and views are kept for fewer of them."""
_BYTES_PER_TOKEN = 5


class LastRequests:
    """By agent and conversation; what was kept longest ago leaves first. The last one stays, however large it is."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, str], tuple[PlannedRequest, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, agent: str, place: str) -> PlannedRequest | None:
        """Return the last one of this conversation, if it is still here."""
        found = self._requests.get((agent, place))
        return found[0] if found is not None else None

    def put(self, ask: PlannedRequest) -> PlannedRequest | None:
        """Keep this one. Returns the one before it."""
        key, size = (ask.request.shared_key, ask.request.conversation_id), _estimate_bytes(ask)
        before, freed = self._requests.pop(key, (None, 0))
        self._requests[key] = ask, size
        self._bytes += size - freed
        while len(self._requests) > 1 and (len(self._requests) > MAX_CONVERSATIONS or self._bytes > MAX_BYTES):
            self._bytes -= self._requests.popitem(last=False)[1][1]
        return before


def _estimate_bytes(ask: PlannedRequest) -> int:
    words = (ask.estimate.size.total - ask.estimate.size.images) * _BYTES_PER_TOKEN
    if not ask.estimate.size.images:
        return words
    parts = [part for said in ask.request.conversation for part in said.parts]
    return words + sum([len(part.data) for part in parts if isinstance(part, Image)])
