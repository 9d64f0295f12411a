"""The bound that the benchmarks compare with: no legal choice of breakpoints costs less."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.cache.request_kit import tokens
from tests.bench.optimum import Asked, Cost, least, optimum
from tests.kits.examples import examples
from tests.servers.messages_cache import MessagesCache

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
        content: list[dict[str, Any]] = [{"type": "text", "text": f"{name}|{size}"} for name, size in path]
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
        paid += COST.write_5m * usage.ephemeral_5m_input_tokens + COST.write_1h * usage.ephemeral_1h_input_tokens
        asked.append(Asked(at_s, path))
    assert optimum(asked, COST) <= paid + 1e-6
