"""The cache of the Messages API fake: https://platform.claude.com/docs/en/build-with-claude/prompt-caching."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kits.examples import examples
from tests.servers.messages_cache import IMAGE_TOKENS, LIFETIME_S, MessagesCache, Usage, missed
from tests.servers.messages_prompt import Json

MODEL = "claude-sonnet-5-5"
OLD = "claude-sonnet-4-5"


def block(text: str, ttl: str = "", **more: Any) -> Json:
    mark = {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {}
    return {"type": "text", "text": text, **more, **mark}


def said(*content: Json, role: str = "user") -> Json:
    return {"role": role, "content": list(content)}


def body(*content: Json, system: tuple[Json, ...] = (), **more: Any) -> Json:
    """Make a request of one message; a text's tokens are its characters."""
    return {"model": MODEL, "max_tokens": 1, "system": list(system), "messages": [said(*content)], **more}


def fresh(minimum: int | None = 0) -> MessagesCache:
    return MessagesCache(len, minimum=minimum)


def send(cache: MessagesCache, asked: Json, at_s: float = 0.0, workspace: str = "") -> Usage:
    ticket = cache.begin(asked, at_s=at_s, workspace=workspace)
    cache.began(ticket)
    return ticket.usage


def test_a_mark_is_written_once_and_then_read() -> None:
    cache = fresh()
    asked = body(block("now"), system=(block("x" * 100, "1h"), block("y" * 10, "5m")))
    assert send(cache, asked) == Usage(3, 0, 10, 100)
    assert send(cache, asked, 1) == Usage(3, 110, 0, 0)


def test_what_differs_in_front_of_a_mark_is_not_read() -> None:
    cache = fresh()
    send(cache, body(block("now"), system=(block("x" * 100), block("y" * 10, "5m"))))
    assert send(cache, body(block("now"), system=(block("x" * 99 + "z"), block("y" * 10, "5m")))) == Usage(3, 0, 110, 0)
    assert send(cache, body(block("now"), system=(block("x" * 100), block("z" * 10, "5m")))) == Usage(3, 0, 110, 0)


def test_a_common_prefix_without_a_mark_is_no_entry() -> None:
    cache = fresh()
    send(cache, body(block("now", "5m"), system=(block("x" * 100),)))
    assert send(cache, body(block("then", "5m"), system=(block("x" * 100),))) == Usage(0, 0, 104, 0)


def test_a_later_mark_reads_the_longest_entry_in_front_of_it() -> None:
    cache = fresh()
    first, second = [block("a" * 10), block("b" * 20, "5m")], [block("a" * 10), block("b" * 20), block("c" * 30, "5m")]
    send(cache, body(*first))
    assert send(cache, body(*second)) == Usage(0, 30, 30, 0)
    assert send(cache, body(*second, block("tail"))) == Usage(4, 60, 0, 0)


@pytest.mark.parametrize(("added", "read"), [(19, 10), (20, 0)])
def test_a_mark_looks_back_twenty_positions_its_own_first(added: int, read: int) -> None:
    cache = fresh()
    send(cache, body(block("a" * 10, "5m")))
    more = [block(f"{i:02}") for i in range(added - 1)]
    assert send(cache, body(block("a" * 10), *more, block("zz", "5m"))).cache_read_input_tokens == read


def test_each_mark_looks_back_for_itself() -> None:
    cache = fresh()
    send(cache, body(block("a" * 10, "5m")))
    more = [block(f"{i:02}") for i in range(30)]
    asked = body(block("a" * 10, "5m"), *more, block("zz", "5m"))
    assert send(cache, asked) == Usage(0, 10, 62, 0)
    assert send(cache, asked) == Usage(0, 72, 0, 0)


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("claude-opus-5-5", 512),
        ("claude-haiku-5-5", 512),
        ("claude-fable-5-1", 512),
        ("claude-fable-5-2", 1024),
        ("claude-sonnet-5", 1024),
        ("claude-opus-4-8", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-mythos-preview", 2048),
        ("claude-opus-4-5", 4096),
        ("claude-haiku-4-5", 4096),
        ("some-model", 1024),
    ],
)
def test_a_prefix_below_the_minimum_is_silently_not_cached(model: str, minimum: int) -> None:
    cache = MessagesCache(len)
    short = body(block("now"), system=(block("x" * (minimum - 1), "5m"),), model=model)
    assert [send(cache, short), send(cache, short)] == [Usage(minimum + 2, 0, 0, 0)] * 2
    enough = body(block("now"), system=(block("x" * minimum, "5m"),), model=model)
    assert [send(cache, enough), send(cache, enough)] == [Usage(3, 0, minimum, 0), Usage(3, minimum, 0, 0)]


def test_the_minimum_counts_all_that_is_in_front() -> None:
    cache = MessagesCache(len)
    asked = body(block("b" * 400, "5m"), system=(block("a" * 200, "1h"),))
    assert send(cache, asked) == Usage(0, 0, 600, 0)


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_a_lifetime_counts_from_the_start_of_the_last_use(ttl: str) -> None:
    cache, lifetime = fresh(), LIFETIME_S[ttl]
    asked = body(block("a" * 10, ttl))
    written = send(cache, asked)
    assert written.cache_creation_input_tokens == 10
    assert send(cache, asked, lifetime - 1).cache_read_input_tokens == 10
    assert send(cache, asked, 2 * lifetime - 2).cache_read_input_tokens == 10
    assert send(cache, asked, 3 * lifetime - 2).cache_read_input_tokens == 0


def test_an_entry_is_readable_once_its_answer_has_begun() -> None:
    cache = fresh()
    asked = body(block("a" * 10, "5m"))
    first, second = cache.begin(asked, at_s=0), cache.begin(asked, at_s=1)
    assert (first.usage, second.usage) == (Usage(0, 0, 10, 0), Usage(0, 0, 10, 0))
    cache.began(second)
    cache.began(first)
    assert send(cache, asked, 300).cache_read_input_tokens == 10, "the later start counts"
    never = body(block("b" * 10, "5m"))
    cache.begin(never, at_s=0)
    assert send(cache, never).cache_read_input_tokens == 0


def test_a_lifetime_does_not_wait_for_a_slow_answer() -> None:
    cache = fresh()
    asked = body(block("a" * 10, "5m"))
    ticket = cache.begin(asked, at_s=0)
    cache.began(ticket)  # at whatever time: 300 s after the start it is over
    assert send(cache, asked, 300).cache_read_input_tokens == 0


def test_segments_live_for_what_was_paid() -> None:
    cache = fresh()
    asked = body(block("b" * 20, "5m"), block("tail"), system=(block("a" * 100, "1h"),))
    assert send(cache, asked) == Usage(4, 0, 20, 100)
    assert send(cache, asked, 299) == Usage(4, 120, 0, 0)
    assert send(cache, asked, 650) == Usage(4, 100, 20, 0), "the 5m part is over, the 1h part is not"
    assert send(cache, asked, 650 + 3600) == Usage(4, 0, 20, 100)


def test_a_use_refreshes_every_segment_that_it_covers() -> None:
    cache = fresh()
    front = block("a" * 100, "1h")
    send(cache, body(block("b" * 20, "5m"), system=(front,)))
    only_the_last_marked = body(block("b" * 20, "5m"), system=(block("a" * 100),))
    for at_s in range(250, 5000, 250):
        assert send(cache, only_the_last_marked, at_s) == Usage(0, 120, 0, 0)
    assert send(cache, body(block("c" * 20, "5m"), system=(front,)), 5000) == Usage(0, 100, 20, 0)


def test_reading_never_makes_an_hour_of_five_minutes() -> None:
    cache = fresh()
    send(cache, body(block("a" * 10, "5m")))
    assert send(cache, body(block("a" * 10, "1h")), 10) == Usage(0, 10, 0, 0)
    assert send(cache, body(block("a" * 10, "1h")), 310) == Usage(0, 0, 0, 10)
    assert send(cache, body(block("a" * 10, "5m")), 3909) == Usage(0, 10, 0, 0)


def test_an_entry_rests_on_every_segment_in_front_of_it() -> None:
    cache = fresh()
    send(cache, body(block("a" * 10, "5m")))
    assert send(cache, body(block("a" * 10), block("b" * 10, "1h")), 10) == Usage(0, 10, 0, 10)
    assert send(cache, body(block("a" * 10), block("b" * 10, "1h")), 310) == Usage(0, 0, 0, 20)


def test_asking_is_a_use_and_only_an_answer_writes() -> None:
    cache = fresh()
    asked = body(block("a" * 10, "5m"))
    send(cache, asked)
    cache.begin(body(block("a" * 10, "5m"), block("b" * 10, "5m")), at_s=299)  # its answer never begins
    assert send(cache, body(block("a" * 10), block("b" * 10, "5m")), 598) == Usage(0, 10, 10, 0)


def test_nothing_is_written_in_front_of_what_is_read() -> None:
    cache = fresh()
    send(cache, body(block("a" * 10), block("b" * 10, "5m")))
    assert send(cache, body(block("a" * 10, "1h"), block("b" * 10, "5m"))) == Usage(0, 20, 0, 0)
    assert send(cache, body(block("a" * 10, "1h"), block("c" * 10, "5m"))) == Usage(0, 0, 10, 10)


@pytest.mark.parametrize(
    ("marks", "read", "expected"),
    [
        (("1h", "5m", "5m"), 0, Usage(0, 0, 20, 10)),
        (("1h", "1h", "5m"), 0, Usage(0, 0, 10, 20)),
        (("", "1h", ""), 0, Usage(10, 0, 0, 20)),
        (("1h", "1h", "5m"), 1, Usage(0, 10, 10, 10)),
        (("1h", "1h", "5m"), 2, Usage(0, 20, 10, 0)),
        (("1h", "1h", "5m"), 3, Usage(0, 30, 0, 0)),
    ],
)
def test_mixed_lifetimes_are_billed_by_a_b_and_c(marks: tuple[str, ...], read: int, expected: Usage) -> None:
    cache = fresh()
    if read:
        send(cache, body(*(block(c * 10, "1h" if i == read - 1 else "") for i, c in enumerate("abc"[:read]))))
    assert send(cache, body(*(block(c * 10, ttl) for c, ttl in zip("abc", marks, strict=True)))) == expected


BASE = body(
    block("c" * 10, "5m"),
    system=(block("b" * 10, "5m"),),
    tools=[{"name": "t", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
)
TOOLS = len('{"input_schema":{"type":"object"},"name":"t"}')
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({}, TOOLS + 20),
        ({"model": "claude-opus-5-5"}, 0),
        ({"tools": [BASE["tools"][0] | {"name": "u"}]}, 0),
        ({"speed": "fast"}, TOOLS),
        ({"system": [block("B" * 10, "5m")]}, TOOLS),
        ({"tool_choice": {"type": "none"}}, TOOLS + 10),
        ({"tool_choice": {"type": "auto"}}, TOOLS + 20),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, TOOLS + 10),
        ({"thinking": {"type": "between_tools"}}, TOOLS + 10),
        ({"output_config": {"effort": "low"}}, TOOLS + 10),
        ({"output_config": {"effort": "high"}}, TOOLS + 20),  # the default
        ({"messages": [said(block("c" * 10, "5m"), PICTURE)]}, TOOLS + 10),
        ({"messages": [said(block("C" * 10, "5m"))]}, TOOLS + 10),
        ({"max_tokens": 0, "temperature": 1}, TOOLS + 20),
        ({"system": "b" * 10}, TOOLS + 20),  # a string is one block
        ({"messages": [said(block("c" * 10, "1h"))]}, TOOLS + 20),
    ],
)
def test_what_invalidates_what(change: Json, read: int) -> None:
    cache = fresh()
    send(cache, BASE)
    assert send(cache, BASE | change).cache_read_input_tokens == read


def test_thinking_of_older_models_leaves_the_prompt_with_the_next_words_of_the_user() -> None:
    cache = fresh()
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
    loop = [said(block("a" * 10)), said(thought, call, role="assistant")]
    result = said({"type": "tool_result", "tool_use_id": "t", "content": "r", "cache_control": {"type": "ephemeral"}})
    for model, kept in ((MODEL, True), (OLD, False)):
        asked = {"model": model, "max_tokens": 1}
        whole = send(cache, asked | {"messages": [*loop, result]})
        later = send(cache, asked | {"messages": [*loop, result, said(block("more", "5m"))]})
        assert (later.cache_read_input_tokens == whole.total) is kept
        assert (later.total > whole.total) is kept, "what is taken out is not billed"


def test_each_workspace_and_each_model_has_a_cache_of_its_own() -> None:
    cache = fresh()
    asked = body(block("a" * 10, "5m"))
    send(cache, asked, workspace="one")
    assert send(cache, asked, workspace="two").cache_read_input_tokens == 0
    assert send(cache, asked | {"model": OLD}, workspace="one").cache_read_input_tokens == 0
    assert send(cache, asked, workspace="one").cache_read_input_tokens == 10
    send(cache, asked | {"model": OLD + "-20250929"})
    assert send(cache, asked | {"model": OLD}).cache_read_input_tokens == 10, "a dated name is the same model"


def test_automatic_caching_marks_the_last_block_that_can_be_marked() -> None:
    cache = fresh()
    automatic = {"cache_control": {"type": "ephemeral"}}
    send(cache, body(block("a" * 10)) | automatic)
    assert send(cache, body(block("a" * 10), block("b" * 10)) | automatic) == Usage(0, 10, 10, 0)
    assert send(cache, body(block("a" * 10), block("b" * 10, "5m")) | automatic) == Usage(0, 20, 0, 0)
    assert send(cache, body(block("x" * 10), block("b" * 10)) | automatic) == Usage(0, 0, 20, 0)
    twice = body(block("y" * 10, "5m")) | automatic
    assert [send(cache, twice), send(cache, twice)] == [Usage(0, 0, 10, 0), Usage(0, 10, 0, 0)]
    thought = {"type": "redacted_thinking", "data": "d"}
    ends = {"messages": [said(block("q")), said(block("a" * 5), thought, role="assistant")]}
    assert send(cache, body() | ends | automatic).ephemeral_5m_input_tokens == 6


def test_the_order_of_keys_inside_a_block_is_part_of_its_bytes() -> None:
    def asked(value: Json) -> Json:
        call = {"type": "tool_use", "id": "t", "name": "n", "input": value, "cache_control": {"type": "ephemeral"}}
        return body() | {"messages": [said(block("a")), said(call, role="assistant")]}

    cache = fresh()
    send(cache, asked({"a": 1, "b": 2}))
    assert send(cache, asked({"b": 2, "a": 1})).cache_read_input_tokens == 0
    assert send(cache, asked({"a": 1, "b": 2})).cache_read_input_tokens > 0


def test_pictures_have_a_price_wherever_they_are() -> None:
    cache = fresh()
    result = {"type": "tool_result", "tool_use_id": "t", "content": [PICTURE, block("ok")]}
    assert cache.count(body(PICTURE)) == IMAGE_TOKENS
    assert IMAGE_TOKENS < cache.count(body(result)) < IMAGE_TOKENS + 150


def test_why_a_cache_was_missed() -> None:
    cache = fresh()
    before = cache.begin(BASE, at_s=0)

    def why(**change: Any) -> tuple[str, int] | None:
        return missed(before, cache.begin(BASE | change, at_s=0))

    assert why() is None
    assert why(messages=[*BASE["messages"], said(block("more"), role="assistant")]) is None
    assert why(model=OLD) == ("model_changed", TOOLS + 20)
    assert why(tools=[]) == ("tools_changed", TOOLS + 20)
    assert why(system=[]) == ("system_changed", 20)
    assert why(tool_choice={"type": "none"}) == ("messages_changed", 10)


# What holds for any sequence of requests.

pieces = st.sampled_from([f"{c}{'.' * n}" for c in "abc" for n in (0, 30)])
lifetimes = st.sampled_from(["", "", "", "5m", "1h"])


@st.composite
def requests(draw: st.DrawFn) -> Json:
    parts = draw(st.lists(st.tuples(pieces, lifetimes), min_size=1, max_size=30))
    marks = 0
    short = False
    out = []
    for text, ttl in parts:
        allowed = ttl if marks < 4 and not (short and ttl == "1h") else ""
        marks, short = marks + bool(allowed), short or allowed == "5m"
        out.append(block(text, allowed))
    cut = draw(st.integers(0, len(out) - 1))
    return body(*out[cut:], system=tuple(out[:cut]))


days = st.lists(st.tuples(requests(), st.sampled_from([0.0, 1.0, 299.0, 300.0, 3599.0]), st.booleans()), max_size=12)


def flat(asked: Json) -> list[Json]:
    return [*asked["system"], *asked["messages"][0]["content"]]


def texts(asked: Json, count: int | None = None) -> tuple[tuple[str, bool], ...]:
    """Return the bytes of a prefix: each text, and whether it is of the system."""
    return tuple((b["text"], i < len(asked["system"])) for i, b in enumerate(flat(asked)[:count]))


@settings(max_examples=examples(300))
@given(days)
def test_whatever_is_sent(day: list[tuple[Json, float, bool]]) -> None:
    cache = fresh(minimum=20)
    now = 0.0
    used: list[tuple[Json, float]] = []
    written: set[tuple[tuple[str, bool], ...]] = set()
    for asked, pause, begins in day:
        now += pause
        ticket = cache.begin(asked, at_s=now)
        usage = ticket.usage
        assert usage.total == sum(len(b["text"]) for b in flat(asked)) == cache.count(asked)
        assert min(usage) >= 0
        marks = [b["cache_control"]["ttl"] for b in flat(asked) if "cache_control" in b]
        assert not usage.cache_read_input_tokens or marks
        assert not usage.ephemeral_1h_input_tokens or "1h" in marks
        assert not usage.ephemeral_5m_input_tokens or "5m" in marks
        read = texts(asked, ticket.read)
        assert usage.cache_read_input_tokens == sum(len(text) for text, _ in read)
        if read:
            assert read in written, "only what was written, up to a mark, is read"
            assert usage.cache_read_input_tokens >= 20
            last = max(at_s for other, at_s in used if texts(other, ticket.read) == read)
            assert now - last < LIFETIME_S["1h"]
            if all(b["cache_control"]["ttl"] == "5m" for o, _ in used for b in flat(o) if "cache_control" in b):
                assert now - last < LIFETIME_S["5m"]
        used.append((asked, now))  # also if its answer never begins: what it reads is used by asking
        if begins:
            cache.began(ticket)
            written |= {texts(asked, place + 1) for place, _ in ticket.writes}
            again = cache.begin(asked, at_s=now).usage
            assert again.cache_creation_input_tokens == 0, "at once, all that it marks is there"
            assert again.cache_read_input_tokens == usage.total - usage.input_tokens
