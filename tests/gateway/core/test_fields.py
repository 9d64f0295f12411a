"""Values of the configuration and of ids: regular expressions, and texts made to block them; times
in ids."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.clock import id_created_at, new_id
from gateway.core.fields import REGEX_TEXT_CHARS, SKIPPED_AFTER_TIMEOUT, GuardedRegex

SLOW = r"(a|a)*b|(a+)+$c"
BAD = "a" * 40 + "!"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(", "not a regular expression: missing )"),
        ("[z-a]", "bad character range"),
        ("a" * 501, "longer than 500 characters"),
        ("a{99999999}", "repeats something more often than 1,000 times"),
        ("a{2,99999999999999999999999}", "repeats something"),
        ("(a{900}){900}", "100,000 times all in all"),
    ],
)
def test_what_is_no_expression_or_too_large_is_refused(source: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        GuardedRegex(source)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("source", "text", "answer"),
    [
        (r"\bout(age|ed)?\b", "we are out of tea", True),
        (r"^out$", "we are out of tea", False),
        ("Tea", "tea", False),
        ("(?i)Tea", "tea", True),
        (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", "10.0.0.1", True),
        (r"\p{Han}", "茶", True),
        ("end", "x" * REGEX_TEXT_CHARS + "end", False),
        ("", "", True),
    ],
)
def test_it_is_found_where_it_is(source: str, text: str, *, answer: bool) -> None:
    assert GuardedRegex(source).find(text) is answer


def test_a_flood_of_slow_texts_costs_little_and_the_expression_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expression = GuardedRegex(SLOW)
    assert not expression.find(BAD)
    assert not any(expression.find("ab") for _ in range(SKIPPED_AFTER_TIMEOUT))
    assert expression.find("ab")
    assert caplog.text.count("too slow") == 1


# Ids and the times they contain


@example(at=datetime(6326, 1, 1, 0, 0, 0, 99991, tzinfo=UTC))  # no float holds it
@given(
    at=st.datetimes(
        min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
        max_value=datetime(9999, 1, 1),  # noqa: DTZ001 - the same
        timezones=st.just(UTC),
    )
)
def test_when_an_id_was_made(at: datetime) -> None:
    found = id_created_at(new_id(at))
    assert found is not None
    assert timedelta(0) <= at - found < timedelta(milliseconds=1)


@pytest.mark.parametrize("other", ["", "t1", "0" * 25, "0" * 27, "u" * 26, "Z" * 26])
def test_other_ids_tell_no_time(other: str) -> None:
    assert id_created_at(other) is None
