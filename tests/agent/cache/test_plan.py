"""The plan against every rule of the API, with a strict prompt cache as its judge."""

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cache.plan import (
    CachePlan,
    CachePolicy,
    PlannedRequest,
    plan_automatic,
    plan_cache,
    segment_prompt,
)
from agent.cache.prices import Price
from agent.cache.state import (
    CachedPrefix,
    CacheState,
    Cadence,
    Lifetimes,
    is_hour_cheaper,
)
from agent.models.base import ModelRequest
from agent.models.http import encode_body
from agent.models.openai import OpenAIDialect, build_chat_request
from agent.prompt import PromptInput, PromptTurn, build_request
from agent.tokens.counter import TokenMeter, measure_prompt
from agent.tools import ENDING_TOOLS
from gateway.core.events import CacheTtl, ToolCallRecord, TurnStep
from reverie.testing.servers.messages_cache import MessagesCache
from tests.agent.cache.request_kit import LONG, PLAIN, PRICE, Part, ask, make, tokens, units
from tests.bench.bench_cache_plan import RECORDED, costs, policies
from tests.bench.optimum import Asked, Cost, least, optimum, teach
from tests.kits.examples import examples

HEAD = [Part("tools", "t", 700), Part("identity", "i", 900), Part("skills", "s", 300)]
CARD = [Part("binding", "b", 100), Part("channel", "c", 200)]
LAYOUT = [("block", 2, "1h"), ("block", 3, "1h"), ("block", 4, "5m"), ("said", 4, "5m")]
"""Of `talk(5)`: an hour behind what all share and behind the binding, 5 minutes behind the card and
at the end."""


def talk(said: int, *, size: int = 100, positions: int = 1) -> list[Part]:
    return [*HEAD, *CARD, *(Part("history", f"h{i}", size, positions) for i in range(said))]


def where(planned: CachePlan) -> list[tuple[str, int, str]]:
    return [(mark.behind, mark.index, mark.lifetime) for mark in planned.breakpoints]


def test_talk_that_goes_on_is_marked_behind_what_is_shared_the_binding_the_card_and_the_last_message() -> (
    None
):
    planned = make(talk(5), PLAIN)
    assert where(planned) == LAYOUT
    assert [(b.name, b.read, b.written, b.lifetime) for b in planned.blocks] == [
        ("tools", 0, 700, "1h"),
        ("identity", 0, 900, "1h"),
        ("skills", 0, 300, "1h"),
        ("binding", 0, 100, "1h"),
        ("channel", 0, 200, "5m"),
        ("history", 0, 500, "5m"),
    ]


def test_slow_talk_is_kept_for_an_hour() -> None:
    assert where(make(talk(5), LONG)) == [(behind, number, "1h") for behind, number, _ in LAYOUT]


def test_a_slow_room_behind_a_busy_head_has_the_hour_and_only_reads_the_head() -> None:
    planned = make(talk(5), LONG, [CachedPrefix(2, "5m")])
    assert where(planned)[-1] == ("said", 4, "1h")
    assert planned.read_segments == 3


@pytest.mark.parametrize("known", [True, False])
def test_a_turn_of_many_blocks_leaves_a_mark_where_the_last_one_can_no_longer_see(
    known: bool,
) -> None:
    parts = [*talk(3), Part("history", "calls", 500, 25), Part("history", "results", 500, 25)]
    planned = make(parts, PLAIN, [CachedPrefix(2, "1h"), CachedPrefix(7, "5m")] if known else [])
    assert where(planned) == [
        ("block", 2, "1h"),
        ("block", 4, "5m"),
        ("said", 2, "5m"),
        ("said", 4, "5m"),
    ]
    assert planned.read_segments == (8 if known else 0)


def test_no_mark_stands_behind_what_cannot_carry_one() -> None:
    parts = [*talk(4), Part("history", "thinking", 50, markable=False)]
    assert where(make(parts, PLAIN))[-1] == ("said", 3, "5m")
    bare = [part._replace(markable=False) for part in talk(4)]
    assert where(make(bare, PLAIN)) == []


def test_a_prefix_below_the_minimum_is_not_marked() -> None:
    small = [Part("identity", "i", 300), Part("channel", "c", 100), Part("history", "h", 100)]
    assert where(make(small, PLAIN)) == []
    assert where(make([*small, Part("history", "r", 1), Part("history", "q", 100)], PLAIN)) == [
        ("said", 2, "5m")
    ]


def test_behind_what_lives_for_five_minutes_no_hour_is_paid_for() -> None:
    planned = make(
        talk(5), LONG, [CachedPrefix(2, "1h"), CachedPrefix(3, "1h"), CachedPrefix(7, "5m")]
    )
    assert where(planned) == LAYOUT


def test_talk_that_is_hardly_ever_read_is_not_written_while_it_is_cold() -> None:
    never = Lifetimes("1h", "1h", None)
    cold = [CachedPrefix(2, "1h"), CachedPrefix(3, "1h")]
    assert where(make(talk(5), never, cold)) == LAYOUT[:2]
    assert where(make(talk(5), never, [*cold, CachedPrefix(7, "5m")])) == LAYOUT


def chosen(policy: CachePolicy) -> Lifetimes | None:
    cadence = Cadence()
    for number in range(8):
        cadence.observe_request("irc/#slow", 1_000.0 * number)
    return policy.lifetimes(cadence, "irc/#slow", PRICE)


def test_policies() -> None:
    assert chosen(CachePolicy()) == LONG
    assert chosen(CachePolicy(kind="fixed")) == PLAIN
    assert chosen(CachePolicy(kind="fixed", short_lifetime="1h")) == LONG
    assert chosen(CachePolicy(allows_hour=False)) == ("5m", "5m", "5m")
    assert chosen(CachePolicy(kind="fixed", allows_hour=False)) == ("5m", "5m", "5m")
    assert chosen(CachePolicy(kind="off")) is None
    off = make(talk(5), None)
    assert (off.breakpoints, off.writes) == ((), ())
    assert sum(block.read + block.written for block in off.blocks) == 0
    assert make([], PLAIN).blocks == ()


def test_a_provider_that_caches_by_itself_gets_no_marks_and_is_believed_to_keep_what_it_saw() -> (
    None
):
    warmth, path = CacheState(), units(talk(3))
    first = plan_automatic(path, 0)
    assert first.breakpoints == ()
    assert (first.read_segments, first.writes[0], first.writes[-1]) == (0, (0, "5m"), (7, "5m"))
    warmth.record_request(path, read=first.read_segments, writes=first.writes, at_s=0.0)
    changed = units([*HEAD, CARD[0], Part("channel", "another", 200), Part("history", "x", 10)])
    second = plan_automatic(changed, warmth.find(changed, 10.0)[-1].segment + 1)
    assert second.read_segments == 4
    assert [(block.name, block.read, block.written) for block in second.blocks][-3:] == [
        ("binding", 100, 0),
        ("channel", 0, 0),
        ("history", 0, 0),
    ]


LIVES: tuple[CacheTtl, CacheTtl] = ("1h", "5m")
marked = st.builds(
    Lifetimes, st.sampled_from(LIVES), st.sampled_from(LIVES), st.sampled_from((*LIVES, None))
)
lifetimes = st.none() | marked
sizes, places = st.integers(1, 900), st.integers(1, 30)
parts = st.builds(
    lambda head, private, said: [
        *(
            Part(name, name, size)
            for name, size in zip(("tools", "identity", "skills"), head, strict=False)
        ),
        *(
            Part(name, name, size)
            for name, size in zip(("binding", "channel"), private, strict=False)
        ),
        *(Part("history", f"h{i}", *rest) for i, rest in enumerate(said)),
    ],
    st.lists(sizes, max_size=3),
    st.lists(sizes, max_size=2),
    st.lists(st.tuples(sizes, places, st.booleans()), min_size=1, max_size=12),
)


@given(parts, lifetimes, st.data())
def test_every_plan_keeps_to_the_rules(
    request: list[Part], chosen: Lifetimes | None, data: st.DataObject
) -> None:
    path = units(request)
    ends = data.draw(st.lists(st.integers(0, len(path) - 1), unique=True, max_size=5).map(sorted))
    lives = data.draw(st.lists(st.sampled_from(LIVES), min_size=5, max_size=5).map(sorted))
    cached = [CachedPrefix(end, life) for end, life in zip(ends, lives, strict=False)]
    planned = make(request, chosen, cached)
    assert planned == make(request, chosen, cached)
    assert len(planned.breakpoints) <= (0 if chosen is None else 4)
    assert sorted(mark.lifetime for mark in planned.breakpoints) == [
        mark.lifetime for mark in planned.breakpoints
    ]
    by_place = {(unit.behind, unit.number): i for i, unit in enumerate(path)}
    at = [by_place[mark.behind, mark.index] for mark in planned.breakpoints]
    assert at == sorted(set(at))
    assert all(path[i].takes_breakpoint for i in at)
    read_only = {end for end in ends if end < planned.read_segments}
    assert all(
        sum(unit.tokens for unit in path[: i + 1]) >= PRICE.minimum_tokens
        for i in at
        if i not in read_only
    )
    assert sum(block.tokens for block in planned.blocks) == sum(unit.tokens for unit in path)
    assert all(block.read + block.written <= block.tokens for block in planned.blocks)


asked = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 2)),
        st.sampled_from((5.0, 100.0, 299.0, 300.0, 900.0, 3_000.0, 3_600.0, 9_000.0)),
        st.integers(1, 12),
    ),
    min_size=2,
    max_size=25,
)


@settings(max_examples=examples(60))
@given(asked, st.sampled_from(("auto", "fixed")))
def test_what_is_predicted_is_what_is_billed(
    requests: list[tuple[int, float, int]], kind: str
) -> None:
    judge, warmth, cadence = (
        MessagesCache(tokens, minimum=PRICE.minimum_tokens),
        CacheState(),
        Cadence(),
    )
    policy = CachePolicy(kind="fixed" if kind == "fixed" else "auto")
    said: dict[int, list[Part]] = {0: [], 1: [], 2: []}
    at_s = 0.0
    for room, gap_s, positions in requests:
        at_s += gap_s
        said[room].append(Part("history", f"{room} {len(said[room])}", 10 * positions, positions))
        request = [*HEAD, Part("binding", "b", 60), Part("channel", f"c{room}", 90), *said[room]]
        path = units(request)
        cadence.observe_request(f"irc/{room}", at_s)
        cached = warmth.find(path, at_s)
        planned = make(request, policy.lifetimes(cadence, f"irc/{room}", PRICE), cached)
        usage = ask(judge, warmth, request, planned, at_s=at_s).usage
        assert usage.cache_read_input_tokens == sum(block.read for block in planned.blocks)
        assert usage.cache_creation_input_tokens == sum(block.written for block in planned.blocks)
        assert usage.cache_creation_input_tokens >= usage.ephemeral_1h_input_tokens
        said[room].append(Part("history", f"{room} {len(said[room])}", 30))


@given(st.lists(marked, min_size=2, max_size=12))
def test_whatever_lifetimes_are_chosen_nothing_is_written_again_that_is_cached(
    chosen: list[Lifetimes],
) -> None:
    judge, warmth, cached_tokens = MessagesCache(tokens, minimum=512), CacheState(), 0
    for number, now in enumerate(chosen):
        request, at_s = talk(2 * number + 1), 60.0 * number
        planned = make(request, now, warmth.find(units(request), at_s))
        usage = ask(judge, warmth, request, planned, at_s=at_s).usage
        assert usage.cache_read_input_tokens >= cached_tokens
        cached_tokens = usage.cache_read_input_tokens + usage.cache_creation_input_tokens


@given(
    st.sampled_from((20.0, 290.0, 310.0, 900.0, 3_500.0, 3_700.0, 20_000.0)),
    st.integers(500, 3_000),
)
def test_where_nobody_comes_in_time_it_costs_no_more_than_writing_what_is_in_front_of_the_talk(
    gap_s: float, head: int
) -> None:
    judge, warmth, cadence = (
        MessagesCache(tokens, minimum=PRICE.minimum_tokens),
        CacheState(),
        Cadence(),
    )
    said: list[Part] = []
    paid = plain = 0.0
    for number in range(20):
        said.append(Part("history", f"{number}", 80))
        request = [Part("identity", "i", head), Part("channel", "c", 200), *said]
        path = units(request)
        cadence.observe_request("irc/#a", gap_s * number)
        cached = warmth.find(path, gap_s * number)
        planned = make(request, cadence.lifetimes("irc/#a", PRICE), cached)
        usage = ask(judge, warmth, request, planned, at_s=gap_s * number).usage
        paid += usage.input_tokens + 0.1 * usage.cache_read_input_tokens
        paid += 1.25 * usage.ephemeral_5m_input_tokens + 2.0 * usage.ephemeral_1h_input_tokens
        plain += usage.total
    assert paid <= plain + 20 * 0.25 * (head + 200) + head + 300
    if gap_s < 3_600:
        assert paid < 0.4 * plain


@pytest.mark.parametrize(
    ("workload", "seeds", "over"),
    [
        # An hour is right in the first from the first request on, 5 minutes in the second; to learn
        # that costs a few writes.
        ("the times of the recorded hour", (1,), 1.01),
        ("a busy hour", (41, 42, 44), 1.03),
        ("a sparse week", (1, 4), 1.005),
        ("a day of people", (1, 2, 3), 1.02),
        pytest.param("a day with silences", (1,), 0.95, marks=pytest.mark.system),
        pytest.param("random gaps", (1,), 1.02, marks=pytest.mark.system),
    ],
)
def test_auto_costs_no_more_than_the_best_of_the_fixed_layouts(
    workload: str, seeds: tuple[int, ...], over: float
) -> None:
    price = Price(read=0.05, minimum_tokens=512)
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(costs(RECORDED[workload](seed), price, policies(price)))
    assert total["bound"] <= total["auto"]
    assert total["auto"] <= over * min(total["fixed"], total["all long"], total["all short"])


@pytest.mark.parametrize("caching", ["marks", "automatic"])
def test_the_steps_of_a_request_do_not_grow_with_its_conversation(caching: str) -> None:
    def count_calls(size: int) -> int:
        parts = talk(size + 2)
        path, warmth, calls = units(parts), CacheState(), Counter[str]()

        def send(length: int, at_s: float) -> int:
            cached = warmth.find(path[:length], at_s)
            if caching == "marks":
                plan = plan_cache(path[:length], PLAIN, minimum_tokens=512, cached=cached)
            else:
                plan = plan_automatic(path[:length], cached[-1].segment + 1 if cached else 0)
            read, writes = plan.read_segments, plan.writes
            warmth.record_request(path[:length], read=read, writes=writes, at_s=at_s)
            return read

        for length in range(len(HEAD + CARD) + 1, len(parts) - 1, 2):
            send(length, 1.0)
        sys.setprofile(lambda _, event, __: calls.update([event]))
        try:
            read = send(len(parts), 2.0)
        finally:
            sys.setprofile(None)
        assert read >= len(parts) - 3
        return calls["call"] + calls["c_call"]

    assert count_calls(1_000) <= count_calls(200)


# Requests that grow: what is kept of the one before is what would be made anew.


turns = st.tuples(st.sampled_from(["", "yes"]), st.integers(0, 2))
changes = st.lists(
    st.tuples(turns, st.sampled_from(["grow", "grow", "grow", "fold", "rewind"])), max_size=12
)
DIALECTS = [OpenAIDialect(), OpenAIDialect(wants_thinking=True), OpenAIDialect(identity_in="user")]


def taken(number: int, reply: str, calls: int) -> PromptTurn:
    made = [
        ToolCallRecord(id=f"c{number}_{place}", name="t", arguments="{}", result="r" * place)
        for place in range(calls)
    ]
    steps = (TurnStep(text="", calls=tuple(made), thinking=""),) if made else ()
    return PromptTurn(input_text=f"line {number} " + "é " * number, reply=reply, steps=steps)


def request(past: list[PromptTurn]) -> ModelRequest:
    brief = PromptInput(persona="Ana.", card="# Where", history=tuple(past), input_text="and now?")
    return build_request(brief, tools=ENDING_TOOLS, max_output_tokens=10, key="a", plain=False)


@given(changes, st.lists(st.sampled_from([1.0, 299.0, 301.0]), min_size=12, max_size=12))
def test_a_request_that_grows_has_the_bytes_sizes_and_plan_of_one_made_from_scratch(
    drawn: list[tuple[tuple[str, int], str]], gaps_s: list[float]
) -> None:
    meter, planned, at_s = TokenMeter(), None, 0.0
    state = CacheState()
    past: list[PromptTurn] = []
    for number, (((reply, calls), change), gap_s) in enumerate(zip(drawn, gaps_s, strict=False)):
        past = {"grow": past, "fold": past[len(past) // 2 :], "rewind": past[:-2]}[change]
        past, at_s = [*past, taken(number, reply, calls)], at_s + gap_s
        made = request(past)
        for dialect in DIALECTS:
            body, expected = (
                encode_body(build_chat_request(one, model="m", dialect=dialect))
                for one in (made, request([replace(turn) for turn in past]))
            )
            assert body == expected
        anew = request([replace(turn) for turn in past])
        assert measure_prompt(made) == measure_prompt(anew)
        estimate = meter.estimate("m", made)
        segments = segment_prompt(made, estimate.size, planned)
        assert segments == segment_prompt(anew, estimate.size)
        assert segments[-1].end_tokens == sum(one.tokens for one in segments) == estimate.tokens
        ends = [one.number for one in segments if one.behind == "said" and one.takes_breakpoint]
        assert ends == list(range(len(made.conversation)))
        if planned is not None and change == "grow":
            before = [one.digest for one in planned.segments[:-1]]  # without the new input then
            assert [one.digest for one in segments[: len(before)]] == before
        cached = state.find(segments, at_s)
        plan = plan_automatic(segments, cached[-1].segment + 1 if cached else 0)
        state.record_request(segments, read=plan.read_segments, writes=plan.writes, at_s=at_s)
        planned = PlannedRequest(
            request=made,
            segments=segments,
            plan=plan,
            meter=meter,
            estimate=estimate,
            sent_at_s=at_s,
        )


COST = Cost()


def test_one_token_by_hand() -> None:
    assert least([0.0], COST) == 1.0
    assert least([0.0, 60.0], COST) == 1.25 + 0.1
    assert least([0.0, 300.0], COST) == 2.0  # gone at 300 s, and an hour does not pay for one read
    assert least([0.0, 900.0, 1_800.0], COST) == 2.0 + 0.2
    assert least([0.0, 60.0, 5_000.0], COST) == 1.25 + 0.1 + 1.0
    assert least([0.0, 9_000.0, 9_060.0], COST) == 1.0 + 1.25 + 0.1


def test_prefixes_not_pieces_are_cached() -> None:
    same = [Asked(0.0, [("a", 100), ("b", 10)]), Asked(1.0, [("a", 100), ("b", 10)])]
    assert optimum(same, COST) == 110 * 1.35
    swapped = [Asked(0.0, [("a", 100), ("b", 10)]), Asked(1.0, [("x", 100), ("b", 10)])]
    assert optimum(swapped, COST) == 220


lives = st.sampled_from((None, None, "5m", "1h"))
talks = st.lists(
    st.tuples(
        st.sampled_from((1.0, 200.0, 299.0, 301.0, 1_500.0, 3_599.0, 4_000.0)),
        st.integers(0, 2),
        st.lists(lives, min_size=8, max_size=8),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=examples(300))
@given(talks)
def test_no_legal_marks_cost_less(requests: list[tuple[float, int, list[str | None]]]) -> None:
    judge = MessagesCache(tokens, minimum=50)
    said = [1, 1, 1]
    at_s = paid = 0.0
    asked: list[Asked] = []
    for gap_s, room, wished in requests:
        at_s += gap_s
        names = ["head", f"room {room}", *(f"{room} {number}" for number in range(said[room]))]
        said[room] += 1
        path = [(name, 40 + 7 * number) for number, name in enumerate(names)]
        content: list[dict[str, Any]] = [
            {"type": "text", "text": f"{name}|{size}"} for name, size in path
        ]
        long_over, marks = False, 0
        for block, life in zip(content, wished, strict=False):
            long_over = long_over or life == "5m"
            if life is not None and marks < 4:
                block["cache_control"] = {"type": "ephemeral", "ttl": "5m" if long_over else life}
                marks += 1
        request = {"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": content}]}
        ticket = judge.begin(request, at_s=at_s)
        judge.began(ticket)
        usage = ticket.usage
        paid += usage.input_tokens + COST.read * usage.cache_read_input_tokens
        paid += (
            COST.write_5m * usage.ephemeral_5m_input_tokens
            + COST.write_1h * usage.ephemeral_1h_input_tokens
        )
        asked.append(Asked(at_s, path))
    assert optimum(asked, COST) <= paid + 1e-6


TTL_COST = Price(read=0.1, write_5m=1.25, write_1h=2.0)


def test_an_hour_pays_if_it_keeps_more_than_it_costs() -> None:
    assert is_hour_cheaper(1.0, 1.5, TTL_COST)
    assert not is_hour_cheaper(1.0, 1.6, TTL_COST)
    assert not is_hour_cheaper(0.0, 0.0, TTL_COST)
    assert not is_hour_cheaper(1.0, 0.1, TTL_COST.model_copy(update={"write_1h": float("inf")}))


def test_the_best_for_one_who_knows_the_traffic_by_hand() -> None:
    every, hourly, daily = ([gap_s * n for n in range(200)] for gap_s in (60.0, 900.0, 90_000.0))
    assert set(teach([every], COST).values()) - {None} == {"5m"}
    assert set(teach([hourly], COST).values()) - {None} == {"1h"}
    assert set(teach([daily], COST).values()) == {None}
