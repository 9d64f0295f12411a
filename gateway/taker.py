"""What a loop needs of those who take its agent's turns."""

from typing import Protocol

from gateway.events import ConversationId
from gateway.lane import TurnHandle
from gateway.turns import TurnResult


class TurnTaker(Protocol):
    """Takes the turns of one agent: `gateway.minds.Mind`."""

    async def take_turn(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool, lane: TurnHandle
    ) -> TurnResult:
        """Deal with all that is unread there. Any exception but `StoreError` is a bug in that turn.

        `continuing`: go on with what was being done, also if nothing is unread.
        """

    async def dream(self, lane: TurnHandle) -> TurnResult:
        """Consolidate what was written down. The same holds of exceptions."""

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> TurnResult:
        """Deal with all that is unread there by saying once that there is no answer."""

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there."""

    def is_direct(self, conversation: ConversationId) -> bool:
        """Whether it is known as a direct chat."""

    def settle_turn(self, conversation: ConversationId) -> None:
        """The turn there has ended, and the DMN knows what it cost."""

    def material_tokens(self) -> int:
        """Written down since the last dream."""
