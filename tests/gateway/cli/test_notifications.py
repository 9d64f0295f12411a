"""`reverie notifications`, as a person and a program run it."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.core.facts import Judgement, TurnRecord
from gateway.store import NewEntry
from gateway.stream.attention import REGEX_TIMED_OUT
from tests.kits.store import NOW, Fate, Urgency, judged, opened, place, run, said, turn

ROOT = Path(__file__).resolve().parents[3]
ATTENTION = {
    "rules": [
        {"type": "irc", "keyword": "fire", "urgency": "urgent"},
        {"type": "*.room.*", "regex": "down", "role": "member", "urgency": "normal"},
    ],
    "thresholds": {"irc": "normal", "irc.test": "inherit", "irc.test.room.#b": 0},
}


def came(number: int, rule: str, room: str = "#a", urgency: Urgency = 0, fate: Fate = "context") -> list[NewEntry]:
    message = replace(said(number, room=room), at=NOW + timedelta(minutes=number))
    made = judged(message, urgency, fate)
    assert isinstance(made.fact, Judgement)
    fact = replace(made.fact, type=f"irc.test.room.{room}", rule=rule)
    return [message, replace(made, fact=fact, at=message.at)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with await opened(path) as store:
            read = await store.append(came(1, "attention.rules[0]", urgency=3, fate="due"))
            ended = turn(place("#a").conversation, read[0].seq)
            assert isinstance(ended.fact, TurnRecord)
            await store.append([ended])
            await store.append(came(2, f"room talk is ambient{REGEX_TIMED_OUT}attention.rules[1]"))
            await store.append(came(3, "room talk is ambient"))
            await store.append(came(4, "attention.rules[0]", "#b", urgency=3, fate="due"))
            await store.append(came(5, "attention.thresholds.irc is 2", "#c\x1b[2J", fate="noted"))

    run(story())
    config = {
        "channels": {"c": {"platform": "console"}},
        "agents": [{"id": "a"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": str(path)},
        "attention": ATTENTION,
    }
    (tmp_path / "reverie.yaml").write_text(json.dumps(config))
    return path


def notifications_output(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["notifications", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_types_count_and_tell_when(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert notifications_output(capsys, "types", "--store", str(store)) == [
        "type                     count  first seen (UTC)     last seen",
        "irc.test.room.#a             3  2026-03-04 05:07:07  2026-03-04 05:09:07",
        "irc.test.room.#b             1  2026-03-04 05:10:07  2026-03-04 05:10:07",
        "irc.test.room.#c\\x1b[2J      1  2026-03-04 05:11:07  2026-03-04 05:11:07",
    ]
    (line,) = notifications_output(capsys, "types", "--config", str(store.parent), "--json")
    assert line.isascii()
    assert json.loads(line)[0] == {
        "type": "irc.test.room.#a",
        "count": 3,
        "first_at": "2026-03-04T05:07:07Z",
        "last_at": "2026-03-04T05:09:07Z",
    }


def test_the_threshold_of_each_type_and_what_says_so(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = notifications_output(capsys, "threshold", "--config", str(store.parent))
    assert [line.split() for line in lines[1:3]] == [
        ["irc.test.room.#a", "normal", "attention.thresholds.irc"],
        ["irc.test.room.#b", "ambient", "attention.thresholds.irc.test.room.#b"],
    ]
    (line,) = notifications_output(
        capsys, "threshold", "--config", str(store.parent), "--json", "discord.main.room.1", "irc.x"
    )
    assert json.loads(line) == [
        {"type": "discord.main.room.1", "lowest": "ambient", "where": "default"},
        {"type": "irc.x", "lowest": "normal", "where": "attention.thresholds.irc"},
    ]


def test_rules_stand_in_order_with_what_they_decided(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert notifications_output(capsys, "rules", "--config", str(store.parent)) == [
        "decided by                     times  which says",
        "attention.rules[0]                 2  irc, with 'fire': urgent",
        "attention.rules[1]                 0  *.room.*, with /down/, from a member or higher: normal (too slow: 1)",
        "room talk is ambient               2",
        "attention.thresholds.irc is 2      1",
        "(of the newest 5 notifications)",
    ]
    (line,) = notifications_output(capsys, "rules", "--store", str(store), "--last", "4", "--json")
    assert [(one["rule"], one["decided"], one["late"]) for one in json.loads(line)] == [
        ("room talk is ambient", 2, 0),
        ("attention.rules[0]", 1, 0),
        ("attention.thresholds.irc is 2", 1, 0),
        ("attention.rules[1]", 0, 1),
    ]


def test_what_is_unread_stands_by_conversation_the_most_urgent_first(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = notifications_output(capsys, "pending", "--store", str(store))
    assert [line.split() for line in lines[1:]] == [
        ["irc.test/#b", "1", "0", "0", "0", "2026-03-04", "05:10:07"],
        ["irc.test/#a", "0", "0", "0", "2", "2026-03-04", "05:08:07"],
    ]
    (line,) = notifications_output(capsys, "pending", "--config", str(store.parent), "--json")
    assert [(one["conversation"], one["urgent"], one["ambient"]) for one in json.loads(line)] == [
        ("irc.test/#b", 1, 0),
        ("irc.test/#a", 0, 2),
    ]


def test_an_empty_store_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        await (await opened(path)).close()

    run(story())
    assert notifications_output(capsys, "types", "--store", str(path)) == ["no notification was seen yet"]
    assert notifications_output(capsys, "pending", "--store", str(path)) == ["nothing is unread"]
    assert notifications_output(capsys, "rules", "--store", str(path)) == ["(of the newest 0 notifications)"]
    for name in ("types", "pending", "rules"):
        assert notifications_output(capsys, name, "--store", str(path), "--json") == ["[]"]


def test_it_reads_beside_a_running_gateway(store: Path) -> None:
    async def story() -> None:
        async with await opened(store) as held:
            await held.append(came(9, "listen: all", "#d", urgency=3, fate="due"))
            program = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
                [sys.executable, "-m", "gateway.cli.main", "notifications", "pending", "--store", str(store)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (program.returncode, program.stderr) == (0, "")
            assert "irc.test/#d" in program.stdout

    run(story())


def test_what_a_person_can_get_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notifications", "types", "--store", str(tmp_path / "none.db")]) == 2
    assert capsys.readouterr().err.startswith("reverie notifications: there is no store at ")
    (tmp_path / "reverie.yaml").write_text("channels: 7")
    for options in (["threshold", "--store", "x"], ["rules", "--config", str(tmp_path)], ["types"], []):
        with pytest.raises(SystemExit) as ended:
            main(["notifications", *options])
        assert ended.value.code == 2
