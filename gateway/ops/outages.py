"""Outages that no channel's link tells of: configured rooms that cannot be entered, and models that do not answer.

Each is a problem in `GatewayStats`, so `/ready`, `reverie health` and `reverie channels` show it. Owners are told once
when it begins, and when a model answers again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from channels.base import Channel, KnowsJoinRefusals
from gateway.clock import Clock
from gateway.events import Address, ChannelName, RoomId
from gateway.live import LiveSettings
from gateway.ops.stats import GatewayStats
from gateway.records import TurnRecord
from gateway.store import AppendResult, NewEntry

MODEL_FAILURES: Final = ("overloaded", "unreachable", "misconfigured", "budget")
"""Causes of a failed turn that are the provider's, whatever was asked."""
_ROOM_PREFIX: Final = "room:"


class OutageMonitor:
    """Of one gateway. `wrote` is to be told of all that the store writes."""

    def __init__(
        self,
        live: LiveSettings,
        channels: Mapping[ChannelName, Channel],
        stats: GatewayStats,
        clock: Clock,
        *,
        tell: Callable[[str, str], None],
        title: Callable[[Address], str],
    ) -> None:
        """`tell`: as `Owners.tell`. `title`: what people call a place."""
        self._live_settings = live
        self._channels = channels
        self._stats = stats
        self._clock = clock
        self._notify_owners = tell
        self._find_title = title

    def check_rooms(self) -> None:
        """Note which configured rooms cannot be entered by now. Call it every few seconds."""
        refused = {
            f"{_ROOM_PREFIX}{at.conversation}": (at, why)
            for name, channel in list(self._channels.items())
            if isinstance(channel, KnowsJoinRefusals)
            for room in self._configured_rooms(name)
            for at in [Address(channel=name, room=room)]
            if (why := channel.join_refusal(room))
        }
        for what, (at, why) in refused.items():
            text = f"{self._find_title(at)} cannot be entered: {why}"
            if self._stats.report_problem(what, text, self._clock.now(), partial=True):
                self._notify_owners(what, f"{text}.")
        for what in self._stats.problem_names(_ROOM_PREFIX):
            if what not in refused:
                self._stats.clear_problem(what)

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """These were appended to the log: the end of a turn says whether a model answered."""
        for entry, done in zip(entries, written, strict=True):
            if isinstance(entry.fact, TurnRecord) and done.is_new:
                self._on_turn_ended(entry.fact)

    def _on_turn_ended(self, turn: TurnRecord) -> None:
        what, now = f"model:{turn.agent}", self._clock.now()
        if turn.outcome == "failed" and turn.failure in MODEL_FAILURES:
            text = f"No model answers {turn.agent}: {turn.reason}"
            if self._stats.report_problem(what, text, now):
                self._notify_owners(
                    f"{what}:{now.isoformat()}", f"{text}. Who asks is told so; I say when one answers again."
                )
        elif turn.requests and turn.outcome != "failed" and self._stats.clear_problem(what):
            self._notify_owners(f"{what}:over:{now.isoformat()}", f"A model answers {turn.agent} again.")

    def _configured_rooms(self, name: ChannelName) -> Sequence[RoomId]:
        config = self._live_settings.settings.channels.get(name)
        return [RoomId(room) for room in getattr(config, "rooms", ()) if room != "*"]
