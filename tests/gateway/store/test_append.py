"""Appends: durable, complete, once, several in one commit, and told to subscribers."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.texts import format_code
from gateway.core.events import (
    NOTIFICATION,
    Address,
    ChannelName,
    Command,
    ConversationId,
    EventId,
    Notification,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    NOTIFICATION_CLASSES,
    CursorMoved,
    DmnDirective,
    DmnStateSaved,
    Fact,
    NoteForgotten,
    PluginFact,
    PostQueued,
    RoleAssigned,
    Seq,
    dedup_key,
    dump_fact,
    fact_adapter,
)
from gateway.core.redaction import Redactor
from gateway.store import (
    AppendFailed,
    AppendResult,
    LogEntry,
    NewEntry,
    Store,
    StoreClosed,
    StoreError,
    StoreInUse,
)
from gateway.store.format import format_entry
from gateway.store.store import MAX_BATCH_ENTRIES
from gateway.store.types import LogError
from tests.kits import strategies
from tests.kits.store import ENGINE, NOW, heard, in_writer, judged, look_into, opened, place, said

# Appends: durable, complete, once, and several in one commit


CHANGES = (
    "UPDATE log SET body = '{}'",
    "DELETE FROM log",
    "REPLACE INTO log SELECT * FROM log",
    "TRUNCATE log",
)


@pytest.mark.parametrize("sql", CHANGES)
async def test_the_log_refuses_to_change(tmp_path: Path, sql: str) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await store.append(heard(1))
    is_known = not sql.startswith("TRUNCATE" if ENGINE.server is None else "REPLACE")
    refusal = "append-only" if is_known else "syntax error"
    with (
        closing(look_into(tmp_path / "s.db")) as connection,
        pytest.raises(LogError, match=refusal),
    ):
        connection.write(sql)


async def test_answers_stand_in_the_order_of_the_entries(store: Store) -> None:
    assert await store.append(heard(1)) == (
        AppendResult(Seq(1), is_new=True),
        AppendResult(Seq(2), is_new=True),
    )
    (message, judgement) = await store.entries()
    assert (message.seq, message.fact, message.key) == (1, said(1).fact, "message:irc.test/#a:1")
    assert (judgement.cause, judgement.kind, judgement.conversation) == (1, "judged", "irc.test/#a")
    assert message.at == NOW
    assert await store.append([]) == ()


async def test_a_duplicate_is_written_once_and_takes_its_dependents_with_it(tmp_path: Path) -> None:
    message = said(1)
    first = judged(message)
    chain = [message, first, dataclasses.replace(judged(message), cause=first)]
    async with await opened(tmp_path / "s.db") as store:
        await store.append(heard(7))
        await store.append(chain)
        original = AppendResult(Seq(3), is_new=False)
        assert await store.append(chain) == (original, original, original)
        assert [entry.seq for entry in await store.entries()] == [1, 2, 3, 4, 5]


async def test_duplicates_inside_one_append_and_one_batch(store: Store) -> None:
    twice = await store.append([said(1), said(1)])
    assert twice == (AppendResult(Seq(1), is_new=True), AppendResult(Seq(1), is_new=False))
    answers = await asyncio.gather(*(store.append(heard(2)) for _ in range(50)))
    assert sum(answer[0].is_new for answer in answers) == 1
    assert {answer[0].seq for answer in answers} == {2}
    assert len(await store.entries()) == 3


async def test_duplicates_across_restarts(tmp_path: Path) -> None:
    async def once() -> tuple[AppendResult, ...]:
        async with await opened(tmp_path / "s.db") as store:
            return await store.append(heard(1))

    assert [one.is_new for one in await once()] == [True, True]
    assert await once() == (AppendResult(Seq(1), is_new=False), AppendResult(Seq(1), is_new=False))


async def test_callers_share_commits(store: Store) -> None:
    answers = await asyncio.gather(*(store.append(heard(number)) for number in range(500)))
    assert [answer[0].seq for answer in answers] == list(range(1, 1001, 2)), (
        "in the order of the calls"
    )
    assert store.commits <= 3


async def test_a_batch_is_bounded_but_one_append_is_one_transaction(store: Store) -> None:
    await store.append([said(number) for number in range(MAX_BATCH_ENTRIES + 1000)])
    assert store.commits == 1
    await asyncio.gather(
        *(store.append([said(100_000 + number)]) for number in range(2 * MAX_BATCH_ENTRIES))
    )
    assert store.commits >= 3
    assert len(await store.entries(limit=100_000)) == 3 * MAX_BATCH_ENTRIES + 1000


def poison() -> NewEntry:
    """Return an entry that only the database refuses: its number does not fit into 64 bits."""
    return NewEntry(fact=NoteForgotten(agent="a", note=Seq(2**70), by="a"), at=NOW)


async def test_a_poisoned_caller_hurts_nobody_else(store: Store) -> None:
    calls = [store.append(heard(number)) for number in range(20)]
    calls.insert(10, store.append([said(99), poison()]))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(one) for one in failed] == [AppendFailed]
    assert isinstance(answers[10], AppendFailed)
    entries = await store.entries()
    assert len(entries) == 40
    assert store.commits < 12, "the innocent still share commits"
    assert not [entry for entry in entries if entry.key == "message:irc.test/#a:99"], "wholly out"
    assert (await store.append([said(99)]))[0].is_new


async def test_a_poisoned_caller_that_has_gone_meanwhile_stops_nobody(store: Store) -> None:
    for turns in range(4):  # of the event loop, until it goes
        gone = asyncio.ensure_future(store.append([said(99), poison()]))
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (await store.append([said(turns)]))[0].is_new


@pytest.mark.sqlite
async def test_a_full_disk_is_told_and_survived(store: Store) -> None:
    await store.append(heard(1))
    ((pages,),) = await in_writer(store, "PRAGMA page_count")
    await in_writer(store, f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(AppendFailed, match="full"):
        await store.append([said(2, "x" * 100_000), said(3)])
    assert len(await store.entries()) == 2
    await in_writer(store, "PRAGMA max_page_count = 1000000")
    assert (await store.append([said(2, "x" * 100_000)]))[0] == AppendResult(Seq(3), is_new=True)


@pytest.mark.parametrize(
    "entries",
    [
        [NewEntry(fact=DmnStateSaved(state="x", agent="a"), at=datetime(2026, 1, 1))],  # noqa: DTZ001 - the mistake itself
        [NewEntry(fact=DmnStateSaved(state="\ud800", agent="a"), at=NOW)],
        [NewEntry(fact=DmnStateSaved(state="x", agent="a"), at=NOW, key="\ud800")],
        [NewEntry(fact=DmnStateSaved(state="x", agent="a"), at=NOW, cause=said(1))],
        list(reversed(heard(1))),
    ],
)
async def test_what_can_never_be_stored_is_refused_at_once(
    entries: list[NewEntry], store: Store
) -> None:
    with pytest.raises(ValueError, match=r"zone|surrogate|before"):
        await store.append(entries)
    assert await store.entries() == []


async def test_a_cause_beyond_the_end_of_the_log_is_refused(store: Store) -> None:
    (first,) = await store.append([said(1)])
    dangling = NewEntry(fact=DmnStateSaved(state="x", agent="a"), at=NOW, cause=Seq(first.seq + 9))
    answers = await asyncio.gather(
        store.append([said(2), dangling]), store.append([said(3)]), return_exceptions=True
    )
    assert isinstance(answers[0], ValueError)
    assert [entry.key for entry in await store.entries()] == [
        "message:irc.test/#a:1",
        "message:irc.test/#a:3",
    ]


async def test_cancelled_appends_are_wholly_in_or_wholly_out(tmp_path: Path) -> None:
    async def attempt(store: Store, number: int, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await store.append(heard(number))
        except TimeoutError:
            return

    async with await opened(tmp_path / "s.db") as store:
        await asyncio.gather(
            *(attempt(store, number, number % 40 * 0.0005) for number in range(400))
        )
        await store.append(heard(1000))
        entries = await store.entries()
        messages = [entry.seq for entry in entries if entry.kind == "room"]
        assert [entry.cause for entry in entries if entry.kind == "judged"] == messages
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))


async def test_closing_writes_what_is_queued_and_then_refuses(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s.db")
    waiting = [asyncio.create_task(store.append(heard(number))) for number in range(10)]
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert all(answer[0].is_new for answer in await asyncio.gather(*waiting))
    with pytest.raises(StoreClosed):
        await store.append(heard(11))
    async with await opened(tmp_path / "s.db") as again:
        assert len(await again.entries()) == 20


async def test_a_reader_sees_what_was_acknowledged_and_nothing_else(store: Store) -> None:
    async with await Store.open_readonly(store.location) as reader:
        for number in range(5):
            await store.append(heard(number))
            assert len(await reader.entries()) == 2 * number + 2
        writing = store._writing
        await writing.run(writing.begin)
        await writing.run(writing.write, "INSERT INTO cursor VALUES ('irc.test', 'x')")
        assert await store.saved_cursor(place().channel) is None
        await writing.run(writing.rollback)
        with pytest.raises(StoreError):
            await reader.rows("DELETE FROM cursor")


async def test_a_loop_that_is_torn_down_leaves_whole_transactions(tmp_path: Path) -> None:
    async def caller(store: Store, first: int) -> None:
        for number in range(first, first + 10_000):
            await store.append(heard(number))

    async def story(patience_s: float) -> None:
        async with await opened(tmp_path / "s.db") as store:
            callers = [asyncio.create_task(caller(store, number * 100_000)) for number in range(5)]
            await asyncio.sleep(patience_s)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    before = asyncio.all_tasks()
    for step in range(8):
        await story(0.003 * step + 0.001)
    async with await opened(tmp_path / "s.db") as store:
        rows = await store.entry_rows(limit=1_000_000)
        assert [row[5] for row in rows if row[2] == "judged"] == [
            row[0] for row in rows if row[2] == "room"
        ]


async def test_a_cancelled_opening_lets_go_of_the_lock(tmp_path: Path) -> None:
    async def free() -> Store:
        # `run` ends it: the cancelled one goes to its end in its thread, however long that takes
        while True:
            with contextlib.suppress(StoreInUse):
                return await opened(tmp_path / "s.db")
            await asyncio.sleep(0.01)

    for step in range(20):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0003 * step), await opened(tmp_path / "s.db"):
                await asyncio.sleep(1)
        async with await free() as store:
            assert await store.entries() == []


# Subscribers get the new entries of each append, also if its caller was cancelled

AT = datetime(2026, 3, 1, tzinfo=UTC)


def moved(value: str, **fields: object) -> NewEntry:
    return NewEntry(fact=CursorMoved(channel=ChannelName("x"), value=value), at=AT, **fields)  # type: ignore[arg-type]


def role(person: str, cause: NewEntry | None = None) -> NewEntry:
    return NewEntry(
        fact=RoleAssigned(person=person, role="member", by="console", why="role"),
        at=AT,
        cause=cause,
    )


def values(entries: Sequence[LogEntry]) -> list[str]:
    return [entry.fact.value for entry in entries if isinstance(entry.fact, CursorMoved)]


async def test_called_in_order_also_if_the_caller_has_gone_and_if_another_subscriber_fails(
    tmp_path: Path,
) -> None:
    told = list[str]()

    def subscriber(entries: Sequence[LogEntry]) -> None:
        told.extend(values(entries))

    def broken(_entries: Sequence[LogEntry]) -> None:
        raise RuntimeError("a bug")

    async with await opened(tmp_path / "log.db") as store:
        store.subscribe(broken, CursorMoved)
        store.subscribe(subscriber, CursorMoved)
        assert [one.is_new for one in await store.append([moved("1"), moved("2")])] == [True, True]
        assert told == ["1", "2"]
        tasks = [
            asyncio.ensure_future(store.append([moved(str(number))])) for number in range(3, 30)
        ]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0)
            if number % 2:
                task.cancel()
        await asyncio.wait(tasks)
        assert values(await store.entries(kinds=["cursor"])) == told


async def test_called_once_per_append_with_new_entries_of_its_types_as_the_log_holds_them(
    tmp_path: Path,
) -> None:
    cursors, everything = list[Sequence[LogEntry]](), list[Sequence[LogEntry]]()
    async with await opened(tmp_path / "log.db") as store:
        store.subscribe(cursors.append, CursorMoved, DmnDirective)
        store.subscribe(everything.append)
        one = moved("1", key="one", conversation=ConversationId("demo/lobby"))
        await store.append([one, role("irc.a:ann", cause=one), moved("2")])
        repeated = moved("1", key="one")
        await store.append([repeated, role("irc.a:bob", cause=repeated)])
        await store.append([role("irc.a:cid")])
        assert [values(entries) for entries in cursors] == [["1", "2"]]
        assert [entry for entries in everything for entry in entries] == await store.entries()
        assert [len(entries) for entries in everything] == [3, 1]


async def test_order_of_subscription_holds_across_kinds_and_an_ended_one_is_not_called(
    tmp_path: Path,
) -> None:
    told = list[str]()
    async with await opened(tmp_path / "log.db") as store:

        def first(_entries: Sequence[LogEntry]) -> None:
            told.append("first")
            end_last()
            store.subscribe(lambda _: told.append("late"))

        store.subscribe(first, RoleAssigned)
        store.subscribe(lambda _: told.append("cursors"), CursorMoved)
        end_last = store.subscribe(lambda _: told.append("last"))
        await store.append([moved("1"), role("irc.a:ann")])
        assert told == ["first", "cursors"]
        end_last()
        await store.append([moved("2")])
        assert told == ["first", "cursors", "cursors", "late"]


async def test_times_are_utc(tmp_path: Path) -> None:
    told = list[LogEntry]()
    async with await opened(tmp_path / "log.db") as store:
        store.subscribe(told.extend)
        late = AT.astimezone(timezone(timedelta(hours=5)))
        await store.append(
            [NewEntry(fact=CursorMoved(channel=ChannelName("x"), value="1"), at=late)]
        )
        assert [entry.at.tzinfo for entry in told] == [UTC]


async def test_called_before_the_caller_goes_on_who_has_the_result_already(tmp_path: Path) -> None:
    events = list[str]()
    async with await opened(tmp_path / "log.db") as store:
        store.subscribe(lambda entries: events.extend(values(entries)), CursorMoved)

        async def append(value: str) -> None:
            await store.append([moved(value)])
            events.append(f"{value} done")

        await asyncio.gather(append("1"), append("2"))
        assert sorted(events) == ["1", "1 done", "2", "2 done"]
        assert all(events.index(value) < events.index(f"{value} done") for value in "12")


# Facts after a round trip through the log, and in formatted lines

# Facts after a round trip through the log, conversation names and deduplication keys


@given(strategies.facts)
def test_a_fact_read_back_is_the_same_fact(fact: Fact) -> None:
    assert fact_adapter().validate_json(dump_fact(fact)) == fact


def test_defaults_that_the_log_leaves_out_stay_what_they_were() -> None:
    """Entries are stored without them: a changed one would change what is already written."""
    found, classes = dict[str, object](), list[type](NOTIFICATION_CLASSES)
    for one in classes:  # grows by the classes of its fields
        hints = get_type_hints(one)
        for field in dataclasses.fields(one):
            parts = [hints[field.name], *get_args(hints[field.name])]
            classes += [
                part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)
            ]
            if field.name != "kind" and field.default not in (
                dataclasses.MISSING,
                None,
                (),
                "",
                False,
            ):
                found[f"{one.__name__}.{field.name}"] = field.default
    assert found == {"MembershipChanged.news": True, "TaskFinished.integrity": "owner"}
    assert {Sender, Address} <= set(classes)


@given(strategies.notifications)
def test_a_notification_read_back_is_the_same_notification(event: Notification) -> None:
    assert NOTIFICATION.validate_json(NOTIFICATION.dump_json(event)) == event


def test_the_strategies_cover_every_fact() -> None:
    """A fact without a strategy would not be tested."""
    covered: set[type] = set()
    for strategy in vars(strategies).values():
        if isinstance(strategy, st.SearchStrategy):
            covered.add(type(_example(strategy)))
    assert set(get_args(Fact)) - {PluginFact} <= covered


def _example(strategy: st.SearchStrategy[object]) -> object:
    found: list[object] = []

    @settings(max_examples=1)
    @given(strategy)
    def first(value: object) -> None:
        found.append(value)

    first()
    return found[0]


@given(strategies.addresses)
def test_a_conversation_is_its_address_in_one_line(address: Address) -> None:
    assert Address.parse(address.conversation) == address


@given(strategies.addresses, strategies.addresses)
def test_different_addresses_are_different_conversations(one: Address, other: Address) -> None:
    assert (one == other) == (one.conversation == other.conversation)


@given(strategies.notifications)
def test_the_same_event_seen_twice_has_one_key(event: Notification) -> None:
    again = NOTIFICATION.validate_json(NOTIFICATION.dump_json(event))
    assert dedup_key(again) == dedup_key(event)
    assert again.at == event.at


@given(strategies.facts, strategies.seqs, strategies.times)
def test_a_row_read_back_is_what_was_stored(fact: Fact, seq: int, at: object) -> None:
    row = (seq, str(at), fact.kind, "a/b", "k", None, dump_fact(fact))
    stored = LogEntry.from_row(row)
    assert (stored.seq, stored.at, stored.fact, stored.kind) == (seq, at, fact, fact.kind)


# One-time codes are in no formatted line of the log

FACTS_NOW = datetime(2026, 3, 1, tzinfo=UTC)
FACTS_AT = Address(channel=ChannelName("irc.x"), room=RoomId("#a"))
CODE = "WA7TRCGP"


def shown(fact: Fact) -> str:
    return format_entry(
        LogEntry(
            seq=Seq(1),
            at=FACTS_NOW,
            kind=fact.kind,
            conversation=FACTS_AT.conversation,
            key=None,
            cause=None,
            fact=fact,
        ),
        redactor=Redactor(),
    )


def command(name: str, args: str) -> Command:
    who = Sender(id=SenderId("1"), name="ann", verified=True)
    return Command(
        id=EventId("1"),
        at=FACTS_AT,
        sender=who,
        name=name,
        args=args,
        sent=FACTS_NOW,
        origin="text",
    )


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("pair", f"approve {CODE}"),
        ("pair", f"aprove {format_code(CODE).lower()}"),
        ("room", f"approve {format_code(CODE)}"),
        ("link", CODE.lower()),
        ("paair", f"approve {format_code(CODE)}"),
    ],
)
def test_what_is_handed_in_is_not_shown(name: str, args: str) -> None:
    told = shown(command(name, args))
    assert "***" in told
    assert CODE.lower() not in told.lower().replace("-", "")


def test_what_is_shown_to_somebody_is_shown_to_nobody_else() -> None:
    post = Post(key=PostKey("p"), to=FACTS_AT, text=f"Give them this code: `{format_code(CODE)}`.")
    assert shown(PostQueued(post=post)).endswith("Give them this code: `***`.")


@pytest.mark.parametrize(
    ("name", "args"), [("pair", "list"), ("link", ""), ("say", "#a to be or not")]
)
def test_the_rest_is_told(name: str, args: str) -> None:
    assert shown(command(name, args)).rstrip().endswith(f"<ann> {name} {args}".rstrip())
