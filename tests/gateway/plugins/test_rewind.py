"""Taking back what a view shows: what is decided, that it is durable with its command, and what the
model sees then."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import TextPart
from agent.models.scripted import Script, ScriptRule
from gateway.context.conversation import TURN_RUNNING
from gateway.core.events import Address, Command, EventId, RoomId, Sender, SenderId, Usage
from gateway.core.facts import (
    ConversationRewound,
    Fact,
    Seq,
    TurnId,
    TurnRecord,
    ViewFolded,
    inner_conversation,
)
from gateway.plugins import rewind
from gateway.plugins.rewind import TurnInView
from gateway.plugins.trace import explain_event
from gateway.store import Store, rebuild
from gateway.store.effects import CommandEffect
from reverie.testing.gateway import CONSOLE, Gateway, Held, running

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
AT = Address(channel=CONSOLE, room=RoomId("lobby"))
PLACE = AT.conversation


def facts_of(planned: CommandEffect) -> list[Fact]:
    return [one.fact for one in planned.facts]


SORTS = "aswif"
"""Answered, silent, within another conversation, interrupted, failed."""


def seen(sorts: str, *, each: int = 10) -> list[TurnInView]:
    """Turns of these sorts, at 10, 20, ...; those answered, failed and interrupted have a message
    in front of them."""
    outcomes: dict[str, Any] = {
        "a": "replied",
        "s": "silent",
        "w": "replied",
        "i": "interrupted",
        "f": "failed",
    }
    return [
        TurnInView(
            Seq(place * each),
            TurnRecord(
                turn=TurnId(f"t{place}"),
                covers=(Seq(place * each - 1),) if sort in "aif" else (),
                omitted=0,
                heard="",
                upto=Seq(place * each - 1),
                outcome=outcomes[sort],
                text="said" if sort in "awf" else "",
                reason="",
                model="m",
                usage=Usage(),
                requests=1,
                autonomous=sort == "w",
                within=TurnId("x") if sort == "w" else None,
            ),
        )
        for place, sort in enumerate(sorts, start=1)
    ]


@pytest.mark.parametrize(
    ("sorts", "count", "first", "said"),
    [
        ("aaa", 1, 30, "I took back the last exchange."),
        ("aaa", 2, 20, "I took back the last 2 exchanges."),
        ("aaa", 9, 10, "I took back the last 3 exchanges. I see no more of them here."),
        ("aia", 1, 20, "I took back the last exchange."),
        ("aiia", 1, 20, "I took back the last exchange."),
        ("iaa", 1, 30, "I took back the last exchange."),
        ("iaa", 2, 10, "I took back the last 2 exchanges."),
        ("aas", 1, 20, "I took back the last exchange."),
        ("aaws", 1, 20, "I took back the last exchange."),
        ("aai", 1, 20, "I took back the last exchange."),
        ("saa", 2, 20, "I took back the last 2 exchanges."),
        ("saa", 3, 10, "I took back the last 2 exchanges. I see no more of them here."),
        ("asf", 1, 30, "I took back the last exchange."),
        ("ss", 1, 10, "I took back the last exchange."),
        ("w", 1, 10, "I took back the last exchange."),
    ],
)
def test_exchanges_are_taken_back_from_the_newest(
    sorts: str, count: int, first: int, said: str
) -> None:
    view = seen(sorts)
    back = rewind.plan_rewind(view, count, "ops")
    assert facts_of(back) == [ConversationRewound(first=Seq(first), last=view[-1].seq, by="ops")]
    assert back.answer.startswith(said)
    assert not rewind.is_retry(back)


@pytest.mark.parametrize(
    ("sorts", "first", "last", "again"),
    [
        ("aa", 20, 20, (19,)),
        ("aia", 20, 30, (19, 29)),
        ("aas", 20, 30, (19,)),
        ("aaw", 20, 20, (19,)),
        ("aasw", 20, 30, (19,)),
        ("aaws", 20, 40, (19,)),
        ("aai", 30, 30, (29,)),
        ("af", 20, 20, (19,)),
    ],
)
def test_what_was_answered_last_is_answered_again(
    sorts: str, first: int, last: int, again: tuple[Seq, ...]
) -> None:
    back = rewind.plan_retry(seen(sorts), "ops", PLACE)
    assert facts_of(back) == [
        ConversationRewound(first=Seq(first), last=Seq(last), by="ops", again=again)
    ]
    assert rewind.is_retry(back)


def test_the_words_of_a_retry_tell_how_much_it_is() -> None:
    one, two = (rewind.plan_retry(seen(sorts), "ops", PLACE).answer for sorts in ("a", "ias"))
    assert one == "I take back my last answer and answer 1 message again."
    assert two == "I take back my last answer and answer 2 messages again."


def test_where_nothing_is_in_view_nothing_is_taken_back() -> None:
    for back in (
        rewind.plan_rewind([], 1, "ops"),
        rewind.plan_retry([], "ops", PLACE),
        rewind.plan_retry(seen("sw"), "ops", PLACE),
        rewind.plan_retry(
            seen("a"), "ops", inner_conversation("reverie")
        ),  # of what it was told there most is of other places
        rewind.plan_new([], None, "ops"),
        rewind.plan_new([], ViewFolded(start=Seq(9), reason=""), "ops"),
    ):
        assert (facts_of(back), back.ok) == ([], False)
        assert back.answer.startswith("I see no ")


def test_a_fresh_view_begins_behind_all_that_is_in_it() -> None:
    back = rewind.plan_new(seen("aa"), None, "ops")
    assert facts_of(back) == [
        ViewFolded(start=Seq(21), reason="ops asked for a fresh view", kinds=("new",))
    ]
    assert back.answer == "I started over: I no longer see 2 earlier turns. The log keeps them."
    head = rewind.plan_new([], ViewFolded(start=Seq(40), reason="", head="so far"), "ops")
    (fresh,) = facts_of(head)
    assert isinstance(fresh, ViewFolded)
    assert (fresh.start, fresh.head) == (40, "")  # what was folded away does not come back
    assert (
        head.answer
        == "I started over: I no longer see the summary of earlier turns. The log keeps everything."
    )


@given(sorts=st.text(SORTS, max_size=12), count=st.integers(1, 15))
def test_what_is_taken_back_is_the_end_of_the_view(sorts: str, count: int) -> None:
    view = seen(sorts)
    rewound, again = (
        next(iter(facts_of(planned)), None)
        for planned in (
            rewind.plan_rewind(view, count, "ops"),
            rewind.plan_retry(view, "ops", PLACE),
        )
    )
    assert (rewound is None) == (not view)
    if isinstance(rewound, ConversationRewound):
        gone = [one.fact for one in view if rewound.first <= one.seq <= rewound.last]
        assert gone == [one.fact for one in view][-len(gone) :]
        visible = [one for one in view if one.fact.text and one.fact.within is None]
        assert sum(one.text != "" and one.within is None for one in gone) == min(
            count, len(visible)
        )
        left = [one for one in view if one.seq < rewound.first]
        assert (
            not left or left[-1].fact.outcome != "interrupted"
        )  # nothing that was heard is left without its answer
    if isinstance(again, ConversationRewound):
        gone = [one.fact for one in view if again.first <= one.seq <= again.last]
        assert again.again == tuple(seq for one in gone for seq in one.covers)
        assert all(one.fact.within is not None for one in view if one.seq > again.last)


def _command(number: int = 1) -> Command:
    return Command(
        id=EventId(str(number)),
        at=AT,
        sender=Sender(id=SenderId("root"), name="root", verified=True),
        name="rewind",
        args="",
        sent=NOW,
        origin="native",
    )


async def test_while_a_turn_is_under_way_nothing_changes(tmp_path: Path) -> None:
    model = Held()
    async with running(tmp_path, model) as gateway:
        model.go.clear()
        await gateway.console.receive_message("wait", sender="ann")
        await gateway.asked(1)
        for words in ("!new", "!rewind", "!retry", "!compact"):
            assert await gateway.ask(words) == TURN_RUNNING
        assert not await gateway.facts("rewound", "folded")
        model.go.set()
        await gateway.screen.until(5)


def _read(gateway: Gateway) -> list[str]:
    """What the newest request repeats of the conversation, and what is new."""
    said = gateway.scripted.requests[-1].conversation
    return [part.text for one in said for part in one.parts if isinstance(part, TextPart)]


RULES = (
    ScriptRule(match="one", reply="first"),
    ScriptRule(match="two", reply="second"),
    ScriptRule(match="", reply="other"),
)
TALK = Script(rules=RULES)


async def test_the_model_sees_what_is_left(tmp_path: Path) -> None:
    async with running(tmp_path, TALK) as gateway:
        for words in ("say one", "say two"):
            await gateway.ask(words)
        assert await gateway.ask("!rewind") == ("I took back the last exchange.")
        await gateway.ask("say three")
        seen_then = " ".join(_read(gateway))
        assert "say one" in seen_then
        assert "say two" not in seen_then
        assert (await gateway.ask("!new")).startswith(
            "I started over: I no longer see 2 earlier turns"
        )
        await gateway.ask("say four")
        assert "say one" not in " ".join(_read(gateway))
        assert "say three" not in " ".join(_read(gateway))
        assert (await gateway.ask("!rewind nine")).startswith("`n` must be a number")
    async with running(tmp_path, TALK) as again:  # the log says it all
        await again.ask("say five")
        read = " ".join(_read(again))
        assert "say four" in read
        assert "say three" not in read
    assert await rebuild(gateway.path) == []


async def test_what_was_answered_is_answered_anew(tmp_path: Path) -> None:
    async with running(tmp_path, TALK) as gateway:
        await gateway.ask("say one")
        await gateway.ask("say two")
        await gateway.say("!retry")
        await gateway.screen.until(4)
        assert [part.body for part in gateway.screen.parts[2:]] == [
            "I take back my last answer and answer 1 message again.",
            "second",
        ]
        assert sum("say two" in text for text in _read(gateway)) == 1
        first, second, third = await gateway.turns()
        assert second.covers == third.covers != first.covers
        (rewound,) = [
            fact for fact in await gateway.facts("rewound") if isinstance(fact, ConversationRewound)
        ]
        assert (rewound.again, rewound.by) == (second.covers, "console:ann")
        async with await Store.open_readonly(gateway.path) as reader:
            story_of = await explain_event(reader, second.covers[0]) or []
        assert any(line.endswith(", by console:ann, to be answered again") for line in story_of)
        await gateway.ask("say three")
        assert sum("say two" in text for text in _read(gateway)) == 1
    assert await rebuild(gateway.path) == []


async def test_a_command_that_comes_twice_changes_something_once(tmp_path: Path) -> None:
    async with running(
        tmp_path, TALK, access={"dm": "open", "roles": {"admin": ["console:root"]}}
    ) as gateway:
        for words in ("reverie: say one", "reverie: say two", "reverie: say three"):
            await gateway.ask(words, sender="ann", room="lobby")
        now = datetime.now(UTC)  # what was given more than a minute ago is not carried out
        once, other = replace(_command(1), sent=now), replace(_command(2), args="1", sent=now)
        assert gateway.console._emit is not None
        await gateway.console._emit([once, once, other])
        await gateway.console._emit([once])
        await gateway.screen.until(5)
        rewound = [
            fact for fact in await gateway.facts("rewound") if isinstance(fact, ConversationRewound)
        ]
        assert len(rewound) == 2  # each of the two once, the second one by what the first one left
        assert rewound[0].first > rewound[1].last
        await gateway.ask("reverie: say four", sender="ann", room="lobby")
        read = " ".join(_read(gateway))
        assert "say one" in read
        assert "say two" not in read
