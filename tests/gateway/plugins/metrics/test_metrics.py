"""What Prometheus scrapes about agents, models and their caches."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.signals import DmnMode, DmnPolicy, DmnState, PendingTurn
from gateway.context.compaction import COMPACTION_OUTCOMES, CompactionStats
from gateway.core.clock import ManualClock
from gateway.core.control_messages import DmnStatus
from gateway.core.events import (
    BlockUsage,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    EventId,
    TaskFinished,
)
from gateway.core.facts import Judgement, TurnId, inner_conversation
from gateway.core.metrics import GatewayStats
from gateway.plugins.metrics import MAX_MODELS, AgentStats, ChannelMetrics, WorkspaceCounts
from gateway.runtime.dmn_admin import snapshot_dmn
from gateway.store import NewEntry
from gateway.stream.supervisor import count_events
from tests.kits.commands import parts_of
from tests.kits.ops import rendered_metrics
from tests.kits.store import account, delivered, judged, opened, place, said, turn

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
A, B = ConversationId("irc.x/#a"), ConversationId("irc.x/#b")
NAMES = {
    "reverie_dmn_state": "gauge",
    "reverie_dmn_quiet": "gauge",
    "reverie_dmn_held": "gauge",
    "reverie_dmn_running_turns": "gauge",
    "reverie_dmn_waiting_turns": "gauge",
    "reverie_dmn_pending": "gauge",
    "reverie_dmn_autonomous_turns_today": "gauge",
    "reverie_dmn_autonomous_cost_usd_today": "gauge",
    "reverie_turns_total": "counter",
    "llm_requests_total": "counter",
    "llm_cost_usd_total": "counter",
    "llm_cache_read_tokens_total": "counter",
    "llm_cache_creation_tokens_total": "counter",
    "llm_cache_hit_ratio": "gauge",
    "llm_prompt_tokens_estimated": "gauge",
    "llm_prompt_tokens_drift": "histogram",
    "llm_compaction_triggered_total": "counter",
    "llm_compaction_duration_seconds": "histogram",
    "workspace_cache_hits_total": "counter",
    "workspace_cache_misses_total": "counter",
    "workspace_cache_invalidations_total": "counter",
}
MINE = ("llm_", "workspace_", "reverie_dmn", "reverie_turns")
ME = 'agent="ana",model="m",provider="anthropic"'


def scraped(llm: AgentStats | CompactionStats) -> dict[str, float]:
    """What the server shows, by sample."""
    text = rendered_metrics(llm.metrics)
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines), "each sample stands once"
    return {name: float(value) for name, value in lines if name.startswith(MINE)}


def test_before_the_first_request_the_known_outcomes_are_there_at_nought() -> None:
    assert scraped(AgentStats()) == {}
    samples = scraped(CompactionStats(["ana", "bob"]))
    for agent in ("ana", "bob"):
        for outcome in COMPACTION_OUTCOMES:
            assert (
                samples.pop(
                    f'llm_compaction_triggered_total{{agent="{agent}",outcome="{outcome}"}}'
                )
                == 0
            )
        for outcome in ("ok", "failed"):
            assert (
                samples[
                    f'llm_compaction_duration_seconds_count{{agent="{agent}",outcome="{outcome}"}}'
                ]
                == 0
            )
    assert {name.partition("{")[0].rpartition("_")[0] for name in samples} == {
        "llm_compaction_duration_seconds"
    }


def test_requests_are_counted_by_agent_provider_and_model() -> None:
    llm = AgentStats()
    llm.count_request("ana", account(read=90, plain=10, cost=0.25))
    llm.count_request("ana", account(written=100, cost=0.5))
    llm.count_request("ana", account(plain=200, model="other"))
    llm.count_request("bob", account(plain=100, cost=1.0))

    samples = scraped(llm)
    assert samples[f"llm_requests_total{{{ME}}}"] == 2
    assert samples[f"llm_cost_usd_total{{{ME}}}"] == 0.75
    assert samples[f"llm_cache_read_tokens_total{{{ME}}}"] == 90
    assert samples[f"llm_cache_creation_tokens_total{{{ME}}}"] == 100
    assert samples['llm_cache_hit_ratio{agent="ana"}'] == 90 / 400
    assert samples['llm_cache_hit_ratio{agent="bob"}'] == 0
    assert samples['llm_requests_total{agent="ana",model="other",provider="anthropic"}'] == 1
    assert 'llm_cost_usd_total{agent="ana",model="other",provider="anthropic"}' not in samples, (
        "its price is not known"
    )
    assert samples['llm_cost_usd_total{agent="bob",model="m",provider="anthropic"}'] == 1


def test_estimates_are_compared_with_the_bill() -> None:
    llm = AgentStats()
    for billed in (
        130,
        125,
        104,
        65,
        0,
    ):  # estimated at 130: 0 %, 4 %, 25 %, 100 %, and nothing to compare
        llm.count_request("ana", account(plain=billed))
    llm.count_request("ana", replace(account(plain=50), blocks=()))  # nothing was estimated

    samples = scraped(llm)
    drift = 'llm_prompt_tokens_drift_bucket{agent="ana",le="{}",model="m",provider="anthropic"}'
    cumulative = {
        le: samples[drift.replace("{}", le)]
        for le in ("1.0", "2.0", "5.0", "10.0", "15.0", "20.0", "30.0", "50.0", "100.0", "+Inf")
    }
    assert list(cumulative.values()) == [1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    assert samples[f"llm_prompt_tokens_drift_count{{{ME}}}"] == 4
    assert samples[f"llm_prompt_tokens_drift_sum{{{ME}}}"] == pytest.approx(0 + 4 + 25 + 100)
    assert samples[f"llm_prompt_tokens_estimated{{{ME}}}"] == 130


def test_the_newest_estimate_is_shown() -> None:
    llm = AgentStats()
    llm.count_request("ana", account(plain=130))
    long = BlockUsage(name="now", tokens=870, read=0, written=0, lifetime=None)
    one = account(plain=1000)
    llm.count_request("ana", replace(one, blocks=(*one.blocks, long)))
    assert scraped(llm)[f"llm_prompt_tokens_estimated{{{ME}}}"] == 1000


def test_compactions_are_counted_and_timed() -> None:
    llm = CompactionStats(["ana"])
    llm.count("ana", "ok", 0.5)
    llm.count("ana", "ok", 7.0)
    llm.count("ana", "failed", 500.0)
    llm.count("ana", "lock_held")

    samples = scraped(llm)
    counts = [
        samples[f'llm_compaction_triggered_total{{agent="ana",outcome="{outcome}"}}']
        for outcome in COMPACTION_OUTCOMES
    ]
    assert counts == [2, 1, 1, 0, 0]
    took = 'llm_compaction_duration_seconds_{}{{agent="ana",{}outcome="{}"}}'
    assert samples[took.format("bucket", 'le="0.5",', "ok")] == 1
    assert samples[took.format("bucket", 'le="10.0",', "ok")] == 2
    assert samples[took.format("sum", "", "ok")] == 7.5
    assert samples[took.format("bucket", 'le="120.0",', "failed")] == 0
    assert samples[took.format("bucket", 'le="+Inf",', "failed")] == 1
    assert took.format("count", "", "lock_held") not in samples


def test_workspaces_are_asked_at_each_scrape() -> None:
    counts: dict[str, tuple[int, int, int]] = {}

    def now() -> WorkspaceCounts:
        return counts

    stats = AgentStats(now)
    counts['/a "b"'] = (7, 2, 1)
    samples = scraped(stats)
    assert samples == {
        'workspace_cache_hits_total{path="/a \\"b\\""}': 7,
        'workspace_cache_misses_total{path="/a \\"b\\""}': 2,
        'workspace_cache_invalidations_total{path="/a \\"b\\""}': 1,
    }


def test_a_server_that_makes_up_names_fills_no_memory() -> None:
    llm = AgentStats()
    for number in range(3 * MAX_MODELS):
        llm.count_request("ana", account(plain=1, model=f"m{number}"))
    samples = scraped(llm)
    requests = {
        name: value for name, value in samples.items() if name.startswith("llm_requests_total")
    }
    assert len(requests) == MAX_MODELS + 1
    assert (
        requests['llm_requests_total{agent="ana",model="other",provider="other"}'] == 2 * MAX_MODELS
    )


def test_networks_are_asked_at_each_scrape() -> None:
    states = {"ana": DmnState(), "bob": DmnState(mode=DmnMode.OFF)}
    spent_usd = {"ana": 0.0, "bob": 0.0}

    def now() -> list[DmnStatus]:
        return [
            snapshot_dmn(
                parts_of(
                    id=one,
                    state=states[one],
                    policy=DmnPolicy(inner=inner_conversation(one)),
                    next_tick_s=None,
                    spent_today_usd=spent_usd[one],
                ),
                NOW,
            )
            for one in states
        ]

    stats = AgentStats(minds=now)
    samples = scraped(stats)
    assert {name for name, value in samples.items() if value} == {
        'reverie_dmn_state{agent="ana",state="resting"}',
        'reverie_dmn_state{agent="bob",state="off"}',
        'reverie_dmn_held{agent="bob"}',
    }
    assert sum(name.startswith("reverie_dmn_state") for name in samples) == 2 * len(DmnMode)
    spent_usd["ana"] = 0.25
    states["ana"] = DmnState(
        mode=DmnMode.WORKING,
        running=(A,),
        waiting=(PendingTurn(conversation=B, direct=False),),
        pending=(A, B, inner_conversation("ana")),
        day="2026-03-04",
        turns_today=12,
        quiet_until=NOW + timedelta(hours=1),
    )
    samples = scraped(stats)
    assert samples['reverie_dmn_state{agent="ana",state="resting"}'] == 0
    assert samples['reverie_dmn_state{agent="ana",state="working"}'] == 1
    told = {
        name: samples[f'{name}{{agent="ana"}}']
        for name in NAMES
        if f'{name}{{agent="ana"}}' in samples
    }
    assert list(told.values()) == [1, 1, 1, 1, 2, 12, 0.25]


async def test_what_is_in_the_log_is_counted_once(tmp_path: Path) -> None:
    agents, stats = AgentStats(), GatewayStats({ChannelName("irc.test"): "IRC"}, NOW)
    link = NewEntry(
        fact=ConnectionChanged(
            id=EventId("l"), channel=ChannelName("irc.test"), up=True, reason="", sent=NOW
        ),
        at=NOW,
    )
    done = NewEntry(
        fact=TaskFinished(id=EventId("f"), what="dream", ok=True, text="", sent=NOW, agent="ana"),
        at=NOW,
    )
    ended = turn(place().conversation, 1)
    within = turn(place().conversation, 1, within=TurnId("i"))

    def verdict(event: NewEntry) -> NewEntry:
        fact = Judgement(type="x", urgency=1, fate="noted", rule="r", role="guest")
        return NewEntry(fact=fact, at=NOW, cause=event)

    async with await opened(tmp_path / "s.db") as store:
        store.subscribe(agents.on_appended)
        count_events(stats, store)
        for _ in range(2):  # the second time it is known
            message = said(1, kind="mention")
            await store.append([message, judged(message, 3, "due")])
        await store.append([link, verdict(link), done, verdict(done), delivered("p")])
        await store.append([ended, within])
    assert scraped(agents) == {
        'reverie_turns_total{agent="",cause="addressed",outcome="replied"}': 1
    }
    told = rendered_metrics(ChannelMetrics(stats, ManualClock(NOW), "1"))
    assert [line for line in told.splitlines() if line.startswith("reverie_notifications")] == [
        'reverie_notifications_total{channel="irc.test",fate="due",kind="mention"} 1.0',
        'reverie_notifications_total{channel="irc.test",fate="noted",kind="link"} 1.0',
        'reverie_notifications_total{channel="agent",fate="noted",kind="finished"} 1.0',
    ]
    (channel,) = stats.snapshot().channels
    assert channel.events == {"link": 1, "mention": 1}
    assert channel.last_event is not None
