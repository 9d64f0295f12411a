"""The channels as the configuration has them: they come, go and are made anew while the gateway runs.

What is to be is said at once, for all; what takes time follows by itself, for each channel alone, and the others are
not touched. What has gone says goodbye first, and what has changed does so before it comes again, from where the log
says it was: so nothing is lost, and nothing heard twice.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Final, Protocol

from channels.base import CanApplyConfig, Channel
from gateway.adapters import account_key, explain_unconnectable, find_ranked_rooms, find_unavailable, import_adapter
from gateway.events import ChannelName
from gateway.runner import ChannelSupervisor
from gateway.settings import ChannelConfig, Settings
from gateway.settings_load import ConfigError
from gateway.settings_source import ConfigProblem

logger = logging.getLogger("reverie.fleet")

REMOVED_TEXT: Final = "it is no longer configured"
CHANGED_TEXT: Final = "its configuration has changed"
NO_CHANNEL_LEFT_TEXT: Final = "no channel would be left: keep one, or stop the gateway"


class AdapterFactory(Protocol):
    """Makes the adapter of one channel."""

    def __call__(self, name: ChannelName, settings: Settings, cursor: str | None, before: Channel | None, /) -> Channel:
        """To go on from `cursor`. `before`: what had that name until now, and has said goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """What an adapter is made of. Equal: it may stay."""

    config: ChannelConfig
    ranked_rooms: frozenset[str]
    """As `adapters.ranked_rooms`."""


@dataclass(slots=True)
class _RunningAdapter:
    spec: AdapterSpec
    """What it was made of."""
    is_shut: bool = False
    """It is not heard any more, so it must be made anew even if it is wanted again as it was."""


class ChannelReconciler:
    """All channels of the configuration. A `gateway.live.SettingsListener`."""

    def __init__(
        self,
        settings: Settings,
        channels: MutableMapping[ChannelName, Channel],
        runner: ChannelSupervisor,
        *,
        make: AdapterFactory,
        cursor: Callable[[ChannelName], Awaitable[str | None]],
        came: Callable[[Channel, bool], None],
        went: Callable[[ChannelName], None],
        failed: Callable[[ChannelName, str], None],
        adapted: Callable[[ChannelName], None],
    ) -> None:
        """`channels`: those that there are, made of `settings` and run by `runner`; kept up from now on, here alone.

        `came` is called with each that is put into them, before it runs, and whether there was none of that name;
        `went` with each that is taken out, after it has said goodbye; `failed` with each that cannot be made, and why:
        it is out then; `adapted` with each that goes on as it was. None of them fails, and `went` also bears a name
        that never came.
        """
        self._settings, self._channels, self._runner = settings, channels, runner
        self._make, self._cursor = make, cursor
        self._came, self._went, self._failed, self._adapted = came, went, failed, adapted
        self._specs = build_adapter_specs(settings)
        self._running = {name: _RunningAdapter(one) for name, one in self._specs.items()}
        self._reconciling: set[ChannelName] = set()
        self._adapters_changed = asyncio.Event()

    def prepare(self, new: Settings) -> Callable[[], None]:
        """As `Taker.prepare`."""
        if problems := tuple(self._find_problems(new)):
            raise ConfigError(problems)
        to_be = build_adapter_specs(new)
        return lambda: self._apply(new, to_be)

    def _find_problems(self, new: Settings) -> list[ConfigProblem]:
        found = [ConfigProblem("", 0, f"channels.{name}", why) for name, why in find_unavailable(new)]
        for name, one in build_adapter_specs(new).items():
            if one != self._specs.get(name) and (why := explain_unconnectable(one.config)):
                found.append(ConfigProblem("", 0, f"channels.{name}", why))
        return found if new.channels else [ConfigProblem("", 0, "channels", NO_CHANNEL_LEFT_TEXT)]

    def _apply(self, new: Settings, to_be: dict[ChannelName, AdapterSpec]) -> None:
        self._settings, self._specs = new, to_be
        for name in {**self._running, **to_be}:
            if self._is_current(name):
                continue
            if self._try_adapt(name):
                continue
            if name in self._running and name not in to_be:
                self._running[name].is_shut = True
                self._runner.stop_hearing(name)
            if name not in self._reconciling:
                self._reconciling.add(name)
                self._runner.spawn_beside(self._reconcile(name))
        self._notify_changed()

    def _is_current(self, name: ChannelName) -> bool:
        """Whether it is as it is wanted."""
        there, to_be = self._running.get(name), self._specs.get(name)
        if there is None or to_be is None:
            return there is None and to_be is None
        return there.spec == to_be and not there.is_shut

    def _try_adapt(self, name: ChannelName) -> bool:
        """Whether it is as it is wanted once it is told so, for what has changed is nothing to be made anew for."""
        there, to_be, channel = self._running.get(name), self._specs.get(name), self._channels.get(name)
        if there is None or to_be is None or channel is None or there.is_shut or name in self._reconciling:
            return False
        if (
            there.spec.ranked_rooms != to_be.ranked_rooms
            or not isinstance(channel, CanApplyConfig)
            or not channel.apply_config(to_be.config)
        ):
            return False
        there.spec = to_be
        logger.info("%s goes on with its new configuration", name)
        self._adapted(name)
        return True

    async def _reconcile(self, name: ChannelName) -> None:
        """See to it that it is as it is wanted, whatever that is by then."""
        try:
            while not self._is_current(name):
                if name in self._running:
                    why = CHANGED_TEXT if name in self._specs else REMOVED_TEXT
                    logger.info("%s says goodbye: %s", name, why)
                    await self._runner.stop_channel(name, why)
                    del self._running[name]
                    self._notify_changed()
                elif to_be := self._specs.get(name):
                    await self._start_adapter(name, to_be)
            if name not in self._running:
                self._forget(name)
        finally:
            self._reconciling.discard(name)

    async def _start_adapter(self, name: ChannelName, to_be: AdapterSpec) -> None:
        """Make it and run it, unless something else is wanted by then."""
        while self._specs.get(name) == to_be and self._is_account_in_use(name, to_be):
            await self._adapters_changed.wait()
        cursor = await self._cursor(name)
        try:
            await asyncio.to_thread(import_adapter, to_be.config)
            if self._specs.get(name) != to_be:
                return
            self._running[name] = _RunningAdapter(to_be)
            before = self._channels.get(name)
            channel = self._make(name, self._settings, cursor, before)
        except Exception:  # a bug in the adapter, and no reason to end the others
            logger.exception("%s cannot be made", name)
            self._running[name] = _RunningAdapter(to_be)
            self._forget(name)
            self._failed(name, "internal error")
            return
        logger.info("%s begins", name)
        self._channels[name] = channel
        self._came(channel, before is None)
        self._runner.run_channel(channel)

    def _is_account_in_use(self, name: ChannelName, to_be: AdapterSpec) -> bool:
        """Whether another that has to go is still connected as the same account."""
        mine = account_key(to_be.config)
        others = ((one, berth) for one, berth in self._running.items() if one != name and not self._is_current(one))
        return any(account_key(berth.spec.config) == mine for _, berth in others)

    def _notify_changed(self) -> None:
        """Let those look again who wait for others to go."""
        self._adapters_changed.set()
        self._adapters_changed = asyncio.Event()

    def _forget(self, name: ChannelName) -> None:
        self._runner.forget(name)
        self._channels.pop(name, None)
        self._went(name)


def build_adapter_specs(settings: Settings) -> dict[ChannelName, AdapterSpec]:
    """Of each channel."""
    names = [ChannelName(name) for name in settings.channels]
    return {
        name: AdapterSpec(config=settings.channels[name], ranked_rooms=find_ranked_rooms(name, settings))
        for name in names
    }
