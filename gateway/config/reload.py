"""Live settings: the configuration in force, read again while the gateway runs.

A reload has two phases, so that it never takes effect in part: first everything is read, validated
and prepared, and nothing changes if any part fails; then all of it takes effect in one step of the
event loop. A running turn ends with the settings it began with; the next message uses the new ones.
`LiveSettings.reload` is the only way by which the files change the settings; `watch_config` calls
it after a change of the files or on request.

Everything takes effect from the next message on. Files that change one of `RESTART_KEYS` wait, as a
whole, for a restart. Messages name keys, never values.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from agent.cache.prices import PriceTable
from channels.aio import with_timeout
from gateway.config.loader import ConfigError, ConfigFiles, LoadedConfig, locate_problem
from gateway.config.models import AgentConfig, Settings
from gateway.config.secrets import PriceTableError, collect_secrets, load_price_table
from gateway.config.source import ConfigProblem
from gateway.core.clock import Clock
from gateway.core.frozen import frozen
from gateway.core.private_files import agent_directory

logger = logging.getLogger("reverie.live")

RESTART_KEYS: Final[Mapping[str, str]] = {
    "store.path": "the log is open",
    "store.url": "the log is open",
    "ops": "programs that watch the gateway would lose it",
    "agents.*.workspace": "the agent's own files are beside it and are read at the start",
    "agents.*.files": "jobs of the agent's shell run there",
    "plugins": "plugins are built at the start",
    "tools.mcp": "these programs are running, and running turns use their tools",
}
"""Keys, `*` for any name, with the reason why they cannot change while the gateway runs. Agents
cannot be added or removed either: each has a state of its own, which is read from the log at the
start."""
POLL_S: Final = 2.0


@frozen
class ReloadResult:
    """Result of reading the configuration again: keys and places, never values."""

    applied: tuple[str, ...] = ()
    after_restart: tuple[str, ...] = ()
    """Keys that need a restart: if one of them has changed, nothing takes effect before it."""
    problems: tuple[ConfigProblem, ...] = ()
    """Everything to fix; until then the earlier settings stay in force."""
    read_error: str = ""
    """Reason why it could not be read. Empty: it could."""

    def __str__(self) -> str:
        """One line for the log."""
        if self.read_error:
            return f"the configuration cannot be read; the present settings stay: {self.read_error}"
        if self.problems:
            return "the configuration has errors; the present settings stay: " + "; ".join(
                map(str, self.problems)
            )
        if self.after_restart:
            keys = ", ".join(self.after_restart)
            return f"the configuration was read again; all changes wait for a restart, for: {keys}"
        now = f"in force now: {', '.join(self.applied)}" if self.applied else "nothing has changed"
        return f"the configuration was read again; {now}"


def find_restart_keys(running: Settings, read: Settings) -> tuple[str, ...]:
    """Return the changed keys that need a restart."""
    agents = {one.id for one in running.agents} ^ {one.id for one in read.agents}
    patterns = [*RESTART_KEYS, *(f"agents.{name}" for name in agents)]
    return tuple(
        key
        for key in _changed_keys(running, read)
        if any(fnmatchcase(key, one) or fnmatchcase(key, f"{one}.*") for one in patterns)
    )


def _dump_settings(settings: Settings) -> dict[str, object]:
    """Return the settings by key; agents by their ids."""
    dumped = settings.model_dump()
    return dumped | {"agents": {agent["id"]: agent for agent in dumped["agents"]}}


def _changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """Return the keys with different values, as an operator would write them. `agents`: their order
    changed.
    """
    keys = tuple(_key_differences(_dump_settings(old), _dump_settings(new)))
    old_ids, new_ids = [one.id for one in old.agents], [one.id for one in new.agents]
    is_same_order = [one for one in old_ids if one in new_ids] == [
        one for one in new_ids if one in old_ids
    ]
    return keys if is_same_order else (*keys, "agents")


def _key_differences(old: object, new: object, at: str = "") -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield at
        return
    for key in sorted(old.keys() | new.keys(), key=str):
        yield from _key_differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))


ChangeListener = Callable[[Settings], Callable[[], None]]
"""Prepares for new settings; raises ConfigError, with keys and without files, if they cannot be.

The returned function puts them in force: it is synchronous and cannot fail. It is not called if any
other listener refuses, so nothing must need a cleanup then. Called on the event loop;
`LiveSettings.settings` is still the old value meanwhile.
"""


Optimization = Literal["prompt_cache", "compaction", "token_counter", "workspace_cache"]


def _find_enabled(general: Mapping[Optimization, bool], agent: AgentConfig) -> set[Optimization]:
    own = {one: getattr(agent.context_optimization, one, None) for one in general}
    return {one for one, is_on in general.items() if (is_on if own[one] is None else own[one])}


class LiveSettings:
    """The settings in force."""

    def __init__(self, settings: Settings, files: ConfigFiles | None = None) -> None:
        """`files`: what the settings were read from. None: nothing changes."""
        self._followers: list[Callable[[Settings], None]] = []
        self.put_in_force(settings)
        self.files = files
        self.directory = files.directory if files is not None else None
        """Directory of the configuration files. None: there are none."""
        self.change_event = asyncio.Event()
        """Set when a file may have changed, or a reload was requested: for `watch_config`."""
        self._is_reload_requested = False
        self._prices: PriceTable | None = None
        self._reload_lock = asyncio.Lock()
        self._listeners: list[ChangeListener] = []
        self.secret_listeners = list[Callable[[Iterable[str]], None]]()
        """Called with the secrets of each configuration read, before any of it is used."""
        self.reload_listeners = list[Callable[[ReloadResult], None]]()
        """Called with the result of each reload, on the event loop. They return at once."""
        self._warned: frozenset[ConfigProblem] = frozenset()

    def put_in_force(self, settings: Settings) -> None:
        """Replace the settings, and what follows them (`follow`), in one step. Listeners are not
        called.
        """
        self.settings = settings
        """The settings in force. Read them again for each use."""
        self.optimization = settings.llm.context_optimization
        self.agents: Mapping[str, AgentConfig] = {one.id: one for one in settings.agents}
        self._directories = {
            one.id: agent_directory(one.workspace, settings.store.path, one.id)
            for one in settings.agents
        }
        general = {one: getattr(self.optimization, one).enabled for one in get_args(Optimization)}
        enabled = {one.id: _find_enabled(general, one) for one in settings.agents}
        self.enabled = defaultdict(
            lambda: {one for one, is_on in general.items() if is_on}, enabled
        )
        """Optimizations of each agent: by its own switch where it is set, else by the general
        one."""
        for use in self._followers:
            use(settings)

    def to_local(self, at: datetime) -> datetime:
        """Return this time in the time zone of people (`dmn.timezone`)."""
        return at.astimezone(ZoneInfo(self.settings.dmn.timezone))

    @property
    def prices(self) -> PriceTable:
        """Prices of tokens. Read at first use, then at each reload. Raises PriceTableError."""
        if self._prices is None:
            self._prices = load_price_table(self.directory)
        return self._prices

    def follow(self, use: Callable[[Settings], None]) -> None:
        """Call this with the settings in force, now and whenever others are put in force. It must
        not fail.
        """
        self._followers.append(use)
        use(self.settings)

    def agent_directory(self, agent_id: str) -> Path:
        """Return the directory of an agent's own files."""
        return self._directories[agent_id]

    def on_change(self, listener: ChangeListener) -> None:
        """Call this with new settings; it prepares after those added before."""
        self._listeners.append(listener)

    def request_reload(self) -> None:
        """Request a reload soon, whether any file changed or not. Returns at once."""
        self._is_reload_requested = True
        self.change_event.set()

    async def reload(self) -> ReloadResult:
        """Reload now, whether any file changed or not. A broken configuration changes nothing.

        One at a time: a call during another reload gets the result of one that began after the
        call.
        """
        if self.files is None:
            return ReloadResult(read_error="it does not come from files")
        async with self._reload_lock:
            return await self._reload(self.files)

    async def refresh(self) -> None:
        """Reload if that was requested, or if any file changed since the last read.

        Changes that a concurrent reload has read are not read and reported again.
        """
        if self.files is None:
            return
        async with self._reload_lock:
            was_requested, self._is_reload_requested = self._is_reload_requested, False
            if was_requested or await asyncio.to_thread(self.files.is_stale):
                await self._reload(self.files)

    async def _reload(self, files: ConfigFiles) -> ReloadResult:
        """Reload, and report the result to the log and the listeners. The caller holds the lock."""
        try:
            result = await self._read_and_apply(files)
        except Exception:  # a bug: the earlier settings stay in force
            logger.exception("the configuration cannot be used")
            result = ReloadResult(read_error="internal error")
        unfinished = result.read_error or result.after_restart
        level = (
            logging.ERROR if result.problems else logging.WARNING if unfinished else logging.INFO
        )
        logger.log(level, "%s", result)
        for listener in self.reload_listeners:
            listener(result)
        return result

    async def _read_and_apply(self, files: ConfigFiles) -> ReloadResult:
        try:
            loaded, prices = await asyncio.to_thread(
                lambda: (files.read(), load_price_table(self.directory))
            )
        except ConfigError as error:
            return ReloadResult(problems=error.problems)
        except PriceTableError as error:
            return ReloadResult(problems=(ConfigProblem("", 0, "", str(error)),))
        except (
            OSError
        ) as error:  # a file was removed during the read: the next check finds its successor
            return ReloadResult(read_error=error.strerror or "it cannot be read")
        for warning in loaded.warnings:
            if warning not in self._warned:
                logger.warning("%s", warning)
        self._warned = frozenset(loaded.warnings)
        secrets = collect_secrets(loaded.settings, loaded.resolved_values)
        for listener in self.secret_listeners:
            listener(secrets)
        return self._apply(loaded, prices)

    def _apply(self, loaded: LoadedConfig, prices: PriceTable) -> ReloadResult:
        """Apply the configuration completely or not at all, in one step of the event loop."""
        new, changed = loaded.settings, _changed_keys(self.settings, loaded.settings)
        if waiting := find_restart_keys(self.settings, new):
            return ReloadResult(after_restart=waiting)
        problems, prepared = list[ConfigProblem](), list[Callable[[], None]]()
        for listener in self._listeners:
            try:
                prepared.append(listener(new))
            except ConfigError as error:
                problems += error.problems
        if problems:
            return ReloadResult(
                problems=tuple(locate_problem(one, loaded.positions) for one in problems)
            )
        if self._prices not in (None, prices):
            changed = (*changed, "prices")
        self.put_in_force(new)
        self._prices = prices
        for apply in prepared:
            try:
                apply()
            except Exception:  # a bug: the others must get the same settings
                logger.exception("a part of the configuration is not in force")
        return ReloadResult(applied=changed)


async def watch_config(live: LiveSettings, clock: Clock) -> None:
    """Read the configuration again after each change of its files and on request, until cancelled.
    Returns at once if there are no configuration files.
    """
    if live.files is None:
        return
    while True:
        await live.refresh()
        with contextlib.suppress(TimeoutError):
            await with_timeout(clock, POLL_S, live.change_event.wait())
        live.change_event.clear()
