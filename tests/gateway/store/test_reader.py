"""Results of each query."""

from pathlib import Path

import pytest

from gateway.core.events import ChannelName, ConnectionChanged, ConversationId, EventId
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    CursorMoved,
    DmnStateSaved,
    Fact,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    ViewFolded,
)
from gateway.store import BadSearchQuery, LogEntry, NewEntry, OutboxPart, Store, search_terms
from tests.kits.store import NOW, Fate, Urgency, delivered, heard, judged, opened, place, post, run, said, turn

A, B = place("#a").conversation, place("#b").conversation


def fact(what: Fact, conversation: ConversationId | None = None) -> NewEntry:
    return NewEntry(fact=what, at=NOW, conversation=conversation)


def test_entries_and_newest(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            for number in range(5):
                await store.append(heard(number, room="#a" if number % 2 else "#b"))
            seqs = [entry.seq for entry in await store.entries(after=2, before=9, limit=3)]
            assert seqs == [3, 4, 5]
            assert [entry.seq for entry in await store.entries(kinds=["room"])] == [1, 3, 5, 7, 9]
            assert [entry.seq for entry in await store.entries(kinds=["room", "judged"], limit=4)] == [1, 2, 3, 4]
            assert [entry.seq for entry in await store.newest_entries(3, kinds=["judged", "room", "judged"])] == [
                8,
                9,
                10,
            ]
            assert [entry.seq for entry in await store.newest_entries(2, kinds=["judged"], conversation=A)] == [4, 8]
            assert [entry.seq for entry in await store.newest_entries(1, before=9, conversation=B)] == [6]
            assert await store.entries(kinds=[]) == []
            assert await store.newest_entries(0) == []

    run(story())


def test_match_finds_what_was_said_and_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1, "The café is open"))
            await store.append([said(2, "closed today", "#b"), turn(A, 1, text="I like that cafe")])
            found = await store.entries(match="cafe")
            assert [entry.kind for entry in found] == ["room", "turn_ended"]
            assert [entry.seq for entry in await store.newest_entries(1, match="cafe")] == [4]
            assert [entry.seq for entry in await store.entries(match="cafe", kinds=["room"])] == [1]
            assert [entry.seq for entry in await store.entries(match="cafe OR closed", conversation=B)] == [3]
            assert [entry.seq for entry in await store.entries(match="cafe", after=1)] == [4]
            for broken in ("c++", '"', "AND", ""):
                with pytest.raises(BadSearchQuery):
                    await store.entries(match=broken)
                assert await store.entries(match=search_terms(broken) or '""') == []
            assert len(await store.entries(match=search_terms("open, the CAFÉ!"))) == 1

    run(story())


def test_due_and_unread(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
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
            for newest, shown in {0: [], 1: [5], 2: [1, 5], 3: [1, 5, 9], 4: [1, 5, 7, 9], 9: [1, 3, 5, 7, 9]}.items():
                unread = await store.unread_entries(A, most=newest)
                assert [one.seq for one in unread.messages] == shown
                assert (unread.omitted, unread.upto) == (5 - len(shown), 9)

    run(story())


def test_what_is_said_to_the_agent_is_never_passed_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
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

    run(story())


def test_only_what_is_due_or_context_is_unread(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            fates: tuple[Fate, ...] = ("due", "context", "refused", "noted")
            for number, fate in enumerate(fates):
                message = said(number)
                await store.append([message, judged(message, LOW, fate)])
            assert [one.seq for one in (await store.unread_entries(A, most=9)).messages] == [1, 3]

    run(story())


def test_a_turn_deals_with_everything_up_to_its_upto(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
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

    run(story())


async def _entry(store: Store, seq: int) -> LogEntry:
    found = await store.entry(seq)
    assert found is not None
    return found


def test_turns_begin_where_the_view_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            for number in range(3):
                (message, _) = await store.append(heard(number))
                await store.append([turn(A, message.seq, text=f"answer {number}")])
            await store.append([turn(B, 4, 1, text="other room")])
            assert [one.seq for one in (await store.view_entries(A)).turns] == [3, 6, 9]
            await store.append([fact(ViewFolded(start=Seq(6), reason="size"), A)])
            assert [one.seq for one in (await store.view_entries(A)).turns] == [6, 9]
            await store.append([fact(ViewFolded(start=Seq(9), reason="size"), A), turn(A, text="alone")])
            assert [one.fact for one in (await store.view_entries(A)).turns][1:] == [turn(A, text="alone").fact]
            assert [one.seq for one in (await store.view_entries(B)).turns] == [10]
            assert (await store.view_entries(place("#c").conversation)).turns == []

    run(story())


def test_the_outbox_follows_a_post_to_its_end(tmp_path: Path) -> None:
    async def story() -> None:
        def states(parts: tuple[OutboxPart, ...]) -> list[tuple[str, str, int]]:
            return [(part.state, part.reason, part.attempts) for part in parts]

        async with await opened(tmp_path / "s.db") as store:
            await store.append([fact(PostQueued(post=post("p"))), fact(PostQueued(post=post("q", "other")))])
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
            assert states(first.parts) == [("sent", "", 1), ("uncertain", "cut", 2), ("pending", "slow down", 1)]
            await store.append([delivered("p", "uncertain")])
            (left,) = await store.undelivered_posts()
            assert left.post.key == "q"
            await store.append([fact(PartSendEnded(post=key, part=2, state="failed", reason="late"))])
            assert [one.post.key for one in await store.undelivered_posts()] == ["q"]

    run(story())


def test_small_states(tmp_path: Path) -> None:
    async def story() -> None:
        irc, discord = ChannelName("irc.test"), ChannelName("discord.main")
        async with await opened(tmp_path / "s.db") as store:
            assert (await store.dmn_state(), await store.saved_cursor(irc), await store.connection_states()) == (
                None,
                None,
                [],
            )
            for value in ("1", "2"):
                await store.append([fact(DmnStateSaved(state=value)), fact(CursorMoved(channel=irc, value=value))])
            assert (await store.dmn_state(), await store.saved_cursor(irc), await store.saved_cursor(discord)) == (
                "2",
                "2",
                None,
            )
            for number, (channel, up) in enumerate([(irc, True), (discord, True), (irc, False)]):
                link = ConnectionChanged(
                    id=EventId(str(number)), channel=channel, up=up, reason=f"why {number}", sent=NOW
                )
                await store.append([fact(link)])
            assert await store.connection_states() == [(discord, True, "why 1", NOW), (irc, False, "why 2", NOW)]

    run(story())


def test_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1))
            found = await store.entry_by_key("message:irc.test/#a:1")
            assert found == await store.entry(1)
            assert [one.kind for one in await store.caused_by(1)] == ["judged"]
            verdict = await store.find_judgement(1)
            assert verdict is not None
            assert verdict.rule == "default"
            assert (await store.entry(99), await store.entry_by_key("x"), await store.find_judgement(2)) == (
                None,
                None,
                None,
            )
            for beyond in (2**63, 10**30):
                assert await store.entry(beyond) is None
                assert await store.caused_by(beyond) == []
                assert await store.entries(after=beyond) == []
                assert len(await store.entries(after=-beyond, before=beyond, limit=beyond)) == 2

    run(story())
