"""The process is cut after any durable step, and the platforms tell again what they do not know to
be taken in.

Every append is such a step. That many are let through, the last one of them and all others never
come back, and everything in memory is gone: which is what a crash at that moment is.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from gateway.core.events import Notification
from gateway.store import AppendResult, NewEntry, Store, StoreClosed
from reverie.testing.gateway import Gateway
from reverie.testing.simulated_time import JumpingClock

Script = Sequence[tuple[float, str, Notification]]
"""When, on which platform, what."""


@dataclass
class Steps:
    """How many durable steps each of the next processes takes until it is cut; the last one is
    not."""

    lives: list[int]
    taken: int = 0
    """By the process that runs now."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """The process that was cut is being cleared away: what it would still write is written
    nowhere."""

    async def never(self) -> NoReturn:
        """What was begun in the moment of the cut does not come back: it ends with the process."""
        await self.dead.wait()
        raise StoreClosed("the process is dead")


def cutting(steps: Steps) -> type[Store]:
    """A store that lets so many appends through."""

    class Cutting(Store):
        async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
            if steps.cut.is_set():
                await steps.never()
            written = await super().append(entries)
            steps.taken += 1
            if steps.lives and steps.taken >= steps.lives[0]:
                steps.cut.set()
                await steps.never()
            return written

    return Cutting


async def live(
    gateway: Gateway, clock: JumpingClock, steps: Steps, told: Script, *, end_s: float
) -> None:
    """The story until then, and after each cut the rest of it."""

    async def feed() -> None:
        for at_s, channel, event in told:
            await clock.sleep(at_s - clock.monotonic())
            await gateway.tell(channel, event)
        await clock.sleep(end_s - clock.monotonic())

    while True:
        gateway.start()
        feeding, cut = asyncio.ensure_future(feed()), asyncio.ensure_future(steps.cut.wait())
        await asyncio.wait([feeding, cut], return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if not steps.cut.is_set():
            await feeding
            await gateway.end()
            return
        feeding.cancel()
        steps.dead.set()
        await asyncio.gather(feeding, return_exceptions=True)
        await gateway.kill()
        steps.cut, steps.taken, steps.dead = asyncio.Event(), 0, asyncio.Event()
        del steps.lives[0]
