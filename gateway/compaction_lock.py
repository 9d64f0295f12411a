"""The lock on summaries of a conversation: one asker at a time, also across processes, and never for ever."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from channels.tasks import run_to_completion
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.ids import new_id
from gateway.records import CompactionLocked
from gateway.store import NewEntry, Store


@dataclass(slots=True, kw_only=True)
class CompactionLock:
    """A lock, as long as it is held."""

    is_held: bool
    """False: somebody else has it."""
    has_failed: bool = False
    """There is no summary."""


@contextlib.asynccontextmanager
async def acquire_compaction_lock(
    store: Store, clock: Clock, conversation: ConversationId, ttl_s: float
) -> AsyncIterator[CompactionLock]:
    """Whether this is the only one that makes a summary there, until the end. Raises StoreError.

    Given back at the end, also if it is cancelled. After a failure it is held until it expires: else each turn would
    try again, and somebody waits for each. A process that dies leaves one that expires.
    """
    holder, held = new_id(clock.now()), CompactionLock(is_held=False)
    if await _is_held_by_other(store, clock, conversation, holder):
        yield held
        return
    try:
        await _write_lock(store, clock, conversation, holder, ttl_s)
        held.is_held = not await _is_held_by_other(store, clock, conversation, holder)
        yield held
    finally:  # a cancelled append may have been written
        if not held.has_failed:
            await run_to_completion(_write_lock(store, clock, conversation, holder, 0.0))


async def _write_lock(store: Store, clock: Clock, conversation: ConversationId, holder: str, for_s: float) -> None:
    now = clock.now()
    fact = CompactionLocked(holder=holder, until=now + timedelta(seconds=for_s))
    await store.append([NewEntry(fact=fact, at=now, conversation=conversation)])


async def _is_held_by_other(store: Store, clock: Clock, conversation: ConversationId, holder: str) -> bool:
    lock = await store.compaction_lock(conversation)
    return lock is not None and lock[0] != holder and lock[1] > clock.now()
