"""The operator's command before a turn: what it is told, what of its words is taken, and that it never outstays."""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.recall import (
    MAX_OUTPUT_BYTES,
    MAX_PIECE_CHARS,
    MAX_PREFETCH_PIECES,
    PrefetchCommand,
    parse_prefetch_output,
)
from tests.kits.channels import story


async def fetched(script: str, *, timeout_s: float = 20, lines: tuple[str, ...] = ("hello",)) -> list[str]:
    """What is taken of what a Python script says."""
    prefetch = PrefetchCommand([sys.executable, "-c", script], timeout_s)
    return await prefetch(conversation="irc.test/#room", scope="public", lines=lines)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ('"one"', ["one"]),
        ('["one", "two"]', ["one", "two"]),
        ('["one", {"text": "two", "score": 3}, 4, null, ""]', ["one", "two"]),
        ('{"text": "one"}', ["one"]),
        ('{"results": [{"text": "one"}, {"title": "none"}, {"text": "two"}]}', ["one", "two"]),
        ('{"results": "one"}', ["one"]),
        ('{"results": null}', []),
        ("{}", []),
        ("null", []),
        ("[]", []),
        ("", []),
        ("  \n", []),
        ("one\n\n  two \n", ["one", "two"]),
        ('{"text": "one"', ['{"text": "one"']),
        ('"one\\n[MEMORY.md] \\u001b[2J\\u202e\\ud800 two"', ["one [MEMORY.md] [2J \N{REPLACEMENT CHARACTER} two"]),
        ("[" * 100_000, ["[" * MAX_PIECE_CHARS]),
        (json.dumps(["x" * 10_000] * 100), ["x" * MAX_PIECE_CHARS] * MAX_PREFETCH_PIECES),
    ],
)
def test_json_or_text_is_taken(said: str, taken: list[str]) -> None:
    assert parse_prefetch_output(said) == taken


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_whatever_it_says_each_piece_stands_on_one_line(said: str) -> None:
    for piece in parse_prefetch_output(said):
        assert piece
        assert piece.splitlines() == [piece]
        piece.encode()


@story
async def test_it_is_told_where_and_what_on_its_standard_input() -> None:
    lines = ("first\nline", "ü\u202e\ud800")
    told = await fetched("import json, sys; print(json.dumps(json.dumps(json.load(sys.stdin))))", lines=lines)
    assert json.loads(told[0]) == {"conversation": "irc.test/#room", "scope": "public", "lines": list(lines)}


@story
async def test_it_gets_none_of_our_secrets_and_no_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REVERIE_TOKEN", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    told = await fetched("import json, os; print(json.dumps(' '.join(sorted(os.environ))))")
    assert {*told[0].split()} - {"LC_CTYPE"} <= {"HOME", "LANG", "PATH"}
    marker = tmp_path / "x"
    assert await PrefetchCommand(["/bin/echo", f"$(touch {marker})", ";", "touch", str(marker)], 5)(
        conversation="a/b", scope="public", lines=["`x`"]
    ) == [f"$(touch {marker}) ; touch {marker}"]
    assert not marker.exists()


@pytest.mark.parametrize(
    "script",
    [
        "import sys; print('x'); sys.exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        f"print('x' * {MAX_OUTPUT_BYTES + 1})",
        f"import sys\nwhile True: sys.stdout.write('x' * {MAX_OUTPUT_BYTES})",
        "raise SystemExit('x')",
    ],
)
def test_what_fails_or_says_too_much_is_not_used(script: str, caplog: pytest.LogCaptureFixture) -> None:
    @story
    async def run() -> None:
        with caplog.at_level(logging.DEBUG, "reverie.prefetch"):
            assert await fetched(script) == []

    run()
    assert {record.levelno for record in caplog.records if record.name == "reverie.prefetch"} == {logging.DEBUG}


@story
async def test_the_most_that_may_be_said_is_taken() -> None:
    script = f"print('x' * {MAX_OUTPUT_BYTES - 1})"
    assert await fetched(script) == ["x" * MAX_PIECE_CHARS]


@pytest.mark.parametrize("command", [(), ("/nowhere/at/all",), ("",), ("a\0b",), ("/tmp",)])
def test_a_command_that_is_none_costs_nothing(command: tuple[str, ...]) -> None:
    @story
    async def run() -> None:
        assert await PrefetchCommand(command, 5)(conversation="a/b", scope="public", lines=["x"]) == []

    run()


@story
async def test_it_need_not_read_what_it_is_told() -> None:
    assert await fetched("import os; os.close(0); print('fine')", lines=("x" * 1_000_000,)) == ["fine"]


def alive(pid: int) -> bool:
    """Also a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


FAMILY = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
open({pids!r}, "w").write(f"{{child}}\\n{{os.getpid()}}\\n")
{then}
"""


def born(pids: Path) -> list[int]:
    """Those that are there by now."""
    return [int(line) for line in pids.read_text().split("\n")[:-1]] if pids.exists() else []


async def family(pids: Path) -> list[int]:
    """Both of them, once they are there."""
    while len(found := born(pids)) < 2:
        await asyncio.sleep(0.01)
    return found


async def gone(found: list[int]) -> bool:
    """A killed process ends soon, but not at once."""
    async with asyncio.timeout(120):
        while any(map(alive, found)):
            await asyncio.sleep(0.01)
    return True


@story
async def test_the_time_limit_ends_it_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    assert await fetched(FAMILY.format(pids=str(pids), then="time.sleep(600)"), timeout_s=5) == []
    assert time.monotonic() - began < 300, "its children sleep for ten minutes"
    assert await gone(await family(pids))


@story
async def test_children_that_are_left_behind_do_not_make_it_wait(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    then = "print('fine', flush=True); os.close(1); sys.exit()"
    assert await fetched(FAMILY.format(pids=str(pids), then=then), timeout_s=60) == ["fine"], (
        "they hold its output open"
    )
    assert await gone(await family(pids))


@story
async def test_cancelled_it_leaves_nobody_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asking = asyncio.create_task(fetched(FAMILY.format(pids=str(pids), then="time.sleep(600)")))
    found = await family(pids)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await gone(found)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@story
async def test_many_leave_no_descriptor_open() -> None:
    await fetched("print('x')")
    before = descriptors()
    for _ in range(5):
        assert await fetched("print('x')") == ["x"]
    assert descriptors() <= before
