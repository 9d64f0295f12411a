"""The store in PostgreSQL, where other processes may append to the same log.

It publishes what they append, in the order of the log: before an append of its own succeeds, and
soon after each announcement. While the database is away a patient store's reads wait, too.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, cast

from channels.aio import with_timeout
from gateway.core.clock import Clock
from gateway.core.ratelimit import Rate, TokenBuckets
from gateway.store.log import Arguments, Result
from gateway.store.rebuild import prepare_tables
from gateway.store.schema import (
    ServerStore,
    StoreLock,
    create_store_file,
    local_path,
    migrate_server,
)
from gateway.store.store import MAX_LOCKED_RETRY_S, Store, StoreOutage
from gateway.store.types import (
    LogEntry,
    LogError,
    ProcessRemoved,
    ServerUnavailable,
    StoreClosed,
)

if TYPE_CHECKING:
    from gateway.store.postgres_log import PostgresLog

FOLLOW_S: Final = 1.0
"""Time after which the log is read at the latest: an announcement may have been lost."""
ANNOUNCED_RATE: Final = Rate(burst=5, per_minute=40 * 60)
"""How often it is read because something was announced. A busy log is read for several
announcements at once."""


class SharedStore(Store):
    """A `Store` in a database. Its process is a member of those that share it, or the only one."""

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 - those of a `Store`
        super().__init__(*args, **named)
        self._server: Final = cast("PostgresLog", self._writing)
        self._is_following = False
        self._looking: asyncio.Task[None] | None = None
        self._is_behind = True
        self._announced_rate: Final = TokenBuckets(ANNOUNCED_RATE)
        self._late_reading: asyncio.TimerHandle | None = None
        """For what was announced since the last reading. None: nothing was, or it is read now."""
        self._published = asyncio.Event()
        """Set when `last` has grown; then replaced by a new event."""

    @classmethod
    async def open_database(
        cls, location: ServerStore, clock: Clock, retry_clock: Clock | None, *, is_shared: bool
    ) -> Self:

        def prepare(server: "PostgresLog") -> None:
            migrate_server(server, location, is_shared=is_shared)
            if not is_shared:
                server.join(None)
            alone = server.alone if is_shared else contextlib.nullcontext
            prepare_tables(server, local_path(location), alone)

        def take_lock() -> StoreLock:
            create_store_file(local_path(location), only_directory=True)
            return StoreLock(local_path(location), clock.now(), is_shared=is_shared)

        lock = await asyncio.to_thread(take_lock)
        return await cls._connect(
            location, lock, retry_clock, "sharer" if is_shared else "writer", prepare
        )

    async def join(self, process: int) -> None:
        """Append as this process (`gateway.cluster`) from now on.

        Once the others have removed it nothing of it is written: as after `give_up`. Raises
        StoreUnreadable.
        """
        try:
            await self._writing.run(self._server.join, process)
        except LogError as error:
            raise self._read_error(error) from error

    async def follow(self) -> None:
        """See `Store.follow`. Raises StoreClosed once the store is given up."""
        if not self._is_following and self._retry_clock is not None:
            self._looking = asyncio.create_task(self._look_in_time(self._retry_clock))
        self._is_following = True
        upto = await self.last_position()
        self._look()
        while self.last < upto:
            if self.given_up:
                raise StoreClosed("given up before the log was read to its end")
            await self._published.wait()

    def give_up(self) -> None:
        super().give_up()
        if self._looking is not None:
            self._looking.cancel()
        self._published.set()  # nothing follows any more

    def follow_soon(self) -> None:
        """Read what other processes have appended: it was announced. Returns at once.

        In a busy log several announcements are read together, within 25 ms (`ANNOUNCED_RATE`).
        """
        loop = asyncio.get_running_loop()
        if self._late_reading is None:
            self._late_reading = loop.call_later(
                self._announced_rate.wait_s("", loop.time()), self._read_late
            )

    def _read_late(self) -> None:
        self._announced_rate.use("", asyncio.get_running_loop().time())
        self._look()

    def _look(self) -> None:
        if self._late_reading is not None:
            self._late_reading.cancel()
            self._late_reading = None
        self._is_behind = True
        self._wake.set()

    async def _read(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """See `StoreReader`. A patient store waits while the database cannot be used."""
        wait_s = 0.0
        while True:
            try:
                return await super()._read(function, *args)
            except ServerUnavailable as error:
                if self._retry_clock is None:
                    raise
                self._begin_probing()
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._retry_clock, wait_s, self._given_up.wait())
                if self.given_up:
                    raise StoreClosed(f"given up before this was read: {error}") from error
            wait_s = MAX_LOCKED_RETRY_S

    async def _look_in_time(self, clock: Clock) -> None:
        while not self.given_up:
            await clock.sleep(FOLLOW_S)
            self._look()

    async def _read_news(self) -> None:
        if not self._is_following or self.given_up or self._failing is not None:
            return
        self._is_behind = False
        try:
            news = await self._writing.run(self._server.read_news, self.last)
        except LogError:
            self._is_behind = True
            self._begin_probing()
        else:
            self._publish_news(news)

    def _explain_failure(self, error: Exception) -> Exception:
        if isinstance(error, ProcessRemoved):
            clock = self._retry_clock
            self.outage = StoreOutage(
                clock.now() if clock is not None else datetime.now(UTC), str(error)
            )
            self.give_up()
            closed = StoreClosed(f"not written: {error}")
            closed.__cause__ = error
            return closed
        self._is_behind = self._is_behind or isinstance(error, LogError)
        return error

    def _publish(self, written: Sequence[LogEntry], *, is_own: bool = True) -> None:
        published, self._published = self._published, asyncio.Event()
        published.set()
        super()._publish(written, is_own=is_own)
