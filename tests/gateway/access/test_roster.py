"""The roster: equal from the log and from appended entries, changed from the command line and by
linked accounts."""

import itertools
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.roster import RequestKind, Roster
from gateway.access.texts import MAX_LINKED_ACCOUNTS
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Sender
from gateway.core.facts import (
    CodeEnded,
    CodeIssued,
    Fact,
    IdentityLinked,
    RoleAssigned,
    RoomAccessChanged,
)
from gateway.core.identity import ROLE_ORDER
from gateway.store import LogEntry, NewEntry, Store
from tests.kits.access import (
    ADMIN,
    DC,
    EVE,
    IRC,
    LOBBY,
    MASK,
    MEMBER,
    OWNER,
    POLICY,
    TG,
    Town,
    alone,
    code,
    somebody,
    town,
)
from tests.kits.examples import examples

# The roster is the same from the log and from appended entries; pairing from the command line

NOW = datetime(2026, 1, 1, tzinfo=UTC)
people = st.sampled_from(
    [f"{TG}:{number}" for number in range(4)] + [f"{DC}:{number}" for number in range(4)]
)
places = st.sampled_from([Address.parse(f"{TG}/-{number}") for number in range(3)])
words: st.SearchStrategy[Fact] = st.one_of(
    st.builds(
        RoleAssigned,
        person=people,
        role=st.sampled_from([*ROLE_ORDER, ""]),
        scope=st.sampled_from(["", "telegram.main/-1"]),
        name=st.just(""),
        by=people,
        why=st.sampled_from(["pairing", "role", "block", "seed"]),
    ),
    st.builds(RoomAccessChanged, room=places, open=st.booleans(), by=people, about=st.just("")),
    st.tuples(people, people, st.booleans())
    .filter(lambda link: link[0] != link[1])
    .map(
        lambda link: IdentityLinked(one=min(link[:2]), other=max(link[:2]), joined=link[2], by="")
    ),
    st.builds(
        CodeIssued,
        request=st.sampled_from("abc"),
        what=st.sampled_from(["pair", "room", "link", "confirm"]),
        person=people,
        name=st.just(""),
        at=places,
        room=st.none(),
        about=st.just(""),
        other=st.just(""),
        salt=st.just(""),
        digest=st.just(""),
        until=st.just(NOW.replace(year=2027)),
    ),
    st.builds(CodeEnded, request=st.sampled_from("abc"), state=st.just("used"), by=st.just("")),
)


@settings(max_examples=examples(30))
@given(st.lists(st.lists(words, max_size=6), max_size=8))
async def test_the_log_gives_the_same_picture_as_what_was_written(
    batches: list[list[Fact]],
) -> None:

    with tempfile.TemporaryDirectory() as folder:
        async with await Store.open(Path(folder) / "reverie.db", ManualClock()) as store:
            lived, read = Roster(store, ManualClock()), Roster(store, ManualClock())
            await lived.load()
            store.subscribe(lived.on_appended)
            for batch in batches:
                await store.append([NewEntry(fact=fact, at=NOW) for fact in batch])
            await read.load()
            assert lived.known == read.known
            assert lived.roles == read.roles
            assert lived.rooms == read.rooms
            assert lived.links == read.links
            for what in get_args(RequestKind):
                assert lived.pending_requests(what) == read.pending_requests(what)


async def test_what_is_told_again_changes_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.shown(it.message(TG, EVE))
        event = it.command(TG, OWNER, "pair approve")
        change = await it.decided(event, "pair approve", code=code(post))
        await it.settled(event, change)
        await it.ask(TG, OWNER, "role clear", who="666")
        await it.settled(event, change)
        assert it.role(TG, EVE) == "guest"
        assert len(it.posted) == 1


async def test_what_is_written_while_the_log_is_read_counts(tmp_path: Path) -> None:
    """The command line may append before the start has finished."""
    async with town(tmp_path) as it:
        await it.ask(TG, OWNER, "role set", who="666", role="admin")
        await it.ask(TG, OWNER, "block", who="667")

        class Slow:
            """Returns the facts that were in the log before."""

            async def current_facts(self, kind: str) -> list[LogEntry]:
                read = await it.store.current_facts(kind)
                if kind == "role_given":
                    await it.ask(TG, OWNER, "role clear", who="666")
                    await it.ask(TG, OWNER, "unblock", who="667")
                    await it.ask(TG, OWNER, "block", who="668")
                return read

        slow: Any = Slow()
        late = Roster(slow, it.clock)
        it.store.subscribe(late.on_appended)
        await late.load()
        assert late.known == it.roster.known
        assert list(late.known.grants) == ["telegram.main:668"]


async def test_from_the_shell_people_and_rooms_are_let_in(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        person = await it.shown(it.message(TG, EVE))
        room = await it.shown(it.message(TG, EVE, Address.parse(f"{TG}/-100")))
        names = [one.request for one in await it.facts("code_given") if isinstance(one, CodeIssued)]
        waiting = (await it.shell("pair list")).answer
        assert [line.split(", until")[0] for line in waiting.splitlines() if ", until" in line] == [
            f"- `{names[0]}`: `telegram.main:666` (`Eve`)",
            f"- `{names[1]}`: `telegram.main:666` (`Eve`) for `telegram.main/-100`",
        ]
        assert not any(code(post) in waiting for post in (person, room))
        assert f"`reverie ctl pair approve {names[0]}`" in waiting
        assert f"`reverie ctl room approve {names[1]}`" in waiting
        wrong = await it.shell("pair approve", code="AAAA-AAAA")
        assert (wrong.ok, wrong.answer.split(".")[0]) == (
            False,
            "I do not know the code or id `AAAA****`",
        )
        given = await it.shell("pair approve", code=code(person))
        assert (given.ok, given.answer.split(".")[0]) == (True, "Approved: `telegram")
        assert (await it.shell("pair approve", code=code(room))).ok
        assert not (await it.shell("pair approve", code=code(person))).ok
        assert (await it.shell("pair seed", who="discord.main:1")).ok
        assert not (await it.shell("pair seed", who="irc.libera:mask:a!b@c", role="owner")).ok
        assert not (await it.shell("pair seed", who="nobody")).ok
        assert (it.role(TG, EVE), it.role(DC, somebody("1"))) == ("member", "member")
        assert [one.room.conversation for one in it.roster.rooms] == ["telegram.main/-100"]
        said = [post.post.text[:17] for post in await it.store.undelivered_posts()]
        assert said[-2:] == ["You are approved.", "I may talk in thi"]


# Linking: two accounts are one person once each has submitted the code of the other

OPEN = replace(POLICY, dm_policy="open")
MIA = somebody("77", "mia")
ACCOUNT = somebody("account:eve", "eve")


async def test_both_ends_hand_in_the_code_of_the_other(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, MEMBER, "link start")
        assert "Give these codes to nobody" in first.answer
        second = await it.ask(DC, MIA, "link code", code=code(first).lower())
        assert "`telegram.main:3` (`n3`) with this account" in second.answer
        assert "(your role: guest)" in second.answer
        (letter,) = it.posted
        assert letter.post.to == alone(TG, MEMBER)
        assert letter.post.text.startswith("`discord.main:77` (`mia`) sent me your code")
        assert not it.roster.known.links
        last = await it.ask(TG, MEMBER, "link code", code=code(second))
        assert last.answer.startswith(
            "`discord.main:77` (`mia`) and you are now linked as one person"
        )
        assert it.role(DC, MIA) == "member"
        assert it.posted[1].post.to == alone(DC, MIA)
        assert (await it.ask(DC, MIA, "link list")).answer.endswith("- `telegram.main:3`")
        for used in (first, second):
            assert not (await it.ask(DC, MIA, "link code", code=code(used))).ok
    async with town(tmp_path, OPEN, clock=it.clock) as it:
        assert it.role(DC, MIA) == "member"


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path, OPEN) as made:
        yield made


async def test_who_is_talked_into_writing_one_code_links_nobody(it: Town) -> None:
    """Eve has an admin submit her code. He sees who she is, and the second code is shown to him
    alone."""
    first = await it.ask(TG, EVE, "link start")
    second = await it.ask(DC, ADMIN, "link code", code=code(first))
    assert "`telegram.main:666` (`Eve`) with this account" in second.answer
    assert "(your role: admin)" in second.answer
    assert "want to take over your rights. Stop here" in second.answer
    assert it.role(TG, EVE) == "guest"
    it.clock.advance(3_600)
    assert not (await it.ask(TG, EVE, "link code", code=code(second))).ok
    assert not await it.facts("identity_linked")


async def test_a_second_code_is_good_only_from_whom_it_is_about(it: Town) -> None:
    first = await it.ask(TG, MEMBER, "link start")
    second = await it.ask(DC, MIA, "link code", code=code(first))
    assert (await it.ask(TG, EVE, "link code", code=code(second))).answer.startswith(
        "I do not know this code"
    )
    own = await it.ask(DC, MIA, "link code", code=code(second))
    assert own.answer == "Send me that code from `telegram.main:3`, not from this one."
    assert not it.roster.known.links
    assert (await it.ask(TG, MEMBER, "link code", code=code(second))).ok


async def test_ones_own_code_is_handed_in_elsewhere(it: Town) -> None:
    first = await it.ask(TG, MEMBER, "link start")
    own = await it.ask(TG, MEMBER, "link code", code=code(first))
    assert own.answer == "Send me that code from your other account, not from this one."
    again = await it.ask(TG, MEMBER, "link start")
    assert not (await it.ask(DC, MIA, "link code", code=code(first))).ok
    assert (await it.ask(DC, MIA, "link code", code=code(again))).ok


async def test_a_stranger_hands_in_a_code_before_being_let_in(tmp_path: Path) -> None:
    """Where strangers are paired: somebody known elsewhere needs no admin."""
    async with town(tmp_path) as it:
        first = await it.ask(TG, MEMBER, "link start")
        wrong = await it.shown(it.command(DC, MIA, "link", args="AAAA-AAAA"))
        assert wrong.text.startswith("I do not know this code")
        second = await it.shown(it.command(DC, MIA, "link", args=f"code {code(first)}"))
        assert second.to == alone(DC, MIA)
        assert (await it.ask(TG, MEMBER, "link code", code=code(second))).ok
        assert it.role(DC, MIA) == "member"
        other = somebody("88")
        start = await it.shown(it.command(DC, other, "link", args="start"))
        assert "pair approve" in start.text
        told = [await it.hear(it.command(DC, EVE, "link", args="AAAA-AAAA")) for _ in range(7)]
        assert [one is not None for one in told] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("who", [MASK, replace(OWNER, verified=False)])
async def test_whom_nobody_vouches_for_is_not_linked(who: Sender, it: Town) -> None:
    first = await it.ask(TG, MEMBER, "link start")
    for line in ("link start", "link code"):
        answer = await it.ask(IRC, who, line, code=code(first))
        assert (answer.ok, answer.answer[:14]) == (False, "I cannot link ")
    assert (await it.ask(IRC, who, "link list")).ok


async def test_who_is_blocked_meanwhile_is_not_linked(it: Town) -> None:
    first = await it.ask(TG, EVE, "link start")
    second = await it.ask(DC, MIA, "link code", code=code(first))
    assert (await it.ask(TG, OWNER, "block", who="discord.main:77")).ok
    answer = await it.ask(TG, EVE, "link code", code=code(second))
    assert (answer.ok, answer.answer[:12]) == (False, "I do not kno")
    third = await it.ask(TG, EVE, "link start")
    assert (await it.ask(TG, OWNER, "block", who="666")).ok
    assert not (await it.ask(DC, ADMIN, "link code", code=code(third))).ok
    assert not it.roster.known.links


async def test_who_is_blocked_is_blocked_by_all_their_accounts(it: Town) -> None:
    await it.linked((TG, EVE), (DC, MIA))
    answer = await it.ask(TG, OWNER, "block", who="discord.main:77")
    assert "This also blocks their linked accounts: `telegram.main:666`." in answer.answer
    assert it.role(TG, EVE) == it.role(DC, MIA) == "blocked"


async def test_links_reach_on_and_nobody_has_too_many(it: Town) -> None:
    accounts = [somebody(f"account:a{number}") for number in range(MAX_LINKED_ACCOUNTS)]
    for one, other in itertools.pairwise(accounts):
        await it.linked((IRC, one), (IRC, other))
        it.clock.advance(1)
    assert len(it.roster.known.links["irc.libera:account:a0"]) == MAX_LINKED_ACCOUNTS - 1
    first = await it.ask(TG, MEMBER, "link start")
    answer = await it.ask(IRC, accounts[3], "link code", code=code(first))
    assert answer.answer == "A person can link at most 8 accounts."
    first = await it.ask(IRC, accounts[0], "link start")
    answer = await it.ask(IRC, accounts[-1], "link code", code=code(first))
    assert answer.answer == "These two accounts are already linked."


async def test_any_end_takes_a_link_back_at_once(it: Town) -> None:
    await it.linked((TG, MEMBER), (DC, MIA))
    await it.linked((DC, MIA), (IRC, somebody("account:mia")))
    assert it.role(IRC, somebody("account:mia")) == "member"
    answer = await it.ask(IRC, somebody("account:mia"), "link remove", account="telegram.main:3")
    assert answer.answer == "`telegram.main:3` is not linked any more, and has only its own roles."
    assert it.role(DC, MIA) == it.role(IRC, somebody("account:mia")) == "guest"
    assert it.roster.known.links["discord.main:77"] == {"irc.libera:account:mia"}
    assert (await it.ask(DC, MIA, "link remove", account="77")).ok
    assert not it.roster.known.links
    assert not (await it.ask(DC, MIA, "link remove", account="telegram.main:3")).ok


async def test_who_is_let_in_no_more_is_let_in_by_what_else_they_are(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.paired(DC, MIA)
        await it.linked((TG, MEMBER), (DC, MIA))
        answer = await it.ask(TG, OWNER, "pair revoke", who="discord.main:77")
        assert answer.answer.endswith(
            "Their role was member. Their roles as `telegram.main:3` stay."
        )
        assert it.role(DC, MIA) == "member"


async def test_one_takes_back_only_ones_own_links(it: Town) -> None:
    await it.linked((TG, MEMBER), (DC, MIA))
    for account in ("telegram.main:3", "666"):
        assert not (await it.ask(TG, EVE, "link remove", account=account)).ok
    assert it.roster.known.links


async def test_a_person_has_one_code_for_links_and_keeps_nobody_else_from_one(it: Town) -> None:
    people = [somebody(str(number)) for number in range(100, 130)]
    answers = [await it.ask(TG, one, "link start") for one in [*people, *people]]
    assert all(one.ok for one in answers)
    assert len(it.roster.pending_requests("link")) == len(people)
    it.clock.advance(3_600)
    assert (await it.ask(TG, somebody("300"), "link start")).ok
    assert len(await it.store.current_facts("code_given")) == 1


async def test_who_is_blocked_in_one_room_does_not_undo_it_by_taking_a_link_back(
    tmp_path: Path,
) -> None:
    boss = somebody("account:boss")
    async with town(tmp_path, replace(OPEN, roles={"irc.libera:account:boss": "admin"})) as it:
        await it.linked((TG, EVE), (IRC, ACCOUNT))
        answer = await it.ask(
            IRC, boss, "block", at=LOBBY, who="irc.libera:account:eve", where="here"
        )
        assert answer.answer.endswith("This also blocks 1 linked account.")
        assert it.role(IRC, ACCOUNT, LOBBY) == "blocked"
        for account in ("telegram.main:666", "irc.libera:account:eve"):
            answer = await it.ask(IRC, ACCOUNT, "link remove", account=account)
            assert (answer.ok, answer.answer[:37]) == (
                False,
                "One of these accounts is blocked. I c",
            )
        assert it.role(IRC, ACCOUNT, LOBBY) == "blocked"
        assert (
            await it.ask(IRC, boss, "unblock", at=LOBBY, who="irc.libera:account:eve", where="here")
        ).ok
        assert (await it.ask(IRC, ACCOUNT, "link remove", account="telegram.main:666")).ok


async def test_what_goes_with_an_account_between_is_told(it: Town) -> None:
    await it.linked((TG, EVE), (DC, MIA))
    await it.linked((DC, MIA), (IRC, ACCOUNT))
    answer = await it.ask(TG, EVE, "link remove", account="discord.main:77")
    assert answer.answer.endswith(
        "has only its own roles. This also unlinks `irc.libera:account:eve`."
    )
    assert not it.roster.known.links


async def test_nobody_is_answered_for_ever_about_codes(tmp_path: Path) -> None:
    """A stranger may submit anything, but each answer delays those of others."""
    async with town(tmp_path) as it:
        told = [
            await it.hear(it.command(IRC, MASK, "link", args=f"AAAA-AA{number:02}"))
            for number in range(9)
        ]
        assert [one is not None for one in told] == [True] + [False] * 8
        first = await it.ask(TG, MEMBER, "link start")
        said = [await it.ask(TG, MEMBER, "link code", code=code(first)) for _ in range(7)]
        assert [one.answer.partition(" ")[0] for one in said] == ["Send"] * 5 + ["Too"] * 2
