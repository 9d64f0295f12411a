"""`reverie memory`, as a person runs it, beside a running gateway and without one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.context.dream import DreamResult
from gateway.context.memory import load_dreams
from gateway.store import Store
from tests.gateway.context.test_dream import dream, model
from tests.kits.journal import ROOM, Papers, at, papers
from tests.kits.store import run

CONFIG = """
channels: {console: {platform: console, rooms: [lobby]}}
agents: [{id: reverie, bindings: [{match: {room: lobby}}]}, {id: echo, workspace: ./echo}]
llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}
store: {path: s.db}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(CONFIG)
    (tmp_path / "echo").mkdir()
    return tmp_path


@contextlib.asynccontextmanager
async def gateway(config: Path) -> AsyncIterator[Papers]:
    async with papers(config) as kit:
        yield kit


def run_dreams(config: Path, *texts: str) -> list[DreamResult]:
    """Each time that it dreamt, and the gateway stopped."""

    async def story() -> list[DreamResult]:
        async with gateway(config) as kit:
            came = []
            for text in texts:
                await kit.notes.remember(at(ROOM), text)
                came.append(await dream(kit, model(f"- {text}")))
            return came

    return run(story())


def memory(config: Path, *words: str) -> int:
    return main(["memory", words[0], "--config", str(config), *words[1:]])


def file(config: Path) -> Path:
    return config / "mind" / "reverie" / "MEMORY.md"


def test_show_and_diff_only_read(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dreams(config, "one", "two\x1b[2J")
    before = {path: path.read_bytes() for path in config.rglob("MEMORY*")}
    assert memory(config, "show") == 0
    assert capsys.readouterr().out == f"({file(config)})\n\n- two[2J\n"
    assert memory(config, "diff") == 0
    assert capsys.readouterr().out.splitlines() == [
        "(reverie dreamt at 2026-03-04 05:06 UTC)",
        "",
        "--- before",
        "+++ after",
        "@@ -1 +1 @@",
        "-- one",
        "+- two[2J",
    ]
    assert {path: path.read_bytes() for path in config.rglob("MEMORY*")} == before


def test_show_shows_what_a_terminal_could_obey(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file(config).parent.mkdir(parents=True)
    file(config).write_text("\x1b[2Jx")
    assert memory(config, "show") == 0
    assert capsys.readouterr().out.endswith("\\x1b[2Jx\n")


def test_undo_goes_back_dream_by_dream(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dreams(config, "one", "two", "three")
    for text in ("- two\n", "- one\n", ""):
        assert memory(config, "undo") == 0
        assert file(config).read_text() == text
        assert "says again what it said before 2026-03-04 05:06 UTC." in capsys.readouterr().out
    assert memory(config, "undo") == 1
    assert capsys.readouterr().err == "reverie memory: there is no dream to undo\n"
    assert memory(config, "diff") == 1
    (came,) = run_dreams(config, "four")
    assert came.diff.endswith("+- four"), "what was noted before is not dreamt of again"
    assert memory(config, "undo") == 0
    assert file(config).read_text() == ""


def test_undo_is_a_fact_of_the_log(config: Path) -> None:
    run_dreams(config, "one")
    assert memory(config, "undo") == 0

    async def story() -> None:
        async with await Store.open_readonly(config / "s.db") as reader:
            undone, first = [one.fact for one in await load_dreams(reader, "reverie")]
            assert (undone.reason, undone.before, undone.after) == ("undone", first.after, first.before)
            assert undone.upto == first.upto

    run(story())


def test_beside_a_running_gateway_only_the_file_is_changed_and_stays(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with gateway(config) as kit:
            await kit.notes.remember(at(ROOM), "x")
            await dream(kit, model("- x"))

            assert await asyncio.to_thread(memory, config, "undo") == 0
            assert "The gateway is running" in capsys.readouterr().out
            assert file(config).read_text() == ""
            assert await asyncio.to_thread(memory, config, "undo") == 1
            await kit.notes.remember(at(ROOM), "y")
            came = await dream(kit, model("- y"))
            assert came.diff.splitlines()[2:] == ["@@ -0,0 +1 @@", "+- y"]
            assert await asyncio.to_thread(memory, config, "undo") == 0
        async with gateway(config) as kit:
            assert file(config).read_text() == "", "the next start takes it for what somebody wanted"

    run(story())


def test_edits_are_not_undone_unless_it_is_asked_for(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dreams(config, "one", "two")
    file(config).write_text("- by hand\n")
    assert memory(config, "undo") == 1
    assert "edited since the last dream" in capsys.readouterr().err
    assert file(config).read_text() == "- by hand\n"
    assert memory(config, "undo", "--force") == 0
    assert file(config).read_text() == "- one\n"


def test_agents_are_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dreams(config, "one")
    (config / "echo" / "MEMORY.md").write_text("hers")
    assert memory(config, "show", "--agent", "echo") == 0
    assert capsys.readouterr().out == f"({config / 'echo' / 'MEMORY.md'})\n\nhers\n"
    assert memory(config, "undo", "--agent", "echo") == 1
    assert memory(config, "show", "--agent", "nobody") == 2
    assert capsys.readouterr().err.endswith("there is no agent nobody; there are: reverie, echo\n")


@pytest.mark.parametrize(("word", "code"), [("show", 0), ("diff", 2), ("undo", 2)])
def test_before_the_first_start_there_is_nothing_and_nothing_is_made(
    config: Path, capsys: pytest.CaptureFixture[str], word: str, code: int
) -> None:
    assert memory(config, word) == code
    out = capsys.readouterr()
    assert "(empty)" in out.out or "there is no store" in out.err
    assert sorted(path.name for path in config.iterdir()) == ["echo", "reverie.yaml"]
