"""Slots of llama.cpp: who keeps one, who loses his, what is prepared."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelRequest, SystemBlock
from agent.models.llamacpp import LlamaCppSlots, prompt_prefix
from tests.kits.models import TOOL, request

LONG = SystemBlock(name="identity", text="You are Reverie. " * 100, ttl="long")


def of(place: str, identity: SystemBlock = LONG) -> ModelRequest:
    return replace(request(blocks=(identity,)), conversation_id=place)


def used(slots: LlamaCppSlots, place: str, tokens: int = 50, identity: SystemBlock = LONG) -> int:
    number = slots.acquire(of(place, identity))
    assert number is not None
    slots.release(number, tokens=tokens)
    return number


def prepare_all(slots: LlamaCppSlots) -> None:
    prefix = prompt_prefix(of(""))
    while (number := slots.acquire_spare(frozenset({prefix}))) is not None:
        slots.release_prepared(number, prefix)


def test_a_conversation_keeps_its_slot_while_there_are_enough() -> None:
    slots = LlamaCppSlots(3)
    prepare_all(slots)
    first = [used(slots, place) for place in "abc"]
    assert sorted(first) == [0, 1, 2]
    assert [used(slots, place) for place in "cab"] == [first[2], first[0], first[1]]
    assert slots.held_tokens(first[0]) == 50


def test_the_one_that_was_quiet_for_longest_loses_its_own() -> None:
    slots = LlamaCppSlots(2)
    prepare_all(slots)
    a, b = used(slots, "a"), used(slots, "b")
    used(slots, "a")
    assert used(slots, "c") == b
    assert slots.held_tokens(b) == 50
    assert used(slots, "b") == a


def test_a_new_conversation_rather_begins_where_its_beginning_is() -> None:
    slots = LlamaCppSlots(2)
    a = used(slots, "a", tokens=10)  # nothing is prepared yet, and little would be lost
    assert used(slots, "b") == a
    slots = LlamaCppSlots(2)
    a = used(slots, "a", tokens=9_999)  # here more would be lost than saved
    assert used(slots, "b") != a
    slots = LlamaCppSlots(2)
    a = used(slots, "a", tokens=10)
    assert used(slots, "b", identity=replace(LONG, text="Another agent.")) != a


def test_busy_slots_are_left_alone() -> None:
    slots = LlamaCppSlots(2)
    a, b = slots.acquire(of("a")), slots.acquire(of("b"))
    assert {a, b} == {0, 1}
    assert slots.acquire(of("c")) is None
    assert slots.acquire_spare(frozenset()) is None


def test_what_nobody_knows_keeps_what_was_known() -> None:
    slots = LlamaCppSlots(1)
    used(slots, "a", tokens=7)
    number = slots.acquire(of("a"))
    assert number == 0
    slots.release(number, tokens=None)
    assert slots.held_tokens(0) == 7


def test_only_slots_of_nobody_are_prepared_and_only_if_they_need_it() -> None:
    slots = LlamaCppSlots(2)
    kept = used(slots, "a")
    other = slots.acquire_spare(frozenset({"x"}))
    assert other not in {None, kept}
    slots.release_prepared(1 - kept, "")  # broken off
    assert slots.acquire_spare(frozenset({"x"})) == other
    slots.release_prepared(1 - kept, "x")
    assert slots.acquire_spare(frozenset({"x"})) is None
    assert slots.acquire_spare(frozenset({"y"})) == other  # the identity was edited


def test_an_agent_s_beginning_takes_no_other_s_last_slot() -> None:
    slots = LlamaCppSlots(2)
    for _ in range(2):
        number = slots.acquire_spare(frozenset({"x"}))
        assert number is not None
        slots.release_prepared(number, "x")
    known = frozenset({"x", "y", "z"})
    assert slots.acquire_spare(known) is None  # what is only spread takes none
    assert slots.acquire_spare(known, wanted="y") == 0  # one of two
    slots.release_prepared(0, "y")
    assert slots.acquire_spare(known, wanted="z") is None
    assert slots.acquire_spare(known, wanted="x") == 1  # its own
    slots.release_prepared(1, "x")
    assert slots.acquire_spare(frozenset({"y", "z"}), wanted="z") == 1  # the identity of x was edited


def test_an_empty_slot_comes_before_one_that_others_began() -> None:
    slots = LlamaCppSlots(3)
    for number in (0, 1):
        assert slots.acquire_spare(frozenset({"x"})) == number
        slots.release_prepared(number, "x")
    assert slots.acquire_spare(frozenset({"x", "y"}), wanted="y") == 2


def test_a_prefix_is_tools_and_identity() -> None:
    assert prompt_prefix(replace(of("a"), tools=(TOOL,))) != prompt_prefix(of("a")) == prompt_prefix(of("b"))
    assert prompt_prefix(request(blocks=())) == ""


@given(st.integers(1, 4), st.lists(st.sampled_from("abcdef"), max_size=40))
def test_no_slot_is_given_twice_and_each_place_has_one(total: int, places: list[str]) -> None:
    slots = LlamaCppSlots(total)
    where: dict[str, int] = {}
    for place in places:
        number = slots.acquire(of(place))
        assert number is not None
        if where.get(place) is not None:
            assert number == where[place]
        assert 0 <= number < total
        slots.release(number, tokens=1)
        where = {other: at for other, at in where.items() if at != number} | {place: number}
