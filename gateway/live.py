"""What the settings say by now: the configuration read again while the gateway runs, and put in force.

In two phases, so that nothing is half in force: everything is read, validated and made ready, and where anything of it
cannot be, nothing changes; then all of it is put in force in one stretch, in which nothing else happens. A turn that
runs ends with what it began with; the next message meets what is new. What the files say becomes what counts in this
way only: whatever has them read again calls `reload`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from agent.cache.prices import PriceTable
from gateway.config_files import ConfigFiles
from gateway.known_secrets import collect_secrets
from gateway.price_table import PriceTableError, load_price_table
from gateway.reloading import ReloadResult, compare_settings, effective_settings, find_conflicts, locate_problem
from gateway.settings import AgentConfig, Settings
from gateway.settings_context import ContextOptimizationConfig
from gateway.settings_load import ConfigError, LoadedConfig
from gateway.settings_source import ConfigProblem

logger = logging.getLogger("reverie.live")

Derived = TypeVar("Derived")


class SettingsListener(Protocol):
    """Somebody who goes by the settings."""

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Make ready what `new` says; raise BadConfig if it cannot be, with keys, and without files.

        What is returned puts it in force: it is synchronous and cannot fail. It is not called if anybody else refuses,
        so nothing may have to be put away then. Called on the event loop; `LiveSettings.settings` says meanwhile what
        it said.
        """


class DerivedSettingsListener(Generic[Derived]):
    """A taker who is told what follows from the settings."""

    def __init__(self, make: Callable[[Settings], Derived], become: Callable[[Derived], None]) -> None:
        self._make, self._become = make, become

    def prepare(self, new: Settings) -> Callable[[], None]:
        made = self._make(new)
        return lambda: self._become(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledOptimizations:
    """Which of the four mechanisms work for one agent."""

    prompt_cache: bool
    compaction: bool
    token_counter: bool
    workspace_cache: bool


class LiveSettings:
    """What the settings say by now."""

    def __init__(self, settings: Settings, directory: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """`directory`: of the configuration files, with what `${NAME}` stands for. None: nothing changes."""
        self._settings = settings
        self.directory = directory
        """Of the configuration files."""
        self.files = ConfigFiles(directory, env or {}) if directory is not None else None
        """What is read. None: nothing is."""
        self.change_event = asyncio.Event()
        """Something may have been written, or somebody has asked: for `gateway.watching`."""
        self._is_requested = False
        self._prices: PriceTable | None = None
        self._reload_lock = asyncio.Lock()
        self._listeners: list[SettingsListener] = []
        self._secret_listeners: list[Callable[[Iterable[str]], None]] = []
        self._reload_listeners: list[Callable[[ReloadResult], None]] = []
        self._warned: frozenset[ConfigProblem] = frozenset()

    @property
    def settings(self) -> Settings:
        """What counts, with what still runs as it did where that needs a restart. Ask again whenever it matters."""
        return self._settings

    @property
    def prices(self) -> PriceTable:
        """What tokens cost. The first time it is read, then with everything else. Raises BadPrices."""
        if self._prices is None:
            self._prices = load_price_table(self.directory)
        return self._prices

    @property
    def optimization(self) -> ContextOptimizationConfig:
        """The knobs, which are the same for all agents."""
        return self._settings.llm.context_optimization

    def agent_config(self, agent_id: str) -> AgentConfig:
        """What is said by now of an agent that runs."""
        return next(one for one in self._settings.agents if one.id == agent_id)

    def enabled_optimizations(self, agent_id: str) -> EnabledOptimizations:
        """An agent's own word where it has one, else that for all."""
        said = self.optimization
        own = next((one.context_optimization for one in self._settings.agents if one.id == agent_id), None)
        own = own or type(self._settings.agents[0].context_optimization)()
        return EnabledOptimizations(
            prompt_cache=_own_or_general(own.prompt_cache, said.prompt_cache.enabled),
            compaction=_own_or_general(own.compaction, said.compaction.enabled),
            token_counter=_own_or_general(own.token_counter, said.token_counter.enabled),
            workspace_cache=_own_or_general(own.workspace_cache, said.workspace_cache.enabled),
        )

    def add_listener(self, taker: SettingsListener) -> None:
        """Have it take what is new from now on, after those that were named before."""
        self._listeners.append(taker)

    def add_secret_listener(self, learn: Callable[[Iterable[str]], None]) -> None:
        """Have it told the secrets of whatever is read, before anything of that is used."""
        self._secret_listeners.append(learn)

    def add_reload_listener(self, told: Callable[[ReloadResult], None]) -> None:
        """Have it told what came of each reading, on the event loop. It returns at once."""
        self._reload_listeners.append(told)

    def request_reload(self) -> None:
        """Have it read soon, whether anything was written or not. Returns at once."""
        self._is_requested = True
        self.change_event.set()

    async def reload(self) -> ReloadResult:
        """Read the configuration now, whether it was written or not. What is broken changes nothing.

        One at a time: who calls while another is under way is answered by one that began after the call.
        """
        if self.files is None:
            return ReloadResult(read_error="it is in no files")
        async with self._reload_lock:
            return await self._reload(self.files)

    async def refresh(self) -> None:
        """Read the configuration if somebody has asked for that, or if anything was written since it was read last.

        What another reading under way has seen by its end is not read, and told, a second time.
        """
        if self.files is None:
            return
        async with self._reload_lock:
            asked, self._is_requested = self._is_requested, False
            if asked or await asyncio.to_thread(self.files.is_stale):
                await self._reload(self.files)

    async def _reload(self, files: ConfigFiles) -> ReloadResult:
        try:
            came = await self._read(files)
        except Exception:  # a bug: what there was is as good as ever
            logger.exception("the configuration cannot be taken")
            came = ReloadResult(read_error="internal error")
        logger.log(
            logging.ERROR
            if came.problems
            else logging.WARNING
            if came.read_error or came.after_restart
            else logging.INFO,
            "%s",
            came,
        )
        for told in self._reload_listeners:
            told(came)
        return came

    async def _read(self, files: ConfigFiles) -> ReloadResult:
        try:
            found, prices = await asyncio.to_thread(lambda: (files.read(), load_price_table(self.directory)))
        except ConfigError as error:
            return ReloadResult(problems=error.problems)
        except PriceTableError as error:
            return ReloadResult(problems=(ConfigProblem("", 0, "", str(error)),))
        except OSError as error:  # a file was taken away while it was read: what comes in its place is seen next
            return ReloadResult(read_error=error.strerror or "it cannot be read")
        for warning in found.warnings:
            if warning not in self._warned:
                logger.warning("%s", warning)
        self._warned = frozenset(found.warnings)
        secrets = collect_secrets(found.settings, found.resolved_values)
        for learn in self._secret_listeners:
            learn(secrets)
        return self._apply(found, prices)

    def _apply(self, found: LoadedConfig, prices: PriceTable) -> ReloadResult:
        """All or nothing, and nothing else meanwhile."""
        new, problems, ready = (
            effective_settings(self._settings, found.settings),
            list[ConfigProblem](),
            list[Callable[[], None]](),
        )
        problems += find_conflicts(self._settings, found.settings)
        for taker in self._listeners if not problems else ():
            try:
                ready.append(taker.prepare(new))
            except ConfigError as error:
                problems += error.problems
        if problems:
            return ReloadResult(problems=tuple(locate_problem(one, found.positions) for one in problems))
        came, self._settings = compare_settings(self._settings, found.settings), new
        if self._prices not in (None, prices):
            came = replace(came, applied=(*came.applied, "prices"))
        self._prices = prices
        for put in ready:
            try:
                put()
            except Exception:  # a bug: the others must go on with the same settings
                logger.exception("a part of the configuration is not in force")
        return came


def _own_or_general(own: bool | None, general: bool) -> bool:
    return general if own is None else own
