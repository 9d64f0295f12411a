"""Commands about rooms and channels, `restart` and `reload`: answers, durable facts, and
effects."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from channels.base import Denied, Emit, PostPart, Rejected
from gateway.access.policy import ConversationBinding
from gateway.access.roster import ROSTER_FACTS, Roster
from gateway.commands.context import CommandCall, CommandContext
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from gateway.context.conversation import ConversationLocks
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    EventId,
    Message,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    ThreadId,
)
from gateway.core.events import SenderId as Id
from gateway.core.facts import (
    CodeIssued,
    PostQueued,
    RoomAccessChanged,
    TurnRecord,
    dedup_key,
)
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.store.effects import CommandEffect
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import BindingPattern, Bindings
from gateway.stream.supervisor import ChannelSupervisor
from reverie.testing.console import ConsoleChannel
from reverie.testing.waiting import until
from tests.kits.commands import agents_of, answer_of, command_context
from tests.kits.places import PlayedChannels, privacy
from tests.kits.policies import PlayedPolicy
from tests.kits.store import NOW, taken_in
from tests.kits.supervisor import EmitIntake, supervise
from tests.kits.tasks import LooseTasks

HERE, THERE, FAR = ChannelName("here"), ChannelName("there"), ChannelName("far")
LOBBY = Address(channel=HERE, room=RoomId("#lobby"))
GARDEN = Address(channel=THERE, room=RoomId("#Garden"))
ANN = Address(channel=HERE, room=RoomId("ann"))


class Deaf(ConsoleChannel):
    join = None  # type: ignore[assignment] # it has no such ability
    leave = None  # type: ignore[assignment] # the same
    is_joined = None  # type: ignore[assignment] # the same


class Stubborn(ConsoleChannel):
    """Refuses, with a reason that looks like markup."""

    no = ""

    async def join(self, at: Address) -> None:
        if self.no:
            raise Rejected(self.no)
        await super().join(at)

    async def leave(self, at: Address) -> None:
        if self.no:
            raise Rejected(self.no)
        await super().leave(at)


@dataclass
class House:
    """All services, wired as in the gateway."""

    store: Store
    clock: ManualClock
    channels: dict[ChannelName, ConsoleChannel]
    shown: list[PostPart]
    outbox: Outbox
    travels: RoomMembership
    doors: ConversationLocks
    world: CommandContext
    tasks: LooseTasks = field(default_factory=LooseTasks)
    count: int = 0

    def ask(
        self, name: str, at: Address = LOBBY, *, direct: bool = False, **given: str
    ) -> CommandCall:
        self.count += 1
        command = Command(
            id=EventId(f"c{self.count}"),
            at=at,
            sender=Sender(id=Id("root"), name="Root", verified=True),
            name=name,
            args=" ".join(given.values()),
            sent=NOW,
            origin="text",
            direct=direct,
        )
        return CommandCall(
            command=command,
            role="admin",
            global_role="admin",
            arguments=given,
            prefix="!",
        )

    async def do(self, ask: CommandCall) -> CommandEffect:
        """Carry out as dispatcher and intake do: one transaction, and then its effects."""
        answer = await answer_of(ask, self.world)
        await self.written(ask, answer)
        return answer

    async def written(self, ask: CommandCall, change: CommandEffect) -> None:
        asked = NewEntry(
            fact=ask.command,
            at=NOW,
            conversation=ask.command.at.conversation,
            key=dedup_key(ask.command),
        )
        written = await self.store.append([asked, *change.entries(asked)])
        change.settle(written[0])

    async def told(
        self, name: str, at: Address = LOBBY, *, direct: bool = False, **given: str
    ) -> str:
        return (await self.do(self.ask(name, at, direct=direct, **given))).answer

    async def done(self) -> None:
        """Return once all that was started has ended."""
        async with asyncio.timeout(120):
            while self.tasks.running:
                await asyncio.wait(self.tasks.running)

    async def open(self, at: Address, about: str = "") -> None:
        await self.store.append(
            [
                NewEntry(
                    fact=RoomAccessChanged(room=at, open=True, by="here:root", about=about), at=NOW
                )
            ]
        )

    async def spoke(self, at: Address, *, direct: bool, who: str = "ann") -> None:
        sender = Sender(id=Id(who), name=who, verified=True)
        kind = "direct" if direct else "room"
        said = Message(
            id=MessageId(f"m{who}"),
            at=at,
            sender=sender,
            text="hi",
            sent=NOW,
            kind=kind,  # type: ignore[arg-type] # one of these
        )
        await self.store.append(taken_in(said))

    def seen(self, at: Address) -> list[str]:
        return [part.body for part in self.shown if part.to == at]


@contextlib.asynccontextmanager
async def house(tmp: Path, known: dict[str, str] | None = None) -> AsyncIterator[House]:
    clock, shown = ManualClock(NOW + timedelta(hours=1)), list[PostPart]()
    tasks = LooseTasks()
    made: dict[ChannelName, ConsoleChannel] = {
        HERE: ConsoleChannel(HERE, shown.append),
        THERE: Stubborn(THERE, shown.append),
        FAR: Deaf(FAR, shown.append),
    }
    bound = ConversationBinding(listen="mention", agent="reverie", private=False)
    bindings = Bindings(
        [
            BindingPattern(
                channel="here",
                room="#Den",
                thread=None,
                binding=ConversationBinding(listen="all", agent="ana", private=True),
            ),
            BindingPattern(channel="here", room="*", thread=None, binding=bound),
        ]
    )

    async with await Store.open(tmp / "log.db", clock) as store:
        roster = Roster(store, clock)
        await roster.load()
        store.subscribe(roster.on_appended, *ROSTER_FACTS)
        who = PlayedPolicy(
            dm_policy="pairing",
            roles={"here:root": "admin", "here:ann": "member", **(known or {})},  # type: ignore[dict-item] # roles
            open_rooms={
                HERE: frozenset({LOBBY.room, RoomId("#Den")}),
                THERE: frozenset({GARDEN.room}),
                FAR: frozenset({identity.ANY_ROOM}),
            },
            roster=lambda: roster.known,
        )
        outbox = Outbox(store, made, clock, tasks, redactor=Redactor())
        travels = RoomMembership(store, PlayedChannels(made), tasks, outbox, who)
        doors = ConversationLocks()
        world = command_context(
            store,
            clock,
            channels=PlayedChannels(made, prefixes=dict.fromkeys(made, "!")),
            people=who,
            roster=roster,
            places=privacy(store, bindings),
            agents=agents_of(bindings=bindings, room_locks=doors),
            membership=travels,
            tasks=tasks,
        )
        await outbox.open()

        async def up(batch: object, *, cursor: str | None = None) -> None:
            del batch, cursor

        running = [asyncio.create_task(channel.run(up)) for channel in made.values()]
        for channel in made.values():
            outbox.set_link_up(channel.name, up=True)
        await asyncio.sleep(0)
        it = House(store, clock, made, shown, outbox, travels, doors, world, tasks)
        try:
            yield it
        finally:
            await travels.close()
            await outbox.drain(0)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await outbox.close()


# `rooms`, `join`, `part` and `say`: answers, durable facts, and effects

CLOSED = Address(channel=HERE, room=RoomId("#closed"))


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


async def test_rooms_tells_every_room_once_with_how_it_stands(it: House) -> None:
    await it.open(
        Address(channel=THERE, room=RoomId("#late")), about="tea `and` cake\n- `x`: configured"
    )
    waits = CodeIssued(
        request="r1",
        what="room",
        person="there:zed",
        name="zed",
        at=LOBBY,
        room=Address(channel=THERE, room=RoomId("#wants")),
        salt="0",
        digest="0" * 64,
        until=NOW + timedelta(hours=2),
    )
    over = replace(waits, request="r2", room=CLOSED, until=NOW)
    await it.store.append([NewEntry(fact=fact, at=NOW) for fact in (waits, over)])
    await it.told("part", room="#Den")
    await it.done()
    lines = (await it.told("rooms")).split("\n")
    assert lines == [
        (
            "- `here/#Den`: in the configuration, left by command, answers everything, agent `ana`, "
            "private"
        ),
        "- `here/#lobby`: in the configuration, I am in it, reads mentions, agent `reverie`",
        "- `there/#Garden`: in the configuration, I am in it, reads nothing, no agent",
        lines[3],
        "- `there/#wants`: waits for approval, I am in it, reads nothing, no agent",
        "- `far`: every room is approved.",
    ]
    assert lines[3].startswith("- `tea ")
    assert lines[3].endswith(" (`there/#late`): approved, I am in it, reads nothing, no agent")
    assert lines[3].count("`") == 4, "what a room calls itself ends no code"


@pytest.mark.parametrize(
    ("room", "says"),
    [
        (
            "#closed",
            (
                "`here/#closed` is not approved. Invite me there: I show you a code for `!room "
                "approve`. Or the operator can add it to the configuration."
            ),
        ),
        ("there/#closed", "`there/#closed` is not approved."),
        ("nowhere/#x", "I have no channel `nowhere`."),
        ("agent/reverie", "I have no channel `agent`."),
        ("there/", "`there/` is not a room. Write it as `rooms` shows it."),
        ("there/#a%2", "`there/#a%2` is not a room"),
        ("`", "is not a room"),
        (
            "far/#x",
            (
                "On this platform, people add me to rooms. Add me to the room, then write `!room "
                "approve` there."
            ),
        ),
        ("#lobby", "I am already in `here/#lobby`."),
    ],
)
async def test_join_refuses_what_cannot_be(room: str, says: str, it: House) -> None:
    answer = await it.do(it.ask("join", room=room))
    assert says in answer.answer
    assert not answer.changes
    assert answer.ok is (room == "#lobby")
    assert not it.tasks.begun


async def test_a_room_is_left_and_entered_again_also_of_another_channel_and_in_any_case(
    it: House,
) -> None:
    await it.open(GARDEN)
    await it.done()
    left = await it.told("part", room="there/#garden")
    assert left == "I leave `there/#Garden`. I come back after `!join`, or after a restart."
    await it.done()
    assert it.travels.is_inside(GARDEN) is False
    assert it.travels.was_sent_out(GARDEN)
    it.travels.rejoin(GARDEN.channel)
    await it.done()
    assert it.travels.is_inside(GARDEN) is False, "told to stay out"
    assert await it.told("part", room="there/#garden") == "I am not in `there/#Garden`."
    assert await it.told("join", room="THERE/#GARDEN") == "I have no channel `THERE`."
    assert (
        await it.told("join", room="`there/#GARDEN`")
        == "I enter `there/#Garden`. If that fails, I tell you here."
    )
    await it.done()
    assert it.travels.is_inside(GARDEN)
    assert not it.travels.was_sent_out(GARDEN)
    assert it.seen(LOBBY) == [], "what went well needs no words behind the answer"


async def test_an_invitation_is_stronger_than_having_been_told_to_leave(it: House) -> None:
    await it.told("part", room="there/#Garden")
    await it.done()
    it.travels.accept_invite(GARDEN)
    it.travels.accept_invite(Address(channel=FAR, room=RoomId("x")))
    await it.done()
    assert it.travels.is_inside(GARDEN)


@pytest.mark.parametrize("way", ["join", "part"])
async def test_what_does_not_work_is_told_in_a_post_of_its_own_once(way: str, it: House) -> None:
    if way == "join":
        await it.told("part", room="there/#Garden")
        await it.done()
    stubborn = it.channels[THERE]
    assert isinstance(stubborn, Stubborn)
    stubborn.no = "no ` way\n@everyone"
    ask = it.ask(way, room="there/#Garden")
    await it.do(ask)
    await it.do(ask)  # the platform tells it again
    await it.done()
    (told,) = it.seen(LOBBY)
    verb = "enter" if way == "join" else "leave"
    assert told.startswith(f"I cannot {verb} `there/#Garden`: `no ")
    assert told.count("`") == 4
    assert "\n" not in told
    assert it.travels.was_sent_out(GARDEN) is False


async def test_part_without_a_room_is_this_one_and_the_answer_goes_out_before(it: House) -> None:
    ask = it.ask("part")
    answer = await answer_of(ask, it.world)
    post = Post(key=PostKey("answer"), to=LOBBY, text=answer.answer)
    queued = NewEntry(
        fact=PostQueued(post=post), at=NOW, conversation=LOBBY.conversation, key="post:answer"
    )
    await it.store.append([queued])
    await it.written(ask, answer)
    await it.done()
    assert it.seen(LOBBY) == [
        "I leave `here/#lobby`. I come back after `!join`, or after a restart."
    ]
    assert it.travels.is_inside(LOBBY) is False


async def test_nobody_leaves_a_direct_chat(it: House) -> None:
    answer = await it.do(it.ask("part", ANN, direct=True))
    assert (answer.ok, answer.answer) == (
        False,
        "This is a direct chat. Write the name of the room that I shall leave.",
    )
    assert await it.told("part", room="far/#x") == "I cannot leave rooms on that platform."


async def test_what_is_said_elsewhere_is_durable_with_the_command_and_a_turn_of_that_room(
    it: House,
) -> None:
    ask = it.ask("say", room="#den", text="**hello** all")
    answer = await it.do(ask)
    assert answer.answer == "I post it in `here/#Den`."
    den = Address(channel=HERE, room=RoomId("#Den"))
    (turn,) = await it.store.entries(kinds=("turn_ended",))
    (post,) = await it.store.entries(kinds=("post",))
    (given,) = await it.store.entries(kinds=("command",))
    assert isinstance(turn.fact, TurnRecord)
    assert (turn.fact.agent, turn.fact.text, turn.fact.requests) == ("ana", "**hello** all", 0)
    assert isinstance(post.fact, PostQueued)
    assert (post.conversation, post.cause) == (den.conversation, given.seq)
    await it.done()
    assert it.seen(den) == ["**hello** all"]
    await it.do(ask)  # told again
    await it.done()
    assert it.seen(den) == ["**hello** all"]
    assert not it.doors.is_busy(den.conversation)


async def test_what_a_crash_cut_off_is_said_by_the_next_process(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        it.outbox.set_link_up(HERE, up=False)
        await it.told("say", room="#den", text="hello")
        await it.outbox.drain(0)
    async with await Store.open(tmp_path / "log.db", it.clock) as store:
        (waiting,) = await store.undelivered_posts()
        assert (waiting.post.to.room, waiting.post.text) == ("#Den", "hello")


@pytest.mark.parametrize(
    ("room", "says"),
    [
        ("#closed", "I may not post in `here/#closed`: it is not approved."),
        ("zed", "I may not post in `here/zed`"),
        ("agent/reverie", "I have no channel `agent`."),
        ("here//", "is not a room"),
    ],
)
async def test_say_speaks_nowhere_else(room: str, says: str, it: House) -> None:
    await it.spoke(Address(channel=HERE, room=RoomId("zed")), direct=True, who="zed")
    answer = await it.do(it.ask("say", room=room, text="hello"))
    assert says in answer.answer
    assert not answer.ok
    assert await it.store.entries(kinds=("post",)) == []


async def test_people_with_a_role_are_spoken_to_alone_and_threads_of_open_rooms_are_open(
    it: House,
) -> None:
    await it.spoke(ANN, direct=True)
    thread = replace(LOBBY, thread=ThreadId("t1"))
    assert await it.told("say", room="ann", text="psst") == "I post it in `here/ann`."
    assert (
        await it.told("say", room="here/#lobby/t1", text="in the thread")
        == "I post it in `here/#lobby/t1`."
    )
    assert await it.told("say", room="#lobby", text=" \n ") == "Write the text that I shall post."
    await it.done()
    assert (it.seen(ANN), it.seen(thread)) == (["psst"], ["in the thread"])


async def test_where_a_turn_runs_nothing_is_said_in_between(tmp_path: Path) -> None:
    async with house(tmp_path) as it, it.doors.lock_for(LOBBY.conversation):
        answer = await it.do(it.ask("say", room="#lobby", text="hello"))
        assert (answer.ok, answer.answer) == (
            False,
            "I am just answering there. Try again in a moment.",
        )
    assert not it.doors.is_busy(LOBBY.conversation)


async def test_in_a_room_that_was_left_nothing_is_said(it: House) -> None:
    await it.told("part", room="there/#Garden")
    await it.done()
    answer = await it.do(it.ask("say", room="there/#garden", text="hello"))
    assert (answer.ok, answer.answer) == (
        False,
        "I am not in `there/#Garden`. `!join` lets me enter it.",
    )


# `restart` and `reload`

CONFIG = """\
channels: {}
access: {roles: {owner: ["here:root"]}}
agents: [{id: ana}]
llm:
  providers: {s: {kind: anthropic, api_key: sk-secret-%s}}
  models: {main: {provider: s, name: claude-sonnet-5-5}}
  context_optimization: {prompt_cache: {enabled: %s}}
ops: {port: %s}
"""


def write(directory: Path, *, key: str = "one", cache: str = "true", port: str = "0") -> None:
    file = directory / "reverie.yaml"
    file.write_text(CONFIG % (key, cache, port))
    file.chmod(0o600)


def running(it: House, tmp_path: Path) -> tuple[CommandContext, ChannelSupervisor]:
    write(tmp_path)
    live = LiveSettings(read_config(tmp_path, {}).settings, ConfigFiles(tmp_path, {}))

    async def emit(batch: object, *, cursor: str | None = None) -> None:
        del batch, cursor

    stats = GatewayStats(dict.fromkeys(it.channels, "console"), NOW)
    runner = supervise(PlayedChannels(it.channels), live.settings, it.outbox, it.tasks, stats=stats)
    runner.start(EmitIntake(lambda _: emit))
    world = replace(
        it.world,
        gateway=replace(it.world.gateway, live=live),
        supervisor=runner,
    )
    return world, runner


async def test_a_channel_is_restarted_once_and_nothing_more_is_said_of_it(
    tmp_path: Path, it: House
) -> None:
    world, runner = running(it, tmp_path)
    runs = list[str]()
    channel, run = it.channels[THERE], it.channels[THERE].run

    async def counted(emit: Emit) -> None:
        runs.append("run")
        await run(emit)

    channel.run = counted  # type: ignore[method-assign] # counted, and run
    await until(lambda: runs)
    runs.clear()
    ask = it.ask("restart", channel="THERE")
    answer = await answer_of(ask, world)
    assert (
        answer.answer
        == "I disconnect `there` and connect it again. If that fails, I tell you here."
    )
    await it.written(ask, answer)
    assert not runs, "first the answer goes out"
    await until(lambda: runs and not runner.is_restarting(THERE))
    await it.written(ask, answer)  # told again
    await asyncio.sleep(0.01)
    assert runs == ["run"]
    assert it.seen(LOBBY) == []
    await runner.close()


@pytest.mark.parametrize("written", ["ther", "irc`; rm", "far/x"])
async def test_a_channel_that_there_is_not_is_not_restarted(
    tmp_path: Path, written: str, it: House
) -> None:
    world, _ = running(it, tmp_path)
    answer = await answer_of(it.ask("restart", channel=written), world)
    assert answer.answer.startswith("I have no channel `")
    assert answer.answer.count("`") % 2 == 0
    assert not answer.ok
    assert not answer.changes


async def test_a_channel_that_is_refused_again_is_told_of(tmp_path: Path, it: House) -> None:
    world, runner = running(it, tmp_path)

    async def refused(emit: Emit) -> None:
        del emit
        raise Denied("the token is `refused`\n@everyone")

    it.channels[THERE].run = refused  # type: ignore[method-assign] # a platform that does not want it
    ask = it.ask("restart", channel="there")
    answer = await answer_of(ask, world)
    await it.written(ask, answer)
    await until(lambda: it.seen(LOBBY))
    (told,) = it.seen(LOBBY)
    assert told.startswith("The platform refuses the connection of `there`: `the token is ")
    assert told.count("`") == 4
    assert "\n" not in told
    await runner.close()


async def test_while_it_is_restarted_it_is_not_restarted_again(tmp_path: Path, it: House) -> None:
    world, runner = running(it, tmp_path)
    it.channels[HERE].run = _silent  # type: ignore[method-assign] # a platform that does not answer
    first = it.ask("restart", channel="here")
    answer = await answer_of(first, world)
    await it.written(first, answer)
    await until(lambda: runner.is_restarting(HERE))
    answer = await answer_of(it.ask("restart", channel="here"), world)
    assert (answer.ok, answer.answer) == (False, "`here` is already restarting.")
    await runner.close()


async def _silent(emit: Emit) -> None:
    del emit
    await asyncio.Event().wait()


async def test_reload_tells_keys_and_never_what_they_say(tmp_path: Path, it: House) -> None:
    world, _ = running(it, tmp_path)

    async def told() -> str:
        return (await answer_of(it.ask("reload"), world)).answer

    assert await told() == "I read the configuration again. Nothing in it has changed."
    write(tmp_path, key="two", cache="false", port="9191")
    wait = "These keys need a restart, and all other changes wait for it: `ops.port`."
    assert await told() == wait
    write(tmp_path, key="two", cache="false")
    keys = "`llm.context_optimization.prompt_cache.enabled`, `llm.providers.s.api_key`"
    assert await told() == f"Changed, in force now: {keys}."


async def test_reload_of_a_broken_configuration_tells_where_and_changes_nothing(
    tmp_path: Path, it: House
) -> None:
    world, _ = running(it, tmp_path)
    write(tmp_path, key="`x`\\n", port="many")
    answer = await answer_of(it.ask("reload"), world)
    assert not answer.ok
    first, *problems = answer.answer.split("\n")
    assert first == "The configuration has errors, so I go on with the settings that I have:"
    (problem,) = problems
    assert "reverie.yaml:8: ops.port" in problem
    assert "sk-secret" not in answer.answer
    (tmp_path / "reverie.yaml").unlink()
    answer = await answer_of(it.ask("reload"), world)
    assert "has no configuration" in answer.answer


async def test_reload_without_files_says_so(tmp_path: Path, it: House) -> None:
    world, _ = running(it, tmp_path)
    live = LiveSettings(read_config(tmp_path, {}).settings)
    world = replace(world, gateway=replace(world.gateway, live=live))
    answer = await answer_of(it.ask("reload"), world)
    assert (answer.ok, answer.answer) == (
        False,
        (
            "I cannot read the configuration: `it does not come from files`. I go on with the "
            "settings that I have."
        ),
    )
