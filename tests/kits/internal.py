"""Intake of events from inside, played."""

from collections.abc import Awaitable, Callable

from gateway.core.events import Alarm, TaskFinished
from gateway.store import NewEntry
from gateway.stream.attention import InternalIntake


class PlayedInternal(InternalIntake):
    """Hands each alarm to the test."""

    def __init__(self, on_alarm: Callable[[Alarm], Awaitable[None]]) -> None:
        self._on_alarm = on_alarm

    async def submit(self, event: Alarm | TaskFinished, *, cause: NewEntry | None = None) -> None:
        assert isinstance(event, Alarm)
        assert cause is None
        await self._on_alarm(event)
