"""Append listeners are called for every entry, also if its caller was cancelled."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName
from gateway.core.facts import CursorMoved
from gateway.store import AppendResult, NewEntry, Store
from tests.kits.channels import story


def moved(value: str) -> NewEntry:
    return NewEntry(fact=CursorMoved(channel=ChannelName("x"), value=value), at=datetime(2026, 3, 1, tzinfo=UTC))


@story
async def test_told_in_order_also_if_the_caller_has_gone_and_if_another_listener_breaks(tmp_path: Path) -> None:
    told = list[str]()

    def listener(entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        assert len(entries) == len(written)
        told.extend(entry.fact.value for entry in entries if isinstance(entry.fact, CursorMoved))

    def broken(_entries: Sequence[NewEntry], _written: Sequence[AppendResult]) -> None:
        raise RuntimeError("a bug")

    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        store.add_listener(broken)
        store.add_listener(listener)
        await store.append([moved("1"), moved("2")])
        assert told == ["1", "2"]
        tasks = [asyncio.ensure_future(store.append([moved(str(number))])) for number in range(3, 30)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0)
            if number % 2:
                task.cancel()
        await asyncio.wait(tasks)
        assert [
            one.fact.value for one in await store.entries(kinds=["cursor"]) if isinstance(one.fact, CursorMoved)
        ] == told
