"""Budget for tool results: never exceeded, and always used if there is anything to show."""

from hypothesis import example, given
from hypothesis import strategies as st

from agent.models.base import ModelMessage, ModelRequest, TextPart
from agent.prompt import CALL_TOKENS
from agent.tokens.counter import estimate_tokens
from agent.turn_context import RESULT_FRAME_TOKENS, ContextWindow, count_fitting_chars, share_budget
from tests.kits.scripted_turn import LOOK_UP

TEXTS = st.lists(
    st.tuples(st.sampled_from(["a", "ab\n", "é", "語", "👩‍👩‍👧"]), st.integers(0, 6_000)).map(
        lambda pair: pair[0] * pair[1]
    ),
    max_size=6,
)
TOKENS = st.integers(0, 8_000)


@given(TEXTS, TOKENS, TOKENS, st.integers(-500, 8_000), st.booleans())
@example(["a" * 40_000, "a" * 400, "a" * 40_000], 18_000, 36_000, 100_000, False)
def test_no_more_is_told_than_there_is(texts: list[str], left: int, most: int, room: int, asked: bool) -> None:
    shares, rest = share_budget(texts, left, most, room, is_excerpt=[asked] * len(texts))
    told = [text[: one.chars] for text, one in zip(texts, shares, strict=True)]
    sizes = [estimate_tokens(text) if text else 0 for text in told]
    assert sum(sizes) <= left - rest + RESULT_FRAME_TOKENS * len(texts)
    assert 0 <= rest <= left
    for one, size, text in zip(shares, sizes, texts, strict=True):
        assert size <= max(most, RESULT_FRAME_TOKENS)
        assert one.chars is None or one.chars < len(text)
        assert not one.is_oversized or (estimate_tokens(text) > most and one.chars is not None)
        assert one.chars is None or estimate_tokens(text) > RESULT_FRAME_TOKENS  # its summary would be as long
    framed = sum(sizes) + sum(CALL_TOKENS + (RESULT_FRAME_TOKENS if one.chars is not None else 0) for one in shares)
    assert framed <= max(0, room) + (2 * RESULT_FRAME_TOKENS + CALL_TOKENS) * len(texts)


def test_what_fits_is_whole_and_what_does_not_leaves_half_for_what_comes_later() -> None:
    page, book = "a" * 28_000, "b" * 350_000
    shares, left = share_budget([page, book, page], 18_000, 36_000, 100_000, is_excerpt=[False] * 3)
    assert shares[0].chars is None
    assert shares[1].chars == count_fitting_chars(book, (18_000 - 8_004) // 2)
    assert shares[1].is_oversized
    assert not shares[2].is_oversized
    assert (shares[2].chars or 0) > 8_000
    assert left > 2_000
    (asked,), left = share_budget([page], 1_000, 36_000, 100_000, is_excerpt=[True])
    assert (asked.chars, left) == (count_fitting_chars(page, 1_000), 0)


@given(st.text(max_size=200), st.integers(-5, 300))
def test_a_beginning_has_no_more_tokens_than_that(text: str, tokens: int) -> None:
    text = text.encode("utf-8", "ignore").decode()
    chars = count_fitting_chars(text, tokens)
    assert estimate_tokens(text[:chars]) <= max(4, tokens)
    assert chars == len(text) or estimate_tokens(text[: chars + 1]) >= tokens - 1


def asked(tokens: int) -> ModelRequest:
    said = ModelMessage(role="user", parts=(TextPart(text="x" * int(tokens * 3.5)),))
    return ModelRequest(blocks=(), conversation=(said,), tools=(LOOK_UP,), max_output_tokens=1_000, shared_key="k")


def test_a_bill_corrects_what_was_thought_of_a_prompt() -> None:
    window = ContextWindow(16_000, 1_000)
    estimate = window.measure(asked(7_000))
    assert 7_000 < estimate < 7_100
    assert window.remaining_tokens() == 14_000 - estimate
    window.record_bill(0)  # some servers tell nothing
    window.record_bill(10)
    assert window.remaining_tokens() == 14_000 - estimate
    window.record_bill(2 * estimate)
    assert -100 < window.remaining_tokens() <= 0
    window.measure(asked(3_500))
    assert 3_400 < window.remaining_tokens() < 3_600
    window.record_bill(3_500)
    assert window.remaining_tokens() > 10_000


def test_a_prompt_that_is_refused_was_larger_than_the_window() -> None:
    window = ContextWindow(16_000, 1_000)
    window.measure(asked(7_000))
    window.record_refusal()
    assert -2_500 < window.remaining_tokens() < -1_500
    window.measure(asked(4_000))
    assert window.remaining_tokens() > 0
    window.record_bill(100_000)
    room = window.remaining_tokens()
    window.record_refusal()  # the bill says more
    assert window.remaining_tokens() == room < -3_000
