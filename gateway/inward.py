"""The way in of what happens inside: it becomes durable, is judged, and what is due reaches the inbox."""

from collections.abc import Callable

from agent.signals import Level
from gateway import attention
from gateway.access import Decision
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import Alarm, Delivery, Finished
from gateway.inbox import Arrival
from gateway.records import Judged, inner, key_of
from gateway.store import Entry, Store

INSIDE = Decision(allowed=True, role="guest", rule="from inside")


class Inward:
    """Takes in what the gateway tells its agents."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        attention_policy: attention.Policy,
        bindings: Bindings,
        *,
        arrived: Callable[[Arrival], None],
        level: Callable[[], Level] = lambda: "present",
    ) -> None:
        """`arrived` is called on the event loop with what is due, once it is durable. `level`: how near people are."""
        self._store = store
        self._clock = clock
        self._attention = attention_policy
        self._bindings = bindings
        self._on_ready = arrived
        self._level = level

    async def submit(self, event: Alarm | Finished) -> None:
        """Returns once it is durable. The same event twice is one. Without a place it goes to the agent by itself.

        Raises ValueError for one that concerns no place and no agent.
        """
        if event.at is None and not event.agent:
            raise ValueError("it concerns nobody")
        place = event.at.conversation if event.at is not None else inner(event.agent)
        judged, now = self.judge(event), self._clock.now()
        noticed = Entry(fact=event, at=now, conversation=place, key=key_of(event))
        written, _ = await self._store.append([noticed, Entry(fact=judged, at=now, conversation=place, cause=noticed)])
        if written.is_new and judged.fate == "due":
            own = event.at is not None
            self._on_ready(Arrival(conversation=place, urgency=judged.urgency, type=judged.type, handle_in_place=own))

    def judge(self, event: Alarm | Finished | Delivery) -> Judged:
        """What becomes of it. For the outbox, which writes that down with the delivery."""
        listen = self._bindings.find(event.at).listen if event.at is not None else "all"
        return attention.judge(self._attention, event, INSIDE, listen, level=self._level())
