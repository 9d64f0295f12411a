"""`forget`: who may have what forgotten, and that nothing tells of it any more, also after a crash."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.journal import parse_journal
from gateway.context.journal import NO_MATCH, NOT_ALLOWED
from gateway.context.search import NOTHING_FOUND
from gateway.core.clock import ManualClock
from gateway.core.events import Address, SenderId
from gateway.core.facts import NoteForgotten, NoteWritten, Seq
from gateway.core.tool import Requester, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import Store
from gateway.store.rebuild import rebuild
from tests.gateway.context.test_dream import dream, model, told
from tests.kits.channels import story
from tests.kits.journal import ANN, BOB, OWN, OWNER, ROOM, STAFF, Papers, at, papers


def by(place: Address, *roles: str, everything: bool | None = None) -> ToolContext:
    """A turn there that people with these roles asked for."""
    askers = tuple(Requester(id=SenderId(role), name=role.title(), role=role, verified=True) for role in roles)
    return replace(at(place, everything=everything), requesters=askers)


async def forget(kit: Papers, what: str, where: ToolContext) -> str:
    given = await kit.forgetting.forget(what, where)
    if isinstance(given, ToolOutput):
        assert given.is_untrusted
        return given.text
    return given


async def forgotten(kit: Papers) -> list[NoteForgotten]:
    return [one.fact for one in await kit.store.entries(kinds=["forgotten"]) if isinstance(one.fact, NoteForgotten)]


async def newest(kit: Papers) -> Seq:
    (one,) = await kit.store.newest_entries(1, kinds=["noted"])
    return one.seq


async def recalled(kit: Papers, words: str, place: Address = OWNER) -> list[str]:
    lines = (await kit.recall(at(place), words)).splitlines()
    return [] if lines == [NOTHING_FOUND] else lines[1:]


async def comes_to_mind(kit: Papers, line: str, place: Address = OWNER) -> str:
    found = await kit.recalling(at(place), [line], known_names=(), since=None, tokens=500, is_addressed=False)
    return found.text


@story
async def test_the_one_that_is_meant_is_told_by_nothing_any_more(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(at(ROOM), "Boats", "The harbour opens on Monday")
        await kit.notes.remember(at(ROOM), "Zanzibar is where Ulla was born")
        assert len(await recalled(kit, "zanzibar")) == 1
        assert "Zanzibar" in await comes_to_mind(kit, "What of Zanzibar?")
        assert (await forget(kit, "ULLA zanzib", by(OWNER, "owner"))).startswith("It is forgotten.")
        assert await recalled(kit, "zanzibar") == []
        assert "Zanzibar" not in await comes_to_mind(kit, "What of Zanzibar?")
        assert await kit.store.newest_entries(10, match="zanzibar") == []
        assert (await kit.store.find_word_uses(["zanzibar"], newest=10, notes_after=0)).positions == [[]]
        (fact,) = await forgotten(kit)
        assert (fact.agent, fact.by, fact.turn) == ("reverie", "Owner (owner)", "t")
        journal = kit.journal.read_text()
        assert "Zanzibar" not in journal
        assert [entry.title for entry in parse_journal(journal)] == ["Boats"]
        assert [one.text for one in await kit.noted() if "Zanzibar" in one.text]  # the log keeps it
        thinks = model("- boats")
        await dream(kit, thinks)
        assert "Zanzibar" not in told(thinks.requests[0])


@story
async def test_of_several_the_one_with_the_handle_is_forgotten(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        for text in ("harbour one", "harbour two", "harbour three"):
            await kit.notes.remember(at(ROOM), text)
        asked = (await forget(kit, "harbour", by(OWNER, "owner"))).split("\n")
        assert asked[0].startswith("Several are like that. Nothing is forgotten yet")
        assert [line.split()[0] for line in asked[1:]] == ["n3", "n2", "n1"]
        assert await forgotten(kit) == []
        await forget(kit, "`N2`", by(OWNER, "owner"))
        assert [line.split('"')[1] for line in await recalled(kit, "harbour")] == ["harbour three", "harbour one"]
        with pytest.raises(ToolCallRefused, match="nothing like that"):
            await forget(kit, "n2", by(OWNER, "owner"))
        assert len(await forgotten(kit)) == 1


@pytest.mark.parametrize("what", ["n99", "n", "n0", "lighthouse", "!!!", "m1", "n" + "9" * 18])
def test_what_is_not_there_is_not_forgotten(tmp_path: Path, what: str) -> None:
    @story
    async def run() -> None:
        async with papers(tmp_path) as kit:
            await kit.say(1, "harbour")
            await kit.notes.remember(at(ROOM, agent="peer"), "lighthouse")
            with pytest.raises(ToolCallRefused) as refused:
                await forget(kit, what, by(OWNER, "owner"))
            assert str(refused.value) == NO_MATCH

    run()


@story
async def test_anybody_can_have_forgotten_what_was_written_down_alone_with_them(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.say(1, "hello", ANN)
        await kit.say(2, "hello", ROOM)
        await kit.notes.remember(at(ANN), "Ann's harbour")
        await kit.notes.remember(at(ROOM), "the harbour of all")
        assert (await forget(kit, "harbour", by(ANN, "guest"))).startswith("It is forgotten.")
        assert [line.split('"')[1] for line in await recalled(kit, "harbour")] == ["the harbour of all"]
        with pytest.raises(ToolCallRefused) as refused:
            await forget(kit, "harbour", by(ANN, "guest"))
        assert str(refused.value) == NOT_ALLOWED


@pytest.mark.parametrize("place", [BOB, STAFF, OWNER])
def test_what_is_of_another_private_place_is_not_even_there(tmp_path: Path, place: Address) -> None:
    @story
    async def run() -> None:
        async with papers(tmp_path) as kit:
            await kit.say(1, "hello", ANN)
            await kit.notes.remember(at(place), "harbour")
            for where in (by(ANN, "guest"), by(ANN, "admin"), by(ROOM, "admin"), by(ROOM, "owner")):
                for what in ("harbour", f"n{await newest(kit)}"):
                    with pytest.raises(ToolCallRefused) as refused:
                        await forget(kit, what, where)
                    assert str(refused.value) == NO_MATCH

    run()


@pytest.mark.parametrize(
    ("where", "allowed"),
    [
        (by(ROOM, "guest"), False),
        (by(ROOM, "member"), False),
        (by(ROOM), False),
        (by(ROOM, "admin", "guest"), False),
        (by(STAFF, "member"), False),
        (by(OWN), False),
        (by(ROOM, "admin"), True),
        (by(ROOM, "admin", "owner"), True),
        (by(STAFF, "admin"), True),
    ],
)
def test_elsewhere_only_admins_can(tmp_path: Path, where: ToolContext, *, allowed: bool) -> None:
    @story
    async def run() -> None:
        async with papers(tmp_path) as kit:
            await kit.say(1, "hello", ROOM)
            await kit.notes.remember(at(ROOM), "harbour")
            if allowed:
                await forget(kit, "harbour", where)
            else:
                with pytest.raises(ToolCallRefused) as refused:
                    await forget(kit, "harbour", where)
                assert str(refused.value) == NOT_ALLOWED
            assert len(await forgotten(kit)) == allowed

    run()


@story
async def test_what_people_wrote_into_the_journal_stays(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.write_entry(at(ANN), "One", "first")
        await kit.notes.write_entry(at(ROOM), "Two", "second")
        await kit.notes.write_entry(at(ROOM), "Three", "third")
        text = kit.journal.read_text().replace("first", "first, as I said")
        by_hand = "\n## 2026-03-04 09:00 — Mine\nscope: public\n\nby hand: second\n"
        one, mark, rest = text.partition("\n## 2026-03-04 05:06:07Z — Two")
        three = rest[rest.index("\n## 2026-03-04 05:06:07Z — Three") :]
        kit.journal.write_text(f"# Journal\n{one}\nMy own thoughts of it.\n{by_hand}{mark}{rest}")
        await forget(kit, "Two second", by(OWNER, "owner"))
        assert kit.journal.read_text() == f"# Journal\n{one}\nMy own thoughts of it.\n{by_hand}{three}"
        await forget(kit, "One first", by(OWNER, "owner"))
        mine = [entry for entry in parse_journal(kit.journal.read_text()) if not entry.note_id]
        assert [(entry.title, entry.text, entry.scope) for entry in mine] == [
            ("", "My own thoughts of it.", ANN.conversation),
            ("Mine", "by hand: second", "public"),
        ]


@story
async def test_a_dream_loses_the_line_or_is_told_to_leave_it_out(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        memory = kit.directory / "MEMORY.md"
        await kit.notes.remember(at(ROOM), "Ulla was born in Zanzibar.")
        await kit.notes.remember(at(ROOM), "The harbour opens on Monday.")
        await dream(kit, model("- Ulla was born in Zanzibar.\n- Harbour: Mondays"))
        await forget(kit, "Zanzibar", by(OWNER, "owner"))
        assert memory.read_text() == "- Harbour: Mondays\n"
        await forget(kit, "harbour opens", by(OWNER, "owner"))
        assert memory.read_text() == "- Harbour: Mondays\n"
        assert kit.notes.material_tokens("reverie") > 0
        thinks = model("- nothing")
        came = await dream(kit, thinks)
        assert came.outcome == "dreamt"
        text = told(thinks.requests[0])
        assert "(to be forgotten: MEMORY.md must say nothing of it any more; public; from the words of" in text
        assert ")\n  The harbour opens" in text
        assert (await dream(kit, model("x"))).outcome == "unchanged"
        assert kit.notes.material_tokens("reverie") == 0


@story
async def test_nobody_has_a_line_taken_out_that_was_there_before_what_they_said(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.say(1, "hello", ANN)
        memory = kit.directory / "MEMORY.md"
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text("- The safe is green\n")
        await kit.notes.remember(at(ANN), "The safe is green")
        await forget(kit, "safe", by(ANN, "guest"))
        assert memory.read_text() == "- The safe is green\n"
        await kit.notes.remember(at(ANN), "The safe is green!")
        await dream(kit, model("- The safe is green"))
        await forget(kit, "safe", by(ANN, "guest"))
        assert memory.read_text() == "- The safe is green\n"
        await kit.notes.remember(at(OWNER), "the safe is green")
        await forget(kit, "safe", by(OWNER, "owner"))
        assert memory.read_text() == ""


@story
async def test_a_start_takes_out_of_the_files_what_a_crash_left_there(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "harbour")
        await kit.notes.remember(at(ROOM), "lighthouse")
        await dream(kit, model("- harbour\n- lighthouse"))
        before, memory = kit.journal.read_text(), (kit.directory / "MEMORY.md").read_text()
        await forget(kit, "harbour", by(OWNER, "owner"))
    kit.journal.write_text(before)
    (kit.directory / "MEMORY.md").write_text(memory)
    async with papers(tmp_path) as kit:  # what somebody restores stays
        assert kit.journal.read_text() == before
    (tmp_path / "mind" / "reverie" / "forgotten.mark").unlink()
    async with papers(tmp_path) as kit:
        assert "harbour" not in kit.journal.read_text()
        assert (kit.directory / "MEMORY.md").read_text() == "- lighthouse\n"
        assert await recalled(kit, "harbour") == []


@story
async def test_a_disk_that_refuses_is_told_of_and_followed_up(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "harbour")
        text = kit.journal.read_text()
        kit.journal.unlink()
        kit.journal.mkdir()
        assert "follow at the next start" in await forget(kit, "harbour", by(OWNER, "owner"))
        assert await recalled(kit, "harbour") == []
    kit.journal.rmdir()
    kit.journal.write_text(text)
    async with papers(tmp_path) as kit:
        assert kit.journal.read_text() == ""


@story
async def test_a_start_writes_nothing_that_is_forgotten_into_the_journal(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "lake")
        kit.journal.rename(tmp_path / "kept")
        kit.journal.mkdir()
        await kit.notes.remember(at(ROOM), "harbour")
        await kit.notes.remember(at(ROOM), "lighthouse")
        await forget(kit, "harbour", by(OWNER, "owner"))
    kit.journal.rmdir()
    (tmp_path / "kept").rename(kit.journal)
    async with papers(tmp_path) as kit:
        assert [entry.text for entry in parse_journal(kit.journal.read_text())] == ["lake", "lighthouse"]


@story
async def test_cut_off_it_is_forgotten_all_the_same_or_not_at_all(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "harbour")
        for steps in range(200):
            doing = asyncio.create_task(forget(kit, "harbour", by(OWNER, "owner")))
            for _ in range(steps):
                await asyncio.sleep(0)
            doing.cancel()
            await asyncio.wait([doing])
            gone = len(await forgotten(kit)) == 1
            assert ("harbour" in kit.journal.read_text()) is not gone
            if gone:
                return
        raise AssertionError("never forgotten")


@story
async def test_the_tables_made_anew_agree(tmp_path: Path) -> None:
    async with papers(tmp_path) as kit:
        await kit.notes.remember(at(ROOM), "harbour")
        await kit.notes.remember(at(ROOM), "lighthouse")
        await forget(kit, "harbour", by(OWNER, "owner"))
    assert await rebuild(tmp_path / "s.db") == []
    async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
        found = await store.newest_entries(10, kinds=["noted"], match="harbour OR lighthouse")
        assert [one.fact.text for one in found if isinstance(one.fact, NoteWritten)] == ["lighthouse"]
