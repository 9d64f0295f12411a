"""The judge of the kill test can find each fault: fabricated records, one fault each."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.core.events import (
    Address,
    ChannelName,
    DeliveryReport,
    EventId,
    Message,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
    Usage,
)
from gateway.core.facts import (
    Fact,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    TurnId,
    TurnRecord,
)
from gateway.store import LogEntry
from tests.kits.delivery_judge import Asked, Evidence, Shown, judge

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOM = Address(channel=ChannelName("irc.test"), room=RoomId("#one"))
REASON = "the process ended"


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def told(*, second_part: str = "sent", delivery: str = "sent") -> Evidence:
    """Two lines answered in a reply of two lines, then a third one in the next turn."""
    reason = REASON if second_part == "uncertain" else ""
    facts: list[Fact] = [_line("t1z"), _line("t2z")]
    facts += _turn("A", covers=(1, 2), text="r1.1 t1z\nr1.2 t2z")
    facts += [
        PartSendStarted(post=PostKey("A"), part=0, bodies=("r1.1 t1z", "r1.2 t2z")),
        PartSendStarted(post=PostKey("A"), part=1, bodies=None),
        PartSendEnded(post=PostKey("A"), part=0, state="sent", reason=""),
        PartSendEnded(post=PostKey("A"), part=1, state=second_part, reason=reason),  # type: ignore[arg-type]
        _delivered("A", delivery),
        _line("t3z"),
    ]
    facts += _turn("B", covers=(10,), text="r2.1 t3z")
    facts += [
        PartSendStarted(post=PostKey("B"), part=0, bodies=("r2.1 t3z",)),
        PartSendEnded(post=PostKey("B"), part=0, state="sent", reason=""),
        _delivered("B", "sent"),
    ]
    return Evidence(
        entries=[
            LogEntry(
                seq=Seq(seq),
                at=at(seq),
                kind=fact.kind,
                conversation=ROOM.conversation,
                key=None,
                cause=None,
                fact=fact,
            )
            for seq, fact in enumerate(facts, 1)
        ],
        wire=[Shown("#one", "r1.1 t1z"), Shown("#one", "r1.2 t2z"), Shown("#one", "r2.1 t3z")],
        asked=[Asked(at(2), frozenset({"t1z", "t2z"})), Asked(at(9), frozenset({"t3z"}))],
    )


@pytest.fixture
def evidence() -> Evidence:
    return told()


def test_what_went_well_passes(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert (verdict.accepted, verdict.answered, verdict.faults) == (3, 3, [])


def test_a_line_whose_part_is_uncertain_may_be_missing() -> None:
    evidence = told(second_part="uncertain", delivery="uncertain")
    verdict = judge(replace(evidence, wire=[evidence.wire[0], evidence.wire[2]]))
    assert (verdict.answered, verdict.uncertain, verdict.faults) == (2, 1, [])
    assert dict(verdict.reasons) == {REASON: 1}


def test_a_line_whose_part_is_uncertain_may_be_there() -> None:
    verdict = judge(told(second_part="uncertain", delivery="uncertain"))
    assert (verdict.answered, verdict.uncertain, verdict.faults) == (3, 0, [])


Change = Callable[[Evidence], Evidence]
CHANGES: dict[str, tuple[Change, str, int]] = {
    "the first answer is missing": (lambda e: replace(e, wire=e.wire[1:]), "lost", 2),
    "the second answer is missing": (
        lambda e: replace(e, wire=[e.wire[0], e.wire[2]]),
        "lost",
        2,
    ),
    "the last answer is missing": (lambda e: replace(e, wire=e.wire[:2]), "lost", 2),
    "no turn covers a line": (
        lambda e: replace(e, entries=[one for one in e.entries if one.kind != "turn_ended"]),
        "lost",
        3,
    ),
    "the first line is seen twice": (
        lambda e: replace(e, wire=[*e.wire, e.wire[0]]),
        "duplicated",
        2,
    ),
    "the last line is seen twice": (
        lambda e: replace(e, wire=[*e.wire, e.wire[2]]),
        "duplicated",
        2,
    ),
    "two turns cover a line": (
        lambda e: replace(
            e,
            entries=[
                *e.entries,
                *(one._replace(seq=Seq(99)) for one in e.entries if one.kind == "turn_ended"),
            ],
        ),
        "duplicated",
        3,
    ),
    "a line is accepted twice": (
        lambda e: replace(e, entries=[*e.entries, e.entries[0]._replace(seq=Seq(99))]),
        "duplicated",
        2,
    ),
    "the log does not know an answer": (
        lambda e: replace(e, wire=[*e.wire, Shown("#one", "r9.1")]),
        "faults",
        1,
    ),
    "an answer is in the wrong place": (
        lambda e: replace(e, wire=[*e.wire[:2], Shown("ann", "r2.1 t3z")]),
        "faults",
        2,
    ),
    "what is dealt with is asked about": (
        lambda e: replace(e, asked=[*e.asked, Asked(at(20), frozenset({"t2z"}))]),
        "asked_twice",
        1,
    ),
    "it is asked again before anything was durable": (
        lambda e: replace(e, asked=[e.asked[0], *e.asked]),
        "asked_twice",
        0,
    ),
}


@pytest.mark.parametrize(("change", "fault", "count"), CHANGES.values(), ids=CHANGES)
def test_each_fault_is_found(change: Change, fault: str, count: int, evidence: Evidence) -> None:
    found = getattr(judge(change(evidence)), fault)
    assert (len(found) if isinstance(found, list) else found) == count


@pytest.mark.parametrize("state", ["failed", "waiting", "uncertain"])
def test_a_part_that_is_not_sent_and_gives_no_reason_is_lost(state: str) -> None:
    evidence = told(second_part=state, delivery="sent")
    assert judge(replace(evidence, wire=[evidence.wire[0], evidence.wire[2]])).lost


def test_an_answer_in_other_words_is_duplicated(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, wire=[*evidence.wire, Shown("#one", "r7.1 t3z")]))
    assert verdict.duplicated == 1
    assert any(fault.startswith("not in the log") for fault in verdict.faults)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_the_wrong_order_is_a_fault(order: tuple[int, ...], evidence: Evidence) -> None:
    faults = judge(replace(evidence, wire=[evidence.wire[i] for i in order])).faults
    assert faults
    assert all(fault.startswith("out of order") for fault in faults)


def _line(token: str) -> Message:
    sender = Sender(id=SenderId("mask:ann"), name="ann")
    return Message(
        id=MessageId(token),
        at=ROOM,
        sender=sender,
        text=f"reverie: {token}?",
        sent=START,
        kind="mention",
    )


def _turn(turn: str, *, covers: tuple[int, ...], text: str) -> list[Fact]:
    ended = TurnRecord(
        turn=TurnId(turn),
        covers=tuple(Seq(seq) for seq in covers),
        omitted=0,
        heard="",
        upto=Seq(covers[-1]),
        outcome="replied",
        text=text,
        reason="",
        model="fake",
        usage=Usage(),
        requests=1,
        autonomous=False,
    )
    return [ended, PostQueued(post=Post(key=PostKey(turn), to=ROOM, text=text))]


def _delivered(turn: str, state: str) -> DeliveryReport:
    reason = "part 2 of 2: " + REASON if state == "uncertain" else ""
    return DeliveryReport(
        id=EventId(turn),
        at=ROOM,
        post=PostKey(turn),
        state=state,  # type: ignore[arg-type]
        reason=reason,
        sent=START,
    )
