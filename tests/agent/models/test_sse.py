"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models import http
from agent.models.http import SseEvent, SseEventTooLarge, SseParser

STREAM = (
    '\ufeff: welcome\r\n\r\nevent: message_start\r\ndata: {"a":\r\ndata: "ö€😀"}\r\n\r\n'
    "data:no space\n\n: ping\nid: 7\nretry: 10\nevent: nothing\n\ndata\rdata: \u2028 x\r\rdata: cut off"
).encode()
EVENTS = [
    SseEvent(name="message_start", data='{"a":\n"ö€😀"}'),
    SseEvent(name="", data="no space"),
    SseEvent(name="", data="\n\u2028 x"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_cutting_gives_the_same_events(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.data())
def test_every_data_survives(datas: list[str], data: st.DataObject) -> None:
    wire = "".join(f"data: {d}\n\n" for d in datas).encode()
    cut = data.draw(st.integers(0, len(wire)))
    parser = SseParser()
    events = parser.feed(wire[:cut]) + parser.feed(wire[cut:])
    assert [event.data for event in events] == datas


@given(st.binary())
def test_garbage_never_raises(garbage: bytes) -> None:
    SseParser().feed(garbage)


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert SseParser().feed(b"data: \xff\n\n") == [SseEvent(name="", data="\ufffd")]


def test_one_event_is_bounded_but_keep_alives_are_not() -> None:
    parser = SseParser()
    for _ in range(3):
        parser.feed(b": " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n\n")
    parser.feed(b"data: " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n")
    with pytest.raises(SseEventTooLarge):
        parser.feed(b"data: " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n")
