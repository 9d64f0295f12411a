"""However much comes to mind, it fits, and each piece is a line."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from agent.tokens.counter import estimate_tokens
from gateway.context.recall import RECALL_HEADER, RECALL_HEADER_TOKENS, RecallBuilder, RecallResult
from gateway.context.search import quote_text
from gateway.core.redaction import Redactor


@given(st.lists(st.text(max_size=400), max_size=12), st.integers(0, 400))
def test_what_is_told_fits_and_each_piece_is_a_line(texts: list[str], tokens: int) -> None:
    telling = RecallBuilder(tokens, redactor=Redactor())
    room = [telling.add(f"p:{number}", text, partial(quote_text, text, ())) for number, text in enumerate(texts)]
    told = telling.build()
    header, *lines = told.text.split("\n")
    assert len(lines) == len(told.names) <= sum(room)
    assert len(set(lines)) == len(lines)
    assert told == RecallResult() or (header == RECALL_HEADER and estimate_tokens(told.text) <= tokens)
    assert tokens > RECALL_HEADER_TOKENS or not told.text


def test_the_most_that_fits_is_quoted() -> None:
    telling = RecallBuilder(RECALL_HEADER_TOKENS + 30, redactor=Redactor())
    assert telling.add("a", "x" * 1_000, partial(quote_text, "x" * 1_000, ()))
    assert telling.build().text.count("x") == 80
    assert not telling.add("b", "y" * 1_000, partial(quote_text, "y" * 1_000, ()))
    assert telling.add("c", "x" * 1_000, partial(quote_text, "x" * 1_000, ())), "it is told already"
    assert telling.build().names == ("a",)
