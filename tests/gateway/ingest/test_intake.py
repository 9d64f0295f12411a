"""Intake of events from outside and inside, on a real store: where they are unread, and who is
called."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.access.channels import Channels
from gateway.config.reload import LiveSettings
from gateway.context.conversation import ConversationLocks
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    Alarm,
    ChannelName,
    Command,
    ConnectionChanged,
    EventId,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    QuotedMessage,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    TaskFinished,
)
from gateway.core.facts import (
    Fact,
    Judgement,
    PartSendEnded,
    PostQueued,
    TurnRecord,
    inner_conversation,
)
from gateway.store import LogEntry, NewEntry, Store, rebuild
from gateway.stream.attention import InternalIntake
from gateway.stream.inbox import ReadyConversation, ready_conversations
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, settings
from tests.gateway.access.limits_kit import NOON, Kind
from tests.kits.intake import emits
from tests.kits.people import People
from tests.kits.policies import FixedPresence, attention_of, bindings_of, policy_of
from tests.kits.store import list_unread, posts_of, turn

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
AT = Address(channel=CONSOLE, room=RoomId("lobby"))
ANN = Sender(id=SenderId("ann"), name="ann", verified=True)
BOT = replace(ANN, id=SenderId("bot"), is_bot=True)
OWN = inner_conversation("reverie")
LINK = ConnectionChanged(id=EventId("1"), channel=CONSOLE, up=False, reason="cable", sent=NOW)
REACTED = ReactionChanged(
    id=EventId("r"), at=AT, sender=ANN, message=MessageId("m"), reaction="+1", added=True, sent=NOW
)
ALARM = Alarm(id=EventId("a:1"), text="tea", sent=NOW, at=AT, agent="reverie")

ELSEWHERE = [{"id": "reverie", "bindings": [{"match": {"channel": "irc"}}]}]


def said(number: int, kind: Any, sender: Sender = ANN) -> Message:
    return Message(id=MessageId(str(number)), at=AT, sender=sender, text="hi", sent=NOW, kind=kind)


class House:
    """The intakes of one channel and of events from inside."""

    def __init__(self, store: Store, tmp: Path, **more: Any) -> None:
        self.store = store
        self.arrived: list[ReadyConversation] = []
        self.links: list[bool] = []
        self.posts = posts_of(store)
        self.rooms = ConversationLocks()
        made, clock = settings(tmp, **more), ManualClock(NOW)
        bindings = bindings_of(made)
        who = policy_of(made)
        self.presence = FixedPresence(clock, who)
        store.subscribe(self._on_appended)
        self.intake = emits(
            store,
            clock,
            LiveSettings(made),
            {CONSOLE: ConsoleChannel(CONSOLE, lambda _: None)},
            access_policy=who,
            bindings=bindings,
            locks=self.rooms,
            presence=self.presence,
        )[CONSOLE]
        self.inward = InternalIntake(
            store, clock, attention_of(store, made, self.presence), bindings
        )

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        self.arrived += ready_conversations(entries)
        self.links += [
            one.fact.up or one.fact.says
            for one in entries
            if isinstance(one.fact, ConnectionChanged)
        ]

    async def posted(self, message: str) -> None:
        """Append a post of ours, which the platform shows as that message."""
        post = Post(key=PostKey("p"), to=AT, text="hello")
        part = PartSendEnded(
            post=post.key, part=0, state="sent", reason="", ids=(MessageId(message),)
        )
        facts: list[tuple[Fact, str | None]] = [(PostQueued(post=post), "post:p"), (part, None)]
        await self.store.append(
            [
                NewEntry(fact=fact, at=NOW, conversation=AT.conversation, key=key)
                for fact, key in facts
            ]
        )

    async def judged(self, event: Notification) -> Judgement:
        """Return the judgement of the newest event, after receiving this one."""
        await self.intake([event])
        (newest,) = await self.store.newest_entries(1, kinds=["judged"])
        assert isinstance(newest.fact, Judgement)
        return newest.fact


@asynccontextmanager
async def built(tmp: Path, **more: Any) -> AsyncIterator[House]:
    async with await Store.open(tmp / "reverie.db", ManualClock(NOW)) as store:
        yield House(store, tmp, **more)
    assert await rebuild(tmp / "reverie.db") == []


def _rewind(number: int) -> Command:
    return Command(
        id=EventId(f"c{number}"),
        at=AT,
        sender=ANN,
        name="rewind",
        args="",
        sent=NOW,
        origin="native",
    )


ANN_RULES: dict[str, Any] = {"access": {"dm": "open", "roles": {"admin": ["console:ann"]}}}


async def test_a_command_that_changes_something_ends_a_transaction(tmp_path: Path) -> None:
    """Events after it in the same batch are decided by the new state, and the cursor is written
    last."""
    async with built(tmp_path, **ANN_RULES) as house:
        place = AT.conversation
        await house.store.append(
            [turn(place, text="one"), turn(place, text="two"), turn(place, text="three")]
        )
        before = house.store.commits
        await house.intake(
            [said(1, "room"), _rewind(1), said(2, "room"), _rewind(2), said(3, "room")], cursor="7"
        )
        assert house.store.commits == before + 3
        kinds = [entry.kind for entry in await house.store.entries(after=3)]
        change = ["command", "judged", "rewound", "audited", "post"]
        assert kinds == [
            "room",
            "judged",
            *change,
            "room",
            "judged",
            *change,
            "room",
            "judged",
            "cursor",
        ]
        (left,) = (await house.store.view_entries(place)).turns
        assert isinstance(left.fact, TurnRecord)
        assert left.fact.text == "one"
        assert not house.rooms.is_busy(place)


@pytest.mark.parametrize("steps", range(12))
async def test_what_a_channel_that_is_cut_had_handed_over_is_lost_to_nobody(
    tmp_path: Path, steps: int
) -> None:
    """It is received again when the channel is up again, and is not new then if it is in the
    log."""
    async with built(tmp_path, **ANN_RULES) as house:
        events: list[Notification] = [said(1, "mention"), replace(_rewind(2), name="version")]
        cut = asyncio.ensure_future(house.intake(events))
        for _ in range(steps):
            await asyncio.sleep(0.0003)
        cut.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cut
        await house.intake(events)
        assert [one.conversation for one in house.arrived] == [AT.conversation]
        assert len(house.posts) == 1


async def test_a_channel_that_ends_in_the_middle_leaves_the_room_open(tmp_path: Path) -> None:
    async with built(tmp_path, **ANN_RULES) as house:
        place = AT.conversation
        await house.store.append([turn(place)])
        taking = asyncio.ensure_future(house.intake([_rewind(1)]))
        while not house.rooms.is_busy(place):
            await asyncio.sleep(0)
        while house.rooms.is_busy(place):
            taking.cancel()
            await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            await taking
        assert not house.rooms.is_busy(place)


def ready(at: Address, kind: str, to_us: str = "", **more: bool) -> ReadyConversation:
    authors = {MessageId(to_us): SenderId("ann")} if to_us else {}
    return ReadyConversation(
        conversation=at.conversation, urgency=3, type=kind, authors=authors, sender=ANN, **more
    )


async def test_an_arrival_says_what_came_and_where(tmp_path: Path) -> None:
    async with built(
        tmp_path,
        agents=[{"id": "reverie", "bindings": [{"match": {"channel": "*"}, "listen": "all"}]}],
    ) as house:
        at = Address(channel=CONSOLE, room=RoomId("ann"))
        await house.intake([said(1, "mention"), replace(said(2, "direct"), at=at), said(3, "room")])
        assert house.arrived == [
            ready(AT, "console.mention.lobby", "1", direct=False),
            ready(at, "console.direct.ann", "2", direct=True),
            ready(AT, "console.room.lobby", direct=False, is_room_talk=True),
        ]
        await house.intake([said(1, "mention")])
        assert len(house.arrived) == 3, "a repeat is none"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with built(tmp_path) as made:
        yield made


async def test_a_link_that_changes_is_told_to_whose_account_it_is(house: House) -> None:
    known = await house.judged(replace(LINK, id=EventId("0"), up=True))
    assert (known.fate, known.urgency, known.rule) == ("noted", 1, "nothing had changed")
    assert (await house.judged(LINK)).fate == "due"
    assert (await house.judged(replace(LINK, id=EventId("2")))).rule == "nothing had changed"
    assert (await house.judged(replace(LINK, id=EventId("3"), up=True))).fate == "due"
    low = ReadyConversation(conversation=OWN, urgency=1, type="console.link")
    assert house.arrived == [low, low]
    unread = await house.store.unread_entries(OWN, most=10)
    assert [
        stored.fact.id for stored in unread.messages if isinstance(stored.fact, ConnectionChanged)
    ] == ["1", "3"]
    assert house.links == [True, False, False, True], "the outbox is told each time"


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (
            {"attention": {"rules": [{"type": "*.link", "urgency": "ambient"}]}},
            "attention.rules[0]",
        ),
        (
            {"attention": {"thresholds": {"console.link": "normal"}}},
            "attention.thresholds.console.link is 2",
        ),
        ({"agents": ELSEWHERE}, "no agent is bound to this account"),
    ],
)
async def test_a_link_that_nobody_is_to_hear_of_is_noted(
    tmp_path: Path, more: dict[str, Any], rule: str
) -> None:
    async with built(tmp_path, **more) as house:
        judged = await house.judged(LINK)
        assert (judged.fate, judged.rule) == ("noted", rule)
        assert not house.arrived
        assert await list_unread(house.store) == []


async def test_what_was_known_of_a_link_before_a_restart_is_known_after_it(
    tmp_path: Path, house: House
) -> None:
    await house.intake([LINK, replace(LINK, id=EventId("2"))])
    assert len(house.arrived) == 1
    again = House(house.store, tmp_path)
    assert (await again.judged(replace(LINK, id=EventId("3")))).fate == "noted"
    assert (await again.judged(replace(LINK, id=EventId("4"), up=True))).fate == "due"


async def test_a_reaction_to_what_we_said_is_low(house: House) -> None:
    await house.posted("m")
    theirs = await house.judged(replace(REACTED, id=EventId("r0"), message=MessageId("n")))
    assert (theirs.fate, theirs.urgency, theirs.rule) == (
        "noted",
        1,
        "a reaction to what somebody else said",
    )
    elsewhere = replace(REACTED, id=EventId("r9"), at=replace(AT, room=RoomId("cellar")))
    assert (await house.judged(elsewhere)).fate == "refused"
    assert (await house.judged(REACTED)).fate == "due"
    gone = await house.judged(replace(REACTED, id=EventId("r2"), added=False))
    assert gone.fate == "noted"
    assert await list_unread(house.store) == [(AT.conversation, 1)]
    assert [one.urgency for one in house.arrived] == [1]


async def test_the_level_of_presence_is_asked_as_each_event_comes(tmp_path: Path) -> None:
    rules = [{"type": "*.mention.*", "urgency": "normal"}]
    async with built(
        tmp_path, attention={"coalesce": 0, "rules": rules, "thresholds": {"console": 2}}
    ) as house:
        link = replace(LINK, up=False)
        assert (await house.judged(link)).fate == "noted"
        await house.posted("m")
        house.presence.fixed = "idle"
        assert (await house.judged(replace(REACTED, id=EventId("r1")))).fate == "due"
        house.presence.fixed = "focused"
        judged = await house.judged(said(1, "mention"))
        assert (judged.fate, judged.rule) == (
            "context",
            "attention.thresholds.console is 2, and people are focused",
        )
        assert [one.urgency for one in house.arrived] == [1], "the reaction alone"
        await house.inward.submit(ALARM)
        assert len(house.arrived) == 1, "it is context, too"
        assert [
            stored.kind
            for stored in (await house.store.unread_entries(AT.conversation, most=9)).messages
        ] == [
            "reacted",
            "mention",
            "alarm",
        ]


async def test_a_reminder_comes_once_to_its_place_or_to_the_agent_by_itself(house: House) -> None:
    alone = replace(ALARM, at=None)
    finished = TaskFinished(
        id=EventId("f"), what="dream", ok=True, text="", sent=NOW, agent="reverie"
    )
    for event in (ALARM, ALARM, alone, alone, finished, replace(finished, id=EventId("f2"), at=AT)):
        await house.inward.submit(event)
    assert house.arrived == [
        ReadyConversation(
            conversation=AT.conversation,
            urgency=2,
            type="console.alarm.lobby",
            handle_in_place=True,
        ),
        ReadyConversation(conversation=OWN, urgency=2, type="agent.alarm"),
        ReadyConversation(conversation=OWN, urgency=1, type="agent.finished"),
        ReadyConversation(
            conversation=AT.conversation,
            urgency=2,
            type="console.finished.lobby",
            handle_in_place=True,
        ),
    ]
    pending = Counter(await list_unread(house.store))
    assert pending == {(AT.conversation, 2): 2, (OWN, 2): 1, (OWN, 1): 1}
    with pytest.raises(ValueError, match="concerns nobody"):
        await house.inward.submit(replace(alone, agent=""))


async def test_where_nothing_is_listened_to_a_reminder_is_noted(tmp_path: Path) -> None:
    bindings = [{"match": {"channel": "console"}}]
    async with built(tmp_path, agents=[{"id": "reverie", "bindings": bindings}]) as house:
        await house.inward.submit(replace(ALARM, at=replace(AT, channel=ChannelName("gone"))))
        assert not house.arrived
        (judged,) = await house.store.newest_entries(1, kinds=["judged"])
        assert isinstance(judged.fact, Judgement)
        assert (judged.fact.fate, judged.fact.rule) == ("noted", "listen: off")


# Limits in the intake on a real store: what reaches the agent, which notices are posted, and what
# the log has

LOBBY = Address(channel=CONSOLE, room=RoomId("lobby"))
BATCH = 100


def said_of_limits(
    number: int, who: str, kind: Kind = "mention", text: str = "reverie?"
) -> Message:
    sender = Sender(id=SenderId(who), name=who, verified=True)
    return Message(
        id=MessageId(str(number)), at=LOBBY, sender=sender, text=text, sent=NOON, kind=kind
    )


class LimitsHouse:
    """One process with the intake of one channel."""

    def __init__(self, store: Store, tmp: Path, clock: ManualClock, **more: Any) -> None:
        self.store = store
        self.clock = clock
        self.arrived: list[ReadyConversation] = []
        self.posted = posts_of(store)
        made = settings(tmp, **more)
        live = LiveSettings(made)
        channels = Channels(live, {CONSOLE: ConsoleChannel(CONSOLE, lambda _: None)})
        self.people = People(live, store, clock, channels)
        store.subscribe(lambda entries: self.arrived.extend(ready_conversations(entries)))
        self.intake = emits(
            store,
            clock,
            live,
            channels,
            access_policy=self.people.policy,
            bindings=bindings_of(made),
            people=self.people,
        )[CONSOLE]


@asynccontextmanager
async def living(
    tmp: Path, clock: ManualClock | None = None, **more: Any
) -> AsyncIterator[LimitsHouse]:
    async with await Store.open(tmp / "reverie.db", clock or ManualClock(NOON)) as store:
        house = LimitsHouse(store, tmp, clock or ManualClock(NOON), **more)
        await house.people.load()
        yield house
    assert await rebuild(tmp / "reverie.db") == []


async def test_a_repeat_of_what_the_log_has_takes_nothing(tmp_path: Path) -> None:
    clock, rates = ManualClock(NOON), {"room": {"burst": 5, "per_minute": 1}}
    lines = [said_of_limits(number, f"raider{number}") for number in range(9)]
    async with living(tmp_path, clock, access={"dm": "open", "rates": rates}) as house:
        await house.intake(lines)
        (limited,), (notice,) = await house.store.entries(kinds=["limited"]), house.posted
        assert len(house.arrived) == 5
        assert limited.conversation == notice.post.to.conversation == LOBBY.conversation
        (asked,) = [one for one in lines if one.id == notice.post.reply_to]
        assert asked is lines[5]
    async with living(tmp_path, clock, access={"dm": "open", "rates": rates}) as house:
        await house.intake(lines)
        assert (house.arrived, house.posted) == ([], [])
        await house.intake([said_of_limits(10, "ann")])
        assert [one.urgency for one in house.arrived] == [3]


async def test_talk_that_all_is_listened_to_counts_and_other_talk_and_commands_do_not(
    tmp_path: Path,
) -> None:
    rates = {"sender": {"burst": 2, "per_minute": 1}}
    listening = [{"id": "reverie", "bindings": [{"match": {"channel": "*"}, "listen": "all"}]}]
    async with living(
        tmp_path / "all", access={"dm": "open", "rates": rates}, agents=listening
    ) as house:
        await house.intake([said_of_limits(number, "ann", "room") for number in range(4)])
        assert (len(house.arrived), len(house.posted)) == (2, 1)
        await house.intake(
            [said_of_limits(10, "ann", "mention", "!about"), said_of_limits(11, "ann", "room")]
        )
        assert (len(house.arrived), len(house.posted)) == (2, 2), "the command is answered"
    async with living(tmp_path / "some", access={"dm": "open", "rates": rates}) as house:
        await house.intake([said_of_limits(number, "ann", "room") for number in range(9)])
        await house.intake([said_of_limits(number, "ann") for number in range(10, 13)])
        assert (len(house.arrived), len(house.posted)) == (2, 1)


# The judges: their order, and of two that would decide the same event, the one that does

ACCESS = {
    "dm": "open",
    "rooms": "approval",
    "roles": {"blocked": ["console:mal"], "member": ["console:bot"]},
    "rates": {"sender": {"burst": 1, "per_minute": 1}},
    "max_bot_exchanges": 1,
}
CELLAR = replace(LOBBY, room=RoomId("cellar"))


async def test_these_judge_each_event_in_this_order(tmp_path: Path) -> None:
    async with living(tmp_path) as house:
        judges = cast("Any", house.intake).func.__self__.judges
        names = [
            one.judge.args[0].plugin.name
            if isinstance(one.judge, partial)
            else one.judge.__qualname__
            for one in judges
        ]
        assert names == [
            "CommandDispatcher.judge",
            "LiveAttention.judge",
            "LoopGuard.judge",
            "UsageLimiter.judge",
            "reminders",
            "pairing",
            "CommandDispatcher.explain",
        ]


@pytest.mark.parametrize(
    ("who", "text", "more", "verdict"),
    [
        ("mal", "!about", {}, ("refused", "access.roles.blocked", 0)),  # access, before commands
        ("ann", "!about", {}, ("noted", "command about", 1)),  # commands, before limits
        ("ann", "!about", {"kind": "room"}, ("noted", "command about", 1)),  # and attention
        ("ann", "hi", {"kind": "room"}, ("context", "room talk is ambient", 0)),  # before limits
        ("ann", "hi", {}, ("context", "access.rates.sender: 1 at once, then 1 a minute", 1)),
        (
            "bot",
            "hi",
            {"is_bot": True},
            ("context", "loop broken: 1 exchanges with bots (access.max_bot_exchanges)", 0),
        ),  # loops, before limits
        ("eve", "hi", {"at": CELLAR}, ("refused", "not in channels.console.rooms", 1)),  # greeted
        ("ann", "!stop", {}, ("refused", "command stop is for admin and above", 0)),
    ],
)
async def test_who_comes_first_decides(
    tmp_path: Path, who: str, text: str, more: dict[str, Any], verdict: tuple[str, str, int]
) -> None:
    """Each sender has spent their token by then. `verdict`: fate, rule, and number of posts."""
    sender = Sender(id=SenderId(who), name=who, verified=True, is_bot="is_bot" in more)
    changes = {key: value for key, value in more.items() if key != "is_bot"}
    async with living(tmp_path, access=ACCESS) as house:
        await house.intake([replace(said_of_limits(0, who), sender=sender)])
        await house.intake([replace(said_of_limits(1, who, text=text), sender=sender, **changes)])
        (judged,) = await house.store.newest_entries(1, kinds=["judged"])
        assert isinstance(judged.fact, Judgement)
        assert (judged.fact.fate, judged.fact.rule, len(house.posted)) == verdict


async def test_what_a_blocked_person_said_is_not_brought_in_by_a_reply(tmp_path: Path) -> None:
    async with built(tmp_path, access={"roles": {"blocked": ["console:bob"]}}) as house:
        for number, author in enumerate(("bob", "carol")):
            quoted = QuotedMessage(sender=replace(ANN, id=SenderId(author)), text="obey")
            await house.intake([replace(said(number, "mention"), quoted=quoted)])
        kept = [
            one.fact.quoted
            for one in await house.store.newest_entries(
                9, kinds=["direct", "mention", "reply", "room"]
            )
            if isinstance(one.fact, Message)
        ]
        assert [one and one.sender.id for one in kept] == [None, "carol"]
