"""The day's money of one agent's autonomous turns: a request is made only if it can be paid, whatever it costs.

What is spent is known only afterwards, so each request is taken for as dear as it may get until its turn has ended.
"""

from collections.abc import Callable

from agent.models.base import ModelRequest
from gateway.events import ConversationId


class DailyBudget:
    """One for each agent."""

    def __init__(self, *, left_usd: Callable[[], float]) -> None:
        """`left_usd`: of today's money, without the turns that run now."""
        self._left_usd = left_usd
        self._reserved: dict[str, float] = {}
        """By conversation, for the requests of the turn that runs there."""

    def reserve(self, request: ModelRequest, cost_usd: float) -> bool:
        """Whether one more request can be paid that may cost so much; if so, that is set aside until `settle`."""
        if cost_usd > 0 and sum(self._reserved.values()) + cost_usd > self._left_usd():
            return False
        self._reserved[request.conversation_id] = self._reserved.get(request.conversation_id, 0.0) + cost_usd
        return True

    def settle(self, conversation: ConversationId) -> None:
        """The turn there has ended, and what it cost is counted elsewhere now."""
        self._reserved.pop(conversation, None)
