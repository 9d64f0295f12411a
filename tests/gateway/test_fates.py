"""Exactly one fate for every event, whether the whole log is counted or one story is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.events import Command, ConversationId, EventId, Link, Message, Notification
from gateway.fates import OPEN, Fate, Fates, fates
from gateway.records import Handled, Judged, Seq, TurnEnded, TurnId, inner, is_inner, key_of
from gateway.store import Entry, Store, Stored
from gateway.why import trail, why
from tests.examples import examples
from tests.store.kit import NOW, judged, opened, place, run, said, turn

A, B, ANA, BOB = place("#a").conversation, place("#b").conversation, inner("ana"), inner("bob")


@dataclass(frozen=True)
class Said:
    """An event and what was decided about it; `where`: where it is unread."""

    where: ConversationId
    fate: str
    command: bool = False


@dataclass(frozen=True)
class Turn:
    """Shows the newest `most` events there (everywhere, if it is an inner one), and deals with all but the newest."""

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


def entries(step: Step, number: int, seen: Sequence[Stored]) -> list[Entry]:
    """What the step appends to this log."""
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
            fact = Link(id=EventId(str(number)), channel=place().channel, up=True, reason="", sent=NOW)
        event = Entry(fact=fact, at=NOW, conversation=event.conversation, key=key_of(fact))
        verdict = judged(event, 2 if step.fate == "due" else 0, step.fate)  # type: ignore[arg-type]
        return [event, Entry(fact=verdict.fact, at=NOW, conversation=step.where, cause=event)]
    if isinstance(step, Decided):
        fact_ = Handled(turn=TurnId(f"t{number}"), upto=Seq(max(0, last - step.behind)))
        return [Entry(fact=fact_, at=NOW, conversation=step.where)]
    everywhere = is_inner(step.where)
    there = [
        one.cause for one in seen if isinstance(one.fact, Judged) and (everywhere or one.conversation == step.where)
    ]
    covers = tuple(seq for seq in there if seq is not None)[-step.most :] if step.most else ()
    made = turn(step.where, *covers)
    everyone = dict.fromkeys(one.conversation for one in seen if isinstance(one.fact, Judged) and one.conversation)
    looked = tuple((there, Seq(max(0, last - step.behind))) for there in everyone if everywhere and there != step.where)
    assert isinstance(made.fact, TurnEnded)
    fields = {name: getattr(made.fact, name) for name in made.fact.__slots__ if name != "kind"}
    fields |= {
        "upto": max(0, last - step.behind),
        "outcome": step.outcome,
        "turn": TurnId(f"t{number}"),
        "looked": looked,
        "within": TurnId("in") if step.within else None,
    }
    return [Entry(fact=TurnEnded(**fields), at=NOW, conversation=step.where)]


async def wrote(store: Store, steps: Sequence[Step]) -> list[Stored]:
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
    (steps(heard(fate="refused")), Fate.REFUSED),
    (steps(heard(fate="noted")), Fate.NOTED),
    (steps(Said(A, "noted", command=True)), Fate.COMMAND),
    (steps(Said(A, "refused", command=True)), Fate.REFUSED),
    (steps(heard()), Fate.WAITING),
    (steps(heard(fate="context")), Fate.OVERHEARD),
    (steps(heard(), took(where=B)), Fate.WAITING),
    (steps(heard(), Turn(A, "replied", within=False, most=9, behind=2)), Fate.WAITING),
    (steps(heard(), took()), Fate.ANSWERED),
    (steps(heard(fate="context"), took()), Fate.CONTEXT),
    (steps(heard(), took("silent")), Fate.SILENT),
    (steps(heard(), took("yielded")), Fate.YIELDED),
    (steps(heard(), took("failed")), Fate.FAILED),
    (steps(heard(), took(most=0)), Fate.COUNTED),
    (steps(heard(), took("interrupted")), Fate.INTERRUPTED),
    (steps(heard(fate="context"), took("interrupted")), Fate.CONTEXT),
    (steps(heard(), took("interrupted", most=0), took()), Fate.COUNTED),
    (steps(heard(), took("interrupted"), took("interrupted"), took("silent")), Fate.SILENT),
    (steps(heard(), took("interrupted"), Decided(A, 0)), Fate.INTERRUPTED),
    (steps(heard(), Decided(A, 0)), Fate.HANDLED),
    (steps(heard(), Decided(B, 0)), Fate.WAITING),
    (steps(heard(), took(where=ANA)), Fate.LOOKED_AT),
    (steps(heard(), took("failed", ANA), took()), Fate.CONTEXT),
    (steps(heard(), took(where=ANA), took("interrupted")), Fate.CONTEXT),
    (steps(heard(), took(where=ANA), Decided(A, 0)), Fate.HANDLED),
    (steps(heard(), took(within=True), took(where=ANA)), Fate.ANSWERED_ELSEWHERE),
    (steps(heard(), took(where=ANA), took(within=True)), Fate.CONTEXT),
    (steps(heard(ANA), took(where=ANA)), Fate.TAKEN_UP),
    (steps(heard(ANA), took(where=BOB)), Fate.LOOKED_AT),
    (steps(heard(ANA), took("interrupted", ANA), took("yielded", ANA)), Fate.YIELDED),
]


@pytest.mark.parametrize(("told", "fate"), TABLE)
def test_what_becomes_of_the_first_event(tmp_path: Path, told: list[Step], fate: Fate) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            log = await wrote(store, told)
            assert fates(log)[Seq(1)] is fate
            found = await trail(store, log[0])
            assert found is not None
            assert found.outcome is fate
            assert (await why(store, 1) or [])[-1] == f"fate: {fate}"

    run(story())


def test_every_fate_is_in_the_table() -> None:
    assert {fate for _, fate in TABLE} == set(Fate)


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


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_counting_and_telling_agree_with_each_other_and_with_what_is_unread(told: list[Step]) -> None:
    async def story(path: Path) -> None:
        async with await opened(path) as store:
            log = await wrote(store, told)
            counted = fates(log)
            events = [one.cause for one in log if isinstance(one.fact, Judged)]
            assert sorted(counted) == sorted(seq for seq in events if seq is not None)
            for entry in log:
                found = await trail(store, entry)
                assert (found.outcome if found else None) == counted.get(entry.seq)
            unread = set()
            for conversation in (A, B, ANA, BOB):
                unread |= {one.seq for one in (await store.unread_entries(conversation, most=99)).messages}
            waiting = OPEN - {Fate.INTERRUPTED}
            assert {seq for seq, fate in counted.items() if fate in waiting} == unread
            urgent = {place for place, _ in await store.due_conversations(1)}
            due = {
                one.conversation
                for one in log
                if isinstance(one.fact, Judged) and one.cause is not None and counted[one.cause] is Fate.WAITING
            }
            assert due == urgent

    with TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_a_fate_is_sealed_once_and_nothing_sealed_is_kept(told: list[Step]) -> None:
    async def story(path: Path) -> list[Stored]:
        async with await opened(path) as store:
            return await wrote(store, told)

    with TemporaryDirectory() as folder:
        log = run(story(Path(folder) / "s.db"))
    counting, sealed = Fates(), list[Seq]()
    for entry in log:
        sealed += [seq for seq, fate in counting.add(entry) if fate not in OPEN]
    still = [seq for seq, _ in counting.open_outcomes()]
    assert len({*sealed, *still}) == len(sealed) + len(still)
    assert counting._commands == set()
    assert {seq for there in counting._by_conversation.values() for seq in there} == set(counting._unread)
    assert all(counting._by_conversation.values())
