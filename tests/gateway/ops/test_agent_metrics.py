"""What the agents do by themselves, as Prometheus scrapes it from the running server."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.signals import DmnMode, DmnPolicy, DmnState, PendingTurn
from gateway.core.control_messages import DmnStatus
from gateway.core.events import ChannelName, ConnectionChanged, ConversationId, EventId, TaskFinished
from gateway.core.facts import Judgement, TurnId, TurnRecord, inner_conversation
from gateway.ops.metrics import AgentStats
from gateway.runtime.dmn_admin import SavedDmn, snapshot_dmn
from gateway.store import NewEntry
from tests.kits.ops import rendered_metrics
from tests.kits.store import delivered, judged, opened, place, run, said, turn

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
    "reverie_notifications_total": "counter",
}


def scraped(stats: AgentStats) -> tuple[str, dict[str, float]]:
    """What the server shows, as text and by sample."""
    text = rendered_metrics(stats.metrics)
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines), "each sample stands once"
    mine = ("reverie_dmn", "reverie_turns", "reverie_notifications")
    return text, {name: float(value) for name, value in lines if name.startswith(mine)}


def test_every_metric_has_its_name_its_type_and_its_help() -> None:
    text, samples = scraped(AgentStats())
    assert samples == {}
    for name, kind in NAMES.items():
        assert f"# TYPE {name} {kind}\n" in text
        assert re.search(rf"(?m)^# HELP {name} [A-Z1].+\.$", text)


def test_networks_are_asked_at_each_scrape() -> None:
    states = {"ana": DmnState(), "bob": DmnState(mode=DmnMode.OFF)}

    def now() -> list[DmnStatus]:
        return [
            snapshot_dmn(SavedDmn(id=one, state=states[one], policy=DmnPolicy(inner=inner_conversation(one))), NOW)
            for one in states
        ]

    stats = AgentStats(minds=now)
    _, samples = scraped(stats)
    assert {name for name, value in samples.items() if value} == {
        'reverie_dmn_state{agent="ana",state="resting"}',
        'reverie_dmn_state{agent="bob",state="off"}',
        'reverie_dmn_held{agent="bob"}',
    }
    assert sum(name.startswith("reverie_dmn_state") for name in samples) == 2 * len(DmnMode)
    states["ana"] = DmnState(
        mode=DmnMode.WORKING,
        running=(A,),
        waiting=(PendingTurn(conversation=B, direct=False),),
        pending=(A, B, inner_conversation("ana")),
        day="2026-03-04",
        turns_today=12,
        spent_today_usd=0.25,
        quiet_until=NOW + timedelta(hours=1),
    )
    _, samples = scraped(stats)
    assert samples['reverie_dmn_state{agent="ana",state="resting"}'] == 0
    assert samples['reverie_dmn_state{agent="ana",state="working"}'] == 1
    told = {name: samples[f'{name}{{agent="ana"}}'] for name in NAMES if f'{name}{{agent="ana"}}' in samples}
    assert list(told.values()) == [1, 1, 1, 1, 2, 12, 0.25]


def test_what_is_in_the_log_is_counted_once(tmp_path: Path) -> None:
    stats = AgentStats()
    link = NewEntry(
        fact=ConnectionChanged(id=EventId("l"), channel=ChannelName("irc.test"), up=True, reason="", sent=NOW), at=NOW
    )
    done = NewEntry(fact=TaskFinished(id=EventId("f"), what="dream", ok=True, text="", sent=NOW, agent="ana"), at=NOW)
    ended = turn(place().conversation, 1)
    assert isinstance(ended.fact, TurnRecord)
    within = replace(ended, fact=replace(ended.fact, within=TurnId("i")))

    def verdict(event: NewEntry) -> NewEntry:
        fact = Judgement(type="x", urgency=1, fate="noted", rule="r", role="guest")
        return NewEntry(fact=fact, at=NOW, cause=event)

    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            store.subscribe(stats.on_appended)
            for _ in range(2):  # the second time it is known
                message = said(1, kind="mention")
                await store.append([message, judged(message, 3, "due")])
            await store.append([link, verdict(link), done, verdict(done), delivered("p")])
            await store.append([ended, within])

    run(story())
    assert scraped(stats)[1] == {
        'reverie_turns_total{agent="",cause="addressed",outcome="replied"}': 1,
        'reverie_notifications_total{channel="agent",fate="noted",kind="finished"}': 1,
        'reverie_notifications_total{channel="irc.test",fate="noted",kind="link"}': 1,
        'reverie_notifications_total{channel="irc.test",fate="due",kind="mention"}': 1,
    }
