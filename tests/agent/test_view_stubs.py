"""Cuts in shortened results: in front of a handle or behind it, because half of one would name something else."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from agent.tokens.counter import BYTES_PER_TOKEN
from agent.view import find_safe_cut, truncate

HANDLE = re.compile(r"(?<![0-9A-Za-z])[temv][0-9]+(?:[.-][0-9]+)?(?![0-9A-Za-z])")
words = st.sampled_from(["m14937", "t12.3", "v12-34", "e7", "m149.", "item5", "so", "t12.", "\n", "1234567", "v1-"])


@given(st.lists(words, max_size=20).map(" ".join), st.integers(min_value=0, max_value=200))
@example("so m14937", 7)
@example("v12-34 is it", 3)
@example("v12-34 is it", 4)
@example("t12.3", 4)
def test_no_half_of_a_handle_is_told(text: str, chars: int) -> None:
    chars = min(chars, len(text))
    at = find_safe_cut(text, chars)
    assert chars - 40 <= at <= chars
    ends = {match.end() for match in HANDLE.finditer(text)}
    for match in HANDLE.finditer(text[:at]):
        assert match.end() in ends or text[match.end() : match.end() + 1].isalpha(), (text, at)
    assert at == chars or HANDLE.match(text, at), "nothing else is left out"


def test_what_is_cut_by_tokens_ends_there_too() -> None:
    assert truncate("so it was m14937", 4) == "so it was "
    assert truncate("so it was said here", 4) == "so it was said here"[: int(4 * BYTES_PER_TOKEN)]
