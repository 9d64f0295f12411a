"""`reverie journal`, as a person runs it, beside a running gateway and without one."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.journal import parse_journal
from gateway.cli.main import main
from gateway.core.events import Address
from tests.gateway.cli.test_memory import CONFIG
from tests.kits.journal import ANN, ROOM, at, papers
from tests.kits.store import run

HEADER = "2026-03-04 05:06 UTC"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(CONFIG)
    (tmp_path / "echo").mkdir()
    return tmp_path


def wrote(config: Path, *entries: tuple[Address, str, str]) -> None:
    """Each was written down a minute after the one before, and the gateway has stopped."""

    async def story() -> None:
        async with papers(config) as kit:
            for place, title, text in entries:
                await kit.notes.write_entry(at(place), title, text)
                kit.clock.advance(60)

    run(story())


def by_hand(config: Path, text: str) -> None:
    with (config / "mind" / "reverie" / "journal.md").open("a") as file:
        file.write(text)


def journal(config: Path, *words: str) -> int:
    return main(["journal", "--config", str(config), *words])


TWO = ((ROOM, "Boats", "The harbour\n\nopens on Monday"), (ANN, "", "Ann likes the Café\x1b[2J\u202e"))


def test_entries_are_shown_the_newest_last(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote(config, *TWO)
    by_hand(config, "\n## 2026-03-04 05:06:30 - Lake\nscope: public\nNo boats\n\n## 2026-03-01 08:00\nof the owner")
    before = {path: path.read_bytes() for path in config.rglob("journal*")}
    assert journal(config) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-03-01 08:00 UTC  owner (by hand)",
        "    of the owner",
        "",
        f"{HEADER}  public  Boats",
        "    The harbour",
        "",
        "    opens on Monday",
        "",
        f"{HEADER}  public (by hand)  Lake",
        "    No boats",
        "",
        "2026-03-04 05:07 UTC  irc.test/ann",
        "    Ann likes the Café[2J\\u202e",
        "",
    ]
    assert journal(config, "-n", "2") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{HEADER}  public (by hand)  Lake"
    for scope, count in (("public", 2), ("owner", 1), ("irc.test/ann", 1), ("irc.test/bob", 0)):
        assert journal(config, "--scope", scope) == 0
        assert capsys.readouterr().out.count(" UTC  ") == count, scope
    assert {path: path.read_bytes() for path in config.rglob("journal*")} == before


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["harbour"], ["The harbour"]),
        (["MONDAY harb"], ["The harbour"]),
        (["boats"], ["The harbour", "No boats"]),
        (["cafe"], ["Ann likes the Café[2J\\u202e"]),
        (["boats", "-n", "1"], ["No boats"]),
        (["boats", "--scope", "irc.test/ann"], []),
        (["nowhere"], []),
        (["***"], []),
        (['"', "NEAR("], []),
    ],
)
def test_search_finds_all_of_the_words(
    config: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], found: Sequence[str]
) -> None:
    wrote(config, *TWO)
    by_hand(config, "\n## 2026-03-04 05:06:30 - Lake\nscope: public\nNo boats\n")
    assert journal(config, "search", *words) == (0 if found else 1)
    out = capsys.readouterr().out.splitlines()
    if not found:
        assert out == ["(nothing was found)"]
    assert [line.strip() for line in out if any(line.strip() == text for text in found)] == list(found)
    assert sum(" UTC  " in line for line in out) == len(found)


def test_what_is_exported_is_the_journal_and_can_be_read_again(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrote(config, *TWO)
    by_hand(config, "\n## 2026-03-04 09:00 - Lake\nscope: public\nNo boats\u202e\n")
    new = config / "new.md"
    assert journal(config, "export", "-o", str(new)) == 0
    assert (capsys.readouterr().out, new.stat().st_mode & 0o777) == ("", 0o600)
    file = (config / "mind" / "reverie" / "journal.md").read_text()
    assert parse_journal(new.read_text()) == parse_journal(file), (
        "of what is in the log and by hand it is the same, in the same order"
    )
    assert journal(config, "export", "-o", str(new)) == 2
    assert "File exists" in capsys.readouterr().err
    assert journal(config, "export", "--markdown") == 0
    out = capsys.readouterr().out
    assert "No boats\\u202e" in out
    assert out.replace("\n", "").isprintable()
    assert [one.title for one in parse_journal(out)] == ["Boats", "", "Lake"]
    assert journal(config, "export", "--json", "--scope", "public") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["title"], one["text"], one["scope"]) for one in told] == [
        ("Boats", "The harbour\n\nopens on Monday", "public"),
        ("Lake", "No boats\u202e", "public"),
    ]
    assert told[0]["note"]
    assert told[0]["at"] == "2026-03-04T05:06:07+00:00"
    assert not told[1]["note"]


def test_it_works_beside_a_running_gateway(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with papers(config) as kit:
            await kit.notes.remember(at(ROOM), "x")
            assert await asyncio.to_thread(journal, config) == 0
            assert capsys.readouterr().out == f"{HEADER}  public  to remember\n    x\n\n"

    run(story())


def test_agents_are_named_and_bad_usage_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with papers(config, agents=("reverie", "echo")) as kit:
            await kit.notes.remember(at(ROOM, agent="echo"), "hers")

    run(story())
    assert main(["journal", "search", "hers", "--config", str(config), "--agent", "echo"]) == 0
    assert main(["journal", "--agent", "echo", "search", "hers", "--config", str(config)]) == 0
    assert capsys.readouterr().out.count("    hers\n") == 2
    assert journal(config) == 0
    assert capsys.readouterr().out == "(there is nothing yet)\n"
    assert journal(config, "--agent", "nobody") == 2
    assert capsys.readouterr().err.endswith("there is no agent nobody; there are: reverie, echo\n")
    with pytest.raises(SystemExit) as exited:
        main(["journal", "search", "x"])
    assert exited.value.code == 2
    assert "--config" in capsys.readouterr().err


def test_what_cannot_be_read_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert journal(config) == 2
    assert "there is no store" in capsys.readouterr().err
    wrote(config, *TWO)
    file = config / "mind" / "reverie" / "journal.md"
    file.unlink()
    assert journal(config, "search", "harbour") == 0, "the log has it"
    file.symlink_to(config / "reverie.yaml")
    capsys.readouterr()
    assert journal(config) == 2
    assert capsys.readouterr().err.startswith("reverie journal: ")


def test_many_are_read_page_by_page(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with papers(config, agents=("reverie", "echo")) as kit:
            for number in range(510):
                await kit.notes.remember(at(ROOM, agent="echo" if number else "reverie"), f"note {number}")

    run(story())
    assert journal(config) == 0
    assert capsys.readouterr().out.endswith("    note 0\n\n")
