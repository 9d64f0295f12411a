"""Exactly one outcome for every event, from the whole log and from the explanation of one event."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.events import Command, ConnectionChanged, ConversationId, EventId, Message, Notification
from gateway.core.facts import (
    Judgement,
    Seq,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.store import LogEntry, NewEntry, Store
from gateway.stream.trace import (
    OPEN_OUTCOMES,
    EventOutcome,
    OutcomeTracker,
    compute_outcomes,
    explain_event,
    load_trail,
)
from tests.kits.examples import examples
from tests.kits.store import NOW, judged, opened, place, run, said, turn

A, B, ANA, BOB = (
    place("#a").conversation,
    place("#b").conversation,
    inner_conversation("ana"),
    inner_conversation("bob"),
)


@dataclass(frozen=True)
class Said:
    """An event and its judgement; `where`: conversation in which it is unread."""

    where: ConversationId
    fate: str
    command: bool = False


@dataclass(frozen=True)
class Turn:
    """A turn that is shown the newest `most` events there, or everywhere, and handles all but the newest."""

    where: ConversationId
    outcome: str
    within: bool
    most: int
    behind: int


@dataclass(frozen=True)
class Decided:
    where: ConversationId
    behind: int


Step = Said | Turn | Decided


def entries(step: Step, number: int, seen: Sequence[LogEntry]) -> list[NewEntry]:
    """Return the entries that the step appends to this log."""
    last = seen[-1].seq if seen else 0
    if isinstance(step, Said):
        event = said(number, room="#a" if step.where == A else "#b")
        fact: Notification = event.fact  # type: ignore[assignment]
        if step.command:
            assert isinstance(fact, Message)
            fact = Command(
                id=EventId(fact.id), at=fact.at, sender=fact.sender, name="x", args="", sent=NOW, origin="text"
            )
        elif is_inner(step.where):
            fact = ConnectionChanged(id=EventId(str(number)), channel=place().channel, up=True, reason="", sent=NOW)
        event = NewEntry(fact=fact, at=NOW, conversation=event.conversation, key=dedup_key(fact))
        verdict = judged(event, 2 if step.fate == "due" else 0, step.fate)  # type: ignore[arg-type]
        return [event, NewEntry(fact=verdict.fact, at=NOW, conversation=step.where, cause=event)]
    if isinstance(step, Decided):
        fact_ = UnreadDismissed(turn=TurnId(f"t{number}"), upto=Seq(max(0, last - step.behind)))
        return [NewEntry(fact=fact_, at=NOW, conversation=step.where)]
    everywhere = is_inner(step.where)
    there = [
        one.cause for one in seen if isinstance(one.fact, Judgement) and (everywhere or one.conversation == step.where)
    ]
    covers = tuple(seq for seq in there if seq is not None)[-step.most :] if step.most else ()
    made = turn(step.where, *covers)
    everyone = dict.fromkeys(one.conversation for one in seen if isinstance(one.fact, Judgement) and one.conversation)
    looked = tuple((there, Seq(max(0, last - step.behind))) for there in everyone if everywhere and there != step.where)
    assert isinstance(made.fact, TurnRecord)
    fields = {name: getattr(made.fact, name) for name in made.fact.__slots__ if name != "kind"}
    fields |= {
        "upto": max(0, last - step.behind),
        "outcome": step.outcome,
        "turn": TurnId(f"t{number}"),
        "looked": looked,
        "within": TurnId("in") if step.within else None,
    }
    return [NewEntry(fact=TurnRecord(**fields), at=NOW, conversation=step.where)]


async def wrote(store: Store, steps: Sequence[Step]) -> list[LogEntry]:
    for number, step in enumerate(steps):
        await store.append(entries(step, number, await store.entries()))
    return await store.entries()


def steps(*found: Step) -> list[Step]:
    return list(found)


def heard(where: ConversationId = A, fate: str = "due") -> Said:
    return Said(where, fate)


def took(outcome: str = "replied", where: ConversationId = A, *, within: bool = False, most: int = 9) -> Turn:
    return Turn(where, outcome, within, most, 0)


TABLE = [
    (steps(heard(fate="refused")), EventOutcome.REFUSED),
    (steps(heard(fate="noted")), EventOutcome.NOTED),
    (steps(Said(A, "noted", command=True)), EventOutcome.COMMAND),
    (steps(Said(A, "refused", command=True)), EventOutcome.REFUSED),
    (steps(heard()), EventOutcome.WAITING),
    (steps(heard(fate="context")), EventOutcome.OVERHEARD),
    (steps(heard(), took(where=B)), EventOutcome.WAITING),
    (steps(heard(), Turn(A, "replied", within=False, most=9, behind=2)), EventOutcome.WAITING),
    (steps(heard(), took()), EventOutcome.ANSWERED),
    (steps(heard(fate="context"), took()), EventOutcome.CONTEXT),
    (steps(heard(), took("silent")), EventOutcome.SILENT),
    (steps(heard(), took("yielded")), EventOutcome.YIELDED),
    (steps(heard(), took("failed")), EventOutcome.FAILED),
    (steps(heard(), took(most=0)), EventOutcome.COUNTED),
    (steps(heard(), took("interrupted")), EventOutcome.INTERRUPTED),
    (steps(heard(fate="context"), took("interrupted")), EventOutcome.CONTEXT),
    (steps(heard(), took("interrupted", most=0), took()), EventOutcome.COUNTED),
    (steps(heard(), took("interrupted"), took("interrupted"), took("silent")), EventOutcome.SILENT),
    (steps(heard(), took("interrupted"), Decided(A, 0)), EventOutcome.INTERRUPTED),
    (steps(heard(), Decided(A, 0)), EventOutcome.HANDLED),
    (steps(heard(), Decided(B, 0)), EventOutcome.WAITING),
    (steps(heard(), took(where=ANA)), EventOutcome.LOOKED_AT),
    (steps(heard(), took("failed", ANA), took()), EventOutcome.CONTEXT),
    (steps(heard(), took(where=ANA), took("interrupted")), EventOutcome.CONTEXT),
    (steps(heard(), took(where=ANA), Decided(A, 0)), EventOutcome.HANDLED),
    (steps(heard(), took(within=True), took(where=ANA)), EventOutcome.ANSWERED_ELSEWHERE),
    (steps(heard(), took(where=ANA), took(within=True)), EventOutcome.CONTEXT),
    (steps(heard(ANA), took(where=ANA)), EventOutcome.TAKEN_UP),
    (steps(heard(ANA), took(where=BOB)), EventOutcome.LOOKED_AT),
    (steps(heard(ANA), took("interrupted", ANA), took("yielded", ANA)), EventOutcome.YIELDED),
]


@pytest.mark.parametrize(("told", "fate"), TABLE)
def test_what_becomes_of_the_first_event(tmp_path: Path, told: list[Step], fate: EventOutcome) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            log = await wrote(store, told)
            assert compute_outcomes(log)[Seq(1)] is fate
            found = await load_trail(store, log[0])
            assert found is not None
            assert found.outcome is fate
            assert (await explain_event(store, 1) or [])[-1] == f"fate: {fate}"

    run(story())


def test_every_fate_is_in_the_table() -> None:
    assert {fate for _, fate in TABLE} == set(EventOutcome)


places = st.sampled_from([A, A, B, ANA, BOB])
logs = st.lists(
    st.builds(Said, places, st.sampled_from(["due", "due", "context", "refused", "noted"]), st.booleans())
    | st.builds(
        Turn,
        places,
        st.sampled_from(["replied", "silent", "yielded", "failed", "interrupted", "interrupted"]),
        st.booleans(),
        st.integers(0, 4),
        st.integers(0, 5),
    )
    | st.builds(Decided, places, st.integers(0, 4)),
    max_size=14,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_counting_and_telling_agree_with_each_other_and_with_what_is_unread(told: list[Step]) -> None:
    async def story(path: Path) -> None:
        async with await opened(path) as store:
            log = await wrote(store, told)
            counted = compute_outcomes(log)
            events = [one.cause for one in log if isinstance(one.fact, Judgement)]
            assert sorted(counted) == sorted(seq for seq in events if seq is not None)
            for entry in log:
                found = await load_trail(store, entry)
                assert (found.outcome if found else None) == counted.get(entry.seq)
            unread = set()
            for conversation in (A, B, ANA, BOB):
                unread |= {one.seq for one in (await store.unread_entries(conversation, most=99)).messages}
            waiting = OPEN_OUTCOMES - {EventOutcome.INTERRUPTED}
            assert {seq for seq, fate in counted.items() if fate in waiting} == unread
            urgent = {place for place, _ in await store.due_conversations(1)}
            due = {
                one.conversation
                for one in log
                if isinstance(one.fact, Judgement)
                and one.cause is not None
                and counted[one.cause] is EventOutcome.WAITING
            }
            assert due == urgent

    with TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_a_fate_is_sealed_once_and_nothing_sealed_is_kept(told: list[Step]) -> None:
    async def story(path: Path) -> list[LogEntry]:
        async with await opened(path) as store:
            return await wrote(store, told)

    with TemporaryDirectory() as folder:
        log = run(story(Path(folder) / "s.db"))
    counting, sealed = OutcomeTracker(), list[Seq]()
    for entry in log:
        sealed += [seq for seq, fate in counting.add(entry) if fate not in OPEN_OUTCOMES]
    still = [seq for seq, _ in counting.open_outcomes()]
    assert len({*sealed, *still}) == len(sealed) + len(still)
    assert counting._commands == set()
    assert {seq for there in counting._by_conversation.values() for seq in there} == set(counting._unread)
    assert all(counting._by_conversation.values())
