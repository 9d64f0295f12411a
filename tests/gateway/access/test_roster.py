"""The roster is the same from the log and from appended entries; pairing from the command line."""

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.roster import RequestKind, Roster
from gateway.access.texts import sort_pair
from gateway.core.clock import ManualClock
from gateway.core.events import Address
from gateway.core.facts import CodeEnded, CodeIssued, Fact, IdentityLinked, RoleAssigned, RoomAccessChanged
from gateway.core.identity import ROLE_ORDER
from gateway.store import LogEntry, NewEntry, Store
from tests.kits.access import DC, EVE, OWNER, TG, code, somebody, story, town
from tests.kits.examples import examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
people = st.sampled_from([f"{TG}:{number}" for number in range(4)] + [f"{DC}:{number}" for number in range(4)])
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
    .map(lambda link: (*sort_pair(link[0], link[1]), link[2]))
    .map(lambda link: IdentityLinked(one=link[0], other=link[1], joined=link[2], by="")),
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
def test_the_log_gives_the_same_picture_as_what_was_written(batches: list[list[Fact]]) -> None:
    async def telling() -> None:
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

    asyncio.run(telling())


@story
async def test_it_is_the_same_object_until_something_changes(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        known = it.roster.known
        await it.hear(it.message(TG, EVE))
        assert it.roster.known is known
        await it.ask(TG, OWNER, "block", who="666")
        assert it.roster.known is not known


@story
async def test_what_is_told_again_changes_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        event = it.command(TG, OWNER, "pair approve")
        change = (await it.decided(event, "pair approve", code=code(post))).effect
        await it.settled(event, change)
        await it.ask(TG, OWNER, "role clear", who="666")
        await it.settled(event, change)
        assert it.role(TG, EVE) == "guest"
        assert len(it.posted) == 1


@story
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

        late = Roster(Slow(), it.clock)
        it.store.subscribe(late.on_appended)
        await late.load()
        assert late.known == it.roster.known
        assert list(late.known.grants) == ["telegram.main:668"]


@story
async def test_from_the_shell_people_and_rooms_are_let_in(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        person = await it.hear(it.message(TG, EVE))
        room = await it.hear(it.message(TG, EVE, Address.parse(f"{TG}/-100")))
        assert person is not None
        assert room is not None
        names = [one.request for one in await it.facts("code_given") if isinstance(one, CodeIssued)]
        waiting = (await it.shell("pair list")).text
        assert [line.split(", since")[0] for line in waiting.splitlines() if ", since" in line] == [
            f"- `{names[0]}`: `telegram.main:666` (`Eve`)",
            f"- `{names[1]}`: `telegram.main:666` (`Eve`) for `telegram.main/-100`",
        ]
        assert not any(code(post) in waiting for post in (person, room))
        assert f"`reverie ctl pair approve {names[0]}`" in waiting
        assert f"`reverie ctl room approve {names[1]}`" in waiting
        wrong = await it.shell("pair approve", code="AAAA-AAAA")
        assert (wrong.ok, wrong.text.split(".")[0]) == (False, "No code or id like `AAAA****` is waiting")
        given = await it.shell("pair approve", code=code(person))
        assert (given.ok, given.text.split(".")[0]) == (True, "Let in: `telegram")
        assert (await it.shell("pair approve", code=code(room))).ok
        assert not (await it.shell("pair approve", code=code(person))).ok
        assert (await it.shell("pair seed", who="discord.main:1")).ok
        assert not (await it.shell("pair seed", who="irc.libera:mask:a!b@c", role="owner")).ok
        assert not (await it.shell("pair seed", who="nobody")).ok
        assert (it.role(TG, EVE), it.role(DC, somebody("1"))) == ("member", "member")
        assert [one.conversation for one in it.roster.approved_rooms(TG)] == ["telegram.main/-100"]
        said = [post.post.text[:15] for post in await it.store.undelivered_posts()]
        assert said[-2:] == ["You are let in:", "This room is op"]


@story
async def test_what_the_shell_decides_a_running_gateway_knows_at_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        assert (await it.shell("pair approve", code=code(post))).ok
        assert it.role(TG, EVE) == "member"
        assert [letter.post.to for letter in it.posted] == [post.to]
        assert (await it.shell("pair revoke", who="telegram.main:666")).ok
        assert it.role(TG, EVE) == "guest"
        assert not (await it.shell("pair revoke", who="telegram.main:666")).ok
        await it.hear(it.message(DC, EVE))
        (request,) = it.roster.pending_requests("pair")
        assert (await it.shell("pair revoke", who=request.request.upper())).ok
        assert not it.roster.pending_requests("pair")
