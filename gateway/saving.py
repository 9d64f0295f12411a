"""Writes the state of an agent's DMN down when it has changed, with what it was told until then."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from agent.signals import DmnState, dump_state
from agent.stretch import DmnTrace
from gateway.clock import Clock
from gateway.records import DmnStateSaved
from gateway.store import NewEntry, Store

SAVE_AFTER_S: Final = 1.0
"""Writing the state can wait this long, so that nobody waits for it."""


class DmnStateSaver:
    """One agent's."""

    def __init__(
        self,
        agent: str,
        store: Store,
        clock: Clock,
        *,
        state: Callable[[], DmnState],
        stretch: DmnTrace,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`state`: as it is then. `stretch`: what it was told. `spawn` starts a task whose failure stops all."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._state = state
        self._trace = stretch
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        """Under way until it has taken the state to write."""

    def save(self, *, soon: bool) -> None:
        """Write it down: at once, or with what changes in the next second, as one entry."""
        if self._task is not None:
            if not soon:
                return
            self._task.cancel()
        self._task = self._spawn(self._write(0.0 if soon else SAVE_AFTER_S))

    async def stop(self) -> None:
        """Write now what would have been written soon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._write(0.0)

    async def _write(self, delay_s: float) -> None:
        if delay_s:
            await self._clock.sleep(delay_s)
        self._task = None
        state = self._state()
        fact = DmnStateSaved(state=dump_state(state), agent=self._agent, signals=self._trace.flush(state))
        await self._store.append([NewEntry(fact=fact, at=self._clock.now())])
