"""What the agents do by themselves and what came of everything, counted since this process started. No IO, no clock."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from agent.signals import Mode
from gateway.events import Address, Link
from gateway.ops.metrics import Family, Sample
from gateway.orders import MindSeen
from gateway.records import INNER, Fact, Judged, TurnEnded
from gateway.store import Appended, Entry


class MindStats:
    """Counts. Everything happens on the event loop, so that nothing is seen half."""

    def __init__(self, minds: Callable[[], Sequence[MindSeen]] = tuple) -> None:
        """`minds`: every agent's network as it stands; asked at each scrape."""
        self._list_minds = minds
        self._turns = Counter[tuple[str, str, str]]()
        self._notifications = Counter[tuple[str, str, str]]()

    def count_turn(self, agent: str, cause: str, outcome: str) -> None:
        """A turn ended, as its `TurnEnded` says."""
        self._turns[agent, cause, outcome] += 1

    def count_notification(self, channel: str, kind: str, fate: str) -> None:
        """A notification was new, and this was decided about it (`Judged.fate`)."""
        self._notifications[channel, kind, fate] += 1

    def on_appended(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        """These were appended to the log: the turns and the judgements among them are counted."""
        for entry, done in zip(entries, written, strict=True):
            if not done.is_new:
                continue
            if isinstance(entry.fact, Judged) and isinstance(entry.cause, Entry):
                event = entry.cause.fact
                self.count_notification(_channel(event), event.kind, entry.fact.fate)
            elif isinstance(entry.fact, TurnEnded) and entry.fact.within is None:  # else it is part of that one
                self.count_turn(entry.fact.agent, entry.fact.cause, entry.fact.outcome)

    def families(self) -> list[Family]:
        """All of it, ready to be shown."""
        return [*self._build_dmn_families(list(self._list_minds())), *self._build_counter_families()]

    @staticmethod
    def _build_dmn_families(minds: Sequence[MindSeen]) -> Iterable[Family]:
        yield Family(
            name="reverie_dmn_state",
            kind="gauge",
            help_text="1 for the state that the agent's Default Mode Network is in, 0 for the others.",
            samples=[
                Sample({"agent": one.agent, "state": mode.value}, float(one.mode == mode.value))
                for one in minds
                for mode in Mode
            ],
        )
        for name, told, value in _GAUGES:
            samples = [Sample({"agent": one.agent}, float(value(one))) for one in minds]
            yield Family(name=f"reverie_dmn_{name}", kind="gauge", help_text=told, samples=samples)

    def _build_counter_families(self) -> Iterable[Family]:
        yield Family(
            name="reverie_turns_total",
            kind="counter",
            help_text="Turns that ended, by why they were taken and how they ended.",
            samples=_samples(self._turns, ("agent", "cause", "outcome")),
        )
        yield Family(
            name="reverie_notifications_total",
            kind="counter",
            help_text="Notifications that were taken in, by channel, kind, and what was decided about them.",
            samples=_samples(self._notifications, ("channel", "kind", "fate")),
        )


_GAUGES: tuple[tuple[str, str, Callable[[MindSeen], float]], ...] = (
    ("quiet", "1 if nothing below urgent starts anything.", lambda one: one.quiet),
    ("held", "1 if no autonomous turn may start now, for whatever reason.", lambda one: bool(one.held)),
    ("running_turns", "Turns that are under way.", lambda one: len(one.running)),
    ("waiting_turns", "Conversations that are owed a turn and wait for a lane.", lambda one: len(one.waiting)),
    ("pending", "Conversations that a tick would take up.", lambda one: len(one.wanted)),
    ("autonomous_turns_today", "Turns that nobody asked for, on this UTC day.", lambda one: one.turns_today),
    ("autonomous_cost_usd_today", "What these cost in US dollars.", lambda one: one.spent_today_usd),
)
"""A name, what it is, and where it stands."""


def _channel(event: Fact) -> str:
    if isinstance(event, Link):
        return event.channel
    at: Address | None = getattr(event, "at", None)
    return at.channel if at is not None else INNER


def _samples(counts: Counter[tuple[str, str, str]], names: tuple[str, str, str]) -> list[Sample]:
    return [Sample(dict(zip(names, labels, strict=True)), count) for labels, count in sorted(counts.items())]
