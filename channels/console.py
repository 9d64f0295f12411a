"""Channel inside the process."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar, Literal

from channels.base import (
    BeforeSend,
    Capabilities,
    ChannelConfig,
    Emit,
    PostPart,
    Unreachable,
    no_before_send,
)
from gateway.core.clock import new_id
from gateway.core.events import (
    ChannelName,
    ConnectionChanged,
    EventId,
    MessageId,
    Notification,
    Post,
    Receipt,
)


class ConsoleConfig(ChannelConfig):
    """The channel inside the process, for tests."""

    unrunnable: ClassVar = "the console is for tests, which make it themselves; remove the channel"

    platform: Literal["console"]


class LocalChannel:
    """Adapter without a platform; implements `channels.base.Channel`."""

    capabilities = Capabilities(
        platform="console", formatting="Markdown is shown as it is.", replies=True
    )

    def __init__(
        self,
        name: ChannelName,
        show: Callable[[PostPart], None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Call `show` with each part as it is sent; its errors come out of `send`."""
        self.name = name
        self._show = show
        self._now = now
        self._emit: Emit | None = None
        self._up = asyncio.Event()
        self._is_open = False
        self._count = itertools.count(1)

    async def receive_events(self, *events: Notification) -> None:
        """Emit these together; return once they are durable. Waits until `run` is up."""
        await self._up.wait()
        assert self._emit is not None
        await self._emit(events)

    def _new_event_id(self) -> EventId:
        return EventId(new_id(self._now()))

    async def run(self, emit: Emit) -> None:
        self._emit = emit
        self._is_open = True  # waiting parts are sent as soon as the connection is reported
        try:
            up = ConnectionChanged(
                id=self._new_event_id(), channel=self.name, up=True, reason="", sent=self._now()
            )
            await emit([up])
            self._up.set()
            await asyncio.Event().wait()
        finally:
            self._is_open = False
            self._up.clear()

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        if not self._is_open:
            raise Unreachable("the console is not open")
        await before_send()
        self._show(part)
        return Receipt(ids=(MessageId(str(next(self._count))),))
