"""Sums of a day, and how often limits are announced."""

from gateway.access.limits import QUIET_S, NoticeThrottle
from gateway.store.spending import KEPT_DAYS, DailyCosts


def test_sums_are_by_day_and_bounded() -> None:
    costs = DailyCosts(max_size=2)
    costs.set_day("2026-03-04", {"a": 5})
    costs.add("2026-03-04", "a", 1)
    costs.add("2026-03-05", "a", 7)
    assert (costs.total("2026-03-04", ["a"]), costs.total("2026-03-05", ["a", "b"])) == (6, 7)
    for number, whose in enumerate("bcdef"):
        costs.add("2026-03-04", whose, number)
    assert [costs.total("2026-03-04", [whose]) for whose in "abcdef"] == [6, 0, 0, 0, 3, 4], (
        "who cost least is forgotten"
    )
    for day in range(KEPT_DAYS):
        costs.add(f"2026-04-0{day + 1}", "a", 1)
    assert costs.total("2026-03-04", ["a"]) == 0
    assert costs.total("2026-05-01", ["a"]) == 0


def test_silence_is_of_a_room_and_of_a_limit() -> None:
    silence, free = NoticeThrottle(), {"x": False, "y": False}

    def over(limit: str, now_s: float, room: str = "r") -> bool:
        return silence.is_due(room, limit, now_s, lambda _: free[limit])

    assert over("x", 0.0)
    silence.record("r", "x", 0.0)
    assert not over("x", QUIET_S)
    assert not over("y", QUIET_S - 1)
    assert over("y", QUIET_S)
    assert over("x", 1.0, "elsewhere")
    free["x"] = True
    assert not over("x", QUIET_S - 1)
    assert over("x", QUIET_S)
    silence.forget("r", "x")
    assert over("x", 1.0)
