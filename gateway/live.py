"""The part of the configuration that may change while the gateway runs: how context is optimized.

Looked at before each turn, so that a change counts from the next request on. A configuration that is broken, or
changes what needs a restart, is said once; what was valid last goes on.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import Settings
from gateway.settings_context import ContextOptimization
from gateway.settings_load import BadConfig, load

logger = logging.getLogger("reverie.live")

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change (ns) of each file: equal while nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Which of the four mechanisms work for one agent."""

    prompt_cache: bool
    compaction: bool
    token_counter: bool
    workspace_cache: bool


class Live:
    """What the settings say by now."""

    def __init__(self, settings: Settings, directory: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """`directory`: of the configuration files, with what `${NAME}` stands for. None: nothing changes."""
        self._settings = settings
        self._env = env or {}
        self._directory = directory
        self._stamp = self._look()
        self._looking = asyncio.Lock()

    @property
    def directory(self) -> Path | None:
        """Of the configuration files."""
        return self._directory

    @property
    def optimization(self) -> ContextOptimization:
        """The knobs, which are the same for all agents."""
        return self._settings.llm.context_optimization

    def switches(self, agent_id: str) -> Switches:
        """An agent's own word where it has one, else that for all."""
        said = self.optimization
        own = next((one.context_optimization for one in self._settings.agents if one.id == agent_id), None)
        own = own or type(self._settings.agents[0].context_optimization)()
        return Switches(
            prompt_cache=_first(own.prompt_cache, said.prompt_cache.enabled),
            compaction=_first(own.compaction, said.compaction.enabled),
            token_counter=_first(own.token_counter, said.token_counter.enabled),
            workspace_cache=_first(own.workspace_cache, said.workspace_cache.enabled),
        )

    async def refresh(self) -> None:
        """Take in what was written since. Costs a look at the files' times while nothing was."""
        if self._directory is None or self._look() == self._stamp:
            return
        async with self._looking:
            stamp = self._look()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                read = await asyncio.to_thread(load, self._directory, self._env)
            except BadConfig as error:
                logger.error("the configuration is broken and goes on as it was:\n%s", error)  # noqa: TRY400 - no bug
                return
            except OSError as error:  # a file was taken away while it was read: what comes in its place is seen next
                logger.warning("the configuration cannot be read just now: %s", error.strerror)
                return
            self._take(read)

    def _take(self, read: Settings) -> None:
        if later := _needs_restart(self._settings, read):
            logger.warning("changed, but only after a restart: %s", ", ".join(later))
        mine = {agent.id: agent.context_optimization for agent in read.agents}
        agents = tuple(
            agent.model_copy(update={"context_optimization": mine.get(agent.id, agent.context_optimization)})
            for agent in self._settings.agents
        )
        llm = self._settings.llm.model_copy(update={"context_optimization": read.llm.context_optimization})
        changed = self._settings.model_copy(update={"agents": agents, "llm": llm})
        if changed != self._settings:
            logger.info("context optimization is changed from the next request on")
        self._settings = changed

    def _look(self) -> Stamp:
        if self._directory is None:
            return ()
        try:
            files = sorted(path for path in self._directory.iterdir() if path.suffix in {".yaml", ".yml"})
            stats = [(path.name, path.stat()) for path in files]
        except OSError:  # just being replaced: the next look will tell
            return ()
        return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


_FIXED = (
    ("compaction", "summarizer_model"),
    ("folds", "provider_side"),
    ("token_counter", "cache_capacity"),
    ("workspace_cache", "watch_debounce_ms"),
    ("workspace_cache", "max_age_seconds"),
)
"""Knobs that are read once."""


def _first(own: bool | None, general: bool) -> bool:
    return general if own is None else own


def _needs_restart(old: Settings, new: Settings) -> list[str]:
    """Top-level keys that say something else now, and of context optimization what is read once."""
    without = {"llm": {"context_optimization"}, "agents": {"__all__": {"context_optimization"}}}
    before, after = old.model_dump(exclude=without), new.model_dump(exclude=without)  # type: ignore[arg-type]
    later = sorted(key for key in before if before[key] != after.get(key))
    knobs, turned = old.llm.context_optimization.model_dump(), new.llm.context_optimization.model_dump()
    return later + [f"llm.context_optimization.{a}.{b}" for a, b in _FIXED if knobs[a][b] != turned[a][b]]
