"""What is kept in memory of active conversations is what the tables hold, for any log."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import (
    ConversationId,
    Message,
    MessageDeleted,
    MessageEdited,
    ReactionChanged,
    Sender,
    SenderId,
)
from gateway.core.facts import URGENT, ConversationRewound, Fact, Judgement, Seq, TurnId, TurnRecord, UnreadDismissed
from gateway.store import LogEntry, NewEntry, Store, StoreReader, UnreadEntries, active
from gateway.store.active import read_conversation
from gateway.store.reader import run_in_thread
from tests.kits import strategies
from tests.kits.channels import story
from tests.kits.examples import examples
from tests.kits.store import NOW, heard, opened, place, run, turn

ROOMS = [place("#a").conversation, place("#b").conversation]
_rooms = st.sampled_from(ROOMS)
_near = st.integers(1, 40).map(Seq)
_senders = st.sampled_from([Sender(id=SenderId(name), name=name) for name in ("ann", "bob", "cid")])
_judgements = st.builds(
    Judgement, urgency=st.sampled_from([0, 1, 1, 1, 2, 3]), fate=st.sampled_from(["due", "due", "context", "refused"])
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
    *[st.builds(ReactionChanged, at=st.just(place()), sender=_senders, sent=st.just(NOW))] * 5,
    st.builds(MessageEdited, at=st.just(place()), sender=_senders, sent=st.just(NOW)),
    st.builds(MessageDeleted, at=st.just(place()), sender=st.just(None), sent=st.just(NOW)),
    strategies.alarms,
    strategies.deliveries,
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
    fact=_judgements
    | st.builds(ConversationRewound, first=_near, last=_near, again=st.lists(_near, max_size=2).map(tuple))
    | strategies.facts,
    at=st.just(NOW),
    conversation=st.none() | _rooms,
    key=st.none() | st.sampled_from("abc"),
    cause=st.none() | _near,
)


class End(NamedTuple):
    """End of a turn, a dismissal, or a rewind that makes one message unread again."""

    room: ConversationId
    kind: Literal["turn", "dismissed", "rewound"]
    back: int
    """Number of the newest entries of the log that stay unread."""
    looked: tuple[tuple[ConversationId, int], ...]
    """Places that the turn looked at, each with such a number."""

    def entries(self, last: int) -> list[NewEntry]:
        """`last`: the log's last position."""
        upto = Seq(max(0, last - self.back))
        fact: Fact = UnreadDismissed(turn=TurnId(""), upto=upto)
        if self.kind == "rewound":
            fact = ConversationRewound(first=upto, last=upto, by="", again=(upto,))
        elif self.kind == "turn":
            ended = turn(self.room).fact
            assert isinstance(ended, TurnRecord)
            looked = tuple((place, Seq(max(0, last - back))) for place, back in self.looked)
            fact = replace(ended, upto=upto, looked=looked)
        return [NewEntry(fact=fact, at=NOW, conversation=self.room)]


_back = st.integers(0, 12)
_ends = st.builds(
    End,
    room=_rooms,
    kind=st.sampled_from(["turn", "turn", "dismissed", "rewound"]),
    back=_back,
    looked=st.lists(st.tuples(_rooms, _back), max_size=2).map(tuple),
)
_appends = st.one_of(_arrivals(), _arrivals(), _arrivals(), _ends, st.lists(_anything, min_size=1, max_size=2))
_steps = st.lists(st.tuples(_appends, st.sets(_rooms)), max_size=15)
"""Appends, each while these rooms become active."""
Steps = Sequence[tuple[Sequence[NewEntry] | End, set[ConversationId]]]


async def compare(store: Store) -> None:
    """Compare what the store answers for each room with its tables."""
    for room in ROOMS:
        assert await store.unread_urgency(room) == await StoreReader.unread_urgency(store, room)
        assert (await store.view_entries(room))[:2] == (await StoreReader.view_entries(store, room))[:2]
        assert await store.pinned_card(room) == await StoreReader.pinned_card(store, room)
        for most, after in ((0, 0), (1, 0), (2, 3), (7, 0), (50, 0), (50, 9)):
            told = await store.unread_entries(room, most=most, after=after)
            assert told == await StoreReader.unread_entries(store, room, most=most, after=after)
        for before in (1, 9, 20, 10_000):
            senders = await store.newest_senders(room, before=before, most=4)
            assert senders == await StoreReader.newest_senders(store, room, before=before, most=4)


async def play(path: Path, steps: Steps) -> None:
    async with await opened(path) as store:
        for appended, rooms in steps:
            newest = await store.newest_entries(1)
            entries = appended.entries(newest[0].seq if newest else 0) if isinstance(appended, End) else appended
            await asyncio.gather(store.append(entries), *[store.activate(room) for room in ROOMS if room in rooms])
            await compare(store)


@settings(max_examples=examples(150))
@given(_steps)
def test_memory_and_tables_agree(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(play(Path(folder) / "s.db", steps))


@settings(max_examples=examples(100))
@given(_steps)
def test_memory_and_tables_agree_also_at_the_limits(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {"MAX_CONVERSATIONS": 1, "MAX_UNREAD": 4, "MAX_SENDERS": 6, "READ_SENDERS": 3}.items():
            patch.setattr(active, name, value)
        run(play(Path(folder) / "s.db", steps))


@story
async def test_an_active_conversation_costs_no_read(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await store.append(heard(1))
        await store.activate(ROOMS[0])
        await store._reading.close()
        await store.append([*heard(2, urgency=2), *heard(1, room="#b")])
        await store.activate(ROOMS[0])
        unread = await store.unread_entries(ROOMS[0], most=9)
        assert ([one.seq for one in unread.messages], unread.upto) == ([1, 3], 3)
        assert await store.unread_urgency(ROOMS[0]) == URGENT
        assert len(await store.newest_senders(ROOMS[0], before=3, most=9)) == 1
        await store.append([turn(ROOMS[0], 1, 3)])
        assert await store.unread_entries(ROOMS[0], most=9) == UnreadEntries(messages=(), omitted=0, upto=Seq(0))
        with pytest.raises(ValueError, match="losed"):
            await store.unread_entries(ROOMS[1], most=9)


@story
async def test_what_a_read_has_seen_is_not_applied_again_and_what_came_during_it_is(tmp_path: Path) -> None:
    """An append is durable before its subscribers are called, so a read may be ahead of them."""
    told = list[Sequence[LogEntry]]()
    async with await opened(tmp_path / "s.db") as store:
        store.subscribe(told.append)
        for number in range(1, 4):
            await store.append(heard(number))
        found = await run_in_thread(store._reading, read_conversation, ROOMS[0])
        await store.append(heard(4))
        conversations = active.ActiveConversations(Seq(0))
        appends = conversations.begin_read(ROOMS[0])
        assert appends is not None
        assert conversations.begin_read(ROOMS[0]) is None
        for entries in told[1:2]:
            conversations.on_appended(entries)  # a gap: what was being read is dropped
        conversations.end_read(ROOMS[0], appends, found)
        assert conversations.get(ROOMS[0]) is None
        appends = conversations.begin_read(ROOMS[0])
        assert appends is not None
        conversations.on_appended(told[2])
        conversations.on_appended(told[3])
        conversations.end_read(ROOMS[0], appends, found)
        kept = conversations.get(ROOMS[0])
        assert kept is not None
        assert kept.unread_entries(most=9, after=0) == await StoreReader.unread_entries(store, ROOMS[0], most=9)
        assert len(kept.newest_senders(before=100, most=9) or ()) == 4
        conversations.on_appended(told[1])
        assert conversations.get(ROOMS[0]) is None
