"""What the agents do by themselves and what came of everything, counted since this process started. No IO, no clock."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from agent.signals import DmnMode
from gateway.events import Address, ConnectionChanged
from gateway.ops.metrics import MetricFamily, MetricSample
from gateway.orders import DmnStatus
from gateway.records import INNER_CHANNEL, Fact, Judgement, TurnRecord
from gateway.store import AppendResult, NewEntry


class AgentStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self, minds: Callable[[], Sequence[DmnStatus]] = tuple) -> None:
        """`minds`: every agent's network as it stands; asked at each scrape."""
        self._list_minds = minds
        self._turns = Counter[tuple[str, str, str]]()
        self._notifications = Counter[tuple[str, str, str]]()

    def count_turn(self, agent: str, cause: str, outcome: str) -> None:
        """A turn ended, as its `TurnRecord` says."""
        self._turns[agent, cause, outcome] += 1

    def count_notification(self, channel: str, kind: str, fate: str) -> None:
        """A notification was new, and this was decided about it (`Judgement.fate`)."""
        self._notifications[channel, kind, fate] += 1

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """These were appended to the log: the turns and the judgements among them are counted."""
        for entry, done in zip(entries, written, strict=True):
            if not done.is_new:
                continue
            if isinstance(entry.fact, Judgement) and isinstance(entry.cause, NewEntry):
                event = entry.cause.fact
                self.count_notification(_find_channel(event), event.kind, entry.fact.fate)
            elif isinstance(entry.fact, TurnRecord) and entry.fact.within is None:  # else it is part of that one
                self.count_turn(entry.fact.agent, entry.fact.cause, entry.fact.outcome)

    def families(self) -> list[MetricFamily]:
        """All of it, ready to be shown."""
        return [*self._build_dmn_families(list(self._list_minds())), *self._build_counter_families()]

    @staticmethod
    def _build_dmn_families(minds: Sequence[DmnStatus]) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_dmn_state",
            kind="gauge",
            help_text="1 for the state that the agent's Default Mode Network is in, 0 for the others.",
            samples=[
                MetricSample({"agent": one.agent, "state": mode.value}, float(one.mode == mode.value))
                for one in minds
                for mode in DmnMode
            ],
        )
        for name, told, value in _GAUGES:
            samples = [MetricSample({"agent": one.agent}, float(value(one))) for one in minds]
            yield MetricFamily(name=f"reverie_dmn_{name}", kind="gauge", help_text=told, samples=samples)

    def _build_counter_families(self) -> Iterable[MetricFamily]:
        yield MetricFamily(
            name="reverie_turns_total",
            kind="counter",
            help_text="Turns that ended, by why they were taken and how they ended.",
            samples=_build_samples(self._turns, ("agent", "cause", "outcome")),
        )
        yield MetricFamily(
            name="reverie_notifications_total",
            kind="counter",
            help_text="Notifications that were taken in, by channel, kind, and what was decided about them.",
            samples=_build_samples(self._notifications, ("channel", "kind", "fate")),
        )


_GAUGES: tuple[tuple[str, str, Callable[[DmnStatus], float]], ...] = (
    ("quiet", "1 if nothing below urgent starts anything.", lambda one: one.quiet),
    ("held", "1 if no autonomous turn may start now, for whatever reason.", lambda one: bool(one.held)),
    ("running_turns", "Turns that are under way.", lambda one: len(one.running)),
    ("waiting_turns", "Conversations that are owed a turn and wait for a lane.", lambda one: len(one.waiting)),
    ("pending", "Conversations that a tick would take up.", lambda one: len(one.wanted)),
    ("autonomous_turns_today", "Turns that nobody asked for, on this UTC day.", lambda one: one.turns_today),
    ("autonomous_cost_usd_today", "What these cost in US dollars.", lambda one: one.spent_today_usd),
)
"""A name, what it is, and where it stands."""


def _find_channel(event: Fact) -> str:
    if isinstance(event, ConnectionChanged):
        return event.channel
    at: Address | None = getattr(event, "at", None)
    return at.channel if at is not None else INNER_CHANNEL


def _build_samples(counts: Counter[tuple[str, str, str]], names: tuple[str, str, str]) -> list[MetricSample]:
    return [MetricSample(dict(zip(names, labels, strict=True)), count) for labels, count in sorted(counts.items())]
