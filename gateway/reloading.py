"""What a configuration that is read again changes: what counts at once, and what only after a restart. Pure.

Everything counts from the next message on but what stands in `RESTART_KEYS`. Keys are named, never what they say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from gateway.fields import ConfigSection
from gateway.records import OPERATOR_CHANNEL
from gateway.settings import Settings
from gateway.settings_source import ConfigProblem

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
