"""Labels: a join over any pieces of text is as low as the lowest author, and read by nobody who may
not read each."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.labels import (
    MAX_READERS,
    TRUSTED_LABEL,
    Integrity,
    Label,
    join,
    label_of_role,
    rank_integrity,
    readers_of,
    role_of_integrity,
)
from gateway.core.scopes import OWNER_SCOPE, PUBLIC, Visibility

SCOPES = st.sampled_from(["irc/#a", "irc/#b", "telegram/1", "space:discord/9", OWNER_SCOPE])
READERS = st.frozensets(SCOPES).map(lambda scopes: tuple(sorted(scopes)))
LABELS = st.builds(
    Label, st.sampled_from(get_args(Integrity)), READERS, st.sampled_from(["", "m1", "web_fetch"])
)


@given(st.lists(LABELS), LABELS)
def test_a_join_is_the_meet_of_all_and_knows_no_order(labels: list[Label], extra: Label) -> None:
    joined = join([*labels, extra])
    ranks = [rank_integrity(one.integrity) for one in (*labels, extra)]
    assert rank_integrity(joined.integrity) == min(ranks)
    assert set(joined.readers) == {scope for one in (*labels, extra) for scope in one.readers}
    again = join([extra, *reversed(labels)])
    assert (joined.integrity, joined.readers) == (again.integrity, again.readers)
    assert joined | joined == joined


@given(LABELS, LABELS, st.builds(Visibility, scope=SCOPES, other_scopes=st.frozensets(SCOPES)))
def test_who_may_read_a_join_may_read_each_piece(
    first: Label, second: Label, there: Visibility
) -> None:
    assert there.can_read((first | second).readers) == (
        there.can_read(first.readers) and there.can_read(second.readers)
    )


def test_a_join_names_the_piece_that_is_least_trusted() -> None:
    page, guest = Label("outside", source="web_fetch"), Label("guest", source="m5")
    assert (guest | page | Label("guest", source="m7")).source == "web_fetch"
    assert (Label("guest") | guest).source == "m5"
    assert (Label(source="MEMORY.md") | TRUSTED_LABEL).source == ""


def test_a_text_of_too_many_places_is_for_the_owner_alone() -> None:
    many = join(Label(readers=(f"irc/#{number}",)) for number in range(MAX_READERS + 1))
    assert many.readers == (OWNER_SCOPE,)
    assert Visibility(scope="telegram/1", is_private=True, sees_everything=True).can_read(
        many.readers
    )
    assert not Visibility(scope="irc/#1").can_read(many.readers)


@pytest.mark.parametrize(
    ("role", "integrity", "acts_as"),
    [
        ("owner", "owner", "owner"),
        ("guest", "guest", "guest"),
        ("blocked", "outside", "guest"),
        ("anything", "outside", "guest"),
    ],
)
def test_an_author_of_no_known_role_is_outside(role: str, integrity: str, acts_as: str) -> None:
    assert label_of_role(role, "m1") == Label(integrity, source="m1")  # type: ignore[arg-type]  # of the table
    assert role_of_integrity(integrity) == acts_as


def test_a_public_text_is_for_everybody() -> None:
    assert readers_of(PUBLIC) == ()
    assert readers_of("irc/#a") == ("irc/#a",)
