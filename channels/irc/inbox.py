"""What was heard, and what of it is durable once it is emitted."""

from channels import inbox
from channels.base import Emit
from gateway.events import Notification

BATCH = 256


class Inbox(inbox.Inbox[tuple[Notification | None, str | None]]):
    """Notifications, each with the cursor that becomes durable with it."""

    def tell(self, notification: Notification | None, cursor: str | None = None) -> None:
        """As `put`. Without a notification the cursor becomes durable by itself."""
        self.put((notification, cursor))

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by what `emit` raises."""
        while True:
            taken = await self.take(BATCH)
            batch = [notification for notification, _ in taken if notification is not None]
            cursor = next((moved for _, moved in reversed(taken) if moved is not None), None)
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)
