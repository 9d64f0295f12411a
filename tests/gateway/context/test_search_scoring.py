"""Which words are looked up, and what they tell."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.search import (
    AGE_FLOOR,
    ENGLISH_STOP_WORDS,
    FRENCH_STOP_WORDS,
    GERMAN_STOP_WORDS,
    HALF_LIFE,
    MAX_CHANCE_TEXTS,
    MAX_LOOKED_UP_TERMS,
    MAX_TERMS,
    NOTE_WEIGHT,
    RUSSIAN_STOP_WORDS,
    SPANISH_STOP_WORDS,
    TermWeights,
    apply_age,
    build_term_phrases,
    extract_terms,
    find_terms_in,
    normalize_text,
    score_candidates,
    weigh_terms,
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("What about the harbour in Kiel?", {"harbour", "kiel"}),
        ("isn't Ada's e-mail in docs/plan.md, or ABC-1234?", {"e-mail", "docs/plan.md", "abc-1234"}),
        ("see https://example.org/a_b?c=d&e=4711", {"https://example.org/a_b", "4711"}),
        ("ada@example.org, #python and __init__.py", {"ada@example.org", "python", "init__.py"}),
        ("v2 of k8s at 10:30 on 12 of 127.0.0.1", {"k8s", "10:30", "127.0.0.1"}),
        ("Können wir über den Hafen sprechen?", {"hafen", "sprechen"}),
        ("L'église est très vieille", {"église", "vieille"}),
        ("¿Dónde está el puerto?", {"puerto"}),
        ("Почему порт ещё открыт?", {"порт", "открыт"}),
        ("e\u0301cole", {"école"}),
        ("항구는 언제", {"항구는", "언제"}),
        ("港は月曜", {"港は月曜"}),
        ("हिन्दी में", {"हिन्दी"}),
        ("?? ... -- 42 a bc \u0301 \x00 👍", set()),
        ("_____", set()),
    ],
)
def test_names_of_things_are_looked_up_and_what_says_nothing_is_not(line: str, found: set[str]) -> None:
    assert set(extract_terms([line])) == found


@pytest.mark.parametrize(
    "words", [ENGLISH_STOP_WORDS, GERMAN_STOP_WORDS, FRENCH_STOP_WORDS, SPANISH_STOP_WORDS, RUSSIAN_STOP_WORDS]
)
def test_stop_words_are_not_looked_up_in_any_case(words: str) -> None:
    for word in words.split():
        assert extract_terms([word]) == extract_terms([word.upper()]) == [], word


def test_the_newest_message_comes_first_and_in_it_what_looks_like_a_name() -> None:
    assert extract_terms(["the lighthouse", "a boat, the harbour, and plan.py"]) == [
        "plan.py",
        "harbour",
        "boat",
        "lighthouse",
    ]
    many = extract_terms([f"older{number}" for number in range(99)] + ["newest"])
    assert len(many) == MAX_LOOKED_UP_TERMS
    assert many[:2] == ["newest", "older98"]


@given(st.lists(st.text(), max_size=5))
def test_any_text_gives_terms_that_can_be_looked_for(lines: list[str]) -> None:
    found = extract_terms(lines)
    assert len(found) <= MAX_LOOKED_UP_TERMS
    assert len(set(found)) == len(found)
    for term in found:
        assert normalize_text(term), term
        assert find_terms_in(
            normalize_text(f"so {term}, then"), build_term_phrases(TermWeights(terms={term: 1.0}, threshold=0.0))
        ) == [term]


def test_words_are_found_whole() -> None:
    weights = TermWeights(terms={"plan.md": 1.0, "boat": 1.0}, threshold=0.0)
    assert find_terms_in(normalize_text("PLAN.md"), build_term_phrases(weights)) == ["plan.md"]
    assert find_terms_in(normalize_text("boats, planmd, plan: a.md"), build_term_phrases(weights)) == []


def test_the_rarer_a_word_is_the_more_it_tells() -> None:
    uses = {"once": [7], "often": list(range(1_000, 900, -1)), "always": list(range(20_000, 19_900, -1)), "never": []}
    weights = weigh_terms(uses, 20_000, 100)
    assert set(weights.terms) == {"once", "often", "never"}, "each second text holds `always`"
    assert weights.terms["once"] == weights.terms["never"] > weights.terms["often"]
    assert len(weigh_terms({f"t{number}": [number + 1] for number in range(50)}, 20_000, 100).terms) == MAX_TERMS


def test_one_common_word_is_not_enough_and_two_are() -> None:
    uses = {"alpha": list(range(1, 200, 2)), "beta": list(range(1, 300, 3)), "gamma": [500]}
    found = score_candidates(uses, weigh_terms(uses, 20_000, 1_000), notes=())
    assert set(found) == {*range(1, 200, 6), 500}
    assert found[500] > found[1], "what is very rare tells more than what is rather rare twice"
    noted = score_candidates(uses, weigh_terms(uses, 20_000, 1_000), notes={3, 5})
    assert {*noted} - {*found} == {3, 5}, "fewer words are enough for a note"


@pytest.mark.parametrize("uses", [1, MAX_CHANCE_TEXTS])
def test_in_a_small_store_a_word_is_enough(uses: int) -> None:
    found = {"harbour": list(range(uses, 0, -1))}
    assert len(score_candidates(found, weigh_terms(found, 2 * uses, 100), notes=())) == uses


def test_notes_count_twice_and_age_counts_half() -> None:
    weights = TermWeights(terms={"a": 3.0, "b": 4.0}, threshold=1.0)
    assert weights.score(["a", "b"], noted=False) == 25.0
    assert weights.score(["a", "b"], noted=True) == 25.0 * NOTE_WEIGHT
    assert apply_age(8.0, timedelta(0)) == apply_age(8.0, -HALF_LIFE) == 8.0
    assert apply_age(8.0, HALF_LIFE) == 8.0 * (1 + AGE_FLOOR) / 2
    assert apply_age(8.0, timedelta(days=10_000)) == pytest.approx(8.0 * AGE_FLOOR)
