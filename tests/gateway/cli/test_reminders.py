"""`reverie reminders`, as a person and a program run it."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.core.events import SenderId
from gateway.core.facts import ReminderSet
from gateway.store import NewEntry
from tests.kits.store import NOW, opened, place, run

ROOT = Path(__file__).resolve().parents[3]
SET = [
    ReminderSet(
        reminder="B2",
        agent="reverie",
        at=place("#a"),
        text="tea\x1b[2J",
        by=SenderId("42"),
        asked_by="Ann\u202e",
        schedule="cron 0 9 * * MON Europe/Zurich",
        due=datetime(2026, 11, 23, 8, 0, tzinfo=UTC),
    ),
    ReminderSet(
        reminder="A1",
        agent="reverie",
        at=None,
        text="look",
        by=SenderId(""),
        asked_by="",
        schedule="every 5400",
        due=datetime(2026, 11, 22, 8, 0, tzinfo=UTC),
    ),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            await store.append([NewEntry(fact=fact, at=NOW) for fact in SET])

    run(story())
    config = {
        "channels": {"c": {"platform": "console"}},
        "agents": [{"id": "a"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": str(path)},
    }
    (tmp_path / "reverie.yaml").write_text(json.dumps(config))
    return path


def reminders_output(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["reminders", "list", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_person_sees_the_next_one_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reminders_output(capsys, "--config", str(store.parent)) == [
        "id  next (UTC)           again                           where           asked for by  text",
        "A1  2026-11-22 08:00:00  every 1h 30m                    reverie itself  -             look",
        "B2  2026-11-23 08:00:00  cron 0 9 * * MON Europe/Zurich  irc.test/#a     Ann\\u202e     tea\\x1b[2J",
    ]


def test_a_program_sees_all_of_them(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = reminders_output(capsys, "--store", str(store), "--json")
    assert line.isascii()
    assert json.loads(line)[0] == {
        "id": "A1",
        "agent": "reverie",
        "conversation": None,
        "due": "2026-11-22T08:00:00Z",
        "schedule": "every 5400",
        "text": "look",
        "sender": "",
        "asked_by": "",
    }


def test_an_empty_store_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        await (await opened(tmp_path / "s.db")).close()

    run(story())
    assert reminders_output(capsys, "--store", str(tmp_path / "s.db")) == ["there are no reminders"]
    assert reminders_output(capsys, "--store", str(tmp_path / "s.db"), "--json") == ["[]"]


def test_it_reads_beside_a_running_gateway(store: Path) -> None:
    async def story() -> None:
        async with await opened(store):
            program = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
                [sys.executable, "-m", "gateway.cli.main", "reminders", "list", "--store", str(store)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (program.returncode, program.stderr) == (0, "")
            assert "every 1h 30m" in program.stdout

    run(story())


def test_what_a_person_can_get_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reminders", "list", "--store", str(tmp_path / "none.db")]) == 2
    assert capsys.readouterr().err.startswith("reverie reminders: there is no store at ")
    for options in (["list"], []):
        with pytest.raises(SystemExit) as ended:
            main(["reminders", *options])
        assert ended.value.code == 2
