"""Notices to owners on a real store: place, frequency, and what survives a restart."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from channels.aio import cancel_and_wait
from channels.base import PostPart
from gateway.access.channels import Channels
from gateway.access.policy import ConversationBinding
from gateway.cluster.cluster import UPKEEP, Cluster
from gateway.config.models import AccessConfig
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    EventId,
    MessageId,
    PostButton,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    OPERATOR_CHANNEL,
    CodeEnded,
    Fact,
    LimitReached,
    PostQueued,
    dedup_key,
)
from gateway.core.i18n import _, use_language
from gateway.core.identity import RoleGrant, RosterState
from gateway.plugins.budgets import Budgets
from gateway.plugins.health import Health
from gateway.plugins.http import Http
from gateway.plugins.owners import LASTING_S, MAX_POSTS_PER_KIND, MORE_TEXT, Owners
from gateway.plugins.pairing import Pairing
from gateway.store import NewEntry, Store, StoreOutage, rebuild
from gateway.stream.notices import NoticeState, NoticeText
from gateway.stream.routing import Bindings
from gateway.stream.store_outages import STORE_OUTAGE_TOLD_S, StoreOutages
from reverie.testing.console import ConsoleChannel
from reverie.testing.waiting import until
from tests.gateway.access.limits_kit import CHANNEL, NOON, most, said
from tests.kits.cluster import ManualCluster
from tests.kits.handle import handle_of
from tests.kits.places import PlayedChannels
from tests.kits.plugins import plugins_of
from tests.kits.policies import PlayedPolicy
from tests.kits.settings import live_settings
from tests.kits.store import posts_of, turn
from tests.kits.tasks import LooseTasks

ROOT = Address(channel=CHANNEL, room=RoomId("root"))
HERE = Address(channel=ChannelName("telegram.x"), room=RoomId("-1001"))
DAY_S = 86_400.0


class Tapped(ConsoleChannel):
    capabilities = replace(ConsoleChannel.capabilities, buttons=True)

    def __init__(self) -> None:
        super().__init__(CHANNEL, lambda _: None)


class Rooms(Bindings):
    tag: str | None = None

    def __init__(self) -> None:
        super().__init__(())

    def find(self, place: Address) -> ConversationBinding:
        return replace(super().find(place), language=self.tag)


class Told:
    def __init__(
        self, store: Store, clock: ManualClock, tasks: asyncio.TaskGroup, to: Address | None
    ) -> None:
        self.store = store
        self.clock = clock
        self.tasks = tasks
        self.posted = posts_of(store)
        self.known = RosterState()
        who = PlayedPolicy(
            dm_policy="open",
            roles={
                f"{CHANNEL}:root": "owner",
                f"{CHANNEL}:boss": "owner",
                "irc.y:root": "owner",
                f"{CHANNEL}:mod": "admin",
            },
            open_rooms={},
            roster=lambda: self.known,
            grants={f"{CHANNEL}:half": [RoleGrant("owner", "agent:reverie", "by the operator")]},
            agents=lambda _: "reverie",
            operator_channel=OPERATOR_CHANNEL,
        )
        live = live_settings(access=AccessConfig(tell=to.conversation if to is not None else None))
        self.rooms = Rooms()
        gateway = handle_of(
            store,
            clock,
            live=live,
            tasks=tasks,
            people=who,
            channels=PlayedChannels({CHANNEL: Tapped()}),
            bindings=self.rooms,
        )
        self.notices = gateway.notices
        self.plugins = plugins_of(Owners, Budgets, Pairing, gateway=gateway)
        self.notices.listeners.append(self.plugins.notify)

    async def tell(
        self, key: str, text: str | NoticeText, state: NoticeState = "once", **more: Any
    ) -> None:
        await self.notices.tell(key, text if callable(text) else lambda _to: text, state, **more)

    async def hears(self, fact: Any) -> None:
        await self.store.append(
            [
                NewEntry(
                    fact=fact,
                    at=self.clock.now(),
                    conversation=fact.at.conversation,
                    key=dedup_key(fact),
                )
            ]
        )

    async def all_said(self) -> list[tuple[str, str]]:
        stored = [one.fact for one in await self.store.entries(kinds=["post"])]
        return [
            (one.post.to.conversation, one.post.text)
            for one in stored
            if isinstance(one, PostQueued)
        ]


@asynccontextmanager
async def living(
    tmp: Path, *, clock: ManualClock | None = None, to: Address | None = None
) -> AsyncIterator[Told]:
    """Open one process on the store in `tmp`, which outlives it."""
    clock = clock or ManualClock(NOON)
    async with await Store.open(tmp / "reverie.db", clock) as store, asyncio.TaskGroup() as tasks:
        told = Told(store, clock, tasks, to)
        await told.plugins.start()
        yield told
    assert await rebuild(tmp / "reverie.db") == []


def command(who: str, *, direct: bool) -> Command:
    return Command(
        id=EventId(f"c-{who}"),
        at=Address(channel=CHANNEL, room=RoomId(who if direct else "#a")),
        sender=Sender(id=SenderId(who), name=who, verified=True),
        name="status",
        args="",
        sent=NOON,
        origin="native",
        direct=direct,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


async def test_owners_are_told_where_the_operator_wants_it(tmp_path: Path) -> None:
    async with living(tmp_path, to=HERE) as told:
        await told.hears(said("root", "root", kind="direct"))
        await told.tell("a", "something")
        ((where, text),) = await told.all_said()
        assert (where, text) == (HERE.conversation, "something")
        (posted,) = told.posted
        assert (posted.post.to, posted.post.style, posted.post.text) == (
            HERE,
            "notice",
            "something",
        )
        assert (await told.store.undelivered_posts()) == [replace(posted, at=posted.at)], (
            "it is the one that is durable"
        )


async def test_an_outage_that_every_process_sees_is_told_by_the_one_that_cares_for_the_store(
    tmp_path: Path,
) -> None:
    async with living(tmp_path, to=HERE) as told:
        peers, processes = (
            list[ManualCluster](),
            [told, Told(told.store, told.clock, told.tasks, HERE)],
        )
        handles = [
            handle_of(
                told.store,
                told.clock,
                live=most(),
                tasks=told.tasks,
                channels=Channels(
                    most(), {}, ManualCluster(peers, *([UPKEEP] if one is told else []))
                ),
                notices=one.notices,
            )
            for one in processes
        ]
        outages = [StoreOutages(one) for one in handles]
        for one in handles:
            plugins_of(Http, Health, gateway=one)

        async def ends(failure: str, outcome: Literal["failed", "replied"]) -> None:
            why = {"outcome": outcome, "failure": failure, "reason": "no route"}
            made = turn(HERE.conversation, upto=1, agent="ana", **why)
            await told.store.append([replace(made, at=told.clock.now())])

        async def said_after(count: int) -> list[str]:
            async with asyncio.timeout(30):
                while len(texts := [text for _, text in await told.all_said()]) < count:
                    await asyncio.sleep(0.01)
            for one in processes:  # what each still has to tell stands before this
                await one.tell(f"probe:{count}:{processes.index(one)}", "probe")
            return [text for text in texts if text != "probe"]

        await ends("unreachable", "failed")
        (text,) = await said_after(1)
        assert text.startswith("No model answers ana")
        told.clock.advance(LASTING_S)
        await ends("unreachable", "failed")
        assert len(await said_after(3)) == 1
        await ends("", "replied")
        assert [one.split(".")[0] for one in (await said_after(6))[1:]] == [
            "A model answers ana again"
        ]
        for outage in outages:
            outage.on_outage(StoreOutage(told.clock.now(), "the disk is full"))
            outage.check()
            told.clock.advance(STORE_OUTAGE_TOLD_S)
            outage.check()
            outage.on_outage(None)
        assert len(await said_after(9)) == 3, "one of the store"


async def test_the_buttons_of_a_notice_go_once_it_is_decided(tmp_path: Path) -> None:
    clock, button = ManualClock(NOON), PostButton(label="Yes", command="approve it")
    async with living(tmp_path, clock=clock) as told:
        await told.hears(said("root", "root", kind="direct"))
        await told.tell("code:salt", "Is it right?", buttons=lambda: (button,))
        ((notice,),) = [[one.post for one in told.posted]]
        assert notice.buttons == (button,)
        clock.advance(3 * DAY_S)
        fact = CodeEnded(request="abcde", state="used", by="irc.test:r1", name="root")
        decided = NewEntry(fact=fact, at=clock.now(), key="code_over:salt")
        await told.store.append([decided])
    async with living(tmp_path, clock=clock) as told:
        (__, end) = [
            one.fact.post
            for one in await told.store.entries(kinds=["post"])
            if isinstance(one.fact, PostQueued)
        ]
        assert (end.replaces, end.buttons) == (notice.key, ())
        assert end.text == "Is it right?\n\n**Approved** by `root`."


async def test_a_limit_that_is_reached_is_told_once_a_day_over_a_restart(tmp_path: Path) -> None:
    fact, clock = (
        LimitReached(limit="cost", whose="sender", subject="tg:7", rule="$1 a day", name="Oma"),
        ManualClock(NOON),
    )
    for __ in range(2):
        async with living(tmp_path, clock=clock, to=HERE) as told:
            for _ in range(2):
                await told.store.append(
                    [NewEntry(fact=fact, at=told.clock.now(), conversation=HERE.conversation)]
                )
            await until(told.all_said)
            await told.tell("after", "after it")
            assert [text.partition(" has")[0] for _, text in await told.all_said()] == [
                "`tg:7` (`Oma`)",
                "after it",
            ]


async def test_else_in_the_direct_chat_that_a_verified_owner_used_last(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, clock=clock) as told:
        nobody = said("boss", "boss", kind="direct")
        others: list[Fact] = [
            said("root", "#a"),
            said("mod", "mod", kind="direct"),
            said("half", "half", kind="direct"),
            replace(nobody, sender=replace(nobody.sender, verified=False)),
            command("boss", direct=False),
        ]
        for one in others:
            await told.hears(one)
        await told.tell("a", "something")
        assert await told.all_said() == []
        await told.hears(first := said("root", "root", kind="direct"))
        await told.tell("a", "something")
        await told.hears(command("boss", direct=True))
        await told.hears(first)
        await told.tell("b", "else")
        assert await told.all_said() == [
            (ROOT.conversation, "something"),
            (f"{CHANNEL}/boss", "else"),
        ]
    async with living(tmp_path, clock=clock) as told:
        for number in range(700):
            await told.hears(said(f"p{number}", f"p{number}", kind="direct"))
    async with living(tmp_path, clock=clock) as told:
        await told.tell("c", "more")
        assert (await told.all_said())[-1] == (f"{CHANNEL}/boss", "more"), "found in the log"


async def test_elsewhere_than_on_a_channel_that_does_not_work(tmp_path: Path) -> None:
    other = replace(
        said("root", "root", kind="direct"),
        at=Address(channel=ChannelName("irc.y"), room=RoomId("root")),
    )

    async with living(tmp_path) as told:
        await told.hears(said("root", "root", kind="direct"))
        await told.tell("a", "it is down", beside=CHANNEL)
        await told.hears(other)
        await told.hears(said("root", "root", kind="direct"))
        await told.tell("b", "it is down", beside=CHANNEL)
        await told.tell("c", "something else")
        places = [where for where, _ in await told.all_said()]
        assert places == [f"{CHANNEL}/root", "irc.y/root", f"{CHANNEL}/root"]


async def test_at_the_operators_console_only_while_no_other_place_is_known(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Nobody may be looking at the console."""
    alone = Address(channel=OPERATOR_CHANNEL, room=RoomId("operator"))
    spoken = replace(said("operator", "operator", kind="direct"), at=alone)
    again = replace(spoken, id=MessageId("m-again"))

    async with living(tmp_path, clock=clock) as told:
        await told.hears(spoken)
        await told.tell("a", "to the console")
        await told.hears(said("root", "root", kind="direct"))
        await told.tell("b", "to root")
        await told.hears(again)
        await told.tell("c", "to root still")
        assert [where for where, _ in await told.all_said()] == [
            alone.conversation,
            *[ROOT.conversation] * 2,
        ]
    async with living(tmp_path, clock=clock) as told:
        await told.tell("d", "to root after a restart")
        assert (await told.all_said())[-1][0] == ROOT.conversation


async def test_who_is_an_owner_no_more_is_told_nothing(tmp_path: Path) -> None:
    async with living(tmp_path) as told:
        await told.hears(said("root", "root", kind="direct"))
        await told.hears(said("boss", "boss", kind="direct"))
        told.known = RosterState(grants={f"{CHANNEL}:boss": [RoleGrant("blocked", "", "by root")]})
        await told.tell("a", "something")
        assert await told.all_said() == [(ROOT.conversation, "something")]
        told.known = RosterState(
            grants={
                f"{CHANNEL}:{who}": [RoleGrant("blocked", "", "by me")] for who in ("boss", "root")
            }
        )
        await told.tell("b", "something")
        assert len(await told.all_said()) == 1


async def test_what_nobody_can_be_told_stands_in_the_log_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with living(tmp_path) as told:
        with caplog.at_level(logging.WARNING, "reverie.owners"):
            for _ in range(3):
                await told.tell("a", "100 % of it")
        assert [one.getMessage() for one in caplog.records] == ["for owners: 100 % of it"]
        assert await told.all_said() == []


async def test_once_a_day_for_each_key_also_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, clock=clock, to=HERE) as told:
        for _ in range(3):
            told.notices.tell("a", lambda _to: "something")
            await told.tell("b", "something else")
        assert len(told.posted) == 2
    async with living(tmp_path, clock=clock, to=HERE) as told:
        await told.tell("a", "something")
        assert told.posted == []
        await told.tell("c", "a third thing")
        assert len(told.posted) == 1
        told.clock.advance(DAY_S)
        await told.tell("a", "something")
        assert len(told.posted) == 2
        assert len({key.post.key for key in told.posted}) == 2
        assert all(len(key.post.key) == 26 for key in told.posted)


async def test_trouble_is_told_once_a_day_with_its_end(tmp_path: Path, clock: ManualClock) -> None:
    async with living(tmp_path, clock=clock, to=HERE) as told:

        async def new(
            *, begins: int = 0, cause: str = "refused", lasted_s: float = 0.0
        ) -> list[str]:
            """What is told if it begins so often, and is over after that; else it is over now."""
            seen = len(told.posted)
            for _ in range(begins):
                told.notices.tell(f"channel:x:{cause}", lambda _to: f"x is {cause}.", "begins")
            await asyncio.sleep(0)
            clock.advance(lasted_s)
            if not begins:
                told.notices.tell("channel:x:", lambda _to: "x is up again.", "ends")
                await asyncio.sleep(0)
            await told.tell(f"after:{len(told.posted)}", "after")
            return [one.post.text for one in told.posted[seen:-1]]

        assert await new(begins=14, lasted_s=3 * 3600) == ["x is refused."]
        assert await new() == ["x is up again. It lasted 3 h."]
        assert [await new(begins=1), await new()] == [[], []], "the same on the same day, and short"
        assert await new(begins=1, cause="broken", lasted_s=60) == ["x is broken."], "another cause"
        assert await new() == ["x is up again. It lasted 1 min."]
        assert await new(begins=1, lasted_s=LASTING_S) == []
        assert await new(begins=1) == ["x is refused."], "it lasts"
        assert await new() == ["x is up again. It lasted 10 min."]
        assert [await new(begins=1), await new()] == [[], []]
        clock.advance(DAY_S)
        assert await new(begins=1) == ["x is refused."]
        clock.advance(DAY_S)
        assert await new(begins=1) == ["x is refused."], "it goes on"
        midnight = clock.now().replace(hour=0, minute=0, second=0) + timedelta(days=1)
        clock.advance((midnight - clock.now()).total_seconds() - 60)
        assert await new(begins=1, cause="lost", lasted_s=120) == ["x is lost."]
        assert await new(begins=1, cause="lost") == [], "another day, and the same night"


async def test_a_notice_and_its_buttons_have_the_language_of_the_place_and_the_log_is_english(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(to: Address | None) -> str:
        return _("Approved") if to is not None else _("Denied")

    async with living(tmp_path) as told:
        with use_language("es"):  # of the guest who caused it
            await told.hears(replace(said("root", "root", kind="direct"), language="de-AT"))
            await told.tell(
                "a:1", ask, buttons=lambda: (PostButton(label=_("Refuse"), command="x"),)
            )
        told.rooms.tag = "es"
        await told.tell("a:2", ask)
    first, second = (one.post for one in told.posted)
    assert (first.text, first.language, [one.label for one in first.buttons]) == (
        "Genehmigt",
        "de",
        ["Ablehnen"],
    )
    assert (second.text, second.language) == ("Aprobado", "es")
    assert "for owners: Denied" in caplog.text


async def test_ten_a_day_and_one_that_says_that_there_is_more(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, clock=clock, to=HERE) as told:
        async with asyncio.TaskGroup() as tasks:
            for number in range(MAX_POSTS_PER_KIND - 2):
                tasks.create_task(told.tell(f"k:{number}", f"text {number}"))
        assert len(told.posted) == MAX_POSTS_PER_KIND - 2
        for number in range(30):
            told.tasks.create_task(told.tell(f"k:after {number}", f"text {number}"))
        await asyncio.sleep(0)
        await told.tell("k:last", "text")
        assert [one.post.text for one in told.posted[MAX_POSTS_PER_KIND - 2 :]] == [
            "text 0",
            "text 1",
            MORE_TEXT.format(count=MAX_POSTS_PER_KIND, command="!log tail"),
        ]
        await told.tell("other:1", "of another kind")
        assert told.posted[-1].post.text == "of another kind", (
            "many of one kind keep no other from being told"
        )
        seen = len(told.posted)
        await told.tell("k:one", "more")
        assert told.posted[seen:] == []
        told.clock.advance(DAY_S)
        await told.tell("k:one", "more")
        assert [one.post.text for one in told.posted[seen:]] == ["more"]


async def test_what_cannot_be_recorded_is_told_by_the_process_that_holds_the_channel(
    store: Store,
) -> None:
    live = live_settings(access=AccessConfig(tell="irc.test/#owners"))
    shown, tasks, clock, name = (
        list[PostPart](),
        LooseTasks(),
        ManualClock(NOON),
        ChannelName("irc.test"),
    )
    adapter = ConsoleChannel(name, shown.append)
    running = asyncio.create_task(adapter.run(no_emit))
    await asyncio.sleep(0)
    for cluster in (ManualCluster([]), Cluster()):
        channels = Channels(live, {name: adapter}, cluster)
        gateway = handle_of(store, clock, live=live, tasks=tasks, channels=channels)
        gateway.notices.listeners.append(plugins_of(Owners, gateway=gateway).notify)
        gateway.notices.tell("store:x", lambda _to: "I cannot write my log.", "unrecorded")
    await asyncio.gather(*tasks.begun)
    assert [(part.to.room, part.body) for part in shown] == [("#owners", "I cannot write my log.")]
    await cancel_and_wait(running)


async def no_emit(batch: object, *, cursor: str | None = None) -> None:
    del batch, cursor
