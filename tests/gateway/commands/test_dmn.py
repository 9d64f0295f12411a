"""`dmn` and `stop`, on a real store and real loops."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agent.prompt import NOTHING_NEW
from agent.signals import DmnMode, DmnState, PendingTurn
from gateway.access.policy import ConversationBinding
from gateway.commands.agent import MAX_CONVERSATIONS
from gateway.core.clock import ManualClock
from gateway.core.events import Address
from gateway.core.facts import DmnDirective, inner_conversation
from gateway.core.identity import Role
from gateway.plugins.approvals import UNDECIDED
from gateway.plugins.trace import explain_event
from gateway.runtime.agent import Agent
from gateway.runtime.agents import ALREADY_STOPPING, NOTHING_RUNNING, STOPPED
from gateway.runtime.dmn_admin import load_dmn_states, read_directive
from gateway.store import LogEntry, Store
from gateway.store.overview import EventOutcome
from gateway.stream.routing import BindingPattern, Bindings, PrivacyCache
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.gateway.commands.commands_kit import Counter
from tests.gateway.runtime.test_agent import Ending
from tests.kits.agent import DrivenAgent
from tests.kits.commands import agents_of, command_context, parts_of
from tests.kits.model_choice import ANN, Gate, configured, serving
from tests.kits.outcomes import compute_outcomes
from tests.kits.places import privacy
from tests.kits.settings import live_settings
from tests.kits.store import NOW, place
from tests.kits.tasks import ListedTasks

# `dmn`, on a real store and real loops

HERE, OTHER = place("#a"), place("#b")
ALONE, STRANGER = place("root"), place("stranger")
BINDINGS = Bindings(
    [
        BindingPattern(
            channel="*",
            room="#b",
            thread=None,
            binding=ConversationBinding(listen="all", agent="bob", private=False),
        ),
        BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="all", agent="ana", private=False),
        ),
    ]
)


@dataclass
class Kit:
    store: Store
    clock: ManualClock
    loops: list[Agent]
    places: PrivacyCache

    def at(
        self, where: Address, role: Role = "owner", *, everywhere: Role | None = None
    ) -> Counter:
        context = command_context(
            self.store,
            self.clock,
            agents=agents_of(
                lambda place: BINDINGS.find(Address.parse(place)).agent, agents=self.loops
            ),
            places=self.places,
            live=live_settings(dmn=parts_of(timezone="Europe/Zurich")),
        )
        direct = where in (ALONE, STRANGER)
        return Counter(self.store, self.clock, context, where, role, everywhere, direct=direct)

    def modes(self) -> dict[str, DmnMode]:
        return {loop.id: loop.state.mode for loop in self.loops}

    async def directed(self) -> list[DmnDirective]:
        return [
            one.fact
            for one in await self.store.entries(kinds=["directed"])
            if isinstance(one.fact, DmnDirective)
        ]


@asynccontextmanager
async def kit(tmp_path: Path, start: datetime = NOW, **states: DmnState) -> AsyncIterator[Kit]:
    """Run a process without a proper shutdown. `states`: of agents, instead of the saved ones."""
    clock = ManualClock(start)
    async with await Store.open(tmp_path / "s.db", clock) as store, ListedTasks() as tasks:
        saved = {**await load_dmn_states(store, ["ana", "bob"], start), **states}
        loops: list[Agent] = [
            DrivenAgent(Ending(), store, clock, tasks, agent=agent, state=state)
            for agent, state in saved.items()
        ]
        by_id = {one.id: one for one in loops}

        def on_directed(entries: Sequence[LogEntry]) -> None:
            """As `gateway.runtime.agents.Agents`."""
            for one in entries:
                if isinstance(one.fact, DmnDirective):
                    by_id[one.fact.agent].send(read_directive(one.fact, one.at))

        store.subscribe(on_directed, DmnDirective)
        places = privacy(store, BINDINGS)
        for where in (ALONE, STRANGER):
            places.direct.put(where.conversation, True)
        for room in (HERE, OTHER):
            places.direct.put(room.conversation, False)
        yield Kit(store, clock, loops, places)
        tasks.cancel()


async def test_what_is_said_is_for_the_agent_of_that_place_and_holds_after_a_restart(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as it:
        assert await it.at(HERE).says("dmn pause") == "ana is paused."
        assert it.modes() == {"ana": DmnMode.PAUSED, "bob": DmnMode.RESTING}
        assert await it.at(OTHER).says("dmn off") == "bob is off."
        assert it.modes() == {"ana": DmnMode.PAUSED, "bob": DmnMode.OFF}
        assert [(one.agent, one.what, one.by) for one in await it.directed()] == [
            ("ana", "pause", "irc.test:root"),
            ("bob", "off", "irc.test:root"),
        ]
        (first, _) = await it.store.entries(kinds=["directed"])
        (given, _) = await it.store.entries(kinds=["command"])
        assert (first.conversation, first.cause) == (inner_conversation("ana"), given.seq)
    async with kit(tmp_path) as it:
        assert it.modes() == {"ana": DmnMode.PAUSED, "bob": DmnMode.OFF}
        assert await it.at(HERE).says("dmn wake") == "ana is awake."
        assert it.modes() == {"ana": DmnMode.FORAGING, "bob": DmnMode.OFF}


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("said", "until", "words"),
    [
        ("dmn sleep", "", "ana is asleep until `dmn wake`."),
        ("dmn sleep", "8h", "ana is asleep until 2026-03-04 14:06 CET (in 8 h)."),
        (
            "dmn sleep",
            "until 07:30",
            "ana is asleep until 2026-03-04 07:30 CET (in 1 h).",
        ),  # it is 06:06 there
        ("dmn quiet", "", "ana is resting, quiet until 2026-03-04 07:06 CET (in 1 h)."),
        ("dmn quiet", "30m", "ana is resting, quiet until 2026-03-04 06:36 CET (in 30 min)."),
    ],
)
async def test_until_when_is_read_as_the_command_line_reads_it(
    said: str, until: str, words: str, it: Kit
) -> None:
    assert await it.at(HERE).says(said, **({"until": until} if until else {})) == words


async def test_a_time_that_is_none_changes_nothing(it: Kit) -> None:
    for until in ("soon", "2020-01-01T00:00", "`@everyone\n# x", "9" * 5_000):
        answer = await it.at(HERE)("dmn sleep", until=until)
        assert not answer.ok
        assert "everyone" not in answer.answer
        assert answer.answer.startswith("That is ")
    assert await it.directed() == []


async def test_what_is_off_is_not_put_to_sleep(tmp_path: Path) -> None:
    async with kit(tmp_path, ana=DmnState(mode=DmnMode.OFF)) as it:
        answer = await it.at(HERE)("dmn sleep")
        assert (answer.ok, answer.answer) == (False, "ana is off; write `dmn wake` first.")
        assert not answer.changes


BUSY = DmnState(
    running=(place("#unknown").conversation, HERE.conversation),
    waiting=(PendingTurn(conversation=ALONE.conversation, direct=True),),
    pending=(STRANGER.conversation, OTHER.conversation),
    low=(STRANGER.conversation,),
)


async def test_the_status_is_of_all_agents_and_names_no_private_place_to_others(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path, ana=BUSY) as it:
        lines = (await it.at(HERE).says("dmn status")).splitlines()
        assert (lines[0], lines[-1]) == ("```", "```")
        assert lines[1] == "ana is resting"
        assert lines[3:7] == [
            "  answering now: irc.test/#a, 1 private",
            "  waiting to answer: 1 private",
            "  wants to look at: irc.test/#b (pending), 1 private (pending)",
            "  less urgent: 1 private",
        ]
        assert any(line.startswith("bob is resting") for line in lines)
        alone = await it.at(ALONE, "admin").says("dmn status")
        assert "  waiting to answer: irc.test/root" in alone
        assert "irc.test/stranger" not in alone
        assert "irc.test/stranger (pending)" in await it.at(ALONE).says("dmn status")
        assert "stranger" not in await it.at(ALONE, "owner", everywhere="member").says("dmn status")
        assert await it.directed() == []


async def test_of_a_long_list_the_status_tells_the_first(tmp_path: Path) -> None:
    rooms = tuple(place(f"#{number}").conversation for number in range(MAX_CONVERSATIONS + 2))
    async with kit(tmp_path, ana=DmnState(low=rooms, pending=rooms)) as it:
        for room in rooms:
            it.places.direct.put(room, False)
        told = (await it.at(HERE).says("dmn status")).splitlines()
        assert next(line for line in told if line.startswith("  less urgent: ")).endswith(
            "irc.test/#19, 2 more"
        )
        assert next(line for line in told if line.startswith("  wants to look at: ")).endswith(
            "2 more (pending)"
        )


async def test_an_order_takes_names_of_any_length(it: Kit) -> None:
    at = replace(it.at(HERE), sender="x" * 5_000)
    assert await at.says("dmn quiet", until="1h") == (
        f"ana is resting, quiet until {NOW + timedelta(hours=2):%Y-%m-%d %H:%M} CET (in 1 h)."
    )


async def test_quiet_off_ends_it(it: Kit) -> None:
    assert "quiet" in await it.at(HERE).says("dmn quiet", until="1h")
    assert "quiet" not in await it.at(HERE).says("dmn quiet", until="off")


# `/stop`: the running turn ends, nothing more of it is posted, and it is not resumed by itself

BASH = {"bash": {"sandbox": "off"}}


async def nothing_more(gate: Gate, api: ModelApi, *, asked: int, posts: int = 0) -> None:
    """No more than these was posted, and no request was made again, also not by the next tick."""
    await gate.calm()
    gate.gateway.agents.agents[0].tick()
    await gate.calm()
    assert len(api.seen) == asked
    assert len(await gate.facts("post")) == posts
    assert not api.violations


@asynccontextmanager
async def asked(
    tmp_path: Path, api: ModelApi, answer: Answer, words: str = "hello"
) -> AsyncIterator[Gate]:
    """Somebody has said that, and a model that will answer so was asked."""
    api.then(answer)
    async with serving(configured(tmp_path, api)) as gate:
        await gate.console.receive_message(words, sender="ann")
        await gate.until(lambda: bool(api.seen))
        yield gate


async def test_what_streams_ends_and_is_not_answered_again(tmp_path: Path, api: ModelApi) -> None:
    async with asked(
        tmp_path,
        api,
        Answer(text="a very long story indeed, which goes on", silent_after=3),
        "tell me a story",
    ) as gate:
        assert (await gate.command("stop")).answer == STOPPED
        await gate.until(lambda: api.seen[0].hung_up)
        await nothing_more(gate, api, asked=1)
        first, *rest = await gate.turns()
        assert (first.outcome, first.reason) == ("yielded", "console:ann had it left off")
        assert "tell me a story" in first.heard
        assert not rest or (rest[0].outcome, rest[0].heard, rest[0].covers) == (
            "yielded",
            "",
            (),
        )
        await gate.ask("something else", sender="ann")
        told = json.dumps(api.seen[1].body["messages"])
        assert told.index("tell me a story") < told.index("something else")


def written(folder: Path) -> list[Path]:
    """Return the agent's file `pid`."""
    return [*folder.rglob("pid")]


async def test_a_tool_is_killed_and_what_it_did_until_then_is_known(
    tmp_path: Path, api: ModelApi
) -> None:
    command = "echo $$ > pid; sleep 1000"
    api.then(Answer(text="Let me see.", calls=(("c1", "bash", json.dumps({"command": command})),)))
    async with serving(configured(tmp_path, api, tools=BASH)) as gate:
        await gate.console.receive_message("work", sender="ann")
        await gate.until(lambda: any(one.read_text().endswith("\n") for one in written(tmp_path)))
        (pid,) = written(tmp_path)
        running = Path("/proc") / pid.read_text().strip()
        assert running.exists()
        assert (await gate.command("stop")).answer == STOPPED
        await gate.until(lambda: not running.exists())
        await nothing_more(gate, api, asked=1)
        word, turn = await gate.turns()
        assert (len(word.covers), word.requests, turn.requests) == (1, 0, 1)
        assert (turn.outcome, turn.covers, len(turn.steps)) == ("yielded", (), 1)
        assert turn.senders == word.senders == ("ann",)  # who asked for it bears what it cost
        assert "Interrupted" in turn.steps[0].calls[0].result
        await gate.ask("what did you do?", sender="ann")
        assert "sleep 1000" in json.dumps(api.seen[1].body["messages"])
        assert NOTHING_NEW in json.dumps(api.seen[1].body["messages"])


async def test_between_two_tries_it_asks_no_more(tmp_path: Path, api: ModelApi) -> None:
    api.default = lambda _: Answer(status=429, headers={"retry-after": "9"})
    async with serving(configured(tmp_path, api)) as gate:
        await gate.console.receive_message("hello", sender="ann")
        await gate.until(lambda: bool(api.seen))
        assert (await gate.command("stop")).answer == STOPPED
        await nothing_more(gate, api, asked=1)


async def test_what_waits_for_an_approval_is_dropped(tmp_path: Path, api: ModelApi) -> None:
    arguments = json.dumps({"command": f"touch {tmp_path}/done"})
    api.then(Answer(calls=(("c1", "bash", arguments),)))
    made = configured(
        tmp_path, api, tools={**BASH, "rules": [{"tool": "bash", "approval": "always"}]}
    )
    async with serving(made) as gate:
        await gate.ask("work", sender="ann")  # it asks for leave
        assert (await gate.command("stop")).answer == STOPPED
        async with asyncio.timeout(120):
            while await gate.store.rows(UNDECIDED):  # the verdict is written behind the turn's end
                await asyncio.sleep(0.005)
        await nothing_more(gate, api, asked=1, posts=len(gate.screen.parts))
        assert not (tmp_path / "done").exists()


async def test_where_nothing_runs_it_says_so_and_writes_nothing(
    tmp_path: Path, api: ModelApi
) -> None:
    async with serving(configured(tmp_path, api)) as gate:
        await gate.ask("hello", sender="ann")
        await gate.calm()
        for _ in range(2):
            answer = await gate.command("stop")
            assert (answer.answer, answer.ok) == (NOTHING_RUNNING, False)
        assert len(await gate.turns()) == 1
        await gate.ask("and now?", sender="ann")  # its door is open


async def test_twice_is_once(tmp_path: Path, api: ModelApi) -> None:
    async with asked(tmp_path, api, Answer(text="x" * 100, silent_after=3)) as gate:
        first, second = await gate.command("stop"), await gate.command("stop")
        assert (first.answer, second.answer) in (
            (STOPPED, ALREADY_STOPPING),
            (STOPPED, NOTHING_RUNNING),
        )
        await nothing_more(gate, api, asked=1)
        assert sum(bool(turn.covers) for turn in await gate.turns()) == 1


async def test_what_was_said_meanwhile_is_heard_and_not_answered(
    tmp_path: Path, api: ModelApi
) -> None:
    async with asked(tmp_path, api, Answer(text="x" * 100, silent_after=3), "one") as gate:
        await gate.console.receive_message("two", sender="ann")
        assert (await gate.command("stop")).answer == STOPPED
        await nothing_more(gate, api, asked=1)
        await gate.ask("three", sender="ann")
        told = json.dumps(api.seen[1].body["messages"])
        assert [told.count(f"(owner): {word}") for word in ("one", "two", "three")] == [1, 1, 1]


async def test_what_was_said_behind_the_word_is_answered(tmp_path: Path, api: ModelApi) -> None:
    async with asked(tmp_path, api, Answer(text="x" * 100, silent_after=3), "one") as gate:
        _, go_on = await gate.begin("stop")
        await gate.console.receive_message(
            "two", sender="ann"
        )  # behind the word, and before it is durable
        await go_on(durable=True)
        await gate.screen.until(1)
        told = json.dumps(api.seen[1].body["messages"])
        assert [told.count(f"(owner): {word}") for word in ("one", "two")] == [1, 1]
        assert len(gate.screen.parts) == 1


async def test_what_is_not_begun_yet_is_not_begun(tmp_path: Path, api: ModelApi) -> None:
    async with (
        serving(configured(tmp_path, api, attention={"coalesce": "300ms"})) as gate,
    ):
        await gate.console.receive_message("hello", sender="ann")
        assert (await gate.command("stop")).answer == STOPPED
        await gate.until(lambda: not gate.gateway.inbox.is_waiting(ANN.conversation))
        await nothing_more(gate, api, asked=0)
        (turn,) = await gate.turns()
        assert (turn.outcome, turn.requests, len(turn.covers)) == ("yielded", 0, 1)


async def test_a_word_that_is_not_durable_stops_nothing(tmp_path: Path, api: ModelApi) -> None:
    async with asked(tmp_path, api, Answer(text="an answer", delay_s=0.3)) as gate:
        await gate.command("stop", cut="before")
        await gate.screen.until(1)
        assert gate.screen.parts[0].body == "an answer"


@pytest.mark.parametrize("durable", [True, False])
async def test_an_answer_that_comes_while_it_is_decided_waits_for_that(
    tmp_path: Path, durable: bool, api: ModelApi
) -> None:
    async with asked(tmp_path, api, Answer(text="an answer", delay_s=0.1)) as gate:
        loop = gate.gateway.agents.agents[0]
        answer, go_on = await gate.begin("stop")
        await api.seen[0].finished.wait()
        lane = loop.running.get(ANN.conversation)
        assert lane is not None
        await gate.until(lambda: lane._task is None)  # the model has answered
        assert await gate.turns() == []
        await go_on(durable)
        if durable:
            assert answer.answer == STOPPED
            await nothing_more(gate, api, asked=1)
        else:
            await gate.screen.until(1)
            assert [one.outcome for one in await gate.turns()] == ["replied"]


async def test_a_crash_behind_the_word_leaves_nothing_to_answer(
    tmp_path: Path, api: ModelApi
) -> None:
    api.then(Answer(text="x" * 100, silent_after=3))
    made = configured(tmp_path, api)
    async with serving(made) as gate:
        await gate.console.receive_message("hello", sender="ann")
        await gate.until(lambda: bool(api.seen))
        await gate.command("stop", cut="behind")
        # All that the dead process would still have written is the end of its turn: a stop that
        # parks writes none.
    async with serving(made) as gate:
        await nothing_more(gate, api, asked=1)
        log = await gate.entries()
        heard = next(one for one in log if one.fact.kind == "direct")
        assert compute_outcomes(log)[heard.seq] is EventOutcome.YIELDED
        story_ = await explain_event(gate.store, heard.seq)
        assert story_ is not None
        assert "had it left off" in "\n".join(story_)


async def test_what_goes_on_by_itself_is_left_off(tmp_path: Path, api: ModelApi) -> None:
    api.then(
        Answer(calls=(("c1", "bash", json.dumps({"command": "true"})),)),
        Answer(
            text="half of it",
            calls=(("c2", "continue_task", json.dumps({"next": "the other half"})),),
        ),
    )
    async with serving(configured(tmp_path, api, tools=BASH)) as gate:
        await gate.ask("work", sender="ann")
        loop = gate.gateway.agents.agents[0]
        await gate.until(lambda: not loop.state.running)
        assert loop.state.continuing == (ANN.conversation,)
        assert (await gate.command("stop")).answer == STOPPED
        await nothing_more(gate, api, asked=2, posts=1)
