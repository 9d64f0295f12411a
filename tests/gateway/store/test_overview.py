"""Queries of the dashboard: equal to the whole log, and bounded."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.core.events import ToolCallRecord, TurnStep
from gateway.core.facts import DmnStateSaved, PostQueued, TurnRecord
from gateway.store import NewEntry
from gateway.store.overview import OverviewReader
from gateway.stream.trace import EventOutcome, compute_outcomes, find_outcome
from tests.gateway.stream.test_outcomes import TABLE, logs, wrote
from tests.gateway.stream.test_outcomes import Step as Happened
from tests.kits.examples import examples
from tests.kits.store import NOW, account, delivered, heard, judged, opened, place, post, run, said, spent, turn

A = place("#a").conversation


@pytest.mark.parametrize(("told", "became"), TABLE)
def test_the_fate_of_the_first_event(tmp_path: Path, told: list[Happened], became: EventOutcome) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            await wrote(store, told)
            (first, *_) = await looking.notifications(9, oldest=True)
            assert (first.seq, find_outcome(first)) == (1, became)

    run(story())


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_every_fate_is_as_the_whole_log_tells_it(told: list[Happened]) -> None:
    async def story(path: Path) -> None:
        async with await opened(path) as store, await OverviewReader.open(store.path) as looking:
            whole = compute_outcomes(await wrote(store, told))
            found = await looking.notifications(99)
            assert {event.seq: find_outcome(event) for event in found} == whole
            assert [event.seq for event in found] == sorted(whole, reverse=True)
            again = await looking.notifications_at([event.seq for event in found])
            assert again == list(reversed(found))

    with TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


def test_pages_are_bounded_on_both_sides(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            for number in range(6):
                await store.append(heard(number, room="#a" if number % 2 else "#b"))
            seqs = [1, 3, 5, 7, 9, 11]
            assert [one.seq for one in await looking.notifications(3)] == [11, 9, 7]
            assert [one.seq for one in await looking.notifications(3, before=7)] == [5, 3, 1]
            assert [one.seq for one in await looking.notifications(3, after=5, oldest=True)] == [7, 9, 11]
            assert [one.seq for one in await looking.notifications(9, after=3, before=9)] == [7, 5]
            assert [one.seq for one in await looking.notifications(9, conversation=A)] == [11, 7, 3]
            assert [one.seq for one in await looking.notifications(9, after=3, conversation=A, oldest=True)] == [7, 11]
            assert [one.seq for one in await looking.notifications_at([11, 2, 5, 99, 5])] == [5, 11]
            assert await looking.count_missed(0, 10**9) == len(seqs)
            assert await looking.count_missed(8, 10**9) == 2
            assert await looking.count_missed(8, 8) == 0  # what is written meanwhile is not missed

    run(story())


def test_places_tell_what_was_said_last(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            assert await looking.recent_conversations(9) == []
            await store.append([*heard(1, "first"), *heard(2, "there", room="#b"), *heard(3, "second")])
            one, other = await looking.recent_conversations(9)
            assert (one.conversation, one.last and one.last.seq, one.unread) == (A, 5, 2)
            assert (other.conversation, other.unread) == (place("#b").conversation, 1)
            answer = NewEntry(fact=PostQueued(post=post("p")), at=NOW, conversation=A, key="post:p")
            await store.append([turn(A, 1, 5), answer])
            (one,) = await looking.recent_conversations(1)
            assert one.last is not None
            assert (one.last.fact.kind, one.last.delivered, one.unread) == ("post", "", 0)
            await store.append([delivered("p", "uncertain")])
            said_there = await looking.spoken_entries(A, 9)
            assert [(spoken.seq, spoken.fact.kind, spoken.delivered) for spoken in said_there] == [
                (1, "room", ""),
                (5, "room", ""),
                (8, "post", "uncertain"),
            ]
            assert [spoken.seq for spoken in await looking.spoken_entries(A, 1)] == [8]

    run(story())


def test_turns_come_without_what_was_said_in_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            plain = spent(A, account(read=10, written=5, plain=3, cost=0.25), account(plain=1), senders=["u"])
            assert isinstance(plain.fact, TurnRecord)
            calls = tuple(
                ToolCallRecord(id=str(number), name=name, arguments="{}", result="x")
                for number, name in enumerate("ab")
            )
            worked = replace(plain.fact, steps=(TurnStep(text="", calls=calls), TurnStep(text="", calls=calls[:1])))
            await store.append([replace(plain, fact=worked), turn(place("#b").conversation)])
            other, one = await looking.recent_turns(9)
            assert (one.tools, one.requests, one.cost_usd, one.agent) == (("a", "b", "a"), 2, 0.25, "reverie")
            assert (one.read_tokens, one.input_tokens, one.output_tokens) == (10, 4, 14)
            assert (other.cost_usd, other.autonomous, other.cause) == (0.0, False, "addressed")
            assert [one.seq for one in await looking.recent_turns(9, conversation=A)] == [1]
            assert [one.seq for one in await looking.recent_turns(9, before=2)] == [1]
            assert [one.seq for one in await looking.recent_turns(9, after=1)] == [2]

    run(story())


@pytest.mark.parametrize("by", ["channel", "conversation", "agent", "model"])
def test_hours_add_up_to_days(tmp_path: Path, by: str) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            for hour in range(40):
                at = NOW + timedelta(hours=hour)
                where = place("#a" if hour % 3 else "#b").conversation
                one = spent(where, account(read=hour, plain=1, cost=0.5), at=at)
                assert isinstance(one.fact, TurnRecord)
                await store.append([replace(one, fact=replace(one.fact, model="m"))])
            since = NOW.replace(hour=0, minute=0, second=0)
            hours = await looking.spending_over_time(by, since, daily=False)  # type: ignore[arg-type] # one of them
            days = await looking.spending_over_time(by, since, daily=True)  # type: ignore[arg-type] # one of them
            for key in {one.key for one in days}:
                sums = [
                    (
                        sum(one.requests for one in table if one.key == key),
                        sum(one.usage.cache_read_tokens for one in table if one.key == key),
                        sum(one.cost_usd for one in table if one.key == key),
                    )
                    for table in (hours, days)
                ]
                assert sums[0] == pytest.approx(sums[1])
            assert {one.at.minute for one in hours} == {0}
            assert len({one.at for one in hours}) == 40
            late = await looking.spending_over_time(by, NOW + timedelta(hours=38), daily=False)  # type: ignore[arg-type] # the same
            assert sum(one.requests for one in late) == 2

    run(story())


def test_modes_and_positions_by_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store, await OverviewReader.open(store.path) as looking:
            assert await looking.first_entry_since(NOW) == 1  # nothing is there
            for number, mode in enumerate(("resting", "engaged", "foraging")):
                at = NOW + timedelta(minutes=number)
                saved = NewEntry(fact=DmnStateSaved(state=f'{{"mode": "{mode}"}}', agent="reverie"), at=at)
                await store.append([replace(said(number), at=at), saved])
            assert [
                await looking.first_entry_since(NOW + timedelta(seconds=wait)) for wait in (-9, 0, 1, 60, 119, 121)
            ] == [
                1,
                1,
                3,
                3,
                5,
                7,
            ]
            assert [mode for _, _, mode in await looking.dmn_modes(NOW + timedelta(seconds=30))] == [
                "engaged",
                "foraging",
            ]

    run(story())


def test_what_is_read_takes_few_steps_however_long_the_log_is(tmp_path: Path) -> None:
    """A page of a log of thousands costs about as much as one of a short log."""

    async def took(path: Path, count: int) -> int:
        async with await opened(path) as store, await OverviewReader.open(path) as looking:
            for start in range(0, count, 100):
                batch = [entry for number in range(start, start + 100) for entry in heard(number)]
                await store.append([*batch, *[judged(said(-number - 1)) for number in range(0)]])
                await store.append([turn(A, upto=2 * (start + 100))])
            steps = 0

            def step() -> int:
                nonlocal steps
                steps += 1
                return 0

            await looking._reading.set_progress_handler(step, 100)
            await looking.notifications(20, conversation=A)
            await looking.notifications(20)
            await looking.spoken_entries(A, 20)
            await looking.recent_conversations(20)
            await looking.recent_turns(20)
            await looking.first_entry_since(NOW)
            return steps

    short, long = run(took(tmp_path / "short.db", 200)), run(took(tmp_path / "long.db", 4_000))
    assert long < 2 * short + 20
