"""What tools did, as Prometheus reads it."""

from pathlib import Path

from gateway.core.facts import ToolRefused, TurnId
from gateway.store import NewEntry
from gateway.tools.metrics import MAX_LABELLED_TOOLS, ToolStats
from tests.kits.ops import rendered_metrics
from tests.kits.store import NOW, opened, run


def scraped(stats: ToolStats) -> tuple[str, dict[str, float]]:
    text = rendered_metrics(stats.metrics)
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("reverie_tool")]
    assert len({name for name, _ in lines}) == len(lines), "each sample stands once"
    return text, {name: float(value) for name, value in lines}


def test_calls_are_counted_by_how_they_ended_and_timed_if_they_were_carried_out() -> None:
    stats = ToolStats()
    stats.count_call("bash", "ok", 0.5)
    stats.count_call("bash", "timeout", 60.0)
    stats.count_call("bash", "refused", 0.0)
    stats.count_call("made_up", "unknown", 0.0)
    stats.count_call("made_up_too", "unknown", 0.0)
    _, samples = scraped(stats)
    calls = {name: value for name, value in samples.items() if "calls" in name}
    assert calls == {
        'reverie_tool_calls_total{outcome="ok",tool="bash"}': 1,
        'reverie_tool_calls_total{outcome="timeout",tool="bash"}': 1,
        'reverie_tool_calls_total{outcome="refused",tool="bash"}': 1,
        'reverie_tool_calls_total{outcome="unknown",tool="other"}': 2,
    }
    assert samples['reverie_tool_duration_seconds_count{tool="bash"}'] == 2
    assert samples['reverie_tool_duration_seconds_sum{tool="bash"}'] == 60.5


def test_names_are_bounded() -> None:
    stats = ToolStats()
    for number in range(MAX_LABELLED_TOOLS + 10):
        stats.count_call(f"mcp_{number}", "ok", 0.0)
    _, samples = scraped(stats)
    assert sum("calls" in name for name in samples) == MAX_LABELLED_TOOLS + 1
    assert samples['reverie_tool_calls_total{outcome="ok",tool="other"}'] == 10


def test_refusals_are_counted_as_they_are_written_down(tmp_path: Path) -> None:
    stats = ToolStats()
    refused = ToolRefused(turn=TurnId("t"), agent="reverie", tool="bash", role="guest", rule="r")

    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            store.subscribe(stats.on_appended)
            await store.append([NewEntry(fact=refused, at=NOW), NewEntry(fact=refused, at=NOW)])

    run(story())
    assert scraped(stats)[1] == {'reverie_tool_refusals_total{tool="bash"}': 2}
