"""States and counters of the channels, as the log of this process tells them."""

from collections.abc import Sequence

from gateway.core.events import Address, ConnectionChanged
from gateway.core.facts import INNER_CHANNEL, NOTIFICATION_CLASSES, Judgement
from gateway.core.metrics import OWN_KINDS, GatewayStats
from gateway.store import LogEntry, Store


def follow_log(stats: GatewayStats, store: Store) -> None:
    """Have the connections and the notifications counted that this process appends from now on."""

    def on_appended(entries: Sequence[LogEntry]) -> None:
        facts = {entry.seq: entry.fact for entry in entries}
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                stats.record_link(entry.fact, entry.at)
            elif isinstance(entry.fact, Judgement) and entry.cause in facts:
                event = facts[entry.cause]
                at: Address | None = getattr(event, "at", None)
                channel = at.channel if at is not None else INNER_CHANNEL
                if isinstance(event, ConnectionChanged):
                    channel = event.channel
                elif event.kind not in OWN_KINDS:
                    stats.events.last[channel] = entry.at
                stats.events.by_fate[channel, event.kind, entry.fact.fate] += 1

    store.subscribe(on_appended, Judgement, ConnectionChanged, *NOTIFICATION_CLASSES, own=True)
