"""The store open for writing: a reader, group commit, and the lock that makes it the only one.

Everything queued while a commit runs goes into the next one. The gateway's store is patient: while
the disk is full, the file is locked or a write fails, appends wait in their order and are retried
until they succeed or `give_up` is called. So no caller needs a retry of its own, and nothing is
done twice. What a log in PostgreSQL has beside that is in `gateway.store.shared`.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from channels.aio import run_to_completion, with_timeout
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Sender
from gateway.core.facts import ChannelCardPinned, Fact, Seq
from gateway.core.frozen import frozen
from gateway.store.active import ActiveConversations, read_conversation
from gateway.store.appends import AppendPlan, EntryDraft, draft_entries, key_digest
from gateway.store.files import LostEnd, adopt_rescued, find_lost_end, mark_path
from gateway.store.log import Log, Role
from gateway.store.reader import LogRow, StoreReader, open_log
from gateway.store.rebuild import prepare_tables
from gateway.store.schema import (
    ServerStore,
    StoreLocation,
    StoreLock,
    create_store_file,
    local_path,
    migrate_schema,
    unreadable_error,
)
from gateway.store.sqlite_log import SqliteLog
from gateway.store.types import (
    AppendFailed,
    AppendResult,
    CommitUncertain,
    LogEntry,
    LogError,
    LogLocked,
    NewEntry,
    StoreClosed,
    StoreError,
    StoreFileLost,
    StoreUnreadable,
    UnreadEntries,
)

logger = logging.getLogger("reverie.store")

Subscriber = Callable[[Sequence[LogEntry]], None]

AppendExtension = Callable[[Sequence[NewEntry]], Sequence[NewEntry]]
"""Returns what is appended with these entries, in their transaction."""
MAX_BATCH_ENTRIES = 2_000
"""Entries in one transaction at most (one append of more is one transaction all the same)."""
KEEP_KEY = "INSERT INTO archived_key (digest, seq) VALUES {} ON CONFLICT DO NOTHING"
FIRST_RETRY_S, MAX_RETRY_S = 0.25, 5.0
"""Delay between two retries of a patient store: as long as the failures have lasted, between these
two."""
MAX_LOCKED_RETRY_S = 1.0
"""The longest such delay while another program holds the lock."""
LOCK_GRACE_S = 5.0
"""How long another program's lock lasts before it counts as an outage; other failures do at
once."""


@dataclass(slots=True)
class _PendingAppend:
    drafts: tuple[EntryDraft, ...]
    done: asyncio.Future[tuple[AppendResult, ...]]


class _Subscription(NamedTuple):
    subscriber: Subscriber
    fact_types: tuple[type[Fact], ...]
    own: bool | None
    where: Callable[[Fact], bool] | None


@frozen(kw_only=False)
class StoreOutage:
    """State in which the log cannot be written."""

    since: datetime
    reason: str


class Store(StoreReader):
    """The log and all tables derived from it. Made by `open`; close it, or use it in `async
    with`.
    """

    def __init__(
        self,
        location: StoreLocation,
        reading: Log,
        writing: Log,
        lock: StoreLock,
        *,
        last: Seq,
        lost_end: LostEnd | None,
        retry_clock: Clock | None,
    ) -> None:
        """`last`: the log's last position. `retry_clock`: of a patient store. None: a failed append
        is refused.
        """
        super().__init__(location, reading)
        self.lost_end = lost_end
        """What the log had and has no more, as it was opened; known until the next append. None:
        nothing."""
        self.last = last
        """Last position of the log whose entry was published to the subscribers."""
        self.commits = 0
        self.outage: StoreOutage | None = None
        """Reason and start of an outage of a patient store. None: it can be written, as far as it
        is known."""
        self._writing, self._lock = writing, lock
        writing.mark = mark_path(self.path)
        self._retry_clock = retry_clock
        self._failing: tuple[datetime, float] | None = None
        """Start of the failures, by the wall clock and the monotonic clock. None: the last try
        succeeded."""
        self._given_up = asyncio.Event()
        self._working = asyncio.Event()
        """Set while there is no outage, and once it is given up."""
        self._working.set()
        self.outage_listeners = list[Callable[[StoreOutage | None], None]]()
        """Called when an outage begins or has another reason, and with None when it is over, on the
        event loop. They return at once."""
        self._queue = deque[_PendingAppend]()
        self._wake = asyncio.Event()
        self._closing = False
        self._is_writing = False
        self._extension: AppendExtension | None = None
        self._is_behind = False
        """Other processes may have appended what was not read yet."""
        self._subscriptions = dict[int, _Subscription]()
        """By a number that grows."""
        self._subscribed = itertools.count()
        self._wanting = dict[type[Fact], list[int]]()
        """The subscriptions for a kind, in their order; asked again after each change of them."""
        self._active = ActiveConversations(last)
        self.subscribe(self._active.on_appended)
        self._task = asyncio.create_task(self._run(), name="store writer")

    @classmethod
    async def open(
        cls,
        location: StoreLocation,
        clock: Clock,
        *,
        patient: bool = False,
        locked_s: float = 1.0,
        is_shared: bool = False,
    ) -> Self:
        """Open for writing, creating the file and its folders if they are missing, and migrating
        it.

        Takes time that does not grow with the log. Raises StoreInUse, StoreTooNew or
        StoreUnreadable; never deletes anything. `patient`: while the log cannot be written, appends
        wait by `clock`; one try waits for another program's lock for `locked_s` of real time.
        Otherwise the clock is only used for the start time in the lock file. `is_shared`: of a
        database, which other processes may have open so, too; then it is a `SharedStore`, whose
        `join` comes before the first append.
        """
        retry_clock = clock if patient else None
        if isinstance(location, ServerStore):
            from gateway.store.shared import SharedStore  # noqa: PLC0415 - it imports this file

            shared = await SharedStore.open_database(
                location, clock, retry_clock, is_shared=is_shared
            )
            return cast("Self", shared)

        def prepare(log: SqliteLog) -> None:
            log.prepare_writing(location, locked_s if patient else None)
            prepare_tables(log, location)

        lock = await asyncio.to_thread(_prepare_file, location, clock)
        return await cls._connect(location, lock, retry_clock, "writer", prepare)

    @classmethod
    async def _connect(
        cls,
        location: StoreLocation,
        lock: StoreLock,
        retry_clock: Clock | None,
        role: Role,
        prepare: Callable[[Any], None],
    ) -> Self:
        """Connect to a store that is there. `prepare`: called with the connection that appends, in
        its thread.

        Raises as `open`, and releases the lock then.
        """
        logs = list[Log]()
        try:
            logs.append(writing := await open_log(location, role))
            await writing.run(prepare, writing)
            last = await writing.run(writing.last_seq)
            lost_end = await writing.run(find_lost_end, writing, local_path(location))
            logs.append(reading := await open_log(location, "reader"))
        except BaseException as error:
            for log in logs:
                await log.aclose()
            lock.release()
            if isinstance(error, LogError):
                raise unreadable_error(location, error) from error
            raise
        return cls(
            location, reading, writing, lock, last=last, lost_end=lost_end, retry_clock=retry_clock
        )

    async def close(self) -> None:
        """Write the queue, then release the file and the lock. Idempotent."""
        await run_to_completion(self._release())  # also if the caller is cancelled repeatedly

    async def _release(self) -> None:
        try:
            self._closing = True
            self.give_up()
            self._wake.set()
            await asyncio.wait([self._task])
        finally:
            await self._writing.aclose()
            await super().close()
            self._lock.release()

    # Conversations in memory

    async def activate(self, conversation: ConversationId) -> None:
        """Keep in memory what the turns of a conversation ask for, if there is not too much of it.

        `unread_entries`, `unread_urgency`, `newest_senders` and `pinned_card` cost no trip to the
        database then.
        """
        read = partial(self._read, read_conversation, self._reading, conversation)
        try:
            await self._active.activate(conversation, read)
        except LogError as error:
            raise self._read_error(error) from error

    async def unread_entries(
        self, conversation: ConversationId, *, most: int, after: int = 0
    ) -> UnreadEntries:
        if (active := self._active.kept.get(conversation)) is not None:
            return active.unread_entries(most=most, after=after)
        return await super().unread_entries(conversation, most=most, after=after)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        if (active := self._active.kept.get(conversation)) is not None:
            return active.unread_urgency()
        return await super().unread_urgency(conversation)

    async def pinned_card(self, conversation: ConversationId) -> ChannelCardPinned | None:
        if (active := self._active.kept.get(conversation)) is not None:
            return active.card
        return await super().pinned_card(conversation)

    async def newest_senders(
        self, conversation: ConversationId, *, before: int, most: int
    ) -> list[Sender]:
        active = self._active.kept.get(conversation)
        if (
            active is not None
            and (found := active.newest_senders(before=before, most=most)) is not None
        ):
            return found
        return await super().newest_senders(conversation, before=before, most=most)

    # Appends

    async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
        """Write the entries in one transaction, all or none; return once they are on the disk.

        The results are in the order of the entries. Concurrent callers share commits, in the order
        of their calls. Raises ValueError for an entry that can never be stored (a time without
        zone, a lone surrogate, a cause that does not precede it in the append or in the log);
        AppendFailed if the database refuses: nothing of this append is written, or its text says
        that this is not known, and others are not affected; StoreClosed after `close`. A patient
        store does not raise for temporary failures (disk full, locked, ...): the append waits until
        it is written, or until `give_up`, and then raises StoreClosed. Cancelled, the entries are
        completely written or not at all.
        """
        if self._closing or (self.outage is not None and self.given_up):
            raise StoreClosed("the store is closed")
        more: Sequence[NewEntry] = ()
        is_busy = self._queue or self._is_writing or self._failing is not None
        if self._extension is not None and not is_busy:
            more = self._extension(entries)
        drafts = draft_entries([*entries, *more])
        if not drafts:
            return ()
        call = _PendingAppend(drafts, asyncio.get_running_loop().create_future())
        self._queue.append(call)
        self._wake.set()
        return (await call.done)[: len(entries)]

    def extend_appends(self, extension: AppendExtension) -> None:
        """Append with the entries of an append, in its transaction, those that `extension` returns
        for them.

        It is called on the event loop as `append` is, if that is written at once, and not while
        another one is being written. It must return at once.
        """
        self._extension = extension

    def subscribe(
        self,
        subscriber: Subscriber,
        *fact_types: type[Fact],
        own: bool | None = None,
        where: Callable[[Fact], bool] | None = None,
    ) -> Callable[[], None]:
        """Call this from now on with the new entries of each append whose facts are of these types;
        none given: of all. Returns a function that ends it, at once.

        With those that other processes append to the same log, too; those of kinds that only a
        newer version knows are left out. `own`: with this process's alone, or (False) with those of
        the others alone. `where`: with those of which it is true alone.

        It is called on the event loop once the append has succeeded, in the order of the log,
        before the caller of `append` continues, and also if that caller was cancelled. It must
        return at once. Subscribers are called in the order of their subscriptions; an exception is
        logged, and keeps nothing from the others or the append's caller. One that subscribes while
        an append is published sees those after it.
        """
        number = next(self._subscribed)
        self._subscriptions[number] = _Subscription(subscriber, fact_types, own, where)
        self._wanting.clear()

        def unsubscribe() -> None:
            self._subscriptions.pop(number, None)
            self._wanting.clear()

        return unsubscribe

    async def follow(self) -> None:
        """Publish from now on what other processes append, and return once all that they have
        appended is published.

        First all since it was opened: what subscribers have loaded meanwhile they see again. A file
        has no others.
        """

    async def move_out(self, rows: Sequence[LogRow]) -> None:
        """Delete entries that a file beside the store holds durably. Their keys are known for good.

        Raises StoreError, also while the store cannot be written: then nothing is deleted.
        """
        if self.outage is not None:
            raise StoreUnreadable(f"the log cannot be written: {self.outage.reason}")
        await self._writing.run(_delete_moved, self._writing, rows)

    async def _run(self) -> None:
        try:
            while self._queue or not self._closing:
                if self._failing is None or self.given_up:
                    await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    batch = [self._queue.popleft()]
                    room = MAX_BATCH_ENTRIES - len(batch[0].drafts)
                    while self._queue and len(self._queue[0].drafts) <= room:
                        batch.append(self._queue.popleft())
                        room -= len(batch[-1].drafts)
                    self._is_writing = True
                    await self._write(batch)
                    self._is_writing = False
                if self._is_behind:
                    await self._read_news()
                if (
                    self._failing is not None
                    and self._retry_clock is not None
                    and not self.given_up
                ):
                    await self._probe(self._retry_clock)
        finally:  # not empty only if the task was cancelled
            self._closing = True
            self._refuse([], StoreClosed("the store was closed before this was written"))

    async def _write(self, batch: list[_PendingAppend]) -> None:
        """Write the batch, without appends that were cancelled before; a patient store retries. One
        that cannot be written is refused alone.
        """
        batch = [call for call in batch if not call.done.done()]
        while not all(call.done.done() for call in batch):
            self._is_behind = False
            try:
                plan = await self._writing.run(
                    self._writing.append_without_refused,
                    [call.drafts for call in batch],
                    self.last,
                )
            except asyncio.CancelledError:
                self._refuse(
                    batch, StoreClosed("the store was closed while this was being written")
                )
                raise
            except Exception as error:  # noqa: BLE001 - any error is the caller's result, and others are written
                if not await self._may_retry(self._explain_failure(error), batch):
                    return
                if not isinstance(error, CommitUncertain):  # else the same batch finds out
                    batch = [call for call in batch if not call.done.done()]
            else:
                self._publish_plan(batch, plan)
                return

    def _publish_plan(self, batch: Sequence[_PendingAppend], plan: AppendPlan) -> None:
        if plan.before:
            self._publish_news(plan.before)
        if self._failing is not None or self.outage is not None:
            self._mark_working()
        if plan.rows:
            self.commits += 1
            self.last = plan.rows[-1].seq
        for call, answer, written in zip(batch, plan.answers, plan.written, strict=True):
            if not call.done.done():
                # its waiter goes on only after this task has paused
                call.done.set_result(answer)
            self._publish(written)

    async def _may_retry(self, error: Exception, batch: list[_PendingAppend]) -> bool:
        """Return True, after a while, if the batch is to be written again. Otherwise all of it is
        written or refused.
        """
        if isinstance(error, StoreClosed):
            self._refuse(batch, error)
        elif self._retry_clock is not None and isinstance(error, LogError) and error.reason:
            await self._wait_for_retry(self._retry_clock, error, batch)
            return True
        elif len(batch) == 1 or isinstance(error, CommitUncertain):
            refusal = error
            if not isinstance(error, ValueError):
                is_unknown = isinstance(error, CommitUncertain)
                what = "it is not known whether this was written" if is_unknown else "not written"
                refusal = AppendFailed(f"{what} to the log: {error}")
                refusal.__cause__ = error
            for call in batch:
                if not call.done.done():  # its caller may have gone meanwhile
                    call.done.set_exception(refusal)
        else:
            middle = len(batch) // 2  # bisects to the entry that fails, in few more commits
            await self._write(batch[:middle])
            await self._write(batch[middle:])
        return False

    async def _read_news(self) -> None:
        """Publish what other processes have appended. A file has none."""

    def _explain_failure(self, error: Exception) -> Exception:
        """Return the error of an append that could not be committed, as it is treated."""
        return error

    def _publish_news(self, news: Sequence[tuple[Seq, list[LogEntry]]]) -> None:
        for last, written in news:
            self.last = last
            self._publish(written, is_own=False)

    def _publish(self, written: Sequence[LogEntry], *, is_own: bool = True) -> None:
        """Call the subscribers with the new entries of one append, if it has any that this version
        knows.
        """
        wanted = dict[int, list[LogEntry]]()
        for entry in written:
            kind = type(entry.fact)
            for number in self._wanting.get(kind) or self._find_wanting(kind):
                where = self._subscriptions[number].where
                if where is None or where(entry.fact):
                    wanted.setdefault(number, []).append(entry)
        for number in sorted(wanted):
            found = self._subscriptions.get(number)
            if found is None or found.own is (not is_own):
                continue
            try:
                found.subscriber(wanted[number])
            except (
                Exception
            ):  # a bug: the entries are written, and their caller must get the result
                logger.exception("a subscriber of the log failed")

    def _find_wanting(self, kind: type[Fact]) -> list[int]:
        found = self._wanting[kind] = [
            number
            for number, one in self._subscriptions.items()
            if not one.fact_types or kind in one.fact_types
        ]
        return found

    def _refuse(self, batch: Sequence[_PendingAppend], error: StoreClosed) -> None:
        """Refuse these appends, and all that wait."""
        for call in (*batch, *self._queue):
            if not call.done.done():
                call.done.set_exception(error)
        self._queue.clear()

    # Outages

    async def wait_until_writable(self) -> None:
        """Return once there is no outage. For what costs money, and could not be recorded. Raises
        StoreClosed.
        """
        if self.outage is not None:
            await self._working.wait()
        if self.outage is not None:
            raise StoreClosed(f"given up: {self.outage.reason}")

    def check_files(self) -> None:
        """Begin an outage if the store's files were deleted or replaced. Call it every few
        seconds.
        """
        try:
            self._writing.check_files()
        except StoreFileLost:
            self._begin_probing()

    def give_up(self) -> None:
        """Stop waiting for the end of an outage: the gateway stops."""
        self._given_up.set()
        self._working.set()

    @property
    def given_up(self) -> bool:
        """True after `give_up`."""
        return self._given_up.is_set()

    def _begin_probing(self) -> None:
        if self._failing is None and self._retry_clock is not None:
            self._failing = self._retry_clock.now(), self._retry_clock.monotonic()
            self._wake.set()

    async def _probe(self, clock: Clock) -> None:
        """Test whether the store can be written by now, when no append waits for it any more."""
        try:
            await self._writing.run(self._writing.probe)
        except LogError as error:
            await self._wait_for_retry(clock, error, [])
        else:
            self._mark_working()

    async def _wait_for_retry(
        self, clock: Clock, error: LogError, batch: list[_PendingAppend]
    ) -> None:
        """Wait until the next retry. Given up: refuse all waiting appends."""
        now, now_s = clock.now(), clock.monotonic()
        self._failing = since, since_s = self._failing or (now, now_s)
        locked = isinstance(error, LogLocked)
        if (not locked or now_s - since_s >= LOCK_GRACE_S) and (
            self.outage is None or self.outage.reason != error.reason
        ):
            self._tell_outage(StoreOutage(since, error.reason))
        longest_s = MAX_LOCKED_RETRY_S if locked else MAX_RETRY_S
        delay_s = min(max(now_s - since_s, FIRST_RETRY_S), longest_s)
        try:
            with contextlib.suppress(TimeoutError):
                await with_timeout(clock, delay_s, self._given_up.wait())
        except asyncio.CancelledError:
            self._refuse(batch, StoreClosed("the store was closed before this was written"))
            raise
        if self.given_up:
            self.outage = self.outage or StoreOutage(since, error.reason)
            self._refuse(batch, StoreClosed(f"given up before this was written: {error.reason}"))

    def _mark_working(self) -> None:
        self._failing = None
        if self.outage is not None:
            self._tell_outage(None)

    def _tell_outage(self, outage: StoreOutage | None) -> None:
        self.outage = outage
        if outage is None:
            self._working.set()
        elif not self.given_up:
            self._working.clear()
        for listener in self.outage_listeners:
            try:
                listener(outage)
            except Exception:  # a bug, and no reason to stop writing
                logger.exception("an outage of the log could not be told")


def _delete_moved(log: Log, rows: Sequence[LogRow]) -> None:
    with log.transaction():
        log.write("INSERT INTO leaving (seq) VALUES {}", [(row[0],) for row in rows])
        log.write(log.dialect.unsearch)
        log.write(KEEP_KEY, [(key_digest(row[4]), row[0]) for row in rows if row[4]])
        log.write("DELETE FROM log WHERE seq IN (SELECT seq FROM leaving)")
        log.write("DELETE FROM leaving")


class StoreTasks(asyncio.TaskGroup):
    """Tasks of one run. While the gateway stops and the log cannot be written, each ends where it
    would write.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._failure: asyncio.Future[StoreError] | None = None
        self._running = set[asyncio.Task[Any]]()

    @contextlib.contextmanager
    def watch_failure(self) -> Iterator[asyncio.Future[StoreError]]:
        """Hold the first error of the store that ends a task, in place of ending all others at
        once.

        So whoever waits for it can still tell people; it raises the error then, or cancels the
        future.
        """
        self._failure = failure = asyncio.get_running_loop().create_future()
        try:
            yield failure
        finally:
            self._failure = None
            failure.cancel()

    def cancel(self) -> None:
        """Cancel all that run."""
        for task in self._running:
            task.cancel()

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """See `asyncio.TaskGroup.create_task`."""
        work = self._run(coro)
        try:
            task = super().create_task(work, name=name, context=context)
        except (
            RuntimeError
        ):  # the group ends: what the last append still starts is cancelled like all else
            work.close()  # Python 3.13 has closed it
            work = self._run(coro)
            task = asyncio.get_running_loop().create_task(work, name=name, context=context)
            task.cancel()
        self._running.add(task)

        def end(task: asyncio.Task[Any]) -> None:
            self._running.discard(task)
            coro.close()  # a task cancelled before its first step would never close it

        task.add_done_callback(end)
        return task

    async def _run(self, work: Generator[Any, None, Any] | Coroutine[Any, Any, Any]) -> object:
        try:
            return await cast("Coroutine[Any, Any, Any]", work)
        except StoreClosed:
            if not self._store.given_up:
                raise
            return None
        except StoreError as error:
            if self._failure is None or self._failure.cancelled():
                raise
            if not self._failure.done():
                self._failure.set_result(error)
            return None


def _prepare_file(path: Path, clock: Clock) -> StoreLock:
    """Create what is missing, lock it, and migrate it. Blocking."""
    create_store_file(path)
    lock = StoreLock(path, clock.now())
    try:
        adopt_rescued(path)
        migrate_schema(path)
        lock.lock_file(path)
    except BaseException:
        lock.release()
        raise
    return lock
