"""Workers of one gateway on a real PostgreSQL server: leases, calls and the log are the product's own."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Address, ConversationId, RoomId, SenderId
from gateway.core.facts import NoteWritten, ReminderSet
from gateway.runtime.delegation import choose_worker
from gateway.store import NewEntry, ServerStore
from gateway.store.schema import connect_server, migrate_server
from tests.kits.gateway import CONSOLE, Held, settings
from tests.kits.workers import Team, Worker, team
from tests.servers.real_postgresql import PostgresServer, missing_part

pytestmark = pytest.mark.integration
SCHEMAS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    if why := missing_part():
        pytest.skip(why)
    with PostgresServer() as found:
        yield found


def play(
    server: PostgresServer,
    tmp: Path,
    story: Callable[[Team], Awaitable[None]],
    *,
    ready: bool = True,
    count: int = 2,
    **more: Any,
) -> None:
    """Play it with so many processes. `ready`: the models answer at once."""
    url = server.url(f"agents{next(SCHEMAS)}")
    store = ServerStore(url, tmp / "reverie.db")
    with contextlib.closing(connect_server(store, "writer")) as connection:
        migrate_server(connection, store)

    async def run() -> None:
        models = [Held(Script()) for _ in range(count)]
        for one in models:
            if ready:
                one.go.set()
        async with team(settings(tmp, **more), *models, url=url) as found:
            await story(found)

    asyncio.run(run())


def person_of(worker: Worker, found: Team) -> str:
    """Return somebody whose direct chat belongs to that worker."""
    numbers = [one.cluster.number for one in found.workers]
    names = (f"ann{number}" for number in itertools.count())
    return next(
        one for one in names if choose_worker(ConversationId(f"{CONSOLE}/{one}"), numbers) == worker.cluster.number
    )


def parts(found: Team) -> tuple[Worker, Worker]:
    """Return the process that leads, and the other one."""
    leader = found.leader
    assert leader is not None
    return leader, next(one for one in found.workers if one is not leader)


def test_each_question_is_answered_once_by_the_worker_of_its_conversation(
    server: PostgresServer, tmp_path: Path
) -> None:
    async def story(found: Team) -> None:
        count = 0
        for _ in range(3):
            for worker in found.workers:
                count += 1
                await found.say(f"question {count}", sender=person_of(worker, found))
                await found.screen.until(count)
        assert [len(one.model.requests) for one in found.workers] == [3, 3]
        leader, other = parts(found)
        await found.until(lambda: not leader.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"] * 6
        assert len(found.screen.parts) == 6
        order = CommandRequest(words=("dmn", "pause"), by="olga")
        assert (await other.gateway.dispatcher.carry_out(order)).lines == ("reverie is paused.",)
        await found.until(lambda: {one.agent.state.mode.value for one in found.workers} == {"paused"})

    play(server, tmp_path, story)


def test_what_a_lost_worker_was_asked_is_answered_once_by_another_one(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(leader)
        await found.say("are you there", sender=person_of(other, found))
        assert await found.asked(1) is other
        await other.lose()
        leader.model.go.set()
        await found.screen.until(1)
        other.model.go.set()  # it was removed: what it says now is not taken any more
        await found.until(lambda: other.store.is_removed)
        await found.until(lambda: not leader.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        assert len(leader.model.requests) == len(found.screen.parts) == 1

    play(server, tmp_path, story, ready=False)


def test_a_turn_goes_on_when_its_leader_is_lost(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(other)
        name = person_of(other, found)
        await found.say("are you there", sender=name)
        assert await found.asked(1) is other
        await leader.lose()
        await found.until(lambda: found.leader is other)
        assert other.agent.state.running == (f"{CONSOLE}/{name}",)
        other.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not other.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        await found.say("and now", sender=name)
        await found.screen.until(2)
        assert len(other.model.requests) == 2
        assert not leader.model.requests

    play(server, tmp_path, story, ready=False)


def test_reminders_and_notes_are_one_for_all_processes(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        now, at = datetime.now(UTC), Address(channel=CONSOLE, room=RoomId("ann"))
        await found.say("hello", sender="ann")
        await found.screen.until(1)
        for name in ("AAAAAA", "BBBBBB"):
            fact = ReminderSet(
                reminder=name,
                agent="reverie",
                at=at,
                text=f"reminder {name}",
                by=SenderId("ann"),
                asked_by="ann",
                schedule=f"once {now.isoformat()}",
                due=now - timedelta(seconds=1),
            )
            await other.store.append([NewEntry(fact=fact, at=now, conversation=at.conversation)])
        await found.until(lambda: len(found.screen.parts) >= 2)
        await found.until(lambda: not leader.agent.state.running)

        async def is_all_told() -> bool:
            return sum("reminder" in one.heard for one in await found.turns()) >= 1 and not (
                await found.store.pending_reminders()
            )

        await found.until(is_all_told)
        alarms = await found.store.entries(kinds=["alarm"])
        assert len(alarms) == 2
        before = leader.gateway.journal.material_tokens("reverie")
        await leader.gateway.journal.recover(["reverie"])
        note = NoteWritten(agent="reverie", scope="public", title="", text="Bread is cheap.", lasting=True, by="ann")
        await other.store.append([NewEntry(fact=note, at=now, conversation=at.conversation, key="note:1")])
        await found.until(lambda: leader.gateway.journal.material_tokens("reverie") > before)

    play(server, tmp_path, story)
