"""Kit of the supervisor: a channel with log, outbox and supervisor; both sides talk constantly."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from channels.aio import run_to_completion
from channels.base import Channel
from gateway.core.clock import Clock
from gateway.core.events import ConnectionChanged, DeliveryReport, Message, Notification, Post, PostKey
from gateway.core.facts import MESSAGE_KINDS, CursorMoved, PostQueued, address_of, dedup_key
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.stream.outbox import Outbox
from gateway.stream.supervisor import ChannelSupervisor
from tests.channels.conformance.platforms.base import Kit
from tests.kits.supervisor import EmitIntake, ToldOwners
from tests.kits.tasks import LooseTasks


class Line:
    """One account at work."""

    def __init__(self, kit: Kit, channel: Channel, store: Store, clock: Clock) -> None:
        self.kit, self.store, self.clock = kit, store, clock
        self.tasks = LooseTasks()
        self.links: list[tuple[bool, str]] = []
        self.told: list[str] = []
        """Notices to owners."""
        self.said = self.posted = 0
        self.slow_s = 0.0
        """Seconds that an append takes."""
        name = channel.name
        self.outbox = Outbox(store, {name: channel}, clock, self.tasks, redactor=Redactor())
        self.stats = GatewayStats({name: channel.capabilities.platform}, clock.now())
        self.runner = ChannelSupervisor(
            {name: channel},
            clock=clock,
            stats=self.stats,
            outbox=self.outbox,
            owners=ToldOwners(self.told),
            tasks=self.tasks,
        )

    async def emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Append as the intake does: known events once; links go to the outbox."""
        await asyncio.sleep(self.slow_s)
        now, entries = self.clock.now(), list[NewEntry]()
        for event in batch:
            at = address_of(event)
            place = at.conversation if at is not None else None
            entries.append(NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event)))
        moved = [NewEntry(fact=CursorMoved(channel=self.kit.name, value=cursor), at=now)] if cursor is not None else []
        await self.store.append([*entries, *moved])
        self.stats.count_events(self.kit.name, batch, now)
        for event in batch:
            if isinstance(event, ConnectionChanged):
                self.links.append((event.up, event.reason))
                self.outbox.set_link_up(event.channel, event.up)

    async def talk(self, pause_s: float) -> None:
        """Let alice write a line and the bot another, again and again."""
        while True:
            await self.kit.say(f"line {self.said}")
            self.said += 1
            await run_to_completion(self.post(f"post {self.posted}"))
            await asyncio.sleep(pause_s)

    async def more(self, count: int) -> None:
        """Return once so many more lines were sent."""
        until = self.said + count
        async with asyncio.timeout(30):
            while self.said < until:
                await asyncio.sleep(0.002)

    async def post(self, text: str) -> None:
        now, to = self.clock.now(), self.kit.address("room")
        post = Post(key=PostKey(text.replace(" ", "")), to=to, text=text)
        entry = NewEntry(fact=PostQueued(post=post), at=now, conversation=to.conversation, key=f"post:{post.key}")
        await self.store.append([entry])
        self.posted += 1

    async def heard(self) -> list[str]:
        """Return alice's lines in the log, in its order."""
        facts = [one.fact for one in await self.store.entries(kinds=MESSAGE_KINDS)]
        return [fact.text for fact in facts if isinstance(fact, Message)]

    async def states(self) -> list[str]:
        facts = [one.fact for one in await self.store.entries(kinds=("delivery",))]
        return [fact.state for fact in facts if isinstance(fact, DeliveryReport)]

    async def settled(self) -> None:
        """Return once all lines are in the log, and all posts are delivered."""
        try:
            async with asyncio.timeout(30):
                while len(await self.heard()) < self.said or len(await self.states()) < self.posted:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            lost = {f"line {number}" for number in range(self.said)} - set(await self.heard())
            raise AssertionError(
                f"lost: {sorted(lost)} of {self.said}; {len(await self.states())} of {self.posted} delivered"
            ) from None


@contextlib.asynccontextmanager
async def line(tmp: Path, kit: Kit, channel: Channel, clock: Clock) -> AsyncIterator[Line]:
    """Return whether the channel is up."""
    async with await Store.open(tmp / "log.db", clock) as store:
        it = Line(kit, channel, store, clock)
        await it.outbox.recover()
        it.runner.start(EmitIntake(lambda _: it.emit))
        try:
            async with asyncio.timeout(30):
                while not it.links:
                    await asyncio.sleep(0.005)
            yield it
        finally:
            await it.outbox.drain(0)
            await it.runner.close()
            await it.outbox.close()
            for task in list(it.tasks.running):
                task.cancel()
            await asyncio.gather(*it.tasks.running, return_exceptions=True)
