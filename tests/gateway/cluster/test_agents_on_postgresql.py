"""Workers of one gateway on a real PostgreSQL server: leases, calls and the log are the product's own."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.cache.client import CachingModel
from agent.models.scripted import Script, ScriptRule
from gateway.access.approval_texts import Approver
from gateway.cluster.database import DatabaseCluster
from gateway.config.models import Settings
from gateway.context.schedule import OnceSchedule, format_schedule
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Address, ConversationId, RoomId, SenderId
from gateway.core.facts import ApprovalEnded, NoteWritten, ReminderSet
from gateway.runtime.agents import NOTHING_RUNNING, STOPPING
from gateway.runtime.delegation import DelegatedLoop, choose_worker
from gateway.store import NewEntry, ServerStore
from gateway.store.schema import connect_server, migrate_server
from tests.kits.gateway import CONSOLE, UNHURRIED, Held, settings
from tests.kits.workers import Team, Worker, team
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import ModelApi
from tests.servers.real_postgresql import PostgresServer, missing_part

pytestmark = pytest.mark.integration
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
SCHEMAS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    if why := missing_part():
        pytest.skip(why)
    with PostgresServer() as found:
        yield found


def play(
    server: PostgresServer, tmp: Path, story: Callable[[Team], Awaitable[None]], *, ready: bool = True, **more: Any
) -> None:
    """Play it with two processes. `ready`: the models answer at once. `more`: as of `play_on`."""
    asyncio.run(play_on(server, tmp, story, ready=ready, **more))


async def play_on(
    server: PostgresServer,
    tmp: Path,
    story: Callable[[Team], Awaitable[None]],
    *,
    ready: bool = True,
    count: int = 2,
    made: Settings | None = None,
    script: Script | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    **more: Any,
) -> None:
    """Play it with so many processes. `made`: settings, with the models to use. `script`: what these say else."""
    url = server.url(f"agents{next(SCHEMAS)}")
    store = ServerStore(url, tmp / "reverie.db")
    with contextlib.closing(connect_server(store, "writer")) as connection:
        migrate_server(connection, store)
    models = [Held(script) if made is None else None for _ in range(count)]
    for one in models:
        if ready and one is not None:
            one.go.set()
    async with team(made or settings(tmp, ("ops",), **more), *models, url=url, now=now) as found:
        await story(found)


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


def test_a_worker_that_learns_in_its_turn_that_it_was_removed_answers_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(leader)
        await found.say("are you there", sender=person_of(other, found))
        assert await found.asked(1) is other
        assert isinstance(leader.store.location, ServerStore)
        with contextlib.closing(connect_server(leader.store.location, "other")) as connection:
            connection.execute(f"DELETE FROM process WHERE number = {other.cluster.number}")
        other.is_gone = True
        for one in (other, leader):
            one.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not leader.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        assert other.store.is_removed

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
                schedule=format_schedule(OnceSchedule(time=now)),
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


def test_a_conversation_moves_without_a_change_of_its_requests(server: PostgresServer, tmp_path: Path) -> None:
    texts = ["one", "two", "three", "four", "five"]

    async def ask(found: Team, *, moves: bool) -> None:
        for count, text in enumerate(texts, 1):
            if count == 4 and moves:
                await move(found)
            await found.say(text, sender="ann")
            await found.screen.until(count)
        leader = found.leader
        assert leader is not None
        await found.until(lambda: not leader.agent.state.running)

    async def story(*, moves: bool) -> tuple[list[Any], list[int]]:
        folder = tmp_path / str(moves)
        folder.mkdir()
        async with ModelApi(cache=MessagesCache(lambda block: len(json.dumps(block)))) as api:
            provider = {"kind": "anthropic", "base_url": api.url, "api_key": "sk-secret-a"}
            models = {"main": {"provider": "a", "name": "claude-sonnet-5-5"}}
            made = settings(folder, llm={"providers": {"a": provider}, "models": models})
            read = list[int]()

            async def tell(found: Team) -> None:
                await ask(found, moves=moves)
                read.extend(one.usage.cache_read_tokens for one in await found.turns())

            await play_on(server, folder, tell, count=2 if moves else 1, made=made, now=lambda: NOW)
            return [one.body for one in api.seen if one.path == "/v1/messages"], read

    moved, kept = asyncio.run(story(moves=True)), asyncio.run(story(moves=False))
    assert len(moved[0]) == len(texts)
    assert [json.dumps(one) for one in moved[0]] == [json.dumps(one) for one in kept[0]]
    assert moved[1] == kept[1]
    assert moved[1][3] > moved[1][2] > 0  # the provider's cache went on


async def move(found: Team) -> None:
    """Let the worker of the conversation take no more turns."""
    numbers = [one.cluster.number for one in found.workers]
    number = choose_worker(ConversationId(f"{CONSOLE}/ann"), numbers)
    old, new = sorted(found.workers, key=lambda one: one.cluster.number != number)
    assert any(model.last_requests for model in caching(old))
    assert not any(model.last_requests for model in caching(new))
    await found.move_console(new)
    assert isinstance(old.cluster, DatabaseCluster)
    await old.cluster.drain()
    await found.until(lambda: found.leader is new)


def caching(worker: Worker) -> Collection[CachingModel]:
    return worker.agent.agent_model.caching_models


def test_an_approval_is_given_where_the_admin_is(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(leader)
        name = person_of(other, found)
        for verdict, told in (("approve", "It is done."), ("deny", "I was not allowed.")):
            await found.say("please run it", sender=name)
            await found.until(lambda: any(one.delivered for one in other.gateway.approvals.pending))
            (waiting,) = await leader.gateway.approvals.list_waiting(APPROVER)
            assert not leader.gateway.approvals.pending
            await found.say(f"!{verdict} {waiting[0].approval}", sender="root", room="ops")
            await found.until(partial(was_said, found, name, told))
            assert not await leader.gateway.approvals.list_waiting(APPROVER)
        ended = [one.fact for one in await found.store.entries(kinds=["approval_ended"])]
        assert [one.verdict for one in ended if isinstance(one, ApprovalEnded)] == ["once", "denied"]

    script = Script(
        rules=(
            ScriptRule(match="please run it", calls=(("bash", '{"command": "true"}'),)),
            ScriptRule(match="denied|refused", reply="I was not allowed."),
            ScriptRule(match="", reply="It is done."),
        )
    )
    play(
        server,
        tmp_path,
        story,
        script=script,
        access={"dm": "open", "rates": UNHURRIED, "roles": {"owner": ["console:root"]}},
        tools={
            "bash": {"sandbox": "off"},
            "approvals": {"room": "console/ops"},
            "rules": [{"tool": "bash", "role": "guest", "approval": "always"}],
        },
    )


APPROVER = Approver(
    at=Address(channel=CONSOLE, room=RoomId("ops")),
    sender=SenderId("root"),
    role="owner",
    is_direct=False,
    global_role="owner",
)


def was_said(found: Team, room: str, text: str) -> bool:
    return text in found.screen.said(room)


def test_news_changes_and_stops_reach_a_turn_of_another_process(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(leader)
        name = person_of(other, found)
        asked = await found.say("what is the time in Roam", sender=name)
        assert await found.asked(1) is other
        await found.console.receive_edit(asked, "what is the time in Rome")
        await found.asked(2)  # it begins anew
        await found.say("and in Paris", sender=name)
        other.model.go.set()

        async def are_both_heard() -> bool:
            return "and in Paris" in "\n".join([one.heard for one in await found.turns()])

        await found.until(are_both_heard)
        await found.until(lambda: not leader.agent.state.running)
        await found.until(found.is_all_sent)
        heard = "\n".join([one.heard for one in await found.turns()])
        assert (heard.count("in Rome"), heard.count("and in Paris")) == (1, 1)
        other.model.go.clear()
        count, shown = len(other.model.requests), len(found.screen.parts)
        await found.say("tell me a long story", sender=name)
        assert await found.asked(count + 1) is other
        place = f"{CONSOLE}/{name}"
        order = CommandRequest(words=("stop",), by="olga", place=place)
        for one, said in ((leader, STOPPING), (other, NOTHING_RUNNING)):
            assert (await one.gateway.dispatcher.carry_out(order)).lines == (said,)
            await found.until(lambda: not leader.agent.state.running)
        other.model.go.set()
        await found.say("hello", sender=name)
        await found.screen.until(shown + 1)
        assert not leader.model.requests
        assert "hello" in found.screen.parts[-1].body
        assert (await found.turns())[-1].heard.count("long story") == 0

    play(server, tmp_path, story, ready=False)


def test_a_worker_that_leaves_gives_its_turns_away(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        await found.move_console(leader)
        await found.say("are you there", sender=person_of(other, found))
        assert await found.asked(1) is other
        assert isinstance(other.cluster, DatabaseCluster)
        await asyncio.gather(other.cluster.drain(), other.agents.stop(0.0))
        leader.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not leader.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        assert len(leader.model.requests) == 1

    play(server, tmp_path, story, ready=False)


def test_the_days_budget_of_an_agent_is_one_for_all_workers(server: PostgresServer, tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        leader, other = parts(found)
        leader.agent.set_policy(replace(leader.agent.policy, daily_cost_usd=1.0))
        given = {"away": None, "may_put_off": True, "is_put_off": False, "is_faulty": False}
        loops = [DelegatedLoop(one.agents.delegation, one.agent, given) for one in (leader, other) for _ in range(2)]
        places = [ConversationId(f"{CONSOLE}/{number}") for number in range(len(loops))]
        asked = [loop.reserve_cost(place, 0.4) for loop, place in zip(loops, places, strict=True)]
        assert sorted(await asyncio.gather(*asked)) == [False, False, True, True]

    play(server, tmp_path, story)


def test_commands_and_the_turns_they_start_count_for_all_processes(server: PostgresServer, tmp_path: Path) -> None:
    """The channel moves from one edge to the other after each of them."""

    async def story(found: Team) -> None:
        answers = list[str]()

        async def order(text: str, sender: str) -> str:
            count = len(found.screen.parts)
            await found.say(text, sender=sender)
            await found.until(lambda: len(found.screen.parts) > count)
            return found.screen.parts[-1].body

        async def move_on(count: int) -> None:
            worker = found.workers[count % 2]
            await found.move_console(worker)
            await worker.store.catch_up(await worker.store.last_position())

        for count in range(3):
            await move_on(count)
            answers.append(await order("!retry", "ann"))
        assert [one.startswith("I get more questions") for one in answers] == [False, False, True]
        for count in range(5):
            await move_on(count)
            await found.say("!version", sender="bob")
        await found.until(found.is_all_sent)
        commands = [one.seq for one in await found.store.entries(kinds=["command"])]
        judged = [await found.store.find_judgement(one) for one in commands[3:]]
        assert [one.rule for one in judged if one is not None] == ["command version"] * 3 + ["commands.per_minute"] * 2

    rates = UNHURRIED | {"agent": {"burst": 2, "per_minute": 0.001}}
    play(server, tmp_path, story, access={"dm": "open", "rates": rates}, commands={"per_minute": 3})
