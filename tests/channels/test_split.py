import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.split import split_markdown, split_text, utf16_length

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("a б𝄞  \n\t"), max_size=400
)


@given(text=TEXT, limit=st.integers(4, 60))
def test_pieces_fit_and_only_white_space_is_lost(text: str, limit: int) -> None:
    pieces = split_text(text, limit)
    assert all(len(piece.encode()) <= limit for piece in pieces)
    assert all(piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("", 4, ()),
        (" \n ", 4, ()),
        ("one two three", 7, ("one two", "three")),
        ("one two three", 8, ("one two", "three")),
        ("    code here", 9, ("    code", "here")),
        ("abcdefgh", 4, ("abcd", "efgh")),
        ("𝄞𝄞", 4, ("𝄞", "𝄞")),
        ("яя", 5, ("яя",)),
        ("lone \ud800", 20, ("lone ?",)),
        ("\u0e04\u0e23\u0e31\u0e1a", 8, ("\u0e04", "\u0e23\u0e31", "\u0e1a")),
        ("a 你好你好你好你好", 15, ("a 你好你好", "你好你好")),
        ("so https://x.org", 15, ("so", "https://x.org")),
    ],
)
def test_cuts_at_spaces_and_before_urls_else_between_characters(
    text: str, limit: int, pieces: tuple[str, ...]
) -> None:
    assert split_text(text, limit) == pieces


def test_a_limit_that_no_code_point_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        split_text("x", 3)


@given(
    before=st.text("ab \n", max_size=150),
    code=st.lists(st.text("x ", max_size=9), max_size=6),
    after=st.text("ab\n", max_size=40),
)
def test_a_block_that_fits_a_piece_is_not_cut(before: str, code: list[str], after: str) -> None:
    block = "\n".join(["````py", *code, "````"])
    limit = max(utf16_length(block) + 5, 64)
    pieces = split_markdown(f"{before}\n{block}\n{after}", limit)
    assert all(utf16_length(piece) <= limit for piece in pieces)
    assert any(block in piece for piece in pieces)


@pytest.mark.parametrize("shown", ["[a b](https://example.org/c_(d))", "![a b](https://x.org/c)"])
def test_a_link_is_never_parted(shown: str) -> None:
    for words in range(30):
        pieces = split_markdown(f"{'so it goes ' * words}{shown} on and on", 64)
        assert any(shown in piece for piece in pieces)


@pytest.mark.parametrize("begun", ["[", "![", "[a](", "`", "<"])
def test_a_model_that_repeats_itself_blocks_nobody(begun: str) -> None:
    """Where looking for the ends of links takes a time that grows with the square of the length,
    this takes minutes.
    """
    text = begun * 30_000
    assert "".join(split_markdown(text, 2_000)) == text
