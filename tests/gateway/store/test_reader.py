"""Results of each query, of the gateway and of the dashboard."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.context import compaction, requesters
from gateway.core.events import (
    ChannelName,
    ConnectionChanged,
    ConversationId,
    EventId,
    ToolCallRecord,
    TurnStep,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    ConversationRewound,
    CursorMoved,
    DmnStateSaved,
    Fact,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    TurnRecord,
    ViewFolded,
)
from gateway.core.labels import TRUSTED_LABEL
from gateway.plugins import approvals, recap
from gateway.plugins.evidence import SEQ_AFTER_TURNS, TURNS_BETWEEN
from gateway.plugins.trace import FIRST_LOOKED_AT_BY
from gateway.store import (
    BadSearchQuery,
    DueReason,
    LogEntry,
    NewEntry,
    OutboxPart,
    Store,
    overview,
    queries,
    search_terms,
)
from gateway.store.overview import OverviewReader, find_notifications
from gateway.store.queries import browse
from gateway.store.schema import create_store_file, migrate_schema, sqlite_uri
from gateway.store.spending import DAILY_SPENDING, SPENDING_SUMS
from gateway.store.sqlite_log import SqliteLog
from tests.gateway.plugins.test_trace import Step as Happened
from tests.gateway.plugins.test_trace import logs, wrote
from tests.kits.examples import examples
from tests.kits.outcomes import compute_outcomes
from tests.kits.store import (
    NOW,
    Fate,
    Urgency,
    account,
    append_newer,
    delivered,
    heard,
    judged,
    located,
    opened,
    place,
    post,
    run,
    said,
    spent,
    turn,
)

# Results of each query

# Entries of a newer version


async def test_entries_of_a_kind_that_only_a_newer_version_knows_are_left_out(
    tmp_path: Path,
) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await store.append(heard(1))
        append_newer(tmp_path / "s.db", cause=1)
        assert await store.entry(3) is None
        assert [one.seq for one in await store.entries()] == [1, 2]
        assert [one.seq for one in await store.newest_entries(2, conversation=A)] == [2]
        assert [one.seq for one in await store.caused_by(1)] == [2]
        assert await store.last_position() == 3


A, B = place("#a").conversation, place("#b").conversation


def fact(what: Fact, conversation: ConversationId | None = None) -> NewEntry:
    return NewEntry(fact=what, at=NOW, conversation=conversation)


async def test_entries_and_newest(store: Store) -> None:
    for number in range(5):
        await store.append(heard(number, room="#a" if number % 2 else "#b"))
    seqs = [entry.seq for entry in await store.entries(after=2, before=9, limit=3)]
    assert seqs == [3, 4, 5]
    assert [entry.seq for entry in await store.entries(kinds=["room"])] == [1, 3, 5, 7, 9]
    assert [entry.seq for entry in await store.entries(kinds=["room", "judged"], limit=4)] == [
        1,
        2,
        3,
        4,
    ]
    assert [
        entry.seq for entry in await store.newest_entries(3, kinds=["judged", "room", "judged"])
    ] == [8, 9, 10]
    assert [
        entry.seq for entry in await store.newest_entries(2, kinds=["judged"], conversation=A)
    ] == [4, 8]
    assert [entry.seq for entry in await store.newest_entries(1, before=9, conversation=B)] == [6]
    assert await store.entries(kinds=[]) == []
    assert await store.newest_entries(0) == []


async def test_match_finds_what_was_said_and_answered(store: Store) -> None:
    await store.append(heard(1, "The café is open"))
    await store.append([said(2, "closed today", "#b"), turn(A, 1, text="I like that cafe")])
    found = await store.entries(match="cafe")
    assert [entry.kind for entry in found] == ["room", "turn_ended"]
    assert [entry.seq for entry in await store.newest_entries(1, match="cafe")] == [4]
    assert [entry.seq for entry in await store.entries(match="cafe", kinds=["room"])] == [1]
    assert [entry.seq for entry in await store.entries(match="cafe OR closed", conversation=B)] == [
        3
    ]
    assert [entry.seq for entry in await store.entries(match="cafe", after=1)] == [4]
    for broken in ("c++", '"', "AND", ""):
        with pytest.raises(BadSearchQuery):
            await store.entries(match=broken)
        assert await store.entries(match=search_terms(broken) or '""') == []
    assert len(await store.entries(match=search_terms("open, the CAFÉ!"))) == 1


async def test_what_happened_is_counted_and_listed(store: Store) -> None:
    for number, room in enumerate(("#a", "#a", "#b"), 1):
        await store.append(heard(number, room=room))  # 1, 3, 5
    asked, refused = said(4, kind="mention"), said(5)
    await store.append([asked, judged(asked), refused, judged(refused, fate="refused")])  # 7, 9
    noted = turn(A, 1, text="word " * 100)
    assert isinstance(noted.fact, TurnRecord)
    fact = replace(noted.fact, autonomous=True, note="I saw the harbour.")
    await store.append([replace(noted, fact=fact), turn(B, 5)])  # 11, 12
    await store.append([NewEntry(fact=ConversationRewound(
        first=Seq(12), last=Seq(12), by="x"), at=NOW, conversation=B)])  # fmt: skip
    assert await recap.count_lines(store, 2, most=9) == (
        [
            recap.LineCount(A, "Ulla", "guest", 2, 1, Seq(3), Seq(7)),
            recap.LineCount(B, "Ulla", "guest", 1, 0, Seq(5), Seq(5)),
        ],
        False,
    )
    (counted,), is_cut = await recap.count_lines(store, 2, most=2)
    assert (counted.lines, is_cut) == (1, True)
    (ended,) = await recap.find_turns(store, 2, most=9)
    assert (ended.seq, ended.outcome, ended.is_within, ended.note, ended.label) == (
        11, "replied", False, "I saw the harbour.", TRUSTED_LABEL,
    )  # fmt: skip
    assert len(ended.text) == 400
    assert [one.seq for one in await store.entries(match="harbour")] == [11]


async def test_due_and_unread(store: Store) -> None:
    assert await store.due_conversations(AMBIENT) == []
    nothing = await store.unread_entries(A, most=5)
    assert (nothing.messages, nothing.omitted, nothing.upto) == ((), 0, 0)
    levels: tuple[Urgency, ...] = (LOW, AMBIENT, NORMAL, AMBIENT, AMBIENT)
    for number, urgency in enumerate(levels):
        await store.append(heard(number, urgency=urgency))  # messages are 1, 3, 5, 7, 9
    await store.append(heard(50, room="#b", urgency=AMBIENT))  # 11
    assert await store.due_conversations(AMBIENT) == [(A, NORMAL), (B, AMBIENT)]
    assert await store.due_conversations(LOW) == [(A, NORMAL)]
    assert await store.due_conversations(URGENT) == []
    assert await store.due_reasons(A) == [DueReason(rule="default", urgency=NORMAL, entries=2)]
    assert await store.due_reasons(B) == []
    for newest, shown in {
        0: [],
        1: [5],
        2: [1, 5],
        3: [1, 5, 9],
        4: [1, 5, 7, 9],
        9: [1, 3, 5, 7, 9],
    }.items():
        unread = await store.unread_entries(A, most=newest)
        assert [one.seq for one in unread.messages] == shown
        assert (unread.omitted, unread.upto) == (5 - len(shown), 9)


async def test_what_is_said_to_the_agent_is_never_passed_over(store: Store) -> None:
    for number in range(8):  # mentions are 1, 5, 9, 13; overheard lines 3, 7, 11, 15
        message = said(number, kind="room" if number % 2 else "mention")
        await store.append([message, judged(message, AMBIENT if number % 2 else URGENT)])
    told = {
        1: ([1], 1, 0),
        2: ([1, 5], 5, 1),
        3: ([1, 5, 9], 9, 2),
        4: ([1, 5, 9, 13], 15, 4),
        5: ([1, 5, 9, 13, 15], 15, 3),
        8: ([1, 3, 5, 7, 9, 11, 13, 15], 15, 0),
    }
    for most, (shown, upto, omitted) in told.items():
        unread = await store.unread_entries(A, most=most)
        assert [one.seq for one in unread.messages] == shown
        assert (unread.upto, unread.omitted) == (upto, omitted)


async def test_only_what_is_due_or_context_is_unread(store: Store) -> None:
    fates: tuple[Fate, ...] = ("due", "context", "refused", "noted")
    for number, fate in enumerate(fates):
        message = said(number)
        await store.append([message, judged(message, LOW, fate)])
    assert [one.seq for one in (await store.unread_entries(A, most=9)).messages] == [1, 3]


async def test_a_turn_deals_with_everything_up_to_its_upto(store: Store) -> None:
    for number in range(4):
        await store.append(heard(number, urgency=AMBIENT if number % 2 else URGENT))
    await store.append(heard(9, room="#b"))
    assert await store.handled_by(await _entry(store, 6)) is None
    await store.append([turn(A, 1, 5, upto=5)])
    unread = await store.unread_entries(A, most=9)
    assert [one.seq for one in unread.messages] == [7]
    assert (await store.unread_entries(B, most=9)).upto == 9
    over = await store.handled_by(await _entry(store, 4))
    assert over is not None
    assert over.seq == 11
    assert await store.handled_by(await _entry(store, 8)) is None


async def _entry(store: Store, seq: int) -> LogEntry:
    found = await store.entry(seq)
    assert found is not None
    return found


async def test_turns_begin_where_the_view_does(store: Store) -> None:
    for number in range(3):
        (message, _) = await store.append(heard(number))
        await store.append([turn(A, message.seq, text=f"answer {number}")])
    await store.append([turn(B, 4, 1, text="other room")])
    assert [one.seq for one in (await store.view_entries(A)).turns] == [3, 6, 9]
    await store.append([fact(ViewFolded(start=Seq(6), reason="size"), A)])
    assert [one.seq for one in (await store.view_entries(A)).turns] == [6, 9]
    await store.append([fact(ViewFolded(start=Seq(9), reason="size"), A), turn(A, text="alone")])
    assert [one.fact for one in (await store.view_entries(A)).turns][1:] == [
        turn(A, text="alone").fact
    ]
    assert [one.seq for one in (await store.view_entries(B)).turns] == [10]
    assert (await store.view_entries(place("#c").conversation)).turns == []


async def test_the_outbox_follows_a_post_to_its_end(tmp_path: Path) -> None:
    def states(parts: tuple[OutboxPart, ...]) -> list[tuple[str, str, int]]:
        return [(part.state, part.reason, part.attempts) for part in parts]

    async with await opened(tmp_path / "s.db") as store:
        await store.append(
            [fact(PostQueued(post=post("p"))), fact(PostQueued(post=post("q", "other")))]
        )
        (first, second) = await store.undelivered_posts()
        assert (first.seq, first.at, first.post, first.parts) == (1, NOW, post("p"), ())
        key = first.post.key
        await store.append([fact(PartSendStarted(post=key, part=0, bodies=("a", "b", "c")))])
        await store.append([fact(PartSendStarted(post=key, part=1, bodies=None))])
        (first, second) = await store.undelivered_posts()
        assert states(first.parts) == [("sending", "", 1), ("sending", "", 1), ("pending", "", 0)]
        assert [(part.index, part.body) for part in first.parts] == [(0, "a"), (1, "b"), (2, "c")]
        assert second.parts == ()
        await store.append(
            [
                fact(PartSendEnded(post=key, part=0, state="sent", reason="")),
                fact(PartSendEnded(post=key, part=1, state="waiting", reason="slow down")),
                fact(PartSendStarted(post=key, part=1, bodies=None)),
                fact(PartSendStarted(post=key, part=2, bodies=None)),
                fact(PartSendEnded(post=key, part=1, state="uncertain", reason="cut")),
                fact(PartSendEnded(post=key, part=2, state="waiting", reason="slow down")),
            ]
        )
        (first, _) = await store.undelivered_posts()
        assert states(first.parts) == [
            ("sent", "", 1),
            ("uncertain", "cut", 2),
            ("pending", "slow down", 1),
        ]
        await store.append([delivered("p", "uncertain")])
        (left,) = await store.undelivered_posts()
        assert left.post.key == "q"
        await store.append([fact(PartSendEnded(post=key, part=2, state="failed", reason="late"))])
        assert [one.post.key for one in await store.undelivered_posts()] == ["q"]


async def test_small_states(tmp_path: Path) -> None:
    irc, discord = ChannelName("irc.test"), ChannelName("discord.main")
    async with await opened(tmp_path / "s.db") as store:
        assert (
            await store.dmn_state("a"),
            await store.saved_cursor(irc),
            await store.connection_states(),
        ) == (
            None,
            None,
            [],
        )
        for value in ("1", "2"):
            await store.append(
                [
                    fact(DmnStateSaved(state=value, agent="a")),
                    fact(CursorMoved(channel=irc, value=value)),
                ]
            )
        assert (
            await store.dmn_state("a"),
            await store.saved_cursor(irc),
            await store.saved_cursor(discord),
        ) == (
            "2",
            "2",
            None,
        )
        for number, (channel, up) in enumerate([(irc, True), (discord, True), (irc, False)]):
            link = ConnectionChanged(
                id=EventId(str(number)), channel=channel, up=up, reason=f"why {number}", sent=NOW
            )
            await store.append([fact(link)])
        assert await store.connection_states() == [
            (discord, True, "why 1", NOW),
            (irc, False, "why 2", NOW),
        ]


async def test_why(store: Store) -> None:
    await store.append(heard(1))
    assert await store.entry_by_key("message:irc.test/#a:1") == await store.entry(1)
    assert [one.kind for one in await store.caused_by(1)] == ["judged"]
    verdict = await store.find_judgement(1)
    assert verdict is not None
    assert verdict.rule == "default"
    assert (
        await store.entry(99),
        await store.entry_by_key("x"),
        await store.find_judgement(2),
    ) == (None, None, None)
    for beyond in (2**63, 10**30):
        assert await store.entry(beyond) is None
        assert await store.caused_by(beyond) == []
        assert await store.entries(after=beyond) == []
        assert len(await store.entries(after=-beyond, before=beyond, limit=beyond)) == 2


# Queries of the dashboard: equal to the whole log, and bounded

HERE = place("#a").conversation


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_every_fate_is_as_the_whole_log_tells_it(told: list[Happened]) -> None:
    async def story(path: Path) -> None:
        async with (
            await opened(path) as store,
            await OverviewReader.open(store.location) as looking,
        ):
            whole = compute_outcomes(await wrote(store, told))
            found = await looking.notifications(99)
            assert {event.seq: event.fate for event in found} == whole
            assert [event.seq for event in found] == sorted(whole, reverse=True)
            again = await find_notifications(looking, [event.seq for event in found])
            assert again == list(reversed(found))

    with TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))


async def test_pages_are_bounded_on_both_sides(store: Store) -> None:
    async with await OverviewReader.open(store.location) as looking:
        for number in range(6):
            await store.append(heard(number, room="#a" if number % 2 else "#b"))
        assert [one.seq for one in await looking.notifications(3)] == [11, 9, 7]
        assert [one.seq for one in await looking.notifications(3, before=7)] == [5, 3, 1]
        assert [one.seq for one in await looking.notifications(3, after=5, oldest=True)] == [
            7,
            9,
            11,
        ]
        assert [one.seq for one in await looking.notifications(9, after=3, before=9)] == [7, 5]
        assert [one.seq for one in await looking.notifications(9, conversation=HERE)] == [11, 7, 3]
        assert [
            one.seq
            for one in await looking.notifications(9, after=3, conversation=HERE, oldest=True)
        ] == [7, 11]
        assert [one.seq for one in await find_notifications(looking, [11, 2, 5, 99, 5])] == [5, 11]


async def test_places_tell_what_was_said_last(store: Store) -> None:
    async with await OverviewReader.open(store.location) as looking:
        assert await looking.recent_conversations(9) == []
        await store.append([*heard(1, "first"), *heard(2, "there", room="#b"), *heard(3, "second")])
        one, other = await looking.recent_conversations(9)
        assert (one.conversation, one.last and one.last.seq, one.unread) == (HERE, 5, 2)
        assert (other.conversation, other.unread) == (place("#b").conversation, 1)
        answer = NewEntry(fact=PostQueued(post=post("p")), at=NOW, conversation=HERE, key="post:p")
        await store.append([turn(HERE, 1, 5), answer])
        (one,) = await looking.recent_conversations(1)
        assert one.last is not None
        assert (one.last.fact.kind, one.last.delivered, one.unread) == ("post", "", 0)
        await store.append([delivered("p", "uncertain")])
        said_there = await looking.spoken_entries(HERE, 9)
        assert [(spoken.seq, spoken.fact.kind, spoken.delivered) for spoken in said_there] == [
            (1, "room", ""),
            (5, "room", ""),
            (8, "post", "uncertain"),
        ]
        assert [spoken.seq for spoken in await looking.spoken_entries(HERE, 1)] == [8]


async def test_turns_come_without_what_was_said_in_them(store: Store) -> None:
    async with await OverviewReader.open(store.location) as looking:
        plain = spent(
            HERE, account(read=10, written=5, plain=3, cost=0.25), account(plain=1), senders=["u"]
        )
        assert isinstance(plain.fact, TurnRecord)
        calls = tuple(
            ToolCallRecord(id=name, name=name, arguments=arguments, result="x")
            for name, arguments in (
                ("a", "{}"),
                ("call_capability", '{"capability": "b", "args": {}}'),
                ("call_capability", "no JSON"),
            )
        )
        worked = replace(
            plain.fact, steps=(TurnStep(text="", calls=calls), TurnStep(text="", calls=calls[:1]))
        )
        await store.append([replace(plain, fact=worked), turn(place("#b").conversation)])
        other, one = await looking.recent_turns(9)
        assert (one.tools, one.requests, one.cost_usd, one.agent) == (
            ("a", "b", "call_capability", "a"),
            2,
            0.25,
            "reverie",
        )
        assert (one.read_tokens, one.input_tokens, one.output_tokens) == (10, 4, 14)
        assert (other.cost_usd, other.autonomous, other.cause) == (0.0, False, "addressed")
        assert [one.seq for one in await looking.recent_turns(9, conversation=HERE)] == [1]
        assert [one.seq for one in await looking.recent_turns(9, before=2)] == [1]
        assert [one.seq for one in await looking.recent_turns(9, after=1)] == [2]


@pytest.mark.parametrize("by", ["channel", "conversation", "agent", "model"])
async def test_hours_add_up_to_days(by: str, store: Store) -> None:
    async with await OverviewReader.open(store.location) as looking:
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
        assert {one.at and one.at.minute for one in hours} == {0}
        assert len({one.at for one in hours}) == 40
        late = await looking.spending_over_time(by, NOW + timedelta(hours=38), daily=False)  # type: ignore[arg-type] # the same
        assert sum(one.requests for one in late) == 2


async def test_modes_and_positions_by_time(store: Store) -> None:
    async with await OverviewReader.open(store.location) as looking:
        assert await looking.first_entry_since(NOW) == 1  # nothing is there
        for number, mode in enumerate(("resting", "engaged", "foraging")):
            at = NOW + timedelta(minutes=number)
            saved = NewEntry(
                fact=DmnStateSaved(state=f'{{"mode": "{mode}"}}', agent="reverie"), at=at
            )
            await store.append([replace(said(number), at=at), saved])
        assert [
            await looking.first_entry_since(NOW + timedelta(seconds=wait))
            for wait in (-9, 0, 1, 60, 119, 121)
        ] == [1, 1, 3, 3, 5, 7]
        assert [mode for _, _, mode in await looking.dmn_modes(NOW + timedelta(seconds=30))] == [
            "engaged",
            "foraging",
        ]


@pytest.mark.sqlite
async def test_what_is_read_takes_few_steps_however_long_the_log_is(tmp_path: Path) -> None:
    """A page of a log of thousands costs about as much as one of a short log."""

    async def took(path: Path, count: int) -> int:
        async with await opened(path) as store, await OverviewReader.open(located(path)) as looking:
            for start in range(0, count, 100):
                batch = [entry for number in range(start, start + 100) for entry in heard(number)]
                await store.append([*batch, *[judged(said(-number - 1)) for number in range(0)]])
                await store.append([turn(HERE, upto=2 * (start + 100))])
            steps = 0

            def step() -> int:
                nonlocal steps
                steps += 1
                return 0

            assert isinstance(looking._reading, SqliteLog)
            looking._reading.connection.set_progress_handler(step, 100)
            await looking.notifications(20, conversation=HERE)
            await looking.notifications(20)
            await looking.spoken_entries(HERE, 20)
            await looking.recent_conversations(20)
            await looking.recent_turns(20)
            await looking.first_entry_since(NOW)
            return steps

    short, long = await took(tmp_path / "short.db", 200), await took(tmp_path / "long.db", 4_000)
    assert long < 2 * short + 20


# No query reads the whole log: SQLite's own plan of each (https://www.sqlite.org/eqp.html)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[SqliteLog]:
    create_store_file(tmp_path / "s.db")
    migrate_schema(tmp_path / "s.db")
    opened_ = SqliteLog(sqlite_uri(tmp_path / "s.db", "rw"))
    yield opened_
    opened_.close()


def plan(connection: SqliteLog, sql: str, params: Sequence[object] = (1,) * 9) -> list[str]:
    return [row[3] for row in connection.fetch(f"EXPLAIN QUERY PLAN {sql}", params)]


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        (queries.ENTRY, 1, "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"),
        (queries.ENTRY_BY_KEY, 1, "SEARCH log USING INDEX sqlite_autoindex_log_1 (key=?)"),
        (queries.CAUSED_BY, 1, "SEARCH log USING INDEX log_cause (cause=?)"),
        (queries.HANDLED_BY, 3, "SEARCH log USING INDEX log_turn (conversation=? AND rowid>?)"),
        (queries.HANDLED_BY, 3, "SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"),
        (
            FIRST_LOOKED_AT_BY,
            3,
            "SEARCH log USING INDEX log_turn (conversation>? AND conversation<?)",
        ),
        (queries.TURNS_IN_VIEW, 1, "SEARCH log USING INDEX log_turn (conversation=? AND rowid>?)"),
        (
            queries.TURNS_IN_VIEW,
            1,
            "SEARCH view_cut USING PRIMARY KEY (conversation=? AND first>? AND first<?)",
        ),
        (queries.NEWEST_FOLD, 1, "SEARCH view USING PRIMARY KEY (conversation=?)"),
        (queries.NEWEST_FOLD, 1, "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"),
        (requesters.LAST_FRESH_START, 1, "SEARCH view USING PRIMARY KEY (conversation=?)"),
        (approvals.UNDECIDED, 0, "SEARCH log USING INDEX log_kind (kind=?)"),
        (
            approvals.UNDECIDED,
            0,
            "SEARCH ended USING COVERING INDEX sqlite_autoindex_log_1 (key=?)",
        ),
        (
            compaction.COMPACTION_LOCK,
            1,
            "SEARCH compaction_locks_v1 USING PRIMARY KEY (session_id=?)",
        ),
        (queries.NEWEST_TURNS, 3, "SEARCH log USING INDEX log_turn (conversation=? AND rowid<?)"),
        (queries.DUE_CONVERSATIONS, 1, "SCAN unread USING COVERING INDEX unread_due"),
        (
            queries.DUE_REASONS,
            2,
            "SEARCH unread USING COVERING INDEX unread_due (conversation=? AND urgency>?)",
        ),
        (queries.DUE_REASONS, 2, "SEARCH judged USING INDEX log_cause (cause=?)"),
        (
            queries.UNREAD_ENTRIES,
            3,
            "SEARCH unread USING COVERING INDEX unread_due (conversation=? AND urgency>?)",
        ),
        (
            queries.UNREAD_ENTRIES,
            3,
            (
                "SEARCH unread USING COVERING INDEX unread_conversation (conversation=? AND rowid>? "
                "AND rowid<?)"
            ),
        ),
        (
            queries.UNREAD_ENTRIES,
            3,
            (
                "SEARCH unread USING INDEX unread_conversation (conversation=? AND rowid>? AND "
                "rowid<?)"
            ),
        ),
        (
            queries.UNREAD_ENTRIES,
            3,
            (
                "SEARCH unread USING COVERING INDEX unread_due (conversation=? AND urgency=? AND "
                "rowid>? AND rowid<?)"
            ),
        ),
        (
            queries.UNREAD_ENTRIES,
            3,
            "SEARCH log USING INDEX log_changed (conversation=? AND rowid>?)",
        ),
        (
            queries.MESSAGE_CHANGES,
            3,
            "SEARCH log USING INDEX log_changed (conversation=? AND rowid>?)",
        ),
        (
            queries.LATEST_MESSAGE_CHANGE,
            4,
            (
                "SEARCH log USING INDEX log_reworded (conversation=? AND <expr>=? AND kind=? AND "
                "rowid>?)"
            ),
        ),
        (queries.LATEST_MESSAGE_CHANGE, 4, "SEARCH judged USING INDEX log_cause (cause=?)"),
        (
            TURNS_BETWEEN,
            4,
            "SEARCH log USING INDEX log_turn (conversation=? AND rowid>? AND rowid<?)",
        ),
        (
            SEQ_AFTER_TURNS,
            4,
            "SEARCH log USING INDEX log_turn (conversation=? AND rowid>? AND rowid<?)",
        ),
        (queries.OWN_POST, 2, "SEARCH part USING INDEX log_ours (conversation=? AND <expr>=?)"),
        (queries.OWN_POST, 2, "SEARCH post USING INDEX sqlite_autoindex_log_1 (key=?)"),
        (
            queries.SQLITE.word_uses,
            3,
            "SEARCH log USING COVERING INDEX log_kind (kind=? AND rowid>?)",
        ),
        (queries.ENTRY_LOCATIONS, 1, "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"),
        (queries.ENTRY_LOCATIONS, 1, "SEARCH unread USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"),
        (
            queries.ENTRY_LOCATIONS,
            1,
            "SEARCH view_cut USING PRIMARY KEY (conversation=? AND first<?)",
        ),
        (queries.ENTRY_LOCATIONS, 1, "SEARCH taken_back USING INTEGER PRIMARY KEY (rowid=?)"),
        (queries.ENTRY_LOCATIONS, 1, "SEARCH view USING PRIMARY KEY (conversation=?)"),
        (queries.OPEN_PREVIEWS, 0, "SCAN preview"),
        (queries.UNDELIVERED_POSTS, 0, "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"),
        (queries.UNDELIVERED_POSTS, 0, "SEARCH part USING PRIMARY KEY (post=?) LEFT-JOIN"),
        (SPENDING_SUMS["all"], 3, "SEARCH spending USING PRIMARY KEY (day>?)"),
        (SPENDING_SUMS["room"], 3, "SEARCH spending USING PRIMARY KEY (day>?)"),
        (SPENDING_SUMS["sender"], 3, "SEARCH spending USING PRIMARY KEY (day>?)"),
        (recap.COUNT_LINES, 2, "SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"),
        (recap.COUNT_LINES, 2, "SEARCH said USING INTEGER PRIMARY KEY (rowid=?)"),
        (recap.TURNS_SINCE, 2, "SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"),
        (queries.SAVED_CURSOR, 1, "SEARCH cursor USING PRIMARY KEY (channel=?)"),
        (queries.DMN_STATE, 1, "SEARCH dmn_state USING PRIMARY KEY (agent=?)"),
    ],
)
def test_each_question_uses_its_index(
    connection: SqliteLog, sql: str, params: int, expected: str
) -> None:
    steps = plan(connection, sql, [1] * params)
    assert expected in steps
    assert not [step for step in steps if step.startswith("SCAN log")]


@pytest.mark.sqlite
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize(
    ("kinds", "conversation", "match", "expected"),
    [
        (None, None, None, "SEARCH log USING INTEGER PRIMARY KEY (rowid>?)"),
        (["room"], None, None, "SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"),
        (["room", "judged"], None, None, "SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"),
        (None, "a/b", None, "SEARCH log USING INDEX log_conversation (conversation=? AND rowid>?)"),
        (
            ["room"],
            "a/b",
            None,
            "SEARCH log USING INDEX log_conversation (conversation=? AND rowid>?)",
        ),
        (["room"], "a/b", "words", "SEARCH log USING INTEGER PRIMARY KEY (rowid=?)"),
    ],
)
def test_browsing_uses_an_index_and_sorts_no_more_than_it_shows(
    *,
    connection: SqliteLog,
    kinds: list[str] | None,
    conversation: str | None,
    match: str | None,
    expected: str,
    newest: bool,
) -> None:
    sql, params = browse(
        queries.SQLITE,
        after=0,
        before=None,
        kinds=kinds,
        conversation=conversation,
        match=match,
        limit=9,
        newest=newest,
    )
    steps = plan(connection, sql, list(params))
    assert expected in steps
    assert not [step for step in steps if step.startswith("SCAN log")]
    inner = steps[: steps.index(expected) + 1]
    assert not [step for step in inner if "TEMP B-TREE" in step], "sorted before it was limited"


JUDGED = "SEARCH judged USING INDEX log_kind (kind=? AND rowid>? AND rowid<?)"
JUDGED_THERE = "SEARCH judged USING INDEX log_conversation (conversation=? AND rowid>? AND rowid<?)"


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        (
            overview.NOTIFICATIONS["newest"],
            3,
            [JUDGED, "SEARCH event USING INTEGER PRIMARY KEY (rowid=?)"],
        ),
        (
            overview.NOTIFICATIONS["oldest"],
            3,
            [JUDGED, "SEARCH unread USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"],
        ),
        (overview.NOTIFICATIONS_IN["newest"], 4, [JUDGED_THERE]),
        (overview.NOTIFICATIONS_IN["oldest"], 4, [JUDGED_THERE]),
        (
            overview.NOTIFICATIONS["newest"],
            3,
            [
                "SEARCH turn USING INDEX log_turn (conversation=? AND rowid>?)",
                (
                    "SEARCH decided USING INDEX log_conversation (conversation=? AND rowid>? AND "
                    "rowid<?)"
                ),
                "SEARCH inner_ USING INDEX log_kind (kind=? AND rowid>? AND rowid<?)",
                "SEARCH later USING INDEX log_turn (conversation=? AND rowid>?)",
            ],
        ),
        (overview.NOTIFICATIONS_AT, 1, ["SEARCH judged USING INDEX log_cause (cause=?)"]),
        (overview.SPOKEN_ENTRIES, 2, ["SEARCH said USING INDEX log_conversation (conversation=?)"]),
        (
            overview.RECENT_CONVERSATIONS,
            1,
            ["SEARCH log USING COVERING INDEX log_conversation (conversation>?)"],
        ),
        (
            overview.RECENT_CONVERSATIONS,
            1,
            ["SEARCH log USING INDEX log_conversation (conversation=?)"],
        ),
        (
            overview.RECENT_TURNS,
            3,
            ["SEARCH log USING INDEX log_kind (kind=? AND rowid>? AND rowid<?)"],
        ),
        (
            overview.RECENT_TURNS_IN,
            4,
            ["SEARCH log USING INDEX log_turn (conversation=? AND rowid>? AND rowid<?)"],
        ),
        (queries.FIRST_ENTRY_SINCE, 1, ["SEARCH log USING INTEGER PRIMARY KEY (rowid>?)"]),
        (
            overview.HOURLY_SPENDING["channel"],
            1,
            ["SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"],
        ),
        (DAILY_SPENDING["model"], 1, ["SEARCH spending USING PRIMARY KEY (day>?)"]),
        (overview.DMN_MODES, 1, ["SEARCH log USING INDEX log_kind (kind=? AND rowid>?)"]),
    ],
)
def test_each_question_of_whoever_looks_on_uses_its_index(
    connection: SqliteLog, sql: str, params: int, expected: list[str]
) -> None:
    steps = plan(connection, sql, [1] * params)
    for step in expected:
        assert step in steps
    named = (
        "SCAN log",
        "SCAN judged",
        "SCAN event",
        "SCAN turn",
        "SCAN said",
        "SCAN later",
        "SCAN decided",
    )
    assert not [step for step in steps if step.startswith(named)]


@pytest.mark.sqlite
def test_looking_up_keys_and_opening_scan_nothing(connection: SqliteLog) -> None:
    (step,) = plan(connection, "SELECT key, seq FROM log WHERE key IN ($1, $2)")
    assert step == "SEARCH log USING COVERING INDEX sqlite_autoindex_log_1 (key=?)"
    (step,) = plan(connection, "SELECT coalesce(max(seq), 0) FROM log", ())
    assert step == "SEARCH log"


async def _steps(path: Path, turns_before: int) -> int:
    """Count instructions of SQLite's virtual machine for the turns of a conversation with two in
    view."""
    conversation = place().conversation
    async with await opened(path) as store:
        for number in range(turns_before + 2):
            message = said(number)
            (first, *_) = await store.append([message, judged(message), said(-number - 1)])
            (ended,) = await store.append([turn(conversation, first.seq)])
            if number == turns_before:
                fold = ViewFolded(start=ended.seq, reason="size")
                await store.append([NewEntry(fact=fold, at=NOW, conversation=conversation)])
            elif number % 2 == 0 and number < turns_before:
                back = ConversationRewound(first=ended.seq, last=ended.seq, by="ops")
                await store.append([NewEntry(fact=back, at=NOW, conversation=conversation)])
        found = await store.view_entries(conversation)
        assert (len(found.turns), found.fold is not None) == (2, True)
    log, taken = SqliteLog(sqlite_uri(path, "ro")), itertools.count()
    log.connection.set_progress_handler(lambda: next(taken) < 0, 1)
    assert len(log.fetch(queries.TURNS_IN_VIEW, (conversation,))) == 2
    log.close()
    return next(taken)


@pytest.mark.sqlite
async def test_turns_cost_the_same_however_much_stands_before_the_view_and_was_taken_back(
    tmp_path: Path,
) -> None:
    assert await _steps(tmp_path / "short.db", 2) == await _steps(tmp_path / "long.db", 200)


async def _uses_steps(path: Path, texts: int) -> int:
    """Count instructions for the newest three uses of a word that all texts hold."""
    async with await opened(path) as store:
        await store.append([said(number, "harbour") for number in range(texts)])
        await store.append([said(-1, "lake")])
        found = await store.find_word_uses(["harbour", "lake", "nowhere"], newest=3, notes_after=0)
        assert [len(seqs) for seqs in found.positions] == [3, 1, 0]
        assert found.positions[0] == [texts, texts - 1, texts - 2]
        assert (found.last, found.note_positions) == (texts + 1, [])
    log, taken = SqliteLog(sqlite_uri(path, "ro")), itertools.count()
    log.connection.set_progress_handler(lambda: next(taken) < 0, 1)
    log.fetch(queries.SQLITE.word_uses, ('["harbour"]', 3, 0))
    log.close()
    return next(taken)


@pytest.mark.sqlite
async def test_uses_cost_the_same_however_many_there_are(tmp_path: Path) -> None:
    short, long = (
        await _uses_steps(tmp_path / "short.db", 10),
        await _uses_steps(tmp_path / "long.db", 2_000),
    )
    assert long < short + 20, "a page more of the index is read"
