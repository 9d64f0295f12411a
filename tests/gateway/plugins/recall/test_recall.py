"""What is called to mind before a turn, on a real store and real files."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tokens.counter import estimate_tokens
from gateway.core.events import (
    Address,
)
from gateway.core.facts import ConversationRewound, Judgement, Seq, ViewFolded
from gateway.core.redaction import Redactor
from gateway.plugins.memory.memory_file import MemoryStore
from gateway.plugins.memory.search import quote_text
from gateway.plugins.recall import (
    DEADLINE_S,
    RECALL_HEADER,
    RECALL_HEADER_TOKENS,
    PrefetchSettings,
    RecallBuilder,
    RecallSettings,
)
from reverie.testing.channels import story
from tests.kits.journal import (
    ANN,
    NOTHING,
    OWN,
    OWNER,
    ROOM,
    STAFF,
    Papers,
    at,
    papers,
)
from tests.kits.store import NOW, turn


@pytest.fixture(autouse=True)
def _nothing_broke(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """What fails is silent, so also a bug would be."""
    caplog.set_level(logging.DEBUG, "reverie.recall")
    yield
    if "failure" not in request.node.name:
        assert "not all is recalled" not in caplog.text


async def told(
    kit: Papers, *lines: str, place: Address = OWNER, since: int | None = None, shown: str = ""
) -> list[str]:
    """Lines behind the header."""
    came = await kit.recalled(at(place), *lines, since=since, memory=shown)
    header, *found = came.text.split("\n")
    assert header == (RECALL_HEADER if found else "")
    assert len(found) == len(came.names)
    return found


async def ended(kit: Papers, place: Address = ROOM, *, days: float = 0, text: str) -> None:
    """The agent said it, so many days ago."""
    entry = turn(place.conversation, upto=9_999, text=text)
    await kit.store.append([replace(entry, at=NOW - timedelta(days=days))])


async def test_each_line_says_when_who_and_where(kit: Papers) -> None:
    await kit.say(1, "The harbour opens on Monday", ROOM, who="Ada")
    await ended(kit, text="So the harbour is open then")
    await kit.say(2, "Which harbour?", ANN, who="Ann")
    await ended(kit, ANN, text="ours")
    await kit.write_entry(at(ANN), "Boats", "Ann asks about the harbour")
    (kit.directory / "MEMORY.md").write_text("- nothing\n- The Harbour is Ada's\n")
    assert sorted(await told(kit, "What do you know of the HARBOUR?")) == [
        '[2026-03-04 05:06] Ada (guest), in irc.test/#room: "The harbour opens on Monday"',
        '[2026-03-04 05:06] you, in irc.test/#room: "So the harbour is open then"',
        '[2026-03-04 05:06] you, in irc.test/ann: "ours"',
        ('[2026-03-04 05:06] your journal (in irc.test/ann): "Boats: Ann asks about the harbour"'),
        '[MEMORY.md] "- The Harbour is Ada\'s"',
    ]
    assert await told(kit, "the harbour, please", place=STAFF) == [
        '[2026-03-04 05:06] you, in irc.test/#room: "So the harbour is open then"',
        '[2026-03-04 05:06] Ada (guest), in irc.test/#room: "The harbour opens on Monday"',
    ]


async def test_a_question_is_no_knowledge_and_its_answer_is(kit: Papers) -> None:
    await kit.say(1, "reverie: explain the harbour", ANN, who="Ann")
    await ended(kit, ANN, text="Ships stay there over night")
    await kit.say(2, "does anybody know the harbour?", ROOM, who="Ada")
    await kit.say(3, "reverie: explain the harbour", ANN, who="Ann", fate="refused")
    line = '[2026-03-04 05:06] you, in irc.test/ann: "Ships stay there over night"'
    assert await told(kit, "explain the harbour") == [line]


async def test_what_was_told_is_not_told_again(kit: Papers) -> None:
    await ended(kit, text="the harbour")
    await kit.remember(at(ROOM), "our harbour")
    (kit.directory / "MEMORY.md").write_text("- his harbour")
    with kit.journal.open("a") as journal:
        journal.write("\n## 2026-03-04 07:00\nher harbour\n")
    first = await kit.recalled(at(OWNER), "harbour")
    assert {name[:1] for name in first.names} == {"s", "j", "m"}
    assert len(set(first.names)) == len(first.names) == 4
    for number in range(4):
        rest = await kit.recalled(at(OWNER), "harbour", seen=first.names[number:])
        assert sorted(rest.names) == sorted(first.names[:number])
    assert await kit.recalled(at(OWNER), "harbour", seen=first.names) == NOTHING
    assert first == await kit.recalled(at(OWNER), "harbour"), "the same question, the same bytes"


async def test_what_is_in_view_or_is_the_news_is_not_called_to_papers(kit: Papers) -> None:
    await kit.say(1, "harbour one", ROOM)  # 1, judged 2
    await ended(kit, text="harbour two")  # 3
    await kit.say(2, "harbour three", ROOM)  # 4
    await kit.store.append([turn(ROOM.conversation, 4, text="harbour four")])  # 6
    await kit.say(3, "harbour five", ROOM)

    async def numbers(since: int | None, place: Address = ROOM) -> set[str]:
        return {
            line.rstrip('"').split()[-1]
            for line in await told(kit, "harbour", place=place, since=since)
        }

    assert await numbers(None) == {"one", "two", "three", "four"}, (
        "what is being answered was not said before"
    )
    assert await numbers(6) == {"one", "two"}, (
        "what a turn was told stands in front of where it ended"
    )
    assert await numbers(3) == {"one"}
    assert await numbers(0) == set()
    assert await numbers(0, STAFF) == {"one", "two", "three", "four"}, "only here is it in view"
    assert await numbers(None, OWN) == {"one", "two", "three", "four"}, (
        "what waits for an answer is no memory"
    )


async def test_what_was_said_elsewhere_comes_to_mind_at_once_and_no_line_twice(kit: Papers) -> None:
    await kit.say(1, "harbour one", ROOM)
    await kit.say(2, "Harbour ONE", ROOM)
    await ended(kit, text="harbour two")
    await kit.remember(at(ROOM), "harbour three")
    assert len(await told(kit, "harbour", place=STAFF)) == 3
    found = await told(kit, "harbour one", place=STAFF)
    assert {line.split('"')[1] for line in found} == {"harbour two", "harbour three"}, (
        "it was just said here"
    )


async def test_what_was_taken_back_is_as_if_it_had_not_been(kit: Papers) -> None:
    await ended(kit, text="harbour kept")
    await ended(kit, text="harbour taken back")
    await kit.append(ROOM, ConversationRewound(first=Seq(2), last=Seq(2), by="olga"))
    assert [line.split('"')[1] for line in await told(kit, "harbour")] == ["harbour kept"]
    found = await kit.recall(at(OWNER), "harbour")
    assert "kept" in found
    assert "taken" not in found


async def test_what_was_left_comes_to_mind_there_only_when_it_is_asked_for(kit: Papers) -> None:
    await kit.say(1, "harbour one")
    await ended(kit, text="harbour two")
    await kit.remember(at(ROOM), "harbour three")
    await kit.append(ROOM, ViewFolded(start=Seq(4), reason="asked", kinds=("new",)))
    await kit.say(2, "harbour four")
    await ended(kit, text="harbour five")
    await kit.append(ROOM, ViewFolded(start=Seq(9_999), reason="size", kinds=("drop",)))
    late = {"harbour three", "harbour four", "harbour five"}
    assert {line.split('"')[1] for line in await told(kit, "harbour", place=ROOM)} == late
    everything = late | {"harbour one", "harbour two"}
    assert {line.split('"')[1] for line in await told(kit, "harbour")} == everything, (
        "elsewhere nobody left it"
    )
    found = await kit.recall(at(ROOM), "harbour")
    assert {line.split('"')[1] for line in found.splitlines()[1:]} == everything


async def test_identifiers_are_looked_up_whole(kit: Papers) -> None:
    await ended(kit, text="look into src/store/plan.py for it")
    await ended(kit, text="the plan of the store is in the drawer")
    await ended(kit, text="src, store, plan: py")
    await ended(kit, text="ticket ABC-1234 is closed")
    for question, found in (
        ("and src/store/plan.py?", 2),
        ("is abc-1234 open", 1),
        ("(ABC-1234)", 1),
        ("abc-123", 0),
    ):
        assert len(await told(kit, question)) == found, question


async def test_the_rare_the_new_and_the_noted_come_first(kit: Papers) -> None:
    await ended(kit, days=400, text="harbour old")
    await ended(kit, days=30, text="harbour a month ago")
    await ended(kit, text="harbour new")
    lines = await told(kit, "harbour")
    assert [line.split('"')[1] for line in lines] == [
        "harbour new",
        "harbour a month ago",
        "harbour old",
    ]
    await ended(kit, days=400, text="harbour lighthouse")
    lines = await told(kit, "the harbour lighthouse")
    assert lines[0].endswith('"harbour lighthouse"'), "more of the words counts more than age"
    kit.clock.advance(1)
    await kit.remember(at(ROOM), "harbour noted")
    kit.clock.advance(20 * 86_400)
    await kit.say(1, "harbour said", ANN)
    await ended(kit, text="x")
    lines = await told(kit, "harbour")
    assert lines[0].endswith('"harbour noted"')


@pytest.mark.parametrize("tokens", [0, 10, 30, 40, 60, 100, 150, 400])
async def test_there_is_never_more_than_there_is_room_for(tokens: int, kit: Papers) -> None:
    for number in range(5):
        await ended(kit, text=f"{'x ' * 90} harbour {number} {'ü ' * 90}")
    config = RecallSettings(ambient_tokens=tokens)
    came = await kit.recalled(at(OWNER), "harbour", config=config)
    assert not came.text or estimate_tokens(came.text) <= tokens
    assert bool(came.text) == (tokens >= 40)
    assert all("harbour" in line for line in came.text.split("\n")[1:])
    if tokens == 150:
        assert len(came.names) >= 2


async def test_what_may_not_be_told_hides_nothing(kit: Papers) -> None:
    await kit.say(0, "so that it is known what kind of place it is")
    await ended(kit, text="the public harbour lighthouse")
    for number in range(150):
        await ended(kit, ANN if number % 2 else ROOM, text=f"harbour {number} lighthouse")
    filler = Judgement(type="x", urgency=0, fate="noted", rule="r", role="guest")
    await kit.append(STAFF, *[filler] * 6_500)
    lines = await told(kit, "the lighthouse in the harbour", place=ROOM, since=4)
    assert [line.split('"')[1] for line in lines] == ["the public harbour lighthouse"]


async def test_an_entry_that_somebody_writes_is_recalled_in_the_next_turn(kit: Papers) -> None:
    await kit.write_entry(at(ROOM), "", "the lake")
    assert await told(kit, "the lighthouse?", place=ROOM) == []
    with kit.journal.open("a") as file:
        file.write("\n## 2026-03-04 08:00 — Ada\nscope: public\nThe lighthouse is closed\n")
    line = '[2026-03-04 08:00] your journal (by hand): "Ada: The lighthouse is closed"'
    assert await told(kit, "the lighthouse?", place=ROOM) == [line]
    new = kit.journal.with_suffix(".tmp")  # as most editors write
    new.write_text(kit.journal.read_text().replace("closed", "opened"))
    os.replace(new, kit.journal)  # noqa: PTH105 - what is tested
    assert await told(kit, "the lighthouse?", place=ROOM) == [line.replace("closed", "opened")]
    kit.journal.unlink()
    assert await told(kit, "the lighthouse?", place=ROOM) == []


async def test_without_what_takes_too_long(kit: Papers) -> None:
    await ended(kit, text="the harbour")
    waiting = asyncio.Event()

    class SlowMemory(MemoryStore):
        async def read(self, agent: str) -> str:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError(agent)

    kit.memory.file = SlowMemory(kit.memory.context.gateway)
    asking = asyncio.create_task(kit.recalled(at(OWNER), "harbour"))
    await waiting.wait()
    kit.clock.advance(DEADLINE_S * 0.99)
    await asyncio.sleep(0)
    assert not asking.done()
    kit.clock.advance(DEADLINE_S)
    assert await asking == NOTHING


@story
async def test_a_failure_costs_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with papers(tmp_path) as kit:
        await ended(kit, text="the harbour")
    with caplog.at_level(logging.INFO, "reverie.recall"):
        for _ in range(3):
            assert await kit.recalled(at(OWNER), "harbour") == NOTHING
    assert len(caplog.records) == 1
    assert "harbour" not in caplog.text


def prefetching(*command: str, tokens: int = 1_000) -> RecallSettings:
    return RecallSettings(ambient_tokens=tokens, prefetch=PrefetchSettings(command=command))


async def test_what_the_command_says_comes_behind_what_was_found(
    monkeypatch: pytest.MonkeyPatch, kit: Papers
) -> None:
    monkeypatch.setattr("gateway.plugins.recall.PREFETCH_S", 10.0)
    await ended(kit, text="the harbour")
    said = "the ferry\\033[2J\\n\\nthe harbour\\n"
    config = prefetching("/bin/sh", "-c", f"printf '{said}'")
    came = await kit.recalled(at(OWNER), "harbour", config=config)
    assert came.text.split("\n")[1:] == [
        '[2026-03-04 05:06] you, in irc.test/#room: "the harbour"',
        '"the ferry[2J"',
    ]
    assert [name[:1] for name in came.names] == ["s", "p"]
    again = await kit.recalled(at(OWNER), "harbour", config=config, seen=came.names)
    assert again.text.split("\n")[1:] == ['"the harbour"'], "the command says it in its stead"
    unasked = await kit.recalled(at(ROOM), "none", is_addressed=False, config=config)
    assert unasked == NOTHING


async def test_the_command_gets_the_lines_none_of_our_secrets_and_no_shell(
    monkeypatch: pytest.MonkeyPatch, kit: Papers, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.plugins.recall.PREFETCH_S", 10.0)
    monkeypatch.setenv("REVERIE_TOKEN", "secret")
    marker = tmp_path / "x"
    script = "import os, sys; print(*sorted(os.environ), *sys.argv[1:]); print(input())"
    config = prefetching(sys.executable, "-c", script, f"$(touch {marker})")
    told = (await kit.recalled(at(ROOM), "harbour", config=config)).text.split("\n")
    assert {*told[1].strip('"').split()} - {"LC_CTYPE", "LANG"} <= {
        "HOME",
        "PATH",
        "$(touch",
        f"{marker})",
    }
    assert "'conversation': 'irc.test/#room', 'scope': 'public', 'lines': ['harbour']" in told[2]
    assert not marker.exists()


@pytest.mark.parametrize(
    "script",
    ["print('x'); raise SystemExit(3)", "print('x' * 65_537)", "import time; time.sleep(60)"],
)
async def test_a_command_that_fails_is_not_used(kit: Papers, script: str) -> None:
    config = prefetching(sys.executable, "-c", script)
    assert await kit.recalled(at(OWNER), "nothing", config=config) == NOTHING
    assert await kit.recalled(at(OWNER), "nothing", config=prefetching("/no/program")) == NOTHING


@given(st.lists(st.text(max_size=400), max_size=12), st.integers(0, 400))
def test_what_is_told_fits_and_each_piece_is_a_line(texts: list[str], tokens: int) -> None:
    telling = RecallBuilder(tokens, redactor=Redactor())
    room = [
        telling.add(f"p:{number}", text, partial(quote_text, text, ()))
        for number, text in enumerate(texts)
    ]
    told = telling.build()
    header, *lines = told.text.split("\n")
    assert len(lines) == len(told.names) <= sum(room)
    assert len(set(lines)) == len(lines)
    assert told == NOTHING or (header == RECALL_HEADER and estimate_tokens(told.text) <= tokens)
    assert tokens > RECALL_HEADER_TOKENS or not told.text
