"""Facts after a round trip through the log, conversation names and deduplication keys."""

from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import NOTIFICATION, Address, Notification
from gateway.core.facts import FACT, Fact, address_of, dedup_key
from gateway.store import LogEntry
from tests.kits import strategies


@given(strategies.facts)
def test_a_fact_read_back_is_the_same_fact(fact: Fact) -> None:
    assert FACT.validate_json(FACT.dump_json(fact)) == fact


@given(strategies.notifications)
def test_a_notification_read_back_is_the_same_notification(event: Notification) -> None:
    assert NOTIFICATION.validate_json(NOTIFICATION.dump_json(event)) == event


def test_the_strategies_cover_every_fact() -> None:
    """A fact without a strategy would not be tested."""
    covered: set[type] = set()
    for strategy in vars(strategies).values():
        if isinstance(strategy, st.SearchStrategy):
            covered.add(type(_example(strategy)))
    assert set(get_args(Fact)) <= covered


def _example(strategy: st.SearchStrategy[object]) -> object:
    found: list[object] = []

    @settings(max_examples=1)
    @given(strategy)
    def first(value: object) -> None:
        found.append(value)

    first()
    return found[0]


@given(strategies.addresses)
def test_a_conversation_is_its_address_in_one_line(address: Address) -> None:
    assert Address.parse(address.conversation) == address


@given(strategies.addresses, strategies.addresses)
def test_different_addresses_are_different_conversations(one: Address, other: Address) -> None:
    assert (one == other) == (one.conversation == other.conversation)


@given(strategies.notifications)
def test_the_same_event_seen_twice_has_one_key(event: Notification) -> None:
    again = NOTIFICATION.validate_json(NOTIFICATION.dump_json(event))
    assert dedup_key(again) == dedup_key(event)
    assert address_of(again) == address_of(event)


@given(strategies.facts, strategies.seqs, strategies.times)
def test_a_row_read_back_is_what_was_stored(fact: Fact, seq: int, at: object) -> None:
    row = (seq, str(at), fact.kind, "a/b", "k", None, FACT.dump_json(fact).decode())
    stored = LogEntry.from_row(row)
    assert (stored.seq, stored.at, stored.fact, stored.kind) == (seq, at, fact, fact.kind)
