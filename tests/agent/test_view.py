from hypothesis import given
from hypothesis import strategies as st

from agent import view
from agent.tokens.counter import estimate_tokens

sizes = st.lists(st.integers(1, 500), max_size=60)


@given(sizes, st.integers(1, 5_000))
def test_a_fold_leaves_room_to_grow(tokens: list[int], budget: int) -> None:
    start = view.fold_start(tokens, budget)
    if sum(tokens) <= budget:
        assert start == 0
    else:
        assert sum(tokens[start:]) <= budget * view.KEEP_SHARE
        assert start == len(tokens) or sum(tokens[start - 1 :]) > budget * view.KEEP_SHARE  # no more than needed


@given(st.integers(1_000, 1_000_000), st.integers(0, 64_000))
def test_an_answer_always_has_room(context_tokens: int, output_tokens: int) -> None:
    usable = view.usable_tokens(context_tokens, output_tokens)
    assert usable <= max(256, context_tokens - min(output_tokens, context_tokens // 4))
    assert usable <= max(context_tokens * view.WINDOW_SHARE, view.MIN_USABLE_TOKENS)


lines = st.lists(st.tuples(st.integers(1, 500), st.booleans()), min_size=1, max_size=60)


@given(lines, st.integers(1, 5_000))
def test_what_is_said_to_the_agent_is_told_from_the_oldest_and_never_passed_over(
    unread: list[tuple[int, bool]], budget: int
) -> None:
    sizes, spoken = [size for size, _ in unread], [said for _, said in unread]
    told, more = view.choose_unread(sizes, spoken, budget)
    assert list(told) == sorted(set(told))
    assert len(told) == 1 or sum(sizes[index] for index in told) <= budget * view.UNREAD_SHARE
    addressed = [index for index, said in enumerate(spoken) if said]
    shown = [index for index in told if spoken[index]]
    assert shown == addressed[: len(shown)]
    assert more == (len(shown) < len(addressed))
    assert not more or len(shown) == len(told)  # no room for what was overheard
    overheard = [index for index in told if not spoken[index]]
    assert (
        overheard
        == [index for index, said in enumerate(spoken) if not said][len(spoken) - len(addressed) - len(overheard) :]
    )


def test_folds_are_seldom() -> None:
    tokens: list[int] = []
    folds = 0
    for _ in range(1_000):
        tokens.append(50)
        if start := view.fold_start(tokens, 4_000):
            folds += 1
            tokens = tokens[start:]
    assert folds < 30  # not once a turn: between folds the prefix stays cached


def test_estimates_err_on_the_high_side_for_plain_english() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 20  # 201 tokens by cl100k_base
    assert 201 <= estimate_tokens(text) <= 300
