"""What the agents do by themselves, as Prometheus scrapes it from the running server."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from agent.signals import Mode, Owed, Policy, State
from gateway.clock import ManualClock
from gateway.events import ChannelName, ConversationId, EventId, Finished, Link
from gateway.mindctl import Saved, look
from gateway.ops.mind_stats import MindStats
from gateway.ops.pages import pages
from gateway.ops.server import OpsServer
from gateway.ops.site import OpsSite
from gateway.ops.stats import Stats
from gateway.orders import MindSeen
from gateway.records import Judged, TurnEnded, TurnId, inner
from gateway.store import Entry
from tests.store.kit import delivered, judged, opened, place, run, said, turn

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


def scraped(stats: MindStats) -> tuple[str, dict[str, float]]:
    """What the server shows, as text and by sample."""

    async def story() -> str:
        clock = ManualClock()
        channels = Stats({ChannelName("irc.x"): "IRC"}, clock.now())
        serving = OpsServer("127.0.0.1", 0, OpsSite(pages(channels, clock, "1.0", None, stats)))
        assert await serving.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{serving.port}", trust_env=False) as client:
            text = (await client.get("/metrics")).text
        await serving.close()
        return text

    text = asyncio.run(story())
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines), "each sample stands once"
    mine = ("reverie_dmn", "reverie_turns", "reverie_notifications")
    return text, {name: float(value) for name, value in lines if name.startswith(mine)}


def test_every_metric_has_its_name_its_type_and_its_help() -> None:
    text, samples = scraped(MindStats())
    assert samples == {}
    for name, kind in NAMES.items():
        assert f"\n# TYPE {name} {kind}\n" in text
        assert re.search(rf"\n# HELP {name} [A-Z1].+\.\n", text)


def test_networks_are_asked_at_each_scrape() -> None:
    states = {"ana": State(), "bob": State(mode=Mode.OFF)}

    def now() -> list[MindSeen]:
        return [look(Saved(agent=one, state=states[one], policy=Policy(inner=inner(one))), NOW) for one in states]

    stats = MindStats(now)
    _, samples = scraped(stats)
    assert {name for name, value in samples.items() if value} == {
        'reverie_dmn_state{agent="ana",state="resting"}',
        'reverie_dmn_state{agent="bob",state="off"}',
        'reverie_dmn_held{agent="bob"}',
    }
    assert sum(name.startswith("reverie_dmn_state") for name in samples) == 2 * len(Mode)
    states["ana"] = State(
        mode=Mode.WORKING,
        running=(A,),
        waiting=(Owed(conversation=B, direct=False),),
        pending=(A, B, inner("ana")),
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


def test_turns_and_notifications_are_counted_by_what_came_of_them() -> None:
    stats = MindStats()
    for outcome in ("replied", "replied", "silent"):
        stats.count_turn("ana", "addressed", outcome)
    stats.count_turn("ana", "digest", "yielded")
    stats.count_notification("irc.x", "room", "context")
    stats.count_notification("irc.x", "room", "context")
    stats.count_notification("irc.x", "mention", "due")
    assert scraped(stats)[1] == {
        'reverie_turns_total{agent="ana",cause="addressed",outcome="replied"}': 2,
        'reverie_turns_total{agent="ana",cause="addressed",outcome="silent"}': 1,
        'reverie_turns_total{agent="ana",cause="digest",outcome="yielded"}': 1,
        'reverie_notifications_total{channel="irc.x",kind="room",fate="context"}': 2,
        'reverie_notifications_total{channel="irc.x",kind="mention",fate="due"}': 1,
    }


def test_what_is_in_the_log_is_counted_once(tmp_path: Path) -> None:
    stats = MindStats()
    link = Entry(fact=Link(id=EventId("l"), channel=ChannelName("irc.test"), up=True, reason="", sent=NOW), at=NOW)
    done = Entry(fact=Finished(id=EventId("f"), what="dream", ok=True, text="", sent=NOW, agent="ana"), at=NOW)
    ended = turn(place().conversation, 1)
    assert isinstance(ended.fact, TurnEnded)
    within = replace(ended, fact=replace(ended.fact, within=TurnId("i")))

    def verdict(event: Entry) -> Entry:
        fact = Judged(type="x", urgency=1, fate="noted", rule="r", role="guest")
        return Entry(fact=fact, at=NOW, cause=event)

    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            store.add_listener(stats.on_appended)
            for _ in range(2):  # the second time it is known
                message = said(1, kind="mention")
                await store.append([message, judged(message, 3, "due")])
            await store.append([link, verdict(link), done, verdict(done), delivered("p")])
            await store.append([ended, within])

    run(story())
    assert scraped(stats)[1] == {
        'reverie_turns_total{agent="",cause="addressed",outcome="replied"}': 1,
        'reverie_notifications_total{channel="agent",kind="finished",fate="noted"}': 1,
        'reverie_notifications_total{channel="irc.test",kind="link",fate="noted"}': 1,
        'reverie_notifications_total{channel="irc.test",kind="mention",fate="due"}': 1,
    }
