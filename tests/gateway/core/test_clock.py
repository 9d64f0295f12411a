"""Ids and the times they contain."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.clock import id_created_at, new_id


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
