"""The judge of the kill test can find each fault: fabricated records, one fault each."""

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


def test_what_went_well_passes() -> None:
    verdict = judge(told())
    assert (verdict.accepted, verdict.answered, verdict.faults) == (3, 3, [])


def test_a_line_whose_part_is_uncertain_may_be_missing() -> None:
    evidence = told(second_part="uncertain", delivery="uncertain")
    verdict = judge(replace(evidence, wire=[evidence.wire[0], evidence.wire[2]]))
    assert (verdict.answered, verdict.uncertain, verdict.faults) == (2, 1, [])
    assert dict(verdict.reasons) == {REASON: 1}


def test_a_line_whose_part_is_uncertain_may_be_there() -> None:
    verdict = judge(told(second_part="uncertain", delivery="uncertain"))
    assert (verdict.answered, verdict.uncertain, verdict.faults) == (3, 0, [])


def test_uncertain_must_be_told_of_the_whole_post() -> None:
    evidence = told(second_part="uncertain", delivery="sent")
    assert judge(replace(evidence, wire=[evidence.wire[0], evidence.wire[2]])).lost


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_answer_is_lost(missing: int) -> None:
    evidence = told()
    assert judge(
        replace(evidence, wire=[s for i, s in enumerate(evidence.wire) if i != missing])
    ).lost


def test_a_line_that_no_turn_covers_is_lost() -> None:
    evidence = told()
    assert (
        judge(
            replace(evidence, entries=[e for e in evidence.entries if e.kind != "turn_ended"])
        ).lost
        == 3
    )


@pytest.mark.parametrize("state", ["failed", "waiting", "uncertain"])
def test_a_part_that_is_not_sent_and_gives_no_reason_is_lost(state: str) -> None:
    evidence = told(second_part=state, delivery="sent")
    assert judge(replace(evidence, wire=[evidence.wire[0], evidence.wire[2]])).lost


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_line_seen_twice_is_duplicated(again: int) -> None:
    evidence = told()
    assert judge(replace(evidence, wire=[*evidence.wire, evidence.wire[again]])).duplicated


def test_an_answer_in_other_words_is_duplicated() -> None:
    evidence = told()
    verdict = judge(replace(evidence, wire=[*evidence.wire, Shown("#one", "r7.1 t3z")]))
    assert verdict.duplicated == 1
    assert any(fault.startswith("not in the log") for fault in verdict.faults)


def test_a_line_that_two_turns_cover_is_duplicated() -> None:
    evidence = told()
    again = [e._replace(seq=Seq(99)) for e in evidence.entries if e.kind == "turn_ended"]
    assert judge(replace(evidence, entries=[*evidence.entries, *again])).duplicated == 3


def test_a_line_accepted_twice_is_duplicated() -> None:
    evidence = told()
    again = evidence.entries[0]._replace(seq=Seq(99))
    assert judge(replace(evidence, entries=[*evidence.entries, again])).duplicated == 2


def test_an_answer_that_the_log_does_not_know_is_a_fault() -> None:
    evidence = told()
    assert judge(replace(evidence, wire=[*evidence.wire, Shown("#one", "r9.1")])).faults


def test_an_answer_in_the_wrong_place_is_a_fault() -> None:
    evidence = told()
    assert judge(replace(evidence, wire=[*evidence.wire[:2], Shown("ann", "r2.1 t3z")])).faults


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_the_wrong_order_is_a_fault(order: tuple[int, ...]) -> None:
    evidence = told()
    faults = judge(replace(evidence, wire=[evidence.wire[i] for i in order])).faults
    assert faults
    assert all(fault.startswith("out of order") for fault in faults)


def test_asking_about_what_is_dealt_with_is_asking_twice() -> None:
    evidence = told()
    assert (
        judge(
            replace(evidence, asked=[*evidence.asked, Asked(at(20), frozenset({"t2z"}))])
        ).asked_twice
        == 1
    )


def test_asking_again_before_anything_was_durable_is_fine() -> None:
    evidence = told()
    assert judge(replace(evidence, asked=[evidence.asked[0], *evidence.asked])).asked_twice == 0


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
