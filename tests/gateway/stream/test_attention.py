"""Attention: defaults, rules, thresholds also set by command, bindings, and room
talk."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.policy import UNBOUND, AccessDecision, ConversationBinding, ListenMode, SpeaksUp
from gateway.config.models import AttentionConfig, AttentionRuleConfig
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    Alarm,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    EventId,
    MembershipChanged,
    Message,
    MessageId,
    Notification,
    PostKey,
    PresenceLevel,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    TaskFinished,
    ThreadId,
)
from gateway.core.facts import URGENT, AttentionThresholdSet, Fact
from gateway.core.identity import Role
from gateway.store import NewEntry, Store
from gateway.stream.attention import (
    INHERIT,
    AttentionPolicy,
    LiveAttention,
    Urgency,
    assess,
    format_event_type,
    is_open_question,
)
from gateway.stream.inbox import FLOOD_WINDOW_S, ConversationInbox, ReadyConversation
from gateway.stream.routing import BindingPattern, Bindings
from tests.kits.policies import attention_of
from tests.kits.settings import live_settings, reload
from tests.kits.strategies import notifications

# test_attention

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AT = Address(channel=ChannelName("irc.libera"), room=RoomId("#python"))
ANN = Sender(id=SenderId("a"), name="ann")
YES = AccessDecision(allowed=True, role="guest", rule="open")
DEFAULT = AttentionPolicy(thresholds={})
URGENCIES: tuple[Literal["ambient", "low", "normal", "urgent"], ...] = (
    *("ambient", "low", "normal", "urgent"),
)


def ruled(
    dotted: str,
    urgency: int,
    *,
    keyword: str | None = None,
    role: Literal["guest", "member", "admin", "owner"] | None = None,
) -> AttentionRuleConfig:
    return AttentionRuleConfig(type=dotted, urgency=URGENCIES[urgency], keyword=keyword, role=role)


LEVELS: Final[tuple[PresenceLevel, ...]] = get_args(PresenceLevel)
Kind = Literal["direct", "mention", "reply", "room"]


def said(kind: Kind, text: str = "hi", at: Address = AT) -> Message:
    return Message(id=MessageId("1"), at=at, sender=ANN, text=text, sent=NOW, kind=kind)


REACTION = ReactionChanged(
    id=EventId("1"), at=AT, sender=ANN, message=MessageId("1"), reaction="+", added=True, sent=NOW
)
JOIN = MembershipChanged(id=EventId("1"), at=AT, sender=ANN, change="join", sent=NOW)
LINK = ConnectionChanged(
    id=EventId("1"), channel=ChannelName("irc.libera"), up=True, reason="", sent=NOW
)
FINISHED = TaskFinished(id=EventId("1"), what="dream", ok=True, text="", sent=NOW)
FAILED = DeliveryReport(
    id=EventId("1"), at=AT, post=PostKey("1"), state="failed", reason="", sent=NOW
)
ALARM = Alarm(id=EventId("1"), text="tea", sent=NOW)


@pytest.mark.parametrize(
    ("change", "news", "listen", "fate"),
    [
        ("topic", True, "mention", "context"),
        ("topic", True, "off", "noted"),
        ("topic", False, "mention", "noted"),
        ("join", True, "all", "noted"),
    ],
)
def test_a_changed_topic_is_told_at_the_next_turn(
    *, change: Literal["topic", "join"], news: bool, listen: ListenMode, fate: str
) -> None:
    judged = assess(DEFAULT, replace(JOIN, change=change, news=news), YES, listen)
    assert (judged.fate, judged.urgency) == (fate, 0)


def test_rules_and_thresholds_hold_for_topics_too() -> None:
    change = replace(JOIN, change="topic")
    loud = AttentionPolicy(rules=(ruled("irc.libera", 3),), thresholds={})
    assert (
        assess(loud, change, YES, "mention").fate,
        assess(loud, change, YES, "mention").urgency,
    ) == ("due", 3)
    assert assess(AttentionPolicy(thresholds={"irc.libera": 1}), change, YES, "all").fate == "noted"


@pytest.mark.parametrize(
    ("event", "dotted"),
    [
        (said("mention"), "irc.libera.mention.#python"),
        (said("room"), "irc.libera.room.#python"),
        (
            said("direct", at=Address(channel=ChannelName("telegram.main"), room=RoomId("42"))),
            "telegram.main.direct.42",
        ),
        (
            said(
                "room", at=Address(channel=ChannelName("d"), room=RoomId("1"), thread=ThreadId("2"))
            ),
            "d.room.1.2",
        ),
        (REACTION, "irc.libera.reaction.#python"),
        (LINK, "irc.libera.link"),
        (ALARM, "agent.alarm"),
    ],
)
def test_types(event: Notification, dotted: str) -> None:
    assert format_event_type(event) == dotted


@pytest.mark.parametrize(
    ("event", "listen", "urgency", "fate"),
    [
        (said("direct"), "mention", 3, "due"),
        (said("mention"), "mention", 3, "due"),
        (said("reply"), "ambient", 3, "due"),
        (said("room"), "ambient", 0, "context"),
        (said("room"), "mention", 0, "noted"),
        (said("room"), "all", 3, "due"),
        (said("mention"), "off", 3, "noted"),
        (said("reply"), "off", 3, "noted"),
        (REACTION, "all", 1, "due"),
        (REACTION, "off", 1, "noted"),
        (replace(REACTION, added=False), "all", 1, "noted"),
        (JOIN, "all", 0, "noted"),
        (LINK, "all", 1, "due"),
        (ALARM, "all", 2, "due"),
        (replace(ALARM, at=AT), "off", 2, "noted"),
        (FINISHED, "all", 1, "due"),
        (replace(FINISHED, what="job", at=AT), "ambient", 2, "due"),
        (FAILED, "all", 1, "due"),
        (replace(FAILED, state="uncertain"), "all", 1, "due"),
        (replace(FAILED, state="sent"), "all", 1, "noted"),
    ],
)
def test_defaults(event: Notification, listen: ListenMode, urgency: int, fate: str) -> None:
    judged = assess(DEFAULT, event, YES, listen)
    assert (judged.urgency, judged.fate) == (urgency, fate)
    assert judged.rule
    assert (judged.rule == "listen: off") == (listen == "off")


def test_the_first_rule_that_fits_decides() -> None:
    policy = AttentionPolicy(
        rules=(
            ruled("irc.libera.room", 3, keyword="FIRE"),
            ruled("*.room.#python", 2),
            ruled("irc", 0),
        ),
        thresholds={},
    )
    assert assess(policy, said("room", "a fire!"), YES, "ambient").urgency == 3
    assert assess(policy, said("room"), YES, "ambient").urgency == 2
    assert assess(policy, said("mention"), YES, "ambient").urgency == 0
    elsewhere = Address(channel=ChannelName("ircx.y"), room=RoomId("r"))
    assert (
        assess(policy, said("mention", at=elsewhere), YES, "ambient").urgency == 3
    )  # `irc` is a prefix by dots
    bracketed = Address(channel=ChannelName("irc.libera"), room=RoomId("#c[de]"))
    exact = AttentionPolicy(rules=(ruled("irc.libera.room.#c[de]", 2),), thresholds={})
    assert assess(exact, said("room", at=bracketed), YES, "ambient").urgency == 2


def test_thresholds_walk_up_the_dots() -> None:
    policy = AttentionPolicy(thresholds={"irc": 3, "irc.libera": INHERIT, "irc.libera.room": 0})
    assert assess(policy, said("room"), YES, "ambient").fate == "context"
    assert assess(policy, said("mention"), YES, "ambient").fate == "due"
    normal = AttentionPolicy(rules=(ruled("irc", 2),), thresholds={"irc": 3})
    judged = assess(normal, said("mention"), YES, "ambient")
    assert (judged.fate, judged.rule) == ("noted", "attention.thresholds.irc is 3")


@pytest.mark.parametrize("event", [REACTION, LINK, ALARM, FINISHED, FAILED])
def test_what_the_operator_calls_ambient_is_noted_if_nobody_said_it(event: Notification) -> None:
    judged = assess(
        AttentionPolicy(rules=(ruled("*", 0),), thresholds={}),
        event,
        YES,
        "all",
    )
    assert (judged.urgency, judged.fate, judged.rule) == (0, "noted", "attention.rules[0]")


CUT = "attention.thresholds.irc is 2"


@pytest.mark.parametrize(
    ("urgency", "level", "fate", "now", "rule"),
    [
        (1, "present", "noted", 1, CUT),
        (1, "idle", "due", 1, ""),
        (1, "away", "due", 1, ""),
        (1, "sleeping", "noted", 1, CUT),
        (1, "focused", "noted", 1, CUT),
        (2, "present", "due", 2, ""),
        (2, "focused", "context", 0, f"{CUT}, and people are focused"),
        (3, "focused", "due", 3, ""),
        (0, "idle", "noted", 0, CUT),
    ],
)
def test_presence_shifts_a_threshold_by_one(
    urgency: Urgency, level: PresenceLevel, fate: str, now: int, rule: str
) -> None:
    policy = AttentionPolicy(rules=(ruled("irc", urgency),), thresholds={"irc": 2})
    for event in (said("mention"), said("room"), REACTION, LINK):
        judged = assess(policy, event, YES, "ambient", level=level)
        assert (judged.fate, judged.urgency) == (fate, now)
        assert judged.rule == (rule or "attention.rules[0]")


def test_offsets_stay_within_the_levels_and_shift_nothing_that_is_not_set() -> None:
    top, bottom = AttentionPolicy(thresholds={"irc": 3}), AttentionPolicy(thresholds={"irc": 0})
    assert assess(top, said("mention"), YES, "mention", level="focused").fate == "due", (
        "urgent always passes"
    )
    assert assess(bottom, said("room"), YES, "ambient", level="away").fate == "context"
    for level in LEVELS:
        assert assess(DEFAULT, REACTION, YES, "mention", level=level).fate == "due"
        for event in (said("room"), said("mention"), JOIN, ALARM):
            assert assess(DEFAULT, event, YES, "ambient", level=level) == assess(
                DEFAULT, event, YES, "ambient"
            )
    focused = assess(bottom, REACTION, YES, "all", level="focused")
    assert (focused.fate, focused.urgency) == ("due", 1), "ambient, one higher, is low"
    assert assess(bottom, said("room"), YES, "mention", level="focused").rule == "listen: mention"


@given(
    st.sampled_from(
        [said("mention"), said("room"), said("direct"), REACTION, LINK, ALARM, FAILED, FINISHED]
    ),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(INHERIT, 3),
    st.sampled_from(["mention", "ambient", "all", "off"]),
)
def test_presence_loses_nothing(
    event: Notification, urgency: Urgency, threshold: int, listen: ListenMode
) -> None:
    dotted = format_event_type(event).split(".")[0]
    policy = AttentionPolicy(rules=(ruled("*", urgency),), thresholds={dotted: threshold})
    usual = assess(policy, event, YES, listen)
    for level in LEVELS:
        judged = assess(policy, event, YES, listen, level=level)
        if usual.fate in ("due", "context"):
            assert judged.fate in ("due", "context"), level
        if urgency == 3:
            assert judged == usual
        if judged.fate == "context":
            assert judged.urgency == 0


def test_whose_account_a_channel_is() -> None:
    one, two = (
        ConversationBinding(listen="off", agent="one"),
        ConversationBinding(listen="all", agent="two"),
    )
    bindings = Bindings(
        [
            BindingPattern(channel="irc.*", room="#only", thread=None, binding=one),
            BindingPattern(channel="*", room="*", thread=None, binding=two),
        ]
    )
    assert bindings.find_agent(ChannelName("irc.libera")) == "one"
    assert bindings.find_agent(ChannelName("discord.main")) == "two"
    assert not Bindings([]).find_agent(ChannelName("x"))


def test_bindings_first_match_wins() -> None:
    quiet, loud = (
        ConversationBinding(listen="mention", prompt="short"),
        ConversationBinding(listen="all"),
    )
    bindings = Bindings(
        [
            BindingPattern(channel="irc.*", room="#python", thread=None, binding=quiet),
            BindingPattern(channel="irc.*", room="#p*", thread=None, binding=loud),
            BindingPattern(channel="d", room="*", thread="7", binding=loud),
        ]
    )
    assert bindings.find(AT) is quiet
    assert bindings.find(Address(channel=ChannelName("irc.oftc"), room=RoomId("#perl"))) is loud
    assert (
        bindings.find(Address(channel=ChannelName("d"), room=RoomId("1"), thread=ThreadId("7")))
        is loud
    )
    assert bindings.find(Address(channel=ChannelName("d"), room=RoomId("1"))) is UNBOUND
    odd = Bindings([BindingPattern(channel="*", room="#[foo]", thread=None, binding=loud)])
    assert odd.find(Address(channel=ChannelName("d"), room=RoomId("#[foo]"))) is loud


def test_a_role_fits_who_has_it_or_more_and_never_what_nobody_did() -> None:
    policy = AttentionPolicy(rules=(ruled("*", 3, role="member"),), thresholds={})
    roles: list[Role] = ["guest", "member", "admin", "owner"]
    found = [
        assess(policy, said("room"), YES._replace(role=role), "ambient").urgency for role in roles
    ]
    assert found == [0, 3, 3, 3]
    anybody = AttentionPolicy(rules=(ruled("*", 3, role="guest"),), thresholds={})
    assert assess(anybody, JOIN, YES, "ambient").urgency == 3
    assert assess(anybody, LINK, YES, "ambient").rule == "link is low"


@given(
    notifications,
    st.sampled_from(LEVELS),
    st.sampled_from(["mention", "ambient", "all", "off"]),
)
def test_every_event_has_one_fate(
    event: Notification, level: PresenceLevel, listen: ListenMode
) -> None:
    judged = assess(AttentionPolicy(thresholds={"a": 2}), event, YES, listen, level=level)
    assert judged.rule
    assert judged.fate != "due" or judged.urgency > 0
    assert judged.fate == "noted" or listen != "off"


@pytest.mark.parametrize("listen", get_args(ListenMode))
@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_is_played_back_starts_nothing(kind: Kind, listen: ListenMode) -> None:
    keyword = AttentionPolicy(thresholds={}, rules=(ruled("*", 3),))
    for policy in (DEFAULT, keyword):
        judged = assess(
            policy,
            replace(said(kind), history=True),
            YES,
            listen,
            "sometimes",
            level="focused",
        )
        assert judged.fate != "due"
        assert (judged.fate == "context") == (
            listen != "off" and not (kind == "room" and listen == "mention")
        )


# Thresholds set by command, and rules of the file: their effect on attention, also after a restart
# or a reload


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Store, LiveAttention]]:
    """Load them as a start does."""
    async with await Store.open(tmp_path / "s.db", ManualClock(NOW)) as store:
        overrides = attention_of(store)
        await overrides.load()
        yield store, overrides


async def write(store: Store, *facts: Fact) -> None:
    await store.append(
        [NewEntry(fact=fact, at=NOW, conversation=AT.conversation) for fact in facts]
    )


def bar(type: str, value: int | None) -> AttentionThresholdSet:  # noqa: A002 - it is what it is
    return AttentionThresholdSet(type=type, value=value, by="irc:ann")


async def test_a_rule_of_the_file_holds_once_it_is_read_again(tmp_path: Path) -> None:
    live = live_settings(attention=AttentionConfig())
    async with await Store.open(tmp_path / "s.db", ManualClock(NOW)) as store:
        overrides = attention_of(store, live)
        await overrides.load()
        await write(store, bar("irc", 2))
        assert assess(overrides.policy, said("room", "tea?"), YES, "ambient").fate == "noted"
        rules = [{"type": "irc", "keyword": "TEA", "urgency": "normal"}]
        reload(live, attention=AttentionConfig.model_validate({"rules": rules}))
        judged = assess(overrides.policy, said("room", "tea?"), YES, "ambient")
        assert (judged.rule, judged.urgency, judged.fate) == ("attention.rules[0]", 2, "due")
        assert assess(overrides.policy, said("room", "coffee"), YES, "ambient").fate == "noted"


async def test_what_was_in_the_log_already_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        entry = NewEntry(fact=bar("irc", 2), at=NOW, conversation=AT.conversation, key="once")
        await store.append([entry])
        await write(store, bar("irc", 0))
        await store.append([entry])
        assert overrides.thresholds == {"irc": 0}


# Room talk where the agent may speak unasked

QUESTION_RULE = "speaks_up: an open question"
BOT = replace(ANN, is_bot=True)


def spoken(text: str = "hi") -> Message:
    at = Address(channel=ChannelName("irc.x"), room=RoomId("#python"))
    return Message(id=MessageId("1"), at=at, sender=ANN, text=text, sent=NOW, kind="room")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("does anybody know how to quit vim?", True),
        ("¿sabe alguien?  ", True),
        ("知道吗？", True),
        ("**really?**", True),
        ("(anybody here?)", True),
        ("what?!", True),
        ("ann: do you know?", False),
        ("ann, do you know?", False),
        ("do you know, @ann?", False),
        ("write to a@b.example, or?", True),
        ("http://x.example/?", False),
        ("I asked? Then I slept.", False),
        ("", False),
    ],
)
def test_questions_to_nobody(text: str, asked: bool) -> None:
    assert is_open_question(spoken(text)) == asked


@pytest.mark.parametrize(
    ("message", "listen", "speaks_up", "decision", "verdict"),
    [
        (spoken("tea?"), "ambient", "when_useful", YES, ("due", 2, QUESTION_RULE)),
        (spoken("tea?"), "ambient", "sometimes", YES, ("due", 2, QUESTION_RULE)),
        (spoken("tea"), "ambient", "when_useful", YES, ("due", 1, "speaks_up: talk of people")),
        (
            replace(spoken("tea?"), sender=BOT),
            "ambient",
            "sometimes",
            YES,
            ("context", 0, "room talk is ambient"),
        ),
        (spoken("tea?"), "ambient", "never", YES, ("context", 0, "room talk is ambient")),
        (spoken("tea?"), "off", "sometimes", YES, ("noted", 2, "listen: off")),
        (spoken("tea?"), "all", "sometimes", YES, ("due", 3, "listen: all")),
    ],
)
def test_room_talk_is_judged_by_whether_the_agent_may_speak_unasked(
    message: Message,
    listen: ListenMode,
    speaks_up: SpeaksUp,
    decision: AccessDecision,
    verdict: tuple[str, int, str],
) -> None:
    judged = assess(AttentionPolicy(thresholds={}), message, decision, listen, speaks_up)
    assert (judged.fate, judged.urgency, judged.rule) == verdict


# Inbox

STEP_S = 0.5
ROOM = ConversationId("irc.test/#room")


class Listener:
    """Notes the times at which the inbox announces something."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.noticed_s: list[float] = []

    def notice(self, arrival: ReadyConversation) -> None:
        del arrival
        self.noticed_s.append(self.clock.monotonic())


def listened(
    clock: ManualClock, live: LiveSettings | None = None
) -> tuple[ConversationInbox, list[float]]:
    """Return an inbox, and the times at which it announces something."""
    live = live or live_settings(attention=AttentionConfig(coalesce=1.5))
    inbox, listener = ConversationInbox(clock, live), Listener(clock)
    inbox.subscribe(listener.notice)
    return inbox, listener.noticed_s


def arrival(urgency: int = URGENT, *, talk: bool = False) -> ReadyConversation:
    return ReadyConversation(conversation=ROOM, urgency=urgency, is_room_talk=talk)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def passes(clock: ManualClock, time_s: float) -> None:
    """Advance in small steps, so that each waiter sees about the time that was meant."""
    until_s = clock.monotonic() + time_s
    while clock.monotonic() < until_s:
        clock.advance(min(STEP_S, until_s - clock.monotonic()))
        await settle()
    await settle()


async def test_a_raid_is_noticed_once_and_then_once_a_minute() -> None:
    clock = ManualClock()
    inbox, noticed = listened(clock)
    for _ in range(12_000):  # two minutes, 100 lines a second
        inbox.add(arrival(talk=True))
        await asyncio.sleep(0)
        clock.advance(0.01)
        await asyncio.sleep(0)
    assert [math.floor(at) for at in noticed] == [1, 61]
    await inbox.close()


async def test_what_is_said_to_the_agent_does_not_wait_for_the_end_of_a_flood() -> None:
    clock = ManualClock()
    inbox, noticed = listened(clock)
    for _ in range(100):
        inbox.add(arrival(talk=True))
        clock.advance(0.05)
        await settle()
    assert inbox.is_waiting(ROOM)
    noticed.clear()
    asked_s = clock.monotonic()
    inbox.add(arrival())
    await settle()
    clock.advance(1.5)
    await settle()
    assert noticed == [asked_s + 1.5]
    await inbox.close()


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.data())
def test_nothing_waits_longer_than_its_window(gaps_s: list[float], data: st.DataObject) -> None:
    async def run() -> None:
        clock = ManualClock()
        inbox, noticed = listened(clock)
        bounds = []
        for gap_s in gaps_s:
            talk = data.draw(st.booleans())
            inbox.add(arrival(talk=talk))
            bounds.append((clock.monotonic(), FLOOD_WINDOW_S if talk else 1.5))
            await settle()
            await passes(clock, gap_s)
        await passes(clock, FLOOD_WINDOW_S + STEP_S)
        assert all(
            any(at_s <= told_s <= at_s + most_s + STEP_S for told_s in noticed)
            for at_s, most_s in bounds
        )
        await inbox.close()

    asyncio.run(run())
