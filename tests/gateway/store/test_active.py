"""What is kept in memory of active conversations is what the tables hold, for any log."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import Message, MessageDeleted, MessageEdited, ReactionChanged, Sender, SenderId
from gateway.core.facts import ConversationRewound, Fact, Judgement, Seq, TurnRecord, UnreadDismissed
from gateway.store import NewEntry, Store, StoreReader, active
from tests.kits import strategies
from tests.kits.examples import examples
from tests.kits.store import NOW, opened, place, run

ROOMS = [place("#a").conversation, place("#b").conversation]
_rooms = st.sampled_from(ROOMS)
_near = st.integers(1, 40).map(Seq)
_senders = st.sampled_from([Sender(id=SenderId(name), name=name) for name in ("ann", "bob", "cid")])
_judgements = st.builds(
    Judgement, urgency=st.sampled_from([0, 1, 1, 2, 3]), fate=st.sampled_from(["due", "due", "context", "refused"])
)
_events: st.SearchStrategy[Fact] = st.one_of(
    st.builds(
        Message,
        at=st.just(place()),
        sender=_senders,
        sent=st.just(NOW),
        kind=st.sampled_from(["direct", "mention", "room", "room"]),
        attachments=st.just(()),
    ),
    *[st.builds(ReactionChanged, at=st.just(place()), sender=_senders, sent=st.just(NOW))] * 2,
    st.builds(MessageEdited, at=st.just(place()), sender=_senders, sent=st.just(NOW)),
    st.builds(MessageDeleted, at=st.just(place()), sender=st.just(None), sent=st.just(NOW)),
    strategies.alarms,
    strategies.deliveries,
)
_looked = st.lists(st.tuples(_rooms, _near), max_size=2).map(tuple)
_ends: st.SearchStrategy[Fact] = st.one_of(
    st.builds(TurnRecord, upto=_near, looked=_looked, usage=strategies.usages, accounts=st.just(())),
    st.builds(UnreadDismissed, upto=_near),
    st.builds(ConversationRewound, first=_near, last=_near, again=st.lists(_near, max_size=2).map(tuple)),
)


@st.composite
def _arrivals(draw: st.DrawFn) -> list[NewEntry]:
    """Some events of a room with their judgements, as the intake appends them."""
    entries = list[NewEntry]()
    for _ in range(draw(st.integers(1, 5))):
        room = draw(_rooms)
        event = NewEntry(fact=draw(_events), at=NOW, conversation=room)
        entries += [event, NewEntry(fact=draw(_judgements), at=NOW, conversation=room, cause=event)]
    return entries


_anything = st.builds(
    NewEntry,
    fact=_ends | _judgements | strategies.facts,
    at=st.just(NOW),
    conversation=st.none() | _rooms,
    key=st.none() | st.sampled_from("abc"),
    cause=st.none() | _near,
)
_appends = st.one_of(
    _arrivals(),
    _arrivals(),
    st.builds(NewEntry, fact=_ends, at=st.just(NOW), conversation=_rooms).map(lambda entry: [entry]),
    st.lists(_anything, min_size=1, max_size=3),
)
_steps = st.lists(st.tuples(_appends, st.sets(_rooms)), max_size=12)
"""Appends, each while these rooms become active."""


async def compare(store: Store) -> None:
    """Compare what the store answers for each room with its tables."""
    for room in ROOMS:
        assert await store.unread_urgency(room) == await StoreReader.unread_urgency(store, room)
        for most, after in ((0, 0), (1, 0), (2, 3), (7, 0), (50, 0), (50, 9)):
            told = await store.unread_entries(room, most=most, after=after)
            assert told == await StoreReader.unread_entries(store, room, most=most, after=after)
        for before in (1, 9, 20, 10_000):
            senders = await store.newest_senders(room, before=before, most=4)
            assert senders == await StoreReader.newest_senders(store, room, before=before, most=4)


async def play(path: Path, steps: Sequence[tuple[Sequence[NewEntry], set[str]]]) -> None:
    async with await opened(path) as store:
        for entries, rooms in steps:
            await asyncio.gather(store.append(entries), *[store.activate(room) for room in ROOMS if room in rooms])
            await compare(store)
        for room in ROOMS:
            await store.activate(room)
        await compare(store)


@settings(max_examples=examples(100), deadline=None)
@given(_steps)
def test_memory_and_tables_agree(steps: list[tuple[list[NewEntry], set[str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(play(Path(folder) / "s.db", steps))


@settings(max_examples=examples(50), deadline=None)
@given(_steps)
def test_memory_and_tables_agree_also_at_its_limits(steps: list[tuple[list[NewEntry], set[str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {"MAX_CONVERSATIONS": 1, "MAX_UNREAD": 4, "MAX_SENDERS": 6, "READ_SENDERS": 3}.items():
            patch.setattr(active, name, value)
        run(play(Path(folder) / "s.db", steps))
