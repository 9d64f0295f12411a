"""What the settings say by now: the configuration read again while the gateway runs, and put in force.

In two phases, so that nothing is half in force: everything is read, validated and made ready, and where anything of it
cannot be, nothing changes; then all of it is put in force in one stretch, in which nothing else happens. A turn that
runs ends with what it began with; the next message meets what is new. What the files say becomes what counts in this
way only: whatever has them read again calls `reload`.

What a configuration that is read again changes: what counts at once, and what only after a restart. Pure.

Everything counts from the next message on but what stands in `RESTART_KEYS`. Keys are named, never what they say.

Has the configuration read again when it was written, and when somebody asks for that. In the background.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, cast

from agent.cache.prices import PriceTable
from agent.workspace.cache import DirectoryWatcher, WatchReport
from channels.aio import with_timeout
from gateway.config.loader import ConfigError, ConfigFiles, LoadedConfig
from gateway.config.models import AgentConfig, ContextOptimizationConfig, Settings
from gateway.config.secrets import PriceTableError, collect_secrets, load_price_table
from gateway.config.source import ConfigProblem
from gateway.core.clock import Clock
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.fields import ConfigSection

Value = TypeVar("Value")
KeyPattern = tuple[str, ...]

RESTART_KEYS: Final[Mapping[str, str]] = {
    "store": "the log is open, and everything that goes on is written there",
    "ops": "whoever watches the gateway would lose sight of it",
    "agents.*.workspace": "what an agent has written down lies beside it, and is taken up at a start",
    "agents.*.files": "what runs in an agent's shell runs there",
    "tools.mcp": "these are programs that run, and turns under way have been told of their tools",
}
"""Keys, `*` for any name, with why they cannot be changed meanwhile. Nor can agents come or go: each has a state of its
own, which is read from the log at a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """What came of reading the configuration again: keys and places, never values."""

    applied: tuple[str, ...] = ()
    """What counts from now on."""
    after_restart: tuple[str, ...] = ()
    """What is written and counts after a restart only."""
    problems: tuple[ConfigProblem, ...] = ()
    """Everything to mend; until then what was read before goes on."""
    read_error: str = ""
    """Why it could not be read. Empty: it could."""

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        if self.read_error:
            return (f"The configuration cannot be read: {self.read_error}. What there was goes on.",)
        if self.problems:
            return ("The configuration is broken, and what there was goes on:", *map(str, self.problems))
        told = [f"Changed from now on: {', '.join(self.applied)}."] if self.applied else []
        told += [f"Changed, but only after a restart: {', '.join(self.after_restart)}."] if self.after_restart else []
        return tuple(told) or ("The configuration says what it said before.",)

    def __str__(self) -> str:
        """In a line, for the log."""
        if self.read_error:
            return f"the configuration cannot be read just now, and goes on as it was: {self.read_error}"
        if self.problems:
            return "the configuration is broken, and goes on as it was: " + "; ".join(map(str, self.problems))
        told = [f"from now on: {', '.join(self.applied)}"] if self.applied else []
        told += [f"only after a restart: {', '.join(self.after_restart)}"] if self.after_restart else []
        return f"the configuration was read again; {'; '.join(told) or 'it says what it said before'}"


def effective_settings(running: Settings, read: Settings) -> Settings:
    """What counts once `read` is taken: all of it but what needs a restart, which stays as it runs."""
    there = {agent.id: agent for agent in running.agents}
    agents = [
        _keep_running(there[agent.id], agent, _patterns_below(_RESTART_PATTERNS, "agents", "*"))
        for agent in read.agents
        if agent.id in there
    ]
    gone = [agent for agent in running.agents if agent.id not in {one.id for one in read.agents}]
    return _keep_running(running, read, _RESTART_PATTERNS).model_copy(update={"agents": (*agents, *gone)})


def compare_settings(running: Settings, read: Settings) -> ReloadResult:
    """What taking `read` means."""
    now = effective_settings(running, read)
    return ReloadResult(applied=_changed_keys(running, now), after_restart=_changed_keys(now, read))


def find_conflicts(running: Settings, read: Settings) -> tuple[ConfigProblem, ...]:
    """What of `read` cannot be beside what stays as it runs."""
    found = [
        ConfigProblem(
            "", 0, "llm.models", f"the agent {agent.id} runs until a restart and thinks with {agent.model}; keep that"
        )
        for agent in effective_settings(running, read).agents
        if agent.model not in read.llm.models
    ]
    if running.ops.token is not None and OPERATOR_CHANNEL in read.channels:  # whoever speaks there is an owner
        told = "until a restart the operator's own channel has that name; write another one, or start anew"
        found.append(ConfigProblem("", 0, f"channels.{OPERATOR_CHANNEL}", told))
    return tuple(found)


def locate_problem(problem: ConfigProblem, lines: Mapping[str, tuple[str, int]]) -> ConfigProblem:
    """With the file and line of its key, or of the nearest above that is written."""
    key = problem.key
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    file, line = lines.get(key, ("", 0))
    return problem if problem.file else replace(problem, file=file, line=line)


def _keep_running(old: Value, new: Value, patterns: Sequence[KeyPattern]) -> Value:
    """`new`, with what needs a restart as in `old`."""
    if () in patterns:
        return old
    names = {pattern[0] for pattern in patterns}
    if isinstance(old, ConfigSection) and isinstance(new, ConfigSection):
        update = {
            name: _keep_running(getattr(old, name), getattr(new, name), _patterns_below(patterns, name))
            for name in names & type(new).model_fields.keys() & type(old).model_fields.keys()
        }
        return cast("Value", new.model_copy(update=update))
    return new


def _patterns_below(patterns: Sequence[KeyPattern], *names: str) -> list[KeyPattern]:
    return [pattern[len(names) :] for pattern in patterns if pattern[: len(names)] == names]


_RESTART_PATTERNS: Final[Sequence[KeyPattern]] = [tuple(key.split(".")) for key in RESTART_KEYS]


def _dump_settings(settings: Settings) -> dict[str, object]:
    """By key; agents by their ids."""
    dumped = settings.model_dump()
    return dumped | {"agents": {agent["id"]: agent for agent in dumped["agents"]}}


def _changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """The keys under which they say something else, as an operator would write them."""
    found = tuple(_key_differences(_dump_settings(old), _dump_settings(new)))
    both = [
        [one.id for one in some.agents if one.id in {other.id for other in more.agents}]
        for some, more in ((old, new), (new, old))
    ]
    return found if both[0] == both[1] else (*found, "agents")


def _key_differences(old: object, new: object, at: str = "") -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield at
        return
    for key in sorted(old.keys() | new.keys(), key=str):
        yield from _key_differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))


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
        """Something may have been written, or somebody has asked: for `gateway.config.reload`."""
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


DEBOUNCE_MS: Final = 200
"""Changes are gathered for so long: an editor takes several steps, and so does whoever writes several files."""
POLL_S: Final = 30.0
"""How often the files are looked at though nothing was heard of them: some file systems of networks tell nothing."""


class ConfigWatcher:
    """Of one gateway."""

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._watchers: dict[Path, DirectoryWatcher] = {}
        self._stopped: list[DirectoryWatcher] = []
        """Those that were told to stop."""
        self.has_reported = False
        """A watcher has said that it listens, or that it cannot."""

    async def run(self) -> None:
        """Until cancelled; then no thread is left. Returns at once where the configuration is in no files."""
        live, files = self._live, self._live.files
        if files is None:
            return
        try:
            await asyncio.to_thread(files.find_references)
            while True:
                self._watch_directories(files)
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._clock, POLL_S, live.change_event.wait())
                live.change_event.clear()
                await live.refresh()
        finally:
            self._stop_watching(*self._watchers)
            await asyncio.to_thread(self._join)

    def _watch_directories(self, files: ConfigFiles) -> None:
        """Watch where they lie now, and nowhere else."""
        places = files.directories
        self._stop_watching(*(place for place in self._watchers if place not in places))
        for place in places - self._watchers.keys():
            self._watchers[place] = self._watcher(place, asyncio.get_running_loop())

    def _watcher(self, place: Path, loop: asyncio.AbstractEventLoop) -> DirectoryWatcher:
        def report(_: WatchReport) -> bool:
            self.has_reported = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._live.change_event.set)
                return True
            return False

        def counts(path: str) -> bool:
            return not path.startswith(store)

        # Other names count, whatever they are: a link that is put in place of another one brings new files.
        store = str(self._live.settings.store.path.absolute())
        meanwhile = "the configuration is looked at now and then"
        return DirectoryWatcher(place, DEBOUNCE_MS, report, counts=counts, meanwhile=meanwhile)

    def _stop_watching(self, *places: Path) -> None:
        for place in places:
            watcher = self._watchers.pop(place)
            watcher.stop()
            self._stopped.append(watcher)

    def _join(self) -> None:
        for watcher in self._stopped:
            watcher.join()
