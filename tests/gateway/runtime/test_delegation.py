"""Turns on other processes than the one that leads the agent: each question is answered once, whoever ends."""

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelUnusable
from agent.models.scripted import Script, ScriptRule
from agent.signals import Directive, DmnMode
from gateway.cluster.cluster import NOT_ANSWERING, ProcessRole
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Address, ConversationId, RoomId
from gateway.core.scopes import Visibility
from gateway.core.tool import tools_of
from gateway.core.tool_spec import ToolCall
from gateway.runtime.agents import STOPPING
from gateway.runtime.delegation import DelegatedLoop, choose_worker
from gateway.runtime.model_choice import ModelChoiceRequest
from gateway.runtime.rewind import TURN_RUNNING
from gateway.store import NewEntry
from gateway.store.effects import CommandEffect
from tests.kits.gateway import CONSOLE, UNHURRIED, Held, settings
from tests.kits.shell import ROOM
from tests.kits.tools import dispatcher
from tests.kits.workers import AGENT, Team, Worker, team

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
NUMBERS = st.sets(st.integers(1, 10_000), min_size=1, max_size=8)
PLACES = st.text(min_size=1, max_size=30).map(ConversationId)


@given(workers=NUMBERS, places=st.lists(PLACES, max_size=30), data=st.data())
def test_when_a_worker_leaves_only_its_conversations_move(
    workers: set[int], places: list[ConversationId], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(workers)))
    for place in places:
        before, after = choose_worker(place, workers), choose_worker(place, workers - {gone})
        assert before in workers
        assert choose_worker(place, sorted(workers, reverse=True)) == before
        assert after == (before if before != gone else choose_worker(place, [*workers - {gone}]))
        assert (after is None) == (workers == {gone})


def test_conversations_are_spread_over_the_workers() -> None:
    chosen = [choose_worker(ConversationId(f"irc/#room{number}"), [3, 7, 8]) for number in range(300)]
    assert all(70 < chosen.count(number) < 130 for number in (3, 7, 8))


def person_of(worker: Worker, found: Team) -> str:
    """Return somebody whose direct chat belongs to that worker."""
    numbers = [one.cluster.number for one in found.workers if one.cluster.role != "edge"]
    names = (f"ann{number}" for number in itertools.count())
    return next(
        one for one in names if choose_worker(ConversationId(f"{CONSOLE}/{one}"), numbers) == worker.cluster.number
    )


def play(
    tmp: Path,
    story: Callable[[Team], Awaitable[None]],
    *,
    ready: bool = True,
    script: Script | None = None,
    count: int = 2,
    roles: tuple[ProcessRole, ...] = (),
    **more: Any,
) -> None:
    """Play it with so many processes; the first that takes turns leads. `ready`: the models answer at once."""

    async def run() -> None:
        models = [Held(script) for _ in range(count)]
        for one in models:
            if ready:
                one.go.set()
        async with team(settings(tmp, **more), *models, roles=roles) as found:
            await story(found)

    asyncio.run(run())


def test_each_worker_answers_its_conversations_once(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        for count, worker in enumerate([*found.workers, *found.workers], 1):
            name = person_of(worker, found)
            await found.say(f"hello {count}", sender=name)
            await found.screen.until(count)
            assert len(worker.model.requests) == (count + 1) // 2
        assert len(await found.turns()) == 4
        leader = found.workers[0].agent
        await found.until(lambda: not leader.state.running)

    play(tmp_path, story)


def test_a_turn_of_another_process_takes_up_what_is_said_meanwhile(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        second = found.workers[1]
        name = person_of(second, found)
        await found.say("how late is it", sender=name)
        await found.asked(1)
        await found.say("in Rome", sender=name)
        second.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not found.workers[0].agent.state.running)
        heard = "".join(one.heard for one in await found.turns())
        assert heard.count("how late is it") == heard.count("in Rome") == 1

    play(tmp_path, story, ready=False)


def test_an_edited_question_is_answered_as_it_is_now(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        second = found.workers[1]
        name = person_of(second, found)
        asked = await found.say("how late is it in Roam", sender=name)
        await found.asked(1)
        await found.console.receive_edit(asked, "how late is it in Rome")
        await found.asked(2)
        second.model.go.set()
        await found.screen.until(1)
        assert "in Rome" in found.screen.parts[0].body
        await found.until(lambda: not found.workers[0].agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["interrupted", "replied"]
        assert not found.workers[0].model.requests

    play(tmp_path, story, ready=False)


def test_a_stop_reaches_a_turn_wherever_it_runs(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        name = person_of(second, found)
        place = Address(channel=CONSOLE, room=RoomId(name))
        await found.say("a long story", sender=name)
        await found.asked(1)
        change = await first.agents.plan_stop(place, "an admin")
        entries = [NewEntry(fact=one.fact, at=NOW, conversation=place.conversation) for one in change.facts]
        (written,) = await found.store.append(entries)
        change.settle(written)
        await found.until(lambda: not first.agent.state.running)
        second.model.go.set()
        await found.say("hello again", sender=name)
        await found.screen.until(1)
        turns = await found.turns()
        assert [one.outcome for one in turns] == ["yielded", "replied"]
        assert ["a long story" in one.heard for one in turns] == [True, False]
        assert not first.model.requests

    play(tmp_path, story, ready=False)


def test_a_process_that_does_not_lead_can_stop_a_turn(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        name = person_of(first, found)
        place = Address(channel=CONSOLE, room=RoomId(name))
        await found.say("a long story", sender=name)
        await found.asked(1)
        change = await second.agents.plan_stop(place, "an admin")
        assert change.answer == STOPPING
        first.model.go.set()  # held, it cannot answer any more
        entries = [NewEntry(fact=one.fact, at=NOW, conversation=place.conversation) for one in change.facts]
        (written,) = await found.store.append(entries)
        change.settle(written)
        await found.until(lambda: not first.agent.state.running)
        assert [one.text for one in await found.turns()] == ["", ""]
        assert not found.screen.parts
        await first.kill()
        change = await second.agents.plan_stop(place, "an admin")
        assert change == CommandEffect(answer=NOT_ANSWERING, settle=change.settle)

    play(tmp_path, story, ready=False)


def test_the_turn_of_a_worker_that_dies_is_taken_by_another_one(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        await found.say("are you there", sender=person_of(second, found))
        assert await found.asked(1) is second
        await second.kill()
        first.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not first.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        assert len(found.screen.parts) == 1

    play(tmp_path, story, ready=False)


def test_a_new_leader_joins_the_turns_that_run(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        name = person_of(second, found)
        await found.say("are you there", sender=name)
        assert await found.asked(1) is second
        if is_dead:
            await found.move_console(second)
            await first.kill()
        else:
            await first.manual.end(AGENT)
        await second.manual.grant(AGENT)
        assert second.agent.state.running == (f"{CONSOLE}/{name}",)
        second.model.go.set()
        await found.screen.until(1)
        await found.until(lambda: not second.agent.state.running)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        await found.say("and now", sender=name)
        await found.screen.until(2)
        assert [one.outcome for one in await found.turns()] == ["replied", "replied"]

    for is_dead in (False, True):
        folder = tmp_path / str(is_dead)
        folder.mkdir()
        play(folder, story, ready=False)


def test_what_comes_while_nobody_leads_is_answered_by_the_next_leader(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        await first.manual.end(AGENT)
        name = person_of(first, found)
        await found.say("anybody", sender=name)
        assert not first.agent.leads
        await second.manual.grant(AGENT)
        await found.screen.until(1)
        assert len(first.model.requests) == 1  # the conversation stays where it was

    play(tmp_path, story)


def test_the_turns_of_a_worker_that_stops_go_on_elsewhere(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        await found.say("are you there", sender=person_of(second, found))
        assert await found.asked(1) is second
        second.manual.is_draining = True
        await second.agents.stop(0.0)
        first.model.go.set()
        await found.screen.until(1)
        assert [one.outcome for one in await found.turns()] == ["replied"]
        assert len(first.model.requests) == 1

    play(tmp_path, story, ready=False)


def test_the_days_budget_holds_over_all_workers(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        first.agent.set_policy(replace(first.agent.policy, daily_cost_usd=1.0))
        given = {"away": None, "may_put_off": True, "is_put_off": False, "is_faulty": False}
        loops = [DelegatedLoop(one.agents.delegation, one.agent, given) for one in found.workers for _ in range(2)]
        places = [ConversationId(f"{CONSOLE}/{number}") for number in range(len(loops))]
        covered = [await loop.reserve_cost(place, 0.4) for loop, place in zip(loops, places, strict=True)]
        assert covered == [True, True, False, False]
        await first.kill()
        assert not await loops[-1].reserve_cost(places[-1], 0.1)  # nobody knows what is left
        assert not second.agent.leads

    play(tmp_path, story)


def test_orders_and_the_state_reach_every_process(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        second.agent.send(Directive(at=NOW, order="pause"))
        await found.until(lambda: first.agent.state.mode is DmnMode.PAUSED)
        await found.until(lambda: second.agent.state.mode is DmnMode.PAUSED)
        dmn = await second.agents.fetch_dmn(second.agent)
        assert (dmn.state.mode, dmn.next_tick_s is None) == (DmnMode.PAUSED, False)
        await first.manual.end(AGENT)
        await second.manual.grant(AGENT)
        assert second.agent.state.mode is DmnMode.PAUSED

    play(tmp_path, story)


def test_a_lock_is_one_for_all_processes(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        name = person_of(first, found)
        place = ConversationId(f"{CONSOLE}/{name}")
        release = await second.agents.room_locks.acquire(place, 0.1)
        assert release is not None
        assert await first.agents.room_locks.acquire(place, 0.01) is None
        assert await second.agents.room_locks.acquire(place, 0.01) is None
        await found.say("hello", sender=name)
        await found.until(lambda: bool(first.agent.state.running))
        assert not first.model.requests
        release()
        await found.screen.until(1)

    play(tmp_path, story)


def all_use(found: Team, model: str) -> bool:
    return all(one.agent.agent_model.name == model for one in found.workers)


def test_the_model_of_an_agent_changes_in_every_process(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        place = Address(channel=CONSOLE, room=RoomId("olga"))
        for chosen, by in (("other", second), ("", first)):
            request = ModelChoiceRequest(name=chosen, at=place, by="olga")
            change = by.gateway.model_selector.choose(request)
            (fact,) = change.facts
            (written,) = await found.store.append([NewEntry(fact=fact.fact, at=NOW, conversation=fact.place)])
            change.settle(written)
            await found.until(partial(all_use, found, chosen or "main"))

    llm = {
        "providers": {"s": {"kind": "scripted"}},
        "models": {"main": {"provider": "s"}, "other": {"provider": "s"}},
    }
    play(tmp_path, story, llm=llm)


def test_a_model_that_cannot_be_started_is_taken_back_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise ModelUnusable("no weights there")

    async def story(found: Team) -> None:
        edge, worker = found.workers
        assert worker.agent.leads
        first = worker.gateway.model_services.pool.get("reverie", "broken").primary
        monkeypatch.setattr(first, "start", fails)
        place = Address(channel=CONSOLE, room=RoomId("olga"))
        change = edge.gateway.model_selector.choose(ModelChoiceRequest(name="broken", at=place, by="olga"))
        (fact,) = change.facts
        (written,) = await found.store.append([NewEntry(fact=fact.fact, at=NOW, conversation=fact.place)])
        change.settle(written)
        await found.screen.until(1)
        assert found.screen.parts[0].body == "I cannot use `broken`: `no weights there`. `reverie` stays with `main`."
        assert [one.agent.agent_model.name for one in found.workers] == ["main", "main"]
        assert [one.gateway.model_selector.wanted_model("reverie") for one in found.workers] == ["main", "main"]

    llm = {
        "providers": {"s": {"kind": "scripted"}},
        "models": {"main": {"provider": "s"}, "broken": {"provider": "s"}},
    }
    play(tmp_path, story, llm=llm, roles=("edge", "worker"))


def test_people_are_present_in_every_process_as_it_was_set_by_hand(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        order = CommandRequest(words=("dmn", "presence", "away"), by="olga")
        assert (await second.gateway.dispatcher.carry_out(order)).ok
        await found.until(lambda: first.agent.state.presence == "away")
        assert [one.gateway.presence.level for one in found.workers] == ["away", "away"]

    play(tmp_path, story)


def test_commands_reach_the_tools_and_the_view_of_another_process(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = found.workers
        name = person_of(second, found)
        place = f"{CONSOLE}/{name}"
        await found.say("sleep", sender=name)
        await found.until(lambda: bool(second.agents.registry.running.describe(ConversationId(place))))
        (shown,) = await first.agents.running_calls(ConversationId(place))
        assert shown.startswith("bash, for ")
        answer = await first.gateway.dispatcher.carry_out(CommandRequest(words=("rewind",), by="olga", place=place))
        assert answer.lines == (TURN_RUNNING,)
        answer = await second.gateway.dispatcher.carry_out(CommandRequest(words=("kill",), by="olga", place=place))
        assert answer.lines == ("I ended bash. My answer continues.",)
        await found.screen.until(1)
        await found.until(lambda: not first.agent.state.running)
        for words, said in (
            (("compact",), "This conversation is already short"),
            (("retry",), "I take back my last answer"),
        ):
            order = CommandRequest(words=words, by="olga", place=place)
            answer = await second.gateway.dispatcher.carry_out(order)
            assert answer.lines[0].startswith(said)
        await found.screen.until(2)
        await first.kill()
        order = CommandRequest(words=("rewind",), by="olga", place=place)
        assert (await second.gateway.dispatcher.carry_out(order)).lines == (NOT_ANSWERING,)
        answer = await second.gateway.dispatcher.carry_out(CommandRequest(words=("dmn", "pause"), by="olga"))
        assert (answer.ok, answer.lines) == (False, (NOT_ANSWERING,))
        answer = await second.gateway.dispatcher.carry_out(CommandRequest(words=("dmn", "status"), by="olga"))
        assert answer.ok  # as it was saved

    calls = (("bash", '{"command": "sleep 60"}'),)
    script = Script(rules=(ScriptRule(match="sleep", calls=calls), ScriptRule(match="", reply="Done.")))
    access = {"dm": "open", "rates": UNHURRIED, "roles": {"owner": [f"console:ann{number}" for number in range(20)]}}
    play(tmp_path, story, script=script, access=access, tools={"bash": {"sandbox": "off"}})


def test_a_job_is_seen_in_the_process_that_runs_it(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = (dispatcher(tools_of(one.gateway.shell)) for one in found.workers)
        number = found.workers[0].cluster.number
        running = {"command": "sleep 60", "background": True}
        told = await first.call(ToolCall(id="1", name="bash", arguments=json.dumps(running)), ROOM)
        assert told.text.startswith(f"Job j1.{number} runs")
        looks = ToolCall(id="2", name="job_output", arguments=json.dumps({"job": f"j1.{number}"}))
        assert (await first.call(looks, ROOM)).text == "[running, no output]"
        assert "for this conversation has moved" in (await second.call(looks, ROOM)).text
        await found.workers[0].gateway.shell.aclose()
        await found.workers[0].kill()
        assert (await second.call(looks, ROOM)).text == "Its process has ended, and the job with it."

    play(tmp_path, story, tools={"bash": {"sandbox": "off"}})


async def yield_to_others(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
def test_each_question_is_answered_once_while_leases_move_and_workers_die(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def ask(found: Team, person: str) -> None:
        for number in range(6):
            await yield_to_others(chance.randrange(200))
            await found.say(f"question {number} of {person}.", sender=person)

    async def upset(found: Team) -> None:
        others = found.workers[1:]  # the first one has the console
        for number in range(8):
            await yield_to_others(chance.randrange(400))
            leader = found.leader
            assert leader is not None
            if number in (3, 6) and (alive := [one for one in others if not one.is_gone and one is not leader]):
                await alive[0].kill()
                continue
            await leader.manual.end(AGENT)
            await chance.choice([one for one in found.workers if not one.is_gone]).manual.grant(AGENT)

    async def story(found: Team) -> None:
        people = [f"person{number}" for number in range(8)]
        await asyncio.gather(upset(found), *(ask(found, one) for one in people))
        wanted = {f"question {number} of {person}." for person in people for number in range(6)}

        async def is_answered() -> bool:
            heard = "\n".join([one.heard for one in await found.turns() if one.outcome == "replied"])
            return all(one in heard for one in wanted)

        await found.until(is_answered)
        leader = found.leader
        assert leader is not None
        await found.until(lambda: not leader.agent.state.running)
        heard = "\n".join([one.heard for one in await found.turns() if one.outcome == "replied"])
        assert {one: heard.count(one) for one in wanted} == dict.fromkeys(wanted, 1)
        await found.until(found.is_all_sent)
        posts = "\n".join(part.body for part in found.screen.parts)
        assert {one: posts.count(one) for one in wanted} == dict.fromkeys(wanted, 1)

    play(tmp_path, story, script=Script(pace_s=0.02), count=4)


def test_commands_of_places_that_see_different_things_do_not_run_beside_each_other(tmp_path: Path) -> None:
    async def story(found: Team) -> None:
        first, second = (dispatcher(tools_of(one.gateway.shell)) for one in found.workers)
        private = replace(ROOM, visibility=Visibility(scope="console/eva", is_private=True))

        def call(text: str) -> ToolCall:
            return ToolCall(id="1", name="bash", arguments=json.dumps({"command": text}))

        waits = asyncio.create_task(first.call(call("touch began; while [ ! -e go ]; do sleep 0.01; done"), ROOM))
        await found.until(lambda: bool([*tmp_path.rglob("began")]))
        (began,) = tmp_path.rglob("began")
        same = await second.call(call("echo beside; ls"), ROOM)
        assert "began" in same.text
        other = asyncio.create_task(second.call(call("echo done"), private))
        await found.until(lambda: any(found.workers[1].gateway.shell._labels._intents.values()))
        asked = {"agent": "reverie", "time": 1_000, "here": "another place"}
        number = found.workers[0].cluster.number
        assert await found.workers[1].cluster.call(number, "files.ask", asked, timeout_s=10.0) is False
        assert not other.done()
        began.with_name("go").touch()
        assert not (await waits).is_error
        assert "done" in (await other).text

    play(tmp_path, story, tools={"bash": {"sandbox": "off"}})
