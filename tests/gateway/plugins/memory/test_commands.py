"""`journal` and `memory`, on a real store and real files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.commands.context import CommandContext
from gateway.commands.dispatcher import rank_suggestions
from gateway.core.events import Address
from gateway.core.facts import NoteForgotten, PostQueued, Seq
from gateway.core.identity import Role
from gateway.core.redaction import Redactor
from gateway.plugins.memory import (
    DEFAULT_ENTRIES,
    MAX_MEMORY_CHARS,
    MAX_NOTE_CHARS,
    MAX_NOTES,
)
from gateway.plugins.memory.journal_file import parse_journal
from gateway.plugins.memory.memory_file import MAX_SHOWN_CHANGES
from tests.gateway.commands.commands_kit import Counter, typing
from tests.gateway.plugins.memory.test_dreams import dream, model
from tests.kits.commands import command_context
from tests.kits.journal import (
    ANN,
    BOB,
    OWN,
    OWNER,
    ROOM,
    STAFF,
    Papers,
    at,
    papers,
)
from tests.kits.tasks import LooseTasks

DIRECT = (ANN, BOB, OWNER)


@dataclass
class Kit:
    papers: Papers
    tasks: LooseTasks
    """Tasks started by commands."""

    @property
    def context(self) -> CommandContext:
        """Commands wired as in the gateway."""
        it = self.papers
        return command_context(
            it.store,
            it.clock,
            places=it.places,
            plugins=it.plugins,
        )

    def at(
        self, where: Address, role: Role = "admin", *, everywhere: Role | None = None
    ) -> Counter:
        it = self.papers
        return Counter(
            it.store, it.clock, self.context, where, role, everywhere, direct=where in DIRECT
        )

    async def told(self) -> list[tuple[str | None, str]]:
        """Return the follow-ups: id of the command, and the text."""
        found = [one.fact for one in await self.papers.store.entries(kinds=["post"])]
        return [(one.post.reply_to, one.post.text) for one in found if isinstance(one, PostQueued)]

    async def settled(self) -> None:
        """Return once all tasks have ended."""
        await asyncio.gather(*self.tasks.begun)

    async def forgotten(self) -> list[NoteForgotten]:
        found = await self.papers.store.entries(kinds=["forgotten"])
        return [one.fact for one in found if isinstance(one.fact, NoteForgotten)]

    async def newest(self) -> Seq:
        (one,) = await self.papers.store.newest_entries(1, kinds=["noted"])
        return one.seq


@asynccontextmanager
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    tasks, redactor = LooseTasks(), Redactor(["swordfish-pie-99"])
    async with papers(tmp_path, tasks=tasks, redactor=redactor) as it:
        for place in (*DIRECT, ROOM, STAFF):
            it.places.direct.put(place.conversation, place in DIRECT)
        made = Kit(it, tasks)
        yield made
        await made.settled()


async def everywhere(it: Kit) -> None:
    """Write one note in each place."""
    for number, place in enumerate((ROOM, ANN, BOB, OWNER, STAFF, OWN)):
        await it.papers.remember(at(place), f"note {number}")


async def seen(counter: Counter, said: str, **given: str) -> list[int]:
    """Return which of these notes an answer shows."""
    told = (await counter(said, **given)).answer
    return [number for number in range(6) if f"`note {number}`" in told]


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit(tmp_path) as made:
        yield made


async def test_each_is_told_what_may_be_told_there(it: Kit) -> None:
    await everywhere(it)
    for said, args in (("journal", {"n": "20"}), ("memory show", {})):
        assert await seen(it.at(ROOM), said, **args) == [0, 5]
        assert await seen(it.at(ROOM, "owner"), said, **args) == [0, 5]
        assert await seen(it.at(STAFF), said, **args) == [0, 4, 5]
        assert await seen(it.at(ANN, "guest"), said, **args) == [1]
        assert await seen(it.at(ANN, "member"), said, **args) == [1]
        assert await seen(it.at(ANN, "admin"), said, **args) == [0, 1, 5]
        assert await seen(it.at(OWNER, "owner"), said, **args) == [0, 1, 2, 3, 4, 5]
        assert await seen(it.at(OWNER, "owner", everywhere="member"), said, **args) == [0, 3, 5]


async def test_what_is_cut_shows_no_beginning_of_a_secret(it: Kit) -> None:
    await it.papers.write_entry(at(ROOM), "Key", "x" * (MAX_NOTE_CHARS - 20) + " swordfish-pie-99")
    await it.papers.remember(at(ROOM), "x" * (MAX_NOTE_CHARS - 15) + " swordfish-pie-99")
    for said in ("journal", "memory show"):
        assert "sword" not in await it.at(OWNER, "owner").says(said)


async def test_the_journal_is_told_the_newest_first_with_numbers(it: Kit) -> None:
    assert await it.at(ROOM).says("journal") == "My journal has nothing that I may show here."
    await it.papers.write_entry(at(ROOM), "Boats", "The harbour\nopens `@everyone`")
    await it.papers.remember(at(ANN), "Ulla was born in Zanzibar")
    first, last = await it.newest() - 1, await it.newest()
    assert (await it.at(OWNER, "owner").says("journal")).splitlines() == [
        f"- `n{last}` 2026-03-04 05:06 UTC, `irc.test/ann`, to keep: `Ulla was born in Zanzibar`",
        (
            f"- `n{first}` 2026-03-04 05:06 UTC, public: `Boats: The harbour opens "
            "\\u0060@everyone\\u0060`"
        ),
    ]
    assert await it.at(ANN, "guest").says("journal") == (
        f"- `n{last}` 2026-03-04 05:06 UTC, to keep: `Ulla was born in Zanzibar`"
    )


async def test_what_people_wrote_into_the_journal_is_told_as_far_as_it_may_be(it: Kit) -> None:
    await it.papers.write_entry(at(ROOM), "Boats", "The harbour opens")
    with it.papers.journal.open("a") as file:
        file.write(
            "\n## 2026-03-05 09:00 — Mine\nscope: public\n\nby hand\n\n## 2026-03-05 10:00\n\nfor "
            "me alone\n"
        )
    room = (await it.at(ROOM).says("journal")).splitlines()
    assert room[0] == "- 2026-03-05 09:00 UTC, public, by hand: `Mine: by hand`"
    assert len(room) == 2
    owner = (await it.at(OWNER, "owner").says("journal")).splitlines()
    assert owner[0] == "- 2026-03-05 10:00 UTC, for the owner, by hand: `for me alone`"
    it.papers.journal.unlink()
    it.papers.journal.mkdir()
    assert len((await it.at(ROOM).says("journal")).splitlines()) == 1


async def test_so_many_are_told_as_are_asked_for(it: Kit) -> None:
    for number in range(MAX_NOTES + 2):
        await it.papers.write_entry(at(ROOM), "", f"entry {number}")
        await it.papers.write_entry(at(BOB), "", "hidden")
    assert len((await it.at(ROOM).says("journal")).splitlines()) == DEFAULT_ENTRIES
    assert len((await it.at(ROOM).says("journal", n=str(MAX_NOTES))).splitlines()) == MAX_NOTES
    assert (await it.at(ROOM).says("journal", n="1")).endswith(f": `entry {MAX_NOTES + 1}`")


async def test_what_is_made_of_all_places_is_shown_to_an_owner_alone(it: Kit) -> None:
    assert await it.at(OWNER, "owner").says("memory show") == (
        "I keep no notes that I may show here."
    )
    await it.papers.remember(at(BOB), "harbour")
    await it.papers.write_entry(at(BOB), "", "an entry is not for good")
    await dream(it.papers, model("- Bob: harbour\n```\n# not mine"))
    told = (await it.at(OWNER, "owner").says("memory show")).splitlines()
    assert told[:6] == [
        "Last dream, 2026-03-04 05:06 UTC:",
        "```",
        "+ Bob: harbour",
        "+ \\u0060\\u0060\\u0060",
        "+ # not mine",
        "```",
    ]
    told = told[6:]
    assert told[:5] == [
        "MEMORY.md:",
        "```",
        "- Bob: harbour",
        "\\u0060\\u0060\\u0060",
        "# not mine",
    ]
    assert told[5:7] == ["```", "Notes that I keep, the newest first:"]
    assert len(told) == 8
    for counter in (
        it.at(OWNER, "owner", everywhere="admin"),
        it.at(ROOM, "owner"),
        it.at(ANN, "admin"),
    ):
        assert "Bob" not in await counter.says("memory show")


async def test_in_the_morning_an_owner_is_shown_what_the_last_dream_changed(it: Kit) -> None:
    """What came and what went, bounded; nobody else is, and nothing that has gone since."""
    memory, owner = it.papers.directory / "MEMORY.md", it.at(OWNER, "owner")
    await it.papers.remember(at(BOB), "harbour")
    await dream(it.papers, model("- Bob: harbour\n- Ann: tea"))
    await it.papers.remember(at(ANN), "coffee now")
    it.papers.clock.advance(18 * 3_600)
    await dream(it.papers, model("- Bob: harbour\n- Ann: coffee"))
    change = ["Last dream, 2026-03-04 23:06 UTC:", "```", "- Ann: tea", "+ Ann: coffee", "```"]
    assert (await owner.says("memory show")).splitlines()[:5] == change
    for counter in (it.at(ROOM, "owner"), it.at(ANN, "admin"), it.at(BOB, "guest")):
        assert "Last dream" not in await counter.says("memory show")
    assert await it.papers.memory.file.approve("reverie", await it.newest(), "by hand") == ""
    assert (await owner.says("memory show")).splitlines()[:5] == change  # that was no dream
    memory.write_text("- Bob: harbour\n")
    assert (await owner.says("memory show")).splitlines()[2:4] == ["- Ann: tea", "```"]
    await owner("memory forget", note=f"n{await it.newest()}")  # who knows of what that was part
    assert (await owner.says("memory show")).splitlines()[2:4] == ["(and 1 more lines)", "```"]
    await it.papers.remember(at(ANN), "much")
    await dream(it.papers, model("\n".join(f"- line {number}" for number in range(20))))
    told = (await owner.says("memory show")).splitlines()
    assert told[2 : 2 + MAX_SHOWN_CHANGES + 2] == [
        *(f"+ line {number}" for number in range(MAX_SHOWN_CHANGES)),
        "(and 9 more lines)",
        "```",
    ]


async def test_a_long_memory_is_cut_and_one_that_cannot_be_read_is_said_to_be_so(it: Kit) -> None:
    memory = it.papers.directory / "MEMORY.md"
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory.write_text("- a line\n" * 2_000)
    told = await it.at(OWNER, "owner").says("memory show")
    assert len(told) < MAX_MEMORY_CHARS + 100
    assert told.splitlines()[-3:-1] == ["- a line", "```"]
    assert told.endswith(" more characters)")
    memory.unlink()
    memory.mkdir()
    assert (
        await it.at(OWNER, "owner").says("memory show")
        == "I cannot read MEMORY.md; my log says why."
    )


async def test_a_note_is_forgotten_everywhere_and_after_a_restart(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        await it.papers.remember(at(ROOM), "harbour")
        harbour = await it.newest()
        await it.papers.remember(at(ROOM), "lighthouse")
        await dream(it.papers, model("- harbour\n- lighthouse"))
        answer = await it.at(ROOM)("memory forget", note=f" `N{harbour}`")
        assert answer.ok
        assert answer.answer == (
            f"I forgot note `n{harbour}`. If MEMORY.md contains something from it, the next dream "
            "removes that."
        )
        await it.settled()
        (fact,) = await it.forgotten()
        assert (fact.agent, fact.note, fact.by, fact.turn) == (
            "reverie",
            harbour,
            "irc.test:root (admin)",
            None,
        )
        assert await it.told() == []
        assert [entry.text for entry in parse_journal(it.papers.journal.read_text())] == [
            "lighthouse"
        ]
        assert (it.papers.directory / "MEMORY.md").read_text() == "- lighthouse\n"
        again = await it.at(ROOM)("memory forget", note=f"n{harbour}")
        assert (again.ok, again.answer) == (
            False,
            f"There is no note `n{harbour}` that I may show here.",
        )
    async with kit(tmp_path) as it:
        assert "harbour" not in await it.at(OWNER, "owner").says("journal")
        assert "lighthouse" in await it.at(OWNER, "owner").says("memory show")


async def test_what_was_written_and_did_not_follow_follows_after_the_crash(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        await it.papers.remember(at(ROOM), "harbour")
        await it.at(ROOM)("memory forget", note=f"n{await it.newest()}")
        for task in it.tasks.begun:  # the process ends before it has begun
            task.cancel()
        await asyncio.gather(*it.tasks.begun, return_exceptions=True)
        it.tasks.begun.clear()
        assert "harbour" in it.papers.journal.read_text()
    async with kit(tmp_path) as it:
        assert "harbour" not in it.papers.journal.read_text()


async def test_a_disk_that_refuses_is_told_of_and_followed_up(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        await it.papers.remember(at(ROOM), "harbour")
        text, note = it.papers.journal.read_text(), f"n{await it.newest()}"
        it.papers.journal.unlink()
        it.papers.journal.mkdir()
        await it.at(ROOM)("memory forget", note=note)
        await it.settled()
        (given,) = await it.papers.store.entries(kinds=["command"])
        words = f"I could not write my files. Note `{note}` leaves them at my next start."
        assert await it.told() == [("c1", words)]
        (post,) = await it.papers.store.entries(kinds=["post"])
        assert post.cause == given.seq
        assert "harbour" not in await it.at(ROOM).says("memory show")
    it.papers.journal.rmdir()
    it.papers.journal.write_text(text)
    async with kit(tmp_path) as it:
        assert it.papers.journal.read_text() == ""


async def test_two_at_once_forget_it_once(it: Kit) -> None:
    """Repeated by the platform, and given by two people."""
    await it.papers.remember(at(ROOM), "harbour")
    note = {"note": f"n{await it.newest()}"}
    await asyncio.gather(
        *(it.at(ROOM).give("memory forget", note, id=name) for name in ("c1", "c1", "c2"))
    )
    await it.settled()
    assert len(await it.forgotten()) == 1
    assert len(it.tasks.begun) == 2


async def test_a_direct_chat_is_private_whatever_was_heard_there_before(it: Kit) -> None:
    await everywhere(it)
    it.papers.places.direct.put(ANN.conversation, False)
    assert await seen(it.at(ANN, "guest"), "journal", n="20") == [1]


async def test_what_cannot_be_written_is_not_forgotten(it: Kit) -> None:
    await it.papers.remember(at(ROOM), "harbour")
    await it.at(ROOM).give("memory forget", {"note": f"n{await it.newest()}"}, kept=False)
    assert "harbour" in await it.at(ROOM).says("memory show")
    assert it.tasks.begun == []


async def test_who_may_have_what_forgotten(it: Kit) -> None:
    await everywhere(it)
    numbers = [one.seq for one in await it.papers.store.newest_entries(6, kinds=["noted"])]

    async def may(counter: Counter) -> list[int]:
        answers = [
            await counter.give("memory forget", {"note": f"n{seq}"}, kept=False) for seq in numbers
        ]
        return [number for number, answer in enumerate(answers) if answer.ok]

    assert await may(it.at(ROOM)) == [0, 5]
    assert await may(it.at(ROOM, "admin", everywhere="guest")) == [0]  # an admin of this room alone
    assert await may(it.at(STAFF, "admin", everywhere="guest")) == [4]
    assert await may(it.at(ANN, "guest")) == [1]
    assert await may(it.at(ANN, "admin", everywhere="guest")) == [1]
    assert await may(it.at(ANN, "admin")) == [0, 1, 5]
    assert await may(it.at(OWNER, "owner")) == [0, 1, 2, 3, 4, 5]
    assert await it.forgotten() == []


async def test_nobody_has_a_line_taken_out_of_the_memory_by_writing_it_down_first(it: Kit) -> None:
    memory = it.papers.directory / "MEMORY.md"
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory.write_text("- The safe is green\n")
    await it.papers.remember(at(ANN), "The safe is green")
    await it.at(ANN, "guest")("memory forget", note=f"n{await it.newest()}")
    await it.settled()
    assert memory.read_text() == "- The safe is green\n"
    await it.papers.remember(at(ANN), "The safe is green")
    await it.at(OWNER, "owner")("memory forget", note=f"n{await it.newest()}")
    await it.settled()
    assert memory.read_text() == ""


async def test_what_names_no_note_is_said_to_name_none(it: Kit) -> None:
    await it.papers.say(1, "hello")
    for wrong in ("harbour", "12", "m1", "n", "n1x", "n" + "1" * 19, "`@everyone"):
        answer = await it.at(ROOM)("memory forget", note=wrong)
        assert (answer.ok, answer.answer[:26]) == (False, "Write the number of a note")
    for nothing in ("n1", "n999999999999999999", "n0"):
        answer = await it.at(ROOM)("memory forget", note=nothing)
        assert (answer.ok, answer.answer) == (
            False,
            f"There is no note `{nothing}` that I may show here.",
        )


async def test_another_agents_notes_are_not_told(it: Kit) -> None:
    await it.papers.remember(at(ROOM, agent="bob"), "harbour")
    assert "harbour" not in await it.at(OWNER, "owner").says("journal")
    assert not (await it.at(OWNER, "owner")("memory forget", note=f"n{await it.newest()}")).ok


async def test_those_of_that_place_are_suggested(it: Kit) -> None:
    await everywhere(it)
    await it.papers.remember(at(ROOM), "harbour")
    await it.papers.remember(at(ROOM, agent="bob"), "harbour")
    first, *_, last, _ = [
        one.seq for one in await it.papers.store.newest_entries(9, kinds=["noted"])
    ]
    typed = typing(ROOM, "memory", "forget", "note")
    assert await it.papers.memory.suggest_notes(typed) == [f"n{last}", f"n{first}"]
    await it.at(ROOM)("memory forget", note=f"n{last}")
    assert await it.papers.memory.suggest_notes(typed) == [f"n{first}"]
    assert rank_suggestions(await it.papers.memory.suggest_notes(typed), "x") == []
