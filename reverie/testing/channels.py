"""What the tests of all platforms share: a test that is a coroutine, and a channel that runs."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from channels.base import Channel
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged, Message, Notification

P = ParamSpec("P")
ChannelT = TypeVar("ChannelT", bound=Channel)
EventT = TypeVar("EventT", bound=Notification)


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end, with five minutes at most: on a busy machine all takes its
    time.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 300))

    return run


class Recorder:
    """Takes what a channel emits, as the gateway would."""

    def __init__(self, cursor: str | None = None) -> None:
        """`cursor`: the one that the channel was made with, where a test asks for the last durable
        one.
        """
        self.asked = 0
        """Calls of `emit`, also those that still wait."""
        self.seen: list[Notification] = []
        self.batches: list[tuple[int, str | None]] = []
        """Of every emit: how many events, and the cursor."""
        self.open = asyncio.Event()
        self.open.set()
        """Clear it, and `emit` blocks."""
        self.broken: Exception | None = None
        """Raised by the next `emit`."""
        self._first_cursor = cursor
        self._news = asyncio.Event()

    async def emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        self.asked += 1
        self._news.set()
        await self.open.wait()
        if self.broken is not None:
            raise self.broken
        self.seen += batch
        self.batches.append((len(batch), cursor))
        self._news.set()

    @property
    def cursors(self) -> list[str]:
        return [cursor for _, cursor in self.batches if cursor is not None]

    @property
    def cursor(self) -> str | None:
        """The last durable one."""
        return self.cursors[-1] if self.cursors else self._first_cursor

    def all(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.seen if isinstance(event, kind)]

    @property
    def links(self) -> list[bool]:
        """The link's state, each time that it was told."""
        return [link.up for link in self.all(ConnectionChanged)]


class Run(Recorder, Generic[ChannelT]):
    """A channel, what it emitted, and its `run`. Made where a loop runs; `end` it."""

    step_s: ClassVar[float] = 1.0
    """How much time `until_advancing` lets pass at once."""

    def __init__(self, channel: ChannelT, cursor: str | None = None) -> None:
        super().__init__(cursor)
        self.channel = channel
        self.task = asyncio.create_task(channel.run(self.emit))
        self.task.add_done_callback(lambda _: self._news.set())

    async def until(self, true: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Return once it is so; asked after each emit. Raises what ended `run` before, TimeoutError
        if it never is.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not true():
                    if self.task.done():
                        self.task.result()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"seen so far: {self.seen[-20:]}") from None

    async def until_advancing(self, clock: ManualClock, true: Callable[[], bool]) -> None:
        """Let `step_s` pass again and again, with time for the sockets in between, until it is
        so.
        """
        async with asyncio.timeout(30):
            while not true():
                clock.advance(self.step_s)
                await asyncio.sleep(0.001)

    async def one(self, kind: type[EventT], number: int = 1) -> EventT:
        """The `number`th of a kind, as soon as it is there."""
        await self.until(lambda: len(self.all(kind)) >= number)
        return self.all(kind)[number - 1]

    @property
    def messages(self) -> list[Message]:
        return self.all(Message)

    async def message(self, number: int = 1) -> Message:
        return await self.one(Message, number)

    async def up(self, times: int = 1) -> None:
        """Return once the channel has been connected so often."""
        await self.until(lambda: self.links.count(True) >= times)

    async def end(self) -> None:
        """Cancel `run`; return once it has ended."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
