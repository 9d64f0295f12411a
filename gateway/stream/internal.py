"""Intake of events from inside the gateway: they are judged and appended."""

from gateway.access.policy import AccessDecision
from gateway.core.clock import Clock
from gateway.core.events import Alarm, DeliveryReport, TaskFinished
from gateway.core.facts import Judgement, dedup_key, inner_conversation
from gateway.store import NewEntry, Store
from gateway.stream.attention import LiveAttention
from gateway.stream.routing import Bindings

INTERNAL_DECISION = AccessDecision(allowed=True, role="guest", rule="from inside")


class InternalIntake:
    """Intake of alarms and finished tasks."""

    def __init__(
        self, store: Store, clock: Clock, attention: LiveAttention, bindings: Bindings
    ) -> None:
        self._store, self._clock = store, clock
        self._attention, self._bindings = attention, bindings

    async def submit(self, event: Alarm | TaskFinished, *, cause: NewEntry | None = None) -> None:
        """Append and judge an event. Returns once it is durable; a repeated event is ignored.

        An event without a place goes to the agent's inner conversation. Raises ValueError for one
        without place and agent. `cause`: appended with it.
        """
        if event.at is None and not event.agent:
            raise ValueError("it concerns nobody")
        place = event.at.conversation if event.at is not None else inner_conversation(event.agent)
        judged, now = self.build_judgement(event), self._clock.now()
        noticed = NewEntry(
            fact=event, at=now, conversation=place, key=dedup_key(event), cause=cause
        )
        judgement = NewEntry(fact=judged, at=now, conversation=place, cause=noticed)
        await self._store.append([*([cause] if cause is not None else []), noticed, judgement])

    def build_judgement(self, event: Alarm | TaskFinished | DeliveryReport) -> Judgement:
        """Return the judgement of an event. The outbox appends that of a delivery together with
        it.
        """
        listen = self._bindings.find(event.at).listen if event.at is not None else "all"
        return self._attention.assess(event, INTERNAL_DECISION, listen)
