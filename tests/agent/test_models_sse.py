"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models import sse
from agent.models.sse import Event, Parser, TooLarge

STREAM = (
    '\ufeff: welcome\r\n\r\nevent: message_start\r\ndata: {"a":\r\ndata: "ö€😀"}\r\n\r\n'
    "data:no space\n\n: ping\nid: 7\nretry: 10\nevent: nothing\n\ndata\rdata: \u2028 x\r\rdata: cut off"
).encode()
EVENTS = [
    Event(name="message_start", data='{"a":\n"ö€😀"}'),
    Event(name="", data="no space"),
    Event(name="", data="\n\u2028 x"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_cutting_gives_the_same_events(cuts: list[int]) -> None:
    parser = Parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.data())
def test_every_data_survives(datas: list[str], data: st.DataObject) -> None:
    wire = "".join(f"data: {d}\n\n" for d in datas).encode()
    cut = data.draw(st.integers(0, len(wire)))
    parser = Parser()
    events = parser.feed(wire[:cut]) + parser.feed(wire[cut:])
    assert [event.data for event in events] == datas


@given(st.binary())
def test_garbage_never_raises(garbage: bytes) -> None:
    Parser().feed(garbage)


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert Parser().feed(b"data: \xff\n\n") == [Event(name="", data="\ufffd")]


def test_one_event_is_bounded_but_keep_alives_are_not() -> None:
    parser = Parser()
    for _ in range(3):
        parser.feed(b": " + b"x" * (sse.LIMIT_BYTES // 2) + b"\n\n")
    parser.feed(b"data: " + b"x" * (sse.LIMIT_BYTES // 2) + b"\n")
    with pytest.raises(TooLarge):
        parser.feed(b"data: " + b"x" * (sse.LIMIT_BYTES // 2) + b"\n")
