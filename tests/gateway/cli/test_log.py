"""`reverie log`, `audit` and `cache`: what the log holds, for people and for programs."""

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given

from gateway.cli.main import main
from gateway.commands.info import AUDIT_PAGE
from gateway.core.facts import AuditRecord, DmnStateSaved, Fact, Seq, fact_adapter, fact_kinds
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.store import LogEntry, NewEntry
from gateway.store.format import describe, format_entry
from tests.kits import strategies
from tests.kits.store import NOW, account, append_newer, heard, opened, place, run, spent, turn

ROOT = Path(__file__).resolve().parents[3]
NASTY = "\x1b]0;owned\x07 \u202egnp.exe\u2069 \x9b31m \r\n a\u2028b 👩\u200d🚀 é"


def write(path: Path, *batches: list[NewEntry]) -> None:
    async def story() -> None:
        async with await opened(path) as store:
            for batch in batches:
                await store.append(batch)

    run(story())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    batches = [
        heard(number, f"words {number}", "#a" if number % 2 else "#b") for number in range(30)
    ]
    write(path, *batches, heard(99, NASTY), [turn(place().conversation, 3)])
    return path


def test_show_prints_one_harmless_line_per_entry(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "show", "--store", str(store)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 51, "the newest 50, and the end"
    nasty = next(line for line in lines if "owned" in line)
    assert (
        "\\x1b]0;owned\\x07 \\u202egnp.exe\\u2069 \\x9b31m \\r\\n a\\u2028b 👩\u200d🚀 é" in nasty
    )
    assert "  room        irc.test/#a  <Ulla> " in nasty
    assert "replied, 1 told, 0 omitted: answer" in lines[-2]
    assert "(of 61)" in lines[-3]


def test_an_entry_of_a_newer_version_is_shown_as_json_only(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_newer(store)
    assert main(["log", "show", "--store", str(store), "--last", "2"]) == 0
    assert capsys.readouterr().out.split()[0] == "63"
    assert main(["log", "show", "--store", str(store), "--last", "1", "--jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "weather"


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["--last", "2"], [62, 63]),
        (["--after", "60"], [61, 62, 63]),
        (["--after", "60", "--last", "1"], [63]),
        (["--kind", "turn_ended", "--kind", "room", "--last", "3"], [59, 61, 63]),
        (["--conversation", "irc.test/#b", "--kind", "room", "--last", "2"], [53, 57]),
        (["--match", "words 7"], [15]),
        (["--match", "answer OR owned"], [61, 63]),
        (["--last", "0"], []),
    ],
)
def test_show_chooses(
    store: Path, options: list[str], seqs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "show", "--store", str(store), "--jsonl", *options]) == 0
    assert [json.loads(row)["seq"] for row in capsys.readouterr().out.splitlines()] == seqs


def test_export_is_the_whole_log_and_can_be_read_back(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = store.with_name("log.jsonl")
    assert main(["log", "export", "--store", str(store), "--jsonl", "--output", str(output)]) == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    told = output.read_text(encoding="ascii")
    assert main(["log", "export", "--store", str(store)]) == 0
    assert capsys.readouterr().out == told
    connection = sqlite3.connect(store)
    rows = connection.execute("SELECT * FROM log ORDER BY seq").fetchall()
    connection.close()
    for row, text in zip(rows, told.splitlines(), strict=True):
        entry = json.loads(text)
        assert list(entry) == ["seq", "at", "kind", "conversation", "key", "cause", "body"]
        assert tuple(entry.values())[:-1] == row[:-1]
        assert fact_adapter().validate_python(entry["body"]) == fact_adapter().validate_json(
            row[-1]
        )
    assert main(["log", "export", "--store", str(store), "--output", str(output)]) == 2, (
        "never replaces a file"
    )
    assert output.read_text(encoding="ascii") == told


def test_rebuild_says_what_differed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "rebuild", "--store", str(store)]) == 0
    assert capsys.readouterr().out == "every table matches the log\n"
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("DELETE FROM unread WHERE seq = 1")
    connection.close()
    assert main(["log", "rebuild", "--store", str(store)]) == 1
    assert (
        capsys.readouterr().out
        == "unread: differed from the log, 1 missing and 0 extra rows; repaired\n"
    )
    assert main(["log", "rebuild", "--store", str(store)]) == 0


@pytest.mark.parametrize("command", ["show", "tail", "export", "rebuild"])
def test_a_missing_file_is_said(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", command, "--store", str(tmp_path / "none.db")]) == 2
    assert "there is no store at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_terms_are_said(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "show", "--store", str(store), "--match", "c++"]) == 2
    assert "cannot search for 'c++'" in capsys.readouterr().err


def test_rebuild_is_refused_while_a_gateway_runs(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with await opened(store):
            program = subprocess.run(
                [sys.executable, "-m", "gateway.cli.main", "log", "rebuild", "--store", str(store)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert program.returncode == 2
            assert f"in use by process {os.getpid()}" in program.stderr

    run(story())
    assert capsys.readouterr().err == ""


def test_tail_follows_until_interrupted(store: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "log",
        "tail",
        "-n",
        "2",
        "-f",
        "--store",
        str(store),
    ]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert [program.stdout.readline().split()[0] for _ in range(2)] == ["62", "63"]
        write(store, heard(500), heard(501))
        assert [program.stdout.readline().split()[0] for _ in range(4)] == ["64", "65", "66", "67"]
        program.send_signal(signal.SIGINT)
        assert program.wait(10) == 0


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    write(
        tmp_path / "s.db", [entry for number in range(2000) for entry in heard(number, "x" * 500)]
    )
    arguments = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "log",
        "export",
        "--store",
        str(tmp_path / "s.db"),
    ]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert json.loads(program.stdout.readline())["seq"] == 1
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(10) == 0


def test_every_kind_can_be_asked_for_and_told() -> None:
    assert {"room", "direct", "judged", "turn_ended", "post", "sending", "part", "dmn"} <= set(
        fact_kinds()
    )
    assert escape_unprintable("plain") == "plain"
    entry = heard(1)[0]
    stored = LogEntry(
        seq=Seq(1), at=NOW, kind="room", conversation=None, key=None, cause=None, fact=entry.fact
    )
    assert (
        format_entry(stored, redactor=Redactor())
        == "       1  2026-03-04 05:06:07  room        -  <Ulla> line 1"
    )


@given(strategies.facts)
def test_every_fact_can_be_told(fact: Fact) -> None:
    stored = LogEntry(
        seq=Seq(1), at=NOW, kind=fact.kind, conversation=None, key=None, cause=None, fact=fact
    )
    text = format_entry(stored, redactor=Redactor())
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            '{"mode":"resting","presence":"away","turns_today":2,"pending":[]}',
            "mira is resting, people are away, 2 turns unasked today",
        ),
        ('{"mode":"resting","turns_today":"x"}', 'mira {"mode":"resting","turns_today":"x"}'),
        ("not JSON", "mira not JSON"),
        ("[1]", "mira [1]"),
    ],
)
def test_a_saved_state_of_mind_is_told_in_a_few_words(state: str, words: str) -> None:
    assert describe(DmnStateSaved(state=state, agent="mira")) == words


# `reverie audit`, as a person and a program run it, on the store of a stopped gateway


def shown(capsys: pytest.CaptureFixture[str], store: Path, *words: str, code: int = 0) -> list[str]:
    config = {
        "channels": {"c": {"platform": "console"}},
        "agents": [{"id": "a"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": str(store)},
    }
    (store.parent / "reverie.yaml").write_text(json.dumps(config))
    assert main([*words, "--config", str(store.parent)]) == code
    told = capsys.readouterr()
    return (told.err if code else told.out).splitlines()


def act(
    number: int, *, by: str = "irc.test:account:ann", ok: bool = True, days: float = 0.0
) -> NewEntry:
    fact = AuditRecord(
        what="role",
        by=by,
        name="Ann\u202e" if by != "operator" else "",
        evidence="account ann, vouched for by the platform; in writing",
        role="owner",
        rule="access.roles.owner",
        at=place("#a") if by != "operator" else None,
        args=f"set bob{number} admin",
        ok=ok,
        result="password=hunter2-9\x1b[2J",
    )
    return NewEntry(fact=fact, at=NOW - timedelta(days=days), key=f"audited:{number}")


@pytest.fixture
def store_of_audit(tmp_path: Path) -> Path:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await store.append([act(1, days=3), act(2, by="operator", days=2), act(3, ok=False)])

    run(story())
    return tmp_path / "s.db"


def audit_output(
    capsys: pytest.CaptureFixture[str], store_of_audit: Path, *options: str
) -> list[str]:
    return shown(capsys, store_of_audit, "audit", *options)


def test_a_person_sees_the_newest_last_and_nothing_that_moves_a_terminal(
    store_of_audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *lines = audit_output(capsys, store_of_audit)
    assert head.split() == ["entry", "when", "(UTC)", "who", "role", "where", "what", "result"]
    assert [line.split("set ")[1].split(" ")[0] for line in lines] == ["bob1", "bob2", "bob3"]
    assert "irc.test:account:ann (Ann\\u202e)  owner  irc.test/#a" in lines[0]
    assert "operator" in lines[1]
    assert "command line" in lines[1]
    assert lines[2].endswith("not done: password=[redacted]\\x1b[2J")


def test_it_is_asked_for_less(store_of_audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [
        line.split()[0] for line in audit_output(capsys, store_of_audit, "--limit", "1")[1:]
    ] == ["3"]
    assert [
        line.split()[0] for line in audit_output(capsys, store_of_audit, "--by", "operator")[1:]
    ] == ["2"]
    assert [
        line.split()[0]
        for line in audit_output(capsys, store_of_audit, "--by", "irc.test:account:ANN")[1:]
    ] == [
        "1",
        "3",
    ]
    assert [
        line.split()[0]
        for line in audit_output(capsys, store_of_audit, "--since", "2026-03-02")[1:]
    ] == ["2", "3"]
    assert audit_output(capsys, store_of_audit, "--since", "1s") == [
        "there were no administrative commands"
    ]
    assert audit_output(capsys, store_of_audit, "--limit", "0") == [
        "there were no administrative commands"
    ]


def test_a_program_sees_all_of_it(store_of_audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = audit_output(capsys, store_of_audit, "--json")
    assert line.isascii()
    first, second, third = json.loads(line)["data"]
    assert (first["seq"], first["when"]) == (1, "2026-03-01T05:06:07+00:00")
    assert first["evidence"].startswith("account ann")
    assert (second["when"][:10], second["by"], third["ok"]) == ("2026-03-02", "operator", False)


def test_many_are_looked_through_page_by_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(
                [act(0, by="operator"), *(act(number) for number in range(1, 2 * AUDIT_PAGE + 2))]
            )

    run(story())
    assert len(audit_output(capsys, tmp_path / "s.db", "--by", "operator")) == 2
    assert (
        len(audit_output(capsys, tmp_path / "s.db", "--limit", str(AUDIT_PAGE + 1)))
        == AUDIT_PAGE + 2
    )


@pytest.mark.parametrize("said", ["2026-13-01", "9" * 400, "1e400d", "-2h"])
def test_times_that_it_does_not_understand(
    said: str, store_of_audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = shown(capsys, store_of_audit, "audit", f"--since={said}", code=1)
    assert "Write since when" in line or "no such day" in line


# `reverie cache`, as a person and a program run it

A, B = place("#a").conversation, place("#b").conversation


def write_of_cache(path: Path, *entries: NewEntry) -> None:
    async def story() -> None:
        async with await opened(path) as store:
            await store.append(entries)

    run(story())


@pytest.fixture
def store_of_cache(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    write_of_cache(
        path,
        *heard(1),
        spent(A, account(read=100, written=20, plain=10, cost=0.01), senders=["u"]),
        spent(
            A,
            account(plain=130, cost=0.03, missed="identity\x1b[2J differs from byte 7 on"),
            senders=["v", "u"],
        ),
        turn(B, 1),
        spent(B, account(plain=130), senders=["v"], at=NOW + timedelta(days=1)),
    )
    return path


def cache_output(
    store_of_cache: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> list[str]:
    return shown(capsys, store_of_cache, "cache", *options)


def test_the_newest_requests_and_the_sum_are_shown(
    store_of_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = cache_output(store_of_cache, capsys)
    heads = [line for line in lines if "anthropic m" in line]
    assert [re.split(r"  +", line)[1:] for line in heads] == [
        ["irc.test/#a", "reverie", "anthropic m", "$0.0100", "(entry 3)"],
        ["irc.test/#a", "reverie", "anthropic m", "$0.0300", "(entry 4)"],
        ["irc.test/#b", "reverie", "anthropic m", "price not known", "(entry 6)"],
    ]
    assert next(line.split() for line in lines if "difference" in line) == [
        "difference",
        "0",
        "0",
        "0",
        "0",
        "0",
    ]
    assert "  missed: identity\\x1b[2J differs from byte 7 on" in lines, (
        "nothing moves the terminal"
    )
    assert lines[-1] == (
        "all conversations, since the log began: "
        "4 requests: 390 input tokens (25.6 % from the cache), 21 output tokens, at least $0.0400"
    )


def test_a_conversation_and_a_number_are_chosen(
    store_of_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = cache_output(store_of_cache, capsys, "--in", A, "--last", "1")
    assert [line.split()[-1] for line in lines if "anthropic" in line] == ["4)"]
    assert lines[-1] == (
        "irc.test/#a, since the log began: "
        "2 requests: 260 input tokens (38.5 % from the cache), 14 output tokens, $0.0400"
    )
    (line,) = cache_output(store_of_cache, capsys, "--in", "irc.test/#none")
    assert line.startswith(
        "irc.test/#none, since the log began: 0 requests: 0 input tokens (- from the cache)"
    )


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (["conversation"], [["irc.test/#a", "2"], ["irc.test/#b", "2"]]),
        (["room"], [["irc.test/#a", "2"], ["irc.test/#b", "2"]]),
        (["room", "--since", "2026-03-05"], [["irc.test/#b", "1"]]),
        (["sender"], [["irc.test:u", "195"], ["irc.test:v", "195"], ["irc.test:(nobody)", "0"]]),
        (["day"], [["2026-03-04", "3"], ["2026-03-05", "1"]]),
        (["agent", "--in", A], [["reverie", "2"]]),
        (["model"], [["m", "3"], ["scripted", "1"]]),
    ],
)
def test_sums_are_told_apart(
    store_of_cache: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    rows: list[list[str]],
) -> None:
    lines = cache_output(store_of_cache, capsys, "--by", *options)
    assert [line.split()[:2] for line in lines[1 : 1 + len(rows)]] == rows
    assert not [line for line in lines if "(entry" in line]
    assert any(
        "each message that a turn was told bears an equal share" in line for line in lines
    ) == (options == ["sender"])


def test_programs_get_one_object(store_of_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = cache_output(store_of_cache, capsys, "--json", "--by", "sender", "--last", "2")
    assert line.isascii()
    found = json.loads(line)["data"]
    assert [one["seq"] for one in found["requests"]] == [4, 6]
    first = found["requests"][0]
    assert first["account"]["blocks"][1] == {
        "name": "history",
        "tokens": 30,
        "read": 0,
        "written": 20,
        "lifetime": "1h",
    }
    assert first["account"]["missed"].startswith("identity\x1b")
    assert found["expected"][0]["cache_read_tokens"] == 100
    assert found["total"]["cost_usd"] == 0.04
    assert {one["key"]: one["cost_usd"] for one in found["sums"]} == {
        "irc.test:": 0.0,
        "irc.test:u": 0.025,
        "irc.test:v": 0.015,
    }


def test_what_a_person_can_get_wrong_about_costs_is_said(
    store_of_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, store_of_cache, "cache", "--since", "yesterday", code=1) == [
        "'yesterday' is not a day: write it as 2026-03-04"
    ]
    (line,) = shown(capsys, store_of_cache, "cache", "--by", "colour", code=2)
    assert line.startswith("Write `conversation`, `room`, ")
