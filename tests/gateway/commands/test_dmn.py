"""`dmn` and `pending`, on a real store and real loops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agent.signals import DmnMode, DmnState, PendingTurn
from gateway.commands.agent import MAX_CONVERSATIONS
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ConversationId, RoomId
from gateway.core.facts import DmnDirective, inner_conversation
from gateway.core.identity import Role
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.loop import AgentLoop
from gateway.store import Store
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding, PrivacyCache
from tests.gateway.commands.handler_kit import Counter
from tests.gateway.runtime.test_loop import Ending
from tests.kits.channels import story
from tests.kits.commands import agents_of, command_context, parts_of
from tests.kits.loop import DrivenLoop
from tests.kits.places import privacy
from tests.kits.store import NOW, heard, place
from tests.kits.tasks import ListedTasks

HERE, OTHER = place("#a"), place("#b")
ALONE, STRANGER = place("root"), place("stranger")
BINDINGS = Bindings(
    [
        BindingPattern(
            channel="*", room="#b", thread=None, binding=ConversationBinding(listen="all", agent="bob", private=False)
        ),
        BindingPattern(
            channel="*", room="*", thread=None, binding=ConversationBinding(listen="all", agent="ana", private=False)
        ),
    ]
)


@dataclass
class Kit:
    """One process with two agents."""

    store: Store
    clock: ManualClock
    loops: list[AgentLoop]
    places: PrivacyCache

    def at(self, where: Address, role: Role = "owner", *, everywhere: Role | None = None) -> Counter:
        """Return the counter of a person there."""
        context = command_context(
            self.store,
            self.clock,
            agents=agents_of(lambda place: BINDINGS.find(Address.parse(place)).agent, agents=self.loops),
            places=self.places,
            live=parts_of(settings=parts_of(dmn=parts_of(timezone="Europe/Zurich"))),
        )
        direct = where in (ALONE, STRANGER)
        return Counter(self.store, self.clock, context, where, role, everywhere, direct=direct)

    def modes(self) -> dict[str, DmnMode]:
        return {loop.id: loop.state.mode for loop in self.loops}

    async def directed(self) -> list[DmnDirective]:
        return [one.fact for one in await self.store.entries(kinds=["directed"]) if isinstance(one.fact, DmnDirective)]


@asynccontextmanager
async def kit(tmp_path: Path, start: datetime = NOW, **states: DmnState) -> AsyncIterator[Kit]:
    """Run a process without a proper shutdown. `states`: of agents, instead of the saved ones."""
    clock = ManualClock(start)
    async with await Store.open(tmp_path / "s.db", clock) as store, ListedTasks() as tasks:
        saved = {**await load_dmn_states(store, ["ana", "bob"], start), **states}
        loops: list[AgentLoop] = [
            DrivenLoop(Ending(), store, clock, tasks, agent=agent, state=state) for agent, state in saved.items()
        ]
        places = privacy(store, BINDINGS)
        for where in (ALONE, STRANGER):
            places.record_direct(where.conversation, direct=True)
        for room in (HERE, OTHER):
            places.record_direct(room.conversation, direct=False)
        yield Kit(store, clock, loops, places)
        tasks.cancel()


@story
async def test_what_is_said_is_for_the_agent_of_that_place_and_holds_after_a_restart(tmp_path: Path) -> None:
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
        assert await it.at(HERE).says("dmn wake") == "ana is foraging."
        assert it.modes() == {"ana": DmnMode.FORAGING, "bob": DmnMode.OFF}


@story
async def test_what_was_written_and_not_yet_told_holds_after_the_crash(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        counter = it.at(HERE)
        counter.settles = False
        await counter("dmn off")
        assert it.modes()["ana"] is DmnMode.RESTING
    async with kit(tmp_path) as it:
        assert it.modes()["ana"] is DmnMode.OFF


@story
async def test_the_same_event_twice_is_done_once(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        at = it.at(HERE)
        await at.give("dmn pause", {}, id="n1")
        await at("dmn wake")
        assert it.modes()["ana"] is DmnMode.FORAGING
        await at.give("dmn pause", {}, id="n1")
        assert it.modes()["ana"] is DmnMode.FORAGING
        assert [one.what for one in await it.directed()] == ["pause", "wake"]


@story
async def test_what_cannot_be_written_is_not_done(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        await it.at(HERE).give("dmn off", {}, kept=False)
        assert it.modes()["ana"] is DmnMode.RESTING
        assert await it.directed() == []


@pytest.mark.parametrize(
    ("said", "until", "words"),
    [
        ("dmn sleep", "", "ana is stored until it is woken."),
        ("dmn sleep", "8h", "ana is stored until 2026-03-04 13:06 UTC (for 8 h)."),
        ("dmn sleep", "until 07:30", "ana is stored until 2026-03-04 06:30 UTC (for 1 h 24 min)."),  # it is 06:06 there
        ("dmn quiet", "", "ana is resting, and quiet until 2026-03-04 06:06 UTC (for 1 h)."),
        ("dmn quiet", "30m", "ana is resting, and quiet until 2026-03-04 05:36 UTC (for 30 min)."),
    ],
)
def test_until_when_is_read_as_the_command_line_reads_it(tmp_path: Path, said: str, until: str, words: str) -> None:
    @story
    async def told() -> None:
        async with kit(tmp_path) as it:
            assert await it.at(HERE).says(said, **({"until": until} if until else {})) == words

    told()


@story
async def test_a_time_that_is_none_changes_nothing(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        for until in ("soon", "2020-01-01T00:00", "`@everyone\n# x", "9" * 5_000):
            answer = await it.at(HERE)("dmn sleep", until=until)
            assert not answer.ok
            assert "everyone" not in answer.text
            assert answer.text.startswith("That is ")
        assert await it.directed() == []


@story
async def test_what_is_off_is_not_put_to_sleep(tmp_path: Path) -> None:
    async with kit(tmp_path, ana=DmnState(mode=DmnMode.OFF)) as it:
        answer = await it.at(HERE)("dmn sleep")
        assert (answer.ok, answer.text) == (False, "ana is off, which is more: wake it first.")
        assert answer.effect is None


BUSY = DmnState(
    running=(place("#unknown").conversation, HERE.conversation),
    waiting=(PendingTurn(conversation=ALONE.conversation, direct=True),),
    pending=(STRANGER.conversation, OTHER.conversation),
    low=(STRANGER.conversation,),
)


@story
async def test_the_status_is_of_all_agents_and_names_no_private_place_to_others(tmp_path: Path) -> None:
    async with kit(tmp_path, ana=BUSY) as it:
        lines = (await it.at(HERE).says("dmn status")).splitlines()
        assert (lines[0], lines[-1]) == ("```", "```")
        assert lines[1] == "ana is resting"
        assert lines[3:7] == [
            "  running: irc.test/#a, 1 private",
            "  waiting: 1 private",
            "  pending: irc.test/#b (pending), 1 private (pending)",
            "  low: 1 private",
        ]
        assert any(line.startswith("bob is resting") for line in lines)
        alone = await it.at(ALONE, "admin").says("dmn status")
        assert "  waiting: irc.test/root" in alone
        assert "irc.test/stranger" not in alone
        assert "irc.test/stranger (pending)" in await it.at(ALONE).says("dmn status")
        assert "stranger" not in await it.at(ALONE, "owner", everywhere="member").says("dmn status")
        assert await it.directed() == []


@story
async def test_of_a_long_list_the_status_tells_the_first(tmp_path: Path) -> None:
    rooms = tuple(place(f"#{number}").conversation for number in range(MAX_CONVERSATIONS + 2))
    async with kit(tmp_path, ana=DmnState(low=rooms, pending=rooms)) as it:
        for room in rooms:
            it.places.record_direct(room, direct=False)
        told = (await it.at(HERE).says("dmn status")).splitlines()
        assert next(line for line in told if line.startswith("  low: ")).endswith("irc.test/#19, 2 more")
        assert next(line for line in told if line.startswith("  pending: ")).endswith("2 more (pending)")


@story
async def test_what_is_unread_is_told_by_conversation_and_private_ones_are_counted(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        assert await it.at(HERE).says("pending") == "Nothing is unread."
        for number, (room, urgency) in enumerate([("#a", 2), ("#a", 1), ("#b", 3), ("stranger", 3), ("root", 1)]):
            await it.store.append(heard(number, room=room, urgency=urgency))  # type: ignore[arg-type] # one of these
        since = "since 2026-03-04 05:06 UTC"
        told = [f"- `irc.test/#b`: 1 urgent, {since}", f"- `irc.test/#a`: 1 normal, 1 low, {since}"]
        assert (await it.at(HERE).says("pending")).splitlines() == [
            *told,
            "- in 2 private conversations: 1 urgent, 1 low",
        ]
        assert (await it.at(ALONE, "admin").says("pending")).splitlines() == [
            *told,
            f"- `irc.test/root`: 1 low, {since}",
            "- in 1 private conversation: 1 urgent",
        ]
        owners = (await it.at(ALONE).says("pending")).splitlines()
        assert f"- `irc.test/stranger`: 1 urgent, {since}" in owners
        assert len(owners) == 4
    async with kit(tmp_path) as it:
        assert len((await it.at(ALONE).says("pending")).splitlines()) == 4


@story
async def test_of_many_conversations_the_rest_is_summed(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        for number in range(MAX_CONVERSATIONS + 2):
            room = RoomId(f"#`{number}")
            it.places.record_direct(place(room).conversation, direct=False)
            await it.store.append(heard(number, room=room, urgency=2))
        lines = (await it.at(HERE).says("pending")).splitlines()
        assert len(lines) == MAX_CONVERSATIONS + 1
        assert lines[-1] == "- in 2 more: 2 normal"
        assert all(line.count("`") == 2 for line in lines[:-1])


def test_a_place_nobody_knows_counts_as_private(tmp_path: Path) -> None:
    @story
    async def told() -> None:
        unknown = ConversationId("irc.test/#unknown")
        async with kit(tmp_path, ana=DmnState(low=(unknown,))) as it:
            assert "unknown" not in await it.at(HERE).says("dmn status")

    told()


def test_an_order_takes_names_of_any_length(tmp_path: Path) -> None:
    @story
    async def told() -> None:
        async with kit(tmp_path) as it:
            at = replace(it.at(HERE), sender="x" * 5_000)
            assert await at.says("dmn quiet", until="1h") == (
                f"ana is resting, and quiet until {NOW + timedelta(hours=1):%Y-%m-%d %H:%M} UTC (for 1 h)."
            )

    told()
