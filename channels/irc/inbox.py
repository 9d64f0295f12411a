"""What was heard, and what of it is durable once it is emitted."""

from collections.abc import Callable
from itertools import chain

from channels import inbox
from channels.base import Emit
from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.events import ConnectionChanged, Message, Notification

BATCH_SIZE = 256
STUCK_TIMEOUT_S = 15.0
"""Nothing was taken for so long: a server would soon end a connection that nobody reads."""
MAX_HELD = 8192
"""Then so many are held at most."""

_QueueItem = tuple[Notification | None, str | None]


class IrcNotificationQueue(inbox.BackpressureBuffer[_QueueItem]):
    """Notifications, each with the cursor that becomes durable with it.

    IRC tells nothing twice. So while nobody takes what was heard (the log cannot be written) it goes on being read, and
    past `MAX_HELD` the oldest leaves first: what is said to nobody in particular before what is said to us.
    """

    def __init__(self, pause: Callable[[bool], None] = lambda _: None) -> None:
        super().__init__(pause)
        self.dropped_count = 0

    def put_notification(self, notification: Notification | None, cursor: str | None = None) -> None:
        """As `put`. Without a notification the cursor becomes durable by itself."""
        self.put((notification, cursor))
        if len(self._items) > MAX_HELD:
            self._drop_oldest(MAX_HELD // 8)

    async def resume_when_stuck(self, clock: Clock) -> None:
        """See to it that reading goes on also if nothing is taken for long. Ends only by cancellation."""
        while True:
            await self.wait_until_full()
            try:
                await with_timeout(clock, STUCK_TIMEOUT_S, self.wait_for_room())
            except TimeoutError:
                self._capacity = float("inf")  # until it is drained
                self._signal_room()

    def _drop_oldest(self, count: int) -> None:
        held = list(self._items)
        talk = (
            place
            for place, (one, _) in enumerate(held)
            if not isinstance(one, ConnectionChanged) and not _is_addressed(one)
        )
        rest = (place for place, (one, _) in enumerate(held) if _is_addressed(one))
        gone = {place for place, _ in zip(chain(talk, rest), range(count), strict=False)}
        self.dropped_count += sum(isinstance(held[place][0], Message) for place in gone)
        self._items.clear()
        self._items.extend(item for place, item in enumerate(held) if place not in gone)

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by what `emit` raises."""
        while True:
            taken = await self.get_batch(BATCH_SIZE)
            batch = [notification for notification, _ in taken if notification is not None]
            cursor = next((moved for _, moved in reversed(taken) if moved is not None), None)
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)


def _is_addressed(one: Notification | None) -> bool:
    return isinstance(one, Message) and one.kind != "room"
