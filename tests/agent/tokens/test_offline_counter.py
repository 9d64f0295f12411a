"""The offline counter: the real ranks, no network, little memory, and no blocking."""

import gzip
import json
import logging
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tokens.counter import (
    _GENERATION_SIZE,
    MAX_EXACT_CHARS,
    RANKS_FILE,
    MemoizedCount,
    OfflineCounter,
    count_heuristically,
    load_tokenizer,
)

ROOT = Path(__file__).parents[3]
OFFLINE = """
import json, sys
from tests.agent.tokens.memory_probe import run
json.dump(run(), sys.stdout)
"""
SPECIAL = "<|endoftext|> and <|fim_prefix|>"


@pytest.fixture(scope="module")
def counter() -> OfflineCounter:
    made = OfflineCounter(load_after_s=0)
    made.count("load")
    made.wait_loaded()
    made.count("use")
    assert made.method == "tiktoken"
    return made


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("naïve — 😀", 5),
        ("\ud800", 1),  # half a surrogate pair, as JSON may hold: counted as the replacement character
        ("a\ud800b", 3),
        ("\x00\x07", 2),
        ("<|endofprompt|>", 7),  # ordinary text, not the one special token
    ],
)
def test_texts(counter: OfflineCounter, text: str, tokens: int) -> None:
    assert counter.count(text) == tokens
    assert counter.count(text) == tokens


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_any_text_has_a_number_of_tokens(counter: OfflineCounter, text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert (size + 127) // 128 <= counter.count(text) <= size
    assert size / 3.5 <= count_heuristically(text) < size / 3.5 + 1


def test_it_counts_as_tiktoken_itself_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # under which tiktoken keeps what it downloaded
    (tmp_path / name).write_bytes(gzip.decompress(RANKS_FILE.read_bytes()))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    import tiktoken  # noqa: PLC0415 - the published one, for comparison only

    published, ours = tiktoken.get_encoding("cl100k_base"), load_tokenizer()
    assert published._pat_str == ours._pat_str
    for path in (ROOT / "ARCHITECTURE.md", ROOT / "agent/tokens/counter.py", ROOT / "tests/kits/strategies.py"):
        text = path.read_text(encoding="utf-8") + "\u3042 \u05d0  \n\n\t" + SPECIAL
        assert ours.encode_ordinary(text) == published.encode(text, disallowed_special=())


def test_a_very_long_text_is_estimated_from_slices(counter: OfflineCounter) -> None:
    line = "The quick brown fox said: 'naïve' (twice!), 12345 times. "
    text = line * (MAX_EXACT_CHARS * 4 // len(line))
    exact = sum(counter.count(text[at : at + 10_000]) for at in range(0, len(text), 10_000))
    assert abs(counter.count(text) - exact) < exact * 0.02
    assert abs(counter.count("x" * MAX_EXACT_CHARS) - counter.count("x" * (MAX_EXACT_CHARS + 1))) <= 16
    uneven = "word " * 800 + " " * 1_000_000  # only the first slice is dense, and stands for a sixteenth
    assert 19_000 < counter.count(uneven) < 20_500  # not 13,700, as if counted whole


def test_until_it_is_loaded_bytes_are_counted() -> None:
    made = OfflineCounter(load_after_s=60)
    text = "antidisestablishmentarianism " * 10
    assert (made.method, made.count(text)) == ("heuristic", count_heuristically(text))
    made.close()
    made.close()
    assert (made.method, made.count(text)) == ("heuristic", count_heuristically(text))


def test_what_was_counted_roughly_is_counted_again() -> None:
    made = OfflineCounter(load_after_s=0)
    text = "antidisestablishmentarianism " * 10
    rough = made.count(text)
    made.wait_loaded()
    assert made.count(text) == 61 != rough
    made.close()


@pytest.mark.parametrize("how", ["missing", "cut", "not gzip", "a bit flipped", "garbage", "another file", "endless"])
def test_with_broken_ranks_bytes_are_counted_and_it_is_said_once(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cl100k_base.tiktoken.gz"
    whole = RANKS_FILE.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    content = {
        "cut": whole[:-1000],
        "not gzip": b"<html>",
        "a bit flipped": bytes(flipped),
        "garbage": whole[:20] + b"\xff" * 1000 + whole[1020:],
        "another file": gzip.compress(gzip.decompress(whole)[:-20]),
        "endless": gzip.compress(b"\0" * 50_000_000),
    }
    if how != "missing":
        file.write_bytes(content[how])
    made = OfflineCounter(file=file, load_after_s=0)
    with caplog.at_level(logging.DEBUG):
        for word in ("one", "two", "two"):
            assert made.count(word * 100) == count_heuristically(word * 100)
            made.wait_loaded()
    made.close()
    assert made.method == "heuristic"
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("tokens are estimated from bytes: cl100k_base.tiktoken.gz ")


def test_a_round_over_a_whole_past_counts_each_text_once() -> None:
    asked: list[str] = []

    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    remembered = MemoizedCount(length)
    for number in range(1_000):
        remembered(f"before {number}")
    asked.clear()
    texts = [str(number) for number in range(_GENERATION_SIZE)]
    for _ in range(4):
        assert [remembered(text) for text in texts] == [len(text) for text in texts]
    assert len(asked) == len(texts)
    for number in range(5 * _GENERATION_SIZE):
        remembered(f"other {number}")
    assert len(remembered._young) + len(remembered._old) <= 2 * _GENERATION_SIZE


def test_importing_it_imports_no_tokenizer_and_no_http_client() -> None:
    code = (
        "import sys, agent.tokens.endpoint;"
        "sys.exit(any(name in sys.modules for name in ('tiktoken', 'requests', 'regex', 'httpx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=ROOT).returncode == 0


def _without_network() -> list[str]:
    """A namespace of its own without any interface, where the system lets us; the audit hook watches anyway."""
    unshare = shutil.which("unshare")
    prefix = [unshare, "-rn"] if unshare else []
    allowed = prefix and subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=10).returncode == 0
    return prefix if allowed else []


def test_it_counts_without_a_network_and_asks_for_none(tmp_path: Path) -> None:
    command = [*_without_network(), sys.executable, "-c", OFFLINE]
    environment = {"PYTHONPATH": str(ROOT), "TIKTOKEN_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["network"] == []
    assert told["imported"] == ["tiktoken"]
    assert told["count"] == 2
    assert told["method"] == "tiktoken"
    assert list(tmp_path.iterdir()) == []  # and nothing is kept outside of memory
    assert all(late >= early for early, late in pairwise(told["resident_mb"]))
    assert told["resident_mb"][1] - told["resident_mb"][0] < 2.0  # before the first count
    assert (
        told["resident_mb"][2] - told["resident_mb"][1] < 36.0
    )  # loaded: 28, and 42 if Python kept a copy of the ranks
