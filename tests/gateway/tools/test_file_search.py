"""Looking through an agent's files: what is found, in which order, and what a search may cost."""

import re
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.files import LINE_TIMEOUT_S, MAX_MATCHES, MAX_OUTPUT_CHARS, MAX_SEARCHED_CHARS, search_text
from gateway.tools.workspace_fs import (
    MAX_ALTERNATIVES,
    MAX_LISTED,
    MAX_PATH_PARTS,
    GlobPattern,
    SearchLimits,
    list_paths,
)
from tests.gateway.tools.files_kit import Files, files

SLOW = "(a|a)*[bc]"
BAD = "a" * 60


@pytest.fixture
def here(tmp_path: Path) -> Files:
    made = files(tmp_path, 1_000_000)
    given_files: dict[str, str | bytes] = {
        "b.py": "import os\nprint('Hello')\n",
        "a.py": "hello = 1\n",
        "notes/today.md": "one\ntwo\nhello there\nfour\nfive\n",
        "notes/old/2024.md": "hello\r\n",
        ".hidden/x.txt": "hello",
        ".git/config": "hello",
        "src/.git/HEAD": "hello",
        "data.bin": b"hello\0",
        "[odd].md": "hello",
    }
    for path, text in given_files.items():
        made.put(path, text)
    (made.path / "empty").mkdir()
    return made


def listed(here: Files, pattern: str) -> list[str]:
    return list_paths(here.root, pattern, SearchLimits()).splitlines()[1:]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", [".git/", ".hidden/", "[odd].md", "a.py", "b.py", "data.bin", "empty/", "notes/", "src/"]),
        ("*.py", ["a.py", "b.py"]),
        ("./*.py", ["a.py", "b.py"]),
        ("/workspace/*.py", ["a.py", "b.py"]),
        ("?.py", ["a.py", "b.py"]),
        ("[!a].py", ["b.py"]),
        ("[[]odd].md", ["[odd].md"]),
        ("**/*.md", ["[odd].md", "notes/old/2024.md", "notes/today.md"]),
        ("notes/**", ["notes/", "notes/old/", "notes/old/2024.md", "notes/today.md"]),
        ("notes/**/2024.md", ["notes/old/2024.md"]),
        ("notes/*/2024.md", ["notes/old/2024.md"]),
        ("**/old/*", ["notes/old/2024.md"]),
        ("{a,b}.py", ["a.py", "b.py"]),
        ("{notes/{today,x},a}.{md,py}", ["a.py", "notes/today.md"]),
        ("**/x.*", [".hidden/x.txt"]),
        (".git/*", [".git/config"]),
        ("**/.git/*", [".git/config", "src/.git/HEAD"]),
        ("src/**", ["src/", "src/.git/"]),
        ("notes/", ["notes/"]),
        ("A.PY", []),
        ("nothing/**", []),
    ],
)
def test_a_glob_lists_what_matches_in_order(here: Files, pattern: str, found: list[str]) -> None:
    assert listed(here, pattern) == found


def test_a_glob_says_how_many_and_where_else_to_look(here: Files) -> None:
    assert list_paths(here.root, "*.py", SearchLimits()).startswith("2 paths:\n")
    assert list_paths(here.root, "a.py", SearchLimits()).startswith("1 path:\n")
    assert (
        list_paths(here.root, "today.md", SearchLimits())
        == "Nothing matches. `**/today.md` looks into all directories."
    )
    assert list_paths(here.root, "x/*.md", SearchLimits()) == "Nothing matches."


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("../*", "goes up with `..`"),
        ("a/{b,../..}/*", "goes up with `..`"),
        ("/etc/*", "is outside"),
        ("/workspace", "is outside"),
        ("", "names files"),
        ("./", "names files"),
        ("{a,b}" * 8, f"stand for {MAX_ALTERNATIVES} patterns at most"),
    ],
)
def test_patterns_that_cannot_be_are_refused(here: Files, pattern: str, why: str) -> None:
    with pytest.raises(ToolCallRefused, match=re.escape(why)):
        list_paths(here.root, pattern, SearchLimits())


paths = st.lists(st.text(st.sampled_from("ab."), min_size=1, max_size=3), min_size=1, max_size=4)
patterns = st.lists(
    st.just("**") | st.text(st.sampled_from("ab.*?"), min_size=1, max_size=3).filter(lambda one: "**" not in one),
    min_size=1,
    max_size=4,
).filter(lambda parts: not {".", ".."} & set(parts))


@given(patterns, paths)
def test_a_pattern_matches_what_it_means(pattern: list[str], path: list[str]) -> None:
    wanted = GlobPattern("/".join(pattern))
    place = wanted.initial_state
    for number, name in enumerate(path):
        assert number == 0 or wanted.can_match_below(place) or not wanted.advance(place, name)
        place = wanted.advance(place, name)
    whole = "".join(
        "(?:[^/]+/)*" if one == "**" else re.escape(one).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") + "/"
        for one in pattern
    )
    assert wanted.is_match(place) == bool(re.fullmatch(whole, "/".join(path) + "/"))


def test_no_name_makes_a_pattern_slow() -> None:
    wanted = GlobPattern("*a" * 120 + "*c/" + "**/" * 60 + "x")
    began = time.process_time()
    place = wanted.initial_state
    for name in ["a" * 254 + "c", *["a" * 255] * 40]:
        place = wanted.advance(place, name)
    assert time.process_time() - began < 1


def test_a_grep_tells_lines_with_their_places(here: Files) -> None:
    assert search_text(here.root, "hello", SearchLimits()).splitlines() == [
        "5 lines in 5 files, of 6 files searched; 1 file left out (binary):",
        ".hidden/x.txt:1:hello",
        "[odd].md:1:hello",
        "a.py:1:hello = 1",
        "notes/old/2024.md:1:hello",
        "notes/today.md:3:hello there",
    ]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"path": "notes/today.md"}, ["notes/today.md:3:hello there"]),
        ({"path": "/workspace/notes"}, ["notes/old/2024.md:1:hello", "notes/today.md:3:hello there"]),
        ({"path": "notes", "files": "old/*"}, ["notes/old/2024.md:1:hello"]),
        ({"files": "*.py", "ignore_case": True}, ["a.py:1:hello = 1", "b.py:2:print('Hello')"]),
        ({"files": "{today.md,x.txt}"}, [".hidden/x.txt:1:hello", "notes/today.md:3:hello there"]),
        ({"path": ".git"}, [".git/config:1:hello"]),
        ({"path": ".", "files": "/workspace/a.py"}, ["a.py:1:hello = 1"]),
    ],
)
def test_it_looks_where_it_is_told(here: Files, arguments: dict[str, object], lines: list[str]) -> None:
    assert search_text(here.root, "hello", SearchLimits(), **arguments).splitlines()[1:] == lines  # type: ignore[arg-type] # a table


def test_what_stands_for_something_else_in_a_line_is_found(here: Files) -> None:
    here.put("c.txt", b"caf\xe9\n")
    assert search_text(here.root, "caf\ufffd", SearchLimits()).splitlines()[1:] == ["c.txt:1:caf\ufffd"]


def test_lines_around_are_told_once(here: Files) -> None:
    here.put("c.txt", "a1\nb\na2\nd\ne\nf\ng\na3")
    here.put("d.txt", "a4")
    assert search_text(here.root, r"^a\d", SearchLimits(), files="[cd].txt", context_lines=1).splitlines()[1:] == [
        "c.txt:1:a1",
        "c.txt-2-b",
        "c.txt:3:a2",
        "c.txt-4-d",
        "--",
        "c.txt-7-g",
        "c.txt:8:a3",
        "--",
        "d.txt:1:a4",
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"pattern": "("}, "The pattern is refused: not a regular expression: missing )"),
        ({"pattern": "a{99999999}"}, "repeats something more often"),
        ({"pattern": "a", "path": "data.bin"}, "data.bin is binary data"),
        ({"pattern": "a", "path": "nothing"}, "nothing: there is no such file or directory"),
        ({"pattern": "a", "path": "a.py/x"}, "a part of the path is a link, or no directory"),
        ({"pattern": "a", "files": "../*"}, "goes up with `..`"),
    ],
)
def test_what_cannot_be_searched_is_refused(here: Files, arguments: dict[str, str], why: str) -> None:
    pattern = arguments.pop("pattern")
    with pytest.raises(ToolCallRefused) as refused:
        search_text(here.root, pattern, SearchLimits(), **arguments)  # type: ignore[arg-type] # a table
    assert why in str(refused.value)


def test_a_pattern_that_takes_for_ever_is_refused_soon_and_lets_others_run(here: Files) -> None:
    here.put("bad.txt", f"fine\n{BAD}\n")
    ticks = list[float]()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(ToolCallRefused, match=r"takes too long on line 2 of bad\.txt"):
            search_text(here.root, SLOW, SearchLimits())
    finally:
        done.set()
        thread.join()
    assert time.monotonic() - began < 40 * LINE_TIMEOUT_S, "it would take for ever"
    assert len(ticks) > 10


def test_long_lines_are_shown_around_what_matches(here: Files) -> None:
    here.put("min.js", "x" * 5_000 + "needle" + "y" * 5_000)
    (line,) = search_text(here.root, "needle", SearchLimits()).splitlines()[1:]
    assert re.fullmatch(r"min\.js:1:\.\.\.x{100}needley+\.\.\.", line)
    assert len(line) < 450
    here.put("min.js", "x" * (MAX_SEARCHED_CHARS - 3) + "needle")
    assert search_text(here.root, "needle", SearchLimits(), path="min.js") == (
        "No line matches, of 1 file searched; there may be more, but lines are searched up to their character 100,000: "
        "look for less."
    )


def test_what_is_found_is_bounded_and_says_so(here: Files) -> None:
    for number in range(MAX_LISTED + 10):
        here.put(f"many/{number:05}.txt", "hello\n")
    many = list_paths(here.root, "many/*", SearchLimits()).splitlines()
    assert many[0] == f"{MAX_LISTED} paths; there may be more, but so many match: use a narrower pattern:"
    assert many[1:] == [f"many/{number:05}.txt" for number in range(MAX_LISTED)]
    lines = search_text(here.root, "hello", SearchLimits(), path="many").splitlines()
    assert lines[0].startswith(f"{MAX_MATCHES} lines in {MAX_MATCHES} files")
    assert "so many match" in lines[0]
    assert len(lines) == MAX_MATCHES + 1
    here.put("wide.txt", ("hello" + "x" * 390 + "\n") * 400)
    assert (
        len(search_text(here.root, "hello", SearchLimits(), path="wide.txt", context_lines=20))
        < MAX_OUTPUT_CHARS + 50_000
    )
    here.put("one.txt", "hello\n" * MAX_MATCHES)
    assert "so many" not in search_text(here.root, "hello", SearchLimits(), path="one.txt"), "that was all"


def test_names_bytes_and_time_are_bounded(here: Files) -> None:
    assert "but there are so many files" in list_paths(here.root, "**", SearchLimits(names=5))
    assert len(listed(here, "**")) > 5
    assert "but there are so many files" in search_text(here.root, "hello", SearchLimits(read_bytes=10))
    times = iter(range(1_000))
    told = list_paths(here.root, "**", SearchLimits(now=lambda: next(times), seconds=5))
    assert "but it took 5 s: use a narrower pattern" in told.splitlines()[0]
    times = iter(range(1_000))
    assert "but it took 15 s: look for less" in search_text(
        here.root, "hello", SearchLimits(now=lambda: next(times), seconds=15)
    )


def test_nothing_goes_on_when_nobody_waits(here: Files) -> None:
    here.put("a.txt", "x\n" * 50_000)
    asked = list[int]()

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 3

    search_text(here.root, "x$", SearchLimits(stopped))
    assert len(asked) < 8


def test_directories_as_deep_as_a_path_can_be_and_deeper(here: Files) -> None:
    deep = "/".join(["d"] * (MAX_PATH_PARTS - 1))
    here.put(f"{deep}/a.txt", "needle")
    here.put(f"{deep}/d/b.txt", "needle")
    told = search_text(here.root, "needle", SearchLimits())
    assert told.splitlines()[1:] == [f"{deep}/a.txt:1:needle"]
    assert "1 directories could not be opened" in told


def test_names_that_nobody_can_write_are_told_in_one_line(here: Files) -> None:
    (here.path / "a\nb.txt").write_text("needle")
    (here.path.joinpath("c\udcff.txt")).write_text("needle")
    told = search_text(here.root, "needle", SearchLimits()) + list_paths(here.root, "*.txt", SearchLimits())
    assert "a?b.txt:1:needle" in told
    assert "c?.txt:1:needle" in told
    told.encode()


some_lines = st.lists(st.text(st.sampled_from("ab \t"), max_size=6), max_size=12)


@given(some_lines, st.sampled_from(["a", "^a", "b$", r"a\s*b", "^$"]))
def test_lines_match_as_one_by_one(tmp_path_factory: pytest.TempPathFactory, lines: list[str], pattern: str) -> None:
    here = files(tmp_path_factory.mktemp("files"))
    here.put("a.txt", "\n".join(lines))
    wanted = [f"a.txt:{number}:{line}" for number, line in enumerate(lines, 1) if re.search(pattern, line)]
    if lines and not lines[-1]:
        wanted = [one for one in wanted if not one.startswith(f"a.txt:{len(lines)}:")]
    assert search_text(here.root, pattern, SearchLimits()).split("\n")[1:] == wanted
