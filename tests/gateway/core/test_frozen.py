"""Frozen data classes against those of `dataclasses`, which they stand for."""

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.core.frozen import frozen

by_dataclasses = dataclass(frozen=True, slots=True, kw_only=True)


def declare(decorate: Callable[[type], type]) -> Any:
    class Base:
        kind: ClassVar[str] = "base"
        required: int
        optional: int | None = None
        made: list[int] = field(default_factory=list)
        hidden: int = field(default=0, repr=False)
        aside: int = field(default=0, compare=False)
        cache: dict[str, int] = field(default_factory=dict, init=False, compare=False)
        double: int = field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.required)

    base: Any = decorate(Base)

    class Derived(base):  # type: ignore[misc]  # made at run time
        optional: int | None = 7
        other: str = ""

        def __repr__(self) -> str:
            return "its own"

    return base, decorate(Derived)


OURS, THEIRS = declare(frozen), declare(by_dataclasses)
VALUES = st.fixed_dictionaries(
    {"required": st.integers(0, 1)},
    optional={name: st.integers(0, 1) for name in ("optional", "hidden", "aside")}
    | {"made": st.lists(st.integers(0, 1), max_size=1)},
)


@pytest.mark.parametrize("which", [0, 1])
@given(first=VALUES, second=VALUES)
def test_an_instance_is_shown_and_compared_as_one_of_dataclasses(
    which: int, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    ours, theirs = OURS[which], THEIRS[which]
    one, other, there = ours(**first), ours(**second), theirs(**first)
    assert repr(one) == repr(there)
    assert (one == other) == (there == theirs(**second))
    assert {each.name: getattr(one, each.name) for each in fields(one)} == {
        each.name: getattr(there, each.name) for each in fields(there)
    }
    assert TypeAdapter(ours).dump_json(one) == TypeAdapter(theirs).dump_json(there)
    for again in (replace(one), copy.copy(one), copy.deepcopy(one)):
        assert again == one
        assert again.double == one.double


@frozen(kw_only=False)
class Point:
    x: int
    y: int = 0


def test_equal_instances_are_the_same_key_and_survive_a_pickle() -> None:
    assert {Point(1): "there"}[Point(1, 0)] == "there"
    assert Point(1) != Point(0, 1)
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)
    by_identity: Any = frozen(eq=False)(type("Thing", (), {}))
    assert by_identity() != by_identity()


def test_no_field_changes_and_a_subclass_has_attributes_of_its_own() -> None:
    class Named(Point):
        def __init__(self) -> None:
            super().__init__(1)
            self.name = "origin"

    for one in (Point(1), Named()):
        with pytest.raises(FrozenInstanceError):
            one.x = 2  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            del one.x
    assert Named().name == "origin"


@pytest.mark.parametrize("given", [{}, {"x": 1, "z": 2}])
def test_arguments_that_are_no_fields_or_missing_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Point.__init__\(\)"):
        Point(**given)


def test_a_class_with_an_equality_of_its_own_is_a_key_and_one_without_slots_keeps_all_it_holds() -> (
    None
):
    @frozen(slots=False)
    class Name:  # noqa: PLW1641 - `frozen` makes it
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name) and other.text.lower() == self.text.lower()

        @cached_property
        def length(self) -> int:
            return len(self.text)

    one = Name(text="Ann")
    assert one in {Name(text="Ann"): 1}
    assert one == Name(text="ann")
    assert (one.length, vars(copy.copy(one))) == (3, {"text": "Ann", "length": 3})
